//! The index grows while it is used: a new bucket is linked in by whoever needs it first.
//!
//! It begins with two buckets; the first timer makes it four, the third eight: only then hashes 3 and 7 part.

#[path = "../src/shard/mod.rs"]
#[allow(dead_code, unused_imports, reason = "a model uses a part of the shard")]
mod shard;
#[allow(dead_code, unused_imports, reason = "a model uses a part of the support")]
mod support;
#[path = "support/sync.rs"]
mod sync;

mod size {
    pub(crate) const FIRST_SEGMENT_BITS: u32 = 1;
    pub(crate) const BATCH: u32 = 1;
    pub(crate) const STRANDS: usize = 1;
    pub(crate) const MAILBOX_SEGMENT: usize = 4;
}

use shard::{Access, Segments};
use std::rc::Rc;
use support::{Change, Model, World, join, ordinal, outcome, place, spawn};
use sync::Ordering::Relaxed;

/// How many calls said that they had doubled the array: each of them wakes the worker.
fn growths(world: &World) -> u32 {
    world.shard.alarm.ticket()
}

/// Two timers for a bucket that nobody has used yet: one links it in, the other goes around it.
const A_NEW_BUCKET_FOR_TWO: Model = Model::new("a_new_bucket_for_two", || {
    let world = World::new();
    let author = spawn({
        let world = world.clone();
        move || (world.schedule(1, 3, 7, 5).is_ok(), world.find(1, 3))
    });
    assert!(world.schedule(0, 7, 8, 6).is_ok());
    assert_eq!(world.find(0, 7), Some(6));
    assert_eq!(join(author), (true, Some(5)));
    assert_eq!((world.find(0, 3), world.find(0, 7)), (Some(5), Some(6)));
    assert_eq!((world.shard.bucket_count(), growths(&world)), (4, 1), "one of them made it grow");
    outcome(world.seal());
    world.end();
})
.preemptions(2)
.plain_preemptions(1);

/// The array doubles, and a bucket is linked in between a key and the entrance that led to it.
const GROWTH_OR_FIND: Model = Model::new("growth_or_find", || {
    let world = World::new();
    world.given(7, 7, 5);
    world.given(1, 8, 6);
    let author = spawn({
        let world = world.clone();
        move || world.start(1, 17, 9, 7)
    });
    assert_eq!(world.find(0, 7), Some(5), "the key is never absent");
    outcome(world.find(0, 17));
    join(author);
    assert_eq!(world.seal(), [8, 9, 7]);
    world.end();
})
.preemptions(2)
.plain_preemptions(1);

fn remove_while_growing(key: u32, new: u32) {
    let world = World::new();
    world.given(key, 7, 5);
    world.given(1, 8, 6);
    let before = growths(&world);
    let author = spawn({
        let world = world.clone();
        move || world.start(1, new, 9, 7)
    });
    assert_eq!((world.cancel(0, key), world.cancel(0, 1)), (Some(7), Some(8)), "nothing else ends them");
    join(author);
    assert_eq!((world.find(0, key), world.find(0, 1), world.find(0, new)), (None, None, Some(7)));
    // It grows for three timers at a time: not if those that are there have left by then.
    outcome((growths(&world) - before, world.seal()));
    world.end();
}

/// A node in front of the new bucket goes: a walk to link that one in may take it out.
const GROWTH_OR_REMOVE: Model =
    Model::new("growth_or_remove", || remove_while_growing(3, 7)).preemptions(2).plain_preemptions(1);

/// A node behind the new bucket goes: it is taken out after a walk over that one.
const GROWTH_OR_REMOVE_BEHIND: Model =
    Model::new("growth_or_remove_behind", || remove_while_growing(7, 17)).preemptions(2).plain_preemptions(1);

