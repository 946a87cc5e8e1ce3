//! Timers that would have come back after their callbacks, but were closed meanwhile by `close(Return)`. That call
//! could not give them back, since their callbacks were using their values; the next one does.

use crate::shard::Tick;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A timer that is finished, in a sealed shard. Its key is still in its node.
pub(crate) struct Kept<V> {
    pub(crate) shard_number: usize,
    pub(crate) node: u32,
    pub(crate) value: V,
    /// When it was to fire next; `None` is never.
    pub(crate) due: Option<Tick>,
}

/// `None`: they are not wanted. Locked by `close`, by the drop of the last handle, and after a callback in a sealed
/// shard.
pub(crate) struct Comebacks<V>(Mutex<Option<Vec<Kept<V>>>>);

impl<V> Comebacks<V> {
    pub(crate) fn new() -> Self {
        Self(Mutex::new(None))
    }

    /// From now on they are wanted. Comes before any shard is sealed.
    pub(crate) fn expect(&self) {
        *self.lock() = Some(Vec::new());
    }

    /// Keeps a timer, if such timers are wanted; else its value comes back.
    pub(crate) fn keep(&self, timer: Kept<V>) -> Option<V> {
        match &mut *self.lock() {
            Some(kept) => kept.push(timer),
            None => return Some(timer.value),
        }
        None
    }

    /// Takes those that are there.
    pub(crate) fn take(&self) -> Vec<Kept<V>> {
        self.lock().as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Takes those that are there. None is wanted from now on.
    pub(crate) fn end(&self) -> Vec<Kept<V>> {
        self.lock().take().unwrap_or_default()
    }

    fn lock(&self) -> MutexGuard<'_, Option<Vec<Kept<V>>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
