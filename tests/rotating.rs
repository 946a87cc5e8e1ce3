//! `RotatingMap` and `TimeCacheMap`: the behaviour of Storm's, and the faults of theirs that we do not have.

mod support;

use proptest::prelude::*;
use shardwheel::rotating::{RotatingError, RotatingMap, TimeCacheMap};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::thread;
use std::time::{Duration, Instant};
use support::{Ends, Gate, Ledger, MS, Opener, Random, Token, eventually, hush_callbacks, lock, ms, within};

const SECOND: Duration = Duration::from_secs(1);

/// What came to a callback, in order.
type Log = Arc<Mutex<Vec<Vec<(u64, u64)>>>>;

fn logged() -> (Log, impl Fn(Vec<(u64, u64)>) + Send + Sync + 'static) {
    let log = Log::default();
    let writer = Arc::clone(&log);
    (log, move |mut bucket: Vec<(u64, u64)>| {
        bucket.sort_unstable();
        lock(&writer).push(bucket);
    })
}

fn sorted<K: Ord, V: Ord>(mut entries: Vec<(K, V)>) -> Vec<(K, V)> {
    entries.sort_unstable();
    entries
}

// RotatingMap.

#[test]
fn an_entry_leaves_with_its_bucket_at_the_kth_rotation() {
    for buckets in 2..6 {
        let mut map = RotatingMap::new(buckets).unwrap();
        map.insert("a", 1);
        map.insert("b", 2);
        for _ in 1..buckets {
            assert_eq!(map.rotate(), []);
            assert!(map.contains("a") && map.contains("b"));
        }
        assert_eq!(sorted(map.rotate()), [("a", 1), ("b", 2)], "the whole bucket");
        assert!(map.is_empty() && !map.contains("a"));
    }
}

#[test]
fn inserting_again_moves_to_the_newest_bucket_and_gives_the_old_value_back() {
    let mut map = RotatingMap::new(2).unwrap();
    assert_eq!(map.insert("a", 1), None);
    map.rotate();
    assert_eq!(map.insert("a", 2), Some(1));
    assert_eq!((map.len(), map.oldest().count()), (1, 0));
    assert_eq!(map.rotate(), []);
    assert_eq!(map.rotate(), [("a", 2)]);
}

#[test]
fn reading_does_not_keep_an_entry() {
    let mut map = RotatingMap::new(2).unwrap();
    map.insert("a", 1);
    map.rotate();
    assert_eq!(map.get("a"), Some(&1));
    assert_eq!(map.rotate(), [("a", 1)]);
}

#[test]
fn oldest_shows_what_the_next_rotation_takes() {
    let mut map = RotatingMap::new(3).unwrap();
    map.insert(1, "a");
    map.rotate();
    map.insert(2, "b");
    assert_eq!(map.oldest().count(), 0);
    map.rotate();
    assert_eq!(map.oldest().collect::<Vec<_>>(), [(&1, &"a")]);
    assert_eq!(map.rotate(), [(1, "a")]);
}

#[test]
fn fewer_than_two_buckets_are_an_error_that_says_so() {
    for buckets in [0, 1, 65_537, usize::MAX] {
        let error = RotatingMap::<u64, u64>::new(buckets).unwrap_err();
        assert!(matches!(error, RotatingError::Buckets(count) if count == buckets));
        assert_eq!(error.to_string(), format!("buckets is {buckets}; accepted: 2 to 65536"));
        assert!(TimeCacheMap::<u64, u64>::new(SECOND, buckets, drop).is_err());
    }
    let error = TimeCacheMap::<u64, u64>::new(Duration::ZERO, 3, drop).unwrap_err();
    assert_eq!(error.to_string(), "expiry is 0ns; accepted: more than zero");
}

#[derive(Clone, Copy, Debug)]
enum Op {
    Insert(u8),
    Remove(u8),
    Get(u8),
    Clear,
    Rotate,
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        40 => (0..8u8).prop_map(Op::Insert),
        10 => (0..8u8).prop_map(Op::Remove),
        20 => (0..8u8).prop_map(Op::Get),
        1 => Just(Op::Clear),
        30 => Just(Op::Rotate),
    ]
}

