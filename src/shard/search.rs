//! Which cells of a line are like a pattern: all are looked at side by side, without a branch, for which cell it is, if any, no
//! processor can guess.

use crate::sync::size::PAIRS;

const _: () = assert!(PAIRS <= 8, "`lanes` looks at no more");
/// The cells that each line has.
pub(super) const CELLS: u32 = 2 * PAIRS as u32 - 1;

/// What a cell is to be like: as `cell` in the bits of `mask`, outside of which `cell` has none.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pattern {
    pub(super) cell: u32,
    pub(super) mask: u32,
}

impl Pattern {
    #[inline]
    pub(super) fn fits(self, cell: u32) -> bool {
        (self.cell ^ cell) & self.mask == 0
    }
}

/// One cell of a line: that of the pair with this number, from the bit `shift` on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Place {
    pub(super) pair: u32,
    pub(super) shift: u32,
}

/// Cells of a line, one bit for each.
#[derive(Clone, Copy, Debug)]
pub(super) struct Places(u64);

impl Places {
    /// The cells of these pairs that fit, but for the last pair's upper one, which is no cell. Bits 31 and 63 of a pair belong to none.
    #[inline(always)]
    pub(super) fn of(pairs: [u64; PAIRS], pattern: Pattern) -> Self {
        debug_assert!(pattern.cell & !pattern.mask == 0 && pattern.mask >> 31 == 0);
        Self(fitting::bits(pairs, pattern))
    }

    #[inline]
    pub(super) fn pop(&mut self) -> Option<Place> {
        let first = self.0.trailing_zeros();
        self.0 &= self.0.wrapping_sub(1);
        (first < u64::BITS).then(|| fitting::place(first))
    }

    /// True if there is one, and no other.
    #[inline]
    pub(super) fn is_one(self) -> bool {
        self.0.is_power_of_two()
    }
}

#[cfg(not(all(target_arch = "x86_64", target_feature = "sse2")))]
use halves as fitting;
#[cfg(all(target_arch = "x86_64", target_feature = "sse2"))]
use lanes as fitting;

/// Four cells at a time: fewer instructions than `halves`. In time it gains as much as it loses: `cargo bench --bench peers -- --only
/// rpc,heartbeat --n 10000 --callers 1`, five turns: `rpc` 152 ns to 147 with `halves`, `heartbeat` 71 to 69, in batches 52 to 55.
#[cfg(all(target_arch = "x86_64", target_feature = "sse2"))]
mod lanes {
    use super::{CELLS, PAIRS, Pattern, Place};
    use std::arch::x86_64::{
        _mm_and_si128, _mm_cmpeq_epi32, _mm_movemask_epi8, _mm_packs_epi16, _mm_packs_epi32, _mm_set_epi64x,
        _mm_set1_epi32,
    };

    #[inline(always)]
    pub(super) fn bits(pairs: [u64; PAIRS], Pattern { cell, mask }: Pattern) -> u64 {
        let pair = |number: usize| pairs.get(number).copied().unwrap_or(0) as i64;
        // SAFETY: the processor has SSE2, since all that is compiled here is compiled for such.
        let fitting = unsafe {
            let (cell, mask) = (_mm_set1_epi32(cell as i32), _mm_set1_epi32(mask as i32));
            let two_pairs = |first| _mm_set_epi64x(pair(first + 1), pair(first));
            let fits = |first| _mm_cmpeq_epi32(_mm_and_si128(two_pairs(first), mask), cell);
            let (lower, upper) = (_mm_packs_epi32(fits(0), fits(2)), _mm_packs_epi32(fits(4), fits(6)));
            _mm_movemask_epi8(_mm_packs_epi16(lower, upper))
        };
        fitting as u64 & ((1 << CELLS) - 1)
    }

    #[inline]
    pub(super) fn place(bit: u32) -> Place {
        Place { pair: bit / 2, shift: bit % 2 * 32 }
    }
}

