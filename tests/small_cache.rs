//! As `small.rs`, for caches, and for maps that expire by the bucket.
#![cfg(feature = "cache")]

#[path = "support/counted.rs"]
mod counted;

use counted::{Counted, ROUNDS, key};
use shardwheel::ManualClock;
use shardwheel::cache::{Cache, Cause};
use shardwheel::rotating::TimeCacheMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

const MS: Duration = Duration::from_millis(1);
/// More keys than fit under the limit.
const KEYS: u64 = 3;

fn race(act: impl Fn(u64) + Sync, clock: &ManualClock) {
    thread::scope(|scope| {
        for salt in 0..2 {
            let act = &act;
            scope.spawn(move || act(salt));
        }
        scope.spawn(|| {
            for _ in 0..4 {
                clock.advance(MS);
            }
        });
    });
}

/// Every operation on a cache, as one caller.
fn use_cache(cache: &Cache<String, Counted>, alive: &Arc<AtomicUsize>, salt: u64) {
    for n in 0..KEYS {
        let name = key((salt + n) % KEYS);
        cache.insert(name.clone(), Counted::new(alive));
        cache.get(&name);
        cache.insert_with_ttl(name.clone(), Counted::new(alive), MS);
        cache.renew_with_ttl(&name, MS * (1 + salt as u32));
        cache.renew(&name);
        cache.for_each(|_, _| ());
        cache.remove(&key((salt + n + 1) % KEYS));
        cache.get_or_insert_with(name, || Counted::new(alive));
    }
}

#[test]
fn callers_of_a_cache_race_with_expiry_and_eviction() {
    for (limit, renews_on_get) in [(2, false), (100, true)] {
        for _ in 0..ROUNDS {
            let alive = Arc::new(AtomicUsize::new(0));
            let heard = Arc::new(AtomicU64::new(0));
            let count = Arc::clone(&heard);
            let builder = Cache::builder(MS * 2).jitter(0.0).shards(1).limit(limit).renew_on_get(renews_on_get);
            let listened = builder.listener(move |_: &String, _: &Counted, _: Cause| {
                count.fetch_add(1, Relaxed);
            });
            let (cache, clock) = listened.build_manual().expect("valid settings");
            race(|salt| use_cache(&cache, &alive, salt), &clock);
            clock.advance(MS * 10);
            let stats = cache.stats();
            let ended = stats.expired + stats.replaced + stats.removed + stats.evicted;
            assert_eq!((stats.entries, stats.inserted), (0, ended), "{stats:?}");
            assert_eq!((heard.load(Relaxed), stats.listener_panics), (ended, 0));
            drop(cache);
            assert_eq!(alive.load(Relaxed), 0);
        }
    }
}

#[test]
fn a_value_is_loaded_once_however_many_ask() {
    for _ in 0..ROUNDS {
        let (cache, clock) = Cache::builder(MS * 100).jitter(0.0).shards(1).build_manual().expect("valid settings");
        let loads = AtomicUsize::new(0);
        race(|_| assert_eq!(cache.get_or_insert_with(7, || loads.fetch_add(1, Relaxed)), 0), &clock);
        assert_eq!(loads.load(Relaxed), 1);
    }
}

#[test]
fn callers_of_a_map_race_with_its_rotation() {
    for _ in 0..ROUNDS {
        let alive = Arc::new(AtomicUsize::new(0));
        let expired = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&expired);
        let (map, clock) = TimeCacheMap::new_manual(MS * 4, 3, move |bucket: Vec<(String, Counted)>| {
            count.fetch_add(bucket.len(), Relaxed);
        })
        .expect("valid settings");
        let left = AtomicUsize::new(0);
        race(
            |salt| {
                for n in 0..KEYS {
                    let name = key((salt + n) % KEYS);
                    let replaced = map.insert(name.clone(), Counted::new(&alive));
                    map.get(&name);
                    map.contains(&name);
                    map.keys();
                    let removed = map.remove(&key((salt + n + 1) % KEYS));
                    left.fetch_add(usize::from(replaced.is_some()) + usize::from(removed.is_some()), Relaxed);
                }
            },
            &clock,
        );
        clock.advance(MS * 10);
        assert_eq!((map.len(), map.callback_panics()), (0, 0));
        let inserted = 2 * KEYS as usize;
        assert_eq!(expired.load(Relaxed) + left.load(Relaxed), inserted, "each left once");
        drop(map);
        assert_eq!(alive.load(Relaxed), 0);
    }
}
