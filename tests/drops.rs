//! Every key and every value is dropped exactly once, however its timer ends.
//!
//! Values leave at once. Keys may stay until their place in memory is used again, but no longer than the scheduler.
//! Keys own a string, so that a second drop would be noticed even without the count.

mod support;

use shardwheel::{Close, Executor, ManualClock, Next, Scheduler, Timer};
use std::borrow::Borrow;
use std::cell::Cell;
use std::hash::{Hash, Hasher};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use support::{
    Gate, HOUR, Ledger, MS, Opener, PATIENCE, Token, eventually, hush_callbacks, ignore, keeper, lock, ms, within,
};

/// A key that owns memory and is counted.
struct Name {
    text: String,
    _token: Token,
}

impl PartialEq for Name {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl Eq for Name {}

impl Hash for Name {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.text.hash(state);
    }
}

impl Borrow<str> for Name {
    fn borrow(&self) -> &str {
        &self.text
    }
}

type Names = Scheduler<Name, Token>;

/// Makes counted keys and values.
#[derive(Clone, Default)]
struct Maker {
    keys: Ledger,
    values: Ledger,
}

impl Maker {
    fn key(&self, id: u64) -> Name {
        Name { text: text(id), _token: self.keys.token(id) }
    }

    fn value(&self, id: u64) -> Token {
        self.values.token(id)
    }

    fn schedule(&self, scheduler: &Names, id: u64, delay: Duration) -> Option<Token> {
        scheduler.schedule_with(self.key(id), self.value(id), delay).expect("it is open and not full")
    }

    fn schedule_many(&self, scheduler: &Names) {
        (0..COUNT).for_each(|id| drop(self.schedule(scheduler, id, HOUR)));
        assert_eq!(self.values.alive(), COUNT as usize);
    }

    /// As `schedule_many`, with timers that no key leads to.
    fn schedule_many_unindexed(&self, scheduler: &Names) {
        for id in 0..COUNT {
            let started = scheduler.schedule_unindexed(self.key(id), self.value(id), HOUR);
            assert!(started.expect("it is open and not full").is_pending());
        }
        assert_eq!(self.values.alive(), COUNT as usize);
    }

    #[track_caller]
    fn assert_values_gone(&self) {
        assert_eq!(self.values.alive(), 0, "values leave at once");
        self.values.assert_none_twice();
    }

    #[track_caller]
    fn assert_all_gone(&self) {
        self.values.assert_all_dropped_once();
        self.keys.assert_all_dropped_once();
        assert!(self.keys.made() > 0);
    }
}

/// More than any batch in the scheduler.
const COUNT: u64 = 2_000;

fn text(id: u64) -> String {
    format!("the timer with the number {id}")
}

/// Runs `scenario` on the manual clock with many timers due in an hour. When it is over, and the scheduler is dropped,
/// all are gone.
fn on_manual_clock(scenario: impl FnOnce(&Names, &ManualClock, &Maker)) {
    on_manual_clock_with(Maker::schedule_many, scenario);
}

/// As `on_manual_clock`, and once more with timers that no key leads to.
fn indexed_or_not(scenario: impl Fn(&Names, &ManualClock, &Maker)) {
    on_manual_clock_with(Maker::schedule_many, &scenario);
    on_manual_clock_with(Maker::schedule_many_unindexed, scenario);
}

fn on_manual_clock_with(schedule: fn(&Maker, &Names), scenario: impl FnOnce(&Names, &ManualClock, &Maker)) {
    let maker = Maker::default();
    let built = Scheduler::builder().shards(3).build_manual(|_: &Name, value: Token| drop(value));
    let (scheduler, clock) = built.expect("in range");
    schedule(&maker, &scheduler);
    scenario(&scheduler, &clock, &maker);
    drop(scheduler);
    assert_eq!((maker.keys.alive(), maker.values.alive()), (0, 0), "nothing outlives the last handle");
    drop(clock);
    maker.assert_all_gone();
}

#[test]
fn fired() {
    indexed_or_not(|_, clock, maker| {
        assert_eq!(clock.advance(HOUR), COUNT as usize);
        maker.assert_values_gone();
    });
}

#[test]
fn fired_at_once() {
    on_manual_clock(|scheduler, _, maker| {
        (0..COUNT).for_each(|id| assert!(scheduler.expire_now(text(id).as_str())));
        maker.assert_values_gone();
    });
}

#[test]
fn cancelled() {
    on_manual_clock(|scheduler, _, maker| {
        (0..COUNT).for_each(|id| drop(scheduler.cancel(text(id).as_str()).expect("it was pending")));
        maker.assert_values_gone();
    });
}

