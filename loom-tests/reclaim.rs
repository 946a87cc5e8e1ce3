//! A node goes and comes back as another timer, while some thread still holds on to what it was.
//!
//! Nodes are retired and refilled two at a time, and come back as early as it is legal.
//!
//! The thread that holds on to it must be a spawned one: the first operation of a model's first thread after a `spawn`
//! pins before any other thread has had a turn, and then nothing comes back until it is done.

#[path = "../src/shard/mod.rs"]
#[allow(dead_code, unused_imports, reason = "a model uses a part of the shard")]
mod shard;
#[allow(dead_code, unused_imports, reason = "a model uses a part of the support")]
mod support;
#[path = "support/sync.rs"]
mod sync;

mod size {
    pub(crate) const FIRST_SEGMENT_BITS: u32 = 2;
    pub(crate) const NODES_TO_LINE_BITS: u32 = 2;
    pub(crate) const BATCH: u32 = 2;
    pub(crate) const STRANDS: usize = 4;
    pub(crate) const MAILBOX_SEGMENT: usize = 4;
}

use support::{Change, Key, Model, Named, World, join, outcome, place, spawn};

/// Two retired timers fill a batch; the next schedule reuses their nodes.
fn recycle(world: &World, stripe: u32) -> u32 {
    assert_eq!(world.cancel(stripe, 1), Some(7), "nothing else ends it");
    assert_eq!(world.cancel(stripe, 2), Some(8), "nothing else ends it");
    world.schedule(stripe, 3, 9, 9).expect("not sealed").0.node
}

/// A look-up by key is under way while the node that it reads is reused.
const FIND_OR_REUSE: Model = Model::new("find_or_reuse", || {
    let world = World::new();
    let nodes = [world.given(1, 7, 5).node, world.given(2, 8, 6).node];
    let finder = spawn({
        let world = world.clone();
        move || world.find(1, 1)
    });
    let reused = nodes.contains(&recycle(&world, 0));
    let found = join(finder);
    assert!(found.is_none_or(|due| due == 5), "another timer's deadline: {found:?}");
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
    let stale = spawn({
        let world = world.clone();
        move || world.cancel_this(1, timer)
    });
    let by_key = world.cancel(0, 1);
    assert_eq!(world.cancel(0, 2), Some(8), "nothing else ends it");
    world.schedule(0, 3, 9, 9).expect("not sealed");
    world.schedule(0, 4, 10, 9).expect("not sealed");
    match (join(stale), by_key) {
        (Some(7), None) => outcome("by identity"),
        (None, Some(7)) => outcome("by key"),
        other => panic!("a stale identity, and the key: {other:?}"),
    }
    let mut left = world.seal();
    left.sort();
    assert_eq!(left, [9, 10], "a stale identity leaves the new timers alone");
    world.end();
})
.preemptions(2)
.reclaims_early();

const STALE_MOVE_OR_REUSE: Model = Model::new("stale_move_or_reuse", || {
    let world = World::new();
    let timer = world.given(1, 7, 5);
    world.given(2, 8, 6);
    let stale = spawn({
        let world = world.clone();
        move || world.reschedule_this(1, timer, 3)
    });
    recycle(&world, 0);
    world.schedule(0, 4, 10, 9).expect("not sealed");
    outcome(join(stale));
    assert_eq!((world.find(0, 3), world.find(0, 4)), (Some(9), Some(9)), "a stale identity moves no new timer");
    let mut left = world.seal();
    left.sort();
    assert_eq!(left, [9, 10]);
    world.end();
})
.reclaims_early();

/// Two threads want a node at the same time, and none was ever used.
const TWO_FRESH: Model = Model::new("two_fresh", || {
    let world = World::new();
    let other = spawn({
        let world = world.clone();
        move || take_node(&world, 1, 3)
    });
    let mine = take_node(&world, 0, 4);
    let theirs = join(other);
    assert_ne!(mine, theirs, "one node for two timers");
    outcome(mine.min(theirs));
    assert_eq!(left(&world), [3, 4]);
    world.end();
})
.preemptions(1)
.without_stale_places();

