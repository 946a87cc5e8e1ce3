//! What a call costs: this crate beside what a user would otherwise build, in the same loops.
//!
//! ```sh
//! cargo bench --bench schedulers                    # a few minutes
//! cargo bench --bench schedulers -- --quick         # under one
//! cargo bench --bench schedulers -- --fast-hash     # the same with a cheap hasher, for all
//! ```
//!
//! | workload  | an operation is                                                                              |
//! |-----------|----------------------------------------------------------------------------------------------|
//! | schedule  | one more timer, due in 1 min to 1 h, into what was empty and never used before               |
//! | rpc       | schedule a time-out of 30 s **and** cancel the one of 1,024 requests ago, beside N others    |
//! | heartbeat | move a random one of N timers to 30 s from now                                               |
//!
//! Machines are noisy, so contenders take turns: in each round each of them starts anew, runs all workloads, and ends;
//! figures are compared within a round only. `wall` is the time from the first caller's start to the last one's end, over
//! all callers' operations: with two callers that scale it halves. `cpu` is the time of all of the process's threads,
//! those that work in the background included. Both are medians over the rounds, with the smallest and the largest.
//! A ratio is the median of the rounds' ratios of a peer's time to ours: above 1, we are faster. On a machine that has
//! other things to do, that of the processor times is the one to trust.
//!
//! Nothing fires while it runs, and the peers' threads that would wait for the first deadline are left out: that spares
//! them their wake-ups, and us nothing.

use core_affinity::CoreId;
use shardwheel::{Scheduler, Timer};
use std::collections::hash_map::RandomState;
use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasher, BuildHasherDefault, Hasher};
use std::process::ExitCode;
use std::sync::{Barrier, Mutex};
use std::time::{Duration, Instant};
use tokio_util::time::{DelayQueue, delay_queue};

/// Requests that each caller has under way in `rpc`.
const IN_FLIGHT: usize = 1024;
const RPC_TIMEOUT: Duration = Duration::from_secs(30);
const HEARTBEAT_TIMEOUT: Duration = Duration::from_secs(30);

/// A timer service under test; a timer is a key and a value, both `u64`.
///
/// Whoever works by key has `()` for a handle; whoever works by handle ignores the key given with it.
trait Contender: Sync {
    type Handle: Send + Sync;
    fn new() -> Self;
    /// Called by each caller's thread before anything else.
    fn run<R>(&self, caller: impl FnOnce() -> R) -> R {
        caller()
    }
    fn schedule(&self, key: u64, value: u64, delay: Duration) -> Self::Handle;
    /// The value, if the timer was pending.
    fn cancel(&self, key: u64, handle: Self::Handle) -> Option<u64>;
    /// True if the timer was pending.
    fn reschedule(&self, key: u64, handle: &Self::Handle, delay: Duration) -> bool;
}

struct ByKey<S>(Scheduler<u64, u64, S>);

fn shardwheel<S: BuildHasher + Default>() -> Scheduler<u64, u64, S> {
    Scheduler::builder().hasher(S::default()).build(|_, _| {}).expect("the defaults are in range")
}

impl<S: BuildHasher + Default + Send + Sync> Contender for ByKey<S> {
    type Handle = ();
    fn new() -> Self {
        Self(shardwheel())
    }
    fn schedule(&self, key: u64, value: u64, delay: Duration) {
        self.0.schedule_with(key, value, delay).expect("it is open and not full");
    }
    fn cancel(&self, key: u64, (): ()) -> Option<u64> {
        self.0.cancel(&key)
    }
    fn reschedule(&self, key: u64, (): &(), delay: Duration) -> bool {
        self.0.reschedule(&key, delay)
    }
}

struct ByHandle<S>(Scheduler<u64, u64, S>);