#[test]
fn cancelled_by_handle() {
    on_manual_clock(|scheduler, _, maker| {
        for id in 0..COUNT {
            let (old, timer) = scheduler.schedule_with_handle(maker.key(id), maker.value(id), HOUR).expect("open");
            assert!(old.is_some() && timer.cancel().is_some());
        }
        maker.assert_values_gone();
        for id in 0..5 * COUNT {
            let timer = scheduler.schedule_unindexed(maker.key(id), maker.value(id), HOUR).expect("open");
            assert_eq!(timer.cancel().expect("it was pending").id, id);
        }
        maker.assert_values_gone();
        assert!(maker.keys.alive() < 4 * COUNT as usize, "their keys go as well");
    });
}

/// The calls that end timers drop their keys, or those of earlier ones, so that these do not wait for new timers.
#[test]
fn keys_go_although_no_timer_begins() {
    type End = fn(&Names, &ManualClock, Vec<Timer<Name, Token>>);
    let ends: [(&str, End); 4] = [
        ("fired", |_, clock, _| assert_eq!(clock.advance(HOUR), COUNT as usize)),
        ("cancelled", |scheduler, _, _| {
            (0..COUNT).for_each(|id| assert!(scheduler.cancel(text(id).as_str()).is_some()));
        }),
        ("cancelled in a batch", |scheduler, _, _| {
            let keys: Vec<_> = (0..COUNT).map(text).collect();
            let values = scheduler.cancel_batch(keys.iter().map(String::as_str));
            assert_eq!(values.into_iter().flatten().count(), COUNT as usize);
        }),
        ("cancelled by handles", |_, _, timers| timers.iter().for_each(|timer| assert!(timer.cancel().is_some()))),
    ];
    for (name, end) in ends {
        // Other tests' threads may be stopped in the middle of a call just then.
        eventually(name, || {
            let mut has_gone = false;
            let nothing: fn(&Maker, &Names) = |_, _| {};
            on_manual_clock_with(nothing, |scheduler, clock, maker| {
                let start = |id| scheduler.schedule_with_handle(maker.key(id), maker.value(id), HOUR).expect("open").1;
                end(scheduler, clock, (0..COUNT).map(start).collect());
                has_gone = maker.keys.alive() < COUNT as usize / 2;
            });
            has_gone
        });
    }
}

#[test]
fn replaced() {
    on_manual_clock(|scheduler, clock, maker| {
        for _ in 0..5 {
            (0..COUNT).for_each(|id| drop(maker.schedule(scheduler, id, HOUR).expect("it was pending")));
            assert_eq!(maker.values.alive(), COUNT as usize);
            clock.advance(MS);
        }
        assert!(maker.keys.alive() < 4 * COUNT as usize, "keys of replaced timers go as well");
    });
}

#[test]
fn drained() {
    indexed_or_not(|scheduler, _, maker| {
        let drained = scheduler.drain(|key, value| {
            assert_eq!(key.text, text(value.id));
        });
        assert_eq!(drained, COUNT as usize);
        maker.assert_values_gone();
    });
}

#[test]
fn drained_by_a_closure_that_panics() {
    hush_callbacks();
    indexed_or_not(|scheduler, _, maker| {
        let drain = || scheduler.drain(|_, value| assert!(value.id != 7, "on purpose"));
        assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(drain)).is_err());
        assert_eq!(scheduler.len(), maker.values.alive(), "those after it wait on");
        assert_eq!(scheduler.stats().drained, COUNT - maker.values.alive() as u64);
    });
}

#[test]
fn closed_in_every_way() {
    for close in [Close::Discard, Close::FireNow, Close::Return] {
        indexed_or_not(|scheduler, _, maker| {
            let closed = scheduler.close(close);
            assert_eq!(closed.discarded + closed.fired + closed.returned.len(), COUNT as usize);
            assert_eq!(maker.values.alive(), closed.returned.len());
            let is_right = |(key, value, _): &(Name, Token, Duration)| key.text == text(value.id);
            assert!(closed.returned.iter().all(is_right), "keys come back with their own values");
            drop(closed);
            maker.assert_values_gone();
        });
    }
}

#[test]
fn dropped_with_the_scheduler() {
    indexed_or_not(|_, clock, _| assert_eq!(clock.advance(MS), 0));
}

#[test]
fn refused() {
    let maker = Maker::default();
    let built = Scheduler::builder().capacity(1).build_manual(|_: &Name, _: Token| {});
    let (scheduler, _clock) = built.expect("in range");
    ignore(maker.schedule(&scheduler, 0, HOUR));
    for id in 1..100 {
        let refused = scheduler.schedule_with(maker.key(id), maker.value(id), MS).expect_err("it is full");
        let (key, value) = refused.into_inner();
        assert_eq!((key.text, value.id), (text(id), id));
    }
    scheduler.close(Close::Discard);
    for id in 1..100 {
        drop(scheduler.schedule_with(maker.key(id), maker.value(id), MS).expect_err("it is closed"));
    }
    maker.assert_values_gone();
    drop(scheduler);
    maker.assert_all_gone();
}

