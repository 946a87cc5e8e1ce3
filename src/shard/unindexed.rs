//! Timers that no index leads to: known by their handles alone. They have keys for their callbacks, but these are never
//! looked up, so such a timer needs no line, and begins and ends with one exchange on its word. (Nor does the index
//! grow for them.)
//!
//! When a shard is sealed, the sealer does not find them in a line, as it does others. So it looks at all nodes, if any
//! timer was begun in this way.
//!
//! | author                                      | sealer                                    |
//! |---------------------------------------------|-------------------------------------------|
//! | 1. sets the flag "there are such timers"    | 1. sets the flag "the shard is sealed"    |
//! | 2. takes a node, perhaps a new one          | 2. reads how many nodes there are         |
//! | 3. turns its word pending                   | 3. ends what is pending, node by node     |
//! | 4. is the shard sealed? ends the timer      |                                           |
//!
//! (A worker may claim the timer between 3 and 4. Then it was accepted, and fires; but it does not come back: see
//! `Shard::rearm_or_end`.)
//!
//! In each of steps 1 to 3, author and sealer do a read-modify-write of the same atomic, so one of them is first:
//! - If the sealer is first in any of them, the author observes its step, and with it that the shard is sealed.
//! - Else the sealer finds the timer in 3. If the author's 4 comes upon the seal as well, one exchange on the word
//!   decides: the timer is refused, or it was accepted and then closed.
//!
//! (An author that finds its flag set does no read-modify-write in 1; one that takes a used node does none in 2.
//! Somebody did so earlier, and what that thread observed comes along with the flag, or with the node.)

use super::period::Repeats;
use super::slab::NoNode;
use super::word::{End, Word};
use super::{Access, Due, Identity, Refused, Shard};
use crate::sync::{AtomicU32, Ordering};
use Ordering::{Acquire, Release};

const ANY: u32 = 1;
const SEALED: u32 = 2;

/// Whether a shard has such timers, and whether it is sealed.
#[derive(Debug, Default)]
pub(super) struct Unindexed(AtomicU32);

impl Unindexed {
    /// Step 1 of the author. False if the shard is sealed.
    #[inline]
    fn declare(&self) -> bool {
        // The steps alone could be relaxed: flags are never taken back; of two read-modify-writes the later one finds
        // the flag that the other has set; and a load that finds `ANY` also finds a `SEALED` that was set before it.
        // Acquire, here and below: an author that is refused observes what the sealer did before, above all that the
        // scheduler is closed. (An author that sets `ANY` after `SEALED` carries the sealer's release on.)
        let mut seen = self.0.load(Acquire);
        if seen & ANY == 0 {
            seen = self.0.fetch_or(ANY, Acquire);
        }
        seen & SEALED == 0
    }

    /// Step 1 of the sealer. True if there may be such timers.
    fn seal(&self) -> bool {
        // Release: to the Acquire of each author that is refused.
        self.0.fetch_or(SEALED, Release) & ANY != 0
    }

    /// Step 4. True for any thread that has observed a step of the sealer's.
    #[inline]
    pub(super) fn is_sealed(&self) -> bool {
        self.0.load(Acquire) & SEALED != 0
    }
}

impl<K: Eq + Send + Sync + 'static, V: Send + 'static> Shard<K, V> {
    /// Starts a timer that is known by its identity alone.
    #[inline]
    pub(crate) fn schedule_unindexed(
        &self,
        key: K,
        value: V,
        due: Due,
        repeats: Repeats<V>,
        access: &mut Access,
    ) -> Result<Identity, Refused<K, V>> {
        if !self.unindexed.declare() {
            return Err(Refused::Sealed(key, value));
        }
        let begun = self.slab.begin(key, value, due.deadline(), repeats, access);
        let (node, identity, word) = begun.map_err(|NoNode(key, value)| Refused::Exhausted(key, value))?;
        // (If the word has changed, the timer was claimed: by the sealer, by `drain`, or when due by the worker.)
        if self.unindexed.is_sealed() && node.head.word.kill(word, End::Done).is_ok() {
            let NoNode(key, value) = self.slab.give_back(node, access);
            return Err(Refused::Sealed(key, value));
        }
        self.announce(node.number, &node.head.promise, due, access);
        Ok(identity)
    }

