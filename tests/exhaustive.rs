//! Every small case of "schedule with d1, wait, move to d2": fires exactly once, exactly at the right tick.
//!
//! The oracle is the definition and nothing else: a deadline is the first tick at or after the call's time plus the
//! delay, and never the present tick. Timing wheels go wrong where levels meet (64 and 4096 ticks here), where a move
//! is stored as a difference to the old slot, and at large uptimes.

mod support;

use shardwheel::{ManualClock, Scheduler};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use support::{ClockSlot, FIRST_TICKS, lock};

/// In nanoseconds.
const TICK: u64 = 10_000;
/// Key and time of what fired, in nanoseconds since the start.
type Log = Arc<Mutex<Vec<(u32, u64)>>>;

/// How a pending timer is moved.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Move {
    Reschedule,
    Replace,
}

/// One timer's case, all in nanoseconds.
#[derive(Clone, Copy, Debug)]
struct Case {
    first_delay: u64,
    wait: u64,
    second_delay: u64,
}

/// The first tick at or after `now + delay` that is not the present one.
fn due(now: u64, delay: u64) -> u64 {
    (now + delay).div_ceil(TICK).max(now / TICK + 1) * TICK
}

struct Rig {
    scheduler: Scheduler<u32>,
    clock: ManualClock,
    start: Instant,
    log: Log,
}

impl Rig {
    fn new(first_tick: u64) -> Self {
        let (slot, log) = (ClockSlot::default(), Log::default());
        let start = Arc::new(Mutex::new(None));
        let (seen_slot, seen_log, seen_start) = (slot.clone(), Arc::clone(&log), Arc::clone(&start));
        let callback = move |key: &u32, ()| {
            let since: Duration = seen_slot.now() - lock(&seen_start).expect("set before anything fires");
            lock(&seen_log).push((*key, since.as_nanos() as u64));
        };
        let builder = Scheduler::builder().tick(Duration::from_nanos(TICK)).shards(1).first_tick(first_tick);
        let (scheduler, clock) = builder.build_manual(callback).expect("the settings are in range");
        slot.set(&clock);
        *lock(&start) = Some(clock.now());
        let start = clock.now();
        Self { scheduler, clock, start, log }
    }

    fn now(&self) -> u64 {
        (self.clock.now() - self.start).as_nanos() as u64
    }

    fn advance_to(&self, time: u64) {
        self.clock.advance(Duration::from_nanos(time - self.now()));
    }

    fn schedule(&self, key: usize, delay: u64) -> Option<()> {
        self.scheduler.schedule(key as u32, Duration::from_nanos(delay)).expect("it is open and not full")
    }

    /// Moves one timer. Returns whether it was pending.
    fn shift(&self, key: usize, delay: u64, how: Move) -> bool {
        match how {
            Move::Reschedule => self.scheduler.reschedule(&(key as u32), Duration::from_nanos(delay)),
            Move::Replace => self.schedule(key, delay).is_some(),
        }
    }

    /// Runs cases side by side, each with a key of its own; `cases` are sorted by `wait`.
    fn run(&self, cases: &[Case], how: Move) {
        let start = self.now();
        let mut expected = Vec::new();
        for (key, case) in cases.iter().enumerate() {
            assert_eq!(self.schedule(key, case.first_delay), None);
        }
        for (key, case) in cases.iter().enumerate() {
            self.advance_to(start + case.wait);
            let first_due = due(start, case.first_delay);
            let is_pending = first_due > self.now();
            assert_eq!(self.shift(key, case.second_delay, how), is_pending, "{case:?} from {start}");
            let second_due = due(self.now(), case.second_delay);
            match (is_pending, how) {
                (true, _) => expected.push((key as u32, second_due)),
                (false, Move::Reschedule) => expected.push((key as u32, first_due)),
                (false, Move::Replace) => expected.extend([(key as u32, first_due), (key as u32, second_due)]),
            }
        }
        while self.clock.advance_to_next().is_some() {}
        self.compare(expected, cases, start);
    }

    fn compare(&self, mut expected: Vec<(u32, u64)>, cases: &[Case], start: u64) {
        let mut fired = std::mem::take(&mut *lock(&self.log));
        assert!(fired.is_sorted_by_key(|&(_, at)| at), "in order");
        fired.sort_unstable();
        expected.sort_unstable();
        if let Some((fired, expected)) = fired.iter().zip(&expected).find(|(fired, expected)| fired != expected) {
            panic!("{:?} from {start}: fired {fired:?}, expected {expected:?}", cases[expected.0 as usize]);
        }
        assert_eq!(fired.len(), expected.len());
        assert_eq!(self.scheduler.len(), 0);
    }
}

/// All combinations, sorted by the time to wait.
fn cases(first_delays: &[u64], waits: &[u64], second_delays: &[u64]) -> Vec<Case> {
    let mut cases = Vec::new();
    for &wait in waits {
        for &first_delay in first_delays {
            cases.extend(second_delays.iter().map(|&second_delay| Case { first_delay, wait, second_delay }));
        }
    }
    cases
}

fn ticks(counts: impl IntoIterator<Item = u64>) -> Vec<u64> {
    counts.into_iter().map(|count| count * TICK).collect()
}

/// Runs the cases at every uptime, and from three positions of the wheel's hands.
fn run_everywhere(cases: &[Case], how: Move) {
    for first_tick in FIRST_TICKS {
        for start in [0, 1, 61] {
            let rig = Rig::new(first_tick);
            rig.advance_to(start * TICK);
            rig.run(cases, how);
        }
    }
}

#[test]
fn all_small_moves_fire_once_at_the_right_tick() {
    let small = ticks(0..=80);
    // One first delay at a time, so that hints of all ticks do not crowd the wheel.
    for &first_delay in &small {
        run_everywhere(&cases(&[first_delay], &small, &small), Move::Reschedule);
    }
}

#[test]
fn all_small_replacements_fire_once_at_the_right_tick() {
    let small = ticks((0..=12).chain(60..=68));
    run_everywhere(&cases(&small, &small, &small), Move::Replace);
}

#[test]
fn moves_across_levels_fire_once_at_the_right_tick() {
    let near = [0, 1, 2, 62, 63, 64, 65, 66, 127, 128, 129];
    let far = [4031, 4032, 4094, 4095, 4096, 4097, 4098, 4159, 4160, 4161, 8191, 8192, 262_143, 262_144, 262_145];
    let all = ticks(near.into_iter().chain(far));
    for how in [Move::Reschedule, Move::Replace] {
        run_everywhere(&cases(&all, &all, &all), how);
    }
}

#[test]
fn moves_at_parts_of_a_tick_fire_once_at_the_right_tick() {
    let counts = [0, 1, 2, 63, 64, 65, 4095, 4096, 4097];
    let parts = [0, 1, TICK / 2, TICK - 1];
    let all: Vec<u64> = counts.iter().flat_map(|count| parts.map(|part| count * TICK + part)).collect();
    for how in [Move::Reschedule, Move::Replace] {
        run_everywhere(&cases(&all, &all, &all), how);
    }
}

/// Each timer is alone in its wheel, and every case starts from scratch: no other timer makes the worker look by
/// chance.
#[test]
fn a_lone_timer_moves_to_the_right_tick() {
    let some = ticks([0, 1, 2, 3, 5, 9, 10, 16, 62, 63, 64, 65, 66, 80, 128, 4096]);
    for first_tick in FIRST_TICKS {
        let rig = Rig::new(first_tick);
        for case in cases(&some, &some, &some) {
            rig.run(&[case], Move::Reschedule);
        }
    }
}