/// A value whose drop panics, after it was counted.
struct Bursting(#[allow(dead_code, reason = "counts its drop")] Token);

impl Drop for Bursting {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            panic!("on purpose: a value's drop");
        }
    }
}

#[test]
fn values_that_panic_when_dropped() {
    hush_callbacks();
    for close in [Close::Discard, Close::FireNow] {
        let maker = Maker::default();
        let built = Scheduler::builder().build_manual(|_: &Name, value: Bursting| drop(value));
        let (scheduler, clock) = built.expect("in range");
        for id in 0..500 {
            let delay = if id % 2 == 0 { MS } else { HOUR };
            scheduler.schedule_with(maker.key(id), Bursting(maker.value(id)), delay).expect("open and not full");
        }
        assert_eq!((clock.advance(MS), scheduler.stats().callback_panics), (250, 250));
        scheduler.close(close);
        drop((scheduler, clock));
        maker.assert_all_gone();
    }
}

/// A key whose drop panics. It is dropped on the thread of some later caller, which must not notice.
struct Cursed(u64, #[allow(dead_code, reason = "counts its drop")] Token);

impl PartialEq for Cursed {
    fn eq(&self, other: &Self) -> bool {
        self.0 == other.0
    }
}

impl Eq for Cursed {}

impl Hash for Cursed {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.hash(state);
    }
}

impl Borrow<u64> for Cursed {
    fn borrow(&self) -> &u64 {
        &self.0
    }
}

impl Drop for Cursed {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            panic!("on purpose: a key's drop");
        }
    }
}

#[test]
fn keys_that_panic_when_dropped() {
    hush_callbacks();
    let maker = Maker::default();
    let (scheduler, clock) = Scheduler::builder().build_manual(|_: &Cursed, _: Token| {}).expect("in range");
    for id in 0..5_000 {
        let key = Cursed(id, maker.keys.token(id));
        assert!(scheduler.schedule_with(key, maker.value(id), HOUR).is_ok());
        match id % 3 {
            0 => assert!(scheduler.cancel(&id).is_some()),
            1 => assert!(scheduler.expire_now(&id)),
            _ => {}
        }
    }
    clock.advance(HOUR);
    drop((scheduler, clock));
    maker.assert_all_gone();
}

/// The passed key goes before the answer is made: otherwise the value in that would be lost.
#[test]
fn given_back_beside_a_key_that_panics_when_dropped() {
    hush_callbacks();
    let maker = Maker::default();
    let (scheduler, clock) = Scheduler::builder().build_manual(|_: &Cursed, _: Token| {}).expect("in range");
    let cursed = |id| Cursed(1, maker.keys.token(id));
    assert!(scheduler.schedule_with(cursed(0), maker.value(0), HOUR).is_ok());
    for id in 1..6 {
        let again = || scheduler.schedule_if_absent(cursed(id), maker.value(id), HOUR);
        assert!(catch_unwind(AssertUnwindSafe(again)).is_err());
    }
    drop((scheduler, clock));
    maker.assert_all_gone();
}

#[test]
fn callbacks_that_panic() {
    hush_callbacks();
    let maker = Maker::default();
    let kept = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&kept);
    let callback = move |_: &Name, value: Token| {
        if value.id.is_multiple_of(3) {
            lock(&seen).push(value);
            panic!("on purpose, without the value");
        }
        assert!(value.id % 3 == 1, "on purpose, with the value");
    };
    let (scheduler, clock) = Scheduler::builder().build_manual(callback).expect("in range");
    maker.schedule_many(&scheduler);
    assert_eq!(clock.advance(HOUR), COUNT as usize);
    assert_eq!(maker.values.alive(), lock(&kept).len());
    lock(&kept).clear();
    maker.assert_values_gone();
    drop((scheduler, clock));
    maker.assert_all_gone();
}

/// On a pool, with everything that happens at the end still under way.
#[test]
fn on_a_pool_while_callbacks_run() {
    for close in [None, Some(Close::Discard), Some(Close::FireNow), Some(Close::Return)] {
        let maker = Maker::default();
        let ran = Arc::new(AtomicUsize::new(0));
        let seen = Arc::clone(&ran);
        let callback = move |key: &Name, value: Token| {
            assert_eq!(key.text, text(value.id));
            std::thread::sleep(Duration::from_micros(10));
            seen.fetch_add(1, SeqCst);
        };
        let scheduler = Scheduler::builder().shards(2).build(callback).expect("in range");
        (0..COUNT).for_each(|id| drop(maker.schedule(&scheduler, id, ms(id % 40))));
        eventually("some have fired", || ran.load(SeqCst) > 100);
        close.map(|close| scheduler.close(close));
        drop(scheduler);
        maker.assert_all_gone();
    }
}

