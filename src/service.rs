//! What all handles, workers and jobs of one scheduler share, and the operations on it that name no key.

use crate::callback::in_callback;
use crate::capacity::Capacity;
use crate::clock::Clock;
use crate::close::{Close, Closed};
use crate::comebacks::{Comebacks, Kept};
use crate::counters::{Counters, Event};
use crate::expired::{IsDue, Runner};
use crate::fanout::hand_over;
use crate::flags::{Abandoned, Closing};
use crate::growth::Growth;
use crate::lateness::Histogram;
use crate::shard::{Access, Claim, ClaimedNode, Identity, Ordinal, PREFETCH_AHEAD, Purpose, Shard, Tick};
use crate::stats::{ShardStats, Stats};
use crate::sync::epoch::{self, Guard, pin};
use crate::thread;
use crate::under_way::{Phase, UnderWay};
use crate::unwind::drop_quietly;
use crossbeam_utils::CachePadded;
use std::iter;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// `ShardReport::pinned_core` of a worker that is not pinned.
const NOT_PINNED: usize = usize::MAX;

/// What a shard's worker reports for `stats`.
#[derive(Debug)]
pub(crate) struct ShardReport {
    pub(crate) wake_ups: AtomicU64,
    pub(crate) wheel_entries: AtomicU64,
    /// Timers handed over that are not finished, as far as the threads that run them have said.
    pub(crate) unfinished: AtomicU64,
    pinned_core: AtomicUsize,
    pub(crate) lateness: Histogram,
}

impl ShardReport {
    pub(crate) fn new() -> Self {
        Self {
            wake_ups: AtomicU64::new(0),
            wheel_entries: AtomicU64::new(0),
            unfinished: AtomicU64::new(0),
            pinned_core: AtomicUsize::new(NOT_PINNED),
            lateness: Histogram::new(),
        }
    }

    pub(crate) fn set_pinned(&self, core: usize) {
        // Relaxed here and below: figures, nothing is published through them.
        self.pinned_core.store(core, Relaxed);
    }

    fn pinned_core(&self) -> Option<usize> {
        Some(self.pinned_core.load(Relaxed)).filter(|&core| core != NOT_PINNED)
    }
}

pub(crate) struct Core<K: Eq + Send + Sync + 'static, V: Send + 'static> {
    pub(crate) shards: Box<[Shard<K, V>]>,
    pub(crate) reports: Box<[CachePadded<ShardReport>]>,
    pub(crate) clock: Clock,
    pub(crate) capacity: Capacity,
    pub(crate) counters: Counters,
    /// Weak, so that a forgotten `Timer` or `ManualClock` keeps neither the callback nor its pool alive.
    pub(crate) runner: Weak<Runner<K, V>>,
    pub(crate) runs_inline: bool,
    /// True if the callback decides, for every timer, whether it comes back.
    pub(crate) rearms: bool,
    pub(crate) growth: Growth,
    /// Per shard: threads that may claim timers for their callbacks, and those callbacks.
    pub(crate) under_way: Box<[CachePadded<UnderWay>]>,
    /// Calls of `close` that may not have sealed all shards yet.
    pub(crate) sealing: UnderWay,
    pub(crate) closing: Closing,
    pub(crate) comebacks: Comebacks<V>,
    /// Set when the last `Scheduler` goes: from then on no key is looked up.
    pub(crate) abandoned: Abandoned,
}

impl<K: Eq + Send + Sync + 'static, V: Send + 'static> Core<K, V> {
    /// Counts the end of a timer that was not fired (`hand_over` counts those that are), and gives its room back.
    #[inline]
    pub(crate) fn count_end(&self, ordinal: &Ordinal, event: Event) {
        self.counters.add(ordinal, event, 1);
        self.capacity.give(ordinal, 1);
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closing.has_begun()
    }

    pub(crate) fn stats(&self) -> Stats {
        let sum = |event| self.counters.sum(event);
        let shards = self.shards.iter().zip(&self.reports);
        Stats {
            pending: self.counters.pending(),
            scheduled: sum(Event::Scheduled),
            rearmed: sum(Event::Rearmed),
            rescheduled: sum(Event::Rescheduled),
            replaced: sum(Event::Replaced),
            cancelled: sum(Event::Cancelled),
            fired: sum(Event::Fired),
            drained: sum(Event::Drained),
            rejected: sum(Event::Rejected),
            discarded: sum(Event::Discarded),
            returned: sum(Event::Returned),
            callback_panics: sum(Event::CallbackPanicked),
            callbacks_lost: sum(Event::CallbackLost),
            clock_regressions: sum(Event::ClockRegressed),
            callbacks_waiting: self.counters.waiting(),
            lateness: Histogram::summary(self.reports.iter().map(|report| &report.lateness)),
            shards: shards.map(|(shard, report)| shard_stats(shard, report, &pin())).collect(),
        }
    }

