//! Going through many timers in no order: what their ends touch is asked for some steps ahead.
//!
//! The end of a timer takes three accesses that follow from one another, each perhaps a cache miss: its head, its tail with the
//! hash, and the line of that. Taken one by one, the processor would wait for each. So
//! those of several timers are under way side by side, each timer a few steps behind the one before it.

use super::Shard;
use super::slab::{Head, Tail};
use crate::sync::prefetch;

/// Timers between two accesses to the same one.
const STAGE: usize = 8;
/// Timers on their way at a time.
const STEPS: usize = 3 * STAGE;

/// What is known of a timer whose turn comes soon; only a guess, others may end it meanwhile.
struct Coming<'a, K, V> {
    head: Option<&'a Head<K>>,
    /// If it was pending.
    tail: Option<&'a Tail<V>>,
}

impl<K: Eq + Send + Sync + 'static, V: Send + 'static> Shard<K, V> {
    /// Calls `visit` for each item, in their order, when what the end of its `node`'s timer touches should be in the cache.
    pub(crate) fn visit_ahead<T: Copy>(&self, items: &[T], node: impl Fn(T) -> u32, mut visit: impl FnMut(T)) {
        let mut coming = [const { Coming { head: None, tail: None } }; STEPS];
        for step in 0..items.len() + STEPS {
            // Those that are not there yet have numbers beyond all others.
            let behind = |stage: usize| items.get(step.wrapping_sub(stage * STAGE)).copied();
            let at = |stage: usize| step.wrapping_sub(stage * STAGE) % STEPS;
            if let Some(item) = behind(STEPS / STAGE) {
                visit(item);
            }
            if let Some(item) = behind(0) {
                coming[at(0)] = self.fetch_head(node(item));
            }
            if let Some(item) = behind(1) {
                self.fetch_tail(node(item), &mut coming[at(1)]);
            }
            if behind(2).is_some() {
                self.fetch_line(&coming[at(2)]);
            }
        }
    }

    fn fetch_head(&self, node: u32) -> Coming<'_, K, V> {
        let head = self.slab.head(node);
        prefetch(head);
        Coming { head: Some(head), tail: None }
    }

    fn fetch_tail<'a>(&'a self, node: u32, coming: &mut Coming<'a, K, V>) {
        if let Some(head) = coming.head
            && head.word.load().is_pending()
        {
            let tail = self.slab.tail(node);
            prefetch(tail);
            coming.tail = Some(tail);
        }
    }

    fn fetch_line(&self, coming: &Coming<'_, K, V>) {
        // If the timer has ended meanwhile, that may be no hash any more; some line is behind any number.
        let _ = coming.tail.and_then(|tail| self.spot_if_indexed(tail.hash()));
    }
}
