//! The user's code for expired timers: how it is called, and what becomes of a timer that may come back.

use crate::clock::{Clock, Nanos};
use crate::counters::Event;
use crate::expired::{Batch, IsDue};
use crate::shard::{Access, ClaimedNode, Due, Fired, Period, Tick};
use crate::thread;
use crate::unwind::drop_quietly;
use std::any::Any;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

/// What the callback of [`build_rearming`](crate::Builder::build_rearming) returns: whether its timer comes back.
///
/// ```
/// use shardwheel::{Next, Scheduler};
/// use std::time::Duration;
///
/// // Tries again after 1, 2, 4 and 8 seconds, then gives up.
/// let (retries, clock) = Scheduler::builder().build_rearming_manual(|_: &&str, delay: &mut Duration| {
///     *delay *= 2;
///     if *delay <= Duration::from_secs(8) { Next::After(*delay) } else { Next::Done }
/// })?;
/// let first = Duration::from_secs(1);
/// retries.schedule_with("reconnect", first, first).expect("it is open and not full");
/// assert_eq!(clock.advance(Duration::from_secs(60)), 4);
/// # Ok::<(), shardwheel::BuildError>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Next {
    /// The timer has done its work; its value is dropped.
    Done,
    /// The same timer, with the value as the callback left it, fires again after this delay, counted from the end of
    /// the callback.
    After(Duration),
    /// As `After`, but at this moment, or at the next tick if that is past.
    ///
    /// ```
    /// use shardwheel::{Next, Scheduler};
    /// use std::time::{Duration, Instant};
    ///
    /// // The moments still to come, the last one first.
    /// let (alarms, clock) = Scheduler::builder().build_rearming_manual(|_: &&str, moments: &mut Vec<Instant>| {
    ///     moments.pop().map_or(Next::Done, Next::At)
    /// })?;
    /// let now = clock.now();
    /// let [one, two, three] = [1, 2, 3].map(|hours| now + Duration::from_secs(3600 * hours));
    /// alarms.schedule_at("shift", vec![three, two], one).expect("it is open and not full");
    /// assert_eq!(clock.advance(Duration::from_secs(2 * 3600)), 2);
    /// assert_eq!(alarms.remaining(&"shift"), Some(Duration::from_secs(3600)));
    /// # Ok::<(), shardwheel::BuildError>(())
    /// ```
    At(Instant),
}

/// The user's code for an expired timer.
#[expect(clippy::type_complexity, reason = "two functions, as the user gave them")]
pub(crate) enum Callback<K, V> {
    /// Gets the value, or a copy of it if the timer is periodic.
    Plain(Box<dyn Fn(&K, V) + Send + Sync>),
    /// Decides whether the timer comes back.
    Rearming(Box<dyn Rearm<K, V>>),
}

/// A callback that decides whether its timer comes back: the user's, or our own.
pub(crate) trait Rearm<K, V>: Send + Sync {
    fn fire(&self, key: &K, value: &mut V, clock: &Clock) -> Next;

    /// In place of `fire`, if the run is lost.
    fn lose(&self, value: &mut V, clock: &Clock) -> Next;
}

impl<K, V, F: Fn(&K, &mut V) -> Next + Send + Sync> Rearm<K, V> for F {
    fn fire(&self, key: &K, value: &mut V, _clock: &Clock) -> Next {
        self(key, value)
    }

    /// No callback has asked for more.
    fn lose(&self, _value: &mut V, _clock: &Clock) -> Next {
        Next::Done
    }
}

/// The user's code for a callback's panic.
pub(crate) type PanicHook<K> = Box<dyn Fn(&K, Box<dyn Any + Send>) + Send + Sync>;

thread_local! {
    /// How many `Inside` live on this thread, nested.
    static CALLBACKS: Cell<usize> = const { Cell::new(0) };
}

/// True while a callback runs on this thread, or the destructor of something that one has left behind.
pub(crate) fn in_callback() -> bool {
    CALLBACKS.try_with(|depth| depth.get() > 0).unwrap_or(false)
}

/// While it lives, user code may run on this thread: callbacks, and the destructors of what they leave behind. Such
/// code must not wait for a worker, because it may be running on one.
pub(crate) struct Inside;

impl Inside {
    #[inline]
    pub(crate) fn new() -> Self {
        Self::nest(1);
        Self
    }

    #[inline]
    fn nest(by: isize) {
        let _ = CALLBACKS.try_with(|depth| depth.set(depth.get().wrapping_add_signed(by)));
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        Self::nest(-1);
    }
}

