//! Waiting for callbacks: afterwards, what was claimed before has ended; and waiting waits for nothing else.

mod support;

use shardwheel::{Builder, Close, Executor, Job, MissedTicks, Next, Pinning, Scheduler, Timer, WeakScheduler};
use std::hash::Hash;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread;
use std::time::{Duration, Instant};
use support::{
    Gate, HOUR, Ledger, MS, OneHash, Opener, PATIENCE, Random, Token, eventually, hush_callbacks, ignore, lock, ms,
    start,
};

const FOR_EVER: Duration = Duration::MAX;

/// Where callbacks run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Place {
    Own,
    Pool(usize),
    Inline,
    /// A new thread for each job.
    Threads,
}

const PLACES: [Place; 5] = [Place::Own, Place::Pool(1), Place::Pool(4), Place::Inline, Place::Threads];

fn at<K: Hash + Eq + Send + Sync + 'static, V: Send + 'static>(place: Place) -> Builder<K, V> {
    let pool = |threads| rayon::ThreadPoolBuilder::new().num_threads(threads).build().expect("a small pool");
    match place {
        Place::Own => Scheduler::builder(),
        Place::Pool(threads) => Scheduler::builder().executor(Executor::Rayon(Arc::new(pool(threads)))),
        Place::Inline => Scheduler::builder().executor(Executor::Inline),
        Place::Threads => Scheduler::builder().executor(Executor::custom(|job| ignore(thread::spawn(|| job.run())))),
    }
}

/// Waits, and checks that it was woken: only at the end of `PATIENCE` would it have looked by itself.
#[track_caller]
fn wait<K: Hash + Eq + Send + Sync + 'static, V: Send + 'static, S>(scheduler: &Scheduler<K, V, S>) {
    let start = Instant::now();
    assert!(scheduler.wait_for_callbacks(PATIENCE) && start.elapsed() < PATIENCE, "they do not end");
}

fn spin(time: Duration) {
    let start = Instant::now();
    while start.elapsed() < time {
        std::hint::spin_loop();
    }
}

/// All callbacks have ended, and their values are dropped, however many timers there are, on however many threads.
#[test]
fn nothing_runs_any_more_when_all_that_was_fired_has_been_waited_for() {
    for place in PLACES {
        for timers in [1, 2, 300, 1500] {
            let (values, begun, done) = (Ledger::default(), Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
            let (first, last) = (Arc::clone(&begun), Arc::clone(&done));
            let callback = move |_: &u64, _: Token| {
                // Some are slow, and hold up those behind them.
                if first.fetch_add(1, SeqCst) % 97 == 0 {
                    thread::sleep(2 * MS);
                }
                last.fetch_add(1, SeqCst);
            };
            let scheduler = at(place).shards(2).build(callback).expect("in range");
            for key in 0..timers {
                let delay = if key % 2 == 0 { HOUR } else { Duration::ZERO };
                ignore(scheduler.schedule_with(key, values.token(key), delay).expect("it is open and not full"));
            }
            eventually("what is due expires", || scheduler.len() as u64 <= timers.div_ceil(2));
            scheduler.close(Close::FireNow);
            // A close that finds nothing to fire.
            scheduler.close(Close::FireNow);
            wait(&scheduler);
            assert_eq!((begun.load(SeqCst), done.load(SeqCst)), (timers, timers), "{place:?}");
            assert_eq!(values.alive(), 0, "{place:?}");
        }
    }
}

#[test]
fn it_waits_no_longer_than_it_may() {
    let gate = Arc::new(Gate::default());
    let shut = Arc::clone(&gate);
    let scheduler = Scheduler::builder().shards(3).build(move |_: &u64, ()| shut.pass()).expect("in range");
    assert!(scheduler.wait_for_callbacks(Duration::ZERO), "nothing has begun");
    let _opener = Opener(&gate);
    scheduler.schedule(1, Duration::ZERO).expect("it is open and not full");
    eventually("it begins", || gate.arrived() == 1);
    for timeout in [Duration::ZERO, MS, 30 * MS] {
        let start = Instant::now();
        assert!(!scheduler.wait_for_callbacks(timeout));
        assert!(start.elapsed() >= timeout && start.elapsed() < timeout + PATIENCE / 2);
    }
    gate.open();
    wait(&scheduler);
    assert!(scheduler.wait_for_callbacks(Duration::ZERO));
}

/// What a callback uses; once `is_gone` is set, it must not.
#[derive(Default)]
struct Used {
    is_gone: AtomicBool,
}

/// Reports to other threads that it is over, even if a test fails.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, SeqCst);
    }
}

