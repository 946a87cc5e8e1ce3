//! How timers end: claimed (for their callbacks, or to be taken out), cancelled, given way, or all together with their
//! shard.
//!
//! The thread that ends a timer owns its value. A claim is also the right to use the timer's key, until it is finished.

use super::index::{Found, Position, Spot};
use super::period::Period;
use super::slab::Node;
use super::tick::{Deadline, Tick};
use super::word::{End, NO_SUCCESSOR, RunEnd, State, Word};
use super::{Access, Due, Identity, Shard};
use std::mem::needs_drop;

/// A claimed timer of a shard. Key and value are still in its node: `Shard::take_value` follows.
#[must_use = "its value and its node would be lost"]
#[derive(Debug)]
pub(crate) struct Claim {
    pub(super) node: ClaimedNode,
    /// It may come back: `rearm_or_end` follows, and `finish` only if `rearm_or_end` says so.
    pub(crate) repeats: bool,
    pub(super) deadline: Deadline,
}

/// Why a timer is claimed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Purpose {
    /// For its callback.
    Fire,
    /// To end it, whether it repeats or not.
    TakeOut,
}

/// What becomes of a timer that repeats, after its callback.
#[derive(Debug)]
pub(crate) enum Fired<V> {
    /// It is pending again.
    Rearmed,
    /// It would be, and due then, but its shard was sealed: `finish` follows. Its node stays where it is, so after that
    /// its key can be taken out.
    Sealed(ClaimedNode, V, Option<Tick>),
    /// It has ended: `finish` follows.
    Ended(ClaimedNode, V),
}

/// A claimed timer of a shard that is not finished yet: the right to use its key.
#[must_use = "its node would be lost"]
#[derive(Debug)]
pub(crate) struct ClaimedNode {
    pub(super) node: u32,
    /// The node leaves the index when the timer is finished, unless somebody has taken it out by then.
    pub(super) leaves_index: bool,
}

impl Claim {
    pub(crate) fn node(&self) -> u32 {
        self.node.node
    }

    /// When it was due; `None` is never. `near` is any tick within 2^58 of the answer.
    pub(crate) fn due(&self, near: Tick) -> Option<Tick> {
        self.deadline.tick(near)
    }

    /// True if both were due at the same tick.
    pub(crate) fn is_due_with(&self, other: &Self) -> bool {
        self.deadline == other.deadline
    }
}

impl ClaimedNode {
    pub(crate) fn node(&self) -> u32 {
        self.node
    }
}

/// A timer that we have just claimed; its word was `seen`.
pub(super) fn claimed(node: u32, seen: Word, repeats: bool) -> Claim {
    Claim { node: ClaimedNode { node, leaves_index: true }, repeats, deadline: seen.deadline() }
}

impl<K: Eq + Send + Sync + 'static, V: Send + 'static> Shard<K, V> {
    /// Claims the pending timer whose key satisfies `is_key`, as if it were due.
    pub(crate) fn claim(&self, spot: Spot, is_key: impl Fn(&K) -> bool, access: &Access) -> Option<Claim> {
        while let Some(Found { node, word, .. }) = self.index.find(&self.slab, spot, &is_key, access) {
            if !word.is_pending() {
                return None;
            }
            if let Some(claim) = self.try_claim(node, word, Purpose::Fire) {
                return Some(claim);
            }
        }
        None
    }

    /// As `claim`, for a timer that is known by its identity.
    pub(crate) fn claim_this(&self, timer: Identity, purpose: Purpose, _pinned: &Access) -> Option<Claim> {
        while let Some((node, word)) = self.pending(timer) {
            if let Some(claim) = self.try_claim(node, word, purpose) {
                return Some(claim);
            }
        }
        None
    }

    fn try_claim(&self, node: Node<'_, K, V>, seen: Word, purpose: Purpose) -> Option<Claim> {
        match purpose {
            Purpose::Fire => node.head.word.claim(seen).ok()?,
            Purpose::TakeOut => node.head.word.kill(seen, End::KeyInUse).ok()?,
        }
        let repeats = purpose == Purpose::Fire && seen.repeats();
        Some(claimed(node.number, seen, repeats))
    }

    /// Takes the node of an ended timer out of the index. True if this call took it out, or if no index led to it.
    #[inline]
    fn take_out_of_index(&self, node: Node<'_, K, V>, access: &Access) -> bool {
        Spot::if_indexed(node.head.hash()).is_none_or(|spot| self.index.search_and_remove(spot, node.number, access))
    }

