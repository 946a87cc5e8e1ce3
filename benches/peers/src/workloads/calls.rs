//! What a call costs, from each of several threads.
//!
//! `wall` is the time from the first caller's start until the last caller's thread has ended and the service has done
//! what it put off, divided by all callers' operations: with two callers, if it scales, it halves. `cpu` is the time
//! that all of the process's threads ran in between.
//!
//! `core` is the part of its time that the caller which got least of its core has run. It falls where callers sleep,
//! behind a lock; and where they have to share their cores with other programs, or with the service's own threads: then
//! the wall time is not what the calls take.

use super::{HEARTBEAT, Job, Workload, batches, far, random_order, shuffle, start};
use crate::contender::{Caller, Contender, Pending, Row, Timer, random_below};
use crate::figures::Report;
use crate::process;
use crate::witness::Witness;
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Barrier;
use std::time::{Duration, Instant};

/// Requests that each caller has in flight.
const IN_FLIGHT: usize = 1024;
const RPC_TIMEOUT: Duration = Duration::from_secs(30);

type Handle<C> = <<C as Contender>::Caller as Caller>::Handle;
/// By caller.
type Shares<C> = Vec<Vec<Pending<Handle<C>>>>;
type Rows<C> = Vec<Row<Handle<C>>>;
/// The places in a row of those that move, and the row.
type Moves<C> = (Vec<u32>, Row<Handle<C>>);

pub(super) fn run<C: Contender>(job: &Job) -> Report {
    let witness = Witness::new(0);
    let mut stage = Stage { contender: start::<C>(job, witness), witness, job, report: Report::default() };
    let mut timers = stage.schedule(Workload::Schedule, 0);
    if job.wants(Workload::Rpc) {
        stage.rpc();
    }
    if job.wants(Workload::Cancel) || job.wants(Workload::Recycled) {
        stage.cancel(timers);
        timers = stage.schedule(Workload::Recycled, job.population as u64);
    }
    // These come last, because their timers would be due first.
    if job.wants(Workload::Sooner) || job.wants(Workload::Heartbeat) {
        let rows = stage.sooner(timers);
        stage.heartbeat(rows);
    }
    stage.report
}

struct Stage<'a, C: 'static> {
    contender: &'static C,
    witness: &'static Witness,
    job: &'a Job,
    report: Report,
}

