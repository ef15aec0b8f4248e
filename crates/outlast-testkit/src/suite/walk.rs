//! A long random life of many tasks. After each step, what the store answered is what follows from the tasks that it
//! held: it hands out exactly what is ready and allowed, sweeps exactly what is due, and counts what is there.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use outlast_core::{
    Applied, By, Change, ClaimRequest, Claimed, Created, Event, Filter, Head, Held, NewTask, Owner, Renewal,
    Spec, Status, Store, TakenUp, Task, TaskId, Timestamp, Token, ToolVersion,
};
use serde_json::json;

use crate::{Harness, MemoryHarness, story::*};

const STEPS: u32 = 600;
const OWNERS: [&str; 3] = ["alice", "bob", "carol"];
const VERSIONS: [&str; 2] = ["", "2"];

pub async fn a_random_life_keeps_every_promise(on: &dyn Harness) {
    // Three lives that are the same each time, and one that nobody has seen yet.
    for seed in [1, 2, 3, crate::crash::seed()] {
        println!("seed {seed}");
        let mut life = Life { on, store: on.open().await, dice: Dice(seed), keys: 0 };
        for step in 0..STEPS {
            println!("step {step}");
            life.step().await;
            life.check_counts().await;
        }
    }
}

/// Numbers that follow from a seed (splitmix64).
struct Dice(u64);

impl Dice {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        usize::try_from((x ^ (x >> 31)) % limit as u64).unwrap()
    }

    fn once_in(&mut self, times: usize) -> bool {
        self.below(times) == 0
    }

    fn pick<'a, T>(&mut self, from: &'a [T]) -> Option<&'a T> {
        if from.is_empty() { None } else { from.get(self.below(from.len())) }
    }
}

struct Life<'a> {
    on: &'a dyn Harness,
    store: Arc<dyn Store>,
    dice: Dice,
    keys: u32,
}

