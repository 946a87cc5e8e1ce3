//! Who runs the callbacks.

use rayon::ThreadPool;
use std::fmt;
use std::sync::Arc;

/// Who runs the callbacks.
#[derive(Clone)]
#[non_exhaustive]
pub enum Executor {
    /// A rayon pool of yours; only its threads run callbacks. Up to 256 timers that expire together go to one of them,
    /// since quick callbacks are run sooner than other threads are woken. After a millisecond, more threads help with
    /// those that still wait behind a slow one.
    ///
    /// A callback that uses rayon itself (`join`, `scope`, a parallel iterator) should not hold a lock meanwhile that
    /// other callbacks take: while it waits, its thread runs other jobs of the pool, those callbacks among them.
    ///
    /// With a few timers per tick, this takes more processor time than the default
    /// ([`Builder::executor`](crate::Builder::executor)): a rayon thread looks for work for a while before it sleeps.
    ///
    /// ```
    /// use shardwheel::{Executor, Scheduler};
    /// use std::sync::Arc;
    /// use std::time::Duration;
    ///
    /// let pool = Arc::new(rayon::ThreadPoolBuilder::new().num_threads(2).build()?);
    /// let (sender, ran_on) = std::sync::mpsc::channel();
    /// let callback = move |_: &u32, ()| drop(sender.send(rayon::current_thread_index()));
    /// let scheduler = Scheduler::builder().executor(Executor::Rayon(pool)).build(callback)?;
    /// scheduler.schedule(1, Duration::ZERO)?;
    /// assert!(ran_on.recv()?.is_some_and(|index| index < 2));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    Rayon(Arc<ThreadPool>),
    /// The thread on which the timer expires: the shard's worker, or the caller of `expire_now` or `close`. For
    /// callbacks that only pass a message on: a slow one makes its whole shard late. With a manual clock it is always
    /// so; see [`Builder::build_manual`](crate::Builder::build_manual).
    ///
    /// [`Builder::executor`](crate::Builder::executor) has an example.
    Inline,
    /// Anything else that runs each [`Job`] once, soon, on whatever thread. It is called on the worker, or on the
    /// thread that calls `expire_now` or `close`, and must not block for long.
    ///
    /// A job has up to 256 timers, and runs their callbacks one after the other. No other thread helps, so a callback
    /// that would be slow should hand its work on.
    ///
    /// A job that is dropped instead drops its timers' values, and counts them as
    /// [lost](crate::Stats::callbacks_lost). Then a timer of [`schedule_every`](crate::Scheduler::schedule_every) goes
    /// on with its next run; one of [`build_rearming`](crate::Builder::build_rearming) has ended.
    Custom(Arc<dyn Fn(Job) + Send + Sync>),
}

impl Executor {
    /// An [`Executor::Custom`] from a closure.
    ///
    /// ```
    /// use shardwheel::{Executor, Scheduler};
    ///
    /// let (sender, jobs) = std::sync::mpsc::channel();
    /// let executor = Executor::custom(move |job| drop(sender.send(job)));
    /// let scheduler = Scheduler::builder().executor(executor).build(|key: &u32, _: ()| println!("{key}"))?;
    /// scheduler.schedule(1, std::time::Duration::ZERO).expect("it is open and not full");
    /// jobs.recv().expect("the worker lives").run();
    /// # Ok::<(), shardwheel::BuildError>(())
    /// ```
    pub fn custom(execute: impl Fn(Job) + Send + Sync + 'static) -> Self {
        Self::Custom(Arc::new(execute))
    }
}

impl fmt::Debug for Executor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Rayon(_) => "Rayon(..)",
            Self::Inline => "Inline",
            Self::Custom(_) => "Custom(..)",
        })
    }
}

/// A batch of expired timers, for an [`Executor::Custom`] to run; [`Executor::custom`] has an example.
#[must_use = "a job that is not run drops its timers' values"]
pub struct Job(pub(crate) Box<dyn FnOnce() + Send>);

impl Job {
    /// Runs the callbacks, one after the other. Never panics, even if a callback does.
    pub fn run(self) {
        (self.0)();
    }
}

impl fmt::Debug for Job {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Job(..)")
    }
}
