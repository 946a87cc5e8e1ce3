//! Timers that are known by their handles alone.

mod support;

use shardwheel::{Close, IfAbsent, ManualClock, Next, Scheduler, Timer};
use std::collections::BTreeSet;
use std::sync::{Arc, Barrier, Mutex};
use std::thread;
use support::{HOUR, MS, ignore, lock};

type Fired = Arc<Mutex<Vec<(u8, u32)>>>;

fn on_manual_clock() -> (Scheduler<u8, u32>, ManualClock, Fired) {
    let fired = Fired::default();
    let seen = Arc::clone(&fired);
    let built = Scheduler::builder().shards(2).build_manual(move |&key: &u8, value| lock(&seen).push((key, value)));
    let (scheduler, clock) = built.expect("the settings are in range");
    (scheduler, clock, fired)
}

fn begin<K, V>(scheduler: &Scheduler<K, V>, key: K, value: V) -> Timer<K, V>
where
    K: std::hash::Hash + Eq + Send + Sync + 'static,
    V: Send + 'static,
{
    scheduler.schedule_unindexed(key, value, HOUR).unwrap_or_else(|_| panic!("it is open and not full"))
}

#[test]
fn any_number_may_have_one_key_and_no_key_finds_them() {
    let (scheduler, clock, fired) = on_manual_clock();
    let first = begin(&scheduler, 7, 1);
    let _second = begin(&scheduler, 7, 2);
    assert_eq!((scheduler.contains(&7), scheduler.remaining(&7), scheduler.cancel(&7)), (false, None, None));
    assert!(!scheduler.reschedule(&7, MS) && !scheduler.expire_now(&7));
    assert_eq!(scheduler.schedule_with(7, 3, HOUR).expect("open"), None, "nothing is replaced");
    assert_eq!(
        scheduler.schedule_if_absent(7, 4, HOUR).expect("open"),
        IfAbsent::Exists(4),
        "the one that the key leads to is there"
    );
    let _third = begin(&scheduler, 7, 5);
    assert_eq!((scheduler.len(), scheduler.cancel(&7)), (4, Some(3)));
    assert!(first.is_pending() && first.reschedule(2 * HOUR) && first.remaining() == Some(2 * HOUR));
    assert_eq!(clock.advance(HOUR), 2);
    let mut both = std::mem::take(&mut *lock(&fired));
    both.sort_unstable();
    assert_eq!(both, [(7, 2), (7, 5)]);
    assert_eq!((first.cancel(), first.cancel(), scheduler.len()), (Some(1), None, 0));
    assert!(begin(&scheduler, 8, 6).expire_now());
    assert_eq!(*lock(&fired), [(8, 6)]);
}

#[test]
fn what_finds_no_room_comes_back() {
    let built = Scheduler::builder().capacity(2).build_manual(|_: &u8, _: u32| {});
    let (scheduler, clock) = built.expect("the settings are in range");
    let (first, _second) = (begin(&scheduler, 1, 1), begin(&scheduler, 1, 2));
    let full = scheduler.schedule_unindexed(1, 3, MS).expect_err("it is full");
    assert!(full.is_full() && full.into_inner() == (1, 3));
    assert_eq!(first.cancel(), Some(1));
    let _third = begin(&scheduler, 1, 4);
    assert!(scheduler.schedule_with(1, 5, MS).is_err_and(|error| error.is_full()));
    assert_eq!(clock.advance(2 * HOUR), 2);
    let _fourth = begin(&scheduler, 1, 6);
    scheduler.close(Close::Discard);
    let closed = scheduler.schedule_unindexed_at(1, 7, clock.now()).expect_err("it is closed");
    assert!(closed.is_closed() && closed.into_inner() == (1, 7));
    let stats = scheduler.stats();
    assert_eq!((stats.scheduled, stats.rejected, stats.discarded, stats.fired), (4, 3, 1, 2));
}

#[test]
fn drain_and_close_include_them() {
    let (scheduler, _clock, fired) = on_manual_clock();
    let mut drained = Vec::new();
    let timer = begin(&scheduler, 1, 10);
    assert_eq!(scheduler.drain(|&key, value| drained.push((key, value))), 1);
    assert_eq!((drained.as_slice(), timer.cancel()), ([(1, 10)].as_slice(), None));
    let timers = [begin(&scheduler, 2, 20), begin(&scheduler, 2, 21)];
    scheduler.schedule_with(2, 22, 2 * HOUR).expect("open");
    let mut closed = scheduler.close(Close::Return);
    closed.returned.sort_unstable();
    assert_eq!(closed.returned, [(2, 20, HOUR), (2, 21, HOUR), (2, 22, 2 * HOUR)]);
    assert!(timers.iter().all(|timer| timer.cancel().is_none()) && lock(&fired).is_empty());

    let (scheduler, _clock, fired) = on_manual_clock();
    let _timers = [begin(&scheduler, 1, 10), begin(&scheduler, 1, 11)];
    assert_eq!((scheduler.close(Close::FireNow).fired, lock(&fired).len()), (2, 2));
}

