//! One line of the index: the timers whose hashes begin alike, in as many bytes as the processor fetches at once.
//!
//! ```text
//!   meta   [frozen | set | half split | version:61]
//!   pairs  [frozen | cell:31 | set | cell:31]          each cell: [tag | node], 0 is empty
//!   the last pair's upper cell is no cell, but the link to more of the same: [count:6 | line:25]
//! ```
//!
//! Of a hash, the first bits choose the line, the next are the tag, and the rest is not kept: keys tell. A node's number has four bits
//! more than a line's, so tags are the shorter the more lines there are, and both together always have 27 bits. When
//! the lines double, the first bit of each tag chooses between the two that come of one.

use super::hint::NODE_BITS;
use super::search::{CELLS, Pattern, Place, Places};
use super::segments::Zeroed;
use crate::sync::size::PAIRS;
use crate::sync::{AtomicU64, Ordering};
use Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
use std::ops::Range;

/// The greatest hash that a node can have.
pub(crate) const HASH_MAX: u32 = u32::MAX - 1;
/// In the place of a hash: no index leads to the timer.
pub(crate) const NO_HASH: u32 = HASH_MAX + 1;

const CELL_BITS: u32 = 31;
const CELL_MASK: u64 = (1 << CELL_BITS) - 1;
/// Of a pair and of a meta word.
const FROZEN: u64 = 1 << 63;
const PAIR_SET: u64 = 1 << CELL_BITS;
const META_SET: u64 = 1 << 62;
/// Of a meta word: one of the two lines that come of this one is set.
const HALF_SPLIT: u64 = 1 << 61;
/// There are so many node numbers to each line.
const NODES_TO_LINE_BITS: u32 = 4;
/// With so many bits there are lines for all nodes that there can be.
pub(super) const LINE_BITS_MAX: u32 = NODE_BITS - NODES_TO_LINE_BITS;
const LINK_BITS: u32 = 25;
const COUNT_MAX: u32 = (1 << (CELL_BITS - LINK_BITS)) - 1;

/// How many lines there are, and so how cells are divided.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Shape {
    bits: u32,
}

impl Shape {
    #[inline]
    pub(super) fn of(bits: u32) -> Self {
        debug_assert!(bits <= LINE_BITS_MAX);
        Self { bits }
    }

    #[inline]
    fn node_bits(self) -> u32 {
        self.bits + NODES_TO_LINE_BITS
    }

    /// The numbers of all lines.
    pub(super) fn lines(self) -> Range<u32> {
        1 << self.bits..2 << self.bits
    }

    /// True if a cell has room for the node's number.
    #[inline]
    pub(super) fn holds(self, node: u32) -> bool {
        node >> self.node_bits() == 0
    }

    /// The number of the line in which timers of this hash are: the first of all is 1, and of line n come 2n and 2n + 1.
    #[inline]
    pub(super) fn line(self, hash: u32) -> u32 {
        // In two steps, as there may be one line.
        1 << self.bits | (hash >> (u32::BITS - 1 - self.bits) >> 1)
    }

    /// Cells of the same tag. (And empty ones, if that is 0.)
    #[inline]
    pub(super) fn like(self, hash: u32) -> Pattern {
        let mask = CELL_MASK as u32 & u32::MAX << self.node_bits();
        // The line's bits fall out at the top, and those that are not kept into the node's place.
        Pattern { cell: hash << self.bits >> (u32::BITS - CELL_BITS) & mask, mask }
    }

    #[inline]
    pub(super) fn node(self, cell: u32) -> u32 {
        cell & !(u32::MAX << self.node_bits())
    }

    /// After the lines have doubled: which of the two that come of its line the cell is in, and the cell there.
    pub(super) fn split(self, cell: u32) -> (u32, u32) {
        let tag = cell & u32::MAX << self.node_bits();
        (cell >> (CELL_BITS - 1), tag << 1 & CELL_MASK as u32 | self.node(cell))
    }
}

/// Which cell of a pair, by its lowest bit: so that nothing depends on a guess which it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Side(u32);

impl Side {
    const LOWER: Self = Self(0);
    const UPPER: Self = Self(32);
}

/// All cells of a line.
pub(super) type Cells = [u32; CELLS as usize];

/// Cells that are empty.
pub(super) const EMPTY: Pattern = Pattern { cell: 0, mask: CELL_MASK as u32 };

/// Two cells at one moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Pair(u64);

impl Pair {
    #[inline]
    fn of(lower: u32, upper: u32) -> Self {
        Self(u64::from(lower) << Side::LOWER.0 | u64::from(upper) << Side::UPPER.0)
    }

    #[inline]
    pub(super) fn cell(self, side: Side) -> u32 {
        (self.0 >> side.0 & CELL_MASK) as u32
    }

    #[inline]
    fn with(self, side: Side, cell: u32) -> Self {
        Self(self.0 & !(CELL_MASK << side.0) | u64::from(cell) << side.0)
    }

