//! What memory timers take, and what they leave behind. Users keep handles, so these count; a timer named by its key
//! has none.

use super::calls::requests;
use super::{Job, Workload, batches, far, start};
use crate::contender::{Caller, Contender, Pending};
use crate::figures::Report;
use crate::process;
use crate::witness::Witness;
use std::time::Duration;

/// Time for what the calls left behind.
const CALM: Duration = Duration::from_millis(500);
const DAY: Duration = Duration::from_secs(86_400);

fn resident_when_calm(contender: &impl Contender) -> f64 {
    contender.settle();
    std::thread::sleep(CALM);
    process::resident_bytes()
}

pub(super) fn pending<C: Contender>(job: &Job) -> Report {
    let contender = start::<C>(job, Witness::new(0));
    let mut caller = contender.caller();
    let before = resident_when_calm(contender);
    let mut kept = Vec::with_capacity(job.population);
    for batch in batches::<C::Caller>(0..job.population as u64) {
        caller.schedule_all(batch.map(far), |timer| kept.push(timer.handle));
    }
    let full = resident_when_calm(contender);
    let mut timers = (0..).zip(kept).map(|(number, handle)| Pending { number, handle });
    let batch = <C::Caller as Caller>::BATCH;
    let batches = (0..job.population).step_by(batch);
    let cancelled: usize = batches.map(|_| caller.cancel_all(timers.by_ref().take(batch))).sum();
    drop(timers);
    let empty = resident_when_calm(contender);
    let each = |bytes: f64| bytes / job.population as f64;
    let mut report = Report::default();
    report.add(Workload::Memory, [each(full - before), each(empty - before)]);
    if cancelled < job.population {
        report.fault(format!("memory: {cancelled} of {} were pending", job.population));
    }
    report
}

pub(super) fn churn<C: Contender>(job: &Job) -> Report {
    let contender = start::<C>(job, Witness::new(0));
    let mut caller = contender.caller();
    let before = resident_when_calm(contender);
    let cancelled = requests(&mut caller, 0..job.population as u64, DAY);
    let after = resident_when_calm(contender);
    let mut report = Report::default();
    report.add(Workload::Churn, [(after - before) / f64::from(1 << 20)]);
    if cancelled < job.population {
        report.fault(format!("churn: {cancelled} of {} were pending", job.population));
    }
    report
}
