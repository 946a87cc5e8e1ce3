//! From expiry to callback: batches of claimed timers, and who runs them.

use crate::counters::Event;
use crate::service::Core;
use crate::shard::{Access, Claim, ClaimedNode, Tick};
use crate::thread;
use rayon::ThreadPool;
use std::any::Any;
use std::cell::Cell;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// Timers in one job for the executor, at most.
pub(crate) const BATCH_MAX: usize = 256;

/// Who runs the callbacks.
#[derive(Clone)]
#[non_exhaustive]
pub enum Executor {
    /// A rayon pool. Without an executor, a scheduler has a pool of its own.
    Rayon(Arc<ThreadPool>),
    /// The thread on which the timer expires: the shard's worker, or the caller of `expire_now` or of `close`. For callbacks
    /// that only pass a message on: a slow one makes its shard late. With the manual clock always, see
    /// [`Builder::build_manual`](crate::Builder::build_manual).
    Inline,
    /// Anything else that runs each [`Job`] once, soon, on whatever thread. It is called on the worker and must not
    /// block for long. A job that is dropped instead drops its timers' values.
    Custom(Arc<dyn Fn(Job) + Send + Sync>),
}

impl Executor {
    /// An [`Executor::Custom`] from a closure.
    ///
    /// ```
    /// use shardwheel::{Executor, Scheduler};
    ///
    /// let (sender, jobs) = std::sync::mpsc::channel();
    /// let executor = Executor::custom(move |job| drop(sender.send(job)));
    /// let scheduler = Scheduler::builder().executor(executor).build(|key: &u32, _: ()| println!("{key}"))?;
    /// scheduler.schedule(1, std::time::Duration::ZERO).expect("it is open and not full");
    /// jobs.recv().expect("the worker lives").run();
    /// # Ok::<(), shardwheel::BuildError>(())
    /// ```
    pub fn custom(execute: impl Fn(Job) + Send + Sync + 'static) -> Self {
        Self::Custom(Arc::new(execute))
    }
}

impl fmt::Debug for Executor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Rayon(_) => "Rayon(..)",
            Self::Inline => "Inline",
            Self::Custom(_) => "Custom(..)",
        })
    }
}

/// A batch of expired timers, for an [`Executor::Custom`] to run.
#[must_use = "a job that is not run drops its timers' values"]
pub struct Job(Box<dyn FnOnce() + Send>);

impl Job {
    /// Runs the callbacks, one after the other. Never panics, even if a callback does.
    pub fn run(self) {
        (self.0)();
    }
}

impl fmt::Debug for Job {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Job(..)")
    }
}

/// The user's code for an expired timer.
pub(crate) type Callback<K, V> = Box<dyn Fn(&K, V) + Send + Sync>;
/// The user's code for a callback's panic.
pub(crate) type PanicHook<K> = Box<dyn Fn(&K, Box<dyn Any + Send>) + Send + Sync>;

/// What runs when timers expire. Kept by the schedulers' handles, the workers' threads and the jobs under way: whoever
/// claims timers holds one.
pub(crate) struct Runner<K, V> {
    pub(crate) callback: Callback<K, V>,
    pub(crate) on_panic: Option<PanicHook<K>>,
    pub(crate) executor: Executor,
}

/// One expired timer on its way to its callback.
struct Expiry<V> {
    node: ClaimedNode,
    /// Taken when the callback runs.
    value: Option<V>,
    due: Option<Tick>,
}

/// Claimed timers of one shard. However it ends, each of them is finished once.
struct Batch<K: Eq + Send + Sync + 'static, V: Send + 'static> {
    core: Arc<Core<K, V>>,
    runner: Arc<Runner<K, V>>,
    shard: usize,
    expiries: Vec<Expiry<V>>,
}

thread_local! {
    /// How many callbacks are running on this thread, one inside the other.
    static CALLBACKS: Cell<usize> = const { Cell::new(0) };
}

/// True while a callback runs on this thread.
pub(crate) fn in_callback() -> bool {
    CALLBACKS.try_with(|depth| depth.get() > 0).unwrap_or(false)
}

/// Calls user code: counts the depth, and catches whatever it throws, a payload whose own drop panics included.
fn guarded(run: impl FnOnce()) -> Result<(), Box<dyn Any + Send>> {
    let nest = |by: isize| {
        let _ = CALLBACKS.try_with(|depth| depth.set(depth.get().wrapping_add_signed(by)));
    };
    nest(1);
    let result = catch_unwind(AssertUnwindSafe(run));
    nest(-1);
    result
}

/// Drops something of the user's, whose destructor may panic: nobody is left whom that would concern.
pub(crate) fn drop_quietly<T>(dropped: T) {
    if let Err(payload) = catch_unwind(AssertUnwindSafe(|| drop(dropped))) {
        std::mem::forget(payload);
    }
}

