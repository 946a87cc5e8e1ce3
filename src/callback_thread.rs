//! A thread that waits for batches of callbacks, one at a time.
//!
//! A pool would do the same, for more: a thread of rayon's that has run a job looks around for others, and gives way some 30 times,
//! before it sleeps. With a timer or two per tick that costs as much as all the rest (measured in the message of `4076285`).

use crate::executor::Job;
use crate::unwind::quietly;
use crossbeam_queue::SegQueue;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::{self, Thread};

/// When this is dropped, the thread ends after what it has been given. Nobody waits for that: it may be a slow callback.
pub(crate) struct CallbackThread {
    desk: Arc<Desk>,
    thread: Thread,
}

struct Desk {
    is_free: AtomicBool,
    /// One job at most, and `None` at the end.
    jobs: SegQueue<Option<Job>>,
}

impl CallbackThread {
    pub(crate) fn start(name: String) -> io::Result<Self> {
        let desk = Arc::new(Desk { is_free: AtomicBool::new(true), jobs: SegQueue::new() });
        let own = Arc::clone(&desk);
        let handle = thread::Builder::new().name(name).spawn(move || own.serve())?;
        Ok(Self { desk, thread: handle.thread().clone() })
    }

    /// Has the thread run the job; gives it back if the thread is busy.
    pub(crate) fn try_give(&self, job: Job) -> Result<(), Job> {
        // Relaxed, here and below: it says who takes a job; the queue publishes that.
        if !self.desk.is_free.swap(false, Relaxed) {
            return Err(job);
        }
        self.bring(Some(job));
        Ok(())
    }

    fn bring(&self, job: Option<Job>) {
        self.desk.jobs.push(job);
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
            match self.jobs.pop() {
                Some(Some(job)) => {
                    // Callbacks' panics are caught one by one; but what the user's code dies with may panic as well.
                    quietly(|| job.run());
                    self.is_free.store(true, Relaxed);
                }
                Some(None) => return,
                // A callback that parks as well may have taken our wake-up for its own: so we have looked first.
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

    fn job(run: impl FnOnce() + Send + 'static) -> Job {
        Job(Box::new(run))
    }

    fn eventually(mut condition: impl FnMut() -> bool) {
        let begin = Instant::now();
        while !condition() {
            assert!(begin.elapsed() < PATIENCE, "it does not come");
            std::thread::yield_now();
        }
    }

    /// As soon as the thread is free.
    fn give(thread: &CallbackThread, job: Job) {
        let mut left = Some(job);
        eventually(|| {
            left = left.take().and_then(|job| thread.try_give(job).err());
            left.is_none()
        });
    }

    #[test]
    fn it_takes_one_job_after_the_other_and_none_meanwhile() {
        let thread = CallbackThread::start("callbacks".to_owned()).expect("one more thread");
        for round in 0..1000 {
            let (go_on, gate): (Sender<()>, Receiver<()>) = channel();
            let (done, sign) = channel();
            let waits = job(move || {
                gate.recv().expect("the test goes on");
                done.send(round).expect("the test waits");
            });
            // It tells us of a job's end before it is free.
            give(&thread, waits);
            assert!(thread.try_give(job(|| panic!("it is busy"))).is_err());
            go_on.send(()).expect("the job waits");
            assert_eq!(sign.recv_timeout(PATIENCE), Ok(round));
        }
    }

    #[test]
    fn it_survives_a_job_that_panics() {
        struct Bomb;
        impl Drop for Bomb {
            fn drop(&mut self) {
                panic!("on purpose: the payload too");
            }
        }
        let thread = CallbackThread::start("callbacks".to_owned()).expect("one more thread");
        let (done, sign) = channel();
        assert!(thread.try_give(job(|| std::panic::resume_unwind(Box::new(Bomb)))).is_ok());
        give(&thread, job(move || done.send(()).expect("the test waits")));
        assert_eq!(sign.recv_timeout(PATIENCE), Ok(()));
    }

    /// The end comes while a callback waits for something else in the same way.
    #[test]
    fn it_ends_though_a_job_takes_its_wake_up() {
        let thread = CallbackThread::start("callbacks".to_owned()).expect("one more thread");
        let desk = Arc::clone(&thread.desk);
        let (begun, begin) = channel();
        let parks = job(move || {
            begun.send(()).expect("the test waits");
            thread::park();
        });
        assert!(thread.try_give(parks).is_ok());
        assert_eq!(begin.recv_timeout(PATIENCE), Ok(()));
        drop(thread);
        eventually(|| Arc::strong_count(&desk) == 1);
    }

    #[test]
    fn it_ends_after_the_job_that_it_has() {
        let (go_on, gate): (Sender<()>, Receiver<()>) = channel();
        let (done, sign) = channel();
        let thread = CallbackThread::start("callbacks".to_owned()).expect("one more thread");
        let desk = Arc::clone(&thread.desk);
        let waits = job(move || {
            gate.recv().expect("the test goes on");
            done.send(()).expect("the test waits");
        });
        assert!(thread.try_give(waits).is_ok());
        // Nobody waits for it.
        drop(thread);
        go_on.send(()).expect("the job waits");
        assert_eq!(sign.recv_timeout(PATIENCE), Ok(()));
        eventually(|| Arc::strong_count(&desk) == 1);
    }
}
