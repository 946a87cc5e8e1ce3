//! Timers that come back: at a fixed rate, or as their callback wants.

mod support;

use shardwheel::{
    Close, Closed, Executor, IfAbsent, ManualClock, MissedTicks, Next, Pinning, ScheduleError, Scheduler, Timer,
    WeakScheduler,
};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread;
use std::time::{Duration, Instant};
use support::{Gate, HOUR, Ledger, MS, Opener, PATIENCE, Token, eventually, hush_callbacks, keeper};

/// When each callback ran, in milliseconds since the start, and with what.
type Runs = Arc<Mutex<Vec<(u64, u32)>>>;

struct Plain {
    scheduler: Scheduler<u32, u32>,
    clock: ManualClock,
    runs: Runs,
}

/// Callbacks note the time, then do `work` with the number of the run.
fn plain(tick: Duration, work: impl Fn(usize) + Send + Sync + 'static) -> Plain {
    let runs = Runs::default();
    let (noted, own_clock) = (Arc::clone(&runs), Arc::new(OnceLock::<(ManualClock, Instant)>::new()));
    let clock_of_callback = Arc::clone(&own_clock);
    let builder = Scheduler::builder().tick(tick);
    let (scheduler, clock) = builder
        .build_manual(move |_: &u32, value: u32| {
            let (clock, start) = clock_of_callback.get().expect("set below");
            let number = {
                let mut noted = noted.lock().unwrap();
                noted.push(((clock.now() - *start).as_millis() as u64, value));
                noted.len()
            };
            work(number);
        })
        .unwrap();
    assert!(own_clock.set((clock.clone(), clock.now())).is_ok());
    Plain { scheduler, clock, runs }
}

impl Plain {
    fn times(&self) -> Vec<u64> {
        self.runs.lock().unwrap().iter().map(|(at, _)| *at).collect()
    }

    fn every(&self, key: u32, period: Duration, missed: MissedTicks) {
        assert_eq!(self.scheduler.schedule_every(key, 0, period, missed).unwrap(), None);
    }

    /// How many timers are pending, counted in two ways: as what began and has not ended, and one by one.
    fn pending(&self) -> usize {
        let found = (0..10).filter(|key| self.scheduler.contains(key)).count();
        assert_eq!(self.scheduler.len(), found);
        found
    }
}

#[test]
fn a_fixed_rate_does_not_drift() {
    // A period that is no multiple of the tick.
    let timers = plain(MS, |_| ());
    timers.every(1, Duration::from_micros(1500), MissedTicks::Skip);
    timers.clock.advance(MS * 15_000);
    let expected: Vec<u64> = (1..=10_000u64).map(|n| (n * 3).div_ceil(2)).collect();
    assert_eq!(timers.times(), expected);
    assert_eq!(timers.pending(), 1);
}

#[test]
fn a_period_shorter_than_a_tick_runs_once_a_tick() {
    for missed in [MissedTicks::Skip, MissedTicks::Burst, MissedTicks::Delay] {
        let timers = plain(MS * 10, |_| ());
        timers.every(1, MS, missed);
        assert_eq!(timers.clock.advance(MS * 100), 10, "{missed:?}");
        assert_eq!(timers.times(), (1..=10).map(|n| n * 10).collect::<Vec<_>>());
        assert!(timers.scheduler.reschedule(&1, MS * 50));
        timers.clock.advance(MS * 60);
        assert_eq!(timers.times()[10..], [150, 160], "{missed:?}: nothing is owed from before");
        assert_eq!(timers.pending(), 1);
    }
}

