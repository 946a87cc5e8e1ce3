//! The lines of the index: an array that doubles while it is in use.
//!
//! A larger array comes beside the old one; its lines are not set. A thread that needs one of them freezes the old line
//! that it comes from, and sets both lines that this old line is split into. What goes into them follows from the
//! frozen line alone, so it does not matter which thread does this, or how many do. A thread that meets a frozen line
//! learns that there are more lines. (Larson, "Dynamic Hash Tables", CACM 31(4), 1988, splits lines in the same way,
//! under locks.) An array whose lines are all split is freed.

use super::Access;
use super::line::{AtomicPair, Cells, LINE_BITS_MAX, Line, Meta, More, Shape};
use super::overflow::Overflow;
use super::search::Pattern;
use super::segments::{SEGMENT_COUNT, Segments};
use crate::sync::size::{CROWDED, FIRST_SEGMENT_BITS, LINE_LOAD};
use crate::sync::{AtomicU32, Ordering};
use Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::Arc;

/// How many lines to get memory for at once: a large page of them.
const POPULATED: u32 = 1 << 15;
const FIRST_BITS: u32 = FIRST_SEGMENT_BITS - 1;
/// Flag in `Lines::bits`: the shard is sealed, and the array does not double any more.
const SEALED: u32 = 1 << 31;

fn is_full(bits: u32, node_count: u32) -> bool {
    bits < LINE_BITS_MAX && node_count > LINE_LOAD << bits
}

/// True if callers should not wait any longer for others to double the array: its lines are crowded, or its cells have
/// no room for the number of `node`.
fn lacks_room(bits: u32, node_count: u32, node: u32) -> bool {
    is_full(bits, node_count / CROWDED) || !Shape::of(bits).holds(node)
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
    array: Segments<Line>,
    pub(super) overflow: Arc<Overflow>,
    /// The bits of the array in use, and the flag `SEALED`.
    bits: AtomicU32,
    /// For each array, by its bits: how many of its lines are set.
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
        // Acquire: observes that there is such an array. If it is an old one by now, its lines are frozen or the array
        // is gone, and the caller notices.
        self.bits.load(Acquire) & !SEALED
    }

    pub(super) fn is_sealed(&self) -> bool {
        // Acquire: observes what the sealer did before.
        self.bits.load(Acquire) & SEALED != 0
    }

    /// The number of lines in the array in use.
    pub(super) fn count(&self) -> u32 {
        1 << self.bits()
    }

    /// Prefetches the line of a hash.
    #[inline]
    pub(super) fn prefetch(&self, hash: u32) {
        self.array.prefetch(Shape::of(self.bits()).line(hash));
    }

    /// The line of a hash, set or not, and its meta word. `None` if the array has just gone.
    #[inline]
    fn as_it_is<'a>(&'a self, hash: u32, _pinned: &'a Access) -> Option<(Home<'a>, Meta)> {
        let shape = Shape::of(self.bits());
        let line = self.array.reserved(shape.line(hash))?;
        Some((Home { line, like: shape.like(hash) }, line.meta.load()))
    }

    /// As `home`, if the line is set and not frozen; else `None`.
    #[inline]
    pub(super) fn home_if_set<'a>(&'a self, hash: u32, access: &'a Access) -> Option<Home<'a>> {
        let (home, meta) = self.as_it_is(hash, access)?;
        meta.is_in_use().then_some(home)
    }

    /// The line of a hash at this moment, and its meta word: the line was set, and not frozen. (In a sealed shard its
    /// pairs may be frozen.)
    #[inline]
    pub(super) fn home<'a>(&'a self, hash: u32, access: &'a Access) -> (Home<'a>, Meta) {
        loop {
            // If the array has gone, there are other bits by now, acquired from `release`; if the line is frozen, from
            // `freeze`.
            let Some((home, meta)) = self.as_it_is(hash, access) else { continue };
            if meta.is_in_use() {
                return (home, meta);
            }
            if !meta.is_set() {
                self.set_line(Shape::of(self.bits()).line(hash), access);
            }
        }
    }

    /// Doubles the array if it lacks room and no other thread has done so; true if this call did.
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

    /// Doubles the array that had these `bits`; false if another thread was faster, or if the shard is sealed.
    fn double(&self, bits: u32) -> bool {
        if bits & SEALED != 0 {
            return false;
        }
        // If that array has come and gone meanwhile, there are other bits by now, and the exchange fails.
        self.array.ensure(2 << bits);
        // Release: publishes that there is such an array.
        self.bits.compare_exchange(bits, bits + 1, Release, Relaxed).is_ok()
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
        self.array.populate(next..end, Line::touch)
    }

    /// Sets up to `limit` lines ahead of the callers, from `next` on. Returns the first line that is left.
    pub(super) fn split_ahead(&self, node_count: u32, next: u32, limit: u32, access: &Access) -> u32 {
        let end = self.end_wanted(node_count).min(next.saturating_add(limit));
        for number in next.max(2 << FIRST_BITS)..end {
            // Acquire: as in `bits`.
            let seen = self.bits.load(Acquire);
            let has_line = |bits: u32| number < 2 << (bits & !SEALED);
            let is_there = has_line(seen) || self.double(seen) || has_line(self.bits());
            // Not reserved: that array has gone, since all lines that come from it are set.
            if is_there && self.array.reserved(number).is_some_and(|line| !line.meta.load().is_set()) {
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
        // only when they have left.
        if let Some(array) = unsafe { self.array.release((1 << bits) - 1) } {
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
        // AcqRel: publishes what the sealer did before, to a thread that finds the shard sealed; and observes the array
        // in use.
        Shape::of(self.bits.fetch_or(SEALED, AcqRel) & !SEALED)
    }

    /// A line of the last array, set and frozen. The shard is sealed.
    pub(super) fn frozen(&self, number: u32, access: &Access) -> &Line {
        let Some(line) = self.array.reserved(number) else { unreachable!("nobody doubles them any more") };
        while !line.meta.load().is_set() {
            self.set_line(number, access);
        }
        self.freeze(line);
        line
    }

    /// Prefetches a line of the last array.
    pub(super) fn prefetch_last(&self, number: u32) {
        self.array.prefetch(number);
    }

    /// The cells in use in a line of the last array at this moment, without those of further lines.
    pub(super) fn cells<'a>(&'a self, number: u32, _pinned: &'a Access) -> impl Iterator<Item = u32> + use<'a> {
        self.array.reserved(number).into_iter().flat_map(Line::cells).filter(|&cell| cell != 0)
    }

    /// The cells in use in a line and in the lines behind it.
    pub(super) fn all_cells<'a>(&'a self, line: &'a Line) -> impl Iterator<Item = u32> + use<'a> {
        self.overflow.chain(line).flat_map(Line::cells).filter(|&cell| cell != 0)
    }

    /// How many cells are not empty, in the array in use and in the lines behind its lines.
    #[cfg(test)]
    #[allow(dead_code, reason = "models have other ways to ask")]
    pub(super) fn cell_count(&self) -> usize {
        let lines = Shape::of(self.bits()).lines().filter_map(|number| self.array.reserved(number));
        lines.filter(|line| line.meta.load().is_set()).flat_map(|line| self.all_cells(line)).count()
    }

    /// Asserts that all lines of the array in use are set, that each was counted once, and that there is no other array
    /// (except those that share a segment with the first).
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
