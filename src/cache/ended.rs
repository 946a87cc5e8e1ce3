//! The flag of an entry that has ended. `loom-tests/flags.rs` checks this file.
//!
//! An entry's timer starts before the entry is in the map. So it may end before, too, and the entry is looked for in
//! vain. Which thread takes it out then?
//!
//! | the one that puts the entry in | the one that has ended its timer |
//! |--------------------------------|----------------------------------|
//! | 1. puts it into the map        | 1. sets the flag                 |
//! | 2. fence                       | 2. fence                         |
//! | 3. the flag is set? takes it   | 3. takes it out if it is there   |
//! |    out again                   |                                  |
//!
//! The two fences have one order, so at least one side sees the other's step 1; if both do, the map decides.

use crate::sync::{AtomicBool, Ordering, fence};

#[derive(Debug, Default)]
pub(super) struct Ended(AtomicBool);

impl Ended {
    /// Call it before looking into the map.
    pub(super) fn set(&self) {
        // Relaxed: the fence orders it; nothing but the map is read on the strength of it.
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

    /// For callers that something else orders with `set`.
    pub(super) fn is_set(&self) -> bool {
        // Relaxed: as in `set`.
        self.0.load(Ordering::Relaxed)
    }
}
