//! `src/sync.rs` made of loom's types: the same names, so that the files of `src/shard` compile against either.
//!
//! Every atomic operation knows the line that it was called from ([`Place`]). With it, a test can make loads *visible*,
//! or break exactly one place of the shipped code; see [`super::support`] and `loom-tests/README.md`.

#![allow(dead_code, reason = "not every model uses every part; `src/sync.rs` itself is checked by the library")]

/// Sizes of the model, and what all models have in common.
pub(crate) mod size {
    pub(crate) use crate::size::*;

    /// Each segment is an atomic, which costs loom bookkeeping. No model needs an index above 63; a fault that leads
    /// further is noticed.
    pub(crate) const SEGMENT_COUNT: usize = 6;
    /// A line has three cells, and is full with two.
    pub(crate) const PAIRS: usize = 2;
    pub(crate) const LINE_LOAD: u32 = 2;
    /// A thread's own list, and another one.
    pub(crate) const RIPE_LISTS: usize = 2;
    /// Threads step aside as soon as that is of any use.
    pub(crate) const WAITING_BATCHES: u64 = 0;
}
pub(crate) use std::sync::atomic::Ordering;

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::mem::ManuallyDrop;
use std::panic::Location;
use std::rc::Rc;

/// A line of `src/`, and what kind of operation is there.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Place {
    pub(crate) file: &'static str,
    pub(crate) line: u32,
    pub(crate) column: u32,
}

impl Place {
    fn of(location: &'static Location<'static>) -> Self {
        let file = location.file();
        Self { file: &file[file.find("src/").unwrap_or(0)..], line: location.line(), column: location.column() }
    }
}

/// What is done at a place, and with which orderings.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Operation {
    Load(Order),
    Store(Order),
    /// A read-modify-write that always succeeds.
    Modify(Order),
    /// Orderings of success and failure.
    Exchange(Order, Order),
    Fence(Order),
}

/// `Ordering`, with an order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Order {
    Relaxed,
    Acquire,
    Release,
    AcqRel,
    SeqCst,
}

impl From<Ordering> for Order {
    fn from(order: Ordering) -> Self {
        match order {
            Ordering::Relaxed => Self::Relaxed,
            Ordering::Acquire => Self::Acquire,
            Ordering::Release => Self::Release,
            Ordering::AcqRel => Self::AcqRel,
            _ => Self::SeqCst,
        }
    }
}

fn without_acquire(order: Ordering) -> Ordering {
    match order {
        Ordering::Acquire | Ordering::Relaxed => Ordering::Relaxed,
        _ => Ordering::Release,
    }
}

fn without_release(order: Ordering) -> Ordering {
    match order {
        Ordering::Release | Ordering::Relaxed => Ordering::Relaxed,
        _ => Ordering::Acquire,
    }
}

/// The ordering of the load in a torn read-modify-write.
fn load_part(order: Ordering) -> Ordering {
    match order {
        Ordering::Relaxed | Ordering::Release => Ordering::Relaxed,
        _ => Ordering::Acquire,
    }
}

fn store_part(order: Ordering) -> Ordering {
    match order {
        Ordering::Relaxed | Ordering::Acquire => Ordering::Relaxed,
        _ => Ordering::Release,
    }
}

/// One fault, put into one place of the shipped code.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Change {
    /// The operation (of an exchange: if it succeeds) acquires nothing.
    DropAcquire,
    /// The operation releases nothing.
    DropRelease,
    /// An exchange that fails acquires nothing.
    RelaxFailure,
    /// A fence is left out.
    DropFence,
    /// A fence stays, but has no common order with the others.
    WeakenFence,
    /// A read-modify-write becomes a load and a store.
    Tear,
    /// An exchange pretends to have succeeded, or another operation to have happened, and happens only after the same
    /// thread's next operation at the other place.
    Postpone(Lines),
    /// Writes another value than the code says: computed from the expected value (for a store, 0) and the one to be
    /// written.
    Rewrite(fn(u64, u64) -> u64),
    /// A load takes what it finds and leaves this value: it claims.
    LoadBecomesSwap(u64),
}

/// Lines of a file, as a test names them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Lines {
    pub(crate) file: &'static str,
    pub(crate) first_line: u32,
    pub(crate) last_line: u32,
    /// 0: any.
    pub(crate) column: u32,
}

impl From<Place> for Lines {
    fn from(place: Place) -> Self {
        Self { file: place.file, first_line: place.line, last_line: place.line, column: place.column }
    }
}

impl Lines {
    pub(crate) fn contains(&self, place: &Place) -> bool {
        (self.first_line..=self.last_line).contains(&place.line)
            && (self.column == 0 || self.column == place.column)
            && self.file == place.file
    }
}

