//! From key to timer: a lock-free hash index that grows while in use and never moves a timer.
//!
//! One sorted linked list holds all nodes of the shard; an array of *buckets* points into it as shortcuts. The list is
//! sorted by the bit-reversed hash, so a bucket's nodes are neighbours and doubling the array splits every bucket in
//! place: nothing is copied, a new bucket is linked in by the first caller that needs it.
//! Shalev and Shavit, "Split-Ordered Lists: Lock-Free Extensible Hash Tables", J. ACM 53(3), 2006, on the list of
//! Michael, "High Performance Dynamic Lock-Free Hash Tables and List-Based Sets", SPAA 2002.
//!
//! We differ in four ways:
//! - **A link carries the order of its successor** ([`Link`]), so a walk reads a node only if the hash is equal or it
//!   has to pass it; an insert into an empty bucket reads no node at all.
//! - **A bucket's cell is its own sentinel.** Exactly one thread links a bucket in (the one that claims the cell);
//!   others meanwhile start from the parent bucket, a little further away, and wait for nobody.
//! - **Membership is decided by the timer word, not by the list.** A node may be in the list dead or tentative.
//!   At most one node of a key is pending.
//! - **Inserting never fails.** A new node goes in front of all nodes of equal order, tentative; then the older timers of
//!   the same key behind it are ended in its name (`resolve`, by its author or by anyone who meets it), then it is
//!   published. The order in the list decides who replaces whom, so two inserts of one key need no further arbiter.
//!
//! Invariants:
//! - What lies behind a node among those of equal order is older. Nobody inserts behind a node of equal order.
//! - A node is pending only if no older node of its key is pending, tentative or firing.
//! - A marked link never changes again. A node is marked only when its timer has ended and, if it was replaced, its
//!   value has been taken; a bucket is marked only when the shard is sealed.
//! - The thread whose compare-exchange takes a node out of the list, and no other, tells the node's word; or keeps it in mind if
//!   that was its task (`remove`).

use super::hint::NODE_BITS;
use super::link::{AtomicLink, Link, Order};
use super::segments::{LEN_MAX, Segments};
use super::slab::Slab;
use super::word::{End, State, Word};
use super::{Access, PREFETCH_AHEAD, shielded};
use crate::sync::size::{CROWDED, FIRST_SEGMENT_BITS};
use crate::sync::{AtomicU32, Ordering};
use Ordering::Relaxed;
use std::sync::Arc;

/// The shard is closed: nothing can be inserted any more.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Sealed;

/// There are never more buckets than an array holds.
const BUCKET_BITS_MAX: u32 = NODE_BITS;
const _: () =
    assert!(1 << BUCKET_BITS_MAX <= LEN_MAX, "an array has room for all buckets, and a link for their numbers");
/// Buckets for which memory is asked at once: a large page of them.
const POPULATED: u32 = 1 << 18;
/// How many buckets ahead `seal` asks for nodes; for the buckets that lead to them, twice as many.
const SEAL_PREFETCH_AHEAD: u32 = 16;

/// Three nodes to four buckets are enough. A look-up passes half a bucket's nodes on its way, each perhaps a cache miss: fewer
/// to a bucket is faster, at 8 bytes a bucket.
fn is_full(bits: u32, node_count: u32) -> bool {
    bits < BUCKET_BITS_MAX && u64::from(node_count) * 4 > 3 << bits
}

/// The bucket that a bucket was split from.
fn parent_of(bucket: u32) -> u32 {
    bucket & !(1 << (u32::BITS - 1 - bucket.leading_zeros()))
}

/// Two neighbours in the list: `at` leads to `link`'s successor.
#[derive(Clone, Copy)]
pub(super) struct Position<'a> {
    at: &'a AtomicLink,
    link: Link,
}

/// A pending or firing timer, as it was when it was found.
pub(super) struct Found<'a> {
    pub(super) node: u32,
    pub(super) word: Word,
    pub(super) position: Position<'a>,
}