    #[inline]
    pub(super) fn is_frozen(self) -> bool {
        self.0 & FROZEN != 0
    }

    /// Of a last pair.
    #[inline]
    pub(super) fn link(self) -> More {
        More(self.cell(Side::UPPER))
    }

    /// Of a last pair.
    #[inline]
    pub(super) fn with_link(self, more: More) -> Self {
        self.with(Side::UPPER, more.0)
    }
}

/// What a line has of further ones: the first of them, and how many timers they have, or are about to have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct More(u32);

impl More {
    pub(super) const NONE: Self = Self(0);
    /// Lines that a link has room for.
    pub(super) const LINES_MAX: u32 = 1 << LINK_BITS;

    pub(super) fn new(line: u32, count: usize) -> Self {
        Self((count.min(COUNT_MAX as usize) as u32) << LINK_BITS | line)
    }

    pub(super) fn line(self) -> Option<u32> {
        Some(self.0 & (Self::LINES_MAX - 1)).filter(|&line| line != 0)
    }

    pub(super) fn count_at_least(self) -> usize {
        self.count() as usize
    }

    fn count(self) -> u32 {
        self.0 >> LINK_BITS
    }

    pub(super) fn raised(self) -> Self {
        if self.count() == COUNT_MAX { self } else { Self(self.0 + (1 << LINK_BITS)) }
    }

    /// One timer fewer; none, and the line is not linked any more. Where so many were that they could not be counted, it stays.
    pub(super) fn lowered(self) -> Self {
        match self.count() {
            COUNT_MAX => self,
            1 => Self::NONE,
            _ => Self(self.0 - (1 << LINK_BITS)),
        }
    }
}

/// All-zero: not set.
#[derive(Debug, Default)]
pub(super) struct AtomicPair(AtomicU64);

impl AtomicPair {
    #[inline]
    pub(super) fn load(&self) -> Pair {
        // Acquire: who sees a node sees it filled in, and who sees it gone knows that its timer has ended, and all that led to that.
        Pair(self.0.load(Acquire))
    }

    /// As `load`, after this thread has claimed a cell of the line, or has acquired a claim and then had a SeqCst fence: of two who claim
    /// at once, at least one sees the other.
    #[inline]
    pub(super) fn load_after_claim(&self) -> Pair {
        // SeqCst: comes after that `claim` in the order of all such operations.
        Pair(self.0.load(SeqCst))
    }

    /// Puts a cell where there is none.
    #[inline]
    pub(super) fn claim(&self, seen: Pair, side: Side, cell: u32) -> bool {
        debug_assert!(seen.cell(side) == 0 && !seen.is_frozen());
        // SeqCst: see `load_after_claim`. That releases, too: what is in the node.
        // Relaxed on failure, here and below: the caller looks again.
        self.0.compare_exchange(seen.0, seen.with(side, cell).0, SeqCst, Relaxed).is_ok()
    }

    /// Takes a cell out.
    #[inline]
    pub(super) fn clear(&self, seen: Pair, side: Side) -> bool {
        debug_assert!(!seen.is_frozen());
        // Release: that its timer has ended, and what led to that.
        self.0.compare_exchange(seen.0, seen.with(side, 0).0, Release, Relaxed).is_ok()
    }

    /// Of a last pair: another link.
    pub(super) fn relink(&self, seen: Pair, more: More) -> bool {
        debug_assert!(!seen.is_frozen());
        // SeqCst: it is a claim, of what is in a new line, or comes before one; see `load_after_claim`. That releases, too: the new line.
        self.0.compare_exchange(seen.0, seen.with_link(more).0, SeqCst, Relaxed).is_ok()
    }

    /// Forbids any change from now on.
    pub(super) fn freeze(&self) {
        // Release: who sees it frozen sees that there are more lines, or that the shard is sealed. (What is in the cells is acquired by who
        // loads them afterwards.)
        let last = self.0.fetch_or(FROZEN, Release);
        debug_assert!(last != 0);
    }

    /// Sets a pair that is not; false if somebody was faster.
    fn set(&self, pair: Pair) -> bool {
        // Release: what is in the nodes, and in the line that a link leads to.
        self.0.compare_exchange(0, pair.0 | PAIR_SET, Release, Relaxed).is_ok()
    }
}

/// What a line says of itself at one moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Meta(u64);

impl Meta {
    #[inline]
    pub(super) fn is_set(self) -> bool {
        self.0 & META_SET != 0
    }

    #[inline]
    pub(super) fn is_frozen(self) -> bool {
        self.0 & FROZEN != 0
    }

    /// Set, and not frozen.
    #[inline]
    pub(super) fn is_in_use(self) -> bool {
        self.0 & (META_SET | FROZEN) == META_SET
    }

    /// Grows with each ticket.
    pub(super) fn version(self) -> u64 {
        self.0 & (HALF_SPLIT - 1)
    }
}

