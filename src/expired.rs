//! Timers that have expired together, and what becomes of them: their callbacks run, and then they are finished.

use crate::callback::{Callback, Comeback, Inside, PanicHook, come_back, run_one};
use crate::counters::Event;
use crate::executor::Executor;
use crate::handout::Handout;
use crate::service::Core;
use crate::shard::{Access, Claim, ClaimedNode, FETCH_GROUP, Ordinal, Shard};
use crate::thread;
use crate::under_way::{Phase, Shared};
use crate::unwind::drop_quietly;
use std::mem::{self, needs_drop};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// At most this many timers wait to be finished, or to be counted as such if they have come back, while one thread runs
/// further callbacks: a slow one must not hold up all those before it.
const UNFINISHED_MAX: usize = 256;

/// What runs when timers expire. Kept alive by the schedulers' handles, the workers' threads and the batches under way:
/// whoever claims timers holds one.
pub(crate) struct Runner<K, V> {
    pub(crate) callback: Callback<K, V>,
    pub(crate) on_panic: Option<PanicHook<K>>,
    pub(crate) executor: Executor,
}

/// Whether timers fire because they are due; if not, they have no lateness.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum IsDue {
    Yes,
    No,
}

/// Claimed timers of one shard, for any number of threads. Each timer is run once, or lost with the batch, and then
/// finished.
pub(crate) struct Batch<K: Eq + Send + Sync + 'static, V: Send + 'static> {
    pub(crate) core: Arc<Core<K, V>>,
    pub(crate) runner: Arc<Runner<K, V>>,
    pub(crate) shard_number: usize,
    pub(crate) is_due: IsDue,
    waiting: Handout<Claim>,
    unfinished: Shared,
}

impl<K: Eq + Send + Sync + 'static, V: Send + 'static> Batch<K, V> {
    pub(crate) fn new(
        core: Arc<Core<K, V>>,
        runner: Arc<Runner<K, V>>,
        shard_number: usize,
        is_due: IsDue,
        claims: Vec<Claim>,
        entered: Phase,
    ) -> Self {
        let unfinished = Shared::new(entered, claims.len());
        Self { core, runner, shard_number, is_due, waiting: Handout::new(claims), unfinished }
    }

    pub(crate) fn shard(&self) -> &Shard<K, V> {
        &self.core.shards[self.shard_number]
    }

    /// How many timers no thread has taken yet.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Runs the waiting timers one after the other and returns how many it ran. Nothing in here waits for another
    /// thread. (With `rayon::join`, a thread whose other half was stolen would run further batches meanwhile, on top of
    /// its stack; with a backlog, as many as there are.)
    pub(crate) fn run(&self) -> usize {
        let _inside = Inside::new();
        let ordinal = thread::ordinal();
        let mut taken = Taken::of(self);
        let mut count = 0;
        while let Some((place, claim)) = self.take(&ordinal) {
            if self.is_due == IsDue::Yes
                && let Some(count) = share_reading(place)
            {
                self.record_lateness(place, count);
            }
            taken.end(claim, |node, value, repeats| run_one(self, node, value, repeats));
            count += 1;
        }
        count
    }

    /// Records the lateness of `count` timers from `place` on, all as of now.
    fn record_lateness(&self, place: usize, count: usize) {
        let (clock, near) = (&self.core.clock, self.shard().hand());
        let now = clock.now();
        let told = self.waiting.from(place);
        // As a rule all were due at the same tick.
        for alike in told[..count.min(told.len())].chunk_by(Claim::is_due_with) {
            if let Some(due) = alike[0].due(near) {
                let lateness = now.0.saturating_sub(clock.start_of(due).0);
                self.core.reports[self.shard_number].lateness.record(lateness, alike.len() as u64);
            }
        }
    }

    // Always inlined, as is what `Shard::finish_all` does for each timer: otherwise an expiry takes a twelfth more
    // instructions.
    #[inline(always)]
    fn take(&self, ordinal: &Ordinal) -> Option<(usize, Claim)> {
        let taken = self.waiting.take()?;
        self.fetch_ahead(taken.0);
        self.core.counters.add(ordinal, Event::CallbackBegun, 1);
        Some(taken)
    }

    /// For the timer at `place`, if it is the first of a group: prefetches the nodes of the next group. The thread that
    /// claimed the timers has looked at these, perhaps just now, but as a rule on another core.
    #[inline]
    fn fetch_ahead(&self, place: usize) {
        if place.is_multiple_of(FETCH_GROUP) {
            let next = self.waiting.from(place).iter().skip(FETCH_GROUP).take(FETCH_GROUP);
            next.for_each(|claim| self.shard().prefetch_node(claim.node()));
        }
    }
}

