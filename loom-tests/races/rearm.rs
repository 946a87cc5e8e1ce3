//! A timer that repeats comes back after its callback, unless a call has ended it meanwhile: one of the two, never
//! both.

use crate::shard::Identity;
use crate::support::{
    Change, Gate, Lines, Model, Run, RunEnd, Worker, World, join, outcome, parameter, place, set_parameter, spawn,
    stall_at_gate,
};
use std::rc::Rc;

/// Timer 7 of key 1, due at 5, is firing.
fn firing(world: &World) -> (Worker, Run) {
    world.given_repeating(1, 7, 5);
    let mut worker = world.worker();
    worker.turn(5);
    let run = worker.runs.pop().expect("it is due");
    (worker, run)
}

/// It begins to fire while a caller cancels.
const FIRE_OR_CANCEL: Model = Model::new("fire_or_cancel", || {
    let world = World::new();
    world.given_repeating(1, 7, 5);
    let mut worker = world.worker();
    worker.turn(0);
    let canceller = spawn({
        let world = world.clone();
        move || world.cancel(1, 1)
    });
    worker.turn(5);
    let cancelled = join(canceller);
    let run = worker.runs.pop();
    match (cancelled, run.is_some()) {
        (Some(7), false) => outcome("cancelled"),
        (None, true) => outcome("stopped while it ran"),
        other => panic!("cancelled, fired: {other:?}"),
    }
    if let Some(run) = run {
        assert!(!world.run_ends(0, run, Some(9), 5), "it was stopped");
    }
    drop(worker);
    world.end();
})
.reclaims_early();

/// It begins to fire while it is moved to the deadline that it has already: what the caller did before comes before the
/// callback.
const MOVED_AND_SEEN: Model = Model::new("moved_and_seen", || {
    let world = World::new();
    let timer = world.given_repeating(1, 7, 5);
    let mut worker = world.worker();
    worker.turn(0);
    let (caller, mark) = world.spawn_marked(move |world| world.reschedule_this(1, timer, 5));
    worker.turn(5);
    let run = worker.runs.pop().expect("it is due");
    let seen = mark.is_seen();
    assert!(join(caller), "it is pending or firing");
    outcome(seen);
    let back = world.run_ends(0, run, None, 5);
    assert!(seen || back, "the callback did not see what came before the move");
    worker.settle(6..=6);
    worker.runs.drain(..).for_each(|run| assert!(!world.run_ends(0, run, None, 6)));
    drop(worker);
    world.end();
});

/// A thread fires it ahead of its time. A caller that finds it no longer pending sees what came before that.
const FIRED_AND_TOLD: Model = Model::new("fired_and_told", || {
    let world = World::new();
    let timer = world.given_repeating(1, 7, 5);
    let (caller, mark) = world.spawn_marked(move |world| world.fire_now(1, timer));
    let pending = world.find(0, 1).is_some();
    assert!(pending || mark.is_seen(), "fired by a caller who is not seen");
    outcome(pending);
    assert!(!world.run_ends(0, join(caller), None, 5));
    world.end();
});

/// The callback is over, and the timer is to come back, while a caller cancels.
const COME_BACK_OR_CANCEL: Model = Model::new("come_back_or_cancel", || {
    let world = World::new();
    let (mut worker, run) = firing(&world);
    let canceller = spawn({
        let world = world.clone();
        move || world.cancel(1, 1)
    });
    let back = world.run_ends(0, run, Some(9), 5);
    let cancelled = join(canceller);
    worker.settle(6..=10);
    match (back, cancelled, worker.firings.len()) {
        (true, Some(7), 1) => outcome("came back, cancelled"),
        (false, None, 1) => outcome("stopped while it ran"),
        other => panic!("back, cancelled, firings: {other:?}"),
    }
    drop(worker);
    world.end();
})
.reclaims_early();

/// It comes back while a caller moves it: the answer is true, whichever comes first, and the move counts.
const COME_BACK_OR_MOVE: Model = Model::new("come_back_or_move", || {
    let world = World::new();
    let (mut worker, run) = firing(&world);
    let mover = spawn({
        let world = world.clone();
        move || world.reschedule(1, 1, 8)
    });
    assert!(world.run_ends(0, run, Some(11), 5), "nobody ends it");
    assert!(join(mover), "it is pending, or firing and not yet done");
    worker.settle(6..=12);
    outcome(worker.firings.last().map(|firing| firing.at));
    assert_eq!(worker.firings.len(), 2);
    worker.runs.drain(..).for_each(|run| assert!(!world.run_ends(0, run, None, 12)));
    drop(worker);
    world.end();
});

