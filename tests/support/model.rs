//! A scheduler on the manual clock against a `BTreeMap`: the same operations on both, every answer compared.
//!
//! Knows nothing of how the operations are made up: [`run`] takes a list of them and panics at the first difference.
//!
//! The model is a map from key to deadline and value. It is dumb on purpose: it computes each deadline anew from the
//! definition, and finds what fires by looking at all timers. It follows the scheduler in one thing only: timers of one
//! tick fire in any order, so it takes the order from the scheduler, and checks that it is a possible one.
//!
//! A timer that repeats ends by itself at its [`RUNS_MAX`]th run, so that time can be moved far ahead.

#![allow(unreachable_pub, reason = "part of each test binary that needs it")]

use crate::support::{ClockSlot, Ledger, OneHash, Token, lock};
use shardwheel::{Close, IfAbsent, ManualClock, MissedTicks, Next, ScheduleError, Scheduler, Timer, WeakScheduler};
use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::panic::resume_unwind;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

/// The most runs of one timer.
const RUNS_MAX: u32 = 6;
/// Timers that no key leads to have keys from here on; no two of them have the same key at a time. So the model can
/// tell them apart.
const UNINDEXED: u8 = 128;

fn is_indexed(key: u64) -> bool {
    key < UNINDEXED.into()
}

/// A length of time, in ticks and nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    pub ticks: u64,
    pub nanos: u64,
}

impl Span {
    /// As a delay: for ever.
    pub const ENDLESS: Self = Self { ticks: u64::MAX, nanos: 0 };
    const LONGEST: u128 = 100 * 24 * 3_600_000_000_000;

    fn duration(self, tick: Duration) -> Duration {
        let nanos = (u128::from(self.ticks) * tick.as_nanos()).min(Self::LONGEST) + u128::from(self.nanos);
        Duration::from_nanos(nanos as u64)
    }

    fn delay(self, tick: Duration) -> Duration {
        if self == Self::ENDLESS { Duration::MAX } else { self.duration(tick) }
    }
}

/// What a timer's callback does besides being noted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reaction {
    Nothing,
    /// Schedules its own key again.
    Restart(Span),
    Cancel(u8),
    Move(u8, Span),
    Panic,
}

#[derive(Clone, Copy, Debug)]
pub enum Op {
    Schedule(u8, Span, Reaction),
    /// At an instant this far ahead.
    ScheduleAt(u8, Span),
    /// At an instant this long ago.
    SchedulePast(u8, Span),
    ScheduleWithHandle(u8, Span),
    ScheduleIfAbsent(u8, Span, Reaction),
    ScheduleUnindexed(Span, Reaction),
    ScheduleUnindexedAt(Span),
    ScheduleEvery(u8, Span, MissedTicks, Reaction),
    Reschedule(u8, Span),
    RescheduleAt(u8, Span),
    Cancel(u8),
    /// `contains` and `remaining`.
    Look(u8),
    ExpireNow(u8),
    /// Operations on a handle, perhaps an old one.
    HandleCancel(u8),
    HandleReschedule(u8, Span),
    HandleRescheduleAt(u8, Span),
    HandleLook(u8),
    HandleExpireNow(u8),
    Drain,
    /// Schedules each timer again while it is handed over.
    DrainAndRestart(Span),
    Advance(Span),
    AdvanceToNext,
    StepBack(Span),
    Close(Close),
}

#[derive(Clone, Copy, Debug)]
pub struct Settings {
    pub tick: Duration,
    pub first_tick: u64,
    pub shards: usize,
    pub capacity: Option<usize>,
    /// All keys have the same hash.
    pub collide: bool,
    /// Every timer comes back after this delay from its run.
    pub rearm: Option<Span>,
}

/// Runs the operations on the scheduler and the model, ends both, and checks that every key and value was dropped once.
pub fn run(ops: &[Op], settings: Settings) {
    if settings.collide {
        run_with(ops, settings, OneHash);
    } else {
        run_with(ops, settings, BuildHasherDefault::<DefaultHasher>::default());
    }
}

fn run_with<S: BuildHasher + Send + Sync + 'static>(ops: &[Op], settings: Settings, hasher: S) {
    let ledger = Ledger::default();
    let mut pair = Pair::new(settings, hasher, ledger.clone());
    for op in ops {
        pair.apply(*op);
        pair.check();
    }
    pair.end();
    ledger.assert_all_dropped_once();
}

/// A value with an identity of its own, which its copies for the runs of a periodic timer share.
struct Value {
    token: Token,
    reaction: Reaction,
    ledger: Ledger,
}

