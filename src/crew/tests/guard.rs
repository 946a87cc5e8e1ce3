//! Who looks whether the lookout still comes, how often, and what happens if it does not.

use super::*;

/// Until when the first thread sleeps, whose shard is due after a second, if the lookout runs callbacks at `ran_at`;
/// and whether the lookout wakes it then.
fn guards(ran_at: Duration, now: Duration) -> (Nanos, bool) {
    let (timers, crew) = crew(2, Clock::manual(TICK, Tick(0)));
    start(&timers, 0, 1, Duration::from_secs(1));
    assert_eq!(crew.rests(0), after(Duration::from_secs(1)));
    crew.set_clock(ran_at);
    assert!(crew.lane.leave(1, 1, Box::new(|| 1)).is_none());
    let before = crew.tickets()[0];
    crew.run_callbacks(crew.lookout());
    let is_called = before != crew.tickets()[0];
    crew.set_clock(now);
    (crew.rests(0), is_called)
}

#[test]
fn the_guard_sleeps_little_while_the_lookout_runs_callbacks() {
    let (second, ran_at) = (Duration::from_secs(1), 100 * TICK);
    let lasts = ran_at + 2 * WATCH;
    assert_eq!(guards(ran_at, ran_at), (after(ran_at + WATCH), true));
    assert_eq!(guards(ran_at, lasts - TICK), (after(lasts - TICK + WATCH), true));
    assert_eq!(guards(ran_at, lasts), (after(second), true), "that was long ago");
    assert!(!guards(second - WATCH, second).1, "it gets up soon in any case");
}

/// How often callbacks have been quick, and how long the guard sleeps then.
const WATCHES: [(u32, Duration); 6] = [
    (0, WATCH),
    (QUICK_RUNS - 1, WATCH),
    (QUICK_RUNS, Duration::from_millis(4)),
    (2 * QUICK_RUNS - 1, Duration::from_millis(4)),
    (2 * QUICK_RUNS, Duration::from_millis(8)),
    (u32::MAX, Duration::from_millis(8)),
];

#[test]
fn the_guard_sleeps_longer_if_callbacks_have_been_quick_for_long() {
    for (runs, watch) in WATCHES {
        let (_timers, crew) = crew(2, Clock::manual(TICK, Tick(0)));
        crew.set_clock(100 * TICK);
        crew.quick_runs.store(runs, Relaxed);
        crew.lookout().is_guarded(after(100 * TICK).0, 0);
        assert_eq!(crew.rests(0), after(100 * TICK + watch), "{runs}");
    }
}

#[test]
fn the_guard_is_not_called_while_it_is_there() {
    for (runs, watch) in WATCHES {
        let (_timers, crew) = crew(2, Clock::manual(TICK, Tick(0)));
        crew.quick_runs.store(runs, Relaxed);
        let period = 2 * watch.as_millis() as u32;
        let calls = (0..100_u32).filter(|&turn| {
            crew.set_clock((100 + turn) * TICK);
            // It gets up when it said so.
            if turn % period == 1 {
                crew.rests(0);
            }
            let before = crew.tickets()[0];
            crew.run_callbacks(crew.lookout());
            assert_eq!(before, crew.tickets()[0], "there are no callbacks");
            assert!(crew.lane.leave(1, 1, Box::new(|| 1)).is_none());
            crew.run_callbacks(crew.lookout());
            before != crew.tickets()[0]
        });
        assert_eq!(calls.collect::<Vec<_>>(), [0], "{runs}");
    }
    // It is up, and does not rest.
    let (_timers, crew) = crew_with_pool(2);
    crew.lookout().guard_gets_up_by(NEVER.0);
    crew.keeps_up(0, false);
    assert_eq!(crew.turn(0, &mut 0, false), None);
    assert!(crew.lookout().is_guarded(0, 0));
}

/// The lookout means to sleep for long, and is called for callbacks.
#[test]
fn a_lookout_that_runs_callbacks_is_missed_from_then_on() {
    let (_timers, crew) = crew(2, Clock::manual(TICK, Tick(0)));
    crew.lookout().lie_down(after(14 * TICK).0);
    crew.set_clock(TICK);
    assert!(crew.lane.leave(1, 1, Box::new(|| 1)).is_none());
    crew.run_callbacks(crew.lookout());
    assert!(crew.lookout().is_there(after(TICK).0) && !crew.lookout().is_there(after(TICK).0 + 1));
}

#[test]
fn the_guard_wakes_all_that_rely_on_a_lookout_that_does_not_come() {
    let (timers, crew) = crew(3, Clock::manual(TICK, Tick(0)));
    on_duty(&crew);
    for (number, due) in [(1, 2 * TICK), (2, 15 * TICK)] {
        start(&timers, number, 1, due);
        assert_eq!(crew.rests(number), in_vain(number, due));
    }
    let before = crew.tickets();
    crew.set_clock(TICK + MISSING + Duration::from_nanos(1));
    crew.rests(0);
    assert!([1, 2].into_iter().all(|number| before[number] != crew.tickets()[number]));
}