proptest! {
    /// The model knows each key's value, and how many rotations it has left.
    #[test]
    fn a_rotating_map_does_what_a_naive_model_does(buckets in 2..5usize, ops in prop::collection::vec(op(), 0..200)) {
        let mut map = RotatingMap::new(buckets).unwrap();
        let mut model = BTreeMap::<u8, (usize, usize)>::new();
        for (value, op) in ops.into_iter().enumerate() {
            match op {
                Op::Insert(key) => {
                    prop_assert_eq!(map.insert(key, value), model.insert(key, (value, buckets)).map(|(old, _)| old));
                }
                Op::Remove(key) => prop_assert_eq!(map.remove(&key), model.remove(&key).map(|(old, _)| old)),
                Op::Get(key) => prop_assert_eq!(map.get(&key), model.get(&key).map(|(value, _)| value)),
                Op::Clear => {
                    map.clear();
                    model.clear();
                }
                Op::Rotate => {
                    let next = sorted(map.oldest().map(|(&key, &value)| (key, value)).collect());
                    model.values_mut().for_each(|(_, left)| *left -= 1);
                    let dead = model.iter().filter(|(_, (_, left))| *left == 0);
                    let dead: Vec<_> = dead.map(|(&key, &(value, _))| (key, value)).collect();
                    model.retain(|_, (_, left)| *left > 0);
                    prop_assert_eq!(sorted(map.rotate()), dead.clone());
                    prop_assert_eq!(next, dead);
                }
            }
            let all = || map.iter().map(|(&key, &value)| (key, value));
            prop_assert_eq!(sorted(all().collect()), model.iter().map(|(&key, &(value, _))| (key, value)).collect::<Vec<_>>());
            prop_assert!(all().map(|(key, _)| model[&key].1).is_sorted_by(|newer, older| newer >= older));
            prop_assert_eq!((map.len(), map.is_empty()), (model.len(), model.is_empty()));
        }
    }

    /// T <= life <= T(1 + 1/(k-1)), to the nanosecond, whatever the phase. The model knows when rotations are due.
    #[test]
    fn an_entry_lives_for_t_at_least_and_a_period_more_at_most(
        buckets in 2..6usize,
        expiry_us in 1..50_000u64,
        steps in prop::collection::vec((0..8u64, 0..20_000_000u64), 1..60),
    ) {
        let expiry = Duration::from_micros(expiry_us);
        let period = expiry.as_nanos().div_ceil(buckets as u128 - 1) as u64;
        let (map, clock) = TimeCacheMap::new_manual(expiry, buckets, drop).unwrap();
        let mut model = BTreeMap::<u64, (u64, u64)>::new();
        let mut now = 0;
        for (key, step) in steps {
            clock.advance(Duration::from_nanos(step));
            now += step;
            for (key, &(born, dies)) in &model {
                let (there, age) = (map.contains(key), Duration::from_nanos(now - born));
                prop_assert_eq!(there, now < dies);
                prop_assert!(there || age >= expiry, "{:?} early", expiry - age);
                prop_assert!(!there || age < expiry + Duration::from_nanos(period));
            }
            model.retain(|_, &mut (_, dies)| now < dies);
            prop_assert_eq!(map.len(), model.len());
            map.insert(key, ());
            model.insert(key, (now, (now / period + buckets as u64) * period));
        }
    }
}

// TimeCacheMap.

#[test]
fn a_dead_bucket_goes_to_the_callback_whole_and_once() {
    let (log, expired) = logged();
    let (map, clock) = TimeCacheMap::new_manual(20 * SECOND, 3, expired).unwrap();
    map.insert(1, 10);
    map.insert(2, 20);
    map.insert(3, 30);
    assert_eq!(map.remove(&3), Some(30));
    clock.advance(10 * SECOND);
    map.insert(4, 40);
    clock.advance(19 * SECOND);
    assert!(lock(&log).is_empty());
    clock.advance(SECOND);
    assert_eq!(*lock(&log), [vec![(1, 10), (2, 20)]]);
    clock.advance(100 * SECOND);
    assert_eq!(*lock(&log), [vec![(1, 10), (2, 20)], vec![(4, 40)]], "and no call for empty buckets");
}

#[test]
fn inserting_again_begins_anew() {
    let (log, expired) = logged();
    let (map, clock) = TimeCacheMap::new_manual(20 * SECOND, 3, expired).unwrap();
    for beat in 0..100 {
        assert_eq!(map.insert(1, beat), beat.checked_sub(1));
        clock.advance(19 * SECOND);
        assert_eq!(map.get(&1), Some(beat));
    }
    assert!(lock(&log).is_empty());
    clock.advance(11 * SECOND);
    assert_eq!(*lock(&log), [vec![(1, 99)]]);
}