impl Clone for Value {
    fn clone(&self) -> Self {
        Self { token: self.ledger.token(self.token.id), reaction: self.reaction, ledger: self.ledger.clone() }
    }
}

/// What a callback saw and did.
#[derive(Debug)]
struct Firing {
    key: u8,
    id: u64,
    at: Duration,
    outcome: Outcome,
    /// In the end it cancelled itself.
    is_last: bool,
}

/// The answer to a callback's reaction.
#[derive(Debug)]
enum Outcome {
    Nothing,
    Restarted { id: u64, delay: Duration, answer: Result<Option<u64>, Refusal> },
    Cancelled { key: u8, was_pending: bool, answer: Option<u64> },
    Moved { key: u8, delay: Duration, was_pending: bool, answer: bool },
    Panicked,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Refusal {
    Full,
    Closed,
    ZeroPeriod,
}

impl From<ScheduleError<Token, Value>> for Refusal {
    fn from(error: ScheduleError<Token, Value>) -> Self {
        match error {
            ScheduleError::Full(..) => Self::Full,
            ScheduleError::Closed(..) => Self::Closed,
            _ => Self::ZeroPeriod,
        }
    }
}

type Started = Result<Timer<Token, Value>, ScheduleError<Token, Value>>;

/// What the callback shares with the test.
struct World<S: BuildHasher + Send + Sync + 'static> {
    scheduler: OnceLock<WeakScheduler<Token, Value, S>>,
    clock: ClockSlot,
    start: OnceLock<Instant>,
    tick: Duration,
    rearm: Option<Duration>,
    ledger: Ledger,
    ids: AtomicU64,
    /// By the timer's identity: how often it has run.
    runs: Mutex<HashMap<u64, u32>>,
    log: Mutex<Vec<Firing>>,
}

impl<S: BuildHasher + Send + Sync + 'static> World<S> {
    fn value(&self, reaction: Reaction) -> Value {
        let token = self.ledger.token(self.ids.fetch_add(1, SeqCst));
        Value { token, reaction, ledger: self.ledger.clone() }
    }

    fn key(&self, key: u8) -> Token {
        self.ledger.token(u64::from(key))
    }

    fn fire(&self, key: &Token, value: &Value) -> Next {
        let at = self.clock.now() - *self.start.get().expect("set at the start");
        let outcome = self.react(key, value.reaction);
        let panics = matches!(outcome, Outcome::Panicked);
        let (key, id) = (key.id as u8, value.token.id);
        let is_last = self.count_run(id) >= RUNS_MAX;
        if is_last {
            let cancelled = self.scheduler().cancel(&u64::from(key));
            assert!(is_indexed(key.into()) || cancelled.is_none());
        }
        lock(&self.log).push(Firing { key, id, at, outcome, is_last });
        if panics {
            // `resume_unwind` runs no panic hook, so nothing is printed.
            resume_unwind(Box::new("on purpose"));
        }
        if is_last && !is_indexed(key.into()) {
            // No key leads to it, so the callback could not cancel it.
            return Next::Done;
        }
        self.rearm.map_or(Next::Done, Next::After)
    }

    fn count_run(&self, id: u64) -> u32 {
        let mut runs = lock(&self.runs);
        let count = runs.entry(id).or_default();
        *count += 1;
        *count
    }

    fn scheduler(&self) -> Scheduler<Token, Value, S> {
        self.scheduler.get().and_then(WeakScheduler::upgrade).expect("it lives until the end")
    }

    fn react(&self, own: &Token, reaction: Reaction) -> Outcome {
        let scheduler = self.scheduler();
        match reaction {
            Reaction::Nothing => Outcome::Nothing,
            // That would be another timer with its key, which the model does not know.
            Reaction::Restart(_) if !is_indexed(own.id) => Outcome::Nothing,
            Reaction::Panic => Outcome::Panicked,
            Reaction::Restart(span) => {
                let (value, delay) = (self.value(Reaction::Nothing), span.delay(self.tick));
                let id = value.token.id;
                let answer = scheduler.schedule_with(self.key(own.id as u8), value, delay);
                Outcome::Restarted { id, delay, answer: answer.map(id_of).map_err(Refusal::from) }
            }
            Reaction::Cancel(key) => {
                let was_pending = scheduler.contains(&u64::from(key));
                Outcome::Cancelled { key, was_pending, answer: id_of(scheduler.cancel(&u64::from(key))) }
            }
            Reaction::Move(key, span) => {
                let (delay, was_pending) = (span.delay(self.tick), scheduler.contains(&u64::from(key)));
                Outcome::Moved { key, delay, was_pending, answer: scheduler.reschedule(&u64::from(key), delay) }
            }
        }
    }
}