    /// Takes the value of a claimed timer; what is left of the claim is the right to its key.
    pub(crate) fn take_value(&self, claim: Claim) -> (ClaimedNode, V) {
        // SAFETY: the thread that made the `Claim` ended the timer, one of this shard, or turned it from pending to
        // firing; and the claim is used up here. (It goes from thread to thread by means that order the two.)
        let value = unsafe { self.slab.tail(claim.node.node).take_value() };
        (claim.node, value)
    }

    /// Called after the callback of a timer that repeats. The timer comes back at the deadline that it was given
    /// meanwhile, else at `next`. It ends if there is neither, or if somebody has ended it meanwhile; and if its shard
    /// was sealed.
    pub(crate) fn rearm_or_end(
        &self,
        claim: ClaimedNode,
        value: V,
        next: Option<Due>,
        now: Tick,
        access: &Access,
    ) -> Fired<V> {
        let node = self.slab.node(claim.node);
        // A timer may have been begun on a node that the sealer had passed already, and claimed before its author found
        // the shard sealed. It must not come back, or it would stay for ever. The thread that claimed it has observed
        // its beginning, and with that the seal.
        let is_sealed = self.unindexed.is_sealed();
        // SAFETY: the claim says that the callback is ours, and it is used up here.
        unsafe { node.tail.put_value(value) };
        // SAFETY: if the timer has ended, it did so while the value was ours, so nobody else takes it. Called once.
        let take_value = || unsafe { node.tail.take_value() };
        match node.head.word.rearm_or_end(next.map(Due::deadline), is_sealed) {
            RunEnd::Back(deadline) => {
                // The timer may have been given this deadline long ago, and have missed it: then it is due now.
                let tick = deadline.tick(now).map(|tick| tick.max(now));
                self.announce(node.number, &node.head.promise, Due { tick, now }, access);
                Fired::Rearmed
            }
            RunEnd::Sealed(deadline) => {
                Fired::Sealed(ClaimedNode { leaves_index: false, ..claim }, take_value(), deadline.tick(now))
            }
            RunEnd::Ended => Fired::Ended(claim, take_value()),
        }
    }

    /// Runs `change` on the period of a timer at a fixed rate, whose callback is running.
    pub(crate) fn with_period<R>(&self, claim: &ClaimedNode, change: impl FnOnce(&mut Period<V>) -> R) -> R {
        // SAFETY: the claim says that the callback is ours. It has a period: the callers ask only if it repeats and its
        // callback does not decide.
        unsafe { self.slab.with_period(claim.node, change) }
    }

    /// Runs `read` on the key of a claimed timer.
    #[inline(always)]
    pub(crate) fn with_claimed_key<R>(&self, claim: &ClaimedNode, read: impl FnOnce(&K) -> R) -> R {
        // SAFETY: a `ClaimedNode` stands for a timer that was claimed and is not finished yet.
        unsafe { self.slab.head(claim.node).with_key(read) }
    }

    /// Says that the key of a claimed timer is not needed any more. The node leaves the index only now: the claimer, on
    /// another core as a rule, need not fetch its line. (A timer of the same key that has begun meanwhile may have
    /// taken it out already.) `drop_ripe_keys` follows.
    #[inline(always)]
    pub(crate) fn finish(&self, claim: ClaimedNode, access: &Access) {
        let node = self.slab.node(claim.node);
        let unlinked = claim.leaves_index && self.take_out_of_index(node, access);
        // If we took it out, nobody needs the word any more to find out who retires the node. But somebody may still
        // ask it whether the key can be dropped.
        let must_tell = !unlinked || needs_drop::<K>();
        let was_unlinked = must_tell && node.head.word.finish();
        if unlinked || was_unlinked {
            self.slab.retire(node, access);
        }
    }

    /// `finish`, and `drop_ripe_keys`: runs user code.
    pub(crate) fn finish_alone(&self, claim: ClaimedNode, access: &mut Access) {
        self.finish(claim, access);
        self.drop_ripe_keys(access);
    }

