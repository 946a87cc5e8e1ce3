//! The slots: against a `BTreeSet`, and what they promise.

use super::*;
use crate::wheel::slots::Visit;
use std::collections::BTreeSet;

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
            visits += usize::from(!matches!(visit, Visit::Soon));
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
        let found = self.slots.probe(tick, usize::MAX, usize::MAX, |entry| live(entry.id()));
        assert_eq!(found, Some(expected), "tick {tick}");
        let (most, tries) = (self.random.spread(8) as usize, self.random.below(9) as usize);
        let mut looked = 0;
        let bounded = self.slots.probe(tick, most, tries, |entry| {
            looked += 1;
            live(entry.id())
        });
        let is_bounded = looked <= most.min(tries.max(most / 16));
        let has_tried_all = looked < tries;
        assert!(is_bounded && bounded.is_none_or(|found| found == expected || !found && !has_tried_all));
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
        // Mostly to the end: in the middle of a round, no slot is begun with ahead of time.
        let limit = if self.random.below(3) == 0 { self.random.spread(9) as usize } else { usize::MAX };
        let fate = self.random.below(8);
        let hand = self.slots.hand();
        if self.unswept.is_empty() {
            // Completes the round that may be under way, so that the next call begins one.
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

    /// Mostly a tick at which something is due; else any.
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
        assert!(slots.advance_visiting((turn << 54) + 1, &mut { usize::MAX }, |visit, _| {
            visits += usize::from(!matches!(visit, Visit::Soon));
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
            visits += usize::from(!matches!(visit, Visit::Soon));
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
            assert_eq!(slots.probe(base + 5500, usize::MAX, usize::MAX, |_| true), Some(true));
            assert_eq!(slots.probe(base + 5400, usize::MAX, usize::MAX, |_| true), Some(false));
            assert_eq!(slots.probe(base + 5500, 1, usize::MAX, |_| true), None);
        }
    }
    assert!(calls >= count / 1000, "{calls} calls, a thousand each");
    assert_eq!(expired, count + late);
    assert_eq!(slots.len(), 0);
    slots.check_invariants();
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

#[test]
fn what_is_due_is_shown_shortly_before() {
    for (count, reach) in [(300, 100_000), (3_000, 10_000), (5_000, 100)] {
        let mut random = Random::new(count);
        let mut slots = Slots::new(1000);
        let mut shown = vec![0; count as usize];
        for id in 0..count {
            slots.insert(Wide::new(1001 + random.below(reach), id as u32));
        }
        for hand in 1000..=1001 + reach {
            slots.advance_visiting(hand, &mut { usize::MAX }, |visit, entry| {
                let shown = &mut shown[entry.id() as usize];
                match visit {
                    Visit::Soon => {
                        assert!(entry.tick(hand) < hand + 64, "it would not be in the cache any more");
                        *shown += 1;
                    }
                    Visit::Due(_) => assert!((1..=2).contains(shown), "shown {shown} times"),
                    Visit::Passing => {}
                }
                true
            });
        }
        assert!(slots.len() == 0 && shown.iter().all(|&shown| shown > 0));
    }
}
