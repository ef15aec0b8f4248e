//! `outlast tasks watch` without a handle: the tasks of a store as they change.

use std::{
    collections::HashMap,
    io::{self, IsTerminal as _, Write},
    time::Duration,
};

use outlast_core::{Filter, ListPage, Store, TaskId, ToolVersion};

use super::list;
use crate::{signals::Signals, text};

/// How many tasks are shown, newest first.
const SHOWN: u32 = 30;
/// How long changes are gathered before they are shown.
const GATHER: Duration = Duration::from_millis(200);
/// How often ages are brought up to date, and a hint that was lost is made up for.
const LOOK: Duration = Duration::from_secs(2);
/// Clears the screen, and begins at its top.
const CLEAR: &str = "\u{1b}[H\u{1b}[2J\u{1b}[3J";

/// Shows the list until it is interrupted: anew where it is a terminal, else a line for each change.
pub(super) async fn run(store: &dyn Store, out: &mut (impl Write + Send)) -> anyhow::Result<()> {
    let mut stop = Signals::new()?;
    let is_screen = io::stdout().is_terminal();
    let mut hints = store.watch();
    let mut seen = Seen::default();
    loop {
        let served = store.served().await?;
        let page = store.list(Filter::default(), None, SHOWN).await?;
        let text = if is_screen { screen(&page, &served) } else { seen.lines(&page, &served) };
        out.write_all(text.as_bytes())?;
        out.flush()?;
        tokio::select! {
            _ = stop.next() => return Ok(()),
            hint = hints.next() => if hint.is_none() { return Ok(()) },
            () = tokio::time::sleep(LOOK) => {}
        }
        tokio::select! {
            _ = stop.next() => return Ok(()),
            () = tokio::time::sleep(GATHER) => while hints.try_next().is_some() {},
        }
    }
}

fn screen(page: &ListPage, served: &[ToolVersion]) -> String {
    let more = if page.next.is_some() { " There are older ones." } else { "" };
    format!("{CLEAR}{}\nCtrl-C ends this.{more}\n", list::table(&page.tasks, served, page.now))
}

/// What was said of each task that is shown.
#[derive(Default)]
struct Seen(HashMap<TaskId, u64>);

impl Seen {
    /// A line for each task that has changed, the oldest first.
    fn lines(&mut self, page: &ListPage, served: &[ToolVersion]) -> String {
        let mut changed: Vec<_> =
            page.tasks.iter().filter(|task| self.0.get(&task.id) != Some(&task.revision)).collect();
        changed.sort_by_key(|task| task.updated_at);
        let line = |task: &&outlast_core::Task| {
            let message = text::one_line(task.status_message.as_deref().unwrap_or_default(), 200);
            let at = task.updated_at;
            let status = list::status(task, served);
            let line = format!("{} {} {} {status} {message}", at, task.id, list::tool(task));
            format!("{}\n", line.trim_end())
        };
        let lines = changed.iter().map(line).collect();
        self.0 = page.tasks.iter().map(|task| (task.id, task.revision)).collect();
        lines
    }
}

#[cfg(test)]
mod tests {
    use outlast_core::{
        By, Call, Event, Inspect as _, ManualClock, MemoryStore, NewTask, Owner, Payload, Spec, Timestamp,
    };

    use super::*;

    #[tokio::test]
    async fn a_line_is_said_for_each_change_and_once() {
        let store = MemoryStore::new(ManualClock::new(Timestamp::from_millis(0)));
        let ids = [1, 2].map(|n| TaskId::from_bytes([n; 16]));
        for id in ids {
            let new = NewTask::new(id, Owner::new("ann"), Spec::new("report"), Call::new(Payload::null()));
            store.create(new, None).await.unwrap();
        }
        let (mut seen, served) = (Seen::default(), [ToolVersion::new("report", "")]);
        let page = async || store.list(Filter::default(), None, SHOWN).await.unwrap();
        assert_eq!(seen.lines(&page().await, &served).lines().count(), 2);
        assert_eq!(seen.lines(&page().await, &served), "");
        store.apply(ids[0], By::Operator, vec![Event::Cancel]).await.unwrap();
        let said = seen.lines(&page().await, &served);
        assert_eq!(said, format!("1970-01-01T00:00:00.000Z {} report cancelled\n", ids[0]));
        let screen = screen(&page().await, &served);
        assert!(screen.contains("cancelled") && screen.contains("Ctrl-C ends this.\n"), "{screen}");
    }
}
