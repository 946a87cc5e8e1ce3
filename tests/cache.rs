//! `Cache`: the behaviour of go-zero's cache and of TTL maps, and the faults of theirs that we do not have.

#![cfg(feature = "cache")]

mod support;

use proptest::prelude::*;
use shardwheel::cache::{self, Cache, CacheError, Cause, LoadError, Stats};
use shardwheel::{Executor, Job, ManualClock};
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::convert::Infallible;
use std::hash::{Hash, Hasher};
use std::panic::{AssertUnwindSafe, catch_unwind, panic_any};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::sync::mpsc::channel;
use std::sync::{Arc, Barrier, Mutex, OnceLock, Weak};
use std::thread;
use std::time::{Duration, Instant};
use support::{
    Ends, Gate, HOUR, Ledger, MS, Opener, PATIENCE, Random, Token, eventually, hush_callbacks, ignore, lock, ms, start,
    within,
};

const SECOND: Duration = Duration::from_secs(1);
/// How long something may take that waits for nothing, on a busy machine.
const SOON: Duration = Duration::from_secs(5);

type Numbers = Cache<u64, u64>;
/// What a listener heard.
type Log = Arc<Mutex<Vec<(u64, u64, Cause)>>>;

/// Exact times: no jitter.
fn manual(ttl: Duration) -> (Numbers, ManualClock) {
    Cache::builder(ttl).jitter(0.0).build_manual().expect("the settings are in range")
}

fn logged(ttl: Duration, limit: Option<usize>) -> (Numbers, ManualClock, Log) {
    let builder = Cache::builder(ttl);
    logged_with(if let Some(limit) = limit { builder.limit(limit) } else { builder })
}

fn logged_with(builder: cache::Builder<u64, u64>) -> (Numbers, ManualClock, Log) {
    let log = Log::default();
    let writer = Arc::clone(&log);
    let builder = builder.jitter(0.0).listener(move |&key, &value, cause| lock(&writer).push((key, value, cause)));
    let (cache, clock) = builder.build_manual().expect("the settings are in range");
    (cache, clock, log)
}

fn ends_of(stats: &Stats) -> u64 {
    stats.expired + stats.replaced + stats.removed + stats.evicted
}

// Expiry.

#[test]
fn an_entry_is_there_until_its_deadline_and_not_a_nanosecond_longer() {
    let (cache, clock) = manual(5 * SECOND);
    clock.advance(Duration::from_nanos(123_456_789));
    cache.insert(1, 10);
    clock.advance(5 * SECOND - Duration::from_nanos(1));
    assert_eq!((cache.get(&1), cache.contains(&1)), (Some(10), true));
    clock.advance(Duration::from_nanos(1));
    assert_eq!((cache.get(&1), cache.contains(&1)), (None, false));
}

/// TTL maps with a cached clock read up to a second in the past.
#[test]
fn no_expired_value_is_to_be_seen_not_even_within_the_tick() {
    let builder = Numbers::builder(SECOND).jitter(0.0).tick(HOUR);
    let (cache, clock) = builder.build_manual().unwrap();
    (1..5).for_each(|key| ignore(cache.insert(key, 10)));
    clock.advance(SECOND);
    assert_eq!(cache.len(), 4, "the tick is not over");
    assert_eq!((cache.get(&1), cache.contains(&1)), (None, false));
    assert_eq!(cache.insert(2, 11), None);
    assert_eq!(cache.remove(&3), None);
    assert_eq!(cache.get_or_insert_with(4, || 11), 11);
    let stats = cache.stats();
    assert_eq!((stats.expired, stats.replaced, stats.removed), (3, 0, 0), "they expired, whoever took them out");
    clock.advance(HOUR);
    assert_eq!((cache.len(), cache.stats().expired), (0, 6));
}

#[test]
fn an_entry_has_a_time_of_its_own() {
    let (cache, clock) = manual(HOUR);
    cache.insert_with_ttl(1, 10, SECOND);
    cache.insert_with_ttl(2, 20, 2 * SECOND);
    cache.insert(3, 30);
    cache.insert_with_ttl(4, 40, Duration::MAX);
    cache.insert_with_ttl(5, 50, Duration::ZERO);
    assert_eq!(cache.get(&5), None);
    clock.advance(SECOND);
    assert_eq!([1, 2, 3].map(|key| cache.get(&key)), [None, Some(20), Some(30)]);
    clock.advance(HOUR);
    assert_eq!([2, 3].map(|key| cache.get(&key)), [None, None]);
    clock.advance(1_000_000 * HOUR);
    assert_eq!((cache.get(&4), cache.len()), (Some(40), 1));
}

/// go-zero's timers of entries that are kept alive go off a revolution of the wheel late, or early: with 300 slots of a
/// second and a TTL of 320 s, two in three entries expire 300 s late.
#[test]
fn keeping_an_entry_alive_makes_it_neither_late_nor_early() {
    let (cache, clock, log) = logged(320 * SECOND, None);
    for seed in 0..50 {
        let mut random = Random::new(seed);
        for beat in 0..20 {
            cache.insert(seed, beat);
            clock.advance(Duration::from_millis(random.below(320_000)));
        }
        cache.insert(seed, 20);
        let heard = lock(&log).len();
        clock.advance(320 * SECOND - MS);
        assert_eq!((cache.get(&seed), lock(&log).len()), (Some(20), heard));
        clock.advance(11 * MS);
        assert_eq!((cache.len(), lock(&log).len()), (0, heard + 1), "gone, within a tick");
    }
    assert_eq!((cache.stats().replaced, cache.stats().expired), (50 * 20, 50));
}

#[test]
fn an_old_timer_never_removes_a_newer_value() {
    let (cache, clock, log) = logged(HOUR, None);
    cache.insert_with_ttl(1, 10, SECOND);
    cache.insert(1, 11);
    clock.advance(10 * SECOND);
    assert_eq!((cache.get(&1), cache.len()), (Some(11), 1));
    cache.remove(&1);
    cache.insert_with_ttl(1, 12, 2 * HOUR);
    clock.advance(HOUR);
    assert_eq!(cache.get(&1), Some(12));
    assert_eq!(*lock(&log), [(1, 10, Cause::Replaced), (1, 11, Cause::Removed)]);
}

/// An entry whose timer fired before it was replaced, and whose callback comes late: it ends, the newer one stays.
#[test]
fn a_late_callback_of_an_old_timer_leaves_the_newer_value_alone() {
    let (sender, jobs) = channel::<Job>();
    let executor = Executor::custom(move |job| drop(sender.send(job)));
    let log = Log::default();
    let writer = Arc::clone(&log);
    let cache = Numbers::builder(ms(1)).executor(executor).tick(MS);
    let cache = cache.listener(move |&key, &value, cause| lock(&writer).push((key, value, cause))).build().unwrap();
    cache.insert(1, 10);
    let late = jobs.recv_timeout(PATIENCE).expect("the timer fires");
    assert_eq!(cache.insert_with_ttl(1, 11, HOUR), None);
    late.run();
    assert_eq!((cache.get(&1), cache.len()), (Some(11), 1));
    assert_eq!(*lock(&log), [(1, 10, Cause::Expired)]);
}

/// go-zero's wheel never catches up with what it missed: everything is later from then on, for ever.
#[test]
fn a_stall_makes_nothing_late_that_comes_after_it() {
    let gate = Arc::new(Gate::default());
    let stalled = Arc::clone(&gate);
    let executor = Executor::custom(move |job: Job| {
        stalled.pass();
        job.run();
    });
    let cache = Numbers::builder(ms(5)).jitter(0.0).tick(MS).executor(executor).build().unwrap();
    let opener = Opener(&gate);
    cache.insert(0, 0);
    eventually("the worker is stalled", || gate.arrived() == 1);
    (1..100).for_each(|key| ignore(cache.insert(key, key)));
    eventually("none is to be seen", || (0..100).all(|key| !cache.contains(&key)));
    assert_eq!(cache.len(), 100, "though none was taken out");
    drop(opener);
    eventually("all are taken out", || cache.is_empty());
    assert_eq!(cache.stats().expired, 100);
}

#[test]
fn entries_that_were_put_in_together_do_not_expire_together() {
    let (cache, clock) = Numbers::builder(100 * SECOND).build_manual().unwrap();
    (0..1_000).for_each(|key| ignore(cache.insert_with_ttl(key, key, 100 * SECOND)));
    clock.advance(95 * SECOND - MS);
    assert_eq!(cache.len(), 1_000);
    let moments = std::iter::from_fn(|| clock.advance_to_next()).count();
    assert!(moments > 400, "{moments} moments of 1,000 ticks");
    assert_eq!(cache.len(), 0);
    let (cache, clock) = Numbers::builder(100 * SECOND).build_manual().unwrap();
    (0..1_000).for_each(|key| ignore(cache.insert(key, key)));
    clock.advance(105 * SECOND + 10 * MS);
    assert_eq!(cache.len(), 0, "5 % more at most");
}

// Whatever ends an entry ends its timer.

#[test]
fn no_timer_outlives_its_entry() {
    let builder = Numbers::builder(HOUR).jitter(0.0).limit(1);
    let (cache, clock) = builder.build_manual().unwrap();
    cache.insert(1, 10);
    cache.insert(2, 20);
    cache.insert(2, 21);
    cache.remove(&2);
    let ends = (cache.stats().evicted, cache.stats().replaced, cache.stats().removed);
    assert_eq!(ends, (1, 1, 1));
    assert_eq!(clock.advance_to_next(), None, "nothing is pending");
}

