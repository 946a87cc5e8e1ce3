//! Which array of lines is in use: where its first line is, and how many there are, in one word. So a call by key knows
//! after one load where its line is.

use super::Access;
use super::line::{LINE_BITS_MAX, Line, Shape};
use crate::sync::{AtomicPtr, Ordering, prefetch};
use Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::ptr::NonNull;

/// In the bits of the first line's address that its alignment leaves free: there are `1 << bits` lines.
const BITS: usize = (1 << 5) - 1;
/// The shard is sealed: the array is the last one.
const SEALED: usize = BITS + 1;
const _: () = assert!(LINE_BITS_MAX as usize <= BITS && BITS | SEALED < align_of::<Line>(), "there is room");

/// An array of lines as it was in use at one moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Array(*mut Line);

impl Array {
    fn of(first: NonNull<Line>, bits: u32) -> Self {
        debug_assert!(first.addr().get() & (BITS | SEALED) == 0);
        Self(first.as_ptr().map_addr(|address| address | bits as usize))
    }

    #[inline]
    pub(super) fn shape(self) -> Shape {
        Shape::of((self.0.addr() & BITS) as u32)
    }

    #[inline]
    pub(super) fn is_sealed(self) -> bool {
        self.0.addr() & SEALED != 0
    }

    /// Where the line of a hash is. The array may be gone.
    #[inline]
    fn place(self, hash: u32) -> *mut Line {
        let first = self.0.map_addr(|address| address & !(BITS | SEALED));
        first.wrapping_add(self.shape().offset(hash) as usize)
    }

    /// Prefetches the line of a hash.
    #[inline]
    pub(super) fn prefetch(self, hash: u32) {
        prefetch(self.place(hash));
    }
}

/// The array in use. It only gets larger.
#[derive(Debug)]
pub(super) struct AtomicArray(AtomicPtr<Line>);

impl AtomicArray {
    /// # Safety
    /// From `first` on there are `1 << bits` lines. A thread gives them up only when it knows that a larger array is in
    /// use, and they are not freed before all others have left that were pinned by then.
    pub(super) unsafe fn new(first: NonNull<Line>, bits: u32) -> Self {
        Self(AtomicPtr::new(Array::of(first, bits).0))
    }

    #[inline]
    pub(super) fn load(&self) -> Array {
        // Acquire: observes the array's lines, and what the sealer did before it sealed the shard. If there is a larger
        // array by now, lines that have moved on are frozen, and the caller notices.
        Array(self.0.load(Acquire))
    }

    /// The line of a hash, set or not, and the shape of the array in use.
    #[inline]
    pub(super) fn line<'a>(&'a self, hash: u32, _pinned: &'a Access) -> (Shape, &'a Line) {
        let array = self.load();
        // SAFETY: the line is one of those that `new` or `double` was promised, and it is there until this thread lets
        // go of its guard: it was pinned before the array was given up, or else the load, which follows its pin, would
        // have found the larger array.
        (array.shape(), unsafe { &*array.place(hash) })
    }

    /// Puts an array twice as large in the place of `seen`, which is not sealed. False if that is not in use any more,
    /// or sealed by now.
    ///
    /// # Safety
    /// As for `new`: from `first` on there are twice as many lines as in `seen`.
    pub(super) unsafe fn double(&self, seen: Array, first: NonNull<Line>) -> bool {
        debug_assert!(!seen.is_sealed());
        let larger = Array::of(first, seen.shape().bits() + 1);
        // Release: publishes that there is such an array. Relaxed on failure: the caller looks again.
        self.0.compare_exchange(seen.0, larger.0, Release, Relaxed).is_ok()
    }

    /// From now on the array does not double any more. Returns it.
    pub(super) fn seal(&self) -> Array {
        let mut seen = self.load();
        loop {
            let sealed = seen.0.map_addr(|address| address | SEALED);
            // AcqRel: publishes what the sealer did before, to a thread that finds the shard sealed; and observes the
            // array in use.
            match self.0.compare_exchange(seen.0, sealed, AcqRel, Acquire) {
                Ok(_) => return seen,
                Err(found) => seen = Array(found),
            }
        }
    }
}
