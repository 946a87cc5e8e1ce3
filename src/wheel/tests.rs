//! The wheel against dumb models: a `BTreeMap` for the slots and for the public wheel.

use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};

use super::slots::{Entry, Slots, Visit};
use super::{Key, SPARE_TICKETS, Wheel};

/// Where a hand starts: the beginning, and just below a carry into a high level.
const STARTS: [u64; 6] = [0, 4096 - 7, (1 << 36) - 3, (1 << 42) - 3, (1 << 63) - 3, u64::MAX - (1 << 40)];

/// Runs of a model, each with its own seed.
const SEEDS: usize = if cfg!(miri) { 6 } else { 24 };

/// Xorshift64*.
struct Random(u64);

impl Random {
    fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, bound: u64) -> u64 {
        (self.next() >> 8) % bound
    }

    /// Small ones as often as large ones, up to `bits` bits.
    fn spread(&mut self, bits: u64) -> u64 {
        let bits = self.below(bits + 1);
        self.next() & ((1 << bits) - 1)
    }
}

/// A whole tick.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Wide {
    tick: u64,
    id: u32,
}

impl Entry for Wide {
    const MAY_BE_UNWANTED: bool = true;

    fn tick(self, _hand: u64) -> u64 {
        self.tick
    }
}

/// 32 bits of a tick, as the shards' hints have them.
#[derive(Clone, Copy, Debug)]
struct Narrow {
    tick: u32,
    id: u32,
}

impl Entry for Narrow {
    const MAY_BE_UNWANTED: bool = true;

    fn tick(self, hand: u64) -> u64 {
        hand.wrapping_add_signed(i64::from(self.tick.wrapping_sub(hand as u32) as i32))
    }
}

/// An entry that the model can make and recognise.
trait Modelled: Entry {
    /// How far from the hand its tick may be.
    const REACH_BITS: u64;
    fn new(tick: u64, id: u32) -> Self;
    fn id(self) -> u32;
}

impl Modelled for Wide {
    const REACH_BITS: u64 = 48;
    fn new(tick: u64, id: u32) -> Self {
        Self { tick, id }
    }
    fn id(self) -> u32 {
        self.id
    }
}

impl Modelled for Narrow {
    const REACH_BITS: u64 = 29;
    fn new(tick: u64, id: u32) -> Self {
        Self { tick: tick as u32, id }
    }
    fn id(self) -> u32 {
        self.id
    }
}

/// Slots, and what they should hold.
struct SlotsModel<E> {
    slots: Slots<E>,
    expected: BTreeSet<(u64, u32)>,
    /// What the round of the sweep under way has yet to look at.
    unswept: BTreeSet<u32>,
    random: Random,
    ids: u32,
}

impl<E: Modelled> SlotsModel<E> {
    fn new(start: u64, seed: u64) -> Self {
        Self {
            slots: Slots::new(start),
            expected: BTreeSet::new(),
            unswept: BTreeSet::new(),
            random: Random::new(seed),
            ids: 0,
        }
    }

    fn some_tick(&mut self) -> u64 {
        let hand = self.slots.hand();
        let distance = self.random.spread(E::REACH_BITS);
        match self.random.below(10) {
            0 => hand.saturating_sub(distance % 5000),
            1 => hand,
            _ => hand.saturating_add(distance),
        }
    }

    fn insert(&mut self) {
        // Several to a tick, so that slots hold more than a chunk.
        let tick = self.some_tick();
        let count = if self.random.below(20) == 0 { 200 } else { 1 + self.random.below(3) };
        for _ in 0..count {
            self.ids += 1;
            let near = tick.saturating_add(self.random.below(3));
            self.slots.insert(E::new(near, self.ids));
            self.expected.insert((near, self.ids));
        }
    }

    fn advance(&mut self) {
        let before = self.slots.hand();
        let to = self.some_tick();
        let limit = self.random.spread(10) as usize;
        let (expected, unswept) = (&mut self.expected, &mut self.unswept);
        let mut visits = 0;
        let mut latest = 0;
        let caught_up = self.slots.advance_visiting(to, &mut limit.max(1), |visit, entry| {
            visits += 1;
            if let Visit::Due(tick) = visit {
                assert!(latest <= tick, "in order");
                latest = tick;
                let &(first, _) = expected.first().expect("it was inserted");
                assert_eq!(tick, first, "earliest first");
                assert!(tick <= before.max(to), "never early");
                assert!(expected.remove(&(tick, entry.id())), "once");
                unswept.remove(&entry.id());
            }
            true
        });
        assert!(visits <= limit.max(1), "{visits} entries touched, {limit} allowed");
        assert!(self.slots.hand() >= before && self.slots.hand() <= before.max(to));
        if caught_up {
            assert_eq!(self.slots.hand(), before.max(to));
            assert!(self.expected.first().is_none_or(|&(tick, _)| tick > self.slots.hand()), "none overdue");
        }
    }

