//! A timing wheel for your own event loop: plain data with a single owner.
//!
//! [`Wheel`] keeps values until their deadlines. Time is an argument: ticks are `u64` in whatever
//! unit the caller counts, and they pass when the caller says so. Inserting and removing are O(1)
//! however many values wait and however far ahead they are due, and empty time costs nothing to
//! cross.
//!
//! What it does not do: it knows no clock, starts no thread, holds no lock and shares nothing; a
//! loop asks [`Wheel::next_expiry`] how long it may sleep and calls [`Wheel::advance`] when it
//! wakes. Values of equal deadlines come out in no particular order.
//!
//! ```
//! use shardwheel::wheel::Wheel;
//!
//! let mut wheel = Wheel::new();
//! wheel.insert(30, "flush");
//! let retry = wheel.insert(20, "retry");
//! wheel.insert(10, "ping");
//! assert_eq!(wheel.next_expiry(), Some(10));
//!
//! assert_eq!(wheel.remove(retry), Some("retry"));
//! let mut expired = Vec::new();
//! wheel.advance(40, |value| expired.push(value));
//! assert_eq!(expired, ["ping", "flush"]);
//! ```
//!
//! # How it works
//!
//! Eleven levels of 64 slots, each level 64 times as coarse as the one below, cover all of `u64`.
//! A value waits in the slot that follows from its deadline and the present time; when time enters
//! a slot, its values cascade to finer levels. After Varghese and Lauck, "Hashed and Hierarchical
//! Timing Wheels", IEEE/ACM ToN 5(6), 1997.
//!
//! A far slot of about a thousand values or more is taken apart ahead of time, so that what is due
//! need not wait until the whole slot has cascaded. This begins a sixteenth of the slot's width
//! before its first tick, and each advance does a part. (One slot at a time, the nearest first, and
//! not while removed values are swept out. If advances are rare, one of them does much of it.)
//!
//! The slots hold 16-byte tickets in chunks, not the values: cascading streams through memory and
//! moves no value. A value that is removed or moved leaves its ticket behind; tickets that do not
//! count any more are swept out, a few at a time, as soon as they outnumber the others.

#![forbid(unsafe_code)]

mod ahead;
mod chunks;
mod level;
mod places;
mod rows;
pub(crate) mod slots;
mod taken;

#[cfg(test)]
mod tests;

use std::fmt;

use places::Places;
use slots::{Entry, Slots, Visit};

/// So few tickets that do not count are not worth a sweep.
const SPARE_TICKETS: usize = 64;
/// Tickets that each call looks at while a sweep is due. A round over all `n` tickets takes no more
/// than about `n / 64` removals or moves, so these stay O(1).
const SWEEP_TICKETS: usize = 64;
/// Each advance takes at least this many tickets out of a slot that is taken apart ahead of time,
/// if its limit allows.
const PREPARED_TICKETS: usize = 64;

/// Identifies a value of a [`Wheel`]; never valid again once that value has left.
///
/// A key is for the wheel that made it: another wheel cannot tell that the key is not its own.
///
/// ```
/// use shardwheel::wheel::Wheel;
///
/// let mut wheel = Wheel::new();
/// let old = wheel.insert(5, 'a');
/// wheel.remove(old);
/// let new = wheel.insert(5, 'b');
/// assert_ne!(old, new);
/// assert_eq!(wheel.remove(old), None);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Key {
    index: u32,
    generation: u32,
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Key({}.{})", self.index, self.generation)
    }
}

/// What the slots hold for a value. It stays behind when the value is removed or moved.
#[derive(Clone, Copy, Debug)]
struct Ticket {
    deadline: u64,
    /// The value's place.
    index: u32,
    /// Among the tickets of that place.
    number: u32,
}

impl Entry for Ticket {
    const MAY_BE_UNWANTED: bool = true;

    fn tick(self, _hand: u64) -> u64 {
        self.deadline
    }
}

/// Values that wait for their deadlines, in ticks. See the [module](self).
///
/// ```
/// use shardwheel::wheel::Wheel;
///
/// let mut wheel: Wheel<&str> = Wheel::new();
/// wheel.insert(1_000, "later");
/// wheel.advance(999, |_| unreachable!("never early"));
/// assert_eq!(wheel.len(), 1);
/// ```
pub struct Wheel<T> {
    slots: Slots<Ticket>,
    places: Places<T>,
    /// A sweep is under way.
    sweeping: bool,
}

