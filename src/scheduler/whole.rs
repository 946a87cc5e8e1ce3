//! What is asked of a scheduler as a whole, not of one of its timers: how many there are, and its end.

use super::{Scheduler, WeakScheduler, join};
use crate::close::{Close, Closed};
use crate::stats::Stats;
use std::hash::Hash;
use std::time::{Duration, Instant};

impl<K: Hash + Eq + Send + Sync + 'static, V: Send + 'static, S> Scheduler<K, V, S> {
    /// The time by this scheduler's clock: the system's, less what it takes to read that once or twice, or that of its
    /// [`ManualClock`](crate::ManualClock). What [`schedule_at`](Self::schedule_at) counts from, so that the same code runs on either.
    ///
    /// ```
    /// # use shardwheel::Scheduler;
    /// # use std::time::Duration;
    /// let (scheduler, clock) = Scheduler::builder().build_manual(|_: &u32, _: ()| {})?;
    /// let before = scheduler.now();
    /// clock.advance(Duration::from_secs(9));
    /// assert_eq!(scheduler.now() - before, Duration::from_secs(9));
    /// # Ok::<(), shardwheel::BuildError>(())
    /// ```
    pub fn now(&self) -> Instant {
        let clock = &self.0.core.clock;
        clock.instant(clock.now())
    }

    /// The number of pending timers; exact while nothing runs at the same time. O(threads).
    pub fn len(&self) -> usize {
        if self.is_closed() {
            return 0;
        }
        usize::try_from(self.0.core.counters.pending()).unwrap_or(usize::MAX)
    }

    /// True if no timer is pending.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Takes out everything that is pending at the call and hands each pair to `each`, once, on this thread; how many
    /// that were. The scheduler goes on working, and `each` may use it: what it starts is not drained.
    ///
    /// A timer that fires or is cancelled during the call may not be handed over. O(timers ever pending at once).
    ///
    /// ```
    /// # use shardwheel::Scheduler;
    /// # use std::time::Duration;
    /// let (scheduler, _clock) = Scheduler::builder().build_manual(|_: &u32, _: &str| {})?;
    /// scheduler.schedule_with(7, "a", Duration::from_secs(1)).expect("it is open and not full");
    /// let drained = scheduler.drain(|key, value| {
    ///     scheduler.schedule_with(*key, value, Duration::from_secs(60)).expect("it is open and not full");
    /// });
    /// assert_eq!((drained, scheduler.len()), (1, 1));
    /// # Ok::<(), shardwheel::BuildError>(())
    /// ```
    pub fn drain(&self, each: impl FnMut(&K, V)) -> usize {
        self.0.core.drain(each)
    }

    /// Ends the scheduler, for all its handles: nothing is accepted from now on, and `close` says what became of every
    /// timer that was still pending. Calls after the first change nothing and return nothing.
    ///
    /// Works from any thread, callbacks included. Joins the workers, unless it is called from a callback (or a destructor of
    /// what one leaves), or another call of `close` does so already.
    ///
    /// Callbacks that were handed over before, or are by [`Close::FireNow`], still run, on threads that nobody waits for: a program
    /// whose end must not cut them short calls [`wait_for_callbacks`](Self::wait_for_callbacks) afterwards. (Those that workers run
    /// themselves, with [`Executor::Inline`](crate::Executor::Inline), are waited for.) The callback with all that it has captured, and
    /// the pool, stay until the last handle is dropped: only then does the receiver of a channel into which it sends see the end.
    ///
    /// [`Close::Return`] moves keys out, so it first waits until no thread can be looking at
    /// one: until every `crossbeam_epoch` guard in the process that was held at the call, whoever holds it, is dropped. On a
    /// thread that holds one itself that would be for ever, so there it discards instead; and so it does in the destructor of a
    /// thread-local, where nobody can tell any more whether the thread holds one.
    ///
    /// ```
    /// # use shardwheel::{Close, Scheduler};
    /// # use std::time::Duration;
    /// let (scheduler, _clock) = Scheduler::builder().build_manual(|_: &u32, _: &str| {})?;
    /// scheduler.schedule_with(7, "a", Duration::from_secs(3)).expect("it is open and not full");
    /// let closed = scheduler.close(Close::Return);
    /// assert_eq!(closed.returned, [(7, "a", Duration::from_secs(3))]);
    /// # Ok::<(), shardwheel::BuildError>(())
    /// ```
    pub fn close(&self, close: Close) -> Closed<K, V> {
        let closed = self.0.core.close(close);
        join(self.0.take_threads());
        closed
    }

