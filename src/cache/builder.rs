//! The settings of a cache, and their checks.

use super::Cache;
use super::hashed::Ready;
use super::lifetime::Lifetime;
use super::loader::Loads;
use super::stats::Cause;
use super::store::{Listener, Store};
use super::timers::{Expiring, Owned, Timers};
use crate::builder::{self, Pinning};
use crate::callback::Callback;
use crate::error::BuildError;
use crate::executor::Executor;
use crate::manual::ManualClock;
use crate::scheduler::Scheduler;
use std::collections::hash_map::RandomState;
use std::fmt;
use std::hash::{BuildHasher, BuildHasherDefault, Hash};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

/// Why a cache could not be built. No thread is left running, except some that are about to end.
#[derive(Debug)]
#[non_exhaustive]
pub enum CacheError {
    /// The TTL of [`Cache::builder`] is zero. Permanent.
    Ttl(Duration),
    /// [`Builder::limit`] is 0. Permanent.
    Limit(usize),
    /// [`Builder::jitter`] is not at least 0 and less than 1. Permanent.
    Jitter(f64),
    /// The scheduler of the timers could not be started: one of its own settings is out of range, or the system refuses
    /// a thread. Permanent or transient as the [`BuildError`] inside, whose message and source this has.
    Scheduler(BuildError),
}

impl fmt::Display for CacheError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ttl(ttl) => write!(f, "ttl is {ttl:?}; accepted: more than zero (Duration::MAX for no expiry)"),
            Self::Limit(limit) => write!(f, "limit is {limit}; accepted: 1 or more (leave it out for no limit)"),
            Self::Jitter(jitter) => write!(f, "jitter is {jitter}; accepted: 0 or more and less than 1 (0.05 is 5 %)"),
            Self::Scheduler(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for CacheError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Scheduler(error) => error.source(),
            Self::Ttl(_) | Self::Limit(_) | Self::Jitter(_) => None,
        }
    }
}

/// The settings of a [`Cache`]; made by [`Cache::builder`].
///
/// ```
/// use shardwheel::cache::Cache;
/// use std::time::Duration;
///
/// let cache = Cache::builder(Duration::from_secs(60))
///     .jitter(0.1)
///     .limit(100_000)
///     .tick(Duration::from_millis(50))
///     .shards(2)
///     .thread_name("sessions")
///     .listener(|key: &u64, value: &String, cause| println!("{key}: {value} left, {cause:?}"))
///     .build()?;
/// # drop(cache);
/// # Ok::<(), shardwheel::cache::CacheError>(())
/// ```
#[must_use]
pub struct Builder<K, V, S = RandomState> {
    ttl: Duration,
    jitter: f64,
    renews_on_get: bool,
    limit: Option<usize>,
    timers: TimersBuilder,
    listener: Option<Listener<K, V>>,
    hasher: S,
}

type TimersBuilder = builder::Builder<u64, Owned, BuildHasherDefault<Ready>>;

impl<K, V, S> fmt::Debug for Builder<K, V, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder")
            .field("ttl", &self.ttl)
            .field("jitter", &self.jitter)
            .field("renews_on_get", &self.renews_on_get)
            .field("limit", &self.limit)
            .field("timers", &self.timers)
            .finish_non_exhaustive()
    }
}

impl<K, V> Builder<K, V> {
    pub(super) fn new(ttl: Duration) -> Self {
        let timers = Scheduler::builder().tick(Duration::from_millis(10)).shards(1).pinning(Pinning::Off);
        let timers = timers.hasher(BuildHasherDefault::default());
        Self {
            ttl,
            jitter: 0.05,
            renews_on_get: false,
            limit: None,
            timers,
            listener: None,
            hasher: RandomState::new(),
        }
    }
}

impl<K, V, S> Builder<K, V, S> {
    /// By what fraction of it each TTL is made longer or shorter at random, so that entries inserted together do not
    /// expire, and are not loaded again, together. Default 0.05, for 5 % either way; accepted 0 (off) or more and less
    /// than 1.
    ///
    /// ```
    /// # use shardwheel::cache::Cache;
    /// # use std::time::Duration;
    /// let (cache, clock) = Cache::builder(Duration::from_secs(100)).jitter(0.1).build_manual()?;
    /// for key in 0..1000 {
    ///     cache.insert(key, "value");
    /// }
    /// clock.advance(Duration::from_secs(89));
    /// assert_eq!(cache.len(), 1000, "each lives for 90 seconds at least");
    /// clock.advance(Duration::from_secs(11));
    /// assert!((1..1000).contains(&cache.len()));
    /// clock.advance(Duration::from_secs(11));
    /// assert_eq!(cache.len(), 0, "and for 110 seconds at most");
    /// # Ok::<(), shardwheel::cache::CacheError>(())
    /// ```
    pub fn jitter(mut self, fraction: f64) -> Self {
        self.jitter = fraction;
        self
    }

