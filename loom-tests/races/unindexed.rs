//! Timers that no index leads to, against what the index does for other timers: the seal, the end of their nodes, a
//! stale look.

use crate::shard::Repeats;
use crate::support::{Change, Model, RunEnd, World, join, outcome, place, spawn};

fn begin(world: &World, thread: u32, value: u32, tick: u64) -> bool {
    world.schedule_unindexed(thread, value, tick, Repeats::Never).is_ok()
}

/// The first such timer of the shard.
const SEAL_OR_FIRST: Model = Model::new("seal_or_first", || {
    let world = World::new();
    let author = spawn({
        let world = world.clone();
        move || begin(&world, 1, 7, 5)
    });
    let closed = world.seal();
    match (join(author), closed.as_slice()) {
        (true, [7]) => outcome("accepted, closed"),
        (false, []) => outcome("refused"),
        other => panic!("accepted, closed: {other:?}"),
    }
    assert!(!begin(&world, 0, 8, 5), "nothing is accepted afterwards");
    world.end();
});

/// A further one, on a node that was never used.
const SEAL_OR_NEXT: Model = Model::new("seal_or_next", || {
    let world = World::new();
    world.given_unindexed(6, 5);
    let author = spawn({
        let world = world.clone();
        move || begin(&world, 1, 7, 5)
    });
    let closed = world.seal();
    match (join(author), closed.as_slice()) {
        (true, [6, 7]) => outcome("accepted, closed"),
        (false, [6]) => outcome("refused"),
        other => panic!("accepted, closed: {other:?}"),
    }
    world.end();
});

/// A further one, on the node of one that has ended.
const SEAL_OR_REUSE: Model = Model::new("seal_or_reuse", || {
    let world = World::new();
    let first = world.given_unindexed(6, 5);
    assert_eq!(world.cancel_this(0, first), Some(6));
    let author = spawn({
        let world = world.clone();
        move || begin(&world, 1, 7, 5)
    });
    let closed = world.seal();
    match (join(author), closed.as_slice()) {
        (true, [7]) => outcome("accepted, closed"),
        (false, []) => outcome("refused"),
        other => panic!("accepted, closed: {other:?}"),
    }
    world.end();
})
.reclaims_early();

/// Two authors, one of which announces for both that there are such timers.
const SEAL_OR_TWO: Model = Model::new("seal_or_two", || {
    let world = World::new();
    let authors = [(1, 7), (2, 8)].map(|(thread, value)| {
        let world = world.clone();
        spawn(move || begin(&world, thread, value, 5))
    });
    let mut closed = world.seal();
    closed.sort();
    let accepted = authors.map(join);
    let expected: Vec<_> =
        [7, 8].into_iter().zip(accepted).filter_map(|(value, is_in)| is_in.then_some(value)).collect();
    assert_eq!(closed, expected, "what was accepted is closed");
    outcome(accepted);
    world.end();
})
.preemptions(2)
.plain_preemptions(1)
.without_stale_places();

const FIRE_OR_CANCEL: Model = Model::new("fire_or_cancel_unindexed", || {
    let world = World::new();
    let timer = world.given_unindexed(7, 5);
    let mut worker = world.worker();
    worker.turn(0);
    let canceller = spawn({
        let world = world.clone();
        move || world.cancel_this(1, timer)
    });
    worker.turn(5);
    match (join(canceller), worker.fired().as_slice()) {
        (Some(7), []) => outcome("cancelled"),
        (None, [7]) => outcome("fired"),
        other => panic!("cancelled, fired: {other:?}"),
    }
    drop(worker);
    world.end();
})
.reclaims_early();

