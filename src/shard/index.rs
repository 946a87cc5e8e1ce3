//! From key to timer: a lock-free hash index that grows while in use and never moves a timer.
//!
//! An array of lines (`lines.rs`), chosen by the first bits of the hash: to look a key up is to fetch one line of memory (`line.rs`), and
//! then the node. No line leads to another one but in rare cases (`overflow.rs`).
//!
//! - **Membership is decided by the timer word, not by the line.** A cell may lead to a node that is dead or tentative. At most
//!   one node of a key is pending.
//! - **Inserting** fails only when the shard is sealed, or no further line is left. A new node goes into any empty cell, tentative; then
//!   its author looks for others of its tag. Of two who come at once, at least one sees the other. Who sees nobody, or one that is
//!   dead, publishes. Else `succession.rs` decides, by *tickets*, which are drawn from the line: a ticket is younger than the nodes that were
//!   in the line when it was drawn.
//! - **Absent** is what was not found if no ticket was drawn meanwhile: a timer that takes the place of another one, in another cell, has
//!   one before it ends that.
//! - The thread whose exchange takes a node out of its cell, and no other, tells the node's word; or keeps it in mind if that was its task.

use super::line::{AtomicPair, EMPTY, Line, More, Pair, Shape, Side};
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

/// What somebody is about to do with a timer.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Intent {
    /// For which its value is not needed.
    Move,
    End,
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

/// A cell that looks like a key's, and where it leads, in this shard, as they were under the guard that its holder still has. So whoever
/// goes on from there does what a look-up does that was interrupted between the cell and the node.
#[derive(Clone, Copy)]
pub(crate) struct Glimpse<'a> {
    position: Position<'a>,
    node: u32,
}

/// What a look-up came to.
enum Seen<'a, K, V> {
    Found(Found<'a, K, V>),
    Undecided(u32),
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
    pub(super) lines: Lines,
}

impl Index {
    pub(super) fn new() -> Self {
        Self { lines: Lines::new() }
    }

    /// Where a key of this hash belongs, and asks the processor for what is there.
    #[inline]
    pub(super) fn spot(&self, hash: u32) -> Spot {
        self.lines.prefetch(hash);
        Spot { hash }
    }

    /// The cell of the key, or of another one that looks like it, if there is one; asks the processor for its node. The line should be in
    /// the cache by now; if it is not set, there is none.
    #[inline]
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
    /// Its caller has claimed a cell, or has had the fence of `help` since he acquired a claim. Of that claim and any other: he sees the
    /// other one, or its author sees that one.
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

    /// As `find`, and looks at the glimpse first, which is of the same spot.
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

    /// Puts a tentative node into its line. True if others in there look like it, and may be there still.
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
            // There is no room for its number if the shard was sealed before it could grow.
            if let Some(cell) = home.cell(node.number) {
                match self.claim(home.line, cell, access) {
                    Claim::Made => break home,
                    Claim::Exhausted => return Err(Unplaced::Exhausted),
                    Claim::Frozen => {}
                }
            }
            if self.lines.is_sealed() {
                return Err(Unplaced::Sealed);
            }
        };
        Ok(self.has_others(slab, home, node.number))
    }

    /// True if there are others that look like the node, which we have put in, and may be there still.
    #[inline]
    fn has_others<K, V>(&self, slab: &Slab<K, V>, home: Home<'_>, node: u32) -> bool
    where
        K: Eq + Send + Sync + 'static,
        V: Send + 'static,
    {
        let (places, last) = home.line.search(AtomicPair::load_after_claim, home.like);
        if places.is_one() && last.link() == More::NONE {
            // That is ours; or ours is out again. Then its timer has been decided, and is not published once more.
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
        // One that is dead is as good as none. It may be the timer whose callback starts its key again. (Several are not passed over: whoever
        // goes through them takes the dead out, of a key that is started over and over while its callbacks are late.)
        several.is_break() || other.is_some_and(|other| !slab.head(other).word.is_dead())
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
            return Behind::GoesOn(if is_raised { self.lines.overflow.at(more) } else { line });
        }
        let Some(more) = self.lines.overflow.build(&[cell], true, access) else { return Behind::Is(Claim::Exhausted) };
        if line.last_pair().relink(last, more) {
            return Behind::Is(Claim::Made);
        }
        self.lines.overflow.retire(more, access);
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

    /// A cell behind `line` was cleared, in `pair`: the lines in front of that have one less behind them. From the last of them to the
    /// first, so that a line that is taken out leads to no others that still count.
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
    /// Each line is frozen before its nodes are looked at. A claim that comes before is therefore seen; one that comes after fails, and
    /// knows. (Tickets are drawn all the same: what is undecided is to be decided.)
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
            // First what is under way: it may end what is pending, and is pending then.
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

/// What there is at a cell that looks like the key's.
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
    // SAFETY: reached in the index, under the guard that the holder of a glimpse has.
    let is_ours = || unsafe { node.head.with_key(&is_key) };
    match word.state() {
        State::Pending | State::Firing if is_ours() => ControlFlow::Break(Seen::Found(Found { node, word, position })),
        // With or without a ticket: it may have one, and end another timer of the key, before we have read the next cell.
        State::Tentative | State::Yielding if is_ours() => ControlFlow::Break(Seen::Undecided(number)),
        _ => ControlFlow::Continue(()),
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

/// Takes the node of a timer out that has ended, and whose callback runs, or has yet to. Who runs that would do so afterwards; until
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
mod tests;
