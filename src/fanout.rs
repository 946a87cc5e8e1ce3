//! From expiry to callback: batches of claimed timers, and who runs them.

use crate::clock::{Clock, Nanos};
use crate::counters::Event;
use crate::service::Core;
use crate::shard::{Access, Claim, ClaimedNode, Due, Fired, Period, Tick};
use crate::thread;
use crossbeam_queue::ArrayQueue;
use rayon::ThreadPool;
use std::any::Any;
use std::cell::Cell;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

/// Timers in one job for the executor, at most.
pub(crate) const BATCH_MAX: usize = 256;
/// Timers of a batch that threads of a pool share, in lanes of so many: two threads begin half the lanes apart, so that they seldom
/// reach for the same timer.
const LANE: usize = 64;

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

/// What the callback of [`build_rearming`](crate::Builder::build_rearming) answers: whether its timer comes back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Next {
    /// The timer has done its work; its value is dropped.
    Done,
    /// The same timer, with the value as it is now, fires again so much later, counted from the end of the callback.
    After(Duration),
}

/// The user's code for an expired timer.
#[expect(clippy::type_complexity, reason = "two functions, as the user gave them")]
pub(crate) enum Callback<K, V> {
    /// Gets the value; of a periodic timer, a copy of it.
    Plain(Box<dyn Fn(&K, V) + Send + Sync>),
    /// Decides whether the timer comes back.
    Rearming(Box<dyn Fn(&K, &mut V) -> Next + Send + Sync>),
}
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
    /// Gone when the timer has come back.
    node: Option<ClaimedNode>,
    /// Taken when the callback runs.
    value: Option<V>,
    due: Option<Tick>,
    is_due: IsDue,
    repeats: bool,
}

/// Whether timers fire because it is time; else they have no lateness.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum IsDue {
    Yes,
    No,
}

/// Claimed timers of one shard. However it ends, each of them is finished once.
struct Batch<K: Eq + Send + Sync + 'static, V: Send + 'static> {
    core: Arc<Core<K, V>>,
    runner: Arc<Runner<K, V>>,
    shard: usize,
    expiries: Vec<Expiry<V>>,
}

/// The timers of a batch that threads of a pool share.
type Lanes<V> = Arc<[ArrayQueue<Expiry<V>>]>;

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
pub(crate) fn hand_over<K, V>(core: &Arc<Core<K, V>>, shard: usize, claims: &mut Vec<Claim<V>>, is_due: IsDue)
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
    let ordinal = thread::ordinal();
    core.counters.add(&ordinal, Event::Fired, count);
    // One that may come back keeps its room.
    core.capacity.give(&ordinal, claims.iter().filter(|claim| !claim.repeats).count());
    let mut claims = claims.drain(..);
    while claims.len() > 0 {
        let expiries = claims.by_ref().take(BATCH_MAX).map(|claim| Expiry::new(claim, is_due)).collect();
        execute(Batch { core: Arc::clone(core), runner: Arc::clone(&runner), shard, expiries });
    }
}

