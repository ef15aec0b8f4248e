//! The tasks that a client follows.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::Duration,
};

use crate::{
    book::Book,
    clock,
    connection::{Connection, Link},
    follow::{Followed, Origin},
    pace,
    store::HandleStore,
    task::Task,
};

/// What tells the tasks of a client apart: their session, where there are sessions, and their id.
type TaskKey = (Option<String>, String);

/// The tasks that a client follows, by id and session, so that two handles to one task share one book, and a new task under
/// an old id is never taken for the old one.
#[derive(Default)]
pub(crate) struct Registry {
    /// Under one key there may be tasks of several lifetimes, of which the server knows one at most.
    tasks: Mutex<HashMap<TaskKey, Vec<Weak<Followed>>>>,
}

/// What the answer to a call says of the task that it became.
pub(crate) struct Created<'c> {
    pub(crate) task: Task,
    /// Whether the server says already that there is more to see.
    pub(crate) wants_a_look: bool,
    pub(crate) connection: &'c Arc<Connection>,
    /// Whether the call may have been a repeat, whose answer may name a task that is known (C13).
    pub(crate) may_be_known: bool,
    /// What was written down of it, if it is known.
    pub(crate) book: Book,
}

impl Registry {
    /// A task that was created just now: whatever else went by its id in its session is another task, save for what a repeat
    /// of the call gave.
    pub(crate) fn created(
        &self,
        link: &Arc<Link>,
        store: Option<Arc<dyn HandleStore>>,
        origin: Origin,
        created: Created<'_>,
    ) -> Arc<Followed> {
        let Created { task, wants_a_look, connection, may_be_known, book } = created;
        let mut tasks = self.tasks();
        let known = tasks.entry((origin.session.clone(), origin.id.clone())).or_default();
        if may_be_known && let Some(same) = alive(known, &origin) {
            drop(tasks);
            same.learn(book);
            return same;
        }
        // C29: a task that was just created is first polled when its server said, unless there is more to see already.
        let pause = if wants_a_look {
            Duration::ZERO
        } else {
            pace::next_poll(task.poll_interval_ms, pace::random())
        };
        let (next_look, seen_on) = (clock::now() + pause, Arc::downgrade(connection));
        let followed = Followed::new(link.clone(), store, origin, task, next_look, seen_on, book);
        let earlier = std::mem::replace(known, vec![Arc::downgrade(&followed)]);
        drop(tasks);
        earlier.iter().filter_map(Weak::upgrade).for_each(|earlier| earlier.replace());
        followed
    }

    /// A task that is taken up again. One that is followed already is shared.
    pub(crate) fn resumed(
        &self,
        link: &Arc<Link>,
        store: Option<Arc<dyn HandleStore>>,
        origin: Origin,
        task: Task,
        book: Book,
    ) -> Arc<Followed> {
        let mut tasks = self.tasks();
        let known = tasks.entry((origin.session.clone(), origin.id.clone())).or_default();
        if let Some(same) = alive(known, &origin) {
            drop(tasks);
            same.learn(book);
            return same;
        }
        let followed = Followed::new(link.clone(), store, origin, task, clock::now(), Weak::new(), book);
        known.push(Arc::downgrade(&followed));
        followed
    }

    fn tasks(&self) -> MutexGuard<'_, HashMap<TaskKey, Vec<Weak<Followed>>>> {
        let mut tasks = self.tasks.lock().unwrap_or_else(PoisonError::into_inner);
        // Those that nobody holds a handle to are let go whenever the table would have to grow.
        if tasks.len() == tasks.capacity() {
            tasks.retain(|_, known| {
                known.retain(|task| task.strong_count() > 0);
                !known.is_empty()
            });
        }
        tasks
    }
}

/// The same task, where it is followed already.
fn alive(known: &mut Vec<Weak<Followed>>, origin: &Origin) -> Option<Arc<Followed>> {
    known.retain(|task| task.strong_count() > 0);
    let same = |known: &Arc<Followed>| known.origin.created_at == origin.created_at && !known.is_replaced();
    known.iter().filter_map(Weak::upgrade).find(same)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{options::ClientOptions, saved::Generation, server::Server, task::read_seed};

    fn origin(id: usize, session: Option<&str>) -> (Origin, Task) {
        let wire = json!({
            "taskId": format!("t{id}"), "status": "working", "ttlMs": null,
            "createdAt": "2026-11-29T10:00:00Z", "lastUpdatedAt": "2026-11-29T10:00:00Z",
        });
        let (task, _) = read_seed(&wire).unwrap();
        let origin = Origin {
            id: task.id.clone(),
            tool: "tool".into(),
            created_at: task.created_at,
            first_seen: task.created_at,
            generation: Generation::Extension,
            session: session.map(Into::into),
            output_schema: None,
        };
        (origin, task)
    }

    #[test]
    fn the_registry_lets_go_of_what_nobody_holds_and_never_of_what_somebody_does() {
        let link =
            Arc::new(Link::new(Server::http("http://localhost:1/"), Arc::new(()), ClientOptions::default()));
        let registry = Registry::default();
        let follow = |id, session| {
            let (origin, task) = origin(id, session);
            registry.resumed(&link, None, origin, task, Book::default())
        };
        let held: Vec<_> = (0..20).map(|id| follow(id, None)).collect();

        for id in 100..5_000 {
            drop(follow(id, None));
        }

        let kept = registry.tasks().len();
        assert!(kept < 100, "{kept} of 20");
        for (id, held) in held.iter().enumerate() {
            assert!(Arc::ptr_eq(held, &follow(id, None)), "{id}");
        }
        // The same id in a session is another task.
        assert!(!Arc::ptr_eq(&held[0], &follow(0, Some("s"))));
    }
}