/// A cancelled timer's promise stays with its node; the next timer on the node relies on it while the worker looks.
const A_PROMISE_OUTLIVES_ITS_TIMER: Model = Model::new("an_unindexed_timers_promise", || {
    let world = World::new();
    let first = world.given_unindexed(7, 5);
    let mut worker = world.worker();
    worker.turn(0);
    assert_eq!(world.cancel_this(0, first), Some(7));
    let author = spawn({
        let world = world.clone();
        move || begin(&world, 1, 8, 9)
    });
    worker.turn(5);
    outcome(worker.wheel.len());
    assert!(join(author));
    worker.settle(6..=10);
    assert_eq!(worker.fired(), [8], "one timer was cancelled, the other is due");
    drop(worker);
    world.end();
})
.preemptions(4)
.reclaims_early();

/// As before, but the next timer is due at that very look. Only its word shows it to the worker.
const A_LOOK_MEETS_THE_NEXT_TIMER: Model = Model::new("a_look_meets_the_next_unindexed", || {
    let world = World::new();
    let first = world.given_unindexed(7, 5);
    let mut worker = world.worker();
    worker.turn(0);
    assert_eq!(world.cancel_this(0, first), Some(7));
    let author = spawn({
        let world = world.clone();
        move || begin(&world, 1, 8, 5)
    });
    worker.turn(5);
    outcome(worker.fired());
    assert!(join(author));
    worker.settle(6..=6);
    assert_eq!(worker.fired(), [8], "one timer was cancelled, the other is due");
    drop(worker);
    world.end();
})
.reclaims_early();

/// It repeats, and its callback is over while a caller ends it. The thread that runs the callback retires the node,
/// which is used again.
const COME_BACK_OR_CANCEL: Model = Model::new("come_back_or_cancel_unindexed", || {
    let world = World::new();
    let timer = world.schedule_unindexed(0, 7, 5, Repeats::IfWanted).expect("not sealed");
    let mut worker = world.worker();
    worker.turn(5);
    let run = worker.runs.pop().expect("it is due");
    let canceller = spawn({
        let world = world.clone();
        move || (world.cancel_this(1, timer), begin(&world, 1, 8, 9))
    });
    let back = world.run_ends(0, run, Some(9), 5);
    let (cancelled, begun) = join(canceller);
    assert!(begun && world.reschedule_this(0, timer, 6) == (back && cancelled.is_none()));
    worker.settle(6..=10);
    assert_eq!(worker.fired(), [7, 8]);
    match (back, cancelled) {
        (true, Some(7)) => outcome("came back, cancelled"),
        (false, None) => outcome("stopped while it ran"),
        other => panic!("back, cancelled: {other:?}"),
    }
    drop(worker);
    world.end();
})
.reclaims_early();

/// As before, but the seal ends it.
const COME_BACK_OR_SEAL: Model = Model::new("come_back_or_seal_unindexed", || {
    let world = World::new();
    world.schedule_unindexed(0, 7, 5, Repeats::IfWanted).expect("not sealed");
    let mut worker = world.worker();
    worker.turn(5);
    let run = worker.runs.pop().expect("it is due");
    let sealer = spawn({
        let world = world.clone();
        move || world.seal_as(1)
    });
    let end = world.end_run(0, run, Some(9), 5);
    match (end, join(sealer).as_slice()) {
        (RunEnd::Back, [7]) => outcome("came back, closed"),
        (RunEnd::Sealed { node, due: Some(9) }, []) => {
            world.take_key(node);
            outcome("kept");
        }
        other => panic!("end, closed: {other:?}"),
    }
    drop(worker);
    world.end();
})
.reclaims_early();

/// One that repeats begins on a reused node while the shard is sealed, and an old hint of the node finds it due before
/// its author goes on. It may fire, but must not come back where no thread would end it.
const SEAL_OR_REUSE_AND_FIRE: Model = Model::new("seal_or_reuse_and_fire", || {
    let world = World::new();
    let first = world.given_unindexed(6, 5);
    let mut worker = world.worker();
    worker.turn(0);
    assert_eq!(world.cancel_this(0, first), Some(6));
    let author = spawn({
        let world = world.clone();
        move || world.schedule_unindexed(1, 7, 5, Repeats::IfWanted).is_ok()
    });
    let closed = world.seal();
    worker.turn(5);
    let back = worker.runs.pop().map(|run| world.run_ends(0, run, Some(9), 5));
    match (join(author), closed.as_slice(), back) {
        (true, [7], None) => outcome("accepted, closed"),
        (false, [], None) => outcome("refused"),
        (true, [], Some(false)) => outcome("accepted, fired"),
        other => panic!("accepted, closed, came back: {other:?}"),
    }
    drop(worker);
    world.end();
})
.reclaims_early();

