//! The limits and paces of a runtime. Every limit is finite; the defaults work with nothing set.

use std::{sync::Arc, time::Duration};

use outlast_core::{Clock, Limits};

use crate::clock::SystemClock;

/// How a runtime works.
#[derive(Clone)]
#[non_exhaustive]
pub struct Config {
    /// How many tasks run at one time in this process; waiting for a person does not count. 64 by default.
    pub max_running: usize,
    /// How many tasks are in memory at one time, those that wait included. 10,000 by default.
    pub max_loaded: usize,
    /// How many running tasks one owner may have over all workers. 32 by default.
    pub max_running_per_owner: u32,
    /// How many unfinished tasks one owner may have. 1,000 by default.
    pub max_open_per_owner: u32,
    /// How many tasks one subscription may follow. 1,000 by default.
    pub max_subscribed: usize,
    /// How many subscriptions one owner may have in this process. 100 by default.
    pub max_subscriptions_per_owner: usize,
    /// Bytes of the parameters of a call that becomes a task. 1 MiB by default.
    pub argument_bytes: usize,
    /// The limits of one task.
    pub task: Limits,
    /// How long a worker may be silent before its tasks are taken over. 30 seconds by default.
    pub lease: Duration,
    /// How long a task of [`Recovery::Rerun`](outlast_core::Recovery::Rerun) may do nothing but wait, for an answer or a
    /// time, before it is unloaded: its future is dropped and it holds no memory and no lease, until what it waits for
    /// comes. Zero is at once. 30 seconds by default.
    ///
    /// Work that does something of its own beside its waiting (a step, a timer that is not the task's) is not unloaded
    /// while it is seen to do so at least this often. What it spawned is seen only by its steps and waits.
    pub park_after: Duration,
    /// How often a worker looks for work that no hint told it of. One second by default.
    pub poll_every: Duration,
    /// How fast one caller may poll one task; `None` is as fast as it likes. Sixty at once and ten a second by default.
    pub poll_limit: Option<PollLimit>,
    /// How long a drain lets running work go on before it gives it up. 10 seconds by default.
    pub drain: Duration,
    /// The clock by which a worker judges its own leases.
    pub clock: Arc<dyn Clock>,
}

/// How fast one caller may poll one task: a burst, refilled steadily.
///
/// The default is far above what `pollIntervalMs` asks for, because widely used clients poll a young task many times in
/// its first second and take any refusal as the end of the call.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PollLimit {
    /// How many polls may come at once. 60 by default.
    pub burst: u32,
    /// How many are added in a second. 10 by default.
    pub per_second: f64,
}

impl Default for PollLimit {
    fn default() -> Self {
        Self { burst: 60, per_second: 10.0 }
    }
}

impl Default for Config {
    fn default() -> Self {
        Self {
            max_running: 64,
            max_loaded: 10_000,
            max_running_per_owner: 32,
            max_open_per_owner: 1_000,
            max_subscribed: 1_000,
            max_subscriptions_per_owner: 100,
            argument_bytes: 1 << 20,
            task: Limits::default(),
            lease: Duration::from_secs(30),
            park_after: Duration::from_secs(30),
            poll_every: Duration::from_secs(1),
            poll_limit: Some(PollLimit::default()),
            drain: Duration::from_secs(10),
            clock: Arc::new(SystemClock),
        }
    }
}

/// Room for the error by which a task ends whose own end was refused.
const MIN_RESULT_BYTES: u64 = 1_000;

impl Config {
    /// Checks what a person configured.
    ///
    /// # Errors
    /// Names the first setting that cannot be kept.
    pub fn check(&self) -> Result<(), String> {
        let at_least_one = [
            ("max_running", self.max_running),
            ("max_loaded", self.max_loaded),
            ("max_running_per_owner", self.max_running_per_owner as usize),
            ("max_open_per_owner", self.max_open_per_owner as usize),
        ];
        if let Some((name, _)) = at_least_one.iter().find(|(_, value)| *value == 0) {
            return Err(format!("{name} must be at least 1"));
        }
        if self.task.result_bytes < MIN_RESULT_BYTES {
            return Err(format!("task.result_bytes must be at least {MIN_RESULT_BYTES}, to hold an error"));
        }
        if self.lease < Duration::from_millis(100) || self.lease > Duration::from_secs(3_600) {
            return Err("lease must be between 100 ms and an hour".to_owned());
        }
        if self.poll_every.is_zero() {
            return Err("poll_every must be longer than zero".to_owned());
        }
        if self
            .poll_limit
            .is_some_and(|limit| limit.burst == 0 || limit.per_second.is_nan() || limit.per_second <= 0.0)
        {
            return Err("poll_limit must let at least one poll through".to_owned());
        }
        Ok(())
    }
}
