//! moka, a cache, as a timer: entries live for their delay, and the eviction listener is the callback.
//!
//! A move is a `get`, as with a cache's time to idle, which is the same for all entries: [`HEARTBEAT`]. Nothing expires
//! unless some thread does the cache's housekeeping, so a thread does that ten times a second. Its wheel's slots are a
//! second wide.

use crate::contender::{Caller, Contender, KeyHasher, Timer};
use crate::witness::Witness;
use crate::workloads::HEARTBEAT;
use moka::Expiry;
use moka::notification::RemovalCause;
use moka::sync::Cache;
use std::time::{Duration, Instant};

const HOUSEKEEPING: Duration = Duration::from_millis(100);

pub(crate) struct Moka<S>(Cache<u64, Slot, S>);

#[derive(Clone, Copy)]
pub(crate) struct Slot {
    value: u64,
    delay: Duration,
}

struct Delay;

impl Expiry<u64, Slot> for Delay {
    fn expire_after_create(&self, _key: &u64, slot: &Slot, _now: Instant) -> Option<Duration> {
        Some(slot.delay)
    }
    fn expire_after_update(&self, _: &u64, slot: &Slot, _: Instant, _: Option<Duration>) -> Option<Duration> {
        Some(slot.delay)
    }
    fn expire_after_read(&self, _: &u64, _: &Slot, _: Instant, _: Option<Duration>, _: Instant) -> Option<Duration> {
        Some(HEARTBEAT)
    }
}

impl<S: KeyHasher> Contender for Moka<S> {
    type Caller = &'static Cache<u64, Slot, S>;
    fn new(witness: &'static Witness, _shards: Option<usize>) -> Self {
        let listener = |_, slot: Slot, cause| {
            if cause == RemovalCause::Expired {
                witness.fire(slot.value);
            }
        };
        let builder = Cache::builder().expire_after(Delay).eviction_listener(listener);
        let cache = builder.build_with_hasher(S::default());
        let housekept = cache.clone();
        std::thread::spawn(move || {
            loop {
                std::thread::sleep(HOUSEKEEPING);
                housekept.run_pending_tasks();
            }
        });
        Self(cache)
    }
    fn caller(&'static self) -> Self::Caller {
        &self.0
    }
    fn settle(&self) {
        self.0.run_pending_tasks();
    }
}

impl<S: KeyHasher> Caller for &'static Cache<u64, Slot, S> {
    type Handle = ();
    fn schedule(&mut self, Timer { key, value, delay }: Timer) {
        self.insert(key, Slot { value, delay });
    }
    fn cancel(&mut self, key: u64, (): ()) -> Option<u64> {
        self.remove(&key).map(|slot| slot.value)
    }
    fn reschedule(&mut self, key: u64, (): &mut (), delay: Duration) -> bool {
        debug_assert_eq!(delay, HEARTBEAT, "a time to idle is one for all");
        self.get(&key).is_some()
    }
}
