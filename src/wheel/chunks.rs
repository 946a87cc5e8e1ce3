//! Chains of entries in chunks of about 512 bytes, and the arena that the chunks come from.
//!
//! A chain is a stack of chunks: entries are added to the head chunk and leave by whole chunks, so
//! only the head is ever partly filled. Each chunk remembers the earliest tick *below* it: the
//! minimum of what is left is exact, and costs nothing to know, however much has been taken.
//!
//! The arena grows by segments that stay where they are: nothing is copied when it grows. It
//! reuses free chunks, and gives memory back only as a whole, when no chunk is in use any more.
//! It does not shrink in between: one entry may pin a segment, and moving entries to free it would
//! cost the very pause that the bounded cascade avoids.

use std::mem::size_of;

/// The size that a chunk should have: long enough to stream, short enough that hundreds of nearly
/// empty slots waste little.
const CHUNK_BYTES: usize = 512;
/// Chunks of a segment: with the above, 64 KiB.
const SEGMENT_CHUNKS: usize = 128;
/// An empty arena keeps what it has if that is at most this many segments (1 MiB), so that a wheel
/// that is emptied again and again does not go to the allocator each time.
const KEPT_SEGMENTS: usize = 16;
/// Not a chunk: the end of a chain.
const NONE: u32 = u32::MAX;

/// A stack of chunks, with entries in no particular order.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Chain {
    /// Entries in all chunks.
    len: usize,
    /// Earliest tick of all entries; `u64::MAX` when there are none.
    min: u64,
    /// The chunk that is being filled.
    head: u32,
}

impl Chain {
    pub(crate) const EMPTY: Self = Self { len: 0, min: u64::MAX, head: NONE };

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The earliest tick; `u64::MAX` when empty.
    pub(crate) fn min(&self) -> u64 {
        self.min
    }
}

/// What a chunk knows of the chain it is in.
#[derive(Clone, Copy, Debug)]
struct Link {
    /// Earliest tick of all chunks below this one.
    min_below: u64,
    /// The next chunk of the chain, or of the free list.
    below: u32,
}

/// Neither vector ever grows beyond the capacity it was made with.
#[derive(Debug)]
struct Segment<E> {
    entries: Vec<E>,
    links: Vec<Link>,
}

/// Where all chunks of a wheel live.
#[derive(Debug)]
pub(crate) struct Arena<E> {
    segments: Vec<Segment<E>>,
    /// First chunk of the free list.
    free: u32,
    /// Chunks that are part of a chain.
    used: usize,
}

impl<E: Copy> Arena<E> {
    /// Entries of a chunk.
    pub(crate) const CHUNK: usize =
        if size_of::<E>() * 4 > CHUNK_BYTES { 4 } else { CHUNK_BYTES / max(size_of::<E>(), 1) };

    pub(crate) fn new() -> Self {
        Self { segments: Vec::new(), free: NONE, used: 0 }
    }

    /// Adds an entry that is due at `tick`.
    pub(crate) fn push(&mut self, chain: &mut Chain, tick: u64, entry: E) {
        let at = chain.len % Self::CHUNK;
        if at == 0 {
            self.add_head(chain, entry);
        }
        let (segment, index) = locate(chain.head);
        self.segments[segment].entries[index * Self::CHUNK + at] = entry;
        chain.len += 1;
        chain.min = chain.min.min(tick);
    }

    /// Moves the entries of the head chunk to `into`; the chunk is free before the caller looks at
    /// them.
    pub(crate) fn take_chunk(&mut self, chain: &mut Chain, into: &mut Vec<E>) {
        if chain.is_empty() {
            return;
        }
        let (head, link) = (chain.head, self.link(chain.head));
        let taken = self.filled(chain);
        into.extend_from_slice(&self.entries(head)[..taken]);
        *chain = Chain { len: chain.len - taken, min: link.min_below, head: link.below };
        self.release(head);
    }

