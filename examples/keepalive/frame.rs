//! What the `main` of the examples `keepalive` and `event_loop` does around their server.

use super::options::{self, Options};
use std::io::{self, Write};
use std::process::ExitCode;

/// Reads the command line, serves, and reports on standard error what went wrong.
pub(crate) fn main(name: &str, help: &str, serve: impl FnOnce(Options) -> Result<(), String>) -> ExitCode {
    // Unlike `eprintln!`, it does not panic when standard error is closed.
    let complain = |message: &str| drop(writeln!(io::stderr(), "{name}: {message}"));
    let options = match options::parse(std::env::args_os().skip(1)) {
        Ok(Some(options)) => options,
        Ok(None) => {
            let _ = io::stdout().write_all(help.as_bytes());
            return ExitCode::SUCCESS;
        }
        Err(error) => {
            complain(&format!("{error}\nTry --help."));
            return ExitCode::from(2);
        }
    };
    match serve(options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            complain(&error);
            ExitCode::FAILURE
        }
    }
}
