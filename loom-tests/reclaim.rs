//! A node goes and comes back as another timer, while somebody still holds on to what it was.
//!
//! Nodes are retired and refilled two at a time, and come back as early as it is legal.

#[path = "../src/shard/mod.rs"]
#[allow(dead_code, unused_imports, reason = "a model uses a part of the shard")]
mod shard;
#[allow(dead_code, unused_imports, reason = "a model uses a part of the support")]
mod support;
#[path = "support/sync.rs"]
mod sync;

mod size {
    pub(crate) const FIRST_SEGMENT_BITS: u32 = 2;
    pub(crate) const BATCH: u32 = 2;
    pub(crate) const MAILBOX_SEGMENT: usize = 4;
}

use support::{Model, World, join, outcome, spawn};

/// Two timers retired fill a batch; the next schedule uses their nodes again.
fn recycle(world: &World, stripe: usize) -> u32 {
    assert_eq!(world.cancel(stripe, 1), Some(7), "nothing else ends it");
    assert_eq!(world.cancel(stripe, 2), Some(8), "nothing else ends it");
    world.schedule(stripe, 3, 9, 9).expect("not sealed").0.node
}

/// A look-up by key is under way while the node that it reads is used again.
const FIND_OR_REUSE: Model = Model::new("find_or_reuse", || {
    let world = World::new();
    let nodes = [world.given(1, 7, 5).node, world.given(2, 8, 6).node];
    let recycler = spawn({
        let world = world.clone();
        move || recycle(&world, 0)
    });
    let found = world.find(1, 1);
    assert!(found.is_none_or(|due| due == 5), "another timer's deadline: {found:?}");
    let reused = nodes.contains(&join(recycler));
    outcome((found.is_some(), reused));
    assert_eq!(world.seal(), [9]);
    world.end();
})
.reclaims_early();

/// An identity outlives its timer.
const STALE_CANCEL_OR_REUSE: Model = Model::new("stale_cancel_or_reuse", || {
    let world = World::new();
    let timer = world.given(1, 7, 5);
    world.given(2, 8, 6);
    let recycler = spawn({
        let world = world.clone();
        move || {
            let first = world.cancel(0, 1);
            assert_eq!(world.cancel(0, 2), Some(8), "nothing else ends it");
            world.schedule(0, 3, 9, 9).expect("not sealed");
            world.schedule(0, 4, 10, 9).expect("not sealed");
            first
        }
    });
    let mine = world.cancel_this(1, timer);
    match (mine, join(recycler)) {
        (Some(7), None) => outcome("by identity"),
        (None, Some(7)) => outcome("by key"),
        other => panic!("a stale identity, and the key: {other:?}"),
    }
    let mut left = world.seal();
    left.sort();
    assert_eq!(left, [9, 10], "a stale identity leaves the new timers alone");
    world.end();
})
.reclaims_early();

const STALE_MOVE_OR_REUSE: Model = Model::new("stale_move_or_reuse", || {
    let world = World::new();
    let timer = world.given(1, 7, 5);
    world.given(2, 8, 6);
    let recycler = spawn({
        let world = world.clone();
        move || {
            recycle(&world, 0);
            world.schedule(0, 4, 10, 9).expect("not sealed");
        }
    });
    outcome(world.reschedule_this(1, timer, 3));
    join(recycler);
    assert_eq!((world.find(0, 3), world.find(0, 4)), (Some(9), Some(9)), "a stale identity moves no new timer");
    let mut left = world.seal();
    left.sort();
    assert_eq!(left, [9, 10]);
    world.end();
})
.reclaims_early();

/// Two threads of one stripe retire, refill and take nodes.
const TWO_RECYCLERS: Model = Model::new("two_recyclers", || {
    let world = World::new();
    world.given(1, 7, 5);
    world.given(2, 8, 6);
    let other = spawn({
        let world = world.clone();
        move || (world.cancel(0, 1), world.schedule(0, 3, 9, 9).expect("not sealed").0.node)
    });
    let mine = (world.cancel(0, 2), world.schedule(0, 4, 10, 9).expect("not sealed").0.node);
    let theirs = join(other);
    assert_eq!((mine.0, theirs.0), (Some(8), Some(7)), "nothing else ends them");
    assert_ne!(mine.1, theirs.1, "one node for two timers");
    assert_eq!((world.find(0, 3), world.find(0, 4)), (Some(9), Some(9)));
    let mut left = world.seal();
    left.sort();
    assert_eq!(left, [9, 10]);
    outcome(mine.1.min(theirs.1));
    world.end();
})
.preemptions(2)
.reclaims_early();

/// A timer fires while its node is being looked for and used again: the key is there as long as anybody reads it.
const FIRE_OR_REUSE: Model = Model::new("fire_or_reuse", || {
    let world = World::new();
    world.given(1, 7, 5);
    world.given(2, 8, 5);
    let mut worker = world.worker();
    let author = spawn({
        let world = world.clone();
        move || world.schedule(1, 1, 9, 9).expect("not sealed").1
    });
    worker.turn(5);
    let replaced = join(author);
    worker.settle(6..=9);
    let mut out: Vec<_> = worker.fired().into_iter().chain(replaced).collect();
    out.sort();
    assert_eq!(out, [7, 8, 9], "every value comes out once");
    outcome(replaced);
    drop(worker);
    world.end();
})
.reclaims_early();

#[test]
fn a_look_up_never_sees_another_timer_on_its_node() {
    FIND_OR_REUSE.reaches(&[(false, true), (false, false), (true, true), (true, false)]);
}

#[test]
fn a_stale_identity_never_touches_a_new_timer() {
    STALE_CANCEL_OR_REUSE.reaches(&["by identity", "by key"]);
    STALE_MOVE_OR_REUSE.reaches(&[false, true]);
}

#[test]
fn a_node_is_handed_out_once() {
    TWO_RECYCLERS.reaches(&[1, 3]);
}

#[test]
fn every_value_comes_out_once_while_nodes_come_back() {
    FIRE_OR_REUSE.reaches(&[None, Some(7)]);
}

const MODELS: &[Model] = &[FIND_OR_REUSE, STALE_CANCEL_OR_REUSE, STALE_MOVE_OR_REUSE, TWO_RECYCLERS, FIRE_OR_REUSE];

#[test]
#[ignore = "minutes; see loom-tests/README.md"]
fn sweep() {
    support::sweep("reclaim", MODELS);
}
