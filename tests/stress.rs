//! Everything at once, on more threads than cores: rounds of random settings, for `SHARDWHEEL_STRESS_SECONDS`.
//!
//! After a round each timer has ended in exactly one way, each key and value was dropped once, and the scheduler's
//! counts equal the callers'. Timers that one caller alone moved fired neither before the deadline that it last asked
//! for nor long after. *Long* is measured: a control thread sleeps in short steps and reports how late this machine
//! wakes threads up. Beside the rounds, a worker that would sleep for an hour is woken for a lone timer, again and
//! again: under load a lost wake-up would hide behind the next one.

mod support;

use indicatif::ProgressBar;
use shardwheel::{Close, Executor, IfAbsent, ScheduleError, Scheduler, Stats, Timer, WeakScheduler};
use std::hash::{Hash, Hasher};
use std::num::NonZero;
use std::ops::AddAssign;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, OnceLock};
use std::thread;
use std::time::{Duration, Instant};
use support::{Ends, HOUR, MS, PATIENCE, Random, eventually, ignore, lock, ms, within};

/// Timers in a round, at most.
const NUMBERS: usize = 1_000_000;
const ROUND: Duration = Duration::from_millis(600);
/// The longest delay in a round.
const DELAY_MAX_US: u64 = 60_000;
/// How many keys each caller has for itself.
const OWN_KEYS: u64 = 8;

#[test]
fn for_a_second() {
    stress_for(Duration::from_secs(1));
}

#[test]
#[ignore = "takes SHARDWHEEL_STRESS_SECONDS, 30 by default: .ci/stress"]
fn for_long() {
    let seconds = std::env::var("SHARDWHEEL_STRESS_SECONDS").ok();
    stress_for(Duration::from_secs(seconds.map_or(30, |text| text.parse().expect("a number of seconds"))));
}

/// A fault may well show as threads that never end.
fn stress_for(length: Duration) {
    within(length + 4 * PATIENCE, "the stress", move || stress(length));
}

fn stress(length: Duration) {
    let (is_over, start, bar) = (AtomicBool::new(false), Instant::now(), ProgressBar::new(length.as_secs()));
    thread::scope(|scope| {
        let control = scope.spawn(|| worst_oversleep(&is_over));
        let lone = scope.spawn(|| worst_lone_timer(&is_over));
        let (mut seed, mut total, mut worst) = (0, 0, Duration::ZERO);
        // Ends the other threads also when a round fails.
        let over = Over(&is_over);
        while start.elapsed() < length {
            let round = Round::new(seed).run();
            (seed, total, worst) = (seed + 1, total + round.scheduled, worst.max(round.worst));
            bar.set_position(start.elapsed().as_secs());
        }
        drop(over);
        bar.finish_and_clear();
        let (control, lone) = (control.join().expect("no panic"), lone.join().expect("no panic"));
        println!("{seed} rounds, {total} timers; late: {worst:?}, lone {lone:?}, a mere sleep {control:?}");
        // A callback waits for the processor three times: its worker's wake-up, its own thread's, and both behind busy
        // callers.
        let bound = ms(250) + 20 * control;
        assert!(worst < bound && lone < bound, "late by {worst:?}, a lone timer by {lone:?}; the bound is {bound:?}");
    });
}

struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, SeqCst);
    }
}

/// By how much a sleep of a millisecond overruns on this machine, at worst.
fn worst_oversleep(is_over: &AtomicBool) -> Duration {
    let sleep = || {
        let start = Instant::now();
        thread::sleep(MS);
        start.elapsed() - MS
    };
    std::iter::from_fn(|| (!is_over.load(SeqCst)).then(sleep)).max().unwrap_or_default()
}

