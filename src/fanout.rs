//! From expiry to callback: batches of claimed timers, handed to whoever runs them.
//!
//! To wake a thread costs more than to run some quick callbacks. So one thread gets a batch, and the worker keeps an eye on it
//! ([`Watch`]): if after [`PATIENCE`] some of its timers still wait, for a slow callback perhaps, threads of the pool are called,
//! one by the other, until nothing waits or all are there. Where no worker is at hand (`close`), they are called at once.
//!
//! With a pool of the scheduler's own, that one thread is the shard's [`CallbackThread`], unless it is busy; or that of the [`Lane`], if
//! several others have expired just before, in whatever shards. With a pool of the user's, it is one of that pool: it is for the user to say
//! how many callbacks run at a time.

use crate::callback::Inside;
use crate::callback_thread::{CallbackThread, Run};
use crate::clock::Nanos;
use crate::counters::Event;
use crate::executor::{Executor, Job};
use crate::expired::{Batch, IsDue};
use crate::lane::Lane;
use crate::service::Core;
use crate::shard::Claim;
use crate::thread;
use crate::under_way::Phase;
use crate::unwind::{caught, quietly};
use rayon::ThreadPool;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

/// Timers in one job for the executor, at most; one step's go to a callback thread together.
const BATCH_MAX: usize = 256;
/// How long one thread has a batch to itself, from the hand-over on.
const PATIENCE: Duration = Duration::from_millis(1);
/// A worker that is awake anyway takes back after [`PATIENCE`] what the lane's thread has not begun with; else it wakes up for that only
/// after so long: as a rule there is nothing to take back, and to wake up costs as much as the lane has saved.
const LANE_PATIENCE: Duration = Duration::from_millis(4);

/// The threads that get a shard's batches first, with a pool of the scheduler's own.
pub(crate) struct First {
    pub(crate) own: CallbackThread,
    /// For all shards, if there are many.
    pub(crate) lane: Option<Arc<Lane>>,
}

/// What a worker has for its batches.
pub(crate) struct Watch<K: Eq + Send + Sync + 'static, V: Send + 'static> {
    /// `None` without a pool of the scheduler's own.
    first: Option<First>,
    /// Those handed over that may need more than one thread, the oldest first.
    batches: VecDeque<Watched<K, V>>,
    /// The last one left in the lane, if it may be there still.
    in_lane: Option<Watched<K, V>>,
}

struct Watched<K: Eq + Send + Sync + 'static, V: Send + 'static> {
    /// When it was handed over.
    since: Nanos,
    batch: Arc<Batch<K, V>>,
}

/// Hands claimed timers of one shard to the executor. The caller holds no `Access`, since callbacks may run right here.
/// A worker keeps watch over what several threads may share. `entered` is where the caller entered before it claimed them.
pub(crate) fn hand_over<K, V>(
    core: &Arc<Core<K, V>>,
    shard_number: usize,
    claims: Vec<Claim>,
    entered: Phase,
    is_due: IsDue,
    mut watch: Option<&mut Watch<K, V>>,
) where
    K: Eq + Send + Sync + 'static,
    V: Send + 'static,
{
    let under_way = &core.under_way[shard_number];
    if claims.is_empty() {
        return under_way.leave(entered);
    }
    let runner = core.runner.upgrade().expect("whoever claims timers holds the runner");
    let count = claims.len();
    // Relaxed: counts.
    core.reports[shard_number].waiting.fetch_add(count as u64, Relaxed);
    let ordinal = thread::ordinal();
    core.counters.add(&ordinal, Event::Fired, count as u64);
    // One that may come back keeps its room.
    core.capacity.give(&ordinal, claims.iter().filter(|claim| !claim.repeats).count());
    let has_first = watch.as_ref().is_some_and(|watch| watch.first.is_some());
    let mut give = |claims| {
        let batch = Batch::new(Arc::clone(core), Arc::clone(&runner), shard_number, is_due, claims, entered);
        execute(Arc::new(batch), watch.as_deref_mut());
    };
    if has_first || count <= BATCH_MAX {
        return give(claims);
    }
    under_way.enter_beside(entered, count.div_ceil(BATCH_MAX) - 1);
    let mut claims = claims.into_iter();
    while claims.len() > 0 {
        give(claims.by_ref().take(BATCH_MAX).collect());
    }
}

/// One job per batch, never per timer. (rayon#642)
///
/// Jobs run, and let go of their batch, quietly: it may hold the last of what the callback has captured, whose destructors may panic.
fn execute<K, V>(batch: Arc<Batch<K, V>>, watch: Option<&mut Watch<K, V>>)
where
    K: Eq + Send + Sync + 'static,
    V: Send + 'static,
{
    match batch.runner.executor.clone() {
        Executor::Inline => _ = batch.run(),
        Executor::Rayon(pool) => run_on(batch, &pool, watch),
        Executor::Custom(custom) => {
            let job = Job(Box::new(move || quietly(move || _ = batch.run())));
            let _inside = Inside::new();
            // A panicking executor has dropped the job; the worker goes on.
            let _ = caught(|| custom(job));
        }
    }
}

