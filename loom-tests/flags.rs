//! What stands outside of the shards but must be ordered: the counter that workers sleep on, relying on the lookout,
//! the flags of the end, waiting for callbacks, and handing things over in a slot.
//!
//! These files are small, so each fault is a switch in a `sync` of their own.

#[path = "../src/event_count.rs"]
mod event_count;
#[path = "../src/cache/expiry.rs"]
mod expiry;
#[path = "../src/flags.rs"]
mod flags;
#[path = "../src/lookout.rs"]
#[allow(dead_code, reason = "a model uses a part of it")]
mod lookout;
#[path = "../src/sync/slot.rs"]
mod slot;
#[path = "../src/under_way.rs"]
mod under_way;

use event_count::EventCount;
use expiry::{Due, Expiry, Renewal};
use flags::{Abandoned, Closing};
use lookout::{Lookouts, Times, Watched};
use loom::cell::UnsafeCell;
use loom::sync::atomic::{AtomicU32, Ordering::*};
use loom::thread;
use slot::Slot;
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::fmt::Debug;
use std::mem::ManuallyDrop;
use std::ops::RangeInclusive;
use std::panic::{AssertUnwindSafe, Location, catch_unwind};
use std::sync::Arc;
use std::time::Instant;
use under_way::{Phase, Shared, UnderWay};

/// What is wrong with the shipped file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fault {
    None,
    LoadsAcquireNothing,
    ChangesReleaseNothing,
    ChangesAreTorn,
    /// The first fence of each thread is left out; or it has no common order with the others.
    NoFenceIn(Function),
    WeakFenceIn(Function),
    /// In a function of `under_way.rs`, `slot.rs` or `expiry.rs`.
    In(&'static str, Flaw),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Flaw {
    AcquiresNothing,
    ReleasesNothing,
    IsTorn,
    HasNoFence,
    LocksNothing,
    WakesOne,
    /// A load finds the phase that is not the current one empty.
    FindsOtherEmpty,
    /// A load overlooks the latest move of the phase.
    FindsOneMoveLess,
    /// A load finds no move of the phase, ever.
    FindsNoMove,
}

/// A file, and a function in it.
type Function = (&'static str, &'static str);

thread_local! {
    static FAULT: Cell<Fault> = const { Cell::new(Fault::None) };
    /// The thread that sleeps. Kept where loom does not see it: it orders nothing.
    static SLEEPER: Cell<Option<thread::Thread>> = const { Cell::new(None) };
    /// Loads of 64 bits are read-modify-writes, which read nothing stale and let loom interleave.
    static LOADS_ARE_VISIBLE: Cell<bool> = const { Cell::new(false) };
    static OUTCOMES: RefCell<BTreeSet<String>> = const { RefCell::new(BTreeSet::new()) };
}

/// The flaw of the function that this line belongs to.
fn flaw(at: &Location) -> Option<Flaw> {
    let Fault::In(function, flaw) = FAULT.get() else { return None };
    let (file, lines) = lines_of(function);
    (at.file().ends_with(file) && lines.contains(&at.line())).then_some(flaw)
}

/// The lines of a function of `under_way.rs`, `slot.rs` or `expiry.rs`, and in which of these files they are.
fn lines_of(function: &str) -> (&'static str, RangeInclusive<u32>) {
    let files = [
        ("under_way.rs", include_str!("../src/under_way.rs")),
        ("slot.rs", include_str!("../src/sync/slot.rs")),
        ("expiry.rs", include_str!("../src/cache/expiry.rs")),
    ];
    let found = |(file, text): (&'static str, &'static str)| Some((file, text, text.find(&format!("fn {function}("))?));
    let (file, text, start) = files.into_iter().find_map(found).expect("it is there");
    let end = start + text[start..].find("\n    }\n").expect("it ends");
    let [first, last] = [start, end].map(|place| text[..place].lines().count() as u32);
    (file, first..=last)
}

/// Notes the outcome of this execution of the model.
fn outcome(outcome: impl Debug) {
    OUTCOMES.with_borrow_mut(|outcomes| outcomes.insert(format!("{outcome:?}")));
}

/// `src/sync.rs` made of loom's types.
mod sync {
    use super::{FAULT, Fault, Flaw, Function, LOADS_ARE_VISIBLE, flaw};
    pub(crate) use loom::sync::atomic::Ordering;
    use loom::sync::{MutexGuard, WaitTimeoutResult};
    use std::panic::Location;
    use std::sync::LockResult;
    use std::time::Duration;

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

        #[track_caller]
        pub(crate) fn fetch_sub(&self, by: u32, order: Ordering) -> u32 {
            if flaw(Location::caller()) == Some(Flaw::IsTorn) {
                let found = self.0.fetch_add(0, order);
                self.0.store(found - by, order_of_store(order));
                return found;
            }
            self.0.fetch_sub(by, weakened(order, Location::caller()))
        }

        pub(crate) fn new(value: u32) -> Self {
            Self(loom::sync::atomic::AtomicU32::new(value))
        }

