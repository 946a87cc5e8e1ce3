//! Which timer is due when, and what happens to it before. Pure arithmetic: the same on every run.

use std::time::Duration;

/// Times count from the start of the run.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    /// When firing begins: by then all timers should have been scheduled, moved and cancelled.
    opens: Duration,
    firing: Duration,
}

/// What happens to a timer before it is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    None,
    Cancel,
    /// It becomes due at this time instead.
    Move(Duration),
}

impl Plan {
    /// Firing begins late enough for a slow machine. On a slower one timers fire while others are still being
    /// scheduled, which falsifies nothing but the bytes per timer.
    pub(crate) fn new(timers: usize, firing: Duration) -> Self {
        const STARTING: Duration = Duration::from_millis(250);
        const NS_PER_TIMER: u64 = 2_000;
        let calls = Duration::from_nanos(timers as u64 * NS_PER_TIMER);
        let opens = STARTING + calls;
        Self { opens, firing }
    }

    /// When the last timer is due.
    pub(crate) fn closes(&self) -> Duration {
        self.opens + self.firing
    }

    /// When `timer` is due at first: evenly spread.
    pub(crate) fn due(&self, timer: usize) -> Duration {
        between(self.opens, self.closes(), random(timer, 0))
    }

    /// Cancels a fifth, moves a tenth earlier and a tenth later.
    pub(crate) fn change(&self, timer: usize) -> Change {
        let due = self.due(timer);
        match timer % 10 {
            1 | 2 => Change::Cancel,
            3 => Change::Move(between(self.opens, due, random(timer, 1))),
            4 => Change::Move(between(due, self.closes(), random(timer, 1))),
            _ => Change::None,
        }
    }
}

fn between(least: Duration, most: Duration, random: u64) -> Duration {
    let span_ns = u64::try_from((most - least).as_nanos()).unwrap_or(u64::MAX - 1);
    least + Duration::from_nanos(random % (span_ns + 1))
}

/// The `draw`-th random number of a timer (SplitMix64: Steele, Lea and Flood, "Fast Splittable
/// Pseudorandom Number Generators", OOPSLA 2014).
fn random(timer: usize, draw: u64) -> u64 {
    const GAMMA: u64 = 0x9e37_79b9_7f4a_7c15;
    let mut mixed = (timer as u64 * 2 + draw + 1).wrapping_mul(GAMMA);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}
