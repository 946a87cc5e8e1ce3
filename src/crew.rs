//! The workers' threads: what they do while they are awake, and which of them gets up for whom.
//!
//! Each shard's worker has a thread of its own, pinned if possible. But to wake a thread takes longer than to fire a
//! few dozen timers. So while there is something to do often, and one thread can do it all, a further thread is the
//! lookout (`lookout.rs`): it gets up for all shards, takes their workers' steps one after the other, and then runs the
//! callbacks as well, if the pool is our own and they are quick (`lane.rs`). The workers' threads sleep on. They get up
//! if a caller wakes them; if the lookout finds that there is too much to do; and now and then, in case that it is not
//! there.
//!
//! A callback may turn out to be slow, and keep the lookout. So there are two, which take turns: each looks, when it
//! gets up, whether the other one still comes, and if not, wakes all threads that rely on them. None of the workers'
//! threads ever runs a callback of such a scheduler.

use crate::clock::{Nanos, saturating_nanos};
use crate::fanout::Leaves;
use crate::lane::Lane;
use crate::lookout::{LOOKOUTS, Lookouts, Times, Watched, other};
use crate::service::{Core, ShardReport};
use crate::worker::{Left, NO_LIMIT, Worker};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Duration;

/// At most this many hints of a slot are looked at ahead of time before a sleep; in a slot with more, a stale one may
/// wake the worker.
const REVIEW_MAX: usize = 512;
/// How long a worker leaves alone an executor that does not keep up: a tick, within these bounds. What waits keeps the
/// executor busy for longer than that.
const BACKLOG_PAUSE_MIN: Duration = Duration::from_micros(200);
const BACKLOG_PAUSE_MAX: Duration = Duration::from_millis(1);

/// A thread relies on the lookout only if its shard has to be seen to as soon as this: otherwise it has little to gain.
const NEAR: Duration = Duration::from_millis(20);
/// The lookout may be stopped. So the thread of shard 0 gets up this long after its shard was to be seen to, that of
/// shard 1 after twice as long, and so on up to `GRACE_MAX`, each up to one and a half ticks later: mostly in vain, and
/// then it sleeps on. If it misses the lookout, it wakes all that rely on it, and none does until it is back.
const GRACE: Duration = Duration::from_millis(10);
const GRACE_MAX: Duration = Duration::from_millis(100);
/// A lookout is missed if it has been up for so long: most likely, a callback keeps it.
const KEPT: Duration = Duration::from_micros(1500);
/// Or if it gets up so late; then it resigns, too, and also if some shard still has to be seen to then. On a busy
/// machine any thread may get up some milliseconds late, and so might those in its place: so that is no reason to wake
/// them. But it has to be missed before their grace is over, by the other one, which looks for it each `WATCH`.
const STOPPED: Duration = Duration::from_millis(8);
const _: () = assert!(STOPPED.as_nanos() + WATCH.as_nanos() <= GRACE.as_nanos());
/// A lookout gets up at most so much later than the other one, to look for it; or a tick, if that is longer. (If it is
/// much longer, the threads' own grace is over before that.) Longer than `KEPT`, so that it need not look twice.
const WATCH: Duration = Duration::from_millis(2);
const _: () = assert!(KEPT.as_nanos() < WATCH.as_nanos());
/// The worker whose thread says when there are to be lookouts.
const FIRST: usize = 0;
/// The lookout resigns if callbacks take so long, or if it gets up so late on average: others may have cores that are
/// less busy.
const LATE: Duration = Duration::from_millis(2);
/// It also resigns if it has more than so many hints to look at, on average, each time that it gets up: with that many,
/// a thread for each shard saves little and is later.
const MOST_PER_SHARD: usize = 256;
const MOST: usize = 1536;
/// What a shard counts for that it gives back: a lookout that gives half of them back each time resigns.
const GIVEN_BACK: usize = 512;
/// There are lookouts again when the first worker's thread has had so many calm turns in a row, each with little enough
/// to do, and soon after the one before. The number doubles, up to the greatest, if a lookout resigns before it has had
/// `PROVEN` turns.
const CALM: u32 = 32;
const CALM_MAX: u32 = 8192;
const PROVEN: u32 = 64;
/// The weight of what there was before, in means over the lookout's turns; that of the latest turn is 1.
const PAST: u32 = 7;
/// It also resigns if there is something to do less often than this, on average (or two ticks, if that is longer): then
/// the two, which look for each other, cost about as many wake-ups as they save. And it ends its duty after so many
/// turns in a row without anything to do.
const SPARSE: Duration = Duration::from_millis(4);
const IDLE_MAX: u32 = 16;
/// And it resigns if the other one has been off duty for so long (or two ticks, if that is longer): nobody watches it.
const ALONE_MAX: Duration = Duration::from_millis(4);
/// After a third of a tick, within these bounds, the lookout leaves the shards that are still due to their own threads.
const ROUND_MIN: Duration = Duration::from_micros(100);
const ROUND_MAX: Duration = Duration::from_micros(300);
/// What has to be seen to so soon, and within an eighth of a tick, is seen to at once. Mostly these are batches that
/// may need help shortly after the next tick; as a rule they have been run by then, and need not be looked at again.
const SOON: Duration = Duration::from_micros(100);
/// If a worker goes on so often in a row, that is too much for the lookout.
const TRIES: u32 = 8;
/// How long the lookout sleeps while the thread of a shard that is due is about to see to it, or to rely on the
/// lookout.
const NAP: Duration = Duration::from_micros(20);
/// Until then a thread sleeps that waits for nothing but a call.
const NEVER: Nanos = Nanos(u64::MAX);