#[test]
fn what_is_there_is_what_has_neither_expired_nor_left() {
    let (log, expired) = logged();
    let (map, clock) = TimeCacheMap::new_manual(20 * SECOND, 3, expired).unwrap();
    for key in 0..6 {
        map.insert(key, 10 * key);
        clock.advance(6 * SECOND);
    }
    map.remove(&4);
    assert_eq!(sorted(map.entries()), [(2, 20), (3, 30), (5, 50)]);
    let mut keys = map.keys();
    keys.sort_unstable();
    assert_eq!(keys, [2, 3, 5]);
    assert_eq!(lock(&log).concat(), [(0, 0), (1, 10)]);
    map.clear();
    assert!(map.is_empty() && map.keys().is_empty() && map.entries().is_empty());
    map.insert(6, 60);
    clock.advance(100 * SECOND);
    assert_eq!(lock(&log).concat(), [(0, 0), (1, 10), (6, 60)], "what was cleared has not expired");
}

/// Storm's cleaner thread dies of an exception in the callback, and then nothing expires any more.
#[test]
fn a_panicking_callback_stops_nothing() {
    hush_callbacks();
    let (log, expired) = logged();
    let failing = move |bucket: Vec<(u64, u64)>| {
        let fails = bucket[0].0 == 1;
        expired(bucket);
        assert!(!fails, "on purpose");
    };
    let (map, clock) = TimeCacheMap::new_manual(20 * SECOND, 3, failing).unwrap();
    map.insert(1, 1);
    clock.advance(10 * SECOND);
    map.insert(2, 2);
    clock.advance(30 * SECOND);
    map.insert(3, 3);
    clock.advance(30 * SECOND);
    assert_eq!(*lock(&log), [vec![(1, 1)], vec![(2, 2)], vec![(3, 3)]]);
    assert_eq!(map.callback_panics(), 1);
}

#[test]
fn a_callback_may_use_the_map() {
    within(support::PATIENCE, "a callback that inserts", || {
        let own = Arc::new(OnceLock::<Weak<TimeCacheMap<u64, u64>>>::new());
        let seen = Arc::clone(&own);
        let again = move |bucket: Vec<(u64, u64)>| {
            let map = seen.get().and_then(Weak::upgrade).expect("the map is there");
            bucket.into_iter().for_each(|(key, value)| assert_eq!(map.insert(key, value + 1), None));
        };
        let (map, clock) = TimeCacheMap::new_manual(20 * SECOND, 3, again).unwrap();
        let map = Arc::new(map);
        own.set(Arc::downgrade(&map)).unwrap();
        map.insert(1, 0);
        clock.advance(300 * SECOND);
        assert_eq!((map.get(&1), map.callback_panics()), (Some(10), 0));
    });
}

/// A key that looks into the map when it is dropped: the map drops the keys that it replaces or removes.
#[test]
fn keys_may_use_the_map_as_they_go() {
    #[derive(PartialEq, Eq, Hash)]
    struct Key(u64);
    impl Drop for Key {
        fn drop(&mut self) {
            SEEN.with_borrow_mut(|seen| seen.extend(OWN.with_borrow(|map| map.as_ref().map(|map| map.len()))));
        }
    }
    thread_local! {
        static OWN: RefCell<Option<Arc<TimeCacheMap<Key, u64>>>> = const { RefCell::new(None) };
        static SEEN: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
    }
    within(support::PATIENCE, "keys that use the map", || {
        let map = Arc::new(TimeCacheMap::new_manual(20 * SECOND, 3, drop).unwrap().0);
        OWN.set(Some(Arc::clone(&map)));
        assert_eq!((map.insert(Key(1), 10), map.insert(Key(1), 11)), (None, Some(10)));
        assert_eq!(SEEN.take(), [1], "the one that was replaced");
        assert_eq!(map.remove(&Key(1)), Some(11));
        assert_eq!(SEEN.take(), [0, 0], "the one that was removed, and the one that it was asked for with");
        map.insert(Key(2), 20);
        map.clear();
        assert_eq!(SEEN.take(), [0], "the one that was cleared");
        OWN.take();
    });
}