/// Asks a worker that sleeps until an hour from now for an earlier timer, in every possible way.
fn worst_lone_timer(is_over: &AtomicBool) -> Duration {
    let (sender, fired) = channel();
    let callback = move |_: &u64, ()| ignore(sender.send(Instant::now()));
    let builder = Scheduler::builder().shards(1).tick(Duration::from_micros(10)).executor(Executor::Inline);
    let scheduler = builder.build(callback).expect("in range");
    let (mut random, mut worst) = (Random::new(1), Duration::ZERO);
    for round in 0.. {
        if is_over.load(SeqCst) {
            break;
        }
        let (key, far) = (2 * round, 2 * round + 1);
        assert!(scheduler.schedule(far, HOUR).is_ok());
        // At times the worker sleeps by now; more often it is just about to.
        if random.below(16) == 0 {
            thread::sleep(MS);
        }
        let pause = Instant::now() + Duration::from_nanos(random.below(40_000));
        while Instant::now() < pause {
            std::hint::spin_loop();
        }
        let delay = Duration::from_micros(random.below(30));
        let deadline = Instant::now() + delay;
        match random.below(32) {
            0..16 => assert!(scheduler.schedule(key, delay).is_ok()),
            16..31 => assert!(scheduler.reschedule(&far, delay)),
            _ => thread::scope(|scope| {
                // Of two calls at once, the later timer must not hide the earlier one.
                scope.spawn(|| assert!(scheduler.schedule(key, HOUR / 2).is_ok()));
                assert!(scheduler.reschedule(&far, delay));
            }),
        }
        let at = fired.recv_timeout(PATIENCE).expect("no wake-up is lost");
        assert!(at >= deadline, "a lone timer was {:?} early", deadline - at);
        worst = worst.max(at - deadline);
        ignore((scheduler.cancel(&key), scheduler.cancel(&far)));
    }
    worst
}

// One round.

#[derive(Clone, Copy, Debug)]
enum Finish {
    /// All timers fire.
    RunDry,
    Drain,
    /// Closes while the callers go on.
    Close(Close),
}

#[derive(Clone, Copy, Debug)]
struct Settings {
    seed: u64,
    shards: usize,
    runs_inline: bool,
    keys: u64,
    capacity: Option<usize>,
    finish: Finish,
}

/// What the callers were told, and what the scheduler reports, for comparison.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
struct Tally {
    scheduled: u64,
    replaced: u64,
    cancelled: u64,
    rescheduled: u64,
    drained: u64,
    rejected: u64,
}

impl AddAssign for Tally {
    fn add_assign(&mut self, other: Self) {
        self.scheduled += other.scheduled;
        self.replaced += other.replaced;
        self.cancelled += other.cancelled;
        self.rescheduled += other.rescheduled;
        self.drained += other.drained;
        self.rejected += other.rejected;
    }
}

impl From<&Stats> for Tally {
    fn from(stats: &Stats) -> Self {
        let Stats { scheduled, replaced, cancelled, rescheduled, drained, rejected, .. } = *stats;
        Self { scheduled, replaced, cancelled, rescheduled, drained, rejected }
    }
}

/// What keys and values, callers and callbacks of a round share.
struct World {
    settings: Settings,
    start: Instant,
    next: AtomicU64,
    /// By the timer's number: how often it ended (its value came back, or it fired), and its value and its key were
    /// dropped.
    ends: Ends,
    values_dropped: Ends,
    keys_dropped: Ends,
    /// By the timer's number, in nanoseconds since the start; 0 if it did not fire.
    fired_at: Vec<AtomicU64>,
    fired: AtomicU64,
    /// What the callbacks counted.
    tally: Mutex<Tally>,
    scheduler: OnceLock<WeakScheduler<Key, Value>>,
}

struct Value {
    number: u64,
    world: Arc<World>,
}

impl Drop for Value {
    fn drop(&mut self) {
        self.world.values_dropped.note(self.number);
    }
}

struct Key {
    id: u64,
    number: u64,
    world: Arc<World>,
}

impl Drop for Key {
    fn drop(&mut self) {
        self.world.keys_dropped.note(self.number);
    }
}

impl PartialEq for Key {
    fn eq(&self, other: &Self) -> bool {
        self.id == other.id
    }
}

impl Eq for Key {}

impl Hash for Key {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.id.hash(state);
    }
}

impl std::borrow::Borrow<u64> for Key {
    fn borrow(&self) -> &u64 {
        &self.id
    }
}