/// How timers are started and ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    ByKey,
    ByHandle,
    Periodic,
}

/// Whatever `cancel` has answered: after the wait, the callback no longer runs. All the while another thread fires
/// timers by hand.
#[test]
fn a_callback_that_cancel_came_too_late_for_can_be_waited_for() {
    for place in [Place::Own, Place::Inline, Place::Threads] {
        for kind in [Kind::ByKey, Kind::ByHandle, Kind::Periodic] {
            cancel_and_wait(place, kind);
        }
    }
}

/// Repeats until it has come too late `TOO_LATE` times; on a busy machine, for a while.
fn cancel_and_wait(place: Place, kind: Kind) {
    const TOO_LATE: u32 = 100;
    let misused = Arc::new(AtomicU64::new(0));
    let seen = Arc::clone(&misused);
    let callback = move |_: &u64, used: Arc<Used>| {
        let look = || ignore(seen.fetch_add(u64::from(used.is_gone.load(SeqCst)), SeqCst));
        look();
        spin(Duration::from_micros(20));
        look();
    };
    let scheduler = at(place).shards(1).tick(Duration::from_micros(10)).build(callback).expect("in range");
    let (current, is_over) = (AtomicU64::new(0), AtomicBool::new(false));
    let (mut too_late, begin) = (0, Instant::now());
    thread::scope(|scope| {
        let _ends = Ends(&is_over);
        scope.spawn(|| {
            let mut random = Random::new(3);
            while !is_over.load(SeqCst) {
                scheduler.expire_now(&current.load(SeqCst));
                spin(Duration::from_micros(random.below(100)));
            }
        });
        let mut random = Random::new(7);
        for key in 0.. {
            if too_late == TOO_LATE || too_late > 0 && begin.elapsed() > PATIENCE / 2 {
                break;
            }
            assert!(begin.elapsed() < PATIENCE, "it is a race: {place:?} {kind:?}");
            let (used, delay) = (Arc::new(Used::default()), Duration::from_micros(10 + random.below(60)));
            let value = Arc::clone(&used);
            current.store(key, SeqCst);
            let handle = match kind {
                Kind::ByKey => scheduler.schedule_with(key, value, delay).map(|_| None),
                Kind::ByHandle => scheduler.schedule_with_handle(key, value, delay).map(|(_, timer)| Some(timer)),
                Kind::Periodic => scheduler.schedule_every(key, value, delay, MissedTicks::Skip).map(|_| None),
            };
            let handle = handle.expect("it is open and not full");
            spin(Duration::from_micros(random.below(150)));
            let cancelled = handle.map_or_else(|| scheduler.cancel(&key), |timer| timer.cancel());
            if cancelled.is_none() {
                wait(&scheduler);
                too_late += 1;
            }
            used.is_gone.store(true, SeqCst);
        }
    });
    scheduler.close(Close::FireNow);
    wait(&scheduler);
    assert_eq!(misused.load(SeqCst), 0, "{place:?} {kind:?}");
}

/// How timers come to be claimed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Claim {
    /// Several in one step of the worker.
    InTime,
    ByKey,
    ByHandle,
}

/// All keys have one hash, and the timers that are claimed stand behind thousands of others: a thread that claims one
/// walks past all those. Meanwhile other threads see that the timer is no longer pending, though nothing runs it yet.
#[test]
fn a_claim_that_somebody_sees_is_waited_for_however_long_it_takes() {
    const VICTIMS: u64 = 200;
    for claim in [Claim::InTime, Claim::ByKey, Claim::ByHandle] {
        let misused = Arc::new(AtomicU64::new(0));
        let seen = Arc::clone(&misused);
        let callback = move |_: &u64, used: Arc<Used>| {
            spin(Duration::from_micros(20));
            seen.fetch_add(u64::from(used.is_gone.load(SeqCst)), SeqCst);
        };
        // Not pinned: the worker must not be on the core on which this thread looks.
        let builder = Scheduler::builder().shards(1).pinning(Pinning::Off).tick(Duration::from_micros(10));
        let scheduler = builder.hasher(OneHash).build(callback).expect("in range");
        let start_one = |key| {
            let used = Arc::new(Used::default());
            let started = scheduler.schedule_with_handle(key, Arc::clone(&used), HOUR);
            (key, started.expect("it is open and not full").1, used)
        };
        let victims: Vec<_> = (0..VICTIMS).map(start_one).collect();
        (VICTIMS..4_000).for_each(|key| ignore(start_one(key)));
        for group in victims.chunks(if claim == Claim::InTime { 20 } else { 1 }) {
            let (own, due) = (scheduler.clone(), Instant::now() + MS);
            let timers: Vec<_> = group.iter().map(|(key, timer, _)| (*key, timer.clone())).collect();
            let fire = move |(key, timer): &(u64, Timer<u64, Arc<Used>>)| match claim {
                Claim::InTime => timer.reschedule_at(due),
                Claim::ByKey => own.expire_now(key),
                Claim::ByHandle => timer.expire_now(),
            };
            let claimed = start(move || timers.iter().filter(|timer| fire(timer)).count());
            let used = loop {
                if let Some((_, _, used)) = group.iter().find(|(_, timer, _)| !timer.is_pending()) {
                    break used;
                }
            };
            wait(&scheduler);
            used.is_gone.store(true, SeqCst);
            assert_eq!(claimed.recv_timeout(PATIENCE), Ok(group.len()));
            eventually("all are claimed", || group.iter().all(|(_, timer, _)| !timer.is_pending()));
            wait(&scheduler);
        }
        assert_eq!(misused.load(SeqCst), 0, "{claim:?}");
    }
}

