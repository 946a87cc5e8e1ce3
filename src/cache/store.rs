//! The entries by key, and how they enter and leave.

use super::entry::Entry;
use super::hashed::{Hashed, Ready, Sought};
use super::recency::Recency;
use super::stats::{Cause, Event, Stats, Tally};
use crate::clock::Nanos;
use crate::unwind::{caught, drop_quietly};
use papaya::{Compute, Equivalent, HashMap, Operation};
use std::borrow::Borrow;
use std::hash::{BuildHasher, BuildHasherDefault, Hash};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{
    AtomicBool,
    Ordering::{Acquire, Relaxed},
    fence,
};
use std::sync::{Arc, Weak};

pub(super) type Listener<K, V> = Box<dyn Fn(&K, &V, Cause) + Send + Sync>;

pub(super) struct Store<K, V, S> {
    hasher: S,
    map: HashMap<Arc<Hashed<K>>, Slot<K, V>, BuildHasherDefault<Ready>>,
    recency: Option<Recency<K, V>>,
    listener: Option<Listener<K, V>>,
    is_silent: AtomicBool,
    tally: Tally,
}

/// What became of an entry that was to be put in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Published {
    Yes,
    /// The key has another one, which has not expired.
    Occupied,
}

/// What the map knows of an entry. Weak, because the map frees what was taken out only a while later.
struct Slot<K, V> {
    id: u64,
    entry: Weak<Entry<K, V>>,
}

impl<K, V> Slot<K, V> {
    fn of(entry: &Arc<Entry<K, V>>) -> Self {
        Self { id: entry.id, entry: Arc::downgrade(entry) }
    }
}

impl<K: Borrow<Q>, Q: Eq + ?Sized> Equivalent<Arc<Hashed<K>>> for Sought<'_, Q> {
    fn equivalent(&self, key: &Arc<Hashed<K>>) -> bool {
        self.is(key)
    }
}

impl<K, V, S> Store<K, V, S> {
    pub(super) fn count_look_up(&self, found: bool) {
        self.tally.add(if found { Event::Hit } else { Event::Miss });
    }

    pub(super) fn count_insertion(&self) {
        self.tally.add(Event::Inserted);
    }

    /// The cache is gone: from now on the listener is not called, and the order of use keeps no entry alive.
    pub(super) fn retire(&self) {
        // Relaxed, here and in `notify`: a call that is under way, or about to begin, is not waited for.
        self.is_silent.store(true, Relaxed);
        if let Some(recency) = &self.recency {
            recency.clear().into_iter().for_each(drop_quietly);
        }
    }

    pub(super) fn touch(&self, entry: &Entry<K, V>) {
        if let Some(recency) = &self.recency {
            recency.touch(entry);
        }
    }
}

