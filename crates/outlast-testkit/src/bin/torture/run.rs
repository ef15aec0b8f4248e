//! A run: one store after the other, each with several servers that are killed under load, and a last one under which
//! everything comes to its end.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    process::Command,
    sync::Arc,
    time::Duration,
};

use outlast_testkit::Seed;

use crate::{
    disk::{self, Files, Trace},
    load::{Load, Moment, lock},
    process::{Home, Server, Setup, Traced, tail},
    side::{self, What},
    snapshot::{Opened, Place, Snapshot},
    verdict::{History, Kill, lost},
};

/// One round in so many is traced, because that is slow.
const TRACED: u32 = 4;
/// At how many moments of a traced round the power is cut, beside the kill itself.
const CUTS: u64 = 3;
/// The source of the tracing library.
const TRACE: &str = include_str!("../../../trace/trace.c");

/// What is counted.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) rounds: u32,
    pub(crate) idle_rounds: u32,
    tasks: usize,
    steps: usize,
    begun: usize,
    answers: usize,
    cancels: usize,
    images: u32,
    pub(crate) places: BTreeMap<Place, usize>,
    pub(crate) effects: usize,
    pub(crate) tries: u64,
}

impl Counts {
    /// One line.
    pub(crate) fn tell(&self) -> String {
        let places: Vec<_> = self.places.iter().map(|(place, count)| format!("{place:?} {count}")).collect();
        format!(
            "tasks {}, steps {} (begun {}), effects {} (tried {}), answers {}, cancels {}, tasks at the kills: {}; \
             images {}{}",
            self.tasks,
            self.steps,
            self.begun,
            self.effects,
            self.tries,
            self.answers,
            self.cancels,
            places.join(", "),
            self.images,
            if self.idle_rounds == 0 {
                String::new()
            } else {
                format!(", {} idle rounds not counted", self.idle_rounds)
            },
        )
    }
}

/// A run.
pub(crate) struct Torture {
    directory: PathBuf,
    seed: u64,
    /// Records the writes of a server, where that is possible.
    library: Option<PathBuf>,
    pub(crate) counts: Counts,
}

impl Torture {
    /// # Errors
    /// When the directory cannot be made, or the tracing library cannot be built.
    pub(crate) fn new(directory: PathBuf, seed: u64) -> anyhow::Result<Self> {
        std::fs::create_dir_all(&directory)?;
        // As the kernel names it, for the trace to know its files by.
        let directory = directory.canonicalize()?;
        let library = if cfg!(target_os = "linux") {
            Some(build_trace(&directory)?)
        } else {
            println!("torture: writes can be traced on Linux alone; no power is cut here");
            None
        };
        Ok(Self { directory, seed, library, counts: Counts::default() })
    }

    /// Goes on until so many rounds were done, or something is wrong: that is returned.
    pub(crate) async fn rounds(&mut self, rounds: u32) -> Vec<String> {
        for number in 0.. {
            let left = rounds.saturating_sub(self.counts.rounds);
            if left == 0 {
                break;
            }
            let wrong = self.store(number, left).await;
            let Counts { rounds: done, tasks, steps, images, .. } = &self.counts;
            println!(
                "torture: store {number}, {done} of {rounds} rounds: tasks {tasks}, steps {steps}, images {images}"
            );
            if !wrong.is_empty() {
                return wrong;
            }
            if self.counts.idle_rounds > 10 + rounds / 4 {
                return vec!["there is hardly anything in flight when the server is killed".to_owned()];
            }
        }
        self.effects_of_all()
    }

    /// The side database is one over the whole run.
    fn effects_of_all(&mut self) -> Vec<String> {
        let effects = side::effects(&self.effects(), "");
        (self.counts.effects, self.counts.tries) = (effects.by_step.len(), effects.tries);
        History { effects, ..History::default() }.violations()
    }

    fn effects(&self) -> PathBuf {
        self.directory.join("effects.db")
    }