#[test]
fn each_entry_ends_once_and_the_listener_hears_why() {
    let (cache, clock, log) = logged(10 * SECOND, Some(2));
    cache.insert(1, 10);
    cache.insert(1, 11);
    cache.insert(2, 20);
    cache.insert(3, 30);
    assert_eq!(cache.remove(&3), Some(30));
    assert_eq!(cache.remove(&3), None);
    clock.advance(HOUR);
    let heard = [(1, 10, Cause::Replaced), (1, 11, Cause::Evicted), (3, 30, Cause::Removed), (2, 20, Cause::Expired)];
    assert_eq!(*lock(&log), heard);
    let stats = cache.stats();
    assert_eq!((stats.replaced, stats.evicted, stats.removed, stats.expired), (1, 1, 1, 1));
    assert_eq!((stats.inserted, stats.entries), (4, 0));
}

#[test]
fn clearing_ends_every_entry_and_its_timer() {
    let (cache, clock, log) = logged(HOUR, Some(3));
    cache.insert_with_ttl(0, 0, Duration::ZERO);
    (1..3).for_each(|key| ignore(cache.insert(key, 10 * key)));
    cache.clear();
    assert_eq!((cache.len(), clock.advance_to_next()), (0, None));
    let mut heard = lock(&log).clone();
    heard.sort_by_key(|&(key, ..)| key);
    assert_eq!(heard, [(0, 0, Cause::Expired), (1, 10, Cause::Removed), (2, 20, Cause::Removed)]);
    (3..6).for_each(|key| ignore(cache.insert(key, key)));
    assert_eq!((cache.len(), cache.stats().evicted), (3, 0), "all the room is free");
}

#[test]
fn clearing_clones_no_value() {
    struct Precious;
    impl Clone for Precious {
        fn clone(&self) -> Self {
            unreachable!("nobody gets the value")
        }
    }
    let cache = Cache::<u64, _>::builder(HOUR).build().unwrap();
    (0..3).for_each(|key| ignore(cache.insert(key, Precious)));
    cache.clear();
    assert_eq!((cache.len(), cache.stats().removed), (0, 3));
}

/// go-zero's wheel hangs when a callback sets a timer.
#[test]
fn a_listener_may_use_the_cache() {
    within(PATIENCE, "a listener that inserts", || {
        let own = Arc::new(OnceLock::<Weak<Numbers>>::new());
        let seen = Arc::clone(&own);
        let builder = Numbers::builder(SECOND).jitter(0.0).limit(2).listener(move |&key, &value, cause| {
            let cache = seen.get().and_then(Weak::upgrade).expect("the cache is there");
            if cause == Cause::Expired || cause == Cause::Removed {
                cache.insert(key, value + 1);
            }
            assert_eq!(cache.get(&(key + 100)), None);
        });
        let (cache, clock) = builder.build_manual().unwrap();
        let cache = Arc::new(cache);
        own.set(Arc::downgrade(&cache)).unwrap();
        cache.insert(1, 0);
        clock.advance(10 * SECOND + 990 * MS);
        assert_eq!(cache.get(&1), Some(10), "each time it expired it came back");
        assert_eq!((cache.remove(&1), cache.get(&1)), (Some(10), Some(11)));
        (2..9).for_each(|key| ignore(cache.insert(key, 0)));
        assert_eq!((cache.len(), cache.stats().listener_panics), (2, 0));
    });
}

#[test]
fn a_cache_that_is_gone_tells_nobody() {
    let (sender, jobs) = channel::<Job>();
    let executor = Executor::custom(move |job| drop(sender.send(job)));
    let heard = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&heard);
    let value = Arc::new(());
    let builder = Cache::builder(ms(1)).tick(MS).executor(executor);
    let builder = builder.listener(move |_: &u64, _: &Arc<()>, _| ignore(count.fetch_add(1, SeqCst)));
    let cache = builder.build().unwrap();
    let expired = |key| {
        cache.insert(key, Arc::clone(&value));
        jobs.recv_timeout(PATIENCE).expect("the timer fires")
    };
    let (early, late) = (expired(1), expired(2));
    early.run();
    assert_eq!(heard.load(SeqCst), 1);
    drop(cache);
    late.run();
    assert_eq!((heard.load(SeqCst), Arc::strong_count(&value)), (1, 1));
}

#[test]
fn a_panicking_listener_stops_nothing() {
    hush_callbacks();
    let thrown = Ledger::default();
    let ledger = thrown.clone();
    let throw = move |key: &u64, _: &u64, _| panic_any(ledger.token(*key));
    let builder = Cache::builder(SECOND).jitter(0.0).limit(2).listener(throw);
    let (cache, clock) = builder.build_manual().unwrap();
    cache.insert(1, 10);
    assert_eq!(cache.insert(1, 11), Some(10));
    cache.insert(2, 20);
    cache.insert(3, 30);
    assert_eq!(cache.remove(&2), Some(20));
    clock.advance(2 * SECOND);
    let stats = cache.stats();
    assert_eq!((stats.listener_panics, ends_of(&stats), stats.entries), (4, 4, 0));
    cache.insert(4, 40);
    assert_eq!(cache.get(&4), Some(40));
    assert_eq!((thrown.made(), thrown.alive()), (4, 0), "what they throw is not kept");
}

// The limit.

#[test]
fn the_least_recently_used_entry_makes_room() {
    let cache = Numbers::builder(HOUR).limit(2).build().unwrap();
    cache.insert(1, 10);
    cache.insert(2, 20);
    assert_eq!(cache.get(&1), Some(10));
    cache.insert(4, 40);
    assert_eq!([1, 2, 4].map(|key| cache.contains(&key)), [true, false, true]);
}

#[test]
fn a_look_without_a_use_keeps_nothing_and_a_replacement_needs_no_room() {
    let cache = Numbers::builder(HOUR).limit(3).build().unwrap();
    (1..=3).for_each(|key| ignore(cache.insert(key, key)));
    assert!(cache.contains(&1));
    assert_eq!(cache.insert(2, 20), Some(2), "a use, and no room");
    assert_eq!((cache.len(), cache.stats().evicted), (3, 0));
    (4..=5).for_each(|key| ignore(cache.insert(key, key)));
    assert_eq!([1, 2, 3, 4, 5].map(|key| cache.contains(&key)), [false, true, false, true, true]);
}

/// Against a list in the order of use. At most 128 entries are read between two insertions, which is as far as
/// exactness is promised.
#[test]
fn the_order_of_use_is_exact_for_one_thread() {
    for limit in [1, 2, 10, 128] {
        let cache = Numbers::builder(HOUR).limit(limit).build().unwrap();
        let mut used = Vec::new();
        let mut random = Random::new(limit as u64);
        for round in 0..300 {
            for _ in 0..random.below(2 * limit as u64) {
                let key = random.below(2 * limit as u64);
                if cache.get(&key).is_some() {
                    used.retain(|&other| other != key);
                    used.push(key);
                }
            }
            let key = random.below(3 * limit as u64);
            cache.insert(key, round);
            used.retain(|&other| other != key);
            used.push(key);
            if used.len() > limit {
                let victim = used.remove(0);
                assert!(!cache.contains(&victim), "limit {limit}, round {round}: {victim} should have gone");
            }
            assert_eq!(cache.len(), used.len());
        }
    }
}

/// The last of them that an insertion looks at may be the one.
#[test]
fn the_order_of_use_is_exact_among_as_many_as_were_read() {
    const READ: u64 = 128;
    let cache = Numbers::builder(HOUR).limit(READ as usize + 1).build().unwrap();
    (0..=READ).for_each(|key| ignore(cache.insert(key, key)));
    (0..READ).for_each(|key| assert_eq!(cache.get(&key), Some(key)));
    cache.insert(READ + 1, 0);
    assert_eq!((0..=READ).find(|key| !cache.contains(key)), Some(READ));
}

/// However many were read, an insertion does a bounded amount of work, and one that was not used lately goes.
#[test]
fn beyond_that_an_old_entry_goes() {
    const LIMIT: u64 = 5_000;
    let cache = Numbers::builder(HOUR).limit(LIMIT as usize).build().unwrap();
    (0..LIMIT).for_each(|key| ignore(cache.insert(key, key)));
    (100..LIMIT).chain(0..100).for_each(|key| assert_eq!(cache.get(&key), Some(key)));
    cache.insert(LIMIT, LIMIT);
    assert_eq!(cache.len(), LIMIT as usize);
    let gone = (0..LIMIT).find(|key| !cache.contains(key));
    assert_eq!(gone, Some(100), "of the 129 that came up, the one read first");
}

