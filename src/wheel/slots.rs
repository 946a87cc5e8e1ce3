//! The hierarchical wheel itself, for small entries that are copied around: the shards' hints, and
//! the tickets of [`Wheel`](super::Wheel). It owns nothing but entries and the ticks they are due.
//!
//! An entry is in exactly one of five places:
//!
//! - in the **slot** that its tick says ([`level`](super::level)), all ahead of the hand;
//! - **late**: it was due when it was inserted, or read as farther ahead than [`Entry::REACH`]. A
//!   heap, so that these too come out by tick;
//! - **open**: the slot that the hand has entered and that is being taken apart. What is due comes
//!   out, the rest cascades to lower levels. This may take several calls, and the hand stays where
//!   it is meanwhile: no later tick can come out before an earlier one that is still in here;
//! - **swept**: the slot that `review_some` is in the middle of. It is put back before the hand
//!   may enter that slot;
//! - **ahead**: the next large slot, which is taken apart before the hand gets there: see
//!   [`ahead`](super::ahead).
//!
//! The hand enters any other slot at the slot's earliest tick, or at the tick that time is moved to
//! if that comes first; not at the slot's start. So a lone far entry cascades once instead of once
//! per level.
//!
//! The wheel looks at no clock, and it removes no single entry: an entry that is not wanted any more
//! is dropped when it is looked at next.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use super::ahead::Ahead;
use super::chunks::{Arena, Chain};
use super::level::level_for;
use super::rows::{self, POSITION_COUNT, Rows, level_of, position_of};
use super::taken::Taken;

/// A slot with at least this many entries is taken apart ahead of time: a smaller one takes some ten microseconds.
const LARGE: usize = if cfg!(test) { 8 } else { 1024 };
/// Only slots of this level or above are taken apart ahead of time: what is in a lower one is due within 64 ticks.
const LARGE_LEVEL: usize = 2;
/// A slot is begun with when its first tick is this part of the slot's width away (a sixteenth); later if nearer ones
/// are large, since only one slot is ahead at a time, the nearest. Not earlier: some of its entries may be removed
/// before, and a nearer slot may become large.
pub(crate) const LEAD_PART: u64 = 16;
/// Room that is kept for overdue entries when there are none.
const LATE_KEPT: usize = 1024;
/// The sweep begins above all slots. Those of the rows ahead count as further slots on top.
const SWEEP_START: usize = 2 * POSITION_COUNT;

/// What the wheel holds.
pub(crate) trait Entry: Copy {
    /// True if entries may become unwanted and `first_live` is used: then visitors are asked which entries are wanted,
    /// and are shown beforehand what is coming.
    const MAY_BE_UNWANTED: bool;
    /// No entry is due further ahead of the hand than this: one that reads so comes out at the next advance, to be
    /// looked at.
    const REACH: u64 = u64::MAX;

    /// The tick at which this entry is due, decoded near `hand`: an entry may keep only some of its bits.
    fn tick(self, hand: u64) -> u64;
}

/// Why an entry is shown during an advance.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Visit {
    /// It is due at this tick, and has left the wheel.
    Due(u64),
    /// It moves to another slot and sets that slot's minimum, if the visitor says that it is still wanted.
    Passing,
    /// It will be shown as one of these soon, like some dozens of others: what they need can be asked for side by side.
    /// It stays, whatever the answer.
    Soon,
}

/// An entry that was due when it came. The order is reversed, for the heap: the earliest is the greatest.
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

/// A hierarchical timing wheel of entries. See the module's head.
#[derive(Debug)]
pub(crate) struct Slots<E> {
    /// The last tick already processed.
    hand: u64,
    /// Entries in all five places.
    len: usize,
    rows: Rows,
    arena: Arena<E>,
    late: BinaryHeap<Late<E>>,
    open: Taken<E>,
    swept: Taken<E>,
    ahead: Option<Ahead<E>>,
    /// No slot is to be taken apart ahead before this tick.
    prepare_from: u64,
    /// The sweep has seen the slots from here up. Entries cascade down, so going down misses none.
    sweep_position: usize,
}

