//! Ours, by handle. The peers' timers cannot be found by a key. Ours can nevertheless, or cannot, if `INDEXED` is
//! false.

use super::shardwheel::Shardwheel;
use crate::contender::{Caller, Contender, KeyHasher, Timer};
use crate::witness::Witness;
use shardwheel::Scheduler;
use std::time::Duration;

pub(crate) struct ShardwheelHandle<S: KeyHasher, const INDEXED: bool>(Shardwheel<S>);

impl<S: KeyHasher, const INDEXED: bool> Contender for ShardwheelHandle<S, INDEXED> {
    type Caller = ByHandle<S, INDEXED>;
    fn new(witness: &'static Witness, shards: Option<usize>) -> Self {
        Self(Shardwheel::build(witness, shards))
    }
    fn caller(&'static self) -> ByHandle<S, INDEXED> {
        ByHandle(&self.0.0)
    }
    fn settle(&self) {
        self.0.wait_for_threads();
    }
}

pub(crate) struct ByHandle<S: KeyHasher, const INDEXED: bool>(&'static Scheduler<u64, u64, S>);

impl<S: KeyHasher, const INDEXED: bool> Caller for ByHandle<S, INDEXED> {
    type Handle = shardwheel::Timer<u64, u64>;
    fn schedule(&mut self, timer: Timer) -> Self::Handle {
        let Timer { key, value, delay } = timer;
        let handle = if INDEXED {
            self.0.schedule_with_handle(key, value, delay).map(|(_, handle)| handle)
        } else {
            self.0.schedule_unindexed(key, value, delay)
        };
        handle.expect("it is open and not full")
    }
    fn cancel(&mut self, _key: u64, timer: Self::Handle) -> Option<u64> {
        timer.cancel()
    }
    fn reschedule(&mut self, _key: u64, timer: &mut Self::Handle, delay: Duration) -> bool {
        timer.reschedule(delay)
    }
}
