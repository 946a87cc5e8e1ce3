//! Real threads: what must hold no matter which thread is faster.
//!
//! Lateness is asserted throughout: a stress test that does not look at it cannot see a lost wake-up.

mod support;

use shardwheel::{Builder, Close, Executor, Job, ManualClock, Pinning, Scheduler, WeakScheduler};
use std::cell::{Cell, RefCell};
use std::collections::hash_map::DefaultHasher;
use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasherDefault, Hash};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Barrier, Mutex, OnceLock};
use std::thread;
use std::time::{Duration, Instant};
use support::{
    Ends, Gate, HOUR, Ledger, MS, Opener, PATIENCE, Random, SOON, Token, eventually, ignore, lock, ms, start, within,
};

/// The number of callers in every stress here.
const CALLERS: u64 = 4;
/// Under a load of [`CALLERS`] on a machine with fewer cores, timers wait for the processor too.
const BUSY: Duration = Duration::from_secs(2);

/// What a stressed scheduler's callback notes.
#[derive(Default)]
struct Notes {
    fired: AtomicU64,
    late: AtomicU64,
}

/// A value that knows by when it is due at the latest, moves included.
struct Dated {
    token: Token,
    due: Instant,
}

/// Each value has exactly one owner at its end, and each is dropped once.
#[test]
fn random_operations_lose_nothing_and_are_punctual() {
    let (keys, values, notes) = (Ledger::default(), Ledger::default(), Arc::new(Notes::default()));
    let seen = Arc::clone(&notes);
    let callback = move |_: &Token, value: Dated| {
        seen.fired.fetch_add(1, SeqCst);
        seen.late.fetch_add(u64::from(Instant::now() > value.due + BUSY), SeqCst);
    };
    let scheduler = Scheduler::builder().shards(2).build(callback).expect("in range");
    thread::scope(|scope| {
        for caller in 0..CALLERS {
            let (scheduler, keys, values) = (&scheduler, &keys, &values);
            scope.spawn(move || stress(scheduler, keys, values, caller));
        }
    });
    eventually("the rest fires", || scheduler.is_empty());
    let stats = scheduler.stats();
    eventually("all callbacks have run", || notes.fired.load(SeqCst) == stats.fired);
    assert_eq!(stats.scheduled, stats.fired + stats.cancelled + stats.replaced + stats.drained);
    assert_eq!((stats.scheduled as usize, notes.late.load(SeqCst)), (values.made(), 0));
    drop(scheduler);
    values.assert_all_dropped_once();
    keys.assert_all_dropped_once();
}

fn stress(scheduler: &Scheduler<Token, Dated>, keys: &Ledger, values: &Ledger, caller: u64) {
    let mut random = Random::new(caller);
    for id in 0..20_000 {
        let key = random.below(16);
        let delay = Duration::from_micros(random.below(8_000));
        match random.below(8) {
            0..4 => {
                let value = Dated { token: values.token(caller << 32 | id), due: Instant::now() + ms(8) };
                ignore(scheduler.schedule_with(keys.token(key), value, delay).expect("it is open and not full"));
            }
            4..6 => ignore(scheduler.cancel(&key).map(|value| value.token.id)),
            6 => ignore(scheduler.reschedule(&key, Duration::from_micros(random.below(2_000)))),
            _ if id % 64 == 0 => ignore(scheduler.drain(|key, value| assert!(key.id < 16 && value.token.id < 1 << 40))),
            _ => ignore(scheduler.remaining(&key).is_some_and(|left| left > HOUR)),
        }
    }
}

/// Ids that were cancelled or replaced never fire, and what fires does so once.
#[test]
fn what_was_taken_out_never_fires() {
    const IDS: u64 = 40_000;
    let ends = Arc::new(Ends::new((CALLERS * IDS) as usize));
    let seen = Arc::clone(&ends);
    let builder = Scheduler::builder().shards(1).tick(Duration::from_micros(10)).executor(Executor::Inline);
    let scheduler = builder.build(move |_: &u64, id: u64| seen.note(id)).expect("in range");
    thread::scope(|scope| {
        for caller in 0..CALLERS {
            let (scheduler, ends) = (&scheduler, &ends);
            scope.spawn(move || {
                let mut random = Random::new(caller);
                for id in caller * IDS..(caller + 1) * IDS {
                    let delay = Duration::from_micros(random.below(100));
                    let taken = scheduler.schedule_with(id % 3, id, delay).expect("it is open and not full");
                    taken.into_iter().chain(scheduler.cancel(&random.below(3))).for_each(|id| ends.note(id));
                }
            });
        }
    });
    eventually("the rest fires", || scheduler.is_empty());
    within(PATIENCE, "the worker ends", move || drop(scheduler));
    assert!((0..CALLERS * IDS).all(|id| ends.of(id) == 1), "each ended in one way");
}

/// One key, one caller: after `true` or `Ok` the caller knows what must be under the key, unless the timer is due.
#[test]
fn a_caller_alone_on_its_key_sees_what_it_did() {
    let scheduler = Scheduler::builder().shards(1).hasher(support::OneHash).build(|_: &u64, _: u64| {});
    let scheduler = scheduler.expect("in range");
    thread::scope(|scope| {
        for key in 0..CALLERS {
            let scheduler = &scheduler;
            scope.spawn(move || {
                for id in 0..10_000 {
                    assert_eq!(scheduler.schedule_with(key, id, HOUR).expect("open and not full"), None);
                    assert!(scheduler.contains(&key) && scheduler.reschedule(&key, 2 * HOUR));
                    assert!(scheduler.remaining(&key).is_some_and(|left| left > HOUR));
                    assert_eq!(scheduler.schedule_with(key, id + 1, HOUR).expect("open and not full"), Some(id));
                    assert_eq!(scheduler.cancel(&key), Some(id + 1));
                    assert!(!scheduler.contains(&key) && scheduler.cancel(&key).is_none());
                }
            });
        }
    });
    assert!(scheduler.is_empty());
}

