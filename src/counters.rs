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
    CallbackBegun,
    CallbackPanicked,
    CallbackLost,
    ClockRegressed,
}

const EVENT_COUNT: usize = Event::ClockRegressed as usize + 1;
/// The ways in which a timer ends.
const ENDS: [Event; 6] =
    [Event::Replaced, Event::Cancelled, Event::Fired, Event::Drained, Event::Discarded, Event::Returned];

/// How many looks to take at most, while timers begin and end, for one during which few of them do.
const LOOKS_MAX: usize = 8;

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

    /// Timers that have begun and not ended: exact while nothing runs. If timers begin and end meanwhile, no fewer than
    /// there were at some moment of the call; and more by those that have begun during the quickest of a few looks.
    pub(crate) fn pending(&self) -> u64 {
        // The ends first: an end that is counted between the two readings must not make the difference negative.
        let mut ended = self.ended();
        let mut least = u64::MAX;
        for _ in 0..LOOKS_MAX {
            let begun = self.sum(Event::Scheduled) + self.sum(Event::Rearmed);
            least = least.min(begun.saturating_sub(ended));
            // A thread that is stopped between the two readings counts all that has begun since.
            let ended_before = std::mem::replace(&mut ended, self.ended());
            if ended == ended_before {
                break;
            }
        }
        least
    }

    /// Callbacks handed over that have not begun: exact while nothing runs.
    pub(crate) fn waiting(&self) -> u64 {
        // First those that have begun: one that begins between the two readings makes the difference no less.
        let begun = self.sum(Event::CallbackBegun);
        self.sum(Event::Fired).saturating_sub(begun)
    }

    fn ended(&self) -> u64 {
        ENDS.iter().map(|&end| self.sum(end)).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::thread;
    use std::sync::atomic::AtomicBool;
    use std::time::{Duration, Instant};

    /// A thread that counts is stopped at times, by others that count: with a single look it would then take what began
    /// meanwhile for pending, tens of thousands.
    #[test]
    fn contention_makes_what_is_pending_hardly_too_high() {
        const COUNTING: u64 = 3;
        let (counters, is_over) = (Counters::new(), AtomicBool::new(false));
        let most = std::thread::scope(|scope| {
            for _ in 0..COUNTING {
                scope.spawn(|| {
                    let ordinal = thread::ordinal();
                    while !is_over.load(Relaxed) {
                        counters.add(&ordinal, Event::Scheduled, 1);
                        counters.add(&ordinal, Event::Cancelled, 1);
                    }
                });
            }
            let begin = Instant::now();
            let looks = std::iter::from_fn(|| (begin.elapsed() < Duration::from_secs(1)).then(|| counters.pending()));
            let most = looks.max();
            is_over.store(true, Relaxed);
            most
        });
        assert!(most.is_some_and(|most| most < 1000), "{most:?} of {COUNTING}");
        assert_eq!(counters.pending(), 0);
    }
}
