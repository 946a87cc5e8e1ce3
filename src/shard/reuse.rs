//! Where a node is while it is not in use, and how it comes back:
//! ```text
//!   retire       a batch at once     grace over        keys dropped         allocate
//!   ------> limbo -------------> epoch ---------> ripe -------------> clean ----------> ready ---> a new timer
//!         (per thread)                                                              (per thread)
//! ```
//! Chains of nodes ([`Chain`]) are linked by the head's `hash`, which a node out of the index no longer needs. `limbo`
//! and `ready` are one chain each and belong to one thread. `ripe` and `clean` belong to all threads: they are lists of
//! chains, with a batch of nodes in each chain. In these lists, and only there, the `aside` of a chain's first nodes
//! leads from chain to chain (Treiber, "Systems Programming: Coping with Parallelism", IBM RJ 5118, 1986). So most
//! timers begin and end without an atomic operation on a list, and one closure is deferred per batch, not per node.
//!
//! The nodes that a thread retires ripen in a list that few other threads share, if any, and each thread looks into its
//! own list first. So nodes mostly stay where they are in a core's cache, and so do their neighbours in a cache line.
//!
//! The price is what threads keep: with hundreds of threads on a hundred shards, more than a million nodes.

use super::Access;
use super::chain::Chain;
use super::hint::NODE_BITS;
use super::line::NO_HASH;
use super::ordinal::Ordinal;
use super::segments::{Segments, Zeroed};
use super::slab::{Node, Slab};
use crate::sync::epoch::{step_aside, unpinned};
use crate::sync::size::{BATCH, RIPE_LISTS, STRANDS, WAITING_BATCHES};
use crate::sync::{AtomicU32, Ordering, UnsafeCell, key_drops};
use Ordering::{Acquire, Relaxed, Release};
use crossbeam_utils::CachePadded;
/// Not from `sync`: no correctness hangs on these counts, so a model need not explore them.
use std::sync::atomic::AtomicU64 as Count;
use std::sync::{Arc, Weak};

/// How many nodes a thread retires, or takes, at once in each of `shard_count` shards. The larger the batch, the less
/// often the thread meets others. But it keeps up to two batches in each shard, so batches are smaller if there are
/// many shards; and if keys have a destructor, since that should not have to wait.
pub(crate) fn batch_len<K>(shard_count: usize) -> u32 {
    let most = if std::mem::needs_drop::<K>() { 1 } else { 4 };
    BATCH * (64 / shard_count).clamp(1, most) as u32
}

/// What is deferred with a batch: see `STRANDS`.
type Deferred<K, V> = (Parcel, Weak<Slab<K, V>>);
#[cfg(target_pointer_width = "64")]
const _: () = assert!(
    size_of::<Deferred<(), ()>>() <= 3 * size_of::<usize>() && align_of::<Deferred<(), ()>>() == align_of::<usize>()
);

/// A batch on its way through the epoch: the first nodes of its chain. The spare bits of the first node's number hold
/// the list that the batch goes to.
struct Parcel([u32; STRANDS]);

const _: () = assert!(RIPE_LISTS <= 1 << (u32::BITS - NODE_BITS) && RIPE_LISTS.is_power_of_two());

impl Parcel {
    fn new(chain: Chain, list: usize) -> Self {
        let mut nodes = chain.nodes();
        debug_assert!(nodes[0] >> NODE_BITS == 0);
        nodes[0] |= (list as u32) << NODE_BITS;
        Self(nodes)
    }

    fn open(self) -> (Chain, usize) {
        let Self(mut nodes) = self;
        let list = nodes[0] >> NODE_BITS;
        nodes[0] ^= list << NODE_BITS;
        (Chain::of(nodes), list as usize)
    }
}

/// How often a caller steps aside for nodes to come back, before it takes new ones.
const STEPS_ASIDE: usize = 4;

/// Stale hints that are not worth a sweep.
const STALE_SLACK: u64 = 1024;