/// Locked by the thread that acts as the worker: the worker's own, or the lookout. Callers have no part in this. Empty
/// once the worker's thread has ended.
type Berth<K, V> = Mutex<Option<Worker<K, V>>>;

pub(crate) struct Crew<K: Eq + Send + Sync + 'static, V: Send + 'static> {
    core: Arc<Core<K, V>>,
    /// By shard.
    workers: Box<[Berth<K, V>]>,
    /// `None` if there is but one shard; or if workers run user code, behind which other shards would wait.
    lookouts: Option<Lookouts>,
    /// The callbacks that the lookouts' threads run, and what these sleep on.
    lane: Arc<Lane>,
    /// There are lookouts, or they are to get up.
    is_wanted: AtomicBool,
    /// How many calm turns it takes until there are some.
    calm: AtomicU32,
}

/// What becomes of a worker that has acted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Then {
    /// It rests until then, or until it is notified.
    Rests(Nanos),
    /// It has more to do.
    GoesOn,
    /// The same, but nothing urgent. A caller that needs this core must not wait for milliseconds.
    Yields,
    /// The executor has its hands full, and nothing notifies the worker when that ends.
    Pauses,
}

/// What a lookout's thread keeps.
struct Duty {
    /// Which lookout it is.
    number: usize,
    is_on: bool,
    /// For how many turns it has been on.
    turns: u32,
    /// Turns in a row without anything to do, then or soon.
    idle: u32,
    /// Since when the other one is off duty.
    alone_since: Option<Nanos>,
    /// Hints looked at in this turn.
    looks: usize,
    /// The mean number of these, times `PAST + 1`.
    load: usize,
    /// The mean time from a turn until there was something to do, times `PAST + 1`.
    gap: Duration,
    /// How late it got up, on average, times `PAST + 1`.
    lateness: Duration,
}

/// One round of the lookout.
struct Round {
    /// What is due by then is seen to.
    due_by: Nanos,
    /// From then on it is left to others.
    ends: Nanos,
    /// It runs the callbacks, too.
    gathers: bool,
}

impl Duty {
    fn new(number: usize, is_on: bool) -> Self {
        Self {
            number,
            is_on,
            turns: 0,
            idle: 0,
            alone_since: None,
            looks: 0,
            load: 0,
            gap: Duration::ZERO,
            lateness: Duration::ZERO,
        }
    }
}

