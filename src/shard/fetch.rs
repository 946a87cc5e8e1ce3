//! Going through many timers in no order: what their ends touch is asked for some steps ahead.
//!
//! The end of a timer takes three accesses that follow from one another, each perhaps a cache miss: its head, its tail with the
//! hash, and the line of that. Taken one by one, the processor would wait for each. So groups of timers are under way side by side,
//! each group a step behind the one before it.
//!
//! (Groups, not single timers: what a visit exchanges waits for all that was begun before, and so for the page of what was asked for
//! last. In a group those waits overlap.)

use super::Shard;
use super::slab::{Head, Tail};
use crate::sync::prefetch;

/// Timers of which the same is asked for in a row.
const GROUP: usize = 8;
/// Groups on their way, the one that is visited included.
const STAGES: usize = 4;

/// What is known of a timer whose turn comes soon; only a guess, others may end it meanwhile.
struct Coming<'a, K, V> {
    head: &'a Head<K>,
    /// If it was pending.
    tail: Option<&'a Tail<V>>,
}

impl<K: Eq + Send + Sync + 'static, V: Send + 'static> Shard<K, V> {
    /// Calls `visit` for each item, in their order, when what the end of its `node`'s timer touches should be in the cache.
    pub(crate) fn visit_ahead<T: Copy>(&self, items: &[T], node: impl Fn(T) -> u32, mut visit: impl FnMut(T)) {
        let mut coming = [const { None }; STAGES * GROUP];
        let at = |place: usize| place % (STAGES * GROUP);
        for step in 0..items.len().div_ceil(GROUP) + STAGES - 1 {
            // The places of the group that was begun so many steps ago, if there is one.
            let group = |ago: usize| {
                let begin = step.checked_sub(ago).map_or(items.len(), |number| number * GROUP);
                begin..items.len().min(begin + GROUP)
            };
            for place in group(0) {
                let head = self.slab.head(node(items[place]));
                prefetch(head);
                coming[at(place)] = Some(Coming { head, tail: None });
            }
            for place in group(1) {
                if let Some(Coming { head, tail }) = &mut coming[at(place)]
                    && head.word.load().is_pending()
                {
                    prefetch(*tail.insert(self.slab.tail(node(items[place]))));
                }
            }
            for place in group(2) {
                if let Some(Coming { tail: Some(tail), .. }) = coming[at(place)] {
                    // If the timer has ended meanwhile, that may be no hash any more; some line is behind any number.
                    let _ = self.spot_if_indexed(tail.hash());
                }
            }
            group(3).for_each(|place| visit(items[place]));
        }
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use super::super::period::Repeats;
    use super::super::{Access, Due, Tick};
    use super::*;

    #[test]
    fn each_is_visited_once_and_in_their_order() {
        let shard = Shard::<u32, ()>::new(1, 64, Tick(0));
        let ordinal = crate::thread::ordinal();
        let mut access = Access::new(&ordinal);
        // Every third is cancelled: of a timer that has ended, neither tail nor line is asked for.
        let nodes: Vec<u32> = (0..(STAGES as u32 + 2) * GROUP as u32)
            .map(|key| {
                let (spot, due) = (shard.spot(key), Due { tick: Some(Tick(7)), now: Tick(0) });
                let started = shard.schedule(spot, key, (), due, Repeats::Never, &mut access);
                let node = started.unwrap_or_else(|_| panic!("there is room")).identity.node;
                assert!(key % 3 != 0 || shard.cancel(spot, None, |other| *other == key, &access).is_some());
                node
            })
            .collect();
        for len in 0..nodes.len() {
            let mut visited = Vec::new();
            shard.visit_ahead(&nodes[..len], |node| node, |node| visited.push(node));
            assert_eq!(visited, nodes[..len]);
        }
    }
}
