//! One link of the index's list: what comes next, and what the owner of the link has to say about itself.

use super::hint::NODE_BITS;
use super::segments::Zeroed;
use crate::sync::{AtomicU64, Ordering};
use Ordering::{AcqRel, Acquire, Relaxed, Release};

/// `[hash:32 | node:1 | mark:1 | claimed:1 | -:1 | index:28]`: the successor's order, what it is and where.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Link(u64);

/// The key of the list's order: the hash, and a bucket before the nodes of the same hash.
pub(super) type Order = u64;

/// The greatest hash that a node can have; behind it is the end of the list.
pub(crate) const HASH_MAX: u32 = u32::MAX - 1;

/// In the place of a hash: no index leads to the timer.
pub(crate) const NO_HASH: u32 = HASH_MAX + 1;

const NODE: u64 = 1 << 31;
const MARK: u64 = 1 << 30;
const CLAIMED: u64 = 1 << 29;
const INDEX_MASK: u64 = (1 << NODE_BITS) - 1;
const _: () = assert!(INDEX_MASK < CLAIMED, "a link has room for a node or a bucket");

impl Link {
    /// The end of the list: after every order, and no node.
    pub(super) const END: Self = Self((HASH_MAX as u64 + 1) << 32);

    #[inline]
    pub(super) fn to_node(hash: u32, node: u32) -> Self {
        debug_assert!(hash <= HASH_MAX);
        Self(u64::from(hash) << 32 | NODE | u64::from(node))
    }

    /// `first_hash` is where the bucket begins.
    #[inline]
    pub(super) fn to_bucket(first_hash: u32, bucket: u32) -> Self {
        debug_assert!(first_hash <= HASH_MAX);
        Self(u64::from(first_hash) << 32 | u64::from(bucket))
    }

    #[inline]
    pub(super) fn order(self) -> Order {
        self.0 >> 31
    }

    #[inline]
    pub(super) fn is_end(self) -> bool {
        self.order() == Self::END.order()
    }

    #[inline]
    pub(super) fn is_node(self) -> bool {
        self.0 & NODE != 0
    }

    #[inline]
    pub(super) fn index(self) -> u32 {
        (self.0 & INDEX_MASK) as u32
    }

    #[inline]
    pub(super) fn is_marked(self) -> bool {
        self.0 & MARK != 0
    }

    /// Of a bucket's cell: never used.
    #[inline]
    pub(super) fn is_unset(self) -> bool {
        self.0 == 0
    }

    /// Of a bucket's cell: linked in, and its claimer has said so.
    #[inline]
    pub(super) fn is_usable(self) -> bool {
        !self.is_unset() && self.0 & CLAIMED == 0
    }

    /// Of a bucket's cell: usable, and a node is its successor. (Of a claimed one that may not be there yet for us.)
    #[inline]
    pub(super) fn leads_to_node(self) -> bool {
        self.0 & (NODE | CLAIMED) == NODE
    }

    /// Just the successor, without what the link says about its owner.
    #[inline]
    pub(super) fn target(self) -> Self {
        Self(self.0 & !(MARK | CLAIMED))
    }

    /// The same owner's link to another successor.
    #[inline]
    pub(super) fn redirected(self, target: Self) -> Self {
        Self(target.0 | (self.0 & CLAIMED))
    }

    /// The list is sorted; only nodes may be of equal order.
    #[inline]
    pub(super) fn may_precede(self, next: Self) -> bool {
        self.order() < next.order() || (self.order() == next.order() && self.0 & NODE != 0)
    }

    /// True if a node of `order` is the successor.
    #[inline]
    pub(super) fn continues_run(self, order: Order) -> bool {
        self.order() == order
    }
}

/// A link in the list. All-zero: unset.
#[derive(Debug, Default)]
pub(super) struct AtomicLink(AtomicU64);

// SAFETY: an atomic of zero.
unsafe impl Zeroed for AtomicLink {}

impl AtomicLink {
    #[inline]
    pub(super) fn load(&self) -> Link {
        // Acquire: pairs with every Release below: whoever sees a link sees the node behind it filled in.
        Link(self.0.load(Acquire))
    }

    #[inline]
    pub(super) fn swing(&self, seen: Link, target: Link) -> bool {
        // Release: publishes the successor (a new node's key and hash; or what we saw of an older one).
        // Relaxed on failure: the walk starts again from loads of its own.
        self.0.compare_exchange(seen.0, seen.redirected(target).0, Release, Relaxed).is_ok()
    }

    /// Sets the link of a node that nobody else can reach.
    #[inline]
    pub(super) fn set(&self, target: Link) {
        // Relaxed: published by `swing`.
        self.0.store(target.0, Relaxed);
    }

    /// Has the system put memory behind it; changes nothing.
    pub(super) fn touch(&self) {
        // Not a load, for which the system needs no memory; nor what compilers turn into one, such as adding nothing.
        // Relaxed: nothing is published, and nothing read.
        let _ = self.0.compare_exchange(0, 0, Relaxed, Relaxed);
    }

    /// Forbids any change from now on; the last value.
    #[inline]
    pub(super) fn mark(&self) -> Link {
        // Acquire: the successor is going to be read.
        // Release: who meets a bucket that the sealer has marked sees the start of his walk marked, too. (That a timer has
        // ended he learns from its word, by read-modify-writes.)
        Link(self.0.fetch_or(MARK, AcqRel))
    }

    /// Claims a bucket's cell; true for one thread.
    pub(super) fn claim(&self) -> bool {
        // Relaxed: nothing is published; on failure nothing is read.
        self.0.compare_exchange(0, CLAIMED, Relaxed, Relaxed).is_ok()
    }

    pub(super) fn set_claimed(&self, target: Link) {
        // Relaxed: the claimer alone uses the cell; published by the `swing` that links the bucket in.
        self.0.store(target.0 | CLAIMED, Relaxed);
    }

    pub(super) fn end_claim(&self) {
        // Release: whoever starts from this bucket sees it linked in.
        self.0.fetch_and(!CLAIMED, Release);
    }

    /// Of a node out of the index: two others instead of a link.
    pub(super) fn store_pair(&self, a: u32, b: u32) {
        // Relaxed: published by the list's head.
        self.0.store(u64::from(b) << 32 | u64::from(a), Relaxed);
    }

    pub(super) fn load_pair(&self) -> (u32, u32) {
        // Relaxed: acquired through the list's head.
        let pair = self.0.load(Relaxed);
        (pair as u32, (pair >> 32) as u32)
    }
}
