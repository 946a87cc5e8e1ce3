//! From key to timer: a lock-free hash index that grows while in use and never moves a timer.
//!
//! An array of lines (`lines.rs`), chosen by the first bits of the hash. To look a key up is to fetch one line of
//! memory (`line.rs`), and then the node. Only in rare cases does a line lead to another one (`overflow.rs`).
//!
//! - **Membership is decided by the timer word, not by the line.** A cell may lead to a node that is dead or undecided.
//!   At most one node of a key is pending.
//! - **Inserting** fails only if the shard is sealed, or if no further line is left. (If there are too few lines for
//!   the node's number, the caller has them doubled and tries again.) A new node goes into any empty cell, tentative or
//!   yielding; then its author looks for other nodes of its tag. Of two authors that insert at once, at least one sees
//!   the other. An author that sees no other node, or a single dead one, publishes its timer. Otherwise `succession.rs`
//!   decides, by *tickets*, which are drawn from the line: a ticket is younger than the nodes that were in the line
//!   when it was drawn.
//! - **Absent** is a key that a scan did not find, if no ticket was drawn during the scan: a timer that takes another
//!   one's place, from another cell, has a ticket before it ends that one.
//! - Only the thread whose exchange takes a node out of its cell marks the node's word as unlinked; or it just
//!   remembers this, if taking the node out was its task.

use super::line::{AtomicPair, EMPTY, Line, More, NO_HASH, Pair, Shape, Side};
use super::lines::{Home, Lines};
use super::slab::{Node, Slab};
use super::succession::{claim_any, decide, help};
use super::word::{State, Word};
use super::{Access, PREFETCH_AHEAD};
use std::ops::ControlFlow;
use std::sync::Arc;

/// Why a node was not put in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Unplaced {
    /// The shard is closed: nothing can be inserted any more.
    Sealed,
    /// Its line is full, and no further one is left.
    Exhausted,
    /// A cell has no room for the node's number: there are too few lines.
    NoRoom,
}

/// Where a key belongs.
#[derive(Clone, Copy)]
pub(crate) struct Spot {
    hash: u32,
}

impl Spot {
    #[inline]
    pub(crate) fn of(hash: u32) -> Self {
        Self { hash }
    }

    /// As `of`; `None` for `NO_HASH`.
    #[inline]
    pub(crate) fn if_indexed(hash: u32) -> Option<Self> {
        (hash != NO_HASH).then(|| Self::of(hash))
    }

    #[inline]
    pub(crate) fn hash(self) -> u32 {
        self.hash
    }
}

/// What a caller is about to do with a timer.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Intent {
    /// To move it: its value is not needed.
    Move,
    End,
}

/// The cell of a node as it was seen.
#[derive(Clone, Copy)]
pub(super) struct Position<'a> {
    pair: &'a AtomicPair,
    side: Side,
    seen: Pair,
    /// It is in a further line, so the lines in front count it.
    is_counted: bool,
}

/// A pending or firing timer, as it was when it was found.
pub(super) struct Found<'a, K, V> {
    pub(super) node: Node<'a, K, V>,
    pub(super) word: Word,
    pub(super) position: Position<'a>,
}

/// A cell that looks like the key's, and the node that it leads to, in this shard. Both were read under a guard that
/// the holder of the glimpse still holds. So going on from a glimpse is no different from a look-up that was
/// interrupted between the cell and the node.
#[derive(Clone, Copy)]
pub(crate) struct Glimpse<'a> {
    position: Position<'a>,
    node: u32,
}

/// What stopped the scan of a look-up.
enum Seen<'a, K, V> {
    Found(Found<'a, K, V>),
    Undecided(u32),
}

/// What became of a claim.
enum CellClaim {
    Made,
    Frozen,
    /// It needs a further line, and none is left.
    Exhausted,
}

/// What became of a claim in a line that is full.
enum Behind<'a> {
    Is(CellClaim),
    /// It goes on in this line: a further one, or the same, which has changed meanwhile.
    GoesOn(&'a Line),
}

pub(crate) struct Index {
    pub(super) lines: Lines,
}

impl Index {
    pub(super) fn new() -> Self {
        Self { lines: Lines::new() }
    }

    /// Prefetches the line at a spot.
    #[inline]
    pub(super) fn prefetch(&self, spot: Spot) {
        self.lines.prefetch(spot.hash);
    }

