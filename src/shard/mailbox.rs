//! How hints get from any thread to the worker: a lock-free, unbounded queue with many producers and one consumer.
//!
//! A stripe is a chain of segments of slots. A producer publishes a hint by **one** compare-exchange of the first empty
//! slot from 0 to the hint; nothing is reserved beforehand. So the filled slots are always a prefix, and a producer
//! that stalls anywhere hides nobody else's hint. (In a queue where producers reserve a slot and then write to it, it
//! would.) Slots are never emptied, and segments are used once, so there is no ABA. A segment is reclaimed by the epoch
//! when the consumer has left it.
//!
//! Callers are spread over several stripes, chosen per thread, merely to keep them off each other's cache lines.
//! (Michael and Scott, "Simple, Fast, and Practical Non-Blocking and Blocking Concurrent Queue Algorithms",
//! PODC 1996, with an array of slots in place of a node.)

use super::hint::Hint;
use super::ordinal::Ordinal;
use crate::sync::size::MAILBOX_SEGMENT;
use crate::sync::{AtomicPtr, AtomicU32, AtomicU64, Ordering, epoch::Guard};
use crossbeam_utils::CachePadded;
/// Not from `sync`: what is done with threads does not depend on these, so a model need not explore them.
use std::sync::atomic::{AtomicBool, AtomicU64 as Count};
use std::{iter, ptr};

/// The worker is called when it should drain so many segments of a stripe. A call costs the caller as much as dozens of
/// pushes; and while the worker drains, both touch the same slots.
const CALL_EACH: u64 = 4;
/// But at first for each segment: the worker also has more memory prepared ahead of the callers, and while a shard is
/// small, there is little in reserve.
const YOUNG: u64 = 64;

#[derive(Debug)]
struct Segment {
    /// How many segments came before it in its stripe.
    number: u64,
    next: AtomicPtr<Segment>,
    /// Roughly the first empty slot: where a producer begins to look, never more than a shortcut.
    cursor: AtomicU32,
    slots: [AtomicU64; MAILBOX_SEGMENT],
}

impl Segment {
    fn allocate(number: u64) -> *mut Self {
        Box::into_raw(Box::new(Self {
            number,
            next: AtomicPtr::new(ptr::null_mut()),
            cursor: AtomicU32::new(0),
            slots: std::array::from_fn(|_| AtomicU64::new(0)),
        }))
    }
}

/// What a push left behind.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Pushed {
    /// Nothing of note.
    Stored,
    /// The hint filled a segment, and by now the worker should drain the stripe, whatever the hints' ticks.
    DrainDue,
}

/// The producers' end of one stripe.
#[derive(Debug, Default)]
struct Tail {
    /// Null until the first push.
    segment: AtomicPtr<Segment>,
}

impl Tail {
    /// How many hints were pushed so far.
    fn pushed(&self, _guard: &Guard) -> u64 {
        // Acquire, here and below: as in `push` and `next`.
        let mut current = self.segment.load(Ordering::Acquire);
        let mut pushed = 0;
        while !current.is_null() {
            // SAFETY: as in `push`.
            let segment = unsafe { &*current };
            // Relaxed: a count. The filled slots are a prefix.
            let filled = segment.slots.partition_point(|slot| slot.load(Ordering::Relaxed) != 0);
            pushed = segment.number * MAILBOX_SEGMENT as u64 + filled as u64;
            current = segment.next.load(Ordering::Acquire);
        }
        pushed
    }
}

#[derive(Debug)]
pub(crate) struct Mailbox {
    tails: Box<[CachePadded<Tail>]>,
    /// The stripes that anybody has pushed to so far, or is about to, one bit each: the consumer looks at no others.
    used: AtomicU64,
    /// The segment of each stripe that the consumer reads; only the consumer moves it on.
    heads: Box<[AtomicPtr<Segment>]>,
    /// The consumer's end was handed out: two would free each segment twice.
    has_consumer: AtomicBool,
    /// How many hints were drained so far.
    drained: CachePadded<Count>,
}

/// The consumer's end: where it will read next in each stripe. There is one, owned by the worker.
#[derive(Debug)]
pub(crate) struct Consumer {
    positions: Vec<Position>,
}

#[derive(Clone, Copy, Debug)]
struct Position {
    segment: *mut Segment,
    slot: usize,
}

// SAFETY: the pointers are to segments that any thread may read; see `Mailbox::next` for their lifetime.
unsafe impl Send for Consumer {}

