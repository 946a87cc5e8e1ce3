//! The timers of one shard: nodes in growing arrays. These are never unmapped while the slab lives, so any thread may
//! read a node's atomics at any time, whatever has become of the timer.
//!
//! A node is split in two. The *head* is what look-ups, moves (by key or by handle) and the worker touch: 32 bytes for
//! an 8-byte key, two to a cache line. The *tail* is what only the beginning and the end of a timer touch.
//!
//! Where a node is while it is not in use: see `reuse.rs`.

use super::hint::AtomicPromise;
use super::line::NO_HASH;
use super::period::{Period, Repeats};
use super::reuse::Reuse;
use super::segments::{LEN_MAX, Segments, Zeroed};
use super::tick::Deadline;
use super::word::{AtomicWord, Word};
use super::{Access, Identity, shielded};
use crate::sync::{AtomicU32, AtomicU64, Ordering, UnsafeCell};
use Ordering::{Acquire, Relaxed, Release};
use crossbeam_utils::CachePadded;
use std::mem::MaybeUninit;
use std::ops::Range;

/// What a node keeps for a limited time.
#[derive(Debug, Default)]
pub(super) struct Aside(AtomicU64);

impl Aside {
    #[inline]
    fn set_deadline(&self, deadline: Deadline) {
        // Relaxed: the node is ours; published by its cell.
        self.0.store(deadline.to_bits(), Relaxed);
    }

    #[inline]
    pub(super) fn deadline(&self) -> Deadline {
        // Relaxed: acquired with the cell.
        Deadline::from_bits(self.0.load(Relaxed))
    }

    /// Makes the system put memory behind it; changes nothing.
    pub(super) fn touch(&self) {
        // Not a load, for which the system needs no memory; nor an operation that compilers turn into a load, such as
        // adding 0.
        // Relaxed: nothing is published, and nothing read.
        let _ = self.0.compare_exchange(0, 0, Relaxed, Relaxed);
    }

    /// For a node out of the index: stores the numbers of two other nodes instead.
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

#[repr(C)]
pub(super) struct Head<K> {
    pub(super) word: AtomicWord,
    pub(super) promise: AtomicPromise,
    /// For a node in the index: its hash. For a timer that no index leads to: `NO_HASH`. For a free or retired node:
    /// the node that its chain goes on with.
    pub(super) hash: AtomicU32,
    pub(super) generation: AtomicU32,
    key: UnsafeCell<MaybeUninit<K>>,
}

#[repr(C)]
pub(super) struct Tail<V> {
    /// For a timer that is tentative or yielding: its deadline. For a node that waits to be used again: two other
    /// nodes.
    pub(super) aside: Aside,
    value: UnsafeCell<MaybeUninit<V>>,
}

impl<K> Default for Head<K> {
    fn default() -> Self {
        Self {
            word: AtomicWord::default(),
            promise: AtomicPromise::default(),
            hash: AtomicU32::default(),
            generation: AtomicU32::default(),
            key: UnsafeCell::new(MaybeUninit::uninit()),
        }
    }
}

impl<V> Default for Tail<V> {
    fn default() -> Self {
        Self { aside: Aside::default(), value: UnsafeCell::new(MaybeUninit::uninit()) }
    }
}

impl<K> Head<K> {
    #[inline]
    pub(super) fn hash(&self) -> u32 {
        // Relaxed: written before the node was published.
        self.hash.load(Relaxed)
    }

    #[inline]
    pub(super) fn generation(&self) -> u32 {
        // Relaxed: `AtomicWord::load` came before and acquired what `publish` or `begin` released: a thread that saw
        // the word of a newer timer sees that timer's generation or a newer one.
        self.generation.load(Relaxed)
    }

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
    /// Moves the value out.
    ///
    /// # Safety
    /// The caller ended this timer or turned it to firing (its move on the word succeeded, or the word names its node
    /// as the successor); or was handed the timer by the thread that did; or is the author of a timer that gave way or
    /// was never linked. The value is taken only once.
    #[inline]
    pub(super) unsafe fn take_value(&self) -> V {
        // SAFETY: written before the timer was published, and ours alone, as the caller promises.
        self.value.with(|value| unsafe { (*value).assume_init_read() })
    }

