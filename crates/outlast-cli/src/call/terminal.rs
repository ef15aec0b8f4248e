//! The terminal of a call: the line that shows how it goes, and the questions that are asked below it, one at a time.

use std::{
    io::{self, BufRead, IsTerminal, Write},
    sync::{Arc, Mutex, PoisonError, mpsc as threads},
    thread,
    time::Duration,
};

use indicatif::{ProgressBar, ProgressStyle};
use tokio::sync::{Mutex as Turn, mpsc, watch};

use crate::text;

/// What a person sees and types during a call. A clone is the same terminal.
#[derive(Clone)]
pub(crate) struct Terminal(Arc<Shared>);

struct Shared {
    /// Whether there is a person to ask.
    attended: bool,
    progress: Mutex<Progress>,
    /// Held for as long as a question is open.
    turn: Turn<()>,
    keyboard: Turn<Keyboard>,
    /// Whether the open question stands back for a more urgent one.
    held: watch::Sender<bool>,
}

impl Terminal {
    /// The terminal of this process, if it has one: a person reads standard error and types standard input.
    pub(crate) fn new() -> Self {
        let attended = io::stdin().is_terminal() && io::stderr().is_terminal();
        Self(Arc::new(Shared {
            attended,
            progress: Mutex::new(Progress { bar: None, words: None, hidden: 0 }),
            turn: Turn::new(()),
            keyboard: Turn::new(Keyboard::new()),
            held: watch::Sender::new(false),
        }))
    }

    pub(crate) fn is_attended(&self) -> bool {
        self.0.attended
    }

    /// Says how it goes, where a terminal shows it.
    pub(crate) fn progress(&self, words: &str) {
        let mut progress = self.0.progress();
        progress.words = Some(text::one_line(words, 400));
        progress.draw();
    }

    /// Takes the line away for good.
    pub(crate) fn clear(&self) {
        let mut progress = self.0.progress();
        progress.words = None;
        progress.draw();
    }

    /// Writes lines above the progress. They are printable already.
    pub(crate) fn say(&self, lines: &str) {
        let _away = self.away();
        write_out(&format!("{lines}\n"));
    }

    /// Begins a question, once no other one is open. The progress is away until what this returns is dropped.
    pub(crate) async fn question(&self) -> Open<'_> {
        let turn = self.0.turn.lock().await;
        self.0.keyboard.lock().await.forget();
        Open { _turn: turn, _away: self.away(), shared: &self.0 }
    }

    /// Begins a question that cannot wait: the one that is open stands back until what this returns is dropped.
    pub(crate) async fn urgent(&self) -> Urgent<'_> {
        self.0.held.send_replace(true);
        let held = Held(&self.0.held);
        let mut keyboard = self.0.keyboard.lock().await;
        keyboard.forget();
        Urgent { keyboard, _held: held, _away: self.away() }
    }

    fn away(&self) -> Away<'_> {
        let mut progress = self.0.progress();
        progress.hidden += 1;
        progress.draw();
        Away(&self.0)
    }
}

impl Shared {
    fn progress(&self) -> std::sync::MutexGuard<'_, Progress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A question that is open.
pub(crate) struct Open<'a> {
    _away: Away<'a>,
    _turn: tokio::sync::MutexGuard<'a, ()>,
    shared: &'a Shared,
}

impl Open<'_> {
    /// Writes lines that are printable already.
    pub(crate) fn say(&self, lines: &str) {
        write_out(lines);
    }

    /// Asks for a line; `None` when there are no more. What was written of it before a more urgent question is typed again.
    pub(crate) async fn line(&self, prompt: &str) -> Option<String> {
        let mut held = self.shared.held.subscribe();
        loop {
            // Its sender is in what this borrows.
            let _ = held.wait_for(|held| !held).await;
            let mut keyboard = self.shared.keyboard.lock().await;
            write_out(prompt);
            tokio::select! {
                line = keyboard.line() => return line,
                _ = held.wait_for(|held| *held) => {}
            }
        }
    }
}

