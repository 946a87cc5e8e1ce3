//! A counter to sleep on. Unlike `Thread::unpark`, a notifier that stalls hides nobody else's notification: every
//! `notify` makes its own call to the system.
//!
//! `loom-tests/flags.rs` checks this file.

use crate::sync::{AtomicU32, Ordering, futex};
use std::time::Duration;

#[derive(Debug, Default)]
pub(crate) struct Event(AtomicU32);

impl Event {
    /// The ticket to hand to [`Event::wait`]; to be taken before looking for work for the last time.
    pub(crate) fn ticket(&self) -> u32 {
        // Acquire: whoever sees a notification also sees the work that it was sent for.
        self.0.load(Ordering::Acquire)
    }

    /// Wakes the sleeper; any later `wait` with an earlier ticket returns at once.
    pub(crate) fn notify(&self) {
        // Release: publishes the caller's work to the Acquire load in `ticket`.
        self.0.fetch_add(1, Ordering::Release);
        futex::wake(&self.0);
    }

    /// Sleeps until a notification since `ticket`, until `timeout`, or now and then for no reason.
    pub(crate) fn wait(&self, ticket: u32, timeout: Option<Duration>) {
        futex::wait(&self.0, ticket, timeout);
    }
}
