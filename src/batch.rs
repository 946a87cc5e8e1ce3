//! Many calls at once: one reading of the clock for all, and the memory that they need fetched side by side.
//!
//! With millions of timers, a call by key waits for one or two cache misses, one after the other. A batch first
//! prefetches the lines of up to [`CHUNK`] keys, then the nodes behind them if they have any, and only then does what
//! the single calls do, in order. So most of those waits overlap. A move or a cancel goes on from what was seen of its
//! line at that time. (In a batch of one or two there is nothing to overlap: these are single calls.)

use crate::clock::{Clock, Nanos};
use crate::error::ScheduleError;
use crate::scheduler::{Place, Scheduler};
use crate::shard::{Access, Due, FETCH_GROUP, Glimpse, Intent, Tick};
use crate::thread;
use std::borrow::Borrow;
use std::hash::{BuildHasher, Hash};
use std::mem::needs_drop;
use std::time::Duration;

/// Keys looked up side by side: more than the processor fetches at once, few enough that all are still in its first
/// cache, and that the reuse of memory does not stop for long.
const CHUNK: usize = 32;
const _: () = assert!(CHUNK.is_multiple_of(FETCH_GROUP), "a chunk is filled by groups, and must not become longer");
/// So many are done one by one, since there is too little to overlap: side by side, a batch of one takes twice as long
/// as the call, of two 1.3 times, and of three as long as three calls.
const FEW: usize = 2;
/// Keys of a chunk that show whether its timers exist already.
const PROBED: usize = 4;

/// At most `CHUNK` items of a batch.
type Chunk<'s, K, V, T> = Vec<(Place<'s, K, V>, T)>;

