//! Ours, by key.

use crate::contender::{Caller, Contender, KeyHasher, Timer};
use crate::process;
use crate::witness::Witness;
use shardwheel::Scheduler;
use std::num::NonZero;
use std::time::Duration;

/// So many hints of each stripe of callers may wait in a shard's mailbox until its worker wakes up for something else.
const MAILBOX_REST: usize = 1020;

/// The thread that works ahead of callers: its time counts, too.
const GROWTH: &str = "shardwheel-grow";

pub(crate) struct Shardwheel<S: KeyHasher>(pub(super) Scheduler<u64, u64, S>);

impl<S: KeyHasher> Shardwheel<S> {
    pub(super) fn build(witness: &'static Witness) -> Self {
        let scheduler = Scheduler::builder().hasher(S::default()).build(|_, value| witness.fire(value));
        Self(scheduler.expect("the defaults are in range"))
    }

    pub(super) fn wait_for_workers(&self) {
        let cores = std::thread::available_parallelism().map_or(1, NonZero::get);
        let stripes = (4 * cores).next_power_of_two().min(64);
        let rest = (MAILBOX_REST * stripes) as u64;
        let has_mail = || self.0.stats().shards.iter().any(|shard| shard.mailbox_depth > rest);
        // Several times in a row: a thread that has just been woken, waits for memory, or has a break, sleeps for a moment.
        let mut looks_at_rest = 0;
        while looks_at_rest < 4 {
            looks_at_rest = if has_mail() || process::is_busy(GROWTH) { 0 } else { looks_at_rest + 1 };
            std::thread::sleep(Duration::from_micros(50));
        }
    }
}

impl<S: KeyHasher> Contender for Shardwheel<S> {
    type Caller = ByKey<S>;
    fn new(witness: &'static Witness) -> Self {
        Self::build(witness)
    }
    fn caller(&'static self) -> ByKey<S> {
        ByKey(&self.0)
    }
    fn settle(&self) {
        self.wait_for_workers();
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
