//! Operations on a scheduler as a whole, not on one of its timers: its time, how many timers there are, its
//! statistics, and its end.

use super::{Scheduler, WeakScheduler, join};
use crate::close::{Close, Closed};
use crate::stats::Stats;
use std::hash::Hash;
use std::time::{Duration, Instant};

impl<K: Hash + Eq + Send + Sync + 'static, V: Send + 'static, S> Scheduler<K, V, S> {
    /// The time by this scheduler's clock: that of its [`ManualClock`](crate::ManualClock), if it has one; else the
    /// system's, at most two readings of that behind [`Instant::now`]. Deadlines for
    /// [`schedule_at`](Self::schedule_at) that are computed from it work on either clock. Costs one reading of the
    /// clock.
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

    /// The number of pending timers; exact while nothing runs at the same time. While timers begin, it may be too high,
    /// by those that begin while it counts (it counts up to three times, and takes the best). Wait-free, O(threads).
    ///
    /// ```
    /// # use shardwheel::Scheduler;
    /// # use std::time::Duration;
    /// let (scheduler, _clock) = Scheduler::builder().build_manual(|_: &u32, _: ()| {})?;
    /// assert!(scheduler.is_empty());
    /// scheduler.schedule(1, Duration::from_secs(1)).expect("it is open and not full");
    /// assert_eq!(scheduler.len(), 1);
    /// # Ok::<(), shardwheel::BuildError>(())
    /// ```
    pub fn len(&self) -> usize {
        if self.is_closed() {
            return 0;
        }
        usize::try_from(self.0.core.counters.pending()).unwrap_or(usize::MAX)
    }

    /// True if no timer is pending; as exact as [`len`](Self::len), and as cheap.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Takes out everything that is pending at the call, hands each pair to `each`, once, on this thread, and returns
    /// how many there were. The scheduler goes on working, and `each` may use it: what it starts is not drained.
    ///
    /// A timer that fires or is cancelled during the call may not be handed over. One that repeats and is firing is not
    /// pending: it is left alone, and comes back. If `each` panics, those not yet handed over stay pending.
    ///
    /// O(timers ever pending at once), and allocates a list of those that are pending.
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

    /// Ends the scheduler, for all its handles. From now on it accepts nothing; `close` decides the fate of every
    /// timer that is still pending, and says what became of them. Calls after the first return nothing, with one
    /// exception:
    ///
    /// **A timer that repeats and whose callback is running** is not pending, and the callback is using its value. It
    /// ends with that callback. If it would have come back (because of its rate, the callback's answer, or a
    /// [`reschedule`](Self::reschedule) before `close`), and the scheduler was closed by [`Close::Return`], the next
    /// call with [`Close::Return`] after that gives it back, once; so call
    /// [`wait_for_callbacks`](Self::wait_for_callbacks), and then `close` again. Until somebody does, its value stays:
    /// until the last handle goes, or a call with [`Close::Discard`] or [`Close::FireNow`] drops what there is and what
    /// comes later. (So a value that holds a handle of its own scheduler needs such a call.)
    ///
    /// A timer that is due is still pending if it was not yet handed to the executor: because its worker has not woken
    /// up, or because too many callbacks wait.
    ///
    /// Works from any thread, callbacks included. Joins the workers, unless it is called from a callback (or from a
    /// destructor of what one leaves), or another call of `close` is joining them. With
    /// [`Executor::Inline`](crate::Executor::Inline), or an [`Executor::Custom`](crate::Executor::Custom) that runs
    /// jobs right there, workers run callbacks: so no callback may wait for another thread that calls `close`.
    ///
    /// Callbacks that were handed over before, or are by [`Close::FireNow`], still run, on threads that nobody joins,
    /// possibly after `close` or the last handle's drop has returned. A program that must not cut them short calls
    /// [`wait_for_callbacks`](Self::wait_for_callbacks) after `close`. (With
    /// [`Executor::Inline`](crate::Executor::Inline) the workers run the callbacks themselves, and are joined.) The
    /// callback with all that it has captured, and the pool, stay until the last handle is dropped: only then does the
    /// receiver of a channel into which the callback sends see the end.
    ///
    /// [`Close::Return`] moves keys out, if there are any, so it first waits until no thread can be looking at one:
    /// until all calls that were under way, of any scheduler in the process, have ended or are done with keys. Within
    /// such a call, in a key's `Eq`, it would wait for ever; so there the timers are discarded instead (a later call
    /// leaves them where they are). So they are in the destructor of a thread-local that outlives this crate's own:
    /// then it cannot be known any more whether the thread is in such a call.
    ///
    /// O(timers ever pending at once), and allocates a list of those that are pending.
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
    ///
    /// All that is to be done after a restart, from a scheduler whose timers repeat:
    ///
    /// ```
    /// # use shardwheel::{Close, Next, Scheduler};
    /// # use std::time::Duration;
    /// let retry = |_: &u32, tries: &mut u32| {
    ///     std::thread::sleep(Duration::from_millis(20));
    ///     *tries += 1;
    ///     Next::After(Duration::from_secs(60))
    /// };
    /// let scheduler = Scheduler::builder().build_rearming(retry)?;
    /// scheduler.schedule_with(7, 0, Duration::ZERO).expect("it is open and not full");
    /// scheduler.schedule_with(8, 0, Duration::from_secs(60)).expect("it is open and not full");
    /// let mut left = scheduler.close(Close::Return).returned;
    /// assert!(scheduler.wait_for_callbacks(Duration::MAX));
    /// left.extend(scheduler.close(Close::Return).returned);
    /// assert_eq!(left.len(), 2, "whether 7 had begun to fire or not");
    /// # Ok::<(), shardwheel::BuildError>(())
    /// ```
    pub fn close(&self, close: Close) -> Closed<K, V> {
        let closed = self.0.core.close(close);
        join(self.0.take_threads());
        closed
    }

