//! `outlast tasks watch` without a handle: the tasks of a store as they change.

use std::{
    collections::{BTreeSet, HashMap},
    io::{self, IsTerminal as _, Write},
    time::Duration,
};

use outlast_core::{Filter, Hint, ListPage, Store, StoreError, Task, TaskId, ToolVersion};

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

/// Shows the list until it is interrupted or nobody reads it: anew where it is a terminal, else a line for each change.
pub(super) async fn run(store: &dyn Store, out: &mut (impl Write + Send)) -> anyhow::Result<()> {
    let mut stop = Signals::new()?;
    let is_screen = io::stdout().is_terminal();
    let mut hints = store.watch();
    let (mut seen, mut hinted) = (Seen::default(), BTreeSet::new());
    while is_read() {
        let served = ToolVersion::served_by(&store.workers().await?);
        let page = store.list(Filter::default(), None, SHOWN).await?;
        let text = if is_screen {
            screen(&page, &served)
        } else {
            let older = older(store, &page, std::mem::take(&mut hinted)).await?;
            seen.lines(&page, &older, &served)
        };
        out.write_all(text.as_bytes())?;
        out.flush()?;
        let mut note = |hint| {
            if let Hint::Changed(id) = hint {
                hinted.insert(id);
            }
        };
        tokio::select! {
            _ = stop.next() => return Ok(()),
            hint = hints.next() => match hint {
                Some(hint) => note(hint),
                None => return Ok(()),
            },
            () = tokio::time::sleep(LOOK) => {}
        }
        tokio::select! {
            _ = stop.next() => return Ok(()),
            () = tokio::time::sleep(GATHER) => while let Some(hint) = hints.try_next() {
                note(hint);
            },
        }
    }
    Ok(())
}

/// Whether the other end of standard output is there: a write tells, too, but there may be none for hours.
#[cfg(unix)]
fn is_read() -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let out = io::stdout();
    let mut polled = [PollFd::new(&out, PollFlags::empty())];
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    let is_polled = poll(&mut polled, Some(&at_once)).is_ok();
    !(is_polled && polled[0].revents().intersects(PollFlags::ERR | PollFlags::HUP))
}

#[cfg(not(unix))]
fn is_read() -> bool {
    true
}

/// Those of `changed` that are too old for the page.
async fn older(
    store: &dyn Store,
    page: &ListPage,
    changed: BTreeSet<TaskId>,
) -> Result<Vec<Task>, StoreError> {
    let mut older = Vec::new();
    for id in changed {
        if page.tasks.iter().any(|task| task.id == id) {
            continue;
        }
        match store.get(id).await {
            Ok(task) => older.extend(task),
            // A list leaves it out as well.
            Err(StoreError::Damaged(_)) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(older)
}

fn screen(page: &ListPage, served: &[ToolVersion]) -> String {
    let more = if page.next.is_some() { " There are older ones." } else { "" };
    format!("{CLEAR}{}\nCtrl-C ends this.{more}\n", list::table(&page.tasks, served, page.now))
}

/// What was said of each task, but for those that were left alone for long.
#[derive(Default)]
struct Seen(HashMap<TaskId, u64>);

/// How many tasks are remembered besides those of the page.
const MOST: usize = 10_000;

impl Seen {
    /// A line for each task that has changed, the oldest change first.
    fn lines(&mut self, page: &ListPage, older: &[Task], served: &[ToolVersion]) -> String {
        let tasks = page.tasks.iter().chain(older);
        let mut changed: Vec<_> =
            tasks.clone().filter(|task| self.0.get(&task.id) != Some(&task.revision)).collect();
        changed.sort_by_key(|task| task.updated_at);
        let line = |task: &&Task| {
            let message = text::one_line(task.status_message.as_deref().unwrap_or_default(), 200);
            let at = task.updated_at;
            let status = list::status(task, served);
            let line = format!("{} {} {} {status} {message}", at, task.id, list::tool(task));
            format!("{}\n", line.trim_end())
        };
        let lines = changed.iter().map(line).collect();
        if self.0.len() > MOST {
            self.0.clear();
        }
        self.0.extend(tasks.map(|task| (task.id, task.revision)));
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
        assert_eq!(seen.lines(&page().await, &[], &served).lines().count(), 2);
        assert_eq!(seen.lines(&page().await, &[], &served), "");
        store.apply(ids[0], By::Operator, vec![Event::Cancel]).await.unwrap();
        let said = seen.lines(&page().await, &[], &served);
        assert_eq!(said, format!("1970-01-01T00:00:00.000Z {} report cancelled\n", ids[0]));
        let screen = screen(&page().await, &served);
        assert!(screen.contains("cancelled") && screen.contains("Ctrl-C ends this.\n"), "{screen}");
    }

    #[tokio::test]
    async fn a_change_of_a_task_that_is_too_old_for_the_list_is_said_too() {
        let store = MemoryStore::new(ManualClock::new(Timestamp::from_millis(0)));
        let mut hints = store.watch();
        let most = u8::try_from(SHOWN).unwrap();
        let ids: Vec<_> = (0..=most).map(|n| TaskId::from_bytes([n; 16])).collect();
        for id in &ids {
            let new = NewTask::new(*id, Owner::new("ann"), Spec::new("report"), Call::new(Payload::null()));
            store.create(new, None).await.unwrap();
        }
        while hints.try_next().is_some() {}
        let page = store.list(Filter::default(), None, SHOWN).await.unwrap();
        let oldest = ids.into_iter().find(|id| page.tasks.iter().all(|task| task.id != *id)).unwrap();
        let mut seen = Seen::default();
        seen.lines(&page, &[], &[]);

        store.apply(oldest, By::Operator, vec![Event::Cancel]).await.unwrap();
        assert_eq!(hints.try_next(), Some(Hint::Changed(oldest)));
        let gone = TaskId::from_bytes([99; 16]);
        let older = older(&store, &page, BTreeSet::from([oldest, gone, page.tasks[0].id])).await.unwrap();
        let said = seen.lines(&page, &older, &[]);
        assert_eq!(said, format!("1970-01-01T00:00:00.000Z {oldest} report cancelled\n"));
        assert_eq!(seen.lines(&page, &older, &[]), "");
    }
}