impl<K: Eq + Send + Sync + 'static, V: Send + 'static> Crew<K, V> {
    /// One worker per shard, in order. `may_share`: workers run no user code.
    pub(crate) fn new(core: Arc<Core<K, V>>, workers: Vec<Worker<K, V>>, may_share: bool, lane: Arc<Lane>) -> Self {
        let tick = core.clock.tick_length();
        let [soon, watch, tick, kept, stopped] = [soon(tick), watch(tick), tick, KEPT, STOPPED].map(saturating_nanos);
        let times = Times { tick, soon, watch, kept, stopped };
        let lookouts = (may_share && workers.len() > 1).then(|| Lookouts::new(workers.len(), times));
        let workers = workers.into_iter().map(Some).map(Mutex::new).collect();
        let (is_wanted, calm) = (AtomicBool::new(false), AtomicU32::new(CALM));
        Self { core, workers, lookouts, lane, is_wanted, calm }
    }

    pub(crate) fn report(&self, number: usize) -> &ShardReport {
        &self.core.reports[number]
    }

    /// How many threads have to [`look_out`](Self::look_out).
    pub(crate) fn lookout_count(&self) -> usize {
        if self.lookouts.is_some() { LOOKOUTS } else { 0 }
    }

    /// The life of a worker's thread.
    pub(crate) fn live(&self, number: usize) {
        let core = &*self.core;
        let mut calm = 0;
        // The ticket that it has slept with.
        let mut slept_with = None;
        loop {
            let ticket = core.shards[number].alarm.ticket();
            if core.is_closed() {
                *lock(&self.workers[number]) = None;
                // The lookouts end, too.
                return self.call_lookouts();
            }
            let until = self.turn(number, &mut calm, slept_with == Some(ticket));
            slept_with = until.map(|_| ticket);
            if let Some(until) = until {
                core.shards[number].alarm.sleep(ticket, Some(until.since(core.clock.now())));
                self.count_wake_up(number);
            }
        }
    }

    fn call_lookouts(&self) {
        (0..LOOKOUTS).for_each(|number| self.lane.call(number));
    }

    /// The life of a lookout's thread.
    pub(crate) fn look_out(&self, number: usize) {
        let Some(lookouts) = &self.lookouts else { return };
        let core = &*self.core;
        let (mut duty, mut slept_until) = (Duty::new(number, false), None);
        loop {
            let ticket = self.lane.ticket(number);
            if core.is_closed() {
                // What workers leave there later, they take back.
                return self.lane.run(|| true);
            }
            slept_until = self.turn_of_lookout(lookouts, &mut duty, slept_until);
            if let Some(until) = slept_until {
                self.lane.wait(number, ticket, (until != NEVER).then(|| until.since(core.clock.now())));
                if duty.is_on {
                    self.count_wake_up(0);
                }
            }
        }
    }

    fn count_wake_up(&self, number: usize) {
        // Relaxed: a count.
        self.report(number).wake_ups.fetch_add(1, Relaxed);
    }

    /// What a worker's thread does that is up; `in_vain`: it has slept, and nobody has called it. Returns until when it
    /// may sleep, if it may.
    fn turn(&self, number: usize, calm: &mut u32, in_vain: bool) -> Option<Nanos> {
        match &self.lookouts {
            None => {
                let (then, _) = self.act_counted(own(&mut lock(&self.workers[number])), Leaves::Crowded);
                self.go_on(number, then)
            }
            Some(lookouts) => {
                let (until, looks) = self.turn_beside(lookouts, number, in_vain);
                if number == FIRST {
                    self.count_calm(calm, looks, until);
                }
                until
            }
        }
    }

    /// The turn of a thread that may rely on the lookout. Returns until when it may sleep, if it may, and how many
    /// hints it has looked at.
    fn turn_beside(&self, lookouts: &Lookouts, number: usize, in_vain: bool) -> (Option<Nanos>, usize) {
        if in_vain && let Some(until) = self.still_relies(lookouts, number) {
            return (Some(until), 0);
        }
        lookouts.get_up(number);
        self.look_for(lookouts, number);
        let mut worker = lock(&self.workers[number]);
        // Again: the lookout may have been acting as the worker.
        lookouts.get_up(number);
        let (mut then, looks) = self.act_counted(own(&mut worker), Leaves::Crowded);
        if let Then::Rests(due) = &mut then {
            // While the worker is locked: otherwise the lookout might act as the worker first and find an earlier
            // deadline, and then we would say that the worker is due at a later one.
            *due = self.rely(lookouts, number, *due);
        }
        drop(worker);
        (self.go_on(number, then), looks)
    }

