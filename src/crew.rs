//! The workers' threads: what they do while they are awake, and which of them gets up for whom.
//!
//! Each shard's worker has a thread of its own, pinned if possible. But to wake a thread takes longer than to fire a
//! few dozen timers. So while there is something to do often, and one thread can do it all, the first of these threads
//! is the lookout (`lookout.rs`): it gets up for all shards, takes their workers' steps one after the other, and then
//! wakes one thread for all callbacks (if the pool is our own). The other threads sleep on. They get up if a caller
//! wakes them; if the lookout finds that there is too much to do; and now and then, in case that it is not there.

use crate::clock::Nanos;
use crate::lane::Lane;
use crate::lookout::Lookout;
use crate::service::{Core, ShardReport};
use crate::worker::{Left, NO_LIMIT, Worker};
use std::mem;
use std::sync::atomic::Ordering::Relaxed;
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
/// The lookout may be stopped. So the thread of shard 1 gets up this long after its shard was to be seen to, that of
/// shard 2 after twice as long, and so on up to `GRACE_MAX`: mostly in vain, and then it sleeps on. If the lookout
/// should have got up `MISSING` ago or earlier, the thread wakes those whose shards are due by now, and none relies on
/// it.
const GRACE: Duration = Duration::from_millis(10);
const GRACE_MAX: Duration = Duration::from_millis(100);
const MISSING: Duration = Duration::from_millis(5);
/// The lookout resigns if it gets up so late: it has to share its core, or was stopped.
const LATE: Duration = Duration::from_millis(2);
/// It also resigns if it has more than twice as many hints to look at, for each shard that there is, on average, each
/// time that it gets up: with that many, a thread for each shard saves little and is later. It begins again after
/// `Duty::calm` turns in a row, each in time, in which its own shard has had no more than this many.
const LIGHT: usize = 128;
/// What a shard counts for that it gives back: a lookout that gives half of them back each time resigns.
const GIVEN_BACK: usize = 4 * LIGHT;
/// The first and the greatest number of such turns. It doubles if the lookout resigns before it has had `PROVEN` turns.
const CALM: u32 = 32;
const CALM_MAX: u32 = 8192;
const PROVEN: u32 = 256;
/// The weight of what there was before, in the mean number of hints; that of the latest number is 1.
const PAST: usize = 7;
/// After a third of a tick, within these bounds, the lookout leaves the shards that are still due to their own threads.
const ROUND_MIN: Duration = Duration::from_micros(100);
const ROUND_MAX: Duration = Duration::from_micros(300);
/// What has to be seen to so soon, and within an eighth of a tick, is seen to at once. Mostly these are batches that
/// may need help shortly after the next tick; as a rule they have been run by then, and need not be looked at again.
const SOON: Duration = Duration::from_micros(100);
/// If another worker goes on so often in a row, that is too much for the lookout.
const TRIES: u32 = 8;
/// How long the lookout sleeps while the thread of a shard that is due is about to see to it, or to rely on the
/// lookout.
const NAP: Duration = Duration::from_micros(20);

/// Locked by the thread that acts as the worker: the worker's own, or the lookout. Callers have no part in this. Empty
/// once the worker's thread has ended.
type Berth<K, V> = Mutex<Option<Worker<K, V>>>;

pub(crate) struct Crew<K: Eq + Send + Sync + 'static, V: Send + 'static> {
    core: Arc<Core<K, V>>,
    /// By shard.
    workers: Box<[Berth<K, V>]>,
    /// `None` if there is but one shard; or if workers run user code, behind which other shards would wait.
    lookout: Option<Lookout>,
    /// For the callbacks of all shards, if the pool is our own.
    lane: Option<Arc<Lane>>,
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

/// A thread's last sleep, from which it has just got up.
struct Slept {
    /// Until then, at most.
    until: Nanos,
    /// It was notified meanwhile.
    is_called: bool,
}

/// What the thread that may be the lookout keeps.
struct Duty {
    is_on: bool,
    /// While on duty, for how many turns it has been; while off, how many turns in a row were calm.
    turns: u32,
    /// How many calm turns it takes to be on again.
    calm: u32,
    /// Hints looked at since its own worker last rested, but for that worker's upkeep.
    looks: usize,
    /// The mean number of these, times `PAST + 1`.
    load: usize,
}

/// One round of the lookout.
struct Round {
    /// What is due by then is seen to.
    due_by: Nanos,
    /// From then on it is left to others.
    ends: Nanos,
}

impl Duty {
    fn new(is_on: bool) -> Self {
        Self { is_on, turns: 0, calm: CALM, looks: 0, load: 0 }
    }

    fn begin(&mut self) {
        *self = Self { calm: self.calm, ..Self::new(true) };
    }

    fn end(&mut self) {
        let calm = if self.turns < PROVEN { CALM_MAX.min(2 * self.calm) } else { CALM };
        *self = Self { calm, ..Self::new(false) };
    }

