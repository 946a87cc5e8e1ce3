//! One entry, and what decides about it.
//!
//! An entry belongs to its timer: it is the timer's value, and the map refers to it weakly. (With a limit, the order of
//! use keeps it alive, too, until it leaves.) What ends it is decided by its [`Expiry`]. The timer may fire before the
//! entry's deadline, if that was put off: then it comes back.

use super::expiry::{Deadline, Expiry};
use super::hashed::Hashed;
use crate::clock::Nanos;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

pub(super) struct Entry<K, V> {
    /// Its identity, and the key of its timer. No two entries of a cache ever have the same.
    pub(super) id: u64,
    pub(super) key: Arc<Hashed<K>>,
    pub(super) value: V,
    /// For how long it lives from its insertion on, or from when it is renewed.
    pub(super) lifetime: Duration,
    pub(super) expiry: Expiry,
    pub(super) visibility: Visibility,
    pub(super) mark: Mark,
}

/// Whether an entry may be seen. One that was loaded is put into the map unseen: it may be outdated until the very
/// moment when it is shown. An entry that ends before that was never there, for anybody.
///
/// Relaxed throughout: what may be seen through an entry was published with it, by the map; and each decision is one
/// exchange on this one place.
#[derive(Debug)]
pub(super) struct Visibility(AtomicU8);

const HIDDEN: u8 = 0;
const SHOWN: u8 = 1;
const NEVER_SHOWN: u8 = 2;

impl Visibility {
    pub(super) fn hidden() -> Self {
        Self(AtomicU8::new(HIDDEN))
    }

    pub(super) fn shown() -> Self {
        Self(AtomicU8::new(SHOWN))
    }

    /// Shows a hidden entry. False if it has ended.
    pub(super) fn show(&self) -> bool {
        self.0.compare_exchange(HIDDEN, SHOWN, Relaxed, Relaxed).is_ok()
    }

    /// For an entry that ends: if it is hidden, it never will be shown. True if it was.
    pub(super) fn end(&self) -> bool {
        let last = self.0.compare_exchange(HIDDEN, NEVER_SHOWN, Relaxed, Relaxed).unwrap_or_else(|last| last);
        last == SHOWN
    }

    pub(super) fn is_shown(&self) -> bool {
        self.0.load(Relaxed) == SHOWN
    }
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
    pub(super) fn new(
        id: u64,
        key: Arc<Hashed<K>>,
        value: V,
        now: Nanos,
        lifetime: Duration,
        visibility: Visibility,
    ) -> Self {
        let expiry = Expiry::at(now.plus(lifetime).0);
        Self { id, key, value, lifetime, expiry, visibility, mark: Mark::default() }
    }

    /// True if look-ups at `now` may find it.
    pub(super) fn is_visible(&self, now: Nanos) -> bool {
        self.deadline_if_visible(now).is_some()
    }

    pub(super) fn deadline_if_visible(&self, now: Nanos) -> Option<Deadline> {
        if self.visibility.is_shown() { self.expiry.ahead(now.0) } else { None }
    }

    /// The value of an entry that has left; a clone, if another thread is reading it.
    pub(super) fn into_value(entry: Arc<Self>) -> V
    where
        V: Clone,
    {
        Arc::try_unwrap(entry).map_or_else(|entry| entry.value.clone(), |entry| entry.value)
    }
}
