//! Who looks whether the lookouts still come, and what happens if one does not.

use super::*;

/// Two lookouts, and who of them gets up when. At the beginning both are up.
struct Both {
    duties: [Duty; LOOKOUTS],
    up: [Duration; LOOKOUTS],
}

impl Both {
    fn on_duty(crew: &Crew<u64, ()>) -> Self {
        crew.is_wanted.store(true, Relaxed);
        Self { duties: from_fn(|number| Duty::new(number, false)), up: [Duration::ZERO; LOOKOUTS] }
    }

    /// The same, once they take turns.
    fn in_turns(crew: &Crew<u64, ()>) -> Self {
        let mut both = Self::on_duty(crew);
        (0..6).for_each(|_| _ = both.turn(crew));
        both
    }

    /// The time comes for the next of them. Returns which one has had its turn.
    fn turn(&mut self, crew: &Crew<u64, ()>) -> usize {
        let number = usize::from(self.up[1] < self.up[0]);
        crew.set_clock(self.up[number]);
        let until = crew.looks_out(&mut self.duties[number]);
        self.up[number] = Duration::from_nanos(until.0);
        number
    }
}

/// How many turns of each lookout there are while 100 timers fire, so many ticks after one another.
fn turns_with(gap: u32) -> [usize; LOOKOUTS] {
    const TIMERS: usize = 100;
    let (timers, crew) = crew(2, Clock::manual(TICK, Tick(0)));
    for (key, number) in keys(&timers, 1).zip(1..=TIMERS as u32) {
        timers.schedule(key, number * gap * TICK).expect("it is open and not full");
    }
    let mut both = Both::on_duty(&crew);
    (0..LOOKOUTS).for_each(|_| _ = both.turn(&crew));
    assert_eq!(crew.rests(1), in_vain(1, gap * TICK));
    let mut turns = [0; LOOKOUTS];
    while crew.fired(1) < TIMERS {
        let due = (crew.fired(1) + 1) as u32 * gap * TICK;
        turns[both.turn(&crew)] += 1;
        assert!(crew.now() <= due, "nobody saw to the timer of {due:?}");
    }
    turns
}

impl Crew<u64, ()> {
    fn now(&self) -> Duration {
        Duration::from_nanos(self.core.clock.now().0)
    }
}

#[test]
fn the_lookouts_take_turns_and_wake_up_no_more_often_than_one_would() {
    for gap in [1, 2] {
        let turns = turns_with(gap);
        assert!(turns.iter().sum::<usize>() <= 105 && turns.iter().all(|&turns| turns >= 40), "{gap}: {turns:?}");
    }
}

#[test]
fn a_lookout_is_watched_for_some_ticks_or_for_one() {
    let ticks = [TICK / 100, TICK, TICK * 3 / 2, 2 * TICK, 7 * TICK, PATIENCE];
    assert_eq!(ticks.map(watch), [WATCH, WATCH, 3 * TICK, 2 * TICK, 7 * TICK, PATIENCE]);
}

/// Whether a lookout runs a callback that was left for it, and whether it calls the other one, which sleeps until then,
/// if it is on duty.
fn runs_beside(other: Option<Duration>) -> (bool, bool) {
    let (_timers, crew) = crew(2, Clock::manual(TICK, Tick(0)));
    crew.set_clock(9 * TICK);
    if let Some(until) = other {
        other_sleeps(&crew, until);
    }
    assert!(crew.lane.leave(1, 1, Box::new(|| 1)).is_none());
    let before = crew.lane.ticket(1);
    crew.is_wanted.store(true, Relaxed);
    crew.looks_out(&mut Duty::new(0, false));
    (crew.lane.take_back(1).is_none(), before != crew.lane.ticket(1))
}

#[test]
fn a_lookout_runs_callbacks_only_if_the_other_one_watches_it() {
    assert_eq!([None, Some(8 * TICK), Some(9 * TICK)].map(runs_beside), [(false, false); 3], "off duty, or up");
    assert_eq!([10 * TICK, 11 * TICK].map(Some).map(runs_beside), [(true, false); 2]);
    assert_eq!(runs_beside(Some(12 * TICK)), (true, true), "it would sleep for too long");
}

