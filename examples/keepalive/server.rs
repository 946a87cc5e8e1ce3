//! One thread reads all the sockets; the scheduler shuts the silent ones down.
//!
//! A connection's key is its token, its value the socket. Three things can end it, perhaps at the same moment, and
//! `cancel` says which it was:
//! - the peer hangs up or resets: `cancel` gives the socket back, and nothing will shut it down later;
//! - the timer fires: the callback shuts the socket down, which wakes this thread up; `cancel` finds nothing;
//! - a byte comes just then: `reschedule` says whether it was in time.
//!
//! So each connection ends exactly once and in one way, and no lock is needed for it.

use std::collections::HashMap;
use std::io::{self, Read};
use std::net::{Shutdown, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use mio::net::{TcpListener, TcpStream};
use mio::{Events, Interest, Poll, Token};
use shardwheel::{BuildError, Scheduler};

const LISTENER: Token = Token(0);
/// Events that one turn looks at.
const EVENTS_MAX: usize = 1024;
/// Reads from one socket in one turn: a peer that never stops talking must not keep the others waiting.
const READS_MAX: usize = 16;
/// A heartbeat is short.
const BUFFER_BYTES: usize = 512;
/// How long to wait before accepting again when the system had no file left for it.
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);

/// What becomes of a connection.
#[derive(Debug)]
pub(crate) enum Event {
    Opened,
    /// The scheduler closed it after this much silence.
    Silent(Duration),
    /// The peer hung up.
    Left,
    /// The connection broke, most often because the peer reset it.
    Failed(io::Error),
}

struct Connection {
    socket: Arc<TcpStream>,
    peer: SocketAddr,
    /// When the last byte was read, or a moment before.
    heard: Instant,
}

pub(crate) struct Server {
    /// It closes the silent connections.
    pub(crate) scheduler: Scheduler<Token, Arc<TcpStream>>,
    timeout: Duration,
    poll: Poll,
    listener: TcpListener,
    connections: HashMap<Token, Connection>,
    last: Token,
    /// Connections that may hold bytes which no further event will announce.
    unread: Vec<Token>,
    /// There are peers waiting that could not be accepted.
    accept_again: bool,
}

impl Server {
    /// # Errors
    /// `address` cannot be listened on, or threads cannot be started.
    pub(crate) fn bind(address: SocketAddr, timeout: Duration) -> io::Result<Self> {
        let poll = Poll::new()?;
        let mut listener = TcpListener::bind(address)?;
        poll.registry().register(&mut listener, LISTENER, Interest::READABLE)?;
        Ok(Self {
            scheduler: closer().map_err(io::Error::other)?,
            timeout,
            poll,
            listener,
            connections: HashMap::new(),
            last: LISTENER,
            unread: Vec::new(),
            accept_again: false,
        })
    }

