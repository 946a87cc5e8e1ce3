//! Many producers, one consumer: no hint is lost, none comes twice, and a producer that stops hides no other one's
//! hints.

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
    pub(crate) const BATCH: u32 = 1;
    pub(crate) const STRANDS: usize = 1;
    pub(crate) const MAILBOX_SEGMENT: usize = 2;
}

use shard::{Access, Consumer, Hint, Mailbox, Tick};
use std::rc::Rc;
use support::{Change, Model, join, ordinal, outcome, place, spawn};
use sync::UnsafeCell;

fn hint(name: u64) -> Hint {
    Hint::new(Tick(name), 1)
}

fn push_at(mailbox: &Mailbox, stripe: u32, name: u64) {
    let ordinal = ordinal(stripe);
    mailbox.push(&ordinal, hint(name), &Access::new(&ordinal).guard);
}

fn push(mailbox: &Mailbox, name: u64) {
    push_at(mailbox, 0, name);
}

/// Takes up to `limit` hints of each stripe. Returns their names.
fn drain_some(mailbox: &Mailbox, drain: &mut Consumer, limit: usize) -> Vec<u64> {
    let mut names = Vec::new();
    mailbox.drain(drain, limit, &Access::new(&ordinal(0)).guard, |hint| names.push(hint.tick(Tick(0)).0));
    names
}

/// Empties the mailbox. Returns the names that were in it.
fn drain(mailbox: &Mailbox, consumer: &mut Consumer) -> Vec<u64> {
    drain_some(mailbox, consumer, usize::MAX)
}

/// Two producers and the consumer, over a change of segments.
const TWO_PRODUCERS: Model = Model::new("two_producers", || {
    let mailbox = Rc::new(Mailbox::new(1));
    let mut consumer = mailbox.consumer();
    push(&mailbox, 1);
    let producers = [2, 3].map(|name| {
        let mailbox = Rc::clone(&mailbox);
        spawn(move || push(&mailbox, name))
    });
    let early = drain(&mailbox, &mut consumer);
    outcome(early.len());
    let _: [(); 2] = producers.map(join);
    let mut all: Vec<_> = early.into_iter().chain(drain(&mailbox, &mut consumer)).collect();
    all.sort();
    assert_eq!(all, [1, 2, 3], "every hint comes out once");
})
.preemptions(2);

/// One producer, as fast as the consumer: segments are left and reclaimed meanwhile.
const ALONG_THE_SEGMENTS: Model = Model::new("along_the_segments", || {
    let mailbox = Rc::new(Mailbox::new(1));
    let mut consumer = mailbox.consumer();
    push(&mailbox, 1);
    let producer = spawn({
        let mailbox = Rc::clone(&mailbox);
        move || [2, 3, 4, 5].map(|name| push(&mailbox, name))
    });
    let mut all = drain(&mailbox, &mut consumer);
    outcome(all.len());
    all.extend(drain(&mailbox, &mut consumer));
    join(producer);
    all.extend(drain(&mailbox, &mut consumer));
    assert_eq!(all, [1, 2, 3, 4, 5], "one producer's hints come in order");
})
.preemptions(3)
.reclaims_early();

/// A producer has begun a segment and stops before it moves the tail there; the consumer leaves the segment behind it,
/// while another producer comes in by the tail.
const A_SEGMENT_IS_LEFT: Model = Model::new("a_segment_is_left", || {
    let mailbox = Rc::new(Mailbox::new(1));
    let mut consumer = mailbox.consumer();
    push(&mailbox, 1);
    push(&mailbox, 2);
    let producers = [3, 4].map(|name| {
        let mailbox = Rc::clone(&mailbox);
        spawn(move || push(&mailbox, name))
    });
    let mut all = drain(&mailbox, &mut consumer);
    outcome(all.len());
    let _: [(); 2] = producers.map(join);
    all.extend(drain(&mailbox, &mut consumer));
    all.sort();
    assert_eq!(all, [1, 2, 3, 4], "every hint comes out once");
})
.preemptions(3)
.reclaims_early();

/// Two threads push the first hints of a stripe.
const FIRST_PUSH_TWICE: Model = Model::new("first_push_twice", || {
    let mailbox = Rc::new(Mailbox::new(1));
    let producer = spawn({
        let mailbox = Rc::clone(&mailbox);
        move || push(&mailbox, 1)
    });
    push(&mailbox, 2);
    join(producer);
    let mut consumer = mailbox.consumer();
    let all = drain(&mailbox, &mut consumer);
    assert_eq!(all.len(), 2, "every hint comes out: {all:?}");
    outcome(all);
})
.preemptions(4);

