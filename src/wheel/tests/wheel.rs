//! The public wheel: against a `BTreeMap`, and what it promises.

use super::*;
use crate::wheel::{Key, SPARE_TICKETS, Wheel};
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// The public wheel, and what it should hold.
struct WheelModel {
    wheel: Wheel<u64>,
    expected: BTreeMap<(u64, u64), Key>,
    gone: Vec<Key>,
    random: Random,
    ids: u64,
}

impl WheelModel {
    fn new(start: u64, seed: u64) -> Self {
        Self {
            wheel: Wheel::starting_at(start),
            expected: BTreeMap::new(),
            gone: Vec::new(),
            random: Random::new(seed),
            ids: 0,
        }
    }

    fn some_tick(&mut self) -> u64 {
        let distance = self.random.spread(40);
        if self.random.below(12) == 0 {
            self.wheel.now().saturating_sub(distance % 100)
        } else {
            self.wheel.now().saturating_add(distance)
        }
    }

    fn insert(&mut self) {
        let deadline = self.some_tick();
        for _ in 0..1 + self.random.spread(5) {
            self.ids += 1;
            let key = self.wheel.insert(deadline, self.ids);
            assert_eq!(self.wheel.get(key), Some(&self.ids));
            assert_eq!(self.wheel.deadline(key), Some(deadline));
            self.expected.insert((deadline, self.ids), key);
        }
    }

    /// Removes the earliest as often as any other.
    fn remove(&mut self) {
        for _ in 0..self.random.spread(6) {
            let from = if self.random.below(2) == 0 { 0 } else { self.some_tick() };
            let Some((&place, &key)) = self.expected.range((from, 0)..).next() else { return };
            self.expected.remove(&place);
            assert_eq!(self.wheel.remove(key), Some(place.1));
            self.gone.push(key);
        }
    }

    /// Moves the earliest as often as any other.
    fn reschedule(&mut self) {
        for _ in 0..self.random.spread(6) {
            let from = if self.random.below(2) == 0 { 0 } else { self.some_tick() };
            let Some((&(before, id), &key)) = self.expected.range((from, 0)..).next() else { return };
            let deadline = if self.random.below(8) == 0 { before } else { self.some_tick() };
            self.expected.remove(&(before, id));
            self.expected.insert((deadline, id), key);
            assert!(self.wheel.reschedule(key, deadline));
            assert_eq!((self.wheel.get(key), self.wheel.deadline(key)), (Some(&id), Some(deadline)));
        }
    }

    fn advance(&mut self) {
        let before = self.wheel.now();
        let to = self.some_tick();
        let limit = if self.random.below(2) == 0 { usize::MAX } else { self.random.spread(6) as usize };
        let (expected, gone) = (&mut self.expected, &mut self.gone);
        let mut count = 0;
        let caught_up = self.wheel.advance_bounded(to, limit, |id| {
            count += 1;
            let deadline = expected.first_key_value().expect("it was inserted").0.0;
            assert!(deadline <= before.max(to), "never early");
            gone.push(expected.remove(&(deadline, id)).expect("earliest first, once"));
        });
        assert!(count <= limit.max(1));
        if caught_up {
            assert_eq!(self.wheel.now(), before.max(to));
            assert!(self.expected.range(..=(before.max(to), u64::MAX)).next().is_none());
        }
    }

    fn step(&mut self) {
        match self.random.below(1000) {
            0..380 => self.insert(),
            380..560 => self.remove(),
            560..700 => self.reschedule(),
            700..999 => self.advance(),
            _ => {
                self.wheel.clear();
                self.gone.extend(std::mem::take(&mut self.expected).into_values());
            }
        }
        assert_eq!(self.wheel.len(), self.expected.len());
        let earliest = self.expected.first_key_value().map(|(&(deadline, _), _)| deadline);
        assert_eq!(self.wheel.next_expiry(), earliest);
        if self.random.below(16) == 0 {
            self.wheel.check_invariants();
            for key in self.gone.drain(..) {
                assert!(self.wheel.get_mut(key).is_none() && !self.wheel.reschedule(key, 0));
            }
        }
    }
}

#[test]
fn wheel_agrees_with_a_model() {
    for (seed, start) in STARTS.into_iter().cycle().take(SEEDS).enumerate() {
        let mut model = WheelModel::new(start, seed as u64);
        (0..if cfg!(miri) { 15 } else { 5000 }).for_each(|_| model.step());
    }
}

/// Nothing comes out before `deadline`, and the one value at it.
fn expires_exactly_at(wheel: &mut Wheel<u64>, deadline: u64, value: u64) {
    wheel.advance(deadline - 1, |value| panic!("{value} came early"));
    let mut expired = None;
    wheel.advance(deadline, |value| assert_eq!(expired.replace(value), None));
    assert_eq!(expired, Some(value), "due at {deadline}");
    assert!(wheel.is_empty());
}

#[test]
fn every_small_move_expires_at_its_exact_tick() {
    let reach = if cfg!(miri) { 4 } else { 70 };
    for start in [0, 4096 - 70, (1 << 36) - 33] {
        let mut wheel = Wheel::starting_at(start);
        let mut round = 0;
        for first in 1..=reach {
            for wait in 0..first {
                for second in 1..=reach {
                    // A new wheel from time to time, to stay near the boundary.
                    if round % 4 == 0 {
                        wheel = Wheel::starting_at(start);
                    }
                    round += 1;
                    let now = wheel.now();
                    let key = wheel.insert(now + first, round);
                    wheel.advance(now + wait, |value| panic!("{value} came early"));
                    if round % 2 == 0 {
                        let value = wheel.remove(key).expect("it still waits");
                        wheel.insert(now + wait + second, value);
                    } else {
                        assert!(wheel.reschedule(key, now + wait + second));
                    }
                    assert_eq!(wheel.next_expiry(), Some(now + wait + second));
                    expires_exactly_at(&mut wheel, now + wait + second, round);
                }
            }
        }
    }
}

