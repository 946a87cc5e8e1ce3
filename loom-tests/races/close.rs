//! Sealing a shard against everything: nothing is lost, and nothing is accepted afterwards.

use crate::support::{Change, Model, Sealed, World, join, outcome, place, spawn};

const SEAL_OR_SCHEDULE: Model = Model::new("seal_or_schedule", || {
    let world = World::new();
    let author = spawn({
        let world = world.clone();
        move || world.schedule(1, 1, 7, 5).is_ok()
    });
    let closed = world.seal();
    match (join(author), closed.as_slice()) {
        (true, [7]) => outcome("accepted, closed"),
        (false, []) => outcome("refused"),
        other => panic!("accepted, closed: {other:?}"),
    }
    assert!(world.schedule(0, 2, 8, 5).is_err(), "nothing is accepted afterwards");
    world.end();
})
.preemptions(3);

const SEAL_OR_REPLACE: Model = Model::new("seal_or_replace", || {
    let world = World::new();
    world.given(1, 7, 5);
    let author = spawn({
        let world = world.clone();
        move || world.schedule(1, 1, 8, 9).map(|(_, replaced)| replaced)
    });
    let closed = world.seal();
    match (join(author), closed.as_slice()) {
        (Ok(Some(7)), [8]) => outcome("replaced, closed"),
        (Err(_), [7]) => outcome("refused"),
        other => panic!("accepted, closed: {other:?}"),
    }
    world.end();
})
.preemptions(3)
.plain_preemptions(2);

const SEAL_OR_CANCEL: Model = Model::new("seal_or_cancel", || {
    let world = World::new();
    let timer = world.given(1, 7, 5);
    world.given(2, 8, 5);
    let caller = spawn({
        let world = world.clone();
        move || (world.cancel(1, 2), world.cancel_this(1, timer))
    });
    let closed = world.seal();
    let (by_key, by_identity) = join(caller);
    let mut out: Vec<_> = closed.iter().copied().chain(by_key).chain(by_identity).collect();
    out.sort();
    assert_eq!(out, [7, 8], "every value comes out once");
    outcome(closed);
    world.end();
})
.preemptions(3);

/// The cancel is in a batch, which may have seen the timer before its line was frozen.
const SEAL_OR_CANCEL_AS_SEEN: Model = Model::new("seal_or_cancel_as_seen", || {
    let world = World::new();
    world.given(1, 7, 5);
    let caller = spawn({
        let world = world.clone();
        move || world.cancel_as_seen(1, 1)
    });
    let closed = world.seal();
    match (join(caller), closed.as_slice()) {
        (Some(7), []) => outcome("cancelled"),
        (None, [7]) => outcome("closed"),
        both => panic!("the value came out {both:?}"),
    }
    world.end();
})
.preemptions(2);

const SEAL_OR_MOVE: Model = Model::new("seal_or_move", || {
    let world = World::new();
    world.given(1, 7, 5);
    let caller = spawn({
        let world = world.clone();
        move || world.reschedule(1, 1, 9)
    });
    assert_eq!(world.seal(), [7], "nothing else ends it");
    outcome(join(caller));
    world.end();
})
.preemptions(3);

const SEAL_OR_FIRE: Model = Model::new("seal_or_fire", || {
    let world = World::new();
    world.given(1, 7, 5);
    let closer = spawn({
        let world = world.clone();
        move || world.seal()
    });
    let mut worker = world.worker();
    worker.turn(5);
    match (worker.fired().as_slice(), join(closer).as_slice()) {
        ([7], []) => outcome("fired"),
        ([], [7]) => outcome("closed"),
        other => panic!("fired, closed: {other:?}"),
    }
    drop(worker);
    world.end();
})
.preemptions(3);

type Answer = Result<Option<u32>, Sealed>;

fn schedule_same_key(world: &World, thread: u32, value: u32) -> Answer {
    world.schedule(thread, 1, value, 5).map(|(_, replaced)| replaced)
}

fn two_and_the_sealer(answers: [Answer; 2], closed: &[u32]) {
    match (answers, closed) {
        ([Ok(None), Ok(Some(7))], [8]) => outcome("8 replaced 7"),
        ([Ok(Some(8)), Ok(None)], [7]) => outcome("7 replaced 8"),
        ([Ok(None), Err(_)], [7]) => outcome("only 7"),
        ([Err(_), Ok(None)], [8]) => outcome("only 8"),
        ([Err(_), Err(_)], []) => outcome("neither"),
        other => panic!("answers, closed: {other:?}"),
    }
}

