//! The map that its owner rotates. Plain data: no threads, no clock.

use super::error::RotatingError;
use std::borrow::Borrow;
use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::hash::Hash;
use std::mem;

pub(super) const BUCKETS_MAX: usize = 1 << 16;

/// A map of k buckets, for one owner: an entry that is not inserted again leaves with its bucket at the k-th rotation.
///
/// Each key is in one bucket at most. Look-ups, insertions and removals try the buckets in turn, newest first: O(k).
///
/// ```
/// use shardwheel::rotating::RotatingMap;
///
/// let mut pending = RotatingMap::new(2)?;
/// pending.insert(17, "request");
/// assert_eq!(pending.rotate(), [], "one rotation: it is in the oldest bucket now");
/// assert_eq!(pending.get(&17), Some(&"request"));
/// assert_eq!(pending.rotate(), [(17, "request")]);
///
/// assert_eq!(pending.insert(18, "request"), None);
/// pending.rotate();
/// assert_eq!(pending.oldest().next(), Some((&18, &"request")));
/// assert_eq!(pending.insert(18, "again"), Some("request"), "in the newest bucket from now on");
/// assert_eq!((pending.oldest().next(), pending.len(), pending.bucket_count()), (None, 1, 2));
/// assert_eq!(pending.remove(&18), Some("again"));
/// assert!(!pending.contains(&18) && pending.is_empty());
/// # Ok::<(), shardwheel::rotating::RotatingError>(())
/// ```
#[derive(Clone)]
pub struct RotatingMap<K, V> {
    /// Newest first; never empty.
    buckets: VecDeque<HashMap<K, V>>,
}

impl<K, V> fmt::Debug for RotatingMap<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lens: Vec<_> = self.buckets.iter().map(HashMap::len).collect();
        f.debug_struct("RotatingMap").field("bucket_lens", &lens).finish_non_exhaustive()
    }
}

impl<K, V> RotatingMap<K, V> {
    /// An empty map of `buckets` buckets.
    ///
    /// # Errors
    /// [`RotatingError::Buckets`] (permanent) unless there are 2 to 65,536: with a single one, an entry could leave at
    /// once.
    pub fn new(buckets: usize) -> Result<Self, RotatingError> {
        if !(2..=BUCKETS_MAX).contains(&buckets) {
            return Err(RotatingError::Buckets(buckets));
        }
        Ok(Self { buckets: (0..buckets).map(|_| HashMap::new()).collect() })
    }

    /// The number of buckets.
    pub fn bucket_count(&self) -> usize {
        self.buckets.len()
    }

    /// The number of entries. O(k).
    pub fn len(&self) -> usize {
        self.buckets.iter().map(HashMap::len).sum()
    }

    /// True if there is no entry. O(k).
    pub fn is_empty(&self) -> bool {
        self.buckets.iter().all(HashMap::is_empty)
    }

    /// All entries, those of the newest bucket first; within a bucket in no particular order.
    ///
    /// ```
    /// use shardwheel::rotating::RotatingMap;
    ///
    /// let mut map = RotatingMap::new(3)?;
    /// map.insert(1, 'a');
    /// map.rotate();
    /// map.insert(2, 'b');
    /// assert!(map.iter().eq([(&2, &'b'), (&1, &'a')]));
    /// # Ok::<(), shardwheel::rotating::RotatingError>(())
    /// ```
    pub fn iter(&self) -> impl Iterator<Item = (&K, &V)> {
        self.buckets.iter().flatten()
    }

    /// Takes all entries out, drops them, and frees their memory.
    ///
    /// ```
    /// use shardwheel::rotating::RotatingMap;
    ///
    /// let mut map = RotatingMap::new(2)?;
    /// map.insert(1, 'a');
    /// map.clear();
    /// assert!(map.is_empty());
    /// # Ok::<(), shardwheel::rotating::RotatingError>(())
    /// ```
    pub fn clear(&mut self) {
        drop(self.take_all());
    }

