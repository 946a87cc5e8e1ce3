//! The user's code for expired timers: how it is called, and what becomes of a timer that may come back.

use crate::clock::{Clock, Nanos};
use crate::counters::Event;
use crate::fanout::Runner;
use crate::service::Core;
use crate::shard::{Access, Claim, ClaimedNode, Due, Fired, Period, Tick};
use crate::thread;
use std::any::Any;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

/// What the callback of [`build_rearming`](crate::Builder::build_rearming) answers: whether its timer comes back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Next {
    /// The timer has done its work; its value is dropped.
    Done,
    /// The same timer, with the value as it is now, fires again so much later, counted from the end of the callback.
    After(Duration),
}

/// The user's code for an expired timer.
#[expect(clippy::type_complexity, reason = "two functions, as the user gave them")]
pub(crate) enum Callback<K, V> {
    /// Gets the value; of a periodic timer, a copy of it.
    Plain(Box<dyn Fn(&K, V) + Send + Sync>),
    /// Decides whether the timer comes back.
    Rearming(Box<dyn Fn(&K, &mut V) -> Next + Send + Sync>),
}
/// The user's code for a callback's panic.
pub(crate) type PanicHook<K> = Box<dyn Fn(&K, Box<dyn Any + Send>) + Send + Sync>;

/// One expired timer on its way to its callback.
pub(crate) struct Expiry<V> {
    /// Gone when the timer has come back.
    pub(crate) node: Option<ClaimedNode>,
    /// Taken when the callback runs.
    pub(crate) value: Option<V>,
    pub(crate) due: Option<Tick>,
    pub(crate) is_due: IsDue,
    pub(crate) repeats: bool,
}

/// Whether timers fire because it is time; else they have no lateness.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum IsDue {
    Yes,
    No,
}

thread_local! {
    /// How many callbacks are running on this thread, one inside the other.
    static CALLBACKS: Cell<usize> = const { Cell::new(0) };
}

/// True while a callback runs on this thread.
pub(crate) fn in_callback() -> bool {
    CALLBACKS.try_with(|depth| depth.get() > 0).unwrap_or(false)
}

/// Calls user code: counts the depth, and catches whatever it throws, a payload whose own drop panics included.
pub(crate) fn guarded(run: impl FnOnce()) -> Result<(), Box<dyn Any + Send>> {
    let nest = |by: isize| {
        let _ = CALLBACKS.try_with(|depth| depth.set(depth.get().wrapping_add_signed(by)));
    };
    nest(1);
    let result = catch_unwind(AssertUnwindSafe(run));
    nest(-1);
    result
}

/// Runs what may panic though nobody is left whom that would concern; not even when the payload is dropped.
pub(crate) fn quietly(run: impl FnOnce()) {
    if let Err(payload) = catch_unwind(AssertUnwindSafe(run)) {
        std::mem::forget(payload);
    }
}

/// Drops something of the user's, whose destructor may panic.
pub(crate) fn drop_quietly<T>(dropped: T) {
    quietly(|| drop(dropped));
}

impl<V> Expiry<V> {
    pub(crate) fn new(claim: Claim<V>, is_due: IsDue) -> Self {
        let repeats = claim.repeats;
        let (node, value, due) = claim.into_parts();
        Self { node: Some(node), value: Some(value), due, is_due, repeats }
    }
}

/// Runs the callback of one timer; whatever it does, the next one runs too.
pub(crate) fn run_one<K, V>(core: &Core<K, V>, runner: &Runner<K, V>, shard: usize, expiry: &mut Expiry<V>)
where
    K: Eq + Send + Sync + 'static,
    V: Send + 'static,
{
    let Some(mut value) = expiry.value.take() else { return };
    // Relaxed: a count.
    core.reports[shard].waiting.fetch_sub(1, Relaxed);
    let node = expiry.node.as_ref().expect("it is given up after the run only");
    let comeback = match &runner.callback {
        Callback::Plain(callback) if !expiry.repeats => {
            return call(core, runner, shard, node, |key| callback(key, value));
        }
        Callback::Plain(callback) => {
            let copy = core.shards[shard].with_period(node, |period| period.copy);
            call(core, runner, shard, node, |key| callback(key, copy(&value)));
            Comeback::AtItsRate
        }
        Callback::Rearming(callback) => {
            let mut next = Next::Done;
            call(core, runner, shard, node, |key| next = callback(key, &mut value));
            Comeback::AsAnswered(next)
        }
    };
    if expiry.repeats {
        come_back(core, shard, expiry, value, comeback);
    } else {
        drop_quietly(value);
    }
}

/// Calls user code with the key of a claimed timer; what it throws is counted, and goes to the user's hook.
fn call<K, V>(core: &Core<K, V>, runner: &Runner<K, V>, shard: usize, node: &ClaimedNode, run: impl FnOnce(&K))
where
    K: Eq + Send + Sync + 'static,
    V: Send + 'static,
{
    core.shards[shard].with_claimed_key(node, |key| {
        let Err(payload) = guarded(|| run(key)) else { return };
        core.counters.add(&thread::ordinal(), Event::CallbackPanicked, 1);
        let handled = match &runner.on_panic {
            Some(on_panic) => guarded(|| on_panic(key, payload)),
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

/// After the callback of a timer that repeats: it is pending again, or has ended.
pub(crate) fn come_back<K, V>(core: &Core<K, V>, shard: usize, expiry: &mut Expiry<V>, value: V, comeback: Comeback)
where
    K: Eq + Send + Sync + 'static,
    V: Send + 'static,
{
    let Some(node) = expiry.node.take() else { return };
    let (clock, shard) = (&core.clock, &core.shards[shard]);
    let now = clock.now().max(clock.start_of(shard.hand()));
    let next = match comeback {
        Comeback::AsAnswered(Next::Done) => None,
        Comeback::AsAnswered(Next::After(delay)) => Some(clock.due_after(now, delay, shard.hand())),
        Comeback::AtItsRate => {
            Some(shard.with_period(&node, |period| next_run(clock, period, expiry.due, expiry.is_due, now)))
        }
    };
    let ordinal = thread::ordinal();
    // Not under our guard: the value's destructor is the user's.
    let fired = shard.fired(node, value, next, clock.tick_at(now), &Access::new(&ordinal));
    match fired {
        Fired::Rearmed => core.counters.add(&ordinal, Event::Rearmed, 1),
        Fired::Ended(node, value) => {
            expiry.node = Some(node);
            core.capacity.give(&ordinal, 1);
            drop_quietly(value);
        }
    }
}

/// The next run of a periodic timer after the one whose deadline was `previous`. If that was had ahead of its time, it is one
/// run more: the deadline stands.
fn next_run<V>(clock: &Clock, period: &mut Period<V>, previous: Option<Tick>, is_due: IsDue, now: Nanos) -> Due {
    let Some(tick) = previous else {
        // Fired by hand, and otherwise never.
        return Due { tick: None, now: clock.tick_at(now) };
    };
    // If it was moved, its rate goes on from where it was moved to.
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
