//! The example `keepalive` over loopback, with as many sockets as the system lets us open, up to some thousands.

#[path = "support/control.rs"]
mod control;
#[cfg(target_os = "linux")]
#[path = "support/few_files.rs"]
mod few_files;
#[path = "../examples/keepalive/files.rs"]
mod files;
#[path = "../examples/keepalive/options.rs"]
mod options;
#[path = "../examples/keepalive/server.rs"]
mod server;

use std::collections::HashMap;
#[cfg(target_os = "linux")]
use std::fs::File;
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use mio::{Events, Interest, Poll, Token};

use control::Control;
use options::Options;
use server::{Event, Server};

const MS: Duration = Duration::from_millis(1);
/// Connections that may wait to be accepted; all systems allow this many.
const BACKLOG: usize = 64;
/// Keeps a test from hanging; nothing is measured by it.
const PATIENCE: Duration = Duration::from_secs(20);

/// How often a connection came to each end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Ends {
    opened: usize,
    silent: usize,
    left: usize,
    failed: usize,
}

impl Ends {
    fn all(&self) -> usize {
        self.silent + self.left + self.failed
    }
}

/// A server on a thread of its own, and the test's own count of what happened to it.
struct Running {
    address: SocketAddr,
    connected: AtomicUsize,
    opened: Arc<AtomicUsize>,
    ended: Arc<AtomicUsize>,
    stop: Arc<AtomicBool>,
    thread: JoinHandle<(Server, Ends)>,
}

impl Running {
    fn start(timeout: Duration) -> Self {
        let mut server = Server::bind("127.0.0.1:0".parse().unwrap(), timeout).unwrap();
        let address = server.address().unwrap();
        let (opened, ended) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let stop = Arc::new(AtomicBool::new(false));
        let books = (Arc::clone(&opened), Arc::clone(&ended), Arc::clone(&stop));
        let thread = thread::spawn(move || {
            let (opened, ended, stop) = books;
            let mut open = HashMap::new();
            let mut ends = Ends::default();
            let stopped = server.run(|peer, event| {
                if stop.load(Relaxed) {
                    return Err(io::Error::other("stopped by the test"));
                }
                // A port may be used again before the server has seen the reset that freed it.
                let open = open.entry(peer).or_insert(0_usize);
                *open = match event {
                    Event::Opened => *open + 1,
                    _ => open.checked_sub(1).expect("ended but was not open"),
                };
                match event {
                    Event::Opened => ends.opened = opened.fetch_add(1, Relaxed) + 1,
                    Event::Silent(silence) => {
                        assert!(silence >= timeout, "{peer} closed after {silence:?}");
                        ends.silent += 1;
                    }
                    Event::Left => ends.left += 1,
                    Event::Failed(error) => {
                        assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
                        ends.failed += 1;
                    }
                }
                ended.store(ends.all(), Relaxed);
                Ok(())
            });
            assert_eq!(stopped.unwrap_err().to_string(), "stopped by the test");
            (server, ends)
        });
        Self { address, connected: AtomicUsize::new(0), opened, ended, stop, thread }
    }

    /// Makes a new connection, after the server has accepted nearly all earlier ones: an overflow of the backlog costs
    /// a second.
    fn connect(&self) -> TcpStream {
        self.await_opened(self.connected.fetch_add(1, Relaxed).saturating_sub(BACKLOG));
        let socket = TcpStream::connect(self.address).unwrap();
        let local = socket.local_addr().unwrap();
        assert_ne!(local, self.address, "a socket that connected to itself");
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        socket
    }

    fn await_count(&self, count: &AtomicUsize, least: usize, what: &str) {
        let began = Instant::now();
        while count.load(Relaxed) < least {
            assert!(began.elapsed() < PATIENCE, "{} of {least} connections {what}", count.load(Relaxed));
            assert!(!self.thread.is_finished(), "the server has panicked");
            thread::sleep(MS);
        }
    }

    fn await_opened(&self, least: usize) {
        self.await_count(&self.opened, least, "opened");
    }

    fn await_ended(&self, least: usize) {
        self.await_count(&self.ended, least, "ended");
    }

    /// Ends the server by one more connection, which is not in the test's count but in `stats()`.
    fn stop(self) -> (Server, Ends) {
        self.stop.store(true, Relaxed);
        let _last = TcpStream::connect(self.address).unwrap();
        self.thread.join().unwrap()
    }
}

/// One test at a time: they share the files that the process may open, and there may be only two cores.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// As many connections as there are files for; both ends of each are ours.
fn connection_count(most: usize) -> usize {
    let files = files::raise_limit().map_or(256, |limit| usize::try_from(limit).unwrap_or(usize::MAX));
    most.min(files.saturating_sub(100) / 2)
}

