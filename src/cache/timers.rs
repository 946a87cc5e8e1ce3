//! The timers of the entries: when they fire, and what they do then.
//!
//! All caches of a program have one type of timers, whatever their keys and values: for each further type of cache, the
//! compiler has no further scheduler to build.

use super::entry::Entry;
use super::expiry::{Deadline, Due};
use super::hashed::Ready;
use super::stats::Cause;
use super::store::Store;
use crate::callback::{Next, Rearm};
use crate::clock::{Clock, Nanos};
use crate::error::ScheduleError;
use crate::scheduler::Scheduler;
use crate::unwind::drop_quietly;
use std::any::Any;
use std::hash::{BuildHasher, BuildHasherDefault, Hash};
use std::sync::Arc;
use std::time::Duration;

/// The timers, by the ids of their entries. Each owns its entry, until it has fired for that entry's end.
pub(super) type Timers = Scheduler<u64, Owned, BuildHasherDefault<Ready>>;
/// An [`Entry`], of whatever types; `None` once it has ended.
pub(super) type Owned = Option<Arc<dyn Any + Send + Sync>>;
pub(super) type Started = Result<Option<Owned>, ScheduleError<u64, Owned>>;

/// What the timers do.
pub(super) struct Expiring<K, V, S>(pub(super) Arc<Store<K, V, S>>);

impl<K, V, S> Expiring<K, V, S>
where
    K: Send + Sync + 'static,
    V: Send + Sync + 'static,
{
    fn entry(owned: &Owned) -> Option<&Entry<K, V>> {
        Some(owned.as_deref()?.downcast_ref().expect("no two caches have the same timers"))
    }
}

impl<K, V, S> Rearm<u64, Owned> for Expiring<K, V, S>
where
    K: Hash + Eq + Send + Sync + 'static,
    V: Send + Sync + 'static,
    S: BuildHasher + Send + Sync,
{
    fn fire(&self, _id: &u64, owned: &mut Owned, clock: &Clock) -> Next {
        // `None`: it has ended, but its timer was given a deadline meanwhile.
        let Some(entry) = Self::entry(owned) else { return Next::Done };
        match entry.expiry.expire(clock.now().0) {
            Due::Later(deadline) => return next_at(deadline, clock),
            Due::Now => _ = self.0.leave(entry, Cause::Expired),
            Due::Ended => {}
        }
        drop_quietly(owned.take());
        Next::Done
    }

    /// An entry that has expired has no end then; others are not concerned. (If it has ended, its timer was cancelled,
    /// or is about to be.)
    fn lose(&self, owned: &mut Owned, clock: &Clock) -> Next {
        let ahead = Self::entry(owned).and_then(|entry| entry.expiry.ahead(clock.now().0));
        ahead.map_or(Next::Done, |deadline| next_at(deadline, clock))
    }
}

fn next_at(deadline: Deadline, clock: &Clock) -> Next {
    deadline.map_or(Next::After(Duration::MAX), |deadline| Next::At(clock.instant(Nanos(deadline))))
}
