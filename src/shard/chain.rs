//! Chains of free nodes.
//!
//! A node that has left the index has room for one link. If that link led to the next node, a thread that takes one
//! node after another would wait for each, since they lie in no order in memory. So it leads to the node [`STRANDS`]
//! places further on, and the chain itself names the first ones: while one node is taken, those that follow are on
//! their way into the cache.

use crate::sync::size::STRANDS;
use std::mem;

/// A stack of nodes: the first ones, as a ring; 0 where there are fewer.
///
/// A ring, since what is not moved is not read across what was just written, for which processors wait.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Chain {
    ring: [u32; STRANDS],
    /// The place of the very first, modulo the ring's length.
    first: u32,
}

const _: () = assert!(STRANDS.is_power_of_two(), "places go on at 0 after the greatest number");

impl Chain {
    /// The chain that begins with these nodes, in order.
    pub(super) fn of(nodes: [u32; STRANDS]) -> Self {
        Self { ring: nodes, first: 0 }
    }

    /// The place of a node, by its number from the first one on.
    #[inline]
    fn place(&self, number: u32) -> usize {
        self.first.wrapping_add(number) as usize & (STRANDS - 1)
    }

    /// Puts a node in front. Returns the node that its link must lead to, or 0.
    #[inline]
    pub(super) fn push(&mut self, node: u32) -> u32 {
        self.first = self.first.wrapping_sub(1);
        mem::replace(&mut self.ring[self.place(0)], node)
    }

    #[inline]
    pub(super) fn first(&self) -> Option<u32> {
        Some(self.ring[self.place(0)]).filter(|&node| node != 0)
    }

    /// Takes the first node out, whose link leads to `further_on`.
    #[inline]
    pub(super) fn pop(&mut self, further_on: u32) {
        self.ring[self.place(0)] = further_on;
        self.first = self.first.wrapping_add(1);
    }

    /// The first nodes, in order; 0 where there are fewer.
    pub(super) fn nodes(&self) -> [u32; STRANDS] {
        std::array::from_fn(|number| self.ring[self.place(number as u32)])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NODES: u32 = 40;
    /// Where each node leads.
    type Links = [u32; NODES as usize + 1];

    fn push(chain: &mut Chain, links: &mut Links, node: u32) {
        links[node as usize] = chain.push(node);
    }

    fn pop(chain: &mut Chain, links: &Links) -> Option<u32> {
        let node = chain.first()?;
        chain.pop(links[node as usize]);
        Some(node)
    }

    #[test]
    fn nodes_come_out_last_in_first_out() {
        for len in 0..=NODES {
            let (mut chain, mut links) = (Chain::default(), [0; NODES as usize + 1]);
            (1..=len).for_each(|node| push(&mut chain, &mut links, node));
            assert!(std::iter::from_fn(|| pop(&mut chain, &links)).eq((1..=len).rev()));
        }
    }

    #[test]
    fn pushes_and_pops_may_alternate() {
        let (mut chain, mut links, mut model) = (Chain::default(), [0; NODES as usize + 1], Vec::new());
        for step in 0..1000 {
            let free = (1..=NODES).find(|node| !model.contains(node));
            match free.filter(|_| step * 7 % 5 < 3) {
                Some(node) => {
                    push(&mut chain, &mut links, node);
                    model.push(node);
                }
                None => assert_eq!(pop(&mut chain, &links), model.pop()),
            }
            assert_eq!(chain.first(), model.last().copied());
        }
    }

    #[test]
    fn a_chain_is_made_anew_of_its_first_nodes() {
        for len in 0..=NODES {
            let (mut chain, mut links) = (Chain::default(), [0; NODES as usize + 1]);
            (1..=len).for_each(|node| push(&mut chain, &mut links, node));
            assert!(chain.nodes().into_iter().zip(0..).all(|(node, place)| node == len.saturating_sub(place)));
            let mut chain = Chain::of(chain.nodes());
            assert!(std::iter::from_fn(|| pop(&mut chain, &links)).eq((1..=len).rev()));
        }
    }

    #[test]
    fn a_link_leads_some_places_further_on() {
        let (mut chain, mut links) = (Chain::default(), [0; NODES as usize + 1]);
        (1..=NODES).for_each(|node| push(&mut chain, &mut links, node));
        assert!((1..=NODES).all(|node| links[node as usize] == node.saturating_sub(STRANDS as u32)));
    }
}