/// A timer that only its caller moves: when it may fire, in nanoseconds since the start.
struct Own {
    number: u64,
    not_before: u64,
    due: u64,
}

impl World {
    fn now(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64
    }

    fn end(&self, value: &Value) {
        self.ends.note(value.number);
    }

    /// The callback.
    fn fire(self: &Arc<Self>, key: &Key, value: &Value) {
        self.fired_at[value.number as usize].store(self.now(), SeqCst);
        assert_eq!(key.number, value.number, "each value goes with its key");
        self.end(value);
        // One callback in eight calls the scheduler.
        if let (0, Some(scheduler)) = (value.number % 8, self.scheduler.get().and_then(WeakScheduler::upgrade)) {
            let mut caller = Caller::new(self, &scheduler, 1_000 + value.number);
            (0..3).for_each(|_| caller.act());
            *lock(&self.tally) += caller.tally;
        }
        self.fired.fetch_add(1, SeqCst);
    }
}

struct Caller<'a> {
    world: &'a Arc<World>,
    scheduler: &'a Scheduler<Key, Value>,
    random: Random,
    tally: Tally,
    handle: Option<Timer<Key, Value>>,
    is_refused: bool,
}

impl<'a> Caller<'a> {
    fn new(world: &'a Arc<World>, scheduler: &'a Scheduler<Key, Value>, name: u64) -> Self {
        let random = Random::new(world.settings.seed << 32 | name);
        Self { world, scheduler, random, tally: Tally::default(), handle: None, is_refused: false }
    }

    /// Some keys are in much greater demand than others.
    fn key(&mut self) -> u64 {
        let most = 1 + self.random.below(self.world.settings.keys);
        self.random.below(most)
    }

    fn delay(&mut self) -> Duration {
        let most = [1, 300, 5_000, DELAY_MAX_US][self.random.below(4) as usize];
        Duration::from_micros(self.random.below(most))
    }

    fn took(&mut self, value: Option<Value>) -> bool {
        value.inspect(|value| self.world.end(value)).is_some()
    }

    fn cancelled(&mut self, value: Option<Value>) {
        self.tally.cancelled += u64::from(self.took(value));
    }

    fn moved(&mut self, moved: bool) {
        self.tally.rescheduled += u64::from(moved);
    }

    /// Returns the number of the timer, if it was accepted.
    fn schedule(&mut self, id: u64, delay: Duration) -> Option<u64> {
        let number = self.world.next.fetch_add(1, SeqCst);
        if number >= NUMBERS as u64 {
            self.is_refused = true;
            return None;
        }
        let (key, value) = (Key { id, number, world: self.world.clone() }, Value { number, world: self.world.clone() });
        let result = match number % 5 {
            0 => self.scheduler.schedule_with_handle(key, value, delay).map(|(replaced, handle)| {
                if id < self.world.settings.keys {
                    self.handle = Some(handle);
                }
                replaced
            }),
            1 => self.scheduler.schedule_at(key, value, Instant::now() + delay),
            2 if id < self.world.settings.keys => match self.scheduler.schedule_if_absent(key, value, delay) {
                Ok(IfAbsent::Exists(value)) => {
                    assert_eq!(value.number, number, "who gives way has his own value back");
                    self.world.end(&value);
                    return None;
                }
                result => result.map(IfAbsent::into_value),
            },
            3 if id < self.world.settings.keys => self.scheduler.schedule_unindexed(key, value, delay).map(|handle| {
                self.handle = Some(handle);
                None
            }),
            _ => self.scheduler.schedule_with(key, value, delay),
        };
        self.scheduled(number, result)
    }

    fn scheduled(&mut self, number: u64, result: Result<Option<Value>, ScheduleError<Key, Value>>) -> Option<u64> {
        match result {
            Ok(replaced) => {
                self.tally.scheduled += 1;
                self.tally.replaced += u64::from(self.took(replaced));
                Some(number)
            }
            Err(error) => {
                self.is_refused = error.is_closed();
                self.tally.rejected += 1;
                let (_, value) = error.into_inner();
                self.world.end(&value);
                None
            }
        }
    }