/// It is done while a caller moves it: either the move finds nothing, or the timer comes back.
const DONE_OR_MOVE: Model = Model::new("done_or_move", || {
    let world = World::new();
    let (mut worker, run) = firing(&world);
    let mover = spawn({
        let world = world.clone();
        move || world.reschedule(1, 1, 8)
    });
    let back = world.run_ends(0, run, None, 5);
    let moved = join(mover);
    worker.settle(6..=9);
    assert_eq!((back, worker.firings.len()), (moved, 1 + usize::from(moved)), "moved and back go together");
    outcome(moved);
    worker.runs.drain(..).for_each(|run| assert!(!world.run_ends(0, run, None, 9)));
    drop(worker);
    world.end();
})
.reclaims_early();

/// It comes back while a new timer is started under its key.
const COME_BACK_OR_REPLACE: Model = Model::new("come_back_or_replace", || {
    let world = World::new();
    let (mut worker, run) = firing(&world);
    let author = spawn({
        let world = world.clone();
        move || world.schedule(1, 1, 8, 9).expect("not sealed").1
    });
    let back = world.run_ends(0, run, Some(7), 5);
    let replaced = join(author);
    match (back, replaced) {
        (true, Some(7)) => outcome("came back, replaced"),
        (false, None) => outcome("stopped while it ran"),
        other => panic!("back, replaced: {other:?}"),
    }
    worker.settle(6..=10);
    assert_eq!(worker.fired(), [7, 8], "its one run, and the new timer's");
    drop(worker);
    world.end();
})
.reclaims_early();

/// It is done while a caller ends it. Both would take its node out; the node comes back once, when both are done. The
/// caller that ends it could do with a node.
fn done_or_ended(end: impl FnOnce(&World, Identity) -> Option<u32>) {
    let world = World::new();
    let timer = world.given_repeating(1, 7, 5);
    let run = world.fire_now(0, timer);
    // Not the other way round: the first thread's first operation pins at once, and then nothing comes back.
    let runner = spawn({
        let world = world.clone();
        move || world.run_ends(1, run, None, 5)
    });
    assert_eq!(end(&world, timer), None, "its value is in use");
    let node = world.schedule(0, 2, 8, 9).expect("not sealed").0.node;
    assert!(!join(runner), "it is done");
    outcome([vec![node], next_nodes(&world)].concat());
    assert_eq!(world.seal().len(), 3);
    world.end();
}

const DONE_OR_CANCEL: Model =
    Model::new("done_or_cancel", || done_or_ended(|world, _| world.cancel(0, 1))).reclaims_early();

const DONE_OR_CANCEL_THIS: Model =
    Model::new("done_or_cancel_this", || done_or_ended(|world, timer| world.cancel_this(0, timer))).reclaims_early();

/// As before, but a new timer of its key ends it.
const DONE_OR_REPLACE: Model = Model::new("done_or_replace", || {
    let world = World::new();
    let (worker, run) = firing(&world);
    let author = spawn({
        let world = world.clone();
        move || world.schedule(1, 1, 8, 9).expect("not sealed")
    });
    assert!(!world.run_ends(0, run, None, 5), "it is done");
    let (timer, replaced) = join(author);
    assert_eq!(replaced, None, "its value is in use");
    outcome([vec![timer.node], next_nodes(&world)].concat());
    assert_eq!(world.seal().len(), 3);
    drop(worker);
    world.end();
})
.reclaims_early();

/// The nodes of the next two timers.
fn next_nodes(world: &World) -> Vec<u32> {
    let mut nodes: Vec<u32> = [5, 6].map(|key| world.schedule(0, key, key, 9).expect("not sealed").0.node).into();
    nodes.sort();
    nodes
}

