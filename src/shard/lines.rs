//! The lines of the index: an array that doubles while it is in use.
//!
//! A larger array comes beside the old one; its lines are not set. A thread that needs one of them freezes the old line
//! that it comes from, and sets both lines that this old line is split into. What goes into them follows from the
//! frozen line alone, so it does not matter which thread does this, or how many do. A thread that meets a frozen line
//! learns that there are more lines. (Larson, "Dynamic Hash Tables", CACM 31(4), 1988, splits lines in the same way,
//! under locks.) An array whose lines are all split is freed.

use super::Access;
use super::array::{Array, AtomicArray};
use super::line::{AtomicPair, Cells, LINE_BITS_MAX, Line, Meta, More, Shape};
use super::overflow::Overflow;
use super::search::Pattern;
use super::segments::{SEGMENT_COUNT, Segments};
use crate::sync::size::{FIRST_SEGMENT_BITS, LINE_LOAD};
use crate::sync::{AtomicU32, Ordering};
use Ordering::AcqRel;
use std::sync::Arc;

/// How many lines to get memory for at once: a large page of them.
const POPULATED: u32 = 1 << 15;
const FIRST_BITS: u32 = FIRST_SEGMENT_BITS - 1;

fn is_full(bits: u32, node_count: u32) -> bool {
    bits < LINE_BITS_MAX && node_count > LINE_LOAD << bits
}

/// The line of a hash, for as long as the caller is pinned.
#[derive(Clone, Copy)]
pub(super) struct Home<'a> {
    pub(super) line: &'a Line,
    /// Matches the cells of the hash's tag.
    pub(super) like: Pattern,
}

impl Home<'_> {
    /// The cell for a node of this hash, if it has room for the number.
    #[inline]
    pub(super) fn cell(self, node: u32) -> Option<u32> {
        (node & self.like.mask == 0).then_some(self.like.cell | node)
    }

    #[inline]
    pub(super) fn node(self, cell: u32) -> u32 {
        cell & !self.like.mask
    }
}

/// One of the two lines that a line is split into: its cells, and those for which it has no room.
#[derive(Default)]
struct Half {
    cells: Cells,
    len: usize,
    rest: Vec<u32>,
}

impl Half {
    /// Skips an empty cell. No processor could guess which cells are empty, so this is not a branch as long as there is
    /// room.
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
    /// Of all arrays.
    segments: Segments<Line>,
    array: AtomicArray,
    pub(super) overflow: Arc<Overflow>,
    /// For each array, by its bits: how many of its lines are set.
    set: [AtomicU32; SEGMENT_COUNT],
}

impl Lines {
    pub(super) fn new() -> Self {
        let segments = Segments::<Line>::new();
        for number in 1 << FIRST_BITS..2 << FIRST_BITS {
            let line = segments.reserve(number);
            line.set_cells(&Cells::default(), More::NONE);
            line.meta.set(0);
        }
        let first = segments.reserve_from(1 << FIRST_BITS).expect("it was not released");
        Self {
            segments,
            // SAFETY: these lines have one number after the other, with the same leading bit. `has_set` frees arrays.
            array: unsafe { AtomicArray::new(first, FIRST_BITS) },
            overflow: Arc::new(Overflow::new()),
            set: std::array::from_fn(|_| AtomicU32::new(0)),
        }
    }

    fn bits(&self) -> u32 {
        self.array.load().shape().bits()
    }

    pub(super) fn is_sealed(&self) -> bool {
        self.array.load().is_sealed()
    }

    /// The number of lines in the array in use.
    pub(super) fn count(&self) -> u32 {
        1 << self.bits()
    }

    /// Prefetches the line of a hash.
    #[inline]
    pub(super) fn prefetch(&self, hash: u32) {
        self.array.load().prefetch(hash);
    }