/// Nobody runs what it would leave there until the other one is up.
#[test]
fn a_lookout_that_runs_no_callbacks_leaves_none_in_the_lane() {
    let nothing = Callback::Plain(Box::new(|_: &u64, ()| {}));
    let (timers, crew) = crew_of(8, Clock::manual(TICK, Tick(0)), pool(), nothing, true);
    let mut duty = on_duty(&crew);
    for number in 0..8 {
        start(&timers, number, 1, TICK);
        assert_eq!(crew.rests(number), in_vain(number, TICK));
    }
    crew.set_clock(TICK);
    crew.looks_out(&mut duty);
    assert_eq!((0..8).map(|number| crew.fired(number)).sum::<usize>(), 8);
    assert!(!crew.lane.is_waited_for());
}

/// A lookout means to sleep for long, and is called for callbacks.
#[test]
fn a_lookout_is_missed_from_when_it_is_up() {
    let (_timers, crew) = crew(2, Clock::manual(TICK, Tick(0)));
    crew.lookouts().lie_down(0, after(14 * TICK).0, 0);
    crew.set_clock(TICK);
    crew.is_watched(crew.lookouts(), 0);
    let missed_after = after(TICK + KEPT).0;
    assert!(crew.lookouts().is_there(missed_after) && !crew.lookouts().is_there(missed_after + 1));
}

/// Wherever the other lookout is when a callback that does not end begins.
#[test]
fn a_lookout_finds_the_other_one_kept_by_a_callback() {
    for turns in 0..20 {
        let (timers, crew) = crew(2, Clock::manual(TICK, Tick(0)));
        let mut both = Both::on_duty(&crew);
        let go_on = |both: &mut Both, due| {
            start(&timers, 1, 1, due);
            crew.rests(1);
            both.turn(&crew)
        };
        let first_of = |both: &Both| usize::from(both.up[1] < both.up[0]);
        (0..6 + turns).for_each(|_| _ = go_on(&mut both, TICK));
        // The next one is up, and stays there.
        let stuck = first_of(&both);
        let begun = both.up[stuck];
        crew.set_clock(begun);
        start(&timers, 1, 1, 3 * TICK);
        crew.rests(1);
        assert!(crew.is_watched(crew.lookouts(), stuck), "it runs callbacks");
        both.up[stuck] = PATIENCE;
        let before = crew.tickets()[1];
        while before == crew.tickets()[1] {
            assert_ne!(both.turn(&crew), stuck, "nobody finds it");
            assert!(crew.now() <= begun + WATCH, "too late, after {turns} turns");
        }
        assert!(!both.duties[1 - stuck].is_on && !crew.lookouts().is_there(0), "nobody would watch the other one");
        assert_eq!(crew.calm.load(Relaxed), 2 * CALM, "it was not there for long");
    }
}

#[test]
fn a_lookout_that_gets_up_late_resigns() {
    let (timers, crew) = crew(2, Clock::manual(TICK, Tick(0)));
    let mut duty = on_duty(&crew);
    other_sleeps(&crew, 2 * TICK);
    let turn = |duty: &mut Duty| crew.turn_of_lookout(crew.lookouts(), duty, Some(after(TICK)));
    crew.set_clock(TICK + STOPPED);
    turn(&mut duty);
    assert!(duty.is_on, "so may any thread be");
    crew.lookouts().resign(1, |_| {});
    let (left, has_run) = mpsc::channel();
    assert_resigns(&timers, &crew, &mut duty, |duty| {
        crew.set_clock(TICK + STOPPED + Duration::from_nanos(1));
        let left = left.clone();
        assert!(crew.lane.leave(1, 1, Box::new(move || left.send(1).map_or(0, |()| 1))).is_none());
        assert_eq!(turn(duty), None, "it goes on");
    });
    assert!(!crew.lookouts().is_there(0), "there may be another one");
    assert_eq!((crew.looks_out(&mut duty), has_run.try_recv()), (NEVER, Ok(1)));
    assert!(!crew.lookouts().is_there(0));
}

#[test]
fn a_lookout_that_is_late_again_and_again_resigns() {
    let (_timers, crew) = crew(2, Clock::manual(TICK, Tick(0)));
    crew.set_clock(PATIENCE);
    let turns_if = |late: Duration| {
        let mut duty = Duty::new(0, true);
        (1..=100).find(|_| crew.is_late(&mut duty, after(PATIENCE - late)))
    };
    let very_late = STOPPED + Duration::from_nanos(1);
    assert_eq!([LATE, 2 * LATE, STOPPED, very_late].map(turns_if), [None, Some(6), Some(3), Some(1)]);
}

