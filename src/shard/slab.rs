//! The timers of one shard: nodes in growing arrays that are never unmapped while the slab lives, so any thread may
//! read a node's atomics at any time, whatever became of the timer.
//!
//! A node is split in two. The *head* is what a look-up, a move and the worker touch (32 bytes for an 8-byte key, two
//! to a cache line); the *tail* is what only the beginning and the end of a timer touch.
//!
//! Where a node is while it is not in use:
//! ```text
//!   retire         64 together        grace over        keys dropped         allocate
//!   ------> limbo -------------> epoch ---------> ripe -------------> clean ----------> ready ---> a new timer
//!         (per stripe)                                                              (per stripe)
//! ```
//! Lists are chains of nodes linked by the tail's `hash`, which a node out of the index needs no more, with a tagged
//! head (Treiber, "Systems Programming: Coping with Parallelism", IBM RJ 5118, 1986). `ripe` and `clean` are lists of such
//! chains, linked by their first node's `next`. One closure is deferred per batch, so retiring allocates nothing per node.

use super::hint::{AtomicPromise, NODE_BITS};
use super::index::AtomicLink;
use super::segments::{Segments, Zeroed};
use super::shielded;
use super::tick::Deadline;
use super::word::AtomicWord;
use crate::sync::size::BATCH;
use crate::sync::{AtomicU32, AtomicU64, Ordering, UnsafeCell, epoch::Guard, prefetch};
use Ordering::{AcqRel, Acquire, Relaxed};
use crossbeam_utils::CachePadded;
use std::mem::MaybeUninit;
use std::sync::Arc;
/// Not from `sync`: no correctness hangs on these counts, so a model need not explore them.
use std::sync::atomic::AtomicU64 as Count;

/// Stale hints that are not worth a sweep.
const STALE_SLACK: u64 = 1024;

#[repr(C)]
pub(super) struct Head<K> {
    pub(super) next: AtomicLink,
    pub(super) word: AtomicWord,
    pub(super) promise: AtomicPromise,
    key: UnsafeCell<MaybeUninit<K>>,
}

#[repr(C)]
pub(super) struct Tail<V> {
    /// Of a node in the index: its hash. Of a node in one of the lists: the next one in the chain.
    hash: AtomicU32,
    generation: AtomicU32,
    value: UnsafeCell<MaybeUninit<V>>,
}

impl<K> Default for Head<K> {
    fn default() -> Self {
        Self {
            next: AtomicLink::default(),
            word: AtomicWord::default(),
            promise: AtomicPromise::default(),
            key: UnsafeCell::new(MaybeUninit::uninit()),
        }
    }
}

impl<V> Default for Tail<V> {
    fn default() -> Self {
        Self {
            hash: AtomicU32::default(),
            generation: AtomicU32::default(),
            value: UnsafeCell::new(MaybeUninit::uninit()),
        }
    }
}

// SAFETY: three atomics of zero, and a key that may hold anything.
unsafe impl<K> Zeroed for Head<K> {}
// SAFETY: two atomics of zero, and a value that may hold anything.
unsafe impl<V> Zeroed for Tail<V> {}
// SAFETY: the key is written by the node's owner before the node is published, is only read while shared, and is
// dropped by the one thread that `AtomicWord::take_key` picks: `K: Send` for that, `Sync` for the reading.
unsafe impl<K: Send + Sync> Sync for Head<K> {}
// SAFETY: the value is only ever touched by one thread at a time: its author, then whoever ended the timer.
unsafe impl<V: Send> Sync for Tail<V> {}

/// The first node of a chain or of a list of chains, with a tag against ABA: `[tag:36 | node:28]`, node 0 = empty.
#[derive(Debug, Default)]
struct ChainHead(AtomicU64);

#[derive(Clone, Copy)]
struct Tagged(u64);

impl Tagged {
    #[inline]
    fn node(self) -> u32 {
        (self.0 & ((1 << NODE_BITS) - 1)) as u32
    }