    /// For the worker's own thread, with the worker unlocked: until when it may sleep, if it may.
    fn go_on(&self, number: usize, then: Then) -> Option<Nanos> {
        match then {
            Then::Rests(due) => return Some(due),
            Then::GoesOn => {}
            Then::Yields => {
                self.core.growth.help(number, &self.core.shards[number]);
                std::thread::yield_now();
            }
            Then::Pauses => {
                std::thread::sleep(self.core.clock.tick_length().clamp(BACKLOG_PAUSE_MIN, BACKLOG_PAUSE_MAX));
            }
        }
        None
    }

    /// Takes a worker's steps once; returns what becomes of it then, and how many hints were looked at.
    fn act_counted(&self, worker: &mut Worker<K, V>, leaves: Leaves) -> (Then, usize) {
        let before = worker.looks();
        worker.leave(leaves);
        let then = self.act(worker);
        (then, worker.looks().wrapping_sub(before))
    }

    fn act(&self, worker: &mut Worker<K, V>) -> Then {
        let core = &*self.core;
        // Callers need not wake it while it acts.
        worker.shard().alarm.get_up();
        let now = core.clock.tick_at(worker.read_clock());
        let left = worker.step(now);
        if core.growth.is_due(worker.index(), worker.shard()) {
            core.growth.event.notify();
        }
        if worker.is_backlogged() {
            return Then::Pauses;
        }
        match left {
            Left::Nothing if core.growth.wants_help(worker.index(), worker.shard()) => Then::Yields,
            Left::Nothing => self.lie_down(worker),
            Left::Upkeep => Then::Yields,
            Left::Due => Then::GoesOn,
        }
    }

    /// The worker rests until its next deadline, or until a caller brings an earlier one. See `shard/alarm.rs` for why
    /// no wake-up is lost between the last look and the sleep.
    fn lie_down(&self, worker: &mut Worker<K, V>) -> Then {
        let core = &*self.core;
        let now = core.clock.tick_at(worker.read_clock());
        let next = worker.next_deadline(now, NO_LIMIT, REVIEW_MAX);
        let until = worker.sleep_limit(next, now);
        let now = worker.read_clock();
        let timeout = core.clock.until(Some(until), now);
        // By then, a batch that is too much for one thread needs help.
        let timeout = worker.patience_left().map_or(timeout, |left| timeout.min(left));
        let shard = worker.shard();
        // Callers wake a sleeping worker once most hints are stale. They may have become so since the worker's last
        // step. (No fence orders this: if the look misses it, the hints take memory until the worker wakes up, no
        // more.)
        let is_called = || worker.has_mail() || shard.has_stale_hints() || core.is_closed();
        let rests = !timeout.is_zero() && shard.alarm.lie_down(Some(until), is_called);
        if rests { Then::Rests(now.plus(timeout)) } else { Then::GoesOn }
    }

    /// For a thread whose worker rests until `due`: until when the thread may sleep.
    fn rely(&self, lookouts: &Lookouts, number: usize, due: Nanos) -> Nanos {
        let is_near = due <= self.core.clock.now().plus(NEAR);
        let relies = is_near && lookouts.rely(number, due.0, || self.core.clock.now().0);
        if relies { due.plus(grace(number, self.core.clock.tick_length())) } else { due }
    }

    /// For a thread that has slept without being called: until when it may sleep on, if the lookout is there and has
    /// seen to its shard. (Mostly so; and then the thread touches nothing else.)
    ///
    /// It is called, and then takes its worker back, for whatever the lookout will not see to. So what is read here
    /// need not be up to date.
    fn still_relies(&self, lookouts: &Lookouts, number: usize) -> Option<Nanos> {
        let now = self.core.clock.now();
        let is_near = |due: &Nanos| *due > now && *due <= now.plus(NEAR);
        let due = lookouts.due(number).map(Nanos).filter(is_near)?;
        lookouts.is_there(now.0).then(|| due.plus(grace(number, self.core.clock.tick_length())))
    }

    /// For a thread that has got up: if the lookout has not, wakes those that rely on it.
    fn look_for(&self, lookouts: &Lookouts, number: usize) {
        let dismisses = self.dismiss_missing(lookouts);
        // Another thread may have dismissed it, or it may have resigned, and been stopped before all were woken.
        if number == FIRST && !dismisses && !lookouts.is_there(0) {
            lookouts.each_relying(|number| self.core.shards[number].alarm.interrupt());
        }
    }

