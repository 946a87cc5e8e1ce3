//! From key to timer: a lock-free hash index that grows while in use and never moves a timer.
//!
//! An array of lines (`line.rs`), chosen by the first bits of the hash: to look a key up is to fetch one line of memory, and then the node.
//! No line leads to another one but in rare cases (`overflow.rs`).
//!
//! - **Membership is decided by the timer word, not by the line.** A cell may lead to a node that is dead or tentative. At most
//!   one node of a key is pending.
//! - **Inserting** fails only when the shard is sealed, or no further line is left. A new node goes into any empty cell, tentative; then its author looks for others of its tag. Of two
//!   who come at once, at least one sees the other. Who sees nobody publishes. Else `succession.rs` decides, by *tickets*, which are drawn
//!   from the line: a ticket is younger than the nodes that were in the line when it was drawn.
//! - **Absent** is what was not found if no ticket was drawn meanwhile: a timer that takes the place of another one, in another cell, has
//!   one before it ends that.
//! - **Growing.** The array doubles by a new one, whose lines are not set. Who needs one freezes the line that it comes from, and
//!   fills both that come of it. What they become follows from the frozen line alone, so it does not matter who does it, or how many.
//!   Who meets a frozen line finds that there are more lines. (Larson, "Dynamic Hash Tables", CACM 31(4), 1988, splits lines in the same
//!   way, under locks.) An array whose lines are all split is freed.
//! - The thread whose exchange takes a node out of its cell, and no other, tells the node's word; or keeps it in mind if that was its task.

use super::line::{AtomicPair, EMPTY, LINE_BITS_MAX, Line, Meta, More, Pair, Shape, Side};
use super::overflow::Overflow;
use super::segments::Segments;
use super::slab::{Node, Slab};
use super::succession::{claim_any, decide, help};
use super::word::{State, Word};
use super::{Access, PREFETCH_AHEAD};
use crate::sync::size::{CROWDED, FIRST_SEGMENT_BITS, LINE_LOAD};
use crate::sync::{AtomicU32, Ordering};
use Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::ops::ControlFlow;
use std::sync::Arc;

/// Why a node was not put in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Unplaced {
    /// The shard is closed: nothing can be inserted any more.
    Sealed,
    /// Its line is full, and no further one is left.
    Exhausted,
}

/// Lines for which memory is asked at once: a large page of them.
const POPULATED: u32 = 1 << 15;
const FIRST_BITS: u32 = FIRST_SEGMENT_BITS - 1;
/// In the number of bits: no line changes any more.
const SEALED: u32 = 1 << 31;

fn is_full(bits: u32, node_count: u32) -> bool {
    bits < LINE_BITS_MAX && node_count > LINE_LOAD << bits
}

/// Where a key belongs.
#[derive(Clone, Copy)]
pub(crate) struct Spot {
    hash: u32,
}

impl Spot {
    #[inline]
    pub(crate) fn hash(self) -> u32 {
        self.hash
    }
}

/// A line of the index while its caller is pinned.
#[derive(Clone, Copy)]
struct Home<'a> {
    line: &'a Line,
    shape: Shape,
}

/// The cell of a node as it was seen.
#[derive(Clone, Copy)]
pub(super) struct Position<'a> {
    pair: &'a AtomicPair,
    side: Side,
    seen: Pair,
    /// In a further line: others count it.
    is_counted: bool,
}

/// A pending or firing timer, as it was when it was found.
pub(super) struct Found<'a, K, V> {
    pub(super) node: Node<'a, K, V>,
    pub(super) word: Word,
    pub(super) position: Position<'a>,
}

/// What became of a claim.
enum Claim {
    Made,
    Frozen,
    /// It needs a line, and none is left.
    Exhausted,
}

/// What became of a claim in a line that is full.
enum Behind<'a> {
    Is(Claim),
    /// It goes on in this line: a further one, or the same, which has changed meanwhile.
    GoesOn(&'a Line),
}