/// How loom gets to see loads.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Loads {
    /// As they are: they may be stale, but loom overlooks interleavings between a load and what follows it.
    #[default]
    Plain,
    /// Each load is a compare-exchange that fails: never stale, and all interleavings are explored.
    Visible,
    /// Visible everywhere except in this place.
    StaleAt(Lines),
}

/// What holds for the model that this OS thread runs. (All threads of a model run on one OS thread.)
#[derive(Clone, Copy, Default)]
pub(crate) struct Setting {
    pub(crate) loads: Loads,
    pub(crate) mutant: Option<(Lines, Change)>,
    /// Whether retired memory comes back as early as it may, or only at the end.
    pub(crate) reclaim_early: bool,
}

/// What is known of a place.
struct Reached {
    place: Place,
    /// Some thread came there while another one ran.
    beside_others: bool,
}

type Postponed = (Lines, loom::thread::ThreadId, Box<dyn FnOnce()>);

thread_local! {
    static SETTING: Cell<Setting> = Cell::default();
    static IN_MODEL: Cell<bool> = const { Cell::new(false) };
    /// By the address of the `Location`, which is quicker to compare.
    static PLACES: RefCell<BTreeMap<(usize, Operation), Reached>> = RefCell::default();
    static MUTANT_WAS_REACHED: Cell<bool> = const { Cell::new(false) };
    /// Threads of the model beside its first one that have not been joined.
    static OTHERS: Cell<usize> = const { Cell::new(0) };
    static POSTPONED: RefCell<Vec<Postponed>> = const { RefCell::new(Vec::new()) };
    static STALL: RefCell<Vec<Stall>> = const { RefCell::new(Vec::new()) };
}

pub(crate) fn configure(setting: Setting) {
    SETTING.set(setting);
    MUTANT_WAS_REACHED.set(false);
    PLACES.take();
}

/// Forgets what an earlier execution left behind.
pub(crate) fn begin_execution() {
    IN_MODEL.set(true);
    forget();
    epoch::begin_execution();
}

pub(crate) fn end_exploration() {
    IN_MODEL.set(false);
    forget();
}

fn forget() {
    OTHERS.set(0);
    POSTPONED.take();
    STALL.take();
    SLEEPERS.take();
    epoch::forget();
}

pub(crate) fn mutant_was_reached() -> bool {
    MUTANT_WAS_REACHED.get()
}

/// Where atomic operations were done since `configure`, and which; nothing if not all loads are visible.
pub(crate) fn recorded_places() -> BTreeSet<(Place, Operation)> {
    places(|_| true)
}

/// Those of them that were done while another thread ran.
pub(crate) fn raced_places() -> BTreeSet<(Place, Operation)> {
    places(|reached| reached.beside_others)
}

fn places(is_meant: impl Fn(&Reached) -> bool) -> BTreeSet<(Place, Operation)> {
    PLACES.with_borrow(|places| {
        let meant = places.iter().filter(|(_, reached)| is_meant(reached));
        meant.map(|(&(_, operation), reached)| (reached.place, operation)).collect()
    })
}

/// To be called before a thread of the model is started.
pub(crate) fn another_begins() {
    OTHERS.set(OTHERS.get() + 1);
}

/// To be called after it has been joined.
pub(crate) fn another_has_ended() {
    OTHERS.set(OTHERS.get() - 1);
}

/// True before the model's first thread has started another one, and after it has joined all: then it sees all that
/// was done, and all others will see what it does. So an operation needs no branch of loom's, which is most of what
/// operations cost. Half of all come then: without this, `.ci/loom` takes a third longer.
fn is_alone() -> bool {
    OTHERS.get() == 0
}

/// A thread that stops before one of its operations, until the model lets it go on.
struct Stall {
    thread: loom::thread::ThreadId,
    operations_left: usize,
    stopped: bool,
    gate: Rc<Gate>,
}

/// Where a stopped thread waits.
#[derive(Default)]
pub(crate) struct Gate {
    open: Cell<bool>,
    waiter: RefCell<Option<loom::thread::Thread>>,
}

impl Gate {
    /// True if the thread has stopped, and waits.
    pub(crate) fn is_waited_at(&self) -> bool {
        self.waiter.borrow().is_some()
    }

    pub(crate) fn open(&self) {
        self.open.set(true);
        if let Some(thread) = self.waiter.take() {
            thread.unpark();
        }
    }
}

/// Makes the calling thread stop before its operation number `operation` from now (0: the next one), until the gate
/// opens.
pub(crate) fn stall_at_gate(operation: usize, gate: &Rc<Gate>) {
    let stall = Stall {
        thread: loom::thread::current().id(),
        operations_left: operation,
        stopped: false,
        gate: Rc::clone(gate),
    };
    STALL.with_borrow_mut(|stalls| stalls.push(stall));
}