    /// The next tag, with `node`. (36 bits: a thread must stall over exactly a multiple of 2^36 changes to be fooled.)
    #[inline]
    fn followed_by(self, node: u32) -> Self {
        Self(((self.0 >> NODE_BITS).wrapping_add(1) << NODE_BITS) | u64::from(node))
    }
}

impl ChainHead {
    #[inline]
    fn load(&self) -> Tagged {
        // Acquire: pairs with the Release in `swing`, so that the links behind the first node are seen.
        Tagged(self.0.load(Acquire))
    }

    #[inline]
    fn swing(&self, seen: Tagged, node: u32) -> Result<(), Tagged> {
        // Release: publishes the chain behind `node`. Acquire: what the chain's last owner did to it came before.
        self.0.compare_exchange(seen.0, seen.followed_by(node).0, AcqRel, Acquire).map(drop).map_err(Tagged)
    }
}

/// Retired nodes that wait for company: `[count:32 | node:32]`. Nodes are pushed one by one and taken all at once, so
/// it needs no tag: a head that looks unchanged is as good as unchanged.
#[derive(Debug, Default)]
struct Limbo(AtomicU64);

/// A chain of nodes: the first, and how many.
#[derive(Clone, Copy)]
struct Chain {
    first: u32,
    count: u32,
}

impl Limbo {
    fn push(&self, node: u32, link: &AtomicU32) -> u32 {
        // Acquire: whoever takes the chain has acquired every push, each through the one before.
        let mut seen = self.0.load(Acquire);
        loop {
            // Relaxed: published by the exchange.
            link.store(seen as u32, Relaxed);
            let count = (seen >> 32) as u32 + 1;
            let next = u64::from(count) << 32 | u64::from(node);
            // Release: publishes the link, and our last use of the node.
            match self.0.compare_exchange(seen, next, AcqRel, Acquire) {
                Ok(_) => return count,
                Err(found) => seen = found,
            }
        }
    }

    fn take(&self) -> Option<Chain> {
        // Acquire: the links, and the last uses of the nodes.
        let taken = self.0.swap(0, AcqRel);
        (taken != 0).then_some(Chain { first: taken as u32, count: (taken >> 32) as u32 })
    }
}

/// What threads of one stripe share.
#[derive(Debug, Default)]
struct Stripe {
    ready: ChainHead,
    limbo: Limbo,
}

/// Rough figures that tell when stale hints prevail. Kept per batch, not per node.
#[derive(Debug, Default)]
struct Census {
    /// Nodes handed out in batches minus nodes retired in batches.
    in_use: Count,
    /// Hints in the worker's wheel, by its last report.
    hints: Count,
}

/// Key and value that found no place; the reason is the caller's to tell.
#[derive(Debug)]
pub(crate) struct Homeless<K, V>(pub(crate) K, pub(crate) V);

pub(crate) struct Slab<K, V> {
    heads: Segments<Head<K>>,
    tails: Segments<Tail<V>>,
    stripes: Box<[CachePadded<Stripe>]>,
    ripe: CachePadded<ChainHead>,
    clean: CachePadded<ChainHead>,
    /// Nodes handed out so far, node 0 included, which is none. Never falls.
    extent: CachePadded<AtomicU32>,
    census: CachePadded<Census>,
}

impl<K: Send + Sync + 'static, V: Send + 'static> Slab<K, V> {
    pub(super) fn new(stripe_count: usize) -> Self {
        Self {
            heads: Segments::new(),
            tails: Segments::new(),
            stripes: (0..stripe_count).map(|_| CachePadded::default()).collect(),
            ripe: CachePadded::default(),
            clean: CachePadded::default(),
            extent: CachePadded::new(AtomicU32::new(1)),
            census: CachePadded::default(),
        }
    }

    pub(super) fn head(&self, node: u32) -> &Head<K> {
        self.heads.at(node)
    }