/// The figures in `Cache`'s documentation, and in `src/cache/recency.rs`.
#[test]
#[ignore = "prints figures: `cargo test --release --test cache -- --ignored --nocapture`"]
fn what_calls_cost() {
    let full = |count: u64, limit: Option<u64>| {
        let builder = Numbers::builder(HOUR);
        let builder = if let Some(limit) = limit { builder.limit(limit as usize) } else { builder };
        let cache = builder.build().unwrap();
        (0..count).for_each(|key| ignore(cache.insert(key, key)));
        cache
    };
    let timed = |run: &mut dyn FnMut()| {
        let begin = Instant::now();
        run();
        begin.elapsed()
    };
    for count in [1_000, 300_000] {
        let (cache, mut random) = (full(count, None), Random::new(1));
        let keys: Vec<u64> = (0..300_000).map(|_| random.below(count)).collect();
        let each = |run: &dyn Fn(&u64)| timed(&mut || keys.iter().for_each(run)) / keys.len() as u32;
        let hit = each(&|key| assert!(cache.get(key).is_some()));
        let insertion = each(&|key| ignore(cache.insert(*key, *key)));
        println!("among {count}: a hit {hit:?}, an insertion in place of another entry {insertion:?}");
    }
    for limit in [1_000, 100_000] {
        let [unread, read] = [false, true].map(|is_read| {
            let cache = full(limit, Some(limit));
            let insert = |key: u64| {
                if is_read {
                    (key - limit..key).for_each(|key| ignore(cache.get(&key)));
                }
                timed(&mut || ignore(cache.insert(key, key)))
            };
            let mut times: Vec<_> = (limit..limit + 61).map(insert).collect();
            times.sort_unstable();
            times[times.len() / 2]
        });
        println!("an insertion into {limit}, which are full: {unread:?}; if all were read since the last: {read:?}");
    }
}

// Loading.

/// Starts `count` threads that ask a cache for key 1 while the load behind a gate is under way. Returns the cache, how
/// many loads have reached the gate, and what the threads got.
fn ask_together<R: Send + 'static>(
    count: usize,
    ask: impl Fn(&Numbers, &Gate) -> R + Send + Sync + 'static,
) -> (Arc<Numbers>, usize, Vec<thread::Result<R>>) {
    let (cache, gate, ask) = (Arc::new(manual(HOUR).0), Arc::new(Gate::default()), Arc::new(ask));
    let spawn = || {
        let (cache, gate, ask) = (Arc::clone(&cache), Arc::clone(&gate), Arc::clone(&ask));
        thread::spawn(move || ask(&cache, &gate))
    };
    let opener = Opener(&gate);
    let mut threads = vec![spawn()];
    eventually("one is loading", || gate.arrived() == 1);
    threads.extend((1..count).map(|_| spawn()));
    eventually("all have asked", || cache.stats().misses == count as u64);
    // They have missed, and are about to wait.
    thread::sleep(200 * MS);
    drop(opener);
    let answers = threads.into_iter().map(|thread| thread.join()).collect();
    (cache, gate.arrived(), answers)
}

#[test]
fn a_value_is_loaded_once_however_many_ask() {
    let (cache, loads, answers) = ask_together(8, |cache, gate| {
        cache.get_or_insert_with(1, || {
            gate.pass();
            5
        })
    });
    assert!(answers.into_iter().all(|answer| answer.unwrap() == 5));
    assert_eq!((loads, cache.stats().inserted), (1, 1));
}

/// The same in a rush: some come while it is loaded, some a moment too late to wait.
#[test]
fn a_value_is_loaded_once_by_threads_in_a_rush() {
    for round in 0..500 {
        let cache = Numbers::builder(HOUR).build().unwrap();
        let loads = AtomicU64::new(0);
        let barrier = std::sync::Barrier::new(4);
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    barrier.wait();
                    assert_eq!(cache.get_or_insert_with(round, || loads.fetch_add(1, SeqCst)), 0);
                });
            }
        });
        assert_eq!(loads.load(SeqCst), 1, "round {round}");
    }
}

#[test]
fn a_loader_may_choose_the_ttl() {
    let second = 1_000 * MS;
    let (cache, clock) = manual(HOUR);
    assert_eq!(cache.get_or_insert_with_ttl(1, || (10, 5 * second)), 10);
    assert_eq!(cache.get_or_try_insert_with_ttl(2, || Ok::<_, Infallible>((20, Duration::MAX))).unwrap(), 20);
    assert_eq!(cache.get_or_insert_with(3, || 30), 30);
    assert!(cache.get_or_try_insert_with_ttl(4, || Err::<(u64, Duration), _>("it is not there")).is_err());
    clock.advance(5 * second - MS);
    assert_eq!([1, 2, 3, 4].map(|key| cache.get(&key)), [Some(10), Some(20), Some(30), None]);
    clock.advance(MS);
    assert_eq!([1, 2, 3].map(|key| cache.get(&key)), [None, Some(20), Some(30)]);
    clock.advance(HOUR);
    assert_eq!([1, 2, 3].map(|key| cache.get(&key)), [None, Some(20), None]);
    assert_eq!(cache.get_or_insert_with_ttl(1, || (11, 5 * second)), 11, "it is loaded anew");
}

/// The value belongs to no other thread, takes no other entry's place, and does not stay.
#[test]
fn a_value_that_is_loaded_with_a_ttl_of_zero_goes_to_those_who_have_asked() {
    let (cache, loads, answers) = ask_together(8, |cache, gate| {
        cache.get_or_insert_with_ttl(1, || {
            gate.pass();
            (5, Duration::ZERO)
        })
    });
    assert!(answers.into_iter().all(|answer| answer.unwrap() == 5));
    assert_eq!((loads, cache.len(), cache.stats().inserted), (1, 0, 0));
    assert_eq!(cache.get_or_insert_with_ttl(1, || (7, HOUR)), 7, "the next one asks again");

    let (cache, _clock, log) = logged(HOUR, Some(1));
    cache.insert(1, 10);
    assert_eq!(cache.get_or_insert_with_ttl(2, || (20, Duration::ZERO)), 20);
    assert_eq!((cache.get(&1), lock(&log).len()), (Some(10), 0), "nobody has made room for it, or was told");
    let replaces_itself = || {
        cache.insert(3, 30);
        (31, Duration::ZERO)
    };
    assert_eq!(cache.get_or_insert_with_ttl(3, replaces_itself), 30, "what was put in meanwhile comes after the load");
}

#[test]
fn an_error_reaches_all_that_waited_and_stores_nothing() {
    let (cache, loads, answers) = ask_together(8, |cache, gate| {
        cache.get_or_try_insert_with(1, || {
            gate.pass();
            Err("it is not there")
        })
    });
    for answer in answers {
        let error = answer.unwrap().unwrap_err();
        assert!(matches!(&error, LoadError::Failed(error) if **error == "it is not there"));
        assert_eq!(error.to_string(), "the value could not be loaded: it is not there");
    }
    assert_eq!((loads, cache.len(), cache.stats().inserted), (1, 0, 0));
    assert_eq!(cache.get_or_try_insert_with(1, || Ok::<_, Infallible>(5)).unwrap(), 5, "the next one asks again");
}

#[test]
fn those_who_wait_for_a_loader_that_panics_get_an_error_and_the_next_asks_again() {
    hush_callbacks();
    let (cache, _, mut answers) = ask_together(8, |cache, gate| {
        cache.get_or_try_insert_with::<Infallible>(1, || {
            gate.pass();
            panic!("on purpose")
        })
    });
    assert!(answers.remove(0).is_err(), "the loader's own panic goes on");
    assert!(answers.into_iter().all(|answer| matches!(answer.unwrap(), Err(LoadError::Panicked))));
    assert_eq!(cache.len(), 0);
    assert_eq!(cache.get_or_insert_with(1, || 5), 5);
}

#[test]
fn without_an_error_to_return_another_loader_steps_in() {
    hush_callbacks();
    let loads = AtomicU64::new(0);
    let (cache, passed, mut answers) = ask_together(8, move |cache, gate| {
        cache.get_or_insert_with(1, || {
            gate.pass();
            assert!(loads.fetch_add(1, SeqCst) > 0, "on purpose");
            5
        })
    });
    assert!(answers.remove(0).is_err());
    assert!(answers.into_iter().all(|answer| answer.unwrap() == 5));
    assert_eq!((passed, cache.stats().inserted), (2, 1));
}

#[test]
fn those_who_wait_for_an_error_of_another_type_load_themselves() {
    let asked = AtomicU64::new(0);
    let (_, _, mut answers) = ask_together(2, move |cache, gate| {
        if asked.fetch_add(1, SeqCst) == 0 {
            let failing = || {
                gate.pass();
                Err("no")
            };
            return cache.get_or_try_insert_with(1, failing).map_err(drop);
        }
        cache.get_or_try_insert_with(1, || Ok::<_, Infallible>(5)).map_err(drop)
    });
    assert_eq!(answers.remove(0).unwrap(), Err(()));
    assert_eq!(answers.remove(0).unwrap(), Ok(5));
}

#[test]
fn a_loader_may_use_the_cache_even_for_its_own_key() {
    within(PATIENCE, "a loader that asks the cache", || {
        let (cache, _clock) = manual(HOUR);
        let outer =
            cache.get_or_insert_with(1, || cache.get_or_insert_with(1, || 4) + cache.get_or_insert_with(2, || 2));
        assert_eq!((outer, cache.get(&1), cache.get(&2)), (6, Some(6), Some(2)));
    });
}