#[derive(Debug, Default)]
pub(super) struct AtomicMeta(AtomicU64);

impl AtomicMeta {
    #[inline]
    pub(super) fn load(&self) -> Meta {
        // Acquire: of a line that is set, all cells; of one that is frozen, that there are more lines; of a version, the nodes that were
        // there when its ticket was drawn.
        Meta(self.0.load(Acquire))
    }

    /// The next ticket; none if the line is frozen.
    pub(super) fn draw(&self) -> Option<u64> {
        let mut seen = self.load();
        while !seen.is_frozen() {
            // AcqRel: who has a later ticket, or sees its version, sees all nodes that we have seen.
            match self.0.compare_exchange(seen.0, seen.0 + 1, AcqRel, Acquire) {
                Ok(_) => return Some(seen.version() + 1),
                Err(found) => seen = Meta(found),
            }
        }
        None
    }

    /// Forbids any claim and any ticket from now on, before the pairs are frozen; the last value.
    pub(super) fn freeze(&self) -> Meta {
        // Release: as in `AtomicPair::freeze`. Acquire: for the lines that go on with this version, what was seen when it was drawn.
        Meta(self.0.fetch_or(FROZEN, AcqRel))
    }

    /// One of the two lines that come of this one was set, by the caller; true for the second one.
    pub(super) fn split_half(&self) -> bool {
        // AcqRel: what came of the first, to whoever does what is to be done when there are both.
        self.0.fetch_or(HALF_SPLIT, AcqRel) & HALF_SPLIT != 0
    }

    /// What sets a line in the end, after its cells; true for the one who did.
    pub(super) fn set(&self, version: u64) -> bool {
        // Release: the pairs, which are set.
        self.0.compare_exchange(0, META_SET | version, Release, Relaxed).is_ok()
    }
}

/// All-zero: not set.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub(super) struct Line {
    pub(super) meta: AtomicMeta,
    pub(super) pairs: [AtomicPair; PAIRS],
}

// SAFETY: atomics of zero.
unsafe impl Zeroed for Line {}

impl Line {
    #[inline]
    pub(super) fn last_pair(&self) -> &AtomicPair {
        &self.pairs[PAIRS - 1]
    }

    /// Which cells are like the pattern; and the last pair.
    #[inline(always)]
    pub(super) fn search(&self, load: impl Fn(&AtomicPair) -> Pair, pattern: Pattern) -> (Places, Pair) {
        let pairs = std::array::from_fn(|number| load(&self.pairs[number]).0);
        (Places::of(pairs, pattern), Pair(pairs[PAIRS - 1]))
    }

    #[inline]
    pub(super) fn place(&self, place: Place) -> (&AtomicPair, Side) {
        (&self.pairs[place.pair as usize], Side(place.shift))
    }

    /// Has the system put memory behind it; changes nothing.
    pub(super) fn touch(&self) {
        // Not a load, for which the system needs no memory; nor what compilers turn into one, such as adding nothing.
        // Relaxed: nothing is published, and nothing read.
        let _ = self.meta.0.compare_exchange(0, 0, Relaxed, Relaxed);
    }

    /// The cells as they are now, 0 where there is none.
    #[inline]
    pub(super) fn cells(&self) -> Cells {
        let mut cells = Cells::default();
        for (pair, cells) in self.pairs.iter().zip(cells.chunks_mut(2)) {
            let pair = pair.load();
            cells.iter_mut().zip([Side::LOWER, Side::UPPER]).for_each(|(cell, side)| *cell = pair.cell(side));
        }
        cells
    }

    /// Sets the cells, and where the rest is. Others may be doing the same, with the same cells in the same places, and each with a copy of
    /// the rest; and when all is set already, nothing happens. False if somebody was faster: that rest is not linked. (Of a line of the
    /// array it is the meta word that says so afterwards.)
    pub(super) fn set_cells(&self, cells: &Cells, rest: More) -> bool {
        let (pairs, last) = cells.as_chunks();
        for (place, &[lower, upper]) in self.pairs.iter().zip(pairs) {
            place.set(Pair::of(lower, upper));
        }
        self.last_pair().set(Pair::of(last[0], rest.0))
    }

    /// All zero again, by the only one who knows of it.
    pub(super) fn reset(&self) {
        // Relaxed: published by who links it in.
        self.meta.0.store(0, Relaxed);
        self.pairs.iter().for_each(|pair| pair.0.store(0, Relaxed));
    }

    /// Of a line that nobody uses: a number instead of what it is.
    pub(super) fn store_number(&self, number: u32) {
        // Relaxed: published by the list's head.
        self.meta.0.store(u64::from(number), Relaxed);
    }

    pub(super) fn load_number(&self) -> u32 {
        // Relaxed: acquired through the list's head.
        self.meta.0.load(Relaxed) as u32
    }
}
