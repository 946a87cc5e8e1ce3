//! The twelve promises, each as tests named after it.
//!
//! Where time matters they come in two kinds: on the manual clock, where it is exact, and with real threads, where
//! lateness is bounded so that a lost wake-up, which shows as seconds, fails the test.

mod support;

use shardwheel::{Builder, Close, Executor, IfAbsent, ManualClock, Next, ScheduleError, Scheduler, WeakScheduler};
use std::cell::{Cell, RefCell};
use std::collections::{HashMap, HashSet};
use std::hash::{Hash, Hasher};
use std::panic::panic_any;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread;
use std::time::{Duration, Instant};
use support::{
    ClockSlot, Ends, FIRST_TICKS, Gate, HOUR, Ledger, MS, OneHash, Opener, PATIENCE, Random, SOON, Token, eventually,
    hush_callbacks, ignore, keeper, lock, ms, start, within,
};

type Unit = Scheduler<u64>;

/// A scheduler with one shard whose callback does nothing.
fn quiet() -> Unit {
    Scheduler::builder().shards(1).build(|_: &u64, ()| {}).expect("the settings are in range")
}

fn quiet_manual() -> (Unit, ManualClock) {
    Scheduler::builder().build_manual(|_: &u64, ()| {}).expect("the settings are in range")
}

fn schedule(scheduler: &Unit, key: u64, delay: Duration) -> Option<()> {
    scheduler.schedule(key, delay).expect("it is open and not full")
}

fn wake_ups<V: Send + 'static>(scheduler: &Scheduler<u64, V>) -> u64 {
    scheduler.stats().shards.iter().map(|shard| shard.wake_ups).sum()
}

// 1. Never early.

#[test]
fn promise_01_never_early() {
    let early = Arc::new(AtomicUsize::new(0));
    let fired = Arc::new(AtomicUsize::new(0));
    for (tick, first_tick) in [(ms(1), 0), (Duration::from_micros(10), FIRST_TICKS[3]), (ms(20), FIRST_TICKS[1])] {
        let (early, seen) = (Arc::clone(&early), Arc::clone(&fired));
        let callback = move |_: &u64, deadline: Instant| {
            early.fetch_add(usize::from(Instant::now() < deadline), SeqCst);
            seen.fetch_add(1, SeqCst);
        };
        let scheduler = Scheduler::builder().tick(tick).first_tick(first_tick).build(callback).expect("in range");
        let before = fired.load(SeqCst);
        thread::scope(|scope| {
            for caller in 0..4 {
                let scheduler = &scheduler;
                scope.spawn(move || schedule_at_random(scheduler, caller));
            }
        });
        eventually("all have fired", || fired.load(SeqCst) == before + 2_000);
    }
    assert_eq!(early.load(SeqCst), 0);
}

/// Starts 500 timers within 60 ms, each with its own deadline as value, and moves some.
fn schedule_at_random(scheduler: &Scheduler<u64, Instant>, caller: u64) {
    let mut random = Random::new(caller);
    for i in 0..500 {
        let delay = Duration::from_nanos(random.below(60_000_000));
        let key = caller * 1_000 + i;
        let deadline = Instant::now() + delay;
        scheduler.schedule_with(key, deadline, delay).expect("it is open and not full");
        if i % 3 == 0 {
            scheduler.reschedule(&key, delay + MS);
        }
    }
}

#[test]
fn promise_01_the_first_tick_at_or_after_whatever_the_tick_and_the_uptime() {
    for tick in [Duration::from_micros(10), ms(1), Duration::from_nanos(7_654_321), HOUR] {
        for first_tick in FIRST_TICKS {
            first_tick_at_or_after(tick, first_tick);
        }
    }
}

fn first_tick_at_or_after(tick: Duration, first_tick: u64) {
    let builder = Scheduler::builder().tick(tick).first_tick(first_tick);
    let (scheduler, clock) = builder.build_manual(|_: &u64, ()| {}).expect("in range");
    let start = clock.now();
    let mut random = Random::new(first_tick);
    for i in 0..200 {
        clock.advance(Duration::from_nanos(random.below(3 * tick.as_nanos() as u64)));
        let now = clock.now();
        let delay = Duration::from_nanos(random.below(300 * tick.as_nanos() as u64));
        schedule(&scheduler, i, delay);
        clock.advance_to_next().expect("one is pending");
        let fired_at = (clock.now() - start).as_nanos();
        let due = (now + delay - start).as_nanos();
        assert!(fired_at >= due && fired_at < due + tick.as_nanos(), "{delay:?} fired at {fired_at}, due {due}");
        assert_eq!(fired_at % tick.as_nanos(), 0);
    }
}

// 2. Late by a stated bound.

#[test]
fn promise_02_late_by_a_bound() {
    let worst = Arc::new(Mutex::new(Duration::ZERO));
    let (seen, fired) = (Arc::clone(&worst), Arc::new(AtomicUsize::new(0)));
    let count = Arc::clone(&fired);
    let scheduler = Scheduler::builder().build(move |_: &u64, deadline: Instant| {
        let late = deadline.elapsed();
        let mut worst = lock(&seen);
        *worst = late.max(*worst);
        count.fetch_add(1, SeqCst);
    });
    let scheduler = scheduler.expect("in range");
    for i in 0..300 {
        let delay = ms(10 + i * 2);
        scheduler.schedule_with(i, Instant::now() + delay, delay).expect("it is open and not full");
    }
    // By how much sleeps overrun on this machine, busy as it is.
    let mut overruns = Vec::new();
    while fired.load(SeqCst) < 300 {
        let begin = Instant::now();
        thread::sleep(MS);
        overruns.push(begin.elapsed() - MS);
        assert!(overruns.len() < 100_000, "not all have fired");
    }
    overruns.sort_unstable();
    let (worst, told) = (*lock(&worst), scheduler.stats().lateness);
    assert!(worst < SOON, "{worst:?} late");
    assert!(told.p50 <= told.p99 && told.p99 <= told.p999 && told.p999 <= told.max);
    assert!(told.max > Duration::ZERO && told.max <= worst + MS, "told {told:?}, was {worst:?}");
    // A callback waits for the processor as often as a sleeper, and for its worker besides.
    let overrun = overruns[overruns.len() / 2];
    assert!(told.p50 < ms(3) + 4 * overrun, "{told:?}, a mere sleep {overrun:?}");
}

#[test]
fn promise_02_lateness_counts_from_the_deadline() {
    let (scheduler, clock) = quiet_manual();
    (0..100).for_each(|i| ignore(schedule(&scheduler, i, ms(i))));
    clock.advance(ms(1_000));
    assert_eq!(scheduler.stats().lateness.max, Duration::ZERO, "the manual clock visits every deadline");
}

#[test]
fn promise_02_a_past_instant_on_an_idle_scheduler_is_not_late() {
    let scheduler = quiet();
    thread::sleep(ms(600));
    let past = Instant::now() - ms(500);
    scheduler.schedule_at(1, (), past).expect("it is open and not full");
    eventually("it has fired", || scheduler.stats().fired == 1 && scheduler.stats().callbacks_waiting == 0);
    thread::sleep(ms(20));
    let told = scheduler.stats().lateness.max;
    assert!(told < SOON, "it was due at the next tick, so it was not {told:?} late");
}

#[test]
fn promise_02_what_fires_ahead_of_its_time_has_no_lateness() {
    let scheduler = quiet();
    let has_fired = |count| scheduler.stats().fired == count && scheduler.stats().callbacks_waiting == 0;
    scheduler.schedule(0, MS).expect("it is open and not full");
    eventually("it has fired, and that is told", || has_fired(1) && scheduler.stats().lateness.max > Duration::ZERO);
    let told = scheduler.stats().lateness;
    for key in 1..=100 {
        scheduler.schedule(key, HOUR).expect("it is open and not full");
        assert!(scheduler.expire_now(&key));
    }
    eventually("all have fired", || has_fired(101));
    assert_eq!(scheduler.stats().lateness, told);
}

// 3. Nothing lost, nothing twice.

/// What the callers saw, to be compared with what the scheduler reports.
#[derive(Default)]
struct Book {
    scheduled: AtomicU64,
    replaced: AtomicU64,
    cancelled: AtomicU64,
    drained: AtomicU64,
    moved: AtomicU64,
}

#[test]
fn promise_03_nothing_lost_nothing_twice() {
    const PER_CALLER: u64 = 60_000;
    let ends = Arc::new(Ends::new(4 * PER_CALLER as usize));
    let fired = Arc::new(AtomicU64::new(0));
    let (seen, count) = (Arc::clone(&ends), Arc::clone(&fired));
    let builder = Scheduler::builder().shards(3).tick(Duration::from_micros(100));
    let callback = move |_: &u64, id: u64| {
        seen.note(id);
        count.fetch_add(1, SeqCst);
    };
    let scheduler = builder.build(callback).expect("in range");
    let book = Book::default();
    thread::scope(|scope| {
        for caller in 0..4 {
            let (scheduler, book, ends) = (&scheduler, &book, &ends);
            let ids = caller * PER_CALLER..(caller + 1) * PER_CALLER;
            scope.spawn(move || work(scheduler, book, ends, ids));
        }
    });
    let closed = scheduler.close(Close::Return);
    closed.returned.iter().for_each(|(_, id, _)| ends.note(*id));
    check_book(&scheduler, &book, &ends, &fired, closed.returned.len() as u64);
}

