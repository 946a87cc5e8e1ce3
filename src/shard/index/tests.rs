//! Timers that come and go in the lines of an index.

use super::super::search::CELLS;
use super::super::{ClaimedNode, Due, Fired, Hint, Look, Refused, Repeats, Shard, Tick};
use super::*;
use crate::sync::size::PAIRS;
use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

type Timers = Shard<u32, u32>;

const NOW: Tick = Tick(1);
const DUE: Due = Due { tick: Some(Tick(9)), now: NOW };

fn timers() -> Timers {
    Timers::new(1, 64, NOW)
}

/// In the first line, with a tag.
const SOME_HASH: u32 = 3 << 16;

#[test]
fn timers_are_found_before_and_after_their_lines_are_split() {
    // Many of one hash among them.
    for spread in [u32::MAX / 500, 1, 0] {
        let count = 500;
        let shard = timers();
        let ordinal = crate::thread::ordinal();
        let spot = |key: u32| Spot::of(key * spread);
        for key in 0..count {
            let access = &mut Access::new(&ordinal);
            assert!(shard.schedule(spot(key), key, key, DUE, Repeats::Never, access).is_ok());
        }
        let access = Access::new(&ordinal);
        let is_there = |key| shard.holds(spot(key), |&other| other == key, &access);
        assert!((0..count).all(is_there));
        let next = (0..2 * count).fold(1, |next, _| shard.split_ahead(next, 7, &access));
        assert!(next >= 2 << 6 && (0..count).all(is_there), "{next}");
        for key in (0..count).rev() {
            assert_eq!(shard.cancel(spot(key), None, |&other| other == key, &access), Some(key));
            assert!(!is_there(key));
        }
        assert_eq!(linked(&shard), 0);
    }
}

/// An array goes when all its lines are split, whoever is looking for a timer in it.
#[test]
fn timers_are_found_while_arrays_come_and_go() {
    let count = 200;
    let spot = |key: u32| Spot::of(key.wrapping_mul(u32::MAX / 500));
    for _ in 0..10 {
        let shard = timers();
        let is_over = AtomicBool::new(false);
        let start = |key| {
            let ordinal = crate::thread::ordinal();
            assert!(shard.schedule(spot(key), key, key, DUE, Repeats::Never, &mut Access::new(&ordinal)).is_ok());
        };
        let look_up = |from: u32| {
            let ordinal = crate::thread::ordinal();
            for key in (0..count).cycle().skip(from as usize).take_while(|_| !is_over.load(Relaxed)) {
                assert!(shard.holds(spot(key), |&other| other == key, &Access::new(&ordinal)), "{key}");
                let another = count + from;
                start(another);
                let access = Access::new(&ordinal);
                assert_eq!(shard.cancel(spot(another), None, |&other| other == another, &access), Some(another));
                access.guard.flush();
            }
        };
        let grow = || {
            let ordinal = crate::thread::ordinal();
            for doublings in 1..=8 {
                shard.index.lines.make_room((16 << (5 + doublings)) - 1);
                let access = Access::new(&ordinal);
                shard.split_ahead(0, u32::MAX, &access);
                access.guard.flush();
            }
        };
        (0..count).for_each(start);
        std::thread::scope(|scope| {
            (0..2).for_each(|from| _ = scope.spawn(move || look_up(from)));
            let others: Vec<_> = (0..2).map(|_| scope.spawn(grow)).collect();
            others.into_iter().for_each(|thread| thread.join().expect("it only grows"));
            is_over.store(true, Relaxed);
        });
        assert_eq!(shard.line_count(), 32 << 8);
        shard.assert_array_alone();
    }
}