/// What was read before a change does not become the cache's view of the time after it.
#[test]
fn a_load_does_not_undo_what_comes_after_it() {
    type Change = fn(&Numbers);
    let changes: [(Change, Option<u64>); 4] = [
        (|cache| assert_eq!(cache.insert_with_ttl(1, 8, Duration::ZERO), None), None),
        (|cache| assert_eq!(cache.remove(&1), None), None),
        (|cache| cache.clear(), None),
        (|cache| assert_eq!(cache.insert(1, 8), None), Some(8)),
    ];
    for (change, left) in changes {
        let (cache, _clock, log) = logged(HOUR, None);
        let (cache, gate) = (Arc::new(cache), Arc::new(Gate::default()));
        let opener = Opener(&gate);
        let loading = start({
            let (cache, gate) = (Arc::clone(&cache), Arc::clone(&gate));
            move || {
                cache.get_or_insert_with(1, || {
                    gate.pass();
                    7
                })
            }
        });
        eventually("one is loading", || gate.arrived() == 1);
        cache.insert(2, 2);
        change(&cache);
        assert_eq!(cache.get(&1), left);
        if left.is_none() {
            // A thread that asks from now on does not wait for what was read before.
            let cache = Arc::clone(&cache);
            assert_eq!(start(move || cache.get_or_insert_with(1, || 9)).recv_timeout(SOON), Ok(9));
        }
        drop(opener);
        let there = left.unwrap_or(9);
        assert_eq!((loading.recv_timeout(PATIENCE), cache.get(&1)), (Ok(there), Some(there)));
        assert!(lock(&log).iter().all(|&(_, value, _)| [2, 8].contains(&value)), "what was loaded has not left");
    }
}

#[test]
fn an_insertion_that_overtakes_what_was_loaded_stays() {
    // An expired entry stays until the tick is over, so there is something to compare with.
    let (cache, clock) = Cache::<_, u64>::builder(SECOND).jitter(0.0).tick(HOUR).build_manual().unwrap();
    let cache = Arc::new(cache);
    cache.insert(Hooked(1), 4);
    clock.advance(2 * SECOND);
    let other = Arc::clone(&cache);
    let load = move || {
        // While the loaded value is put in.
        ON_EQ.set(Some(Box::new(move || assert_eq!(other.insert(Hooked(1), 8), None))));
        7
    };
    assert_eq!((cache.get_or_insert_with(Hooked(1), load), cache.get(&Hooked(1))), (8, Some(8)));
    let stats = cache.stats();
    assert_eq!((stats.inserted, stats.expired, stats.entries), (2, 1, 1));
    assert_eq!(cache.remove(&Hooked(1)), Some(8));
    assert_eq!(clock.advance_to_next(), None, "no timer is left");
}

/// The change comes after the last moment at which the load could have known of it before the value was in the map.
/// (The last change: the new entry's own timer ends it.)
#[test]
fn what_is_outdated_while_it_is_put_in_was_never_there() {
    type Change = fn(&Cache<Hooked, u64>, &ManualClock);
    let changes: [(Change, u64); 4] = [
        (|cache, _| assert_eq!(cache.remove(&Hooked(1)), None), 1),
        (|cache, _| cache.clear(), 1),
        (|cache, _| assert_eq!(cache.insert_with_ttl(Hooked(1), 8, Duration::ZERO), None), 2),
        (|_, clock| assert_eq!(clock.advance(HOUR), 2), 1),
    ];
    for (change, inserted) in changes {
        let values = Arc::new(Mutex::new(Vec::new()));
        let heard = Arc::clone(&values);
        // An expired entry stays until the tick is over, so there is something to compare with.
        let builder = Cache::builder(SECOND).jitter(0.0).tick(HOUR);
        let builder = builder.listener(move |_: &Hooked, &value, _| lock(&heard).push(value));
        let (cache, clock) = builder.build_manual().unwrap();
        let cache = Arc::new(cache);
        cache.insert(Hooked(1), 4);
        clock.advance(2 * SECOND);
        let (other, own_clock) = (Arc::clone(&cache), clock.clone());
        let load = move || {
            ON_EQ.set(Some(Box::new(move || change(&other, &own_clock))));
            7
        };
        assert_eq!((cache.get_or_insert_with(Hooked(1), load), cache.get(&Hooked(1))), (7, None));
        assert!(!lock(&values).contains(&7), "nobody hears of it");
        let stats = cache.stats();
        assert_eq!((stats.inserted, stats.entries), (inserted, 0));
        assert_eq!(stats.inserted, ends_of(&stats));
    }
}

/// The removal may come at any moment, and the value is read before it is known to be outdated.
#[test]
fn no_value_that_was_loaded_before_a_removal_is_seen_after_it() {
    /// Its clones take long, so that the loading thread is mostly in the middle of putting one in.
    struct Slow(u64);
    impl Clone for Slow {
        fn clone(&self) -> Self {
            let begin = Instant::now();
            while begin.elapsed() < Duration::from_micros(20) {}
            Self(self.0)
        }
    }
    let cache = Cache::builder(HOUR).build().unwrap();
    let (truth, is_over) = (AtomicU64::new(0), AtomicBool::new(false));
    let mut seen = 0;
    thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(SeqCst) {
                cache.get_or_insert_with(1, || Slow(truth.load(SeqCst)));
            }
        });
        let begin = Instant::now();
        let mut stale = 0;
        while begin.elapsed() < Duration::from_secs(1) || seen == 0 && begin.elapsed() < PATIENCE {
            let now = truth.fetch_add(1, SeqCst) + 1;
            cache.remove(&1);
            let begin = Instant::now();
            while begin.elapsed() < Duration::from_micros(100) {
                if cache.contains(&1)
                    && let Some(Slow(value)) = cache.get(&1)
                {
                    seen += 1;
                    stale += u64::from(value < now);
                    break;
                }
            }
        }
        is_over.store(true, SeqCst);
        assert_eq!(stale, 0, "of {seen}");
    });
    assert!(seen > 0, "nothing was loaded in time");
}

/// One that takes long, or waits for another, holds up nobody else.
#[test]
fn those_who_wait_for_a_load_clone_its_value_side_by_side() {
    thread_local! {
        static HAS_WAITED: Cell<bool> = const { Cell::new(false) };
    }
    struct Together(Arc<Barrier>);
    impl Clone for Together {
        fn clone(&self) -> Self {
            if HAS_WAITED.get() {
                self.0.wait();
            }
            Self(Arc::clone(&self.0))
        }
    }
    within(PATIENCE, "clones that wait for each other", || {
        let cache = Cache::<u64, _>::builder(HOUR).build().unwrap();
        let load = || {
            eventually("all have asked", || cache.stats().misses == 3);
            thread::sleep(20 * MS);
            Together(Arc::new(Barrier::new(2)))
        };
        thread::scope(|scope| {
            scope.spawn(|| cache.get_or_insert_with(1, load));
            eventually("one is loading", || cache.stats().misses == 1);
            for _ in 0..2 {
                scope.spawn(|| {
                    HAS_WAITED.set(true);
                    cache.get_or_insert_with(1, || unreachable!("it is being loaded"));
                });
            }
        });
    });
}

/// The listener may take long, or wait for the threads that wait for the load.
#[test]
fn a_listener_holds_up_nobody_who_waits_for_a_load() {
    within(PATIENCE, "a listener that waits for who waits", || {
        let gate = Arc::new(Gate::default());
        let shut = Arc::clone(&gate);
        let builder = Cache::builder(HOUR).limit(1).listener(move |_: &u64, _: &u64, _| shut.pass());
        let cache = Arc::new(builder.build().unwrap());
        cache.insert(1, 1);
        let opener = Opener(&gate);
        let (begin, begun) = channel();
        let loading = start({
            let cache = Arc::clone(&cache);
            move || {
                cache.get_or_insert_with(2, || {
                    begin.send(()).unwrap();
                    // The other thread shall wait.
                    eventually("both have asked", || cache.stats().misses == 2);
                    thread::sleep(20 * MS);
                    7
                })
            }
        });
        begun.recv().unwrap();
        assert_eq!(cache.get_or_insert_with(2, || unreachable!("it is being loaded")), 7);
        eventually("the listener is called", || gate.arrived() == 1);
        drop(opener);
        assert_eq!(loading.recv().unwrap(), 7);
    });
}

// Settings and figures.

#[test]
fn bad_settings_are_errors_that_say_what_is_accepted() {
    let builder = || Cache::<u64, u64>::builder(SECOND);
    let error = |builder: shardwheel::cache::Builder<u64, u64>| builder.build().unwrap_err();
    let zero = error(Cache::builder(Duration::ZERO));
    assert_eq!(zero.to_string(), "ttl is 0ns; accepted: more than zero (Duration::MAX for no expiry)");
    let none = error(builder().limit(0));
    assert_eq!(none.to_string(), "limit is 0; accepted: 1 or more (leave it out for no limit)");
    for jitter in [-0.1, 1.0, f64::NAN, f64::INFINITY] {
        let error = error(builder().jitter(jitter));
        assert!(matches!(error, CacheError::Jitter(_)));
        let text = format!("jitter is {jitter}; accepted: 0 or more and less than 1 (0.05 is 5 %)");
        assert_eq!(error.to_string(), text);
    }
    let name = error(builder().thread_name("a\0b"));
    assert!(matches!(name, CacheError::Scheduler(shardwheel::BuildError::ThreadName(_))), "{name}");
    let shards = error(builder().shards(0));
    assert!(shards.to_string().contains("shards is 0; accepted: 1 to 1024"), "{shards}");
    assert!(builder().tick(Duration::ZERO).build_manual().is_err());
    assert!(Cache::<u64, u64>::builder(Duration::ZERO).build_manual().is_err());
}

#[test]
fn the_figures_are_those_of_what_happened() {
    let (cache, clock) = manual(SECOND);
    cache.insert(1, 10);
    cache.get(&1);
    cache.get(&2);
    cache.contains(&1);
    cache.get_or_insert_with(1, || 0);
    cache.get_or_insert_with(2, || 20);
    assert_eq!(cache.get_or_try_insert_with(3, || Err::<u64, _>(())).map_err(drop), Err(()));
    let stats = cache.stats();
    assert_eq!((stats.hits, stats.misses, stats.inserted, stats.entries), (2, 3, 2, 2));
    clock.advance(2 * SECOND);
    assert_eq!((cache.stats().expired, cache.stats().entries, cache.is_empty()), (2, 0, true));
}