    /// Whether each hit of a [`get`](super::Cache::get), or of one of the `get_or_..` calls, begins the entry's time
    /// anew, so that what is used stays ("sliding expiration", "time to idle"). Default: no, an entry lives from its
    /// insertion on. It costs a hit one atomic write: the entry's timer fires when it would have, and comes back.
    ///
    /// A hit only puts the deadline off: one that is later than that anyway stands. See also
    /// [`Cache::renew`](super::Cache::renew).
    ///
    /// ```
    /// # use shardwheel::cache::Cache;
    /// # use std::time::Duration;
    /// let minute = Duration::from_secs(60);
    /// let (sessions, clock) = Cache::builder(30 * minute).renew_on_get(true).jitter(0.0).build_manual()?;
    /// sessions.insert("a", 1);
    /// for _ in 0..10 {
    ///     clock.advance(20 * minute);
    ///     assert_eq!(sessions.get("a"), Some(1));
    /// }
    /// clock.advance(30 * minute);
    /// assert_eq!(sessions.get("a"), None);
    /// # Ok::<(), shardwheel::cache::CacheError>(())
    /// ```
    pub fn renew_on_get(mut self, on: bool) -> Self {
        self.renews_on_get = on;
        self
    }

    /// The most entries that the cache keeps; with one more, the least recently used one leaves. One that has expired
    /// counts until its timer has taken it out (see [`len`](super::Cache::len)). Costs each write a short lock.
    /// Default: no limit; accepted 1 or more.
    ///
    /// ```
    /// # use shardwheel::cache::Cache;
    /// # use std::time::Duration;
    /// let cache = Cache::builder(Duration::from_secs(60)).limit(2).build()?;
    /// cache.insert("a", 1);
    /// cache.insert("b", 2);
    /// assert_eq!(cache.get("a"), Some(1));
    /// cache.insert("c", 3);
    /// assert!(cache.contains("a") && cache.contains("c"));
    /// assert!(!cache.contains("b"), "it was the least recently used one");
    /// # Ok::<(), shardwheel::cache::CacheError>(())
    /// ```
    pub fn limit(mut self, most_entries: usize) -> Self {
        self.limit = Some(most_entries);
        self
    }

    /// The quantum of time in which expired entries are taken out, as [`crate::Builder::tick`]. Default 10 ms; accepted
    /// 10 us to 1 h. An expired entry is never seen, even before that; but until it is taken out, it has its place
    /// within the [`limit`](Self::limit).
    pub fn tick(mut self, tick: Duration) -> Self {
        self.timers = self.timers.tick(tick);
        self
    }

    /// The number of shards of the timers, each with a worker thread of its own, as [`crate::Builder::shards`]. Default
    /// 1; accepted 1 to 1024. (One more thread, for all of them, works ahead while the number of timers grows. With a
    /// listener there are those that call it, too: see [`executor`](Self::executor).)
    pub fn shards(mut self, count: usize) -> Self {
        self.timers = self.timers.shards(count);
        self
    }

    /// Who takes expired entries out and calls the listener for them. Default: with a listener, threads of the cache's
    /// own, one for each shard and one for each core, as for a scheduler ([`crate::Builder::executor`]); without one,
    /// the workers themselves.
    ///
    /// Expired entries in a job that the executor drops are never seen again, but count until their keys are used
    /// again; with a limit they also keep their values, and make room for new ones in their turn. (Entries that were
    /// renewed live on.)
    ///
    /// ```
    /// use shardwheel::Executor;
    /// use shardwheel::cache::{Cache, Cause};
    /// use std::time::Duration;
    ///
    /// let (sender, ended) = std::sync::mpsc::channel();
    /// // The listener only passes a message on, so the worker itself may call it.
    /// let cache = Cache::builder(Duration::from_millis(5))
    ///     .executor(Executor::Inline)
    ///     .listener(move |key: &u64, _: &String, cause| drop(sender.send((*key, cause))))
    ///     .build()?;
    /// cache.insert(7, "seven".to_owned());
    /// assert_eq!(ended.recv(), Ok((7, Cause::Expired)));
    /// # Ok::<(), shardwheel::cache::CacheError>(())
    /// ```
    pub fn executor(mut self, executor: Executor) -> Self {
        self.timers = self.timers.executor(executor);
        self
    }

    /// What the names of the cache's threads begin with, as [`crate::Builder::thread_name`]. Default `shardwheel`.
    pub fn thread_name(mut self, prefix: impl Into<String>) -> Self {
        self.timers = self.timers.thread_name(prefix);
        self
    }

