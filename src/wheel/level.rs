//! The arithmetic of the levels: which slot of which level a tick belongs to. Pure functions.
//!
//! | level | slot width | range       | range with 1 ms ticks |
//! |-------|------------|-------------|-----------------------|
//! | 0     | 1 tick     | 64 ticks    | 64 ms                 |
//! | 1     | 64 ticks   | 2^12 ticks  | 4.1 s                 |
//! | 2     | 2^12 ticks | 2^18 ticks  | 4.4 min               |
//! | 3     | 2^18 ticks | 2^24 ticks  | 4.7 h                 |
//! | 4     | 2^24 ticks | 2^30 ticks  | 12 days               |
//! | 5     | 2^30 ticks | 2^36 ticks  | 2.2 years             |
//! | 6     | 2^36 ticks | 2^42 ticks  | 139 years             |
//! | 7     | 2^42 ticks | 2^48 ticks  | 8,900 years           |
//! | 8     | 2^48 ticks | 2^54 ticks  | 571,000 years         |
//! | 9     | 2^54 ticks | 2^60 ticks  | 37 million years      |
//! | 10    | 2^60 ticks | all of them | 585 million years     |
//!
//! A tick is eleven digits in base 64. Its level is the highest digit in which it differs from the
//! hand, and its slot is that digit. So the slots of a level never wrap around: all that is
//! occupied lies ahead of the hand's own digit, a lower level is due before a higher one, and
//! there is no horizon beyond which a tick would have to be parked.
//!
//! Varghese and Lauck, "Hashed and Hierarchical Timing Wheels", IEEE/ACM ToN 5(6), 1997 (their
//! scheme 7). We differ in two ways: empty slots are skipped by a bitmap instead of being visited
//! tick by tick, and a slot's place follows from the digits instead of from the distance.

/// Bits of a tick that choose a slot within its level.
const SLOT_BITS: u32 = 6;
/// Slots of a level.
pub(crate) const SLOT_COUNT: usize = 1 << SLOT_BITS;
/// Levels: enough for every bit of a tick; the highest level uses 16 of its slots.
pub(crate) const LEVEL_COUNT: usize = u64::BITS.div_ceil(SLOT_BITS) as usize;

const _: () = assert!(SLOT_BITS == 6, "one occupancy bit per slot must fit a u64");
const _: () = assert!(LEVEL_COUNT == 11, "the table above");

/// The level of `tick` seen from `hand`: the highest digit in which the two differ.
pub(crate) fn level_for(hand: u64, tick: u64) -> usize {
    // The lowest bit is set so that there is one; it never changes the level.
    ((hand ^ tick) | 1).ilog2() as usize / SLOT_BITS as usize
}

/// The slot of `tick` within `level`: its digit.
pub(crate) fn slot_for(tick: u64, level: usize) -> usize {
    (tick >> shift(level)) as usize % SLOT_COUNT
}

/// The first tick of a slot, in the turn of its level that `hand` is in.
pub(crate) fn slot_start(hand: u64, level: usize, slot: usize) -> u64 {
    (hand & !low_bits(level + 1)) | (slot as u64) << shift(level)
}

/// The last tick of the slot of `level` that `tick` is in.
pub(crate) fn slot_last(tick: u64, level: usize) -> u64 {
    tick | low_bits(level)
}

/// How far a level's digit is from the lowest bit.
fn shift(level: usize) -> u32 {
    level as u32 * SLOT_BITS
}

/// A mask of all digits below `level`; all ones above the highest level.
fn low_bits(level: usize) -> u64 {
    1u64.checked_shl(shift(level)).map_or(u64::MAX, |bit| bit - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn level_is_the_highest_digit_that_differs() {
        let table = [
            (0, 1, 0),
            (0, 63, 0),
            (0, 64, 1),
            (63, 64, 1),
            (64, 127, 0),
            (64, 128, 1),
            (0, 4095, 1),
            (0, 4096, 2),
            (4095, 4096, 2),
            ((1 << 36) - 10, (1 << 36) + 10, 6),
            ((1 << 42) - 3, 1 << 42, 7),
            ((1 << 63) - 3, (1 << 63) - 1, 0),
            ((1 << 63) - 3, 1 << 63, 10),
            (0, u64::MAX, 10),
            (u64::MAX - 1, u64::MAX, 0),
            (7, 7, 0),
        ];
        for (hand, tick, level) in table {
            assert_eq!(level_for(hand, tick), level, "hand {hand}, tick {tick}");
        }
    }

    #[test]
    fn slot_is_the_digit_of_the_level() {
        let table = [
            (0, 0, 0),
            (63, 0, 63),
            (64, 0, 0),
            (64, 1, 1),
            (4095, 1, 63),
            (4096, 1, 0),
            (4096, 2, 1),
            (1 << 36, 6, 1),
            (u64::MAX, 9, 63),
            (u64::MAX, 10, 15),
        ];
        for (tick, level, slot) in table {
            assert_eq!(slot_for(tick, level), slot, "tick {tick}, level {level}");
        }
    }

    #[test]
    fn slot_bounds_hold_the_ticks_of_the_slot() {
        let table = [
            (0, 0, 5, 5, 5),
            (70, 0, 9, 73, 73),
            (0, 1, 1, 64, 127),
            (4096 + 5, 1, 2, 4096 + 128, 4096 + 191),
            (1 << 36, 6, 2, 1 << 37, (1 << 37) + (1 << 36) - 1),
            (0, 10, 15, 15 << 60, u64::MAX),
            (u64::MAX, 10, 0, 0, (1 << 60) - 1),
        ];
        for (hand, level, slot, first, last) in table {
            assert_eq!(slot_start(hand, level, slot), first, "{hand} {level} {slot}");
            assert_eq!(slot_last(first, level), last, "{hand} {level} {slot}");
        }
    }

    #[test]
    fn every_later_tick_lies_in_a_slot_ahead_of_the_hand() {
        let edges: Vec<u64> = (0..64).flat_map(|bit| [1 << bit, (1 << bit) - 1, !(1 << bit)]).collect();
        for &hand in &edges {
            for &tick in edges.iter().filter(|&&tick| tick > hand) {
                let level = level_for(hand, tick);
                let slot = slot_for(tick, level);
                let first = slot_start(hand, level, slot);
                assert!(slot > slot_for(hand, level), "hand {hand}, tick {tick}");
                assert!(first > hand && first <= tick && tick <= slot_last(first, level));
            }
        }
    }
}