    /// Waits until the callbacks that are under way have ended: those of all timers that were claimed before the call,
    /// because they were due, by [`expire_now`](Self::expire_now) or by [`Close::FireNow`]. True: they have ended, and
    /// their values are gone, pending again, or kept for [`close`](Self::close). False: that took longer than
    /// `timeout`, by the system's clock (also with a manual one). [`Duration::MAX`] waits as long as it takes.
    ///
    /// So a program may end after [`close`](Self::close) without cutting callbacks short. And what a callback uses may
    /// be torn down after its timer's [`cancel`](Self::cancel) has answered `None`. (`Some` says that this timer's
    /// callback will never run; but that of an earlier timer of the same key may be under way.)
    ///
    /// Callbacks of timers that are claimed later cannot keep it waiting for ever, however much they overlap. (It may
    /// wait for some of them.) But one that never ends takes all of `timeout`, and so does a job that an
    /// [`Executor::Custom`](crate::Executor::Custom) neither runs nor drops. As with everything that waits, the caller
    /// must not hold what a callback needs, such as a lock or the last free thread of a pool.
    ///
    /// Within a callback, of whatever scheduler, this does not wait: it looks once, and answers false if anything is
    /// under way. In the callback's own scheduler that is always so, because of that callback.
    ///
    /// O(shards), some ten nanoseconds each, if nothing is under way. It holds up neither callbacks nor other calls.
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
    #[must_use = "false: callbacks are still running"]
    pub fn wait_for_callbacks(&self, timeout: Duration) -> bool {
        self.0.core.wait_for_callbacks(timeout)
    }

    /// True once `close` was called, on whatever handle. Costs one load.
    ///
    /// ```
    /// # use shardwheel::{Close, Scheduler};
    /// let (scheduler, _clock) = Scheduler::builder().build_manual(|_: &u32, _: ()| {})?;
    /// let other = scheduler.clone();
    /// assert!(!other.is_closed());
    /// scheduler.close(Close::Discard);
    /// assert!(other.is_closed());
    /// # Ok::<(), shardwheel::BuildError>(())
    /// ```
    pub fn is_closed(&self) -> bool {
        self.0.core.is_closed()
    }

    /// The scheduler's figures about itself. Lock-free. O(threads), and reads a thousand counters of each shard: call
    /// it now and then, not beside each other call.
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

    /// A handle that does not keep the scheduler open, for a callback that uses its own scheduler. Costs one atomic
    /// increment.
    ///
    /// ```
    /// # use shardwheel::Scheduler;
    /// let (scheduler, _clock) = Scheduler::builder().build_manual(|_: &u32, _: ()| {})?;
    /// let weak = scheduler.downgrade();
    /// assert!(weak.upgrade().is_some());
    /// drop(scheduler);
    /// assert!(weak.upgrade().is_none());
    /// # Ok::<(), shardwheel::BuildError>(())
    /// ```
    pub fn downgrade(&self) -> WeakScheduler<K, V, S> {
        WeakScheduler::of(self)
    }
}
