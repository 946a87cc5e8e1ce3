//! When a timer is to fire, as the caller of a single call says it.

use crate::clock::Clock;
use crate::shard::{Due, Shard};
use std::time::{Duration, Instant};

#[derive(Clone, Copy, Debug)]
pub(crate) enum When {
    After(Duration),
    At(Instant),
}

impl When {
    /// When a timer of this shard is due. Reads the clock, if it has to.
    // Always inlined: see `Scheduler::start`.
    #[inline(always)]
    pub(crate) fn due<K, V>(self, clock: &Clock, shard: &Shard<K, V>) -> Due
    where
        K: Eq + Send + Sync + 'static,
        V: Send + 'static,
    {
        match self {
            Self::After(delay) => clock.due_after(clock.now(), delay, shard.hand()),
            Self::At(instant) => clock.due_at(instant, shard.hand(), shard.reached()),
        }
    }
}
