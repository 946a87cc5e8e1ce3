//! Histories of real threads on one key, checked against every possible order: each answer, and each expiry, must be
//! explained by *some* order of the operations that respects which ended before which began.
//!
//! The search is that of Wing and Gong, "Testing and Verifying Concurrent Objects", J. Parallel Distrib. Comput. 17,
//! 1993, with Lowe's memory of what was tried. Keys are independent, so it is enough to check one key at a time.
//!
//! A compare-exchange that is torn into load and store leaves a window of some nanoseconds, which only threads that run
//! truly at once, on the same key, hit. So no thread waits at a barrier: every caller takes the next number, and the
//! numbers walk over the keys.
//!
//! In every other batch the callbacks decide when their timers come back. Such a timer is firing from a moment before
//! its callback until a moment after it. Meanwhile it is not pending, but it can be ended, or given the deadline at
//! which to come back.
//!
//! In some batches no key leads to the timers. There, the thread that comes to a key first starts its one timer, and
//! all threads use that timer's handle.

mod support;

use shardwheel::{Close, Executor, Next, Pinning, Scheduler, Timer};
use std::cell::Cell;
use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread;
use std::time::Duration;
use support::{PATIENCE, eventually, lock, within};

/// Each batch has a scheduler of its own. A sanitizer, which looks for races and not for orders, makes a batch take ten
/// times as long.
const BATCHES: u64 = if cfg!(slow) { 29 } else { 116 };
const KEYS: u64 = 3_072;
/// The number of calls on one key.
const CALLS: u64 = 24;
/// The most runs of one timer.
const RUNS_MAX: u32 = 3;

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
    /// Starts a timer, or gives way to an existing one.
    Begin {
        value: u64,
        due: Due,
        gave_way: bool,
    },
    Take {
        value: Option<u64>,
    },
    Reschedule {
        due: Due,
        moved: bool,
    },
    /// As the two before, by a handle of the timer with this value.
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
    /// A timer fires because it is due, or early, because a caller asked for it. If it repeats, an `End` follows.
    Fire {
        value: u64,
        early: bool,
        repeats: bool,
    },
    /// It comes back, unless it was ended meanwhile.
    End {
        value: u64,
        next: Option<Due>,
    },
}

#[derive(Clone, Copy, Debug)]
struct Event {
    call: Call,
    begun: u64,
    ended: u64,
}

/// The key's timer, by its value.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum State {
    Absent,
    Pending(u64, Due),
    /// Until `End`; and the deadline at which to come back then, if one was given.
    Firing(u64, Option<Due>),
}

impl State {
    fn pending(self) -> Option<(u64, Due)> {
        if let Self::Pending(value, due) = self { Some((value, due)) } else { None }
    }

    fn moved(self, to: Due) -> Self {
        match self {
            Self::Absent => Self::Absent,
            Self::Pending(value, _) => Self::Pending(value, to),
            Self::Firing(value, _) => Self::Firing(value, Some(to)),
        }
    }
}

/// The state of the key's timer after `call`, if the answer fits a timer in `state`.
fn apply(state: State, call: Call) -> Option<State> {
    let pending = state.pending().map(|(value, _)| value);
    let is = |value| matches!(state, State::Pending(own, _) | State::Firing(own, _) if own == value);
    let (fits, after) = match call {
        Call::Schedule { value, due, replaced } => (replaced == pending, State::Pending(value, due)),
        Call::Begin { value, due, gave_way } => {
            (gave_way == (state != State::Absent), if gave_way { state } else { State::Pending(value, due) })
        }
        Call::Take { value } => (value == pending, State::Absent),
        Call::Reschedule { due, moved } => (moved == (state != State::Absent), state.moved(due)),
        Call::TakeThis { value, taken } => {
            (taken == (pending == Some(value)), if is(value) { State::Absent } else { state })
        }
        Call::RescheduleThis { value, due, moved } => {
            (moved == is(value), if moved { state.moved(due) } else { state })
        }
        Call::Look { due } => (due == state.pending().map(|(_, due)| due), state),
        Call::Fire { value, early, repeats } => {
            let fits = state == State::Pending(value, Due::Soon) || (early && pending == Some(value));
            (fits, if repeats { State::Firing(value, None) } else { State::Absent })
        }
        Call::End { value, next } => match state {
            State::Firing(own, told) if own == value => {
                (true, told.or(next).map_or(State::Absent, |due| State::Pending(value, due)))
            }
            _ => (true, state),
        },
    };
    fits.then_some(after)
}