/// A question before which the open one stands back.
pub(crate) struct Urgent<'a> {
    keyboard: tokio::sync::MutexGuard<'a, Keyboard>,
    _away: Away<'a>,
    // After the keyboard, which the question that stood back takes then.
    _held: Held<'a>,
}

impl Urgent<'_> {
    pub(crate) async fn line(&mut self, prompt: &str) -> Option<String> {
        write_out(prompt);
        self.keyboard.line().await
    }
}

struct Held<'a>(&'a watch::Sender<bool>);

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.0.send_replace(false);
    }
}

/// While it is here the progress is not.
struct Away<'a>(&'a Shared);

impl Drop for Away<'_> {
    fn drop(&mut self) {
        let mut progress = self.0.progress();
        progress.hidden -= 1;
        progress.draw();
    }
}

/// One line below everything else.
struct Progress {
    bar: Option<ProgressBar>,
    words: Option<String>,
    /// How many reasons there are not to show it.
    hidden: usize,
}

impl Progress {
    fn draw(&mut self) {
        const TICK: Duration = Duration::from_millis(120);
        let Some(words) = self.words.as_ref().filter(|_| self.hidden == 0) else {
            if let Some(bar) = self.bar.take() {
                bar.finish_and_clear();
            }
            return;
        };
        // Draws nothing where standard error is no terminal.
        let bar = self.bar.get_or_insert_with(|| {
            let bar = ProgressBar::new_spinner();
            if let Ok(style) = ProgressStyle::with_template("{spinner} {wide_msg}") {
                bar.set_style(style);
            }
            bar.enable_steady_tick(TICK);
            bar
        });
        bar.set_message(words.clone());
    }
}

/// Lines that are typed. They are read by a thread, because a read of standard input cannot be called off: a line that
/// comes after its question is gone is thrown away.
struct Keyboard {
    wanted: Option<threads::Sender<()>>,
    lines: mpsc::UnboundedReceiver<Option<String>>,
    typed: mpsc::UnboundedSender<Option<String>>,
    /// Whether the thread reads.
    reading: bool,
}

impl Keyboard {
    fn new() -> Self {
        let (typed, lines) = mpsc::unbounded_channel();
        Self { wanted: None, lines, typed, reading: false }
    }

    /// The next line that is typed. Dropped, it leaves the read to the next question.
    async fn line(&mut self) -> Option<String> {
        if !self.reading {
            let typed = self.typed.clone();
            let wanted = self.wanted.get_or_insert_with(|| reader(typed));
            // A thread that ended can read no more.
            wanted.send(()).ok()?;
            self.reading = true;
        }
        let line = self.lines.recv().await.flatten();
        self.reading = false;
        line
    }

    /// Throws away what was typed before there was anything to answer: nobody shall agree to what they have not seen.
    fn forget(&mut self) {
        while self.lines.try_recv().is_ok() {
            self.reading = false;
        }
        #[cfg(unix)]
        if io::stdin().is_terminal() {
            let _ = rustix::termios::tcflush(io::stdin(), rustix::termios::QueueSelector::IFlush);
        }
    }
}

/// A thread that reads a line for each `()` that it is sent.
fn reader(typed: mpsc::UnboundedSender<Option<String>>) -> threads::Sender<()> {
    let (sender, wanted) = threads::channel();
    thread::spawn(move || {
        while wanted.recv().is_ok() {
            let mut line = Vec::new();
            let read = io::stdin().lock().read_until(b'\n', &mut line);
            // What is no text is still no reason to take it for the end.
            let line = matches!(read, Ok(1..)).then(|| String::from_utf8_lossy(&line).into_owned());
            if typed.send(line).is_err() {
                return;
            }
        }
    });
    sender
}

/// A terminal that cannot be written to is no reason to end the call.
fn write_out(text: &str) {
    let mut out = io::stderr().lock();
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}