fn stop_if_stalled() {
    let gate = STALL.with_borrow_mut(|stalls| {
        if stalls.is_empty() {
            return None;
        }
        let current = loom::thread::current().id();
        let stall = stalls.iter_mut().find(|stall| stall.thread == current && !stall.stopped)?;
        if stall.operations_left > 0 {
            stall.operations_left -= 1;
            return None;
        }
        stall.stopped = true;
        Some(Rc::clone(&stall.gate))
    });
    if let Some(gate) = gate {
        while !gate.open.get() {
            *gate.waiter.borrow_mut() = Some(loom::thread::current());
            loom::thread::park();
        }
    }
}

/// The fault at this place, if the setting has one for it.
fn change_at(location: &'static Location<'static>, operation: Operation) -> Option<Change> {
    stop_if_stalled();
    let setting = SETTING.get();
    if setting.loads == Loads::Visible {
        PLACES.with_borrow_mut(|places| {
            let new = || Reached { place: Place::of(location), beside_others: false };
            let reached = places.entry((std::ptr::from_ref(location).addr(), operation)).or_insert_with(new);
            reached.beside_others |= !is_alone();
        });
    }
    let (place, change) = setting.mutant?;
    if location.line() < place.first_line || location.line() > place.last_line || !place.contains(&Place::of(location))
    {
        return None;
    }
    let applies = match (change, operation) {
        (Change::WeakenFence, Operation::Load(order)) => order == Order::SeqCst,
        (Change::DropFence | Change::WeakenFence, operation) => matches!(operation, Operation::Fence(_)),
        (_, Operation::Fence(_)) => false,
        (Change::LoadBecomesSwap(_), operation) => matches!(operation, Operation::Load(_)),
        (Change::DropAcquire, operation) => !matches!(operation, Operation::Store(_)),
        (_, Operation::Load(_)) => false,
        (Change::DropRelease, _) => true,
        (Change::Tear, operation) => !matches!(operation, Operation::Store(_)),
        (Change::RelaxFailure, operation) => matches!(operation, Operation::Exchange(..)),
        (Change::Rewrite(_), operation) => !matches!(operation, Operation::Modify(_)),
        (Change::Postpone(_), _) => true,
    };
    if applies {
        MUTANT_WAS_REACHED.set(true);
    }
    applies.then_some(change)
}

fn postpone(until: Lines, operation: impl FnOnce() + 'static) {
    let current = loom::thread::current().id();
    POSTPONED.with_borrow_mut(|list| list.push((until, current, Box::new(operation))));
}

/// Called after an operation at `location`: performs what this thread had postponed until now.
fn after(location: &'static Location<'static>) {
    let due = POSTPONED.with_borrow_mut(|list| {
        if list.is_empty() {
            return None;
        }
        let place = Place::of(location);
        let current = loom::thread::current().id();
        let at = list.iter().position(|(until, thread, _)| *thread == current && until.contains(&place))?;
        Some(list.remove(at))
    });
    if let Some((_, _, operation)) = due {
        operation();
    }
}

/// Also false while a failed model is being taken apart: loom is gone then, so it must not be called.
fn in_model() -> bool {
    IN_MODEL.get() && !std::thread::panicking()
}

/// [`super::support`]'s allocator overwrites it when the memory is freed.
const ALIVE: u64 = 0x5ca1_ab1e_0ddb_a11c;

/// The expected value of a compare-exchange that must fail.
const IMPOSSIBLE: u64 = 0xfeed_face_cafe_beef;

