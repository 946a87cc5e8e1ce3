//! `Cache`: deadlines that are moved, by calls and by hits; and going through all entries.

#![cfg(feature = "cache")]

mod support;

use shardwheel::cache::{Builder, Cache, Cause};
use shardwheel::{Executor, Job, ManualClock};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Barrier, Mutex, OnceLock, Weak};
use std::thread;
use std::time::{Duration, Instant};
use support::{HOUR, MS, Random, eventually, lock, ms};

type Numbers = Cache<u64, u64>;
/// What a listener heard.
type Log = Arc<Mutex<Vec<(u64, u64, Cause)>>>;

/// The tick of a cache.
const TICK: Duration = Duration::from_millis(10);
const SECOND: Duration = Duration::from_secs(1);

fn manual(builder: Builder<u64, u64>) -> (Numbers, ManualClock, Log) {
    let log = Log::default();
    let writer = Arc::clone(&log);
    let builder = builder.jitter(0.0).listener(move |&key, &value, cause| lock(&writer).push((key, value, cause)));
    let (cache, clock) = builder.build_manual().expect("the settings are in range");
    (cache, clock, log)
}

#[test]
fn what_is_renewed_lives_for_its_own_ttl_to_the_nanosecond() {
    let (cache, clock, log) = manual(Cache::builder(ms(50)));
    cache.insert(1, 10);
    cache.insert_with_ttl(2, 20, ms(200));
    clock.advance(ms(49));
    assert!(cache.renew(&1) && cache.renew(&2) && !cache.renew(&3));
    assert_eq!((cache.remaining(&1), cache.remaining(&2), cache.remaining(&3)), (Some(ms(50)), Some(ms(200)), None));
    clock.advance(ms(50) - Duration::from_nanos(1));
    assert_eq!((cache.get(&1), cache.remaining(&1)), (Some(10), Some(Duration::from_nanos(1))));
    clock.advance(Duration::from_nanos(1));
    assert_eq!((cache.get(&1), cache.remaining(&1), cache.renew(&1), cache.contains(&2)), (None, None, false, true));
    clock.advance(TICK);
    assert_eq!((cache.len(), lock(&log).clone()), (1, vec![(1, 10, Cause::Expired)]));
    let stats = cache.stats();
    assert_eq!((stats.hits, stats.misses), (1, 1), "a renewal is neither");
}

#[test]
fn a_deadline_may_be_brought_forward_and_put_off_again() {
    let (cache, clock, log) = manual(Cache::builder(HOUR));
    for key in 0..4 {
        cache.insert(key, key);
        assert!(cache.renew_with_ttl(&key, ms(20)));
    }
    assert!(cache.renew_with_ttl(&1, ms(90)) && cache.renew(&2) && cache.renew_with_ttl(&3, Duration::ZERO));
    assert!(!cache.contains(&3) && !cache.renew(&3) && cache.remove(&3).is_none());
    clock.advance(ms(20));
    assert_eq!(lock(&log).split_off(0), [(3, 3, Cause::Expired), (0, 0, Cause::Expired)], "within a tick");
    clock.advance(ms(70));
    assert_eq!(lock(&log).split_off(0), [(1, 1, Cause::Expired)]);
    assert_eq!(cache.remaining(&2), Some(HOUR - ms(90)));
    // From never, and back.
    assert!(cache.renew_with_ttl(&2, Duration::MAX));
    assert_eq!(cache.remaining(&2), Some(Duration::MAX));
    clock.advance(1000 * HOUR);
    assert!(cache.renew_with_ttl(&2, ms(10)));
    clock.advance(ms(10));
    assert_eq!((cache.len(), lock(&log).split_off(0)), (0, vec![(2, 2, Cause::Expired)]));
}

/// However the timer stands when an entry ends.
#[test]
fn no_timer_outlives_an_entry_whose_deadline_was_moved() {
    let (cache, clock, log) = manual(Cache::builder(ms(50)).limit(3));
    for (key, ttl) in [(1, ms(20)), (2, HOUR), (3, Duration::MAX)] {
        cache.insert(key, key);
        assert!(cache.renew_with_ttl(&key, ttl));
    }
    // Their timers come back once.
    clock.advance(ms(10));
    assert!(cache.renew(&1));
    clock.advance(ms(45));
    assert_eq!((cache.len(), cache.remove(&1), cache.insert(2, 22)), (3, Some(1), Some(2)));
    cache.clear();
    assert_eq!(clock.advance_to_next(), None);
    let heard = [(1, 1, Cause::Removed), (2, 2, Cause::Replaced)];
    assert_eq!(lock(&log)[..2], heard);
    assert_eq!(lock(&log).len(), 4);
}

