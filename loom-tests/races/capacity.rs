//! Room for timers goes from stripe to stripe, and a thread that asks for it finds it wherever it is.

#[path = "../../src/capacity.rs"]
#[allow(dead_code, unused_imports, reason = "the models use a part of it")]
mod shipped;

use crate::support::{Change, Model, join, ordinal, outcome, place, spawn};
use shipped::Capacity;
use std::rc::Rc;

/// One of two places is free at any moment: in the second stripe, then in the first, the second, the first.
const GOING_ROUND: Model = Model::new("going_round", || {
    let capacity = Rc::new(Capacity::new(Some(2), 2));
    assert!(capacity.take(&ordinal(0)));
    let mover = spawn({
        let capacity = Rc::clone(&capacity);
        move || {
            for stripe in [0, 1, 0] {
                capacity.give(&ordinal(stripe), 1);
                assert!(capacity.take(&ordinal(1 - stripe)), "there was room all the time");
            }
        }
    });
    assert!(capacity.take(&ordinal(0)), "there was room all the time");
    join(mover);
    assert!(!capacity.take(&ordinal(1)), "more than the limit");
    outcome("found");
});

/// Two threads ask for the last place.
const ONE_FOR_TWO: Model = Model::new("one_for_two", || {
    let capacity = Rc::new(Capacity::new(Some(1), 2));
    let other = spawn({
        let capacity = Rc::clone(&capacity);
        move || capacity.take(&ordinal(1))
    });
    let mine = capacity.take(&ordinal(0));
    let theirs = join(other);
    assert!(mine != theirs, "one of them has it");
    outcome(mine);
    capacity.give(&ordinal(1), 1);
    assert!(capacity.take(&ordinal(0)) && !capacity.take(&ordinal(1)));
});

/// Two threads give to one stripe.
const GIVEN_BY_TWO: Model = Model::new("given_by_two", || {
    let capacity = Rc::new(Capacity::new(Some(2), 1));
    assert!(capacity.take(&ordinal(0)) && capacity.take(&ordinal(0)));
    let other = spawn({
        let capacity = Rc::clone(&capacity);
        move || capacity.give(&ordinal(1), 1)
    });
    capacity.give(&ordinal(0), 1);
    join(other);
    assert!(capacity.take(&ordinal(0)) && capacity.take(&ordinal(0)), "what was given is there");
    outcome("given");
});

/// One thread gives one place, then two; the other, which has got two of them, knows that there is a third.
const GIVEN_AND_TAKEN: Model = Model::new("given_and_taken", || {
    let capacity = Rc::new(Capacity::new(Some(3), 2));
    (0..3).for_each(|_| assert!(capacity.take(&ordinal(0))));
    let giver = spawn({
        let capacity = Rc::clone(&capacity);
        move || [(0, 1), (1, 2)].into_iter().for_each(|(stripe, count)| capacity.give(&ordinal(stripe), count))
    });
    let taker = spawn({
        let capacity = Rc::clone(&capacity);
        move || capacity.take(&ordinal(1)) && capacity.take(&ordinal(1))
    });
    let has_two = join(taker);
    assert!(!has_two || capacity.take(&ordinal(0)), "the third place is there");
    outcome(has_two);
    join(giver);
})
.preemptions(2);

/// A timer too many is paid for by the next one that ends, whichever comes first.
const DEBT_OR_GIVE: Model = Model::new("debt_or_give", || {
    let capacity = Rc::new(Capacity::new(Some(1), 2));
    assert!(capacity.take(&ordinal(0)));
    let other = spawn({
        let capacity = Rc::clone(&capacity);
        move || capacity.give(&ordinal(1), 1)
    });
    capacity.force(&ordinal(0));
    join(other);
    assert!(!capacity.take(&ordinal(0)), "there is a timer in the only place");
    capacity.give(&ordinal(0), 1);
    assert!(capacity.take(&ordinal(1)) && !capacity.take(&ordinal(1)), "the place is there again, once");
    outcome("paid");
});

/// Two timers too many at the same time.
const TWO_DEBTS: Model = Model::new("two_debts", || {
    let capacity = Rc::new(Capacity::new(Some(1), 1));
    assert!(capacity.take(&ordinal(0)));
    let other = spawn({
        let capacity = Rc::clone(&capacity);
        move || capacity.force(&ordinal(1))
    });
    capacity.force(&ordinal(0));
    join(other);
    capacity.give(&ordinal(0), 2);
    assert!(!capacity.take(&ordinal(0)), "three timers were started, and two have ended");
    outcome("owed");
});

/// Two threads take the places of two ended timers, of which one is owed.
const ONE_DEBT_FOR_TWO: Model = Model::new("one_debt_for_two", || {
    let capacity = Rc::new(Capacity::new(Some(2), 1));
    assert!(capacity.take(&ordinal(0)) && capacity.take(&ordinal(0)));
    capacity.force(&ordinal(0));
    capacity.give(&ordinal(0), 2);
    let other = spawn({
        let capacity = Rc::clone(&capacity);
        move || capacity.take(&ordinal(1))
    });
    let mine = capacity.take(&ordinal(0));
    assert!(mine != join(other), "one place is owed, the other is free");
    outcome(mine);
});

#[test]
fn room_that_goes_round_is_found() {
    GOING_ROUND.reaches(&["found"]);
}

#[test]
fn room_is_taken_once() {
    ONE_FOR_TWO.reaches(&[false, true]);
    GIVEN_BY_TWO.reaches(&["given"]);
    GIVEN_AND_TAKEN.reaches(&[false, true]);
    DEBT_OR_GIVE.reaches(&["paid"]);
    TWO_DEBTS.reaches(&["owed"]);
    ONE_DEBT_FOR_TWO.reaches(&[false, true]);
}

#[test]
fn room_must_be_taken_and_given_in_one_step() {
    let take = place("capacity.rs", "self.0.fetch_update(Release, Relaxed, take)");
    let give = place("capacity.rs", "self.0.fetch_add((1 << ROOM_BITS) + room, Release)");
    ONE_FOR_TWO.kills(take, Change::Tear, "one of them has it");
    GIVEN_BY_TWO.kills(give, Change::Tear, "what was given is there");
}

#[test]
fn debts_must_be_made_and_paid_in_one_step() {
    let make = place("capacity.rs", "room.debt.fetch_add(1, Relaxed)");
    let pay = place("capacity.rs", "self.debt.fetch_update(Relaxed, Relaxed,");
    TWO_DEBTS.kills(make, Change::Tear, "three timers were started");
    ONE_DEBT_FOR_TWO.kills(pay, Change::Tear, "one place is owed");
}

#[test]
fn room_must_be_seen_in_order() {
    let take = place("capacity.rs", "self.0.fetch_update(Release, Relaxed, take)");
    let give = place("capacity.rs", "self.0.fetch_add((1 << ROOM_BITS) + room, Release)");
    let look = place("capacity.rs", "self.0.load(Acquire)");
    GIVEN_AND_TAKEN.kills(give, Change::DropRelease, "the third place is there");
    GOING_ROUND.kills(take, Change::DropRelease, "there was room all the time");
    GOING_ROUND.kills(look, Change::DropAcquire, "there was room all the time");
}

const MODELS: &[Model] =
    &[GOING_ROUND, ONE_FOR_TWO, GIVEN_BY_TWO, GIVEN_AND_TAKEN, DEBT_OR_GIVE, TWO_DEBTS, ONE_DEBT_FOR_TWO];

#[test]
#[ignore = "minutes; see loom-tests/README.md"]
fn sweep() {
    crate::support::sweep("capacity", MODELS);
}
