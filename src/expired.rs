//! Timers that have expired together, and what becomes of them: their callbacks run, and then they are finished.

use crate::callback::{Callback, Comeback, Next, PanicHook, come_back, drop_quietly, run_one};
use crate::counters::Event;
use crate::executor::Executor;
use crate::handout::Handout;
use crate::service::Core;
use crate::shard::{Access, Claim, ClaimedNode, PREFETCH_AHEAD, Shard, Tick};
use crate::thread;
use std::mem::needs_drop;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// So many at most wait to be finished while one thread runs further callbacks: a slow one shall not keep all those before it.
const UNFINISHED_MAX: usize = 256;

/// What runs when timers expire. Kept by the schedulers' handles, the workers' threads and the batches under way: whoever
/// claims timers holds one.
pub(crate) struct Runner<K, V> {
    pub(crate) callback: Callback<K, V>,
    pub(crate) on_panic: Option<PanicHook<K>>,
    pub(crate) executor: Executor,
}

/// Whether timers fire because it is time; else they have no lateness.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum IsDue {
    Yes,
    No,
}

/// Claimed timers of one shard, for any number of threads. Each of them is run, or lost with the batch, once; and then finished.
pub(crate) struct Batch<K: Eq + Send + Sync + 'static, V: Send + 'static> {
    pub(crate) core: Arc<Core<K, V>>,
    pub(crate) runner: Arc<Runner<K, V>>,
    pub(crate) shard_number: usize,
    pub(crate) is_due: IsDue,
    /// When they were due that fire because of that; and how many one after the other.
    dues: Vec<(Tick, u64)>,
    /// Some thread has begun to run them.
    has_begun: AtomicBool,
    waiting: Handout<Claim>,
}

impl<K: Eq + Send + Sync + 'static, V: Send + 'static> Batch<K, V> {
    pub(crate) fn new(
        core: Arc<Core<K, V>>,
        runner: Arc<Runner<K, V>>,
        shard_number: usize,
        is_due: IsDue,
        claims: Vec<Claim>,
    ) -> Self {
        let near = core.shards[shard_number].hand();
        let due = |claim: &Claim| claim.due(near).filter(|_| is_due == IsDue::Yes);
        let dues = runs(claims.iter().filter_map(due));
        let (has_begun, waiting) = (AtomicBool::new(false), Handout::new(claims));
        Self { core, runner, shard_number, is_due, dues, has_begun, waiting }
    }

    pub(crate) fn shard(&self) -> &Shard<K, V> {
        &self.core.shards[self.shard_number]
    }

    /// How many timers no thread has taken.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Runs what waits, one after the other. Nothing in here waits for another thread. (With `rayon::join` a thread whose other
    /// half was stolen would run further batches meanwhile, on top of its stack, and of a backlog as many as there are.)
    pub(crate) fn run(&self) {
        // Relaxed: who is the first; nothing is published. (The thread that got the batch may come after those that were called to help.)
        if !self.has_begun.swap(true, Relaxed) {
            self.record_lateness();
        }
        let mut taken = Taken::of(self);
        while let Some(claim) = self.take() {
            taken.end(claim, |node, value, repeats| run_one(self, node, value, repeats));
        }
    }

    fn record_lateness(&self) {
        let clock = &self.core.clock;
        let now = clock.now();
        let lateness = |&(due, count)| (now.0.saturating_sub(clock.start_of(due).0), count);
        self.core.reports[self.shard_number].lateness.record(self.dues.iter().map(lateness));
    }

    #[inline]
    fn take(&self) -> Option<Claim> {
        // Whoever claimed what is due has just looked at it.
        if self.is_due == IsDue::No
            && let Some(ahead) = self.waiting.ahead(PREFETCH_AHEAD)
        {
            self.shard().prefetch_node(ahead.node());
        }
        let claim = self.waiting.take()?;
        // Relaxed: a count.
        self.core.reports[self.shard_number].waiting.fetch_sub(1, Relaxed);
        Some(claim)
    }
}

/// How many are alike one after the other: deadlines mostly are.
fn runs(ticks: impl Iterator<Item = Tick>) -> Vec<(Tick, u64)> {
    let mut runs: Vec<(Tick, u64)> = Vec::new();
    for tick in ticks {
        match runs.last_mut() {
            Some((last, count)) if *last == tick => *count += 1,
            _ => runs.push((tick, 1)),
        }
    }
    runs
}

