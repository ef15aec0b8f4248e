//! The calls of a connection that have handlers of their own, so that what the server asks and says during a call reaches the
//! one who made it, and nobody else.

use std::{
    collections::{HashMap, VecDeque},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use rmcp::{
    ErrorData, RoleClient,
    model::{Extensions, ProgressToken, RequestId},
    service::{InboundStreamOrigin, RequestContext, RequestHandle},
};
use serde_json::Value;
use tokio::{
    sync::{RwLock, RwLockReadGuard, watch},
    time::Instant,
};

use crate::{clock, tap::User};

/// How long a server may still ask about a call that was given up.
const AFTERMATH: Duration = Duration::from_secs(60);
/// How long after the answer to a call something is still heard that was said before it.
const ECHO: Duration = Duration::from_secs(1);
/// By this a server of 2025-11-25 says of which task it asks.
const RELATED_TASK: &str = "io.modelcontextprotocol/related-task";

/// See the module.
#[derive(Default)]
pub(crate) struct Calls {
    entries: Mutex<HashMap<RequestId, Entry>>,
    /// The calls that were answered just now, the last one last.
    echoes: Mutex<VecDeque<Echo>>,
    begun: AtomicU64,
    /// Held by those who have sent a request and not said yet who is behind it.
    sending: RwLock<()>,
}

/// Who is behind a request.
#[derive(Clone)]
pub(crate) struct Behind {
    pub(crate) handler: User,
    /// For whom the request is made; nobody else is known to be the same person.
    pub(crate) person: Option<Arc<str>>,
}

struct Entry {
    /// Its place in the order in which the calls began.
    place: u64,
    token: ProgressToken,
    behind: Behind,
    /// The task of 2025-11-25 whose result the request asks for; it says so itself when it asks.
    task: Option<String>,
    /// Until when the server may still ask about a request that was given up.
    until: Option<Instant>,
    /// Dropped when the request is over; its receivers are the questions that are taken for its own.
    under_way: Option<watch::Sender<()>>,
}

/// A call that was answered. What the server said before the answer may be handled after it: each message has a task of its own.
struct Echo {
    id: RequestId,
    token: ProgressToken,
    behind: Behind,
    until: Instant,
}

/// Whose a request of the server is.
pub(crate) struct Asked {
    pub(crate) handler: User,
    /// How many calls had begun when it came. It belongs to none that began later.
    pub(crate) begun: u64,
    guessed: Option<watch::Receiver<()>>,
}

impl Asked {
    fn of(entry: &Entry) -> Self {
        Self { handler: entry.behind.handler.clone(), begun: u64::MAX, guessed: None }
    }

    /// Whether the call is over that the request was taken to belong to.
    pub(crate) fn is_misjudged(&self) -> bool {
        self.guessed.as_ref().is_some_and(|under_way| under_way.has_changed().is_err())
    }

    /// Waits until the call is over that the request was taken to belong to, and so is not its. Never, where the server said
    /// to which it belongs.
    pub(crate) async fn misjudged(&mut self) {
        match &mut self.guessed {
            Some(under_way) => while under_way.changed().await.is_ok() {},
            None => std::future::pending().await,
        }
    }
}

impl Calls {
    /// To be held while a request is sent, until it is known who is behind it: a server may ask about it sooner than that, and
    /// is then heard a moment later.
    pub(crate) async fn sending(&self) -> RwLockReadGuard<'_, ()> {
        self.sending.read().await
    }

    /// Waits until it is known who is behind each request that was sent.
    async fn all_known(&self) {
        drop(self.sending.write().await);
    }

    /// What comes during a request goes to this handler, until the guard is dropped.
    pub(crate) fn during(
        self: &Arc<Self>,
        request: &RequestHandle<RoleClient>,
        behind: Behind,
        task: Option<String>,
    ) -> During {
        let under_way = Some(watch::channel(()).0);
        let mut calls = self.calls();
        let place = self.begun.fetch_add(1, Ordering::Relaxed);
        let entry =
            Entry { place, token: request.progress_token.clone(), behind, task, until: None, under_way };
        calls.insert(request.id.clone(), entry);
        drop(calls);
        During { calls: self.clone(), id: request.id.clone(), is_answered: false }
    }

    /// Who is to answer a request of the server; none for the handler of the client.
    ///
    /// Where the server does not say to which of several calls it belongs, and all are made for the same person, it is taken
    /// to be of the last that was begun and is not asked anything yet. One that was taken so, and was not of that call, is of
    /// one of those that had `begun` when it came.
    ///
    /// # Errors
    ///
    /// When it may belong to the calls of several: what is meant for one person must not be shown to another. A call that was
    /// given up counts for a while, for the server may not know yet that it was. Also when the call that it was taken to belong
    /// to has ended, and there was no other.
    pub(crate) async fn asked(
        &self,
        context: &RequestContext<RoleClient>,
        begun: Option<u64>,
    ) -> Result<Option<Asked>, ErrorData> {
        self.all_known().await;
        let calls = self.calls();
        if let Some(id) = origin(&context.extensions) {
            let entry = calls.get(id).filter(|entry| entry.until.is_none());
            return Ok(entry.map(Asked::of));
        }
        let related = context.meta.0.get(RELATED_TASK).and_then(|task| task.get("taskId"));
        if let Some(id) = related.and_then(Value::as_str) {
            let entry = calls.values().find(|entry| entry.task.as_deref() == Some(id));
            return Ok(entry.map(Asked::of));
        }
        let is_again = begun.is_some();
        let begun = begun.unwrap_or_else(|| self.begun.load(Ordering::Relaxed));
        let possible = || calls.values().filter(|entry| entry.place < begun);
        let under_way = possible().filter_map(|entry| Some((entry, entry.under_way.as_ref()?)));
        let likely = under_way.max_by_key(|(entry, asked)| (asked.receiver_count() == 0, entry.place));
        let Some((likely, asked)) = likely else {
            let over = "the call to which the request may belong has ended";
            return if is_again { Err(ErrorData::invalid_request(over, None)) } else { Ok(None) };
        };
        let is_theirs =
            |other: &Entry| likely.behind.person.is_some() && other.behind.person == likely.behind.person;
        if possible().count() == 1 || possible().all(is_theirs) {
            return Ok(Some(Asked { guessed: Some(asked.subscribe()), begun, ..Asked::of(likely) }));
        }
        Err(ErrorData::invalid_request(
            "the request does not say to which call it belongs, and there are several to which it may",
            None,
        ))
    }

    /// Who is to hear of the progress that has this token.
    pub(crate) async fn told(&self, progress: &ProgressToken) -> Option<User> {
        self.all_known().await;
        let calls = self.calls();
        let entry = calls.values().find(|entry| entry.until.is_none() && entry.token == *progress);
        match entry {
            Some(entry) => Some(entry.behind.handler.clone()),
            None => self.echo(|echo| echo.token == *progress),
        }
    }

    /// Who is to hear what the server says without naming a call: the one who makes the only one.
    pub(crate) async fn overheard(&self, extensions: &Extensions) -> Option<User> {
        self.all_known().await;
        let calls = self.calls();
        if let Some(id) = origin(extensions) {
            let entry = calls.get(id).map(|entry| entry.behind.handler.clone());
            return entry.or_else(|| self.echo(|echo| echo.id == *id));
        }
        let mut entries = calls.values();
        match (entries.next(), entries.next()) {
            (None, _) => self.only_echo(),
            // The last words of a call that has just ended may be about another person's.
            (Some(entry), None) if entry.until.is_none() && !self.echoes_of_others(&entry.behind) => {
                Some(entry.behind.handler.clone())
            }
            _ => None,
        }
    }

    fn echo(&self, is_it: impl Fn(&Echo) -> bool) -> Option<User> {
        self.echoes().iter().find(|echo| is_it(echo)).map(|echo| echo.behind.handler.clone())
    }

    fn only_echo(&self) -> Option<User> {
        let echoes = self.echoes();
        (echoes.len() == 1).then(|| echoes[0].behind.handler.clone())
    }

    /// Whether a call of somebody who is known to be another person was answered a moment ago.
    fn echoes_of_others(&self, behind: &Behind) -> bool {
        let is_other = |echo: &Echo| {
            let both = echo.behind.person.as_ref().zip(behind.person.as_ref());
            both.is_some_and(|(theirs, ours)| theirs != ours)
        };
        self.echoes().iter().any(is_other)
    }

    /// Without those that are too long ago.
    fn echoes(&self) -> MutexGuard<'_, VecDeque<Echo>> {
        let mut echoes = self.echoes.lock().unwrap_or_else(PoisonError::into_inner);
        let now = clock::now();
        while echoes.front().is_some_and(|echo| echo.until <= now) {
            echoes.pop_front();
        }
        echoes
    }

    /// Without those that were given up too long ago.
    fn calls(&self) -> MutexGuard<'_, HashMap<RequestId, Entry>> {
        let mut calls = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        let now = clock::now();
        calls.retain(|_, entry| entry.until.is_none_or(|until| now < until));
        calls
    }
}

/// The request on whose stream a message came, over HTTP.
fn origin(extensions: &Extensions) -> Option<&RequestId> {
    match extensions.get() {
        Some(InboundStreamOrigin::OutboundRequest(id)) => Some(id),
        _ => None,
    }
}

/// A request is under way that has a handler of its own.
pub(crate) struct During {
    calls: Arc<Calls>,
    id: RequestId,
    is_answered: bool,
}

impl During {
    /// The request has been answered, so nothing more is asked about it.
    pub(crate) fn answered(&mut self) {
        self.is_answered = true;
    }
}

impl Drop for During {
    fn drop(&mut self) {
        let mut calls = self.calls.calls();
        match calls.get_mut(&self.id) {
            // What a task asks names it, and cannot be taken for another's.
            Some(entry) if !self.is_answered && entry.task.is_none() => {
                entry.until = Some(clock::now() + AFTERMATH);
                entry.under_way = None;
            }
            _ => {
                let Some(entry) = calls.remove(&self.id) else { return };
                let (token, behind) = (entry.token, entry.behind);
                let echo = Echo { id: self.id.clone(), token, behind, until: clock::now() + ECHO };
                self.calls.echoes().push_back(echo);
            }
        }
    }
}
