//! From key to timer: a lock-free hash index that grows while in use and never moves a timer.
//!
//! One linked list holds all nodes of the shard, sorted by their hash; an array of *buckets* points into it as shortcuts, each to
//! where a range of hashes begins. Doubling the array halves every range: nothing is copied, a new bucket is linked in by the first
//! caller that needs it. The new ones lie behind the old ones in memory, and among themselves in the order of the list.
//! Shalev and Shavit, "Split-Ordered Lists: Lock-Free Extensible Hash Tables", J. ACM 53(3), 2006, on the list of
//! Michael, "High Performance Dynamic Lock-Free Hash Tables and List-Based Sets", SPAA 2002.
//!
//! We differ in five ways:
//! - **The hash is not reversed**: it is its leading bits, not its last ones, that choose the bucket. So it serves as the order, too.
//! - **A link carries the order of its successor** ([`Link`]), so a walk reads a node only if the hash is equal or it
//!   has to pass it; an insert into an empty bucket reads no node at all.
//! - **A bucket's cell is its own sentinel.** Exactly one thread links a bucket in (the one that claims the cell);
//!   others meanwhile start from the parent bucket, a little further away, and wait for nobody.
//! - **Membership is decided by the timer word, not by the list.** A node may be in the list dead or tentative.
//!   At most one node of a key is pending.
//! - **Inserting never fails.** A new node goes in front of all nodes of equal order, tentative; then its author, or anyone who meets it,
//!   ends the older timers of the same key behind it in its name, and publishes it (`succession.rs`). The order in the list decides
//!   who replaces whom, so two inserts of one key need no further arbiter.
//!
//! Invariants:
//! - What lies behind a node among those of equal order is older. Nobody inserts behind a node of equal order.
//! - A node is pending only if no older node of its key is pending, tentative, yielding or firing.
//! - A marked link never changes again. A node is marked only when its timer has ended and, if it was replaced, its
//!   value has been taken, or while the shard is being sealed; a bucket only then.
//! - The thread whose compare-exchange takes a node out of the list, and no other, tells the node's word; or keeps it in mind if
//!   that was its task (`remove`).

use super::bucket::{BUCKET_BITS_MAX, bucket_among, parent_of, start_of};
use super::link::{AtomicLink, Link, Order};
use super::segments::Segments;
use super::slab::{Node, Slab};
use super::succession::{claim_any, help};
use super::word::{State, Word};
use super::{Access, PREFETCH_AHEAD};
use crate::sync::size::{CROWDED, FIRST_SEGMENT_BITS};
use crate::sync::{AtomicU32, Ordering};
use Ordering::Relaxed;
use std::sync::Arc;

/// The shard is closed: nothing can be inserted any more.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Sealed;

/// Buckets for which memory is asked at once: a large page of them.
const POPULATED: u32 = 1 << 18;
/// How many buckets ahead `seal` asks for nodes; for the buckets that lead to them, twice as many.
const SEAL_PREFETCH_AHEAD: u32 = 16;

/// Three nodes to four buckets are enough. A look-up passes half a bucket's nodes on its way, each perhaps a cache miss: fewer
/// to a bucket is faster, at 8 bytes a bucket.
fn is_full(bits: u32, node_count: u32) -> bool {
    bits < BUCKET_BITS_MAX && u64::from(node_count) * 4 > 3 << bits
}

/// Where a key belongs: the order of its nodes, and the bucket to start from. If the index doubles after it was asked for, the way from
/// there is a little longer.
#[derive(Clone, Copy)]
pub(crate) struct Spot<'a> {
    hash: u32,
    bucket: u32,
    cell: &'a AtomicLink,
}

impl Spot<'_> {
    #[inline]
    pub(crate) fn hash(self) -> u32 {
        self.hash
    }

    #[inline]
    pub(super) fn order(self) -> Order {
        Link::to_node(self.hash, 0).order()
    }
}

/// Two neighbours in the list: `at` leads to `link`'s successor.
#[derive(Clone, Copy)]
pub(super) struct Position<'a> {
    at: &'a AtomicLink,
    pub(super) link: Link,
}

impl<'a> Position<'a> {
    #[inline]
    pub(super) fn behind<K, V>(node: Node<'a, K, V>) -> Self {
        Self { at: &node.head.next, link: node.head.next.load() }
    }
}

