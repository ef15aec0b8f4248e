//! A server that is a child process, spoken to over its standard input and output.

use std::{
    collections::VecDeque,
    ffi::OsString,
    io,
    process::{ExitStatus, Stdio},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use rmcp::{
    RoleClient,
    model::{ClientJsonRpcMessage, ServerJsonRpcMessage},
    transport::Transport,
};
#[cfg(unix)]
use rustix::process::{Pid, Signal, kill_process_group, test_kill_process_group};
use tokio::{
    io::{AsyncBufReadExt, AsyncRead, BufReader},
    process::{Child, Command},
    sync::watch,
    time::timeout,
};

use super::{lines::Lines, observed::Observed};

/// How long a process that was asked to end may take, each time that it is asked.
const PATIENCE: Duration = Duration::from_secs(3);

/// How often it is looked whether all that a process has started has ended.
#[cfg(unix)]
const LOOK: Duration = Duration::from_millis(20);

/// How long the last words of a process that has ended may take.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// How much of its standard error is kept, in bytes.
const KEPT: usize = 2 << 10;

/// What is started.
#[derive(Clone)]
pub(crate) struct Program {
    pub(crate) program: OsString,
    pub(crate) args: Vec<OsString>,
    pub(crate) env: Vec<(OsString, OsString)>,
}

/// The transport. The process ends with it, and so does what the process has started: a wrapper such as `npx` may end and
/// leave the server itself behind.
pub(crate) struct Process {
    lines: Lines,
    child: Child,
    group: Group,
    ended: Option<ExitStatus>,
    last_words: Arc<LastWords>,
    observed: Arc<Observed>,
}

impl Process {
    /// # Errors
    /// When there is no such program, or it cannot be started.
    pub(crate) fn start(program: &Program, observed: Arc<Observed>) -> io::Result<Process> {
        let mut command = Command::new(&program.program);
        // Ctrl-C at a terminal is for the program at it, which may want to go on or to say goodbye first.
        #[cfg(unix)]
        command.process_group(0);
        let mut child = command
            .args(&program.args)
            .envs(program.env.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .map_err(|error| {
                let program = program.program.to_string_lossy();
                io::Error::new(error.kind(), format!("cannot start {program}: {error}"))
            })?;
        let (Some(stdin), Some(stdout), Some(stderr)) =
            (child.stdin.take(), child.stdout.take(), child.stderr.take())
        else {
            return Err(io::Error::other("a stream of the process is missing"));
        };
        let group = Group::of(&child);
        let last_words = Arc::<LastWords>::default();
        observed.speaks(last_words.clone());
        tokio::spawn(last_words.clone().listen(stderr));
        Ok(Process {
            lines: Lines::new(Box::new(stdout), Box::new(stdin), observed.clone()),
            child,
            group,
            ended: None,
            last_words,
            observed,
        })
    }

    async fn next(&mut self) -> Option<ServerJsonRpcMessage> {
        if self.ended.is_none() {
            tokio::select! {
                biased;
                message = self.lines.receive() => match message {
                    Some(message) => return Some(message),
                    // It has closed its output, which most do by ending.
                    None => self.ended = timeout(LAST_WORDS, self.child.wait()).await.ok().and_then(Result::ok),
                },
                status = self.child.wait() => self.ended = status.ok(),
            }
        }
        // What it has said to the end still counts. A grandchild may hold its output open for ever.
        if let Ok(Some(message)) = timeout(LAST_WORDS, self.lines.receive()).await {
            return Some(message);
        }
        self.tell().await;
        None
    }

    /// Says how it ended.
    async fn tell(&mut self) {
        let how = match self.ended {
            Some(status) => format!("the server process ended ({status})"),
            None => "the server process closed its output".to_owned(),
        };
        self.observed.ended(self.last_words.after(how).await);
    }

    /// Asks the process to end, more plainly each time: its input is closed, it is told to terminate, it is killed.
    async fn stop(&mut self) -> io::Result<()> {
        self.lines.close_writer().await;
        if !self.has_ended().await {
            // It may have ended this moment; whether it has is asked next.
            self.group.terminate();
            if !self.has_ended().await {
                tracing::warn!("the server process did not end when it was asked to; it is killed");
                self.child.kill().await?;
            }
        }
        self.group.end().await;
        Ok(())
    }

    async fn has_ended(&mut self) -> bool {
        let (lines, child) = (&mut self.lines, &mut self.child);
        // It may have something to say yet, and would wait for ever to say it.
        let ended = async {
            tokio::select! {
                status = child.wait() => status,
                never = async { lines.drain().await; std::future::pending().await } => never,
            }
        };
        matches!(timeout(PATIENCE, ended).await, Ok(Ok(_)))
    }
}

impl Transport<RoleClient> for Process {
    type Error = io::Error;

    fn send(
        &mut self,
        message: ClientJsonRpcMessage,
    ) -> impl Future<Output = io::Result<()>> + Send + 'static {
        self.lines.send(message)
    }

    fn receive(&mut self) -> impl Future<Output = Option<ServerJsonRpcMessage>> + Send {
        self.next()
    }

    fn close(&mut self) -> impl Future<Output = io::Result<()>> + Send {
        self.stop()
    }
}

/// The process and those that it has started, as far as they have not left its group. Killed when dropped.
#[cfg(unix)]
struct Group(Option<Pid>);

#[cfg(unix)]
impl Group {
    fn of(child: &Child) -> Self {
        Self(child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw))
    }

    fn terminate(&self) {
        self.signal(Signal::TERM);
    }

    /// Ends what is left when the process itself has ended.
    async fn end(&mut self) {
        self.signal(Signal::TERM);
        let is_empty = async {
            while self.0.is_some_and(|id| test_kill_process_group(id).is_ok()) {
                tokio::time::sleep(LOOK).await;
            }
        };
        if timeout(PATIENCE, is_empty).await.is_err() {
            self.signal(Signal::KILL);
        }
        // From now on another group may have its number.
        self.0 = None;
    }

    fn signal(&self, signal: Signal) {
        if let Some(id) = self.0 {
            // There may be nobody left.
            let _ = kill_process_group(id, signal);
        }
    }
}

