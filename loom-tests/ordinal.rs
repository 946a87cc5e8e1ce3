//! A thread's number is its own, and what is kept under the number goes to the next holder whole.

#[path = "../src/shard/mod.rs"]
#[allow(dead_code, unused_imports, reason = "a model uses a part of the shard")]
mod shard;
#[allow(dead_code, unused_imports, reason = "a model uses a part of the support")]
mod support;
#[path = "support/sync.rs"]
mod sync;

mod size {
    pub(crate) const FIRST_SEGMENT_BITS: u32 = 2;
    pub(crate) const NODES_TO_LINE_BITS: u32 = 2;
    pub(crate) const BATCH: u32 = 2;
    pub(crate) const STRANDS: usize = 1;
    pub(crate) const MAILBOX_SEGMENT: usize = 4;
}

use shard::{Ordinal, Ordinals, SEGMENT_COUNT};
use std::rc::Rc;
use support::{Change, Model, join, outcome, place, spawn};
use sync::{AtomicPtr, UnsafeCell};

/// The registry is a static; a model makes a new one each time.
fn ordinals() -> &'static Ordinals {
    Box::leak(Box::new(Ordinals::new(std::array::from_fn::<_, SEGMENT_COUNT, _>(|_| {
        AtomicPtr::new(std::ptr::null_mut())
    }))))
}

/// What is kept by ordinal: how often its holders have been here.
type Kept = Rc<[UnsafeCell<u32>; 3]>;

fn kept() -> Kept {
    Rc::new(std::array::from_fn(|_| UnsafeCell::new(0)))
}

fn visit(kept: &Kept, ordinal: &Ordinal) -> u32 {
    // SAFETY: the model checks just that: that only one thread at a time comes here with one number.
    kept[ordinal.number() as usize].with_mut(|visits| unsafe {
        *visits += 1;
        *visits
    })
}

/// Two threads each take a number, use what is kept under it, and give it back.
const TWO_THREADS: Model = Model::new("two_threads", || {
    let (ordinals, kept) = (ordinals(), kept());
    let live = |kept: Kept| {
        let ordinal = ordinals.take();
        (ordinal.number(), visit(&kept, &ordinal))
    };
    let other = spawn({
        let kept = Rc::clone(&kept);
        move || live(kept)
    });
    let mine = live(Rc::clone(&kept));
    match (mine, join(other)) {
        ((0, 1), (0, 2)) | ((0, 2), (0, 1)) => outcome("one after the other"),
        ((0, 1), (1, 1)) | ((1, 1), (0, 1)) => outcome("side by side"),
        other => panic!("numbers and visits: {other:?}"),
    }
});

/// A number changes hands while a neighbour's, in the same word, comes and goes.
const BESIDE_A_NEIGHBOUR: Model = Model::new("beside_a_neighbour", || {
    let (ordinals, kept) = (ordinals(), kept());
    let first = ordinals.take();
    visit(&kept, &first);
    let others = [(); 2].map(|()| {
        let kept = Rc::clone(&kept);
        spawn(move || {
            let ordinal = ordinals.take();
            visit(&kept, &ordinal);
            ordinal.number()
        })
    });
    drop(first);
    let mut numbers = others.map(join);
    numbers.sort();
    outcome(numbers);
    assert_eq!(ordinals.take().number(), 0, "all numbers were given back");
})
.preemptions(2);

#[test]
fn a_number_has_one_holder_at_a_time() {
    TWO_THREADS.reaches(&["one after the other", "side by side"]);
    let take = place("ordinal.rs", "word.compare_exchange(seen, seen | 1 << bit");
    let give_back = place("ordinal.rs", "fetch_and(!(1 << (number % u64::BITS))");
    TWO_THREADS.kills(take, Change::Tear, "Concurrent write accesses");
    TWO_THREADS.kills(take, Change::DropAcquire, "Causality violation");
    TWO_THREADS.kills(give_back, Change::DropRelease, "Causality violation");
}

#[test]
fn a_number_goes_on_with_all_that_is_kept_under_it() {
    BESIDE_A_NEIGHBOUR.reaches(&[[0, 0], [0, 1], [1, 1], [1, 2]]);
    let give_back = place("ordinal.rs", "fetch_and(!(1 << (number % u64::BITS))");
    BESIDE_A_NEIGHBOUR.kills(give_back, Change::Tear, "all numbers were given back");
}

const MODELS: &[Model] = &[TWO_THREADS, BESIDE_A_NEIGHBOUR];

#[test]
#[ignore = "minutes; see loom-tests/README.md"]
fn sweep() {
    support::sweep("ordinal", MODELS);
}
