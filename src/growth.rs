//! What is done ahead of the callers while a shard grows: memory behind the nodes that they will need next, and the new
//! buckets of an index that has become full.
//!
//! It has a thread of its own, which nobody pins, for it waits for the system, which may take milliseconds to clear a large
//! page: meanwhile a worker could fire nothing, and a caller on the worker's core could not go on. (It has breaks, for it may be
//! put on a caller's core: `runtime.rs`.) One thread serves all shards. If callers are faster, the workers help with the buckets.
//! Nothing depends on it: what has not been done in time, callers do themselves, each its own part.

use crate::shard::{Access, NODES_MAX, Shard};
use crate::sync::Event;
use crate::thread;
use crossbeam_utils::CachePadded;
use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// Buckets linked in between two looks at how much memory the shards want, at most; and by a worker, whose timers wait meanwhile.
/// Powers of two.
const LINK_MAX: u32 = 4096;
const HELP_MAX: u32 = 512;
/// Memory is put behind so many further nodes: one for every sixteen, unless that is too few to be worth it, or more bytes
/// than callers need until the next look.
const POPULATE_SHARE: u32 = 16;
const POPULATE_MIN: u32 = 1 << 10;
const POPULATE_BYTES_MAX: usize = 6 << 20;

/// How far one shard is. Both figures only rise.
#[derive(Debug, Default)]
struct Progress {
    /// The first bucket of the index that nobody links in.
    linked: AtomicU32,
    /// The first node without memory behind it, as far as anybody has seen to that: the thread, or the manual clock.
    populated: AtomicU32,
}

impl Progress {
    // Relaxed, here and below: who reads an older figure than there is calls for nothing, or finds it in a later step.

    /// The nodes that memory should be put behind, of `extent` in use, each of so many bytes.
    fn nodes_wanted(&self, extent: u32, node_bytes: usize) -> Option<Range<u32>> {
        let ahead = (extent / POPULATE_SHARE).min((POPULATE_BYTES_MAX / node_bytes) as u32);
        let populated = self.populated.load(Relaxed);
        let is_short = ahead >= POPULATE_MIN && populated < extent + ahead - ahead / 4;
        let wanted = populated.max(extent)..NODES_MAX.min(extent + ahead);
        (is_short && !wanted.is_empty()).then_some(wanted)
    }
}

/// The growth of all shards.
#[derive(Debug)]
pub(crate) struct Growth {
    shards: Box<[CachePadded<Progress>]>,
    /// Wakes the thread whose business it is.
    pub(crate) event: Event,
}

impl Growth {
    pub(crate) fn new(shard_count: usize) -> Self {
        Self { shards: (0..shard_count).map(|_| CachePadded::default()).collect(), event: Event::default() }
    }

    /// True if there is something to do for the shard `index`.
    pub(crate) fn is_due<K, V>(&self, index: usize, shard: &Shard<K, V>) -> bool
    where
        K: Eq + Send + Sync + 'static,
        V: Send + 'static,
    {
        let progress = &self.shards[index];
        progress.nodes_wanted(shard.extent(), Shard::<K, V>::NODE_BYTES).is_some()
            || progress.linked.load(Relaxed) < shard.buckets_wanted()
    }

    /// Does a piece of it; true if there is more.
    pub(crate) fn step<K, V>(&self, index: usize, shard: &Shard<K, V>) -> bool
    where
        K: Eq + Send + Sync + 'static,
        V: Send + 'static,
    {
        let progress = &self.shards[index];
        if let Some(nodes) = progress.nodes_wanted(shard.extent(), Shard::<K, V>::NODE_BYTES) {
            progress.populated.store(shard.populate(nodes), Relaxed);
        }
        let next = progress.linked.load(Relaxed);
        if next < shard.buckets_wanted() {
            self.link(index, shard, next, LINK_MAX);
        }
        self.is_due(index, shard)
    }

    /// For a worker that has nothing else to do: a small piece of it, if callers are ahead by now; false if they are not, or there is
    /// memory to be had first, for which a worker does not wait.
    pub(crate) fn help<K, V>(&self, index: usize, shard: &Shard<K, V>) -> bool
    where
        K: Eq + Send + Sync + 'static,
        V: Send + 'static,
    {
        let next = self.shards[index].linked.load(Relaxed);
        let helps = shard.lacks_buckets(next) && !shard.populates_buckets(next);
        if helps {
            self.link(index, shard, next, HELP_MAX);
        }
        helps
    }