/// From the moment at which a close begins, `cancel` answers as on an empty scheduler; the timers are fired a little
/// later.
#[test]
fn what_is_fired_because_the_scheduler_is_just_being_closed_is_waited_for() {
    const ROUNDS: usize = 300;
    let mut too_late = 0;
    for round in 0..ROUNDS {
        // Now and then there are many timers, none of which is due.
        let are_many = round % 10 == 0;
        let (timers, delay) = if are_many { (20_000, HOUR) } else { (200, ms(1)) };
        let close = if are_many || round % 2 == 1 { Close::FireNow } else { Close::Discard };
        let misused = Arc::new(AtomicU64::new(0));
        let seen = Arc::clone(&misused);
        let callback = move |_: &u64, used: Arc<Used>| {
            spin(Duration::from_micros(5));
            seen.fetch_add(u64::from(used.is_gone.load(SeqCst)), SeqCst);
        };
        let scheduler = at(Place::Own).shards(3).tick(Duration::from_micros(10)).build(callback).expect("in range");
        let used = Arc::new(Used::default());
        let due = Instant::now() + delay;
        let schedule = |key| ignore(scheduler.schedule_at(key, Arc::clone(&used), due).expect("open and not full"));
        (0..timers).for_each(schedule);
        let closer = scheduler.clone();
        if !are_many {
            // The worker comes to most timers while the scheduler closes.
            spin(due.saturating_duration_since(Instant::now()).saturating_sub(Duration::from_micros(30)));
        }
        let closed = start(move || closer.close(close));
        while !scheduler.is_closed() {}
        too_late += usize::from(scheduler.cancel(&0).is_none());
        wait(&scheduler);
        used.is_gone.store(true, SeqCst);
        ignore(closed.recv_timeout(PATIENCE).expect("it closes"));
        wait(&scheduler);
        assert_eq!(misused.load(SeqCst), 0, "{close:?}, round {round}");
    }
    assert_eq!(too_late, ROUNDS);
}

/// Each callback ends when the next has begun.
#[test]
fn callbacks_that_overlap_all_the_time_starve_nobody_who_waits() {
    let own = Arc::new(OnceLock::<WeakScheduler<u64>>::new());
    let (begun, is_over) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
    let (used, count, over) = (Arc::clone(&own), Arc::clone(&begun), Arc::clone(&is_over));
    let callback = move |&key: &u64, ()| {
        count.fetch_max(key, SeqCst);
        let scheduler = used.get().and_then(WeakScheduler::upgrade).expect("it is there");
        if !over.load(SeqCst) && scheduler.schedule(key + 1, HOUR).is_ok() && scheduler.expire_now(&(key + 1)) {
            eventually("the next begins", || count.load(SeqCst) > key);
        }
    };
    let scheduler = at(Place::Threads).shards(1).build(callback).expect("in range");
    own.set(scheduler.downgrade()).expect("set once");
    scheduler.schedule(1, Duration::ZERO).expect("it is open and not full");
    for _ in 0..20 {
        let before = begun.load(SeqCst);
        eventually("they go on", || begun.load(SeqCst) > before);
        assert!(!scheduler.wait_for_callbacks(Duration::ZERO), "one is always under way");
        assert!(scheduler.wait_for_callbacks(PATIENCE), "they end one by one");
    }
    is_over.store(true, SeqCst);
    wait(&scheduler);
}

