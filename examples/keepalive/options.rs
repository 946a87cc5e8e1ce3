//! The command line of the examples `keepalive` and `event_loop`.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::time::Duration;

use lexopt::Arg::{Long, Short};

const TIMEOUT_MAX: Duration = Duration::from_secs(24 * 60 * 60);

/// What the command line asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Options {
    pub(crate) listen: SocketAddr,
    pub(crate) timeout: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self { listen: SocketAddr::from(([127, 0, 0, 1], 7777)), timeout: Duration::from_secs(30) }
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
            "listen" => options.listen = address(&value()?)?,
            "timeout" => options.timeout = timeout(&value()?)?,
            _ => return Err(Long(&name).unexpected().to_string()),
        }
    }
    Ok(Some(options))
}

fn address(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| {
        format!(
            "--listen: '{text}' is not accepted; an IP address and a port is, \
             such as 127.0.0.1:7777 or [::1]:7777, port 0 for any free one"
        )
    })
}

fn timeout(text: &str) -> Result<Duration, String> {
    let digits_end = text.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(text.len());
    let (digits, unit) = text.split_at(digits_end);
    let unit_ms = match unit {
        "ms" => Some(1),
        "" | "s" => Some(1_000),
        "m" => Some(60 * 1_000),
        "h" => Some(60 * 60 * 1_000),
        _ => None,
    };
    digits
        .parse::<u64>()
        .ok()
        .zip(unit_ms)
        .and_then(|(count, unit_ms)| count.checked_mul(unit_ms))
        .map(Duration::from_millis)
        .filter(|timeout| (Duration::from_millis(1)..=TIMEOUT_MAX).contains(timeout))
        .ok_or_else(|| {
            format!(
                "--timeout: '{text}' is not accepted; a whole number and ms, s, m or h is, \
                 such as 500ms, 30s or 5m, from 1ms to 24h"
            )
        })
}