    /// Waits until the callbacks that are under way have ended: of all timers that were claimed before the call, because they were due,
    /// by [`expire_now`](Self::expire_now) or by [`Close::FireNow`]. True: they have ended, and their values are gone, or pending again.
    /// False: that took longer than `timeout`, by the system's clock (also with a manual one). [`Duration::MAX`] is as long as it takes.
    ///
    /// So a program may end after [`close`](Self::close) without cutting callbacks short; and what a callback uses may be torn down
    /// after its timer's [`cancel`](Self::cancel) has answered `None`. (`Some` says that this timer's will never run. That of an earlier
    /// one of the key may be under way even so.)
    ///
    /// What is claimed later is not waited for, however much callbacks overlap; but one that never ends takes all of `timeout`. So does a
    /// job that an [`Executor::Custom`](crate::Executor::Custom) neither runs nor drops. As with all that waits: the caller must not hold
    /// what a callback needs, be it a lock or the last free thread of a pool. Within a callback, of whatever scheduler, it does not
    /// wait: it looks once, and answers false if anything is under way, as that callback itself is in its own scheduler.
    ///
    /// O(shards), a few nanoseconds each, if nothing is under way. Other calls are not held up by it, nor are callbacks.
    ///
    /// ```
    /// # use shardwheel::{Close, Scheduler};
    /// # use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
    /// # use std::time::Duration;
    /// static SAVED: AtomicUsize = AtomicUsize::new(0);
    /// let scheduler = Scheduler::builder().build(|_: &u32, _: ()| {
    ///     std::thread::sleep(Duration::from_millis(20));
    ///     SAVED.fetch_add(1, SeqCst);
    /// })?;
    /// scheduler.schedule(1, Duration::ZERO).expect("it is open and not full");
    /// scheduler.schedule(2, Duration::from_secs(60)).expect("it is open and not full");
    /// if scheduler.cancel(&1).is_none() {
    ///     // It has fired. From here on its callback does not run any more.
    ///     assert!(scheduler.wait_for_callbacks(Duration::MAX));
    ///     assert_eq!(SAVED.load(SeqCst), 1);
    /// }
    /// let fired = scheduler.close(Close::FireNow).fired;
    /// assert!(scheduler.wait_for_callbacks(Duration::from_secs(10)), "the program may end");
    /// assert!(SAVED.load(SeqCst) >= fired);
    /// # Ok::<(), shardwheel::BuildError>(())
    /// ```
    pub fn wait_for_callbacks(&self, timeout: Duration) -> bool {
        self.0.core.wait_for_callbacks(timeout)
    }

    /// True once `close` was called.
    pub fn is_closed(&self) -> bool {
        self.0.core.is_closed()
    }

    /// What the scheduler tells about itself. Lock-free; O(threads), and reads a thousand counters of each shard: for now and then, not
    /// for each call.
    ///
    /// ```
    /// # use shardwheel::Scheduler;
    /// # use std::time::Duration;
    /// let (scheduler, clock) = Scheduler::builder().build_manual(|_: &u32, _: ()| {})?;
    /// scheduler.schedule(1, Duration::from_secs(1)).expect("it is open and not full");
    /// scheduler.schedule(2, Duration::from_secs(9)).expect("it is open and not full");
    /// clock.advance(Duration::from_secs(5));
    /// let stats = scheduler.stats();
    /// assert_eq!((stats.scheduled, stats.fired, stats.pending), (2, 1, 1));
    /// # Ok::<(), shardwheel::BuildError>(())
    /// ```
    pub fn stats(&self) -> Stats {
        self.0.core.stats()
    }

    /// A handle that does not keep the scheduler open: for a callback that uses its own scheduler.
    pub fn downgrade(&self) -> WeakScheduler<K, V, S> {
        WeakScheduler::of(self)
    }
}
