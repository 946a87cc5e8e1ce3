//! Histories of real threads on one key, checked against every possible order: each answer, and each expiry, must be
//! explained by *some* order of the operations that respects which ended before which began.
//!
//! The search is that of Wing and Gong, "Testing and Verifying Concurrent Objects", J. Parallel Distrib. Comput. 17, 1993,
//! with Lowe's memory of what was tried. Keys are independent, so one key at a time is enough.
//!
//! A compare-exchange that is torn into load and store leaves a window of some nanoseconds, which only threads that run
//! truly at once, on the same key, hit. So nobody waits at a barrier: every caller takes the next number, and the numbers
//! walk over the keys.

mod support;

use shardwheel::{Executor, Pinning, Scheduler, Timer};
use std::cell::Cell;
use std::collections::HashSet;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;
use support::{PATIENCE, eventually, lock, within};

/// Each batch has a scheduler of its own.
const BATCHES: u64 = 90;
const KEYS: u64 = 3_072;
/// Calls on one key.
const CALLS: u64 = 24;

/// When a timer is due, seen from a batch.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Due {
    Soon,
    /// Long after the end of the batch.
    Never,
}

/// What was done, and what came back. Values are unique in a history.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Call {
    Schedule {
        value: u64,
        due: Due,
        replaced: Option<u64>,
    },
    /// `cancel`, and `expire_now`, which hands the value to the callback instead.
    Take {
        value: Option<u64>,
    },
    Reschedule {
        due: Due,
        moved: bool,
    },
    /// As the two before, by a handle of the timer that has this value.
    TakeThis {
        value: u64,
        taken: bool,
    },
    RescheduleThis {
        value: u64,
        due: Due,
        moved: bool,
    },
    Look {
        due: Option<Due>,
    },
    Expire {
        value: u64,
    },
}

#[derive(Clone, Copy, Debug)]
struct Event {
    call: Call,
    begun: u64,
    ended: u64,
}

/// The value and deadline of the key's timer.
type Pending = Option<(u64, Due)>;

/// What the key's timer is after `call`, if that answer fits a timer that was `pending`.
fn apply(pending: Pending, call: Call) -> Option<Pending> {
    let own = pending.map(|(value, _)| value);
    let (fits, after) = match call {
        Call::Schedule { value, due, replaced } => (replaced == own, Some((value, due))),
        Call::Take { value } => (value == own, None),
        Call::Reschedule { due, moved } => (moved == own.is_some(), own.map(|own| (own, due))),
        Call::TakeThis { value, taken } => (taken == (own == Some(value)), pending.filter(|_| !taken)),
        Call::RescheduleThis { value, due, moved } => {
            (moved == (own == Some(value)), if moved { Some((value, due)) } else { pending })
        }
        Call::Look { due } => (due == pending.map(|(_, due)| due), pending),
        Call::Expire { value } => (pending == Some((value, Due::Soon)), None),
    };
    fits.then_some(after)
}

