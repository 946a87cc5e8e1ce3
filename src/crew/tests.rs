//! Turns of the workers' threads, taken one by one on a manual clock.

use super::*;
use crate::Scheduler;
use crate::builder::{Builder, Parts};
use crate::callback::Callback;
use crate::callback_thread::CallbackThread;
use crate::clock::Clock;
use crate::executor::Executor;
use crate::fanout::CallbackThreads;
use crate::shard::Tick;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::mpsc;
use std::thread;
use std::time::Instant;

const TICK: Duration = Duration::from_millis(1);
const PATIENCE: Duration = Duration::from_secs(60);

type Timers = Scheduler<u64, ()>;

/// Its callbacks run within `act`.
fn crew(shard_count: usize, clock: Clock) -> (Timers, Crew<u64, ()>) {
    crew_of(shard_count, clock, Executor::Inline, Callback::Plain(Box::new(|_, ()| {})), |_| None)
}

/// Its callbacks go to a pool, which may not keep up.
fn crew_with_pool(shard_count: usize) -> (Timers, Crew<u64, ()>) {
    let callback = Callback::Plain(Box::new(|_: &u64, ()| {}));
    crew_of(shard_count, Clock::manual(TICK, Tick(0)), pool(), callback, |_| None)
}

fn pool() -> Executor {
    Executor::Rayon(Arc::new(rayon::ThreadPoolBuilder::new().num_threads(1).build().expect("one more thread")))
}

fn crew_of(
    shard_count: usize,
    clock: Clock,
    executor: Executor,
    callback: Callback<u64, ()>,
    lane: impl Fn(usize) -> Option<Lane>,
) -> (Timers, Crew<u64, ()>) {
    let builder: Builder<u64, ()> = Scheduler::builder().shards(shard_count);
    let Parts { core, runner, hasher, .. } = builder.into_parts(clock, executor, callback);
    let lane = lane(shard_count).map(Arc::new);
    let worker = |number| {
        let first = lane.clone().map(|lane| {
            let own = CallbackThread::start("own".to_owned()).expect("one more thread");
            CallbackThreads { own, lane: Some(lane) }
        });
        Worker::new(Arc::clone(&core), number, first)
    };
    let crew = Crew::new(Arc::clone(&core), (0..shard_count).map(worker).collect(), true, lane.clone());
    (Scheduler::new(core, runner, hasher, Vec::new()), crew)
}

/// The keys of a shard.
fn keys(timers: &Timers, shard_number: usize) -> impl Iterator<Item = u64> {
    (0..).filter(move |key| timers.shard_of(key) == shard_number)
}

fn start(timers: &Timers, shard_number: usize, count: usize, delay: Duration) {
    keys(timers, shard_number).take(count).for_each(|key| assert!(timers.schedule(key, delay).is_ok()));
}

impl Crew<u64, ()> {
    fn set_clock(&self, now: Duration) {
        self.core.clock.set(Nanos(0).plus(now));
    }

    /// Until when the thread may sleep, after some turns.
    fn rests(&self, number: usize, duty: &mut Duty) -> Nanos {
        (0..99).find_map(|_| self.turn(number, duty, None)).expect("it comes to rest")
    }

    fn tickets(&self) -> Vec<u32> {
        self.core.shards.iter().map(|shard| shard.alarm.ticket()).collect()
    }

    /// Lets it look as if the executor kept up with a shard, or not.
    fn keeps_up(&self, number: usize, does: bool) {
        self.report(number).waiting.store(if does { 0 } else { 1 << 20 }, Relaxed);
    }

    fn fired(&self, number: usize) -> usize {
        lock(&self.workers[number]).as_ref().expect("it is not closed").fired()
    }
}

fn off() -> Duty {
    Duty::new(false)
}

fn after(duration: Duration) -> Nanos {
    Nanos(0).plus(duration)
}

/// A lookout that gets up at the first tick.
fn on_duty(timers: &Timers, crew: &Crew<u64, ()>) -> Duty {
    on_duty_from(timers, crew, Duration::ZERO)
}