        /// A read-modify-write, which reads nothing stale and lets loom interleave.
        fn latest(&self) -> u32 {
            self.0.fetch_add(0, Ordering::Relaxed)
        }
    }

    /// The ordering, without what the fault takes from it.
    fn weakened(order: Ordering, at: &Location) -> Ordering {
        match (flaw(at), order) {
            (Some(Flaw::AcquiresNothing), Ordering::AcqRel) => Ordering::Release,
            (Some(Flaw::ReleasesNothing), Ordering::AcqRel) => Ordering::Acquire,
            (Some(Flaw::AcquiresNothing), Ordering::Acquire) => Ordering::Relaxed,
            (Some(Flaw::ReleasesNothing), Ordering::Release) => Ordering::Relaxed,
            _ => order,
        }
    }

    fn order_of_store(order: Ordering) -> Ordering {
        if matches!(order, Ordering::Release | Ordering::AcqRel) { Ordering::Release } else { Ordering::Relaxed }
    }

    /// The place of a slot.
    pub(crate) struct AtomicPtr<T>(loom::sync::atomic::AtomicPtr<T>);

    impl<T> AtomicPtr<T> {
        pub(crate) fn new(value: *mut T) -> Self {
            Self(loom::sync::atomic::AtomicPtr::new(value))
        }

        pub(crate) fn load(&self, order: Ordering) -> *mut T {
            self.0.load(load_order(order))
        }

        #[track_caller]
        pub(crate) fn swap(&self, value: *mut T, order: Ordering) -> *mut T {
            if flaw(Location::caller()) == Some(Flaw::IsTorn) {
                let found = self.0.load(Ordering::Acquire);
                self.0.store(value, Ordering::Release);
                return found;
            }
            self.0.swap(value, weakened(order, Location::caller()))
        }
    }

    /// The words of `under_way.rs` and `expiry.rs`, and the times of `lookout.rs`.
    #[derive(Debug, Default)]
    pub(crate) struct AtomicU64(loom::sync::atomic::AtomicU64);

    impl AtomicU64 {
        pub(crate) fn new(value: u64) -> Self {
            Self(loom::sync::atomic::AtomicU64::new(value))
        }

        pub(crate) fn store(&self, value: u64, order: Ordering) {
            self.0.store(value, order);
        }

        #[track_caller]
        pub(crate) fn load(&self, order: Ordering) -> u64 {
            let at = Location::caller();
            let order = weakened(order, at);
            let found = if LOADS_ARE_VISIBLE.get() { self.0.fetch_add(0, order) } else { self.0.load(order) };
            match flaw(at) {
                Some(Flaw::FindsOtherEmpty) if found >> 58 & 1 == 0 => found & !(((1 << 29) - 1) << 29),
                Some(Flaw::FindsOtherEmpty) => found & !((1 << 29) - 1),
                Some(Flaw::FindsOneMoveLess) => found.wrapping_sub(1 << 58),
                Some(Flaw::FindsNoMove) => found & ((1 << 58) - 1),
                _ => found,
            }
        }

        #[track_caller]
        pub(crate) fn fetch_add(&self, by: u64, order: Ordering) -> u64 {
            self.modify(|word| word + by, |word, order| word.fetch_add(by, order), order, Location::caller())
        }

        #[track_caller]
        pub(crate) fn fetch_sub(&self, by: u64, order: Ordering) -> u64 {
            self.modify(|word| word - by, |word, order| word.fetch_sub(by, order), order, Location::caller())
        }

        #[track_caller]
        pub(crate) fn compare_exchange(
            &self,
            old: u64,
            new: u64,
            order: Ordering,
            other: Ordering,
        ) -> Result<u64, u64> {
            if flaw(Location::caller()) == Some(Flaw::IsTorn) {
                let found = self.0.fetch_add(0, order);
                if found == old {
                    self.0.store(new, order_of_store(order));
                }
                return if found == old { Ok(found) } else { Err(found) };
            }
            self.0.compare_exchange(old, new, weakened(order, Location::caller()), other)
        }

        fn modify(
            &self,
            change: impl Fn(u64) -> u64,
            atomically: impl Fn(&loom::sync::atomic::AtomicU64, Ordering) -> u64,
            order: Ordering,
            at: &Location,
        ) -> u64 {
            if flaw(at) == Some(Flaw::IsTorn) {
                let found = self.0.fetch_add(0, order);
                self.0.store(change(found), order_of_store(order));
                return found;
            }
            atomically(&self.0, weakened(order, at))
        }
    }

    #[derive(Default)]
    pub(crate) struct Mutex<T> {
        real: loom::sync::Mutex<T>,
        other: loom::sync::Mutex<T>,
    }

    impl<T> Mutex<T> {
        #[track_caller]
        pub(crate) fn lock(&self) -> LockResult<MutexGuard<'_, T>> {
            let is_real = flaw(Location::caller()) != Some(Flaw::LocksNothing);
            if is_real { self.real.lock() } else { self.other.lock() }
        }
    }

    #[derive(Default)]
    pub(crate) struct Condvar(loom::sync::Condvar);

    impl Condvar {
        pub(crate) fn wait<'a, T>(&self, guard: MutexGuard<'a, T>) -> LockResult<MutexGuard<'a, T>> {
            super::outcome("sleeps");
            self.0.wait(guard)
        }

        pub(crate) fn wait_timeout<'a, T>(
            &self,
            guard: MutexGuard<'a, T>,
            limit: Duration,
        ) -> LockResult<(MutexGuard<'a, T>, WaitTimeoutResult)> {
            self.0.wait_timeout(guard, limit)
        }

        #[track_caller]
        pub(crate) fn notify_all(&self) {
            if flaw(Location::caller()) == Some(Flaw::WakesOne) { self.0.notify_one() } else { self.0.notify_all() }
        }
    }

    #[track_caller]
    pub(crate) fn fence(order: Ordering) {
        let caller = Location::caller();
        let is_in =
            |function: Function| caller.file().ends_with(function.0) && caller.line() == crate::fence_line(function);
        match FAULT.get() {
            Fault::NoFenceIn(function) if is_in(function) => {}
            _ if flaw(caller) == Some(Flaw::HasNoFence) => {}
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
        "lookout.rs" => include_str!("../src/lookout.rs"),
        _ => include_str!("../src/cache/expiry.rs"),
    };
    let start = text.find(&format!("fn {function}(")).expect("it is there");
    let fence = start + text[start..].find(" fence(").expect("it has a fence");
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

/// Explores the model with stale loads and with visible ones, and checks that it reaches exactly these outcomes.
fn reaches(model: fn(), expected: &[&str]) {
    reaches_with(&[false, true], model, expected);
}

/// The same, with visible loads or stale ones only.
fn reaches_with(visible: &[bool], model: fn(), expected: &[&str]) {
    OUTCOMES.take();
    for &visible in visible {
        LOADS_ARE_VISIBLE.set(visible);
        explore(Fault::None, model);
    }
    let expected: BTreeSet<_> = expected.iter().map(|outcome| format!("{outcome:?}")).collect();
    assert_eq!(OUTCOMES.take(), expected);
}

/// loom's name for two accesses to one cell that nothing orders.
const RACE: &str = "Causality violation";

/// Checks that the model fails with this fault in a function, and for this reason, with stale loads or with visible
/// ones.
fn assert_notices_in(function: &'static str, flaw: Flaw, model: fn(), reason: &str) {
    let failure = [false, true].into_iter().find_map(|visible| {
        LOADS_ARE_VISIBLE.set(visible);
        let panic = catch_unwind(AssertUnwindSafe(|| explore(Fault::In(function, flaw), model))).err()?;
        let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
        Some(text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default())
    });
    let failure = failure.unwrap_or_else(|| panic!("{flaw:?} in {function} goes unnoticed"));
    println!("{flaw:?} in {function}: {failure}");
    assert!(failure.contains(reason), "{flaw:?} in {function}: expected `{reason}`, got: {failure}");
}

fn assert_notices(fault: Fault, model: fn()) {
    LOADS_ARE_VISIBLE.set(false);
    assert!(catch_unwind(AssertUnwindSafe(|| explore(fault, model))).is_err(), "{fault:?} goes unnoticed");
}

/// Two threads notify a worker of one thing each. If a notification is lost, loom reports a deadlock.
fn two_notifications() {
    let shared = Arc::new((EventCount::default(), AtomicU32::new(0), AtomicU32::new(0)));
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

/// A close interrupts a worker that sleeps without a deadline.
fn closing_interrupts() {
    let shared = Arc::new((EventCount::default(), Closing::default(), AtomicU32::new(0)));
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

/// How long a lookout sleeps after the other one is up, in the models.
const WATCH: u64 = 5;
const TIMES: Times = Times { tick: 1, soon: 0, watch: WATCH, kept: 0, stopped: 0 };

/// The first lookout sleeps until then; the other one is off duty.
fn lookouts(until: u64) -> Arc<Lookouts> {
    let lookouts = Arc::new(Lookouts::new(2, TIMES));
    assert!(lookouts.lie_down(0, until, 0).is_some());
    lookouts
}

/// A thread whose shard has to be seen to at 5 goes to sleep, while the lookout does until 10.
fn relying() {
    let lookouts = lookouts(0);
    let relying = Arc::clone(&lookouts);
    let thread = thread::spawn(move || relying.rely(1, 5, || 0));
    let sleeps = lookouts.lie_down(0, 10, 0).is_some();
    let relies = thread.join().expect("no panic");
    assert!(!(relies && sleeps), "nobody sees to the shard");
    outcome(if relies { "relies" } else { "does not rely" });
    outcome(if sleeps { "sleeps" } else { "does not sleep" });
}

/// The same; but before, the lookout is up.
fn relying_on_one_that_is_up() {
    let lookouts = Arc::new(Lookouts::new(2, TIMES));
    let relying = Arc::clone(&lookouts);
    let thread = thread::spawn(move || relying.rely(1, 5, || 0));
    lookouts.stay_up(0, || 3);
    let sleeps = lookouts.lie_down(0, 10, 3).is_some();
    let relies = thread.join().expect("no panic");
    assert!(!(relies && sleeps), "nobody sees to the shard");
    outcome(if relies { "relies" } else { "does not rely" });
    outcome(if sleeps { "sleeps" } else { "does not sleep" });
}

/// The same, while the lookout resigns.
fn resigning() {
    let lookouts = lookouts(0);
    let relying = Arc::clone(&lookouts);
    let thread = thread::spawn(move || relying.rely(1, 5, || 0));
    let mut told = Vec::new();
    lookouts.resign(0, |number| told.push(number));
    let relies = thread.join().expect("no panic");
    assert!(!relies || told == [1], "nobody sees to the shard");
    outcome(if relies { "relies" } else { "does not rely" });
    outcome(if told.is_empty() { "nobody told" } else { "told" });
}

/// The same, while another thread misses the lookout; and that comes back, or not.
fn dismissing(comes_back: bool) {
    let lookouts = lookouts(0);
    let [relying, dismissing] = [(); 2].map(|()| Arc::clone(&lookouts));
    let thread = thread::spawn(move || relying.rely(1, 5, || 0));
    let misses = thread::spawn(move || {
        let mut told = Vec::new();
        dismissing.dismiss(|| 3, |number| told.push(number));
        told
    });
    let sleeps = !comes_back || {
        lookouts.stay_up(0, || 4);
        lookouts.lie_down(0, 10, 4).is_some()
    };
    let relies = thread.join().expect("no panic");
    let told = misses.join().expect("no panic");
    assert!(!(relies && sleeps) || told == [1], "nobody sees to the shard");
    outcome(if relies { "relies" } else { "does not rely" });
    outcome(if told.is_empty() { "nobody told" } else { "told" });
}

fn dismissing_one_that_is_stopped() {
    dismissing(false);
}

fn dismissing_one_that_comes_back() {
    dismissing(true);
}

/// Both lookouts are up at 3 and lie down. A shard has to be seen to at 3; or a thread goes to sleep meanwhile whose
/// shard has to be seen to at 6.
fn lying_down(relying: bool) {
    let lookouts = Arc::new(Lookouts::new(1, TIMES));
    let (due, next) = if relying { (6, u64::MAX) } else { (3, 3) };
    lookouts.saw_to(0, next);
    (0..2).for_each(|number| _ = lookouts.stay_up(number, || 3));
    let lie_down = |number| {
        let lookouts = Arc::clone(&lookouts);
        move || lookouts.lie_down(number, next, 3)
    };
    let first = thread::spawn(lie_down(0));
    let thread = relying.then(|| {
        let lookouts = Arc::clone(&lookouts);
        thread::spawn(move || lookouts.rely(0, due, || 0))
    });
    let second = lie_down(1)();
    let first = first.join().expect("no panic");
    let relies = thread.is_none_or(|thread| thread.join().expect("no panic"));
    let is_seen_to = one_is_up_by(due, first, second);
    assert!(!relies || is_seen_to, "nobody sees to the shard");
    outcome(if relies { "relies" } else { "does not rely" });
}

/// Of two lookouts that lie down until then, if they may.
fn one_is_up_by(due: u64, first: Option<u64>, second: Option<u64>) -> bool {
    outcome(match (first, second) {
        (Some(_), Some(_)) => "both sleep",
        (None, None) => "neither sleeps",
        _ => "one sleeps",
    });
    [first, second].into_iter().any(|until| until.is_none_or(|until| until <= due))
}

fn both_lie_down() {
    lying_down(false);
}

fn both_lie_down_beside_one_that_relies() {
    lying_down(true);
}

/// Both lookouts are up at 3, and a shard has to be seen to at 4. One of them puts that off until 6, soon enough for
/// either to leave it to the other one, which is up.
fn both_lie_down_after_one_has_put_a_shard_off() {
    let lookouts = Arc::new(Lookouts::new(1, Times { soon: 3, ..TIMES }));
    lookouts.saw_to(0, 4);
    (0..2).for_each(|number| _ = lookouts.stay_up(number, || 3));
    let own = Arc::clone(&lookouts);
    let first = thread::spawn(move || {
        own.saw_to(0, 6);
        own.lie_down(0, own.next(), 3)
    });
    let second = lookouts.lie_down(1, lookouts.next(), 3);
    assert!(one_is_up_by(6, first.join().expect("no panic"), second), "nobody sees to the shard");
}

/// A lookout that was called before 4, until when it meant to sleep, lies down until 12, while the other one gets up at
/// 3, perhaps to run callbacks.
fn watching() {
    let lookouts = lookouts(4);
    let running = Arc::clone(&lookouts);
    let thread = thread::spawn(move || running.stay_up(1, || 3));
    let until = lookouts.lie_down(0, 12, 2);
    let watched = thread.join().expect("no panic");
    let gets_up_soon = until.is_none_or(|until| until <= 3 + WATCH);
    assert!(watched != Watched::Yes || gets_up_soon, "nobody looks for the one that is up");
    outcome(match watched {
        Watched::No => "not watched",
        Watched::IfCalled => "calls the other",
        Watched::Yes => "watched",
    });
    outcome(if until.is_some() { "sleeps" } else { "does not sleep" });
}

/// A lookout means to sleep until 1, and gets up at 3, perhaps to run callbacks, while the other one lies down. That
/// one was called before 6, until when it meant to sleep, and finds the first one late.
fn watching_one_that_is_late() {
    let lookouts = Arc::new(Lookouts::new(1, TIMES));
    assert_eq!([(1, 1), (0, 6)].map(|(number, until)| lookouts.lie_down(number, until, 0)), [Some(1), Some(6)]);
    let running = Arc::clone(&lookouts);
    let thread = thread::spawn(move || running.stay_up(1, || 3));
    let until = lookouts.lie_down(0, 12, 4);
    let watched = thread.join().expect("no panic");
    let gets_up_soon = until.is_none_or(|until| until <= 3 + WATCH);
    assert!(watched != Watched::Yes || gets_up_soon, "nobody looks for the one that is up");
    outcome(format!("{watched:?}"));
    outcome(if until.is_some() { "sleeps" } else { "does not sleep" });
}

/// A lookout sleeps until 1, and is late. The other one lies down at 4, while a thread goes to sleep whose shard has to
/// be seen to at 6.
fn lying_down_beside_one_that_is_late() {
    let lookouts = Arc::new(Lookouts::new(1, TIMES));
    assert!(lookouts.lie_down(1, 1, 0).is_some());
    lookouts.stay_up(0, || 4);
    let relying = Arc::clone(&lookouts);
    let thread = thread::spawn(move || relying.rely(0, 6, || 4));
    let until = lookouts.lie_down(0, 12, 4);
    let relies = thread.join().expect("no panic");
    assert!(!relies || until.is_none_or(|until| until <= 6), "nobody sees to the shard");
    outcome(if relies { "relies" } else { "does not rely" });
    outcome(if until.is_some() { "sleeps" } else { "does not sleep" });
}

/// The same, while the first one resigns, which was called before 6.
fn resigning_beside_one_that_gets_up() {
    let lookouts = lookouts(6);
    let running = Arc::clone(&lookouts);
    let thread = thread::spawn(move || running.stay_up(1, || 3));
    lookouts.resign(0, |_| {});
    let watches = lookouts.watches_until(0, 2).is_some();
    let watched = thread.join().expect("no panic");
    assert!(watched != Watched::Yes || watches, "nobody looks for the one that is up");
    outcome(if watched == Watched::Yes { "watched" } else { "not watched" });
    outcome(if watches { "watches" } else { "is gone" });
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
            // SAFETY: the word picked us, and no thread looks the key up any more.
            self.key.with_mut(|key| unsafe { *key += 1 });
        }
    }
}

// SAFETY: loom checks each access to the key.
unsafe impl Sync for Finished {}

/// The last handle is dropped after a look-up, while a timer is being finished.
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
    // SAFETY: all threads have ended.
    assert_eq!(timer.key.with(|key| unsafe { *key }), 1, "the key is dropped once");
}

