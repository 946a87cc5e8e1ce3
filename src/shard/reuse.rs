//! Where a node is while it is not in use, and how it comes back:
//! ```text
//!   retire       a batch at once     grace over        keys dropped         allocate
//!   ------> limbo -------------> epoch ---------> ripe -------------> clean ----------> ready ---> a new timer
//!         (per thread)                                                              (per thread)
//! ```
//! Chains of nodes ([`Chain`]) are linked by the tail's `hash`, which a node out of the index needs no more. `limbo` and `ready`
//! are one chain each and belong to one thread. `ripe` and `clean` belong to all: lists of chains, a batch of nodes each. There,
//! and only there, what a chain's first nodes have set `aside` leads from chain to chain (Treiber,
//! "Systems Programming: Coping with Parallelism", IBM RJ 5118, 1986). So most timers begin and end without an atomic
//! operation on a list, and one closure is deferred per batch, not per node.
//!
//! What a thread has retired ripens in a list that few threads share, if any, and each looks into its own first. So nodes mostly stay where
//! they are in a core's cache, and so do their neighbours in a line of memory.

use super::Access;
use super::chain::Chain;
use super::hint::NODE_BITS;
use super::line::NO_HASH;
use super::ordinal::Ordinal;
use super::segments::{Segments, Zeroed};
use super::slab::{Node, Slab};
use crate::sync::epoch::step_aside;
use crate::sync::size::{BATCH, RIPE_LISTS, STRANDS, WAITING_BATCHES};
use crate::sync::{AtomicU32, Ordering, UnsafeCell};
use Ordering::{Acquire, Relaxed, Release};
use crossbeam_utils::CachePadded;
/// Not from `sync`: no correctness hangs on these counts, so a model need not explore them.
use std::sync::atomic::AtomicU64 as Count;
use std::sync::{Arc, Weak};

/// Nodes that a thread retires, or takes, at once in each of so many shards. The more, the less often it meets other threads. But it
/// keeps up to two batches of each shard, so they are smaller where there are many; and a key's destructor should not have to wait.
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

/// A batch on its way through the epoch: the first nodes of its chain; and in the bits that the first one's number leaves, the list
/// that it goes to.
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

/// A list of chains: the first one's first node, 0 = empty.
///
/// It needs no tag against ABA: the first node of a chain that is taken out is used next, or goes from a ripe list to the clean one; it
/// comes back to this one as the first of a chain after a grace period only, that is, not as long as a thread that still
/// takes it for the first is pinned. So whoever takes a chain out is pinned.
#[derive(Debug, Default)]
struct ChainList(AtomicU32);

/// What one thread keeps of the slab.
#[derive(Debug, Default)]
struct Own {
    /// Free nodes.
    ready: Chain,
    /// Retired nodes that wait for company, and how many.
    limbo: Chain,
    limbo_len: u32,
    /// Timers that it began without the index, minus those of which it retired the nodes: what the census has not been told.
    unindexed: i64,
    /// It drops keys: their destructors may call the scheduler.
    drops_keys: bool,
}

/// By ordinal, each on cache lines of its own.
#[derive(Debug, Default)]
struct Local(CachePadded<UnsafeCell<Own>>);

// SAFETY: numbers of zero.
unsafe impl Zeroed for Local {}
// SAFETY: only the thread that holds the ordinal touches it; an ordinal that goes to another thread takes along all that
// was done before (`Ordinals`).
unsafe impl Sync for Local {}

/// Rough figures that tell when stale hints prevail, and how many lines there should be. Kept per batch, not per node.
#[derive(Debug, Default)]
struct Census {
    /// Nodes handed out in batches minus nodes retired in batches.
    in_use: Count,
    /// Those of them that no index leads to.
    unindexed: Count,
    /// Hints in the worker's wheel, by its last report.
    hints: Count,
}

