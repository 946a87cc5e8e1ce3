//! What is measured.

pub(crate) mod advance;
mod burst;
mod calls;
mod deferred;
mod grow;
mod idle;
mod memory;
mod steps;

use crate::contender::{Caller, Contender, Timer, random_below, scramble};
use crate::figures::Report;
use std::time::Duration;

/// The delay that heartbeats move timers to.
pub(crate) const HEARTBEAT: Duration = Duration::from_secs(30);

/// One figure that a workload reports.
pub(crate) struct Metric {
    pub(crate) name: &'static str,
    pub(crate) unit: &'static str,
    /// Whether a peer's figure divided by ours means something.
    pub(crate) compared: bool,
}

const fn metric(name: &'static str, unit: &'static str, compared: bool) -> Metric {
    Metric { name, unit, compared }
}

/// Per operation, until everything is done: by the clock, and over all threads.
const COST: &[Metric] = &[metric("wall", "ns", true), metric("cpu", "ns", true), metric("core", "%", false)];

const LATENESS: &[Metric] = &[
    metric("p50", "us", true),
    metric("p99", "us", true),
    metric("p99.9", "us", true),
    metric("max", "us", true),
    metric("cpu", "ns", true),
    metric("early", "", false),
    metric("lost", "", false),
    metric("twice", "", false),
];

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Workload {
    Schedule,
    Rpc,
    Cancel,
    Recycled,
    Sooner,
    Heartbeat,
    Deferred,
    Burst,
    BurstInOrder,
    Idle,
    Grow,
    Memory,
    Churn,
    Advance,
}

/// Workloads of one session run in one process, one after another, on the same timers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Session {
    Calls,
    Deferred,
    Burst,
    BurstInOrder,
    Idle,
    Grow,
    Memory,
    Churn,
    Advance,
}

use Workload::*;

impl Workload {
    pub(crate) const ALL: [Self; 14] = [
        Schedule,
        Rpc,
        Cancel,
        Recycled,
        Sooner,
        Heartbeat,
        Deferred,
        Burst,
        BurstInOrder,
        Idle,
        Grow,
        Memory,
        Churn,
        Advance,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Schedule => "schedule",
            Rpc => "rpc",
            Cancel => "cancel",
            Recycled => "recycled",
            Sooner => "sooner",
            Heartbeat => "heartbeat",
            Deferred => "deferred",
            Burst => "burst",
            BurstInOrder => "burst-in-order",
            Idle => "idle",
            Grow => "grow",
            Memory => "memory",
            Churn => "churn",
            Advance => "advance",
        }
    }

    /// What an operation is, or what the figures are.
    pub(crate) fn meaning(self) -> &'static str {
        match self {
            Schedule => "a timer due in 1 min to 1 h goes into a service that is empty and new",
            Rpc => "a time-out of 30 s begins, and that of 1,024 requests ago is cancelled, beside all others",
            Cancel => "each timer is cancelled, in random order",
            Recycled => "as schedule, into the memory that the cancelled ones left",
            Sooner => "each timer moves, in random order, from 1 min to 1 h ahead to 30 s from now",
            Heartbeat => "a random one of the timers, all due in 30 s or less, moves to 30 s from now: later",
            Deferred => {
                "timers that were moved to 30 s from now reach their old deadlines: processor time per timer, which `heartbeat` does not count"
            }
            Burst => {
                "all fire, evenly spread over one second, scheduled in random order: lateness, and processor time per timer"
            }
            BurstInOrder => "as burst, but scheduled in the order of the deadlines, as with one time-out for all",
            Idle => "all are due in an hour or more: processor time and threads woken, per second",
            Grow => {
                "a service grows from empty, each call timed: mean, worst, worst without waits for the core (which others had, or a virtual machine's host), and worst step of a loop of nothing while the other cores get as much memory"
            }
            Memory => "resident bytes per timer: while all are pending, and after all were cancelled",
            Churn => "memory gained by timers of 24 h that were cancelled again, 1,024 at a time",
            Advance => {
                "a wheel of one's own with values due in 1 min to 1 h moves on by a millisecond 3.6 million times: per value, worst step, and worst step of a loop of nothing"
            }
        }
    }

    pub(crate) fn metrics(self) -> &'static [Metric] {
        match self {
            Schedule | Rpc | Cancel | Recycled | Sooner | Heartbeat => COST,
            Deferred => const { &[metric("cpu", "ns", true)] },
            Burst | BurstInOrder => LATENESS,
            Idle => const { &[metric("cpu", "us/s", false), metric("wake-ups", "/s", false)] },
            Grow => {
                const {
                    &[
                        metric("mean", "ns", true),
                        metric("worst", "us", true),
                        metric("own", "us", true),
                        metric("nothing", "us", false),
                    ]
                }
            }
            Memory => const { &[metric("pending", "B", true), metric("left", "B", false)] },
            Churn => const { &[metric("left", "MiB", false)] },
            Advance => {
                const {
                    &[
                        metric("insert", "ns", true),
                        metric("advance", "ns", true),
                        metric("worst", "us", true),
                        metric("nothing", "us", false),
                    ]
                }
            }
        }
    }

    pub(crate) fn session(self) -> Session {
        match self {
            Schedule | Rpc | Cancel | Recycled | Sooner | Heartbeat => Session::Calls,
            Deferred => Session::Deferred,
            Burst => Session::Burst,
            BurstInOrder => Session::BurstInOrder,
            Idle => Session::Idle,
            Grow => Session::Grow,
            Memory => Session::Memory,
            Churn => Session::Churn,
            Advance => Session::Advance,
        }
    }

    /// In the order in which they are measured.
    pub(crate) fn sessions() -> Vec<Session> {
        let mut sessions = Self::ALL.map(Self::session).to_vec();
        sessions.dedup();
        sessions
    }

    pub(crate) fn by_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|workload| workload.name() == name)
    }
}