#[test]
fn jobs_that_are_never_run() {
    let (maker, (executor, kept)) = (Maker::default(), keeper());
    let builder = Scheduler::builder().shards(1).executor(executor);
    let scheduler = builder.build(|_: &Name, _: Token| unreachable!("nobody runs the jobs")).expect("in range");
    (0..COUNT).for_each(|id| drop(maker.schedule(&scheduler, id, MS)));
    eventually("all are counted", || scheduler.stats().callbacks_waiting == COUNT);
    // They are counted before they are handed over.
    eventually("all are dropped", || {
        lock(&kept).clear();
        maker.values.alive() == 0
    });
    maker.assert_values_gone();
    assert_eq!(scheduler.stats().callbacks_waiting, 0);
    drop(scheduler);
    maker.assert_all_gone();
}

/// Half of the jobs run, the others are dropped; a handle keeps the nodes all the time.
#[test]
fn jobs_that_outlive_the_scheduler() {
    let (maker, ran, (executor, kept)) = (Maker::default(), Arc::new(AtomicUsize::new(0)), keeper());
    let count = Arc::clone(&ran);
    let callback = move |key: &Name, value: Token| {
        assert_eq!(key.text, text(value.id));
        count.fetch_add(1, SeqCst);
    };
    let scheduler = Scheduler::builder().shards(1).executor(executor).build(callback).expect("in range");
    let (_, timer) =
        scheduler.schedule_with_handle(maker.key(COUNT), maker.value(COUNT), HOUR).expect("open and not full");
    (0..COUNT).for_each(|id| drop(maker.schedule(&scheduler, id, HOUR)));
    assert!((0..COUNT).all(|id| scheduler.expire_now(&*text(id))));
    drop(scheduler);
    assert_eq!((ran.load(SeqCst), maker.values.alive()), (0, COUNT as usize), "what is handed over has its value");
    for (number, job) in lock(&kept).drain(..).enumerate() {
        if number % 2 == 0 { job.run() } else { drop(job) }
    }
    assert_eq!(ran.load(SeqCst), COUNT as usize / 2);
    maker.assert_all_gone();
    assert!(!timer.is_pending());
}

/// Timers that are firing when the scheduler is closed, and would come back: given back by a later call of `close`, or
/// dropped with the scheduler. Handles keep the nodes all the time.
#[test]
fn what_would_come_back_after_a_close() {
    #[derive(Clone, Copy, PartialEq)]
    enum Last {
        Collected,
        Left,
        DroppedWhileTheyFire,
    }
    const FEW: u64 = 300;
    let scenario = |has_index: bool, runs: bool, last: Last| {
        let (maker, (executor, kept)) = (Maker::default(), keeper());
        let builder = Scheduler::builder().shards(2).executor(executor);
        let callback = |key: &Name, value: &mut Token| {
            assert_eq!(key.text, text(value.id));
            Next::After(2 * HOUR)
        };
        let scheduler: Names = builder.build_rearming(callback).expect("in range");
        let begin = |id| {
            let (key, value) = (maker.key(id), maker.value(id));
            let started = if has_index {
                scheduler.schedule_with_handle(key, value, HOUR).map(|(_, timer)| timer)
            } else {
                scheduler.schedule_unindexed(key, value, HOUR)
            };
            started.expect("it is open and not full")
        };
        let timers: Vec<_> = (0..FEW).map(begin).collect();
        // All but one are firing.
        let (pending, firing) = timers.split_first().expect("there are some");
        assert!(firing.iter().all(|timer| timer.expire_now() && timer.reschedule(HOUR)));
        let closed = scheduler.close(Close::Return);
        assert!(closed.returned.iter().map(|(_, value, _)| value.id).eq([0]) && !pending.is_pending());
        drop(closed);
        let is_closed = |timer: &Timer<Name, Token>| {
            !timer.is_pending() && !timer.reschedule(MS) && !timer.expire_now() && timer.cancel().is_none()
        };
        assert!(firing.iter().all(is_closed));
        assert_eq!(scheduler.close(Close::Return), Default::default(), "their values are in use");
        let scheduler = Some(scheduler).filter(|_| last != Last::DroppedWhileTheyFire);
        lock(&kept).drain(..).for_each(|job| if runs { job.run() } else { drop(job) });
        let Some(scheduler) = scheduler else {
            assert_eq!(maker.values.alive(), 0);
            maker.assert_all_gone();
            return;
        };
        assert_eq!(maker.values.alive(), FEW as usize - 1);
        assert!(scheduler.wait_for_callbacks(PATIENCE));
        if last == Last::Collected {
            let mut returned = scheduler.close(Close::Return).returned;
            returned.sort_by_key(|(_, value, _)| value.id);
            assert!(returned.iter().map(|(_, value, _)| value.id).eq(1..FEW));
            assert!(returned.iter().all(|(key, value, left)| key.text == text(value.id) && *left <= HOUR + MS));
            assert_eq!(scheduler.close(Close::Return), Default::default(), "once");
            drop(returned);
        }
        drop(scheduler);
        assert_eq!(maker.values.alive(), 0);
        maker.assert_all_gone();
    };
    for last in [Last::Collected, Last::Left, Last::DroppedWhileTheyFire] {
        for (has_index, runs) in [(true, true), (true, false), (false, true), (false, false)] {
            scenario(has_index, runs, last);
        }
    }
}

