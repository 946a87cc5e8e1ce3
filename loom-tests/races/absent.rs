//! `schedule_if_absent`: one timer of a key begins, and an existing one stays; a caller that gives way gets its own
//! value back.

use crate::shard::Identity;
use crate::support::{Change, Model, World, join, outcome, place, spawn};
use crate::sync::{AtomicU64, Ordering};
use std::rc::Rc;

/// On a thread of its own: begins a timer with value 8, for tick 9.
fn begin(world: &World) -> loom::thread::JoinHandle<Option<u32>> {
    let world = world.clone();
    spawn(move || world.schedule_if_absent(1, 1, 8, 9).expect("not sealed"))
}

const TWO: Model = Model::new("two", || {
    let world = World::new();
    let author = begin(&world);
    let mine = world.schedule_if_absent(0, 1, 9, 9).expect("not sealed");
    match (mine, join(author), world.seal().as_slice()) {
        (None, Some(8), [9]) => outcome("mine"),
        (Some(9), None, [8]) => outcome("theirs"),
        other => panic!("given back, given back, left: {other:?}"),
    }
    world.end();
})
.preemptions(2)
.plain_preemptions(1);

/// A thread that asks after the old timer has ended gives way to a new timer only.
const OLD_ONE_ENDS: Model = Model::new("old_one_ends", || {
    let world = World::new();
    world.given(1, 7, 5);
    let author = begin(&world);
    assert_eq!(world.cancel(0, 1), Some(7), "who is there stays");
    let mine = world.schedule_if_absent(0, 1, 9, 9).expect("not sealed");
    match (mine, join(author), world.seal().as_slice()) {
        (None, Some(8), [9]) => outcome("theirs gave way"),
        (Some(9), None, [8]) => outcome("mine gave way"),
        other => panic!("given back, given back, left: {other:?}"),
    }
    world.end();
})
.preemptions(2)
.reclaims_early();

const ABSENT_OR_FIRE: Model = Model::new("absent_or_fire", || {
    let world = World::new();
    world.given(1, 7, 5);
    let mut worker = world.worker();
    let author = begin(&world);
    worker.turn(5);
    let given = join(author);
    worker.settle(6..=10);
    match (given, worker.fired().as_slice()) {
        (Some(8), [7]) => outcome("gave way"),
        (None, [7, 8]) => outcome("began"),
        other => panic!("given back, fired: {other:?}"),
    }
    drop(worker);
    world.end();
})
.preemptions(2)
.reclaims_early();

const ABSENT_OR_SCHEDULE: Model = Model::new("absent_or_schedule", || {
    let world = World::new();
    let author = begin(&world);
    let replaced = world.schedule(0, 1, 9, 9).expect("not sealed").1;
    match (replaced, join(author), world.seal().as_slice()) {
        (Some(8), None, [9]) => outcome("replaced"),
        (None, Some(8), [9]) => outcome("gave way"),
        other => panic!("replaced, given back, left: {other:?}"),
    }
    world.end();
})
.preemptions(2)
.plain_preemptions(1);

/// A thread that replaces the old timer does so in its own name only.
const ABSENT_BESIDE_A_REPLACEMENT: Model = Model::new("absent_beside_a_replacement", || {
    let world = World::new();
    world.given(1, 7, 5);
    let author = begin(&world);
    assert_eq!(world.schedule(0, 1, 9, 9).expect("not sealed").1, Some(7));
    assert_eq!(join(author), Some(8), "there was a timer all the time");
    assert_eq!(world.seal(), [9]);
    outcome("gave way");
    world.end();
})
.preemptions(2)
.reclaims_early();