/// Timers that were not run (a custom executor dropped the job) drop their values here.
impl<K: Eq + Send + Sync + 'static, V: Send + 'static> Drop for Batch<K, V> {
    fn drop(&mut self) {
        if self.waiting() == 0 {
            return;
        }
        let mut taken = Taken::of(self);
        while let Some(claim) = self.take() {
            self.core.counters.add(&thread::ordinal(), Event::CallbackLost, 1);
            taken.end(claim, |_, value, repeats| lose(value, repeats));
        }
    }
}

/// Of a timer that is not run; one that repeats has ended, too.
fn lose<V>(value: V, repeats: bool) -> Option<(V, Comeback)> {
    if repeats {
        return Some((value, Comeback::AsAnswered(Next::Done)));
    }
    drop_quietly(value);
    None
}

/// What one thread has taken out of a batch: nodes whose keys are needed no more, but for the last one's while its callback runs.
struct Taken<'a, K: Eq + Send + Sync + 'static, V: Send + 'static> {
    batch: &'a Batch<K, V>,
    nodes: Vec<ClaimedNode>,
}

impl<'a, K: Eq + Send + Sync + 'static, V: Send + 'static> Taken<'a, K, V> {
    fn of(batch: &'a Batch<K, V>) -> Self {
        Self { batch, nodes: Vec::with_capacity(batch.waiting().min(UNFINISHED_MAX)) }
    }

    /// Does with a timer's value what `end` says; it answers when one that repeats is to come back.
    fn end(&mut self, claim: Claim, end: impl FnOnce(&ClaimedNode, V, bool) -> Option<(V, Comeback)>) {
        if self.nodes.len() == UNFINISHED_MAX {
            self.finish();
        }
        let shard = self.batch.shard();
        let repeats = claim.repeats;
        // The shard's hand is as near as anything: nobody keeps a batch for 2^58 ticks.
        let due = if repeats { claim.due(shard.hand()) } else { None };
        let (node, value) = shard.take_value(claim);
        // First ours, so that we finish it whatever happens.
        let place = self.nodes.len();
        self.nodes.push(node);
        if let Some((value, comeback)) = end(&self.nodes[place], value, repeats) {
            let node = self.nodes.pop().expect("it was pushed");
            self.nodes.extend(come_back(self.batch, node, value, due, comeback));
        }
    }

    fn finish(&mut self) {
        let ordinal = thread::ordinal();
        let access = Access::new(&ordinal);
        let shard = self.batch.shard();
        let with_keys = if needs_drop::<K>() { self.nodes.iter().map(ClaimedNode::node).collect() } else { Vec::new() };
        self.nodes.drain(..).for_each(|node| shard.finish(node, &access));
        self.batch.core.drop_keys_of(self.batch.shard_number, &with_keys);
    }
}

impl<K: Eq + Send + Sync + 'static, V: Send + 'static> Drop for Taken<'_, K, V> {
    fn drop(&mut self) {
        if !self.nodes.is_empty() {
            self.finish();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::builder::{Builder, Parts};
    use crate::clock::{Clock, Nanos};
    use crate::scheduler::Scheduler;
    use crate::shard::Purpose;
    use std::time::Duration;

    /// That may be one that was called to help, before the one that got the batch.
    #[test]
    fn the_thread_that_begins_tells_the_lateness() {
        let ms = Duration::from_millis(1);
        let builder: Builder<u64, ()> = Scheduler::builder().shards(1);
        let callback = Callback::Plain(Box::new(|_, ()| {}));
        let Parts { core, runner, hasher, .. } =
            builder.into_parts(Clock::manual(ms, Tick(0)), Executor::Inline, callback);
        let scheduler = Scheduler::new(Arc::clone(&core), Arc::clone(&runner), hasher, Vec::new());
        (0..2).for_each(|key| assert!(scheduler.schedule(key, ms).is_ok()));
        let (shard, ordinal) = (&core.shards[0], thread::ordinal());
        let access = Access::new(&ordinal);
        let mut claims = Vec::new();
        shard.identities(|timer| claims.extend(shard.claim_this(timer, Purpose::Fire, &access)));
        drop(access);
        core.reports[0].waiting.fetch_add(claims.len() as u64, Relaxed);
        let batch = Batch::new(Arc::clone(&core), runner, 0, IsDue::Yes, claims);
        for millis in [3, 9] {
            core.clock.set(Nanos(millis * 1_000_000));
            batch.run();
        }
        assert_eq!(scheduler.stats().lateness.max, 2 * ms);
    }

    #[test]
    fn runs_tell_each_tick_as_often_as_it_is_there() {
        let ticks = |ticks: &[u64]| runs(ticks.iter().copied().map(Tick));
        assert_eq!(ticks(&[7, 7, 8, 7]), [(Tick(7), 2), (Tick(8), 1), (Tick(7), 1)]);
        assert_eq!(ticks(&[]), []);
    }
}
