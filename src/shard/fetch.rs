//! Going through many timers that lie in no order: what is touched of each is prefetched some steps ahead.
//!
//! The end of a timer takes three accesses, each perhaps a cache miss: to its head with the hash, to its tail, and then
//! to the line of that hash. If timers were taken one by one, the processor would wait for each access. So groups of
//! timers are under way side by side, each group a step behind the one before it.
//!
//! (Groups, not single timers: an exchange in a visit waits for all that was begun before it, and so for the page of
//! what was prefetched last. Within a group those waits overlap.)

use super::{Access, ClaimedNode, Hint, Shard};

/// Timers in a group: each step is taken for all of them in a row.
pub(crate) const FETCH_GROUP: usize = 8;

/// Calls `step` with the number of a step and a place, for each of `steps` steps and each place below `len`. Each step
/// takes the places in order, each place gets its steps in order, and all goes by groups.
#[inline(always)]
fn in_groups(len: usize, steps: usize, mut step: impl FnMut(usize, usize)) {
    for round in 0..len.div_ceil(FETCH_GROUP) + steps - 1 {
        for number in 0..steps {
            let begin = round.checked_sub(number).map_or(len, |group| group * FETCH_GROUP);
            (begin..len.min(begin + FETCH_GROUP)).for_each(|place| step(number, place));
        }
    }
}

impl<K: Eq + Send + Sync + 'static, V: Send + 'static> Shard<K, V> {
    /// Calls `visit` for each hint, in order, when the head of its node should be in the cache.
    pub(crate) fn visit_hints(&self, hints: &[Hint], mut visit: impl FnMut(Hint)) {
        in_groups(hints.len(), 2, |step, place| match step {
            0 => self.slab.prefetch(hints[place].node()),
            _ => visit(hints[place]),
        });
    }

    /// Calls `visit` for each item, in order, when what the end of its node's timer touches should be in the cache.
    pub(crate) fn visit_ahead<T: Copy>(&self, items: &[T], node: impl Fn(T) -> u32, mut visit: impl FnMut(T)) {
        in_groups(items.len(), 3, |step, place| match step {
            0 => self.prefetch_node(node(items[place])),
            1 => self.fetch_line(node(items[place])),
            _ => visit(items[place]),
        });
    }

    /// Finishes claimed timers whose values were taken just now. Leaves `nodes` empty. `drop_ripe_keys` follows.
    pub(crate) fn finish_all(&self, nodes: &mut Vec<ClaimedNode>, access: &Access) {
        let mut left = nodes.drain(..);
        let fetch_lines =
            |nodes: &[ClaimedNode]| nodes.iter().take(FETCH_GROUP).for_each(|node| self.fetch_line(node.node()));
        fetch_lines(left.as_slice());
        while left.len() > 0 {
            fetch_lines(left.as_slice().get(FETCH_GROUP..).unwrap_or(&[]));
            left.by_ref().take(FETCH_GROUP).for_each(|node| self.finish(node, access));
        }
    }

    /// Prefetches the line of a node's key. If the timer has ended and the node has gone meanwhile, this is some line
    /// or other: any number has one.
    fn fetch_line(&self, node: u32) {
        self.prefetch_line_of(self.slab.head(node).hash());
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use super::*;

    #[test]
    fn each_step_is_taken_at_each_place_once_and_in_order() {
        for (len, steps) in (0..5 * FETCH_GROUP).flat_map(|len| [1, 2, 3].map(|steps| (len, steps))) {
            let (mut next, mut by_step) = (vec![0; len], vec![Vec::new(); steps]);
            in_groups(len, steps, |step, place| {
                assert_eq!(next[place], step);
                next[place] += 1;
                by_step[step].push(place);
            });
            assert!(by_step.into_iter().all(|places| places.into_iter().eq(0..len)), "{len} places, {steps} steps");
        }
    }

    #[test]
    fn a_step_is_some_places_ahead_of_the_next() {
        let mut order = Vec::new();
        in_groups(3 * FETCH_GROUP, 2, |step, place| order.push((step, place)));
        let at = |what| order.iter().position(|&taken| taken == what);
        assert!(
            (0..3 * FETCH_GROUP)
                .all(|place| at((1, place)).expect("it is taken") - at((0, place)).expect("so is this") >= FETCH_GROUP)
        );
    }
}
