//! The wheel, against dumb models and at its edges: what the tests share.

mod ahead;
mod slots;
mod wheel;

use super::slots::{Entry, Slots};

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

    /// Small numbers as often as large ones, up to `bits` bits.
    fn spread(&mut self, bits: u64) -> u64 {
        let bits = self.below(bits + 1);
        self.next() & ((1 << bits) - 1)
    }
}

/// Keeps its whole tick.
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

/// Keeps 32 bits of its tick; the shards' hints keep 36.
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

/// All that is due by `to`: tick and id, in the order in which they came out.
fn expire_all(slots: &mut Slots<Wide>, to: u64) -> Vec<(u64, u32)> {
    let mut expired = Vec::new();
    assert!(slots.advance_bounded(to, usize::MAX, |tick, entry| expired.push((tick, entry.id))));
    expired
}
