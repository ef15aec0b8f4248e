//! Many servers on one PostgreSQL: one after the other is killed, or stopped until its leases are over and then continued,
//! and the others take over what it had.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use outlast_core::{Filter, Inspect, Status, Store, Task};
use outlast_postgres::PostgresStore;
use tokio::task::block_in_place;

use outlast_testkit::Seed;

use crate::{
    caller::Front,
    clock,
    database::{Database, Pulse, again},
    load::{ALL_OVER, Callers, Load, Moment, lock, wait_for, within},
    process::{Home, Server, Setup, open_schema, tail},
    run::Counts,
    side,
    snapshot::{Held, Place, Snapshot, StoreTrouble, chain},
    verdict::{BEAT, History, Kill, Takeover, lost},
};

/// How long a replica may be silent: short, so that rounds are.
const LEASE: Duration = Duration::from_secs(2);
/// In one round of so many the database is killed as well.
const OUTAGE: u32 = 5;
/// How many more rounds there may be for what was not hit in those that were wanted.
const MORE: u32 = 10;
/// Far more beats than it takes until all that a replica had is over.
const ALL_ENDED: usize = 2_400;

/// A run.
pub(crate) struct Replicas {
    directory: PathBuf,
    seed: u64,
    database: Database,
    /// How many servers there are at one time.
    count: usize,
    pulse: Pulse,
    pub(crate) counts: Counts,
    tally: Tally,
}

/// What is counted beside the counts of every run.
#[derive(Debug, Default)]
struct Tally {
    killed: u32,
    stopped: u32,
    outages: u32,
    /// What the replica that went had in flight, and asked; and what was parked, by nobody's lease.
    at_work: usize,
    asked: usize,
    parked: usize,
    taken: usize,
    slowest: Duration,
    in_vain: usize,
    try_again: usize,
}

impl Tally {
    /// The states that no task was in when a replica went.
    fn not_hit(&self) -> Vec<&'static str> {
        let states = [("in flight", self.at_work), ("asked", self.asked), ("parked", self.parked)];
        states.iter().filter(|(_, count)| *count == 0).map(|(state, _)| *state).collect()
    }
}

impl Replicas {
    /// # Errors
    /// When there is no database, or no room for the files of the run.
    pub(crate) async fn new(
        directory: PathBuf,
        seed: u64,
        database: Database,
        count: usize,
    ) -> anyhow::Result<Self> {
        std::fs::create_dir_all(directory.join("effects"))?;
        if !database.is_own() {
            println!("torture: this PostgreSQL is not the run's own, and is not killed");
        }
        let pulse = Pulse::new(&database.url.0, &schema(seed, "pulse")).await?;
        Ok(Self {
            directory,
            seed,
            database,
            count,
            pulse,
            counts: Counts::default(),
            tally: Tally::default(),
        })
    }

    /// Goes on until so many rounds were done, or something is wrong: that is returned.
    pub(crate) async fn rounds(&mut self, rounds: u32) -> Vec<String> {
        for number in 0.. {
            let left = rounds.saturating_sub(self.counts.rounds);
            // A few more where a state was not hit by then.
            let few = self.counts.rounds < rounds + MORE && !self.tally.not_hit().is_empty();
            if left == 0 && !few {
                break;
            }
            let wrong = self.store(number, left.max(1)).await;
            if !wrong.is_empty() {
                return wrong;
            }
            if self.counts.idle_rounds > 10 + rounds / 4 {
                return vec!["there is hardly anything in flight when a replica goes".to_owned()];
            }
        }
        let effects = side::effects(&self.directory.join("effects"), "");
        (self.counts.effects, self.counts.tries) = (effects.by_step.len(), effects.tries);
        let mut wrong = History { effects, ..History::default() }.violations();
        let not_hit = self.tally.not_hit();
        wrong.extend(
            not_hit.iter().map(|state| format!("no task was {state} in any round: that was not tried")),
        );
        wrong
    }

    /// One line.
    pub(crate) fn tell(&self) -> String {
        let Tally { killed, stopped, outages, at_work, asked, parked, taken, slowest, in_vain, try_again } =
            &self.tally;
        format!(
            "{}; replicas killed {killed}, stopped and continued {stopped}, PostgreSQL killed {outages}; in flight \
             {at_work}, asked {asked}, parked {parked}; taken over {taken}, the last of them after {slowest:?} at the \
             most (lease {LEASE:?}); steps that ended in vain under a lease that was over {in_vain}; requests told to \
             try again {try_again}",
            self.counts.tell()
        )
    }