/// Our end of a connection.
struct Client {
    socket: mio::net::TcpStream,
    /// The number of rounds in which it says something.
    rounds: usize,
    /// Just before and just after it sent its last byte, or connected.
    spoke: (Instant, Instant),
    /// The machine kept it from speaking for so long that a byte may have come too late.
    doubtful: bool,
    closed: Option<Instant>,
}

impl Client {
    fn speak(&mut self, timeout: Duration) {
        let before = Instant::now();
        self.doubtful |= before - self.spoke.0 > timeout / 2;
        // The server may have closed it; reading shows that.
        if matches!(self.socket.write(b"."), Ok(1)) {
            self.spoke = (before, Instant::now());
        }
    }

    /// Whether the server has closed it.
    fn is_closed(&mut self) -> bool {
        !matches!(self.socket.read(&mut [0; 1]), Err(error) if error.kind() == io::ErrorKind::WouldBlock)
    }
}

/// Notes which clients are closed, until `until`.
fn watch(poll: &mut Poll, clients: &mut [Client], until: Instant) {
    let mut events = Events::with_capacity(1024);
    loop {
        let left = until.saturating_duration_since(Instant::now());
        match poll.poll(&mut events, Some(left)) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            result => result.unwrap(),
        }
        for event in &events {
            let client = &mut clients[event.token().0];
            if client.closed.is_none() && client.is_closed() {
                client.closed = Some(Instant::now());
            }
        }
        if left.is_zero() {
            return;
        }
    }
}

#[test]
fn the_silent_are_closed_in_time_and_the_talking_live_on() {
    const TIMEOUT: Duration = Duration::from_millis(1500);
    const ROUND: Duration = Duration::from_millis(150);
    /// The silent clients talk in the first rounds only, or never.
    const ROUNDS: usize = 16;
    let _alone = alone();
    let most = connection_count(3000);
    let running = Running::start(TIMEOUT);
    let control = Control::start();
    let began = Instant::now();
    let mut poll = Poll::new().unwrap();
    let mut clients: Vec<Client> = Vec::new();
    // Only as long as leaves time to speak: a slow machine gets fewer clients.
    for index in (0..most).take_while(|_| began.elapsed() < TIMEOUT / 4) {
        let before = Instant::now();
        let socket = running.connect();
        let spoke = (before, Instant::now());
        socket.set_nonblocking(true).unwrap();
        let mut socket = mio::net::TcpStream::from_std(socket);
        poll.registry().register(&mut socket, Token(index), Interest::READABLE).unwrap();
        let rounds = if index % 3 == 0 { ROUNDS } else { index % 4 };
        clients.push(Client { socket, rounds, spoke, doubtful: false, closed: None });
    }

    let count = clients.len();
    running.await_opened(count);
    let began = Instant::now();
    for round in 0..ROUNDS {
        clients.iter_mut().filter(|client| client.rounds > round).for_each(|client| client.speak(TIMEOUT));
        watch(&mut poll, &mut clients, began + ROUND * (round as u32 + 1));
    }
    // All silent clients have spoken for the last time in round 2.
    let silent = clients.iter().filter(|client| client.rounds < ROUNDS).count();
    running.await_ended(silent);
    watch(&mut poll, &mut clients, Instant::now());
    let worst = control.worst();

    // A tick, and the way through two threads of the scheduler, one of the server and this one. Each handles a crowd at
    // once, and is as late as the machine makes it.
    let bound = 250 * MS + 10 * worst;
    for client in &clients {
        let Some(closed) = client.closed.filter(|_| !client.doubtful) else { continue };
        let (before, after) = client.spoke;
        assert!(closed - before >= TIMEOUT, "closed {:?} after its last byte", closed - before);
        let late = closed.saturating_duration_since(after).saturating_sub(TIMEOUT);
        assert!(late <= bound, "closed {late:?} late; the machine was late by {worst:?}");
    }
    let (talking, silent): (Vec<_>, Vec<_>) = clients.iter().partition(|client| client.rounds == ROUNDS);
    assert!(silent.iter().all(|client| client.closed.is_some()), "silent ones were not closed");
    // If the machine stands still for so long, it silences the clients that talk as well.
    let lost = talking.iter().filter(|client| client.closed.is_some()).count();
    let excused = talking.iter().any(|client| client.doubtful) || worst > TIMEOUT / 4;
    assert!(lost == 0 || excused, "{lost} of {} talking ones were closed", talking.len());

    let (server, ends) = running.stop();
    assert_eq!(ends, Ends { opened: count, silent: silent.len() + lost, left: 0, failed: 0 });
    assert_eq!(server.scheduler.stats().fired as usize, ends.silent);
    assert_eq!(server.scheduler.len(), talking.len() - lost + 1, "those who talk and the one that stopped the server");
}