#[test]
fn missed_deadlines_are_skipped_made_up_for_or_delayed() {
    // A real clock, because time must pass while a callback runs.
    let runs = |missed| {
        let (sender, receiver): (Sender<Instant>, Receiver<Instant>) = channel();
        let first = AtomicBool::new(true);
        let scheduler = Scheduler::builder()
            .executor(Executor::Inline)
            .build(move |_: &u32, _: ()| {
                let _ = sender.send(Instant::now());
                if first.swap(false, SeqCst) {
                    std::thread::sleep(MS * 175);
                }
            })
            .unwrap();
        let start = Instant::now();
        scheduler.schedule_every(1, (), MS * 50, missed).unwrap();
        // Deadlines at 50, 100, 150, .. ms; the run at 50 lasts until 225.
        let at: Vec<Duration> = receiver.iter().take(5).map(|at| at - start).collect();
        scheduler.close(Close::Discard);
        at
    };
    // This machine may be late at times, but not every time.
    let phase_stays = || {
        let skip = runs(MissedTicks::Skip);
        assert!(skip[1] >= MS * 250 && skip[2] >= MS * 300, "{skip:?}");
        skip[1] < MS * 275
    };
    assert!((0..10).any(|_| phase_stays()));
    let burst = runs(MissedTicks::Burst);
    // 100, 150 and 200 are overdue at 225; the fifth run is the one of 250.
    assert!(burst[4] >= MS * 250 && burst[3] < burst[4], "{burst:?}");
    assert!(burst[3] - burst[1] < MS * 49, "made up for at once: {burst:?}");
    let delay = runs(MissedTicks::Delay);
    assert!(delay[1] >= MS * 275 && delay[2] >= MS * 325, "a whole period after the end of the late run: {delay:?}");
}

#[test]
fn between_runs_it_is_a_timer_as_any_other() {
    let timers = plain(MS, |_| ());
    timers.every(1, MS * 100, MissedTicks::Skip);
    timers.clock.advance(MS * 250);
    assert_eq!(timers.scheduler.remaining(&1), Some(MS * 50));
    assert!(timers.scheduler.reschedule(&1, MS * 10), "moves the next run");
    timers.clock.advance(MS * 250);
    assert_eq!(timers.times(), [100, 200, 260, 360, 460], "the rate goes on from there");
    assert_eq!(timers.scheduler.cancel(&1), Some(0));
    assert_eq!(timers.clock.advance(MS * 1000), 0);
    assert_eq!(timers.pending(), 0);
}

#[test]
fn expire_now_is_one_run_more_and_its_rate_goes_on() {
    let timers = plain(MS, |_| ());
    timers.every(1, MS * 100, MissedTicks::Skip);
    timers.clock.advance(MS * 110);
    assert!(timers.scheduler.expire_now(&1) && timers.scheduler.expire_now(&1));
    timers.clock.advance(MS * 300);
    assert_eq!(timers.times(), [100, 110, 110, 200, 300, 400]);
    assert_eq!(timers.pending(), 1);
}

#[test]
fn expire_now_does_not_wake_what_waits_for_ever() {
    let timers = plain(MS, |_| ());
    timers.clock.advance(Duration::from_micros(500));
    timers.every(1, Duration::MAX, MissedTicks::Skip);
    timers.every(2, MS * 10, MissedTicks::Skip);
    assert!(timers.scheduler.reschedule(&2, Duration::MAX), "paused");
    for key in [1, 2] {
        assert!(timers.scheduler.expire_now(&key));
        assert_eq!(timers.scheduler.remaining(&key), Some(Duration::MAX));
    }
    assert_eq!(timers.clock.advance(Duration::from_secs(9)), 0);
    assert!(timers.scheduler.reschedule(&2, MS * 5), "goes on");
    assert_eq!(timers.clock.advance(MS * 30), 3);
}

#[test]
fn a_schedule_of_its_key_replaces_it() {
    let timers = plain(MS, |_| ());
    timers.every(1, MS * 100, MissedTicks::Skip);
    timers.clock.advance(MS * 150);
    assert_eq!(timers.scheduler.schedule_with(1, 5, MS * 200).unwrap(), Some(0));
    timers.clock.advance(MS * 1000);
    assert_eq!(*timers.runs.lock().unwrap(), [(100, 0), (350, 5)]);
    assert_eq!(timers.pending(), 0);
}

#[test]
fn a_panic_does_not_end_it() {
    let timers = plain(MS, |number| assert!(number != 2, "on purpose"));
    timers.every(1, MS * 100, MissedTicks::Skip);
    timers.clock.advance(MS * 400);
    assert_eq!(timers.times(), [100, 200, 300, 400]);
    assert_eq!(timers.scheduler.stats().callback_panics, 1);
}

