//! When the worker sleeps, and who wakes it.
//!
//! Two threads must not both miss each other: the worker goes to sleep believing that there is nothing to do before
//! its next deadline, while a caller sends an earlier one believing that the worker is awake.
//!
//! | worker                                    | caller                                   |
//! |-------------------------------------------|------------------------------------------|
//! | 1. takes a ticket                         | 1. pushes its hint                       |
//! | 2. publishes `asleep until T`             | 2. fence                                 |
//! | 3. fence                                  | 3. reads `T`: earlier than `T`? notifies |
//! | 4. looks into the mailbox once more       |                                          |
//! | 5. sleeps until `T` or a notification     |                                          |
//!
//! One of the two fences comes first:
//! - the caller's: the worker's look in 4 sees the hint.
//! - the worker's: the caller reads `T` in 3 and notifies; the ticket is older than the notification, so 5 returns at
//!   once or is woken.
//!
//! Another thread may act as the worker while the worker's own sleeps (`crew.rs`), and then takes steps 2 to 4 again.
//! The sleeper's ticket is older than any notification that comes of that, so 5 holds for it all the more. If it gets
//! up and just sleeps on, it has found that nothing was notified since it took that ticket.
//!
//! Callers never write what the worker published: one that stalled between a write and its notification would hide
//! everybody else's wake-up. So several callers may notify for one sleep; that costs them a little, and nobody a timer.

use super::tick::Tick;
use crate::sync::{AtomicU64, EventCount, Ordering, fence};
use std::time::Duration;

/// `asleep_until` while the worker is awake: no deadline is earlier.
const AWAKE: u64 = 0;
/// `asleep_until` while the worker waits for nothing but a notification.
const NO_DEADLINE: u64 = u64::MAX;

#[derive(Debug, Default)]
pub(crate) struct Alarm {
    asleep_until: AtomicU64,
    event: EventCount,
}

impl Alarm {
    /// A caller has pushed a hint for `tick`: wakes the worker if it would sleep past that.
    #[inline]
    pub(crate) fn hint_pushed(&self, tick: Tick) {
        // SeqCst: step 2 of the caller. Pairs with the fence in `lie_down`.
        fence(Ordering::SeqCst);
        // Relaxed: the fences decide what is seen; nothing else is read through it.
        if tick.0 < self.asleep_until.load(Ordering::Relaxed) {
            self.event.notify();
        }
    }

    /// A caller has pushed a hint, and the mailbox should be drained: wakes the worker, whatever it waits for.
    pub(crate) fn drain_due(&self) {
        // SeqCst, Relaxed: as in `hint_pushed`.
        fence(Ordering::SeqCst);
        if self.asleep_until.load(Ordering::Relaxed) != AWAKE {
            self.event.notify();
        }
    }

    /// The tick that the worker sleeps until; tick 0 while it is awake.
    #[inline]
    pub(crate) fn asleep_until(&self) -> Tick {
        // Relaxed: an estimate of the time, for a caller that does not want to read the clock.
        Tick(self.asleep_until.load(Ordering::Relaxed))
    }

    pub(crate) fn is_asleep(&self) -> bool {
        // Relaxed: an estimate.
        self.asleep_until.load(Ordering::Relaxed) != AWAKE
    }

    /// Wakes the worker for something other than a hint: the end of the scheduler, lines to be set, stale hints, a
    /// lookout that does not see to the shard.
    pub(crate) fn interrupt(&self) {
        self.event.notify();
    }

    /// Taken before the worker decides that there is nothing to do: step 1.
    pub(crate) fn ticket(&self) -> u32 {
        self.event.ticket()
    }

    /// Steps 2 to 4. False if `has_work` finds anything in the last look: then the worker goes on. After a `true`, it
    /// may [`sleep`](Self::sleep), or leave that to another thread.
    pub(crate) fn lie_down(&self, until: Option<Tick>, has_work: impl FnOnce() -> bool) -> bool {
        // Relaxed: the fence orders it.
        self.asleep_until.store(until.map_or(NO_DEADLINE, |tick| tick.0), Ordering::Relaxed);
        // SeqCst: step 3 of the worker. Pairs with the fence in `hint_pushed`.
        fence(Ordering::SeqCst);
        let may_sleep = !has_work();
        if !may_sleep {
            self.get_up();
        }
        may_sleep
    }

    /// Step 5. `timeout` is the time until the deadline that was published, or less; or more, if another thread will
    /// have acted as the worker by then. Afterwards the worker still counts as asleep.
    pub(crate) fn sleep(&self, ticket: u32, timeout: Option<Duration>) {
        self.event.wait(ticket, timeout);
    }

    /// For the worker, or for who acts as the worker: from here on it is awake.
    pub(crate) fn get_up(&self) {
        // Relaxed: a caller that still reads the old value notifies in vain.
        self.asleep_until.store(AWAKE, Ordering::Relaxed);
    }
}
