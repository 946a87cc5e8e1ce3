//! The owner of one shard: it files hints in its wheel, looks at timers when their hints are due, and hands over what
//! has expired.
//!
//! The steps are the same on a thread (`crew.rs`) and on the manual clock (`manual.rs`). The worker runs user code in
//! two cases only: with `Executor::Inline` the callbacks, and with `Executor::Custom` the user's closure (and the
//! destructors of the jobs that it drops).

use crate::clock::Nanos;
use crate::counters::Event;
use crate::expired::IsDue;
use crate::fanout::{CallbackThreads, Leaves, Watch, hand_over};
use crate::service::Core;
use crate::shard::{Access, Claim, Consumer, HINT_TICK_BITS, HORIZON_TICKS, Hint, Look, Shard, Tick};
use crate::thread;
use crate::under_way::Phase;
use crate::wheel::slots::{Entry, Slots};
use std::mem;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

/// At most this many hints are taken out of the wheel, or moved within it, per step; then the mailbox and the clock get
/// their turn.
const STEP_MAX: usize = 1024;
/// Hints swept per step while most are stale; doubled after each round that was not enough.
const SWEEP_MAX: usize = 4096;
/// At most this many hints of the next large slot are filed ahead of time per step.
const PREPARE_MAX: usize = 2048;
/// So many hints of a place, or a sixteenth of them, are asked whether they are wanted. If none is, all of the place is
/// looked at, side by side.
const PROBED: usize = 8;
/// A search for the next deadline pauses after `review_max` times this many looks.
const REVIEW_PLACES: usize = 8;
/// At most this many hints are taken out of each stripe of the mailbox per step.
const DRAIN_MAX: usize = 4096;
/// A hint that reads as further ahead than the horizon plus this comes from a caller that stalled for very long: a hint
/// keeps 36 bits of its tick, and by now those read as a tick of the far future.
const STALL_TICKS: u64 = 1 << 20;
/// A hand that lags by this many ticks (two days at 10 us: the process was stopped) catches up in one step: the wheel
/// reads a hint as the tick nearest to its hand, so it would take the hints of new timers for overdue.
const LAG_MAX: u64 = HORIZON_TICKS;
/// While this many callbacks of the shard wait or run, no more timers expire: they stay pending, and can still be
/// cancelled.
const BACKLOG_MAX: u64 = 1 << 16;
/// Later than any tick: no limit for `next_deadline`.
pub(crate) const NO_LIMIT: Tick = Tick(u64::MAX);
/// A shard looks at the clock at least every 2^33 ticks (23 hours at 10 us), so that hints, which keep 36 bits of
/// their tick, are never read against a hand that is too far behind.
const SLEEP_TICKS_MAX: u64 = 1 << 33;

impl Entry for Hint {
    const MAY_BE_UNWANTED: bool = false;
    /// Read against a hand that lags by days, a hint may name a tick of the past. In a young scheduler that tick may
    /// even lie before tick 0: then the number has wrapped around.
    const REACH: u64 = 1 << (HINT_TICK_BITS - 1);

    fn tick(self, hand: u64) -> u64 {
        Hint::tick(self, Tick(hand)).0
    }
}

/// What a step has left to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Left {
    Nothing,
    /// Nothing is due, but stale hints remain to be swept, or hints of a large slot to be filed ahead of time.
    Upkeep,
    /// Timers may be due.
    Due,
}

pub(crate) struct Worker<K: Eq + Send + Sync + 'static, V: Send + 'static> {
    core: Arc<Core<K, V>>,
    index: usize,
    inbox: Consumer,
    wheel: Slots<Hint>,
    /// The latest time that the clock has shown.
    now: Nanos,
    /// The last reading of the clock, even if it went back.
    last_reading: Nanos,
    /// Hints that are due or being swept, until they are looked at.
    due: Vec<Hint>,
    /// Claimed timers, until they are handed over.
    claims: Vec<Claim>,
    /// Where this worker has entered `UnderWay`: from before it may claim timers until it hands them over.
    entered: Option<Phase>,
    /// Batches handed over that may need help.
    watch: Watch<K, V>,
    sweeping: bool,
    /// Hints swept per step.
    sweep_share: usize,
    /// Timers handed over so far.
    fired: usize,
    /// Hints looked at so far; wraps around.
    looks: usize,
}

