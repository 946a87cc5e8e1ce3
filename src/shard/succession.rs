//! Who of several timers of one key is there: the newest that has not given way.
//!
//! Tickets decide. A timer that comes when there are others like it has one, or is given one by whoever meets it; and who has one knows
//! of all that have a lower one. Its author, or whoever meets it ([`help`]), goes through the others of its line ([`settle`]), and then one
//! compare-exchange on its word says what became of it. So of any two the older is decided first, and nobody waits for anybody.
//!
//! - A *tentative* one ends the older timers of its key in its own name, and begins.
//! - A *yielding* one gives way if an older timer of its key is there, else it begins.
//!
//! A timer without a ticket whose author has seen nobody, or one that is dead, is published by him at once, unless it is given one first. So
//! it is older than all that are undecided while it is pending.
//!
//! Who helps may be late: the timer that he helps is decided by now, and newer ones have come. So whom he finds pending he ends only if the
//! one that he helps was undecided after that. Then the other one is older, as a newer one would not have been published before (its author
//! knows the end of the one that is helped, and who finds the newer one pending acquires that); and if the exchange comes too late, the
//! other one has ended by then, and the exchange fails.

use super::index::{Index, Spot, take_out};
use super::slab::{Node, Slab};
use super::word::{End, State, Word};
use super::{Access, shielded};
use crate::sync::fence_after_acquire;
use std::ops::ControlFlow;
use std::sync::Arc;

/// A timer that is not decided, as it was seen, and its ticket.
struct Undecided<'a, K, V> {
    node: Node<'a, K, V>,
    word: Word,
    ticket: u64,
}

impl<K, V> Undecided<'_, K, V> {
    fn is_still(&self) -> bool {
        self.node.head.word.load() == self.word
    }
}