pub(crate) struct Index {
    buckets: Segments<AtomicLink>,
    bucket_bits: AtomicU32,
}

impl Index {
    pub(super) fn new() -> Self {
        let buckets = Segments::<AtomicLink>::new();
        buckets.reserve(0).set(Link::END);
        Self { buckets, bucket_bits: AtomicU32::new(FIRST_SEGMENT_BITS) }
    }

    /// Doubles the array if it is crowded and nobody has seen to it (`link_ahead`); true for the caller who did.
    #[inline]
    pub(super) fn fit(&self, node_count: u32) -> bool {
        // Relaxed: the number is only a choice between shortcuts; every one of them is right.
        let bits = self.bucket_bits.load(Relaxed);
        is_full(bits, node_count / CROWDED) && self.double(bits)
    }

    fn double(&self, bits: u32) -> bool {
        // Relaxed: see `fit`.
        self.bucket_bits.compare_exchange(bits, bits + 1, Relaxed, Relaxed).is_ok()
    }

    /// How many buckets there should be.
    pub(super) fn buckets_wanted(&self, node_count: u32) -> u32 {
        self.wanted(node_count).1
    }

    /// True if callers lack buckets already, when those before `next` are linked in: they link them in themselves, or the
    /// array is fuller by two thirds than it should be.
    pub(super) fn lacks_buckets(&self, next: u32, node_count: u32) -> bool {
        let (bits, count) = self.wanted(node_count);
        next < 1 << bits || (next < count && u64::from(node_count) * 4 > 5 << bits)
    }

    /// How many bits the array has, and how many buckets it should have.
    fn wanted(&self, node_count: u32) -> (u32, u32) {
        // Relaxed: see `fit`.
        let bits = self.bucket_bits.load(Relaxed);
        (bits, 1 << (bits + u32::from(is_full(bits, node_count))))
    }

    /// True if `next` is the first of as many buckets as are populated together.
    pub(super) fn populates(&self, next: u32) -> bool {
        next.is_multiple_of(POPULATED)
    }

    /// Has the system put memory behind the next buckets that there should be, if `next` is the first of as many as are populated
    /// together: large pages, if it has them.
    pub(super) fn populate(&self, next: u32, node_count: u32) {
        let end = self.wanted(node_count).1.min(next.saturating_add(POPULATED));
        if self.populates(next) && next < end {
            self.buckets.populate(next..end, AtomicLink::touch);
        }
    }

    /// Links up to `limit` buckets in, from `next` on, so that callers need not; the first that is left. The array doubles
    /// once the last of the new buckets is linked in; others may still be under way on other threads.
    ///
    /// In ascending order the buckets and those before them are neighbours in memory; only the nodes between are not.
    pub(super) fn link_ahead<K, V>(&self, slab: &Arc<Slab<K, V>>, next: u32, limit: u32, access: &Access) -> u32
    where
        K: Eq + Send + Sync + 'static,
        V: Send + 'static,
    {
        let (bits, count) = self.wanted(slab.extent());
        let end = count.min(next.saturating_add(limit));
        for bucket in next..end {
            let ahead = bucket + PREFETCH_AHEAD as u32;
            if ahead < count {
                let parent = self.buckets.reserve(parent_of(ahead)).load();
                if parent.is_node() {
                    slab.prefetch(parent.index());
                }
            }
            let cell = self.buckets.reserve(bucket);
            if cell.load().is_unset() && cell.claim() {
                self.link_in(slab, bucket, cell, access);
            }
        }
        if end == count && count > 1 << bits {
            self.double(bits);
        }
        end
    }

    /// Buckets so far.
    pub(super) fn bucket_count(&self) -> u32 {
        // Relaxed: see `fit`.
        1 << self.bucket_bits.load(Relaxed)
    }

    #[inline]
    pub(super) fn prefetch(&self, hash: u32) {
        crate::sync::prefetch(self.bucket(hash));
    }