#[test]
fn they_come_back_until_their_handle_ends_them() {
    let built = Scheduler::builder().build_rearming_manual(|_: &u8, count: &mut u32| {
        *count += 1;
        Next::After(HOUR)
    });
    let (scheduler, clock) = built.expect("the settings are in range");
    let timer = begin(&scheduler, 1, 0);
    assert_eq!((clock.advance(10 * HOUR), timer.remaining()), (10, Some(HOUR)));
    assert_eq!((timer.cancel(), clock.advance(10 * HOUR)), (Some(10), 0));
}

/// One thread uses all shards, whatever it starts by key in between.
#[test]
fn they_go_to_all_shards() {
    for by_key_between in [0, 511] {
        let built = Scheduler::builder().shards(8).build_manual(|_: &u8, _: u32| {});
        let (scheduler, _clock) = built.expect("the settings are in range");
        let count = 64 * 1024 / (1 + by_key_between);
        for value in 0..count {
            drop(begin(&scheduler, 1, value));
            // At most one of these is pending at a time.
            (0..by_key_between).for_each(|_| ignore(scheduler.schedule_with(1, value, HOUR)));
            scheduler.cancel(&1);
        }
        let shards = scheduler.stats().shards;
        let hints: Vec<_> = shards.iter().map(|shard| shard.mailbox_depth + shard.wheel_entries).collect();
        let is_fair = |hints: u64| (count / 16..=count / 4).contains(&(hints as u32));
        // One shard has those of the key as well.
        assert!(hints.iter().filter(|&&hints| is_fair(hints)).count() >= 7, "{hints:?}");
    }
}

/// Many timers begin while another thread closes: each that was accepted comes back once, and the rest was refused.
#[test]
fn what_is_accepted_while_it_closes_is_returned() {
    const THREADS: u32 = 3;
    const ROUNDS: u32 = 80;
    let mut refused = 0;
    for round in 0..ROUNDS {
        let scheduler =
            Scheduler::builder().shards(2).build(|_: &String, _: u32| {}).expect("the settings are in range");
        if round % 2 == 0 {
            // So that there are nodes to be reused.
            (0..1000)
                .map(|value| begin(&scheduler, "before".to_owned(), value))
                .for_each(|timer| ignore(timer.cancel()));
        }
        let start = Barrier::new(THREADS as usize + 1);
        let start = &start;
        let (accepted, returned) = thread::scope(|scope| {
            let scheduler = &scheduler;
            let caller = |thread: u32| {
                move || {
                    start.wait();
                    let mut accepted = Vec::new();
                    for value in (0..).map(|count| count * THREADS + thread) {
                        match scheduler.schedule_unindexed(value.to_string(), value, HOUR) {
                            Ok(timer) if value % 3 == 0 && timer.cancel().is_some() => {}
                            Ok(_) => accepted.push(value),
                            Err(error) => {
                                assert_eq!(error.into_inner(), (value.to_string(), value));
                                break;
                            }
                        }
                    }
                    accepted
                }
            };
            let callers: Vec<_> = (0..THREADS).map(|thread| scope.spawn(caller(thread))).collect();
            start.wait();
            (0..round % 7).for_each(|_| thread::yield_now());
            let returned = scheduler.close(Close::Return).returned;
            (callers.into_iter().flat_map(|caller| caller.join().expect("no panic")).collect::<Vec<_>>(), returned)
        });
        let keys_fit = returned.iter().all(|(key, value, _)| *key == value.to_string());
        let returned: Vec<u32> = returned.into_iter().map(|(_, value, _)| value).collect();
        assert_eq!(BTreeSet::from_iter(&accepted), BTreeSet::from_iter(&returned));
        assert!(keys_fit && accepted.len() == returned.len());
        let stats = scheduler.stats();
        refused += stats.rejected;
        assert_eq!(stats.scheduled, stats.cancelled + stats.returned);
    }
    assert_eq!(refused, u64::from(ROUNDS * THREADS), "the end of each caller");
}