    /// Wakes the threads that rely on a lookout that should have got up, if there is such a one. True if there is.
    fn dismiss_missing(&self, lookouts: &Lookouts) -> bool {
        let wake = |number: usize| self.core.shards[number].alarm.interrupt();
        lookouts.dismiss(|| self.core.clock.now().0, wake)
    }

    /// For the first worker's thread, which has looked at so many hints and may sleep until then, if it may: while
    /// there is no lookout, counts its calm turns. After enough of them, there are to be some.
    fn count_calm(&self, calm: &mut u32, looks: usize, until: Option<Nanos>) {
        let shard_count = self.workers.len();
        // If each shard has something to do so often. (What is further off than `NEAR` is not left to lookouts.)
        let soon = self.core.clock.now().plus(NEAR.min(self.at_least_two_ticks(SPARSE) * shard_count as u32));
        let is_not_calm = looks * shard_count > self.most() / 4 * 3 || until.is_some_and(|until| until > soon);
        // Relaxed, here and below: numbers, and a flag that the announcement publishes. (Not `is_there`: a lookout that
        // was dismissed may be back at any time.)
        if is_not_calm || self.is_wanted.load(Relaxed) {
            *calm = 0;
        } else if until.is_some() {
            *calm += 1;
        }
        if *calm >= self.calm.load(Relaxed) {
            *calm = 0;
            self.is_wanted.store(true, Relaxed);
            self.call_lookouts();
        }
    }

    /// What the lookout's thread does that is up; from a sleep until then, if it has slept. Returns until when it may
    /// sleep, if it may.
    fn turn_of_lookout(&self, lookouts: &Lookouts, duty: &mut Duty, slept_until: Option<Nanos>) -> Option<Nanos> {
        // Relaxed: published by the announcement. A lookout that learns late that the other one has resigned goes on
        // meanwhile.
        let is_wanted = self.is_wanted.load(Relaxed);
        let slept_until = slept_until.filter(|_| duty.is_on);
        if is_wanted && !duty.is_on {
            *duty = Duty::new(duty.number, true);
        } else if duty.is_on && !is_wanted {
            self.leave(lookouts, duty);
        }
        if !duty.is_on {
            return Some(self.off_duty(lookouts, duty.number));
        }
        duty.turns = duty.turns.saturating_add(1);
        let is_late = slept_until.is_some_and(|until| self.is_late(duty, until));
        self.resign_if(lookouts, duty, is_late);
        // Otherwise, who relied on it has been told.
        if duty.is_on {
            self.see_to_all(lookouts, duty);
        }
        let next = Nanos(lookouts.next());
        self.resign_if(lookouts, duty, self.is_past(next, STOPPED));
        let until = self.rests_until(lookouts, duty, next);
        if !duty.is_on {
            return None;
        }
        let now = self.core.clock.now();
        let until = lookouts.lie_down(duty.number, until.0, now.0)?;
        // What a worker has left in the lane meanwhile, the other one may have passed by, if that is up.
        let is_done = until > now.0 && !self.lane.is_waited_for();
        Some(if is_done { Nanos(until) } else { now.plus(NAP) })
    }

    /// For a lookout that is off duty: until when it may sleep.
    fn off_duty(&self, lookouts: &Lookouts, number: usize) -> Nanos {
        // The other one goes on until it learns of it. It may run callbacks, and rely on this one.
        if let Some(until) = lookouts.watches_until(number, self.core.clock.now().0) {
            self.dismiss_missing(lookouts);
            return Nanos(until).max(self.core.clock.now().plus(NAP));
        }
        // What workers have left there by themselves.
        self.lane.run(|| true);
        NEVER
    }

    /// Until when the lookout rests if the next shard has to be seen to then. Ends its duty if it has too little to do.
    fn rests_until(&self, lookouts: &Lookouts, duty: &mut Duty, next: Nanos) -> Nanos {
        let (now, tick) = (self.core.clock.now(), self.core.clock.tick_length());
        let is_near = next <= now.plus(NEAR.max(2 * tick));
        duty.idle = if is_near { 0 } else { duty.idle + 1 };
        // If nobody relies on it yet, somebody may do so soon.
        let until = if is_near { next } else { now.plus(tick) };
        duty.gap = duty.gap * PAST / (PAST + 1) + until.since(now);
        self.resign_if(lookouts, duty, duty.gap > self.at_least_two_ticks(SPARSE) * (PAST + 1));
        if duty.is_on && duty.idle > IDLE_MAX {
            self.end_duty(lookouts, duty, CALM);
        }
        until
    }

