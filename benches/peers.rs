//! This crate compared with what a user would otherwise build:
//!
//! ```sh
//! cargo bench --bench peers -- --quick    # minutes
//! cargo bench --bench peers -- --help     # what else there is
//! ```
//!
//! The benchmark is a package of its own, in `benches/peers/`, so that the library's own builds and tests compile none
//! of the peers. This builds and runs it.

use std::path::Path;
use std::process::{Command, ExitCode};

fn main() -> ExitCode {
    // `cargo bench` passes `--bench`; tests do not.
    let Some(arguments) = bench_arguments() else { return ExitCode::SUCCESS };
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/peers/Cargo.toml");
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.args(["run", "--release", "--manifest-path"]).arg(manifest);
    // Beside this build, wherever that is: this program lies in `target/release/deps`.
    if let Some(target) = std::env::current_exe().ok().as_deref().and_then(|program| program.ancestors().nth(3)) {
        cargo.arg("--target-dir").arg(target.join("peers"));
    }
    match cargo.arg("--").args(arguments).status() {
        Ok(status) if status.success() => ExitCode::SUCCESS,
        Ok(status) => status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(1).into(),
        Err(error) => {
            eprintln!("cargo did not start: {error}");
            ExitCode::FAILURE
        }
    }
}

/// What the user wrote after `--`.
fn bench_arguments() -> Option<Vec<std::ffi::OsString>> {
    let (bench, arguments): (Vec<_>, Vec<_>) = std::env::args_os().skip(1).partition(|argument| argument == "--bench");
    (!bench.is_empty()).then_some(arguments)
}
