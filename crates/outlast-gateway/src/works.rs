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
/// How many bytes the headers of all calls that wait so may have, with what each costs beside its header. Where there are more,
/// the oldest call of the owner who has most of them loses its header.
const MOST: usize = 32 << 20;
/// What a header costs beside its bytes.
const EACH: usize = 1 << 10;

/// What is stored of a call in the place of its header.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Ticket(String);

impl Ticket {
    /// That of a call without a header.
    pub(crate) fn none() -> Self {
        Self(String::new())
    }

    fn is_none(&self) -> bool {
        self.0.is_empty()
    }
}

/// See the module.
#[derive(Default)]
pub(crate) struct Works {
    tickets: Mutex<Tickets>,
    under_way: Mutex<HashMap<Owner, Vec<Weak<Work>>>>,
}

impl Works {
    /// Keeps the header of a call until its work begins.
    pub(crate) fn ticket(&self, owner: &Owner, authorization: Authorization) -> Option<Ticket> {
        // Not to be guessed, although it is of use to nobody but this process.
        let mut mark = [0; 16];
        getrandom::fill(&mut mark).ok()?;
        let ticket: String = mark.iter().map(|byte| format!("{byte:02x}")).collect();
        lock(&self.tickets).insert(ticket.clone(), owner, authorization, clock::now());
        Some(Ticket(ticket))
    }

    /// No work begins by this.
    pub(crate) fn discard(&self, Ticket(ticket): &Ticket) {
        lock(&self.tickets).redeem(ticket);
    }

    /// Work begins, or is taken up again; `mark` tells its task from others.
    pub(crate) fn begin(&self, owner: &Owner, mark: String, ticket: Option<&Ticket>) -> Arc<Work> {
        let authorization = match ticket {
            Some(ticket) if ticket.is_none() => Some(Authorization::none()),
            Some(Ticket(ticket)) => lock(&self.tickets).redeem(ticket),
            None => None,
        };
        let has_lost_it = authorization.is_none();
        let work = Arc::new(Work {
            mark,
            has_lost_it,
            waits: AtomicBool::new(has_lost_it),
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
    /// Whether it is not known to this process which header its call had.
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

    /// Gives it the header of another request of its owner, where it has none.
    pub(crate) fn give(&self, authorization: &Authorization) {
        self.authorization.send_if_modified(|held| {
            let is_lost = held.is_none();
            held.get_or_insert_with(|| authorization.clone());
            is_lost
        });
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
    /// The oldest first.
    held: VecDeque<Held>,
    costs: HashMap<Owner, usize>,
    cost: usize,
}

struct Held {
    ticket: String,
    owner: Owner,
    authorization: Authorization,
    since: Instant,
}

impl Held {
    fn cost(&self) -> usize {
        self.authorization.size() + EACH
    }
}

impl Tickets {
    fn insert(&mut self, ticket: String, owner: &Owner, authorization: Authorization, now: Instant) {
        while self.held.front().is_some_and(|held| held.since + KEPT <= now) {
            self.remove(0);
        }
        let held = Held { ticket, owner: owner.clone(), authorization, since: now };
        self.cost += held.cost();
        *self.costs.entry(owner.clone()).or_default() += held.cost();
        self.held.push_back(held);
        while self.cost > MOST {
            // So that nobody can make others lose theirs by having many.
            let most = self.costs.iter().max_by_key(|(_, cost)| **cost).map(|(owner, _)| owner);
            let oldest = most.and_then(|most| self.held.iter().position(|held| held.owner == *most));
            let Some(oldest) = oldest else { break };
            self.remove(oldest);
        }
    }

    fn redeem(&mut self, ticket: &str) -> Option<Authorization> {
        let at = self.held.iter().position(|held| held.ticket == ticket)?;
        self.remove(at)
    }

    fn remove(&mut self, at: usize) -> Option<Authorization> {
        let held = self.held.remove(at)?;
        self.cost -= held.cost();
        if let Some(cost) = self.costs.get_mut(&held.owner) {
            *cost -= held.cost();
            if *cost == 0 {
                self.costs.remove(&held.owner);
            }
        }
        Some(held.authorization)
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
        let (mut tickets, now, ann) = (Tickets::default(), clock::now(), Owner::new("ann"));
        tickets.insert("a".into(), &ann, header("a"), now);
        tickets.insert("b".into(), &ann, header("b"), now + KEPT / 2);
        assert_eq!((tickets.redeem("b"), tickets.redeem("b")), (Some(header("b")), None));
        tickets.insert("c".into(), &ann, header("c"), now + KEPT);
        assert_eq!((tickets.redeem("a"), tickets.redeem("c")), (None, Some(header("c"))));
        assert_eq!((tickets.cost, tickets.held.len(), tickets.costs.len()), (0, 0, 0));
    }

    #[test]
    fn who_has_many_tickets_costs_nobody_else_theirs() {
        let (mut tickets, now) = (Tickets::default(), clock::now());
        let (ann, bob) = (Owner::new("ann"), Owner::new("bob"));
        tickets.insert("ann's".into(), &ann, header("ann"), now);
        let large = Authorization::new(HeaderValue::from_bytes(&[b'b'; 100_000]).unwrap());
        for n in 0..1_000 {
            tickets.insert(n.to_string(), &bob, large.clone(), now);
        }
        assert!(tickets.cost <= MOST && tickets.held.len() > 100);
        assert_eq!((tickets.redeem("ann's"), tickets.redeem("0")), (Some(header("ann")), None));
        assert_eq!(tickets.redeem("999"), Some(large));
    }

    #[test]
    fn a_call_without_a_header_has_lost_none() {
        let (works, ann) = (Works::default(), Owner::new("ann"));
        let work = works.begin(&ann, "one".to_owned(), Some(&Ticket::none()));
        assert_eq!((work.authorization(), work.has_lost_it()), (Some(Authorization::none()), false));
        let unknown = works.begin(&ann, "two".to_owned(), None);
        assert_eq!((unknown.authorization(), unknown.has_lost_it()), (None, true));
        unknown.give(&header("newest"));
        unknown.give(&header("another"));
        assert_eq!(unknown.authorization(), Some(header("newest")));
    }

    #[test]
    fn a_request_about_a_task_renews_its_header_and_no_other() {
        let works = Works::default();
        let (ann, bob) = (Owner::new("ann"), Owner::new("bob"));
        let ticket = works.ticket(&ann, header("old"));
        let begin = |owner, mark: &str| works.begin(owner, mark.to_owned(), Some(&Ticket::none()));
        let work = works.begin(&ann, "one".to_owned(), ticket.as_ref());
        let (other, bobs) = (begin(&ann, "two"), begin(&bob, "one"));
        works.heard(&ann, None, &header("new"));
        assert_eq!(work.authorization(), Some(header("old")));
        works.heard(&ann, Some("one"), &header("new"));
        assert_eq!(work.authorization(), Some(header("new")));
        let none = || Some(Authorization::none());
        assert_eq!((other.authorization(), bobs.authorization()), (none(), none()));
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