/// When several callers replace one timer at the same time, each value goes to one of them.
#[test]
fn replacing_hands_every_value_to_one_caller() {
    let scheduler = Scheduler::builder().shards(1).build(|_: &u64, _: u64| {}).expect("in range");
    let ends = Ends::new(80_000);
    thread::scope(|scope| {
        for caller in 0..CALLERS {
            let (scheduler, ends) = (&scheduler, &ends);
            scope.spawn(move || {
                for id in caller * 20_000..(caller + 1) * 20_000 {
                    let replaced = scheduler.schedule_with(id % 2, id, HOUR).expect("it is open and not full");
                    replaced.into_iter().for_each(|id| ends.note(id));
                }
            });
        }
    });
    assert_eq!(scheduler.drain(|_, id| ends.note(id)), 2);
    assert!((0..80_000).all(|id| ends.of(id) == 1));
}

/// Another thread than the one that scheduled the timers moves them earlier, over and over; each fires in time.
#[test]
fn timers_moved_earlier_fire_in_time() {
    let (sender, fired) = channel();
    let callback = move |key: &u64, ()| ignore(sender.send((*key, Instant::now())));
    let scheduler = Scheduler::builder().shards(2).build(callback).expect("in range");
    let mut random = Random::new(5);
    for round in 0..150 {
        let keys = round * 8..round * 8 + 8;
        keys.clone().for_each(|key| assert!(scheduler.schedule(key, HOUR + ms(key)).is_ok()));
        // At times the worker sleeps by now, at times it is only about to.
        thread::sleep(Duration::from_micros(random.below(3_000)));
        let (mover, deadline) = (scheduler.clone(), Instant::now() + ms(3));
        let moved = start(move || keys.filter(|key| mover.reschedule_at(key, deadline)).count());
        for _ in 0..8 {
            let (key, at) = fired.recv_timeout(PATIENCE).expect("no wake-up is lost");
            assert!(at >= deadline && at < deadline + SOON, "{key} was {:?} late", at - deadline);
        }
        assert_eq!(moved.recv_timeout(PATIENCE), Ok(8));
    }
}

/// The worker falls asleep between two timers of one caller at every possible moment.
#[test]
fn no_wake_up_is_lost_at_any_moment() {
    let (sender, fired) = channel();
    let callback = move |_: &u64, deadline: Instant| ignore(sender.send(deadline.elapsed()));
    let builder = Scheduler::builder().shards(1).tick(Duration::from_micros(10)).executor(Executor::Inline);
    let scheduler = builder.build(callback).expect("in range");
    let mut random = Random::new(9);
    for key in 0..5_000 {
        let pause = Instant::now() + Duration::from_nanos(random.below(120_000));
        while Instant::now() < pause {
            std::hint::spin_loop();
        }
        let delay = Duration::from_micros(random.below(30));
        scheduler.schedule_with(key, Instant::now() + delay, delay).expect("it is open and not full");
        let late = fired.recv_timeout(PATIENCE).expect("no wake-up is lost");
        assert!(late < SOON, "{late:?} late");
    }
}

// The end, under fire.

/// Calls until the scheduler refuses. Returns how many timers the caller started, and how many came back to it.
fn fire_on(
    scheduler: &Scheduler<Token, Token>,
    ledgers: &(Ledger, Ledger),
    caller: u64,
    ready: &Barrier,
) -> (u64, u64) {
    let mut random = Random::new(caller);
    let (mut started, mut taken) = (0, 0);
    ready.wait();
    loop {
        let key = random.below(200);
        let delay = Duration::from_micros(random.below(4_000));
        match scheduler.schedule_with(ledgers.0.token(key), ledgers.1.token(key), delay) {
            Ok(replaced) => {
                started += 1;
                taken += u64::from(replaced.is_some());
            }
            Err(error) => {
                assert!(error.is_closed());
                return (started, taken);
            }
        }
        taken += u64::from(scheduler.cancel(&random.below(200)).is_some());
        ignore(scheduler.reschedule(&random.below(200), delay));
    }
}

#[test]
fn closing_under_fire_accounts_for_everything() {
    for round in 0..12 {
        for close in [Close::Discard, Close::FireNow, Close::Return] {
            close_under_fire(close, round);
        }
    }
}

fn close_under_fire(close: Close, round: u64) {
    let ledgers = (Ledger::default(), Ledger::default());
    let fired = Arc::new(AtomicU64::new(0));
    let seen = Arc::clone(&fired);
    let scheduler = Scheduler::builder().shards(2).build(move |_: &Token, _: Token| ignore(seen.fetch_add(1, SeqCst)));
    let scheduler = scheduler.expect("in range");
    let ready = Barrier::new(CALLERS as usize + 1);
    let (started, taken, closed) = thread::scope(|scope| {
        let caller = |caller| {
            let (scheduler, ledgers, ready) = (&scheduler, &ledgers, &ready);
            scope.spawn(move || fire_on(scheduler, ledgers, caller + round, ready))
        };
        let callers: Vec<_> = (0..CALLERS).map(caller).collect();
        ready.wait();
        thread::sleep(Duration::from_micros(500 * round));
        // Two threads close at once: one of them gets everything.
        let rival = scope.spawn(|| scheduler.close(close));
        let closed = [scheduler.close(close), rival.join().expect("no panic")];
        let counts = callers.into_iter().map(|caller| caller.join().expect("no panic"));
        let (started, taken) = counts.fold((0, 0), |sum, counts| (sum.0 + counts.0, sum.1 + counts.1));
        (started, taken, closed)
    });
    let ended: u64 = closed.iter().map(|closed| (closed.discarded + closed.fired + closed.returned.len()) as u64).sum();
    let stats = scheduler.stats();
    assert_eq!((stats.scheduled, stats.pending), (started, 0));
    assert_eq!(stats.cancelled + stats.replaced, taken);
    let by_expiry = stats.fired - closed.iter().map(|closed| closed.fired as u64).sum::<u64>();
    assert_eq!(started, taken + ended + by_expiry);
    eventually("all callbacks run", || fired.load(SeqCst) == stats.fired);
    drop((scheduler, closed));
    ledgers.0.assert_all_dropped_once();
    ledgers.1.assert_all_dropped_once();
}

