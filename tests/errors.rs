//! Every error: what causes it, what it says, and that it demands nothing of keys and values.
//!
//! A message names the setting, its value and what is accepted.

mod support;

use shardwheel::rotating::{RotatingError, TimeCacheMap};
use shardwheel::{
    BuildError, Builder, Close, Closed, Executor, ManualClock, Pinning, ScheduleError, Scheduler, Stats, Timer,
    WeakScheduler,
};
use std::error::Error;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::time::Duration;
use support::{HOUR, MS};

/// It has neither `Debug` nor `Clone`, only what a key needs.
#[derive(PartialEq, Eq, Hash)]
struct Plain(u8);

fn builder() -> Builder<u64, ()> {
    Scheduler::builder()
}

/// The error of both ways to build, which is the same.
fn error_of(settings: impl Fn(Builder<u64, ()>) -> Builder<u64, ()>) -> BuildError {
    let manual = settings(builder()).build_manual(|_, ()| {}).expect_err("out of range");
    let real = settings(builder()).build(|_, ()| {}).expect_err("out of range");
    assert_eq!(real.to_string(), manual.to_string());
    real
}

#[test]
fn a_tick_out_of_range() {
    for tick in [Duration::ZERO, Duration::from_nanos(9_999), HOUR + Duration::from_nanos(1), Duration::MAX] {
        let error = error_of(|builder| builder.tick(tick));
        assert!(matches!(error, BuildError::Tick(told) if told == tick));
        assert_eq!(error.to_string(), format!("tick is {tick:?}; accepted: 10us to 1h"));
        assert!(error.source().is_none());
    }
    for tick in [Duration::from_micros(10), Duration::from_nanos(123_457), HOUR] {
        assert!(builder().tick(tick).build_manual(|_, ()| {}).is_ok());
    }
}

#[test]
fn shards_out_of_range() {
    for count in [0, 1_025, usize::MAX] {
        let error = error_of(|builder| builder.shards(count));
        assert!(matches!(error, BuildError::Shards(told) if told == count));
        assert_eq!(error.to_string(), format!("shards is {count}; accepted: 1 to 1024"));
    }
    for count in [1, 1_024] {
        let (scheduler, _clock) = builder().shards(count).build_manual(|_, ()| {}).expect("in range");
        assert_eq!(scheduler.stats().shards.len(), count);
    }
}

#[test]
fn a_capacity_of_nothing() {
    let error = error_of(|builder| builder.capacity(0));
    assert!(matches!(error, BuildError::Capacity(0)));
    assert_eq!(error.to_string(), "capacity is 0; accepted: 1 or more (leave it out for no bound)");
    for capacity in [1, usize::MAX] {
        let (scheduler, _clock) = builder().capacity(capacity).build_manual(|_, ()| {}).expect("in range");
        assert!(scheduler.schedule(1, MS).is_ok());
    }
}

#[test]
fn cores_that_do_not_exist() {
    let error = error_of(|builder| builder.pinning(Pinning::Cores(Vec::new())));
    assert!(matches!(error, BuildError::NoCores));
    assert_eq!(error.to_string(), "pinning is Cores([]); accepted: at least one core (Pinning::Off for none)");
    // Without threads there is nothing to pin, so tests with a large machine's settings run on a small one.
    let far_away = || builder().pinning(Pinning::Cores(vec![1_000_000]));
    assert!(far_away().build_manual(|_, ()| {}).is_ok());
    let error = far_away().build(|_, ()| {}).expect_err("out of range");
    let BuildError::Core { core, available } = &error else { panic!("{error}") };
    assert_eq!((*core, available.is_empty()), (1_000_000, false));
    let text = format!("pinning names core 1000000; accepted: the cores that this thread may run on, {available:?}");
    assert_eq!(error.to_string(), text);
}

#[test]
fn a_first_tick_out_of_range() {
    for tick in [(1 << 63) + 1, u64::MAX] {
        let error = error_of(|builder| builder.first_tick(tick));
        assert!(matches!(error, BuildError::FirstTick(told) if told == tick));
        assert_eq!(error.to_string(), format!("first_tick is {tick}; accepted: 0 to 2^63"));
    }
    assert!(builder().first_tick(1 << 63).build_manual(|_, ()| {}).is_ok());
}