#[test]
fn a_timer_that_is_ended_while_it_fires_is_no_longer_passed_by() {
    let rounds = 4 * 64;
    let shard = timers();
    let ordinal = crate::thread::ordinal();
    let access = || Access::new(&ordinal);
    let is_key = |&key: &u32| key == 7;
    let mut firing = Vec::new();
    for round in 0..rounds {
        let due = Due { tick: Some(NOW), now: NOW };
        let started = shard.schedule(Spot::of(3), 7, round, due, Repeats::IfWanted, &mut access());
        let timer = started.expect("it is open").identity;
        assert_eq!(linked(&shard), 1, "round {round}");
        assert!(firing.iter().all(|(claim, _): &(ClaimedNode, u32)| claim.node() != timer.node), "it is in use");
        let Look::Expired(claim) = shard.look(Hint::new(NOW, timer.node), NOW) else { panic!("it is due") };
        firing.push(shard.take_value(claim));
        match round % 3 {
            0 => assert_eq!(shard.cancel(Spot::of(3), None, is_key, &access()), None),
            1 => assert_eq!(shard.cancel_this(timer, &access()), None),
            _ => continue,
        }
        assert_eq!(linked(&shard), 0, "round {round}");
    }
    for (claim, value) in firing {
        let access = &access();
        let Fired::Ended(claim, _) = shard.rearm_or_end(claim, value, None, NOW, access) else {
            panic!("it was ended")
        };
        shard.finish(claim, access);
    }
    assert_eq!((linked(&shard), shard.nodes_in_use()), (0, 0));
}

/// As by a callback that starts its own key again; and by somebody else, over and over, while all those callbacks are
/// late.
#[test]
fn a_key_may_be_started_again_before_its_callback_is_done() {
    let shard = timers();
    let ordinal = crate::thread::ordinal();
    let access = || Access::new(&ordinal);
    let due = Due { tick: Some(NOW), now: NOW };
    let tickets = |access: &Access| shard.index.lines.home(3, access).1.version();
    let mut late = Vec::new();
    for round in 0..4 * 64 + 3 {
        let before = tickets(&access());
        let started = shard.schedule(Spot::of(3), 7, round, due, Repeats::Never, &mut access()).expect("it is open");
        assert!(started.replaced.is_none() && linked(&shard) <= 3, "round {round}");
        // Not one that it need have drawn for a single timer that has fired.
        assert!(round > 1 || tickets(&access()) == before, "round {round}");
        let hint = Hint::new(NOW, started.identity.node);
        let Look::Expired(claim) = shard.look(hint, NOW) else { panic!("it is due") };
        late.push(shard.take_value(claim).0);
    }
    assert!(!shard.holds(Spot::of(3), |_| true, &access()));
    shard.finish_all(&mut late, &access());
    assert_eq!((linked(&shard), late.len()), (0, 0));
    // But for the batch that is not full.
    assert_eq!(shard.nodes_in_use(), 64);
}

/// The same with `schedule_if_absent`.
#[test]
fn a_key_may_be_started_if_absent_before_its_callback_is_done() {
    let shard = timers();
    let ordinal = crate::thread::ordinal();
    let access = || Access::new(&ordinal);
    let is_key = |&key: &u32| key == 7;
    let mut late = Vec::new();
    for round in 0..4 * 64 + 3 {
        let absent = shard.schedule_if_absent(Spot::of(3), 7, round, DUE, Repeats::Never, &mut access());
        assert!(matches!(absent, Ok(None)) && linked(&shard) <= 3, "round {round}");
        let claim = shard.claim(Spot::of(3), is_key, &access()).expect("it is pending");
        late.push(shard.take_value(claim).0);
    }
    shard.finish_all(&mut late, &access());
    assert_eq!((linked(&shard), shard.nodes_in_use()), (0, 64));
}

