//! A key with its hash, which is computed once, at the beginning of a call: a key that panics or stalls while it is
//! hashed does so before anything is half done, and maps grow without running the user's code.

use crate::unwind::quietly;
use std::borrow::Borrow;
use std::hash::{BuildHasher, Hash, Hasher};
use std::mem::ManuallyDrop;

pub(super) struct Hashed<K> {
    hash: u64,
    pub(super) key: ManuallyDrop<K>,
}

/// A key that was removed long ago is dropped by whatever call comes by when no reader is left. If its destructor
/// panics, that is no concern of the call's, nor of the other keys that it drops.
impl<K> Drop for Hashed<K> {
    fn drop(&mut self) {
        // SAFETY: the key is not used afterwards: this is dropped once.
        quietly(|| unsafe { ManuallyDrop::drop(&mut self.key) });
    }
}

/// What a call looks for: a key, or what it borrows as.
pub(super) struct Sought<'a, Q: ?Sized> {
    hash: u64,
    key: &'a Q,
}

impl<K> Hashed<K> {
    pub(super) fn new(key: K, hasher: &impl BuildHasher) -> Self
    where
        K: Hash,
    {
        Self { hash: hasher.hash_one(&key), key: ManuallyDrop::new(key) }
    }

    pub(super) fn sought(&self) -> Sought<'_, K> {
        Sought { hash: self.hash, key: &self.key }
    }
}

impl<'a, Q: ?Sized> Sought<'a, Q> {
    pub(super) fn new(key: &'a Q, hasher: &impl BuildHasher) -> Self
    where
        Q: Hash,
    {
        Self { hash: hasher.hash_one(key), key }
    }

    pub(super) fn is<K: Borrow<Q>>(&self, other: &Hashed<K>) -> bool
    where
        Q: Eq,
    {
        self.hash == other.hash && self.key == K::borrow(&other.key)
    }
}

impl<K: Eq> PartialEq for Hashed<K> {
    fn eq(&self, other: &Self) -> bool {
        self.sought().is(other)
    }
}

impl<K: Eq> Eq for Hashed<K> {}

impl<K> Hash for Hashed<K> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.hash);
    }
}

impl<Q: ?Sized> Hash for Sought<'_, Q> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.hash);
    }
}

/// For what needs no hashing: a hash, or an id, which no user chooses and the scheduler mixes.
#[derive(Debug, Default)]
pub(super) struct Ready(u64);

impl Hasher for Ready {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&byte| self.0 = self.0 << 8 | u64::from(byte));
    }

    fn write_u64(&mut self, number: u64) {
        self.0 = number;
    }
}
