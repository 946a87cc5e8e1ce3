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

    /// Lets other threads run. Meanwhile the calling thread is not pinned: what it could reach may be gone afterwards.
    /// Closures that any thread has deferred may run in here. If the thread cannot unpin, since it holds another guard,
    /// this returns false and has no effect.
    pub(crate) fn step_aside(guard: &mut Guard) -> bool {
        // A thread whose thread-locals are gone looks as if it were not pinned, and its guard cannot be pinned again.
        if !is_pinned() {
            return false;
        }
        let has_left = guard.repin_after(|| {
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
    /// A caller doubles the index itself once it is more than this many times as full.
    pub(crate) const CROWDED: u32 = 2;
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

pub(crate) mod memory;
pub(crate) mod slot;

#[cfg(target_os = "linux")]
pub(crate) use crate::event_count::EventCount;
#[cfg(not(target_os = "linux"))]
pub(crate) use parking::EventCount;

/// The system's part of [`EventCount`].
#[cfg(target_os = "linux")]
pub(crate) mod futex {
    use super::AtomicU32;
    use rustix::thread::futex;
    use std::time::Duration;

    /// Sleeps while `count` equals `ticket`, at most for `timeout`; may also return for no reason.
    pub(crate) fn wait(count: &AtomicU32, ticket: u32, timeout: Option<Duration>) {
        let timeout = timeout.and_then(|timeout| futex::Timespec::try_from(timeout).ok());
        // An error means the time-out, a signal, or a ticket that is out of date: the caller looks again anyway.
        let _ = futex::wait(count, futex::Flags::PRIVATE, ticket, timeout.as_ref());
    }

    pub(crate) fn wake(count: &AtomicU32) {
        // An error can only mean that nobody sleeps.
        let _ = futex::wake(count, futex::Flags::PRIVATE, 1);
    }
}

/// On other systems the sleeper is a parked thread; with a condition variable, callers would take a lock.
/// `std` may skip the system call when another `unpark` is under way, so the sleep is capped:
/// a notification that is hidden behind a stalled one costs at most [`parking::CAP`].
#[cfg(not(target_os = "linux"))]
mod parking {
    use super::{AtomicU32, Ordering};
    use std::sync::OnceLock;
    use std::thread::Thread;
    use std::time::Duration;

    /// The longest uninterrupted sleep.
    pub(crate) const CAP: Duration = Duration::from_millis(100);

    #[derive(Debug, Default)]
    pub(crate) struct EventCount {
        count: AtomicU32,
        sleeper: OnceLock<Thread>,
    }

    impl EventCount {
        /// The ticket to hand to [`EventCount::wait`]; to be taken before the last look for work.
        pub(crate) fn ticket(&self) -> u32 {
            let _ = self.sleeper.set(std::thread::current());
            // Acquire: pairs with the Release in `notify`: a thread that sees a notification sees the work behind it.
            self.count.load(Ordering::Acquire)
        }

        /// Wakes the sleeper; any later `wait` with an earlier ticket returns at once.
        pub(crate) fn notify(&self) {
            // Release: publishes the caller's work to the Acquire load in `ticket`.
            self.count.fetch_add(1, Ordering::Release);
            if let Some(sleeper) = self.sleeper.get() {
                sleeper.unpark();
            }
        }

        /// Sleeps until there is a notification later than `ticket`, or for `timeout`; may also return for no reason.
        pub(crate) fn wait(&self, ticket: u32, timeout: Option<Duration>) {
            if self.ticket() == ticket {
                std::thread::park_timeout(timeout.map_or(CAP, |timeout| timeout.min(CAP)));
            }
        }
    }
}
