//! A clock that the user moves: the workers without their threads.

use crate::clock::{Nanos, saturating_nanos};
use crate::expired::Runner;
use crate::service::Core;
use crate::shard::Tick;
use crate::worker::{Left, NO_LIMIT, Worker};
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The clock of a scheduler that was built with [`Builder::build_manual`](crate::Builder::build_manual).
///
/// It belongs to one scheduler and works from any thread. Each scheduler has a clock of its own: if a callback of one
/// scheduler starts a timer on another, the delay counts from where the other's clock stands. So a test with two
/// schedulers moves both clocks in turn, by small steps.
///
/// Callbacks may use the clock to read the time or to step it back. A callback that the clock runs itself cannot move
/// time forward, because it is moving already: there `advance` answers 0 and does nothing.
///
/// What is due at one tick in one shard is claimed together, as a rule up to 1,024 timers at a time, before the first
/// of their callbacks runs. So if one of these callbacks calls `cancel` for another of these timers, the answer is
/// `None`, and that one still fires. Shards take turns: for the same order in every run, have one shard
/// ([`Builder::shards`](crate::Builder::shards)).
///
/// Messages to the workers are taken in when the clock moves. Until then they take memory, even if their timers are
/// cancelled: 8 bytes for each timer that is started, or moved to an earlier deadline (but none where the message of an
/// earlier timer, whose memory it reuses, will do).
///
/// Time ends 584 years after the scheduler was built, at 2^64 nanoseconds. After that no timer fires.
///
/// ```
/// use shardwheel::Scheduler;
/// use std::time::Duration;
///
/// let (scheduler, clock) = Scheduler::builder().shards(1).build_manual(|_: &u32, _: ()| {})?;
/// let start = clock.now();
/// scheduler.schedule(1, Duration::from_secs(1)).expect("it is open and not full");
/// scheduler.schedule(2, Duration::from_secs(9)).expect("it is open and not full");
/// assert_eq!(clock.advance(Duration::from_secs(1)), 1);
/// assert_eq!(clock.advance_to_next(), Some(Duration::from_secs(8)));
/// assert_eq!(clock.now() - start, Duration::from_secs(9));
/// # Ok::<(), shardwheel::BuildError>(())
/// ```
#[derive(Clone)]
pub struct ManualClock(Arc<dyn Drive>);

impl fmt::Debug for ManualClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ManualClock").field("now", &self.now()).finish()
    }
}

impl ManualClock {
    pub(crate) fn new<K, V>(core: Arc<Core<K, V>>) -> Self
    where
        K: Eq + Send + Sync + 'static,
        V: Send + 'static,
    {
        let workers = (0..core.shards.len()).map(|index| Worker::new(Arc::clone(&core), index, None)).collect();
        Self(Arc::new(Driver { core, workers: Mutex::new(workers), mover: AtomicUsize::new(0) }))
    }

    /// Moves time on by `by`, visits each deadline on the way in order, runs the callbacks that are due, and then
    /// returns how many timers expired. (Not those that [`expire_now`](crate::Scheduler::expire_now) fires meanwhile.)
    ///
    /// Time stops at each deadline on the way. So no run of [`schedule_every`](crate::Scheduler::schedule_every) is
    /// ever missed if the period is a tick or more, whatever its [`MissedTicks`](crate::MissedTicks).
    ///
    /// Crossing empty time costs next to nothing, but a periodic timer runs for each of its periods on the way. A
    /// timer that is started for the present moment is due one tick later. Threads that move the same clock wait for
    /// one another.
    ///
    /// ```
    /// # use shardwheel::Scheduler;
    /// # use std::time::Duration;
    /// let (scheduler, clock) = Scheduler::builder().build_manual(|_: &u32, _: ()| {})?;
    /// scheduler.schedule(1, Duration::from_secs(1)).expect("it is open and not full");
    /// scheduler.schedule(2, Duration::from_secs(9)).expect("it is open and not full");
    /// assert_eq!(clock.advance(Duration::from_secs(5)), 1);
    /// # Ok::<(), shardwheel::BuildError>(())
    /// ```
    pub fn advance(&self, by: Duration) -> usize {
        self.0.advance(by)
    }

