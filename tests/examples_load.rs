//! The parts of the example `load`: a checker that was never seen to complain proves nothing.

#[path = "../examples/load/ledger.rs"]
mod ledger;
#[path = "../examples/load/options.rs"]
mod options;
#[path = "../examples/load/plan.rs"]
mod plan;
#[path = "../examples/load/report.rs"]
mod report;

use std::time::{Duration, Instant};

use ledger::{Audit, Ledger};
use options::Options;
use plan::{Change, Plan};
use report::{Report, Tally};
use shardwheel::Scheduler;

const MS: Duration = Duration::from_millis(1);

fn at(ledger: &Ledger, offset: Duration) -> Instant {
    ledger.start() + offset
}

/// One timer whose deadline is 10 ms after the start.
fn ledger_of_one() -> Ledger {
    let ledger = Ledger::new(1).unwrap();
    ledger.enter_deadline(0, at(&ledger, 4 * MS), 6 * MS);
    ledger
}

#[test]
fn a_timer_that_fires_once_in_time_is_no_fault() {
    let ledger = ledger_of_one();
    ledger.enter_fired(0, at(&ledger, 12 * MS));
    let expected = Audit { fired: 1, lateness_ns: vec![2_000_000], ..Audit::default() };
    assert_eq!(ledger.audit(), expected);
    assert_eq!(ledger.fired(), 1);
}

#[test]
fn a_timer_that_fires_before_its_deadline_is_early() {
    let ledger = ledger_of_one();
    ledger.enter_fired(0, at(&ledger, 10 * MS - Duration::from_nanos(1)));
    assert_eq!(ledger.audit().early, 1);
}

#[test]
fn a_moved_timer_that_fires_at_its_old_deadline_is_early() {
    let ledger = ledger_of_one();
    ledger.enter_deadline(0, at(&ledger, 5 * MS), 20 * MS);
    ledger.enter_fired(0, at(&ledger, 10 * MS));
    assert_eq!(ledger.audit().early, 1);
}

#[test]
fn a_timer_that_neither_fires_nor_is_cancelled_is_lost() {
    assert_eq!(ledger_of_one().audit().lost, 1);
}

#[test]
fn a_cancelled_timer_that_does_not_fire_is_no_fault() {
    let ledger = ledger_of_one();
    ledger.enter_cancelled(0);
    assert_eq!(ledger.audit(), Audit::default());
}

#[test]
fn a_timer_that_fires_again_is_delivered_twice() {
    let ledger = ledger_of_one();
    ledger.enter_fired(0, at(&ledger, 11 * MS));
    ledger.enter_fired(0, at(&ledger, 12 * MS));
    let audit = ledger.audit();
    assert_eq!((audit.fired, audit.twice), (1, 1));
}

#[test]
fn a_cancelled_timer_that_fires_is_delivered_twice() {
    let ledger = ledger_of_one();
    ledger.enter_cancelled(0);
    ledger.enter_fired(0, at(&ledger, 11 * MS));
    assert_eq!(ledger.audit().twice, 1);
}

#[test]
fn a_timer_may_be_gone_only_when_it_is_due() {
    let ledger = ledger_of_one();
    assert!(!ledger.is_due(0, at(&ledger, 9 * MS)));
    assert!(ledger.is_due(0, at(&ledger, 10 * MS)));
}

#[test]
fn lateness_is_taken_by_nearest_rank() {
    let audit = Audit { lateness_ns: (1..=200).collect(), ..Audit::default() };
    let ranks = [500, 990, 999, 1000].map(|permille| audit.lateness(permille).unwrap());
    assert_eq!(ranks.map(|rank| rank.as_nanos()), [100, 198, 200, 200]);
    assert_eq!(Audit::default().lateness(500), None);
}

#[test]
fn changes_stay_within_the_time_of_firing_and_on_their_side_of_it() {
    let plan = Plan::new(10_000, Duration::from_secs(3));
    let opens = plan.closes() - Duration::from_secs(3);
    let mut counts = [0; 4];
    for timer in 0..10_000 {
        let due = plan.due(timer);
        assert!((opens..=plan.closes()).contains(&due));
        match plan.change(timer) {
            Change::None => counts[0] += 1,
            Change::Cancel => counts[1] += 1,
            Change::Move(moved) if (opens..=due).contains(&moved) => counts[2] += 1,
            Change::Move(moved) if (due..=plan.closes()).contains(&moved) => counts[3] += 1,
            Change::Move(moved) => panic!("timer {timer} is moved from {due:?} to {moved:?}"),
        }
    }
    assert_eq!(counts, [6_000, 2_000, 1_000, 1_000]);
    assert_eq!(plan.change(0), Change::None, "a single timer should fire");
}