/// The same, at the next tick.
fn on_duty_from(timers: &Timers, crew: &Crew<u64, ()>, now: Duration) -> Duty {
    let mut duty = Duty::new(true);
    start(timers, 0, 1, TICK);
    assert_eq!(crew.rests(0, &mut duty), after(now + TICK));
    duty
}

#[test]
fn the_lookout_gets_up_for_shards_that_are_due_soon() {
    let (timers, crew) = crew(3, Clock::manual(TICK, Tick(0)));
    let mut duty = on_duty(&timers, &crew);
    start(&timers, 1, 1, 3 * TICK);
    start(&timers, 2, 1, Duration::from_secs(1));
    assert_eq!(crew.rests(1, &mut off()), after(3 * TICK + GRACE), "it relies on the lookout");
    assert_eq!(crew.rests(2, &mut off()), after(Duration::from_secs(1)), "it does not: that is far away");
    let tickets = crew.tickets();
    crew.set_clock(TICK);
    assert_eq!(crew.rests(0, &mut duty), after(3 * TICK));
    crew.set_clock(3 * TICK);
    assert!(crew.rests(0, &mut duty) > after(PATIENCE), "the rest is for the others");
    assert_eq!(([0, 1, 2].map(|number| crew.fired(number)), crew.tickets()), ([1, 1, 0], tickets));
    assert_eq!(duty.turns, 3);
}

#[test]
fn a_thread_relies_on_no_lookout_that_may_come_too_late() {
    let (timers, crew) = crew(2, Clock::manual(TICK, Tick(0)));
    let mut duty = Duty::new(true);
    start(&timers, 0, 1, 3 * TICK);
    assert_eq!(crew.rests(0, &mut duty), after(3 * TICK));
    start(&timers, 1, 1, 2 * TICK);
    assert_eq!(crew.rests(1, &mut off()), after(2 * TICK));
    assert_eq!(crew.rests(0, &mut duty), after(3 * TICK));
}

#[test]
fn a_lookout_with_too_much_to_do_leaves_it_to_the_others() {
    let (timers, crew) = crew(3, Clock::manual(TICK, Tick(0)));
    let mut duty = on_duty(&timers, &crew);
    let mut rounds = 0;
    while duty.is_on {
        rounds += 1;
        assert!(rounds < 10, "it does not resign");
        start(&timers, 0, 1, TICK);
        assert_eq!(crew.rests(0, &mut duty), after(rounds * TICK));
        for number in 1..3 {
            start(&timers, number, 10 * LIGHT, TICK);
            assert_eq!(crew.rests(number, &mut off()), after(rounds * TICK + number as u32 * GRACE));
        }
        let before = crew.tickets();
        crew.set_clock(rounds * TICK);
        crew.rests(0, &mut duty);
        assert_eq!([1, 2].map(|number| crew.fired(number) as u32), [10 * LIGHT as u32 * rounds; 2]);
        let told = [1, 2].map(|number| before[number] != crew.tickets()[number]);
        assert_eq!(told, [!duty.is_on; 2], "the other threads are told");
    }
    assert!(rounds > 1, "one round does not count for much");
    let next = (rounds + 1) * TICK;
    (0..2).for_each(|number| start(&timers, number, 1, TICK));
    assert_eq!([crew.rests(0, &mut duty), crew.rests(1, &mut off())], [after(next); 2], "there is none");
    assert_eq!(duty.calm, 2 * CALM);
    // Counted with the turn above.
    for _ in 1..2 * CALM {
        assert!(!duty.is_on);
        crew.rests(0, &mut duty);
    }
    assert!(duty.is_on, "there was little to do for long enough");
    assert_eq!(crew.rests(1, &mut off()), after(next + GRACE));
}