    /// All entries of a chain, the latest chunk first.
    pub(crate) fn iter(&self, chain: Chain) -> impl Iterator<Item = E> {
        self.chunks(chain).flat_map(|(_, entries)| entries.iter().copied())
    }

    /// The chunks of a chain from the head on, each with the earliest tick of itself and all below.
    pub(crate) fn chunks(&self, chain: Chain) -> impl Iterator<Item = (u64, &[E])> {
        let mut rest = chain;
        std::iter::from_fn(move || {
            if rest.is_empty() {
                return None;
            }
            let (head, link, filled) = (rest.head, self.link(rest.head), self.filled(&rest));
            let min = rest.min;
            rest = Chain { len: rest.len - filled, min: link.min_below, head: link.below };
            Some((min, &self.entries(head)[..filled]))
        })
    }

    /// Gives the memory back if no chunk is in use and there is much of it.
    pub(crate) fn trim(&mut self) {
        if self.used == 0 && self.segments.len() > KEPT_SEGMENTS {
            *self = Self::new();
        }
    }

    /// Entries in the head chunk of a chain that is not empty.
    fn filled(&self, chain: &Chain) -> usize {
        (chain.len - 1) % Self::CHUNK + 1
    }

    /// Puts an empty chunk on top of a chain whose head is full.
    fn add_head(&mut self, chain: &mut Chain, filler: E) {
        let link = Link { min_below: chain.min, below: chain.head };
        chain.head = self.allocate(filler);
        *self.link_mut(chain.head) = link;
    }

    fn allocate(&mut self, filler: E) -> u32 {
        self.used += 1;
        if self.free == NONE {
            return self.allocate_fresh(filler);
        }
        let chunk = self.free;
        self.free = self.link(chunk).below;
        chunk
    }

    /// A chunk that was never used. It is filled with copies of an entry because safe code cannot
    /// own unwritten memory; 512 bytes at a time, so that pages are touched as they are used.
    fn allocate_fresh(&mut self, filler: E) -> u32 {
        if self.segments.last().is_none_or(|last| last.links.len() == SEGMENT_CHUNKS) {
            self.segments.push(Segment {
                entries: Vec::with_capacity(SEGMENT_CHUNKS * Self::CHUNK),
                links: Vec::with_capacity(SEGMENT_CHUNKS),
            });
        }
        let segment = self.segments.len() - 1;
        let last = &mut self.segments[segment];
        let index = last.links.len();
        last.entries.resize((index + 1) * Self::CHUNK, filler);
        last.links.push(Link { min_below: u64::MAX, below: NONE });
        let chunk = u32::try_from(segment * SEGMENT_CHUNKS + index).unwrap_or(NONE);
        assert!(chunk != NONE, "a wheel holds at most 2^32 - 1 chunks");
        chunk
    }

    fn release(&mut self, chunk: u32) {
        self.used -= 1;
        *self.link_mut(chunk) = Link { min_below: u64::MAX, below: self.free };
        self.free = chunk;
    }

    fn entries(&self, chunk: u32) -> &[E] {
        let (segment, index) = locate(chunk);
        &self.segments[segment].entries[index * Self::CHUNK..][..Self::CHUNK]
    }

    fn link(&self, chunk: u32) -> Link {
        let (segment, index) = locate(chunk);
        self.segments[segment].links[index]
    }

    fn link_mut(&mut self, chunk: u32) -> &mut Link {
        let (segment, index) = locate(chunk);
        &mut self.segments[segment].links[index]
    }
}

