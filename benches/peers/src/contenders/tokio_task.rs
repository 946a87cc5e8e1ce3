//! `tokio::time::sleep`, a task per timer.

use super::task::{Sleep, Tasks};
use std::time::{Duration, Instant};

pub(crate) type TokioTask<S> = Tasks<TokioSleep, S>;

pub(crate) struct TokioSleep;

impl Sleep for TokioSleep {
    async fn sleep(start: Instant, delay: Duration) {
        // First polled by the task, so inside of the runtime.
        tokio::time::sleep_until((start + delay).into()).await;
    }
}
