//! The command at a terminal, as a person sees it and types.

use std::{
    io::{Read, Write},
    path::Path,
    process::Child,
    sync::{
        Arc,
        mpsc::{self, Receiver},
    },
    thread,
};

use pty_process::{
    Size,
    blocking::{Command, Pty},
};

use super::PATIENCE;

/// A command at a terminal of its own, killed with the test.
pub(crate) struct Person {
    child: Child,
    pty: Arc<Pty>,
    shown: Receiver<Vec<u8>>,
    raw: Vec<u8>,
    /// How much of what is shown was waited for already.
    read: usize,
}

impl Person {
    /// Runs `outlast` with `args` in `folder`.
    pub(crate) fn runs(folder: &Path, args: &[&str]) -> Self {
        let (pty, pts) = pty_process::blocking::open().expect("the system has terminals");
        pty.resize(Size::new(40, 120)).unwrap();
        let command = Command::new(env!("CARGO_BIN_EXE_outlast")).args(args).current_dir(folder);
        let command = command.env_remove("RUST_LOG").env("TERM", "xterm").env("OUTLAST_HANDLES", "handles");
        let child = command.spawn(pts).expect("the binary starts");
        let pty = Arc::new(pty);
        let (sender, shown) = mpsc::channel();
        let reader = pty.clone();
        thread::spawn(move || {
            let mut piece = vec![0; 4_096];
            // The end of a terminal is an error.
            while let Ok(read @ 1..) = (&*reader).read(&mut piece) {
                if sender.send(piece[..read].to_vec()).is_err() {
                    return;
                }
            }
        });
        Self { child, pty, shown, raw: Vec::new(), read: 0 }
    }

    /// Waits until the terminal shows `words`, after all that was waited for before.
    pub(crate) fn sees(&mut self, words: &str) -> &mut Self {
        loop {
            let text = self.text();
            if let Some(at) = text[self.read..].find(words) {
                self.read += at + words.len();
                return self;
            }
            match self.shown.recv_timeout(PATIENCE) {
                Ok(piece) => self.raw.extend(piece),
                Err(error) => {
                    panic!("{words:?} is not shown ({error}), but this is:\n{}", &text[self.read..])
                }
            }
        }
    }

    /// Types a line.
    pub(crate) fn types(&mut self, line: &str) -> &mut Self {
        (&*self.pty).write_all(format!("{line}\n").as_bytes()).unwrap();
        self
    }

    pub(crate) fn presses_ctrl(&mut self, letter: char) -> &mut Self {
        (&*self.pty).write_all(&[letter as u8 & 0x1f]).unwrap();
        self
    }

    /// Waits for the end of the command: its exit status, and all that it showed.
    pub(crate) fn sees_it_end(mut self) -> (i32, String) {
        loop {
            match self.shown.recv_timeout(PATIENCE) {
                Ok(piece) => self.raw.extend(piece),
                Err(mpsc::RecvTimeoutError::Disconnected) => break,
                Err(mpsc::RecvTimeoutError::Timeout) => {
                    panic!("it does not end; it showed:\n{}", self.text())
                }
            }
        }
        let status = self.child.wait().unwrap();
        (status.code().expect("it was not killed"), self.text())
    }

    /// SIGKILL.
    pub(crate) fn kills_it(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// What is shown, without what moves the cursor and gives colours. Only whole characters and sequences of it.
    fn text(&self) -> String {
        let raw = String::from_utf8_lossy(&self.raw);
        let mut text = String::with_capacity(raw.len());
        let mut chars = raw.chars();
        while let Some(c) = chars.next() {
            match c {
                '\u{1b}' => {
                    // A sequence begins with [ and ends with a letter.
                    chars.next();
                    chars.find(|c| ('@'..='~').contains(c));
                }
                '\r' => {}
                c => text.push(c),
            }
        }
        text
    }
}

impl Drop for Person {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