/// The other thread relies on the lookout, and is told when that resigns: if `turn` is its next one.
fn assert_resigns(timers: &Timers, crew: &Crew<u64, ()>, duty: &mut Duty, turn: impl Fn(&mut Duty)) {
    start(timers, 1, 1, TICK);
    assert_eq!(crew.rests(1, &mut off()), after(TICK + GRACE));
    let before = crew.tickets()[1];
    assert!(duty.is_on);
    turn(duty);
    assert!(!duty.is_on && before != crew.tickets()[1]);
}

#[test]
fn a_lookout_whose_own_shard_is_never_done_resigns() {
    let (timers, crew) = crew(2, Clock::manual(TICK, Tick(0)));
    let mut duty = on_duty(&timers, &crew);
    start(&timers, 0, 100_000, TICK);
    assert_eq!(crew.rests(0, &mut duty), after(TICK));
    assert_resigns(&timers, &crew, &mut duty, |duty| {
        crew.set_clock(TICK);
        let turns = (0..99).take_while(|_| duty.is_on && crew.turn(0, duty, None).is_none());
        assert!(turns.count() > 1, "not at once");
    });
}

/// Whether the lookout has seen to another shard after one turn, if its own shard has `own` hints that are due, and
/// `stale` ones to sweep.
fn sees_to_another_meanwhile(own: usize, stale: usize) -> bool {
    let (timers, crew) = crew(2, Clock::manual(TICK, Tick(0)));
    let stale = || keys(&timers, 0).skip(own).take(stale);
    stale().for_each(|key| assert!(timers.schedule(key, PATIENCE).is_ok()));
    start(&timers, 0, own, TICK);
    let mut duty = Duty::new(true);
    assert_eq!(crew.rests(0, &mut duty), after(TICK));
    start(&timers, 1, 1, TICK);
    assert_eq!(crew.rests(1, &mut off()), after(TICK + GRACE));
    stale().for_each(|key| assert!(timers.cancel(&key).is_some()));
    crew.set_clock(TICK);
    assert_eq!(crew.turn(0, &mut duty, None), None, "it has more to do");
    let is_seen_to = crew.fired(1) == 1;
    crew.rests(0, &mut duty);
    assert!(duty.is_on);
    is_seen_to
}

#[test]
fn a_lookout_whose_own_shard_is_not_done_sees_to_the_others_meanwhile() {
    assert!(sees_to_another_meanwhile(3000, 0), "what is due");
    assert!(sees_to_another_meanwhile(1, 20_000), "what is stale");
}

#[test]
fn a_lookout_that_goes_on_is_there() {
    let (timers, crew) = crew(2, Clock::manual(TICK, Tick(0)));
    let mut duty = on_duty(&timers, &crew);
    start(&timers, 0, 3000, TICK);
    assert_eq!(crew.rests(0, &mut duty), after(TICK));
    crew.set_clock(2 * TICK);
    assert_eq!(crew.turn(0, &mut duty, None), None, "it has more to do");
    crew.set_clock(2 * TICK + MISSING);
    start(&timers, 1, 1, TICK);
    assert_eq!(crew.rests(1, &mut off()), after(3 * TICK + MISSING + GRACE), "it relies on the lookout");
}

#[test]
fn a_round_takes_no_longer_than_a_part_of_a_tick() {
    let ends = |tick| crew(2, Clock::manual(tick, Tick(0))).1.round().ends;
    let ticks = [TICK / 100, TICK / 2, TICK, 100 * TICK];
    assert_eq!(ticks.map(ends), [ROUND_MIN, TICK / 6, ROUND_MAX, ROUND_MAX].map(after));
}

#[test]
fn a_lookout_that_gets_up_late_resigns() {
    let (timers, crew) = crew(2, Clock::manual(TICK, Tick(0)));
    let mut duty = on_duty(&timers, &crew);
    let slept = || Some(Slept { until: after(TICK), is_called: false });
    assert_resigns(&timers, &crew, &mut duty, |duty| {
        crew.set_clock(TICK + LATE);
        crew.turn(0, duty, slept());
        assert!(duty.is_on, "a little late is what it is always");
        start(&timers, 1, 1, TICK);
        assert_eq!(crew.rests(1, &mut off()), after(2 * TICK + LATE));
        crew.set_clock(TICK + LATE + Duration::from_nanos(1));
        crew.turn(0, duty, slept());
    });
    (0..3).for_each(|_| _ = crew.rests(0, &mut duty));
    assert!(duty.turns > 3);
    crew.turn(0, &mut duty, slept());
    assert_eq!(duty.turns, 1, "that was no calm turn, but one more has begun");
}