    /// For a lookout that has slept until then. True if it is very late, or late again and again.
    fn is_late(&self, duty: &mut Duty, slept_until: Nanos) -> bool {
        let late = self.core.clock.now().since(slept_until);
        duty.lateness = duty.lateness * PAST / (PAST + 1) + late;
        late > STOPPED || duty.lateness > LATE * (PAST + 1)
    }

    fn is_past(&self, time: Nanos, by: Duration) -> bool {
        self.core.clock.now() > time.plus(by)
    }

    fn at_least_two_ticks(&self, time: Duration) -> Duration {
        time.max(2 * self.core.clock.tick_length())
    }

    /// The most hints that the lookout looks at each time that it gets up, on average.
    fn most(&self) -> usize {
        MOST.max(MOST_PER_SHARD * self.workers.len())
    }

    fn resign_if(&self, lookouts: &Lookouts, duty: &mut Duty, has_reason: bool) {
        if duty.is_on && has_reason {
            self.resign(lookouts, duty);
        }
    }

    fn resign(&self, lookouts: &Lookouts, duty: &mut Duty) {
        // Relaxed: a number.
        let doubled = CALM_MAX.min(2 * self.calm.load(Relaxed));
        self.end_duty(lookouts, duty, if duty.turns < PROVEN { doubled } else { CALM });
    }

    /// `calm`: how many calm turns it takes until there is a lookout again.
    fn end_duty(&self, lookouts: &Lookouts, duty: &mut Duty, calm: u32) {
        // Relaxed: numbers. What makes both resign counts once.
        if self.is_wanted.swap(false, Relaxed) {
            self.calm.store(calm, Relaxed);
        }
        self.leave(lookouts, duty);
        // It has to resign as well, before either may serve workers that leave something in the lane by themselves.
        self.lane.call(other(duty.number));
    }

    fn leave(&self, lookouts: &Lookouts, duty: &mut Duty) {
        duty.is_on = false;
        lookouts.resign(duty.number, |number| self.core.shards[number].alarm.interrupt());
    }

    /// Sees to the shards that are due and whose threads rely on the lookout, and runs callbacks. Resigns if there is
    /// too much to do, or if the other one does not come.
    fn see_to_all(&self, lookouts: &Lookouts, duty: &mut Duty) {
        let round = self.round(self.is_watched(lookouts, duty.number));
        if self.dismiss_missing(lookouts) {
            // Most likely a slow callback keeps it.
            return self.resign(lookouts, duty);
        }
        if self.is_alone_for_long(lookouts, duty) {
            return self.resign(lookouts, duty);
        }
        for number in lookouts.due_by(round.due_by.0) {
            if !self.see_to(lookouts, number, &round, duty) {
                self.core.shards[number].alarm.interrupt();
                duty.looks += GIVEN_BACK;
            }
        }
        if round.gathers {
            if self.run_callbacks() {
                self.resign(lookouts, duty);
            } else {
                (0..self.workers.len()).for_each(|number| self.put_off(lookouts, number));
            }
        }
        duty.load = duty.load * PAST as usize / (PAST as usize + 1) + duty.looks;
        duty.looks = 0;
        self.resign_if(lookouts, duty, duty.load > self.most() * (PAST as usize + 1));
    }

    /// For a lookout that has run the callbacks: a shard was to be seen to before its next deadline if what it has
    /// handed over might need help. As a rule that is over now, and nobody need get up for it.
    fn put_off(&self, lookouts: &Lookouts, number: usize) {
        // The alarm knows the next deadline of a worker that rests.
        let deadline = || self.core.clock.start_of(self.core.shards[number].alarm.asleep_until()).0;
        let is_hurried = || lookouts.due(number).is_some_and(|due| due < deadline());
        // Once more with the worker locked, for then both are of the same rest. (Its thread may have got up meanwhile.
        // That says so once more when it has the worker.)
        if is_hurried()
            && let Ok(mut worker) = self.workers[number].try_lock()
            && worker.as_mut().is_some_and(|worker| worker.patience_left().is_none())
            && is_hurried()
        {
            lookouts.saw_to(number, deadline());
        }
    }

