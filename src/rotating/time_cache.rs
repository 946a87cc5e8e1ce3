//! The map that rotates itself.
//!
//! # Why the bounds hold
//!
//! Rotations are due at fixed moments, T/(k-1) apart. Whoever uses the map first makes up for the rotations that are due by
//! now (`State::catch_up`), so they take effect at their moments however late the timer is: it only brings the dead buckets
//! to the callback. An entry inserted at t is in the newest bucket while the next rotation is due at d, t < d <= t + T/(k-1);
//! it leaves with the k-th, at d + T: after T at least, and T + T/(k-1) at most.

use super::error::RotatingError;
use super::map::RotatingMap;
use crate::builder::Pinning;
use crate::close::Close;
use crate::executor::Executor;
use crate::manual::ManualClock;
use crate::scheduler::{Scheduler, WeakScheduler};
use crate::unwind::caught;
use std::borrow::Borrow;
use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::hash::Hash;
use std::mem;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

type Expired<K, V> = Box<dyn Fn(Vec<(K, V)>) + Send + Sync>;

/// A map of k buckets whose entries expire by the bucket: an entry lives for T at least and T(1 + 1/(k-1)) at most,
/// whatever the moment of its insertion. Inserting it again begins anew.
///
/// For many threads; each call takes one short lock and looks into up to k buckets. Buckets that expire are handed to a
/// callback, one call for each that is not empty, in order, on a thread of the map's own: at most one tick of 1 ms and the
/// thread's wake-up late, and after the callback for the bucket before. No entry is seen when its time is over, be the
/// callback late or not. A callback that panics stops nothing: the panic is counted. It may use the map, other than a key's `Hash` and
/// `Eq`, which run within that lock; let it hold a [`Weak`](std::sync::Weak): with an [`Arc`] of its own it would keep the map for ever.
///
/// The map wakes up k-1 times in T, empty or not. Dropping it ends its thread, after the call that it is at (for which nobody waits in a
/// callback of whatever map or scheduler); what is in it is dropped, with no call.
///
/// ```
/// use shardwheel::rotating::TimeCacheMap;
/// use std::time::Duration;
///
/// let (sender, expired) = std::sync::mpsc::channel();
/// let pending = TimeCacheMap::new(Duration::from_millis(250), 3, move |bucket: Vec<(u64, &str)>| {
///     let _ = sender.send(bucket);
/// })?;
/// pending.insert(17, "request");
/// assert_eq!(pending.get(&17), Some("request"));
/// assert_eq!(expired.recv(), Ok(vec![(17, "request")]));
/// # Ok::<(), shardwheel::rotating::RotatingError>(())
/// ```
pub struct TimeCacheMap<K, V> {
    /// Whose only timer rotates the map.
    scheduler: Scheduler<()>,
    shared: Arc<Shared<K, V>>,
}

struct Shared<K, V> {
    state: Mutex<State<K, V>>,
    expired: Expired<K, V>,
    /// It exists only after its callback does; set before the first rotation is scheduled.
    scheduler: OnceLock<WeakScheduler<()>>,
}

struct State<K, V> {
    map: RotatingMap<K, V>,
    period: Duration,
    /// When the next rotation is due; `None`: never.
    next: Option<Instant>,
    /// Buckets on their way to the callback.
    dead: VecDeque<HashMap<K, V>>,
    panics: u64,
}

impl<K, V> fmt::Debug for TimeCacheMap<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TimeCacheMap").field("map", &self.shared.lock().map).finish_non_exhaustive()
    }
}

/// Waits for the call that its thread is at; but not in a callback, which may be that call, nor for whoever moves a manual clock.
impl<K, V> Drop for TimeCacheMap<K, V> {
    fn drop(&mut self) {
        self.scheduler.close(Close::Discard);
        // Where nobody was waited for, no further call begins.
        let mut state = self.shared.lock();
        state.next = None;
        let dead = mem::take(&mut state.dead);
        drop(state);
        drop(dead);
    }
}