pub(crate) struct Index {
    lines: Segments<Line>,
    overflow: Arc<Overflow>,
    /// Of the array in use; and whether it is sealed.
    bits: AtomicU32,
    /// By their bits: the lines of each array that are set.
    set: [AtomicU32; LINE_BITS_MAX as usize + 1],
}

impl Index {
    pub(super) fn new() -> Self {
        let lines = Segments::<Line>::new();
        for line in 1 << FIRST_BITS..2 << FIRST_BITS {
            let line = lines.reserve(line);
            line.set_cells(&mut std::iter::empty());
            line.set_last(None, More::NONE);
            line.meta.set(0);
        }
        Self {
            lines,
            overflow: Arc::new(Overflow::new()),
            bits: AtomicU32::new(FIRST_BITS),
            set: std::array::from_fn(|_| AtomicU32::new(0)),
        }
    }

    #[inline]
    fn bits(&self) -> u32 {
        // Acquire: that there is such an array. If it is an old one by now, its lines are frozen, or gone, which tells.
        self.bits.load(Acquire) & !SEALED
    }

    fn is_sealed(&self) -> bool {
        // Acquire: what the sealer did before.
        self.bits.load(Acquire) & SEALED != 0
    }

    /// Doubles the array if it is crowded and nobody has seen to it, or has no room for the number of a node; true for the caller who did.
    #[inline]
    pub(super) fn fit(&self, node_count: u32, node: u32) -> bool {
        let bits = self.bits();
        let lacks_room = is_full(bits, node_count / CROWDED) || !Shape::of(bits).holds(node);
        lacks_room && self.enlarge(node_count, node)
    }

    #[cold]
    fn enlarge(&self, node_count: u32, node: u32) -> bool {
        let mut has_grown = false;
        loop {
            let bits = self.bits.load(Relaxed);
            let lacks_room =
                bits & SEALED == 0 && (is_full(bits, node_count / CROWDED) || !Shape::of(bits).holds(node));
            if !lacks_room {
                return has_grown;
            }
            has_grown |= self.double(bits);
        }
    }

    /// `bits` as they were read; false if somebody else was faster, or the shard is sealed.
    fn double(&self, bits: u32) -> bool {
        if bits & SEALED != 0 {
            return false;
        }
        // If that array has come and gone meanwhile, there are other bits by now.
        self.lines.ensure(2 << bits);
        // Release: that there is such an array.
        self.bits.compare_exchange(bits, bits + 1, Release, Relaxed).is_ok()
    }

    /// The number of the last line that there should be, and 1.
    pub(super) fn lines_wanted(&self, node_count: u32) -> u32 {
        let bits = self.bits();
        2 << (bits + u32::from(is_full(bits, node_count)))
    }

    /// True if callers lack lines already, when those before `next` are set: they set them themselves.
    pub(super) fn lacks_lines(&self, next: u32) -> bool {
        next < 2 << self.bits()
    }

    /// Has the system put memory behind lines that there should be, from `next` on; how far.
    pub(super) fn populate(&self, next: u32, node_count: u32, _pinned: &Access) -> u32 {
        let end = self.lines_wanted(node_count).min(next.saturating_add(POPULATED));
        self.lines.populate(next..end, Line::touch)
    }

    /// Sets up to `limit` lines ahead of the callers, from `next` on; the first that is left.
    pub(super) fn split_ahead<K, V>(&self, slab: &Slab<K, V>, next: u32, limit: u32, access: &Access) -> u32
    where
        K: Eq + Send + Sync + 'static,
        V: Send + 'static,
    {
        let end = self.lines_wanted(slab.most_indexed()).min(next.saturating_add(limit));
        for number in next.max(2 << FIRST_BITS)..end {
            // Acquire: as in `bits`.
            let seen = self.bits.load(Acquire);
            let has_line = |bits: u32| number < 2 << (bits & !SEALED);
            let is_there = has_line(seen) || self.double(seen) || has_line(self.bits());
            // Not reserved: that array has gone, since all that come of its lines are set.
            if is_there && self.lines.reserved(number).is_some_and(|line| !line.meta.load().is_set()) {
                self.set_line(number, access);
            }
        }
        end
    }

