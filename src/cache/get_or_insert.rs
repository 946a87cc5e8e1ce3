//! The calls that load a value if there is none, and how what was loaded is put in.
//!
//! Which thread loads is decided in `loader.rs`.

use super::entry::Visibility;
use super::hashed::Hashed;
use super::loader::{LoadError, Outcome, Part, Turn};
use super::stats::Cause;
use super::store::Published;
use super::{Cache, anyway};
use crate::unwind::drop_quietly;
use std::hash::{BuildHasher, Hash};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

impl<K, V, S> Cache<K, V, S>
where
    K: Hash + Eq + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
    S: BuildHasher + Send + Sync + 'static,
{
    /// The value of `key`; if there is none, the value of `load`, which is put in. However many threads ask for a key
    /// at the same time, one of them loads, and the others wait for it.
    ///
    /// What is done to the key during the load, by other threads or by `load` itself, counts as done after it:
    /// - after an [`insert`](Self::insert) of the key, that entry stays, and its value is the answer;
    /// - after a [`remove`](Self::remove) or a [`clear`](Self::clear), the loaded value, which may be outdated, goes to
    ///   the threads that have asked before, and is not put in.
    ///
    /// So those who have asked before may get a value that has expired meanwhile, or was outdated; all others do not.
    ///
    /// If `load` panics, the panic goes on in this call, nothing is stored, and one of the waiting threads calls its
    /// own `load`. If `load` itself asks this cache for the same key, that inner call loads at once, and only the value
    /// of the outer one is put in. A `load` that waits for a thread that waits for this load waits for ever.
    ///
    /// A hit costs as much as [`get`](Self::get); otherwise an insertion and a short lock, over the list of loads, come
    /// on top of `load`.
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

    /// As [`get_or_insert_with`](Self::get_or_insert_with), with a loader that also returns the entry's TTL: a token's,
    /// or what a server says of its answer. The TTL counts from when the loader returns; the cache's jitter applies:
    /// if the entry must not live longer than that, by 5 % as a rule, turn jitter off or return less; and hits must not
    /// [renew](super::Builder::renew_on_get) it.
    /// [`Duration::MAX`]: the entry never expires. [`Duration::ZERO`]: the value goes to the threads that have asked,
    /// and is not put in; no insertion is counted, and the listener is not called.
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
                // The other thread's loader has failed; we have our own.
                Part::Given(Outcome::Failed(_) | Outcome::Panicked) | Part::Late => {}
                Part::Lead(turn) => return self.enter_loaded(key, load(), turn),
            }
        }
    }

    /// As [`get_or_insert_with`](Self::get_or_insert_with), with a loader that may fail. Then nothing is stored.
    ///
    /// # Errors
    /// [`LoadError::Failed`] for the caller whose loader failed and for all that waited for it; [`LoadError::Panicked`]
    /// for those that waited for a loader that panicked. Both are transient if the loader's failure is: the next call
    /// loads again. (If the loader that failed has another type of error, those that waited for it call their own.) The
    /// error is the answer even if another thread has inserted the key meanwhile.
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

    /// As [`get_or_try_insert_with`](Self::get_or_try_insert_with), with a loader that also returns the entry's TTL, as
    /// in [`get_or_insert_with_ttl`](Self::get_or_insert_with_ttl).
    ///
    /// # Errors
    /// As those of [`get_or_try_insert_with`](Self::get_or_try_insert_with).
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

    fn join_load(&self, key: &Arc<Hashed<K>>) -> Part<'_, K, V> {
        let part = self.loads.join(key);
        if let Part::Lead(turn) = part {
            // The load before ours puts its value in before it gives up its turn, so the value is there if we came a
            // moment late.
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

    /// As `enter`, for a value that was loaded, which gives way to what other threads have done meanwhile. Returns the
    /// value that the key has afterwards, or had for a moment. The entry is in the map before it is shown: so who comes
    /// later than that finds it, and for who comes before, it was never there.
    ///
    /// The waiting threads get the outcome before the listener is called, which may take long, and may wait for them.
    fn enter_loaded(&self, key: Arc<Hashed<K>>, (value, ttl): (V, Duration), turn: Turn<'_, K, V>) -> V {
        // `begin_entry` first, even for a TTL of zero: a thread that comes from now on could otherwise get a value that
        // was in the cache, and out again, before it came.
        if !turn.begin_entry() || ttl.is_zero() {
            return self.give_way(&key, value, turn);
        }
        // Cloned before anything is half done: `Clone` is the user's code.
        let outcome = Outcome::Loaded(value.clone());
        let entry = self.entry(key, value.clone(), ttl, Visibility::hidden());
        if self.start_timer(&entry).is_err() {
            // Almost 2^28 timers of the shard are pending.
            return self.give_way(&entry.key, value, turn);
        }
        let mut replaced = None;
        let now = self.now();
        let publish = || self.store.publish_if_free(&entry, now, &mut replaced);
        match catch_unwind(AssertUnwindSafe(publish)) {
            Ok(Published::Yes) => {}
            Ok(Published::Occupied) => {
                drop(self.timers.cancel(&entry.id));
                return self.give_way(&entry.key, value, turn);
            }
            Err(panic) => {
                drop(turn);
                // Not as the panic goes on: a destructor that panics, too, would abort.
                drop_quietly(outcome);
                drop_quietly(value);
                self.undo(entry, replaced, panic)
            }
        }
        let is_shown = turn.finish_entry(outcome, || entry.visibility.show());
        if is_shown {
            self.store.count_insertion();
        }
        let take_out = || {
            if !is_shown {
                self.take_out(&entry, Cause::Removed);
            }
        };
        // First take out what must not be there: then no other entry has to make room for it.
        anyway(take_out, || drop(self.take_place(&entry, replaced)));
        value
    }

    /// The loaded value is not put in. Returns the value that is in the cache instead, or the loaded one if there is
    /// none.
    fn give_way(&self, key: &Hashed<K>, loaded: V, turn: Turn<'_, K, V>) -> V {
        let value = self.peek(&key.sought()).unwrap_or(loaded);
        turn.finish(Outcome::Loaded(value.clone()));
        value
    }
}