/// Random operations on few keys; every value has an id of its own.
fn work(scheduler: &Scheduler<u64, u64>, book: &Book, ends: &Ends, mut ids: std::ops::Range<u64>) {
    let mut random = Random::new(ids.start + 1);
    while !ids.is_empty() {
        let key = random.below(64);
        let delay = Duration::from_micros(random.below(3_000));
        match random.below(16) {
            0..7 => {
                let replaced = scheduler.schedule_with(key, ids.next().expect("not empty"), delay);
                book.scheduled.fetch_add(1, SeqCst);
                end(replaced.expect("it is open and not full"), &book.replaced, ends);
            }
            7..11 => end(scheduler.cancel(&key), &book.cancelled, ends),
            11..15 => ignore(book.moved.fetch_add(u64::from(scheduler.reschedule(&key, delay)), SeqCst)),
            _ if random.below(50) == 0 => {
                scheduler.drain(|_, id| end(Some(id), &book.drained, ends));
            }
            _ => ignore(scheduler.expire_now(&key)),
        }
    }
}

fn end(id: Option<u64>, count: &AtomicU64, ends: &Ends) {
    if let Some(id) = id {
        ends.note(id);
        count.fetch_add(1, SeqCst);
    }
}

fn check_book(scheduler: &Scheduler<u64, u64>, book: &Book, ends: &Ends, fired: &AtomicU64, returned: u64) {
    eventually("all callbacks have run", || scheduler.stats().fired == fired.load(SeqCst));
    let stats = scheduler.stats();
    let told = [stats.scheduled, stats.replaced, stats.cancelled, stats.drained, stats.rescheduled];
    let seen = [&book.scheduled, &book.replaced, &book.cancelled, &book.drained, &book.moved];
    assert_eq!(told, seen.map(|count| count.load(SeqCst)));
    assert_eq!((stats.returned, stats.pending, stats.discarded), (returned, 0, 0));
    let ended = stats.fired + stats.cancelled + stats.replaced + stats.drained + stats.returned;
    assert_eq!(stats.scheduled, ended);
    assert!(stats.fired > 0 && stats.cancelled > 0 && stats.replaced > 0 && stats.drained > 0);
    for id in 0..stats.scheduled {
        assert_eq!(ends.of(id), 1, "timer {id} ended so often");
    }
}

// 4. Exact answers.

/// A timer, and a rival that acts about when it is due; the rival's moment follows the outcome, so that both sides win
/// often.
fn race(rival: impl Fn(&Scheduler<u64, u64>, u64) -> bool) {
    let fired = Arc::new(Ends::new(4_000));
    let seen = Arc::clone(&fired);
    let builder = Scheduler::builder().shards(1).tick(Duration::from_micros(10)).executor(Executor::Inline);
    let scheduler = builder.build(move |_: &u64, id: u64| seen.note(id)).expect("in range");
    let (mut wins, mut patience) = (0u32, Duration::from_micros(50));
    for id in 0..4_000 {
        let begin = Instant::now();
        scheduler.schedule_with(7, id, Duration::from_micros(60)).expect("it is open and not full");
        while begin.elapsed() < patience {
            std::hint::spin_loop();
        }
        let won = rival(&scheduler, id);
        if !won {
            eventually("it fires, since the rival lost", || fired.of(id) == 1);
        }
        assert_eq!(fired.of(id), u32::from(!won), "either the rival or the callback, not both");
        patience = if won { patience + Duration::from_micros(2) } else { patience.mul_f64(0.95) };
        wins += u32::from(won);
    }
    thread::sleep(ms(5));
    assert_eq!((0..4_000).map(|id| fired.of(id)).sum::<u32>(), 4_000 - wins);
    assert!(wins > 20 && wins < 3_980, "the race was none: {wins} of 4000");
}

#[test]
fn promise_04_exact_answers_of_cancel() {
    race(|scheduler, id| match scheduler.cancel(&7) {
        Some(cancelled) => cancelled == id,
        None => false,
    });
}

#[test]
fn promise_04_exact_answers_of_reschedule() {
    race(|scheduler, id| {
        let moved = scheduler.reschedule(&7, HOUR);
        assert_eq!(scheduler.cancel(&7), moved.then_some(id));
        moved
    });
}

#[test]
fn promise_04_exact_answers_of_schedule() {
    race(|scheduler, id| {
        let replaced = scheduler.schedule_with(7, u64::MAX, HOUR).expect("it is open and not full");
        assert!(replaced.is_none_or(|replaced| replaced == id));
        assert_eq!(scheduler.cancel(&7), Some(u64::MAX));
        replaced.is_some()
    });
}

/// Of many threads that start a timer of one key if there is none, one does, and each of the others gets its own value
/// back.
#[test]
fn promise_04_exact_answers_of_schedule_if_absent() {
    const KEYS: u64 = 20_000;
    let scheduler = Scheduler::builder().shards(1).build(|_: &u64, _: u64| {}).expect("in range");
    let starter: Vec<_> = (0..KEYS).map(|_| AtomicU64::new(0)).collect();
    // Four calls on each key, by whichever thread comes: so callers meet.
    let (next, gave_way) = (AtomicU64::new(0), AtomicU64::new(0));
    let number = || Some(next.fetch_add(1, SeqCst)).filter(|&number| number < 4 * KEYS);
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while let Some(number) = number() {
                    let (key, own) = (number / 4, number + 1);
                    match scheduler.schedule_if_absent(key, own, HOUR).expect("it is open and not full") {
                        IfAbsent::Started => {
                            assert_eq!(starter[key as usize].swap(own, SeqCst), 0, "two have started {key}");
                        }
                        IfAbsent::Exists(value) => {
                            assert_eq!(value, own);
                            gave_way.fetch_add(1, SeqCst);
                        }
                    }
                }
            });
        }
    });
    assert_eq!((scheduler.len() as u64, gave_way.into_inner()), (KEYS, 3 * KEYS));
    for (key, starter) in (0..).zip(&starter) {
        assert_eq!(scheduler.cancel(&key), Some(starter.load(SeqCst)));
    }
    let stats = scheduler.stats();
    assert_eq!((stats.scheduled, stats.replaced, stats.rejected), (KEYS, 0, 0));
}

/// Of many threads that cancel one timer, one gets it; also through handles and by `expire_now`.
#[test]
fn promise_04_exact_answers_of_rivals() {
    let fired = Arc::new(Ends::new(20_000));
    let seen = Arc::clone(&fired);
    let builder = Scheduler::builder().shards(1).executor(Executor::Inline);
    let scheduler = builder.build(move |_: &u64, id: u64| seen.note(id)).expect("in range");
    let ended = Ends::new(20_000);
    let timers: Vec<_> = (0..20_000)
        .map(|id| scheduler.schedule_with_handle(id, id, HOUR).expect("it is open and not full").1)
        .collect();
    thread::scope(|scope| {
        for caller in 0..4u64 {
            let (scheduler, timers, ended) = (&scheduler, &timers, &ended);
            scope.spawn(move || {
                for id in 0..20_000 {
                    let way = (id + caller) % 4;
                    let value = match way {
                        0 => scheduler.cancel(&id),
                        1 => timers[id as usize].cancel(),
                        2 => scheduler.schedule_with(id, id, HOUR).ok().and(None),
                        _ => scheduler.expire_now(&id).then_some(id),
                    };
                    value.inspect(|&id| ended.note(id));
                }
            });
        }
    });
    let stats = scheduler.stats();
    let pending = (0..20_000).filter(|id| scheduler.contains(id)).count() as u64;
    assert_eq!(stats.scheduled, stats.cancelled + stats.fired + stats.replaced + pending);
    let fired_in_all: u64 = (0..20_000).map(|id| u64::from(fired.of(id))).sum();
    let ended_in_all: u64 = (0..20_000).map(|id| u64::from(ended.of(id))).sum();
    assert_eq!((fired_in_all, ended_in_all), (stats.fired, stats.fired + stats.cancelled));
}

/// A handle of an old timer never touches a new one, though its place in memory is used again and again.
#[test]
fn promise_04_exact_answers_of_old_handles() {
    let (scheduler, clock) = Scheduler::builder().shards(1).build_manual(|_: &u64, _: u64| {}).expect("in range");
    let timer = |id| scheduler.schedule_with_handle(id, id, HOUR).expect("it is open and not full").1;
    let old: Vec<_> = (0..1_000).map(timer).collect();
    (0..500).for_each(|id| assert_eq!(scheduler.cancel(&id), Some(id)));
    (500..1_000).for_each(|id| assert!(scheduler.expire_now(&id)));
    for _ in 0..20 {
        let new: Vec<_> = (0..1_000).map(timer).collect();
        for old in &old {
            assert!(!old.is_pending() && !old.reschedule(MS) && !old.expire_now());
            assert!(old.remaining().is_none() && old.cancel().is_none());
        }
        assert!(new.iter().all(|new| new.remaining() == Some(HOUR)));
        assert_eq!((clock.advance(ms(2)), scheduler.drain(|_, _| {})), (0, 1_000));
    }
}