#[test]
fn a_lookout_that_is_stopped_while_it_is_up_resigns() {
    let (timers, crew) = crew(2, Clock::manual(TICK, Tick(0)));
    let mut duty = on_duty(&timers, &crew);
    start(&timers, 1, 1, TICK);
    assert_eq!(crew.rests(1, &mut off()), after(TICK + GRACE));
    let _getting_up = lock(&crew.workers[1]);
    crew.set_clock(TICK + LATE);
    crew.rests(0, &mut duty);
    assert!(duty.is_on);
    crew.set_clock(TICK + LATE + Duration::from_nanos(1));
    crew.rests(0, &mut duty);
    assert!(!duty.is_on);
}

/// How many rounds it takes until the lookout has resigned: so many hints are due in each, of its own shard and of
/// another.
fn rounds_with(own: usize, others: usize) -> usize {
    let (timers, crew) = crew(2, Clock::manual(TICK, Tick(0)));
    let mut duty = on_duty(&timers, &crew);
    let stays = |&round: &u32| {
        start(&timers, 0, own, TICK);
        crew.rests(0, &mut duty);
        start(&timers, 1, others, TICK);
        crew.rests(1, &mut off());
        crew.set_clock(round * TICK);
        crew.rests(0, &mut duty);
        duty.is_on
    };
    1 + (1..20).take_while(stays).count()
}

#[test]
fn a_lookout_resigns_if_its_own_shard_and_the_others_have_too_much_together() {
    assert_eq!([(5 * LIGHT, 1), (1, 4 * LIGHT)].map(|(own, others)| rounds_with(own, others)), [20; 2]);
    assert!((2..10).contains(&rounds_with(5 * LIGHT, 4 * LIGHT)));
}

#[test]
fn a_lookout_whose_own_worker_takes_too_long_resigns() {
    let (timers, crew) = crew(2, Clock::manual(TICK, Tick(0)));
    let mut duty = on_duty(&timers, &crew);
    start(&timers, 0, 10_000, TICK);
    assert_eq!(crew.rests(0, &mut duty), after(TICK));
    assert_resigns(&timers, &crew, &mut duty, |duty| {
        crew.set_clock(TICK + LATE + Duration::from_nanos(1));
        assert_eq!(crew.turn(0, duty, None), None);
    });
}

#[test]
fn a_lookout_whose_executor_does_not_keep_up_resigns() {
    let (timers, crew) = crew_with_pool(2);
    let mut duty = on_duty(&timers, &crew);
    assert_resigns(&timers, &crew, &mut duty, |duty| {
        crew.keeps_up(0, false);
        assert_eq!(crew.turn(0, duty, None), None);
    });
}

#[test]
fn a_lookout_that_keeps_giving_shards_back_resigns() {
    let (timers, crew) = crew_with_pool(24);
    let mut duty = on_duty(&timers, &crew);
    let rounds = (1..20).take_while(|&round| {
        start(&timers, 0, 2 * LIGHT, TICK);
        crew.rests(0, &mut duty);
        for number in 1..24 {
            crew.keeps_up(number, true);
            start(&timers, number, 1, TICK);
            crew.rests(number, &mut off());
            crew.keeps_up(number, false);
        }
        crew.set_clock(round * TICK);
        crew.rests(0, &mut duty);
        duty.is_on
    });
    assert!((1..15).contains(&rounds.count()));
}

