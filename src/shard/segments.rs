//! An array that grows from any thread without ever moving an item.
//!
//! The first segment holds `1 << FIRST_SEGMENT_BITS` items, and each further one as many as all before it. So each
//! further segment begins at an index that is a power of two, as each doubling of the index's lines does. A segment is
//! allocated by the thread that needs it first. It stays until the array is dropped, or until it is released, once and
//! for all. Its memory comes zeroed and costs nothing until it is touched. Growing copies nothing, so no call pays for
//! the whole.

use super::hint::NODE_BITS;
use crate::sync::size::FIRST_SEGMENT_BITS;
pub(crate) use crate::sync::size::SEGMENT_COUNT;
use crate::sync::{AtomicPtr, AtomicU64, Ordering, memory, prefetch};
use std::ops::Range;
use std::ptr::{self, NonNull};

/// Types for which memory of zeroes is the default value.
///
/// # Safety
/// All-zero bytes must be a valid value, equal to `Self::default()`.
pub(crate) unsafe trait Zeroed: Default {}

// SAFETY: an atomic, whose default is zero.
unsafe impl Zeroed for AtomicU64 {}

/// How many items an array has room for.
pub(crate) const LEN_MAX: u32 = 1 << NODE_BITS;
/// The first segment in use. It also holds all indexes with fewer than `FIRST_SEGMENT_BITS` bits.
const FIRST: usize = FIRST_SEGMENT_BITS as usize - 1;

/// In place of the pointer to a segment: it was released. (Null: it has not been allocated yet.)
const RELEASED: usize = 1;

#[derive(Debug)]
pub(crate) struct Segments<T: Zeroed> {
    segments: [AtomicPtr<T>; SEGMENT_COUNT],
}

// SAFETY: the array owns its items and hands out only shared references to them.
unsafe impl<T: Zeroed + Send> Send for Segments<T> {}
// SAFETY: as above; all that `&Segments` gives away is `&T`.
unsafe impl<T: Zeroed + Sync> Sync for Segments<T> {}

/// Where the item `index` lies: its segment, and its offset in there. All indexes in a segment have the same leading
/// bit, and the other bits are the offset. In the first segment the two halves are swapped, so that the same
/// computation serves it, too.
#[inline]
const fn locate(index: u32) -> (usize, usize) {
    let leading_bit = (index | 1 << FIRST).ilog2();
    (leading_bit as usize, (index ^ (1 << leading_bit)) as usize)
}

/// Items in a segment.
#[inline]
const fn segment_len(segment: usize) -> usize {
    if segment == FIRST { 2 << FIRST } else { 1 << segment }
}

/// A segment's items, if they are there.
#[inline]
fn there<T>(items: *mut T) -> Option<NonNull<T>> {
    NonNull::new(items).filter(|items| items.addr().get() > RELEASED)
}

/// A function of its own, so that its callers need not keep the index in memory for the message.
#[cold]
fn fail_unreserved(index: u32) -> ! {
    panic!("index {index} is not reserved")
}

/// A segment that was taken out of its array; freed when it is dropped.
#[derive(Debug)]
pub(crate) struct Released<T> {
    items: *mut T,
    len: usize,
}

// SAFETY: it only frees the items' memory, when no thread uses them any more.
unsafe impl<T: Send> Send for Released<T> {}

impl<T> Drop for Released<T> {
    fn drop(&mut self) {
        // SAFETY: allocated with this length in `Segments::allocate`; no thread uses it any more, as the caller of
        // `release` promised.
        unsafe { memory::free(self.items, self.len) };
    }
}

impl<T: Zeroed> Segments<T> {
    pub(crate) fn new() -> Self {
        Self::of(std::array::from_fn(|_| AtomicPtr::new(ptr::null_mut())))
    }

    /// For statics, of which a model has none. All `segments` must be null.
    pub(crate) const fn of(segments: [AtomicPtr<T>; SEGMENT_COUNT]) -> Self {
        Self { segments }
    }

    /// The item `index`, which somebody has reserved before.
    #[inline]
    pub(crate) fn at(&self, index: u32) -> &T {
        let (segment, offset) = locate(index);
        // Relaxed: a thread that knows the index acquired it, directly or through others, from the thread that reserved
        // it.
        let items = there(self.segments[segment].load(Ordering::Relaxed)).unwrap_or_else(|| fail_unreserved(index));
        // SAFETY: a segment that is there holds `segment_len(segment) > offset` items until `self` is dropped; if it is
        // released, for as long as the caller of `release` promised.
        unsafe { items.add(offset).as_ref() }
    }

