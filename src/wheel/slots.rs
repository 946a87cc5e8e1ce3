//! The hierarchical wheel itself, for small entries that are copied about: the shards' hints, and
//! the tickets of [`Wheel`](super::Wheel). It owns nothing but entries and the ticks they are due.
//!
//! An entry is in exactly one of four places:
//!
//! - in the **slot** that its tick says ([`level`](super::level)), all ahead of the hand;
//! - **late**: it was due when it was inserted. A heap, so that these too come out by tick;
//! - **open**: the slot that the hand has entered and that is being taken apart. What is due comes
//!   out, the rest cascades to lower levels. It may take several calls, and the hand stays where it
//!   is meanwhile: no later tick can come out before an earlier one that is still in here;
//! - **swept**: the slot that `review_some` is in the middle of. It is put back before the hand
//!   may enter that slot.
//!
//! The hand enters a slot at the slot's earliest tick, not at its start, when time has come that
//! far. So a lone far entry cascades once instead of once per level.
//!
//! It does not look at a clock, and it removes no single entry: an entry that is not wanted any more
//! is dropped by whoever looks at it next.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use super::chunks::{Arena, Chain};
use super::level::{LEVEL_COUNT, SLOT_COUNT, level_for, slot_for, slot_last, slot_start};

/// What the wheel holds.
pub(crate) trait Entry: Copy {
    /// The tick this entry is due, decoded near `hand`: an entry may keep fewer bits of it.
    fn tick(self, hand: u64) -> u64;
}

/// Why an entry is shown during an advance.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Visit {
    /// It is due at this tick, and has left the wheel.
    Due(u64),
    /// It moves to another slot, if the visitor says that it is still wanted.
    Passing,
}

/// An entry that was due when it came; the earliest is the greatest, for the heap.
#[derive(Clone, Copy, Debug)]
struct Late<E> {
    tick: u64,
    entry: E,
}

impl<E> Ord for Late<E> {
    fn cmp(&self, other: &Self) -> Ordering {
        other.tick.cmp(&self.tick)
    }
}

impl<E> PartialOrd for Late<E> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<E> PartialEq for Late<E> {
    fn eq(&self, other: &Self) -> bool {
        self.tick == other.tick
    }
}

impl<E> Eq for Late<E> {}

/// A slot's chain on its way to somewhere else: whole chunks, and one that is open.
#[derive(Debug)]
struct Taken<E> {
    chain: Chain,
    loose: Vec<E>,
    /// The slot it was taken from, as `Slots::position` counts.
    position: usize,
    /// First and last tick of that slot.
    first: u64,
    last: u64,
}

impl<E: Entry> Taken<E> {
    fn nothing() -> Self {
        Self { chain: Chain::EMPTY, loose: Vec::new(), position: 0, first: 0, last: 0 }
    }

    fn len(&self) -> usize {
        self.loose.len() + self.chain.len()
    }

    fn is_empty(&self) -> bool {
        self.loose.is_empty() && self.chain.is_empty()
    }

    fn covers(&self, tick: u64) -> bool {
        !self.is_empty() && self.first <= tick && tick <= self.last
    }

    fn pop(&mut self, arena: &mut Arena<E>) -> Option<E> {
        if self.loose.is_empty() {
            arena.take_chunk(&mut self.chain, &mut self.loose);
        }
        self.loose.pop()
    }

    fn iter<'a>(&'a self, arena: &'a Arena<E>) -> impl Iterator<Item = E> + 'a {
        self.loose.iter().copied().chain(arena.iter(self.chain))
    }

    /// The earliest tick: looks at the one open chunk only.
    fn min(&self, hand: u64) -> Option<u64> {
        let loose = self.loose.iter().map(|entry| entry.tick(hand));
        let chain = (!self.chain.is_empty()).then_some(self.chain.min());
        loose.chain(chain).min()
    }
}

/// A hierarchical timing wheel of entries. See the module's head.
#[derive(Debug)]
pub(crate) struct Slots<E> {
    /// The last tick already processed.
    hand: u64,
    /// Entries in all four places.
    len: usize,
    /// One bit per slot of a level: the slot holds an entry.
    occupied: [u64; LEVEL_COUNT],
    /// One bit per slot: the entry that made the slot's minimum may be unwanted. See `doubt`.
    doubtful: [u64; LEVEL_COUNT],
    /// The slots, in the order of `position`.
    chains: Box<[Chain]>,
    arena: Arena<E>,
    late: BinaryHeap<Late<E>>,
    open: Taken<E>,
    swept: Taken<E>,
    /// The sweep has seen the slots from here up. Entries cascade down, so going down misses none.
    sweep_position: usize,
}

