//! The index grows while it is used: a line of the larger array is filled by the thread that needs it first. And lines
//! have further ones.
//!
//! It begins with one line of three cells, which has room for the number of the first node only: so the second timer
//! makes two lines, and the fourth makes four.

#[path = "../src/shard/mod.rs"]
#[allow(dead_code, unused_imports, reason = "a model uses a part of the shard")]
mod shard;
#[allow(dead_code, unused_imports, reason = "a model uses a part of the support")]
mod support;
#[path = "support/sync.rs"]
mod sync;

mod size {
    pub(crate) const FIRST_SEGMENT_BITS: u32 = 1;
    pub(crate) const NODES_TO_LINE_BITS: u32 = 1;
    pub(crate) const BATCH: u32 = 1;
    pub(crate) const STRANDS: usize = 1;
    pub(crate) const MAILBOX_SEGMENT: usize = 4;
}

use shard::{Access, Segments};
use std::rc::Rc;
use support::{Change, Model, World, join, ordinal, outcome, place, spawn};
use sync::Ordering::Relaxed;

/// How many calls reported that they had doubled the array: each of them wakes the worker.
fn growths(world: &World) -> u32 {
    world.shard.alarm.ticket()
}

/// Two timers for lines that are not set yet: both split the same line, and one of them has doubled the array.
const SPLIT_BY_TWO: Model = Model::new("split_by_two", || {
    let world = World::new();
    world.given(2, 6, 4);
    let author = spawn({
        let world = world.clone();
        move || (world.schedule(1, 3, 7, 5).is_ok(), world.find(1, 3))
    });
    assert!(world.schedule(0, 7, 8, 6).is_ok());
    assert_eq!(world.find(0, 7), Some(6));
    assert_eq!(join(author), (true, Some(5)));
    assert_eq!([2, 3, 7].map(|key| world.find(0, key)), [Some(4), Some(5), Some(6)]);
    assert_eq!((world.shard.line_count(), growths(&world)), (2, 1), "one of them made it grow");
    outcome(world.seal());
    world.end();
})
.preemptions(2)
.plain_preemptions(1);

/// The line of a key is split while it is looked up.
const GROWTH_OR_FIND: Model = Model::new("growth_or_find", || {
    let world = World::new();
    world.given(7, 7, 5);
    let author = spawn({
        let world = world.clone();
        move || world.start(1, 17, 9, 7)
    });
    assert_eq!(world.find(0, 7), Some(5), "the key is never absent");
    outcome(world.find(0, 17));
    join(author);
    assert_eq!(world.seal(), [7, 9]);
    world.end();
})
.preemptions(3)
.plain_preemptions(2);

/// The line of a key is split while its timer is ended: the new line does not have the timer, or it is taken out of
/// that line.
const GROWTH_OR_REMOVE: Model =
    Model::new("growth_or_remove", || growth_or_remove(World::cancel)).preemptions(3).plain_preemptions(2);

/// The same in a batch, which may have seen the timer in the old line.
const GROWTH_OR_REMOVE_AS_SEEN: Model =
    Model::new("growth_or_remove_as_seen", || growth_or_remove(World::cancel_as_seen)).preemptions(2);

fn growth_or_remove(cancel: fn(&World, u32, u32) -> Option<u32>) {
    let world = World::new();
    world.given(3, 7, 5);
    let author = spawn({
        let world = world.clone();
        move || world.start(1, 7, 9, 7)
    });
    assert_eq!(cancel(&world, 0, 3), Some(7), "nothing else ends it");
    // Before it has grown, and after that.
    outcome(world.shard.line_count());
    join(author);
    assert_eq!((world.find(0, 3), world.find(0, 7)), (None, Some(7)));
    assert_eq!(world.shard.nodes_in_use(), 1, "its node is retired");
    assert_eq!(growths(&world), 1, "the second node needs a second line");
    assert_eq!(world.seal(), [9]);
    world.end();
}

/// A timer is replaced while its line is split.
const GROWTH_OR_REPLACE: Model = Model::new("growth_or_replace", || {
    let world = World::new();
    world.given(3, 7, 5);
    let author = spawn({
        let world = world.clone();
        move || world.start(1, 7, 9, 7)
    });
    assert_eq!(world.schedule(0, 3, 8, 6).expect("not sealed").1, Some(7));
    join(author);
    assert_eq!((world.find(0, 3), world.find(0, 7)), (Some(6), Some(7)));
    outcome(world.seal());
    world.end();
})
.preemptions(2)
.plain_preemptions(0);

