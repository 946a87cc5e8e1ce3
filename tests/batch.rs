//! A batch answers as the single calls do, one after the other.

use proptest::collection::vec;
use proptest::prelude::*;
use shardwheel::{Close, ManualClock, ScheduleError, Scheduler};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const MS: Duration = Duration::from_millis(1);

/// What fired, in which order.
type Fired = Arc<Mutex<Vec<(u8, u32)>>>;
/// An answer of `schedule_batch`, in a form that can be compared.
type Answer = Result<Option<u32>, (u8, u32)>;

fn scheduler(capacity: usize) -> (Scheduler<u8, u32>, ManualClock, Fired) {
    let fired = Fired::default();
    let sink = Arc::clone(&fired);
    let builder = Scheduler::builder().shards(2).capacity(capacity);
    let (scheduler, clock) =
        builder.build_manual(move |&key: &u8, value: u32| sink.lock().unwrap().push((key, value))).unwrap();
    (scheduler, clock, fired)
}

fn plain(answer: Result<Option<u32>, ScheduleError<u8, u32>>) -> Answer {
    answer.map_err(ScheduleError::into_inner)
}

#[derive(Clone, Debug)]
enum Batch {
    Schedule(Vec<(u8, u64)>),
    Reschedule(Vec<(u8, u64)>),
    Cancel(Vec<u8>),
    Advance(u64),
}

/// Every other one is of a few items, which have a way of their own.
fn items<T: Strategy + Clone>(item: T) -> impl Strategy<Value = Vec<T::Value>> {
    prop_oneof![vec(item.clone(), 0..4), vec(item, 0..100)]
}

fn batch() -> impl Strategy<Value = Batch> {
    let (key, ms) = (0..60u8, 0..30u64);
    prop_oneof![
        items((key.clone(), ms.clone())).prop_map(Batch::Schedule),
        items((key.clone(), ms)).prop_map(Batch::Reschedule),
        items(key).prop_map(Batch::Cancel),
        (0..20u64).prop_map(Batch::Advance),
    ]
}

proptest! {
    #[test]
    fn a_batch_answers_as_the_single_calls_in_order(batches in vec(batch(), 1..20), capacity in 20..80usize) {
        let (batched, batched_clock, batched_fired) = scheduler(capacity);
        let (single, single_clock, single_fired) = scheduler(capacity);
        let mut value = 0;
        for batch in batches {
            match batch {
                Batch::Schedule(timers) => {
                    let timers = timers.into_iter().map(|(key, ms)| { value += 1; (key, value, MS * ms as u32) });
                    let timers: Vec<_> = timers.collect();
                    let answers: Vec<Answer> = batched.schedule_batch(timers.clone()).into_iter().map(plain).collect();
                    let expected: Vec<Answer> = timers.into_iter()
                        .map(|(key, value, delay)| plain(single.schedule_with(key, value, delay))).collect();
                    prop_assert_eq!(answers, expected);
                }
                Batch::Reschedule(moves) => {
                    let answers = batched.reschedule_batch(moves.iter().map(|(key, ms)| (key, MS * *ms as u32)));
                    let expected: Vec<bool> =
                        moves.iter().map(|(key, ms)| single.reschedule(key, MS * *ms as u32)).collect();
                    prop_assert_eq!(answers, expected);
                }
                Batch::Cancel(keys) => {
                    let expected: Vec<Option<u32>> = keys.iter().map(|key| single.cancel(key)).collect();
                    prop_assert_eq!(batched.cancel_batch(&keys), expected);
                }
                Batch::Advance(ms) => {
                    prop_assert_eq!(batched_clock.advance(MS * ms as u32), single_clock.advance(MS * ms as u32));
                }
            }
            prop_assert_eq!(batched.len(), single.len());
        }
        batched_clock.advance(MS * 40);
        single_clock.advance(MS * 40);
        let sorted = |fired: Fired| { let mut fired = fired.lock().unwrap().clone(); fired.sort(); fired };
        prop_assert_eq!(sorted(batched_fired), sorted(single_fired));
        prop_assert_eq!(batched.stats().pending, 0);
    }
}

#[test]
fn delays_of_a_batch_count_from_within_the_call() {
    let (scheduler, clock, fired) = scheduler(1000);
    clock.advance(MS * 7);
    let answers = scheduler.schedule_batch((0..200).map(|key| {
        // Time passes while the batch is put together.
        clock.advance(MS / 10);
        (key, 0, MS * 50)
    }));
    assert!(answers.into_iter().all(|answer| matches!(answer, Ok(None))));
    assert_eq!(clock.advance(MS * 29), 0, "a delay that began before the call");
    assert_eq!(clock.advance(MS * 21), 200, "a delay that began after the call");
    assert_eq!(fired.lock().unwrap().len(), 200);
}

#[test]
fn a_full_scheduler_takes_what_fits_and_gives_the_rest_back() {
    let (scheduler, _clock, _) = scheduler(3);
    let answers = scheduler.schedule_batch((0..5).map(|key| (key, u32::from(key), MS)));
    let answers: Vec<Answer> = answers.into_iter().map(plain).collect();
    assert_eq!(answers, [Ok(None), Ok(None), Ok(None), Err((3, 3)), Err((4, 4))]);
    assert_eq!(scheduler.stats().rejected, 2);
}

#[test]
fn a_closed_scheduler_gives_all_back() {
    let (scheduler, _clock, _) = scheduler(3);
    scheduler.close(Close::Discard);
    for keys in [[1].as_slice(), &[1, 2], &[1, 2, 3]] {
        let answers = scheduler.schedule_batch(keys.iter().map(|&key| (key, 1, MS)));
        assert!(answers.iter().all(|answer| matches!(answer, Err(ScheduleError::Closed(..)))));
        assert_eq!(scheduler.reschedule_batch(keys.iter().map(|key| (key, MS))), vec![false; keys.len()]);
        assert_eq!(scheduler.cancel_batch(keys), vec![None; keys.len()]);
        assert_eq!(answers.len(), keys.len());
    }
}

#[test]
fn an_iterator_that_panics_loses_nothing_that_was_begun() {
    let (scheduler, clock, fired) = scheduler(1000);
    let timers = (0..100).map(|key| {
        assert!(key != 70, "on purpose");
        (key, 0, MS)
    });
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| scheduler.schedule_batch(timers)));
    assert!(panicked.is_err());
    let begun = scheduler.len();
    assert!(begun <= 70, "none that the iterator had not given");
    assert_eq!(clock.advance(MS * 2), begun);
    assert_eq!(fired.lock().unwrap().len(), begun);
}

#[test]
fn a_batch_ends_where_its_iterator_first_does() {
    let (scheduler, _clock, _) = scheduler(1000);
    let mut keys = 0..100;
    // Goes on after its end, as some do.
    let timers = std::iter::from_fn(|| keys.next().filter(|&key| key != 3).map(|key| (key, 0, MS)));
    assert_eq!(scheduler.schedule_batch(timers).len(), 3);
}

#[test]
fn batches_may_hold_borrowed_keys() {
    let (scheduler, _clock) = Scheduler::builder().build_manual(|_: &String, _: ()| {}).unwrap();
    scheduler.schedule("a".to_owned(), MS).unwrap();
    assert_eq!(scheduler.reschedule_batch([("a", MS), ("b", MS)]), [true, false]);
    assert_eq!(scheduler.cancel_batch(["b", "a"]), [None, Some(())]);
}