fn id_of(value: Option<Value>) -> Option<u64> {
    value.map(|value| value.token.id)
}

/// What a timer does after its run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Once,
    Every(Rate),
    /// Comes back after this delay.
    After(Duration),
}

/// A fixed rate. The next run is due at `exact`, which is rounded up to `deadline`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Rate {
    period: u128,
    missed: MissedTicks,
    exact: u128,
    deadline: Option<u128>,
}

/// A timer of the model. Deadlines are nanoseconds since the start; `None` is never.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Pending {
    id: u64,
    deadline: Option<u128>,
    kind: Kind,
}

/// A timer that is firing: its run is still to come, or under way.
#[derive(Clone, Copy, Debug)]
struct Run {
    timer: Pending,
    /// It will come back, unless it is ended meanwhile.
    repeats: bool,
    /// When to come back, if a call has said so.
    told: Option<Option<u128>>,
}

#[derive(Default)]
struct Counts {
    scheduled: u64,
    rearmed: u64,
    rescheduled: u64,
    replaced: u64,
    cancelled: u64,
    fired: u64,
    drained: u64,
    rejected: u64,
    discarded: u64,
    returned: u64,
    panics: u64,
}

struct Model {
    tick: u128,
    capacity: usize,
    /// The kind of the timers that are not periodic.
    kind: Kind,
    now: u128,
    /// The latest time that there ever was: if the clock was stepped back, timers count from this time's tick.
    latest: u128,
    pending: BTreeMap<u8, Pending>,
    /// The timer whose callback is being followed, and those timers of the present tick that the scheduler already
    /// reported as firing before their callbacks ran.
    firing: BTreeMap<u8, Run>,
    counts: Counts,
    is_closed: bool,
}

impl Model {
    fn reach(&mut self, now: u128) {
        self.now = now;
        self.latest = self.latest.max(now);
    }

    /// The time from which delays count.
    fn base(&self) -> u128 {
        self.now.max(self.latest / self.tick * self.tick)
    }

    /// The first tick at or after `exact` that is not the present one; `None` (never) at the end of time.
    fn round_up(&self, exact: u128) -> Option<u128> {
        let ticks = exact.div_ceil(self.tick).max(self.base() / self.tick + 1);
        (exact < u128::from(u64::MAX)).then_some(ticks * self.tick)
    }

    fn deadline_after(&self, delay: Duration) -> Option<u128> {
        self.round_up(self.base() + delay.as_nanos())
    }

    fn rate(&self, period: Duration, missed: MissedTicks) -> Rate {
        let period = period.as_nanos();
        let exact = self.base() + period;
        Rate { period, missed, exact, deadline: self.round_up(exact) }
    }

    /// The rate after a run that was due at `deadline`, or that was asked for before that.
    fn next(&self, rate: Rate, deadline: Option<u128>, is_early: bool) -> Rate {
        let Some(deadline) = deadline else { return Rate { deadline: None, ..rate } };
        // If the timer was moved, it goes on from where it was moved to.
        let ran = if rate.deadline == Some(deadline) { rate.exact } else { deadline };
        let own = if is_early { ran } else { ran + rate.period };
        let tick_begun = self.base() / self.tick * self.tick;
        let exact = match rate.missed {
            MissedTicks::Skip if own <= tick_begun => own + ((tick_begun - own) / rate.period + 1) * rate.period,
            MissedTicks::Delay if own <= tick_begun => self.base() + rate.period,
            _ => own,
        };
        Rate { exact, deadline: self.round_up(exact), ..rate }
    }

    fn deadline_at(&self, at: u128) -> Option<u128> {
        Some(at.div_ceil(self.tick).max(self.latest / self.tick + 1) * self.tick)
    }

    /// The run of `key`, if its timer can still be told whether to come back.
    fn reachable(&mut self, key: u8) -> Option<&mut Run> {
        self.firing.get_mut(&key).filter(|run| run.repeats)
    }

    fn schedule(&mut self, key: u8, timer: Pending) -> Result<Option<u64>, Refusal> {
        let refusal = if self.is_closed {
            Some(Refusal::Closed)
        } else {
            // A timer that repeats keeps its place while it fires, even if it is ended during that.
            let places = self.pending.len() + self.firing.values().filter(|run| run.timer.kind != Kind::Once).count();
            let replaces = self.pending.contains_key(&key) || self.reachable(key).is_some();
            (places >= self.capacity && !replaces).then_some(Refusal::Full)
        };
        if let Some(refusal) = refusal {
            self.counts.rejected += 1;
            return Err(refusal);
        }
        self.counts.scheduled += 1;
        if let Some(run) = self.reachable(key) {
            run.repeats = false;
        }
        let replaced = self.pending.insert(key, timer);
        self.counts.replaced += u64::from(replaced.is_some());
        Ok(replaced.map(|timer| timer.id))
    }

