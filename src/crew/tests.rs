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
use std::array::from_fn;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{OnceLock, mpsc};
use std::thread;
use std::time::Instant;

mod watch;

const TICK: Duration = Duration::from_millis(1);
const PATIENCE: Duration = Duration::from_secs(60);

type Timers = Scheduler<u64, ()>;

/// Its callbacks run within `act`.
fn crew(shard_count: usize, clock: Clock) -> (Timers, Crew<u64, ()>) {
    crew_of(shard_count, clock, Executor::Inline, Callback::Plain(Box::new(|_, ()| {})), false)
}

/// Its callbacks go to a pool, which may not keep up.
fn crew_with_pool(shard_count: usize) -> (Timers, Crew<u64, ()>) {
    let callback = Callback::Plain(Box::new(|_: &u64, ()| {}));
    crew_of(shard_count, Clock::manual(TICK, Tick(0)), pool(), callback, false)
}

fn pool() -> Executor {
    Executor::Rayon(Arc::new(rayon::ThreadPoolBuilder::new().num_threads(1).build().expect("one more thread")))
}

fn crew_of(
    shard_count: usize,
    clock: Clock,
    executor: Executor,
    callback: Callback<u64, ()>,
    has_lane: bool,
) -> (Timers, Crew<u64, ()>) {
    let builder: Builder<u64, ()> = Scheduler::builder().shards(shard_count);
    let Parts { core, runner, hasher, .. } = builder.into_parts(clock, executor, callback);
    let lane = Arc::new(Lane::new(shard_count));
    let worker = |number| {
        let first = has_lane.then(|| {
            let own = CallbackThread::start("own".to_owned()).expect("one more thread");
            CallbackThreads { own, lane: Some(Arc::clone(&lane)) }
        });
        Worker::new(Arc::clone(&core), number, first)
    };
    let crew = Crew::new(Arc::clone(&core), (0..shard_count).map(worker).collect(), true, Arc::clone(&lane));
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

    /// Until when a worker's thread may sleep, after some turns.
    fn rests(&self, number: usize) -> Nanos {
        (0..99).find_map(|_| self.turn(number, &mut 0, false)).expect("it comes to rest")
    }

    /// The same for the lookout's thread.
    fn looks_out(&self, duty: &mut Duty) -> Nanos {
        (0..99).find_map(|_| self.turn_of_lookout(self.lookouts(), duty, None)).expect("it comes to rest")
    }

    fn lookouts(&self) -> &Lookouts {
        self.lookouts.as_ref().expect("there are several shards")
    }

    fn tickets(&self) -> Vec<u32> {
        self.core.shards.iter().map(|shard| shard.alarm.ticket()).collect()
    }

    /// Lets it look as if the executor kept up with a shard, or not.
    fn keeps_up(&self, number: usize, does: bool) {
        self.report(number).unfinished.store(if does { 0 } else { 1 << 20 }, Relaxed);
    }

    fn fired(&self, number: usize) -> usize {
        lock(&self.workers[number]).as_ref().expect("it is not closed").fired()
    }
}

fn after(duration: Duration) -> Nanos {
    Nanos(0).plus(duration)
}

/// When the thread of a shard gets up that is due at `due`, if it relies on the lookout.
fn in_vain(number: usize, due: Duration) -> Nanos {
    after(due + GRACE * (number as u32 + 1) + TICK / 2)
}

/// A lookout that gets up at the first tick, alone.
fn on_duty(crew: &Crew<u64, ()>) -> Duty {
    on_duty_from(crew, Duration::ZERO)
}

/// The same, at the next tick. The other one is off duty.
fn on_duty_from(crew: &Crew<u64, ()>, now: Duration) -> Duty {
    let mut duty = Duty::new(0, false);
    crew.is_wanted.store(true, Relaxed);
    assert_eq!(crew.looks_out(&mut duty), after(now + TICK), "somebody may rely on it soon");
    duty
}