impl<K: Hash + Eq + Send + 'static, V: Send + 'static> TimeCacheMap<K, V> {
    /// A map of `buckets` buckets whose entries live for `expiry` at least. Three buckets, which is what Storm takes,
    /// keep them for half as long again at most.
    ///
    /// An expiry of hundreds of years, [`Duration::MAX`] for one, never comes.
    ///
    /// # Errors
    /// [`RotatingError::Buckets`] and [`RotatingError::Expiry`] for a setting out of range, [`RotatingError::Scheduler`] if
    /// the system refuses a thread.
    pub fn new(
        expiry: Duration,
        buckets: usize,
        expired: impl Fn(Vec<(K, V)>) + Send + Sync + 'static,
    ) -> Result<Self, RotatingError> {
        let shared = Arc::new(Shared::new(expiry, buckets, Box::new(expired))?);
        let timer = Arc::clone(&shared);
        // The only timer of its only shard: there is nobody whom the callback could hold up.
        let builder = Scheduler::builder().shards(1).pinning(Pinning::Off).executor(Executor::Inline);
        let scheduler = builder.build(move |(), ()| timer.turn()).map_err(RotatingError::Scheduler)?;
        shared.start(&scheduler);
        Ok(Self { scheduler, shared })
    }

    /// As [`new`](Self::new), without a thread, on a clock that stands still until it is moved: for tests. The callback runs on
    /// the thread that moves the clock.
    ///
    /// ```
    /// use shardwheel::rotating::TimeCacheMap;
    /// use std::time::Duration;
    ///
    /// let expiry = Duration::from_secs(20);
    /// let (map, clock) = TimeCacheMap::new_manual(expiry, 3, |bucket| println!("{bucket:?}"))?;
    /// map.insert("a", 1);
    /// clock.advance(Duration::from_secs(20));
    /// assert!(map.contains("a"));
    /// clock.advance(Duration::from_secs(10));
    /// assert!(!map.contains("a"));
    /// # Ok::<(), shardwheel::rotating::RotatingError>(())
    /// ```
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn new_manual(
        expiry: Duration,
        buckets: usize,
        expired: impl Fn(Vec<(K, V)>) + Send + Sync + 'static,
    ) -> Result<(Self, ManualClock), RotatingError> {
        let shared = Arc::new(Shared::new(expiry, buckets, Box::new(expired))?);
        let timer = Arc::clone(&shared);
        let built = Scheduler::builder().shards(1).build_manual(move |(), ()| timer.turn());
        let (scheduler, clock) = built.map_err(RotatingError::Scheduler)?;
        shared.start(&scheduler);
        Ok((Self { scheduler, shared }, clock))
    }

    /// Puts an entry into the newest bucket, for another whole expiry. The value that was under this key comes back.
    pub fn insert(&self, key: K, value: V) -> Option<V> {
        // The old key, which is the user's, is dropped without the lock.
        let old = self.current().map.replace(key, value);
        old.map(|(_, value)| value)
    }

    /// The value of `key`. Looking at an entry does not keep it: only another [`insert`](Self::insert) does.
    ///
    /// It is cloned while the map is locked: a value that is large, or whose `Clone` uses the map, belongs in an [`Arc`].
    pub fn get<Q: Hash + Eq + ?Sized>(&self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
        V: Clone,
    {
        self.current().map.get(key).cloned()
    }

    /// True if there is an entry under `key`.
    pub fn contains<Q: Hash + Eq + ?Sized>(&self, key: &Q) -> bool
    where
        K: Borrow<Q>,
    {
        self.current().map.contains(key)
    }

    /// Takes an entry out: it will not come to the callback. `None`: it expired, or never was.
    pub fn remove<Q: Hash + Eq + ?Sized>(&self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
    {
        // As in `insert`.
        let removed = self.current().map.remove_entry(key);
        removed.map(|(_, value)| value)
    }

    /// The number of entries. O(k).
    pub fn len(&self) -> usize {
        self.current().map.len()
    }

    /// True if there is no entry.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many calls of the callback panicked.
    pub fn callback_panics(&self) -> u64 {
        self.shared.lock().panics
    }

    fn current(&self) -> MutexGuard<'_, State<K, V>> {
        self.shared.current(&self.scheduler)
    }
}

impl<K, V> Shared<K, V> {
    /// Nothing that panics in between leaves the state half done: at worst, entries are missing.
    fn lock(&self) -> MutexGuard<'_, State<K, V>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<K: Hash + Eq + Send + 'static, V: Send + 'static> Shared<K, V> {
    fn new(expiry: Duration, buckets: usize, expired: Expired<K, V>) -> Result<Self, RotatingError> {
        let map = RotatingMap::new(buckets)?;
        if expiry.is_zero() {
            return Err(RotatingError::Expiry(expiry));
        }
        // Rounded up, so that k-1 periods are no shorter than the expiry.
        let period = expiry.as_nanos().div_ceil(buckets as u128 - 1);
        let period = Duration::from_nanos(u64::try_from(period).unwrap_or(u64::MAX));
        let state = State { map, period, next: None, dead: VecDeque::new(), panics: 0 };
        Ok(Self { state: Mutex::new(state), expired, scheduler: OnceLock::new() })
    }