// 5. Lock-free for callers.

thread_local! {
    /// Makes this thread stall in the next comparison of keys.
    static STALLS: Cell<bool> = const { Cell::new(false) };
}

/// A key whose comparison stalls, on a thread that asked for that.
#[derive(Clone)]
struct Stalling(u64, Arc<Gate>);

impl PartialEq for Stalling {
    fn eq(&self, other: &Self) -> bool {
        if STALLS.replace(false) {
            self.1.pass();
        }
        self.0 == other.0
    }
}

impl Eq for Stalling {}

impl Hash for Stalling {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.hash(state);
    }
}

type StallingScheduler = Scheduler<Stalling, u64, OneHash>;

/// Stalls `call` in the middle, and checks that all other callers get their answers, and their timers, meanwhile.
fn stall_in(name: &str, call: impl FnOnce(&StallingScheduler, Stalling) + Send + 'static) {
    let gate = Arc::new(Gate::default());
    let fired = Arc::new(AtomicUsize::new(0));
    let seen = Arc::clone(&fired);
    // All keys have one hash: no thread can walk past the stalled key without meeting it.
    let builder = Scheduler::builder().shards(1).hasher(OneHash);
    let scheduler = builder.build(move |_: &Stalling, _| ignore(seen.fetch_add(1, SeqCst))).expect("in range");
    let key = |id| Stalling(id, Arc::clone(&gate));
    for id in 0..8 {
        scheduler.schedule_with(key(id), id, HOUR).expect("it is open and not full");
    }
    let (stalled, stalled_key) = (scheduler.clone(), key(3));
    let end = start(move || {
        STALLS.set(true);
        call(&stalled, stalled_key);
    });
    eventually("the call stalls", || gate.arrived() == 1);
    let (others, keys) = (scheduler.clone(), (0..8).map(key).collect::<Vec<_>>());
    within(PATIENCE, name, move || use_all(&others, &keys));
    eventually("timers fire meanwhile", || fired.load(SeqCst) == 9);
    gate.open();
    end.recv_timeout(PATIENCE).expect("the stalled call ends as well");
}

/// Makes every lock-free call on every key, and on many fresh keys. In the end all eight keys fire, one of them by
/// request.
fn use_all(scheduler: &StallingScheduler, keys: &[Stalling]) {
    for key in keys {
        let _ = scheduler.schedule_with(key.clone(), 1, HOUR).expect("it is open and not full");
        assert!(scheduler.contains(key) && scheduler.remaining(key).is_some());
        assert!(scheduler.reschedule(key, 2 * HOUR) && scheduler.cancel(key).is_some());
        let (_, timer) = scheduler.schedule_with_handle(key.clone(), 2, HOUR).expect("it is open and not full");
        assert!(timer.reschedule(2 * HOUR) && timer.reschedule(MS));
    }
    let fresh = |id| Stalling(id, Arc::clone(&keys[0].1));
    for id in 100..400 {
        scheduler.schedule_with(fresh(id), id, HOUR).expect("it is open and not full");
        assert_eq!(scheduler.cancel(&fresh(id)), Some(id));
    }
    scheduler.schedule_with(fresh(99), 0, HOUR).expect("it is open and not full");
    assert!(scheduler.expire_now(&fresh(99)));
    let _ = (scheduler.stats(), scheduler.len());
}

#[test]
fn promise_05_a_stalled_thread_stalls_nobody() {
    stall_in("in cancel", |scheduler, key| ignore(scheduler.cancel(&key)));
    stall_in("in reschedule", |scheduler, key| ignore(scheduler.reschedule(&key, HOUR)));
    stall_in("in contains", |scheduler, key| ignore(scheduler.contains(&key)));
    stall_in("in remaining", |scheduler, key| ignore(scheduler.remaining(&key)));
    stall_in("in expire_now", |scheduler, key| ignore(scheduler.expire_now(&key)));
}

/// The hardest place: the author of a new timer stalls after it has linked the timer in and before it ends the old one.
#[test]
fn promise_05_a_stalled_author_stalls_nobody() {
    stall_in("in schedule", |scheduler, key| {
        // Its own timer is overtaken by another thread's, or replaces one; both are possible orders.
        ignore(scheduler.schedule_with(key.clone(), 77, HOUR));
        ignore(scheduler.cancel(&key));
    });
}

#[test]
fn promise_05_blocked_callbacks_stall_no_caller() {
    let gate = Arc::new(Gate::default());
    let seen = Arc::clone(&gate);
    let scheduler = Scheduler::builder().build(move |_: &u64, ()| seen.pass()).expect("in range");
    (0..1_000).for_each(|key| ignore(schedule(&scheduler, key, Duration::ZERO)));
    eventually("callbacks block", || gate.arrived() > 0 && scheduler.stats().fired == 1_000);
    let other = scheduler.clone();
    within(PATIENCE, "calls beside blocked callbacks", move || {
        for key in 0..1_000 {
            assert_eq!(schedule(&other, key, HOUR), None, "its key is free before the callback ends");
            assert!(other.reschedule(&key, 2 * HOUR) && other.contains(&key));
            assert_eq!(other.cancel(&key), Some(()));
        }
    });
    gate.open();
}

#[test]
fn promise_05_a_stalled_drain_stalls_nobody() {
    let scheduler = quiet();
    (0..100).for_each(|key| ignore(schedule(&scheduler, key, HOUR)));
    let (gate, other) = (Arc::new(Gate::default()), scheduler.clone());
    let seen = Arc::clone(&gate);
    let end = start(move || other.drain(|_, ()| seen.pass()));
    eventually("the drain stalls", || gate.arrived() == 1);
    let other = scheduler.clone();
    let cancelled = within(PATIENCE, "calls beside a stalled drain", move || {
        (0..100).filter(|key| other.reschedule(key, HOUR) && other.cancel(key).is_some()).count()
    });
    gate.open();
    assert_eq!((cancelled, end.recv_timeout(PATIENCE)), (99, Ok(1)));
}

// 6. Independent shards.

#[test]
fn promise_06_independent_shards() {
    let gate = Arc::new(Gate::default());
    let (sender, threads) = channel();
    let seen = Arc::clone(&gate);
    // Callbacks run on the workers themselves, so the thread that runs one shows the shard of its key.
    let builder = Scheduler::builder().shards(4).executor(Executor::Inline);
    let callback = move |key: &u64, blocks: bool| {
        let _ = sender.send((*key, thread::current().id(), Instant::now()));
        if blocks {
            seen.pass();
        }
    };
    let scheduler = builder.build(callback).expect("in range");
    let opener = Opener(&gate);
    let mut homes: HashMap<u64, thread::ThreadId> = HashMap::new();
    for round in 0..3 {
        (0..64).for_each(|key| ignore(scheduler.schedule_with(key, false, ms(round)).expect("open and not full")));
        for _ in 0..64 {
            let (key, home, _) = threads.recv_timeout(PATIENCE).expect("it fires");
            assert_eq!(*homes.entry(key).or_insert(home), home, "a key's shard is fixed");
        }
    }
    assert_eq!(homes.values().collect::<HashSet<_>>().len(), 4, "64 keys meet all 4 shards");
    scheduler.schedule_with(0, true, MS).expect("it is open and not full");
    assert_eq!(threads.recv_timeout(PATIENCE).expect("it fires").0, 0);
    others_are_punctual(&scheduler, &threads, &homes);
    drop(opener);
}

/// While callbacks are quick, one thread runs those of all shards. Then one is slow.
#[test]
fn promise_06_a_callback_that_keeps_the_lookout_delays_no_other_shard() {
    const SLOW: u64 = 0;
    let gate = Arc::new(Gate::default());
    let (sender, fired) = channel();
    let seen = Arc::clone(&gate);
    let callback = move |key: &u64, ()| {
        if *key > 100 {
            let _ = sender.send(Instant::now());
        } else if *key == SLOW && thread::current().name().is_some_and(|name| name.starts_with("shardwheel-lane")) {
            seen.pass();
        }
    };
    let scheduler = Scheduler::builder().shards(4).build(callback).expect("in range");
    let opener = Opener(&gate);
    eventually("the lookout runs callbacks", || {
        (0..32).for_each(|key| ignore(scheduler.schedule(key, MS)));
        thread::sleep(MS);
        gate.arrived() > 0
    });
    let deadline = Instant::now() + ms(3);
    let others = 101..165;
    others.clone().for_each(|key| ignore(scheduler.schedule_at(key, (), deadline)));
    for _ in others {
        let at = fired.recv_timeout(PATIENCE).expect("it fires");
        assert!(at < deadline + SOON, "{:?} late beside a slow callback", at - deadline);
    }
    drop(opener);
}

