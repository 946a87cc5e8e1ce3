//! Many producers, one consumer: no hint is lost, none comes twice, a producer that stops hides nobody else.

#[path = "../src/shard/mod.rs"]
#[allow(dead_code, unused_imports, reason = "a model uses a part of the shard")]
mod shard;
#[allow(dead_code, unused_imports, reason = "a model uses a part of the support")]
mod support;
#[path = "support/sync.rs"]
mod sync;

mod size {
    pub(crate) const FIRST_SEGMENT_BITS: u32 = 2;
    pub(crate) const BATCH: u32 = 1;
    pub(crate) const MAILBOX_SEGMENT: usize = 2;
}

use shard::{Access, Drain, Hint, Mailbox, Tick};
use std::rc::Rc;
use support::{Change, Model, join, ordinal, outcome, place, spawn};

fn hint(name: u64) -> Hint {
    Hint::new(Tick(name), 1)
}

fn push(mailbox: &Mailbox, name: u64) {
    let ordinal = ordinal(0);
    mailbox.push(&ordinal, hint(name), &Access::new(&ordinal).guard);
}

/// Empties the mailbox; the names that were in it.
fn drain(mailbox: &Mailbox, drain: &mut Drain) -> Vec<u64> {
    let mut names = Vec::new();
    mailbox.drain(drain, usize::MAX, &Access::new(&ordinal(0)).guard, |hint| names.push(hint.tick(Tick(0)).0));
    names
}

/// Two producers and the consumer, over a change of segments.
const TWO_PRODUCERS: Model = Model::new("two_producers", || {
    let mailbox = Rc::new(Mailbox::new(1));
    let mut consumer = mailbox.consumer();
    push(&mailbox, 1);
    let producers = [2, 3].map(|name| {
        let mailbox = Rc::clone(&mailbox);
        spawn(move || push(&mailbox, name))
    });
    let early = drain(&mailbox, &mut consumer);
    outcome(early.len());
    let _: [(); 2] = producers.map(join);
    let mut all: Vec<_> = early.into_iter().chain(drain(&mailbox, &mut consumer)).collect();
    all.sort();
    assert_eq!(all, [1, 2, 3], "every hint comes out once");
})
.preemptions(2);

/// One producer, as fast as the consumer: segments are left and reclaimed under way.
const ALONG_THE_SEGMENTS: Model = Model::new("along_the_segments", || {
    let mailbox = Rc::new(Mailbox::new(1));
    let mut consumer = mailbox.consumer();
    push(&mailbox, 1);
    let producer = spawn({
        let mailbox = Rc::clone(&mailbox);
        move || [2, 3, 4, 5].map(|name| push(&mailbox, name))
    });
    let mut all = drain(&mailbox, &mut consumer);
    outcome(all.len());
    all.extend(drain(&mailbox, &mut consumer));
    join(producer);
    all.extend(drain(&mailbox, &mut consumer));
    assert_eq!(all, [1, 2, 3, 4, 5], "one producer's hints come in order");
})
.preemptions(3)
.reclaims_early();

/// A producer has begun a segment and stops before it moves the tail there; the consumer leaves the segment behind it,
/// while another producer comes in by the tail.
const A_SEGMENT_IS_LEFT: Model = Model::new("a_segment_is_left", || {
    let mailbox = Rc::new(Mailbox::new(1));
    let mut consumer = mailbox.consumer();
    push(&mailbox, 1);
    push(&mailbox, 2);
    let producers = [3, 4].map(|name| {
        let mailbox = Rc::clone(&mailbox);
        spawn(move || push(&mailbox, name))
    });
    let mut all = drain(&mailbox, &mut consumer);
    outcome(all.len());
    let _: [(); 2] = producers.map(join);
    all.extend(drain(&mailbox, &mut consumer));
    all.sort();
    assert_eq!(all, [1, 2, 3, 4], "every hint comes out once");
})
.preemptions(3)
.reclaims_early();

/// Two threads push the first hints of a stripe.
const FIRST_PUSH_TWICE: Model = Model::new("first_push_twice", || {
    let mailbox = Rc::new(Mailbox::new(1));
    let producer = spawn({
        let mailbox = Rc::clone(&mailbox);
        move || push(&mailbox, 1)
    });
    push(&mailbox, 2);
    join(producer);
    let mut consumer = mailbox.consumer();
    let all = drain(&mailbox, &mut consumer);
    assert_eq!(all.len(), 2, "every hint comes out: {all:?}");
    outcome(all);
})
.preemptions(4);

