//! `BTreeMap` by deadline and key. The set is a map to nothing; the values are stored with the keys.

use super::locked::{Locked, Queue, Ticket};
use std::collections::BTreeSet;

pub(crate) type Tree<S> = Locked<BTreeSet<Ticket>, S>;

impl Queue for BTreeSet<Ticket> {
    const REMOVE: Option<fn(&mut Self, Ticket)> = Some(|tickets, ticket| {
        tickets.remove(&ticket);
    });
    fn push(&mut self, ticket: Ticket) {
        self.insert(ticket);
    }
    fn first(&self) -> Option<Ticket> {
        self.first().copied()
    }
    fn pop(&mut self) -> Option<Ticket> {
        self.pop_first()
    }
}
