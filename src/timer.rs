//! A handle of one timer.

use crate::counters::Event;
use crate::service::Core;
use crate::shard::{Access, Identity, Purpose, Shard, Tick};
use crate::thread;
use crate::when::When;
use crossbeam_utils::CachePadded;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The way from a timer's handle to its scheduler. It is an allocation of its own, so that handles of different
/// stripes count on different cache lines.
pub(crate) type Link<K, V> = Arc<CachePadded<Arc<Core<K, V>>>>;

/// A handle of one timer, from [`Scheduler::schedule_with_handle`](crate::Scheduler::schedule_with_handle) or
/// [`schedule_unindexed`](crate::Scheduler::schedule_unindexed).
///
/// It gives the same exact answers as the scheduler does by key, but without hashing and looking up, and only for this
/// very timer: not for a later one of the same key. To move it, to cancel it and to look at it is lock-free, and costs
/// an access to the timer's memory.
///
/// Dropping the handle changes nothing. It keeps alive neither the scheduler nor its callback, pool or workers, only
/// the memory of its nodes. Once the scheduler is gone, it answers as if the timer had ended.
///
/// ```
/// # use shardwheel::Scheduler;
/// # use std::time::Duration;
/// let (scheduler, clock) = Scheduler::builder().build_manual(|_: &u32, _: &str| {})?;
/// let second = Duration::from_secs(1);
/// let (replaced, timer) = scheduler.schedule_with_handle(7, "a", second).expect("it is open and not full");
/// assert!(timer.is_pending() && replaced.is_none());
/// assert!(timer.reschedule(5 * second));
/// assert_eq!(timer.remaining(), Some(5 * second));
///
/// // Another timer takes its place: the handle is for the first one.
/// assert_eq!(scheduler.schedule_with(7, "b", second).expect("it is open and not full"), Some("a"));
/// assert_eq!((timer.is_pending(), timer.cancel()), (false, None));
/// assert_eq!(clock.advance(second), 1);
/// # Ok::<(), shardwheel::BuildError>(())
/// ```
pub struct Timer<K: Eq + Send + Sync + 'static, V: Send + 'static> {
    link: Link<K, V>,
    address: Address,
    identity: Identity,
}

/// Where to find a timer: its shard, and its key's hash within that; `NO_HASH` if no key leads to it.
#[derive(Clone, Copy)]
pub(crate) struct Address {
    pub(crate) shard: u32,
    pub(crate) hash: u32,
}

impl<K: Eq + Send + Sync + 'static, V: Send + 'static> Clone for Timer<K, V> {
    fn clone(&self) -> Self {
        Self { link: Arc::clone(&self.link), address: self.address, identity: self.identity }
    }
}

impl<K: Eq + Send + Sync + 'static, V: Send + 'static> fmt::Debug for Timer<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Timer").field("is_pending", &self.is_pending()).finish_non_exhaustive()
    }
}

impl<K: Eq + Send + Sync + 'static, V: Send + 'static> Timer<K, V> {
    pub(crate) fn new(link: Link<K, V>, address: Address, identity: Identity) -> Self {
        Self { link, address, identity }
    }

    fn core(&self) -> &Arc<Core<K, V>> {
        &self.link
    }

    fn shard(&self) -> &Shard<K, V> {
        &self.core().shards[self.address.shard as usize]
    }

    #[cfg(test)]
    pub(crate) fn shard_number(&self) -> usize {
        self.address.shard as usize
    }

    /// Ends the timer, as [`Scheduler::cancel`](crate::Scheduler::cancel) does. After a `None`,
    /// [`wait_for_callbacks`](crate::Scheduler::wait_for_callbacks) shows when its callback is not running any more.
    ///
    /// Costs no look-up, but if a key leads to the timer, one access to the index to take it out.
    ///
    /// ```
    /// # use shardwheel::Scheduler;
    /// # use std::time::Duration;
    /// let (scheduler, _clock) = Scheduler::builder().build_manual(|_: &u32, _: &str| {})?;
    /// let timer = scheduler.schedule_unindexed(7, "a", Duration::from_secs(1)).expect("it is open and not full");
    /// assert_eq!(timer.cancel(), Some("a"));
    /// assert_eq!(timer.cancel(), None);
    /// # Ok::<(), shardwheel::BuildError>(())
    /// ```
    pub fn cancel(&self) -> Option<V> {
        if self.core().is_closed() {
            return None;
        }
        let (shard, ordinal) = (self.shard(), thread::ordinal());
        // The line is needed as well as the node: asked for beside it.
        shard.prefetch_line_of(self.address.hash);
        let mut access = Access::new(&ordinal);
        let value = shard.cancel_this(self.identity, &access)?;
        self.core().count_end(&ordinal, Event::Cancelled);
        shard.drop_ripe_keys(&mut access);
        Some(value)
    }

