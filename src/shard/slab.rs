//! The timers of one shard: nodes in growing arrays that are never unmapped while the slab lives, so any thread may
//! read a node's atomics at any time, whatever became of the timer.
//!
//! A node is split in two. The *head* is what a look-up, a move and the worker touch (32 bytes for an 8-byte key, two
//! to a cache line); the *tail* is what only the beginning and the end of a timer touch.
//!
//! Where a node is while it is not in use:
//! ```text
//!   retire       a batch at once     grace over        keys dropped         allocate
//!   ------> limbo -------------> epoch ---------> ripe -------------> clean ----------> ready ---> a new timer
//!         (per thread)                                                              (per thread)
//! ```
//! Chains of nodes ([`Chain`]) are linked by the tail's `hash`, which a node out of the index needs no more. `limbo` and `ready`
//! are one chain each and belong to one thread. `ripe` and `clean` belong to all: lists of chains, a batch of nodes each. There,
//! and only there, the `next` of a chain's first nodes is no link of the index, but leads from chain to chain (Treiber,
//! "Systems Programming: Coping with Parallelism", IBM RJ 5118, 1986). So most timers begin and end without an atomic
//! operation on a list, and one closure is deferred per batch, not per node.

use super::chain::Chain;
use super::hint::AtomicPromise;
use super::link::{AtomicLink, NO_HASH};
use super::ordinal::Ordinal;
use super::period::{Period, Repeats};
use super::segments::{LEN_MAX, Segments, Zeroed};
use super::tick::Deadline;
use super::word::{AtomicWord, Word};
use super::{Access, Identity, shielded};
use crate::sync::epoch::step_aside;
use crate::sync::size::{BATCH, STRANDS, WAITING_BATCHES};
use crate::sync::{AtomicU32, Ordering, UnsafeCell, prefetch};
use Ordering::{Acquire, Relaxed, Release};
use crossbeam_utils::CachePadded;
use std::mem::MaybeUninit;
use std::ops::Range;
/// Not from `sync`: no correctness hangs on these counts, so a model need not explore them.
use std::sync::atomic::AtomicU64 as Count;
use std::sync::{Arc, Weak};

/// Nodes that a thread retires, or takes, at once in each of so many shards. The more, the less often it meets other threads; but
/// it keeps some batches of each shard, which should stay in its cache, and a key's destructor should not have to wait.
pub(crate) fn batch_len<K>(shard_count: usize) -> u32 {
    let most = if std::mem::needs_drop::<K>() { 1 } else { 4 };
    BATCH * (8 / shard_count).clamp(1, most) as u32
}

/// What is deferred with a batch: see `STRANDS`.
type Deferred<K, V> = ([u32; STRANDS], Weak<Slab<K, V>>);
#[cfg(target_pointer_width = "64")]
const _: () = assert!(
    size_of::<Deferred<(), ()>>() <= 3 * size_of::<usize>() && align_of::<Deferred<(), ()>>() == align_of::<usize>()
);

/// How often a caller steps aside for nodes to come back, before it takes new ones.
const STEPS_ASIDE: usize = 4;

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
    /// Of a node in the index: its hash; of one whose timer no index leads to: `NO_HASH`. Of a free or retired one: the node that its
    /// chain goes on with.
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

impl<K> Head<K> {
    /// Runs `read` on the key.
    ///
    /// # Safety
    /// The key must be there: the node was reached in the index under the guard that the caller still holds, or the
    /// caller claimed the timer and has not finished it.
    #[inline]
    pub(super) unsafe fn with_key<R>(&self, read: impl FnOnce(&K) -> R) -> R {
        // SAFETY: as the caller promises; a key is not written or dropped while it can be reached.
        self.key.with(|key| read(unsafe { (*key).assume_init_ref() }))
    }
}

impl<V> Tail<V> {
    #[inline]
    pub(super) fn hash(&self) -> u32 {
        // Relaxed: written before the node was published.
        self.hash.load(Relaxed)
    }

    #[inline]
    pub(super) fn generation(&self) -> u32 {
        // Relaxed: `AtomicWord::load` came before and acquired what `publish` released: whoever saw the word of a newer
        // timer sees its generation or a newer one.
        self.generation.load(Relaxed)
    }

    /// Moves the value out.
    ///
    /// # Safety
    /// The caller ended this timer or turned it to firing (its move on the word succeeded, or the word names its node as the
    /// successor), or was handed it by whoever did, or is the author of one that gave way; and the value is taken once.
    #[inline]
    pub(super) unsafe fn take_value(&self) -> V {
        // SAFETY: written before the timer was published, and ours alone since it ended.
        self.value.with(|value| unsafe { (*value).assume_init_read() })
    }

