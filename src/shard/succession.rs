//! Which of several timers of one key is the current one: the newest that has not given way.
//!
//! Tickets decide. A timer that begins beside others which look like it draws a ticket, or is given one by a thread
//! that meets it. The holder of a ticket knows of all timers with lower tickets. Its author, or any thread that meets
//! it ([`help`]), goes through the other timers of its line ([`settle`]); then one compare-exchange on its word decides
//! it. So of any two timers the older is decided first, and no thread waits for another.
//!
//! - A *tentative* timer ends the older timers of its key in its own name, and begins.
//! - A *yielding* timer gives way if its key has an older one, else it begins.
//!
//! If the author has seen no other timer, or only a dead one, it publishes its own at once, without a ticket, unless
//! another thread has given it one by then. So a timer that is pending without a ticket is older than all that are
//! undecided meanwhile.
//!
//! A helper may be late: the timer H that it helps may be decided by now, and newer ones published. So on finding P
//! pending, the helper reads H again, and ends P only if H is still undecided. Then P is older than H: a newer P would
//! have been published only after its author saw H decided, and the helper, which has acquired P's word, would see that
//! too. If H is decided between that read and the exchange, P has been ended for H already, and the exchange fails.

use super::index::{Index, Spot, take_out};
use super::slab::{Node, Slab};
use super::word::{End, State, Word};
use super::{Access, shielded};
use crate::sync::fence_after_acquire;
use std::ops::ControlFlow;
use std::sync::Arc;

/// An undecided timer as it was seen, and its ticket.
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

/// Decides a timer in its author's place, unless it is decided: publishes it, or has it give way.
pub(super) fn help<K, V>(index: &Index, slab: &Arc<Slab<K, V>>, node: u32, spot: Spot, access: &Access)
where
    K: Eq + Send + Sync + 'static,
    V: Send + 'static,
{
    let node = slab.node(node);
    // For what our caller has acquired, the claim of `node`'s cell. See `each_node`.
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
            node.head.word.publish(word, node.tail.aside.deadline());
        }
    }
}

/// Decides `other` first if it has the same key and is older than `newer`: it may replace the timer that is pending
/// now, and then `newer` replaces `other`.
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
            // The recursion is as deep as the number of threads that schedule this key at this moment.
            Some(_) => help(index, slab, other.number, spot, access),
        }
    }
}

/// Ends `other` in the name of `newer` if it is an older timer of the same key. If `newer` is yielding, ends nothing,
/// and returns true if `newer` must give way to `other`. (Undecided timers are newer: `decide_before` has decided the
/// older ones.)
fn settle<K, V>(other: Node<'_, K, V>, newer: &Undecided<'_, K, V>) -> bool
where
    K: Eq + Send + Sync + 'static,
    V: Send + 'static,
{
    let word = &other.head.word;
    loop {
        let seen = word.load();
        match seen.state() {
            // (Sealed: never met by a timer that is undecided, since the sealer decides a line's timers first.)
            State::Dead | State::Replaced | State::Tentative | State::Yielding | State::Sealed => return false,
            _ if !same_key(other, newer.node) || !newer.is_still() => return false,
            // In the name of `newer`'s author: we acquired what it did before with `newer`'s cell.
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
            // Its value is in use: the thread that runs the callback will find that it has ended.
            State::Firing => {
                if word.kill(seen, End::KeyInUse).is_ok() {
                    return false;
                }
            }
        }
    }
}

/// Keys that panic when compared count as different here: a helper must not stop half way.
fn same_key<K: Eq, V>(a: Node<'_, K, V>, b: Node<'_, K, V>) -> bool {
    // SAFETY: both nodes were reached in the index under the caller's guard.
    let compare = || unsafe { a.head.with_key(|a| b.head.with_key(|b| a == b)) };
    shielded(compare).unwrap_or(false)
}

/// Takes the value of the timer that `newer` has replaced, if any, and that timer out of the index. Called once, by the
/// author of `newer`, after that was decided.
///
/// The list has the values of further timers replaced by `newer`: there are some only if `Eq` contradicted itself, or
/// panicked.
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
    // Only the author of its successor takes a replaced node out of the index. That is us, so it is still there.
    let (mut value, mut others) = (None, Vec::new());
    index.each_node(spot, access, |number| {
        let node = slab.node(number);
        let word = node.head.word.load();
        if word.is_replaced_by(newer.number) {
            // SAFETY: its word names our node, so the value is ours; and from `finish` on we do not find it here again.
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
            // Ended in our name while it fired; or its callback is not done; or another thread, with this key or one of
            // equal hash, is about to take it out.
            take_out(index, slab, spot, node, access);
        }
        ControlFlow::Continue(())
    });
    (value, others)
}

/// Decides the timer of `node`, if it is undecided.
pub(super) fn decide<K, V>(index: &Index, slab: &Arc<Slab<K, V>>, node: u32, access: &Access)
where
    K: Eq + Send + Sync + 'static,
    V: Send + 'static,
{
    let head = slab.head(node);
    if head.word.load().is_undecided() {
        help(index, slab, node, Spot::of(head.hash()), access);
    }
}

/// Ends the decided timer of `node` whatever its deadline, for the sealer. Returns the word that it had, if it was
/// pending.
pub(super) fn claim_any<K, V>(slab: &Slab<K, V>, node: u32) -> Option<Word>
where
    K: Eq + Send + Sync + 'static,
    V: Send + 'static,
{
    let word = &slab.head(node).word;
    let seen = word.load();
    debug_assert!(!seen.is_undecided());
    word.seal(seen)
}