    /// The whole life of one store.
    async fn store(&mut self, number: u64, rounds_left: u32) -> Vec<String> {
        let mut seed = Seed(self.seed);
        let mut seed = Seed(seed.number() ^ number.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let rounds = seed.between(3, 6).min(rounds_left.into());
        let (mut life, mut load) = match Life::new(self, number, &mut seed).await {
            Ok(begun) => begun,
            Err(wrong) => return vec![wrong],
        };
        let stop = std::sync::atomic::AtomicBool::new(false);
        let callers = life.callers.clone();
        let lived = async {
            for _ in 0..rounds {
                life.round(self, &mut seed).await?;
            }
            stop.store(true, Ordering::Relaxed);
            callers.hurry.store(true, Ordering::Relaxed);
            Ok::<(), Vec<String>>(())
        };
        let loading = within_life(load.keep_going(&callers, &stop), lived).await;
        if let Err(wrong) = loading {
            return life.keep(wrong);
        }
        let wrong = life.last(self).await;
        self.tally.try_again += life.front.try_again.load(Ordering::Relaxed);
        if wrong.is_empty() {
            let _ = std::fs::remove_dir_all(&life.directory);
            return wrong;
        }
        life.keep(wrong)
    }
}

/// Loads the replicas while they live, and then until every task is over; what is not over by then is found by the verdict.
async fn within_life(
    load: impl Future<Output = ()>,
    lived: impl Future<Output = Result<(), Vec<String>>>,
) -> Result<(), Vec<String>> {
    let mut load = std::pin::pin!(load);
    tokio::select! {
        biased;
        lived = lived => lived?,
        // It ends by being told to.
        () = &mut load => return Ok(()),
    }
    let _ = within(ALL_OVER, load).await;
    Ok(())
}

/// A store, and all that is known of it.
struct Life {
    directory: PathBuf,
    setups: Vec<Setup>,
    servers: Vec<Server>,
    /// How many processes there were.
    processes: u64,
    /// When each of those that are gone was dead.
    deaths: BTreeMap<u64, u64>,
    front: Arc<Front>,
    callers: Callers,
    /// For looking at what the replicas do.
    store: PostgresStore,
    prefix: String,
    kills: Vec<Kill>,
    /// When what each of them left was seen.
    seen: Vec<u64>,
}

/// What happens to a replica.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Harm {
    Killed,
    /// Continued when all that it had was taken over.
    Stopped,
    /// Continued about when its leases end, taken over or not.
    StoppedShortly {
        after: i64,
    },
}

/// When the database is killed, in a round in which it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outage {
    /// The replica goes while the database is away.
    Around,
    /// So many beats later, while the leases of the replica last.
    After(usize),
}

fn schema(seed: u64, name: &str) -> String {
    format!("torture_{seed}_{}_{name}", std::process::id())
}

