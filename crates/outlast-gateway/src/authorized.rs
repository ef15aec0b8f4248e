//! Work whose upstream does not let it in any more: the token of its caller has expired, or was lost with an earlier process.
//! It waits for its owner's next request, which brings another.

use std::time::Duration;

use outlast::TaskContext;
use outlast_client::Authorization;
use rmcp::ErrorData;
use tokio::time::Instant;

use crate::{clock, upstream::Upstream, works::Work};

/// How long it is waited for a token: as long as the result of a task is kept. A deadline of the task comes first.
const PATIENCE: Duration = Duration::from_secs(24 * 3_600);
/// The pause before the upstream is tried again although no token came. It doubles with each further one.
const FIRST: Duration = Duration::from_secs(5);
/// The longest pause.
const LONGEST: Duration = Duration::from_secs(300);

const WAITS: &str = "the server behind this gateway asks for authorization: the token of this work's caller has expired, or was lost when \
    the gateway was started again; the work waits for the caller's next request, which brings a token";
const GOES_ON: &str = "the work asks the server behind this gateway again";

/// What becomes of work that waited.
pub(crate) enum Next {
    /// It may try again.
    Again,
    Cancelled,
    /// Nobody came.
    GivenUp(ErrorData),
}

/// The waits of one piece of work.
#[derive(Default)]
pub(crate) struct Waits {
    pause: Option<Duration>,
    until: Option<Instant>,
}

impl Waits {
    /// Waits until the owner of the work sends a request with another header than `tried`, or the upstream may be asked again
    /// all the same. Work that has no header must not ask: it would ask as somebody else.
    pub(crate) async fn next(
        &mut self,
        upstream: &Upstream,
        context: &TaskContext,
        work: &Work,
        tried: Option<&Authorization>,
    ) -> Next {
        let now = clock::now();
        context.status(WAITS);
        if self.until.is_none() {
            tracing::warn!(
                upstream = upstream.name(),
                "an upstream asks for authorization; a task waits for the next request of its owner"
            );
        }
        let until = *self.until.get_or_insert(now + PATIENCE);
        if now >= until {
            return Next::GivenUp(given_up());
        }
        let pause = self.pause.map_or(FIRST, |pause| pause.saturating_mul(2).min(LONGEST));
        self.pause = Some(pause);
        let again = if tried.is_some() { until.min(now + pause) } else { until };
        tokio::select! {
            biased;
            () = context.cancelled() => return Next::Cancelled,
            () = work.another_than(tried) => {
                tracing::info!(upstream = upstream.name(), "a request brought a token for a task that waited");
                *self = Self::default();
            }
            () = tokio::time::sleep_until(again) => {}
        }
        context.status(GOES_ON);
        Next::Again
    }
}

/// Waits until work is known to have a header, or none, where it was lost with an earlier process.
///
/// # Errors
/// When it is cancelled before, or nobody came: nothing can be asked of the upstream.
pub(crate) async fn regained(
    upstream: &Upstream,
    context: &TaskContext,
    work: &Work,
) -> Result<(), ErrorData> {
    let mut waits = Waits::default();
    while work.authorization().is_none() {
        match waits.next(upstream, context, work, None).await {
            Next::Again => {}
            // The request that asks for the end may have brought one, with which a task of the upstream can be ended.
            Next::Cancelled if work.authorization().is_some() => {}
            Next::Cancelled => return Err(context.cancel_error()),
            Next::GivenUp(refusal) => return Err(refusal),
        }
    }
    Ok(())
}

fn given_up() -> ErrorData {
    ErrorData::internal_error(
        "the server behind this gateway asks for authorization, and no request of this work's caller brought a token that it \
        accepts in a day, so the work was given up; whether the call was carried out is unknown: see there, and make the call again \
        with a good token",
        None,
    )
}