#[test]
fn keys_are_looked_up_by_what_they_borrow_as() {
    let cache = Cache::builder(HOUR).hasher(support::OneHash).build().unwrap();
    cache.insert("one".to_owned(), 1);
    cache.insert("two".to_owned(), 2);
    assert_eq!((cache.get("one"), cache.contains("two"), cache.remove("two")), (Some(1), true, Some(2)));
    assert_eq!((cache.get("two"), cache.len()), (None, 1));
}

// Memory.

#[test]
fn a_value_is_dropped_when_its_entry_leaves_not_some_time_later() {
    let (cache, clock) = Cache::<u64, _>::builder(SECOND).jitter(0.0).limit(2).build_manual().unwrap();
    let value = Arc::new(());
    let held = || Arc::strong_count(&value) - 1;
    cache.insert(1, Arc::clone(&value));
    drop(cache.remove(&1));
    assert_eq!(held(), 0, "removed");
    cache.insert(1, Arc::clone(&value));
    cache.insert(1, Arc::default());
    assert_eq!(held(), 0, "replaced");
    cache.insert(2, Arc::clone(&value));
    (3..5).for_each(|key| drop(cache.insert(key, Arc::default())));
    assert_eq!(held(), 0, "evicted");
    cache.insert(6, Arc::clone(&value));
    clock.advance(2 * SECOND);
    assert_eq!(held(), 0, "expired");
    cache.insert(7, Arc::clone(&value));
    drop(cache);
    assert_eq!(held(), 0, "dropped with the cache");
}

#[test]
fn keys_and_values_are_dropped_once() {
    let (keys, values) = (Ledger::default(), Ledger::default());
    let heard = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&heard);
    let cache = Cache::builder(ms(5)).tick(MS).limit(50).listener(move |_: &Token, _: &Arc<Token>, _| {
        count.fetch_add(1, SeqCst);
    });
    let cache = cache.build().unwrap();
    thread::scope(|scope| {
        for caller in 0..4 {
            let (cache, keys, values) = (&cache, &keys, &values);
            scope.spawn(move || {
                let mut random = Random::new(caller);
                for id in 0..2_000 {
                    drop(cache.insert(keys.token(random.below(100)), Arc::new(values.token(id))));
                    drop(cache.remove(&random.below(100)));
                    drop(cache.get(&random.below(100)));
                    if id % 500 == 0 {
                        thread::sleep(ms(8));
                    }
                }
            });
        }
    });
    drop(cache);
    keys.assert_all_dropped_once();
    values.assert_all_dropped_once();
    assert!(heard.load(SeqCst) > 4_000);
}

/// A cache that is dropped ends its thread and frees its listener: nobody needs to stop it.
#[test]
fn dropping_the_cache_leaves_nothing_behind() {
    for limit in [10, 10_000] {
        let alive = Arc::new(());
        let held = Arc::clone(&alive);
        let cache = Cache::<u64, _>::builder(HOUR)
            .limit(limit)
            .listener(move |_, _, _| drop(Arc::clone(&held)))
            .build()
            .unwrap();
        (0..100).for_each(|key| drop(cache.insert(key, Arc::clone(&alive))));
        drop(cache);
        eventually("all is gone", || Arc::strong_count(&alive) == 1);
    }
}

#[test]
fn a_cache_may_be_dropped_by_its_own_listener() {
    within(PATIENCE, "a cache dropped in its listener", || {
        let slot = Arc::new(Mutex::new(None::<Numbers>));
        let (sender, dropped) = channel();
        let own = Arc::clone(&slot);
        let mut shut = lock(&slot);
        let builder = Numbers::builder(ms(2)).listener(move |_, _, _| {
            drop(lock(&own).take().expect("the cache is in its place"));
            let _ = sender.send(());
        });
        let cache = builder.build().unwrap();
        cache.insert(1, 1);
        *shut = Some(cache);
        drop(shut);
        dropped.recv().expect("it came back");
    });
}

#[test]
fn a_listener_that_is_still_running_can_be_waited_for() {
    let (sender, begun) = channel();
    let told = Arc::new(AtomicUsize::new(0));
    let tell = Arc::clone(&told);
    let builder = Numbers::builder(ms(2)).listener(move |_, _, _| {
        ignore(sender.send(()));
        thread::sleep(50 * MS);
        tell.fetch_add(1, SeqCst);
    });
    let cache = builder.build().unwrap();
    cache.insert(1, 1);
    begun.recv().expect("the entry expires");
    assert!(!cache.wait_for_callbacks(Duration::ZERO));
    assert!(cache.wait_for_callbacks(PATIENCE));
    assert_eq!(told.load(SeqCst), 1);
}

// Races, provoked by user code that runs in the middle of a call.

thread_local! {
    static ON_HASH: Hook = const { RefCell::new(None) };
    static ON_EQ: Hook = const { RefCell::new(None) };
    static HASHES: Cell<u64> = const { Cell::new(0) };
}

/// What to do at the next call on this thread, once.
type Hook = RefCell<Option<Box<dyn FnOnce()>>>;

fn run(hook: &Hook) {
    let hook = hook.borrow_mut().take();
    hook.into_iter().for_each(|run| run());
}

struct Hooked(u64);

impl Hash for Hooked {
    fn hash<H: Hasher>(&self, state: &mut H) {
        ON_HASH.with(run);
        HASHES.set(HASHES.get() + 1);
        self.0.hash(state);
    }
}

impl PartialEq for Hooked {
    fn eq(&self, other: &Self) -> bool {
        ON_EQ.with(run);
        self.0 == other.0
    }
}

impl Eq for Hooked {}

/// The timer starts before the entry is in the map: an insertion may stall in between.
#[test]
fn an_entry_that_expires_while_it_is_put_in_leaves_nothing_behind() {
    for limit in [2, usize::MAX] {
        let (cache, clock) = Cache::builder(SECOND).jitter(0.0).limit(limit).build_manual().unwrap();
        let value = Arc::new(());
        cache.insert(Hooked(1), Arc::clone(&value));
        ON_EQ.set(Some(Box::new(move || assert_eq!(clock.advance(2 * SECOND), 2))));
        cache.insert(Hooked(1), Arc::clone(&value));
        assert_eq!((cache.len(), cache.stats().expired), (0, 2));
        assert_eq!((cache.get(&Hooked(1)), Arc::strong_count(&value)), (None, 1));
    }
}

/// So a key that panics does so before anything has happened, and not in the middle of another key's insertion that
/// makes the map grow.
#[test]
fn a_key_is_hashed_once_in_each_call() {
    const KEYS: u64 = 3_000;
    hush_callbacks();
    let cache = Cache::<_, u64>::builder(HOUR).limit(KEYS as usize / 2).build().unwrap();
    (0..KEYS).for_each(|key| ignore(cache.insert(Hooked(key), key)));
    (0..KEYS).for_each(|key| ignore(cache.get(&Hooked(key))));
    (0..KEYS).for_each(|key| assert_eq!(cache.get_or_insert_with(Hooked(key), || key), key));
    (0..KEYS).for_each(|key| ignore(cache.remove(&Hooked(key))));
    cache.clear();
    assert_eq!(HASHES.get(), 4 * KEYS);
    ON_HASH.set(Some(Box::new(|| panic!("on purpose"))));
    let before = cache.stats();
    assert!(catch_unwind(AssertUnwindSafe(|| cache.insert(Hooked(1), 1))).is_err());
    assert_eq!(cache.stats(), before);
}

/// The panic hits the entry that was to come: it still has its end, and the listener is still called for it.
#[test]
fn a_key_that_panics_leaves_no_entry_without_an_end() {
    hush_callbacks();
    let heard = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&heard);
    let builder = Cache::builder(SECOND).jitter(0.0).tick(HOUR).limit(2);
    let builder = builder.listener(move |key: &Hooked, _: &Arc<()>, cause| lock(&log).push((key.0, cause)));
    let (cache, clock) = builder.build_manual().unwrap();
    let value = Arc::new(());
    let panics = || ON_EQ.set(Some(Box::new(|| panic!("on purpose"))));
    let insert = || ignore(cache.insert_with_ttl(Hooked(1), Arc::clone(&value), Duration::MAX));
    insert();
    panics();
    assert!(catch_unwind(AssertUnwindSafe(insert)).is_err());
    assert_eq!((cache.len(), Arc::strong_count(&value)), (1, 2));
    // The same for a value that is loaded into the place of an expired one.
    cache.insert(Hooked(2), Arc::clone(&value));
    clock.advance(2 * SECOND);
    let load = || {
        panics();
        Arc::clone(&value)
    };
    assert!(catch_unwind(AssertUnwindSafe(|| cache.get_or_insert_with(Hooked(2), load))).is_err());
    let stats = cache.stats();
    // That one was never there.
    assert_eq!((stats.inserted, stats.removed, stats.entries, Arc::strong_count(&value)), (3, 1, 2, 3));
    assert_eq!(*lock(&heard), [(1, Cause::Removed)]);
    (3..6).for_each(|key| ignore(cache.insert_with_ttl(Hooked(key), Arc::clone(&value), Duration::MAX)));
    assert_eq!((cache.len(), Arc::strong_count(&value)), (2, 3));
}