/// For `check_invariants` of the structures above.
impl<E: Copy> Arena<E> {
    /// Panics unless the chain's minima are those of its entries; returns the chunks it uses.
    pub(crate) fn check_chain(&self, chain: &Chain, tick: impl Fn(E) -> u64) -> usize {
        let (mut chunks, mut len, mut min) = (0, 0, u64::MAX);
        let parts: Vec<_> = self.chunks(*chain).collect();
        for (claimed, entries) in parts.into_iter().rev() {
            min = entries.iter().map(|&entry| tick(entry)).fold(min, u64::min);
            assert_eq!(claimed, min, "a chain's minimum is not that of its entries");
            chunks += 1;
            len += entries.len();
        }
        assert_eq!(chain.len, len, "a chain's length is wrong");
        assert_eq!(chain.min, min, "a chain's minimum is wrong");
        chunks
    }

    /// Panics unless the arena's chunks are `used` in chains and the rest in the free list.
    pub(crate) fn check_accounts(&self, used: usize) {
        assert_eq!(self.used, used, "chunks in chains");
        let total: usize = self.segments.iter().map(|segment| segment.links.len()).sum();
        let (mut chunk, mut free) = (self.free, 0);
        while chunk != NONE {
            free += 1;
            assert!(free <= total, "the free list runs in a circle");
            chunk = self.link(chunk).below;
        }
        assert_eq!(used + free, total, "chunks are lost");
    }
}

/// The segment of a chunk, and its place there.
fn locate(chunk: u32) -> (usize, usize) {
    let chunk = chunk as usize;
    (chunk / SEGMENT_CHUNKS, chunk % SEGMENT_CHUNKS)
}

/// `usize::max` for constants.
const fn max(a: usize, b: usize) -> usize {
    if a > b { a } else { b }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn minimum_is_exact_after_each_chunk_taken() {
        let (mut arena, mut chain) = (Arena::<u64>::new(), Chain::EMPTY);
        for i in 0..1000u64 {
            let tick = i * 7919 % 1009;
            arena.push(&mut chain, tick, tick);
        }
        let mut taken = Vec::new();
        while !chain.is_empty() {
            arena.check_accounts(arena.check_chain(&chain, |tick| tick));
            arena.take_chunk(&mut chain, &mut taken);
        }
        taken.sort_unstable();
        let mut expected: Vec<u64> = (0..1000).map(|i| i * 7919 % 1009).collect();
        expected.sort_unstable();
        assert_eq!(taken, expected);
        arena.check_accounts(0);
    }

    #[test]
    fn free_chunks_are_used_again() {
        let (mut arena, mut into) = (Arena::<u64>::new(), Vec::new());
        for _ in 0..100 {
            let mut chain = Chain::EMPTY;
            (0..1000).for_each(|tick| arena.push(&mut chain, tick, tick));
            while !chain.is_empty() {
                arena.take_chunk(&mut chain, &mut into);
            }
            into.clear();
        }
        assert_eq!(arena.segments.len(), 1);
        assert_eq!(arena.segments[0].links.len(), 1000usize.div_ceil(Arena::<u64>::CHUNK));
    }

    #[test]
    fn segments_never_move_and_are_given_back_when_all_is_free() {
        let (mut arena, mut chain) = (Arena::<u64>::new(), Chain::EMPTY);
        arena.push(&mut chain, 0, 0);
        let first = arena.segments[0].entries.as_ptr();
        (1..200_000).for_each(|tick| arena.push(&mut chain, tick, tick));
        assert_eq!(arena.segments[0].entries.as_ptr(), first);
        assert!(arena.segments.len() > KEPT_SEGMENTS);
        arena.trim();
        assert!(arena.segments.len() > KEPT_SEGMENTS, "in use");
        let mut into = Vec::new();
        while !chain.is_empty() {
            arena.take_chunk(&mut chain, &mut into);
        }
        arena.trim();
        assert_eq!(arena.segments.len(), 0);
    }

    #[test]
    fn chunks_hold_about_512_bytes() {
        assert_eq!(Arena::<u64>::CHUNK, 64);
        assert_eq!(Arena::<[u64; 2]>::CHUNK, 32);
        assert_eq!(Arena::<[u64; 100]>::CHUNK, 4);
        assert_eq!(Arena::<()>::CHUNK, 512);
    }
}
