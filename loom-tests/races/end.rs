//! What an ended timer leaves behind: its key is dropped once, after its last use, and its node comes back.

use crate::shard::{Access, Hint, Look, Purpose, Tick};
use crate::support::{
    Change, Model, Named, Run, TICK_0, World, join, ordinal, outcome, parameter, place, set_parameter, spawn,
};

/// While the worker finishes a timer, a thread that replaces another timer of the same hash takes its node out.
const FINISH_OR_UNLINK: Model = Model::new("finish_or_unlink", || {
    let world = World::new();
    let node = world.given(1, 7, 5).node;
    world.given(11, 8, 20);
    let mut worker = world.worker();
    worker.turn(0);
    let passer = spawn({
        let world = world.clone();
        move || world.schedule(1, 11, 9, 20).expect("not sealed")
    });
    worker.turn(5);
    let (new, replaced) = join(passer);
    assert_eq!(replaced, Some(8), "nothing else ends it");
    assert_eq!(worker.fired(), [7]);
    comes_back_once(&world, node, new.node);
    outcome(new.node == node);
    drop(worker);
    world.seal();
    world.drop_keys();
})
.reclaims_early();

/// The node is used again: by the `passer`, or by one of the next timers.
fn comes_back_once<K: Named>(world: &World<K>, node: u32, passer: u32) {
    let [a, b, c] = [2, 3, 4].map(|key| world.given(key, key + 10, 20).node);
    let next = [passer, a, b, c];
    assert_eq!(next.iter().filter(|&&next| next == node).count(), 1, "the node is lost, or there twice: {next:?}");
}

/// The same for a timer whose key needs no drop: then its end is reported to no thread, unless another thread took its
/// node out. `run` is its callback.
fn finish_plain_or_unlink(run: impl FnOnce(&World<u32>, Run) -> (u32, u32)) {
    let world = World::<u32>::with_keys();
    let timer = world.given(1, 7, 5);
    world.given(11, 8, 20);
    let replaces = parameter() == 0;
    let passer = spawn({
        let world = world.clone();
        move || {
            if replaces {
                world.schedule(2, 11, 9, 20).expect("not sealed").0.node
            } else {
                world.find(2, 1);
                0
            }
        }
    });
    assert_eq!(run(&world, world.fire_now(0, timer)), (1, 7));
    let passer = join(passer);
    comes_back_once(&world, timer.node, passer);
    outcome(passer == timer.node);
    world.seal();
    world.drop_keys();
}

const PLAIN_FINISH_OR_UNLINK: Model = Model::new("plain_finish_or_unlink", || {
    finish_plain_or_unlink(|world, claimed| world.run(0, claimed));
})
.preemptions(2)
.reclaims_early();

/// The same, but another thread runs the callback and finishes the timer.
const HANDED_ON_OR_UNLINK: Model = Model::new("handed_on_or_unlink", || {
    finish_plain_or_unlink(|world, claimed| {
        let world = world.clone();
        join(spawn(move || world.run(1, claimed)))
    });
})
.preemptions(2)
.reclaims_early();

/// The same for cancelled timers: one by its identity, one by its key.
const CANCEL_OR_UNLINK: Model = Model::new("cancel_or_unlink", || {
    let world = World::new();
    let timer = world.given(1, 7, 5);
    let nodes = [timer.node, world.given(11, 8, 5).node];
    world.given(21, 9, 20);
    let passer = spawn({
        let world = world.clone();
        move || world.schedule(1, 21, 10, 20).expect("not sealed")
    });
    assert_eq!((world.cancel_this(0, timer), world.cancel(0, 11)), (Some(7), Some(8)), "nothing else ends them");
    let (new, replaced) = join(passer);
    assert_eq!(replaced, Some(9), "nothing else ends it");
    let [a, b, c] = [2, 3, 4].map(|key| world.given(key, key + 10, 20).node);
    let next = [new.node, a, b, c];
    let came_back = nodes.map(|node| next.iter().filter(|&&next| next == node).count());
    assert_eq!(came_back, [1, 1], "a node is lost, or there twice: {next:?}");
    outcome("came back");
    world.seal();
    world.drop_keys();
})
.preemptions(2)
.plain_preemptions(1)
.reclaims_early();

/// A node is free, and reused, while a thread asks for the timer that it once was.
const LONG_GONE_OR_REUSE: Model = Model::new("long_gone_or_reuse", || {
    let world = World::new();
    let timer = world.given(1, 7, 5);
    assert_eq!(world.cancel(0, 1), Some(7));
    let author = spawn({
        let world = world.clone();
        move || world.schedule(1, 2, 8, 9).expect("not sealed").0.node
    });
    assert_eq!(world.cancel_this(0, timer), None, "it has been cancelled");
    outcome(join(author) == timer.node);
    assert_eq!(world.seal(), [8]);
    world.end();
})
.reclaims_early();

/// The last handle is dropped while a callback is still on its way, of a timer that was due or of one that was claimed
/// ahead of time. Whichever comes second drops the key.
const FINISH_OR_GO: Model = Model::new("finish_or_go", || {
    let world = World::new();
    let timer = world.given(1, 7, 5);
    let ordinal = ordinal(0);
    let access = Access::new(&ordinal);
    let claim = if parameter() == 0 {
        world.shard.claim_this(timer, Purpose::TakeOut, &access)
    } else {
        let due = Tick(TICK_0 + 5);
        match world.shard.look(Hint::new(due, timer.node), due) {
            Look::Expired(claim) => Some(claim),
            _ => None,
        }
    };
    let claim = claim.expect("nothing else ends it");
    let node = claim.node();
    drop(access);
    let goer = spawn({
        let world = world.clone();
        move || world.go()
    });
    let (claimed, value) = world.shard.take_value(claim);
    outcome((value.name, world.shard.with_claimed_key(&claimed, |_| ())));
    world.shard.finish(claimed, &Access::new(&ordinal));
    // SAFETY: no call uses a key, and the timer is finished.
    unsafe { world.shard.drop_key(node) };
    assert_eq!(join(goer), [], "its value was taken");
});

