//! The ways to an upstream that gets its callers' own `Authorization` headers: one for each owner, with all that is remembered of
//! the upstream, so that nothing that one of them was told is shown to another.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use outlast::Owner;
use outlast_client::{Authorization, AuthorizationSource};
use rmcp::ErrorData;
use tokio::time::Instant;

use crate::{
    asked::Asked,
    caller::Caller,
    clock,
    upstream::{Upstream, refused_caller},
    works::Work,
};

/// How long a way is kept that nobody uses.
const IDLE: Duration = Duration::from_secs(600);
/// How many there may be: each is a connection, and may be a session of the upstream.
const MOST: usize = 1_000;

/// See the module.
#[derive(Default)]
pub(crate) struct Lanes(Mutex<HashMap<Owner, Lane>>);

struct Lane {
    upstream: Arc<Upstream>,
    used: Instant,
}

impl Lanes {
    /// The way of an owner, made where there is none. None where there are too many that are in use. Those that had to make room
    /// are to be closed: one that nobody uses, else one that the upstream has never let in, since tokens can be made up.
    pub(crate) fn of(
        &self,
        owner: &Owner,
        now: Instant,
        make: impl FnOnce() -> Upstream,
    ) -> (Option<Arc<Upstream>>, Vec<Arc<Upstream>>) {
        let mut lanes = self.lanes();
        if let Some(lane) = lanes.get_mut(owner) {
            lane.used = now;
            return (Some(lane.upstream.clone()), Vec::new());
        }
        let mut let_go = Vec::new();
        if lanes.len() >= MOST {
            let oldest = |may_go: fn(&Lane) -> bool| {
                let may_go = lanes.iter().filter(|(_, lane)| may_go(lane));
                may_go.min_by_key(|(_, lane)| lane.used).map(|(owner, _)| owner.clone())
            };
            let oldest =
                oldest(Lane::is_unused).or_else(|| oldest(|lane| lane.upstream.declared().is_none()));
            let Some(oldest) = oldest else { return (None, let_go) };
            let_go.extend(lanes.remove(&oldest).map(|lane| lane.upstream));
        }
        let upstream = Arc::new(make());
        lanes.insert(owner.clone(), Lane { upstream: upstream.clone(), used: now });
        (Some(upstream), let_go)
    }

    /// The way of an owner, where there is one.
    pub(crate) fn known(&self, owner: &Owner) -> Option<Arc<Upstream>> {
        self.lanes().get(owner).map(|lane| lane.upstream.clone())
    }

    /// Lets go of those that nobody has used for a while; they are to be closed.
    pub(crate) fn let_go(&self, now: Instant) -> Vec<Arc<Upstream>> {
        let mut lanes = self.lanes();
        let is_idle = |_: &Owner, lane: &mut Lane| lane.is_unused() && lane.used + IDLE <= now;
        lanes.extract_if(is_idle).map(|(_, lane)| lane.upstream).collect()
    }

    /// All of them.
    pub(crate) fn all(&self) -> Vec<Arc<Upstream>> {
        self.lanes().values().map(|lane| lane.upstream.clone()).collect()
    }

    fn lanes(&self) -> MutexGuard<'_, HashMap<Owner, Lane>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Lane {
    /// Whether no work, session or subscription has it.
    fn is_unused(&self) -> bool {
        Arc::strong_count(&self.upstream) == 1
    }
}

/// The newest header of an owner: for what is asked on the owner's way and for no request in particular, such as the handshake
/// and the stream of a session.
#[derive(Clone, Default)]
pub(crate) struct Newest(Arc<Mutex<Option<Authorization>>>);

impl Newest {
    pub(crate) fn set(&self, authorization: &Authorization) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(authorization.clone());
    }

    /// Sets it where there is none.
    pub(crate) fn set_first(&self, authorization: &Authorization) {
        let mut held = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        held.get_or_insert_with(|| authorization.clone());
    }

    pub(crate) fn get(&self) -> Option<Authorization> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn source(&self) -> AuthorizationSource {
        let newest = self.clone();
        Arc::new(move || newest.get())
    }
}

/// Who reaches an upstream by a value.
pub(crate) enum Way {
    /// All callers.
    Shared,
    /// Nobody: each owner has a way of its own.
    Each(Lanes),
    /// One owner, who sends these.
    Own(Newest),
}

impl Upstream {
    /// The way to it for one owner.
    fn lane(&self) -> Self {
        let newest = Newest::default();
        let server = self.server.clone().authorization(newest.source());
        let mut lane = Self::new(self.name().map(str::to_owned), server);
        if let Some(version) = &self.protocol {
            lane = lane.protocol(version.clone());
        }
        lane.policies = self.policies.clone();
        lane.way = Way::Own(newest);
        lane
    }

    /// What is wrong with it, if anything.
    pub(crate) fn misfit(&self) -> Option<String> {
        let is_wrong = self.forwards() && !self.server.is_http();
        is_wrong.then(|| {
            let name = self.name().unwrap_or("the upstream");
            format!(
                "{name} is not reached over HTTP, and so cannot be sent its callers' Authorization headers"
            )
        })
    }

    /// Whether it gets its callers' own `Authorization` headers.
    pub(crate) fn forwards(&self) -> bool {
        matches!(self.way, Way::Each(_) | Way::Own(_))
    }

    /// The upstream as this caller reaches it.
    ///
    /// # Errors
    /// When it gets its callers' headers, and this one came in a way that has none; or when there are too many callers.
    pub(crate) fn for_caller(self: &Arc<Self>, caller: &Caller) -> Result<Arc<Self>, ErrorData> {
        if self.forwards() && !caller.is_remote {
            return Err(refused_caller(&Authorization::none()));
        }
        let lane = self.for_owner(&caller.owner)?;
        lane.heard(caller);
        Ok(lane)
    }