#[test]
fn churn_loses_no_connection() {
    const TIMEOUT: Duration = Duration::from_millis(300);
    const CALLERS: usize = 4;
    const EACH: usize = 750;
    let _alone = alone();
    let window = connection_count(400) / CALLERS;
    let files_before = open_files();
    let running = Running::start(TIMEOUT);
    let silent = thread::scope(|scope| {
        let callers: Vec<_> = (0..CALLERS).map(|_| scope.spawn(|| churn(&running, window, EACH))).collect();
        callers.into_iter().map(|caller| caller.join().unwrap()).sum::<usize>()
    });
    running.await_ended(CALLERS * EACH);

    let (server, ends) = running.stop();
    assert_eq!((ends.opened, ends.all()), (CALLERS * EACH, CALLERS * EACH), "{ends:?}");
    // A client that hangs up may still have been too late for it.
    assert!(ends.silent >= silent && ends.left > 0, "{ends:?}, {silent} waited to be closed");
    let stats = server.scheduler.stats();
    assert_eq!(stats.scheduled as usize, ends.opened + 1, "the one that stopped the server is scheduled too");
    assert_eq!(stats.fired as usize, ends.silent);
    assert_eq!(stats.cancelled as usize, ends.left + ends.failed);
    assert_eq!(server.scheduler.len(), 1);
    drop(server);
    assert_eq!(open_files(), files_before, "sockets are left open");
}

/// Opens `count` connections, `window` at a time, and ends them in different ways. Returns how many it left to the
/// server.
fn churn(running: &Running, window: usize, count: usize) -> usize {
    let mut silent = 0;
    let mut waiting = Vec::new();
    for index in 0..count {
        let mut socket = running.connect();
        match index % 5 {
            0 => drop(socket),
            1 => {
                socket.write_all(b"hello").unwrap();
                socket.shutdown(Shutdown::Write).unwrap();
                assert_eq!(socket.read(&mut [0; 1]).unwrap(), 0);
            }
            2 => {
                socket.write_all(&[0; 10_000]).unwrap();
                drop(socket);
            }
            3 => {
                socket.write_all(b".").unwrap();
                reset(socket);
            }
            _ => {
                silent += 1;
                waiting.push(socket);
            }
        }
        if waiting.len() >= window || index + 1 == count {
            waiting.drain(..).for_each(await_close);
        }
    }
    silent
}

/// Waits, saying nothing, until the other end hangs up.
fn await_close(mut socket: TcpStream) {
    assert_eq!(socket.read(&mut [0; 1]).unwrap(), 0);
}

/// Ends a connection by a reset where we know how, elsewhere by hanging up.
fn reset(socket: TcpStream) {
    #[cfg(target_os = "linux")]
    rustix::net::sockopt::set_socket_linger(&socket, Some(Duration::ZERO)).unwrap();
    drop(socket);
}

/// The number of open files of this process, where Linux says so.
fn open_files() -> Option<usize> {
    std::fs::read_dir("/proc/self/fd").ok().map(Iterator::count)
}

#[test]
#[cfg(target_os = "linux")]
fn a_reset_connection_leaves_no_timer_behind() {
    let _alone = alone();
    let count = connection_count(500);
    let running = Running::start(Duration::from_secs(3600));
    let sockets: Vec<_> = (0..count).map(|_| running.connect()).collect();
    running.await_opened(count);
    sockets.into_iter().for_each(reset);
    running.await_ended(count);

    let (server, ends) = running.stop();
    assert_eq!(ends, Ends { opened: count, silent: 0, left: 0, failed: count });
    assert_eq!(server.scheduler.stats().cancelled as usize, count);
    assert_eq!(server.scheduler.len(), 1, "only the connection that stopped the server");
}

#[test]
#[cfg(target_os = "linux")]
fn without_a_file_left_it_sleeps_and_accepts_when_there_is_one() {
    let _alone = alone();
    if !few_files::in_a_process_of_its_own("without_a_file_left_it_sleeps_and_accepts_when_there_is_one") {
        return;
    }
    let times = File::open("/proc/self/stat").unwrap();
    let running = Running::start(Duration::from_secs(3600));
    let first = running.connect();
    running.await_opened(1);

    // One file for a client, none for the server.
    let mut files = few_files::take_all();
    files.pop();
    let second = TcpStream::connect(running.address).unwrap();
    thread::sleep(50 * MS);
    let before = hundredths(&times);
    thread::sleep(500 * MS);
    let busy = hundredths(&times) - before;
    assert!(busy <= 5, "busy for {busy} of 50 hundredths of a second");
    assert_eq!((running.opened.load(Relaxed), running.ended.load(Relaxed)), (1, 0));
    // The server notices a client that leaves, and has room again.
    drop(first);
    running.await_ended(1);
    running.await_opened(2);
    drop(second);
    running.await_ended(2);
    drop(files);
    let (_, ends) = running.stop();
    assert_eq!(ends, Ends { opened: 2, silent: 0, left: 2, failed: 0 });
}

