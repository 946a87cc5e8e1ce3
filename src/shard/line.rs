//! One line of the index: the timers whose hashes begin alike, in as many bytes as the processor fetches at once.
//!
//! ```text
//!   meta   [frozen | set | half split | version:61]
//!   pairs  [frozen | cell:31 | set | cell:31]          each cell: [tag | node], 0 is empty
//!   the last pair's upper cell is not a cell, but the link to further lines: [count:6 | line:25]
//! ```
//!
//! The first bits of a hash choose the line, the next bits are the tag, and the rest is not kept: the keys themselves
//! are compared. A node's number has four bits more than a line's, so the more lines there are, the shorter the tags:
//! line and tag together always cover 27 bits of the hash. When the lines double, the first bit of each tag chooses
//! between the two lines that its line is split into.
//!
//! So almost all that looks alike by its tag is the key's own, and a line is split without reading its nodes.

use super::hint::NODE_BITS;
use super::search::{CELLS, Pattern, Place, Places};
use super::segments::Zeroed;
use crate::sync::size::{NODES_TO_LINE_BITS, PAIRS};
use crate::sync::{AtomicU64, Ordering};
use Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
use std::ops::Range;

/// The greatest hash that a node can have.
pub(crate) const HASH_MAX: u32 = u32::MAX - 1;
/// In the place of a hash: no index leads to the timer.
pub(crate) const NO_HASH: u32 = HASH_MAX + 1;

const CELL_BITS: u32 = 31;
const CELL_MASK: u64 = (1 << CELL_BITS) - 1;
/// Flag of a pair and of a meta word.
const FROZEN: u64 = 1 << 63;
const PAIR_SET: u64 = 1 << CELL_BITS;
const META_SET: u64 = 1 << 62;
/// Flag of a meta word: one of the two lines that this line is split into is set.
const HALF_SPLIT: u64 = 1 << 61;
/// With this many bits there are lines for all nodes that there can be.
pub(super) const LINE_BITS_MAX: u32 = NODE_BITS - NODES_TO_LINE_BITS;
const LINK_BITS: u32 = 25;
const COUNT_MAX: u32 = (1 << (CELL_BITS - LINK_BITS)) - 1;

/// How many lines there are, and hence how cells are divided into tag and node.
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

    /// There are `1 << bits` lines.
    #[inline]
    pub(super) fn bits(self) -> u32 {
        self.bits
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

    /// The number of the line to which timers of this hash belong. The first line of all is 1; line n is split into 2n
    /// and 2n + 1.
    #[inline]
    pub(super) fn line(self, hash: u32) -> u32 {
        1 << self.bits | self.offset(hash)
    }

    /// How many lines come before that of this hash.
    #[inline]
    pub(super) fn offset(self, hash: u32) -> u32 {
        // In two steps: if there is a single line, all 32 bits are shifted out.
        hash >> (u32::BITS - 1 - self.bits) >> 1
    }

    /// Matches the cells of this hash's tag. (And empty cells, if the tag is 0.)
    #[inline]
    pub(super) fn like(self, hash: u32) -> Pattern {
        let mask = CELL_MASK as u32 & u32::MAX << self.node_bits();
        // The line's bits fall out at the top. The bits that are not kept fall into the node's place, where the mask
        // removes them.
        Pattern { cell: hash << self.bits >> (u32::BITS - CELL_BITS) & mask, mask }
    }

    #[inline]
    pub(super) fn node(self, cell: u32) -> u32 {
        cell & !(u32::MAX << self.node_bits())
    }

    /// After the lines have doubled: which of the two lines a cell goes to, and what the cell is there.
    pub(super) fn split(self, cell: u32) -> (u32, u32) {
        let tag = cell & u32::MAX << self.node_bits();
        (cell >> (CELL_BITS - 1), tag << 1 & CELL_MASK as u32 | self.node(cell))
    }
}