/// The new timer is found only if it begins; and a thread meets it on its way in.
const ABSENT_OR_FOUND: Model = Model::new("absent_or_found", || {
    let world = World::new();
    let timer = world.given(1, 7, 5);
    let author = begin(&world);
    let cancelled = world.cancel_this(0, timer);
    assert_eq!(cancelled, Some(7));
    let found = world.find(0, 1);
    let given = join(author);
    let again = world.find(0, 1);
    match (found, given, again) {
        (None, None, Some(9)) => outcome("began late"),
        (Some(9), None, Some(9)) => outcome("began"),
        (None, Some(8), None) => outcome("gave way"),
        other => panic!("found, given back, found: {other:?}"),
    }
    let left = world.seal();
    assert_eq!(left.is_empty(), given.is_some());
    world.end();
})
.preemptions(2)
.reclaims_early();

/// The old timer's callback runs, and it may come back.
const ABSENT_OR_REARM: Model = Model::new("absent_or_rearm", || {
    let world = World::new();
    let timer = world.given_repeating(1, 7, 5);
    let run = world.fire_now(0, timer);
    let author = begin(&world);
    assert!(!world.run_ends(0, run, None, 5), "it wants no more");
    match (join(author), world.seal().as_slice()) {
        (Some(8), []) => outcome("gave way"),
        (None, [8]) => outcome("began"),
        other => panic!("given back, left: {other:?}"),
    }
    world.end();
})
.preemptions(2)
.reclaims_early();

const COMES_BACK: Model = Model::new("comes_back", || {
    let world = World::new();
    let timer = world.given_repeating(1, 7, 5);
    let run = world.fire_now(0, timer);
    let author = begin(&world);
    assert!(world.run_ends(0, run, Some(6), 5), "nobody has ended it");
    assert_eq!((join(author), world.seal()), (Some(8), vec![7]));
    outcome("gave way");
    world.end();
})
.preemptions(2)
.reclaims_early();

/// Another key of the same hash stands behind, so that other threads may have to decide.
const ABSENT_OR_SEAL: Model = Model::new("absent_or_seal", || {
    let world = World::new();
    world.given(11, 70, 50);
    let author = spawn({
        let world = world.clone();
        move || world.schedule_if_absent(1, 1, 8, 9)
    });
    let sealed = world.seal();
    match (join(author), sealed.as_slice()) {
        (Ok(None), [70, 8]) => outcome("began"),
        (Err(_), [70]) => outcome("refused"),
        other => panic!("given back, left: {other:?}"),
    }
    world.end();
})
.preemptions(2);

const GIVES_WAY_OR_SEAL: Model = Model::new("gives_way_or_seal", || {
    let world = World::new();
    world.given(1, 7, 5);
    let author = spawn({
        let world = world.clone();
        move || world.schedule_if_absent(1, 1, 8, 9)
    });
    assert_eq!(world.seal(), [7]);
    outcome(join(author).ok());
    world.end();
})
.preemptions(2);

/// A caller that gives way has seen what led to the existing timer.
const STARTED_BY_SOMEBODY_SEEN: Model = Model::new("started_by_somebody_seen", || {
    let world = World::new();
    let done = Rc::new(AtomicU64::new(0));
    let author = spawn({
        let (world, done) = (world.clone(), Rc::clone(&done));
        move || {
            let given = world.schedule_if_absent(1, 1, 8, 9).expect("not sealed");
            (given, done.load(Ordering::Relaxed))
        }
    });
    done.store(1, Ordering::Relaxed);
    world.start(0, 1, 7, 5);
    match join(author) {
        (None, _) => outcome("began"),
        (Some(8), 1) => outcome("gave way"),
        other => panic!("given back, seen: {other:?}"),
    }
    world.seal();
    world.end();
})
.preemptions(2)
.plain_preemptions(1);

/// What a caller leaves for a callback to see; reads of it may be stale however the shipped code loads.
type Left = loom::sync::atomic::AtomicU64;

/// On a thread of its own: leaves it, then asks. True if that found a timer.
fn leave_and(world: &World, done: &Rc<Left>, ask: fn(&World) -> bool) -> loom::thread::JoinHandle<bool> {
    let (world, done) = (world.clone(), Rc::clone(done));
    spawn(move || {
        done.store(1, Ordering::Relaxed);
        ask(&world)
    })
}

