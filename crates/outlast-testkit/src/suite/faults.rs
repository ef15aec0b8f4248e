//! Whatever call fails, before its effect or after it: callers that repeat theirs get right answers, and no task is
//! left unfinished.

use std::sync::Arc;

use futures::join;
use outlast_core::{
    Applied, By, Claimed, Created, EntryKind, Event, Held, Inspect as _, Renewal, Spec, Status, Store,
    StoreError, Task, TaskId, TaskState,
};
use serde_json::json;

use crate::{Fault, FaultStore, Harness, story::*, walk_faults};

type Faulty = Arc<FaultStore<dyn Store>>;

/// Makes a call until it is answered, as every caller of a store does.
async fn until_answered<T>(call: impl AsyncFn() -> Result<T, StoreError>) -> T {
    for _ in 0..3 {
        match call().await {
            Ok(answer) => return answer,
            Err(error) => assert!(error.is_retryable(), "{error}"),
        }
    }
    panic!("one call fails once")
}

async fn told(store: &Faulty, id: TaskId, by: By, events: Vec<Event>) -> Task {
    after(until_answered(async || store.apply(id, by.clone(), events.clone()).await).await)
}

async fn read(store: &Faulty, id: TaskId) -> Task {
    let task = until_answered(async || store.get(id).await).await;
    task.expect("a task that was acknowledged is there")
}

async fn claim_any(store: &Faulty, name: &str) -> Option<Claimed> {
    // A claim whose answer was lost is not repeated but made anew: its task comes back when the lease is over.
    let mut claimed = store.claim(claim_by(name, 1)).await.ok()?;
    claimed.pop()
}

/// The caller of a task that asks one question.
async fn answer_what_is_asked(store: &Faulty, id: TaskId) {
    if read(store, id).await.status() == Status::InputRequired {
        told(store, id, By::Owner(owner("alice")), vec![answer("q", "yes")]).await;
    }
}

/// A worker's turn with a tool of one step and one question; says whether the step's code ran.
async fn work_on(store: &Faulty) -> bool {
    let Some(Claimed { task, token, .. }) = claim_any(store, "one").await else { return false };
    let (id, by) = (task.id, By::Lease(token));
    let held = vec![Held { id, token }];
    let renewals = until_answered(async || store.renew(worker("one"), held.clone(), LEASE).await).await;
    assert!(matches!(renewals[..], [Renewal::Kept { .. }]));
    let journal = until_answered(async || store.journal(id, 0, u64::MAX).await).await;
    let find = |kind| journal.entries.iter().find(|entry| entry.kind == kind);

    let step_ran = find(EntryKind::Step).is_none();
    if step_ran {
        told(store, id, by.clone(), vec![finish("a", &json!(1))]).await;
    }
    match find(EntryKind::Answered) {
        None => {
            let seen_seq = journal.entries.last().map_or(0, |entry| entry.seq);
            told(store, id, by, vec![ask("q", "Sure?"), park(seen_seq)]).await;
        }
        Some(answered) => {
            let result = answered.body.clone().unwrap();
            let done = told(store, id, by, vec![Event::Complete(result)]).await;
            assert_eq!(done.status(), Status::Completed);
        }
    }
    step_ran
}

async fn sweep_once(store: &Faulty) {
    let _ = store.sweep(50).await;
}

pub async fn no_fault_keeps_a_task_from_its_end(on: &dyn Harness) {
    let runs = walk_faults(on, async |store| {
        let created = until_answered(async || store.create(new_keyed("k", 1), None).await).await;
        let (Created::Created { task, .. } | Created::Existing(task)) = created else {
            panic!("the caller is told of its task, not {created:?}")
        };
        let (id, mut steps) = (task.id, 0);
        for _ in 0..20 {
            let (ran, (), ()) = join!(work_on(&store), answer_what_is_asked(&store, id), sweep_once(&store));
            steps += u32::from(ran);
            if read(&store, id).await.is_final() {
                break;
            }
            on.advance(LEASE).await;
        }

        let task = read(&store, id).await;
        assert_eq!(task.state, TaskState::Completed { result: accepted("yes") });
        assert_eq!(steps, 1, "the step ran once");
        let entries = until_answered(async || store.journal(id, 0, u64::MAX).await).await.entries;
        for kind in [EntryKind::Step, EntryKind::Asked, EntryKind::Answered] {
            assert_eq!(
                entries.iter().filter(|entry| entry.kind == kind).count(),
                1,
                "{kind:?} is journaled once"
            );
        }
        let counts = until_answered(async || store.counts().await).await;
        assert_eq!(counts.total(), 1, "the repeated creation made no second task");
    })
    .await;
    assert!(runs > 30, "there was something to walk over: {runs}");
}