impl Mailbox {
    pub(crate) fn new(stripe_count: usize) -> Self {
        assert!(stripe_count <= u64::BITS as usize, "there is a bit for each stripe");
        Self {
            tails: (0..stripe_count).map(|_| CachePadded::default()).collect(),
            used: AtomicU64::new(0),
            heads: (0..stripe_count).map(|_| AtomicPtr::new(ptr::null_mut())).collect(),
            has_consumer: AtomicBool::new(false),
            drained: CachePadded::default(),
        }
    }

    /// The consumer's end.
    ///
    /// # Panics
    /// At the second call.
    pub(crate) fn consumer(&self) -> Consumer {
        // Relaxed: it publishes nothing; the exchange picks one call.
        assert!(!self.has_consumer.swap(true, Ordering::Relaxed), "a mailbox has one consumer");
        let start = Position { segment: ptr::null_mut(), slot: 0 };
        Consumer { positions: vec![start; self.heads.len()] }
    }

    /// Adds a hint. `_guard` keeps alive every segment that this call can reach.
    #[inline]
    pub(crate) fn push(&self, ordinal: &Ordinal, hint: Hint, _guard: &Guard) -> Pushed {
        let stripe = ordinal.stripe(self.tails.len());
        let tail = &self.tails[stripe].segment;
        // Acquire: pairs with the Release that published the segment.
        let mut current = tail.load(Ordering::Acquire);
        if current.is_null() {
            current = self.first_segment(stripe);
        }
        loop {
            // SAFETY: `current` was the tail while we were pinned, or comes after it in the chain. A segment is retired
            // only after the tail has left it for good, so the guard keeps it alive, and those behind it all the more.
            let segment = unsafe { &*current };
            if let Some(slot) = try_push(segment, hint) {
                let is_due = slot + 1 == MAILBOX_SEGMENT && calls_worker(segment.number);
                return if is_due { Pushed::DrainDue } else { Pushed::Stored };
            }
            let next = successor(segment);
            // Release: publishes the next segment, which we saw initialised, to the Acquire load above.
            // Relaxed on failure: another thread moved the tail; we follow the chain anyway.
            let _ = tail.compare_exchange(current, next, Ordering::Release, Ordering::Relaxed);
            current = next;
        }
    }

    /// Allocates the first segment of a stripe, or takes another thread's.
    #[cold]
    fn first_segment(&self, stripe: usize) -> *mut Segment {
        // Before the first push, since `is_drained` must not miss it. Relaxed: what makes that see a push are the
        // fences in `Alarm`, and this comes before the pusher's fence: it is the pusher's own step, or that of the
        // thread whose segment the pusher has acquired, through the tail.
        self.used.fetch_or(1 << stripe, Ordering::Relaxed);
        let segment = install(&self.heads[stripe], 0);
        // Release: publishes the segment to the Acquire load in `push`.
        // Acquire on failure: the tail is set, perhaps to a later segment already, which we have not acquired yet.
        match self.tails[stripe].segment.compare_exchange(
            ptr::null_mut(),
            segment,
            Ordering::Release,
            Ordering::Acquire,
        ) {
            Ok(_) => segment,
            Err(current) => current,
        }
    }

    /// The stripes that the consumer has to look at, in order.
    fn used(&self) -> impl Iterator<Item = usize> {
        // Relaxed: see `first_segment`.
        let mut left = self.used.load(Ordering::Relaxed);
        iter::from_fn(move || {
            let stripe = left.trailing_zeros();
            left &= left.wrapping_sub(1);
            (stripe < u64::BITS).then_some(stripe as usize)
        })
    }

    /// Hands the waiting hints to `take`, up to `limit` from each stripe: producers may be faster than the worker.
    pub(crate) fn drain(&self, consumer: &mut Consumer, limit: usize, guard: &Guard, mut take: impl FnMut(Hint)) {
        let mut count = 0;
        for stripe in self.used() {
            let position = &mut consumer.positions[stripe];
            if position.segment.is_null() {
                // Acquire: pairs with the Release in `install`.
                position.segment = self.heads[stripe].load(Ordering::Acquire);
            }
            let mut left = limit;
            while left > 0
                && let Some(hint) = self.next(stripe, position, guard)
            {
                left -= 1;
                take(hint);
            }
            count += limit - left;
        }
        if count > 0 {
            self.drained.fetch_add(count as u64, Ordering::Relaxed);
        }
    }

