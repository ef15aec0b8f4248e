//! Doors between a test and the tools that it runs: a tool waits at one until the test opens it.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
};

use tokio::sync::watch;

#[derive(Clone, Default)]
pub(crate) struct Gates(Arc<Mutex<HashMap<String, watch::Sender<State>>>>);

#[derive(Clone, Copy, Default)]
struct State {
    reached: u32,
    open: bool,
}

impl Gates {
    fn gate(&self, name: &str) -> watch::Sender<State> {
        self.0.lock().unwrap().entry(name.to_owned()).or_default().clone()
    }

    /// A tool waits here.
    pub(crate) async fn wait(&self, name: &str) {
        let gate = self.gate(name);
        gate.send_modify(|state| state.reached += 1);
        gate.subscribe().wait_for(|state| state.open).await.unwrap();
    }

    /// A tool passes here, and does not wait.
    pub(crate) fn reach(&self, name: &str) {
        self.gate(name).send_modify(|state| state.reached += 1);
    }

    /// The test lets everyone through, now and later.
    pub(crate) fn open(&self, name: &str) {
        self.gate(name).send_modify(|state| state.open = true);
    }

    /// The test waits until so many tools have come to this gate in all.
    pub(crate) async fn reached(&self, name: &str, times: u32) {
        self.gate(name).subscribe().wait_for(|state| state.reached >= times).await.unwrap();
    }

    /// How many tools have come to this gate.
    pub(crate) fn count(&self, name: &str) -> u32 {
        self.gate(name).borrow().reached
    }
}