/// In its own scheduler, in an idle one, and in one with a callback that does not end; in a destructor as well.
#[test]
fn within_a_callback_it_looks_once() {
    struct Asks(Arc<OnceLock<[Scheduler<u64, ()>; 2]>>, Arc<Mutex<Vec<bool>>>);
    impl Drop for Asks {
        fn drop(&mut self) {
            let others = self.0.get().expect("they are there");
            lock(&self.1).extend(others.iter().map(|other| other.wait_for_callbacks(FOR_EVER)));
        }
    }
    let gate = Arc::new(Gate::default());
    let shut = Arc::clone(&gate);
    let idle = Scheduler::builder().shards(1).build(|_: &u64, ()| {}).expect("in range");
    let busy = Scheduler::builder().shards(2).build(move |_: &u64, ()| shut.pass()).expect("in range");
    let _opener = Opener(&gate);
    busy.schedule(1, Duration::ZERO).expect("it is open and not full");
    eventually("it begins", || gate.arrived() == 1);
    let others = Arc::new(OnceLock::from([idle, busy]));
    for place in PLACES {
        let (own, answers) =
            (Arc::new(OnceLock::<WeakScheduler<u64, Asks>>::new()), Arc::<Mutex<Vec<bool>>>::default());
        let (used, told) = (Arc::clone(&own), Arc::clone(&answers));
        let callback = move |_: &u64, asks: Asks| {
            let own = used.get().and_then(WeakScheduler::upgrade).expect("it is there");
            lock(&told).push(own.wait_for_callbacks(FOR_EVER));
            drop(asks);
        };
        let scheduler = at(place).shards(1).build(callback).expect("in range");
        own.set(scheduler.downgrade()).expect("set once");
        let asks = Asks(Arc::clone(&others), Arc::clone(&answers));
        assert!(scheduler.schedule_with(1, asks, Duration::ZERO).is_ok());
        eventually("it has run", || lock(&answers).len() == 3);
        wait(&scheduler);
        assert_eq!(*lock(&answers), [false, true, false], "{place:?}");
    }
}

#[test]
fn who_waits_holds_up_no_other_and_all_are_woken() {
    let gate = Arc::new(Gate::default());
    let shut = Arc::clone(&gate);
    let scheduler = Scheduler::builder().shards(1).build(move |_: &u64, ()| shut.pass()).expect("in range");
    let _opener = Opener(&gate);
    scheduler.schedule(1, Duration::ZERO).expect("it is open and not full");
    eventually("it begins", || gate.arrived() == 1);
    let waits = |timeout| {
        let scheduler = scheduler.clone();
        start(move || scheduler.wait_for_callbacks(timeout))
    };
    let waiting = [(); 6].map(|()| waits(FOR_EVER));
    let impatient = [(); 6].map(|()| waits(20 * MS));
    assert!(impatient.iter().all(|answer| answer.recv_timeout(PATIENCE) == Ok(false)));
    let later = [(); 3].map(|()| waits(FOR_EVER));
    // Other timers go on meanwhile, and their callbacks end, unless they wait at the same gate.
    scheduler.schedule(2, Duration::ZERO).expect("it is open and not full");
    eventually("another begins", || gate.arrived() == 2);
    assert!(waiting.iter().all(|answer| answer.try_recv().is_err()));
    gate.open();
    assert!(waiting.iter().chain(&later).all(|answer| answer.recv_timeout(PATIENCE) == Ok(true)));
}

/// Some threads share one batch: all of its callbacks but one have run, on other threads than the one that is stuck.
#[test]
fn a_batch_has_ended_when_the_last_thread_that_helps_has() {
    for (place, timers) in [(Place::Pool(2), 64), (Place::Pool(4), 200), (Place::Own, 64), (Place::Own, 1000)] {
        let (gate, done) = (Arc::new(Gate::default()), Arc::new(AtomicU64::new(0)));
        let (shut, count) = (Arc::clone(&gate), Arc::clone(&done));
        let callback = move |&key: &u64, ()| {
            if key == timers / 2 {
                shut.pass();
            }
            count.fetch_add(1, SeqCst);
        };
        let scheduler = at(place).shards(1).build(callback).expect("in range");
        let _opener = Opener(&gate);
        let due = Instant::now() + ms(20);
        (0..timers).for_each(|key| ignore(scheduler.schedule_at(key, (), due).expect("it is open and not full")));
        eventually("the others have run", || done.load(SeqCst) == timers - 1);
        assert!(!scheduler.wait_for_callbacks(MS));
        gate.open();
        wait(&scheduler);
        assert_eq!(done.load(SeqCst), timers);
    }
}