const GROWTH_OR_INSERT: Model = Model::new("growth_or_insert", || {
    let world = World::new();
    world.given(1, 8, 6);
    world.given(2, 6, 6);
    let before = growths(&world);
    let author = spawn({
        let world = world.clone();
        move || world.start(1, 3, 7, 7)
    });
    assert!(world.schedule(0, 7, 9, 8).is_ok());
    assert_eq!(world.find(0, 7), Some(8));
    join(author);
    let all = [1, 2, 3, 7].map(|key| world.find(0, key));
    assert_eq!(all, [Some(6), Some(6), Some(7), Some(8)]);
    assert!(growths(&world) > before, "it grew meanwhile");
    outcome(world.seal());
    world.end();
})
.preemptions(2)
.plain_preemptions(1);

/// A reader who knows from elsewhere that the timer is there must find it, by whatever entrance.
const TOLD_OR_NOT: Model = Model::new("told_or_not", || {
    let world = World::new();
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
    assert_eq!(world.seal(), [7]);
    world.end();
})
.preemptions(2)
.plain_preemptions(1);

const GROWTH_OR_SEAL: Model = Model::new("growth_or_seal", || {
    let world = World::new();
    world.given(1, 7, 5);
    let author = spawn({
        let world = world.clone();
        move || world.schedule(1, 3, 8, 5).is_ok() as usize + world.schedule(1, 2, 9, 5).is_ok() as usize
    });
    let closed = world.seal();
    let accepted = join(author);
    assert_eq!(closed.len(), 1 + accepted, "what was accepted is closed, once");
    outcome(closed);
    world.end();
})
.preemptions(2)
.plain_preemptions(1);

/// What the thread that works ahead does with the buckets from `next` on.
fn link_ahead(world: &World, next: u32) -> u32 {
    world.shard.link_ahead(next, 2, &Access::new(&ordinal(0)))
}

/// Somebody who works ahead has claimed a bucket, a timer begins beside it, he links the bucket in front of that: who enters
/// there sees the timer whole.
const LINKED_AHEAD_OR_FIND: Model = Model::new("linked_ahead_or_find", || {
    let world = World::new();
    for key in [1, 2, 6] {
        world.given(key, key + 10, 5);
    }
    let author = spawn({
        let world = world.clone();
        move || world.start(1, 7, 17, 5)
    });
    let reader = spawn({
        let world = world.clone();
        move || world.find(2, 7)
    });
    assert_eq!(link_ahead(&world, 6), 8);
    join(author);
    outcome(join(reader));
    assert_eq!((world.shard.bucket_count(), growths(&world)), (8, 2));
    assert_eq!((link_ahead(&world, 3), link_ahead(&world, 5), link_ahead(&world, 7)), (5, 7, 8));
    assert_eq!(world.seal(), [12, 16, 11, 17], "the timers in the order of the list");
    world.end();
})
.preemptions(2)
.plain_preemptions(1);

/// Somebody links a bucket in ahead while callers insert, remove, and link it themselves.
const LINKED_AHEAD_OR_CHANGED: Model = Model::new("linked_ahead_or_changed", || {
    let world = World::new();
    world.given(3, 7, 5);
    world.given(1, 8, 6);
    world.given(2, 6, 6);
    let caller = spawn({
        let world = world.clone();
        move || {
            world.start(1, 7, 9, 7);
            (world.cancel(1, 3), world.find(1, 7))
        }
    });
    assert_eq!(link_ahead(&world, 6), 8);
    assert_eq!(join(caller), (Some(7), Some(7)));
    assert_eq!((world.find(0, 3), world.find(0, 7)), (None, Some(7)));
    outcome(world.seal());
    world.end();
})
.preemptions(2)
.plain_preemptions(1);

/// The third timer makes the array double: who sees to it first, the thread that works ahead or the caller.
const GROWN_BY_ONE_OF_TWO: Model = Model::new("grown_by_one_of_two", || {
    let world = World::new();
    world.given(3, 7, 5);
    world.given(1, 8, 6);
    let author = spawn({
        let world = world.clone();
        move || world.start(1, 7, 9, 7)
    });
    // How many timers there are is a figure that the model does not see: it must see something before that is read.
    let _ = world.shard.bucket_count();
    let linked = [4, 6].map(|next| link_ahead(&world, next));
    join(author);
    assert_eq!(world.shard.bucket_count(), 8, "it doubles once");
    assert_eq!((world.find(0, 3), world.find(0, 7), world.find(0, 1)), (Some(5), Some(7), Some(6)));
    outcome((linked, growths(&world)));
    assert_eq!(world.seal(), [8, 7, 9], "the timers in the order of the list");
    world.end();
})
.preemptions(2)
.plain_preemptions(1);

