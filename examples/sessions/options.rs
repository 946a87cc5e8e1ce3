//! The command line of the example.

use std::ffi::OsString;
use std::time::Duration;

use lexopt::Arg::{Long, Short, Value};

pub(crate) const HELP: &str = "\
Prints the sessions of a web server's access log as they expire.

Usage: sessions [--timeout TIME] FILE

  FILE            access log in Combined Log Format, plain or gzip; - is standard input
  --timeout TIME  a session ends this long after its last request: 90s, 30m, 1h, 1d or
                  a bare number of seconds; from 1s to 36500d (default: 30m)
  -h, --help      this text

Standard output has one line per session: <end, Unix seconds>\\t<client>\\t<requests>,
in the order of their ends, those of one second in the order of their clients.
A request at the very instant at which a session ends opens a new one.

Lines may stand in any order: requests are put in the order of time before they are
counted, which takes 16 bytes of memory each. Malformed lines are skipped and counted.
Progress and a summary go to standard error.

Exit status: 0 done, 1 the file could not be read, 2 the command line is wrong.
";

const DAY_SECONDS: u64 = 24 * 60 * 60;
const TIMEOUT_SECONDS_MAX: u64 = 36_500 * DAY_SECONDS;

/// What the command line asks for.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Command {
    Help,
    Replay { file: OsString, timeout: Duration },
}

/// # Errors
/// A sentence that names the argument, its value and what is accepted.
pub(crate) fn parse(args: impl IntoIterator<Item = impl Into<OsString>>) -> Result<Command, String> {
    let mut parser = lexopt::Parser::from_args(args);
    let mut file = None;
    let mut timeout = Duration::from_secs(30 * 60);
    while let Some(arg) = parser.next().map_err(|error| error.to_string())? {
        match arg {
            Short('h') | Long("help") => return Ok(Command::Help),
            Long("timeout") => {
                let value = parser.value().map_err(|error| error.to_string())?;
                timeout = parse_timeout(&value.to_string_lossy())?;
            }
            Value(value) if file.is_none() => file = Some(value),
            other => return Err(other.unexpected().to_string()),
        }
    }
    let file = file.ok_or("FILE is missing: the access log to read, or - for standard input")?;
    Ok(Command::Replay { file, timeout })
}

/// Whole seconds only: the log has no finer time, and ends are printed in seconds.
pub(crate) fn parse_timeout(text: &str) -> Result<Duration, String> {
    let digits_end = text.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(text.len());
    let (digits, unit) = text.split_at(digits_end);
    let unit_seconds = match unit {
        "" | "s" => Some(1),
        "m" => Some(60),
        "h" => Some(60 * 60),
        "d" => Some(DAY_SECONDS),
        _ => None,
    };
    digits
        .parse::<u64>()
        .ok()
        .zip(unit_seconds)
        .and_then(|(count, unit_seconds)| count.checked_mul(unit_seconds))
        .filter(|seconds| (1..=TIMEOUT_SECONDS_MAX).contains(seconds))
        .map(Duration::from_secs)
        .ok_or_else(|| {
            format!(
                "--timeout: '{text}' is not accepted; a whole number and s, m, h or d is, \
                 such as 90s, 30m, 1h or 1d, from 1s to 36500d"
            )
        })
}
