//! What one thread at a time runs for several shards: their quick callbacks.
//!
//! Each shard has a thread for its callbacks (`callback_thread.rs`). Waking it costs as much as many quick callbacks,
//! and takes as long; where several shards have a few timers per tick, it is most of what those cost. So batches that
//! a lookout gathers (`crew.rs`) are left here, each shard's in a slot, for that lookout's own thread, as long as it
//! should be done soon with what there is ([`LOAD_MAX`]). The estimate is what callbacks have taken lately. Of batches
//! from several workers' threads that come at about the same time ([`COMPANY`]), the first few go to their shards' own
//! threads ([`CROWD`]), the rest is left here for the first lookout's.
//!
//! The estimate may be wrong: the thread may be stuck in a slow callback. Then no shard leaves anything more here, and
//! a shard that has left something takes it back after a while. So a shard's callbacks depend on another shard's only
//! for that while. A worker and a lookout's thread meet in one exchange on a slot: neither waits for the other, even if
//! one of them is stopped.

use crate::callback_thread::Run;
use crate::clock::saturating_nanos;
use crate::lookout::LOOKOUTS;
use crate::sync::EventCount;
use crate::sync::slot::Slot;
use crate::unwind::caught;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Nothing more is left here if what the thread has should take this long in all, or if its current errand has taken
/// this long.
const LOAD_MAX: Duration = Duration::from_micros(300);
/// Batches come at about the same time if each comes within this time after the one before.
const COMPANY: Duration = Duration::from_micros(100);
/// The first batch, of those at about the same time, that is left here. With fewer, waking this thread would replace
/// hardly more than one other wake-up.
pub(crate) const CROWD: u64 = 4;
/// The most that one callback counts for. After a slow one, nothing is left here that is gathered until a few dozen
/// batches have gone elsewhere: callbacks may be quick again.
const PACE_MAX: Duration = Duration::from_millis(2);

struct Errand {
    run: Run,
    /// Its part of the lane's `load`.
    share: u64,
}

/// Times are in nanoseconds. Relaxed, unless something else is said: load, pace and times are estimates, on which only
/// the choice of a thread depends. The slots publish what is in them.
pub(crate) struct Lane {
    /// The origin of the times.
    start: Instant,
    /// By shard.
    slots: Box<[Slot<Errand>]>,
    /// How long what the thread has been given should take; 0 if it has nothing to do.
    load: AtomicU64,
    /// When the thread began its current errand; or when it was given one while it had none.
    begun: AtomicU64,
    /// What a callback has taken lately.
    pace: AtomicU64,
    /// When a shard last had something to run, here or on its own thread.
    last_given: AtomicU64,
    /// How many there were in a row, each within [`COMPANY`] of the one before.
    crowd: AtomicU64,
    /// What the threads sleep on.
    events: [EventCount; LOOKOUTS],
}

impl Lane {
    pub(crate) fn new(shard_count: usize) -> Self {
        Self {
            start: Instant::now(),
            slots: (0..shard_count).map(|_| Slot::new()).collect(),
            load: AtomicU64::new(0),
            begun: AtomicU64::new(0),
            pace: AtomicU64::new(0),
            last_given: AtomicU64::new(0),
            crowd: AtomicU64::new(0),
            events: Default::default(),
        }
    }

    /// To be asked once by each shard for each batch that it has to run: true if it should leave the batch, with so
    /// many callbacks, here. If the batches of several shards are being gathered, this need not be one of many.
    pub(crate) fn is_worth_it(&self, is_gathering: bool, callbacks: usize) -> bool {
        let now = self.now();
        // In any case, since it counts this batch.
        let is_crowded = self.is_crowded(now);
        if is_gathering { self.has_room(callbacks) } else { is_crowded && self.is_ready(now) }
    }

