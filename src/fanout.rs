//! From expiry to callback: batches of claimed timers, handed to the threads that run them.
//!
//! Waking a thread costs more than running a few quick callbacks. So one thread gets a batch, and the worker watches it
//! ([`Watch`]). If some of its timers still wait after [`PATIENCE`], perhaps behind a slow callback, threads of the
//! pool are called: each calls the next, until nothing waits or all are there. Where no worker watches (`close`), they
//! are called at once.
//!
//! With a pool of the scheduler's own, that one thread is the shard's [`CallbackThread`], or one of the pool if that is
//! busy; or it is the [`Lane`]'s, if the lookout takes the worker's steps (`crew.rs`), or if several other batches have
//! expired just before, in any shards. With a pool of the user's, it is one of that pool: the user decides how many
//! callbacks run at a time.

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

/// At most this many timers are in one job for the executor. A callback thread gets all timers of one step together.
const BATCH_MAX: usize = 256;
/// How long one thread has a batch to itself, from the hand-over on.
const PATIENCE: Duration = Duration::from_millis(1);
/// What the lane's thread has not begun is taken back after this, if the worker has to wake up for it; after
/// [`PATIENCE`] if the worker is awake anyway, or the lookout would be. As a rule there is nothing to take back, and
/// waking up costs as much as the lane has saved.
const LANE_PATIENCE: Duration = Duration::from_millis(4);

/// The threads that get a shard's batches first, with a pool of the scheduler's own.
pub(crate) struct CallbackThreads {
    pub(crate) own: CallbackThread,
    /// Shared by all shards, if there are several.
    pub(crate) lane: Option<Arc<Lane>>,
}

/// What a worker keeps for its batches: who gets them first, and which may need help.
pub(crate) struct Watch<K: Eq + Send + Sync + 'static, V: Send + 'static> {
    /// `None` without a pool of the scheduler's own.
    first: Option<CallbackThreads>,
    /// Batches handed over that may need more than one thread, the oldest first.
    batches: VecDeque<Watched<K, V>>,
    /// The last batch left in the lane, if it may still be there.
    in_lane: Option<Watched<K, V>>,
    pub(crate) leaves: Leaves,
}

/// Which batches are left in the lane, rather than handed to the shard's own thread.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Leaves {
    /// Those that come at about the same time as others: the workers' own threads take their steps.
    Crowded,
    /// If possible, all: a lookout takes the steps of several workers in a row, and runs the callbacks afterwards.
    All,
    /// None: a lookout takes the steps that runs no callbacks now.
    None,
}

struct Watched<K: Eq + Send + Sync + 'static, V: Send + 'static> {
    /// When it was handed over.
    since: Nanos,
    batch: Arc<Batch<K, V>>,
}

/// Hands claimed timers of one shard to the executor. The caller holds no `Access`, since callbacks may run right here.
/// `entered` is where the caller entered `UnderWay` before it claimed them. A worker passes its `watch`, for batches
/// that several threads may share.
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
    core.reports[shard_number].unfinished.fetch_add(count as u64, Relaxed);
    let ordinal = thread::ordinal();
    core.counters.add(&ordinal, Event::Fired, count as u64);
    // A timer that may come back keeps its room.
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
/// Jobs run, and drop their batch, quietly: it may hold the last reference to what the callback has captured, whose
/// destructors may panic.
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

/// Gives the batch to one thread; others of the pool may join in if that is of any use.
fn run_on<K, V>(batch: Arc<Batch<K, V>>, pool: &ThreadPool, watch: Option<&mut Watch<K, V>>)
where
    K: Eq + Send + Sync + 'static,
    V: Send + 'static,
{
    // No other thread has the batch yet.
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

/// Runs what waits. If that is more than one timer, first calls one more thread of the pool, which does the same and so
/// calls the next.
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

/// Has the shard's own thread call `run`; or one of the pool, if that thread is busy or there is none.
fn spawn(first: Option<&CallbackThreads>, pool: &ThreadPool, run: Run) {
    let left = match first {
        Some(first) => first.own.try_give(run).err(),
        None => Some(run),
    };
    left.into_iter().for_each(|run| pool.spawn(|| quietly(|| _ = run())));
}

impl<K: Eq + Send + Sync + 'static, V: Send + 'static> Watch<K, V> {
    pub(crate) fn new(first: Option<CallbackThreads>) -> Self {
        Self { first, batches: VecDeque::new(), in_lane: None, leaves: Leaves::Crowded }
    }

    /// Has the batch run where it is done soonest and costs least.
    fn give(&mut self, batch: Arc<Batch<K, V>>, pool: &ThreadPool) {
        let (leaves, waiting) = (self.leaves, batch.waiting());
        let is_worth_it =
            |lane: &&Arc<Lane>| leaves != Leaves::None && lane.is_worth_it(leaves == Leaves::All, waiting);
        let lane = self.first.as_ref().and_then(|first| first.lane.as_ref()).filter(is_worth_it);
        let Some(lane) = lane else {
            // First the older batch that the lane may still have.
            self.clear_lane();
            return spawn(self.first.as_ref(), pool, Box::new(move || batch.run()));
        };
        let (shard_number, count) = (batch.shard_number, batch.waiting());
        self.in_lane = Some(Watched::new(&batch));
        let before = lane.leave(shard_number, count, Box::new(move || batch.run()));
        if leaves == Leaves::Crowded {
            lane.announce();
        }
        before.into_iter().for_each(|run| spawn(self.first.as_ref(), pool, run));
    }

    /// Calls more threads for batches that have waited too long.
    pub(crate) fn call_help(&mut self, now: Nanos) {
        while self.batches.front().is_some_and(|oldest| oldest.batch.waiting() == 0 || oldest.is_overdue(now)) {
            self.batches.pop_front().into_iter().for_each(Watched::call_help);
        }
        if self.in_lane.as_ref().is_some_and(|last| last.is_overdue(now)) {
            self.clear_lane();
        }
    }

    /// Takes back what the lane's thread has not begun, and gives it to the thread that would have got it without a
    /// lane.
    fn clear_lane(&mut self) {
        if let Some(Watched { batch, .. }) = self.in_lane.take()
            && let Some(first) = &self.first
            && let Executor::Rayon(pool) = &batch.runner.executor
            && let Some(run) = first.lane.as_ref().and_then(|lane| lane.take_back(batch.shard_number))
        {
            spawn(Some(first), pool, run);
        }
    }

    /// How long from `now` on no batch needs help; `None` if there is nothing to watch. Drops what is empty.
    pub(crate) fn patience_left(&mut self, now: Nanos) -> Option<Duration> {
        let is_empty = |watched: &Watched<K, V>| watched.batch.waiting() == 0;
        while self.batches.front().is_some_and(is_empty) {
            self.batches.pop_front();
        }
        let oldest = self.batches.front().map(|oldest| oldest.patience_left(PATIENCE, now));
        let patience = if self.leaves == Leaves::All { PATIENCE } else { LANE_PATIENCE };
        let in_lane = self.in_lane.as_ref().filter(|last| !is_empty(last));
        oldest.into_iter().chain(in_lane.map(|last| last.patience_left(patience, now))).min()
    }
}

/// A worker that ends leaves no timer waiting behind a slow callback.
impl<K: Eq + Send + Sync + 'static, V: Send + 'static> Drop for Watch<K, V> {
    fn drop(&mut self) {
        self.clear_lane();
        self.batches.drain(..).for_each(Watched::call_help);
    }
}

impl<K: Eq + Send + Sync + 'static, V: Send + 'static> Watched<K, V> {
    /// A batch that is handed over now.
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