impl<S: BuildHasher + Default + Send + Sync> Contender for ByHandle<S> {
    type Handle = Timer<u64, u64>;
    fn new() -> Self {
        Self(shardwheel())
    }
    fn schedule(&self, key: u64, value: u64, delay: Duration) -> Self::Handle {
        self.0.schedule_with_handle(key, value, delay).expect("it is open and not full").1
    }
    fn cancel(&self, _key: u64, timer: Self::Handle) -> Option<u64> {
        timer.cancel()
    }
    fn reschedule(&self, _key: u64, timer: &Self::Handle, delay: Duration) -> bool {
        timer.reschedule(delay)
    }
}

/// A balanced tree by deadline and a hash map from key to deadline, behind one lock.
#[derive(Default)]
struct Tree<S> {
    timers: BTreeMap<(Instant, u64), u64>,
    deadlines: HashMap<u64, Instant, S>,
}

impl<S: BuildHasher + Default + Send> Contender for Mutex<Tree<S>> {
    type Handle = ();
    fn new() -> Self {
        Self::default()
    }
    fn schedule(&self, key: u64, value: u64, delay: Duration) {
        let deadline = Instant::now() + delay;
        let mut tree = self.lock().expect("nobody panics under the lock");
        if let Some(earlier) = tree.deadlines.insert(key, deadline) {
            tree.timers.remove(&(earlier, key));
        }
        tree.timers.insert((deadline, key), value);
    }
    fn cancel(&self, key: u64, (): ()) -> Option<u64> {
        let mut tree = self.lock().expect("nobody panics under the lock");
        let deadline = tree.deadlines.remove(&key)?;
        tree.timers.remove(&(deadline, key))
    }
    fn reschedule(&self, key: u64, (): &(), delay: Duration) -> bool {
        let deadline = Instant::now() + delay;
        let tree = &mut *self.lock().expect("nobody panics under the lock");
        let Some(place) = tree.deadlines.get_mut(&key) else { return false };
        let earlier = std::mem::replace(place, deadline);
        let value = tree.timers.remove(&(earlier, key)).expect("the two agree");
        tree.timers.insert((deadline, key), value);
        true
    }
}

/// tokio-util's queue behind a lock, within a runtime, which it needs for its clock.
struct Queue<Q> {
    runtime: tokio::runtime::Runtime,
    queue: Mutex<Q>,
}

impl<Q: Default> Queue<Q> {
    fn new() -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
        Self { runtime: runtime.expect("a runtime without threads"), queue: Mutex::default() }
    }
}

struct KeyedQueue<S> {
    timers: DelayQueue<(u64, u64)>,
    places: HashMap<u64, delay_queue::Key, S>,
}

impl<S: Default> Default for KeyedQueue<S> {
    fn default() -> Self {
        Self { timers: DelayQueue::new(), places: HashMap::default() }
    }
}

impl<S: BuildHasher + Default + Send> Contender for Queue<KeyedQueue<S>> {
    type Handle = ();
    fn new() -> Self {
        Self::new()
    }
    fn run<R>(&self, caller: impl FnOnce() -> R) -> R {
        let _entered = self.runtime.enter();
        caller()
    }
    fn schedule(&self, key: u64, value: u64, delay: Duration) {
        let mut queue = self.queue.lock().expect("nobody panics under the lock");
        let place = queue.timers.insert((key, value), delay);
        if let Some(earlier) = queue.places.insert(key, place) {
            queue.timers.remove(&earlier);
        }
    }
    fn cancel(&self, key: u64, (): ()) -> Option<u64> {
        let mut queue = self.queue.lock().expect("nobody panics under the lock");
        let place = queue.places.remove(&key)?;
        Some(queue.timers.remove(&place).into_inner().1)
    }
    fn reschedule(&self, key: u64, (): &(), delay: Duration) -> bool {
        let queue = &mut *self.queue.lock().expect("nobody panics under the lock");
        let Some(place) = queue.places.get(&key) else { return false };
        queue.timers.reset(place, delay);
        true
    }
}