/// How late the latest timer is of those that are due while a callback takes 50 ms, the first slow one of its
/// scheduler. Ten thousand fire in a second.
#[test]
#[ignore = "prints what docs/benchmarks/firing.md tells"]
fn what_a_slow_callback_delays() {
    const SLOW: u64 = u64::MAX;
    let latest_of_a_round = || {
        let (sender, fired) = channel();
        let callback = move |key: &u64, due: Instant| {
            let _ = sender.send((*key, due, due.elapsed()));
            if *key == SLOW {
                thread::sleep(ms(50));
            }
        };
        let scheduler = Scheduler::builder().shards(4).build(callback).expect("in range");
        let (begin, count) = (Instant::now() + ms(20), 5000);
        let due = |number: u32| begin + number * MS / 10;
        (0..count).for_each(|number| ignore(scheduler.schedule_at(number.into(), due(number), due(number))));
        ignore(scheduler.schedule_at(SLOW, begin + ms(350), begin + ms(350)));
        let all: Vec<_> = (0..=count).map(|_| fired.recv_timeout(PATIENCE).expect("it fires")).collect();
        let is_beside = |due: Instant| due > begin + ms(345) && due < begin + ms(400);
        let beside = all.iter().filter(|&&(key, due, _)| key != SLOW && is_beside(due));
        beside.map(|(_, _, late)| *late).max().expect("there are some")
    };
    let mut latest: Vec<Duration> = (0..50).map(|_| latest_of_a_round()).collect();
    latest.sort_unstable();
    println!("latest of each round: median {:.1?}, 45th of 50 {:.1?}, most {:.1?}", latest[24], latest[44], latest[49]);
}

/// What it costs if some of ten thousand callbacks a second take 20 ms, for ten seconds: processor time of each, and
/// lateness.
#[cfg(target_os = "linux")]
#[test]
#[ignore = "prints what docs/benchmarks/firing.md tells"]
fn what_slow_callbacks_cost() {
    const COUNT: u32 = 100_000;

    let spent = || {
        let tasks = std::fs::read_dir("/proc/self/task").expect("this process has threads");
        let stats = tasks.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("schedstat")).ok());
        stats.filter_map(|stat| stat.split(' ').next()?.parse::<u64>().ok()).sum::<u64>()
    };
    let round = |every: u32| {
        let (sender, fired) = channel();
        let callback = move |number: &u32, due: Instant| {
            let _ = sender.send(due.elapsed());
            if number % every == every - 1 {
                thread::sleep(ms(20));
            }
        };
        let scheduler = Scheduler::builder().shards(2).build(callback).expect("in range");
        let begin = Instant::now() + ms(500);
        let due = |number: u32| begin + number * MS / 10;
        (0..COUNT).for_each(|number| ignore(scheduler.schedule_at(number, due(number), due(number))));
        let before = spent();
        thread::sleep((due(COUNT) + ms(50)).duration_since(Instant::now()));
        let each = (spent() - before) / u64::from(COUNT);
        let mut late: Vec<_> = fired.try_iter().collect();
        late.sort_unstable();
        assert_eq!(late.len(), COUNT as usize);
        (each, late[COUNT as usize / 100 * 99], late[COUNT as usize / 1000 * 999])
    };
    let rates = [0, 2, 5, 10];
    let of_rate = |slow: u32| round((COUNT / 10).checked_div(slow).unwrap_or(u32::MAX));
    let rounds = [(); 3].map(|()| rates.map(of_rate));
    for (place, slow) in rates.into_iter().enumerate() {
        let mut figures = rounds.each_ref().map(|round| round[place]);
        figures.sort_unstable();
        let [(least, ..), (each, p99, p999), (most, ..)] = figures;
        println!("{slow} a second: {each} ns each ({least} to {most}), p99 {p99:.2?}, p99.9 {p999:.2?}");
    }
}

/// The shard of key 0 is blocked; the keys of all others fire in time.
fn others_are_punctual(
    scheduler: &Scheduler<u64, bool>,
    fired: &Receiver<(u64, thread::ThreadId, Instant)>,
    homes: &HashMap<u64, thread::ThreadId>,
) {
    let deadline = Instant::now() + ms(20);
    let others: HashSet<u64> = (1..64).filter(|key| homes[key] != homes[&0]).collect();
    (1..64).for_each(|key| ignore(scheduler.schedule_at(key, false, deadline).expect("open and not full")));
    let mut seen = HashSet::new();
    for _ in 0..others.len() {
        let (key, _, at) = fired.recv_timeout(PATIENCE).expect("it fires");
        assert!(at < deadline + SOON, "{:?} late beside a blocked shard", at - deadline);
        seen.insert(key);
    }
    assert_eq!(seen, others);
    assert!((1..64).filter(|key| !others.contains(key)).all(|key| scheduler.contains(&key)));
}

// 7. The clock.

#[test]
fn promise_07_the_clock_may_step_back() {
    let (scheduler, clock) = quiet_manual();
    schedule(&scheduler, 1, ms(10));
    assert_eq!(clock.advance(ms(5)), 0);
    clock.step_back(ms(3));
    assert_eq!(scheduler.remaining(&1), Some(ms(8)), "timers keep their deadlines");
    let before = clock.now();
    schedule(&scheduler, 2, ms(1));
    assert_eq!(clock.advance(ms(8) - Duration::from_nanos(1)), 1, "key 2; it counts from the worker's time");
    assert!(clock.now() >= before + MS && scheduler.contains(&1), "never early");
    assert_eq!(clock.advance(Duration::from_nanos(1)), 1);
    assert!(scheduler.stats().clock_regressions >= 1, "counted");
    clock.step_back(Duration::MAX);
    schedule(&scheduler, 3, ms(1));
    assert_eq!(clock.advance(ms(20)), 1);
}

/// If a callback steps the clock back while time moves, time goes on from there: to the next deadline, or to where it
/// was going.
#[test]
fn promise_07_the_clock_may_step_back_in_a_callback() {
    let own = Arc::new(OnceLock::<ManualClock>::new());
    let seen = Arc::clone(&own);
    let builder = Scheduler::builder().shards(1);
    let (scheduler, clock) = builder
        .build_manual(move |&key: &u64, ()| {
            let clock = seen.get().expect("set below");
            if key == 1 {
                clock.step_back(ms(6));
            }
        })
        .unwrap();
    own.set(clock.clone()).expect("set once");
    let start = clock.now();
    let at = || clock.now() - start;
    schedule(&scheduler, 1, ms(10));
    schedule(&scheduler, 2, ms(15));
    assert_eq!((clock.advance(ms(12)), at()), (1, ms(12)));
    assert_eq!((clock.advance(ms(3)), at()), (1, ms(15)), "never early");
    schedule(&scheduler, 1, ms(10));
    assert_eq!((clock.advance_to_next(), at()), (Some(ms(4)), ms(19)));
    assert!(scheduler.stats().clock_regressions >= 1, "counted");
}

#[test]
fn promise_07_the_clock_of_a_new_timer_is_read_fresh() {
    let (sender, fired) = channel();
    let scheduler =
        Scheduler::builder().shards(1).build(move |_: &u64, due: Instant| sender.send(Instant::now() >= due).unwrap());
    let scheduler = scheduler.expect("in range");
    for pause in [0, 30, 60] {
        // The worker's own idea of the time is old by now.
        thread::sleep(ms(pause));
        let delay = ms(40);
        scheduler.schedule_with(pause, Instant::now() + delay, delay).expect("it is open and not full");
        assert_eq!(fired.recv_timeout(PATIENCE), Ok(true));
    }
}

#[test]
fn promise_07_after_a_stall_everything_overdue_fires_and_the_rest_is_punctual() {
    let (sender, fired) = channel();
    let callback = move |key: &u64, deadline: Instant| {
        let _ = sender.send((*key, deadline, Instant::now()));
        if *key == 0 {
            thread::sleep(ms(300));
        }
    };
    // Key 0 stalls the worker itself.
    let scheduler = Scheduler::builder().shards(1).executor(Executor::Inline).build(callback).expect("in range");
    let begin = Instant::now();
    let at = |key: u64| begin + if key == 0 { MS } else { ms(20 * key) };
    (0..40).for_each(|key| ignore(scheduler.schedule_at(key, at(key), at(key)).expect("open and not full")));
    let mut stalled_until = begin;
    for _ in 0..40 {
        let (key, deadline, time) = fired.recv_timeout(PATIENCE).expect("nothing is lost");
        assert!(time >= deadline, "never early");
        stalled_until = if key == 0 { time + ms(300) } else { stalled_until };
        assert!(time < deadline.max(stalled_until) + SOON, "{key} was {:?} late", time - deadline);
    }
}

