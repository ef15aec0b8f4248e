//! A simulated process: the real runtime on an executor and a clock of its own.

use std::{future::poll_fn, sync::Arc, task::Poll, time::Duration};

use outlast_core::ToolVersion;
use outlast_runtime::{Config, Runtime};

use super::{
    clock::{ProcessClock, instant},
    plan::{Plan, TOOL},
    store::SimStore,
    tool::Tool,
    world::{Caller, Shared},
};

pub(super) struct Process {
    pub(super) caller: Caller,
    pub(super) engine: Runtime,
    /// The version of the tool that its calls become tasks of.
    pub(super) version: &'static str,
    pub(super) draining: bool,
    pub(super) stalled_until: Option<u64>,
    executor: tokio::runtime::Runtime,
    clock: ProcessClock,
    /// When it started, in simulated milliseconds.
    started_at: u64,
    shared: Shared,
}

/// How long a process runs.
#[derive(Debug, Clone, Copy)]
pub(super) enum Turn {
    /// Until it has nothing more to do by now.
    Idle,
    /// Until so many of its futures were polled, as if it lost the processor there.
    Polls(u64),
}

impl Process {
    /// Starts a process that serves these versions of the tool; the first is its own.
    pub(super) fn start(shared: &Shared, caller: Caller, versions: &[&'static str], now: u64) -> Self {
        let executor = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            // One future after the other, so that it can be left off after each.
            .event_interval(1)
            .build()
            .expect("an executor without threads starts");
        let mut config = config(&shared.lock().plan.clone());
        let store = Arc::new(SimStore { shared: shared.clone(), caller });
        let tool = Arc::new(Tool { shared: shared.clone(), caller });
        let (engine, clock) = executor.block_on(async {
            let clock = ProcessClock::start();
            config.clock = Arc::new(clock.clone());
            let engine = Runtime::start(store, config, tool).expect("the plans have sound settings");
            versions.iter().for_each(|version| engine.serve(ToolVersion::new(TOOL, *version)));
            (engine, clock)
        });
        Self {
            caller,
            engine,
            version: versions[0],
            draining: false,
            stalled_until: None,
            executor,
            clock,
            started_at: now,
            shared: shared.clone(),
        }
    }

    /// Runs at `now` on the world's clock: for it, all of the time since its last turn goes by at once.
    ///
    /// So its timers fire late and never early, and it hears of nothing before the world's clock says so.
    pub(super) fn run(&self, turn: Turn, now: u64) {
        let target = self.clock.after(Duration::from_millis(now - self.started_at));
        let (shared, caller) = (&self.shared, self.caller);
        self.executor.block_on(async {
            let dead = poll_fn(|context| {
                let mut world = shared.lock();
                let door = &mut world.doors[caller.process];
                if !door.open || door.incarnation != caller.incarnation {
                    return Poll::Ready(());
                }
                door.dies = Some(context.waker().clone());
                Poll::Pending
            });
            let turn = async {
                tokio::time::advance(target.saturating_duration_since(instant())).await;
                match turn {
                    // Paused time goes on by itself when nothing is left to do, and not before. What is due then waits
                    // for the next turn: this future is polled before others.
                    Turn::Idle => tokio::time::sleep_until(target + Duration::from_millis(1)).await,
                    Turn::Polls(polls) => {
                        for _ in 0..polls {
                            tokio::task::yield_now().await;
                        }
                    }
                }
            };
            tokio::select! {
                biased;
                () = dead => {}
                () = turn => {}
            }
        });
    }

    /// Sets its wall clock.
    pub(super) fn set_clock(&self, by: i64) {
        self.clock.set(by);
    }

    pub(super) fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        self.executor.spawn(work);
    }
}

fn config(plan: &Plan) -> Config {
    let mut config = Config::default();
    config.max_running = plan.max_running;
    config.max_loaded = plan.max_loaded.max(plan.max_running);
    config.max_running_per_owner = plan.per_owner;
    config.max_open_per_owner = plan.max_open;
    config.lease = plan.lease;
    config.park_after = plan.park_after;
    config.poll_every = plan.poll_every;
    config.poll_limit = None;
    config.drain = Duration::from_secs(2);
    config
}
