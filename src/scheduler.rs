//! The handle that users hold: hashes keys, reads the clock, counts, and leaves the rest to the key's shard.

mod place;
mod start;
mod weak;
mod whole;

pub(crate) use place::{Place, scatter};
pub use weak::WeakScheduler;

use crate::builder::Builder;
use crate::callback::in_callback;
use crate::clock::Clock;
use crate::counters::Event;
use crate::error::ScheduleError;
use crate::expired::Runner;
use crate::service::Core;
use crate::shard::{Access, Due, Glimpse, Identity, Ordinal, Repeats, Shard, Tick};
use crate::thread;
use crate::timer::{Address, Link, Timer};
use crate::unwind::caught;
use crate::when::When;
use std::borrow::Borrow;
use std::collections::hash_map::RandomState;
use std::fmt;
use std::hash::{BuildHasher, Hash};
use std::mem::{self, needs_drop};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// A timer service: any thread schedules, moves and cancels timers by key; expired timers go to the callback.
///
/// A `Scheduler` is a handle; cloning it costs one atomic increment. Dropping the last handle closes the scheduler with
/// [`Close::Discard`](crate::Close::Discard) and joins its workers, unless a callback drops it. (The threads of the
/// callbacks end by themselves, a moment later.)
///
/// A value leaves the scheduler as soon as its timer ends: it goes to the caller who ends the timer, or to the
/// callback when that begins (or, if the timer repeats and the scheduler is [closed](Self::close) meanwhile, it is kept
/// to be given back). A key is dropped later: at the earliest when 64 timers have ended on the same thread in
/// the same shard, at the latest with the scheduler. So what must be released in time belongs in the value.
///
/// A panic of a key's `Hash` or `Eq` goes on in the call. One exception: if two keys are compared to find out which
/// timer a new one replaces, and that panics, they count as different keys, and both timers stay. (With a
/// [capacity](crate::Builder::capacity) the key is looked up first, and a panic of that look goes on in the call.)
///
/// Calls that start, move, cancel or look up a timer take `&self` and no lock, and wait for no other thread. They cost
/// a few hundred nanoseconds while the caches miss. (With more calling threads than cores, a `schedule` may yield to
/// other threads; and on systems other than Linux, waking a worker takes a short lock.) ARCHITECTURE.md's progress
/// table says what exactly is promised for each call.
///
/// ```
/// use shardwheel::Scheduler;
/// use std::time::Duration;
///
/// let (sender, fired) = std::sync::mpsc::channel();
/// let scheduler = Scheduler::builder().build(move |key: &u64, value: &'static str| {
///     sender.send((*key, value)).expect("the receiver is there");
/// })?;
/// scheduler.schedule_with(1, "one", Duration::from_secs(30)).expect("it is open and not full");
/// scheduler.schedule_with(2, "two", Duration::from_secs(30)).expect("it is open and not full");
/// assert!(scheduler.reschedule(&1, Duration::from_millis(5)));
/// assert_eq!(scheduler.cancel(&2), Some("two"));
/// assert_eq!(fired.recv(), Ok((1, "one")));
/// # Ok::<(), shardwheel::BuildError>(())
/// ```
pub struct Scheduler<K, V = (), S = RandomState>(Arc<Inner<K, V, S>>)
where
    K: Hash + Eq + Send + Sync + 'static,
    V: Send + 'static;

struct Inner<K: Hash + Eq + Send + Sync + 'static, V: Send + 'static, S> {
    core: Arc<Core<K, V>>,
    /// Kept as long as calls of ours, or of a `Timer` before we close, may claim timers for the callback.
    _runner: Arc<Runner<K, V>>,
    hasher: S,
    /// The workers and the thread for growth, until somebody takes them to join them.
    threads: Mutex<Vec<JoinHandle<()>>>,
    /// How many threads were started.
    thread_count: usize,
    /// For `Timer`s, one per stripe: so that handing them out does not contend on one reference count.
    links: Box<[Link<K, V>]>,
}

/// What a successful schedule returns: the new timer's identity, and the value of the timer that it replaced.
type Scheduled<V> = (Identity, Option<V>);

