//! A store, from its first task to the verdict.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::Arc,
};

use outlast_core::{Filter, Inspect, Status, Store, Task};
use outlast_postgres::PostgresStore;
use outlast_testkit::Seed;

use super::{LEASE, Replicas, schema};
use crate::{
    caller::Front,
    clock,
    database::again,
    load::{ALL_OVER, Callers, Load, lock, within},
    process::{Home, Server, Setup, open_schema, tail},
    side,
    snapshot::{Snapshot, StoreTrouble, chain},
    verdict::{BEAT, History, Kill, lost},
};

/// A store, and all that is known of it.
pub(super) struct Life {
    pub(super) directory: PathBuf,
    pub(super) setups: Vec<Setup>,
    pub(super) servers: Vec<Server>,
    /// How many processes there were.
    pub(super) processes: u64,
    /// When each of those that are gone was dead.
    pub(super) deaths: BTreeMap<u64, u64>,
    pub(super) front: Arc<Front>,
    pub(super) callers: Callers,
    /// For looking at what the replicas do.
    pub(super) store: PostgresStore,
    pub(super) prefix: String,
    pub(super) kills: Vec<Kill>,
    /// When what each of them left was seen.
    pub(super) seen: Vec<u64>,
}

impl Life {
    pub(super) async fn new(run: &Replicas, number: u64, seed: &mut Seed) -> Result<(Self, Load), String> {
        let directory = run.directory.join(format!("store-{number}"));
        let _ = std::fs::remove_dir_all(&directory);
        std::fs::create_dir_all(&directory).expect("a directory can be made");
        let (schema, prefix) = (schema(run.seed, &number.to_string()), format!("{number}-"));
        let store = open_schema(&run.database.url.0, &schema).await.map_err(|error| format!("{error:#}"))?;
        let mut setups: Vec<_> = (0..run.count)
            .map(|_| Setup {
                home: Home::Schema(schema.clone()),
                side: directory.join("side"),
                effects: PathBuf::new(),
                process: 0,
                park_after_ms: seed.pick(&[30, 150, 300, 1_000]),
                lease_ms: u64::try_from(LEASE.as_millis()).unwrap_or(u64::MAX),
                slots: 64,
                database: Some(run.database.url.clone()),
            })
            .collect();
        let mut processes = 0;
        let mut servers = Vec::new();
        for setup in &mut setups {
            servers.push(start(run, setup, &mut processes, &directory, &prefix)?);
        }
        let front = Front::new(servers.iter().map(|server| server.url.clone()));
        let load = Load {
            ledger: Arc::default(),
            prefix: prefix.clone(),
            seed: Seed(seed.number()),
            open: seed.between(16, 48) as usize,
            created: 0,
        };
        let callers = Callers::new(&front, &load.ledger, false);
        let (deaths, kills, seen) = Default::default();
        let life = Self {
            directory,
            setups,
            servers,
            processes,
            deaths,
            front,
            callers,
            store,
            prefix,
            kills,
            seen,
        };
        Ok((life, load))
    }

    /// What the replica left, and what of that should not be so.
    pub(super) async fn see_what_is_left(&mut self) -> Result<(Snapshot, Vec<String>), String> {
        let began = clock::now();
        let left = self.look().await?;
        self.seen.push(clock::now());
        let lines = side::read(&self.setups[0].side);
        let wrong = lost(&lock(&self.callers.ledger), &lines, &left, began);
        Ok((left, wrong))
    }

    pub(super) async fn look(&self) -> Result<Snapshot, String> {
        patiently(|| Snapshot::of(&self.store)).await
    }

    pub(super) async fn snapshot_of(&self, ids: impl Iterator<Item = &String>) -> Result<Snapshot, String> {
        let mut tasks = Vec::new();
        for id in ids {
            let id = id.parse().map_err(|_| format!("{id} is no id"))?;
            tasks.extend(again(|| self.store.get(id)).await.map_err(|error| chain(&error))?);
        }
        patiently(|| Snapshot::of_these(&self.store, tasks.clone())).await
    }

