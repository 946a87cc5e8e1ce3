//! Races of real threads that are small enough for Miri and ThreadSanitizer: see `.ci/miri` and `.ci/tsan`.
//! Natively they are repeated many times.

#[path = "support/counted.rs"]
mod counted;

use counted::{Counted, ROUNDS, key};
use shardwheel::{Close, Executor, ManualClock, MissedTicks, Next, Pinning, Scheduler};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

const MS: Duration = Duration::from_millis(1);

type Sut = Scheduler<String, Counted>;

/// Call it when nothing is pending any more.
fn assert_all_ended(stats: &shardwheel::Stats) {
    // Not `pending`, which is computed as the difference.
    let ended = stats.fired + stats.cancelled + stats.replaced + stats.drained + stats.discarded + stats.returned;
    assert_eq!(stats.scheduled + stats.rearmed, ended, "{stats:?}");
    assert_eq!(stats.callback_panics, 0);
}

/// Every operation on two keys, as one caller.
fn act(scheduler: &Sut, alive: &Arc<AtomicUsize>, salt: u64) {
    for n in 0..3 {
        let name = key((salt + n) % 2);
        let scheduled = scheduler.schedule_with_handle(name.clone(), Counted::new(alive), MS * (1 + n as u32));
        scheduler.reschedule(&name, MS * 2);
        if let Ok((_, timer)) = scheduled {
            timer.reschedule(MS);
            timer.cancel();
        }
        scheduler.contains(&name);
        let timer = scheduler.schedule_unindexed(name.clone(), Counted::new(alive), MS * (1 + n as u32));
        drop(timer.map(|timer| n > 0 && timer.reschedule(MS) && n > 1 && timer.cancel().is_some()));
        let _ = scheduler.schedule_if_absent(name.clone(), Counted::new(alive), MS);
        let _ = scheduler.schedule_with(name.clone(), Counted::new(alive), MS);
        scheduler.cancel(&key((salt + n + 1) % 2));
    }
}

/// As `act`, with timers that come back: so runs and their ends are met.
fn act_on_repeating(scheduler: &Sut, alive: &Arc<AtomicUsize>, salt: u64) {
    let missed = [MissedTicks::Burst, MissedTicks::Skip][salt as usize % 2];
    for n in 0..3 {
        let name = key((salt + n) % 2);
        let _ = scheduler.schedule_every(name.clone(), Counted::new(alive), MS, missed);
        scheduler.expire_now(&name);
        let _ = scheduler.schedule_if_absent(name.clone(), Counted::new(alive), MS);
        scheduler.reschedule(&name, MS);
        scheduler.cancel(&key((salt + n + 1) % 2));
    }
}

fn race(act: impl Fn(u64) + Sync, beside: impl FnOnce() + Send) {
    thread::scope(|scope| {
        for salt in 0..2 {
            let act = &act;
            scope.spawn(move || act(salt));
        }
        scope.spawn(beside);
    });
}

fn ticks(clock: &ManualClock) {
    for _ in 0..4 {
        clock.advance(MS);
    }
}

#[test]
fn callers_race_with_the_tick() {
    for _ in 0..ROUNDS {
        let alive = Arc::new(AtomicUsize::new(0));
        let (scheduler, clock) =
            Scheduler::builder().shards(1).build_manual(|_: &String, _: Counted| {}).expect("valid settings");
        race(|salt| act(&scheduler, &alive, salt), || ticks(&clock));
        clock.advance(MS * 10);
        assert!(scheduler.is_empty());
        assert_all_ended(&scheduler.stats());
        drop(scheduler);
        assert_eq!(alive.load(Relaxed), 0);
    }
}

#[test]
fn callers_race_with_the_workers() {
    for _ in 0..ROUNDS {
        let alive = Arc::new(AtomicUsize::new(0));
        let scheduler = Scheduler::builder()
            .shards(2)
            .pinning(Pinning::Off)
            .executor(Executor::Inline)
            .build(|_: &String, _: Counted| {})
            .expect("valid settings");
        race(
            |salt| act(&scheduler, &alive, salt),
            || {
                scheduler.drain(|_, _| {});
            },
        );
        // Joins the workers: while they run, the counts are not all of the same moment.
        scheduler.close(Close::Discard);
        assert_all_ended(&scheduler.stats());
        drop(scheduler);
        assert_eq!(alive.load(Relaxed), 0);
    }
}

#[test]
fn callers_race_with_close() {
    for close in [Close::Discard, Close::FireNow, Close::Return] {
        for _ in 0..ROUNDS {
            let alive = Arc::new(AtomicUsize::new(0));
            let (scheduler, _clock) =
                Scheduler::builder().shards(1).build_manual(|_: &String, _: Counted| {}).expect("valid settings");
            race(|salt| act(&scheduler, &alive, salt), || drop(scheduler.close(close)));
            assert_all_ended(&scheduler.stats());
            drop(scheduler);
            assert_eq!(alive.load(Relaxed), 0);
        }
    }
}

