//! What the test files share: counted values and keys, waiting with a limit, a seeded random source.
//!
//! Real threads on a shared machine are late by some milliseconds for no fault of ours. So the bounds on lateness are
//! generous ([`SOON`]), but real: the tests arrange things such that a lost wake-up shows as seconds.

#![allow(dead_code, unreachable_pub, reason = "each test file uses a part of this")]

use shardwheel::{Executor, Job, ManualClock};
use std::collections::HashMap;
use std::hash::{BuildHasher, Hash, Hasher};
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering::SeqCst};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, Once, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// How late a timer may be on a busy machine before a test fails.
pub const SOON: Duration = Duration::from_millis(if cfg!(slow) { 5_000 } else { 250 });
/// How long anything at all may take.
pub const PATIENCE: Duration = Duration::from_secs(20);
pub const HOUR: Duration = Duration::from_secs(3600);
pub const MS: Duration = Duration::from_millis(1);
/// Uptimes in ticks at which other timer libraries have broken.
pub const FIRST_TICKS: [u64; 4] = [0, (1 << 36) - 3, (1 << 42) - 3, (1 << 63) - 3];

pub fn ms(count: u64) -> Duration {
    Duration::from_millis(count)
}

/// For answers that do not matter here.
pub fn ignore<T>(_: T) {}

/// Waits until `condition` holds; fails the test if that takes too long.
#[track_caller]
pub fn eventually(what: &str, condition: impl Fn() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < PATIENCE, "this never came: {what}");
        thread::sleep(MS);
    }
}

/// Runs `work` on a thread of its own; fails the test if it hangs.
#[track_caller]
pub fn within<R: Send + 'static>(limit: Duration, what: &str, work: impl FnOnce() -> R + Send + 'static) -> R {
    match start(work).recv_timeout(limit) {
        Ok(result) => result,
        Err(error) => panic!("{what}: {error} after {limit:?}"),
    }
}

/// Runs `work` on a thread of its own.
pub fn start<R: Send + 'static>(work: impl FnOnce() -> R + Send + 'static) -> Receiver<R> {
    let (sender, receiver) = channel();
    thread::spawn(move || sender.send(work()));
    receiver
}

/// Keeps the callbacks' panics, which are on purpose, out of the output.
pub fn hush_callbacks() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let default = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            let text = info.payload().downcast_ref::<&str>().copied();
            let text = text.or_else(|| info.payload().downcast_ref::<String>().map(String::as_str));
            let on_purpose = text.is_none_or(|text| text.contains("on purpose"));
            if !on_purpose {
                default(info);
            }
        }));
    });
}

pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// An executor that keeps its jobs, and these.
pub fn keeper() -> (Executor, Arc<Mutex<Vec<Job>>>) {
    let jobs = Arc::new(Mutex::new(Vec::new()));
    let kept = Arc::clone(&jobs);
    (Executor::custom(move |job| lock(&kept).push(job)), jobs)
}

/// A door that is shut until a thread opens it, and knows how many threads have come to it.
#[derive(Default)]
pub struct Gate {
    is_open: Mutex<bool>,
    opened: Condvar,
    arrived: AtomicUsize,
}

impl Gate {
    pub fn pass(&self) {
        self.arrived.fetch_add(1, SeqCst);
        let mut is_open = lock(&self.is_open);
        while !*is_open {
            is_open = self.opened.wait(is_open).unwrap_or_else(PoisonError::into_inner);
        }
    }

    pub fn open(&self) {
        *lock(&self.is_open) = true;
        self.opened.notify_all();
    }

    pub fn arrived(&self) -> usize {
        self.arrived.load(SeqCst)
    }
}

/// Opens a gate when the test ends, failed or not, if not earlier: so that nothing waits at it for ever.
pub struct Opener<'a>(pub &'a Gate);

impl Drop for Opener<'_> {
    fn drop(&mut self) {
        self.0.open();
    }
}

