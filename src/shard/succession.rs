//! Who of several timers of one key is there: the newest that has not given way.
//!
//! The order in the list decides. A new node stands in front of all of its hash, tentative or yielding, and what is older behind it
//! stays so. Its author, or whoever meets it there ([`help`]), walks over those, and then one compare-exchange on its word says
//! what became of it. So of any two the older is decided first, and nobody waits for anybody.
//!
//! - A *tentative* one ends the older timers of its key in its own name, and begins ([`resolve`]).
//! - A *yielding* one gives way if an older timer of its key is there, else it begins ([`decide`]).

use super::index::{Index, Position, Spot, take_out};
use super::link::Order;
use super::slab::{Node, Slab};
use super::word::{End, State, Word};
use super::{Access, shielded};
use std::sync::Arc;

/// Brings a timer in, or has it give way, in its author's place; its word was `seen`. (A node that is linked does not change from
/// tentative to yielding, or back.)
// By its number: a `Node` would be handed over in memory, and so be kept there by callers who hardly ever come here.
pub(super) fn help<K, V>(slab: &Slab<K, V>, node: u32, seen: Word, order: Order)
where
    K: Eq + Send + Sync + 'static,
    V: Send + 'static,
{
    let node = slab.node(node);
    match seen.state() {
        State::Yielding => decide(slab, node, order),
        _ => resolve(slab, node, order),
    }
}

