//! Who runs the callbacks.

use rayon::ThreadPool;
use std::fmt;
use std::sync::Arc;

/// Who runs the callbacks.
#[derive(Clone)]
#[non_exhaustive]
pub enum Executor {
    /// A rayon pool of yours; its threads alone run callbacks. Up to 256 timers that expire together go to one of them, for quick
    /// callbacks are run sooner than others are woken; after a millisecond, those that still wait behind a slow one get more.
    ///
    /// A callback that uses rayon itself (`join`, `scope`, a parallel iterator) should hold no lock meanwhile that other callbacks
    /// take: while it waits, its thread runs other jobs of the pool, those callbacks among them.
    ///
    /// With a few timers per tick it takes more processor time than the default
    /// ([`Builder::executor`](crate::Builder::executor)): a thread of rayon's looks around for a while before it sleeps.
    ///
    /// ```
    /// use shardwheel::{Executor, Scheduler};
    /// use std::sync::Arc;
    ///
    /// let pool = Arc::new(rayon::ThreadPoolBuilder::new().num_threads(2).build()?);
    /// let scheduler = Scheduler::builder().executor(Executor::Rayon(pool)).build(|key: &u32, ()| println!("{key}"))?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    Rayon(Arc<ThreadPool>),
    /// The thread on which the timer expires: the shard's worker, or the caller of `expire_now` or of `close`. For callbacks
    /// that only pass a message on: a slow one makes its shard late. With the manual clock always, see
    /// [`Builder::build_manual`](crate::Builder::build_manual).
    Inline,
    /// Anything else that runs each [`Job`] once, soon, on whatever thread. It is called on the worker, or on the thread that calls
    /// `expire_now` or `close`, and must not block for long. A job has up to 256 timers, whose callbacks it runs one after the other: no
    /// other thread helps, so a slow callback hands its work on. A job that is dropped instead drops its timers' values, and counts them as
    /// [lost](crate::Stats::callbacks_lost); a timer of [`schedule_every`](crate::Scheduler::schedule_every) goes on with its next run,
    /// one of [`build_rearming`](crate::Builder::build_rearming) has ended.
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

/// A batch of expired timers, for an [`Executor::Custom`] to run.
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