/// The index refuses a node, on which its author then begins another timer, while the sealer passes by.
const SEAL_OR_REFUSED_NODE: Model = Model::new("seal_or_refused_node", || {
    let world = World::new();
    let first = world.given_unindexed(6, 5);
    assert_eq!(world.cancel_this(0, first), Some(6));
    let author = spawn({
        let world = world.clone();
        move || (world.schedule(1, 1, 7, 5).is_ok(), begin(&world, 1, 8, 5))
    });
    let mut closed = world.seal();
    closed.sort();
    let (indexed, unindexed) = join(author);
    let all = [(7, indexed), (8, unindexed)];
    let expected: Vec<_> = all.into_iter().filter_map(|(value, is_in)| is_in.then_some(value)).collect();
    assert_eq!(closed, expected, "what was accepted is closed");
    outcome((indexed, unindexed));
    world.end();
})
.reclaims_early();

/// The last handle is dropped when the callback of one that repeats is over.
const COME_BACK_OR_LAST_HANDLE: Model = Model::new("come_back_or_last_handle_unindexed", || {
    let world = World::new();
    world.schedule_unindexed(0, 7, 5, Repeats::IfWanted).expect("not sealed");
    let mut worker = world.worker();
    worker.turn(5);
    let run = worker.runs.pop().expect("it is due");
    let runner = spawn({
        let world = world.clone();
        move || world.run_ends(1, run, Some(9), 5)
    });
    let left = world.go();
    match (join(runner), left.as_slice()) {
        (true, [7]) => outcome("came back, dropped"),
        (false, []) => outcome("stopped while it ran"),
        other => panic!("back, left: {other:?}"),
    }
    drop(worker);
    world.drop_keys();
})
.reclaims_early();

/// An author that is refused knows what the sealer did before.
const REFUSED_AND_TOLD: Model = Model::new("refused_and_told", || {
    let world = World::new();
    let (sealer, mark) = world.spawn_marked(|world| world.seal_as(1).len());
    let accepted = [7, 8].map(|value| {
        let is_in = begin(&world, 0, value, 5);
        assert!(is_in || mark.is_seen(), "refused by a sealer who is not seen");
        is_in
    });
    assert_eq!(join(sealer), accepted.into_iter().filter(|&accepted| accepted).count());
    outcome(accepted);
    world.end();
});

#[test]
fn a_timer_without_index_is_closed_or_refused() {
    let both = ["accepted, closed", "refused"];
    SEAL_OR_FIRST.reaches(&both);
    SEAL_OR_NEXT.reaches(&both);
    SEAL_OR_REUSE.reaches(&both);
    SEAL_OR_REUSE_AND_FIRE.reaches(&["accepted, closed", "refused", "accepted, fired"]);
    SEAL_OR_REFUSED_NODE.reaches(&[(true, true), (true, false), (false, true), (false, false)]);
    REFUSED_AND_TOLD.reaches(&[[true, true], [true, false], [false, false]]);
    SEAL_OR_TWO.reaches(&[[true, true], [true, false], [false, true], [false, false]]);
}

#[test]
fn a_timer_without_index_fires_or_is_cancelled() {
    FIRE_OR_CANCEL.reaches(&["fired", "cancelled"]);
    COME_BACK_OR_CANCEL.reaches(&["came back, cancelled", "stopped while it ran"]);
    COME_BACK_OR_LAST_HANDLE.reaches(&["came back, dropped", "stopped while it ran"]);
    COME_BACK_OR_SEAL.reaches(&["came back, closed", "kept"]);
}

