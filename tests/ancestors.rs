//! Faults of the timers that people come from, each as a test of what should have happened. A test's name begins with
//! the library that had the fault.

use shardwheel::rotating::TimeCacheMap;
use shardwheel::{Close, Executor, ManualClock, MissedTicks, Next, Scheduler, WeakScheduler};
use std::sync::{Arc, Mutex, OnceLock, mpsc};
use std::time::Duration;

const TICK: Duration = Duration::from_secs(1);

struct Timers {
    scheduler: Scheduler<&'static str>,
    clock: ManualClock,
    /// Keys, and the tick at which each fired.
    fired: Arc<Mutex<Vec<(&'static str, u32)>>>,
    now: u32,
}

impl Timers {
    fn new() -> Self {
        Self::with_tick(TICK)
    }

    fn with_tick(tick: Duration) -> Self {
        let fired = Arc::new(Mutex::new(Vec::new()));
        let sink = Arc::clone(&fired);
        let (scheduler, clock) =
            Scheduler::builder().tick(tick).build_manual(move |&key, ()| sink.lock().unwrap().push((key, 0))).unwrap();
        Self { scheduler, clock, fired, now: 0 }
    }

    fn ticks(&mut self, count: u32) {
        for _ in 0..count {
            self.now += 1;
            let before = self.fired.lock().unwrap().len();
            self.clock.advance(TICK);
            self.fired.lock().unwrap()[before..].iter_mut().for_each(|(_, at)| *at = self.now);
        }
    }

    fn set(&self, key: &'static str, delay: Duration) {
        self.scheduler.schedule(key, delay).unwrap();
    }

