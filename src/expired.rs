//! Timers that have expired together, and what becomes of them: their callbacks run, and then they are finished.

use crate::callback::{Callback, Comeback, IsDue, Next, PanicHook, come_back, drop_quietly, run_one};
use crate::counters::Event;
use crate::executor::Executor;
use crate::handout::Handout;
use crate::service::Core;
use crate::shard::{Access, Claim, ClaimedNode, Shard, Tick};
use crate::thread;
use std::mem::needs_drop;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// So many at most wait to be finished while one thread runs further callbacks: a slow one shall not keep all those before it.
pub(crate) const UNFINISHED_MAX: usize = 256;

/// What runs when timers expire. Kept by the schedulers' handles, the workers' threads and the batches under way: whoever
/// claims timers holds one.
pub(crate) struct Runner<K, V> {
    pub(crate) callback: Callback<K, V>,
    pub(crate) on_panic: Option<PanicHook<K>>,
    pub(crate) executor: Executor,
}

/// Claimed timers of one shard, for any number of threads. However it ends, each of them is run once, or lost, and finished.
pub(crate) struct Batch<K: Eq + Send + Sync + 'static, V: Send + 'static> {
    pub(crate) core: Arc<Core<K, V>>,
    pub(crate) runner: Arc<Runner<K, V>>,
    pub(crate) shard_number: usize,
    pub(crate) is_due: IsDue,
    /// When they were due that fire because of that; and how many one after the other.
    dues: Vec<(Tick, u64)>,
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
        let dues = if is_due == IsDue::Yes { dues(&claims, core.shards[shard_number].hand()) } else { Vec::new() };
        Self { core, runner, shard_number, is_due, dues, waiting: Handout::new(claims) }
    }

    pub(crate) fn shard(&self) -> &Shard<K, V> {
        &self.core.shards[self.shard_number]
    }

    /// How many timers no thread has taken.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Runs what waits; for the first thread that does so.
    pub(crate) fn run_first(&self) {
        let clock = &self.core.clock;
        let now = clock.now();
        let lateness = |&(due, count)| (now.0.saturating_sub(clock.start_of(due).0), count);
        self.core.reports[self.shard_number].lateness.record(self.dues.iter().map(lateness));
        self.run();
    }

    /// Runs what waits, one after the other. Nothing in here waits for another thread. (With `rayon::join` a thread whose other
    /// half was stolen would run further batches meanwhile, on top of its stack, and of a backlog as many as there are.)
    pub(crate) fn run(&self) {
        let mut taken = Taken::of(self);
        while let Some(claim) = self.take() {
            taken.run(claim);
        }
    }

    fn take(&self) -> Option<Claim> {
        let claim = self.waiting.take()?;
        // Relaxed: a count.
        self.core.reports[self.shard_number].waiting.fetch_sub(1, Relaxed);
        Some(claim)
    }
}

/// When timers were due, and how many one after the other: neighbours mostly at the same time.
fn dues(claims: &[Claim], near: Tick) -> Vec<(Tick, u64)> {
    let mut dues: Vec<(Tick, u64)> = Vec::new();
    for due in claims.iter().filter_map(|claim| claim.due(near)) {
        match dues.last_mut() {
            Some((last, count)) if *last == due => *count += 1,
            _ => dues.push((due, 1)),
        }
    }
    dues
}

/// Timers that were not run (a custom executor dropped the job) drop their values here.
impl<K: Eq + Send + Sync + 'static, V: Send + 'static> Drop for Batch<K, V> {
    fn drop(&mut self) {
        if self.waiting() == 0 {
            return;
        }
        let mut taken = Taken::of(self);
        while let Some(claim) = self.take() {
            taken.lose(claim);
        }
    }
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

    fn run(&mut self, claim: Claim) {
        if self.nodes.len() == UNFINISHED_MAX {
            self.finish();
        }
        let shard = self.batch.shard();
        let repeats = claim.repeats;
        let due = if repeats { claim.due(shard.hand()) } else { None };
        let (node, value) = shard.take_value(claim);
        // First ours, so that we finish it whatever happens.
        let place = self.nodes.len();
        self.nodes.push(node);
        if let Some((value, comeback)) = run_one(self.batch, &self.nodes[place], value, repeats) {
            let node = self.nodes.remove(place);
            self.nodes.extend(come_back(self.batch, node, value, due, comeback));
        }
    }

    fn lose(&mut self, claim: Claim) {
        let core = &self.batch.core;
        core.counters.add(&thread::ordinal(), Event::CallbackLost, 1);
        let repeats = claim.repeats;
        let (node, value) = self.batch.shard().take_value(claim);
        if repeats {
            self.nodes.extend(come_back(self.batch, node, value, None, Comeback::AsAnswered(Next::Done)));
        } else {
            self.nodes.push(node);
            drop_quietly(value);
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
