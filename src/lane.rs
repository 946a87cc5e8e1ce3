//! One thread for the quick callbacks of several shards.
//!
//! Each shard has a thread for its callbacks (`callback_thread.rs`). Waking it costs as much as many quick callbacks,
//! and takes as long; where several shards have a few timers per tick, it is most of what those cost. So batches that
//! the lookout gathers (`crew.rs`) are left here, each shard's in a slot, for one thread, as long as that thread should
//! be done soon with what it has ([`LOAD_MAX`]). The estimate is what callbacks have taken lately. Of batches from
//! several workers' threads that come at about the same time ([`COMPANY`]), the first few go to their shards' own
//! threads ([`CROWD`]), the rest is left here.
//!
//! The estimate may be wrong: the thread may be stuck in a slow callback. Then no shard leaves anything more here, and
//! a shard that has left something takes it back after a while. So a shard's callbacks depend on another shard's only
//! for that while. A worker and the lane's thread meet in one exchange on a slot: neither waits for the other, even if
//! one of them is stopped.

use crate::callback_thread::Run;
use crate::clock::saturating_nanos;
use crate::sync::slot::Slot;
use crate::unwind::caught;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

/// Nothing more is left here if what the thread has should take this long in all, or if its current errand has taken
/// this long.
const LOAD_MAX: Duration = Duration::from_micros(300);
/// Batches come at about the same time if each comes within this time after the one before.
const COMPANY: Duration = Duration::from_micros(100);
/// The first batch, of those at about the same time, that is left here. With fewer, waking this thread would replace
/// hardly more than one other wake-up.
pub(crate) const CROWD: u64 = 4;
/// The most that one callback counts for: after a slow one, it takes a few dozen errands until callbacks are thought to
/// be quick again.
const PACE_MAX: Duration = Duration::from_millis(1);

/// When this is dropped, the thread ends after what it has been given. The drop does not wait for that: it may be a
/// slow callback.
pub(crate) struct Lane {
    desk: Arc<Desk>,
    thread: Thread,
}

struct Errand {
    run: Run,
    /// Its part of the desk's `load`.
    share: u64,
}

/// Times are in nanoseconds. Relaxed, unless something else is said: load, pace and times are estimates, on which only
/// the choice of a thread depends. The slots publish what is in them.
struct Desk {
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
    /// Nothing more will be left here.
    has_ended: AtomicBool,
}

impl Lane {
    pub(crate) fn start(shard_count: usize, name: String) -> io::Result<Self> {
        let desk = Arc::new(Desk::new(shard_count));
        let own = Arc::clone(&desk);
        let handle = thread::Builder::new().name(name).spawn(move || own.serve())?;
        Ok(Self { desk, thread: handle.thread().clone() })
    }

    /// To be asked once by each shard for each batch that it has to run: true if it should leave the batch here. If the
    /// batches of several shards are being gathered, this need not be one of many.
    pub(crate) fn is_worth_it(&self, is_gathering: bool) -> bool {
        let now = self.desk.now();
        (self.desk.is_crowded(now) || is_gathering) && self.desk.is_ready(now)
    }

    /// Has the thread call `run`, which runs `callbacks` callbacks, once the caller has called
    /// [`announce`](Self::announce). Some time later the shard has to [`take_back`](Self::take_back) what has not
    /// begun. Returns what the shard had left here before, if that has not begun.
    pub(crate) fn leave(&self, shard_number: usize, callbacks: usize, run: Run) -> Option<Run> {
        self.desk.put(shard_number, callbacks, run)
    }

    /// Wakes the thread for what the caller has left here, if there is anything left to do.
    pub(crate) fn announce(&self) {
        // What the caller has left counts until it is done, or taken back.
        if self.desk.load.load(Relaxed) > 0 {
            self.thread.unpark();
        }
    }

    /// Returns what this shard has left here, if it has not begun.
    pub(crate) fn take_back(&self, shard_number: usize) -> Option<Run> {
        self.desk.take_back(shard_number)
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        // Release: publishes all that was left here to the Acquire in `serve`.
        self.desk.has_ended.store(true, Release);
        self.thread.unpark();
    }
}

