//! Everything of `std`, crossbeam and the operating system that the lock-free core in `shard/` is built on.
//!
//! `shard/` shares data between threads through nothing else (except for figures that correctness does not depend on).
//! So the models in `loom-tests/` compile the very same files against a module of the same shape, made of loom's types
//! (`loom-tests/support/sync.rs`).

pub(crate) use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering, fence};
/// Not for `shard/`: for threads that wait for callbacks.
pub(crate) use std::sync::{Condvar, Mutex};

/// Memory that is reclaimed once nobody can still be looking at it.
pub(crate) mod epoch {
    pub(crate) use crossbeam_epoch::Guard;
    use crossbeam_epoch::{Collector, LocalHandle};
    use std::sync::LazyLock;

    /// Our own, for all schedulers: the process's is anybody's. A guard of other code would keep our memory from being
    /// reused, and what other code has deferred would run in our calls.
    static COLLECTOR: LazyLock<Collector> = LazyLock::new(Collector::new);

    thread_local! {
        static HANDLE: LocalHandle = COLLECTOR.register();
    }

    /// While the guard lives, nothing that this thread can reach is reclaimed.
    #[inline]
    pub(crate) fn pin() -> Guard {
        // A thread whose thread-locals are gone gets a handle for this guard alone.
        HANDLE.try_with(LocalHandle::pin).unwrap_or_else(|_| COLLECTOR.register().pin())
    }

    /// True if this thread holds a guard. False also if that cannot be known, since its thread-locals are gone.
    pub(crate) fn is_pinned() -> bool {
        HANDLE.try_with(LocalHandle::is_pinned).unwrap_or(false)
    }

    /// Runs `run` while the calling thread is not pinned: what it could reach may be gone afterwards. If it cannot
    /// unpin, since it holds another guard or its thread-locals are gone, `run` finds it pinned.
    pub(crate) fn unpinned<R>(guard: &mut Guard, run: impl FnOnce() -> R) -> R {
        // A thread whose thread-locals are gone looks as if it were not pinned, and its guard cannot be pinned again.
        if is_pinned() { guard.repin_after(run) } else { run() }
    }

    /// Lets other threads run. Meanwhile the calling thread is not pinned: what it could reach may be gone afterwards.
    /// If the thread cannot unpin, this returns false and has no effect.
    pub(crate) fn step_aside(guard: &mut Guard) -> bool {
        if !is_pinned() {
            return false;
        }
        let has_left = unpinned(guard, || {
            let has_left = !is_pinned();
            if has_left {
                std::thread::yield_now();
            }
            has_left
        });
        if has_left {
            // Collects what became free.
            guard.flush();
        }
        has_left
    }
}

/// How deep the calling thread is in dropping keys, whose destructors may call schedulers, which may drop keys.
pub(crate) mod key_drops {
    use std::cell::Cell;

    /// More than 1, so that a scheduler that only the destructors of another one's keys call drops its own keys.
    pub(crate) const DEPTH_MAX: u32 = 4;

    // Without a destructor, so on most systems it is there for the destructors of other thread-locals, too.
    thread_local! {
        static DEPTH: Cell<u32> = const { Cell::new(0) };
    }

    /// False if the thread must not go deeper, or cannot note that it does. After a `true`, `end` must be called.
    pub(crate) fn begin() -> bool {
        let deeper = |depth: &Cell<u32>| {
            let may = depth.get() < DEPTH_MAX;
            depth.set(depth.get() + u32::from(may));
            may
        };
        DEPTH.try_with(deeper).unwrap_or(false)
    }

    pub(crate) fn end() {
        let _ = DEPTH.try_with(|depth| depth.set(depth.get() - 1));
    }
}

/// Sizes that a model must shrink to stay explorable.
pub(crate) mod size {
    /// The first segment of a growing array holds `1 << FIRST_SEGMENT_BITS` items.
    pub(crate) const FIRST_SEGMENT_BITS: u32 = 6;
    /// A segment is numbered by the leading bit of its indexes, so the first few numbers are not in use; nor are the
    /// last, since no array is that long.
    pub(crate) const SEGMENT_COUNT: usize = u32::BITS as usize;
    /// Nodes are retired and refilled in batches of at least this many.
    pub(crate) const BATCH: u32 = 64;
    /// A free node leads to the node this many places further on, which is prefetched when the free node is taken.
    /// (Four numbers and a pointer are what crossbeam-epoch defers without an allocation.)
    pub(crate) const STRANDS: usize = 4;
    /// Lists in which nodes ripen. A thread's ordinal chooses its list; the bits that a node's number leaves free can
    /// name this many.
    pub(crate) const RIPE_LISTS: usize = 16;
    /// Batches that may wait for their grace period, besides as many nodes as are in use, before a caller steps aside.
    pub(crate) const WAITING_BATCHES: u64 = 16;
    /// Hints in one mailbox segment: with its header just under 8 KiB. Few under Miri, so that tests fill segments.
    pub(crate) const MAILBOX_SEGMENT: usize = if cfg!(miri) { 12 } else { 1020 };
    /// Pairs of cells in a line of the index; the last has one cell only. With the meta word they fill a cache line.
    pub(crate) const PAIRS: usize = 7;
    /// With more timers than this per line, the index is full.
    pub(crate) const LINE_LOAD: u32 = 10;
    /// There are `1 << NODES_TO_LINE_BITS` node numbers to each line. A caller whose node has a greater number doubles
    /// the index itself.
    pub(crate) const NODES_TO_LINE_BITS: u32 = 4;
}

/// `std`'s cell behind loom's interface, so that a model sees each access to the data.
#[derive(Debug, Default)]
#[repr(transparent)]
pub(crate) struct UnsafeCell<T>(std::cell::UnsafeCell<T>);

impl<T> UnsafeCell<T> {
    pub(crate) const fn new(data: T) -> Self {
        Self(std::cell::UnsafeCell::new(data))
    }

    pub(crate) fn with<R>(&self, read: impl FnOnce(*const T) -> R) -> R {
        read(self.0.get())
    }

    pub(crate) fn with_mut<R>(&self, write: impl FnOnce(*mut T) -> R) -> R {
        write(self.0.get())
    }
}

/// A SeqCst fence: in the single order of all SeqCst operations, this thread's later SeqCst loads come after what it
/// has acquired. (A model needs no fence for that, and has none: see `loom-tests/README.md`.)
#[inline]
pub(crate) fn fence_after_acquire() {
    fence(Ordering::SeqCst);
}

/// Asks the processor to load the cache line at `address`. This is only a hint, so any address will do.
#[inline]
pub(crate) fn prefetch<T>(address: *const T) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: a prefetch never faults and changes nothing that a program can observe.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(address.cast());
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = address;
}

pub(crate) mod futex;
pub(crate) mod memory;
pub(crate) mod slot;

pub(crate) use crate::event_count::EventCount;