impl<K, V, S> Scheduler<K, V, S>
where
    K: Hash + Eq + Send + Sync + 'static,
    V: Send + 'static,
    S: BuildHasher,
{
    /// [`schedule_with`](Self::schedule_with) for many timers, with one reading of the clock. The answers are those of
    /// the single calls in order. It is faster than those, unless there are only a few timers: the memory that the
    /// calls would wait for one after the other is fetched side by side. One or two are started as by single calls,
    /// and the list of their answers comes on top.
    ///
    /// A batch is not a transaction: other threads may see part of it done, and each key's answer is exact for itself.
    ///
    /// Delays count from the beginning of the call; if the iterator takes long, from a later moment within the call.
    /// Up to 32 timers are taken from the iterator before the first of them starts. If the iterator or a key's `Hash`
    /// panics, these are dropped, and so are the answers so far.
    ///
    /// # Errors
    /// Each timer has its own answer, as from [`schedule_with`](Self::schedule_with). One that finds no room
    /// (transient) gives key and value back, and the others start nevertheless; after [`close`](Self::close) all come
    /// back (permanent).
    ///
    /// ```
    /// # use shardwheel::Scheduler;
    /// # use std::time::Duration;
    /// let (scheduler, clock) = Scheduler::builder().build_manual(|_: &u32, _: char| {})?;
    /// let second = Duration::from_secs(1);
    /// let answers = scheduler.schedule_batch([(1, 'a', second), (2, 'b', second), (1, 'c', second)]);
    /// let replaced: Vec<_> = answers.into_iter().map(|answer| answer.expect("it is open and not full")).collect();
    /// assert_eq!(replaced, [None, None, Some('a')]);
    /// assert_eq!(clock.advance(second), 2);
    /// # Ok::<(), shardwheel::BuildError>(())
    /// ```
    #[must_use = "a timer that was not accepted comes back in its answer"]
    pub fn schedule_batch(
        &self,
        timers: impl IntoIterator<Item = (K, V, Duration)>,
    ) -> Vec<Result<Option<V>, ScheduleError<K, V>>> {
        let timers = timers.into_iter();
        if are_few(&timers) {
            return timers.map(|(key, value, delay)| self.schedule_with(key, value, delay)).collect();
        }
        let mut deadlines = Deadlines::from_now(self.clock());
        let mut start = |place: Place<'_, K, V>, (key, value, delay), access: &mut Access| {
            let due = deadlines.after(delay, place.shard.hand());
            self.start_at(place, key, value, due, self.repeats(), access).map(|(_, replaced)| replaced)
        };
        let start_all = |chunk: &mut Chunk<'_, K, V, _>, access: &mut Access, answers: &mut Vec<_>| {
            prefetch_nodes(chunk, access);
            answers.extend(chunk.drain(..).map(|(place, timer)| start(place, timer, access)));
        };
        self.by_chunks(timers, |(key, _, _)| key, start_all)
    }

    /// [`reschedule`](Self::reschedule) for many timers, with one reading of the clock. The answers are those of the
    /// single calls in order; see [`schedule_batch`](Self::schedule_batch) for when it is faster.
    ///
    /// ```
    /// # use shardwheel::Scheduler;
    /// # use std::time::Duration;
    /// let (scheduler, clock) = Scheduler::builder().build_manual(|_: &String, _: ()| {})?;
    /// scheduler.schedule("a".to_owned(), Duration::from_secs(1)).expect("it is open and not full");
    /// let later = Duration::from_secs(5);
    /// assert_eq!(scheduler.reschedule_batch([("a", later), ("b", later)]), [true, false]);
    /// # Ok::<(), shardwheel::BuildError>(())
    /// ```
    pub fn reschedule_batch<'q, Q>(&self, moves: impl IntoIterator<Item = (&'q Q, Duration)>) -> Vec<bool>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized + 'q,
    {
        let moves = moves.into_iter();
        if are_few(&moves) {
            return moves.map(|(key, delay)| self.reschedule(key, delay)).collect();
        }
        let mut deadlines = Deadlines::from_now(self.clock());
        let shift = |place: Place<'_, K, V>, glimpse: Option<Glimpse<'_>>, (key, delay), access: &Access| {
            let due = deadlines.after(delay, place.shard.hand());
            self.shift_at(place, glimpse, key, due, access)
        };
        self.side_by_side(moves, |&(key, _)| key, Intent::Move, shift)
    }

    /// [`cancel`](Self::cancel) for many timers. The answers are those of the single calls in order; see
    /// [`schedule_batch`](Self::schedule_batch) for when it is faster.
    ///
    /// ```
    /// # use shardwheel::Scheduler;
    /// # use std::time::Duration;
    /// let (scheduler, _clock) = Scheduler::builder().build_manual(|_: &u32, _: char| {})?;
    /// scheduler.schedule_with(1, 'a', Duration::from_secs(1)).expect("it is open and not full");
    /// assert_eq!(scheduler.cancel_batch(&[1, 2]), [Some('a'), None]);
    /// # Ok::<(), shardwheel::BuildError>(())
    /// ```
    pub fn cancel_batch<'q, Q>(&self, keys: impl IntoIterator<Item = &'q Q>) -> Vec<Option<V>>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized + 'q,
    {
        let keys = keys.into_iter();
        if are_few(&keys) {
            return keys.map(|key| self.cancel(key)).collect();
        }
        let cancel = |place: Place<'_, K, V>, glimpse: Option<Glimpse<'_>>, key, access: &Access| {
            self.cancel_at(place, glimpse, key, access)
        };
        self.side_by_side(keys, |&key| key, Intent::End, cancel)
    }

    /// Runs `each` on all items in order, with where their timers were seen, if they were.
    fn side_by_side<T, Q: Hash + ?Sized, R>(
        &self,
        items: impl IntoIterator<Item = T>,
        key: impl Fn(&T) -> &Q,
        intent: Intent,
        mut each: impl FnMut(Place<'_, K, V>, Option<Glimpse<'_>>, T, &Access) -> R,
    ) -> Vec<R> {
        let run = |chunk: &mut Chunk<'_, K, V, T>, access: &mut Access, answers: &mut Vec<R>| {
            let leaves_keys = needs_drop::<K>() && intent == Intent::End;
            let shards: Vec<_> =
                if leaves_keys { chunk.iter().map(|(place, _)| place.shard).collect() } else { vec![] };
            let glimpses = glimpses(chunk, intent, access);
            let seen = chunk.drain(..).zip(&glimpses);
            answers.extend(seen.map(|((place, item), &glimpse)| each(place, glimpse, item, access)));
            // As often as with single calls; and not before all are done, since meanwhile no glimpse is good.
            shards.into_iter().for_each(|shard| _ = shard.drop_ripe_keys(access));
        };
        self.by_chunks(items, key, run)
    }

    /// Takes the items in order, up to `CHUNK` at a time, and calls `all` with each chunk, under one guard and with
    /// their lines on their way into the cache. `all` empties the chunk.
    fn by_chunks<'s, T, Q: Hash + ?Sized, R>(
        &'s self,
        items: impl IntoIterator<Item = T>,
        key: impl Fn(&T) -> &Q,
        mut all: impl FnMut(&mut Chunk<'s, K, V, T>, &mut Access, &mut Vec<R>),
    ) -> Vec<R> {
        let mut items = items.into_iter().fuse();
        let mut answers = Vec::with_capacity(items.size_hint().0);
        let mut chunk = Vec::with_capacity(CHUNK);
        let ordinal = thread::ordinal();
        loop {
            while chunk.len() < CHUNK {
                let group = chunk.len();
                chunk.extend(items.by_ref().take(FETCH_GROUP).map(|item| {
                    let place = self.locate(key(&item));
                    (place, item)
                }));
                // Some in a row, without the hashing in between: the processor may have to look up the page of each
                // line, too, and does so for several at once only if it sees them early enough. But not all: of too
                // many at once, some processors seem to drop the last ones.
                chunk[group..].iter().for_each(|(place, _)| place.prefetch());
                if chunk.len() == group {
                    break;
                }
            }
            if chunk.is_empty() {
                return answers;
            }
            let mut access = Access::new(&ordinal);
            all(&mut chunk, &mut access, &mut answers);
        }
    }
}