/// Two authors at once, one of them helped by the other, while it comes back.
const COME_BACK_OR_TWO_REPLACE: Model = Model::new("come_back_or_two_replace", || {
    let world = World::new();
    let (mut worker, run) = firing(&world);
    let authors = [(1, 8), (2, 9)].map(|(thread, value)| {
        let world = world.clone();
        spawn(move || world.schedule(thread, 1, value, 9).expect("not sealed").1)
    });
    let back = world.run_ends(0, run, Some(7), 5);
    let replaced = authors.map(join);
    worker.settle(6..=10);
    let mut out: Vec<u32> = worker.fired().into_iter().skip(1).chain(replaced.into_iter().flatten()).collect();
    out.sort();
    match (back, out.as_slice()) {
        (true, [7, 8, 9]) => outcome("came back, replaced"),
        (false, [8, 9]) => outcome("stopped while it ran"),
        other => panic!("back, fired or replaced: {other:?}"),
    }
    drop(worker);
    world.end();
})
.preemptions(2)
.plain_preemptions(0)
.without_stale_places();

/// It comes back while the shard is sealed. If the sealer finds it firing, the thread that runs the callback learns
/// that it would have come back, and sees what came before the seal; and its key is still there.
const COME_BACK_OR_SEAL: Model = Model::new("come_back_or_seal", || {
    let world = World::new();
    let (worker, run) = firing(&world);
    let (closer, mark) = world.spawn_marked(|world| world.seal_as(1));
    let (end, seen) = (world.end_run(0, run, Some(7), 5), mark.is_seen());
    match (end, join(closer).as_slice()) {
        (RunEnd::Back, [7]) => outcome("came back, closed"),
        (RunEnd::Sealed { node, due: Some(7) }, []) => {
            assert!(seen, "kept, and does not see who sealed the shard");
            world.take_key(node);
            outcome("kept");
        }
        other => panic!("end, closed: {other:?}"),
    }
    drop(worker);
    world.end();
})
.reclaims_early();

/// Its callback is done with it, while a caller moves it and the shard is sealed: what was moved is closed, or kept.
const DONE_OR_MOVE_OR_SEAL: Model = Model::new("done_or_move_or_seal", || {
    let world = World::new();
    let (worker, run) = firing(&world);
    let mover = spawn({
        let world = world.clone();
        move || world.reschedule(1, 1, 8)
    });
    let closer = spawn({
        let world = world.clone();
        move || world.seal_as(2)
    });
    let end = world.end_run(0, run, None, 5);
    match (join(mover), end, join(closer).as_slice()) {
        (true, RunEnd::Back, [7]) => outcome("moved, closed"),
        (true, RunEnd::Sealed { node, due: Some(8) }, []) => {
            world.take_key(node);
            outcome("moved, kept");
        }
        (false, RunEnd::Ended, []) => outcome("done"),
        other => panic!("moved, end, closed: {other:?}"),
    }
    drop(worker);
    world.end();
})
.preemptions(2)
.plain_preemptions(0)
.without_stale_places();

/// The callback is over, and the timer is to come back, while the last handle is dropped.
const COME_BACK_OR_GO: Model = Model::new("come_back_or_go", || {
    let world = World::new();
    let (worker, run) = firing(&world);
    let goer = spawn({
        let world = world.clone();
        move || world.go()
    });
    let back = world.run_ends(0, run, Some(9), 5);
    match (back, join(goer).as_slice()) {
        (true, [7]) => outcome("came back, went"),
        (false, []) => outcome("stopped while it ran"),
        other => panic!("back, gone: {other:?}"),
    }
    drop(worker);
    world.drop_keys();
});

/// The last handle is dropped, and the dropping thread stops before its operation number `parameter()`. Meanwhile the
/// timer fires, and comes back to the deadline that it had. Its word is the same again, its value is not.
const FIRE_AGAIN_OR_GO: Model = Model::new("fire_again_or_go", || {
    let world = World::new();
    world.given_repeating(1, 7, 5);
    let mut worker = world.worker();
    worker.turn(0);
    let gate = Rc::new(Gate::default());
    let goer = spawn({
        let (world, gate) = (world.clone(), Rc::clone(&gate));
        move || {
            stall_at_gate(parameter(), &gate);
            world.go()
        }
    });
    worker.turn(5);
    let back = worker.runs.pop().map(|run| world.run_ends(0, run, Some(5), 5));
    gate.open();
    match (back, join(goer).as_slice()) {
        (None, [7]) => outcome("went"),
        (Some(true), [7]) => outcome("came back, went"),
        (Some(false), []) => outcome("stopped while it ran"),
        other => panic!("back, gone: {other:?}"),
    }
    drop(worker);
    world.drop_keys();
})
.preemptions(2);

