//! Nodes that go and come back.

use super::super::period::Repeats;
use super::super::tick::Deadline;
use super::super::word::{End, State};
use super::*;
#[cfg(not(miri))]
use std::time::{Duration, Instant};

#[test]
fn more_shards_or_a_destructor_make_smaller_batches() {
    let batches = |len: fn(usize) -> u32| [1, 16, 32, 64, 1024].map(|shard_count| len(shard_count) / BATCH);
    assert_eq!(batches(batch_len::<u64>), [4, 4, 2, 1, 1]);
    assert_eq!(batches(batch_len::<String>), [1; 5]);
}

/// The destructor of a key starts a timer, which takes a batch, while another batch is on its way to the same thread.
#[test]
fn no_batch_is_lost_when_a_destructor_takes_another() {
    use std::cell::RefCell;

    struct Key {
        starts_another: bool,
    }
    impl Drop for Key {
        fn drop(&mut self) {
            if self.starts_another {
                start(false);
            }
        }
    }
    thread_local! {
        static SLAB: Arc<Slab<Key, ()>> = Arc::new(Slab::new(4));
        static STARTED: RefCell<Vec<u32>> = const { RefCell::new(Vec::new()) };
    }
    fn with_access<R>(run: impl FnOnce(&Arc<Slab<Key, ()>>, &mut Access) -> R) -> R {
        let ordinal = crate::thread::ordinal();
        SLAB.with(|slab| run(slab, &mut Access::new(&ordinal)))
    }
    fn start(starts_another: bool) -> u32 {
        let node = with_access(|slab, access| {
            let node = slab.allocate(0, Key { starts_another }, (), Deadline::NEVER, Repeats::Never, access);
            node.unwrap_or_else(|_| panic!("there are nodes")).number
        });
        STARTED.with_borrow_mut(|started| started.push(node));
        node
    }

    for starts_another in [true, false, false, false] {
        let node = start(starts_another);
        with_access(|slab, access| {
            end(slab, slab.node(node), access);
        });
    }
    let begin = std::time::Instant::now();
    while with_access(|slab, access| {
        access.guard.flush();
        slab.ripe()[0].0.load(Relaxed) == 0
    }) {
        assert!(begin.elapsed().as_secs() < 60, "the batch does not come back");
        std::thread::yield_now();
    }
    STARTED.take();
    for _ in 0..7 {
        start(false);
    }
    let mut started = STARTED.take();
    started.sort_unstable();
    assert_eq!(started, [1, 2, 3, 4, 5, 6, 7, 8]);
    assert_eq!(with_access(|slab, _| slab.reuse.census.in_use.load(Relaxed)), 8);
}

/// What one thread has retired does not go to another, unless that has no other.
#[test]
fn a_thread_gets_its_own_nodes_back_before_it_takes_others() {
    const BATCH: u32 = 4;
    let slab = Arc::new(Slab::<u64, ()>::new(BATCH));
    // SAFETY: nobody else has the slab, which is what knows threads by their ordinals here.
    let ordinals = [3, 5].map(|number| unsafe { Ordinal::assume(number) });
    let [first, second] = &ordinals;
    let start = |ordinal| {
        let node = slab.allocate(0, 0, (), Deadline::NEVER, Repeats::Never, &mut Access::new(ordinal));
        node.unwrap_or_else(|_| panic!("there are nodes")).number
    };
    let start_all = |ordinal| {
        let mut nodes: Vec<_> = (0..BATCH).map(|_| start(ordinal)).collect();
        nodes.sort_unstable();
        nodes
    };
    let retire_all = |ordinal, nodes: Vec<u32>| {
        let access = Access::new(ordinal);
        nodes.into_iter().for_each(|node| end(&slab, slab.node(node), &access));
    };
    let nodes = ordinals.each_ref().map(start_all);
    assert_eq!(nodes, [[1, 2, 3, 4], [5, 6, 7, 8]]);
    ordinals.iter().zip(&nodes).for_each(|(ordinal, nodes)| retire_all(ordinal, nodes.clone()));
    let wait_for = |ordinal: &Ordinal| {
        let begin = std::time::Instant::now();
        while slab.ripe()[ordinal.stripe(RIPE_LISTS)].0.load(Relaxed) == 0 {
            assert!(begin.elapsed().as_secs() < 60, "the batch does not come back");
            Access::new(ordinal).guard.flush();
            std::thread::yield_now();
        }
    };
    ordinals.iter().for_each(wait_for);
    assert_eq!(start_all(first), nodes[0]);
    assert_eq!(start_all(first), nodes[1], "of another, before there are new ones");
    retire_all(first, nodes[0].clone());
    wait_for(first);
    assert_eq!(start_all(second), nodes[0], "of another that comes before it");
    assert_eq!(start_all(second), [9, 10, 11, 12]);
}