#[test]
fn a_plan_without_time_to_fire_has_all_timers_due_at_once() {
    let plan = Plan::new(10, Duration::ZERO);
    assert!((0..10).all(|timer| plan.due(timer) == plan.closes()));
}

/// The report of a run in which one timer was scheduled and fired.
fn report_of_one(audit: Audit, tally: Tally) -> Report {
    let (scheduler, clock) = Scheduler::builder().build_manual(|_: &usize, _: usize| {}).unwrap();
    scheduler.schedule_with(0, 0, MS).unwrap();
    clock.advance(2 * MS);
    Report { timers: 1, tally, audit, stats: scheduler.stats(), busy: MS, bytes_per_timer: None }
}

fn fired_once() -> Audit {
    Audit { fired: 1, lateness_ns: vec![0], ..Audit::default() }
}

fn scheduled_once() -> Tally {
    Tally { scheduled: 1, calls: 1, ..Tally::default() }
}

#[test]
fn a_run_without_faults_says_so() {
    let report = report_of_one(fired_once(), scheduled_once());
    assert_eq!(report.faults(), Vec::<String>::new());
    let table = report.to_string();
    let first_words: Vec<_> = table.lines().filter_map(|line| line.split_whitespace().next()).collect();
    assert_eq!(first_words[..5], ["scheduled", "moved", "cancelled", "fired", "early"]);
    assert!(table.contains("n/a"), "{table}");
}

#[test]
fn every_fault_is_told() {
    let audit = Audit { early: 1, lost: 2, twice: 3, ..fired_once() };
    let tally = Tally { wrong: 4, ..scheduled_once() };
    let faults = report_of_one(audit, tally).faults();
    assert_eq!(
        faults,
        [
            "1 timers fired early",
            "2 timers were lost",
            "3 timers were delivered twice",
            "4 answers or values were wrong",
        ]
    );
}

#[test]
fn stats_that_differ_from_our_count_are_a_fault() {
    let tally = Tally { moved: 1, ..scheduled_once() };
    let faults = report_of_one(fired_once(), tally).faults();
    assert_eq!(faults, ["stats().rescheduled is 0; it should be 1"]);
}

#[test]
fn options_are_read() {
    let args = "--timers 10_000 --callers=3 --shards 2 --seconds 0.5";
    let expected = Options { timers: 10_000, callers: 3, shards: Some(2), firing: Duration::from_millis(500) };
    assert_eq!(options::parse(args.split(' ')), Ok(Some(expected)));
    assert_eq!(options::parse([""; 0]), Ok(Some(Options::default())));
    assert_eq!(options::parse(["--help"]), Ok(None));
}

#[test]
fn a_bad_value_is_named_with_its_option_and_what_is_accepted() {
    let error = options::parse(["--callers", "0"]).unwrap_err();
    assert_eq!(error, "--callers: '0' is not accepted; a number from 1 to 1024 is");
    for value in ["", "x", "-1", "1.5", "100000001", "99999999999999999999"] {
        let error = options::parse(["--timers", value]).unwrap_err();
        assert!(error.contains(&format!("'{value}'")), "{error}");
    }
    for value in ["nan", "inf", "-1", "86401", "1e300"] {
        options::parse(["--seconds", value]).unwrap_err();
    }
    options::parse(["--nope"]).unwrap_err();
    options::parse(["nope"]).unwrap_err();
    options::parse(["--shards"]).unwrap_err();
}

#[test]
fn resident_memory_is_known_on_linux() {
    let known = report::resident_bytes().is_some_and(|bytes| bytes > 0);
    assert_eq!(known, cfg!(target_os = "linux"));
}

#[test]
fn the_help_tells_every_option() {
    for option in ["--timers", "--callers", "--shards", "--seconds", "--help"] {
        assert!(options::HELP.contains(option), "{option}");
    }
}