macro_rules! atomic {
    ($name:ident, $model:ty, $plain:ty, $value:ty, $impossible:expr) => {
        pub(crate) struct $name {
            /// `None` if made outside of a model, as in the unit tests that come with the shipped files.
            inner: Option<$model>,
            /// Used outside of a model, and while a failed one is taken apart.
            plain: $plain,
            /// A plain store was done to it while another thread ran: then loom leaves open in which order that and
            /// read-modify-writes come, and which of them is the latest.
            is_unsettled: std::sync::atomic::AtomicBool,
            alive: u64,
        }

        impl std::fmt::Debug for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(stringify!($name))
            }
        }

        impl $name {
            pub(crate) fn new(value: $value) -> Self {
                let inner = in_model().then(|| <$model>::new(value));
                Self { inner, plain: <$plain>::new(value), is_unsettled: false.into(), alive: ALIVE }
            }

            /// A copy, which outlives the memory if another thread's turn comes first and frees it.
            fn inner(&self) -> ManuallyDrop<$model> {
                self.assert_alive();
                let inner = self.inner.as_ref().expect("made in the model that uses it");
                // SAFETY: it is only a number by which loom knows the object, and has nothing to drop.
                ManuallyDrop::new(unsafe { std::ptr::read(inner) })
            }

            fn assert_alive(&self) {
                assert!(self.alive == ALIVE, "used after it was freed");
            }

            /// Called after an operation of this atomic.
            fn after(&self, location: &'static Location<'static>) {
                self.assert_alive();
                after(location);
            }

            /// The value, if no other thread is there to change it.
            fn settled<R>(&self, change: impl FnOnce(&mut $value) -> R) -> Option<R> {
                let is_settled = is_alone() && !self.is_unsettled.load(Ordering::Relaxed);
                is_settled.then(|| self.inner().with_mut(change))
            }

            fn plainly_store(&self, value: $value, order: Ordering) {
                self.is_unsettled.fetch_or(!is_alone(), Ordering::Relaxed);
                self.inner().store(value, order);
            }

            /// A load that loom takes for a write, so that it also explores what may come between this operation and
            /// the next.
            fn read_latest(&self, order: Ordering) -> $value {
                match self.inner().compare_exchange($impossible, $impossible, Ordering::Relaxed, order) {
                    Ok(value) | Err(value) => value,
                }
            }

            #[track_caller]
            pub(crate) fn load(&self, order: Ordering) -> $value {
                self.load_at(order, Location::caller())
            }

            fn load_at(&self, order: Ordering, location: &'static Location<'static>) -> $value {
                if !in_model() {
                    return self.plain.load(order);
                }
                let visible = match SETTING.get().loads {
                    Loads::Plain => false,
                    Loads::Visible => true,
                    Loads::StaleAt(lines) => {
                        location.line() != lines.first_line || !lines.contains(&Place::of(location))
                    }
                };
                let change = change_at(location, Operation::Load(order.into()));
                if change.is_none()
                    && let Some(value) = self.settled(|value| *value)
                {
                    self.after(location);
                    return value;
                }
                let order = match change {
                    None if order == Ordering::SeqCst => {
                        // loom takes such a load for one that acquires. One that may be stale gets its place in the one
                        // order by a fence before it; that would publish more than it should, so a visible load has
                        // none.
                        if !visible {
                            loom::sync::atomic::fence(Ordering::SeqCst);
                        }
                        Ordering::Acquire
                    }
                    None => order,
                    Some(Change::WeakenFence) => Ordering::Acquire,
                    Some(Change::DropAcquire) => without_acquire(order),
                    Some(Change::LoadBecomesSwap(value)) => return self.inner().swap(Self::cast(value), order),
                    Some(change) => panic!("no {change:?} of a load"),
                };
                let value = if visible { self.read_latest(order) } else { self.inner().load(order) };
                self.after(location);
                value
            }

            #[track_caller]
            pub(crate) fn store(&self, value: $value, order: Ordering) {
                let location = Location::caller();
                if !in_model() {
                    return self.plain.store(value, order);
                }
                let (mut value, mut order) = (value, order);
                match change_at(location, Operation::Store(order.into())) {
                    None if self.settled(|old| *old = value).is_some() => return self.after(location),
                    None => {}
                    Some(Change::DropRelease) => order = without_release(order),
                    Some(Change::Postpone(until)) => {
                        let this = std::ptr::from_ref(self);
                        // SAFETY: as for an exchange.
                        return postpone(until, move || unsafe { &*this }.plainly_store(value, order));
                    }
                    Some(Change::Rewrite(rewrite)) => value = Self::cast(rewrite(0, Self::uncast(value))),
                    Some(change) => panic!("no {change:?} of a store"),
                }
                self.plainly_store(value, order);
                self.after(location);
            }

            #[track_caller]
            pub(crate) fn compare_exchange(
                &self,
                current: $value,
                new: $value,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$value, $value> {
                self.exchange_at(current, new, success, failure, Location::caller())
            }

            fn exchange_at(
                &self,
                current: $value,
                new: $value,
                success: Ordering,
                failure: Ordering,
                location: &'static Location<'static>,
            ) -> Result<$value, $value> {
                if !in_model() {
                    return self.plain.compare_exchange(current, new, success, failure);
                }
                let operation = Operation::Exchange(success.into(), failure.into());
                let (mut success, mut failure, mut new) = (success, failure, new);
                let exchange = |seen: &mut $value| {
                    if *seen == current { Ok(std::mem::replace(seen, new)) } else { Err(*seen) }
                };
                match change_at(location, operation) {
                    None => {
                        if let Some(result) = self.settled(exchange) {
                            self.after(location);
                            return result;
                        }
                    }
                    Some(Change::DropAcquire) => success = without_acquire(success),
                    Some(Change::DropRelease) => success = without_release(success),
                    Some(Change::RelaxFailure) => failure = Ordering::Relaxed,
                    Some(Change::Tear) => {
                        let acquires = [success, failure].map(load_part).contains(&Ordering::Acquire);
                        let seen = self.read_latest(if acquires { Ordering::Acquire } else { Ordering::Relaxed });
                        if seen != current {
                            return Err(seen);
                        }
                        self.plainly_store(new, store_part(success));
                        return Ok(seen);
                    }
                    Some(Change::Postpone(until)) => {
                        let this = std::ptr::from_ref(self);
                        postpone(until, move || {
                            // SAFETY: a postponed operation is performed before its thread's call returns, and the
                            // shard outlives that.
                            let _ = unsafe { &*this }.inner().compare_exchange(current, new, success, failure);
                        });
                        return Ok(current);
                    }
                    Some(Change::Rewrite(rewrite)) => {
                        new = Self::cast(rewrite(Self::uncast(current), Self::uncast(new)));
                    }
                    Some(change) => panic!("no {change:?} of an exchange"),
                }
                let result = self.inner().compare_exchange(current, new, success, failure);
                self.after(location);
                result
            }
        }
    };
}

