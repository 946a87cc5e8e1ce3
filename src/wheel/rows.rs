//! The slots of all levels, seen from one tick, their *base*: which slot holds what, and what comes first.
//!
//! The owner of the rows knows the base and passes it in; all ticks filed lie at or after it.

use super::chunks::{Arena, Chain};
use super::level::{LEVEL_COUNT, SLOT_COUNT, level_for, slot_for, slot_last, slot_start};
use super::slots::Entry;

/// Slots of all levels. They are numbered in one row, in the order of time: see [`level`](super::level).
pub(super) const POSITION_COUNT: usize = LEVEL_COUNT * SLOT_COUNT;

#[derive(Debug)]
pub(super) struct Rows {
    /// One bit per slot of a level: the slot holds an entry.
    occupied: [u64; LEVEL_COUNT],
    /// One bit per slot: the entry that set the slot's minimum may be unwanted. See `doubt`.
    doubtful: [u64; LEVEL_COUNT],
    chains: Box<[Chain]>,
}

/// The level of a slot.
pub(super) fn level_of(position: usize) -> usize {
    position / SLOT_COUNT
}

/// The slot that `tick` belongs to.
pub(super) fn position_of(base: u64, tick: u64) -> usize {
    let level = level_for(base, tick);
    level * SLOT_COUNT + slot_for(tick, level)
}

/// First and last tick of a slot.
pub(super) fn range(base: u64, position: usize) -> (u64, u64) {
    let level = level_of(position);
    let first = slot_start(base, level, position % SLOT_COUNT);
    (first, slot_last(first, level))
}

fn bit(position: usize) -> u64 {
    1 << (position % SLOT_COUNT)
}

impl Rows {
    pub(super) fn new() -> Self {
        Self {
            occupied: [0; LEVEL_COUNT],
            doubtful: [0; LEVEL_COUNT],
            chains: vec![Chain::EMPTY; POSITION_COUNT].into_boxed_slice(),
        }
    }

    /// True if an entry due at `tick` would set the minimum of its slot: then it must be wanted.
    pub(super) fn leads(&self, base: u64, tick: u64) -> bool {
        let position = position_of(base, tick);
        let chain = &self.chains[position];
        chain.is_empty() || tick < chain.min() || tick == chain.min() && self.is_doubtful(position)
    }

    /// Puts an entry where its tick says. Returns the slot, and how many entries it holds now. If the entry `leads`, it
    /// must be wanted.
    pub(super) fn file<E: Entry>(&mut self, arena: &mut Arena<E>, base: u64, tick: u64, entry: E) -> (usize, usize) {
        let position = position_of(base, tick);
        let chain = &mut self.chains[position];
        self.occupied[level_of(position)] |= bit(position);
        if tick <= chain.min() {
            self.doubtful[level_of(position)] &= !bit(position);
        }
        arena.push(chain, tick, entry);
        (position, chain.len())
    }

    pub(super) fn chain(&self, position: usize) -> Chain {
        self.chains[position]
    }

    /// Empties a slot and returns what it held.
    pub(super) fn detach(&mut self, position: usize) -> Chain {
        self.occupied[level_of(position)] &= !bit(position);
        self.doubtful[level_of(position)] &= !bit(position);
        std::mem::replace(&mut self.chains[position], Chain::EMPTY)
    }

