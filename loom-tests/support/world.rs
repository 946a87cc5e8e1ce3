//! A shard, callers and a worker, small enough for a model; and the ledger in which every key and value must balance.

use super::{Gate, spawn};
use crate::shard::{
    Access, ClaimedNode, Consumer, Due, Fired, Hint, Intent, Look, Ordinal, Purpose, Refused, Repeats, Shard, Spot,
    Started, Tick,
};
use crate::size::BATCH;
use crate::sync::{AtomicU64, Ordering};
use loom::thread::JoinHandle;
use std::cell::RefCell;
use std::rc::Rc;

/// The first tick of every model.
pub(crate) const TICK_0: u64 = 100;
/// Stripes of the mailbox.
const STRIPES: usize = 2;

/// The number of a model's thread, which no other one uses: it starts and ends everything through it. The worker's is
/// 0.
pub(crate) fn ordinal(thread: u32) -> Ordinal {
    // SAFETY: a model that gave one number to two threads at once would fail, because loom sees what is kept under it.
    unsafe { Ordinal::assume(thread) }
}

thread_local! {
    static LEDGER: RefCell<Ledger> = RefCell::default();
}

#[derive(Default)]
struct Ledger {
    values: Vec<(u32, bool)>,
    keys: Vec<(u32, bool)>,
}

fn open(list: &mut Vec<(u32, bool)>, name: u32) -> usize {
    list.push((name, false));
    list.len() - 1
}

fn close(list: &mut [(u32, bool)], entry: usize, what: &str) {
    match list.get_mut(entry) {
        Some((_, dropped @ false)) => *dropped = true,
        Some((name, true)) => panic!("{what} {name} dropped twice"),
        None => panic!("{what} of another execution dropped"),
    }
}

pub(super) fn begin_execution() {
    LEDGER.take();
}

/// Every key and every value has been dropped exactly once.
pub(super) fn end_execution() {
    let ledger = LEDGER.take();
    for (what, list) in [("value", &ledger.values), ("key", &ledger.keys)] {
        for (name, dropped) in list {
            assert!(dropped, "{what} {name} lost");
        }
    }
}

#[derive(Debug)]
pub(crate) struct Value {
    pub(crate) name: u32,
    entry: usize,
}

impl Value {
    pub(crate) fn new(name: u32) -> Self {
        Self { name, entry: LEDGER.with_borrow_mut(|ledger| open(&mut ledger.values, name)) }
    }
}

impl Drop for Value {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            LEDGER.with_borrow_mut(|ledger| close(&mut ledger.values, self.entry, "value"));
        }
    }
}

#[derive(Debug)]
pub(crate) struct Key {
    name: u32,
    entry: usize,
}

/// The types of key of a model's timers.
pub(crate) trait Named: Eq + Send + Sync + 'static {
    fn new(name: u32) -> Self;
    fn name(&self) -> u32;
}

impl Named for Key {
    fn new(name: u32) -> Self {
        Self { name, entry: LEDGER.with_borrow_mut(|ledger| open(&mut ledger.keys, name)) }
    }
    fn name(&self) -> u32 {
        self.name
    }
}

/// A key that needs no drop.
impl Named for u32 {
    fn new(name: u32) -> Self {
        name
    }
    fn name(&self) -> u32 {
        *self
    }
}

/// Keys 1, 11, 21 share a hash. Its leading bits choose the line, so the first split parts odd keys from even ones.
fn hash(name: u32) -> u32 {
    (name % 10).reverse_bits()
}

impl PartialEq for Key {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl Eq for Key {}

impl Drop for Key {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            LEDGER.with_borrow_mut(|ledger| close(&mut ledger.keys, self.entry, "key"));
        }
    }
}

/// A timer known by its identity.
pub(crate) use crate::shard::Identity;

/// An expiry, as the callback would see it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Firing {
    pub(crate) key: u32,
    pub(crate) value: u32,
    pub(crate) due: u64,
    pub(crate) at: u64,
}

/// What the threads of a model share. Ticks are counted from [`TICK_0`].
pub(crate) struct World<K = Key> {
    pub(crate) shard: Rc<Shard<K, Value>>,
}