#[cfg(unix)]
impl Drop for Group {
    fn drop(&mut self) {
        self.signal(Signal::KILL);
    }
}

/// Elsewhere a process has no group, and ends by being killed.
#[cfg(not(unix))]
struct Group;

#[cfg(not(unix))]
impl Group {
    fn of(_: &Child) -> Self {
        Self
    }

    fn terminate(&self) {}

    async fn end(&mut self) {}
}

/// The end of what a process has written to its standard error, which often says why it ended.
#[derive(Debug, Default)]
pub(crate) struct LastWords {
    kept: Mutex<VecDeque<u8>>,
    is_over: watch::Sender<bool>,
}

impl LastWords {
    /// Adds them to what is known of the end of the process, once all is heard.
    pub(crate) async fn after(&self, how: String) -> String {
        // A grandchild may hold its standard error open for ever.
        let _ = timeout(LAST_WORDS, self.is_over.subscribe().wait_for(|is_over| *is_over)).await;
        let words: Vec<u8> =
            self.kept.lock().unwrap_or_else(PoisonError::into_inner).iter().copied().collect();
        // Whoever shows it to a person may write it to a terminal, which obeys what it is sent.
        let harmless = |letter: &char| !letter.is_control() || matches!(letter, '\n' | '\t');
        let words: String = String::from_utf8_lossy(&words).chars().filter(harmless).collect();
        match words.trim() {
            "" => how,
            words => format!("{how}; the last that it wrote to its standard error:\n{words}"),
        }
    }

    /// Passes standard error on to the log, and keeps the end of it.
    async fn listen(self: Arc<Self>, stderr: impl AsyncRead + Unpin) {
        let mut stderr = BufReader::new(stderr);
        loop {
            let read = match stderr.fill_buf().await {
                Ok(read) if !read.is_empty() => read,
                _ => break,
            };
            for line in String::from_utf8_lossy(read).lines() {
                tracing::debug!(line, "from the server process");
            }
            let taken = read.len();
            let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
            kept.extend(read);
            let surplus = kept.len().saturating_sub(KEPT);
            kept.drain(..surplus);
            drop(kept);
            stderr.consume(taken);
        }
        self.is_over.send_replace(true);
    }
}