/// It comes back to a deadline that an old promise covers, while the worker looks because of that promise.
const COME_BACK_OR_LOOK: Model = Model::new("come_back_or_look", || {
    let world = World::new();
    let timer = world.given_repeating(1, 7, 5);
    let mut worker = world.worker();
    worker.turn(0);
    let run = world.fire_now(0, timer);
    let runner = spawn({
        let world = world.clone();
        move || world.run_ends(1, run, Some(6), 0)
    });
    worker.turn(5);
    assert!(join(runner), "nobody ends it");
    outcome(worker.wheel.len());
    worker.settle(6..=8);
    assert_eq!(worker.firings.iter().map(|firing| firing.at).collect::<Vec<_>>(), [6]);
    worker.runs.drain(..).for_each(|run| assert!(!world.run_ends(0, run, None, 8)));
    drop(worker);
    world.end();
})
.preemptions(4);

/// A caller that cancels a timer that has come back finds its value as the callback left it.
const COME_BACK_AND_SEEN: Model = Model::new("come_back_and_seen", || {
    let world = World::new();
    let (worker, run) = firing(&world);
    let runner = spawn({
        let world = world.clone();
        move || world.run_ends(1, run, Some(9), 5)
    });
    let cancelled = world.cancel(0, 1);
    outcome((cancelled, join(runner)));
    drop(worker);
    world.end();
});

/// The callback is over, and the timer is to come back, but a caller has stopped it. A thread that then looks for it in
/// vain sees what came before that.
const STOPPED_AND_TOLD: Model = Model::new("stopped_and_told", || {
    let world = World::<u32>::with_keys();
    let run = world.fire_now(0, world.given_repeating(1, 7, 5));
    let (canceller, mark) = world.spawn_marked(|world| world.cancel(1, 1));
    let back = world.run_ends(0, run, Some(9), 5);
    if !back {
        assert_eq!(world.find(0, 1), None, "it was stopped");
        assert!(mark.is_seen(), "stopped by a caller who is not seen");
    }
    outcome((back, join(canceller)));
    world.drop_keys();
});

#[test]
fn cancel_and_firing_exclude_each_other() {
    FIRE_OR_CANCEL.reaches(&["cancelled", "stopped while it ran"]);
    let claim = place("word.rs", "self.0.compare_exchange(seen.0, firing.0");
    FIRE_OR_CANCEL.kills(claim, Change::Tear, "cancelled, fired");
}

#[test]
fn what_came_before_a_move_or_a_call_comes_before_the_run() {
    MOVED_AND_SEEN.reaches(&[false, true]);
    FIRED_AND_TOLD.reaches(&[false, true]);
    let claim = place("word.rs", "self.0.compare_exchange(seen.0, firing.0");
    MOVED_AND_SEEN.kills(claim, Change::DropAcquire, "did not see what came before the move");
    FIRED_AND_TOLD.kills(claim, Change::DropRelease, "fired by a caller who is not seen");
    STOPPED_AND_TOLD.reaches(&[(true, Some(7)), (false, None)]);
    let fired = place("word.rs", "self.0.compare_exchange(seen.0, turned.0, AcqRel, Acquire)");
    STOPPED_AND_TOLD.kills(fired, Change::RelaxFailure, "stopped by a caller who is not seen");
    let load = place("word.rs", "Word(self.0.load(Acquire)) }");
    STOPPED_AND_TOLD.kills(load, Change::DropAcquire, "stopped by a caller who is not seen");
}

#[test]
fn cancel_and_coming_back_exclude_each_other() {
    COME_BACK_OR_CANCEL.reaches(&["came back, cancelled", "stopped while it ran"]);
    COME_BACK_AND_SEEN.reaches(&[(Some(7), true), (None, false)]);
    let fired = place("word.rs", "self.0.compare_exchange(seen.0, turned.0, AcqRel, Acquire)");
    COME_BACK_OR_CANCEL.kills(fired, Change::Tear, "back, cancelled, firings");
    COME_BACK_AND_SEEN.kills(fired, Change::DropRelease, "Concurrent read and write accesses");
}