#[test]
fn a_period_of_zero_is_refused() {
    let timers = plain(MS, |_| ());
    let refused = timers.scheduler.schedule_every(7, 9, Duration::ZERO, MissedTicks::Skip).unwrap_err();
    assert!(matches!(refused, ScheduleError::ZeroPeriod(7, 9)));
    assert_eq!(refused.to_string(), "period is 0ns; accepted: 1ns or more");
    timers.every(7, Duration::MAX, MissedTicks::Burst);
    assert_eq!(timers.clock.advance(Duration::from_secs(1 << 33)), 0, "never");
    assert_eq!(timers.scheduler.cancel(&7), Some(0));
}

#[test]
fn it_keeps_its_place_within_the_capacity() {
    let builder = Scheduler::builder().capacity(1);
    let full = Arc::new(AtomicUsize::new(0));
    let own = Arc::new(OnceLock::<WeakScheduler<u32, ()>>::new());
    let (counted, scheduler_of_callback) = (Arc::clone(&full), Arc::clone(&own));
    let (scheduler, clock) = builder
        .build_manual(move |_: &u32, ()| {
            let scheduler = scheduler_of_callback.get().unwrap().upgrade().unwrap();
            counted.fetch_add(usize::from(scheduler.schedule(2, MS).is_err_and(|error| error.is_full())), SeqCst);
        })
        .unwrap();
    own.set(scheduler.downgrade()).unwrap();
    scheduler.schedule_every(1, (), MS, MissedTicks::Skip).unwrap();
    assert_eq!(clock.advance(MS * 10), 10);
    assert_eq!(full.load(SeqCst), 10, "full while its callback runs, too");
    assert_eq!(scheduler.cancel(&1), Some(()));
    assert!(scheduler.schedule(2, MS).is_ok());
    assert_eq!(scheduler.stats().callback_panics, 0);
}

#[test]
fn a_new_timer_takes_the_room_of_the_one_that_fires() {
    let own = Arc::new(OnceLock::<WeakScheduler<u32, ()>>::new());
    let scheduler_of_callback = Arc::clone(&own);
    let (scheduler, clock) = Scheduler::builder()
        .capacity(1)
        .build_rearming_manual(move |_: &u32, ()| {
            let scheduler = scheduler_of_callback.get().unwrap().upgrade().unwrap();
            assert_eq!(scheduler.schedule(1, MS * 5).unwrap(), None);
            assert!(scheduler.schedule(2, MS).is_err_and(|error| error.is_full()));
            Next::After(MS)
        })
        .unwrap();
    own.set(scheduler.downgrade()).unwrap();
    scheduler.schedule(1, MS).unwrap();
    assert_eq!(clock.advance(MS * 20), 4);
    assert_eq!((scheduler.stats().callback_panics, scheduler.len()), (0, 1));
    assert!(scheduler.schedule(2, MS).is_err_and(|error| error.is_full()));
    assert_eq!(scheduler.cancel(&1), Some(()));
    assert!(scheduler.schedule(2, MS).is_ok());
}

/// What a scheduler's callback does to its own timer, and what it returns, as the test chooses.
type Act = dyn Fn(&Scheduler<u32, u32>, &mut u32) -> Next + Send + Sync;

fn rearming(
    act: impl Fn(&Scheduler<u32, u32>, &mut u32) -> Next + Send + Sync + 'static,
) -> (Scheduler<u32, u32>, ManualClock) {
    let own = Arc::new(OnceLock::<WeakScheduler<u32, u32>>::new());
    let scheduler_of_callback = Arc::clone(&own);
    let act: Arc<Act> = Arc::new(act);
    let (scheduler, clock) = Scheduler::builder()
        .build_rearming_manual(move |_: &u32, value: &mut u32| {
            act(&scheduler_of_callback.get().unwrap().upgrade().unwrap(), value)
        })
        .unwrap();
    own.set(scheduler.downgrade()).unwrap();
    (scheduler, clock)
}

#[test]
fn the_callback_decides_whether_its_timer_comes_back() {
    let (scheduler, clock) = rearming(|_, value| {
        *value -= 1;
        if *value > 0 { Next::After(MS * 10) } else { Next::Done }
    });
    scheduler.schedule_with(1, 3, MS * 5).unwrap();
    assert_eq!(clock.advance(MS * 24), 2);
    assert_eq!(scheduler.remaining(&1), Some(MS));
    assert_eq!(clock.advance(MS * 100), 1);
    let stats = scheduler.stats();
    assert_eq!((stats.scheduled, stats.rearmed, stats.fired, stats.pending), (1, 2, 3, 0));
}

