//! Checks that contenders do what they are measured at, and loops do what they say.

use crate::contender::{Caller, Contender, Pending, Row, Timer};
use crate::contenders::{self, Entry};
use crate::harness::plan;
use crate::options::{Command, parse};
use crate::witness::Witness;
use crate::workloads::{self, HEARTBEAT, Job, Session, Workload};
use std::collections::HashMap;
use std::collections::hash_map::RandomState;
use std::sync::Mutex;
use std::time::Duration;

fn entries() -> Vec<Entry> {
    let mut entries = contenders::all::<RandomState>();
    entries.retain(|entry| entry.access != contenders::Access::Own);
    entries
}

/// A small run. It reports faults, except early firings: that two of the peers fire early is what the benchmark shows.
fn run(entry: &Entry, session: Session, callers: usize) {
    let workloads: Vec<_> = Workload::ALL.into_iter().filter(|workload| workload.session() == session).collect();
    let metrics: usize = workloads.iter().map(|workload| workload.metrics().len()).sum();
    let job =
        Job { workloads, population: 2000, callers, shards: None, operations: 3000, idle: Duration::from_millis(50) };
    let report = (entry.run)(&job);
    let mut faults = report.faults.iter().filter(|fault| !fault.ends_with("fired early"));
    assert_eq!(faults.next(), None, "{}", entry.name);
    assert_eq!(report.figures.len(), metrics, "{}", entry.name);
}

/// Side by side: they spend their time in waiting for timers.
fn at_once<T: Send>(of: impl IntoIterator<Item = T>, check: impl Fn(T) + Sync) {
    std::thread::scope(|scope| {
        for each in of {
            scope.spawn(|| check(each));
        }
    });
}

#[test]
fn as_many_operations_and_shards_as_the_command_line_tells() {
    let planned = |arguments: &str| match parse(arguments.split(' ')) {
        Ok(Command::Measure(options)) => plan(&options),
        other => panic!("{other:?}"),
    };
    let operations = |arguments| planned(arguments).iter().map(|job| job.operations).collect::<Vec<_>>();
    assert_eq!(operations("--only rpc --n 1000,1000000 --callers 1 --operations 12_345"), [12_345; 2]);
    assert_eq!(operations("--only rpc --n 1000,1000000 --callers 1"), [500_000, 1_000_000]);
    let shards = |arguments| planned(arguments)[0].shards;
    assert_eq!((shards("--only burst --shards 3"), shards("--only burst")), (Some(3), None));
}

#[test]
fn calls_of_all_contenders_are_answered_rightly() {
    for entry in entries() {
        run(&entry, Session::Calls, 1);
        run(&entry, Session::Calls, 3);
        run(&entry, Session::Grow, 1);
    }
}

#[test]
fn all_contenders_by_key_fire_each_timer_once() {
    let by_key = entries().into_iter().filter(|entry| entry.access == contenders::Access::Key);
    at_once(by_key, |entry| {
        run(&entry, Session::Burst, 1);
        run(&entry, Session::BurstInOrder, 1);
    });
}

#[test]
fn all_contenders_by_key_move_timers_before_they_fire() {
    let by_key = entries().into_iter().filter(|entry| entry.access == contenders::Access::Key);
    at_once(by_key, |entry| run(&entry, Session::Deferred, 1));
}

#[test]
fn wheels_of_ones_own_expire_each_value_once() {
    let wheels = contenders::all::<RandomState>().into_iter().filter(|entry| entry.access == contenders::Access::Own);
    wheels.for_each(|entry| run(&entry, Session::Advance, 1));
}

#[test]
fn waiting_and_memory_are_told_of_all_contenders() {
    at_once(entries(), |entry| {
        run(&entry, Session::Idle, 1);
        run(&entry, Session::Memory, 1);
        run(&entry, Session::Churn, 1);
    });
}

/// Timers that are moved later or earlier, replaced, or cancelled fire accordingly. `moves` says whether there are
/// moves other than a heartbeat's.
fn keeps_books<C: Contender>(moves: bool)
where
    C::Caller: Caller<Handle = ()>,
{
    let witness = Witness::new(6);
    let contender: &C = Box::leak(Box::new(C::new(witness, None)));
    let mut caller = contender.caller();
    let (soon, far) = (Duration::from_millis(500), Duration::from_secs(600));
    let mut start = |value, delay| caller.schedule(Timer { key: value % 5, value, delay });
    for (value, delay) in [(0, far), (1, soon), (2, soon), (3, soon), (4, far), (5, soon)] {
        start(value, delay);
    }
    assert_eq!(caller.cancel(1, ()), Some(1));
    assert_eq!((caller.cancel(1, ()), caller.reschedule(1, &mut (), HEARTBEAT)), (None, false));
    assert!(caller.reschedule(2, &mut (), HEARTBEAT));
    assert!(!moves || caller.reschedule(4, &mut (), soon));
    let mut fired = vec![3, 5];
    fired.extend(moves.then_some(4));
    std::thread::sleep(Duration::from_secs(if moves { 2 } else { 4 }));
    let now = std::time::Instant::now();
    let verdict = witness.verdict(|value| if fired.contains(&value) { now - Duration::from_secs(3600) } else { now });
    assert_eq!((verdict.lateness.len(), verdict.twice), (fired.len(), 0));
    assert!(verdict.lateness.iter().all(|late| *late > Duration::from_secs(60)), "another one has fired");
}