    /// The whole life of one store.
    async fn store(&mut self, number: u64, rounds_left: u32) -> Vec<String> {
        let mut seed = Seed(self.seed);
        let mut seed = Seed(seed.number() ^ number.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let mut life = Life::new(self, number, &mut seed);
        let kills = seed.between(3, 5).min(rounds_left.into());
        for _ in 0..kills {
            let traced = (self.counts.rounds + self.counts.idle_rounds) % TRACED == TRACED - 1;
            if let Err(wrong) = life.round(self, &mut seed, traced).await {
                return life.keep(wrong);
            }
        }
        match life.last(self).await {
            Ok(()) => {
                let _ = std::fs::remove_dir_all(&life.directory);
                Vec::new()
            }
            Err(wrong) => life.keep(wrong),
        }
    }
}

/// A store, and all that is known of it.
struct Life {
    directory: PathBuf,
    setup: Setup,
    load: Load,
    kills: Vec<Kill>,
}

impl Life {
    fn new(torture: &Torture, number: u64, seed: &mut Seed) -> Self {
        let directory = torture.directory.join(format!("store-{number}"));
        let _ = std::fs::remove_dir_all(&directory);
        std::fs::create_dir_all(directory.join("store")).expect("a directory can be made");
        let setup = Setup {
            home: Home::File(directory.join("store/tasks.db")),
            side: directory.join("side"),
            effects: torture.effects(),
            process: 0,
            park_after_ms: seed.pick(&[0, 0, 30, 30_000]),
            lease_ms: seed.pick(&[300, 1_000, 30_000]),
            slots: seed.pick(&[3, 12, 64]),
            database: None,
        };
        let load = Load {
            ledger: Arc::default(),
            prefix: format!("{number}-"),
            seed: Seed(seed.number()),
            open: seed.between(16, 64) as usize,
            created: 0,
        };
        Self { directory, setup, load, kills: Vec::new() }
    }

    fn store(&self) -> PathBuf {
        self.directory.join("store")
    }

    fn log(&self) -> PathBuf {
        self.directory.join("log")
    }

    /// One server, its load, its death, and what it left.
    async fn round(
        &mut self,
        torture: &mut Torture,
        seed: &mut Seed,
        traced: bool,
    ) -> Result<(), Vec<String>> {
        let moment = match seed.below(2) {
            0 => Moment::After(Duration::from_millis(seed.between(50, 1_200))),
            _ => Moment::Lines(seed.between(5, 1_500) as usize),
        };
        if seed.one_in(4) {
            self.start_in_vain(Duration::from_millis(seed.below(30))).await?;
        }
        let trace_file = self.directory.join("trace");
        let _ = std::fs::remove_file(&trace_file);
        let traced = torture.library.as_deref().filter(|_| traced);
        let before = traced.map(|_| disk::read(&self.store()));
        let server = self.start(traced.map(|library| (library, &*trace_file)))?;
        let mut wrong = self.load.until_killed(server, &self.setup.side, moment).await;
        lock(&self.load.ledger).killed(crate::clock::now(), self.setup.process);
        if let Some(before) = before {
            wrong.extend(self.cut_power(&before, &trace_file, seed, &mut torture.counts).await?);
        }
        wrong.extend(self.see_what_is_left().await?);

        let mut in_flight = 0;
        for kept in self.kills.last().into_iter().flat_map(|kill| kill.left.tasks.values()).flatten() {
            *torture.counts.places.entry(kept.place).or_default() += 1;
            in_flight += usize::from(!kept.place.is_final());
        }
        // A kill that found nothing in flight shows nothing.
        if in_flight == 0 {
            torture.counts.idle_rounds += 1;
        } else {
            torture.counts.rounds += 1;
        }
        if wrong.is_empty() { Ok(()) } else { Err(wrong) }
    }

    /// A server that is killed while it opens the store, or has just begun to work.
    async fn start_in_vain(&mut self, after: Duration) -> Result<(), Vec<String>> {
        self.setup.process += 1;
        Server::start_in_vain(&self.setup, &self.log(), after);
        let wrong = self.see_what_is_left().await?;
        if wrong.is_empty() { Ok(()) } else { Err(wrong) }
    }

    /// What the killed server left, and what of that should not be so.
    async fn see_what_is_left(&mut self) -> Result<Vec<String>, Vec<String>> {
        let left = self.look(Opened::AsFront).await.map_err(|error| vec![error])?;
        let lines = side::read(&self.setup.side);
        let wrong = lost(&lock(&self.load.ledger), &lines, &left, u64::MAX);
        self.kills.push(Kill { lines: lines.len(), left, takeover: None });
        Ok(wrong)
    }

    /// A server that is left to bring everything to its end, and the verdict over all of it.
    async fn last(&mut self, torture: &mut Torture) -> Result<(), Vec<String>> {
        let server = self.start(None)?;
        let mut wrong = self.load.until_over(server, &self.store().join("tasks.db")).await;
        let end = self.look(Opened::AsFront).await.map_err(|error| vec![error])?;
        let history = History {
            ledger: lock(&self.load.ledger).clone(),
            side: side::read(&self.setup.side),
            kills: std::mem::take(&mut self.kills),
            effects: side::effects(&self.setup.effects, &self.load.prefix),
            replicas: None,
            end,
        };
        wrong.extend(history.violations());
        torture.counts.add(&history);
        if wrong.is_empty() { Ok(()) } else { Err(wrong) }
    }