    /// The slots that hold something, in the order of time.
    fn occupied_slots(&self) -> impl Iterator<Item = usize> + '_ {
        self.occupied.iter().enumerate().flat_map(|(level, &slots)| {
            let mut left = slots;
            std::iter::from_fn(move || {
                let slot = (left != 0).then_some(left.trailing_zeros() as usize)?;
                left &= left - 1;
                Some(level * SLOT_COUNT + slot)
            })
        })
    }

    /// The occupied slot that comes first.
    pub(super) fn first(&self) -> Option<usize> {
        let level = self.occupied.iter().position(|&slots| slots != 0)?;
        Some(level * SLOT_COUNT + self.occupied[level].trailing_zeros() as usize)
    }

    /// The first slot of `level` or above that holds at least `len` entries.
    pub(super) fn first_large(&self, level: usize, len: usize) -> Option<usize> {
        self.occupied_slots().find(|&position| level_of(position) >= level && self.chains[position].len() >= len)
    }

    /// The last occupied slot before `position`.
    pub(super) fn last_below(&self, position: usize) -> Option<usize> {
        let (top, slot) = (level_of(position), position % SLOT_COUNT);
        let below = self.occupied.get(top).map_or(0, |slots| slots & ((1 << slot) - 1));
        let lower = (0..top).map(|level| (level, self.occupied[level]));
        let (level, slots) = lower.chain([(top, below)]).rev().find(|&(_, slots)| slots != 0)?;
        Some(level * SLOT_COUNT + slots.ilog2() as usize)
    }

    /// Exchanges the levels below `level` with those of `other`. O(slots).
    pub(super) fn swap_below(&mut self, level: usize, other: &mut Self) {
        self.occupied[..level].swap_with_slice(&mut other.occupied[..level]);
        self.doubtful[..level].swap_with_slice(&mut other.doubtful[..level]);
        self.chains[..level * SLOT_COUNT].swap_with_slice(&mut other.chains[..level * SLOT_COUNT]);
    }

    /// An entry due at `tick` is not wanted any more: if it set the minimum of its slot, that is not to be trusted.
    pub(super) fn doubt(&mut self, base: u64, tick: u64) {
        let position = position_of(base, tick);
        let chain = &self.chains[position];
        // The minimum of an empty slot is a tick, too.
        if !chain.is_empty() && chain.min() == tick {
            self.doubtful[level_of(position)] |= bit(position);
        }
    }

    pub(super) fn is_doubtful(&self, position: usize) -> bool {
        self.doubtful[level_of(position)] & bit(position) != 0
    }

    /// The earliest tick of all live entries; looks only through slots whose minimum is doubtful.
    pub(super) fn first_live<E: Entry>(
        &self,
        arena: &Arena<E>,
        hand: u64,
        live: &mut impl FnMut(E) -> bool,
    ) -> Option<u64> {
        self.occupied_slots().find_map(|position| {
            let chain = self.chains[position];
            if self.is_doubtful(position) { first_live(arena, chain, hand, None, live) } else { Some(chain.min()) }
        })
    }

    /// Everything held, in no order.
    pub(super) fn entries<'a, E: Entry>(&'a self, arena: &'a Arena<E>) -> impl Iterator<Item = E> + 'a {
        self.chains.iter().flat_map(|&chain| arena.iter(chain))
    }

    /// Panics unless every entry is where its tick says and the bitmaps are the occupied slots. Returns the chunks in
    /// use.
    pub(super) fn check<E: Entry>(&self, arena: &Arena<E>, base: u64, hand: u64) -> usize {
        (0..POSITION_COUNT).map(|position| self.check_slot(arena, base, hand, position)).sum()
    }

    fn check_slot<E: Entry>(&self, arena: &Arena<E>, base: u64, hand: u64, position: usize) -> usize {
        let chain = &self.chains[position];
        let is_occupied = self.occupied[level_of(position)] & bit(position) != 0;
        assert_eq!(is_occupied, !chain.is_empty(), "slot {position}: occupancy");
        assert!(is_occupied || !self.is_doubtful(position), "slot {position}: doubt");
        for entry in arena.iter(*chain) {
            let tick = entry.tick(hand);
            assert!(tick > hand && tick >= base, "tick {tick} is behind the hand {hand} or the base {base}");
            assert_eq!(position_of(base, tick), position, "tick {tick}, base {base}");
        }
        arena.check_chain(chain, |entry| entry.tick(hand))
    }
}

/// The earliest of `best` and the live entries of a chain; stops where nothing earlier is left.
pub(super) fn first_live<E: Entry>(
    arena: &Arena<E>,
    chain: Chain,
    hand: u64,
    mut best: Option<u64>,
    live: &mut impl FnMut(E) -> bool,
) -> Option<u64> {
    for (min, entries) in arena.chunks(chain) {
        if best.is_some_and(|best| best <= min) {
            break;
        }
        for &entry in entries {
            let tick = entry.tick(hand);
            if best.is_none_or(|best| tick < best) && live(entry) {
                best = Some(tick);
            }
        }
    }
    best
}