/// An entry of a cache is put into the map while another thread ends it. The map is a cell for one entry, the weakest
/// possible map.
fn ended_entry(end: fn(&Expiry) -> bool) {
    let entry = Arc::new((Expiry::at(5), AtomicU32::new(0)));
    let ended = Arc::clone(&entry);
    let ender = thread::spawn(move || {
        assert!(end(&ended.0));
        if ended.1.load(Relaxed) == 1 {
            ended.1.store(0, Relaxed);
        }
    });
    entry.1.store(1, Relaxed);
    if entry.0.is_missed() {
        entry.1.store(0, Relaxed);
    }
    ender.join().expect("no panic");
    assert!(entry.0.is_missed());
    assert_eq!(entry.1.load(Relaxed), 0, "an entry that has ended stays");
}

fn cancelled_entry() {
    ended_entry(|expiry| expiry.end(4) == Some(false));
}

fn expired_entry() {
    ended_entry(|expiry| expiry.expire(5) == Due::Now);
}

/// A thread that has read the clock renews an entry, while its deadline passes for another thread.
fn renewal() {
    let entry = Arc::new(Expiry::at(5));
    let own = Arc::clone(&entry);
    let renewer = thread::spawn(move || own.renew(|| 4, |_, _| 20) == Some(Renewal { from: 5, to: 20 }));
    let seen = [6, 7].map(|now| entry.ahead(now).is_some());
    let is_renewed = renewer.join().expect("no panic");
    assert!(seen[0] || !seen[1], "it has come back");
    assert_eq!(is_renewed, entry.ahead(8).is_some());
    assert!(seen[0] || !is_renewed, "it was renewed after it had expired");
    outcome(format!("{seen:?} {is_renewed}"));
}

