//! The places of a [`Wheel`](super::Wheel)'s values: a slab whose keys are never valid twice.
//!
//! A place counts how often it was left. A key carries the count it was made with, so it fits the
//! place only until that value leaves. When the count is used up the place is retired: it costs its
//! memory for good, once in 2^32 uses.
//!
//! It also counts its tickets: each value has one, and another one each time that it is moved. Only
//! the last one counts. (That count may wrap around: a ticket that does not count is swept out of the
//! wheel long before 2^32 others have followed.)

use super::{Key, Ticket};

/// What is in a place.
#[derive(Debug)]
enum Content<T> {
    Held {
        deadline: u64,
        value: T,
    },
    /// Holds the next free place.
    Free(Option<u32>),
    Retired,
}

#[derive(Debug)]
struct Place<T> {
    generation: u32,
    /// The number of the last ticket.
    ticket: u32,
    content: Content<T>,
}

impl<T> Place<T> {
    fn next_ticket(&mut self, index: u32, deadline: u64) -> Ticket {
        self.ticket = self.ticket.wrapping_add(1);
        Ticket { deadline, index, number: self.ticket }
    }
}

/// A slab of values with their deadlines.
#[derive(Debug)]
pub(crate) struct Places<T> {
    places: Vec<Place<T>>,
    free: Option<u32>,
    len: usize,
}

impl<T> Places<T> {
    pub(crate) const fn new() -> Self {
        Self { places: Vec::new(), free: None, len: 0 }
    }

