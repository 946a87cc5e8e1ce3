//! What can go wrong, and what comes back then.

use crate::shard::Refused;
use std::fmt;
use std::time::Duration;

/// Why a timer was not accepted. Key and value come back.
#[derive(Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ScheduleError<K, V> {
    /// As many timers are pending as [`Builder::capacity`](crate::Builder::capacity) allows, or as one shard can hold: almost 2^28.
    /// Those that are firing and may come back count, too (until the callback is over, though they be cancelled meanwhile), those whose
    /// `schedule` is under way, and any other until the call or the worker's step that ends it is over.
    /// Transient: there is room again when one has fired or is cancelled.
    Full(K, V),
    /// The scheduler is closed. Permanent.
    Closed(K, V),
    /// [`schedule_every`](crate::Scheduler::schedule_every) with a period of zero. Permanent.
    ZeroPeriod(K, V),
}

impl<K, V> ScheduleError<K, V> {
    /// The key and value that were not accepted.
    ///
    /// ```
    /// use shardwheel::{Close, Scheduler};
    /// use std::time::Duration;
    ///
    /// let scheduler = Scheduler::builder().build(|_: &u32, _: String| {})?;
    /// scheduler.close(Close::Discard);
    /// let refused = scheduler.schedule_with(7, "kept".to_owned(), Duration::from_secs(1)).unwrap_err();
    /// assert_eq!(refused.into_inner(), (7, "kept".to_owned()));
    /// # Ok::<(), shardwheel::BuildError>(())
    /// ```
    pub fn into_inner(self) -> (K, V) {
        match self {
            Self::Full(key, value) | Self::Closed(key, value) | Self::ZeroPeriod(key, value) => (key, value),
        }
    }

    /// True if it was [`Full`](Self::Full): worth another try later.
    pub fn is_full(&self) -> bool {
        matches!(self, Self::Full(..))
    }

    /// True if it was [`Closed`](Self::Closed): no try will succeed.
    pub fn is_closed(&self) -> bool {
        matches!(self, Self::Closed(..))
    }

    /// True if it was [`ZeroPeriod`](Self::ZeroPeriod): no try with that period will succeed.
    pub fn is_zero_period(&self) -> bool {
        matches!(self, Self::ZeroPeriod(..))
    }
}

impl<K, V> fmt::Debug for ScheduleError<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Full(..) => "Full(..)",
            Self::Closed(..) => "Closed(..)",
            Self::ZeroPeriod(..) => "ZeroPeriod(..)",
        })
    }
}

impl<K, V> fmt::Display for ScheduleError<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Full(..) => "as many timers are pending as the scheduler's capacity allows, or as a shard can hold",
            Self::Closed(..) => "the scheduler is closed",
            Self::ZeroPeriod(..) => "period is 0ns; accepted: 1ns or more",
        })
    }
}

impl<K, V> std::error::Error for ScheduleError<K, V> {}

impl<K, V> From<Refused<K, V>> for ScheduleError<K, V> {
    fn from(refused: Refused<K, V>) -> Self {
        match refused {
            Refused::Exhausted(key, value) => Self::Full(key, value),
            Refused::Sealed(key, value) => Self::Closed(key, value),
        }
    }
}

/// Why a scheduler could not be built. Nothing is left running (but for threads that have been told to end).
#[derive(Debug)]
#[non_exhaustive]
pub enum BuildError {
    /// [`Builder::tick`](crate::Builder::tick) is outside of 10 us ..= 1 h. Permanent.
    Tick(Duration),
    /// [`Builder::shards`](crate::Builder::shards) is outside of 1 ..= 1024. Permanent.
    Shards(usize),
    /// [`Builder::capacity`](crate::Builder::capacity) is 0. Permanent.
    Capacity(usize),
    /// [`Pinning::Cores`](crate::Pinning::Cores) is an empty list. Permanent.
    NoCores,
    /// [`Pinning::Cores`](crate::Pinning::Cores) names a core that the building thread may not run on. Permanent.
    Core {
        /// The core that was asked for.
        core: usize,
        /// The cores that the thread may run on.
        available: Vec<usize>,
    },
    /// [`Builder::first_tick`](crate::Builder::first_tick) is beyond 2^63. Permanent.
    FirstTick(u64),
    /// [`Builder::thread_name`](crate::Builder::thread_name) contains a NUL. Permanent.
    ThreadName(String),
    /// A thread of the scheduler could not be started. Transient, perhaps: the system says why.
    Thread(std::io::Error),
    /// The pool that runs the callbacks could not be started. Transient, perhaps.
    Pool(Box<dyn std::error::Error + Send + Sync>),
}

impl fmt::Display for BuildError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tick(tick) => write!(f, "tick is {tick:?}; accepted: 10us to 1h"),
            Self::Shards(count) => write!(f, "shards is {count}; accepted: 1 to 1024"),
            Self::Capacity(limit) => write!(f, "capacity is {limit}; accepted: 1 or more (leave it out for no bound)"),
            Self::NoCores => f.write_str("pinning is Cores([]); accepted: at least one core (Pinning::Off for none)"),
            Self::Core { core, available } => {
                write!(f, "pinning names core {core}; accepted: the cores that this thread may run on, {available:?}")
            }
            Self::FirstTick(tick) => write!(f, "first_tick is {tick}; accepted: 0 to 2^63"),
            Self::ThreadName(name) => write!(f, "thread_name is {name:?}; accepted: any name without a NUL"),
            Self::Thread(error) => write!(f, "a thread of the scheduler could not be started: {error}"),
            Self::Pool(error) => write!(f, "the pool for the callbacks could not be started: {error}"),
        }
    }
}

impl std::error::Error for BuildError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Thread(error) => Some(error),
            Self::Pool(error) => Some(&**error),
            _ => None,
        }
    }
}
