//! Where keys belong.

use super::Scheduler;
use crate::shard::{HASH_MAX, Shard, Spot};
use std::hash::{BuildHasher, Hash};

/// 2^64 divided by the golden ratio.
const MULTIPLIER: u64 = 0x9e37_79b9_7f4a_7c15;

/// Where a key belongs: its shard, and its spot within that.
pub(crate) struct Place<'a, K, V> {
    pub(crate) shard: &'a Shard<K, V>,
    pub(super) shard_number: u32,
    pub(crate) spot: Spot,
}

impl<K: Eq + Send + Sync + 'static, V: Send + 'static> Place<'_, K, V> {
    /// Prefetches the line of the key.
    #[inline]
    pub(crate) fn prefetch(&self) {
        self.shard.prefetch_line(self.spot);
    }
}

impl<K, V> Clone for Place<'_, K, V> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<K, V> Copy for Place<'_, K, V> {}

impl<K: Hash + Eq + Send + Sync + 'static, V: Send + 'static, S: BuildHasher> Scheduler<K, V, S> {
    /// Where the key belongs. Prefetches what is there: a caller who has something else to do does that first.
    #[inline]
    pub(crate) fn place<Q: Hash + ?Sized>(&self, key: &Q) -> Place<'_, K, V> {
        let place = self.locate(key);
        place.prefetch();
        place
    }

    /// As `place`, but without prefetching anything.
    #[inline]
    pub(crate) fn locate<Q: Hash + ?Sized>(&self, key: &Q) -> Place<'_, K, V> {
        let shards = &self.0.core.shards;
        let (shard_number, hash) = scatter(self.0.hasher.hash_one(key), shards.len());
        Place { shard: &shards[shard_number as usize], shard_number, spot: Spot::of(hash) }
    }

    #[cfg(test)]
    pub(crate) fn shard_of(&self, key: &K) -> usize {
        self.place(key).shard_number as usize
    }
}

/// Maps a key's hash to its shard and its hash within that.
///
/// A multiplication spreads what a weak hasher left in a few bits. The upper half of its result, times the number of
/// shards, gives the shard (the whole part) and a fraction. The hash within the shard is made of the lower half and
/// this fraction. The upper half itself would not do for it: its leading bits are alike for all keys of a shard, and
/// the index goes by leading bits.
#[inline]
pub(crate) fn scatter(hash: u64, shard_count: usize) -> (u32, u32) {
    let mixed = hash.wrapping_mul(MULTIPLIER);
    let product = (mixed >> 32) * shard_count as u64;
    ((product >> 32) as u32, ((mixed ^ product) as u32).min(HASH_MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_spread_over_shards_and_lines_even_with_a_weak_hasher() {
        let patterns: [fn(u32) -> u64; 4] =
            [u64::from, |n| u64::from(n) << 32, |n| u64::from(n) << 40 | 0xab, |n| f64::from(n).to_bits()];
        for shard_count in [1, 2, 3, 16] {
            for (pattern, hash) in patterns.iter().enumerate() {
                // By shard, and by the leading bits of the hash in it.
                let mut counts = vec![[0_usize; 64]; shard_count];
                let total = 4_000 * shard_count as u32;
                for number in 0..total {
                    let (shard, hash) = scatter(hash(number), shard_count);
                    counts[shard as usize][hash as usize >> 26] += 1;
                }
                let fair = |count: usize, fair: usize| count < 2 * fair && 2 * count > fair;
                let even = counts.iter().flatten().filter(|&&count| fair(count, 4_000 / 64)).count();
                assert!(even * 10 > counts.len() * 64 * 9, "pattern {pattern}, {shard_count} shards: {counts:?}");
                assert!(counts.iter().all(|shard| fair(shard.iter().sum(), 4_000)), "pattern {pattern}: {counts:?}");
            }
        }
    }

    #[test]
    fn no_hash_is_as_great_as_the_end_of_the_index() {
        // Newton's iteration for the number whose product with the multiplier is 1.
        let inverse = (0..6).fold(1_u64, |x, _| x.wrapping_mul(2_u64.wrapping_sub(x.wrapping_mul(MULTIPLIER))));
        for mixed in [u64::from(u32::MAX), 1 << 32 | 0xffff_fffe] {
            assert_eq!(scatter(mixed.wrapping_mul(inverse), 1), (0, HASH_MAX), "{mixed:x}");
        }
    }
}