/// Gives the batch to one thread, in such a way that others of the pool may join in, if there is any use in that.
fn run_on<K, V>(batch: Arc<Batch<K, V>>, pool: &ThreadPool, watch: Option<&mut Watch<K, V>>)
where
    K: Eq + Send + Sync + 'static,
    V: Send + 'static,
{
    // Nobody else has it yet.
    let is_alone = batch.waiting() == 1;
    let watched = |has_others: bool| (has_others && !is_alone).then(|| Watched::new(&batch));
    let has_others = pool.current_num_threads() > 1;
    match watch {
        Some(watch) => {
            watch.batches.extend(watched(has_others || watch.first.is_some()));
            watch.give(batch, pool);
        }
        None => {
            let watched = watched(has_others);
            spawn(None, pool, Box::new(move || batch.run()));
            watched.into_iter().for_each(Watched::call_help);
        }
    }
}

/// Runs what waits, together with one more thread of the pool that does the same, and so calls the next.
fn run_with_others<K, V>(batch: Arc<Batch<K, V>>)
where
    K: Eq + Send + Sync + 'static,
    V: Send + 'static,
{
    if batch.waiting() > 1 {
        let other = Arc::clone(&batch);
        rayon::spawn(move || quietly(move || run_with_others(other)));
    }
    batch.run();
}

/// Has the shard's own thread call it, or else one of the pool.
fn spawn(first: Option<&First>, pool: &ThreadPool, run: Run) {
    let left = match first {
        Some(first) => first.own.try_give(run).err(),
        None => Some(run),
    };
    left.into_iter().for_each(|run| pool.spawn(|| quietly(|| _ = run())));
}

impl<K: Eq + Send + Sync + 'static, V: Send + 'static> Watch<K, V> {
    pub(crate) fn new(first: Option<First>) -> Self {
        Self { first, batches: VecDeque::new(), in_lane: None }
    }

    /// Has the batch run where it is done soonest, and for the least.
    fn give(&mut self, batch: Arc<Batch<K, V>>, pool: &ThreadPool) {
        let lane = self.first.as_ref().and_then(|first| first.lane.as_ref()).filter(|lane| lane.is_worth_it());
        let Some(lane) = lane else {
            // First what is older.
            self.clear_lane();
            return spawn(self.first.as_ref(), pool, Box::new(move || batch.run()));
        };
        let (shard_number, count) = (batch.shard_number, batch.waiting());
        self.in_lane = Some(Watched::new(&batch));
        let before = lane.leave(shard_number, count, Box::new(move || batch.run()));
        before.into_iter().for_each(|run| spawn(self.first.as_ref(), pool, run));
    }

    /// Calls more threads for what has waited too long.
    pub(crate) fn call_help(&mut self, now: Nanos) {
        while self.batches.front().is_some_and(|oldest| oldest.batch.waiting() == 0 || oldest.is_overdue(now)) {
            self.batches.pop_front().into_iter().for_each(Watched::call_help);
        }
        if self.in_lane.as_ref().is_some_and(|last| last.is_overdue(now)) {
            self.clear_lane();
        }
    }

    /// What the lane's thread has not begun with goes where it would have gone without.
    fn clear_lane(&mut self) {
        if let Some(Watched { batch, .. }) = self.in_lane.take()
            && let Some(first) = &self.first
            && let Executor::Rayon(pool) = &batch.runner.executor
            && let Some(run) = first.lane.as_ref().and_then(|lane| lane.take_back(batch.shard_number))
        {
            spawn(Some(first), pool, run);
        }
    }

    /// How long from `now` on nobody needs help; `None` if there is nothing to watch.
    pub(crate) fn patience_left(&self, now: Nanos) -> Option<Duration> {
        let oldest = self.batches.front().map(|oldest| oldest.patience_left(PATIENCE, now));
        // One that is empty is nothing to wake up for.
        let in_lane = self.in_lane.as_ref().filter(|last| last.batch.waiting() > 0);
        oldest.into_iter().chain(in_lane.map(|last| last.patience_left(LANE_PATIENCE, now))).min()
    }
}

/// A worker that ends leaves nobody waiting behind a slow callback.
impl<K: Eq + Send + Sync + 'static, V: Send + 'static> Drop for Watch<K, V> {
    fn drop(&mut self) {
        self.clear_lane();
        self.batches.drain(..).for_each(Watched::call_help);
    }
}

impl<K: Eq + Send + Sync + 'static, V: Send + 'static> Watched<K, V> {
    /// From now on.
    fn new(batch: &Arc<Batch<K, V>>) -> Self {
        Self { since: batch.core.clock.now(), batch: Arc::clone(batch) }
    }

    fn patience_left(&self, patience: Duration, now: Nanos) -> Duration {
        patience.saturating_sub(Duration::from_nanos(now.0.saturating_sub(self.since.0)))
    }

    fn is_overdue(&self, now: Nanos) -> bool {
        self.patience_left(PATIENCE, now).is_zero()
    }

    fn call_help(self) {
        if self.batch.waiting() > 0
            && let Executor::Rayon(pool) = self.batch.runner.executor.clone()
        {
            pool.spawn(move || quietly(move || run_with_others(self.batch)));
        }
    }
}