    /// Fires a timer of a shard ahead of its time, if `claim` finds it pending.
    pub(crate) fn expire_now(
        self: &Arc<Self>,
        shard_number: u32,
        claim: impl FnOnce(&Shard<K, V>) -> Option<Claim>,
    ) -> bool {
        let number = shard_number as usize;
        let entered = self.under_way[number].enter();
        // The comparison of keys is user code.
        let claimed = catch_unwind(AssertUnwindSafe(|| claim(&self.shards[number])));
        let Ok(Some(claim)) = claimed else {
            self.under_way[number].leave(entered);
            return claimed.map_or_else(|panic| resume_unwind(panic), |_| false);
        };
        hand_over(self, number, vec![claim], entered, IsDue::No, None);
        true
    }

    /// See [`Scheduler::wait_for_callbacks`](crate::Scheduler::wait_for_callbacks).
    pub(crate) fn wait_for_callbacks(&self, timeout: Duration) -> bool {
        // First the calls of `close`: others may learn that the scheduler is closed before a shard is sealed, and a
        // timer may expire there even after that.
        let mut all = iter::once(&self.sealing).chain(self.under_way.iter().map(|under_way| &**under_way));
        if in_callback() {
            return all.all(UnderWay::is_empty);
        }
        // `None`: for as long as it takes.
        let limit = Instant::now().checked_add(timeout);
        all.all(|under_way| under_way.wait(limit))
    }

    /// Takes out what is pending now and hands each pair to `each`.
    pub(crate) fn drain(&self, mut each: impl FnMut(&K, V)) -> usize {
        // First the pending timers of all shards are listed, then they are taken out one by one: so `each` may start
        // timers, even under the same keys, without having those drained as well.
        let pending: Vec<Vec<Identity>> = self.shards.iter().map(Self::pending_of).collect();
        let drain_all = |(shard, timers): (_, Vec<Identity>)| self.drain_shard(shard, &timers, &mut each);
        self.shards.iter().zip(pending).map(drain_all).sum()
    }

    fn pending_of(shard: &Shard<K, V>) -> Vec<Identity> {
        let ordinal = thread::ordinal();
        let _access = Access::new(&ordinal);
        let mut timers = Vec::new();
        shard.identities(|timer| timers.push(timer));
        timers
    }

    fn drain_shard(&self, shard: &Shard<K, V>, timers: &[Identity], each: &mut impl FnMut(&K, V)) -> usize {
        let mut drained = 0;
        shard.visit_ahead(
            timers,
            |timer| timer.node,
            |timer| drained += usize::from(self.drain_one(shard, timer, each)),
        );
        drained
    }

    fn drain_one(&self, shard: &Shard<K, V>, timer: Identity, each: &mut impl FnMut(&K, V)) -> bool {
        let ordinal = thread::ordinal();
        // Closed meanwhile: the scheduler is empty, and that call of `close` reports what was pending.
        if self.is_closed() {
            return false;
        }
        let Some(claim) = shard.claim_this(timer, Purpose::TakeOut, &Access::new(&ordinal)) else {
            return false;
        };
        self.count_end(&ordinal, Event::Drained);
        let (node, value) = shard.take_value(claim);
        let called = catch_unwind(AssertUnwindSafe(|| shard.with_claimed_key(&node, |key| each(key, value))));
        shard.finish_alone(node, &mut Access::new(&ordinal));
        called.map_or_else(|panic| resume_unwind(panic), |()| true)
    }

    /// Ends everything; see [`Scheduler::close`](crate::Scheduler::close). Does not join the workers.
    pub(crate) fn close(self: &Arc<Self>, close: Close) -> Closed<K, V> {
        let mut closed = Closed::default();
        let sealing = self.sealing.enter();
        if !self.begin_close() {
            self.sealing.leave(sealing);
            return self.close_again(close);
        }
        if close == Close::Return {
            self.comebacks.expect();
        }
        // Entered before anybody can see that the shards are sealed.
        let entered = if close == Close::FireNow { self.enter_all() } else { Vec::new() };
        let pending = self.seal();
        self.sealing.leave(sealing);
        if close == Close::FireNow {
            closed.fired = self.fire_all(pending, entered);
            return closed;
        }
        // Other threads may be comparing these very keys. A thread that pins from now on finds the shards sealed and
        // these timers dead, and compares no key with theirs; those that were pinned before are waited for. That is
        // impossible while this thread holds a guard of its own: then there is no telling when the keys are free, so
        // the keys stay until the scheduler goes.
        let has_any = pending.iter().any(|claims| !claims.is_empty());
        let readers_gone = if close == Close::Return && has_any { wait_for_readers() } else { None };
        for (shard, claims) in pending.into_iter().enumerate() {
            match &readers_gone {
                Some(readers_gone) => self.give_back(shard, claims, readers_gone, &mut closed),
                None => closed.discarded += self.discard(shard, claims),
            }
        }
        closed
    }

