//! What the callers of a store were told, in order.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::plan::Plan;

/// An answer of the server.
#[derive(Debug, Clone)]
pub(crate) enum Answered<T> {
    Result(T),
    Error(String),
}

/// What `tasks/get` returned, without the one field that changes with time alone.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Shown(pub(crate) Value);

impl Shown {
    pub(crate) fn new(mut result: Value) -> Self {
        if let Some(fields) = result.as_object_mut() {
            fields.remove("pollIntervalMs");
        }
        Self(result)
    }

    pub(crate) fn status(&self) -> &str {
        self.0["status"].as_str().unwrap_or_default()
    }

    pub(crate) fn is_final(&self) -> bool {
        matches!(self.status(), "completed" | "failed" | "cancelled")
    }

    /// The outstanding questions.
    pub(crate) fn asks(&self) -> impl Iterator<Item = (&String, &Value)> {
        self.0["inputRequests"].as_object().into_iter().flatten()
    }
}

/// Something that a caller did or was told. What begins with `Will` is noted before the request is sent, the rest when
/// its answer was here.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) enum Event {
    WillCreate,
    Created {
        id: String,
    },
    /// The call ended without becoming a task.
    EndedInline {
        error: bool,
        body: Value,
    },
    WillAnswer {
        key: String,
        name: String,
    },
    Answered {
        key: String,
    },
    WillCancel,
    Cancelled,
    Saw(Shown),
    /// The server answered with an error where it must not.
    Refused {
        what: String,
        error: String,
    },
    /// The server was killed, and no answer is under way any more.
    Killed {
        process: u64,
    },
    /// A request had no answer, because its server was killed or stopped, or its store was away; it may have been carried
    /// out, or may still be.
    Unanswered,
}

/// All that is known of one task.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Known {
    pub(crate) plan: Plan,
    /// What happened, each with its time.
    pub(crate) events: Vec<(u64, Event)>,
}

impl Known {
    pub(crate) fn new(plan: Plan) -> Self {
        Self { plan, events: Vec::new() }
    }

    pub(crate) fn id(&self) -> Option<&str> {
        self.events.iter().find_map(|(_, event)| match event {
            Event::Created { id } => Some(&**id),
            _ => None,
        })
    }

    pub(crate) fn shown(&self) -> impl DoubleEndedIterator<Item = (u64, &Shown)> {
        self.events.iter().filter_map(|(at, event)| match event {
            Event::Saw(shown) => Some((*at, shown)),
            _ => None,
        })
    }

    pub(crate) fn last_shown(&self) -> Option<&Shown> {
        self.shown().next_back().map(|(_, shown)| shown)
    }

    /// The state that it ended in, and when that was first seen.
    pub(crate) fn end(&self) -> Option<(u64, &Shown)> {
        self.shown().find(|(_, shown)| shown.is_final())
    }

    /// Whether nothing more is expected of it. A call without a key whose answer was lost is owed nothing.
    pub(crate) fn is_over(&self) -> bool {
        self.end().is_some() || self.ended_inline().is_some() || self.is_lost()
    }

    pub(crate) fn ended_inline(&self) -> Option<(bool, &Value)> {
        self.events.iter().find_map(|(_, event)| match event {
            Event::EndedInline { error, body } => Some((*error, body)),
            _ => None,
        })
    }

    pub(crate) fn is_lost(&self) -> bool {
        let lost = |event: &Event| matches!(event, Event::Killed { .. } | Event::Unanswered);
        self.plan.tool == crate::plan::Tool::Later
            && self.events.iter().any(|(_, event)| lost(event))
            && self.id().is_none()
            && self.ended_inline().is_none()
    }

    /// When the end of the work was asked for, and when that was acknowledged.
    pub(crate) fn cancel(&self) -> (Option<u64>, Option<u64>) {
        let find = |wanted| self.events.iter().find(|(_, event)| *event == wanted).map(|(at, _)| *at);
        (find(Event::WillCancel), find(Event::Cancelled))
    }

    /// The acknowledged answers by the key that they were sent under: the name, and when.
    pub(crate) fn acknowledged(&self) -> BTreeMap<&str, (&str, u64)> {
        let mut sent: BTreeMap<&str, &str> = BTreeMap::new();
        let mut acknowledged = BTreeMap::new();
        for (at, event) in &self.events {
            match event {
                Event::WillAnswer { key, name } => drop(sent.insert(key, name)),
                Event::Answered { key } => {
                    if let Some(name) = sent.get(&**key) {
                        acknowledged.entry(&**key).or_insert((*name, *at));
                    }
                }
                _ => {}
            }
        }
        acknowledged
    }

    /// The name that was last sent under each key.
    pub(crate) fn sent(&self) -> BTreeMap<&str, &str> {
        let sent = self.events.iter().filter_map(|(_, event)| match event {
            Event::WillAnswer { key, name } => Some((&**key, &**name)),
            _ => None,
        });
        sent.collect()
    }

    pub(crate) fn sends(&self) -> usize {
        self.events.iter().filter(|(_, event)| matches!(event, Event::WillAnswer { .. })).count()
    }
}

/// All tasks of one store, by their markers.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Ledger {
    pub(crate) tasks: BTreeMap<String, Known>,
}

impl Ledger {
    pub(crate) fn note(&mut self, marker: &str, at: u64, event: Event) {
        let Some(task) = self.tasks.get_mut(marker) else { return };
        // Seeing the same again is no news, nor is a server that is still away.
        let last = task.events.last().map(|(_, event)| event);
        let is_news = match &event {
            Event::Saw(shown) => task.last_shown() != Some(shown),
            Event::Unanswered => last != Some(&event),
            _ => true,
        };
        if is_news {
            task.events.push((at, event));
        }
    }

    /// Every request under way was lost.
    pub(crate) fn killed(&mut self, at: u64, process: u64) {
        for task in self.tasks.values_mut().filter(|task| !task.is_over()) {
            task.events.push((at, Event::Killed { process }));
        }
    }

    pub(crate) fn unfinished(&self) -> BTreeSet<String> {
        let open = self.tasks.iter().filter(|(_, task)| !task.is_over());
        open.map(|(marker, _)| marker.clone()).collect()
    }
}