#[test]
fn a_lookout_comes_back_when_its_own_shard_has_little_enough_to_do() {
    let comes_back = |own| {
        let (timers, crew) = crew(2, Clock::manual(TICK, Tick(0)));
        let mut duty = off();
        for round in 1..=CALM {
            start(&timers, 0, own, TICK);
            crew.rests(0, &mut duty);
            crew.set_clock(round * TICK);
            crew.rests(0, &mut duty);
        }
        duty.is_on
    };
    assert!(comes_back(LIGHT) && !comes_back(LIGHT + 1));
}

#[test]
fn a_lookout_that_keeps_resigning_takes_longer_to_come_back() {
    let mut duty = Duty::new(true);
    let mut calms = Vec::new();
    let mut serve = |turns| {
        duty.turns = turns;
        duty.end();
        calms.push(duty.calm);
        assert!(!duty.is_on && duty.turns == 0);
        duty.begin();
        assert!(duty.is_on && duty.turns == 0);
    };
    (0..10).for_each(|_| serve(PROVEN - 1));
    serve(PROVEN);
    assert_eq!(calms[..3], [2 * CALM, 4 * CALM, 8 * CALM]);
    assert_eq!(calms[8..], [CALM_MAX, CALM_MAX, CALM]);
}

#[test]
fn a_shard_with_too_much_due_at_once_is_left_to_its_own_thread() {
    let (timers, crew) = crew(2, Clock::manual(TICK, Tick(0)));
    let mut duty = on_duty(&timers, &crew);
    let all = 10_000;
    start(&timers, 1, all, TICK);
    let before = crew.tickets()[1];
    assert_eq!(crew.rests(1, &mut off()), after(TICK + GRACE));
    crew.set_clock(TICK);
    assert!(crew.rests(0, &mut duty) > after(PATIENCE), "that is not the lookout's any more");
    assert!((1..all).contains(&crew.fired(1)) && before != crew.tickets()[1]);
    crew.rests(1, &mut off());
    assert_eq!(crew.fired(1), all);
}

#[test]
fn the_lookout_leaves_a_shard_alone_whose_thread_is_up_or_was_up_meanwhile() {
    let (timers, crew) = crew(2, Clock::manual(TICK, Tick(0)));
    start(&timers, 1, 1, TICK);
    assert_eq!(crew.rests(1, &mut off()), after(TICK), "there is no lookout yet");
    crew.set_clock(TICK);
    let lookout = crew.lookout.as_ref().expect("there are two shards");
    let round = Round { due_by: after(TICK), ends: after(TICK) };
    assert!(crew.see_to(lookout, 1, &round, &mut Duty::new(true)), "it does not rely on the lookout");
    let mut duty = on_duty_from(&timers, &crew, TICK);
    start(&timers, 1, 1, TICK);
    assert_eq!(crew.rests(1, &mut off()), after(2 * TICK + GRACE));
    crew.set_clock(2 * TICK);
    let getting_up = lock(&crew.workers[1]);
    assert_eq!(crew.rests(0, &mut duty), after(2 * TICK + NAP));
    drop(getting_up);
    let round = Round { due_by: after(2 * TICK), ends: after(TICK) };
    assert!(!crew.see_to(lookout, 1, &round, &mut duty), "its time is over");
    assert_eq!((duty.looks, crew.fired(1)), (0, 0));
}

#[test]
fn a_worker_helps_with_lines_before_it_rests() {
    let (timers, crew) = crew(1, Clock::manual(TICK, Tick(0)));
    let (growth, shard) = (&crew.core.growth, &crew.core.shards[0]);
    (0..20_000).for_each(|key| assert!(timers.schedule(key, PATIENCE).is_ok()));
    assert!((0..100).any(|_| growth.step(0, shard) && growth.wants_help(0, shard)));
    crew.rests(0, &mut off());
    assert!(!growth.wants_help(0, shard));
}

