//! A wheel of one's own, moved through an hour a millisecond at a time: what waits in a far slot has to be taken apart
//! at some point. The machine has its own part in the worst step, so a loop of nothing is watched for as long. (The
//! cost of a value includes 3.6 million readings of the clock.)

use super::steps::{Steps, on_core};
use super::{Job, Workload, far};
use crate::contender::Wheel;
use crate::figures::Report;

const HOUR_MS: usize = 3_600_000;
/// How late the last timers may be.
const SLACK_MS: usize = 100;

pub(crate) fn run<W: Wheel>(job: &Job) -> Report {
    // How many are due at each millisecond, from the first on.
    let mut due = vec![0_u32; HOUR_MS + SLACK_MS];
    numbers(job).for_each(|number| due[far(number).delay.as_millis() as usize - 1] += 1);
    let (insert, advance, [expired, early, late]) = on_core(0, || turn::<W>(job, &due));
    let nothing = on_core(0, || Steps::of_nothing(advance.length()));
    let mean = |steps: &Steps| steps.length().as_nanos() as f64 / job.population as f64;
    let worst = |steps: &Steps| steps.worst.as_secs_f64() * 1e6;
    let mut report = Report::default();
    report.add(Workload::Advance, [mean(&insert), mean(&advance), worst(&advance), worst(&nothing)]);
    if early > 0 {
        report.fault(format!("{early} fired early"));
    }
    if late > 0 {
        report.fault(format!("{late} at a time were late by a step or more"));
    }
    if expired != job.population {
        report.fault(format!("{expired} of {} expired", job.population));
    }
    report
}

fn numbers(job: &Job) -> std::ops::Range<u64> {
    0..job.population as u64
}

/// The steps of inserting (one), and of each millisecond. How many values expired; at most how many before a step at
/// which they were due, and how many after it.
fn turn<W: Wheel>(job: &Job, due: &[u32]) -> (Steps, Steps, [usize; 3]) {
    let mut wheel = W::default();
    let mut insert = Steps::begin();
    numbers(job).for_each(|number| wheel.insert(far(number).delay, number));
    insert.step();
    let (mut expired, mut expected) = (0_usize, 0_usize);
    let (mut early, mut late) = (0, 0);
    let mut advance = Steps::begin();
    for &due in due {
        expired += wheel.step();
        expected += due as usize;
        early = early.max(expired.saturating_sub(expected));
        late = late.max(expected.saturating_sub(expired));
        advance.step();
    }
    (insert, advance, [expired, early, late])
}
