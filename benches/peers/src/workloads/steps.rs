//! The worst of many steps.

use crate::process::{self, Who};
use std::thread;
use std::time::{Duration, Instant};

/// How often we note for how long the thread has run.
const NOTED_EVERY: Duration = Duration::from_micros(100);
/// A step that takes less is not worth a look at how long the thread has run.
const SLOW: Duration = Duration::from_micros(200);

/// Runs `work` on a pinned thread. (The calling thread is not pinned: what it starts would be, too.)
pub(super) fn on_core<R: Send>(core: usize, work: impl FnOnce() -> R + Send) -> R {
    let pinned = || {
        process::pin(core);
        work()
    };
    thread::scope(|scope| scope.spawn(pinned).join().expect("it failed"))
}

/// Steps of one thread that follow one another, each timed.
pub(super) struct Steps {
    start: Instant,
    /// The end of the last one, and the beginning of the next: one reading of the clock for both.
    last: Instant,
    pub(super) worst: Duration,
    /// The worst step without the time that the thread waited for its core, which others had, or the host of a virtual
    /// machine. Too long by up to `NOTED_EVERY`.
    pub(super) worst_own: Duration,
    /// How long the thread had run at some moment before the current step.
    ran: Duration,
    ran_at: Instant,
    /// How often the thread had gone to sleep at the end of the last slow step.
    sleeps: Option<f64>,
}

impl Steps {
    pub(super) fn begin() -> Self {
        let sleeps = process::thread_sleeps();
        let ran = process::cpu(Who::ThisThread);
        let start = Instant::now();
        Self { start, last: start, worst: Duration::ZERO, worst_own: Duration::ZERO, ran, ran_at: start, sleeps }
    }

    /// Steps that only read the clock.
    pub(super) fn of_nothing(length: Duration) -> Self {
        let mut steps = Self::begin();
        while steps.length() < length {
            steps.step();
        }
        steps
    }

    pub(super) fn step(&mut self) {
        let now = Instant::now();
        let length = now - self.last;
        self.worst = self.worst.max(length);
        let own = if length >= SLOW { self.own(length) } else { length };
        self.worst_own = self.worst_own.max(own);
        self.last = now;
        if now - self.ran_at >= NOTED_EVERY {
            self.note();
        }
    }

    /// How much of a step that has just ended was the thread's own: while it ran, or wanted to sleep.
    fn own(&mut self, length: Duration) -> Duration {
        let (ran, sleeps) = (process::cpu(Who::ThisThread) - self.ran, process::thread_sleeps());
        let has_slept = sleeps.is_none() || sleeps != self.sleeps;
        self.sleeps = sleeps;
        if has_slept { length } else { length.min(ran) }
    }

    /// Notes how long the thread has run, between steps.
    fn note(&mut self) {
        self.ran = process::cpu(Who::ThisThread);
        self.ran_at = Instant::now();
        self.last = self.ran_at;
    }

    pub(super) fn length(&self) -> Duration {
        self.last - self.start
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

    const LONG: Duration = Duration::from_millis(20);

    /// Keeps the processor busy until this thread has run for `length`.
    fn work(length: Duration) {
        let end = process::cpu(Who::ThisThread) + length;
        while process::cpu(Who::ThisThread) < end {}
    }

    #[test]
    fn work_and_sleep_are_the_steps_own() {
        for wait in [thread::sleep, work] {
            let mut steps = Steps::begin();
            wait(LONG);
            steps.step();
            assert!(steps.worst >= steps.worst_own && steps.worst_own >= LONG, "{:?}", steps.worst_own);
        }
    }

    #[test]
    fn waiting_for_a_core_is_not() {
        let (has_come, is_over) = (&AtomicBool::new(false), &AtomicBool::new(false));
        thread::scope(|scope| {
            scope.spawn(|| {
                process::pin(0);
                has_come.store(true, Relaxed);
                while !is_over.load(Relaxed) {}
            });
            while !has_come.load(Relaxed) {
                thread::yield_now();
            }
            let steps = on_core(0, || {
                let mut steps = Steps::begin();
                // The other thread has its turns meanwhile.
                let end = Instant::now() + LONG;
                while Instant::now() < end {}
                steps.step();
                steps
            });
            is_over.store(true, Relaxed);
            assert!(steps.worst_own < steps.worst * 9 / 10, "{:?} of {:?}", steps.worst_own, steps.worst);
        });
    }
}
