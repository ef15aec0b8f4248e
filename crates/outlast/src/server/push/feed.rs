//! One follower of the store's changes for all subscriptions.

use std::{
    collections::{BTreeSet, HashMap},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
};

use outlast_core::{Hint, Hints, Owner, TaskId};
use tokio::sync::Notify;

/// Tells subscriptions which of their tasks may have changed. What it keeps for one is a set of its ids, however fast
/// they change and however slowly it reads.
#[derive(Default)]
pub(crate) struct Feed {
    followers: Mutex<Followers>,
    count: AtomicUsize,
}

#[derive(Default)]
struct Followers {
    by_task: HashMap<TaskId, Vec<Arc<Follower>>>,
    by_owner: HashMap<Owner, usize>,
}

/// What is known of one subscription.
#[derive(Default)]
struct Follower {
    /// Tasks that may have changed since they were last looked at.
    dirty: Mutex<BTreeSet<TaskId>>,
    news: Notify,
}

impl Follower {
    fn mark(&self, ids: impl IntoIterator<Item = TaskId>) {
        lock(&self.dirty).extend(ids);
        self.news.notify_one();
    }
}

impl Feed {
    /// Follows the store until it is closed.
    pub(crate) async fn follow(self: Arc<Self>, mut hints: Hints) {
        while let Some(hint) = hints.next().await {
            let followers = lock(&self.followers);
            match hint {
                Hint::Changed(id) => {
                    for follower in followers.by_task.get(&id).into_iter().flatten() {
                        follower.mark([id]);
                    }
                }
                Hint::Gap => {
                    for (id, of_task) in &followers.by_task {
                        of_task.iter().for_each(|follower| follower.mark([*id]));
                    }
                }
            }
        }
    }

    /// How many subscriptions there are.
    pub(crate) fn count(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    /// A subscription of `owner` to `ids`, all of which are dirty at first; `None` when the owner has `max` already.
    pub(crate) fn subscribe(
        self: &Arc<Self>,
        owner: Owner,
        ids: BTreeSet<TaskId>,
        max: usize,
    ) -> Option<Subscription> {
        let mut followers = lock(&self.followers);
        if followers.by_owner.get(&owner).copied().unwrap_or_default() >= max {
            return None;
        }
        *followers.by_owner.entry(owner.clone()).or_default() += 1;
        let follower = Arc::new(Follower::default());
        for id in &ids {
            followers.by_task.entry(*id).or_default().push(follower.clone());
        }
        follower.mark(ids.iter().copied());
        drop(followers);
        self.count.fetch_add(1, Ordering::Relaxed);
        Some(Subscription { feed: self.clone(), follower, owner, ids })
    }
}

/// One subscription, until it is dropped.
pub(crate) struct Subscription {
    feed: Arc<Feed>,
    follower: Arc<Follower>,
    owner: Owner,
    ids: BTreeSet<TaskId>,
}

impl Subscription {
    /// The tasks that are still followed.
    pub(crate) fn ids(&self) -> &BTreeSet<TaskId> {
        &self.ids
    }

    /// The followed tasks that may have changed since this was last asked.
    pub(crate) fn take_dirty(&self) -> BTreeSet<TaskId> {
        let dirty = std::mem::take(&mut *lock(&self.follower.dirty));
        dirty.intersection(&self.ids).copied().collect()
    }

    /// Has these looked at again.
    pub(crate) fn mark(&self, ids: impl IntoIterator<Item = TaskId>) {
        self.follower.mark(ids);
    }

    /// Resolves when something may have changed.
    pub(crate) async fn news(&self) {
        self.follower.news.notified().await;
    }

    /// A task that is final or gone changes no more.
    pub(crate) fn forget(&mut self, id: TaskId) {
        if self.ids.remove(&id) {
            self.leave(id);
        }
    }

    fn leave(&self, id: TaskId) {
        let mut followers = lock(&self.feed.followers);
        if let Some(of_task) = followers.by_task.get_mut(&id) {
            of_task.retain(|other| !Arc::ptr_eq(other, &self.follower));
            if of_task.is_empty() {
                followers.by_task.remove(&id);
            }
        }
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        for id in &self.ids {
            self.leave(*id);
        }
        let mut followers = lock(&self.feed.followers);
        if let Some(of_owner) = followers.by_owner.get_mut(&self.owner) {
            *of_owner -= 1;
            if *of_owner == 0 {
                followers.by_owner.remove(&self.owner);
            }
        }
        drop(followers);
        self.feed.count.fetch_sub(1, Ordering::Relaxed);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use outlast_core::HintSender;

    use super::*;

    fn id(n: u8) -> TaskId {
        TaskId::from_bytes([n; 16])
    }

    fn ann() -> Owner {
        Owner::new("ann")
    }

    #[tokio::test]
    async fn a_subscription_hears_of_its_own_tasks_and_of_a_gap() {
        let feed = Arc::new(Feed::default());
        let sender = HintSender::new(16);
        let following = tokio::spawn(feed.clone().follow(sender.watch()));
        let mut subscription = feed.subscribe(ann(), [id(1), id(2)].into(), 1).unwrap();
        subscription.news().await;
        assert_eq!(subscription.take_dirty(), [id(1), id(2)].into(), "at first all of them");

        // Of others it hears nothing, and of its own once, however often they change.
        for changed in [3, 1, 3, 1, 1] {
            sender.send(Hint::Changed(id(changed)));
        }
        subscription.news().await;
        tokio::task::yield_now().await;
        assert_eq!(subscription.take_dirty(), [id(1)].into());
        subscription.forget(id(1));
        sender.send(Hint::Gap);
        while subscription.take_dirty() != [id(2)].into() {
            subscription.news().await;
        }
        sender.close();
        following.await.unwrap();
    }

    #[test]
    fn an_owner_has_only_so_many_and_one_that_ends_makes_room() {
        let feed = Arc::new(Feed::default());
        let first = feed.subscribe(ann(), [id(1)].into(), 2);
        let second = feed.subscribe(ann(), [id(1)].into(), 2);
        assert!(first.is_some() && second.is_some() && feed.subscribe(ann(), [id(1)].into(), 2).is_none());
        assert!(feed.subscribe(Owner::new("bob"), [id(1)].into(), 2).is_some(), "others have their own");
        drop(first);
        assert_eq!(feed.count(), 1);
        assert!(feed.subscribe(ann(), [id(2)].into(), 2).is_some());
        drop(second);
        assert!(feed.subscribe(ann(), [id(1)].into(), 0).is_none(), "and nothing is kept of who was refused");
        assert!(lock(&feed.followers).by_task.is_empty() && lock(&feed.followers).by_owner.is_empty());
    }
}
