//! A scheduler's figures about itself.

use crate::lateness::Lateness;

/// A view of a scheduler at one moment, from [`Scheduler::stats`](crate::Scheduler::stats).
///
/// Counts are since the scheduler was built. While nothing runs they are exact and
/// `scheduled + rearmed = fired + cancelled + replaced + drained + discarded + returned + pending`.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Stats {
    /// Timers that are pending now.
    pub pending: u64,
    /// Timers accepted, those that replaced another included.
    pub scheduled: u64,
    /// Times that a timer came back after its callback: periodic ones, and those of
    /// [`Builder::build_rearming`](crate::Builder::build_rearming). One that would have come back after
    /// [`close`](crate::Scheduler::close) counts when a later call gives it back.
    pub rearmed: u64,
    /// Moves to another deadline: of pending timers, and of those whose callback is running.
    pub rescheduled: u64,
    /// Timers that ended because their key was scheduled again.
    pub replaced: u64,
    /// Timers that ended by `cancel`.
    pub cancelled: u64,
    /// Timers handed to the callback: by expiry, by `expire_now` or by `Close::FireNow`.
    pub fired: u64,
    /// Timers that ended by `drain`.
    pub drained: u64,
    /// Timers not accepted: the scheduler was full or closed.
    pub rejected: u64,
    /// Timers dropped by `close`.
    pub discarded: u64,
    /// Timers given back by `close`.
    pub returned: u64,
    /// Callbacks that panicked.
    pub callback_panics: u64,
    /// Callbacks that never ran, because the executor dropped their job or panicked.
    pub callbacks_lost: u64,
    /// Times that a worker saw the clock go backwards; each shard's worker counts for itself.
    pub clock_regressions: u64,
    /// Callbacks handed over to the executor that have not begun. While 65,536 of one shard wait or run, what else
    /// comes due there stays pending, and can be cancelled. (This is checked once per worker step, so there may be some
    /// more; and each thread may count up to 255 that have ended.)
    pub callbacks_waiting: u64,
    /// How late timers fired: from the tick at which they were due until their callback began. A sample: behind slow
    /// callbacks some are later than that, the latest included; see [`Lateness`].
    pub lateness: Lateness,
    /// One entry per shard.
    pub shards: Vec<ShardStats>,
}

/// One shard's part of [`Stats`].
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct ShardStats {
    /// Messages from callers that the worker has not seen yet.
    pub mailbox_depth: u64,
    /// Times that the worker's thread has slept and woken up. While one thread can do it all, that happens now and then
    /// only, and its wake-ups are counted with the first shard's.
    pub wake_ups: u64,
    /// Entries in the worker's wheel as of its last step, stale ones included.
    pub wheel_entries: u64,
    /// The core that the worker is pinned to; `None` if it runs unpinned, by choice or because pinning was refused.
    pub pinned_core: Option<usize>,
}