/// For how long this process kept processors busy, in hundredths of a second.
#[cfg(target_os = "linux")]
fn hundredths(stat: &File) -> u64 {
    use std::os::unix::fs::FileExt;
    let mut buffer = [0; 4096];
    let bytes = stat.read_at(&mut buffer, 0).unwrap();
    let text = String::from_utf8_lossy(&buffer[..bytes]);
    // After the name, in parentheses, comes the state; ten fields further on are the times in user mode and in the
    // system.
    let fields = text.rsplit(')').next().unwrap().split_whitespace();
    fields.skip(11).take(2).map(|field| field.parse::<u64>().unwrap()).sum()
}

#[test]
fn who_never_stops_talking_keeps_nobody_waiting() {
    const TIMEOUT: Duration = Duration::from_millis(1000);
    const OTHERS: usize = 20;
    let _alone = alone();
    let running = Running::start(TIMEOUT);
    let mut flood = running.connect();
    let flooding = flood.try_clone().unwrap();
    let flooder = thread::spawn(move || while flood.write_all(&[0; 65_536]).is_ok() {});
    let control = Control::start();
    // Heartbeats that are not read in time silence their senders. All connections are to be accepted first.
    let mut others: Vec<_> = (0..OTHERS).map(|_| running.connect()).collect();
    running.await_opened(1 + OTHERS);
    for _ in 0..12 {
        others.iter_mut().for_each(|socket| socket.write_all(b".").unwrap_or_default());
        thread::sleep(TIMEOUT / 10);
    }
    let ended = running.ended.load(Relaxed);
    let worst = control.worst();
    assert!(ended == 0 || worst > TIMEOUT / 4, "{ended} were closed; the machine was late by {worst:?}");
    assert!(!flooder.is_finished(), "it never stopped talking");
    flooding.shutdown(Shutdown::Both).unwrap();
    flooder.join().unwrap();
    // Connections that only listen now are closed as always.
    others.into_iter().for_each(await_close);
    running.await_ended(1 + OTHERS);
    let (_, ends) = running.stop();
    assert_eq!((ends.opened, ends.silent), (1 + OTHERS, OTHERS));
}

#[test]
fn an_address_in_use_is_refused() {
    let server = Server::bind("127.0.0.1:0".parse().unwrap(), MS).unwrap();
    let refused = Server::bind(server.address().unwrap(), MS).map(|_| ()).unwrap_err();
    assert_eq!(refused.kind(), io::ErrorKind::AddrInUse);
}

#[test]
fn options_are_read() {
    let expected = Options { listen: "[::1]:80".parse().unwrap(), timeout: 1500 * MS };
    assert_eq!(options::parse(["--listen", "[::1]:80", "--timeout=1500ms"]), Ok(Some(expected)));
    for (text, seconds) in [("30", 30), ("30s", 30), ("5m", 300), ("24h", 86_400)] {
        let timeout = Duration::from_secs(seconds);
        assert_eq!(options::parse(["--timeout", text]), Ok(Some(Options { timeout, ..Options::default() })));
    }
    assert_eq!(options::parse([""; 0]), Ok(Some(Options::default())));
    assert_eq!(Options::default().timeout, Duration::from_secs(30));
    assert_eq!(options::parse(["-h"]), Ok(None));
}

#[test]
fn a_bad_value_is_named_with_its_option_and_what_is_accepted() {
    let error = options::parse(["--timeout", "0"]).unwrap_err();
    let accepted = "a whole number and ms, s, m or h is, such as 500ms, 30s or 5m, from 1ms to 24h";
    assert_eq!(error, format!("--timeout: '0' is not accepted; {accepted}"));
    for value in ["", "s", "-1", "1.5s", "25h", "86401", "3d", "99999999999999999999", "18446744073709551615h"] {
        let error = options::parse(["--timeout", value]).unwrap_err();
        assert!(error.starts_with(&format!("--timeout: '{value}'")), "{error}");
    }
    for value in ["", "7777", "localhost:7777", "127.0.0.1", "127.0.0.1:65536"] {
        let error = options::parse(["--listen", value]).unwrap_err();
        assert!(error.starts_with(&format!("--listen: '{value}' is not accepted; an IP address")), "{error}");
    }
    for args in [["--nope", "1"], ["nope", "1"]] {
        assert!(options::parse(args).unwrap_err().contains("nope"));
    }
    options::parse(["--listen"]).unwrap_err();
}
