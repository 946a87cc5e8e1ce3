//! One entry, and what decides about it.
//!
//! An entry belongs to its timer: it is the timer's value, and the map refers to it weakly. (With a limit, the order of
//! use keeps it alive, too, until it leaves.) The thread that gets the entry out of the scheduler, by cancelling the
//! timer or because it fired, ends the entry; the scheduler gives it to one thread only.

use super::ended::Ended;
use super::hashed::Hashed;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Instant;

pub(super) struct Entry<K, V> {
    /// Its identity, and the key of its timer. No two entries of a cache ever have the same.
    pub(super) id: u64,
    pub(super) key: Arc<Hashed<K>>,
    pub(super) value: V,
    /// `None`: it never expires.
    pub(super) deadline: Option<Instant>,
    pub(super) mark: Mark,
    pub(super) ended: Ended,
}

/// When an entry was last used; see `recency.rs`.
#[derive(Default)]
pub(super) struct Mark {
    /// The stamp of the last use.
    pub(super) used: AtomicU64,
    /// The stamp under which it is filed; 0 if it is not, the largest number if it never will be. Changed under the
    /// lock only.
    pub(super) filed: AtomicU64,
}

impl<K, V> Entry<K, V> {
    pub(super) fn new(id: u64, key: Arc<Hashed<K>>, value: V, deadline: Option<Instant>) -> Self {
        Self { id, key, value, deadline, mark: Mark::default(), ended: Ended::default() }
    }

    pub(super) fn is_expired(&self, now: Instant) -> bool {
        self.deadline.is_some_and(|deadline| deadline <= now)
    }

    /// The value of an entry that has left; a clone, if another thread is reading it.
    pub(super) fn into_value(entry: Arc<Self>) -> V
    where
        V: Clone,
    {
        Arc::try_unwrap(entry).map_or_else(|entry| entry.value.clone(), |entry| entry.value)
    }
}
