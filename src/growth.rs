//! What is done ahead of the callers while a shard grows: putting memory behind the nodes that they will need next, and
//! setting the new lines of an index that has become full.
//!
//! One thread does this for all shards. It is not pinned, because it waits for the system, which may take milliseconds
//! to clear a large page: meanwhile a worker could fire nothing, and a caller on the worker's core could not go on.
//! (The thread takes breaks, because it may be put on a caller's core: `runtime.rs`.) If callers are faster than it is,
//! the workers help with the lines. Nothing depends on this work: what has not been done in time, callers do
//! themselves, each its own part.

use crate::shard::{Access, NODES_MAX, Shard};
use crate::sync::EventCount;
use crate::thread;
use crossbeam_utils::CachePadded;
use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// At most this many lines are set at a time: by the thread, which then looks again how much memory the shards want;
/// and by a worker, whose timers wait meanwhile. Powers of two.
const SPLIT_MAX: u32 = 1024;
const HELP_MAX: u32 = 128;
/// How many nodes beyond those in use get memory: one for every sixteen in use, unless that is too few to be worth it,
/// or more bytes than callers need until the next look.
const POPULATE_SHARE: u32 = 16;
const POPULATE_MIN: u32 = 1 << 10;
const POPULATE_BYTES_MAX: usize = 6 << 20;

/// How far one shard is. All three figures only rise.
#[derive(Debug, Default)]
struct Progress {
    /// The first line of the index that nobody has taken on to set ahead of the callers.
    set: AtomicU32,
    /// The first line of the index that no memory was put behind ahead of time.
    backed: AtomicU32,
    /// The first node that no memory was put behind ahead of time, by the thread or the manual clock.
    populated: AtomicU32,
}

impl Progress {
    // Relaxed, here and below: reading an outdated figure wakes the thread in vain, or a later step finds the new one.

    /// The nodes that should get memory, if `extent` are in use, each of `node_bytes` bytes.
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
    /// Wakes the thread that works ahead.
    pub(crate) event: EventCount,
}

impl Growth {
    pub(crate) fn new(shard_count: usize) -> Self {
        Self { shards: (0..shard_count).map(|_| CachePadded::default()).collect(), event: EventCount::default() }
    }

    /// True if there is something to do for the shard `index`.
    pub(crate) fn is_due<K, V>(&self, index: usize, shard: &Shard<K, V>) -> bool
    where
        K: Eq + Send + Sync + 'static,
        V: Send + 'static,
    {
        let progress = &self.shards[index];
        progress.nodes_wanted(shard.extent(), Shard::<K, V>::NODE_BYTES).is_some()
            || progress.set.load(Relaxed) < shard.lines_end()
    }

    /// Does a piece of the shard's work; true if there is more.
    pub(crate) fn step<K, V>(&self, index: usize, shard: &Shard<K, V>) -> bool
    where
        K: Eq + Send + Sync + 'static,
        V: Send + 'static,
    {
        let progress = &self.shards[index];
        if let Some(nodes) = progress.nodes_wanted(shard.extent(), Shard::<K, V>::NODE_BYTES) {
            progress.populated.store(shard.populate(nodes), Relaxed);
        }
        let backed = progress.backed.load(Relaxed).max(1);
        if backed < shard.lines_end() {
            // The guard is held for no longer than one piece takes.
            let ordinal = thread::ordinal();
            progress.backed.store(shard.populate_lines(backed, &Access::new(&ordinal)), Relaxed);
            return true;
        }
        let next = progress.set.load(Relaxed);
        if next < shard.lines_end() {
            self.split(index, shard, next, SPLIT_MAX);
        }
        self.is_due(index, shard)
    }

    /// For a worker that has nothing else to do: sets a few lines if callers lack them by now. False if they do not, or
    /// if the lines need memory first: a worker does not wait for that.
    pub(crate) fn help<K, V>(&self, index: usize, shard: &Shard<K, V>) -> bool
    where
        K: Eq + Send + Sync + 'static,
        V: Send + 'static,
    {
        let wanted = self.line_wanted(index, shard);
        wanted.into_iter().for_each(|next| self.split(index, shard, next, HELP_MAX));
        wanted.is_some()
    }

