//! The system's part of [`EventCount`](crate::event_count::EventCount): to sleep while a word has a value.

use super::AtomicU32;
use std::time::Duration;

#[cfg(all(target_os = "linux", not(portable_sleep)))]
mod system {
    use super::*;
    use rustix::thread::futex;

    /// Sleeps while `count` equals `ticket`, at most for `timeout`; may also return for no reason.
    pub(crate) fn wait(count: &AtomicU32, ticket: u32, timeout: Option<Duration>) {
        let timeout = timeout.and_then(|timeout| futex::Timespec::try_from(timeout).ok());
        // An error means the time-out, a signal, or a ticket that is out of date: the caller looks again anyway.
        let _ = futex::wait(count, futex::Flags::PRIVATE, ticket, timeout.as_ref());
    }

    pub(crate) fn wake(count: &AtomicU32) {
        // An error can only mean that nobody sleeps.
        let _ = futex::wake(count, futex::Flags::PRIVATE, 1);
    }
}

/// Elsewhere `parking_lot_core` does in the process what the kernel does on Linux: sleepers queue up by the address of
/// their word, in a list behind a short lock, which other code of the process may share. Whoever wakes a sleeper first
/// takes it off that list, and then makes the system call. A thread that is stopped in between hides other threads'
/// wake-ups, as it would with `std`'s parking. So nobody sleeps for longer than [`CAP`] without looking.
#[cfg(any(not(target_os = "linux"), portable_sleep))]
mod system {
    use super::*;
    use crate::sync::Ordering;
    use parking_lot_core::{DEFAULT_PARK_TOKEN, DEFAULT_UNPARK_TOKEN, ParkResult, park, unpark_one};
    use std::time::Instant;

    /// Bounds as well what some systems make of longer times: they cut them off, or measure them by a clock that may be
    /// set.
    const CAP: Duration = Duration::from_secs(1);

    fn key(count: &AtomicU32) -> usize {
        std::ptr::from_ref(count).addr()
    }

    /// Sleeps while `count` equals `ticket`, at most for `timeout`; may also return for no reason.
    pub(crate) fn wait(count: &AtomicU32, ticket: u32, timeout: Option<Duration>) {
        // Relaxed: asked for under the lock of the list. A notifier that takes the lock after this finds us in there;
        // what one did that has had it before is seen.
        let is_current = || count.load(Ordering::Relaxed) == ticket;
        let begin = Instant::now();
        loop {
            let left = timeout.map_or(CAP, |timeout| timeout.saturating_sub(begin.elapsed()).min(CAP));
            // SAFETY: the word is an `EventCount`'s, so nobody else queues up under its address; and the closures call
            // nothing that panics or parks.
            let result = unsafe {
                park(key(count), is_current, || {}, |_, _| {}, DEFAULT_PARK_TOKEN, Some(Instant::now() + left))
            };
            if left < CAP || result != ParkResult::TimedOut {
                return;
            }
        }
    }

    pub(crate) fn wake(count: &AtomicU32) {
        // SAFETY: as above.
        unsafe { unpark_one(key(count), |_| DEFAULT_UNPARK_TOKEN) };
    }
}

pub(crate) use system::{wait, wake};

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use super::*;
    use crate::sync::Ordering::Relaxed;
    use std::thread;
    use std::time::Instant;

    const SHORT: Duration = Duration::from_millis(20);
    const PATIENCE: Duration = Duration::from_secs(30);

    #[test]
    fn whoever_is_late_does_not_sleep() {
        let (count, begin) = (AtomicU32::new(1), Instant::now());
        wait(&count, 0, Some(2 * PATIENCE));
        assert!(begin.elapsed() < PATIENCE);
    }

    #[test]
    fn a_sleep_ends_after_its_time() {
        let (count, begin) = (AtomicU32::new(1), Instant::now());
        // It may return for no reason.
        while begin.elapsed() < SHORT {
            wait(&count, 1, Some(SHORT));
        }
        assert!(begin.elapsed() < PATIENCE);
    }

    /// Each of two threads waits for the other, over and over: if one misses a notification, both sleep.
    #[test]
    fn no_notification_is_missed() {
        let rounds = if cfg!(miri) { 50 } else { 20_000 };
        let (counts, start) = ([AtomicU32::new(0), AtomicU32::new(0)], Instant::now());
        let play = |own: usize, other: usize, begins: bool| {
            for round in 0..rounds {
                let notify = || {
                    counts[other].fetch_add(1, Relaxed);
                    wake(&counts[other]);
                };
                if begins {
                    notify();
                }
                while counts[own].load(Relaxed) == round {
                    wait(&counts[own], round, Some(PATIENCE));
                    assert!(start.elapsed() < PATIENCE, "in round {round}");
                }
                if !begins {
                    notify();
                }
            }
        };
        thread::scope(|scope| {
            scope.spawn(|| play(0, 1, true));
            scope.spawn(|| play(1, 0, false));
        });
        assert!(counts.iter().all(|count| count.load(Relaxed) == rounds));
    }

    #[test]
    fn a_long_sleep_ends_when_it_is_told() {
        let (count, begin) = (AtomicU32::new(0), Instant::now());
        thread::scope(|scope| {
            scope.spawn(|| {
                thread::sleep(Duration::from_millis(1_100));
                count.fetch_add(1, Relaxed);
                wake(&count);
            });
            while count.load(Relaxed) == 0 {
                wait(&count, 0, None);
            }
        });
        assert!(begin.elapsed() < PATIENCE);
    }
}
