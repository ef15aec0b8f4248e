//! `outlast tasks list`.

use std::io::Write;

use anyhow::bail;
use outlast_admin::{
    operate,
    view::{summary, unserved},
};
use outlast_core::{Filter, ListPage, Spec, Status, Store, Task, Timestamp, ToolVersion};
use serde_json::{Value, json};

use crate::text;

/// List tasks, newest first
#[derive(clap::Args)]
pub(super) struct Args {
    /// Only tasks in this status
    #[arg(long, value_parser = parse_status, value_name = "STATUS")]
    status: Option<Status>,
    /// Only tasks of this tool
    #[arg(long)]
    tool: Option<String>,
    /// Only tasks of this owner: the digest that `show` gives, or the owner's whole name
    #[arg(long)]
    owner: Option<String>,
    /// Only unfinished tasks that nobody takes up, because no server serves their tool in their version
    #[arg(long)]
    unserved: bool,
    /// How many tasks to list
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    limit: u32,
    /// Go on where an earlier page ended: what it gave as the next
    #[arg(long, value_name = "NEXT")]
    after: Option<String>,
    /// Write JSON: {"tasks": [...], "next": ...}
    #[arg(long)]
    json: bool,
}

pub(super) async fn run(store: &dyn Store, args: Args, out: &mut impl Write) -> anyhow::Result<()> {
    if args.after.as_ref().is_some_and(|after| after.parse::<u64>().is_err()) {
        bail!("--after takes what an earlier page gave as the next, which is a number");
    }
    let owner = match args.owner {
        Some(named) => Some(operate::owner(store, &named).await?),
        None => None,
    };
    let filter = Filter { owner, status: args.status, tool: args.tool };
    let served = ToolVersion::served_by(&store.workers().await?);
    let page = if args.unserved {
        unserved_page(store, &filter, args.after, args.limit, &served).await?
    } else {
        store.list(filter, args.after, args.limit).await?
    };
    if args.json {
        let tasks: Vec<Value> = page.tasks.iter().map(|task| summary(task, &served)).collect();
        writeln!(out, "{}", text::json(&json!({"tasks": tasks, "next": page.next})))?;
        return Ok(());
    }
    write!(out, "{}", table(&page.tasks, &served, page.now))?;
    if page.tasks.is_empty() {
        text::note(format_args!("no tasks"));
    }
    if page.tasks.iter().any(|task| unserved(task, &served)) {
        text::note(format_args!(
            "{UNSERVED} nobody takes it up: the last server on this file does not serve its tool in its version. \
            Start one that does, or cancel it"
        ));
    }
    if let Some(next) = page.next {
        text::note(format_args!("there are more; the same command with --after {next} lists them"));
    }
    Ok(())
}

/// Marks a task that no server serves.
const UNSERVED: &str = "!";

/// A page of the tasks that no server serves, which no store can filter.
async fn unserved_page(
    store: &dyn Store,
    filter: &Filter,
    mut after: Option<String>,
    limit: u32,
    served: &[ToolVersion],
) -> anyhow::Result<ListPage> {
    const LOOKED_AT: u32 = 1_000;
    let mut tasks = Vec::new();
    loop {
        let page = store.list(filter.clone(), after.clone(), LOOKED_AT).await?;
        for (place, task) in (1..).zip(page.tasks) {
            if !unserved(&task, served) {
                continue;
            }
            tasks.push(task);
            if tasks.len() == limit as usize {
                // Only the store knows what place that was.
                let next = store.list(filter.clone(), after, place).await?.next;
                return Ok(ListPage { tasks, next, now: page.now });
            }
        }
        if page.next.is_none() {
            return Ok(ListPage { tasks, next: None, now: page.now });
        }
        after = page.next;
    }
}

fn parse_status(text: &str) -> Result<Status, String> {
    Status::parse(text)
        .ok_or_else(|| format!("a status is one of {}", Status::ALL.map(Status::as_str).join(", ")))
}

