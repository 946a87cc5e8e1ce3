//! Which cells of a line match a pattern. All are compared side by side and without a branch, since no processor can
//! guess which cell matches, if any.

use crate::sync::size::PAIRS;

/// The number of cells in each line.
pub(super) const CELLS: u32 = 2 * PAIRS as u32 - 1;

/// The bit above a cell, which belongs to none.
const CARRY: u32 = 31;
/// The bit of [`Places`] for the first pair's lower cell. The other pairs' follow; those of the upper cells are 32 bits
/// further on.
const FIRST: u32 = CARRY + 1 - PAIRS as u32;
/// All cells: the last pair's upper one is not a cell.
const ALL: u64 = twice(u32::MAX << FIRST) ^ 1 << (CARRY + 32);

const fn twice(cell: u32) -> u64 {
    (cell as u64) << 32 | cell as u64
}

/// What a cell must look like: equal to `cell` in the bits of `mask`. `cell` has no bits outside of `mask`.
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

/// One cell of a line: in the pair with this number, from the bit `shift` on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Place {
    pub(super) pair: u32,
    pub(super) shift: u32,
}

/// Cells of a line, one bit for each.
#[derive(Clone, Copy, Debug)]
pub(super) struct Places(u64);

impl Places {
    /// The cells of these pairs that fit. Both cells of a pair are compared at once: if a cell differs in any bit of
    /// the mask, that carries into the bit above the cell.
    #[inline(always)]
    pub(super) fn of(pairs: [u64; PAIRS], Pattern { cell, mask }: Pattern) -> Self {
        debug_assert!(cell & !mask == 0 && mask >> CARRY == 0);
        let mut unlike = 0;
        for pair in pairs {
            let carries = ((pair ^ twice(cell)) & twice(mask)) + twice((1 << CARRY) - 1);
            unlike = unlike >> 1 | carries & twice(1 << CARRY);
        }
        Self(!unlike & ALL)
    }

    #[inline]
    pub(super) fn pop(&mut self) -> Option<Place> {
        let first = self.0.trailing_zeros();
        self.0 &= self.0.wrapping_sub(1);
        (first < u64::BITS).then(|| Place { pair: first % 32 - FIRST, shift: first & 32 })
    }

    /// True if there is exactly one.
    #[inline]
    pub(super) fn is_one(self) -> bool {
        self.0.is_power_of_two()
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use super::*;

    /// One cell after the other.
    fn expected(pairs: [u64; PAIRS], pattern: Pattern) -> Vec<Place> {
        let all = (0..PAIRS as u32).flat_map(|pair| [0, 32].map(|shift| Place { pair, shift }));
        let cell = |place: &Place| (pairs[place.pair as usize] >> place.shift) as u32 & u32::MAX >> 1;
        all.take(CELLS as usize).filter(|place| pattern.fits(cell(place))).collect()
    }

    #[test]
    fn the_cells_that_fit_are_found_and_no_others() {
        let mut state = 1_u64;
        let mut random = || {
            // Knuth, "The Art of Computer Programming", vol. 2, 3.3.4, line 26; its upper bits.
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            state >> 32
        };
        let mut counts = [0; 3];
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
            let mut places = Places::of(pairs, pattern);
            assert_eq!(places.is_one(), expected.len() == 1);
            let mut found: Vec<_> = std::iter::from_fn(|| places.pop()).collect();
            found.sort_by_key(|place| (place.pair, place.shift));
            assert_eq!(found, expected, "{pairs:x?} {pattern:x?}");
            counts[expected.len().min(2)] += 1;
        }
        assert!(counts.iter().all(|&rounds| rounds > 0), "{counts:?}");
    }
}