    /// Puts the value of a timer that comes back into its place.
    ///
    /// # Safety
    /// The caller runs this timer's callback, took the value for that, and has not called `AtomicWord::rearm_or_end`
    /// yet.
    pub(super) unsafe fn put_value(&self, value: V) {
        // SAFETY: nobody else touches the value of a timer whose callback runs.
        self.value.with_mut(|place| unsafe { (*place).write(value) });
    }
}

/// A node whose place in the arrays has been found, so that not every access has to find it again.
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

// SAFETY: atomics, whose default is zero, and a key that may hold anything.
unsafe impl<K> Zeroed for Head<K> {}
// SAFETY: an atomic, whose default is zero, and a value that may hold anything.
unsafe impl<V> Zeroed for Tail<V> {}
// SAFETY: the key is written by the node's owner before the node is published, is only read while shared, and is
// dropped by the one thread that `AtomicWord::take_key` picks: `K: Send` for that, `Sync` for the reading.
unsafe impl<K: Send + Sync> Sync for Head<K> {}
// SAFETY: only one thread at a time touches the value: its author, then the thread that ended the timer or was handed
// it.
unsafe impl<V: Send> Sync for Tail<V> {}

/// The period of a node's timer, if that is periodic.
struct PeriodCell<V>(UnsafeCell<MaybeUninit<Period<V>>>);

impl<V> Default for PeriodCell<V> {
    fn default() -> Self {
        Self(UnsafeCell::new(MaybeUninit::uninit()))
    }
}

// SAFETY: it may hold anything.
unsafe impl<V> Zeroed for PeriodCell<V> {}
// SAFETY: only one thread at a time touches it: the node's owner before the node is published, and then the thread that
// runs the callback. A period is numbers and a function.
unsafe impl<V> Sync for PeriodCell<V> {}

/// A timer that was begun: its node, its identity, and the word that it had then.
pub(super) type Begun<'a, K, V> = (Node<'a, K, V>, Identity, Word);

/// Key and value that found no place; the caller knows the reason.
#[derive(Debug)]
pub(crate) struct NoNode<K, V>(pub(crate) K, pub(crate) V);

pub(crate) struct Slab<K, V> {
    heads: Segments<Head<K>>,
    tails: Segments<Tail<V>>,
    /// By node, for periodic timers only: for a node that never had one, no memory is touched.
    periods: Segments<PeriodCell<V>>,
    /// Nodes handed out so far, including node 0, which is none. Never falls.
    extent: CachePadded<AtomicU32>,
    pub(super) reuse: Reuse,
}