/// The nodes of a slab that are not in use, and how many are.
pub(super) struct Reuse {
    batch: u32,
    locals: Segments<Local>,
    /// By the ordinal of whoever has retired them; see [`Slab::ripe`].
    ripe: [CachePadded<ChainList>; RIPE_LISTS],
    clean: CachePadded<ChainList>,
    census: CachePadded<Census>,
    /// By the census, the most nodes that the index led to at a time. On a line of its own: each timer that begins reads it.
    most_indexed: CachePadded<Count>,
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
            most_indexed: CachePadded::default(),
        }
    }
}

impl<K: Send + Sync + 'static, V: Send + 'static> Slab<K, V> {
    /// The worker's wheel holds so many hints.
    pub(super) fn report_hints(&self, count: usize) {
        // Relaxed here and below: figures, nothing is published through them.
        self.reuse.census.hints.store(count as u64, Relaxed);
    }

    /// True if most of the hints in the wheel serve no timer any more.
    pub(super) fn has_stale_hints(&self) -> bool {
        self.reuse.census.hints.load(Relaxed) > 2 * self.in_use() + STALE_SLACK
    }

    /// Nodes in use, about: what threads keep ready, or have not retired a batch of, counts as well.
    pub(super) fn in_use(&self) -> u64 {
        // Signed: a batch may be counted out before it is counted in.
        (self.reuse.census.in_use.load(Relaxed) as i64).max(0) as u64
    }

    /// So many nodes at most the index led to at a time, about: what threads kept ready counts as well, and node 0. Never falls.
    #[inline]
    pub(super) fn most_indexed(&self) -> u32 {
        self.reuse.most_indexed.load(Relaxed) as u32 + 1
    }

    /// A free node with a new generation.
    #[inline(always)]
    pub(super) fn next_usable(&self, access: &mut Access) -> Option<Node<'_, K, V>> {
        loop {
            let node = match self.pop_ready(access.ordinal) {
                Some(node) => node,
                None => self.node(self.refill(access)?),
            };
            let generation = &node.tail.generation;
            // Relaxed: the node is ours; published with the word, by `AtomicWord::publish`.
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
        // SAFETY: the ordinal is the calling thread's, so nobody else is in here; nor is this thread, further up its stack:
        // no `change` below comes back here or runs user code.
        self.reuse.locals.reserve(ordinal.number()).0.with_mut(|own| change(unsafe { &mut *own }))
    }