#[test]
fn hits_renew_if_they_are_to_and_looks_do_not() {
    for renews in [false, true] {
        let (cache, clock, _) = manual(Cache::builder(ms(50)).renew_on_get(renews));
        for key in 1..=3 {
            cache.insert(key, key);
        }
        clock.advance(ms(40));
        assert_eq!((cache.get(&1), cache.get_or_insert_with(2, || 0), cache.contains(&3)), (Some(1), 2, true));
        cache.for_each(|_, _| ());
        clock.advance(ms(40));
        assert_eq!([1, 2, 3].map(|key| cache.contains(&key)), [renews, renews, false]);
    }
    // A hit takes no time away.
    let (cache, _clock, _) = manual(Cache::builder(ms(50)).renew_on_get(true));
    cache.insert(1, 1);
    assert!(cache.renew_with_ttl(&1, HOUR));
    assert_eq!((cache.get(&1), cache.remaining(&1)), (Some(1), Some(HOUR)));
}

#[test]
fn a_renewal_counts_as_a_use() {
    let (cache, _clock, _) = manual(Cache::builder(HOUR).limit(2));
    cache.insert(1, 1);
    cache.insert(2, 2);
    assert!(cache.renew(&1));
    cache.insert(3, 3);
    assert!(cache.contains(&1) && !cache.contains(&2));
}

#[test]
fn each_entry_has_its_own_jitter_for_good() {
    let (cache, clock) = Numbers::builder(HOUR).jitter(0.5).build_manual().expect("in range");
    let all = || (0..100).map(|key| cache.remaining(&key).expect("it is there")).collect::<Vec<_>>();
    (0..100).for_each(|key| _ = cache.insert(key, 0));
    let inserted = all();
    clock.advance(HOUR / 4);
    assert!((0..100).all(|key| cache.renew(&key)));
    assert_eq!(all(), inserted);
    assert!((0..100).all(|key| cache.renew_with_ttl(&key, 2 * HOUR)));
    let is_double = |(once, twice): (&Duration, &Duration)| twice.abs_diff(2 * *once) < MS;
    assert!(inserted.iter().zip(&all()).all(is_double));
}

#[test]
fn all_entries_are_visited_that_have_not_expired() {
    let (cache, clock, log) = manual(Cache::builder(HOUR));
    (0..100).for_each(|key| _ = cache.insert_with_ttl(key, 2 * key, if key % 3 == 0 { MS } else { HOUR }));
    clock.advance(MS);
    assert_eq!((cache.len(), lock(&log).len()), (100, 0), "a tick is longer");
    let mut seen = Vec::new();
    cache.for_each(|&key, &value| {
        assert_eq!(value, 2 * key);
        seen.push(key);
        // It may use the cache: what leaves before its turn is not visited, nor what is put in.
        if key % 3 == 1 {
            cache.remove(&(key + 1));
        } else {
            cache.remove(&(key - 1));
        }
        cache.insert(key + 1000, 0);
    });
    seen.sort_unstable();
    assert_eq!(seen.len(), 33);
    assert!(seen.windows(2).all(|pair| pair[1] / 3 == pair[0] / 3 + 1), "one of each pair");
    let stats = cache.stats();
    assert_eq!((stats.hits, stats.misses), (0, 0));
}

/// It has been told of its removal by another thread, which still holds it.
#[test]
fn what_has_ended_is_not_visited() {
    let (told, hears) = channel();
    let (go_on, gate) = channel::<()>();
    let gate = Mutex::new(gate);
    let builder = Cache::builder(HOUR).listener(move |&key: &u64, _: &u64, cause| {
        told.send((key, cause)).expect("the test listens");
        lock(&gate).recv().expect("the test goes on");
    });
    let cache = builder.build().expect("in range");
    cache.insert(1, 1);
    cache.insert(2, 2);
    let mut seen = Vec::new();
    thread::scope(|scope| {
        cache.for_each(|&key, _| {
            seen.push(key);
            if seen.len() == 1 {
                let cache = &cache;
                scope.spawn(move || assert_eq!(cache.remove(&(3 - key)), Some(3 - key)));
                assert_eq!(hears.recv(), Ok((3 - key, Cause::Removed)));
            }
        });
        go_on.send(()).expect("the listener waits");
    });
    assert_eq!(seen.len(), 1, "{seen:?}");
}

