//! Timers at a fixed rate.

use crate::clock::{Nanos, saturating_nanos};
use crate::error::ScheduleError;
use crate::scheduler::Scheduler;
use crate::shard::{Access, MissedTicks, Period, Repeats};
use crate::thread;
use std::hash::{BuildHasher, Hash};
use std::time::Duration;

impl<K, V, S> Scheduler<K, V, S>
where
    K: Hash + Eq + Send + Sync + 'static,
    V: Clone + Send + 'static,
    S: BuildHasher,
{
    /// Fires `key` after `period`, and again after each further `period`, with a clone of `value` each time. A timer
    /// that is pending under this key is replaced: its value comes back.
    ///
    /// **Not with [`build_rearming`](crate::Builder::build_rearming)**: there the callback decides whether and when the
    /// timer comes back. One value stays, and nothing is cloned; `period` is only when it runs first, and `missed` is
    /// not used.
    ///
    /// For a first run at another time, `reschedule` it.
    ///
    /// **Rate.** The rate is fixed: each deadline is the one before plus the period, to the nanosecond, and each run
    /// is at the first tick at or after its deadline. So it does not drift. A run never begins before the previous one
    /// has ended; `missed` says what becomes of the deadlines that pass meanwhile. There is at most one run per tick.
    /// With a period of a tick or less, that is the rate, and [`MissedTicks::Burst`] cannot catch up: it runs once a
    /// tick, until you `reschedule` it further than the next tick, which forgets what was missed.
    ///
    /// **End.** It goes on until it is cancelled or replaced; neither a callback nor a clone that panics nor an
    /// executor that drops a run ends it.
    ///
    /// **Between two runs** it is a timer like any other. `cancel` gives the value back. `reschedule` moves the next
    /// run, and the rate goes on from there. `expire_now` is one run more; a timer that never fires (its
    /// period ends later than time) stays so.
    ///
    /// **While it fires**, from the claim until its callback is over, it is not pending, but can be reached: `cancel`
    /// answers `None`, and that run is the last; `reschedule` answers true and sets the next run; `schedule` of its
    /// key answers `None` and takes its place; `drain` leaves it alone; a later call of
    /// [`close`](Scheduler::close) gives it back.
    ///
    /// Costs as [`schedule_with`](Self::schedule_with), and a clone of the value per run. It counts towards
    /// [`Builder::capacity`](crate::Builder::capacity) all the time.
    ///
    /// # Errors
    /// As [`schedule_with`](Self::schedule_with); and [`ScheduleError::ZeroPeriod`], permanent. Key and value come
    /// back.
    ///
    /// ```
    /// use shardwheel::{MissedTicks, Scheduler};
    /// use std::time::Duration;
    ///
    /// let (scheduler, clock) = Scheduler::builder().build_manual(|key: &&str, count: u32| println!("{key} {count}"))?;
    /// let period = Duration::from_millis(100);
    /// scheduler.schedule_every("beat", 7, period, MissedTicks::Skip).expect("it is open and not full");
    /// assert_eq!(clock.advance(Duration::from_secs(1)), 10);
    /// assert_eq!(scheduler.cancel("beat"), Some(7));
    /// # Ok::<(), shardwheel::BuildError>(())
    /// ```
    pub fn schedule_every(
        &self,
        key: K,
        value: V,
        period: Duration,
        missed: MissedTicks,
    ) -> Result<Option<V>, ScheduleError<K, V>> {
        if period.is_zero() {
            return Err(ScheduleError::ZeroPeriod(key, value));
        }
        let place = self.place(&key);
        let (clock, shard) = (self.clock(), place.shard);
        let now = clock.now().max(clock.start_of(shard.hand()));
        let length_ns = saturating_nanos(period);
        let deadline_ns = now.0.saturating_add(length_ns);
        let due = clock.due_at_nanos(Nanos(deadline_ns), now);
        let repeats = match self.repeats() {
            Repeats::IfWanted => Repeats::IfWanted,
            _ => Repeats::Every(Period { copy: V::clone, length_ns, missed, deadline_ns, tick: due.tick }),
        };
        let scheduled = self.start_at(place, key, value, due, repeats, &mut Access::new(&thread::ordinal()));
        scheduled.map(|(_, replaced)| replaced)
    }
}