    /// Any operation, on keys that all callers use.
    fn act(&mut self) {
        let (id, delay) = (self.key(), self.delay());
        match self.random.below(64) {
            0..24 => ignore(self.schedule(id, delay)),
            24..34 => self.moved(self.scheduler.reschedule(&id, delay)),
            34..46 => self.cancelled(self.scheduler.cancel(&id)),
            46..50 => ignore(self.scheduler.expire_now(&id)),
            50..54 => ignore(self.scheduler.remaining(&id).is_some_and(|left| left > HOUR)),
            54..58 => self.cancelled(self.handle.as_ref().and_then(Timer::cancel)),
            58..62 => self.moved(self.handle.as_ref().is_some_and(|handle| handle.reschedule(delay))),
            62 => ignore(self.handle.as_ref().is_some_and(Timer::expire_now)),
            _ if self.random.below(200) == 0 => {
                self.tally.drained += self.scheduler.drain(|_, value| self.world.end(&value)) as u64;
            }
            _ => ignore((self.scheduler.len(), self.scheduler.contains(&id))),
        }
    }

    /// An operation on keys that no other caller schedules, moves or cancels: the last deadline counts.
    fn act_alone(&mut self, own: &mut [Option<Own>], past: &mut Vec<Own>, first_key: u64) {
        let slot = self.random.below(OWN_KEYS);
        let (id, delay, before) = (first_key + slot, self.delay(), self.world.now());
        let due = |at: u64| at + delay.as_nanos() as u64;
        let own = &mut own[slot as usize];
        if self.random.below(3) == 0 {
            let number = self.schedule(id, delay);
            // The timer before it ended at the latest when this one began.
            past.extend(own.take());
            *own = number.map(|number| Own { number, not_before: due(before), due: due(self.world.now()) });
        } else if let Some(own) = own {
            let is_moved = self.scheduler.reschedule(&id, delay);
            self.moved(is_moved);
            if is_moved {
                (own.not_before, own.due) = (due(before), due(self.world.now()));
            }
        }
    }

    /// A caller's life. Returns the timers that it alone moved.
    fn run(mut self, name: u64) -> (Tally, Vec<Own>) {
        let (mut own, mut past) = (Vec::from_iter((0..OWN_KEYS).map(|_| None)), Vec::new());
        while !self.is_refused && self.world.start.elapsed() < ROUND {
            self.act();
            self.act_alone(&mut own, &mut past, self.world.settings.keys + name * OWN_KEYS);
            if self.random.below(500) == 0 {
                thread::sleep(MS);
            }
        }
        past.extend(own.into_iter().flatten());
        (self.tally, past)
    }
}

/// What a round has shown.
struct Shown {
    scheduled: u64,
    worst: Duration,
}

struct Round {
    world: Arc<World>,
    scheduler: Scheduler<Key, Value>,
}

impl Round {
    fn new(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let mut pick = |choices: &[u64]| choices[random.below(choices.len() as u64) as usize];
        let settings = Settings {
            seed,
            shards: pick(&[1, 2, 5]) as usize,
            runs_inline: pick(&[0, 0, 1]) == 1,
            keys: pick(&[4, 64, 100_000]),
            capacity: Some(pick(&[0, 0, 40]) as usize).filter(|&most| most > 0),
            finish: match seed % 5 {
                0 => Finish::RunDry,
                1 => Finish::Close(Close::Return),
                2 => Finish::Drain,
                3 => Finish::Close(Close::FireNow),
                _ => Finish::Close(Close::Discard),
            },
        };
        let world = Arc::new(World {
            settings,
            start: Instant::now(),
            next: AtomicU64::new(0),
            ends: Ends::new(NUMBERS),
            values_dropped: Ends::new(NUMBERS),
            keys_dropped: Ends::new(NUMBERS),
            fired_at: (0..NUMBERS).map(|_| AtomicU64::new(0)).collect(),
            fired: AtomicU64::new(0),
            tally: Mutex::default(),
            scheduler: OnceLock::new(),
        });
        let seen = Arc::clone(&world);
        let builder = settings.capacity.map_or(Scheduler::builder(), |most| Scheduler::builder().capacity(most));
        let builder = if settings.runs_inline { builder.executor(Executor::Inline) } else { builder };
        let built = builder.shards(settings.shards).build(move |key: &Key, value: Value| seen.fire(key, &value));
        let scheduler = built.expect("in range");
        assert!(world.scheduler.set(scheduler.downgrade()).is_ok());
        Self { world, scheduler }
    }

