//! What a timer that is moved later costs afterwards, when its old deadline comes: ours is looked at then and filed
//! again, tokio's filed again, and queues that cannot take out find a stale entry.

use super::{HEARTBEAT, Job, SPREAD, Workload, batches, random_order, start, with_lead};
use crate::contender::{Caller, Contender, Row, Timer, scramble};
use crate::figures::Report;
use crate::process;
use crate::witness::Witness;
use std::time::{Duration, Instant};

const LEAD_PER_TIMER: Duration = Duration::from_micros(5);
/// After the last one, for services that are late.
const CALM: Duration = Duration::from_millis(500);

pub(super) fn run<C: Contender>(job: &Job) -> Report {
    let mut report = Report::default();
    match with_lead(job, LEAD_PER_TIMER, |lead| attempt::<C>(job, lead, &mut report)) {
        Some(cpu) => report.add(Workload::Deferred, [cpu.as_nanos() as f64 / job.population as f64]),
        None => report.fault("deferred: the calls take too long for so many timers".to_owned()),
    }
    report
}

/// `None` if the first old deadline came too soon, or lies so late that to move to [`HEARTBEAT`] is to move nearer.
fn attempt<C: Contender>(job: &Job, lead: Duration, report: &mut Report) -> Option<Duration> {
    if lead + SPREAD > HEARTBEAT {
        return None;
    }
    let witness = Witness::new(0);
    let contender = start::<C>(job, witness);
    let first = Instant::now() + lead;
    let mut caller = contender.caller();
    let mut timers = Vec::with_capacity(job.population);
    let timer = |number: u64| {
        let deadline = first + SPREAD.mul_f64((scramble(!number) % 1000) as f64 / 1000.0);
        Timer::new(number, deadline.saturating_duration_since(Instant::now()))
    };
    for batch in batches::<C::Caller>(0..job.population as u64) {
        caller.schedule_all(batch.map(timer), |timer| timers.push(timer));
    }
    let (mut row, order) = (Row::new(timers), random_order(job.population));
    let mut moved = 0;
    for batch in order.chunks(<C::Caller as Caller>::BATCH) {
        moved += caller.reschedule_all(&mut row, batch.iter().map(|&place| place as usize), HEARTBEAT);
    }
    contender.settle();
    let until_first = first.checked_duration_since(Instant::now())?;
    let cpu = process::cpu(process::Who::Process);
    std::thread::sleep(until_first + SPREAD + CALM);
    let cpu = process::cpu(process::Who::Process) - cpu;
    let fired = witness.uncounted();
    if moved < job.population || fired > 0 {
        report.fault(format!("deferred: {moved} of {} were moved, and {fired} fired", job.population));
    }
    Some(cpu)
}
