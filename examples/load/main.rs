//! A million timers from several threads, and a count of what became of them.
//!
//! ```text
//! cargo run --release --example load
//! ```
//!
//! 1. The callers schedule every timer; then the memory is measured.
//! 2. They cancel a fifth, move a tenth earlier and a tenth later.
//! 3. The rest fires, spread evenly over `--seconds`.
//! 4. The `ledger`, our own books, says which timers were early, lost or delivered twice; the
//!    scheduler's `stats()` must agree with it.
//!
//! The exit status is 0 only if all is well. `--help` lists the options.

mod ledger;
mod options;
mod plan;
mod report;

use std::error::Error;
use std::io::{self, Write};
use std::ops::Range;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::thread;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use shardwheel::{Close, Scheduler};

use ledger::Ledger;
use options::Options;
use plan::{Change, Plan};
use report::{Report, Tally};

/// The key is the timer's index, the value is `value_of` it.
type Timers = Scheduler<usize, usize>;

/// How long nothing may happen before we give up the missing timers for lost.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long after the last first delivery we wait for a second one.
const AFTERMATH: Duration = Duration::from_millis(100);
/// Timers between two updates of the progress bar.
const STRIDE: usize = 1024;

fn main() -> ExitCode {
    let options = match options::parse(std::env::args_os().skip(1)) {
        Ok(Some(options)) => options,
        Ok(None) => {
            let _ = io::stdout().write_all(options::HELP.as_bytes());
            return ExitCode::SUCCESS;
        }
        Err(error) => return unusable(&format!("{error}\nTry --help.")),
    };
    let run = match Run::new(&options) {
        Ok(run) => run,
        Err(error) => return unusable(&error.to_string()),
    };
    let report = match run.drive() {
        Ok(report) => report,
        Err(error) => {
            complain(&error.to_string());
            return ExitCode::FAILURE;
        }
    };
    // A closed or full output does not change the verdict, which is in the exit status.
    let _ = write!(io::stdout(), "{report}");
    let faults = report.faults();
    for fault in &faults {
        complain(fault);
    }
    ExitCode::from(u8::from(!faults.is_empty()))
}

struct Run {
    options: Options,
    plan: Plan,
    ledger: Arc<Ledger>,
    scheduler: Timers,
    /// Callbacks that were handed another timer's value.
    wrong_values: Arc<AtomicU64>,
    resident_before: Option<u64>,
}

impl Run {
    fn new(options: &Options) -> Result<Self, Box<dyn Error>> {
        let ledger =
            Arc::new(Ledger::new(options.timers).map_err(|error| format!("--timers: {}: {error}", options.timers))?);
        let resident_before = report::resident_bytes();
        let wrong_values = Arc::new(AtomicU64::new(0));
        let scheduler = build(options, Arc::clone(&ledger), Arc::clone(&wrong_values))?;
        Ok(Self {
            options: options.clone(),
            plan: Plan::new(options.timers, options.firing),
            ledger,
            scheduler,
            wrong_values,
            resident_before,
        })
    }

    /// The three phases, and the verdict.
    fn drive(self) -> Result<Report, Box<dyn Error>> {
        let bar = progress_bar(self.options.timers as u64);

        let phase = Instant::now();
        bar.set_message("scheduling");
        let mut tally = self.in_callers(|range| self.schedule(range, &bar))?;
        let mut busy = phase.elapsed();
        let bytes_per_timer = self.bytes_per_timer();

        let phase = Instant::now();
        bar.set_message("moving and cancelling");
        bar.reset();
        tally += self.in_callers(|range| Ok(self.change(range, &bar)))?;
        busy += phase.elapsed();

        bar.set_message("firing");
        self.await_firing(tally.scheduled - tally.cancelled, &bar);
        bar.finish_and_clear();
        Ok(self.close(tally, busy, bytes_per_timer))
    }

    /// Shares the timers out among the callers, each a thread of its own.
    fn in_callers(&self, work: impl Fn(Range<usize>) -> Result<Tally, String> + Sync) -> Result<Tally, Box<dyn Error>> {
        let Options { timers, callers, .. } = self.options;
        let share = |caller: usize| timers * caller / callers..timers * (caller + 1) / callers;
        thread::scope(|scope| {
            let work = &work;
            let spawn = |caller| {
                let name = format!("caller-{caller}");
                thread::Builder::new().name(name).spawn_scoped(scope, move || work(share(caller)))
            };
            let threads = (0..callers).map(spawn).collect::<Result<Vec<_>, _>>()?;
            let mut total = Tally::default();
            for thread in threads {
                total += thread.join().map_err(|_| "a caller panicked")??;
            }
            Ok(total)
        })
    }

    fn schedule(&self, range: Range<usize>, bar: &ProgressBar) -> Result<Tally, String> {
        let mut tally = Tally::default();
        for timer in with_progress(range, bar) {
            let called = Instant::now();
            let delay = self.until(self.plan.due(timer), called);
            let replaced = self
                .scheduler
                .schedule_with(timer, value_of(timer), delay)
                .map_err(|error| format!("timer {timer}: {error}"))?;
            self.ledger.enter_deadline(timer, called, delay);
            tally.wrong += u64::from(replaced.is_some());
            tally.scheduled += 1;
            tally.calls += 1;
        }
        Ok(tally)
    }

