//! The example `event_loop`: the loop by itself, and its echo service over loopback.

#[path = "support/control.rs"]
mod control;
#[path = "../examples/event_loop/echo.rs"]
mod echo;
#[path = "../examples/event_loop/event_loop.rs"]
mod event_loop;
#[cfg(target_os = "linux")]
#[path = "support/few_files.rs"]
mod few_files;

use std::cell::{Cell, RefCell};
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::rc::Rc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use mio::Interest;

use control::Control;
use echo::{CRON_PERIOD, Service};
use event_loop::{EventLoop, FileId, Next, TimeId, sleep_until};

const MS: Duration = Duration::from_millis(1);
const HOUR: Duration = Duration::from_secs(3600);
/// Keeps a test from hanging; nothing is measured by it.
const PATIENCE: Duration = Duration::from_secs(20);

fn event_loop() -> EventLoop<()> {
    EventLoop::new(()).unwrap()
}

/// Turns the loop for `time`, and longer only by the last turn.
fn run_for<S>(event_loop: &mut EventLoop<S>, time: Duration) {
    let (over, is_over) = counter();
    event_loop.create_time_event(time, move |_, _| {
        add_one(&over);
        Next::Done
    });
    while is_over.get() == 0 {
        event_loop.turn().unwrap();
    }
}

/// Turns the loop until `done`.
fn run_until<S>(event_loop: &mut EventLoop<S>, mut done: impl FnMut(&EventLoop<S>) -> bool) {
    let began = Instant::now();
    let pulse = event_loop.create_time_event(MS, |_, _| Next::After(MS));
    while !done(event_loop) {
        assert!(began.elapsed() < PATIENCE, "it never happens");
        event_loop.turn().unwrap();
    }
    assert!(event_loop.delete_time_event(pulse));
}

/// Two ends of a connection; `bytes` wait to be read at the first.
fn connection(bytes: usize) -> (mio::net::TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut theirs = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (ours, _) = listener.accept().unwrap();
    theirs.write_all(&vec![b'.'; bytes]).unwrap();
    if bytes > 0 {
        ours.peek(&mut [0]).unwrap();
    }
    ours.set_nonblocking(true).unwrap();
    theirs.set_read_timeout(Some(PATIENCE)).unwrap();
    (mio::net::TcpStream::from_std(ours), theirs)
}

fn counter() -> (Rc<Cell<usize>>, Rc<Cell<usize>>) {
    let count = Rc::new(Cell::new(0));
    (Rc::clone(&count), count)
}

fn add_one(count: &Cell<usize>) {
    count.set(count.get() + 1);
}

#[test]
fn a_one_shot_runs_once_and_never_early() {
    let mut event_loop = event_loop();
    let runs = Rc::new(RefCell::new(Vec::new()));
    for micros in (0..60_000).step_by(700) {
        let (runs, delay) = (Rc::clone(&runs), Duration::from_micros(micros));
        let created = Instant::now();
        event_loop.create_time_event(delay, move |_, id| {
            runs.borrow_mut().push(id);
            assert!(created.elapsed() >= delay, "{delay:?} after {:?}", created.elapsed());
            Next::Done
        });
    }
    run_for(&mut event_loop, 100 * MS);
    let mut runs = runs.take();
    assert_eq!(runs.len(), 86);
    runs.dedup();
    assert_eq!(runs.len(), 86, "one ran twice");
    for id in runs {
        assert!(!event_loop.delete_time_event(id), "{id:?} has run and is gone");
    }
}

#[test]
fn a_periodic_event_deletes_itself_whatever_it_returns() {
    let mut event_loop = event_loop();
    let (runs, count) = counter();
    let alive = Rc::downgrade(&runs);
    event_loop.create_time_event(MS, move |event_loop, id| {
        add_one(&runs);
        if runs.get() == 3 {
            assert!(event_loop.delete_time_event(id));
            assert!(!event_loop.delete_time_event(id), "it is gone already");
        }
        Next::After(MS)
    });
    run_until(&mut event_loop, |_| count.get() == 3);
    run_for(&mut event_loop, 10 * MS);
    assert_eq!(count.get(), 3);
    assert_eq!(alive.strong_count(), 1, "its handler is dropped");
}

