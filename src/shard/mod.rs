//! One shard: what callers and the shard's worker share. Lock-free on the callers' side.
//!
//! ```text
//!   any thread                                                   the worker
//!   schedule / reschedule / cancel                               drain, look, sleep
//!       |                                                            |
//!       |   index:  key -> node                                      |   wheel of hints (its own)
//!       |   slab:   node = word, promise, key, value                 |
//!       +-> word:   the one atomic that every race is about  <-------+
//!       +-> hint -> mailbox ------------------------------------->   |
//!       +-> alarm: asleep until ...  <------------------------------ +
//! ```
//!
//! `shard/` knows no clock, no threads, no wheel, no executor and no callback. The only user code that it runs is the
//! keys' `Eq` and destructor, and the values' destructor for timers that a contradictory `Eq` has hidden. Time comes in
//! as [`Tick`]s.

mod alarm;
mod array;
mod chain;
mod ends;
mod fetch;
mod hint;
mod index;
mod line;
mod lines;
mod mailbox;
mod ordinal;
mod overflow;
mod period;
mod reuse;
mod search;
mod segments;
mod slab;
mod succession;
mod tick;
mod unindexed;
mod word;

pub(crate) use alarm::Alarm;
pub(crate) use ends::{Claim, ClaimedNode, Fired, Purpose};
#[allow(unused_imports, reason = "models do not run callbacks")]
pub(crate) use fetch::FETCH_GROUP;
pub(crate) use hint::Hint;
pub(crate) use index::{Glimpse, Intent, Spot};
pub(crate) use line::{HASH_MAX, NO_HASH};
pub(crate) use mailbox::{Consumer, Mailbox};
pub(crate) use ordinal::{Ordinal, Ordinals};
#[allow(unreachable_pub, reason = "as in `period`")]
pub use period::MissedTicks;
pub(crate) use period::{Period, Repeats};
pub(crate) use reuse::batch_len;
pub(crate) use segments::{LEN_MAX as NODES_MAX, SEGMENT_COUNT, Segments, Zeroed};
pub(crate) use slab::NoNode;
pub(crate) use tick::{HINT_TICK_BITS, HORIZON_TICKS, Tick};

use crate::sync::epoch::{Guard, pin, unpinned};
use crate::sync::{AtomicU64, Ordering, fence, prefetch};
use hint::{AtomicPromise, Promise, hint_tick};
use index::{Found, Index, Unplaced};
use mailbox::Pushed;
use slab::{Node, Slab};
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use tick::Deadline;
use unindexed::Unindexed;
use word::{End, Sight, State, Word};

/// How many nodes ahead of its work a loop prefetches, if it goes through nodes in no order.
pub(crate) const PREFETCH_AHEAD: usize = 12;

/// Runs user code in the middle of a step that must be completed. `None` if it panicked; the payload is leaked, since
/// it might panic as well when dropped.
pub(crate) fn shielded<R>(run: impl FnOnce() -> R) -> Option<R> {
    catch_unwind(AssertUnwindSafe(run)).map_err(std::mem::forget).ok()
}

/// A thread's presence in a shard: while it lasts, nothing that the thread can reach is reclaimed.
pub(crate) struct Access<'a> {
    pub(crate) ordinal: &'a Ordinal,
    pub(crate) guard: Guard,
}

impl<'a> Access<'a> {
    #[inline]
    pub(crate) fn new(ordinal: &'a Ordinal) -> Self {
        Self { ordinal, guard: pin() }
    }
}

/// When a timer is to fire (`None`: never), and the tick at which that was asked for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Due {
    pub(crate) tick: Option<Tick>,
    pub(crate) now: Tick,
}

impl Due {
    #[inline]
    fn deadline(self) -> Deadline {
        self.tick.map_or(Deadline::NEVER, Deadline::at)
    }
}

/// Identifies one timer for ever: no later timer has the same identity.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Identity {
    pub(crate) node: u32,
    generation: u32,
}