    fn is_alone_for_long(&self, lookouts: &Lookouts, duty: &mut Duty) -> bool {
        let now = self.core.clock.now();
        let is_alone = lookouts.watches_until(duty.number, now.0).is_none();
        duty.alone_since = is_alone.then(|| duty.alone_since.unwrap_or(now));
        duty.alone_since.is_some_and(|since| now.since(since) > self.at_least_two_ticks(ALONE_MAX))
    }

    /// For a lookout that is up: true if the other one gets up soon enough to look for this one, which then may run
    /// callbacks.
    fn is_watched(&self, lookouts: &Lookouts, number: usize) -> bool {
        let watched = lookouts.stay_up(number, || self.core.clock.now().0);
        if watched == Watched::IfCalled {
            self.lane.call(other(number));
        }
        watched != Watched::No
    }

    fn round(&self, gathers: bool) -> Round {
        let (now, tick) = (self.core.clock.now(), self.core.clock.tick_length());
        Round { due_by: now.plus(soon(tick)), ends: now.plus((tick / 3).clamp(ROUND_MIN, ROUND_MAX)), gathers }
    }

    /// On duty: runs the callbacks in the lane. True if they took long; then some may be left.
    fn run_callbacks(&self) -> bool {
        if !self.lane.has_any() {
            return false;
        }
        let begun = self.core.clock.now();
        let is_late = || self.is_past(begun, LATE);
        self.lane.run(|| !is_late());
        is_late()
    }

    /// Sees to a shard. False if that shard's own thread has to get up.
    fn see_to(&self, lookouts: &Lookouts, number: usize, round: &Round, duty: &mut Duty) -> bool {
        let mut worker = match self.workers[number].try_lock() {
            Ok(worker) => worker,
            Err(TryLockError::Poisoned(worker)) => worker.into_inner(),
            // Its thread has just got up, or is about to rely on us.
            Err(TryLockError::WouldBlock) => return true,
        };
        // Its thread may have been up meanwhile; or has ended.
        let Some(worker) = worker.as_mut().filter(|_| lookouts.is_due(number, round.due_by.0)) else { return true };
        for _ in 0..TRIES {
            if self.core.clock.now() > round.ends {
                break;
            }
            let (then, looks) = self.act_counted(worker, if round.gathers { Leaves::All } else { Leaves::None });
            duty.looks += looks;
            duty.idle = 0;
            match then {
                Then::Rests(due) => {
                    lookouts.saw_to(number, due.0);
                    return true;
                }
                Then::GoesOn => {}
                Then::Yields | Then::Pauses => break,
            }
        }
        lookouts.get_up(number);
        false
    }
}

/// What is due so soon is seen to at once.
fn soon(tick: Duration) -> Duration {
    SOON.min(tick / 8)
}

/// How much later than the other lookout one gets up at most: some ticks, since there is something to do at each as a
/// rule.
fn watch(tick: Duration) -> Duration {
    WATCH.as_nanos().div_ceil(tick.as_nanos()) as u32 * tick
}

/// How much longer than necessary the thread of a shard sleeps if it relies on the lookout. As a rule the shard is due
/// at a tick. So the thread gets up between two ticks: at a tick it would get up together with the lookout, which has
/// not seen to the shard yet. (Ticks that are longer than `GRACE` are few.)
fn grace(number: usize, tick: Duration) -> Duration {
    let least = GRACE_MAX.min(GRACE * (number as u32 + 1));
    if tick > GRACE { least } else { least.as_nanos().div_ceil(tick.as_nanos()) as u32 * tick + tick / 2 }
}

fn own<K: Eq + Send + Sync + 'static, V: Send + 'static>(worker: &mut Option<Worker<K, V>>) -> &mut Worker<K, V> {
    worker.as_mut().expect("its thread takes it out when it ends, and this is its thread")
}

fn lock<T>(place: &Mutex<T>) -> MutexGuard<'_, T> {
    place.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