/// By way of both lists, whatever the length, with what is left of an earlier life beside the nodes.
#[test]
fn chains_come_out_of_the_lists_as_they_went_in() {
    let slab = Arc::new(Slab::<u64, ()>::new(1));
    let ordinal = crate::thread::ordinal();
    let access = Access::new(&ordinal);
    let chain_of = |nodes: std::ops::Range<u32>| {
        let mut chain = Chain::default();
        nodes.clone().for_each(|node| slab.reserved_node(node).tail.aside.store_pair(99, 99));
        nodes.for_each(|node| slab.push(&mut chain, slab.node(node)));
        chain
    };
    let Reuse { ripe: [ripe, ..], clean, .. } = &slab.reuse;
    for len in 1..=STRANDS as u32 + 3 {
        let (first, second) = (1..1 + len, 50..50 + len);
        slab.push_batch(ripe, chain_of(first.clone()));
        slab.push_batch(ripe, chain_of(second.clone()));
        let pass_on = || slab.push_batch(clean, slab.pop_batch(ripe, &access).expect("there are two"));
        pass_on();
        pass_on();
        for nodes in [first, second] {
            let mut chain = slab.pop_batch(clean, &access).expect("there are two");
            let out = std::iter::from_fn(|| slab.pop(&mut chain).map(|node| node.number));
            assert!(out.eq(nodes.rev()), "{len} nodes");
        }
        assert!(slab.pop_batch(clean, &access).is_none() && slab.pop_batch(ripe, &access).is_none());
    }
}

/// In a call that ends a timer, and in one that needs nodes.
#[test]
fn keys_are_dropped_while_the_thread_is_not_pinned() {
    use crate::sync::epoch::{is_pinned, pin};
    use std::cell::Cell;

    struct Key;
    impl Drop for Key {
        fn drop(&mut self) {
            let count = if is_pinned() { &WHILE_PINNED } else { &DROPPED };
            count.set(count.get() + 1);
        }
    }
    thread_local! {
        static WHILE_PINNED: Cell<u32> = const { Cell::new(0) };
        static DROPPED: Cell<u32> = const { Cell::new(0) };
    }
    const BATCH: u32 = 4;
    let ordinal = crate::thread::ordinal();
    let by_the_end: fn(&Arc<Slab<Key, ()>>, &mut Access) = |slab, access| assert!(slab.drop_ripe_keys(access));
    let by_a_start = |slab: &Arc<Slab<Key, ()>>, access: &mut Access| {
        // Its key goes with the slab.
        assert!(slab.allocate(0, Key, (), Deadline::NEVER, Repeats::Never, access).is_ok());
    };
    for (name, drops_keys) in [("end", by_the_end), ("start", by_a_start)] {
        let slab = Arc::new(Slab::new(BATCH));
        DROPPED.set(0);
        let guard = pin();
        for _ in 0..BATCH {
            let access = &mut Access::new(&ordinal);
            let node = slab.allocate(0, Key, (), Deadline::NEVER, Repeats::Never, access);
            let node = node.unwrap_or_else(|_| panic!("there are nodes"));
            end(&slab, node, access);
        }
        drop(guard);
        let begin = std::time::Instant::now();
        while slab.ripe()[0].0.load(Relaxed) == 0 {
            assert!(begin.elapsed().as_secs() < 60, "the batch does not come back");
            pin().flush();
        }
        drops_keys(&slab, &mut Access::new(&ordinal));
        assert_eq!((DROPPED.get(), WHILE_PINNED.get()), (BATCH, 0), "{name}");
    }
}

