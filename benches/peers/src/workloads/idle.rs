//! What it costs to wait.

use super::{Job, Workload, batches, start};
use crate::contender::{Caller, Contender, Timer, scramble};
use crate::figures::Report;
use crate::process;
use crate::witness::Witness;
use std::time::Duration;

/// Time for what the calls left behind.
const CALM: Duration = Duration::from_secs(1);

/// Due in 1 h to 2 h.
fn very_far(number: u64) -> Timer {
    Timer::new(number, Duration::from_millis(3_600_000 + scramble(!number) % 3_600_000))
}

pub(super) fn run<C: Contender>(job: &Job) -> Report {
    let contender = start::<C>(job, Witness::new(0));
    let mut caller = contender.caller();
    for batch in batches::<C::Caller>(0..job.population as u64) {
        caller.schedule_all(batch.map(very_far), |_| {});
    }
    contender.settle();
    std::thread::sleep(CALM);
    // To read the number of sleeps takes time itself, so it stays outside of what is measured.
    let sleeps = process::sleeps();
    let cpu = process::cpu(process::Who::Process);
    std::thread::sleep(job.idle);
    let cpu = process::cpu(process::Who::Process) - cpu;
    let sleeps = process::sleeps() - sleeps;
    let each_second = |count: f64| count / job.idle.as_secs_f64();
    let mut report = Report::default();
    report.add(Workload::Idle, [each_second(cpu.as_secs_f64() * 1e6), each_second(sleeps)]);
    report
}
