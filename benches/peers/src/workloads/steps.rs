//! The worst of many steps.

use crate::process;
use std::thread;
use std::time::{Duration, Instant};

/// Runs `work` on a thread that is pinned. (The one that calls is not: what it starts would be, too.)
pub(super) fn on_core<R: Send>(core: usize, work: impl FnOnce() -> R + Send) -> R {
    let pinned = || {
        process::pin(core);
        work()
    };
    thread::scope(|scope| scope.spawn(pinned).join().expect("it failed"))
}

/// Steps that follow one another, each timed.
pub(super) struct Steps {
    start: Instant,
    /// The end of the last one, and the beginning of the next: one reading of the clock for both.
    last: Instant,
    pub(super) worst: Duration,
}

impl Steps {
    pub(super) fn begin() -> Self {
        let start = Instant::now();
        Self { start, last: start, worst: Duration::ZERO }
    }

    /// Steps in which nothing is done but to read the clock.
    pub(super) fn of_nothing(length: Duration) -> Self {
        let mut steps = Self::begin();
        while steps.length() < length {
            steps.step();
        }
        steps
    }

    pub(super) fn step(&mut self) {
        let now = Instant::now();
        self.worst = self.worst.max(now - self.last);
        self.last = now;
    }

    pub(super) fn length(&self) -> Duration {
        self.last - self.start
    }
}