#[test]
fn closing_from_callbacks_under_fire() {
    for close in [Close::Discard, Close::FireNow, Close::Return] {
        let own: Arc<OnceLock<WeakScheduler<Token, Token>>> = Arc::default();
        let (seen, values, keys) = (Arc::clone(&own), Ledger::default(), Ledger::default());
        let callback = move |key: &Token, _: Token| {
            let scheduler = seen.get().and_then(WeakScheduler::upgrade);
            if let Some(scheduler) = scheduler.filter(|_| key.id % 50 == 7) {
                drop(scheduler.close(close));
            }
        };
        let scheduler = Scheduler::builder().shards(2).build(callback).expect("in range");
        own.set(scheduler.downgrade()).expect("set once");
        for id in 0..2_000 {
            let delay = ms(5 + id % 30);
            if scheduler.schedule_with(keys.token(id), values.token(id), delay).is_err() {
                break;
            }
        }
        eventually("a callback closes it", || scheduler.is_closed() && scheduler.is_empty());
        within(PATIENCE, "the workers end", move || drop(scheduler));
        values.assert_all_dropped_once();
        keys.assert_all_dropped_once();
    }
}

/// The end is one moment: a caller that was told that a timer is gone does not get it afterwards.
#[test]
fn closing_is_one_moment_for_keys_and_handles() {
    for close in [Close::Discard, Close::Return] {
        let scheduler = Scheduler::builder().shards(1).build(|_: &u64, ()| {}).expect("in range");
        let timer = |key| scheduler.schedule_with_handle(key, (), HOUR).expect("it is open and not full").1;
        let timers: Vec<_> = (0..100_000).map(timer).collect();
        thread::scope(|scope| {
            let closer = scope.spawn(|| scheduler.close(close));
            while !scheduler.is_closed() {
                std::hint::spin_loop();
            }
            let last = timers.last().expect("many");
            assert!(!scheduler.contains(&99_999));
            let is_there_again = last.is_pending() || last.cancel().is_some() || scheduler.drain(|_, ()| {}) > 0;
            drop(closer.join());
            assert!(!is_there_again, "absent by its key, and yet there by its handle");
        });
    }
}

#[test]
fn draining_under_fire_hands_over_each_once() {
    let ends = Arc::new(Ends::new(120_000));
    let seen = Arc::clone(&ends);
    let scheduler = Scheduler::builder().shards(2).build(move |_: &u64, id: u64| seen.note(id)).expect("in range");
    let is_done = AtomicBool::new(false);
    thread::scope(|scope| {
        let (scheduler, ends, is_done) = (&scheduler, &ends, &is_done);
        let callers: Vec<_> =
            (0..3).map(|caller| scope.spawn(move || schedule_and_move(scheduler, ends, caller * 40_000))).collect();
        let drainer = scope.spawn(move || {
            let mut count = 0;
            while !is_done.load(SeqCst) {
                count += scheduler.drain(|_, id| ends.note(id));
            }
            count
        });
        callers.into_iter().for_each(|caller| caller.join().expect("no panic"));
        is_done.store(true, SeqCst);
        assert!(drainer.join().expect("no panic") > 0);
    });
    scheduler.drain(|_, id| ends.note(id));
    eventually("each ends", || (0..120_000).all(|id| ends.of(id) >= 1));
    assert!((0..120_000).all(|id| ends.of(id) == 1), "in one way");
}

fn schedule_and_move(scheduler: &Scheduler<u64, u64>, ends: &Ends, first: u64) {
    let mut random = Random::new(first);
    for id in first..first + 40_000 {
        let delay = Duration::from_micros(random.below(20_000));
        let replaced = scheduler.schedule_with(random.below(500), id, delay).expect("it is open and not full");
        replaced.into_iter().for_each(|id| ends.note(id));
        ignore(scheduler.reschedule(&random.below(500), delay));
    }
}

/// What was pending at the call is drained, however much it is; what the closure starts is not.
#[test]
fn draining_takes_all_that_was_pending_and_nothing_new() {
    let scheduler = Scheduler::builder().shards(3).build(|_: &u64, ()| {}).expect("in range");
    (0..50_000).for_each(|key| assert!(scheduler.schedule(key, HOUR).is_ok()));
    let drained = scheduler.drain(|key, ()| assert!(scheduler.schedule(*key, 2 * HOUR).is_ok()));
    assert_eq!((drained, scheduler.len()), (50_000, 50_000));
    assert_eq!(scheduler.drain(|_, ()| ()), 50_000);
}

/// Every callback starts the next timers, with their deadlines all over the place.
#[test]
fn callbacks_keep_the_scheduler_busy() {
    let pool = rayon::ThreadPoolBuilder::new().num_threads(1).build().expect("a small pool");
    for executor in [Executor::Inline, Executor::Rayon(Arc::new(pool))] {
        let own: Arc<OnceLock<WeakScheduler<u64, u64>>> = Arc::default();
        let (seen, ran) = (Arc::clone(&own), Arc::new(AtomicUsize::new(0)));
        let count = Arc::clone(&ran);
        let callback = move |key: &u64, generation: u64| {
            count.fetch_add(1, SeqCst);
            let scheduler = seen.get().and_then(WeakScheduler::upgrade).expect("it is open");
            let next = |key, delay| scheduler.schedule_with(key, generation + 1, Duration::from_micros(delay));
            if generation < 10 {
                assert!(next(2 * key, key % 7 * 500).is_ok() && next(2 * key + 1, 0).is_ok());
            }
        };
        let scheduler = Scheduler::builder().shards(2).executor(executor).build(callback).expect("in range");
        own.set(scheduler.downgrade()).expect("set once");
        scheduler.schedule_with(1, 0, MS).expect("it is open and not full");
        eventually("the tree is complete", || ran.load(SeqCst) == (1 << 11) - 1);
        assert!(scheduler.is_empty());
    }
}

