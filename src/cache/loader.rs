//! One load per key at a time.

use super::hashed::{Hashed, Sought};
use crate::unwind::drop_quietly;
use std::any::Any;
use std::borrow::Borrow;
use std::fmt;
use std::mem;
use std::sync::atomic::{
    AtomicUsize,
    Ordering::{Relaxed, SeqCst},
    fence,
};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::{self, ThreadId};

/// Why a value could not be loaded. Nothing is stored; the next call loads again.
#[non_exhaustive]
pub enum LoadError<E> {
    /// The loader failed: this thread's, or the one that it waited for. All that waited share the error. Transient if
    /// the loader's failure is.
    Failed(Arc<E>),
    /// The loader that this thread waited for panicked. Transient if what made it panic is.
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

/// The loader's error may be any `E` with a message that threads can share, such as a `String` or a
/// `Box<dyn Error + Send + Sync>`. It need not be an `Error`, so it is no `source`; our message includes it.
impl<E: fmt::Debug + fmt::Display> std::error::Error for LoadError<E> {}

/// How a load ended.
#[derive(Clone)]
pub(super) enum Outcome<V> {
    Loaded(V),
    /// The loader's error, of whatever type.
    Failed(Arc<dyn Any + Send + Sync>),
    Panicked,
}

/// The loads that are under way: one per thread, and one more for each that a load asks for in turn; as a rule one per
/// key.
pub(super) struct Loads<K, V> {
    list: Mutex<Vec<Arc<Load<K, V>>>>,
    /// The length of the list, so that no thread looks into an empty one.
    count: AtomicUsize,
}

struct Load<K, V> {
    key: Arc<Hashed<K>>,
    leader: ThreadId,
    stage: Mutex<Stage>,
    /// Set before the end, unless nothing was loaded.
    outcome: OnceLock<Outcome<V>>,
    ended: Condvar,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Loading,
    /// The value is being put in. A thread that comes now could get one that was in the cache, and out again, before it
    /// came.
    Entering,
    Ended,
}

/// What a thread that asks for a key has to do.
pub(super) enum Part<'a, K, V> {
    /// Load.
    Lead(Turn<'a, K, V>),
    /// Nothing more: another thread loaded.
    Given(Outcome<V>),
    /// Look again: the load under way was about to end, or turned out not to be needed.
    Late,
}

/// The right to load a key. Dropped without an outcome, it leaves [`Outcome::Panicked`].
pub(super) struct Turn<'a, K, V> {
    loads: &'a Loads<K, V>,
    /// `None`: a load inside of this thread's own load of the key, for which nobody waits.
    load: Option<Arc<Load<K, V>>>,
}

impl<K, V> Loads<K, V> {
    pub(super) fn new() -> Self {
        Self { list: Mutex::default(), count: AtomicUsize::new(0) }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Arc<Load<K, V>>>> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls `change` on the list, and stores the new length.
    fn change<R>(&self, change: impl FnOnce(&mut Vec<Arc<Load<K, V>>>) -> R) -> R {
        let mut list = self.lock();
        let changed = change(&mut list);
        // Relaxed: see `outdate`.
        self.count.store(list.len(), Relaxed);
        changed
    }

    /// Takes a load out of the list. If it is there, calls `show` before any other thread can outdate it, and returns
    /// the answer; else returns false.
    fn leave(&self, load: &Arc<Load<K, V>>, show: impl FnOnce() -> bool) -> bool {
        self.change(|list| {
            let place = list.iter().position(|other| Arc::ptr_eq(other, load));
            place.map(|place| list.swap_remove(place)).is_some() && show()
        })
    }

    fn is_listed(&self, load: &Arc<Load<K, V>>) -> bool {
        self.lock().iter().any(|other| Arc::ptr_eq(other, load))
    }
}

impl<K: Eq, V> Loads<K, V> {
    /// Leads the load of `key`, or waits for the one that is under way.
    pub(super) fn join(&self, key: &Arc<Hashed<K>>) -> Part<'_, K, V>
    where
        V: Clone,
    {
        let own = thread::current().id();
        let (load, is_new) = self.change(|list| {
            if let Some(load) = list.iter().find(|load| load.key == *key) {
                return (Arc::clone(load), false);
            }
            let load = Arc::new(Load::new(Arc::clone(key), own));
            list.push(Arc::clone(&load));
            (load, true)
        });
        if is_new {
            // SeqCst: pairs with the fence in `outdate`.
            fence(SeqCst);
            return Part::Lead(Turn { loads: self, load: Some(load) });
        }
        if load.leader == own {
            // To wait would be to wait for itself.
            return Part::Lead(Turn { loads: self, load: None });
        }
        load.wait().map_or(Part::Late, Part::Given)
    }