impl<K> Clone for World<K> {
    fn clone(&self) -> Self {
        Self { shard: Rc::clone(&self.shard) }
    }
}

/// What a thread has done before a call: a thread that sees what the call did must see this.
pub(crate) struct Mark(Rc<AtomicU64>);

impl Mark {
    pub(crate) fn is_seen(&self) -> bool {
        // Relaxed, here and where it is set: only the call may order it.
        self.0.load(Ordering::Relaxed) == 1
    }
}

/// A timer that is never due: its author pushes no hint, and so passes no fence.
pub(crate) const NEVER: u64 = u64::MAX;

fn due(tick: u64) -> Due {
    Due { tick: (tick != NEVER).then(|| Tick(TICK_0 + tick)), now: Tick(TICK_0) }
}

impl World {
    pub(crate) fn new() -> Self {
        Self::with_keys()
    }

    pub(crate) fn worker(&self) -> Worker {
        Worker {
            world: self.clone(),
            drain: self.shard.mailbox.consumer(),
            wheel: Vec::new(),
            firings: Vec::new(),
            runs: Vec::new(),
        }
    }
}

impl<K: Named> World<K> {
    /// Makes a call on a thread of its own, which sets a mark before.
    pub(crate) fn spawn_marked<R: 'static>(&self, call: impl FnOnce(&Self) -> R + 'static) -> (JoinHandle<R>, Mark) {
        let (world, mark) = (self.clone(), Rc::new(AtomicU64::new(0)));
        let own = Rc::clone(&mark);
        let thread = spawn(move || {
            own.store(1, Ordering::Relaxed);
            call(&world)
        });
        (thread, Mark(mark))
    }

    pub(crate) fn with_keys() -> Self {
        Self { shard: Rc::new(Shard::new(STRIPES, BATCH, Tick(TICK_0))) }
    }

    /// Returns the timer's identity, and the value that it replaced. `Err` if the shard is sealed.
    pub(crate) fn schedule(
        &self,
        thread: u32,
        key: u32,
        value: u32,
        tick: u64,
    ) -> Result<(Identity, Option<u32>), Sealed> {
        self.begin(thread, key, value, tick, Repeats::Never)
    }

    fn begin(
        &self,
        thread: u32,
        key: u32,
        value: u32,
        tick: u64,
        repeats: Repeats<Value>,
    ) -> Result<(Identity, Option<u32>), Sealed> {
        let (spot, ordinal) = (self.spot(key), ordinal(thread));
        let mut access = Access::new(&ordinal);
        match self.shard.schedule(spot, K::new(key), Value::new(value), due(tick), repeats, &mut access) {
            Ok(Started { others: 1.., .. }) => panic!("two timers of one key"),
            Ok(Started { identity, replaced, .. }) => Ok((identity, replaced.map(|value| value.name))),
            Err(Refused::Sealed(k, v)) => {
                assert_eq!((k.name(), v.name), (key, value), "key and value come back");
                Err(Sealed)
            }
            Err(Refused::Exhausted(..)) => panic!("a model does not fill 2^28 nodes"),
        }
    }

    /// Returns the value if the key has a timer already.
    pub(crate) fn schedule_if_absent(
        &self,
        thread: u32,
        key: u32,
        value: u32,
        tick: u64,
    ) -> Result<Option<u32>, Sealed> {
        let (spot, ordinal) = (self.spot(key), ordinal(thread));
        let mut access = Access::new(&ordinal);
        let value = Value::new(value);
        match self.shard.schedule_if_absent(spot, K::new(key), value, due(tick), Repeats::Never, &mut access) {
            Ok(given) => Ok(given.map(|value| value.name)),
            Err(Refused::Sealed(..)) => Err(Sealed),
            Err(Refused::Exhausted(..)) => panic!("a model does not fill 2^28 nodes"),
        }
    }

    /// Starts a timer that no index leads to.
    pub(crate) fn schedule_unindexed(
        &self,
        thread: u32,
        value: u32,
        tick: u64,
        repeats: Repeats<Value>,
    ) -> Result<Identity, Sealed> {
        let ordinal = ordinal(thread);
        let (key, access) = (K::new(value), &mut Access::new(&ordinal));
        match self.shard.schedule_unindexed(key, Value::new(value), due(tick), repeats, access) {
            Ok(timer) => Ok(timer),
            Err(Refused::Sealed(key, v)) => {
                assert_eq!((key.name(), v.name), (value, value), "key and value come back");
                Err(Sealed)
            }
            Err(Refused::Exhausted(..)) => panic!("a model does not fill 2^28 nodes"),
        }
    }

    /// As `schedule_unindexed`, before the threads start.
    pub(crate) fn given_unindexed(&self, value: u32, tick: u64) -> Identity {
        self.schedule_unindexed(0, value, tick, Repeats::Never).expect("not sealed")
    }

    /// What `schedule_if_absent` asks first.
    pub(crate) fn relies_on(&self, thread: u32, key: u32) -> bool {
        let (spot, ordinal) = (self.spot(key), ordinal(thread));
        self.shard.relies_on(spot, |k| k.name() == key, &Access::new(&ordinal))
    }

    /// Schedules, and drops what that replaces.
    pub(crate) fn start(&self, thread: u32, key: u32, value: u32, tick: u64) {
        self.schedule(thread, key, value, tick).expect("not sealed");
    }

    /// Schedules before the threads start.
    pub(crate) fn given(&self, key: u32, value: u32, tick: u64) -> Identity {
        self.schedule(0, key, value, tick).expect("not sealed").0
    }

    /// As `given`; the next timer of this hash comes in front of it in their line.
    pub(crate) fn given_behind_a_gap(&self, key: u32, value: u32, tick: u64) -> Identity {
        let gap = self.given(key + 10, 0, tick);
        let timer = self.given(key, value, tick);
        assert_eq!(self.cancel_this(0, gap), Some(0));
        timer
    }

    /// As `given`, a timer that may come back after its callback.
    pub(crate) fn given_repeating(&self, key: u32, value: u32, tick: u64) -> Identity {
        self.begin(0, key, value, tick, Repeats::IfWanted).expect("not sealed").0
    }

    /// Claims the timer of a key ahead of its time, for its callback.
    pub(crate) fn fire(&self, thread: u32, key: u32) -> Option<Run> {
        let (spot, ordinal) = (self.spot(key), ordinal(thread));
        let claim = self.shard.claim(spot, |k| k.name() == key, &Access::new(&ordinal))?;
        let (node, value) = self.shard.take_value(claim);
        Some(Run { node, value })
    }

    /// As `fire`, for a timer that is known by its identity.
    pub(crate) fn fire_now(&self, thread: u32, timer: Identity) -> Run {
        let ordinal = ordinal(thread);
        let claim = self.shard.claim_this(timer, Purpose::Fire, &Access::new(&ordinal));
        let (node, value) = self.shard.take_value(claim.expect("it is pending"));
        Run { node, value }
    }

    /// As `end_run`. True if the timer has come back.
    pub(crate) fn run_ends(&self, thread: u32, run: Run, next: Option<u64>, now: u64) -> bool {
        matches!(self.end_run(thread, run, next, now), RunEnd::Back)
    }

    /// Ends the callback of a timer that repeats.
    pub(crate) fn end_run(&self, thread: u32, run: Run, next: Option<u64>, now: u64) -> RunEnd {
        let ordinal = ordinal(thread);
        let mut access = Access::new(&ordinal);
        let now = Tick(TICK_0 + now);
        let next = next.map(|tick| Due { tick: Some(Tick(TICK_0 + tick)), now });
        match self.shard.rearm_or_end(run.node, run.value, next, now, &access) {
            Fired::Rearmed => RunEnd::Back,
            Fired::Sealed(node, _value, due) => {
                let number = node.node();
                self.shard.finish(node, &access);
                RunEnd::Sealed { node: number, due: due.map(|tick| tick.0 - TICK_0) }
            }
            Fired::Ended(node, _value) => {
                self.shard.finish_alone(node, &mut access);
                RunEnd::Ended
            }
        }
    }

    /// Takes the key of a timer that `end_run` found sealed out of its node, and drops it. Called after all threads
    /// have ended.
    pub(crate) fn take_key(&self, node: u32) {
        // SAFETY: the model's threads have been joined.
        let key = unsafe { self.shard.take_key(node) };
        assert!(key.is_some(), "nobody else takes it");
    }

    /// Prefetches before the guard is taken, as the callers do.
    fn spot(&self, key: u32) -> Spot {
        let spot = Spot::of(hash(key));
        self.shard.prefetch_line(spot);
        spot
    }

    pub(crate) fn cancel(&self, thread: u32, key: u32) -> Option<u32> {
        let (spot, ordinal) = (self.spot(key), ordinal(thread));
        let mut access = Access::new(&ordinal);
        let value = self.shard.cancel(spot, None, |k| k.name() == key, &access)?;
        self.shard.drop_ripe_keys(&mut access);
        Some(value.name)
    }

    /// As `cancel`, in a batch: goes on from what it saw of the key's line before.
    pub(crate) fn cancel_as_seen(&self, thread: u32, key: u32) -> Option<u32> {
        let (spot, ordinal) = (self.spot(key), ordinal(thread));
        let mut access = Access::new(&ordinal);
        let glimpse = self.shard.glimpse(spot, Intent::End, &access);
        let value = self.shard.cancel(spot, glimpse, |k| k.name() == key, &access)?;
        self.shard.drop_ripe_keys(&mut access);
        Some(value.name)
    }

    pub(crate) fn cancel_this(&self, thread: u32, timer: Identity) -> Option<u32> {
        let ordinal = ordinal(thread);
        let mut access = Access::new(&ordinal);
        let value = self.shard.cancel_this(timer, &access)?;
        self.shard.drop_ripe_keys(&mut access);
        Some(value.name)
    }

    pub(crate) fn reschedule(&self, thread: u32, key: u32, tick: u64) -> bool {
        let (spot, ordinal) = (self.spot(key), ordinal(thread));
        let access = Access::new(&ordinal);
        self.shard.reschedule(spot, None, |k| k.name() == key, due(tick), &access)
    }

    pub(crate) fn reschedule_this(&self, thread: u32, timer: Identity, tick: u64) -> bool {
        self.shard.reschedule_this(timer, due(tick), &Access::new(&ordinal(thread)))
    }

    /// When the timer of the key is due, if there is one.
    pub(crate) fn find(&self, thread: u32, key: u32) -> Option<u64> {
        let (spot, ordinal) = (self.spot(key), ordinal(thread));
        let access = Access::new(&ordinal);
        let due = self.shard.due(spot, |k| k.name() == key, Tick(TICK_0), &access)?;
        Some(due.expect("no model waits for ever").0 - TICK_0)
    }

    /// Runs the callback of a timer that does not repeat: reads the key, and finishes the timer.
    pub(crate) fn run(&self, thread: u32, Run { node, value }: Run) -> (u32, u32) {
        let ordinal = ordinal(thread);
        let key = self.shard.with_claimed_key(&node, K::name);
        self.shard.finish_alone(node, &mut Access::new(&ordinal));
        (key, value.name)
    }

    /// Seals the shard. Returns the names of the values that were pending.
    pub(crate) fn seal(&self) -> Vec<u32> {
        self.seal_as(0)
    }

    pub(crate) fn seal_as(&self, thread: u32) -> Vec<u32> {
        let mut claims = Vec::new();
        let ordinal = ordinal(thread);
        let access = Access::new(&ordinal);
        self.shard.seal(&access, |claim| claims.push(claim));
        drop(access);
        claims
            .into_iter()
            .map(|claim| {
                let (node, value) = self.shard.take_value(claim);
                self.shard.finish_alone(node, &mut Access::new(&ordinal));
                value.name
            })
            .collect()
    }

    /// Drops the last handle. Returns the names of the values that were pending.
    pub(crate) fn go(&self) -> Vec<u32> {
        let mut values = Vec::new();
        self.shard.end_all();
        // SAFETY: in a model one thread does this; and it starts no timer and looks no key up meanwhile, or afterwards.
        unsafe { self.shard.take_values(|value| values.push(value.name)) };
        // SAFETY: as above.
        unsafe { self.shard.drop_leftover_keys() };
        values
    }

    /// Called after all threads have ended: nothing is left, and every key is dropped.
    pub(crate) fn end(self) {
        let left = self.seal();
        assert!(left.is_empty(), "values {left:?} never fired");
        self.drop_keys();
    }

    /// The last thing that a scheduler does.
    pub(crate) fn drop_keys(self) {
        // SAFETY: the model's threads have been joined.
        unsafe { self.shard.drop_leftover_keys() };
    }
}

