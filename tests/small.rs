//! Races of real threads that are small enough for Miri and ThreadSanitizer: see `.ci/miri` and `.ci/tsan`.
//! Natively they are repeated many times.

use shardwheel::{Close, Executor, ManualClock, Pinning, Scheduler};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

const ROUNDS: usize = if cfg!(miri) { 1 } else { 200 };
const MS: Duration = Duration::from_millis(1);

/// Counts what exists of it, so that a value lost or dropped twice shows.
struct Counted(Arc<AtomicUsize>);

impl Counted {
    fn new(alive: &Arc<AtomicUsize>) -> Self {
        alive.fetch_add(1, Relaxed);
        Self(Arc::clone(alive))
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        assert_ne!(self.0.fetch_sub(1, Relaxed), 0, "dropped twice");
    }
}

/// A key on the heap: a look-up that comes too late would read freed memory.
fn key(n: u64) -> String {
    format!("key {n}")
}

fn assert_conserved(stats: &shardwheel::Stats) {
    let ended = stats.fired + stats.cancelled + stats.replaced + stats.drained + stats.discarded + stats.returned;
    assert_eq!(stats.scheduled, ended + stats.pending, "{stats:?}");
}

/// Every operation on two keys, as one caller.
fn act(scheduler: &Scheduler<String, Counted>, alive: &Arc<AtomicUsize>, salt: u64) {
    for n in 0..3 {
        let name = key((salt + n) % 2);
        let scheduled = scheduler.schedule_with_handle(name.clone(), Counted::new(alive), MS * (1 + n as u32));
        scheduler.reschedule(&name, MS * 2);
        if let Ok((_, timer)) = scheduled {
            timer.reschedule(MS);
            timer.cancel();
        }
        scheduler.contains(&name);
        let _ = scheduler.schedule_with(name.clone(), Counted::new(alive), MS);
        scheduler.cancel(&key((salt + n + 1) % 2));
    }
}

fn race(scheduler: &Scheduler<String, Counted>, alive: &Arc<AtomicUsize>, beside: impl FnOnce() + Send) {
    thread::scope(|scope| {
        for salt in 0..2 {
            scope.spawn(move || act(scheduler, alive, salt));
        }
        scope.spawn(beside);
    });
}

#[test]
fn callers_race_with_the_tick() {
    for _ in 0..ROUNDS {
        let alive = Arc::new(AtomicUsize::new(0));
        let (scheduler, clock) =
            Scheduler::builder().shards(1).build_manual(|_: &String, _: Counted| {}).expect("valid settings");
        let tick = |clock: ManualClock| {
            move || {
                for _ in 0..4 {
                    clock.advance(MS);
                }
            }
        };
        race(&scheduler, &alive, tick(clock.clone()));
        clock.advance(MS * 10);
        assert!(scheduler.is_empty());
        assert_conserved(&scheduler.stats());
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
        race(&scheduler, &alive, || {
            scheduler.drain(|_, _| {});
        });
        // Joins the workers: while they run, the counts are not of one moment.
        scheduler.close(Close::Discard);
        assert_conserved(&scheduler.stats());
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
            race(&scheduler, &alive, || drop(scheduler.close(close)));
            let stats = scheduler.stats();
            assert_eq!(stats.pending, 0);
            assert_conserved(&stats);
            drop(scheduler);
            assert_eq!(alive.load(Relaxed), 0);
        }
    }
}