    /// All tasks that are not over, by their ids.
    pub(super) async fn live(&self) -> Result<BTreeMap<String, Task>, String> {
        let mut live = BTreeMap::new();
        // One that goes from the first to the second in between is seen twice, and the other way not at all.
        for status in [Status::Working, Status::InputRequired, Status::Working] {
            let mut after = None;
            loop {
                let filter = Filter { status: Some(status), ..Filter::default() };
                let page = again(|| self.store.list(filter.clone(), after.clone(), 500)).await;
                let page = page.map_err(|error| chain(&error))?;
                live.extend(page.tasks.into_iter().map(|task| (task.id.to_string(), task)));
                after = page.next;
                if after.is_none() {
                    break;
                }
            }
        }
        Ok(live)
    }

    /// All replicas are up and nothing more is created: everything comes to its end, and the verdict is given.
    pub(super) async fn last(&mut self, run: &mut Replicas) -> Vec<String> {
        // Also the tasks that nobody was told of, because their server died first.
        let all = async {
            while !self.live().await.is_ok_and(|live| live.is_empty()) {
                tokio::time::sleep(BEAT).await;
            }
        };
        let _ = within(ALL_OVER, all).await;
        self.callers.look_at_all().await;
        let mut wrong = Vec::new();
        for server in &mut self.servers {
            if !server.kill() {
                wrong.push("a server ended by itself".to_owned());
            }
        }
        let end = match self.look().await {
            Ok(end) => end,
            Err(error) => return vec![error],
        };
        self.store.close().await;
        let side = side::read(&self.setups[0].side);
        let mut kills = std::mem::take(&mut self.kills);
        for (kill, seen) in kills.iter_mut().zip(&self.seen) {
            kill.lines = side.partition_point(|line| line.at <= *seen);
        }
        for kept in kills.iter().flat_map(|kill| kill.left.tasks.values()).flatten() {
            *run.counts.places.entry(kept.place).or_default() += 1;
        }
        let history = History {
            ledger: lock(&self.callers.ledger).clone(),
            side,
            kills,
            effects: side::effects(&run.directory.join("effects"), &self.prefix),
            replicas: Some(self.deaths.clone()),
            end,
        };
        wrong.extend(history.violations());
        run.counts.add(&history);
        run.tally.in_vain += history.in_vain();
        wrong
    }

    /// Leaves everything where it can be looked at.
    pub(super) fn keep(&self, mut wrong: Vec<String>) -> Vec<String> {
        let ledger = serde_json::to_string_pretty(&*lock(&self.callers.ledger)).unwrap_or_default();
        let _ = std::fs::write(self.directory.join("ledger.json"), ledger);
        wrong.push(format!("all of it is kept in {}; set up as {:?}", self.directory.display(), self.setups));
        let said = tail(&self.directory.join("log"), 0);
        if !said.is_empty() {
            wrong.push(format!("the servers said: {said}"));
        }
        wrong
    }
}

/// A further process, with a side database of its own: one that is stopped in mid-write must not lock the others out.
pub(super) fn start(
    run: &Replicas,
    setup: &mut Setup,
    processes: &mut u64,
    directory: &Path,
    prefix: &str,
) -> Result<Server, String> {
    *processes += 1;
    setup.process = *processes;
    setup.effects = run.directory.join(format!("effects/{prefix}{processes}.db"));
    Server::start(setup, None, &directory.join("log"))
}

/// Reads what may have to be read again because the database was away.
async fn patiently<T, F: Future<Output = Result<T, StoreTrouble>>>(
    read: impl Fn() -> F,
) -> Result<T, String> {
    loop {
        match read().await {
            Ok(read) => return Ok(read),
            Err(error) => match error.downcast_ref::<outlast_core::StoreError>() {
                Some(trouble) if trouble.is_retryable() => tokio::time::sleep(BEAT).await,
                _ => return Err(format!("the store cannot be read: {error}")),
            },
        }
    }
}