macro_rules! integer {
    ($name:ident, $value:ty) => {
        atomic!($name, loom::sync::atomic::$name, std::sync::atomic::$name, $value, IMPOSSIBLE as $value);

        impl $name {
            fn cast(value: u64) -> $value {
                value as $value
            }

            fn uncast(value: $value) -> u64 {
                u64::from(value)
            }

            fn modify(
                &self,
                order: Ordering,
                location: &'static Location<'static>,
                change: impl Fn($value) -> $value,
                perform: impl Fn(&loom::sync::atomic::$name, Ordering) -> $value + 'static,
            ) -> $value {
                if !in_model() {
                    return self
                        .plain
                        .fetch_update(order, load_part(order), |old| Some(change(old)))
                        .unwrap_or_default();
                }
                let order = match change_at(location, Operation::Modify(order.into())) {
                    None => {
                        if let Some(old) = self.settled(|value| std::mem::replace(value, change(*value))) {
                            self.after(location);
                            return old;
                        }
                        order
                    }
                    Some(Change::DropAcquire) => without_acquire(order),
                    Some(Change::DropRelease) => without_release(order),
                    Some(Change::Tear) => {
                        let seen = self.read_latest(load_part(order));
                        self.plainly_store(change(seen), store_part(order));
                        return seen;
                    }
                    Some(Change::Postpone(until)) => {
                        let this = std::ptr::from_ref(self);
                        // SAFETY: as for an exchange.
                        postpone(until, move || _ = perform(&unsafe { &*this }.inner(), order));
                        return self.read_latest(load_part(order));
                    }
                    Some(change) => panic!("no {change:?} of a read-modify-write"),
                };
                let value = perform(&self.inner(), order);
                self.after(location);
                value
            }

            #[track_caller]
            pub(crate) fn swap(&self, value: $value, order: Ordering) -> $value {
                self.modify(order, Location::caller(), |_| value, move |inner, order| inner.swap(value, order))
            }

            #[track_caller]
            pub(crate) fn fetch_add(&self, value: $value, order: Ordering) -> $value {
                let location = Location::caller();
                self.modify(
                    order,
                    location,
                    |old| old.wrapping_add(value),
                    move |inner, order| inner.fetch_add(value, order),
                )
            }

            #[track_caller]
            pub(crate) fn fetch_sub(&self, value: $value, order: Ordering) -> $value {
                let location = Location::caller();
                self.modify(
                    order,
                    location,
                    |old| old.wrapping_sub(value),
                    move |inner, order| inner.fetch_sub(value, order),
                )
            }

            #[track_caller]
            pub(crate) fn fetch_or(&self, value: $value, order: Ordering) -> $value {
                self.modify(
                    order,
                    Location::caller(),
                    |old| old | value,
                    move |inner, order| inner.fetch_or(value, order),
                )
            }

            #[track_caller]
            pub(crate) fn fetch_and(&self, value: $value, order: Ordering) -> $value {
                self.modify(
                    order,
                    Location::caller(),
                    |old| old & value,
                    move |inner, order| inner.fetch_and(value, order),
                )
            }

            #[track_caller]
            pub(crate) fn fetch_update(
                &self,
                success: Ordering,
                failure: Ordering,
                mut next: impl FnMut($value) -> Option<$value>,
            ) -> Result<$value, $value> {
                let location = Location::caller();
                if !in_model() {
                    return self.plain.fetch_update(success, failure, next);
                }
                let mut seen = self.settled(|value| *value).unwrap_or_else(|| self.inner().load(failure));
                while let Some(new) = next(seen) {
                    match self.exchange_at(seen, new, success, failure, location) {
                        Ok(seen) => return Ok(seen),
                        Err(found) => seen = found,
                    }
                }
                Err(seen)
            }
        }

        impl Default for $name {
            fn default() -> Self {
                Self::new(0)
            }
        }
    };
}