/// The other lookout sleeps until then, if that is soon enough to watch the first one.
fn other_sleeps(crew: &Crew<u64, ()>, until: Duration) {
    crew.lookouts().lie_down(1, after(until).0, crew.core.clock.now().0);
}

#[test]
fn the_lookout_gets_up_for_shards_that_are_due_soon() {
    let (timers, crew) = crew(3, Clock::manual(TICK, Tick(0)));
    let mut duty = on_duty(&crew);
    start(&timers, 0, 1, TICK);
    start(&timers, 1, 1, 3 * TICK);
    start(&timers, 2, 1, Duration::from_secs(1));
    assert_eq!([0, 1].map(|number| crew.rests(number)), [in_vain(0, TICK), in_vain(1, 3 * TICK)], "they rely on it");
    assert_eq!(crew.rests(2), after(Duration::from_secs(1)), "it does not: that is far away");
    let tickets = crew.tickets();
    crew.set_clock(TICK);
    assert_eq!(crew.looks_out(&mut duty), after(3 * TICK));
    crew.set_clock(3 * TICK);
    assert_eq!(crew.looks_out(&mut duty), after(4 * TICK));
    assert_eq!(([0, 1, 2].map(|number| crew.fired(number)), crew.tickets()), ([1, 1, 0], tickets));
    assert_eq!(duty.turns, 3);
}

#[test]
fn a_thread_relies_on_no_lookout_that_may_come_too_late() {
    let (timers, crew) = crew(2, Clock::manual(TICK, Tick(0)));
    let mut duty = on_duty(&crew);
    start(&timers, 0, 1, 3 * TICK);
    assert_eq!((crew.rests(0), crew.looks_out(&mut duty)), (in_vain(0, 3 * TICK), after(3 * TICK)));
    start(&timers, 1, 1, 2 * TICK);
    assert_eq!((crew.rests(1), crew.looks_out(&mut duty)), (after(2 * TICK), after(3 * TICK)));
}

#[test]
fn a_lookout_with_too_much_to_do_leaves_it_to_the_others() {
    let (timers, crew) = crew(3, Clock::manual(TICK, Tick(0)));
    let mut duty = on_duty(&crew);
    let each = 1000;
    let mut rounds = 0;
    while duty.is_on {
        rounds += 1;
        assert!(rounds < 10, "it does not resign");
        for number in 0..3 {
            start(&timers, number, each, TICK);
            assert_eq!(crew.rests(number), in_vain(number, rounds * TICK));
        }
        let before = crew.tickets();
        crew.set_clock(rounds * TICK);
        other_sleeps(&crew, (rounds + 1) * TICK);
        crew.looks_out(&mut duty);
        assert_eq!([0, 1, 2].map(|number| crew.fired(number)), [each * rounds as usize; 3]);
        let told = [0, 1, 2].map(|number| before[number] != crew.tickets()[number]);
        assert_eq!(told, [!duty.is_on; 3], "the other threads are told");
    }
    assert!(rounds > 1, "one round does not count for much");
    crew.lookouts().resign(1, |_| {});
    let next = (rounds + 1) * TICK;
    (0..2).for_each(|number| start(&timers, number, 1, TICK));
    assert_eq!([0, 1].map(|number| crew.rests(number)), [after(next); 2], "there is none");
    assert_eq!(crew.looks_out(&mut duty), NEVER);
    let mut calm = 0;
    for _ in 0..2 * CALM {
        assert!(!crew.is_wanted.load(Relaxed));
        crew.turn(0, &mut calm, false);
    }
    assert!(crew.is_wanted.load(Relaxed), "there was little to do for long enough");
    assert_eq!((crew.looks_out(&mut duty), crew.rests(1)), (after(next), in_vain(1, next)));
}

/// A thread relies on the lookout, and is told when that resigns: if `turn` is its next one.
fn assert_resigns(timers: &Timers, crew: &Crew<u64, ()>, duty: &mut Duty, turn: impl Fn(&mut Duty)) {
    start(timers, 1, 1, TICK);
    crew.rests(1);
    assert!(duty.is_on && crew.lookouts().due(1).is_some());
    let before = crew.tickets()[1];
    turn(duty);
    assert!(!duty.is_on && before != crew.tickets()[1]);
}