impl<T> Wheel<T> {
    /// An empty wheel at tick 0.
    ///
    /// It takes about 17 KiB; twice that while a slot of many values is taken apart ahead of time. The first value adds
    /// 64 KiB, of which the system backs what is used.
    ///
    /// ```
    /// # use shardwheel::wheel::Wheel;
    /// let wheel: Wheel<String> = Wheel::new();
    /// assert_eq!(wheel.now(), 0);
    /// ```
    pub fn new() -> Self {
        Self::starting_at(0)
    }

    /// An empty wheel at `tick`, which counts as passed already.
    ///
    /// ```
    /// # use shardwheel::wheel::Wheel;
    /// let mut wheel = Wheel::starting_at(1 << 40);
    /// wheel.insert((1 << 40) + 1, "next");
    /// assert_eq!(wheel.next_expiry(), Some((1 << 40) + 1));
    /// ```
    pub fn starting_at(tick: u64) -> Self {
        Self { slots: Slots::new(tick), places: Places::new(), sweeping: false }
    }

    /// Keeps `value` until the tick `deadline`; the returned key takes it out before that.
    ///
    /// A deadline at or before [`now`](Self::now) expires at the next advance, wherever that goes.
    /// O(1) amortised; for such a deadline O(log n), where n is the number of overdue values.
    ///
    /// # Panics
    ///
    /// When 2^32 values are held already.
    ///
    /// ```
    /// # use shardwheel::wheel::Wheel;
    /// let mut wheel = Wheel::new();
    /// wheel.advance(100, |_: &str| ());
    /// wheel.insert(99, "overdue");
    /// let mut expired = None;
    /// wheel.advance(100, |value| expired = Some(value));
    /// assert_eq!(expired, Some("overdue"));
    /// ```
    pub fn insert(&mut self, deadline: u64, value: T) -> Key {
        let (key, ticket) = self.places.insert(deadline, value);
        self.slots.insert(ticket);
        key
    }

    /// Gives the value of `key` another deadline, under the same key; false if it has left already. As
    /// with [`insert`](Self::insert), a deadline at or before [`now`](Self::now) expires at the next
    /// advance. O(1) amortised; for such a deadline O(log n).
    ///
    /// ```
    /// # use shardwheel::wheel::Wheel;
    /// let mut wheel = Wheel::new();
    /// let key = wheel.insert(30, "silent for 30 ticks");
    /// wheel.advance(20, |_| unreachable!("never early"));
    /// assert!(wheel.reschedule(key, 50), "a sign of life");
    /// assert_eq!((wheel.deadline(key), wheel.next_expiry()), (Some(50), Some(50)));
    /// let mut expired = None;
    /// wheel.advance(50, |value| expired = Some(value));
    /// assert_eq!(expired, Some("silent for 30 ticks"));
    /// assert!(!wheel.reschedule(key, 80));
    /// ```
    pub fn reschedule(&mut self, key: Key, deadline: u64) -> bool {
        if self.deadline(key) == Some(deadline) {
            return true;
        }
        let Some((before, ticket)) = self.places.reschedule(key, deadline) else { return false };
        self.slots.doubt(before);
        self.slots.insert(ticket);
        self.sweep(SWEEP_TICKETS);
        true
    }

    /// Takes a value out before it expires; `None` if it has left already. O(1) amortised.
    ///
    /// ```
    /// # use shardwheel::wheel::Wheel;
    /// let mut wheel = Wheel::new();
    /// let key = wheel.insert(10, "value");
    /// assert_eq!(wheel.remove(key), Some("value"));
    /// assert_eq!(wheel.remove(key), None);
    /// ```
    pub fn remove(&mut self, key: Key) -> Option<T> {
        let (deadline, value) = self.places.remove(key)?;
        self.slots.doubt(deadline);
        self.sweep(SWEEP_TICKETS);
        Some(value)
    }

    /// The value of `key`, while it waits. O(1).
    ///
    /// ```
    /// # use shardwheel::wheel::Wheel;
    /// let mut wheel = Wheel::new();
    /// let key = wheel.insert(10, "value");
    /// assert_eq!(wheel.get(key), Some(&"value"));
    /// ```
    pub fn get(&self, key: Key) -> Option<&T> {
        self.places.get(key).map(|(_, value)| value)
    }

    /// The value of `key`, while it waits, for changing it. O(1).
    ///
    /// ```
    /// # use shardwheel::wheel::Wheel;
    /// let mut wheel = Wheel::new();
    /// let key = wheel.insert(10, 1);
    /// *wheel.get_mut(key).unwrap() += 1;
    /// assert_eq!(wheel.remove(key), Some(2));
    /// ```
    pub fn get_mut(&mut self, key: Key) -> Option<&mut T> {
        self.places.get_mut(key)
    }

