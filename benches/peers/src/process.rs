//! What the system reports about this process; NaN or zero where it reports nothing.

use std::fs;
use std::time::Duration;

/// A field of the system's reports on threads.
const SLEEPS: &str = "voluntary_ctxt_switches:";

/// Whose time is counted.
#[derive(Clone, Copy)]
pub(crate) enum Who {
    /// All threads of this process.
    Process,
    /// Does not count the time for which a virtual machine was stopped, if its host reports that.
    ThisThread,
}

/// For how long they have run.
pub(crate) fn cpu(who: Who) -> Duration {
    #[cfg(target_os = "linux")]
    {
        use rustix::time::{ClockId, clock_gettime};
        let clock = match who {
            Who::Process => ClockId::ProcessCPUTime,
            Who::ThisThread => ClockId::ThreadCPUTime,
        };
        Duration::try_from(clock_gettime(clock)).expect("not negative")
    }
    #[cfg(not(target_os = "linux"))]
    {
        let _ = who;
        Duration::ZERO
    }
}

/// How often this thread has gone to sleep so far; `None` where the system does not say.
pub(crate) fn thread_sleeps() -> Option<f64> {
    field("/proc/thread-self/status", SLEEPS)
}

/// The memory that this process occupies.
pub(crate) fn resident_bytes() -> f64 {
    1024.0 * field("/proc/self/status", "VmRSS:").unwrap_or(f64::NAN)
}

/// How often threads of this process other than the first have gone to sleep, so far.
pub(crate) fn sleeps() -> f64 {
    let own = std::process::id().to_string();
    let Ok(tasks) = fs::read_dir("/proc/self/task") else { return f64::NAN };
    let others = tasks.flatten().filter(|task| task.file_name().to_str() != Some(&own));
    others.filter_map(|task| field(&task.path().join("status").to_string_lossy(), SLEEPS)).sum()
}

/// True while a thread whose name begins with `names` has something to do.
pub(crate) fn are_busy(names: &str) -> bool {
    let Ok(tasks) = fs::read_dir("/proc/self/task") else { return false };
    // `number (name) state ...`
    let stats = tasks.flatten().filter_map(|task| fs::read_to_string(task.path().join("stat")).ok());
    let mut named = stats.filter(|stat| stat.contains(&format!("({names}")));
    named.any(|stat| !stat.contains(") S "))
}

/// Keeps this thread on core `index`, modulo the number of cores.
pub(crate) fn pin(index: usize) {
    let cores = core_affinity::get_core_ids().unwrap_or_default();
    if let Some(&core) = cores.get(index % cores.len().max(1)) {
        // Best effort: some systems refuse.
        core_affinity::set_for_current(core);
    }
}

/// Processor and system, for the head of the report.
pub(crate) fn machine() -> String {
    let cpu_info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpu_info.lines().find_map(|line| line.strip_prefix("model name")).unwrap_or(": unknown processor");
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let cores = std::thread::available_parallelism().map_or(0, std::num::NonZero::get);
    let model = model.trim_start_matches(['\t', ' ', ':']);
    format!("{model}, {cores} cores, {} {}{}", std::env::consts::OS, release.trim(), large_pages())
}

/// Whether the system gives large pages to all, to programs that ask, as we do, or to none.
fn large_pages() -> String {
    let modes = fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled").unwrap_or_default();
    let mode = modes.split_once('[').and_then(|(_, after)| after.split(']').next());
    let mode = mode.map_or(String::new(), |mode| format!("; large pages: {mode}"));
    match std::env::var("GLIBC_TUNABLES") {
        Ok(tunables) => format!("{mode}; {tunables}"),
        Err(_) => mode,
    }
}

/// The number behind `name` in a file of lines `name number`.
fn field(path: &str, name: &str) -> Option<f64> {
    let text = fs::read_to_string(path).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse().ok()
}