    /// How many hints are waiting: exact while nobody pushes or drains. O(stripes).
    pub(crate) fn depth(&self, guard: &Guard) -> u64 {
        let drained = self.drained.load(Ordering::Relaxed);
        let pushed: u64 = self.tails.iter().map(|tail| tail.pushed(guard)).sum();
        pushed.saturating_sub(drained)
    }

    /// The next hint of a stripe, if there is one.
    fn next(&self, stripe: usize, position: &mut Position, guard: &Guard) -> Option<Hint> {
        if position.segment.is_null() {
            return None;
        }
        loop {
            // SAFETY: only the consumer retires segments, and only those that it has left.
            let segment = unsafe { &*position.segment };
            if let Some(slot) = segment.slots.get(position.slot) {
                // Acquire: pairs with the Release in `try_push`: the worker sees what the caller did before its push.
                let hint = Hint::from_bits(slot.load(Ordering::Acquire))?;
                position.slot += 1;
                return Some(hint);
            }
            // Acquire: pairs with the Release in `install`.
            let next = segment.next.load(Ordering::Acquire);
            if next.is_null() {
                return None;
            }
            self.leave(stripe, position.segment, next, guard);
            *position = Position { segment: next, slot: 0 };
        }
    }

    /// Retires a segment that is full and drained.
    fn leave(&self, stripe: usize, segment: *mut Segment, next: *mut Segment, guard: &Guard) {
        let tail = &self.tails[stripe].segment;
        // The tail may lag behind: once it has left `segment`, no thread that pins from then on can reach that.
        // Relaxed: we saw the tail leave the segment before this one (or, if this is the first, we acquired a slot
        // whose author saw the tail set), so we read `segment` or a later one. If a later one, the tail has left
        // `segment` for good: it is set to that only from the one before.
        if tail.load(Ordering::Relaxed) == segment {
            // Release: publishes `next`, as in `push`. If producers move the tail on meanwhile, this sets it back, but
            // to a segment that we have not left; producers follow the chain from there.
            tail.store(next, Ordering::Release);
        }
        // Relaxed: a producer that finds this in `install` does not use it. The tail was set before, so its exchange of
        // the tail fails, and it goes on with what that holds.
        self.heads[stripe].store(next, Ordering::Relaxed);
        let segment = SendPtr(segment);
        // SAFETY: no thread that pins from now on reaches the segment: the tail, the head and the consumer have all
        // moved on. It came from `Box::into_raw` and is freed once, because the consumer leaves each segment once.
        unsafe { guard.defer_unchecked(move || drop(Box::from_raw(segment.into_inner()))) };
    }

    /// True if the consumer has nothing to drain.
    pub(crate) fn is_drained(&self, consumer: &Consumer) -> bool {
        self.used().all(|stripe| {
            let Position { segment, slot } = consumer.positions[stripe];
            // Acquire: as in `drain`.
            let segment = if segment.is_null() { self.heads[stripe].load(Ordering::Acquire) } else { segment };
            if segment.is_null() {
                return true;
            }
            // SAFETY: as in `next`.
            let segment = unsafe { &*segment };
            match segment.slots.get(slot) {
                // Relaxed here and below: nothing is read through it; `drain` acquires.
                Some(slot) => slot.load(Ordering::Relaxed) == 0,
                None => segment.next.load(Ordering::Relaxed).is_null(),
            }
        })
    }
}

/// True if the worker is called when the segment with this number is full.
fn calls_worker(number: u64) -> bool {
    number < YOUNG || (number + 1).is_multiple_of(CALL_EACH)
}

/// Publishes the hint in the segment's first empty slot, and returns which one that was; `None` if the segment is full.
#[inline]
fn try_push(segment: &Segment, hint: Hint) -> Option<usize> {
    // Acquire: observes the pushes that the cursor lets us skip (pairs with the Release below). Our next fence, in the
    // alarm, must come after the push of every hint in front of ours. Otherwise the worker, which reads slots in order,
    // might still see one of them empty, miss our hint behind it, and go to sleep while we believe it awake.
    let start = segment.cursor.load(Ordering::Acquire) as usize;
    for (index, slot) in segment.slots.iter().enumerate().skip(start) {
        // Release: publishes the caller's steps before the push to the Acquire in `next`.
        // Relaxed load and failure: a slot that we read as full before our fence, or that the thread which moved the
        // cursor read as full before its Release, is not read as empty after a later fence of the worker's. Nothing
        // else is read through a slot.
        if slot.load(Ordering::Relaxed) == 0
            && slot.compare_exchange(0, hint.to_bits(), Ordering::Release, Ordering::Relaxed).is_ok()
        {
            // Release: to the Acquire above. This may set the cursor back from where another thread has moved it; then
            // some slots are looked at twice.
            segment.cursor.store(index as u32 + 1, Ordering::Release);
            return Some(index);
        }
    }
    None
}