    fn tail(&self, node: u32) -> &Tail<V> {
        self.tails.at(node)
    }

    /// An upper bound of the node indexes in use. The last ones' memory may not be reserved yet.
    pub(crate) fn extent(&self) -> u32 {
        // Acquire: whoever knows of a timer also knows of an extent that covers it.
        self.extent.load(Acquire)
    }

    /// The worker's wheel holds so many hints.
    pub(super) fn report_hints(&self, count: usize) {
        // Relaxed here and below: figures, nothing is published through them.
        self.census.hints.store(count as u64, Relaxed);
    }

    /// True if most of the hints in the wheel serve no timer any more.
    pub(super) fn has_stale_hints(&self) -> bool {
        // Signed: a batch may be counted out before it is counted in.
        let in_use = (self.census.in_use.load(Relaxed) as i64).max(0) as u64;
        let slack = STALE_SLACK + 2 * u64::from(BATCH) * self.stripes.len() as u64;
        self.census.hints.load(Relaxed) > 2 * in_use + slack
    }

    pub(super) fn prefetch(&self, node: u32) {
        prefetch(self.heads.at(node));
    }

    pub(super) fn prefetch_tail(&self, node: u32) {
        prefetch(self.tails.at(node));
    }

    pub(super) fn hash(&self, node: u32) -> u32 {
        // Relaxed: written before the node was published.
        self.tail(node).hash.load(Relaxed)
    }

    pub(super) fn generation(&self, node: u32) -> u32 {
        // Relaxed: `AtomicWord::load` came before and acquired what `allocate` released: whoever saw the word of a
        // newer timer sees its generation or a newer one.
        self.tail(node).generation.load(Relaxed)
    }

    /// As `generation`, of any node below `extent`, whether or not its owner has reserved its memory yet.
    pub(super) fn reserved_generation(&self, node: u32) -> u32 {
        self.heads.reserve(node);
        // Relaxed: as in `generation`; the caller reads the word afterwards and this again.
        self.tails.reserve(node).generation.load(Relaxed)
    }

    /// Runs `read` on the key of a node.
    ///
    /// # Safety
    /// The key must be there: the node was reached in the index under the guard that the caller still holds, or the
    /// caller claimed the timer and has not finished it.
    pub(super) unsafe fn with_key<R>(&self, node: u32, read: impl FnOnce(&K) -> R) -> R {
        // SAFETY: as the caller promises; a key is not written or dropped while it can be reached.
        self.head(node).key.with(|key| read(unsafe { (*key).assume_init_ref() }))
    }

    /// Moves the value out.
    ///
    /// # Safety
    /// The caller ended this timer (its move on the word succeeded, or the word names its node as the successor) and
    /// takes the value once.
    pub(super) unsafe fn take_value(&self, node: u32) -> V {
        // SAFETY: written before the timer was published, and ours alone since it ended.
        self.tail(node).value.with(|value| unsafe { (*value).assume_init_read() })
    }

    /// Takes a free node and fills it: tentative, not linked. Gives key and value back if 2^28 nodes are in use.
    pub(super) fn allocate(
        &self,
        stripe: usize,
        hash: u32,
        key: K,
        value: V,
        deadline: Deadline,
    ) -> Result<u32, Homeless<K, V>> {
        let Some(node) = self.next_usable(stripe) else {
            return Err(Homeless(key, value));
        };
        let (head, tail) = (self.head(node), self.tail(node));
        // SAFETY: we own the node: it is out of every list and out of the index, and its grace period is over.
        head.key.with_mut(|place| unsafe { (*place).write(key) });
        // SAFETY: as above.
        tail.value.with_mut(|place| unsafe { (*place).write(value) });
        // Relaxed: published by the word, next line, and by the link.
        tail.hash.store(hash, Relaxed);
        head.word.allocate(deadline);
        Ok(node)
    }