#[test]
fn the_last_handle_may_go_inside_a_callback() {
    for round in 0..20 {
        let own: Arc<Mutex<Option<Scheduler<u64, Token>>>> = Arc::default();
        let (seen, values) = (Arc::clone(&own), Ledger::default());
        let executor = if round % 2 == 0 { Some(Executor::Inline) } else { None };
        let scheduler =
            with(executor).shards(2).build(move |_: &u64, _: Token| drop(lock(&seen).take())).expect("in range");
        for key in 0..50 {
            scheduler.schedule_with(key, values.token(key), ms(3 + key)).expect("it is open and not full");
        }
        *lock(&own) = Some(scheduler);
        eventually("it is gone", || lock(&own).is_none());
        values.assert_all_dropped_once();
    }
}

// Executors and pinning.

#[test]
fn a_custom_executor_gets_every_job_and_may_drop_it() {
    let (sender, jobs): (_, Receiver<Job>) = channel();
    let executor = Executor::custom(move |job| ignore(sender.send(job)));
    let ran = Arc::new(AtomicUsize::new(0));
    let (seen, values) = (Arc::clone(&ran), Ledger::default());
    let builder = Scheduler::builder().shards(1).executor(executor);
    let scheduler = builder.build(move |_: &u64, _: Token| ignore(seen.fetch_add(1, SeqCst))).expect("in range");
    for key in 0..1_000 {
        scheduler.schedule_with(key, values.token(key), MS).expect("it is open and not full");
    }
    eventually("all are handed over", || scheduler.stats().callbacks_waiting == 1_000);
    assert_eq!((ran.load(SeqCst), scheduler.stats().fired), (0, 1_000));
    // They are counted before they are sent.
    for index in (0..).take_while(|_| scheduler.stats().callbacks_waiting > 0) {
        let job = jobs.recv_timeout(PATIENCE).expect("what is counted is sent");
        if index % 2 == 0 { job.run() } else { drop(job) }
    }
    assert_eq!(values.alive(), 0);
    assert!(ran.load(SeqCst) > 0);
    values.assert_none_twice();
}

/// A job holds up the thread that runs it for as long as its timers take.
#[test]
fn a_custom_executor_gets_a_few_hundred_timers_at_a_time() {
    const TIMERS: u64 = 10_000;
    let (jobs, ran) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let (count, seen) = (Arc::clone(&jobs), Arc::clone(&ran));
    let executor = Executor::custom(move |job| {
        count.fetch_add(1, SeqCst);
        job.run();
    });
    let builder = Scheduler::builder().shards(1).executor(executor);
    let scheduler = builder.build(move |_: &u64, ()| ignore(seen.fetch_add(1, SeqCst))).expect("in range");
    (0..TIMERS).for_each(|key| ignore(scheduler.schedule(key, HOUR)));
    assert_eq!(scheduler.close(Close::FireNow).fired, TIMERS as usize);
    assert_eq!((ran.load(SeqCst), jobs.load(SeqCst)), (TIMERS, TIMERS.div_ceil(256)));
}

/// `None`: the scheduler's own executor.
fn with<K: Hash + Eq + Send + Sync + 'static, V: Send + 'static>(executor: Option<Executor>) -> Builder<K, V> {
    executor.into_iter().fold(Scheduler::builder(), Builder::executor)
}

/// One shard, and a pool of `threads` threads. `None`: the scheduler's own.
fn on_pool(threads: Option<u64>) -> Builder<u64, ()> {
    let pool = |threads| rayon::ThreadPoolBuilder::new().num_threads(threads as usize).build().expect("a small pool");
    with(threads.map(|threads| Executor::Rayon(Arc::new(pool(threads))))).shards(1)
}

/// How a batch comes to its pool.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Expire {
    /// By its deadline; the worker goes on.
    InTime,
    /// By its deadline; as soon as its first callback runs, the scheduler is closed, which ends the worker.
    BeforeClose,
    /// By the end of the scheduler.
    AtClose,
}

/// All timers are due at once, and all threads but one are stuck in the callbacks that they came to first.
#[test]
fn slow_callbacks_hold_up_no_other_of_their_batch() {
    for expire in [Expire::InTime, Expire::BeforeClose, Expire::AtClose] {
        for pool in [None, Some(2), Some(3), Some(4)] {
            for timers in [2, 3, 64, 256, 1000] {
                all_but_one_thread_stuck(pool, timers, expire);
            }
        }
    }
}

/// `None`: the scheduler's own pool.
fn all_but_one_thread_stuck(pool: Option<u64>, timers: u64, expire: Expire) {
    // Rayon's own pool has as many threads. The shard has one more, but not at the end.
    let own = || rayon::current_num_threads() as u64 + u64::from(expire != Expire::AtClose);
    let threads = pool.unwrap_or_else(own);
    let stuck = (threads - 1).min(timers - 1);
    let (begun, done) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let (first, others) = (Arc::clone(&begun), Arc::clone(&done));
    let callback = move |_: &u64, ()| {
        if first.fetch_add(1, SeqCst) < stuck {
            eventually("all others have run", || others.load(SeqCst) >= timers - stuck);
        }
        others.fetch_add(1, SeqCst);
    };
    let scheduler = on_pool(pool).build(callback).expect("in range");
    if expire == Expire::AtClose {
        (0..timers).for_each(|key| ignore(scheduler.schedule(key, HOUR)));
        assert_eq!(scheduler.close(Close::FireNow).fired, timers as usize);
    } else {
        let due = Instant::now() + ms(100);
        (0..timers).for_each(|key| ignore(scheduler.schedule_at(key, (), due)));
        if Instant::now() >= due {
            // This machine was too slow: what is not due yet would be discarded, and the test would wait for it.
            return all_but_one_thread_stuck(pool, timers, expire);
        }
    }
    if expire == Expire::BeforeClose {
        // At once: no sleep between two looks.
        within(PATIENCE, "it begins", move || while begun.load(SeqCst) == 0 {});
        scheduler.close(Close::Discard);
    }
    eventually("all have run", || done.load(SeqCst) == timers);
    assert_eq!(scheduler.stats().callback_panics, 0);
}