#[test]
fn a_round_takes_no_longer_than_a_part_of_a_tick() {
    let ends = |tick| crew(2, Clock::manual(tick, Tick(0))).1.round(false).ends;
    let ticks = [TICK / 100, TICK / 2, TICK, 100 * TICK];
    assert_eq!(ticks.map(ends), [ROUND_MIN, TICK / 6, ROUND_MAX, ROUND_MAX].map(after));
}

/// How many rounds it takes until the lookout has resigned: so many hints are due in each, in either shard.
fn rounds_with(counts: [usize; 2]) -> usize {
    let (timers, crew) = crew(2, Clock::manual(TICK, Tick(0)));
    let mut duty = on_duty(&crew);
    let stays = |&round: &u32| {
        for (number, count) in counts.into_iter().enumerate() {
            start(&timers, number, count, TICK);
            assert_eq!(crew.rests(number), in_vain(number, round * TICK));
        }
        crew.set_clock(round * TICK);
        other_sleeps(&crew, (round + 1) * TICK);
        crew.looks_out(&mut duty);
        duty.is_on
    };
    1 + (1..20).take_while(stays).count()
}

#[test]
fn a_lookout_resigns_if_the_shards_have_too_much_together() {
    assert_eq!([[MOST - 100, 1], [1, MOST - 100]].map(rounds_with), [20; 2]);
    assert!((2..10).contains(&rounds_with([MOST; 2])));
}

#[test]
fn the_lookout_may_have_more_to_do_for_more_shards() {
    let most = |shard_count| crew(shard_count, Clock::manual(TICK, Tick(0))).1.most();
    assert_eq!([2, 6, 12].map(most), [MOST, MOST, 2 * MOST]);
}

#[test]
fn a_lookout_that_keeps_giving_shards_back_resigns() {
    let (timers, crew) = crew_with_pool(24);
    let mut duty = on_duty(&crew);
    let rounds = (1..20).take_while(|&round| {
        for number in 0..24 {
            crew.keeps_up(number, true);
            start(&timers, number, 1, TICK);
            crew.rests(number);
            crew.keeps_up(number, false);
        }
        crew.set_clock(round * TICK);
        other_sleeps(&crew, (round + 1) * TICK);
        crew.looks_out(&mut duty);
        duty.is_on
    });
    assert!((1..15).contains(&rounds.count()));
}

/// Whether there is to be a lookout after `turns` turns of the first thread, a tick apart, each with so many hints to
/// look at, and the next one due after `gap` ticks.
fn is_wanted_after(turns: u32, looks: usize, gap: u32) -> bool {
    let (timers, crew) = crew(2, Clock::manual(TICK, Tick(0)));
    let mut calm = 0;
    for turn in 0..turns {
        assert!(!crew.is_wanted.load(Relaxed), "after {turn} turns");
        crew.set_clock(turn * gap * TICK);
        start(&timers, 0, looks, gap * TICK);
        crew.turn(0, &mut calm, false);
    }
    crew.is_wanted.load(Relaxed)
}

#[test]
fn there_is_a_lookout_after_enough_turns_with_little_to_do_one_soon_after_the_other() {
    let (most, soon) = (MOST / 4 * 3 / 2, 2 * SPARSE.as_millis() as u32);
    assert!(is_wanted_after(CALM, most, 1) && !is_wanted_after(CALM - 1, most, 1));
    assert!(!is_wanted_after(CALM + 1, most + 1, 1), "too much");
    assert!(is_wanted_after(CALM, 1, soon) && !is_wanted_after(CALM + 1, 1, soon + 1), "too seldom");
    let (_timers, crew) = crew_with_pool(2);
    let mut calm = 7;
    crew.count_calm(&mut calm, most, None);
    assert_eq!(calm, 7, "that turn is not over");
    crew.count_calm(&mut calm, most + 1, None);
    assert_eq!(calm, 0, "but that was too much");
    crew.keeps_up(0, false);
    (0..2 * CALM).for_each(|_| assert_eq!(crew.turn(0, &mut calm, false), None));
    assert!(!crew.is_wanted.load(Relaxed), "the executor has its hands full");
    on_duty(&crew);
    crew.count_calm(&mut calm, 0, Some(after(TICK)));
    assert_eq!(calm, 0, "there is one");
}

