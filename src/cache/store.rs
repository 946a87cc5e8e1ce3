//! The entries by key, and how they enter and leave: all but their timers, whose callback this is.

use super::entry::Entry;
use super::recency::Recency;
use super::stats::{Cause, Event, Stats, Tally};
use crate::callback::caught;
use crate::error::ScheduleError;
use crate::scheduler::Scheduler;
use papaya::{Equivalent, HashMap};
use std::borrow::Borrow;
use std::hash::{BuildHasher, BuildHasherDefault, Hash, Hasher};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{
    AtomicBool,
    Ordering::{Acquire, Relaxed},
    fence,
};
use std::sync::{Arc, Weak};

/// An entry's timer, by the entry's id, owns the entry.
pub(super) type Timers<K, V> = Scheduler<u64, Arc<Entry<K, V>>, BuildHasherDefault<IdHasher>>;
pub(super) type Started<K, V> = Result<Option<Arc<Entry<K, V>>>, ScheduleError<u64, Arc<Entry<K, V>>>>;
pub(super) type Listener<K, V> = Box<dyn Fn(&K, &V, Cause) + Send + Sync>;

pub(super) struct Store<K, V, S> {
    map: HashMap<Arc<K>, Slot<K, V>, S>,
    recency: Option<Recency<K, V>>,
    listener: Option<Listener<K, V>>,
    is_silent: AtomicBool,
    tally: Tally,
}

/// What is taken out of the map: an entry's id, and the entry itself if it may be filed and is still there.
type Out<K, V> = (u64, Option<Arc<Entry<K, V>>>);

/// What the map knows of an entry. Weak, because the map frees what was taken out only a while later.
struct Slot<K, V> {
    id: u64,
    entry: Weak<Entry<K, V>>,
}

/// Looks for a key by what it borrows as.
struct Sought<'a, Q: ?Sized>(&'a Q);

impl<Q: Hash + ?Sized> Hash for Sought<'_, Q> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.hash(state);
    }
}

impl<K: Borrow<Q>, Q: Eq + ?Sized> Equivalent<Arc<K>> for Sought<'_, Q> {
    fn equivalent(&self, key: &Arc<K>) -> bool {
        (**key).borrow() == self.0
    }
}

/// The scheduler mixes hashes itself, and nobody chooses an id.
#[derive(Debug, Default)]
pub(super) struct IdHasher(u64);

impl Hasher for IdHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&byte| self.0 = self.0 << 8 | u64::from(byte));
    }

    fn write_u64(&mut self, id: u64) {
        self.0 = id;
    }
}

impl<K, V, S> Store<K, V, S> {
    pub(super) fn count_look_up(&self, found: bool) {
        self.tally.add(if found { Event::Hit } else { Event::Miss });
    }

    pub(super) fn count_insertion(&self) {
        self.tally.add(Event::Inserted);
    }

    /// From now on the listener is told nothing.
    pub(super) fn silence(&self) {
        // Relaxed, here and in `tell`: a call that is under way, or about to begin, is not waited for.
        self.is_silent.store(true, Relaxed);
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
            map: HashMap::with_hasher(hasher),
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

    /// The entry under `key`; it may have expired.
    pub(super) fn find<Q: Hash + Eq + ?Sized>(&self, key: &Q) -> Option<Arc<Entry<K, V>>>
    where
        K: Borrow<Q>,
    {
        let map = self.map.pin();
        let mut left = None;
        loop {
            let slot = map.get(&Sought(key))?;
            if let Some(entry) = slot.entry.upgrade() {
                return Some(entry);
            }
            // It left while we stood here. It was taken out of the map before, and another one may be in its place.
            // Acquire: of the Release with which its last owner let go of it, so that the map is seen as it was then.
            fence(Acquire);
            // The same one twice: it was not taken out, because the key panicked or the executor dropped the job.
            if left.replace(slot.id) == Some(slot.id) {
                return None;
            }
        }
    }

    /// The entries; those that have expired as well.
    pub(super) fn all(&self) -> Vec<Arc<Entry<K, V>>> {
        self.map.pin().values().filter_map(|slot| slot.entry.upgrade()).collect()
    }

    /// Puts an entry, whose timer runs, in the place of its key. The id of the one that was there is `replaced`, whether or not a key
    /// panics afterwards.
    pub(super) fn publish(&self, entry: &Arc<Entry<K, V>>, replaced: &mut Option<u64>) {
        let slot = Slot { id: entry.id, entry: Arc::downgrade(entry) };
        let out = self.map.pin().insert(Arc::clone(&entry.key), slot).map(|slot| self.out(slot));
        *replaced = out.map(|out| self.make_room(out));
        // The timer may have fired before we published, and looked for the entry in vain; see `Ended`.
        if entry.ended.is_missed() {
            self.unpublish(entry);
        }
    }

    /// Takes whatever is under `key` out of the map. Its id: its timer still runs, unless somebody else ends it right now.
    pub(super) fn withdraw<Q: Hash + Eq + ?Sized>(&self, key: &Q) -> Option<u64>
    where
        K: Borrow<Q>,
    {
        let out = self.map.pin().remove(&Sought(key)).map(|slot| self.out(slot));
        out.map(|out| self.make_room(out))
    }

    /// What a slot that is taken out of the map refers to. The entry only if it may be filed.
    fn out(&self, slot: &Slot<K, V>) -> Out<K, V> {
        (slot.id, self.recency.as_ref().and_then(|_| slot.entry.upgrade()))
    }

    /// An entry that is in the map no more takes no room from others, though its timer's callback may be late.
    fn make_room(&self, (id, entry): Out<K, V>) -> u64 {
        entry.into_iter().for_each(|entry| self.unfile(&entry));
        id
    }

    /// Files a new entry by its use. The one that must go for it.
    pub(super) fn file(&self, entry: &Arc<Entry<K, V>>) -> Option<Arc<Entry<K, V>>> {
        self.recency.as_ref()?.file(entry)
    }

    /// The end of an entry, for the one who has ended its timer.
    ///
    /// If the key panics, it has ended all the same, and the panic goes on here.
    pub(super) fn leave(&self, entry: &Entry<K, V>, cause: Cause) {
        entry.ended.set();
        let unpublished = catch_unwind(AssertUnwindSafe(|| self.unpublish(entry)));
        self.tally.add(Event::Ended(cause));
        self.tell(entry, cause);
        unpublished.unwrap_or_else(|panic| resume_unwind(panic));
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

    fn tell(&self, entry: &Entry<K, V>, cause: Cause) {
        let Some(listener) = &self.listener else { return };
        if self.is_silent.load(Relaxed) {
            return;
        }
        if caught(|| listener(&entry.key, &entry.value, cause)).is_none() {
            self.tally.add(Event::ListenerPanicked);
        }
    }
}