#[test]
fn the_callback_may_name_the_moment() {
    let (sender, moments) = channel::<Instant>();
    let moments = Mutex::new(moments);
    let (scheduler, clock) = rearming(move |_, runs| {
        *runs += 1;
        moments.lock().unwrap().try_recv().map_or(Next::Done, Next::At)
    });
    let start = clock.now();
    scheduler.schedule_with(1, 0, MS).unwrap();
    // Up to a tick, and a moment that is past or present counts as the next tick.
    for (moment, fires) in [(MS * 5 + MS / 2, 6), (MS * 6, 7), (Duration::ZERO, 8), (MS * 9, 9)] {
        sender.send(start + moment).unwrap();
        assert_eq!(
            clock.advance_to_next().map(|_| scheduler.remaining(&1)),
            Some(Some(start + MS * fires - clock.now()))
        );
    }
    // However far it is.
    sender.send(start + Duration::from_secs(1 << 36)).unwrap();
    assert_eq!(clock.advance(MS * 100), 1);
    assert_eq!((scheduler.contains(&1), scheduler.cancel(&1)), (true, Some(5)));
    assert_eq!(scheduler.stats().callback_panics, 0);
}

#[test]
fn a_handle_stays_with_a_timer_that_comes_back() {
    let (scheduler, clock) = rearming(|_, _| Next::After(MS * 10));
    let (_, timer): (_, Timer<u32, u32>) = scheduler.schedule_with_handle(1, 7, MS * 10).unwrap();
    assert_eq!(clock.advance(MS * 35), 3);
    assert!(timer.is_pending() && timer.reschedule(MS * 50));
    assert_eq!(clock.advance(MS * 49), 0);
    assert_eq!(timer.cancel(), Some(7));
    assert!(timer.cancel().is_none() && scheduler.is_empty());
}

#[test]
fn cancel_during_a_run_keeps_it_from_coming_back() {
    let (scheduler, clock) = rearming(|scheduler, _| {
        assert!(!scheduler.contains(&1) && scheduler.is_empty(), "it is not pending while it runs");
        assert_eq!(scheduler.cancel(&1), None, "its value is in use");
        Next::After(MS)
    });
    scheduler.schedule_with(1, 0, MS).unwrap();
    assert_eq!(clock.advance(MS * 100), 1);
    assert!(scheduler.is_empty());
    let stats = scheduler.stats();
    assert_eq!((stats.cancelled, stats.callback_panics), (0, 0), "it had fired");
}

#[test]
fn reschedule_during_a_run_says_when_it_comes_back() {
    for answer in [Next::Done, Next::After(MS)] {
        let (scheduler, clock) = rearming(move |scheduler, value| {
            *value += 1;
            if *value == 1 {
                assert!(scheduler.reschedule(&1, MS * 50));
            }
            if *value == 1 { answer } else { Next::Done }
        });
        scheduler.schedule_with(1, 0, MS).unwrap();
        assert_eq!(clock.advance(MS * 50), 1);
        assert_eq!(scheduler.remaining(&1), Some(MS));
        assert_eq!(clock.advance(MS * 100), 1);
        assert!(scheduler.is_empty());
        assert_eq!(scheduler.stats().callback_panics, 0);
    }
}

/// A timer that was given a deadline while it ran, which has passed by the end of the run: it is overdue before the
/// clock is moved again. Its second run starts `other`, 1 ms later. Runs are sent, with their times.
fn overdue(key: u32, other: Option<u32>) -> (Scheduler<u32, u32>, ManualClock, Receiver<(u32, Instant)>) {
    let own_clock = Arc::new(OnceLock::<ManualClock>::new());
    let clock_of_callback = Arc::clone(&own_clock);
    let (sender, ran) = channel();
    let (scheduler, clock) = rearming(move |scheduler, value| {
        let clock = clock_of_callback.get().unwrap();
        match *value {
            0 => {
                assert!(scheduler.reschedule(&key, MS));
                assert_eq!(clock.advance(MS * 10_000), 0);
                *value = 1;
            }
            1 => assert!(other.is_none_or(|other| scheduler.schedule_with(other, other, MS).is_ok())),
            _ => {}
        }
        sender.send((*value, clock.now())).unwrap();
        Next::Done
    });
    assert!(own_clock.set(clock.clone()).is_ok());
    scheduler.schedule_with(key, 0, MS).unwrap();
    assert!(scheduler.expire_now(&key));
    assert_eq!(ran.recv_timeout(PATIENCE).unwrap().0, 1);
    (scheduler, clock, ran)
}

