//! What stands outside of the shards but must be ordered: the counter that workers sleep on, and the flags of the end.
//!
//! These files are small, so each fault is a switch in a `sync` of their own.

#[path = "../src/cache/ended.rs"]
mod ended;
#[path = "../src/event.rs"]
mod event;
#[path = "../src/flags.rs"]
mod flags;

use ended::Ended;
use event::Event;
use flags::{Abandoned, Closing};
use loom::cell::UnsafeCell;
use loom::sync::atomic::{AtomicU32, Ordering::*};
use loom::thread;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// What is wrong with the shipped file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fault {
    None,
    LoadsAcquireNothing,
    ChangesReleaseNothing,
    ChangesAreTorn,
    /// The first fence of each thread is not there; or it is there, but is not in one order with the others.
    NoFenceIn(Function),
    WeakFenceIn(Function),
}

/// A file, and a function in it.
type Function = (&'static str, &'static str);

thread_local! {
    static FAULT: Cell<Fault> = const { Cell::new(Fault::None) };
    /// Who sleeps. Kept where loom does not see it: it orders nothing.
    static SLEEPER: Cell<Option<thread::Thread>> = const { Cell::new(None) };
}

/// `src/sync.rs` made of loom's types.
mod sync {
    use super::{FAULT, Fault, Function};
    pub(crate) use loom::sync::atomic::Ordering;
    use std::panic::Location;

    fn load_order(order: Ordering) -> Ordering {
        if FAULT.get() == Fault::LoadsAcquireNothing { Ordering::Relaxed } else { order }
    }

    fn change_order(order: Ordering) -> Ordering {
        if FAULT.get() == Fault::ChangesReleaseNothing { Ordering::Relaxed } else { order }
    }

    #[derive(Debug, Default)]
    pub(crate) struct AtomicBool(loom::sync::atomic::AtomicBool);

    impl AtomicBool {
        pub(crate) fn load(&self, order: Ordering) -> bool {
            self.0.load(load_order(order))
        }

        pub(crate) fn store(&self, value: bool, order: Ordering) {
            self.0.store(value, change_order(order));
        }

        pub(crate) fn swap(&self, value: bool, order: Ordering) -> bool {
            if FAULT.get() == Fault::ChangesAreTorn {
                let found = self.0.fetch_or(false, order);
                self.0.store(value, order);
                return found;
            }
            self.0.swap(value, change_order(order))
        }
    }

    #[derive(Debug, Default)]
    pub(crate) struct AtomicU32(loom::sync::atomic::AtomicU32);

    impl AtomicU32 {
        pub(crate) fn load(&self, order: Ordering) -> u32 {
            self.0.load(load_order(order))
        }

        pub(crate) fn fetch_add(&self, by: u32, order: Ordering) -> u32 {
            if FAULT.get() == Fault::ChangesAreTorn {
                let found = self.latest();
                self.0.store(found + by, order);
                return found;
            }
            self.0.fetch_add(by, change_order(order))
        }

        /// A read-modify-write, which reads nothing stale and lets loom interleave.
        fn latest(&self) -> u32 {
            self.0.fetch_add(0, Ordering::Relaxed)
        }
    }

    #[track_caller]
    pub(crate) fn fence(order: Ordering) {
        let caller = Location::caller();
        let is_in =
            |function: Function| caller.file().ends_with(function.0) && caller.line() == crate::fence_line(function);
        match FAULT.get() {
            Fault::NoFenceIn(function) if is_in(function) => {}
            Fault::WeakFenceIn(function) if is_in(function) => loom::sync::atomic::fence(Ordering::AcqRel),
            _ => loom::sync::atomic::fence(order),
        }
    }

    /// The system: looks at the newest value, and orders nothing.
    pub(crate) mod futex {
        use super::super::SLEEPER;
        use super::AtomicU32;
        use std::time::Duration;

        pub(crate) fn wait(count: &AtomicU32, ticket: u32, _timeout: Option<Duration>) {
            while count.latest() == ticket {
                SLEEPER.set(Some(loom::thread::current()));
                loom::thread::park();
            }
        }

        pub(crate) fn wake(_count: &AtomicU32) {
            if let Some(sleeper) = SLEEPER.take() {
                sleeper.unpark();
            }
        }
    }
}

/// The line of the fence in a function.
fn fence_line((file, function): Function) -> u32 {
    let text = match file {
        "flags.rs" => include_str!("../src/flags.rs"),
        _ => include_str!("../src/cache/ended.rs"),
    };
    let start = text.find(&format!("fn {function}(")).expect("it is there");
    let fence = start + text[start..].find("fence(Ordering").expect("it has a fence");
    text[..fence].lines().count() as u32
}

fn explore(fault: Fault, model: fn()) {
    let mut builder = loom::model::Builder::new();
    (builder.max_duration, builder.max_permutations, builder.preemption_bound) = (None, None, Some(4));
    builder.check(move || {
        FAULT.set(fault);
        SLEEPER.set(None);
        model();
    });
}

fn assert_notices(fault: Fault, model: fn()) {
    assert!(catch_unwind(AssertUnwindSafe(|| explore(fault, model))).is_err(), "{fault:?} goes unnoticed");
}

