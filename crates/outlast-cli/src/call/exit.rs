//! What the exit status of a call says.

use std::process::ExitCode;

/// How a command about a server's task ended, for scripts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Exit {
    /// The tool's result is there, or what was asked for is done.
    Done = 0,
    /// Anything that none of the others says.
    Failed = 1,
    // 2 is a wrong command line, as clap has it.
    /// The tool ended with an error of its own.
    ToolError = 3,
    /// The task, or the call, ended with an error of the protocol.
    TaskFailed = 4,
    /// The task was cancelled.
    Cancelled = 5,
    /// The deadline passed; the task goes on.
    Deadline = 6,
    /// The server could not be reached, or was lost; a call may have been carried out.
    Unreached = 7,
    /// A question is open that nobody here can answer; the task waits for its answer.
    Unanswered = 8,
    /// The server has no such task any more.
    Gone = 9,
    /// It was interrupted; a task goes on.
    Interrupted = 130,
}

/// The same, for `--help`.
pub(crate) const EXITS: &str = "\
Exit status:
  0    the result is there, or the task was started with --detach
  1    it failed here, for another reason than those below
  2    the command line is wrong
  3    the tool ended with an error (isError)
  4    the task failed, or the server refused the call
  5    the task was cancelled
  6    the deadline passed; the task goes on
  7    no connection; or it was lost, or the deadline passed, before the answer to the call, and nobody knows
       whether it was carried out
  8    the server asks something that nobody here can answer; the task waits
  9    the server has no such task any more
  130  interrupted; the task, if there is one, goes on";

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}