    /// Returns the new timer's own identity if it gives way.
    fn schedule_if_absent(&mut self, key: u8, timer: Pending) -> Result<Option<u64>, Refusal> {
        let gives_way = self.pending.contains_key(&key) || self.reachable(key).is_some();
        if gives_way && !self.is_closed { Ok(Some(timer.id)) } else { self.schedule(key, timer) }
    }

    fn reschedule(&mut self, key: u8, deadline: Option<u128>) -> bool {
        if let Some(run) = self.reachable(key) {
            run.told = Some(deadline);
        } else if let Some(timer) = self.pending.get_mut(&key) {
            timer.deadline = deadline;
        } else {
            return false;
        }
        self.counts.rescheduled += 1;
        true
    }

    fn cancel(&mut self, key: u8) -> Option<u64> {
        if let Some(run) = self.reachable(key) {
            run.repeats = false;
            return None;
        }
        let timer = self.pending.remove(&key)?;
        self.counts.cancelled += 1;
        Some(timer.id)
    }

    fn remaining(&self, key: u8) -> Option<Duration> {
        self.pending.get(&key).map(|timer| self.left(timer))
    }

    fn left(&self, timer: &Pending) -> Duration {
        let left = timer.deadline.map(|deadline| deadline.saturating_sub(self.now));
        left.map_or(Duration::MAX, |left| Duration::from_nanos(left as u64))
    }

    fn next_deadline(&self) -> Option<u128> {
        self.pending.values().filter_map(|timer| timer.deadline).min()
    }

    /// Follows the callback of a timer that was due, and checks that it was its turn.
    fn expire(&mut self, firing: &Firing) {
        let at = firing.at.as_nanos();
        assert!(self.next_deadline().is_none_or(|next| next >= at), "a timer was passed over: {firing:?}");
        let timer = self.claimed(firing.key);
        assert_eq!((timer.id, timer.deadline), (firing.id, Some(at)), "who fires when: {firing:?}");
        self.reach(at);
        self.run(firing, false);
    }

    /// Follows a callback that ran because a call asked for it.
    fn fire_early(&mut self, firing: &Firing) {
        assert_eq!((self.claimed(firing.key).id, self.now), (firing.id, firing.at.as_nanos()));
        self.run(firing, true);
    }

    /// The timer that fires; it may have been claimed before.
    fn claimed(&mut self, key: u8) -> Pending {
        if !self.firing.contains_key(&key) {
            self.claim(key);
        }
        self.firing[&key].timer
    }

    fn claim(&mut self, key: u8) {
        let timer = self.pending.remove(&key).expect("what fires was pending");
        let repeats = timer.kind != Kind::Once && !self.is_closed;
        self.firing.insert(key, Run { timer, repeats, told: None });
    }

    fn claim_all(&mut self) {
        let keys: Vec<u8> = self.pending.keys().copied().collect();
        keys.into_iter().for_each(|key| self.claim(key));
    }

    /// Follows the callback of a claimed timer, and then the timer.
    fn run(&mut self, firing: &Firing, is_early: bool) {
        self.counts.fired += 1;
        self.follow(firing);
        if firing.is_last {
            self.cancel(firing.key);
        }
        let run = self.firing.remove(&firing.key).expect("it was claimed");
        if !run.repeats {
            return;
        }
        let mut timer = run.timer;
        let own = match &mut timer.kind {
            Kind::Every(rate) => {
                *rate = self.next(*rate, timer.deadline, is_early);
                Some(rate.deadline)
            }
            Kind::After(delay) if !matches!(firing.outcome, Outcome::Panicked) => Some(self.deadline_after(*delay)),
            Kind::Once | Kind::After(_) => None,
        };
        if let Some(deadline) = run.told.or(own) {
            self.counts.rearmed += 1;
            self.pending.insert(firing.key, Pending { deadline, ..timer });
        }
    }