impl<K: Send + Sync + 'static, V: Send + 'static> Slab<K, V> {
    /// Nodes are retired, and handed out, `batch` at a time.
    pub(super) fn new(batch: u32) -> Self {
        Self {
            heads: Segments::new(),
            tails: Segments::new(),
            periods: Segments::new(),
            extent: CachePadded::new(AtomicU32::new(1)),
            reuse: Reuse::new(batch),
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

    /// An upper bound of the node numbers in use. The memory of the last ones may not be reserved yet.
    pub(crate) fn extent(&self) -> u32 {
        // Relaxed: a thread that knows of a timer has learned of it from its author, directly or through others, and
        // reads an extent no older than the author did.
        self.extent.load(Relaxed)
    }

    /// The nodes handed out so far. A thread that takes further ones observes what the caller did before.
    pub(super) fn nodes_at_seal(&self) -> Range<u32> {
        // Adds nothing, on purpose. Release: pairs with the Acquire in `take_new`.
        1..self.extent.fetch_add(0, Release)
    }

    /// Hands out up to `count` nodes that were never used; the caller reserves their memory. `None` if all are in use.
    pub(super) fn take_new(&self, count: u32) -> Option<Range<u32>> {
        // Acquire: pairs with `nodes_at_seal`. The segments are published by their own pointers.
        // Relaxed on failure: only an expectation for the next try.
        let grow = |extent: u32| (extent < LEN_MAX).then_some((extent + count).min(LEN_MAX));
        let start = self.extent.fetch_update(Acquire, Relaxed, grow).ok()?;
        Some(start..(start + count).min(LEN_MAX))
    }

    /// As `node`, and reserves its memory.
    pub(super) fn reserved_node(&self, number: u32) -> Node<'_, K, V> {
        Node { number, head: self.heads.reserve(number), tail: self.tails.reserve(number) }
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

    /// Makes the system put memory behind some of the nodes, from the first on. Returns the end of what was done.
    pub(super) fn populate(&self, nodes: Range<u32>) -> u32 {
        debug_assert!(nodes.start < nodes.end && nodes.end <= LEN_MAX);
        // Relaxed: as in `Aside::touch`.
        let touch = |head: &Head<K>| _ = head.hash.compare_exchange(0, 0, Relaxed, Relaxed);
        let end = self.heads.populate(nodes.clone(), touch);
        self.tails.populate(nodes.start..end, |tail| tail.aside.touch())
    }

    pub(super) fn prefetch(&self, node: u32) {
        self.heads.prefetch(node);
    }

    pub(super) fn prefetch_tail(&self, node: u32) {
        self.tails.prefetch(node);
    }

    /// The generation of any node below `extent`, whether or not its owner has reserved its memory yet.
    pub(super) fn reserved_generation(&self, node: u32) -> u32 {
        // For `node`, which the caller asks for next.
        self.tails.reserve(node);
        // A guess: the caller reads the word afterwards, and this again.
        self.heads.reserve(node).generation()
    }

    /// Runs `change` on the period of a periodic timer.
    ///
    /// # Safety
    /// As for `put_value`, and the timer is periodic.
    pub(super) unsafe fn with_period<R>(&self, node: u32, change: impl FnOnce(&mut Period<V>) -> R) -> R {
        // SAFETY: written when the timer was started, and nobody else touches it while the callback runs.
        self.periods.at(node).0.with_mut(|place| change(unsafe { (*place).assume_init_mut() }))
    }

    /// Takes a free node and fills it: tentative, not linked. Gives key and value back if every possible node is in
    /// use.
    ///
    /// What the caller has reached before may be gone afterwards: see `refill` in `reuse.rs`.
    // Always inlined, like everything that it calls: see `pop` in `reuse.rs`.
    #[inline(always)]
    pub(super) fn allocate(
        &self,
        hash: u32,
        key: K,
        value: V,
        deadline: Deadline,
        repeats: Repeats<V>,
        access: &mut Access,
    ) -> Result<Node<'_, K, V>, NoNode<K, V>> {
        let comes_back = repeats.may_come_back();
        let node = self.fill(hash, key, value, repeats, access)?;
        node.tail.aside.set_deadline(deadline);
        node.head.word.allocate(comes_back);
        Ok(node)
    }

    /// As `allocate`, for a timer that no index will lead to: it is pending at once, and its word is returned.
    #[inline(always)]
    pub(super) fn begin(
        &self,
        key: K,
        value: V,
        deadline: Deadline,
        repeats: Repeats<V>,
        access: &mut Access,
    ) -> Result<Begun<'_, K, V>, NoNode<K, V>> {
        let comes_back = repeats.may_come_back();
        let node = self.fill(NO_HASH, key, value, repeats, access)?;
        self.count_unindexed(access);
        // Read before the timer may end and the node may be used again.
        let identity = Identity { node: node.number, generation: node.head.generation() };
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
    ) -> Result<Node<'_, K, V>, NoNode<K, V>> {
        let Some(node) = self.next_usable(access) else {
            return Err(NoNode(key, value));
        };
        let Node { number, head, tail } = node;
        // SAFETY: we own the node: it is out of every list and out of the index, and its grace period is over.
        head.key.with_mut(|place| unsafe { (*place).write(key) });
        // SAFETY: as above.
        tail.value.with_mut(|place| unsafe { (*place).write(value) });
        // Relaxed: published by the cell, and by the word when it turns pending.
        head.hash.store(hash, Relaxed);
        if let Repeats::Every(period) = repeats {
            // SAFETY: as above.
            self.periods.reserve(number).0.with_mut(|place| unsafe { _ = (*place).write(period) });
        }
        Ok(node)
    }

    /// Undoes `allocate` for a node that was never linked, and `begin` for one whose timer its author has ended.
    pub(super) fn give_back(&self, node: Node<'_, K, V>, access: &Access) -> NoNode<K, V> {
        // SAFETY: the node was never linked, so no thread has reached its key in the index. If its timer was pending,
        // its author has ended it, so no thread has claimed it, and key and value are the author's. They are not used
        // again: the dead word below carries no key. (Leftover keys are looked for only when no call is under way.)
        let (key, value) = unsafe { (node.head.key.with(|key| (*key).assume_init_read()), node.tail.take_value()) };
        // The node is used again without a grace period. Only a drainer may know its identity by now, and only if the
        // timer was pending. But then the shard is sealed, so the drainer does not find the node pending again.
        node.head.word.abort();
        self.take_back(node, access);
        NoNode(key, value)
    }

    /// Drops the key of an ended timer, if nobody has.
    ///
    /// # Safety
    /// No other thread may be using the key, unless the timer is not done.
    pub(super) unsafe fn drop_key(&self, head: &Head<K>) {
        if head.word.load().has_leftover_key() && head.word.take_key() {
            // If the key's destructor panics, that must not take down the caller, which is working on a key of its own.
            let _ = shielded(|| {
                // SAFETY: `take_key` picked us, and the timer is done, so no reader is left, as the caller promises.
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
                // SAFETY: as the caller promises.
                unsafe { self.drop_key(self.head(node)) };
            }
        }
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

#[cfg(all(test, target_os = "linux", not(miri), not(feature = "loom")))]
mod tests {
    use super::*;

    /// In a model there is memory behind everything.
    #[test]
    fn populated_nodes_are_used_without_a_wait_for_the_system() {
        /// Pages that this thread has waited for so far.
        fn faults() -> u64 {
            let stat = std::fs::read_to_string("/proc/thread-self/stat").expect("it is there on Linux");
            let fields = stat.rsplit(')').next().expect("the name ends in one").split_whitespace();
            fields.skip(7).step_by(2).take(2).map(|field| field.parse::<u64>().expect("a count")).sum()
        }
        // Arrays of this size are not made of memory that was in use before.
        let nodes = (1 << 21)..(1 << 21) + (1 << 15);
        let faults_when_used = || {
            let slab = Slab::<u64, u64>::new(64);
            slab.heads.reserve(nodes.start);
            slab.tails.reserve(nodes.start);
            assert_eq!(slab.populate(nodes.clone()), nodes.end);
            let before = faults();
            for node in nodes.clone() {
                slab.tail(node).aside.store_pair(1, 1);
                slab.head(node).hash.store(1, Relaxed);
            }
            faults() - before
        };
        // The code's own pages, on the first run, and who knows what else on a busy system, count as well.
        let runs = [(); 5].map(|()| faults_when_used());
        assert!(runs.contains(&0), "{runs:?}");
    }
}