/// Two threads renew an entry. The clock moves on whenever it is read.
fn two_renewals() {
    let entry = Arc::new((Expiry::at(5), AtomicU32::new(0)));
    let renew = |entry: &(Expiry, AtomicU32)| {
        let clock = || u64::from(entry.1.fetch_add(1, SeqCst));
        entry.0.renew(clock, |now, _| now + 10).expect("its deadline is ahead").to
    };
    let own = Arc::clone(&entry);
    let renewer = thread::spawn(move || renew(&own));
    let made = renew(&entry);
    let other = renewer.join().expect("no panic");
    assert_eq!(entry.0.deadline(), Some(made.max(other)), "the later one stands");
    outcome(format!("{made} {other}"));
}

/// The entry's timer, a thread that removes the entry, and one that renews it.
fn one_end() {
    let entry = Arc::new(Expiry::at(5));
    let [renewed, removed] = [(); 2].map(|()| Arc::clone(&entry));
    let renewer = thread::spawn(move || renewed.renew(|| 4, |_, _| 20));
    let remover = thread::spawn(move || removed.end(4));
    let due = entry.expire(5);
    let renewal = renewer.join().expect("no panic");
    let removal = remover.join().expect("no panic");
    assert_eq!(u32::from(due == Due::Now) + u32::from(removal.is_some()), 1, "ends");
    let is_renewed = renewal.is_some();
    assert!(due != Due::Now || !is_renewed, "it has expired though it was renewed");
    outcome(format!("{due:?} {is_renewed} {removal:?}"));
}