impl<E: Entry> Slots<E> {
    /// An empty wheel; `hand` is the last tick that counts as processed.
    pub(crate) fn new(hand: u64) -> Self {
        Self {
            hand,
            len: 0,
            occupied: [0; LEVEL_COUNT],
            doubtful: [0; LEVEL_COUNT],
            chains: vec![Chain::EMPTY; LEVEL_COUNT * SLOT_COUNT].into_boxed_slice(),
            arena: Arena::new(),
            late: BinaryHeap::new(),
            open: Taken::nothing(),
            swept: Taken::nothing(),
            sweep_position: LEVEL_COUNT * SLOT_COUNT,
        }
    }

    /// The last tick already processed.
    pub(crate) fn hand(&self) -> u64 {
        self.hand
    }

    /// Entries held, overdue ones included.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Takes an entry in: O(1), or O(log late) for one that is due at or before the hand. Such an
    /// overdue entry comes out at the next advance, wherever that goes.
    pub(crate) fn insert(&mut self, entry: E) {
        self.len += 1;
        self.put(entry);
    }

    /// The earliest tick of all entries held, exactly; an overdue entry's is at most the hand.
    ///
    /// O(1): at most the two chunks that are open are looked at.
    pub(crate) fn next_tick(&self) -> Option<u64> {
        let slot = self.first_slot().map(|position| self.chains[position].min());
        let late = self.late.peek().map(|late| late.tick);
        [slot, late, self.open.min(self.hand), self.swept.min(self.hand)].into_iter().flatten().min()
    }

    /// Puts an entry that is counted already where its tick says.
    fn put(&mut self, entry: E) {
        let tick = entry.tick(self.hand);
        if tick <= self.hand {
            self.late.push(Late { tick, entry });
        } else {
            self.file(tick, entry);
        }
    }

    fn file(&mut self, tick: u64, entry: E) {
        let (level, slot) = self.place(tick);
        let chain = &mut self.chains[Self::position(level, slot)];
        self.occupied[level] |= 1 << slot;
        if tick <= chain.min() {
            self.doubtful[level] &= !(1 << slot);
        }
        self.arena.push(chain, tick, entry);
    }

    /// Level and slot of a tick that lies ahead.
    fn place(&self, tick: u64) -> (usize, usize) {
        let level = level_for(self.hand, tick);
        (level, slot_for(tick, level))
    }

    /// All slots in one row. The order is that of time: see [`level`](super::level).
    fn position(level: usize, slot: usize) -> usize {
        level * SLOT_COUNT + slot
    }

    /// The occupied slot that comes first.
    fn first_slot(&self) -> Option<usize> {
        let level = self.occupied.iter().position(|&slots| slots != 0)?;
        Some(Self::position(level, self.occupied[level].trailing_zeros() as usize))
    }

    /// The last occupied slot before `position`.
    fn last_slot_below(&self, position: usize) -> Option<usize> {
        let (top, slot) = (position / SLOT_COUNT, position % SLOT_COUNT);
        let below = self.occupied.get(top).map_or(0, |slots| slots & ((1 << slot) - 1));
        let lower = (0..top).map(|level| (level, self.occupied[level]));
        let (level, slots) = lower.chain([(top, below)]).rev().find(|&(_, slots)| slots != 0)?;
        Some(Self::position(level, slots.ilog2() as usize))
    }

    /// Empties a slot.
    fn detach(&mut self, position: usize) -> Chain {
        let (level, slot) = (position / SLOT_COUNT, position % SLOT_COUNT);
        self.occupied[level] &= !(1 << slot);
        self.doubtful[level] &= !(1 << slot);
        std::mem::replace(&mut self.chains[position], Chain::EMPTY)
    }

    /// First and last tick of a slot.
    fn range(&self, position: usize) -> (u64, u64) {
        let (level, slot) = (position / SLOT_COUNT, position % SLOT_COUNT);
        let first = slot_start(self.hand, level, slot);
        (first, slot_last(first, level))
    }
}

/// Moving time on.
impl<E: Entry> Slots<E> {
    /// Moves the hand towards `to` and hands out what is due, by tick; true when it got there and
    /// nothing is overdue any more.
    ///
    /// At most `limit` entries (at least one) are touched, expired and cascaded ones together;
    /// empty time costs nothing. Time never goes back: with `to` behind the hand only overdue
    /// entries come out. If `expire` panics, the entry it was given is out and all others are held.
    pub(crate) fn advance_bounded(&mut self, to: u64, limit: usize, mut expire: impl FnMut(u64, E)) -> bool {
        self.advance_visiting(to, limit, |visit, entry| {
            if let Visit::Due(tick) = visit {
                expire(tick, entry);
            }
            true
        })
    }