/// True if some order explains all events.
fn is_linearizable(events: &[Event]) -> bool {
    fn search(events: &[Event], done: u128, state: State, tried: &mut HashSet<(u128, State)>) -> bool {
        let left = || (0..events.len()).filter(|index| done & 1 << index == 0);
        // Only an event that began before the first of the others ended can be next.
        let Some(first_end) = left().map(|index| events[index].ended).min() else { return true };
        tried.insert((done, state))
            && left().filter(|&index| events[index].begun <= first_end).any(|index| {
                apply(state, events[index].call).is_some_and(|after| search(events, done | 1 << index, after, tried))
            })
    }
    assert!(events.len() <= 128, "the set of events done is a number");
    search(events, 0, State::Absent, &mut HashSet::new())
}

/// A callback: of whose timer, from when to when, and what it answered.
#[derive(Clone, Copy, Debug)]
struct Run {
    key: u64,
    value: u64,
    begun: u64,
    ended: u64,
    next: Option<Due>,
}

thread_local! {
    /// The callback that this thread's `expire_now` has run.
    static RUN_HERE: Cell<Option<Run>> = const { Cell::new(None) };
}

/// What the threads of a batch share.
struct Batch {
    scheduler: Scheduler<u64, Value>,
    /// Goes up by one at each reading: a clock that all threads agree on.
    clock: Arc<AtomicU64>,
    /// The worker's callbacks, in order.
    runs: Arc<Mutex<Vec<Run>>>,
    /// By key, if the timers are known by their handles alone.
    shared: Option<Box<[Shared]>>,
    next: AtomicU64,
    seed: u64,
}

/// Its identity, and how often it has run.
type Value = (u64, u32);
/// A caller's last timer: its key, its value, its handle.
type Own = Option<(u64, u64, Timer<u64, Value>)>;

/// A key's one timer in a batch in which no key leads to it: its value, its handle.
#[derive(Default)]
struct Shared {
    is_begun: AtomicBool,
    timer: OnceLock<(u64, Timer<u64, Value>)>,
}

/// The callback: notes its run, and answers when its timer is to come back.
fn on_expiry(clock: &AtomicU64, runs: &Mutex<Vec<Run>>, key: u64, value: &mut Value) -> Next {
    let begun = clock.fetch_add(1, SeqCst);
    value.1 += 1;
    let choice = (value.0 + u64::from(value.1)) % 4;
    let (answer, next) = match choice {
        _ if value.1 == RUNS_MAX => (Next::Done, None),
        0 => (Next::After(Duration::from_secs(60)), Some(Due::Never)),
        1 => (Next::After(Duration::from_micros(20)), Some(Due::Soon)),
        _ => (Next::After(Duration::ZERO), Some(Due::Soon)),
    };
    // Long enough for callers to meet the callback.
    (0..choice * 50).for_each(|_| std::hint::spin_loop());
    let run = Run { key, value: value.0, begun, ended: clock.fetch_add(1, SeqCst), next };
    if thread::current().name().is_some_and(|name| name.starts_with("shardwheel")) {
        lock(runs).push(run);
    } else {
        RUN_HERE.set(Some(run));
    }
    answer
}

impl Batch {
    fn new(seed: u64) -> Self {
        let (clock, runs) = (Arc::new(AtomicU64::new(1)), Arc::new(Mutex::new(Vec::new())));
        let (time, log) = (Arc::clone(&clock), Arc::clone(&runs));
        let builder = Scheduler::builder().tick(Duration::from_micros(10)).shards(1).pinning(Pinning::Off);
        let builder = builder.executor(Executor::Inline);
        let callback = move |key: &u64, value: &mut Value| on_expiry(&time, &log, *key, value);
        let scheduler = if Self::repeats(seed) {
            builder.build_rearming(callback)
        } else {
            builder.build(move |key: &u64, mut value: Value| {
                callback(key, &mut value);
            })
        };
        let is_unindexed = seed / 8 % 4 == 3;
        let shared = is_unindexed.then(|| (0..KEYS).map(|_| Shared::default()).collect());
        Self { scheduler: scheduler.expect("in range"), clock, runs, shared, next: AtomicU64::new(0), seed }
    }

    /// True if the callbacks decide whether their timers come back.
    fn repeats(seed: u64) -> bool {
        seed / 4 % 2 == 1
    }

