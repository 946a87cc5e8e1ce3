//! Maps whose entries leave by the bucket: [`RotatingMap`], which you rotate, and [`TimeCacheMap`], which rotates
//! itself.
//!
//! A map has k buckets; what is inserted goes to the newest one. A rotation puts an empty bucket in front and takes off
//! the oldest one as a whole: expiry costs one step per bucket, not one per entry. The price is precision: with
//! rotations T/(k-1) apart, an entry lives for T at least and T(1 + 1/(k-1)) at most. Where each entry needs its own
//! time, use a cache or a [`Scheduler`](crate::Scheduler).
//!
//! The structure is that of Apache Storm's `RotatingMap` and `TimeCacheMap`.

mod error;
mod map;
mod time_cache;

pub use error::RotatingError;
pub use map::RotatingMap;
pub use time_cache::TimeCacheMap;
