//! Keys that all have one hash. (In a process of its own: what other tests leave to the epoch would need stack, too.)

mod support;

use shardwheel::Scheduler;
use std::thread;
use support::{HOUR, MS};

/// Timers of one hash lie in one long row; to walk along it takes no stack in proportion.
#[test]
fn many_timers_of_one_hash_need_little_stack() {
    let run = || {
        let count = 10_000;
        let builder = Scheduler::builder().shards(1).hasher(support::OneHash);
        let (scheduler, clock) = builder.build_manual(|_: &u64, _: u64| {}).expect("in range");
        for key in 0..count {
            scheduler.schedule_with(key, key, HOUR).expect("it is open and not full");
        }
        // Lets the worker do its work ahead.
        clock.advance(MS);
        for key in (0..count).step_by(7) {
            assert_eq!(scheduler.cancel(&key), Some(key));
        }
        assert_eq!(scheduler.len() as u64, count - count.div_ceil(7));
    };
    let thread = thread::Builder::new().stack_size(64 << 10).spawn(run).expect("the system has threads");
    thread.join().expect("all are found");
}