    /// Drops some of what it sees.
    fn prepare(&mut self) {
        let limit = self.random.spread(7) as usize;
        let hand = self.slots.hand();
        let fate = self.random.below(8) as u32;
        let (expected, unswept) = (&mut self.expected, &mut self.unswept);
        let mut visits = 0;
        self.slots.prepare(limit, |entry| {
            visits += 1;
            let is_wanted = !(fate + entry.id()).is_multiple_of(8);
            if !is_wanted {
                assert!(expected.remove(&(entry.tick(hand), entry.id())), "it is held");
                unswept.remove(&entry.id());
            }
            is_wanted
        });
        assert!(visits <= limit.max(1), "{visits} entries touched, {limit} allowed");
        assert_eq!(self.slots.hand(), hand, "time does not move");
    }

    fn probe(&mut self) {
        let tick = self.known_tick();
        let odd_only = self.random.below(2) == 0;
        let live = |id: u32| !odd_only || id % 2 == 1;
        let expected = self.expected.range((tick, 0)..=(tick, u32::MAX)).any(|&(_, id)| live(id));
        let found = self.slots.probe(tick, usize::MAX, |entry| live(entry.id()));
        assert_eq!(found, Some(expected), "tick {tick}");
        let most = self.random.spread(8) as usize;
        let mut looked = 0;
        let bounded = self.slots.probe(tick, most, |entry| {
            looked += 1;
            live(entry.id())
        });
        assert!(looked <= most && bounded.is_none_or(|found| found == expected));
    }

    fn review(&mut self) {
        let tick = self.known_tick();
        let fate = self.random.below(8);
        let hand = self.slots.hand();
        let (expected, unswept) = (&mut self.expected, &mut self.unswept);
        let mut due: BTreeSet<u32> = expected.range((tick, 0)..=(tick, u32::MAX)).map(|&(_, id)| id).collect();
        self.slots.review(tick, |entry| {
            due.remove(&entry.id());
            unswept.remove(&entry.id());
            changed(entry, hand, fate, expected)
        });
        assert!(due.is_empty(), "all that is due at {tick} is reviewed");
    }

    fn sweep(&mut self) {
        // Mostly to the end: in the middle of a round nothing is begun with ahead.
        let limit = if self.random.below(3) == 0 { self.random.spread(9) as usize } else { usize::MAX };
        let fate = self.random.below(8);
        let hand = self.slots.hand();
        if self.unswept.is_empty() {
            // Perhaps in the middle of a round: then the rest of it only adds to what is seen.
            self.unswept = self.expected.iter().map(|&(_, id)| id).collect();
            self.slots.review_some(usize::MAX, Some);
        }
        let (expected, unswept) = (&mut self.expected, &mut self.unswept);
        let done = self.slots.review_some(limit, |entry| {
            unswept.remove(&entry.id());
            changed(entry, hand, fate, expected)
        });
        if done {
            assert!(unswept.is_empty(), "{} of a round were not seen", unswept.len());
        }
    }

    /// A tick that something is due at, if anything is; or any.
    fn known_tick(&mut self) -> u64 {
        let from = (self.some_tick(), 0);
        let known = self.expected.range(from..).next().map(|&(tick, _)| tick);
        known.filter(|_| self.random.below(4) > 0).unwrap_or(from.0)
    }

    fn step(&mut self) {
        match self.random.below(20) {
            0..6 => self.insert(),
            6..11 => self.advance(),
            11..13 => self.probe(),
            13 => self.review(),
            14..16 => self.sweep(),
            _ => self.prepare(),
        }
        assert_eq!(self.slots.len(), self.expected.len());
        assert_eq!(self.slots.next_tick(), self.expected.first().map(|&(tick, _)| tick));
        if self.random.below(8) == 0 {
            self.slots.check_invariants();
        }
    }
}

