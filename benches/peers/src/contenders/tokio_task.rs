//! `tokio::time::sleep`, a task per timer.

use super::task::{Sleep, Tasks};
use std::time::Duration;
use tokio::time::{Instant, sleep_until};

pub(crate) type TokioTask<S> = Tasks<TokioSleep, S>;

pub(crate) struct TokioSleep;

impl Sleep for TokioSleep {
    fn sleep(delay: Duration) -> impl Future<Output = ()> + Send + 'static {
        let deadline = Instant::now() + delay;
        // Made by the task, so inside of the runtime.
        async move { sleep_until(deadline).await }
    }
}
