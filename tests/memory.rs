//! What shows in a whole process: promise 10, bounded memory, by the process's memory, and promise 8, idle costs
//! nothing, by its threads. So these tests run one after the other, in a process of their own.

mod support;

use shardwheel::Scheduler;
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;
use support::{HOUR, Ledger, eventually, ignore, lock, resident_bytes};

/// The thread that holds the guard is the only one that uses memory and starts threads.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    lock(&ALONE)
}

/// A value whose size would show if it stayed.
type Large = [u64; 32];

fn entries(scheduler: &Scheduler<u64, Large>) -> u64 {
    scheduler.stats().shards.iter().map(|shard| shard.wheel_entries + shard.mailbox_depth).sum()
}

/// A million pairs with these delays leave memory, wheel and mailbox where they were.
fn churn(delay_of: impl Fn(u64) -> Duration) {
    let _alone = alone();
    let scheduler = Scheduler::builder().build(|_: &u64, _: Large| {}).expect("in range");
    let pair = |i: u64| {
        scheduler.schedule_with(i, [i; 32], delay_of(i)).expect("it is open and not full");
        assert_eq!(scheduler.cancel(&i), Some([i; 32]));
    };
    (0..20_000).for_each(pair);
    let before = resident_bytes();
    (20_000..1_020_000).for_each(pair);
    if let (Some(before), Some(after)) = (before, resident_bytes()) {
        let grown = after.saturating_sub(before) >> 20;
        assert!(grown < 64, "{grown} MiB more; it were 250 if the values had stayed");
    }
    eventually("stale entries are swept", || entries(&scheduler) < 20_000);
    assert!(scheduler.is_empty());
}

#[test]
fn promise_10_bounded_memory_under_schedule_and_cancel() {
    churn(|_| 24 * HOUR);
}

/// Each deadline is earlier than the last, so each timer has a message for the worker.
#[test]
fn promise_10_bounded_memory_under_falling_deadlines() {
    churn(|i| 24 * HOUR - Duration::from_millis(i));
}

/// The worker reads the messages, and their memory is given back: a segment of eight KiB per thousand of them.
#[test]
fn promise_10_messages_do_not_pile_up() {
    const TIMERS: u64 = 2_000_000;
    let _alone = alone();
    let scheduler = Scheduler::builder().build(|_: &u64, ()| {}).expect("in range");
    let pair = |i: u64| {
        scheduler.schedule(i, 24 * HOUR - Duration::from_micros(40 * i)).expect("it is open and not full");
        assert_eq!(scheduler.cancel(&i), Some(()));
    };
    (0..100_000).for_each(pair);
    let before = resident_bytes();
    (100_000..TIMERS).for_each(pair);
    if let (Some(before), Some(after)) = (before, resident_bytes()) {
        let grown = after.saturating_sub(before) >> 20;
        assert!(grown < 8, "{grown} MiB more; it were 15 if no segment came back");
    }
}

#[test]
fn promise_10_memory_is_reused_after_a_spike() {
    let _alone = alone();
    let scheduler = Scheduler::builder().build(|_: &u64, _: Large| {}).expect("in range");
    let spike = || {
        (0..100_000).for_each(|i| ignore(scheduler.schedule_with(i, [i; 32], 24 * HOUR).expect("open and not full")));
        (0..100_000).for_each(|i| ignore(scheduler.cancel(&i)));
    };
    spike();
    let before = resident_bytes();
    (0..10).for_each(|_| spike());
    if let (Some(before), Some(after)) = (before, resident_bytes()) {
        assert!(after < before + (80 << 20), "{} MiB more after ten like it", (after - before) >> 20);
    }
    eventually("stale entries are swept", || entries(&scheduler) < 110_000);
}

/// A worker sweeps a piece at a time, and nothing calls it again for the rest.
#[test]
fn promise_10_a_sweep_that_has_begun_is_completed() {
    const TIMERS: u64 = 150_000;
    /// Stale hints that do not matter, and how far off the scheduler's count of timers may be.
    const SLACK: u64 = 4_000;
    let _alone = alone();
    let scheduler = Scheduler::builder().shards(1).build(|_: &u64, _: Large| {}).expect("in range");
    (0..TIMERS).for_each(|i| ignore(scheduler.schedule_with(i, [i; 32], 24 * HOUR).expect("open and not full")));
    // Has the worker drain its mailbox: nothing else need call it for the last of them.
    ignore(scheduler.schedule_with(TIMERS, [0; 32], Duration::ZERO).expect("it is open and not full"));
    eventually("the worker has filed them", || scheduler.stats().shards[0].wheel_entries >= TIMERS);
    // Just enough for most hints to be stale, so that the worker is called only a few times.
    let cancelled = TIMERS / 2 + SLACK / 2;
    (0..cancelled).for_each(|i| ignore(scheduler.cancel(&i)));
    eventually("all stale entries are swept", || entries(&scheduler) < TIMERS - cancelled + SLACK);
    assert_eq!(scheduler.len() as u64, TIMERS - cancelled);
}

/// The keys of cancelled timers are dropped as their places are used again: there are never many more keys than places.
#[test]
fn promise_10_keys_do_not_pile_up() {
    let _alone = alone();
    let keys = Ledger::default();
    let (scheduler, _clock) = Scheduler::builder().build_manual(|_, ()| {}).expect("in range");
    for id in 0..200_000 {
        scheduler.schedule(keys.token(id), 24 * HOUR).expect("it is open and not full");
        assert_eq!(scheduler.cancel(&id), Some(()));
    }
    assert!(keys.alive() < 20_000, "{} keys are left", keys.alive());
}

/// How often threads of this crate have gone to sleep.
#[cfg(target_os = "linux")]
fn sleeps() -> u64 {
    let tasks = std::fs::read_dir("/proc/self/task").expect("it is there on Linux").flatten();
    let statuses = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("status")).ok());
    let ours = statuses.filter(|status| status.starts_with("Name:\tshardwheel"));
    ours.filter_map(|status| support::status_field(&status, "voluntary_ctxt_switches:")).sum()
}

/// The threads for callbacks, of the pool and for growth as well, after all of them have had something to do.
#[cfg(target_os = "linux")]
#[test]
fn promise_08_idle_for_every_thread() {
    let _alone = alone();
    let slow = |_: &u64, value: Large| std::thread::sleep(Duration::from_micros(value[0]));
    let scheduler = Scheduler::builder().shards(6).build(slow).expect("in range");
    let schedule = |key, micros, delay| ignore(scheduler.schedule_with(key, [micros; 32], delay).expect("it is open"));
    (0..50_000).for_each(|key| schedule(key, 0, HOUR));
    (0..100).for_each(|key| schedule(key, 100, Duration::from_millis(20)));
    let naps = |millis| {
        let before = sleeps();
        std::thread::sleep(Duration::from_millis(millis));
        // Threads of an earlier test may end meanwhile.
        sleeps().abs_diff(before)
    };
    eventually("all have run", || scheduler.stats().fired == 100 && scheduler.stats().callbacks_waiting == 0);
    eventually("nobody wakes up while nothing is due", || naps(1_000) == 0);
    assert_eq!(naps(5_000), 0, "nor every few seconds");
}