/// As before, and the values keep the scheduler: another way of closing it drops them, and all that end later.
#[test]
fn what_would_come_back_after_a_close_keeps_no_scheduler_that_is_closed_again() {
    struct Holder(#[allow(dead_code, reason = "keeps the scheduler")] Scheduler<u64, Holder>);
    for again in [Close::Discard, Close::FireNow] {
        let (executor, jobs) = keeper();
        let builder = Scheduler::builder().executor(executor);
        let scheduler: Scheduler<u64, Holder> = builder.build_rearming(|_, _| Next::After(HOUR)).expect("in range");
        for key in [1, 2] {
            assert!(
                scheduler.schedule_with(key, Holder(scheduler.clone()), HOUR).is_ok() && scheduler.expire_now(&key)
            );
        }
        scheduler.close(Close::Return);
        let [first, second] = <[_; 2]>::try_from(std::mem::take(&mut *lock(&jobs))).expect("both fire");
        first.run();
        scheduler.close(again);
        second.run();
        let weak = scheduler.downgrade();
        drop(scheduler);
        assert!(weak.upgrade().is_none(), "{again:?}");
    }
}

/// As before, and the destructors of the values panic.
#[test]
fn what_would_come_back_after_a_close_and_panics_when_dropped() {
    hush_callbacks();
    let values = Ledger::default();
    for close in [Close::Discard, Close::Return] {
        let (executor, jobs) = keeper();
        let builder = Scheduler::builder().executor(executor);
        let scheduler: Scheduler<u64, Bursting> = builder.build_rearming(|_, _| Next::After(HOUR)).expect("in range");
        for key in 0..3 {
            assert!(
                scheduler.schedule_with(key, Bursting(values.token(key)), HOUR).is_ok() && scheduler.expire_now(&key)
            );
        }
        scheduler.close(close);
        lock(&jobs).drain(..).for_each(|job| job.run());
        drop(scheduler);
        assert_eq!(values.alive(), 0);
        values.assert_none_twice();
    }
}

/// A job never panics, even if it is the last that holds the callback, and destructors of what that has captured panic.
#[test]
fn a_job_that_drops_the_callback() {
    struct Bomb(Arc<AtomicUsize>);
    impl Drop for Bomb {
        fn drop(&mut self) {
            self.0.fetch_add(1, SeqCst);
            panic!("on purpose");
        }
    }
    hush_callbacks();
    let (dropped, (sender, jobs)) = (Arc::new(AtomicUsize::new(0)), channel());
    let bomb = Bomb(Arc::clone(&dropped));
    let executor = Executor::custom(move |job| drop(sender.send(job)));
    let callback = move |_: &u64, ()| assert_eq!(bomb.0.load(SeqCst), 0);
    let scheduler = Scheduler::builder().shards(1).executor(executor).build(callback).expect("in range");
    assert!(scheduler.schedule(1, HOUR).is_ok() && scheduler.expire_now(&1));
    drop(scheduler);
    let job = jobs.recv().expect("it was handed over");
    assert_eq!(dropped.load(SeqCst), 0, "the job keeps the callback");
    assert!(std::panic::catch_unwind(|| job.run()).is_ok());
    assert_eq!(dropped.load(SeqCst), 1);

    // On a thread of rayon's, a panic would abort the process.
    let pool = rayon::ThreadPoolBuilder::new().num_threads(2).build().expect("there are threads");
    let (bomb, gate) = (Bomb(Arc::clone(&dropped)), Arc::new(Gate::default()));
    let (opener, shut) = (Opener(&gate), Arc::clone(&gate));
    let callback = move |_: &u64, ()| {
        assert_eq!(bomb.0.load(SeqCst), 1);
        shut.pass();
    };
    let builder = Scheduler::builder().shards(1).executor(Executor::Rayon(Arc::new(pool)));
    let scheduler = builder.build(callback).expect("in range");
    (0..2).for_each(|key| assert!(scheduler.schedule(key, MS).is_ok()));
    eventually("both have begun", || gate.arrived() == 2);
    drop(scheduler);
    drop(opener);
    eventually("the last job has dropped the callback", || dropped.load(SeqCst) == 2);
}

/// Timers' handles keep neither keys nor values.
#[test]
fn while_a_handle_is_left() {
    let maker = Maker::default();
    let scheduler = Scheduler::builder().build(|_: &Name, _: Token| {}).expect("in range");
    let (_, timer) = scheduler.schedule_with_handle(maker.key(1), maker.value(1), HOUR).expect("open and not full");
    drop(scheduler);
    maker.assert_all_gone();
    assert!(timer.cancel().is_none() && !timer.is_pending());
}

/// Whatever a value's destructor does, it finds all timers ended.
#[test]
fn values_that_move_time_on_when_dropped() {
    struct Mover(ManualClock, Arc<AtomicUsize>);
    impl Drop for Mover {
        fn drop(&mut self) {
            self.1.fetch_add(1 + 100 * self.0.advance(HOUR), SeqCst);
        }
    }
    let dropped = Arc::new(AtomicUsize::new(0));
    let (scheduler, clock) = Scheduler::builder().shards(2).build_manual(|_: &u64, _: Mover| {}).expect("in range");
    for key in 0..10 {
        ignore(scheduler.schedule_with(key, Mover(clock.clone(), Arc::clone(&dropped)), HOUR));
    }
    drop(scheduler);
    assert_eq!(dropped.load(SeqCst), 10, "ten are discarded, and none fires meanwhile");
}

#[test]
fn keys_alone() {
    let maker = Maker::default();
    let scheduler = Scheduler::builder().build(|_: &Name, (): ()| {}).expect("in range");
    (0..COUNT).for_each(|id| ignore(scheduler.schedule(maker.key(id), HOUR)));
    drop(scheduler);
    maker.keys.assert_all_dropped_once();
}

/// With keys and values that need no drop, pending timers may be left as they are: nobody must notice.
#[test]
fn nothing_to_drop() {
    let rearming =
        Scheduler::builder().executor(Executor::Inline).build_rearming(|_: &u64, (): &mut ()| Next::After(MS));
    let manual = Scheduler::builder().build_manual(|key: &u64, (): ()| unreachable!("{key} fires without a scheduler"));
    let (manual, clock) = manual.expect("in range");
    for scheduler in [rearming.expect("in range"), manual] {
        let start = |key| scheduler.schedule_with_handle(key, (), ms(key)).expect("it is open and not full").1;
        let timers: Vec<_> = (1..COUNT).map(start).collect();
        drop(scheduler);
        for timer in timers {
            assert!(!timer.is_pending() && timer.remaining().is_none() && !timer.reschedule(MS));
            assert!(!timer.expire_now() && timer.cancel().is_none());
        }
    }
    assert_eq!((clock.advance(MS), clock.advance_to_next(), clock.advance(HOUR)), (0, None, 0));
}

/// A callback that ends after the scheduler has gone, and would have its timer come back. While it runs, it keeps alive
/// what is needed to fire others.
#[test]
fn nothing_to_drop_and_a_timer_that_would_come_back() {
    let (gate, runs) = (Arc::new(Gate::default()), Arc::new(AtomicUsize::new(0)));
    let _opener = Opener(&gate);
    let seen = (Arc::clone(&gate), Arc::clone(&runs));
    let callback = move |_: &u64, (): &mut ()| {
        seen.0.pass();
        seen.1.fetch_add(1, SeqCst);
        Next::After(MS)
    };
    let pool = rayon::ThreadPoolBuilder::new().num_threads(1).build().expect("a small pool");
    let builder = Scheduler::builder().executor(Executor::Rayon(Arc::new(pool)));
    let scheduler = builder.build_rearming(callback).expect("in range");
    let (_, timer) = scheduler.schedule_with_handle(1, (), MS).expect("it is open and not full");
    let (_, other) = scheduler.schedule_with_handle(2, (), HOUR).expect("it is open and not full");
    eventually("it runs", || gate.arrived() == 1);
    drop(scheduler);
    let has_ended = |timer: &shardwheel::Timer<u64, ()>| {
        !timer.is_pending() && !timer.reschedule(MS) && !timer.expire_now() && timer.cancel().is_none()
    };
    assert!(has_ended(&timer) && has_ended(&other));
    gate.open();
    eventually("it has run", || runs.load(SeqCst) == 1);
    std::thread::sleep(20 * MS);
    assert!(has_ended(&timer) && has_ended(&other));
    assert_eq!(runs.load(SeqCst), 1);
}

/// A comparison that panics in the middle of a `schedule` counts as "different". So there are two timers of one key,
/// until the next `schedule` replaces both.
#[test]
fn a_key_that_panicked_once_leaves_no_timer_uncounted() {
    thread_local! {
        static PANICS: Cell<bool> = const { Cell::new(false) };
        static DROPPED_IN_CALLS: Cell<bool> = const { Cell::new(false) };
    }
    struct Value(Token);
    impl Drop for Value {
        fn drop(&mut self) {
            DROPPED_IN_CALLS.set(DROPPED_IN_CALLS.get() || is_within_a_call());
        }
    }
    #[derive(Clone, Copy)]
    struct Moody;
    impl Hash for Moody {
        fn hash<H: Hasher>(&self, _: &mut H) {}
    }
    impl PartialEq for Moody {
        fn eq(&self, _: &Self) -> bool {
            assert!(!PANICS.replace(false), "on purpose");
            true
        }
    }
    impl Eq for Moody {}
    hush_callbacks();
    let values = Ledger::default();
    let (scheduler, _clock) = Scheduler::builder().build_manual(|_: &Moody, _: Value| ()).unwrap();
    let start = |id| scheduler.schedule_with(Moody, Value(values.token(id)), HOUR).unwrap();
    assert!(start(1).is_none());
    PANICS.set(true);
    assert!(start(2).is_none());
    assert_eq!((scheduler.len(), values.alive()), (2, 2));
    assert_eq!(start(3).map(|value| value.0.id), Some(1), "the one that was to be found");
    let stats = scheduler.stats();
    assert_eq!((stats.scheduled, stats.replaced, scheduler.len(), values.alive()), (3, 2, 1, 1));
    assert!(scheduler.cancel(&Moody).is_some() && scheduler.is_empty());
    assert_eq!(values.alive(), 0);
    values.assert_none_twice();
    assert!(!DROPPED_IN_CALLS.get());
}

/// True if the calling thread is in a call of some scheduler. (`close` waits until no thread is, to have timers back;
/// but not for its own thread.)
fn is_within_a_call() -> bool {
    let (other, _clock) = Scheduler::builder().shards(1).build_manual(|_: &u64, ()| {}).expect("in range");
    assert!(other.schedule(1, HOUR).is_ok());
    other.close(Close::Return).returned.is_empty()
}

/// However a timer has ended: the destructor of its key may run in a later call, of another timer. It may take as long
/// as it likes, and do whatever code outside of all calls may do.
#[test]
fn a_keys_destructor_runs_within_no_call() {
    type End = fn(&Scheduler<Hooked>, &ManualClock);
    const COUNT: u64 = 300;

    let ends: [(&str, End); 6] = [
        ("cancelled", |scheduler, _| (0..COUNT).for_each(|id| assert!(scheduler.cancel(&id).is_some()))),
        ("cancelled in a batch", |scheduler, _| {
            let keys: Vec<_> = (0..COUNT).collect();
            assert!(scheduler.cancel_batch(&keys).into_iter().all(|value| value.is_some()));
        }),
        ("cancelled by a handle", |scheduler, _| {
            let (in_calls, key) = counting();
            for _ in 0..COUNT {
                assert!(scheduler.schedule_unindexed(key(COUNT), (), HOUR).expect("open").cancel().is_some());
            }
            assert_eq!(in_calls.load(SeqCst), 0);
        }),
        ("fired", |_, clock| assert_eq!(clock.advance(HOUR) as u64, COUNT)),
        ("drained", |scheduler, _| assert_eq!(scheduler.drain(|_, ()| {}) as u64, COUNT)),
        ("given way", |scheduler, _| {
            let (in_calls, key) = counting();
            for _ in 0..COUNT {
                assert!(!scheduler.schedule_if_absent(key(1), (), HOUR).expect("open").has_started());
            }
            assert_eq!(in_calls.load(SeqCst), 0);
        }),
    ];
    for (name, end) in ends {
        let (in_calls, key) = counting();
        let (scheduler, clock) = Scheduler::builder().shards(2).build_manual(|_: &Hooked, ()| {}).expect("in range");
        (0..COUNT).for_each(|id| assert!(scheduler.schedule(key(id), HOUR).is_ok()));
        end(&scheduler, &clock);
        // These get the nodes of those.
        (0..COUNT).for_each(|id| assert!(scheduler.schedule(key(id), HOUR).is_ok()));
        drop((scheduler, clock));
        assert_eq!(in_calls.load(SeqCst), 0, "{name}");
    }
}

/// A counter, and keys whose destructors raise it if they run within a call.
fn counting() -> (Arc<AtomicUsize>, impl Fn(u64) -> Hooked) {
    let in_calls = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&in_calls);
    (in_calls, hooked(move || _ = count.fetch_add(usize::from(is_within_a_call()), SeqCst)))
}