    /// Puts the value of a timer that comes back into its place.
    ///
    /// # Safety
    /// The caller runs this timer's callback, took the value for that, and has not said what comes next.
    pub(super) unsafe fn put_value(&self, value: V) {
        // SAFETY: nobody else touches the value of a timer whose callback runs.
        self.value.with_mut(|place| unsafe { (*place).write(value) });
    }
}

/// A node that was found in the arrays, so that not every access has to find it again.
pub(super) struct Node<'a, K, V> {
    pub(super) number: u32,
    pub(super) head: &'a Head<K>,
    pub(super) tail: &'a Tail<V>,
}

impl<K, V> Clone for Node<'_, K, V> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<K, V> Copy for Node<'_, K, V> {}

// SAFETY: three atomics of zero, and a key that may hold anything.
unsafe impl<K> Zeroed for Head<K> {}
// SAFETY: two atomics of zero, and a value that may hold anything.
unsafe impl<V> Zeroed for Tail<V> {}
// SAFETY: the key is written by the node's owner before the node is published, is only read while shared, and is
// dropped by the one thread that `AtomicWord::take_key` picks: `K: Send` for that, `Sync` for the reading.
unsafe impl<K: Send + Sync> Sync for Head<K> {}
// SAFETY: the value is only ever touched by one thread at a time: its author, then whoever ended the timer, or was handed it.
unsafe impl<V: Send> Sync for Tail<V> {}

/// A list of chains: the first one's first node, 0 = empty.
///
/// It needs no tag against ABA: the first node of a chain that is taken out is used next, or goes to the other list; it
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

/// The period of a node's timer, if that is periodic.
struct PeriodCell<V>(UnsafeCell<MaybeUninit<Period<V>>>);

impl<V> Default for PeriodCell<V> {
    fn default() -> Self {
        Self(UnsafeCell::new(MaybeUninit::uninit()))
    }
}

// SAFETY: it may hold anything.
unsafe impl<V> Zeroed for PeriodCell<V> {}
// SAFETY: it is touched by a node's owner before the node is published, and then by whoever runs the callback, one thread
// at a time; a period is numbers and a function.
unsafe impl<V> Sync for PeriodCell<V> {}

/// Rough figures that tell when stale hints prevail. Kept per batch, not per node.
#[derive(Debug, Default)]
struct Census {
    /// Nodes handed out in batches minus nodes retired in batches.
    in_use: Count,
    /// Hints in the worker's wheel, by its last report.
    hints: Count,
}

/// A timer that was begun: its node, who it is, and the word that it had then.
pub(super) type Begun<'a, K, V> = (Node<'a, K, V>, Identity, Word);

/// Key and value that found no place; the reason is the caller's to tell.
#[derive(Debug)]
pub(crate) struct Homeless<K, V>(pub(crate) K, pub(crate) V);

pub(crate) struct Slab<K, V> {
    batch: u32,
    heads: Segments<Head<K>>,
    tails: Segments<Tail<V>>,
    locals: Segments<Local>,
    /// By node, for periodic timers only: memory of nodes that never were one is not touched.
    periods: Segments<PeriodCell<V>>,
    ripe: CachePadded<ChainList>,
    clean: CachePadded<ChainList>,
    /// Nodes handed out so far, node 0 included, which is none. Never falls.
    extent: CachePadded<AtomicU32>,
    census: CachePadded<Census>,
}

impl<K: Send + Sync + 'static, V: Send + 'static> Slab<K, V> {
    /// Nodes are retired, and handed out, `batch` at a time.
    pub(super) fn new(batch: u32) -> Self {
        Self {
            batch,
            heads: Segments::new(),
            tails: Segments::new(),
            locals: Segments::new(),
            periods: Segments::new(),
            ripe: CachePadded::default(),
            clean: CachePadded::default(),
            extent: CachePadded::new(AtomicU32::new(1)),
            census: CachePadded::default(),
        }
    }

    #[inline]
    pub(super) fn head(&self, node: u32) -> &Head<K> {
        self.heads.at(node)
    }

    #[inline]
    pub(super) fn tail(&self, node: u32) -> &Tail<V> {
        self.tails.at(node)
    }

