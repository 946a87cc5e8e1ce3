//! The worker that falls asleep against callers that send an earlier hint: no wake-up is lost.
//!
//! The sleeping worker is blocked: if no thread wakes it, loom reports a deadlock.

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
    pub(crate) const MAILBOX_SEGMENT: usize = 3;
}

use shard::Tick;
use std::rc::Rc;
use support::stall_at_gate;
use support::{Change, Gate, Model, TICK_0, Worker, World, join, outcome, parameter, place, set_parameter, spawn};
use sync::{AtomicU64, Ordering};

/// The worker's loop: sleeps until `until`, again and again, until `found` is true of the worker. Returns whether it
/// ever slept.
fn sleep_until(worker: &mut Worker, world: &World, until: Option<u64>, found: impl Fn(&Worker) -> bool) -> bool {
    let alarm = &world.shard.alarm;
    let mut slept = false;
    loop {
        let ticket = alarm.ticket();
        alarm.get_up();
        worker.turn(0);
        if found(worker) {
            return slept;
        }
        if lie_down(worker, world, until) {
            alarm.sleep(ticket, None);
            slept = true;
        }
    }
}

fn lie_down(worker: &Worker, world: &World, until: Option<u64>) -> bool {
    let until = until.map(|tick| Tick(TICK_0 + tick));
    world.shard.alarm.lie_down(until, || !world.shard.mailbox.is_drained(&worker.drain))
}

fn has_hint_for(tick: u64) -> impl Fn(&Worker) -> bool {
    move |worker| worker.wheel.iter().any(|hint| hint.tick(Tick(TICK_0)) == Tick(TICK_0 + tick))
}

/// One caller asks for a tick earlier than the one until which the worker would sleep.
const PUSH_EARLIER_OR_SLEEP: Model = Model::new("push_earlier_or_sleep", || {
    let world = World::new();
    let timer = world.given(1, 7, 20);
    let mut worker = world.worker();
    worker.turn(0);
    let sleeper = spawn({
        let world = world.clone();
        move || {
            let slept = sleep_until(&mut worker, &world, Some(20), has_hint_for(5));
            (slept, worker)
        }
    });
    assert!(world.reschedule_this(1, timer, 5), "nothing else ends it");
    let (slept, mut worker) = join(sleeper);
    outcome(slept);
    worker.settle(1..=6);
    assert_eq!(worker.fired(), [7]);
    drop(worker);
    world.end();
})
.preemptions(4);

/// The same; but the worker's thread sleeps already, until an earlier tick. Meanwhile another one acts as the worker,
/// and lays it down again.
const PUSH_EARLIER_OR_LIE_DOWN_FOR_ANOTHER: Model = Model::new("push_earlier_or_lie_down_for_another", || {
    let world = World::new();
    let timer = world.given(1, 7, 20);
    let mut worker = world.worker();
    worker.turn(0);
    let ticket = world.shard.alarm.ticket();
    assert!(lie_down(&worker, &world, Some(3)));
    let lookout = spawn({
        let world = world.clone();
        move || {
            let is_found = loop {
                world.shard.alarm.get_up();
                worker.turn(0);
                if has_hint_for(5)(&worker) {
                    break true;
                }
                if lie_down(&worker, &world, Some(20)) {
                    break false;
                }
            };
            if is_found {
                // It would get up for this hint; here the worker's thread may end.
                world.shard.alarm.interrupt();
            }
            (is_found, worker)
        }
    });
    let caller = spawn({
        let world = world.clone();
        move || assert!(world.reschedule_this(1, timer, 5), "nothing else ends it")
    });
    world.shard.alarm.sleep(ticket, None);
    let (is_found, mut worker) = join(lookout);
    join(caller);
    outcome(is_found);
    worker.settle(1..=6);
    assert_eq!(worker.fired(), [7]);
    drop(worker);
    world.end();
})
.preemptions(3);

/// The worker sleeps without any deadline, and a timer begins.
const FIRST_TIMER_OR_SLEEP: Model = Model::new("first_timer_or_sleep", || {
    let world = World::new();
    let mut worker = world.worker();
    let sleeper = spawn({
        let world = world.clone();
        move || {
            let slept = sleep_until(&mut worker, &world, None, has_hint_for(5));
            (slept, worker)
        }
    });
    world.given(1, 7, 5);
    let (slept, worker) = join(sleeper);
    outcome(slept);
    assert_eq!(world.cancel(0, 1), Some(7));
    drop(worker);
    world.end();
});

/// A caller stops for ever before its operation number `parameter()`; the other caller wakes the worker nevertheless.
const A_STALLED_NOTIFIER_HIDES_NOBODY: Model = Model::new("a_stalled_notifier_hides_nobody", || {
    let world = World::new();
    let timers = [world.given(1, 7, 20), world.given(2, 8, 20)];
    let mut worker = world.worker();
    worker.turn(0);
    let gate = Rc::new(Gate::default());
    let stalled = spawn({
        let (world, gate) = (world.clone(), Rc::clone(&gate));
        move || {
            stall_at_gate(parameter(), &gate);
            world.reschedule_this(1, timers[0], 10)
        }
    });
    let sleeper = spawn({
        let world = world.clone();
        move || {
            let slept = sleep_until(&mut worker, &world, Some(20), has_hint_for(5));
            (slept, worker)
        }
    });
    assert!(world.reschedule_this(1, timers[1], 5), "nothing else ends it");
    let (slept, worker) = join(sleeper);
    outcome(slept);
    assert!(parameter() < OPERATIONS || !gate.is_waited_at(), "it has more operations than are tried");
    gate.open();
    assert!(join(stalled), "nothing else ends it");
    drop(worker);
    assert_eq!(world.seal(), [8, 7]);
    world.end();
})
.preemptions(2)
.without_stale_places();