/// A thread that finds that an entry has ended finds the one that has replaced it. The map is a cell.
fn replaced_entry() {
    let entry = Arc::new((Expiry::at(5), AtomicU32::new(1)));
    let own = Arc::clone(&entry);
    let replacer = thread::spawn(move || {
        own.1.store(2, Relaxed);
        assert_eq!(own.0.end(4), Some(false));
    });
    let is_renewed = entry.0.renew(|| 4, |_, _| 20).is_some();
    assert!(is_renewed || entry.1.load(Relaxed) == 2, "the old one is still there");
    replacer.join().expect("no panic");
    outcome(if is_renewed { "renewed" } else { "ended" });
}

/// A callback, and a flag, which orders nothing, by which other threads hear of it.
#[derive(Default)]
struct Running {
    under_way: UnderWay,
    is_told: AtomicU32,
    done: [UnsafeCell<u32>; 2],
}

// SAFETY: loom checks each access to what the callbacks do.
unsafe impl Sync for Running {}

impl Running {
    fn call_back(&self, number: usize) {
        // SAFETY: only this callback accesses it, and threads that have waited for it.
        self.done[number].with_mut(|done| unsafe { *done += 1 });
    }

    /// Call it after having waited for the callback.
    fn assert_done(&self, number: usize) {
        // SAFETY: no thread accesses it any more, or else loom reports that.
        assert_eq!(self.done[number].with(|done| unsafe { *done }), 1, "a callback that was under way runs on");
    }