/// Of two timers of one key, one claims its cell before the line is split, and the other one after that.
const ONE_KEY_TWICE_WHILE_IT_GROWS: Model = Model::new("one_key_twice_while_it_grows", || {
    let world = World::new();
    world.given(2, 6, 4);
    let author = spawn({
        let world = world.clone();
        move || world.schedule(1, 7, 7, 5).expect("not sealed").1
    });
    let mine = world.schedule(0, 7, 8, 6).expect("not sealed").1;
    match (mine, join(author), world.seal().as_slice()) {
        (Some(7), None, [6, 8]) => outcome("theirs first"),
        (None, Some(8), [6, 7]) => outcome("mine first"),
        other => panic!("replaced, replaced, left: {other:?}"),
    }
    world.end();
})
.preemptions(2)
.plain_preemptions(1);

/// A reader that knows from elsewhere that the timer exists must find it, in whichever array.
const TOLD_OR_NOT: Model = Model::new("told_or_not", || {
    let world = World::new();
    world.given(2, 6, 4);
    let told = Rc::new(sync::AtomicU64::new(0));
    let author = spawn({
        let (world, told) = (world.clone(), Rc::clone(&told));
        move || {
            world.start(1, 3, 7, 5);
            told.store(1, sync::Ordering::Release);
        }
    });
    let was_told = told.load(sync::Ordering::Acquire) == 1;
    let found = world.find(0, 7).is_none().then(|| world.find(0, 3)).flatten();
    assert!(found == Some(5) || !was_told, "told of a timer that is not there");
    outcome((was_told, found));
    join(author);
    assert_eq!(world.seal(), [6, 7]);
    world.end();
})
.preemptions(2)
.plain_preemptions(1);

const GROWTH_OR_SEAL: Model = Model::new("growth_or_seal", || {
    let world = World::new();
    world.given(1, 7, 5);
    let author = spawn({
        let world = world.clone();
        move || usize::from(world.schedule(1, 3, 8, 5).is_ok())
    });
    let closed = world.seal();
    let accepted = join(author);
    assert_eq!(closed.len(), 1 + accepted, "what was accepted is closed, once");
    outcome((closed, world.shard.line_count()));
    world.end();
})
.preemptions(3)
.plain_preemptions(2);

/// Splits the lines from `next` on, as the thread that works ahead does.
fn split_ahead(world: &World, next: u32) -> u32 {
    world.shard.split_ahead(next, 2, &Access::new(&ordinal(0)))
}

/// The thread that works ahead splits a line beside its callers.
const SPLIT_AHEAD_OR_CHANGED: Model = Model::new("split_ahead_or_changed", || {
    let world = World::new();
    world.given(3, 7, 5);
    world.given(7, 6, 6);
    world.given(2, 9, 6);
    let caller = spawn({
        let world = world.clone();
        move || {
            world.start(1, 5, 8, 7);
            world.cancel(1, 3)
        }
    });
    // The number of timers is a figure that the model does not see: it must see something before that is read.
    let _ = world.shard.line_count();
    let ahead = split_ahead(&world, 6);
    assert_eq!(join(caller), Some(7));
    assert_eq!([3, 5, 7].map(|key| world.find(0, key)), [None, Some(7), Some(6)]);
    outcome((ahead, world.shard.line_count()));
    let mut left = world.seal();
    left.sort();
    assert_eq!(left, [6, 8, 9]);
    world.end();
})
.preemptions(2)
.plain_preemptions(1);

/// When all lines of an array are set, the previous array is freed, though some thread may still be looking at it.
const FREED_OR_FIND: Model = Model::new("freed_or_find", || {
    let world = World::new();
    [(1, 11), (3, 13), (2, 12)].into_iter().for_each(|(key, value)| _ = world.given(key, value, 5));
    let author = spawn({
        let world = world.clone();
        move || {
            world.start(1, 7, 17, 6);
            world.shard.split_ahead(4, 4, &Access::new(&ordinal(1)))
        }
    });
    assert_eq!(world.find(0, 3), Some(5));
    outcome(world.find(0, 7));
    assert_eq!(join(author), 8);
    world.shard.assert_array_alone();
    assert_eq!(world.shard.line_count(), 4);
    assert_eq!(world.seal(), [12, 11, 13, 17]);
    world.end();
})
.preemptions(2)
.plain_preemptions(1)
.reclaims_early();