    /// The address, with the port that the system chose if 0 was asked for.
    pub(crate) fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Serves until `observe` fails, which is called with what becomes of each connection: `Opened`, then one of the
    /// others.
    ///
    /// # Errors
    /// That of `observe`, or the poll's.
    pub(crate) fn run(&mut self, mut observe: impl FnMut(SocketAddr, Event) -> io::Result<()>) -> io::Result<()> {
        let mut events = Events::with_capacity(EVENTS_MAX);
        loop {
            match self.poll.poll(&mut events, self.patience()) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                result => result?,
            }
            let mut ready = std::mem::take(&mut self.unread);
            ready.extend(events.iter().map(|event| event.token()));
            if self.accept_again || ready.contains(&LISTENER) {
                self.accept(&mut observe)?;
            }
            for token in ready {
                self.listen_to(token, &mut observe)?;
            }
        }
    }

    /// How long the poll may sleep; the timers have threads of their own.
    fn patience(&self) -> Option<Duration> {
        match (self.unread.is_empty(), self.accept_again) {
            (false, _) => Some(Duration::ZERO),
            (true, true) => Some(ACCEPT_AGAIN),
            (true, false) => None,
        }
    }

    fn accept(&mut self, observe: &mut impl FnMut(SocketAddr, Event) -> io::Result<()>) -> io::Result<()> {
        self.accept_again = false;
        loop {
            match self.listener.accept().and_then(|(socket, peer)| self.open(socket, peer)) {
                Ok(peer) => observe(peer, Event::Opened)?,
                Err(error) => match error.kind() {
                    io::ErrorKind::WouldBlock => return Ok(()),
                    io::ErrorKind::Interrupted | io::ErrorKind::ConnectionAborted => {}
                    // Too many open files, most likely: the peer waits, and each connection that ends makes room. If
                    // the system would not watch a socket that we had, its peer sees that it is closed.
                    _ => {
                        self.accept_again = true;
                        return Ok(());
                    }
                },
            }
        }
    }

    fn open(&mut self, mut socket: TcpStream, peer: SocketAddr) -> io::Result<SocketAddr> {
        self.last.0 += 1;
        let token = self.last;
        self.poll.registry().register(&mut socket, token, Interest::READABLE)?;
        let socket = Arc::new(socket);
        // Read before the timer begins, so that no reported silence is shorter than the timeout.
        let heard = Instant::now();
        self.scheduler.schedule_with(token, Arc::clone(&socket), self.timeout).map_err(io::Error::other)?;
        self.connections.insert(token, Connection { socket, peer, heard });
        Ok(peer)
    }

    /// Reads what is available. Each byte is a heartbeat, and bytes of one moment count as one.
    fn listen_to(
        &mut self,
        token: Token,
        observe: &mut impl FnMut(SocketAddr, Event) -> io::Result<()>,
    ) -> io::Result<()> {
        // It may have ended earlier in this turn.
        let Some(connection) = self.connections.get_mut(&token) else { return Ok(()) };
        let now = Instant::now();
        let (bytes, state) = read_some(&connection.socket);
        // False: the bytes came too late, and the shutdown is on its way; it will wake us up.
        if bytes > 0 && self.scheduler.reschedule(&token, self.timeout) {
            connection.heard = now;
        }
        match state {
            State::Open => Ok(()),
            State::Unread => {
                self.unread.push(token);
                Ok(())
            }
            State::Ended(how) => self.close(token, how, observe),
        }
    }

    /// Forgets a connection that has ended: in the way that we saw, unless the scheduler closed it.
    fn close(
        &mut self,
        token: Token,
        seen: Event,
        observe: &mut impl FnMut(SocketAddr, Event) -> io::Result<()>,
    ) -> io::Result<()> {
        let Some(Connection { peer, heard, .. }) = self.connections.remove(&token) else { return Ok(()) };
        match self.scheduler.cancel(&token) {
            Some(_socket) => observe(peer, seen),
            None => observe(peer, Event::Silent(heard.elapsed())),
        }
    }
}

/// The scheduler whose callback ends what its timer stood for.
fn closer() -> Result<Scheduler<Token, Arc<TcpStream>>, BuildError> {
    Scheduler::builder().build(|_: &Token, socket: Arc<TcpStream>| {
        // It fails only if the peer was faster.
        let _ = socket.shutdown(Shutdown::Both);
    })
}

/// A socket after reading.
enum State {
    /// Everything is read; an event will announce more.
    Open,
    Unread,
    Ended(Event),
}

/// Reads and forgets. Returns how many bytes.
fn read_some(mut socket: &TcpStream) -> (usize, State) {
    let mut buffer = [0; BUFFER_BYTES];
    let mut bytes = 0;
    for _ in 0..READS_MAX {
        match socket.read(&mut buffer) {
            Ok(0) => return (bytes, State::Ended(Event::Left)),
            Ok(count) => bytes += count,
            Err(error) => match error.kind() {
                io::ErrorKind::Interrupted => {}
                io::ErrorKind::WouldBlock => return (bytes, State::Open),
                _ => return (bytes, State::Ended(Event::Failed(error))),
            },
        }
    }
    (bytes, State::Unread)
}
