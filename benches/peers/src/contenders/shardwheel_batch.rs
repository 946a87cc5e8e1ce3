//! Ours, by key, in batches.

use super::Shardwheel;
use crate::contender::{Caller, Contender, KeyHasher, Pending, Timer};
use crate::witness::Witness;
use shardwheel::Scheduler;
use std::time::Duration;

pub(crate) struct ShardwheelBatch<S: KeyHasher>(Shardwheel<S>);

impl<S: KeyHasher> Contender for ShardwheelBatch<S> {
    type Caller = InBatches<S>;
    fn new(witness: &'static Witness) -> Self {
        Self(Shardwheel::build(witness))
    }
    fn caller(&'static self) -> InBatches<S> {
        InBatches(&self.0.0)
    }
    fn settle(&self) {
        self.0.wait_for_workers();
    }
}

pub(crate) struct InBatches<S: KeyHasher>(&'static Scheduler<u64, u64, S>);

impl<S: KeyHasher> Caller for InBatches<S> {
    type Handle = ();
    const BATCH: usize = 64;

    fn schedule(&mut self, timer: Timer) {
        self.0.schedule_with(timer.key, timer.value, timer.delay).expect("it is open and not full");
    }
    fn cancel(&mut self, key: u64, (): ()) -> Option<u64> {
        self.0.cancel(&key)
    }
    fn reschedule(&mut self, key: u64, (): &mut (), delay: Duration) -> bool {
        self.0.reschedule(&key, delay)
    }

    fn schedule_all(&mut self, timers: impl Iterator<Item = Timer>, mut keep: impl FnMut(Pending<()>)) {
        let timers: Vec<Timer> = timers.collect();
        let answers = self.0.schedule_batch(timers.iter().map(|timer| (timer.key, timer.value, timer.delay)));
        for (timer, answer) in timers.into_iter().zip(answers) {
            answer.expect("it is open and not full");
            keep(Pending { number: timer.value, handle: () });
        }
    }

    fn cancel_all(&mut self, timers: impl Iterator<Item = Pending<()>>) -> usize {
        let (numbers, keys): (Vec<u64>, Vec<u64>) = timers.map(|timer| (timer.number, timer.key())).unzip();
        let values = self.0.cancel_batch(&keys);
        values.into_iter().zip(numbers).filter(|(value, number)| *value == Some(*number)).count()
    }

    fn reschedule_all(
        &mut self,
        timers: &mut [Pending<()>],
        places: impl Iterator<Item = usize>,
        delay: Duration,
    ) -> usize {
        let keys: Vec<u64> = places.map(|place| timers[place].key()).collect();
        let answers = self.0.reschedule_batch(keys.iter().map(|key| (key, delay)));
        answers.into_iter().filter(|was_pending| *was_pending).count()
    }
}
