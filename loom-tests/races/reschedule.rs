//! Moving a timer against everything that ends it: the last deadline counts, and is kept.

use crate::support::{Change, Model, World, join, outcome, place, spawn};

/// The timer is due when the caller moves it away.
const LATER_OR_FIRE: Model = Model::new("later_or_fire", || {
    let world = World::new();
    world.given(1, 7, 5);
    let mut worker = world.worker();
    let caller = spawn({
        let world = world.clone();
        move || world.reschedule(1, 1, 9)
    });
    worker.turn(5);
    let moved = join(caller);
    worker.settle(6..=12);
    let firings: Vec<_> = worker.firings.iter().map(|firing| (firing.value, firing.due, firing.at)).collect();
    match (moved, firings.as_slice()) {
        (true, [(7, 9, 9)]) => outcome("moved"),
        (false, [(7, 5, 5)]) => outcome("fired"),
        other => panic!("moved and fired: {other:?}"),
    }
    drop(worker);
    world.end();
})
.preemptions(4);

/// The timer is pulled forward, to a tick that the worker is just passing.
const EARLIER_OR_MISSED: Model = Model::new("earlier_or_missed", || {
    let world = World::new();
    let timer = world.given(1, 7, 9);
    let mut worker = world.worker();
    let caller = spawn({
        let world = world.clone();
        move || world.reschedule_this(1, timer, 5)
    });
    worker.turn(5);
    assert!(join(caller), "nothing else ends it");
    worker.settle(6..=6);
    match worker.firings.as_slice() {
        [firing] if firing.due == 5 => outcome(firing.at),
        other => panic!("the earlier deadline was missed: {other:?}"),
    }
    drop(worker);
    world.end();
})
.preemptions(4);

const MOVE_OR_CANCEL: Model = Model::new("move_or_cancel", || {
    let world = World::new();
    world.given(1, 7, 5);
    let mut worker = world.worker();
    let caller = spawn({
        let world = world.clone();
        move || world.reschedule(1, 1, 3)
    });
    let cancelled = world.cancel(0, 1);
    let moved = join(caller);
    assert_eq!(cancelled, Some(7), "nothing else ends it");
    worker.settle(3..=6);
    assert_eq!(worker.fired(), [], "a cancelled timer never fires");
    outcome(moved);
    drop(worker);
    world.end();
})
.preemptions(4);

const THREE_WAYS: Model = Model::new("three_ways", || {
    let world = World::new();
    let timer = world.given(1, 7, 5);
    let mut worker = world.worker();
    let mover = spawn({
        let world = world.clone();
        move || world.reschedule_this(1, timer, 8)
    });
    let canceller = spawn({
        let world = world.clone();
        move || world.cancel_this(0, timer)
    });
    worker.turn(5);
    let (moved, cancelled) = (join(mover), join(canceller));
    worker.settle(6..=9);
    let at: Vec<_> = worker.firings.iter().map(|firing| firing.at).collect();
    match (moved, cancelled, at.as_slice()) {
        (true, Some(7), []) => outcome("moved, cancelled"),
        (false, Some(7), []) => outcome("cancelled"),
        (true, None, [8]) => outcome("moved, fired"),
        (false, None, [5]) => outcome("fired"),
        other => panic!("{other:?}"),
    }
    drop(worker);
    world.end();
});

/// The timer is moved to the deadline that it has already: what the caller did before comes before the callback.
const MOVED_AND_SEEN: Model = Model::new("moved_and_seen", || {
    let world = World::new();
    let timer = world.given(1, 7, 5);
    let mut worker = world.worker();
    worker.turn(0);
    let (caller, mark) = world.spawn_marked(move |world| world.reschedule_this(1, timer, 5));
    worker.turn(5);
    assert_eq!(worker.fired(), [7]);
    let seen = mark.is_seen();
    let moved = join(caller);
    assert!(seen || !moved, "the callback did not see what came before the move");
    outcome(moved);
    drop(worker);
    world.end();
});

#[test]
fn a_timer_that_was_moved_later_does_not_fire_at_its_old_deadline() {
    LATER_OR_FIRE.reaches(&["moved", "fired"]);
}

#[test]
fn an_earlier_deadline_is_kept_even_if_the_worker_is_just_passing_it() {
    EARLIER_OR_MISSED.reaches(&[5, 6]);
}

#[test]
fn a_cancel_wins_over_any_number_of_moves() {
    MOVE_OR_CANCEL.reaches(&[false, true]);
}

#[test]
fn what_came_before_a_move_comes_before_the_callback() {
    MOVED_AND_SEEN.reaches(&[false, true]);
    let move_to = place("word.rs", "self.0.compare_exchange(seen.0, moved.0");
    MOVED_AND_SEEN.kills(move_to, Change::DropRelease, "did not see what came before the move");
}

#[test]
fn a_move_a_cancel_and_the_tick_agree_on_one_end() {
    // "moved, fired" at 8 would need the cancel to come last, after the worker's ticks. It never does: main joins it
    // before.
    THREE_WAYS.reaches(&["cancelled", "fired", "moved, cancelled"]);
}

#[test]
fn moves_and_claims_must_be_one_step() {
    let claim = place("word.rs", "self.0.compare_exchange(seen.0, flags");
    let move_to = place("word.rs", "self.0.compare_exchange(seen.0, moved.0");
    LATER_OR_FIRE.kills(claim, Change::Tear, "dropped twice");
    LATER_OR_FIRE.kills(move_to, Change::Tear, "moved and fired");
    MOVE_OR_CANCEL.kills(move_to, Change::Tear, "dropped twice");
}

const MODELS: &[Model] = &[LATER_OR_FIRE, EARLIER_OR_MISSED, MOVE_OR_CANCEL, THREE_WAYS, MOVED_AND_SEEN];

#[test]
#[ignore = "minutes; see loom-tests/README.md"]
fn sweep() {
    crate::support::sweep("reschedule", MODELS);
}
