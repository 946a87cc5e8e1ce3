//! Panics in user code.
//!
//! A panic that unwinds past a handle breaks nothing: no call leaves anything half done, and user code that may panic
//! is called between steps, or caught. The compiler cannot see that, because behind the handles are callbacks, which
//! may hold anything.

use crate::executor::Job;
use crate::manual::ManualClock;
use crate::rotating::TimeCacheMap;
use crate::scheduler::{Scheduler, WeakScheduler};
use crate::shard::shielded;
use crate::timer::Timer;
use std::hash::Hash;
use std::panic::{AssertUnwindSafe, RefUnwindSafe, UnwindSafe, catch_unwind};

/// Runs user code whose panic concerns nobody else. `None`: it panicked, and the payload is dropped.
pub(crate) fn caught<R>(run: impl FnOnce() -> R) -> Option<R> {
    catch_unwind(AssertUnwindSafe(run)).map_err(drop_quietly).ok()
}

/// Runs what may panic when nobody is left whom that would concern. The payload is leaked, as in `shielded`.
pub(crate) fn quietly(run: impl FnOnce()) {
    let _ = shielded(run);
}

/// Drops a value of the user's, whose destructor may panic.
pub(crate) fn drop_quietly<T>(dropped: T) {
    quietly(|| drop(dropped));
}

impl UnwindSafe for Job {}

impl UnwindSafe for ManualClock {}
impl RefUnwindSafe for ManualClock {}

impl<K, V> UnwindSafe for TimeCacheMap<K, V> {}
impl<K, V> RefUnwindSafe for TimeCacheMap<K, V> {}

impl<K: Eq + Send + Sync + 'static, V: Send + 'static> UnwindSafe for Timer<K, V> {}
impl<K: Eq + Send + Sync + 'static, V: Send + 'static> RefUnwindSafe for Timer<K, V> {}

impl<K: Hash + Eq + Send + Sync + 'static, V: Send + 'static, S: RefUnwindSafe> UnwindSafe for Scheduler<K, V, S> {}
impl<K: Hash + Eq + Send + Sync + 'static, V: Send + 'static, S: RefUnwindSafe> RefUnwindSafe for Scheduler<K, V, S> {}

impl<K: Hash + Eq + Send + Sync + 'static, V: Send + 'static, S: RefUnwindSafe> UnwindSafe for WeakScheduler<K, V, S> {}
impl<K: Hash + Eq + Send + Sync + 'static, V: Send + 'static, S: RefUnwindSafe> RefUnwindSafe
    for WeakScheduler<K, V, S>
{
}

#[cfg(feature = "cache")]
mod cache {
    use super::{RefUnwindSafe, UnwindSafe};
    use crate::cache::Cache;

    impl<K, V, S: RefUnwindSafe> UnwindSafe for Cache<K, V, S> {}
    impl<K, V, S: RefUnwindSafe> RefUnwindSafe for Cache<K, V, S> {}
}