#[test]
fn an_endless_expiry_never_comes() {
    for expiry in [Duration::MAX, Duration::from_secs(1 << 40)] {
        let (map, clock) = TimeCacheMap::new_manual(expiry, 2, drop).unwrap();
        map.insert(1, 1);
        clock.advance(Duration::from_secs(1 << 33));
        assert_eq!(map.get(&1), Some(1));
    }
}

#[test]
fn an_expiry_of_a_nanosecond_works() {
    let (map, clock) = TimeCacheMap::new_manual(Duration::from_nanos(1), 3, drop).unwrap();
    map.insert(1, 1);
    clock.advance(Duration::from_nanos(2));
    assert!(map.contains(&1));
    clock.advance(Duration::from_nanos(1));
    assert!(!map.contains(&1));
}

/// Follows one entry until it is gone. The map reads the clock between our two readings, so both bounds hold to the
/// nanosecond, on any busy machine.
fn follow(map: &TimeCacheMap<u64, u64>, key: u64, expiry: Duration, most: Duration) {
    let before = Instant::now();
    map.insert(key, key);
    let after = Instant::now();
    loop {
        let asked = Instant::now();
        if !map.contains(&key) {
            assert!(before.elapsed() >= expiry, "early: {:?} of {expiry:?}", before.elapsed());
            return;
        }
        assert!(asked - after < most, "late: {:?} of {most:?}", asked - after);
        thread::sleep(MS / 4);
    }
}

#[test]
fn the_bounds_hold_on_the_systems_clock_whatever_the_phase() {
    let expiry = ms(20);
    let map = TimeCacheMap::new(expiry, 3, drop).unwrap();
    thread::scope(|scope| {
        for key in 0..8 {
            let map = &map;
            scope.spawn(move || {
                let mut random = Random::new(key);
                for _ in 0..8 {
                    thread::sleep(Duration::from_micros(random.below(10_000)));
                    follow(map, key, expiry, ms(30));
                }
            });
        }
    });
}

/// A late cleaner must make no entry late, and no entry that is inserted meanwhile early.
#[test]
fn a_stuck_callback_changes_no_bound() {
    let gate = Arc::new(Gate::default());
    let stuck = Arc::clone(&gate);
    let (log, expired) = logged();
    let map = TimeCacheMap::new(ms(20), 3, move |bucket| {
        stuck.pass();
        expired(bucket);
    });
    let map = map.unwrap();
    let opener = Opener(&gate);
    map.insert(0, 0);
    eventually("the callback is stuck", || gate.arrived() == 1);
    (1..4).for_each(|key| follow(&map, key, ms(20), ms(30)));
    assert!(lock(&log).is_empty() && map.is_empty());
    map.insert(4, 4);
    thread::sleep(ms(31));
    assert_eq!(map.keys(), []);
    map.insert(5, 5);
    thread::sleep(ms(31));
    assert_eq!(map.entries(), []);
    map.insert(6, 6);
    thread::sleep(ms(31));
    map.clear();
    drop(opener);
    let handed_over = [0, 1, 2, 3, 4, 5, 6].map(|key| (key, key));
    eventually("all were handed over", || lock(&log).concat().len() == handed_over.len());
    assert_eq!(lock(&log).concat(), handed_over);
}

#[test]
fn dropping_the_map_ends_its_thread_and_drops_everything_once() {
    let (keys, values) = (Ledger::default(), Ledger::default());
    let alive = Arc::new(());
    let held = Arc::clone(&alive);
    let map = TimeCacheMap::new(ms(10), 2, move |bucket: Vec<(Token, Token)>| {
        let _ = &held;
        drop(bucket);
    });
    let map = map.unwrap();
    for id in 0..300 {
        drop(map.insert(keys.token(id % 100), values.token(id)));
        if id % 7 == 0 {
            map.remove(&(id % 100));
        }
        if id % 50 == 0 {
            thread::sleep(ms(6));
        }
    }
    drop(map);
    assert_eq!(Arc::strong_count(&alive), 1, "the callback is gone, and the thread that had it");
    assert_eq!((keys.alive(), values.alive()), (0, 0));
    keys.assert_none_twice();
    values.assert_none_twice();
}