// 8. Idle costs nothing.

#[test]
fn promise_08_idle_costs_nothing() {
    let scheduler = Scheduler::builder().shards(2).tick(Duration::from_micros(10)).build(|_: &u64, ()| {});
    let scheduler = scheduler.expect("in range");
    (0..1_000).for_each(|key| ignore(schedule(&scheduler, key, HOUR + ms(key))));
    (0..500).for_each(|key| ignore(scheduler.cancel(&key)));
    // On a busy machine they may not all have gone to sleep yet.
    eventually("nobody wakes while nothing is due", || {
        let before = wake_ups(&scheduler);
        thread::sleep(ms(1_000));
        wake_ups(&scheduler) == before
    });
}

#[test]
fn promise_08_cancelled_timers_wake_nobody() {
    let scheduler = quiet();
    (0..200).for_each(|key| ignore(schedule(&scheduler, key, ms(1_000 + key))));
    (0..200).for_each(|key| assert_eq!(scheduler.cancel(&key), Some(())));
    let before = wake_ups(&scheduler);
    thread::sleep(ms(1_400));
    // The worker may have gone to sleep until the first of them already; one wake-up lets it know of all.
    assert!(wake_ups(&scheduler) <= before + 2, "{} wake-ups", wake_ups(&scheduler) - before);
}

#[test]
fn promise_08_moving_later_wakes_nobody() {
    let scheduler = quiet();
    (0..100).for_each(|key| ignore(schedule(&scheduler, key, ms(300))));
    thread::sleep(ms(50));
    let before = wake_ups(&scheduler);
    for round in 0..100 {
        (0..100).for_each(|key| assert!(scheduler.reschedule(&key, HOUR + ms(round))));
    }
    thread::sleep(ms(600));
    assert!(wake_ups(&scheduler) <= before + 3, "{} wake-ups", wake_ups(&scheduler) - before);
}

#[test]
fn promise_08_an_earlier_deadline_wakes() {
    let (sender, fired) = channel();
    let scheduler =
        Scheduler::builder().shards(1).build(move |key: &u64, ()| ignore(sender.send((*key, Instant::now()))));
    let scheduler = scheduler.expect("in range");
    schedule(&scheduler, 0, HOUR);
    for round in 1..=20 {
        // Now the worker sleeps for an hour.
        thread::sleep(ms(10));
        let deadline = Instant::now() + ms(5);
        if round % 2 == 0 {
            assert!(scheduler.reschedule(&0, ms(5)));
        } else {
            schedule(&scheduler, round, ms(5));
        }
        let (key, at) = fired.recv_timeout(PATIENCE).expect("it fires");
        assert!(at >= deadline && at < deadline + SOON, "{:?} late", at - deadline);
        if key == 0 {
            schedule(&scheduler, 0, HOUR);
        }
    }
}

// 9. Slow or panicking callbacks.

/// A panic's payload that panics again when it is dropped.
struct Bomb;

impl Drop for Bomb {
    fn drop(&mut self) {
        if !thread::panicking() {
            panic!("on purpose: a payload's drop");
        }
    }
}

/// A value whose drop panics.
struct Grenade(bool);

impl Drop for Grenade {
    fn drop(&mut self) {
        if self.0 && !thread::panicking() {
            panic!("on purpose: a value's drop");
        }
    }
}

fn panic_somehow(key: u64) {
    match key % 4 {
        0 => panic!("on purpose"),
        1 => panic_any(Bomb),
        2 => panic_any(key),
        _ => {}
    }
}

/// Indices into `builders`.
const ONE_THREAD: usize = 1;
const INLINE: usize = 2;

/// One for each way to run callbacks; the first is the default.
fn builders<K: Hash + Eq + Send + Sync + 'static, V: Send + 'static>() -> Vec<Builder<K, V>> {
    let pool = rayon::ThreadPoolBuilder::new().num_threads(1).build().expect("a small pool");
    let custom = Executor::custom(|job| drop(thread::spawn(move || job.run())));
    let executors = [Executor::Rayon(Arc::new(pool)), Executor::Inline, custom];
    let with = |executor| Scheduler::builder().executor(executor);
    [Scheduler::builder()].into_iter().chain(executors.map(with)).collect()
}

#[test]
fn promise_09_panicking_callbacks() {
    hush_callbacks();
    for builder in builders() {
        let (ran, hooked) = (Arc::new(AtomicUsize::new(0)), Arc::new(Mutex::new(Vec::new())));
        let (seen, seen_by_hook) = (Arc::clone(&ran), Arc::clone(&hooked));
        let hook = move |key: &u64, payload: Box<dyn std::any::Any + Send>| {
            if payload.downcast_ref::<u64>().is_none_or(|told| told == key) {
                lock(&seen_by_hook).push(*key);
            }
            // Every eighth time the hook panics as well.
            assert!(!key.is_multiple_of(8), "on purpose: the hook");
        };
        let builder = builder.shards(1).on_panic(hook);
        let callback = move |key: &u64, ()| {
            seen.fetch_add(1, SeqCst);
            panic_somehow(*key);
        };
        let scheduler = builder.build(callback).expect("in range");
        let at = Instant::now() + ms(20);
        (0..400).for_each(|key| ignore(scheduler.schedule_at(key, (), at).expect("open and not full")));
        eventually("all have run", || scheduler.stats().callback_panics == 300 && ran.load(SeqCst) == 400);
        eventually("the hook gets each with its own payload", || lock(&hooked).len() == 300);
        schedule(&scheduler, 3, MS);
        eventually("and it goes on", || ran.load(SeqCst) == 401);
    }
}

#[test]
fn promise_09_panics_without_a_hook_and_in_drops() {
    hush_callbacks();
    for builder in builders() {
        let ran = Arc::new(AtomicUsize::new(0));
        let seen = Arc::clone(&ran);
        let callback = move |key: &u64, value: Grenade| {
            seen.fetch_add(1, SeqCst);
            panic_somehow(*key);
            drop(value);
        };
        let scheduler = builder.shards(1).build(callback).expect("in range");
        let at = Instant::now() + ms(10);
        for key in 0..400 {
            scheduler.schedule_at(key, Grenade(key % 4 == 3), at).expect("it is open and not full");
        }
        eventually("all have run", || scheduler.stats().callback_panics == 400 && ran.load(SeqCst) == 400);
        scheduler.schedule_with(1_000, Grenade(true), HOUR).expect("it is open and not full");
        assert_eq!(scheduler.close(Close::Discard).discarded, 1, "though its value panics");
    }
}

#[test]
fn promise_09_callbacks_may_call_any_operation() {
    for builder in builders() {
        let own: Arc<OnceLock<WeakScheduler<u64, u64>>> = Arc::default();
        let (seen, (sender, done)) = (Arc::clone(&own), channel());
        let callback = move |key: &u64, round: u64| {
            let scheduler = seen.get().and_then(WeakScheduler::upgrade).expect("it is open");
            call_everything(&scheduler, *key, round);
            let _ = sender.send(round);
        };
        let scheduler = builder.shards(1).build(callback).expect("in range");
        own.set(scheduler.downgrade()).expect("set once");
        scheduler.schedule_with(1, 0, MS).expect("it is open and not full");
        (0..5).for_each(|round| assert_eq!(done.recv_timeout(PATIENCE), Ok(round)));
        assert!(done.recv_timeout(PATIENCE).is_ok_and(|round| round == 5));
        eventually("the last one has closed it", || scheduler.is_closed());
    }
}

/// Makes every call on the callback's own key, which is free already, and then starts the next round.
fn call_everything(scheduler: &Scheduler<u64, u64>, key: u64, round: u64) {
    assert!(!scheduler.contains(&key) && scheduler.remaining(&key).is_none());
    assert!(!scheduler.reschedule(&key, HOUR) && !scheduler.expire_now(&key));
    assert_eq!(scheduler.cancel(&key), None);
    let (replaced, timer) = scheduler.schedule_with_handle(key, 99, HOUR).expect("it is open and not full");
    assert!(replaced.is_none() && timer.reschedule(2 * HOUR) && timer.is_pending());
    assert_eq!(scheduler.schedule_with(key, 98, HOUR).expect("it is open and not full"), Some(99));
    assert_eq!((scheduler.len(), scheduler.drain(|_, value| assert_eq!(value, 98))), (1, 1));
    let _ = scheduler.stats();
    if round < 5 {
        scheduler.schedule_with(key, round + 1, MS).expect("it is open and not full");
    } else {
        assert_eq!(scheduler.close(Close::Return).returned.len(), 0);
    }
}