#[test]
fn the_next_deadline_may_be_now() {
    let (scheduler, clock, ran) = overdue(1, None);
    scheduler.schedule_with(2, 2, MS * 3_600_000).unwrap();
    let now = clock.now();
    assert_eq!((clock.advance_to_next(), clock.now()), (Some(Duration::ZERO), now));
    assert_eq!(ran.try_iter().collect::<Vec<_>>(), [(1, now)]);
    assert_eq!(clock.advance_to_next(), Some(MS * 3_600_000));
    assert_eq!(clock.advance_to_next(), None);
}

#[test]
fn what_an_overdue_timer_starts_is_visited_in_its_turn_whatever_its_shard() {
    for key in 0..16 {
        let (scheduler, clock, ran) = overdue(key, Some(100));
        scheduler.schedule_with(99, 99, MS * 3_600_000).unwrap();
        let due = clock.now() + MS;
        assert_eq!(clock.advance(MS * 3_600_000), 3);
        let at = ran.try_iter().find(|&(value, _)| value == 100).map(|(_, at)| at);
        assert_eq!(at, Some(due), "{key}");
    }
}

#[test]
fn schedule_during_a_run_starts_a_new_timer_in_its_place() {
    let (scheduler, clock) = rearming(|scheduler, value| {
        if *value == 7 {
            assert_eq!(scheduler.schedule_with(1, 8, MS * 5).unwrap(), None, "the old value is in use");
            return Next::After(MS);
        }
        Next::Done
    });
    scheduler.schedule_with(1, 7, MS).unwrap();
    assert_eq!(clock.advance(MS * 3), 1, "the old one does not come back");
    assert_eq!(scheduler.cancel(&1), Some(8));
    assert!(scheduler.is_empty());
    assert_eq!(scheduler.stats().callback_panics, 0);
}

#[test]
fn a_timer_that_fires_and_may_come_back_is_there_until_it_is_ended() {
    let (scheduler, clock) = rearming(|scheduler, value| {
        if *value == 7 {
            assert_eq!(scheduler.schedule_if_absent(1, 8, MS * 5).unwrap(), IfAbsent::Exists(8));
            assert_eq!(scheduler.cancel(&1), None, "its value is in use");
            assert_eq!(scheduler.schedule_if_absent(1, 9, MS * 5).unwrap(), IfAbsent::Started);
            assert_eq!(scheduler.schedule_if_absent(1, 10, MS * 5).unwrap(), IfAbsent::Exists(10));
        }
        Next::After(MS)
    });
    scheduler.schedule_with(1, 7, MS).unwrap();
    assert_eq!(clock.advance(MS * 3), 1, "the old one does not come back");
    assert_eq!(scheduler.cancel(&1), Some(9));
    assert_eq!(scheduler.stats().callback_panics, 0);
}

#[test]
fn a_callback_that_panics_has_answered_done() {
    let (scheduler, clock) = rearming(|_, _| panic!("on purpose"));
    scheduler.schedule_with(1, 7, MS).unwrap();
    assert_eq!(clock.advance(MS * 100), 1);
    assert!(scheduler.is_empty());
    assert_eq!(scheduler.stats().callback_panics, 1);
}

#[test]
fn closing_during_a_run_ends_it() {
    for close in [Close::Discard, Close::FireNow, Close::Return] {
        let (scheduler, clock) = rearming(move |scheduler, value| {
            if *value == 1 {
                let closed = scheduler.close(close);
                assert_eq!(closed.discarded + closed.fired + closed.returned.len(), 1, "the other one: {closed:?}");
            }
            Next::After(MS)
        });
        scheduler.schedule_with(1, 1, MS).unwrap();
        scheduler.schedule_with(2, 2, MS * 9).unwrap();
        clock.advance(MS * 100);
        let stats = scheduler.stats();
        assert_eq!((stats.pending, stats.rearmed, stats.callback_panics), (0, 0, 0), "{close:?}");
    }
}