/// A pending or firing timer, as it was when it was found.
pub(super) struct Found<'a, K, V> {
    pub(super) node: Node<'a, K, V>,
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
        let bits = self.bucket_bits();
        is_full(bits, node_count / CROWDED) && self.double(bits)
    }

    fn double(&self, bits: u32) -> bool {
        // Relaxed: see `bucket_bits`.
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
        let bits = self.bucket_bits();
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
    /// In ascending order the buckets are neighbours in memory, and those that they are split from lie in that order, too: half of them
    /// in the half before, and so on. Only the nodes between are scattered.
    pub(super) fn link_ahead<K, V>(&self, slab: &Arc<Slab<K, V>>, next: u32, limit: u32, access: &Access) -> u32
    where
        K: Eq + Send + Sync + 'static,
        V: Send + 'static,
    {
        let (bits, count) = self.wanted(slab.most_indexed());
        let end = count.min(next.saturating_add(limit));
        for bucket in next..end {
            let ahead = bucket + PREFETCH_AHEAD as u32;
            if ahead < count {
                let parent = self.buckets.reserve(parent_of(ahead)).load();
                if parent.leads_to_node() {
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
        1 << self.bucket_bits()
    }

    /// Where a key of this hash belongs, and asks the processor for the bucket.
    #[inline]
    pub(super) fn spot(&self, hash: u32) -> Spot<'_> {
        let bucket = bucket_among(self.bucket_bits(), hash);
        let cell = self.buckets.reserve(bucket);
        crate::sync::prefetch(cell);
        Spot { hash, bucket, cell }
    }

    /// Asks the processor for what the bucket, which should be in the cache by now, leads to; if that may be the key's own node, for
    /// all of it.
    pub(super) fn prefetch_behind<K, V>(&self, slab: &Slab<K, V>, spot: Spot<'_>)
    where
        K: Eq + Send + Sync + 'static,
        V: Send + 'static,
    {
        let first = spot.cell.load();
        if first.leads_to_node() {
            slab.prefetch(first.index());
            if first.order() == spot.order() {
                slab.prefetch_tail(first.index());
            }
        }
    }

    #[inline]
    fn bucket_bits(&self) -> u32 {
        // Relaxed: the number is only a choice between shortcuts; every one of them is right.
        self.bucket_bits.load(Relaxed)
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
        spot: Spot<'a>,
        is_key: impl Fn(&K) -> bool,
        access: &Access,
    ) -> Option<Found<'a, K, V>>
    where
        K: Eq + Send + Sync + 'static,
        V: Send + 'static,
    {
        let order = spot.order();
        let entrance = self.entrance(slab, spot, access);
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
        spot: Spot<'_>,
        node: Node<'_, K, V>,
        access: &Access,
    ) -> Result<bool, Sealed>
    where
        K: Eq + Send + Sync + 'static,
        V: Send + 'static,
    {
        let target = Link::to_node(spot.hash, node.number);
        let entrance = self.entrance(slab, spot, access);
        loop {
            let position = self.seek(slab, entrance, |link| link.order() >= target.order(), access)?;
            node.head.next.set(position.link.target());
            if position.at.swing(position.link, target) {
                return Ok(position.link.continues_run(target.order()));
            }
        }
    }

    /// Takes the node of an ended timer out of the list. `position` is where it was last seen, if known.
    ///
    /// True if it was this call that did so. Then nobody has been told: the caller retires the node when its key is needed no
    /// more, or tells the word. Otherwise somebody else has taken it out, and tells the word; or the shard is sealed, and it stays.
    #[must_use]
    #[inline]
    pub(super) fn remove<K, V>(
        &self,
        slab: &Arc<Slab<K, V>>,
        spot: Spot<'_>,
        node: Node<'_, K, V>,
        position: Option<Position<'_>>,
        access: &Access,
    ) -> bool
    where
        K: Eq + Send + Sync + 'static,
        V: Send + 'static,
    {
        let next = node.head.next.mark();
        if position.is_some_and(|position| unlink(position, next)) {
            return true;
        }
        let order = spot.order();
        let entrance = self.entrance(slab, spot, access);
        let number = node.number;
        let leads_to_it = move |link: Link| link.is_node() && link.index() == number;
        loop {
            // Sealed: nothing is taken out any more, the nodes stay until the slab goes.
            let stop = |link: Link| leads_to_it(link) || link.order() > order;
            let Ok(position) = self.seek(slab, entrance, stop, access) else { return false };
            if !leads_to_it(position.link) {
                return false;
            }
            if unlink(position, next) {
                return true;
            }
        }
    }

    /// The first link from `start` on that satisfies `stop`. As a rule that is the first one: a bucket has a node or two.
    #[inline]
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
        let first = Position { at: start, link: start.load() };
        if stop(first.link) && !first.link.is_marked() {
            return Ok(first);
        }
        self.walk(slab, first, stop, access)
    }

    /// As `seek`, from a link that was just loaded; takes marked nodes out of the list on its way.
    #[inline(never)]
    fn walk<'a, K, V>(
        &'a self,
        slab: &'a Arc<Slab<K, V>>,
        first: Position<'a>,
        stop: impl Fn(Link) -> bool,
        access: &Access,
    ) -> Result<Position<'a>, Sealed>
    where
        K: Eq + Send + Sync + 'static,
        V: Send + 'static,
    {
        let mut position = first;
        'restart: loop {
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
                    tell_unlinked(slab, slab.node(position.link.index()), access);
                    position.link = position.link.redirected(link.target());
                } else {
                    // The neighbour changed, or the shard is being sealed, which the start will tell.
                    position = Position { at: first.at, link: first.at.load() };
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

    /// The nearest usable bucket at or before the spot; links its own bucket in if nobody has.
    #[inline]
    fn entrance<'a, K, V>(&'a self, slab: &'a Arc<Slab<K, V>>, spot: Spot<'a>, access: &Access) -> &'a AtomicLink
    where
        K: Eq + Send + Sync + 'static,
        V: Send + 'static,
    {
        let link = spot.cell.load();
        if link.is_usable() { spot.cell } else { self.new_entrance(slab, spot, link, access) }
    }

    /// As `entrance`, if the bucket was found as `link` and is not usable.
    #[cold]
    fn new_entrance<'a, K, V>(
        &'a self,
        slab: &'a Arc<Slab<K, V>>,
        Spot { bucket, cell, .. }: Spot<'a>,
        link: Link,
        access: &Access,
    ) -> &'a AtomicLink
    where
        K: Eq + Send + Sync + 'static,
        V: Send + 'static,
    {
        if link.is_unset() && cell.claim() {
            self.link_in(slab, bucket, cell, access);
            if cell.load().is_usable() {
                return cell;
            }
        }
        self.ancestor(bucket)
    }

    /// The nearest usable one of those that `bucket` comes from: its parent, that one's parent, and so on.
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
        let target = Link::to_bucket(start_of(bucket), bucket);
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

    /// Asks the processor for what comes some way behind `bucket` in the list: in that order nodes are scattered over their array,
    /// but the buckets that lead to them are known.
    fn prefetch_list<K, V>(&self, slab: &Slab<K, V>, bucket: u32)
    where
        K: Eq + Send + Sync + 'static,
        V: Send + 'static,
    {
        let width = u32::MAX / self.bucket_count() + 1;
        let behind = |count: u32| {
            let hash = start_of(bucket).checked_add(count.checked_mul(width)?)?;
            // Which asks for the bucket.
            Some(self.spot(hash).cell)
        };
        let _ = behind(2 * SEAL_PREFETCH_AHEAD);
        if let Some(first) = behind(SEAL_PREFETCH_AHEAD).map(AtomicLink::load)
            && first.leads_to_node()
        {
            slab.prefetch(first.index());
            slab.prefetch_tail(first.index());
        }
    }
}

