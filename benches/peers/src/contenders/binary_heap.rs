//! `BinaryHeap`, which cannot take anything out of its middle: what was cancelled or moved stays until it comes up, so
//! memory grows with the rate of calls times the delay.

use super::locked::{Locked, Queue, Ticket};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

pub(crate) type Heap<S> = Locked<BinaryHeap<Reverse<Ticket>>, S>;

impl Queue for BinaryHeap<Reverse<Ticket>> {
    const REMOVE: Option<fn(&mut Self, Ticket)> = None;
    fn push(&mut self, ticket: Ticket) {
        self.push(Reverse(ticket));
    }
    fn first(&self) -> Option<Ticket> {
        self.peek().map(|&Reverse(ticket)| ticket)
    }
    fn pop(&mut self) -> Option<Ticket> {
        self.pop().map(|Reverse(ticket)| ticket)
    }
}
