//! A round: a replica goes, and what it had comes to its end at the others.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::atomic::Ordering,
    time::Duration,
};

use outlast_core::Task;
use outlast_testkit::Seed;
use tokio::task::block_in_place;

use super::{
    Replicas, lease_millis,
    life::{Life, start},
};
use crate::{
    clock,
    load::{Moment, wait_for},
    process::Setup,
    snapshot::{Held, Place},
    verdict::{BEAT, Kill, Takeover},
};

/// In one round of so many the database is killed as well.
const OUTAGE: u32 = 5;
/// Far more beats than it takes until all that a replica had is over.
const ALL_ENDED: usize = 2_400;

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

impl Life {
    /// A replica goes; what it had must come to its end at the others; it comes back.
    pub(super) async fn round(&mut self, run: &mut Replicas, seed: &mut Seed) -> Result<(), Vec<String>> {
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
}
