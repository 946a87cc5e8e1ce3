//! Cancel against everything that ends or begins a timer: the value comes out exactly once.

use crate::support::{Change, Model, World, join, outcome, place, spawn};
use crate::sync::{AtomicU64, Ordering};
use std::rc::Rc;

/// The timer is due when the caller cancels it.
const CANCEL_OR_FIRE: Model = Model::new("cancel_or_fire", || {
    let world = World::new();
    world.given(1, 7, 5);
    let mut worker = world.worker();
    let caller = spawn({
        let world = world.clone();
        move || world.cancel(1, 1)
    });
    worker.turn(5);
    let cancelled = join(caller);
    worker.settle(6..=8);
    match (cancelled, worker.fired().as_slice()) {
        (Some(7), []) => outcome("cancelled"),
        (None, [7]) => outcome("fired"),
        both => panic!("the value came out {both:?}"),
    }
    drop(worker);
    world.end();
})
.preemptions(4);

/// Two callers cancel, one by key and one by identity. The second one sees what the first did before.
const CANCEL_TWICE: Model = Model::new("cancel_twice", || {
    let world = World::new();
    let timer = world.given(1, 7, 5);
    let done = Rc::new([AtomicU64::new(0), AtomicU64::new(0)]);
    let caller = spawn({
        let (world, done) = (world.clone(), Rc::clone(&done));
        move || {
            done[1].store(1, Ordering::Relaxed);
            (world.cancel(1, 1), done[0].load(Ordering::Relaxed) == 1)
        }
    });
    done[0].store(1, Ordering::Relaxed);
    let by_identity = world.cancel_this(0, timer);
    let caller_is_seen = done[1].load(Ordering::Relaxed) == 1;
    let (by_key, seen_by_caller) = join(caller);
    assert!(by_identity.is_some() || caller_is_seen, "ended by a caller who is not seen");
    assert!(by_key.is_some() || seen_by_caller, "ended by a caller who is not seen");
    match (by_key, by_identity) {
        (Some(7), None) => outcome("by key"),
        (None, Some(7)) => outcome("by identity"),
        both => panic!("the value came out {both:?}"),
    }
    world.end();
});

/// The timer that a batch has seen is gone, and its node has another one, of the same hash.
const CANCEL_AS_SEEN_OR_REUSE: Model = Model::new("cancel_as_seen_or_reuse", || {
    let world = World::new();
    world.given(1, 7, 5);
    let other = spawn({
        let world = world.clone();
        move || {
            let cancelled = world.cancel(1, 1);
            world.start(1, 11, 8, 6);
            cancelled
        }
    });
    let mine = world.cancel_as_seen(0, 1);
    match (mine, join(other)) {
        (Some(7), None) => outcome("mine"),
        (None, Some(7)) => outcome("theirs"),
        both => panic!("the value came out {both:?}"),
    }
    assert_eq!(world.seal(), [8]);
    world.end();
})
.preemptions(2)
.reclaims_early();

/// The timer is just beginning: it is in the index before its hint is in the mailbox.
const CANCEL_THE_FIRST_FILING: Model = Model::new("cancel_the_first_filing", || {
    let world = World::new();
    let mut worker = world.worker();
    let author = spawn({
        let world = world.clone();
        move || world.schedule(1, 1, 7, 5).expect("not sealed").1
    });
    let canceller = spawn({
        let world = world.clone();
        move || world.cancel(0, 1)
    });
    worker.turn(5);
    assert_eq!(join(author), None, "the key was free");
    let cancelled = join(canceller);
    worker.settle(6..=7);
    match (cancelled, worker.fired().as_slice()) {
        (Some(7), []) => outcome("cancelled"),
        (None, [7]) => outcome("fired"),
        both => panic!("the value came out {both:?}"),
    }
    drop(worker);
    world.end();
})
.preemptions(2);

#[test]
fn a_cancelled_timer_never_fires_and_a_fired_one_is_not_cancelled() {
    CANCEL_OR_FIRE.reaches(&["cancelled", "fired"]);
}

#[test]
fn two_cancels_share_one_value() {
    CANCEL_TWICE.reaches(&["by key", "by identity"]);
    CANCEL_AS_SEEN_OR_REUSE.reaches(&["mine", "theirs"]);
}

#[test]
fn a_cancel_of_a_timer_that_is_just_being_filed_is_exact() {
    CANCEL_THE_FIRST_FILING.reaches(&["cancelled", "fired"]);
}

#[test]
fn the_claim_must_be_one_step() {
    let claim = place("word.rs", "self.0.compare_exchange(seen.0, flags");
    CANCEL_OR_FIRE.kills(claim, Change::Tear, "value 7 dropped twice");
    CANCEL_TWICE.kills(claim, Change::Tear, "value 7 dropped twice");
}

#[test]
fn the_end_must_be_released() {
    let claim = place("word.rs", "self.0.compare_exchange(seen.0, flags");
    CANCEL_TWICE.kills(claim, Change::DropRelease, "ended by a caller who is not seen");
    CANCEL_TWICE.kills(place("word.rs", "Word(self.0.load(Acquire)) }"), Change::DropAcquire, "not seen");
}

#[test]
fn the_value_must_be_published_with_the_word() {
    let publish = place("word.rs", "self.0.compare_exchange(seen.0, pending.0");
    let link = place("line.rs", "self.0.compare_exchange(seen.0, seen.with(side, cell).0");
    CANCEL_THE_FIRST_FILING.kills(publish, Change::Tear, "dropped twice");
    // The canceller reads a key that it has not seen filled in.
    CANCEL_THE_FIRST_FILING.kills(link, Change::DropRelease, "Causality violation");
}

const MODELS: &[Model] = &[CANCEL_OR_FIRE, CANCEL_TWICE, CANCEL_AS_SEEN_OR_REUSE, CANCEL_THE_FIRST_FILING];

#[test]
#[ignore = "minutes; see loom-tests/README.md"]
fn sweep() {
    crate::support::sweep("cancel", MODELS);
}
