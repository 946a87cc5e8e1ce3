//! tokio-util's `DelayQueue` and a hash map from key to place, behind one lock; a task waits for what expires. Or one
//! of these per core, each with the keys that leave the same remainder.

use crate::contender::{Caller, Contender, KeyHasher, Timer};
use crate::witness::Witness;
use std::collections::HashMap;
use std::future::poll_fn;
use std::num::NonZero;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::thread::available_parallelism;
use std::time::Duration;
use tokio::runtime::{EnterGuard, Runtime};
use tokio::task::unconstrained;
use tokio::time::Instant;
use tokio_util::time::{DelayQueue, delay_queue};

/// The most timers that are taken out under the lock at a time.
const BATCH: usize = 256;

/// The timers behind the lock.
pub(crate) trait Timers: Default + Send + 'static {
    fn poll_expired(&mut self, context: &mut Context<'_>) -> Poll<Option<u64>>;
}

/// `DelayQueue`s, alone or with an index, and what drives them.
pub(super) struct Driven<T> {
    /// One for each queue: each has a clock, and the lock of that, to itself. Not empty.
    runtimes: Vec<Runtime>,
    queues: Vec<Arc<Mutex<T>>>,
}

impl<T: Timers> Driven<T> {
    pub(super) fn new(count: usize, witness: &'static Witness) -> Self {
        let queues = Vec::from_iter((0..count).map(|_| Arc::default()));
        let drive = |queue: &Arc<Mutex<T>>| {
            let runtime = super::runtime(if count == 1 { None } else { Some(1) });
            // Unconstrained: it yields when it has to wait, not after 128 timers.
            runtime.spawn(unconstrained(drive(Arc::clone(queue), witness)));
            runtime
        };
        Self { runtimes: queues.iter().map(drive).collect(), queues }
    }

    /// The queue of a key.
    pub(super) fn lock(&self, key: u64) -> MutexGuard<'_, T> {
        let queue = match &self.queues[..] {
            [single] => single,
            several => &several[(key % several.len() as u64) as usize],
        };
        queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A thread that uses a `DelayQueue` must be within a runtime. Any will do: to enter that of the key each time
    /// would cost more.
    pub(super) fn enter(&'static self) -> Entered<T> {
        Entered { queues: self, _runtime: self.runtimes[0].enter() }
    }
}

pub(crate) struct Entered<T: 'static> {
    pub(super) queues: &'static Driven<T>,
    _runtime: EnterGuard<'static>,
}

/// Takes out what is due, under the lock, and fires it without the lock.
async fn drive<T: Timers>(timers: Arc<Mutex<T>>, witness: &'static Witness) {
    let mut due = Vec::with_capacity(BATCH);
    loop {
        poll_fn(|context| {
            let mut timers = timers.lock().unwrap_or_else(PoisonError::into_inner);
            while due.len() < BATCH {
                // An empty queue is not the end: it wakes us when there is something.
                let Poll::Ready(Some(value)) = timers.poll_expired(context) else { break };
                due.push(value);
            }
            if due.is_empty() { Poll::Pending } else { Poll::Ready(()) }
        })
        .await;
        due.drain(..).for_each(|value| witness.fire(value));
    }
}

pub(crate) struct Keyed<S> {
    timers: DelayQueue<(u64, u64)>,
    places: HashMap<u64, delay_queue::Key, S>,
}

impl<S: Default> Default for Keyed<S> {
    fn default() -> Self {
        Self { timers: DelayQueue::new(), places: HashMap::default() }
    }
}

impl<S: KeyHasher> Timers for Keyed<S> {
    fn poll_expired(&mut self, context: &mut Context<'_>) -> Poll<Option<u64>> {
        let expired = std::task::ready!(self.timers.poll_expired(context));
        Poll::Ready(expired.map(|expired| {
            let (key, value) = expired.into_inner();
            self.places.remove(&key);
            value
        }))
    }
}

pub(crate) struct DelayQueueKey<S: KeyHasher>(Driven<Keyed<S>>);

impl<S: KeyHasher> Contender for DelayQueueKey<S> {
    type Caller = Entered<Keyed<S>>;
    fn new(witness: &'static Witness, _shards: Option<usize>) -> Self {
        Self(Driven::new(1, witness))
    }
    fn caller(&'static self) -> Self::Caller {
        self.0.enter()
    }
}

pub(crate) struct DelayQueueShards<S: KeyHasher>(Driven<Keyed<S>>);

impl<S: KeyHasher> Contender for DelayQueueShards<S> {
    type Caller = Entered<Keyed<S>>;
    fn new(witness: &'static Witness, shards: Option<usize>) -> Self {
        let cores = || available_parallelism().map_or(1, NonZero::get);
        Self(Driven::new(shards.unwrap_or_else(cores), witness))
    }
    fn caller(&'static self) -> Self::Caller {
        self.0.enter()
    }
}

impl<S: KeyHasher> Caller for Entered<Keyed<S>> {
    type Handle = ();
    fn schedule(&mut self, Timer { key, value, delay }: Timer) {
        let deadline = Instant::now() + delay;
        let queue = &mut *self.queues.lock(key);
        let place = queue.timers.insert_at((key, value), deadline);
        if let Some(earlier) = queue.places.insert(key, place) {
            queue.timers.remove(&earlier);
        }
    }
    fn cancel(&mut self, key: u64, (): ()) -> Option<u64> {
        let queue = &mut *self.queues.lock(key);
        let place = queue.places.remove(&key)?;
        Some(queue.timers.remove(&place).into_inner().1)
    }
    fn reschedule(&mut self, key: u64, (): &mut (), delay: Duration) -> bool {
        let deadline = Instant::now() + delay;
        let queue = &mut *self.queues.lock(key);
        let Some(place) = queue.places.get(&key) else { return false };
        queue.timers.reset_at(place, deadline);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::hash_map::RandomState;

    #[test]
    fn there_are_as_many_queues_as_shards_are_told() {
        let DelayQueueShards(driven) = DelayQueueShards::<RandomState>::new(Witness::new(0), Some(3));
        assert_eq!(driven.queues.len(), 3);
    }
}
