//! The four rules of hints and promises (`src/shard/hint.rs`), and what breaks when one is not kept.
//!
//! Every model ends with ticks that pass one by one after all callers have returned: a pending timer without a hint
//! at or before its deadline then fires late or never.

use crate::support::{Change, Model, Worker, World, join, outcome, place, spawn};

/// A caller moves the timer away, and then back a little, while the worker looks because of the first deadline.
const MOVED_TWICE: Model = Model::new("moved_twice", || {
    let world = World::new();
    let timer = world.given(1, 7, 5);
    let mut worker = world.worker();
    worker.turn(0);
    let caller = spawn({
        let world = world.clone();
        move || (world.reschedule_this(1, timer, 9), world.reschedule_this(1, timer, 7))
    });
    worker.turn(5);
    let moved = join(caller);
    worker.settle(6..=10);
    match (moved, worker.firings.as_slice()) {
        ((true, true), [firing]) if firing.at == 7 => outcome("moved twice"),
        ((false, false), [firing]) if firing.at == 5 => outcome("fired"),
        other => panic!("moved, fired: {other:?}"),
    }
    drop(worker);
    world.end();
})
.preemptions(4);

/// Rule 1. An author stops for ever at any step of its move to 5; another caller's move to 8 is kept nevertheless.
const A_STALLED_AUTHOR_DELAYS_NOBODY: Model = Model::new("a_stalled_author_delays_nobody", || {
    let world = World::new();
    let timer = world.given(1, 7, 20);
    let mut worker = world.worker();
    // Joined at the very end: until then it may be anywhere.
    let author = spawn({
        let world = world.clone();
        move || world.reschedule_this(1, timer, 5)
    });
    assert!(world.reschedule_this(0, timer, 8), "nothing else ends it");
    worker.turn(8);
    match worker.firings.as_slice() {
        [firing] => outcome(firing.due),
        other => panic!("a stalled author delayed another caller's timer: {other:?}"),
    }
    join(author);
    drop(worker);
    world.end();
})
.preemptions(3);

/// Rule 3. An author's hint is looked at before its promise is made; the promise must not be made after that.
const A_LATE_PROMISE_IS_VOID: Model = Model::new("a_late_promise_is_void", || {
    let world = World::new();
    let timer = world.given(1, 7, 20);
    let mut worker = world.worker();
    let author = spawn({
        let world = world.clone();
        move || world.reschedule_this(1, timer, 5)
    });
    assert!(world.reschedule_this(0, timer, 30), "nothing else ends it");
    worker.turn(5);
    join(author);
    let moved = world.reschedule_this(0, timer, 10);
    worker.settle(6..=31);
    match (moved, worker.firings.as_slice()) {
        (true, [firing]) if firing.at == 10 => outcome("moved"),
        (false, [firing]) if firing.at == 5 => outcome("fired"),
        other => panic!("moved, fired: {other:?}"),
    }
    drop(worker);
    world.end();
})
.preemptions(3);

/// By so many ticks that a hint from before reads as one of the future, and a promise of now as one from before.
const JUMP: u64 = (1 << 36) - (1 << 33);

/// Ends a model whose only timer has been due since before the jump.
fn fires_after_the_jump(world: World, mut worker: Worker) {
    worker.turn(JUMP + 1);
    match worker.firings.as_slice() {
        [firing] => outcome(firing.at - JUMP),
        other => panic!("forgotten after a jump: {other:?}"),
    }
    drop(worker);
    world.end();
}

/// While a caller starts a timer, the worker's clock moves on by a jump.
const A_JUMP: Model = Model::new("a_jump", || {
    let world = World::new();
    let mut worker = world.worker();
    let author = spawn({
        let world = world.clone();
        move || world.start(1, 1, 7, 5)
    });
    worker.jump(JUMP);
    join(author);
    fires_after_the_jump(world, worker);
})
.preemptions(3);

