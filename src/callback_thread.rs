//! A thread that waits for batches of callbacks, one at a time.
//!
//! A pool would do the same for more: a thread of rayon's that has run a job looks for others, and yields some 30 times
//! before it sleeps. With a timer or two per tick that costs as much as all the rest: a thousand timers a second took
//! 94 us of processor time each with the pool, and 43 us with this thread; 50 a second took 164 and 92 us (the workload
//! `burst` of `benches/peers`).

use crate::unwind::caught;
use crossbeam_queue::SegQueue;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::{self, Thread};

/// Runs callbacks and returns how many.
pub(crate) type Run = Box<dyn FnOnce() -> usize + Send>;

/// When this is dropped, the thread ends after what it has been given. The drop does not wait for that: it may be a
/// slow callback.
pub(crate) struct CallbackThread {
    desk: Arc<Desk>,
    thread: Thread,
}

struct Desk {
    is_free: AtomicBool,
    /// One batch at most, and `None` at the end.
    batches: SegQueue<Option<Run>>,
}

impl CallbackThread {
    pub(crate) fn start(name: String) -> io::Result<Self> {
        let desk = Arc::new(Desk { is_free: AtomicBool::new(true), batches: SegQueue::new() });
        let own = Arc::clone(&desk);
        let handle = thread::Builder::new().name(name).spawn(move || own.serve())?;
        Ok(Self { desk, thread: handle.thread().clone() })
    }

    /// Has the thread call `run`; gives it back if the thread is busy.
    pub(crate) fn try_give(&self, run: Run) -> Result<(), Run> {
        // Relaxed, here and below: the flag only says who may bring a batch; the queue publishes it.
        if !self.desk.is_free.swap(false, Relaxed) {
            return Err(run);
        }
        self.bring(Some(run));
        Ok(())
    }

    fn bring(&self, batch: Option<Run>) {
        self.desk.batches.push(batch);
        self.thread.unpark();
    }
}

impl Drop for CallbackThread {
    fn drop(&mut self) {
        self.bring(None);
    }
}

impl Desk {
    /// The thread's life.
    fn serve(&self) {
        loop {
            match self.batches.pop() {
                Some(Some(run)) => {
                    // Callbacks' panics are caught one by one; but dropping the last of the user's code may panic as
                    // well.
                    let _ = caught(run);
                    self.is_free.store(true, Relaxed);
                }
                Some(None) => return,
                // A callback that parks as well may have used up our wake-up, so we have looked first.
                None => thread::park(),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::{Receiver, Sender, channel};
    use std::time::{Duration, Instant};

    const PATIENCE: Duration = Duration::from_secs(60);

    fn run(callback: impl FnOnce() + Send + 'static) -> Run {
        Box::new(|| {
            callback();
            1
        })
    }

    fn eventually(mut condition: impl FnMut() -> bool) {
        let begin = Instant::now();
        while !condition() {
            assert!(begin.elapsed() < PATIENCE, "it does not come");
            std::thread::yield_now();
        }
    }

    /// Gives `run` as soon as the thread is free.
    fn give(thread: &CallbackThread, run: Run) {
        let mut left = Some(run);
        eventually(|| {
            left = left.take().and_then(|run| thread.try_give(run).err());
            left.is_none()
        });
    }

    #[test]
    fn it_takes_one_batch_after_the_other_and_none_meanwhile() {
        let thread = CallbackThread::start("callbacks".to_owned()).expect("one more thread");
        for round in 0..1000 {
            let (go_on, gate): (Sender<()>, Receiver<()>) = channel();
            let (done, sign) = channel();
            let waits = run(move || {
                gate.recv().expect("the test goes on");
                done.send(round).expect("the test waits");
            });
            // A batch reports its end before the thread is free, so this may take several tries.
            give(&thread, waits);
            assert!(thread.try_give(run(|| panic!("it is busy"))).is_err());
            go_on.send(()).expect("the batch waits");
            assert_eq!(sign.recv_timeout(PATIENCE), Ok(round));
        }
    }

    #[test]
    fn it_survives_a_batch_that_panics() {
        struct Bomb;
        impl Drop for Bomb {
            fn drop(&mut self) {
                panic!("on purpose: the payload too");
            }
        }
        let thread = CallbackThread::start("callbacks".to_owned()).expect("one more thread");
        let (done, sign) = channel();
        assert!(thread.try_give(run(|| std::panic::resume_unwind(Box::new(Bomb)))).is_ok());
        give(&thread, run(move || done.send(()).expect("the test waits")));
        assert_eq!(sign.recv_timeout(PATIENCE), Ok(()));
    }

    /// The handle is dropped while a callback parks as well.
    #[test]
    fn it_ends_though_a_batch_takes_its_wake_up() {
        let thread = CallbackThread::start("callbacks".to_owned()).expect("one more thread");
        let desk = Arc::clone(&thread.desk);
        let (begun, begin) = channel();
        let parks = run(move || {
            begun.send(()).expect("the test waits");
            thread::park();
        });
        assert!(thread.try_give(parks).is_ok());
        assert_eq!(begin.recv_timeout(PATIENCE), Ok(()));
        drop(thread);
        eventually(|| Arc::strong_count(&desk) == 1);
    }

    #[test]
    fn it_ends_after_the_batch_that_it_has() {
        let (go_on, gate): (Sender<()>, Receiver<()>) = channel();
        let (done, sign) = channel();
        let thread = CallbackThread::start("callbacks".to_owned()).expect("one more thread");
        let desk = Arc::clone(&thread.desk);
        let waits = run(move || {
            gate.recv().expect("the test goes on");
            done.send(()).expect("the test waits");
        });
        assert!(thread.try_give(waits).is_ok());
        // This does not wait for the batch.
        drop(thread);
        go_on.send(()).expect("the batch waits");
        assert_eq!(sign.recv_timeout(PATIENCE), Ok(()));
        eventually(|| Arc::strong_count(&desk) == 1);
    }
}