    /// Lines so far.
    pub(super) fn line_count(&self) -> u32 {
        1 << self.bits()
    }

    /// All lines of the array in use are set, each was counted once, and there is no other array (but those in one segment with the first).
    #[cfg(test)]
    #[allow(dead_code, reason = "models have other ways to ask")]
    pub(super) fn assert_array_alone(&self) {
        let bits = self.bits();
        for before in FIRST_BITS + 1..bits {
            assert!(self.lines.reserved(1 << before).is_none(), "{before} of {bits}");
        }
        assert_eq!(self.set[bits as usize].load(Acquire), 1 << bits, "lines are set");
    }

    /// Where a key of this hash belongs, and asks the processor for what is there.
    #[inline]
    pub(super) fn spot(&self, hash: u32) -> Spot {
        self.lines.prefetch(Shape::of(self.bits()).line(hash));
        Spot { hash }
    }

    /// Asks the processor for the node of the key, or of another one that looks like it; false if there is none. The line should be in the
    /// cache by now.
    pub(super) fn prefetch_behind<K, V>(&self, slab: &Slab<K, V>, spot: Spot, _pinned: &Access) -> bool
    where
        K: Eq + Send + Sync + 'static,
        V: Send + 'static,
    {
        let shape = Shape::of(self.bits());
        let Some(line) = self.lines.reserved(shape.line(spot.hash)) else { return false };
        let (mut places, _) = line.search(AtomicPair::load, shape.like(spot.hash));
        let Some((pair, side)) = places.pop().map(|place| line.place(place)) else { return false };
        let node = shape.node(pair.load().cell(side));
        if node != 0 {
            slab.prefetch(node);
            slab.prefetch_tail(node);
        }
        node != 0
    }