/// The segment after a full one; allocates it if need be.
fn successor(segment: &Segment) -> *mut Segment {
    // Acquire: pairs with the Release in `install`.
    let next = segment.next.load(Ordering::Acquire);
    if next.is_null() { install(&segment.next, segment.number + 1) } else { next }
}

/// Sets `place`, which was null, to a new segment, or returns what another thread set.
#[cold]
fn install(place: &AtomicPtr<Segment>, number: u64) -> *mut Segment {
    let fresh = Segment::allocate(number);
    // Release: publishes the empty segment to the Acquire loads of `next` and `heads`.
    // Acquire on failure: we go on with the winner's.
    match place.compare_exchange(ptr::null_mut(), fresh, Ordering::Release, Ordering::Acquire) {
        Ok(_) => fresh,
        Err(winner) => {
            // SAFETY: from `Box::into_raw` above, and never shared.
            drop(unsafe { Box::from_raw(fresh) });
            winner
        }
    }
}

/// Moves a pointer into a closure that another thread runs.
struct SendPtr(*mut Segment);
// SAFETY: a segment is made of atomics; the thread that runs the closure is the only one left to touch it.
unsafe impl Send for SendPtr {}

impl SendPtr {
    fn into_inner(self) -> *mut Segment {
        self.0
    }
}

impl Drop for Mailbox {
    fn drop(&mut self) {
        for head in &mut self.heads {
            // Relaxed: `&mut self`; whatever gave us that ordered all accesses before.
            let mut segment = head.load(Ordering::Relaxed);
            while !segment.is_null() {
                // SAFETY: the chain from the head on was not retired, no other thread can reach it any more, and each
                // segment came from `Box::into_raw`.
                let owned = unsafe { Box::from_raw(segment) };
                segment = owned.next.load(Ordering::Relaxed);
            }
        }
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use super::super::Tick;
    use super::*;
    use crate::sync::epoch::pin;

    #[test]
    #[should_panic(expected = "a mailbox has one consumer")]
    fn it_has_one_consumer() {
        let mailbox = Mailbox::new(1);
        let _first = mailbox.consumer();
        let _second = mailbox.consumer();
    }

    #[test]
    fn its_depth_counts_what_is_in_all_segments() {
        let (mailbox, ordinal, guard) = (Mailbox::new(1), crate::thread::ordinal(), &pin());
        let mut consumer = mailbox.consumer();
        let segment = MAILBOX_SEGMENT as u64;
        let (mut pushed, mut drained) = (0, 0);
        for (pushes, limit) in [(7, 0), (segment - 7, 3), (1, MAILBOX_SEGMENT - 4), (2 * segment, 0), (0, 9)] {
            (0..pushes).for_each(|_| _ = mailbox.push(&ordinal, Hint::new(Tick(9), 1), guard));
            pushed += pushes;
            mailbox.drain(&mut consumer, limit, guard, |_| drained += 1);
            assert_eq!(mailbox.depth(guard), pushed - drained);
        }
        assert_eq!((pushed, drained), (3 * segment + 1, segment + 8));
    }

    #[test]
    fn the_worker_is_called_for_each_segment_at_first_and_then_for_several() {
        let (mailbox, ordinal) = (Mailbox::new(1), crate::thread::ordinal());
        let mut consumer = mailbox.consumer();
        let segments = YOUNG + 3 * CALL_EACH;
        let mut called = Vec::new();
        for pushed in 1..=segments * MAILBOX_SEGMENT as u64 {
            let guard = &pin();
            if mailbox.push(&ordinal, Hint::new(Tick(9), 1), guard) == Pushed::DrainDue {
                assert!(pushed.is_multiple_of(MAILBOX_SEGMENT as u64));
                called.push(pushed / MAILBOX_SEGMENT as u64);
                mailbox.drain(&mut consumer, usize::MAX, guard, |_| {});
            }
        }
        let later = (YOUNG + CALL_EACH..=segments).step_by(CALL_EACH as usize);
        assert!(called.iter().copied().eq((1..=YOUNG).chain(later)), "{called:?}");
    }
}