/// A list of chains: the first node of the first chain; 0 if the list is empty.
///
/// It needs no tag against ABA. The first node of a chain that is taken out is used next, or goes from a ripe list to
/// the clean one. It comes back to this list, as the first node of a chain, only after a grace period: not while a
/// thread is pinned that still takes it for the first. So a thread that takes a chain out must be pinned.
#[derive(Debug, Default)]
struct ChainList(AtomicU32);

/// What one thread keeps of the slab.
#[derive(Debug, Default)]
struct Own {
    /// Free nodes.
    ready: Chain,
    /// Retired nodes that wait until there is a batch of them, and how many there are.
    limbo: Chain,
    limbo_len: u32,
    /// Timers that this thread has begun without the index, minus those whose nodes it has retired. Only what the
    /// census has not been told yet.
    unindexed: i64,
}

/// One thread's share, by its ordinal; each on cache lines of its own.
#[derive(Debug, Default)]
struct Local(CachePadded<UnsafeCell<Own>>);

// SAFETY: only numbers, whose default is all-zero.
unsafe impl Zeroed for Local {}
// SAFETY: only the thread that holds the ordinal touches it. When an ordinal goes to another thread, that thread
// observes all that was done before (`Ordinals`).
unsafe impl Sync for Local {}

/// Rough figures that tell when stale hints prevail, and how many lines there should be. Kept per batch, not per node.
#[derive(Debug, Default)]
struct Census {
    /// Nodes handed out in batches minus nodes retired in batches.
    in_use: Count,
    /// How many of them no index leads to.
    unindexed: Count,
    /// Hints in the worker's wheel, by its last report.
    hints: Count,
    /// The most nodes that the index led to at any one time.
    most_indexed: Count,
}

/// The nodes of a slab that are not in use, and how many are.
pub(super) struct Reuse {
    batch: u32,
    locals: Segments<Local>,
    /// By the ordinal of the thread that retired them; see [`Slab::ripe`].
    ripe: [CachePadded<ChainList>; RIPE_LISTS],
    clean: CachePadded<ChainList>,
    census: CachePadded<Census>,
}

impl Reuse {
    /// Nodes are retired, and handed out, `batch` at a time.
    pub(super) fn new(batch: u32) -> Self {
        Self {
            batch,
            locals: Segments::new(),
            ripe: std::array::from_fn(|_| CachePadded::default()),
            clean: CachePadded::default(),
            census: CachePadded::default(),
        }
    }
}

impl<K: Send + Sync + 'static, V: Send + 'static> Slab<K, V> {
    /// Reports that the worker's wheel holds `count` hints.
    pub(super) fn report_hints(&self, count: usize) {
        // Relaxed here and below: figures, nothing is published through them.
        self.reuse.census.hints.store(count as u64, Relaxed);
    }

    /// True if most of the hints in the wheel serve no timer any more.
    pub(super) fn has_stale_hints(&self) -> bool {
        self.reuse.census.hints.load(Relaxed) > 2 * self.in_use() + STALE_SLACK
    }

    /// Nodes in use, roughly: nodes that threads keep ready, or have not retired a full batch of, count as well.
    pub(super) fn in_use(&self) -> u64 {
        // Signed: a batch may be counted out before it is counted in.
        (self.reuse.census.in_use.load(Relaxed) as i64).max(0) as u64
    }

    /// The most nodes that the index led to at any one time, roughly: nodes that threads kept ready count as well, and
    /// node 0. Never falls.
    pub(super) fn most_indexed(&self) -> u32 {
        self.reuse.census.most_indexed.load(Relaxed) as u32 + 1
    }

