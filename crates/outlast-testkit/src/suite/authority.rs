//! A task is its owner's: to others it is not there (S25). What each sender may say is fixed.

use outlast_core::{Applied, By, Event, Filter, Illegal, JournalPage, Renewal, Status, Token};
use serde_json::json;

use crate::{Harness, story::*};

pub async fn a_task_of_another_owner_is_not_found_and_stays_untouched(on: &dyn Harness) {
    let store = on.open().await;
    let (task, token) = store.create_leased(new_task(), "one").await;
    let asking = store.worked(task.id, token, vec![ask("q", "Sure?")]).await;

    for events in [vec![answer("q", "yes")], vec![Event::Cancel], vec![complete(&json!(1))], vec![]] {
        let bob = By::Owner(owner("bob"));
        assert_eq!(store.tell(task.id, bob, events).await, Applied::NotFound);
    }
    assert_eq!(store.task(task.id).await, asking);
}

pub async fn an_operator_answers_and_cancels_any_task(on: &dyn Harness) {
    let store = on.open().await;
    let (task, token) = store.create_leased(new_task(), "one").await;
    store.worked(task.id, token, vec![ask("q", "Sure?")]).await;
    let Applied::Applied(task) = store.tell(task.id, By::Operator, vec![answer("q", "yes")]).await else {
        panic!("an operator may answer")
    };
    assert_eq!(task.status(), Status::Working);
    let Applied::Applied(task) = store.tell(task.id, By::Operator, vec![Event::Cancel]).await else {
        panic!("an operator may cancel")
    };
    assert!(task.cancel_requested());
}

pub async fn an_unknown_task_is_nowhere(on: &dyn Harness) {
    let store = on.open().await;
    let known = store.create_one(new_task()).await;
    let id = fresh_id();

    assert_eq!(store.get(id).await.unwrap(), None);
    assert_eq!(store.call(id).await.unwrap(), None);
    assert_eq!(store.journal(id, 0, 1_000).await.unwrap(), JournalPage::default());
    assert_eq!(store.heads(vec![id]).await.unwrap(), [None]);
    assert_eq!(store.renew_one("one", id, Token(1)).await, Renewal::Lost);
    assert_eq!(store.alice(id, vec![Event::Cancel]).await, Applied::NotFound);
    assert_eq!(store.tell(id, By::Operator, vec![Event::Cancel]).await, Applied::NotFound);
    assert_eq!(store.work(id, Token(1), vec![complete(&json!(1))]).await, Applied::NotFound);
    let listed = store.list(Filter::default(), None, 10).await.unwrap().tasks;
    assert_eq!(listed, [known]);
}

pub async fn each_sender_says_only_what_is_its_own_to_say(on: &dyn Harness) {
    let store = on.open().await;
    let (task, token) = store.create_leased(new_task(), "one").await;
    let task = store.worked(task.id, token, vec![ask("q", "Sure?")]).await;
    let claim = Event::Claim { worker: worker("two"), lease: LEASE };
    let alice = By::Owner(owner("alice"));

    for (by, event) in [
        (alice.clone(), complete(&json!(1))),
        (alice.clone(), finish("s", &json!(1))),
        (alice, Event::PassDeadline),
        (By::Operator, fail("no")),
        (By::Operator, claim.clone()),
        (By::Lease(token), answer("q", "yes")),
        (By::Lease(token), Event::Cancel),
        (By::Lease(token), claim),
        (By::Lease(token), Event::LoseLease),
        (By::Store, complete(&json!(1))),
        (By::Store, Event::Cancel),
    ] {
        let name = event.name();
        let refused = store.tell(task.id, by, vec![event]).await;
        assert!(matches!(refused, Applied::Illegal(Illegal::State { event, .. }) if event == name), "{name}");
    }
    assert_eq!(store.task(task.id).await, task);
}