    /// The line of a hash at this moment, and what it says of itself: it was set, and not frozen. (When the shard is sealed, its pairs are.)
    #[inline]
    fn home<'a>(&'a self, spot: Spot, access: &'a Access) -> (Home<'a>, Meta) {
        loop {
            let shape = Shape::of(self.bits());
            let number = shape.line(spot.hash);
            // Else that array has gone: there are other bits by now, which `release` tells. So does `freeze`.
            let Some(line) = self.lines.reserved(number) else { continue };
            let meta = line.meta.load();
            if meta.is_set() && !meta.is_frozen() {
                return (Home { line, shape }, meta);
            }
            if !meta.is_set() {
                self.set_line(number, access);
            }
        }
    }

    /// Sets a line of the array in use, and the other one that comes from the same.
    #[cold]
    fn set_line(&self, number: u32, access: &Access) {
        let parent = number / 2;
        // Freed: then all that come of it are set.
        let Some(line) = self.lines.reserved(parent) else { return };
        if !line.meta.load().is_set() {
            self.set_line(parent, access);
        }
        let bits = number.ilog2();
        let shape = Shape::of(bits - 1);
        let version = line.meta.freeze().version();
        self.freeze_chain(line);
        for child in 0..2 {
            let Some(new) = self.lines.reserved(2 * parent + child) else { return };
            let cells = self.overflow.chain(line).flat_map(Line::cells).map(|cell| shape.split(cell));
            let mut cells = cells.filter(|&(to, _)| to == child).map(|(_, cell)| cell);
            new.set_cells(&mut cells);
            let last = cells.next();
            let rest = self.overflow.build(&cells.collect::<Vec<_>>(), false, access);
            let rest = rest.expect("enough lines are kept for what is there already");
            if !new.set_last(last, rest) {
                self.overflow.retire(rest, access);
            }
            if new.meta.set(version) {
                self.has_set(bits, line, access);
            }
        }
    }

    /// We have set a line of the array with so many bits, which comes of `parent`. When both are set, nobody comes for the lines any more
    /// to which that leads; and when all are set, nobody comes for the array below.
    fn has_set(&self, bits: u32, parent: &Line, access: &Access) {
        if parent.meta.split_half() {
            self.overflow.retire(parent.last_pair().load().link(), access);
        }
        // AcqRel: that they are set, to the last one, and by `release` to whoever finds the array below gone.
        if self.set[bits as usize].fetch_add(1, AcqRel) + 1 < 1 << bits {
            return;
        }
        // SAFETY: who has an item of it is pinned, as all are who ask for one (`Access`), and it is freed when they have left.
        if let Some(array) = unsafe { self.lines.release((1 << bits) - 1) } {
            access.guard.defer(move || drop(array));
        }
    }

    /// Calls `each` for each cell that looks like the key's.
    #[inline(always)]
    fn each_like<'a, B>(
        &'a self,
        home: Home<'a>,
        hash: u32,
        load: impl Fn(&AtomicPair) -> Pair + Copy,
        mut each: impl FnMut(Position<'a>, u32) -> ControlFlow<B>,
    ) -> ControlFlow<B> {
        let Home { mut line, shape } = home;
        let like = shape.like(hash);
        let mut is_counted = false;
        loop {
            let (mut places, last) = line.search(load, like);
            while let Some(place) = places.pop() {
                let (pair, side) = line.place(place);
                let seen = load(pair);
                let cell = seen.cell(side);
                if cell != 0 && like.fits(cell) {
                    each(Position { pair, side, seen, is_counted }, shape.node(cell))?;
                }
            }
            let Some(more) = last.link().line() else { return ControlFlow::Continue(()) };
            line = self.overflow.at(more);
            is_counted = true;
        }
    }

    /// Calls `each` for each node that looks like the key's.
    ///
    /// Its caller has claimed a cell, or has had the fence of `help` since he acquired a claim. Of that claim and any other: he sees the
    /// other one, or its author sees that one.
    pub(super) fn each_node(&self, spot: Spot, access: &Access, mut each: impl FnMut(u32) -> ControlFlow<()>) {
        let (home, _) = self.home(spot, access);
        let _ = self.each_like(home, spot.hash, AtomicPair::load_after_claim, |_, node| each(node));
    }

    /// The next ticket of the key's line.
    pub(super) fn draw(&self, spot: Spot, access: &Access) -> u64 {
        loop {
            if let Some(ticket) = self.home(spot, access).0.line.meta.draw() {
                return ticket;
            }
        }
    }

    /// The pending timer whose key satisfies `is_key`, or the one that is firing and may come back.
    #[inline]
    pub(super) fn find<'a, K, V>(
        &'a self,
        slab: &'a Arc<Slab<K, V>>,
        spot: Spot,
        is_key: impl Fn(&K) -> bool,
        access: &'a Access,
    ) -> Option<Found<'a, K, V>>
    where
        K: Eq + Send + Sync + 'static,
        V: Send + 'static,
    {
        enum Seen<'a, K, V> {
            Found(Found<'a, K, V>),
            Undecided(u32),
        }
        loop {
            let (home, before) = self.home(spot, access);
            let seen = self.each_like(home, spot.hash, AtomicPair::load, |position, number| {
                let node = slab.node(number);
                let word = node.head.word.load();
                // SAFETY: reached in the index, under the guard of `access`.
                let is_ours = || unsafe { node.head.with_key(&is_key) };
                match word.state() {
                    State::Pending | State::Firing if is_ours() => {
                        ControlFlow::Break(Seen::Found(Found { node, word, position }))
                    }
                    // With or without a ticket: it may have one, and end another timer of the key, before we have read the next cell.
                    State::Tentative | State::Yielding if is_ours() => ControlFlow::Break(Seen::Undecided(number)),
                    _ => ControlFlow::Continue(()),
                }
            });
            match seen {
                ControlFlow::Break(Seen::Found(found)) => return Some(found),
                ControlFlow::Break(Seen::Undecided(node)) => help(self, slab, node, spot, access),
                ControlFlow::Continue(()) if home.line.meta.load() == before => return None,
                ControlFlow::Continue(()) => {}
            }
        }
    }

    /// Puts a tentative node into its line. True if others in there look like it.
    #[inline]
    pub(super) fn insert<K, V>(&self, spot: Spot, node: Node<'_, K, V>, access: &Access) -> Result<bool, Unplaced>
    where
        K: Eq + Send + Sync + 'static,
        V: Send + 'static,
    {
        let home = loop {
            let (home, _) = self.home(spot, access);
            // There is no room for its number if the shard was sealed before it could grow.
            if home.shape.holds(node.number) {
                match self.claim(home.line, home.shape.cell(spot.hash, node.number), access) {
                    Claim::Made => break home,
                    Claim::Exhausted => return Err(Unplaced::Exhausted),
                    Claim::Frozen => {}
                }
            }
            if self.is_sealed() {
                return Err(Unplaced::Sealed);
            }
        };
        Ok(self.has_others(home, spot, node.number))
    }

    /// True if there are others that look like the node, which we have put in.
    #[inline]
    fn has_others(&self, home: Home<'_>, spot: Spot, node: u32) -> bool {
        let (places, last) = home.line.search(AtomicPair::load_after_claim, home.shape.like(spot.hash));
        if places.is_one() && last.link() == More::NONE {
            // That is ours; or ours is out again. Then its timer has been decided, and is not published once more.
            return false;
        }
        let others = self.each_like(home, spot.hash, AtomicPair::load_after_claim, |_, other| {
            if other == node { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        });
        others.is_break()
    }

    /// Puts a cell into the line, or into one behind it.
    #[inline]
    fn claim(&self, line: &Line, cell: u32, access: &Access) -> Claim {
        let mut line = line;
        loop {
            let (mut places, _) = line.search(AtomicPair::load, EMPTY);
            let Some(place) = places.pop() else {
                match self.claim_behind(line, cell, access) {
                    Behind::Is(claim) => return claim,
                    Behind::GoesOn(next) => line = next,
                }
                continue;
            };
            let (pair, side) = line.place(place);
            let seen = pair.load();
            if seen.is_frozen() {
                return Claim::Frozen;
            }
            if seen.cell(side) == 0 && pair.claim(seen, side, cell) {
                return Claim::Made;
            }
        }
    }

    /// The same where the line is full: says that there is one more behind it, before it is there.
    #[cold]
    fn claim_behind<'a>(&'a self, line: &'a Line, cell: u32, access: &Access) -> Behind<'a> {
        let last = line.last_pair().load();
        if last.is_frozen() {
            return Behind::Is(Claim::Frozen);
        }
        if let Some(more) = last.link().line() {
            let is_raised = line.last_pair().relink(last, last.link().raised());
            return Behind::GoesOn(if is_raised { self.overflow.at(more) } else { line });
        }
        let Some(more) = self.overflow.build(&[cell], true, access) else { return Behind::Is(Claim::Exhausted) };
        if line.last_pair().relink(last, more) {
            return Behind::Is(Claim::Made);
        }
        self.overflow.retire(more, access);
        Behind::GoesOn(line)
    }

    /// Takes the node of an ended timer out. `position` is where it was last seen, if known.
    ///
    /// True if it was this call that did so. Then nobody has been told: the caller retires the node when its key is needed no
    /// more, or tells the word. Otherwise somebody else has taken it out, and tells the word; or the shard is sealed, and it stays.
    #[must_use]
    #[inline]
    pub(super) fn remove(&self, spot: Spot, node: u32, position: Option<Position<'_>>, access: &Access) -> bool {
        if let Some(Position { pair, side, seen, is_counted: false }) = position
            && !seen.is_frozen()
            && pair.clear(seen, side)
        {
            return true;
        }
        self.search_and_remove(spot, node, access)
    }

    fn search_and_remove(&self, spot: Spot, node: u32, access: &Access) -> bool {
        loop {
            let (home, _) = self.home(spot, access);
            let place = self.each_like(home, spot.hash, AtomicPair::load, |position, number| {
                if number == node { ControlFlow::Break(position) } else { ControlFlow::Continue(()) }
            });
            match place {
                ControlFlow::Continue(()) if !home.line.meta.load().is_frozen() => return false,
                ControlFlow::Continue(()) => {}
                ControlFlow::Break(Position { seen, .. }) if seen.is_frozen() => {
                    if self.is_sealed() {
                        return false;
                    }
                }
                ControlFlow::Break(Position { pair, side, seen, is_counted }) => {
                    if pair.clear(seen, side) {
                        if is_counted {
                            self.count_out(home.line, pair, access);
                        }
                        return true;
                    }
                }
            }
        }
    }

    /// A cell behind `line` was cleared, in `pair`: the lines in front of that have one less behind them. From the last of them to the
    /// first, so that a line that is taken out leads to no others that still count.
    #[cold]
    fn count_out(&self, line: &Line, pair: &AtomicPair, access: &Access) {
        let has_pair = |line: &&Line| line.pairs.iter().any(|other| std::ptr::eq(other, pair));
        let in_front: Vec<&Line> = self.overflow.chain(line).take_while(|line| !has_pair(line)).collect();
        for line in in_front.into_iter().rev() {
            self.count_one_out(line, access);
        }
    }

    fn count_one_out(&self, line: &Line, access: &Access) {
        loop {
            let last = line.last_pair().load();
            if last.is_frozen() {
                return;
            }
            let left = last.link().lowered();
            if line.last_pair().relink(last, left) {
                if left == More::NONE {
                    self.overflow.retire(last.link(), access);
                }
                return;
            }
        }
    }

    /// Ends the shard: nothing can be inserted any more, and every timer that was pending goes to `claim`, once.
    ///
    /// Each line is frozen before its nodes are looked at. A claim that comes before is therefore seen; one that comes after fails, and
    /// knows. (Tickets are drawn all the same: what is undecided is to be decided.)
    pub(super) fn seal<K, V>(&self, slab: &Arc<Slab<K, V>>, access: &Access, mut claim: impl FnMut(u32, Word))
    where
        K: Eq + Send + Sync + 'static,
        V: Send + 'static,
    {
        let bits = self.bits.fetch_or(SEALED, AcqRel) & !SEALED;
        let shape = Shape::of(bits);
        let numbers = 1 << bits..2 << bits;
        for number in numbers.clone() {
            let soon = number + PREFETCH_AHEAD as u32 / 4;
            if numbers.contains(&soon) {
                self.lines.prefetch(soon + PREFETCH_AHEAD as u32);
                self.prefetch_nodes(slab, shape, soon);
            }
            let Some(line) = self.lines.reserved(number) else { unreachable!("nobody doubles it any more") };
            while !line.meta.load().is_set() {
                self.set_line(number, access);
            }
            self.freeze_chain(line);
            let nodes = || self.overflow.chain(line).flat_map(Line::cells).map(|cell| shape.node(cell));
            // First what is under way: it may end what is pending, and is pending then.
            nodes().for_each(|node| decide(self, slab, node, access));
            for node in nodes() {
                if let Some(word) = claim_any(slab, node) {
                    claim(node, word);
                }
            }
        }
    }

    /// Lets no cell of a line, or of those that it leads to, change any more.
    fn freeze_chain(&self, line: &Line) {
        for line in self.overflow.chain(line) {
            line.pairs.iter().for_each(AtomicPair::freeze);
        }
    }

    fn prefetch_nodes<K, V>(&self, slab: &Slab<K, V>, shape: Shape, number: u32)
    where
        K: Eq + Send + Sync + 'static,
        V: Send + 'static,
    {
        let cells = self.lines.reserved(number).into_iter().flat_map(Line::cells);
        for node in cells.map(|cell| shape.node(cell)) {
            slab.prefetch(node);
            slab.prefetch_tail(node);
        }
    }
}

/// We took the node of a timer out of its line whose key may still be in use.
fn tell_unlinked<K, V>(slab: &Arc<Slab<K, V>>, node: Node<'_, K, V>, access: &Access)
where
    K: Eq + Send + Sync + 'static,
    V: Send + 'static,
{
    if node.head.word.unlink() {
        slab.retire(node, access);
    }
}

/// Takes the node of a timer out that was ended while its callback runs. Who runs that would do so afterwards; until
/// then each look-up would pass the node, and all others of a key that is started over and over while its callbacks are late.
#[cold]
pub(super) fn take_out<K, V>(index: &Index, slab: &Arc<Slab<K, V>>, spot: Spot, node: Node<'_, K, V>, access: &Access)
where
    K: Eq + Send + Sync + 'static,
    V: Send + 'static,
{
    if index.remove(spot, node.number, None, access) {
        tell_unlinked(slab, node, access);
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use super::super::ClaimedNode;
    use super::super::search::CELLS;
    use super::*;

    #[test]
    fn timers_are_found_before_and_after_their_lines_are_split() {
        use super::super::{Due, Repeats, Shard, Tick};
        // Many of one hash among them.
        for spread in [u32::MAX / 500, 1, 0] {
            let (now, count) = (Tick(1), 500);
            let shard = Shard::<u32, u32>::new(1, 64, now);
            let ordinal = crate::thread::ordinal();
            let due = Due { tick: Some(Tick(9)), now };
            let spot = |key: u32| shard.spot(key * spread);
            for key in 0..count {
                let access = &mut Access::new(&ordinal);
                assert!(shard.schedule(spot(key), key, key, due, Repeats::Never, access).is_ok());
            }
            let access = Access::new(&ordinal);
            let is_there = |key| shard.holds(spot(key), |&other| other == key, &access);
            assert!((0..count).all(is_there));
            let next = (0..2 * count).fold(1, |next, _| shard.split_ahead(next, 7, &access));
            assert!(next >= 2 << 6 && (0..count).all(is_there), "{next}");
            for key in (0..count).rev() {
                assert_eq!(shard.cancel(spot(key), |&other| other == key, &access), Some(key));
                assert!(!is_there(key));
            }
            assert_eq!(linked(&shard), 0);
        }
    }

    #[test]
    fn a_timer_that_is_ended_while_it_fires_is_no_longer_passed_by() {
        use super::super::{Due, Fired, Hint, Look, Repeats, Shard, Tick};
        let (now, rounds) = (Tick(1), 4 * 64);
        let shard = Shard::<u32, u32>::new(1, 64, now);
        let ordinal = crate::thread::ordinal();
        let access = || Access::new(&ordinal);
        let is_key = |&key: &u32| key == 7;
        let mut firing = Vec::new();
        for round in 0..rounds {
            let due = Due { tick: Some(now), now };
            let started = shard.schedule(shard.spot(3), 7, round, due, Repeats::IfWanted, &mut access());
            let timer = started.expect("it is open").identity;
            assert_eq!(linked(&shard), 1, "round {round}");
            assert!(firing.iter().all(|(claim, _): &(ClaimedNode, u32)| claim.node() != timer.node), "it is in use");
            let Look::Expired(claim) = shard.look(Hint::new(now, timer.node), now, &access()) else {
                panic!("it is due")
            };
            firing.push(shard.take_value(claim));
            match round % 3 {
                0 => assert_eq!(shard.cancel(shard.spot(3), is_key, &access()), None),
                1 => assert_eq!(shard.cancel_this(timer, &access()), None),
                _ => continue,
            }
            assert_eq!(linked(&shard), 0, "round {round}");
        }
        for (claim, value) in firing {
            let access = &access();
            let Fired::Ended(claim, _) = shard.fired(claim, value, None, now, access) else { panic!("it was ended") };
            shard.finish(claim, access);
        }
        assert_eq!((linked(&shard), shard.nodes_in_use()), (0, 0));
    }

    #[test]
    fn a_timer_that_gives_way_leaves_nothing_behind() {
        use super::super::{Due, Repeats, Shard, Tick};
        let now = Tick(1);
        let shard = Shard::<u32, u32>::new(1, 64, now);
        let ordinal = crate::thread::ordinal();
        let due = Due { tick: Some(Tick(9)), now };
        for round in 0..4 * 64 {
            let access = &mut Access::new(&ordinal);
            let given =
                shard.schedule_if_absent(shard.spot(3), 7, round, due, Repeats::Never, access).expect("it is open");
            assert_eq!((given, linked(&shard)), ((round > 0).then_some(round), 1));
        }
        assert_eq!(shard.cancel(shard.spot(3), |&key| key == 7, &Access::new(&ordinal)), Some(0));
        assert_eq!((linked(&shard), shard.nodes_in_use()), (0, 0));
    }

    /// What stands between growing and the end of the shard: the number of a new node needs more lines, and there will be none.
    #[test]
    fn a_shard_that_is_about_to_be_sealed_takes_no_node_that_it_has_no_room_for() {
        use super::super::{Due, Refused, Repeats, Shard, Tick};
        let (now, few) = (Tick(1), 1 << (FIRST_BITS + 4));
        let shard = Shard::<u32, u32>::new(1, 64, now);
        let ordinal = crate::thread::ordinal();
        let access = &mut Access::new(&ordinal);
        let due = Due { tick: None, now };
        for key in 0..few {
            assert!(shard.schedule_unindexed(key, key, due, Repeats::Never, access).is_ok());
        }
        shard.index.bits.fetch_or(SEALED, AcqRel);
        let refused = shard.schedule(shard.spot(3), 7, 70, due, Repeats::Never, access);
        assert!(matches!(refused, Err(Refused::Sealed(7, 70))));
        assert_eq!(linked(&shard), 0);
    }

    /// As with nodes, the timer does not begin, and key and value come back.
    #[test]
    fn where_no_further_line_is_left_a_timer_is_refused() {
        use super::super::{Due, Refused, Repeats, Shard, Tick};
        let now = Tick(1);
        let shard = Shard::<u32, u32>::new(1, 64, now);
        let ordinal = crate::thread::ordinal();
        let access = &mut Access::new(&ordinal);
        let due = Due { tick: None, now };
        let mut schedule = |key| shard.schedule(shard.spot(0), key, 10 * key, due, Repeats::Never, access);
        shard.index.overflow.use_up();
        assert!((1..CELLS).all(|key| schedule(key).is_ok()));
        // For a moment, both are there.
        assert!(matches!(schedule(7), Ok(started) if started.replaced == Some(70)));
        assert!(schedule(0).is_ok());
        assert!(matches!(schedule(CELLS), Err(Refused::Exhausted(CELLS, value)) if value == 10 * CELLS));
        assert_eq!(linked(&shard), CELLS as usize);
    }

    #[test]
    fn further_lines_are_used_again() {
        use super::super::{Due, Repeats, Shard, Tick};
        let now = Tick(1);
        let shard = Shard::<u32, u32>::new(1, 64, now);
        let ordinal = crate::thread::ordinal();
        let due = Due { tick: None, now };
        let spot = |key: u32| shard.spot(key << 24);
        let lines = || shard.index.overflow.lines_in_use();
        let schedule = |key| {
            let access = &mut Access::new(&ordinal);
            assert!(shard.schedule(spot(key), key, key, due, Repeats::Never, access).is_ok());
        };
        // All in one line of the first array; then in several of a larger one.
        let count = 6 * CELLS;
        (0..count).for_each(|key| schedule(key % 8 + key / 8 * 256));
        assert_eq!(lines(), 5);
        for _ in 0..4 {
            shard.index.double(shard.index.bits());
        }
        assert_eq!(shard.split_ahead(0, u32::MAX, &Access::new(&ordinal)), 2 << shard.index.bits());
        assert_eq!(linked(&shard), count as usize);
        collect();
        assert_eq!(lines(), 0, "those of the first array, of those between, and what they have been split into");
    }

    /// What is deferred comes to pass.
    fn collect() {
        (0..512).for_each(|_| crossbeam_epoch::pin().flush());
    }

    /// Nodes that lines lead to.
    fn linked(shard: &super::super::Shard<u32, u32>) -> usize {
        let index = &shard.index;
        let mut count = 0;
        for number in 1 << index.bits()..2 << index.bits() {
            let line = index.lines.reserve(number);
            if line.meta.load().is_set() {
                count += index.overflow.chain(line).flat_map(Line::cells).count();
            }
        }
        count
    }
}