/// A producer stops anywhere for ever; what another one has pushed comes out.
const FILLED_SLOTS_ARE_A_PREFIX: Model = Model::new("filled_slots_are_a_prefix", || {
    let mailbox = Rc::new(Mailbox::new(1));
    push(&mailbox, 1);
    // Joined at the very end: until then it may be anywhere.
    let stalled = spawn({
        let mailbox = Rc::clone(&mailbox);
        move || push(&mailbox, 2)
    });
    push(&mailbox, 3);
    let mut consumer = mailbox.consumer();
    let all = drain(&mailbox, &mut consumer);
    assert!(all.contains(&3), "a stalled producer hid another's hint: {all:?}");
    outcome(all);
    join(stalled);
})
.preemptions(4);

/// What `is_drained` answers is true at some moment during the call.
const DRAINED_OR_NOT: Model = Model::new("drained_or_not", || {
    let mailbox = Rc::new(Mailbox::new(1));
    let mut consumer = mailbox.consumer();
    let producer = spawn({
        let mailbox = Rc::clone(&mailbox);
        move || [1, 2, 3].map(|name| push(&mailbox, name))
    });
    let early = drain(&mailbox, &mut consumer);
    let drained = mailbox.is_drained(&consumer);
    join(producer);
    assert_eq!(mailbox.is_drained(&consumer), early.len() == 3);
    let late = drain(&mailbox, &mut consumer);
    assert!(drained || !late.is_empty(), "something was there, and nothing comes out");
    assert!(mailbox.is_drained(&consumer));
    outcome((early.len(), drained));
})
.preemptions(3);

fn depth(mailbox: &Mailbox) -> u64 {
    mailbox.depth(&Access::new(&ordinal(0)).guard)
}

/// A thread asks how many hints are in while a producer fills one segment and begins another.
const COUNTED_BESIDE_A_PRODUCER: Model = Model::new("counted_beside_a_producer", || {
    let mailbox = Rc::new(Mailbox::new(1));
    let producer = spawn({
        let mailbox = Rc::clone(&mailbox);
        move || [1, 2, 3].map(|name| push(&mailbox, name))
    });
    outcome(depth(&mailbox));
    join(producer);
    assert_eq!(depth(&mailbox), 3);
})
.preemptions(3);

/// Two stripes, and a consumer who takes one hint of each at a time.
const A_FEW_AT_A_TIME: Model = Model::new("a_few_at_a_time", || {
    let mailbox = Rc::new(Mailbox::new(2));
    let mut consumer = mailbox.consumer();
    push_at(&mailbox, 0, 1);
    push_at(&mailbox, 0, 2);
    let producer = spawn({
        let mailbox = Rc::clone(&mailbox);
        move || {
            push_at(&mailbox, 1, 11);
            push_at(&mailbox, 0, 3);
        }
    });
    let early = drain_some(&mailbox, &mut consumer, 1);
    assert!(!mailbox.is_drained(&consumer), "one hint of the first stripe was left");
    join(producer);
    let mut late = Vec::new();
    while !mailbox.is_drained(&consumer) {
        let some = drain_some(&mailbox, &mut consumer, 1);
        assert!(some.len() <= 2, "more than one of a stripe: {some:?}");
        late.extend(some);
    }
    assert_eq!(depth(&mailbox), 0);
    match (early.as_slice(), late.as_slice()) {
        ([1], [2, 11, 3]) => outcome("the first stripe alone"),
        ([1, 11], [2, 3]) => outcome("one of each"),
        other => panic!("early, late: {other:?}"),
    }
})
.preemptions(3);

/// The reader of a hint sees what the producer did before it pushed the hint.
const A_HINT_TELLS_WHAT_WAS_DONE: Model = Model::new("a_hint_tells_what_was_done", || {
    let mailbox = Rc::new(Mailbox::new(1));
    push(&mailbox, 1);
    let done = Rc::new(UnsafeCell::new(false));
    let producer = spawn({
        let (mailbox, done) = (Rc::clone(&mailbox), Rc::clone(&done));
        move || {
            // SAFETY: nobody reads it before the hint.
            done.with_mut(|done| unsafe { *done = true });
            push(&mailbox, 2);
        }
    });
    let mut consumer = mailbox.consumer();
    let all = drain(&mailbox, &mut consumer);
    if all.contains(&2) {
        // SAFETY: after the hint, nobody writes it.
        assert!(done.with(|done| unsafe { *done }));
    }
    outcome(all);
    join(producer);
});

#[test]
fn every_hint_comes_out_once() {
    TWO_PRODUCERS.reaches(&[1, 2, 3]);
    FIRST_PUSH_TWICE.reaches(&[[1, 2], [2, 1]]);
}

#[test]
fn hints_of_one_producer_come_in_order_over_all_segments() {
    ALONG_THE_SEGMENTS.reaches(&[1, 2, 3, 4, 5]);
    A_SEGMENT_IS_LEFT.reaches(&[2, 3, 4]);
}

#[test]
fn a_producer_that_stops_hides_nobody() {
    FILLED_SLOTS_ARE_A_PREFIX.reaches(&[vec![1, 3], vec![1, 2, 3], vec![1, 3, 2]]);
}