    /// The sealer's part: ends all timers that the index does not lead to; those that were pending go to `claim`.
    pub(super) fn seal_unindexed(&self, mut claim: impl FnMut(u32, Word)) {
        if !self.unindexed.seal() {
            return;
        }
        for node in self.slab.nodes_at_seal() {
            if let Some(word) = self.slab.reserved_head(node).word.look_and_seal() {
                claim(node, word);
            }
        }
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use super::super::{Fired, Hint, Look, Purpose, Spot, Tick};
    use super::*;

    /// However it ends, its node is used again.
    #[test]
    fn a_timer_without_index_leaves_nothing_behind() {
        let (now, batch) = (Tick(1), 64);
        let shard = Shard::<u32, u32>::new(1, batch, now);
        let ordinal = crate::thread::ordinal();
        for round in 0..4 * batch {
            let access = &mut Access::new(&ordinal);
            let repeats = if round % 4 < 2 { Repeats::Never } else { Repeats::IfWanted };
            let due = Due { tick: Some(now), now };
            let timer = shard.schedule_unindexed(round, round, due, repeats, access).expect("it is open");
            if round % 4 == 0 {
                assert_eq!(shard.cancel_this(timer, access), Some(round));
                continue;
            }
            let Look::Expired(claim) = shard.look(Hint::new(now, timer.node), now) else { panic!("it is due") };
            let (node, value) = shard.take_value(claim);
            assert_eq!((value, shard.with_claimed_key(&node, |&key| key)), (round, round));
            if round % 4 == 1 {
                shard.finish(node, access);
                continue;
            }
            if round % 4 == 2 {
                assert_eq!(shard.cancel_this(timer, access), None, "it fires");
            }
            let Fired::Ended(node, _) = shard.rearm_or_end(node, value, None, now, access) else {
                panic!("it has ended")
            };
            shard.finish(node, access);
        }
        assert_eq!(shard.nodes_in_use(), 0);
        let access = &mut Access::new(&ordinal);
        let due = Due { tick: None, now };
        let timer = shard.schedule_unindexed(1, 1, due, Repeats::Never, access).expect("it is open");
        let claim = shard.claim_this(timer, Purpose::TakeOut, access).expect("it is pending");
        let (node, _) = shard.take_value(claim);
        shard.finish(node, access);
        let mut closed = 0;
        shard.seal(access, |_| closed += 1);
        assert_eq!(closed, 0);
        assert!(matches!(shard.schedule_unindexed(1, 2, due, Repeats::Never, access), Err(Refused::Sealed(1, 2))));
    }

    /// It grows when their nodes are used for timers that it leads to.
    #[test]
    fn the_index_does_not_grow_for_timers_that_it_does_not_lead_to() {
        let (now, count) = (Tick(1), 1 << 12);
        let shard = Shard::<u32, ()>::new(1, 64, now);
        let ordinal = crate::thread::ordinal();
        let access = || Access::new(&ordinal);
        let due = Due { tick: None, now };
        let few = 2 * shard.line_count();
        let mut next = 1;
        let mut grow = || {
            while next < shard.lines_end() {
                next = shard.split_ahead(next, 1 << 16, &access());
            }
            shard.line_count()
        };
        for _ in 0..2 {
            let begun =
                |key| shard.schedule_unindexed(key, (), due, Repeats::Never, &mut access()).expect("it is open");
            let timers: Vec<_> = (0..count).map(begun).collect();
            assert!(grow() <= few);
            timers.into_iter().for_each(|timer| assert_eq!(shard.cancel_this(timer, &access()), Some(())));
        }
        for key in 0..count {
            let started = shard.schedule(Spot::of(key << 16), key, (), due, Repeats::Never, &mut access());
            assert!(started.is_ok());
        }
        assert!(grow() * 9 >= count);
    }

    #[test]
    fn a_timer_that_is_sealed_while_it_fires_is_out_of_its_handles_reach() {
        let now = Tick(1);
        let shard = Shard::<u32, u32>::new(1, 64, now);
        let ordinal = crate::thread::ordinal();
        let access = &mut Access::new(&ordinal);
        let due = Due { tick: Some(now), now };
        let timer = shard.schedule_unindexed(7, 70, due, Repeats::IfWanted, access).expect("it is open");
        let claim = shard.claim_this(timer, Purpose::Fire, access).expect("it is pending");
        let (claim, value) = shard.take_value(claim);
        shard.seal(access, |_| panic!("nothing is pending"));
        assert!(!shard.reschedule_this(timer, due, access) && shard.cancel_this(timer, access).is_none());
        assert!(shard.claim_this(timer, Purpose::TakeOut, access).is_none() && shard.due_this(timer, now).is_none());
        let Fired::Sealed(claim, 70, Some(Tick(1))) = shard.rearm_or_end(claim, value, Some(due), now, access) else {
            panic!("it is back, or lost")
        };
        shard.finish(claim, access);
    }

    /// Its author stalls twice: until the shard is sealed, and then until an old hint leads the worker to the node.
    #[test]
    fn a_timer_that_fires_in_a_sealed_shard_does_not_come_back() {
        let now = Tick(1);
        let shard = Shard::<u32, u32>::new(1, 64, now);
        let ordinal = crate::thread::ordinal();
        let access = &mut Access::new(&ordinal);
        assert!(shard.unindexed.declare());
        shard.seal(access, |_| panic!("nothing is pending"));
        let due = Due { tick: Some(now), now };
        let begun = shard.slab.begin(7, 70, due.deadline(), Repeats::IfWanted, access);
        let (node, ..) = begun.expect("there is room");
        let Look::Expired(claim) = shard.look(Hint::new(now, node.number), now) else { panic!("it is due") };
        let (claim, value) = shard.take_value(claim);
        let Fired::Sealed(claim, 70, Some(Tick(1))) = shard.rearm_or_end(claim, value, Some(due), now, access) else {
            panic!("it is back, or lost")
        };
        assert!(!claim.leaves_index, "or its node would be used again, and its key could not be given back");
        shard.finish(claim, access);
    }
}
