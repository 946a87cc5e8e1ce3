//! `hierarchical_hash_wheel_timer`: a thread with a wheel, and a channel to it. Calls send messages and get no answers,
//! so a map by key gives the answers: the thread that takes an entry out of it has decided.
//!
//! The wheel's thread finds timers by key in a map of its own, which keeps its fast default hasher.

use crate::contender::{Caller, Contender, KeyHasher, Timer};
use crate::witness::Witness;
use dashmap::DashMap;
use hierarchical_hash_wheel_timer::thread_timer::{TimerRef, TimerWithThread};
use hierarchical_hash_wheel_timer::{OneshotState, PeriodicState, Timer as _, TimerReturn};
use std::fmt;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::mpsc::{self, Sender};
use std::time::Duration;

type Service<S> = TimerWithThread<u64, State<S>, Never>;

pub(crate) struct HashWheel<S: KeyHasher> {
    service: Service<S>,
    shared: &'static Shared<S>,
}

pub(crate) struct Shared<S> {
    timers: DashMap<u64, Slot, S>,
    callers: AtomicU32,
    witness: &'static Witness,
}

/// Tells a timer from an earlier one of its key.
type Id = (u32, u64);

#[derive(Clone, Copy)]
struct Slot {
    value: u64,
    id: Id,
}

/// What the thread keeps of a timer.
pub(crate) enum State<S: 'static> {
    Timer {
        key: u64,
        id: Id,
        shared: &'static Shared<S>,
    },
    /// It comes out as soon as the thread has seen everything that was sent before.
    Marker(u64, Sender<()>),
}

impl<S: KeyHasher> OneshotState for State<S> {
    type Id = u64;
    fn id(&self) -> &u64 {
        match self {
            Self::Timer { key, .. } | Self::Marker(key, _) => key,
        }
    }
    fn trigger(self) {
        match self {
            Self::Timer { key, id, shared } => {
                if let Some((_, slot)) = shared.timers.remove_if(&key, |_, slot| slot.id == id) {
                    shared.witness.fire(slot.value);
                }
            }
            Self::Marker(_, seen) => drop(seen.send(())),
        }
    }
}

impl<S> fmt::Debug for State<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("State")
    }
}

/// For periodic timers, of which there are none.
#[derive(Debug)]
pub(crate) enum Never {}

impl PeriodicState for Never {
    type Id = u64;
    fn id(&self) -> &u64 {
        match *self {}
    }
    fn trigger(self) -> TimerReturn<Self> {
        match self {}
    }
}

impl<S: KeyHasher> Contender for HashWheel<S> {
    type Caller = Sending<S>;
    fn new(witness: &'static Witness, _shards: Option<usize>) -> Self {
        let shared = Box::leak(Box::new(Shared { timers: DashMap::default(), callers: AtomicU32::new(0), witness }));
        Self { service: Service::new().expect("the system starts a thread"), shared }
    }
    fn caller(&'static self) -> Sending<S> {
        let number = self.shared.callers.fetch_add(1, Relaxed);
        Sending { service: self.service.timer_ref(), shared: self.shared, last_id: (number, 0) }
    }
    fn settle(&self) {
        let (sender, seen) = mpsc::channel();
        self.service.timer_ref().schedule_once(Duration::ZERO, State::Marker(u64::MAX, sender));
        seen.recv().expect("the thread runs");
    }
}

pub(crate) struct Sending<S: KeyHasher> {
    service: TimerRef<u64, State<S>, Never>,
    shared: &'static Shared<S>,
    last_id: Id,
}

impl<S: KeyHasher> Sending<S> {
    fn next_id(&mut self) -> Id {
        self.last_id.1 += 1;
        self.last_id
    }

    fn start(&mut self, key: u64, id: Id, delay: Duration) {
        self.service.schedule_once(delay, State::Timer { key, id, shared: self.shared });
    }
}

impl<S: KeyHasher> Caller for Sending<S> {
    type Handle = ();
    fn schedule(&mut self, Timer { key, value, delay }: Timer) {
        let id = self.next_id();
        // Held until the message is sent, so that the messages about a key are in the order of its entries. A later
        // timer takes an earlier one's place in the thread's map, and so ends it.
        let _held = self.shared.timers.entry(key).insert(Slot { value, id });
        self.start(key, id, delay);
    }
    fn cancel(&mut self, key: u64, (): ()) -> Option<u64> {
        let (_, slot) = self.shared.timers.remove(&key)?;
        self.service.cancel(&key);
        Some(slot.value)
    }
    fn reschedule(&mut self, key: u64, (): &mut (), delay: Duration) -> bool {
        let id = self.next_id();
        let Some(mut slot) = self.shared.timers.get_mut(&key) else { return false };
        slot.id = id;
        self.start(key, id, delay);
        true
    }
}