    /// The first cell that looks like the key's, if there is one (it may be another key's); prefetches its node. The
    /// line should be in the cache by now. `None` as well if the line is not set, or is frozen.
    // Always inlined: for batches, to hand the glimpse over in memory costs more than to look.
    #[inline(always)]
    pub(super) fn glimpse<'a, K, V>(
        &'a self,
        slab: &Slab<K, V>,
        spot: Spot,
        intent: Intent,
        access: &'a Access,
    ) -> Option<Glimpse<'a>>
    where
        K: Eq + Send + Sync + 'static,
        V: Send + 'static,
    {
        let home = self.lines.home_if_set(spot.hash, access)?;
        let first =
            self.each_like(home, AtomicPair::load, |position, node| ControlFlow::Break(Glimpse { position, node }));
        let glimpse = first.break_value()?;
        slab.prefetch(glimpse.node);
        if intent == Intent::End {
            slab.prefetch_tail(glimpse.node);
        }
        Some(glimpse)
    }

    /// Calls `each` for each cell that looks like the key's.
    #[inline(always)]
    fn each_like<'a, B>(
        &'a self,
        home: Home<'a>,
        load: impl Fn(&AtomicPair) -> Pair + Copy,
        mut each: impl FnMut(Position<'a>, u32) -> ControlFlow<B>,
    ) -> ControlFlow<B> {
        let Home { mut line, like } = home;
        let mut is_counted = false;
        loop {
            let (mut places, last) = line.search(load, like);
            while let Some(place) = places.pop() {
                let (pair, side) = line.place(place);
                let seen = load(pair);
                let cell = seen.cell(side);
                if cell != 0 && like.fits(cell) {
                    each(Position { pair, side, seen, is_counted }, home.node(cell))?;
                }
            }
            let Some(more) = last.link().line() else { return ControlFlow::Continue(()) };
            line = self.lines.overflow.at(more);
            is_counted = true;
        }
    }

    /// Calls `each` for each node that looks like the key's.
    ///
    /// The caller has claimed a cell of the line; or it has acquired another thread's claim and then run the fence in
    /// `help`. Of that claim C and any other claim D: this call sees D, or the author of D sees C.
    pub(super) fn each_node(&self, spot: Spot, access: &Access, mut each: impl FnMut(u32) -> ControlFlow<()>) {
        let (home, _) = self.lines.home(spot.hash, access);
        let _ = self.each_like(home, AtomicPair::load_after_claim, |_, node| each(node));
    }

    /// The next ticket of the key's line.
    pub(super) fn draw(&self, spot: Spot, access: &Access) -> u64 {
        loop {
            if let Some(ticket) = self.lines.home(spot.hash, access).0.line.meta.draw() {
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
        loop {
            let (home, before) = self.lines.home(spot.hash, access);
            let each = |position, node| look(slab, Glimpse { position, node }, &is_key);
            match self.each_like(home, AtomicPair::load, each) {
                ControlFlow::Break(Seen::Found(found)) => return Some(found),
                ControlFlow::Break(Seen::Undecided(node)) => help(self, slab, node, spot, access),
                ControlFlow::Continue(()) if home.line.meta.load() == before => return None,
                ControlFlow::Continue(()) => {}
            }
        }
    }

    /// As `find`, but looks first at the glimpse, which is of the same spot.
    #[inline]
    pub(super) fn find_at<'a, K, V>(
        &'a self,
        slab: &'a Arc<Slab<K, V>>,
        spot: Spot,
        glimpse: Option<Glimpse<'a>>,
        is_key: impl Fn(&K) -> bool,
        access: &'a Access,
    ) -> Option<Found<'a, K, V>>
    where
        K: Eq + Send + Sync + 'static,
        V: Send + 'static,
    {
        match glimpse.map(|glimpse| look(slab, glimpse, &is_key)) {
            Some(ControlFlow::Break(Seen::Found(found))) => Some(found),
            _ => self.find(slab, spot, is_key, access),
        }
    }

    /// Puts a tentative or yielding node into its line. True if other nodes in the line look like it and may be alive.
    #[inline]
    pub(super) fn insert<K, V>(
        &self,
        slab: &Slab<K, V>,
        spot: Spot,
        node: Node<'_, K, V>,
        access: &Access,
    ) -> Result<bool, Unplaced>
    where
        K: Eq + Send + Sync + 'static,
        V: Send + 'static,
    {
        let home = loop {
            let (home, _) = self.lines.home(spot.hash, access);
            let claim = home.cell(node.number).map(|cell| self.claim(home.line, cell, access));
            match claim {
                Some(CellClaim::Made) => break home,
                Some(CellClaim::Exhausted) => return Err(Unplaced::Exhausted),
                Some(CellClaim::Frozen) | None if self.lines.is_sealed() => return Err(Unplaced::Sealed),
                Some(CellClaim::Frozen) => {}
                None => return Err(Unplaced::NoRoom),
            }
        };
        Ok(self.has_others(slab, home, node.number))
    }

    /// True if nodes other than ours, which we have put in, look like it and may be alive.
    #[inline]
    fn has_others<K, V>(&self, slab: &Slab<K, V>, home: Home<'_>, node: u32) -> bool
    where
        K: Eq + Send + Sync + 'static,
        V: Send + 'static,
    {
        let (places, last) = home.line.search(AtomicPair::load_after_claim, home.like);
        if places.is_one() && last.link() == More::NONE {
            // That is our node. Or our node is out again: then its timer has been decided, and `publish_first` fails.
            return false;
        }
        let mut other = None;
        let several = self.each_like(home, AtomicPair::load_after_claim, |_, like| match other {
            _ if like == node => ControlFlow::Continue(()),
            None => {
                other = Some(like);
                ControlFlow::Continue(())
            }
            Some(_) => ControlFlow::Break(()),
        });
        // A single dead one does not count: it may be the timer whose callback starts its own key again. (Several do
        // count, even if all are dead: then our caller goes through them and takes the dead ones out. Otherwise they
        // would pile up for a key that is started over and over while its callbacks are late.)
        several.is_break() || other.is_some_and(|other| !slab.head(other).word.is_dead())
    }

    /// Puts a cell into the line, or into one behind it.
    #[inline]
    fn claim(&self, home: &Line, cell: u32, access: &Access) -> CellClaim {
        let mut line = home;
        loop {
            let (mut places, _) = line.search(AtomicPair::load, EMPTY);
            let Some(place) = places.pop() else {
                match self.claim_behind(home, line, cell, access) {
                    Behind::Is(claim) => return claim,
                    Behind::GoesOn(next) => line = next,
                }
                continue;
            };
            let (pair, side) = line.place(place);
            let seen = pair.load();
            if seen.is_frozen() {
                return CellClaim::Frozen;
            }
            if seen.cell(side) == 0 && pair.claim(seen, side, cell) {
                return CellClaim::Made;
            }
        }
    }

    /// As `claim`, for a full line. Its link counts the new timer before that timer is in a line behind it.
    #[cold]
    fn claim_behind<'a>(&'a self, home: &Line, line: &'a Line, cell: u32, access: &Access) -> Behind<'a> {
        let last = line.last_pair().load();
        if last.is_frozen() {
            return Behind::Is(CellClaim::Frozen);
        }
        if let Some(more) = last.link().line() {
            let is_raised = line.last_pair().relink(last, last.link().raised());
            return Behind::GoesOn(if is_raised { self.lines.overflow.at(more) } else { line });
        }
        let Some(more) = self.lines.overflow.build(&[cell], true, access) else {
            // The lines in front of this one have counted the timer.
            self.count_out(home, line.last_pair(), access);
            return Behind::Is(CellClaim::Exhausted);
        };
        if line.last_pair().relink(last, more) {
            return Behind::Is(CellClaim::Made);
        }
        self.lines.overflow.retire(more, access);
        Behind::GoesOn(line)
    }

    /// Takes the node of an ended timer out of its cell. `position` is where the node was last seen, if known.
    ///
    /// True if it was this call that took the node out. The word does not say so yet: the caller retires the node when
    /// its key is needed no more, or marks the word (`unlink`). False if another thread took the node out, and has that
    /// duty instead; or if the shard is sealed, and the node stays.
    #[must_use]
    #[inline]
    pub(super) fn remove(&self, spot: Spot, node: u32, position: Option<Position<'_>>, access: &Access) -> bool {
        if let Some(Position { pair, side, seen, is_counted: false }) = position
            && !seen.is_frozen()
            && pair.clear(seen, side)
        {
            return true;
        }
        self.remove_from_elsewhere(spot, node, access)
    }

    /// Not inlined: it would make the calls longer that know the position.
    #[inline(never)]
    fn remove_from_elsewhere(&self, spot: Spot, node: u32, access: &Access) -> bool {
        self.search_and_remove(spot, node, access)
    }

    /// As `remove`, without a position.
    #[must_use]
    #[inline(always)]
    pub(super) fn search_and_remove(&self, spot: Spot, node: u32, access: &Access) -> bool {
        loop {
            let (home, _) = self.lines.home(spot.hash, access);
            let place = self.each_like(home, AtomicPair::load, |position, number| {
                if number == node { ControlFlow::Break(position) } else { ControlFlow::Continue(()) }
            });
            match place {
                ControlFlow::Continue(()) if !home.line.meta.load().is_frozen() => return false,
                ControlFlow::Continue(()) => {}
                ControlFlow::Break(Position { seen, .. }) if seen.is_frozen() => {
                    if self.lines.is_sealed() {
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

    /// A cell of `pair`, which is in a line behind `line`, was cleared, or a timer has found no room in that pair's
    /// line: each line in front of it has one timer less behind it. Goes from the last of them to the first, so that a
    /// line that gets unlinked does not lead to lines that still count timers.
    #[cold]
    fn count_out(&self, line: &Line, pair: &AtomicPair, access: &Access) {
        let has_pair = |line: &&Line| line.pairs.iter().any(|other| std::ptr::eq(other, pair));
        let in_front: Vec<&Line> = self.lines.overflow.chain(line).take_while(|line| !has_pair(line)).collect();
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
                    self.lines.overflow.retire(last.link(), access);
                }
                return;
            }
        }
    }

    /// Ends the shard: nothing can be inserted any more, and every timer that was pending goes to `claim`, once.
    ///
    /// Each line is frozen before its nodes are looked at. So a claim that comes before the freeze is seen; one that
    /// comes after it fails, and its author learns why. (Tickets can still be drawn: what is undecided has to be
    /// decided.)
    pub(super) fn seal<K, V>(&self, slab: &Arc<Slab<K, V>>, access: &Access, mut claim: impl FnMut(u32, Word))
    where
        K: Eq + Send + Sync + 'static,
        V: Send + 'static,
    {
        let shape = self.lines.seal();
        for number in shape.lines() {
            let soon = number + PREFETCH_AHEAD as u32 / 4;
            if shape.lines().contains(&soon) {
                self.lines.prefetch_last(soon + PREFETCH_AHEAD as u32);
                self.prefetch_nodes(slab, shape, soon, access);
            }
            let line = self.lines.frozen(number, access);
            let nodes = || self.lines.all_cells(line).map(|cell| shape.node(cell));
            // First the undecided timers: deciding one may end a pending timer, and then it is pending itself.
            nodes().for_each(|node| decide(self, slab, node, access));
            for node in nodes() {
                if let Some(word) = claim_any(slab, node) {
                    claim(node, word);
                }
            }
        }
    }

    fn prefetch_nodes<K, V>(&self, slab: &Slab<K, V>, shape: Shape, number: u32, access: &Access)
    where
        K: Eq + Send + Sync + 'static,
        V: Send + 'static,
    {
        for node in self.lines.cells(number, access).map(|cell| shape.node(cell)) {
            slab.prefetch(node);
            slab.prefetch_tail(node);
        }
    }
}

/// What is behind a cell that looks like the key's; continues unless that is a live or undecided timer of the key.
#[inline]
fn look<'a, K, V>(
    slab: &'a Slab<K, V>,
    Glimpse { position, node: number }: Glimpse<'a>,
    is_key: impl Fn(&K) -> bool,
) -> ControlFlow<Seen<'a, K, V>>
where
    K: Eq + Send + Sync + 'static,
    V: Send + 'static,
{
    let node = slab.node(number);
    let word = node.head.word.load();
    // SAFETY: the node was reached in the index, under the guard that the holder of a glimpse holds.
    let is_ours = || unsafe { node.head.with_key(&is_key) };
    match word.state() {
        State::Pending | State::Firing if is_ours() => ControlFlow::Break(Seen::Found(Found { node, word, position })),
        // With or without a ticket: before we have read the next cell, it may get one and end another timer of the key.
        State::Tentative | State::Yielding if is_ours() => ControlFlow::Break(Seen::Undecided(number)),
        _ => ControlFlow::Continue(()),
    }
}

/// We took a node out of its line while its key may still be in use: marks its word, or retires it if nobody needs the
/// key.
fn mark_unlinked<K, V>(slab: &Arc<Slab<K, V>>, node: Node<'_, K, V>, access: &Access)
where
    K: Eq + Send + Sync + 'static,
    V: Send + 'static,
{
    if node.head.word.unlink() {
        slab.retire(node, access);
    }
}

/// Takes out the node of a timer that has ended, but whose callback is running or has yet to run. The thread that runs
/// the callback would take the node out afterwards. Until then each look-up would pass by it, and by all others of a
/// key that is started over and over while its callbacks are late.
#[cold]
pub(super) fn take_out<K, V>(index: &Index, slab: &Arc<Slab<K, V>>, spot: Spot, node: Node<'_, K, V>, access: &Access)
where
    K: Eq + Send + Sync + 'static,
    V: Send + 'static,
{
    if index.remove(spot, node.number, None, access) {
        mark_unlinked(slab, node, access);
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests;
