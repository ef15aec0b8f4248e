//! What a step of a tool returns when it fails.

use std::{any::Any, error::Error, fmt};

use outlast_core::TaskError;
use outlast_runtime::StepFailure;
use rmcp::ErrorData;
use serde_json::Value;

use super::{
    context::{AskError, Cancelled},
    wire,
};

/// Why a step failed.
///
/// Any error becomes one with `?`, and the step may then be tried again: by [`TaskContext::step_with`](super::TaskContext::step_with),
/// or by a later attempt at the task. [`StepError::last`] is the step's final word instead: it is journaled, and every
/// later attempt gets the same error without doing the work.
///
/// It is not an [`Error`] itself, so that every other error can become one.
///
/// ```
/// # use outlast::{StepError, TaskContext};
/// # async fn pay(id: &str) -> Result<u16, std::io::Error> { Ok(200) }
/// # async fn tool(ctx: TaskContext) -> Result<(), StepError> {
/// ctx.step("pay", || async {
///     match pay(&ctx.step_id("pay")).await? {
///         200 => Ok(()),
///         402 => Err(StepError::last("the card was refused")),
///         other => Err(StepError::new(format!("the bank answered {other}"))),
///     }
/// })
/// .await
/// # }
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct StepError(pub(crate) StepFailure);

impl StepError {
    /// A failure after which the step may be tried again.
    #[must_use]
    pub fn new(message: impl Into<String>) -> Self {
        Self(StepFailure { error: TaskError::internal(message), last: false })
    }

    /// The final word of the step.
    #[must_use]
    pub fn last(message: impl Into<String>) -> Self {
        Self::new(message).into_last()
    }

    /// The same error as the final word of the step.
    #[must_use]
    pub fn into_last(mut self) -> Self {
        self.0.last = true;
        self
    }

    /// Whether it is the final word of the step.
    #[must_use]
    pub fn is_last(&self) -> bool {
        self.0.last
    }

    /// What it tells a person.
    #[must_use]
    pub fn message(&self) -> &str {
        &self.0.error.message
    }

    /// Its JSON-RPC code, `-32603` unless it was made of an [`ErrorData`].
    #[must_use]
    pub fn code(&self) -> i64 {
        self.0.error.code
    }

    /// What else it carries.
    #[must_use]
    pub fn data(&self) -> Option<Value> {
        self.0.error.data.as_ref().map(outlast_core::Payload::to_value)
    }
}

impl fmt::Debug for StepError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StepError")
            .field("code", &self.code())
            .field("message", &self.message())
            .field("last", &self.is_last())
            .finish_non_exhaustive()
    }
}

impl fmt::Display for StepError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.message())
    }
}

impl<E: Error + 'static> From<E> for StepError {
    fn from(error: E) -> Self {
        let any: &dyn Any = &error;
        // An error of the protocol keeps its code, and the exit after a cancel stays one.
        if let Some(error) = any.downcast_ref::<ErrorData>() {
            return Self(StepFailure { error: wire::task_error(error), last: false });
        }
        if any.is::<Cancelled>() {
            return Self(StepFailure { error: wire::task_error(&Cancelled.into()), last: false });
        }
        if let Some(error) = any.downcast_ref::<AskError>() {
            return Self(StepFailure { error: wire::task_error(&error.clone().into()), last: false });
        }
        Self::new(error.to_string())
    }
}

impl From<StepError> for ErrorData {
    fn from(error: StepError) -> Self {
        wire::error_data(&error.0.error)
    }
}