/// Two threads want a node at the same time: there is one used batch, and there are new nodes.
const TWO_TAKERS: Model = Model::new("two_takers", two_takers::<Key>).preemptions(2).reclaims_early();

/// As `TWO_TAKERS`; the batch is in the list of one of them.
const TWO_LOOKERS: Model = Model::new("two_lookers", two_takers::<u32>).preemptions(2).reclaims_early();

fn two_takers<K: Named>() {
    let world = World::<K>::with_keys();
    start_and_cancel(&world, &[1, 2]);
    let other = spawn({
        let world = world.clone();
        move || take_node(&world, 1, 3)
    });
    let mine = take_node(&world, 0, 4);
    let theirs = join(other);
    assert_ne!(mine, theirs, "one node for two timers");
    outcome((mine <= 2, theirs <= 2));
    assert_eq!(left(&world), [3, 4]);
    world.end();
}

/// One thread gives a batch back, to its list; another, whose own list is empty, may find it there.
const GIVE_OR_LOOK: Model = Model::new("give_or_look", || {
    let world = World::<u32>::with_keys();
    [1, 2].into_iter().for_each(|key| world.start(0, key, key, 9));
    assert_eq!(world.cancel(0, 1), Some(1), "nothing else ends it");
    let looker = spawn({
        let world = world.clone();
        move || take_node(&world, 1, 3)
    });
    assert_eq!(world.cancel(0, 2), Some(2), "nothing else ends it");
    let mut nodes = vec![join(looker)];
    outcome(nodes[0] <= 2);
    nodes.extend((4..7).map(|key| take_node(&world, 1, key)));
    nodes.sort();
    assert_eq!(nodes, [1, 2, 3, 4], "a batch was lost, or handed out twice");
    assert_eq!(left(&world), [3, 4, 5, 6]);
    world.end();
})
.reclaims_early();

/// One thread adds a batch to the clean ones, while another thread takes one. None is lost.
const CLEAN_OR_TAKE: Model = Model::new("clean_or_take", || {
    let world = World::new();
    // From the first two nodes, so that the next four are used nodes.
    world.start(1, 5, 5, 9);
    start_and_cancel(&world, &[1, 2, 3, 4]);
    let cleaner = spawn({
        let world = world.clone();
        move || world.cancel(1, 5)
    });
    let mut nodes = vec![take_node(&world, 0, 6)];
    assert_eq!(join(cleaner), Some(5), "nothing else ends it");
    nodes.extend((7..10).map(|key| take_node(&world, 0, key)));
    outcome(nodes[0]);
    nodes.sort();
    assert_eq!(nodes, [3, 4, 5, 6], "a batch was lost, or handed out twice");
    assert_eq!(left(&world), [6, 7, 8, 9]);
    world.end();
})
.reclaims_early();

/// Two threads each give a batch back. None is lost.
const TWO_GIVERS: Model = Model::new("two_givers", || two_givers::<Key>(1)).reclaims_early();

/// As `TWO_GIVERS`, each to a list of its own; a batch carries along which list it goes to.
const GIVERS_TO_TWO_LISTS: Model = Model::new("givers_to_two_lists", || two_givers::<u32>(1)).reclaims_early();

/// As `TWO_GIVERS`: two threads that share one list.
const GIVERS_TO_ONE_LIST: Model = Model::new("givers_to_one_list", || two_givers::<u32>(2)).reclaims_early();

fn two_givers<K: Named>(second: u32) {
    let world = World::<K>::with_keys();
    for (thread, key) in [(0, 1), (0, 2), (second, 3), (second, 4)] {
        world.start(thread, key, key, 9);
    }
    assert_eq!((world.cancel(0, 1), world.cancel(second, 3)), (Some(1), Some(3)), "nothing else ends them");
    let other = spawn({
        let world = world.clone();
        move || world.cancel(second, 4)
    });
    assert_eq!((world.cancel(0, 2), join(other)), (Some(2), Some(4)), "nothing else ends them");
    let mut nodes: Vec<u32> = (5..9).map(|key| take_node(&world, 0, key)).collect();
    outcome(nodes[0]);
    nodes.sort();
    assert_eq!(nodes, [1, 2, 3, 4], "a batch was lost, or handed out twice");
    assert_eq!(left(&world), [5, 6, 7, 8]);
    world.end();
}