/// For how many turns a lookout is on duty if a shard is due each time after so many ticks; 20 ticks at most.
fn turns_on_duty(gap: u32) -> u32 {
    let (timers, crew) = crew(2, Clock::manual(TICK, Tick(0)));
    let mut duty = on_duty(&crew);
    for turn in 1..40 {
        start(&timers, 1, 1, gap * TICK);
        crew.rests(1);
        other_sleeps(&crew, (turn * gap + 1) * TICK);
        crew.looks_out(&mut duty);
        if !duty.is_on {
            return turn;
        }
        crew.set_clock(turn * gap * TICK);
    }
    40
}

#[test]
fn the_lookout_ends_its_duty_where_there_is_something_to_do_but_now_and_then() {
    assert_eq!([1, 2, 4].map(turns_on_duty), [40; 3]);
    assert!((2..20).contains(&turns_on_duty(6)));
}

#[test]
fn the_lookout_ends_its_duty_if_nobody_relies_on_it() {
    let (_timers, crew) = crew(2, Clock::manual(TICK, Tick(0)));
    let mut duty = on_duty(&crew);
    for turn in 2..=IDLE_MAX {
        crew.set_clock(turn * TICK);
        crew.lookouts().stay_up(0, || after(turn * TICK).0);
        other_sleeps(&crew, (turn + 2) * TICK);
        assert_eq!(crew.looks_out(&mut duty), after((turn + 1) * TICK));
    }
    crew.lookouts().resign(1, |_| {});
    assert_eq!((crew.looks_out(&mut duty), crew.calm.load(Relaxed)), (NEVER, CALM));
    assert!(!crew.lookouts().is_there(0));
}

#[test]
fn a_lookout_that_keeps_resigning_takes_longer_to_come_back() {
    let (_timers, crew) = crew(2, Clock::manual(TICK, Tick(0)));
    let calm_after = |turns| {
        crew.is_wanted.store(true, Relaxed);
        let mut duty = Duty { turns, ..Duty::new(0, true) };
        crew.resign_if(crew.lookouts(), &mut duty, false);
        assert!(duty.is_on);
        crew.resign_if(crew.lookouts(), &mut duty, true);
        assert!(!duty.is_on);
        crew.calm.load(Relaxed)
    };
    let calms: Vec<_> = [PROVEN - 1; 10].into_iter().chain([PROVEN]).map(calm_after).collect();
    assert_eq!(calms[..3], [2 * CALM, 4 * CALM, 8 * CALM]);
    assert_eq!(calms[8..], [CALM_MAX, CALM_MAX, CALM]);
}

/// Whether the lookout stays on duty if callbacks take so long after so many turns, whether it runs those of the next
/// shard, and how many calm turns it takes until there is one again.
fn stays_after(spent: Duration, turns: u32) -> (bool, bool, u32) {
    let (timers, crew) = crew(3, Clock::manual(TICK, Tick(0)));
    let mut duty = on_duty(&crew);
    duty.turns = turns - 1;
    start(&timers, 1, 1, TICK);
    assert_eq!(crew.rests(1), in_vain(1, TICK));
    crew.set_clock(TICK);
    let core = Arc::clone(&crew.core);
    let slow = move || {
        core.clock.set(after(TICK + spent));
        1
    };
    assert!(crew.lane.leave(0, 1, Box::new(slow)).is_none() && crew.lane.leave(1, 1, Box::new(|| 1)).is_none());
    let before = crew.tickets();
    start(&timers, 2, 1, 15 * TICK);
    assert_eq!(crew.rests(2), in_vain(2, 16 * TICK));
    other_sleeps(&crew, 2 * TICK);
    // As if the others saw to their shards meanwhile.
    crew.lookouts().get_up(1);
    crew.turn_of_lookout(crew.lookouts(), &mut duty, None);
    let is_told = before[2] != crew.tickets()[2];
    assert!(is_told != duty.is_on);
    (duty.is_on, crew.lane.take_back(1).is_none(), crew.calm.load(Relaxed))
}