/// What one process does with one contender.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Job {
    /// All of one session.
    pub(crate) workloads: Vec<Workload>,
    /// The number of timers; in `Churn`, of all timers, one after another.
    pub(crate) population: usize,
    pub(crate) callers: usize,
    /// `None`: each service's default.
    pub(crate) shards: Option<usize>,
    /// In `Rpc` and `Heartbeat`, the number over all callers.
    pub(crate) operations: usize,
    /// How long `Idle` waits.
    pub(crate) idle: Duration,
}

impl Job {
    fn wants(&self, workload: Workload) -> bool {
        self.workloads.contains(&workload)
    }

    pub(crate) fn session(&self) -> Session {
        self.workloads[0].session()
    }
}

pub(crate) fn run<C: Contender>(job: &Job) -> Report {
    match job.session() {
        Session::Calls => calls::run::<C>(job),
        Session::Deferred => deferred::run::<C>(job),
        Session::Burst => burst::run::<C>(job, Workload::Burst, random_order(job.population)),
        Session::BurstInOrder => burst::run::<C>(job, Workload::BurstInOrder, (0..job.population as u32).collect()),
        Session::Idle => idle::run::<C>(job),
        Session::Grow => grow::run::<C>(job),
        Session::Memory => memory::pending::<C>(job),
        Session::Churn => memory::churn::<C>(job),
        Session::Advance => unreachable!("a service has no wheel to itself"),
    }
}

/// Contenders live as long as their process.
fn start<C: Contender>(job: &Job, witness: &'static crate::witness::Witness) -> &'static C {
    Box::leak(Box::new(C::new(witness, job.shards)))
}

/// From the first deadline to the last, where timers come due.
const SPREAD: Duration = Duration::from_secs(1);
/// Before the first, besides what the calls take.
const LEAD: Duration = Duration::from_millis(500);

/// Attempts a measurement whose calls must end before the first deadline, with so much time for that. A machine that
/// has other things to do may need more: then once more, and once more. What is left of an attempt ends before the next
/// one measures.
fn with_lead<R>(job: &Job, per_timer: Duration, mut attempt: impl FnMut(Duration) -> Option<R>) -> Option<R> {
    let lead = LEAD + per_timer * job.population as u32;
    [1, 3, 9].into_iter().find_map(|factor| attempt(lead * factor))
}

/// Timer `number` of those that are not to fire: due in 1 min to 1 h.
fn far(number: u64) -> Timer {
    Timer::new(number, Duration::from_millis(60_000 + scramble(!number) % 3_540_000))
}

/// Numbers in the pieces that a caller takes at a time.
fn batches<C: Caller>(numbers: std::ops::Range<u64>) -> impl Iterator<Item = std::ops::Range<u64>> {
    let end = numbers.end;
    numbers.step_by(C::BATCH).map(move |first| first..end.min(first + C::BATCH as u64))
}

fn random_order(count: usize) -> Vec<u32> {
    let mut order: Vec<_> = (0..count as u32).collect();
    shuffle(&mut order);
    order
}

fn shuffle<T>(items: &mut [T]) {
    for last in (1..items.len()).rev() {
        items.swap(last, random_below(last + 1, last as u64));
    }
}