    fn follow(&mut self, firing: &Firing) {
        match firing.outcome {
            Outcome::Nothing => {}
            Outcome::Panicked => self.counts.panics += 1,
            Outcome::Restarted { id, delay, answer } => {
                let timer = Pending { id, deadline: self.deadline_after(delay), kind: self.kind };
                // Other timers of this tick may have left their places already.
                let capacity = self.capacity;
                let may_leave = |timer: &Pending| timer.kind == Kind::Once && timer.deadline == Some(self.now);
                if answer.is_ok() && self.pending.values().any(may_leave) {
                    self.capacity = usize::MAX;
                }
                assert_eq!(self.schedule(firing.key, timer), answer, "{firing:?}");
                self.capacity = capacity;
            }
            Outcome::Cancelled { key, was_pending, answer } => {
                self.admit_firing(key, !was_pending);
                assert_eq!(self.cancel(key), answer, "{firing:?}");
            }
            Outcome::Moved { key, delay, was_pending, answer } => {
                self.admit_firing(key, !was_pending);
                let deadline = self.deadline_after(delay);
                assert_eq!(self.reschedule(key, deadline), answer, "{firing:?}");
            }
        }
    }

    /// The scheduler may deny that a timer is pending if it is due at this very tick: then it must fire.
    fn admit_firing(&mut self, key: u8, is_denied: bool) {
        if is_denied && self.pending.get(&key).is_some_and(|timer| timer.deadline == Some(self.now)) {
            self.claim(key);
        }
    }
}

/// The scheduler and the model.
struct Pair<S: BuildHasher + Send + Sync + 'static> {
    world: Arc<World<S>>,
    scheduler: Scheduler<Token, Value, S>,
    clock: ManualClock,
    start: Instant,
    /// Handles, each with its timer's key and identity.
    handles: Vec<(Timer<Token, Value>, u8, u64)>,
    model: Model,
}