impl<V> Expiry<V> {
    fn new(claim: Claim<V>, is_due: IsDue) -> Self {
        let repeats = claim.repeats;
        let (node, value, due) = claim.into_parts();
        Self { node: Some(node), value: Some(value), due, is_due, repeats }
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

    /// One after the other, and beside whatever other thread of the pool is free: so no callback waits behind a slow one
    /// while a thread is.
    ///
    /// Nothing in here waits for another thread. (With `rayon::join` a thread whose other half was stolen would run further
    /// batches meanwhile, on top of its stack, and of a backlog as many as there are.)
    fn run_in_parallel(mut self) {
        if self.expiries.len() == 1 {
            return self.run_in_order();
        }
        self.record_lateness();
        let lanes = lanes_of(std::mem::take(&mut self.expiries));
        self.share_out(lanes, 0);
    }

    /// Runs what is left in the lanes, from lane `first` on, and asks the pool for one more thread that does so from another.
    fn share_out(mut self, lanes: Lanes<V>, first: usize) {
        let left = lanes.iter().map(ArrayQueue::len).sum();
        if left > 1 {
            let (helper, lanes, first) = (self.sibling(), Arc::clone(&lanes), (first + lanes.len() / 2) % lanes.len());
            rayon::spawn(move || helper.share_out(lanes, first));
        }
        self.expiries.reserve(left);
        let (before, from) = lanes.split_at(first);
        for lane in from.iter().chain(before) {
            while let Some(expiry) = lane.pop() {
                // First ours, so that we finish it whatever happens.
                let place = self.expiries.len();
                self.expiries.push(expiry);
                run_one(&self.core, &self.runner, self.shard, &mut self.expiries[place]);
            }
        }
    }

    /// Another batch of the same shard, with nothing in it yet.
    fn sibling(&self) -> Self {
        let (core, runner) = (Arc::clone(&self.core), Arc::clone(&self.runner));
        Self { core, runner, shard: self.shard, expiries: Vec::new() }
    }

    fn record_lateness(&self) {
        let clock = &self.core.clock;
        let now = clock.now();
        let due = self.expiries.iter().filter(|expiry| expiry.is_due == IsDue::Yes).filter_map(|expiry| expiry.due);
        let lateness = due.map(|tick| clock.start_of(tick)).map(|due| now.0.saturating_sub(due.0));
        self.core.reports[self.shard].lateness.record(lateness);
    }
}

fn lanes_of<V>(expiries: Vec<Expiry<V>>) -> Lanes<V> {
    let count = expiries.len().div_ceil(LANE);
    let mut expiries = expiries.into_iter();
    let next = || {
        // One place more than there are timers. Without it the queue's end would be the place of its first timer again, and
        // who comes to the end would wait for a thread that was stopped while it took that one.
        let lane = ArrayQueue::new(expiries.len().min(LANE) + 1);
        let shared = expiries.by_ref().take(LANE);
        shared.for_each(|expiry| assert!(lane.push(expiry).is_ok(), "there is room for all"));
        lane
    };
    std::iter::repeat_with(next).take(count).collect()
}

/// Runs the callback of one timer; whatever it does, the next one runs too.
fn run_one<K, V>(core: &Core<K, V>, runner: &Runner<K, V>, shard: usize, expiry: &mut Expiry<V>)
where
    K: Eq + Send + Sync + 'static,
    V: Send + 'static,
{
    let Some(mut value) = expiry.value.take() else { return };
    // Relaxed: a count.
    core.reports[shard].waiting.fetch_sub(1, Relaxed);
    let node = expiry.node.as_ref().expect("it is given up after the run only");
    let comeback = match &runner.callback {
        Callback::Plain(callback) if !expiry.repeats => {
            return call(core, runner, shard, node, |key| callback(key, value));
        }
        Callback::Plain(callback) => {
            let copy = core.shards[shard].with_period(node, |period| period.copy);
            call(core, runner, shard, node, |key| callback(key, copy(&value)));
            Comeback::AtItsRate
        }
        Callback::Rearming(callback) => {
            let mut next = Next::Done;
            call(core, runner, shard, node, |key| next = callback(key, &mut value));
            Comeback::AsAnswered(next)
        }
    };
    if expiry.repeats {
        come_back(core, shard, expiry, value, comeback);
    } else {
        drop_quietly(value);
    }
}

/// Calls user code with the key of a claimed timer; what it throws is counted, and goes to the user's hook.
fn call<K, V>(core: &Core<K, V>, runner: &Runner<K, V>, shard: usize, node: &ClaimedNode, run: impl FnOnce(&K))
where
    K: Eq + Send + Sync + 'static,
    V: Send + 'static,
{
    core.shards[shard].with_claimed_key(node, |key| {
        let Err(payload) = guarded(|| run(key)) else { return };
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

/// When a timer that repeats wants to fire again.
#[derive(Clone, Copy, Debug)]
enum Comeback {
    AtItsRate,
    AsAnswered(Next),
}

/// After the callback of a timer that repeats: it is pending again, or has ended.
fn come_back<K, V>(core: &Core<K, V>, shard: usize, expiry: &mut Expiry<V>, value: V, comeback: Comeback)
where
    K: Eq + Send + Sync + 'static,
    V: Send + 'static,
{
    let Some(node) = expiry.node.take() else { return };
    let (clock, shard) = (&core.clock, &core.shards[shard]);
    let now = clock.now().max(clock.start_of(shard.hand()));
    let next = match comeback {
        Comeback::AsAnswered(Next::Done) => None,
        Comeback::AsAnswered(Next::After(delay)) => Some(clock.due_after(now, delay, shard.hand())),
        Comeback::AtItsRate => {
            Some(shard.with_period(&node, |period| next_run(clock, period, expiry.due, expiry.is_due, now)))
        }
    };
    let ordinal = thread::ordinal();
    // Not under our guard: the value's destructor is the user's.
    let fired = shard.fired(node, value, next, clock.tick_at(now), &Access::new(&ordinal));
    match fired {
        Fired::Rearmed => core.counters.add(&ordinal, Event::Rearmed, 1),
        Fired::Ended(node, value) => {
            expiry.node = Some(node);
            core.capacity.give(&ordinal, 1);
            drop_quietly(value);
        }
    }
}

/// The next run of a periodic timer after the one whose deadline was `previous`. If that was had ahead of its time, it is one
/// run more: the deadline stands.
fn next_run<V>(clock: &Clock, period: &mut Period<V>, previous: Option<Tick>, is_due: IsDue, now: Nanos) -> Due {
    let Some(tick) = previous else {
        // Fired by hand, and otherwise never.
        return Due { tick: None, now: clock.tick_at(now) };
    };
    // If it was moved, its rate goes on from where it was moved to.
    let previous_ns = if period.tick == Some(tick) { period.deadline_ns } else { clock.start_of(tick).0 };
    let next_ns = match is_due {
        IsDue::Yes => previous_ns.saturating_add(period.length_ns),
        IsDue::No => previous_ns,
    };
    period.deadline_ns = period.next_run(next_ns, clock.start_of(clock.tick_at(now)).0, now.0);
    let due = clock.due_at_nanos(Nanos(period.deadline_ns), now);
    period.tick = due.tick;
    due
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
        let nodes: Vec<u32> =
            self.expiries.iter().filter_map(|expiry| expiry.node.as_ref()).map(ClaimedNode::node).collect();
        for node in self.expiries.drain(..).filter_map(|expiry| expiry.node) {
            shard.finish(node, &access);
        }
        self.core.drop_keys_of(self.shard, nodes.into_iter());
    }
}
