//! Growing from empty: somebody pays for a table that doubles. And the machine has its own part in the worst call: if it is a virtual
//! one, it is stopped now and then while all its cores are busy. So a loop of nothing is watched for as long, beside such loops on
//! the other cores.

use super::{Job, Workload, batches, far, start};
use crate::contender::{Caller, Contender};
use crate::figures::Report;
use crate::process;
use crate::witness::Witness;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::{self, available_parallelism};
use std::time::{Duration, Instant};

pub(super) fn run<C: Contender>(job: &Job) -> Report {
    let contender = start::<C>(Witness::new(0));
    process::pin(0);
    let mut caller = contender.caller();
    let mut kept = Vec::with_capacity(job.population);
    let mut calls = Steps::begin();
    for batch in batches::<C::Caller>(0..job.population as u64) {
        caller.schedule_all(batch.map(far), |timer| kept.push(timer.handle));
        calls.step();
    }
    contender.settle();
    let nothing = step_beside_busy_threads(calls.length());
    let mean = calls.length().as_nanos() as f64 / job.population as f64;
    let mut report = Report::default();
    report.add(Workload::Grow, [mean, calls.worst.as_secs_f64() * 1e6, nothing.worst.as_secs_f64() * 1e6]);
    report
}

/// Steps of nothing for so long, while threads keep the other cores busy.
fn step_beside_busy_threads(length: Duration) -> Steps {
    let is_over = AtomicBool::new(false);
    let others = available_parallelism().map_or(0, |cores| cores.get() - 1);
    thread::scope(|scope| {
        for core in 1..=others {
            let is_over = &is_over;
            scope.spawn(move || {
                process::pin(core);
                while !is_over.load(Relaxed) {}
            });
        }
        let mut steps = Steps::begin();
        while steps.length() < length {
            steps.step();
        }
        is_over.store(true, Relaxed);
        steps
    })
}

/// Steps that follow one another, each timed.
struct Steps {
    start: Instant,
    /// The end of the last one, and the beginning of the next: one reading of the clock for both.
    last: Instant,
    worst: Duration,
}

impl Steps {
    fn begin() -> Self {
        let start = Instant::now();
        Self { start, last: start, worst: Duration::ZERO }
    }

    fn step(&mut self) {
        let now = Instant::now();
        self.worst = self.worst.max(now - self.last);
        self.last = now;
    }

    fn length(&self) -> Duration {
        self.last - self.start
    }
}
