//! What becomes of timers when they end, also with the last handle.

use super::*;
use crate::Next;
use crate::executor::Executor;
use std::sync::Barrier;

/// The timers that are still pending once the last handle has gone: inside a callback if there is a `stage` to let it
/// go from.
fn left_pending<V: Send + 'static>(value: impl Fn() -> V, stage: Option<Executor>) -> usize {
    let (sender, last) = std::sync::mpsc::channel::<Scheduler<u64, V>>();
    let (last, is_over) = (Mutex::new(last), Arc::new(Barrier::new(2)));
    let goes_in_callback = stage.is_some();
    let seen = Arc::clone(&is_over);
    let callback = move |_: &u64, _: V| {
        drop(last.lock().expect("nobody panics").recv());
        seen.wait();
    };
    let builder = stage.into_iter().fold(Scheduler::builder().shards(2), Builder::executor);
    let scheduler = builder.build(callback).expect("in range");
    let core = Arc::clone(&scheduler.0.core);
    let schedule = |key, delay| assert!(scheduler.schedule_with(key, value(), delay).is_ok());
    (0..100).for_each(|key| schedule(key, Duration::from_secs(3600)));
    if goes_in_callback {
        schedule(100, Duration::ZERO);
        sender.send(scheduler).expect("the callback waits for it");
        is_over.wait();
    } else {
        drop(scheduler);
    }
    let mut count = 0;
    let ordinal = thread::ordinal();
    let _access = Access::new(&ordinal);
    core.shards.iter().for_each(|shard| shard.identities(|_| count += 1));
    count
}

#[test]
fn the_end_leaves_timers_as_they_are_if_they_have_nothing_to_drop() {
    assert_eq!(left_pending(|| 7, None), 100);
    let value = Arc::new(());
    assert_eq!((left_pending(|| Arc::clone(&value), None), Arc::strong_count(&value)), (0, 1));
}

#[test]
fn the_end_leaves_none_pending_where_a_worker_may_be_left() {
    let pool = rayon::ThreadPoolBuilder::new().num_threads(1).build().expect("a small pool");
    for stage in [Executor::Inline, Executor::Rayon(Arc::new(pool))] {
        assert_eq!(left_pending(|| 7, Some(stage)), 0);
    }
}

/// Nodes that are still in use when twenty thousand timers, one after the other, have ended in this way.
fn nodes_left<K: Hash + Eq + Send + Sync + 'static>(
    key: impl Fn(u64) -> K,
    end: impl Fn(&Scheduler<K, u64>, &crate::ManualClock, &K),
) -> u64 {
    let callback = |_: &K, value: &mut u64| {
        *value += 1;
        if *value < 2 { Next::After(Duration::from_millis(1)) } else { Next::Done }
    };
    let built = Scheduler::builder().shards(1).build_rearming_manual(callback);
    let (scheduler, clock) = built.expect("in range");
    // No whole number of batches: one is begun.
    for number in 0..20_001 {
        assert!(scheduler.schedule_with(key(number), 0, Duration::from_millis(1)).is_ok_and(|old| old.is_none()));
        end(&scheduler, &clock, &key(number));
        assert!(scheduler.is_empty());
    }
    scheduler.0.core.shards[0].nodes_in_use()
}

/// Whether keys have a destructor decides who says that a timer is done.
fn nodes_come_back<K: Hash + Eq + Send + Sync + 'static>(key: impl Fn(u64) -> K + Copy) {
    let far = Duration::from_secs(60);
    let left = [
        nodes_left(key, |timers, _, key| _ = timers.cancel(key)),
        nodes_left(key, |_, clock, _| _ = clock.advance(Duration::from_millis(5))),
        nodes_left(key, |timers, clock, key| {
            assert!(timers.expire_now(key));
            clock.advance(Duration::from_millis(5));
        }),
        nodes_left(key, |timers, _, _| _ = timers.drain(|_, _| {})),
        nodes_left(
            |_| key(0),
            |timers, _, _| {
                let (old, timer) = timers.schedule_with_handle(key(0), 0, far).expect("it is open and not full");
                assert_eq!((old, timer.cancel()), (Some(0), Some(0)));
            },
        ),
    ];
    // A batch of nodes is kept ready, and another waits to be retired.
    assert!(left.iter().all(|nodes| (1..=512).contains(nodes)), "nodes were lost, or are there twice: {left:?}");
}

#[test]
fn nodes_come_back_however_their_timers_end() {
    nodes_come_back(|number| number);
    nodes_come_back(|number| number.to_string());
}