#[test]
fn a_lookout_that_is_stopped_while_it_is_up_resigns() {
    let (timers, crew) = crew(2, Clock::manual(TICK, Tick(0)));
    let mut duty = on_duty(&crew);
    other_sleeps(&crew, 2 * TICK);
    start(&timers, 1, 1, TICK);
    assert_eq!(crew.rests(1), in_vain(1, TICK));
    let _getting_up = lock(&crew.workers[1]);
    crew.set_clock(TICK + STOPPED);
    crew.looks_out(&mut duty);
    assert!(duty.is_on);
    crew.set_clock(TICK + STOPPED + Duration::from_nanos(1));
    crew.looks_out(&mut duty);
    assert!(!duty.is_on);
}

#[test]
fn a_lookout_that_stays_alone_resigns() {
    let (_timers, crew) = crew(2, Clock::manual(TICK, Tick(0)));
    let mut duty = on_duty(&crew);
    let turns = (1..20).take_while(|&turn| {
        crew.set_clock(turn * TICK);
        // The other one comes once.
        let comes = turn == 2;
        if comes {
            other_sleeps(&crew, 3 * TICK);
        } else {
            crew.lookouts().resign(1, |_| {});
        }
        crew.looks_out(&mut duty);
        duty.is_on
    });
    assert_eq!(turns.count() as u32, 3 + ALONE_MAX.as_millis() as u32);
}

#[test]
fn both_lookouts_are_called_when_they_are_wanted() {
    let (_timers, crew) = crew(2, Clock::manual(TICK, Tick(0)));
    let tickets = || [0, 1].map(|number| crew.lane.ticket(number));
    let before = tickets();
    crew.count_calm(&mut (CALM - 1), 0, Some(after(TICK)));
    assert!(crew.is_wanted.load(Relaxed) && before.into_iter().zip(tickets()).all(|(before, now)| before != now));
}

/// It was off duty until now, and watched the other one.
#[test]
fn a_lookout_that_comes_on_duty_is_not_late() {
    let (_timers, crew) = crew(2, Clock::manual(TICK, Tick(0)));
    crew.set_clock(9 * TICK);
    crew.is_wanted.store(true, Relaxed);
    let mut duty = Duty::new(0, false);
    crew.turn_of_lookout(crew.lookouts(), &mut duty, Some(after(TICK)));
    assert!(duty.is_on);
}

#[test]
fn a_lookout_that_resigns_calls_the_other_one() {
    let (_timers, crew) = crew(2, Clock::manual(TICK, Tick(0)));
    for number in 0..LOOKOUTS {
        let before = crew.lane.ticket(1 - number);
        crew.resign_if(crew.lookouts(), &mut Duty::new(number, true), true);
        assert_ne!(before, crew.lane.ticket(1 - number));
    }
}

#[test]
fn what_makes_both_lookouts_resign_counts_once() {
    let (_timers, crew) = crew(2, Clock::manual(TICK, Tick(0)));
    crew.is_wanted.store(true, Relaxed);
    (0..LOOKOUTS).for_each(|number| crew.resign_if(crew.lookouts(), &mut Duty::new(number, true), true));
    assert_eq!(crew.calm.load(Relaxed), 2 * CALM);
}

#[test]
fn a_lookout_learns_that_the_other_one_has_resigned_which_watches_it_until_then() {
    let (timers, crew) = crew(3, Clock::manual(TICK, Tick(0)));
    let mut both = Both::in_turns(&crew);
    let [first, second] = &mut both.duties;
    crew.resign_if(crew.lookouts(), first, true);
    start(&timers, 2, 1, 3 * TICK);
    let due = crew.now() + 3 * TICK;
    assert_eq!(crew.rests(2), in_vain(2, due), "it relies on the second one");
    let before = crew.tickets()[2];
    assert_eq!(crew.looks_out(first), after(both.up[1] + WATCH));
    assert_eq!((crew.looks_out(second), second.is_on), (NEVER, false));
    assert!(before != crew.tickets()[2] && !crew.lookouts().is_there(0));
    assert_eq!(crew.looks_out(first), NEVER);
}