    /// The same choice for the same number of the same batch.
    fn choice(&self, number: u64) -> u64 {
        (self.seed * KEYS * CALLS + number + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40
    }

    /// Numbers walk over one key at a time, so that callers meet, or over many in turn, so that the worker has time to
    /// meet the callers.
    fn key(&self, number: u64) -> u64 {
        let width = [1, 8, 1, 64][(self.seed % 4) as usize];
        number / (CALLS * width) * width + number % width
    }

    /// One caller: takes numbers until there are none left.
    fn calls(&self) -> Vec<(u64, Event)> {
        let mut own = None;
        let next = || Some(self.next.fetch_add(1, SeqCst)).filter(|&number| number < KEYS * CALLS);
        let mut events = Vec::new();
        while let Some(number) = next() {
            let call = || match &self.shared {
                None => Some(self.call(number, &mut own)),
                Some(shared) => self.call_by_handle(number, &shared[self.key(number) as usize]),
            };
            let Some(event) = self.event(call) else { continue };
            let happened = match RUN_HERE.take() {
                Some(run) => self.events_of(run, true, event.begun, event.ended),
                None => vec![event],
            };
            events.extend(happened.into_iter().map(|event| (self.key(number), event)));
        }
        events
    }

    fn event(&self, call: impl FnOnce() -> Option<Call>) -> Option<Event> {
        let begun = self.clock.fetch_add(1, SeqCst);
        let call = call()?;
        Some(Event { call, begun, ended: self.clock.fetch_add(1, SeqCst) })
    }

    /// A run takes place between `after` and `before`; its timer fires before the callback begins, and comes back after
    /// it has ended.
    fn events_of(&self, run: Run, early: bool, after: u64, before: u64) -> Vec<Event> {
        let Run { value, begun, ended, next, .. } = run;
        let repeats = Self::repeats(self.seed);
        let fire = Event { call: Call::Fire { value, early, repeats }, begun: after, ended: begun };
        let end = Event { call: Call::End { value, next }, begun: ended, ended: before };
        if repeats { vec![fire, end] } else { vec![fire] }
    }

    fn delay(choice: u64) -> (Duration, Due) {
        let micros = [0, 0, 20, 60_000_000][(choice / 16 % 4) as usize];
        (Duration::from_micros(micros), if micros < 1_000 { Due::Soon } else { Due::Never })
    }

    fn call(&self, number: u64, own: &mut Own) -> Call {
        let (scheduler, key, value, choice) = (&self.scheduler, self.key(number), number + 1, self.choice(number));
        let (delay, due) = Self::delay(choice);
        match (choice % 16, own) {
            (6, Some((of, value, timer))) if *of == key => {
                Call::TakeThis { value: *value, taken: timer.cancel().is_some() }
            }
            (7 | 8, Some((of, value, timer))) if *of == key => {
                Call::RescheduleThis { value: *value, due, moved: timer.reschedule(delay) }
            }
            (5, _) => {
                let given =
                    scheduler.schedule_if_absent(key, (value, 0), delay).expect("open and not full").into_value();
                assert!(given.is_none_or(|(own, _)| own == value), "who gives way has his own value back");
                Call::Begin { value, due, gave_way: given.is_some() }
            }
            (0..=6, own) => {
                let (replaced, timer) =
                    scheduler.schedule_with_handle(key, (value, 0), delay).expect("open and not full");
                *own = Some((key, value, timer));
                Call::Schedule { value, due, replaced: id_of(replaced) }
            }
            (7..=10, _) => Call::Reschedule { due, moved: scheduler.reschedule(&key, delay) },
            (11..=13, _) => Call::Take { value: id_of(scheduler.cancel(&key)) },
            (14, _) => {
                // If it fires, `RUN_HERE` says what has happened.
                let fired = scheduler.expire_now(&key);
                assert_eq!(fired, RUN_HERE.get().is_some());
                Call::Look { due: None }
            }
            _ => self.look(key),
        }
    }

    /// `None`: the timer has been begun by another thread, and its handle does not exist yet.
    fn call_by_handle(&self, number: u64, shared: &Shared) -> Option<Call> {
        let (key, choice) = (self.key(number), self.choice(number));
        let (delay, due) = Self::delay(choice);
        if !shared.is_begun.swap(true, SeqCst) {
            let value = number + 1;
            let timer = self.scheduler.schedule_unindexed(key, (value, 0), delay).expect("open and not full");
            assert!(shared.timer.set((value, timer)).is_ok());
            return Some(Call::Schedule { value, due, replaced: None });
        }
        let (value, timer) = shared.timer.get()?;
        Some(match choice % 16 {
            0 => Call::TakeThis { value: *value, taken: timer.cancel().is_some() },
            1..=10 => Call::RescheduleThis { value: *value, due, moved: timer.reschedule(delay) },
            11 => {
                let fired = timer.expire_now();
                assert_eq!(fired, RUN_HERE.get().is_some());
                Call::Look { due: None }
            }
            _ => self.look(key),
        })
    }

    fn look(&self, key: u64) -> Call {
        let soon = |left| if left < Duration::from_secs(30) { Due::Soon } else { Due::Never };
        let left = match &self.shared {
            None => self.scheduler.remaining(&key),
            Some(shared) => shared[key as usize].timer.get().and_then(|(_, timer)| timer.remaining()),
        };
        Call::Look { due: left.map(soon) }
    }

    /// Ends what is left of a key.
    fn take(&self, key: u64) -> Option<Call> {
        Some(match &self.shared {
            None => Call::Take { value: id_of(self.scheduler.cancel(&key)) },
            Some(shared) => {
                let (value, timer) = shared[key as usize].timer.get()?;
                Call::TakeThis { value: *value, taken: timer.cancel().is_some() }
            }
        })
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
            events[key as usize].extend(self.event(|| self.take(key)));
        }
        // Joins the worker, so that every callback has run.
        self.scheduler.close(Close::Discard);
        let runs = lock(&self.runs);
        let mut started = HashMap::new();
        for (index, run) in runs.iter().enumerate() {
            // It fires some time after the call that started it, or after its last run, and comes back before the
            // worker's next callback begins.
            let calls = &mut events[run.key as usize];
            let after = started.insert(run.value, run.ended).unwrap_or_else(|| start_of(calls, run.value));
            let before = runs.get(index + 1).map_or(u64::MAX, |next| next.begun);
            calls.extend(self.events_of(*run, false, after, before));
        }
        drop(runs);
        events
    }
}