integer!(AtomicU64, u64);
integer!(AtomicU32, u32);
atomic!(
    AtomicAddress,
    loom::sync::atomic::AtomicPtr<()>,
    std::sync::atomic::AtomicPtr<()>,
    *mut (),
    std::ptr::without_provenance_mut(16)
);

impl AtomicAddress {
    fn cast(value: u64) -> *mut () {
        std::ptr::with_exposed_provenance_mut(value as usize)
    }

    fn uncast(value: *mut ()) -> u64 {
        value.expose_provenance() as u64
    }
}

#[derive(Debug)]
pub(crate) struct AtomicPtr<T>(AtomicAddress, std::marker::PhantomData<*mut T>);

// SAFETY: as `std`'s: it is only an address.
unsafe impl<T> Send for AtomicPtr<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for AtomicPtr<T> {}

impl<T> Default for AtomicPtr<T> {
    fn default() -> Self {
        Self::new(std::ptr::null_mut())
    }
}

impl<T> AtomicPtr<T> {
    pub(crate) fn new(value: *mut T) -> Self {
        Self(AtomicAddress::new(value.cast()), std::marker::PhantomData)
    }

    #[track_caller]
    pub(crate) fn load(&self, order: Ordering) -> *mut T {
        self.0.load(order).cast()
    }

    #[track_caller]
    pub(crate) fn store(&self, value: *mut T, order: Ordering) {
        self.0.store(value.cast(), order);
    }

    #[track_caller]
    pub(crate) fn compare_exchange(
        &self,
        current: *mut T,
        new: *mut T,
        success: Ordering,
        failure: Ordering,
    ) -> Result<*mut T, *mut T> {
        let result = self.0.compare_exchange(current.cast(), new.cast(), success, failure);
        result.map(<*mut ()>::cast).map_err(<*mut ()>::cast)
    }
}

#[track_caller]
pub(crate) fn fence(order: Ordering) {
    let location = Location::caller();
    if !in_model() {
        return std::sync::atomic::fence(order);
    }
    match change_at(location, Operation::Fence(order.into())) {
        None if is_alone() => {}
        None => loom::sync::atomic::fence(order),
        Some(Change::DropFence) => {}
        Some(Change::WeakenFence) => loom::sync::atomic::fence(Ordering::AcqRel),
        Some(change) => panic!("no {change:?} of a fence"),
    }
    after(location);
}

/// Does nothing: a SeqCst load that may be stale has a fence of its own here, and no other load misses what its thread
/// has acquired.
pub(crate) fn fence_after_acquire() {}

/// A cell that loom watches: an access that no happens-before orders after the last conflicting one fails the model.
#[derive(Debug)]
pub(crate) struct UnsafeCell<T> {
    watch: Option<loom::cell::UnsafeCell<()>>,
    data: std::cell::UnsafeCell<T>,
}

impl<T> UnsafeCell<T> {
    pub(crate) fn new(data: T) -> Self {
        let watch = in_model().then(|| loom::cell::UnsafeCell::new(()));
        Self { watch, data: std::cell::UnsafeCell::new(data) }
    }

    #[track_caller]
    pub(crate) fn with<R>(&self, read: impl FnOnce(*const T) -> R) -> R {
        match &self.watch {
            Some(watch) if in_model() => watch.with(|_| read(self.data.get())),
            _ => read(self.data.get()),
        }
    }

    #[track_caller]
    pub(crate) fn with_mut<R>(&self, write: impl FnOnce(*mut T) -> R) -> R {
        match &self.watch {
            Some(watch) if in_model() => watch.with_mut(|_| write(self.data.get())),
            _ => write(self.data.get()),
        }
    }
}

impl<T: Default> Default for UnsafeCell<T> {
    fn default() -> Self {
        Self::new(T::default())
    }
}

pub(crate) fn prefetch<T>(_address: *const T) {}

pub(crate) mod memory {
    use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
    use std::ops::Range;

    fn layout<T>(len: usize) -> Layout {
        Layout::array::<T>(len).and_then(|layout| layout.align_to(64)).expect("a model is small")
    }

    /// # Safety
    /// None needed: the items are built, not zeroed.
    pub(crate) unsafe fn allocate<T: Default>(len: usize) -> *mut T {
        // SAFETY: a segment has at least one item, and items are not empty.
        let items = unsafe { alloc(layout::<T>(len)) }.cast::<T>();
        if items.is_null() {
            handle_alloc_error(layout::<T>(len));
        }
        for index in 0..len {
            // SAFETY: within the allocation.
            unsafe { items.add(index).write(T::default()) };
        }
        items
    }

    /// # Safety
    /// None needed: all items have memory already.
    pub(crate) unsafe fn populate<T>(_items: *mut T, _len: usize, _range: Range<usize>, _touch: impl Fn(&T)) {}