pub async fn no_fault_hides_that_work_stopped_which_must_not_run_twice(on: &dyn Harness) {
    walk_faults(on, async |store| {
        let new = new_with(run_once());
        let create = async || store.create(new.clone(), Some(lease_for("dead"))).await;
        let Created::Created { task, token: Some(_) } = until_answered(create).await else {
            panic!("the task is created and leased")
        };
        for _ in 0..5 {
            on.advance(LEASE).await;
            assert_eq!(claim_any(&store, "two").await, None, "it is not started again");
        }
        let ended = read(&store, task.id).await;
        assert_eq!(ended.status(), Status::Failed);
        assert!(ended.status_message.unwrap().contains("outcome is unknown"));
    })
    .await;
}

pub async fn no_fault_loses_a_cancel(on: &dyn Harness) {
    walk_faults(on, async |store| {
        let new = new_task();
        let create = async || store.create(new.clone(), Some(lease_for("one"))).await;
        let Created::Created { task, token: Some(token) } = until_answered(create).await else {
            panic!("the task is created and leased")
        };
        let (asking, cancelling) = (By::Lease(token), By::Owner(owner("alice")));
        let leave = vec![ask("q", "Sure?"), park(1)];
        told(&store, task.id, asking, leave).await;
        told(&store, task.id, cancelling, vec![Event::Cancel]).await;
        // Nobody takes it up.
        for _ in 0..3 {
            on.advance(task.spec.cancel_grace).await;
            sweep_once(&store).await;
        }
        assert_eq!(read(&store, task.id).await.status(), Status::Cancelled);
    })
    .await;
}

pub async fn no_fault_makes_a_second_run_of_a_finished_task(on: &dyn Harness) {
    walk_faults(on, async |store| {
        let keyed = || outlast_core::NewTask {
            spec: Spec { ttl: Some(HOUR), ..rerun() }.into(),
            ..new_keyed("k", 1)
        };
        let new = keyed();
        let create = async || store.create(new.clone(), Some(lease_for("one"))).await;
        let Created::Created { task, token: Some(token) } = until_answered(create).await else {
            panic!("the task is created and leased")
        };
        told(&store, task.id, By::Lease(token), vec![complete(&json!("once"))]).await;
        let again = until_answered(async || store.create(keyed(), None).await).await;
        assert!(matches!(again, Created::Existing(found) if found.id == task.id));
        for _ in 0..3 {
            on.advance(HOUR).await;
            sweep_once(&store).await;
        }
        assert_eq!(until_answered(async || store.get(task.id).await).await, None);
        assert_eq!(until_answered(async || store.create(keyed(), None).await).await, Created::KeySpent);
        let late = vec![complete(&json!("twice"))];
        let late = until_answered(async || store.apply(task.id, By::Lease(token), late.clone()).await).await;
        assert_eq!(late, Applied::NotFound);
    })
    .await;
}

pub async fn a_caller_that_goes_away_leaves_its_task_whole(on: &dyn Harness) {
    // The call is dropped at every point that it waits at: before its effect, in the middle of it, and after it.
    for polls in 0..40 {
        let store = Arc::new(FaultStore::failing(on.open().await, 1, Fault::Delayed(5)));
        let new = new_keyed("k", 1);
        let mut creating = Box::pin(store.create(new.clone(), None));
        for _ in 0..polls {
            if futures::poll!(&mut creating).is_ready() {
                break;
            }
            tokio::task::yield_now().await;
        }
        drop(creating);

        // Either no task, or one that the repeated call gets back; never two.
        let again = until_answered(async || store.create(new_keyed("k", 1), None).await).await;
        assert!(matches!(again, Created::Created { .. } | Created::Existing(_)), "{again:?}");
        assert_eq!(store.counts().await.unwrap().total(), 1);
        let task = store.claim_only("one").await.task;
        assert_eq!(store.task(task.id).await, task);
    }
}
