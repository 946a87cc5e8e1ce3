//! What a timer service must be able to do to be measured.

use crate::witness::Witness;
use std::hash::BuildHasher;
use std::time::Duration;

/// How keys are hashed, by all contenders alike.
pub(crate) trait KeyHasher: BuildHasher + Default + Clone + Send + Sync + 'static {}

impl<S: BuildHasher + Default + Clone + Send + Sync + 'static> KeyHasher for S {}

/// A timer service. It lives until its process ends: each measurement has a process of its own.
pub(crate) trait Contender: Sync + Sized + 'static {
    type Caller: Caller;
    /// Timers that expire are handed to `witness`, on whichever thread the service runs callbacks. A service that can
    /// have several shards has `shards` of them, if that is given.
    fn new(witness: &'static Witness, shards: Option<usize>) -> Self;
    /// What one thread uses to call the service; made on that thread.
    fn caller(&'static self) -> Self::Caller;
    /// Returns once everything that the calls so far have put off is done: it belongs to their cost.
    fn settle(&self) {}
}

/// One thread's way to the service. The loops call the `_all` methods only, with at most `BATCH` timers at a time.
///
/// A caller that works by key has `()` for a handle; one that works by handle does not look at the key.
pub(crate) trait Caller {
    type Handle: Send;
    /// More than 1 for a service with batch calls, which implements the three `_all` methods with them.
    const BATCH: usize = 1;

    fn schedule(&mut self, timer: Timer) -> Self::Handle;
    /// Returns the value, if the timer was pending.
    fn cancel(&mut self, key: u64, handle: Self::Handle) -> Option<u64>;
    /// True if the timer was pending.
    fn reschedule(&mut self, key: u64, handle: &mut Self::Handle, delay: Duration) -> bool;

    fn schedule_all(&mut self, timers: impl Iterator<Item = Timer>, mut keep: impl FnMut(Pending<Self::Handle>)) {
        timers.for_each(|timer| {
            let handle = self.schedule(timer);
            keep(Pending { number: timer.value, handle });
        });
    }

    /// Returns how many were pending and gave their own value back.
    fn cancel_all(&mut self, timers: impl Iterator<Item = Pending<Self::Handle>>) -> usize {
        timers.filter_map(|timer| (self.cancel(timer.key(), timer.handle)? == timer.number).then_some(())).count()
    }

    /// Moves the timers of `row` at `places`. Returns how many were pending.
    fn reschedule_all(
        &mut self,
        row: &mut Row<Self::Handle>,
        places: impl Iterator<Item = usize>,
        delay: Duration,
    ) -> usize {
        places.filter(|&place| self.reschedule(row.key(place), &mut row.handles[place], delay)).count()
    }
}

/// A timing wheel for one owner, which has neither a thread nor a clock.
pub(crate) trait Wheel: Default {
    fn insert(&mut self, delay: Duration, value: u64);
    /// Lets a millisecond pass. Returns how many values expire.
    fn step(&mut self) -> usize;
}

/// A timer to be scheduled.
#[derive(Clone, Copy)]
pub(crate) struct Timer {
    pub(crate) key: u64,
    pub(crate) value: u64,
    pub(crate) delay: Duration,
}

impl Timer {
    /// Timer number `number` of a run: the number is its value, and its key is scrambled.
    pub(crate) fn new(number: u64, delay: Duration) -> Self {
        Self { key: scramble(number), value: number, delay }
    }
}

/// A timer that was scheduled.
pub(crate) struct Pending<H> {
    pub(crate) number: u64,
    pub(crate) handle: H,
}

impl<H> Pending<H> {
    pub(crate) fn key(&self) -> u64 {
        scramble(self.number)
    }
}

/// Timers that were scheduled with consecutive numbers. Their keys are computed, not looked up in memory: a user that
/// moves a timer because something happened has its key at hand.
pub(crate) struct Row<H> {
    first: u64,
    pub(crate) handles: Vec<H>,
}

impl<H> Row<H> {
    pub(crate) fn new(timers: Vec<Pending<H>>) -> Self {
        let first = timers.first().map_or(0, |timer| timer.number);
        assert!((first..).zip(&timers).all(|(number, timer)| timer.number == number), "they are in a row");
        Self { first, handles: timers.into_iter().map(|timer| timer.handle).collect() }
    }

    pub(crate) fn len(&self) -> usize {
        self.handles.len()
    }

    pub(crate) fn key(&self, place: usize) -> u64 {
        scramble(self.first + place as u64)
    }
}

/// A bijection whose results show no order; also the source of everything random here.
pub(crate) fn scramble(number: u64) -> u64 {
    let mixed = (number ^ number >> 32).wrapping_mul(0x9fb2_1c65_1e98_df25);
    let mixed = (mixed ^ mixed >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed ^ mixed >> 32
}

/// A number below `bound`, which is less than 2^32, chosen by `seed`.
pub(crate) fn random_below(bound: usize, seed: u64) -> usize {
    (((scramble(seed) >> 32) * bound as u64) >> 32) as usize
}