/// Brings a timer in, or has it give way, in its author's place, unless it is decided.
pub(super) fn help<K, V>(index: &Index, slab: &Arc<Slab<K, V>>, node: u32, spot: Spot, access: &Access)
where
    K: Eq + Send + Sync + 'static,
    V: Send + 'static,
{
    let node = slab.node(node);
    // Of what our caller has acquired: the claim of `node`. See `each_node`.
    fence_after_acquire();
    loop {
        let word = node.head.word.load();
        if !word.is_undecided() {
            return;
        }
        let Some(ticket) = word.ticket() else {
            node.head.word.give_ticket(word, index.draw(spot, access));
            continue;
        };
        let newer = Undecided { node, word, ticket };
        index.each_node(spot, access, |other| {
            decide_before(index, slab, slab.node(other), &newer, spot, access);
            ControlFlow::Continue(())
        });
        let mut gives_way = false;
        index.each_node(spot, access, |other| {
            gives_way = settle(slab.node(other), &newer);
            if gives_way { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        if gives_way {
            node.head.word.give_way(word);
        } else {
            node.head.word.publish(word, node.head.aside.deadline());
        }
    }
}

/// Decides `other` if it is of the same key and older than `newer`: it may end what is pending by now, and then it is `other` that `newer`
/// ends.
fn decide_before<K, V>(
    index: &Index,
    slab: &Arc<Slab<K, V>>,
    other: Node<'_, K, V>,
    newer: &Undecided<'_, K, V>,
    spot: Spot,
    access: &Access,
) where
    K: Eq + Send + Sync + 'static,
    V: Send + 'static,
{
    let word = &other.head.word;
    loop {
        let seen = word.load();
        if other.number == newer.node.number || !seen.is_undecided() || !same_key(other, newer.node) {
            return;
        }
        match seen.ticket() {
            None => word.give_ticket(seen, index.draw(spot, access)),
            Some(ticket) if ticket > newer.ticket => return,
            // As deep as there are threads that schedule this key at this moment.
            Some(_) => help(index, slab, other.number, spot, access),
        }
    }
}

/// Ends `other` in the name of `newer` if it is an older timer of the same key; or, if `newer` is yielding, true if that must give way to it.
/// Those that are not decided are newer.
fn settle<K, V>(other: Node<'_, K, V>, newer: &Undecided<'_, K, V>) -> bool
where
    K: Eq + Send + Sync + 'static,
    V: Send + 'static,
{
    let word = &other.head.word;
    loop {
        let seen = word.load();
        match seen.state() {
            State::Dead | State::Replaced | State::Tentative | State::Yielding => return false,
            _ if !same_key(other, newer.node) || !newer.is_still() => return false,
            // In the name of the author of `newer`: we have acquired what he did before with the cell of it.
            _ if newer.word.state() == State::Yielding => {
                if word.rely_on() {
                    return true;
                }
            }
            State::Pending => {
                if word.replace(seen, newer.node.number).is_ok() {
                    return false;
                }
            }
            // Its value is in use: whoever runs the callback finds that it has ended.
            State::Firing => {
                if word.kill(seen, End::KeyInUse).is_ok() {
                    return false;
                }
            }
        }
    }
}

/// Keys that panic when compared count as different here: whoever helps must not be left half way.
fn same_key<K: Eq, V>(a: Node<'_, K, V>, b: Node<'_, K, V>) -> bool {
    // SAFETY: both nodes were reached in the index under the caller's guard.
    let compare = || unsafe { a.head.with_key(|a| b.head.with_key(|b| a == b)) };
    shielded(compare).unwrap_or(false)
}

/// The value that belongs to the author of `newer`: of the timer that was ended in its name, if there was one.
/// Called once, by that author, after it was decided.
///
/// And those of others: there are some only if `Eq` has contradicted itself, or panicked.
pub(super) fn take_replaced<K, V>(
    index: &Index,
    slab: &Arc<Slab<K, V>>,
    spot: Spot,
    newer: Node<'_, K, V>,
    access: &Access,
) -> (Option<V>, Vec<V>)
where
    K: Eq + Send + Sync + 'static,
    V: Send + 'static,
{
    // A replaced node is taken out by nobody but the author of its successor, which is us: it is still in there.
    let (mut value, mut others) = (None, Vec::new());
    index.each_node(spot, access, |number| {
        let node = slab.node(number);
        let word = node.head.word.load();
        if word.is_replaced_by(newer.number) {
            // SAFETY: its word names our node, so the value is ours; from `finish` on it is not found here again.
            let taken = unsafe { node.tail.take_value() };
            let unlinked = node.head.word.finish();
            debug_assert!(!unlinked, "nobody but us takes it out");
            if index.remove(spot, number, None, access) {
                slab.retire(node, access);
            }
            match value {
                None => value = Some(taken),
                Some(_) => others.push(taken),
            }
        } else if word.is_in_use() {
            // Ended in our name while it fired; or its callback is not done; or somebody else, of this key or another of equal hash, is
            // about to take it out.
            take_out(index, slab, spot, node, access);
        }
        ControlFlow::Continue(())
    });
    (value, others)
}

/// Decides the timer of `node`, if it is not.
pub(super) fn decide<K, V>(index: &Index, slab: &Arc<Slab<K, V>>, node: u32, access: &Access)
where
    K: Eq + Send + Sync + 'static,
    V: Send + 'static,
{
    let Node { head, tail, .. } = slab.node(node);
    if head.word.load().is_undecided() {
        help(index, slab, node, index.spot(tail.hash()), access);
    }
}

/// Ends the decided timer of `node` whatever its deadline; the word that it had, if it was pending.
pub(super) fn claim_any<K, V>(slab: &Slab<K, V>, node: u32) -> Option<Word>
where
    K: Eq + Send + Sync + 'static,
    V: Send + 'static,
{
    let word = &slab.head(node).word;
    loop {
        let seen = word.load();
        debug_assert!(!seen.is_undecided());
        if !matches!(seen.state(), State::Pending | State::Firing) {
            return None;
        }
        if word.kill(seen, End::KeyInUse).is_ok() {
            return Some(seen).filter(|seen| seen.is_pending());
        }
    }
}
