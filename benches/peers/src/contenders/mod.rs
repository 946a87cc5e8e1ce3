//! The contenders: one file for each.

mod binary_heap;
mod btree_map;
mod delay_queue;
mod delay_queue_handle;
mod hash_wheel;
mod locked;
mod moka;
mod pingora;
mod shardwheel;
mod shardwheel_batch;
mod shardwheel_handle;
mod tokio_sleep;
mod tokio_sleep_handle;
mod tokio_task;
mod wheels;

pub(crate) use self::moka::Moka;
pub(crate) use self::shardwheel::Shardwheel;
pub(crate) use binary_heap::Heap;
pub(crate) use btree_map::Tree;
pub(crate) use delay_queue::{DelayQueueKey, DelayQueueShards};
pub(crate) use delay_queue_handle::DelayQueueHandle;
pub(crate) use hash_wheel::HashWheel;
pub(crate) use pingora::Pingora;
pub(crate) use shardwheel_batch::ShardwheelBatch;
pub(crate) use shardwheel_handle::ShardwheelHandle;
pub(crate) use tokio_sleep::TokioSleep;
pub(crate) use tokio_sleep_handle::TokioSleepHandle;
pub(crate) use tokio_task::TokioTask;

use crate::contender::{Contender, KeyHasher, Wheel};
use crate::figures::Report;
use crate::workloads::{self, Job};

/// How a timer is named in calls.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Access {
    Key,
    Handle,
    /// By its owner: a wheel of one's own, with no service around it.
    Own,
}

impl Access {
    /// The contender with which the others of this kind are compared.
    pub(crate) fn ours(self) -> &'static str {
        match self {
            Self::Key => "shardwheel",
            Self::Handle => "shardwheel-unindexed",
            Self::Own => "shardwheel-wheel",
        }
    }
}

/// A contender by name.
pub(crate) struct Entry {
    pub(crate) name: &'static str,
    pub(crate) access: Access,
    /// Whether the memory of a timer that is cancelled or moved is free before its old deadline.
    pub(crate) frees: bool,
    pub(crate) run: fn(&Job) -> Report,
}

impl Entry {
    pub(crate) fn is_ours(&self) -> bool {
        self.name.starts_with("shardwheel")
    }

    /// One that keeps what was cancelled until its deadline.
    fn that_keeps(self) -> Self {
        Self { frees: false, ..self }
    }
}

pub(crate) fn by_key<C: Contender>(name: &'static str) -> Entry {
    Entry { name, access: Access::Key, frees: true, run: workloads::run::<C> }
}

fn by_handle<C: Contender>(name: &'static str) -> Entry {
    Entry { name, access: Access::Handle, frees: true, run: workloads::run::<C> }
}

fn by_owner<W: Wheel>(name: &'static str) -> Entry {
    Entry { name, access: Access::Own, frees: true, run: workloads::advance::run::<W> }
}

pub(crate) fn all<S: KeyHasher>() -> Vec<Entry> {
    vec![
        by_key::<Shardwheel<S>>("shardwheel"),
        by_key::<ShardwheelBatch<S>>("shardwheel-batch"),
        by_key::<TokioTask<S>>("tokio-task"),
        by_key::<TokioSleep<S>>("tokio-sleep"),
        by_key::<DelayQueueKey<S>>("delay-queue"),
        by_key::<DelayQueueShards<S>>("delay-queue-shards"),
        by_key::<HashWheel<S>>("hash-wheel").that_keeps(),
        by_key::<Pingora<S>>("pingora").that_keeps(),
        by_key::<Heap<S>>("binary-heap").that_keeps(),
        by_key::<Tree<S>>("btree-map"),
        by_key::<Moka<S>>("moka"),
        by_handle::<ShardwheelHandle<S, false>>("shardwheel-unindexed"),
        by_handle::<ShardwheelHandle<S, true>>("shardwheel-handle"),
        by_handle::<TokioSleepHandle>("tokio-sleep-handle"),
        by_handle::<DelayQueueHandle>("delay-queue-handle"),
        by_owner::<wheels::Own>("shardwheel-wheel"),
        by_owner::<wheels::Quad>("quad-wheel"),
    ]
}

/// With `threads`; `None`: as many as cores, tokio's default.
fn runtime(threads: Option<usize>) -> tokio::runtime::Runtime {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    if let Some(threads) = threads {
        builder.worker_threads(threads);
    }
    builder.enable_time().build().expect("the system starts threads")
}