#[test]
fn promise_09_callbacks_may_call_any_operation_on_the_manual_clock() {
    let own: Arc<OnceLock<WeakScheduler<u64, u64>>> = Arc::default();
    let (slot, seen) = (ClockSlot::default(), Arc::clone(&own));
    let (clocks, rounds) = (slot.clone(), Arc::new(AtomicU64::new(0)));
    let count = Arc::clone(&rounds);
    let callback = move |key: &u64, round: u64| {
        let scheduler = seen.get().and_then(WeakScheduler::upgrade).expect("it is open");
        assert_eq!(clocks.advance(MS), 0, "time moves already");
        call_everything(&scheduler, *key, round);
        count.fetch_add(1, SeqCst);
    };
    let (scheduler, clock) = Scheduler::builder().build_manual(callback).expect("in range");
    slot.set(&clock);
    own.set(scheduler.downgrade()).expect("set once");
    scheduler.schedule_with(1, 0, MS).expect("it is open and not full");
    assert_eq!(within(PATIENCE, "it ends", move || clock.advance(ms(100))), 6);
    assert_eq!((rounds.load(SeqCst), scheduler.is_closed(), scheduler.stats().callback_panics), (6, true, 0));
}

#[test]
fn promise_09_a_slow_callback_holds_up_no_expiry() {
    for (executor, builder) in builders().into_iter().enumerate().filter(|(executor, _)| *executor != INLINE) {
        let (gate, ran) = (Arc::new(Gate::default()), Arc::new(AtomicUsize::new(0)));
        let (seen, count) = (Arc::clone(&gate), Arc::clone(&ran));
        let callback = move |key: &u64, ()| if *key == 0 { seen.pass() } else { ignore(count.fetch_add(1, SeqCst)) };
        let scheduler = builder.shards(1).build(callback).expect("in range");
        let _opener = Opener(&gate);
        // A blocked callback does not hold up a caller that fires it, either.
        schedule(&scheduler, 0, HOUR);
        let caller = scheduler.clone();
        assert!(within(PATIENCE, "expire_now", move || caller.expire_now(&0)), "executor {executor}");
        eventually("it blocks", || gate.arrived() == 1);
        (1..=100).for_each(|key| ignore(schedule(&scheduler, key, ms(5))));
        eventually("the others expire", || scheduler.stats().fired == 101);
        if executor == ONE_THREAD || rayon::current_num_threads() == 1 {
            gate.open();
        }
        eventually("the others run", || ran.load(SeqCst) == 100);
    }
}

// 10. Bounded memory.

#[test]
fn promise_10_a_full_scheduler_returns_key_and_value() {
    let builder = Scheduler::builder().capacity(3);
    let (scheduler, clock) = builder.build_manual(|_: &u64, _: String| {}).expect("in range");
    let put = |key: u64| scheduler.schedule_with(key, format!("value {key}"), ms(key));
    (1..=3).for_each(|key| assert!(matches!(put(key), Ok(None))));
    let refused = put(4).expect_err("it is full");
    assert!(refused.is_full() && matches!(&refused, ScheduleError::Full(4, _)));
    assert_eq!(refused.into_inner(), (4, "value 4".to_owned()));
    assert_eq!(put(2).expect("it replaces"), Some("value 2".to_owned()));
    assert!(put(4).is_err());
    assert_eq!(clock.advance(ms(1)), 1);
    assert!(put(4).is_ok() && put(5).is_err());
    assert!(scheduler.expire_now(&4) && put(5).is_ok() && put(6).is_err());
    assert_eq!(scheduler.drain(|_, _| {}), 3);
    assert!(put(7).is_ok());
    assert_eq!(scheduler.stats().rejected, 4);
}

#[test]
fn promise_10_the_capacity_is_exact_for_many_threads() {
    for capacity in [1, 7, 1_000] {
        let scheduler = Scheduler::builder().capacity(capacity).build(|_: &u64, ()| {}).expect("in range");
        let accepted = AtomicUsize::new(0);
        thread::scope(|scope| {
            for caller in 0..4u64 {
                let (scheduler, accepted) = (&scheduler, &accepted);
                scope.spawn(move || {
                    let ok = (0..1_000).filter(|i| scheduler.schedule(caller * 1_000 + i, HOUR).is_ok());
                    accepted.fetch_add(ok.count(), SeqCst);
                });
            }
        });
        assert_eq!((accepted.load(SeqCst), scheduler.len()), (capacity, capacity));
        assert_eq!(scheduler.drain(|_, ()| {}), capacity);
        let again = (0..2_000).filter(|&key| scheduler.schedule(key, HOUR).is_ok()).count();
        assert_eq!(again, capacity, "all of it can be used again, from one thread");
    }
}

#[test]
fn promise_10_replacing_takes_no_room_from_others() {
    let scheduler = Scheduler::builder().capacity(2).build(|_: &u64, ()| {}).expect("in range");
    schedule(&scheduler, 1, HOUR);
    thread::scope(|scope| {
        scope.spawn(|| (0..100_000).for_each(|_| assert!(scheduler.schedule(1, HOUR).is_ok())));
        for _ in 0..100_000 {
            assert!(scheduler.schedule(2, HOUR).is_ok(), "one of two was pending");
            assert_eq!(scheduler.cancel(&2), Some(()));
        }
    });
}

#[test]
fn promise_10_giving_way_takes_no_room() {
    let scheduler = Scheduler::builder().capacity(2).build(|_: &u64, ()| {}).expect("in range");
    thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                for _ in 0..30_000 {
                    // Other threads may be about to give way; then it may be full for a moment.
                    if scheduler.schedule_if_absent(1, (), HOUR).is_ok_and(|answer| answer.has_started()) {
                        ignore(scheduler.cancel(&1));
                    }
                }
            });
        }
    });
    assert!(scheduler.is_empty());
    schedule(&scheduler, 1, HOUR);
    schedule(&scheduler, 2, HOUR);
    assert_eq!(scheduler.schedule_if_absent(1, (), HOUR), Ok(IfAbsent::Exists(())), "there is one");
    assert!(scheduler.schedule_if_absent(3, (), HOUR).is_err_and(|error| error.is_full()));
}

#[test]
fn promise_10_a_cancelled_value_is_back_at_once() {
    let values = Ledger::default();
    let (scheduler, _clock) = Scheduler::builder().build_manual(|_: &u64, _| {}).expect("in range");
    for id in 0..100 {
        scheduler.schedule_with(id, values.token(id), 24 * HOUR).expect("it is open and not full");
    }
    assert_eq!(values.alive(), 100);
    (0..100).for_each(|id| ignore(scheduler.cancel(&id)));
    assert_eq!(values.alive(), 0);
}

// 11. No panicking inputs.

fn odd_durations() -> Vec<Duration> {
    let powers = [0, 1, 9, 31, 36, 42, 53, 62, 63].map(|bit| 1u64 << bit);
    let mut all: Vec<_> = powers.iter().flat_map(|&n| [Duration::from_nanos(n), Duration::from_secs(n)]).collect();
    all.extend([Duration::ZERO, Duration::MAX, Duration::MAX - Duration::from_nanos(1), Duration::from_secs(u64::MAX)]);
    all
}

#[test]
fn promise_11_no_panicking_inputs() {
    for tick in [Duration::from_micros(10), ms(1), HOUR] {
        for first_tick in FIRST_TICKS.into_iter().chain([1 << 36, 1 << 62, 1 << 63]) {
            let builder = Scheduler::builder().tick(tick).first_tick(first_tick).shards(1);
            let (scheduler, clock) = builder.build_manual(|_: &u64, ()| {}).expect("in range");
            odd_inputs(&scheduler, &clock);
        }
    }
}

fn odd_inputs(scheduler: &Unit, clock: &ManualClock) {
    for (key, delay) in odd_durations().into_iter().enumerate() {
        let key = key as u64;
        schedule(scheduler, key, delay);
        assert!(scheduler.remaining(&key).is_some_and(|left| left >= delay.min(Duration::from_secs(1 << 33))));
        assert!(scheduler.reschedule(&key, delay));
        for instant in [clock.now().checked_add(delay), clock.now().checked_sub(delay)].into_iter().flatten() {
            assert!(scheduler.reschedule_at(&key, instant));
            assert!(scheduler.schedule_at(key, (), instant).is_ok());
        }
        let (_, timer) = scheduler.schedule_with_handle(key, (), delay).expect("it is open and not full");
        assert!(timer.reschedule(delay) && timer.remaining().is_some());
        let instants = [clock.now().checked_add(delay), clock.now().checked_sub(delay)];
        instants.into_iter().flatten().for_each(|instant| assert!(timer.reschedule_at(instant)));
        assert!(timer.reschedule(delay));
    }
    let far = scheduler.len();
    assert!(clock.advance(Duration::from_secs(3 * 3600)) < far);
    assert!(scheduler.contains(&(odd_durations().len() as u64 - 3)), "Duration::MAX waits on");
    clock.step_back(Duration::MAX);
    let _ = clock.now();
    odd_durations().iter().for_each(|&by| clock.step_back(by));
    assert_eq!(scheduler.close(Close::Return).returned.len(), scheduler.stats().returned as usize);
}