/// The shard has been sealed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Sealed;

/// How the callback of a timer that repeats has ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum RunEnd {
    /// The timer is pending again.
    Back,
    /// It would be, and due then, but its shard is sealed.
    Sealed {
        node: u32,
        due: Option<u64>,
    },
    Ended,
}

/// The worker: the shipped mailbox and look, with a list in the place of the wheel.
pub(crate) struct Worker {
    world: World,
    pub(crate) drain: Consumer,
    pub(crate) wheel: Vec<Hint>,
    pub(crate) firings: Vec<Firing>,
    /// Timers that repeat and are firing.
    pub(crate) runs: Vec<Run>,
}

/// A callback that is running.
#[derive(Debug)]
pub(crate) struct Run {
    node: ClaimedNode,
    value: Value,
}

impl Worker {
    /// One turn at a tick: takes the mailbox in, and looks wherever a hint is due.
    pub(crate) fn turn(&mut self, tick: u64) {
        let now = Tick(TICK_0 + tick);
        self.take_in();
        let (due, later) = std::mem::take(&mut self.wheel).into_iter().partition(|hint: &Hint| hint.tick(now) <= now);
        self.wheel = later;
        self.look_at(due, tick);
    }

    /// As `turn`, after the clock has moved on by more ticks than hints can tell. The wheel moves on from where it was,
    /// so all that is filed before comes out.
    pub(crate) fn jump(&mut self, tick: u64) {
        self.world.shard.set_hand(Tick(TICK_0 + tick));
        self.take_in();
        let due = std::mem::take(&mut self.wheel);
        self.look_at(due, tick);
    }

