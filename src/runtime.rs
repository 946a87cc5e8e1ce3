//! The threads: a worker per shard, pinned if possible, asleep until the next deadline or until a batch may need help; beside it
//! one for callbacks, if the pool is ours; and one that works ahead while shards grow.

use crate::builder::Pinning;
use crate::callback_thread::CallbackThread;
use crate::close::Close;
use crate::error::BuildError;
use crate::executor::Executor;
use crate::expired::Runner;
use crate::fanout::First;
use crate::lane::{self, Lane};
use crate::service::Core;
use crate::worker::{Left, NO_LIMIT, Worker};
use core_affinity::CoreId;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::io;
use std::num::NonZero;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, LazyLock, mpsc};
use std::thread::{JoinHandle, available_parallelism};
use std::time::{Duration, Instant};

/// Hints looked at ahead of time in one go before a sleep; in a slot with more, a stale one may wake the worker.
const REVIEW_MAX: usize = 512;
/// After so long, at the end of a piece of work, the thread that works ahead lets go of its core; for so long, and what the system
/// adds. It may have been put on the core of a caller, who would wait until the system looks next, in milliseconds; after a break it
/// finds a core that is free, if there is one. (To yield instead would cost it most of its share where no core is free.)
const STINT: Duration = Duration::from_micros(500);
const BREAK: Duration = Duration::from_micros(20);
/// With fewer shards, a lane for their callbacks would have nothing to do but for one of them.
const LANE_FROM: usize = lane::CROWD as usize + 1;
/// How long a worker leaves an executor that does not keep up alone: a tick, within these bounds. What waits is work for longer.
const BACKLOG_PAUSE_MIN: Duration = Duration::from_micros(200);
const BACKLOG_PAUSE_MAX: Duration = Duration::from_millis(1);

/// Starts a worker per shard, with a thread for its callbacks if wanted, a lane for those if there are many shards, and the thread for
/// their growth. On an error none is left running.
pub(crate) fn start<K, V>(
    core: &Arc<Core<K, V>>,
    runner: &Arc<Runner<K, V>>,
    pinning: &Pinning,
    thread_name: &str,
    wants_callback_threads: bool,
) -> Result<Vec<JoinHandle<()>>, BuildError>
where
    K: Eq + Send + Sync + 'static,
    V: Send + 'static,
{
    let mut threads = Vec::with_capacity(core.shards.len() + 1);
    let runs_their_code = matches!(runner.executor, Executor::Inline | Executor::Custom(_));
    let cores = cores_to_pin(pinning, core.shards.len(), runs_their_code);
    let (running, started) = mpsc::channel();
    let has_lane = wants_callback_threads && core.shards.len() >= LANE_FROM;
    let lane = has_lane.then(|| Lane::start(core.shards.len(), format!("{thread_name}-lane"))).transpose();
    let lane = lane.map_err(|error| end(&mut threads, core, error))?.map(Arc::new);
    for index in 0..core.shards.len() {
        let callback_thread = || CallbackThread::start(format!("{thread_name}-cb{index}"));
        let callback_thread = wants_callback_threads.then(callback_thread).transpose();
        let callback_thread = callback_thread.map_err(|error| end(&mut threads, core, error))?;
        let first = callback_thread.map(|own| First { own, lane: lane.clone() });
        let worker = Worker::new(Arc::clone(core), index, first);
        let pin_to = cores.get(index % cores.len().max(1)).copied();
        let running = running.clone();
        let runner = Arc::clone(runner);
        spawn(&mut threads, core, format!("{thread_name}-{index}"), move || {
            pin(&worker, pin_to);
            use_precise_timers();
            drop(running);
            run(worker);
            // Not earlier: what the worker has claimed goes to the callback.
            drop(runner);
        })?;
    }
    let growing = Arc::clone(core);
    spawn(&mut threads, core, format!("{thread_name}-grow"), move || grow(&growing))?;
    // Wait until each has let go of its end: so `stats` tells from the start where the workers are pinned.
    drop(running);
    let _: Result<(), _> = started.recv();
    Ok(threads)
}

/// Starts one more thread that is joined at the end.
fn spawn<K, V>(
    threads: &mut Vec<JoinHandle<()>>,
    core: &Arc<Core<K, V>>,
    name: String,
    life: impl FnOnce() + Send + 'static,
) -> Result<(), BuildError>
where
    K: Eq + Send + Sync + 'static,
    V: Send + 'static,
{
    let spawned = std::thread::Builder::new().name(name).spawn(life);
    spawned.map(|thread| threads.push(thread)).map_err(|error| end(threads, core, error))
}

/// Ends the threads that there are, since one more could not be started.
fn end<K, V>(threads: &mut Vec<JoinHandle<()>>, core: &Arc<Core<K, V>>, error: io::Error) -> BuildError
where
    K: Eq + Send + Sync + 'static,
    V: Send + 'static,
{
    core.close(Close::Discard);
    threads.drain(..).for_each(|thread| drop(thread.join()));
    BuildError::Thread(error)
}