    /// The tick at which the value of `key` is due, while it waits. O(1).
    ///
    /// ```
    /// # use shardwheel::wheel::Wheel;
    /// let mut wheel = Wheel::new();
    /// let key = wheel.insert(10, ());
    /// assert_eq!(wheel.deadline(key), Some(10));
    /// wheel.advance(10, |()| ());
    /// assert_eq!(wheel.deadline(key), None);
    /// ```
    pub fn deadline(&self, key: Key) -> Option<u64> {
        self.places.get(key).map(|(deadline, _)| deadline)
    }

    /// Moves time to the tick `to` and hands out every value that is due by then, earliest first.
    ///
    /// O(1) amortised per value, and nothing for empty time. Time never goes back: a `to` before
    /// [`now`](Self::now) only hands out what is overdue. If `expire` panics, the value it was given
    /// is gone; the other due ones stay and come out at the next advance.
    ///
    /// ```
    /// # use shardwheel::wheel::Wheel;
    /// let mut wheel = Wheel::new();
    /// wheel.insert(2, 'b');
    /// wheel.insert(1, 'a');
    /// wheel.insert(3, 'c');
    /// let mut expired = String::new();
    /// wheel.advance(2, |value| expired.push(value));
    /// assert_eq!(expired, "ab");
    /// assert_eq!(wheel.now(), 2);
    /// ```
    pub fn advance(&mut self, to: u64, expire: impl FnMut(T)) {
        let caught_up = self.advance_bounded(to, usize::MAX, expire);
        debug_assert!(caught_up, "nothing can hold up an advance without a limit");
    }

    /// Like [`advance`](Self::advance), in pieces: looks at no more than `limit` values (at least
    /// one), and says whether it caught up with `to`.
    ///
    /// Values that expire, values that cascade (ahead of time or not) and values already removed or
    /// moved all count. Beyond the limit a call may look at 64 values, and four more per value
    /// expired, to sweep out what those have left; overdue ones are swept in one go. While it has not
    /// caught up, [`now`](Self::now) is behind `to`, or values that are or were overdue are left to
    /// look at, though all of them may have been removed or moved; call again.
    ///
    /// ```
    /// # use shardwheel::wheel::Wheel;
    /// let mut wheel = Wheel::new();
    /// for i in 0..1_000 {
    ///     wheel.insert(10, i);
    /// }
    /// let (mut calls, mut expired) = (1, 0);
    /// while !wheel.advance_bounded(20, 300, |_| expired += 1) {
    ///     calls += 1; // serve somebody else in between
    /// }
    /// assert_eq!((calls, expired), (4, 1_000));
    /// ```
    #[must_use = "if it has not caught up, values that are due may be left"]
    pub fn advance_bounded(&mut self, to: u64, limit: usize, mut expire: impl FnMut(T)) -> bool {
        let Self { slots, places, .. } = self;
        let (before, held) = (slots.hand(), places.len());
        let mut left = limit.max(1);
        let caught_up = slots.advance_visiting(to, &mut left, |visit, ticket| match visit {
            Visit::Passing => places.is_wanted(ticket),
            Visit::Soon => {
                places.prefetch(ticket);
                true
            }
            Visit::Due(_) => {
                // The place is free before the closure runs: it may panic.
                if let Some(value) = places.redeem(ticket) {
                    expire(value);
                }
                false
            }
        });
        if caught_up && left > 0 && slots.has_work_ahead() {
            self.prepare(before, left);
        }
        // Four tickets pay for each value that left: the sweep keeps pace.
        let expired = held - self.places.len();
        self.sweep(expired.saturating_mul(4).saturating_add(SWEEP_TICKETS));
        caught_up
    }

    /// The tick of the earliest deadline, exactly; `None` if nothing waits. For overdue values it
    /// is a tick at or before [`now`](Self::now).
    ///
    /// O(1) unless the earliest value of the first slot has been removed or moved away. Then this
    /// call looks through that slot, and on through slots that every value has left, up to the first
    /// one that waits: O(n) at worst, and what has left is never much more than what waits. It also
    /// looks through what is left of a slot in which a bounded advance or a sweep has stopped; and
    /// through a slot that is taken apart ahead of time, if its earliest value has left.
    ///
    /// ```
    /// # use shardwheel::wheel::Wheel;
    /// let mut wheel = Wheel::new();
    /// let soon = wheel.insert(10, ());
    /// wheel.insert(1_000_000, ());
    /// assert_eq!(wheel.next_expiry(), Some(10));
    /// wheel.remove(soon);
    /// assert_eq!(wheel.next_expiry(), Some(1_000_000));
    /// ```
    pub fn next_expiry(&self) -> Option<u64> {
        self.slots.first_live(|ticket| self.places.is_wanted(ticket))
    }