/// A line is full: two more timers need a further one, and both bring one.
const A_FURTHER_LINE_FOR_TWO: Model = Model::new("a_further_line_for_two", || {
    let world = World::new();
    [(1, 11), (5, 12), (9, 13), (2, 10)].into_iter().for_each(|(key, value)| _ = world.given(key, value, 5));
    let author = spawn({
        let world = world.clone();
        move || world.start(1, 15, 14, 6)
    });
    world.start(0, 19, 15, 7);
    join(author);
    assert_eq!([1, 5, 9, 15, 19].map(|key| world.find(0, key).is_some()), [true; 5]);
    outcome(world.seal());
    world.end();
})
.preemptions(2)
.plain_preemptions(1);

/// The last timer of a further line goes while another one comes: the line goes, or it stays.
const COMES_OR_GOES_BEHIND: Model = Model::new("comes_or_goes_behind", || {
    let world = World::new();
    [(1, 11), (11, 12), (21, 13), (31, 14)].into_iter().for_each(|(key, value)| _ = world.given(key, value, 5));
    let author = spawn({
        let world = world.clone();
        move || world.start(1, 41, 15, 6)
    });
    assert_eq!(world.cancel(0, 31), Some(14));
    join(author);
    assert_eq!([31, 41].map(|key| world.find(0, key)), [None, Some(6)]);
    assert_eq!(world.cancel(0, 41), Some(15));
    outcome(world.seal());
    world.end();
})
.preemptions(2)
.plain_preemptions(1)
.reclaims_early();

/// A further line is reused in another place when no thread can be looking at it.
const USED_AGAIN_OR_FIND: Model = Model::new("used_again_or_find", || {
    let world = World::new();
    [(1, 11), (11, 12), (21, 13), (31, 14)].into_iter().for_each(|(key, value)| _ = world.given(key, value, 5));
    let author = spawn({
        let world = world.clone();
        move || {
            assert_eq!(world.cancel(1, 31), Some(14));
            world.start(1, 41, 15, 6);
        }
    });
    outcome((world.find(0, 31), world.find(0, 41)));
    join(author);
    assert_eq!(world.seal(), [11, 13, 12, 15]);
    world.end();
})
.preemptions(2)
.plain_preemptions(1)
.reclaims_early();

/// A line and its further line are split while a timer in the further one is ended.
const SPLIT_OR_REMOVE_BEHIND: Model = Model::new("split_or_remove_behind", || {
    let world = World::new();
    for (key, value) in [(1, 11), (11, 12), (21, 13), (31, 14), (2, 15), (4, 16), (6, 17)] {
        world.given(key, value, 5);
    }
    let author = spawn({
        let world = world.clone();
        move || world.start(1, 41, 18, 6)
    });
    assert_eq!(world.cancel(0, 31), Some(14));
    join(author);
    let lines = world.shard.line_count();
    assert_eq!([1, 11, 21, 31, 41].map(|key| world.find(0, key).is_some()), [true, true, true, false, true]);
    let mut left = world.seal();
    left.sort();
    outcome((lines, left));
    world.end();
})
.preemptions(2)
.plain_preemptions(1)
.reclaims_early();

/// Two threads need the same new segment of an array, and one of them reads beforehand what is there.
const A_NEW_SEGMENT_FOR_TWO: Model = Model::new("a_new_segment_for_two", || {
    let array = Rc::new(Segments::<sync::AtomicU64>::new());
    let other = spawn({
        let array = Rc::clone(&array);
        move || array.reserve(2).fetch_add(1, Relaxed)
    });
    let early: u64 = array.iter().map(|item| item.load(Relaxed)).sum();
    array.reserve(3).fetch_add(1, Relaxed);
    join(other);
    let items = [2, 3].map(|index| array.at(index).load(Relaxed));
    assert_eq!(items, [1, 1], "an item was lost");
    outcome(early);
});

#[test]
fn an_array_has_one_segment_for_all() {
    A_NEW_SEGMENT_FOR_TWO.reaches(&[0, 1]);
    let install = place("segments.rs", "slot.compare_exchange(ptr::null_mut(), fresh");
    let reserve = "there(self.segments[segment].load(Ordering::Acquire)).unwrap_or_else(";
    let read = "let items = slot.load(Ordering::Acquire)";
    A_NEW_SEGMENT_FOR_TWO.kills(install, Change::Tear, "an item was lost");
    for (line, change) in [
        (install, Change::DropRelease),
        (install, Change::RelaxFailure),
        (place("segments.rs", reserve), Change::DropAcquire),
        (place("segments.rs", read), Change::DropAcquire),
    ] {
        A_NEW_SEGMENT_FOR_TWO.kills(line, change, "Causality violation");
    }
}

#[test]
fn a_split_hides_nothing() {
    SPLIT_BY_TWO.reaches(&[[6, 7, 8], [6, 8, 7]]);
    GROWTH_OR_FIND.reaches(&[None, Some(7)]);
    TOLD_OR_NOT.reaches(&[(false, None), (false, Some(5)), (true, Some(5))]);
}

