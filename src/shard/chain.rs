//! Chains of free nodes.
//!
//! A node that has left the index has room for one link. If that link led to the next node, a thread that takes one
//! node after another would wait for each, since they lie in no order in memory. So it leads to the node [`STRANDS`]
//! places further on, and the chain itself names the first ones: while one node is taken, those that follow are on
//! their way into the cache.

use crate::sync::size::STRANDS;

/// A stack of nodes: the first ones, 32 bits each, the very first in the lowest bits; 0 where there are fewer.
///
/// One number, not an array: an array would be moved in pieces, across which the next move reads, and processors wait
/// for that.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Chain(u128);

const LAST: u32 = u32::BITS * (STRANDS as u32 - 1);
const _: () = assert!(LAST < u128::BITS, "there is room for all");

impl Chain {
    /// The chain that begins with these nodes, in order.
    pub(super) fn of(nodes: [u32; STRANDS]) -> Self {
        Self(nodes.iter().rev().fold(0, |chain, &node| chain << u32::BITS | u128::from(node)))
    }

    /// Puts a node in front. Returns the node that its link must lead to, or 0.
    #[inline]
    pub(super) fn push(&mut self, node: u32) -> u32 {
        let pushed_out = (self.0 >> LAST) as u32;
        self.0 = (self.0 ^ u128::from(pushed_out) << LAST) << u32::BITS | u128::from(node);
        pushed_out
    }

    #[inline]
    pub(super) fn first(&self) -> Option<u32> {
        Some(self.0 as u32).filter(|&node| node != 0)
    }

    /// Takes the first node out, whose link leads to `further_on`.
    #[inline]
    pub(super) fn pop(&mut self, further_on: u32) {
        self.0 = self.0 >> u32::BITS | u128::from(further_on) << LAST;
    }

    /// The first nodes, in order; 0 where there are fewer.
    pub(super) fn nodes(self) -> [u32; STRANDS] {
        std::array::from_fn(|place| (self.0 >> (u32::BITS * place as u32)) as u32)
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
