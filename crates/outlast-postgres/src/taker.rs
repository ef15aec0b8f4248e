//! What a replica does of itself, on a connection of its own beside the writer's: handing out work, and sweeping. Each is
//! a transaction of several round trips, which nothing of the writer's waits for.

use std::{panic::AssertUnwindSafe, sync::LazyLock};

use futures::FutureExt;
use outlast_core::{ClaimRequest, Claimed, Swept};

use crate::{
    claim::{self, Look, Turns},
    error::{Broken, Failure},
    shared::{Kept, Shared},
    sweep,
};

#[derive(Default)]
pub(crate) struct Taker {
    kept: Kept,
    turns: Turns,
}

/// How often a transaction is tried in which others were in the way.
const TRIES: u32 = 3;

static STATEMENTS: LazyLock<Vec<&'static str>> =
    LazyLock::new(|| [claim::statements(), sweep::statements()].concat());

impl Taker {
    pub(crate) fn close(&mut self) {
        self.kept.close();
    }

    pub(crate) async fn claim(
        &mut self,
        shared: &Shared,
        request: &ClaimRequest,
    ) -> Result<Vec<Claimed>, Broken> {
        let mut rounds = 0;
        let mut patience = Patience::default();
        while rounds < claim::ROUNDS {
            let session = match self.kept.take(shared, &STATEMENTS).await {
                Ok(session) => session,
                Err(failure) if patience.goes_on(&failure) => continue,
                Err(failure) => return Err(failure.into()),
            };
            let look = AssertUnwindSafe(claim::look(shared, &session, request, &mut self.turns))
                .catch_unwind()
                .await;
            let look = look.unwrap_or(Err(Broken::Undone(Failure::Panic)));
            match self.kept.give_back(shared, session, look).await {
                Ok(Look::Claimed(claimed)) => return Ok(claimed),
                Ok(Look::Again) => rounds += 1,
                Err(Broken::Undone(failure)) if patience.goes_on(&failure) => {}
                Err(broken) => return Err(broken),
            }
        }
        Ok(Vec::new())
    }

    pub(crate) async fn sweep(&mut self, shared: &Shared, max: u32) -> Result<Swept, Broken> {
        let mut patience = Patience::default();
        loop {
            let session = match self.kept.take(shared, &STATEMENTS).await {
                Ok(session) => session,
                Err(failure) if patience.goes_on(&failure) => continue,
                Err(failure) => return Err(failure.into()),
            };
            let swept = AssertUnwindSafe(sweep::sweep(shared, &session, max)).catch_unwind().await;
            let swept = swept.unwrap_or(Err(Broken::Undone(Failure::Panic)));
            match self.kept.give_back(shared, session, swept).await {
                Err(Broken::Undone(failure)) if patience.goes_on(&failure) => {}
                swept => return swept,
            }
        }
    }
}

/// Tries again while others are in the way, and once with a new connection.
#[derive(Default)]
struct Patience {
    tries: u32,
    reconnected: bool,
}

impl Patience {
    fn goes_on(&mut self, failure: &Failure) -> bool {
        match failure {
            Failure::Sql(error) if error.is_contention() => {
                self.tries += 1;
                self.tries < TRIES
            }
            Failure::Sql(error) if error.is_connection() => !std::mem::replace(&mut self.reconnected, true),
            _ => false,
        }
    }
}