    fn start(&mut self, traced: Option<(&Path, &Path)>) -> Result<Server, Vec<String>> {
        self.setup.process += 1;
        let store = self.store();
        let traced = traced.map(|(library, to)| Traced { library, of: &store, to });
        Server::start(&self.setup, traced.as_ref(), &self.log()).map_err(|error| vec![error])
    }

    /// What the store holds: a copy is looked at, so that looking changes nothing for the next server.
    async fn look(&self, opened: Opened) -> Result<Snapshot, String> {
        self.look_at(&disk::read(&self.store()), opened).await
    }

    async fn look_at(&self, files: &Files, opened: Opened) -> Result<Snapshot, String> {
        let copy = self.directory.join("copy");
        disk::write(files, &copy);
        Snapshot::read(&copy.join("tasks.db"), opened).await
    }

    /// Cuts the power at several moments of the server's life, the last of them the kill; each store that this leaves
    /// must open, and hold what was acknowledged by then. The next server goes on with the last one.
    async fn cut_power(
        &self,
        before: &Files,
        trace: &Path,
        seed: &mut Seed,
        counts: &mut Counts,
    ) -> Result<Vec<String>, Vec<String>> {
        let bytes = std::fs::read(trace).map_err(|error| vec![format!("there is no trace: {error}")])?;
        let trace = Trace::read(&bytes, &self.store()).map_err(|error| vec![error])?;
        let lines = side::read(&self.setup.side);
        let mut wrong = Vec::new();
        let all = trace.0.len();
        let cuts: Vec<_> = (0..CUTS).map(|_| seed.below(all as u64 + 1) as usize).chain([all]).collect();
        let mut last = before.clone();
        for cut in cuts {
            for keep in [None, Some(Seed(seed.number()))] {
                let how = if keep.is_some() { "some" } else { "none" };
                last = trace.cut(before, cut, keep);
                counts.images += 1;
                let lost = match self.look_at(&last, Opened::AsRuntime).await {
                    Ok(left) => lost(&lock(&self.load.ledger), &lines, &left, trace.time(cut)),
                    Err(error) => vec![error],
                };
                let place =
                    format!("power cut after record {cut} of {all}, {how} of the unsynced writes kept");
                wrong.extend(lost.into_iter().map(|what| format!("{place}: {what}")));
            }
        }
        disk::write(&last, &self.store());
        Ok(wrong)
    }

    /// Leaves everything where it can be looked at.
    fn keep(&self, mut wrong: Vec<String>) -> Vec<String> {
        let ledger = serde_json::to_string_pretty(&*lock(&self.load.ledger)).unwrap_or_default();
        let _ = std::fs::write(self.directory.join("ledger.json"), ledger);
        wrong.push(format!("all of it is kept in {}; set up as {:?}", self.directory.display(), self.setup));
        let said = tail(&self.log(), 0);
        if !said.is_empty() {
            wrong.push(format!("the server said: {said}"));
        }
        wrong
    }
}

impl Counts {
    pub(crate) fn add(&mut self, history: &History) {
        let tasks = &history.ledger.tasks;
        self.tasks +=
            tasks.values().filter(|task| task.id().is_some() || task.ended_inline().is_some()).count();
        self.answers += tasks.values().map(|task| task.acknowledged().len()).sum::<usize>();
        self.cancels += tasks.values().filter(|task| task.cancel().1.is_some()).count();
        self.begun += history.side.iter().filter(|line| matches!(line.what, What::Begin { .. })).count();
        self.steps += history.end.tasks.values().flatten().map(|kept| kept.steps.len()).sum::<usize>();
        self.effects += history.effects.by_step.len();
        self.tries += history.effects.tries;
    }
}

fn build_trace(directory: &Path) -> anyhow::Result<PathBuf> {
    let (source, library) = (directory.join("trace.c"), directory.join("trace.so"));
    std::fs::write(&source, TRACE)?;
    let built = Command::new("cc")
        .args(["-shared", "-fPIC", "-O1", "-o"])
        .args([&library, &source])
        .args(["-ldl", "-lpthread"])
        .status();
    match built {
        Ok(status) if status.success() => Ok(library),
        Ok(status) => anyhow::bail!("cc could not build the library that traces writes: {status}"),
        Err(error) => anyhow::bail!(
            "a C compiler is needed to trace what the server writes, and `cc` does not start ({error}); install one \
             and run this again"
        ),
    }
}