#[test]
fn a_move_during_a_run_counts() {
    COME_BACK_OR_MOVE.reaches(&[Some(8)]);
    DONE_OR_MOVE.reaches(&[true, false]);
}

#[test]
fn a_new_timer_of_the_key_wins() {
    COME_BACK_OR_REPLACE.reaches(&["came back, replaced", "stopped while it ran"]);
    COME_BACK_OR_TWO_REPLACE.reaches(&["came back, replaced", "stopped while it ran"]);
}

#[test]
fn a_node_that_two_would_take_out_comes_back_once() {
    DONE_OR_CANCEL.reaches(&[[1, 2, 3], [2, 1, 3]]);
    DONE_OR_CANCEL_THIS.reaches(&[[1, 2, 3], [2, 1, 3]]);
    DONE_OR_REPLACE.reaches(&[[1, 2, 3], [2, 1, 3]]);
}

#[test]
fn a_closed_shard_takes_nothing_back() {
    COME_BACK_OR_SEAL.reaches(&["came back, closed", "kept"]);
    DONE_OR_MOVE_OR_SEAL.reaches(&["moved, closed", "moved, kept", "done"]);
    let seal = place("word.rs", "self.0.compare_exchange(seen.0, sealed.0, Release, Relaxed)");
    COME_BACK_OR_SEAL.kills(seal, Change::DropRelease, "does not see who sealed the shard");
    DONE_OR_MOVE_OR_SEAL.kills(seal, Change::Tear, "moved, end, closed");
}

#[test]
fn what_comes_back_as_the_last_handle_goes_is_dropped_once() {
    COME_BACK_OR_GO.reaches(&["came back, went", "stopped while it ran"]);
    let fired = place("word.rs", "self.0.compare_exchange(seen.0, turned.0, AcqRel, Acquire)");
    COME_BACK_OR_GO.kills(fired, Change::Tear, "back, gone");
    // Operation 3 is its exchange.
    set_parameter(4);
    FIRE_AGAIN_OR_GO.reaches(&["came back, went", "stopped while it ran", "went"]);
    set_parameter(3);
    FIRE_AGAIN_OR_GO.reaches(&["came back, went"]);
    FIRE_AGAIN_OR_GO.kills(fired, Change::DropRelease, "Causality violation");
    // Either the look before the exchange or the exchange itself must acquire the new value. So both are mutated, and
    // everything between them.
    let look = place("word.rs", "Word(self.0.load(Acquire)) }");
    let exchange = place("word.rs", "Word::replaced_by(successor).0, AcqRel");
    let both = Lines { last_line: exchange.last_line, ..look };
    FIRE_AGAIN_OR_GO.kills(both, Change::DropAcquire, "Causality violation");
}

#[test]
fn a_timer_that_comes_back_is_announced() {
    COME_BACK_OR_LOOK.reaches(&[0, 1]);
    let fired = place("word.rs", "self.0.compare_exchange(seen.0, turned.0, AcqRel, Acquire)");
    COME_BACK_OR_LOOK.kills(fired, Change::DropAcquire, "right: [6]");
}

const MODELS: &[Model] = &[
    FIRE_OR_CANCEL,
    MOVED_AND_SEEN,
    FIRED_AND_TOLD,
    COME_BACK_OR_CANCEL,
    COME_BACK_OR_MOVE,
    DONE_OR_MOVE,
    COME_BACK_OR_REPLACE,
    DONE_OR_CANCEL,
    DONE_OR_CANCEL_THIS,
    DONE_OR_REPLACE,
    STOPPED_AND_TOLD,
    COME_BACK_OR_TWO_REPLACE,
    COME_BACK_OR_SEAL,
    DONE_OR_MOVE_OR_SEAL,
    COME_BACK_OR_GO,
    FIRE_AGAIN_OR_GO,
    COME_BACK_OR_LOOK,
    COME_BACK_AND_SEEN,
];

#[test]
#[ignore = "minutes; see loom-tests/README.md"]
fn sweep() {
    crate::support::sweep("rearm", MODELS);
}
