//! What became of each timer, by our own books, which rely on nothing that the scheduler reports.
//!
//! A timer is entered by the caller that schedules, moves or cancels it at that moment, and by whatever thread runs its
//! callback. Nothing is judged before everything is over: only then is it certain which deadline counted when the timer
//! fired.

use std::collections::TryReserveError;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};
use std::time::{Duration, Instant};

/// Not a time: the timer has not fired, or has no deadline.
const NEVER: u64 = u64::MAX;

struct Entry {
    /// Nanoseconds since the start, from the clock as it was **before** the call.
    deadline_ns: AtomicU64,
    /// Nanoseconds since the start of the first callback.
    fired_ns: AtomicU64,
    fired_count: AtomicU32,
    /// `cancel` gave the value back.
    cancelled: AtomicBool,
}

/// The books of a run; a timer is known by its index.
pub(crate) struct Ledger {
    start: Instant,
    entries: Vec<Entry>,
}

/// What the books say at the end.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Audit {
    pub(crate) fired: u64,
    /// Fired before their deadline.
    pub(crate) early: u64,
    /// Neither fired nor cancelled.
    pub(crate) lost: u64,
    /// Fired more than once, or fired though `cancel` had given the value back.
    pub(crate) twice: u64,
    /// Of each timer that fired, in ascending order.
    pub(crate) lateness_ns: Vec<u64>,
}

impl Ledger {
    /// Touches every page, so that the memory of the books can be told from the scheduler's.
    pub(crate) fn new(timers: usize) -> Result<Self, TryReserveError> {
        let mut entries = Vec::new();
        entries.try_reserve_exact(timers)?;
        entries.extend((0..timers).map(|_| Entry {
            deadline_ns: AtomicU64::new(NEVER),
            fired_ns: AtomicU64::new(NEVER),
            fired_count: AtomicU32::new(0),
            cancelled: AtomicBool::new(false),
        }));
        let start = Instant::now();
        Ok(Self { start, entries })
    }

    pub(crate) fn start(&self) -> Instant {
        self.start
    }

    /// Enters that a call made at `called` put the timer's deadline `delay` ahead.
    pub(crate) fn enter_deadline(&self, timer: usize, called: Instant, delay: Duration) {
        // Relaxed, as in `enter_cancelled`: the caller is joined before the audit.
        let deadline_ns = self.since_start_ns(called + delay);
        self.entries[timer].deadline_ns.store(deadline_ns, Relaxed);
    }

    /// Enters that `cancel` gave the timer's value back.
    pub(crate) fn enter_cancelled(&self, timer: usize) {
        self.entries[timer].cancelled.store(true, Relaxed);
    }

    /// Enters that the timer's callback ran at `now`.
    pub(crate) fn enter_fired(&self, timer: usize, now: Instant) {
        let entry = &self.entries[timer];
        entry.fired_ns.fetch_min(self.since_start_ns(now), Relaxed);
        // Release: publishes `fired_ns` to the Acquire load in `audit_entry`.
        entry.fired_count.fetch_add(1, Release);
    }

    /// Whether the scheduler may report, at `now`, that the timer is gone.
    pub(crate) fn is_due(&self, timer: usize, now: Instant) -> bool {
        self.since_start_ns(now) >= self.entries[timer].deadline_ns.load(Relaxed)
    }

    /// Timers that have fired so far. Visits all of them.
    pub(crate) fn fired(&self) -> u64 {
        let fired = |entry: &&Entry| entry.fired_count.load(Relaxed) > 0;
        self.entries.iter().filter(fired).count() as u64
    }

    pub(crate) fn audit(&self) -> Audit {
        let mut audit = Audit::default();
        for entry in &self.entries {
            audit_entry(entry, &mut audit);
        }
        audit.lateness_ns.sort_unstable();
        audit
    }

    /// Saturates at a time that no run reaches.
    fn since_start_ns(&self, moment: Instant) -> u64 {
        let since_start = moment.saturating_duration_since(self.start);
        u64::try_from(since_start.as_nanos()).unwrap_or(NEVER - 1)
    }
}

fn audit_entry(entry: &Entry, audit: &mut Audit) {
    // Acquire: pairs with the Release in `enter_fired`, so that its `fired_ns` is seen.
    let fired_count = entry.fired_count.load(Acquire);
    let cancelled = entry.cancelled.load(Relaxed);
    if fired_count == 0 {
        audit.lost += u64::from(!cancelled);
        return;
    }
    audit.fired += 1;
    audit.twice += u64::from(cancelled || fired_count > 1);
    let deadline_ns = entry.deadline_ns.load(Relaxed);
    match entry.fired_ns.load(Relaxed).checked_sub(deadline_ns) {
        Some(lateness_ns) => audit.lateness_ns.push(lateness_ns),
        None => audit.early += 1,
    }
}

impl Audit {
    /// The lateness that `permille` thousandths of the timers did not exceed (nearest rank);
    /// `None` if nothing fired.
    pub(crate) fn lateness(&self, permille: usize) -> Option<Duration> {
        let rank = (self.lateness_ns.len() * permille).div_ceil(1000);
        let lateness_ns = self.lateness_ns.get(rank.checked_sub(1)?)?;
        Some(Duration::from_nanos(*lateness_ns))
    }
}
