//! The sessions of callers of earlier protocols, who hear of changes to lists without asking, and of resources when they asked
//! once.

#![allow(deprecated, reason = "what the SDK deprecates is passed on for as long as it exists")]

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use rmcp::{
    ErrorData, RoleServer,
    model::{ClientConfig, LoggingLevel, ResourceUpdatedNotificationParam},
    service::Peer,
};

use outlast::Owner;

use crate::{
    bridge::Logs,
    caller::Caller,
    changes::{self, Change},
    gateway::Inner,
    watched::{MAX_WATCHED, Watch},
};

/// How often it is looked whether a session has ended that hears of nothing.
const LOOK: Duration = Duration::from_secs(15);

/// See the module.
#[derive(Default)]
pub(crate) struct Sessions(Mutex<Vec<Arc<Session>>>);

struct Session {
    owner: Owner,
    peer: Peer<RoleServer>,
    /// What its client said of itself. The SDK keeps one for each session, by which its requests are known.
    client: Arc<ClientConfig>,
    watches: Mutex<BTreeMap<String, Vec<Watch>>>,
    /// The least that it wants to hear of what is logged, where it has said so.
    level: Mutex<Option<LoggingLevel>>,
}

impl Sessions {
    /// Tells a session of changes from now on, until it ends.
    pub(crate) fn add(&self, gateway: &Arc<Inner>, caller: &Caller, peer: Peer<RoleServer>) {
        drop(self.of(gateway, caller, &peer));
    }

    /// Tells the session that a request came by of a resource.
    ///
    /// # Errors
    /// When none of the upstreams tells of it.
    pub(crate) async fn watch(
        &self,
        gateway: &Arc<Inner>,
        caller: &Caller,
        peer: &Peer<RoleServer>,
        uri: &str,
    ) -> Result<(), ErrorData> {
        let Some(session) = self.of(gateway, caller, peer) else {
            return Err(ErrorData::invalid_request("there is no session in which to tell of changes", None));
        };
        match &*session.watches() {
            watches if watches.contains_key(uri) => return Ok(()),
            watches if watches.len() >= MAX_WATCHED => {
                let message = format!(
                    "a session is told of at most {MAX_WATCHED} resources; unsubscribe from one that is not needed"
                );
                return Err(ErrorData::invalid_params(message, None));
            }
            _ => {}
        }
        let mut watches = Vec::new();
        let mut refusal = None;
        // Which of them has it is not known, and some take every name.
        for upstream in &gateway.upstreams {
            let watch = match upstream.for_caller(caller) {
                Ok(lane) => Watch::new(&lane, uri).await,
                Err(error) => Err(error),
            };
            match watch {
                Ok(watch) => watches.push(watch),
                Err(error) => refusal = Some(error),
            }
        }
        match refusal {
            Some(refusal) if watches.is_empty() => Err(refusal),
            _ => {
                session.watches().insert(uri.to_owned(), watches);
                Ok(())
            }
        }
    }

    /// Tells the session that a request came by no more of a resource.
    pub(crate) fn unwatch(&self, peer: &Peer<RoleServer>, uri: &str) {
        if let Some(session) = self.known(peer) {
            session.watches().remove(uri);
        }
    }

    /// What the session that a request came by wants to hear of what is logged. Gives the least that any session wants,
    /// since all have the same upstreams, and the least that any of the same owner does, for upstreams that each owner has of its own.
    pub(crate) fn set_level(
        &self,
        gateway: &Arc<Inner>,
        caller: &Caller,
        peer: &Peer<RoleServer>,
        level: LoggingLevel,
    ) -> (LoggingLevel, LoggingLevel) {
        if let Some(session) = self.of(gateway, caller, peer) {
            *session.level() = Some(level);
        }
        let open = self.open();
        let least = |is_meant: &dyn Fn(&Session) -> bool| {
            let meant = open.iter().filter(|session| is_meant(session));
            meant.filter_map(|session| *session.level()).min_by_key(|level| *level as u8).unwrap_or(level)
        };
        (least(&|_| true), least(&|session| session.owner == caller.owner))
    }

    /// What the session that a request came by hears of what is logged.
    pub(crate) fn logs(&self, peer: &Peer<RoleServer>) -> Logs {
        let level = self.known(peer).and_then(|session| *session.level());
        level.map_or(Logs::Everything, Logs::From)
    }

    fn known(&self, peer: &Peer<RoleServer>) -> Option<Arc<Session>> {
        let client = peer.peer_info()?;
        self.open().iter().find(|session| Arc::ptr_eq(&session.client, &client)).cloned()
    }

    fn of(&self, gateway: &Arc<Inner>, caller: &Caller, peer: &Peer<RoleServer>) -> Option<Arc<Session>> {
        let client = peer.peer_info()?;
        let mut open = self.open();
        if let Some(session) = open.iter().find(|session| Arc::ptr_eq(&session.client, &client)) {
            return Some(session.clone());
        }
        let session = Arc::new(Session {
            owner: caller.owner.clone(),
            peer: peer.clone(),
            client,
            watches: Mutex::default(),
            level: Mutex::default(),
        });
        open.push(session.clone());
        tokio::spawn(session.clone().attend(gateway.clone(), changes::follow(gateway, caller)));
        Some(session)
    }

    fn end(&self, ended: &Arc<Session>) {
        self.open().retain(|session| !Arc::ptr_eq(session, ended));
    }

    fn open(&self) -> MutexGuard<'_, Vec<Arc<Session>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Session {
    fn watches(&self) -> MutexGuard<'_, BTreeMap<String, Vec<Watch>>> {
        self.watches.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn level(&self) -> MutexGuard<'_, Option<LoggingLevel>> {
        self.level.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn attend(self: Arc<Self>, gateway: Arc<Inner>, mut changes: changes::Followed) {
        while !self.peer.is_transport_closed() {
            match tokio::time::timeout(LOOK, changes.next()).await {
                Ok(Some(change)) => self.tell(change).await,
                Ok(None) => break,
                Err(_) => {}
            }
        }
        gateway.sessions.end(&self);
        self.watches().clear();
    }

    async fn tell(&self, change: Change) {
        // That a session is gone is found out by the next look.
        let _ = match change {
            Change::Tools => self.peer.notify_tool_list_changed().await,
            Change::Prompts => self.peer.notify_prompt_list_changed().await,
            Change::Resources => self.peer.notify_resource_list_changed().await,
            Change::Resource(uri) if self.hears_of(&uri) => {
                self.peer.notify_resource_updated(ResourceUpdatedNotificationParam::new(uri)).await
            }
            Change::Resource(_) => Ok(()),
        };
    }

    /// Whether it asked for this resource, or for one that this is a part of.
    fn hears_of(&self, uri: &str) -> bool {
        self.watches().keys().any(|asked| uri.starts_with(asked))
    }
}

impl std::fmt::Debug for Sessions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sessions").field("open", &self.open().len()).finish()
    }
}