    pub(super) fn prefetch_first<K, V>(&self, slab: &Slab<K, V>, hash: u32)
    where
        K: Eq + Send + Sync + 'static,
        V: Send + 'static,
    {
        self.prefetch_neighbour(slab, self.bucket(hash), hash);
    }

    /// Asks the processor for what `bucket`, which should be in the cache by now, leads to; if that may be the node of `hash`, for all
    /// of it.
    pub(super) fn prefetch_neighbour<K, V>(&self, slab: &Slab<K, V>, bucket: &AtomicLink, hash: u32)
    where
        K: Eq + Send + Sync + 'static,
        V: Send + 'static,
    {
        let first = bucket.load();
        if first.is_node() {
            slab.prefetch(first.index());
            if first.order() == Link::to_node(hash, 0).order() {
                slab.prefetch_tail(first.index());
            }
        }
    }

    /// The bucket of `hash`, whether linked in or not.
    #[inline]
    pub(super) fn bucket(&self, hash: u32) -> &AtomicLink {
        self.buckets.reserve(self.bucket_of(hash))
    }

    #[inline]
    fn bucket_of(&self, hash: u32) -> u32 {
        // Relaxed: see `fit`.
        hash & ((1 << self.bucket_bits.load(Relaxed)) - 1)
    }

