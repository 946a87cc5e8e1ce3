//! What a cache counts.

use crate::thread;
use crossbeam_utils::CachePadded;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// How an entry ended.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Cause {
    /// It reached its deadline.
    Expired,
    /// Another value was inserted under its key.
    Replaced,
    /// [`remove`](super::Cache::remove) or [`clear`](super::Cache::clear) took it out.
    Removed,
    /// It was the least recently used one, and the cache was full. (Also: there was no room for its timer, with almost
    /// 2^28 entries in its shard. Then it was never to be seen.)
    Evicted,
}

/// The counters of a cache. While nothing runs, `inserted` is the sum of the four ends and `entries`, unless an
/// executor has dropped jobs or a key has panicked.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Stats {
    /// Entries at this moment.
    pub entries: u64,
    /// Look-ups that found a value; each `get_or_..insert_with..` call counts once.
    pub hits: u64,
    /// Look-ups that did not.
    pub misses: u64,
    /// Insertions, loaded values among them.
    pub inserted: u64,
    /// Entries that ended by [`Cause::Expired`].
    pub expired: u64,
    /// Entries that ended by [`Cause::Replaced`].
    pub replaced: u64,
    /// Entries that ended by [`Cause::Removed`].
    pub removed: u64,
    /// Entries that ended by [`Cause::Evicted`].
    pub evicted: u64,
    /// Calls of the listener that panicked.
    pub listener_panics: u64,
}

#[derive(Clone, Copy)]
pub(super) enum Event {
    Hit,
    Miss,
    Inserted,
    Ended(Cause),
    ListenerPanicked,
}

const EVENT_COUNT: usize = 8;

impl Event {
    fn index(self) -> usize {
        match self {
            Self::Hit => 0,
            Self::Miss => 1,
            Self::Inserted => 2,
            Self::ListenerPanicked => 3,
            Self::Ended(cause) => 4 + cause as usize,
        }
    }
}

/// Counters in stripes, so that readers on many cores do not share a cache line.
pub(super) struct Tally(Box<[CachePadded<[AtomicU64; EVENT_COUNT]>]>);

impl Tally {
    pub(super) fn new() -> Self {
        Self((0..thread::stripe_count()).map(|_| CachePadded::default()).collect())
    }

    pub(super) fn add(&self, event: Event) {
        let stripe = thread::ordinal().stripe(self.0.len());
        // Relaxed: a count; it publishes nothing.
        self.0[stripe][event.index()].fetch_add(1, Relaxed);
    }

    fn sum(&self, event: Event) -> u64 {
        self.0.iter().map(|stripe| stripe[event.index()].load(Relaxed)).sum()
    }

    pub(super) fn stats(&self, entries: usize) -> Stats {
        Stats {
            entries: entries as u64,
            hits: self.sum(Event::Hit),
            misses: self.sum(Event::Miss),
            inserted: self.sum(Event::Inserted),
            expired: self.sum(Event::Ended(Cause::Expired)),
            replaced: self.sum(Event::Ended(Cause::Replaced)),
            removed: self.sum(Event::Ended(Cause::Removed)),
            evicted: self.sum(Event::Ended(Cause::Evicted)),
            listener_panics: self.sum(Event::ListenerPanicked),
        }
    }
}
