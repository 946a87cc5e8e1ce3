//! A counter to sleep on. Unlike with `Thread::unpark`, a notifier that stalls hides nobody else's notification: on
//! Linux every `notify` makes its own system call. (`sync/futex.rs` says what bounds that elsewhere.)
//!
//! `loom-tests/flags.rs` checks this file.

use crate::sync::{AtomicU32, Ordering, futex};
use std::time::Duration;

#[derive(Debug, Default)]
pub(crate) struct EventCount(AtomicU32);

impl EventCount {
    /// The ticket to hand to [`EventCount::wait`]; to be taken before the last look for work.
    pub(crate) fn ticket(&self) -> u32 {
        // Acquire: pairs with the Release in `notify`: a thread that sees a notification sees the work behind it.
        self.0.load(Ordering::Acquire)
    }

    /// Wakes the sleeper; any later `wait` with an earlier ticket returns at once.
    pub(crate) fn notify(&self) {
        // Release: publishes the caller's work to the Acquire load in `ticket`.
        self.0.fetch_add(1, Ordering::Release);
        futex::wake(&self.0);
    }

    /// Sleeps until there is a notification later than `ticket`, or for `timeout`; may also return for no reason.
    pub(crate) fn wait(&self, ticket: u32, timeout: Option<Duration>) {
        futex::wait(&self.0, ticket, timeout);
    }
}