/// What a successful `schedule` leaves.
pub(crate) struct Started<V> {
    pub(crate) identity: Identity,
    /// The value of the timer that was replaced.
    pub(crate) replaced: Option<V>,
    /// How many more timers were replaced, whose keys an earlier `schedule` had not recognised. Their values are gone.
    pub(crate) others: usize,
}

/// Why `schedule` gave key and value back.
#[derive(Debug)]
pub(crate) enum Refused<K, V> {
    /// Every node is in use.
    Exhausted(K, V),
    /// The shard is sealed.
    Sealed(K, V),
}

/// What became of a hint.
#[derive(Debug)]
pub(crate) enum Look {
    /// The timer was due: it is the worker's now.
    Expired(Claim),
    /// It is due later: look again then.
    Later(Hint),
    /// Nothing to do.
    Nothing,
}

pub(crate) struct Shard<K, V> {
    slab: Arc<Slab<K, V>>,
    index: Index,
    pub(crate) mailbox: Mailbox,
    pub(crate) alarm: Alarm,
    /// The worker's clock, for callers whose own clock is behind it.
    hand: AtomicU64,
    unindexed: Unindexed,
}

impl<K, V> std::fmt::Debug for Shard<K, V> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shard").finish_non_exhaustive()
    }
}

impl<K: Eq + Send + Sync + 'static, V: Send + 'static> Shard<K, V> {
    /// Nodes are retired, and handed out, `batch` at a time; see [`batch_len`].
    pub(crate) fn new(stripe_count: usize, batch: u32, first_tick: Tick) -> Self {
        Self {
            slab: Arc::new(Slab::new(batch)),
            index: Index::new(),
            mailbox: Mailbox::new(stripe_count),
            alarm: Alarm::default(),
            hand: AtomicU64::new(first_tick.0),
            unindexed: Unindexed::default(),
        }
    }

    /// The memory of a node.
    pub(crate) const NODE_BYTES: usize = Slab::<K, V>::NODE_BYTES;

    /// Prefetches the line at a spot.
    #[inline]
    pub(crate) fn prefetch_line(&self, spot: Spot) {
        self.index.prefetch(spot);
    }

    /// Prefetches the line of a timer's hash, if it has one.
    #[inline]
    pub(crate) fn prefetch_line_of(&self, hash: u32) {
        if let Some(spot) = Spot::if_indexed(hash) {
            self.prefetch_line(spot);
        }
    }

    /// A cell that may lead to the key's timer; prefetches its node. The line at `spot` should be in the cache by now.
    #[inline(always)]
    pub(crate) fn glimpse<'g>(&'g self, spot: Spot, intent: Intent, access: &'g Access) -> Option<Glimpse<'g>> {
        self.index.glimpse(&self.slab, spot, intent, access)
    }

    /// Starts a timer; it replaces the timer of the same key, if there is one.
    #[inline(always)]
    pub(crate) fn schedule(
        &self,
        spot: Spot,
        key: K,
        value: V,
        due: Due,
        repeats: Repeats<V>,
        access: &mut Access,
    ) -> Result<Started<V>, Refused<K, V>> {
        let comes_back = repeats.may_come_back();
        let node = self.allocate(&spot, key, value, due, repeats, access)?;
        let identity = Identity { node: node.number, generation: node.head.generation() };
        let has_others = self.insert(spot, node, access)?;
        let is_first = !has_others && node.head.word.publish_first(State::Tentative, comes_back, due.deadline());
        if !is_first {
            succession::help(&self.index, &self.slab, node.number, spot, access);
        }
        self.announce(node.number, &node.head.promise, due, access);
        if is_first {
            return Ok(Started { identity, replaced: None, others: 0 });
        }
        let (replaced, others) = succession::take_replaced(&self.index, &self.slab, spot, node, access);
        let started = Started { identity, replaced, others: others.len() };
        if !others.is_empty() {
            unpinned(&mut access.guard, || others.into_iter().for_each(|value| _ = shielded(|| drop(value))));
        }
        Ok(started)
    }