/// Between a glimpse and what is done with it.
#[test]
fn a_glimpse_of_what_has_changed_since_does_not_mislead() {
    let ordinal = crate::thread::ordinal();
    let access = || Access::new(&ordinal);
    let begin = |timers: &Timers, key, value| {
        let started = timers.schedule(Spot::of(SOME_HASH), key, value, DUE, Repeats::Never, &mut access());
        assert!(started.is_ok());
    };
    let cancel = |timers: &Timers, key: u32| timers.cancel(Spot::of(SOME_HASH), None, |&other| other == key, &access());
    type Change<'a> = (&'a dyn Fn(&Timers), Option<u32>);
    let changes: [Change<'_>; 6] = [
        (&|_| {}, Some(70)),
        (&|timers| assert_eq!(cancel(timers, 7), Some(70)), None),
        (&|timers| begin(timers, 7, 71), Some(71)),
        (&|timers| assert_eq!((cancel(timers, 7), begin(timers, 7, 72)), (Some(70), ())), Some(72)),
        // Its line is split.
        (
            &|timers| {
                assert!(
                    timers.index.lines.make_room(16 * timers.line_count())
                        && timers.holds(Spot::of(SOME_HASH), |_| true, &access())
                )
            },
            Some(70),
        ),
        // It was of another key.
        (&|timers| assert_eq!((cancel(timers, 7), begin(timers, 8, 80)), (Some(70), ())), None),
    ];
    for (number, (change, left)) in changes.into_iter().enumerate() {
        for moves in [false, true] {
            let timers = timers();
            begin(&timers, 7, 70);
            let access = access();
            let glimpse = timers.glimpse(Spot::of(SOME_HASH), Intent::End, &access);
            assert!(glimpse.is_some());
            change(&timers);
            let is_key = |&key: &u32| key == 7;
            if moves {
                let moved = timers.reschedule(Spot::of(SOME_HASH), glimpse, is_key, DUE, &access);
                assert_eq!(moved, left.is_some(), "change {number}");
                assert_eq!(cancel(&timers, 7), left, "change {number}");
            } else {
                assert_eq!(timers.cancel(Spot::of(SOME_HASH), glimpse, is_key, &access), left, "change {number}");
            }
            _ = cancel(&timers, 8);
            assert_eq!(linked(&timers), 0, "change {number}");
        }
    }
}

/// Another key looks the same, and is seen first.
#[test]
fn a_glimpse_of_another_key_does_not_mislead() {
    let shard = timers();
    let ordinal = crate::thread::ordinal();
    let access = &mut Access::new(&ordinal);
    for key in [8, 7] {
        assert!(shard.schedule(Spot::of(SOME_HASH), key, 10 * key, DUE, Repeats::Never, access).is_ok());
    }
    let glimpse = shard.glimpse(Spot::of(SOME_HASH), Intent::End, access);
    assert!(glimpse.is_some());
    assert_eq!(shard.cancel(Spot::of(SOME_HASH), glimpse, |&key| key == 7, access), Some(70));
    assert_eq!(shard.cancel(Spot::of(SOME_HASH), None, |&key| key == 8, access), Some(80));
}

#[test]
fn a_glimpse_leads_to_its_timer_when_the_cell_beside_has_changed() {
    let shard = timers();
    let ordinal = crate::thread::ordinal();
    let access = &mut Access::new(&ordinal);
    // The last one comes into the same pair as the first one.
    let last = PAIRS as u32;
    for key in 0..=last {
        assert!(shard.schedule(Spot::of(SOME_HASH + (key << 16)), key, 10 * key, DUE, Repeats::Never, access).is_ok());
    }
    let cancel = |key, glimpse| shard.cancel(Spot::of(SOME_HASH + (key << 16)), glimpse, |&other| other == key, access);
    let glimpse = shard.glimpse(Spot::of(SOME_HASH), Intent::End, access);
    assert!(glimpse.is_some());
    assert_eq!(cancel(last, None), Some(10 * last));
    assert_eq!(cancel(0, glimpse), Some(0));
    assert_eq!(linked(&shard), PAIRS - 1);
}

#[test]
fn a_timer_that_gives_way_leaves_nothing_behind() {
    let shard = timers();
    let ordinal = crate::thread::ordinal();
    for round in 0..4 * 64 {
        let access = &mut Access::new(&ordinal);
        let given = shard.schedule_if_absent(Spot::of(3), 7, round, DUE, Repeats::Never, access).expect("it is open");
        assert_eq!((given, linked(&shard)), ((round > 0).then_some(round), 1));
    }
    assert_eq!(shard.cancel(Spot::of(3), None, |&key| key == 7, &Access::new(&ordinal)), Some(0));
    assert_eq!((linked(&shard), shard.nodes_in_use()), (0, 0));
}