    /// The pending timer whose key satisfies `is_key`, or the one that is firing and may come back.
    ///
    /// "Absent" must have been true at one moment. It was if there was no node of this order at all; or if, after all of
    /// them were found ended, the neighbour in front still leads to the first of them: then nothing came in meanwhile
    /// that this walk has not seen, and what has ended stays so. Otherwise a successor may have come in behind
    /// our back (`schedule` of an existing key), and we look again.
    #[inline]
    pub(super) fn find<'a, K, V>(
        &'a self,
        slab: &'a Arc<Slab<K, V>>,
        hash: u32,
        is_key: impl Fn(&K) -> bool,
        access: &Access,
    ) -> Option<Found<'a>>
    where
        K: Eq + Send + Sync + 'static,
        V: Send + 'static,
    {
        let order = Link::to_node(hash, 0).order();
        let entrance = self.entrance(slab, hash, access);
        loop {
            // Sealed: the scheduler is closed, and a closed one is empty.
            let front = self.seek(slab, entrance, |link| link.order() >= order, access).ok()?;
            match search_run(slab, front, order, &is_key) {
                Search::Found(found) => return Some(found),
                Search::Absent if !front.link.continues_run(order) || front.at.load() == front.link => return None,
                Search::Absent | Search::Again => {}
            }
        }
    }

    /// Links a tentative node in, in front of all of its order. True if there are others of its order behind it.
    #[inline]
    pub(super) fn insert<K, V>(
        &self,
        slab: &Arc<Slab<K, V>>,
        hash: u32,
        node: u32,
        access: &Access,
    ) -> Result<bool, Sealed>
    where
        K: Eq + Send + Sync + 'static,
        V: Send + 'static,
    {
        let target = Link::to_node(hash, node);
        let entrance = self.entrance(slab, hash, access);
        loop {
            let position = self.seek(slab, entrance, |link| link.order() >= target.order(), access)?;
            slab.head(node).next.set(position.link.target());
            if position.at.swing(position.link, target) {
                return Ok(position.link.continues_run(target.order()));
            }
        }
    }

    /// Takes the node of an ended timer out of the list. `position` is where it was last seen, if known.
    ///
    /// True if it was this call that did so. Then nobody has been told: the caller retires the node when its key is needed no
    /// more. Otherwise a walk that came by has taken it out, and tells the node's word; or the shard is sealed, and it stays.
    #[must_use]
    #[inline]
    pub(super) fn remove<K, V>(
        &self,
        slab: &Arc<Slab<K, V>>,
        hash: u32,
        node: u32,
        position: Option<Position<'_>>,
        access: &Access,
    ) -> bool
    where
        K: Eq + Send + Sync + 'static,
        V: Send + 'static,
    {
        let next = slab.head(node).next.mark();
        if position.is_some_and(|position| unlink(position, next)) {
            return true;
        }
        let order = Link::to_node(hash, node).order();
        let entrance = self.entrance(slab, hash, access);
        let leads_to_it = |link: Link| link.is_node() && link.index() == node;
        loop {
            // Sealed: nothing is taken out any more, the nodes stay until the slab goes.
            let stop = |link: Link| leads_to_it(link) || link.order() > order || link.is_end();
            let Ok(position) = self.seek(slab, entrance, stop, access) else { return false };
            if !leads_to_it(position.link) {
                return false;
            }
            if unlink(position, next) {
                return true;
            }
        }
    }

    /// Walks from `start` to the first link that satisfies `stop`, taking marked nodes out of the list.
    fn seek<'a, K, V>(
        &'a self,
        slab: &'a Arc<Slab<K, V>>,
        start: &'a AtomicLink,
        stop: impl Fn(Link) -> bool,
        access: &Access,
    ) -> Result<Position<'a>, Sealed>
    where
        K: Eq + Send + Sync + 'static,
        V: Send + 'static,
    {
        'restart: loop {
            let mut position = Position { at: start, link: start.load() };
            if position.link.is_marked() {
                return Err(Sealed);
            }
            while !stop(position.link) {
                let at = self.link_of(slab, position.link);
                let link = at.load();
                debug_assert!(position.link.may_precede(link), "the list is sorted");
                if !link.is_marked() {
                    position = Position { at, link };
                } else if position.link.is_node() && unlink(position, link) {
                    let node = position.link.index();
                    if slab.head(node).word.unlink() {
                        slab.retire(node, access);
                    }
                    position.link = position.link.redirected(link.target());
                } else {
                    // The neighbour changed, or the shard is being sealed, which the start will tell.
                    continue 'restart;
                }
            }
            return Ok(position);
        }
    }

    /// The link that the element behind `link` owns.
    fn link_of<'a, K, V>(&'a self, slab: &'a Slab<K, V>, link: Link) -> &'a AtomicLink
    where
        K: Eq + Send + Sync + 'static,
        V: Send + 'static,
    {
        if link.is_node() { &slab.head(link.index()).next } else { self.buckets.at(link.index()) }
    }

    /// The nearest usable bucket at or before `hash`; links the hash's own bucket in if nobody has.
    #[inline]
    fn entrance<'a, K, V>(&'a self, slab: &'a Arc<Slab<K, V>>, hash: u32, access: &Access) -> &'a AtomicLink
    where
        K: Eq + Send + Sync + 'static,
        V: Send + 'static,
    {
        let bucket = self.bucket_of(hash);
        let cell = self.buckets.reserve(bucket);
        let mut link = cell.load();
        if link.is_unset() && cell.claim() {
            self.link_in(slab, bucket, cell, access);
            link = cell.load();
        }
        if link.is_usable() { cell } else { self.ancestor(bucket) }
    }

    /// The nearest usable bucket before `bucket`: the same hash bits without the topmost ones.
    fn ancestor(&self, mut bucket: u32) -> &AtomicLink {
        loop {
            // Bucket 0 is usable from the start, so this ends.
            bucket = parent_of(bucket);
            let cell = self.buckets.reserve(bucket);
            if cell.load().is_usable() {
                return cell;
            }
        }
    }

    /// Puts the claimed bucket into the list. Only its claimer touches the cell until it is linked.
    fn link_in<K, V>(&self, slab: &Arc<Slab<K, V>>, bucket: u32, cell: &AtomicLink, access: &Access)
    where
        K: Eq + Send + Sync + 'static,
        V: Send + 'static,
    {
        let target = Link::to_bucket(bucket);
        let start = self.ancestor(bucket);
        // Sealed: the bucket stays claimed, which is as good as unset.
        while let Ok(position) = self.seek(slab, start, |link| link.order() >= target.order(), access) {
            cell.set_claimed(position.link.target());
            if position.at.swing(position.link, target) {
                cell.end_claim();
                return;
            }
        }
    }

    /// Ends the shard: nothing can be inserted any more, and every timer that was pending goes to `claim`, once.
    ///
    /// Each link is marked before its successor is looked at, from the first to the last. An insert that comes before
    /// the mark is therefore seen; one that comes after fails, finds the start of its walk marked, and knows.
    pub(super) fn seal<K, V>(&self, slab: &Slab<K, V>, mut claim: impl FnMut(u32, Word))
    where
        K: Eq + Send + Sync + 'static,
        V: Send + 'static,
    {
        let mut link = self.buckets.at(0).mark().target();
        while !link.is_end() {
            if link.is_node() {
                let node = link.index();
                if let Some(word) = claim_any(slab, node, link.order()) {
                    claim(node, word);
                }
            } else {
                self.prefetch_list(slab, link.index());
            }
            link = self.link_of(slab, link).mark().target();
        }
    }

    /// Asks the processor for what comes some way behind `bucket` in the list: in that order buckets are scattered over the
    /// array, and nodes over theirs, but the order is known.
    fn prefetch_list<K, V>(&self, slab: &Slab<K, V>, bucket: u32)
    where
        K: Eq + Send + Sync + 'static,
        V: Send + 'static,
    {
        let unused_bits = u32::BITS - self.bucket_count().trailing_zeros();
        let behind = |count: u32| {
            let position = (bucket.reverse_bits() >> unused_bits) + count;
            (position < self.bucket_count()).then(|| self.buckets.reserve((position << unused_bits).reverse_bits()))
        };
        if let Some(cell) = behind(2 * SEAL_PREFETCH_AHEAD) {
            crate::sync::prefetch(cell);
        }
        if let Some(first) = behind(SEAL_PREFETCH_AHEAD).map(AtomicLink::load)
            && first.is_node()
        {
            slab.prefetch(first.index());
            slab.prefetch_tail(first.index());
        }
    }
}

