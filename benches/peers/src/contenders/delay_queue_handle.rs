//! tokio-util's `DelayQueue` behind a lock, by its own keys: those are slots, so they must not be used once the timer has
//! fired.

use super::delay_queue::{Driven, Entered, Timers};
use crate::contender::{Caller, Contender, Timer};
use crate::witness::Witness;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio_util::time::{DelayQueue, delay_queue};

#[derive(Default)]
pub(crate) struct Plain(DelayQueue<(u64, u64)>);

impl Timers for Plain {
    fn poll_expired(&mut self, context: &mut Context<'_>) -> Poll<Option<u64>> {
        self.0.poll_expired(context).map(|expired| expired.map(|expired| expired.into_inner().1))
    }
}

pub(crate) struct DelayQueueHandle(Driven<Plain>);

impl Contender for DelayQueueHandle {
    type Caller = Entered<Plain>;
    fn new(witness: &'static Witness) -> Self {
        Self(Driven::new(witness))
    }
    fn caller(&'static self) -> Self::Caller {
        self.0.enter()
    }
}

impl Caller for Entered<Plain> {
    type Handle = delay_queue::Key;
    fn schedule(&mut self, timer: Timer) -> Self::Handle {
        self.timers.lock().0.insert((timer.key, timer.value), timer.delay)
    }
    fn cancel(&mut self, _key: u64, place: Self::Handle) -> Option<u64> {
        self.timers.lock().0.try_remove(&place).map(|expired| expired.into_inner().1)
    }
    fn reschedule(&mut self, _key: u64, place: &mut Self::Handle, delay: Duration) -> bool {
        self.timers.lock().0.reset(place, delay);
        true
    }
}