/// Timer 1 fires once, with the value 8, and its callback does this, `close` among it. What a later call gives back.
fn given_back_later(act: impl Fn(&Scheduler<u32, u32>) -> Next + Send + Sync + 'static) -> Vec<(u32, u32, Duration)> {
    let (scheduler, clock) = rearming(move |scheduler, value| {
        *value += 1;
        act(scheduler)
    });
    scheduler.schedule_with(1, 7, MS).unwrap();
    assert_eq!((clock.advance(MS), scheduler.is_closed()), (1, true));
    let before = scheduler.stats();
    assert_eq!((before.pending, before.fired, before.rearmed), (0, 1, 0));
    let returned = scheduler.close(Close::Return).returned;
    assert_eq!(scheduler.close(Close::Return), Closed::default(), "once");
    let (after, count) = (scheduler.stats(), returned.len() as u64);
    assert_eq!((after.pending, after.rearmed, after.returned - before.returned), (0, count, count));
    returned
}

#[test]
fn what_would_come_back_after_a_close_is_given_back_by_the_next() {
    hush_callbacks();
    let close = |scheduler: &Scheduler<u32, u32>| {
        assert_eq!(scheduler.close(Close::Return), Closed::default(), "its value is in use");
        assert!(!scheduler.contains(&1) && !scheduler.reschedule(&1, MS) && scheduler.cancel(&1).is_none());
    };
    let after = |delay| {
        given_back_later(move |scheduler| {
            close(scheduler);
            Next::After(delay)
        })
    };
    assert_eq!(after(9 * MS), [(1, 8, 9 * MS)]);
    assert_eq!(after(Duration::MAX), [(1, 8, Duration::MAX)]);
    let moved = |next: fn() -> Next| {
        given_back_later(move |scheduler| {
            assert!(scheduler.reschedule(&1, HOUR));
            close(scheduler);
            next()
        })
    };
    assert_eq!(moved(|| Next::Done), [(1, 8, HOUR)]);
    assert_eq!(moved(|| Next::After(MS)), [(1, 8, HOUR)]);
    assert_eq!(moved(|| panic!("on purpose")), [(1, 8, HOUR)]);
}

#[test]
fn what_would_not_come_back_after_a_close_is_not_given_back() {
    hush_callbacks();
    let done = |next: fn() -> Next| {
        given_back_later(move |scheduler| {
            assert_eq!(scheduler.close(Close::Return), Closed::default());
            next()
        })
    };
    assert_eq!(done(|| Next::Done), []);
    assert_eq!(done(|| panic!("on purpose")), []);
    let cancelled = given_back_later(|scheduler| {
        assert!(scheduler.reschedule(&1, HOUR) && scheduler.cancel(&1).is_none());
        assert_eq!(scheduler.close(Close::Return), Closed::default());
        Next::After(MS)
    });
    assert_eq!(cancelled, []);
    let replaced = given_back_later(|scheduler| {
        assert_eq!(scheduler.schedule_with(1, 9, HOUR), Ok(None));
        assert_eq!(scheduler.close(Close::Return).returned, [(1, 9, HOUR)]);
        Next::After(MS)
    });
    assert_eq!(replaced, []);
    for close in [Close::Discard, Close::FireNow] {
        let discarded = given_back_later(move |scheduler| {
            assert!(scheduler.reschedule(&1, HOUR));
            assert_eq!(scheduler.close(close), Closed::default());
            Next::After(MS)
        });
        assert_eq!(discarded, [], "{close:?}");
    }
}