impl<K: Eq + Send + Sync + 'static, V: Send + 'static> Worker<K, V> {
    /// What expires goes to the threads of `first` unless they are busy.
    pub(crate) fn new(core: Arc<Core<K, V>>, index: usize, first: Option<CallbackThreads>) -> Self {
        let inbox = core.shards[index].mailbox.consumer();
        let wheel = Slots::new(core.clock.first_tick().0);
        let due = Vec::with_capacity(STEP_MAX);
        Self {
            core,
            index,
            inbox,
            wheel,
            now: Nanos(0),
            last_reading: Nanos(0),
            due,
            claims: Vec::new(),
            entered: None,
            watch: Watch::new(first),
            sweeping: false,
            sweep_share: SWEEP_MAX,
            fired: 0,
            looks: 0,
        }
    }

    /// What the thread that takes this worker's steps leaves in the lane.
    pub(crate) fn leave(&mut self, leaves: Leaves) {
        self.watch.leaves = leaves;
    }

    pub(crate) fn index(&self) -> usize {
        self.index
    }

    pub(crate) fn shard(&self) -> &Shard<K, V> {
        &self.core.shards[self.index]
    }

    /// True if the mailbox holds a hint that the worker has not seen.
    pub(crate) fn has_mail(&self) -> bool {
        !self.shard().mailbox.is_drained(&self.inbox)
    }

    /// Reads the clock. A step back is counted, and otherwise ignored until the clock has caught up.
    pub(crate) fn read_clock(&mut self) -> Nanos {
        let now = self.core.clock.now();
        if now < self.last_reading {
            self.core.counters.add(&thread::ordinal(), Event::ClockRegressed, 1);
        }
        self.last_reading = now;
        self.now = self.now.max(now);
        self.now
    }

    /// Files what is in the mailbox and expires what is due at `now`, both up to a bound.
    pub(crate) fn step(&mut self, now: Tick) -> Left {
        self.watch.call_help(self.now);
        let core = Arc::clone(&self.core);
        let shard = &core.shards[self.index];
        shard.set_hand(now);
        let has_jumped = now.0.saturating_sub(self.wheel.hand()) >= LAG_MAX;
        self.drain(shard, now, has_jumped);
        let caught_up = !self.is_backlogged() && {
            let most = if has_jumped { usize::MAX } else { STEP_MAX };
            let due = &mut self.due;
            self.wheel.advance_bounded(now.0, most, |_, hint| due.push(hint))
        };
        self.look_at_due(shard, now);
        self.sweep(shard, now);
        let has_upkeep = self.sweeping || caught_up && !self.wheel.prepare(PREPARE_MAX, |_| true);
        shard.report_hints(self.wheel.len());
        self.core.reports[self.index].wheel_entries.store(self.wheel.len() as u64, Relaxed);
        self.hand_over();
        match (caught_up, has_upkeep) {
            (false, _) => Left::Due,
            (true, true) => Left::Upkeep,
            (true, false) => Left::Nothing,
        }
    }

    /// Files what is in the mailbox. After a jump without a bound: what is filed before the wheel moves on comes out as
    /// it does, and is looked at.
    fn drain(&mut self, shard: &Shard<K, V>, now: Tick, has_jumped: bool) {
        let ordinal = thread::ordinal();
        let access = Access::new(&ordinal);
        let limit = if has_jumped { usize::MAX } else { DRAIN_MAX };
        let (wheel, due) = (&mut self.wheel, &mut self.due);
        shard.mailbox.drain(&mut self.inbox, limit, &access.guard, |hint| file(wheel, due, hint, now));
    }

    /// True if the executor does not keep up. What is due stays pending meanwhile.
    pub(crate) fn is_backlogged(&self) -> bool {
        // A callback that runs right here waits for no other thread.
        !self.core.runs_inline && self.core.reports[self.index].unfinished.load(Relaxed) >= BACKLOG_MAX
    }