impl<C: Contender> Stage<'_, C> {
    /// `first` is the number of the first timer.
    fn schedule(&mut self, workload: Workload, first: u64) -> Shares<C> {
        let shares = shares(self.job.population, self.job.callers, first);
        self.measure(workload, self.job.population, shares, |caller, numbers| {
            let mut timers = Vec::with_capacity((numbers.end - numbers.start) as usize);
            for batch in batches::<C::Caller>(numbers) {
                caller.schedule_all(batch.map(far), |timer| timers.push(timer));
            }
            timers
        })
    }

    fn rpc(&mut self) {
        // Numbers beyond all others.
        let shares = shares(self.job.operations, self.job.callers, 2 * self.job.population as u64);
        let pending = self.measure(Workload::Rpc, self.job.operations, shares, |caller, numbers| {
            requests(caller, numbers, RPC_TIMEOUT)
        });
        self.expect_all(Workload::Rpc, self.job.operations, pending.into_iter().sum());
    }

    fn cancel(&mut self, mut timers: Shares<C>) {
        timers.iter_mut().for_each(|share| shuffle(share));
        let pending = self.measure(Workload::Cancel, self.job.population, timers, |caller, share| {
            let mut share = share.into_iter();
            let batch = <C::Caller as Caller>::BATCH;
            let batches = (0..share.len()).step_by(batch);
            batches.map(|_| caller.cancel_all(share.by_ref().take(batch))).sum::<usize>()
        });
        self.expect_all(Workload::Cancel, self.job.population, pending.into_iter().sum());
    }

    /// Each timer once. Afterwards all are due in 30 s or less, like those of connections that were used not long ago.
    fn sooner(&mut self, timers: Shares<C>) -> Rows<C> {
        let shares = timers.into_iter().map(|share| (random_order(share.len()), Row::new(share))).collect();
        self.moves(Workload::Sooner, self.job.population, shares)
    }

    fn heartbeat(&mut self, rows: Rows<C>) {
        let counts = shares(self.job.operations, self.job.callers, 0).into_iter();
        let random = |row: &Row<_>, beats: Range<u64>| beats.map(|beat| random_below(row.len(), beat) as u32).collect();
        let shares = rows.into_iter().zip(counts).map(|(row, beats)| (random(&row, beats), row)).collect();
        self.moves(Workload::Heartbeat, self.job.operations, shares);
    }

    /// Moves timers to 30 s from now: those at the given places of their row.
    fn moves(&mut self, workload: Workload, operations: usize, shares: Vec<Moves<C>>) -> Rows<C> {
        let moved = self.measure(workload, operations, shares, |caller, (places, mut row)| {
            let mut pending = 0;
            for batch in places.chunks(<C::Caller as Caller>::BATCH) {
                pending += caller.reschedule_all(&mut row, batch.iter().map(|&place| place as usize), HEARTBEAT);
            }
            (row, pending)
        });
        let (rows, pending): (Vec<_>, Vec<_>) = moved.into_iter().unzip();
        self.expect_all(workload, operations, pending.into_iter().sum());
        rows
    }

    /// A timer that was not pending has fired, or is lost. (The longest runs of the slowest services outlast the
    /// shortest delays.)
    fn expect_all(&mut self, workload: Workload, operations: usize, pending: usize) {
        let (missing, fired) = (operations - pending, self.witness.uncounted());
        if missing > 0 {
            let name = workload.name();
            self.report.fault(format!("{name}: {missing} of {operations} were not pending; {fired} have fired"));
        }
    }

    /// Runs `work` on a pinned thread per share, all at once.
    fn measure<T: Send, R: Send>(
        &mut self,
        workload: Workload,
        operations: usize,
        shares: Vec<T>,
        work: impl Fn(&mut C::Caller, T) -> R + Sync,
    ) -> Vec<R> {
        let (contender, work) = (self.contender, &work);
        // The callers, and this thread, which asks for the processor time.
        let barrier = &Barrier::new(shares.len() + 1);
        let (mut starts, mut results) = (Vec::new(), Vec::new());
        let mut core = f64::INFINITY;
        let mut cpu = Duration::ZERO;
        std::thread::scope(|scope| {
            let spawn = |(index, share)| scope.spawn(move || call(contender, index, barrier, || share, work));
            let threads: Vec<_> = shares.into_iter().enumerate().map(spawn).collect();
            cpu = process::cpu(process::Who::Process);
            barrier.wait();
            for thread in threads {
                let (start, share, result) = thread.join().expect("a caller failed");
                starts.push(start);
                core = core.min(share);
                results.push(result);
            }
        });
        contender.settle();
        let wall = starts.iter().min().map_or(Duration::ZERO, Instant::elapsed);
        let cpu = process::cpu(process::Who::Process) - cpu;
        if self.job.wants(workload) {
            let each = |time: Duration| time.as_nanos() as f64 / operations as f64;
            self.report.add(workload, [each(wall), each(cpu), 100.0 * core]);
        }
        results
    }
}

/// One caller's thread. Returns when it began, and the part of its time that it ran.
fn call<C: Contender, T, R>(
    contender: &'static C,
    index: usize,
    barrier: &Barrier,
    share: impl FnOnce() -> T,
    work: impl Fn(&mut C::Caller, T) -> R,
) -> (Instant, f64, R) {
    process::pin(index);
    let mut caller = contender.caller();
    barrier.wait();
    let (start, ran) = (Instant::now(), process::cpu(process::Who::ThisThread));
    let result = work(&mut caller, share());
    let ran = process::cpu(process::Who::ThisThread) - ran;
    (start, ran.div_duration_f64(start.elapsed()), result)
}

/// Schedules and cancels, with up to `IN_FLIGHT` (and a batch) at a time. Returns how many were pending when cancelled.
pub(super) fn requests<C: Caller>(caller: &mut C, numbers: Range<u64>, timeout: Duration) -> usize {
    let mut under_way = VecDeque::with_capacity(IN_FLIGHT + C::BATCH);
    let mut pending = 0;
    for batch in batches::<C>(numbers) {
        caller.schedule_all(batch.map(|number| Timer::new(number, timeout)), |timer| under_way.push_back(timer));
        if under_way.len() > IN_FLIGHT {
            pending += cancel_oldest(caller, &mut under_way);
        }
    }
    while !under_way.is_empty() {
        pending += cancel_oldest(caller, &mut under_way);
    }
    pending
}

/// Cancels up to a batch of them. (Not by `drain`: the processor stalls on its bookkeeping, once per request.)
fn cancel_oldest<C: Caller>(caller: &mut C, under_way: &mut VecDeque<Pending<C::Handle>>) -> usize {
    caller.cancel_all(std::iter::from_fn(|| under_way.pop_front()).take(C::BATCH))
}

/// The numbers from `first` on, in equal parts.
fn shares(total: usize, callers: usize, first: u64) -> Vec<Range<u64>> {
    let bound = |caller: usize| first + (total * caller / callers) as u64;
    (0..callers).map(|caller| bound(caller)..bound(caller + 1)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_all_numbers_once() {
        let numbers: Vec<_> = shares(10, 3, 5).into_iter().flatten().collect();
        assert_eq!(numbers, (5..15).collect::<Vec<_>>());
    }
}
