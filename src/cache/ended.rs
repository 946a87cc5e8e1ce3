//! The flag of an entry that has ended. `loom-tests/flags.rs` checks this file.
//!
//! An entry's timer runs before the entry is in the map, so it may end before, and is looked for in vain then. Who takes it
//! out?
//!
//! | who puts the entry in          | who has ended its timer    |
//! |--------------------------------|----------------------------|
//! | 1. puts it into the map        | 1. sets the flag           |
//! | 2. fence                       | 2. fence                   |
//! | 3. the flag is set? takes it   | 3. takes it out if it is   |
//! |    out again                   |    there                   |
//!
//! The two fences are in one order, so at least one side sees the other's step 1; the map decides if both do.

use crate::sync::{AtomicBool, Ordering, fence};

#[derive(Debug, Default)]
pub(super) struct Ended(AtomicBool);

impl Ended {
    /// To be called before looking into the map.
    pub(super) fn set(&self) {
        // Relaxed: the fence orders it; nothing is read on the strength of it but the map.
        self.0.store(true, Ordering::Relaxed);
        // SeqCst: step 2. Pairs with the fence in `is_missed`.
        fence(Ordering::SeqCst);
    }

    /// True if the entry that was just put into the map may have been looked for in vain.
    pub(super) fn is_missed(&self) -> bool {
        // SeqCst: step 2. Pairs with the fence in `set`.
        fence(Ordering::SeqCst);
        self.is_set()
    }

    /// For whoever is ordered with `set` by something else.
    pub(super) fn is_set(&self) -> bool {
        // Relaxed: as in `set`.
        self.0.load(Ordering::Relaxed)
    }
}
