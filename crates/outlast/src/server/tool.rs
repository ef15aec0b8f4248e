//! When a tool's calls become tasks, and on what terms. Pure: it decides, and runs nothing.

use std::{fmt, sync::Arc, time::Duration};

use outlast_core::{InvalidSpec, Limits, Recovery, Spec};
use rmcp::{
    RoleServer,
    model::{CallToolRequestParams, Tool},
    service::RequestContext,
};

/// Whether calls of a tool may be tasks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Mode {
    /// Always synchronous.
    Never,
    /// A task where the caller declared the extension, else synchronous (S4, S5).
    #[default]
    Optional,
    /// Always a task; a caller who did not declare the extension is refused with `-32021` before anything runs (S5).
    Required,
}

/// When a call that may be a task becomes one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Start {
    /// At once: the answer is the task, and the work begins behind it.
    Now,
    /// When it is not over after this long, or when it asks something; a quick call is answered inline.
    ///
    /// Until then the work belongs to the request: a caller who leaves ends it. After that it does not (S22).
    After(Duration),
    /// After its multi-round-trip questions, which go to the caller as they are (S16): once the tool has run for a
    /// second without asking, or has ended.
    AfterInput,
}

/// What an author says about one call, where one rule for all of a tool's calls is not enough.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Decision {
    /// Answer this call synchronously.
    Sync,
    /// Make it a task, begun so.
    Task(Start),
}

type Decide = dyn Fn(&CallToolRequestParams, &RequestContext<RoleServer>) -> Decision + Send + Sync;

/// How calls of one tool run. The default makes a task of every call that takes longer than three seconds.
///
/// ```
/// use std::time::Duration;
/// use outlast::{Mode, Recovery, Start, TaskTool};
///
/// let report = TaskTool::new()
///     .mode(Mode::Required)
///     .start(Start::Now)
///     .recovery(Recovery::Rerun)
///     .ttl(Duration::from_secs(7 * 86_400));
/// # let _ = report;
/// ```
#[derive(Clone)]
pub struct TaskTool {
    pub(crate) mode: Mode,
    pub(crate) start: Start,
    recovery: Option<Recovery>,
    ttl: Option<Duration>,
    deadline: Option<Duration>,
    poll: Option<Duration>,
    version: String,
    max_attempts: u32,
    pub(crate) decide: Option<Arc<Decide>>,
}

impl Default for TaskTool {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for TaskTool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TaskTool")
            .field("mode", &self.mode)
            .field("start", &self.start)
            .field("recovery", &self.recovery)
            .field("version", &self.version)
            .finish_non_exhaustive()
    }
}

impl TaskTool {
    /// A tool with the defaults: [`Mode::Optional`], [`Start::After`] three seconds, kept for a day.
    #[must_use]
    pub fn new() -> Self {
        let usual = Spec::new("tool");
        Self {
            mode: Mode::Optional,
            start: Start::After(Duration::from_secs(3)),
            recovery: None,
            ttl: usual.ttl,
            deadline: None,
            poll: None,
            version: String::new(),
            max_attempts: usual.max_attempts,
            decide: None,
        }
    }

    /// A tool whose calls are never tasks.
    #[must_use]
    pub fn never() -> Self {
        Self::new().mode(Mode::Never)
    }

    /// A tool whose calls are always tasks, from their start.
    #[must_use]
    pub fn required() -> Self {
        Self::new().mode(Mode::Required).start(Start::Now)
    }

    /// A tool whose calls are tasks from their start wherever the caller can follow one.
    #[must_use]
    pub fn optional() -> Self {
        Self::new().start(Start::Now)
    }

    /// Whether its calls may be tasks.
    #[must_use]
    pub fn mode(mut self, mode: Mode) -> Self {
        self.mode = mode;
        self
    }

    /// When a call becomes a task.
    #[must_use]
    pub fn start(mut self, start: Start) -> Self {
        self.start = start;
        self
    }

    /// What becomes of the work when its process stops, by a crash or cleanly. Where this is not said, tools annotated
    /// `readOnlyHint` or `idempotentHint` run again and others fail, saying that their outcome is unknown.
    ///
    /// A tool of [`Recovery::Fail`] that waits for an answer when its server stops fails too. One that asks before it does
    /// any harm is better [`Recovery::Rerun`]: its question is still open when the server is back, and its answer is not
    /// asked for again.
    #[must_use]
    pub fn recovery(mut self, recovery: Recovery) -> Self {
        self.recovery = Some(recovery);
        self
    }