#[test]
fn of_two_due_events_that_delete_each_other_one_runs() {
    let mut event_loop = event_loop();
    let (runs, count) = counter();
    let ids = Rc::new(RefCell::new(Vec::<TimeId>::new()));
    for _ in 0..2 {
        let (runs, their_ids) = (Rc::clone(&runs), Rc::clone(&ids));
        let id = event_loop.create_time_event(MS, move |event_loop, own| {
            add_one(&runs);
            let others = their_ids.borrow().iter().filter(|&&id| id != own).copied().collect::<Vec<_>>();
            assert_eq!(others.into_iter().filter(|&id| event_loop.delete_time_event(id)).count(), 1);
            Next::After(HOUR)
        });
        ids.borrow_mut().push(id);
    }
    // Both are due in the very same turn.
    thread::sleep(5 * MS);
    run_for(&mut event_loop, 10 * MS);
    assert_eq!(count.get(), 1);
}

#[test]
fn an_event_deletes_a_later_one_and_creates_another() {
    let mut event_loop = event_loop();
    let (runs, count) = counter();
    let later = event_loop.create_time_event(200 * MS, |_, _| unreachable!("it is deleted"));
    event_loop.create_time_event(MS, move |event_loop, _| {
        assert!(event_loop.delete_time_event(later));
        let runs = Rc::clone(&runs);
        event_loop.create_time_event(MS, move |_, id| {
            assert_ne!(id, later);
            add_one(&runs);
            Next::Done
        });
        Next::Done
    });
    run_until(&mut event_loop, |_| count.get() == 1);
    run_for(&mut event_loop, 300 * MS);
    assert_eq!(count.get(), 1);
}

#[test]
fn of_two_ready_files_that_delete_each_other_one_runs() {
    let mut event_loop = event_loop();
    let (runs, count) = counter();
    let ids = Rc::new(RefCell::new(Vec::<FileId>::new()));
    let mut ends = Vec::new();
    for _ in 0..2 {
        let (socket, end) = connection(1);
        let (runs, their_ids) = (Rc::clone(&runs), Rc::clone(&ids));
        let handler = move |event_loop: &mut EventLoop<()>, own, socket: &mut mio::net::TcpStream| {
            add_one(&runs);
            assert_eq!(socket.read(&mut [0; 8]).unwrap(), 1);
            socket.write_all(b"!").unwrap();
            let others = their_ids.borrow().iter().filter(|&&id| id != own).copied().collect::<Vec<_>>();
            assert_eq!(others.into_iter().filter(|&id| event_loop.delete_file_event(id)).count(), 1);
            Some(Interest::READABLE)
        };
        ids.borrow_mut().push(event_loop.create_file_event(socket, Interest::READABLE, handler).unwrap());
        ends.push(end);
    }
    run_for(&mut event_loop, 20 * MS);
    assert_eq!(count.get(), 1);
    drop(event_loop);
    let answers: Vec<_> = ends.iter_mut().map(|end| end.read(&mut [0]).is_ok_and(|count| count == 1)).collect();
    assert_eq!(answers.iter().filter(|&&answered| answered).count(), 1);
}

#[test]
fn a_file_event_deletes_itself_whatever_it_returns() {
    let mut event_loop = event_loop();
    // What the handler leaves unread would call it again.
    let (socket, mut end) = connection(10);
    let (runs, count) = counter();
    let handler = move |event_loop: &mut EventLoop<()>, id, socket: &mut mio::net::TcpStream| {
        add_one(&runs);
        assert_eq!(socket.read(&mut [0]).unwrap(), 1);
        if runs.get() == 10 {
            assert!(event_loop.delete_file_event(id));
            assert!(!event_loop.delete_file_event(id), "it is gone already");
        }
        Some(Interest::READABLE)
    };
    event_loop.create_file_event(socket, Interest::READABLE, handler).unwrap();
    run_until(&mut event_loop, |_| count.get() == 10);
    assert_eq!(end.read(&mut [0]).unwrap(), 0, "its source is dropped");
    run_for(&mut event_loop, 10 * MS);
    assert_eq!((count.get(), Rc::strong_count(&count)), (10, 1));
}