    /// Claims a timer, tells others of it, and runs it.
    fn claim_and_run(&self) {
        let entered = self.under_way.enter();
        self.is_told.store(1, Relaxed);
        self.call_back(0);
        self.under_way.leave(entered);
    }
}

/// A thread that has heard of a claim, in any way, waits for its callback. Beside them another thread finds nothing to
/// claim.
fn waiting_for_a_callback() {
    let shared = Arc::new(Running::default());
    let [running, passing] = [(); 2].map(|()| Arc::clone(&shared));
    let threads = [
        thread::spawn(move || running.claim_and_run()),
        thread::spawn(move || {
            let entered = passing.under_way.enter();
            passing.under_way.enter_beside(entered, 1);
            (0..2).for_each(|_| passing.under_way.leave(entered));
        }),
    ];
    if shared.is_told.load(Relaxed) == 1 {
        assert!(shared.under_way.wait(None));
        shared.assert_done(0);
        outcome("waited");
    } else {
        outcome("not told");
    }
    threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
    assert!(shared.under_way.is_empty());
}

/// Two threads wait, beside one that gives up at its first look; or that only looks, as within a callback.
fn waiting_together() {
    let shared = Arc::new(Running::default());
    let entered = shared.under_way.enter();
    let [running, waiting] = [(); 2].map(|()| Arc::clone(&shared));
    let callback = thread::spawn(move || {
        running.call_back(0);
        running.under_way.leave(entered);
    });
    let other = thread::spawn(move || {
        let in_time = waiting.under_way.wait(Some(Instant::now()));
        outcome(if in_time { "in time" } else { "gives up" });
        if in_time || waiting.under_way.wait(None) {
            waiting.assert_done(0);
        }
    });
    if shared.under_way.is_empty() {
        outcome("empty");
    } else {
        assert!(shared.under_way.wait(None));
    }
    shared.assert_done(0);
    [callback, other].into_iter().for_each(|thread| thread.join().expect("no panic"));
}

/// Two threads run timers that were claimed together.
fn waiting_for_a_batch() {
    let shared = Arc::new(Running::default());
    let under_way = &shared.under_way;
    let entered = under_way.enter();
    under_way.enter_beside(entered, 1);
    under_way.leave(entered);
    let batch = Arc::new(Shared::new(entered, 2));
    let threads = [0, 1].map(|number| {
        let (shared, batch) = (Arc::clone(&shared), Arc::clone(&batch));
        thread::spawn(move || {
            shared.call_back(number);
            batch.end(1, &shared.under_way);
        })
    });
    assert!(under_way.wait(None));
    [0, 1].into_iter().for_each(|number| shared.assert_done(number));
    outcome("waited");
    threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
}

/// A callback is always under way: each enters before the previous one leaves. A thread that waits gets done
/// nevertheless, with one callback still under way.
fn waiting_while_callbacks_overlap() {
    let shared = Arc::new(Running::default());
    let first = shared.under_way.enter();
    let running = Arc::clone(&shared);
    let callbacks = thread::spawn(move || {
        let mut last = first;
        for round in 0.. {
            assert!(round < 50, "who waits would wait for ever");
            let next = running.under_way.enter();
            running.under_way.leave(last);
            last = next;
            if last != first {
                break;
            }
            thread::yield_now();
        }
        last
    });
    assert!(shared.under_way.wait(None));
    let last: Phase = callbacks.join().expect("no panic");
    assert!(!shared.under_way.is_empty());
    shared.under_way.leave(last);
    assert!(shared.under_way.is_empty());
    outcome("waited");
}

