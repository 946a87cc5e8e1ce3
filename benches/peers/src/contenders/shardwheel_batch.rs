//! Ours, by key, in batches.

use super::Shardwheel;
use crate::contender::{Caller, Contender, KeyHasher, Pending, Row, Timer};
use crate::witness::Witness;
use shardwheel::Scheduler;
use std::time::Duration;

pub(crate) struct ShardwheelBatch<S: KeyHasher>(Shardwheel<S>);

impl<S: KeyHasher> Contender for ShardwheelBatch<S> {
    type Caller = InBatches<S>;
    fn new(witness: &'static Witness, shards: Option<usize>) -> Self {
        Self(Shardwheel::build(witness, shards))
    }
    fn caller(&'static self) -> InBatches<S> {
        InBatches { timers: &self.0.0, batch: Vec::new(), numbers: Vec::new(), keys: Vec::new() }
    }
    fn settle(&self) {
        self.0.wait_for_threads();
    }
}

pub(crate) struct InBatches<S: KeyHasher> {
    timers: &'static Scheduler<u64, u64, S>,
    /// Kept from call to call: to allocate and free memory each time would cost more than everything else.
    batch: Vec<Timer>,
    numbers: Vec<u64>,
    keys: Vec<u64>,
}

impl<S: KeyHasher> Caller for InBatches<S> {
    type Handle = ();
    const BATCH: usize = 64;

    fn schedule(&mut self, timer: Timer) {
        self.timers.schedule_with(timer.key, timer.value, timer.delay).expect("it is open and not full");
    }
    fn cancel(&mut self, key: u64, (): ()) -> Option<u64> {
        self.timers.cancel(&key)
    }
    fn reschedule(&mut self, key: u64, (): &mut (), delay: Duration) -> bool {
        self.timers.reschedule(&key, delay)
    }

    fn schedule_all(&mut self, timers: impl Iterator<Item = Timer>, mut keep: impl FnMut(Pending<()>)) {
        self.batch.clear();
        self.batch.extend(timers);
        let answers = self.timers.schedule_batch(self.batch.iter().map(|timer| (timer.key, timer.value, timer.delay)));
        for (timer, answer) in self.batch.iter().zip(answers) {
            answer.expect("it is open and not full");
            keep(Pending { number: timer.value, handle: () });
        }
    }

    fn cancel_all(&mut self, timers: impl Iterator<Item = Pending<()>>) -> usize {
        self.numbers.clear();
        self.keys.clear();
        for timer in timers {
            self.numbers.push(timer.number);
            self.keys.push(timer.key());
        }
        let values = self.timers.cancel_batch(&self.keys);
        values.into_iter().zip(&self.numbers).filter(|(value, number)| value.as_ref() == Some(*number)).count()
    }

    fn reschedule_all(&mut self, row: &mut Row<()>, places: impl Iterator<Item = usize>, delay: Duration) -> usize {
        self.keys.clear();
        self.keys.extend(places.map(|place| row.key(place)));
        let answers = self.timers.reschedule_batch(self.keys.iter().map(|key| (key, delay)));
        answers.into_iter().filter(|was_pending| *was_pending).count()
    }
}
