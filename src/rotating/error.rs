//! What may be wrong with the settings.

use super::map::BUCKETS_MAX;
use crate::error::BuildError;
use std::fmt;
use std::time::Duration;

/// Why a map could not be built. Nothing is left running.
#[derive(Debug)]
#[non_exhaustive]
pub enum RotatingError {
    /// The number of buckets is outside of 2 ..= 65,536. Permanent.
    Buckets(usize),
    /// The expiry is zero. Permanent.
    Expiry(Duration),
    /// The scheduler that rotates the map could not be started. Permanent or transient as the [`BuildError`] inside,
    /// whose message and source this has.
    Scheduler(BuildError),
}

impl fmt::Display for RotatingError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Buckets(count) => write!(f, "buckets is {count}; accepted: 2 to {BUCKETS_MAX}"),
            Self::Expiry(expiry) => write!(f, "expiry is {expiry:?}; accepted: more than zero"),
            Self::Scheduler(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for RotatingError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Scheduler(error) => error.source(),
            Self::Buckets(_) | Self::Expiry(_) => None,
        }
    }
}
