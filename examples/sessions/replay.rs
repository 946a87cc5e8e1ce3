//! The sessions of a log: every request is a heartbeat, and the scheduler reports the clients that fell silent.
//!
//! The scheduler runs on its manual clock, which we move to the time of each request. So days
//! of log take milliseconds, and the answer is the same on every run.

use std::error::Error;
use std::io;
use std::rc::Rc;
use std::sync::mpsc::{self, Receiver};
use std::time::{Duration, Instant};

use shardwheel::{ManualClock, Scheduler};

use crate::access_log::{ClientId, Request};

/// A log's times are in seconds: with ticks of one second, ends are exact.
const TICK: Duration = Duration::from_secs(1);

/// A session that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Session<'log> {
    /// Unix seconds: the last request's time and the timeout.
    pub(crate) end: i64,
    pub(crate) client: &'log [u8],
    pub(crate) requests: u64,
}

/// Replays `requests`, which must be in the order of time, and gives every session to `ended` when it expires. Returns
/// how many there were.
///
/// # Errors
/// What `ended` returns, and a scheduler that cannot be built or breaks its promises.
pub(crate) fn replay<'log>(
    clients: &'log [Rc<[u8]>],
    requests: impl IntoIterator<Item = Request>,
    timeout: Duration,
    mut ended: impl FnMut(&Session<'log>) -> io::Result<()>,
) -> Result<u64, Box<dyn Error>> {
    let mut requests = requests.into_iter().peekable();
    let Some(&(first, _)) = requests.peek() else {
        return Ok(0);
    };
    let mut replay = Replay::new(clients, first, timeout)?;
    for (time, client) in requests {
        replay.advance_to(time, &mut ended)?;
        replay.heartbeat(client)?;
    }
    replay.finish(&mut ended)
}

/// What is known of a client's session while it is open, and until it is reported.
#[derive(Clone, Copy, Default)]
struct Open {
    last_request: i64,
    requests: u64,
}

struct Replay<'log> {
    clients: &'log [Rc<[u8]>],
    open: Vec<Open>,
    timeout: Duration,
    scheduler: Scheduler<ClientId>,
    clock: ManualClock,
    /// The clients whose timers have fired.
    expired: Receiver<ClientId>,
    /// The moment on the scheduler's clock that is `origin` in Unix seconds.
    origin_instant: Instant,
    origin: i64,
    now: i64,
    sessions: u64,
}

impl<'log> Replay<'log> {
    fn new(clients: &'log [Rc<[u8]>], origin: i64, timeout: Duration) -> Result<Self, Box<dyn Error>> {
        let (sender, expired) = mpsc::channel();
        let (scheduler, clock) = Scheduler::builder().tick(TICK).build_manual(move |client: &ClientId, ()| {
            // The receiver outlives the scheduler's last use; otherwise nothing is left to report to.
            let _ = sender.send(*client);
        })?;
        Ok(Self {
            clients,
            open: vec![Open::default(); clients.len()],
            timeout,
            scheduler,
            origin_instant: clock.now(),
            clock,
            expired,
            origin,
            now: origin,
            sessions: 0,
        })
    }

    /// Moves the clock on to `time`; every session that ends by then, `time` included, is over.
    fn advance_to(
        &mut self,
        time: i64,
        ended: &mut impl FnMut(&Session<'log>) -> io::Result<()>,
    ) -> Result<(), Box<dyn Error>> {
        if time == self.now {
            return Ok(());
        }
        let before = self.now;
        self.clock.advance(seconds(time - before));
        self.now = time;
        let mut sessions: Vec<_> = self.expired.try_iter().map(|id| self.session(id)).collect();
        // Sessions of one second end in no promised order.
        sessions.sort_unstable();
        for session in &sessions {
            if session.end <= before || session.end > time {
                return Err("the scheduler expired a session at the wrong time".into());
            }
            ended(session)?;
        }
        self.sessions += sessions.len() as u64;
        Ok(())
    }

    /// A request of `client`, now.
    fn heartbeat(&mut self, client: ClientId) -> Result<(), Box<dyn Error>> {
        let deadline = self.origin_instant + seconds(self.now - self.origin) + self.timeout;
        let open = &mut self.open[client.0];
        // The answer is exact: true means that the session is open, so nothing else has to record that.
        if !self.scheduler.reschedule_at(&client, deadline) {
            self.scheduler.schedule_at(client, (), deadline)?;
            open.requests = 0;
        }
        open.requests += 1;
        open.last_request = self.now;
        Ok(())
    }

    /// Lets every session that is still open run to its end.
    fn finish(mut self, ended: &mut impl FnMut(&Session<'log>) -> io::Result<()>) -> Result<u64, Box<dyn Error>> {
        let last_end = self.now + self.timeout_seconds();
        self.advance_to(last_end, ended)?;
        if !self.scheduler.is_empty() {
            return Err("the scheduler did not expire every session".into());
        }
        Ok(self.sessions)
    }

    fn session(&self, client: ClientId) -> Session<'log> {
        let open = self.open[client.0];
        Session {
            end: open.last_request + self.timeout_seconds(),
            client: &self.clients[client.0],
            requests: open.requests,
        }
    }

    fn timeout_seconds(&self) -> i64 {
        i64::try_from(self.timeout.as_secs()).unwrap_or(i64::MAX)
    }
}

/// `count` is never negative: requests come in the order of time.
fn seconds(count: i64) -> Duration {
    Duration::from_secs(count.unsigned_abs())
}