enum Search<'a, K, V> {
    Found(Found<'a, K, V>),
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
) -> Search<'a, K, V>
where
    K: Eq + Send + Sync + 'static,
    V: Send + 'static,
{
    let mut position = front;
    while position.link.continues_run(order) {
        let node = slab.node(position.link.index());
        let word = node.head.word.load();
        // SAFETY: reached in the index, under the guard that the caller of `find` holds.
        let is_ours = || unsafe { node.head.with_key(is_key) };
        match word.state() {
            State::Pending | State::Firing if is_ours() => return Search::Found(Found { node, word, position }),
            _ if word.is_undecided() && is_ours() => {
                help(slab, node.number, word, order);
                return Search::Again;
            }
            _ => {}
        }
        position = Position::behind(node);
    }
    Search::Absent
}

/// Takes `position`'s successor, which is marked and leads to `next`, out of the list.
#[inline]
fn unlink(position: Position<'_>, next: Link) -> bool {
    !position.link.is_marked() && position.at.swing(position.link, next.target())
}

/// We took the node of a timer out of the list whose key may still be in use.
fn tell_unlinked<K, V>(slab: &Arc<Slab<K, V>>, node: Node<'_, K, V>, access: &Access)
where
    K: Eq + Send + Sync + 'static,
    V: Send + 'static,
{
    if node.head.word.unlink() {
        slab.retire(node, access);
    }
}

/// Takes the node of a timer out of the list that was ended while its callback runs. Who runs that would do so afterwards; until
/// then each walk would pass the node, and all others of a key that is started over and over while its callbacks are late.
#[cold]
pub(super) fn take_out<K, V>(
    index: &Index,
    slab: &Arc<Slab<K, V>>,
    spot: Spot<'_>,
    node: Node<'_, K, V>,
    access: &Access,
) where
    K: Eq + Send + Sync + 'static,
    V: Send + 'static,
{
    if index.remove(slab, spot, node, None, access) {
        tell_unlinked(slab, node, access);
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use super::super::ClaimedNode;
    use super::*;

    #[test]
    fn timers_where_a_bucket_begins_are_found_before_and_after_it_is_linked_in() {
        use super::super::{Due, Repeats, Shard, Tick};
        let (now, count) = (Tick(1), 500);
        let shard = Shard::<u32, u32>::new(1, 64, now);
        let ordinal = crate::thread::ordinal();
        let due = Due { tick: Some(Tick(9)), now };
        for bucket in 0..count {
            let (spot, access) = (shard.spot(start_of(bucket)), &mut Access::new(&ordinal));
            assert!(shard.schedule(spot, bucket, bucket, due, Repeats::Never, access).is_ok());
        }
        let access = Access::new(&ordinal);
        let is_there = |bucket| shard.holds(shard.spot(start_of(bucket)), |&key| key == bucket, &access);
        assert!((0..count).all(is_there));
        let next = (0..2 * count).fold(1, |next, _| shard.link_ahead(next, 7, &access));
        assert!(next > count && (0..count).all(is_there));
        for bucket in 0..count {
            let spot = shard.spot(start_of(bucket));
            assert_eq!(shard.cancel(spot, |&key| key == bucket, &access), Some(bucket));
            assert!(!is_there(bucket));
        }
    }

    #[test]
    fn a_timer_that_is_ended_while_it_fires_is_no_longer_passed_by() {
        use super::super::{Due, Fired, Hint, Look, Repeats, Shard, Tick};
        let (now, rounds) = (Tick(1), 4 * 64);
        let shard = Shard::<u32, u32>::new(1, 64, now);
        let ordinal = crate::thread::ordinal();
        let access = || Access::new(&ordinal);
        let is_key = |&key: &u32| key == 7;
        let mut firing = Vec::new();
        for round in 0..rounds {
            let due = Due { tick: Some(now), now };
            let started = shard.schedule(shard.spot(3), 7, round, due, Repeats::IfWanted, &mut access());
            let timer = started.expect("it is open").identity;
            assert_eq!(linked(&shard), 1, "round {round}");
            assert!(firing.iter().all(|(claim, _): &(ClaimedNode, u32)| claim.node() != timer.node), "it is in use");
            let Look::Expired(claim) = shard.look(Hint::new(now, timer.node), now, &access()) else {
                panic!("it is due")
            };
            firing.push(shard.take_value(claim));
            match round % 3 {
                0 => assert_eq!(shard.cancel(shard.spot(3), is_key, &access()), None),
                1 => assert_eq!(shard.cancel_this(timer, &access()), None),
                _ => continue,
            }
            assert_eq!(linked(&shard), 0, "round {round}");
        }
        for (claim, value) in firing {
            let access = &access();
            let Fired::Ended(claim, _) = shard.fired(claim, value, None, now, access) else { panic!("it was ended") };
            shard.finish(claim, access);
        }
        assert_eq!((linked(&shard), shard.nodes_in_use()), (0, 0));
    }

    #[test]
    fn a_timer_that_gives_way_leaves_nothing_behind() {
        use super::super::{Due, Repeats, Shard, Tick};
        let now = Tick(1);
        let shard = Shard::<u32, u32>::new(1, 64, now);
        let ordinal = crate::thread::ordinal();
        let due = Due { tick: Some(Tick(9)), now };
        for round in 0..4 * 64 {
            let access = &mut Access::new(&ordinal);
            let given =
                shard.schedule_if_absent(shard.spot(3), 7, round, due, Repeats::Never, access).expect("it is open");
            assert_eq!((given, linked(&shard)), ((round > 0).then_some(round), 1));
        }
        assert_eq!(shard.cancel(shard.spot(3), |&key| key == 7, &Access::new(&ordinal)), Some(0));
        assert_eq!((linked(&shard), shard.nodes_in_use()), (0, 0));
    }

    /// Nodes in the list.
    fn linked(shard: &super::super::Shard<u32, u32>) -> usize {
        let mut link = shard.index.buckets.at(0).load();
        let mut count = 0;
        while !link.is_end() {
            count += usize::from(link.is_node());
            link = shard.index.link_of(&shard.slab, link).load();
        }
        count
    }
}