/// Which cell of a pair, as the number of the cell's lowest bit: a shift, not a branch that the processor would have to
/// guess.
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

    /// For the last pair of a line.
    #[inline]
    pub(super) fn link(self) -> More {
        More(self.cell(Side::UPPER))
    }

    /// For the last pair of a line.
    #[inline]
    pub(super) fn with_link(self, more: More) -> Self {
        self.with(Side::UPPER, more.0)
    }
}

/// A line's link to further lines: the first of them, and how many timers they hold or are about to hold.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct More(u32);

impl More {
    pub(super) const NONE: Self = Self(0);
    /// How many numbers of lines a link has room for.
    pub(super) const LINE_NUMBERS: u32 = 1 << LINK_BITS;

    pub(super) fn new(line: u32, count: usize) -> Self {
        Self((count.min(COUNT_MAX as usize) as u32) << LINK_BITS | line)
    }

    #[inline]
    pub(super) fn line(self) -> Option<u32> {
        Some(self.0 & (Self::LINE_NUMBERS - 1)).filter(|&line| line != 0)
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

    /// With one timer less. If none is left, the line is not linked any more. A count that has reached its maximum
    /// stays.
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
        // Acquire: pairs with every change below. A thread that sees a node sees it filled in; one that sees the node
        // gone knows that its timer has ended, and all that led to that.
        Pair(self.0.load(Acquire))
    }

    /// As `load`, for a thread that has claimed a cell of the line, or has acquired a claim and then run a SeqCst
    /// fence: of two threads that claim at once, at least one sees the other.
    #[inline]
    pub(super) fn load_after_claim(&self) -> Pair {
        // SeqCst: comes after that `claim` in the one order of all SeqCst operations.
        Pair(self.0.load(SeqCst))
    }

    /// Puts a cell where there is none.
    #[inline]
    pub(super) fn claim(&self, seen: Pair, side: Side, cell: u32) -> bool {
        debug_assert!(seen.cell(side) == 0 && !seen.is_frozen());
        // SeqCst: see `load_after_claim`. It also releases: publishes what is in the node.
        // Relaxed on failure, here and below: the caller looks again.
        self.0.compare_exchange(seen.0, seen.with(side, cell).0, SeqCst, Relaxed).is_ok()
    }

    /// Takes a cell out.
    #[inline]
    pub(super) fn clear(&self, seen: Pair, side: Side) -> bool {
        debug_assert!(!seen.is_frozen());
        // Release: publishes that the cell's timer has ended, and what led to that.
        self.0.compare_exchange(seen.0, seen.with(side, 0).0, Release, Relaxed).is_ok()
    }

    /// For the last pair of a line: changes the link.
    pub(super) fn relink(&self, seen: Pair, more: More) -> bool {
        debug_assert!(!seen.is_frozen());
        // SeqCst: linking a new line claims the cell that is in it, and raising the count comes before a claim; see
        // `load_after_claim`. It also releases: publishes the new line.
        self.0.compare_exchange(seen.0, seen.with_link(more).0, SeqCst, Relaxed).is_ok()
    }

    /// Forbids any change from now on.
    pub(super) fn freeze(&self) {
        // Release: publishes that there are more lines, or that the shard is sealed, to a thread that sees the pair
        // frozen. (A thread that loads the cells afterwards acquires what is in them.)
        let last = self.0.fetch_or(FROZEN, Release);
        debug_assert!(last != 0);
    }

    /// Sets a pair that is not set; false if another thread was faster.
    fn set(&self, pair: Pair) -> bool {
        // Release: publishes what is in the nodes, and in the line that a link leads to.
        self.0.compare_exchange(0, pair.0 | PAIR_SET, Release, Relaxed).is_ok()
    }
}