impl Desk {
    fn new(shard_count: usize) -> Self {
        Self {
            start: Instant::now(),
            slots: (0..shard_count).map(|_| Slot::new()).collect(),
            load: AtomicU64::new(0),
            begun: AtomicU64::new(0),
            pace: AtomicU64::new(0),
            last_given: AtomicU64::new(0),
            crowd: AtomicU64::new(0),
            has_ended: AtomicBool::new(false),
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

    fn put(&self, shard_number: usize, callbacks: usize, run: Run) -> Option<Run> {
        let share = self.pace.load(Relaxed).saturating_mul(callbacks as u64).max(1);
        if self.load.fetch_add(share, Relaxed) == 0 {
            self.begun.store(self.now(), Relaxed);
        }
        self.returned(self.slots[shard_number].put(Box::new(Errand { run, share })))
    }

    fn take_back(&self, shard_number: usize) -> Option<Run> {
        self.returned(self.slots[shard_number].take())
    }

    fn returned(&self, errand: Option<Box<Errand>>) -> Option<Run> {
        let errand = errand?;
        self.load.fetch_sub(errand.share, Relaxed);
        Some(errand.run)
    }

    /// The thread's life.
    fn serve(&self) {
        let mut place = 0;
        loop {
            // Acquire: observes all that was left here before the drop of `Lane`.
            let has_ended = self.has_ended.load(Acquire);
            match self.next(&mut place) {
                Some(errand) => self.run(*errand),
                None if has_ended => return,
                // A callback that parks as well may have used up our wake-up, so we have looked first.
                None => thread::park(),
            }
        }
    }

    /// The next errand; the shards take turns.
    fn next(&self, place: &mut usize) -> Option<Box<Errand>> {
        (0..self.slots.len()).find_map(|_| {
            *place = (*place + 1) % self.slots.len();
            self.slots[*place].take()
        })
    }

    fn run(&self, Errand { run, share }: Errand) {
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
    use std::sync::atomic::AtomicUsize;
    use std::sync::mpsc::{Receiver, Sender, channel};

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

    fn lane(shard_count: usize) -> Lane {
        Lane::start(shard_count, "lane".to_owned()).expect("one more thread")
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
        let (desk, most) = (Desk::new(1), saturating_nanos(LOAD_MAX));
        let is_ready = |load, busy_for| {
            desk.load.store(load, Relaxed);
            desk.is_ready(busy_for)
        };
        assert!(is_ready(0, 0) && is_ready(0, most) && is_ready(most - 1, most - 1));
        assert!(!is_ready(1, most) && !is_ready(most, 0));
    }

    #[test]
    fn the_pace_follows_what_callbacks_take() {
        let desk = Desk::new(1);
        let after = |spent, callbacks, times| {
            (0..times).for_each(|_| desk.learn(spent, callbacks));
            desk.pace.load(Relaxed)
        };
        assert_eq!(after(1000, 0, 9), 0, "others have run them");
        assert!((90..=100).contains(&after(1000, 10, 20)));
        assert_eq!(
            after(u64::MAX, 1, 1) / saturating_nanos(PACE_MAX / 8),
            2,
            "a quarter of the most that one counts for"
        );
        assert!(after(1000, 10, 40) < 110);
        desk.pace.store(7, Relaxed);
        assert!(desk.put(0, 100, quick().0).is_none() && desk.load.load(Relaxed) == 700);
    }

    #[test]
    fn the_first_few_of_a_crowd_keep_what_they_have() {
        let desk = Desk::new(1);
        let gap = saturating_nanos(COMPANY) - 1;
        let crowded: Vec<_> = (1..=6).map(|place| desk.is_crowded(place * gap)).collect();
        assert_eq!(crowded, [false, false, false, true, true, true]);
        let alone: Vec<_> = (1..=6).map(|place| desk.is_crowded((place + 9) * (gap + 1))).collect();
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
        let lane = lane(3);
        let (first, go_on, first_begins) = slow();
        assert!(leave(&lane, 0, first).is_none());
        told(&first_begins);
        let ((second, second_begins), (third, third_begins)) = (quick(), quick());
        assert!(leave(&lane, 1, second).is_none() && leave(&lane, 2, third).is_none());
        lane.take_back(1).expect("it has not begun")();
        told(&second_begins);
        assert!(lane.take_back(1).is_none() && lane.take_back(0).is_none(), "they have");
        let (fourth, fourth_begins) = quick();
        leave(&lane, 2, fourth).expect("the third has not begun")();
        told(&third_begins);
        go_on.send(()).expect("it waits");
        told(&fourth_begins);
        eventually(|| lane.desk.load.load(Relaxed) == 0);
    }

    /// Whether the thread takes it, or the shard takes it back, or the next one replaces it.
    #[test]
    fn each_errand_is_run_once() {
        const SHARDS: usize = 3;
        const EACH: usize = if cfg!(miri) { 20 } else { 3000 };
        let lane = lane(SHARDS);
        let runs: Vec<_> = (0..SHARDS * EACH).map(|_| Arc::new(AtomicUsize::new(0))).collect();
        let by_lane = AtomicUsize::new(SHARDS * EACH);
        thread::scope(|scope| {
            for shard in 0..SHARDS {
                let (lane, by_lane, own) = (&lane, &by_lane, runs.iter().skip(shard).step_by(SHARDS));
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
        eventually(|| runs.iter().all(|runs| runs.load(Relaxed) > 0) && lane.desk.load.load(Relaxed) == 0);
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
        let lane = lane(1);
        assert!(leave(&lane, 0, Box::new(|| std::panic::resume_unwind(Box::new(Bomb)))).is_none());
        eventually(|| lane.desk.load.load(Relaxed) == 0);
        let (run, begins) = quick();
        assert!(leave(&lane, 0, run).is_none());
        told(&begins);
    }

    /// The lane is dropped while a callback parks as well, and while something is left.
    #[test]
    fn it_ends_after_what_it_has_though_an_errand_takes_its_wake_up() {
        let lane = lane(2);
        let desk = Arc::clone(&lane.desk);
        let (is_dropped, seen) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let (dropped, sees) = (Arc::clone(&is_dropped), Arc::clone(&seen));
        let parks = move || {
            while !dropped.load(Acquire) {
                sees.store(true, Release);
                thread::park();
            }
            1
        };
        assert!(leave(&lane, 0, Box::new(parks)).is_none());
        eventually(|| seen.load(Acquire));
        let (run, begins) = quick();
        assert!(leave(&lane, 1, run).is_none());
        let thread = lane.thread.clone();
        drop(lane);
        is_dropped.store(true, Release);
        thread.unpark();
        told(&begins);
        eventually(|| Arc::strong_count(&desk) == 1);
    }
}