    fn load_with_looks(&self) -> usize {
        self.load * PAST / (PAST + 1) + self.looks
    }
}

impl<K: Eq + Send + Sync + 'static, V: Send + 'static> Crew<K, V> {
    /// One worker per shard, in order. `may_share`: workers run no user code.
    pub(crate) fn new(
        core: Arc<Core<K, V>>,
        workers: Vec<Worker<K, V>>,
        may_share: bool,
        lane: Option<Arc<Lane>>,
    ) -> Self {
        let lookout = (may_share && workers.len() > 1).then(|| Lookout::new(workers.len()));
        Self { core, workers: workers.into_iter().map(Some).map(Mutex::new).collect(), lookout, lane }
    }

    pub(crate) fn report(&self, number: usize) -> &ShardReport {
        &self.core.reports[number]
    }

    /// The life of a worker's thread.
    pub(crate) fn live(&self, number: usize) {
        let core = &*self.core;
        let mut duty = Duty::new(number == 0 && self.lookout.is_some());
        // With which ticket it has slept, and until when.
        let mut sleep: Option<(u32, Nanos)> = None;
        loop {
            let ticket = core.shards[number].alarm.ticket();
            if core.is_closed() {
                *lock(&self.workers[number]) = None;
                return;
            }
            let slept = sleep.map(|(before, until)| Slept { until, is_called: ticket != before });
            sleep = self.turn(number, &mut duty, slept).map(|until| (ticket, until));
            if let Some((_, until)) = sleep {
                core.shards[number].alarm.sleep(ticket, Some(until.since(core.clock.now())));
                // Relaxed, a load and a store: only this thread writes the figure.
                let wake_ups = &self.report(number).wake_ups;
                wake_ups.store(wake_ups.load(Relaxed) + 1, Relaxed);
            }
        }
    }

    /// What a thread does that is up, perhaps from a sleep. Returns until when it may sleep, if it may.
    fn turn(&self, number: usize, duty: &mut Duty, slept: Option<Slept>) -> Option<Nanos> {
        match &self.lookout {
            None => {
                let then = self.act_alone(own(&mut lock(&self.workers[number])));
                self.go_on(number, then)
            }
            Some(lookout) if number == 0 => self.turn_on_duty(lookout, duty, slept),
            Some(lookout) => self.turn_of_others(lookout, number, slept),
        }
    }

    /// The turn of a thread that may rely on the lookout.
    fn turn_of_others(&self, lookout: &Lookout, number: usize, slept: Option<Slept>) -> Option<Nanos> {
        if slept.is_some_and(|slept| !slept.is_called)
            && let Some(until) = self.still_relies(lookout, number)
        {
            return Some(until);
        }
        lookout.get_up(number);
        self.look_for(lookout);
        let mut worker = lock(&self.workers[number]);
        // Again: the lookout may have been acting as the worker.
        lookout.get_up(number);
        let mut then = self.act_alone(own(&mut worker));
        if let Then::Rests(due) = &mut then {
            // While the worker is locked: otherwise the lookout might act as the worker first and find an earlier
            // deadline, and then we would say that the worker is due at a later one.
            *due = self.rely(lookout, number, *due);
        }
        drop(worker);
        self.go_on(number, then)
    }

