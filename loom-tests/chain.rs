//! The mailbox with one slot per segment: every push goes on to the next segment, every hint that is read leaves one
//! behind.
//!
//! One thread is slow. The other one does all the rest: it fills, drains, and comes in by whatever the slow thread has
//! left.

#[path = "../src/shard/mod.rs"]
#[allow(dead_code, unused_imports, reason = "a model uses a part of the shard")]
mod shard;
#[allow(dead_code, unused_imports, reason = "a model uses a part of the support")]
mod support;
#[path = "support/sync.rs"]
mod sync;

mod size {
    pub(crate) const FIRST_SEGMENT_BITS: u32 = 2;
    pub(crate) const NODES_TO_LINE_BITS: u32 = 2;
    pub(crate) const BATCH: u32 = 1;
    pub(crate) const STRANDS: usize = 1;
    pub(crate) const MAILBOX_SEGMENT: usize = 1;
}

use shard::{Access, Consumer, Hint, Mailbox, Tick};
use std::rc::Rc;
use support::{Change, Gate, Model, join, ordinal, outcome, place, spawn, stall_at_gate};

fn push(mailbox: &Mailbox, name: u64) {
    let ordinal = ordinal(0);
    mailbox.push(&ordinal, Hint::new(Tick(name), 1), &Access::new(&ordinal).guard);
}

/// Empties the mailbox. Returns the names that were in it.
fn drain(mailbox: &Mailbox, drain: &mut Consumer) -> Vec<u64> {
    let mut names = Vec::new();
    mailbox.drain(drain, usize::MAX, &Access::new(&ordinal(0)).guard, |hint| names.push(hint.tick(Tick(0)).0));
    names
}

/// The first hint of a stripe is on its way while others come, are drained, and come again.
const A_SLOW_FIRST_PUSH: Model = Model::new("a_slow_first_push", || {
    let mailbox = Rc::new(Mailbox::new(1));
    let mut consumer = mailbox.consumer();
    let other = spawn({
        let mailbox = Rc::clone(&mailbox);
        move || {
            push(&mailbox, 2);
            push(&mailbox, 3);
            let early = drain(&mailbox, &mut consumer);
            push(&mailbox, 4);
            (early, consumer)
        }
    });
    push(&mailbox, 1);
    let (early, mut consumer) = join(other);
    outcome(early.len());
    let mut all: Vec<_> = early.into_iter().chain(drain(&mailbox, &mut consumer)).collect();
    all.sort();
    assert_eq!(all, [1, 2, 3, 4], "every hint comes out once");
})
.preemptions(3)
.plain_preemptions(2)
.reclaims_early();

/// A producer is slow to move the tail on. Meanwhile others move it further, and the consumer follows them.
const A_SLOW_MOVE_OF_THE_TAIL: Model = Model::new("a_slow_move_of_the_tail", || {
    let mailbox = Rc::new(Mailbox::new(1));
    let mut consumer = mailbox.consumer();
    push(&mailbox, 1);
    let other = spawn({
        let mailbox = Rc::clone(&mailbox);
        move || {
            push(&mailbox, 3);
            push(&mailbox, 4);
            let early = drain(&mailbox, &mut consumer);
            push(&mailbox, 5);
            (early, consumer)
        }
    });
    push(&mailbox, 2);
    let (early, mut consumer) = join(other);
    outcome(early.len());
    let mut all: Vec<_> = early.into_iter().chain(drain(&mailbox, &mut consumer)).collect();
    all.sort();
    assert_eq!(all, [1, 2, 3, 4, 5], "every hint comes out once");
})
.preemptions(3)
.plain_preemptions(2)
.reclaims_early();

/// A push into a full segment: loads of tail, cursor and `next`, the new segment; then it moves the tail.
const BEFORE_THE_TAIL_MOVES: usize = 4;

/// A producer stops before it moves the tail on. The consumer moves it, leaves the segment, and another producer comes.
const THE_CONSUMER_MOVES_THE_TAIL: Model = Model::new("the_consumer_moves_the_tail", || {
    let mailbox = Rc::new(Mailbox::new(1));
    let mut consumer = mailbox.consumer();
    push(&mailbox, 1);
    let gate = Rc::new(Gate::default());
    let consumer = spawn({
        let (mailbox, gate) = (Rc::clone(&mailbox), Rc::clone(&gate));
        move || {
            let all = drain(&mailbox, &mut consumer);
            gate.open();
            (all, consumer)
        }
    });
    let other = spawn({
        let mailbox = Rc::clone(&mailbox);
        move || push(&mailbox, 3)
    });
    stall_at_gate(BEFORE_THE_TAIL_MOVES, &gate);
    push(&mailbox, 2);
    let (mut all, mut consumer) = join(consumer);
    outcome(all.len());
    join(other);
    all.extend(drain(&mailbox, &mut consumer));
    all.sort();
    assert_eq!(all, [1, 2, 3], "every hint comes out once");
})
.preemptions(3)
.plain_preemptions(1)
.reclaims_early();

#[test]
fn a_slow_producer_loses_nothing() {
    A_SLOW_FIRST_PUSH.reaches(&[2, 3]);
    A_SLOW_MOVE_OF_THE_TAIL.reaches(&[3, 4]);
    THE_CONSUMER_MOVES_THE_TAIL.reaches(&[1, 2, 3]);
}

/// Otherwise a thread that comes in by the tail meanwhile is not among those that the epoch waits for.
#[test]
fn the_tail_must_move_on_before_a_segment_is_retired() {
    let leave = place("mailbox.rs", "tail.store(next, Ordering::Release)");
    let later = place("mailbox.rs", "Hint::from_bits(slot.load(Ordering::Acquire))");
    THE_CONSUMER_MOVES_THE_TAIL.kills(leave, Change::Postpone(later), "used after it was freed");
}

/// Otherwise the tail comes back to a segment that the consumer has left.
#[test]
fn the_tail_must_be_moved_in_one_step() {
    let first = place("mailbox.rs", "self.tails[stripe].segment.compare_exchange(");
    let further = place("mailbox.rs", "let _ = tail.compare_exchange(current, next");
    A_SLOW_FIRST_PUSH.kills(first, Change::Tear, "used after it was freed");
    A_SLOW_MOVE_OF_THE_TAIL.kills(further, Change::Tear, "used after it was freed");
}

/// The tail that another thread has set is further on than the segment that this thread has acquired.
#[test]
fn a_tail_set_by_another_thread_must_be_acquired() {
    let first = place("mailbox.rs", "self.tails[stripe].segment.compare_exchange(");
    A_SLOW_FIRST_PUSH.kills(first, Change::RelaxFailure, "Causality violation");
}

const MODELS: &[Model] = &[A_SLOW_FIRST_PUSH, A_SLOW_MOVE_OF_THE_TAIL, THE_CONSUMER_MOVES_THE_TAIL];

#[test]
#[ignore = "minutes; see loom-tests/README.md"]
fn sweep() {
    support::sweep("chain", MODELS);
}
