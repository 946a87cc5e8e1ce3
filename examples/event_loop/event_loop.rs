//! A single-threaded event loop in the shape of Redis' `ae`: file events from a poll, time events from a timing wheel.
//!
//! One turn:
//! 1. the poll sleeps, no longer than until the next time event;
//! 2. the file events that are ready run;
//! 3. the time events that are due run, earliest first.
//!
//! Handlers get the loop and may create and delete events of both kinds, their own included: a deleted event never runs
//! again, even if it was ready or due in this very turn. A handler's return value says how its event goes on.
//!
//! It differs from `ae` in two ways. The wheel finds the nearest time event, without a search through a list. And a
//! periodic event's next deadline counts from the previous one, not from now: however late a run comes, the following
//! ones do not drift. Missed runs are made up for, one per turn, so that file events are served between them.

use std::collections::HashMap;
use std::io;
use std::time::{Duration, Instant};

use mio::event::Source;
use mio::{Events, Interest, Poll, Token};
use shardwheel::wheel::{Key, Wheel};

/// The most file events that one turn runs: it bounds what time events have to wait for.
const EVENTS_MAX: usize = 256;
/// The unit of the wheel, and of what systems let a poll sleep.
const TICK: Duration = Duration::from_millis(1);

/// Never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct FileId(usize);

/// Never used twice, and the same for all runs of a periodic event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct TimeId(usize);

/// How a time event goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// Not at all.
    Done,
    /// Once more, this long after the deadline of this run.
    After(Duration),
}

type TimeHandler<S> = Box<dyn FnMut(&mut EventLoop<S>, TimeId) -> Next>;

struct TimeEvent<S> {
    key: Key,
    deadline: u64,
    handler: TimeHandler<S>,
}

/// A source and its handler, whatever their types.
trait FileEvent<S> {
    fn ready(&mut self, event_loop: &mut EventLoop<S>, id: FileId) -> Option<Interest>;
    fn source(&mut self) -> &mut dyn Source;
}

impl<S, F, H> FileEvent<S> for (F, H)
where
    F: Source,
    H: FnMut(&mut EventLoop<S>, FileId, &mut F) -> Option<Interest>,
{
    fn ready(&mut self, event_loop: &mut EventLoop<S>, id: FileId) -> Option<Interest> {
        (self.1)(event_loop, id, &mut self.0)
    }

    fn source(&mut self) -> &mut dyn Source {
        &mut self.0
    }
}

/// An event loop, and the state that its handlers share.
pub(crate) struct EventLoop<S> {
    pub(crate) state: S,
    poll: Poll,
    events: Events,
    files: Table<Box<dyn FileEvent<S>>>,
    times: Table<TimeEvent<S>>,
    /// The deadlines, in ticks since `started`.
    wheel: Wheel<TimeId>,
    started: Instant,
    turns: u64,
    is_stopped: bool,
}

impl<S> EventLoop<S> {
    /// # Errors
    /// The system has no poll left for us.
    pub(crate) fn new(state: S) -> io::Result<Self> {
        Ok(Self {
            state,
            poll: Poll::new()?,
            events: Events::with_capacity(EVENTS_MAX),
            files: Table::new(),
            times: Table::new(),
            wheel: Wheel::new(),
            started: Instant::now(),
            turns: 0,
            is_stopped: false,
        })
    }