#[test]
fn a_lookout_that_does_not_come_is_missed() {
    let (timers, crew) = crew(4, Clock::manual(TICK, Tick(0)));
    on_duty(&timers, &crew);
    let until = |number: usize| crew.rests(number, &mut off());
    for number in 1..4 {
        start(&timers, number, 1, number as u32 * TICK);
        assert_eq!(until(number), after(number as u32 * (TICK + GRACE)));
    }
    let before = crew.tickets();
    let told = || [2, 3].map(|number| before[number] != crew.tickets()[number]);
    let times = [TICK + MISSING, 2 * TICK + MISSING];
    let [first, second] = times.map(|time| {
        crew.set_clock(time);
        until(1);
        start(&timers, 1, 1, TICK);
        (until(1), told())
    });
    assert_eq!(first, (after(times[1] + GRACE), [false; 2]), "it may be about to come");
    assert_eq!(second, (after(times[1] + TICK), [true; 2]), "nobody relies on it any more");
    assert_eq!(crew.fired(1), 2);
}

/// Whether a thread that gets up at `now` sleeps on, although a caller has just brought a nearer deadline. The lookout
/// has seen to its shard once, so that this is due after `due` ticks, and means to sleep for `lookouts` ticks; or it is
/// about to say that it has resigned.
fn sleeps_on(due: u32, lookouts: Option<u32>, now: Duration, is_called: bool) -> bool {
    let (timers, crew) = crew(2, Clock::manual(TICK, Tick(0)));
    let (mut duty, lookout) = (on_duty(&timers, &crew), crew.lookout.as_ref().expect("there are two shards"));
    let start_another = |nth: usize, delay| {
        let key = keys(&timers, 1).nth(nth).expect("there are such keys");
        assert!(timers.schedule(key, delay).is_ok());
    };
    start_another(0, TICK);
    start_another(1, due * TICK);
    assert_eq!(crew.rests(1, &mut off()), after(TICK + GRACE));
    let lookouts_due = lookouts.unwrap_or(due);
    start(&timers, 0, 1, lookouts_due * TICK);
    crew.set_clock(TICK);
    assert_eq!(crew.rests(0, &mut duty), after(lookouts_due * TICK));
    if lookouts.is_none() {
        lookout.resign(|_| {});
    }
    crew.set_clock(now);
    start_another(2, TICK);
    let until = crew.turn(1, &mut off(), Some(Slept { until: after(now), is_called }));
    let has_acted = lookout.due(1) != Some(after(due * TICK).0);
    assert!(has_acted || until == Some(after(due * TICK + GRACE)));
    !has_acted
}

#[test]
fn a_thread_that_gets_up_in_vain_sleeps_on() {
    let (up, near) = (TICK + GRACE, 11 + NEAR.as_millis() as u32);
    assert!(sleeps_on(14, Some(14), up, false) && sleeps_on(near, Some(near), up, false));
    assert!(!sleeps_on(14, Some(14), up, true), "it was called");
    assert!(!sleeps_on(14, Some(14), 14 * TICK, false), "the lookout has not seen to the shard");
    assert!(!sleeps_on(14, Some(5), up, false), "the lookout is missing");
    assert!(!sleeps_on(14, None, up, false), "there is none any more");
    assert!(!sleeps_on(near + 1, Some(near), up, false), "that is far away");
}

#[test]
fn there_is_no_lookout_for_one_shard_or_for_workers_that_run_user_code() {
    let (_timers, single) = crew(1, Clock::manual(TICK, Tick(0)));
    let (_timers, several) = crew(2, Clock::manual(TICK, Tick(0)));
    let workers = several.workers.iter().filter_map(|worker| lock(worker).take()).collect();
    let run_user_code = Crew::new(Arc::clone(&several.core), workers, false, None);
    assert!(single.lookout.is_none() && several.lookout.is_some() && run_user_code.lookout.is_none());
}

