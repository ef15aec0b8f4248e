//! MCP tool calls that outlast the connection.
//!
//! A [`TaskServer`] wraps an `rmcp` server handler, and its slow tool calls become durable tasks of the MCP Tasks
//! extension (SEP-2663): they are stored before their id leaves, run under a lease, can ask their caller, and are still
//! there after `kill -9`.
//!
//! ```no_run
//! use outlast::{TaskServer, TaskTool};
//! use outlast_sqlite::SqliteStore;
//! # #[derive(Clone)] struct MyHandler;
//! # impl rmcp::ServerHandler for MyHandler {}
//!
//! # async fn run() -> Result<(), Box<dyn std::error::Error>> {
//! let store = SqliteStore::open("tasks.db")?;
//! let server = TaskServer::builder(MyHandler).store(store).tool("report", TaskTool::optional()).build().await?;
//!
//! let listener = tokio::net::TcpListener::bind("127.0.0.1:8808").await?;
//! outlast::http::serve(listener, server, async { tokio::signal::ctrl_c().await.unwrap() }).await?;
//! # Ok(()) }
//! ```
//!
//! A tool takes a [`TaskContext`] to say how far it is and to ask its caller. What calls of a tool become is said by a
//! [`TaskTool`]; limits and paces by a [`Config`].
//!
//! # Repeating a call safely
//!
//! A client that may lose the answer of a `tools/call` sends a key of its own in
//! `_meta["outlast/idempotencyKey"]`, text of up to 256 bytes. The same key with the same request gives the task that exists
//! already, for as long as the task is kept and a day at the least; with another request it is refused (`-32602`). The
//! capabilities say for which tools, in `extensions["outlast/idempotency"]`: for all, unless its `tools` names them.
//!
//! # Metrics
//!
//! What happens is counted and timed through the facade [`metrics`](https://docs.rs/metrics): install the recorder of your
//! choice, such as `metrics-exporter-prometheus`, before the store is opened, and tell it the help texts with
//! [`describe_metrics`]. Without a recorder it costs next to nothing. Times are in seconds; of that exporter they are
//! histograms where it is given buckets (`set_buckets_for_metric`), and it wants its `run_upkeep` called now and then where nobody
//! scrapes.
//!
//! | metric | labels | |
//! |---|---|---|
//! | `outlast_calls_total` | `tool`, `answer` | calls that may become tasks: answered with a `task`, `inline`, with an `error` |
//! | `outlast_tasks_created_total` | `tool` | tasks that this process created |
//! | `outlast_tasks_ended_total` | `tool`, `status` | tasks whose end this process wrote, whoever brought it about |
//! | `outlast_task_seconds` | `status` | from the creation of a task to its end |
//! | `outlast_tasks_loaded` | | tasks in the memory of this process; parked ones are not |
//! | `outlast_queue_seconds` | | how long tasks were ready before a worker claimed them |
//! | `outlast_run_seconds` | `outcome` | how long attempts took: `completed`, `failed`, `cancelled`, `parked`, `released` (given back), `lost` (the lease), `inline` (over before it was a task), `refused`, `caller_left` |
//! | `outlast_step_seconds` | `outcome` | how long steps took: `value`, `error` (the last word), `failed` (a later attempt tries again) |
//! | `outlast_journal_entries_total` | `kind` | what was journaled: `claimed`, `asked`, `answered`, `step`, `parked`, `lease_lost`, ... |
//! | `outlast_store_seconds` | `operation` | how long calls of the store took |
//! | `outlast_store_errors_total` | `operation`, `kind` | calls of the store that failed: `unavailable`, `unknown`, `damaged`, `fatal` |
//! | `outlast_polls_total` | `answer` | `tasks/get`: `served`, or `slowed` for a caller who polls too fast |
//! | `outlast_push_seconds` | | from a change of a task to its notification |
//!
//! What is counted of tasks is counted by the store once it is durable, so the sums over all processes agree with what it
//! keeps. Tools that the server lists, or that are set up, are counted by their names, and of what callers make up the first
//! hundred names; others are counted as `other`. Whoever runs the operators' page gets the store's own numbers beside these:
//! tasks by status, those that wait, and for how long.
//!
//! # Traces
//!
//! What happens to a task is a span of [`tracing`](https://docs.rs/tracing): `create`, `claim`, `run` (an attempt), in it
//! `step`, `ask` and `sleep`, then `answer`, `cancel` and `push`. What a tool logs is inside of its `run`. Task ids appear
//! shortened, because who knows a whole one may read its task; arguments, answers and results do not appear.
//!
//! A task has its place in the trace of its caller, who sends it in `_meta.traceparent` (SEP-414) or as the HTTP header of that
//! name. With the feature `opentelemetry`, and a layer of `tracing-opentelemetry` 0.34 in the subscriber (that of another version
//! is not found), all spans of a task are one trace, over restarts and over all processes that work on it: `create` is part of the
//! caller's trace, or begins one, and
//! everything later is part of `create`. [`join_trace`] and [`place_in_trace`] do the same for spans of your own.
//!
//! # Logs
//!
//! The SDK logs several lines for each request, and a warning for each tool that ends with an error, a cancel included.
//! A filter such as `warn,rmcp=error,outlast=info` shows what an operator wants to see.

#![deny(missing_docs)]

mod server;

pub use outlast_core::{
    Clock, Counts, Hint, Hints, InvalidSpec, Limits, MemoryStore, Owner, QuestionKind, Recovery, Status,
    Store, StoreError, Timestamp, TraceParent,
};
pub use outlast_runtime::{Config, PollLimit, Raced, StepOptions, SystemClock, join_trace, place_in_trace};
pub use server::{
    AskError, BuildError, Cancelled, Decision, Elicited, Load, Mode, OwnerFn, Principal, Start, StepError,
    TaskContext, TaskServer, TaskServerBuilder, TaskTool, WeakTaskServer, default_owner, describe_metrics,
    http, stdio,
};