/// Panics when it is dropped, if it is armed.
#[derive(Clone)]
struct Bomb(bool);

impl Drop for Bomb {
    fn drop(&mut self) {
        assert!(!self.0, "on purpose");
    }
}

/// While a panic goes on, a destructor that panics as well would abort the process.
#[test]
fn a_value_that_panics_when_dropped_may_be_loaded_for_a_key_that_panics() {
    hush_callbacks();
    // An expired entry stays until the tick is over, so there is something to compare with.
    let (cache, clock) = Cache::builder(SECOND).jitter(0.0).tick(HOUR).build_manual().unwrap();
    cache.insert(Hooked(1), Bomb(false));
    clock.advance(2 * SECOND);
    let load = || {
        ON_EQ.set(Some(Box::new(|| panic!("on purpose"))));
        Bomb(true)
    };
    assert!(catch_unwind(AssertUnwindSafe(|| cache.get_or_insert_with(Hooked(1), load))).is_err());
    assert!(cache.get(&Hooked(1)).is_none());
    assert_eq!((cache.stats().inserted, cache.stats().misses), (1, 2));
}

/// An entry that is in the map must be there for eviction, too.
#[test]
fn a_value_that_panics_while_it_is_replaced_costs_no_room() {
    hush_callbacks();
    #[derive(Debug)]
    struct Bomb(bool);
    impl Clone for Bomb {
        fn clone(&self) -> Self {
            Self(false)
        }
    }
    impl Drop for Bomb {
        fn drop(&mut self) {
            assert!(!self.0, "on purpose");
        }
    }
    let (cache, clock) = Cache::<u64, _>::builder(SECOND).jitter(0.0).tick(HOUR).limit(2).build_manual().unwrap();
    cache.insert(1, Bomb(true));
    clock.advance(SECOND);
    // The old value has expired, so it does not come back, but is dropped.
    let replace = || cache.insert_with_ttl(1, Bomb(false), Duration::MAX);
    assert!(catch_unwind(AssertUnwindSafe(replace)).is_err());
    (2..9).for_each(|key| ignore(cache.insert(key, Bomb(false))));
    assert_eq!((cache.len(), cache.contains(&1)), (2, false));
    cache.insert(9, Bomb(true));
    clock.advance(SECOND);
    let at_once = || cache.insert_with_ttl(9, Bomb(false), Duration::ZERO);
    assert!(catch_unwind(AssertUnwindSafe(at_once)).is_err());
    let stats = cache.stats();
    assert_eq!(stats.inserted, ends_of(&stats) + stats.entries);
}

/// The clone that was for threads that would have waited is dropped before the entry has its place.
#[test]
fn a_clone_that_panics_when_dropped_costs_no_room() {
    hush_callbacks();
    thread_local! {
        static CLONES: Cell<u64> = const { Cell::new(0) };
    }
    struct Bomb(bool);
    impl Clone for Bomb {
        fn clone(&self) -> Self {
            CLONES.set(CLONES.get() + 1);
            Self(CLONES.get() == 1)
        }
    }
    impl Drop for Bomb {
        fn drop(&mut self) {
            assert!(!self.0, "on purpose");
        }
    }
    let cache = Cache::builder(HOUR).limit(2).build().unwrap();
    for key in 0..10 {
        CLONES.set(0);
        let _ = catch_unwind(AssertUnwindSafe(|| cache.get_or_insert_with(key, || Bomb(false))));
        assert!(cache.len() <= 2, "after {key}");
    }
}

#[test]
fn clearing_goes_on_after_a_value_that_panics() {
    hush_callbacks();
    let cache = Cache::builder(HOUR).build().unwrap();
    (0..20).for_each(|key| ignore(cache.insert(key, Bomb(key % 5 == 0))));
    assert!(catch_unwind(AssertUnwindSafe(|| cache.clear())).is_err());
    assert_eq!((cache.len(), cache.stats().removed), (0, 20));
}

/// No thread waits for ever, and no old answer stays. The listener is called only after the waiting threads have their
/// answers: it may wait for them.
#[test]
fn a_key_that_panics_at_the_end_of_a_load_keeps_nobody_waiting() {
    hush_callbacks();
    within(PATIENCE, "loads of keys that panic", || {
        for panics in [true, false] {
            // An expired entry stays until the tick is over, so there is something to compare with.
            let is_answered = Arc::new(AtomicBool::new(false));
            let answered = Arc::clone(&is_answered);
            let builder = Cache::builder(SECOND).jitter(0.0).tick(HOUR);
            let builder = builder.listener(move |_: &Hooked, _: &u64, _| {
                eventually("the other is answered", || answered.load(SeqCst));
            });
            let (cache, clock) = builder.build_manual().unwrap();
            let cache = Arc::new(cache);
            cache.insert(Hooked(1), 4);
            clock.advance(2 * SECOND);
            let gate = Arc::new(Gate::default());
            let opener = Opener(&gate);
            let loading = start({
                let (cache, gate) = (Arc::clone(&cache), Arc::clone(&gate));
                move || {
                    let load = || {
                        gate.pass();
                        if panics {
                            ON_EQ.set(Some(Box::new(|| panic!("on purpose"))));
                        }
                        6
                    };
                    catch_unwind(AssertUnwindSafe(|| cache.get_or_insert_with(Hooked(1), load))).ok()
                }
            });
            eventually("one is loading", || gate.arrived() == 1);
            let waiting = start({
                let cache = Arc::clone(&cache);
                move || {
                    let answer = cache.get_or_try_insert_with(Hooked(1), || Err::<u64, _>("nor here")).ok();
                    is_answered.store(true, SeqCst);
                    answer
                }
            });
            eventually("the other has asked", || cache.stats().misses == 2);
            thread::sleep(50 * MS);
            drop(opener);
            let loaded = (!panics).then_some(6);
            assert_eq!((loading.recv().unwrap(), waiting.recv().unwrap()), (loaded, loaded));
            assert_eq!(cache.get_or_insert_with(Hooked(1), || 5), loaded.unwrap_or(5), "the next one asks again");
            assert_eq!(cache.stats().listener_panics, 0);
        }
    });
}

// Threads.

/// A writer that stands still in the middle of the map's work on the same key, and a listener that stands still.
#[test]
fn a_stalled_writer_stalls_no_reader() {
    let gate = Arc::new(Gate::default());
    let stuck = Arc::clone(&gate);
    let builder = Cache::builder(HOUR).limit(10).listener(move |_: &Hooked, _: &u64, _| stuck.pass());
    let cache = Arc::new(builder.build().unwrap());
    cache.insert(Hooked(1), 10);
    let opener = Opener(&gate);
    let (writer, shut) = (Arc::clone(&cache), Arc::clone(&gate));
    let inserted = start(move || {
        ON_EQ.set(Some(Box::new(move || shut.pass())));
        writer.insert(Hooked(1), 11)
    });
    eventually("the writer is stalled", || gate.arrived() == 1);
    let (remover, reader) = (Arc::clone(&cache), Arc::clone(&cache));
    assert_eq!(within(PATIENCE, "a read", move || reader.get(&Hooked(1))), Some(10));
    cache.insert(Hooked(2), 20);
    let removed = start(move || remover.remove(&Hooked(2)));
    eventually("the listener is stalled", || gate.arrived() == 2);
    let reader = Arc::clone(&cache);
    let seen = within(PATIENCE, "a read", move || [1, 2].map(|id| reader.get(&Hooked(id))));
    assert_eq!(seen, [Some(10), None]);
    drop(opener);
    assert_eq!(inserted.recv_timeout(PATIENCE), Ok(Some(10)));
    assert_eq!(removed.recv_timeout(PATIENCE), Ok(Some(20)));
}

/// The cache reads the clock between our two readings, so both bounds hold to the nanosecond, on any busy machine.
#[test]
fn no_thread_ever_sees_an_expired_value_or_misses_one_that_is_not() {
    let ttl = ms(3);
    let cache = Numbers::builder(ttl).jitter(0.0).build().unwrap();
    thread::scope(|scope| {
        for key in 0..4 {
            let cache = &cache;
            scope.spawn(move || (0..60).for_each(|round| follow(cache, key, round, ttl)));
        }
    });
}

fn follow(cache: &Numbers, key: u64, round: u64, ttl: Duration) {
    let before = Instant::now();
    cache.insert(key, round);
    let after = Instant::now();
    loop {
        let asked = Instant::now();
        match cache.get(&key) {
            Some(value) => {
                assert_eq!(value, round);
                assert!(asked < after + ttl, "stale by {:?}", asked - after - ttl);
            }
            None => {
                assert!(before.elapsed() >= ttl, "gone {:?} early", ttl - before.elapsed());
                return;
            }
        }
    }
}