/// It costs more to wake a thread than that thread would do.
#[test]
fn a_batch_is_run_by_one_thread_for_a_millisecond() {
    run_by_one_thread_for_a_millisecond(None);
    run_by_one_thread_for_a_millisecond(Some(4));
}

fn run_by_one_thread_for_a_millisecond(pool: Option<u64>) {
    const TIMERS: u64 = 100;
    type Run = (thread::ThreadId, Instant);
    let runs: Arc<Mutex<Vec<Run>>> = Arc::default();
    let seen = Arc::clone(&runs);
    let callback = move |key: &u64, ()| {
        if *key >= TIMERS {
            return;
        }
        lock(&seen).push((thread::current().id(), Instant::now()));
        // All callbacks together take several milliseconds, so other threads come.
        thread::sleep(Duration::from_micros(50));
    };
    let scheduler = on_pool(pool).tick(MS / 10).build(callback).expect("in range");
    let (mut rounds, mut helped) = (0, 0);
    while rounds < 10 {
        let due = Instant::now() + ms(20);
        (0..TIMERS).for_each(|key| ignore(scheduler.schedule_at(key, (), due)));
        // So that the worker looks before the millisecond is over.
        (1..4).for_each(|key| ignore(scheduler.schedule_at(TIMERS + u64::from(key), (), due + key * MS / 5)));
        // Otherwise they were not all due at once.
        let is_one_batch = Instant::now() < due;
        eventually("all have run", || scheduler.is_empty() && lock(&runs).len() >= TIMERS as usize);
        let runs = std::mem::take(&mut *lock(&runs));
        let second = runs.iter().filter(|run| run.0 != runs[0].0).map(|run| run.1).min();
        assert!(!is_one_batch || second.is_none_or(|at| at >= due + MS), "another thread came too early");
        rounds += u64::from(is_one_batch);
        helped += u64::from(second.is_some());
    }
    // On a busy machine it may be too late for that, but not every time.
    assert!(helped > 0, "nobody came");
}

/// The stuck callbacks of one shard take all the threads that they can have, and keep them.
#[test]
fn stuck_callbacks_of_one_shard_leave_others_a_thread() {
    const SHARDS: usize = 8;
    type Hashed = BuildHasherDefault<DefaultHasher>;
    // Each callback runs on its shard's worker, whose name shows the shard.
    let (sender, homes) = channel();
    let inline = Scheduler::builder().shards(SHARDS).executor(Executor::Inline).hasher(Hashed::default());
    let told =
        move |key: &u64, ()| sender.send((*key, thread::current().name().map(str::to_owned))).expect("all are awaited");
    let inline = inline.build(told).expect("in range");
    let mut by_shard: HashMap<_, Vec<u64>> = HashMap::new();
    (0..200).for_each(|key| ignore(inline.schedule(key, MS)));
    for _ in 0..200 {
        let (key, home) = homes.recv_timeout(PATIENCE).expect("it fires");
        by_shard.entry(home).or_default().push(key);
    }
    assert_eq!(by_shard.len(), SHARDS, "200 keys meet all shards");
    let mut by_shard = by_shard.into_values();
    let (stuck, others) = (by_shard.next().expect("one of them"), by_shard.map(|keys| keys[0]).collect::<Vec<_>>());
    let (ran, gate) = (Arc::new(AtomicUsize::new(0)), Arc::new(Gate::default()));
    let (seen, others_ran, are_stuck) = (Arc::clone(&gate), Arc::clone(&ran), stuck.clone());
    let callback = move |key: &u64, ()| {
        if are_stuck.contains(key) {
            seen.pass();
        } else {
            others_ran.fetch_add(1, SeqCst);
        }
    };
    let scheduler = Scheduler::builder().shards(SHARDS).hasher(Hashed::default()).build(callback).expect("in range");
    let opener = Opener(&gate);
    for (round, &key) in (1..=20).zip(&stuck) {
        // All at the same time: some may be left to the thread that is stuck.
        let due = Instant::now() + ms(4);
        ignore(scheduler.schedule_at(key, (), due));
        others.iter().for_each(|&key| ignore(scheduler.schedule_at(key, (), due)));
        eventually("those of other shards have run", || ran.load(SeqCst) == round * others.len());
    }
    assert!(gate.arrived() > 1, "they keep several threads");
    drop(opener);
}

/// The timers are due at once in several shards, one or two in each, and one thread runs them as long as they are
/// quick.
#[test]
fn a_stuck_callback_holds_up_none_of_other_shards() {
    const TIMERS: u64 = 16;
    let (start, by_lane) = (Instant::now(), Arc::new(AtomicU64::new(0)));
    // On a busy machine the shards may not expire at the same time.
    for round in (0..).take_while(|&round| round < 2 * TIMERS || by_lane.load(SeqCst) == 0) {
        assert!(start.elapsed() < PATIENCE, "nothing goes to the lane");
        let (stuck, closes) = (round % TIMERS, round / TIMERS % 2 == 1);
        let (ran, gate) = (Arc::new(AtomicU64::new(0)), Arc::new(Gate::default()));
        let (others, seen, by_lane) = (Arc::clone(&ran), Arc::clone(&gate), Arc::clone(&by_lane));
        let callback = move |key: &u64, ()| {
            let is_lane = thread::current().name().is_some_and(|name| name.starts_with("shardwheel-lane"));
            by_lane.fetch_add(u64::from(is_lane), SeqCst);
            if *key == stuck {
                seen.pass();
            }
            others.fetch_add(1, SeqCst);
        };
        let scheduler = Scheduler::builder().shards(8).build(callback).expect("in range");
        let opener = Opener(&gate);
        let due = Instant::now() + ms(5);
        (0..TIMERS).for_each(|key| ignore(scheduler.schedule_at(key, (), due)));
        eventually("it begins", || gate.arrived() == 1);
        let discarded = if closes { scheduler.close(Close::Discard).discarded as u64 } else { 0 };
        eventually("all others have run", || ran.load(SeqCst) + discarded == TIMERS - 1);
        drop(opener);
        eventually("all have run", || ran.load(SeqCst) + discarded == TIMERS);
    }
}