    /// # Safety
    /// As in `src/sync/memory.rs`.
    pub(crate) unsafe fn free<T>(items: *mut T, len: usize) {
        // SAFETY: from `allocate` with the same length.
        unsafe { dealloc(items.cast(), layout::<T>(len)) };
    }
}

/// Sleeping and waking as `futex` does it: to look at the counter and to fall asleep are one step for all other
/// threads. If no thread wakes the sleeper, loom finds a deadlock.
#[derive(Debug, Default)]
pub(crate) struct EventCount {
    count: AtomicU32,
    /// The thread that the system would wake. Kept where loom does not see it: it orders nothing.
    sleeper: Cell<Option<SleeperId>>,
}

type SleeperId = usize;

thread_local! {
    static SLEEPERS: RefCell<BTreeMap<SleeperId, loom::thread::Thread>> = const { RefCell::new(BTreeMap::new()) };
    static NEXT_SLEEPER: Cell<SleeperId> = const { Cell::new(0) };
}

// SAFETY: all threads of a model are coroutines of one OS thread.
unsafe impl Sync for EventCount {}

impl EventCount {
    #[track_caller]
    pub(crate) fn ticket(&self) -> u32 {
        self.count.load(Ordering::Acquire)
    }

    #[track_caller]
    pub(crate) fn notify(&self) {
        self.count.fetch_add(1, Ordering::Release);
        // Between the two steps a notifier may stop.
        stop_if_stalled();
        if let Some(thread) = self.sleeper.take().and_then(|id| SLEEPERS.with_borrow_mut(|all| all.remove(&id))) {
            thread.unpark();
        }
    }

    #[track_caller]
    pub(crate) fn wait(&self, ticket: u32, _timeout: Option<std::time::Duration>) {
        // The system reads the newest value, and orders nothing.
        while self.count.read_latest(Ordering::Relaxed) == ticket {
            let id = NEXT_SLEEPER.get();
            NEXT_SLEEPER.set(id + 1);
            SLEEPERS.with_borrow_mut(|all| all.insert(id, loom::thread::current()));
            self.sleeper.set(Some(id));
            loom::thread::park();
        }
    }
}

/// Without a bound: the keys of models call no scheduler.
pub(crate) mod key_drops {
    pub(crate) fn begin() -> bool {
        true
    }

    pub(crate) fn end() {}
}

/// Reclamation as crossbeam-epoch promises it, without crossbeam's own atomics (which loom cannot see).
///
/// What is deferred runs once every guard that was pinned at that moment is gone. In the mode `reclaim_early` it runs
/// at that very moment, on the thread of the last such guard: crossbeam may take longer, never less. It is ordered by
/// what orders it in crossbeam: a guard that goes releases, and the thread that runs something deferred acquires from
/// all guards that were pinned before that, whether or not they were gone by then; a guard that is pinned after a
/// `defer` sees what led to it. There is no lock, and no other edge: not even the fences of `pin` and `defer`, to which
/// loom gives more meaning than the language does.
pub(crate) mod epoch {
    use super::{Cell, Ordering, Rc, RefCell, SETTING, VecDeque, in_model, is_alone};
    use loom::sync::atomic::AtomicU64;
    use loom::thread::{ThreadId, current};
    use std::collections::{BTreeSet, HashMap};

    #[derive(Debug)]
    pub(crate) struct Guard {
        id: u64,
    }

    struct Deferred {
        waits_for: BTreeSet<u64>,
        /// The guards to acquire from: those, and of each thread the last one that was gone.
        comes_after: BTreeSet<u64>,
        run: Box<dyn FnOnce()>,
    }

    /// The atomics that loom sees. Made before the model's threads, so that each of these may use them; changed by
    /// read-modify-writes, which read the latest value and hide no release.
    #[derive(Default)]
    struct Edges {
        /// From a guard that goes to the thread that runs something deferred. Each guard has one of its own, as long as
        /// there are few.
        gone: [AtomicU64; 32],
        /// From each `defer` to the guards after it.
        deferred: AtomicU64,
        /// Orders nothing: a point at which another thread may run.
        away: AtomicU64,
    }

    #[derive(Default)]
    struct Book {
        pinned: BTreeSet<u64>,
        last_gone: HashMap<ThreadId, u64>,
        deferred: VecDeque<Deferred>,
        /// How often something was deferred; and how many of those deferrals each thread has acquired.
        defer_count: u64,
        acquired: HashMap<ThreadId, u64>,
        /// `None` if nothing is reclaimed before the end.
        edges: Option<Rc<Edges>>,
    }

    thread_local! {
        static BOOK: RefCell<Book> = RefCell::default();
        static NEXT: Cell<u64> = const { Cell::new(0) };
    }

