//! The ways in which a scheduler ends.

use std::fmt;
use std::time::Duration;

/// What [`Scheduler::close`](crate::Scheduler::close) does with the timers that are still pending.
///
/// See there for which timers are still pending, and for the callbacks that were handed over before.
///
/// ```
/// use shardwheel::{Close, Scheduler};
/// use std::time::Duration;
///
/// let closed_by = |close| {
///     let (scheduler, _clock) = Scheduler::builder().build_manual(|_: &u32, _: &str| {})?;
///     scheduler.schedule_with(7, "a", Duration::from_secs(3)).expect("it is open and not full");
///     Ok::<_, shardwheel::BuildError>(scheduler.close(close))
/// };
/// assert_eq!(closed_by(Close::Discard)?.discarded, 1);
/// assert_eq!(closed_by(Close::FireNow)?.fired, 1);
/// assert_eq!(closed_by(Close::Return)?.returned, [(7, "a", Duration::from_secs(3))]);
/// # Ok::<(), shardwheel::BuildError>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Close {
    /// Drops their values. Their callbacks never run.
    Discard,
    /// Fires them all now, whatever their deadlines. `close` waits for their callbacks only if it runs them itself:
    /// with [`Executor::Inline`](crate::Executor::Inline), and with the manual clock. Otherwise call
    /// [`wait_for_callbacks`](crate::Scheduler::wait_for_callbacks).
    FireNow,
    /// Gives them back, with their remaining time. (Of a timer at a fixed rate, the time until its next run; its period
    /// is not told.) A timer that repeats and is firing is given back by the next call: see
    /// [`close`](crate::Scheduler::close).
    Return,
}

/// What became of the timers that were pending at [`Scheduler::close`](crate::Scheduler::close); see [`Close`] for an
/// example.
///
/// It is empty for every `close` after the first, except for timers that were firing then and would have come back.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Closed<K, V> {
    /// Timers whose values were dropped.
    pub discarded: usize,
    /// Timers handed to the callback.
    pub fired: usize,
    /// Timers given back: key, value, and the time that was left ([`Duration::MAX`] if the timer would never have
    /// fired).
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