/// While a caller moves a timer nearer, the worker's clock moves on by a jump. So the caller may rely on the promise
/// that the worker makes there.
const A_JUMP_TO_A_PROMISE: Model = Model::new("a_jump_to_a_promise", || {
    let world = World::new();
    world.given(1, 7, JUMP + 100);
    let mut worker = world.worker();
    worker.turn(0);
    let author = spawn({
        let world = world.clone();
        move || world.reschedule(1, 1, 5)
    });
    worker.jump(JUMP);
    assert!(join(author), "it is pending until then");
    fires_after_the_jump(world, worker);
})
.preemptions(3);

/// A cancelled timer's promise stays with its node; the next timer on the node relies on it while the worker looks.
const A_PROMISE_OUTLIVES_ITS_TIMER: Model = Model::new("a_promise_outlives_its_timer", || {
    let world = World::new();
    let first = world.given(1, 7, 5);
    let mut worker = world.worker();
    worker.turn(0);
    assert_eq!(world.cancel(0, 1), Some(7));
    let author = spawn({
        let world = world.clone();
        move || world.schedule(1, 2, 8, 9).expect("not sealed").0
    });
    worker.turn(5);
    assert_eq!(join(author).node, first.node, "the node is used again");
    outcome(worker.wheel.len());
    worker.settle(6..=10);
    assert_eq!(worker.fired(), [8], "one timer was cancelled, the other is due");
    drop(worker);
    world.end();
})
.preemptions(4)
.reclaims_early();

/// As before, and a thread meets the new timer on its way in, and publishes it for its author.
const PUBLISHED_BY_A_HELPER: Model = Model::new("published_by_a_helper", || {
    let world = World::new();
    world.given(1, 7, 5);
    let mut worker = world.worker();
    worker.turn(0);
    assert_eq!(world.cancel(0, 1), Some(7));
    let author = spawn({
        let world = world.clone();
        move || world.start(1, 1, 8, 9)
    });
    worker.turn(5);
    outcome(world.find(0, 1));
    join(author);
    worker.settle(6..=10);
    assert_eq!(worker.fired(), [8], "one timer was cancelled, the other is due");
    drop(worker);
    world.end();
})
.preemptions(3)
.reclaims_early();

/// As before without the helper, but the next timer is due at that very look. Only its word shows it to the worker.
const A_LOOK_MEETS_THE_NEXT_TIMER: Model = Model::new("a_look_meets_the_next_timer", || {
    let world = World::new();
    world.given(1, 7, 5);
    let mut worker = world.worker();
    worker.turn(0);
    assert_eq!(world.cancel(0, 1), Some(7));
    let author = spawn({
        let world = world.clone();
        move || world.start(1, 2, 8, 5)
    });
    worker.turn(5);
    outcome(worker.fired());
    join(author);
    worker.settle(6..=6);
    assert_eq!(worker.fired(), [8], "one timer was cancelled, the other is due");
    drop(worker);
    world.end();
})
.reclaims_early();

/// The worker's look keeps the promise of a hint that it has not drained yet, and relies on it.
const A_PROMISE_KEPT_IS_SEEN: Model = Model::new("a_promise_kept_is_seen", || {
    let world = World::new();
    let timer = world.given(1, 7, 5);
    let mut worker = world.worker();
    worker.turn(0);
    let author = spawn({
        let world = world.clone();
        move || (world.reschedule_this(1, timer, 3), world.reschedule_this(1, timer, 9))
    });
    worker.turn(5);
    let relies = worker.wheel.is_empty() && worker.firings.is_empty();
    if relies {
        // The author has not been joined: nothing but the promise says that its hint is in.
        worker.turn(9);
        assert_eq!(worker.fired(), [7], "a promise without its hint");
    }
    outcome((relies, worker.fired().len()));
    join(author);
    worker.settle(9..=9);
    assert_eq!(worker.fired(), [7]);
    drop(worker);
    world.end();
})
.preemptions(2);

