//! Which bucket a hash belongs to, and where each bucket begins: arithmetic alone.

use super::hint::NODE_BITS;
use super::segments::LEN_MAX;

/// There are never more buckets than an array holds.
pub(super) const BUCKET_BITS_MAX: u32 = NODE_BITS;
const _: () =
    assert!(1 << BUCKET_BITS_MAX <= LEN_MAX, "an array has room for all buckets, and a link for their numbers");

/// Of `1 << bits` buckets, the one in whose range `hash` lies.
///
/// Bucket 0 begins with hash 0. The bucket with n bits, of which all behind the leading one are x, begins with the hash whose n first
/// bits are x and a 1, and all others 0.
#[inline]
pub(super) fn bucket_among(bits: u32, hash: u32) -> u32 {
    let start = hash & (u32::MAX << (u32::BITS - bits));
    // The leading bit stands for the one that no hash has room for: so 0 begins bucket 0.
    let path = 1 << u32::BITS | u64::from(start);
    (path >> path.trailing_zeros() >> 1) as u32
}

/// The hash with which a bucket begins.
pub(super) fn start_of(bucket: u32) -> u32 {
    ((2 * u64::from(bucket) + 1) << bucket.leading_zeros()) as u32
}

/// The bucket that a bucket was split from: the one before it when it was new.
pub(super) fn parent_of(bucket: u32) -> u32 {
    bucket >> bucket.trailing_zeros() >> 1
}

#[cfg(test)]
mod tests {
    use super::super::link::HASH_MAX;
    use super::*;

    #[test]
    fn a_hash_belongs_to_the_last_bucket_that_begins_at_or_before_it() {
        for bits in [1, 2, 5, 11] {
            let mut starts: Vec<(u32, u32)> = (0..1 << bits).map(|bucket| (start_of(bucket), bucket)).collect();
            starts.sort_unstable();
            let width = 1 << (u32::BITS - bits);
            for (place, &(start, bucket)) in (0..).zip(&starts) {
                assert_eq!(start, place * width, "the buckets divide the hashes evenly");
                assert!([0, 1, width - 1].iter().all(|behind| bucket_among(bits, start + behind) == bucket));
            }
        }
        assert_eq!(bucket_among(BUCKET_BITS_MAX, HASH_MAX), (1 << BUCKET_BITS_MAX) - 1);
    }

    #[test]
    fn a_bucket_is_split_from_the_one_that_had_its_hashes() {
        assert_eq!(parent_of(1), 0);
        for bucket in (2..5_000).chain([(1 << BUCKET_BITS_MAX) - 1]) {
            assert_eq!(parent_of(bucket), bucket_among(bucket.ilog2(), start_of(bucket)));
        }
    }
}
