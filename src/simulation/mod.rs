//! Deterministic simulation: a seed decides every step of several shards, and a plain model knows the right answer to
//! each.
//!
//! The scheduler under test is the shipped one, on the manual clock; but here each worker is stepped by itself, so
//! shards can stall and run in any order, the clock can jump and step back, callbacks call back in, take long and
//! panic, the capacity is hit, and the scheduler is closed at any moment. One thread: what threads do to each other is
//! for `loom-tests/` and `tests/threads.rs`.
//!
//! Every third seed has a scheduler whose callbacks rearm their timers; the others have one-shot and periodic ones. In
//! each, most timers are found by their keys, and some by their handles only.
//!
//! `SHARDWHEEL_SEED=7 cargo test simulation` repeats one seed, `SHARDWHEEL_SEEDS=100000` runs that many.

mod oracle;
mod world;

use crate::builder::Parts;
use crate::callback::Callback;
use crate::clock::Clock;
use crate::executor::Executor;
use crate::scheduler::Scheduler;
use crate::shard::Tick;
use crate::worker::{Left, NO_LIMIT, Worker};
use oracle::{Counts, TICK};
use std::sync::Arc;
use world::{Key, Rng, Sut, SutCore, Value, World, lock};

const SEEDS_DEFAULT: u64 = 2_000;
const STEPS: usize = 150;
const FIRST_TICKS: [u64; 5] = [0, 1, (1 << 36) - 40, (1 << 42) - 40, (1 << 63) - 40];

struct Simulation {
    scheduler: Sut,
    core: Arc<SutCore>,
    workers: Vec<Worker<Key, Value>>,
    world: Arc<World>,
    capacity: usize,
}

impl Simulation {
    fn new(seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let first_tick = FIRST_TICKS[rng.below(FIRST_TICKS.len() as u64) as usize];
        let shards = 1 + rng.below(3) as usize;
        let capacity = 4 + rng.below(12) as usize;
        let rearms = seed.is_multiple_of(3);
        let world = Arc::new(World::new(rng, capacity, rearms));
        let own = Arc::clone(&world);
        let callback = if rearms {
            Callback::Rearming(Box::new(move |key: &Key, value: &mut Value| own.on_expiry(key.number, value)))
        } else {
            Callback::Plain(Box::new(move |key: &Key, value: Value| {
                own.on_expiry(key.number, &value);
            }))
        };
        let builder = Scheduler::builder().tick(TICK).shards(shards).capacity(capacity).first_tick(first_tick);
        let clock = Clock::manual(TICK, Tick(first_tick));
        let Parts { core, runner, hasher, .. } = builder.into_parts(clock, Executor::Inline, callback);
        let scheduler = Scheduler::new(Arc::clone(&core), runner, hasher, Vec::new());
        let workers = (0..shards).map(|index| Worker::new(Arc::clone(&core), index, None)).collect();
        world.set(&scheduler, &core);
        Self { scheduler, core, workers, world, capacity }
    }

    fn step(&mut self) {
        match self.world.pick(20) {
            0..=8 => self.world.act(None),
            9..=12 => self.advance(),
            13..=18 => self.run_shard(),
            _ => self.world.move_clock(|now| now.saturating_sub(self.world.pick(50_000_000))),
        }
        self.check();
    }

    fn advance(&mut self) {
        let by = match self.world.pick(16) {
            0 => self.world.pick(1 << 50),
            1 => self.world.pick(1 << 33),
            _ => self.world.pick(20_000_000),
        };
        self.world.move_clock(|now| now + by);
    }

    /// One shard takes a step, or does all there is to do; the others stall.
    fn run_shard(&mut self) {
        let index = self.world.pick(self.workers.len() as u64) as usize;
        if self.world.pick(4) == 0 {
            let worker = &mut self.workers[index];
            let now = self.core.clock.tick_at(worker.read_clock());
            worker.step(now);
        } else {
            self.settle(index);
        }
    }

    /// Runs a shard until it would go to sleep; returns the tick until which it would. Checks that it does not go to
    /// sleep while a timer is due, nor beyond the next deadline.
    fn settle(&mut self, index: usize) -> Option<Tick> {
        let worker = &mut self.workers[index];
        let now = self.core.clock.tick_at(worker.read_clock());
        let next = loop {
            while worker.step(now) != Left::Nothing || worker.has_mail() {}
            while self.core.growth.step(index, worker.shard()) {}
            // This may meet timers that are due, too.
            let next = worker.next_deadline(now, NO_LIMIT, usize::MAX);
            if !worker.has_mail() {
                break next;
            }
        };
        for (key, timer) in lock(&self.world.model).pending() {
            let Some(due) = timer.due().map(|due| due.max(timer.awaited)).filter(|_| self.world.shard_of(key) == index)
            else {
                continue;
            };
            assert!(due > now.0, "asleep at {now:?} although {key} was due at {due}");
            let next = next.expect("a worker with a timer has a deadline");
            assert!(next.0 <= due, "asleep until {next:?}, beyond {due}");
        }
        next
    }

    fn check(&self) {
        let stats = self.scheduler.stats();
        let model = lock(&self.world.model);
        assert!(model.claims.is_empty(), "claimed, and never fired: {:?}", model.claims);
        let counts = Counts {
            scheduled: stats.scheduled,
            rearmed: stats.rearmed,
            rescheduled: stats.rescheduled,
            replaced: stats.replaced,
            cancelled: stats.cancelled,
            fired: stats.fired,
            drained: stats.drained,
            rejected: stats.rejected,
            discarded: stats.discarded,
            returned: stats.returned,
            panics: stats.callback_panics,
        };
        assert_eq!(counts, model.counts);
        let ended = stats.fired + stats.replaced + stats.cancelled + stats.drained + stats.discarded + stats.returned;
        // Not with `stats.pending`, which is that difference.
        assert_eq!(stats.scheduled + stats.rearmed, ended + model.timers.len() as u64);
        assert_eq!((stats.pending, self.scheduler.len()), (model.timers.len() as u64, model.timers.len()));
        assert!(stats.pending <= self.capacity as u64);
        assert_eq!(stats.callbacks_waiting, 0);
        self.workers.iter().for_each(Worker::check_invariants);
    }

    /// The end of time: everything fires that ever will.
    fn finish(mut self) {
        self.world.end();
        // Far timers are filed again at the horizon, so this takes a few rounds.
        while let Some(next) = (0..self.workers.len()).filter_map(|index| self.settle(index)).min() {
            self.core.clock.set(self.core.clock.start_of(next).max(self.core.clock.now()));
        }
        assert!(lock(&self.world.model).timers.values().all(|timer| timer.due().is_none()), "lost");
        self.check();
        let (ledger, handles) = (self.world.ledger.clone(), std::mem::take(&mut *lock(&self.world.handles)));
        drop(self);
        // The handles last: they must keep neither keys nor values alive.
        ledger.assert_all_dropped_once();
        assert!(handles.iter().all(|handle| handle.timer.cancel().is_none()));
    }
}

fn run(seed: u64) {
    let mut simulation = Simulation::new(seed);
    for _ in 0..STEPS {
        simulation.step();
    }
    simulation.finish();
}

fn setting(name: &str) -> Option<u64> {
    let value = std::env::var(name).ok()?;
    Some(value.parse().unwrap_or_else(|_| panic!("{name} is {value:?}; accepted: a whole number")))
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
