//! Deterministic simulation: a seed decides every step of several shards, and a plain model knows the right answer to each.
//!
//! The scheduler under test is the shipped one, on the manual clock; but here each worker is stepped by itself, so shards
//! can stall and run in any order, the clock can jump and step back, callbacks call back in, the capacity is hit, and the
//! scheduler is closed at any moment. One thread: what threads do to each other is for `loom-tests/` and `tests/threads.rs`.
//!
//! `SHARDWHEEL_SEED=7 cargo test simulation` repeats one seed, `SHARDWHEEL_SEEDS=100000` runs as many.

use crate::builder::Parts;
use crate::clock::{Clock, Nanos};
use crate::fanout::{Callback, Executor};
use crate::scheduler::Scheduler;
use crate::service::Core;
use crate::shard::Tick;
use crate::worker::Worker;
use crate::{Close, ScheduleError, Timer};
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::Duration;

const SEEDS_DEFAULT: u64 = 2_000;
const STEPS: usize = 150;
const KEYS: u64 = 12;
const TICK: Duration = Duration::from_millis(1);
const FIRST_TICKS: [u64; 5] = [0, 1, (1 << 36) - 40, (1 << 42) - 40, (1 << 63) - 40];

/// xorshift64*: Vigna, "An experimental exploration of Marsaglia's xorshift generators, scrambled", 2016.
struct Rng(u64);

impl Rng {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) % bound
    }

    fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    /// Mostly near, now and then in a far slot of the wheel or beyond the horizon.
    fn delay(&mut self) -> Duration {
        match self.below(12) {
            0 => Duration::ZERO,
            1 => Duration::MAX,
            2 => Duration::from_millis(self.below(1 << 13)),
            3 => Duration::from_millis(self.below(1 << 36)),
            _ => Duration::from_micros(self.below(200_000)),
        }
    }
}

/// A timer as the model sees it.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Expected {
    id: u64,
    /// In ticks; `None`: never.
    deadline: Option<u64>,
}

#[derive(Default)]
struct Model {
    pending: BTreeMap<u64, Expected>,
    /// Claimed by the worker and on their way to the callback, by id.
    in_flight: HashMap<u64, Expected>,
    /// How often each value was dropped, by id.
    drops: HashMap<u64, u32>,
    next_id: u64,
    fired: u64,
    replaced: u64,
    cancelled: u64,
    scheduled: u64,
}

type Shared = Arc<Mutex<Model>>;

/// A value that reports its end.
struct Value {
    id: u64,
    model: Shared,
}

impl Drop for Value {
    fn drop(&mut self) {
        *lock(&self.model).drops.entry(self.id).or_default() += 1;
    }
}

fn lock(model: &Shared) -> MutexGuard<'_, Model> {
    model.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

type Sut = Scheduler<u64, Value>;
/// What the callback needs of the scheduler that it belongs to.
type Own = OnceLock<(crate::WeakScheduler<u64, Value>, Arc<Core<u64, Value>>)>;

/// A handle, and whose it is.
#[derive(Clone)]
struct Handle {
    key: u64,
    id: u64,
    timer: Timer<u64, Value>,
}

struct Simulation {
    scheduler: Sut,
    core: Arc<Core<u64, Value>>,
    workers: Vec<Worker<u64, Value>>,
    model: Shared,
    rng: Arc<Mutex<Rng>>,
    handles: Vec<Handle>,
    capacity: usize,
    closed: bool,
}