#[test]
fn a_timer_without_index_has_a_hint() {
    A_PROMISE_OUTLIVES_ITS_TIMER.reaches(&[0, 1]);
    A_LOOK_MEETS_THE_NEXT_TIMER.reaches(&[vec![], vec![8]]);
}

/// Each of the three steps in which author and sealer meet: torn, and without the ordering by which one sees the other.
#[test]
fn author_and_sealer_must_meet() {
    let lost = "accepted, closed";
    SEAL_OR_FIRST.kills(place("unindexed.rs", "self.0.fetch_or(ANY, Acquire)"), Change::Tear, lost);
    SEAL_OR_FIRST.kills(place("unindexed.rs", "self.0.fetch_or(SEALED, Release)"), Change::Tear, lost);
    let abort = place("word.rs", "self.0.swap(State::Dead as u64, Relaxed);");
    SEAL_OR_REFUSED_NODE.kills(abort, Change::Tear, "what was accepted is closed");
    let nodes = place("slab.rs", "1..self.extent.fetch_add(0, Release)");
    SEAL_OR_NEXT.kills(nodes, Change::Tear, lost);
    SEAL_OR_NEXT.kills(nodes, Change::DropRelease, lost);
    let fresh = place("slab.rs", "self.extent.fetch_update(Acquire, Relaxed, grow)");
    SEAL_OR_NEXT.kills(fresh, Change::DropAcquire, lost);
    let sweep = place("word.rs", "self.seal(Word(self.0.fetch_add(0, Release)))");
    SEAL_OR_REUSE.kills(sweep, Change::Tear, "Causality violation");
    SEAL_OR_REUSE.kills(sweep, Change::DropRelease, lost);
    let begin = place("word.rs", "self.0.swap(pending.0, AcqRel)");
    SEAL_OR_REUSE.kills(begin, Change::Tear, lost);
    SEAL_OR_REUSE.kills(begin, Change::DropAcquire, lost);
}

#[test]
fn a_refusal_must_tell_of_the_sealer() {
    let unseen = "refused by a sealer who is not seen";
    REFUSED_AND_TOLD.kills(place("unindexed.rs", "self.0.fetch_or(SEALED, Release)"), Change::DropRelease, unseen);
    for snippet in
        ["let mut seen = self.0.load(Acquire);", "self.0.fetch_or(ANY, Acquire)", "self.0.load(Acquire) & SEALED != 0"]
    {
        REFUSED_AND_TOLD.kills(place("unindexed.rs", snippet), Change::DropAcquire, unseen);
    }
}

#[test]
fn the_word_must_publish_and_observe() {
    let begin = place("word.rs", "self.0.swap(pending.0, AcqRel)");
    A_PROMISE_OUTLIVES_ITS_TIMER.kills(begin, Change::DropAcquire, "the other is due");
    A_PROMISE_OUTLIVES_ITS_TIMER.kills(begin, Change::Tear, "the other is due");
    A_LOOK_MEETS_THE_NEXT_TIMER.kills(begin, Change::DropRelease, "Causality violation");
}

const MODELS: &[Model] = &[
    SEAL_OR_FIRST,
    SEAL_OR_NEXT,
    SEAL_OR_REUSE,
    SEAL_OR_TWO,
    FIRE_OR_CANCEL,
    A_PROMISE_OUTLIVES_ITS_TIMER,
    A_LOOK_MEETS_THE_NEXT_TIMER,
    COME_BACK_OR_CANCEL,
    COME_BACK_OR_SEAL,
    SEAL_OR_REUSE_AND_FIRE,
    SEAL_OR_REFUSED_NODE,
    COME_BACK_OR_LAST_HANDLE,
    REFUSED_AND_TOLD,
];

#[test]
#[ignore = "minutes; see loom-tests/README.md"]
fn sweep() {
    crate::support::sweep("unindexed", MODELS);
}
