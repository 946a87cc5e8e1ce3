//! Timers that give way to one that is there.

use crate::error::ScheduleError;
use crate::scheduler::Scheduler;
use std::hash::{BuildHasher, Hash};
use std::time::Duration;

impl<K, V, S> Scheduler<K, V, S>
where
    K: Hash + Eq + Send + Sync + 'static,
    V: Send + 'static,
    S: BuildHasher,
{
    /// As [`schedule_with`](Self::schedule_with), unless a timer is pending under this key: that one stays as it is, `value` comes back,
    /// and `key` is dropped, now or later. So the first of several that ask for one thing sets the time, as for a buffer that is
    /// written out so long after its first entry; with [`schedule_with`](Self::schedule_with) it is the last.
    ///
    /// `Some`: there was a timer of this key at one moment of the call, and it was not this call's. However many threads ask at a time,
    /// one of them starts the timer. What the caller did before comes before the next callback of the timer that is there, or of one
    /// that replaces it. So what was put into a buffer before this call is there when the buffer is written out.
    ///
    /// A timer that repeats ([`schedule_every`](Self::schedule_every), [`build_rearming`](crate::Builder::build_rearming)) and is
    /// firing counts as there, unless it has been ended: its next callback is the one after that, if it comes back.
    ///
    /// It takes two look-ups where there is none. Of several calls for one key at the same time each may hold a place within
    /// [`Builder::capacity`](crate::Builder::capacity) for a moment.
    ///
    /// # Errors
    /// As [`schedule_with`](Self::schedule_with), where there is no such timer.
    ///
    /// ```
    /// # use shardwheel::Scheduler;
    /// # use std::time::Duration;
    /// let (scheduler, clock) = Scheduler::builder().build_manual(|_: &u32, _: &str| {})?;
    /// let second = Duration::from_secs(1);
    /// assert_eq!(scheduler.schedule_if_absent(7, "a", second).expect("it is open and not full"), None);
    /// assert_eq!(scheduler.schedule_if_absent(7, "b", 9 * second).expect("it is open and not full"), Some("b"));
    /// assert_eq!(scheduler.remaining(&7), Some(second));
    /// assert_eq!(clock.advance(second), 1);
    /// # Ok::<(), shardwheel::BuildError>(())
    /// ```
    pub fn schedule_if_absent(&self, key: K, value: V, delay: Duration) -> Result<Option<V>, ScheduleError<K, V>> {
        let place = self.place(&key);
        let due = self.clock().due_after(self.clock().now(), delay, place.shard.hand());
        self.start_if_absent_at(place, key, value, due)
    }
}
