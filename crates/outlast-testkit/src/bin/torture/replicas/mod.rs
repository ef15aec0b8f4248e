//! Many servers on one PostgreSQL: one after the other is killed, or stopped until its leases are over and then continued,
//! and the others take over what it had. A store has a [`life`] of several [`round`]s.

mod life;
mod round;

use std::{path::PathBuf, sync::atomic::Ordering, time::Duration};

use outlast_testkit::Seed;

use self::life::Life;
use crate::{
    database::{Database, Pulse},
    load::{ALL_OVER, within},
    run::Counts,
    side,
    verdict::History,
};

/// How long a replica may be silent: short, so that rounds are.
const LEASE: Duration = Duration::from_secs(2);
/// How many more rounds there may be for what was not hit in those that were wanted.
const MORE: u32 = 10;

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

fn schema(seed: u64, name: &str) -> String {
    format!("torture_{seed}_{}_{name}", std::process::id())
}

fn lease_millis() -> i64 {
    i64::try_from(LEASE.as_millis()).unwrap_or(i64::MAX)
}
