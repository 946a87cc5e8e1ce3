//! A place for one thing at a time, which any thread may take out. `loom-tests/flags.rs` checks this file.

use crate::sync::{AtomicPtr, Ordering};
use std::marker::PhantomData;
use std::ptr;

/// Putting and taking are one exchange each: no thread waits for another, and what was put here is handed out once.
pub(crate) struct Slot<T> {
    /// From a box, or null.
    place: AtomicPtr<T>,
    /// Owns a `T` as a box would: a thread that shares the slot may get what another one has put here.
    owned: PhantomData<T>,
}

// SAFETY: all that a shared slot can do is hand a `T` from one thread to another.
unsafe impl<T: Send> Sync for Slot<T> {}
// SAFETY: it owns what is in it.
unsafe impl<T: Send> Send for Slot<T> {}

impl<T> Slot<T> {
    pub(crate) fn new() -> Self {
        Self { place: AtomicPtr::new(ptr::null_mut()), owned: PhantomData }
    }

    /// Returns what was in the slot before.
    pub(crate) fn put(&self, new: Box<T>) -> Option<Box<T>> {
        self.swap(Box::into_raw(new))
    }

    pub(crate) fn take(&self) -> Option<Box<T>> {
        self.swap(ptr::null_mut())
    }

    /// True if something is there.
    #[allow(dead_code, reason = "no model asks")]
    pub(crate) fn is_occupied(&self) -> bool {
        // Relaxed: only a hint whether to take.
        !self.place.load(Ordering::Relaxed).is_null()
    }

    fn swap(&self, new: *mut T) -> Option<Box<T>> {
        // Release: publishes what is put here. Acquire: observes what was put here, which we take.
        let old = self.place.swap(new, Ordering::AcqRel);
        // SAFETY: it comes from `Box::into_raw` in `put`. The exchange has handed it to us, and no other thread finds
        // it here any more.
        (!old.is_null()).then(|| unsafe { Box::from_raw(old) })
    }
}

impl<T> Drop for Slot<T> {
    fn drop(&mut self) {
        drop(self.take());
    }
}
