//! The ways to an upstream that gets its callers' own `Authorization` headers: one for each owner, with all that is remembered of
//! the upstream, so that nothing that one of them was told is shown to another.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use outlast::Owner;
use outlast_client::{Authorization, AuthorizationSource};
use tokio::time::Instant;

use crate::upstream::Upstream;

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
    /// are to be closed.
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
            let idle = lanes.iter().filter(|(_, lane)| lane.is_unused()).min_by_key(|(_, lane)| lane.used);
            let Some(oldest) = idle.map(|(owner, _)| owner.clone()) else { return (None, let_go) };
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

#[cfg(test)]
mod tests {
    use outlast_client::Server;

    use super::*;
    use crate::clock;

    fn make() -> Upstream {
        Upstream::only(Server::http("http://localhost:1/"))
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
        assert!(lanes.of(&owner(MOST + 1), now, make).0.is_none());
        assert_eq!(all.len(), MOST);
    }
}