impl Life<'_> {
    /// All tasks, oldest first, and the store's time.
    async fn tasks(&self) -> (Vec<Task>, Timestamp) {
        let page = self.store.list(Filter::default(), None, 100_000).await.unwrap();
        assert_eq!(page.next, None);
        (page.tasks.into_iter().rev().collect(), page.now)
    }

    async fn step(&mut self) {
        match self.dice.below(20) {
            0..3 => self.create().await,
            3..9 => self.work().await,
            9..12 => self.call().await,
            12..15 => self.claim().await,
            15 => self.renew().await,
            16..18 => self.sweep().await,
            18 if self.dice.once_in(8) => self.reopen().await,
            _ => {
                let spans = [Duration::ZERO, MOMENT, LEASE / 3, LEASE, LEASE, MINUTE * 2, HOUR];
                let span = *self.dice.pick(&spans).unwrap();
                self.on.advance(span).await;
            }
        }
    }

    async fn create(&mut self) {
        let base = if self.dice.once_in(3) { run_once() } else { rerun() };
        let spec = Spec {
            version: (*self.dice.pick(&VERSIONS).unwrap()).into(),
            ttl: (!self.dice.once_in(8)).then_some(HOUR),
            deadline: self.dice.once_in(4).then_some(MINUTE * 10),
            max_attempts: 3,
            ..base
        };
        let keyed = self.dice.once_in(3);
        let key = format!("key {}", self.dice.below(5));
        let plain = if keyed { new_keyed(&key, 1) } else { new_task() };
        let (before, _) = self.tasks().await;
        let failed: Vec<_> = before.iter().filter(|task| task.status() == Status::Failed).collect();
        let takes_up = match self.dice.pick(&failed) {
            Some(failed) if self.dice.once_in(3) => TakenUp::of(failed, self.store.entries(failed.id).await),
            _ => None,
        };
        let new = NewTask {
            takes_up,
            owner: owner(self.dice.pick(&OWNERS).unwrap()),
            spec: spec.into(),
            max_open: 12,
            ..plain
        };
        let lease = self.dice.once_in(2).then(|| lease_for("one"));

        let open = before.iter().filter(|task| task.owner == new.owner && !task.is_final()).count();
        let created = self.store.create(new.clone(), lease.clone()).await.unwrap();
        match created {
            Created::Created { task, token } => {
                assert!(open < 12);
                assert_eq!(token.is_some(), lease.is_some());
                assert_eq!(self.store.task(new.id).await, task);
                assert_eq!(self.store.entries(new.id).await, new.journal());
            }
            Created::Existing(task) => assert!(keyed && before.contains(&task)),
            Created::KeySpent => assert!(keyed),
            Created::OverQuota => assert!(open >= 12),
            Created::KeyReused => panic!("equal keys have equal requests here"),
        }
    }

    /// A worker, or one that lost its lease, does something.
    async fn work(&mut self) {
        let (tasks, _) = self.tasks().await;
        let claimed: Vec<_> = tasks.into_iter().filter(Task::was_claimed).collect();
        let Some(task) = self.dice.pick(&claimed).cloned() else { return };
        self.keys += 1;
        let key = if self.dice.once_in(4) { "again".to_owned() } else { format!("k{}", self.keys) };
        let ends = task.cancel_requested() && self.dice.once_in(2);
        let events = match self.dice.below(10) {
            _ if ends => vec![Event::ConfirmCancel],
            0 | 1 => vec![finish(&format!("s {key}"), &json!(1))],
            2 => vec![ask(&format!("q {key}"), "Sure?")],
            3 => vec![ask(&format!("q {key}"), "Sure?"), park(task.seq + 1)],
            4 => vec![timer(&format!("t {key}"), MINUTE), park(task.seq + 1)],
            5 => vec![park(self.dice.below(10) as u64)],
            6 => vec![Event::Release { began: self.dice.once_in(2) }],
            7 => vec![Event::SetMessage(Some(key))],
            8 => vec![Event::RunAlone],
            _ if self.dice.once_in(4) => vec![fail("no")],
            _ => vec![complete(&json!(key))],
        };
        let stale = self.dice.once_in(5);
        let token = if stale { Token(task.token.0 - 1) } else { task.token };
        let applied = self.store.work(task.id, token, events).await;
        if stale {
            assert_eq!(applied, Applied::Fenced);
        }
        self.check_applied(&task, applied).await;
    }

    /// A caller answers or cancels; now and then it is the wrong one.
    async fn call(&mut self) {
        let (tasks, _) = self.tasks().await;
        let Some(task) = self.dice.pick(&tasks).cloned() else { return };
        let questions: Vec<_> =
            task.live().map(|live| live.questions.keys().cloned().collect()).unwrap_or_default();
        let event = match self.dice.pick(&questions) {
            Some(key) if !self.dice.once_in(8) => Event::Answer { key: key.clone(), answer: accepted("yes") },
            _ if self.dice.once_in(3) => Event::Cancel,
            _ => answer("never asked", "yes"),
        };
        let foreign = self.dice.once_in(6);
        let by = By::Owner(if foreign { owner("mallory") } else { task.owner.clone() });
        let applied = self.store.tell(task.id, by, vec![event]).await;
        assert_eq!(applied == Applied::NotFound, foreign);
        self.check_applied(&task, applied).await;
    }

    async fn check_applied(&self, before: &Task, applied: Applied) {
        let now = self.store.task(before.id).await;
        match applied {
            Applied::Applied(task) => {
                assert!(!before.is_final() && task.revision >= before.revision && task.seq >= before.seq);
                assert_eq!(now, task);
            }
            Applied::Absorbed(task) => assert!(task == now && now == *before),
            Applied::Fenced | Applied::NotFound | Applied::Illegal(_) => assert_eq!(now, *before),
        }
        let entries = self.store.entries(before.id).await;
        assert!(entries.iter().map(|entry| entry.seq).eq(1..=now.seq));
    }

    async fn claim(&mut self) {
        let versions: Vec<_> = VERSIONS.into_iter().filter(|_| !self.dice.once_in(4)).collect();
        let request = ClaimRequest {
            serves: versions.iter().map(|version| ToolVersion::new(TOOL, *version)).collect(),
            per_owner: 1 + u32::try_from(self.dice.below(4)).unwrap(),
            max: u32::try_from(self.dice.below(6)).unwrap(),
            ..claim_by("one", 0)
        };
        let (before, now) = self.tasks().await;
        let claimed = self.store.claim(request.clone()).await.unwrap();
        let (after, _) = self.tasks().await;
        let expected = Expected::of(before, now, &request);

        let mut taken: BTreeMap<Owner, Vec<TaskId>> = BTreeMap::new();
        for Claimed { task, token, .. } in &claimed {
            taken.entry(task.owner.clone()).or_default().push(task.id);
            assert_eq!((*token, task.token), (expected.tokens[&task.id].next(), *token));
            assert_eq!(task.lease().unwrap().worker, request.worker);
        }
        let possible: usize = expected.possible.values().map(Vec::len).sum();
        assert_eq!(claimed.len(), possible.min(request.max as usize), "{:?}", expected.possible);
        let least = |owner: &Owner| taken.get(owner).map_or(0, Vec::len);
        for (owner, ids) in &taken {
            let possible = &expected.possible[owner];
            assert_eq!(*ids, possible[..ids.len()], "an owner's tasks are taken in their order");
            for (other, possible) in &expected.possible {
                let served = least(other) + 1 >= ids.len() || least(other) == possible.len();
                assert!(served, "owners are served in turn");
            }
        }
        // Leases that ran out are ended, taken up again or not.
        let handed: BTreeSet<_> = claimed.iter().map(|claimed| claimed.task.id).collect();
        for task in
            after.iter().filter(|task| expected.ended.contains_key(&task.id) && !handed.contains(&task.id))
        {
            let ended = &expected.ended[&task.id];
            assert_eq!(
                (task.status(), task.lease(), task.lost.len()),
                (ended.status(), None, ended.lost.len())
            );
        }
    }

    async fn renew(&mut self) {
        let (tasks, _) = self.tasks().await;
        let held: Vec<_> = tasks
            .iter()
            .map(|task| {
                let stale = task.token > Token(0) && self.dice.once_in(4);
                let token = if stale { Token(task.token.0 - 1) } else { task.token };
                Held { id: task.id, token }
            })
            .collect();
        let renewals = self.store.renew(worker("one"), held.clone(), LEASE).await.unwrap();
        assert_eq!(renewals.len(), held.len());
        for ((task, held), renewal) in tasks.iter().zip(held).zip(renewals) {
            let kept = Renewal::Kept { inbox_seq: task.inbox_seq, cancel: task.cancel_requested() };
            let is_held = task.lease().is_some() && task.token == held.token;
            assert_eq!(renewal, if is_held { kept } else { Renewal::Lost });
        }
    }

    async fn sweep(&mut self) {
        let max = 1 + u32::try_from(self.dice.below(10)).unwrap();
        let (before, now) = self.tasks().await;
        let due = before.iter().filter(|task| task.sweep(now).is_some()).count();
        let swept = self.store.sweep(max).await.unwrap();
        assert_eq!(swept.done as usize, due.min(max as usize));
        let (after, now) = self.tasks().await;
        if due > max as usize {
            assert_eq!(swept.next_due, Some(Duration::ZERO));
        } else {
            let next = after.iter().filter_map(Task::next_deadline).min().map(|at| at.since(now));
            // A store may come back earlier, for keys whose time is over; never later.
            assert!(
                next.is_none()
                    || swept.next_due.is_some_and(|due| Some(due) <= next.map(|next| next + MINUTE))
            );
        }
    }

    async fn reopen(&mut self) {
        let (before, _) = self.tasks().await;
        // The harness is handed the only handle.
        let meanwhile = MemoryHarness::new().open().await;
        let store = std::mem::replace(&mut self.store, meanwhile);
        self.store = self.on.reopen(store).await;
        let (after, _) = self.tasks().await;
        assert_eq!(before.len(), after.len());
        for (was, is) in before.iter().zip(&after) {
            if was.lease().is_none() {
                assert_eq!(was, is);
            } else {
                assert!(was.id == is.id && is.token == was.token && is.seq >= was.seq);
            }
        }
    }

    async fn check_counts(&self) {
        let (tasks, _) = self.tasks().await;
        let counts = self.store.counts().await.unwrap();
        for status in Status::ALL {
            let there = tasks.iter().filter(|task| task.status() == status).count();
            assert_eq!(counts.of(status), there as u64, "{}", status.as_str());
        }
        assert_eq!(counts.leased, tasks.iter().filter(|task| task.lease().is_some()).count() as u64);
        let heads = self.store.heads(tasks.iter().map(|task| task.id).collect()).await.unwrap();
        let head = |task: &Task| Some(Head { revision: task.revision, is_final: task.is_final() });
        assert!(heads.into_iter().eq(tasks.iter().map(head)));
    }
}

