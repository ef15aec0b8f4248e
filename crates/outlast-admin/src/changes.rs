//! `/api/changes`: the ids of tasks that changed, as they change.

use std::{collections::BTreeSet, convert::Infallible, sync::Arc, time::Duration};

use axum::{
    body::{Body, Bytes},
    extract::State,
    response::{IntoResponse as _, Response},
};
use futures::stream;
use http::{StatusCode, header};
use outlast_core::{Hint, Hints, TaskId};
use tokio::{
    sync::{OwnedSemaphorePermit, watch},
    time::sleep,
};

use crate::{admin::Inner, api::Refused};

/// A reader who hears nothing for longer knows that the connection is lost.
const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// The least time between two events: a busy store does not keep a page busy. Hints wait in the store's feed, which is bounded.
const PACE: Duration = Duration::from_millis(200);
/// The most ids of one event; past that it is a gap.
const MOST: usize = 500;

/// One reader's stream. It holds no event: the next one is made when the last one was taken.
struct Changes {
    hints: Hints,
    stops: watch::Receiver<bool>,
    has_begun: bool,
    _place: OwnedSemaphorePermit,
}

/// Events: `open`, then `changed` with a list of ids, or `gap`, after which any task may have changed.
pub(crate) async fn stream(State(inner): State<Arc<Inner>>) -> Response {
    let Ok(place) = inner.streams.clone().try_acquire_owned() else {
        let why = "as many streams of changes are open as may be; close a page that is not needed".to_owned();
        return Refused(StatusCode::SERVICE_UNAVAILABLE, why).into_response();
    };
    // From before the first event, so that who reads the tasks after it misses no change.
    let hints = inner.store.watch();
    let changes = Changes { hints, stops: inner.stops.subscribe(), has_begun: false, _place: place };
    let events = stream::unfold(changes, |mut changes| async move {
        let event = changes.next().await?;
        Some((Ok::<_, Infallible>(Bytes::from(event)), changes))
    });
    let headers = [
        (header::CONTENT_TYPE, "text/event-stream"),
        // A proxy in between would hold events back otherwise.
        (header::HeaderName::from_static("x-accel-buffering"), "no"),
    ];
    (headers, Body::from_stream(events)).into_response()
}

impl Changes {
    /// The next event; `None` when the store is closed or the process is about to end.
    async fn next(&mut self) -> Option<String> {
        if !self.has_begun {
            self.has_begun = true;
            return Some("event: open\ndata: {}\n\n".to_owned());
        }
        let Self { hints, stops, .. } = self;
        let work = async {
            sleep(PACE).await;
            tokio::select! {
                hint = hints.next() => Some(event(hint?, hints)),
                () = sleep(KEEP_ALIVE) => Some(": nothing new\n\n".to_owned()),
            }
        };
        tokio::select! {
            _ = stops.wait_for(|stops| *stops) => None,
            event = work => event,
        }
    }
}

/// One event of `first` and all hints that are there.
fn event(first: Hint, hints: &mut Hints) -> String {
    let mut ids: BTreeSet<TaskId> = BTreeSet::new();
    let mut next = Some(first);
    let mut is_gap = false;
    while let Some(hint) = next {
        match hint {
            Hint::Changed(id) if ids.len() < MOST => drop(ids.insert(id)),
            Hint::Changed(id) => is_gap |= !ids.contains(&id),
            Hint::Gap => is_gap = true,
        }
        // A gap says it all, and what comes after it is for the next event; else a busy store would keep this one going.
        next = if is_gap { None } else { hints.try_next() };
    }
    if is_gap {
        return "event: gap\ndata: {}\n\n".to_owned();
    }
    let ids: Vec<String> = ids.iter().map(|id| format!("\"{id}\"")).collect();
    format!("event: changed\ndata: [{}]\n\n", ids.join(","))
}