/// At which places of a batch the clock is read, and how many timers from there on are recorded with that reading: to
/// read it for each would cost as much as a quick callback. If all callbacks are equally slow, and one thread runs
/// them, no timer is recorded with less than a quarter of its lateness.
#[inline]
fn share_reading(place: usize) -> Option<usize> {
    match place {
        0 => Some(1),
        1 => Some(3),
        4 => Some(12),
        16 => Some(16),
        _ => place.is_multiple_of(32).then_some(32),
    }
}

/// Timers that were not run (a custom executor dropped the job) drop their values here.
impl<K: Eq + Send + Sync + 'static, V: Send + 'static> Drop for Batch<K, V> {
    fn drop(&mut self) {
        if self.waiting() == 0 {
            return;
        }
        let (_inside, ordinal) = (Inside::new(), thread::ordinal());
        let mut taken = Taken::of(self);
        while let Some((_, claim)) = self.take(&ordinal) {
            self.core.counters.add(&ordinal, Event::CallbackLost, 1);
            taken.end(claim, |_, value, repeats| lose(self, value, repeats));
        }
    }
}

/// What becomes of a timer whose run is lost. One at a fixed rate goes on with the next run; or else the callback
/// decides.
fn lose<K, V>(batch: &Batch<K, V>, mut value: V, repeats: bool) -> Option<(V, Comeback)>
where
    K: Eq + Send + Sync + 'static,
    V: Send + 'static,
{
    if !repeats {
        drop_quietly(value);
        return None;
    }
    let comeback = match &batch.runner.callback {
        Callback::Plain(_) => Comeback::AtItsRate,
        Callback::Rearming(callback) => Comeback::AsAnswered(callback.lose(&mut value, &batch.core.clock)),
    };
    Some((value, comeback))
}

/// What one thread has taken out of a batch: nodes whose keys are no longer needed, except the last one's while its
/// callback runs.
struct Taken<'a, K: Eq + Send + Sync + 'static, V: Send + 'static> {
    batch: &'a Batch<K, V>,
    nodes: Vec<ClaimedNode>,
    /// Timers that have come back, or are finished, which are not among `nodes`.
    settled: usize,
}

impl<'a, K: Eq + Send + Sync + 'static, V: Send + 'static> Taken<'a, K, V> {
    fn of(batch: &'a Batch<K, V>) -> Self {
        Self { batch, nodes: Vec::with_capacity(batch.waiting().min(UNFINISHED_MAX)), settled: 0 }
    }

    /// Takes a timer's value and passes it to `end`, which returns the value of a timer that repeats, and when that is
    /// to come back.
    fn end(&mut self, claim: Claim, end: impl FnOnce(&ClaimedNode, V, bool) -> Option<(V, Comeback)>) {
        if self.nodes.len() + self.settled == UNFINISHED_MAX {
            self.finish();
        }
        let shard = self.batch.shard();
        let repeats = claim.repeats;
        // The shard's hand is near enough: no batch is kept for 2^58 ticks.
        let due = if repeats { claim.due(shard.hand()) } else { None };
        let (node, value) = shard.take_value(claim);
        // Pushed first, so that it is finished even if `end` unwinds.
        let place = self.nodes.len();
        self.nodes.push(node);
        if let Some((value, comeback)) = end(&self.nodes[place], value, repeats) {
            let node = self.nodes.pop().expect("it was pushed");
            match come_back(self.batch, node, value, due, comeback) {
                Some(node) => self.nodes.push(node),
                None => self.settled += 1,
            }
        }
    }

    fn finish(&mut self) {
        let ordinal = thread::ordinal();
        let (batch, shard) = (self.batch, self.batch.shard());
        let ended = self.nodes.len() + mem::take(&mut self.settled);
        let with_keys = if needs_drop::<K>() { self.nodes.iter().map(ClaimedNode::node).collect() } else { Vec::new() };
        let mut access = Access::new(&ordinal);
        shard.finish_all(&mut self.nodes, &access);
        // Relaxed: a count.
        batch.core.reports[batch.shard_number].unfinished.fetch_sub(ended as u64, Relaxed);
        batch.unfinished.end(ended, &batch.core.under_way[batch.shard_number]);
        // After that, since nobody who waits for callbacks should wait for keys' destructors.
        (0..ended).take_while(|_| shard.drop_ripe_keys(&mut access)).for_each(drop);
        drop(access);
        batch.core.drop_keys_of(batch.shard_number, &with_keys);
    }
}