/// A line's meta word at one moment.
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
        // Acquire: if the line is set, observes all its cells; if it is frozen, that there are more lines; with the
        // version, the nodes that were in the line when that ticket was drawn.
        Meta(self.0.load(Acquire))
    }

    /// The next ticket; `None` if the line is frozen.
    pub(super) fn draw(&self) -> Option<u64> {
        let mut seen = self.load();
        while !seen.is_frozen() {
            // AcqRel: a thread that has a later ticket, or sees its version, sees all nodes that we have seen.
            match self.0.compare_exchange(seen.0, seen.0 + 1, AcqRel, Acquire) {
                Ok(_) => return Some(seen.version() + 1),
                Err(found) => seen = Meta(found),
            }
        }
        None
    }

    /// From now on no ticket can be drawn, and no thread that sees this claims a cell. Comes before the pairs are
    /// frozen. Returns the last value.
    pub(super) fn freeze(&self) -> Meta {
        // Release: as in `AtomicPair::freeze`. Acquire: observes, for the lines that go on with this version, what was
        // seen when its ticket was drawn.
        Meta(self.0.fetch_or(FROZEN, AcqRel))
    }

    /// The caller has set one of the two lines that this line is split into; true for the second one.
    pub(super) fn split_half(&self) -> bool {
        // AcqRel: publishes the first line to the caller that sets the second, and does what has to be done once both
        // are set.
        self.0.fetch_or(HALF_SPLIT, AcqRel) & HALF_SPLIT != 0
    }

    /// Marks a line as set, after its cells; true for the call that did it.
    pub(super) fn set(&self, version: u64) -> bool {
        // Release: publishes the pairs, which are set.
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

// SAFETY: only atomics, whose default is zero.
unsafe impl Zeroed for Line {}

impl Line {
    #[inline]
    pub(super) fn last_pair(&self) -> &AtomicPair {
        &self.pairs[PAIRS - 1]
    }

    /// Which cells match the pattern; and the last pair.
    #[inline(always)]
    pub(super) fn search(&self, load: impl Fn(&AtomicPair) -> Pair, pattern: Pattern) -> (Places, Pair) {
        let pairs = std::array::from_fn(|number| load(&self.pairs[number]).0);
        (Places::of(pairs, pattern), Pair(pairs[PAIRS - 1]))
    }

    #[inline]
    pub(super) fn place(&self, place: Place) -> (&AtomicPair, Side) {
        (&self.pairs[place.pair as usize], Side(place.shift))
    }

    /// Makes the system put memory behind the line; changes nothing.
    pub(super) fn touch(&self) {
        // Not a load, for which the system needs no memory; nor an operation that compilers turn into a load, such as
        // adding 0.
        // Relaxed: nothing is published, and nothing read.
        let _ = self.meta.0.compare_exchange(0, 0, Relaxed, Relaxed);
    }

    /// The cells as they are now; 0 where a cell is empty.
    #[inline]
    pub(super) fn cells(&self) -> Cells {
        let mut cells = Cells::default();
        for (pair, cells) in self.pairs.iter().zip(cells.chunks_mut(2)) {
            let pair = pair.load();
            cells.iter_mut().zip([Side::LOWER, Side::UPPER]).for_each(|(cell, side)| *cell = pair.cell(side));
        }
        cells
    }

    /// Sets the cells, and the link to the rest. Other threads may be doing the same at once: they have the same cells
    /// in the same places, but each has its own copy of the rest. Changes nothing if all is set already. False if
    /// another thread was faster: then `rest` is not linked. (For a line of the array, the meta word says afterwards
    /// that it is set.)
    pub(super) fn set_cells(&self, cells: &Cells, rest: More) -> bool {
        let (pairs, last) = cells.as_chunks();
        for (place, &[lower, upper]) in self.pairs.iter().zip(pairs) {
            place.set(Pair::of(lower, upper));
        }
        self.last_pair().set(Pair::of(last[0], rest.0))
    }

    /// Makes the line all-zero again. Only the caller knows of the line.
    pub(super) fn reset(&self) {
        // Relaxed: published by the thread that links the line in.
        self.meta.0.store(0, Relaxed);
        self.pairs.iter().for_each(|pair| pair.0.store(0, Relaxed));
    }

    /// For a line that is not in use: stores a number in place of the meta word.
    pub(super) fn store_number(&self, number: u32) {
        // Relaxed: published by the list's head.
        self.meta.0.store(u64::from(number), Relaxed);
    }

    pub(super) fn load_number(&self) -> u32 {
        // Relaxed: acquired through the list's head.
        self.meta.0.load(Relaxed) as u32
    }
}