/// The last handle is dropped while a thread cancels by a timer's handle, and the worker takes a last turn.
const CANCEL_OR_GO: Model = Model::new("cancel_or_go", || {
    let world = World::new();
    let timer = world.given(1, 7, 5);
    world.given(2, 8, 5);
    let mut worker = world.worker();
    worker.turn(0);
    let canceller = spawn({
        let world = world.clone();
        move || world.cancel_this(1, timer)
    });
    let goer = spawn({
        let world = world.clone();
        move || world.go()
    });
    if parameter() == 1 {
        worker.turn(5);
    }
    let (cancelled, gone) = (join(canceller), join(goer));
    let mut out: Vec<_> = gone.iter().copied().chain(cancelled).chain(worker.fired()).collect();
    out.sort_unstable();
    assert_eq!(out, [7, 8], "every value comes out once");
    outcome((cancelled.is_some(), worker.fired().len()));
    drop(worker);
    world.drop_keys();
})
.preemptions(2)
.reclaims_early();

/// The last handle is dropped while a thread moves a timer by its handle.
const MOVE_OR_GO: Model = Model::new("move_or_go", || {
    let world = World::new();
    let timer = world.given(1, 7, 5);
    let mover = spawn({
        let world = world.clone();
        move || world.reschedule_this(1, timer, 3)
    });
    assert_eq!(world.go(), [7], "nothing else ends it");
    outcome(join(mover));
});

#[test]
fn a_node_comes_back_whoever_is_the_last_to_leave_it() {
    FINISH_OR_UNLINK.reaches(&[false, true]);
    set_parameter(0);
    PLAIN_FINISH_OR_UNLINK.reaches(&[false, true]);
    HANDED_ON_OR_UNLINK.reaches(&[false, true]);
    set_parameter(1);
    HANDED_ON_OR_UNLINK.reaches(&[false]);
    PLAIN_FINISH_OR_UNLINK.reaches(&[false]);
    CANCEL_OR_UNLINK.reaches(&["came back"]);
}

#[test]
fn a_timer_long_gone_is_not_taken_for_the_next_one_on_its_node() {
    LONG_GONE_OR_REUSE.reaches(&[true]);
}

#[test]
fn a_key_goes_once_after_its_last_use() {
    for way in [0, 1] {
        set_parameter(way);
        FINISH_OR_GO.reaches(&[(7, ())]);
    }
}

#[test]
fn a_value_goes_once_when_the_last_handle_does() {
    set_parameter(0);
    CANCEL_OR_GO.reaches(&[(false, 0), (true, 0)]);
    set_parameter(1);
    CANCEL_OR_GO.reaches(&[(false, 0), (false, 1), (false, 2), (true, 0), (true, 1)]);
    MOVE_OR_GO.reaches(&[false, true]);
}

#[test]
fn leaving_a_node_must_be_one_step() {
    let finish = place("word.rs", "self.0.fetch_or(DONE, AcqRel)");
    let unlink = place("word.rs", "self.0.fetch_or(UNLINKED, Release)");
    FINISH_OR_UNLINK.kills(finish, Change::Tear, "the node is lost");
    FINISH_OR_UNLINK.kills(unlink, Change::Tear, "lost");
    set_parameter(0);
    PLAIN_FINISH_OR_UNLINK.preemptions(3).kills(finish, Change::Tear, "the node is lost");
    HANDED_ON_OR_UNLINK.preemptions(3).kills(finish, Change::Tear, "the node is lost");
}

#[test]
fn an_end_must_be_one_step() {
    set_parameter(0);
    for end in ["self.0.compare_exchange(seen.0, flags", "self.0.compare_exchange(seen.0, Word::replaced_by"] {
        CANCEL_OR_GO.kills(place("word.rs", end), Change::Tear, "dropped twice");
    }
}

#[test]
fn a_key_must_be_taken_in_one_step_after_its_release() {
    let finish = place("word.rs", "self.0.fetch_or(DONE, AcqRel)");
    FINISH_OR_GO.kills(finish, Change::DropRelease, "Causality violation");
    FINISH_OR_GO.kills(place("word.rs", "Word(self.0.load(Acquire)) }"), Change::DropAcquire, "Causality violation");
    FINISH_OR_GO.kills(place("word.rs", "self.0.fetch_and(!KEY, Relaxed)"), Change::Tear, "Causality violation");
}

const MODELS: &[Model] = &[
    FINISH_OR_UNLINK,
    PLAIN_FINISH_OR_UNLINK,
    HANDED_ON_OR_UNLINK,
    CANCEL_OR_UNLINK,
    LONG_GONE_OR_REUSE,
    FINISH_OR_GO,
    CANCEL_OR_GO,
    MOVE_OR_GO,
];

#[test]
#[ignore = "minutes; see loom-tests/README.md"]
fn sweep() {
    crate::support::sweep("end", MODELS);
}