#[test]
fn files_come_before_times_and_delete_those_that_are_due() {
    let mut event_loop = event_loop();
    let order = Rc::new(RefCell::new(Vec::new()));
    let note = |what: &'static str| {
        let order = Rc::clone(&order);
        move || order.borrow_mut().push(what)
    };
    let (socket, _end) = connection(1);
    let (due, deleted) = (note("time"), note("deleted"));
    event_loop.create_time_event(MS, move |_, _| {
        due();
        Next::Done
    });
    let doomed = event_loop.create_time_event(MS, move |_, _| {
        deleted();
        Next::Done
    });
    let ready = note("file");
    event_loop
        .create_file_event(socket, Interest::READABLE, move |event_loop, _, _| {
            ready();
            assert!(event_loop.delete_time_event(doomed));
            None
        })
        .unwrap();
    thread::sleep(5 * MS);
    event_loop.turn().unwrap();
    assert_eq!(*order.borrow(), ["file", "time"]);
}

#[test]
fn a_late_run_moves_no_later_one_and_what_was_missed_comes_one_a_turn() {
    const PERIOD: Duration = Duration::from_millis(10);
    const STALL: Duration = Duration::from_millis(300);
    const RUNS: usize = 60;
    let mut event_loop = event_loop();
    let runs = Rc::new(RefCell::new(Vec::new()));
    let their_runs = Rc::clone(&runs);
    let created = Instant::now();
    event_loop.create_time_event(PERIOD, move |event_loop, _| {
        let mut runs = their_runs.borrow_mut();
        runs.push((created.elapsed(), event_loop.turns()));
        if runs.len() == 2 {
            thread::sleep(STALL);
        }
        Next::After(PERIOD)
    });
    run_until(&mut event_loop, |_| runs.borrow().len() == RUNS);
    let runs = runs.borrow();
    for (index, pair) in runs.windows(2).enumerate() {
        assert!(pair[0].1 < pair[1].1, "two runs in one turn");
        assert!(pair[1].0 >= PERIOD * (index as u32 + 2), "early");
    }
    // Everything that was missed in the stall was made up for: the deadlines have not moved.
    let least_late = (RUNS / 2 + 5..RUNS).map(|index| runs[index].0 - PERIOD * (index as u32 + 1)).min().unwrap();
    assert!(least_late < STALL / 2, "{least_late:?} late for ever");
}

#[test]
fn an_idle_loop_sleeps() {
    let mut event_loop = EventLoop::new(Service::default()).unwrap();
    let address = echo::start(&mut event_loop, any_port(), HOUR).unwrap();
    let silent = TcpStream::connect(address).unwrap();
    run_until(&mut event_loop, |event_loop| event_loop.state.accepted == 1);
    let (runs, count) = counter();
    echo::create_cron(&mut event_loop, move |_| add_one(&runs));
    let before = event_loop.turns();
    while count.get() < 5 {
        event_loop.turn().unwrap();
    }
    assert_eq!(event_loop.turns() - before, 5, "one turn for each run");
    drop(silent);
}

#[test]
fn no_turn_is_wasted_just_before_a_deadline() {
    const RUNS: usize = 100;
    let mut event_loop = event_loop();
    let (runs, count) = counter();
    fn chain(event_loop: &mut EventLoop<()>, runs: Rc<Cell<usize>>) {
        let odd = Duration::from_micros(300 + 17 * runs.get() as u64);
        event_loop.create_time_event(odd, move |event_loop, _| {
            add_one(&runs);
            if runs.get() < RUNS {
                chain(event_loop, Rc::clone(&runs));
            }
            Next::Done
        });
    }
    chain(&mut event_loop, runs);
    while count.get() < RUNS {
        event_loop.turn().unwrap();
    }
    assert_eq!(event_loop.turns(), RUNS as u64);
}

#[test]
fn sleep_is_rounded_up_to_whole_ticks() {
    let micros = Duration::from_micros;
    let table = [
        (10, micros(0), 10 * MS),
        (10, micros(9_000), MS),
        (10, micros(9_001), MS),
        (10, micros(8_999), 2 * MS),
        (10, micros(10_000) - Duration::from_nanos(1), MS),
        (10, micros(10_000), Duration::ZERO),
        (10, micros(12_345), Duration::ZERO),
        (u64::MAX, Duration::ZERO, Duration::from_millis(u64::MAX)),
    ];
    for (deadline, now, sleep) in table {
        assert_eq!(sleep_until(deadline, now), sleep, "tick {deadline} at {now:?}");
    }
}