/// What is put into a slot, and how often it has come out.
struct Errand(UnsafeCell<u32>, Arc<AtomicU32>);

impl Errand {
    fn new(times_out: &Arc<AtomicU32>) -> Box<Self> {
        let errand = Box::new(Self(UnsafeCell::new(0), Arc::clone(times_out)));
        // SAFETY: no other thread has it.
        errand.0.with_mut(|number| unsafe { *number = 7 });
        errand
    }

    fn note(&self) {
        // SAFETY: the caller has the box to itself.
        assert_eq!(self.0.with_mut(|number| unsafe { *number }), 7);
        self.1.fetch_add(1, Relaxed);
    }
}

/// One thread puts two things there, one after the other, and takes back what is left. Another one takes twice
/// meanwhile. Some fault would give both the same box, so they keep it until all threads have seen that.
fn handing_over() {
    let (slot, out) = (Arc::new(Slot::<Errand>::new()), [(); 2].map(|()| Arc::new(AtomicU32::new(0))));
    let taker = Arc::clone(&slot);
    let taker = thread::spawn(move || {
        let taken = [(); 2].map(|()| taker.take().map(ManuallyDrop::new));
        taken.iter().flatten().for_each(|errand| errand.note());
        taken
    });
    let mut back: Vec<_> =
        out.iter().map(|times_out| slot.put(Errand::new(times_out)).map(ManuallyDrop::new)).collect();
    back.push(slot.take().map(ManuallyDrop::new));
    back.iter().flatten().for_each(|errand| errand.note());
    let taken = taker.join().expect("no panic");
    let times_out = out.map(|times_out| times_out.load(Relaxed));
    assert_eq!(times_out, [1; 2], "each comes out once");
    outcome(["none", "one", "both"][taken.iter().flatten().count()]);
    back.into_iter().chain(taken).flatten().for_each(|errand| drop(ManuallyDrop::into_inner(errand)));
}