/// With threads: the callback of a timer at a fixed rate ends after the first call.
#[test]
fn a_periodic_timer_that_runs_at_the_close_is_given_back_when_its_run_is_over() {
    let gate = Arc::new(Gate::default());
    let (_opener, shut) = (Opener(&gate), Arc::clone(&gate));
    let scheduler = Scheduler::builder().build(move |_: &u32, _: String| shut.pass()).unwrap();
    scheduler.schedule_every(1, "job".to_owned(), MS, MissedTicks::Skip).unwrap();
    scheduler.schedule_every(2, "other".to_owned(), HOUR, MissedTicks::Skip).unwrap();
    eventually("it runs", || gate.arrived() == 1);
    assert!(scheduler.reschedule(&1, 2 * HOUR));
    let first = scheduler.close(Close::Return).returned;
    assert!(matches!(&first[..], [(2, other, left)] if other == "other" && *left <= HOUR + MS));
    assert_eq!(scheduler.close(Close::Return), Closed::default(), "its run is not over");
    gate.open();
    assert!(scheduler.wait_for_callbacks(PATIENCE));
    let second = scheduler.close(Close::Return).returned;
    assert!(matches!(&second[..], [(1, job, left)] if job == "job" && *left > HOUR && *left <= 2 * HOUR + MS));
}

#[test]
fn each_later_close_gives_back_those_whose_runs_have_ended_since() {
    let (executor, jobs) = keeper();
    let scheduler: Scheduler<u32> = Scheduler::builder().executor(executor).build(|_, ()| {}).unwrap();
    for key in 0..3 {
        scheduler.schedule_every(key, (), HOUR, MissedTicks::Skip).unwrap();
        assert!(scheduler.expire_now(&key));
    }
    let given_back = || scheduler.close(Close::Return).returned.into_iter().map(|(key, ..)| key).collect::<Vec<_>>();
    assert_eq!(given_back(), []);
    for (key, job) in std::mem::take(&mut *jobs.lock().unwrap()).into_iter().enumerate() {
        job.run();
        assert_eq!((given_back(), given_back()), (vec![key as u32], vec![]));
    }
}

/// All timers keep coming back, and many are firing when the scheduler is closed, some of them just ending: each is
/// given back by the first call or by the one after the callbacks.
#[test]
fn none_of_those_that_come_back_is_lost_by_a_close() {
    const ROUNDS: u64 = 100;
    const COUNT: u32 = 64;
    let mut kept = 0;
    for round in 0..ROUNDS {
        let period = Duration::from_micros(100);
        let builder = Scheduler::builder().tick(period).shards(2).pinning(Pinning::Off);
        let work = move |count: &mut u32| {
            *count += 1;
            thread::sleep(Duration::from_micros(10 * u64::from(*count % 4)));
        };
        let scheduler: Scheduler<u32, u32> = if round % 2 == 0 {
            builder.build_rearming(move |_: &u32, count: &mut u32| {
                work(count);
                Next::After(period)
            })
        } else {
            builder.build(move |_: &u32, mut count: u32| work(&mut count))
        }
        .unwrap();
        for key in 0..COUNT {
            scheduler.schedule_every(key, key, period, MissedTicks::Skip).unwrap();
        }
        thread::sleep(Duration::from_micros(300 + 37 * (round % 20)));
        let mut returned = scheduler.close(Close::Return).returned;
        let at_once = returned.len();
        assert!(scheduler.wait_for_callbacks(PATIENCE));
        returned.extend(scheduler.close(Close::Return).returned);
        kept += returned.len() - at_once;
        returned.sort_unstable();
        assert!(returned.iter().map(|&(key, ..)| key).eq(0..COUNT), "round {round}: {returned:?}");
        let stats = scheduler.stats();
        assert_eq!((stats.pending, stats.returned), (0, u64::from(COUNT)));
        assert_eq!(stats.scheduled + stats.rearmed, stats.fired + stats.returned);
    }
    assert!(kept > 0, "none was firing");
}

#[test]
fn a_drain_takes_periodic_timers_out_for_good() {
    let timers = plain(MS, |_| ());
    timers.every(1, MS * 10, MissedTicks::Skip);
    timers.clock.advance(MS * 15);
    assert_eq!(timers.scheduler.drain(|&key, value| assert_eq!((key, value), (1, 0))), 1);
    assert_eq!(timers.clock.advance(MS * 100), 0);
    assert_eq!(timers.pending(), 0);
}