fn id_of(value: Option<Value>) -> Option<u64> {
    value.map(|(id, _)| id)
}

/// When the call that started a timer began.
fn start_of(calls: &[Event], value: u64) -> u64 {
    let started = |event: &&Event| matches!(event.call, Call::Schedule { value: own, .. } | Call::Begin { value: own, .. } if own == value);
    calls.iter().find(started).expect("only what was scheduled fires").begun
}

#[test]
fn every_history_has_an_order() {
    // By key, and by handle alone.
    let mut contended = [0; 2];
    for seed in 0..BATCHES {
        let batch = Batch::new(seed);
        let kind = usize::from(batch.shared.is_some());
        for (key, events) in within(PATIENCE, "a batch", move || batch.run()).into_iter().enumerate() {
            let expires = |event: &Event| matches!(event.call, Call::Fire { early: false, .. });
            let is_contended =
                |expiry: &Event| events.iter().any(|event| event.begun < expiry.ended && expiry.ended < event.ended);
            contended[kind] += events.iter().filter(|event| expires(event) && is_contended(event)).count();
            assert!(is_linearizable(&events), "batch {seed}, key {key}: no order explains {events:#?}");
        }
    }
    assert!(contended.iter().all(|&count| count > 100), "calls must meet expiries; {contended:?} did");
}

#[test]
fn histories_without_an_order_are_found() {
    let event = |call, begun, ended| Event { call, begun, ended };
    let scheduled = event(Call::Schedule { value: 1, due: Due::Soon, replaced: None }, 1, 2);
    let taken = Call::Take { value: Some(1) };
    let expired = Call::Fire { value: 1, early: false, repeats: false };
    let fires = Call::Fire { value: 1, early: false, repeats: true };
    let ends = Call::End { value: 1, next: Some(Due::Soon) };
    let moved = Call::Reschedule { due: Due::Never, moved: true };
    assert!(is_linearizable(&[scheduled, event(taken, 3, 4)]));
    assert!(is_linearizable(&[
        scheduled,
        event(moved, 3, 5),
        event(Call::Reschedule { due: Due::Soon, moved: true }, 4, 6),
        event(expired, 1, 7)
    ]));
    let untaken = Call::Take { value: None };
    assert!(is_linearizable(&[scheduled, event(fires, 3, 4), event(ends, 5, 6), event(fires, 7, 8)]));
    assert!(is_linearizable(&[scheduled, event(fires, 3, 4), event(untaken, 5, 6), event(ends, 7, 8)]));
    let impossible = [
        vec![scheduled, event(fires, 3, 4), event(fires, 5, 6)],
        vec![scheduled, event(fires, 3, 4), event(taken, 5, 6), event(ends, 7, 8)],
        vec![scheduled, event(fires, 3, 4), event(untaken, 5, 6), event(ends, 7, 8), event(fires, 9, 10)],
        vec![scheduled, event(fires, 3, 4), event(moved, 5, 6), event(ends, 7, 8), event(fires, 9, 10)],
        vec![scheduled, event(fires, 3, 4), event(ends, 5, 6), event(Call::Look { due: None }, 7, 8)],
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
