//! What the small races share. No locks in here: they would order the threads, and hide races.

#![allow(unreachable_pub, reason = "part of each test binary that needs it")]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// How often to repeat a race: many times if run natively.
pub const ROUNDS: usize = if cfg!(miri) { 1 } else { 200 };

/// Counts its instances, so that a value that is lost or dropped twice shows.
pub struct Counted(Arc<AtomicUsize>);

impl Counted {
    pub fn new(alive: &Arc<AtomicUsize>) -> Self {
        alive.fetch_add(1, Relaxed);
        Self(Arc::clone(alive))
    }
}

impl Clone for Counted {
    fn clone(&self) -> Self {
        Self::new(&self.0)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        assert_ne!(self.0.fetch_sub(1, Relaxed), 0, "dropped twice");
    }
}

/// A key on the heap: a look-up that comes too late would read freed memory.
pub fn key(n: u64) -> String {
    format!("key {n}")
}
