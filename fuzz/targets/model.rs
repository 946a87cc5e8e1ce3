//! Any bytes are a list of operations, which a scheduler on the manual clock and a model must answer alike.
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
use shardwheel::Close;
use std::time::Duration;
use support::FIRST_TICKS;
use the_model::{Op, Reaction, Settings, Span, run};

/// More operations than this find nothing that fewer do not.
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
    })
}

fn op(bytes: &mut Unstructured) -> Result<Op> {
    Ok(match bytes.int_in_range(0..=20)? {
        0 => Op::Schedule(key(bytes)?, span(bytes)?, reaction(bytes)?),
        1 => Op::Schedule(key(bytes)?, span(bytes)?, Reaction::Nothing),
        2 => Op::ScheduleAt(key(bytes)?, finite(bytes)?),
        3 => Op::SchedulePast(key(bytes)?, finite(bytes)?),
        4 => Op::ScheduleWithHandle(key(bytes)?, span(bytes)?),
        5 | 6 => Op::Reschedule(key(bytes)?, span(bytes)?),
        7 => Op::RescheduleAt(key(bytes)?, finite(bytes)?),
        8 => Op::Cancel(key(bytes)?),
        9 => Op::Look(key(bytes)?),
        10 => Op::ExpireNow(key(bytes)?),
        11 => Op::HandleCancel(bytes.arbitrary()?),
        12 => Op::HandleReschedule(bytes.arbitrary()?, span(bytes)?),
        13 => Op::HandleLook(bytes.arbitrary()?),
        14 => Op::HandleExpireNow(bytes.arbitrary()?),
        15 => Op::Drain,
        16 => Op::DrainAndRestart(span(bytes)?),
        17 => Op::Advance(finite(bytes)?),
        18 => Op::AdvanceToNext,
        19 => Op::StepBack(finite(bytes)?),
        _ => Op::Close(*bytes.choose(&[Close::Discard, Close::FireNow, Close::Return])?),
    })
}

fn key(bytes: &mut Unstructured) -> Result<u8> {
    bytes.int_in_range(0..=KEY_MAX)
}

fn reaction(bytes: &mut Unstructured) -> Result<Reaction> {
    Ok(match bytes.int_in_range(0..=2)? {
        0 => Reaction::Restart(span(bytes)?),
        1 => Reaction::Cancel(key(bytes)?),
        _ => Reaction::Move(key(bytes)?, span(bytes)?),
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