enum Search<'a> {
    Found(Found<'a>),
    /// No node of the run is a pending or firing timer of the key.
    Absent,
    /// A timer was on its way in; it has been helped.
    Again,
}

/// Looks for the pending timer of a key among the nodes of equal order behind `front`.
#[inline]
fn search_run<'a, K, V>(
    slab: &'a Slab<K, V>,
    front: Position<'a>,
    order: Order,
    is_key: &impl Fn(&K) -> bool,
) -> Search<'a>
where
    K: Eq + Send + Sync + 'static,
    V: Send + 'static,
{
    let mut position = front;
    while position.link.continues_run(order) {
        let node = position.link.index();
        let head = slab.head(node);
        let word = head.word.load();
        // SAFETY: reached in the index, under the guard that the caller of `find` holds.
        let is_ours = || unsafe { slab.with_key(node, is_key) };
        match word.state() {
            State::Pending | State::Firing if is_ours() => return Search::Found(Found { node, word, position }),
            State::Tentative if is_ours() => {
                resolve(slab, node, order);
                return Search::Again;
            }
            _ => {}
        }
        position = Position { at: &head.next, link: head.next.load() };
    }
    Search::Absent
}

/// Takes `position`'s successor, which is marked and leads to `next`, out of the list.
#[inline]
fn unlink(position: Position<'_>, next: Link) -> bool {
    !position.link.is_marked() && position.at.swing(position.link, next.target())
}

/// Ends every older timer of the tentative `node`'s key in its name, then publishes it.
fn resolve<K, V>(slab: &Slab<K, V>, node: u32, order: Order)
where
    K: Eq + Send + Sync + 'static,
    V: Send + 'static,
{
    let head = slab.head(node);
    let mut link = head.next.load();
    while link.continues_run(order) {
        supersede(slab, link.index(), node, order);
        link = slab.head(link.index()).next.load();
    }
    head.word.publish();
}