/// Has the yielding `node` give way to an older timer of its key, if there is one; else publishes it. Nothing older than a node comes in
/// behind it: where all have ended, none begins.
fn decide<K, V>(slab: &Slab<K, V>, node: Node<'_, K, V>, order: Order)
where
    K: Eq + Send + Sync + 'static,
    V: Send + 'static,
{
    let mut link = node.head.next.load();
    while link.continues_run(order) {
        let older = slab.node(link.index());
        if is_in_the_way(slab, older, node, order) {
            return node.head.word.give_way();
        }
        link = older.head.next.load();
    }
    node.head.word.publish();
}

/// True if `older` is a timer of the same key that is pending, or firing and may come back.
fn is_in_the_way<K, V>(slab: &Slab<K, V>, older: Node<'_, K, V>, newer: Node<'_, K, V>, order: Order) -> bool
where
    K: Eq + Send + Sync + 'static,
    V: Send + 'static,
{
    loop {
        let seen = older.head.word.load();
        match seen.state() {
            State::Dead | State::Replaced => return false,
            _ if !same_key(older, newer) => return false,
            // As in `supersede`.
            State::Tentative | State::Yielding => help(slab, older.number, seen, order),
            // In the name of the author of `newer`: we have acquired what he did before with the link to it.
            State::Pending | State::Firing if older.head.word.rely_on() => return true,
            State::Pending | State::Firing => {}
        }
    }
}

/// Ends every older timer of the tentative `node`'s key in its name, then publishes it.
fn resolve<K, V>(slab: &Slab<K, V>, node: Node<'_, K, V>, order: Order)
where
    K: Eq + Send + Sync + 'static,
    V: Send + 'static,
{
    let mut link = node.head.next.load();
    while link.continues_run(order) {
        let older = slab.node(link.index());
        supersede(slab, older, node, order);
        link = older.head.next.load();
    }
    node.head.word.publish();
}

/// Ends `older` in the name of `newer` if it is a timer of the same key.
fn supersede<K, V>(slab: &Slab<K, V>, older: Node<'_, K, V>, newer: Node<'_, K, V>, order: Order)
where
    K: Eq + Send + Sync + 'static,
    V: Send + 'static,
{
    let word = &older.head.word;
    loop {
        let seen = word.load();
        match seen.state() {
            State::Dead | State::Replaced => return,
            _ if !same_key(older, newer) => return,
            // As deep as there are threads that schedule this key at this moment.
            State::Tentative | State::Yielding => help(slab, older.number, seen, order),
            State::Pending if word.replace(seen, newer.number).is_ok() => return,
            // Its value is in use: whoever runs the callback finds that it has ended.
            State::Firing if word.kill(seen, End::KeyInUse).is_ok() => return,
            State::Pending | State::Firing => {}
        }
    }
}

/// The author's part: publishes its linked `node`, which has others of its order behind it if `in_run`.
#[inline]
pub(super) fn publish<K, V>(slab: &Slab<K, V>, spot: Spot<'_>, node: Node<'_, K, V>, in_run: bool)
where
    K: Eq + Send + Sync + 'static,
    V: Send + 'static,
{
    if in_run {
        resolve(slab, node, spot.order());
    } else {
        node.head.word.publish();
    }
}

/// The author's part for its linked `node` that is yielding, as `publish`. False: it has given way, and its value is the author's.
pub(super) fn publish_or_give_way<K, V>(slab: &Slab<K, V>, spot: Spot<'_>, node: Node<'_, K, V>, in_run: bool) -> bool
where
    K: Eq + Send + Sync + 'static,
    V: Send + 'static,
{
    if in_run {
        decide(slab, node, spot.order());
    } else {
        node.head.word.publish();
    }
    !node.head.word.load().gave_way()
}

/// Keys that panic when compared count as different here: whoever helps must not be left half way.
fn same_key<K: Eq, V>(a: Node<'_, K, V>, b: Node<'_, K, V>) -> bool {
    // SAFETY: both nodes were reached in the index under the caller's guard.
    let compare = || unsafe { a.head.with_key(|a| b.head.with_key(|b| a == b)) };
    shielded(compare).unwrap_or(false)
}

/// The value that belongs to the author of `newer`: of the timer that was ended in its name, if there was one.
/// Called once, by that author, after `resolve`.
///
/// And those of others: there are some only if `Eq` has contradicted itself, or panicked.
pub(super) fn take_replaced<K, V>(
    index: &Index,
    slab: &Arc<Slab<K, V>>,
    spot: Spot<'_>,
    newer: Node<'_, K, V>,
    access: &Access,
) -> (Option<V>, Vec<V>)
where
    K: Eq + Send + Sync + 'static,
    V: Send + 'static,
{
    let order = spot.order();
    // A replaced node is taken out by nobody but the author of its successor, which is us: it is still in there.
    let mut position = Position::behind(newer);
    let (mut value, mut others) = (None, Vec::new());
    while position.link.continues_run(order) {
        let node = slab.node(position.link.index());
        let word = node.head.word.load();
        if word.is_replaced_by(newer.number) {
            // SAFETY: its word names our node, so the value is ours; from `finish` on it is not found here again.
            let taken = unsafe { node.tail.take_value() };
            let unlinked = node.head.word.finish();
            debug_assert!(!unlinked, "nobody but us takes it out of the list");
            if index.remove(slab, spot, node, Some(position), access) {
                slab.retire(node, access);
            }
            // The first is the newest: the one that was to be found until now. The others are not dropped here, half way.
            match value {
                None => value = Some(taken),
                Some(_) => others.push(taken),
            }
        } else if word.is_in_use() && !node.head.next.load().is_marked() {
            // Ended in our name while it fired. Or somebody else, of this key or another of equal hash, is about to take it out.
            take_out(index, slab, spot, node, access);
        }
        position = Position::behind(node);
    }
    (value, others)
}

/// Ends the timer of `node` whatever its deadline; the word that it had, if it was pending.
pub(super) fn claim_any<K, V>(slab: &Slab<K, V>, node: u32, order: Order) -> Option<Word>
where
    K: Eq + Send + Sync + 'static,
    V: Send + 'static,
{
    let node = slab.node(node);
    let word = &node.head.word;
    loop {
        let seen = word.load();
        match seen.state() {
            State::Dead | State::Replaced => return None,
            State::Tentative | State::Yielding => help(slab, node.number, seen, order),
            State::Pending if word.kill(seen, End::KeyInUse).is_ok() => return Some(seen),
            State::Firing if word.kill(seen, End::KeyInUse).is_ok() => return None,
            State::Pending | State::Firing => {}
        }
    }
}
