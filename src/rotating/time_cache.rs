//! The map that rotates itself.
//!
//! # Why the bounds hold
//!
//! Rotations are due at fixed moments, T/(k-1) apart. Each use of the map first makes up for the rotations that are due
//! by now (`State::catch_up`). So they take effect at their moments, however late the timer is: it only brings the dead
//! buckets to the callback. An entry inserted at t goes to the newest bucket. The next rotation is due at d, where
//! t < d <= t + T/(k-1). The k-th, with which the entry leaves, is due at d + T: after T at least, T + T/(k-1) at most.

use super::error::RotatingError;
use super::map::{RotatingMap, value_of};
use crate::builder::Pinning;
use crate::close::Close;
use crate::executor::Executor;
use crate::manual::ManualClock;
use crate::scheduler::{Scheduler, WeakScheduler};
use crate::unwind::caught;
use std::borrow::Borrow;
use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::hash::Hash;
use std::mem;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

type Expired<K, V> = Box<dyn Fn(Vec<(K, V)>) + Send + Sync>;

/// A map of k buckets whose entries expire by the bucket: an entry lives for T at least and T(1 + 1/(k-1)) at most (and
/// k ns, since T/(k-1) is rounded up), whenever it is inserted. Inserting it again begins anew.
///
/// For many threads; each call takes one short lock and looks into up to k buckets. Buckets that expire are handed to a
/// callback on a thread of the map's own, in order, one call for each that is not empty: at most one tick of 1 ms and
/// the thread's wake-up late, and not before the callback for the previous bucket is done. No entry is seen after its
/// time, however late the callback. A panic of the callback stops nothing; it is counted.
///
/// The callback may use the map through a [`Weak`](std::sync::Weak); an [`Arc`] would keep the map alive for ever. A
/// key's `Hash` and `Eq` must not use it: they run under the lock. If they panic in [`insert`](Self::insert), the entry
/// that was under the key may be lost, without a call.
///
/// The map wakes up k-1 times in T, even if it is empty; or each tick, if T/(k-1) is less than that, which makes no
/// sense: then each wake-up costs as many rotations as it has missed. Dropping the map ends its threads, and waits for
/// the callback that one of them is running (except within a callback of any map or scheduler, where it waits for
/// nothing). What is left in the map is dropped, without a call.
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
/// assert!(pending.is_empty());
/// assert_eq!(pending.callback_panics(), 0);
/// # Ok::<(), shardwheel::rotating::RotatingError>(())
/// ```
pub struct TimeCacheMap<K, V> {
    /// Its only timer rotates the map.
    scheduler: Scheduler<()>,
    shared: Arc<Shared<K, V>>,
}

struct Shared<K, V> {
    state: Mutex<State<K, V>>,
    expired: Expired<K, V>,
    /// Built after its callback, which refers to this; so it is set later, before the first rotation is scheduled.
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

/// Waits for the callback that its thread is running; but not within a callback, which may be that very one, nor for a
/// thread that moves a manual clock.
impl<K, V> Drop for TimeCacheMap<K, V> {
    fn drop(&mut self) {
        self.scheduler.close(Close::Discard);
        // If `close` did not wait, a callback may still be running: let no further one begin.
        let mut state = self.shared.lock();
        state.next = None;
        let dead = mem::take(&mut state.dead);
        drop(state);
        drop(dead);
    }
}

impl<K: Hash + Eq + Send + 'static, V: Send + 'static> TimeCacheMap<K, V> {
    /// A map of `buckets` buckets whose entries live for `expiry` at least: with three buckets, as Storm has them, for
    /// half as long again at most. Starts the map's threads.
    ///
    /// An expiry of hundreds of years, such as [`Duration::MAX`], never comes.
    ///
    /// # Errors
    /// [`RotatingError::Buckets`] and [`RotatingError::Expiry`] for a setting out of range (permanent);
    /// [`RotatingError::Scheduler`] if the system refuses a thread (transient, perhaps).
    pub fn new(
        expiry: Duration,
        buckets: usize,
        expired: impl Fn(Vec<(K, V)>) + Send + Sync + 'static,
    ) -> Result<Self, RotatingError> {
        let shared = Arc::new(Shared::new(expiry, buckets, Box::new(expired))?);
        let timer = Arc::clone(&shared);
        // Inline: it is the only timer of the only shard, so the callback holds up no other.
        let builder = Scheduler::builder().shards(1).pinning(Pinning::Off).executor(Executor::Inline);
        let scheduler = builder.build(move |(), ()| timer.turn()).map_err(RotatingError::Scheduler)?;
        shared.start(&scheduler);
        Ok(Self { scheduler, shared })
    }

