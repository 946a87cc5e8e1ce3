//! What a call costs, how late timers fire, and what memory they take: this crate compared with what a user would
//! otherwise build, in the same loops. `cargo bench --bench peers -- --help` lists the options.
//!
//! - `contender.rs` is what a service must be able to do; `contenders/` has the services, one file each.
//! - `workloads/` is what is done with them, generic over the contender: nothing is dispatched within a loop.
//! - `harness.rs` runs everything, each measurement in a process of its own. Contenders take turns, so that whatever
//!   else the machine does hits all alike, and a ratio is the median of the runs' ratios.
//! - `table.rs` and `plot.rs` show the figures.

mod contender;
mod contenders;
mod figures;
mod harness;
mod options;
mod plot;
mod process;
mod table;
#[cfg(test)]
mod tests;
mod witness;
mod workloads;

use contenders::Entry;
use figures::{At, Rows};
use options::{Command, Options};
use std::collections::hash_map::RandomState;
use std::fs::OpenOptions;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use workloads::Job;

/// The file of rows.
const ROWS: &str = "peers.csv";

fn main() -> ExitCode {
    let result = match options::parse(std::env::args_os().skip(1)) {
        Ok(Command::Help) => {
            print!("{}", help());
            Ok(true)
        }
        Ok(Command::Child(contender, fast_hash, job)) => run_child(&contender, fast_hash, &job),
        Ok(Command::Measure(options)) => measure(&options),
        Err(error) => Err(error),
    };
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::from(2)
        }
    }
}

fn help() -> String {
    let workloads =
        workloads::Workload::ALL.map(|workload| format!("  {:<14} {}\n", workload.name(), workload.meaning()));
    let names: Vec<_> = contenders(false).iter().map(|entry| entry.name).collect();
    format!("{}\nWorkloads:\n{}\nContenders: {}\n", options::HELP, workloads.concat(), names.join(", "))
}

fn contenders(fast_hash: bool) -> Vec<Entry> {
    if fast_hash { contenders::all::<rustc_hash::FxBuildHasher>() } else { contenders::all::<RandomState>() }
}

fn run_child(contender: &str, fast_hash: bool, job: &Job) -> Result<bool, String> {
    let entries = contenders(fast_hash);
    let entry = entries.iter().find(|entry| entry.name == contender).ok_or("no such contender")?;
    print!("{}", (entry.run)(job).to_text());
    Ok(true)
}

/// False if our crate did anything wrong. What peers do wrong is only reported.
fn measure(options: &Options) -> Result<bool, String> {
    let entries = chosen(options)?;
    let jobs = harness::plan(options);
    if !jobs.iter().any(|job| entries.iter().any(|entry| harness::suits(entry, job))) {
        return Err("none of these contenders takes part in any of these workloads".to_owned());
    }
    let directory = options.out.clone().unwrap_or_else(default_directory);
    // Now rather than hours later.
    let probe = |()| OpenOptions::new().create(true).append(true).open(directory.join(ROWS));
    std::fs::create_dir_all(&directory)
        .and_then(probe)
        .map_err(|error| format!("--out {}: {error}", directory.display()))?;
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    println!("`cargo bench --bench peers -- {}`{}\n", arguments.join(" "), commit());
    println!("{}; keys hashed by {}", process::machine(), if options.fast_hash { "FxHash" } else { "SipHash" });
    println!("\n{}", versions());
    let mut written = Ok(());
    let outcome = harness::run(options, &entries, |job, rows, faults| {
        print_tables(&entries, job, rows);
        faults.iter().for_each(|(contender, fault)| println!("\nFAULT: {contender}: {fault}"));
        // After each job: later trouble must not lose hours of figures.
        written = write(&directory, &entries, rows);
    });
    written.map_err(|error| format!("{}: {error}", directory.display()))?;
    table::print_own(&outcome.rows);
    println!("\n{} faults. Rows and plots are in {}", outcome.faults.len(), directory.display());
    let is_ours = |name: &str| entries.iter().any(|entry| entry.name == name && entry.is_ours());
    Ok(!outcome.faults.iter().any(|(contender, _)| is_ours(contender)))
}

/// What is checked out, if git tells.
fn commit() -> String {
    let describe = ["-C", env!("CARGO_MANIFEST_DIR"), "describe", "--always", "--dirty", "--abbrev=7"];
    let output = std::process::Command::new("git").args(describe).stderr(std::process::Stdio::null()).output();
    let commit = output.ok().filter(|output| output.status.success());
    commit.map_or(String::new(), |output| format!(", at {}", String::from_utf8_lossy(&output.stdout).trim()))
}

/// The versions of everything that is measured, as this program was built.
fn versions() -> String {
    let lock = include_str!("../Cargo.lock");
    let peers = ["tokio", "tokio-util", "dashmap", "hierarchical_hash_wheel_timer", "pingora-timeout", "moka"];
    let version_of = |name| {
        let (_, after) = lock.split_once(&format!("name = \"{name}\"\nversion = \""))?;
        Some(format!("{name} {}", after.split('"').next()?))
    };
    peers.into_iter().filter_map(version_of).collect::<Vec<_>>().join(", ")
}

fn chosen(options: &Options) -> Result<Vec<Entry>, String> {
    let mut entries = contenders(options.fast_hash);
    let wanted = &options.contenders;
    if let Some(unknown) = wanted.iter().find(|name| entries.iter().all(|entry| entry.name != **name)) {
        let names: Vec<_> = entries.iter().map(|entry| entry.name).collect();
        return Err(format!("--contenders {unknown}: it must be one of {}", names.join(", ")));
    }
    entries.retain(|entry| wanted.is_empty() || wanted.iter().any(|name| name == entry.name));
    Ok(entries)
}

fn print_tables(entries: &[Entry], job: &Job, rows: &Rows) {
    for &workload in &job.workloads {
        table::print(entries, rows, At { workload, population: job.population, callers: job.callers });
    }
}

/// Beside the build, so under `target/`.
fn default_directory() -> PathBuf {
    let program = std::env::current_exe().unwrap_or_default();
    program.ancestors().nth(2).unwrap_or(Path::new(".")).join("report")
}

fn write(directory: &Path, entries: &[Entry], rows: &Rows) -> Result<(), Box<dyn std::error::Error>> {
    std::fs::write(directory.join(ROWS), rows.to_csv())?;
    plot::write(directory, entries, rows)
}
