//! Timers that are known by their handles alone.

use crate::counters::Event;
use crate::error::ScheduleError;
use crate::scheduler::{Scheduler, scatter};
use crate::shard::{Access, NO_HASH, Ordinal};
use crate::thread;
use crate::timer::{Address, Timer};
use crate::when::When;
use std::hash::{BuildHasher, Hash};
use std::time::{Duration, Instant};

/// A thread starts this many timers in one shard, whose memory is at hand, then goes on to another shard.
const RUN: u64 = 64;

impl<K, V, S> Scheduler<K, V, S>
where
    K: Hash + Eq + Send + Sync + 'static,
    V: Send + 'static,
    S: BuildHasher,
{
    /// Starts a timer that is known by its handle alone. No call by key finds it, not even
    /// [`schedule_if_absent`](Self::schedule_if_absent); it neither replaces a timer nor is replaced by one. So any
    /// number of these timers may have the same key. The callback gets key and value as ever, and may let the timer
    /// come back ([`build_rearming`](crate::Builder::build_rearming)). `len`, `stats`, [`drain`](Self::drain) and
    /// [`close`](Self::close) include it.
    ///
    /// Use it where the handle is kept anyway, as a request keeps that of its time-out. Timers that need no key have
    /// `()` as their key. If the handle is dropped, the timer fires at its time nevertheless.
    ///
    /// Costs one reading of the clock. Nothing is hashed and no line is looked up, which with a million timers is most
    /// of what a call waits for (`docs/benchmarks.md`). The calling thread chooses the shard, not the key. Once there
    /// was such a timer, [`close`](Self::close) looks at the memory of all timers that ever existed at the same time.
    ///
    /// # Errors
    /// As [`schedule_with`](Self::schedule_with).
    ///
    /// ```
    /// # use shardwheel::Scheduler;
    /// # use std::time::Duration;
    /// let (scheduler, clock) = Scheduler::builder().build_manual(|_: &&'static str, _: u32| {})?;
    /// let second = Duration::from_secs(1);
    /// let first = scheduler.schedule_unindexed("request", 1, second).expect("it is open and not full");
    /// let second_one = scheduler.schedule_unindexed("request", 2, second).expect("it is open and not full");
    /// assert!(!scheduler.contains("request"));
    /// assert_eq!((first.cancel(), scheduler.len()), (Some(1), 1));
    /// assert_eq!((clock.advance(second), second_one.cancel()), (1, None));
    /// # Ok::<(), shardwheel::BuildError>(())
    /// ```
    pub fn schedule_unindexed(&self, key: K, value: V, delay: Duration) -> Result<Timer<K, V>, ScheduleError<K, V>> {
        self.start_unindexed(key, value, When::After(delay))
    }

    /// As [`schedule_unindexed`](Self::schedule_unindexed), at an instant. Reads the clock as seldom as
    /// [`schedule_at`](Self::schedule_at).
    ///
    /// # Errors
    /// As [`schedule_with`](Self::schedule_with).
    ///
    /// ```
    /// # use shardwheel::Scheduler;
    /// # use std::time::Duration;
    /// let (scheduler, clock) = Scheduler::builder().build_manual(|_: &(), _: &str| {})?;
    /// let deadline = scheduler.now() + Duration::from_secs(1);
    /// let timer = scheduler.schedule_unindexed_at((), "request", deadline).expect("it is open and not full");
    /// assert_eq!(timer.remaining(), Some(Duration::from_secs(1)));
    /// assert_eq!(clock.advance(Duration::from_secs(1)), 1);
    /// # Ok::<(), shardwheel::BuildError>(())
    /// ```
    pub fn schedule_unindexed_at(
        &self,
        key: K,
        value: V,
        deadline: Instant,
    ) -> Result<Timer<K, V>, ScheduleError<K, V>> {
        self.start_unindexed(key, value, When::At(deadline))
    }

    fn start_unindexed(&self, key: K, value: V, when: When) -> Result<Timer<K, V>, ScheduleError<K, V>> {
        let core = self.core();
        let ordinal = thread::ordinal();
        let address = Address { shard: self.shard_in_turn(&ordinal), hash: NO_HASH };
        let shard = &core.shards[address.shard as usize];
        let due = when.due(&core.clock, shard);
        if core.is_closed() || !core.capacity.take(&ordinal) {
            core.counters.add(&ordinal, Event::Rejected, 1);
            return Err(self.no_room(key, value));
        }
        let started = shard.schedule_unindexed(key, value, due, self.repeats(), &mut Access::new(&ordinal));
        if started.is_err() {
            core.capacity.give(&ordinal, 1);
        }
        core.counters.add(&ordinal, if started.is_ok() { Event::Scheduled } else { Event::Rejected }, 1);
        Ok(self.handle(&ordinal, address, started?))
    }

    /// The shard for this thread's next timer. Threads begin with different shards, and each goes on to another one
    /// now and then. (Not to the next: a thread that starts as many timers by key in between would come to the same
    /// shards again and again.)
    #[inline]
    fn shard_in_turn(&self, ordinal: &Ordinal) -> u32 {
        let core = self.core();
        let own = |event| core.counters.own(ordinal, event);
        // After a refusal, another shard: one may have no nodes left while the others have.
        let turn = own(Event::Scheduled) / RUN + own(Event::Rejected) + u64::from(ordinal.number());
        scatter(turn, core.shards.len()).0
    }
}