    fn fired(&self) -> Vec<(&'static str, u32)> {
        self.fired.lock().unwrap().clone()
    }
}

#[test]
fn go_zero_move_is_never_a_revolution_late() {
    let mut timers = Timers::new();
    timers.ticks(6);
    timers.set("k", 6 * TICK);
    timers.ticks(1);
    assert!(timers.scheduler.reschedule("k", TICK));
    timers.ticks(30);
    assert_eq!(timers.fired(), [("k", 8)], "one tick after the move");
}

#[test]
fn go_zero_move_is_never_a_revolution_early() {
    let mut timers = Timers::new();
    timers.ticks(1);
    timers.set("k", 9 * TICK);
    timers.ticks(5);
    assert!(timers.scheduler.reschedule("k", 16 * TICK));
    timers.ticks(30);
    assert_eq!(timers.fired(), [("k", 22)], "sixteen ticks after the move");
}

#[test]
fn go_zero_a_move_by_less_than_a_tick_fires_once() {
    let mut timers = Timers::new();
    timers.set("k", 4 * TICK);
    assert!(timers.scheduler.reschedule("k", TICK / 2));
    timers.ticks(10);
    assert_eq!(timers.fired(), [("k", 1)]);
}

#[test]
fn go_zero_a_key_is_not_lost_after_a_drain() {
    let mut timers = Timers::new();
    timers.set("k", 4 * TICK);
    assert_eq!(timers.scheduler.drain(|_, ()| ()), 1);
    timers.set("k", 6 * TICK);
    timers.ticks(20);
    assert_eq!(timers.fired(), [("k", 6)]);
}

#[test]
fn go_zero_a_drain_may_set_timers() {
    let mut timers = Timers::new();
    timers.set("k", 4 * TICK);
    let scheduler = timers.scheduler.clone();
    assert_eq!(timers.scheduler.drain(|&key, ()| assert_eq!(scheduler.schedule(key, 2 * TICK).unwrap(), None)), 1);
    timers.ticks(20);
    assert_eq!(timers.fired(), [("k", 2)]);
}

#[test]
fn go_zero_stopping_twice_does_nothing() {
    let timers = Timers::new();
    timers.set("k", TICK);
    assert_eq!(timers.scheduler.close(Close::Discard).discarded, 1);
    assert_eq!(timers.scheduler.close(Close::Discard).discarded, 0);
}

#[test]
fn go_zero_fires_early_by_design_and_we_do_not() {
    let ms = Duration::from_millis(1);
    let timers = Timers::with_tick(100 * ms);
    timers.clock.advance(94 * ms);
    timers.set("k", 190 * ms);
    assert_eq!(timers.clock.advance(189 * ms), 0);
    assert_eq!(timers.clock.advance(17 * ms), 1, "at 300 ms, the first tick at or after 284 ms");
}

#[test]
fn go_zero_a_stalled_loop_catches_up() {
    let timers = Timers::new();
    timers.set("during the stall", 3 * TICK);
    timers.set("after it", 60 * TICK);
    assert_eq!(timers.clock.advance(50 * TICK), 1, "what is overdue fires");
    assert_eq!(timers.clock.advance(9 * TICK), 0);
    assert_eq!(timers.clock.advance(TICK), 1, "and what is not keeps its deadline");
}

/// go-zero's own cache has 300 slots of a second, and entries of 320 seconds that are kept alive. Two thirds of them
/// lived 300 s too long.
#[test]
fn go_zero_cache_entries_that_are_kept_alive_expire_on_time() {
    let keys: Vec<&'static str> = (0..100).map(|i| &*Box::leak(format!("key {i}").into_boxed_str())).collect();
    let mut timers = Timers::new();
    keys.iter().for_each(|key| timers.set(key, 320 * TICK));
    let mut expected = Vec::new();
    for (i, &key) in keys.iter().enumerate() {
        timers.ticks(1 + i as u32 % 5);
        assert!(timers.scheduler.reschedule(key, 320 * TICK));
        expected.push((key, timers.now + 320));
    }
    timers.ticks(1000);
    assert_eq!(timers.fired(), expected);
}

#[test]
fn redis_periodic_events_do_not_drift() {
    let timers = Timers::with_tick(Duration::from_millis(1));
    // A period that is no multiple of the tick: one plus what the callback returns, in a loop that rounds, would drift.
    let period = Duration::from_micros(33_333);
    timers.scheduler.schedule_every("cron", (), period, MissedTicks::Skip).unwrap();
    assert_eq!(timers.clock.advance(Duration::from_secs(100)), 3000);
}

/// In Redis, an event that deletes itself must also remember to return that it is over.
#[test]
fn redis_an_event_that_deletes_itself_is_over_whatever_it_returns() {
    let own = Arc::new(OnceLock::<WeakScheduler<&'static str, u32>>::new());
    let of_callback = Arc::clone(&own);
    let events = Scheduler::builder().build_rearming_manual(move |&key: &&'static str, runs: &mut u32| {
        *runs += 1;
        match of_callback.get().and_then(WeakScheduler::upgrade) {
            Some(events) if *runs == 3 => assert_eq!(events.cancel(key), None),
            _ => {}
        }
        if key == "once" { Next::Done } else { Next::After(TICK) }
    });
    let (events, clock) = events.unwrap();
    own.set(events.downgrade()).unwrap();
    for key in ["once", "again and again"] {
        events.schedule_with(key, 0, TICK).unwrap();
    }
    assert_eq!(clock.advance(10 * TICK), 1 + 3);
    assert!(events.is_empty());
}

#[test]
fn storm_a_callback_that_throws_does_not_end_the_cleaner() {
    let thrown = |_: Vec<(u32, ())>| std::panic::resume_unwind(Box::new("thrown"));
    let (map, clock) = TimeCacheMap::new_manual(2 * TICK, 3, thrown).unwrap();
    for round in 1..=3 {
        map.insert(1, ());
        clock.advance(3 * TICK);
        assert_eq!((map.len(), map.callback_panics()), (0, round));
    }
}

/// In Storm, each delay of the cleaner makes all later entries late.
#[test]
fn storm_a_late_cleaner_makes_nobody_else_late() {
    let own = Arc::new(OnceLock::<ManualClock>::new());
    let of_callback = Arc::clone(&own);
    let left = Arc::new(Mutex::new(Vec::new()));
    let sink = Arc::clone(&left);
    let (map, clock) = TimeCacheMap::new_manual(2 * TICK, 3, move |bucket: Vec<(u32, ())>| {
        sink.lock().unwrap().extend(bucket.into_iter().map(|(key, ())| (key, of_callback.get().unwrap().now())));
    })
    .unwrap();
    let start = clock.now();
    own.set(clock.clone()).unwrap();
    map.insert(1, ());
    clock.advance(17 * TICK + TICK / 2);
    map.insert(2, ());
    clock.advance(10 * TICK);
    let left = left.lock().unwrap().clone();
    assert_eq!(left, [(1, start + 3 * TICK), (2, start + 20 * TICK)]);
}

/// In these maps, the clock is read once a second, and what has expired since is still returned.
#[test]
#[cfg(feature = "cache")]
fn ttl_map_what_has_expired_is_not_to_be_seen_before_the_sweep() {
    let builder = shardwheel::cache::Cache::builder(Duration::from_millis(10)).jitter(0.0).tick(TICK);
    let (map, clock) = builder.build_manual().unwrap();
    map.insert("k", "v");
    clock.advance(Duration::from_millis(10) - Duration::from_nanos(1));
    assert_eq!(map.get("k"), Some("v"));
    clock.advance(Duration::from_nanos(1));
    assert_eq!((map.get("k"), map.len()), (None, 1), "it is still there, and not to be seen");
    clock.advance(TICK);
    assert_eq!(map.len(), 0);
}

#[test]
fn keep_alive_a_layered_wheel_keeps_what_is_left_of_the_hour() {
    let mut timers = Timers::new();
    timers.set("session", Duration::from_secs(7_100));
    timers.ticks(7_099);
    assert_eq!(timers.fired(), []);
    timers.ticks(1);
    assert_eq!(timers.fired(), [("session", 7_100)]);
}

#[test]
fn netty_the_place_is_free_before_the_callback_runs() {
    let own = Arc::new(OnceLock::<WeakScheduler<&'static str>>::new());
    let of_callback = Arc::clone(&own);
    let (scheduler, clock) = Scheduler::builder()
        .capacity(1)
        .build_manual(move |&key, ()| {
            if let Some(scheduler) = of_callback.get().and_then(WeakScheduler::upgrade) {
                scheduler.schedule(key, TICK).expect("there is room for it again");
            }
        })
        .unwrap();
    own.set(scheduler.downgrade()).unwrap();
    scheduler.schedule("k", TICK).unwrap();
    assert_eq!(clock.advance(10 * TICK), 10);
    assert_eq!(scheduler.stats().callback_panics, 0);
}

#[test]
fn netty_the_count_of_pending_timers_does_not_drift() {
    let mut timers = Timers::new();
    for _ in 0..100 {
        timers.set("fired", TICK);
        timers.set("cancelled", TICK);
        timers.set("cancelled", 2 * TICK);
        timers.scheduler.cancel("cancelled");
        timers.scheduler.cancel("cancelled");
        timers.ticks(1);
        timers.scheduler.cancel("fired");
    }
    assert_eq!((timers.scheduler.len(), timers.scheduler.stats().fired), (0, 100));
}

#[test]
fn netty_a_slow_callback_holds_up_no_other() {
    let (sender, fired) = mpsc::channel();
    let (release, held) = mpsc::channel::<()>();
    let held = Mutex::new(held);
    let pool = rayon_pool(2);
    let scheduler = Scheduler::builder()
        .executor(Executor::Rayon(pool))
        .build(move |&key: &&str, ()| {
            if key == "slow" {
                let _ = held.lock().unwrap().recv();
            }
            let _ = sender.send(key);
        })
        .unwrap();
    scheduler.schedule("slow", Duration::ZERO).unwrap();
    std::thread::sleep(Duration::from_millis(20));
    scheduler.schedule("other", Duration::ZERO).unwrap();
    assert_eq!(fired.recv_timeout(Duration::from_secs(20)), Ok("other"));
    drop(release);
    assert_eq!(fired.recv_timeout(Duration::from_secs(20)), Ok("slow"));
}

fn rayon_pool(threads: usize) -> Arc<shardwheel::rayon::ThreadPool> {
    Arc::new(shardwheel::rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap())
}

#[test]
fn delay_queue_no_delay_is_too_long() {
    let timers = Timers::with_tick(Duration::from_millis(1));
    for (key, delay) in [("2^36 ms", Duration::from_millis(1 << 36)), ("2^42 ms", Duration::from_millis(1 << 42))] {
        timers.set(key, delay);
        assert_eq!(timers.clock.advance(delay - Duration::from_millis(1)), 0);
        assert_eq!(timers.clock.advance(Duration::from_millis(1)), 1);
    }
    timers.set("for ever", Duration::MAX);
    assert_eq!(timers.scheduler.cancel("for ever"), Some(()));
}

#[test]
fn tokio_a_process_may_be_up_for_years() {
    for first_tick in [(1 << 31) - 3, (1 << 36) - 3, (1 << 42) - 3, (1 << 63) - 3] {
        let (scheduler, clock) = Scheduler::builder().first_tick(first_tick).build_manual(|_: &u32, ()| {}).unwrap();
        scheduler.schedule(1, Duration::from_millis(20)).unwrap();
        assert_eq!(clock.advance(Duration::from_millis(19)), 0, "{first_tick}");
        assert_eq!(clock.advance(Duration::from_millis(1)), 1, "{first_tick}");
    }
}

#[test]
fn camunda_two_timers_never_share_an_identity() {
    let (scheduler, _clock) = Scheduler::builder().build_manual(|_: &u32, _: u32| {}).unwrap();
    let mut old = Vec::new();
    for value in 0..1000 {
        let (_, timer) = scheduler.schedule_with_handle(1, value, TICK).unwrap();
        assert!(
            old.iter().all(|timer: &shardwheel::Timer<u32, u32>| timer.cancel().is_none()),
            "an old handle matches"
        );
        assert_eq!(timer.cancel(), Some(value));
        old.push(timer);
    }
}
