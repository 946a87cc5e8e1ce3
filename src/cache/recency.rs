//! The order of use, for caches with a limit.
//!
//! Readers only stamp: each use leaves the next number in the entry (unless that entry was the last one used anyway).
//! Entries are filed by a stamp that they once had. An entry that was used since stands too far ahead; when it comes
//! up, it is filed anew by its present stamp. The first one that comes up and was not used since is the least recently
//! used: all others are filed behind it, so their stamps are larger.

use super::entry::Entry;
use std::collections::BTreeMap;
use std::mem;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// How many entries one insertion files anew and still finds the one behind them. Bounds how long the lock is held:
/// where all entries are read between two insertions, one takes 14 us among 1,000 entries instead of 1.3, and 46 among
/// 100,000 instead of 1.6; with 1,024, it took 116 among 1,000 (medians of three runs of `cargo test --release --test
/// cache -- --ignored --nocapture`).
const REFILED_MAX: usize = 128;
/// Instead of the stamp under which an entry is filed: it has left, and is never filed again.
const GONE: u64 = u64::MAX;

pub(super) struct Recency<K, V> {
    limit: usize,
    /// The last stamp given. Each belongs to one entry, except 0, which entries have before their first use.
    last: AtomicU64,
    filed: Mutex<Filed<K, V>>,
}

type Filed<K, V> = BTreeMap<u64, Arc<Entry<K, V>>>;

impl<K, V> Recency<K, V> {
    pub(super) fn new(limit: usize) -> Self {
        Self { limit, last: AtomicU64::new(1), filed: Mutex::default() }
    }

    /// Notes a use.
    pub(super) fn touch(&self, entry: &Entry<K, V>) {
        // Relaxed: stamps order uses of one thread, or of threads that are ordered otherwise; nothing is read through
        // them.
        if entry.mark.used.load(Relaxed) != self.last.load(Relaxed) {
            // Not a store: a reader that was stopped here would undo the uses since.
            entry.mark.used.fetch_max(self.next_stamp(), Relaxed);
        }
    }

    fn next_stamp(&self) -> u64 {
        // Relaxed: as in `touch`.
        self.last.fetch_add(1, Relaxed) + 1
    }

    /// Files a new entry. Returns the one that must make room for it: no longer filed, but still to be ended.
    pub(super) fn file(&self, entry: &Arc<Entry<K, V>>) -> Option<Arc<Entry<K, V>>> {
        self.touch(entry);
        let mut filed = self.lock();
        // It has left already, so nobody would take it out again. Relaxed: under the lock.
        if entry.mark.filed.load(Relaxed) == GONE {
            return None;
        }
        put(&mut filed, entry);
        // Returned, not dropped under the lock: this may be the last reference, and its destructor is the user's code.
        if filed.len() > self.limit { pop_least_used(&mut filed) } else { None }
    }

    /// Forgets, for good, an entry that has left or is about to. May be called more than once.
    pub(super) fn unfile(&self, entry: &Entry<K, V>) {
        // Relaxed: the thread that wrote it has taken the entry out, or is doing so under the lock.
        if entry.mark.filed.load(Relaxed) == GONE {
            return;
        }
        let mut filed = self.lock();
        // The caller holds the entry, so this drops no last reference.
        // Relaxed: under the lock.
        filed.remove(&entry.mark.filed.swap(GONE, Relaxed));
    }

    /// Takes all entries out. None may be filed again.
    pub(super) fn clear(&self) -> Vec<Arc<Entry<K, V>>> {
        mem::take(&mut *self.lock()).into_values().collect()
    }

    fn lock(&self) -> MutexGuard<'_, Filed<K, V>> {
        self.filed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Files an entry by its present stamp, which it returns.
fn put<K, V>(filed: &mut Filed<K, V>, entry: &Arc<Entry<K, V>>) -> u64 {
    let stamp = entry.mark.used.load(Relaxed);
    entry.mark.filed.store(stamp, Relaxed);
    filed.insert(stamp, Arc::clone(entry));
    stamp
}

fn pop_least_used<K, V>(filed: &mut Filed<K, V>) -> Option<Arc<Entry<K, V>>> {
    let mut least = u64::MAX;
    // One more than are filed anew: the last may be the one.
    for _ in 0..=REFILED_MAX {
        let (stamp, entry) = filed.pop_first()?;
        if entry.mark.used.load(Relaxed) <= stamp {
            entry.mark.filed.store(0, Relaxed);
            return Some(entry);
        }
        least = least.min(put(filed, &entry));
    }
    // The entry filed at `least` may have come up a second time and been filed elsewhere, if it was used meanwhile.
    let entry = filed.remove(&least).or_else(|| Some(filed.pop_first()?.1))?;
    entry.mark.filed.store(0, Relaxed);
    Some(entry)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Barrier;

    /// Two entries with one stamp would share one place: one of them would never make room.
    #[test]
    fn no_two_uses_have_one_stamp() {
        const THREADS: usize = 2;
        const STAMPS: usize = 1_000_000;
        let (recency, barrier) = (Recency::<u32, u32>::new(1), Barrier::new(THREADS));
        let take = || {
            barrier.wait();
            (0..STAMPS).map(|_| recency.next_stamp()).collect::<Vec<_>>()
        };
        let stamps = std::thread::scope(|scope| {
            let takers = [(); THREADS].map(|()| scope.spawn(take));
            takers.map(|taker| taker.join().expect("it only counts"))
        });
        let mut stamps = stamps.concat();
        stamps.sort_unstable();
        stamps.dedup();
        assert_eq!(stamps.len(), THREADS * STAMPS);
    }
}
