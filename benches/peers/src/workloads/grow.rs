//! Growing from empty: somebody pays for a table that doubles. And the machine has its own part in the worst call: if it is a virtual
//! one, it is stopped now and then while all its cores are busy. So a loop of nothing is watched for as long, beside such loops on
//! the other cores.

use super::steps::{Steps, on_core};
use super::{Job, Workload, batches, far, start};
use crate::contender::{Caller, Contender};
use crate::figures::Report;
use crate::process;
use crate::witness::Witness;
use std::num::NonZero;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::thread::{self, available_parallelism};
use std::time::{Duration, Instant};

pub(super) fn run<C: Contender>(job: &Job) -> Report {
    let contender = start::<C>(Witness::new(0));
    let (calls, _kept) = on_core(0, || fill::<C>(contender, job.population));
    let settling = Instant::now();
    contender.settle();
    // What was put off belongs to the cost of the calls.
    let mean = (calls.length() + settling.elapsed()).as_nanos() as f64 / job.population as f64;
    let nothing = step_beside_busy_cores(calls.length());
    let mut report = Report::default();
    report.add(Workload::Grow, [mean, calls.worst.as_secs_f64() * 1e6, nothing.worst.as_secs_f64() * 1e6]);
    report
}

fn fill<C: Contender>(contender: &'static C, population: usize) -> (Steps, Vec<<C::Caller as Caller>::Handle>) {
    let mut caller = contender.caller();
    let mut kept = Vec::with_capacity(population);
    let mut calls = Steps::begin();
    for batch in batches::<C::Caller>(0..population as u64) {
        caller.schedule_all(batch.map(far), |timer| kept.push(timer.handle));
        calls.step();
    }
    (calls, kept)
}

/// Steps of nothing for `length`, while threads keep the other cores busy.
fn step_beside_busy_cores(length: Duration) -> Steps {
    let others = available_parallelism().map_or(1, NonZero::get) - 1;
    let (busy, is_over) = (&AtomicUsize::new(0), &AtomicBool::new(false));
    thread::scope(|scope| {
        let _end = SetOnDrop(is_over);
        for core in 1..=others {
            scope.spawn(move || {
                process::pin(core);
                busy.fetch_add(1, Relaxed);
                while !is_over.load(Relaxed) {}
            });
        }
        while busy.load(Relaxed) < others {
            thread::yield_now();
        }
        on_core(0, || Steps::of_nothing(length))
    })
}

/// Ends the other threads' loops, also if one of them could not be started.
struct SetOnDrop<'a>(&'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}