/// Two authors of one key, which the sealer meets.
const SEAL_OR_TWO: Model = Model::new("seal_or_two", || {
    let world = World::new();
    let authors = [(1, 7), (2, 8)].map(|(thread, value)| {
        let world = world.clone();
        spawn(move || schedule_same_key(&world, thread, value))
    });
    let closed = world.seal();
    two_and_the_sealer(authors.map(join), &closed);
    world.end();
})
.preemptions(2)
.plain_preemptions(0)
.without_stale_places();

/// As before, and the sealer may meet both timers on their way in: both authors may stop there, with the sealer coming
/// last.
const SEAL_LAST_OF_THREE: Model = Model::new("seal_last_of_three", || {
    let world = World::new();
    let author = spawn({
        let world = world.clone();
        move || schedule_same_key(&world, 2, 8)
    });
    let sealer = spawn({
        let world = world.clone();
        move || world.seal()
    });
    let mine = schedule_same_key(&world, 1, 7);
    let answers = [mine, join(author)];
    two_and_the_sealer(answers, &join(sealer));
    world.end();
})
.preemptions(2)
.plain_preemptions(0)
.without_stale_places();

#[test]
fn a_schedule_is_closed_or_refused() {
    SEAL_OR_SCHEDULE.reaches(&["accepted, closed", "refused"]);
    SEAL_OR_REPLACE.reaches(&["replaced, closed", "refused"]);
    let all = ["8 replaced 7", "7 replaced 8", "only 7", "only 8", "neither"];
    SEAL_OR_TWO.reaches(&all);
    SEAL_LAST_OF_THREE.reaches(&all);
}

#[test]
fn a_cancel_or_the_close_takes_the_value() {
    SEAL_OR_CANCEL.reaches(&[vec![], vec![7], vec![8], vec![8, 7]]);
    SEAL_OR_CANCEL_AS_SEEN.reaches(&["cancelled", "closed"]);
}

#[test]
fn a_move_does_not_save_a_timer_from_the_close() {
    SEAL_OR_MOVE.reaches(&[false, true]);
}

#[test]
fn a_timer_fires_or_is_closed() {
    SEAL_OR_FIRE.reaches(&["fired", "closed"]);
}

/// The claim torn, and the freezing that forbids an insert.
#[test]
fn claim_and_freezing_must_be_one_step() {
    SEAL_OR_FIRE.kills(
        place("word.rs", "self.0.compare_exchange(seen.0, flags"),
        Change::Tear,
        "value 7 dropped twice",
    );
    SEAL_OR_SCHEDULE.kills(
        place("line.rs", "let last = self.0.fetch_or(FROZEN, Release)"),
        Change::Tear,
        "accepted, closed",
    );
    let link = place("line.rs", "self.0.compare_exchange(seen.0, seen.with(side, cell).0");
    SEAL_OR_SCHEDULE.kills(link, Change::Tear, "accepted, closed");
}

#[test]
fn the_sealer_must_see_what_it_claims() {
    SEAL_OR_SCHEDULE.kills(place("line.rs", "Pair(self.0.load(Acquire))"), Change::DropAcquire, "Causality violation");
}

/// An author that meets a frozen line also sees that the shard is sealed: otherwise it looks for another line again and
/// again.
#[test]
fn a_refused_author_must_come_to_know_it() {
    let freeze = place("line.rs", "let last = self.0.fetch_or(FROZEN, Release)");
    SEAL_OR_SCHEDULE.kills(freeze, Change::DropRelease, "exceeded maximum number of branches");
}

const MODELS: &[Model] = &[
    SEAL_OR_SCHEDULE,
    SEAL_OR_REPLACE,
    SEAL_OR_CANCEL,
    SEAL_OR_CANCEL_AS_SEEN,
    SEAL_OR_MOVE,
    SEAL_OR_FIRE,
    SEAL_OR_TWO,
    SEAL_LAST_OF_THREE,
];

#[test]
#[ignore = "minutes; see loom-tests/README.md"]
fn sweep() {
    crate::support::sweep("close", MODELS);
}