    impl Edges {
        fn of(&self, guard: u64) -> &AtomicU64 {
            &self.gone[guard as usize % self.gone.len()]
        }
    }

    fn edges() -> Option<Rc<Edges>> {
        BOOK.with_borrow(|book| book.edges.clone())
    }

    /// `None` also if there is no other thread, which makes edges superfluous.
    fn edges_between_threads() -> Option<Rc<Edges>> {
        edges().filter(|_| !is_alone())
    }

    pub(super) fn forget() {
        // What a failed execution left is neither run nor dropped.
        std::mem::forget(BOOK.take());
    }

    pub(super) fn begin_execution() {
        NEXT.set(0);
        if SETTING.get().reclaim_early {
            BOOK.with_borrow_mut(|book| book.edges = Some(Rc::default()));
        }
    }

    /// The end of a model: no thread is pinned any more, so everything deferred runs.
    pub(crate) fn finish() {
        assert!(BOOK.with_borrow(|book| book.pinned.is_empty()), "a guard outlives the model");
        while let Some(deferred) = BOOK.with_borrow_mut(|book| book.deferred.pop_front()) {
            run(deferred);
        }
    }

    pub(crate) fn pin() -> Guard {
        if let Some(edges) = edges_between_threads().filter(|_| has_news()) {
            edges.deferred.fetch_add(0, Ordering::Acquire);
            BOOK.with_borrow_mut(|book| book.acquired.insert(current().id(), book.defer_count));
        }
        let id = NEXT.get();
        NEXT.set(id + 1);
        BOOK.with_borrow_mut(|book| book.pinned.insert(id));
        Guard { id }
    }

    /// No model holds two guards at a time, so a thread can always unpin. While it has, other threads may run.
    pub(crate) fn unpinned<R>(guard: &mut Guard, run: impl FnOnce() -> R) -> R {
        unpin(guard.id);
        if let Some(edges) = edges_between_threads() {
            edges.away.fetch_add(1, Ordering::Relaxed);
        }
        let answer = run();
        let pinned = pin();
        guard.id = pinned.id;
        std::mem::forget(pinned);
        answer
    }

    pub(crate) fn step_aside(guard: &mut Guard) -> bool {
        unpinned(guard, || true)
    }

    /// True if anything was deferred that the calling thread has not acquired.
    fn has_news() -> bool {
        BOOK.with_borrow(|book| book.acquired.get(&current().id()).copied().unwrap_or_default() < book.defer_count)
    }

    impl Guard {
        pub(crate) fn defer<R>(&self, run: impl FnOnce() -> R + Send + 'static) {
            // SAFETY: `'static`.
            unsafe { self.defer_unchecked(run) };
        }

        /// # Safety
        /// As crossbeam's: whatever `run` uses must last, and it may run on any thread.
        pub(crate) unsafe fn defer_unchecked<R>(&self, run: impl FnOnce() -> R) {
            let run: Box<dyn FnOnce() + '_> = Box::new(|| drop(run()));
            // SAFETY: the caller promises that it lasts.
            let run = unsafe { std::mem::transmute::<Box<dyn FnOnce() + '_>, Box<dyn FnOnce() + 'static>>(run) };
            if let Some(edges) = edges_between_threads() {
                edges.deferred.fetch_add(1, Ordering::Release);
            }
            BOOK.with_borrow_mut(|book| {
                book.defer_count += 1;
                let waits_for = book.pinned.clone();
                let comes_after = waits_for.iter().chain(book.last_gone.values()).copied().collect();
                book.deferred.push_back(Deferred { waits_for, comes_after, run });
            });
        }

        pub(crate) fn flush(&self) {}
    }

    impl Drop for Guard {
        fn drop(&mut self) {
            if in_model() {
                unpin(self.id);
            }
        }
    }

    fn unpin(id: u64) {
        if let Some(edges) = edges_between_threads() {
            edges.of(id).fetch_add(1, Ordering::Release);
        }
        BOOK.with_borrow_mut(|book| {
            book.pinned.remove(&id);
            book.last_gone.insert(current().id(), id);
            for deferred in &mut book.deferred {
                deferred.waits_for.remove(&id);
            }
        });
        while edges().is_some()
            && let Some(deferred) = next_ripe()
        {
            run(deferred);
        }
    }

    fn next_ripe() -> Option<Deferred> {
        BOOK.with_borrow_mut(|book| {
            let at = book.deferred.iter().position(|deferred| deferred.waits_for.is_empty())?;
            book.deferred.remove(at)
        })
    }

    fn run(deferred: Deferred) {
        if let Some(edges) = edges_between_threads() {
            for guard in deferred.comes_after {
                edges.of(guard).fetch_add(0, Ordering::Acquire);
            }
        }
        crate::support::with_quarantine(deferred.run);
    }
}
