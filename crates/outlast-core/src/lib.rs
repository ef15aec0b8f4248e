//! The domain of Outlast: what a durable MCP task is and what may happen to it.
//!
//! Everything here is a value or a pure function: no runtime, no SQL, no SDK, no clock read, no randomness.
//! [`Task::apply`] is the one place that says which event is legal in which state; stores, recovery and tests
//! all go through it. [`Store`] is the contract that a backend keeps, and [`MemoryStore`] its reference.
//!
//! ```
//! use outlast_core::{Call, Event, NewTask, Payload, Spec, Task, TaskId, Timestamp, Owner, Status};
//!
//! let now = Timestamp::from_millis(1_000);
//! let id = TaskId::from_bytes([7; 16]);
//! let new = NewTask::new(id, Owner::anonymous(), Spec::new("greet"), Call::new(Payload::null()));
//! let task = Task::create(&new, now);
//! assert_eq!(task.status(), Status::Working);
//!
//! // A cancel of work that has not begun ends it at once (S22).
//! let change = task.apply(&Event::Cancel, None, now).unwrap();
//! assert_eq!(change.task().unwrap().status(), Status::Cancelled);
//! ```
//!
//! Rule numbers such as S12 are those of the Tasks extension (SEP-2663) as listed in `docs/rules.md`.

#![deny(missing_docs)]

mod apply;
mod decide;
mod event;
mod hints;
mod id;
mod journal;
mod lanes;
mod memory;
mod payload;
mod question;
mod retry;
mod spec;
mod store;
mod tally;
mod task;
mod time;
mod trace;
mod transfer;
mod why;

pub use apply::{Change, Illegal};
pub use decide::{Decision, Verdict};
pub use event::{By, Event, Wake};
pub use hints::{Hint, HintSender, Hints};
pub use id::{InputKey, InvalidKey, Owner, StepKey, TaskId, Token, WorkerId};
pub use journal::{Entry, EntryKind, Finished, JournalPage, Known, Outcome};
pub use lanes::{Lane, LaneLimits, Lanes, Queued};
pub use memory::MemoryStore;
pub use payload::Payload;
pub use question::{Asks, Question, QuestionKind};
pub use retry::TakenUp;
pub use spec::{Call, IdempotencyKey, InvalidSpec, Limits, NewTask, Recovery, Spec};
pub use store::{
    Applied, ClaimRequest, Claimed, Counts, Created, Filter, Head, Held, Inspect, LeaseRequest, ListPage,
    Renewal, Store, StoreError, Swept, ToolVersion, WorkerSeen,
};
pub use tally::{
    JOURNAL_ENTRIES, QUEUE_SECONDS, TASK_SECONDS, TASKS_CREATED, TASKS_ENDED, Tally, describe_tally,
    tell_tool_apart, tool_label,
};
pub use task::{Lease, Live, Run, Shape, Status, Sweep, Task, TaskError, TaskState};
pub use time::{Clock, ManualClock, Reading, StoreClock, Timestamp};
pub use trace::{InvalidTraceParent, TraceParent};
pub use transfer::{Exported, Record, SpentKey, TaskRecord, Transfer};
pub use why::Cause;