#[test]
fn a_thread_name_with_a_nul() {
    let error = error_of(|builder| builder.thread_name("a\0b"));
    assert!(matches!(&error, BuildError::ThreadName(told) if told == "a\0b"));
    assert_eq!(error.to_string(), r#"thread_name is "a\0b"; accepted: any name without a NUL"#);
}

#[test]
fn threads_that_cannot_be_started() {
    let refusal = || std::io::Error::other("no more threads");
    let error = BuildError::Thread(refusal());
    let is_told = |error: &dyn Error| error.source().is_some_and(|source| source.to_string() == "no more threads");
    assert_eq!(error.to_string(), "a thread of the scheduler could not be started");
    assert!(is_told(&error));
    let error = BuildError::Pool(Box::new(refusal()));
    assert_eq!(error.to_string(), "the pool for the callbacks could not be started");
    assert!(is_told(&error));
    let error = RotatingError::Scheduler(error);
    assert_eq!(error.to_string(), "the pool for the callbacks could not be started");
    assert!(is_told(&error), "a report of the whole chain says everything once");
}

#[test]
fn a_full_scheduler() {
    let (scheduler, _clock) =
        Scheduler::builder().capacity(1).build_manual(|_: &Plain, _: Plain| {}).expect("in range");
    assert!(matches!(scheduler.schedule_with(Plain(1), Plain(10), HOUR), Ok(None)));
    let error = scheduler.schedule_with(Plain(2), Plain(20), HOUR).err().expect("it is full");
    assert!(error.is_full() && !error.is_closed());
    assert_eq!(
        error.to_string(),
        "as many timers are pending as the scheduler's capacity allows, or as a shard can hold"
    );
    assert_eq!(format!("{error:?}"), "Full(..)");
    assert!(matches!(error.into_inner(), (Plain(2), Plain(20))));
    let error = scheduler.schedule_at(Plain(3), Plain(30), std::time::Instant::now()).err().expect("it is full");
    assert!(matches!(error, ScheduleError::Full(Plain(3), Plain(30))));
    let error = scheduler.schedule_with_handle(Plain(4), Plain(40), HOUR).err().expect("it is full");
    assert!(matches!(error, ScheduleError::Full(Plain(4), Plain(40))));
}

#[test]
fn a_closed_scheduler() {
    let (scheduler, _clock) = Scheduler::builder().build_manual(|_: &Plain, _: Plain| {}).expect("in range");
    assert_eq!(scheduler.close(Close::Discard).discarded, 0);
    let error = scheduler.schedule_with(Plain(2), Plain(20), HOUR).err().expect("it is closed");
    assert!(error.is_closed() && !error.is_full());
    assert_eq!(error.to_string(), "the scheduler is closed");
    assert_eq!(format!("{error:?}"), "Closed(..)");
    assert!(matches!(error, ScheduleError::Closed(Plain(2), Plain(20))));
}

#[test]
fn a_full_and_closed_scheduler_is_closed() {
    let (scheduler, _clock) = builder().capacity(1).build_manual(|_, ()| {}).expect("in range");
    assert!(scheduler.schedule(1, HOUR).is_ok());
    scheduler.close(Close::Discard);
    assert!(scheduler.schedule(2, HOUR).is_err_and(|error| error.is_closed()));
}

/// `expect`, `?` into a boxed error, and `to_string` work for all types.
#[test]
fn errors_ask_nothing_of_keys_and_values() {
    struct Bare;
    let error: ScheduleError<Bare, Bare> = ScheduleError::Full(Bare, Bare);
    assert!(
        ScheduleError::Full(1, 2) == ScheduleError::Full(1, 2)
            && ScheduleError::Full(1, 2) != ScheduleError::Closed(1, 2)
    );
    let boxed: Box<dyn Error + Send + Sync> = Box::new(error);
    assert!(!boxed.to_string().is_empty() && boxed.source().is_none());
    assert!(!format!("{:?}", Closed::<Bare, Bare>::default()).is_empty());
}

#[test]
fn everything_can_be_shared_as_it_should() {
    fn is_shared<T: Clone + Send + Sync>() {}
    fn is_sent<T: Send + Sync + 'static>() {}
    // Values need not be `Sync`; nothing needs to be `Clone`.
    type Value = std::cell::Cell<u8>;
    is_shared::<Scheduler<Plain, Value>>();
    is_shared::<WeakScheduler<Plain, Value>>();
    is_shared::<ManualClock>();
    is_shared::<Executor>();
    is_shared::<Stats>();
    is_sent::<Timer<Plain, Value>>();
    is_sent::<ScheduleError<Plain, u8>>();
    is_sent::<BuildError>();
    // A test, or a pool's thread, may go on using them after a panic.
    fn survives<T: UnwindSafe + RefUnwindSafe>() {}
    survives::<Scheduler<Plain, Value>>();
    survives::<WeakScheduler<Plain, Value>>();
    survives::<Timer<Plain, Value>>();
    survives::<ManualClock>();
    survives::<TimeCacheMap<Plain, Value>>();
    #[cfg(feature = "cache")]
    survives::<shardwheel::cache::Cache<Plain, u8>>();
}

#[test]
fn everything_can_be_printed() {
    let (scheduler, clock) = Scheduler::builder().build_manual(|_: &Plain, _: Plain| {}).expect("in range");
    let (_, timer) = scheduler.schedule_with_handle(Plain(1), Plain(1), HOUR).expect("it is open and not full");
    let all = [format!("{scheduler:?}"), format!("{clock:?}"), format!("{timer:?}"), format!("{:?}", builder())];
    assert!(all.iter().all(|text| !text.is_empty()));
    assert!(all[0].contains("pending: 1"), "{}", all[0]);
    assert!(format!("{:?}", scheduler.stats()).contains("scheduled: 1"));
}
