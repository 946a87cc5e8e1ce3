//! How late timers fire when many are due, and what that costs.
//!
//! Deadlines are spread evenly over one second, and timers are scheduled before that. A deadline is a moment fixed
//! before the call, so a timer that fires before it breaks what `sleep` promises.

use super::{Job, SPREAD, Workload, start, with_lead};
use crate::contender::{Caller, Contender, Timer};
use crate::figures::Report;
use crate::process;
use crate::witness::{Verdict, Witness};
use std::time::{Duration, Instant};

const LEAD_PER_TIMER: Duration = Duration::from_micros(4);
/// Time after the last deadline without any progress.
const PATIENCE: Duration = Duration::from_secs(5);

/// The timers are scheduled in this `order`; their numbers are in that of their deadlines.
pub(super) fn run<C: Contender>(job: &Job, workload: Workload, order: Vec<u32>) -> Report {
    let mut report = Report::default();
    match with_lead(job, LEAD_PER_TIMER, |lead| attempt::<C>(job, &order, lead)) {
        Some((verdict, cpu)) => add(&mut report, workload, job.population, &verdict, cpu),
        None => report.fault(format!("{}: the calls did not end before the first deadline", workload.name())),
    }
    report
}

/// `None` if the first deadline came too soon.
fn attempt<C: Contender>(job: &Job, order: &[u32], lead: Duration) -> Option<(Verdict, Duration)> {
    let witness = Witness::new(job.population);
    let contender = start::<C>(job, witness);
    let first = Instant::now() + lead;
    let deadline = |number: u64| first + SPREAD.mul_f64(number as f64 / job.population as f64);
    let mut caller = contender.caller();
    let timer = |&number: &u32| {
        let number = u64::from(number);
        Timer::new(number, deadline(number).saturating_duration_since(Instant::now()))
    };
    for batch in order.chunks(<C::Caller as Caller>::BATCH) {
        caller.schedule_all(batch.iter().map(timer), |_| {});
    }
    contender.settle();
    let cpu = process::cpu(process::Who::Process);
    std::thread::sleep(first.checked_duration_since(Instant::now())? + SPREAD);
    witness.wait(PATIENCE);
    // Before the records are evaluated, which is not the service's work.
    let cpu = process::cpu(process::Who::Process) - cpu;
    Some((witness.verdict(deadline), cpu))
}

fn add(report: &mut Report, workload: Workload, population: usize, verdict: &Verdict, cpu: Duration) {
    let count = verdict.lateness.len();
    let at = |per_mille: usize| {
        let place = (count * per_mille).div_ceil(1000).saturating_sub(1);
        verdict.lateness.get(place).map_or(f64::NAN, |late| late.as_secs_f64() * 1e6)
    };
    let cpu = cpu.as_nanos() as f64 / population as f64;
    let counts = [verdict.early, verdict.lost, verdict.twice].map(|count| count as f64);
    let [early, lost, twice] = counts;
    report.add(workload, [at(500), at(990), at(999), at(1000), cpu, early, lost, twice]);
    for (name, count) in [("early", early), ("not at all", lost), ("twice", twice)] {
        if count > 0.0 {
            report.fault(format!("{}: {count} of {population} fired {name}", workload.name()));
        }
    }
}