    /// The item `index`, if its segment is there: reserved by somebody, and not released.
    #[inline]
    pub(crate) fn reserved(&self, index: u32) -> Option<&T> {
        let (segment, offset) = locate(index);
        // Acquire: as in `reserve_segment`; and if the segment was released, observes what led to that.
        let items = there(self.segments[segment].load(Ordering::Acquire))?;
        // SAFETY: as in `at`.
        Some(unsafe { items.add(offset).as_ref() })
    }

    /// Prefetches the item `index`, if it is there.
    #[inline]
    pub(crate) fn prefetch(&self, index: u32) {
        let (segment, offset) = locate(index);
        // Relaxed: nothing is read through it.
        let items = self.segments[segment].load(Ordering::Relaxed);
        prefetch(items.wrapping_add(offset));
    }

    /// Takes the segment of `index` out, once and for all: it is never reserved again. `None` if it is not there; or if
    /// it is the first segment, which holds indexes of several lengths.
    ///
    /// # Safety
    /// The only items of this segment that may be in use are those that `reserved` or `reserve_from` returned; and none
    /// may be in use when the returned value is dropped.
    pub(crate) unsafe fn release(&self, index: u32) -> Option<Released<T>> {
        let (segment, _) = locate(index);
        if segment == FIRST {
            return None;
        }
        // Relaxed: the items are not looked at.
        let items = there(self.segments[segment].load(Ordering::Relaxed))?.as_ptr();
        // Release: publishes what the caller did before, to a thread that finds the segment gone.
        self.segments[segment]
            .compare_exchange(items, ptr::without_provenance_mut(RELEASED), Ordering::Release, Ordering::Relaxed)
            .ok()?;
        Some(Released { items, len: segment_len(segment) })
    }

    /// The item `index`, which was not released; allocates its segment if need be.
    #[inline]
    pub(crate) fn reserve(&self, index: u32) -> &T {
        let (segment, offset) = locate(index);
        // Acquire: as in `reserve_segment`.
        let items = there(self.segments[segment].load(Ordering::Acquire)).unwrap_or_else(|| self.allocate_for(segment));
        // SAFETY: as in `at`.
        unsafe { items.add(offset).as_ref() }
    }

    #[cold]
    fn allocate_for(&self, segment: usize) -> NonNull<T> {
        self.allocate(segment).expect("it was not released")
    }

    /// The item `index`, and all further ones whose numbers have the same leading bit; allocates their segment if need
    /// be. `None` if it was released.
    pub(crate) fn reserve_from(&self, index: u32) -> Option<NonNull<T>> {
        let (segment, offset) = locate(index);
        // SAFETY: as in `at`.
        self.reserve_segment(segment).map(|items| unsafe { items.add(offset) })
    }

    /// The segment's items; `None` if it was released.
    #[inline]
    fn reserve_segment(&self, segment: usize) -> Option<NonNull<T>> {
        // Acquire: pairs with the Release in `allocate`, so that the items are seen initialised.
        there(self.segments[segment].load(Ordering::Acquire)).or_else(|| self.allocate(segment))
    }

    /// Makes the system put memory behind the items of `indexes`, as far as they lie in the segment of the first one.
    /// Returns the end of what was done. Items are then reserved and used as ever, but without a wait for the system.
    /// `touch` writes to an item without changing it. Does nothing for a segment that was released. If the segment may
    /// be released meanwhile, the caller must be pinned, as for `reserved`.
    pub(crate) fn populate(&self, indexes: Range<u32>, touch: impl Fn(&T)) -> u32 {
        let (segment, offset) = locate(indexes.start);
        let len = segment_len(segment);
        if segment == FIRST {
            // The first segment is too small to be worth it.
            return indexes.end.min(len as u32);
        }
        let count = (len - offset).min(indexes.len());
        if let Some(items) = self.reserve_segment(segment) {
            // SAFETY: the segment was `allocate`d with this length, and stays as in `at`; `offset + count` is at most
            // that length.
            unsafe { memory::populate(items.as_ptr(), len, offset..offset + count, touch) };
        }
        indexes.start + count as u32
    }

