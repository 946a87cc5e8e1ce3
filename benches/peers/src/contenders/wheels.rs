//! Wheels for one owner.

use crate::contender::Wheel;
use hierarchical_hash_wheel_timer::wheels::quad_wheel::QuadWheelWithOverflow;
use shardwheel::wheel;
use std::hint::black_box;
use std::time::Duration;

#[derive(Default)]
pub(crate) struct Own(wheel::Wheel<u64>);

impl Wheel for Own {
    fn insert(&mut self, delay: Duration, value: u64) {
        self.0.insert(self.0.now() + delay.as_millis() as u64, value);
    }
    fn step(&mut self) -> usize {
        let mut expired = 0;
        self.0.advance(self.0.now() + 1, |value| {
            black_box(value);
            expired += 1;
        });
        expired
    }
}

/// `hierarchical_hash_wheel_timer`'s wheel, in its form without cancelling, which is the faster one.
#[derive(Default)]
pub(crate) struct Quad(QuadWheelWithOverflow<u64>);

impl Wheel for Quad {
    fn insert(&mut self, delay: Duration, value: u64) {
        self.0.insert_with_delay(value, delay).expect("the delay is not zero");
    }
    fn step(&mut self) -> usize {
        black_box(self.0.tick()).len()
    }
}
