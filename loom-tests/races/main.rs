//! The races of callers, worker and the end of a shard.

#[path = "../../src/shard/mod.rs"]
#[allow(dead_code, unused_imports, reason = "a model uses a part of the shard")]
mod shard;
#[allow(dead_code, unused_imports, reason = "a model uses a part of the support")]
#[path = "../support/mod.rs"]
mod support;
#[path = "../support/sync.rs"]
mod sync;

mod size {
    pub(crate) const FIRST_SEGMENT_BITS: u32 = 2;
    pub(crate) const NODES_TO_LINE_BITS: u32 = 2;
    pub(crate) const BATCH: u32 = 1;
    pub(crate) const STRANDS: usize = 1;
    pub(crate) const MAILBOX_SEGMENT: usize = 4;
}

mod absent;
mod cancel;
mod capacity;
mod close;
mod end;
mod hint;
mod insert;
mod rearm;
mod replace;
mod reschedule;
mod unindexed;
