//! What callers do, from outside and from callbacks; each answer is compared with the oracle's.

use super::oracle::{Kind, Model, Moment, Rate, State, TICK, Timer};
use crate::callback::in_callback;
use crate::clock::Nanos;
use crate::scheduler::Scheduler;
use crate::service::Core;
use crate::shard::Tick;
use crate::{Close, IfAbsent, MissedTicks, Next, ScheduleError, WeakScheduler};
use std::borrow::Borrow;
use std::collections::{BTreeMap, HashMap};
use std::hash::{Hash, Hasher};
use std::panic::resume_unwind;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

const KEYS: u64 = 12;
/// From here on, numbers belong to the keys of unindexed timers, one each: no look-up by key finds them.
const UNINDEXED: u64 = 1 << 32;

/// xorshift64*: Vigna, "An experimental exploration of Marsaglia's xorshift generators, scrambled", 2016.
pub(super) struct Rng(u64);

impl Rng {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(super) fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) % bound
    }
}

/// How often each key and value was dropped.
#[derive(Clone, Default)]
pub(super) struct Ledger(Arc<Mutex<Vec<u32>>>);

impl Ledger {
    fn token(&self) -> Token {
        let mut drops = lock(&self.0);
        drops.push(0);
        Token { number: drops.len() - 1, ledger: self.clone() }
    }

    pub(super) fn assert_all_dropped_once(&self) {
        let drops = lock(&self.0);
        let wrong: Vec<_> = drops.iter().enumerate().filter(|&(_, &count)| count != 1).collect();
        assert!(wrong.is_empty(), "each key and value is dropped once; these, so often: {wrong:?}");
    }
}

struct Token {
    number: usize,
    ledger: Ledger,
}

impl Drop for Token {
    fn drop(&mut self) {
        let mut drops = lock(&self.ledger.0);
        drops[self.number] += 1;
        if drops[self.number] > 1 {
            // This drop gives back a reference that was given back already.
            std::mem::forget(self.ledger.clone());
        }
    }
}

/// Compared by its number alone.
pub(super) struct Key {
    pub(super) number: u64,
    _token: Token,
}

impl PartialEq for Key {
    fn eq(&self, other: &Self) -> bool {
        self.number == other.number
    }
}

impl Eq for Key {}

impl Hash for Key {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.number.hash(state);
    }
}

impl Borrow<u64> for Key {
    fn borrow(&self) -> &u64 {
        &self.number
    }
}

/// Carries the id of its timer; so do the copies that the runs of a periodic timer get.
pub(super) struct Value {
    id: u64,
    token: Token,
}

impl Clone for Value {
    fn clone(&self) -> Self {
        Self { id: self.id, token: self.token.ledger.token() }
    }
}

