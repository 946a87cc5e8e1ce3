//! Points in time as the shard counts them, and the packed forms in which nodes and hints keep them.

/// A count of ticks; the scheduler's first tick need not be 0.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub(crate) struct Tick(pub(crate) u64);

/// When a timer is due: never, or at a tick. It keeps the tick's low 59 bits, which are read relative to a tick nearby.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Deadline(u64);

/// Bits that a deadline keeps of its tick.
const DEADLINE_BITS: u32 = 59;
/// Bits that a hint keeps of its tick.
pub(crate) const HINT_TICK_BITS: u32 = 36;
/// No hint lies further ahead than this; for a timer that is due later, the worker looks in between and files again.
pub(crate) const HORIZON_TICKS: u64 = 1 << 34;

/// The `bits` low bits of `value`, read as a signed number.
#[inline]
const fn sign_extend(value: u64, bits: u32) -> i64 {
    let unused = u64::BITS - bits;
    ((value << unused) as i64) >> unused
}

/// The tick nearest to `near` whose low `bits` are those of `low`.
#[inline]
pub(crate) const fn unfold(low: u64, bits: u32, near: Tick) -> Tick {
    Tick(near.0.wrapping_add_signed(sign_extend(low.wrapping_sub(near.0), bits)))
}

/// True if the `bits`-bit number `a` is at or before `b`; they must be within half of the range of each other.
#[inline]
pub(crate) const fn at_or_before(a: u64, b: u64, bits: u32) -> bool {
    sign_extend(b.wrapping_sub(a), bits) >= 0
}

impl Deadline {
    const MASK: u64 = (1 << DEADLINE_BITS) - 1;
    /// Waits for ever, but can be cancelled and moved.
    pub(crate) const NEVER: Self = Self(1 << DEADLINE_BITS);

    /// Of a timer whose callback is running: the callback's answer decides.
    pub(super) const OPEN: Self = Self(1 << DEADLINE_BITS | 1);

    /// Due at `tick`.
    #[inline]
    pub(crate) const fn at(tick: Tick) -> Self {
        Self(tick.0 & Self::MASK)
    }

    #[inline]
    pub(super) const fn to_bits(self) -> u64 {
        self.0
    }

    #[inline]
    pub(super) const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    /// The tick at which it is due, or `None` for never; `near` is any tick within 2^58 of that.
    #[inline]
    pub(crate) fn tick(self, near: Tick) -> Option<Tick> {
        (self != Self::NEVER).then(|| unfold(self.0, DEADLINE_BITS, near))
    }

    /// True once `now` has reached it.
    #[inline]
    pub(crate) fn is_due(self, now: Tick) -> bool {
        self != Self::NEVER && at_or_before(self.0, now.0, DEADLINE_BITS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deadlines_survive_packing_at_every_uptime() {
        for base in [0, 1 << 36, 1 << 42, (1 << 59) - 3, (1 << 61) - 3, (1 << 62) - 3, (1 << 63) - 3, 1 << 63] {
            for ahead in [0, 1, 2, 3, 63, 1 << 36, 1 << 57] {
                let tick = Tick(base + ahead);
                let deadline = Deadline::at(tick);
                let unfolded = deadline.tick(Tick(base)).expect("a finite deadline");
                assert_eq!(unfolded, tick);
                assert_eq!(deadline.is_due(Tick(base)), ahead == 0);
                assert!(deadline.is_due(tick) && !deadline.is_due(Tick(tick.0.wrapping_sub(1))));
            }
        }
    }

    #[test]
    fn never_is_never_due() {
        for now in [0, 1, 1 << 61, u64::MAX >> 1, u64::MAX] {
            assert!(!Deadline::NEVER.is_due(Tick(now)));
        }
        assert_eq!(Deadline::NEVER.tick(Tick(7)), None);
    }

    #[test]
    fn low_bits_unfold_to_the_nearest_tick() {
        let cases = [
            (5, 3, 5),
            (5, 1 << 40, (1 << 40) + 5),
            ((1 << 36) - 1, 1 << 36, (1 << 36) - 1),
            (2, (1 << 36) - 2, (1 << 36) + 2),
        ];
        for (low, near, expected) in cases {
            assert_eq!(unfold(low, HINT_TICK_BITS, Tick(near)), Tick(expected), "{low} near {near}");
        }
    }
}
