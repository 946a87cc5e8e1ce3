//! A cache whose entries expire: [`Cache`].
//!
//! With the feature `cache`, which is on by default: it brings in the map, `papaya`.

mod builder;
mod entry;
mod expiry;
mod get_or_insert;
#[expect(unsafe_code, reason = "drops the key, whose destructor may panic, by itself")]
mod hashed;
mod lifetime;
mod loader;
mod recency;
mod renewal;
mod stats;
mod store;
mod timers;

pub use builder::{Builder, CacheError};
pub use loader::LoadError;
pub use stats::{Cause, Stats};

use crate::clock::Nanos;
use crate::unwind::{caught, drop_quietly};
use entry::{Entry, Visibility};
use hashed::{Hashed, Sought};
use lifetime::Lifetime;
use loader::Loads;
use std::any::Any;
use std::borrow::Borrow;
use std::collections::hash_map::RandomState;
use std::fmt;
use std::hash::{BuildHasher, Hash};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;
use store::Store;
use timers::Timers;

/// A concurrent cache. Each entry expires on its own, by a timer of its own; with a limit, the least recently used
/// entry makes room for a new one.
///
/// - **Never stale.** [`get`](Self::get) reads the clock and compares: from its deadline on, an entry is never seen,
///   however coarse the tick and however late the timer. The timer only takes it out, so that what nobody asks for does
///   not stay.
/// - **Reads are lock-free**: [`get`](Self::get) and [`contains`](Self::contains) take no lock and wait for no other
///   thread, except for each thread's first read, which enters the thread in a list. Writes are lock-free with three
///   further exceptions:
///   - with a limit, each write takes a short lock, which guards the order of use;
///   - while anything is being loaded, it takes another one, over the list of loads, and compares keys of equal hash
///     under it (so a key's `Eq` must not use the cache);
///   - while the map grows, writers may wait for one another.
/// - **One end for each entry.** It [expires, is replaced, is removed or makes room](Cause): one of these, once. An old
///   timer never touches a newer entry.
/// - **A time that may begin anew**, by [`renew`](Self::renew) or by [each hit](Builder::renew_on_get). That is one
///   atomic write: the entry's timer fires when it would have, finds the later deadline, and comes back then. What
///   anybody has seen expire does not come back.
/// - **Values leave at once**: with the thread that ended the entry; or with the last `get` or `for_each` that is using
///   the value at that moment; or, if the entry's timer has just fired, with its callback, which may wait for a thread
///   that is busy with the listener. Keys, and the memory of up to 32 entries per thread (or one per core, if there are
///   more cores), may stay until more entries have left; then some later call drops them. (A key whose `Eq` panics
///   while it is put in is never dropped.) After a spike, the table stays large until later insertions shrink it, and
///   the timers' memory is kept for reuse.
/// - **The order of use** is exact while no calls overlap and at most 128 entries were read since they last came up for
///   eviction. If more were, the least recently used of the first 129 that come up leaves.
///
/// Values are cloned on the way out, so large ones belong in an [`Arc`]. A cache is shared in an [`Arc`] or by
/// reference. Dropping it drops its entries without calling the listener, except for a call that another thread is
/// making or about to make; see [`wait_for_callbacks`](Self::wait_for_callbacks). Do not use a cache in the destructor
/// of a thread-local: if the map's own thread-locals were destroyed before, the process aborts.
///
/// A hit costs one reading of the clock, one look-up and a few atomic writes: 70 to 100 ns if the processor's caches
/// hold the memory, and four cache misses otherwise. An insertion starts a timer and ends that of the entry it
/// replaces: 0.5 to 1.5 us. In a full cache it files up to 128 entries anew that were read since they were filed: if
/// all were read since the last insertion, that takes some 15 us among a thousand entries, 50 among a hundred thousand.
/// (In the repository, `cargo test --release --test cache -- --ignored --nocapture` measures these.)
///
/// ```
/// use shardwheel::cache::Cache;
/// use std::time::Duration;
///
/// let cache = Cache::builder(Duration::from_secs(60)).limit(10_000).build()?;
/// cache.insert("session", 17);
/// assert_eq!(cache.get("session"), Some(17));
/// assert_eq!(cache.get_or_insert_with("other", || 18), 18);
/// assert_eq!(cache.remove("session"), Some(17));
/// assert_eq!((cache.stats().hits, cache.len()), (1, 1));
/// # Ok::<(), shardwheel::cache::CacheError>(())
/// ```
pub struct Cache<K, V, S = RandomState> {
    store: Arc<Store<K, V, S>>,
    timers: Timers,
    lifetime: Lifetime,
    renews_on_get: bool,
    loads: Loads<K, V>,
    last_id: AtomicU64,
}