    fn start(&self, scheduler: &Scheduler<()>) {
        let mut state = self.lock();
        state.next = scheduler.now().checked_add(state.period);
        drop(state);
        let _ = self.scheduler.set(scheduler.downgrade());
        self.arm();
    }

    /// `None`: the map itself is on its way out.
    fn scheduler(&self) -> Option<Scheduler<()>> {
        self.scheduler.get()?.upgrade().filter(|scheduler| !scheduler.is_closed())
    }

    /// The map as it is by now.
    fn current(&self, scheduler: &Scheduler<()>) -> MutexGuard<'_, State<K, V>> {
        let mut state = self.lock();
        // Read under the lock: whoever is second sees no earlier time than whoever was first.
        state.catch_up(scheduler.now());
        state
    }

    /// The timer's callback: hands over what has died, and waits for the next rotation.
    fn turn(&self) {
        while let Some(bucket) = self.next_dead() {
            if caught(|| (self.expired)(bucket.into_iter().collect())).is_none() {
                self.lock().panics += 1;
            }
        }
        self.arm();
    }

    fn next_dead(&self) -> Option<HashMap<K, V>> {
        self.current(&self.scheduler()?).dead.pop_front()
    }

    /// Calls `turn` at the next rotation; at once, if somebody has made up for one since the last look.
    fn arm(&self) {
        let Some(scheduler) = self.scheduler() else { return };
        let state = self.lock();
        let due = if state.dead.is_empty() { state.next } else { Some(scheduler.now()) };
        drop(state);
        if let Some(due) = due {
            let _ = scheduler.schedule_at((), (), due);
        }
    }
}

impl<K, V> State<K, V> {
    /// Makes the rotations that are due at `now`. O(k): after k rotations the map is empty.
    fn catch_up(&mut self, now: Instant) {
        let Some(next) = self.next.filter(|&next| next <= now) else { return };
        let late = now - next;
        let missed = late.as_nanos() / self.period.as_nanos() + 1;
        let turns = 0..missed.min(self.map.bucket_count() as u128);
        self.dead.extend(turns.map(|_| self.map.turn()).filter(|bucket| !bucket.is_empty()));
        let since = late.as_nanos() % self.period.as_nanos();
        self.next = now.checked_add(self.period - Duration::from_nanos(since as u64));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Its thread may be about to take a bucket, and so have a handle of its own.
    #[test]
    fn no_call_begins_after_the_drop() {
        let (map, clock) = TimeCacheMap::new_manual(Duration::from_secs(1), 2, drop).expect("in range");
        let shared = Arc::clone(&map.shared);
        let handle = shared.scheduler().expect("the map is there");
        let die = || shared.lock().dead.push_back(HashMap::from([(1, 1)]));
        die();
        assert_eq!(shared.next_dead(), Some(HashMap::from([(1, 1)])));
        die();
        map.insert(2, 2);
        drop(map);
        assert_eq!(shared.next_dead(), None);
        // Nor for a thread that has found the map open, and waited for the lock.
        assert_eq!(clock.advance(Duration::from_secs(9)), 0);
        assert_eq!(shared.current(&handle).dead.pop_front(), None);
    }
}