    /// A free node with a new generation.
    #[inline(always)]
    pub(super) fn next_usable(&self, access: &mut Access) -> Option<Node<'_, K, V>> {
        loop {
            let node = match self.pop_ready(access.ordinal) {
                Some(node) => node,
                None => self.node(self.refill(access)?),
            };
            let generation = &node.head.generation;
            // Relaxed: the node is ours; published with the word, by `AtomicWord::publish` or `begin`.
            let next = generation.load(Relaxed) + 1;
            generation.store(next, Relaxed);
            // A node whose generations are used up stays out of use, so that no handle ever matches a later timer.
            if next < u32::MAX {
                return Some(node);
            }
        }
    }

    /// Runs `change` on what the calling thread keeps.
    #[inline(always)]
    fn with_own<R>(&self, ordinal: &Ordinal, change: impl FnOnce(&mut Own) -> R) -> R {
        // SAFETY: the ordinal is the calling thread's, so no other thread is in here. Nor is this thread, further up
        // its stack: no `change` below comes back here or runs user code.
        self.reuse.locals.reserve(ordinal.number()).0.with_mut(|own| change(unsafe { &mut *own }))
    }

    #[inline(always)]
    fn pop_ready(&self, ordinal: &Ordinal) -> Option<Node<'_, K, V>> {
        self.with_own(ordinal, |own| self.pop(&mut own.ready))
    }

    /// Takes the first node of a chain that is ours.
    // Always inlined: a node returned through memory would be written field by field and read in one go, for which
    // processors wait.
    #[inline(always)]
    fn pop(&self, chain: &mut Chain) -> Option<Node<'_, K, V>> {
        let node = self.node(chain.first()?);
        // Relaxed, here and in `push`: the chain is ours.
        let further_on = node.head.hash.load(Relaxed);
        if further_on != 0 {
            self.prefetch(further_on);
            self.prefetch_tail(further_on);
        }
        chain.pop(further_on);
        Some(node)
    }

    /// Puts a node that is ours in front of a chain that is ours.
    #[inline]
    fn push(&self, chain: &mut Chain, node: Node<'_, K, V>) {
        node.head.hash.store(chain.push(node.number), Relaxed);
    }

    /// Gets a batch of nodes for the thread, which has none left: used ones if there are any, else new ones. Returns
    /// the first one, as a number, so that callers, which hardly ever come here, need not keep a `Node` in memory.
    ///
    /// A thread that was stopped in the middle of a call keeps the nodes of all others from coming back; and with many
    /// more callers than cores there always is such a thread. A caller that went on with new nodes would use up its
    /// slice of time, and memory, while that thread waits for its turn. So the caller steps aside, but only a few
    /// times: because of that bound it waits for nobody.
    #[cold]
    fn refill(&self, access: &mut Access) -> Option<u32> {
        let mut steps = 0..STEPS_ASIDE;
        loop {
            if let Some(number) = self.refill_used(access) {
                return Some(number);
            }
            if !self.is_held_up() || steps.next().is_none() || !step_aside(&mut access.guard) {
                break;
            }
        }
        let (chain, len) = self.fresh()?;
        self.keep(chain, len, access)
    }

    /// True if more nodes wait for their grace period than are in use, by more than `WAITING_BATCHES` batches.
    /// (Roughly: nodes that others have brought back this very moment count as well.)
    fn is_held_up(&self) -> bool {
        u64::from(self.extent() - 1) > 2 * self.in_use() + WAITING_BATCHES * u64::from(self.reuse.batch)
    }

    /// As `refill`, but only with used nodes; `None` if there are none.
    fn refill_used(&self, access: &mut Access) -> Option<u32> {
        if let Some(chain) = self.pop_batch(&self.reuse.clean, access) {
            return self.keep(chain, self.reuse.batch, access);
        }
        if let Some(chain) = self.pop_cleaned(access) {
            let Some(node) = self.pop_ready(access.ordinal) else {
                return self.keep(chain, self.reuse.batch, access);
            };
            // A key's destructor has started timers, and so taken a batch already.
            self.push_batch(&self.reuse.clean, chain);
            return Some(node.number);
        }
        None
    }

    /// Gives a chain of `len` nodes to the thread, which has none left; takes the first of them.
    fn keep(&self, chain: Chain, len: u32, access: &Access) -> Option<u32> {
        // Relaxed: a figure.
        self.reuse.census.in_use.fetch_add(u64::from(len), Relaxed);
        let first = self.with_own(access.ordinal, |own| {
            debug_assert_eq!(own.ready.first(), None, "nodes would be lost");
            own.ready = chain;
            self.report_unindexed(own);
            self.pop(&mut own.ready).map(|node| node.number)
        });
        self.raise_most_indexed();
        first
    }

    fn raise_most_indexed(&self) {
        let census = &self.reuse.census;
        // Relaxed: figures.
        let (before, unindexed) = (self.in_use(), census.unindexed.load(Relaxed));
        // Many timers may have ended between the two loads. The difference of an old and a new figure must not stay for
        // ever.
        let in_use = before.min(self.in_use());
        // Signed: as in `in_use`.
        let indexed = (in_use as i64 - unindexed as i64).max(0) as u64;
        if indexed > census.most_indexed.load(Relaxed) {
            census.most_indexed.fetch_max(indexed, Relaxed);
        }
    }

    /// A chain of nodes that were never used, and how many there are.
    fn fresh(&self) -> Option<(Chain, u32)> {
        let nodes = self.take_new(self.reuse.batch)?;
        let (mut chain, len) = (Chain::default(), nodes.len() as u32);
        nodes.rev().for_each(|node| self.push(&mut chain, self.reserved_node(node)));
        Some((chain, len))
    }

    /// Takes back a node that may be used again at once: `give_back` (`slab.rs`) says why.
    pub(super) fn take_back(&self, node: Node<'_, K, V>, access: &Access) {
        self.with_own(access.ordinal, |own| {
            own.unindexed -= i64::from(node.head.hash() == NO_HASH);
            self.push(&mut own.ready, node);
        });
    }

    /// Counts a timer that was begun without the index.
    #[inline(always)]
    pub(super) fn count_unindexed(&self, access: &Access) {
        self.with_own(access.ordinal, |own| own.unindexed += 1);
    }

    /// Tells the census of such timers, a batch at a time.
    fn report_unindexed(&self, own: &mut Own) {
        let change = std::mem::take(&mut own.unindexed);
        if change != 0 {
            // Relaxed: a figure.
            self.reuse.census.unindexed.fetch_add(change as u64, Relaxed);
        }
    }

    /// Retires a node that is out of the index and whose key nobody needs: it may be used again after the grace period.
    /// True if that made a batch, so that the census knows of fewer nodes in use.
    #[inline]
    pub(super) fn retire(self: &Arc<Self>, node: Node<'_, K, V>, access: &Access) -> bool {
        let batch = self.with_own(access.ordinal, |own| {
            own.unindexed -= i64::from(node.head.hash() == NO_HASH);
            self.push(&mut own.limbo, node);
            own.limbo_len += 1;
            (own.limbo_len == self.reuse.batch).then(|| {
                own.limbo_len = 0;
                self.report_unindexed(own);
                std::mem::take(&mut own.limbo)
            })
        });
        batch.map(|chain| self.retire_batch(chain, access)).is_some()
    }

    #[cold]
    fn retire_batch(self: &Arc<Self>, chain: Chain, access: &Access) {
        // Relaxed: a figure.
        self.reuse.census.in_use.fetch_sub(u64::from(self.reuse.batch), Relaxed);
        // Weak: the closure runs when some thread collects, which may be long after the scheduler has gone. Until then
        // the batch must not keep all memory. As plain numbers: see `STRANDS`.
        let list = access.ordinal.stripe(self.ripe().len());
        let (parcel, slab): Deferred<K, V> = (Parcel::new(chain, list), Arc::downgrade(self));
        access.guard.defer(move || {
            if let Some(slab) = slab.upgrade() {
                let (chain, list) = parcel.open();
                slab.push_batch(&slab.ripe()[list], chain);
            }
        });
        // Otherwise the batch would wait in this thread's bag, where nobody else can collect it.
        access.guard.flush();
    }

    /// Hands a batch of nodes to all threads.
    fn push_batch(&self, list: &ChainList, chain: Chain) {
        let nodes = chain.nodes();
        // The first node leads to the second and to the next chain, the second to the third, and so on. They are past
        // their grace period: no thread reads their `aside` as a deadline any more. Relaxed, here and below: published
        // by the exchange.
        for pair in nodes[1..].windows(2).filter(|pair| pair[0] != 0) {
            self.tail(pair[0]).aside.store_pair(pair[1], 0);
        }
        let second = nodes.get(1).copied().unwrap_or(0);
        // Relaxed, also on failure: only an expectation for the exchange; nothing behind it is read.
        let mut first = list.0.load(Relaxed);
        loop {
            self.tail(nodes[0]).aside.store_pair(second, first);
            // Release: publishes the chain's links and the last uses of its nodes to the Acquire in `pop_batch`. All
            // changes of a list are read-modify-writes, so a thread that sees a later one has acquired this one, too.
            match list.0.compare_exchange(first, nodes[0], Release, Relaxed) {
                Ok(_) => return,
                Err(found) => first = found,
            }
        }
    }

    /// Takes a batch of nodes out of a list; `None` if the list is empty.
    fn pop_batch(&self, list: &ChainList, _pinned: &Access) -> Option<Chain> {
        // Acquire, also on failure: pairs with the Release in `push_batch`, before the links are read.
        let mut first = list.0.load(Acquire);
        while first != 0 {
            // Garbage if the chain is not the first any more; then the exchange fails.
            let (second, next) = self.tail(first).aside.load_pair();
            // Relaxed: the chain was acquired with `first`.
            match list.0.compare_exchange(first, next, Relaxed, Acquire) {
                Ok(_) => return Some(self.gather(first, second)),
                Err(found) => first = found,
            }
        }
        None
    }

    /// The lists in which retired nodes ripen. If keys have to be dropped there is only one: each thread that ends a
    /// timer looks for such keys, and would otherwise have to look through all lists.
    fn ripe(&self) -> &[CachePadded<ChainList>] {
        &self.reuse.ripe[..if std::mem::needs_drop::<K>() { 1 } else { RIPE_LISTS }]
    }

    /// Takes a ripe batch: from the calling thread's list, if there is one, or from another. This does not look at all
    /// lists at once: what ripens meanwhile in a list that was passed already is left for the next call.
    fn pop_ripe(&self, access: &Access) -> Option<Chain> {
        let (before, from) = self.ripe().split_at(access.ordinal.stripe(self.ripe().len()));
        from.iter().chain(before).find_map(|list| self.pop_batch(list, access))
    }

    /// The chain of a batch that is ours and begins with these two nodes.
    fn gather(&self, first: u32, second: u32) -> Chain {
        let mut nodes: [u32; STRANDS] = std::array::from_fn(|place| [first, second].get(place).copied().unwrap_or(0));
        let mut before = second;
        for place in nodes.iter_mut().skip(2) {
            if before == 0 {
                break;
            }
            *place = self.tail(before).aside.load_pair().0;
            before = *place;
        }
        Chain::of(nodes)
    }

    /// Takes a ripe batch, and drops its keys while this thread is not pinned: their destructors are the user's, and
    /// may take long. `None` if that would be too deep in keys' destructors that call
    /// schedulers: if each such call got the next batch, with further destructors, they would nest as deep as there are
    /// batches. (The depth is not kept under the thread's number, since a thread whose thread-local is gone takes a new
    /// number in each call.)
    fn pop_cleaned(&self, access: &mut Access) -> Option<Chain> {
        if !std::mem::needs_drop::<K>() {
            return self.pop_ripe(access);
        }
        if !key_drops::begin() {
            return None;
        }
        let chain = self.pop_ripe(access);
        if let Some(chain) = chain {
            unpinned(&mut access.guard, || self.drop_keys(chain));
        }
        key_drops::end();
        chain
    }

    /// Drops the keys of one ripe batch, and returns true, if there is one. Called as timers end, so that keys do not
    /// wait for new timers. Runs user code; no protocol step may be under way.
    pub(super) fn drop_ripe_keys(&self, access: &mut Access) -> bool {
        if !std::mem::needs_drop::<K>() {
            return false;
        }
        let cleaned = self.pop_cleaned(access);
        let has_any = cleaned.is_some();
        cleaned.into_iter().for_each(|chain| self.push_batch(&self.reuse.clean, chain));
        has_any
    }

    /// Drops the keys of a chain that is ours, after its grace period; the chain stays as it is.
    fn drop_keys(&self, mut chain: Chain) {
        while let Some(node) = self.pop(&mut chain) {
            // SAFETY: who could reach it has left.
            unsafe { self.drop_key(node.head) };
        }
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests;