impl<K: Hash + Eq, V, S: BuildHasher> Store<K, V, S> {
    pub(super) fn new(hasher: S, limit: Option<usize>, listener: Option<Listener<K, V>>) -> Self {
        Self {
            hasher,
            map: HashMap::with_hasher(BuildHasherDefault::default()),
            recency: limit.map(Recency::new),
            listener,
            is_silent: AtomicBool::new(false),
            tally: Tally::new(),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.map.len()
    }

    pub(super) fn stats(&self) -> Stats {
        self.tally.stats(self.len())
    }

    pub(super) fn hashed(&self, key: K) -> Hashed<K> {
        Hashed::new(key, &self.hasher)
    }

    pub(super) fn sought<'a, Q: Hash + ?Sized>(&self, key: &'a Q) -> Sought<'a, Q> {
        Sought::new(key, &self.hasher)
    }

    /// The entry under a key; it may have expired.
    pub(super) fn find<Q: Eq + ?Sized>(&self, key: &Sought<'_, Q>) -> Option<Arc<Entry<K, V>>>
    where
        K: Borrow<Q>,
    {
        let map = self.map.pin();
        let mut left = None;
        loop {
            let slot = map.get(key)?;
            if let Some(entry) = slot.entry.upgrade() {
                return Some(entry);
            }
            // The entry left after we had found its slot. It was taken out of the map before that, so we look again:
            // another one may be in its place.
            // Acquire: observes the map as it was when the entry's last owner dropped it; pairs with the Release of
            // that drop, in `Arc`.
            fence(Acquire);
            // The same one twice: it was not taken out, because the key panicked or the executor dropped the job.
            if left.replace(slot.id) == Some(slot.id) {
                return None;
            }
        }
    }

    /// All entries, expired ones too. Weak, so that the thread that ends one meanwhile has its value to itself.
    pub(super) fn all(&self) -> Vec<Weak<Entry<K, V>>> {
        self.map.pin().values().map(|slot| Weak::clone(&slot.entry)).collect()
    }

    /// Puts an entry, whose timer runs, under its key. Sets `replaced` to the entry that was there and is still alive,
    /// whether or not a key panics afterwards.
    pub(super) fn publish(&self, entry: &Arc<Entry<K, V>>, replaced: &mut Option<Arc<Entry<K, V>>>) {
        let map = self.map.pin();
        let slot = map.insert(Arc::clone(&entry.key), Slot::of(entry));
        *replaced = slot.and_then(|slot| self.out(slot));
        // Only now: to unpin may drop keys that were taken out before.
        drop(map);
        self.settle(entry);
    }

    /// As `publish`, unless an entry that is visible at `now` is under the key.
    pub(super) fn publish_if_free(
        &self,
        entry: &Arc<Entry<K, V>>,
        now: Nanos,
        replaced: &mut Option<Arc<Entry<K, V>>>,
    ) -> Published {
        // Kept until the map is done: it may be the last reference, and its destructor is the user's code.
        let mut met = None;
        let map = self.map.pin();
        // First without `compute`, which is far slower while the map grows.
        *replaced = if map.try_insert(Arc::clone(&entry.key), Slot::of(entry)).is_ok() {
            None
        } else {
            let computed = map.compute(Arc::clone(&entry.key), |found| {
                met = found.and_then(|(_, slot)| slot.entry.upgrade());
                if met.as_ref().is_some_and(|other| other.is_visible(now)) {
                    return Operation::Abort(());
                }
                Operation::Insert(Slot::of(entry))
            });
            match computed {
                Compute::Aborted(()) => return Published::Occupied,
                Compute::Updated { old: (_, slot), .. } => self.out(slot),
                Compute::Inserted(..) | Compute::Removed(..) => None,
            }
        };
        drop(map);
        self.settle(entry);
        Published::Yes
    }

    /// For an entry that was just put into the map: takes it out again if it ended before, and was looked for in vain;
    /// see `expiry.rs`.
    fn settle(&self, entry: &Entry<K, V>) {
        if entry.expiry.is_missed() {
            self.unpublish(entry);
        }
    }

    /// Takes the entry under a key out of the map, and returns it if it is still alive. Its timer still runs, unless
    /// another thread is ending it.
    pub(super) fn withdraw<Q: Eq + ?Sized>(&self, key: &Sought<'_, Q>) -> Option<Arc<Entry<K, V>>>
    where
        K: Borrow<Q>,
    {
        self.out(self.map.pin().remove(key)?)
    }

    /// The entry of a slot that was taken out of the map. It takes no room from others any more, even if its timer's
    /// callback is late.
    fn out(&self, slot: &Slot<K, V>) -> Option<Arc<Entry<K, V>>> {
        let entry = slot.entry.upgrade()?;
        self.unfile(&entry);
        Some(entry)
    }

    /// Files a new entry by its last use. Returns the one that must make room for it.
    pub(super) fn file(&self, entry: &Arc<Entry<K, V>>) -> Option<Arc<Entry<K, V>>> {
        self.recency.as_ref()?.file(entry)
    }

    /// The end of an entry, for the thread that has ended it. False if the entry was never shown: then it is neither
    /// counted nor told of.
    ///
    /// If the key panics, the entry has still ended, and the panic goes on here.
    pub(super) fn leave(&self, entry: &Entry<K, V>, cause: Cause) -> bool {
        let unpublished = catch_unwind(AssertUnwindSafe(|| self.unpublish(entry)));
        let was_shown = entry.visibility.end();
        if was_shown {
            self.tally.add(Event::Ended(cause));
            self.notify(entry, cause);
        }
        unpublished.unwrap_or_else(|panic| resume_unwind(panic));
        was_shown
    }

    /// Takes this entry, and no other one of its key, out of the map, and out of the order of use.
    pub(super) fn unpublish(&self, entry: &Entry<K, V>) {
        self.unfile(entry);
        let _ = self.map.pin().remove_if(&entry.key, |_, slot| slot.id == entry.id);
    }

    fn unfile(&self, entry: &Entry<K, V>) {
        if let Some(recency) = &self.recency {
            recency.unfile(entry);
        }
    }

    fn notify(&self, entry: &Entry<K, V>, cause: Cause) {
        let Some(listener) = &self.listener else { return };
        if self.is_silent.load(Relaxed) {
            return;
        }
        if caught(|| listener(&entry.key.key, &entry.value, cause)).is_none() {
            self.tally.add(Event::ListenerPanicked);
        }
    }
}