/// The second one is up, and then kept by a callback, when the first one resigns.
#[test]
fn a_lookout_that_has_resigned_finds_the_other_one_kept_by_a_callback() {
    let (timers, crew) = crew(2, Clock::manual(TICK, Tick(0)));
    let mut both = Both::in_turns(&crew);
    let begun = crew.now();
    crew.lookouts().stay_up(1, || after(begun).0);
    start(&timers, 1, 1, 3 * TICK);
    assert_eq!(crew.rests(1), in_vain(1, begun + 3 * TICK));
    let first = &mut both.duties[0];
    crew.resign_if(crew.lookouts(), first, true);
    assert_eq!(crew.looks_out(first), after(begun + WATCH));
    let before = crew.tickets()[1];
    crew.set_clock(begun + WATCH);
    assert_eq!(crew.looks_out(first), after(begun + WATCH + NAP));
    assert_ne!(before, crew.tickets()[1]);
    assert_eq!(crew.looks_out(first), NEVER);
}

/// Otherwise nobody might look there until a worker takes it back.
#[test]
fn a_lookout_comes_back_soon_for_what_it_must_not_run() {
    let (_timers, crew) = crew(2, Clock::manual(TICK, Tick(0)));
    let mut both = Both::in_turns(&crew);
    let (first, now) = (&mut both.duties[0], after(crew.now()));
    crew.lookouts().stay_up(1, || now.0);
    assert!(crew.lane.leave(1, 1, Box::new(|| 1)).is_none());
    assert_eq!((crew.looks_out(first), crew.lane.is_waited_for()), (now.plus(NAP), true), "the other one is up, too");
    crew.lookouts().lie_down(1, now.plus(TICK).0, now.0);
    assert!(crew.looks_out(first) > now.plus(NAP) && !crew.lane.is_waited_for());
}

/// What says that there is none may be stopped before it has told anybody.
#[test]
fn the_first_thread_tells_those_that_still_rely_on_lookouts_that_are_gone() {
    let dismiss = |lookouts: &Lookouts| assert!(lookouts.dismiss(|| NEVER.0, |_| {}));
    for ends in [dismiss, |lookouts: &Lookouts| lookouts.resign(0, |_| {})] {
        let (timers, crew) = crew(3, Clock::manual(TICK, Tick(0)));
        on_duty(&crew);
        start(&timers, 1, 1, 2 * TICK);
        assert_eq!(crew.rests(1), in_vain(1, 2 * TICK));
        let before = crew.tickets();
        crew.rests(0);
        assert_eq!(crew.tickets(), before, "it is there");
        ends(crew.lookouts());
        crew.rests(2);
        assert_eq!(crew.tickets(), before, "this is not the first");
        crew.rests(0);
        assert!(before[1] != crew.tickets()[1] && before[2] == crew.tickets()[2]);
    }
}

#[test]
fn no_others_are_wanted_in_place_of_one_that_was_dismissed() {
    let (_timers, crew) = crew(2, Clock::manual(TICK, Tick(0)));
    let mut duty = on_duty(&crew);
    assert!(crew.lookouts().dismiss(|| NEVER.0, |_| {}));
    let calm_after_one_more = || {
        let mut calm = 7;
        crew.count_calm(&mut calm, 0, Some(after(TICK)));
        calm
    };
    assert_eq!(calm_after_one_more(), 0);
    crew.resign_if(crew.lookouts(), &mut duty, true);
    assert_eq!(calm_after_one_more(), 8);
}

#[test]
fn lookouts_that_do_not_come_are_missed() {
    let (timers, crew) = crew(4, Clock::manual(TICK, Tick(0)));
    on_duty(&crew);
    for (number, due) in [(1, TICK), (2, 2 * TICK), (3, 15 * TICK)] {
        start(&timers, number, 1, due);
        assert_eq!(crew.rests(number), in_vain(number, due));
    }
    let before = crew.tickets();
    let told = || [2, 3].map(|number| before[number] != crew.tickets()[number]);
    let times = [TICK + STOPPED, TICK + STOPPED + Duration::from_nanos(1)];
    let [first, second] = times.map(|time| {
        crew.set_clock(time);
        crew.rests(1);
        start(&timers, 1, 1, TICK);
        (crew.rests(1) > after(time + GRACE), told())
    });
    assert_eq!(first, (false, [false; 2]), "it does not rely on one that is late, but that may be about to come");
    assert_eq!(second, (false, [true; 2]), "it tells the others");
    let before = crew.tickets();
    crew.rests(2);
    assert_eq!(crew.tickets(), before, "who was told tells nobody");
    assert!(crew.fired(1) > 0);
}