impl<K: Hash + Eq, V, S: BuildHasher> fmt::Debug for Cache<K, V, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cache").field("len", &self.store.len()).finish_non_exhaustive()
    }
}

/// Entries that have expired may still be waiting for their callbacks: `retire` keeps these from calling the listener.
impl<K, V, S> Drop for Cache<K, V, S> {
    fn drop(&mut self) {
        self.store.retire();
    }
}

impl<K, V> Cache<K, V>
where
    K: Hash + Eq + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
{
    /// The settings of a new cache, whose entries live for `ttl` after their insertion, give or take the
    /// [jitter](Builder::jitter): 5 % by default. [`Duration::MAX`]: they never expire. (Nor does, here and below, what
    /// would expire more than 146 years after the cache was built.)
    pub fn builder(ttl: Duration) -> Builder<K, V> {
        Builder::new(ttl)
    }
}

impl<K, V, S> Cache<K, V, S>
where
    K: Hash + Eq + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
    S: BuildHasher + Send + Sync + 'static,
{
    /// A clone of the value of `key`, unless the entry has expired. Counts as a use, and as a hit or a miss. Lock-free
    /// after the thread's first read.
    ///
    /// ```
    /// # use shardwheel::cache::Cache;
    /// # use std::time::Duration;
    /// let (cache, clock) = Cache::builder(Duration::from_secs(60)).jitter(0.0).build_manual()?;
    /// cache.insert("a", 1);
    /// assert_eq!(cache.get("a"), Some(1));
    /// clock.advance(Duration::from_secs(60));
    /// assert_eq!(cache.get("a"), None);
    /// # Ok::<(), shardwheel::cache::CacheError>(())
    /// ```
    pub fn get<Q: Hash + Eq + ?Sized>(&self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
    {
        self.look_up(&self.store.sought(key))
    }

    /// True if there is an entry under `key` that has not expired. Counts neither as a use nor as a hit or a miss.
    /// Lock-free after the thread's first read.
    ///
    /// ```
    /// # use shardwheel::cache::Cache;
    /// # use std::time::Duration;
    /// let cache = Cache::builder(Duration::from_secs(60)).build()?;
    /// cache.insert("a", 1);
    /// assert!(cache.contains("a") && !cache.contains("b"));
    /// assert_eq!((cache.stats().hits, cache.stats().misses), (0, 0));
    /// # Ok::<(), shardwheel::cache::CacheError>(())
    /// ```
    pub fn contains<Q: Hash + Eq + ?Sized>(&self, key: &Q) -> bool
    where
        K: Borrow<Q>,
    {
        self.find_visible(&self.store.sought(key)).is_some()
    }

    /// Puts an entry in, for the cache's TTL from now, give or take the [jitter](Builder::jitter). Returns the value
    /// that it replaces, unless that has expired or another thread has ended it. Costs 0.5 to 1.5 us.
    ///
    /// ```
    /// # use shardwheel::cache::Cache;
    /// # use std::time::Duration;
    /// let (cache, clock) = Cache::builder(Duration::from_secs(60)).jitter(0.0).build_manual()?;
    /// assert_eq!(cache.insert("a", 1), None);
    /// clock.advance(Duration::from_secs(59));
    /// assert_eq!(cache.insert("a", 2), Some(1));
    /// clock.advance(Duration::from_secs(59));
    /// assert_eq!(cache.get("a"), Some(2));
    /// # Ok::<(), shardwheel::cache::CacheError>(())
    /// ```
    pub fn insert(&self, key: K, value: V) -> Option<V> {
        self.insert_with_ttl(key, value, self.lifetime.ttl())
    }

    /// As [`insert`](Self::insert), with a TTL of its own, to which the cache's jitter applies. [`Duration::ZERO`]: the
    /// entry expires at once, and is never seen. [`Duration::MAX`]: it never expires.
    ///
    /// ```
    /// # use shardwheel::cache::Cache;
    /// # use std::time::Duration;
    /// let (cache, clock) = Cache::builder(Duration::from_secs(60)).jitter(0.0).build_manual()?;
    /// cache.insert_with_ttl("short", 1, Duration::from_secs(5));
    /// cache.insert_with_ttl("for ever", 2, Duration::MAX);
    /// clock.advance(Duration::from_secs(5));
    /// assert_eq!((cache.get("short"), cache.get("for ever")), (None, Some(2)));
    /// # Ok::<(), shardwheel::cache::CacheError>(())
    /// ```
    pub fn insert_with_ttl(&self, key: K, value: V, ttl: Duration) -> Option<V> {
        let entry = self.entry(Arc::new(self.store.hashed(key)), value, ttl, Visibility::shown());
        self.loads.outdate(&entry.key.sought());
        if ttl.is_zero() { self.insert_expired(&entry) } else { self.enter(entry) }
    }

    /// Calls `visit` for each entry that is there at the call and has neither ended nor expired when its turn comes, in
    /// no particular order. An entry that is put in meanwhile may be missing. Counts neither as a use nor as a hit.
    /// `visit` may use the cache. O(n), in memory as well: it makes a list of the entries first.
    ///
    /// ```
    /// # use shardwheel::cache::Cache;
    /// # use std::time::Duration;
    /// let cache = Cache::builder(Duration::from_secs(60)).build()?;
    /// (0..10).for_each(|key| drop(cache.insert(key, key * key)));
    /// let mut large = Vec::new();
    /// cache.for_each(|&key, &square| if square > 50 { large.push(key) });
    /// large.sort_unstable();
    /// assert_eq!(large, [8, 9]);
    /// # Ok::<(), shardwheel::cache::CacheError>(())
    /// ```
    pub fn for_each(&self, mut visit: impl FnMut(&K, &V)) {
        for entry in self.store.all() {
            if let Some(entry) = entry.upgrade()
                && !entry.expiry.has_ended()
                && entry.is_visible(self.now())
            {
                visit(&entry.key.key, &entry.value);
            }
        }
    }

    /// Takes the entry of `key` out, and returns its value. `None`: it has ended before, or never was. Costs a look-up,
    /// and a cancel of the entry's timer.
    ///
    /// ```
    /// # use shardwheel::cache::Cache;
    /// # use std::time::Duration;
    /// let cache = Cache::builder(Duration::from_secs(60)).build()?;
    /// cache.insert("a", 1);
    /// assert_eq!(cache.remove("a"), Some(1));
    /// assert_eq!(cache.remove("a"), None);
    /// # Ok::<(), shardwheel::cache::CacheError>(())
    /// ```
    pub fn remove<Q: Hash + Eq + ?Sized>(&self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
    {
        self.remove_sought(&self.store.sought(key))
    }

    /// Takes out, one by one, all entries that are there at the call, as [`remove`](Self::remove) does. An entry that
    /// is put in meanwhile may stay, and so does one that has expired and whose job an executor has dropped. O(n), in
    /// memory as well: it makes a list of the entries first. If the destructors of some values panic, all entries are
    /// taken out nevertheless, and then the last panic goes on.
    ///
    /// ```
    /// # use shardwheel::cache::Cache;
    /// # use std::time::Duration;
    /// let cache = Cache::builder(Duration::from_secs(60)).build()?;
    /// cache.insert("a", 1);
    /// cache.clear();
    /// assert_eq!((cache.get("a"), cache.stats().removed), (None, 1));
    /// # Ok::<(), shardwheel::cache::CacheError>(())
    /// ```
    pub fn clear(&self) {
        self.loads.outdate_all();
        let mut panicked = None;
        for entry in self.store.all() {
            let take_out = || _ = entry.upgrade().map(|entry| self.take_out(&entry, Cause::Removed));
            if let Err(panic) = catch_unwind(AssertUnwindSafe(take_out)) {
                drop_quietly(panicked.replace(panic));
            }
        }
        if let Some(panic) = panicked {
            resume_unwind(panic);
        }
    }

    /// Waits until the listener has returned from all calls that entries' timers have begun, but no longer than
    /// `timeout` ([`Duration::MAX`]: for ever); true if it has. Calls that other threads' insertions and removals make
    /// are not waited for. [`clear`](Self::clear) first, and no entry is left that might expire meanwhile.
    ///
    /// As [`Scheduler::wait_for_callbacks`](crate::Scheduler::wait_for_callbacks), it costs some ten nanoseconds per
    /// shard if no timer is firing. Within the listener it does not wait: there it is false if a timer's callback is
    /// running, such as the one that has called the listener.
    ///
    /// ```
    /// # use shardwheel::cache::{Cache, Cause};
    /// # use std::time::Duration;
    /// let closing = |_: &u32, _: &char, _: Cause| std::thread::sleep(Duration::from_millis(20));
    /// let cache = Cache::builder(Duration::from_secs(60)).listener(closing).build()?;
    /// cache.insert(1, 'a');
    /// cache.clear();
    /// assert!(cache.wait_for_callbacks(Duration::from_secs(10)), "all that has left is closed");
    /// # Ok::<(), shardwheel::cache::CacheError>(())
    /// ```
    #[must_use = "false: the listener is still running"]
    pub fn wait_for_callbacks(&self, timeout: Duration) -> bool {
        self.timers.wait_for_callbacks(timeout)
    }

    /// The number of entries, off by no more than what other threads change during the call. An entry counts until its
    /// timer has taken it out: a tick and a wake-up after its deadline, and later still while a listener keeps the
    /// threads busy that do so. Costs a sum over a counter per core.
    ///
    /// With a limit, there are at most that many while no call is under way, and one more for each insertion and each
    /// end of an entry that is.
    ///
    /// ```
    /// # use shardwheel::cache::Cache;
    /// # use std::time::Duration;
    /// let cache = Cache::builder(Duration::from_secs(60)).build()?;
    /// assert!(cache.is_empty());
    /// cache.insert("a", 1);
    /// cache.insert("a", 2);
    /// assert_eq!(cache.len(), 1);
    /// # Ok::<(), shardwheel::cache::CacheError>(())
    /// ```
    pub fn len(&self) -> usize {
        self.store.len()
    }

    /// True if there is no entry: if [`len`](Self::len) is 0.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The cache's counters. Lock-free; sums up to 64 stripes of them.
    ///
    /// ```
    /// # use shardwheel::cache::Cache;
    /// # use std::time::Duration;
    /// let cache = Cache::builder(Duration::from_secs(60)).build()?;
    /// cache.insert("a", 1);
    /// let _ = (cache.get("a"), cache.get("b"));
    /// let stats = cache.stats();
    /// assert_eq!((stats.inserted, stats.hits, stats.misses), (1, 1, 1));
    /// # Ok::<(), shardwheel::cache::CacheError>(())
    /// ```
    pub fn stats(&self) -> Stats {
        self.store.stats()
    }

    fn look_up<Q: Eq + ?Sized>(&self, key: &Sought<'_, Q>) -> Option<V>
    where
        K: Borrow<Q>,
    {
        let found = self.peek(key);
        self.store.count_look_up(found.is_some());
        found
    }

    fn peek<Q: Eq + ?Sized>(&self, key: &Sought<'_, Q>) -> Option<V>
    where
        K: Borrow<Q>,
    {
        let entry = if self.renews_on_get {
            self.find_and_renew(key, |entry, now, deadline| deadline.max(now.plus(entry.lifetime)))?
        } else {
            self.find_visible(key)?
        };
        self.store.touch(&entry);
        Some(entry.value.clone())
    }

    /// An entry under the key that look-ups may find.
    fn find_visible<Q: Eq + ?Sized>(&self, key: &Sought<'_, Q>) -> Option<Arc<Entry<K, V>>>
    where
        K: Borrow<Q>,
    {
        self.find_map(key, |entry| entry.is_visible(self.now()).then_some(())).map(|(entry, ())| entry)
    }

    /// The entry under the key for which `look` returns something, and what that is. If it returns nothing, looks
    /// again: another entry may have been put in its place before its deadline passed, or before it ended.
    fn find_map<Q: Eq + ?Sized, R>(
        &self,
        key: &Sought<'_, Q>,
        look: impl Fn(&Entry<K, V>) -> Option<R>,
    ) -> Option<(Arc<Entry<K, V>>, R)>
    where
        K: Borrow<Q>,
    {
        let mut before = None;
        loop {
            let entry = self.store.find(key)?;
            if let Some(found) = look(&entry) {
                return Some((entry, found));
            }
            // The same one twice: there is no other.
            if before.replace(entry.id) == Some(entry.id) {
                return None;
            }
        }
    }

    fn now(&self) -> Nanos {
        self.timers.clock().now()
    }

    fn remove_sought<Q: Eq + ?Sized>(&self, key: &Sought<'_, Q>) -> Option<V>
    where
        K: Borrow<Q>,
    {
        // First: a load that ends before this outdates it has shown its entry already, so `withdraw` finds it.
        self.loads.outdate(key);
        let entry = self.store.withdraw(key)?;
        self.end_for_value(entry, Cause::Removed)
    }

    fn entry(&self, key: Arc<Hashed<K>>, value: V, ttl: Duration, visibility: Visibility) -> Arc<Entry<K, V>> {
        // Relaxed: a number that nobody else has; it publishes nothing.
        let id = self.last_id.fetch_add(1, Relaxed) + 1;
        Arc::new(Entry::new(id, key, value, self.now(), self.lifetime.of(ttl, id), visibility))
    }

    /// For an entry that expires at once: it ends the current entry of its key, and no other one has to make room for
    /// it.
    fn insert_expired(&self, entry: &Entry<K, V>) -> Option<V> {
        self.store.count_insertion();
        let replace = || {
            let replaced = self.store.withdraw(&entry.key.sought())?;
            self.end_for_value(replaced, Cause::Replaced)
        };
        anyway(replace, || _ = self.store.leave(entry, Cause::Expired))
    }

    /// Starts the entry's timer, then publishes the entry: so every thread that finds it can end it.
    fn enter(&self, entry: Arc<Entry<K, V>>) -> Option<V> {
        if let Err(refused) = self.start_timer(&entry) {
            // Almost 2^28 timers of the shard are pending. The value under the key must not be taken for the new one.
            drop(refused);
            self.store.count_insertion();
            anyway(|| drop(self.remove_sought(&entry.key.sought())), || _ = self.store.leave(&entry, Cause::Evicted));
            return None;
        }
        let mut replaced = None;
        let published = catch_unwind(AssertUnwindSafe(|| self.store.publish(&entry, &mut replaced)));
        self.store.count_insertion();
        if let Err(panic) = published {
            self.undo(entry, replaced, panic);
        }
        self.take_place(&entry, replaced)
    }

    /// Ends the entry, and the one that it may have replaced: until their timers fire, no other thread would.
    fn undo(&self, entry: Arc<Entry<K, V>>, replaced: Option<Arc<Entry<K, V>>>, panic: Box<dyn Any + Send>) -> ! {
        for (entry, cause) in [(Some(entry), Cause::Removed), (replaced, Cause::Replaced)] {
            let _ = caught(|| entry.as_ref().is_some_and(|entry| self.end(entry, cause)));
            drop_quietly(entry);
        }
        resume_unwind(panic)
    }

    /// For an entry that was published: ends the entry that it replaced, whose value it returns, and the one that must
    /// make room for it.
    fn take_place(&self, entry: &Arc<Entry<K, V>>, replaced: Option<Arc<Entry<K, V>>>) -> Option<V> {
        let evict = || {
            if let Some(victim) = self.store.file(entry) {
                self.take_out(&victim, Cause::Evicted);
            }
        };
        // Only now: of the value that was replaced there may be a clone, too, for a moment.
        let mut old = None;
        anyway(evict, || old = replaced.and_then(|entry| self.end_for_value(entry, Cause::Replaced)));
        old
    }

    /// Takes an entry out of the map first, no matter which thread ends it: it may have expired, with its callback
    /// still waiting for the executor.
    fn take_out(&self, entry: &Entry<K, V>, cause: Cause) {
        anyway(|| self.store.unpublish(entry), || _ = self.end(entry, cause));
    }

    fn start_timer(&self, entry: &Arc<Entry<K, V>>) -> timers::Started {
        let owned: Arc<dyn Any + Send + Sync> = Arc::clone(entry) as _;
        match entry.expiry.deadline() {
            Some(deadline) => {
                let deadline = self.timers.clock().instant(Nanos(deadline));
                self.timers.schedule_at(entry.id, Some(owned), deadline)
            }
            None => self.timers.schedule_with(entry.id, Some(owned), Duration::MAX),
        }
    }

    /// Ends an entry, unless another thread has. True if it did, and the entry was shown and had not expired.
    fn end(&self, entry: &Entry<K, V>, cause: Cause) -> bool {
        let Some(has_expired) = entry.expiry.end(self.now().0) else { return false };
        // If the timer is firing, its callback finds that the entry has ended.
        drop(self.timers.cancel(&entry.id));
        let was_shown = self.store.leave(entry, if has_expired { Cause::Expired } else { cause });
        was_shown && !has_expired
    }

    /// As `end`; returns the value if the answer is true.
    fn end_for_value(&self, entry: Arc<Entry<K, V>>, cause: Cause) -> Option<V> {
        self.end(&entry, cause).then(|| Entry::into_value(entry))
    }
}

/// Runs both, even if the user's code panics in the first: that panic goes on after the second.
fn anyway<R>(first: impl FnOnce() -> R, second: impl FnOnce()) -> R {
    let first = catch_unwind(AssertUnwindSafe(first));
    second();
    first.unwrap_or_else(|panic| resume_unwind(panic))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// By the time that it reads the clock, the deadline of what it has found may have passed.
    #[test]
    fn a_look_up_that_comes_late_finds_what_was_put_in_meanwhile() {
        let (cache, _clock) = Cache::builder(Duration::from_secs(60)).build_manual().expect("in range");
        cache.insert(1, 'a');
        let late = |entry: &Entry<i32, char>| {
            if entry.value == 'a' {
                assert_eq!(cache.insert(1, 'b'), Some('a'));
            }
            (entry.value == 'b').then_some(())
        };
        let sought = cache.store.sought(&1);
        assert_eq!(cache.find_map(&sought, late).map(|(entry, ())| entry.value), Some('b'));
        assert!(cache.find_map(&sought, |_| None::<()>).is_none());
    }
}
