//! The owners that were seen, by what an operator knows them by.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
};

use outlast_core::{Owner, Store, StoreError};

use crate::{operate, text};

/// Digests of owners that were listed, so that the tasks are not gone through for each look at those of one of them.
#[derive(Default)]
pub(crate) struct Owners(Mutex<HashMap<String, Owner>>);

/// How many are remembered; past that they are looked for again.
const MOST: usize = 1_024;

impl Owners {
    /// Remembers an owner, and gives the digest.
    pub(crate) fn seen(&self, owner: &Owner) -> String {
        let digest = text::owner(owner);
        let mut owners = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if owners.len() >= MOST && !owners.contains_key(&digest) {
            owners.clear();
        }
        owners.entry(digest.clone()).or_insert_with(|| owner.clone());
        digest
    }

    /// The owner of this name or digest.
    pub(crate) async fn find(&self, store: &dyn Store, named: &str) -> Result<Owner, StoreError> {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner).get(named).cloned();
        match known {
            Some(owner) => Ok(owner),
            None => {
                let owner = operate::owner(store, named).await?;
                if operate::is_digest(named) && text::owner(&owner) == named {
                    self.seen(&owner);
                }
                Ok(owner)
            }
        }
    }
}
