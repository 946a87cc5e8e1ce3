//! `schedule` of a key that has a timer: one timer survives, every value comes out once, the key is never absent.

use crate::support::{Change, Model, NEVER, World, join, outcome, place, spawn};

/// The old timer is due when the new one comes.
const REPLACE_OR_FIRE: Model = Model::new("replace_or_fire", || {
    let world = World::new();
    world.given(1, 7, 5);
    let mut worker = world.worker();
    let author = spawn({
        let world = world.clone();
        move || world.schedule(1, 1, 8, 9).expect("not sealed").1
    });
    worker.turn(5);
    let replaced = join(author);
    worker.settle(6..=10);
    match (replaced, worker.fired().as_slice()) {
        (Some(7), [8]) => outcome("replaced"),
        (None, [7, 8]) => outcome("fired"),
        other => panic!("replaced and fired: {other:?}"),
    }
    drop(worker);
    world.end();
})
.preemptions(3)
.reclaims_early();

const REPLACE_OR_CANCEL: Model = Model::new("replace_or_cancel", || {
    let world = World::new();
    world.given_behind_a_gap(1, 7, 5);
    let author = spawn({
        let world = world.clone();
        move || world.schedule(1, 1, 8, 9).expect("not sealed").1
    });
    let cancelled = world.cancel(0, 1);
    let left = world.find(0, 1);
    assert!(cancelled == Some(7) || left.is_none(), "the old timer is seen again after the new one: {left:?}");
    let replaced = join(author);
    match (replaced, cancelled, world.seal().as_slice()) {
        (Some(7), Some(8), []) => outcome("new one cancelled"),
        (None, Some(7), [8]) => outcome("old one cancelled"),
        other => panic!("replaced, cancelled, left: {other:?}"),
    }
    world.end();
});

/// What a batch has seen of the old timer leads to that timer, or nowhere.
const REPLACE_OR_CANCEL_AS_SEEN: Model = Model::new("replace_or_cancel_as_seen", || {
    let world = World::new();
    world.given(1, 7, 5);
    let author = spawn({
        let world = world.clone();
        move || world.schedule(1, 1, 8, 9).expect("not sealed").1
    });
    let cancelled = world.cancel_as_seen(0, 1);
    match (join(author), cancelled, world.seal().as_slice()) {
        (Some(7), Some(8), []) => outcome("new one cancelled"),
        (None, Some(7), [8]) => outcome("old one cancelled"),
        other => panic!("replaced, cancelled, left: {other:?}"),
    }
    world.end();
})
.preemptions(2);

/// A thread that finds the old timer ended, by its identity, sees what the author did before.
const REPLACED_BY_SOMEBODY_SEEN: Model = Model::new("replaced_by_somebody_seen", || {
    let world = World::new();
    let timer = world.given(1, 7, 5);
    let (author, mark) = world.spawn_marked(|world| world.schedule(1, 1, 8, 9).expect("not sealed").1);
    let cancelled = world.cancel_this(0, timer);
    let seen = mark.is_seen();
    assert!(cancelled.is_some() || seen, "replaced by an author who is not seen");
    match (join(author), cancelled) {
        (Some(7), None) => outcome("replaced"),
        (None, Some(7)) => outcome("cancelled"),
        other => panic!("replaced, cancelled: {other:?}"),
    }
    assert_eq!(world.seal(), [8]);
    world.end();
})
.preemptions(3);

/// A new timer passes over one that has ended only if its author sees what whoever ended that did before.
const PASSES_OVER_AN_END_THAT_IS_SEEN: Model = Model::new("passes_over_an_end_that_is_seen", || {
    let world = World::new();
    world.given(1, 7, 5);
    let (canceller, mark) = world.spawn_marked(|world| world.cancel(1, 1));
    let replaced = world.schedule(0, 1, 8, NEVER).expect("not sealed").1;
    let seen = mark.is_seen();
    assert!(replaced.is_some() || seen, "ended by a thread that is not seen");
    match (replaced, join(canceller), world.seal().as_slice()) {
        (None, Some(7), [8]) => outcome("old one cancelled"),
        (Some(7), Some(8), []) => outcome("new one cancelled"),
        other => panic!("replaced, cancelled, left: {other:?}"),
    }
    world.end();
})
.preemptions(2)
.plain_preemptions(1);