    /// True if `help` would help.
    pub(crate) fn wants_help<K, V>(&self, index: usize, shard: &Shard<K, V>) -> bool
    where
        K: Eq + Send + Sync + 'static,
        V: Send + 'static,
    {
        self.line_wanted(index, shard).is_some()
    }

    /// The first line that nobody has taken on, if callers lack it and it needs no memory first.
    fn line_wanted<K, V>(&self, index: usize, shard: &Shard<K, V>) -> Option<u32>
    where
        K: Eq + Send + Sync + 'static,
        V: Send + 'static,
    {
        let progress = &self.shards[index];
        let next = progress.set.load(Relaxed);
        (shard.lacks_lines(next) && next < progress.backed.load(Relaxed)).then_some(next)
    }

    /// Sets some of the shard's lines from `next` on, of which it wants at least one; unless another thread is faster.
    fn split<K, V>(&self, index: usize, shard: &Shard<K, V>, next: u32, most: u32)
    where
        K: Eq + Send + Sync + 'static,
        V: Send + 'static,
    {
        // Fewer if there are many shards, since the others wait meanwhile. Up to a multiple, so that pieces begin where
        // large pages do.
        let most = (most >> self.shards.len().ilog2()).max(1);
        let end = shard.lines_end().min(next + most - next % most);
        // Relaxed: this only shares the lines out. A caller that needs one which is not set yet sets it itself.
        if self.shards[index].set.compare_exchange(next, end, Relaxed, Relaxed).is_err() {
            return;
        }
        let ordinal = thread::ordinal();
        let access = Access::new(&ordinal);
        shard.split_ahead(next, end - next, &access);
        // Arrays that are no longer needed should not wait until this thread has deferred more.
        access.guard.flush();
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

    /// So many that setting the lines they need takes longer than callers wait.
    const TIMERS: u64 = if cfg!(miri) { 1 << 11 } else { 200_000 };
    const HOUR: Duration = Duration::from_secs(3600);

    fn parts(clock: Clock) -> Parts<u64, (), std::hash::RandomState> {
        let builder: Builder<u64, ()> = Scheduler::builder().shards(1);
        builder.into_parts(clock, Executor::Inline, Callback::Plain(Box::new(|_, ()| {})))
    }

    /// True once the index has more room than callers would have made for themselves, and there is memory for more
    /// nodes.
    fn is_ahead(core: &Core<u64, ()>) -> bool {
        let shard = &core.shards[0];
        let has_lines = u64::from(shard.line_count()) * 9 >= TIMERS;
        let has_nodes = cfg!(miri) || core.growth.shards[0].populated.load(Relaxed) > shard.extent();
        has_lines && has_nodes && !core.growth.is_due(0, shard)
    }

    fn fill<S: std::hash::BuildHasher>(scheduler: &Scheduler<u64, (), S>) {
        for key in 0..TIMERS {
            scheduler.schedule(key, HOUR).expect("it is open and not full");
        }
    }

    #[test]
    fn a_worker_helps_until_callers_have_the_lines_that_they_use() {
        let Parts { core, runner, hasher, .. } = parts(Clock::manual(Duration::from_millis(1), Tick(0)));
        let scheduler = Scheduler::new(Arc::clone(&core), runner, hasher, Vec::new());
        let (growth, shard) = (&core.growth, &core.shards[0]);
        while growth.step(0, shard) {}
        assert!(!growth.help(0, shard), "nobody lacks anything");
        fill(&scheduler);
        let doubled_by_callers = shard.line_count();
        assert!(!growth.help(0, shard), "there is memory to be had first");
        while growth.shards[0].backed.load(Relaxed) < shard.lines_end() {
            assert!(growth.step(0, shard));
        }
        while growth.help(0, shard) {}
        assert!(growth.shards[0].set.load(Relaxed) >= 2 * doubled_by_callers);
        assert_eq!(shard.line_count(), doubled_by_callers, "the rest is not for the worker");
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
        core.shards[0].assert_array_alone();
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
            // Wakes the worker: it may not have seen the last timers yet, which are due far ahead.
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
