//! The next large slot, taken apart before the hand comes to it.
//!
//! Many timers of about the same delay wait in one far slot, and none that is due in it can come out before the whole
//! slot has been filed on the lower levels: when the hand gets there, that takes milliseconds, and whatever is due
//! meanwhile is late. So it is done beforehand, some entries at a time. Until then the lower levels still hold what
//! comes before that slot, so its entries go to rows of their own, seen from the slot's first tick. When the hand comes
//! to that tick, the lower levels are empty, and the rows take their place.

use super::chunks::{Arena, Chain};
use super::rows::{Rows, position_of};
use super::slots::Entry;
use super::taken::Taken;

#[derive(Debug)]
pub(super) struct Ahead<E> {
    /// Entries that are not filed yet. Also knows the slot.
    pub(super) rest: Taken<E>,
    /// Entries that are filed, seen from the slot's first tick.
    pub(super) rows: Rows,
    /// The earliest tick of all entries; if `doubtful`, its entry may be unwanted by now.
    min: u64,
    doubtful: bool,
}

impl<E: Entry> Ahead<E> {
    pub(super) fn new(chain: Chain, doubtful: bool, position: usize, range: (u64, u64)) -> Self {
        Self { rest: Taken::new(chain, position, range), rows: Rows::new(), min: chain.min(), doubtful }
    }

    pub(super) fn position(&self) -> usize {
        self.rest.position
    }

    /// The slot's first tick: the base of its rows.
    pub(super) fn base(&self) -> u64 {
        self.rest.first
    }

    pub(super) fn is_empty(&self) -> bool {
        self.rest.is_empty() && self.rows.first().is_none()
    }

    pub(super) fn covers(&self, tick: u64) -> bool {
        self.rest.first <= tick && tick <= self.rest.last
    }

    /// See [`Rows::leads`].
    pub(super) fn leads(&self, tick: u64) -> bool {
        self.rows.leads(self.base(), tick)
    }

    /// Puts an entry of the slot where its tick says. If the entry `leads`, it must be wanted.
    pub(super) fn file(&mut self, arena: &mut Arena<E>, tick: u64, entry: E) {
        if tick <= self.min {
            (self.min, self.doubtful) = (tick, false);
        }
        let base = self.base();
        self.rows.file(arena, base, tick, entry);
    }

    /// Of the rows, the slot that `tick` belongs to.
    pub(super) fn chain_of(&self, tick: u64) -> Chain {
        self.rows.chain(position_of(self.base(), tick))
    }

    /// The earliest tick, exactly.
    pub(super) fn next_tick(&self, hand: u64) -> Option<u64> {
        let filed = self.rows.first().map(|position| self.rows.chain(position).min());
        filed.into_iter().chain(self.rest.min(hand)).min()
    }

    /// See [`Slots::doubt`](super::slots::Slots::doubt).
    pub(super) fn doubt(&mut self, tick: u64) {
        self.doubtful |= tick == self.min;
        let base = self.base();
        self.rows.doubt(base, tick);
    }

    /// See [`Slots::first_live`](super::slots::Slots::first_live).
    pub(super) fn first_live(&self, arena: &Arena<E>, hand: u64, live: &mut impl FnMut(E) -> bool) -> Option<u64> {
        if !self.doubtful {
            return Some(self.min);
        }
        let rest = self.rest.first_live(arena, hand, live);
        rest.into_iter().chain(self.rows.first_live(arena, hand, live)).min()
    }

    pub(super) fn entries<'a>(&'a self, arena: &'a Arena<E>) -> impl Iterator<Item = E> + 'a {
        self.rest.iter(arena).chain(self.rows.entries(arena))
    }

    /// Panics if something is not where it should be. Returns the chunks in use.
    pub(super) fn check(&self, arena: &Arena<E>, hand: u64) -> usize {
        assert!(self.base() > hand, "the hand has come to the slot");
        assert!(self.entries(arena).all(|entry| self.covers(entry.tick(hand))), "an entry of another slot");
        self.rest.check(arena, hand) + self.rows.check(arena, self.base(), hand)
    }
}