    /// Has the thread call `run`, which runs `callbacks` callbacks, once the caller has called
    /// [`announce`](Self::announce). Some time later the shard has to [`take_back`](Self::take_back) what has not
    /// begun. Returns what the shard had left here before, if that has not begun.
    pub(crate) fn leave(&self, shard_number: usize, callbacks: usize, run: Run) -> Option<Run> {
        let share = self.pace.load(Relaxed).saturating_mul(callbacks as u64).max(1);
        if self.load.fetch_add(share, Relaxed) == 0 {
            self.begun.store(self.now(), Relaxed);
        }
        self.returned(self.slots[shard_number].put(Box::new(Errand { run, share })))
    }

    /// Wakes the first thread for what the caller has left here.
    pub(crate) fn announce(&self) {
        self.call(0);
    }

    /// Wakes a thread.
    pub(crate) fn call(&self, thread: usize) {
        self.events[thread].notify();
    }

    /// Returns what this shard has left here, if it has not begun.
    pub(crate) fn take_back(&self, shard_number: usize) -> Option<Run> {
        self.returned(self.slots[shard_number].take())
    }

    /// True if something is left here that has not begun.
    pub(crate) fn is_waited_for(&self) -> bool {
        self.slots.iter().any(Slot::is_occupied)
    }

    /// True if something is left here, or runs.
    pub(crate) fn has_any(&self) -> bool {
        self.load.load(Relaxed) > 0
    }

    /// For a thread: taken before it looks for something to do.
    pub(crate) fn ticket(&self, thread: usize) -> u32 {
        self.events[thread].ticket()
    }

    /// For a thread: sleeps until it is woken later than `ticket`, or for `timeout`.
    pub(crate) fn wait(&self, thread: usize, ticket: u32, timeout: Option<Duration>) {
        self.events[thread].wait(ticket, timeout);
    }

    /// For a thread: runs what is left here, by shard, while `goes_on`. What is left meanwhile is announced after that.
    pub(crate) fn run(&self, goes_on: impl Fn() -> bool) {
        for slot in self.slots.iter().take_while(|_| goes_on()) {
            slot.take().into_iter().for_each(|errand| self.run_one(*errand));
        }
    }

    fn now(&self) -> u64 {
        saturating_nanos(self.start.elapsed())
    }

    /// Counts a batch that is to run now. True if it comes at about the same time as enough others.
    fn is_crowded(&self, now: u64) -> bool {
        let before = self.last_given.swap(now, Relaxed);
        if now.saturating_sub(before) >= saturating_nanos(COMPANY) {
            self.crowd.store(1, Relaxed);
            return false;
        }
        self.crowd.fetch_add(1, Relaxed) + 1 >= CROWD
    }

    /// True if what is put here should begin soon.
    fn is_ready(&self, now: u64) -> bool {
        let load = self.load.load(Relaxed);
        let busy_for = now.saturating_sub(self.begun.load(Relaxed));
        load == 0 || load.max(busy_for) < saturating_nanos(LOAD_MAX)
    }

    /// True if the thread, which is up and runs nothing, should be done soon with so many callbacks more. If not, less
    /// is expected of them next time: otherwise nothing would ever be left here again.
    fn has_room(&self, callbacks: usize) -> bool {
        let pace = self.pace.load(Relaxed);
        let load = self.load.load(Relaxed).saturating_add(pace.saturating_mul(callbacks as u64));
        let has_room = load < saturating_nanos(LOAD_MAX);
        if !has_room {
            self.pace.store(pace - pace / 64, Relaxed);
        }
        has_room
    }

    fn returned(&self, errand: Option<Box<Errand>>) -> Option<Run> {
        let errand = errand?;
        self.load.fetch_sub(errand.share, Relaxed);
        Some(errand.run)
    }

    fn run_one(&self, Errand { run, share }: Errand) {
        let begun = self.now();
        self.begun.store(begun, Relaxed);
        // Callbacks' panics are caught one by one; but dropping the last of the user's code may panic as well.
        let callbacks = caught(run).unwrap_or(0);
        self.learn(self.now().saturating_sub(begun), callbacks);
        self.load.fetch_sub(share, Relaxed);
    }

