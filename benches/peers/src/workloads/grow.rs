//! Growing from empty: some call pays for a table that doubles. And the machine has its own part in the worst call. If
//! it is a virtual machine, it is stopped now and then while all its cores are busy, or while its host finds memory for
//! it. That part is separated as far as the system reports it (waiting for memory that the host has yet to find counts
//! as the call's own). And a loop of nothing is watched for as long, while the other cores get as much memory.

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
    let contender = start::<C>(job, Witness::new(0));
    let before = process::resident_bytes();
    let (calls, _kept) = on_core(0, || fill::<C>(contender, job.population));
    let settling = Instant::now();
    contender.settle();
    // What was put off belongs to the calls' cost.
    let mean = (calls.length() + settling.elapsed()).as_nanos() as f64 / job.population as f64;
    let grown = process::resident_bytes() - before;
    let nothing = step_beside_growing_cores(calls.length(), grown.max(0.0));
    let mut report = Report::default();
    let worst = [calls.worst, calls.worst_own, nothing.worst].map(|worst| worst.as_secs_f64() * 1e6);
    report.add(Workload::Grow, [mean, worst[0], worst[1], worst[2]]);
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

/// Steps of nothing for `length`, while threads keep the other cores busy, and gradually write to `bytes` bytes of new
/// memory.
fn step_beside_growing_cores(length: Duration, bytes: f64) -> Steps {
    let others = available_parallelism().map_or(1, NonZero::get) - 1;
    let (busy, is_over) = (&AtomicUsize::new(0), &AtomicBool::new(false));
    thread::scope(|scope| {
        let _end = SetOnDrop(is_over);
        for core in 1..=others {
            scope.spawn(move || {
                process::pin(core);
                let bytes = bytes / others as f64;
                let mut memory = Vec::<u8>::with_capacity(bytes as usize);
                busy.fetch_add(1, Relaxed);
                let start = Instant::now();
                while !is_over.load(Relaxed) {
                    let part = start.elapsed().div_duration_f64(length).min(1.0);
                    memory.resize((bytes * part) as usize, 1);
                }
            });
        }
        while busy.load(Relaxed) < others {
            thread::yield_now();
        }
        on_core(0, || Steps::of_nothing(length))
    })
}

/// Ends the other threads' loops, even if one of the threads could not be started.
struct SetOnDrop<'a>(&'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}
