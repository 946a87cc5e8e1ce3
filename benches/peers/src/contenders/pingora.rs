//! `pingora_timeout::sleep` without a task, as in `tokio_sleep.rs`: each is boxed, in a map by key, and polled once
//! with a waker of its own, which fires it. It rounds up to 10 ms, cannot be moved, and never takes out what was
//! cancelled: that stays until its deadline.
//!
//! Its clock's thread wakes sleepers while it holds the lock of the timers of one thread. So a callback that starts
//! timers would have to be run elsewhere; this one does not. (`pingora_timeout::timeout` hands delays of more than 15
//! minutes to tokio. `sleep` takes any.)

use crate::contender::{Caller, Contender, KeyHasher, Timer};
use crate::witness::Witness;
use dashmap::DashMap;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::task::{Context, Wake, Waker};
use std::time::Duration;

pub(crate) struct Pingora<S: KeyHasher> {
    timers: DashMap<u64, Slot, S>,
    witness: &'static Witness,
}

struct Slot {
    sleep: Pin<Box<dyn Future<Output = ()> + Send + Sync>>,
    value: u64,
}

impl<S: KeyHasher> Contender for Pingora<S> {
    type Caller = &'static Self;
    fn new(witness: &'static Witness, _shards: Option<usize>) -> Self {
        Self { timers: DashMap::default(), witness }
    }
    fn caller(&'static self) -> Self::Caller {
        self
    }
}

/// Wakes the timer of a key, not a certain one: it looks whether it is due.
struct Alarm<S: KeyHasher> {
    key: u64,
    service: &'static Pingora<S>,
    was_woken: AtomicBool,
}

impl<S: KeyHasher> Alarm<S> {
    fn ring(self: Arc<Self>) {
        let (service, key) = (self.service, self.key);
        let waker = Waker::from(self);
        let due = |slot: &mut Slot| slot.sleep.as_mut().poll(&mut Context::from_waker(&waker)).is_ready();
        if let Some((_, slot)) = service.timers.remove_if_mut(&key, |_, slot| due(slot)) {
            service.witness.fire(slot.value);
        }
    }
}

impl<S: KeyHasher> Wake for Alarm<S> {
    fn wake(self: Arc<Self>) {
        self.was_woken.store(true, SeqCst);
        self.ring();
    }
}

impl<S: KeyHasher> Pingora<S> {
    /// A timer that runs, and puts it into the map by `keep`.
    fn start(&'static self, key: u64, value: u64, delay: Duration, keep: impl FnOnce(Slot)) {
        let alarm = Arc::new(Alarm { key, service: self, was_woken: AtomicBool::new(false) });
        let mut sleep = Box::pin(pingora_timeout::sleep(delay));
        // Not under the lock of the key's entry: this takes the one under which sleepers are woken. What fires before
        // it is in the map is not found there, so somebody looks again.
        let is_due = sleep.as_mut().poll(&mut Context::from_waker(&Waker::from(Arc::clone(&alarm)))).is_ready();
        keep(Slot { sleep, value });
        if is_due || alarm.was_woken.load(SeqCst) {
            alarm.ring();
        }
    }
}

impl<S: KeyHasher> Caller for &'static Pingora<S> {
    type Handle = ();
    fn schedule(&mut self, Timer { key, value, delay }: Timer) {
        self.start(key, value, delay, |slot| drop(self.timers.insert(key, slot)));
    }
    fn cancel(&mut self, key: u64, (): ()) -> Option<u64> {
        self.timers.remove(&key).map(|(_, slot)| slot.value)
    }
    fn reschedule(&mut self, key: u64, (): &mut (), delay: Duration) -> bool {
        let Some(value) = self.timers.get(&key).map(|slot| slot.value) else { return false };
        let mut was_pending = false;
        self.start(key, value, delay, |slot| {
            // The old one is dropped without the lock.
            let old = self.timers.get_mut(&key).map(|mut entry| std::mem::replace(&mut *entry, slot));
            was_pending = old.is_some();
        });
        was_pending
    }
}
