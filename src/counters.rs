//! How many timers began and how they ended: one set of counters per thread, folded on reading.
//!
//! Each transition is counted by the one thread that made it, after it made it. `len` is not a counter of its own but
//! what began minus what ended, so it cannot drift.

use crate::shard::{Ordinal, Segments, Zeroed};
use crossbeam_utils::CachePadded;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// What is counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Event {
    Scheduled,
    Rearmed,
    Rescheduled,
    Replaced,
    Cancelled,
    Fired,
    Drained,
    Discarded,
    Returned,
    Rejected,
    CallbackPanicked,
    CallbackLost,
    ClockRegressed,
}

const EVENT_COUNT: usize = Event::ClockRegressed as usize + 1;
/// The ways in which a timer ends.
const ENDS: [Event; 6] =
    [Event::Replaced, Event::Cancelled, Event::Fired, Event::Drained, Event::Discarded, Event::Returned];

/// What one thread counted, on cache lines of its own.
#[derive(Debug, Default)]
struct Local(CachePadded<[AtomicU64; EVENT_COUNT]>);

// SAFETY: all-zero bytes are atomics of 0, as in the default.
unsafe impl Zeroed for Local {}

/// By the ordinals of their threads.
#[derive(Debug)]
pub(crate) struct Counters(Segments<Local>);

impl Counters {
    pub(crate) fn new() -> Self {
        Self(Segments::new())
    }

    #[inline]
    pub(crate) fn add(&self, ordinal: &Ordinal, event: Event, count: u64) {
        let counter = &self.0.reserve(ordinal.number()).0[event as usize];
        // Relaxed: a count; it publishes nothing. Only the thread that holds the ordinal writes it, so nothing is lost
        // between the load and the store, which cost less than a read-modify-write.
        counter.store(counter.load(Relaxed) + count, Relaxed);
    }

    /// What the calling thread has counted, and those that had its ordinal before it.
    #[inline]
    pub(crate) fn own(&self, ordinal: &Ordinal, event: Event) -> u64 {
        // Relaxed: as above.
        self.0.reserve(ordinal.number()).0[event as usize].load(Relaxed)
    }

    pub(crate) fn sum(&self, event: Event) -> u64 {
        // Relaxed: as above. It fits: 2^64 events do not happen.
        self.0.iter().map(|local| local.0[event as usize].load(Relaxed)).sum()
    }

    /// Timers that have begun and not ended: exact while nothing runs.
    pub(crate) fn pending(&self) -> u64 {
        // The ends first: an end that is counted between the two readings must not make the difference negative.
        let ended: u64 = ENDS.iter().map(|&end| self.sum(end)).sum();
        (self.sum(Event::Scheduled) + self.sum(Event::Rearmed)).saturating_sub(ended)
    }
}
