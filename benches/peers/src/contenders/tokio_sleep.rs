//! `tokio::time::Sleep` without a task: each is boxed, in a map by key, and polled once with a waker of its own, which
//! fires it. Leaner than a task per timer, for users who know tokio's timers well: a move is a `reset` in place.

use crate::contender::{Caller, Contender, KeyHasher, Timer};
use crate::witness::Witness;
use dashmap::DashMap;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Wake, Waker};
use std::time::Duration;
use tokio::runtime::{EnterGuard, Runtime};
use tokio::time::{Instant, Sleep};

pub(crate) struct TokioSleep<S: KeyHasher> {
    runtime: Runtime,
    timers: DashMap<u64, Slot, S>,
    witness: &'static Witness,
}

struct Slot {
    sleep: Pin<Box<Sleep>>,
    value: u64,
}

impl<S: KeyHasher> Contender for TokioSleep<S> {
    type Caller = Entered<S>;
    fn new(witness: &'static Witness, _shards: Option<usize>) -> Self {
        Self { runtime: super::runtime(None), timers: DashMap::default(), witness }
    }
    fn caller(&'static self) -> Entered<S> {
        Entered { service: self, _runtime: self.runtime.enter() }
    }
}

/// Wakes whichever timer the key has, which then looks whether it is due.
struct Alarm<S: KeyHasher> {
    key: u64,
    service: &'static TokioSleep<S>,
}

impl<S: KeyHasher> Wake for Alarm<S> {
    fn wake(self: Arc<Self>) {
        let (service, key) = (self.service, self.key);
        let waker = Waker::from(self);
        // Polled anew if it is not due: it was moved meanwhile, and goes on waiting, with this waker.
        let due = |slot: &mut Slot| {
            slot.sleep.is_elapsed() || slot.sleep.as_mut().poll(&mut Context::from_waker(&waker)).is_ready()
        };
        if let Some((_, slot)) = service.timers.remove_if_mut(&key, |_, slot| due(slot)) {
            service.witness.fire(slot.value);
        }
    }
}

/// A thread within the runtime: sleeps can be made in no other.
pub(crate) struct Entered<S: KeyHasher> {
    service: &'static TokioSleep<S>,
    _runtime: EnterGuard<'static>,
}

impl<S: KeyHasher> Caller for Entered<S> {
    type Handle = ();
    fn schedule(&mut self, Timer { key, value, delay }: Timer) {
        let service = self.service;
        let mut sleep = Box::pin(tokio::time::sleep(delay));
        let waker = Waker::from(Arc::new(Alarm { key, service }));
        // Not under the lock of the key's entry: the poll takes the lock of all timers. A timer that fires before it is
        // in the map is not found there, so we look again.
        let _ = sleep.as_mut().poll(&mut Context::from_waker(&waker));
        let entry = service.timers.entry(key);
        let has_fired = sleep.is_elapsed();
        drop(entry.insert(Slot { sleep, value }));
        if has_fired {
            waker.wake();
        }
    }
    fn cancel(&mut self, key: u64, (): ()) -> Option<u64> {
        self.service.timers.remove(&key).map(|(_, slot)| slot.value)
    }
    fn reschedule(&mut self, key: u64, (): &mut (), delay: Duration) -> bool {
        let deadline = Instant::now() + delay;
        let Some(mut slot) = self.service.timers.get_mut(&key) else { return false };
        slot.sleep.as_mut().reset(deadline);
        true
    }
}
