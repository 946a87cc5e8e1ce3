//! The settings of a scheduler, and their checks.

use crate::callback::{Callback, Next, PanicHook};
use crate::capacity::Capacity;
use crate::clock::Clock;
use crate::comebacks::Comebacks;
use crate::counters::Counters;
use crate::error::BuildError;
use crate::executor::Executor;
use crate::expired::Runner;
use crate::flags::{Abandoned, Closing};
use crate::growth::Growth;
use crate::manual::ManualClock;
use crate::runtime;
use crate::scheduler::Scheduler;
use crate::service::{Core, ShardReport};
use crate::shard::{Shard, Tick, batch_len};
use crate::thread;
use crate::under_way::UnderWay;
use crossbeam_utils::CachePadded;
use std::any::Any;
use std::collections::hash_map::RandomState;
use std::fmt;
use std::hash::{BuildHasher, Hash};
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

const TICK_MIN: Duration = Duration::from_micros(10);
const TICK_MAX: Duration = Duration::from_secs(3600);
const SHARDS_MAX: usize = 1024;
const FIRST_TICK_MAX: u64 = 1 << 63;

/// Where the workers run. Pinning is best effort: [`Stats::shards`](crate::Stats::shards) shows what became of it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum Pinning {
    /// One core per worker, if there are enough cores, and if the workers run no code of yours ([`Executor::Inline`],
    /// [`Executor::Custom`]): threads that it started there would be pinned as well. Schedulers with fewer workers
    /// than cores take cores in turn; the first scheduler of a process begins anywhere.
    #[default]
    Auto,
    /// Wherever the system likes.
    Off,
    /// These cores in turn, by the system's numbers. Each must be one that the building thread may run on. (On Linux,
    /// a thread that your code starts on a worker, through [`Executor::Inline`] or [`Executor::Custom`], inherits its
    /// core.)
    Cores(Vec<usize>),
}

/// The settings of a [`Scheduler`]; made by [`Scheduler::builder`].
///
/// ```
/// use shardwheel::{Pinning, Scheduler};
/// use std::time::Duration;
///
/// let scheduler = Scheduler::builder()
///     .tick(Duration::from_micros(500))
///     .shards(2)
///     .pinning(Pinning::Off)
///     .capacity(1_000_000)
///     .on_panic(|key: &u64, _payload| eprintln!("the callback of {key} panicked"))
///     .build(|key: &u64, name: String| println!("{key}: {name}"))?;
/// # drop(scheduler);
/// # Ok::<(), shardwheel::BuildError>(())
/// ```
#[must_use]
pub struct Builder<K, V, S = RandomState> {
    tick: Duration,
    shards: Option<usize>,
    pinning: Pinning,
    capacity: Option<usize>,
    executor: Option<Executor>,
    hasher: S,
    on_panic: Option<PanicHook<K>>,
    thread_name: String,
    first_tick: u64,
    value: PhantomData<fn(V)>,
}

impl<K, V, S> fmt::Debug for Builder<K, V, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder")
            .field("tick", &self.tick)
            .field("shards", &self.shards)
            .field("pinning", &self.pinning)
            .field("capacity", &self.capacity)
            .field("executor", &self.executor)
            .field("thread_name", &self.thread_name)
            .field("first_tick", &self.first_tick)
            .finish_non_exhaustive()
    }
}

impl<K, V> Builder<K, V> {
    pub(crate) fn new() -> Self {
        Self {
            tick: Duration::from_millis(1),
            shards: None,
            pinning: Pinning::Auto,
            capacity: None,
            executor: None,
            hasher: RandomState::new(),
            on_panic: None,
            thread_name: "shardwheel".to_owned(),
            first_tick: 0,
            value: PhantomData,
        }
    }
}