    /// Values held.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn insert(&mut self, deadline: u64, value: T) -> (Key, Ticket) {
        let content = Content::Held { deadline, value };
        let index = self.free.unwrap_or_else(|| self.next_index());
        match self.places.get_mut(index as usize) {
            Some(place) => {
                if let Content::Free(next) = place.content {
                    self.free = next;
                }
                place.content = content;
            }
            None => self.places.push(Place { generation: 0, ticket: 0, content }),
        }
        self.len += 1;
        let place = &mut self.places[index as usize];
        (Key { index, generation: place.generation }, place.next_ticket(index, deadline))
    }

    /// Gives a value another deadline. Returns the one that it had, and its new ticket.
    pub(crate) fn reschedule(&mut self, key: Key, to: u64) -> Option<(u64, Ticket)> {
        let place = self.places.get_mut(key.index as usize)?;
        match &mut place.content {
            Content::Held { deadline, .. } if place.generation == key.generation => {
                let before = std::mem::replace(deadline, to);
                Some((before, place.next_ticket(key.index, to)))
            }
            _ => None,
        }
    }

    /// True for the last ticket of a value that is held.
    pub(crate) fn is_wanted(&self, ticket: Ticket) -> bool {
        let place = self.places.get(ticket.index as usize);
        place.is_some_and(|place| place.ticket == ticket.number && matches!(place.content, Content::Held { .. }))
    }

    /// Takes the value of a ticket out, if that is wanted.
    pub(crate) fn redeem(&mut self, ticket: Ticket) -> Option<T> {
        if !self.is_wanted(ticket) {
            return None;
        }
        self.remove_at(ticket.index as usize).map(|(_, value)| value)
    }

    /// Takes a value out; its place is free before the caller has the value.
    pub(crate) fn remove(&mut self, key: Key) -> Option<(u64, T)> {
        let place = self.places.get_mut(key.index as usize)?;
        if place.generation != key.generation || !matches!(place.content, Content::Held { .. }) {
            return None;
        }
        let next = match key.generation.checked_add(1) {
            Some(generation) => {
                place.generation = generation;
                Content::Free(self.free.replace(key.index))
            }
            None => Content::Retired,
        };
        self.len -= 1;
        match std::mem::replace(&mut place.content, next) {
            Content::Held { deadline, value } => Some((deadline, value)),
            Content::Free(_) | Content::Retired => None,
        }
    }

    pub(crate) fn get(&self, key: Key) -> Option<(u64, &T)> {
        let place = self.places.get(key.index as usize)?;
        match &place.content {
            Content::Held { deadline, value } if place.generation == key.generation => Some((*deadline, value)),
            _ => None,
        }
    }

    pub(crate) fn get_mut(&mut self, key: Key) -> Option<&mut T> {
        let place = self.places.get_mut(key.index as usize)?;
        match &mut place.content {
            Content::Held { value, .. } if place.generation == key.generation => Some(value),
            _ => None,
        }
    }

    /// Asks the processor for the place of a ticket's value.
    pub(crate) fn prefetch(&self, ticket: Ticket) {
        if let Some(place) = self.places.get(ticket.index as usize) {
            crate::sync::prefetch(place);
        }
    }

    /// Keys and deadlines of all values, in no order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (Key, u64)> + '_ {
        self.places.iter().enumerate().filter_map(|(index, place)| match place.content {
            Content::Held { deadline, .. } => {
                Some((Key { index: index as u32, generation: place.generation }, deadline))
            }
            _ => None,
        })
    }

    /// Takes out the value of the place `index`, if there is one.
    pub(crate) fn remove_at(&mut self, index: usize) -> Option<(u64, T)> {
        let generation = self.places.get(index)?.generation;
        let key = Key { index: u32::try_from(index).ok()?, generation };
        self.remove(key)
    }

    /// Places made so far, free and retired ones included.
    pub(crate) fn place_count(&self) -> usize {
        self.places.len()
    }

    fn next_index(&self) -> u32 {
        u32::try_from(self.places.len()).expect("a wheel has at most 2^32 places")
    }

    /// Panics unless the free list holds each free place once and the length is right.
    pub(crate) fn check_invariants(&self) {
        let is_free = |place: &&Place<T>| matches!(place.content, Content::Free(_));
        let expected = self.places.iter().filter(is_free).count();
        let (mut next, mut found) = (self.free, 0);
        while let Some(index) = next {
            found += 1;
            assert!(found <= expected, "the free list runs in a circle");
            next = match self.places[index as usize].content {
                Content::Free(next) => next,
                _ => panic!("place {index} is in the free list and not free"),
            };
        }
        assert_eq!(found, expected, "free places are lost");
        assert_eq!(self.len, self.iter().count(), "the length is wrong");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_fits_only_until_its_value_left() {
        let mut places = Places::new();
        let (old, _) = places.insert(5, 'a');
        assert_eq!(places.remove(old), Some((5, 'a')));
        let (new, _) = places.insert(6, 'b');
        assert_eq!(old.index, new.index);
        assert_eq!(places.remove(old), None);
        assert_eq!(places.get(old), None);
        assert_eq!(places.get_mut(old), None);
        assert_eq!(places.get(new), Some((6, &'b')));
        places.check_invariants();
    }

    #[test]
    fn place_is_retired_when_its_generations_are_used_up() {
        let mut places = Places::new();
        let (first, _) = places.insert(0, ());
        places.places[0].generation = u32::MAX;
        let last = Key { generation: u32::MAX, ..first };
        assert!(places.remove(last).is_some());
        assert!(places.remove(last).is_none());
        assert!(places.get(first).is_none() && places.get(last).is_none());
        assert_eq!(places.insert(0, ()).0.index, 1);
        places.check_invariants();
    }

    #[test]
    fn only_the_last_ticket_of_a_value_counts() {
        let mut places = Places::new();
        places.insert(0, 'z');
        let (key, first) = places.insert(5, 'a');
        places.places[1].ticket = u32::MAX;
        assert!(!places.is_wanted(first));
        let (before, second) = places.reschedule(key, 9).expect("it is held");
        let (_, third) = places.reschedule(key, 5).expect("it is held");
        assert_eq!((before, second.deadline, third.deadline, third.number), (5, 9, 5, 1));
        assert!(places.is_wanted(third) && !places.is_wanted(second));
        assert_eq!((places.redeem(second), places.redeem(third), places.redeem(third)), (None, Some('a'), None));
        let (_, next) = places.insert(6, 'b');
        assert_eq!((next.index, places.is_wanted(third), places.redeem(next)), (1, false, Some('b')));
        assert_eq!(places.reschedule(key, 1).map(|(before, _)| before), None);
        places.check_invariants();
    }

    #[test]
    fn places_are_used_again() {
        let mut places = Places::new();
        for round in 0..100 {
            let keys: Vec<Key> = (0..10).map(|i| places.insert(i, round).0).collect();
            places.check_invariants();
            keys.into_iter().for_each(|key| assert!(places.remove(key).is_some()));
        }
        assert_eq!(places.place_count(), 10);
        assert_eq!(places.len(), 0);
        places.check_invariants();
    }
}
