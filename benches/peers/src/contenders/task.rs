//! A task per timer on a multi-threaded tokio runtime, and its `AbortHandle` in a map: what most users of tokio build.
//!
//! A sleep that a task awaits cannot be moved from outside, so a move aborts the task and spawns another one. Whoever
//! takes the entry out of the map has decided what becomes of the timer, so that answers are exact.

use crate::contender::{Caller, Contender, KeyHasher, Timer};
use crate::witness::Witness;
use dashmap::{DashMap, Entry};
use std::marker::PhantomData;
use std::time::Duration;
use tokio::runtime::Runtime;
use tokio::task::AbortHandle;

/// What the task awaits.
pub(crate) trait Sleep: Send + Sync + 'static {
    /// Until `delay` after this call.
    fn sleep(delay: Duration) -> impl Future<Output = ()> + Send + 'static;
}

pub(crate) struct Tasks<P, S: KeyHasher> {
    runtime: Runtime,
    timers: DashMap<u64, Slot, S>,
    witness: &'static Witness,
    sleep: PhantomData<P>,
}

struct Slot {
    task: AbortHandle,
    value: u64,
}

impl<P: Sleep, S: KeyHasher> Contender for Tasks<P, S> {
    type Caller = &'static Self;
    fn new(witness: &'static Witness, _shards: Option<usize>) -> Self {
        Self { runtime: super::runtime(), timers: DashMap::default(), witness, sleep: PhantomData }
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

impl<P: Sleep, S: KeyHasher> Tasks<P, S> {
    /// Under the lock of the key's entry, so that the task finds it.
    fn spawn(&'static self, key: u64, delay: Duration) -> AbortHandle {
        let sleep = P::sleep(delay);
        let task = self.runtime.spawn(async move {
            sleep.await;
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

impl<P: Sleep, S: KeyHasher> Caller for &'static Tasks<P, S> {
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