/// Each thread has keys of its own, and a map that knows what is under them, while all use the same cache. They use few
/// keys and many keys by turns, so that the cache grows meanwhile. One more thread only reads.
#[test]
fn threads_with_keys_of_their_own_get_the_answers_of_a_map() {
    const CALLERS: u64 = 3;
    const KEYS: u64 = 30_000;
    for limit in [CALLERS * KEYS, u64::MAX] {
        let cache = Numbers::builder(HOUR).limit(limit as usize).build().unwrap();
        let is_over = AtomicBool::new(false);
        thread::scope(|scope| {
            let call = |caller: u64| {
                let (mut here, mut random) = (HashMap::new(), Random::new(caller));
                for value in 0..60_000 {
                    let keys = if value / 5_000 % 2 == 0 { 20 } else { KEYS };
                    let key = random.below(keys) * CALLERS + caller;
                    match random.below(6) {
                        0 | 1 => assert_eq!(cache.insert(key, value), here.insert(key, value)),
                        2 => assert_eq!(cache.remove(&key), here.remove(&key)),
                        3 => assert_eq!(cache.get_or_insert_with(key, || value), *here.entry(key).or_insert(value)),
                        4 => assert_eq!(cache.contains(&key), here.contains_key(&key)),
                        _ => assert_eq!(cache.get(&key), here.get(&key).copied()),
                    }
                }
                here.len()
            };
            let callers: Vec<_> = (0..CALLERS).map(|caller| scope.spawn(move || call(caller))).collect();
            scope.spawn(|| {
                let mut random = Random::new(CALLERS);
                while !is_over.load(SeqCst) {
                    cache.get(&random.below(CALLERS * KEYS));
                }
            });
            let ends: Vec<_> = callers.into_iter().map(|caller| caller.join()).collect();
            is_over.store(true, SeqCst);
            assert_eq!(ends.into_iter().map(Result::unwrap).sum::<usize>(), cache.len());
        });
    }
}

/// A reader may have found the entry's place, but not yet the entry, when the entry is replaced.
#[test]
fn a_key_that_is_always_there_is_always_found() {
    const INSERTIONS: u64 = 600_000;
    let cache = Numbers::builder(HOUR).build().unwrap();
    cache.insert(1, 0);
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                let mut last = 0;
                while !is_over.load(SeqCst) {
                    let value = cache.get(&1).expect("it is always there");
                    assert!(value >= last, "{value} after {last}");
                    assert!(cache.contains(&1));
                    last = value;
                }
            });
        }
        (1..=INSERTIONS).for_each(|value| ignore(cache.insert(1, value)));
        is_over.store(true, SeqCst);
    });
}

#[test]
fn what_an_executor_drops_is_not_to_be_seen() {
    let (sender, jobs) = channel();
    let executor = Executor::custom(move |job: Job| {
        drop(job);
        let _ = sender.send(());
    });
    let value = Arc::new(());
    let cache = Cache::<u64, _>::builder(ms(1)).tick(MS).executor(executor).build().unwrap();
    cache.insert(1, Arc::clone(&value));
    jobs.recv_timeout(PATIENCE).expect("the timer fires");
    assert_eq!((cache.get(&1), cache.contains(&1), Arc::strong_count(&value)), (None, false, 1));
    assert_eq!((cache.insert_with_ttl(1, value, HOUR), cache.len()), (None, 1));
    assert!(cache.contains(&1));
}

/// Callbacks that are on their way to the listener do not keep it, either.
#[test]
fn what_is_in_the_cache_goes_with_it_though_a_callback_is_late() {
    for limit in [None, Some(10)] {
        let (sender, late) = channel::<Job>();
        let executor = Executor::custom(move |job| drop(sender.send(job)));
        let builder = Cache::<u64, _>::builder(HOUR).tick(MS).executor(executor);
        let builder = if let Some(limit) = limit { builder.limit(limit) } else { builder };
        let (cache, values) = (builder.build().unwrap(), Ledger::default());
        cache.insert_with_ttl(0, Arc::new(values.token(0)), MS);
        let late = late.recv_timeout(PATIENCE).expect("the timer fires");
        (1..10).for_each(|key| ignore(cache.insert(key, Arc::new(values.token(key)))));
        drop(cache);
        assert_eq!(values.alive(), 1, "the one that is late, with {limit:?}");
        late.run();
        assert_eq!(values.alive(), 0);
    }
}

/// Callbacks that wait for the executor keep their entries alive, but take no room.
#[test]
fn what_expired_takes_no_room_though_its_callback_is_late() {
    let (sender, late) = channel::<Job>();
    let executor = Executor::custom(move |job| drop(sender.send(job)));
    let cache = Numbers::builder(ms(1)).limit(10).tick(MS).executor(executor).build().unwrap();
    let mut jobs = Vec::new();
    for key in 0..40 {
        cache.insert(key, key);
        // Its timer has fired, and nothing runs its callback.
        jobs.push(late.recv_timeout(PATIENCE).expect("the timer fires"));
        assert!(cache.len() <= 10, "{} entries", cache.len());
    }
    jobs.into_iter().for_each(Job::run);
    assert_eq!((cache.len(), cache.stats().expired), (0, 40));
}

/// Nor does it if its key is used again meanwhile, or it is removed: it is no longer in the map, and counts for
/// nothing.
#[test]
fn what_expired_and_was_taken_out_takes_no_room_though_its_callback_is_late() {
    for take_out in [
        (|cache| ignore(cache.insert_with_ttl(1, 11, HOUR))) as fn(&Numbers),
        |cache| {
            assert_eq!(cache.remove(&1), None);
            cache.insert(2, 20);
        },
        |cache| {
            cache.clear();
            cache.insert(0, 0);
            cache.insert(2, 20);
        },
    ] {
        let (sender, late) = channel::<Job>();
        let executor = Executor::custom(move |job| drop(sender.send(job)));
        let cache = Numbers::builder(HOUR).limit(2).tick(MS).executor(executor).build().unwrap();
        cache.insert(0, 0);
        cache.insert_with_ttl(1, 10, ms(1));
        let late = late.recv_timeout(PATIENCE).expect("the timer fires");
        take_out(&cache);
        assert_eq!((cache.get(&0), cache.len(), cache.stats().evicted), (Some(0), 2, 0));
        late.run();
        assert_eq!((cache.len(), cache.stats().expired, cache.stats().evicted), (2, 1, 0));
    }
}

/// Such an entry is never seen, so no other one must lose its place to it.
#[test]
fn an_entry_that_expires_at_once_takes_no_room() {
    let (cache, clock, log) = logged(HOUR, Some(1));
    cache.insert(1, 10);
    assert_eq!(cache.insert_with_ttl(2, 20, Duration::ZERO), None);
    assert_eq!((cache.get(&1), cache.len()), (Some(10), 1));
    assert_eq!(cache.insert_with_ttl(1, 11, Duration::ZERO), Some(10));
    clock.advance(SECOND);
    let stats = cache.stats();
    assert_eq!((cache.len(), stats.inserted, stats.expired, stats.replaced, stats.evicted), (0, 3, 2, 1, 0));
    assert_eq!(*lock(&log), [(2, 20, Cause::Expired), (1, 10, Cause::Replaced), (1, 11, Cause::Expired)]);
}

/// Each insertion under way has two values besides: the one on its way in and the one that it replaces, then the one
/// that makes room and the one that it replaces, then that one and a clone of it, if another thread has held it.
#[test]
fn threads_do_not_exceed_the_limit_together() {
    const CALLERS: u64 = 3;
    const LIMIT: usize = 20;
    let value = Arc::new(());
    let alive = || Arc::strong_count(&value) - 1;
    let cache = Cache::builder(HOUR).limit(LIMIT).build().unwrap();
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let insert = |caller: u64| {
            let mut random = Random::new(caller);
            for _ in 0..60_000 {
                drop(cache.insert(random.below(200), Arc::clone(&value)));
            }
        };
        let callers: Vec<_> = (0..CALLERS).map(|caller| scope.spawn(move || insert(caller))).collect();
        let watch = scope.spawn(|| {
            let mut most = 0;
            while !is_over.load(SeqCst) {
                most = most.max(alive());
            }
            most
        });
        callers.into_iter().for_each(|caller| caller.join().unwrap());
        is_over.store(true, SeqCst);
        let most = watch.join().unwrap();
        assert!(most <= LIMIT + 2 * CALLERS as usize, "{most} values");
    });
    assert_eq!((cache.len(), alive()), (LIMIT, LIMIT));
}

/// Every value that was put in leaves once, by one cause, or is still in the cache; and the thread that takes it out
/// gets it.
#[test]
fn every_value_leaves_once_by_one_cause() {
    for (limit, ttl) in [(None, ms(1)), (Some(20), ms(1)), (Some(20), HOUR), (Some(1), Duration::from_nanos(1))] {
        every_value_leaves_once(limit, ttl);
    }
}