#[test]
fn what_lies_in_a_slot_goes_to_one_who_takes_it() {
    reaches(handing_over, &["none", "one", "both"]);
    for flaw in [Flaw::IsTorn, Flaw::AcquiresNothing, Flaw::ReleasesNothing] {
        assert_notices_in("swap", flaw, handing_over, RACE);
    }
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
fn a_thread_relies_on_a_lookout_that_comes() {
    let all = ["relies", "does not rely", "sleeps", "does not sleep"];
    [relying, relying_on_one_that_is_up].into_iter().for_each(|model| reaches(model, &all));
    reaches(resigning, &["relies", "does not rely", "told", "nobody told"]);
    let pairs = [(relying as fn(), "lie_down"), (relying_on_one_that_is_up, "lie_down"), (resigning, "resign")];
    for (model, other) in pairs {
        for function in ["rely", other].map(|name| ("lookout.rs", name)) {
            assert_notices(Fault::NoFenceIn(function), model);
            assert_notices(Fault::WeakFenceIn(function), model);
        }
    }
}

#[test]
fn a_thread_that_relies_on_a_lookout_that_is_dismissed_is_told() {
    let all = ["relies", "does not rely", "told", "nobody told"];
    reaches(dismissing_one_that_is_stopped, &all);
    // Visible loads are exchanges. With one of these, loom may undo what another thread stores at the same time, which
    // no processor does; and here the lookout stores while others load.
    reaches_with(&[false], dismissing_one_that_comes_back, &all);
    for model in [dismissing_one_that_is_stopped, dismissing_one_that_comes_back] {
        assert_notices(Fault::NoFenceIn(("lookout.rs", "rely")), model);
        assert_notices(Fault::WeakFenceIn(("lookout.rs", "rely")), model);
    }
    assert_notices(Fault::NoFenceIn(("lookout.rs", "dismiss")), dismissing_one_that_is_stopped);
    assert_notices(Fault::WeakFenceIn(("lookout.rs", "dismiss")), dismissing_one_that_is_stopped);
}

#[test]
fn lookouts_leave_nothing_to_each_other() {
    // As above.
    reaches_with(&[false], both_lie_down, &["relies", "both sleep", "one sleeps", "neither sleeps"]);
    reaches_with(
        &[false],
        both_lie_down_beside_one_that_relies,
        &["relies", "does not rely", "both sleep", "one sleeps", "neither sleeps"],
    );
    let all = ["both sleep", "one sleeps", "neither sleeps"];
    reaches_with(&[false], both_lie_down_after_one_has_put_a_shard_off, &all);
    let lie_down = ("lookout.rs", "lie_down");
    let models = [both_lie_down, both_lie_down_beside_one_that_relies, both_lie_down_after_one_has_put_a_shard_off];
    for model in models {
        assert_notices(Fault::NoFenceIn(lie_down), model);
        assert_notices(Fault::WeakFenceIn(lie_down), model);
    }
    let all = ["relies", "does not rely", "sleeps", "does not sleep"];
    reaches_with(&[false], lying_down_beside_one_that_is_late, &all);
    for model in [both_lie_down_beside_one_that_relies, lying_down_beside_one_that_is_late] {
        for function in ["rely", "lie_down"].map(|name| ("lookout.rs", name)) {
            assert_notices(Fault::NoFenceIn(function), model);
            assert_notices(Fault::WeakFenceIn(function), model);
        }
    }
}

#[test]
fn a_lookout_that_may_run_callbacks_is_watched() {
    // As above.
    reaches_with(&[false], watching, &["calls the other", "watched", "sleeps", "does not sleep"]);
    reaches_with(&[false], watching_one_that_is_late, &["Yes", "IfCalled", "sleeps", "does not sleep"]);
    for function in ["stay_up", "lie_down"].map(|name| ("lookout.rs", name)) {
        for model in [watching, watching_one_that_is_late] {
            assert_notices(Fault::NoFenceIn(function), model);
            assert_notices(Fault::WeakFenceIn(function), model);
        }
    }
    let all = ["watched", "not watched", "watches", "is gone"];
    reaches_with(&[false], resigning_beside_one_that_gets_up, &all);
    for function in ["stay_up", "resign"].map(|name| ("lookout.rs", name)) {
        assert_notices(Fault::NoFenceIn(function), resigning_beside_one_that_gets_up);
        assert_notices(Fault::WeakFenceIn(function), resigning_beside_one_that_gets_up);
    }
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
    for (function, model) in [("end", cancelled_entry as fn()), ("expire", expired_entry)] {
        explore(Fault::None, model);
        for function in [function, "is_missed"].map(|name| ("expiry.rs", name)) {
            assert_notices(Fault::NoFenceIn(function), model);
            assert_notices(Fault::WeakFenceIn(function), model);
        }
    }
}

#[test]
fn nobody_brings_back_what_others_have_seen_expire() {
    reaches(renewal, &["[false, false] false", "[true, true] true"]);
    assert_notices_in("change", Flaw::IsTorn, renewal, "renewed after");
}

#[test]
fn no_renewal_undoes_a_newer_one() {
    reaches(two_renewals, &["10 11", "10 12", "11 10", "11 12", "12 10", "12 11"]);
    assert_notices_in("change", Flaw::IsTorn, two_renewals, "the later one stands");
}

#[test]
fn one_thread_ends_an_entry() {
    reaches(
        one_end,
        &["Now false None", "Ended false Some(false)", "Ended true Some(false)", "Later(Some(20)) true Some(false)"],
    );
    assert_notices_in("change", Flaw::IsTorn, one_end, "it has expired though it was renewed");
}

#[test]
fn who_finds_an_entry_ended_finds_what_has_replaced_it() {
    reaches(replaced_entry, &["ended", "renewed"]);
    assert_notices_in("renew", Flaw::AcquiresNothing, replaced_entry, "still there");
    assert_notices_in("change", Flaw::ReleasesNothing, replaced_entry, "still there");
}

#[test]
fn who_waits_for_callbacks_waits_for_all_that_he_has_heard_of() {
    reaches(waiting_for_a_callback, &["not told", "waited", "sleeps"]);
    let notices = |function, flaw, reason| assert_notices_in(function, flaw, waiting_for_a_callback, reason);
    notices("enter", Flaw::IsTorn, "subtract with overflow");
    notices("enter_beside", Flaw::IsTorn, "subtract with overflow");
    notices("leave", Flaw::IsTorn, "is_empty()");
    notices("have_left_since", Flaw::IsTorn, "deadlock");
    for function in ["enter", "first_look"] {
        notices(function, Flaw::HasNoFence, RACE);
    }
    for function in ["first_look", "have_left_since"] {
        notices(function, Flaw::AcquiresNothing, RACE);
    }
    notices("leave", Flaw::ReleasesNothing, RACE);
    notices("wake", Flaw::LocksNothing, "deadlock");
}

#[test]
fn who_waits_for_callbacks_holds_up_no_other() {
    reaches(waiting_together, &["in time", "gives up", "empty", "sleeps"]);
    let notices = |function, flaw, reason| assert_notices_in(function, flaw, waiting_together, reason);
    notices("wake", Flaw::WakesOne, "deadlock");
    // Both phases are waited for.
    notices("have_left_since", Flaw::FindsOtherEmpty, "runs on");
    notices("first_look", Flaw::FindsOneMoveLess, "runs on");
}

#[test]
fn a_batch_is_under_way_until_the_last_of_its_timers_has_ended() {
    reaches(waiting_for_a_batch, &["waited", "sleeps"]);
    let notices = |flaw, reason| assert_notices_in("end", flaw, waiting_for_a_batch, reason);
    notices(Flaw::IsTorn, "deadlock");
    notices(Flaw::AcquiresNothing, RACE);
    notices(Flaw::ReleasesNothing, RACE);
}

#[test]
fn callbacks_that_overlap_starve_nobody_who_waits() {
    reaches(waiting_while_callbacks_overlap, &["waited", "sleeps"]);
    assert_notices_in("enter", Flaw::FindsNoMove, waiting_while_callbacks_overlap, "would wait for ever");
}