    /// Takes the value of a pending timer that we have just ended with `End::Done`, and its node out of the index.
    // Inlined always: as `Slab::pop`.
    #[inline(always)]
    pub(super) fn take_ended(
        &self,
        spot: Option<Spot>,
        node: Node<'_, K, V>,
        position: Option<Position>,
        access: &Access,
    ) -> V {
        // SAFETY: we ended it, and come here once.
        let value = unsafe { node.tail.take_value() };
        let is_out = spot.is_none_or(|spot| self.index.remove(spot, node.number, position, access));
        if is_out && self.slab.retire(node, access) {
            self.wake_if_stale();
        }
        value
    }

    /// Takes the value of our own timer, which has given way, and its node out of the index.
    pub(super) fn take_back(&self, node: Node<'_, K, V>, access: &Access) -> V {
        // SAFETY: the timer never was pending, so its value is its author's: ours. We come here once.
        let value = unsafe { node.tail.take_value() };
        // Others may be comparing its key, so it is finished like a timer that was claimed.
        self.finish(ClaimedNode { node: node.number, leaves_index: true }, access);
        value
    }

    /// Calls `each` for every pending timer. One that begins meanwhile may be missing; one that ends may be included.
    pub(crate) fn identities(&self, mut each: impl FnMut(Identity)) {
        for node in 1..self.slab.extent() {
            let timer = Identity { node, generation: self.slab.reserved_generation(node) };
            if self.pending(timer).is_some() {
                each(timer);
            }
        }
    }

    /// Ends the shard: no timer starts from now on, and each pending timer is claimed and goes to `each`, once.
    pub(crate) fn seal(&self, access: &Access, mut each: impl FnMut(Claim)) {
        let mut claim = |node, word: Word| {
            // The node stays in its cell: the shard is sealed.
            each(Claim { node: ClaimedNode { node, leaves_index: false }, repeats: false, deadline: word.deadline() });
        };
        self.index.seal(&self.slab, access, &mut claim);
        self.seal_unindexed(claim);
    }

    /// Ends every timer, without `seal`. No `schedule` may be under way or begin later, so this can go through the
    /// nodes one after the other, rather than through the index, where they lie in no order.
    pub(crate) fn end_all(&self) {
        for node in self.slab.nodes() {
            let word = &self.slab.head(node).word;
            loop {
                let seen = word.load();
                match seen.state() {
                    State::Pending if word.replace(seen, NO_SUCCESSOR).is_ok() => break,
                    // Its value is in use: the thread that runs the callback finds that it has ended.
                    State::Firing if word.kill(seen, End::KeyInUse).is_ok() => break,
                    State::Pending | State::Firing => {}
                    // Tentative, yielding: never linked, since the call that began it was unwound.
                    // Sealed: never met, since there was no `seal`.
                    State::Dead | State::Replaced | State::Tentative | State::Yielding | State::Sealed => break,
                }
            }
        }
    }

    /// Hands out the values of the timers that `end_all` found pending, and finishes them.
    ///
    /// # Safety
    /// To be called once, by the thread that has called `end_all`.
    pub(crate) unsafe fn take_values(&self, mut each: impl FnMut(V)) {
        for node in self.slab.nodes() {
            let word = &self.slab.head(node).word;
            // Found by a load, and not from a list of what we have ended: the load acquires the value.
            if word.load().is_replaced_by(NO_SUCCESSOR) {
                // SAFETY: we ended it, and come here once.
                let value = unsafe { self.slab.tail(node).take_value() };
                let unlinked = word.finish();
                debug_assert!(!unlinked, "nobody takes it out of its cell");
                each(value);
            }
        }
    }

    /// Moves the key of a finished timer out.
    ///
    /// # Safety
    /// No other thread may be using a key of this shard, except for claimed timers that are not finished.
    pub(crate) unsafe fn take_key(&self, node: u32) -> Option<K> {
        // SAFETY: as the caller promises.
        unsafe { self.slab.take_leftover_key(node) }
    }

    /// Drops the key of a finished timer, if nobody has.
    ///
    /// # Safety
    /// No other thread may be using a key of this shard, except for claimed timers that are not finished.
    pub(crate) unsafe fn drop_key(&self, node: u32) {
        // SAFETY: as the caller promises.
        unsafe { self.slab.drop_key(self.slab.head(node)) };
    }

    /// Drops the keys that finished timers have left behind. No `schedule` may be under way.
    ///
    /// # Safety
    /// No other thread may be using a key of this shard, except for claimed timers that are not finished.
    pub(crate) unsafe fn drop_leftover_keys(&self) {
        // SAFETY: as the caller promises.
        unsafe { self.slab.drop_leftover_keys() };
    }
}