fn every_value_leaves_once(limit: Option<usize>, ttl: Duration) {
    const EACH: u64 = 15_000;
    let heard = Arc::new(Ends::new(4 * EACH as usize));
    let by_cause = Arc::new([const { AtomicU64::new(0) }; 4]);
    let (ends, causes) = (Arc::clone(&heard), Arc::clone(&by_cause));
    let builder = Numbers::builder(ttl).tick(Duration::from_micros(50)).shards(2);
    let builder = if let Some(limit) = limit { builder.limit(limit) } else { builder };
    let cache = builder.listener(move |_: &u64, &value: &u64, cause| {
        ends.note(value);
        let index = [Cause::Expired, Cause::Replaced, Cause::Removed, Cause::Evicted].iter().position(|&c| c == cause);
        causes[index.unwrap()].fetch_add(1, SeqCst);
    });
    let cache = cache.build().unwrap();
    let (replaced, removed) = (AtomicU64::new(0), AtomicU64::new(0));
    thread::scope(|scope| {
        for caller in 0..4 {
            let (cache, replaced, removed) = (&cache, &replaced, &removed);
            scope.spawn(move || {
                let mut random = Random::new(caller);
                for value in caller * EACH..(caller + 1) * EACH {
                    replaced.fetch_add(cache.insert(random.below(64), value).is_some().into(), SeqCst);
                    cache.get(&random.below(64));
                    if value % 3 == 0 {
                        removed.fetch_add(cache.remove(&random.below(64)).is_some().into(), SeqCst);
                    }
                }
            });
        }
    });
    if ttl < SECOND {
        eventually("the rest expires", || cache.is_empty());
    }
    let total = || cache.stats().inserted - cache.stats().entries;
    eventually("all who left were heard of", || (0..4).map(|i| by_cause[i].load(SeqCst)).sum::<u64>() == total());
    let stats = cache.stats();
    assert!(stats.entries <= limit.unwrap_or(64) as u64);
    assert_eq!(stats.inserted, 4 * EACH);
    assert_eq!(stats.inserted, ends_of(&stats) + stats.entries);
    let counted = [stats.expired, stats.replaced, stats.removed, stats.evicted];
    assert_eq!(counted, [0, 1, 2, 3].map(|i| by_cause[i].load(SeqCst)));
    assert_eq!((stats.replaced, stats.removed), (replaced.load(SeqCst), removed.load(SeqCst)));
    let here: Vec<_> = (0..64).filter_map(|key| cache.get(&key)).collect();
    assert_eq!(here.len() as u64, stats.entries);
    here.iter().for_each(|&value| assert_eq!(heard.of(value), 0));
    let left = (0..4 * EACH).filter(|&value| heard.of(value) == 1).count() as u64;
    assert_eq!(left + stats.entries, stats.inserted, "none twice, none lost");
}

// The model: a list in the order of use, with the time at which each entry's timer takes it out.

const TICK: u64 = 10;

#[derive(Clone, Copy, Debug)]
enum Op {
    Insert(u64, Option<u64>),
    Get(u64),
    Contains(u64),
    Remove(u64),
    GetOrInsert(u64),
    Renew(u64, Option<u64>),
    Remaining(u64),
    Advance(u64),
}

fn op() -> impl Strategy<Value = Op> {
    let key = || 0..6u64;
    prop_oneof![
        6 => (key(), prop::option::of(prop_oneof![0..40u64, 500..700u64])).prop_map(|(key, ttl)| Op::Insert(key, ttl)),
        5 => key().prop_map(Op::Get),
        2 => key().prop_map(Op::Contains),
        2 => key().prop_map(Op::Remove),
        2 => key().prop_map(Op::GetOrInsert),
        3 => (key(), prop::option::of(0..150u64)).prop_map(|(key, ttl)| Op::Renew(key, ttl)),
        1 => key().prop_map(Op::Remaining),
        4 => prop_oneof![0..15u64, 0..120u64].prop_map(Op::Advance),
    ]
}

#[derive(Debug)]
struct Modelled {
    key: u64,
    value: u64,
    ttl: u64,
    deadline: u64,
    leaves: u64,
}

/// Times in milliseconds.
#[derive(Default)]
struct Model {
    now: u64,
    limit: usize,
    ttl: u64,
    renews_on_get: bool,
    /// Least recently used first.
    entries: Vec<Modelled>,
    ended: Vec<(u64, u64, Cause)>,
    hits: u64,
    misses: u64,
}

impl Model {
    fn find(&self, key: u64) -> Option<usize> {
        self.entries.iter().position(|entry| entry.key == key && entry.deadline > self.now)
    }

    fn peek(&self, key: u64) -> Option<u64> {
        self.find(key).map(|index| self.entries[index].value)
    }

    fn get(&mut self, key: u64) -> Option<u64> {
        let Some(index) = self.find(key) else {
            self.misses += 1;
            return None;
        };
        self.hits += 1;
        if self.renews_on_get {
            let Modelled { ttl, deadline, .. } = self.entries[index];
            self.set_deadline(index, deadline.max(self.now + ttl));
        }
        let entry = self.entries.remove(index);
        self.entries.push(entry);
        self.peek(key)
    }

    fn renew(&mut self, key: u64, ttl: Option<u64>) -> bool {
        let Some(index) = self.find(key) else { return false };
        let ttl = ttl.unwrap_or(self.entries[index].ttl);
        self.set_deadline(index, self.now + ttl);
        let entry = self.entries.remove(index);
        self.entries.push(entry);
        true
    }

    fn remaining(&self, key: u64) -> Option<u64> {
        self.find(key).map(|index| self.entries[index].deadline - self.now)
    }

    fn set_deadline(&mut self, index: usize, deadline: u64) {
        let entry = &mut self.entries[index];
        (entry.deadline, entry.leaves) = (deadline, deadline.div_ceil(TICK).max(self.now / TICK + 1) * TICK);
    }

    fn there(&self) -> Vec<(u64, u64)> {
        let there = self.entries.iter().filter(|entry| entry.deadline > self.now);
        let mut there: Vec<_> = there.map(|entry| (entry.key, entry.value)).collect();
        there.sort_unstable();
        there
    }

    /// The entry under the key leaves, whatever it is.
    fn end(&mut self, index: usize, cause: Cause) -> Option<u64> {
        let entry = self.entries.remove(index);
        let cause = if entry.deadline <= self.now { Cause::Expired } else { cause };
        self.ended.push((entry.key, entry.value, cause));
        (cause != Cause::Expired).then_some(entry.value)
    }

    fn take(&mut self, key: u64, cause: Cause) -> Option<u64> {
        let index = self.entries.iter().position(|entry| entry.key == key)?;
        self.end(index, cause)
    }

    fn insert(&mut self, key: u64, value: u64, ttl: Option<u64>) -> Option<u64> {
        let old = self.take(key, Cause::Replaced);
        if ttl == Some(0) {
            self.ended.push((key, value, Cause::Expired));
            return old;
        }
        let ttl = ttl.unwrap_or(self.ttl);
        self.entries.push(Modelled { key, value, ttl, deadline: 0, leaves: 0 });
        self.set_deadline(self.entries.len() - 1, self.now + ttl);
        if self.entries.len() > self.limit {
            self.end(0, Cause::Evicted);
        }
        old
    }

    fn advance(&mut self, by: u64) {
        self.now += by;
        while let Some(index) = self.entries.iter().position(|entry| entry.leaves <= self.now) {
            self.end(index, Cause::Expired);
        }
    }
}

proptest! {
    #[test]
    fn a_cache_does_what_a_naive_model_does(
        limit in 1..7usize,
        renews_on_get in any::<bool>(),
        ops in prop::collection::vec(op(), 0..300),
    ) {
        let (cache, clock, log) = logged_with(Cache::builder(ms(50)).limit(limit).renew_on_get(renews_on_get));
        let mut model = Model { limit, ttl: 50, renews_on_get, ..Model::default() };
        for (value, op) in ops.into_iter().enumerate() {
            let value = value as u64;
            match op {
                Op::Insert(key, ttl) => {
                    let old = match ttl {
                        Some(ttl) => cache.insert_with_ttl(key, value, ms(ttl)),
                        None => cache.insert(key, value),
                    };
                    prop_assert_eq!(old, model.insert(key, value, ttl));
                }
                Op::Get(key) => prop_assert_eq!(cache.get(&key), model.get(key)),
                Op::Contains(key) => prop_assert_eq!(cache.contains(&key), model.peek(key).is_some()),
                Op::Remove(key) => prop_assert_eq!(cache.remove(&key), model.take(key, Cause::Removed)),
                Op::GetOrInsert(key) => {
                    let answer = model.get(key).unwrap_or_else(|| {
                        model.insert(key, value, None);
                        value
                    });
                    prop_assert_eq!(cache.get_or_insert_with(key, || value), answer);
                }
                Op::Renew(key, ttl) => {
                    let renewed = match ttl {
                        Some(ttl) => cache.renew_with_ttl(&key, ms(ttl)),
                        None => cache.renew(&key),
                    };
                    prop_assert_eq!(renewed, model.renew(key, ttl));
                }
                Op::Remaining(key) => prop_assert_eq!(cache.remaining(&key), model.remaining(key).map(ms)),
                Op::Advance(by) => {
                    clock.advance(ms(by));
                    model.advance(by);
                }
            }
            let mut there = Vec::new();
            cache.for_each(|&key, &value| there.push((key, value)));
            there.sort_unstable();
            prop_assert_eq!(there, model.there());
            let stats = cache.stats();
            prop_assert_eq!(cache.len(), model.entries.len());
            prop_assert_eq!((stats.hits, stats.misses), (model.hits, model.misses));
            let sorted = |mut ends: Vec<(u64, u64, Cause)>| {
                ends.sort_by_key(|&(_, value, _)| value);
                ends
            };
            prop_assert_eq!(sorted(lock(&log).clone()), sorted(model.ended.clone()));
        }
    }
}

/// Keys that were removed are dropped by whatever call comes by later, whose concern they are not.
#[test]
fn the_destructor_of_a_key_long_gone_disturbs_no_other_key() {
    #[derive(PartialEq, Eq, Hash)]
    struct Key(u64);
    impl Drop for Key {
        fn drop(&mut self) {
            assert!(self.0 != 0 || thread::panicking(), "as the test wants it");
        }
    }
    hush_callbacks();
    let cache = Cache::builder(HOUR).build().expect("the settings are in range");
    let cursed = std::mem::ManuallyDrop::new(Key(0));
    for round in 1..1000 {
        cache.insert(Key(0), round);
        assert_eq!(cache.remove(&*cursed), Some(round));
        cache.insert(Key(round % 100 + 1), round);
        assert_eq!(cache.get(&Key(round % 100 + 1)), Some(round));
    }
}