    /// Values that wait, overdue ones included. O(1).
    ///
    /// ```
    /// # use shardwheel::wheel::Wheel;
    /// let mut wheel = Wheel::new();
    /// wheel.insert(10, ());
    /// assert_eq!(wheel.len(), 1);
    /// ```
    pub fn len(&self) -> usize {
        self.places.len()
    }

    /// Whether nothing waits. O(1).
    ///
    /// ```
    /// # use shardwheel::wheel::Wheel;
    /// assert!(Wheel::<u8>::new().is_empty());
    /// ```
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The tick that time has reached: the last one whose values were handed out. O(1).
    ///
    /// ```
    /// # use shardwheel::wheel::Wheel;
    /// let mut wheel: Wheel<()> = Wheel::new();
    /// wheel.advance(1 << 60, |()| ());
    /// assert_eq!(wheel.now(), 1 << 60);
    /// ```
    pub fn now(&self) -> u64 {
        self.slots.hand()
    }

    /// Drops every value that waits; time stays, and no old key becomes valid again. O(n), where n
    /// is the largest number of values ever held at once.
    ///
    /// ```
    /// # use shardwheel::wheel::Wheel;
    /// let mut wheel = Wheel::new();
    /// let key = wheel.insert(10, "value");
    /// wheel.clear();
    /// assert!(wheel.is_empty());
    /// assert_eq!(wheel.get(key), None);
    /// ```
    pub fn clear(&mut self) {
        // Values first: if dropping one panics, the others still have their tickets.
        for index in 0..self.places.place_count() {
            if let Some((deadline, value)) = self.places.remove_at(index) {
                self.slots.doubt(deadline);
                drop(value);
            }
        }
        self.slots = Slots::new(self.slots.hand());
        self.sweeping = false;
    }

    /// Panics if the wheel is inconsistent; for tests and fuzzing. O(n log n).
    ///
    /// Among other things it compares the answer of [`next_expiry`](Self::next_expiry) with a look
    /// at every value.
    ///
    /// ```
    /// # use shardwheel::wheel::Wheel;
    /// let mut wheel = Wheel::new();
    /// wheel.insert(10, ());
    /// wheel.check_invariants();
    /// ```
    pub fn check_invariants(&self) {
        self.slots.check_invariants();
        self.places.check_invariants();
        let earliest = self.places.iter().map(|(_, deadline)| deadline).min();
        assert_eq!(self.next_expiry(), earliest, "the next expiry is wrong");
        let mut waiting: Vec<_> = self.places.iter().map(|(key, deadline)| (key.index, deadline)).collect();
        let mut ticketed =
            self.slots.collect(|ticket| self.places.is_wanted(ticket).then_some((ticket.index, ticket.deadline)));
        waiting.sort_unstable();
        ticketed.sort_unstable();
        assert_eq!(waiting, ticketed, "each value has exactly one ticket");
    }

    /// Takes apart a part of the next large slot, if it is time: as large a part of what is left of it as the time
    /// since `before` is of the time that was left then.
    fn prepare(&mut self, before: u64, limit: usize) {
        let Self { slots, places, .. } = self;
        // First begins with the slot, so that it is known how much there is.
        slots.look_ahead();
        let part = slots.unprepared().map_or(0, |(count, until)| {
            let passed = u128::from(slots.hand() - before) * count as u128;
            passed.div_ceil(u128::from(until - before)) as usize
        });
        slots.prepare(limit.min(part.max(PREPARED_TICKETS)), |ticket| places.is_wanted(ticket));
    }

    /// If tickets that do not count outnumber the others, or did when the round under way began, looks at `tickets` of
    /// them all, and throws those out.
    fn sweep(&mut self, tickets: usize) {
        let stale = self.slots.len() - self.places.len();
        if self.sweeping || stale > self.places.len() + SPARE_TICKETS {
            let places = &self.places;
            let keep = |ticket: Ticket| places.is_wanted(ticket).then_some(ticket);
            self.sweeping = !self.slots.review_some(tickets, keep);
        }
    }
}

impl<T> Default for Wheel<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> fmt::Debug for Wheel<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Wheel").field("now", &self.now()).field("len", &self.len()).finish_non_exhaustive()
    }
}
