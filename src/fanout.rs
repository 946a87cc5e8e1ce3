//! From expiry to callback: batches of claimed timers, handed to whoever runs them.
//!
//! To wake a thread costs more than to run some quick callbacks. So one thread gets a batch, and the worker keeps an eye on it
//! ([`Watch`]): if after [`PATIENCE`] some of its timers still wait, for a slow callback perhaps, threads of the pool are called,
//! one by the other, until nothing waits or all are there. Where no worker is at hand (`close`), they are called at once.
//!
//! With a pool of the scheduler's own, that one thread is the shard's [`CallbackThread`], unless it is busy. With a pool of the
//! user's, it is one of that pool: it is for the user to say how many callbacks run at a time.

use crate::callback::{Callback, Comeback, Expiry, IsDue, Next, PanicHook, come_back, drop_quietly, guarded, run_one};
use crate::callback_thread::CallbackThread;
use crate::clock::Nanos;
use crate::counters::Event;
use crate::executor::{Executor, Job};
use crate::service::Core;
use crate::shard::{Access, Claim, PREFETCH_AHEAD, Tick};
use crate::thread;
use crossbeam_queue::ArrayQueue;
use rayon::ThreadPool;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

/// Timers in one job for the executor, at most; one step's go to a callback thread together.
pub(crate) const BATCH_MAX: usize = 256;
/// How long one thread has a batch to itself, from the hand-over on.
const PATIENCE: Duration = Duration::from_millis(1);

/// What runs when timers expire. Kept by the schedulers' handles, the workers' threads and the jobs under way: whoever
/// claims timers holds one.
pub(crate) struct Runner<K, V> {
    pub(crate) callback: Callback<K, V>,
    pub(crate) on_panic: Option<PanicHook<K>>,
    pub(crate) executor: Executor,
}

/// Claimed timers of one shard, for one thread. However it ends, each of them is finished once.
struct Batch<K: Eq + Send + Sync + 'static, V: Send + 'static> {
    core: Arc<Core<K, V>>,
    runner: Arc<Runner<K, V>>,
    shard: usize,
    expiries: Vec<Expiry<V>>,
}

/// The timers of a batch that threads share.
type Shared<V> = Arc<ArrayQueue<Expiry<V>>>;

/// What a worker has for its batches.
pub(crate) struct Watch<K: Eq + Send + Sync + 'static, V: Send + 'static> {
    /// Gets them first; `None` without a pool of the scheduler's own.
    first: Option<CallbackThread>,
    /// Those handed over that may need more than one thread, the oldest first.
    batches: VecDeque<Watched<K, V>>,
}

struct Watched<K: Eq + Send + Sync + 'static, V: Send + 'static> {
    /// When it was handed over.
    since: Nanos,
    waiting: Shared<V>,
    /// What a second thread gets: empty, so far.
    helper: Batch<K, V>,
}

/// Hands claimed timers of `shard` to the executor. The caller holds no `Access`, since callbacks may run right here.
/// A worker keeps watch over what several threads may share.
pub(crate) fn hand_over<K, V>(
    core: &Arc<Core<K, V>>,
    shard: usize,
    claims: &mut Vec<Claim<V>>,
    is_due: IsDue,
    mut watch: Option<&mut Watch<K, V>>,
) where
    K: Eq + Send + Sync + 'static,
    V: Send + 'static,
{
    if claims.is_empty() {
        return;
    }
    let runner = core.runner.upgrade().expect("whoever claims timers holds the runner");
    let count = claims.len() as u64;
    // Relaxed: counts.
    core.reports[shard].waiting.fetch_add(count, Relaxed);
    let ordinal = thread::ordinal();
    core.counters.add(&ordinal, Event::Fired, count);
    // One that may come back keeps its room.
    core.capacity.give(&ordinal, claims.iter().filter(|claim| !claim.repeats).count());
    let has_first = watch.as_ref().is_some_and(|watch| watch.first.is_some());
    let batch_max = if has_first { claims.len() } else { BATCH_MAX };
    let mut claims = claims.drain(..);
    while claims.len() > 0 {
        let expiries = claims.by_ref().take(batch_max).map(|claim| Expiry::new(claim, is_due)).collect();
        let batch = Batch { core: Arc::clone(core), runner: Arc::clone(&runner), shard, expiries };
        batch.execute(watch.as_deref_mut());
    }
}