/// True if some order explains all events.
fn is_linearizable(events: &[Event]) -> bool {
    fn search(events: &[Event], done: u64, pending: Pending, tried: &mut HashSet<(u64, Pending)>) -> bool {
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

thread_local! {
    /// The value that this thread's `expire_now` has fired.
    static FIRED_HERE: Cell<Option<u64>> = const { Cell::new(None) };
}

/// What the threads of a batch share.
struct Batch {
    scheduler: Scheduler<u64, u64>,
    /// One more at each reading: a clock that all threads agree on.
    clock: Arc<AtomicU64>,
    /// The worker's callbacks: key, value, time.
    expired: Arc<Mutex<Vec<(u64, u64, u64)>>>,
    next: AtomicU64,
    seed: u64,
}

/// A caller's last timer: its key, its value, its handle.
type Own = Option<(u64, u64, Timer<u64, u64>)>;

impl Batch {
    fn new(seed: u64) -> Self {
        let (clock, expired) = (Arc::new(AtomicU64::new(1)), Arc::new(Mutex::new(Vec::new())));
        let (time, log) = (Arc::clone(&clock), Arc::clone(&expired));
        let callback = move |key: &u64, value: u64| {
            if thread::current().name().is_some_and(|name| name.starts_with("shardwheel")) {
                lock(&log).push((*key, value, time.fetch_add(1, SeqCst)));
            } else {
                FIRED_HERE.set(Some(value));
            }
        };
        let builder = Scheduler::builder().tick(Duration::from_micros(10)).shards(1).pinning(Pinning::Off);
        let scheduler = builder.executor(Executor::Inline).build(callback).expect("in range");
        Self { scheduler, clock, expired, next: AtomicU64::new(0), seed }
    }

    /// The same choice for the same number in the same batch.
    fn choice(&self, number: u64) -> u64 {
        (self.seed * KEYS * CALLS + number + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40
    }

    /// Numbers walk over one key at a time, so that callers meet, or over many in turn, so that the worker has the time to
    /// meet them.
    fn key(&self, number: u64) -> u64 {
        let width = [1, 8, 1, 64][(self.seed % 4) as usize];
        number / (CALLS * width) * width + number % width
    }

    /// One caller: takes numbers until there are none.
    fn calls(&self) -> Vec<(u64, Event)> {
        let mut own = None;
        let next = || Some(self.next.fetch_add(1, SeqCst)).filter(|&number| number < KEYS * CALLS);
        std::iter::from_fn(|| next().map(|number| (self.key(number), self.event(|| self.call(number, &mut own)))))
            .collect()
    }

    fn event(&self, call: impl FnOnce() -> Call) -> Event {
        let begun = self.clock.fetch_add(1, SeqCst);
        let call = call();
        Event { call, begun, ended: self.clock.fetch_add(1, SeqCst) }
    }

    fn call(&self, number: u64, own: &mut Own) -> Call {
        let (scheduler, key, value, choice) = (&self.scheduler, self.key(number), number + 1, self.choice(number));
        let micros = [0, 0, 20, 60_000_000][(choice / 16 % 4) as usize];
        let (delay, due) = (Duration::from_micros(micros), if micros < 1_000 { Due::Soon } else { Due::Never });
        match (choice % 16, own) {
            (6, Some((of, value, timer))) if *of == key => {
                Call::TakeThis { value: *value, taken: timer.cancel().is_some() }
            }
            (7 | 8, Some((of, value, timer))) if *of == key => {
                Call::RescheduleThis { value: *value, due, moved: timer.reschedule(delay) }
            }
            (0..=6, own) => {
                let (replaced, timer) = scheduler.schedule_with_handle(key, value, delay).expect("open and not full");
                *own = Some((key, value, timer));
                Call::Schedule { value, due, replaced }
            }
            (7..=10, _) => Call::Reschedule { due, moved: scheduler.reschedule(&key, delay) },
            (11..=13, _) => Call::Take { value: scheduler.cancel(&key) },
            (14, _) => Call::Take { value: scheduler.expire_now(&key).then(|| FIRED_HERE.take()).flatten() },
            _ => self.look(key),
        }
    }

    fn look(&self, key: u64) -> Call {
        let soon = |left| if left < Duration::from_secs(30) { Due::Soon } else { Due::Never };
        Call::Look { due: self.scheduler.remaining(&key).map(soon) }
    }

    /// Everything that happened, by key.
    fn run(self) -> Vec<Vec<Event>> {
        let mut events = vec![Vec::new(); KEYS as usize];
        let callers = thread::scope(|scope| {
            let callers: Vec<_> = (0..2 + self.seed % 3).map(|_| scope.spawn(|| self.calls())).collect();
            callers.into_iter().flat_map(|caller| caller.join().expect("no panic")).collect::<Vec<_>>()
        });
        callers.into_iter().for_each(|(key, event)| events[key as usize].push(event));
        for key in 0..KEYS {
            eventually("what is due fires", || self.look(key) != Call::Look { due: Some(Due::Soon) });
            events[key as usize].push(self.event(|| Call::Take { value: self.scheduler.cancel(&key) }));
        }
        // Joins the worker, so that every callback has run.
        drop(self.scheduler);
        for &(key, value, ended) in &*lock(&self.expired) {
            let expiry = expiry(&events[key as usize], value, ended);
            events[key as usize].push(expiry);
        }
        events
    }
}

/// An expiry took place some time between the call that started the timer and its callback.
fn expiry(calls: &[Event], value: u64, ended: u64) -> Event {
    let started = |event: &&Event| matches!(event.call, Call::Schedule { value: own, .. } if own == value);
    let begun = calls.iter().find(started).expect("only what was scheduled fires").begun;
    Event { call: Call::Expire { value }, begun, ended }
}

#[test]
fn every_history_has_an_order() {
    let mut contended = 0;
    for seed in 0..BATCHES {
        for (key, events) in within(PATIENCE, "a batch", move || Batch::new(seed).run()).into_iter().enumerate() {
            let expires = |event: &Event| matches!(event.call, Call::Expire { .. });
            let is_contended =
                |expiry: &Event| events.iter().any(|event| event.begun < expiry.ended && expiry.ended < event.ended);
            contended += events.iter().filter(|event| expires(event) && is_contended(event)).count();
            assert!(is_linearizable(&events), "batch {seed}, key {key}: no order explains {events:#?}");
        }
    }
    assert!(contended > 100, "calls must meet expiries; {contended} did");
}

#[test]
fn histories_without_an_order_are_found() {
    let event = |call, begun, ended| Event { call, begun, ended };
    let scheduled = event(Call::Schedule { value: 1, due: Due::Soon, replaced: None }, 1, 2);
    let taken = Call::Take { value: Some(1) };
    let expired = Call::Expire { value: 1 };
    let moved = Call::Reschedule { due: Due::Never, moved: true };
    assert!(is_linearizable(&[scheduled, event(taken, 3, 4)]));
    assert!(is_linearizable(&[
        scheduled,
        event(moved, 3, 5),
        event(Call::Reschedule { due: Due::Soon, moved: true }, 4, 6),
        event(expired, 1, 7)
    ]));
    let impossible = [
        vec![scheduled, event(taken, 3, 4), event(expired, 1, 5)],
        vec![scheduled, event(moved, 3, 4), event(expired, 3, 5)],
        vec![scheduled, event(expired, 3, 4), event(expired, 3, 5)],
        vec![scheduled, event(Call::Look { due: None }, 3, 4)],
        vec![scheduled, event(Call::Look { due: Some(Due::Never) }, 3, 4)],
        vec![scheduled, event(taken, 3, 6), event(taken, 4, 5)],
        vec![scheduled, event(Call::TakeThis { value: 2, taken: true }, 3, 6)],
        vec![scheduled, event(Call::RescheduleThis { value: 1, due: Due::Soon, moved: false }, 3, 6)],
        vec![scheduled, event(Call::Schedule { value: 2, due: Due::Soon, replaced: None }, 3, 4)],
        vec![event(Call::Reschedule { due: Due::Soon, moved: true }, 1, 2), event(taken, 3, 4)],
    ];
    for history in impossible {
        assert!(!is_linearizable(&history), "{history:?}");
    }
}
