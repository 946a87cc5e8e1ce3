//! What the simulation expects: timers as plain data, and when they are due by definition. It knows no scheduler.

use crate::{Close, MissedTicks};
use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

pub(super) const TICK: Duration = Duration::from_millis(1);
const TICK_NS: u128 = TICK.as_nanos();
/// What is due at the end of time is never due.
const END_NS: u128 = u64::MAX as u128;

/// The present, for the timers of one shard: the clock, or the shard's hand if the clock was stepped back behind it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Moment {
    pub(super) now_ns: u128,
    pub(super) first_tick: u64,
}

impl Moment {
    /// The beginning of the present tick.
    fn tick_ns(self) -> u128 {
        self.now_ns / TICK_NS * TICK_NS
    }

    fn tick(self) -> u64 {
        self.first_tick + (self.now_ns / TICK_NS) as u64
    }

    fn start_of(self, tick: u64) -> u128 {
        u128::from(tick - self.first_tick) * TICK_NS
    }

    /// The first tick at or after `at_ns`, and after the present one.
    pub(super) fn tick_at(self, at_ns: u128) -> Option<u64> {
        let ticks = at_ns.div_ceil(TICK_NS).max(self.now_ns / TICK_NS + 1);
        (at_ns < END_NS).then(|| self.first_tick + ticks as u64)
    }

    pub(super) fn tick_after(self, delay: Duration) -> Option<u64> {
        // A delay that ends at the very end of time still counts, but the simulation makes none.
        self.tick_at(self.now_ns + delay.as_nanos())
    }
}

/// A fixed rate and its next run.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Rate {
    period_ns: u128,
    missed: MissedTicks,
    /// The next run, exactly, and its tick.
    due_ns: u128,
    pub(super) due: Option<u64>,
}

impl Rate {
    pub(super) fn new(period: Duration, missed: MissedTicks, at: Moment) -> Self {
        let period_ns = period.as_nanos().min(END_NS);
        let due_ns = at.now_ns + period_ns;
        Self { period_ns, missed, due_ns, due: at.tick_at(due_ns) }
    }

    /// Goes on to the run after that of `claim`, which has ended at `at`.
    fn go_on(&mut self, claim: &Claim, at: Moment) {
        let Some(due) = claim.due else {
            // It has run because of `expire_now` only, which changes no rate.
            (self.due_ns, self.due) = (END_NS, None);
            return;
        };
        // A timer that was moved goes on from where it was moved to.
        let ran_ns = if self.due == Some(due) { self.due_ns } else { at.start_of(due) };
        let runs = |count: u128| ran_ns + count * self.period_ns;
        let next_ns = runs(u128::from(!claim.early));
        self.due_ns = match self.missed {
            _ if next_ns > at.tick_ns() => next_ns,
            MissedTicks::Burst => next_ns,
            MissedTicks::Skip => runs((at.tick_ns() - ran_ns) / self.period_ns + 1),
            MissedTicks::Delay => at.now_ns + self.period_ns,
        };
        self.due = at.tick_at(self.due_ns);
    }
}

/// What a timer does after its callback.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum Kind {
    Once,
    Every(Rate),
    AsAnswered,
}

#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum State {
    /// Due at this tick; `None`: never.
    Pending(Option<u64>),
    /// Claimed for a run, or in it. `Some`: meanwhile it was given the tick at which it is to come back, as a timer
    /// that repeats can be.
    Firing(Option<Option<u64>>),
}

#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Timer {
    pub(super) id: u64,
    pub(super) kind: Kind,
    pub(super) state: State,
    /// The tick at which the last run ended, if the timer was given its deadline during that run. If the deadline had
    /// passed by then, the worker looks at the timer when its clock reaches the end of the run: later, if the clock is
    /// stepped back meanwhile.
    pub(super) awaited: u64,
}

impl Timer {
    pub(super) fn is_pending(&self) -> bool {
        matches!(self.state, State::Pending(_))
    }

    /// When it is due, if it is pending and will ever be.
    pub(super) fn due(&self) -> Option<u64> {
        if let State::Pending(due) = self.state { due } else { None }
    }
}

/// A run that is under way, or is to come because the scheduler has claimed the timer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Claim {
    pub(super) due: Option<u64>,
    /// It was asked for, whether due or not.
    pub(super) early: bool,
    repeats: bool,
}

/// As in `Stats`.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub(super) struct Counts {
    pub(super) scheduled: u64,
    pub(super) rearmed: u64,
    pub(super) rescheduled: u64,
    pub(super) replaced: u64,
    pub(super) cancelled: u64,
    pub(super) fired: u64,
    pub(super) drained: u64,
    pub(super) rejected: u64,
    pub(super) discarded: u64,
    pub(super) returned: u64,
    pub(super) panics: u64,
}

