//! Deadlines in order behind one lock, a map from key to timer beside it, and a thread that sleeps until the first one.
//!
//! The map decides: a ticket in the queue whose deadline is not that of the key's entry is stale. Only the queue is
//! behind the lock.

use crate::contender::{Caller, Contender, KeyHasher, Timer};
use crate::witness::Witness;
use dashmap::DashMap;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The most tickets that are taken out under the lock at a time.
const BATCH: usize = 256;

/// Deadline and key.
pub(crate) type Ticket = (Instant, u64);

/// An order of tickets.
pub(crate) trait Queue: Default + Send + 'static {
    fn push(&mut self, ticket: Ticket);
    /// How to take a ticket out. `None`: there is no way, so it stays, and is stale.
    const REMOVE: Option<fn(&mut Self, Ticket)>;
    fn first(&self) -> Option<Ticket>;
    fn pop(&mut self) -> Option<Ticket>;
}

pub(crate) struct Locked<Q: 'static, S: KeyHasher>(&'static Shared<Q, S>);

pub(crate) struct Shared<Q, S: KeyHasher> {
    queue: Mutex<Q>,
    earlier: Condvar,
    timers: DashMap<u64, Slot, S>,
    witness: &'static Witness,
}

struct Slot {
    deadline: Instant,
    value: u64,
}

impl<Q: Queue, S: KeyHasher> Contender for Locked<Q, S> {
    type Caller = &'static Shared<Q, S>;
    fn new(witness: &'static Witness, _shards: Option<usize>) -> Self {
        let (queue, earlier) = (Mutex::default(), Condvar::new());
        let shared: &'static _ = Box::leak(Box::new(Shared { queue, earlier, timers: DashMap::default(), witness }));
        std::thread::spawn(|| shared.drive());
        Self(shared)
    }
    fn caller(&'static self) -> Self::Caller {
        self.0
    }
}

impl<Q: Queue, S: KeyHasher> Shared<Q, S> {
    fn lock(&self) -> MutexGuard<'_, Q> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the lock only if there is something to do.
    fn remove(&self, ticket: Ticket) {
        if let Some(remove) = Q::REMOVE {
            remove(&mut self.lock(), ticket);
        }
    }

    /// Files a ticket in place of an earlier one, and wakes the thread if it is the first one.
    fn file(&self, earlier: Option<Ticket>, ticket: Ticket) {
        let mut queue = self.lock();
        if let (Some(earlier), Some(remove)) = (earlier, Q::REMOVE) {
            remove(&mut queue, earlier);
        }
        queue.push(ticket);
        let is_first = queue.first() == Some(ticket);
        drop(queue);
        if is_first {
            self.earlier.notify_one();
        }
    }

    fn drive(&self) {
        let mut due = Vec::with_capacity(BATCH);
        loop {
            self.wait_for_due(&mut due);
            for (deadline, key) in due.drain(..) {
                if let Some((_, slot)) = self.timers.remove_if(&key, |_, slot| slot.deadline == deadline) {
                    self.witness.fire(slot.value);
                }
            }
        }
    }

    fn wait_for_due(&self, due: &mut Vec<Ticket>) {
        let mut queue = self.lock();
        while due.is_empty() {
            let now = Instant::now();
            while due.len() < BATCH && queue.first().is_some_and(|(deadline, _)| deadline <= now) {
                due.extend(queue.pop());
            }
            queue = match queue.first() {
                _ if !due.is_empty() => return,
                Some((deadline, _)) => {
                    let waited = self.earlier.wait_timeout(queue, deadline - now);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
                None => self.earlier.wait(queue).unwrap_or_else(PoisonError::into_inner),
            };
        }
    }
}

impl<Q: Queue, S: KeyHasher> Caller for &'static Shared<Q, S> {
    type Handle = ();
    fn schedule(&mut self, Timer { key, value, delay }: Timer) {
        let deadline = Instant::now() + delay;
        let replaced = self.timers.insert(key, Slot { deadline, value });
        self.file(replaced.map(|slot| (slot.deadline, key)), (deadline, key));
    }
    fn cancel(&mut self, key: u64, (): ()) -> Option<u64> {
        let (_, slot) = self.timers.remove(&key)?;
        self.remove((slot.deadline, key));
        Some(slot.value)
    }
    fn reschedule(&mut self, key: u64, (): &mut (), delay: Duration) -> bool {
        let deadline = Instant::now() + delay;
        let Some(mut slot) = self.timers.get_mut(&key) else { return false };
        let earlier = std::mem::replace(&mut slot.deadline, deadline);
        drop(slot);
        self.file(Some((earlier, key)), (deadline, key));
        true
    }
}
