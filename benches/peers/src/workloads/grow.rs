//! Growing from empty: somebody pays for a table that doubles.

use super::{Job, Workload, batches, far, start};
use crate::contender::{Caller, Contender};
use crate::figures::Report;
use crate::process;
use crate::witness::Witness;
use std::time::{Duration, Instant};

pub(super) fn run<C: Contender>(job: &Job) -> Report {
    let contender = start::<C>(Witness::new(0));
    process::pin(0);
    let mut caller = contender.caller();
    let mut kept = Vec::with_capacity(job.population);
    let mut worst = Duration::ZERO;
    let start = Instant::now();
    let mut last = start;
    for batch in batches::<C::Caller>(0..job.population as u64) {
        caller.schedule_all(batch.map(far), |timer| kept.push(timer.handle));
        // One reading of the clock per call: it ends one and begins the next.
        let now = Instant::now();
        worst = worst.max(now - last);
        last = now;
    }
    let mean = (last - start).as_nanos() as f64 / job.population as f64;
    let mut report = Report::default();
    report.add(Workload::Grow, [mean, worst.as_secs_f64() * 1e6]);
    report
}