impl<S: BuildHasher + Send + Sync + 'static> Pair<S> {
    fn new(settings: Settings, hasher: S, ledger: Ledger) -> Self {
        let world = Arc::new(World {
            scheduler: OnceLock::new(),
            clock: ClockSlot::default(),
            start: OnceLock::new(),
            tick: settings.tick,
            rearm: settings.rearm.map(|span| span.delay(settings.tick)),
            ledger,
            ids: AtomicU64::new(0),
            runs: Mutex::default(),
            log: Mutex::default(),
        });
        let seen = Arc::clone(&world);
        let builder = settings.capacity.map_or(Scheduler::builder(), |most| Scheduler::builder().capacity(most));
        let builder = builder.tick(settings.tick).first_tick(settings.first_tick).shards(settings.shards);
        let builder = builder.hasher(hasher);
        let built = if world.rearm.is_some() {
            builder.build_rearming_manual(move |key: &Token, value: &mut Value| seen.fire(key, value))
        } else {
            builder.build_manual(move |key: &Token, value: Value| {
                seen.fire(key, &value);
            })
        };
        let (scheduler, clock) = built.expect("the settings are in range");
        let start = clock.now();
        world.start.set(start).expect("set once");
        world.clock.set(&clock);
        assert!(world.scheduler.set(scheduler.downgrade()).is_ok());
        let capacity = settings.capacity.unwrap_or(usize::MAX);
        let model = Model {
            tick: settings.tick.as_nanos(),
            capacity,
            kind: world.rearm.map_or(Kind::Once, Kind::After),
            now: 0,
            latest: 0,
            pending: BTreeMap::new(),
            firing: BTreeMap::new(),
            counts: Counts::default(),
            is_closed: false,
        };
        Self { world, scheduler, clock, start, handles: Vec::new(), model }
    }

    fn delay(&self, span: Span) -> Duration {
        span.delay(self.world.tick)
    }

    /// An instant `span` ahead, and the model's deadline for it.
    fn ahead(&self, span: Span) -> (Instant, Option<u128>) {
        let span = span.duration(self.world.tick);
        (self.clock.now() + span, self.model.deadline_at(self.model.now + span.as_nanos()))
    }

    fn apply(&mut self, op: Op) {
        match op {
            Op::Schedule(key, span, reaction) => self.schedule(key, self.delay(span), reaction),
            Op::ScheduleAt(key, span) => {
                let (instant, deadline) = self.ahead(span);
                self.schedule_at(key, instant, deadline);
            }
            Op::SchedulePast(key, span) => {
                let span = span.duration(self.world.tick);
                let deadline = self.model.deadline_at(self.model.now.saturating_sub(span.as_nanos()));
                if let Some(instant) = self.clock.now().checked_sub(span) {
                    self.schedule_at(key, instant, deadline);
                }
            }
            Op::ScheduleWithHandle(key, span) => self.schedule_with_handle(key, self.delay(span)),
            Op::ScheduleIfAbsent(key, span, reaction) => self.schedule_if_absent(key, self.delay(span), reaction),
            Op::ScheduleUnindexed(span, reaction) => {
                let (delay, value) = (self.delay(span), self.world.value(reaction));
                self.schedule_unindexed(value, self.model.deadline_after(delay), |scheduler, key, value| {
                    scheduler.schedule_unindexed(key, value, delay)
                });
            }
            Op::ScheduleUnindexedAt(span) => {
                let ((instant, deadline), value) = (self.ahead(span), self.world.value(Reaction::Nothing));
                self.schedule_unindexed(value, deadline, |scheduler, key, value| {
                    scheduler.schedule_unindexed_at(key, value, instant)
                });
            }
            Op::ScheduleEvery(key, span, missed, reaction) => {
                self.schedule_every(key, self.delay(span), missed, reaction);
            }
            Op::Reschedule(key, span) => self.reschedule(key, self.delay(span)),
            Op::RescheduleAt(key, span) => {
                let (instant, deadline) = self.ahead(span);
                let answer = self.scheduler.reschedule_at(&u64::from(key), instant);
                assert_eq!(answer, self.model.reschedule(key, deadline));
            }
            Op::Cancel(key) => assert_eq!(id_of(self.scheduler.cancel(&u64::from(key))), self.model.cancel(key)),
            Op::Look(key) => self.look(key),
            Op::ExpireNow(key) => {
                let answer = self.scheduler.expire_now(&u64::from(key));
                self.check_fired_early(key, answer, |_| true);
            }
            Op::HandleCancel(pick) => self.handle_cancel(pick),
            Op::HandleReschedule(pick, span) => {
                let delay = self.delay(span);
                self.handle_move(pick, self.model.deadline_after(delay), |handle| handle.reschedule(delay));
            }
            Op::HandleRescheduleAt(pick, span) => {
                let (instant, deadline) = self.ahead(span);
                self.handle_move(pick, deadline, |handle| handle.reschedule_at(instant));
            }
            Op::HandleLook(pick) => self.handle_look(pick),
            Op::HandleExpireNow(pick) => self.handle_expire_now(pick),
            Op::Drain => self.drain(None),
            Op::DrainAndRestart(span) => self.drain(Some(self.delay(span))),
            Op::Advance(span) => self.advance(span.duration(self.world.tick)),
            Op::AdvanceToNext => self.advance_to_next(),
            Op::StepBack(span) => {
                let span = span.duration(self.world.tick);
                self.clock.step_back(span);
                self.model.now = self.model.now.saturating_sub(span.as_nanos());
            }
            Op::Close(close) => self.close(close),
        }
    }

    fn schedule(&mut self, key: u8, delay: Duration, reaction: Reaction) {
        let value = self.world.value(reaction);
        let id = value.token.id;
        let answer = self.scheduler.schedule_with(self.world.key(key), value, delay);
        let timer = Pending { id, deadline: self.model.deadline_after(delay), kind: self.model.kind };
        assert_eq!(answer.map(id_of).map_err(Refusal::from), self.model.schedule(key, timer));
    }

    fn schedule_if_absent(&mut self, key: u8, delay: Duration, reaction: Reaction) {
        let value = self.world.value(reaction);
        let id = value.token.id;
        let answer = self.scheduler.schedule_if_absent(self.world.key(key), value, delay);
        let timer = Pending { id, deadline: self.model.deadline_after(delay), kind: self.model.kind };
        let answer = answer.map(IfAbsent::into_value);
        assert_eq!(answer.map(id_of).map_err(Refusal::from), self.model.schedule_if_absent(key, timer));
    }

    fn schedule_unindexed(
        &mut self,
        value: Value,
        deadline: Option<u128>,
        start: impl FnOnce(&Scheduler<Token, Value, S>, Token, Value) -> Started,
    ) {
        let id = value.token.id;
        let Some(key) = (UNINDEXED..=u8::MAX).find(|key| !self.model.pending.contains_key(key)) else { return };
        let answer = start(&self.scheduler, self.world.key(key), value).map_err(Refusal::from);
        let timer = Pending { id, deadline, kind: self.model.kind };
        assert_eq!(answer.as_ref().map_or_else(|&refusal| Err(refusal), |_| Ok(None)), self.model.schedule(key, timer));
        self.handles.extend(answer.ok().map(|handle| (handle, key, id)));
    }

    fn schedule_every(&mut self, key: u8, period: Duration, missed: MissedTicks, reaction: Reaction) {
        let value = self.world.value(reaction);
        let id = value.token.id;
        let answer = self.scheduler.schedule_every(self.world.key(key), value, period, missed);
        let answer = answer.map(id_of).map_err(Refusal::from);
        if period.is_zero() {
            assert_eq!(answer, Err(Refusal::ZeroPeriod));
            return;
        }
        let rate = self.model.rate(period, missed);
        // Where the callback decides, the period counts for the first run only.
        let kind = if self.model.kind == Kind::Once { Kind::Every(rate) } else { self.model.kind };
        assert_eq!(answer, self.model.schedule(key, Pending { id, deadline: rate.deadline, kind }));
    }

    fn schedule_at(&mut self, key: u8, instant: Instant, deadline: Option<u128>) {
        let value = self.world.value(Reaction::Nothing);
        let id = value.token.id;
        let answer = self.scheduler.schedule_at(self.world.key(key), value, instant);
        let timer = Pending { id, deadline, kind: self.model.kind };
        assert_eq!(answer.map(id_of).map_err(Refusal::from), self.model.schedule(key, timer));
    }

    fn schedule_with_handle(&mut self, key: u8, delay: Duration) {
        let value = self.world.value(Reaction::Nothing);
        let id = value.token.id;
        let answer = self.scheduler.schedule_with_handle(self.world.key(key), value, delay);
        let timer = Pending { id, deadline: self.model.deadline_after(delay), kind: self.model.kind };
        let answer = answer.map(|(replaced, handle)| {
            self.handles.push((handle, key, id));
            id_of(replaced)
        });
        assert_eq!(answer.map_err(Refusal::from), self.model.schedule(key, timer));
    }

    fn reschedule(&mut self, key: u8, delay: Duration) {
        let answer = self.scheduler.reschedule(&u64::from(key), delay);
        let deadline = self.model.deadline_after(delay);
        assert_eq!(answer, self.model.reschedule(key, deadline));
    }

    fn look(&self, key: u8) {
        let expected = self.model.remaining(key).filter(|_| is_indexed(key.into()));
        assert_eq!(self.scheduler.remaining(&u64::from(key)), expected);
        assert_eq!(self.scheduler.contains(&u64::from(key)), expected.is_some());
    }

    /// The picked handle's key, and whether its timer is pending.
    fn handle(&self, pick: u8) -> Option<(&Timer<Token, Value>, u8, bool)> {
        let index = usize::from(pick) % self.handles.len().max(1);
        let (handle, key, id) = self.handles.get(index)?;
        let is_pending = self.model.pending.get(key).is_some_and(|timer| timer.id == *id);
        Some((handle, *key, is_pending))
    }

    fn handle_cancel(&mut self, pick: u8) {
        let Some((handle, key, is_pending)) = self.handle(pick) else { return };
        let answer = id_of(handle.cancel());
        assert_eq!(answer, is_pending.then(|| self.model.cancel(key)).flatten());
    }

    fn handle_move(&mut self, pick: u8, deadline: Option<u128>, shift: impl Fn(&Timer<Token, Value>) -> bool) {
        let Some((handle, key, is_pending)) = self.handle(pick) else { return };
        let answer = shift(handle);
        assert_eq!(answer, is_pending && self.model.reschedule(key, deadline));
    }

    fn handle_look(&self, pick: u8) {
        let Some((handle, key, is_pending)) = self.handle(pick) else { return };
        assert_eq!(handle.is_pending(), is_pending);
        assert_eq!(handle.remaining(), self.model.remaining(key).filter(|_| is_pending));
    }

    fn handle_expire_now(&mut self, pick: u8) {
        let Some((handle, key, is_pending)) = self.handle(pick) else { return };
        let answer = handle.expire_now();
        self.check_fired_early(key, answer, |_| is_pending);
    }

    fn check_fired_early(&mut self, key: u8, answer: bool, is_meant: impl FnOnce(&Pending) -> bool) {
        let timer = self.model.pending.get(&key).copied().filter(is_meant);
        assert_eq!(answer, timer.is_some());
        let log = std::mem::take(&mut *lock(&self.world.log));
        assert_eq!(log.len(), usize::from(answer));
        log.iter().for_each(|firing| self.model.fire_early(firing));
    }

    fn drain(&mut self, restart: Option<Duration>) {
        let mut drained = BTreeMap::new();
        let mut restarted = BTreeMap::new();
        let count = self.scheduler.drain(|key, value| {
            assert_eq!(drained.insert(key.id as u8, value.token.id), None, "handed over once");
            if let Some(delay) = restart.filter(|_| is_indexed(key.id)) {
                let value = self.world.value(Reaction::Nothing);
                restarted.insert(key.id as u8, value.token.id);
                let answer = self.scheduler.schedule_with(self.world.key(key.id as u8), value, delay);
                assert_eq!(answer.map(id_of).map_err(Refusal::from), Ok(None));
            }
        });
        let pending = std::mem::take(&mut self.model.pending);
        assert_eq!(count, pending.len());
        assert_eq!(drained, pending.iter().map(|(&key, timer)| (key, timer.id)).collect());
        self.model.counts.drained += count as u64;
        for (key, id) in restarted {
            let deadline = restart.and_then(|delay| self.model.deadline_after(delay));
            let timer = Pending { id, deadline, kind: self.model.kind };
            assert_eq!(self.model.schedule(key, timer), Ok(None));
        }
    }

    fn advance(&mut self, by: Duration) {
        let target = self.model.now + by.as_nanos();
        let fired = self.clock.advance(by);
        self.check_fired(fired);
        self.model.reach(target);
        let next = self.model.next_deadline();
        assert!(next.is_none_or(|next| next > target), "{next:?} was due by {target}");
    }

    fn advance_to_next(&mut self) {
        let expected = self.model.next_deadline();
        let before = self.model.now;
        let answer = self.clock.advance_to_next();
        assert_eq!(answer, expected.map(|next| Duration::from_nanos((next - before) as u64)));
        let fired = lock(&self.world.log).len();
        assert_eq!(fired > 0, answer.is_some());
        self.check_fired(fired);
        let next = self.model.next_deadline();
        assert!(next.is_none_or(|next| next > self.model.now));
    }

    fn check_fired(&mut self, count: usize) {
        let log = std::mem::take(&mut *lock(&self.world.log));
        assert_eq!(log.len(), count, "as many as it says");
        log.iter().for_each(|firing| self.model.expire(firing));
        assert!(self.model.firing.is_empty(), "never fired: {:?}", self.model.firing);
    }

    fn close(&mut self, close: Close) {
        let closed = self.scheduler.close(close);
        self.model.is_closed = true;
        let mut pending = std::mem::take(&mut self.model.pending);
        let count = |wanted| if close == wanted { pending.len() } else { 0 };
        assert_eq!((closed.discarded, closed.fired), (count(Close::Discard), count(Close::FireNow)));
        assert_eq!(closed.returned.len(), count(Close::Return));
        self.model.counts.discarded += closed.discarded as u64;
        self.model.counts.returned += closed.returned.len() as u64;
        for (key, value, left) in closed.returned {
            let timer = pending.remove(&(key.id as u8)).expect("what is returned was pending");
            assert_eq!((value.token.id, left), (timer.id, self.model.left(&timer)));
        }
        let log = std::mem::take(&mut *lock(&self.world.log));
        assert_eq!(log.len(), closed.fired);
        if close == Close::FireNow {
            self.model.pending = pending;
            self.model.claim_all();
        }
        log.iter().for_each(|firing| self.model.fire_early(firing));
    }

    /// Checks what must hold after every operation.
    fn check(&self) {
        assert_eq!(self.clock.now() - self.start, Duration::from_nanos(self.model.now as u64));
        assert_eq!(self.scheduler.len(), self.model.pending.len());
        assert_eq!(self.scheduler.is_empty(), self.model.pending.is_empty());
        assert_eq!(self.scheduler.is_closed(), self.model.is_closed);
        let (stats, counts) = (self.scheduler.stats(), &self.model.counts);
        let ended = counts.fired + counts.cancelled + counts.replaced + counts.drained;
        assert_eq!(counts.scheduled + counts.rearmed, ended + counts.discarded + counts.returned + stats.pending);
        assert_eq!((stats.scheduled, stats.rescheduled), (counts.scheduled, counts.rescheduled));
        assert_eq!(stats.rearmed, counts.rearmed);
        assert_eq!((stats.replaced, stats.cancelled), (counts.replaced, counts.cancelled));
        assert_eq!((stats.fired, stats.drained), (counts.fired, counts.drained));
        assert_eq!((stats.discarded, stats.returned), (counts.discarded, counts.returned));
        assert_eq!((stats.rejected, stats.callback_panics), (counts.rejected, counts.panics));
        assert_eq!(stats.callbacks_waiting, 0);
        self.world.ledger.assert_none_twice();
    }

    /// Looks at every key, drops everything but the handles, and checks that these report it.
    fn end(self) {
        (0..=u8::MAX).for_each(|key| self.look(key));
        let alive = self.model.pending.len();
        drop(self.scheduler);
        assert!(self.world.scheduler.get().is_some_and(|weak| weak.upgrade().is_none()), "{alive} went with it");
        for (handle, ..) in &self.handles {
            assert!(!handle.is_pending() && handle.cancel().is_none() && !handle.reschedule(Duration::ZERO));
        }
        assert_eq!(self.clock.advance(Duration::from_secs(1)), 0);
    }
}