#[test]
fn any_delay_is_accepted() {
    let mut event_loop = event_loop();
    let never = event_loop.create_time_event(Duration::MAX, |_, _| unreachable!("it never runs"));
    let (runs, count) = counter();
    event_loop.create_time_event(Duration::ZERO, move |_, _| {
        add_one(&runs);
        if runs.get() < 5 { Next::After(Duration::ZERO) } else { Next::After(Duration::MAX) }
    });
    run_until(&mut event_loop, |_| count.get() == 5);
    assert!(event_loop.delete_time_event(never));
}

fn any_port() -> SocketAddr {
    "127.0.0.1:0".parse().unwrap()
}

#[test]
fn the_cron_keeps_its_rate_under_a_flood() {
    const RUNS: usize = 25;
    const WORK: Duration = Duration::from_millis(20);
    let mut event_loop = EventLoop::new(Service::default()).unwrap();
    let address = echo::start(&mut event_loop, any_port(), HOUR).unwrap();
    let flooders: Vec<_> = (0..6).map(|_| flood(address)).collect();
    run_until(&mut event_loop, |event_loop| event_loop.state.bytes > 1 << 20);

    let runs = Rc::new(RefCell::new(Vec::new()));
    let their_runs = Rc::clone(&runs);
    let control = Control::start();
    let (turns, bytes) = (event_loop.turns(), event_loop.state.bytes);
    let created = Instant::now();
    echo::create_cron(&mut event_loop, move |event_loop| {
        their_runs.borrow_mut().push(created.elapsed());
        // Work that would add up if the next deadline were counted from its end.
        thread::sleep(WORK);
        if their_runs.borrow().len() == RUNS {
            event_loop.stop();
        }
    });
    event_loop.run().unwrap();
    let worst = control.worst();
    let (turns, bytes) = (event_loop.turns() - turns, event_loop.state.bytes - bytes);
    drop(event_loop);
    for flooder in flooders {
        let echoed = flooder.join().unwrap();
        assert!(echoed > 0);
    }

    let runs = runs.take();
    let late: Vec<_> = (1..).zip(&runs).map(|(count, &at)| at.checked_sub(CRON_PERIOD * count)).collect();
    let late: Vec<_> = late.into_iter().map(|late| late.expect("no run is early")).collect();
    // 10 Hz, give or take one run, as far as this machine is on time.
    assert!(late[RUNS - 1] <= CRON_PERIOD + 4 * worst, "{RUNS} runs took {:?}; worst {worst:?}", runs[RUNS - 1]);
    let drift = *late[RUNS - 10..].iter().min().unwrap();
    assert!(drift <= CRON_PERIOD / 2 + worst, "the cron has drifted by {drift:?}; worst {worst:?}");
    assert!(turns > 4 * RUNS as u64 && bytes > 1 << 20, "that was no flood: {turns} turns, {bytes} bytes");
}

/// Sends as fast as it can and checks what comes back, until the server hangs up. Returns how many bytes came back.
fn flood(address: SocketAddr) -> JoinHandle<u64> {
    let mut socket = TcpStream::connect(address).unwrap();
    let mut sender = socket.try_clone().unwrap();
    // A period that is no power of two, so that no piece can be taken for another.
    let pattern: Vec<u8> = (0..251).cycle().take(251 * 256).collect();
    let sent = pattern.clone();
    let sending = thread::spawn(move || while sender.write_all(&sent).is_ok() {});
    thread::spawn(move || {
        let mut buffer = vec![0; 65_536];
        let mut echoed = 0;
        while let Ok(count) = socket.read(&mut buffer) {
            if count == 0 {
                break;
            }
            let offset = echoed as usize % 251;
            for (index, &byte) in buffer[..count].iter().enumerate() {
                assert_eq!(usize::from(byte), (offset + index) % 251, "at byte {echoed} + {index}");
            }
            echoed += count as u64;
        }
        sending.join().unwrap();
        echoed
    })
}