#[test]
fn every_small_deadline_is_kept_when_time_moves_tick_by_tick() {
    for start in STARTS {
        let mut wheel = Wheel::starting_at(start);
        for ahead in 1..=5000u64 {
            wheel.insert(start + ahead, ahead);
        }
        for now in 1..=5000 {
            let mut expired = None;
            wheel.advance(start + now, |ahead| assert_eq!(expired.replace(ahead), None));
            assert_eq!(expired, Some(now));
        }
    }
}

#[test]
fn removed_values_never_outnumber_the_others_for_long() {
    let mut wheel = Wheel::new();
    let keep = 1000;
    for i in 0..keep {
        wheel.insert(1 << 40, i);
    }
    for i in 0..100_000u64 {
        let key = wheel.insert((1 << 30) + i % 7777 * 1000, i);
        wheel.remove(key);
        let tickets = wheel.slots.len();
        assert!(tickets <= 2 * keep as usize + 2 * SPARE_TICKETS, "{tickets} after {i}");
    }
    wheel.check_invariants();
}

/// A heartbeat: all are moved over and over, and none expires.
#[test]
fn what_moves_leave_behind_is_swept_out() {
    let mut wheel = Wheel::new();
    let keys: Vec<Key> = (0..1000).map(|i| wheel.insert(1 << 30, i)).collect();
    for beat in 1..=100 {
        for &key in &keys {
            assert!(wheel.reschedule(key, (1 << 30) + beat));
            let tickets = wheel.slots.len();
            assert!(tickets <= 2 * keys.len() + 2 * SPARE_TICKETS, "{tickets} at beat {beat}");
        }
    }
    let tickets = wheel.slots.len();
    assert!(keys.iter().all(|&key| wheel.reschedule(key, (1 << 30) + 100)));
    assert_eq!(wheel.slots.len(), tickets, "a move to the same tick costs nothing");
    wheel.check_invariants();
    wheel.advance((1 << 30) + 99, |value| panic!("{value} came early"));
    let mut count = 0;
    wheel.advance((1 << 30) + 100, |_| count += 1);
    assert_eq!((count, wheel.next_expiry()), (1000, None));
}

#[test]
fn removed_values_are_swept_out_when_the_others_expire() {
    let mut wheel = Wheel::new();
    let keys: Vec<Key> = (0..10_000).map(|i| wheel.insert((1 << 30) + i, ())).collect();
    for _ in 0..10_000 {
        wheel.insert(1, ());
    }
    for key in keys {
        assert!(wheel.remove(key).is_some());
    }
    wheel.advance(1, |()| ());
    assert!(wheel.slots.len() <= SPARE_TICKETS);
    wheel.check_invariants();
}

#[test]
fn next_expiry_looks_past_removed_values() {
    let mut wheel = Wheel::new();
    let keys: Vec<Key> = (0..60).map(|i| wheel.insert(5000 + i % 30 * 100, ())).collect();
    for i in 0..30 {
        assert_eq!(wheel.next_expiry(), Some(5000 + i as u64 * 100));
        wheel.remove(keys[i]);
        assert_eq!(wheel.next_expiry(), Some(5000 + i as u64 * 100), "the other one");
        wheel.remove(keys[i + 30]);
        wheel.check_invariants();
    }
    assert_eq!(wheel.next_expiry(), None);
}

#[test]
fn a_panic_in_the_closure_loses_nothing_else() {
    let mut wheel = Wheel::new();
    for i in 0..100u64 {
        wheel.insert(100 + i / 10, i);
    }
    let mut expired = 0;
    for _ in 0..10 {
        let unwound = catch_unwind(AssertUnwindSafe(|| {
            wheel.advance(200, |value| {
                expired += 1;
                assert!(value % 10 != 5, "as planned");
            });
        }));
        assert!(unwound.is_err());
        assert_eq!(wheel.len(), 100 - expired);
        wheel.check_invariants();
    }
    wheel.advance(200, |_| expired += 1);
    assert_eq!(expired, 100);
    assert_eq!(wheel.now(), 200);
}

/// Panics when it is dropped.
struct Grenade(bool);

impl Drop for Grenade {
    fn drop(&mut self) {
        assert!(!self.0, "as planned");
    }
}

#[test]
fn a_panic_in_a_drop_leaves_the_wheel_consistent() {
    let mut wheel = Wheel::new();
    for i in 0..10 {
        wheel.insert(100 + i, Grenade(i == 4));
    }
    assert!(catch_unwind(AssertUnwindSafe(|| wheel.clear())).is_err());
    assert_eq!(wheel.len(), 5);
    wheel.check_invariants();
    wheel.insert(1, Grenade(true));
    assert!(catch_unwind(AssertUnwindSafe(|| wheel.advance(1, drop))).is_err());
    wheel.check_invariants();
    assert_eq!(wheel.next_expiry(), Some(105), "the earlier ones are gone");
    wheel.advance(110, drop);
    assert!(wheel.is_empty());
}

#[test]
fn wheel_is_send_and_sync() {
    fn check<T: Send + Sync>() {}
    check::<Wheel<u8>>();
    check::<Slots<Narrow>>();
}