/// Hands claimed timers of `shard` to the executor. The caller holds no `Access`, since callbacks may run right here.
pub(crate) fn hand_over<K, V>(core: &Arc<Core<K, V>>, shard: usize, claims: &mut Vec<Claim<V>>)
where
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
    core.counters.add(&thread::ordinal(), Event::Fired, count);
    let mut claims = claims.drain(..);
    while claims.len() > 0 {
        let expiries = claims.by_ref().take(BATCH_MAX).map(Expiry::from).collect();
        execute(Batch { core: Arc::clone(core), runner: Arc::clone(&runner), shard, expiries });
    }
}

impl<V> From<Claim<V>> for Expiry<V> {
    fn from(claim: Claim<V>) -> Self {
        let (node, value, due) = claim.into_parts();
        Self { node, value: Some(value), due }
    }
}

/// One job per batch, never per timer. (rayon#642)
fn execute<K, V>(batch: Batch<K, V>)
where
    K: Eq + Send + Sync + 'static,
    V: Send + 'static,
{
    match batch.runner.executor.clone() {
        Executor::Inline => batch.run_in_order(),
        Executor::Rayon(pool) => pool.spawn(move || batch.run_in_parallel()),
        Executor::Custom(custom) => {
            let job = Job(Box::new(move || batch.run_in_order()));
            // A panicking executor has dropped the job; the worker goes on.
            if let Err(payload) = guarded(|| custom(job)) {
                std::mem::forget(payload);
            }
        }
    }
}

impl<K: Eq + Send + Sync + 'static, V: Send + 'static> Batch<K, V> {
    fn run_in_order(mut self) {
        self.record_lateness();
        let Self { core, runner, shard, expiries } = &mut self;
        expiries.iter_mut().for_each(|expiry| run_one(core, runner, *shard, expiry));
    }

    /// Splits itself down to single timers, which idle threads of the pool steal: so no callback waits behind a slow one
    /// while a thread is free.
    fn run_in_parallel(mut self) {
        self.record_lateness();
        let Self { core, runner, shard, expiries } = &mut self;
        split(expiries, &|expiry| run_one(core, runner, *shard, expiry));
    }

    fn record_lateness(&self) {
        let clock = &self.core.clock;
        let now = clock.now();
        let due = self.expiries.iter().filter_map(|expiry| expiry.due);
        let lateness = due.map(|tick| clock.start_of(tick)).map(|due| now.0.saturating_sub(due.0));
        self.core.reports[self.shard].lateness.record(lateness);
    }
}

/// Calls `run` on each item; what is left can be stolen at any moment. (A parallel iterator would stop splitting once there
/// is a piece per thread, and a piece is run by one thread to its end.)
fn split<T: Send>(items: &mut [T], run: &(impl Fn(&mut T) + Sync)) {
    match items {
        [] => {}
        [item] => run(item),
        _ => {
            let (left, right) = items.split_at_mut(items.len() / 2);
            rayon::join(|| split(left, run), || split(right, run));
        }
    }
}

/// Runs the callback of one timer; whatever it does, the next one runs too.
fn run_one<K, V>(core: &Core<K, V>, runner: &Runner<K, V>, shard: usize, expiry: &mut Expiry<V>)
where
    K: Eq + Send + Sync + 'static,
    V: Send + 'static,
{
    let Some(value) = expiry.value.take() else { return };
    // Relaxed: a count.
    core.reports[shard].waiting.fetch_sub(1, Relaxed);
    core.shards[shard].with_claimed_key(&expiry.node, |key| {
        let Err(payload) = guarded(|| (runner.callback)(key, value)) else { return };
        core.counters.add(&thread::ordinal(), Event::CallbackPanicked, 1);
        let handled = match &runner.on_panic {
            Some(on_panic) => guarded(|| on_panic(key, payload)),
            None => Err(payload),
        };
        if let Err(payload) = handled {
            // Its destructor may panic as well, on a thread that is not the user's.
            drop_quietly(payload);
        }
    });
}

/// However the batch ended, its keys are needed no more. Timers that were not run (a custom executor dropped the job)
/// drop their values here.
impl<K: Eq + Send + Sync + 'static, V: Send + 'static> Drop for Batch<K, V> {
    fn drop(&mut self) {
        let mut not_run = 0;
        for expiry in &mut self.expiries {
            if let Some(value) = expiry.value.take() {
                not_run += 1;
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
        let nodes: Vec<u32> = self.expiries.iter().map(|expiry| expiry.node.node()).collect();
        for expiry in self.expiries.drain(..) {
            shard.finish(expiry.node, &access);
        }
        self.core.drop_keys_of(self.shard, nodes.into_iter());
    }
}
