//! A lock-free sharded timer service for millions of delays. Each delay has a key, by which any thread can move or
//! cancel it, with an exact answer.
//!
//! The timers are divided among shards by the hash of their key. Each shard has a hierarchical timing wheel, and one
//! thread that waits for its deadlines; callers reach it through lock-free structures only. When timers expire, other
//! threads run your callback; if callbacks are slow, a rayon pool helps.
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
//! - [`Scheduler`] is the service, [`Builder`] its settings, [`Timer`] a handle of one timer. [`WeakScheduler`] is for
//!   callbacks that schedule.
//! - Timers that come back: at a fixed rate ([`Scheduler::schedule_every`]), or as their callback decides ([`Next`]).
//! - [`Executor`] says who runs the callbacks, [`Close`] what becomes of the timers at the end.
//! - [`ManualClock`] moves a scheduler's time by hand, for tests and for replaying the past.
//! - [`cache::Cache`] (feature `cache`, on by default) is a cache with expiry, an entry limit, and loading;
//!   [`rotating`] has maps that expire by the bucket.
//! - [`wheel::Wheel`] is the timing wheel alone, for an event loop of your own.
//!
//! # Guarantees
//!
//! The README of the repository says more of each, and its ARCHITECTURE.md how they are kept.
//!
//! 1. Never early: a timer fires at the first tick at or after the time of the call plus the delay.
//! 2. Late by a bound: one tick, the worker's wake-up and the backlog.
//! 3. Nothing lost, nothing twice: each timer is fired, cancelled, replaced, drained, returned or discarded, once.
//! 4. Exact answers: a timer that `cancel` has returned, or that was replaced, never fires; one that was moved fires
//!    at its new deadline only.
//! 5. Lock-free for callers: starting, moving, cancelling or looking up a timer waits for no other thread.
//! 6. Independent shards: a stalled one holds the others up for milliseconds, not for as long as it stalls.
//! 7. The clock may step back or stall: nothing fires early, and nothing is forgotten.
//! 8. Idle costs nothing: with nothing due, workers sleep.
//! 9. Callbacks may be slow, may panic, and may call the scheduler; none of that stops a worker.
//! 10. Bounded memory: a cancelled timer gives its value back at once, and its memory for reuse.
//! 11. No input panics.
//! 12. After `close`, `schedule` returns an error with key and value, and other calls answer as on an empty scheduler.

#![deny(missing_docs, missing_debug_implementations, unsafe_code)]
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
mod comebacks;
#[expect(unsafe_code, reason = "a type for which memory of zeroes is the default")]
mod counters;
mod crew;
mod error;
mod event_count;
mod executor;
mod expired;
mod fanout;
mod flags;
mod growth;
#[expect(unsafe_code, reason = "moves each item out once")]
mod handout;
mod if_absent;
mod lane;
mod lateness;
mod lookout;
mod manual;
mod periodic;
pub mod rotating;
mod runtime;
#[expect(unsafe_code, reason = "says that nobody is left who could look a key up")]
mod scheduler;
#[expect(unsafe_code, reason = "says when keys may be moved and dropped")]
mod service;
#[expect(unsafe_code, reason = "shares memory between threads")]
mod shard;
#[cfg(test)]
mod simulation;
mod stats;
#[expect(unsafe_code, reason = "what `shard` is built on")]
mod sync;
#[expect(unsafe_code, reason = "an ordinal without its owner")]
mod thread;
mod timer;
mod under_way;
mod unindexed;
mod unwind;
pub mod wheel;
mod when;
mod worker;

pub use builder::{Builder, Pinning};
pub use callback::Next;
pub use close::{Close, Closed};
pub use error::{BuildError, ScheduleError};
pub use executor::{Executor, Job};
pub use if_absent::IfAbsent;
pub use lateness::Lateness;
pub use manual::ManualClock;
/// The pool behind [`Executor::Rayon`], in the version that this crate uses.
pub use rayon;
pub use scheduler::{Scheduler, WeakScheduler};
pub use shard::MissedTicks;
pub use stats::{ShardStats, Stats};
pub use timer::Timer;

/// The README's examples, compiled.
#[cfg(all(doctest, feature = "cache"))]
#[doc = include_str!("../README.md")]
struct Readme;

/// The examples of `docs/coming-from.md`, compiled.
#[cfg(all(doctest, feature = "cache"))]
#[doc = include_str!("../docs/coming-from.md")]
struct ComingFrom;