/// Ends `older` in the name of `newer` if it is a timer of the same key.
fn supersede<K, V>(slab: &Slab<K, V>, older: u32, newer: u32, order: Order)
where
    K: Eq + Send + Sync + 'static,
    V: Send + 'static,
{
    let word = &slab.head(older).word;
    loop {
        let seen = word.load();
        match seen.state() {
            State::Dead | State::Replaced => return,
            _ if !same_key(slab, older, newer) => return,
            // As deep as there are threads that schedule this key at this moment.
            State::Tentative => resolve(slab, older, order),
            State::Pending if word.replace(seen, newer).is_ok() => return,
            // Its value is in use: whoever runs the callback finds that it has ended, and takes it out of the list.
            State::Firing if word.kill(seen, End::KeyInUse).is_ok() => return,
            State::Pending | State::Firing => {}
        }
    }
}

/// The author's part: publishes its linked `node`, which has others of its order behind it if `in_run`.
#[inline]
pub(super) fn publish<K, V>(slab: &Slab<K, V>, hash: u32, node: u32, in_run: bool)
where
    K: Eq + Send + Sync + 'static,
    V: Send + 'static,
{
    if in_run {
        resolve(slab, node, Link::to_node(hash, node).order());
    } else {
        slab.head(node).word.publish();
    }
}

/// Keys that panic when compared count as different here: whoever helps must not be left half way.
fn same_key<K, V>(slab: &Slab<K, V>, a: u32, b: u32) -> bool
where
    K: Eq + Send + Sync + 'static,
    V: Send + 'static,
{
    // SAFETY: both nodes were reached in the index under the caller's guard.
    let compare = || unsafe { slab.with_key(a, |a| slab.with_key(b, |b| a == b)) };
    shielded(compare).unwrap_or(false)
}

/// The value that belongs to the author of `newer`: of the timer that was ended in its name, if there was one.
/// Called once, by that author, after `resolve`.
pub(super) fn take_replaced<K, V>(
    index: &Index,
    slab: &Arc<Slab<K, V>>,
    hash: u32,
    newer: u32,
    access: &Access,
) -> Option<V>
where
    K: Eq + Send + Sync + 'static,
    V: Send + 'static,
{
    let order = Link::to_node(hash, newer).order();
    // A replaced node is taken out by nobody but the author of its successor, which is us: it is still in there.
    let mut position = Position { at: &slab.head(newer).next, link: slab.head(newer).next.load() };
    let mut value = None;
    while position.link.continues_run(order) {
        let node = position.link.index();
        let head = slab.head(node);
        if head.word.load().is_replaced_by(newer) {
            // SAFETY: its word names our node, so the value is ours; from `finish` on it is not found here again.
            let taken = unsafe { slab.take_value(node) };
            let unlinked = head.word.finish();
            debug_assert!(!unlinked, "nobody but us takes it out of the list");
            if index.remove(slab, hash, node, Some(position), access) {
                slab.retire(node, access);
            }
            // There is a second one only if `Eq` contradicts itself.
            value.get_or_insert(taken);
        }
        position = Position { at: &head.next, link: head.next.load() };
    }
    value
}

/// Ends the timer of `node` whatever its deadline; the word that it had, if it was pending.
fn claim_any<K, V>(slab: &Slab<K, V>, node: u32, order: Order) -> Option<Word>
where
    K: Eq + Send + Sync + 'static,
    V: Send + 'static,
{
    let word = &slab.head(node).word;
    loop {
        let seen = word.load();
        match seen.state() {
            State::Dead | State::Replaced => return None,
            State::Tentative => resolve(slab, node, order),
            State::Pending if word.kill(seen, End::KeyInUse).is_ok() => return Some(seen),
            State::Firing if word.kill(seen, End::KeyInUse).is_ok() => return None,
            State::Pending | State::Firing => {}
        }
    }
}