/// Starts a timer whose value has the name of its key. Returns its node.
fn take_node<K: Named>(world: &World<K>, thread: u32, key: u32) -> u32 {
    world.schedule(thread, key, key, 9).expect("not sealed").0.node
}

/// Timers with these keys come and go, so that their nodes are used ones.
fn start_and_cancel<K: Named>(world: &World<K>, keys: &[u32]) {
    keys.iter().for_each(|&key| world.start(0, key, key, 9));
    keys.iter().for_each(|&key| assert_eq!(world.cancel(0, key), Some(key), "nothing else ends it"));
}

/// The values of what was pending at the end.
fn left<K: Named>(world: &World<K>) -> Vec<u32> {
    let mut values = world.seal();
    values.sort();
    values
}

/// A timer fires while its node is being looked for and reused: the key exists as long as any thread reads it.
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
.preemptions(2)
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
    TWO_FRESH.reaches(&[1]);
    TWO_TAKERS.reaches(&[(true, false), (false, true)]);
    let grow = place("slab.rs", "self.extent.fetch_update(Acquire, Relaxed, grow)");
    let pop = place("reuse.rs", "list.0.compare_exchange(first, next");
    TWO_LOOKERS.reaches(&[(true, false), (false, true)]);
    // The second thread takes the hash that the first one wrote for the next node of the chain.
    TWO_FRESH.kills(grow, Change::Tear, "index out of bounds");
    TWO_TAKERS.kills(pop, Change::Tear, "index out of bounds");
    TWO_LOOKERS.kills(pop, Change::Tear, "index out of bounds");
}

#[test]
fn no_node_is_lost_on_its_way_back() {
    CLEAN_OR_TAKE.reaches(&[4, 6]);
    TWO_GIVERS.reaches(&[2, 4]);
    GIVERS_TO_TWO_LISTS.reaches(&[2]);
    GIVERS_TO_ONE_LIST.reaches(&[2, 4]);
    GIVE_OR_LOOK.reaches(&[false, true]);
    let push = place("reuse.rs", "list.0.compare_exchange(first, nodes[0]");
    let pop = place("reuse.rs", "list.0.compare_exchange(first, next");
    let peek = place("reuse.rs", "let mut first = list.0.load(Acquire);");
    TWO_GIVERS.kills(push, Change::Tear, "a batch was lost");
    GIVERS_TO_ONE_LIST.kills(push, Change::Tear, "a batch was lost");
    // It is not published where a chain's first nodes lead.
    GIVE_OR_LOOK.kills(push, Change::DropRelease, "index out of bounds");
    GIVE_OR_LOOK.kills(peek, Change::DropAcquire, "index out of bounds");
    CLEAN_OR_TAKE.kills(push, Change::DropRelease, "Concurrent write accesses");
    CLEAN_OR_TAKE.kills(pop, Change::RelaxFailure, "Concurrent write accesses");
    CLEAN_OR_TAKE.kills(peek, Change::DropAcquire, "Concurrent write accesses");
}

#[test]
fn every_value_comes_out_once_while_nodes_come_back() {
    FIRE_OR_REUSE.reaches(&[None, Some(7)]);
}

const MODELS: &[Model] = &[
    FIND_OR_REUSE,
    STALE_CANCEL_OR_REUSE,
    STALE_MOVE_OR_REUSE,
    TWO_TAKERS,
    TWO_LOOKERS,
    GIVE_OR_LOOK,
    TWO_FRESH,
    CLEAN_OR_TAKE,
    TWO_GIVERS,
    GIVERS_TO_TWO_LISTS,
    GIVERS_TO_ONE_LIST,
    FIRE_OR_REUSE,
];

#[test]
#[ignore = "minutes; see loom-tests/README.md"]
fn sweep() {
    support::sweep("reclaim", MODELS);
}
