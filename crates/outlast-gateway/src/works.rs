//! The `Authorization` headers of the calls that are under way, where an upstream gets its callers' own. They are in memory
//! alone: what is stored of a call is a ticket, for which another process has nothing.

use std::{
    collections::{HashMap, VecDeque},
    fmt,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use outlast::Owner;
use outlast_client::{Authorization, AuthorizationSource};
use serde::{Deserialize, Serialize};
use tokio::{sync::watch, time::Instant};

use crate::clock;

/// How long a call may wait for its turn before its header is let go. It then begins as if the gateway had been started again.
const KEPT: Duration = Duration::from_secs(3_600);
/// How many calls may wait so; of more, the oldest lose their headers.
const MOST: usize = 10_000;

/// What is stored of a call in the place of its header.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Ticket(String);

/// See the module.
#[derive(Default)]
pub(crate) struct Works {
    tickets: Mutex<Tickets>,
    under_way: Mutex<HashMap<Owner, Vec<Weak<Work>>>>,
}

impl Works {
    /// Keeps the header of a call until its work begins.
    pub(crate) fn ticket(&self, authorization: Authorization) -> Option<Ticket> {
        // Not to be guessed, although it is of use to nobody but this process.
        let mut mark = [0; 16];
        getrandom::fill(&mut mark).ok()?;
        let ticket: String = mark.iter().map(|byte| format!("{byte:02x}")).collect();
        lock(&self.tickets).insert(ticket.clone(), authorization, clock::now());
        Some(Ticket(ticket))
    }

    /// Work begins, or is taken up again; `mark` tells its task from others.
    pub(crate) fn begin(&self, owner: &Owner, mark: String, ticket: Option<&Ticket>) -> Arc<Work> {
        let authorization = ticket.and_then(|Ticket(ticket)| lock(&self.tickets).redeem(ticket));
        let work = Arc::new(Work {
            mark,
            has_lost_it: ticket.is_some() && authorization.is_none(),
            waits: AtomicBool::new(false),
            authorization: watch::channel(authorization).0,
        });
        let mut under_way = lock(&self.under_way);
        // Those that have ended are let go whenever the table would have to grow.
        if under_way.len() == under_way.capacity() {
            under_way.retain(|_, works| works.iter().any(|work| work.strong_count() > 0));
        }
        let works = under_way.entry(owner.clone()).or_default();
        works.retain(|work| work.strong_count() > 0);
        works.push(Arc::downgrade(&work));
        work
    }

    /// A request of `owner` came, perhaps about a task. Its header is from now on that of the task's work, and of all work of
    /// the same owner that waits for one.
    pub(crate) fn heard(&self, owner: &Owner, about: Option<&str>, authorization: &Authorization) {
        let works: Vec<_> = match lock(&self.under_way).get(owner) {
            Some(works) => works.iter().filter_map(Weak::upgrade).collect(),
            None => return,
        };
        for work in works {
            if about == Some(work.mark.as_str()) || work.waits.load(Ordering::Relaxed) {
                work.authorization.send_if_modified(|held| {
                    let is_new = held.as_ref() != Some(authorization);
                    if is_new {
                        *held = Some(authorization.clone());
                    }
                    is_new
                });
            }
        }
    }
}

impl fmt::Debug for Works {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Works")
    }
}

/// A call that is under way.
pub(crate) struct Work {
    mark: String,
    /// Whether its call had a header, which this process does not know.
    has_lost_it: bool,
    /// Whether the header of any request of its owner is welcome.
    waits: AtomicBool,
    authorization: watch::Sender<Option<Authorization>>,
}

impl Work {
    pub(crate) fn authorization(&self) -> Option<Authorization> {
        self.authorization.borrow().clone()
    }

    pub(crate) fn has_lost_it(&self) -> bool {
        self.has_lost_it
    }

    /// The newest header for each request of the work.
    pub(crate) fn source(self: &Arc<Self>) -> AuthorizationSource {
        let work = self.clone();
        Arc::new(move || work.authorization())
    }