impl<K: Hash + Eq + Send + Sync + 'static, V: Send + 'static, S> Clone for Scheduler<K, V, S> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<K: Hash + Eq + Send + Sync + 'static, V: Send + 'static, S> fmt::Debug for Scheduler<K, V, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scheduler")
            .field("pending", &self.0.core.counters.pending())
            .field("shards", &self.0.core.shards.len())
            .field("closed", &self.0.core.is_closed())
            .finish_non_exhaustive()
    }
}

impl<K: Hash + Eq + Send + Sync + 'static, V: Send + 'static> Scheduler<K, V> {
    /// A builder with the default settings. The types of key and value follow from the callback's parameters, or are
    /// given here: `Scheduler::<u64, String>::builder()`.
    pub fn builder() -> Builder<K, V> {
        Builder::new()
    }
}

impl<K: Hash + Eq + Send + Sync + 'static, S: BuildHasher> Scheduler<K, (), S> {
    /// Fires `key` after `delay`. If a timer is pending under this key, it is replaced, and the answer is `Some(())`.
    /// For schedulers whose timers have no value (`V = ()`); all others have [`schedule_with`](Self::schedule_with),
    /// which costs the same.
    ///
    /// # Errors
    /// As [`schedule_with`](Self::schedule_with).
    ///
    /// ```
    /// # use shardwheel::Scheduler;
    /// # use std::time::Duration;
    /// let (scheduler, clock) = Scheduler::builder().build_manual(|key: &u32, _| println!("{key}"))?;
    /// assert_eq!(scheduler.schedule(7, Duration::from_secs(1)).unwrap(), None);
    /// assert_eq!(scheduler.schedule(7, Duration::from_secs(2)).unwrap(), Some(()));
    /// assert_eq!(clock.advance(Duration::from_secs(2)), 1);
    /// # Ok::<(), shardwheel::BuildError>(())
    /// ```
    pub fn schedule(&self, key: K, delay: Duration) -> Result<Option<()>, ScheduleError<K, ()>> {
        self.schedule_with(key, (), delay)
    }
}

impl<K: Hash + Eq + Send + Sync + 'static, V: Send + 'static, S: BuildHasher> Scheduler<K, V, S> {
    /// Fires `key` with `value` at the first tick at or after `delay` from now, never before. If a timer is pending
    /// under this key, its deadline, value and key are replaced (unlike in a map, the new key stays); its value comes
    /// back and will not fire.
    ///
    /// [`Duration::ZERO`] fires at the next tick. [`Duration::MAX`] never fires, nor does any other delay that ends
    /// more than 584 years after the scheduler was built; but such a timer can be cancelled and moved.
    ///
    /// Key and value are moved several times on their way into the timer and out of it. A type of more than some
    /// hundred bytes belongs in a [`Box`] or an [`Arc`]. (With many thousand bytes, compiling takes long, too; and more
    /// than some ten thousand may be too much for the stack of the thread that runs callbacks.)
    ///
    /// Costs one reading of the clock, one hash and one look-up. As a rule it makes a system call, which wakes the
    /// worker, only if the deadline is the shard's earliest.
    ///
    /// # Errors
    /// [`ScheduleError::Full`] beyond the capacity, or beyond a shard's 2^28 timers: transient.
    /// [`ScheduleError::Closed`] after [`close`](Self::close): permanent. Key and value come back in either. So if
    /// they are not [`Sync`], as a boxed closure, the error is not either, and `?` into a
    /// `Box<dyn Error + Send + Sync>` needs a `map_err`.
    ///
    /// ```
    /// # use shardwheel::Scheduler;
    /// # use std::time::Duration;
    /// let (scheduler, _clock) = Scheduler::builder().build_manual(|_: &u32, _: &str| {})?;
    /// assert_eq!(scheduler.schedule_with(7, "a", Duration::from_secs(1)).unwrap(), None);
    /// assert_eq!(scheduler.schedule_with(7, "b", Duration::from_secs(2)).unwrap(), Some("a"));
    /// # Ok::<(), shardwheel::BuildError>(())
    /// ```
    pub fn schedule_with(&self, key: K, value: V, delay: Duration) -> Result<Option<V>, ScheduleError<K, V>> {
        self.start(key, value, When::After(delay)).map(|(_, (_, replaced))| replaced)
    }