/// The cores for the workers in turn; empty for none.
fn cores_to_pin(pinning: &Pinning, worker_count: usize, runs_their_code: bool) -> Vec<usize> {
    match pinning {
        Pinning::Off => Vec::new(),
        Pinning::Cores(cores) => cores.clone(),
        // Threads that it starts would inherit the core; and a pool that it starts believe that there is one core.
        Pinning::Auto if runs_their_code => Vec::new(),
        // Two workers on one core would only be in each other's way where the system could have moved one.
        Pinning::Auto => {
            let mut cores = available_cores();
            if worker_count > cores.len() {
                return Vec::new();
            }
            let first = next_core(worker_count) % cores.len();
            cores.rotate_left(first);
            cores
        }
    }
}

/// Where the next workers begin. In turn, and anywhere at first: else all small schedulers of all processes would be on the first cores.
fn next_core(worker_count: usize) -> usize {
    static NEXT: LazyLock<AtomicUsize> =
        LazyLock::new(|| AtomicUsize::new(RandomState::new().hash_one(()) as u32 as usize));
    // Relaxed: a number; it publishes nothing.
    NEXT.fetch_add(worker_count, Relaxed)
}

/// The cores that this thread may run on; empty where the system does not tell.
pub(crate) fn available_cores() -> Vec<usize> {
    core_affinity::get_core_ids().unwrap_or_default().into_iter().map(|core| core.id).collect()
}

/// As many shards as there are cores for this thread.
pub(crate) fn default_shard_count() -> usize {
    available_parallelism().map_or(1, NonZero::get)
}

/// Pins the calling thread, if the system allows it; `stats` tells.
fn pin<K: Eq + Send + Sync + 'static, V: Send + 'static>(worker: &Worker<K, V>, core: Option<usize>) {
    if let Some(core) = core
        && core_affinity::set_for_current(CoreId { id: core })
    {
        worker.core().reports[worker.index()].set_pinned(core);
    }
}

/// Linux rounds a thread's sleeps up by 50 us to save wake-ups; a worker would rather be punctual.
fn use_precise_timers() {
    #[cfg(all(target_os = "linux", not(miri)))]
    // Refused: then the workers wake up a little later.
    let _ = rustix::thread::set_current_timer_slack(NonZero::new(1));
}

/// A worker's life. See `shard/alarm.rs` for why no wake-up is lost between the last look and the sleep.
fn run<K: Eq + Send + Sync + 'static, V: Send + 'static>(mut worker: Worker<K, V>) {
    let core = Arc::clone(worker.core());
    loop {
        let ticket = worker.shard().alarm.ticket();
        if core.is_closed() {
            return;
        }
        let now = core.clock.tick_at(worker.read_clock());
        let left = worker.step(now);
        if core.growth.is_due(worker.index(), worker.shard()) {
            core.growth.event.notify();
        }
        if worker.is_backlogged() {
            // The executor has its hands full, and nobody rings when it has not any more.
            std::thread::sleep(core.clock.tick_length().clamp(BACKLOG_PAUSE_MIN, BACKLOG_PAUSE_MAX));
            continue;
        }
        match left {
            // Either may take long, and others wait for this core: a call must not, for milliseconds.
            Left::Nothing if core.growth.help(worker.index(), worker.shard()) => std::thread::yield_now(),
            Left::Nothing => sleep(&mut worker, ticket),
            Left::Upkeep => std::thread::yield_now(),
            Left::Due => {}
        }
    }
}

/// The life of the thread that works ahead. The workers call it.
fn grow<K: Eq + Send + Sync + 'static, V: Send + 'static>(core: &Core<K, V>) {
    let mut start = Instant::now();
    loop {
        let ticket = core.growth.event.ticket();
        let mut is_more = false;
        for (index, shard) in core.shards.iter().enumerate() {
            if core.is_closed() {
                return;
            }
            is_more |= core.growth.step(index, shard);
            if is_more && start.elapsed() > STINT {
                std::thread::sleep(BREAK);
                start = Instant::now();
            }
        }
        if !is_more {
            core.growth.event.wait(ticket, None);
        }
    }
}

/// Sleeps until the next deadline, or until somebody brings an earlier one.
fn sleep<K: Eq + Send + Sync + 'static, V: Send + 'static>(worker: &mut Worker<K, V>, ticket: u32) {
    let core = Arc::clone(worker.core());
    let now = core.clock.tick_at(worker.read_clock());
    let next = worker.next_deadline(now, NO_LIMIT, REVIEW_MAX);
    let until = worker.sleep_limit(next, now);
    let timeout = core.clock.until(Some(until), worker.read_clock());
    // A batch that one thread cannot cope with needs help then.
    let timeout = worker.patience_left().map_or(timeout, |left| timeout.min(left));
    if timeout.is_zero() {
        return;
    }
    // Callers ring a worker that sleeps if most hints are stale; they may have become so since its last step.
    // (No fence: what is missed even so takes memory until the worker wakes up, no more.)
    let is_called = || worker.has_mail() || worker.shard().has_stale_hints() || core.is_closed();
    let slept = worker.shard().alarm.try_sleep(ticket, Some(until), Some(timeout), is_called);
    if slept {
        // Relaxed, in two steps: a figure that only this thread writes.
        let wake_ups = &core.reports[worker.index()].wake_ups;
        wake_ups.store(wake_ups.load(Relaxed) + 1, Relaxed);
    }
}