/// It is the last callback of its batch to run, and all those before it have ended.
#[test]
fn a_slow_callback_keeps_few_others_from_being_finished() {
    const TIMERS: u64 = 1000;
    let (keys, gate) = (Ledger::default(), Arc::new(Gate::default()));
    let (seen, ran) = (Arc::clone(&gate), AtomicU64::new(0));
    let callback = move |_: &Token, ()| {
        if ran.fetch_add(1, SeqCst) == TIMERS - 1 {
            seen.pass();
        }
    };
    let scheduler = Scheduler::builder().shards(1).build(callback).expect("in range");
    let due = Instant::now() + ms(100);
    (0..TIMERS).for_each(|key| ignore(scheduler.schedule_at(keys.token(key), (), due)));
    eventually("it begins", || gate.arrived() == 1);
    let (others, next) = (Ledger::default(), AtomicU64::new(TIMERS));
    eventually("most keys are gone", || {
        // More timers end, so that some thread drops the keys of earlier ones.
        for _ in 0..200 {
            let key = next.fetch_add(1, SeqCst);
            assert!(scheduler.schedule(others.token(key), HOUR).is_ok() && scheduler.cancel(&key).is_some());
        }
        keys.alive() < TIMERS as usize * 3 / 4
    });
    gate.open();
}

/// The worker looks after a batch once, and sleeps on.
#[test]
fn a_batch_costs_one_wake_up_more() {
    let scheduler = Scheduler::builder().shards(1).build(|_: &u64, ()| {}).expect("in range");
    let wake_ups = || scheduler.stats().shards[0].wake_ups;
    let mut rounds = 0;
    while rounds < 10 {
        let due = Instant::now() + ms(20);
        (0..10).for_each(|key| ignore(scheduler.schedule_at(key, (), due)));
        // Otherwise they were not all due at once.
        let is_one_batch = Instant::now() < due;
        eventually("all are handed over", || scheduler.is_empty());
        let before = wake_ups();
        thread::sleep(ms(50));
        assert!(!is_one_batch || wake_ups() <= before + 2, "{} wake-ups", wake_ups() - before);
        rounds += u64::from(is_one_batch);
    }
}

/// A pool's thread that waited for another one would run further batches meanwhile, each on top of the last on its
/// stack.
#[test]
fn a_backlog_does_not_pile_up_on_the_stack() {
    const TIMERS: u64 = 200_000;
    /// More than a callback in the first batch of a thread takes, debug builds and sanitizers included.
    const DEPTH_MAX: usize = 8 << 10;
    thread_local! { static DEEPEST: (Cell<usize>, Cell<usize>) = const { (Cell::new(usize::MAX), Cell::new(0)) } }
    let (ran, depth) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicUsize::new(0)));
    let (count, deepest) = (Arc::clone(&ran), Arc::clone(&depth));
    let callback = move |key: &u64, ()| {
        let here = std::ptr::from_ref(&key).addr();
        DEEPEST.with(|(least, most)| {
            least.set(least.get().min(here));
            most.set(most.get().max(here));
            deepest.fetch_max(most.get() - least.get(), SeqCst);
        });
        if key.is_multiple_of(100) {
            thread::sleep(Duration::from_micros(50));
        }
        count.fetch_add(1, SeqCst);
    };
    let pool = rayon::ThreadPoolBuilder::new().num_threads(4).build().expect("a small pool");
    let builder = Scheduler::builder().shards(1).executor(Executor::Rayon(Arc::new(pool)));
    let scheduler = builder.build(callback).expect("in range");
    (0..TIMERS).for_each(|key| ignore(scheduler.schedule(key, HOUR)));
    assert_eq!(scheduler.close(Close::FireNow).fired, TIMERS as usize);
    eventually("all have fired", || ran.load(SeqCst) == TIMERS);
    let depth = depth.load(SeqCst);
    assert!(depth < DEPTH_MAX, "callbacks ran {depth} bytes apart on one stack");
}

/// Callers hand over timers, and pool threads run and drop jobs, all at once; the counts add up.
#[test]
fn what_waits_for_the_executor_is_counted_exactly() {
    const TIMERS: u64 = 30_000;
    let pool = rayon::ThreadPoolBuilder::new().num_threads(4).build().expect("a small pool");
    let (ran, jobs) = (Arc::new(AtomicU64::new(0)), AtomicUsize::new(0));
    let seen = Arc::clone(&ran);
    let executor = Executor::custom(move |job| {
        let is_lost = jobs.fetch_add(1, SeqCst).is_multiple_of(3);
        pool.spawn(move || if is_lost { drop(job) } else { job.run() });
    });
    let builder = Scheduler::builder().shards(1).executor(executor);
    let scheduler = builder.build(move |_: &u64, ()| ignore(seen.fetch_add(1, SeqCst))).expect("in range");
    thread::scope(|scope| {
        for caller in 0..CALLERS {
            let scheduler = &scheduler;
            scope.spawn(move || {
                for key in caller * TIMERS..(caller + 1) * TIMERS {
                    assert!(scheduler.schedule(key, HOUR).is_ok() && scheduler.expire_now(&key));
                }
            });
        }
    });
    eventually("each is run or lost", || ran.load(SeqCst) + scheduler.stats().callbacks_lost == CALLERS * TIMERS);
    let stats = scheduler.stats();
    assert_eq!((stats.callbacks_waiting, stats.fired), (0, CALLERS * TIMERS));
}

#[test]
fn a_custom_executor_that_panics_stops_no_worker() {
    support::hush_callbacks();
    let calls = Arc::new(AtomicUsize::new(0));
    let seen = Arc::clone(&calls);
    let values = Ledger::default();
    let thrown = values.clone();
    let executor = Executor::custom(move |job| {
        if seen.fetch_add(1, SeqCst) == 0 {
            std::panic::panic_any(thrown.token(99));
        }
        job.run();
    });
    let builder = Scheduler::builder().shards(1).executor(executor);
    let scheduler = builder.build(|_: &u64, _: Token| {}).expect("in range");
    for key in 0..3 {
        scheduler.schedule_with(key, values.token(key), MS).expect("it is open and not full");
        eventually("its value is gone", || values.alive() == 0);
    }
    assert_eq!(scheduler.stats().callbacks_waiting, 0);
}