    /// Starts a timer, unless one of the same key is pending or firing: then the value comes back, and `drop_ripe_keys`
    /// follows.
    pub(crate) fn schedule_if_absent(
        &self,
        spot: Spot,
        key: K,
        value: V,
        due: Due,
        repeats: Repeats<V>,
        access: &mut Access,
    ) -> Result<Option<V>, Refused<K, V>> {
        let comes_back = repeats.may_come_back();
        let node = self.allocate(&spot, key, value, due, repeats, access)?;
        node.head.word.make_yielding();
        let has_others = self.insert(spot, node, access)?;
        let is_first = !has_others && node.head.word.publish_first(State::Yielding, comes_back, due.deadline());
        if !is_first {
            succession::help(&self.index, &self.slab, node.number, spot, access);
        }
        if is_first || !node.head.word.load().gave_way() {
            self.announce(node.number, &node.head.promise, due, access);
            if !is_first {
                // It replaces no timer. But dead timers of its key, whose callbacks are late, are taken out.
                let _ = succession::take_replaced(&self.index, &self.slab, spot, node, access);
            }
            return Ok(None);
        }
        Ok(Some(self.take_back(node, access)))
    }

    #[inline(always)]
    fn allocate(
        &self,
        spot: &Spot,
        key: K,
        value: V,
        due: Due,
        repeats: Repeats<V>,
        access: &mut Access,
    ) -> Result<Node<'_, K, V>, Refused<K, V>> {
        let allocated = self.slab.allocate(spot.hash(), key, value, due.deadline(), repeats, access);
        allocated.map_err(|NoNode(key, value)| Refused::Exhausted(key, value))
    }

    /// Puts a new node into the index. True if other nodes in its line look like it and may still hold live timers.
    #[inline(always)]
    fn insert(&self, spot: Spot, node: Node<'_, K, V>, access: &Access) -> Result<bool, Refused<K, V>> {
        loop {
            let refused = match self.index.insert(&self.slab, spot, node, access) {
                Ok(has_others) => return Ok(has_others),
                Err(Unplaced::NoRoom) => {
                    self.make_room(node.number);
                    continue;
                }
                Err(Unplaced::Sealed) => Refused::Sealed,
                Err(Unplaced::Exhausted) => Refused::Exhausted,
            };
            let NoNode(key, value) = self.slab.give_back(node, access);
            return Err(refused(key, value));
        }
    }

    #[cold]
    fn make_room(&self, node: u32) {
        if self.index.lines.make_room(node) {
            // The worker has the new lines set, except for those that callers need before.
            self.alarm.interrupt();
        }
    }

    /// Moves the pending timer whose key satisfies `is_key`, or sets when the firing one comes back. False if there is
    /// neither.
    #[inline]
    pub(crate) fn reschedule<'g>(
        &'g self,
        spot: Spot,
        mut glimpse: Option<Glimpse<'g>>,
        is_key: impl Fn(&K) -> bool,
        due: Due,
        access: &'g Access,
    ) -> bool {
        while let Some(Found { node, word, .. }) = self.index.find_at(&self.slab, spot, glimpse.take(), &is_key, access)
        {
            if self.move_to(node, word, due, access).is_ok() {
                return true;
            }
        }
        false
    }

    /// As `reschedule`, for a timer that is known by its identity. False if it has ended.
    pub(crate) fn reschedule_this(&self, timer: Identity, due: Due, access: &Access) -> bool {
        while let Some((node, word)) = self.current(timer) {
            if self.move_to(node, word, due, access).is_ok() {
                return true;
            }
        }
        false
    }

    #[inline]
    fn move_to(&self, node: Node<'_, K, V>, seen: Word, due: Due, access: &Access) -> Result<(), Word> {
        node.head.word.reschedule(seen, due.deadline())?;
        // If the timer is firing, `rearm_or_end` tells the worker.
        if seen.is_pending() {
            self.announce(node.number, &node.head.promise, due, access);
        }
        Ok(())
    }

    /// Ends the pending timer whose key satisfies `is_key`: it will never fire, and its value is returned. A timer that
    /// is firing will not come back; its value is in use, so the answer is `None`. `drop_ripe_keys` follows.
    #[inline]
    pub(crate) fn cancel<'g>(
        &'g self,
        spot: Spot,
        mut glimpse: Option<Glimpse<'g>>,
        is_key: impl Fn(&K) -> bool,
        access: &'g Access,
    ) -> Option<V> {
        while let Some(Found { node, word, position }) =
            self.index.find_at(&self.slab, spot, glimpse.take(), &is_key, access)
        {
            prefetch(node.tail);
            if stop(node, word).is_ok() {
                if word.is_pending() {
                    return Some(self.take_ended(Some(spot), node, Some(position), access));
                }
                index::take_out(&self.index, &self.slab, spot, node, access);
                return None;
            }
        }
        None
    }

    /// As `cancel`, for a timer that is known by its identity. `drop_ripe_keys` follows.
    #[inline]
    pub(crate) fn cancel_this(&self, timer: Identity, access: &Access) -> Option<V> {
        // For the value: asked for beside the word.
        self.slab.prefetch_tail(timer.node);
        while let Some((node, word)) = self.current(timer) {
            // Read before the timer is stopped: a node that is firing may be retired as soon as its timer is stopped.
            let spot = Spot::if_indexed(node.head.hash());
            if stop(node, word).is_ok() {
                if word.is_pending() {
                    return Some(self.take_ended(spot, node, None, access));
                }
                if let Some(spot) = spot {
                    index::take_out(&self.index, &self.slab, spot, node, access);
                }
                return None;
            }
        }
        None
    }

    /// When the pending timer whose key satisfies `is_key` is due: `Some(None)` is never.
    pub(crate) fn due(
        &self,
        spot: Spot,
        is_key: impl Fn(&K) -> bool,
        now: Tick,
        access: &Access,
    ) -> Option<Option<Tick>> {
        let found = self.index.find(&self.slab, spot, is_key, access)?;
        found.word.is_pending().then(|| found.word.deadline().tick(now))
    }

    /// True if there is a timer, pending or firing, that a new one of this key would replace.
    pub(crate) fn holds(&self, spot: Spot, is_key: impl Fn(&K) -> bool, access: &Access) -> bool {
        self.index.find(&self.slab, spot, is_key, access).is_some()
    }

    /// As `holds`. If true, what this thread did before the call comes before the next callback of that timer, or of
    /// one that replaces it.
    pub(crate) fn relies_on(&self, spot: Spot, is_key: impl Fn(&K) -> bool, access: &Access) -> bool {
        while let Some(Found { node, .. }) = self.index.find(&self.slab, spot, &is_key, access) {
            if node.head.word.rely_on() {
                return true;
            }
        }
        false
    }

    /// When this timer is due, if it is pending: `Some(None)` is never.
    pub(crate) fn due_this(&self, timer: Identity, now: Tick) -> Option<Option<Tick>> {
        Some(self.pending(timer)?.1.deadline().tick(now))
    }

    /// Node and word of a timer that is known by its identity, if it is pending.
    ///
    /// The word is read first. A node's generation grows before its word turns pending for another timer, so a pending
    /// word with our generation behind it is ours. And since it was pending while we were pinned, the node is not
    /// reused before we are done with that word.
    fn pending(&self, timer: Identity) -> Option<(Node<'_, K, V>, Word)> {
        self.current(timer).filter(|(_, word)| word.is_pending())
    }

    /// As `pending`, also if the timer is firing.
    #[inline]
    fn current(&self, timer: Identity) -> Option<(Node<'_, K, V>, Word)> {
        let node = self.slab.node(timer.node);
        let word = node.head.word.load();
        let is_live = matches!(word.state(), State::Pending | State::Firing);
        (is_live && node.head.generation() == timer.generation).then_some((node, word))
    }

    /// Makes sure that the worker looks at a timer in time: rules 1 and 4 of `hint.rs`.
    /// The caller has just made the timer pending with this deadline.
    #[inline(always)]
    fn announce(&self, node: u32, promise: &AtomicPromise, due: Due, access: &Access) {
        let Some(deadline) = due.tick else { return };
        let tick = hint_tick(deadline, due.now);
        let seen = promise.load();
        if !seen.covers(tick) {
            self.push_hint(node, promise, seen, tick, access);
        }
        if self.has_passed(tick) {
            self.announce_again(node, promise, deadline, access);
        }
    }

    /// True if the worker has passed this tick, for which a hint or a promise was relied on. As a rule it has not even
    /// reached it. But its clock may have been moved by years, or the process stopped for days, while the caller was in
    /// the middle of a call: then what hints and promises keep of their ticks may read as their opposite. As long as
    /// the hand is at or before the tick, the worker's next drain reads both as the caller did. (Unless it stops for
    /// days a second time while thousands of hints are in front of this one.)
    ///
    /// - If the caller has pushed a hint, either the worker's next drain finds it, or we find where the hand is: by the
    ///   fences in `Alarm` and in `set_hand`.
    /// - If it relies on another one's promise, that was made after the look at the word, or after the fence in
    ///   `Alarm`, and so was what is known of the hand there.
    #[inline]
    fn has_passed(&self, tick: Tick) -> bool {
        self.hand() > tick
    }

    /// As `announce`, from where the worker is now.
    #[cold]
    fn announce_again(&self, node: u32, promise: &AtomicPromise, deadline: Tick, access: &Access) {
        let now = self.hand();
        self.announce(node, promise, Due { tick: Some(deadline.max(now)), now }, access);
    }

    /// Sends the worker a hint, then promises it; `seen` is the promise as it was before.
    #[inline(never)]
    fn push_hint(&self, node: u32, promise: &AtomicPromise, seen: Promise, tick: Tick, access: &Access) {
        match self.mailbox.push(access.ordinal, Hint::new(tick, node), &access.guard) {
            Pushed::Stored => self.alarm.hint_pushed(tick),
            Pushed::DrainDue => self.alarm.drain_due(),
        }
        promise.promise(seen, tick);
    }

    /// The worker's look because of a hint that it takes out of the wheel, due or not: rules 2 and 3 of `hint.rs`.
    pub(crate) fn look(&self, hint: Hint, now: Tick) -> Look {
        let node = self.slab.node(hint.node());
        let promise = node.head.promise.withdraw(hint.tick(now));
        match node.head.word.look(now) {
            Sight::Claimed(word) => Look::Expired(ends::claimed(node.number, word, word.repeats())),
            Sight::Nothing => Look::Nothing,
            Sight::Later(deadline) => match deadline.tick(now) {
                None => Look::Nothing,
                Some(tick) => {
                    let tick = hint_tick(tick, now);
                    if promise.covers(tick) {
                        return Look::Nothing;
                    }
                    node.head.promise.promise(promise, tick);
                    Look::Later(Hint::new(tick, node.number))
                }
            },
        }
    }

    /// True if the hint is still wanted: a look now would not file it at a later tick. (A look would, if the deadline
    /// lies beyond the horizon. But at half the horizon or more the hint counts as wanted: it is filed again when it
    /// comes nearer, not each time that somebody asks.)
    pub(crate) fn is_wanted(&self, hint: Hint, now: Tick) -> bool {
        let word = self.slab.head(hint.node()).word.load();
        let filed = hint.tick(now);
        word.is_pending()
            && word.deadline().tick(now).is_some_and(|tick| {
                hint_tick(tick, now) <= filed || filed.0 >= now.0.saturating_add(HORIZON_TICKS / 2).min(tick.0)
            })
    }

    /// Prefetches a node's head and tail.
    pub(crate) fn prefetch_node(&self, node: u32) {
        self.slab.prefetch(node);
        self.slab.prefetch_tail(node);
    }

    /// Called after a timer has ended. Drops some keys that nobody can be looking at any more; meanwhile this thread is
    /// not pinned. False if there were none. Runs user code, which may take long: so no protocol step may be under way,
    /// and nobody wait for this thread.
    pub(crate) fn drop_ripe_keys(&self, access: &mut Access) -> bool {
        self.slab.drop_ripe_keys(access)
    }

    /// Called after a batch of nodes was retired. Wakes the worker if most hints have become stale.
    #[cold]
    fn wake_if_stale(&self) {
        if self.slab.has_stale_hints() && self.alarm.is_asleep() {
            self.alarm.interrupt();
        }
    }

    /// Reports that the worker's wheel holds `count` hints.
    pub(crate) fn report_hints(&self, count: usize) {
        self.slab.report_hints(count);
    }

    /// True if most of the hints in the wheel serve no timer any more.
    pub(crate) fn has_stale_hints(&self) -> bool {
        self.slab.has_stale_hints()
    }

    /// The number of the last line that the index should have, plus 1.
    pub(crate) fn lines_end(&self) -> u32 {
        self.index.lines.end_wanted(self.slab.most_indexed())
    }

    /// True if callers may already need the line `next`, the first one that is not set.
    pub(crate) fn lacks_lines(&self, next: u32) -> bool {
        self.index.lines.lacks(next)
    }

    /// Has the system put memory behind the lines that `split_ahead` will set from `next` on; returns how far.
    pub(crate) fn populate_lines(&self, next: u32, access: &Access) -> u32 {
        self.index.lines.populate(self.slab.most_indexed(), next, access)
    }

    /// Sets up to `limit` lines ahead of the callers, from `next` on; returns the first line that is left.
    pub(crate) fn split_ahead(&self, next: u32, limit: u32, access: &Access) -> u32 {
        self.index.lines.split_ahead(self.slab.most_indexed(), next, limit, access)
    }

    /// How many lines the index has so far.
    #[allow(dead_code, reason = "asked by tests and models only")]
    pub(crate) fn line_count(&self) -> u32 {
        self.index.lines.count()
    }

    /// Asserts that the arrays which the index has left behind are gone, and do not come back.
    #[cfg(test)]
    #[allow(dead_code, reason = "models have other ways to ask")]
    pub(crate) fn assert_array_alone(&self) {
        self.index.lines.assert_array_alone();
    }

    /// Nodes in use. Nodes that a thread keeps ready, or has collected but not yet retired as a batch, count as well.
    #[cfg(test)]
    #[allow(dead_code, reason = "models have other ways to ask")]
    pub(crate) fn nodes_in_use(&self) -> u64 {
        self.slab.in_use()
    }

    /// About how many nodes have been in use so far.
    pub(crate) fn extent(&self) -> u32 {
        self.slab.extent()
    }

    /// Has the system put memory behind some of `nodes`, from the first on; returns how far.
    pub(crate) fn populate(&self, nodes: Range<u32>) -> u32 {
        self.slab.populate(nodes)
    }

    /// The tick that the worker has reached.
    pub(crate) fn hand(&self) -> Tick {
        // Relaxed, here and in `set_hand`: a number; what orders it are the fences that `has_passed` names.
        Tick(self.hand.load(Ordering::Relaxed))
    }

    /// The latest tick that the worker has reached or is asleep until. A later deadline has not passed yet, give or
    /// take the worker's own lateness.
    pub(crate) fn reached(&self) -> Tick {
        self.hand().max(self.alarm.asleep_until())
    }

    /// To be called before the worker drains the mailbox at `now`.
    pub(crate) fn set_hand(&self, now: Tick) {
        self.hand.store(now.0, Ordering::Relaxed);
        // SeqCst: pairs with the fence in `Alarm`, see `has_passed`.
        fence(Ordering::SeqCst);
    }
}

/// Ends a timer that is pending or firing.
#[inline]
fn stop<K, V>(node: Node<'_, K, V>, seen: Word) -> Result<(), Word> {
    let end = if seen.is_pending() { End::Done } else { End::KeyInUse };
    node.head.word.kill(seen, end)
}