    /// As [`schedule_with`](Self::schedule_with), at an instant; one that has passed fires at the next tick. With a
    /// manual clock, the instant is one of that clock, which does not go with [`Instant::now`]: see [`now`](Self::now).
    ///
    /// Costs as much, but reads the system's clock only if the instant may have passed: if it is not later than the
    /// tick that the shard's worker has reached or, while the worker sleeps, the tick at which it will wake up.
    ///
    /// # Errors
    /// As [`schedule_with`](Self::schedule_with).
    ///
    /// ```
    /// # use shardwheel::Scheduler;
    /// # use std::time::Duration;
    /// let (scheduler, clock) = Scheduler::builder().build_manual(|_: &u32, _: ()| {})?;
    /// scheduler.schedule_at(7, (), clock.now() + Duration::from_secs(1)).expect("it is open and not full");
    /// assert_eq!(scheduler.remaining(&7), Some(Duration::from_secs(1)));
    /// # Ok::<(), shardwheel::BuildError>(())
    /// ```
    pub fn schedule_at(&self, key: K, value: V, deadline: Instant) -> Result<Option<V>, ScheduleError<K, V>> {
        self.start(key, value, When::At(deadline)).map(|(_, (_, replaced))| replaced)
    }

    /// As [`schedule_with`](Self::schedule_with), and returns a handle that cancels and moves this very timer without
    /// looking up its key. If nobody will look the key up, [`schedule_unindexed`](Self::schedule_unindexed) is faster.
    /// (So it is for a time-out that is mostly cancelled: here the key goes into the index and comes out of it, which
    /// takes as long as with [`cancel`](Self::cancel).)
    ///
    /// The handle costs one atomic increment more, on one of several counts, so that threads rarely contend.
    ///
    /// # Errors
    /// As [`schedule_with`](Self::schedule_with).
    ///
    /// ```
    /// # use shardwheel::Scheduler;
    /// # use std::time::Duration;
    /// let (scheduler, _clock) = Scheduler::builder().build_manual(|_: &u32, _: &str| {})?;
    /// let (_, first) = scheduler.schedule_with_handle(7, "a", Duration::from_secs(1)).unwrap();
    /// let (replaced, second) = scheduler.schedule_with_handle(7, "b", Duration::from_secs(1)).unwrap();
    /// assert_eq!(replaced, Some("a"));
    /// assert_eq!(first.cancel(), None, "a handle never touches a later timer of its key");
    /// assert_eq!(second.cancel(), Some("b"));
    /// # Ok::<(), shardwheel::BuildError>(())
    /// ```
    #[expect(clippy::type_complexity, reason = "it is what `schedule_with` returns, and the handle")]
    pub fn schedule_with_handle(
        &self,
        key: K,
        value: V,
        delay: Duration,
    ) -> Result<(Option<V>, Timer<K, V>), ScheduleError<K, V>> {
        self.start(key, value, When::After(delay)).map(|started| self.with_handle(started))
    }

    /// As [`schedule_at`](Self::schedule_at), and returns a handle as
    /// [`schedule_with_handle`](Self::schedule_with_handle) does.
    ///
    /// # Errors
    /// As [`schedule_with`](Self::schedule_with).
    ///
    /// ```
    /// # use shardwheel::Scheduler;
    /// # use std::time::Duration;
    /// let (scheduler, clock) = Scheduler::builder().build_manual(|_: &u32, _: ()| {})?;
    /// let noon = clock.now() + Duration::from_secs(1);
    /// let (_, timer) = scheduler.schedule_at_with_handle(7, (), noon).expect("it is open and not full");
    /// assert_eq!(timer.remaining(), Some(Duration::from_secs(1)));
    /// # Ok::<(), shardwheel::BuildError>(())
    /// ```
    #[expect(clippy::type_complexity, reason = "as for `schedule_with_handle`")]
    pub fn schedule_at_with_handle(
        &self,
        key: K,
        value: V,
        deadline: Instant,
    ) -> Result<(Option<V>, Timer<K, V>), ScheduleError<K, V>> {
        self.start(key, value, When::At(deadline)).map(|started| self.with_handle(started))
    }