    /// Links some of the shard's buckets in, from `next` on, of which it wants some; unless somebody else is faster.
    fn link<K, V>(&self, index: usize, shard: &Shard<K, V>, next: u32, most: u32)
    where
        K: Eq + Send + Sync + 'static,
        V: Send + 'static,
    {
        // Fewer if there are many shards, for the others wait meanwhile. Up to a multiple, so that pieces begin where large pages do.
        let most = (most >> self.shards.len().ilog2()).max(1);
        let end = shard.buckets_wanted().min(next + most - next % most);
        // Relaxed: it only shares the buckets out. Whoever needs one that is not linked in yet does that himself.
        if self.shards[index].linked.compare_exchange(next, end, Relaxed, Relaxed).is_err() {
            return;
        }
        // Before the guard, under which memory is not reused: the system may take its time.
        shard.populate_buckets(next);
        let ordinal = thread::ordinal();
        shard.link_ahead(next, end - next, &Access::new(&ordinal));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::builder::{Builder, Parts};
    use crate::callback::Callback;
    use crate::clock::Clock;
    use crate::executor::Executor;
    use crate::service::Core;
    use crate::shard::Tick;
    use crate::{ManualClock, Scheduler, runtime};
    use std::sync::Arc;
    use std::time::{Duration, Instant};

    /// A few more than a quarter of a million buckets are enough for.
    const TIMERS: u64 = if cfg!(miri) { 1 << 11 } else { 200_000 };
    const HOUR: Duration = Duration::from_secs(3600);

    fn parts(clock: Clock) -> Parts<u64, (), std::hash::RandomState> {
        let builder: Builder<u64, ()> = Scheduler::builder().shards(1);
        builder.into_parts(clock, Executor::Inline, Callback::Plain(Box::new(|_, ()| {})))
    }

    /// True once the index has more room than callers would have made for themselves, and there is memory for more nodes.
    fn is_ahead(core: &Core<u64, ()>) -> bool {
        let shard = &core.shards[0];
        let has_buckets = u64::from(shard.bucket_count()) * 3 >= 4 * TIMERS;
        let has_nodes = cfg!(miri) || core.growth.shards[0].populated.load(Relaxed) > shard.extent();
        has_buckets && has_nodes && !core.growth.is_due(0, shard)
    }

    fn fill<S: std::hash::BuildHasher>(scheduler: &Scheduler<u64, (), S>) {
        for key in 0..TIMERS {
            scheduler.schedule(key, HOUR).expect("it is open and not full");
        }
    }

    #[test]
    fn a_worker_helps_until_callers_have_the_buckets_that_they_use() {
        let Parts { core, runner, hasher, .. } = parts(Clock::manual(Duration::from_millis(1), Tick(0)));
        let scheduler = Scheduler::new(Arc::clone(&core), runner, hasher, Vec::new());
        let (growth, shard) = (&core.growth, &core.shards[0]);
        while growth.step(0, shard) {}
        assert!(!growth.help(0, shard), "nobody lacks anything");
        fill(&scheduler);
        let doubled_by_callers = shard.bucket_count();
        while growth.help(0, shard) {}
        assert!(growth.shards[0].linked.load(Relaxed) >= doubled_by_callers);
        assert_eq!(shard.bucket_count(), doubled_by_callers, "the rest is not for the worker");
        assert!(growth.is_due(0, shard));
    }

    #[test]
    fn a_manual_clock_works_ahead_as_time_moves() {
        let Parts { core, runner, hasher, .. } = parts(Clock::manual(Duration::from_millis(1), Tick(0)));
        let scheduler = Scheduler::new(Arc::clone(&core), runner, hasher, Vec::new());
        let clock = ManualClock::new(Arc::clone(&core));
        fill(&scheduler);
        assert!(!is_ahead(&core));
        clock.advance(Duration::from_millis(1));
        assert!(is_ahead(&core));
    }

    #[test]
    #[cfg_attr(miri, ignore = "takes minutes there")]
    fn a_thread_works_ahead_once_a_worker_calls_it() {
        let Parts { core, runner, hasher, pinning, thread_name } =
            parts(Clock::system(Duration::from_millis(1), Tick(0)));
        let threads = runtime::start(&core, &runner, &pinning, &thread_name, false).expect("the system has threads");
        let scheduler = Scheduler::new(Arc::clone(&core), runner, hasher, threads);
        fill(&scheduler);
        let start = Instant::now();
        while !is_ahead(&core) {
            assert!(start.elapsed() < Duration::from_secs(60), "nobody works ahead");
            // Wakes the worker: it need not have seen the last timers yet, whose time is far.
            scheduler.schedule(TIMERS, Duration::ZERO).expect("it is open and not full");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn memory_is_wanted_ahead_of_many_nodes_and_never_beyond_the_last() {
        let wanted = |populated, extent| {
            Progress { populated: AtomicU32::new(populated), ..Progress::default() }.nodes_wanted(extent, 48)
        };
        let most = POPULATE_BYTES_MAX as u32 / 48;
        assert_eq!(wanted(0, POPULATE_MIN * POPULATE_SHARE - 1), None);
        let extent = POPULATE_MIN * POPULATE_SHARE;
        let full = extent + POPULATE_MIN;
        assert_eq!(wanted(0, extent), Some(extent..full));
        assert_eq!(wanted(full, extent), None);
        assert_eq!(wanted(extent + POPULATE_MIN / 2, extent), Some(extent + POPULATE_MIN / 2..full));
        assert_eq!(wanted(0, 100 * most), Some(100 * most..101 * most));
        assert_eq!(wanted(0, NODES_MAX - 1), Some(NODES_MAX - 1..NODES_MAX));
        assert_eq!([0, NODES_MAX].map(|populated| wanted(populated, NODES_MAX)), [None, None]);
    }
}