/// When the timers of a batch are due. As a rule all have the same delay, so the last result is kept.
struct Deadlines<'c> {
    clock: &'c Clock,
    now: Nanos,
    present: Tick,
    /// A delay, and when it ends. That depends on the shard only if its worker is ahead of our clock.
    last: Option<(Duration, Option<Tick>)>,
}

impl<'c> Deadlines<'c> {
    fn from_now(clock: &'c Clock) -> Self {
        let now = clock.now();
        Self { clock, now, present: clock.tick_at(now), last: None }
    }

    /// The deadline that [`Clock::due_after`] gives. The moment beside it may be a little older.
    #[inline]
    fn after(&mut self, delay: Duration, hand: Tick) -> Due {
        if hand > self.present {
            return self.clock.due_after(self.now, delay, hand);
        }
        let tick = match self.last {
            Some((last, tick)) if last == delay => tick,
            _ => self.clock.due_after(self.now, delay, hand).tick,
        };
        self.last = Some((delay, tick));
        Due { tick, now: hand }
    }
}

/// True if the iterator says that it has no more than `FEW` items left.
fn are_few(items: &impl Iterator) -> bool {
    items.size_hint().1.is_some_and(|most| most <= FEW)
}

/// Where the timers of a chunk seem to be; prefetches their nodes.
fn glimpses<'g, K, V, T>(
    chunk: &[(Place<'g, K, V>, T)],
    intent: Intent,
    access: &'g Access,
) -> [Option<Glimpse<'g>>; CHUNK]
where
    K: Eq + Send + Sync + 'static,
    V: Send + 'static,
{
    // Not `from_fn` over all places: for a batch of two, the other thirty would take longer than the two calls.
    let mut glimpses = [None; CHUNK];
    for ((place, _), glimpse) in chunk.iter().zip(&mut glimpses) {
        *glimpse = place.shard.glimpse(place.spot, intent, access);
    }
    glimpses
}

/// Prefetches the nodes of those timers that exist already. If none of the first [`PROBED`] exists, the others are not
/// looked for: where all are new, that would cost a tenth of the time.
fn prefetch_nodes<K, V, T>(chunk: &[(Place<'_, K, V>, T)], access: &Access)
where
    K: Eq + Send + Sync + 'static,
    V: Send + 'static,
{
    let (first, others) = chunk.split_at(chunk.len().min(PROBED));
    let is_there = |(place, _): &(Place<'_, K, V>, T)| place.shard.glimpse(place.spot, Intent::End, access).is_some();
    // Not `any`: all of them are prefetched.
    if first.iter().filter(|item| is_there(item)).count() > 0 {
        others.iter().for_each(|item| _ = is_there(item));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whichever delays come one after the other, and wherever a shard's worker is.
    #[test]
    fn deadlines_of_a_batch_are_those_of_single_calls() {
        let tick = Duration::from_millis(1);
        let clock = Clock::manual(tick, Tick(100));
        clock.set(Nanos(10_500_000));
        let delays = [Duration::ZERO, tick / 2, tick, tick + tick / 2, Duration::from_secs(30), Duration::MAX];
        let hands = [0, 100, 109, 110, 111, 140].map(Tick);
        let asked = || delays.into_iter().flat_map(|delay| hands.map(|hand| (delay, hand)));
        for (before, hand_before) in asked() {
            for (delay, hand) in asked() {
                let mut deadlines = Deadlines::from_now(&clock);
                let _ = deadlines.after(before, hand_before);
                let (due, single) = (deadlines.after(delay, hand), clock.due_after(clock.now(), delay, hand));
                assert_eq!(due.tick, single.tick, "{before:?} at {hand_before:?}, then {delay:?} at {hand:?}");
                assert!(due.now <= single.now && due.now >= hand.min(Tick(110)));
            }
        }
    }
}