impl<K, V, S> Builder<K, V, S> {
    /// The length of a tick. A timer fires up to one tick late, plus the worker's wake-up and backlog; and a thread
    /// wakes up for each tick with timers due. Default 1 ms; accepted 10 us to 1 h.
    ///
    /// Choose about a tenth of the lateness that you can tolerate: 10 ms or more for connection time-outs, 1 ms for
    /// request time-outs (the default), and less only if you have measured that it helps.
    ///
    /// ```
    /// # use shardwheel::Scheduler;
    /// # use std::time::Duration;
    /// let builder = Scheduler::builder().tick(Duration::from_millis(10));
    /// let (scheduler, _clock) = builder.build_manual(|_: &u32, _: ()| {})?;
    /// scheduler.schedule(1, Duration::from_millis(42)).expect("it is open and not full");
    /// assert_eq!(scheduler.remaining(&1), Some(Duration::from_millis(50)), "rounded up");
    /// # Ok::<(), shardwheel::BuildError>(())
    /// ```
    pub fn tick(mut self, tick: Duration) -> Self {
        self.tick = tick;
        self
    }

    /// The number of shards. Default: the number of cores that the building thread may use, as
    /// [`available_parallelism`](std::thread::available_parallelism) says: fewer than there are if it is pinned, or in
    /// a container with a quota. Accepted: 1 to 1024.
    ///
    /// Each shard has a worker thread, and a second thread for callbacks unless [`executor`](Self::executor) says who
    /// runs them. Besides, one thread works ahead while shards grow; with more than one shard, two further ones do the
    /// work of all workers in turns, while one at a time can, and run quick callbacks; and a rayon pool with a thread
    /// for each core (or `RAYON_NUM_THREADS`) waits for slow callbacks. By default that makes three threads per core,
    /// plus one or three. All sleep while nothing is due.
    ///
    /// While one thread can do it all, the others need not be woken each time. (Not with [`Executor::Inline`] or
    /// [`Executor::Custom`], nor for the shards of a scheduler whose first shard has nothing due.) Even so, fewer
    /// shards take less processor time while fewer than some hundred thousand timers fire per second, and most calls
    /// are as fast: on sixteen cores, one shard takes half of what sixteen take for 10,000 timers a second, or for
    /// 100,000 (`docs/benchmarks.md`).
    ///
    /// ```
    /// # use shardwheel::Scheduler;
    /// let (scheduler, _clock) = Scheduler::builder().shards(2).build_manual(|_: &u32, _: ()| {})?;
    /// assert_eq!(scheduler.stats().shards.len(), 2);
    /// # Ok::<(), shardwheel::BuildError>(())
    /// ```
    pub fn shards(mut self, count: usize) -> Self {
        self.shards = Some(count);
        self
    }

    /// Where the workers run. Default [`Pinning::Auto`].
    ///
    /// ```
    /// # use shardwheel::{Pinning, Scheduler};
    /// let scheduler = Scheduler::builder().shards(1).pinning(Pinning::Off).build(|_: &u32, _: ()| {})?;
    /// assert_eq!(scheduler.stats().shards[0].pinned_core, None);
    /// # Ok::<(), shardwheel::BuildError>(())
    /// ```
    pub fn pinning(mut self, pinning: Pinning) -> Self {
        self.pinning = pinning;
        self
    }

    /// The most timers that may be pending; one more is refused with
    /// [`ScheduleError::Full`](crate::ScheduleError::Full). Default: no bound but memory and almost 2^28 timers per
    /// shard; accepted 1 or more. With a bound, `schedule` looks its key up once more.
    ///
    /// A timer that may come back ([`build_rearming`](Self::build_rearming),
    /// [`schedule_every`](crate::Scheduler::schedule_every)) counts until its callback is over. A call that starts a
    /// timer counts from its beginning, whatever becomes of it.
    ///
    /// Scheduling a key that is pending, or that is firing and may come back, replaces its timer and needs no room.
    /// (If that timer ends at the very same moment and another call takes its place, the bound is exceeded by one, for
    /// each such call, until as many timers have ended.)
    ///
    /// A timer waiting for its callback no longer counts. (A repeating one passes its place to the timer that replaces
    /// it.) So `expire_now` then `schedule` in a loop, faster than callbacks run, queues without bound. Timers that
    /// come due by themselves are not claimed while 65,536 of their shard wait or run; this is checked once per worker
    /// step, so the queue may overshoot by a step.
    ///
    /// ```
    /// # use shardwheel::Scheduler;
    /// # use std::time::Duration;
    /// let (scheduler, _clock) = Scheduler::builder().capacity(1).build_manual(|_: &u32, _: &str| {})?;
    /// let second = Duration::from_secs(1);
    /// assert!(scheduler.schedule_with(1, "a", second).is_ok());
    /// let refused = scheduler.schedule_with(2, "b", second).expect_err("it is full");
    /// assert!(refused.is_full());
    /// assert_eq!(refused.into_inner(), (2, "b"));
    /// # Ok::<(), shardwheel::BuildError>(())
    /// ```
    pub fn capacity(mut self, most_pending: usize) -> Self {
        self.capacity = Some(most_pending);
        self
    }

