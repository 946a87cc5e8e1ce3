//! How long entries live yet, and how their time begins anew.
//!
//! A renewal changes the entry's deadline and leaves its timer alone: that fires when it would have, and comes back
//! (`Expiring` in `timers.rs`). Only for an earlier deadline is the timer moved.

use super::Cache;
use super::entry::Entry;
use super::expiry::Renewal;
use super::hashed::Sought;
use crate::clock::Nanos;
use std::borrow::Borrow;
use std::hash::{BuildHasher, Hash};
use std::sync::Arc;
use std::time::Duration;

impl<K, V, S> Cache<K, V, S>
where
    K: Hash + Eq + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
    S: BuildHasher + Send + Sync + 'static,
{
    /// Begins the time of the entry of `key` anew: it lives for the TTL that it was inserted with, from now on. False:
    /// it has expired or ended, or never was, and none is put in. Counts as a use, but neither as a hit nor as a miss.
    /// Lock-free after the thread's first read; costs about as much as [`get`](Self::get), and as a
    /// [`reschedule`](crate::Scheduler::reschedule) if the deadline comes nearer. If several threads renew at once, the
    /// one that reads the clock last decides.
    ///
    /// To have each hit do so, see [`renew_on_get`](super::Builder::renew_on_get).
    ///
    /// ```
    /// # use shardwheel::cache::Cache;
    /// # use std::time::Duration;
    /// let (cache, clock) = Cache::builder(Duration::from_secs(60)).jitter(0.0).build_manual()?;
    /// cache.insert("a", 1);
    /// clock.advance(Duration::from_secs(59));
    /// assert!(cache.renew("a") && !cache.renew("b"));
    /// clock.advance(Duration::from_secs(59));
    /// assert_eq!(cache.get("a"), Some(1));
    /// clock.advance(Duration::from_secs(1));
    /// assert!(!cache.renew("a"), "what has expired does not come back");
    /// # Ok::<(), shardwheel::cache::CacheError>(())
    /// ```
    pub fn renew<Q: Hash + Eq + ?Sized>(&self, key: &Q) -> bool
    where
        K: Borrow<Q>,
    {
        self.renew_for(&self.store.sought(key), |entry| entry.lifetime)
    }

    /// As [`renew`](Self::renew), with a TTL of its own, to which the cache's jitter applies: as Redis' `EXPIRE`, and
    /// with [`Duration::MAX`] as its `PERSIST`. It may bring the deadline forward; with [`Duration::ZERO`] the entry
    /// expires at once. Later calls of `renew` begin the TTL of the insertion anew, not this one.
    ///
    /// ```
    /// # use shardwheel::cache::Cache;
    /// # use std::time::Duration;
    /// let (cache, clock) = Cache::builder(Duration::from_secs(60)).jitter(0.0).build_manual()?;
    /// cache.insert("a", 1);
    /// assert!(cache.renew_with_ttl("a", Duration::from_secs(5)));
    /// assert_eq!(cache.remaining("a"), Some(Duration::from_secs(5)));
    /// assert!(cache.renew_with_ttl("a", Duration::MAX));
    /// assert_eq!(cache.remaining("a"), Some(Duration::MAX));
    /// # Ok::<(), shardwheel::cache::CacheError>(())
    /// ```
    pub fn renew_with_ttl<Q: Hash + Eq + ?Sized>(&self, key: &Q, ttl: Duration) -> bool
    where
        K: Borrow<Q>,
    {
        self.renew_for(&self.store.sought(key), |entry| self.lifetime.of(ttl, entry.id))
    }

    /// How long the entry of `key` will live, unless something else ends it; [`Duration::MAX`] if it never expires.
    /// `None`: it has expired or ended, or never was. Counts neither as a use nor as a hit or a miss. Lock-free after
    /// the thread's first read.
    ///
    /// ```
    /// # use shardwheel::cache::Cache;
    /// # use std::time::Duration;
    /// let (cache, clock) = Cache::builder(Duration::from_secs(60)).jitter(0.0).build_manual()?;
    /// cache.insert("a", 1);
    /// clock.advance(Duration::from_secs(20));
    /// assert_eq!((cache.remaining("a"), cache.remaining("b")), (Some(Duration::from_secs(40)), None));
    /// # Ok::<(), shardwheel::cache::CacheError>(())
    /// ```
    pub fn remaining<Q: Hash + Eq + ?Sized>(&self, key: &Q) -> Option<Duration>
    where
        K: Borrow<Q>,
    {
        let left = |entry: &Entry<K, V>| {
            let now = self.now();
            let deadline = entry.deadline_if_visible(now)?;
            Some(deadline.map_or(Duration::MAX, |deadline| Nanos(deadline).since(now)))
        };
        self.find_map(&self.store.sought(key), left).map(|(_, left)| left)
    }

    /// As `find_and_renew`, for a lifetime from now on; counts as a use.
    fn renew_for<Q: Eq + ?Sized>(&self, key: &Sought<'_, Q>, lifetime: impl Fn(&Entry<K, V>) -> Duration) -> bool
    where
        K: Borrow<Q>,
    {
        let renewed = self.find_and_renew(key, |entry, now, _| now.plus(lifetime(entry)));
        renewed.inspect(|entry| self.store.touch(entry)).is_some()
    }

    /// The entry under the key that look-ups may find. Gives it the deadline that `choose` makes of the time and of the
    /// present deadline.
    pub(super) fn find_and_renew<Q: Eq + ?Sized>(
        &self,
        key: &Sought<'_, Q>,
        choose: impl Fn(&Entry<K, V>, Nanos, Nanos) -> Nanos,
    ) -> Option<Arc<Entry<K, V>>>
    where
        K: Borrow<Q>,
    {
        let renew = |entry: &Entry<K, V>| {
            let choose = |now, deadline| choose(entry, Nanos(now), Nanos(deadline)).0;
            // `None`: if there is another one, that is in the map by now, since an entry is replaced before it ends.
            if entry.visibility.is_shown() { entry.expiry.renew(|| self.now().0, choose) } else { None }
        };
        let (entry, Renewal { from, to }) = self.find_map(key, renew)?;
        if to < from {
            self.bring_forward(&entry, to);
        }
        Some(entry)
    }

    /// For an entry that was just given an earlier deadline: has its timer fire by then.
    fn bring_forward(&self, entry: &Entry<K, V>, mut deadline: u64) {
        loop {
            self.timers.reschedule_at(&entry.id, self.timers.clock().instant(Nanos(deadline)));
            // Another thread may have brought it forward further meanwhile, and have moved the timer before us. Then
            // our move has observed its change of the deadline, since a move acquires and releases (`word.rs`).
            match entry.expiry.deadline() {
                Some(latest) if latest < deadline => deadline = latest,
                _ => return,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::entry::Visibility;
    use super::*;

    /// Its key may have panicked as it was to be taken out of the map.
    #[test]
    fn an_entry_that_has_ended_but_stays_in_the_map_is_not_renewed() {
        let (cache, _clock) = Cache::builder(Duration::from_secs(60)).build_manual().expect("in range");
        cache.insert(1, 'a');
        let entry = cache.store.find(&cache.store.sought(&1)).expect("it was put in");
        assert_eq!(entry.expiry.end(0), Some(false));
        assert!(cache.contains(&1) && !cache.renew(&1));
    }

    /// A value that is being loaded: for everybody else, it is not there.
    #[test]
    fn an_entry_that_is_not_shown_is_not_renewed() {
        let ttl = Duration::from_secs(60);
        let (cache, _clock) = Cache::builder(ttl).build_manual().expect("in range");
        let entry = cache.entry(Arc::new(cache.store.hashed(1)), 'a', ttl, Visibility::hidden());
        cache.store.publish(&entry, &mut None);
        assert!(!cache.renew(&1) && cache.remaining(&1).is_none());
        assert!(entry.visibility.show() && cache.renew(&1));
    }

    /// Two threads have brought the deadline forward; the one that was first comes to the timer after the other one.
    #[test]
    fn the_timer_goes_with_the_deadline_whoever_moves_it_last() {
        let (cache, _clock) = Cache::builder(Duration::from_secs(60)).jitter(0.0).build_manual().expect("in range");
        cache.insert(1, 'a');
        let entry = cache.store.find(&cache.store.sought(&1)).expect("it was put in");
        let [first, second] = [30, 20].map(|seconds| Nanos(0).plus(Duration::from_secs(seconds)).0);
        for deadline in [first, second] {
            assert!(entry.expiry.renew(|| 0, |_, _| deadline).is_some());
        }
        cache.bring_forward(&entry, second);
        cache.bring_forward(&entry, first);
        assert_eq!(cache.timers.remaining(&entry.id), Some(Duration::from_secs(20)));
    }
}
