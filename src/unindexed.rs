//! Timers that are known by their handles alone.

use crate::clock::Clock;
use crate::counters::Event;
use crate::error::ScheduleError;
use crate::scheduler::{Scheduler, scatter};
use crate::shard::{Access, Due, NO_HASH, Ordinal, Shard};
use crate::thread;
use crate::timer::{Home, Timer};
use std::hash::{BuildHasher, Hash};
use std::time::{Duration, Instant};

/// So many timers that a thread starts one after the other go to one shard, whose memory is at hand; the next ones to another.
const RUN: u64 = 64;

impl<K, V, S> Scheduler<K, V, S>
where
    K: Hash + Eq + Send + Sync + 'static,
    V: Send + 'static,
    S: BuildHasher,
{
    /// Starts a timer that is known by its handle alone: no call by key finds it, [`schedule_if_absent`](Self::schedule_if_absent)
    /// neither, and it neither replaces a timer nor is replaced by one. So any number of them may have the same key. The callback gets key
    /// and value as ever, and may have it come back ([`build_rearming`](crate::Builder::build_rearming)); `len`, `stats`,
    /// [`drain`](Self::drain) and [`close`](Self::close) include it.
    ///
    /// It is for who keeps the handle anyway, as a request does with its time-out. Nothing is hashed and no line looked up, which in a
    /// million timers is most of what a call waits for (`docs/benchmarks.md`). Timers without a key have `()` for one.
    ///
    /// Which shard it belongs to is the calling thread's choice, not its key's. If the handle is dropped, the timer fires at its time all
    /// the same. Once there was such a timer, [`close`](Self::close) looks at the memory of all that there ever were at a time.
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
        self.start_unindexed(key, value, |clock, shard| clock.due_after(clock.now(), delay, shard.hand()))
    }

    /// As [`schedule_unindexed`](Self::schedule_unindexed), at an instant; see [`schedule_at`](Self::schedule_at).
    ///
    /// # Errors
    /// As [`schedule_with`](Self::schedule_with).
    pub fn schedule_unindexed_at(
        &self,
        key: K,
        value: V,
        deadline: Instant,
    ) -> Result<Timer<K, V>, ScheduleError<K, V>> {
        self.start_unindexed(key, value, |clock, shard| clock.due_at(deadline, shard.hand(), shard.reached()))
    }

    fn start_unindexed(
        &self,
        key: K,
        value: V,
        due: impl FnOnce(&Clock, &Shard<K, V>) -> Due,
    ) -> Result<Timer<K, V>, ScheduleError<K, V>> {
        let core = self.core();
        let ordinal = thread::ordinal();
        let home = Home { shard: self.shard_in_turn(&ordinal), hash: NO_HASH };
        let shard = &core.shards[home.shard as usize];
        let due = due(&core.clock, shard);
        if core.is_closed() || !core.capacity.take(&ordinal) {
            core.counters.add(&ordinal, Event::Rejected, 1);
            return Err(self.no_room(key, value));
        }
        let started = shard.schedule_unindexed(key, value, due, self.repeats(), &mut Access::new(&ordinal));
        if started.is_err() {
            core.capacity.give(&ordinal, 1);
        }
        core.counters.add(&ordinal, if started.is_ok() { Event::Scheduled } else { Event::Rejected }, 1);
        Ok(self.handle(&ordinal, home, started?))
    }

    /// Threads begin with different shards, and each goes on to another now and then. (Not to the next: a thread that starts just as many
    /// by key in between would come to the same again and again.)
    #[inline]
    fn shard_in_turn(&self, ordinal: &Ordinal) -> u32 {
        let core = self.core();
        let own = |event| core.counters.own(ordinal, event);
        // After a refusal the next one: a shard may be full that has room for no more nodes.
        let turn = own(Event::Scheduled) / RUN + own(Event::Rejected) + u64::from(ordinal.number());
        scatter(turn, core.shards.len()).0
    }
}