/// Of one step's jobs some are run and some are dropped; also with timers that come back.
#[test]
fn jobs_that_are_dropped_have_ended() {
    const TIMERS: u64 = 1000;
    for repeats in [false, true] {
        let (sender, jobs): (_, Receiver<Job>) = channel();
        let executor = Executor::custom(move |job| ignore(sender.send(job)));
        let scheduler = Scheduler::builder().shards(1).executor(executor).build(|_: &u64, ()| {}).expect("in range");
        for key in 0..TIMERS {
            let started = match repeats {
                true => scheduler.schedule_every(key, (), HOUR, MissedTicks::Skip),
                false => scheduler.schedule(key, HOUR),
            };
            ignore(started.expect("it is open and not full"));
        }
        assert!(repeats || scheduler.close(Close::FireNow).fired == TIMERS as usize);
        assert!(!repeats || (0..TIMERS).all(|key| scheduler.expire_now(&key)));
        let mut jobs: Vec<Job> = jobs.try_iter().collect();
        assert_eq!(jobs.len() as u64, if repeats { TIMERS } else { TIMERS.div_ceil(256) });
        while let Some(job) = jobs.pop() {
            assert!(!scheduler.wait_for_callbacks(Duration::ZERO), "{} jobs are left", jobs.len() + 1);
            if jobs.len().is_multiple_of(2) { drop(job) } else { job.run() }
        }
        assert!(scheduler.wait_for_callbacks(Duration::ZERO));
        assert_eq!(scheduler.len() as u64, if repeats { TIMERS } else { 0 });
    }
}

#[test]
fn who_moves_a_clock_by_hand_may_be_waited_for() {
    let gate = Arc::new(Gate::default());
    let shut = Arc::clone(&gate);
    let builder = Scheduler::builder().shards(2);
    let (scheduler, clock) = builder.build_manual(move |_: &u64, ()| shut.pass()).expect("in range");
    let _opener = Opener(&gate);
    (0..10).for_each(|key| ignore(scheduler.schedule(key, MS).expect("it is open and not full")));
    let moved = start(move || clock.advance(2 * MS));
    eventually("it begins", || gate.arrived() == 1);
    assert!(!scheduler.wait_for_callbacks(10 * MS));
    gate.open();
    // The other shard's timers may not have been claimed by then.
    wait(&scheduler);
    assert_eq!(moved.recv_timeout(PATIENCE), Ok(10));
    assert!(scheduler.wait_for_callbacks(Duration::ZERO));
}

/// A callback, a hook, and the destructors of values panic; and a comparison of keys, before anything is claimed.
#[test]
fn what_panics_has_ended() {
    struct Angry(u64);
    impl PartialEq for Angry {
        fn eq(&self, other: &Self) -> bool {
            assert!(self.0 != 7 && other.0 != 7, "on purpose");
            self.0 == other.0
        }
    }
    impl Eq for Angry {}
    impl Hash for Angry {
        fn hash<H: std::hash::Hasher>(&self, _: &mut H) {}
    }
    struct Bomb;
    impl Drop for Bomb {
        fn drop(&mut self) {
            panic!("on purpose");
        }
    }
    hush_callbacks();
    let hooked = Arc::new(AtomicUsize::new(0));
    let seen = Arc::clone(&hooked);
    let hook = move |_: &Angry, _| {
        seen.fetch_add(1, SeqCst);
        panic!("on purpose");
    };
    let builder = Scheduler::builder().shards(1).on_panic(hook);
    let scheduler = builder
        .build_rearming(|key: &Angry, _: &mut Bomb| if key.0 == 1 { panic!("on purpose") } else { Next::Done })
        .expect("in range");
    assert!(scheduler.schedule_with(Angry(1), Bomb, Duration::ZERO).is_ok());
    assert!(scheduler.schedule_with(Angry(2), Bomb, HOUR).is_ok());
    eventually("it panics", || hooked.load(SeqCst) == 1);
    let asked = std::panic::catch_unwind(|| scheduler.expire_now(&Angry(7)));
    assert!(asked.is_err(), "the comparison panics");
    wait(&scheduler);
    assert_eq!(scheduler.close(Close::FireNow).fired, 1);
    wait(&scheduler);
}