    fn look_at_due(&mut self, shard: &Shard<K, V>, now: Tick) {
        if self.due.is_empty() {
            return;
        }
        self.looks = self.looks.wrapping_add(self.due.len());
        self.enter();
        let (wheel, claims) = (&mut self.wheel, &mut self.claims);
        shard.visit_hints(&self.due, |hint| {
            if let Some(later) = look(shard, hint, now, claims) {
                wheel.insert(later);
            }
        });
        self.due.clear();
        // Gives memory back after a step that was larger than usual.
        self.due.shrink_to(SWEEP_MAX);
    }

    /// While most hints are stale, looks at some ahead of their time.
    fn sweep(&mut self, shard: &Shard<K, V>, now: Tick) {
        self.sweeping |= shard.has_stale_hints();
        if self.sweeping && !self.is_backlogged() {
            let due = &mut self.due;
            let round_completed = self.wheel.review_some(self.sweep_share, |hint| {
                due.push(hint);
                None
            });
            self.sweeping = !round_completed;
            // A timer that is moved nearer and back again, over and over, has many equal hints for its later tick. Each
            // of them would be filed again after a look, since each in turn matches the promise.
            self.due.sort_unstable();
            self.due.dedup();
            self.look_at_due(shard, now);
            shard.report_hints(self.wheel.len());
            if round_completed {
                // Equal hints that fell into different shares escaped this. They lie in one slot, so a larger share of
                // that slot finds them.
                let is_done = !shard.has_stale_hints();
                self.sweep_share = if is_done { SWEEP_MAX } else { self.sweep_share.saturating_mul(2) };
            }
        }
    }

    /// How long the worker may sleep before a batch that it has handed over may need help; `None`: as long as it likes.
    pub(crate) fn patience_left(&mut self) -> Option<Duration> {
        self.watch.patience_left(self.now)
    }

    /// Hints looked at so far; wraps around.
    pub(crate) fn looks(&self) -> usize {
        self.looks
    }

    /// Timers handed over so far.
    pub(crate) fn fired(&self) -> usize {
        self.fired
    }

    #[cfg(test)]
    pub(crate) fn check_invariants(&self) {
        self.wheel.check_invariants();
    }

    /// To be called before looking at anything that may be due.
    fn enter(&mut self) {
        let under_way = &self.core.under_way[self.index];
        self.entered.get_or_insert_with(|| under_way.enter());
    }

    fn hand_over(&mut self) {
        let Some(entered) = self.entered.take() else { return };
        if self.claims.is_empty() {
            return self.core.under_way[self.index].leave(entered);
        }
        self.fired += self.claims.len();
        // Somewhat more than this time: otherwise every other list would have to grow.
        let room = self.claims.len() + self.claims.len() / 4 + 4;
        let claims = mem::replace(&mut self.claims, Vec::with_capacity(room));
        hand_over(&self.core, self.index, claims, entered, IsDue::Yes, Some(&mut self.watch));
    }

    /// The next tick at which a timer is due, as far as the hints in the wheel say. If that is later than `limit`, some
    /// tick later than `limit`.
    ///
    /// Drops stale hints on the way, so that cancelled timers do not wake the worker; but does not look into a place
    /// with more than `review_max` hints, whose tick stands. After [`REVIEW_PLACES`] times `review_max` looks it
    /// returns `now`, and goes on at the next call: there may be something to do by then.
    pub(crate) fn next_deadline(&mut self, now: Tick, limit: Tick, review_max: usize) -> Option<Tick> {
        let core = Arc::clone(&self.core);
        let shard = &core.shards[self.index];
        let mut looks = 0;
        let next = loop {
            let Some(tick) = self.wheel.next_tick() else { break None };
            let is_wanted = |hint| shard.is_wanted(hint, now);
            if tick > limit.0 || self.wheel.probe(tick, review_max, PROBED, is_wanted) != Some(false) {
                break Some(Tick(tick));
            }
            if looks >= review_max.saturating_mul(REVIEW_PLACES) {
                break Some(now);
            }
            let due = &mut self.due;
            self.wheel.review(tick, |hint| {
                due.push(hint);
                None
            });
            looks += self.due.len();
            self.look_at_due(shard, now);
        };
        // A look may have claimed a timer: it has come due meanwhile, or was moved to an earlier deadline.
        self.hand_over();
        next
    }