#[test]
fn dropping_the_map_in_its_own_callback_returns() {
    within(support::PATIENCE, "a map dropped in its callback", || {
        let slot = Arc::new(Mutex::new(None::<TimeCacheMap<u64, u64>>));
        let (sender, dropped) = std::sync::mpsc::channel();
        let own = Arc::clone(&slot);
        // The callback waits until the map is in its place.
        let mut shut = lock(&slot);
        let map = TimeCacheMap::new(ms(5), 2, move |_| {
            drop(lock(&own).take().expect("the map is in its place"));
            let _ = sender.send(());
        });
        let map = map.unwrap();
        map.insert(1, 1);
        *shut = Some(map);
        drop(shut);
        dropped.recv().expect("it came back");
    });
}

/// Each value leaves once, by expiry, removal or replacement, or stays.
#[test]
fn nothing_is_lost_and_nothing_leaves_twice_under_threads() {
    const EACH: u64 = 20_000;
    let ends = Arc::new(Ends::new(4 * EACH as usize));
    let expired = Arc::clone(&ends);
    let map = TimeCacheMap::new(ms(2), 3, move |bucket: Vec<(u64, u64)>| {
        bucket.iter().for_each(|&(_, value)| expired.note(value));
    });
    let map = map.unwrap();
    thread::scope(|scope| {
        for caller in 0..4 {
            let (map, ends) = (&map, &ends);
            scope.spawn(move || {
                let mut random = Random::new(caller);
                for value in caller * EACH..(caller + 1) * EACH {
                    map.insert(random.below(64), value).into_iter().for_each(|old| ends.note(old));
                    map.remove(&random.below(64)).into_iter().for_each(|old| ends.note(old));
                }
            });
        }
    });
    eventually("the rest expires", || (0..4 * EACH).all(|value| ends.of(value) > 0));
    assert!((0..4 * EACH).all(|value| ends.of(value) == 1));
}

#[test]
fn a_value_whose_destructor_uses_the_map_goes_without_its_lock_when_its_key_panics() {
    const BUCKETS: usize = 3;
    static MAP: OnceLock<TimeCacheMap<Key, Value>> = OnceLock::new();
    /// How often a key may still be hashed.
    static LEFT: AtomicUsize = AtomicUsize::new(usize::MAX);
    #[derive(PartialEq, Eq)]
    struct Key;
    impl std::hash::Hash for Key {
        fn hash<H: std::hash::Hasher>(&self, _: &mut H) {
            let left = LEFT.fetch_update(SeqCst, SeqCst, |left| left.checked_sub(1));
            assert!(left.is_ok(), "as the test wants it");
        }
    }
    struct Value;
    impl Drop for Value {
        fn drop(&mut self) {
            let _ = MAP.get().expect("it is set").len();
        }
    }
    let map = TimeCacheMap::new(60 * SECOND, BUCKETS, drop::<Vec<(Key, Value)>>).unwrap();
    assert!(MAP.set(map).is_ok());
    within(Duration::from_secs(20), "it does not wait for itself", || {
        let insert = || MAP.get().expect("it is set").insert(Key, Value);
        assert!(insert().is_none() && insert().is_some());
        // At each of the times that it is hashed: once for each bucket, and as it is put in.
        for left in 0..BUCKETS + 1 {
            LEFT.store(left, SeqCst);
            assert!(std::panic::catch_unwind(insert).is_err(), "{left}");
            LEFT.store(usize::MAX, SeqCst);
            assert!(MAP.get().expect("it is set").remove(&Key).is_none_or(|_| left == 0), "{left}");
        }
    });
}

/// The old key goes before the answer is made: otherwise the value in that would be lost.
#[test]
fn a_value_is_not_lost_beside_an_old_key_that_panics_when_dropped() {
    #[derive(PartialEq, Eq, Hash)]
    struct Key(bool);
    impl Drop for Key {
        fn drop(&mut self) {
            assert!(!self.0, "as the test wants it");
        }
    }
    let values = Ledger::default();
    let mut map = RotatingMap::new(2).unwrap();
    let cache = TimeCacheMap::new(60 * SECOND, 2, drop::<Vec<(Key, Token)>>).unwrap();
    let armed = std::mem::ManuallyDrop::new(Key(true));
    for id in 0..4 {
        map.insert(Key(true), values.token(id));
        cache.insert(Key(true), values.token(id + 10));
        let removals: [&mut dyn FnMut() -> Option<Token>; 2] =
            [&mut || map.remove(&*armed), &mut || cache.remove(&*armed)];
        for remove in removals {
            assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(remove)).is_err());
        }
        assert_eq!(values.alive(), 0);
    }
}