#[test]
fn never_is_never() {
    let years = |count: u32| 365 * 24 * count * HOUR;
    let (cache, clock, _) = manual(Cache::builder(ms(50)));
    cache.insert_with_ttl(1, 10, Duration::MAX);
    cache.insert(2, 20);
    assert!(cache.renew_with_ttl(&2, Duration::MAX));
    clock.advance(ms(50));
    assert_eq!((clock.advance_to_next(), cache.len()), (None, 2));
    clock.advance(years(200));
    assert_eq!((cache.get(&1), cache.get(&2)), (Some(10), Some(20)));
    assert_eq!((cache.remaining(&1), cache.remaining(&2)), (Some(Duration::MAX), Some(Duration::MAX)));
    // What would expire more than 146 years after the beginning counts as that, too.
    cache.insert(3, 30);
    assert_eq!((cache.get(&3), cache.remaining(&3)), (Some(30), Some(Duration::MAX)));
    cache.clear();
    assert_eq!((cache.len(), clock.advance_to_next()), (0, None));
}

/// While its timer is firing: that takes place because of the first deadline, and another entry's listener comes first.
#[test]
fn a_value_leaves_at_once_though_its_timer_was_given_a_deadline() {
    let own = Arc::new(OnceLock::<Weak<Cache<u64, Arc<u64>>>>::new());
    let in_listener = Arc::clone(&own);
    let builder = Cache::builder(ms(50)).jitter(0.0).listener(move |&key: &u64, _: &Arc<u64>, _| {
        if key == 1 {
            let cache = in_listener.get().and_then(Weak::upgrade).expect("it is there");
            assert!(cache.renew_with_ttl(&2, Duration::ZERO));
        }
    });
    let (cache, clock) = builder.build_manual().expect("in range");
    let cache = Arc::new(cache);
    own.set(Arc::downgrade(&cache)).expect("set once");
    let value = Arc::new(7);
    cache.insert(2, Arc::clone(&value));
    cache.insert(1, Arc::new(1));
    clock.advance(ms(49));
    assert!(cache.renew(&2));
    clock.advance(ms(1));
    assert_eq!((cache.len(), cache.stats().expired, Arc::strong_count(&value)), (0, 2, 1));
    clock.advance(HOUR);
    assert_eq!((cache.stats().expired, cache.stats().listener_panics), (2, 0));
}

/// A cache whose executor's jobs the test gets.
fn held(limit: Option<usize>) -> (Numbers, Receiver<Job>) {
    let (sender, jobs) = channel();
    let executor = Executor::custom(move |job| drop(sender.send(job)));
    let builder = Cache::builder(ms(200)).tick(MS).jitter(0.0).executor(executor);
    let builder = if let Some(limit) = limit { builder.limit(limit) } else { builder };
    (builder.build().expect("in range"), jobs)
}

/// Its timer has fired because of the deadline that it had before.
#[test]
fn a_job_that_is_dropped_takes_no_entry_with_it_that_lives_on() {
    for limit in [None, Some(10)] {
        let (cache, jobs) = held(limit);
        cache.insert(1, 10);
        cache.insert(2, 20);
        assert!(cache.renew_with_ttl(&1, SECOND) && cache.renew_with_ttl(&2, HOUR));
        // Both in one job, or each in one of its own.
        let mut dropped = jobs.recv().map(drop).map(|()| 1).expect("they fire");
        while jobs.recv_timeout(ms(50)).is_ok() {
            dropped += 1;
        }
        assert!((1..=2).contains(&dropped));
        assert_eq!((cache.get(&1), cache.get(&2)), (Some(10), Some(20)));
        jobs.recv().expect("it comes back").run();
        assert_eq!((cache.get(&1), cache.get(&2)), (None, Some(20)));
        assert_eq!((cache.len(), cache.stats().expired), (1, 1));
        assert_eq!(cache.remove(&2), Some(20));
        assert!(jobs.recv_timeout(ms(50)).is_err(), "no timer is left");
    }
}