/// Timers' handles are left when the last scheduler is dropped, while workers may be running the timers, once or
/// repeatedly.
fn timers_handles_race_with_the_last_schedulers<V: Send + 'static>(value: impl Fn() -> V) {
    for round in 0..2 * ROUNDS {
        let next = if round % 2 == 0 { Next::Done } else { Next::After(MS) };
        let builder = Scheduler::builder().shards(2).pinning(Pinning::Off).executor(Executor::Inline);
        let scheduler = builder.build_rearming(move |_: &u64, _: &mut V| next).expect("valid settings");
        let start = |key| scheduler.schedule_with_handle(key, value(), MS).expect("open").1;
        let timers = [0, 1, 2, 3].map(start);
        thread::sleep(MS * (round as u32 % 3));
        thread::scope(|scope| {
            scope.spawn(|| timers[..3].iter().for_each(|timer| drop(timer.cancel())));
            scope.spawn(|| timers[1].expire_now());
            scope.spawn(|| drop(scheduler));
        });
        assert!(timers.iter().all(|timer| !timer.is_pending()));
    }
}

#[test]
fn timers_handles_race_with_the_end_of_values() {
    let alive = Arc::new(AtomicUsize::new(0));
    timers_handles_race_with_the_last_schedulers(|| Counted::new(&alive));
    assert_eq!(alive.load(Relaxed), 0);
}

/// Miri and ThreadSanitizer see what could go wrong here.
#[test]
fn timers_handles_race_with_the_end_of_nothing() {
    timers_handles_race_with_the_last_schedulers(|| 7);
}

/// A timer that was cancelled while it ran does not come back, and its value is dropped once.
fn callers_race_with_runs(build: impl Fn() -> (Sut, ManualClock)) {
    for _ in 0..ROUNDS {
        let alive = Arc::new(AtomicUsize::new(0));
        let (scheduler, clock) = build();
        race(|salt| act_on_repeating(&scheduler, &alive, salt), || ticks(&clock));
        // Nothing runs any more: every timer that is left is pending.
        (0..2).for_each(|n| drop(scheduler.cancel(&key(n))));
        assert_eq!((clock.advance(MS * 10), alive.load(Relaxed)), (0, 0));
        assert_all_ended(&scheduler.stats());
        drop(scheduler);
    }
}

#[test]
fn callers_race_with_periodic_runs() {
    callers_race_with_runs(|| Scheduler::builder().shards(1).build_manual(|_: &String, _: Counted| {}).expect("valid"));
}

#[test]
fn callers_race_with_runs_that_rearm() {
    let rearm = |_: &String, _: &mut Counted| Next::After(MS);
    callers_race_with_runs(|| Scheduler::builder().shards(1).build_rearming_manual(rearm).expect("valid"));
}

/// A thread that was told that it came too late waits, and then finds what the callback has done, though nothing else
/// orders the two.
#[test]
fn a_cancel_that_comes_too_late_waits_for_the_callback() {
    for round in 0..ROUNDS {
        let alive = Arc::new(AtomicUsize::new(0));
        let runs = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&runs);
        let builder = Scheduler::builder().shards(1).pinning(Pinning::Off).executor(Executor::Inline);
        let scheduler = builder
            .build(move |_: &String, _: Counted| {
                counted.store(counted.load(Relaxed) + 1, Relaxed);
            })
            .expect("valid settings");
        scheduler.schedule_with(key(0), Counted::new(&alive), MS).expect("open");
        thread::scope(|scope| {
            scope.spawn(|| scheduler.expire_now(&key(0)));
            scope.spawn(|| assert!(scheduler.wait_for_callbacks(MS * 10_000)));
            (0..round % 4).for_each(|_| thread::yield_now());
            if scheduler.cancel(&key(0)).is_none() {
                assert!(scheduler.wait_for_callbacks(Duration::MAX));
                assert_eq!((runs.load(Relaxed), alive.load(Relaxed)), (1, 0));
            }
        });
        scheduler.close(Close::Discard);
        assert_all_ended(&scheduler.stats());
    }
}

/// A second thread ends a periodic timer while the worker runs it.
#[test]
fn a_cancel_races_with_the_workers_runs() {
    for _ in 0..ROUNDS / 10 + 1 {
        let alive = Arc::new(AtomicUsize::new(0));
        let runs = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&runs);
        let builder = Scheduler::builder().shards(1).pinning(Pinning::Off).executor(Executor::Inline);
        let scheduler = builder
            .build(move |_: &String, _: Counted| {
                counted.fetch_add(1, Relaxed);
            })
            .expect("valid settings");
        scheduler.schedule_every(key(0), Counted::new(&alive), MS, MissedTicks::Skip).expect("open");
        while runs.load(Relaxed) == 0 {
            thread::yield_now();
        }
        drop(scheduler.cancel(&key(0)));
        // Joins the worker: the run that was under way has ended, and the timer has not come back.
        let closed = scheduler.close(Close::Discard);
        assert_eq!((closed.discarded, alive.load(Relaxed)), (0, 0));
        assert_all_ended(&scheduler.stats());
    }
}