    /// Moves time on to the next deadline, runs what is due, and returns how far that was. `None`, and time stands
    /// still, if no timer will ever fire, or if this clock is moving already and runs the callback that calls this.
    ///
    /// ```
    /// # use shardwheel::Scheduler;
    /// # use std::time::Duration;
    /// let (scheduler, clock) = Scheduler::builder().build_manual(|_: &u32, _: ()| {})?;
    /// scheduler.schedule(1, Duration::from_secs(9)).expect("it is open and not full");
    /// assert_eq!(clock.advance_to_next(), Some(Duration::from_secs(9)));
    /// assert_eq!(clock.advance_to_next(), None);
    /// # Ok::<(), shardwheel::BuildError>(())
    /// ```
    pub fn advance_to_next(&self) -> Option<Duration> {
        self.0.advance_to_next()
    }

    /// The clock's time; the scheduler's [`now`](crate::Scheduler::now) is the same.
    pub fn now(&self) -> Instant {
        self.0.now()
    }

    /// Plays a clock that goes backwards, as some systems' clocks do: afterwards the time is `by` earlier, but not
    /// before the moment when the scheduler was built. Timers keep their deadlines. Until the clock is back where it
    /// was, delays of new timers count from there: none is due before what the clock has shown already. Instants are
    /// taken as they are. In a callback that this clock runs, the step lasts until the clock moves on: to the next
    /// deadline, or to where it was going.
    ///
    /// ```
    /// # use shardwheel::Scheduler;
    /// # use std::time::Duration;
    /// let (scheduler, clock) = Scheduler::builder().shards(1).build_manual(|_: &u32, _: ()| {})?;
    /// let second = Duration::from_secs(1);
    /// clock.advance(10 * second);
    /// scheduler.schedule(1, second).expect("it is open and not full");
    /// clock.step_back(5 * second);
    /// assert_eq!(clock.advance(5 * second), 0, "the clock is where it was");
    /// assert_eq!(clock.advance(second), 1);
    /// assert_eq!(scheduler.stats().clock_regressions, 1);
    /// # Ok::<(), shardwheel::BuildError>(())
    /// ```
    pub fn step_back(&self, by: Duration) {
        self.0.step_back(by);
    }
}

/// A driver of any key and value type.
trait Drive: Send + Sync {
    fn advance(&self, by: Duration) -> usize;
    fn advance_to_next(&self) -> Option<Duration>;
    fn now(&self) -> Instant;
    fn step_back(&self, by: Duration);
}

struct Driver<K: Eq + Send + Sync + 'static, V: Send + 'static> {
    core: Arc<Core<K, V>>,
    /// Held while time moves, callbacks included.
    workers: Mutex<Vec<Worker<K, V>>>,
    /// The thread that moves time, by its mark; 0 for none.
    mover: AtomicUsize,
}

/// A number that no other live thread has, and not 0: where a thread-local is. That has no destructor, so it is there
/// as long as the thread is, in the destructors of other thread-locals, too.
fn mark() -> usize {
    thread_local! {
        static MARK: u8 = const { 0 };
    }
    MARK.with(|mark| std::ptr::from_ref(mark).addr())
}

/// The right to move time; other threads wait for it.
struct Moving<'a, K: Eq + Send + Sync + 'static, V: Send + 'static> {
    core: &'a Arc<Core<K, V>>,
    mover: &'a AtomicUsize,
    workers: MutexGuard<'a, Vec<Worker<K, V>>>,
    /// Keeps the callback while timers may be claimed for it; `None` if the scheduler is gone, and all timers with it.
    _runner: Option<Arc<Runner<K, V>>>,
}

impl<K: Eq + Send + Sync + 'static, V: Send + 'static> Drop for Moving<'_, K, V> {
    fn drop(&mut self) {
        self.mover.store(0, Relaxed);
    }
}