/// A heartbeat survives an executor that drops a job once.
#[test]
fn a_dropped_job_is_one_run_of_a_fixed_rate() {
    let values = Ledger::default();
    let (sender, jobs) = channel();
    let executor = Executor::custom(move |job| drop(sender.send(job)));
    let (runs, run) = channel();
    let scheduler = Scheduler::builder().executor(executor).capacity(1).build(move |&key: &u32, _: Arc<Token>| {
        runs.send(key).expect("the test waits");
    });
    let scheduler = scheduler.unwrap();
    scheduler.schedule_every(1, Arc::new(values.token(1)), MS * 250, MissedTicks::Skip).unwrap();
    drop(jobs.recv_timeout(PATIENCE).expect("the first run"));
    assert_eq!((scheduler.len(), scheduler.stats().callbacks_lost, scheduler.stats().rearmed), (1, 1, 1));
    jobs.recv_timeout(PATIENCE).expect("the second one").run();
    assert_eq!(run.recv_timeout(PATIENCE), Ok(1));
    let last = jobs.recv_timeout(PATIENCE).expect("a third one");
    assert!(scheduler.cancel(&1).is_none(), "it is firing");
    drop(last);
    assert_eq!((values.alive(), scheduler.len()), (0, 0));
    values.assert_none_twice();
}

#[test]
fn a_dropped_job_ends_its_timers() {
    let values = Ledger::default();
    let (sender, jobs) = channel();
    let executor = Executor::custom(move |job| drop(sender.send(job)));
    let builder = Scheduler::builder().executor(executor).capacity(1);
    let callback = |&key: &u32, _: &mut Token| if key == 1 { Next::After(MS) } else { Next::Done };
    let scheduler = builder.build_rearming(callback).unwrap();
    scheduler.schedule_with(1, values.token(1), MS).unwrap();
    drop(jobs.recv().unwrap());
    assert_eq!(values.alive(), 0);
    assert!(scheduler.is_empty());
    assert_eq!(scheduler.stats().callbacks_lost, 1);
    // Its room is free for others.
    assert!(scheduler.schedule_with(2, values.token(2), MS).unwrap().is_none());
    jobs.recv().unwrap().run();
    assert_eq!((values.alive(), scheduler.len(), scheduler.stats().fired), (0, 0, 2));
    values.assert_none_twice();
}

/// Callers move, cancel and restart timers that keep coming back, on a pool: what was cancelled stays away, and every
/// value is dropped once.
#[test]
fn callers_and_runs_agree_on_who_comes_back() {
    const KEYS: u32 = 8;
    let (values, runs) = (Ledger::default(), Arc::new(AtomicUsize::new(0)));
    let count = Arc::clone(&runs);
    let scheduler = Scheduler::builder()
        .tick(Duration::from_micros(50))
        .build_rearming(move |_: &u32, value: &mut (u32, Token)| {
            count.fetch_add(1, SeqCst);
            value.0 += 1;
            if value.0.is_multiple_of(17) { Next::Done } else { Next::After(Duration::from_micros(100)) }
        })
        .unwrap();
    let end = Instant::now() + MS * 500;
    std::thread::scope(|scope| {
        for caller in 0..4u32 {
            let (scheduler, values) = (scheduler.clone(), values.clone());
            scope.spawn(move || {
                let mut step = caller;
                while Instant::now() < end {
                    step = step.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                    let key = (step >> 16) % KEYS;
                    match (step >> 8) % 4 {
                        0 => drop(scheduler.schedule_with(key, (0, values.token(0)), MS / 10)),
                        1 => drop(scheduler.cancel(&key)),
                        2 => drop(scheduler.reschedule(&key, MS / 5)),
                        _ => drop(scheduler.expire_now(&key)),
                    }
                }
            });
        }
    });
    (0..KEYS).for_each(|key| drop(scheduler.cancel(&key)));
    // Some were running when they were cancelled.
    eventually("what was cancelled stays away", || values.alive() == 0);
    let before = runs.load(SeqCst);
    std::thread::sleep(MS * 20);
    assert_eq!(runs.load(SeqCst), before, "it runs on");
    values.assert_none_twice();
    let stats = scheduler.stats();
    assert_eq!(stats.scheduled + stats.rearmed, stats.fired + stats.cancelled + stats.replaced, "{stats:?}");
}
