//! Instructions per operation, counted by valgrind: the same on a busy machine as on an idle one.
//!
//! `.ci/instructions` runs each workload under callgrind, which counts within `measured` only, and compares with the
//! bounds in `benches/instructions.tsv`. It sees what a change adds to a call; it does not see cache misses, contention
//! or what an instruction costs: for those there is the comparison of `cargo bench`.
//!
//! One thread and a manual clock, so that nothing depends on time; an own hasher, so that nothing depends on chance.

use shardwheel::{ManualClock, Scheduler};
use std::hash::{BuildHasherDefault, Hasher};
use std::hint::black_box;
use std::process::ExitCode;
use std::time::Duration;

/// Operations of a workload: enough to average out what happens once per batch or per tick.
const COUNT: u64 = 20_000;
const STANDING: u64 = 50_000;
const IN_FLIGHT: u64 = 1024;
const TIMEOUT: Duration = Duration::from_secs(30);

#[derive(Default)]
struct Mix(u64);

impl Hasher for Mix {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&byte| self.write_u64(byte.into()));
    }
    fn write_u64(&mut self, key: u64) {
        self.0 = (self.0 ^ key).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(32);
    }
    fn finish(&self) -> u64 {
        self.0
    }
}

type Timers = Scheduler<u64, u64, BuildHasherDefault<Mix>>;

fn timers() -> (Timers, ManualClock) {
    let builder = Scheduler::builder().shards(1).hasher(BuildHasherDefault::<Mix>::default());
    builder.build_manual(|_: &u64, value: u64| _ = black_box(value)).expect("the settings are in range")
}

fn start(timers: &Timers, key: u64, delay: Duration) {
    timers.schedule_with(key, key, delay).expect("it is open and not full");
}

/// Timers that stay, and a worker that has done all that it can do ahead.
fn standing() -> (Timers, ManualClock) {
    let (timers, clock) = timers();
    (0..STANDING).for_each(|key| start(&timers, key, TIMEOUT + Duration::from_millis(key % 1000)));
    (0..IN_FLIGHT).for_each(|i| start(&timers, STANDING + i, TIMEOUT));
    clock.advance(Duration::from_millis(10));
    (timers, clock)
}

fn schedule() {
    let (timers, _clock) = timers();
    measured(|| (0..COUNT).for_each(|key| start(&timers, key, TIMEOUT)));
}

fn rpc() {
    let (timers, _clock) = standing();
    let pair = |i| {
        start(&timers, STANDING + IN_FLIGHT + i, TIMEOUT);
        assert!(timers.cancel(&(STANDING + i)).is_some());
    };
    (0..COUNT).for_each(pair);
    measured(|| (COUNT..2 * COUNT).for_each(pair));
}

/// Every move is to an earlier deadline.
fn sooner() {
    let (timers, _clock) = standing();
    measured(|| (0..COUNT).for_each(|i| assert!(timers.reschedule(&(i * 7919 % STANDING), TIMEOUT))));
}

/// Every move is to a later deadline.
fn heartbeat() {
    let (timers, _clock) = standing();
    measured(|| (0..COUNT).for_each(|i| assert!(timers.reschedule(&(i * 7919 % STANDING), 2 * TIMEOUT))));
}

fn batches() {
    let (timers, _clock) = standing();
    let batch = |from: u64| timers.schedule_batch((from..from + 100).map(|key| (key, key, TIMEOUT)));
    measured(|| {
        for from in (0..COUNT).step_by(100).map(|i| STANDING + IN_FLIGHT + i) {
            drop(batch(from));
            drop(timers.cancel_batch(&(from..from + 100).collect::<Vec<_>>()));
        }
    });
}

fn expire() {
    let (timers, clock) = timers();
    (0..COUNT).for_each(|key| start(&timers, key, Duration::from_millis(100 + key % 1000)));
    measured(|| assert_eq!(clock.advance(Duration::from_secs(2)) as u64, COUNT));
}

/// What callgrind counts.
#[inline(never)]
fn measured(run: impl FnOnce()) {
    black_box(run)();
}

const WORKLOADS: [(&str, fn()); 6] = [
    ("schedule", schedule),
    ("rpc", rpc),
    ("sooner", sooner),
    ("heartbeat", heartbeat),
    ("batches", batches),
    ("expire", expire),
];

fn main() -> ExitCode {
    // `cargo bench` adds `--bench`.
    let wanted: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    let known = WORKLOADS.iter().find(|(name, _)| wanted.first().is_some_and(|wanted| wanted == name));
    match known {
        Some((_, run)) => run(),
        None if wanted.is_empty() => println!("instructions are counted by .ci/instructions, with valgrind"),
        None => {
            let names = WORKLOADS.map(|(name, _)| name).join(", ");
            eprintln!("unknown workload {:?}; accepted: {names}", wanted[0]);
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}