/// What a review makes of an entry: mostly it stays, some go, some move.
fn changed<E: Modelled>(entry: E, hand: u64, fate: u64, expected: &mut BTreeSet<(u64, u32)>) -> Option<E> {
    let old = (entry.tick(hand), entry.id());
    assert!(expected.contains(&old), "{old:?} is not held");
    match (fate + u64::from(entry.id())) % 8 {
        0 | 1 => {
            expected.remove(&old);
            None
        }
        2 => {
            let new = (old.0.saturating_add(fate * 50).max(1) - 1, old.1);
            expected.remove(&old);
            expected.insert(new);
            Some(E::new(new.0, new.1))
        }
        _ => Some(entry),
    }
}

fn run_slots<E: Modelled>(steps: usize) {
    for (seed, start) in STARTS.into_iter().cycle().take(SEEDS).enumerate() {
        let mut model = SlotsModel::<E>::new(start, seed as u64);
        (0..steps).for_each(|_| model.step());
    }
}

#[test]
fn slots_agree_with_a_model() {
    run_slots::<Wide>(if cfg!(miri) { 15 } else { 3000 });
}

#[test]
fn slots_agree_with_a_model_when_entries_keep_32_bits() {
    run_slots::<Narrow>(if cfg!(miri) { 15 } else { 3000 });
}

/// All that is due by `to`, with the hand each came out at.
fn expire_all(slots: &mut Slots<Wide>, to: u64) -> Vec<(u64, u32)> {
    let mut expired = Vec::new();
    assert!(slots.advance_bounded(to, usize::MAX, |tick, entry| expired.push((tick, entry.id))));
    expired
}

#[test]
fn hand_and_deadline_may_differ_in_any_bit() {
    for (hand, ahead) in [((1 << 36) - 10, 20), ((1 << 42) - 3, 5), ((1 << 63) - 3, 5), (0, 1 << 63)] {
        let mut slots = Slots::new(hand);
        slots.insert(Wide::new(hand + ahead, 1));
        assert_eq!(slots.next_tick(), Some(hand + ahead));
        assert_eq!(expire_all(&mut slots, hand + ahead - 1), []);
        assert_eq!(expire_all(&mut slots, hand + ahead), [(hand + ahead, 1)]);
    }
}

#[test]
fn time_may_jump_farther_than_entries_can_tell() {
    let hand = (1u64 << 36) - 5;
    let mut slots = Slots::new(hand);
    (0..31).for_each(|bit| slots.insert(Narrow::new(hand + (1 << bit), bit)));
    let mut expired = Vec::new();
    assert!(slots.advance_bounded(hand << 4, usize::MAX, |tick, entry| {
        assert_eq!(tick, hand + (1 << entry.id));
        expired.push(entry.id);
    }));
    assert!(expired.into_iter().eq(0..31));
}

#[test]
fn the_last_tick_of_all_is_reached() {
    let mut slots = Slots::new(u64::MAX - 2);
    slots.insert(Wide::new(u64::MAX, 1));
    slots.insert(Wide::new(u64::MAX - 1, 2));
    assert_eq!(expire_all(&mut slots, u64::MAX), [(u64::MAX - 1, 2), (u64::MAX, 1)]);
    slots.insert(Wide::new(u64::MAX, 3));
    assert_eq!(slots.next_tick(), Some(u64::MAX));
    assert_eq!(expire_all(&mut slots, u64::MAX), [(u64::MAX, 3)]);
    slots.check_invariants();
}

#[test]
fn overdue_entries_come_out_in_order_wherever_time_goes() {
    let mut slots = Slots::new(100);
    for tick in [100, 30, 70] {
        slots.insert(Wide::new(tick, tick as u32));
    }
    assert_eq!(slots.next_tick(), Some(30));
    assert_eq!(expire_all(&mut slots, 100), [(30, 30), (70, 70), (100, 100)]);
    slots.insert(Wide::new(5, 5));
    slots.insert(Wide::new(101, 101));
    assert_eq!(expire_all(&mut slots, 7), [(5, 5)]);
    assert_eq!(slots.hand(), 100, "time never goes back");
}

