//! Tells every open `subscriptions/listen` that a list has changed.

use std::{
    fs::{self, OpenOptions},
    io::{self, Write as _},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use rmcp::service::SubscriptionContext;
use tokio::sync::broadcast;

/// A list that a client may be subscribed to.
#[derive(Clone, Copy)]
pub(crate) enum Change {
    Tools,
    Prompts,
}

/// Where tools announce a change, and subscriptions hear of it. Clones share it.
#[derive(Clone)]
pub(crate) struct Changes {
    here: broadcast::Sender<Change>,
    /// The file in which replicas tell each other.
    told: Option<Arc<PathBuf>>,
}

impl Default for Changes {
    fn default() -> Self {
        Self { here: broadcast::Sender::new(16), told: None }
    }
}

/// How often a replica looks for what others told.
const LOOK: Duration = Duration::from_millis(20);

impl Changes {
    /// Changes of several replicas. Those of tasks need no such thing: the store tells of them.
    pub(crate) fn shared(folder: &Path) -> io::Result<Self> {
        let file = folder.join("changes");
        OpenOptions::new().create(true).append(true).open(&file)?;
        let changes = Self { told: Some(Arc::new(file.clone())), ..Self::default() };
        let here = changes.here.clone();
        let mut seen = fs::read(&file)?.len();
        tokio::spawn(async move {
            let mut looks = tokio::time::interval(LOOK);
            loop {
                looks.tick().await;
                let told = fs::read(&file).unwrap_or_default();
                for change in told.get(seen..).unwrap_or_default() {
                    let _ = here.send(if *change == b't' { Change::Tools } else { Change::Prompts });
                }
                seen = told.len();
            }
        });
        Ok(changes)
    }

    pub(crate) fn announce(&self, change: Change) {
        let Some(file) = &self.told else {
            // The error means that nobody is subscribed.
            let _ = self.here.send(change);
            return;
        };
        let letter = match change {
            Change::Tools => b"t",
            Change::Prompts => b"p",
        };
        let told = OpenOptions::new().append(true).open(&**file).and_then(|mut file| file.write_all(letter));
        if let Err(error) = told {
            tracing::warn!(%error, "the other replicas were not told of a change");
        }
    }

    /// Forwards what one subscription asked for, until it ends.
    pub(crate) async fn forward_to(&self, subscription: &SubscriptionContext) {
        let mut changes = self.here.subscribe();
        let (sink, accepted) = (subscription.sink(), subscription.accepted());
        loop {
            let change = tokio::select! {
                () = subscription.cancelled() => return,
                change = changes.recv() => change,
            };
            let sent = match change {
                Ok(Change::Tools) if accepted.tools_list_changed == Some(true) => {
                    sink.notify_tool_list_changed().await
                }
                Ok(Change::Prompts) if accepted.prompts_list_changed == Some(true) => {
                    sink.notify_prompt_list_changed().await
                }
                // Having missed some is no loss: one is enough for the client to read the whole list again.
                Ok(_) | Err(broadcast::error::RecvError::Lagged(_)) => Ok(()),
                Err(broadcast::error::RecvError::Closed) => return,
            };
            if sent.is_err() {
                return;
            }
        }
    }
}
