//! A cache whose entries expire: [`Cache`].
//!
//! With the feature `cache`, which is on by default: it brings in the map, `papaya`.

mod builder;
mod ended;
mod entry;
mod hashed;
mod lifetime;
mod loader;
mod recency;
mod stats;
mod store;

pub use builder::{Builder, CacheError};
pub use loader::LoadError;
pub use stats::{Cause, Stats};

use crate::unwind::caught;
use entry::Entry;
use hashed::{Hashed, Sought};
use lifetime::Lifetime;
use loader::{Loads, Outcome, Part, Turn};
use std::any::Any;
use std::borrow::Borrow;
use std::collections::hash_map::RandomState;
use std::fmt;
use std::hash::{BuildHasher, Hash};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::Duration;
use store::{Published, Store, Timers};

/// A concurrent cache: each entry expires on its own, by a timer of its own; with a limit, the least recently used one
/// leaves first.
///
/// - **Never stale.** [`get`](Self::get) reads the clock and compares: an entry is never seen from its deadline on, however
///   coarse the tick and however late the timer. The timer is what takes it out, so that nothing stays that nobody asks for.
/// - **Reads are lock-free**: [`get`](Self::get) and [`contains`](Self::contains) take no lock and wait for nobody, but for each
///   thread's first one, which enters it in a list. Writes are lock-free but for that and three things more: with a limit, each
///   takes one short lock, in which the order of use is kept; while anything is being loaded, another one over the list of that, in which
///   keys of equal hash are compared (so a key's `Eq` must not use the cache); and while the map grows, they may wait for one another.
/// - **One end for each entry.** It [expires, is replaced, is removed or makes room](Cause); one of these, once. The
///   scheduler decides, by its exact answer to who ended the entry's timer, so an old timer never touches a newer entry.
/// - **Values leave at once**: with whoever ended the entry, or with the last `get` that is cloning it at that moment. Keys,
///   and the memory of up to 32 entries a thread (or one for each core, if there are more), may stay until more entries have
///   left: then whatever call comes by drops them. After a spike, the table stays until later insertions
///   make it smaller, and the timers' memory for reuse.
/// - **The order of use** is exact while nothing runs at the same time, and among at most 1,024 entries that were read since
///   they last came up for eviction; beyond that, one of the 1,024 that is least recently used goes.
///
/// Values are cloned on the way out, so large ones belong in an [`Arc`]. A cache is shared in an [`Arc`] or by reference.
/// Dropping it drops what is in it, with no call of the listener, but for one that another thread is about to make. In the destructor of a
/// thread-local a cache must not be used: where the map's own thread-locals have gone before, the process aborts.
///
/// A hit costs one reading of the clock, one look-up and a few atomic writes: some 70 ns while the caches hit, and four
/// cache misses otherwise. An insertion starts a timer and ends that of the entry before it: 0.5 to 1.5 us.
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
pub struct Cache<K, V, S = RandomState>
where
    K: Hash + Eq + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
{
    store: Arc<Store<K, V, S>>,
    timers: Timers<K, V>,
    lifetime: Lifetime,
    loads: Loads<K, V>,
    last_id: AtomicU64,
}

impl<K, V, S> fmt::Debug for Cache<K, V, S>
where
    K: Hash + Eq + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
    S: BuildHasher + Send + Sync + 'static,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cache").field("len", &self.len()).finish_non_exhaustive()
    }
}

