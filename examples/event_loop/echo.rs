//! The service: an echo that hangs up on clients which have said nothing for too long, and a cron.

use std::cell::RefCell;
use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;

use mio::event::Source;
use mio::net::{TcpListener, TcpStream};
use mio::{Interest, Registry, Token};

use crate::event_loop::{EventLoop, FileId, Next, TimeId};

/// Redis' default `hz` of 10.
pub(crate) const CRON_PERIOD: Duration = Duration::from_millis(100);
/// Clients accepted in one turn.
const ACCEPTS_MAX: usize = 64;
const BUFFER_BYTES: usize = 16 * 1024;
/// How long to wait before accepting again when the system had no file left for it.
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);

/// What the handlers share.
#[derive(Debug, Default)]
pub(crate) struct Service {
    /// Each with the time event that hangs up on it.
    pub(crate) clients: HashMap<FileId, TimeId>,
    /// Clients accepted so far.
    pub(crate) accepted: u64,
    /// Clients that were hung up on.
    pub(crate) idle: u64,
    /// Bytes received.
    pub(crate) bytes: u64,
}

/// Serves on `address`. Returns it with the port that the system chose if 0 was asked for.
///
/// # Errors
/// `address` cannot be listened on.
pub(crate) fn start(
    event_loop: &mut EventLoop<Service>,
    address: SocketAddr,
    timeout: Duration,
) -> io::Result<SocketAddr> {
    let listener = TcpListener::bind(address)?;
    let address = listener.local_addr()?;
    listen(event_loop, Listener(Rc::new(RefCell::new(listener))), timeout)?;
    Ok(address)
}

/// A listener that may outlive its file event.
#[derive(Clone)]
struct Listener(Rc<RefCell<TcpListener>>);

impl Source for Listener {
    fn register(&mut self, registry: &Registry, token: Token, interest: Interest) -> io::Result<()> {
        self.0.borrow_mut().register(registry, token, interest)
    }

    fn reregister(&mut self, registry: &Registry, token: Token, interest: Interest) -> io::Result<()> {
        self.0.borrow_mut().reregister(registry, token, interest)
    }

    fn deregister(&mut self, registry: &Registry) -> io::Result<()> {
        self.0.borrow_mut().deregister(registry)
    }
}

fn listen(event_loop: &mut EventLoop<Service>, listener: Listener, timeout: Duration) -> io::Result<()> {
    let event = event_loop.create_file_event(listener, Interest::READABLE, move |event_loop, _, listener| {
        for _ in 0..ACCEPTS_MAX {
            let accepted = listener.0.borrow().accept();
            match accepted.and_then(|(socket, _)| open(event_loop, socket, timeout)) {
                Ok(()) => {}
                Err(error) if accepts_again(&error) => break,
                Err(_) => {
                    listen_later(event_loop, listener.clone(), timeout);
                    return None;
                }
            }
        }
        Some(Interest::READABLE)
    });
    event.map(|_| ())
}

/// True if no client waits, or the one that did has gone. Any other error, most likely too many open files, would be
/// the same in the next turn, which would come at once.
fn accepts_again(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, Interrupted, WouldBlock};
    matches!(error.kind(), WouldBlock | Interrupted | ConnectionAborted)
}

/// Clients that wait to be accepted wait a little longer; each client that leaves makes room.
fn listen_later(event_loop: &mut EventLoop<Service>, listener: Listener, timeout: Duration) {
    event_loop.create_time_event(ACCEPT_AGAIN, move |event_loop, _| {
        match listen(event_loop, listener.clone(), timeout) {
            Ok(()) => Next::Done,
            Err(_) => Next::After(ACCEPT_AGAIN),
        }
    });
}

/// Calls `cron` at 10 Hz.
pub(crate) fn create_cron(
    event_loop: &mut EventLoop<Service>,
    mut cron: impl FnMut(&mut EventLoop<Service>) + 'static,
) -> TimeId {
    event_loop.create_time_event(CRON_PERIOD, move |event_loop, _| {
        cron(event_loop);
        Next::After(CRON_PERIOD)
    })
}

fn open(event_loop: &mut EventLoop<Service>, socket: TcpStream, timeout: Duration) -> io::Result<()> {
    let mut echo = Echo { buffer: vec![0; BUFFER_BYTES], unsent: 0..0 };
    let client = event_loop.create_file_event(socket, Interest::READABLE, move |event_loop, client, socket| {
        let (bytes, interest) = echo.serve(socket);
        if bytes > 0 {
            event_loop.state.bytes += bytes as u64;
            put_off_hang_up(event_loop, client, timeout);
        }
        if interest.is_none() {
            forget(event_loop, client);
        }
        interest
    })?;
    event_loop.state.accepted += 1;
    put_off_hang_up(event_loop, client, timeout);
    Ok(())
}

/// Creating and deleting a time event costs the wheel next to nothing, so there is no need to keep the old one and look
/// later.
fn put_off_hang_up(event_loop: &mut EventLoop<Service>, client: FileId, timeout: Duration) {
    let hang_up = event_loop.create_time_event(timeout, move |event_loop, _| {
        event_loop.state.clients.remove(&client);
        event_loop.state.idle += 1;
        event_loop.delete_file_event(client);
        Next::Done
    });
    if let Some(replaced) = event_loop.state.clients.insert(client, hang_up) {
        event_loop.delete_time_event(replaced);
    }
}

fn forget(event_loop: &mut EventLoop<Service>, client: FileId) {
    if let Some(hang_up) = event_loop.state.clients.remove(&client) {
        event_loop.delete_time_event(hang_up);
    }
}

/// What one client has sent and not yet got back.
struct Echo {
    buffer: Vec<u8>,
    unsent: Range<usize>,
}

impl Echo {
    /// Reads once, if everything that was read is sent, and sends once. Returns how many bytes came and what to wait
    /// for next; `None` if the client has gone.
    fn serve(&mut self, socket: &mut TcpStream) -> (usize, Option<Interest>) {
        let mut bytes = 0;
        if self.unsent.is_empty() {
            match would_block(socket.read(&mut self.buffer)) {
                Ok(None) => return (0, Some(Interest::READABLE)),
                Ok(Some(count)) if count > 0 => bytes = count,
                _ => return (0, None),
            }
            self.unsent = 0..bytes;
        }
        match would_block(socket.write(&self.buffer[self.unsent.clone()])) {
            Ok(sent) => self.unsent.start += sent.unwrap_or(0),
            Err(_) => return (bytes, None),
        }
        let interest = if self.unsent.is_empty() { Interest::READABLE } else { Interest::WRITABLE };
        (bytes, Some(interest))
    }
}

/// `None` if the socket was not ready, or a signal came.
fn would_block(result: io::Result<usize>) -> io::Result<Option<usize>> {
    match result {
        Ok(count) => Ok(Some(count)),
        Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => Ok(None),
        Err(error) => Err(error),
    }
}
