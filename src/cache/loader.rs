//! One load per key at a time.

use std::any::Any;
use std::collections::HashMap;
use std::fmt;
use std::hash::Hash;
use std::mem::forget;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, ThreadId};

/// Why a value could not be loaded. Nothing is stored; who asks next loads again.
#[non_exhaustive]
pub enum LoadError<E> {
    /// The loader failed: this thread's, or the one that it waited for. All who waited share the error.
    Failed(Arc<E>),
    /// The loader that this thread waited for panicked.
    Panicked,
}

impl<E> Clone for LoadError<E> {
    fn clone(&self) -> Self {
        match self {
            Self::Failed(error) => Self::Failed(Arc::clone(error)),
            Self::Panicked => Self::Panicked,
        }
    }
}

impl<E: fmt::Debug> fmt::Debug for LoadError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Failed(error) => f.debug_tuple("Failed").field(error).finish(),
            Self::Panicked => f.write_str("Panicked"),
        }
    }
}

impl<E: fmt::Display> fmt::Display for LoadError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Failed(error) => write!(f, "the value could not be loaded: {error}"),
            Self::Panicked => f.write_str("the loader of the value panicked"),
        }
    }
}

impl<E: std::error::Error + 'static> std::error::Error for LoadError<E> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Failed(error) => Some(&**error),
            Self::Panicked => None,
        }
    }
}

/// How a load ended.
#[derive(Clone)]
pub(super) enum Outcome<V> {
    Loaded(V),
    /// Of whatever type the loader's error is.
    Failed(Arc<dyn Any + Send + Sync>),
    Panicked,
}

/// The loads that are under way.
pub(super) struct Loads<K, V>(Mutex<HashMap<K, Arc<Load<V>>>>);

struct Load<V> {
    leader: ThreadId,
    outcome: Mutex<Option<Outcome<V>>>,
    ended: Condvar,
}

/// What falls to a thread that asks for a key.
pub(super) enum Part<'a, K: Hash + Eq + Clone, V: Clone> {
    /// To load.
    Lead(Turn<'a, K, V>),
    /// Nothing more: another thread loaded.
    Given(Outcome<V>),
}

/// The right to load a key. Given up without an outcome, it leaves [`Outcome::Panicked`].
pub(super) struct Turn<'a, K: Hash + Eq, V> {
    loads: &'a Loads<K, V>,
    key: K,
    /// `None`: a load inside of this thread's own load of the key, for which nobody waits.
    load: Option<Arc<Load<V>>>,
}

impl<K: Hash + Eq, V> Loads<K, V> {
    pub(super) fn new() -> Self {
        Self(Mutex::default())
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<K, Arc<Load<V>>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Leads the load of `key`, or waits for the one that is under way.
    pub(super) fn join(&self, key: &K) -> Part<'_, K, V>
    where
        K: Clone,
        V: Clone,
    {
        // Both before the lock: to copy a key is the user's code.
        let (own, turn, entered) = (thread::current().id(), key.clone(), key.clone());
        let mut loads = self.lock();
        let Some(load) = loads.get(key).map(Arc::clone) else {
            let load = Arc::new(Load { leader: own, outcome: Mutex::new(None), ended: Condvar::new() });
            loads.insert(entered, Arc::clone(&load));
            return Part::Lead(Turn { loads: self, key: turn, load: Some(load) });
        };
        drop(loads);
        if load.leader == own {
            // To wait would be to wait for oneself.
            return Part::Lead(Turn { loads: self, key: turn, load: None });
        }
        Part::Given(load.wait())
    }
}

impl<V> Load<V> {
    fn outcome(&self) -> MutexGuard<'_, Option<Outcome<V>>> {
        self.outcome.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<V: Clone> Load<V> {
    fn wait(&self) -> Outcome<V> {
        let mut outcome = self.outcome();
        loop {
            if let Some(outcome) = &*outcome {
                return outcome.clone();
            }
            outcome = self.ended.wait(outcome).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl<K: Hash + Eq, V> Turn<'_, K, V> {
    /// Tells all who wait. A value is in the cache by now, for those who come a moment late.
    pub(super) fn finish(mut self, outcome: Outcome<V>) {
        self.end(outcome);
    }

    fn end(&mut self, outcome: Outcome<V>) {
        let Some(load) = self.load.take() else { return };
        let removed = catch_unwind(AssertUnwindSafe(|| self.loads.lock().remove_entry(&self.key)));
        // If the key panics, the load must end all the same. Its key is the user's: dropped, below, without the lock.
        let (_removed, panic) = match removed {
            Ok(removed) => (removed, None),
            Err(panic) => (self.loads.lock().extract_if(|_, other| Arc::ptr_eq(other, &load)).next(), Some(panic)),
        };
        *load.outcome() = Some(outcome);
        load.ended.notify_all();
        match panic {
            Some(panic) if thread::panicking() => forget(panic),
            Some(panic) => resume_unwind(panic),
            None => {}
        }
    }
}

impl<K: Hash + Eq, V> Drop for Turn<'_, K, V> {
    fn drop(&mut self) {
        self.end(Outcome::Panicked);
    }
}
