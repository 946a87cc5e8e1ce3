//! A place for one thing at a time, which goes to whoever takes it. `loom-tests/flags.rs` checks this file.

use crate::sync::{AtomicPtr, Ordering};
use std::marker::PhantomData;
use std::ptr;

/// Each exchange is a single step: nobody waits for anybody, and what was put here is handed out once.
pub(crate) struct Slot<T> {
    /// Of a box, or null.
    place: AtomicPtr<T>,
    /// As if it were the box: whoever shares the slot may get what another thread has put here.
    owned: PhantomData<T>,
}

// SAFETY: all that a shared slot allows is to hand a `T` over, from one thread to another.
unsafe impl<T: Send> Sync for Slot<T> {}
// SAFETY: it owns what is in it.
unsafe impl<T: Send> Send for Slot<T> {}

impl<T> Slot<T> {
    pub(crate) fn new() -> Self {
        Self { place: AtomicPtr::new(ptr::null_mut()), owned: PhantomData }
    }

    /// What was there before comes back.
    pub(crate) fn put(&self, new: Box<T>) -> Option<Box<T>> {
        self.swap(Box::into_raw(new))
    }

    pub(crate) fn take(&self) -> Option<Box<T>> {
        self.swap(ptr::null_mut())
    }

    fn swap(&self, new: *mut T) -> Option<Box<T>> {
        // Release: what is put here, to the Acquire of whoever takes it.
        let old = self.place.swap(new, Ordering::AcqRel);
        // SAFETY: it comes from `Box::into_raw` in `put`; the exchange has handed it to us, and nobody else finds it here any more.
        (!old.is_null()).then(|| unsafe { Box::from_raw(old) })
    }
}

impl<T> Drop for Slot<T> {
    fn drop(&mut self) {
        drop(self.take());
    }
}
