//! A lock-free sharded timer service for millions of delays. Each delay has a key, by which any thread can move or
//! cancel it, with an exact answer.
//!
//! Keys hash to shards. Each shard is a hierarchical timing wheel owned by one worker thread; callers reach it through
//! lock-free structures only. Expired timers are handed in batches to threads that run your callback; if that takes
//! long, they fan out on a rayon pool.
//!
//! ```
//! use shardwheel::Scheduler;
//! use std::time::Duration;
//!
//! let (sender, fired) = std::sync::mpsc::channel();
//! let scheduler = Scheduler::builder().build(move |request: &u64, _: ()| {
//!     let _ = sender.send(*request);
//! })?;
//!
//! scheduler.schedule(17, Duration::from_millis(5)).expect("it is open and not full");
//! scheduler.schedule(18, Duration::from_secs(30)).expect("it is open and not full");
//! assert_eq!(scheduler.cancel(&18), Some(()), "exact: it will never fire");
//! assert_eq!(fired.recv(), Ok(17));
//! # Ok::<(), shardwheel::BuildError>(())
//! ```
//!
//! - [`Scheduler`] is the service, [`Builder`] its settings, [`Timer`] a handle of one timer.
//! - [`ManualClock`] moves a scheduler's time by hand, for tests and for replaying the past.
//! - [`cache::Cache`] (feature `cache`, on by default) is a cache with expiry, an entry limit, and loading;
//!   [`rotating`] has maps that expire by the bucket.
//! - [`wheel::Wheel`] is the timing wheel alone, for an event loop of your own.
//!
//! The README lists the guarantees; ARCHITECTURE.md explains how it works.

#![deny(missing_docs, missing_debug_implementations)]
#![cfg_attr(docsrs, feature(doc_cfg))]

mod batch;
mod builder;
#[cfg(feature = "cache")]
#[cfg_attr(docsrs, doc(cfg(feature = "cache")))]
pub mod cache;
mod callback;
mod callback_thread;
mod capacity;
mod clock;
mod close;
mod counters;
mod error;
#[cfg(target_os = "linux")]
mod event_count;
mod executor;
mod expired;
mod fanout;
mod flags;
mod growth;
mod handout;
mod if_absent;
mod lane;
mod lateness;
mod manual;
mod periodic;
pub mod rotating;
mod runtime;
mod scheduler;
mod service;
mod shard;
#[cfg(test)]
mod simulation;
mod stats;
mod sync;
mod thread;
mod timer;
mod under_way;
mod unindexed;
mod unwind;
pub mod wheel;
mod worker;

pub use builder::{Builder, Pinning};
pub use callback::Next;
pub use close::{Close, Closed};
pub use error::{BuildError, ScheduleError};
pub use executor::{Executor, Job};
pub use lateness::Lateness;
pub use manual::ManualClock;
/// The pool behind [`Executor::Rayon`], in the version that this crate uses.
pub use rayon;
pub use scheduler::{Scheduler, WeakScheduler};
pub use shard::MissedTicks;
pub use stats::{ShardStats, Stats};
pub use timer::Timer;

/// The README's examples, compiled.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

/// The examples of `docs/coming-from.md`, compiled.
#[cfg(doctest)]
#[doc = include_str!("../docs/coming-from.md")]
struct ComingFrom;