    /// Like `advance_bounded`; shows the entries that cascade too, and drops those for which
    /// `visit` answers false.
    pub(crate) fn advance_visiting(&mut self, to: u64, limit: usize, mut visit: impl FnMut(Visit, E) -> bool) -> bool {
        let mut left = limit.max(1);
        loop {
            // Late before open: late ticks are at most the hand, open ones at least.
            let done = self.expire_late(&mut left, &mut visit)
                && self.empty_open(&mut left, &mut visit)
                && self.unsweep(to, &mut left, &mut visit);
            if !done {
                return false;
            }
            if !self.enter_next(to) {
                self.trim();
                return true;
            }
        }
    }

    /// Hands out overdue entries; true when none is left.
    fn expire_late(&mut self, left: &mut usize, visit: &mut impl FnMut(Visit, E) -> bool) -> bool {
        while *left > 0 {
            let Some(Late { tick, entry }) = self.late.pop() else { break };
            *left -= 1;
            self.len -= 1;
            visit(Visit::Due(tick), entry);
        }
        self.late.is_empty()
    }

    /// Takes the open slot apart: hands out what is due, cascades the rest; true when it is empty.
    fn empty_open(&mut self, left: &mut usize, visit: &mut impl FnMut(Visit, E) -> bool) -> bool {
        while *left > 0 {
            let Some(entry) = self.open.pop(&mut self.arena) else { break };
            *left -= 1;
            // Not counted while the visitor has it: it may panic.
            self.len -= 1;
            let tick = entry.tick(self.hand);
            if tick <= self.hand {
                visit(Visit::Due(tick), entry);
            } else if visit(Visit::Passing, entry) {
                self.len += 1;
                self.file(tick, entry);
            }
        }
        self.open.is_empty()
    }

    /// Puts a slot that is half swept back if the hand is to enter it; true if it does not lie in
    /// the way any more.
    fn unsweep(&mut self, to: u64, left: &mut usize, visit: &mut impl FnMut(Visit, E) -> bool) -> bool {
        if self.swept.is_empty() || to < self.swept.first {
            return true;
        }
        // The sweep comes by here once more, for what is put back unseen.
        self.sweep_position = self.swept.position + 1;
        while *left > 0 {
            let Some(entry) = self.swept.pop(&mut self.arena) else { break };
            *left -= 1;
            self.len -= 1;
            if visit(Visit::Passing, entry) {
                self.insert(entry);
            }
        }
        self.swept.is_empty()
    }

    /// Moves the hand into the next occupied slot, or to `to` if that comes first; false then.
    fn enter_next(&mut self, to: u64) -> bool {
        let next = self.first_slot().map(|position| (position, self.range(position)));
        let Some((position, (first, last))) = next.filter(|&(_, (first, _))| first <= to) else {
            self.hand = self.hand.max(to);
            return false;
        };
        let chain = self.detach(position);
        // No entry of any slot is due before the earliest of this one, so the hand may go there.
        self.hand = chain.min().min(to);
        let loose = std::mem::take(&mut self.open.loose);
        self.open = Taken { chain, loose, position, first, last };
        true
    }

    /// Gives memory back when nothing is held.
    fn trim(&mut self) {
        if self.len == 0 {
            self.arena.trim();
            self.late.shrink_to(1024);
        }
    }
}

/// Looking into the slots.
impl<E: Entry> Slots<E> {
    /// Whether a live entry is due at exactly `tick`; `None` if more than `most` entries would
    /// have to be looked at. Only the slot that holds `tick` is.
    pub(crate) fn probe(&self, tick: u64, most: usize, mut live: impl FnMut(E) -> bool) -> Option<bool> {
        let overdue = tick <= self.hand;
        let late = if overdue { self.late.len() } else { 0 };
        let slot = if overdue { Chain::EMPTY } else { self.chains[self.position_of(tick)] };
        let taken = [&self.open, &self.swept].into_iter().filter(|taken| taken.covers(tick));
        let held = late + slot.len() + taken.clone().map(Taken::len).sum::<usize>();
        if held > most {
            return None;
        }
        let late = self.late.iter().take(late).map(|late| late.entry);
        let taken = taken.flat_map(|taken| taken.iter(&self.arena));
        let mut all = late.chain(self.arena.iter(slot)).chain(taken);
        Some(all.any(|entry| entry.tick(self.hand) == tick && live(entry)))
    }