/// An executor that does not keep up: what it cannot take stays pending, can be cancelled, and fires later, when it
/// can.
#[test]
fn a_backlog_stays_pending_and_is_made_up_for() {
    const COUNT: u64 = 200_000;
    let ran = Arc::new(AtomicU64::new(0));
    let (seen, (sender, jobs)) = (Arc::clone(&ran), channel::<Job>());
    let executor = Executor::custom(move |job| ignore(sender.send(job)));
    let builder = Scheduler::builder().shards(1).executor(executor);
    let scheduler = builder.build(move |_: &u64, ()| ignore(seen.fetch_add(1, SeqCst))).expect("in range");
    let at = Instant::now() + ms(200);
    (0..COUNT).for_each(|key| assert!(scheduler.schedule_at(key, (), at).is_ok()));
    eventually("the worker has handed over what it may", || scheduler.stats().callbacks_waiting >= 1 << 16);
    thread::sleep(ms(50));
    let waiting = scheduler.stats().callbacks_waiting;
    assert!(waiting < COUNT / 2, "{waiting} wait; memory is bounded");
    let cancelled = (0..COUNT).filter(|key| scheduler.cancel(key).is_some()).count() as u64;
    assert!(cancelled > COUNT / 4 && scheduler.schedule(COUNT, MS).is_ok());
    eventually("the rest fires", || {
        jobs.try_iter().for_each(Job::run);
        scheduler.is_empty() && scheduler.stats().callbacks_waiting == 0
    });
    assert_eq!(ran.load(SeqCst), COUNT + 1 - cancelled);
}

#[test]
fn callbacks_run_where_their_executor_says() {
    let pool = rayon::ThreadPoolBuilder::new().num_threads(1).thread_name(|_| "mine".into()).build().expect("a pool");
    let homes = |executor: Option<Executor>| {
        // There may be only one thread; otherwise the second callback comes while the first one keeps its thread.
        let gate = Arc::new(Gate::default());
        if executor.is_some() {
            gate.open();
        }
        let (sender, homes) = channel();
        let seen = Arc::clone(&gate);
        let callback = move |key: &u64, ()| {
            sender.send(thread::current().name().map(str::to_owned)).expect("the test waits");
            if *key == 1 {
                seen.pass();
            }
        };
        let scheduler = with(executor).shards(1).build(callback).expect("in range");
        let home = |key| {
            assert!(scheduler.schedule(key, MS).is_ok());
            homes.recv_timeout(PATIENCE).expect("it fires").expect("its thread has a name")
        };
        let homes = [home(1), home(2)];
        gate.open();
        homes
    };
    assert_eq!(homes(Some(Executor::Rayon(Arc::new(pool)))), ["mine"; 2]);
    assert_eq!(homes(Some(Executor::Inline)), ["shardwheel-0"; 2]);
    let [first, second] = homes(None);
    assert!(first == "shardwheel-cb0" && second.starts_with("shardwheel-pool"), "{first}, {second}");
}

fn pinned(pinning: Pinning, shards: usize, executor: Option<Executor>) -> Vec<Option<usize>> {
    let fired = Arc::new(AtomicUsize::new(0));
    let seen = Arc::clone(&fired);
    let builder = with(executor).shards(shards).pinning(pinning);
    let scheduler = builder.build(move |_: &u64, ()| ignore(seen.fetch_add(1, SeqCst))).expect("in range");
    // From the start.
    let cores = scheduler.stats().shards.iter().map(|shard| shard.pinned_core).collect();
    (0..64).for_each(|key| assert!(scheduler.schedule(key, MS).is_ok()));
    eventually("it works, pinned or not", || fired.load(SeqCst) == 64);
    cores
}

#[test]
fn pinning_is_told() {
    assert_eq!(pinned(Pinning::Off, 2, None), [None, None]);
    let cores = core_affinity::get_core_ids().unwrap_or_default();
    if let Some(core) = cores.first() {
        let told = pinned(Pinning::Cores(vec![core.id]), 2, None);
        assert!(told.iter().all(|&told| told.is_none() || told == Some(core.id)), "{told:?}");
        if cfg!(target_os = "linux") {
            assert_eq!(told, [Some(core.id); 2]);
        }
    }
    let (enough, too_few) = (pinned(Pinning::Auto, 1, None), pinned(Pinning::Auto, cores.len() + 1, None));
    assert!(too_few.iter().all(Option::is_none) && enough.len() == 1);
    assert!(enough[0].is_some() || !cfg!(target_os = "linux"));
}

/// Such threads, and the pools that they build, would be confined to one core.
#[cfg(target_os = "linux")]
#[test]
fn threads_that_callbacks_start_are_not_pinned() {
    let cores = || core_affinity::get_core_ids().map_or(0, |cores| cores.len());
    for executor in [Executor::Inline, Executor::custom(Job::run)] {
        let (sender, seen) = channel();
        let callback = move |_: &u64, ()| {
            let sender = sender.clone();
            thread::spawn(move || ignore(sender.send(cores())));
        };
        let scheduler = with(Some(executor)).build(callback).expect("in range");
        assert!(scheduler.schedule(1, MS).is_ok());
        assert_eq!(seen.recv_timeout(PATIENCE), Ok(cores()));
    }
}

/// Otherwise one core would have all the work.
#[cfg(target_os = "linux")]
#[test]
fn small_schedulers_take_the_cores_in_turn() {
    let core_count = core_affinity::get_core_ids().map_or(0, |cores| cores.len());
    // Other tests take some cores as well.
    let taken: HashSet<_> = (0..16).flat_map(|_| pinned(Pinning::Auto, 1, None)).collect();
    assert!(core_count < 2 || taken.len() > 1, "{taken:?}");
}