impl<K: Eq + Send + Sync + 'static, V: Send + 'static> Batch<K, V> {
    /// One job per batch, never per timer. (rayon#642)
    fn execute(self, watch: Option<&mut Watch<K, V>>) {
        match self.runner.executor.clone() {
            Executor::Inline => self.run(),
            Executor::Rayon(pool) => self.run_on(&pool, watch),
            Executor::Custom(custom) => {
                let job = Job(Box::new(|| self.run()));
                // A panicking executor has dropped the job; the worker goes on.
                if let Err(payload) = guarded(|| custom(job)) {
                    std::mem::forget(payload);
                }
            }
        }
    }

    /// Runs the callbacks one after the other.
    fn run(mut self) {
        self.record_lateness(self.dues());
        let Self { core, runner, shard, expiries } = &mut self;
        expiries.iter_mut().for_each(|expiry| run_one(core, runner, *shard, expiry));
    }

    /// Gives the batch to one thread, in such a way that others of the pool may join in, if there is any use in that.
    fn run_on(mut self, pool: &ThreadPool, watch: Option<&mut Watch<K, V>>) {
        let first = watch.as_ref().and_then(|watch| watch.first.as_ref());
        if self.expiries.len() == 1 || first.is_none() && pool.current_num_threads() == 1 {
            return spawn(first, pool, || self.run());
        }
        let mut dues = Vec::with_capacity(self.expiries.len());
        dues.extend(self.dues());
        // One place more than there are timers. Without it the queue's end would be the place of its first timer again, and
        // who comes to the end would wait for a thread that was stopped while it took that one.
        let waiting = ArrayQueue::new(self.expiries.len() + 1);
        self.expiries.drain(..).for_each(|expiry| assert!(waiting.push(expiry).is_ok(), "there is room for all"));
        let waiting = Arc::new(waiting);
        let watched = Watched { since: self.core.clock.now(), waiting: Arc::clone(&waiting), helper: self.sibling() };
        spawn(first, pool, move || {
            self.record_lateness(dues.into_iter());
            self.run_from(&waiting);
        });
        match watch {
            Some(watch) => watch.batches.push_back(watched),
            None => watched.call_help(),
        }
    }

    /// Runs what waits, together with one more thread of the pool that does the same, and so calls the next.
    fn run_with_others(self, waiting: Shared<V>) {
        if waiting.len() > 1 {
            let (helper, waiting) = (self.sibling(), Arc::clone(&waiting));
            rayon::spawn(move || helper.run_with_others(waiting));
        }
        self.run_from(&waiting);
    }

    /// Runs what waits, one after the other. Nothing in here waits for another thread. (With `rayon::join` a thread whose other
    /// half was stolen would run further batches meanwhile, on top of its stack, and of a backlog as many as there are.)
    fn run_from(mut self, waiting: &ArrayQueue<Expiry<V>>) {
        while let Some(expiry) = waiting.pop() {
            if self.expiries.len() == BATCH_MAX {
                // A slow callback shall not keep all those before it from being finished.
                self = self.sibling();
            }
            // First ours, so that we finish it whatever happens.
            let place = self.expiries.len();
            self.expiries.push(expiry);
            run_one(&self.core, &self.runner, self.shard, &mut self.expiries[place]);
        }
    }

    /// Another batch of the same shard, with nothing in it yet.
    fn sibling(&self) -> Self {
        let (core, runner) = (Arc::clone(&self.core), Arc::clone(&self.runner));
        Self { core, runner, shard: self.shard, expiries: Vec::new() }
    }

    /// When the timers were due that fire because of that.
    fn dues(&self) -> impl Iterator<Item = Tick> {
        self.expiries.iter().filter(|expiry| expiry.is_due == IsDue::Yes).filter_map(|expiry| expiry.due)
    }

