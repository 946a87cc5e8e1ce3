//! Ours, by handle. The timers can be found by key all the same.

use super::shardwheel::Shardwheel;
use crate::contender::{Caller, Contender, KeyHasher, Timer};
use crate::witness::Witness;
use shardwheel::Scheduler;
use std::time::Duration;

pub(crate) struct ShardwheelHandle<S: KeyHasher>(Shardwheel<S>);

impl<S: KeyHasher> Contender for ShardwheelHandle<S> {
    type Caller = ByHandle<S>;
    fn new(witness: &'static Witness) -> Self {
        Self(Shardwheel::build(witness))
    }
    fn caller(&'static self) -> ByHandle<S> {
        ByHandle(&self.0.0)
    }
    fn settle(&self) {
        self.0.wait_for_threads();
    }
}

pub(crate) struct ByHandle<S: KeyHasher>(&'static Scheduler<u64, u64, S>);

impl<S: KeyHasher> Caller for ByHandle<S> {
    type Handle = shardwheel::Timer<u64, u64>;
    fn schedule(&mut self, timer: Timer) -> Self::Handle {
        let result = self.0.schedule_with_handle(timer.key, timer.value, timer.delay);
        result.expect("it is open and not full").1
    }
    fn cancel(&mut self, _key: u64, timer: Self::Handle) -> Option<u64> {
        timer.cancel()
    }
    fn reschedule(&mut self, _key: u64, timer: &mut Self::Handle, delay: Duration) -> bool {
        timer.reschedule(delay)
    }
}