#[test]
fn growth_disturbs_neither_removal_nor_insertion() {
    GROWTH_OR_REMOVE.reaches(&[1, 2]);
    GROWTH_OR_REMOVE_AS_SEEN.reaches(&[1, 2]);
    GROWTH_OR_REPLACE.reaches(&[[8, 9], [9, 8]]);
    ONE_KEY_TWICE_WHILE_IT_GROWS.reaches(&["theirs first", "mine first"]);
    SPLIT_AHEAD_OR_CHANGED.reaches(&[(4, 4), (8, 4)]);
}

#[test]
fn growth_opens_no_way_around_the_seal() {
    GROWTH_OR_SEAL.reaches(&[(vec![7], 1), (vec![7], 2), (vec![7, 8], 2)]);
}

#[test]
fn an_array_is_freed_when_nobody_looks_at_it() {
    FREED_OR_FIND.reaches(&[None, Some(6)]);
}

#[test]
fn timers_come_and_go_in_further_lines() {
    A_FURTHER_LINE_FOR_TWO.reaches(&[[10, 11, 13, 12, 14, 15], [10, 11, 13, 12, 15, 14]]);
    COMES_OR_GOES_BEHIND.reaches(&[[11, 13, 12]]);
    USED_AGAIN_OR_FIND.reaches(&[(Some(5), None), (Some(5), Some(6)), (None, None), (None, Some(6))]);
    SPLIT_OR_REMOVE_BEHIND.reaches(&[4, 8].map(|lines| (lines, [11, 12, 13, 15, 16, 17, 18])));
}

/// (`races/close.rs` notices if a line is not frozen in single steps.)
#[test]
fn a_line_must_be_set_in_single_steps() {
    let set = place("line.rs", "self.0.compare_exchange(0, pair.0 | PAIR_SET");
    SPLIT_BY_TWO.kills(set, Change::Tear, "");
    let set_meta = place("line.rs", "self.0.compare_exchange(0, META_SET | version");
    FREED_OR_FIND.kills(set_meta, Change::Tear, "lines are set");
}

/// A thread that uses a line has acquired its cells, and through these the nodes.
#[test]
fn a_line_must_be_published() {
    let set_meta = place("line.rs", "self.0.compare_exchange(0, META_SET | version");
    FREED_OR_FIND.kills(set_meta, Change::DropRelease, "");
}

#[test]
fn the_array_must_double_in_one_step_and_be_published() {
    let double = place("array.rs", "self.0.compare_exchange(seen.0, larger.0");
    SPLIT_BY_TWO.kills(double, Change::Tear, "one of them made it grow");
    SPLIT_BY_TWO.kills(double, Change::DropRelease, "Causality violation");
    let load = place("array.rs", "Array(self.0.load(Acquire))");
    SPLIT_BY_TWO.kills(load, Change::DropAcquire, "Causality violation");
    // A thread may publish what another one has allocated.
    let reserve = place("segments.rs", "there(self.segments[segment].load(Ordering::Acquire)).or_else(");
    SPLIT_BY_TWO.kills(reserve, Change::DropAcquire, "Causality violation");
}

#[test]
fn a_link_must_be_changed_in_one_step() {
    let relink = place("line.rs", "self.0.compare_exchange(seen.0, seen.with_link(more).0");
    A_FURTHER_LINE_FOR_TWO.kills(relink, Change::Tear, "");
    COMES_OR_GOES_BEHIND.kills(relink, Change::Tear, "");
    A_FURTHER_LINE_FOR_TWO.kills(relink, Change::DropRelease, "Causality violation");
}

const MODELS: &[Model] = &[
    SPLIT_BY_TWO,
    GROWTH_OR_FIND,
    GROWTH_OR_REMOVE,
    GROWTH_OR_REMOVE_AS_SEEN,
    GROWTH_OR_REPLACE,
    ONE_KEY_TWICE_WHILE_IT_GROWS,
    TOLD_OR_NOT,
    GROWTH_OR_SEAL,
    SPLIT_AHEAD_OR_CHANGED,
    FREED_OR_FIND,
    A_FURTHER_LINE_FOR_TWO,
    COMES_OR_GOES_BEHIND,
    USED_AGAIN_OR_FIND,
    SPLIT_OR_REMOVE_BEHIND,
    A_NEW_SEGMENT_FOR_TWO,
];

#[test]
#[ignore = "minutes; see loom-tests/README.md"]
fn sweep() {
    support::sweep("index", MODELS);
}
