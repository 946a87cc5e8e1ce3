//! Random operations on a small set of keys, against a model; see `support/model.rs`.

mod support;
#[path = "support/model.rs"]
mod the_model;

use proptest::prelude::*;
use shardwheel::{Close, MissedTicks};
use std::time::Duration;
use support::FIRST_TICKS;
use the_model::{Op, Reaction, Settings, Span, run};

/// Few keys, so that they meet; the last one is rarely there.
fn key() -> impl Strategy<Value = u8> {
    prop_oneof![8 => 0..6u8, 1 => 6..40u8]
}

/// Lengths of time around everything at which a wheel or a rounding might go wrong.
fn span() -> impl Strategy<Value = Span> {
    let ticks = prop_oneof![
        6 => 0..6u64,
        3 => 60..70u64,
        2 => 120..135u64,
        2 => 4090..4103u64,
        1 => 262_140..262_150u64,
        1 => (1 << 34) - 2..(1u64 << 34) + 3,
    ];
    let nanos = prop_oneof![6 => Just(0u64), 1 => 1..3u64, 1 => 9_998..10_002u64, 1 => 999_998..1_000_002u64];
    (ticks, nanos).prop_map(|(ticks, nanos)| Span { ticks, nanos })
}

fn delay() -> impl Strategy<Value = Span> {
    prop_oneof![20 => span(), 1 => Just(Span::ENDLESS)]
}

/// Not so far that most timers are gone after one of them.
fn step() -> impl Strategy<Value = Span> {
    let small = (0..70u64, prop_oneof![Just(0u64), 0..2_000_000u64]);
    prop_oneof![4 => small.prop_map(|(ticks, nanos)| Span { ticks, nanos }), 1 => span()]
}

fn reaction() -> impl Strategy<Value = Reaction> {
    prop_oneof![
        6 => Just(Reaction::Nothing),
        2 => delay().prop_map(Reaction::Restart),
        2 => key().prop_map(Reaction::Cancel),
        2 => (key(), delay()).prop_map(|(key, span)| Reaction::Move(key, span)),
        1 => Just(Reaction::Panic),
    ]
}

fn missed() -> impl Strategy<Value = MissedTicks> {
    prop_oneof![Just(MissedTicks::Skip), Just(MissedTicks::Burst), Just(MissedTicks::Delay)]
}

fn close() -> impl Strategy<Value = Close> {
    prop_oneof![Just(Close::Discard), Just(Close::FireNow), Just(Close::Return)]
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        20 => (key(), delay(), reaction()).prop_map(|(key, span, reaction)| Op::Schedule(key, span, reaction)),
        4 => (key(), span()).prop_map(|(key, span)| Op::ScheduleAt(key, span)),
        2 => (key(), span()).prop_map(|(key, span)| Op::SchedulePast(key, span)),
        6 => (key(), delay()).prop_map(|(key, span)| Op::ScheduleWithHandle(key, span)),
        4 => (key(), delay(), reaction()).prop_map(|(key, span, reaction)| Op::ScheduleIfAbsent(key, span, reaction)),
        4 => (delay(), reaction()).prop_map(|(span, reaction)| Op::ScheduleUnindexed(span, reaction)),
        2 => span().prop_map(Op::ScheduleUnindexedAt),
        8 => (key(), delay(), missed(), reaction())
            .prop_map(|(key, span, missed, reaction)| Op::ScheduleEvery(key, span, missed, reaction)),
        12 => (key(), delay()).prop_map(|(key, span)| Op::Reschedule(key, span)),
        4 => (key(), span()).prop_map(|(key, span)| Op::RescheduleAt(key, span)),
        10 => key().prop_map(Op::Cancel),
        4 => key().prop_map(Op::Look),
        4 => key().prop_map(Op::ExpireNow),
        4 => any::<u8>().prop_map(Op::HandleCancel),
        4 => (any::<u8>(), delay()).prop_map(|(pick, span)| Op::HandleReschedule(pick, span)),
        2 => (any::<u8>(), span()).prop_map(|(pick, span)| Op::HandleRescheduleAt(pick, span)),
        2 => any::<u8>().prop_map(Op::HandleLook),
        2 => any::<u8>().prop_map(Op::HandleExpireNow),
        1 => Just(Op::Drain),
        1 => delay().prop_map(Op::DrainAndRestart),
        16 => step().prop_map(Op::Advance),
        8 => Just(Op::AdvanceToNext),
        2 => step().prop_map(Op::StepBack),
    ]
}

/// Most histories end with the scheduler open; some go on after its end.
fn history() -> impl Strategy<Value = Vec<Op>> {
    let open = prop::collection::vec(op(), 1..120);
    let afterwards = prop_oneof![
        2 => Just(Vec::new()),
        1 => (close(), prop::collection::vec(op(), 0..10)).prop_map(|(close, ops)| {
            [vec![Op::Close(close)], ops, vec![Op::Close(Close::Return)]].concat()
        }),
    ];
    (open, afterwards).prop_map(|(open, afterwards)| [open, afterwards].concat())
}

fn settings() -> impl Strategy<Value = Settings> {
    let ticks = [Duration::from_micros(10), Duration::from_millis(1), Duration::from_millis(7)];
    (
        prop::sample::select(ticks.to_vec()),
        prop::sample::select(FIRST_TICKS.to_vec()),
        prop::sample::select(vec![1, 2, 5]),
        prop_oneof![3 => Just(None), 1 => (1..6usize).prop_map(Some)],
        prop::bool::weighted(0.25),
        prop::option::weighted(0.25, delay()),
    )
        .prop_map(|(tick, first_tick, shards, capacity, collide, rearm)| Settings {
            tick,
            first_tick,
            shards,
            capacity,
            collide,
            rearm,
        })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_answer_is_that_of_the_model(settings in settings(), history in history()) {
        run(&history, settings);
    }
}