/// A producer stops anywhere for ever; what another one has pushed comes out.
const FILLED_SLOTS_ARE_A_PREFIX: Model = Model::new("filled_slots_are_a_prefix", || {
    let mailbox = Rc::new(Mailbox::new(1));
    push(&mailbox, 1);
    // Joined when all is over: until then it may be anywhere.
    let stalled = spawn({
        let mailbox = Rc::clone(&mailbox);
        move || push(&mailbox, 2)
    });
    push(&mailbox, 3);
    let mut consumer = mailbox.consumer();
    let all = drain(&mailbox, &mut consumer);
    assert!(all.contains(&3), "a stalled producer hid another's hint: {all:?}");
    outcome(all);
    join(stalled);
})
.preemptions(4);

/// What `is_drained` says is true of a moment during the call.
const DRAINED_OR_NOT: Model = Model::new("drained_or_not", || {
    let mailbox = Rc::new(Mailbox::new(1));
    let mut consumer = mailbox.consumer();
    let producer = spawn({
        let mailbox = Rc::clone(&mailbox);
        move || [1, 2, 3].map(|name| push(&mailbox, name))
    });
    let early = drain(&mailbox, &mut consumer);
    let drained = mailbox.is_drained(&consumer);
    join(producer);
    assert_eq!(mailbox.is_drained(&consumer), early.len() == 3);
    let late = drain(&mailbox, &mut consumer);
    assert!(drained || !late.is_empty(), "something was there, and nothing comes out");
    assert!(mailbox.is_drained(&consumer));
    outcome((early.len(), drained));
})
.preemptions(3);

#[test]
fn every_hint_comes_out_once() {
    TWO_PRODUCERS.reaches(&[1, 2, 3]);
    FIRST_PUSH_TWICE.reaches(&[[1, 2], [2, 1]]);
}

#[test]
fn hints_of_one_producer_come_in_order_over_all_segments() {
    ALONG_THE_SEGMENTS.reaches(&[1, 2, 3, 4, 5]);
    A_SEGMENT_IS_LEFT.reaches(&[2, 3, 4]);
}

#[test]
fn a_producer_that_stops_hides_nobody() {
    FILLED_SLOTS_ARE_A_PREFIX.reaches(&[vec![1, 3], vec![1, 2, 3], vec![1, 3, 2]]);
}

#[test]
fn is_drained_tells_the_truth() {
    let expected = [(0, true), (0, false), (1, true), (1, false), (2, true), (2, false), (3, true)];
    DRAINED_OR_NOT.reaches(&expected);
}

#[test]
fn a_slot_must_be_taken_in_one_step() {
    let slot = place("mailbox.rs", "slot.compare_exchange(0, hint.to_bits()");
    TWO_PRODUCERS.kills(slot, Change::Tear, "every hint comes out once");
    FIRST_PUSH_TWICE.kills(slot, Change::Tear, "every hint comes out");
}

#[test]
fn a_segment_must_be_installed_in_one_step() {
    let install = place("mailbox.rs", "place.compare_exchange(ptr::null_mut(), fresh");
    FIRST_PUSH_TWICE.kills(install, Change::Tear, "every hint comes out");
}

/// The consumer leaves a segment to the epoch while the tail still leads to it.
#[test]
fn the_tail_must_move_on_before_a_segment_is_retired() {
    let leave = place("mailbox.rs", "let _ = self.tails[stripe].segment.compare_exchange(segment, next");
    A_SEGMENT_IS_LEFT.kills(leave, Change::Rewrite(|segment, _| segment), "used after it was freed");
}

const MODELS: &[Model] = &[
    TWO_PRODUCERS,
    ALONG_THE_SEGMENTS,
    A_SEGMENT_IS_LEFT,
    FIRST_PUSH_TWICE,
    FILLED_SLOTS_ARE_A_PREFIX,
    DRAINED_OR_NOT,
];

#[test]
#[ignore = "minutes; see loom-tests/README.md"]
fn sweep() {
    support::sweep("mailbox", MODELS);
}