    /// Who runs the callbacks. The default is made for quick callbacks, and copes with slow ones:
    ///
    /// - a thread per shard runs the callbacks of its timers; if timers of many shards expire together, one thread
    ///   runs most of them;
    /// - a rayon pool of the scheduler's own, with a thread per core (see [`shards`](Self::shards)), runs what expires
    ///   while the shard's thread is busy, what has waited there for a millisecond, and what is fired by a call.
    ///
    /// In callbacks outside of this pool, rayon's own functions (`join`, `spawn`, parallel iterators) use rayon's
    /// global pool. So if your callbacks call them, give the scheduler a pool: [`Executor::Rayon`]. Whatever the pool,
    /// a callback should hold no lock while it calls them; see there.
    ///
    /// ```
    /// # use shardwheel::{Executor, Scheduler};
    /// # use std::time::Duration;
    /// let (sender, fired) = std::sync::mpsc::channel();
    /// let callback = move |key: &u32, _: ()| drop(sender.send(*key));
    /// let scheduler = Scheduler::builder().shards(1).executor(Executor::Inline).build(callback)?;
    /// scheduler.schedule(7, Duration::from_secs(60)).expect("it is open and not full");
    /// assert!(scheduler.expire_now(&7));
    /// assert_eq!(fired.try_recv(), Ok(7), "it has run on this thread");
    /// # Ok::<(), shardwheel::BuildError>(())
    /// ```
    pub fn executor(mut self, executor: Executor) -> Self {
        self.executor = Some(executor);
        self
    }

    /// As `executor`, unless one was chosen.
    #[cfg(feature = "cache")]
    pub(crate) fn default_executor(mut self, executor: Executor) -> Self {
        self.executor.get_or_insert(executor);
        self
    }

    /// How keys are hashed. Default: [`RandomState`], which an attacker who chooses the keys cannot predict. The hash
    /// also decides to which shard a key belongs.
    ///
    /// For keys that nobody else chooses, a faster hasher of another crate takes a tenth to a third off a call among a
    /// million timers (`docs/benchmarks.md`).
    ///
    /// ```
    /// # use shardwheel::Scheduler;
    /// # use std::time::Duration;
    /// use std::hash::{BuildHasherDefault, DefaultHasher};
    ///
    /// let hasher = BuildHasherDefault::<DefaultHasher>::default();
    /// let (scheduler, clock) = Scheduler::builder().hasher(hasher).build_manual(|_: &u32, _: ()| {})?;
    /// scheduler.schedule(1, Duration::from_secs(1)).expect("it is open and not full");
    /// assert_eq!(clock.advance(Duration::from_secs(1)), 1);
    /// # Ok::<(), shardwheel::BuildError>(())
    /// ```
    pub fn hasher<T: BuildHasher>(self, hasher: T) -> Builder<K, V, T> {
        Builder {
            tick: self.tick,
            shards: self.shards,
            pinning: self.pinning,
            capacity: self.capacity,
            executor: self.executor,
            hasher,
            on_panic: self.on_panic,
            thread_name: self.thread_name,
            first_tick: self.first_tick,
            value: PhantomData,
        }
    }

    /// Called with the key and the panic's payload when a callback has panicked. Panics are caught and counted in any
    /// case; those of the hook are caught as well, and not counted.
    ///
    /// ```
    /// # use shardwheel::Scheduler;
    /// # use std::time::Duration;
    /// let builder = Scheduler::builder().on_panic(|key: &u32, _payload| eprintln!("callback of {key} has panicked"));
    /// let (scheduler, clock) = builder.build_manual(|_, ()| panic!("on purpose"))?;
    /// scheduler.schedule(1, Duration::ZERO).expect("it is open and not full");
    /// assert_eq!(clock.advance(Duration::from_secs(1)), 1);
    /// assert_eq!(scheduler.stats().callback_panics, 1);
    /// # Ok::<(), shardwheel::BuildError>(())
    /// ```
    pub fn on_panic(mut self, hook: impl Fn(&K, Box<dyn Any + Send>) + Send + Sync + 'static) -> Self {
        self.on_panic = Some(Box::new(hook));
        self
    }