#[test]
fn a_lookout_that_is_kept_by_a_callback_resigns() {
    assert_eq!(stays_after(LATE, 9), (true, true, CALM));
    let too_long = [LATE + Duration::from_nanos(1), 10 * LATE, PATIENCE];
    assert_eq!(too_long.map(|spent| stays_after(spent, PROVEN - 1)), [(false, false, 2 * CALM); 3]);
    assert_eq!(stays_after(PATIENCE, PROVEN), (false, false, CALM));
}

/// Otherwise no thread could rely on it until that callback has ended.
#[test]
fn a_lookout_is_there_from_its_first_callback_on() {
    let (_timers, crew) = crew(2, Clock::manual(TICK, Tick(0)));
    let crew = Arc::new(crew);
    let (own, (found, is_there)) = (Arc::downgrade(&crew), mpsc::channel());
    let look = move || {
        let crew = own.upgrade().expect("it runs this");
        found.send(crew.lookouts().is_there(0)).map_or(0, |()| 1)
    };
    assert!(crew.lane.leave(1, 1, Box::new(look)).is_none());
    other_sleeps(&crew, 2 * TICK);
    on_duty(&crew);
    assert_eq!(is_there.try_recv(), Ok(true));
}

#[test]
fn a_lookout_that_has_resigned_waits_until_it_is_wanted() {
    let (_timers, crew) = crew(2, Clock::manual(TICK, Tick(0)));
    let mut duty = on_duty(&crew);
    crew.is_wanted.store(true, Relaxed);
    crew.resign_if(crew.lookouts(), &mut duty, true);
    assert_eq!((crew.looks_out(&mut duty), duty.is_on), (NEVER, false));
}

#[test]
fn a_lookout_sleeps_between_long_ticks() {
    let tick = 3 * NEAR;
    let (timers, crew) = crew(2, Clock::manual(tick, Tick(0)));
    let mut duty = Duty::new(0, true);
    crew.is_wanted.store(true, Relaxed);
    start(&timers, 1, 1, tick);
    crew.set_clock(tick - NEAR);
    crew.lookouts().lie_down(0, after(tick - NEAR).0, 0);
    assert_eq!(crew.rests(1), after(tick + 2 * GRACE));
    let turn = |duty: &mut Duty| crew.turn_of_lookout(crew.lookouts(), duty, None);
    assert_eq!(turn(&mut duty), Some(after(tick)));
    start(&timers, 1, 1, tick);
    crew.set_clock(tick);
    crew.rests(1);
    crew.lookouts().saw_to(1, after(2 * tick).0);
    assert_eq!((turn(&mut duty), duty.idle), (Some(after(2 * tick)), 0));
}

#[test]
fn a_shard_with_too_much_due_at_once_is_left_to_its_own_thread() {
    let (timers, crew) = crew(2, Clock::manual(TICK, Tick(0)));
    let mut duty = on_duty(&crew);
    let all = 10_000;
    start(&timers, 1, all, TICK);
    let before = crew.tickets()[1];
    assert_eq!(crew.rests(1), in_vain(1, TICK));
    crew.set_clock(TICK);
    crew.looks_out(&mut duty);
    assert!((1..all).contains(&crew.fired(1)) && before != crew.tickets()[1]);
    assert_eq!(crew.lookouts().due(1), None, "that is not the lookout's any more");
    crew.rests(1);
    assert_eq!(crew.fired(1), all);
}