#[derive(Default)]
pub(super) struct Model {
    /// What a call finds under each key: a timer that is pending, or one that repeats and is firing.
    pub(super) timers: BTreeMap<u64, Timer>,
    /// By id.
    pub(super) claims: HashMap<u64, Claim>,
    /// By id: those that were firing when the scheduler was closed to give its timers back.
    sealed: HashMap<u64, Timer>,
    /// By key: those among them that would have come back since, with id and tick, and have not been given back.
    pub(super) comebacks: BTreeMap<u64, (u64, Option<u64>)>,
    pub(super) counts: Counts,
    next_id: u64,
}

impl Model {
    pub(super) fn new_id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }

    pub(super) fn pending(&self) -> impl Iterator<Item = (u64, Timer)> {
        self.timers.iter().filter(|(_, timer)| timer.is_pending()).map(|(&key, &timer)| (key, timer))
    }

    /// How many timers count against the capacity. One that repeats does until the run in which it ends is over.
    pub(super) fn room_taken(&self) -> usize {
        let is_under_its_key = |id| self.timers.values().any(|timer| timer.id == id);
        let ended = self.claims.iter().filter(|(id, claim)| claim.repeats && !is_under_its_key(**id));
        self.timers.len() + ended.count()
    }

    pub(super) fn start(&mut self, key: u64, timer: Timer) {
        self.counts.scheduled += 1;
        let before = self.timers.insert(key, timer);
        self.counts.replaced += u64::from(before.is_some_and(|timer| timer.is_pending()));
    }

    pub(super) fn reschedule(&mut self, key: u64, due: Option<u64>) {
        let timer = self.timers.get_mut(&key).expect("only what is there is moved");
        timer.state = match timer.state {
            State::Pending(_) => State::Pending(due),
            State::Firing(_) => State::Firing(Some(due)),
        };
        timer.awaited = 0;
        self.counts.rescheduled += 1;
    }

    pub(super) fn cancel(&mut self, key: u64) {
        let timer = self.timers.remove(&key);
        self.counts.cancelled += u64::from(timer.is_some_and(|timer| timer.is_pending()));
    }

    /// The scheduler has claimed a pending timer, whose run is to come.
    pub(super) fn claim(&mut self, key: u64, early: bool) {
        let mut timer = self.timers.remove(&key).expect("only what is there fires");
        let State::Pending(due) = timer.state else { panic!("claimed twice: {timer:?}") };
        let repeats = timer.kind != Kind::Once;
        if repeats {
            timer.state = State::Firing(None);
            self.timers.insert(key, timer);
        }
        self.claims.insert(timer.id, Claim { due, early, repeats });
    }

    /// Ends all timers; none comes back.
    pub(super) fn close(&mut self, close: Close) {
        if close != Close::Return {
            self.sealed.clear();
            self.comebacks.clear();
        }
        for (_, timer) in std::mem::take(&mut self.timers) {
            match (timer.state, close) {
                (State::Pending(due), Close::FireNow) => {
                    self.claims.insert(timer.id, Claim { due, early: true, repeats: false });
                }
                (State::Firing(_), Close::Return) => _ = self.sealed.insert(timer.id, timer),
                _ => {}
            }
        }
    }

    /// The run of `id` is over: `answered` is when its callback wants it to come back.
    pub(super) fn end_run(&mut self, key: u64, id: u64, answered: Option<Option<u64>>, at: Moment) {
        let claim = self.claims.remove(&id).expect("it has run");
        let mut sealed = self.sealed.remove(&id);
        let is_sealed = sealed.is_some();
        let open = self.timers.get_mut(&key).filter(|timer| timer.id == id);
        let Some(timer) = sealed.as_mut().or(open) else { return };
        let State::Firing(told) = timer.state else { panic!("{timer:?} did not fire") };
        let own = match &mut timer.kind {
            Kind::Every(rate) => {
                rate.go_on(&claim, at);
                Some(rate.due)
            }
            Kind::Once | Kind::AsAnswered => answered,
        };
        match told.or(own) {
            due if is_sealed => _ = due.map(|due| self.comebacks.insert(key, (id, due))),
            Some(due) => {
                timer.state = State::Pending(due);
                timer.awaited = if told.is_some() { at.tick() } else { 0 };
                self.counts.rearmed += 1;
            }
            None => {
                self.timers.remove(&key);
            }
        }
    }
}