/// What stands between growing and the end of the shard: the number of a new node needs more lines, and there will be
/// none.
#[test]
fn a_shard_that_is_about_to_be_sealed_takes_no_node_that_it_has_no_room_for() {
    let few = 16 * Lines::new().count();
    let shard = timers();
    let ordinal = crate::thread::ordinal();
    let access = &mut Access::new(&ordinal);
    let due = Due { tick: None, now: NOW };
    for key in 0..few {
        assert!(shard.schedule_unindexed(key, key, due, Repeats::Never, access).is_ok());
    }
    shard.index.lines.seal();
    let refused = shard.schedule(Spot::of(3), 7, 70, due, Repeats::Never, access);
    assert!(matches!(refused, Err(Refused::Sealed(7, 70))));
    assert_eq!(linked(&shard), 0);
}

/// As with nodes, the timer does not begin, and key and value come back.
#[test]
fn where_no_further_line_is_left_a_timer_is_refused() {
    let shard = timers();
    let ordinal = crate::thread::ordinal();
    let access = &mut Access::new(&ordinal);
    let due = Due { tick: None, now: NOW };
    let mut schedule = |key| shard.schedule(Spot::of(0), key, 10 * key, due, Repeats::Never, access);
    shard.index.lines.overflow.use_up();
    assert!((1..CELLS).all(|key| schedule(key).is_ok()));
    // For a moment, both are there.
    assert!(matches!(schedule(7), Ok(started) if started.replaced == Some(70)));
    assert!(schedule(0).is_ok());
    assert!(matches!(schedule(CELLS), Err(Refused::Exhausted(CELLS, value)) if value == 10 * CELLS));
    assert_eq!(linked(&shard), CELLS as usize);
}

#[test]
fn further_lines_are_used_again() {
    let shard = timers();
    let ordinal = crate::thread::ordinal();
    let due = Due { tick: None, now: NOW };
    let spot = |key: u32| Spot::of(key << 24);
    let schedule = |key| {
        let access = &mut Access::new(&ordinal);
        assert!(shard.schedule(spot(key), key, key, due, Repeats::Never, access).is_ok());
    };
    // All in one line of the first array; then in several of a larger one.
    let count = 6 * CELLS;
    (0..count).for_each(|key| schedule(key % 8 + key / 8 * 256));
    assert_eq!(further_lines(&shard), 5);
    split(&shard, &Access::new(&ordinal));
    assert_eq!(linked(&shard), count as usize);
    // Those of the first array, of those between, and what they have been split into.
    until_used_again(&shard);
}

/// Without a split; and each once, whether its last timer leaves first or last.
#[test]
fn a_further_line_is_used_again_when_its_timers_have_left() {
    let shard = timers();
    let ordinal = crate::thread::ordinal();
    let access = || Access::new(&ordinal);
    let count = 2 * CELLS + 1;
    for leaves_last in [true, false] {
        assert!((0..count).all(|key| start_alike(&shard, key).is_ok()));
        assert_eq!(further_lines(&shard), 2);
        // Who came before may be looking at them yet.
        let reader = access();
        // The last is that of the second further line.
        let mut leaving: Vec<_> = (CELLS..count).collect();
        if !leaves_last {
            leaving.reverse();
        }
        leaving.into_iter().for_each(|key| end_alike(&shard, key));
        (0..100).for_each(|_| reader.guard.flush());
        assert_eq!(further_lines(&shard), 2);
        drop(reader);
        until_used_again(&shard);
        let guard = access();
        let lines: Vec<_> = (0..3).map(|_| shard.index.lines.overflow.build(&[1], true, &guard)).collect();
        let numbers: HashSet<_> = lines.iter().flatten().map(|more| more.line()).collect();
        assert_eq!(numbers.len(), 3, "one of them is handed out twice");
        lines.into_iter().flatten().for_each(|more| shard.index.lines.overflow.retire(more, &guard));
        drop(guard);
        (0..CELLS).for_each(|key| end_alike(&shard, key));
        until_used_again(&shard);
    }
}