impl<K: Eq + Send + Sync + 'static, V: Send + 'static> Drop for Taken<'_, K, V> {
    fn drop(&mut self) {
        if !self.nodes.is_empty() || self.settled > 0 {
            self.finish();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::builder::{Builder, Parts};
    use crate::callback::Next;
    use crate::clock::{Clock, Nanos};
    use crate::lateness::Lateness;
    use crate::scheduler::Scheduler;
    use crate::shard::{Purpose, Tick};
    use std::sync::atomic::AtomicU64;
    use std::sync::{OnceLock, Weak};
    use std::time::Duration;

    const MS: Duration = Duration::from_millis(1);

    /// What the callback's scheduler shares, once that is built.
    type Own = Arc<OnceLock<Weak<Core<u64, ()>>>>;

    fn of(own: &Own) -> Arc<Core<u64, ()>> {
        own.get().and_then(Weak::upgrade).expect("it is there")
    }

    /// A batch of `count` timers that were due at tick 1, and their scheduler.
    fn batch_of(count: u64, callback: impl FnOnce(Own) -> Callback<u64, ()>) -> (Scheduler<u64>, Batch<u64, ()>) {
        let own = Own::default();
        let builder: Builder<u64, ()> = Scheduler::builder().shards(1);
        let Parts { core, runner, hasher, .. } =
            builder.into_parts(Clock::manual(MS, Tick(0)), Executor::Inline, callback(Arc::clone(&own)));
        own.set(Arc::downgrade(&core)).expect("set once");
        let scheduler = Scheduler::new(Arc::clone(&core), Arc::clone(&runner), hasher, Vec::new());
        (0..count).for_each(|key| assert!(scheduler.schedule(key, MS).is_ok()));
        let (shard, ordinal) = (&core.shards[0], thread::ordinal());
        let access = Access::new(&ordinal);
        let (mut claims, entered) = (Vec::new(), core.under_way[0].enter());
        shard.identities(|timer| claims.extend(shard.claim_this(timer, Purpose::Fire, &access)));
        drop(access);
        core.reports[0].unfinished.fetch_add(count, Relaxed);
        core.clock.set(Nanos(3_000_000));
        (scheduler, Batch::new(core, runner, 0, IsDue::Yes, claims, entered))
    }

    /// The lateness recorded for `count` timers, each of whose callbacks takes a millisecond.
    fn lateness_of(count: u64) -> Lateness {
        let (scheduler, batch) = batch_of(count, |own| {
            Callback::Plain(Box::new(move |_, ()| {
                let core = of(&own);
                core.clock.set(core.clock.now().plus(MS));
            }))
        });
        // The second call, as by a thread that comes to help, finds nothing to do and records nothing.
        (0..2).for_each(|_| _ = batch.run());
        assert_eq!(batch.core.reports[0].unfinished.load(Relaxed), 0);
        scheduler.stats().lateness
    }

    #[test]
    fn each_place_is_told_once() {
        let mut told = 0;
        for place in 0..1000 {
            if let Some(count) = share_reading(place) {
                assert!(place == told && 4 * place >= place + count - 1);
                told += count;
            }
        }
        assert!(told >= 1000);
    }

    #[test]
    fn lateness_counts_the_wait_for_the_callbacks_before() {
        let is_told = |told: Duration, exact: Duration| told >= exact && told <= exact.mul_f64(1.0625);
        let few = lateness_of(7);
        assert!(few.max == (2 + 4) * MS && is_told(few.p50, (2 + 1) * MS), "{few:?}");
        let many = lateness_of(100);
        assert!(many.max == (2 + 96) * MS && is_told(many.p50, (2 + 32) * MS), "{many:?}");
        let in_parts = lateness_of(2 * UNFINISHED_MAX as u64 + 1);
        assert_eq!(in_parts.max, (2 + 512) * MS);
    }

    /// Else the worker would take a batch of many for a backlog until its very end.
    #[test]
    fn timers_that_come_back_are_counted_as_finished_meanwhile() {
        let least = Arc::new(AtomicU64::new(u64::MAX));
        let seen = Arc::clone(&least);
        let (_scheduler, batch) = batch_of(2 * UNFINISHED_MAX as u64 + 1, |own| {
            Callback::Rearming(Box::new(move |_: &_, (): &mut _| {
                seen.fetch_min(of(&own).reports[0].unfinished.load(Relaxed), Relaxed);
                Next::After(MS)
            }))
        });
        batch.run();
        assert_eq!(least.load(Relaxed), 1, "the last one's");
    }
}