impl Simulation {
    fn new(seed: u64) -> Self {
        let mut rng = Rng(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        let first_tick = FIRST_TICKS[rng.below(FIRST_TICKS.len() as u64) as usize];
        let shards = 1 + rng.below(3) as usize;
        let capacity = 4 + rng.below(12) as usize;
        let model = Shared::default();
        let rng = Arc::new(Mutex::new(rng));
        let own = Arc::new(Own::new());
        let callback = {
            let (model, rng, own) = (Arc::clone(&model), Arc::clone(&rng), Arc::clone(&own));
            move |key: &u64, value: Value| {
                if let Some((scheduler, core)) = own.get().and_then(|(weak, core)| Some((weak.upgrade()?, core))) {
                    on_expiry(&scheduler, core, &model, &rng, *key, &value);
                }
            }
        };
        let builder = Scheduler::builder().tick(TICK).shards(shards).capacity(capacity).first_tick(first_tick);
        let clock = Clock::manual(TICK, Tick(first_tick));
        let Parts { core, runner, hasher, .. } =
            builder.into_parts(clock, Executor::Inline, Callback::Plain(Box::new(callback)));
        let scheduler = Scheduler::new(Arc::clone(&core), runner, hasher, Vec::new());
        let workers = (0..shards).map(|index| Worker::new(Arc::clone(&core), index)).collect();
        assert!(own.set((scheduler.downgrade(), Arc::clone(&core))).is_ok());
        Self { scheduler, core, workers, model, rng, handles: Vec::new(), capacity, closed: false }
    }

    fn pick(&self, bound: u64) -> u64 {
        self.rng.lock().expect("no panic so far").below(bound)
    }

    fn step(&mut self) {
        match self.pick(20) {
            0..=4 => act(&self.scheduler, &self.core, &self.model, &self.rng, Some(&mut self.handles)),
            5..=7 => self.use_handle(),
            8..=11 => self.advance(),
            12..=17 => self.run_shard(),
            18 if self.pick(4) == 0 => self.step_back(),
            19 if self.pick(20) == 0 => self.close(),
            19 if self.pick(6) == 0 => self.drain(),
            _ => act(&self.scheduler, &self.core, &self.model, &self.rng, None),
        }
        self.check();
    }

    fn advance(&mut self) {
        let by = match self.pick(8) {
            0 => self.pick(1 << 50),
            1 => self.pick(1 << 33),
            _ => self.pick(20_000_000),
        };
        self.core.clock.set(Nanos(self.core.clock.now().0.saturating_add(by).min(1 << 60)));
    }

    fn step_back(&mut self) {
        self.core.clock.set(Nanos(self.core.clock.now().0.saturating_sub(self.pick(50_000_000))));
    }

    /// One shard does a step, or all that is to do; the others stall.
    fn run_shard(&mut self) {
        let index = self.pick(self.workers.len() as u64) as usize;
        if self.pick(4) == 0 {
            let worker = &mut self.workers[index];
            let now = self.core.clock.tick_at(worker.read_clock());
            worker.step(now);
        } else {
            self.settle(index);
        }
    }

    /// Runs a shard until it would go to sleep, and checks that it sleeps neither on a due timer nor too long.
    fn settle(&mut self, index: usize) {
        let worker = &mut self.workers[index];
        let now = self.core.clock.tick_at(worker.read_clock());
        while !worker.step(now) || worker.has_mail() {}
        let next = worker.next_deadline(now, usize::MAX);
        let model = lock(&self.model);
        for (key, timer) in &model.pending {
            let Some(deadline) = timer.deadline.filter(|_| self.scheduler.shard_of(key) == index) else { continue };
            assert!(deadline > now.0, "asleep at {now:?} although {key} was due at {deadline}");
            let next = next.expect("a worker with a timer has a deadline");
            assert!(next.0 <= deadline, "asleep until {next:?}, beyond {deadline}");
        }
    }

    /// Runs every shard until all would sleep; the next deadline of them all.
    fn next_deadline(&mut self) -> Option<Tick> {
        (0..self.workers.len()).for_each(|index| self.settle(index));
        let next_of = |worker: &mut Worker<u64, Value>| {
            let now = self.core.clock.tick_at(worker.read_clock());
            while worker.has_mail() {
                worker.step(now);
            }
            worker.next_deadline(now, usize::MAX)
        };
        self.workers.iter_mut().filter_map(next_of).min()
    }

    fn use_handle(&mut self) {
        if self.handles.is_empty() {
            return;
        }
        let index = self.pick(self.handles.len() as u64) as usize;
        let Handle { key, id, timer } = self.handles[index].clone();
        let is_pending = || lock(&self.model).pending.get(&key).is_some_and(|timer| timer.id == id);
        let was_pending = is_pending();
        assert_eq!(timer.is_pending(), was_pending);
        if self.pick(2) == 0 {
            let value = timer.cancel();
            assert_eq!(value.as_ref().map(|value| value.id), was_pending.then_some(id));
            if was_pending {
                let mut model = lock(&self.model);
                model.pending.remove(&key);
                model.cancelled += 1;
            }
        } else {
            let delay = self.rng.lock().expect("no panic so far").delay();
            let deadline = expected_deadline(&self.core, self.scheduler.shard_of(&key), delay);
            assert_eq!(timer.reschedule(delay), was_pending);
            if was_pending {
                lock(&self.model).pending.get_mut(&key).expect("pending").deadline = deadline;
            }
        }
    }

    fn drain(&mut self) {
        let expected = std::mem::take(&mut lock(&self.model).pending);
        let mut drained = BTreeMap::new();
        let count = self.scheduler.drain(|key, value| {
            drained.insert(*key, value.id);
        });
        assert_eq!(count, expected.len());
        assert_eq!(drained, expected.iter().map(|(&key, timer)| (key, timer.id)).collect());
    }

    fn close(&mut self) {
        let expected = std::mem::take(&mut lock(&self.model).pending);
        self.closed = true;
        let mode = [Close::Discard, Close::FireNow, Close::Return][self.pick(3) as usize];
        if mode == Close::FireNow {
            // The callback checks each against the model.
            lock(&self.model).pending = expected.clone();
        }
        let closed = self.scheduler.close(mode);
        let count = |wanted| if mode == wanted { expected.len() } else { 0 };
        assert_eq!(closed.discarded, count(Close::Discard));
        assert_eq!(closed.fired, count(Close::FireNow));
        let returned: BTreeMap<u64, u64> = closed.returned.iter().map(|(key, value, _)| (*key, value.id)).collect();
        let all = expected.iter().map(|(&key, timer)| (key, timer.id));
        assert_eq!(returned, all.take(count(Close::Return)).collect());
        assert!(lock(&self.model).pending.is_empty());
    }

    fn check(&self) {
        let stats = self.scheduler.stats();
        let model = lock(&self.model);
        assert!(model.in_flight.is_empty(), "claimed, and never fired");
        assert_eq!(stats.pending, model.pending.len() as u64);
        assert_eq!(self.scheduler.len(), model.pending.len());
        assert_eq!((stats.scheduled, stats.fired), (model.scheduled, model.fired));
        assert_eq!((stats.replaced, stats.cancelled), (model.replaced, model.cancelled));
        let ended = stats.fired + stats.replaced + stats.cancelled + stats.drained + stats.discarded + stats.returned;
        assert_eq!(stats.scheduled, ended + stats.pending);
        assert!(stats.pending <= self.capacity as u64);
        assert_eq!((stats.callback_panics, stats.callbacks_waiting), (0, 0));
        self.workers.iter().for_each(Worker::check_invariants);
    }

    /// The end of time: everything fires that ever will.
    fn finish(mut self) {
        // Far timers are filed again at the horizon, and callbacks start new ones, so this takes a few rounds.
        while let Some(next) = self.next_deadline() {
            self.core.clock.set(self.core.clock.start_of(next).max(self.core.clock.now()));
        }
        assert!(lock(&self.model).pending.values().all(|timer| timer.deadline.is_none()), "lost");
        self.check();
        let (model, next_id) = (Arc::clone(&self.model), lock(&self.model).next_id);
        // The handles last: they must keep neither keys nor values.
        let handles = std::mem::take(&mut self.handles);
        drop(self);
        assert!(handles.iter().all(|handle| handle.timer.cancel().is_none()));
        let drops = &lock(&model).drops;
        assert!((0..next_id).all(|id| drops.get(&id) == Some(&1)), "each value is dropped once: {drops:?}");
    }
}

/// The first tick at or after now + delay, after the one that the shard has reached.
fn expected_deadline(core: &Core<u64, Value>, shard: usize, delay: Duration) -> Option<u64> {
    if delay == Duration::MAX {
        return None;
    }
    let tick_ns = TICK.as_nanos();
    let hand_ns = u128::from(core.shards[shard].hand().0 - core.clock.first_tick().0) * tick_ns;
    let now_ns = u128::from(core.clock.now().0).max(hand_ns);
    let due = (now_ns + delay.as_nanos()).div_ceil(tick_ns).max(now_ns / tick_ns + 1);
    Some(core.clock.first_tick().0 + u64::try_from(due).expect("a delay of years"))
}

/// The callback: it must be the timer that the model expects, and due; then it acts as any caller may.
fn on_expiry(
    scheduler: &Sut,
    core: &Arc<Core<u64, Value>>,
    model: &Shared,
    rng: &Arc<Mutex<Rng>>,
    key: u64,
    value: &Value,
) {
    {
        let mut model = lock(model);
        let timer = match model.in_flight.remove(&value.id) {
            Some(timer) => timer,
            None => model.pending.remove(&key).expect("only a pending timer fires"),
        };
        assert_eq!(timer.id, value.id, "the latest timer of the key fires");
        let hand = core.shards[scheduler.shard_of(&key)].hand();
        model.fired += 1;
        let is_due = timer.deadline.is_some_and(|deadline| deadline <= hand.0);
        assert!(is_due || EXPIRING_NOW.get() || scheduler.is_closed(), "{key} fired early: {timer:?} at {hand:?}");
    }
    let acts = rng.lock().expect("no panic so far").below(3);
    for _ in 0..acts {
        act(scheduler, core, model, rng, None);
    }
}

thread_local! {
    /// True while `expire_now` is under way, which fires ahead of time.
    static EXPIRING_NOW: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

/// One operation on one key, compared with the model.
fn act(
    scheduler: &Sut,
    core: &Arc<Core<u64, Value>>,
    model: &Shared,
    rng: &Arc<Mutex<Rng>>,
    handles: Option<&mut Vec<Handle>>,
) {
    let (key, choice, delay, plain) = {
        let mut rng = rng.lock().expect("no panic so far");
        (rng.below(KEYS), rng.below(10), rng.delay(), rng.one_in(2))
    };
    let shard = scheduler.shard_of(&key);
    let deadline = expected_deadline(core, shard, delay);
    let is_closed = scheduler.is_closed();
    let before = pending_now(scheduler, core, model, key).filter(|_| !is_closed);
    match choice {
        0..=3 => {
            let value = {
                let mut model = lock(model);
                model.next_id += 1;
                model.next_id - 1
            };
            let id = value;
            let value = Value { id, model: Arc::clone(model) };
            let result = if plain && handles.is_none() {
                scheduler.schedule_with(key, value, delay)
            } else {
                scheduler.schedule_with_handle(key, value, delay).map(|(replaced, timer)| {
                    if let Some(handles) = handles {
                        handles.push(Handle { key, id, timer });
                    }
                    replaced
                })
            };
            match result {
                Ok(replaced) => {
                    assert_eq!(replaced.as_ref().map(|value| value.id), before.map(|timer| timer.id));
                    drop_outside(model, |model| {
                        model.scheduled += 1;
                        model.replaced += u64::from(before.is_some());
                        model.pending.insert(key, Expected { id, deadline });
                    });
                }
                Err(error) => {
                    assert_eq!(error.is_closed(), is_closed);
                    assert!(before.is_none() || is_closed, "a replacement needs no room");
                    assert!(matches!(error, ScheduleError::Full(..) | ScheduleError::Closed(..)));
                    assert_eq!(error.into_inner().1.id, id);
                }
            }
        }
        4..=6 => {
            assert_eq!(scheduler.reschedule(&key, delay), before.is_some());
            if before.is_some() {
                lock(model).pending.get_mut(&key).expect("pending").deadline = deadline;
            }
        }
        7 => {
            let value = scheduler.cancel(&key);
            assert_eq!(value.as_ref().map(|value| value.id), before.map(|timer| timer.id));
            if before.is_some() {
                drop_outside(model, |model| {
                    model.pending.remove(&key);
                    model.cancelled += 1;
                });
            }
        }
        8 => {
            assert_eq!(scheduler.contains(&key), before.is_some());
            assert_eq!(scheduler.remaining(&key).is_some(), before.is_some());
        }
        _ => {
            let outer = EXPIRING_NOW.replace(true);
            assert_eq!(scheduler.expire_now(&key), before.is_some());
            EXPIRING_NOW.set(outer);
        }
    }
}

/// The key's timer in the model. In a callback, one that is due may have been claimed together with the callback's own:
/// then it counts as fired, and its callback must follow (`check` sees to that).
fn pending_now(scheduler: &Sut, core: &Core<u64, Value>, model: &Shared, key: u64) -> Option<Expected> {
    let timer = lock(model).pending.get(&key).copied()?;
    let hand = core.shards[scheduler.shard_of(&key)].hand();
    let may_be_claimed = crate::fanout::in_callback() && timer.deadline.is_some_and(|deadline| deadline <= hand.0);
    if may_be_claimed && !scheduler.is_closed() && !scheduler.contains(&key) {
        let mut model = lock(model);
        model.pending.remove(&key);
        model.in_flight.insert(timer.id, timer);
        return None;
    }
    Some(timer)
}

fn drop_outside(model: &Shared, change: impl FnOnce(&mut Model)) {
    change(&mut lock(model));
}

fn run(seed: u64) {
    let mut simulation = Simulation::new(seed);
    for _ in 0..STEPS {
        simulation.step();
    }
    simulation.finish();
}

fn setting(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|value| value.parse().ok())
}

#[test]
fn every_seed_keeps_every_promise() {
    let seeds = match setting("SHARDWHEEL_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..setting("SHARDWHEEL_SEEDS").unwrap_or(if cfg!(miri) { 4 } else { SEEDS_DEFAULT }),
    };
    for seed in seeds {
        if let Err(payload) = std::panic::catch_unwind(|| run(seed)) {
            eprintln!("repeat with: SHARDWHEEL_SEED={seed} cargo test --lib simulation");
            std::panic::resume_unwind(payload);
        }
    }
}
