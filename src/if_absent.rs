//! Timers that give way to an existing one.

use crate::error::ScheduleError;
use crate::scheduler::Scheduler;
use crate::when::When;
use std::hash::{BuildHasher, Hash};
use std::time::{Duration, Instant};

/// What became of a timer that was to start only if there was none of its key. (A type of its own: after
/// [`schedule_with`](Scheduler::schedule_with), a `Some` means the opposite.)
#[must_use = "if there was a timer already, the value is in here"]
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum IfAbsent<V> {
    /// There was none: this one has started.
    Started,
    /// There was one, which stays as it is. The value comes back.
    Exists(V),
}

impl<V> IfAbsent<V> {
    /// True if the timer has started.
    ///
    /// ```
    /// # use shardwheel::IfAbsent;
    /// assert!(IfAbsent::<u32>::Started.has_started() && !IfAbsent::Exists(7).has_started());
    /// ```
    pub fn has_started(&self) -> bool {
        matches!(self, Self::Started)
    }

    /// The value, if it came back.
    ///
    /// ```
    /// # use shardwheel::IfAbsent;
    /// assert_eq!((IfAbsent::<u32>::Started.into_value(), IfAbsent::Exists(7).into_value()), (None, Some(7)));
    /// ```
    pub fn into_value(self) -> Option<V> {
        match self {
            Self::Started => None,
            Self::Exists(value) => Some(value),
        }
    }
}

impl<K, V, S> Scheduler<K, V, S>
where
    K: Hash + Eq + Send + Sync + 'static,
    V: Send + 'static,
    S: BuildHasher,
{
    /// As [`schedule_with`](Self::schedule_with), unless a timer is pending under this key: then that timer stays as
    /// it is, `value` comes back, and `key` is dropped, now or later. So the first of several calls for one key sets
    /// the time, for example of a buffer that is to be written out a second after its first entry; with
    /// [`schedule_with`](Self::schedule_with) the last one does.
    ///
    /// `Exists`: at one moment of the call there was a timer of this key that this call had not started. However many
    /// threads call at the same time, one of them starts the timer. What the caller did before this call happens
    /// before the next callback of the existing timer, or of one that replaces it. So an entry that was put into a
    /// buffer before this call is there when the buffer is written out.
    ///
    /// If a timer repeats ([`schedule_every`](Self::schedule_every),
    /// [`build_rearming`](crate::Builder::build_rearming)) and is firing, it counts as existing, unless it has been
    /// ended. Its next callback is then the one after the present one, if it comes back. **If the callback of a
    /// rearming scheduler answers [`Next::Done`](crate::Next::Done) after that, there is none**, although the answer
    /// was `Exists`. So for the buffer take timers that fire once: while they fire, they do not count.
    ///
    /// Costs as [`schedule_with`](Self::schedule_with), with two look-ups if there is no such timer. Of several calls
    /// for one key at the same time, each may count towards [`Builder::capacity`](crate::Builder::capacity) for a
    /// moment.
    ///
    /// # Errors
    /// As [`schedule_with`](Self::schedule_with), if there is no such timer.
    ///
    /// ```
    /// # use shardwheel::{IfAbsent, Scheduler};
    /// # use std::time::Duration;
    /// let (scheduler, clock) = Scheduler::builder().build_manual(|_: &u32, _: &str| {})?;
    /// let second = Duration::from_secs(1);
    /// assert_eq!(scheduler.schedule_if_absent(7, "a", second), Ok(IfAbsent::Started));
    /// assert_eq!(scheduler.schedule_if_absent(7, "b", 9 * second), Ok(IfAbsent::Exists("b")));
    /// assert_eq!(scheduler.remaining(&7), Some(second));
    /// assert_eq!(clock.advance(second), 1);
    /// # Ok::<(), shardwheel::BuildError>(())
    /// ```
    pub fn schedule_if_absent(&self, key: K, value: V, delay: Duration) -> Result<IfAbsent<V>, ScheduleError<K, V>> {
        self.start_if_absent(key, value, When::After(delay))
    }

    /// As [`schedule_if_absent`](Self::schedule_if_absent), at an instant. Reads the clock as seldom as
    /// [`schedule_at`](Self::schedule_at).
    ///
    /// # Errors
    /// As [`schedule_if_absent`](Self::schedule_if_absent).
    ///
    /// ```
    /// # use shardwheel::{IfAbsent, Scheduler};
    /// # use std::time::Duration;
    /// let (scheduler, clock) = Scheduler::builder().build_manual(|_: &u32, _: &str| {})?;
    /// let noon = clock.now() + Duration::from_secs(3600);
    /// assert_eq!(scheduler.schedule_if_absent_at(7, "a", noon), Ok(IfAbsent::Started));
    /// assert_eq!(scheduler.schedule_if_absent_at(7, "b", clock.now()), Ok(IfAbsent::Exists("b")));
    /// assert_eq!(scheduler.remaining(&7), Some(Duration::from_secs(3600)));
    /// # Ok::<(), shardwheel::BuildError>(())
    /// ```
    pub fn schedule_if_absent_at(
        &self,
        key: K,
        value: V,
        deadline: Instant,
    ) -> Result<IfAbsent<V>, ScheduleError<K, V>> {
        self.start_if_absent(key, value, When::At(deadline))
    }

    fn start_if_absent(&self, key: K, value: V, when: When) -> Result<IfAbsent<V>, ScheduleError<K, V>> {
        let place = self.place(&key);
        let due = when.due(self.clock(), place.shard);
        let gave_way = self.start_if_absent_at(place, key, value, due)?;
        Ok(gave_way.map_or(IfAbsent::Started, IfAbsent::Exists))
    }
}
