//! The settings of a scheduler, and their checks.

use crate::callback::{Callback, Next, PanicHook};
use crate::capacity::Capacity;
use crate::clock::Clock;
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

/// Where the workers run. Pinning is best effort: what became of it stands in [`Stats::shards`](crate::Stats::shards).
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum Pinning {
    /// One core per worker, if there are enough, and if the workers run no code of yours ([`Executor::Inline`] and
    /// [`Executor::Custom`]): threads that it starts there would be pinned as well. Schedulers with fewer workers than there are cores
    /// take cores in turn; the first one of a process begins anywhere.
    #[default]
    Auto,
    /// Wherever the system likes.
    Off,
    /// These cores in turn, by the system's numbers; each must be one that the building thread may run on. (On Linux, a thread that
    /// [`Executor::Inline`] or [`Executor::Custom`] have your code start on a worker inherits its core.)
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
    /// The quantum of time: rounding makes a timer late by one tick at most (the worker's wake-up and its backlog come on top), and
    /// a worker with something to do wakes up so often. Default 1 ms; accepted 10 us to 1 h.
    pub fn tick(mut self, tick: Duration) -> Self {
        self.tick = tick;
        self
    }

    /// The number of shards, each with a worker thread of its own, and another for callbacks unless
    /// [`executor`](Self::executor) names who runs them. Default: the cores that the thread which builds may run on; accepted 1 to 1024.
    /// One more thread works ahead while they grow, one runs quick callbacks of several shards (if there are five or more), and a rayon
    /// pool with a thread for each core (or `RAYON_NUM_THREADS`) waits for slow callbacks: by default that makes three threads to a core,
    /// and two. All sleep while nothing is due.
    ///
    /// Each tick at which a timer of a shard is due wakes that shard's worker. So while fewer than some hundred thousand timers a second
    /// fire, fewer shards take less processor time, and most calls are as fast: on sixteen cores, one shard takes a seventh of what
    /// sixteen take for 10,000 a second, and a fifth for 100,000 (`docs/benchmarks.md`).
    pub fn shards(mut self, count: usize) -> Self {
        self.shards = Some(count);
        self
    }

    /// Where the workers run. Default [`Pinning::Auto`].
    pub fn pinning(mut self, pinning: Pinning) -> Self {
        self.pinning = pinning;
        self
    }

    /// The most timers that may be pending; one more is refused with [`ScheduleError::Full`](crate::ScheduleError::Full).
    /// Default: no bound but memory and almost 2^28 timers a shard; accepted 1 or more.
    ///
    /// A timer that may come back ([`build_rearming`](Self::build_rearming),
    /// [`schedule_every`](crate::Scheduler::schedule_every)) keeps its room while its callback runs.
    ///
    /// Scheduling a key that is pending, or that fires and may come back, replaces its timer and needs no room. (If that timer ends at the very same
    /// moment and somebody else takes its room, the bound is exceeded by one, for each such call, until as many timers end. And a call
    /// that starts a timer has its room from its own beginning on, whatever becomes of it.)
    ///
    /// What waits for its callback has left its room, and what may come back leaves it to the timer in its place:
    /// [`expire_now`](crate::Scheduler::expire_now) and `schedule`, over and over, and faster than the callbacks, pile up those. (Of what comes due by itself no more than 65,536 wait in each shard.)
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

    /// Who runs the callbacks. Default: a thread per shard, or one for those of many that expire together, for as long as callbacks are
    /// quick, and a rayon pool of the scheduler's own, with a thread per core (see [`shards`](Self::shards)): for what expires while
    /// the shard's thread is busy, for what has waited there for a millisecond, and for what is fired by a call.
    ///
    /// On one of those threads, rayon's own functions (`join`, `spawn`, parallel iterators) use rayon's global pool. To callbacks
    /// that use them, give a pool: [`Executor::Rayon`].
    ///
    /// A callback that calls those functions should hold no lock meanwhile, whatever the pool; see there.
    pub fn executor(mut self, executor: Executor) -> Self {
        self.executor = Some(executor);
        self
    }

    /// How keys are hashed. Default: [`RandomState`], which an attacker who chooses the keys cannot predict.
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

    /// Called with the key and the panic's payload when a callback has panicked. Panics are counted in any case.
    ///
    /// ```
    /// # use shardwheel::Scheduler;
    /// # use std::time::Duration;
    /// let builder = Scheduler::builder().on_panic(|key: &u32, _payload| eprintln!("the callback of {key} has panicked"));
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

    /// What the names of the scheduler's threads begin with. Default `shardwheel`: `shardwheel-0` is the first shard's worker, and
    /// `shardwheel-grow` works ahead. Without an [`executor`](Self::executor), `shardwheel-cb0` runs the first shard's callbacks,
    /// `shardwheel-lane` those of many shards, and `shardwheel-pool0` is of the pool for slow ones. Accepted: any without a NUL. (Linux shows
    /// 15 bytes of a name.)
    ///
    /// ```
    /// # use shardwheel::Scheduler;
    /// # use std::time::Duration;
    /// let (names, named) = std::sync::mpsc::channel();
    /// let callback = move |_: &u32, ()| names.send(std::thread::current().name().map(str::to_owned)).expect("it is awaited");
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
    /// Starts the scheduler. `callback` gets each timer's key and value when it fires, on the executor. If it uses the scheduler, let it
    /// hold a [`WeakScheduler`](crate::WeakScheduler): with a [`Scheduler`] of its own it would keep that open for ever.
    ///
    /// Callbacks run side by side and in no order. That holds for one key, too: the callback of its next timer may overtake one that is
    /// slow, or waits behind one. A callback should not wait for another timer's: it keeps a thread of the pool meanwhile, and as many of
    /// those as there are threads would wait for ever.
    ///
    /// The defaults go by the cores that this thread may run on: one that is pinned to a core builds a scheduler with one shard.
    ///
    /// # Errors
    /// A setting out of range, or a thread that the system refuses to start. Nothing is left running then.
    pub fn build(self, callback: impl Fn(&K, V) + Send + Sync + 'static) -> Result<Scheduler<K, V, S>, BuildError> {
        self.start(Callback::Plain(Box::new(callback)))
    }

    /// As [`build`](Self::build), and each callback decides whether its timer comes back, as Redis' time events do.
    ///
    /// While the callback runs, its timer is not pending: `contains` answers false and `len` leaves it out. But it can still
    /// be reached by key and by handle: `cancel` answers `None`, since the value is in use, and the timer does not come back;
    /// `reschedule` answers true, and it comes back at that deadline, whatever the callback answers; `schedule` of the same key
    /// starts a new timer in its place. A callback that panics has answered [`Next::Done`].
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

    /// [`build_rearming`](Self::build_rearming) on a manual clock; see [`build_manual`](Self::build_manual).
    ///
    /// # Errors
    /// A setting out of range.
    pub fn build_rearming_manual(
        self,
        callback: impl Fn(&K, &mut V) -> Next + Send + Sync + 'static,
    ) -> Result<(Scheduler<K, V, S>, ManualClock), BuildError> {
        self.start_manual(Callback::Rearming(Box::new(callback)))
    }

    fn start(self, callback: Callback<K, V>) -> Result<Scheduler<K, V, S>, BuildError> {
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

    /// A scheduler without threads, on a clock that stands still until it is moved: for tests, and for replaying the past.
    ///
    /// It runs the same code as a real one, but callbacks run on the thread that moves the clock, before
    /// [`ManualClock::advance`] returns; the executor, pinning and thread name settings are not used. Their panics are caught here, too, a
    /// failed `assert!` among them: a test looks at what they tell, or at [`Stats::callback_panics`](crate::Stats::callback_panics).
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
    /// A setting out of range.
    pub fn build_manual(
        self,
        callback: impl Fn(&K, V) + Send + Sync + 'static,
    ) -> Result<(Scheduler<K, V, S>, ManualClock), BuildError> {
        self.start_manual(Callback::Plain(Box::new(callback)))
    }

    fn start_manual(self, callback: Callback<K, V>) -> Result<(Scheduler<K, V, S>, ManualClock), BuildError> {
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

    /// Whether this machine has them: only where there are threads to pin.
    fn check_cores(&self) -> Result<(), BuildError> {
        let Pinning::Cores(cores) = &self.pinning else { return Ok(()) };
        let available = runtime::available_cores();
        // Where the system does not tell its cores, pinning is tried, and `stats` tells.
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
        // Callbacks' panics are caught one by one; whatever else there may be must not abort the process. (rayon#1076)
        .panic_handler(std::mem::forget)
        .build()
        .map_err(|error| BuildError::Pool(Box::new(error)))
}