/// Two threads need the same new segment of an array, and one of them reads what is there before.
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
    let [reserve, read] =
        ["let items = self.segments[segment].load(Ordering::Acquire)", "let items = slot.load(Ordering::Acquire)"];
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
fn a_new_bucket_hides_nothing() {
    A_NEW_BUCKET_FOR_TWO.reaches(&[[7, 8]]);
    GROWTH_OR_FIND.reaches(&[None, Some(7)]);
    TOLD_OR_NOT.reaches(&[(false, None), (false, Some(5)), (true, Some(5))]);
}

#[test]
fn growth_disturbs_neither_removal_nor_insertion() {
    GROWTH_OR_REMOVE.reaches(&[(0, [9]), (1, [9])]);
    GROWTH_OR_REMOVE_BEHIND.reaches(&[(0, [9]), (1, [9])]);
    GROWTH_OR_INSERT.reaches(&[[6, 8, 7, 9]]);
}

#[test]
fn growth_opens_no_way_around_the_seal() {
    GROWTH_OR_SEAL.reaches(&[vec![7], vec![7, 8], vec![9, 7, 8]]);
}

#[test]
fn a_bucket_must_be_claimed_in_one_step() {
    let claim = place("link.rs", "self.0.compare_exchange(0, CLAIMED");
    A_NEW_BUCKET_FOR_TWO.kills(claim, Change::Tear, "the list is sorted");
    LINKED_AHEAD_OR_CHANGED.kills(claim, Change::Tear, "the list is sorted");
}

#[test]
fn the_array_must_double_in_one_step() {
    let fit = place("index.rs", "self.bucket_bits.compare_exchange(bits, bits + 1");
    A_NEW_BUCKET_FOR_TWO.kills(fit, Change::Tear, "one of them made it grow");
}

#[test]
fn buckets_are_linked_ahead_beside_callers() {
    LINKED_AHEAD_OR_FIND.reaches(&[None, Some(5)]);
    LINKED_AHEAD_OR_CHANGED.reaches(&[[6, 8, 9]]);
    let (linked_all, too_early, late) = ([6, 8], [4, 4], [4, 8]);
    GROWN_BY_ONE_OF_TWO.reaches(&[(too_early, 2), (late, 1), (late, 2), (linked_all, 1), (linked_all, 2)]);
}

/// A bucket leads on before it can be reached.
#[test]
fn a_bucket_must_lead_on_before_it_is_linked_in() {
    let lead_on = place("link.rs", "self.0.store(target.0 | CLAIMED, Relaxed)");
    let link = place("link.rs", "self.0.compare_exchange(seen.0, seen.redirected(target).0");
    LINKED_AHEAD_OR_CHANGED.kills(lead_on, Change::Postpone(link), "the list is sorted");
}

/// The end of the claim is what a reader acquires who enters by the bucket.
#[test]
fn a_bucket_must_be_published() {
    let end_claim = place("link.rs", "self.0.fetch_and(!CLAIMED, Release)");
    LINKED_AHEAD_OR_FIND.kills(end_claim, Change::DropRelease, "Causality violation");
    LINKED_AHEAD_OR_FIND.kills(end_claim, Change::Tear, "the timers in the order of the list");
}

const MODELS: &[Model] = &[
    A_NEW_BUCKET_FOR_TWO,
    GROWTH_OR_FIND,
    GROWTH_OR_REMOVE,
    GROWTH_OR_REMOVE_BEHIND,
    GROWTH_OR_INSERT,
    TOLD_OR_NOT,
    GROWTH_OR_SEAL,
    LINKED_AHEAD_OR_FIND,
    LINKED_AHEAD_OR_CHANGED,
    GROWN_BY_ONE_OF_TWO,
    A_NEW_SEGMENT_FOR_TWO,
];

#[test]
#[ignore = "minutes; see loom-tests/README.md"]
fn sweep() {
    support::sweep("index", MODELS);
}