    /// Takes the slot that holds `tick` apart: each entry goes through `keep`, and what comes back,
    /// perhaps with another tick, is inserted again. O(entries of the slot).
    ///
    /// `keep` must not panic: the rest of the slot would be lost.
    pub(crate) fn review(&mut self, tick: u64, mut keep: impl FnMut(E) -> Option<E>) {
        let mut all = usize::MAX;
        if self.open.covers(tick) {
            self.review_open(&mut all, &mut keep);
        }
        if self.swept.covers(tick) {
            self.review_swept(&mut all, &mut keep);
        }
        if tick <= self.hand {
            self.review_late(&mut keep);
        } else {
            self.review_slot(self.position_of(tick), &mut keep);
        }
        self.trim();
    }

    /// Sweeps on from where the last call stopped: `limit` entries (at least one) go through `keep`
    /// as in `review`; true when a round over all that is held was completed.
    ///
    /// What was held when a round began has been looked at when it ends. The overdue entries come
    /// last and in one piece.
    pub(crate) fn review_some(&mut self, limit: usize, mut keep: impl FnMut(E) -> Option<E>) -> bool {
        let mut left = limit.max(1);
        loop {
            // Open first: what cascades from there could land behind the sweep.
            let done = self.review_open(&mut left, &mut keep) && self.review_swept(&mut left, &mut keep);
            if !done {
                return false;
            }
            if !self.sweep_next() {
                self.review_late(&mut keep);
                self.sweep_position = LEVEL_COUNT * SLOT_COUNT;
                self.trim();
                return true;
            }
        }
    }

    /// An entry due at `tick` is not wanted any more: `first_live` shall not trust the minimum of
    /// its slot if it was the one. O(1).
    pub(crate) fn doubt(&mut self, tick: u64) {
        if tick <= self.hand {
            return;
        }
        let (level, slot) = self.place(tick);
        if self.chains[Self::position(level, slot)].min() == tick {
            self.doubtful[level] |= 1 << slot;
        }
    }

    /// The earliest tick of all live entries, if `doubt` was told of each that died and the visitor
    /// of an advance drops them. O(1) if the earliest slot's minimum was never doubted; else slots
    /// are looked through, in order, up to the first live entry's.
    pub(crate) fn first_live(&self, mut live: impl FnMut(E) -> bool) -> Option<u64> {
        if let Some(late) = self.late.peek().filter(|late| live(late.entry)) {
            return Some(late.tick);
        }
        let late = self.late.iter().filter(|late| live(late.entry)).map(|late| late.tick).min();
        if late.is_some() {
            return late;
        }
        let open = self.first_live_taken(&self.open, &mut live);
        let swept = self.first_live_taken(&self.swept, &mut live);
        let slot = self.first_live_slot(&mut live);
        [open, swept, slot].into_iter().flatten().min()
    }

    fn first_live_taken(&self, taken: &Taken<E>, live: &mut impl FnMut(E) -> bool) -> Option<u64> {
        let loose = taken.loose.iter().filter(|&&entry| live(entry));
        let loose = loose.map(|entry| entry.tick(self.hand)).min();
        self.first_live_chain(&taken.chain, loose, live)
    }

    fn first_live_slot(&self, live: &mut impl FnMut(E) -> bool) -> Option<u64> {
        for level in 0..LEVEL_COUNT {
            let mut slots = self.occupied[level];
            while slots != 0 {
                let slot = slots.trailing_zeros() as usize;
                let chain = &self.chains[Self::position(level, slot)];
                let doubtful = self.doubtful[level] & 1 << slot != 0;
                let found = if doubtful { self.first_live_chain(chain, None, live) } else { Some(chain.min()) };
                if found.is_some() {
                    return found;
                }
                slots &= slots - 1;
            }
        }
        None
    }

    /// The earliest of `best` and the live entries of a chain; stops where nothing earlier is left.
    fn first_live_chain(&self, chain: &Chain, mut best: Option<u64>, live: &mut impl FnMut(E) -> bool) -> Option<u64> {
        for (min, entries) in self.arena.chunks(*chain) {
            if best.is_some_and(|best| best <= min) {
                break;
            }
            for &entry in entries {
                let tick = entry.tick(self.hand);
                if best.is_none_or(|best| tick < best) && live(entry) {
                    best = Some(tick);
                }
            }
        }
        best
    }

    fn position_of(&self, tick: u64) -> usize {
        let (level, slot) = self.place(tick);
        Self::position(level, slot)
    }

