//! The handle that does not keep its scheduler open.

use super::{Inner, Scheduler};
use std::collections::hash_map::RandomState;
use std::fmt;
use std::hash::Hash;
use std::sync::{Arc, Weak};

/// A handle that does not keep its scheduler open; see [`Scheduler::downgrade`].
///
/// But a handle that [`upgrade`](Self::upgrade) returns does keep it open, as long as that handle lives. So to shut
/// down while callbacks may hold one, call [`Scheduler::close`].
///
/// ```
/// use shardwheel::{Scheduler, WeakScheduler};
/// use std::sync::{Arc, OnceLock};
/// use std::time::Duration;
///
/// let own = Arc::new(OnceLock::<WeakScheduler<u32>>::new());
/// let seen = Arc::clone(&own);
/// let (scheduler, clock) = Scheduler::builder().build_manual(move |&key: &u32, _| {
///     if let Some(scheduler) = seen.get().and_then(WeakScheduler::upgrade) {
///         let _ = scheduler.schedule(key + 1, Duration::from_secs(1));
///     }
/// })?;
/// own.set(scheduler.downgrade()).expect("set once");
/// scheduler.schedule(1, Duration::from_secs(1)).expect("it is open and not full");
/// clock.advance(Duration::from_secs(3));
/// assert!(scheduler.contains(&4));
/// # Ok::<(), shardwheel::BuildError>(())
/// ```
pub struct WeakScheduler<K, V = (), S = RandomState>(Weak<Inner<K, V, S>>)
where
    K: Hash + Eq + Send + Sync + 'static,
    V: Send + 'static;

impl<K: Hash + Eq + Send + Sync + 'static, V: Send + 'static, S> WeakScheduler<K, V, S> {
    /// A handle of no scheduler: `upgrade` answers `None`.
    ///
    /// ```
    /// # use shardwheel::WeakScheduler;
    /// assert!(WeakScheduler::<u32>::new().upgrade().is_none());
    /// ```
    pub const fn new() -> Self {
        Self(Weak::new())
    }

    pub(super) fn of(scheduler: &Scheduler<K, V, S>) -> Self {
        Self(Arc::downgrade(&scheduler.0))
    }

    /// The scheduler, if a handle of it is left. Costs one atomic increment of a count that all handles share.
    pub fn upgrade(&self) -> Option<Scheduler<K, V, S>> {
        self.0.upgrade().map(Scheduler)
    }
}

impl<K: Hash + Eq + Send + Sync + 'static, V: Send + 'static, S> Default for WeakScheduler<K, V, S> {
    fn default() -> Self {
        Self::new()
    }
}

impl<K: Hash + Eq + Send + Sync + 'static, V: Send + 'static, S> Clone for WeakScheduler<K, V, S> {
    fn clone(&self) -> Self {
        Self(Weak::clone(&self.0))
    }
}

impl<K: Hash + Eq + Send + Sync + 'static, V: Send + 'static, S> fmt::Debug for WeakScheduler<K, V, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("WeakScheduler(..)")
    }
}