    /// Marks the scheduler as closed and wakes its threads; true for the first caller only.
    pub(crate) fn begin_close(&self) -> bool {
        let begins = self.closing.begin();
        if begins {
            self.shards.iter().for_each(|shard| shard.alarm.interrupt());
            self.growth.event.notify();
        }
        begins
    }

    /// Seals all shards and returns the timers that were pending, per shard. User code runs only after that.
    fn seal(&self) -> Vec<Vec<Claim>> {
        let ordinal = thread::ordinal();
        let access = Access::new(&ordinal);
        let seal = |shard: &Shard<K, V>| {
            let mut claims = Vec::new();
            shard.seal(&access, |claim| claims.push(claim));
            claims
        };
        let pending = self.shards.iter().map(seal).collect();
        drop(access);
        pending
    }

    fn discard(&self, shard: usize, claims: Vec<Claim>) -> usize {
        let count = claims.len();
        let ordinal = thread::ordinal();
        self.counters.add(&ordinal, Event::Discarded, count as u64);
        let shard = &self.shards[shard];
        for_each_ahead(shard, claims, |claim| {
            let (node, value) = shard.take_value(claim);
            drop_quietly(value);
            shard.finish_alone(node, &mut Access::new(&ordinal));
        });
        count
    }

    fn enter_all(&self) -> Vec<Phase> {
        self.under_way.iter().map(|under_way| under_way.enter()).collect()
    }

    fn fire_all(self: &Arc<Self>, pending: Vec<Vec<Claim>>, entered: Vec<Phase>) -> usize {
        let count = pending.iter().map(Vec::len).sum();
        for ((shard, claims), entered) in pending.into_iter().enumerate().zip(entered) {
            hand_over(self, shard, claims, entered, IsDue::No, None);
        }
        count
    }

    /// For `close`: gives back keys and values. The shard was sealed before the readers were waited for.
    fn give_back(&self, shard: usize, claims: Vec<Claim>, _: &ReadersGone, closed: &mut Closed<K, V>) {
        let ordinal = thread::ordinal();
        self.counters.add(&ordinal, Event::Returned, claims.len() as u64);
        let (now, shard) = (self.clock.now(), &self.shards[shard]);
        for_each_ahead(shard, claims, |claim| {
            let (node, due) = (claim.node(), claim.due(shard.hand()));
            let (claimed, value) = shard.take_value(claim);
            shard.finish_alone(claimed, &mut Access::new(&ordinal));
            // SAFETY: all readers of a sealed shard's keys have gone, and no new ones come; see `close`.
            let key = unsafe { shard.take_key(node) };
            let key = key.expect("nobody takes a sealed shard's nodes out, so nobody else takes their keys");
            closed.returned.push((key, value, self.clock.until(due, now)));
        });
    }

    /// For a timer that would have come back, after its callback, but whose shard is sealed: finishes it, and keeps it
    /// for `close` if that wants it.
    pub(crate) fn keep_comeback(&self, shard_number: usize, claim: ClaimedNode, value: V, due: Option<Tick>) {
        let (node, ordinal) = (claim.node(), thread::ordinal());
        // First, since `close` takes the key.
        self.shards[shard_number].finish(claim, &Access::new(&ordinal));
        if let Some(value) = self.comebacks.keep(Kept { shard_number, node, value, due }) {
            drop_quietly(value);
        }
        self.drop_keys_of(shard_number, &[node]);
    }

    /// Gives back, or drops, the timers that would have come back since the first call.
    fn close_again(&self, close: Close) -> Closed<K, V> {
        let mut closed = Closed::default();
        if close != Close::Return {
            self.drop_comebacks();
            return closed;
        }
        // As in `close`. Asked before the timers are taken: another thread that looks for them would find none.
        let kept = if may_wait_for_readers() { self.comebacks.take() } else { Vec::new() };
        if kept.is_empty() {
            return closed;
        }
        let _readers_gone = wait_for_readers().expect("this thread may wait for them");
        let (now, ordinal) = (self.clock.now(), thread::ordinal());
        self.counters.add(&ordinal, Event::Rearmed, kept.len() as u64);
        self.counters.add(&ordinal, Event::Returned, kept.len() as u64);
        for Kept { shard_number, node, value, due } in kept {
            // SAFETY: all readers of a sealed shard's keys have gone, and no new ones come; see `close`.
            let key = unsafe { self.shards[shard_number].take_key(node) };
            let key = key.expect("it is finished, its node stays, and nobody else takes it from the list");
            closed.returned.push((key, value, self.clock.until(due, now)));
        }
        closed
    }

