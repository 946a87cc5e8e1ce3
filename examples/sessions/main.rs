//! Sessions of a web server's access log: each request is a heartbeat that moves the client's
//! deadline, and what expires is printed.
//!
//! ```text
//! cargo run --release --example sessions -- examples/sessions/sample.log --timeout 30m
//! ```
//!
//! - `access_log` reads lines into requests in the order of time.
//! - `replay` plays them against a scheduler on its manual clock.
//! - `options` is the command line; `--help` prints it.

mod access_log;
mod options;
mod replay;

use std::error::Error;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, BufWriter, Read, Write};
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

use access_log::Log;
use options::Command;
use replay::Session;

fn main() -> ExitCode {
    let args = std::env::args_os().skip(1);
    let result = match options::parse(args) {
        Ok(Command::Help) => print_help(),
        Ok(Command::Replay { file, timeout }) => run(&file, timeout),
        Err(error) => {
            complain(&format!("{error}\nTry --help."));
            return ExitCode::from(2);
        }
    };
    let Err(error) = result else {
        return ExitCode::SUCCESS;
    };
    // The reader of our output has seen enough: `sessions .. | head` is no failure.
    if is_broken_pipe(&*error) {
        return ExitCode::SUCCESS;
    }
    complain(&error.to_string());
    ExitCode::FAILURE
}

fn run(file: &OsStr, timeout: Duration) -> Result<(), Box<dyn Error>> {
    let started = Instant::now();
    let log = read_log(file).map_err(|error| format!("{}: {error}", Path::new(file).display()))?;
    let sessions = print_sessions(&log, timeout)?;
    summarize(&log, sessions, started.elapsed());
    Ok(())
}

fn read_log(file: &OsStr) -> io::Result<Log> {
    let (input, bytes): (Box<dyn Read>, _) = if file == "-" {
        (Box::new(io::stdin().lock()), None)
    } else {
        let file = File::open(file)?;
        let metadata = file.metadata()?;
        let bytes = metadata.is_file().then_some(metadata.len());
        (Box::new(file), bytes)
    };
    let bar = match bytes {
        Some(bytes) => progress_bar("reading", bytes),
        None => ProgressBar::new_spinner(),
    };
    let log = Log::read(bar.wrap_read(input));
    bar.finish_and_clear();
    log
}

fn print_sessions(log: &Log, timeout: Duration) -> Result<u64, Box<dyn Error>> {
    let mut out = BufWriter::new(io::stdout().lock());
    let bar = progress_bar("replaying", log.requests.len() as u64);
    let requests = bar.wrap_iter(log.requests.iter().copied());
    let sessions = replay::replay(&log.clients, requests, timeout, |session| print_session(&mut out, session));
    bar.finish_and_clear();
    out.flush()?;
    sessions
}

fn print_session(out: &mut impl Write, session: &Session<'_>) -> io::Result<()> {
    write!(out, "{}\t", session.end)?;
    out.write_all(session.client)?;
    writeln!(out, "\t{}", session.requests)
}

/// Goes to standard error; not shown if that is no terminal.
fn progress_bar(what: &'static str, length: u64) -> ProgressBar {
    let style = ProgressStyle::with_template("{msg:>9} {wide_bar} {percent:>3} %");
    let bar = ProgressBar::new(length).with_message(what);
    match style {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}

fn summarize(log: &Log, sessions: u64, elapsed: Duration) {
    let logged_seconds = match (log.requests.first(), log.requests.last()) {
        (Some(&(first, _)), Some(&(last, _))) => last - first,
        _ => 0,
    };
    let summary = format!(
        "lines         {}\n\
         malformed     {}\n\
         requests      {}\n\
         out of order  {}\n\
         clients       {}\n\
         sessions      {sessions}\n\
         {logged_seconds} s of log in {:.3} s",
        log.lines,
        log.malformed,
        log.requests.len(),
        log.out_of_order,
        log.clients.len(),
        elapsed.as_secs_f64(),
    );
    say(&summary);
}

fn print_help() -> Result<(), Box<dyn Error>> {
    io::stdout().write_all(options::HELP.as_bytes())?;
    Ok(())
}

fn complain(message: &str) {
    say(&format!("sessions: {message}"));
}

/// Writes to standard error; unlike `eprintln!`, it does not panic when that is closed.
fn say(message: &str) {
    let _ = writeln!(io::stderr(), "{message}");
}

fn is_broken_pipe(error: &(dyn Error + 'static)) -> bool {
    let error = error.downcast_ref::<io::Error>();
    error.is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}