pub(super) fn table(tasks: &[Task], served: &[ToolVersion], now: Timestamp) -> String {
    const TOOL: usize = 32;
    const MESSAGE: usize = 72;
    if tasks.is_empty() {
        return String::new();
    }
    let head = ["ID", "TOOL", "STATUS", "AGE", "MESSAGE"].map(str::to_owned);
    let rows = tasks.iter().map(|task| {
        [
            task.id.to_string(),
            text::one_line(&tool(task), TOOL),
            status(task, served),
            text::span(now.since(task.created_at)),
            text::one_line(task.status_message.as_deref().unwrap_or_default(), MESSAGE),
        ]
    });
    let rows: Vec<_> = std::iter::once(head).chain(rows).collect();
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or_default();
    let widths = [width(0), width(1), width(2), width(3)];
    let mut table = String::new();
    for row in &rows {
        let [id, tool, status, age, message] = row;
        let line = format!(
            "{id:0$}  {tool:1$}  {status:2$}  {age:>3$}  {message}",
            widths[0], widths[1], widths[2], widths[3]
        );
        table.push_str(line.trim_end());
        table.push('\n');
    }
    table
}

/// The tool, with its version where it has one.
pub(super) fn tool(task: &Task) -> String {
    let Spec { tool, version, .. } = &*task.spec;
    if version.is_empty() { tool.clone() } else { format!("{tool} {version}") }
}

pub(super) fn status(task: &Task, served: &[ToolVersion]) -> String {
    let mark = if unserved(task, served) { format!(" {UNSERVED}") } else { String::new() };
    format!("{}{mark}", task.status().as_str())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use outlast_core::{Call, Event, ManualClock, MemoryStore, NewTask, Owner, Payload, TaskId, WorkerId};

    use super::*;

    fn task(tool: &str, message: Option<&str>) -> Task {
        let new = NewTask::new(
            TaskId::from_bytes([7; 16]),
            Owner::new("alice"),
            Spec::new(tool),
            Call::new(Payload::null()),
        );
        let mut task = Task::create(&new, Timestamp::from_millis(0));
        task.status_message = message.map(str::to_owned);
        task
    }

    fn version(tool: &str, version: &str) -> ToolVersion {
        ToolVersion::new(tool, version)
    }

    #[test]
    fn columns_are_as_wide_as_what_is_in_them_and_lines_end_where_their_text_does() {
        let tasks = [task("hash_folder", Some("a.txt\u{1b}[31m (1/2)")), task("count", None)];
        let now = Timestamp::from_millis(0) + Duration::from_secs(90);
        let id = "07".repeat(16);
        let head = format!("{:32}  {:11}  STATUS   AGE  MESSAGE", "ID", "TOOL");
        let first = format!("{id}  hash_folder  working   1m  a.txt\\u001b[31m (1/2)");
        let second = format!("{id}  count        working   1m");
        assert_eq!(
            table(&tasks, &[version("hash_folder", ""), version("count", "")], now),
            format!("{head}\n{first}\n{second}\n")
        );
    }

    #[test]
    fn unfinished_tasks_that_nobody_can_take_up_are_marked() {
        let now = Timestamp::from_millis(0);
        let waits = task("count", None);
        let ended = waits.apply(&Event::Cancel, None, now).unwrap().task().unwrap().clone();
        let claim = Event::Claim { worker: WorkerId::new("w"), lease: Duration::from_secs(30) };
        let runs = waits.apply(&claim, None, now).unwrap().task().unwrap().clone();
        let other = [version("count", "2"), version("hash_folder", "")];
        assert_eq!(status(&waits, &other), "working !");
        assert_eq!(summary(&waits, &other)["unserved"], true);
        assert_eq!(status(&waits, &[version("count", "")]), "working");
        assert_eq!(status(&runs, &other), "working", "somebody has it");
        assert_eq!(status(&ended, &other), "cancelled");
    }

    #[tokio::test]
    async fn a_page_of_those_that_nobody_serves_ends_where_the_next_begins() {
        let store = MemoryStore::new(ManualClock::new(Timestamp::from_millis(0)));
        for n in 0..7 {
            let spec = Spec::new(if n % 2 == 0 { "orphan" } else { "count" });
            let id = TaskId::from_bytes([n; 16]);
            let new = NewTask::new(id, Owner::new("alice"), spec, Call::new(Payload::null()));
            store.create(new, None).await.unwrap();
        }
        let served = [version("count", "")];
        let (mut after, mut found, mut pages) = (None, Vec::new(), 0);
        loop {
            let page = unserved_page(&store, &Filter::default(), after, 3, &served).await.unwrap();
            found.extend(page.tasks.iter().map(|task| task.id.as_bytes()[0]));
            pages += 1;
            after = page.next;
            if after.is_none() {
                break;
            }
        }
        assert_eq!((found, pages), (vec![6, 4, 2, 0], 2), "newest first, each once");
    }
}
