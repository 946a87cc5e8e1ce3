//! A slot whose entries are on their way to other places.

use super::chunks::{Arena, Chain};
use super::rows::first_live;
use super::slots::Entry;

/// A slot's chain that is being taken apart: whole chunks, and one that is open.
#[derive(Debug)]
pub(super) struct Taken<E> {
    chain: Chain,
    loose: Vec<E>,
    /// The slot it was taken from.
    pub(super) position: usize,
    /// First and last tick of that slot.
    pub(super) first: u64,
    pub(super) last: u64,
}

impl<E: Entry> Taken<E> {
    pub(super) fn nothing() -> Self {
        Self::new(Chain::EMPTY, 0, (0, 0))
    }

    pub(super) fn new(chain: Chain, position: usize, (first, last): (u64, u64)) -> Self {
        Self { chain, loose: Vec::new(), position, first, last }
    }

    /// Becomes `next`, and keeps only its memory: by then it must be empty.
    pub(super) fn become_next(&mut self, next: Self) {
        let loose = std::mem::take(&mut self.loose);
        debug_assert!(self.chain.is_empty() && loose.is_empty(), "entries would be lost");
        *self = Self { loose, ..next };
    }

    pub(super) fn len(&self) -> usize {
        self.loose.len() + self.chain.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.loose.is_empty() && self.chain.is_empty()
    }

    pub(super) fn covers(&self, tick: u64) -> bool {
        !self.is_empty() && self.first <= tick && tick <= self.last
    }

    pub(super) fn pop(&mut self, arena: &mut Arena<E>) -> Option<E> {
        self.open_chunk(arena);
        self.loose.pop()
    }

    /// Opens the next chunk and returns its entries; none if a chunk is open already.
    pub(super) fn open_chunk(&mut self, arena: &mut Arena<E>) -> &[E] {
        if !self.loose.is_empty() {
            return &[];
        }
        arena.take_chunk(&mut self.chain, &mut self.loose);
        &self.loose
    }

    pub(super) fn iter<'a>(&'a self, arena: &'a Arena<E>) -> impl Iterator<Item = E> + 'a {
        self.loose.iter().copied().chain(arena.iter(self.chain))
    }

    /// The earliest tick: looks at the one open chunk only.
    pub(super) fn min(&self, hand: u64) -> Option<u64> {
        let loose = self.loose.iter().map(|entry| entry.tick(hand));
        let chain = (!self.chain.is_empty()).then_some(self.chain.min());
        loose.chain(chain).min()
    }

    /// The earliest tick of all live entries. O(what is left).
    pub(super) fn first_live(&self, arena: &Arena<E>, hand: u64, live: &mut impl FnMut(E) -> bool) -> Option<u64> {
        let loose = self.loose.iter().filter(|&&entry| live(entry));
        let loose = loose.map(|entry| entry.tick(hand)).min();
        first_live(arena, self.chain, hand, loose, live)
    }

    /// Panics unless every entry belongs to the slot. Returns the chunks in use.
    pub(super) fn check(&self, arena: &Arena<E>, hand: u64) -> usize {
        for entry in self.iter(arena) {
            let tick = entry.tick(hand);
            assert!(self.covers(tick), "tick {tick} was taken from another slot");
        }
        arena.check_chain(&self.chain, |entry| entry.tick(hand))
    }
}