    /// The upstream as this owner reaches it, whoever asks.
    ///
    /// # Errors
    /// When there are too many owners.
    pub(crate) fn for_owner(self: &Arc<Self>, owner: &Owner) -> Result<Arc<Self>, ErrorData> {
        let Way::Each(lanes) = &self.way else { return Ok(self.clone()) };
        let (lane, let_go) = lanes.of(owner, clock::now(), || self.lane());
        for upstream in let_go {
            tokio::spawn(async move { upstream.close().await });
        }
        lane.ok_or_else(|| {
            ErrorData::internal_error(
                "the server behind this gateway has too many callers now; try again later",
                None,
            )
        })
    }

    /// The upstream as this work of an owner reaches it.
    ///
    /// # Errors
    /// When there are too many owners.
    pub(crate) fn for_work(self: &Arc<Self>, owner: &Owner, work: &Work) -> Result<Arc<Self>, ErrorData> {
        let lane = self.for_owner(owner)?;
        if let Way::Own(newest) = &lane.way {
            match (work.authorization(), newest.get()) {
                (Some(own), None) if own != Authorization::none() => newest.set_first(&own),
                (None, Some(newest)) => work.give(&newest),
                _ => {}
            }
        }
        Ok(lane)
    }

    /// A request of this caller came, for whatever upstream.
    pub(crate) fn heard(&self, caller: &Caller) {
        let Some(authorization) = &caller.authorization else { return };
        match &self.way {
            Way::Shared => {}
            Way::Own(newest) => newest.set(authorization),
            Way::Each(lanes) => {
                if let Some(lane) = lanes.known(&caller.owner) {
                    lane.heard(caller);
                }
            }
        }
    }

    /// The newest header of the owner whose way this is.
    pub(crate) fn newest(&self) -> Option<Authorization> {
        match &self.way {
            Way::Own(newest) => newest.get(),
            Way::Shared | Way::Each(_) => None,
        }
    }

    /// Closes the ways to it that nobody has used for a while.
    pub(crate) async fn close_idle(&self) {
        if let Way::Each(lanes) = &self.way {
            let let_go = lanes.let_go(clock::now());
            futures::future::join_all(let_go.iter().map(|lane| lane.close())).await;
        }
    }

    /// The way for a request of this caller.
    ///
    /// # Errors
    /// When it cannot be reached, or does not let the caller in.
    pub(crate) async fn ask(&self, caller: &Caller) -> Result<Asked, ErrorData> {
        let brings =
            self.forwards().then(|| caller.authorization.clone().unwrap_or_else(Authorization::none));
        let peer = self.peer().await?;
        Ok(Asked { peer, brings })
    }
}

#[cfg(test)]
mod tests {
    use outlast_client::Server;
    use rmcp::model::{ProtocolVersion, ServerCapabilities, ServerPeerInfo};

    use super::*;

    fn make() -> Upstream {
        Upstream::only(Server::http("http://localhost:1/"))
    }

    fn reach(upstream: &Upstream) {
        let info = ServerPeerInfo::new(ProtocolVersion::V_2026_07_28, ServerCapabilities::default());
        upstream.declares(Some(Arc::new(info)));
    }

    #[test]
    fn each_owner_has_a_way_of_its_own_for_as_long_as_it_is_used() {
        let (lanes, now) = (Lanes::default(), clock::now());
        let of = |owner: &str, now| lanes.of(&Owner::new(owner), now, make).0.unwrap();
        let ann = of("ann", now);
        assert!(Arc::ptr_eq(&ann, &of("ann", now)));
        assert!(!Arc::ptr_eq(&ann, &of("bob", now)));
        assert!(lanes.let_go(now + IDLE / 2).is_empty());
        assert_eq!(lanes.let_go(now + IDLE).len(), 1, "bob's, for ann's is in use");
        assert!(lanes.known(&Owner::new("bob")).is_none());
        assert!(Arc::ptr_eq(&ann, &of("ann", now + IDLE)));
    }

    #[test]
    fn of_too_many_the_one_goes_that_was_not_used_for_longest() {
        let (lanes, now) = (Lanes::default(), clock::now());
        let owner = |n: usize| Owner::new(n.to_string());
        for n in 0..MOST {
            assert!(lanes.of(&owner(n), now + Duration::from_millis(n as u64), make).1.is_empty());
        }
        let in_use = lanes.known(&owner(0)).unwrap();
        let (made, let_go) = lanes.of(&owner(MOST), now, make);
        assert_eq!((made.is_some(), let_go.len()), (true, 1));
        assert!(lanes.known(&owner(1)).is_none() && lanes.known(&owner(0)).is_some());
        drop(in_use);
        let all = lanes.all();
        all.iter().for_each(|lane| reach(lane));
        assert!(lanes.of(&owner(MOST + 1), now, make).0.is_none());
        assert_eq!(all.len(), MOST);
    }

    #[test]
    fn those_that_were_never_let_in_take_no_place_from_others() {
        let (lanes, now) = (Lanes::default(), clock::now());
        let of = |n: usize| lanes.of(&Owner::new(n.to_string()), now + Duration::from_millis(n as u64), make);
        let in_use: Vec<_> = (0..MOST).filter_map(|n| of(n).0).collect();
        reach(&in_use[0]);
        let (made, let_go) = of(MOST);
        assert!(made.is_some() && Arc::ptr_eq(&let_go[0], &in_use[1]));
        assert!(lanes.known(&Owner::new("0")).is_some());
        assert_eq!(lanes.all().len(), MOST);
    }
}