const REPLACE_OR_MOVE: Model = Model::new("replace_or_move", || {
    let world = World::new();
    world.given(1, 7, 5);
    let mut worker = world.worker();
    let author = spawn({
        let world = world.clone();
        move || world.schedule(1, 1, 8, 9).expect("not sealed").1
    });
    assert!(world.reschedule(0, 1, 7), "the key is never absent");
    assert_eq!(join(author), Some(7));
    worker.settle(6..=10);
    match worker.firings.as_slice() {
        [firing] if firing.value == 8 => outcome(firing.at),
        other => panic!("{other:?}"),
    }
    drop(worker);
    world.end();
});

const REPLACE_TWICE: Model = Model::new("replace_twice", || {
    let world = World::new();
    world.given(1, 7, 5);
    let author = spawn({
        let world = world.clone();
        move || world.schedule(1, 1, 8, 9).expect("not sealed").1
    });
    let mine = world.schedule(0, 1, 9, 9).expect("not sealed").1;
    let theirs = join(author);
    match (mine, theirs, world.seal().as_slice()) {
        (Some(7), Some(9), [8]) => outcome("mine first"),
        (Some(8), Some(7), [9]) => outcome("theirs first"),
        other => panic!("replaced, replaced, left: {other:?}"),
    }
    world.end();
})
.preemptions(2);

/// Another key of the same hash stands between, so that the reader is still on its way when the new timer comes.
const NEVER_ABSENT: Model = Model::new("never_absent", || {
    let world = World::new();
    world.given(1, 7, 5);
    world.given(11, 70, 50);
    never_absent(&world);
    assert_eq!(world.seal(), [8, 70]);
    world.end();
})
.preemptions(3);

/// The new timer comes in front of the old one: the reader has passed that place, and finds that the old timer has
/// ended.
const NEVER_ABSENT_BEHIND_A_GAP: Model = Model::new("never_absent_behind_a_gap", || {
    let world = World::new();
    world.given_behind_a_gap(1, 7, 5);
    never_absent(&world);
    assert_eq!(world.seal(), [8]);
    world.end();
})
.preemptions(3);

/// The key's timer, with value 7, is replaced while another thread looks it up.
fn never_absent(world: &World) {
    let author = spawn({
        let world = world.clone();
        move || world.schedule(1, 1, 8, 9).expect("not sealed").1
    });
    match world.find(0, 1) {
        Some(due) => outcome(due),
        None => panic!("the key was absent"),
    }
    assert_eq!(join(author), Some(7));
}

/// Two authors and a reader: the reader meets a timer on its way in, and helps.
const NEVER_ABSENT_BETWEEN_TWO: Model = Model::new("never_absent_between_two", || {
    let world = World::new();
    world.given(1, 7, 5);
    let authors = [(1, 8, 8), (2, 9, 9)].map(|(thread, value, tick)| {
        let world = world.clone();
        spawn(move || world.schedule(thread, 1, value, tick).expect("not sealed").1)
    });
    match world.find(0, 1) {
        Some(due) => outcome(due),
        None => panic!("the key was absent"),
    }
    let mut out: Vec<_> = authors.map(join).into_iter().flatten().chain(world.seal()).collect();
    out.sort();
    assert_eq!(out, [7, 8, 9], "every value comes out once");
    world.end();
})
.preemptions(2)
.plain_preemptions(1)
.without_stale_places();