#[test]
fn empty_time_costs_nothing() {
    let mut slots = Slots::<Wide>::new(0);
    let mut visits = 0;
    for turn in 1..=1000u64 {
        slots.insert(Wide::new(turn << 54, 0));
        assert!(slots.advance_visiting((turn << 54) + 1, &mut { usize::MAX }, |_, _| {
            visits += 1;
            true
        }));
    }
    assert_eq!(visits, 1000, "a lone entry does not cascade level by level");
    assert!(slots.advance_bounded(u64::MAX, 1, |_, _| ()));
}

#[test]
fn a_million_entries_in_one_far_slot_are_taken_apart_in_pieces() {
    let count = if cfg!(miri) { 2_000 } else { 1_000_000 };
    let base = 1u64 << 30;
    let mut slots = Slots::new(base - 10);
    for id in 0..count {
        slots.insert(Wide::new(base + u64::from(id % 5003), id));
    }
    let (mut calls, mut expired, mut late, mut latest) = (0, 0, 0, 0);
    loop {
        let mut visits = 0;
        let done = slots.advance_visiting(base + 6000, &mut 1000, |visit, entry| {
            visits += 1;
            if let Visit::Due(tick) = visit {
                assert!(latest <= tick, "nothing comes out before the slot was taken apart");
                latest = tick;
                expired += 1;
                late += u32::from(entry.id >= count);
            }
            true
        });
        assert!(visits <= 1000);
        if done {
            break;
        }
        calls += 1;
        if calls <= 100 {
            // In the middle of it, all answers stay right.
            slots.insert(Wide::new(base + 5500, count + calls));
            assert_eq!(slots.next_tick(), Some(base));
            assert_eq!(slots.probe(base + 5500, usize::MAX, |_| true), Some(true));
            assert_eq!(slots.probe(base + 5400, usize::MAX, |_| true), Some(false));
            assert_eq!(slots.probe(base + 5500, 1, |_| true), None);
        }
    }
    assert_eq!(expired, count + late);
    assert_eq!(slots.len(), 0);
    slots.check_invariants();
}

#[test]
fn no_step_is_long_though_many_values_wait_in_one_far_slot() {
    let count = if cfg!(miri) { 2_000 } else { 200_000 };
    let far = 1u64 << 18;
    let mut wheel = Wheel::starting_at(far - 1_000);
    let mut random = Random::new(1);
    let keys: Vec<Key> = (0..count).map(|value| wheel.insert(far + random.below(far), value)).collect();
    // Some go before, some while the slot is taken apart.
    keys.iter().step_by(5).for_each(|&key| _ = wheel.remove(key));
    let (mut expired, mut latest) = (0, 0);
    for now in far - 1_000..far + 3 * 4096 {
        if now == far - 500 {
            keys.iter().skip(1).step_by(5).for_each(|&key| _ = wheel.remove(key));
        }
        let caught_up = wheel.advance_bounded(now, 300, |_| expired += 1);
        assert!(caught_up, "more than 300 were touched at {now}");
        latest = now;
    }
    let left = wheel.len();
    wheel.check_invariants();
    wheel.advance(2 * far, |_| expired += 1);
    assert_eq!((expired, wheel.len()), (keys.len() - 2 * keys.len().div_ceil(5), 0), "{left} were left at {latest}");
}

#[test]
fn what_is_done_ahead_counts_as_looked_at() {
    let mut wheel = Wheel::new();
    (0..500).for_each(|value| _ = wheel.insert((1 << 18) + value, value));
    let now = (1 << 18) - 100;
    for (step, left) in [493, 486, 479].into_iter().enumerate() {
        let now = now + step as u64;
        assert!(wheel.advance_bounded(now, 7, |_| panic!("early")));
        assert_eq!(wheel.slots.unprepared(), Some((left, 1 << 18)));
    }
}

#[test]
fn a_slot_that_has_become_empty_ahead_is_in_nobodys_way() {
    let far = 1u64 << 18;
    let mut slots = Slots::new(far - 4200);
    let insert = |slots: &mut Slots<Wide>, tick| (0..500).for_each(|id| slots.insert(Wide::new(tick, id)));
    insert(&mut slots, far + 9);
    assert!(slots.prepare(500, |_| true));
    while !slots.review_some(500, |_| None) {}
    assert_eq!(slots.len(), 0);
    insert(&mut slots, far - 4000);
    assert!(!slots.prepare(1, |_| true), "there is another one");
    assert_eq!(slots.unprepared(), Some((499, far - 4096)));
}