    /// Drops the values of timers that would have come back, now and from now on.
    pub(crate) fn drop_comebacks(&self) {
        self.comebacks.end().into_iter().for_each(|timer| drop_quietly(timer.value));
    }

    /// Ends what is still pending, and drops its values.
    ///
    /// # Safety
    /// To be called once, by the thread that has begun to close because the last `Scheduler` goes: no call that starts
    /// a timer is under way or can begin.
    pub(crate) unsafe fn discard_all(&self) {
        self.shards.iter().for_each(Shard::end_all);
        // User code runs only after that.
        for shard in &self.shards {
            // SAFETY: as the caller promises.
            unsafe { shard.take_values(drop_quietly) };
        }
    }

    /// Drops the keys that ended timers left behind.
    ///
    /// # Safety
    /// The scheduler is closed, and no call that looks a key up is under way or can begin.
    pub(crate) unsafe fn drop_leftover_keys(&self) {
        self.abandoned.set();
        for shard in &self.shards {
            // SAFETY: keys are read by look-ups only, of which there are none, and by callbacks, whose timers are not
            // finished.
            unsafe { shard.drop_leftover_keys() };
        }
    }

    /// If the scheduler is gone, drops the keys of these timers, whose callbacks were still under way when it went.
    /// `nodes` are finished; if the scheduler is not gone, they may be other timers' by now.
    pub(crate) fn drop_keys_of(&self, shard: usize, nodes: &[u32]) {
        if !nodes.is_empty() && self.abandoned.is_set() {
            // SAFETY: the flag says that no key is looked up any more, and no timer begins on any of these nodes.
            nodes.iter().for_each(|&node| unsafe { self.shards[shard].drop_key(node) });
        }
    }
}

impl<K: Eq + Send + Sync + 'static, V: Send + 'static> Drop for Core<K, V> {
    fn drop(&mut self) {
        // SAFETY: `&mut self`: no call and no callback is under way.
        unsafe { self.drop_leftover_keys() };
    }
}

/// Calls `each` for each of a sealed shard's timers, whose memory is asked for ahead.
fn for_each_ahead<K, V>(shard: &Shard<K, V>, claims: Vec<Claim>, mut each: impl FnMut(Claim))
where
    K: Eq + Send + Sync + 'static,
    V: Send + 'static,
{
    let mut claims = claims.into_iter();
    while let Some(claim) = claims.next() {
        if let Some(ahead) = claims.as_slice().get(PREFETCH_AHEAD) {
            shard.prefetch_node(ahead.node());
        }
        each(claim);
    }
}

fn shard_stats<K, V>(shard: &Shard<K, V>, report: &ShardReport, guard: &Guard) -> ShardStats
where
    K: Eq + Send + Sync + 'static,
    V: Send + 'static,
{
    ShardStats {
        mailbox_depth: shard.mailbox.depth(guard),
        wake_ups: report.wake_ups.load(Relaxed),
        wheel_entries: report.wheel_entries.load(Relaxed),
        pinned_core: report.pinned_core(),
    }
}

/// Every thread that held an epoch guard when `wait_for_readers` began has let go of it.
struct ReadersGone;

/// False if this thread holds an epoch guard, or cannot tell.
fn may_wait_for_readers() -> bool {
    if epoch::is_pinned() {
        return false;
    }
    // A thread that is about to end has no handle of its own any more: it cannot tell whether it holds a guard.
    let _probe = pin();
    epoch::is_pinned()
}

/// Waits until every thread that held an epoch guard at the call has let go of it. Returns `None` at once if this
/// thread may not wait.
fn wait_for_readers() -> Option<ReadersGone> {
    if !may_wait_for_readers() {
        return None;
    }
    // Crossbeam has ordered the readers' steps before the drop of `present`; the channel orders that before our return.
    let (present, gone) = mpsc::channel::<()>();
    pin().defer(move || drop(present));
    let mut pause = Duration::from_micros(1);
    while gone.recv_timeout(pause) == Err(RecvTimeoutError::Timeout) {
        // Each flush tries to move the epoch on.
        pin().flush();
        pause = (2 * pause).min(Duration::from_millis(1));
    }
    Some(ReadersGone)
}
