//! A small number for each thread that no other thread has at the same time.
//!
//! What is kept under a number belongs to one thread at a time: that thread changes it without read-modify-writes, and
//! without atomics if no other thread reads it. When a thread ends, its number, and what is kept under it, goes to the
//! next thread that takes this number. A thread takes the lowest free number, so arrays indexed by numbers are no
//! longer than the largest number of threads alive at a time.

use super::segments::Segments;
use crate::sync::{AtomicPtr, AtomicU64, Ordering};
use std::marker::PhantomData;

/// The numbers taken: one bit each.
#[derive(Debug)]
pub(crate) struct Ordinals(Segments<AtomicU64>);

/// A number that only its holder has. It stays on the holder's thread.
#[derive(Debug)]
pub(crate) struct Ordinal {
    number: u32,
    /// Gives the number back when dropped.
    taken_from: Option<&'static Ordinals>,
    not_send: PhantomData<*const ()>,
}

impl Ordinals {
    /// All free. `segments` are null.
    pub(crate) const fn new(segments: [AtomicPtr<AtomicU64>; super::segments::SEGMENT_COUNT]) -> Self {
        Self(Segments::of(segments))
    }

    /// Takes the lowest number that is free. Lock-free; O(threads alive / 64).
    pub(crate) fn take(&'static self) -> Ordinal {
        let number = (0..).find_map(|index| self.take_from(index)).expect("there are fewer threads than numbers");
        Ordinal { number, taken_from: Some(self), not_send: PhantomData }
    }

    fn take_from(&self, index: u32) -> Option<u32> {
        let word = self.0.reserve(index);
        // Relaxed: only an expectation for the exchange.
        let mut seen = word.load(Ordering::Relaxed);
        while seen != u64::MAX {
            let bit = (!seen).trailing_zeros();
            // Acquire: pairs with the Release in `give_back`, and so observes what the number's last holder did to what
            // is kept under it. (Holders of other numbers change the word in between, but by read-modify-writes, which
            // carry the release on.)
            // Relaxed on failure: as above.
            match word.compare_exchange(seen, seen | 1 << bit, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => return Some(index * u64::BITS + bit),
                Err(found) => seen = found,
            }
        }
        None
    }

    fn give_back(&self, number: u32) {
        // Release: pairs with the Acquire in `take_from`.
        self.0.reserve(number / u64::BITS).fetch_and(!(1 << (number % u64::BITS)), Ordering::Release);
    }
}

impl Ordinal {
    /// Another handle to a number that the calling thread holds already; it does not give the number back.
    ///
    /// # Safety
    /// The number must be the calling thread's, and remain so for as long as the result is kept.
    #[inline]
    pub(crate) unsafe fn assume(number: u32) -> Self {
        Self { number, taken_from: None, not_send: PhantomData }
    }

    #[inline]
    pub(crate) fn number(&self) -> u32 {
        self.number
    }

    /// True for a number that goes back with this handle.
    #[cfg(all(test, not(feature = "loom")))]
    pub(crate) fn is_passing(&self) -> bool {
        self.taken_from.is_some()
    }

    /// The thread's choice among `count` stripes, a power of two; several threads may share a stripe.
    #[inline]
    pub(crate) fn stripe(&self, count: usize) -> usize {
        debug_assert!(count.is_power_of_two());
        self.number as usize & (count - 1)
    }
}

impl Drop for Ordinal {
    #[inline]
    fn drop(&mut self) {
        if let Some(ordinals) = self.taken_from {
            ordinals.give_back(self.number);
        }
    }
}