/// What a claim may hand out, told from the tasks that were there before it.
struct Expected {
    /// Each owner's tasks that could be claimed were there room for all, in their order.
    possible: BTreeMap<Owner, Vec<TaskId>>,
    /// The tasks whose lease ran out, after that.
    ended: BTreeMap<TaskId, Task>,
    tokens: BTreeMap<TaskId, Token>,
}

impl Expected {
    fn of(mut tasks: Vec<Task>, now: Timestamp, request: &ClaimRequest) -> Self {
        let mut ended = BTreeMap::new();
        for task in &mut tasks {
            if task.lease().is_some_and(|lease| lease.until <= now) {
                let Ok(Change::To { task: after, .. }) = task.apply(&Event::LoseLease, None, now) else {
                    panic!("a lease that ran out can be ended")
                };
                *task = *after;
                ended.insert(task.id, task.clone());
            }
        }
        let tokens = tasks.iter().map(|task| (task.id, task.token)).collect();
        let mut running: BTreeMap<Owner, u32> = BTreeMap::new();
        for task in tasks.iter().filter(|task| task.holds_slot()) {
            *running.entry(task.owner.clone()).or_default() += 1;
        }
        let mut ready: Vec<_> = tasks
            .iter()
            .filter(|task| {
                let served = ToolVersion::new(&*task.spec.tool, &*task.spec.version);
                task.lease().is_none() && request.serves.contains(&served)
            })
            .filter_map(|task| Some((task.ready_at().filter(|at| *at <= now)?, task)))
            .collect();
        // A stable sort: what became ready at one instant goes in the order of creation.
        ready.sort_by_key(|(at, _)| *at);
        let mut possible: BTreeMap<Owner, Vec<TaskId>> = BTreeMap::new();
        for (_, task) in ready {
            let running = running.entry(task.owner.clone()).or_default();
            if *running < request.per_owner {
                possible.entry(task.owner.clone()).or_default().push(task.id);
                // Work that waits for an answer takes no place.
                *running += u32::from(task.status() == Status::Working);
            }
        }
        Self { possible, ended, tokens }
    }
}