    /// All items in segments that are there.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.segments.iter().enumerate().flat_map(|(segment, slot)| {
            // Acquire: as in `reserve_segment`.
            let items = slot.load(Ordering::Acquire);
            let len = there(items).map_or(0, |_| segment_len(segment));
            // SAFETY: as in `at`.
            (0..len).map(move |offset| unsafe { &*items.add(offset) })
        })
    }

    /// Installs a new segment, or takes the one that another thread installed meanwhile; `None` if it was released.
    #[cold]
    fn allocate(&self, segment: usize) -> Option<NonNull<T>> {
        let slot = &self.segments[segment];
        // Relaxed: only this mark is read, and it never changes again.
        if slot.load(Ordering::Relaxed).addr() == RELEASED {
            return None;
        }
        // SAFETY: `T: Zeroed`.
        let fresh = unsafe { memory::allocate::<T>(segment_len(segment)) };
        // Release: publishes the initialised items to the Acquire loads above.
        // Acquire on failure: we go on with the other thread's items.
        match slot.compare_exchange(ptr::null_mut(), fresh, Ordering::Release, Ordering::Acquire) {
            Ok(_) => there(fresh),
            Err(winner) => {
                // SAFETY: `fresh` was allocated above with this length and nobody else has seen it.
                unsafe { memory::free(fresh, segment_len(segment)) };
                there(winner)
            }
        }
    }
}

impl<T: Zeroed> Drop for Segments<T> {
    fn drop(&mut self) {
        const { assert!(!std::mem::needs_drop::<T>(), "items are freed, not dropped") };
        for (segment, slot) in self.segments.iter_mut().enumerate() {
            // Relaxed: we have `&mut self`, and whatever gave us that ordered all accesses before.
            if let Some(items) = there(slot.load(Ordering::Relaxed)) {
                // SAFETY: allocated with this length in `allocate`, and nobody can use it any more.
                unsafe { memory::free(items.as_ptr(), segment_len(segment)) };
            }
        }
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use super::*;

    #[test]
    fn indexes_fill_the_segments_without_gap_or_overlap() {
        let first = 1 << FIRST_SEGMENT_BITS;
        let mut places: Vec<_> = (0..first).map(locate).collect();
        places.sort_unstable();
        assert!(places.into_iter().eq((0..segment_len(FIRST)).map(|offset| (FIRST, offset))));
        let mut expected = (FIRST + 1, 0);
        for index in first..10_000 {
            assert_eq!(locate(index), expected);
            expected.1 += 1;
            if expected.1 == segment_len(expected.0) {
                expected = (expected.0 + 1, 0);
            }
        }
        let last = NODE_BITS as usize - 1;
        assert_eq!(locate(LEN_MAX - 1), (last, segment_len(last) - 1));
    }

    #[test]
    fn items_start_zeroed_keep_their_place_and_are_aligned() {
        let array = Segments::<AtomicU64>::new();
        let first = ptr::from_ref(array.reserve(0));
        for index in 0..5_000 {
            let item = array.reserve(index);
            assert!(!index.is_power_of_two() || index < 64 || ptr::from_ref(item).addr().is_multiple_of(64));
            assert_eq!(item.load(Ordering::Relaxed), 0);
            item.store(u64::from(index), Ordering::Relaxed);
        }
        assert_eq!(ptr::from_ref(array.at(0)), first);
        assert!((0..5_000).all(|index| array.at(index).load(Ordering::Relaxed) == u64::from(index)));
        let mut items: Vec<u64> = array.iter().map(|item| item.load(Ordering::Relaxed)).collect();
        items.sort_unstable();
        assert!(items.into_iter().skip_while(|&item| item == 0).eq(1..5_000));
    }

    #[test]
    fn what_was_released_is_gone_for_good() {
        let array = Segments::<AtomicU64>::new();
        let (released, other) = (1 << FIRST_SEGMENT_BITS, 2 << FIRST_SEGMENT_BITS);
        // SAFETY: here and below, nobody uses an item of it afterwards.
        assert!(unsafe { array.release(released) }.is_none(), "there is nothing yet");
        array.reserve(released).store(7, Ordering::Relaxed);
        array.reserve(other).store(8, Ordering::Relaxed);
        // SAFETY: as above.
        let segment = unsafe { array.release(released + 1) }.expect("it is there");
        assert!(segment.len == released as usize && array.reserved(released).is_none());
        // SAFETY: as above.
        assert!(unsafe { array.release(released) }.is_none(), "once");
        assert_eq!(array.reserve_from(released), None);
        assert_eq!(array.populate(released..other + 1, |_| panic!("there is no memory")), other);
        assert!(array.reserved(released).is_none() && array.iter().all(|item| item.load(Ordering::Relaxed) != 7));
        assert_eq!(array.at(other).load(Ordering::Relaxed), 8);
        // SAFETY: as above.
        assert!(unsafe { array.release(1) }.is_none(), "the first one stays");
    }
}
