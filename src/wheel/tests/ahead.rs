//! What is taken apart ahead of time.

use super::*;
use crate::wheel::{Key, Wheel};

#[test]
fn no_step_is_long_though_many_values_wait_in_one_far_slot() {
    let count = if cfg!(miri) { 2_000 } else { 200_000 };
    let far = 1u64 << 18;
    let mut wheel = Wheel::starting_at(far - 1_000);
    let mut random = Random::new(1);
    let keys: Vec<Key> = (0..count).map(|value| wheel.insert(far + random.below(far), value)).collect();
    // Some go before the slot is taken apart, some meanwhile.
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

/// A step that comes rarely does as large a part of the work ahead as it is of the time.
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