    fn change(&self, range: Range<usize>, bar: &ProgressBar) -> Tally {
        let mut tally = Tally::default();
        for timer in with_progress(shuffled(range), bar) {
            match self.plan.change(timer) {
                Change::None => continue,
                Change::Cancel => self.cancel(timer, &mut tally),
                Change::Move(due) => self.reschedule(timer, due, &mut tally),
            }
            tally.calls += 1;
        }
        tally
    }

    fn cancel(&self, timer: usize, tally: &mut Tally) {
        match self.scheduler.cancel(&timer) {
            Some(value) => {
                self.ledger.enter_cancelled(timer);
                tally.cancelled += 1;
                tally.wrong += u64::from(value != value_of(timer));
            }
            None => self.check_gone(timer, tally),
        }
    }

    fn reschedule(&self, timer: usize, due: Duration, tally: &mut Tally) {
        let called = Instant::now();
        let delay = self.until(due, called);
        if self.scheduler.reschedule(&timer, delay) {
            self.ledger.enter_deadline(timer, called, delay);
            tally.moved += 1;
        } else {
            self.check_gone(timer, tally);
        }
    }

    /// A timer that was not cancelled can only be gone if it was due. The audit checks that it did fire, since its
    /// callback may be still to come.
    fn check_gone(&self, timer: usize, tally: &mut Tally) {
        tally.wrong += u64::from(!self.ledger.is_due(timer, Instant::now()));
    }

    /// From `now` to `due`, which counts from the start.
    fn until(&self, due: Duration, now: Instant) -> Duration {
        (self.ledger.start() + due).saturating_duration_since(now)
    }

    /// How much memory the scheduler has taken, divided by the timers that are pending.
    fn bytes_per_timer(&self) -> Option<f64> {
        const TIMERS_MIN: usize = 10_000;
        let pending = self.scheduler.len();
        let grown = report::resident_bytes()?.checked_sub(self.resident_before?)?;
        // With fewer timers, one would see only the scheduler's fixed parts.
        (pending >= TIMERS_MIN).then(|| grown as f64 / pending as f64)
    }

    /// Waits until the last deadline, even if that is a cancelled timer's, or one that a timer was moved away from:
    /// nothing may fire at those. Then waits for what is overdue, as long as some of it still comes.
    fn await_firing(&self, expected: u64, bar: &ProgressBar) {
        const POLL: Duration = Duration::from_millis(50);
        if self.options.timers == 0 {
            return;
        }
        bar.reset();
        bar.set_length(expected);
        let closes = self.ledger.start() + self.plan.closes();
        while Instant::now() < closes {
            // The scheduler's own count will do for a progress bar; counting in the ledger takes long.
            bar.set_position(self.scheduler.stats().fired);
            thread::sleep(POLL.min(closes.saturating_duration_since(Instant::now())));
        }
        let mut fired = self.ledger.fired();
        let mut changed = Instant::now();
        while fired < expected && changed.elapsed() < PATIENCE {
            thread::sleep(POLL);
            let before = std::mem::replace(&mut fired, self.ledger.fired());
            if fired > before {
                changed = Instant::now();
            }
            bar.set_position(fired);
        }
        thread::sleep(AFTERMATH);
    }

    fn close(self, mut tally: Tally, busy: Duration, bytes_per_timer: Option<f64>) -> Report {
        self.scheduler.close(Close::Discard);
        tally.wrong += self.wrong_values.load(Relaxed);
        Report {
            timers: self.options.timers as u64,
            stats: self.scheduler.stats(),
            audit: self.ledger.audit(),
            tally,
            busy,
            bytes_per_timer,
        }
    }
}

fn build(options: &Options, ledger: Arc<Ledger>, wrong_values: Arc<AtomicU64>) -> Result<Timers, Box<dyn Error>> {
    let mut builder = Scheduler::builder();
    if let Some(shards) = options.shards {
        builder = builder.shards(shards);
    }
    let scheduler = builder.build(move |&timer: &usize, value: usize| {
        ledger.enter_fired(timer, Instant::now());
        if value != value_of(timer) {
            wrong_values.fetch_add(1, Relaxed);
        }
    })?;
    Ok(scheduler)
}

/// A value that shows whose it is, and is not the key.
fn value_of(timer: usize) -> usize {
    !timer
}

/// The timers of `range`, in an order that the memory's prefetcher cannot guess: timers are seldom cancelled in the
/// order in which they were scheduled.
fn shuffled(range: Range<usize>) -> impl ExactSizeIterator<Item = usize> {
    // A prime larger than any range, so every timer comes exactly once.
    const STEP: u128 = 2_654_435_761;
    let len = range.len();
    (0..len).map(move |index| range.start + (index as u128 * STEP % len as u128) as usize)
}

/// Moves the bar on in strides, since callers share it.
fn with_progress(timers: impl ExactSizeIterator<Item = usize>, bar: &ProgressBar) -> impl Iterator<Item = usize> {
    let rest = timers.len() % STRIDE;
    bar.inc(rest as u64);
    timers.enumerate().map(move |(index, timer)| {
        if index % STRIDE == STRIDE - 1 {
            bar.inc(STRIDE as u64);
        }
        timer
    })
}

/// Goes to standard error; not shown if that is no terminal.
fn progress_bar(length: u64) -> ProgressBar {
    let bar = ProgressBar::new(length);
    match ProgressStyle::with_template("{msg:>21} {wide_bar} {pos}/{len}") {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}

fn unusable(message: &str) -> ExitCode {
    complain(message);
    ExitCode::from(2)
}

/// Unlike `eprintln!`, it does not panic when standard error is closed.
fn complain(message: &str) {
    let _ = writeln!(io::stderr(), "load: {message}");
}