    fn run(self) -> Shown {
        let Self { world, scheduler } = &self;
        let callers = 2 + 2 * thread::available_parallelism().map_or(1, NonZero::get) as u64;
        let (mut tally, mut own, mut discarded, mut end) = (Tally::default(), Vec::new(), 0, u64::MAX);
        thread::scope(|scope| {
            let run = |name| scope.spawn(move || Caller::new(world, scheduler, name).run(name));
            let callers: Vec<_> = (0..callers).map(run).collect();
            if let Finish::Close(close) = world.settings.finish {
                thread::sleep(ROUND.mul_f64((world.settings.seed % 7) as f64 / 14.0));
                end = world.now();
                discarded = self.close(close);
            }
            for caller in callers {
                let (its_tally, its_own) = caller.join().expect("no panic");
                tally += its_tally;
                own.extend(its_own);
            }
        });
        if let Finish::Drain = world.settings.finish {
            tally.drained += scheduler.drain(|_, value| world.end(&value)) as u64;
        }
        let quiet = || scheduler.is_empty() && world.fired.load(SeqCst) == scheduler.stats().fired;
        eventually("all fires that is not taken out", quiet);
        tally += *lock(&world.tally);
        self.check(tally, discarded, &own, end)
    }

    /// Returns how many were discarded.
    fn close(&self, close: Close) -> u64 {
        let closed = self.scheduler.close(close);
        closed.returned.iter().for_each(|(key, value, left)| {
            assert!(key.number == value.number && *left <= Duration::from_micros(DELAY_MAX_US) + MS);
            self.world.end(value);
        });
        closed.discarded as u64
    }

    fn check(self, tally: Tally, discarded: u64, own: &[Own], end: u64) -> Shown {
        let (stats, settings) = (self.scheduler.stats(), self.world.settings);
        let ended = stats.fired + stats.cancelled + stats.replaced + stats.drained + stats.returned + stats.discarded;
        assert_eq!((stats.scheduled, stats.pending), (ended, 0), "{settings:?}");
        assert_eq!((Tally::from(&stats), stats.discarded), (tally, discarded), "{settings:?}");
        assert_eq!((stats.callback_panics, stats.callbacks_lost, stats.callbacks_waiting), (0, 0, 0));
        let Self { world, scheduler } = self;
        drop(scheduler);
        let numbers = 0..world.next.load(SeqCst).min(NUMBERS as u64);
        let is_dropped = |number| world.values_dropped.of(number) >= 1 && world.keys_dropped.of(number) >= 1;
        eventually("all are dropped", || numbers.clone().all(is_dropped));
        assert!(numbers.clone().all(|n| world.values_dropped.of(n) == 1 && world.keys_dropped.of(n) == 1));
        let not_told = numbers.filter(|&number| world.ends.of(number) != 1);
        let untold =
            not_told.inspect(|&number| assert_eq!(world.ends.of(number), 0, "ended twice: {settings:?}")).count();
        assert_eq!(untold as u64, discarded, "{settings:?}");
        let worst = own.iter().map(|own| lateness(&world, own, end)).max().unwrap_or_default();
        Shown { scheduled: stats.scheduled, worst }
    }
}

/// How late a timer was; zero if it did not fire by itself.
fn lateness(world: &World, own: &Own, end: u64) -> Duration {
    let at = world.fired_at[own.number as usize].load(SeqCst);
    if at == 0 || at >= end {
        return Duration::ZERO;
    }
    assert!(at >= own.not_before, "{} ns early: {:?}", own.not_before - at, world.settings);
    Duration::from_nanos(at.saturating_sub(own.due))
}
