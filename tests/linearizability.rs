//! Histories of real threads on one key, checked against every possible order: each answer, and each expiry, must be
//! explained by *some* order of the operations that respects which ended before which began.
//!
//! The search is that of Wing and Gong, "Testing and Verifying Concurrent Objects", J. Parallel Distrib. Comput. 17, 1993,
//! with Lowe's memory of what was tried. Keys are independent, so one key at a time is enough.

use shardwheel::{Executor, Pinning, Scheduler};
use std::collections::HashSet;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Barrier, Mutex};
use std::thread;
use std::time::Duration;

const ROUNDS: u64 = 1_500;
const CALLERS: u64 = 3;
const CALLS: u64 = 6;
const KEY: u32 = 7;

/// What was done, and what came back. Values are unique in a history.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Call {
    Schedule { value: u64, replaced: Option<u64> },
    Cancel { value: Option<u64> },
    Reschedule { moved: bool },
    Contains { found: bool },
    Expire { value: u64 },
}

#[derive(Clone, Copy, Debug)]
struct Event {
    call: Call,
    begun: u64,
    ended: u64,
}

/// What the key's timer is after `call`, if that answer fits a timer that was `pending`.
fn apply(pending: Option<u64>, call: Call) -> Option<Option<u64>> {
    let (fits, after) = match call {
        Call::Schedule { value, replaced } => (replaced == pending, Some(value)),
        Call::Cancel { value } => (value == pending, None),
        Call::Reschedule { moved } => (moved == pending.is_some(), pending),
        Call::Contains { found } => (found == pending.is_some(), pending),
        Call::Expire { value } => (pending == Some(value), None),
    };
    fits.then_some(after)
}

/// True if some order explains all events.
fn is_linearizable(events: &[Event]) -> bool {
    fn search(events: &[Event], done: u64, pending: Option<u64>, tried: &mut HashSet<(u64, Option<u64>)>) -> bool {
        let left = || (0..events.len()).filter(|index| done & 1 << index == 0);
        // Only what began before the first of the others ended can be next.
        let Some(first_end) = left().map(|index| events[index].ended).min() else { return true };
        tried.insert((done, pending))
            && left().filter(|&index| events[index].begun <= first_end).any(|index| {
                apply(pending, events[index].call).is_some_and(|after| search(events, done | 1 << index, after, tried))
            })
    }
    assert!(events.len() <= 64, "the set of events done is a machine word");
    search(events, 0, None, &mut HashSet::new())
}

/// One more than any number before: a clock that all threads agree on.
fn now(clock: &AtomicU64) -> u64 {
    clock.fetch_add(1, SeqCst)
}

/// One call, chosen by `choice`.
fn call(scheduler: &Scheduler<u32, u64>, choice: u64, value: u64) -> Call {
    let delay = [Duration::ZERO, Duration::from_micros(30), Duration::from_secs(60)][(choice / 8 % 3) as usize];
    match choice % 8 {
        0..=2 => Call::Schedule { value, replaced: scheduler.schedule_with(KEY, value, delay).expect("open") },
        3 | 4 => Call::Cancel { value: scheduler.cancel(&KEY) },
        5 | 6 => Call::Reschedule { moved: scheduler.reschedule(&KEY, delay) },
        _ => Call::Contains { found: scheduler.contains(&KEY) },
    }
}

/// A round of calls from several threads at once; everything that happened.
fn history(seed: u64) -> Vec<Event> {
    let clock = Arc::new(AtomicU64::new(1));
    let fired = Arc::new(Mutex::new(Vec::new()));
    let scheduler = {
        let (clock, fired) = (Arc::clone(&clock), Arc::clone(&fired));
        Scheduler::builder()
            .tick(Duration::from_micros(10))
            .shards(1)
            .pinning(Pinning::Off)
            .executor(Executor::Inline)
            .build(move |_: &u32, value: u64| fired.lock().expect("no panic").push((value, now(&clock))))
            .expect("valid settings")
    };
    let start = Barrier::new(CALLERS as usize);
    let calls = thread::scope(|scope| {
        let callers: Vec<_> = (0..CALLERS)
            .map(|caller| {
                let (scheduler, clock, start) = (&scheduler, &clock, &start);
                scope.spawn(move || {
                    start.wait();
                    let one = |number: u64| {
                        let value = caller * CALLS + number + 1;
                        let choice = (seed * 31 + value).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
                        let begun = now(clock);
                        let call = call(scheduler, choice, value);
                        Event { call, begun, ended: now(clock) }
                    };
                    (0..CALLS).map(one).collect::<Vec<_>>()
                })
            })
            .collect();
        callers.into_iter().flat_map(|caller| caller.join().expect("no panic")).collect::<Vec<_>>()
    });
    // Joins the worker, so that every callback has run.
    drop(scheduler);
    let expired = fired.lock().expect("no panic").iter().map(|&(value, ended)| expiry(&calls, value, ended)).collect();
    [calls, expired].concat()
}

/// An expiry took place some time between the call that started the timer and its callback.
fn expiry(calls: &[Event], value: u64, ended: u64) -> Event {
    let started = |event: &&Event| matches!(event.call, Call::Schedule { value: own, .. } if own == value);
    let begun = calls.iter().find(started).expect("only what was scheduled fires").begun;
    Event { call: Call::Expire { value }, begun, ended }
}

#[test]
fn every_history_has_an_order() {
    let mut expiries = 0;
    for seed in 0..ROUNDS {
        let events = history(seed);
        expiries += events.iter().filter(|event| matches!(event.call, Call::Expire { .. })).count();
        assert!(is_linearizable(&events), "seed {seed}: no order explains {events:#?}");
    }
    assert!(expiries > 100, "the histories must contain expiries; there were {expiries}");
}

#[test]
fn histories_without_an_order_are_found() {
    let event = |call, begun, ended| Event { call, begun, ended };
    let scheduled = event(Call::Schedule { value: 1, replaced: None }, 1, 2);
    let cancelled = Call::Cancel { value: Some(1) };
    assert!(is_linearizable(&[scheduled, event(cancelled, 3, 4)]));
    let impossible = [
        vec![scheduled, event(cancelled, 3, 4), event(Call::Expire { value: 1 }, 1, 5)],
        vec![scheduled, event(Call::Contains { found: false }, 3, 4)],
        vec![scheduled, event(cancelled, 3, 6), event(cancelled, 4, 5)],
        vec![scheduled, event(Call::Schedule { value: 2, replaced: None }, 3, 4)],
        vec![event(Call::Reschedule { moved: true }, 1, 2), event(Call::Schedule { value: 1, replaced: None }, 3, 4)],
    ];
    for history in impossible {
        assert!(!is_linearizable(&history), "{history:?}");
    }
}
