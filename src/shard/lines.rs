//! The lines of the index: an array that doubles while it is in use.
//!
//! A larger one comes beside it, whose lines are not set. Who needs one freezes the line that it comes from, and fills both that come of
//! that. What they become follows from the frozen line alone, so it does not matter who does it, or how many. Who meets a frozen line
//! finds that there are more lines. (Larson, "Dynamic Hash Tables", CACM 31(4), 1988, splits lines in the same way, under locks.) An array
//! whose lines are all split is freed.

use super::Access;
use super::line::{AtomicPair, Cells, LINE_BITS_MAX, Line, Meta, More, Shape};
use super::overflow::Overflow;
use super::search::Pattern;
use super::segments::{SEGMENT_COUNT, Segments};
use crate::sync::size::{CROWDED, FIRST_SEGMENT_BITS, LINE_LOAD};
use crate::sync::{AtomicU32, Ordering};
use Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::Arc;

/// Lines for which memory is asked at once: a large page of them.
const POPULATED: u32 = 1 << 15;
const FIRST_BITS: u32 = FIRST_SEGMENT_BITS - 1;
/// In the number of bits: no line changes any more.
const SEALED: u32 = 1 << 31;

fn is_full(bits: u32, node_count: u32) -> bool {
    bits < LINE_BITS_MAX && node_count > LINE_LOAD << bits
}

/// True if callers should wait for more lines no longer: they are crowded, or a cell has no room for the number of a node.
fn lacks_room(bits: u32, node_count: u32, node: u32) -> bool {
    is_full(bits, node_count / CROWDED) || !Shape::of(bits).holds(node)
}

/// The line of a hash while its caller is pinned.
#[derive(Clone, Copy)]
pub(super) struct Home<'a> {
    pub(super) line: &'a Line,
    /// Cells of the hash's tag.
    pub(super) like: Pattern,
}

impl Home<'_> {
    /// The cell of a node of this hash, if it has room for the number.
    #[inline]
    pub(super) fn cell(self, node: u32) -> Option<u32> {
        (node & self.like.mask == 0).then_some(self.like.cell | node)
    }

    #[inline]
    pub(super) fn node(self, cell: u32) -> u32 {
        cell & !self.like.mask
    }
}

/// One of the two lines that come of one: its cells, and those for which it has no room.
#[derive(Default)]
struct Half {
    cells: Cells,
    len: usize,
    rest: Vec<u32>,
}

impl Half {
    /// Nothing if the cell is empty. No processor could guess whether it is: so that is no branch, as long as there is room.
    #[inline]
    fn push(&mut self, cell: u32) {
        if let Some(place) = self.cells.get_mut(self.len) {
            *place = cell;
            self.len += usize::from(cell != 0);
        } else if cell != 0 {
            self.rest.push(cell);
        }
    }
}

pub(super) struct Lines {
    array: Segments<Line>,
    pub(super) overflow: Arc<Overflow>,
    /// Of the array in use; and whether it is sealed.
    bits: AtomicU32,
    /// By their bits: the lines of each array that are set.
    set: [AtomicU32; SEGMENT_COUNT],
}

impl Lines {
    pub(super) fn new() -> Self {
        let array = Segments::<Line>::new();
        for number in 1 << FIRST_BITS..2 << FIRST_BITS {
            let line = array.reserve(number);
            line.set_cells(&Cells::default(), More::NONE);
            line.meta.set(0);
        }
        Self {
            array,
            overflow: Arc::new(Overflow::new()),
            bits: AtomicU32::new(FIRST_BITS),
            set: std::array::from_fn(|_| AtomicU32::new(0)),
        }
    }

    #[inline]
    fn bits(&self) -> u32 {
        // Acquire: that there is such an array. If it is an old one by now, its lines are frozen, or gone, which tells.
        self.bits.load(Acquire) & !SEALED
    }

    pub(super) fn is_sealed(&self) -> bool {
        // Acquire: what the sealer did before.
        self.bits.load(Acquire) & SEALED != 0
    }

    /// Lines so far.
    pub(super) fn count(&self) -> u32 {
        1 << self.bits()
    }

    /// Asks the processor for the line of a hash.
    #[inline]
    pub(super) fn prefetch(&self, hash: u32) {
        self.array.prefetch(Shape::of(self.bits()).line(hash));
    }