/// Two cells at a time: what differs, if anything does, carries into the bit above its cell.
#[cfg(any(all(test, not(feature = "loom")), not(all(target_arch = "x86_64", target_feature = "sse2"))))]
mod halves {
    use super::{PAIRS, Pattern, Place};

    const CARRY: u32 = 31;
    /// The bit for the first pair's lower cell; the others follow, and 32 further on the upper ones.
    const FIRST: u32 = CARRY + 1 - PAIRS as u32;
    const ALL: u64 = both(u32::MAX << FIRST) ^ 1 << (CARRY + 32);

    const fn both(cell: u32) -> u64 {
        (cell as u64) << 32 | cell as u64
    }

    #[inline(always)]
    pub(super) fn bits(pairs: [u64; PAIRS], Pattern { cell, mask }: Pattern) -> u64 {
        let mut unlike = 0;
        for pair in pairs {
            let carries = ((pair ^ both(cell)) & both(mask)) + both((1 << CARRY) - 1);
            unlike = unlike >> 1 | carries & both(1 << CARRY);
        }
        !unlike & ALL
    }

    #[inline]
    pub(super) fn place(bit: u32) -> Place {
        Place { pair: bit % 32 - FIRST, shift: bit & 32 }
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use super::*;

    const SIDES: [u32; 2] = [0, 32];

    fn places(bits: u64, place: fn(u32) -> Place) -> Vec<Place> {
        let mut places: Vec<_> = (0..64).filter(|bit| bits >> bit & 1 == 1).map(place).collect();
        places.sort_by_key(|place| (place.pair, place.shift));
        places
    }

    /// One cell after the other.
    fn expected(pairs: [u64; PAIRS], pattern: Pattern) -> Vec<Place> {
        let all = (0..PAIRS as u32).flat_map(|pair| SIDES.map(|shift| Place { pair, shift }));
        let cell = |place: &Place| (pairs[place.pair as usize] >> place.shift) as u32 & u32::MAX >> 1;
        all.take(CELLS as usize).filter(|place| pattern.fits(cell(place))).collect()
    }

    #[test]
    fn every_way_finds_the_cells_that_fit_and_no_others() {
        let mut state = 1_u64;
        let mut random = || {
            // Knuth, "The Art of Computer Programming", vol. 2, 3.3.4, line 26; its upper bits.
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            state >> 32
        };
        let mut found = [0; 3];
        for round in 0..if cfg!(miri) { 100 } else { 100_000 } {
            let mask = u32::MAX >> 1 & u32::MAX << [0, 4, 9, 24, 29][round % 5];
            let pattern = Pattern { cell: if round % 3 == 0 { 0 } else { random() as u32 & mask }, mask };
            // Alike, empty, differing in one bit, or anything; with flags or without.
            let mut half = |flag| match random() % 4 {
                0 => (u64::from(pattern.cell) | random() & u64::from(!mask)) & u64::from(u32::MAX >> 1) | flag,
                1 => flag,
                2 => u64::from(pattern.cell) ^ 1 << (random() % 31) | flag,
                _ => random() & u64::from(u32::MAX),
            };
            let pairs = std::array::from_fn(|_| half(1 << 31) | half(0) << 32);
            let expected = expected(pairs, pattern);
            let mut all = Places::of(pairs, pattern);
            assert_eq!(all.is_one(), expected.len() == 1);
            let popped = std::iter::from_fn(|| all.pop());
            assert_eq!(popped.count(), expected.len());
            assert_eq!(places(halves::bits(pairs, pattern), halves::place), expected, "{pairs:x?} {pattern:x?}");
            assert_eq!(places(fitting::bits(pairs, pattern), fitting::place), expected, "{pairs:x?} {pattern:x?}");
            found[expected.len().min(2)] += 1;
        }
        assert!(found.iter().all(|&rounds| rounds > 0), "{found:?}");
    }
}