/// Fires the timer. True if its callback sees what was left.
fn sees(world: &World, done: &Left, timer: Identity) -> bool {
    let run = world.fire_now(0, timer);
    let seen = done.load(Ordering::Relaxed) == 1;
    world.run(0, run);
    seen
}

fn was_relied_on(found: bool, seen: bool) {
    assert!(seen || !found, "fired without what was left for it");
    outcome(if found { "relied on" } else { "too late" });
}

const LEFT_FOR_THE_OLD: Model = Model::new("left_for_the_old", || {
    let world = World::new();
    let timer = world.given(1, 7, 5);
    let done = Rc::new(Left::new(0));
    let author = leave_and(&world, &done, |world| world.relies_on(1, 1));
    let seen = sees(&world, &done, timer);
    was_relied_on(join(author), seen);
    world.end();
})
.preemptions(2);

const GAVE_WAY_TO_THE_OLD: Model = Model::new("gave_way_to_the_old", || {
    let world = World::new();
    let timer = world.given(1, 7, 5);
    let done = Rc::new(Left::new(0));
    let author = leave_and(&world, &done, |world| world.schedule_if_absent(1, 1, 8, 9) == Ok(Some(8)));
    let seen = sees(&world, &done, timer);
    was_relied_on(join(author), seen);
    world.seal();
    world.end();
})
.preemptions(2);

/// A thread that looks the key up may decide in the author's place.
const GAVE_WAY_BY_A_HELPER: Model = Model::new("gave_way_by_a_helper", || {
    let world = World::new();
    let timer = world.given(1, 7, 5);
    let done = Rc::new(Left::new(0));
    let author = leave_and(&world, &done, |world| world.schedule_if_absent(1, 1, 8, 9) == Ok(Some(8)));
    let helper = spawn({
        let world = world.clone();
        move || world.find(2, 1)
    });
    let seen = sees(&world, &done, timer);
    join(helper);
    was_relied_on(join(author), seen);
    world.seal();
    world.end();
})
.preemptions(1);

/// The timer that was relied on is replaced, and the new one fires.
const LEFT_FOR_A_REPLACED: Model = Model::new("left_for_a_replaced", || {
    let world = World::new();
    // So that the thread that fires the new timer has not looked at the old one.
    world.given_behind_a_gap(1, 7, 5);
    let done = Rc::new(Left::new(0));
    let author = leave_and(&world, &done, |world| world.relies_on(1, 1));
    let fires = spawn({
        let (world, done) = (world.clone(), Rc::clone(&done));
        move || world.fire(2, 1).is_none_or(|run| world.run(2, run).1 == 7) || done.load(Ordering::Relaxed) == 1
    });
    world.start(0, 1, 9, 9);
    was_relied_on(join(author), join(fires));
    world.seal();
    world.end();
})
.preemptions(2)
.plain_preemptions(0)
.without_stale_places();

/// As any other timer on a reused node, it relies on what the worker has promised there.
const ON_A_USED_NODE: Model = Model::new("on_a_used_node", || {
    let world = World::new();
    world.given(1, 7, 5);
    let mut worker = world.worker();
    worker.turn(0);
    assert_eq!(world.cancel(0, 1), Some(7));
    let author = begin(&world);
    worker.turn(5);
    outcome(worker.wheel.len());
    assert_eq!(join(author), None);
    worker.settle(6..=10);
    assert_eq!(worker.fired(), [8], "one timer was cancelled, the other is due");
    drop(worker);
    world.end();
})
.preemptions(4)
.reclaims_early();

#[test]
fn of_two_one_begins() {
    TWO.reaches(&["mine", "theirs"]);
}

#[test]
fn who_asks_after_the_old_one_has_ended_gives_way_to_a_new_one_only() {
    OLD_ONE_ENDS.reaches(&["theirs gave way", "mine gave way"]);
}

