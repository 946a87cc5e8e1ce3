//! A TCP server that closes connections that have been silent for too long: each byte received is a heartbeat that
//! moves its connection's deadline.
//!
//! ```text
//! cargo run --release --example keepalive -- --listen 127.0.0.1:7777 --timeout 30s
//! ```
//!
//! - `server` reads the sockets; the scheduler closes them.
//! - `options` is the command line; `--help` prints it. `frame` is what surrounds a server.
//! - `files` raises the number of files that the process may open.

mod files;
mod frame;
mod options;
mod server;

use std::io::{self, Write};
use std::net::SocketAddr;
use std::process::ExitCode;

use options::Options;
use server::{Event, Server};

const HELP: &str = "\
A TCP server that closes who has been silent for too long.

Usage: keepalive [--listen ADDRESS] [--timeout TIME]

  --listen ADDRESS  IP address and port, port 0 for any free one (default: 127.0.0.1:7777)
  --timeout TIME    a connection ends so long after its last byte: 500ms, 30s, 5m, 1h or
                    a bare number of seconds; from 1ms to 24h (default: 30s)
  -h, --help        this text

Each byte is a heartbeat, whatever it is; nothing is answered. Standard output has one
line when the server listens, and one when a connection opens and when it ends.

Exit status: 0 nobody reads the output any more, 1 the server failed, 2 the command line
is wrong.
";

fn main() -> ExitCode {
    frame::main("keepalive", HELP, serve)
}

fn serve(Options { listen, timeout }: Options) -> Result<(), String> {
    files::raise_limit();
    let cannot_listen = |error| format!("--listen: {listen}: {error}");
    let mut server = Server::bind(listen, timeout).map_err(cannot_listen)?;
    let address = server.address().map_err(cannot_listen)?;
    let served = say(&format!("listening on {address}, timeout {timeout:?}")).and_then(|()| server.run(tell));
    match served {
        // The reader of our output has seen enough.
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error.to_string()),
        _ => Ok(()),
    }
}

fn tell(peer: SocketAddr, event: Event) -> io::Result<()> {
    say(&match event {
        Event::Opened => format!("{peer} connected"),
        Event::Silent(silence) => format!("{peer} closed after {:.3} s of silence", silence.as_secs_f64()),
        Event::Left => format!("{peer} left"),
        Event::Failed(error) => format!("{peer} lost: {error}"),
    })
}

/// Writes to standard output, line by line.
fn say(line: &str) -> io::Result<()> {
    writeln!(io::stdout(), "{line}")
}