    #[inline]
    pub(super) fn node(&self, number: u32) -> Node<'_, K, V> {
        Node { number, head: self.head(number), tail: self.tail(number) }
    }

    /// An upper bound of the node indexes in use. The last ones' memory may not be reserved yet.
    pub(crate) fn extent(&self) -> u32 {
        // Relaxed: whoever knows of a timer, through whatever told it, reads no older extent than that timer's author.
        self.extent.load(Relaxed)
    }

    /// The nodes handed out so far; who takes further ones observes what the caller did before.
    pub(super) fn nodes_at_seal(&self) -> Range<u32> {
        // Adds nothing, on purpose. Release: to the Acquire in `fresh`.
        1..self.extent.fetch_add(0, Release)
    }

    /// The head of any node below `extent`, whether or not its owner has reserved its memory yet.
    pub(super) fn reserved_head(&self, node: u32) -> &Head<K> {
        self.heads.reserve(node)
    }

    /// All nodes handed out so far. While a `schedule` is under way, the last ones may have no memory yet.
    pub(super) fn nodes(&self) -> Range<u32> {
        1..self.extent()
    }

    pub(super) const NODE_BYTES: usize = size_of::<Head<K>>() + size_of::<Tail<V>>();

    /// Has the system put memory behind some nodes, from the first of them on; returns how far.
    pub(super) fn populate(&self, nodes: Range<u32>) -> u32 {
        debug_assert!(nodes.start < nodes.end && nodes.end <= LEN_MAX);
        let end = self.heads.populate(nodes.clone(), |head| head.next.touch());
        // Relaxed: as in `AtomicLink::touch`.
        let touch = |tail: &Tail<V>| _ = tail.hash.compare_exchange(0, 0, Relaxed, Relaxed);
        self.tails.populate(nodes.start..end, touch)
    }

    /// The worker's wheel holds so many hints.
    pub(super) fn report_hints(&self, count: usize) {
        // Relaxed here and below: figures, nothing is published through them.
        self.census.hints.store(count as u64, Relaxed);
    }

    /// True if most of the hints in the wheel serve no timer any more.
    pub(super) fn has_stale_hints(&self) -> bool {
        self.census.hints.load(Relaxed) > 2 * self.in_use() + STALE_SLACK
    }

    /// Nodes in use, about: what threads keep ready, or have not retired a batch of, counts as well.
    pub(super) fn in_use(&self) -> u64 {
        // Signed: a batch may be counted out before it is counted in.
        (self.census.in_use.load(Relaxed) as i64).max(0) as u64
    }

    pub(super) fn prefetch(&self, node: u32) {
        prefetch(self.heads.at(node));
    }

    pub(super) fn prefetch_tail(&self, node: u32) {
        prefetch(self.tails.at(node));
    }

    /// The generation of any node below `extent`, whether or not its owner has reserved its memory yet.
    pub(super) fn reserved_generation(&self, node: u32) -> u32 {
        self.heads.reserve(node);
        // A guess: the caller reads the word afterwards, and this again.
        self.tails.reserve(node).generation()
    }

    /// Runs `change` on the period of a periodic timer.
    ///
    /// # Safety
    /// As for `put_value`, and the timer is periodic.
    pub(super) unsafe fn with_period<R>(&self, node: u32, change: impl FnOnce(&mut Period<V>) -> R) -> R {
        // SAFETY: written when the timer was started, and nobody else's while its callback runs.
        self.periods.at(node).0.with_mut(|place| change(unsafe { (*place).assume_init_mut() }))
    }

    /// Takes a free node and fills it: tentative, not linked. Gives key and value back if every node that there can be is in use.
    ///
    /// What the caller has reached before may be gone afterwards: see `refill`.
    // Always, and what it consists of, too: a node that comes back by way of memory is waited for.
    #[inline(always)]
    pub(super) fn allocate(
        &self,
        hash: u32,
        key: K,
        value: V,
        deadline: Deadline,
        repeats: Repeats<V>,
        access: &mut Access,
    ) -> Result<Node<'_, K, V>, Homeless<K, V>> {
        let comes_back = repeats.is_wanted();
        let node = self.fill(hash, key, value, repeats, access)?;
        node.head.word.allocate(deadline, comes_back);
        Ok(node)
    }

    /// As `allocate`, a timer that no index will lead to: it is pending at once, and this is its word.
    #[inline(always)]
    pub(super) fn begin(
        &self,
        key: K,
        value: V,
        deadline: Deadline,
        repeats: Repeats<V>,
        access: &mut Access,
    ) -> Result<Begun<'_, K, V>, Homeless<K, V>> {
        let comes_back = repeats.is_wanted();
        let node = self.fill(NO_HASH, key, value, repeats, access)?;
        // Before it may end, and the node be used again.
        let identity = Identity { node: node.number, generation: node.tail.generation() };
        Ok((node, identity, node.head.word.begin(deadline, comes_back)))
    }

    #[inline(always)]
    fn fill(
        &self,
        hash: u32,
        key: K,
        value: V,
        repeats: Repeats<V>,
        access: &mut Access,
    ) -> Result<Node<'_, K, V>, Homeless<K, V>> {
        let Some(node) = self.next_usable(access) else {
            return Err(Homeless(key, value));
        };
        let Node { number, head, tail } = node;
        // SAFETY: we own the node: it is out of every list and out of the index, and its grace period is over.
        head.key.with_mut(|place| unsafe { (*place).write(key) });
        // SAFETY: as above.
        tail.value.with_mut(|place| unsafe { (*place).write(value) });
        // Relaxed: published by the link, and by the word when it turns pending.
        tail.hash.store(hash, Relaxed);
        if let Repeats::Every(period) = repeats {
            // SAFETY: as above.
            self.periods.reserve(number).0.with_mut(|place| unsafe { _ = (*place).write(period) });
        }
        Ok(node)
    }

    /// Undoes `allocate` for a node that was never linked, and `begin` for one whose timer its author has ended.
    pub(super) fn give_back(&self, node: Node<'_, K, V>, access: &Access) -> Homeless<K, V> {
        // SAFETY: the node was never linked, so nobody has reached its key in the index; and if its timer was pending it is its author who
        // has ended it, so nobody has claimed it, and key and value are his. They are not used again: the dead word below carries no
        // key. (Leftover keys are looked for only when no call is under way.)
        let (key, value) = unsafe { (node.head.key.with(|key| (*key).assume_init_read()), node.tail.take_value()) };
        // It is used again without a grace period. Only who drains may know its identity by now, and he does not find it pending again: a
        // node that is given back belongs to a sealed shard.
        node.head.word.abort();
        self.with_own(access.ordinal, |own| self.push(&mut own.ready, node));
        Homeless(key, value)
    }

    /// A free node with a new generation.
    #[inline(always)]
    fn next_usable(&self, access: &mut Access) -> Option<Node<'_, K, V>> {
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
        self.locals.reserve(ordinal.number()).0.with_mut(|own| change(unsafe { &mut *own }))
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

    /// A batch of nodes for the thread, which has none left: used ones if there are any, else new ones. Returns the first; by its number, so
    /// that who hardly ever comes here need not keep a `Node` in memory.
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
        u64::from(self.extent() - 1) > 2 * self.in_use() + WAITING_BATCHES * u64::from(self.batch)
    }

    /// As `refill`, of used nodes only; `None` if there are none.
    fn refill_used(&self, access: &Access) -> Option<u32> {
        if let Some(chain) = self.pop_batch(&self.clean, access) {
            return self.keep(chain, self.batch, access);
        }
        if let Some(chain) = self.pop_cleaned(access) {
            let Some(node) = self.pop_ready(access.ordinal) else {
                return self.keep(chain, self.batch, access);
            };
            // A key's destructor has started timers, and so taken a batch already.
            self.push_batch(&self.clean, chain);
            return Some(node.number);
        }
        None
    }

    /// Makes a chain of so many nodes the thread's, which has none left; takes the first.
    fn keep(&self, chain: Chain, len: u32, access: &Access) -> Option<u32> {
        // Relaxed: a figure.
        self.census.in_use.fetch_add(u64::from(len), Relaxed);
        self.with_own(access.ordinal, |own| {
            debug_assert_eq!(own.ready.first(), None, "nodes would be lost");
            own.ready = chain;
            self.pop(&mut own.ready).map(|node| node.number)
        })
    }

    /// A chain of nodes that were never used, and how many.
    fn fresh(&self) -> Option<(Chain, u32)> {
        // Acquire: pairs with `nodes_at_seal`. The segments are published by their own pointers.
        // Relaxed on failure: only an expectation for the next try.
        let grow = |extent: u32| (extent < LEN_MAX).then_some((extent + self.batch).min(LEN_MAX));
        let start = self.extent.fetch_update(Acquire, Relaxed, grow).ok()?;
        let end = (start + self.batch).min(LEN_MAX);
        let mut chain = Chain::default();
        for node in (start..end).rev() {
            let node = Node { number: node, head: self.heads.reserve(node), tail: self.tails.reserve(node) };
            self.push(&mut chain, node);
        }
        Some((chain, end - start))
    }

    /// The node is out of the index and nobody needs its key: it may be used again after the grace period.
    #[inline]
    pub(super) fn retire(self: &Arc<Self>, node: Node<'_, K, V>, access: &Access) {
        let batch = self.with_own(access.ordinal, |own| {
            self.push(&mut own.limbo, node);
            own.limbo_len += 1;
            (own.limbo_len == self.batch).then(|| {
                own.limbo_len = 0;
                std::mem::take(&mut own.limbo)
            })
        });
        if let Some(chain) = batch {
            // Relaxed: a figure.
            self.census.in_use.fetch_sub(u64::from(self.batch), Relaxed);
            // Weak: until somebody collects, which may be long after the scheduler has gone, the batch must not keep all memory.
            // As numbers: see `STRANDS`.
            let (nodes, slab): Deferred<K, V> = (chain.nodes(), Arc::downgrade(self));
            access.guard.defer(move || {
                if let Some(slab) = slab.upgrade() {
                    slab.push_batch(&slab.ripe, Chain::of(nodes));
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
            self.head(pair[0]).next.store_pair(pair[1], 0);
        }
        let second = nodes.get(1).copied().unwrap_or(0);
        // Relaxed, also on failure: only an expectation for the exchange; nothing behind it is read.
        let mut first = list.0.load(Relaxed);
        loop {
            self.head(nodes[0]).next.store_pair(second, first);
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
            let (second, next) = self.head(first).next.load_pair();
            // Relaxed: the chain was acquired with `first`.
            match list.0.compare_exchange(first, next, Relaxed, Acquire) {
                Ok(_) => return Some(self.gather(first, second)),
                Err(found) => first = found,
            }
        }
        None
    }

    /// The chain of the batch that begins with these two nodes and is ours.
    fn gather(&self, first: u32, second: u32) -> Chain {
        let mut nodes: [u32; STRANDS] = std::array::from_fn(|place| [first, second].get(place).copied().unwrap_or(0));
        let mut before = second;
        for place in nodes.iter_mut().skip(2) {
            if before == 0 {
                break;
            }
            *place = self.head(before).next.load_pair().0;
            before = *place;
        }
        Chain::of(nodes)
    }

    /// A ripe batch, with its keys dropped. None to a key's destructor that has called the scheduler: if it got the next batch, with
    /// further destructors, each would stand on top of the one before, as deep as there are batches.
    fn pop_cleaned(&self, access: &Access) -> Option<Chain> {
        if !std::mem::needs_drop::<K>() {
            return self.pop_batch(&self.ripe, access);
        }
        if self.with_own(access.ordinal, |own| std::mem::replace(&mut own.drops_keys, true)) {
            return None;
        }
        let chain = self.pop_batch(&self.ripe, access);
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
            self.push_batch(&self.clean, chain);
        }
    }

    /// Drops the keys of a chain that is ours, and stays as it is.
    fn drop_keys(&self, mut chain: Chain) {
        while let Some(node) = self.pop(&mut chain) {
            self.drop_key(node.head);
        }
    }

    /// Drops the key of an ended timer, if nobody has.
    fn drop_key(&self, head: &Head<K>) {
        if head.word.load().has_leftover_key() && head.word.take_key() {
            // A key's destructor that panics must not take the caller down, who works on a key of its own.
            let _ = shielded(|| {
                // SAFETY: `take_key` picked us, the timer is done, and no reader is left: its grace period is over,
                // or nobody can call the scheduler any more.
                head.key.with_mut(|key| unsafe { (*key).assume_init_drop() });
            });
        }
    }

    /// Drops every key that an ended timer left behind. No `schedule` may be under way.
    ///
    /// # Safety
    /// No other thread may be using a key of this slab, except for timers that are not done.
    pub(super) unsafe fn drop_leftover_keys(&self) {
        if std::mem::needs_drop::<K>() {
            for node in self.nodes() {
                self.drop_key(self.head(node));
            }
        }
    }

    /// Drops the key of one ended timer, if nobody has.
    ///
    /// # Safety
    /// As for `drop_leftover_keys`.
    pub(super) unsafe fn drop_leftover_key(&self, node: u32) {
        self.drop_key(self.head(node));
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

#[cfg(test)]
mod tests;