/// Keys whose destructors call `at_drop`.
fn hooked(at_drop: impl Fn() + Send + Sync + 'static) -> impl Fn(u64) -> Hooked {
    let at_drop = Arc::new(at_drop);
    move |id| Hooked { id, at_drop: Arc::clone(&at_drop) as _ }
}

struct Hooked {
    id: u64,
    at_drop: Arc<dyn Fn() + Send + Sync>,
}

impl Drop for Hooked {
    fn drop(&mut self) {
        (self.at_drop)();
    }
}

impl PartialEq for Hooked {
    fn eq(&self, other: &Self) -> bool {
        self.id == other.id
    }
}

impl Eq for Hooked {}

impl Hash for Hooked {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.id.hash(state);
    }
}

impl Borrow<u64> for Hooked {
    fn borrow(&self) -> &u64 {
        &self.id
    }
}

/// Keys whose destructors hang until the gate opens.
fn hanging(gate: &Arc<Gate>) -> impl Fn(u64) -> Hooked + use<> {
    let gate = Arc::clone(gate);
    hooked(move || gate.pass())
}

/// A thread that has run a callback drops keys of others after that. (There is one batch of them, so one thread hangs;
/// and no call of this one, which would drop them.)
#[test]
fn who_waits_for_callbacks_waits_for_no_keys_destructor() {
    const BATCH: u64 = 64;
    const LATER: u64 = 20;

    let gate = Arc::new(Gate::default());
    let scheduler = Scheduler::builder().shards(1).build(|_: &Hooked, ()| {}).expect("in range");
    let opener = Opener(&gate);
    let (key, begin) = (hanging(&gate), Instant::now() + ms(50));
    for id in 0..BATCH + LATER {
        let due = begin + ms(5 * id.saturating_sub(BATCH));
        assert!(scheduler.schedule_at(key(id), (), due).is_ok());
    }
    eventually("all have fired", || scheduler.stats().fired == BATCH + LATER);
    eventually("a destructor hangs", || gate.arrived() > 0);
    assert!(scheduler.wait_for_callbacks(PATIENCE));
    drop(opener);
}