    fn with_handle(&self, (address, (identity, replaced)): (Address, Scheduled<V>)) -> (Option<V>, Timer<K, V>) {
        (replaced, self.handle(&thread::ordinal(), address, identity))
    }

    pub(crate) fn handle(&self, ordinal: &Ordinal, address: Address, identity: Identity) -> Timer<K, V> {
        let link = &self.0.links[ordinal.stripe(self.0.links.len())];
        Timer::new(Arc::clone(link), address, identity)
    }

    /// Moves the pending timer of `key` to `delay` from now. True: it was pending, and fires at the new deadline only.
    /// False: it has fired, is firing, was cancelled, or never was; then nothing changes.
    ///
    /// If the timer repeats ([`schedule_every`](Self::schedule_every),
    /// [`build_rearming`](crate::Builder::build_rearming)) and is firing, the answer is true, and the new deadline is
    /// when it comes back.
    ///
    /// Costs one reading of the clock, one hash and one look-up. A move to a later deadline wakes nobody. A move to
    /// before the shard's earliest deadline wakes the worker: one system call.
    ///
    /// ```
    /// # use shardwheel::Scheduler;
    /// # use std::time::Duration;
    /// let (scheduler, clock) = Scheduler::builder().build_manual(|_: &u32, _: ()| {})?;
    /// scheduler.schedule(7, Duration::from_secs(1)).expect("it is open and not full");
    /// assert!(scheduler.reschedule(&7, Duration::from_secs(3)));
    /// assert_eq!(clock.advance(Duration::from_secs(2)), 0);
    /// assert_eq!(clock.advance(Duration::from_secs(1)), 1);
    /// assert!(!scheduler.reschedule(&7, Duration::from_secs(3)));
    /// # Ok::<(), shardwheel::BuildError>(())
    /// ```
    pub fn reschedule<Q>(&self, key: &Q, delay: Duration) -> bool
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        self.shift(key, When::After(delay))
    }

    /// As [`reschedule`](Self::reschedule), to an instant. Reads the clock as seldom as
    /// [`schedule_at`](Self::schedule_at).
    ///
    /// ```
    /// # use shardwheel::Scheduler;
    /// # use std::time::Duration;
    /// let (scheduler, clock) = Scheduler::builder().build_manual(|_: &u32, _: ()| {})?;
    /// let midnight = scheduler.now() + Duration::from_secs(3600);
    /// scheduler.schedule(1, Duration::from_secs(1)).expect("it is open and not full");
    /// assert!(scheduler.reschedule_at(&1, midnight));
    /// assert_eq!(clock.advance(Duration::from_secs(3599)), 0);
    /// assert_eq!(clock.advance(Duration::from_secs(1)), 1);
    /// # Ok::<(), shardwheel::BuildError>(())
    /// ```
    pub fn reschedule_at<Q>(&self, key: &Q, deadline: Instant) -> bool
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        self.shift(key, When::At(deadline))
    }

    /// Ends the pending timer of `key`. `Some`: it will never fire, and this is its value. `None`: it has fired, is
    /// firing, was cancelled, or never was.
    ///
    /// A timer counts as fired once its shard has claimed it, though its callback may begin a little later. If a timer
    /// repeats and is firing, the answer is `None`, since its callback has the value; but the timer does not come
    /// back. If you must know after a `None` that no callback of it is running any more, call
    /// [`wait_for_callbacks`](Self::wait_for_callbacks).
    ///
    /// Costs one hash and one look-up. The timer's memory is reused soon, however far its deadline was. Wakes the
    /// worker only when the wheel's entries of ended timers far outnumber the others, to sweep them out.
    ///
    /// ```
    /// # use shardwheel::Scheduler;
    /// # use std::time::Duration;
    /// let (scheduler, _clock) = Scheduler::builder().build_manual(|_: &String, _: u32| {})?;
    /// scheduler.schedule_with("job".to_owned(), 5, Duration::from_secs(1)).expect("it is open and not full");
    /// assert_eq!(scheduler.cancel("job"), Some(5));
    /// assert_eq!(scheduler.cancel("job"), None);
    /// # Ok::<(), shardwheel::BuildError>(())
    /// ```
    pub fn cancel<Q>(&self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let place = self.place(key);
        let ordinal = thread::ordinal();
        let mut access = Access::new(&ordinal);
        let value = self.cancel_at(place, None, key, &access)?;
        place.shard.drop_ripe_keys(&mut access);
        Some(value)
    }

    /// True if a timer is pending under `key` at this moment; not while its callback runs. Costs one hash and one
    /// look-up, and wakes nobody.
    ///
    /// ```
    /// # use shardwheel::Scheduler;
    /// # use std::time::Duration;
    /// let (scheduler, clock) = Scheduler::builder().build_manual(|_: &u32, _: ()| {})?;
    /// scheduler.schedule(7, Duration::from_secs(1)).expect("it is open and not full");
    /// assert!(scheduler.contains(&7));
    /// clock.advance(Duration::from_secs(1));
    /// assert!(!scheduler.contains(&7));
    /// # Ok::<(), shardwheel::BuildError>(())
    /// ```
    pub fn contains<Q>(&self, key: &Q) -> bool
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        self.due(key).is_some()
    }

    /// The time until the pending timer of `key` is due: until the tick at which it fires, so up to one tick more than
    /// its delay. [`Duration::MAX`] if it will never fire; `None` if nothing is pending. Costs as
    /// [`contains`](Self::contains), and one reading of the clock if there is such a timer.
    ///
    /// ```
    /// # use shardwheel::Scheduler;
    /// # use std::time::Duration;
    /// let (scheduler, clock) = Scheduler::builder().build_manual(|_: &u32, _: ()| {})?;
    /// scheduler.schedule(1, Duration::from_secs(3)).expect("it is open and not full");
    /// clock.advance(Duration::from_secs(1));
    /// assert_eq!(scheduler.remaining(&1), Some(Duration::from_secs(2)));
    /// assert_eq!(scheduler.remaining(&2), None);
    /// # Ok::<(), shardwheel::BuildError>(())
    /// ```
    pub fn remaining<Q>(&self, key: &Q) -> Option<Duration>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let due = self.due(key)?;
        let clock = &self.0.core.clock;
        Some(clock.until(due, clock.now()))
    }

    /// Fires the pending timer of `key` at once instead of later. True: it was pending, and is on its way to its
    /// callback, however many others wait for theirs. Without a pool (manual clock,
    /// [`Executor::Inline`](crate::Executor::Inline)) the callback runs before this returns.
    ///
    /// Costs as [`cancel`](Self::cancel), and one job for the executor, which is allocated and may wake a thread.
    ///
    /// ```
    /// # use shardwheel::Scheduler;
    /// # use std::time::Duration;
    /// let (scheduler, clock) = Scheduler::builder().build_manual(|_: &u32, _: ()| {})?;
    /// scheduler.schedule(7, Duration::from_secs(1)).expect("it is open and not full");
    /// assert!(scheduler.expire_now(&7));
    /// assert_eq!(clock.advance(Duration::from_secs(1)), 0);
    /// # Ok::<(), shardwheel::BuildError>(())
    /// ```
    pub fn expire_now<Q>(&self, key: &Q) -> bool
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let place = self.place(key);
        if self.0.core.is_closed() {
            return false;
        }
        let is_key = |other: &K| other.borrow() == key;
        let claim = |shard: &Shard<K, V>| shard.claim(place.spot, is_key, &Access::new(&thread::ordinal()));
        self.0.core.expire_now(place.shard_number, claim)
    }

    /// Whether a timer comes back that was not started as a periodic one.
    #[inline]
    pub(crate) fn repeats(&self) -> Repeats<V> {
        if self.0.core.rearms { Repeats::IfWanted } else { Repeats::Never }
    }

    pub(crate) fn core(&self) -> &Core<K, V> {
        &self.0.core
    }

    pub(crate) fn clock(&self) -> &Clock {
        &self.0.core.clock
    }

    fn shift<Q>(&self, key: &Q, when: When) -> bool
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let place = self.place(key);
        let due = when.due(self.clock(), place.shard);
        self.shift_at(place, None, key, due, &Access::new(&thread::ordinal()))
    }

    /// Moves a timer whose place and new deadline are known.
    pub(crate) fn shift_at<'g, Q>(
        &self,
        place: Place<'g, K, V>,
        glimpse: Option<Glimpse<'g>>,
        key: &Q,
        due: Due,
        access: &'g Access,
    ) -> bool
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let core = &*self.0.core;
        let is_key = |other: &K| other.borrow() == key;
        let moved = !core.is_closed() && place.shard.reschedule(place.spot, glimpse, is_key, due, access);
        if moved {
            core.counters.add(access.ordinal, Event::Rescheduled, 1);
        }
        moved
    }

    /// Ends a timer whose place is known. `drop_ripe_keys` follows.
    #[inline]
    pub(crate) fn cancel_at<'g, Q>(
        &self,
        place: Place<'g, K, V>,
        glimpse: Option<Glimpse<'g>>,
        key: &Q,
        access: &'g Access,
    ) -> Option<V>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let core = &*self.0.core;
        if core.is_closed() {
            return None;
        }
        let value = place.shard.cancel(place.spot, glimpse, |other| other.borrow() == key, access)?;
        core.count_end(access.ordinal, Event::Cancelled);
        Some(value)
    }

    fn due<Q>(&self, key: &Q) -> Option<Option<Tick>>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let place = self.place(key);
        if self.0.core.is_closed() {
            return None;
        }
        let shard = place.shard;
        shard.due(place.spot, |other| other.borrow() == key, shard.hand(), &Access::new(&thread::ordinal()))
    }
}

