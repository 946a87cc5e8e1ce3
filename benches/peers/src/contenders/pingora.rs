//! `pingora_timeout::sleep`, a task per timer. It rounds to 10 ms and never takes out what was cancelled: that stays until
//! its deadline.
//!
//! Without a task, polled by the caller as in `tokio_sleep.rs`, it would need care: its clock's thread wakes sleepers while it
//! holds the lock that starting a timer takes.

use super::task::{Sleep, Tasks};
use std::time::Duration;

pub(crate) type Pingora<S> = Tasks<PingoraSleep, S>;

pub(crate) struct PingoraSleep;

impl Sleep for PingoraSleep {
    fn sleep(delay: Duration) -> impl Future<Output = ()> + Send + 'static {
        pingora_timeout::sleep(delay)
    }
}
