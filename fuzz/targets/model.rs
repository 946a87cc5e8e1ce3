//! Takes any bytes as a list of operations, which a scheduler on the manual clock and a model must answer alike.
//!
//! libFuzzer keeps the bytes that reach new code, and changes them further. So each operation is made of few bytes, and
//! lengths of time come from around the places where a wheel or a rounding might go wrong.

#![no_main]

#[path = "../../tests/support/mod.rs"]
mod support;
#[path = "../../tests/support/model.rs"]
mod the_model;

use arbitrary::{Arbitrary, Result, Unstructured};
use libfuzzer_sys::fuzz_target;
use shardwheel::{Close, MissedTicks};
use std::time::Duration;
use support::FIRST_TICKS;
use the_model::{Op, Reaction, Settings, Span, run};

/// More operations than this find nothing that fewer would not.
const OPS_MAX: usize = 200;
/// Few keys, so that they meet.
const KEY_MAX: u8 = 7;

fuzz_target!(|history: History| run(&history.ops, history.settings));

#[derive(Debug)]
struct History {
    settings: Settings,
    ops: Vec<Op>,
}

impl<'a> Arbitrary<'a> for History {
    fn arbitrary(bytes: &mut Unstructured<'a>) -> Result<Self> {
        let (settings, mut ops) = (settings(bytes)?, Vec::new());
        while !bytes.is_empty() && ops.len() < OPS_MAX {
            ops.push(op(bytes)?);
        }
        Ok(Self { settings, ops })
    }
}

fn settings(bytes: &mut Unstructured) -> Result<Settings> {
    let ticks = [Duration::from_micros(10), Duration::from_millis(1), Duration::from_millis(7)];
    Ok(Settings {
        tick: *bytes.choose(&ticks)?,
        first_tick: *bytes.choose(&FIRST_TICKS)?,
        shards: *bytes.choose(&[1, 2, 5])?,
        capacity: *bytes.choose(&[None, None, Some(1), Some(4)])?,
        collide: bytes.arbitrary()?,
        rearm: if bytes.ratio(1, 4)? { Some(span(bytes)?) } else { None },
    })
}

/// Operations that take all timers away are rare, so that there are timers left for something to go wrong with.
fn op(bytes: &mut Unstructured) -> Result<Op> {
    Ok(match bytes.int_in_range(0..=63)? {
        0..10 => Op::Schedule(key(bytes)?, span(bytes)?, reaction(bytes)?),
        10 => Op::Schedule(key(bytes)?, span(bytes)?, Reaction::Nothing),
        11 => Op::ScheduleUnindexed(span(bytes)?, reaction(bytes)?),
        12 => Op::ScheduleUnindexedAt(finite(bytes)?),
        13 => Op::ScheduleIfAbsent(key(bytes)?, span(bytes)?, reaction(bytes)?),
        14..18 => every(bytes)?,
        18..21 => Op::ScheduleAt(key(bytes)?, finite(bytes)?),
        21 => Op::SchedulePast(key(bytes)?, finite(bytes)?),
        22..26 => Op::ScheduleWithHandle(key(bytes)?, span(bytes)?),
        26..36 => Op::Reschedule(key(bytes)?, span(bytes)?),
        36..39 => Op::RescheduleAt(key(bytes)?, finite(bytes)?),
        39..44 => Op::Cancel(key(bytes)?),
        44 => Op::Look(key(bytes)?),
        45 => Op::ExpireNow(key(bytes)?),
        46 => Op::HandleRescheduleAt(bytes.arbitrary()?, finite(bytes)?),
        47 | 48 => Op::HandleCancel(bytes.arbitrary()?),
        49 | 50 => Op::HandleReschedule(bytes.arbitrary()?, span(bytes)?),
        51 => Op::HandleLook(bytes.arbitrary()?),
        52 => Op::HandleExpireNow(bytes.arbitrary()?),
        53..59 => Op::Advance(finite(bytes)?),
        59..62 => Op::AdvanceToNext,
        62 => Op::StepBack(finite(bytes)?),
        _ => rare(bytes)?,
    })
}

/// With and without a reaction.
fn every(bytes: &mut Unstructured) -> Result<Op> {
    let (key, period, choice) = (key(bytes)?, span(bytes)?, bytes.int_in_range(0..=5)?);
    let missed = [MissedTicks::Skip, MissedTicks::Burst, MissedTicks::Delay][choice % 3];
    let reaction = if choice < 3 { Reaction::Nothing } else { reaction(bytes)? };
    Ok(Op::ScheduleEvery(key, period, missed, reaction))
}

fn rare(bytes: &mut Unstructured) -> Result<Op> {
    Ok(match bytes.int_in_range(0..=5)? {
        0 | 1 => Op::Drain,
        2 | 3 => Op::DrainAndRestart(span(bytes)?),
        4 => Op::StepBack(finite(bytes)?),
        _ => Op::Close(*bytes.choose(&[Close::Discard, Close::FireNow, Close::Return])?),
    })
}

fn key(bytes: &mut Unstructured) -> Result<u8> {
    bytes.int_in_range(0..=KEY_MAX)
}

fn reaction(bytes: &mut Unstructured) -> Result<Reaction> {
    Ok(match bytes.int_in_range(0..=3)? {
        0 => Reaction::Restart(span(bytes)?),
        1 => Reaction::Cancel(key(bytes)?),
        2 => Reaction::Move(key(bytes)?, span(bytes)?),
        _ => Reaction::Panic,
    })
}

fn span(bytes: &mut Unstructured) -> Result<Span> {
    if bytes.ratio(1, 32)? { Ok(Span::ENDLESS) } else { finite(bytes) }
}

/// Near a power of 64, which is where the levels of the wheel meet; now and then not a whole number of ticks.
fn finite(bytes: &mut Unstructured) -> Result<Span> {
    let power = *bytes.choose(&[0, 0, 0, 6, 6, 12, 18, 34])?;
    let ticks = ((1u64 << power) + bytes.int_in_range(0..=7u64)?).saturating_sub(4);
    let nanos = *bytes.choose(&[0, 0, 0, 0, 1, 9_999, 10_001, 999_999])?;
    Ok(Span { ticks, nanos })
}