    /// As `home`, if the line is set and not frozen; else `None`.
    #[inline]
    pub(super) fn home_if_set<'a>(&'a self, hash: u32, access: &'a Access) -> Option<Home<'a>> {
        let (shape, line) = self.array.line(hash, access);
        line.meta.load().is_in_use().then(|| Home { line, like: shape.like(hash) })
    }

    /// The line of a hash at this moment, and its meta word: the line was set, and not frozen. (In a sealed shard its
    /// pairs may be frozen.)
    #[inline]
    pub(super) fn home<'a>(&'a self, hash: u32, access: &'a Access) -> (Home<'a>, Meta) {
        loop {
            let (shape, line) = self.array.line(hash, access);
            let meta = line.meta.load();
            if meta.is_in_use() {
                return (Home { line, like: shape.like(hash) }, meta);
            }
            // If it is frozen, there is a larger array by now, acquired from `freeze`.
            if !meta.is_set() {
                self.set_line(shape.line(hash), access);
            }
        }
    }

    /// Doubles the array until its cells have room for the number of `node`, or the shard is sealed. True if this call
    /// did so, rather than another thread.
    #[cold]
    pub(super) fn make_room(&self, node: u32) -> bool {
        let mut has_grown = false;
        loop {
            let array = self.array.load();
            if array.is_sealed() || array.shape().holds(node) {
                return has_grown;
            }
            has_grown |= self.double(array);
        }
    }

    /// Doubles the array; false if another thread was faster, or if the shard is sealed.
    fn double(&self, seen: Array) -> bool {
        if seen.is_sealed() {
            return false;
        }
        // If that array has come and gone meanwhile, there is a larger one in use.
        let first = self.segments.reserve_from(2 << seen.shape().bits());
        // SAFETY: as in `new`.
        first.is_some_and(|first| unsafe { self.array.double(seen, first) })
    }

    /// One more than the number of the last line that there should be.
    pub(super) fn end_wanted(&self, node_count: u32) -> u32 {
        let bits = self.bits();
        2 << (bits + u32::from(is_full(bits, node_count)))
    }

    /// True if callers lack lines already when those before `next` are set: then they set lines themselves.
    pub(super) fn lacks(&self, next: u32) -> bool {
        next < 2 << self.bits()
    }

    /// Makes the system put memory behind lines that there should be, from `next` on. Returns the first line that is
    /// left.
    pub(super) fn populate(&self, node_count: u32, next: u32, _pinned: &Access) -> u32 {
        let end = self.end_wanted(node_count).min(next.saturating_add(POPULATED));
        self.segments.populate(next..end, Line::touch)
    }

    /// Sets up to `limit` lines ahead of the callers, from `next` on. Returns the first line that is left.
    pub(super) fn split_ahead(&self, node_count: u32, next: u32, limit: u32, access: &Access) -> u32 {
        let end = self.end_wanted(node_count).min(next.saturating_add(limit));
        for number in next.max(2 << FIRST_BITS)..end {
            let seen = self.array.load();
            let has_line = |array: Array| array.shape().lines().end > number;
            let is_there = has_line(seen) || self.double(seen) || has_line(self.array.load());
            // Not reserved: that array has gone, since all lines that come from it are set.
            if is_there && self.segments.reserved(number).is_some_and(|line| !line.meta.load().is_set()) {
                self.set_line(number, access);
            }
        }
        end
    }

    /// Sets a line, and the other line that comes from the same old one; but first that old one, if it is not set.
    #[cold]
    fn set_line(&self, number: u32, access: &Access) {
        let parent = number / 2;
        // `None`: its array was freed, so all lines that come from it are set.
        let Some(line) = self.segments.reserved(parent) else { return };
        if !line.meta.load().is_set() {
            self.set_line(parent, access);
        }
        let bits = number.ilog2();
        let shape = Shape::of(bits - 1);
        let version = line.meta.freeze().version();
        self.freeze(line);
        for (child, half) in (0..).zip(&self.halves(line, shape)) {
            let Some(new) = self.segments.reserved(2 * parent + child) else { return };
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

    /// What a frozen line is split into. Every caller gets the same cells in the same places.
    fn halves(&self, line: &Line, shape: Shape) -> [Half; 2] {
        let mut halves = <[Half; 2]>::default();
        for cell in self.overflow.chain(line).flat_map(Line::cells) {
            let (to, cell) = shape.split(cell);
            halves[to as usize].push(cell);
        }
        halves
    }

    /// We have set a line of the array with these `bits`; it comes from `parent`. When both lines that come from
    /// `parent` are set, no thread goes to the further lines behind `parent` any more. When all lines of the array are
    /// set, no thread goes to the array below.
    fn has_set(&self, bits: u32, parent: &Line, access: &Access) {
        if parent.meta.split_half() {
            self.overflow.retire(parent.last_pair().load().link(), access);
        }
        // AcqRel: publishes that they are set, to the thread that counts the last one; and by `release`, to a thread
        // that finds the array below gone.
        if self.set[bits as usize].fetch_add(1, AcqRel) + 1 < 1 << bits {
            return;
        }
        // SAFETY: a thread that uses an item of it is pinned, as all are that ask for one (`Access`); and it is freed
        // only when they have left. Who is pinned later finds the larger array in use, from which this thread has the
        // line's number.
        if let Some(array) = unsafe { self.segments.release((1 << bits) - 1) } {
            access.guard.defer(move || drop(array));
        }
    }

    /// Forbids any further change to the cells of a line and of the lines behind it.
    fn freeze(&self, line: &Line) {
        for line in self.overflow.chain(line) {
            line.pairs.iter().for_each(AtomicPair::freeze);
        }
    }

    /// No lines are added from now on. Returns how cells are divided for good.
    pub(super) fn seal(&self) -> Shape {
        self.array.seal().shape()
    }

    /// A line of the last array, set and frozen. The shard is sealed.
    pub(super) fn frozen(&self, number: u32, access: &Access) -> &Line {
        let Some(line) = self.segments.reserved(number) else { unreachable!("nobody doubles them any more") };
        while !line.meta.load().is_set() {
            self.set_line(number, access);
        }
        self.freeze(line);
        line
    }

    /// Prefetches a line of the last array.
    pub(super) fn prefetch_last(&self, number: u32) {
        self.segments.prefetch(number);
    }

    /// The cells in use in a line of the last array at this moment, without those of further lines.
    pub(super) fn cells<'a>(&'a self, number: u32, _pinned: &'a Access) -> impl Iterator<Item = u32> + use<'a> {
        self.segments.reserved(number).into_iter().flat_map(Line::cells).filter(|&cell| cell != 0)
    }

    /// The cells in use in a line and in the lines behind it.
    pub(super) fn all_cells<'a>(&'a self, line: &'a Line) -> impl Iterator<Item = u32> + use<'a> {
        self.overflow.chain(line).flat_map(Line::cells).filter(|&cell| cell != 0)
    }

    /// How many cells are not empty, in the array in use and in the lines behind its lines.
    #[cfg(test)]
    #[allow(dead_code, reason = "models have other ways to ask")]
    pub(super) fn cell_count(&self) -> usize {
        let lines = Shape::of(self.bits()).lines().filter_map(|number| self.segments.reserved(number));
        lines.filter(|line| line.meta.load().is_set()).flat_map(|line| self.all_cells(line)).count()
    }

    /// Asserts that all lines of the array in use are set, that each was counted once, and that there is no other array
    /// (except those that share a segment with the first).
    #[cfg(test)]
    #[allow(dead_code, reason = "models have other ways to ask")]
    pub(super) fn assert_array_alone(&self) {
        let bits = self.bits();
        for before in FIRST_BITS + 1..bits {
            assert!(self.segments.reserved(1 << before).is_none(), "{before} of {bits}");
        }
        assert_eq!(self.set[bits as usize].load(Ordering::Acquire), 1 << bits, "lines are set");
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