    /// The line of a hash as it is, set or not, and what it says of itself. None if its array has gone just now.
    #[inline]
    fn as_it_is<'a>(&'a self, hash: u32, _pinned: &'a Access) -> Option<(Home<'a>, Meta)> {
        let shape = Shape::of(self.bits());
        let line = self.array.reserved(shape.line(hash))?;
        Some((Home { line, like: shape.like(hash) }, line.meta.load()))
    }

    /// As `home`, if that is to be had at once.
    #[inline]
    pub(super) fn home_if_set<'a>(&'a self, hash: u32, access: &'a Access) -> Option<Home<'a>> {
        let (home, meta) = self.as_it_is(hash, access)?;
        meta.is_in_use().then_some(home)
    }

    /// The line of a hash at this moment, and what it says of itself: it was set, and not frozen. (When the shard is sealed, its pairs are.)
    #[inline]
    pub(super) fn home<'a>(&'a self, hash: u32, access: &'a Access) -> (Home<'a>, Meta) {
        loop {
            // None: there are other bits by now, which `release` tells. So does `freeze`.
            let Some((home, meta)) = self.as_it_is(hash, access) else { continue };
            if meta.is_in_use() {
                return (home, meta);
            }
            if !meta.is_set() {
                self.set_line(Shape::of(self.bits()).line(hash), access);
            }
        }
    }

    /// Doubles the array if it lacks room and nobody has seen to it; true for the caller who did.
    #[inline]
    pub(super) fn fit(&self, node_count: u32, node: u32) -> bool {
        lacks_room(self.bits(), node_count, node) && self.enlarge(node_count, node)
    }

    #[cold]
    fn enlarge(&self, node_count: u32, node: u32) -> bool {
        let mut has_grown = false;
        loop {
            let bits = self.bits.load(Relaxed);
            if bits & SEALED != 0 || !lacks_room(bits, node_count, node) {
                return has_grown;
            }
            has_grown |= self.double(bits);
        }
    }

    /// `bits` as they were read; false if somebody else was faster, or the shard is sealed.
    fn double(&self, bits: u32) -> bool {
        if bits & SEALED != 0 {
            return false;
        }
        // If that array has come and gone meanwhile, there are other bits by now.
        self.array.ensure(2 << bits);
        // Release: that there is such an array.
        self.bits.compare_exchange(bits, bits + 1, Release, Relaxed).is_ok()
    }

    /// The number of the last line that there should be, and 1.
    pub(super) fn wanted(&self, node_count: u32) -> u32 {
        let bits = self.bits();
        2 << (bits + u32::from(is_full(bits, node_count)))
    }

    /// True if callers lack lines already, when those before `next` are set: they set them themselves.
    pub(super) fn lacks(&self, next: u32) -> bool {
        next < 2 << self.bits()
    }

    /// Has the system put memory behind lines that there should be, from `next` on; how far.
    pub(super) fn populate(&self, node_count: u32, next: u32, _pinned: &Access) -> u32 {
        let end = self.wanted(node_count).min(next.saturating_add(POPULATED));
        self.array.populate(next..end, Line::touch)
    }

    /// Sets up to `limit` lines ahead of the callers, from `next` on; the first that is left.
    pub(super) fn split_ahead(&self, node_count: u32, next: u32, limit: u32, access: &Access) -> u32 {
        let end = self.wanted(node_count).min(next.saturating_add(limit));
        for number in next.max(2 << FIRST_BITS)..end {
            // Acquire: as in `bits`.
            let seen = self.bits.load(Acquire);
            let has_line = |bits: u32| number < 2 << (bits & !SEALED);
            let is_there = has_line(seen) || self.double(seen) || has_line(self.bits());
            // Not reserved: that array has gone, since all that come of its lines are set.
            if is_there && self.array.reserved(number).is_some_and(|line| !line.meta.load().is_set()) {
                self.set_line(number, access);
            }
        }
        end
    }

    /// Sets a line of the array in use, and the other one that comes from the same.
    #[cold]
    fn set_line(&self, number: u32, access: &Access) {
        let parent = number / 2;
        // Freed: then all that come of it are set.
        let Some(line) = self.array.reserved(parent) else { return };
        if !line.meta.load().is_set() {
            self.set_line(parent, access);
        }
        let bits = number.ilog2();
        let shape = Shape::of(bits - 1);
        let version = line.meta.freeze().version();
        self.freeze(line);
        for (child, half) in (0..).zip(&self.halves(line, shape)) {
            let Some(new) = self.array.reserved(2 * parent + child) else { return };
            let rest = self.overflow.build(&half.rest, false, access);
            let rest = rest.expect("enough lines are kept for what is there already");
            if !new.set_cells(&half.cells, rest) {
                self.overflow.retire(rest, access);
            }
            if new.meta.set(version) {
                self.has_set(bits, line, access);
            }
        }
    }

    /// What comes of a frozen line: for whoever asks, the same cells in the same places.
    fn halves(&self, line: &Line, shape: Shape) -> [Half; 2] {
        let mut halves = <[Half; 2]>::default();
        for cell in self.overflow.chain(line).flat_map(Line::cells) {
            let (to, cell) = shape.split(cell);
            halves[to as usize].push(cell);
        }
        halves
    }

    /// We have set a line of the array with so many bits, which comes of `parent`. When both are set, nobody comes for the lines any more
    /// to which that leads; and when all are set, nobody comes for the array below.
    fn has_set(&self, bits: u32, parent: &Line, access: &Access) {
        if parent.meta.split_half() {
            self.overflow.retire(parent.last_pair().load().link(), access);
        }
        // AcqRel: that they are set, to the last one, and by `release` to whoever finds the array below gone.
        if self.set[bits as usize].fetch_add(1, AcqRel) + 1 < 1 << bits {
            return;
        }
        // SAFETY: who has an item of it is pinned, as all are who ask for one (`Access`), and it is freed when they have left.
        if let Some(array) = unsafe { self.array.release((1 << bits) - 1) } {
            access.guard.defer(move || drop(array));
        }
    }

    /// Lets no cell of a line, or of those that it leads to, change any more.
    fn freeze(&self, line: &Line) {
        for line in self.overflow.chain(line) {
            line.pairs.iter().for_each(AtomicPair::freeze);
        }
    }

    /// There will be no more lines than now: how cells are divided from now on.
    pub(super) fn seal(&self) -> Shape {
        // AcqRel: what the sealer did before, to whoever finds it sealed; and the array in use.
        Shape::of(self.bits.fetch_or(SEALED, AcqRel) & !SEALED)
    }

    /// One of the last lines, set and frozen, when the shard is sealed.
    pub(super) fn frozen(&self, number: u32, access: &Access) -> &Line {
        let Some(line) = self.array.reserved(number) else { unreachable!("nobody doubles them any more") };
        while !line.meta.load().is_set() {
            self.set_line(number, access);
        }
        self.freeze(line);
        line
    }

    /// Asks the processor for one of the last lines.
    pub(super) fn prefetch_last(&self, number: u32) {
        self.array.prefetch(number);
    }

    /// What is in one of the last lines at this moment, but not in further ones.
    pub(super) fn cells<'a>(&'a self, number: u32, _pinned: &'a Access) -> impl Iterator<Item = u32> + use<'a> {
        self.array.reserved(number).into_iter().flat_map(Line::cells).filter(|&cell| cell != 0)
    }

    /// What is in a line and in those that it leads to.
    pub(super) fn all_cells<'a>(&'a self, line: &'a Line) -> impl Iterator<Item = u32> + use<'a> {
        self.overflow.chain(line).flat_map(Line::cells).filter(|&cell| cell != 0)
    }

    /// Cells of the array in use that are not empty.
    #[cfg(test)]
    #[allow(dead_code, reason = "models have other ways to ask")]
    pub(super) fn cell_count(&self) -> usize {
        let lines = Shape::of(self.bits()).lines().filter_map(|number| self.array.reserved(number));
        lines.filter(|line| line.meta.load().is_set()).flat_map(|line| self.all_cells(line)).count()
    }

    /// All lines of the array in use are set, each was counted once, and there is no other array (but those in one segment with the first).
    #[cfg(test)]
    #[allow(dead_code, reason = "models have other ways to ask")]
    pub(super) fn assert_array_alone(&self) {
        let bits = self.bits();
        for before in FIRST_BITS + 1..bits {
            assert!(self.array.reserved(1 << before).is_none(), "{before} of {bits}");
        }
        assert_eq!(self.set[bits as usize].load(Acquire), 1 << bits, "lines are set");
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use super::*;
    use crate::shard::search::CELLS;

    #[test]
    fn a_half_has_what_it_is_given_in_order_and_no_gaps() {
        let given = |len: u32| (1..=len).flat_map(|cell| [cell, 0]);
        for len in [0, 1, CELLS - 1, CELLS, CELLS + 1, 3 * CELLS] {
            let mut half = Half::default();
            given(len).for_each(|cell| half.push(cell));
            let own: Vec<u32> = half.cells.into_iter().filter(|&cell| cell != 0).collect();
            assert_eq!(own.len(), half.len);
            assert_eq!(half.cells[..half.len], own, "there is no gap");
            assert!([own, half.rest].concat().into_iter().eq(1..=len), "of {len}");
        }
    }
}