#[test]
fn an_old_timer_is_replaced_or_fires_but_not_both() {
    REPLACE_OR_FIRE.reaches(&["replaced", "fired"]);
}

#[test]
fn a_cancel_takes_the_old_timer_or_the_new_one() {
    REPLACE_OR_CANCEL.reaches(&["new one cancelled", "old one cancelled"]);
    REPLACE_OR_CANCEL_AS_SEEN.reaches(&["new one cancelled", "old one cancelled"]);
}

#[test]
fn an_old_timer_is_replaced_or_cancelled_by_somebody_seen() {
    REPLACED_BY_SOMEBODY_SEEN.reaches(&["replaced", "cancelled"]);
    PASSES_OVER_AN_END_THAT_IS_SEEN.reaches(&["old one cancelled", "new one cancelled"]);
}

#[test]
fn a_move_reaches_the_old_timer_or_the_new_one() {
    REPLACE_OR_MOVE.reaches(&[7, 9]);
}

#[test]
fn two_schedules_of_one_key_leave_one_timer() {
    REPLACE_TWICE.reaches(&["mine first", "theirs first"]);
}

#[test]
fn a_key_that_is_being_replaced_is_never_absent() {
    NEVER_ABSENT.reaches(&[5, 9]);
    NEVER_ABSENT_BEHIND_A_GAP.reaches(&[5, 9]);
    NEVER_ABSENT_BETWEEN_TWO.reaches(&[5, 8, 9]);
}

#[test]
fn the_replacement_must_be_one_step() {
    let replace = place("word.rs", "self.0.compare_exchange(seen.0, Word::replaced_by(successor).0");
    REPLACE_OR_FIRE.kills(replace, Change::Tear, "lost");
    REPLACE_OR_CANCEL.kills(replace, Change::Tear, "lost");
}

#[test]
fn the_replacement_must_be_released() {
    let replace = place("word.rs", "self.0.compare_exchange(seen.0, Word::replaced_by(successor).0");
    let publish = place("word.rs", "self.0.compare_exchange(seen.0, pending.0");
    REPLACED_BY_SOMEBODY_SEEN.kills(replace, Change::DropRelease, "replaced by an author who is not seen");
    REPLACE_OR_CANCEL.kills(publish, Change::DropRelease, "seen again after the new one");
}

#[test]
fn the_end_of_an_old_timer_must_be_acquired() {
    let pass_over = place("word.rs", "Word(self.0.load(Acquire)).state() == State::Dead");
    PASSES_OVER_AN_END_THAT_IS_SEEN.kills(pass_over, Change::DropAcquire, "ended by a thread that is not seen");
}

/// A thread that has acquired a ticket knows the nodes that existed when it was drawn.
#[test]
fn a_ticket_must_be_released() {
    let draw = place("line.rs", "match self.0.compare_exchange(seen.0, seen.0 + 1, AcqRel, Acquire)");
    NEVER_ABSENT_BEHIND_A_GAP.kills(draw, Change::DropRelease, "absent");
}

#[test]
fn the_link_must_be_one_step() {
    let link = place("line.rs", "self.0.compare_exchange(seen.0, seen.with(side, cell).0");
    REPLACE_TWICE.kills(link, Change::Tear, "replaced, replaced, left");
}

const MODELS: &[Model] = &[
    REPLACED_BY_SOMEBODY_SEEN,
    PASSES_OVER_AN_END_THAT_IS_SEEN,
    REPLACE_OR_FIRE,
    REPLACE_OR_CANCEL,
    REPLACE_OR_CANCEL_AS_SEEN,
    REPLACE_OR_MOVE,
    REPLACE_TWICE,
    NEVER_ABSENT,
    NEVER_ABSENT_BEHIND_A_GAP,
    NEVER_ABSENT_BETWEEN_TWO,
];

#[test]
#[ignore = "minutes; see loom-tests/README.md"]
fn sweep() {
    crate::support::sweep("replace", MODELS);
}