    /// Calls `handler` whenever `source` is ready for `interest`, as long as that stays so. The handler returns what to
    /// wait for next; `None` deletes the event.
    ///
    /// # Errors
    /// The system cannot watch this source.
    pub(crate) fn create_file_event<F: Source + 'static>(
        &mut self,
        mut source: F,
        interest: Interest,
        handler: impl FnMut(&mut Self, FileId, &mut F) -> Option<Interest> + 'static,
    ) -> io::Result<FileId> {
        let id = self.files.next_id();
        self.poll.registry().register(&mut source, Token(id), interest)?;
        self.files.insert(Box::new((source, handler)));
        Ok(FileId(id))
    }

    /// Drops an event's source and handler; false if it was gone already. If the handler itself calls this, they are
    /// dropped when it returns.
    pub(crate) fn delete_file_event(&mut self, id: FileId) -> bool {
        let removed = self.files.remove(id.0);
        let existed = removed.is_some();
        self.deregister(removed.flatten());
        existed
    }

    /// Calls `handler` once, `delay` from now, and then as its return value says.
    pub(crate) fn create_time_event(
        &mut self,
        delay: Duration,
        handler: impl FnMut(&mut Self, TimeId) -> Next + 'static,
    ) -> TimeId {
        let id = TimeId(self.times.next_id());
        let deadline = ticks_up(self.started.elapsed().saturating_add(delay));
        let key = self.wheel.insert(deadline, id);
        self.times.insert(TimeEvent { key, deadline, handler: Box::new(handler) });
        id
    }

    /// Drops an event's handler; false if it was gone already. If the handler itself calls this, it is dropped when it
    /// returns.
    pub(crate) fn delete_time_event(&mut self, id: TimeId) -> bool {
        let removed = self.times.remove(id.0);
        if let Some(Some(event)) = &removed {
            self.wheel.remove(event.key);
        }
        removed.is_some()
    }

    /// Ends `run` after this turn.
    pub(crate) fn stop(&mut self) {
        self.is_stopped = true;
    }

    /// Turns made so far, which is how often the poll has slept.
    pub(crate) fn turns(&self) -> u64 {
        self.turns
    }

    /// Turns until it is stopped.
    ///
    /// # Errors
    /// Those of `turn`.
    pub(crate) fn run(&mut self) -> io::Result<()> {
        while !self.is_stopped {
            self.turn()?;
        }
        Ok(())
    }

    /// Sleeps until there is something to do, and does it.
    ///
    /// # Errors
    /// The poll's.
    pub(crate) fn turn(&mut self) -> io::Result<()> {
        self.turns += 1;
        let sleep = self.wheel.next_expiry().map(|deadline| sleep_until(deadline, self.started.elapsed()));
        match self.poll.poll(&mut self.events, sleep) {
            // A signal: no file is ready, but a time event may be due.
            Err(error) if error.kind() == io::ErrorKind::Interrupted => self.events.clear(),
            result => result?,
        }
        self.run_file_events();
        self.run_time_events();
        Ok(())
    }

    fn run_file_events(&mut self) {
        let ready: Vec<_> = self.events.iter().map(|event| event.token().0).collect();
        for id in ready {
            // It may have been deleted in this turn.
            let Some(mut event) = self.files.take(id) else { continue };
            let interest = event.ready(self, FileId(id));
            let goes_on =
                self.files.is_running(id) && interest.is_some_and(|interest| self.watch(&mut *event, id, interest));
            if goes_on {
                self.files.put_back(id, event);
            } else {
                self.files.remove(id);
                self.deregister(Some(event));
            }
        }
    }

    /// The poll reports when a file becomes ready; once registered again, it reports one that still is. So a handler
    /// need not read to the end, and a peer that never stops cannot hold up the loop.
    fn watch(&self, event: &mut dyn FileEvent<S>, id: usize, interest: Interest) -> bool {
        self.poll.registry().reregister(event.source(), Token(id), interest).is_ok()
    }

    fn deregister(&self, event: Option<Box<dyn FileEvent<S>>>) {
        if let Some(mut event) = event {
            // It is about to be dropped, and the system forgets a closed file by itself.
            let _ = self.poll.registry().deregister(event.source());
        }
    }

    fn run_time_events(&mut self) {
        let mut due = Vec::new();
        self.wheel.advance(ticks_down(self.started.elapsed()), |id| due.push(id));
        for TimeId(id) in due {
            // It may have been deleted in this turn.
            let Some(mut event) = self.times.take(id) else { continue };
            let next = (event.handler)(self, TimeId(id));
            match next {
                Next::After(period) if self.times.is_running(id) => {
                    // At least a tick, so that time passes.
                    event.deadline = event.deadline.saturating_add(ticks_up(period).max(1));
                    event.key = self.wheel.insert(event.deadline, TimeId(id));
                    self.times.put_back(id, event);
                }
                _ => drop(self.times.remove(id)),
            }
        }
    }
}

/// How long a poll may sleep at `now` for a time event at the tick `deadline`: in whole ticks, rounded up. Less than a
/// tick would be no sleep at all on systems that count in milliseconds, and the loop would spin through it.
pub(crate) fn sleep_until(deadline: u64, now: Duration) -> Duration {
    let left = ticks_to_duration(deadline).saturating_sub(now);
    ticks_to_duration(ticks_up(left))
}

/// A deadline's tick: rounded up, so that nothing is early.
fn ticks_up(time: Duration) -> u64 {
    u64::try_from(time.as_nanos().div_ceil(TICK.as_nanos())).unwrap_or(u64::MAX)
}

/// The last tick that has passed: rounded down, so that nothing is early.
fn ticks_down(time: Duration) -> u64 {
    u64::try_from(time.as_nanos() / TICK.as_nanos()).unwrap_or(u64::MAX)
}

fn ticks_to_duration(ticks: u64) -> Duration {
    Duration::from_millis(ticks)
}

/// Events by numbers that are never used twice.
///
/// While an event runs, its place is kept but empty. If the place is gone afterwards, the event was deleted.
struct Table<E> {
    places: HashMap<usize, Option<E>>,
    next_id: usize,
}

impl<E> Table<E> {
    fn new() -> Self {
        Self { places: HashMap::new(), next_id: 0 }
    }

    /// The number that `insert` will give.
    fn next_id(&self) -> usize {
        self.next_id
    }

    fn insert(&mut self, event: E) {
        self.places.insert(self.next_id, Some(event));
        self.next_id += 1;
    }

    /// The event to be run; `None` if it was deleted.
    fn take(&mut self, id: usize) -> Option<E> {
        self.places.get_mut(&id)?.take()
    }

    /// Whether the event that was taken has not been deleted since.
    fn is_running(&self, id: usize) -> bool {
        self.places.contains_key(&id)
    }

    fn put_back(&mut self, id: usize, event: E) {
        self.places.insert(id, Some(event));
    }

    /// `Some(None)` for one that is running.
    fn remove(&mut self, id: usize) -> Option<Option<E>> {
        self.places.remove(&id)
    }
}