#[test]
fn a_slot_behind_one_that_has_become_empty_ahead_is_not_forgotten() {
    let mut wheel = Wheel::new();
    let first: Vec<Key> = (0..200).map(|value| wheel.insert(4096 + value, value)).collect();
    (0..5000).for_each(|value| _ = wheel.insert(3 * 4096 + value % 4096, value));
    // Too few for a sweep.
    first.into_iter().for_each(|key| _ = wheel.remove(key));
    for now in 1..3 * 4096 {
        wheel.advance(now, |value| panic!("{value} came early"));
    }
    assert!(wheel.advance_bounded(3 * 4096, 300, |_| ()), "it was taken apart ahead");
}

#[test]
fn the_last_tick_of_all_may_be_removed_while_its_slot_is_ahead() {
    let mut wheel = Wheel::starting_at(u64::MAX - (1 << 13) + 1);
    let last = wheel.insert(u64::MAX, 0);
    (0..200).for_each(|value| _ = wheel.insert(u64::MAX - 4000 + value, value));
    assert!(wheel.advance_bounded(u64::MAX - 4096, 5, |value| panic!("{value} came early")));
    assert!(wheel.slots.unprepared().is_some());
    wheel.remove(last);
    wheel.check_invariants();
}

/// How far a step that comes rarely brings what is ahead: its part of the time.
#[test]
fn steps_of_any_length_do_their_part() {
    for step in [1, 10, 50] {
        let mut wheel = Wheel::starting_at(4096 - 300);
        (0..50_000).for_each(|value| _ = wheel.insert(4096 + value % 4096, value));
        for now in (4096 - 300..4096).step_by(step) {
            wheel.advance(now, |value| panic!("{value} came early"));
        }
        let left = wheel.slots.unprepared().map_or(0, |(left, _)| left);
        assert!(left <= 50_000 * step / 255, "{left} are left, {step} ticks before");
    }
}

#[test]
fn what_is_ahead_expires_on_time_though_time_jumps() {
    for jump in [1 << 18, (1 << 18) + 1, (1 << 18) + 7_000, 1 << 30] {
        for prepared in [1, 70, 1000] {
            let mut slots = Slots::new((1 << 18) - 100);
            (0..500).for_each(|id| slots.insert(Wide::new((1 << 18) + u64::from(id) * 31, id)));
            slots.advance_bounded((1 << 18) - 90, usize::MAX, |_, _| panic!("early"));
            assert_eq!(slots.prepare(prepared, |_| true), prepared > 500);
            slots.check_invariants();
            assert_eq!(slots.next_tick(), Some(1 << 18));
            let expected = (0..500).map(|id| ((1 << 18) + u64::from(id) * 31, id)).filter(|&(tick, _)| tick <= jump);
            assert!(expire_all(&mut slots, jump).into_iter().eq(expected), "jump {jump}, {prepared} prepared");
            slots.check_invariants();
        }
    }
}

#[test]
fn a_slot_half_swept_expires_on_time() {
    let mut slots = Slots::new(0);
    (0..500).for_each(|id| slots.insert(Wide::new(1000 + u64::from(id) % 20, id)));
    assert!(!slots.review_some(100, Some));
    slots.check_invariants();
    assert_eq!(slots.next_tick(), Some(1000));
    assert_eq!(expire_all(&mut slots, 999), []);
    slots.check_invariants();
    assert_eq!(expire_all(&mut slots, 1009).len(), 250);
    while !slots.review_some(7, Some) {}
    assert_eq!(expire_all(&mut slots, 1019).len(), 250);
    slots.check_invariants();
}

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

    /// The earliest as often as any other.
    fn remove(&mut self) {
        for _ in 0..self.random.spread(6) {
            let from = if self.random.below(2) == 0 { 0 } else { self.some_tick() };
            let Some((&place, &key)) = self.expected.range((from, 0)..).next() else { return };
            self.expected.remove(&place);
            assert_eq!(self.wheel.remove(key), Some(place.1));
            self.gone.push(key);
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
            380..700 => self.remove(),
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
            self.gone.drain(..).for_each(|key| assert_eq!(self.wheel.get_mut(key), None));
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

/// Nothing before `deadline`, the one value at it.
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
                    let value = wheel.remove(key).expect("it still waits");
                    wheel.insert(now + wait + second, value);
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