    /// Outdates the load of this key: its value is not to be put in, as the caller is about to change what is under the
    /// key. Threads that ask from now on load anew.
    pub(super) fn outdate<Q: Eq + ?Sized>(&self, key: &Sought<'_, Q>)
    where
        K: Borrow<Q>,
    {
        // SeqCst: pairs with the fence in `join`. Either we see the load that `join` has counted, or that load sees
        // what the caller changed before. (As in `shard/alarm.rs`. There is no model of it: the other two steps are the
        // user's, on whatever the loader reads.)
        fence(SeqCst);
        // Relaxed: the fences decide; the list is behind a lock.
        if self.count.load(Relaxed) > 0 {
            let _outdated: Vec<_> = self.change(|list| list.extract_if(.., |load| key.is(&load.key)).collect());
        }
    }

    /// As `outdate`, for all keys.
    pub(super) fn outdate_all(&self) {
        let _outdated = self.change(mem::take);
    }
}

impl<K, V> Load<K, V> {
    fn new(key: Arc<Hashed<K>>, leader: ThreadId) -> Self {
        Self { key, leader, stage: Mutex::new(Stage::Loading), outcome: OnceLock::new(), ended: Condvar::new() }
    }

    fn stage(&self) -> MutexGuard<'_, Stage> {
        self.stage.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<K, V: Clone> Load<K, V> {
    /// Waits for the load to end. Its outcome, if it has one and was not already about to end when we came.
    fn wait(&self) -> Option<Outcome<V>> {
        let stage = self.stage();
        let is_early = *stage == Stage::Loading;
        let is_under_way = |stage: &mut Stage| *stage != Stage::Ended;
        drop(self.ended.wait_while(stage, is_under_way).unwrap_or_else(PoisonError::into_inner));
        // Not under the lock: `Clone` is the user's code, and all who wait may run theirs at once.
        is_early.then(|| self.outcome.get().cloned()).flatten()
    }
}

impl<K, V> Turn<'_, K, V> {
    /// Says that the value is about to be put in. False if it must not be.
    pub(super) fn begin_entry(&self) -> bool {
        self.load.as_ref().is_some_and(|load| {
            *load.stage() = Stage::Entering;
            self.loads.is_listed(load)
        })
    }

    /// Gives the outcome to all waiting threads.
    pub(super) fn finish(mut self, outcome: Outcome<V>) {
        self.end(Some(outcome), || false);
    }

    /// As `finish`, for a value that was put in: calls `show`, unless the load was outdated. No thread can outdate it
    /// in between: whoever does so later finds the entry. True if it was shown.
    pub(super) fn finish_entry(mut self, outcome: Outcome<V>, show: impl FnOnce() -> bool) -> bool {
        self.end(Some(outcome), show)
    }

    /// There was no need to load. The waiting threads look for themselves: the value that we found may have expired
    /// before they came.
    pub(super) fn pass(mut self) {
        self.end(None, || false);
    }

    fn end(&mut self, outcome: Option<Outcome<V>>, show: impl FnOnce() -> bool) -> bool {
        let Some(load) = self.load.take() else { return false };
        let is_shown = self.loads.leave(&load, show);
        if let Some(outcome) = outcome {
            // It is set once, here.
            let _ = load.outcome.set(outcome);
        }
        *load.stage() = Stage::Ended;
        load.ended.notify_all();
        // If nobody waits, that drops a clone of the value. Its destructor may panic, and the caller is not done yet.
        drop_quietly(load);
        is_shown
    }
}

impl<K, V> Drop for Turn<'_, K, V> {
    fn drop(&mut self) {
        self.end(Some(Outcome::Panicked), || false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::hash::RandomState;
    use std::time::Duration;

    #[test]
    fn those_who_wait_for_a_turn_that_is_passed_look_for_themselves() {
        let (loads, hasher) = (Loads::<u32, u32>::new(), RandomState::new());
        let key = || Arc::new(Hashed::new(7, &hasher));
        let Part::Lead(turn) = loads.join(&key()) else { panic!("nobody else is loading") };
        thread::scope(|scope| {
            let waiting = scope.spawn(|| loads.join(&key()));
            // References: the list's, the turn's, and the other thread's.
            while Arc::strong_count(&loads.lock()[0]) < 3 {
                thread::sleep(Duration::from_millis(1));
            }
            turn.pass();
            assert!(matches!(waiting.join().expect("it does not panic"), Part::Late));
        });
        assert!(matches!(loads.join(&key()), Part::Lead(_)), "the list is empty");
    }
}