    fn take_in(&mut self) {
        let ordinal = ordinal(0);
        let (mailbox, wheel) = (&self.world.shard.mailbox, &mut self.wheel);
        // As in `src/worker.rs`, the looks are taken unpinned.
        mailbox.drain(&mut self.drain, usize::MAX, &Access::new(&ordinal).guard, |hint| wheel.push(hint));
    }

    fn look_at(&mut self, due: Vec<Hint>, tick: u64) {
        let (now, ordinal) = (Tick(TICK_0 + tick), ordinal(0));
        let shard = &*self.world.shard;
        for hint in due {
            match shard.look(hint, now) {
                Look::Nothing => {}
                Look::Later(hint) => {
                    assert!(hint.tick(now) > now, "filed again for the past");
                    self.wheel.push(hint);
                }
                Look::Expired(claim) => {
                    let repeats = claim.repeats;
                    let due = claim.due(now).expect("what expires has a deadline");
                    let (node, value) = shard.take_value(claim);
                    assert!(due <= now, "fired early");
                    let key = shard.with_claimed_key(&node, |key| key.name);
                    self.firings.push(Firing { key, value: value.name, due: due.0 - TICK_0, at: tick });
                    if repeats {
                        self.runs.push(Run { node, value });
                    } else {
                        shard.finish_alone(node, &mut Access::new(&ordinal));
                    }
                }
            }
        }
    }

    /// Lets ticks pass when all callers have returned: what is due then fires exactly then.
    pub(crate) fn settle(&mut self, ticks: std::ops::RangeInclusive<u64>) {
        let from = *ticks.start();
        let before = self.firings.len();
        for tick in ticks {
            self.turn(tick);
        }
        for firing in &self.firings[before..] {
            assert!(firing.at == firing.due.max(from), "fired late: {firing:?}");
        }
    }

    /// The values that fired, in order.
    pub(crate) fn fired(&self) -> Vec<u32> {
        self.firings.iter().map(|firing| firing.value).collect()
    }
}