fn id_of(value: Option<Value>) -> Option<u64> {
    value.map(|value| value.id)
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(super) type Sut = Scheduler<Key, Value>;
pub(super) type SutCore = Core<Key, Value>;

/// A handle, with the key and the id of its timer.
#[derive(Clone)]
pub(super) struct Handle {
    key: u64,
    id: u64,
    pub(super) timer: crate::Timer<Key, Value>,
}

/// The scheduler, once it exists: its callback, which shares the world, comes first.
struct Built {
    scheduler: WeakScheduler<Key, Value>,
    core: Arc<SutCore>,
    /// The shard of each key.
    shards: Vec<usize>,
}

/// What callers and callbacks share.
pub(super) struct World {
    built: OnceLock<Built>,
    rng: Mutex<Rng>,
    pub(super) model: Mutex<Model>,
    pub(super) handles: Mutex<Vec<Handle>>,
    /// By key, the timers that are known by their handles alone.
    unindexed: Mutex<HashMap<u64, crate::Timer<Key, Value>>>,
    pub(super) ledger: Ledger,
    capacity: usize,
    /// Every callback decides whether its timer comes back.
    rearms: bool,
    /// The next callback runs because `expire_now` was called.
    by_hand: Mutex<bool>,
    /// From now on a callback only cancels its own timer, so that none comes back.
    ending: OnceLock<()>,
}

impl World {
    pub(super) fn new(rng: Rng, capacity: usize, rearms: bool) -> Self {
        Self {
            built: OnceLock::new(),
            rng: Mutex::new(rng),
            model: Mutex::default(),
            handles: Mutex::default(),
            unindexed: Mutex::default(),
            ledger: Ledger::default(),
            capacity,
            rearms,
            by_hand: Mutex::new(false),
            ending: OnceLock::new(),
        }
    }

    pub(super) fn set(&self, scheduler: &Sut, core: &Arc<SutCore>) {
        let shards = (0..KEYS).map(|number| scheduler.shard_of(&self.key(number))).collect();
        let built = Built { scheduler: scheduler.downgrade(), core: Arc::clone(core), shards };
        assert!(self.built.set(built).is_ok(), "set once");
    }

    pub(super) fn end(&self) {
        let _ = self.ending.set(());
    }

    fn built(&self) -> &Built {
        self.built.get().expect("nothing fires before")
    }

    fn scheduler(&self) -> Sut {
        self.built().scheduler.upgrade().expect("it lives until the end")
    }

    fn core(&self) -> &SutCore {
        &self.built().core
    }

    fn key(&self, number: u64) -> Key {
        Key { number, _token: self.ledger.token() }
    }

    fn handle(&self, key: u64) -> Option<crate::Timer<Key, Value>> {
        lock(&self.unindexed).get(&key).cloned()
    }

    pub(super) fn shard_of(&self, key: u64) -> usize {
        self.handle(key).map_or_else(|| self.built().shards[key as usize], |timer| timer.shard_number())
    }

    fn is_pending(&self, key: u64) -> bool {
        self.handle(key).map_or_else(|| self.scheduler().contains(&key), |timer| timer.is_pending())
    }

    pub(super) fn pick(&self, bound: u64) -> u64 {
        lock(&self.rng).below(bound)
    }

    fn one_in(&self, bound: u64) -> bool {
        self.pick(bound) == 0
    }

    /// Mostly near, now and then in a far slot of the wheel or beyond the horizon.
    fn delay(&self) -> Duration {
        match self.pick(12) {
            0 => Duration::ZERO,
            1 => Duration::MAX,
            2 => Duration::from_millis(self.pick(1 << 13)),
            3 => Duration::from_millis(self.pick(1 << 36)),
            _ => Duration::from_micros(self.pick(200_000)),
        }
    }

    /// The present, for the timers of `key`.
    fn moment(&self, key: u64) -> Moment {
        let core = self.core();
        let hand = core.shards[self.shard_of(key)].hand();
        let first_tick = core.clock.first_tick().0;
        let hand_ns = u128::from(hand.0 - first_tick) * TICK.as_nanos();
        Moment { now_ns: u128::from(core.clock.now().0).max(hand_ns), first_tick }
    }

    pub(super) fn move_clock(&self, change: impl FnOnce(u64) -> u64) {
        let clock = &self.core().clock;
        clock.set(Nanos(change(clock.now().0).min(1 << 60)));
    }

    /// The timer under `key`. In a callback, another one that is due may have been claimed together with the callback's
    /// own: if the scheduler says so, its run must follow (`check` sees to that).
    fn find(&self, key: u64) -> Option<Timer> {
        let timer = lock(&self.model).timers.get(&key).copied()?;
        if self.may_be_claimed(key, &timer) && !self.is_pending(key) {
            let mut model = lock(&self.model);
            model.claim(key, false);
            return model.timers.get(&key).copied();
        }
        Some(timer)
    }

    fn may_be_claimed(&self, key: u64, timer: &Timer) -> bool {
        let hand = self.core().shards[self.shard_of(key)].hand();
        in_callback() && !self.scheduler().is_closed() && timer.due().is_some_and(|due| due <= hand.0)
    }

    /// One operation. `own` is the key whose callback this is.
    pub(super) fn act(&self, own: Option<u64>) {
        let random = self.pick(KEYS);
        let key = own.filter(|&own| own < UNINDEXED && self.one_in(3)).unwrap_or(random);
        match self.pick(16) {
            0..=3 => self.schedule(key),
            4 => self.schedule_if_absent(key),
            5..=7 => self.reschedule(key),
            8 => self.cancel(key),
            9 => self.look(key),
            10 => self.expire_now(key, |scheduler| scheduler.expire_now(&key)),
            11..=13 => self.use_handle(own),
            14 => self.schedule_unindexed(),
            _ if self.one_in(12) => self.drain(),
            // More than once, since a later call gives back what was firing at the first.
            _ if self.one_in(if self.scheduler().is_closed() { 2 } else { 20 }) => self.close(),
            _ => {}
        }
    }

    fn schedule(&self, key: u64) {
        let before = self.find(key);
        let (scheduler, at, id) = (self.scheduler(), self.moment(key), lock(&self.model).new_id());
        let (owned, value) = (self.key(key), Value { id, token: self.ledger.token() });
        let (kind, due, answer) = if !self.rearms && self.one_in(3) {
            let missed = [MissedTicks::Skip, MissedTicks::Burst, MissedTicks::Delay][self.pick(3) as usize];
            let period = self.delay().max(Duration::from_nanos(1));
            let rate = Rate::new(period, missed, at);
            (Kind::Every(rate), rate.due, scheduler.schedule_every(owned, value, period, missed))
        } else {
            let kind = if self.rearms { Kind::AsAnswered } else { Kind::Once };
            let delay = self.delay();
            (kind, at.tick_after(delay), self.schedule_with(&scheduler, owned, value, delay))
        };
        self.scheduled(key, Timer { id, kind, state: State::Pending(due), awaited: 0 }, before, answer);
    }

    /// Starts a timer if there is none of the key.
    fn schedule_if_absent(&self, key: u64) {
        let before = self.find(key);
        let (scheduler, at, id) = (self.scheduler(), self.moment(key), lock(&self.model).new_id());
        let kind = if self.rearms { Kind::AsAnswered } else { Kind::Once };
        let (value, delay) = (Value { id, token: self.ledger.token() }, self.delay());
        let answer = scheduler.schedule_if_absent(self.key(key), value, delay).map(IfAbsent::into_value);
        if let (Ok(Some(value)), Some(_), false) = (&answer, &before, scheduler.is_closed()) {
            assert_eq!(value.id, id, "who gives way has his own value back");
            return;
        }
        assert!(before.is_none() || answer.is_err(), "there was a timer");
        let state = State::Pending(at.tick_after(delay));
        self.scheduled(key, Timer { id, kind, state, awaited: 0 }, before, answer);
    }

    fn schedule_unindexed(&self) {
        let (scheduler, id) = (self.scheduler(), lock(&self.model).new_id());
        let key = UNINDEXED + id;
        let kind = if self.rearms { Kind::AsAnswered } else { Kind::Once };
        let (value, delay) = (Value { id, token: self.ledger.token() }, self.delay());
        let mut due = None;
        let answer = scheduler.schedule_unindexed(self.key(key), value, delay).map(|timer| {
            lock(&self.unindexed).insert(key, timer.clone());
            lock(&self.handles).push(Handle { key, id, timer });
            // Only now is it known which shard's hand counts.
            due = self.moment(key).tick_after(delay);
            None
        });
        self.scheduled(key, Timer { id, kind, state: State::Pending(due), awaited: 0 }, None, answer);
    }

    /// Checks what `schedule` has returned for this timer; `before` is the one that the key led to.
    fn scheduled(
        &self,
        key: u64,
        timer: Timer,
        before: Option<Timer>,
        answer: Result<Option<Value>, ScheduleError<Key, Value>>,
    ) {
        let is_closed = self.scheduler().is_closed();
        let room = self.room_taken();
        let mut model = lock(&self.model);
        match answer {
            Ok(replaced) => {
                assert!(!is_closed && (before.is_some() || room.0 < self.capacity), "there was no room");
                assert_eq!(id_of(replaced), before.filter(Timer::is_pending).map(|timer| timer.id));
                model.start(key, timer);
            }
            Err(error) => {
                assert!(is_closed || (before.is_none() && room.1 >= self.capacity), "there was room");
                assert!(matches!(error, ScheduleError::Closed(..)) == is_closed && (is_closed || error.is_full()));
                assert_eq!(error.into_inner().1.id, timer.id);
                model.counts.rejected += 1;
            }
        }
    }

    fn schedule_with(
        &self,
        scheduler: &Sut,
        key: Key,
        value: Value,
        delay: Duration,
    ) -> Result<Option<Value>, ScheduleError<Key, Value>> {
        if self.one_in(2) {
            return scheduler.schedule_with(key, value, delay);
        }
        let (key_number, id) = (key.number, value.id);
        let (replaced, timer) = scheduler.schedule_with_handle(key, value, delay)?;
        lock(&self.handles).push(Handle { key: key_number, id, timer });
        Ok(replaced)
    }

    /// How many timers count against the capacity, at least and at most: a one-shot timer that may have been claimed
    /// has given its room back if it was.
    fn room_taken(&self) -> (usize, usize) {
        let model = lock(&self.model);
        let unsure = |&(&key, timer): &(&u64, &Timer)| timer.kind == Kind::Once && self.may_be_claimed(key, timer);
        let most = model.room_taken();
        (most - model.timers.iter().filter(unsure).count(), most)
    }

    fn reschedule(&self, key: u64) {
        let (found, delay) = (self.find(key), self.delay());
        let due = self.moment(key).tick_after(delay);
        self.expect_move(key, found, due, self.scheduler().reschedule(&key, delay));
    }

    fn expect_move(&self, key: u64, found: Option<Timer>, due: Option<u64>, answer: bool) {
        assert_eq!(answer, found.is_some(), "{found:?}");
        if answer {
            lock(&self.model).reschedule(key, due);
        }
    }

    fn cancel(&self, key: u64) {
        let found = self.find(key);
        let answer = self.handle(key).map_or_else(|| self.scheduler().cancel(&key), |timer| timer.cancel());
        self.expect_cancel(key, found, answer);
    }

    fn expect_cancel(&self, key: u64, found: Option<Timer>, answer: Option<Value>) {
        assert_eq!(id_of(answer), found.filter(Timer::is_pending).map(|timer| timer.id));
        if found.is_some() {
            lock(&self.model).cancel(key);
        }
    }

    /// How long until a timer is due, if it is pending.
    fn remaining(&self, timer: Option<Timer>) -> Option<Duration> {
        let State::Pending(due) = timer?.state else { return None };
        let clock = &self.core().clock;
        Some(clock.until(due.map(Tick), clock.now()))
    }

    fn look(&self, key: u64) {
        let (found, scheduler) = (self.find(key), self.scheduler());
        assert_eq!(scheduler.contains(&key), found.is_some_and(|timer| timer.is_pending()));
        assert_eq!(scheduler.remaining(&key), self.remaining(found));
    }

    fn expire_now(&self, key: u64, expire: impl FnOnce(&Sut) -> bool) {
        let found = self.find(key);
        *lock(&self.by_hand) = true;
        assert_eq!(expire(&self.scheduler()), found.is_some_and(|timer| timer.is_pending()), "{found:?}");
        *lock(&self.by_hand) = false;
    }

    /// Uses a random handle, or that of `own` if it is an unindexed timer.
    fn use_handle(&self, own: Option<u64>) {
        let count = lock(&self.handles).len() as u64;
        if count == 0 {
            return;
        }
        let random = self.pick(count) as usize;
        let handle = {
            let handles = lock(&self.handles);
            let own = own.filter(|&own| own >= UNINDEXED && !self.one_in(3));
            let of_own = own.and_then(|own| handles.iter().find(|handle| handle.key == own));
            of_own.unwrap_or(&handles[random]).clone()
        };
        let Handle { key, id, timer } = handle;
        let found = self.find(key).filter(|timer| timer.id == id);
        match self.pick(7) {
            0..=1 => self.expect_cancel(key, found, timer.cancel()),
            2..=4 => {
                let delay = self.delay();
                let due = self.moment(key).tick_after(delay);
                self.expect_move(key, found, due, timer.reschedule(delay));
            }
            5 if found.is_some() => self.expire_now(key, |_| timer.expire_now()),
            5 => assert!(!timer.expire_now()),
            _ => {
                assert_eq!(timer.is_pending(), found.is_some_and(|timer| timer.is_pending()));
                assert_eq!(timer.remaining(), self.remaining(found));
            }
        }
    }

    /// Every timer that is pending, by key.
    fn pending(&self) -> BTreeMap<u64, Timer> {
        let keys: Vec<_> = lock(&self.model).timers.keys().copied().collect();
        keys.into_iter().for_each(|key| _ = self.find(key));
        lock(&self.model).pending().collect()
    }

    fn drain(&self) {
        let expected = self.pending();
        let mut drained = BTreeMap::new();
        let count = self.scheduler().drain(|key, value| {
            assert_eq!(drained.insert(key.number, value.id), None, "handed over once");
        });
        assert_eq!(count, expected.len());
        assert_eq!(drained, expected.iter().map(|(&key, timer)| (key, timer.id)).collect());
        let mut model = lock(&self.model);
        model.counts.drained += count as u64;
        model.timers.retain(|_, timer| !timer.is_pending());
    }

    fn close(&self) {
        let expected = self.pending();
        let close = [Close::Discard, Close::FireNow, Close::Return][self.pick(3) as usize];
        lock(&self.model).close(close);
        let comebacks = self.expected_comebacks(close);
        let closed = self.scheduler().close(close);
        let count = |wanted| if close == wanted { expected.len() } else { 0 };
        assert_eq!((closed.discarded, closed.fired), (count(Close::Discard), count(Close::FireNow)));
        let returned = closed.returned.into_iter().map(|(key, value, left)| (key.number, (value.id, Some(left))));
        let all = expected.iter().map(|(&key, &timer)| (key, (timer.id, self.remaining(Some(timer)))));
        let all = all.take(count(Close::Return)).chain(comebacks.clone());
        assert_eq!(returned.collect::<BTreeMap<_, _>>(), all.collect());
        let counts = &mut lock(&self.model).counts;
        counts.discarded += closed.discarded as u64;
        counts.rearmed += comebacks.len() as u64;
        counts.returned += (count(Close::Return) + comebacks.len()) as u64;
    }

    /// The timers that `close` gives back because they would have come back since an earlier call.
    fn expected_comebacks(&self, close: Close) -> BTreeMap<u64, (u64, Option<Duration>)> {
        if close != Close::Return {
            return BTreeMap::new();
        }
        let (clock, comebacks) = (&self.core().clock, std::mem::take(&mut lock(&self.model).comebacks));
        let left = |due: Option<u64>| Some(clock.until(due.map(Tick), clock.now()));
        comebacks.into_iter().map(|(key, (id, due))| (key, (id, left(due)))).collect()
    }

    /// The callback: its timer must be the one that the model expects, and due. The callback acts as any caller may,
    /// takes its time, and panics now and then.
    pub(super) fn on_expiry(&self, key: u64, value: &Value) -> Next {
        self.begin_run(key, value.id);
        if self.ending.get().is_some() {
            self.cancel(key);
        } else {
            (0..self.pick(3)).for_each(|_| self.act(Some(key)));
            match self.pick(8) {
                0 => self.move_clock(|now| now + self.pick(300_000_000)),
                1 => self.move_clock(|now| now.saturating_sub(self.pick(50_000_000))),
                _ => {}
            }
        }
        let (panics, delay) = (self.one_in(16), self.delay());
        let comes_back = !panics && self.rearms && !self.one_in(3);
        let at = self.moment(key);
        lock(&self.model).end_run(key, value.id, comes_back.then(|| at.tick_after(delay)), at);
        if panics {
            lock(&self.model).counts.panics += 1;
            // Without the panic hook, which would print it.
            resume_unwind(Box::new("on purpose"));
        }
        if comes_back { Next::After(delay) } else { Next::Done }
    }

    fn begin_run(&self, key: u64, id: u64) {
        let early = std::mem::take(&mut *lock(&self.by_hand));
        let mut model = lock(&self.model);
        if !model.claims.contains_key(&id) {
            assert_eq!(model.timers.get(&key).map(|timer| timer.id), Some(id), "the latest timer of the key fires");
            model.claim(key, early);
        }
        model.counts.fired += 1;
        let claim = model.claims[&id];
        let hand = self.core().shards[self.shard_of(key)].hand();
        let is_due = claim.due.is_some_and(|due| due <= hand.0);
        assert!(is_due || claim.early, "{key} fired early: {claim:?} at {hand:?}");
    }
}