    /// As `clear`; returns the buckets as they were.
    pub(super) fn take_all(&mut self) -> VecDeque<HashMap<K, V>> {
        let emptied = self.buckets.iter().map(|_| HashMap::new()).collect();
        mem::replace(&mut self.buckets, emptied)
    }

    /// The entries that the next rotation will take out, in no particular order.
    pub fn oldest(&self) -> impl Iterator<Item = (&K, &V)> {
        self.buckets.back().into_iter().flatten()
    }

    /// Takes the oldest bucket off, puts an empty one in front, and returns the entries that leave, in no particular
    /// order.
    ///
    /// O(entries that leave). The new bucket begins without memory, so nothing of a spike is kept.
    pub fn rotate(&mut self) -> Vec<(K, V)> {
        self.turn().into_iter().collect()
    }

    /// As `rotate`, in O(1): returns the bucket as it is.
    pub(super) fn turn(&mut self) -> HashMap<K, V> {
        let dead = self.buckets.pop_back().unwrap_or_default();
        self.buckets.push_front(HashMap::new());
        dead
    }
}

/// The value of an entry that was taken out. Its key goes first: a destructor that panics after the answer is made
/// would lose the value.
pub(super) fn value_of<K, V>(entry: Option<(K, V)>) -> Option<V> {
    let (key, value) = entry?;
    drop(key);
    Some(value)
}

impl<K: Hash + Eq, V> RotatingMap<K, V> {
    /// Puts an entry into the newest bucket. Returns the value that was under this key, in any bucket. O(k). (If the
    /// key's `Hash` or `Eq` panics, that value may be lost.)
    pub fn insert(&mut self, key: K, value: V) -> Option<V> {
        let old = self.remove_entry(&key);
        self.buckets[0].insert(key, value);
        value_of(old)
    }

    /// The place of a key, which is in no bucket, in the newest one.
    pub(super) fn place(&mut self, key: K) -> Entry<'_, K, V> {
        self.buckets[0].entry(key)
    }

    /// The value of `key`. O(k). Looking at an entry does not keep it: only another [`insert`](Self::insert) does.
    pub fn get<Q: Hash + Eq + ?Sized>(&self, key: &Q) -> Option<&V>
    where
        K: Borrow<Q>,
    {
        self.buckets.iter().find_map(|bucket| bucket.get(key))
    }

    /// As [`get`](Self::get), to change the value where it is. O(k).
    ///
    /// ```
    /// use shardwheel::rotating::RotatingMap;
    ///
    /// let mut tries = RotatingMap::new(2)?;
    /// tries.insert("a", 1);
    /// tries.rotate();
    /// *tries.get_mut("a").expect("it is there") += 1;
    /// assert_eq!(tries.rotate(), [("a", 2)], "it has not moved");
    /// # Ok::<(), shardwheel::rotating::RotatingError>(())
    /// ```
    pub fn get_mut<Q: Hash + Eq + ?Sized>(&mut self, key: &Q) -> Option<&mut V>
    where
        K: Borrow<Q>,
    {
        self.buckets.iter_mut().find_map(|bucket| bucket.get_mut(key))
    }

    /// True if there is an entry under `key`. O(k).
    pub fn contains<Q: Hash + Eq + ?Sized>(&self, key: &Q) -> bool
    where
        K: Borrow<Q>,
    {
        self.get(key).is_some()
    }

    /// Takes the entry of `key` out, and returns its value. O(k).
    pub fn remove<Q: Hash + Eq + ?Sized>(&mut self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
    {
        value_of(self.remove_entry(key))
    }

    /// As `remove`; the key comes back, too.
    pub(super) fn remove_entry<Q: Hash + Eq + ?Sized>(&mut self, key: &Q) -> Option<(K, V)>
    where
        K: Borrow<Q>,
    {
        self.buckets.iter_mut().find_map(|bucket| bucket.remove_entry(key))
    }
}