    /// Waits until a request of the owner has brought another header than `tried`.
    pub(crate) async fn another_than(&self, tried: Option<&Authorization>) {
        struct Waiting<'w>(&'w AtomicBool);
        impl Drop for Waiting<'_> {
            fn drop(&mut self) {
                self.0.store(false, Ordering::Relaxed);
            }
        }
        self.waits.store(true, Ordering::Relaxed);
        let _waiting = Waiting(&self.waits);
        // The sender is this work's own.
        let _ =
            self.authorization.subscribe().wait_for(|held| held.is_some() && held.as_ref() != tried).await;
    }
}

/// Headers of calls whose work has not begun. Pure.
#[derive(Default)]
struct Tickets {
    held: HashMap<String, Authorization>,
    order: VecDeque<(String, Instant)>,
}

impl Tickets {
    fn insert(&mut self, ticket: String, authorization: Authorization, now: Instant) {
        while self.order.len() >= MOST || self.order.front().is_some_and(|(_, since)| *since + KEPT <= now) {
            let Some((oldest, _)) = self.order.pop_front() else { break };
            self.held.remove(&oldest);
        }
        self.order.push_back((ticket.clone(), now));
        self.held.insert(ticket, authorization);
    }

    fn redeem(&mut self, ticket: &str) -> Option<Authorization> {
        let held = self.held.remove(ticket)?;
        self.order.retain(|(known, _)| known != ticket);
        Some(held)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;
    use http::HeaderValue;

    use super::*;

    fn header(text: &'static str) -> Authorization {
        Authorization::new(HeaderValue::from_static(text))
    }

    #[test]
    fn a_ticket_is_good_once_and_not_for_ever() {
        let (mut tickets, now) = (Tickets::default(), clock::now());
        tickets.insert("a".into(), header("a"), now);
        tickets.insert("b".into(), header("b"), now + KEPT / 2);
        assert_eq!((tickets.redeem("b"), tickets.redeem("b")), (Some(header("b")), None));
        tickets.insert("c".into(), header("c"), now + KEPT);
        assert_eq!(tickets.redeem("a"), None);
        for n in 0..MOST {
            tickets.insert(n.to_string(), header("n"), now + KEPT);
        }
        assert_eq!((tickets.held.len(), tickets.order.len()), (MOST, MOST));
        assert_eq!((tickets.redeem("c"), tickets.redeem("0")), (None, Some(header("n"))));
    }

    #[test]
    fn a_request_about_a_task_renews_its_header_and_no_other() {
        let works = Works::default();
        let (ann, bob) = (Owner::new("ann"), Owner::new("bob"));
        let ticket = works.ticket(header("old"));
        let begin = |owner, mark: &str| works.begin(owner, mark.to_owned(), None);
        let work = works.begin(&ann, "one".to_owned(), ticket.as_ref());
        let (other, bobs) = (begin(&ann, "two"), begin(&bob, "one"));
        works.heard(&ann, None, &header("new"));
        assert_eq!(work.authorization(), Some(header("old")));
        works.heard(&ann, Some("one"), &header("new"));
        assert_eq!(work.authorization(), Some(header("new")));
        assert_eq!((other.authorization(), bobs.authorization()), (None, None));
    }

    #[test]
    fn work_that_waits_takes_the_header_of_any_request_of_its_owner() {
        let works = Works::default();
        let ann = Owner::new("ann");
        let ticket = Ticket("of an earlier process".to_owned());
        let work = works.begin(&ann, "one".to_owned(), Some(&ticket));
        assert!(work.has_lost_it());
        let mut waiting = Box::pin(work.another_than(None));
        assert!(waiting.as_mut().now_or_never().is_none());
        works.heard(&Owner::new("bob"), None, &header("bob's"));
        works.heard(&Owner::new("bob"), Some("one"), &header("bob's"));
        assert!(waiting.as_mut().now_or_never().is_none());
        works.heard(&ann, None, &header("new"));
        assert!(waiting.now_or_never().is_some());
        // One that was tried in vain is no other.
        let tried = header("new");
        let mut waiting = Box::pin(work.another_than(Some(&tried)));
        assert!(waiting.as_mut().now_or_never().is_none());
        works.heard(&ann, None, &header("new"));
        assert!(waiting.as_mut().now_or_never().is_none());
        drop(waiting);
        works.heard(&ann, None, &header("newer"));
        assert_eq!(work.authorization(), Some(header("new")), "nobody waits");
    }
}