/// Two callers and the worker.
const TWO_CALLERS: Model = Model::new("two_callers", || {
    let world = World::new();
    let timer = world.given(1, 7, 5);
    let mut worker = world.worker();
    let callers = [(0, 7), (1, 9)].map(|(stripe, tick)| {
        let world = world.clone();
        spawn(move || world.reschedule_this(stripe, timer, tick))
    });
    worker.turn(5);
    let moved = callers.map(join);
    worker.settle(6..=10);
    match (moved, worker.firings.as_slice()) {
        ([true, true], [firing]) if [7, 9].contains(&firing.at) => outcome(firing.at),
        ([false, false], [firing]) if firing.at == 5 => outcome(firing.at),
        other => panic!("moved, fired: {other:?}"),
    }
    drop(worker);
    world.end();
})
.preemptions(2);

#[test]
fn every_pending_timer_has_a_hint_at_or_before_its_deadline() {
    MOVED_TWICE.reaches(&["moved twice", "fired"]);
    TWO_CALLERS.reaches(&[5, 7, 9]);
}

#[test]
fn an_author_that_stops_delays_nobody_elses_timer() {
    A_STALLED_AUTHOR_DELAYS_NOBODY.reaches(&[5, 8]);
}

#[test]
fn an_author_that_goes_on_late_promises_nothing() {
    A_LATE_PROMISE_IS_VOID.reaches(&["moved", "fired"]);
}

#[test]
fn a_node_that_is_used_again_keeps_its_promise() {
    A_PROMISE_OUTLIVES_ITS_TIMER.reaches(&[0, 1]);
}

#[test]
fn a_look_that_meets_a_new_timer_takes_it_whole() {
    A_LOOK_MEETS_THE_NEXT_TIMER.reaches(&[vec![], vec![8]]);
}

#[test]
fn a_promise_that_a_look_keeps_has_its_hint_in_the_mailbox() {
    A_PROMISE_KEPT_IS_SEEN.reaches(&[(false, 0), (false, 1), (true, 1)]);
}

#[test]
fn a_timer_that_a_helper_published_is_announced() {
    PUBLISHED_BY_A_HELPER.reaches(&[None, Some(9)]);
}

/// The push of a hint, put off until after its promise.
#[test]
fn rule_1_push_first_promise_later() {
    let push = place("mailbox.rs", "slot.compare_exchange(0, hint.to_bits()");
    let promise = place("hint.rs", "self.0.compare_exchange(seen.0, seen.promising(tick).0");
    A_STALLED_AUTHOR_DELAYS_NOBODY.kills(push, Change::Postpone(promise), "delayed another caller's timer");
}

/// The withdrawal of a promise, put off until after the look.
#[test]
fn rule_2_withdraw_before_looking() {
    let withdraw = place("hint.rs", "self.0.compare_exchange(seen.0, next.0");
    let look = place("word.rs", "let latest = Word(self.0.fetch_add(0, Release)");
    MOVED_TWICE.kills(withdraw, Change::Postpone(look), "fired late");
}

/// A look that leaves the version as it is.
#[test]
fn rule_3_every_look_raises_the_version() {
    const VERSION: u64 = !((1 << 37) - 1);
    let withdraw = place("hint.rs", "self.0.compare_exchange(seen.0, next.0");
    let keep_version = Change::Rewrite(|seen, next| seen & VERSION | next & !VERSION);
    A_LATE_PROMISE_IS_VOID.kills(withdraw, keep_version, "fired late");
}

/// The look's own read-modify-write is what orders it against a caller's.
#[test]
fn the_look_must_be_a_read_modify_write() {
    let look = place("word.rs", "let latest = Word(self.0.fetch_add(0, Release)");
    let move_to = place("word.rs", "self.0.compare_exchange(seen.0, moved.0");
    MOVED_TWICE.kills(look, Change::Tear, "moved, fired");
    MOVED_TWICE.kills(look, Change::DropRelease, "fired late");
    MOVED_TWICE.kills(move_to, Change::DropAcquire, "fired late");
}

