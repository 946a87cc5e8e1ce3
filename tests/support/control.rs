//! The machine's own lateness, for bounds that hold on a busy one.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// A thread that sleeps a millisecond at a time, and notes the longest that this took.
pub(crate) struct Control {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Duration>,
}

impl Control {
    pub(crate) fn start() -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = thread::spawn(move || {
            let mut worst = Duration::ZERO;
            while !stopped.load(Relaxed) {
                let began = Instant::now();
                thread::sleep(Duration::from_millis(1));
                worst = worst.max(began.elapsed());
            }
            worst
        });
        Self { stop, thread }
    }

    pub(crate) fn worst(self) -> Duration {
        self.stop.store(true, Relaxed);
        self.thread.join().expect("it cannot panic")
    }
}