#[test]
fn who_does_not_read_is_not_waited_for() {
    let mut event_loop = EventLoop::new(Service::default()).unwrap();
    let address = echo::start(&mut event_loop, any_port(), HOUR).unwrap();
    let mut mute = TcpStream::connect(address).unwrap();
    mute.set_nonblocking(true).unwrap();
    // Until both directions are full, and have been for a while.
    let mut sent = 0;
    let mut stuck = 0;
    while stuck < 20 {
        match mute.write(&[0; 65_536]) {
            Ok(count) => (sent, stuck) = (sent + count, 0),
            Err(error) => {
                assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
                stuck += 1;
            }
        }
        run_for(&mut event_loop, 2 * MS);
    }
    let before = event_loop.turns();
    run_for(&mut event_loop, 50 * MS);
    let turns = event_loop.turns() - before;
    assert!(turns <= 10, "{turns} turns with nothing to do");

    let mut other = TcpStream::connect(address).unwrap();
    other.set_nonblocking(true).unwrap();
    other.write_all(b"x").unwrap();
    run_until(&mut event_loop, |_| matches!(other.read(&mut [0]), Ok(1)));
    // And when it reads after all, nothing is missing.
    let mut echoed = 0;
    let mut buffer = vec![0; 65_536];
    run_until(&mut event_loop, |_| {
        while let Ok(count) = mute.read(&mut buffer) {
            echoed += count;
        }
        echoed == sent
    });
}

#[test]
#[cfg(target_os = "linux")]
fn without_a_file_left_it_sleeps_and_accepts_when_there_is_one() {
    if !few_files::in_a_process_of_its_own("without_a_file_left_it_sleeps_and_accepts_when_there_is_one") {
        return;
    }
    let mut event_loop = EventLoop::new(Service::default()).unwrap();
    let address = echo::start(&mut event_loop, any_port(), HOUR).unwrap();
    let mut first = TcpStream::connect(address).unwrap();
    run_until(&mut event_loop, |event_loop| event_loop.state.accepted == 1);

    // One file for a client, none for the server.
    let mut files = few_files::take_all();
    files.pop();
    let mut second = TcpStream::connect(address).unwrap();
    run_for(&mut event_loop, 50 * MS);
    let turns = event_loop.turns();
    run_for(&mut event_loop, 500 * MS);
    let turns = event_loop.turns() - turns;
    assert_eq!(event_loop.state.accepted, 1);
    assert!(turns <= 20, "{turns} turns with nothing to do");
    // Meanwhile the others are served.
    first.write_all(b"x").unwrap();
    first.set_nonblocking(true).unwrap();
    run_until(&mut event_loop, |_| matches!(first.read(&mut [0]), Ok(1)));
    // A client that leaves makes room.
    drop(first);
    second.write_all(b"y").unwrap();
    second.set_nonblocking(true).unwrap();
    run_until(&mut event_loop, |_| matches!(second.read(&mut [0]), Ok(1)));
    assert_eq!((event_loop.state.accepted, event_loop.state.clients.len()), (2, 1));
}

#[test]
fn the_idle_are_hung_up_on_and_the_talking_are_not() {
    const TIMEOUT: Duration = Duration::from_millis(1500);
    let mut event_loop = EventLoop::new(Service::default()).unwrap();
    let address = echo::start(&mut event_loop, any_port(), TIMEOUT).unwrap();
    let clients: Vec<_> = (0..30).map(|index| thread::spawn(move || visit(address, index % 3))).collect();
    run_until(&mut event_loop, |event_loop| event_loop.state.accepted == 30 && event_loop.state.clients.is_empty());
    clients.into_iter().for_each(|client| client.join().unwrap());
    assert_eq!(event_loop.state.idle, 20, "the others said goodbye");

    /// Talks for some time, then leaves or falls silent; the third kind never says a word.
    fn visit(address: SocketAddr, kind: usize) {
        let mut spoke = Instant::now();
        let mut socket = TcpStream::connect(address).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        for _ in 0..if kind == 2 { 0 } else { 6 } {
            spoke = Instant::now();
            socket.write_all(b"ping").unwrap();
            let mut answer = [0; 4];
            socket.read_exact(&mut answer).unwrap();
            assert_eq!(&answer, b"ping");
            thread::sleep(100 * MS);
        }
        if kind == 0 {
            socket.shutdown(Shutdown::Write).unwrap();
        }
        assert_eq!(socket.read(&mut [0]).unwrap(), 0);
        assert!(kind == 0 || spoke.elapsed() >= TIMEOUT, "hung up on after {:?}", spoke.elapsed());
    }
}