#[test]
fn promise_11_time_may_run_to_its_end() {
    let (scheduler, clock) = quiet_manual();
    schedule(&scheduler, 1, Duration::MAX);
    schedule(&scheduler, 2, Duration::from_secs(400 * 365 * 24 * 3600));
    assert_eq!(clock.advance(Duration::MAX), 1);
    assert_eq!(clock.advance(Duration::MAX), 0);
    let _ = (clock.now(), scheduler.remaining(&1), schedule(&scheduler, 3, MS));
    assert_eq!(scheduler.cancel(&1), Some(()));
}

#[test]
fn promise_11_zero_is_the_next_tick_and_max_is_never() {
    for first_tick in FIRST_TICKS {
        let builder = Scheduler::builder().first_tick(first_tick);
        let (scheduler, clock) = builder.build_manual(|_: &u64, ()| {}).expect("in range");
        schedule(&scheduler, 1, Duration::ZERO);
        schedule(&scheduler, 2, Duration::MAX);
        scheduler.schedule_at(3, (), clock.now()).expect("it is open and not full");
        if let Some(past) = clock.now().checked_sub(HOUR) {
            scheduler.schedule_at(3, (), past).expect("it is open and not full");
        }
        assert_eq!(clock.advance(Duration::ZERO), 0, "not at the present tick");
        assert_eq!(clock.advance(MS), 2);
        assert_eq!(scheduler.remaining(&2), Some(Duration::MAX));
        assert_eq!(clock.advance(Duration::from_secs(1 << 33)), 0);
        assert!(scheduler.reschedule(&2, MS) && scheduler.reschedule(&2, Duration::MAX));
        assert_eq!(clock.advance_to_next(), None);
        assert_eq!(scheduler.cancel(&2), Some(()));
    }
}

/// Types of size zero, and of a large alignment.
#[test]
fn promise_11_any_type_will_do() {
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
    #[repr(align(512))]
    struct Wide(u8);
    let seen = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&seen);
    let callback = move |key: &Wide, value: Wide| {
        assert_eq!((key.0 ^ value.0, std::ptr::from_ref(key).addr() % 512), (0xff, 0));
        count.fetch_add(1, SeqCst);
    };
    let (scheduler, clock) = Scheduler::builder().build_manual(callback).expect("in range");
    (0..=255).for_each(|id| assert!(scheduler.schedule_with(Wide(id), Wide(!id), MS).is_ok()));
    assert_eq!((clock.advance(MS), seen.load(SeqCst)), (256, 256));
    let (scheduler, clock) = Scheduler::<()>::builder().build_manual(|_, ()| {}).expect("in range");
    assert!(scheduler.schedule((), MS).is_ok_and(|replaced| replaced.is_none()));
    assert!(scheduler.schedule((), MS).is_ok_and(|replaced| replaced.is_some()));
    assert_eq!(clock.advance(MS), 1);
}

/// If the answer is `None`, time has not moved.
#[test]
fn promise_11_advance_to_next_stands_still_if_nothing_ever_fires() {
    let (scheduler, clock) = quiet_manual();
    let start = clock.now();
    assert_eq!(clock.advance_to_next(), None);
    (0..5_000).for_each(|key| ignore(schedule(&scheduler, key, HOUR)));
    (0..5_000).for_each(|key| ignore(scheduler.cancel(&key)));
    assert_eq!((clock.advance_to_next(), clock.now()), (None, start), "all were cancelled");
    schedule(&scheduler, 1, Duration::from_secs(1_000 * 365 * 24 * 3600));
    schedule(&scheduler, 2, Duration::from_nanos(u64::MAX));
    schedule(&scheduler, 3, Duration::from_nanos(u64::MAX - 1));
    assert_eq!((clock.advance_to_next(), clock.now()), (None, start), "due after the end of the clock");
    let last = Duration::from_nanos(u64::MAX) - MS;
    schedule(&scheduler, 4, last);
    assert!(clock.advance_to_next().is_some_and(|moved| moved >= last && moved < last + MS));
}

#[test]
fn promise_11_far_timers_leave_real_workers_alive() {
    for tick in [Duration::from_micros(10), HOUR] {
        let fired = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&fired);
        let builder = Scheduler::builder().tick(tick).shards(1).first_tick(FIRST_TICKS[3]);
        let scheduler = builder.build(move |key: &u64, ()| seen.store(*key == 1_000, SeqCst)).expect("in range");
        for (key, delay) in odd_durations().into_iter().enumerate().filter(|(_, delay)| *delay > 24 * HOUR) {
            schedule(&scheduler, key as u64, delay);
        }
        thread::sleep(ms(20));
        schedule(&scheduler, 1_000, Duration::ZERO);
        if tick < MS {
            eventually("the worker lives", || fired.load(SeqCst));
        } else {
            assert!(scheduler.expire_now(&1_000), "in an hour it would");
        }
        within(PATIENCE, "the worker ends", move || drop(scheduler));
    }
}

// 12. After close.

#[test]
fn promise_12_after_close_every_call_answers_as_on_an_empty_scheduler() {
    for close in [Close::Discard, Close::FireNow, Close::Return] {
        let scheduler = quiet();
        let (_, timer) = scheduler.schedule_with_handle(1, (), HOUR).expect("it is open and not full");
        schedule(&scheduler, 2, Duration::MAX);
        let closed = scheduler.close(close);
        assert_eq!(closed.discarded + closed.fired + closed.returned.len(), 2);
        let refused = scheduler.schedule(1, MS).expect_err("it is closed");
        assert!(refused.is_closed() && matches!(refused, ScheduleError::Closed(1, ())));
        assert!(scheduler.schedule_at(1, (), Instant::now()).is_err_and(|error| error.is_closed()));
        assert!(scheduler.schedule_with_handle(1, (), MS).is_err_and(|error| error.is_closed()));
        assert!(scheduler.schedule_at_with_handle(1, (), Instant::now()).is_err_and(|error| error.is_closed()));
        assert!(scheduler.schedule_if_absent(1, (), MS).is_err_and(|error| error.is_closed()));
        assert!(!scheduler.reschedule(&1, MS) && !scheduler.reschedule_at(&1, Instant::now()));
        assert!(scheduler.cancel(&1).is_none() && !scheduler.contains(&1) && scheduler.remaining(&1).is_none());
        assert!(!scheduler.expire_now(&1) && scheduler.is_empty() && scheduler.is_closed());
        assert_eq!((scheduler.len(), scheduler.drain(|_, ()| unreachable!("there is nothing"))), (0, 0));
        assert!(!timer.reschedule(MS) && !timer.reschedule_at(Instant::now()) && timer.cancel().is_none());
        assert!(!timer.is_pending() && !timer.expire_now());
        for again in [Close::Discard, Close::FireNow, Close::Return] {
            let closed = scheduler.close(again);
            assert_eq!((closed.discarded, closed.fired, closed.returned.len()), (0, 0, 0));
        }
        assert_eq!(scheduler.stats().rejected, 5);
    }
}

#[test]
fn promise_12_close_returns_what_was_pending_with_its_time() {
    let (scheduler, clock) = Scheduler::builder().build_manual(|_: &u64, _: &str| {}).expect("in range");
    scheduler.schedule_with(1, "a", ms(10)).expect("it is open and not full");
    scheduler.schedule_with(2, "b", Duration::MAX).expect("it is open and not full");
    scheduler.schedule_with(3, "c", ms(2)).expect("it is open and not full");
    clock.advance(ms(4));
    let mut returned = scheduler.close(Close::Return).returned;
    returned.sort_unstable();
    assert_eq!(returned, [(1, "a", ms(6)), (2, "b", Duration::MAX)]);
}

thread_local! {
    /// What to do at the next comparison of `Watched` keys on this thread, once.
    static ON_EQ: RefCell<Option<Box<dyn FnOnce()>>> = const { RefCell::new(None) };
}

struct Watched(Token);

impl PartialEq for Watched {
    fn eq(&self, other: &Self) -> bool {
        let hook = ON_EQ.with(|hook| hook.borrow_mut().take());
        hook.into_iter().for_each(|hook| hook());
        self.0 == other.0
    }
}

impl Eq for Watched {}

impl Hash for Watched {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.hash(state);
    }
}

/// Nine timers.
fn watched(keys: &Ledger) -> Scheduler<Watched> {
    let scheduler = Scheduler::builder().shards(3).build(|_, ()| {}).expect("in range");
    (0..9).for_each(|id| assert!(scheduler.schedule(Watched(keys.token(id)), HOUR).is_ok()));
    scheduler
}

/// A thread that looks `key` up, and is kept at the gate while it compares the key that it has found.
fn reader_at(gate: &Arc<Gate>, scheduler: &Scheduler<Watched>, key: Watched) -> Receiver<bool> {
    let (own, scheduler) = (Arc::clone(gate), scheduler.clone());
    let reader = start(move || {
        ON_EQ.set(Some(Box::new(move || own.pass())));
        scheduler.contains(&key)
    });
    eventually("the reader is there", || gate.arrived() == 1);
    reader
}