    /// What the names of the scheduler's threads begin with. Default `shardwheel`; accepted: any name without a NUL.
    /// (Linux shows 15 bytes of a name.)
    ///
    /// | thread | runs |
    /// |---|---|
    /// | `shardwheel-0` | the first shard's worker |
    /// | `shardwheel-grow` | the work ahead while shards grow |
    /// | `shardwheel-cb0` | the first shard's callbacks, without an [`executor`](Self::executor) |
    /// | `shardwheel-lane0`, `-lane1` | all shards' workers and quick callbacks, in turns, while one thread can do it |
    /// | `shardwheel-pool0` | slow callbacks, in the pool, without an executor |
    ///
    /// ```
    /// # use shardwheel::Scheduler;
    /// # use std::time::Duration;
    /// let (names, named) = std::sync::mpsc::channel();
    /// let name = || std::thread::current().name().map(str::to_owned);
    /// let callback = move |_: &u32, ()| names.send(name()).expect("it is awaited");
    /// let scheduler = Scheduler::builder().thread_name("leases").build(callback)?;
    /// scheduler.schedule(1, Duration::ZERO).expect("it is open and not full");
    /// assert!(named.recv()?.is_some_and(|name| name.starts_with("leases-")));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn thread_name(mut self, prefix: impl Into<String>) -> Self {
        self.thread_name = prefix.into();
        self
    }

    /// The number of the first tick: lets tests begin at an uptime that nobody can wait for. Default 0; accepted up to
    /// 2^63.
    ///
    /// ```
    /// # use shardwheel::Scheduler;
    /// # use std::time::Duration;
    /// let (scheduler, clock) = Scheduler::builder().first_tick(1 << 63).build_manual(|_: &u32, _: ()| {})?;
    /// scheduler.schedule(1, Duration::from_secs(1)).expect("it is open and not full");
    /// assert_eq!(clock.advance(Duration::from_secs(1)), 1);
    /// # Ok::<(), shardwheel::BuildError>(())
    /// ```
    pub fn first_tick(mut self, tick: u64) -> Self {
        self.first_tick = tick;
        self
    }
}