    /// Undoes `allocate` for a node that was never linked.
    pub(super) fn give_back(&self, stripe: usize, node: u32) -> Homeless<K, V> {
        // SAFETY: the node was never linked, so nobody else knows its key or value, and they are not used again:
        // the dead word below carries no key.
        let (key, value) =
            unsafe { (self.head(node).key.with(|key| (*key).assume_init_read()), self.take_value(node)) };
        self.head(node).word.abort();
        self.push_ready(stripe, node);
        Homeless(key, value)
    }

    /// A free node with a new generation.
    fn next_usable(&self, stripe: usize) -> Option<u32> {
        loop {
            let node = self.pop_ready(stripe).or_else(|| self.refill(stripe))?;
            let generation = &self.tail(node).generation;
            // Relaxed: the node is ours; published by the word.
            let next = generation.load(Relaxed) + 1;
            generation.store(next, Relaxed);
            // A node whose generations are used up stays out of use, so that no handle ever matches a later timer.
            if next < u32::MAX {
                return Some(node);
            }
        }
    }

    fn pop_ready(&self, stripe: usize) -> Option<u32> {
        let ready = &self.stripes[stripe].ready;
        let mut seen = ready.load();
        while seen.node() != 0 {
            // Relaxed: if the node is not the first any more, this is garbage, and the tag makes the exchange fail.
            let next = self.tail(seen.node()).hash.load(Relaxed);
            match ready.swing(seen, next & ((1 << NODE_BITS) - 1)) {
                Ok(()) => {
                    if next != 0 {
                        self.prefetch(next);
                        self.prefetch_tail(next);
                    }
                    return Some(seen.node());
                }
                Err(found) => seen = found,
            }
        }
        None
    }

    /// A batch of nodes for the stripe: used ones if there are any, else new ones. Returns the first.
    #[cold]
    fn refill(&self, stripe: usize) -> Option<u32> {
        let chain = self.pop_batch(&self.clean).or_else(|| self.pop_cleaned()).or_else(|| self.fresh())?;
        // Relaxed: the chain is ours.
        let rest = Chain { first: self.tail(chain.first).hash.load(Relaxed), count: chain.count - 1 };
        // Relaxed here and below: a figure.
        self.census.in_use.fetch_add(u64::from(chain.count), Relaxed);
        if rest.first != 0 {
            let ready = &self.stripes[stripe].ready;
            let seen = ready.load();
            if seen.node() != 0 || ready.swing(seen, rest.first).is_err() {
                // Another thread of the stripe was faster: leave ours for whoever comes next.
                self.census.in_use.fetch_sub(u64::from(rest.count), Relaxed);
                self.push_batch(&self.clean, rest);
            }
        }
        Some(chain.first)
    }

    /// A chain of nodes that were never used.
    fn fresh(&self) -> Option<Chain> {
        let limit = 1 << NODE_BITS;
        // Relaxed: a count; the segments are published by their own pointers.
        let start =
            self.extent.fetch_update(AcqRel, Relaxed, |extent| (extent < limit).then_some((extent + BATCH).min(limit)));
        let start = start.ok()?;
        let end = (start + BATCH).min(limit);
        for node in start..end {
            self.heads.reserve(node);
            let next = if node + 1 < end { node + 1 } else { 0 };
            // Relaxed: the chain is ours until `swing` publishes it.
            self.tails.reserve(node).hash.store(next, Relaxed);
        }
        Some(Chain { first: start, count: end - start })
    }

    /// The node is out of the index and nobody needs its key: it may be used again after the grace period.
    pub(super) fn retire(self: &Arc<Self>, node: u32, stripe: usize, guard: &Guard) {
        let limbo = &self.stripes[stripe].limbo;
        if limbo.push(node, &self.tail(node).hash) >= BATCH
            && let Some(chain) = limbo.take()
        {
            self.census.in_use.fetch_sub(u64::from(chain.count), Relaxed);
            let slab = Arc::clone(self);
            guard.defer(move || slab.push_batch(&slab.ripe, chain));
            // Else the batch waits in this thread's bag, where nobody else can collect it.
            guard.flush();
        }
    }