/// `close` moves keys out, so it waits for threads that may be looking at one; if that is the closing thread itself,
/// keys stay.
#[test]
fn promise_12_close_returns_no_key_that_somebody_may_be_looking_at() {
    let (keys, closed) = (Ledger::default(), Arc::new(Mutex::new(None)));
    let scheduler = watched(&keys);
    let (own, seen) = (scheduler.clone(), Arc::clone(&closed));
    ON_EQ.set(Some(Box::new(move || *lock(&seen) = Some(own.close(Close::Return)))));
    let _ = scheduler.contains(&Watched(keys.token(5)));
    let told = lock(&closed).take().expect("keys were compared");
    assert_eq!((told.returned.len(), told.discarded, keys.alive()), (0, 9, 9));
    drop(scheduler);
    keys.assert_all_dropped_once();

    let (keys, gate) = (Ledger::default(), Arc::new(Gate::default()));
    let scheduler = watched(&keys);
    let opener = Opener(&gate);
    let reader = reader_at(&gate, &scheduler, Watched(keys.token(5)));
    let closing = start(move || scheduler.close(Close::Return).returned.len());
    assert!(closing.recv_timeout(ms(50)).is_err(), "it waits for the reader");
    drop(opener);
    reader.recv().expect("it does not panic");
    assert_eq!(closing.recv_timeout(PATIENCE), Ok(9));
}

/// As before, for keys of timers that would have come back. They are kept until a call can give them back.
#[test]
fn promise_12_a_later_close_returns_no_key_that_somebody_may_be_looking_at() {
    let (keys, gate, (executor, jobs)) = (Ledger::default(), Arc::new(Gate::default()), keeper());
    let (opener, builder) = (Opener(&gate), Scheduler::builder().shards(3).executor(executor));
    let scheduler: Scheduler<Watched> = builder.build_rearming(|_, ()| Next::After(HOUR)).expect("in range");
    let begin = |id| assert!(scheduler.schedule(Watched(keys.token(id)), HOUR).is_ok());
    (0..9).for_each(|id| {
        begin(id);
        assert!(scheduler.expire_now(&Watched(keys.token(id))));
    });
    let reader = reader_at(&gate, &scheduler, Watched(keys.token(5)));
    assert_eq!(scheduler.close(Close::Return).returned.len(), 0, "they are firing");
    lock(&jobs).drain(..).for_each(|job| job.run());
    let (own, other) = (scheduler.clone(), watched(&keys));
    ON_EQ.set(Some(Box::new(move || assert_eq!(own.close(Close::Return).returned.len(), 0, "it is being looked at"))));
    assert!(other.contains(&Watched(keys.token(5))));
    drop(other);
    let closing = start(move || {
        let keys = scheduler.close(Close::Return).returned;
        (keys.iter().map(|(key, ..)| key.0.id).collect::<HashSet<_>>(), scheduler)
    });
    assert!(closing.recv_timeout(ms(50)).is_err(), "it waits for the reader");
    drop(opener);
    reader.recv().expect("it does not panic");
    let (returned, scheduler) = closing.recv_timeout(PATIENCE).expect("the reader has gone");
    assert_eq!((returned, scheduler.close(Close::Return).returned.len()), ((0..9).collect(), 0));
    drop(scheduler);
    keys.assert_all_dropped_once();
}

/// crossbeam's default collector is for all code of the process; ours is our own.
#[test]
fn promise_12_close_waits_for_no_guard_of_other_code() {
    let (scheduler, _guard) = (watched(&Ledger::default()), crossbeam_epoch::pin());
    let closing = start(move || {
        let _guard = crossbeam_epoch::pin();
        scheduler.close(Close::Return).returned.len()
    });
    assert_eq!(closing.recv_timeout(PATIENCE), Ok(9));
}

#[test]
fn promise_10_a_guard_of_other_code_keeps_no_key_and_no_memory() {
    let (keys, _guard) = (Ledger::default(), crossbeam_epoch::pin());
    let scheduler = Scheduler::<Token>::builder().shards(1).build(|_, ()| {}).expect("in range");
    for id in 0..20_000 {
        assert!(scheduler.schedule(keys.token(id), HOUR).is_ok());
        assert_eq!(scheduler.cancel(&id), Some(()));
    }
    assert!(keys.alive() < 2_000, "{} keys are there yet", keys.alive());
}

#[test]
fn promise_12_dropping_the_last_handle_closes_and_drops_everything_once() {
    let (keys, values) = (Ledger::default(), Ledger::default());
    let scheduler = Scheduler::builder().shards(3).build(|_, _| {}).expect("in range");
    for id in 0..1_000 {
        scheduler.schedule_with(keys.token(id), values.token(id), HOUR).expect("it is open and not full");
    }
    let other = scheduler.clone();
    drop(scheduler);
    assert_eq!((other.len(), values.alive()), (1_000, 1_000));
    within(PATIENCE, "the workers are joined", move || drop(other));
    assert_eq!((keys.alive(), values.alive()), (0, 0));
    keys.assert_none_twice();
    values.assert_none_twice();
}

#[test]
fn promise_12_closing_does_not_wait_for_a_long_tick() {
    // Jobs that nothing runs, more than the worker puts up with; and a long tick.
    let (executor, jobs) = keeper();
    let builder = Scheduler::builder().shards(1).tick(Duration::from_secs(30)).executor(executor);
    let scheduler = builder.build(|_: &u64, ()| {}).expect("in range");
    for key in 0..70_000 {
        schedule(&scheduler, key, HOUR);
        assert!(scheduler.expire_now(&key));
    }
    schedule(&scheduler, 0, MS);
    thread::sleep(ms(100));
    let begin = Instant::now();
    drop(scheduler);
    let took = begin.elapsed();
    lock(&jobs).clear();
    assert!(took < Duration::from_secs(5), "it took {took:?}");
}

/// Nothing runs the callbacks until the scheduler is closed. So the worker stops claiming at some point, and what is
/// due stays pending.
#[test]
fn promise_12_close_decides_about_what_is_due_but_not_handed_over() {
    const TIMERS: u64 = 150_000;
    for how in [Close::Discard, Close::Return] {
        let fired = Arc::new(AtomicU64::new(0));
        let count = Arc::clone(&fired);
        let (sender, jobs) = std::sync::mpsc::channel();
        let executor = Executor::custom(move |job| drop(sender.send(job)));
        let builder = Scheduler::builder().shards(1).executor(executor);
        let scheduler = builder.build(move |_: &u64, ()| _ = count.fetch_add(1, SeqCst)).expect("in range");
        (0..TIMERS).for_each(|key| assert_eq!(schedule(&scheduler, key, Duration::ZERO), None));
        eventually("the worker claims no more", || scheduler.stats().callbacks_waiting >= 65_536);
        let closed = scheduler.close(how);
        let by_close = (closed.discarded + closed.returned.len()) as u64;
        assert!(by_close > 0 && fired.load(SeqCst) == 0, "{how:?}: {by_close}");
        jobs.try_iter().for_each(|job| job.run());
        assert_eq!(by_close + fired.load(SeqCst), TIMERS, "{how:?}: what was handed over still runs");
    }
}

#[test]
fn promise_12_dropping_the_last_handle_inside_a_callback_does_not_deadlock() {
    for builder in builders() {
        let (keys, values) = (Ledger::default(), Ledger::default());
        let own: Arc<Mutex<Option<Scheduler<support::Token, support::Token>>>> = Arc::default();
        let seen = Arc::clone(&own);
        let callback = move |_: &support::Token, _: support::Token| drop(lock(&seen).take());
        let scheduler = builder.shards(2).build(callback).expect("in range");
        for id in 0..100 {
            let delay = if id == 0 { ms(30) } else { HOUR };
            scheduler.schedule_with(keys.token(id), values.token(id), delay).expect("it is open and not full");
        }
        *lock(&own) = Some(scheduler);
        eventually("the callback drops it", || lock(&own).is_none());
        values.assert_all_dropped_once();
        keys.assert_all_dropped_once();
    }
}

/// The manual clock passes each deadline at that deadline's own time, even when it crosses a long empty time.
#[test]
fn promise_07_advance_visits_every_deadline_in_order() {
    let slot = ClockSlot::default();
    let (seen, times) = (slot.clone(), Arc::new(Mutex::new(Vec::new())));
    let log = Arc::clone(&times);
    let built = Scheduler::builder().shards(3).build_manual(move |key: &u64, ()| lock(&log).push((*key, seen.now())));
    let (scheduler, clock) = built.expect("in range");
    slot.set(&clock);
    let start = clock.now();
    let delays = [5, 1, 64, 65, 4_096, 4_097, 10_000_000_000, 300_000, 2];
    delays.iter().for_each(|&delay| ignore(schedule(&scheduler, delay, ms(delay))));
    assert_eq!(clock.advance(ms(20_000_000_000)), delays.len());
    let times = std::mem::take(&mut *lock(&times));
    assert!(times.is_sorted_by_key(|&(_, at)| at));
    assert!(times.iter().all(|&(key, at)| at - start == ms(key)));
}