/// A hint for a later tick fills a segment: the worker gets up to empty it.
const FULL_SEGMENT_OR_SLEEP: Model = Model::new("full_segment_or_sleep", || {
    let world = World::new();
    let mut worker = world.worker();
    let first = world.given(1, 7, 40);
    world.given(2, 8, 40);
    worker.turn(0);
    let sleeper = spawn({
        let world = world.clone();
        move || {
            let slept = sleep_until(&mut worker, &world, Some(20), has_hint_for(30));
            (slept, worker)
        }
    });
    assert!(world.reschedule_this(0, first, 30), "nothing else ends it");
    let (slept, worker) = join(sleeper);
    outcome(slept);
    drop(worker);
    assert_eq!(world.seal(), [8, 7]);
    world.end();
})
.preemptions(4);

/// Something that no hint announces, but `interrupt` does.
const INTERRUPT_OR_SLEEP: Model = Model::new("interrupt_or_sleep", || {
    let world = World::new();
    let mut worker = world.worker();
    let stop = Rc::new(AtomicU64::new(0));
    let sleeper = spawn({
        let (world, stop) = (world.clone(), Rc::clone(&stop));
        move || sleep_until(&mut worker, &world, None, move |_| stop.load(Ordering::Relaxed) == 1)
    });
    stop.store(1, Ordering::Relaxed);
    world.shard.alarm.interrupt();
    outcome(join(sleeper));
    world.end();
});

/// At most this many operations does a caller need to move a timer: there is a stop before each of them.
const OPERATIONS: usize = 22;

#[test]
fn an_earlier_hint_is_never_slept_through() {
    PUSH_EARLIER_OR_SLEEP.reaches(&[false, true]);
    PUSH_EARLIER_OR_LIE_DOWN_FOR_ANOTHER.reaches(&[false, true]);
    FIRST_TIMER_OR_SLEEP.reaches(&[false, true]);
}

#[test]
fn a_notifier_that_stops_hides_nobody_elses_notification() {
    for operation in 0..=OPERATIONS {
        set_parameter(operation);
        A_STALLED_NOTIFIER_HIDES_NOBODY.reaches(&[false, true]);
    }
}

#[test]
fn a_full_segment_wakes_the_worker() {
    FULL_SEGMENT_OR_SLEEP.reaches(&[false, true]);
}

#[test]
fn an_interrupt_is_never_slept_through() {
    INTERRUPT_OR_SLEEP.reaches(&[false, true]);
}

#[test]
fn both_sides_need_their_fence() {
    let callers = place("alarm.rs", "fence(Ordering::SeqCst); // Relaxed: the fences decide");
    let workers = place("alarm.rs", "fence(Ordering::SeqCst); let may_sleep");
    let fillers = place("alarm.rs", "fence(Ordering::SeqCst); if self.asleep_until");
    for change in [Change::DropFence, Change::WeakenFence] {
        PUSH_EARLIER_OR_SLEEP.kills(callers, change, "deadlock");
        PUSH_EARLIER_OR_SLEEP.kills(workers, change, "deadlock");
        PUSH_EARLIER_OR_LIE_DOWN_FOR_ANOTHER.kills(workers, change, "deadlock");
        FULL_SEGMENT_OR_SLEEP.kills(fillers, change, "deadlock");
    }
}

/// Otherwise the worker's last look passes over the stripe, while the caller believes the worker awake.
#[test]
fn a_stripe_must_be_marked_before_the_fence() {
    let mark = place("mailbox.rs", "self.used.fetch_or(");
    let look = place("alarm.rs", "if tick.0 < self.asleep_until.load(Ordering::Relaxed)");
    FIRST_TIMER_OR_SLEEP.kills(mark, Change::Postpone(look), "deadlock");
}

/// A caller that claims the wake-up (by writing what the worker published) and stops before it notifies.
#[test]
fn callers_must_not_claim_the_notification() {
    let look = place("alarm.rs", "if tick.0 < self.asleep_until.load(Ordering::Relaxed)");
    let killed = (0..OPERATIONS).any(|operation| {
        set_parameter(operation);
        A_STALLED_NOTIFIER_HIDES_NOBODY
            .fails(look, Change::LoadBecomesSwap(0))
            .is_some_and(|why| why.contains("deadlock"))
    });
    assert!(killed, "a stalled caller with a claim hid the other's notification from nobody");
}

/// A hint comes behind one whose author stopped before its fence. The later author's fence stands for both, so it must
/// come after every slot that the cursor let it skip.
#[test]
fn the_cursor_must_be_released() {
    let cursor = place("mailbox.rs", "segment.cursor.store(index as u32 + 1, Ordering::Release)");
    let model = Model {
        stale_places: true,
        preemptions: Some(3),
        plain_preemptions: Some(1),
        ..A_STALLED_NOTIFIER_HIDES_NOBODY
    };
    // It stops before its fence, with its hint in the first slot and the cursor behind it.
    let killed = (13..=14).any(|operation| {
        set_parameter(operation);
        model.fails(cursor, Change::DropRelease).is_some_and(|why| why.contains("deadlock"))
    });
    assert!(killed, "a worker that sees slots out of order is not slept through");
}

const MODELS: &[Model] = &[PUSH_EARLIER_OR_SLEEP, FIRST_TIMER_OR_SLEEP, FULL_SEGMENT_OR_SLEEP, INTERRUPT_OR_SLEEP];

#[test]
#[ignore = "minutes; see loom-tests/README.md"]
fn sweep() {
    support::sweep("sleep", MODELS);
}