    /// Moves the timer, as [`Scheduler::reschedule`](crate::Scheduler::reschedule) does. Costs one reading of the
    /// clock and no look-up; a move to a later deadline wakes nobody.
    ///
    /// ```
    /// # use shardwheel::Scheduler;
    /// # use std::time::Duration;
    /// let (scheduler, clock) = Scheduler::builder().build_manual(|_: &u32, _: &str| {})?;
    /// let timer = scheduler.schedule_unindexed(7, "a", Duration::from_secs(1)).expect("it is open and not full");
    /// assert!(timer.reschedule(Duration::from_secs(9)));
    /// assert_eq!(clock.advance(Duration::from_secs(8)), 0);
    /// assert_eq!(clock.advance(Duration::from_secs(1)), 1);
    /// assert!(!timer.reschedule(Duration::from_secs(9)), "it has fired");
    /// # Ok::<(), shardwheel::BuildError>(())
    /// ```
    pub fn reschedule(&self, delay: Duration) -> bool {
        self.shift(When::After(delay))
    }

    /// Moves the timer, as [`Scheduler::reschedule_at`](crate::Scheduler::reschedule_at) does. Costs no look-up.
    ///
    /// ```
    /// # use shardwheel::Scheduler;
    /// # use std::time::Duration;
    /// let (scheduler, _clock) = Scheduler::builder().build_manual(|_: &u32, _: &str| {})?;
    /// let timer = scheduler.schedule_unindexed(7, "a", Duration::from_secs(1)).expect("it is open and not full");
    /// assert!(timer.reschedule_at(scheduler.now() + Duration::from_secs(9)));
    /// assert_eq!(timer.remaining(), Some(Duration::from_secs(9)));
    /// # Ok::<(), shardwheel::BuildError>(())
    /// ```
    pub fn reschedule_at(&self, deadline: Instant) -> bool {
        self.shift(When::At(deadline))
    }

    fn shift(&self, when: When) -> bool {
        if self.core().is_closed() {
            return false;
        }
        let due = when.due(&self.core().clock, self.shard());
        let ordinal = thread::ordinal();
        let moved = self.shard().reschedule_this(self.identity, due, &Access::new(&ordinal));
        if moved {
            self.core().counters.add(&ordinal, Event::Rescheduled, 1);
        }
        moved
    }

    /// True if the timer is pending at this moment; not while its callback runs. Costs no look-up, and wakes nobody.
    ///
    /// ```
    /// # use shardwheel::Scheduler;
    /// # use std::time::Duration;
    /// let (scheduler, clock) = Scheduler::builder().build_manual(|_: &u32, _: &str| {})?;
    /// let timer = scheduler.schedule_unindexed(7, "a", Duration::from_secs(1)).expect("it is open and not full");
    /// assert!(timer.is_pending());
    /// clock.advance(Duration::from_secs(1));
    /// assert!(!timer.is_pending());
    /// # Ok::<(), shardwheel::BuildError>(())
    /// ```
    pub fn is_pending(&self) -> bool {
        self.due().is_some()
    }

    /// The time until the timer is due, as [`Scheduler::remaining`](crate::Scheduler::remaining); `None` if it is not
    /// pending. Costs no look-up, and one reading of the clock if it is.
    ///
    /// ```
    /// # use shardwheel::Scheduler;
    /// # use std::time::Duration;
    /// let (scheduler, clock) = Scheduler::builder().build_manual(|_: &u32, _: &str| {})?;
    /// let timer = scheduler.schedule_unindexed(7, "a", Duration::from_secs(1)).expect("it is open and not full");
    /// clock.advance(Duration::from_millis(400));
    /// assert_eq!(timer.remaining(), Some(Duration::from_millis(600)));
    /// timer.cancel();
    /// assert_eq!(timer.remaining(), None);
    /// # Ok::<(), shardwheel::BuildError>(())
    /// ```
    pub fn remaining(&self) -> Option<Duration> {
        let clock = &self.core().clock;
        self.due().map(|due| clock.until(due, clock.now()))
    }

    /// Fires the timer at once, as [`Scheduler::expire_now`](crate::Scheduler::expire_now) does. Costs no look-up, and
    /// one job for the executor, which is allocated and may wake a thread.
    ///
    /// ```
    /// # use shardwheel::Scheduler;
    /// # use std::time::Duration;
    /// let (scheduler, clock) = Scheduler::builder().build_manual(|_: &u32, _: &str| {})?;
    /// let timer = scheduler.schedule_unindexed(7, "a", Duration::from_secs(1)).expect("it is open and not full");
    /// assert!(timer.expire_now());
    /// assert_eq!(clock.advance(Duration::from_secs(1)), 0);
    /// # Ok::<(), shardwheel::BuildError>(())
    /// ```
    pub fn expire_now(&self) -> bool {
        // Before the claim: what is claimed must reach the callback. `None`: the scheduler is gone, and with it all
        // that was pending.
        let Some(_runner) = self.core().runner.upgrade() else { return false };
        if self.core().is_closed() {
            return false;
        }
        let claim =
            |shard: &Shard<K, V>| shard.claim_this(self.identity, Purpose::Fire, &Access::new(&thread::ordinal()));
        self.core().expire_now(self.address.shard, claim)
    }

    fn due(&self) -> Option<Option<Tick>> {
        if self.core().is_closed() {
            return None;
        }
        let ordinal = thread::ordinal();
        let _access = Access::new(&ordinal);
        self.shard().due_this(self.identity, self.shard().hand())
    }
}