#[test]
fn moved_replaced_and_cancelled_timers_fire_as_they_should() {
    let checks: [fn(); 10] = [
        || keeps_books::<contenders::Shardwheel<RandomState>>(true),
        || keeps_books::<contenders::TokioTask<RandomState>>(true),
        || keeps_books::<contenders::TokioSleep<RandomState>>(true),
        || keeps_books::<contenders::DelayQueueKey<RandomState>>(true),
        || keeps_books::<contenders::DelayQueueShards<RandomState>>(true),
        || keeps_books::<contenders::HashWheel<RandomState>>(true),
        || keeps_books::<contenders::Pingora<RandomState>>(true),
        || keeps_books::<contenders::Heap<RandomState>>(true),
        || keeps_books::<contenders::Tree<RandomState>>(true),
        || keeps_books::<contenders::Moka<RandomState>>(false),
    ];
    at_once(checks, |check| check());
}

/// A service with batch calls, to see that the loops use them, and never exceed a batch.
struct Batched(Mutex<HashMap<u64, u64>>);

impl Contender for Batched {
    type Caller = Batches;
    fn new(_witness: &'static Witness, _shards: Option<usize>) -> Self {
        Self(Mutex::default())
    }
    fn caller(&'static self) -> Batches {
        Batches(&self.0)
    }
}

struct Batches(&'static Mutex<HashMap<u64, u64>>);

impl Caller for Batches {
    type Handle = ();
    const BATCH: usize = 7;
    fn schedule(&mut self, _timer: Timer) {
        panic!("not in a batch");
    }
    fn cancel(&mut self, _key: u64, (): ()) -> Option<u64> {
        panic!("not in a batch");
    }
    fn reschedule(&mut self, _key: u64, (): &mut (), _delay: Duration) -> bool {
        panic!("not in a batch");
    }
    fn schedule_all(&mut self, timers: impl Iterator<Item = Timer>, mut keep: impl FnMut(Pending<()>)) {
        let timers: Vec<_> = timers.collect();
        assert!(!timers.is_empty() && timers.len() <= Self::BATCH);
        self.0.lock().expect("no panic").extend(timers.iter().map(|timer| (timer.key, timer.value)));
        timers.iter().for_each(|timer| keep(Pending { number: timer.value, handle: () }));
    }
    fn cancel_all(&mut self, timers: impl Iterator<Item = Pending<()>>) -> usize {
        let timers: Vec<_> = timers.collect();
        assert!(!timers.is_empty() && timers.len() <= Self::BATCH);
        let mut map = self.0.lock().expect("no panic");
        timers.iter().filter(|timer| map.remove(&timer.key()) == Some(timer.number)).count()
    }
    fn reschedule_all(&mut self, row: &mut Row<()>, places: impl Iterator<Item = usize>, _: Duration) -> usize {
        let places: Vec<_> = places.collect();
        assert!(!places.is_empty() && places.len() <= Self::BATCH);
        let map = self.0.lock().expect("no panic");
        places.iter().filter(|&&place| map.contains_key(&row.key(place))).count()
    }
}

#[test]
fn the_loops_call_batches() {
    let entry = contenders::by_key::<Batched>("batched");
    for session in [Session::Calls, Session::Grow, Session::Memory, Session::Churn] {
        run(&entry, session, 1);
    }
    run(&entry, Session::Calls, 3);
}

#[test]
fn a_service_that_loses_timers_is_found_out() {
    /// Forgets everything.
    struct Forgetful;
    impl Contender for Forgetful {
        type Caller = &'static Self;
        fn new(_witness: &'static Witness, _shards: Option<usize>) -> Self {
            Self
        }
        fn caller(&'static self) -> &'static Self {
            self
        }
    }
    impl Caller for &'static Forgetful {
        type Handle = ();
        fn schedule(&mut self, _timer: Timer) {}
        fn cancel(&mut self, _key: u64, (): ()) -> Option<u64> {
            None
        }
        fn reschedule(&mut self, _key: u64, (): &mut (), _delay: Duration) -> bool {
            false
        }
    }
    let workloads = vec![Workload::Rpc, Workload::Cancel, Workload::Sooner, Workload::Heartbeat];
    let job = Job { workloads, population: 1000, callers: 1, shards: None, operations: 1000, idle: Duration::ZERO };
    assert_eq!(workloads::run::<Forgetful>(&job).faults.len(), 4);
}