#[test]
fn the_lookout_leaves_a_shard_alone_whose_thread_is_up_or_was_up_meanwhile() {
    let (timers, crew) = crew(2, Clock::manual(TICK, Tick(0)));
    start(&timers, 1, 1, TICK);
    assert_eq!(crew.rests(1), after(TICK), "there is no lookout yet");
    crew.set_clock(TICK);
    let round = Round { due_by: after(TICK), ends: after(TICK), gathers: false };
    assert!(crew.see_to(crew.lookouts(), 1, &round, &mut Duty::new(0, true)), "it does not rely on the lookout");
    let mut duty = on_duty_from(&crew, TICK);
    start(&timers, 1, 1, TICK);
    assert_eq!(crew.rests(1), in_vain(1, 2 * TICK));
    crew.set_clock(2 * TICK);
    let getting_up = lock(&crew.workers[1]);
    assert_eq!(crew.looks_out(&mut duty), after(2 * TICK + NAP));
    drop(getting_up);
    let round = Round { due_by: after(2 * TICK), ends: after(TICK), gathers: false };
    assert!(!crew.see_to(crew.lookouts(), 1, &round, &mut duty), "its time is over");
    assert_eq!((duty.looks, crew.fired(1)), (0, 0));
}

#[test]
fn a_worker_helps_with_lines_before_it_rests() {
    let (timers, crew) = crew(1, Clock::manual(TICK, Tick(0)));
    let (growth, shard) = (&crew.core.growth, &crew.core.shards[0]);
    (0..20_000).for_each(|key| assert!(timers.schedule(key, PATIENCE).is_ok()));
    assert!((0..100).any(|_| growth.step(0, shard) && growth.wants_help(0, shard)));
    crew.rests(0);
    assert!(!growth.wants_help(0, shard));
}

/// Whether a thread that gets up at `now` sleeps on, although a caller has just brought a nearer deadline. The lookout
/// has seen to its shard once, so that this is due after `due` ticks, and means to sleep for `lookouts` ticks; or it is
/// about to say that it has resigned.
fn sleeps_on(due: u32, lookouts: Option<u32>, now: Duration, is_called: bool) -> bool {
    let (timers, crew) = crew(2, Clock::manual(TICK, Tick(0)));
    let (mut duty, lookout) = (on_duty(&crew), crew.lookouts());
    let start_another = |nth: usize, delay| {
        let key = keys(&timers, 1).nth(nth).expect("there are such keys");
        assert!(timers.schedule(key, delay).is_ok());
    };
    start_another(0, TICK);
    start_another(1, due * TICK);
    assert_eq!(crew.rests(1), in_vain(1, TICK));
    let lookouts_due = lookouts.unwrap_or(due);
    start(&timers, 0, 1, lookouts_due * TICK);
    crew.rests(0);
    crew.set_clock(TICK);
    assert_eq!(crew.looks_out(&mut duty), after(lookouts_due * TICK));
    if lookouts.is_none() {
        lookout.resign(0, |_| {});
    }
    crew.set_clock(now);
    start_another(2, TICK);
    let until = crew.turn(1, &mut 0, !is_called);
    let has_acted = lookout.due(1) != Some(after(due * TICK).0);
    assert!(has_acted || until == Some(in_vain(1, due * TICK)));
    !has_acted
}

#[test]
fn a_thread_that_gets_up_in_vain_sleeps_on() {
    let (up, near) = (2 * TICK, 2 + NEAR.as_millis() as u32);
    assert!(sleeps_on(14, Some(14), up, false) && sleeps_on(near, Some(14), up, false));
    assert!(!sleeps_on(14, Some(14), up, true), "it was called");
    assert!(!sleeps_on(14, Some(14), 14 * TICK, false), "the lookout has not seen to the shard");
    assert!(!sleeps_on(19, Some(5), 5 * TICK + STOPPED + TICK, false), "the lookout is missed");
    assert!(!sleeps_on(14, None, up, false), "there is none any more");
    assert!(!sleeps_on(near + 1, Some(14), up, false), "that is far away");
}