/// Without an index by key, which `DelayQueue` alone does not have.
#[derive(Default)]
struct PlainQueue(DelayQueue<(u64, u64)>);

impl Contender for Queue<PlainQueue> {
    type Handle = delay_queue::Key;
    fn new() -> Self {
        Self::new()
    }
    fn run<R>(&self, caller: impl FnOnce() -> R) -> R {
        let _entered = self.runtime.enter();
        caller()
    }
    fn schedule(&self, key: u64, value: u64, delay: Duration) -> Self::Handle {
        self.queue.lock().expect("nobody panics under the lock").0.insert((key, value), delay)
    }
    fn cancel(&self, _key: u64, place: Self::Handle) -> Option<u64> {
        let removed = self.queue.lock().expect("nobody panics under the lock").0.try_remove(&place);
        removed.map(|expired| expired.into_inner().1)
    }
    fn reschedule(&self, _key: u64, place: &Self::Handle, delay: Duration) -> bool {
        self.queue.lock().expect("nobody panics under the lock").0.reset(place, delay);
        true
    }
}

/// A hasher of one multiplication: for keys that no attacker chooses.
#[derive(Default)]
struct FastHasher(u64);

impl Hasher for FastHasher {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&byte| self.write_u64(byte.into()));
    }
    fn write_u64(&mut self, number: u64) {
        let product = u128::from(self.0 ^ number) * 0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835;
        self.0 = (product >> 64) as u64 ^ product as u64;
    }
    fn finish(&self) -> u64 {
        self.0
    }
}