    /// Called once for each entry that has left, with the cause: on the thread that ended the entry, whose call takes
    /// that much longer, or on the executor if the entry's timer did. The listener may use the cache through a
    /// [`Weak`](std::sync::Weak); an [`Arc`] would keep the cache alive for ever. (If it puts in again what was evicted
    /// or replaced, that call ends an entry in turn, and so calls the listener within the listener: bound that.) A
    /// panic is caught and counted.
    ///
    /// ```
    /// # use shardwheel::cache::{Cache, Cause};
    /// # use std::time::Duration;
    /// let (sender, ended) = std::sync::mpsc::channel();
    /// let listener = move |key: &u64, value: &char, cause| drop(sender.send((*key, *value, cause)));
    /// let cache = Cache::builder(Duration::from_secs(60)).listener(listener).build()?;
    /// cache.insert(1, 'a');
    /// cache.insert(1, 'b');
    /// cache.remove(&1);
    /// assert_eq!(ended.recv(), Ok((1, 'a', Cause::Replaced)));
    /// assert_eq!(ended.recv(), Ok((1, 'b', Cause::Removed)));
    /// # Ok::<(), shardwheel::cache::CacheError>(())
    /// ```
    pub fn listener(mut self, listener: impl Fn(&K, &V, Cause) + Send + Sync + 'static) -> Self {
        self.listener = Some(Box::new(listener));
        self
    }

    /// How keys are hashed. Default: [`RandomState`], which an attacker who chooses the keys cannot predict.
    pub fn hasher<T: BuildHasher>(self, hasher: T) -> Builder<K, V, T> {
        Builder {
            ttl: self.ttl,
            jitter: self.jitter,
            renews_on_get: self.renews_on_get,
            limit: self.limit,
            timers: self.timers,
            listener: self.listener,
            hasher,
        }
    }
}

impl<K, V, S> Builder<K, V, S>
where
    K: Hash + Eq + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
    S: BuildHasher + Send + Sync + 'static,
{
    /// Starts the cache, and the threads of its timers.
    ///
    /// # Errors
    /// [`CacheError::Ttl`], [`CacheError::Limit`] and [`CacheError::Jitter`] for a setting out of range (permanent);
    /// [`CacheError::Scheduler`] for a setting or a thread of the timers' scheduler (as the error inside). No thread
    /// is left running then, except some that are about to end.
    pub fn build(self) -> Result<Cache<K, V, S>, CacheError> {
        self.check()?;
        let (cache, ()) = self.start(|timers, callback| Ok((timers.start(callback)?, ())))?;
        Ok(cache)
    }

    /// As [`build`](Self::build), without threads, on a clock that stands still until it is moved: for tests. The
    /// listener of what expires runs on the thread that moves the clock; the executor and thread name settings are not
    /// used.
    ///
    /// ```
    /// use shardwheel::cache::Cache;
    /// use std::time::Duration;
    ///
    /// let (cache, clock) = Cache::builder(Duration::from_secs(60)).jitter(0.0).build_manual()?;
    /// cache.insert("a", 1);
    /// clock.advance(Duration::from_secs(59));
    /// assert_eq!(cache.get("a"), Some(1));
    /// clock.advance(Duration::from_secs(1));
    /// assert_eq!(cache.get("a"), None);
    /// # Ok::<(), shardwheel::cache::CacheError>(())
    /// ```
    ///
    /// # Errors
    /// A setting out of range, as for [`build`](Self::build): permanent.
    pub fn build_manual(self) -> Result<(Cache<K, V, S>, ManualClock), CacheError> {
        self.check()?;
        self.start(builder::Builder::start_manual)
    }

    fn start<C>(
        self,
        start: impl FnOnce(TimersBuilder, Callback<u64, Owned>) -> Result<(Timers, C), BuildError>,
    ) -> Result<(Cache<K, V, S>, C), CacheError> {
        // Without a listener no code of the user's runs but destructors and the keys' `Eq`: not worth a pool.
        let timers = if self.listener.is_some() { self.timers } else { self.timers.default_executor(Executor::Inline) };
        let lifetime = Lifetime::new(self.ttl, self.jitter);
        let renews_on_get = self.renews_on_get;
        let store = Arc::new(Store::new(self.hasher, self.limit, self.listener));
        let callback = Callback::Rearming(Box::new(Expiring(Arc::clone(&store))));
        let (timers, clock) = start(timers, callback).map_err(CacheError::Scheduler)?;
        let cache = Cache { store, timers, lifetime, renews_on_get, loads: Loads::new(), last_id: AtomicU64::new(0) };
        Ok((cache, clock))
    }

    fn check(&self) -> Result<(), CacheError> {
        if self.ttl.is_zero() {
            return Err(CacheError::Ttl(self.ttl));
        }
        if self.limit == Some(0) {
            return Err(CacheError::Limit(0));
        }
        // NaN is in no range.
        if !(0.0..1.0).contains(&self.jitter) {
            return Err(CacheError::Jitter(self.jitter));
        }
        Ok(())
    }
}