/// Knows for everything that is counted whether it was dropped, and how often.
#[derive(Clone, Default)]
pub struct Ledger(Arc<Mutex<HashMap<u64, u32>>>);

impl Ledger {
    pub fn token(&self, id: u64) -> Token {
        let serial = {
            let mut drops = lock(&self.0);
            let serial = drops.len() as u64;
            drops.insert(serial, 0);
            serial
        };
        Token { id, serial, ledger: self.clone() }
    }

    /// How many were made.
    pub fn made(&self) -> usize {
        lock(&self.0).len()
    }

    /// How many were not dropped.
    pub fn alive(&self) -> usize {
        lock(&self.0).values().filter(|&&drops| drops == 0).count()
    }

    #[track_caller]
    pub fn assert_none_twice(&self) {
        assert!(lock(&self.0).values().all(|&drops| drops <= 1), "something was dropped twice");
    }

    /// Waits until all are dropped; each once.
    #[track_caller]
    pub fn assert_all_dropped_once(&self) {
        eventually("everything is dropped", || self.alive() == 0);
        self.assert_none_twice();
    }
}

/// A key or value that is counted. Compared and hashed by its id.
pub struct Token {
    pub id: u64,
    serial: u64,
    ledger: Ledger,
}

impl Drop for Token {
    fn drop(&mut self) {
        *lock(&self.ledger.0).entry(self.serial).or_default() += 1;
    }
}

impl PartialEq for Token {
    fn eq(&self, other: &Self) -> bool {
        self.id == other.id
    }
}

impl Eq for Token {}

impl Hash for Token {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.id.hash(state);
    }
}

/// Look-ups need no token of their own.
impl std::borrow::Borrow<u64> for Token {
    fn borrow(&self) -> &u64 {
        &self.id
    }
}

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Token({})", self.id)
    }
}

/// Gives every key the same hash.
#[derive(Clone, Copy, Default)]
pub struct OneHash;

impl BuildHasher for OneHash {
    type Hasher = Self;

    fn build_hasher(&self) -> Self {
        Self
    }
}

impl Hasher for OneHash {
    fn finish(&self) -> u64 {
        7
    }

    fn write(&mut self, _: &[u8]) {}
}

/// A small random source: the same seed, the same numbers (xorshift64*).
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    pub fn below(&mut self, limit: u64) -> u64 {
        (self.next() >> 16) % limit
    }
}

/// What ended, and how often: one count per id.
pub struct Ends(Vec<AtomicU32>);

impl Ends {
    pub fn new(count: usize) -> Self {
        Self((0..count).map(|_| AtomicU32::new(0)).collect())
    }

    pub fn note(&self, id: u64) {
        self.0[id as usize].fetch_add(1, SeqCst);
    }

    pub fn of(&self, id: u64) -> u32 {
        self.0[id as usize].load(SeqCst)
    }
}

/// A manual clock for callbacks, which are built before the clock exists.
#[derive(Clone, Default)]
pub struct ClockSlot(Arc<Mutex<Option<ManualClock>>>);

impl ClockSlot {
    pub fn set(&self, clock: &ManualClock) {
        *lock(&self.0) = Some(clock.clone());
    }

    pub fn now(&self) -> Instant {
        lock(&self.0).as_ref().expect("the clock is set before anything fires").now()
    }

    pub fn advance(&self, by: Duration) -> usize {
        let clock = lock(&self.0).clone();
        clock.expect("the clock is set before anything fires").advance(by)
    }
}

/// The memory of this process that is in use, in bytes; `None` where the system does not tell.
pub fn resident_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let kibibytes: u64 = status_field(&status, "VmRSS:")?;
    Some(kibibytes << 10)
}

/// A figure from the status that Linux has of a process or a thread.
pub fn status_field(status: &str, name: &str) -> Option<u64> {
    status.lines().find_map(|line| line.strip_prefix(name))?.split_whitespace().next()?.parse().ok()
}
