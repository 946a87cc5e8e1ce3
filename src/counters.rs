//! How many timers began and how they ended: one set of counters per stripe, folded on reading.
//!
//! Each transition is counted by the one thread that made it, after it made it. `len` is not a counter of its own but
//! what began minus what ended, so it cannot drift.

use crossbeam_utils::CachePadded;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// What is counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Event {
    Scheduled,
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

#[derive(Debug, Default)]
struct Stripe([AtomicU64; EVENT_COUNT]);

#[derive(Debug)]
pub(crate) struct Counters(Box<[CachePadded<Stripe>]>);

impl Counters {
    pub(crate) fn new(stripe_count: usize) -> Self {
        Self((0..stripe_count).map(|_| CachePadded::default()).collect())
    }

    #[inline]
    pub(crate) fn add(&self, stripe: usize, event: Event, count: u64) {
        // Relaxed: a count; it publishes nothing.
        self.0[stripe].0[event as usize].fetch_add(count, Relaxed);
    }

    pub(crate) fn sum(&self, event: Event) -> u64 {
        // Relaxed: as above. Wrapping: 2^64 events do not happen.
        self.0.iter().map(|stripe| stripe.0[event as usize].load(Relaxed)).sum()
    }

    /// Timers that have begun and not ended: exact while nothing runs.
    pub(crate) fn pending(&self) -> u64 {
        // The ends first: an end that is counted between the two readings must not make the difference negative.
        let ended: u64 = ENDS.iter().map(|&end| self.sum(end)).sum();
        self.sum(Event::Scheduled).saturating_sub(ended)
    }
}
