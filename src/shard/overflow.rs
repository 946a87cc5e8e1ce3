//! Further lines, for timers that have no room in their own line: a few that lie too close together, or many of one
//! hash.
//!
//! A line's link counts the timers in the lines behind it. The count is raised before a timer goes in there, and
//! lowered after one has left, or has found no room. So the same exchange that lowers the count to zero takes the line
//! out. The line is used again after the grace period.

use super::Access;
use super::line::{Cells, Line, More};
use super::search::CELLS;
use super::segments::Segments;
use crate::sync::{AtomicU32, Ordering};
use Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::{Arc, Weak};

pub(super) struct Overflow {
    lines: Segments<Line>,
    /// Lines handed out so far, including line 0, which is none.
    extent: AtomicU32,
    /// The first line that is not in use; each one holds the number of the next. (No tag is needed: see `ChainList` in
    /// `reuse.rs`.)
    free: AtomicU32,
}

impl Overflow {
    pub(super) fn new() -> Self {
        Self { lines: Segments::new(), extent: AtomicU32::new(1), free: AtomicU32::new(0) }
    }

    #[inline]
    pub(super) fn at(&self, line: u32) -> &Line {
        self.lines.at(line)
    }

    /// A line and the lines behind it. A line's link is read only when the next line is asked for, so the caller may
    /// freeze each line before that.
    pub(super) fn chain<'a>(&'a self, first: &'a Line) -> impl Iterator<Item = &'a Line> {
        let mut before: Option<&Line> = None;
        std::iter::from_fn(move || {
            let line = match before {
                None => first,
                Some(before) => self.at(before.last_pair().load().link().line()?),
            };
            before = Some(line);
            before
        })
    }

    /// Builds lines with `cells` in them that no other thread knows of. `None` if no line is left; or, with
    /// `keeps_some`, if the only lines left are those kept for timers that are in the index already.
    pub(super) fn build(&self, cells: &[u32], keeps_some: bool, access: &Access) -> Option<More> {
        // From the last line to the first, since each names the next one.
        cells.chunks(CELLS as usize).rev().try_fold(More::NONE, |rest, cells| {
            let number = self.take(keeps_some, access)?;
            let line = self.lines.reserve(number);
            line.reset();
            let mut own = Cells::default();
            own[..cells.len()].copy_from_slice(cells);
            line.set_cells(&own, rest);
            Some(More::new(number, cells.len() + rest.count_at_least()))
        })
    }

    fn take(&self, keeps_some: bool, _pinned: &Access) -> Option<u32> {
        // Acquire: observes what is in the first line.
        let mut first = self.free.load(Acquire);
        while first != 0 {
            // Garbage if the line is not the first any more; then the exchange fails.
            let next = self.at(first).load_number();
            match self.free.compare_exchange(first, next, AcqRel, Acquire) {
                Ok(_) => return Some(first),
                Err(found) => first = found,
            }
        }
        let end = if keeps_some { More::LINE_NUMBERS / 2 } else { More::LINE_NUMBERS };
        // Relaxed: only a number; the line is published by the thread that links it in.
        self.extent.fetch_update(Relaxed, Relaxed, |line| (line < end).then_some(line + 1)).ok()
    }

    /// The line, and those behind it, are no longer linked: they are used again when no thread can be looking at them.
    pub(super) fn retire(self: &Arc<Self>, more: More, access: &Access) {
        let mut more = more;
        while let Some(number) = more.line() {
            more = self.at(number).last_pair().load().link();
            let overflow: Weak<Self> = Arc::downgrade(self);
            access.guard.defer(move || {
                if let Some(overflow) = overflow.upgrade() {
                    overflow.give_back(number);
                }
            });
        }
    }

    /// Lines that are linked, or wait for the end of their grace period. Call it only while no other thread is active.
    #[cfg(test)]
    #[allow(dead_code, reason = "models have other ways to ask")]
    pub(super) fn lines_in_use(&self) -> u32 {
        let next = |&line: &u32| Some(self.at(line).load_number()).filter(|&line| line != 0);
        let first = Some(self.free.load(Acquire)).filter(|&line| line != 0);
        let extent = self.extent.load(Relaxed);
        // If one was given back twice, the list has no end.
        let free = std::iter::successors(first, next).take(extent as usize).count() as u32;
        (extent - 1).checked_sub(free).expect("each is in the list once")
    }

    /// Makes it look as if all lines were in use except those that are kept.
    #[cfg(test)]
    #[allow(dead_code, reason = "models have other ways to ask")]
    pub(super) fn use_up(&self) {
        self.extent.store(More::LINE_NUMBERS / 2, Relaxed);
    }

    fn give_back(&self, number: u32) {
        let line = self.at(number);
        // Relaxed, also on failure: only an expectation for the exchange.
        let mut first = self.free.load(Relaxed);
        loop {
            line.store_number(first);
            // Release: publishes the number, and the last uses of the line.
            match self.free.compare_exchange(first, number, Release, Relaxed) {
                Ok(_) => return,
                Err(found) => first = found,
            }
        }
    }
}
