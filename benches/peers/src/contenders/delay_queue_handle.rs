//! tokio-util's `DelayQueue` behind a lock, by its own keys. These are slots, so they must not be used once the timer
//! has fired.

use super::delay_queue::{Driven, Entered, Timers};
use crate::contender::{Caller, Contender, Timer};
use crate::witness::Witness;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::time::Instant;
use tokio_util::time::{DelayQueue, delay_queue};

#[derive(Default)]
pub(crate) struct Plain(DelayQueue<u64>);

impl Timers for Plain {
    fn poll_expired(&mut self, context: &mut Context<'_>) -> Poll<Option<u64>> {
        self.0.poll_expired(context).map(|expired| expired.map(|expired| expired.into_inner()))
    }
}

pub(crate) struct DelayQueueHandle(Driven<Plain>);

impl Contender for DelayQueueHandle {
    type Caller = Entered<Plain>;
    fn new(witness: &'static Witness, _shards: Option<usize>) -> Self {
        Self(Driven::new(1, witness))
    }
    fn caller(&'static self) -> Self::Caller {
        self.0.enter()
    }
}

impl Caller for Entered<Plain> {
    type Handle = delay_queue::Key;
    fn schedule(&mut self, timer: Timer) -> Self::Handle {
        let deadline = Instant::now() + timer.delay;
        self.queues.lock(timer.key).0.insert_at(timer.value, deadline)
    }
    fn cancel(&mut self, key: u64, place: Self::Handle) -> Option<u64> {
        self.queues.lock(key).0.try_remove(&place).map(|expired| expired.into_inner())
    }
    fn reschedule(&mut self, key: u64, place: &mut Self::Handle, delay: Duration) -> bool {
        let deadline = Instant::now() + delay;
        self.queues.lock(key).0.reset_at(place, deadline);
        true
    }
}