/// At a tick the lookout has just got up as well, and has not seen to the shard yet.
#[test]
fn a_thread_gets_up_in_vain_between_two_ticks() {
    for number in [0, 1, 7, 100] {
        let least = GRACE_MAX.min(GRACE * (number as u32 + 1));
        for tick in [10, 300, 1000, 3000, 4000, 7000, 10_000].map(Duration::from_micros) {
            let grace = grace(number, tick);
            assert!(grace >= least && grace < least + 2 * tick, "{grace:?} of ticks of {tick:?}");
            assert_eq!(grace.as_nanos() % tick.as_nanos(), tick.as_nanos() / 2, "of ticks of {tick:?}");
        }
        assert_eq!(grace(number, 100 * GRACE_MAX), least);
    }
}

#[test]
fn there_is_no_lookout_for_one_shard_or_for_workers_that_run_user_code() {
    let (_timers, single) = crew(1, Clock::manual(TICK, Tick(0)));
    let (_timers, several) = crew(2, Clock::manual(TICK, Tick(0)));
    let workers = several.workers.iter().filter_map(|worker| lock(worker).take()).collect();
    let run_user_code = Crew::new(Arc::clone(&several.core), workers, false, Arc::clone(&several.lane));
    assert!(single.lookouts.is_none() && several.lookouts.is_some() && run_user_code.lookouts.is_none());
}

#[test]
fn the_lookout_runs_what_it_gathers() {
    let (sender, names) = mpsc::channel();
    let callback = move |_: &u64, ()| {
        let name = thread::current().name().unwrap_or_default().to_owned();
        sender.send(name).expect("the test listens");
    };
    let (timers, crew) = crew_of(3, Clock::manual(TICK, Tick(0)), pool(), Callback::Plain(Box::new(callback)), true);
    let mut duty = on_duty(&crew);
    let own = thread::current().name().map(str::to_owned);
    for round in 1..4 {
        for number in 0..3 {
            start(&timers, number, 2, TICK);
            crew.rests(number);
            assert_eq!(crew.lookouts().due(number), Some(after(round * TICK).0));
        }
        crew.set_clock(round * TICK);
        other_sleeps(&crew, (round + 1) * TICK);
        crew.looks_out(&mut duty);
        assert!((0..6).all(|_| names.try_recv().ok() == own), "it has run them all");
    }
    // Otherwise this would be one of several at a time.
    thread::sleep(TICK);
    start(&timers, 2, 1, TICK);
    crew.set_clock(4 * TICK);
    crew.rests(2);
    assert_eq!(names.recv_timeout(PATIENCE).as_deref(), Ok("own"), "it gathers nothing");
}

/// A batch that is handed over may need help a little later. One that the lookout has run does not.
#[test]
fn nobody_gets_up_for_what_the_lookout_has_run() {
    let ((go_on, gate), (begun, begin)) = (mpsc::channel::<()>(), mpsc::channel());
    let (slow, gate) = (Arc::new(OnceLock::<Vec<u64>>::new()), Mutex::new(gate));
    let is_slow = Arc::clone(&slow);
    let callback = move |key: &u64, ()| {
        if is_slow.get().is_some_and(|keys| keys.contains(key)) {
            // The second one, after the test, tells nobody.
            let _ = begun.send(());
            let _ = gate.lock().expect("nobody panics").recv();
        }
    };
    let (timers, crew) = crew_of(3, Clock::manual(TICK, Tick(0)), pool(), Callback::Plain(Box::new(callback)), true);
    let mut duty = on_duty(&crew);
    let due = |number| crew.lookouts().due(number).expect("its thread relies on it");
    let later = 15 * TICK;
    for number in 0..3 {
        start(&timers, number, 3, later);
        start(&timers, number, 2, TICK);
    }
    // One of these is slow, on its shard's own thread, and the other one waits behind it.
    slow.set(keys(&timers, 2).take(2).collect()).expect("once");
    crew.set_clock(TICK);
    crew.rests(2);
    begin.recv_timeout(PATIENCE).expect("it has begun");
    (0..2).for_each(|number| _ = crew.lookouts().rely(number, after(TICK).0, || 0));
    other_sleeps(&crew, 2 * TICK);
    crew.looks_out(&mut duty);
    assert_eq!([0, 1].map(due), [after(later).0; 2], "it has run their callbacks");
    assert!(due(2) < after(later).0, "somebody has to help");
    drop(go_on);
}