/// Keys whose destructors end further timers, and so might each drop the next batch of keys, on top of each other; on a
/// thread that lives, and in the destructor of a thread-local, where the thread takes a number for each call.
#[cfg(not(miri))]
#[test]
fn destructors_that_end_timers_do_not_pile_up_on_the_stack() {
    use crate::sync::key_drops::DEPTH_MAX;
    use std::cell::{Cell, RefCell};
    use std::sync::mpsc::{Sender, channel};

    const TIMERS: u64 = 400;
    struct Key(Weak<Slab<Self, ()>>);
    impl Drop for Key {
        fn drop(&mut self) {
            let depth = DEPTH.get() + 1;
            DEEPEST.set(DEEPEST.get().max(depth));
            DROPPED.set(DROPPED.get() + 1);
            if STARTED.get() < TIMERS
                && let Some(slab) = self.0.upgrade()
            {
                STARTED.set(STARTED.get() + 1);
                DEPTH.set(depth);
                start_and_end(&slab, Self(Weak::clone(&self.0)));
                DEPTH.set(depth - 1);
            }
        }
    }
    thread_local! {
        static STARTED: Cell<u64> = const { Cell::new(0) };
        static DROPPED: Cell<u64> = const { Cell::new(0) };
        static DEPTH: Cell<u32> = const { Cell::new(0) };
        static DEEPEST: Cell<u32> = const { Cell::new(0) };
        static LATE: RefCell<Option<Late>> = const { RefCell::new(None) };
    }
    /// How deep they were; `None` if they are not dropped.
    fn deepest() -> Option<u32> {
        STARTED.set(0);
        DROPPED.set(0);
        let slab = Arc::new(Slab::new(4));
        // What is retired meanwhile all comes back at once.
        let others_guard = crate::sync::epoch::pin();
        (0..TIMERS).for_each(|_| start_and_end(&slab, Key(Arc::downgrade(&slab))));
        drop(others_guard);
        let begin = Instant::now();
        while DROPPED.get() < TIMERS && begin.elapsed() < Duration::from_secs(60) {
            let ordinal = crate::thread::ordinal();
            let mut access = Access::new(&ordinal);
            access.guard.flush();
            slab.drop_ripe_keys(&mut access);
        }
        (DROPPED.get() >= TIMERS).then(|| DEEPEST.take())
    }
    struct Late(Sender<(bool, Option<u32>)>);
    impl Drop for Late {
        fn drop(&mut self) {
            let _ = self.0.send((crate::thread::ordinal().is_passing(), deepest()));
        }
    }

    let (sender, answers) = channel();
    std::thread::spawn(move || {
        // The first to be there is the last to go.
        LATE.with(|late| *late.borrow_mut() = Some(Late(sender.clone())));
        let _ = sender.send((crate::thread::ordinal().is_passing(), deepest()));
    });
    for passing in [false, true] {
        let (is_passing, deepest) = answers.recv_timeout(Duration::from_secs(120)).expect("the thread goes on");
        assert_eq!(is_passing, passing, "the thread's own number is gone at its end");
        assert!(deepest.is_some_and(|deepest| (1..=DEPTH_MAX).contains(&deepest)), "{deepest:?} on top of each other");
    }
}

