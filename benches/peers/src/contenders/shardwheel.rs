//! Ours, by key.

use crate::contender::{Caller, Contender, KeyHasher, Timer};
use crate::process;
use crate::witness::Witness;
use shardwheel::Scheduler;
use std::time::Duration;

/// What the names of all its threads begin with: workers, those that run callbacks, and the one that works ahead of
/// callers.
const THREADS: &str = "shardwheel-";

pub(crate) struct Shardwheel<S: KeyHasher>(pub(super) Scheduler<u64, u64, S>);

impl<S: KeyHasher> Shardwheel<S> {
    pub(super) fn build(witness: &'static Witness, shards: Option<usize>) -> Self {
        let mut builder = Scheduler::builder().hasher(S::default());
        if let Some(shards) = shards {
            builder = builder.shards(shards);
        }
        Self(builder.build(|_, value| witness.fire(value)).expect("the system starts so many threads"))
    }

    pub(super) fn wait_for_threads(&self) {
        // Several looks in a row: a thread that was just woken, waits for memory, or takes a break, is asleep for a
        // moment.
        let mut looks_at_rest = 0;
        while looks_at_rest < 4 {
            looks_at_rest = if process::are_busy(THREADS) { 0 } else { looks_at_rest + 1 };
            std::thread::sleep(Duration::from_micros(50));
        }
    }
}

impl<S: KeyHasher> Contender for Shardwheel<S> {
    type Caller = ByKey<S>;
    fn new(witness: &'static Witness, shards: Option<usize>) -> Self {
        Self::build(witness, shards)
    }
    fn caller(&'static self) -> ByKey<S> {
        ByKey(&self.0)
    }
    fn settle(&self) {
        self.wait_for_threads();
    }
}

pub(crate) struct ByKey<S: KeyHasher>(&'static Scheduler<u64, u64, S>);

impl<S: KeyHasher> Caller for ByKey<S> {
    type Handle = ();
    fn schedule(&mut self, timer: Timer) {
        self.0.schedule_with(timer.key, timer.value, timer.delay).expect("it is open and not full");
    }
    fn cancel(&mut self, key: u64, (): ()) -> Option<u64> {
        self.0.cancel(&key)
    }
    fn reschedule(&mut self, key: u64, (): &mut (), delay: Duration) -> bool {
        self.0.reschedule(&key, delay)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::hash_map::RandomState;

    #[test]
    fn it_has_as_many_shards_as_it_is_told() {
        let Shardwheel(scheduler) = Shardwheel::<RandomState>::new(Witness::new(0), Some(3));
        assert_eq!(scheduler.stats().shards.len(), 3);
    }
}