    fn record_lateness(&self, dues: impl Iterator<Item = Tick>) {
        let clock = &self.core.clock;
        let now = clock.now();
        let lateness = dues.map(|tick| now.0.saturating_sub(clock.start_of(tick).0));
        self.core.reports[self.shard].lateness.record(lateness);
    }
}

/// Has `first` run the job, or else a thread of the pool.
fn spawn(first: Option<&CallbackThread>, pool: &ThreadPool, job: impl FnOnce() + Send + 'static) {
    match first {
        None => pool.spawn(job),
        Some(first) => {
            if let Err(job) = first.try_give(Job(Box::new(job))) {
                pool.spawn(|| job.run());
            }
        }
    }
}

impl<K: Eq + Send + Sync + 'static, V: Send + 'static> Watch<K, V> {
    pub(crate) fn new(first: Option<CallbackThread>) -> Self {
        Self { first, batches: VecDeque::new() }
    }

    /// Calls more threads for what has waited too long.
    pub(crate) fn call_help(&mut self, now: Nanos) {
        while self
            .batches
            .front()
            .is_some_and(|oldest| oldest.waiting.is_empty() || oldest.patience_left(now).is_zero())
        {
            self.batches.pop_front().into_iter().for_each(Watched::call_help);
        }
    }

    /// How long from `now` on nobody needs help; `None` if there is nothing to watch.
    pub(crate) fn patience_left(&self, now: Nanos) -> Option<Duration> {
        self.batches.front().map(|oldest| oldest.patience_left(now))
    }
}

/// A worker that ends leaves nobody waiting behind a slow callback.
impl<K: Eq + Send + Sync + 'static, V: Send + 'static> Drop for Watch<K, V> {
    fn drop(&mut self) {
        self.batches.drain(..).for_each(Watched::call_help);
    }
}

impl<K: Eq + Send + Sync + 'static, V: Send + 'static> Watched<K, V> {
    fn patience_left(&self, now: Nanos) -> Duration {
        PATIENCE.saturating_sub(Duration::from_nanos(now.0.saturating_sub(self.since.0)))
    }

    fn call_help(self) {
        let Self { waiting, helper, .. } = self;
        if !waiting.is_empty()
            && let Executor::Rayon(pool) = helper.runner.executor.clone()
        {
            pool.spawn(move || helper.run_with_others(waiting));
        }
    }
}

/// However the batch ended, its keys are needed no more. Timers that were not run (a custom executor dropped the job)
/// drop their values here.
impl<K: Eq + Send + Sync + 'static, V: Send + 'static> Drop for Batch<K, V> {
    fn drop(&mut self) {
        if self.expiries.is_empty() {
            return;
        }
        let mut not_run = 0;
        for expiry in &mut self.expiries {
            let Some(value) = expiry.value.take() else { continue };
            not_run += 1;
            if expiry.repeats {
                come_back(&self.core, self.shard, expiry, value, Comeback::AsAnswered(Next::Done));
            } else {
                drop_quietly(value);
            }
        }
        let ordinal = thread::ordinal();
        if not_run > 0 {
            // Relaxed: a count.
            self.core.reports[self.shard].waiting.fetch_sub(not_run, Relaxed);
            self.core.counters.add(&ordinal, Event::CallbackLost, not_run);
        }
        let access = Access::new(&ordinal);
        let shard = &self.core.shards[self.shard];
        let mut nodes = Vec::with_capacity(self.expiries.len());
        for place in 0..self.expiries.len() {
            if let Some(ahead) = self.expiries.get(place + PREFETCH_AHEAD).and_then(|ahead| ahead.node.as_ref()) {
                shard.prefetch_node(ahead.node());
            }
            let Some(node) = self.expiries[place].node.take() else { continue };
            nodes.push(node.node());
            shard.finish(node, &access);
        }
        self.core.drop_keys_of(self.shard, nodes.into_iter());
    }
}