/// What a promise stands for must be seen by the thread that relies on it: a caller, or the worker.
#[test]
fn promises_must_be_acquired() {
    let load = place("hint.rs", "Promise(self.0.load(Ordering::Acquire))");
    let withdraw = place("hint.rs", "self.0.compare_exchange(seen.0, next.0");
    A_STALLED_AUTHOR_DELAYS_NOBODY.kills(load, Change::DropAcquire, "delayed another caller's timer");
    A_PROMISE_KEPT_IS_SEEN.kills(withdraw, Change::DropAcquire, "a promise without its hint");
}

/// The promise must fail if the worker has looked meanwhile, in one step.
#[test]
fn promises_must_be_one_step() {
    let promise = place("hint.rs", "self.0.compare_exchange(seen.0, seen.promising(tick).0");
    A_LATE_PROMISE_IS_VOID.kills(promise, Change::Tear, "fired late");
}

/// The word of a reused node publishes its new timer to the worker, and the look before it to the author.
#[test]
fn a_node_used_again_must_be_published_and_observed() {
    let allocate = place("word.rs", "self.0.swap(Word::tentative(repeats).0");
    let publish = place("word.rs", "self.0.compare_exchange(seen.0, pending.0");
    let claim = place("word.rs", "self.0.compare_exchange(seen.0, flags");
    A_PROMISE_OUTLIVES_ITS_TIMER.kills(allocate, Change::Tear, "one timer was cancelled");
    A_PROMISE_OUTLIVES_ITS_TIMER.kills(publish, Change::DropAcquire, "one timer was cancelled");
    let load = place("word.rs", "Word(self.0.load(Acquire)) }");
    PUBLISHED_BY_A_HELPER.kills(load, Change::DropAcquire, "one timer was cancelled");
    A_LOOK_MEETS_THE_NEXT_TIMER.kills(publish, Change::DropRelease, "Causality violation");
    A_LOOK_MEETS_THE_NEXT_TIMER.kills(claim, Change::DropAcquire, "Causality violation");
}

/// The author of a move that relies on the worker's promise from after a jump finds the jump. (No single fault in an
/// ordering is seen here: the author learns of the jump both by the worker's look at the word, and by the promise,
/// which comes after the fence behind the hand.)
#[test]
fn a_timer_that_is_moved_as_the_clock_jumps_is_not_forgotten() {
    A_JUMP_TO_A_PROMISE.reaches(&[0_u64, 1]);
}

/// Either the worker's drain after a jump finds the hint, or its author finds the jump.
#[test]
fn a_timer_that_begins_as_the_clock_jumps_is_not_forgotten() {
    A_JUMP.reaches(&[0_u64, 1]);
    let jump = place("mod.rs", "fence(Ordering::SeqCst);");
    let push = place("alarm.rs", "fence(Ordering::SeqCst); // Relaxed: the fences decide");
    A_JUMP.kills(jump, Change::DropFence, "forgotten after a jump");
    A_JUMP.kills(push, Change::DropFence, "forgotten after a jump");
}

const MODELS: &[Model] = &[
    A_JUMP,
    A_JUMP_TO_A_PROMISE,
    A_LOOK_MEETS_THE_NEXT_TIMER,
    A_PROMISE_KEPT_IS_SEEN,
    MOVED_TWICE,
    A_STALLED_AUTHOR_DELAYS_NOBODY,
    A_LATE_PROMISE_IS_VOID,
    A_PROMISE_OUTLIVES_ITS_TIMER,
    PUBLISHED_BY_A_HELPER,
    TWO_CALLERS,
];

#[test]
#[ignore = "minutes; see loom-tests/README.md"]
fn sweep() {
    crate::support::sweep("hint", MODELS);
}