/// Runs the callback of one timer; whatever it does, the next one runs too. `Some`: the timer repeats; this is its
/// value, and when it wants to fire again.
pub(crate) fn run_one<K, V>(
    batch: &Batch<K, V>,
    node: &ClaimedNode,
    mut value: V,
    repeats: bool,
) -> Option<(V, Comeback)>
where
    K: Eq + Send + Sync + 'static,
    V: Send + 'static,
{
    let comeback = match &batch.runner.callback {
        Callback::Plain(callback) if !repeats => {
            call(batch, node, |key| callback(key, value));
            return None;
        }
        Callback::Plain(callback) => {
            let copy = batch.shard().with_period(node, |period| period.copy);
            call(batch, node, |key| callback(key, copy(&value)));
            Comeback::AtItsRate
        }
        Callback::Rearming(callback) => {
            let mut next = Next::Done;
            call(batch, node, |key| next = callback.fire(key, &mut value, &batch.core.clock));
            Comeback::AsAnswered(next)
        }
    };
    if repeats {
        return Some((value, comeback));
    }
    drop_quietly(value);
    None
}

/// Calls user code with the key of a claimed timer. A panic is counted, and its payload goes to the user's hook. The
/// caller, `Batch::run`, holds an `Inside`.
fn call<K, V>(batch: &Batch<K, V>, node: &ClaimedNode, run: impl FnOnce(&K))
where
    K: Eq + Send + Sync + 'static,
    V: Send + 'static,
{
    batch.shard().with_claimed_key(node, |key| {
        let Err(payload) = catch_unwind(AssertUnwindSafe(|| run(key))) else { return };
        batch.core.counters.add(&thread::ordinal(), Event::CallbackPanicked, 1);
        let handled = match &batch.runner.on_panic {
            Some(on_panic) => catch_unwind(AssertUnwindSafe(|| on_panic(key, payload))),
            None => Err(payload),
        };
        if let Err(payload) = handled {
            // Its destructor may panic as well, on a thread that is not the user's.
            drop_quietly(payload);
        }
    });
}

/// When a timer that repeats wants to fire again.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Comeback {
    AtItsRate,
    AsAnswered(Next),
}

/// To be called after the callback of a timer that repeats and was due at `due`. `None`: it is pending again, or
/// finished. `Some`: it has ended, and is to be finished.
pub(crate) fn come_back<K, V>(
    batch: &Batch<K, V>,
    node: ClaimedNode,
    value: V,
    due: Option<Tick>,
    comeback: Comeback,
) -> Option<ClaimedNode>
where
    K: Eq + Send + Sync + 'static,
    V: Send + 'static,
{
    let core = &batch.core;
    let (clock, shard) = (&core.clock, batch.shard());
    let now = clock.now().max(clock.start_of(shard.hand()));
    let next = match comeback {
        Comeback::AsAnswered(Next::Done) => None,
        Comeback::AsAnswered(Next::After(delay)) => Some(clock.due_after(now, delay, shard.hand())),
        Comeback::AsAnswered(Next::At(moment)) => Some(clock.due_at_nanos(clock.nanos(moment), now)),
        Comeback::AtItsRate => Some(shard.with_period(&node, |period| next_run(clock, period, due, batch.is_due, now))),
    };
    let ordinal = thread::ordinal();
    // The guard goes before the value may be dropped: its destructor is user code.
    let fired = shard.rearm_or_end(node, value, next, clock.tick_at(now), &Access::new(&ordinal));
    match fired {
        Fired::Rearmed => {
            core.counters.add(&ordinal, Event::Rearmed, 1);
            None
        }
        Fired::Sealed(node, value, due) => {
            // Its room is not given back: no timer begins any more.
            core.keep_comeback(batch.shard_number, node, value, due);
            None
        }
        Fired::Ended(node, value) => {
            core.capacity.give(&ordinal, 1);
            drop_quietly(value);
            Some(node)
        }
    }
}

/// The next run of a periodic timer after the one whose deadline was `previous`. A run ahead of its time is one run
/// more: that deadline stands.
fn next_run<V>(clock: &Clock, period: &mut Period<V>, previous: Option<Tick>, is_due: IsDue, now: Nanos) -> Due {
    let Some(tick) = previous else {
        // A timer without a deadline that was fired by hand: it stays without one.
        return Due { tick: None, now: clock.tick_at(now) };
    };
    // If the timer was moved, its rate goes on from where it was moved to.
    let previous_ns = if period.tick == Some(tick) { period.deadline_ns } else { clock.start_of(tick).0 };
    let next_ns = match is_due {
        IsDue::Yes => previous_ns.saturating_add(period.length_ns),
        IsDue::No => previous_ns,
    };
    period.deadline_ns = period.next_run(next_ns, clock.start_of(clock.tick_at(now)).0, now.0);
    let due = clock.due_at_nanos(Nanos(period.deadline_ns), now);
    period.tick = due.tick;
    due
}
