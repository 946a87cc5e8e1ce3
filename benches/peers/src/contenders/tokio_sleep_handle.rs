//! `tokio::time::Sleep` in the hands of its user, as in a connection's own task: boxed, without a map, and polled with
//! its owner's waker. It wakes the owner, which would poll it; nothing fires by itself.

use crate::contender::{Caller, Contender, Timer};
use crate::witness::Witness;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Wake, Waker};
use std::time::Duration;
use tokio::runtime::{EnterGuard, Runtime};
use tokio::time::{Instant, Sleep};

pub(crate) struct TokioSleepHandle {
    runtime: Runtime,
    witness: &'static Witness,
}

impl Contender for TokioSleepHandle {
    type Caller = Owner;
    fn new(witness: &'static Witness, _shards: Option<usize>) -> Self {
        Self { runtime: super::runtime(None), witness }
    }
    fn caller(&'static self) -> Owner {
        Owner { waker: Arc::new(Alarm(self.witness)).into(), _runtime: self.runtime.enter() }
    }
}

struct Alarm(&'static Witness);

impl Wake for Alarm {
    fn wake(self: Arc<Self>) {
        self.0.fire(u64::MAX);
    }
}

pub(crate) struct Owner {
    waker: Waker,
    _runtime: EnterGuard<'static>,
}

pub(crate) struct Handle {
    sleep: Pin<Box<Sleep>>,
    value: u64,
}

impl Caller for Owner {
    type Handle = Handle;
    fn schedule(&mut self, timer: Timer) -> Handle {
        let mut sleep = Box::pin(tokio::time::sleep(timer.delay));
        // Only this poll makes the sleep known to the runtime.
        let _ = sleep.as_mut().poll(&mut Context::from_waker(&self.waker));
        Handle { sleep, value: timer.value }
    }
    fn cancel(&mut self, _key: u64, handle: Handle) -> Option<u64> {
        (!handle.sleep.is_elapsed()).then_some(handle.value)
    }
    fn reschedule(&mut self, _key: u64, handle: &mut Handle, delay: Duration) -> bool {
        if handle.sleep.is_elapsed() {
            return false;
        }
        handle.sleep.as_mut().reset(Instant::now() + delay);
        true
    }
}
