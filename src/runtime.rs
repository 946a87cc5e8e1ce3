//! The threads. Per shard: its worker's (`crew.rs`), pinned if possible; and, if the pool is our own, one for
//! callbacks. For all shards: a thread that works ahead while they grow; and, if there are several whose workers run no
//! user code, the lookouts'.

use crate::builder::Pinning;
use crate::callback_thread::CallbackThread;
use crate::close::Close;
use crate::crew::Crew;
use crate::error::BuildError;
use crate::executor::Executor;
use crate::expired::Runner;
use crate::fanout::CallbackThreads;
use crate::lane::Lane;
use crate::service::{Core, ShardReport};
use crate::worker::Worker;
use core_affinity::CoreId;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::io;
use std::num::NonZero;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, LazyLock, mpsc};
use std::thread::{JoinHandle, available_parallelism};
use std::time::{Duration, Instant};

/// After a [`STINT`], at the end of a piece of work, the thread that works ahead gives up its core for a [`BREAK`] and
/// whatever the system adds. It may have been put on the core of a caller, which would have to wait until the system
/// looks next, in milliseconds; after a break the thread finds a free core if there is one. (Yielding instead would
/// cost it most of its share where no core is free.)
const STINT: Duration = Duration::from_micros(500);
const BREAK: Duration = Duration::from_micros(20);

/// Starts a worker per shard, each with a thread for its callbacks if wanted; the lookouts if there are to be some; and
/// the thread that works ahead. On an error, ends those that were started.
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
    let lane = Arc::new(Lane::new(core.shards.len()));
    let has_lane = wants_callback_threads && core.shards.len() > 1;
    let first = |number| -> io::Result<_> {
        let own = CallbackThread::start(format!("{thread_name}-cb{number}"))?;
        Ok(CallbackThreads { own, lane: has_lane.then(|| Arc::clone(&lane)) })
    };
    let worker = |number| -> io::Result<_> {
        let first = wants_callback_threads.then(|| first(number)).transpose()?;
        Ok(Worker::new(Arc::clone(core), number, first))
    };
    let workers = (0..core.shards.len()).map(worker).collect::<Result<_, _>>();
    let workers = workers.map_err(|error| end(&mut threads, core, error))?;
    let crew = Arc::new(Crew::new(Arc::clone(core), workers, !runs_their_code, Arc::clone(&lane)));
    for number in 0..core.shards.len() {
        let pin_to = cores.get(number % cores.len().max(1)).copied();
        let (crew, running, runner) = (Arc::clone(&crew), running.clone(), Arc::clone(runner));
        spawn(&mut threads, core, format!("{thread_name}-{number}"), move || {
            pin(crew.report(number), pin_to);
            use_precise_timers();
            drop(running);
            crew.live(number);
            // Not earlier: the timers that the worker has claimed go to the callback.
            drop(runner);
        })?;
    }
    for number in 0..crew.lookout_count() {
        let crew = Arc::clone(&crew);
        let life = move || {
            use_precise_timers();
            crew.look_out(number);
        };
        // Not joined at the end: it may be in a callback. (It ends when a worker has found the scheduler closed.)
        let spawned = std::thread::Builder::new().name(format!("{thread_name}-lane{number}")).spawn(life);
        spawned.map(drop).map_err(|error| end(&mut threads, core, error))?;
    }
    let growing = Arc::clone(core);
    spawn(&mut threads, core, format!("{thread_name}-grow"), move || grow(&growing))?;
    // Wait until each worker has dropped its `running`: so `stats` says from the start where they are pinned.
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

/// Ends the threads started so far, because one more could not be started.
fn end<K, V>(threads: &mut Vec<JoinHandle<()>>, core: &Arc<Core<K, V>>, error: io::Error) -> BuildError
where
    K: Eq + Send + Sync + 'static,
    V: Send + 'static,
{
    core.close(Close::Discard);
    threads.drain(..).for_each(|thread| drop(thread.join()));
    BuildError::Thread(error)
}

/// The cores to pin the workers to, in turn; empty: they are not pinned.
fn cores_to_pin(pinning: &Pinning, worker_count: usize, runs_their_code: bool) -> Vec<usize> {
    match pinning {
        Pinning::Off => Vec::new(),
        Pinning::Cores(cores) => cores.clone(),
        // Threads that the user's code starts would inherit the core, and a pool that it starts would believe that
        // there is only one.
        Pinning::Auto if runs_their_code => Vec::new(),
        // Two workers pinned to one core would be in each other's way where the system could have moved one.
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

/// The core for a scheduler's first worker. Schedulers take turns, from a random core on: otherwise the small
/// schedulers of all processes would share the first cores.
fn next_core(worker_count: usize) -> usize {
    static NEXT: LazyLock<AtomicUsize> =
        LazyLock::new(|| AtomicUsize::new(RandomState::new().hash_one(()) as u32 as usize));
    // Relaxed: a number; it publishes nothing.
    NEXT.fetch_add(worker_count, Relaxed)
}

/// The cores that this thread may run on; empty if the system does not say.
pub(crate) fn available_cores() -> Vec<usize> {
    core_affinity::get_core_ids().unwrap_or_default().into_iter().map(|core| core.id).collect()
}

/// As many shards as there are cores for this thread.
pub(crate) fn default_shard_count() -> usize {
    available_parallelism().map_or(1, NonZero::get)
}

/// Pins the calling thread, a worker's, if the system allows it; `stats` says whether it did.
fn pin(report: &ShardReport, core: Option<usize>) {
    if let Some(core) = core
        && core_affinity::set_for_current(CoreId { id: core })
    {
        report.set_pinned(core);
    }
}

/// Linux rounds a thread's sleeps up by 50 us to save wake-ups; a worker would rather be punctual. (So are threads that
/// a callback starts on a lookout's, unless they say otherwise.)
fn use_precise_timers() {
    #[cfg(all(target_os = "linux", not(miri)))]
    // If this is refused, the workers wake up a little later.
    let _ = rustix::thread::set_current_timer_slack(NonZero::new(1));
}

/// The life of the thread that works ahead. Workers wake it.
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