/// What says that there is none may be stopped before it has told anybody.
#[test]
fn the_guard_tells_those_that_still_rely_on_a_lookout_that_is_gone() {
    let dismiss = |lookout: &Lookout| assert!(lookout.dismiss(|| NEVER.0, |_| {}));
    for ends in [dismiss, |lookout: &Lookout| lookout.resign(|_| {})] {
        let (timers, crew) = crew(3, Clock::manual(TICK, Tick(0)));
        on_duty(&crew);
        start(&timers, 1, 1, 2 * TICK);
        assert_eq!(crew.rests(1), in_vain(1, 2 * TICK));
        let before = crew.tickets();
        crew.rests(0);
        assert_eq!(crew.tickets(), before, "it is there");
        ends(crew.lookout());
        crew.rests(2);
        assert_eq!(crew.tickets(), before, "this is not the guard");
        crew.rests(0);
        assert!(before[1] != crew.tickets()[1] && before[2] == crew.tickets()[2]);
    }
}

#[test]
fn no_other_lookout_is_wanted_in_place_of_one_that_was_dismissed() {
    let (_timers, crew) = crew(2, Clock::manual(TICK, Tick(0)));
    let mut duty = on_duty(&crew);
    assert!(crew.lookout().dismiss(|| NEVER.0, |_| {}));
    let calm_after_one_more = || {
        let mut calm = 7;
        crew.count_calm(&mut calm, 0, Some(after(TICK)));
        calm
    };
    assert_eq!(calm_after_one_more(), 0);
    crew.resign_if(crew.lookout(), &mut duty, true);
    assert_eq!(calm_after_one_more(), 8);
}

/// The guard's turn may take long, and its last look have been before the lookout could be missing.
#[test]
fn the_guard_looks_once_more_after_a_long_turn() {
    let (_timers, crew) = crew(2, Clock::manual(TICK, Tick(0)));
    let (begun, far) = (after(9 * TICK), after(PATIENCE));
    crew.lookout().is_guarded(begun.0, 0);
    crew.core.clock.set(begun.plus(9 * WATCH));
    let until = |up_at| crew.guard(crew.lookout(), begun.plus(up_at), far);
    assert_eq!(until(2 * WATCH - Duration::from_nanos(1)), begun.plus(10 * WATCH));
    assert_eq!(until(2 * WATCH), far);
}

/// Wherever the guard is when a callback that does not end begins.
#[test]
fn the_guard_finds_a_lookout_that_is_kept_by_a_callback() {
    for (part, (runs, watch)) in (0..=40).flat_map(|part| WATCHES.map(|watch| (part, watch))) {
        let (timers, crew) = crew(2, Clock::manual(TICK, Tick(0)));
        let (lookout, clock) = (crew.lookout(), &crew.core.clock);
        crew.set_clock(9 * TICK);
        on_duty_from(&crew, 9 * TICK);
        crew.quick_runs.store(runs, Relaxed);
        start(&timers, 1, 1, 9 * TICK);
        assert_eq!(crew.rests(1), in_vain(1, 18 * TICK));
        let (before, begun) = (crew.tickets()[1], after(9 * TICK + part * watch / 20));
        let is_guarded = || lookout.is_guarded(clock.now().0, clock.now().plus(watch).0);
        let mut look = clock.now();
        // Until then it comes in time, and what it runs is quick.
        while look <= begun {
            clock.set(look);
            lookout.lie_down(look.plus(TICK).0);
            is_guarded();
            look = crew.rests(0);
        }
        clock.set(begun);
        lookout.stay_up(begun.0);
        if !is_guarded() {
            look = crew.rests(0);
        }
        while before == crew.tickets()[1] {
            assert!(look <= begun.plus(MISSING + watch), "part {part}, {runs}");
            clock.set(look);
            look = crew.rests(0);
        }
    }
}

#[test]
fn what_is_slow_is_watched_closely_afterwards() {
    let (_timers, crew) = crew(2, Clock::manual(TICK, Tick(0)));
    let runs_after = |spent| {
        let core = Arc::clone(&crew.core);
        let job = move || {
            core.clock.set(core.clock.now().plus(spent));
            1
        };
        assert!(crew.lane.leave(1, 1, Box::new(job)).is_none());
        crew.run_callbacks(crew.lookout());
        crew.quick_runs.load(Relaxed)
    };
    assert_eq!([LATE, TICK, LATE + TICK, TICK].map(runs_after), [1, 2, 0, 1]);
    crew.run_callbacks(crew.lookout());
    assert_eq!(crew.quick_runs.load(Relaxed), 1, "there was nothing to run");
}

#[test]
fn a_lookout_that_does_not_come_is_missed() {
    let (timers, crew) = crew(4, Clock::manual(TICK, Tick(0)));
    on_duty(&crew);
    for (number, due) in [(1, TICK), (2, 2 * TICK), (3, 15 * TICK)] {
        start(&timers, number, 1, due);
        assert_eq!(crew.rests(number), in_vain(number, due));
    }
    let before = crew.tickets();
    let told = || [2, 3].map(|number| before[number] != crew.tickets()[number]);
    let times = [TICK + MISSING, TICK + MISSING + Duration::from_nanos(1)];
    let [first, second] = times.map(|time| {
        crew.set_clock(time);
        crew.rests(1);
        start(&timers, 1, 1, TICK);
        (crew.rests(1) > after(time + GRACE), told())
    });
    assert_eq!(first, (true, [false; 2]), "it may be about to come");
    assert_eq!(second, (false, [true; 2]), "it does not rely on it any more, and tells the others");
    let before = crew.tickets();
    crew.rests(2);
    assert_eq!(crew.tickets(), before, "who was told tells nobody");
    assert!(crew.fired(1) > 0);
}