    /// The turn of the thread that may be the lookout.
    fn turn_on_duty(&self, lookout: &Lookout, duty: &mut Duty, slept: Option<Slept>) -> Option<Nanos> {
        if slept.is_some_and(|slept| self.is_late(slept.until)) && !self.resign_if(lookout, duty, true) {
            duty.turns = 0;
        }
        let looks = duty.looks;
        let then = self.act_on_duty(own(&mut lock(&self.workers[0])), duty);
        match then {
            Then::Rests(due) => return self.look_out(lookout, duty, due),
            // What is not urgent holds up nobody.
            Then::Yields => duty.looks = looks,
            Then::GoesOn | Then::Pauses => {}
        }
        self.announce(duty);
        if duty.is_on && !self.resign_if(lookout, duty, then == Then::Pauses || self.is_late(Nanos(lookout.next()))) {
            // The others do not wait until its own worker comes to rest, nor miss it meanwhile.
            lookout.stay_up(self.core.clock.now().0);
            self.see_to_all(lookout, duty);
        }
        self.go_on(0, then)
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

    fn is_late(&self, until: Nanos) -> bool {
        self.core.clock.now() > until.plus(LATE)
    }

    /// Wakes the lane's thread for what was gathered.
    fn announce(&self, duty: &Duty) {
        self.lane.iter().filter(|_| duty.is_on).for_each(|lane| lane.announce());
    }

    /// Takes a worker's steps once; returns what becomes of it then.
    fn act_alone(&self, worker: &mut Worker<K, V>) -> Then {
        worker.gather(false);
        self.act(worker)
    }

    /// The same for the thread that may be the lookout, which calls `announce` afterwards.
    fn act_on_duty(&self, worker: &mut Worker<K, V>, duty: &mut Duty) -> Then {
        let before = worker.looks();
        worker.gather(duty.is_on);
        let then = self.act(worker);
        duty.looks += worker.looks().wrapping_sub(before);
        then
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
    fn rely(&self, lookout: &Lookout, number: usize, due: Nanos) -> Nanos {
        let now = self.core.clock.now();
        let relies = due <= now.plus(NEAR) && lookout.rely(number, due.0, now.minus(MISSING).0);
        if relies { due.plus(grace(number)) } else { due }
    }

    /// For a thread that has slept without being called: until when it may sleep on, if the lookout is there and has
    /// seen to its shard. (Mostly so; and then the thread touches nothing else.)
    ///
    /// It is called, and then takes its worker back, for whatever the lookout will not see to. So what is read here
    /// need not be up to date.
    fn still_relies(&self, lookout: &Lookout, number: usize) -> Option<Nanos> {
        let now = self.core.clock.now();
        let is_near = |due: &Nanos| *due > now && *due <= now.plus(NEAR);
        let due = lookout.due(number).map(Nanos).filter(is_near)?;
        lookout.is_there(now.minus(MISSING).0).then(|| due.plus(grace(number)))
    }

    /// For a thread that has got up: if the lookout has not, wakes those that rely on it and are due.
    fn look_for(&self, lookout: &Lookout) {
        let now = self.core.clock.now();
        if lookout.is_missing(now.minus(MISSING).0) {
            lookout.due_by(now.0).for_each(|number| self.core.shards[number].alarm.interrupt());
        }
    }

    /// For the first thread, whose worker rests until `due`: until when the thread may sleep, if it may.
    fn look_out(&self, lookout: &Lookout, duty: &mut Duty, due: Nanos) -> Option<Nanos> {
        if !duty.is_on {
            duty.turns = if mem::take(&mut duty.looks) <= LIGHT { duty.turns + 1 } else { 0 };
            if duty.turns < duty.calm {
                return Some(due);
            }
            duty.begin();
        }
        duty.turns = duty.turns.saturating_add(1);
        self.see_to_all(lookout, duty);
        duty.load = duty.load_with_looks();
        duty.looks = 0;
        let next = Nanos(lookout.next());
        let until = next.min(due);
        // It is late, too, if it was stopped since it got up.
        self.resign_if(lookout, duty, self.is_late(until));
        if !duty.is_on {
            return Some(due);
        }
        let now = self.core.clock.now();
        lookout.lie_down(until.0).then(|| if next > now { until } else { now.plus(NAP) })
    }

    fn resign_if(&self, lookout: &Lookout, duty: &mut Duty, has_reason: bool) -> bool {
        let resigns = duty.is_on && has_reason;
        if resigns {
            duty.end();
            lookout.resign(|number| self.core.shards[number].alarm.interrupt());
        }
        resigns
    }

    /// Sees to the shards that are due and whose threads rely on the lookout, and wakes a thread for the callbacks.
    /// Resigns if there is too much to do.
    fn see_to_all(&self, lookout: &Lookout, duty: &mut Duty) {
        let round = self.round();
        for number in lookout.due_by(round.due_by.0) {
            if !self.see_to(lookout, number, &round, duty) {
                // What was gathered must not wait until all are woken that have to get up.
                self.announce(duty);
                self.core.shards[number].alarm.interrupt();
                duty.looks += GIVEN_BACK;
            }
        }
        self.announce(duty);
        let most = 2 * LIGHT * self.workers.len();
        self.resign_if(lookout, duty, duty.load_with_looks() > most * (PAST + 1));
    }

    fn round(&self) -> Round {
        let (now, tick) = (self.core.clock.now(), self.core.clock.tick_length());
        Round { due_by: now.plus(SOON.min(tick / 8)), ends: now.plus((tick / 3).clamp(ROUND_MIN, ROUND_MAX)) }
    }

    /// Sees to a shard. False if that shard's own thread has to get up.
    fn see_to(&self, lookout: &Lookout, number: usize, round: &Round, duty: &mut Duty) -> bool {
        let mut worker = match self.workers[number].try_lock() {
            Ok(worker) => worker,
            Err(TryLockError::Poisoned(worker)) => worker.into_inner(),
            // Its thread has just got up, or is about to rely on us.
            Err(TryLockError::WouldBlock) => return true,
        };
        // Its thread may have been up meanwhile; or has ended.
        let Some(worker) = worker.as_mut().filter(|_| lookout.is_due(number, round.due_by.0)) else { return true };
        for _ in 0..TRIES {
            if self.core.clock.now() > round.ends {
                break;
            }
            match self.act_on_duty(worker, duty) {
                Then::Rests(due) => {
                    lookout.saw_to(number, due.0);
                    return true;
                }
                Then::GoesOn => {}
                Then::Yields | Then::Pauses => break,
            }
        }
        lookout.get_up(number);
        false
    }
}

/// How much longer than necessary the thread of a shard sleeps if it relies on the lookout.
fn grace(number: usize) -> Duration {
    GRACE_MAX.min(GRACE * number as u32)
}

fn own<K: Eq + Send + Sync + 'static, V: Send + 'static>(worker: &mut Option<Worker<K, V>>) -> &mut Worker<K, V> {
    worker.as_mut().expect("its thread takes it out when it ends, and this is its thread")
}

fn lock<T>(place: &Mutex<T>) -> MutexGuard<'_, T> {
    place.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