impl<K: Eq + Send + Sync + 'static, V: Send + 'static> Driver<K, V> {
    /// `None` if this very thread is moving this clock already.
    fn begin(&self) -> Option<Moving<'_, K, V>> {
        // Relaxed, here and below: only this very thread stores its mark.
        if self.mover.load(Relaxed) == mark() {
            return None;
        }
        // Callbacks' panics are caught, so the workers are in order even if something else has panicked here.
        let workers = self.workers.lock().unwrap_or_else(PoisonError::into_inner);
        self.mover.store(mark(), Relaxed);
        Some(Moving { core: &self.core, mover: &self.mover, workers, _runner: self.core.runner.upgrade() })
    }
}

impl<K: Eq + Send + Sync + 'static, V: Send + 'static> Moving<'_, K, V> {
    /// Sets the time and lets every worker do all that is to be done by then.
    fn run_at(&mut self, time: Nanos) {
        self.core.clock.set(time);
        for worker in self.workers.iter_mut() {
            let now = self.core.clock.tick_at(worker.read_clock());
            while worker.step(now) != Left::Nothing {}
            while self.core.growth.step(worker.index(), worker.shard()) {}
        }
    }

    /// Timers that have expired so far.
    fn fired(&self) -> usize {
        self.workers.iter().map(Worker::fired).sum()
    }

    /// The next deadline of all shards, or some tick beyond `limit` if it is beyond that. What turns out to be overdue
    /// meanwhile fires; then a nearer deadline may have appeared.
    fn next_deadline(&mut self, limit: Tick) -> Option<Tick> {
        let clock = &self.core.clock;
        let next_of = |worker: &mut Worker<K, V>| {
            let now = clock.tick_at(worker.read_clock());
            while worker.has_mail() {
                worker.step(now);
            }
            worker.next_deadline(now, limit, usize::MAX)
        };
        self.workers.iter_mut().filter_map(next_of).min()
    }

    /// Moves on to the next deadline, if it is at or before `limit`; but what is overdue fires first, at the present
    /// time. False if there is neither.
    fn visit_next(&mut self, limit: Tick) -> bool {
        let before = self.fired();
        let next = self.next_deadline(limit).filter(|&next| next <= limit);
        // Its callbacks may have started timers in shards that were asked before.
        if self.fired() > before {
            return true;
        }
        let clock = &self.core.clock;
        let time = next.map(|next| clock.start_of(next).max(clock.now()));
        time.filter(|time| time.0 < u64::MAX).map(|time| self.run_at(time)).is_some()
    }
}

impl<K: Eq + Send + Sync + 'static, V: Send + 'static> Drive for Driver<K, V> {
    fn advance(&self, by: Duration) -> usize {
        let Some(mut moving) = self.begin() else { return 0 };
        let target = Nanos(moving.core.clock.now().0.saturating_add(saturating_nanos(by)));
        let before = moving.fired();
        let limit = moving.core.clock.tick_at(target);
        while moving.visit_next(limit) {}
        moving.run_at(target);
        moving.fired() - before
    }

    fn advance_to_next(&self) -> Option<Duration> {
        let mut moving = self.begin()?;
        let (start, before) = (moving.core.clock.now(), moving.fired());
        // A deadline beyond the horizon is reached in several steps.
        while moving.fired() == before {
            if !moving.visit_next(NO_LIMIT) {
                return None;
            }
        }
        Some(Duration::from_nanos(moving.core.clock.now().0.saturating_sub(start.0)))
    }

    fn now(&self) -> Instant {
        self.core.clock.instant(self.core.clock.now())
    }

    fn step_back(&self, by: Duration) {
        // `None`: this very thread is moving time, and one of its callbacks steps back.
        let _moving = self.begin();
        let by = saturating_nanos(by);
        self.core.clock.set(Nanos(self.core.clock.now().0.saturating_sub(by)));
    }
}
