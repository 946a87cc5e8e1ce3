//! Runs each contender in turn, round by round, each time in a process of its own: new memory, and no other contender's
//! threads.

use crate::contenders::{Access, Entry};
use crate::figures::{Report, Row, Rows};
use crate::options::{Options, child_arguments};
use crate::workloads::{Job, Session, Workload};
use indicatif::{ProgressBar, ProgressStyle};
use std::process::{Command, Stdio};
use std::time::Duration;

/// A contender, and what it did wrong in one run.
pub(crate) type Fault = (&'static str, String);

pub(crate) struct Outcome {
    pub(crate) rows: Rows,
    pub(crate) faults: Vec<Fault>,
}

/// The jobs of a run, each for every contender that it suits and several times.
pub(crate) fn plan(options: &Options) -> Vec<Job> {
    let mut jobs = Vec::new();
    for session in Workload::sessions() {
        let workloads: Vec<_> = options.only.iter().copied().filter(|workload| workload.session() == session).collect();
        if workloads.is_empty() {
            continue;
        }
        for population in populations(options, session) {
            let callers: &[usize] = if session == Session::Calls { &options.callers } else { &[1] };
            jobs.extend(callers.iter().map(|&callers| Job {
                workloads: workloads.clone(),
                population,
                callers,
                shards: options.shards,
                operations: options.operations.unwrap_or_else(|| operations(options.quick, population)),
                idle: Duration::from_secs(if options.quick { 3 } else { 10 }),
            }));
        }
    }
    jobs
}

fn operations(quick: bool, population: usize) -> usize {
    population.clamp(if quick { 200_000 } else { 500_000 }, 2_000_000)
}

fn populations(options: &Options, session: Session) -> Vec<usize> {
    let own: &[usize] = match (session, options.quick) {
        _ if !options.populations.is_empty() => &options.populations,
        (Session::Calls, true) => &[100_000],
        (Session::Calls, false) => &[100_000, 1_000_000, 10_000_000],
        (Session::Burst | Session::BurstInOrder | Session::Deferred, true) => &[100_000],
        (Session::Deferred, false) => &[1_000_000],
        (Session::Burst | Session::BurstInOrder, false) => &[100_000, 1_000_000],
        (Session::Grow | Session::Churn | Session::Advance, false) => &[10_000_000],
        (Session::Memory, false) => &[1_000_000, 10_000_000],
        (Session::Idle, _) | (_, true) => &[1_000_000],
    };
    own.to_vec()
}

/// How often a job is run. In a quick run, jobs that take long on any machine run once.
fn runs(options: &Options, job: &Job) -> usize {
    let own = match (options.quick, job.session()) {
        (false, _) => 5,
        (true, Session::Calls) => 3,
        (true, _) => 1,
    };
    options.runs.unwrap_or(own)
}

/// Timers fire and wait without their key: so they are not measured by handle once more.
pub(crate) fn suits(entry: &Entry, job: &Job) -> bool {
    match entry.access {
        Access::Key => job.session() != Session::Advance,
        Access::Handle => {
            use Session::*;
            !matches!(job.session(), Deferred | Burst | BurstInOrder | Idle | Advance)
        }
        Access::Own => job.session() == Session::Advance,
    }
}

/// Calls `done` after each job, with all figures so far, and the job's faults.
pub(crate) fn run(options: &Options, entries: &[Entry], mut done: impl FnMut(&Job, &Rows, &[Fault])) -> Outcome {
    let jobs = plan(options);
    let processes =
        jobs.iter().map(|job| runs(options, job) * entries.iter().filter(|entry| suits(entry, job)).count());
    let progress = progress_bar(processes.sum());
    let mut outcome = Outcome { rows: Rows::default(), faults: Vec::new() };
    for job in &jobs {
        let suited: Vec<_> = entries.iter().filter(|entry| suits(entry, job)).collect();
        let faults_before = outcome.faults.len();
        for run in 0..runs(options, job) {
            // Another contender begins each time, so that none always follows the same one.
            for entry in suited.iter().cycle().skip(run).take(suited.len()) {
                progress.set_message(format!("{}: {}", title(job), entry.name));
                outcome.add(entry, job, run, measure(entry, options.fast_hash, job));
                progress.inc(1);
            }
        }
        progress.suspend(|| done(job, &outcome.rows, &outcome.faults[faults_before..]));
    }
    progress.finish_and_clear();
    outcome
}

fn title(job: &Job) -> String {
    let names: Vec<_> = job.workloads.iter().map(|workload: &Workload| workload.name()).collect();
    format!("{} x {}", names.join(","), job.population)
}

impl Outcome {
    fn add(&mut self, entry: &Entry, job: &Job, run: usize, report: Report) {
        let (population, callers, contender) = (job.population, job.callers, entry.name);
        for (workload, metric, value) in report.figures {
            self.rows.push(Row { workload, population, callers, contender, run, metric, value });
        }
        for fault in report.faults {
            self.faults.push((contender, format!("{fault} ({population} timers, {callers} callers, run {run})")));
        }
    }
}

fn progress_bar(processes: usize) -> ProgressBar {
    let style = ProgressStyle::with_template("{bar:30} {pos}/{len} {elapsed}, about {eta} left; {wide_msg}");
    ProgressBar::new(processes as u64).with_style(style.expect("the template is right"))
}

/// Measures in a process of its own; a process that fails is a fault.
fn measure(entry: &Entry, fast_hash: bool, job: &Job) -> Report {
    let program = std::env::current_exe().expect("the system tells where this program is");
    let mut command = Command::new(program);
    command.args(child_arguments(entry.name, fast_hash, job)).stdin(Stdio::null()).stderr(Stdio::inherit());
    let mut report = Report::default();
    match command.output() {
        Ok(output) if output.status.success() => return Report::from_text(&String::from_utf8_lossy(&output.stdout)),
        Ok(output) => report.fault(format!("{}: its process ended with {}", title(job), output.status)),
        Err(error) => report.fault(format!("{}: its process did not start: {error}", title(job))),
    }
    report
}
