//! The places of a [`Wheel`](super::Wheel)'s values: a slab whose keys are never valid twice.
//!
//! A place counts how often it was left. A key carries the count it was made with, so it fits the
//! place only until that value leaves. When the count is used up the place is retired: it costs its
//! memory for good, once in 2^32 uses.

use super::Key;

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
    content: Content<T>,
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

    pub(crate) fn insert(&mut self, deadline: u64, value: T) -> Key {
        let content = Content::Held { deadline, value };
        let index = self.free.unwrap_or_else(|| self.next_index());
        match self.places.get_mut(index as usize) {
            Some(place) => {
                if let Content::Free(next) = place.content {
                    self.free = next;
                }
                place.content = content;
            }
            None => self.places.push(Place { generation: 0, content }),
        }
        self.len += 1;
        Key { index, generation: self.places[index as usize].generation }
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

    pub(crate) fn contains(&self, key: Key) -> bool {
        self.get(key).is_some()
    }

    /// Asks the processor for the place of a value.
    pub(crate) fn prefetch(&self, key: Key) {
        if let Some(place) = self.places.get(key.index as usize) {
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
        let old = places.insert(5, 'a');
        assert_eq!(places.remove(old), Some((5, 'a')));
        let new = places.insert(6, 'b');
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
        let first = places.insert(0, ());
        places.places[0].generation = u32::MAX;
        let last = Key { generation: u32::MAX, ..first };
        assert!(places.remove(last).is_some());
        assert!(places.remove(last).is_none());
        assert!(!places.contains(first) && !places.contains(last));
        assert_eq!(places.insert(0, ()).index, 1);
        places.check_invariants();
    }

    #[test]
    fn places_are_used_again() {
        let mut places = Places::new();
        for round in 0..100 {
            let keys: Vec<Key> = (0..10).map(|i| places.insert(i, round)).collect();
            places.check_invariants();
            keys.into_iter().for_each(|key| assert!(places.remove(key).is_some()));
        }
        assert_eq!(places.place_count(), 10);
        assert_eq!(places.len(), 0);
        places.check_invariants();
    }
}
