//! A task per timer on a multi-threaded tokio runtime, and its `AbortHandle` in a map: what most users of tokio build.
//!
//! A sleep that a task awaits cannot be moved from outside, so a move aborts the task and spawns another one. The
//! thread that takes the entry out of the map decides what becomes of the timer, so answers are exact.

use crate::contender::{Caller, Contender, KeyHasher, Timer};
use crate::witness::Witness;
use dashmap::{DashMap, Entry};
use std::time::Duration;
use tokio::runtime::Runtime;
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep_until};

pub(crate) struct TokioTask<S: KeyHasher> {
    runtime: Runtime,
    timers: DashMap<u64, Slot, S>,
    witness: &'static Witness,
}

struct Slot {
    task: AbortHandle,
    value: u64,
}

impl<S: KeyHasher> Contender for TokioTask<S> {
    type Caller = &'static Self;
    fn new(witness: &'static Witness, _shards: Option<usize>) -> Self {
        Self { runtime: super::runtime(None), timers: DashMap::default(), witness }
    }
    fn caller(&'static self) -> Self::Caller {
        self
    }
    /// Until new tasks were polled for the first time, and aborted ones were dropped. The workers' own queues are not
    /// asked: they are short.
    fn settle(&self) {
        let metrics = self.runtime.metrics();
        while metrics.global_queue_depth() > 0 || metrics.num_alive_tasks() > self.timers.len() {
            std::thread::sleep(Duration::from_micros(50));
        }
    }
}

impl<S: KeyHasher> TokioTask<S> {
    /// Under the lock of the key's entry, so that the task finds it.
    fn spawn(&'static self, key: u64, delay: Duration) -> AbortHandle {
        let deadline = Instant::now() + delay;
        let task = self.runtime.spawn(async move {
            // Made by the task, so inside of the runtime.
            sleep_until(deadline).await;
            self.expire(key);
        });
        task.abort_handle()
    }

    /// Within the timer's task.
    fn expire(&self, key: u64) {
        let own = tokio::task::id();
        if let Some((_, slot)) = self.timers.remove_if(&key, |_, slot| slot.task.id() == own) {
            self.witness.fire(slot.value);
        }
    }
}

impl<S: KeyHasher> Caller for &'static TokioTask<S> {
    type Handle = ();
    fn schedule(&mut self, timer: Timer) {
        let slot = || Slot { task: self.spawn(timer.key, timer.delay), value: timer.value };
        match self.timers.entry(timer.key) {
            Entry::Vacant(entry) => drop(entry.insert(slot())),
            Entry::Occupied(mut entry) => entry.insert(slot()).task.abort(),
        }
    }
    fn cancel(&mut self, key: u64, (): ()) -> Option<u64> {
        let (_, slot) = self.timers.remove(&key)?;
        slot.task.abort();
        Some(slot.value)
    }
    fn reschedule(&mut self, key: u64, (): &mut (), delay: Duration) -> bool {
        let Some(mut slot) = self.timers.get_mut(&key) else { return false };
        let task = self.spawn(key, delay);
        std::mem::replace(&mut slot.task, task).abort();
        true
    }
}