    /// As [`new`](Self::new), without threads, on a clock that stands still until it is moved: for tests. The callback
    /// runs on the thread that moves the clock.
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
    /// assert_eq!((map.insert("b", 2), map.len()), (None, 2));
    /// clock.advance(Duration::from_secs(10));
    /// assert!(!map.contains("a"));
    /// assert_eq!(map.remove("b"), Some(2));
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

    /// Puts an entry into the newest bucket, for another whole expiry. Returns the value that was under this key. O(k).
    pub fn insert(&self, key: K, value: V) -> Option<V> {
        // A value's destructor may use this map, and an old key's: so they outlive the lock, also if `Hash` or `Eq`
        // panics. (The new key does not, if it panics as it is put in.)
        let (old, hidden);
        let mut current = self.current();
        old = current.map.remove_entry(&key);
        hidden = match current.map.place(key) {
            Entry::Vacant(place) => {
                place.insert(value);
                None
            }
            // `Eq` has contradicted itself.
            Entry::Occupied(mut place) => Some(place.insert(value)),
        };
        drop(current);
        drop(hidden);
        value_of(old)
    }

    /// The value of `key`. O(k). Looking at an entry does not keep it: only another [`insert`](Self::insert) does.
    ///
    /// It is cloned while the map is locked: a value that is large, or whose `Clone` uses the map, belongs in an
    /// [`Arc`].
    pub fn get<Q: Hash + Eq + ?Sized>(&self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
        V: Clone,
    {
        self.current().map.get(key).cloned()
    }

    /// True if there is an entry under `key`. O(k).
    pub fn contains<Q: Hash + Eq + ?Sized>(&self, key: &Q) -> bool
    where
        K: Borrow<Q>,
    {
        self.current().map.contains(key)
    }

    /// Takes the entry of `key` out, and returns its value: it will not come to the callback. `None`: it has expired,
    /// or never was. O(k).
    pub fn remove<Q: Hash + Eq + ?Sized>(&self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
    {
        // As in `insert`.
        let removed = self.current().map.remove_entry(key);
        value_of(removed)
    }

    /// The keys of all entries that are there at the call, in no particular order. They are cloned while the map is
    /// locked, so their `Clone` must not use it. O(n), for those who wait for the map, too.
    ///
    /// ```
    /// use shardwheel::rotating::TimeCacheMap;
    /// use std::time::Duration;
    ///
    /// let (map, clock) = TimeCacheMap::new_manual(Duration::from_secs(20), 3, |_| ())?;
    /// map.insert("a", 1);
    /// clock.advance(Duration::from_secs(15));
    /// map.insert("b", 2);
    /// clock.advance(Duration::from_secs(15));
    /// assert_eq!((map.keys(), map.entries()), (vec!["b"], vec![("b", 2)]));
    /// map.clear();
    /// assert!(map.is_empty());
    /// # Ok::<(), shardwheel::rotating::RotatingError>(())
    /// ```
    pub fn keys(&self) -> Vec<K>
    where
        K: Clone,
    {
        self.current().map.iter().map(|(key, _)| key.clone()).collect()
    }

    /// As [`keys`](Self::keys), with the values.
    pub fn entries(&self) -> Vec<(K, V)>
    where
        K: Clone,
        V: Clone,
    {
        self.current().map.iter().map(|(key, value)| (key.clone(), value.clone())).collect()
    }

    /// Takes all entries out and drops them: they will not come to the callback. What has expired before still does.
    pub fn clear(&self) {
        // As in `insert`: they outlive the lock.
        let taken = self.current().map.take_all();
        drop(taken);
    }

    /// The number of entries. O(k).
    pub fn len(&self) -> usize {
        self.current().map.len()
    }

    /// True if there is no entry. O(k).
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
    /// A panic under the lock, which poisons it, leaves nothing half done: at worst, entries are missing.
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

    /// `None`: the map is being dropped.
    fn scheduler(&self) -> Option<Scheduler<()>> {
        self.scheduler.get()?.upgrade().filter(|scheduler| !scheduler.is_closed())
    }

    /// The map, locked, as it is by now.
    fn current(&self, scheduler: &Scheduler<()>) -> MutexGuard<'_, State<K, V>> {
        let mut state = self.lock();
        // Read under the lock: the next thread to take it sees no earlier time than this one.
        state.catch_up(scheduler.now());
        state
    }

    /// The timer's callback: hands the dead buckets over, and starts the timer anew for the next rotation.
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

    /// Starts the timer, which calls `turn` at the next rotation; or at once, if a call has made up for one since the
    /// last look.
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

    /// The map's thread may be about to take a bucket, and so have a handle of its own.
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