impl Life {
    async fn new(run: &Replicas, number: u64, seed: &mut Seed) -> Result<(Self, Load), String> {
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

    /// A replica goes; what it had must come to its end at the others; it comes back.
    async fn round(&mut self, run: &mut Replicas, seed: &mut Seed) -> Result<(), Vec<String>> {
        let victim = seed.below(self.servers.len() as u64) as usize;
        let moment = match seed.below(2) {
            0 => Moment::After(Duration::from_millis(seed.between(50, 1_200))),
            _ => Moment::Lines(seed.between(5, 1_000) as usize),
        };
        let harm = match seed.below(8) {
            0..4 => Harm::Killed,
            4..7 => Harm::Stopped,
            _ => Harm::StoppedShortly { after: seed.between(0, 500).cast_signed() },
        };
        let outage = match seed.below(2) {
            0 => Outage::Around,
            _ => Outage::After(seed.between(1, 20) as usize),
        };
        let done = run.counts.rounds + run.counts.idle_rounds;
        let outage = (run.database.is_own() && done % OUTAGE == OUTAGE - 1).then_some(outage);
        self.one_round(run, victim, moment, harm, outage).await.map_err(|mut wrong| {
            wrong.push(format!("in a round of {victim} {harm:?} at {moment:?}, PostgreSQL {outage:?}"));
            wrong
        })
    }

    async fn one_round(
        &mut self,
        run: &mut Replicas,
        victim: usize,
        moment: Moment,
        harm: Harm,
        outage: Option<Outage>,
    ) -> Result<(), Vec<String>> {
        let one = |what: String| vec![what];
        let Setup { side, process, .. } = &self.setups[victim];
        block_in_place(|| wait_for(side, moment, Some(*process)));
        let pid = self.servers[victim].pid();
        let asked = (run.counts.rounds + run.counts.idle_rounds) % 2 == 1;
        self.until_busy(pid, asked).await.map_err(one)?;
        let at = run.pulse.write().await.map_err(one)?;
        if outage == Some(Outage::Around) {
            block_in_place(|| run.database.kill()).map_err(one)?;
        }
        if harm == Harm::Killed {
            if !self.servers[victim].kill() {
                return Err(one("a server ended by itself".to_owned()));
            }
            self.deaths.insert(self.setups[victim].process, clock::now());
        } else {
            self.servers[victim].stop().map_err(one)?;
        }
        self.front.down(victim);
        let mut not_before = at;
        if outage == Some(Outage::Around) {
            not_before = self.recover(run).await.map_err(one)?;
        }

        let (left, mut wrong) = self.see_what_is_left().await.map_err(one)?;
        let all = || left.tasks.iter().flat_map(|(marker, kept)| kept.iter().map(move |kept| (marker, kept)));
        let of_victim = || all().filter(|(_, kept)| kept.held.as_ref().is_some_and(|held| held.is_by(pid)));
        let parked =
            || all().filter(|(_, kept)| matches!(kept.place, Place::ParkedAsking | Place::ParkedSleeping));
        let place = |place| of_victim().filter(|(_, kept)| kept.place == place).count();
        let (asked, mut at_work) = (place(Place::Asking), of_victim().count());
        at_work -= asked;
        let mut taking = Taking {
            victim: of_victim().find_map(|(_, kept)| Some(kept.held.clone()?.worker)).unwrap_or_default(),
            held: of_victim()
                .filter_map(|(_, kept)| Some((kept.id.clone(), kept.held.clone()?.until)))
                .collect(),
            open: of_victim().chain(parked()).map(|(_, kept)| kept.id.clone()).collect(),
            beats: Vec::new(),
            outages: u32::from(outage == Some(Outage::Around)),
        };
        let parked = parked().count();
        let markers: BTreeMap<String, String> =
            of_victim().map(|(marker, kept)| (kept.id.clone(), marker.clone())).collect();

        // Everything that is asked is answered now, so that all of it can end.
        self.callers.hurry.store(true, Ordering::Relaxed);
        let still = taking.held.clone();
        self.until_all_ended(run, victim, harm, outage, &mut taking, &mut not_before).await?;
        self.callers.hurry.store(false, Ordering::Relaxed);

        let until = |id: &String| *taking.held.get(id).or_else(|| still.get(id)).unwrap_or(&0);
        let takeover = Takeover {
            at,
            worker: taking.victim.clone(),
            until: markers.iter().map(|(id, marker)| (marker.clone(), until(id))).collect(),
            not_before,
            beats: std::mem::take(&mut taking.beats),
        };
        let ended = self.snapshot_of(markers.keys()).await.map_err(one)?;
        let last = takeover.last(&ended);
        wrong.extend(takeover.late(&ended));
        self.kills.push(Kill { lines: 0, left, takeover: Some(takeover) });

        let outages = taking.outages;
        println!(
            "torture: {} replica {victim} {}{}, with {at_work} in flight, {asked} asked, {parked} parked; {}",
            self.prefix,
            if harm == Harm::Killed { "killed" } else { "stopped and continued" },
            if outages == 0 { "" } else { ", PostgreSQL killed" },
            match last {
                Some((after, tasks)) => format!("{tasks} taken over, the last after {after:?}"),
                None => "nothing taken over".to_owned(),
            }
        );
        let tally = &mut run.tally;
        tally.outages += outages;
        *if harm == Harm::Killed { &mut tally.killed } else { &mut tally.stopped } += 1;
        (tally.at_work, tally.asked, tally.parked) =
            (tally.at_work + at_work, tally.asked + asked, tally.parked + parked);
        if let Some((after, tasks)) = last {
            (tally.slowest, tally.taken) = (tally.slowest.max(after), tally.taken + tasks);
        }
        let round = if at_work + asked == 0 { &mut run.counts.idle_rounds } else { &mut run.counts.rounds };
        *round += 1;

        if harm == Harm::Killed {
            let (directory, prefix) = (&self.directory, &self.prefix);
            let setup = &mut self.setups[victim];
            let server =
                block_in_place(|| start(run, setup, &mut self.processes, directory, prefix)).map_err(one)?;
            self.front.up(victim, &server.url);
            self.servers[victim] = server;
        }
        if wrong.is_empty() { Ok(()) } else { Err(wrong) }
    }

    /// Waits until a replica holds anything, or a task that asks; and not for ever.
    async fn until_busy(&self, pid: u32, asked: bool) -> Result<(), String> {
        const LOOKS: u32 = 100;
        for _ in 0..LOOKS {
            let live = self.live().await?;
            let is_it = |task: &&Task| {
                let held = Held::of(task).is_some_and(|held| held.is_by(pid));
                held && (!asked || Place::of(task) == Place::Asking)
            };
            if live.values().any(|task| is_it(&task)) {
                return Ok(());
            }
            tokio::time::sleep(BEAT / 5).await;
        }
        Ok(())
    }

    /// Waits until all that was open when the replica went has ended; one that was stopped is continued on the way.
    async fn until_all_ended(
        &mut self,
        run: &mut Replicas,
        victim: usize,
        harm: Harm,
        outage: Option<Outage>,
        taking: &mut Taking,
        not_before: &mut i64,
    ) -> Result<(), Vec<String>> {
        let one = |what: String| vec![what];
        let began = run.pulse.write().await.map_err(one)?;
        // Nothing of it is held by the others before this.
        let leases_end = taking.held.values().copied().max().unwrap_or(began + lease_millis());
        let mut still = harm != Harm::Killed;
        let mut untaken: BTreeSet<String> = taking.held.keys().cloned().collect();
        loop {
            let now = run.pulse.beat().await.map_err(one)?;
            taking.beats.push(now);
            if outage == Some(Outage::After(taking.beats.len())) {
                block_in_place(|| run.database.kill()).map_err(one)?;
                *not_before = self.recover(run).await.map_err(one)?;
                taking.outages += 1;
            }
            let live = self.live().await.map_err(one)?;
            untaken.retain(|id| match live.get(id).and_then(Held::of) {
                // Its renewal may have been on its way when it went.
                Some(held) if held.worker == taking.victim => {
                    taking.held.insert(id.clone(), held.until);
                    true
                }
                _ => false,
            });
            let go_on = match harm {
                Harm::Killed => false,
                Harm::Stopped => untaken.is_empty() && now >= leases_end,
                Harm::StoppedShortly { after } => now >= leases_end + after,
            };
            if still && go_on {
                self.servers[victim].go_on().map_err(one)?;
                self.front.up(victim, &self.servers[victim].url);
                still = false;
            }
            taking.open.retain(|id| live.contains_key(id));
            if taking.open.is_empty() && !still {
                return Ok(());
            }
            if taking.beats.len() > ALL_ENDED {
                let open: Vec<_> = taking.open.iter().map(|id| format!("{:?}", live.get(id))).collect();
                return Err(one(format!("{} beats later it has not ended: {open:#?}", taking.beats.len())));
            }
        }
    }

    /// Starts the database again; when the others may be asked to have taken anything over.
    async fn recover(&self, run: &mut Replicas) -> Result<i64, String> {
        block_in_place(|| run.database.start_again())?;
        // After an outage every replica gives the others one lease to say that they are alive.
        Ok(run.pulse.write().await? + lease_millis())
    }

    /// What the replica left, and what of that should not be so.
    async fn see_what_is_left(&mut self) -> Result<(Snapshot, Vec<String>), String> {
        let began = clock::now();
        let left = self.look().await?;
        self.seen.push(clock::now());
        let lines = side::read(&self.setups[0].side);
        let wrong = lost(&lock(&self.callers.ledger), &lines, &left, began);
        Ok((left, wrong))
    }

    async fn look(&self) -> Result<Snapshot, String> {
        patiently(|| Snapshot::of(&self.store)).await
    }

    async fn snapshot_of(&self, ids: impl Iterator<Item = &String>) -> Result<Snapshot, String> {
        let mut tasks = Vec::new();
        for id in ids {
            let id = id.parse().map_err(|_| format!("{id} is no id"))?;
            tasks.extend(again(|| self.store.get(id)).await.map_err(|error| chain(&error))?);
        }
        patiently(|| Snapshot::of_these(&self.store, tasks.clone())).await
    }

    /// All tasks that are not over, by their ids.
    async fn live(&self) -> Result<BTreeMap<String, Task>, String> {
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
    async fn last(&mut self, run: &mut Replicas) -> Vec<String> {
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
    fn keep(&self, mut wrong: Vec<String>) -> Vec<String> {
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

/// What has to be taken over, and how far that is.
struct Taking {
    /// The worker that went.
    victim: String,
    /// When its lease of each task ends, by the task's id.
    held: BTreeMap<String, i64>,
    /// What was not over when it went, and is not over yet.
    open: BTreeSet<String>,
    beats: Vec<i64>,
    /// How often the database was killed meanwhile.
    outages: u32,
}

fn lease_millis() -> i64 {
    i64::try_from(LEASE.as_millis()).unwrap_or(i64::MAX)
}

/// A further process, with a side database of its own: one that is stopped in mid-write must not lock the others out.
fn start(
    run: &Replicas,
    setup: &mut Setup,
    processes: &mut u64,
    directory: &std::path::Path,
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
