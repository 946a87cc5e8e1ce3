//! An event loop of one's own, in the shape of Redis', on the crate's timing wheel alone: an echo server, and a cron at
//! 10 Hz that keeps its rate under load.
//!
//! ```text
//! cargo run --release --example event_loop -- --listen 127.0.0.1:7777 --timeout 30s
//! ```
//!
//! - `event_loop` knows file events and time events.
//! - `echo` is made of some of both.
//! - `options` is the command line; `--help` prints it. `frame` is what surrounds a server.

mod echo;
mod event_loop;
#[path = "../keepalive/files.rs"]
mod files;
#[path = "../keepalive/frame.rs"]
mod frame;
#[path = "../keepalive/options.rs"]
mod options;

use std::io::{self, Write};
use std::process::ExitCode;

use echo::Service;
use event_loop::EventLoop;
use options::Options;

const HELP: &str = "\
An echo server on an event loop with one thread, in the shape of Redis'.

Usage: event_loop [--listen ADDRESS] [--timeout TIME]

  --listen ADDRESS  IP address and port, port 0 for any free one (default: 127.0.0.1:7777)
  --timeout TIME    clients are hung up on when they send nothing for so long: 500ms, 30s,
                    5m, 1h or a bare number of seconds; from 1ms to 24h (default: 30s)
  -h, --help        this text

Standard output has one line when the server listens, and one at each tenth run of its
cron, once a second, if there was anything to do since the one before.

Exit status: 0 nobody reads the output any more, 1 the server failed, 2 the command line
is wrong.
";

/// Runs of the cron between two lines.
const CRONS_PER_LINE: u64 = 10;

fn main() -> ExitCode {
    frame::main("event_loop", HELP, serve)
}

fn serve(Options { listen, timeout }: Options) -> Result<(), String> {
    files::raise_limit();
    let mut event_loop = EventLoop::new(Service::default()).map_err(|error| error.to_string())?;
    let address =
        echo::start(&mut event_loop, listen, timeout).map_err(|error| format!("--listen: {listen}: {error}"))?;
    if !say(&format!("listening on {address}, timeout {timeout:?}")) {
        return Ok(());
    }
    let mut report = Report::default();
    echo::create_cron(&mut event_loop, move |event_loop| {
        if !report.next(event_loop) {
            event_loop.stop();
        }
    });
    event_loop.run().map_err(|error| error.to_string())
}

/// What the cron reports.
#[derive(Default)]
struct Report {
    crons: u64,
    told: String,
    turns: u64,
}

impl Report {
    /// False if the output is no longer read.
    fn next(&mut self, event_loop: &EventLoop<Service>) -> bool {
        self.crons += 1;
        if !self.crons.is_multiple_of(CRONS_PER_LINE) {
            return true;
        }
        let Service { clients, accepted, idle, bytes } = &event_loop.state;
        let now = format!("clients {}, accepted {accepted}, idle {idle}, bytes {bytes}", clients.len());
        let turns = event_loop.turns() - std::mem::replace(&mut self.turns, event_loop.turns());
        let is_news = now != std::mem::replace(&mut self.told, now.clone());
        !is_news || say(&format!("cron {}: {now}, turns {turns}", self.crons))
    }
}

/// Writes to standard output; false if that is no longer read.
fn say(line: &str) -> bool {
    writeln!(io::stdout(), "{line}").is_ok()
}