    #[inline(always)]
    fn pop_ready(&self, ordinal: &Ordinal) -> Option<Node<'_, K, V>> {
        self.with_own(ordinal, |own| self.pop(&mut own.ready))
    }

    /// Takes the first node of a chain that is ours.
    // Always: a node by way of memory would be read in one go and written field by field, for which processors wait.
    #[inline(always)]
    fn pop(&self, chain: &mut Chain) -> Option<Node<'_, K, V>> {
        let node = self.node(chain.first()?);
        // Relaxed, here and in `push`: the chain is ours.
        let further_on = node.tail.hash.load(Relaxed);
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
        node.tail.hash.store(chain.push(node.number), Relaxed);
    }

    /// A batch of nodes for the thread, which has none left: used ones if there are any, else new ones. Returns the first: its number,
    /// so that who hardly ever comes here need not keep a `Node` in memory.
    ///
    /// A thread that was stopped in the middle of a call keeps all others' nodes from coming back, and with many more callers than
    /// cores there is always one. Who would go on with new nodes would use up its slice of time, and memory, while that thread
    /// waits for its turn. So it steps aside, a few times: a bound, so that it waits for nobody.
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
            // What the application has deferred to the epoch may have run here, and started timers: then there is a batch already.
            if let Some(node) = self.pop_ready(access.ordinal) {
                return Some(node.number);
            }
        }
        let (chain, len) = self.fresh()?;
        self.keep(chain, len, access)
    }

    /// True if more nodes wait for their grace period than are in use. (About: those that others have brought back this very
    /// moment count as well.)
    fn is_held_up(&self) -> bool {
        u64::from(self.extent() - 1) > 2 * self.in_use() + WAITING_BATCHES * u64::from(self.reuse.batch)
    }

    /// As `refill`, of used nodes only; `None` if there are none.
    fn refill_used(&self, access: &Access) -> Option<u32> {
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

    /// Makes a chain of so many nodes the thread's, which has none left; takes the first.
    fn keep(&self, chain: Chain, len: u32, access: &Access) -> Option<u32> {
        // Relaxed: a figure.
        self.reuse.census.in_use.fetch_add(u64::from(len), Relaxed);
        let first = self.with_own(access.ordinal, |own| {
            debug_assert_eq!(own.ready.first(), None, "nodes would be lost");
            own.ready = chain;
            self.tell_unindexed(own);
            self.pop(&mut own.ready).map(|node| node.number)
        });
        self.raise_most_indexed();
        first
    }

    fn raise_most_indexed(&self) {
        let Reuse { census, most_indexed, .. } = &self.reuse;
        // Relaxed: figures.
        let (before, unindexed) = (self.in_use(), census.unindexed.load(Relaxed));
        // If many have ended between the two, the difference of what was and what is must not stay for ever.
        let in_use = before.min(self.in_use());
        // Signed: as in `in_use`.
        let indexed = (in_use as i64 - unindexed as i64).max(0) as u64;
        if indexed > most_indexed.load(Relaxed) {
            most_indexed.fetch_max(indexed, Relaxed);
        }
    }

    /// A chain of nodes that were never used, and how many.
    fn fresh(&self) -> Option<(Chain, u32)> {
        let nodes = self.take_new(self.reuse.batch)?;
        let (mut chain, len) = (Chain::default(), nodes.len() as u32);
        nodes.rev().for_each(|node| self.push(&mut chain, self.reserved_node(node)));
        Some((chain, len))
    }

    /// The node was taken, and nobody has come to know of it: it may be used again at once.
    pub(super) fn take_back(&self, node: Node<'_, K, V>, access: &Access) {
        self.with_own(access.ordinal, |own| {
            own.unindexed -= i64::from(node.tail.hash() == NO_HASH);
            self.push(&mut own.ready, node);
        });
    }

    /// A timer is begun that no index leads to.
    #[inline(always)]
    pub(super) fn count_unindexed(&self, access: &Access) {
        self.with_own(access.ordinal, |own| own.unindexed += 1);
    }

    /// Tells the census of them, a batch at a time.
    fn tell_unindexed(&self, own: &mut Own) {
        let change = std::mem::take(&mut own.unindexed);
        if change != 0 {
            // Relaxed: a figure.
            self.reuse.census.unindexed.fetch_add(change as u64, Relaxed);
        }
    }

    /// The node is out of the index and nobody needs its key: it may be used again after the grace period.
    #[inline]
    pub(super) fn retire(self: &Arc<Self>, node: Node<'_, K, V>, access: &Access) {
        let batch = self.with_own(access.ordinal, |own| {
            own.unindexed -= i64::from(node.tail.hash() == NO_HASH);
            self.push(&mut own.limbo, node);
            own.limbo_len += 1;
            (own.limbo_len == self.reuse.batch).then(|| {
                own.limbo_len = 0;
                self.tell_unindexed(own);
                std::mem::take(&mut own.limbo)
            })
        });
        if let Some(chain) = batch {
            // Relaxed: a figure.
            self.reuse.census.in_use.fetch_sub(u64::from(self.reuse.batch), Relaxed);
            // Weak: until somebody collects, which may be long after the scheduler has gone, the batch must not keep all memory.
            // As numbers: see `STRANDS`.
            let list = access.ordinal.stripe(self.ripe().len());
            let (parcel, slab): Deferred<K, V> = (Parcel::new(chain, list), Arc::downgrade(self));
            access.guard.defer(move || {
                if let Some(slab) = slab.upgrade() {
                    let (chain, list) = parcel.open();
                    slab.push_batch(&slab.ripe()[list], chain);
                }
            });
            // Else the batch waits in this thread's bag, where nobody else can collect it.
            access.guard.flush();
        }
    }

    /// Hands a batch of nodes to all.
    fn push_batch(&self, list: &ChainList, chain: Chain) {
        let nodes = chain.nodes();
        // The first leads to the second and to the next chain, the second to the third, and so on. They are past their grace
        // period: nobody follows `next` as a link of the index any more. Relaxed, here and below: published by the exchange.
        for pair in nodes[1..].windows(2).filter(|pair| pair[0] != 0) {
            self.head(pair[0]).aside.store_pair(pair[1], 0);
        }
        let second = nodes.get(1).copied().unwrap_or(0);
        // Relaxed, also on failure: only an expectation for the exchange; nothing behind it is read.
        let mut first = list.0.load(Relaxed);
        loop {
            self.head(nodes[0]).aside.store_pair(second, first);
            // Release: publishes the chain's links and the last uses of its nodes to the Acquire in `pop_batch`. All changes
            // of a list are read-modify-writes, so whoever sees a later one has acquired this one too.
            match list.0.compare_exchange(first, nodes[0], Release, Relaxed) {
                Ok(_) => return,
                Err(found) => first = found,
            }
        }
    }

    /// A batch of nodes that nobody has.
    fn pop_batch(&self, list: &ChainList, _pinned: &Access) -> Option<Chain> {
        // Acquire, also on failure: pairs with the Release in `push_batch`, before the links are read.
        let mut first = list.0.load(Acquire);
        while first != 0 {
            // Garbage if the chain is not the first any more; then the exchange fails.
            let (second, next) = self.head(first).aside.load_pair();
            // Relaxed: the chain was acquired with `first`.
            match list.0.compare_exchange(first, next, Relaxed, Acquire) {
                Ok(_) => return Some(self.gather(first, second)),
                Err(found) => first = found,
            }
        }
        None
    }

    /// The lists in which retired nodes ripen. Where keys are to be dropped it is one: whoever ends a timer looks for such keys, and would
    /// have to look through all.
    fn ripe(&self) -> &[CachePadded<ChainList>] {
        &self.reuse.ripe[..if std::mem::needs_drop::<K>() { 1 } else { RIPE_LISTS }]
    }

    /// A ripe batch: of the calling thread's list, if there is one, or of another. Not one look at all of them: what ripens meanwhile where
    /// this has looked is for the next.
    fn pop_ripe(&self, access: &Access) -> Option<Chain> {
        let (before, from) = self.ripe().split_at(access.ordinal.stripe(self.ripe().len()));
        from.iter().chain(before).find_map(|list| self.pop_batch(list, access))
    }

    /// The chain of the batch that begins with these two nodes and is ours.
    fn gather(&self, first: u32, second: u32) -> Chain {
        let mut nodes: [u32; STRANDS] = std::array::from_fn(|place| [first, second].get(place).copied().unwrap_or(0));
        let mut before = second;
        for place in nodes.iter_mut().skip(2) {
            if before == 0 {
                break;
            }
            *place = self.head(before).aside.load_pair().0;
            before = *place;
        }
        Chain::of(nodes)
    }

    /// A ripe batch, with its keys dropped. None to a key's destructor that has called the scheduler: if it got the next batch, with
    /// further destructors, each would stand on top of the one before, as deep as there are batches.
    fn pop_cleaned(&self, access: &Access) -> Option<Chain> {
        if !std::mem::needs_drop::<K>() {
            return self.pop_ripe(access);
        }
        if self.with_own(access.ordinal, |own| std::mem::replace(&mut own.drops_keys, true)) {
            return None;
        }
        let chain = self.pop_ripe(access);
        chain.into_iter().for_each(|chain| self.drop_keys(chain));
        self.with_own(access.ordinal, |own| own.drops_keys = false);
        chain
    }

    /// Drops the keys of one ripe batch, if there is one: called as timers end, so that keys do not wait for new timers
    /// to come. Runs user code; no protocol step may be under way.
    pub(super) fn tidy(&self, access: &Access) {
        if std::mem::needs_drop::<K>()
            && let Some(chain) = self.pop_cleaned(access)
        {
            self.push_batch(&self.reuse.clean, chain);
        }
    }

    /// Drops the keys of a chain that is ours, and stays as it is.
    fn drop_keys(&self, mut chain: Chain) {
        while let Some(node) = self.pop(&mut chain) {
            self.drop_key(node.head);
        }
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests;
