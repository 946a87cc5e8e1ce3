//! The command line of the example.

use std::ffi::OsString;
use std::fmt::Display;
use std::num::NonZero;
use std::ops::RangeInclusive;
use std::str::FromStr;
use std::thread;
use std::time::Duration;

use lexopt::Arg::{Long, Short};

pub(crate) const HELP: &str = "\
Schedules many timers from several threads, cancels a fifth of them, moves a fifth, lets
the rest fire, and checks by its own books that none was early, lost or delivered twice.

Usage: load [--timers N] [--callers N] [--shards N] [--seconds S]

  --timers N   timers to schedule, 0 to 100000000 (default: 1000000)
  --callers N  threads that schedule, move and cancel, 1 to 1024 (default: one per core)
  --shards N   shards of the scheduler, 1 to 1024 (default: the scheduler's own)
  --seconds S  the time over which the timers fire, 0 to 86400 (default: 7)
  -h, --help   this text

The table goes to standard output, the progress bar to standard error.
Exit status: 0 all is well, 1 a timer was early, lost or delivered twice or an answer
was wrong, 2 the command line is wrong or the run could not be set up.
";

/// What the command line asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Options {
    pub(crate) timers: usize,
    pub(crate) callers: usize,
    /// `None`: the scheduler decides.
    pub(crate) shards: Option<usize>,
    pub(crate) firing: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            timers: 1_000_000,
            callers: thread::available_parallelism().map_or(1, NonZero::get),
            shards: None,
            firing: Duration::from_secs(7),
        }
    }
}

/// `None` asks for the help.
///
/// # Errors
/// A sentence that names the option, its value and what is accepted.
pub(crate) fn parse(args: impl IntoIterator<Item = impl Into<OsString>>) -> Result<Option<Options>, String> {
    let mut parser = lexopt::Parser::from_args(args);
    let mut options = Options::default();
    while let Some(arg) = parser.next().map_err(|error| error.to_string())? {
        let name = match arg {
            Short('h') | Long("help") => return Ok(None),
            Long(name) => name.to_owned(),
            other => return Err(other.unexpected().to_string()),
        };
        let mut value = || match parser.value() {
            Ok(value) => Ok(value.to_string_lossy().into_owned()),
            Err(error) => Err(error.to_string()),
        };
        match name.as_str() {
            "timers" => options.timers = number(&name, &value()?, 0..=100_000_000)?,
            "callers" => options.callers = number(&name, &value()?, 1..=1024)?,
            "shards" => options.shards = Some(number(&name, &value()?, 1..=1024)?),
            "seconds" => {
                let seconds = number(&name, &value()?, 0.0..=86_400.0)?;
                options.firing = Duration::from_secs_f64(seconds);
            }
            _ => return Err(Long(&name).unexpected().to_string()),
        }
    }
    Ok(Some(options))
}

/// Underscores may group the digits: `10_000_000`.
fn number<T: FromStr + PartialOrd + Display>(name: &str, text: &str, accepted: RangeInclusive<T>) -> Result<T, String> {
    let number = text.replace('_', "").parse().ok();
    number.filter(|number| accepted.contains(number)).ok_or_else(|| {
        let (least, most) = accepted.into_inner();
        format!("--{name}: '{text}' is not accepted; a number from {least} to {most} is")
    })
}