/// Otherwise its keys, and its nodes, would become more and more.
#[cfg(not(miri))]
#[test]
fn a_slab_that_only_other_keys_destructors_use_drops_its_keys() {
    use std::sync::atomic::AtomicU64;

    struct Inner(Arc<AtomicU64>);
    impl Drop for Inner {
        fn drop(&mut self) {
            self.0.fetch_add(1, Relaxed);
        }
    }
    struct Outer(Arc<Slab<Inner, ()>>, Arc<AtomicU64>);
    impl Drop for Outer {
        fn drop(&mut self) {
            start_and_end(&self.0, Inner(Arc::clone(&self.1)));
        }
    }
    let (outer, inner, dropped) = (Arc::new(Slab::new(4)), Arc::new(Slab::new(4)), Arc::default());
    let begin = Instant::now();
    while AtomicU64::load(&dropped, Relaxed) < 1000 {
        assert!(begin.elapsed() < Duration::from_secs(60), "{dropped:?} are dropped");
        start_and_end(&outer, Outer(Arc::clone(&inner), Arc::clone(&dropped)));
    }
}

/// Has the timer of a new node begin and end, and retires that.
fn end<K: Send + Sync + 'static>(slab: &Arc<Slab<K, ()>>, node: Node<'_, K, ()>, access: &Access) {
    let word = &node.head.word;
    assert!(word.publish_first(State::Tentative, false, Deadline::NEVER));
    assert!(word.kill(word.load(), End::Done).is_ok() && word.unlink());
    slab.retire(node, access);
}

/// Starts a timer and ends it.
#[cfg(not(miri))]
fn start_and_end<K: Send + Sync + 'static>(slab: &Arc<Slab<K, ()>>, key: K) {
    let ordinal = crate::thread::ordinal();
    let mut access = Access::new(&ordinal);
    let node = slab.allocate(0, key, (), Deadline::NEVER, Repeats::Never, &mut access);
    let node = node.unwrap_or_else(|_| panic!("there are nodes"));
    end(slab, node, &access);
    slab.drop_ripe_keys(&mut access);
}

/// Batches that wait for their grace period, perhaps for long, do not keep the memory of a slab that nobody has any
/// more.
#[cfg(not(miri))]
#[test]
fn the_memory_goes_with_the_last_who_needs_it() {
    let slab = Arc::new(Slab::new(4));
    // So that nothing is collected meanwhile.
    let _guard = crate::sync::epoch::pin();
    (0..64).for_each(|key: u64| start_and_end(&slab, key));
    let last = Arc::downgrade(&slab);
    drop(slab);
    assert!(last.upgrade().is_none());
}

/// Runs `step` again and again, while another thread is stopped in the middle of every call, as it were: it is present,
/// and lets others run. On the same core, so that nothing comes back until they let it run in turn. False if that is
/// impossible.
#[cfg(not(miri))]
fn beside_a_stopped_thread(steps: usize, step: impl Fn() + Sync) -> bool {
    use std::sync::atomic::AtomicBool;

    let core = core_affinity::get_core_ids().and_then(|cores| cores.first().copied());
    let pin = || core.is_some_and(core_affinity::set_for_current);
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let present = scope.spawn(|| {
            pin();
            while !ended.load(Relaxed) {
                let _guard = crate::sync::epoch::pin();
                std::thread::yield_now();
            }
        });
        let caller = scope.spawn(|| {
            let is_pinned = pin();
            (0..steps).for_each(|_| step());
            is_pinned
        });
        let caller = caller.join();
        ended.store(true, Relaxed);
        present.join().expect("it does not panic");
        caller.expect("nor does this")
    })
}

#[cfg(not(miri))]
#[test]
fn a_caller_that_uses_up_the_nodes_lets_others_run() {
    let extent = || {
        let slab = Arc::new(Slab::new(BATCH));
        beside_a_stopped_thread(100_000, || start_and_end(&slab, 0)).then(|| slab.extent())
    };
    let most = 4 * BATCH * WAITING_BATCHES as u32;
    let start = Instant::now();
    // Calls of another test that take long, or are stopped, hold all up, wherever they are.
    while let Some(extent) = extent().filter(|&extent| extent >= most) {
        assert!(start.elapsed() < Duration::from_secs(60), "{extent} nodes for one timer at a time");
    }
}