    /// Takes the next slot for the sweep; false at the end of the round.
    fn sweep_next(&mut self) -> bool {
        let Some(position) = self.last_slot_below(self.sweep_position) else { return false };
        let (first, last) = self.range(position);
        let chain = self.detach(position);
        let loose = std::mem::take(&mut self.swept.loose);
        self.swept = Taken { chain, loose, position, first, last };
        self.sweep_position = position;
        true
    }

    fn review_open(&mut self, left: &mut usize, keep: &mut impl FnMut(E) -> Option<E>) -> bool {
        while *left > 0 {
            let Some(entry) = self.open.pop(&mut self.arena) else { break };
            *left -= 1;
            self.review_entry(entry, keep);
        }
        self.open.is_empty()
    }

    fn review_swept(&mut self, left: &mut usize, keep: &mut impl FnMut(E) -> Option<E>) -> bool {
        while *left > 0 {
            let Some(entry) = self.swept.pop(&mut self.arena) else { break };
            *left -= 1;
            self.review_entry(entry, keep);
        }
        self.swept.is_empty()
    }

    fn review_slot(&mut self, position: usize, keep: &mut impl FnMut(E) -> Option<E>) {
        let mut chain = self.detach(position);
        let mut loose = Vec::new();
        while !chain.is_empty() {
            self.arena.take_chunk(&mut chain, &mut loose);
            loose.drain(..).for_each(|entry| self.review_entry(entry, keep));
        }
    }

    fn review_late(&mut self, keep: &mut impl FnMut(E) -> Option<E>) {
        for late in std::mem::take(&mut self.late).into_vec() {
            self.review_entry(late.entry, keep);
        }
    }

    fn review_entry(&mut self, entry: E, keep: &mut impl FnMut(E) -> Option<E>) {
        self.len -= 1;
        if let Some(kept) = keep(entry) {
            self.insert(kept);
        }
    }
}

/// The check of all that the above relies on.
impl<E: Entry> Slots<E> {
    /// Panics unless every entry is where its tick says, the bitmaps are the occupied slots, the
    /// minima are exact, the length is right and no chunk is lost. O(entries held).
    pub(crate) fn check_invariants(&self) {
        let slots: usize = (0..self.chains.len()).map(|position| self.check_slot(position)).sum();
        let taken = self.check_taken(&self.open) + self.check_taken(&self.swept);
        self.arena.check_accounts(slots + taken);
        assert!(self.late.iter().all(|late| late.tick <= self.hand), "a late entry is not due");
        assert!(self.open.iter(&self.arena).all(|entry| entry.tick(self.hand) >= self.hand));
        assert!(self.swept.iter(&self.arena).all(|entry| entry.tick(self.hand) > self.hand));
        assert_eq!(self.len, self.entries().count(), "the length is wrong");
        let next = self.entries().map(|entry| entry.tick(self.hand)).min();
        assert_eq!(self.next_tick(), next, "the next tick is wrong");
    }

    /// What `pick` makes of everything held, in no order.
    pub(crate) fn collect<R>(&self, pick: impl FnMut(E) -> Option<R>) -> Vec<R> {
        self.entries().filter_map(pick).collect()
    }

    /// Everything held, in no order.
    fn entries(&self) -> impl Iterator<Item = E> + '_ {
        let slots = self.chains.iter().flat_map(|&chain| self.arena.iter(chain));
        let taken = self.open.iter(&self.arena).chain(self.swept.iter(&self.arena));
        slots.chain(taken).chain(self.late.iter().map(|late| late.entry))
    }

    fn check_slot(&self, position: usize) -> usize {
        let (level, slot) = (position / SLOT_COUNT, position % SLOT_COUNT);
        let chain = &self.chains[position];
        let bit = |map: &[u64; LEVEL_COUNT]| map[level] & 1 << slot != 0;
        assert_eq!(bit(&self.occupied), !chain.is_empty(), "level {level} slot {slot}: occupancy");
        assert!(bit(&self.occupied) || !bit(&self.doubtful), "level {level} slot {slot}: doubt");
        for entry in self.arena.iter(*chain) {
            let tick = entry.tick(self.hand);
            assert!(tick > self.hand, "tick {tick} is behind the hand {}", self.hand);
            assert_eq!(self.place(tick), (level, slot), "tick {tick}, hand {}", self.hand);
        }
        self.arena.check_chain(chain, |entry| entry.tick(self.hand))
    }

    fn check_taken(&self, taken: &Taken<E>) -> usize {
        for entry in taken.iter(&self.arena) {
            let tick = entry.tick(self.hand);
            assert!(taken.covers(tick), "tick {tick} was taken from another slot");
        }
        self.arena.check_chain(&taken.chain, |entry| entry.tick(self.hand))
    }
}