    /// The tick at which a worker whose next deadline is `next` must wake up.
    pub(crate) fn sleep_limit(&self, next: Option<Tick>, now: Tick) -> Tick {
        let limit = now.0.saturating_add(SLEEP_TICKS_MAX).min(self.wheel.prepare_from());
        Tick(next.map_or(limit, |next| next.0.min(limit)))
    }
}

/// Puts a hint from the mailbox into the wheel, or among those to be looked at now.
fn file(wheel: &mut Slots<Hint>, due: &mut Vec<Hint>, hint: Hint, now: Tick) {
    if hint.tick(now).0 > now.0.saturating_add(HORIZON_TICKS + STALL_TICKS) {
        due.push(hint);
    } else {
        wheel.insert(hint);
    }
}

/// Looks at the timer behind a hint. Returns the hint to file instead if the timer is due later.
fn look<K, V>(shard: &Shard<K, V>, hint: Hint, now: Tick, claims: &mut Vec<Claim>) -> Option<Hint>
where
    K: Eq + Send + Sync + 'static,
    V: Send + 'static,
{
    match shard.look(hint, now) {
        Look::Expired(claim) => {
            claims.push(claim);
            None
        }
        Look::Later(hint) => Some(hint),
        Look::Nothing => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Scheduler;
    use crate::builder::{Builder, Parts};
    use crate::callback::Callback;
    use crate::clock::Clock;
    use crate::executor::Executor;
    use crate::shard::{Due, Repeats};
    use crate::wheel::slots::LEAD_PART;

    const TICK: Duration = Duration::from_millis(1);

    /// A worker and its scheduler, on a clock that the test sets.
    fn worker() -> (Scheduler<u64>, Worker<u64, ()>) {
        worker_from(TICK, Tick(0))
    }

    fn worker_from(tick: Duration, first: Tick) -> (Scheduler<u64>, Worker<u64, ()>) {
        let builder: Builder<u64, ()> = Scheduler::builder().shards(1).tick(tick);
        let callback = Callback::Plain(Box::new(|_, ()| {}));
        let Parts { core, runner, hasher, .. } =
            builder.into_parts(Clock::manual(tick, first), Executor::Inline, callback);
        let worker = Worker::new(Arc::clone(&core), 0, None);
        (Scheduler::new(core, runner, hasher, Vec::new()), worker)
    }

    /// Moves the clock, and has the worker read it.
    fn set_clock(worker: &mut Worker<u64, ()>, now: Tick) {
        let clock = &worker.core.clock;
        clock.set(clock.start_of(now));
        worker.read_clock();
    }

    /// Else hints that stay in the mailbox would be read against a hand that has moved on too far.
    #[test]
    fn after_a_jump_all_that_was_sent_before_is_taken_in() {
        let (scheduler, mut worker) = worker();
        let count = DRAIN_MAX as u64 + 900;
        (0..count).for_each(|key| assert!(scheduler.schedule(key, TICK).is_ok()));
        let now = Tick((1 << HINT_TICK_BITS) - (1 << (HINT_TICK_BITS - 3)));
        set_clock(&mut worker, now);
        while worker.step(now) != Left::Nothing {}
        assert_eq!((worker.fired() as u64, scheduler.len()), (count, 0));
    }

    /// The ticks at which a worker that sleeps whenever it may wakes up, until the first timer has fired. There are
    /// `count` timers, due from `first` on, evenly over `spread` ticks. Panics if a step leaves anything due: no step
    /// may have that much to do.
    fn wake_ups(first: u64, count: u64, spread: u64) -> Vec<u64> {
        let (scheduler, mut worker) = worker();
        for key in 0..count {
            let delay = TICK * (first + key * spread / count) as u32;
            scheduler.schedule(key, delay).expect("it is open and not full");
        }
        let (mut now, mut woken) = (Tick(0), Vec::new());
        while worker.fired() == 0 {
            set_clock(&mut worker, now);
            loop {
                match worker.step(now) {
                    Left::Due => panic!("much was left to do at {now:?}, after {woken:?}"),
                    Left::Upkeep => {}
                    Left::Nothing => break,
                }
            }
            let next = worker.next_deadline(now, NO_LIMIT, usize::MAX);
            now = worker.sleep_limit(next, now);
            woken.push(now.0);
        }
        woken.pop();
        woken
    }

    #[test]
    fn a_worker_wakes_up_to_file_many_hints_of_one_far_slot_ahead() {
        let (far, count) = (1 << 18, 2 * PREPARE_MAX as u64 + 1);
        let lead = far - (far - 1) / LEAD_PART;
        assert_eq!(wake_ups(far + 10, count, 100_000), [lead, far, far + 10]);
        // Here all of them are in one slot of the level below, too.
        let (first, lower) = (far + 50_000, far + 12 * 4096);
        let wake = wake_ups(first, count, 2000);
        assert_eq!(wake, [lead, far, lower - 4095 / LEAD_PART, lower, first]);
        // With few timers it wakes up only to fire.
        assert_eq!(wake_ups(first, 7, 2000), [first]);
    }

    /// Each look at the near deadline files one more hint for the far one. The promise does not get rid of them: each
    /// matches it.
    #[test]
    fn a_timer_that_is_moved_nearer_and_back_again_has_a_few_hints_only() {
        let (scheduler, mut worker) = worker();
        let core = Arc::clone(&worker.core);
        let shard = &core.shards[0];
        scheduler.schedule(1, 3600 * TICK).expect("it is open and not full");
        let far = scheduler.now() + (1 << 20) * TICK;
        for round in 0..10_000 {
            assert!(scheduler.reschedule(&1, 2 * TICK) && scheduler.reschedule_at(&1, far));
            let now = Tick(3 * (round + 1));
            set_clock(&mut worker, now);
            // All its steps until it may sleep.
            let has_work = |worker: &mut Worker<_, _>| worker.step(now) != Left::Nothing || shard.has_stale_hints();
            let steps = (0..100).take_while(|_| has_work(&mut worker)).count();
            worker.next_deadline(now, NO_LIMIT, usize::MAX);
            assert!(steps < 10 && worker.wheel.len() < 3000, "{steps} steps, {} hints", worker.wheel.len());
        }
        assert_eq!(worker.fired(), 0);
        set_clock(&mut worker, Tick(1 << 20));
        while worker.step(Tick(1 << 20)) != Left::Nothing {}
        assert_eq!((worker.fired(), scheduler.len()), (1, 0));
    }

    /// So many timers that the equal hints of one never lie within the same share of a sweep.
    #[test]
    fn hints_of_many_timers_that_are_moved_nearer_and_back_again_are_swept_as_well() {
        const FAR: u64 = 2 * SWEEP_MAX as u64;
        const MOVES: u64 = 5;
        let (scheduler, mut worker) = worker();
        let core = Arc::clone(&worker.core);
        let shard = &core.shards[0];
        let far = scheduler.now() + (1 << 20) * TICK;
        // Without these the sweep would come earlier.
        let others = FAR..6 * FAR;
        others.clone().for_each(|key| assert!(scheduler.schedule(key, TICK * (1 << 21)).is_ok()));
        (0..FAR).for_each(|key| assert!(scheduler.schedule_at(key, (), far).is_ok()));
        let mut step = |now| {
            set_clock(&mut worker, now);
            let is_busy = |worker: &Worker<_, _>| worker.has_mail() || shard.has_stale_hints();
            let has_work = |worker: &mut Worker<_, _>| worker.step(now) != Left::Nothing || is_busy(worker);
            let steps = (0..10_000).take_while(|_| has_work(&mut worker)).count();
            (steps, worker.wheel.len() as u64)
        };
        step(Tick(0));
        for round in 1..=MOVES {
            for key in 0..FAR {
                assert!(scheduler.reschedule(&key, 2 * TICK) && scheduler.reschedule_at(&key, far));
            }
            step(Tick(3 * round));
        }
        others.for_each(|key| assert!(scheduler.cancel(&key).is_some()));
        let (steps, hints) = step(Tick(3 * MOVES));
        assert!(steps < 1000 && hints < 3 * FAR, "{steps} steps, {hints} hints");
        assert!(worker.due.capacity() <= SWEEP_MAX, "memory is given back");
    }

    /// While the hand is so far behind, the wheel reads the hints of new timers as ticks of the past. They must not use
    /// up the steps that the overdue timers need.
    #[test]
    fn new_timers_do_not_hold_up_what_is_overdue_after_a_stop_of_days() {
        const COUNT: u64 = 2 * STEP_MAX as u64;
        let first = Tick(1 << 40);
        let tick = Duration::from_micros(10);
        let (scheduler, mut worker) = worker_from(tick, first);
        let start = |keys: std::ops::Range<u64>, delay| {
            for key in keys {
                scheduler.schedule(key, delay + tick * key as u32).expect("it is open and not full");
            }
        };
        start(0..COUNT, tick);
        assert_eq!(worker.step(first), Left::Nothing);
        let now = Tick(first.0 + (1 << 35) + (1 << 20));
        set_clock(&mut worker, now);
        worker.step(now);
        start(COUNT..2 * COUNT, Duration::from_secs(3600));
        let steps = (0..100).take_while(|_| worker.step(now) != Left::Nothing).count();
        assert!(steps < 10, "{steps} steps");
        assert_eq!((worker.fired() as u64, scheduler.len() as u64), (COUNT, COUNT));
    }

    /// If the stop was longer than the scheduler is old, there are no ticks in the past to read the new hints as.
    #[test]
    fn a_timer_that_begins_after_a_stop_of_days_fires_though_the_scheduler_is_young() {
        let tick = Duration::from_micros(10);
        for (built, stop) in [(0, 1 << 35), (1 << 33, 1 << 35), (1, (1 << 36) - 2)] {
            let (scheduler, mut worker) = worker_from(tick, Tick(0));
            set_clock(&mut worker, Tick(built));
            scheduler.schedule(1, tick * (1 << 31)).expect("it is open and not full");
            while worker.step(Tick(built)) != Left::Nothing {}
            let now = Tick(built + stop);
            set_clock(&mut worker, now);
            scheduler.schedule(2, Duration::ZERO).expect("it is open and not full");
            scheduler.schedule(3, tick).expect("it is open and not full");
            // This one keeps the worker from looking into further slots.
            scheduler.schedule(4, tick * (1 << 20)).expect("it is open and not full");
            for (ahead, pending) in [(0, vec![2, 3, 4]), (1, vec![4]), (2, vec![4])] {
                let now = Tick(now.0 + ahead);
                set_clock(&mut worker, now);
                while worker.step(now) != Left::Nothing {}
                worker.next_deadline(now, NO_LIMIT, usize::MAX);
                let left: Vec<_> = (1..5).filter(|key| scheduler.contains(key)).collect();
                assert_eq!(left, pending, "{ahead} after {now:?}");
            }
        }
    }

    /// What comes in meanwhile must not wait until the hints of many places have been dropped.
    #[test]
    fn many_cancelled_timers_are_forgotten_in_pieces() {
        const REVIEWED: usize = 64;
        let (scheduler, mut worker) = worker();
        let count = 3500;
        for key in 0..count {
            scheduler.schedule(key, TICK * (key as u32 + 2)).expect("it is open and not full");
        }
        worker.step(Tick(0));
        (0..count).for_each(|key| assert_eq!(scheduler.cancel(&key), Some(())));
        let mut pieces = 0;
        let mut left = worker.wheel.len();
        while let Some(next) = worker.next_deadline(Tick(0), NO_LIMIT, REVIEWED) {
            let dropped = left - worker.wheel.len();
            let piece = REVIEWED * REVIEW_PLACES;
            assert!(next == Tick(0) && (piece..piece + REVIEWED).contains(&dropped), "{dropped} before {next:?}");
            (pieces, left) = (pieces + 1, left - dropped);
        }
        assert_eq!((pieces, worker.wheel.len()), (6, 0));
    }

    /// Otherwise each search for the next deadline would look at them again.
    #[test]
    fn cancelled_timers_of_a_tick_are_forgotten_though_one_is_left() {
        let (scheduler, mut worker) = worker();
        let count = 10 * PROBED as u64;
        (0..count).for_each(|key| assert!(scheduler.schedule(key, 2 * TICK).is_ok()));
        worker.step(Tick(0));
        (1..count).for_each(|key| assert_eq!(scheduler.cancel(&key), Some(())));
        let next = worker.next_deadline(Tick(0), NO_LIMIT, count as usize);
        assert_eq!((next, worker.wheel.len()), (Some(Tick(2)), 1));
    }

    /// However long nothing happens. A hint is read as the tick nearest to the hand with the same low 36 bits, so the
    /// hand must not lag so far that a hint at the horizon reads as one of the past.
    #[test]
    fn an_idle_worker_reads_the_clock_now_and_then() {
        let (_scheduler, worker) = worker();
        let now = Tick(7);
        let slept = worker.sleep_limit(None, now).0 - now.0;
        let last = Hint::new(Tick(now.0 + slept + HORIZON_TICKS), 1);
        assert_eq!(last.tick(now).0, now.0 + slept + HORIZON_TICKS);
    }

    /// The worker has moved on by so much while the call was under way that a hint reads as one of the future, and a
    /// promise for the far future as one for the past.
    #[test]
    fn a_timer_whose_author_stalled_over_a_jump_fires_at_once() {
        for jump in [1 << 34, 1 << 35, (1 << 36) - (1 << 33), (1 << 36) - 9, (1 << 36) + 9, (1 << 40) - (1 << 33)] {
            for is_moved in [false, true] {
                let (scheduler, mut worker) = worker();
                let (ordinal, place) = (thread::ordinal(), || scheduler.place(&7));
                let start = |due| {
                    let mut access = Access::new(&ordinal);
                    scheduler.start_at(place(), 7, (), due, Repeats::Never, &mut access).expect("it is open")
                };
                let old = Due { tick: Some(Tick(3)), now: Tick(0) };
                worker.step(Tick(jump));
                if is_moved {
                    start(Due { tick: Some(Tick(jump + (1 << 32))), now: Tick(jump) });
                    assert!(scheduler.shift_at(place(), None, &7, old, &Access::new(&ordinal)));
                } else {
                    start(old);
                }
                while worker.step(Tick(jump + 1)) != Left::Nothing {}
                assert_eq!((worker.fired(), scheduler.contains(&7)), (1, false), "after {jump}, {is_moved}");
            }
        }
    }

    /// The promise on which it relies was made by a caller whose clock was ahead of the worker's hand.
    #[test]
    fn a_stalled_author_that_meets_a_promise_from_ahead_of_the_hand_is_not_misled() {
        let (scheduler, mut worker) = worker();
        let (ordinal, place, half) = (thread::ordinal(), || scheduler.place(&7), 1 << 34);
        let never = Due { tick: None, now: Tick(0) };
        let started = scheduler.start_at(place(), 7, (), never, Repeats::Never, &mut Access::new(&ordinal)).map(|_| ());
        assert!(started.is_ok());
        worker.step(Tick(half));
        let far = Due { tick: Some(Tick(2 * half + 9)), now: Tick(half + 9) };
        for due in [far, Due { tick: Some(Tick(3)), now: Tick(0) }] {
            assert!(scheduler.shift_at(place(), None, &7, due, &Access::new(&ordinal)));
        }
        while worker.step(Tick(half + 9)) != Left::Nothing {}
        assert_eq!((worker.fired(), scheduler.contains(&7)), (1, false));
    }

    /// Its tick has passed, but the bits that the hint keeps name one of the far future.
    #[test]
    fn a_hint_whose_author_stalled_for_years_is_looked_at_now() {
        let now = Tick(1 << 40);
        for (tick, is_due) in [(now.0 + HORIZON_TICKS + STALL_TICKS, false), (now.0 - (1 << 35) - 1, true)] {
            let (mut wheel, mut due) = (Slots::new(now.0), Vec::new());
            file(&mut wheel, &mut due, Hint::new(Tick(tick), 1), now);
            assert_eq!((due.len(), wheel.len()), if is_due { (1, 0) } else { (0, 1) }, "{tick}");
        }
    }
}