#[test]
fn a_timer_that_is_refused_keeps_no_further_line() {
    let shard = timers();
    let count = 2 * CELLS;
    assert!((0..count).all(|key| start_alike(&shard, key).is_ok()));
    shard.index.lines.overflow.use_up();
    assert!(matches!(start_alike(&shard, count), Err(Refused::Exhausted(..))));
    (0..count).for_each(|key| end_alike(&shard, key));
    let ordinal = crate::thread::ordinal();
    let access = Access::new(&ordinal);
    let (home, _) = shard.index.lines.home(0, &access);
    assert_eq!(home.line.last_pair().load().link(), More::NONE);
}

/// What is full goes another way than what has an empty cell.
#[test]
fn a_full_line_takes_no_timer_once_it_is_sealed() {
    for full in [CELLS, 2 * CELLS] {
        let shard = timers();
        assert!((0..full).all(|key| start_alike(&shard, key).is_ok()));
        let mut ended = 0;
        shard.seal(&Access::new(&crate::thread::ordinal()), |_| ended += 1);
        assert_eq!(ended, full);
        assert!(matches!(start_alike(&shard, full), Err(Refused::Sealed(..))));
    }
}

/// Else a newer timer would be decided before an older one, which has a ticket from before.
#[test]
fn tickets_go_on_after_a_split() {
    let shard = timers();
    let ordinal = crate::thread::ordinal();
    let access = &mut Access::new(&ordinal);
    let spot = Spot::of(SOME_HASH);
    let deadline = DUE.deadline();
    let older = shard.slab.allocate(spot.hash(), 7, 70, deadline, Repeats::Never, access).expect("there is room");
    assert!(shard.index.insert(&shard.slab, spot, older, access).is_ok());
    (0..5).for_each(|_| _ = shard.index.draw(spot, access));
    older.head.word.give_ticket(older.head.word.load(), shard.index.draw(spot, access));
    split(&shard, access);
    let newer = shard.schedule(Spot::of(SOME_HASH), 7, 71, DUE, Repeats::Never, access).expect("it is open");
    assert_eq!(newer.replaced, Some(70));
}

/// Starts one of many timers that all look alike, in one line and those behind it.
fn start_alike(shard: &Timers, key: u32) -> Result<(), Refused<u32, u32>> {
    let ordinal = crate::thread::ordinal();
    shard.schedule(Spot::of(0), key, key, DUE, Repeats::Never, &mut Access::new(&ordinal)).map(drop)
}

fn end_alike(shard: &Timers, key: u32) {
    let ordinal = crate::thread::ordinal();
    assert_eq!(shard.cancel(Spot::of(0), None, |&other| other == key, &Access::new(&ordinal)), Some(key));
}

/// Makes sixteen lines of each.
fn split(shard: &Timers, access: &Access) {
    let before = shard.line_count();
    shard.index.lines.make_room(16 * (16 * before - 1));
    assert_eq!(shard.line_count(), 16 * before);
    assert_eq!(shard.split_ahead(0, u32::MAX, access), 2 * shard.line_count());
}

/// Further lines that are linked, or wait for the end of their grace period.
fn further_lines(shard: &Timers) -> u32 {
    shard.index.lines.overflow.lines_in_use()
}

/// Waits for the end of the grace period: as soon as no other test's thread is in a call, where one may have been
/// stopped.
fn until_used_again(shard: &Timers) {
    let begin = std::time::Instant::now();
    while further_lines(shard) > 0 {
        assert!(begin.elapsed().as_secs() < 60, "{} lines do not come back", further_lines(shard));
        crate::sync::epoch::pin().flush();
        std::thread::yield_now();
    }
}

/// Nodes that lines lead to.
fn linked(shard: &Timers) -> usize {
    shard.index.lines.cell_count()
}