    /// How long a task stays readable, from its creation and once more from its end (S24). A day by default.
    #[must_use]
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = Some(ttl);
        self
    }

    /// Tasks of this tool are kept for ever.
    #[must_use]
    pub fn keep_for_ever(mut self) -> Self {
        self.ttl = None;
        self
    }

    /// A hard limit on the work, from its creation; past it the task fails. None by default.
    #[must_use]
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = Some(deadline);
        self
    }

    /// A fixed `pollIntervalMs` (S23). By default it adapts to the age of the task.
    #[must_use]
    pub fn poll_interval(mut self, poll: Duration) -> Self {
        self.poll = Some(poll);
        self
    }

    /// The version of the tool's code: a worker takes up only tasks of the version that it serves.
    #[must_use]
    pub fn version(mut self, version: impl Into<String>) -> Self {
        self.version = version.into();
        self
    }

    /// How many attempts in a row may end with the death of their process before the task fails. Five by default.
    #[must_use]
    pub fn max_attempts(mut self, max_attempts: u32) -> Self {
        self.max_attempts = max_attempts;
        self
    }

    /// Decides for each call by itself, instead of [`TaskTool::start`].
    #[must_use]
    pub fn decide<F>(mut self, decide: F) -> Self
    where
        F: Fn(&CallToolRequestParams, &RequestContext<RoleServer>) -> Decision + Send + Sync + 'static,
    {
        self.decide = Some(Arc::new(decide));
        self
    }

    pub(crate) fn version_name(&self) -> &str {
        &self.version
    }

    /// The terms of a task of this tool, resolved at its creation.
    pub(crate) fn spec(&self, name: &str, tool: Option<&Tool>, limits: &Limits) -> Spec {
        let annotated = tool.and_then(|tool| tool.annotations.as_ref());
        let repeatable = annotated
            .is_some_and(|hints| hints.read_only_hint == Some(true) || hints.idempotent_hint == Some(true));
        let by_hints = if repeatable { Recovery::Rerun } else { Recovery::Fail };
        Spec {
            version: self.version.clone(),
            recovery: self.recovery.unwrap_or(by_hints),
            ttl: self.ttl,
            deadline: self.deadline,
            poll: self.poll,
            max_attempts: self.max_attempts,
            limits: limits.clone(),
            ..Spec::new(name)
        }
    }

    pub(crate) fn check(&self, name: &str) -> Result<(), InvalidSpec> {
        self.spec(name, None, &Limits::default()).check()
    }
}

#[cfg(test)]
mod tests {
    use rmcp::model::ToolAnnotations;

    use super::*;

    fn annotated(annotations: ToolAnnotations) -> Tool {
        Tool::new("t", "", serde_json::Map::new()).with_annotations(annotations)
    }

    #[test]
    fn the_recovery_follows_the_annotations_unless_the_author_says_otherwise() {
        let limits = Limits::default();
        let recovery = |policy: TaskTool, tool: Option<&Tool>| policy.spec("t", tool, &limits).recovery;
        let read_only = annotated(ToolAnnotations::new().read_only(true));
        let idempotent = annotated(ToolAnnotations::new().idempotent(true));
        let neither = annotated(ToolAnnotations::new().read_only(false));
        assert_eq!(recovery(TaskTool::new(), Some(&read_only)), Recovery::Rerun);
        assert_eq!(recovery(TaskTool::new(), Some(&idempotent)), Recovery::Rerun);
        assert_eq!(recovery(TaskTool::new(), Some(&neither)), Recovery::Fail);
        assert_eq!(recovery(TaskTool::new(), None), Recovery::Fail);
        assert_eq!(recovery(TaskTool::new().recovery(Recovery::Fail), Some(&read_only)), Recovery::Fail);
    }

    #[test]
    fn c11_a_configured_ttl_and_poll_interval_are_kept() {
        let policy = TaskTool::new().ttl(Duration::from_secs(7_200)).poll_interval(Duration::from_secs(2));
        let spec = policy.spec("t", None, &Limits::default());
        assert_eq!((spec.ttl, spec.poll), (Some(Duration::from_secs(7_200)), Some(Duration::from_secs(2))));
    }

    #[test]
    fn a_ttl_of_zero_is_refused() {
        assert!(TaskTool::new().ttl(Duration::ZERO).check("t").is_err());
        assert!(TaskTool::new().keep_for_ever().check("t").is_ok());
    }
}
