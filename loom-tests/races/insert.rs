//! Timers that begin at the same time: of one key, or of two keys with one hash.

use crate::support::{Change, Model, World, join, outcome, place, spawn};

/// Two first schedules of one key.
const ONE_KEY_TWICE: Model = Model::new("one_key_twice", || {
    let world = World::new();
    let author = spawn({
        let world = world.clone();
        move || world.schedule(1, 1, 7, 5).expect("not sealed").1
    });
    let mine = world.schedule(0, 1, 8, 6).expect("not sealed").1;
    let theirs = join(author);
    let due = world.find(0, 1);
    match (mine, theirs, due, world.seal().as_slice()) {
        (None, Some(8), Some(5), [7]) => outcome("mine first"),
        (Some(7), None, Some(6), [8]) => outcome("theirs first"),
        other => panic!("replaced, replaced, due, left: {other:?}"),
    }
    world.end();
})
.preemptions(2)
.plain_preemptions(1);

/// They claim cells in different pairs, and neither has looked for an empty cell in the other's pair since.
const ONE_KEY_TWICE_AROUND_A_GAP: Model = Model::new("one_key_twice_around_a_gap", || {
    let world = World::new();
    world.given(5, 1, 9);
    world.given(3, 2, 9);
    let author = spawn({
        let world = world.clone();
        move || world.schedule(1, 1, 7, 5).expect("not sealed").1
    });
    assert_eq!(world.cancel(0, 3), Some(2));
    let mine = world.schedule(0, 1, 8, 6).expect("not sealed").1;
    let theirs = join(author);
    let mut left = world.seal();
    left.sort();
    match (mine, theirs, left.as_slice()) {
        (None, Some(8), [1, 7]) => outcome("mine first"),
        (Some(7), None, [1, 8]) => outcome("theirs first"),
        other => panic!("replaced, replaced, left: {other:?}"),
    }
    world.end();
})
.preemptions(3)
.plain_preemptions(1);

/// Two keys of one hash: neither hides the other.
const TWO_KEYS_OF_ONE_HASH: Model = Model::new("two_keys_of_one_hash", || {
    let world = World::new();
    let author = spawn({
        let world = world.clone();
        move || (world.schedule(1, 1, 7, 5).expect("not sealed").1, world.find(1, 1))
    });
    let mine = (world.schedule(0, 11, 8, 6).expect("not sealed").1, world.find(0, 11));
    assert_eq!((mine, join(author)), ((None, Some(6)), (None, Some(5))), "neither hides the other");
    assert_eq!((world.find(0, 1), world.find(0, 11)), (Some(5), Some(6)), "neither hides the other");
    outcome(world.seal());
    world.end();
})
.preemptions(2)
.plain_preemptions(1);

/// The same, while one of the two ends.
const INSERT_BESIDE_A_REMOVAL: Model = Model::new("insert_beside_a_removal", || {
    let world = World::new();
    world.given(1, 7, 5);
    let author = spawn({
        let world = world.clone();
        move || (world.schedule(1, 11, 8, 6).expect("not sealed").1, world.cancel(1, 21))
    });
    assert_eq!(world.cancel(0, 1), Some(7), "nothing else ends it");
    assert_eq!(join(author), (None, None));
    assert_eq!((world.find(0, 1), world.find(0, 11)), (None, Some(6)));
    outcome(world.seal());
    world.end();
})
.preemptions(2)
.plain_preemptions(1);

/// Both start a key whose timer has fired, and whose callback ends meanwhile: neither takes the dead timer for the
/// other's, or the other's for the dead one.
const BESIDE_A_DEAD_ONE: Model = Model::new("beside_a_dead_one", || {
    let world = World::new();
    world.given(1, 9, 4);
    let run = world.fire(0, 1).expect("it is pending");
    let author = spawn({
        let world = world.clone();
        move || world.schedule(1, 1, 7, 5).expect("not sealed").1
    });
    let mine = world.schedule(0, 1, 8, 6).expect("not sealed").1;
    assert_eq!(world.run(0, run), (1, 9));
    let theirs = join(author);
    match (mine, theirs, world.seal().as_slice()) {
        (None, Some(8), [7]) => outcome("mine first"),
        (Some(7), None, [8]) => outcome("theirs first"),
        other => panic!("replaced, replaced, left: {other:?}"),
    }
    world.end();
})
.preemptions(2)
.plain_preemptions(1);

/// An author, and a reader that sees the whole timer or nothing.
const SEEN_WHOLE_OR_NOT: Model = Model::new("seen_whole_or_not", || {
    let world = World::new();
    let author = spawn({
        let world = world.clone();
        move || world.start(1, 1, 7, 5)
    });
    outcome((world.find(0, 1), world.find(0, 11)));
    join(author);
    assert_eq!(world.seal(), [7]);
    world.end();
});

#[test]
fn two_first_schedules_of_one_key_leave_one_timer() {
    ONE_KEY_TWICE.reaches(&["mine first", "theirs first"]);
    ONE_KEY_TWICE_AROUND_A_GAP.reaches(&["mine first", "theirs first"]);
    BESIDE_A_DEAD_ONE.reaches(&["mine first", "theirs first"]);
}

#[test]
fn keys_of_one_hash_do_not_hide_each_other() {
    TWO_KEYS_OF_ONE_HASH.reaches(&[[7, 8], [8, 7]]);
    INSERT_BESIDE_A_REMOVAL.reaches(&[[8]]);
}

#[test]
fn a_reader_sees_a_new_timer_whole_or_not_at_all() {
    SEEN_WHOLE_OR_NOT.reaches(&[(None::<u64>, None::<u64>), (Some(5), None)]);
}

#[test]
fn linking_must_be_one_step_that_publishes() {
    let link = place("line.rs", "self.0.compare_exchange(seen.0, seen.with(side, cell).0");
    ONE_KEY_TWICE.kills(link, Change::Tear, "replaced, replaced, due, left");
    // Of two threads that claim, at least one sees the other.
    let scan = place("line.rs", "Pair(self.0.load(SeqCst))");
    ONE_KEY_TWICE_AROUND_A_GAP.kills(scan, Change::WeakenFence, "replaced, replaced, left");
    TWO_KEYS_OF_ONE_HASH.kills(link, Change::Tear, "neither hides the other");
    SEEN_WHOLE_OR_NOT.kills(link, Change::DropRelease, "Causality violation");
    SEEN_WHOLE_OR_NOT.kills(place("line.rs", "Pair(self.0.load(Acquire))"), Change::DropAcquire, "Causality violation");
}

const MODELS: &[Model] = &[
    ONE_KEY_TWICE,
    ONE_KEY_TWICE_AROUND_A_GAP,
    TWO_KEYS_OF_ONE_HASH,
    INSERT_BESIDE_A_REMOVAL,
    BESIDE_A_DEAD_ONE,
    SEEN_WHOLE_OR_NOT,
];

#[test]
#[ignore = "minutes; see loom-tests/README.md"]
fn sweep() {
    crate::support::sweep("insert", MODELS);
}