impl<K, V, S> Builder<K, V, S>
where
    K: Hash + Eq + Send + Sync + 'static,
    V: Send + 'static,
    S: BuildHasher,
{
    /// Starts the scheduler and its threads (see [`shards`](Self::shards)). When a timer fires, `callback` gets its
    /// key and value, on the [`executor`](Self::executor).
    ///
    /// If the callback uses the scheduler, it should hold a [`WeakScheduler`](crate::WeakScheduler): a [`Scheduler`]
    /// would keep the scheduler open for ever.
    ///
    /// Callbacks run concurrently and in no order, even those of one key: the callback of its next timer may overtake
    /// one that is slow, or that waits behind a slow one. A callback should not wait for another timer's: meanwhile it
    /// keeps a thread of the pool, and if all threads wait like this, they wait for ever.
    ///
    /// The defaults depend on the cores that this thread may run on: if it is pinned to one core, the scheduler has
    /// one shard.
    ///
    /// # Errors
    /// A setting out of range: permanent. A thread that the system refuses to start: perhaps transient. No thread is
    /// left running, except some that are about to end.
    ///
    /// ```
    /// # use shardwheel::Scheduler;
    /// # use std::time::Duration;
    /// let (sender, fired) = std::sync::mpsc::channel();
    /// let scheduler = Scheduler::builder().build(move |key: &u32, value: &'static str| {
    ///     let _ = sender.send((*key, value));
    /// })?;
    /// scheduler.schedule_with(1, "a", Duration::ZERO).expect("it is open and not full");
    /// assert_eq!(fired.recv(), Ok((1, "a")));
    /// # Ok::<(), shardwheel::BuildError>(())
    /// ```
    pub fn build(self, callback: impl Fn(&K, V) + Send + Sync + 'static) -> Result<Scheduler<K, V, S>, BuildError> {
        self.start(Callback::Plain(Box::new(callback)))
    }

    /// As [`build`](Self::build), and each callback decides whether its timer comes back, as with Redis' time events.
    ///
    /// While the callback runs, its timer is not pending: `contains` answers false, and `len` does not count it. But
    /// it can still be reached by key and by handle:
    ///
    /// - `cancel` answers `None`, since the value is in use, and the timer does not come back;
    /// - `reschedule` answers true, and the timer comes back at that deadline, whatever the callback answers;
    /// - `schedule` of the same key starts a new timer in its place.
    ///
    /// A callback that panics counts as having answered [`Next::Done`]. At the end, see
    /// [`close`](crate::Scheduler::close) for timers that are firing then.
    ///
    /// ```
    /// use shardwheel::{Next, Scheduler};
    /// use std::time::Duration;
    ///
    /// let (scheduler, clock) = Scheduler::builder().build_rearming_manual(|_: &&str, tries_left: &mut u32| {
    ///     *tries_left -= 1;
    ///     if *tries_left > 0 { Next::After(Duration::from_secs(1)) } else { Next::Done }
    /// })?;
    /// scheduler.schedule_with("ping", 3, Duration::from_secs(1)).expect("it is open and not full");
    /// assert_eq!(clock.advance(Duration::from_secs(60)), 3);
    /// assert!(scheduler.is_empty());
    /// # Ok::<(), shardwheel::BuildError>(())
    /// ```
    ///
    /// # Errors
    /// As [`build`](Self::build).
    pub fn build_rearming(
        self,
        callback: impl Fn(&K, &mut V) -> Next + Send + Sync + 'static,
    ) -> Result<Scheduler<K, V, S>, BuildError> {
        self.start(Callback::Rearming(Box::new(callback)))
    }

    /// [`build_rearming`](Self::build_rearming), whose example uses it, on a manual clock; see
    /// [`build_manual`](Self::build_manual).
    ///
    /// # Errors
    /// A setting out of range: permanent.
    pub fn build_rearming_manual(
        self,
        callback: impl Fn(&K, &mut V) -> Next + Send + Sync + 'static,
    ) -> Result<(Scheduler<K, V, S>, ManualClock), BuildError> {
        self.start_manual(Callback::Rearming(Box::new(callback)))
    }

    pub(crate) fn start(self, callback: Callback<K, V>) -> Result<Scheduler<K, V, S>, BuildError> {
        self.check()?;
        self.check_cores()?;
        let executor = match &self.executor {
            Some(executor) => executor.clone(),
            None => Executor::Rayon(Arc::new(own_pool(&self.thread_name)?)),
        };
        let owns_pool = self.executor.is_none();
        let clock = Clock::system(self.tick, Tick(self.first_tick));
        let Parts { core, runner, hasher, pinning, thread_name } = self.into_parts(clock, executor, callback);
        let threads = runtime::start(&core, &runner, &pinning, &thread_name, owns_pool)?;
        Ok(Scheduler::new(core, runner, hasher, threads))
    }

    /// A scheduler without threads, on a clock that stands still until it is moved: for tests, and for replaying the
    /// past.
    ///
    /// It runs the same code as a real one, but callbacks run on the thread that moves the clock, before
    /// [`ManualClock::advance`] returns. The executor, pinning and thread name settings are not used (though a
    /// thread name with a NUL byte, and an empty list of cores, are refused).
    /// Panics of callbacks are caught here, too, a failed `assert!` among them: so a test should check what the
    /// callbacks send, or [`Stats::callback_panics`](crate::Stats::callback_panics).
    ///
    /// ```
    /// use shardwheel::Scheduler;
    /// use std::time::Duration;
    ///
    /// let (scheduler, clock) = Scheduler::builder().build_manual(|key: &&str, _: ()| println!("{key}"))?;
    /// scheduler.schedule("tea", Duration::from_secs(240)).expect("it is open and not full");
    /// assert_eq!(clock.advance(Duration::from_secs(239)), 0);
    /// assert_eq!(clock.advance(Duration::from_secs(1)), 1);
    /// # Ok::<(), shardwheel::BuildError>(())
    /// ```
    ///
    /// # Errors
    /// A setting out of range: permanent.
    pub fn build_manual(
        self,
        callback: impl Fn(&K, V) + Send + Sync + 'static,
    ) -> Result<(Scheduler<K, V, S>, ManualClock), BuildError> {
        self.start_manual(Callback::Plain(Box::new(callback)))
    }

    pub(crate) fn start_manual(
        self,
        callback: Callback<K, V>,
    ) -> Result<(Scheduler<K, V, S>, ManualClock), BuildError> {
        self.check()?;
        let clock = Clock::manual(self.tick, Tick(self.first_tick));
        let Parts { core, runner, hasher, .. } = self.into_parts(clock, Executor::Inline, callback);
        let clock = ManualClock::new(Arc::clone(&core));
        Ok((Scheduler::new(core, runner, hasher, Vec::new()), clock))
    }

    fn check(&self) -> Result<(), BuildError> {
        if self.tick < TICK_MIN || self.tick > TICK_MAX {
            return Err(BuildError::Tick(self.tick));
        }
        if let Some(count) = self.shards.filter(|&count| count == 0 || count > SHARDS_MAX) {
            return Err(BuildError::Shards(count));
        }
        if self.capacity == Some(0) {
            return Err(BuildError::Capacity(0));
        }
        if self.thread_name.contains('\0') {
            return Err(BuildError::ThreadName(self.thread_name.clone()));
        }
        if self.first_tick > FIRST_TICK_MAX {
            return Err(BuildError::FirstTick(self.first_tick));
        }
        if matches!(&self.pinning, Pinning::Cores(cores) if cores.is_empty()) {
            return Err(BuildError::NoCores);
        }
        Ok(())
    }

    /// Whether this machine has the cores of `Pinning::Cores`. Checked only if there are threads to pin.
    fn check_cores(&self) -> Result<(), BuildError> {
        let Pinning::Cores(cores) = &self.pinning else { return Ok(()) };
        let available = runtime::available_cores();
        // Where the system does not name its cores, pinning is tried, and `stats` shows the result.
        match cores.iter().find(|core| !available.is_empty() && !available.contains(core)) {
            Some(&core) => Err(BuildError::Core { core, available }),
            None => Ok(()),
        }
    }

    pub(crate) fn into_parts(self, clock: Clock, executor: Executor, callback: Callback<K, V>) -> Parts<K, V, S> {
        let stripe_count = thread::stripe_count();
        let shard_count = self.shards.unwrap_or_else(runtime::default_shard_count);
        let batch = batch_len::<K>(shard_count);
        let runs_inline = matches!(executor, Executor::Inline);
        let rearms = matches!(callback, Callback::Rearming(_));
        let runner = Arc::new(Runner { callback, on_panic: self.on_panic, executor });
        let core = Core {
            shards: (0..shard_count).map(|_| Shard::new(stripe_count, batch, clock.first_tick())).collect(),
            reports: (0..shard_count).map(|_| CachePadded::new(ShardReport::new())).collect(),
            clock,
            capacity: Capacity::new(self.capacity, stripe_count),
            counters: Counters::new(),
            runner: Arc::downgrade(&runner),
            runs_inline,
            rearms,
            growth: Growth::new(shard_count),
            under_way: (0..shard_count).map(|_| CachePadded::new(UnderWay::default())).collect(),
            sealing: UnderWay::default(),
            closing: Closing::default(),
            comebacks: Comebacks::new(),
            abandoned: Abandoned::default(),
        };
        Parts {
            core: Arc::new(core),
            runner,
            hasher: self.hasher,
            pinning: self.pinning,
            thread_name: self.thread_name,
        }
    }
}

/// A scheduler before it is started.
pub(crate) struct Parts<K: Eq + Send + Sync + 'static, V: Send + 'static, S> {
    pub(crate) core: Arc<Core<K, V>>,
    pub(crate) runner: Arc<Runner<K, V>>,
    pub(crate) hasher: S,
    pub(crate) pinning: Pinning,
    pub(crate) thread_name: String,
}

fn own_pool(thread_name: &str) -> Result<rayon::ThreadPool, BuildError> {
    let prefix = thread_name.to_owned();
    rayon::ThreadPoolBuilder::new()
        .thread_name(move |index| format!("{prefix}-pool{index}"))
        // Callbacks' panics are caught one by one; any other panic must not abort the process. (rayon#1076)
        .panic_handler(std::mem::forget)
        .build()
        .map_err(|error| BuildError::Pool(Box::new(error)))
}