/// Runs `test` beside the threads of the crew. The lookouts' are called so.
fn with_threads(shard_count: usize, callback: Callback<u64, ()>, test: impl FnOnce(&Timers, &Crew<u64, ()>)) {
    let (timers, crew) = crew_of(shard_count, Clock::system(TICK, Tick(0)), pool(), callback, true);
    let crew = &crew;
    thread::scope(|scope| {
        let mut threads: Vec<_> = (0..shard_count).map(|number| scope.spawn(move || crew.live(number))).collect();
        for number in 0..LOOKOUTS {
            let lookout = thread::Builder::new().name("lookout".to_owned());
            let lookout = lookout.spawn_scoped(scope, move || crew.look_out(number));
            threads.push(lookout.expect("one more thread"));
        }
        let result = catch_unwind(AssertUnwindSafe(|| test(&timers, crew)));
        // Otherwise the threads would never end.
        timers.close(crate::Close::Discard);
        threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
        result.unwrap_or_else(|failure| resume_unwind(failure));
    });
}

fn eventually(condition: impl Fn() -> bool) {
    let begin = Instant::now();
    while !condition() {
        assert!(begin.elapsed() < PATIENCE, "nobody sees to the shard");
        thread::sleep(TICK / 10);
    }
}

/// A lookout stands still in a callback, while others rely on it.
#[test]
fn the_others_go_on_without_the_lookout() {
    const SHARDS: usize = 3;
    let (begun, begin) = mpsc::channel();
    let (is_over, has_begun) = (Arc::new(AtomicBool::new(false)), AtomicBool::new(false));
    let seen = Arc::clone(&is_over);
    let callback = move |_: &u64, ()| {
        // Only one: the other lookout, once it is off duty, may run what the first has left.
        if thread::current().name() == Some("lookout") && !has_begun.swap(true, Relaxed) {
            begun.send(()).expect("the test listens");
            eventually(|| seen.load(Relaxed));
        }
    };
    with_threads(SHARDS, Callback::Plain(Box::new(callback)), |timers, crew| {
        let fire_all = || (0..SHARDS).for_each(|number| start(timers, number, 2, TICK));
        let start = Instant::now();
        while begin.try_recv().is_err() {
            assert!(start.elapsed() < PATIENCE, "the lookout runs no callbacks");
            crew.is_wanted.store(true, Relaxed);
            crew.call_lookouts();
            fire_all();
            thread::sleep(TICK);
        }
        (0..3).for_each(|_| {
            fire_all();
            eventually(|| timers.is_empty());
        });
        is_over.store(true, Relaxed);
        eventually(|| timers.stats().callbacks_waiting == 0);
    });
}

/// Not only when the lookout sees to the shard, as it means to. A slow machine may take until then.
#[test]
fn a_thread_that_relies_on_the_lookout_gets_up_when_a_caller_calls_it() {
    with_threads(2, Callback::Plain(Box::new(|_, ()| {})), |timers, crew| {
        let others = || keys(timers, 1);
        let (later, sooner) = (others().next().expect("there is one"), others().nth(1).expect("there is another"));
        let is_called = || {
            crew.is_wanted.store(true, Relaxed);
            crew.call_lookouts();
            start(timers, 0, 1, 10 * TICK);
            thread::sleep(TICK);
            assert!(timers.schedule(later, 15 * TICK).is_ok());
            thread::sleep(TICK);
            let relies = crew.lookouts().due(1).is_some();
            assert!(timers.schedule(sooner, TICK).is_ok());
            eventually(|| !timers.contains(&sooner));
            let is_called = timers.contains(&later);
            eventually(|| timers.is_empty());
            relies && is_called
        };
        assert!((0..200).filter(|_| is_called()).take(5).count() == 5);
    });
}