/// What has expired by now may still wait for its callback.
impl<K, V, S> Drop for Cache<K, V, S>
where
    K: Hash + Eq + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
{
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
    /// [jitter](Builder::jitter): 5 % by default. [`Duration::MAX`]: for ever.
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
    /// The value of `key`, unless it has expired. Counts as a use, and as a hit or a miss. Lock-free.
    pub fn get<Q: Hash + Eq + ?Sized>(&self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
    {
        self.look_up(&self.store.sought(key))
    }

    /// True if there is an entry under `key` that has not expired. Neither a use nor a hit or a miss. Lock-free.
    pub fn contains<Q: Hash + Eq + ?Sized>(&self, key: &Q) -> bool
    where
        K: Borrow<Q>,
    {
        self.store.find(&self.store.sought(key)).is_some_and(|entry| !entry.is_expired(self.timers.now()))
    }

    /// Puts an entry in, for the cache's TTL from now, [jitter](Builder::jitter) included. The value that is replaced comes back,
    /// unless it has expired.
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

    /// As [`insert`](Self::insert), with a TTL of its own; the jitter is that of the cache. [`Duration::ZERO`]: the entry
    /// expires at once, and is never seen. [`Duration::MAX`]: never.
    pub fn insert_with_ttl(&self, key: K, value: V, ttl: Duration) -> Option<V> {
        let entry = self.entry(Arc::new(self.store.hashed(key)), value, ttl);
        self.loads.outdate(&entry.key.sought());
        if ttl.is_zero() { self.pass_by(&entry) } else { self.enter(entry) }
    }

    /// Takes an entry out. `None`: it has expired or made room, or never was.
    pub fn remove<Q: Hash + Eq + ?Sized>(&self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
    {
        self.remove_sought(&self.store.sought(key))
    }

    /// Takes all entries out that are there at the call, as [`remove`](Self::remove) does. An entry that is put in meanwhile
    /// may stay.
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
        for entry in self.store.all() {
            if let Some(entry) = entry.upgrade() {
                self.take_out(&entry, Cause::Removed);
            }
        }
    }

    /// The value of `key`; if there is none, that of `load`, which is put in. However many threads ask for a key at the same
    /// time, one of them loads, and the others wait for it.
    ///
    /// What others do to the key meanwhile comes after the load: if they [`insert`](Self::insert) it, that entry stays, and its value is
    /// the answer; if they [`remove`](Self::remove) it or [`clear`](Self::clear) the cache, what is being loaded, perhaps from what has
    /// just become outdated, goes to those who have asked before, and is not put in.
    ///
    /// If `load` panics, the panic goes on here, nothing is stored, and one of those who wait calls its own `load`. A `load`
    /// that asks the same cache for the same key loads it there and then, and only the outer one's value is put in; one that waits for
    /// another thread, which waits for this one, waits for ever.
    ///
    /// ```
    /// # use shardwheel::cache::Cache;
    /// # use std::time::Duration;
    /// let cache = Cache::builder(Duration::from_secs(60)).build()?;
    /// assert_eq!(cache.get_or_insert_with(7, || "loaded"), "loaded");
    /// assert_eq!(cache.get_or_insert_with(7, || unreachable!("it is there")), "loaded");
    /// # Ok::<(), shardwheel::cache::CacheError>(())
    /// ```
    pub fn get_or_insert_with(&self, key: K, load: impl FnOnce() -> V) -> V {
        self.get_or_insert_with_ttl(key, || (load(), self.lifetime.ttl()))
    }

    /// As [`get_or_insert_with`](Self::get_or_insert_with), with a loader that tells the entry's TTL as well: that of a token, or what a
    /// server says of its answer. It counts from when the loader returns; the jitter is that of the cache. [`Duration::MAX`]: it never
    /// expires. [`Duration::ZERO`]: the value goes to those who have asked, and is not put in: no insertion is counted, and the listener
    /// is not told.
    ///
    /// ```
    /// # use shardwheel::cache::Cache;
    /// # use std::time::Duration;
    /// let (cache, clock) = Cache::builder(Duration::from_secs(60)).jitter(0.0).build_manual()?;
    /// let load = || ("token", Duration::from_secs(5));
    /// assert_eq!(cache.get_or_insert_with_ttl(7, load), "token");
    /// clock.advance(Duration::from_secs(5));
    /// assert_eq!(cache.get(&7), None);
    /// # Ok::<(), shardwheel::cache::CacheError>(())
    /// ```
    pub fn get_or_insert_with_ttl(&self, key: K, load: impl FnOnce() -> (V, Duration)) -> V {
        let key = self.store.hashed(key);
        if let Some(value) = self.look_up(&key.sought()) {
            return value;
        }
        let key = Arc::new(key);
        loop {
            match self.join_load(&key) {
                Part::Given(Outcome::Loaded(value)) => return value,
                // Whoever loaded has failed; we have a loader of our own.
                Part::Given(Outcome::Failed(_) | Outcome::Panicked) | Part::Late => {}
                Part::Lead(turn) => return self.enter_loaded(key, load(), turn),
            }
        }
    }

    /// As [`get_or_insert_with`](Self::get_or_insert_with), with a loader that may fail. Nothing is stored then; who asks next
    /// loads again.
    ///
    /// # Errors
    /// [`LoadError::Failed`] for all who waited for the loader that failed, [`LoadError::Panicked`] for those who waited for
    /// one that panicked. (If the one that failed has another type of error, those who waited for it try their own.)
    ///
    /// ```
    /// # use shardwheel::cache::Cache;
    /// # use std::time::Duration;
    /// let cache = Cache::builder(Duration::from_secs(60)).build()?;
    /// assert!(cache.get_or_try_insert_with(7, || "seven".parse::<u32>()).is_err());
    /// assert_eq!(cache.get_or_try_insert_with(7, || "7".parse::<u32>())?, 7);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn get_or_try_insert_with<E>(&self, key: K, load: impl FnOnce() -> Result<V, E>) -> Result<V, LoadError<E>>
    where
        E: Send + Sync + 'static,
    {
        self.get_or_try_insert_with_ttl(key, || Ok((load()?, self.lifetime.ttl())))
    }

    /// As [`get_or_try_insert_with`](Self::get_or_try_insert_with), with a loader that tells the entry's TTL as well, as in
    /// [`get_or_insert_with_ttl`](Self::get_or_insert_with_ttl).
    ///
    /// # Errors
    /// As there.
    ///
    /// ```
    /// # use shardwheel::cache::Cache;
    /// # use std::time::Duration;
    /// let cache = Cache::builder(Duration::from_secs(60)).build()?;
    /// let load = || "7".parse::<u32>().map(|value| (value, Duration::from_secs(5)));
    /// assert_eq!(cache.get_or_try_insert_with_ttl("seven", load)?, 7);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn get_or_try_insert_with_ttl<E>(
        &self,
        key: K,
        load: impl FnOnce() -> Result<(V, Duration), E>,
    ) -> Result<V, LoadError<E>>
    where
        E: Send + Sync + 'static,
    {
        let key = self.store.hashed(key);
        if let Some(value) = self.look_up(&key.sought()) {
            return Ok(value);
        }
        let key = Arc::new(key);
        loop {
            match self.join_load(&key) {
                Part::Given(Outcome::Loaded(value)) => return Ok(value),
                Part::Given(Outcome::Panicked) => return Err(LoadError::Panicked),
                Part::Given(Outcome::Failed(error)) => {
                    if let Ok(error) = error.downcast() {
                        return Err(LoadError::Failed(error));
                    }
                }
                Part::Late => {}
                Part::Lead(turn) => {
                    return match load() {
                        Ok(loaded) => Ok(self.enter_loaded(key, loaded, turn)),
                        Err(error) => {
                            let error = Arc::new(error);
                            turn.finish(Outcome::Failed(Arc::clone(&error) as _));
                            Err(LoadError::Failed(error))
                        }
                    };
                }
            }
        }
    }

    /// The number of entries; off by no more than what other threads change during the call. Entries count until their timers
    /// have taken them out: a tick and a wake-up late, and later still while a listener keeps the threads busy that do so.
    ///
    /// With a limit, there are no more than that while nothing is being inserted, and one more for each insertion under way.
    pub fn len(&self) -> usize {
        self.store.len()
    }

    /// True if there is no entry.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// What the cache tells about itself. Lock-free.
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

    fn join_load(&self, key: &Arc<Hashed<K>>) -> Part<'_, K, V> {
        let part = self.loads.join(key);
        if let Part::Lead(turn) = part {
            // The load before ours puts its value in before it gives its turn up: so it is there if we came a moment late.
            return match self.peek(&key.sought()) {
                Some(value) => {
                    turn.pass();
                    Part::Given(Outcome::Loaded(value))
                }
                None => Part::Lead(turn),
            };
        }
        part
    }

    fn peek<Q: Eq + ?Sized>(&self, key: &Sought<'_, Q>) -> Option<V>
    where
        K: Borrow<Q>,
    {
        let entry = self.store.find(key)?;
        if entry.is_expired(self.timers.now()) {
            return None;
        }
        self.store.touch(&entry);
        Some(entry.value.clone())
    }

    fn remove_sought<Q: Eq + ?Sized>(&self, key: &Sought<'_, Q>) -> Option<V>
    where
        K: Borrow<Q>,
    {
        // First: what is put in by a load that does not know yet is there for us to take out.
        self.loads.outdate(key);
        let id = self.store.withdraw(key)?;
        self.end(id, Cause::Removed, Entry::into_value)
    }

    fn entry(&self, key: Arc<Hashed<K>>, value: V, ttl: Duration) -> Arc<Entry<K, V>> {
        // Relaxed: a number that nobody else has; it publishes nothing.
        let id = self.last_id.fetch_add(1, Relaxed) + 1;
        let deadline = self.timers.now().checked_add(self.lifetime.of(ttl, id));
        Arc::new(Entry::new(id, key, value, deadline))
    }

    /// An entry that expires at once: it ends the one of its key, and nobody has to make room for it.
    fn pass_by(&self, entry: &Entry<K, V>) -> Option<V> {
        self.store.count_insertion();
        let replace = || {
            let replaced = self.store.withdraw(&entry.key.sought())?;
            self.end(replaced, Cause::Replaced, Entry::into_value)
        };
        anyway(replace, || self.store.leave(entry, Cause::Expired))
    }

    /// Starts the entry's timer, then publishes the entry: so whoever finds it can end it.
    fn enter(&self, entry: Arc<Entry<K, V>>) -> Option<V> {
        if let Err(refused) = self.start_timer(&entry) {
            // Almost 2^28 timers of the shard are pending. What was under the key must not be taken for the new value.
            let (_, entry) = refused.into_inner();
            self.store.count_insertion();
            anyway(|| drop(self.remove_sought(&entry.key.sought())), || self.store.leave(&entry, Cause::Evicted));
            return None;
        }
        let mut replaced = None;
        let published = self.publish(|| self.store.publish(&entry, &mut replaced));
        published.unwrap_or_else(|panic| self.undo(&entry, replaced, panic));
        self.take_place(&entry, replaced)
    }

    /// As `enter`, for a value that was loaded, which gives way to what others have done. The value that is there afterwards, or was for
    /// a moment.
    ///
    /// Those who wait are told before any listener is: it may take long, and wait for them.
    fn enter_loaded(&self, key: Arc<Hashed<K>>, (value, ttl): (V, Duration), turn: Turn<'_, K, V>) -> V {
        // In this order: who comes from now on might get what was in the cache, and out again, before he came.
        if !turn.begin_entry() || ttl.is_zero() {
            return self.give_way(&key, value, turn);
        }
        // Copied before anything is half done: to copy a value is the user's code.
        let outcome = Outcome::Loaded(value.clone());
        let entry = self.entry(key, value.clone(), ttl);
        if let Err(refused) = self.start_timer(&entry) {
            let (_, entry) = refused.into_inner();
            self.store.count_insertion();
            turn.finish(outcome);
            self.store.leave(&entry, Cause::Evicted);
            return value;
        }
        let mut replaced = None;
        let now = self.timers.now();
        match self.publish(|| self.store.publish_if_free(&entry, now, &mut replaced)) {
            Ok(Published::Yes) => {}
            Ok(Published::NoRoom) => {
                if self.timers.cancel(&entry.id).is_none() {
                    // It has expired meanwhile, and is counted as such.
                    self.store.count_insertion();
                }
                return self.give_way(&entry.key, value, turn);
            }
            Err(panic) => {
                drop(turn);
                self.undo(&entry, replaced, panic)
            }
        }
        let is_valid = turn.finish(outcome);
        let take_out = || {
            if !is_valid {
                self.take_out(&entry, Cause::Removed);
            }
        };
        // First what must not be there; nobody has to go for it, then.
        anyway(take_out, || drop(self.take_place(&entry, replaced)));
        value
    }

    /// What was loaded is not put in: the value that is there instead, if there is one.
    fn give_way(&self, key: &Hashed<K>, loaded: V, turn: Turn<'_, K, V>) -> V {
        let value = self.peek(&key.sought()).unwrap_or(loaded);
        turn.finish(Outcome::Loaded(value.clone()));
        value
    }

    /// Publishes an entry whose timer runs. A key may panic in between: `undo` follows.
    fn publish(&self, publish: impl FnOnce() -> Published) -> thread::Result<Published> {
        let published = catch_unwind(AssertUnwindSafe(publish));
        if !matches!(published, Ok(Published::NoRoom)) {
            self.store.count_insertion();
        }
        published
    }

    /// Nobody else would end the entry before its time, nor the one in whose place it may have come.
    fn undo(&self, entry: &Entry<K, V>, replaced: Option<u64>, panic: Box<dyn Any + Send>) -> ! {
        for (id, cause) in [(Some(entry.id), Cause::Removed), (replaced, Cause::Replaced)] {
            let _ = caught(|| self.end(id?, cause, drop));
        }
        resume_unwind(panic)
    }

    /// An entry was published: ends the one that was there before, whose value comes back, and who must go for it.
    fn take_place(&self, entry: &Arc<Entry<K, V>>, replaced: Option<u64>) -> Option<V> {
        let victim = self.store.file(entry);
        let replace = || self.end(replaced?, Cause::Replaced, Entry::into_value);
        anyway(replace, || {
            if let Some(victim) = victim {
                self.take_out(&victim, Cause::Evicted);
            }
        })
    }

    /// Out of the map first, whoever is to end it: it may have expired, and its callback wait for the executor.
    fn take_out(&self, entry: &Entry<K, V>, cause: Cause) {
        anyway(|| self.store.unpublish(entry), || _ = self.end(entry.id, cause, drop));
    }

    fn start_timer(&self, entry: &Arc<Entry<K, V>>) -> store::Started<K, V> {
        match entry.deadline {
            Some(deadline) => self.timers.schedule_at(entry.id, Arc::clone(entry), deadline),
            None => self.timers.schedule_with(entry.id, Arc::clone(entry), Duration::MAX),
        }
    }

    /// Ends an entry, if this thread is the one who ends its timer. What `then` makes of it, if it was still good.
    fn end<R>(&self, id: u64, cause: Cause, then: impl FnOnce(Arc<Entry<K, V>>) -> R) -> Option<R> {
        let entry = self.timers.cancel(&id)?;
        let expired = entry.is_expired(self.timers.now());
        self.store.leave(&entry, if expired { Cause::Expired } else { cause });
        (!expired).then(|| then(entry))
    }
}

/// Does both, though user code may panic in the first: the panic goes on afterwards.
fn anyway<R>(first: impl FnOnce() -> R, second: impl FnOnce()) -> R {
    let first = catch_unwind(AssertUnwindSafe(first));
    second();
    first.unwrap_or_else(|panic| resume_unwind(panic))
}
