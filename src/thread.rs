//! What the crate knows of the calling thread: its number.

use crate::shard::{Ordinal, Ordinals, SEGMENT_COUNT};
use std::num::NonZero;
use std::ptr::null_mut;
use std::sync::atomic::AtomicPtr;
use std::thread::available_parallelism;

/// More stripes than this cost more memory than they save time.
const STRIPES_MAX: usize = 64;

/// Stripes of what threads share without getting in each other's way much. A power of two, with room for the callers, the
/// workers and those that run callbacks on this machine.
pub(crate) fn stripe_count() -> usize {
    let cores = available_parallelism().map_or(1, NonZero::get);
    (4 * cores).next_power_of_two().min(STRIPES_MAX)
}

static ORDINALS: Ordinals = Ordinals::new([const { AtomicPtr::new(null_mut()) }; SEGMENT_COUNT]);

thread_local! {
    static OWN: Ordinal = ORDINALS.take();
}

/// The calling thread's number.
#[inline]
pub(crate) fn ordinal() -> Ordinal {
    // SAFETY: the thread's own, which it gives back when its thread-locals are destroyed. Whoever calls this uses it in
    // some frame of its stack; that frame is gone by then, or was entered by the destructor of another thread-local, which
    // is over before ours is destroyed or begins after that.
    let own = OWN.try_with(|own| unsafe { Ordinal::assume(own.number()) });
    // A thread in its last breath, without locals, takes a number for this one call.
    own.unwrap_or_else(|_| ORDINALS.take())
}