impl<K: Hash + Eq + Send + Sync + 'static, V: Send + 'static, S> Scheduler<K, V, S> {
    pub(crate) fn new(
        core: Arc<Core<K, V>>,
        runner: Arc<Runner<K, V>>,
        hasher: S,
        threads: Vec<JoinHandle<()>>,
    ) -> Self {
        let links = (0..thread::stripe_count()).map(|_| Arc::new(Arc::clone(&core).into())).collect();
        let (thread_count, threads) = (threads.len(), Mutex::new(threads));
        Self(Arc::new(Inner { core, _runner: runner, hasher, threads, thread_count, links }))
    }
}

impl<K: Hash + Eq + Send + Sync + 'static, V: Send + 'static, S> Inner<K, V, S> {
    /// The threads to join; those that another call has taken are left out. None in a callback: with
    /// `Executor::Inline` it would wait for itself.
    fn take_threads(&self) -> Vec<JoinHandle<()>> {
        if in_callback() {
            return Vec::new();
        }
        let mut threads = mem::take(&mut *self.threads.lock().unwrap_or_else(PoisonError::into_inner));
        threads.retain(|thread| thread.thread().id() != std::thread::current().id());
        threads
    }
}

/// Waits for threads to end.
fn join(threads: Vec<JoinHandle<()>>) {
    for thread in threads {
        // They cannot panic; if one did, the scheduler still ends. And `join` itself panics in a process that was
        // forked off, which has none of these threads.
        let _ = caught(|| thread.join());
    }
}

impl<K: Hash + Eq + Send + Sync + 'static, V: Send + 'static, S> Drop for Inner<K, V, S> {
    fn drop(&mut self) {
        let was_open = self.core.begin_close();
        let threads = self.take_threads();
        // Once all threads have ended, nobody fires what is pending, and no call that begins then finds it. So if
        // nothing of it needs to be dropped, it is left as it is. (Not with a manual clock, which has no threads: it
        // may be moved on.)
        let joins_all = self.thread_count > 0 && threads.len() == self.thread_count;
        let stays_pending = joins_all && !needs_drop::<K>() && !needs_drop::<V>();
        if was_open && !stays_pending {
            // SAFETY: this was the last handle, and nobody else has begun to close.
            unsafe { self.core.discard_all() };
        }
        join(threads);
        self.core.drop_comebacks();
        // SAFETY: closed, and this was the last handle through which a key can be looked up.
        unsafe { self.core.drop_leftover_keys() };
    }
}

#[cfg(test)]
mod tests;