/// A worker that is told of two things by two threads. If it is slept through, loom reports a deadlock.
fn two_notifications() {
    let shared = Arc::new((Event::default(), AtomicU32::new(0), AtomicU32::new(0)));
    let notifier = |second: bool| {
        let shared = Arc::clone(&shared);
        move || {
            let (event, one, other) = &*shared;
            if second { other } else { one }.store(1, Relaxed);
            event.notify();
        }
    };
    let notifiers = [thread::spawn(notifier(false)), thread::spawn(notifier(true))];
    let (event, one, other) = &*shared;
    loop {
        let ticket = event.ticket();
        if one.load(Relaxed) + other.load(Relaxed) == 2 {
            break;
        }
        event.wait(ticket, None);
    }
    notifiers.into_iter().for_each(|notifier| notifier.join().expect("no panic"));
}

/// A worker that sleeps without a deadline is interrupted by the one who closes.
fn closing_interrupts() {
    let shared = Arc::new((Event::default(), Closing::default(), AtomicU32::new(0)));
    let closer = || {
        let shared = Arc::clone(&shared);
        move || {
            if shared.1.begin() {
                shared.2.fetch_add(1, Relaxed);
                shared.0.notify();
            }
        }
    };
    let closers = [thread::spawn(closer()), thread::spawn(closer())];
    loop {
        let ticket = shared.0.ticket();
        if shared.1.has_begun() {
            break;
        }
        shared.0.wait(ticket, None);
    }
    closers.into_iter().for_each(|closer| closer.join().expect("no panic"));
    assert_eq!(shared.2.load(Relaxed), 1, "one of them closes");
}

const DONE: u32 = 1;
const KEY: u32 = 2;

#[derive(Default)]
struct Finished {
    abandoned: Abandoned,
    word: AtomicU32,
    key: UnsafeCell<u32>,
}

impl Finished {
    fn drop_key(&self) {
        if self.word.fetch_and(!KEY, AcqRel) & KEY != 0 {
            // SAFETY: the word picked us, and nobody looks the key up any more.
            self.key.with_mut(|key| unsafe { *key += 1 });
        }
    }
}

// SAFETY: loom checks each access to the key.
unsafe impl Sync for Finished {}

/// The last handle goes after a look-up, while a timer is being finished.
fn last_key() {
    let timer = Arc::new(Finished { word: AtomicU32::new(KEY), ..Finished::default() });
    let finisher = Arc::clone(&timer);
    let finisher = thread::spawn(move || {
        finisher.word.fetch_or(DONE, AcqRel);
        if finisher.abandoned.is_set() {
            finisher.drop_key();
        }
    });
    // SAFETY: a look-up, before the flag is set.
    assert_eq!(timer.key.with(|key| unsafe { *key }), 0);
    timer.abandoned.set();
    if timer.word.load(Acquire) & DONE != 0 {
        timer.drop_key();
    }
    finisher.join().expect("no panic");
    // SAFETY: all have ended.
    assert_eq!(timer.key.with(|key| unsafe { *key }), 1, "the key is dropped once");
}

/// An entry of a cache is put into the map while its timer ends. The map is a cell of one entry, the weakest there is.
fn ended_entry() {
    let entry = Arc::new((Ended::default(), AtomicU32::new(0)));
    let timer = Arc::clone(&entry);
    let timer = thread::spawn(move || {
        timer.0.set();
        if timer.1.load(Relaxed) == 1 {
            timer.1.store(0, Relaxed);
        }
    });
    entry.1.store(1, Relaxed);
    if entry.0.is_missed() {
        entry.1.store(0, Relaxed);
    }
    timer.join().expect("no panic");
    assert!(entry.0.is_set());
    assert_eq!(entry.1.load(Relaxed), 0, "an entry that has ended stays");
}

#[test]
fn no_notification_is_slept_through() {
    explore(Fault::None, two_notifications);
}

#[test]
fn a_notification_must_bring_what_it_was_sent_for() {
    assert_notices(Fault::LoadsAcquireNothing, two_notifications);
    assert_notices(Fault::ChangesReleaseNothing, two_notifications);
    assert_notices(Fault::ChangesAreTorn, two_notifications);
}

#[test]
fn one_closes_and_the_worker_hears_of_it() {
    explore(Fault::None, closing_interrupts);
}

#[test]
fn closing_must_begin_in_one_step_and_be_told() {
    assert_notices(Fault::ChangesAreTorn, closing_interrupts);
    assert_notices(Fault::LoadsAcquireNothing, closing_interrupts);
    assert_notices(Fault::ChangesReleaseNothing, closing_interrupts);
}

#[test]
fn the_last_key_is_dropped_once() {
    explore(Fault::None, last_key);
}

#[test]
fn look_ups_must_end_before_their_key() {
    assert_notices(Fault::LoadsAcquireNothing, last_key);
    assert_notices(Fault::ChangesReleaseNothing, last_key);
}

#[test]
fn finisher_and_abandoner_need_their_fences() {
    for function in ["set", "is_set"].map(|name| ("flags.rs", name)) {
        assert_notices(Fault::NoFenceIn(function), last_key);
        assert_notices(Fault::WeakFenceIn(function), last_key);
    }
}

#[test]
fn an_entry_leaves_the_map_when_its_timer_ends() {
    explore(Fault::None, ended_entry);
    for function in ["set", "is_missed"].map(|name| ("ended.rs", name)) {
        assert_notices(Fault::NoFenceIn(function), ended_entry);
        assert_notices(Fault::WeakFenceIn(function), ended_entry);
    }
}