    /// Puts a node in front of a stripe's ready ones.
    fn push_ready(&self, stripe: usize, node: u32) {
        let ready = &self.stripes[stripe].ready;
        let mut seen = ready.load();
        loop {
            // Relaxed: published by `swing`.
            self.tail(node).hash.store(seen.node(), Relaxed);
            match ready.swing(seen, node) {
                Ok(()) => return,
                Err(found) => seen = found,
            }
        }
    }

    fn push_batch(&self, list: &ChainHead, chain: Chain) {
        let mut seen = list.load();
        loop {
            // Relaxed: published by `swing`. The chain is past its grace period: nobody follows `next` any more.
            self.head(chain.first).next.store_batch(seen.node(), chain.count);
            match list.swing(seen, chain.first) {
                Ok(()) => return,
                Err(found) => seen = found,
            }
        }
    }

    fn pop_batch(&self, list: &ChainHead) -> Option<Chain> {
        let mut seen = list.load();
        while seen.node() != 0 {
            // As in `pop_ready`: garbage if the chain is gone, and then the tag tells.
            let (next, count) = self.head(seen.node()).next.load_batch();
            match list.swing(seen, next) {
                Ok(()) => return Some(Chain { first: seen.node(), count }),
                Err(found) => seen = found,
            }
        }
        None
    }

    /// A ripe batch, with its keys dropped.
    fn pop_cleaned(&self) -> Option<Chain> {
        let chain = self.pop_batch(&self.ripe)?;
        self.drop_keys(chain.first);
        Some(chain)
    }

    /// Drops the keys of one ripe batch, if there is one: called as timers end, so that keys do not wait for new timers
    /// to come. Runs user code; no protocol step may be under way.
    pub(super) fn tidy(&self) {
        if std::mem::needs_drop::<K>()
            && let Some(chain) = self.pop_cleaned()
        {
            self.push_batch(&self.clean, chain);
        }
    }

    /// Drops the keys of a chain that is ours.
    fn drop_keys(&self, first: u32) {
        if !std::mem::needs_drop::<K>() {
            return;
        }
        let mut node = first;
        while node != 0 {
            // Relaxed: the chain is ours.
            let next = self.tail(node).hash.load(Relaxed);
            self.drop_key(node);
            node = next;
        }
    }

    /// Drops the key of an ended timer, if nobody has.
    fn drop_key(&self, node: u32) {
        let head = self.head(node);
        if head.word.load().has_leftover_key() && head.word.take_key() {
            // A key's destructor that panics must not take the caller down, who works on a key of its own.
            let _ = shielded(|| {
                // SAFETY: `take_key` picked us, the timer is done, and no reader is left: its grace period is over,
                // or nobody can call the scheduler any more.
                head.key.with_mut(|key| unsafe { (*key).assume_init_drop() });
            });
        }
    }

    /// Drops every key that an ended timer left behind.
    ///
    /// # Safety
    /// No other thread may be using a key of this slab, except for timers that are not done.
    pub(super) unsafe fn drop_leftover_keys(&self) {
        if std::mem::needs_drop::<K>() {
            for node in 1..self.extent() {
                self.heads.reserve(node);
                self.drop_key(node);
            }
        }
    }

    /// Drops the key of one ended timer, if nobody has.
    ///
    /// # Safety
    /// As for `drop_leftover_keys`.
    pub(super) unsafe fn drop_leftover_key(&self, node: u32) {
        self.drop_key(node);
    }

    /// Moves the key of an ended timer out, if nobody has.
    ///
    /// # Safety
    /// As for `drop_leftover_keys`.
    pub(super) unsafe fn take_leftover_key(&self, node: u32) -> Option<K> {
        let head = self.head(node);
        // SAFETY: `take_key` picked us, and no reader is left.
        head.word.take_key().then(|| head.key.with(|key| unsafe { (*key).assume_init_read() }))
    }
}