    fn learn(&self, spent: u64, callbacks: usize) {
        // `None` if other threads have run them all.
        if let Some(each) = spent.checked_div(callbacks as u64) {
            let (pace, each) = (self.pace.load(Relaxed), each.min(saturating_nanos(PACE_MAX)));
            self.pace.store((3 * pace + each) / 4, Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, AtomicUsize};
    use std::sync::mpsc::{Receiver, Sender, channel};
    use std::thread;
    use std::time::Instant;

    const PATIENCE: Duration = Duration::from_secs(60);

    /// Reports that it has begun, and waits until it may go on.
    fn slow() -> (Run, Sender<()>, Receiver<()>) {
        let ((go_on, gate), (begun, begin)) = (channel(), channel());
        let run = move || {
            // Perhaps nobody listens any more.
            let _ = begun.send(());
            let _ = gate.recv();
            1
        };
        (Box::new(run), go_on, begin)
    }

    fn quick() -> (Run, Receiver<()>) {
        let (run, go_on, begin) = slow();
        drop(go_on);
        (run, begin)
    }

    /// Runs `test` beside a thread that serves the lane.
    fn with_lane(shard_count: usize, test: impl FnOnce(&Lane)) {
        let (lane, has_ended) = (Lane::new(shard_count), AtomicBool::new(false));
        let serve = || {
            loop {
                let ticket = lane.ticket(0);
                lane.run(|| true);
                if has_ended.load(Relaxed) {
                    return;
                }
                lane.wait(0, ticket, None);
            }
        };
        thread::scope(|scope| {
            scope.spawn(serve);
            test(&lane);
            eventually(|| !lane.has_any());
            has_ended.store(true, Relaxed);
            lane.announce();
        });
    }

    fn leave(lane: &Lane, shard_number: usize, run: Run) -> Option<Run> {
        let before = lane.leave(shard_number, 1, run);
        lane.announce();
        before
    }

    fn eventually(condition: impl Fn() -> bool) {
        let begin = Instant::now();
        while !condition() {
            assert!(begin.elapsed() < PATIENCE, "it does not come");
            thread::yield_now();
        }
    }

    fn told(sign: &Receiver<()>) {
        sign.recv_timeout(PATIENCE).expect("it does not come");
    }

    #[test]
    fn it_is_ready_if_what_it_has_should_be_done_soon() {
        let (lane, most) = (Lane::new(1), saturating_nanos(LOAD_MAX));
        let is_ready = |load, busy_for| {
            lane.load.store(load, Relaxed);
            lane.is_ready(busy_for)
        };
        assert!(is_ready(0, 0) && is_ready(0, most) && is_ready(most - 1, most - 1));
        assert!(!is_ready(1, most) && !is_ready(most, 0));
    }

    #[test]
    fn what_should_take_long_is_left_elsewhere_but_not_for_ever() {
        let (lane, most) = (Lane::new(1), saturating_nanos(LOAD_MAX));
        lane.pace.store(most / 10, Relaxed);
        assert!(lane.is_worth_it(true, 9) && !lane.is_worth_it(true, 11), "nothing is left there yet");
        assert!(lane.leave(0, 5, quick().0).is_none());
        assert!(lane.is_worth_it(true, 4) && !lane.is_worth_it(true, 6), "less, with that");
        assert!(lane.take_back(0).is_some() && !lane.has_any());
        lane.pace.store(saturating_nanos(PACE_MAX), Relaxed);
        let refused = (0..1000).take_while(|_| !lane.is_worth_it(true, 1)).count();
        assert!((50..200).contains(&refused), "{refused}");
    }

    #[test]
    fn the_pace_follows_what_callbacks_take() {
        let lane = Lane::new(1);
        let after = |spent, callbacks, times| {
            (0..times).for_each(|_| lane.learn(spent, callbacks));
            lane.pace.load(Relaxed)
        };
        assert_eq!(after(1000, 0, 9), 0, "others have run them");
        assert!((90..=100).contains(&after(1000, 10, 20)));
        assert_eq!(
            after(u64::MAX, 1, 1) / saturating_nanos(PACE_MAX / 8),
            2,
            "a quarter of the most that one counts for"
        );
        assert!(after(1000, 10, 40) < 110);
        lane.pace.store(7, Relaxed);
        assert!(lane.leave(0, 100, quick().0).is_none() && lane.load.load(Relaxed) == 700);
    }

    #[test]
    fn the_first_few_of_a_crowd_keep_what_they_have() {
        let lane = Lane::new(1);
        let gap = saturating_nanos(COMPANY) - 1;
        let crowded: Vec<_> = (1..=6).map(|place| lane.is_crowded(place * gap)).collect();
        assert_eq!(crowded, [false, false, false, true, true, true]);
        let alone: Vec<_> = (1..=6).map(|place| lane.is_crowded((place + 9) * (gap + 1))).collect();
        assert_eq!(alone, [false; 6]);
    }

    #[test]
    fn what_is_put_in_a_slot_comes_out_once_or_goes_with_it() {
        let (slot, thing) = (Slot::new(), Arc::new(7));
        let put = || slot.put(Box::new(Arc::clone(&thing)));
        assert!(slot.take().is_none() && put().is_none());
        assert_eq!((**slot.take().expect("it was put there"), slot.take()), (7, None));
        assert!(put().is_none() && put().is_some());
        assert_eq!(Arc::strong_count(&thing), 2);
        drop(slot);
        assert_eq!(Arc::strong_count(&thing), 1);
    }

    #[test]
    fn what_has_not_begun_comes_back() {
        with_lane(3, |lane| {
            let (first, go_on, first_begins) = slow();
            assert!(leave(lane, 0, first).is_none());
            told(&first_begins);
            let ((second, second_begins), (third, third_begins)) = (quick(), quick());
            assert!(leave(lane, 1, second).is_none() && leave(lane, 2, third).is_none());
            lane.take_back(1).expect("it has not begun")();
            told(&second_begins);
            assert!(lane.take_back(1).is_none() && lane.take_back(0).is_none(), "they have");
            let (fourth, fourth_begins) = quick();
            leave(lane, 2, fourth).expect("the third has not begun")();
            told(&third_begins);
            go_on.send(()).expect("it waits");
            told(&fourth_begins);
        });
    }

    /// Whether the thread takes it, or the shard takes it back, or the next one replaces it.
    #[test]
    fn each_errand_is_run_once() {
        const SHARDS: usize = 3;
        const EACH: usize = if cfg!(miri) { 20 } else { 3000 };
        let runs: Vec<_> = (0..SHARDS * EACH).map(|_| Arc::new(AtomicUsize::new(0))).collect();
        let by_lane = AtomicUsize::new(SHARDS * EACH);
        with_lane(SHARDS, |lane| {
            thread::scope(|scope| {
                for shard in 0..SHARDS {
                    let (by_lane, own) = (&by_lane, runs.iter().skip(shard).step_by(SHARDS));
                    scope.spawn(move || {
                        for (round, runs) in own.enumerate() {
                            let runs = Arc::clone(runs);
                            let before = leave(lane, shard, Box::new(move || runs.fetch_add(1, Relaxed) + 1));
                            if round % 7 == 0 {
                                thread::yield_now();
                            }
                            let back = if round % 3 == 0 { lane.take_back(shard) } else { None };
                            let not_begun = before.into_iter().chain(back);
                            not_begun.for_each(|run| _ = by_lane.fetch_sub(run(), Relaxed));
                        }
                    });
                }
            });
            eventually(|| runs.iter().all(|runs| runs.load(Relaxed) > 0));
        });
        assert!(runs.iter().all(|runs| runs.load(Relaxed) == 1));
        assert!((1..SHARDS * EACH).contains(&by_lane.into_inner()), "both have run some");
    }

    #[test]
    fn it_survives_an_errand_that_panics() {
        struct Bomb;
        impl Drop for Bomb {
            fn drop(&mut self) {
                panic!("on purpose: the payload too");
            }
        }
        with_lane(1, |lane| {
            assert!(leave(lane, 0, Box::new(|| std::panic::resume_unwind(Box::new(Bomb)))).is_none());
            eventually(|| !lane.has_any());
            let (run, begins) = quick();
            assert!(leave(lane, 0, run).is_none());
            told(&begins);
        });
    }
}