/// How many threads of this process have names that begin with `name`.
#[cfg(target_os = "linux")]
fn threads(name: &str) -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").expect("it is there on Linux").flatten();
    let names = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("comm")).ok());
    names.filter(|found| found.starts_with(name)).count()
}

#[cfg(target_os = "linux")]
#[test]
fn all_threads_have_the_name_that_is_wanted() {
    let scheduler = Scheduler::builder().shards(2).thread_name("own").build(|_: &u64, ()| {}).expect("in range");
    let names = ["own-0", "own-1", "own-cb0", "own-cb1", "own-grow"];
    eventually("all have started", || names.map(threads) == [1; 5] && threads("own-pool") > 0);
    within(PATIENCE, "it ends", move || drop(scheduler));
    eventually("all have ended", || threads("own-") == 0);
}

/// Many schedulers begin and end; none of their workers is left, and no thread for callbacks.
#[cfg(target_os = "linux")]
#[test]
fn no_thread_outlives_its_scheduler() {
    // No other test has so many shards, so threads of these names are ours.
    let ours = || (threads("shardwheel-99"), threads("shardwheel-cb99"));
    for executor in [None, Some(Executor::Inline)] {
        let wanted = (1, usize::from(executor.is_none()));
        for _ in 0..5 {
            let scheduler = with(executor.clone()).shards(100).build(|_: &u64, ()| {}).expect("in range");
            assert!(scheduler.schedule(1, HOUR).is_ok());
            eventually("all have started", || ours() == wanted);
            within(PATIENCE, "it ends", move || drop(scheduler));
            eventually("its threads have ended", || ours() == (0, 0));
        }
    }
}

/// The thread that starts a timer has read the clock when another one moves it by years, by so many ticks that what a
/// hint keeps of its tick reads as one of the future. In some of a thousand rounds they meet.
#[test]
fn a_timer_that_begins_as_the_clock_jumps_is_not_forgotten() {
    const DAY: Duration = Duration::from_secs(86_400);
    for round in 0..4000 {
        let (scheduler, clock) = Scheduler::builder().shards(1).build_manual(|_: &u64, ()| {}).expect("in range");
        let start = Barrier::new(2);
        thread::scope(|scope| {
            scope.spawn(|| {
                start.wait();
                clock.advance(DAY * 730);
            });
            start.wait();
            (0..round % 300).for_each(|_| std::hint::spin_loop());
            scheduler.schedule(1, MS).expect("it is open and not full");
        });
        clock.advance(DAY);
        assert!(!scheduler.contains(&1), "round {round}: due since a day, in {:?}", scheduler.remaining(&1));
    }
}

/// Where thread-locals with a destructor are gone already.
#[test]
fn a_callback_in_the_destructor_of_a_thread_local_may_ask_its_clock_to_move() {
    struct Late(Scheduler<u64>, ManualClock, Sender<usize>);
    impl Drop for Late {
        fn drop(&mut self) {
            self.0.schedule(1, MS).expect("it is open and not full");
            let _ = self.2.send(self.1.advance(2 * MS));
        }
    }
    thread_local! {
        static LATE: RefCell<Option<Late>> = const { RefCell::new(None) };
    }
    let (sender, answers) = channel();
    thread::spawn(move || {
        // The first to be there is the last to go.
        LATE.with(|_| ());
        let itself = Arc::new(OnceLock::<ManualClock>::new());
        let (seen, inner) = (Arc::clone(&itself), sender.clone());
        let moves = move |_: &u64, ()| _ = inner.send(100 + seen.get().expect("it is set").advance(MS));
        let (scheduler, clock) = Scheduler::builder().build_manual(moves).expect("in range");
        itself.set(clock.clone()).expect("set once");
        scheduler.schedule(0, MS).expect("it is open and not full");
        let _ = sender.send(clock.advance(MS));
        LATE.with(|late| *late.borrow_mut() = Some(Late(scheduler, clock, sender)));
    });
    let answer = || answers.recv_timeout(PATIENCE).expect("it does not wait for itself");
    assert_eq!([answer(), answer()], [100, 1], "on a thread that lives");
    assert_eq!([answer(), answer()], [100, 1], "on one that ends");
}

/// Wherever that happens: in the pool, the callback threads or the workers. (In a process of its own, since
/// the limit is the process's. ThreadSanitizer could not live with it.)
#[cfg(all(target_os = "linux", not(slow)))]
#[test]
fn no_thread_is_left_of_a_scheduler_that_could_not_start() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    use shardwheel::BuildError;
    const OWN: &str = "SHARDWHEEL_TEST_OF_LITTLE_MEMORY";
    const STACK: u64 = 64 << 20;
    const NAME: &str = "no_thread_is_left_of_a_scheduler_that_could_not_start";
    if std::env::var_os(OWN).is_none() {
        let mut own = std::process::Command::new(std::env::current_exe().expect("it runs"));
        // The room is for stacks, and always leaves half of one: where a thread that has started finds none for itself,
        // the process ends.
        own.env("RUST_MIN_STACK", STACK.to_string()).env("MALLOC_ARENA_MAX", "1");
        let status = own.args(["--exact", NAME, "--nocapture"]).env(OWN, "1").status().expect("it can run again");
        return assert!(status.success(), "the process of its own: {status}");
    }
    let figure = |name| {
        let status = std::fs::read_to_string("/proc/self/status").expect("Linux has it");
        support::status_field(&status, name).expect("it is a number")
    };
    let (before, limit) = (figure("Threads:"), getrlimit(Resource::As));
    let build = || Scheduler::<u64>::builder().shards(64).build(|_, ()| {});
    for stacks in [0, 1, 20, 100] {
        let most = (figure("VmSize:") << 10) + stacks * STACK + STACK / 2;
        setrlimit(Resource::As, Rlimit { current: Some(most), ..limit }).expect("it may be lowered");
        let built = build();
        setrlimit(Resource::As, limit).expect("it was that before");
        assert!(matches!(built, Err(BuildError::Thread(_) | BuildError::Pool(_))), "{stacks} threads: {built:?}");
        eventually("its threads have ended", || figure("Threads:") == before);
    }
    assert!(build().is_ok());
}
