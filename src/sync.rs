//! Everything of `std`, crossbeam and the operating system that the lock-free core in `shard/` stands on.
//!
//! `shard/` shares data between threads through nothing else (but figures, on which no correctness hangs), so the models in
//! `loom-tests/` compile the very same files against a module of this shape that is made of loom's types
//! (`loom-tests/support/sync.rs`).

pub(crate) use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering, fence};
/// Not for `shard/`: for those who wait for callbacks.
pub(crate) use std::sync::{Condvar, Mutex};

/// Memory that is reclaimed once nobody can still be looking at it.
pub(crate) mod epoch {
    pub(crate) use crossbeam_epoch::{Guard, pin};

    /// Lets other threads run. Meanwhile the calling one is not present: what it could reach may be gone afterwards. Whatever anybody
    /// has deferred may run in here. False, and nothing done, if the thread cannot leave: it holds another guard.
    pub(crate) fn step_aside(guard: &mut Guard) -> bool {
        // A thread in its last breath looks as if it were not present; and its guard cannot be pinned again.
        if !crossbeam_epoch::is_pinned() {
            return false;
        }
        let has_left = guard.repin_after(|| {
            let has_left = !crossbeam_epoch::is_pinned();
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

/// Sizes that a model must shrink to stay explorable.
pub(crate) mod size {
    /// The first segment of a growing array holds `1 << FIRST_SEGMENT_BITS` items.
    pub(crate) const FIRST_SEGMENT_BITS: u32 = 6;
    /// A segment is known by the leading bit of its indexes, so the first few are not in use; nor are the last, since no array is as long.
    pub(crate) const SEGMENT_COUNT: usize = u32::BITS as usize;
    /// Nodes are retired and refilled in batches of this many at least.
    pub(crate) const BATCH: u32 = 64;
    /// A free node leads to the one so many places further on; while it is taken, that one is fetched. (Four numbers and a pointer are
    /// what crossbeam-epoch defers without an allocation.)
    pub(crate) const STRANDS: usize = 4;
    /// Lists in which nodes ripen, each for the threads whose ordinals choose it; as many as the bits name that a node's number leaves.
    pub(crate) const RIPE_LISTS: usize = 16;
    /// So many batches may wait for their grace period, besides as many nodes as are in use, before a caller steps aside for that.
    pub(crate) const WAITING_BATCHES: u64 = 16;
    /// Hints in one mailbox segment: with its header just under 8 KiB. Few under Miri, so that tests reach a segment's end.
    pub(crate) const MAILBOX_SEGMENT: usize = if cfg!(miri) { 12 } else { 1020 };
    /// Two cells of an index's line each, but the last, which has one; the meta word and these are one cache line.
    pub(crate) const PAIRS: usize = 7;
    /// So many timers to a line are enough.
    pub(crate) const LINE_LOAD: u32 = 10;
    /// The index may be so many times as full as it should be before a caller sees to it.
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

/// A SeqCst fence: this thread's SeqCst loads from now on come after what it has acquired, in the order of all such operations. (A model
/// needs none for that, and has none: `loom-tests/README.md`.)
#[inline]
pub(crate) fn fence_after_acquire() {
    fence(Ordering::SeqCst);
}

/// Asks the processor to load the line at `address`; only a hint, any address will do.
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
pub(crate) use crate::event::Event;
#[cfg(not(target_os = "linux"))]
pub(crate) use parking::Event;

/// The system's part of [`Event`].
#[cfg(target_os = "linux")]
pub(crate) mod futex {
    use super::AtomicU32;
    use rustix::thread::futex;
    use std::time::Duration;

    /// Sleeps while `count` is `ticket`, until `timeout`, or now and then for no reason.
    pub(crate) fn wait(count: &AtomicU32, ticket: u32, timeout: Option<Duration>) {
        let timeout = timeout.and_then(|timeout| futex::Timespec::try_from(timeout).ok());
        // Errors are the time-out, a signal, or a ticket that is out of date: the caller looks again anyway.
        let _ = futex::wait(count, futex::Flags::PRIVATE, ticket, timeout.as_ref());
    }

    pub(crate) fn wake(count: &AtomicU32) {
        // An error can only mean that nobody sleeps.
        let _ = futex::wake(count, futex::Flags::PRIVATE, 1);
    }
}

/// Elsewhere: a condition variable would make callers take a lock, so the sleeper is a parked thread.
/// `std` may skip the system call when another `unpark` is under way, hence the sleep is capped:
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
    pub(crate) struct Event {
        count: AtomicU32,
        sleeper: OnceLock<Thread>,
    }

    impl Event {
        /// The ticket to hand to [`Event::wait`]; to be taken before looking for work for the last time.
        pub(crate) fn ticket(&self) -> u32 {
            let _ = self.sleeper.set(std::thread::current());
            // Acquire: whoever sees a notification also sees the work that it was sent for.
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

        /// Sleeps until a notification since `ticket`, until `timeout`, or now and then for no reason.
        pub(crate) fn wait(&self, ticket: u32, timeout: Option<Duration>) {
            if self.ticket() == ticket {
                std::thread::park_timeout(timeout.map_or(CAP, |timeout| timeout.min(CAP)));
            }
        }
    }
}
