//! A list whose items are handed out one by one, each to one thread.
//!
//! All items are there before any thread asks for one. So one count suffices, where a queue has a mark for each place
//! as well; and a thread that is stopped holds up no other.

use std::mem::needs_drop;
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

pub(crate) struct Handout<T> {
    /// All items, including those handed out: nothing is written to them.
    items: Vec<T>,
    /// How many items were asked for; in the end perhaps a few more than there are. (Not on a cache line of its own: as
    /// a rule only one thread asks, and the alignment would make work for the allocator.)
    asked: AtomicUsize,
}

impl<T: Send> Handout<T> {
    /// For items that may be lost if they are not asked for, and that other threads may look at after they were handed
    /// out.
    pub(crate) fn new(items: Vec<T>) -> Self {
        const { assert!(!needs_drop::<T>(), "an item would be dropped here and by whoever has it") };
        Self { items, asked: AtomicUsize::new(0) }
    }

    /// How many items have not been asked for.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        // Relaxed: a count.
        self.items.len().saturating_sub(self.asked.load(Relaxed))
    }

    /// The items from `place` on: only to be looked at.
    #[inline]
    pub(crate) fn from(&self, place: usize) -> &[T] {
        &self.items[place..]
    }

    /// The next item and its place, for this caller alone.
    #[inline]
    pub(crate) fn take(&self) -> Option<(usize, T)> {
        // Once all items are handed out, asking is not counted: so the count never wraps.
        if self.len() == 0 {
            return None;
        }
        // Relaxed: a thread that has the list has its items; the count only says which is whose.
        let place = self.asked.fetch_add(1, Relaxed);
        let item = self.items.get(place)?;
        // SAFETY: no two calls get the same place from the count, so the item is moved out once; what stays has nothing
        // to drop.
        Some((place, unsafe { ptr::read(item) }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Barrier;
    use std::thread;

    #[test]
    fn items_come_in_their_order() {
        let list = Handout::new(vec!['a', 'b', 'c']);
        assert_eq!((list.len(), list.take(), list.len()), (3, Some((0, 'a')), 2));
        assert_eq!([list.take(), list.take(), list.take()], [Some((1, 'b')), Some((2, 'c')), None]);
        assert_eq!(list.from(1), ['b', 'c']);
    }

    #[test]
    fn who_asks_in_vain_changes_nothing() {
        let list = Handout::new(vec![1]);
        assert_eq!(list.take(), Some((0, 1)));
        assert!((0..10).all(|_| list.take().is_none() && list.len() == 0));
        assert_eq!(list.asked.load(Relaxed), 1);
    }

    #[test]
    fn each_goes_to_one_thread() {
        const ITEMS: usize = 100_000;
        let mut rounds_with_company = 0;
        // Until the two have met often enough, even on a busy machine.
        while rounds_with_company < 20 {
            let (list, start) = (Handout::new((0..ITEMS).collect()), Barrier::new(2));
            let take_all = || {
                start.wait();
                let mut taken = Vec::new();
                while let Some((_, item)) = list.take() {
                    taken.push(item);
                }
                taken
            };
            let [mut taken, others] = thread::scope(|scope| {
                [scope.spawn(take_all), scope.spawn(take_all)].map(|thread| thread.join().expect("no panic"))
            });
            rounds_with_company += u32::from(!taken.is_empty() && !others.is_empty());
            taken.extend(others);
            taken.sort_unstable();
            assert!(taken.into_iter().eq(0..ITEMS));
        }
    }
}