/// To close one waits for all calls of any scheduler.
#[test]
fn a_keys_destructor_that_hangs_holds_up_no_other_scheduler() {
    let gate = Arc::new(Gate::default());
    let opener = Opener(&gate);
    let (key, at_gate) = (hanging(&gate), Arc::clone(&gate));
    let caller = support::start(move || {
        let (scheduler, _clock) = Scheduler::builder().build_manual(|_: &Hooked, ()| {}).expect("in range");
        // Until it hangs in one of these calls.
        for id in (0..).take_while(|_| at_gate.arrived() == 0) {
            let timer = scheduler.schedule_unindexed(key(id), (), HOUR).expect("open");
            assert!(timer.cancel().is_some());
        }
    });
    eventually("a destructor hangs", || gate.arrived() > 0);
    let (other, _clock) = Scheduler::builder().shards(1).build_manual(|_: &u64, ()| {}).expect("in range");
    assert!(other.schedule(1, HOUR).is_ok());
    let closing = support::start(move || other.close(Close::Return).returned.len());
    assert_eq!(closing.recv_timeout(PATIENCE), Ok(1));
    drop(opener);
    caller.recv_timeout(PATIENCE).expect("it goes on");
}

/// On an `Inline` worker: to wait for the other scheduler's workers may be to wait for itself.
#[test]
fn a_destructor_that_a_worker_runs_waits_for_no_other_scheduler() {
    within(PATIENCE, "a worker that drops a scheduler", || {
        let gate = Arc::new(Gate::default());
        let at_gate = Arc::clone(&gate);
        let builder = Scheduler::builder().shards(1).executor(Executor::Inline);
        let slow = builder.build(move |_: &u64, ()| at_gate.pass()).unwrap();
        slow.schedule(1, Duration::ZERO).unwrap();
        eventually("its callback runs", || gate.arrived() == 1);
        let opener = Opener(&gate);
        let (done, dropped) = channel();
        struct Holds(Option<Scheduler<u64>>, Sender<()>);
        impl Drop for Holds {
            fn drop(&mut self) {
                drop(self.0.take());
                self.1.send(()).expect("the test waits");
            }
        }
        let builder = Scheduler::builder().shards(1).executor(Executor::Inline);
        let other = builder.build_rearming(|_: &u64, _: &mut Holds| Next::Done).unwrap();
        assert!(other.schedule_with(1, Holds(Some(slow), done), Duration::ZERO).is_ok());
        dropped.recv().expect("it does not wait for the callback");
        drop(opener);
    });
}

