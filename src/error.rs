//! What can go wrong, and what comes back then.

use crate::shard::Refused;
use std::fmt;
use std::time::Duration;

/// Why a timer was not accepted. Key and value come back.
///
/// ```
/// use shardwheel::{Close, MissedTicks, Scheduler};
/// use std::time::Duration;
///
/// let (scheduler, _clock) = Scheduler::builder().capacity(1).build_manual(|_: &u32, _: &str| {})?;
/// let second = Duration::from_secs(1);
/// assert!(scheduler.schedule_with(1, "a", second).is_ok());
/// assert!(scheduler.schedule_with(2, "b", second).is_err_and(|error| error.is_full()));
/// let refused = scheduler.schedule_every(1, "c", Duration::ZERO, MissedTicks::Skip);
/// assert!(refused.is_err_and(|error| error.is_zero_period()));
/// scheduler.close(Close::Discard);
/// assert!(scheduler.schedule_with(2, "b", second).is_err_and(|error| error.is_closed()));
/// # Ok::<(), shardwheel::BuildError>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ScheduleError<K, V> {
    /// There are as many timers as [`Builder::capacity`](crate::Builder::capacity) allows, or as one shard can hold:
    /// almost 2^28. Transient: there is room again when a timer has fired or is cancelled.
    ///
    /// These count as well as pending timers:
    /// - timers that may come back, while they fire: until their callback is over, even if they are cancelled
    ///   meanwhile;
    /// - timers that have ended, until the call or the worker's step that ended them is over;
    /// - calls that start a timer, until they return.
    Full(K, V),
    /// The scheduler is closed. Permanent.
    Closed(K, V),
    /// [`schedule_every`](crate::Scheduler::schedule_every) with a period of zero, also after `close`. Permanent.
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

    /// True if it is [`Full`](Self::Full): another try may succeed later.
    pub fn is_full(&self) -> bool {
        matches!(self, Self::Full(..))
    }

    /// True if it is [`Closed`](Self::Closed): no other try will succeed.
    pub fn is_closed(&self) -> bool {
        matches!(self, Self::Closed(..))
    }

    /// True if it is [`ZeroPeriod`](Self::ZeroPeriod): no other try with that period will succeed.
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

/// Why a scheduler could not be built. No thread is left running, except some that are about to end.
///
/// ```
/// use shardwheel::{BuildError, Scheduler};
///
/// let refused = Scheduler::builder().shards(0).build(|_: &u32, _: ()| {});
/// assert!(matches!(refused, Err(BuildError::Shards(0))));
/// assert_eq!(refused.unwrap_err().to_string(), "shards is 0; accepted: 1 to 1024");
/// ```
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
    /// A thread of the scheduler could not be started. Perhaps transient: the system says why.
    Thread(std::io::Error),
    /// The pool that runs the callbacks could not be started. Perhaps transient.
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
            // The `source` says why.
            Self::Thread(_) => f.write_str("a thread of the scheduler could not be started"),
            Self::Pool(_) => f.write_str("the pool for the callbacks could not be started"),
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