#[test]
fn it_begins_after_the_old_one_has_fired_or_gives_way() {
    ABSENT_OR_FIRE.reaches(&["gave way", "began"]);
    ABSENT_OR_REARM.reaches(&["gave way", "began"]);
    COMES_BACK.reaches(&["gave way"]);
}

#[test]
fn it_is_replaced_or_gives_way() {
    ABSENT_OR_SCHEDULE.reaches(&["replaced", "gave way"]);
    ABSENT_BESIDE_A_REPLACEMENT.reaches(&["gave way"]);
}

#[test]
fn it_is_found_only_if_it_begins() {
    ABSENT_OR_FOUND.reaches(&["began late", "began", "gave way"]);
}

#[test]
fn it_is_sealed_in_or_refused() {
    ABSENT_OR_SEAL.reaches(&["began", "refused"]);
    GIVES_WAY_OR_SEAL.reaches(&[Some(Some(8)), None]);
}

#[test]
fn who_gives_way_has_seen_why() {
    STARTED_BY_SOMEBODY_SEEN.reaches(&["began", "gave way"]);
}

#[test]
fn what_was_left_for_a_timer_is_seen() {
    LEFT_FOR_THE_OLD.reaches(&["relied on", "too late"]);
    GAVE_WAY_TO_THE_OLD.reaches(&["relied on", "too late"]);
    GAVE_WAY_BY_A_HELPER.reaches(&["relied on", "too late"]);
    LEFT_FOR_A_REPLACED.reaches(&["relied on", "too late"]);
}

#[test]
fn a_node_used_again_is_announced() {
    ON_A_USED_NODE.reaches(&[0, 1]);
}

#[test]
fn to_begin_or_to_give_way_must_be_one_step() {
    let publish = place("word.rs", "self.0.compare_exchange(seen.0, pending.0");
    let give_way = place("word.rs", "self.0.compare_exchange(seen.0, dead");
    // The canceller meets the new timer on its way in, while its author has still seen the old timer.
    let model = OLD_ONE_ENDS.preemptions(3);
    model.kills(publish, Change::Tear, "given back, given back, left");
    model.kills(give_way, Change::Tear, "given back, given back, left");
}

#[test]
fn who_relies_on_a_timer_must_tell_it() {
    let relies = place("word.rs", "self.0.fetch_add(0, Release)); matches!");
    // (An author that gives way to the old timer has drawn a ticket before. That publishes as much to the thread that
    // takes the old timer out, unless the author reads an old line: loom does not come upon that.)
    for model in [LEFT_FOR_THE_OLD, LEFT_FOR_A_REPLACED] {
        model.kills(relies, Change::DropRelease, "fired without what was left for it");
    }
    LEFT_FOR_THE_OLD.kills(relies, Change::Tear, "");
}

#[test]
fn a_timer_must_become_yielding_in_one_step() {
    let yields = place("word.rs", "self.0.fetch_or(YIELDS");
    ON_A_USED_NODE.kills(yields, Change::Tear, "one timer was cancelled");
}

const MODELS: &[Model] = &[
    TWO,
    OLD_ONE_ENDS,
    ABSENT_OR_FIRE,
    ABSENT_OR_SCHEDULE,
    ABSENT_BESIDE_A_REPLACEMENT,
    ABSENT_OR_FOUND,
    ABSENT_OR_REARM,
    COMES_BACK,
    ABSENT_OR_SEAL,
    GIVES_WAY_OR_SEAL,
    STARTED_BY_SOMEBODY_SEEN,
    LEFT_FOR_THE_OLD,
    GAVE_WAY_TO_THE_OLD,
    GAVE_WAY_BY_A_HELPER,
    LEFT_FOR_A_REPLACED,
    ON_A_USED_NODE,
];

#[test]
#[ignore = "minutes; see loom-tests/README.md"]
fn sweep() {
    crate::support::sweep("absent", MODELS);
}