/// The child has a copy of the scheduler, and none of its threads.
#[cfg(target_os = "linux")]
#[test]
fn a_process_that_was_forked_off_may_close_its_copy() {
    // Those of the system's library. (In a child of `Command` every panic aborts.)
    unsafe extern "C" {
        fn fork() -> i32;
        fn waitpid(process: i32, status: *mut i32, options: i32) -> i32;
        fn _exit(status: i32) -> !;
    }

    let scheduler = Scheduler::builder().shards(2).build(|_: &u64, _: String| {}).expect("in range");
    assert!(scheduler.schedule_with(1, text(1), HOUR).is_ok());
    // SAFETY: the child allocates, for which the library is prepared, and needs nothing that other threads may have
    // locked.
    let child = unsafe { fork() };
    if child == 0 {
        let close = || scheduler.close(Close::Discard).discarded;
        let discarded = catch_unwind(AssertUnwindSafe(close));
        // SAFETY: ends this process only.
        unsafe { _exit(i32::from(!matches!(discarded, Ok(1)))) };
    }
    let status = within(PATIENCE, "a child that closes its copy", move || {
        let mut status = -1;
        // SAFETY: writes one number.
        assert_eq!(unsafe { waitpid(child, &raw mut status, 0) }, child);
        status
    });
    assert_eq!(status, 0, "the child closes its copy");
    assert_eq!(scheduler.close(Close::Return).returned.len(), 1, "this process has its own");
}
