//! The ways in which a scheduler ends.

use std::fmt;
use std::time::Duration;

/// What [`Scheduler::close`](crate::Scheduler::close) does with the timers that are still pending.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Close {
    /// Drops their values.
    Discard,
    /// Fires them all now, whatever their deadlines. `close` waits for their callbacks only if it runs them itself:
    /// [`Executor::Inline`](crate::Executor::Inline), and with the manual clock. Else
    /// [`wait_for_callbacks`](crate::Scheduler::wait_for_callbacks) does.
    FireNow,
    /// Gives them back, with their remaining time.
    Return,
}

/// What became of the timers that were pending at [`Scheduler::close`](crate::Scheduler::close).
///
/// All empty for every `close` after the first.
#[derive(Clone, PartialEq, Eq)]
pub struct Closed<K, V> {
    /// Timers whose values were dropped.
    pub discarded: usize,
    /// Timers handed to the callback.
    pub fired: usize,
    /// Timers given back: key, value, and the time that was left ([`Duration::MAX`] if the timer would never have fired).
    pub returned: Vec<(K, V, Duration)>,
}

impl<K, V> Default for Closed<K, V> {
    fn default() -> Self {
        Self { discarded: 0, fired: 0, returned: Vec::new() }
    }
}

impl<K, V> fmt::Debug for Closed<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Closed")
            .field("discarded", &self.discarded)
            .field("fired", &self.fired)
            .field("returned", &self.returned.len())
            .finish()
    }
}