impl<E: Entry> Slots<E> {
    /// An empty wheel; `hand` is the last tick that counts as processed.
    pub(crate) fn new(hand: u64) -> Self {
        Self {
            hand,
            len: 0,
            rows: Rows::new(),
            arena: Arena::new(),
            late: BinaryHeap::new(),
            open: Taken::nothing(),
            swept: Taken::nothing(),
            ahead: None,
            prepare_from: u64::MAX,
            sweep_position: SWEEP_START,
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
    /// O(1): at most the three chunks that are open are looked at.
    pub(crate) fn next_tick(&self) -> Option<u64> {
        let slot = self.rows.first().map(|position| self.rows.chain(position).min());
        let late = self.late.peek().map(|late| late.tick);
        let ahead = self.ahead.as_ref().and_then(|ahead| ahead.next_tick(self.hand));
        [slot, late, self.open.min(self.hand), self.swept.min(self.hand), ahead].into_iter().flatten().min()
    }

    /// Puts an entry, which is counted already, where its tick says.
    fn put(&mut self, entry: E) {
        let tick = entry.tick(self.hand);
        if self.is_late(tick) {
            self.put_late(tick, entry);
        } else {
            self.file(tick, entry);
        }
    }

    fn is_late(&self, tick: u64) -> bool {
        if E::REACH == u64::MAX {
            return tick <= self.hand;
        }
        // One comparison for both: what is not ahead of the hand wraps around.
        tick.wrapping_sub(self.hand).wrapping_sub(1) >= E::REACH
    }

    /// Cold: few entries are late.
    #[cold]
    fn put_late(&mut self, tick: u64, entry: E) {
        self.late.push(Late { tick: tick.min(self.hand), entry });
    }

    // Always: otherwise it would depend on the build whether this is inlined, and with it what an expiry costs.
    #[inline(always)]
    fn file(&mut self, tick: u64, entry: E) {
        if let Some(ahead) = self.ahead.as_mut().filter(|ahead| ahead.covers(tick)) {
            return ahead.file(&mut self.arena, tick, entry);
        }
        let (position, len) = self.rows.file(&mut self.arena, self.hand, tick, entry);
        if len == LARGE && level_of(position) >= LARGE_LEVEL {
            // Perhaps this is the next large slot.
            self.prepare_from = 0;
        }
    }

    /// Files an entry that was held elsewhere; but drops it if it is unwanted and would set the minimum of its slot.
    /// (To ask about each entry would take a cache miss each time that it moves. Other unwanted ones are dropped
    /// later.)
    fn pass(&mut self, tick: u64, entry: E, wanted: &mut impl FnMut(E) -> bool) {
        let leads = || self.ahead_at(tick).map_or_else(|| self.rows.leads(self.hand, tick), |ahead| ahead.leads(tick));
        let is_asked = E::MAY_BE_UNWANTED && leads();
        // Not counted while the visitor has it: it may panic.
        self.len -= 1;
        if !is_asked || wanted(entry) {
            self.len += 1;
            self.file(tick, entry);
        }
    }

    /// The slot ahead, if `tick` belongs to it.
    fn ahead_at(&self, tick: u64) -> Option<&Ahead<E>> {
        self.ahead.as_ref().filter(|ahead| ahead.covers(tick))
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
        self.advance_visiting(to, &mut limit.max(1), |visit, entry| {
            if let Visit::Due(tick) = visit {
                expire(tick, entry);
            }
            true
        })
    }

    /// Like `advance_bounded`, and takes what it touches off `left`, which is not zero. Of the entries that cascade, it
    /// shows those whose tick becomes the earliest of their slot, and drops them if `visit` returns false. Entries that
    /// it shows as coming soon do not count.
    pub(crate) fn advance_visiting(
        &mut self,
        to: u64,
        left: &mut usize,
        mut visit: impl FnMut(Visit, E) -> bool,
    ) -> bool {
        loop {
            // Late before open: late ticks are at most the hand, open ones at least.
            let done = self.expire_late(left, &mut visit)
                && self.empty_open(left, &mut visit)
                && self.unsweep(to, left, &mut visit)
                && self.complete_ahead(to, left, &mut visit);
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
        let is_done = self.late.is_empty();
        if is_done && self.late.capacity() > LATE_KEPT {
            self.late.shrink_to(LATE_KEPT);
        }
        is_done
    }

    /// Takes the open slot apart: hands out what is due, cascades the rest; true when it is empty.
    fn empty_open(&mut self, left: &mut usize, visit: &mut impl FnMut(Visit, E) -> bool) -> bool {
        while *left > 0 {
            self.open_chunk(visit);
            let Some(entry) = self.open.pop(&mut self.arena) else { break };
            *left -= 1;
            let tick = entry.tick(self.hand);
            if tick <= self.hand {
                // Not counted while the visitor has it: it may panic.
                self.len -= 1;
                visit(Visit::Due(tick), entry);
            } else {
                self.pass(tick, entry, &mut |entry| visit(Visit::Passing, entry));
            }
        }
        self.open.is_empty()
    }

    /// Opens the open slot's next chunk if no chunk is open. Shows those of its entries that belong to the lowest
    /// level: they are due soon enough, as a rule, to be in the cache still.
    fn open_chunk(&mut self, visit: &mut impl FnMut(Visit, E) -> bool) {
        if !E::MAY_BE_UNWANTED {
            return;
        }
        for &entry in self.open.open_chunk(&mut self.arena) {
            if level_for(self.hand, entry.tick(self.hand)) == 0 {
                visit(Visit::Soon, entry);
            }
        }
    }

    /// Puts a slot that is half swept back if the hand is to enter it; true if that slot is not in the way any more.
    fn unsweep(&mut self, to: u64, left: &mut usize, visit: &mut impl FnMut(Visit, E) -> bool) -> bool {
        if self.swept.is_empty() || to < self.swept.first {
            return true;
        }
        // The sweep comes by here once more, for what is put back unseen.
        self.sweep_position = self.swept.position + 1;
        while *left > 0 {
            let Some(entry) = self.swept.pop(&mut self.arena) else { break };
            *left -= 1;
            self.pass(entry.tick(self.hand), entry, &mut |entry| visit(Visit::Passing, entry));
        }
        self.swept.is_empty()
    }

    /// True if the hand, on its way to `to`, comes to the slot ahead before any other slot.
    fn comes_to_ahead(&self, to: u64) -> bool {
        let is_first = |ahead: &Ahead<E>| self.rows.first().is_none_or(|position| ahead.position() < position);
        self.ahead.as_ref().is_some_and(|ahead| ahead.base() <= to && is_first(ahead))
    }

    /// Completes the slot ahead if the hand comes to it next; true if that slot is not in the way any more.
    fn complete_ahead(&mut self, to: u64, left: &mut usize, visit: &mut impl FnMut(Visit, E) -> bool) -> bool {
        !self.comes_to_ahead(to) || self.split(left, &mut |entry| visit(Visit::Passing, entry))
    }

    /// Moves the hand into the next occupied slot and returns true; or to `to` if that comes first, and returns false.
    fn enter_next(&mut self, to: u64) -> bool {
        if self.comes_to_ahead(to) {
            self.enter_ahead();
        }
        let next = self.rows.first().map(|position| (position, rows::range(self.hand, position)));
        let Some((position, range)) = next.filter(|&(_, (first, _))| first <= to) else {
            self.hand = self.hand.max(to);
            return false;
        };
        let chain = self.rows.detach(position);
        // No entry of any slot is due before the earliest of this one, so the hand may go there.
        self.hand = chain.min().min(to);
        self.open.become_next(Taken::new(chain, position, range));
        true
    }

    /// Puts the rows ahead in the place of the lower levels, which are empty by now. What is due at the first tick is
    /// then in the hand's own slot, which `enter_next` enters at once.
    fn enter_ahead(&mut self) {
        let Some(mut ahead) = self.ahead.take() else { return };
        debug_assert!(ahead.rest.is_empty(), "entries would be lost");
        self.rows.swap_below(level_of(ahead.position()), &mut ahead.rows);
        self.hand = ahead.base();
        // There may be large slots among them.
        self.prepare_from = 0;
    }

    /// Gives memory back when nothing is held.
    fn trim(&mut self) {
        if self.len == 0 {
            self.arena.trim();
            self.late.shrink_to(LATE_KEPT);
        }
    }
}

/// Taking large slots apart ahead of time.
impl<E: Entry> Slots<E> {
    /// The tick at which there is something to do ahead: to begin with a slot, or to enter the slot ahead, so that the
    /// next one can be begun with. `u64::MAX` if there is nothing. Later than the hand once `prepare` is done, unless a
    /// sweep is under way.
    pub(crate) fn prepare_from(&self) -> u64 {
        self.ahead.as_ref().map_or(self.prepare_from, Ahead::base)
    }

    /// True if `prepare` may have something to do.
    pub(crate) fn has_work_ahead(&self) -> bool {
        self.ahead.is_some() || self.hand >= self.prepare_from
    }

    /// How many entries of the slot ahead are not filed yet, and the tick by which they should be.
    pub(crate) fn unprepared(&self) -> Option<(usize, u64)> {
        let ahead = self.ahead.as_ref().filter(|ahead| !ahead.rest.is_empty())?;
        Some((ahead.rest.len(), ahead.base()))
    }

    /// Takes the next large slot apart, if it is time: `limit` entries of it (at least one), so that an advance does
    /// not have to do it all at once. Asks about some whether they are `wanted`, as an advance does. True if nothing is
    /// left to do for now.
    pub(crate) fn prepare(&mut self, limit: usize, mut wanted: impl FnMut(E) -> bool) -> bool {
        self.look_ahead();
        self.split(&mut limit.max(1), &mut wanted)
    }

    /// Begins with the next large slot, if it is time.
    pub(crate) fn look_ahead(&mut self) {
        if self.ahead.take_if(|ahead| ahead.is_empty()).is_some() {
            self.prepare_from = 0;
        }
        // A sweep under way would miss its entries.
        if self.hand < self.prepare_from() || self.sweep_position != SWEEP_START {
            return;
        }
        let Some(position) = self.rows.first_large(LARGE_LEVEL, LARGE) else {
            self.prepare_from = u64::MAX;
            return;
        };
        let range @ (first, last) = rows::range(self.hand, position);
        self.prepare_from = first.saturating_sub((last - first) / LEAD_PART);
        if self.hand >= self.prepare_from {
            let is_doubtful = self.rows.is_doubtful(position);
            self.ahead = Some(Ahead::new(self.rows.detach(position), is_doubtful, position, range));
            self.prepare_from = u64::MAX;
        }
    }

    /// Files what is left of the slot ahead; true when nothing is left.
    fn split(&mut self, left: &mut usize, wanted: &mut impl FnMut(E) -> bool) -> bool {
        while *left > 0 {
            let Some(entry) = self.pop_rest() else { break };
            *left -= 1;
            self.pass(entry.tick(self.hand), entry, wanted);
        }
        self.unprepared().is_none()
    }

    fn pop_rest(&mut self) -> Option<E> {
        self.ahead.as_mut()?.rest.pop(&mut self.arena)
    }
}

/// Looking into the slots.
impl<E: Entry> Slots<E> {
    /// Whether there is a live entry among the first `tries` (or a sixteenth of the slot, if that is more) that are due
    /// at exactly `tick`; `None` if the slot that holds `tick` has more than `most` entries. Looks only at that slot.
    pub(crate) fn probe(&self, tick: u64, most: usize, tries: usize, mut live: impl FnMut(E) -> bool) -> Option<bool> {
        let overdue = tick <= self.hand;
        let late = if overdue { self.late.len() } else { 0 };
        let ahead = self.ahead_at(tick);
        let slot = match ahead {
            _ if overdue => Chain::EMPTY,
            Some(ahead) => ahead.chain_of(tick),
            None => self.rows.chain(position_of(self.hand, tick)),
        };
        let taken = [&self.open, &self.swept].into_iter().chain(ahead.map(|ahead| &ahead.rest));
        let taken = taken.filter(|taken| taken.covers(tick));
        let held = late + slot.len() + taken.clone().map(Taken::len).sum::<usize>();
        if held > most {
            return None;
        }
        let late = self.late.iter().take(late).map(|late| (late.tick, late.entry));
        let taken = taken.flat_map(|taken| taken.iter(&self.arena));
        let others = self.arena.iter(slot).chain(taken).map(|entry| (entry.tick(self.hand), entry));
        let due = late.chain(others).filter(|&(due, _)| due == tick);
        Some(due.take(tries.max(held / 16)).any(|(_, entry)| live(entry)))
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
        } else if let Some(ahead) = self.ahead.as_mut().filter(|ahead| ahead.covers(tick)) {
            let chain = ahead.rows.detach(position_of(ahead.base(), tick));
            self.review_rest(&mut all, &mut keep);
            self.review_chain(chain, &mut keep);
        } else {
            let chain = self.rows.detach(position_of(self.hand, tick));
            self.review_chain(chain, &mut keep);
        }
        self.trim();
    }

    /// Sweeps on from where the last call stopped: `limit` entries (at least one) go through `keep`
    /// as in `review`; true when a round over all that is held was completed.
    ///
    /// All that was held when a round began has been looked at when it ends. The overdue entries
    /// come last and in one piece.
    pub(crate) fn review_some(&mut self, limit: usize, mut keep: impl FnMut(E) -> Option<E>) -> bool {
        let mut left = limit.max(1);
        loop {
            // Open first: what cascades from there could land behind the sweep.
            let done = self.review_open(&mut left, &mut keep)
                && self.review_rest(&mut left, &mut keep)
                && self.review_swept(&mut left, &mut keep);
            if !done {
                return false;
            }
            if !self.sweep_next() {
                self.review_late(&mut keep);
                self.sweep_position = SWEEP_START;
                self.trim();
                return true;
            }
        }
    }

    /// An entry due at `tick` is not wanted any more: if it set the minimum of its slot, `first_live` must not trust
    /// that. O(1).
    pub(crate) fn doubt(&mut self, tick: u64) {
        if let Some(ahead) = self.ahead.as_mut().filter(|ahead| ahead.covers(tick)) {
            ahead.doubt(tick);
        } else if tick > self.hand {
            self.rows.doubt(self.hand, tick);
        }
    }

    /// The earliest tick of all live entries, if `doubt` was called for each that died, and visitors drop those that
    /// they are asked about. O(1) if the earliest slot's minimum was never doubted; otherwise slots are looked through
    /// in order, up to that of the first live entry.
    pub(crate) fn first_live(&self, mut live: impl FnMut(E) -> bool) -> Option<u64> {
        if let Some(late) = self.late.peek().filter(|late| live(late.entry)) {
            return Some(late.tick);
        }
        let late = self.late.iter().filter(|late| live(late.entry)).map(|late| late.tick).min();
        if late.is_some() {
            return late;
        }
        let taken = [&self.open, &self.swept].map(|taken| taken.first_live(&self.arena, self.hand, &mut live));
        let slot = self.rows.first_live(&self.arena, self.hand, &mut live);
        let first = taken.into_iter().flatten().chain(slot).min();
        let ahead = self.ahead.as_ref().filter(|ahead| first.is_none_or(|first| ahead.base() <= first));
        first.into_iter().chain(ahead.and_then(|ahead| ahead.first_live(&self.arena, self.hand, &mut live))).min()
    }

    /// Takes the next slot for the sweep; false at the end of the round.
    fn sweep_next(&mut self) -> bool {
        // First the slots of the rows ahead.
        let above = self.sweep_position.saturating_sub(POSITION_COUNT);
        if let Some(ahead) = &mut self.ahead
            && let Some(position) = ahead.rows.last_below(above)
        {
            let (base, chain) = (ahead.base(), ahead.rows.detach(position));
            self.sweep_position = POSITION_COUNT + position;
            self.swept.become_next(Taken::new(chain, self.sweep_position, rows::range(base, position)));
        } else {
            let Some(position) = self.rows.last_below(self.sweep_position.min(POSITION_COUNT)) else { return false };
            let chain = self.rows.detach(position);
            self.sweep_position = position;
            self.swept.become_next(Taken::new(chain, position, rows::range(self.hand, position)));
        }
        true
    }

    /// Reviews what `pop` hands out, up to `left`.
    fn review_each(
        &mut self,
        left: &mut usize,
        keep: &mut impl FnMut(E) -> Option<E>,
        pop: impl Fn(&mut Self) -> Option<E>,
    ) {
        while *left > 0 {
            let Some(entry) = pop(self) else { break };
            *left -= 1;
            self.review_entry(entry, keep);
        }
    }

    fn review_open(&mut self, left: &mut usize, keep: &mut impl FnMut(E) -> Option<E>) -> bool {
        self.review_each(left, keep, |slots| slots.open.pop(&mut slots.arena));
        self.open.is_empty()
    }

    fn review_swept(&mut self, left: &mut usize, keep: &mut impl FnMut(E) -> Option<E>) -> bool {
        self.review_each(left, keep, |slots| slots.swept.pop(&mut slots.arena));
        self.swept.is_empty()
    }

    fn review_rest(&mut self, left: &mut usize, keep: &mut impl FnMut(E) -> Option<E>) -> bool {
        self.review_each(left, keep, |slots| slots.pop_rest());
        self.unprepared().is_none()
    }

    fn review_chain(&mut self, mut chain: Chain, keep: &mut impl FnMut(E) -> Option<E>) {
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
        let slots = self.rows.check(&self.arena, self.hand, self.hand);
        let taken = self.open.check(&self.arena, self.hand) + self.swept.check(&self.arena, self.hand);
        let ahead = self.ahead.as_ref().map_or(0, |ahead| ahead.check(&self.arena, self.hand));
        self.arena.check_accounts(slots + taken + ahead);
        assert!(self.late.iter().all(|late| late.tick <= self.hand), "a late entry is not due");
        assert!(self.open.iter(&self.arena).all(|entry| entry.tick(self.hand) >= self.hand));
        assert!(self.swept.iter(&self.arena).all(|entry| entry.tick(self.hand) > self.hand));
        assert_eq!(self.len, self.entries().count(), "the length is wrong");
        let ticks = self.entries().map(|entry| entry.tick(self.hand));
        let next = ticks.map(|tick| if self.is_late(tick) { tick.min(self.hand) } else { tick }).min();
        assert_eq!(self.next_tick(), next, "the next tick is wrong");
        assert!(self.ahead.as_ref().is_none_or(|ahead| self.rows.chain(ahead.position()).is_empty()), "one slot twice");
    }

    /// What `pick` makes of everything held, in no order.
    pub(crate) fn collect<R>(&self, pick: impl FnMut(E) -> Option<R>) -> Vec<R> {
        self.entries().filter_map(pick).collect()
    }

    /// Everything held, in no order.
    fn entries(&self) -> impl Iterator<Item = E> + '_ {
        let slots = self.rows.entries(&self.arena);
        let taken = self.open.iter(&self.arena).chain(self.swept.iter(&self.arena));
        let ahead = self.ahead.iter().flat_map(|ahead| ahead.entries(&self.arena));
        slots.chain(taken).chain(ahead).chain(self.late.iter().map(|late| late.entry))
    }
}