#[test]
fn a_job_that_is_dropped_leaves_no_timer_to_what_was_removed() {
    let (cache, jobs) = held(None);
    cache.insert(1, 10);
    assert!(cache.renew_with_ttl(&1, SECOND));
    let job = jobs.recv().expect("it fires");
    assert_eq!(cache.remove(&1), Some(10));
    drop(job);
    assert!(jobs.recv_timeout(SECOND).is_err());
    assert_eq!((cache.len(), cache.stats().removed, cache.stats().expired), (0, 1, 0));
}

/// What is left comes from one look: an entry that has expired has no time left, not zero.
#[test]
fn nothing_is_left_of_what_has_expired() {
    let cache = Numbers::builder(HOUR).jitter(0.0).build().expect("in range");
    let (is_over, zeros) = (AtomicBool::new(false), AtomicU64::new(0));
    thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(SeqCst) {
                zeros.fetch_add((cache.remaining(&1) == Some(Duration::ZERO)).into(), SeqCst);
            }
        });
        let begin = Instant::now();
        while begin.elapsed() < ms(300) {
            cache.insert(1, 1);
            cache.renew_with_ttl(&1, Duration::ZERO);
        }
        is_over.store(true, SeqCst);
    });
    assert_eq!(zeros.load(SeqCst), 0);
}

/// Of two threads that move a deadline at once; what the last of them leaves.
#[test]
fn moves_of_many_threads_leave_the_timer_at_the_deadline() {
    const ROUNDS: u64 = 5_000;
    let (cache, clock, _) = manual(Cache::builder(HOUR));
    let (barrier, wrong) = (Barrier::new(2), AtomicU64::new(0));
    let move_thrice = |round: u64, seed: u64| {
        let mut random = Random::new(round * 2 + seed);
        barrier.wait();
        for _ in 0..3 {
            let is_there = cache.renew_with_ttl(&round, TICK * (1 + random.below(50) as u32));
            wrong.fetch_add((!is_there).into(), SeqCst);
        }
        barrier.wait();
    };
    thread::scope(|scope| {
        scope.spawn(|| {
            for round in 0..ROUNDS {
                barrier.wait();
                move_thrice(round, 1);
            }
        });
        for round in 0..ROUNDS {
            cache.insert(round, 0);
            barrier.wait();
            move_thrice(round, 0);
            let left = cache.remaining(&round);
            clock.advance(left.unwrap_or_default());
            // Not asserted: the other thread would wait for ever.
            wrong.fetch_add((left.is_none() || !cache.is_empty()).into(), SeqCst);
            cache.clear();
        }
    });
    assert_eq!(wrong.load(SeqCst), 0);
}

/// On a real clock, whose timers fire while threads use what they belong to: an entry that is used is never missed, and
/// one that is used no more goes.
#[test]
fn what_is_used_stays_and_what_is_not_goes() {
    let ttl = ms(60);
    for renews_on_get in [false, true] {
        let cache = Numbers::builder(ttl).tick(MS).jitter(0.0).renew_on_get(renews_on_get).build().expect("in range");
        (0..4).for_each(|key| _ = cache.insert(key, key));
        let (missed, is_over) = (AtomicU64::new(0), AtomicBool::new(false));
        thread::scope(|scope| {
            for key in 0..4 {
                let (cache, missed, is_over) = (&cache, &missed, &is_over);
                scope.spawn(move || {
                    let mut last = Instant::now();
                    while !is_over.load(SeqCst) {
                        let before = Instant::now();
                        let is_there = if renews_on_get { cache.get(&key) == Some(key) } else { cache.renew(&key) };
                        // Not if this thread was stopped for so long.
                        missed.fetch_add((!is_there && last.elapsed() < ttl).into(), SeqCst);
                        if !is_there {
                            cache.insert(key, key);
                        }
                        last = before;
                    }
                });
            }
            thread::sleep(5 * ttl);
            is_over.store(true, SeqCst);
        });
        assert_eq!(missed.load(SeqCst), 0);
        eventually("they expire", || cache.is_empty());
        let stats = cache.stats();
        assert_eq!(stats.inserted, stats.expired + stats.replaced);
    }
}
