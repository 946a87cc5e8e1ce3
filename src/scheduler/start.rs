//! Starting a timer: whether there is room for it, and what is counted.

use super::{Place, Scheduled, Scheduler};
use crate::counters::Event;
use crate::error::ScheduleError;
use crate::shard::{Access, Due, Ordinal, Repeats, Started};
use crate::thread;
use crate::timer::Address;
use crate::when::When;
use std::hash::{BuildHasher, Hash};

/// Whether a new timer has room within the capacity.
#[derive(PartialEq)]
enum Room {
    /// Yes: room was taken for it.
    Taken,
    /// It needs none: a timer of its key exists, and has room.
    Held,
    None,
}

impl<K: Hash + Eq + Send + Sync + 'static, V: Send + 'static, S: BuildHasher> Scheduler<K, V, S> {
    /// Starts a timer, and returns its address with it.
    // Always inlined: each caller has one kind of `When`.
    #[inline(always)]
    pub(super) fn start(&self, key: K, value: V, when: When) -> Result<(Address, Scheduled<V>), ScheduleError<K, V>> {
        let place = self.place(&key);
        // While the key's line is on its way into the cache.
        let due = when.due(self.clock(), place.shard);
        let repeats = self.repeats();
        let scheduled = self.start_at(place, key, value, due, repeats, &mut Access::new(&thread::ordinal()))?;
        Ok((Address { shard: place.shard_number, hash: place.spot.hash() }, scheduled))
    }

    /// Starts a timer whose place and deadline are known.
    #[inline(always)]
    pub(crate) fn start_at(
        &self,
        place: Place<'_, K, V>,
        key: K,
        value: V,
        due: Due,
        repeats: Repeats<V>,
        access: &mut Access,
    ) -> Result<Scheduled<V>, ScheduleError<K, V>> {
        let core = &*self.0.core;
        let count = |event| core.counters.add(access.ordinal, event, 1);
        if core.is_closed() {
            count(Event::Rejected);
            return Err(ScheduleError::Closed(key, value));
        }
        let Place { shard, spot, .. } = place;
        let room = if core.capacity.is_bounded() { self.room_at(place, &key, access) } else { Room::Taken };
        if room == Room::None {
            count(Event::Rejected);
            return Err(self.no_room(key, value));
        }
        let has_room = room == Room::Taken;
        match shard.schedule(spot, key, value, due, repeats, access) {
            Ok(Started { identity, replaced, others }) => {
                if others > 0 {
                    core.counters.add(access.ordinal, Event::Replaced, others as u64);
                    core.capacity.give(access.ordinal, others);
                }
                self.settle_room(has_room, replaced.is_some(), access.ordinal);
                count(Event::Scheduled);
                if replaced.is_some() {
                    count(Event::Replaced);
                }
                Ok((identity, replaced))
            }
            Err(refused) => {
                core.capacity.give(access.ordinal, usize::from(has_room));
                count(Event::Rejected);
                Err(refused.into())
            }
        }
    }

    /// As `start_at`, unless a timer of this key exists: then the value comes back.
    pub(crate) fn start_if_absent_at(
        &self,
        place: Place<'_, K, V>,
        key: K,
        value: V,
        due: Due,
    ) -> Result<Option<V>, ScheduleError<K, V>> {
        let core = &*self.0.core;
        // `access` is dropped before the key, whose destructor is the user's.
        let ordinal = thread::ordinal();
        let mut access = Access::new(&ordinal);
        let count = |event| core.counters.add(&ordinal, event, 1);
        let Place { shard, spot, .. } = place;
        let is_there = || shard.relies_on(spot, |other| *other == key, &access);
        let room = if core.is_closed() { Room::None } else { self.room(is_there, &ordinal) };
        match room {
            Room::Taken => {}
            Room::Held => {
                drop(access);
                // Not after the answer is made: if its destructor panics, the value goes, too.
                drop(key);
                return Ok(Some(value));
            }
            Room::None => {
                count(Event::Rejected);
                return Err(self.no_room(key, value));
            }
        }
        let started = shard.schedule_if_absent(spot, key, value, due, self.repeats(), &mut access);
        match started {
            Ok(None) => count(Event::Scheduled),
            Ok(Some(_)) => {
                core.capacity.give(&ordinal, 1);
                shard.drop_ripe_keys(&mut access);
            }
            Err(_) => {
                core.capacity.give(&ordinal, 1);
                count(Event::Rejected);
            }
        }
        started.map_err(ScheduleError::from)
    }

    /// As `room`, for a timer that may replace another one: then it needs no room, and must not take any from others
    /// even for a moment.
    #[inline]
    fn room_at(&self, Place { shard, spot, .. }: Place<'_, K, V>, key: &K, access: &Access) -> Room {
        self.room(|| shard.holds(spot, |other| other == key, access), access.ordinal)
    }

    /// Takes room for a timer, unless a timer of its key exists.
    fn room(&self, is_there: impl Fn() -> bool, ordinal: &Ordinal) -> Room {
        if is_there() {
            Room::Held
        } else if self.0.core.capacity.take(ordinal) {
            Room::Taken
        } else if is_there() {
            // It was started meanwhile, and perhaps took the last room.
            Room::Held
        } else {
            Room::None
        }
    }

    /// The error if there was no room. `Closed` goes first: in a scheduler that was closed meanwhile the key is not
    /// found either.
    pub(crate) fn no_room(&self, key: K, value: V) -> ScheduleError<K, V> {
        let is_closed = self.0.core.is_closed();
        if is_closed { ScheduleError::Closed(key, value) } else { ScheduleError::Full(key, value) }
    }

    /// A replacement takes over the room of the timer that it replaces.
    fn settle_room(&self, has_room: bool, has_replaced: bool, ordinal: &Ordinal) {
        match (has_room, has_replaced) {
            (true, true) => self.0.core.capacity.give(ordinal, 1),
            (false, false) => self.0.core.capacity.force(ordinal),
            (true, false) | (false, true) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    /// A call that comes between the look for a timer of the key and the look for room takes the last room, for that
    /// very key.
    #[test]
    fn a_timer_that_comes_meanwhile_is_no_lack_of_room() {
        let scheduler = Scheduler::builder().capacity(1).build(|_: &u64, ()| {}).expect("in range");
        let ordinal = thread::ordinal();
        for comes in [true, false] {
            let looks = std::cell::Cell::new(0);
            let other = || u64::from(!comes);
            let is_there = || {
                if looks.replace(looks.get() + 1) == 0 {
                    assert!(scheduler.schedule(other(), Duration::from_secs(3600)).is_ok());
                    return false;
                }
                scheduler.contains(&0)
            };
            assert!(scheduler.room(is_there, &ordinal) == if comes { Room::Held } else { Room::None });
            assert_eq!((looks.get(), scheduler.cancel(&other())), (2, Some(())));
        }
    }
}