/// A bijection that leaves no order in what it is given; also the source of all that is random here.
fn scramble(number: u64) -> u64 {
    let mixed = (number ^ number >> 32).wrapping_mul(0x9fb2_1c65_1e98_df25);
    let mixed = (mixed ^ mixed >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed ^ mixed >> 32
}

fn far_delay(number: u64) -> Duration {
    Duration::from_millis(60_000 + scramble(!number) % 3_540_000)
}

/// How much is run at a time.
#[derive(Clone, Copy)]
struct Size {
    /// Timers that are there all the time.
    population: usize,
    /// In `rpc` and in `heartbeat`, over all callers.
    operations: usize,
    callers: usize,
}

impl Size {
    /// The numbers of the timers, or of the operations, that are this caller's.
    fn share(self, total: usize, caller: usize) -> std::ops::Range<u64> {
        let bound = |caller: usize| (total * caller / self.callers) as u64;
        bound(caller)..bound(caller + 1)
    }
}

/// Nanoseconds per operation.
#[derive(Clone, Copy, Default)]
struct Cost {
    wall: f64,
    cpu: f64,
}

/// The time that all threads of this process have run, where the system tells.
fn process_cpu() -> Duration {
    #[cfg(target_os = "linux")]
    {
        let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
        Duration::try_from(time).expect("not negative")
    }
    #[cfg(not(target_os = "linux"))]
    Duration::ZERO
}

/// Runs `work` on a pinned thread per caller, all at once.
fn measure<C: Contender, R: Send>(
    contender: &C,
    size: Size,
    operations: usize,
    work: impl Fn(usize) -> R + Sync,
) -> (Cost, Vec<R>) {
    let cores = core_affinity::get_core_ids().unwrap_or_default();
    // The callers, and this thread, which asks for the processor time.
    let barrier = &Barrier::new(size.callers + 1);
    std::thread::scope(|scope| {
        let spawn = |caller: usize| {
            let core = cores.get(caller % cores.len().max(1)).copied();
            let work = &work;
            scope.spawn(move || {
                core.map(|core: CoreId| core_affinity::set_for_current(core));
                contender.run(|| {
                    barrier.wait();
                    let start = Instant::now();
                    let result = work(caller);
                    (start, Instant::now(), result)
                })
            })
        };
        let threads: Vec<_> = (0..size.callers).map(spawn).collect();
        let cpu = process_cpu();
        barrier.wait();
        let (mut starts, mut ends, mut results) = (Vec::new(), Vec::new(), Vec::new());
        for thread in threads {
            let (start, end, result) = thread.join().expect("a caller failed");
            starts.push(start);
            ends.push(end);
            results.push(result);
        }
        let cpu = process_cpu() - cpu;
        let wall = ends.into_iter().max().zip(starts.into_iter().min()).map(|(end, start)| end - start);
        let per_operation = |time: Duration| time.as_nanos() as f64 / operations as f64;
        (Cost { wall: per_operation(wall.unwrap_or_default()), cpu: per_operation(cpu) }, results)
    })
}

fn schedule<C: Contender>(contender: &C, size: Size) -> (Cost, Vec<C::Handle>) {
    let (cost, handles) = measure(contender, size, size.population, |caller| {
        let start = |number| contender.schedule(scramble(number), number, far_delay(number));
        size.share(size.population, caller).map(start).collect::<Vec<_>>()
    });
    (cost, handles.into_iter().flatten().collect())
}

fn rpc<C: Contender>(contender: &C, size: Size) -> Cost {
    let begin = |request| contender.schedule(scramble(request), request, RPC_TIMEOUT);
    let end = |request, handle| assert_eq!(contender.cancel(scramble(request), handle), Some(request));
    let (cost, _) = measure(contender, size, size.operations, |caller| {
        let mut under_way = std::collections::VecDeque::with_capacity(IN_FLIGHT + 1);
        for number in size.share(size.operations, caller) {
            let request = size.population as u64 + number;
            under_way.push_back((request, begin(request)));
            if under_way.len() > IN_FLIGHT {
                let (request, handle) = under_way.pop_front().expect("it is not empty");
                end(request, handle);
            }
        }
        under_way.into_iter().for_each(|(request, handle)| end(request, handle));
    });
    cost
}

fn heartbeat<C: Contender>(contender: &C, size: Size, handles: &[C::Handle]) -> Cost {
    let (cost, _) = measure(contender, size, size.operations, |caller| {
        for number in size.share(size.operations, caller) {
            let random = ((scramble(number) >> 32) * size.population as u64) >> 32;
            let moved = contender.reschedule(scramble(random), &handles[random as usize], HEARTBEAT_TIMEOUT);
            assert!(moved, "the timer is pending");
        }
    });
    cost
}

const WORKLOADS: [&str; 3] = ["schedule", "rpc", "heartbeat"];

fn all_workloads<C: Contender>(size: Size) -> [Cost; WORKLOADS.len()] {
    let contender = C::new();
    let (schedule, handles) = schedule(&contender, size);
    let rpc = rpc(&contender, size);
    let heartbeat = heartbeat(&contender, size, &handles);
    [schedule, rpc, heartbeat]
}

/// A contender in the table; `peer_of` is the one among ours that it is compared with.
struct Entry {
    name: &'static str,
    peer_of: usize,
    run: fn(Size) -> [Cost; WORKLOADS.len()],
}

fn contenders<S: BuildHasher + Default + Send + Sync>() -> [Entry; 5] {
    [
        Entry { name: "shardwheel, key", peer_of: 0, run: all_workloads::<ByKey<S>> },
        Entry { name: "Mutex<BTreeMap>, key", peer_of: 0, run: all_workloads::<Mutex<Tree<S>>> },
        Entry { name: "Mutex<DelayQueue>, key", peer_of: 0, run: all_workloads::<Queue<KeyedQueue<S>>> },
        Entry { name: "shardwheel, handle", peer_of: 3, run: all_workloads::<ByHandle<S>> },
        Entry { name: "Mutex<DelayQueue>, handle", peer_of: 3, run: all_workloads::<Queue<PlainQueue>> },
    ]
}

struct Options {
    populations: &'static [usize],
    rounds: usize,
    /// In `rpc` and `heartbeat`, at least and as a multiple of the population.
    operations: (usize, f64),
    fast_hash: bool,
}

impl Options {
    /// `cargo bench` says `--bench`; without it (`cargo test --benches`), or with `--test`, it is enough to see that
    /// everything works.
    fn parse(arguments: impl Iterator<Item = String>) -> Result<Self, String> {
        let (mut bench, mut test, mut quick, mut fast_hash) = (false, false, false, false);
        for argument in arguments {
            match argument.as_str() {
                "--bench" => bench = true,
                "--test" => test = true,
                "--quick" => quick = true,
                "--fast-hash" => fast_hash = true,
                other => return Err(format!("{other}: the options are --quick, --fast-hash and --test")),
            }
        }
        let (populations, rounds, operations): (&[usize], _, _) = match (bench && !test, quick) {
            (false, _) => (&[3_000], 1, (3_000, 1.0)),
            (true, true) => (&[100_000, 1_000_000], 3, (200_000, 0.3)),
            (true, false) => (&[100_000, 1_000_000], 7, (500_000, 1.0)),
        };
        Ok(Self { populations, rounds, operations, fast_hash })
    }

    fn size(&self, population: usize, callers: usize) -> Size {
        let (least, multiple) = self.operations;
        Size { population, callers, operations: least.max((population as f64 * multiple) as usize) }
    }
}

/// Median, least and greatest.
fn spread(figures: impl Iterator<Item = f64>) -> [f64; 3] {
    let mut figures: Vec<_> = figures.collect();
    figures.sort_by(f64::total_cmp);
    [figures[figures.len() / 2], figures[0], figures[figures.len() - 1]]
}

/// `rounds[round][contender][workload]`.
type Rounds = Vec<Vec<[Cost; WORKLOADS.len()]>>;

fn report(entries: &[Entry], size: Size, rounds: &Rounds) {
    for (workload, name) in WORKLOADS.iter().enumerate() {
        let Size { population, callers, .. } = size;
        println!("\n{name}, {population} timers, {callers} caller{}", if callers == 1 { "" } else { "s" });
        println!("| contender | wall ns | min - max | cpu ns | min - max | wall ratio | cpu ratio |");
        println!("|---|--:|--:|--:|--:|--:|--:|");
        for (contender, entry) in entries.iter().enumerate() {
            let costs = || rounds.iter().map(|round| round[contender][workload]);
            let ours = || rounds.iter().map(|round| round[entry.peer_of][workload]);
            let ratio = |of: fn(Cost) -> f64| spread(costs().zip(ours()).map(|(cost, ours)| of(cost) / of(ours)))[0];
            let [wall, wall_min, wall_max] = spread(costs().map(|cost| cost.wall));
            let [cpu, cpu_min, cpu_max] = spread(costs().map(|cost| cost.cpu));
            print!("| {} | {wall:.0} | {wall_min:.0} - {wall_max:.0} ", entry.name);
            print!("| {cpu:.0} | {cpu_min:.0} - {cpu_max:.0} ");
            println!("| {:.2} | {:.2} |", ratio(|cost| cost.wall), ratio(|cost| cost.cpu));
        }
    }
}

fn run(options: &Options, entries: &[Entry]) {
    for &population in options.populations {
        for callers in [1, 2] {
            let size = options.size(population, callers);
            let mut rounds = Rounds::new();
            for round in 1..=options.rounds {
                eprintln!("{population} timers, {callers} caller(s): round {round} of {}", options.rounds);
                rounds.push(entries.iter().map(|entry| (entry.run)(size)).collect());
            }
            report(entries, size, &rounds);
        }
    }
}

fn main() -> ExitCode {
    match Options::parse(std::env::args().skip(1)) {
        Ok(options) if options.fast_hash => run(&options, &contenders::<BuildHasherDefault<FastHasher>>()),
        Ok(options) => run(&options, &contenders::<RandomState>()),
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}