#[test]
fn one_thread_runs_what_the_lookout_gathers() {
    let (sender, names) = mpsc::channel();
    let callback = move |_: &u64, ()| {
        let name = thread::current().name().unwrap_or_default().to_owned();
        sender.send(name).expect("the test listens");
    };
    let (timers, crew) =
        crew_of(3, Clock::manual(TICK, Tick(0)), pool(), Callback::Plain(Box::new(callback)), |shard_count| {
            Some(Lane::start(shard_count, "lane".to_owned()).expect("one more thread"))
        });
    let mut duty = Duty::new(true);
    let mut now = Duration::ZERO;
    // If this thread is held up meanwhile, some are left to their shards' own threads. And the lane's thread need
    // not be woken as long as it has not slept.
    let is_gathered = (0..100).filter(|_| {
        let due = now + TICK;
        start(&timers, 0, 1, TICK);
        assert_eq!(crew.rests(0, &mut duty), after(due));
        for number in 1..3 {
            start(&timers, number, 1, TICK);
            assert_eq!(crew.rests(number, &mut off()), after(due + number as u32 * GRACE));
        }
        now = due;
        crew.set_clock(now);
        crew.rests(0, &mut duty);
        let by = [(); 3].map(|()| names.recv_timeout(PATIENCE).expect("each is called"));
        by.iter().all(|name| name == "lane")
    });
    assert_eq!(is_gathered.take(3).count(), 3);
    // Otherwise this would be one of several at a time.
    thread::sleep(TICK);
    start(&timers, 2, 1, TICK);
    crew.set_clock(now + TICK);
    crew.rests(2, &mut off());
    assert_eq!(names.recv_timeout(PATIENCE).as_deref(), Ok("own"), "it gathers nothing");
}

/// Runs `test` beside the threads of the crew.
fn with_threads(shard_count: usize, test: impl FnOnce(&Timers, &Crew<u64, ()>)) {
    let (timers, crew) = crew(shard_count, Clock::system(TICK, Tick(0)));
    let crew = &crew;
    thread::scope(|scope| {
        let threads: Vec<_> = (0..shard_count).map(|number| scope.spawn(move || crew.live(number))).collect();
        let result = catch_unwind(AssertUnwindSafe(|| test(&timers, crew)));
        // Otherwise the threads would never end.
        timers.close(crate::Close::Discard);
        threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
        result.unwrap_or_else(|failure| resume_unwind(failure));
    });
}

fn fires(timers: &Timers, key: u64) {
    let begin = Instant::now();
    while timers.contains(&key) {
        assert!(begin.elapsed() < PATIENCE, "nobody sees to the shard");
        thread::sleep(TICK / 10);
    }
}

/// The first thread stands still in the middle of its work, while the others rely on it. Several times, since a slow
/// machine may let them not rely on it.
#[test]
fn the_others_go_on_without_the_lookout() {
    let go_on = |timers: &Timers, crew: &Crew<u64, ()>| {
        let key = |number| keys(timers, number).next().expect("there are such keys");
        let start = |number, ticks| {
            assert!(timers.schedule(key(number), ticks * TICK).is_ok());
            thread::sleep(TICK);
        };
        start(0, 10);
        (1..3).for_each(|number| start(number, 15));
        let lookout = lock(&crew.workers[0]);
        (1..3).for_each(|number| fires(timers, key(number)));
        drop(lookout);
        fires(timers, key(0));
    };
    (0..5).for_each(|_| with_threads(3, go_on));
}

/// Not only when the lookout sees to the shard, as it means to. A slow machine may take until then.
#[test]
fn a_thread_that_relies_on_the_lookout_gets_up_when_a_caller_calls_it() {
    with_threads(2, |timers, _| {
        let others = || keys(timers, 1);
        let (later, sooner) = (others().next().expect("there is one"), others().nth(1).expect("there is another"));
        let is_called = || {
            start(timers, 0, 1, 10 * TICK);
            assert!(timers.schedule(later, 15 * TICK).is_ok());
            thread::sleep(TICK);
            assert!(timers.schedule(sooner, TICK).is_ok());
            fires(timers, sooner);
            let is_called = timers.contains(&later);
            fires(timers, later);
            is_called
        };
        assert!((0..200).filter(|_| is_called()).take(5).count() == 5);
    });
}