#[test]
fn is_drained_tells_the_truth() {
    let expected = [(0, true), (0, false), (1, true), (1, false), (2, true), (2, false), (3, true)];
    DRAINED_OR_NOT.reaches(&expected);
}

#[test]
fn its_depth_is_told_beside_producers() {
    COUNTED_BESIDE_A_PRODUCER.reaches(&[0, 1, 2, 3]);
}

#[test]
fn a_drain_has_a_limit_for_each_stripe() {
    A_FEW_AT_A_TIME.reaches(&["the first stripe alone", "one of each"]);
}

#[test]
fn a_hint_carries_what_was_done_before() {
    A_HINT_TELLS_WHAT_WAS_DONE.reaches(&[vec![1], vec![1, 2]]);
}

#[test]
fn a_hint_must_be_released_and_acquired() {
    let (author, reader) = (
        place("mailbox.rs", "slot.compare_exchange(0, hint.to_bits()"),
        place("mailbox.rs", "Hint::from_bits(slot.load(Ordering::Acquire))"),
    );
    A_HINT_TELLS_WHAT_WAS_DONE.kills(author, Change::DropRelease, "Causality violation");
    A_HINT_TELLS_WHAT_WAS_DONE.kills(reader, Change::DropAcquire, "Causality violation");
}

#[test]
fn a_slot_must_be_taken_in_one_step() {
    let slot = place("mailbox.rs", "slot.compare_exchange(0, hint.to_bits()");
    TWO_PRODUCERS.kills(slot, Change::Tear, "every hint comes out once");
    FIRST_PUSH_TWICE.kills(slot, Change::Tear, "every hint comes out");
}

#[test]
fn a_segment_must_be_installed_in_one_step() {
    let install = place("mailbox.rs", "place.compare_exchange(ptr::null_mut(), fresh");
    FIRST_PUSH_TWICE.kills(install, Change::Tear, "every hint comes out");
}

/// Every thread sees a new segment empty, whichever pointer led it there.
#[test]
fn a_segment_must_be_published() {
    let install = place("mailbox.rs", "place.compare_exchange(ptr::null_mut(), fresh");
    let seen_born = |model: Model, snippet, change| {
        model.kills(place("mailbox.rs", snippet), change, "Causality violation");
    };
    FIRST_PUSH_TWICE.kills(install, Change::RelaxFailure, "Causality violation");
    DRAINED_OR_NOT.kills(install, Change::DropRelease, "Causality violation");
    seen_born(FIRST_PUSH_TWICE, "tail.load(Ordering::Acquire)", Change::DropAcquire);
    seen_born(FIRST_PUSH_TWICE, "self.tails[stripe].segment.compare_exchange(", Change::DropRelease);
    seen_born(A_SEGMENT_IS_LEFT, "let _ = tail.compare_exchange(current, next", Change::DropRelease);
    seen_born(A_SEGMENT_IS_LEFT, "tail.store(next, Ordering::Release)", Change::DropRelease);
    seen_born(
        A_SEGMENT_IS_LEFT,
        "segment.next.load(Ordering::Acquire); if next.is_null() { install",
        Change::DropAcquire,
    );
    seen_born(DRAINED_OR_NOT, "segment.next.load(Ordering::Acquire); if next.is_null() { return", Change::DropAcquire);
    seen_born(DRAINED_OR_NOT, "position.segment = self.heads[stripe].load(Ordering::Acquire)", Change::DropAcquire);
    seen_born(DRAINED_OR_NOT, "self.heads[stripe].load(Ordering::Acquire) } else", Change::DropAcquire);
    seen_born(COUNTED_BESIDE_A_PRODUCER, "let mut current = self.segment.load(Ordering::Acquire)", Change::DropAcquire);
    seen_born(COUNTED_BESIDE_A_PRODUCER, "current = segment.next.load(Ordering::Acquire); }", Change::DropAcquire);
}

/// A thread that starts at the cursor has its author's slot, and all slots before that, behind it.
#[test]
fn the_cursor_must_be_released_and_acquired() {
    let (author, reader) =
        (place("mailbox.rs", "segment.cursor.store("), place("mailbox.rs", "let start = segment.cursor.load("));
    let reason = "a stalled producer hid another's hint";
    FILLED_SLOTS_ARE_A_PREFIX.kills(author, Change::DropRelease, reason);
    FILLED_SLOTS_ARE_A_PREFIX.kills(reader, Change::DropAcquire, reason);
}

const MODELS: &[Model] = &[
    TWO_PRODUCERS,
    ALONG_THE_SEGMENTS,
    A_SEGMENT_IS_LEFT,
    FIRST_PUSH_TWICE,
    FILLED_SLOTS_ARE_A_PREFIX,
    DRAINED_OR_NOT,
    COUNTED_BESIDE_A_PRODUCER,
    A_FEW_AT_A_TIME,
    A_HINT_TELLS_WHAT_WAS_DONE,
];

#[test]
#[ignore = "minutes; see loom-tests/README.md"]
fn sweep() {
    support::sweep("mailbox", MODELS);
}
