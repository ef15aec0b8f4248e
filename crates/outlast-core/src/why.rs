//! Why a task is where it is: what it waits for, as far as its store knows. Pure.

use crate::{InputKey, Run, Status, StepKey, Task, Timestamp, ToolVersion, WorkerId, WorkerSeen};

/// Something that a task waits for.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Cause {
    /// Nothing: it has ended.
    Ended(Status),
    /// A worker has it and works.
    Running {
        /// That worker.
        worker: WorkerId,
        /// When its lease ends, unless it is renewed.
        until: Timestamp,
    },
    /// Its worker has not been heard of since the lease ran out; another one takes it over at its next claim.
    LeaseRanOut {
        /// The worker that had it.
        worker: WorkerId,
        /// When the lease ran out.
        at: Timestamp,
    },
    /// Answers to these questions.
    Answers(Vec<InputKey>),
    /// A timer of the work, or the end of a time that it gave an answer.
    Timer {
        /// The timer; none where the work only asked to come back.
        key: Option<StepKey>,
        /// When it is due.
        at: Timestamp,
    },
    /// The end of a pause between two attempts.
    Pause {
        /// When it is over.
        until: Timestamp,
    },
    /// A worker that serves its tool in its version: those that there are do not.
    Unserved {
        /// What it needs.
        needs: ToolVersion,
        /// The versions of the tool that are served.
        served: Vec<String>,
    },
    /// The end of other work of its owner, of which as much runs as is allowed.
    OwnersLimit {
        /// How many of the owner's tasks run.
        running: u32,
        /// How many may.
        limit: u32,
    },
    /// A worker with room.
    Worker {
        /// Since when it is ready.
        since: Timestamp,
        /// Whether the worker may have nothing else to do: the task was lost with its workers before.
        alone: bool,
    },
}

impl Task {
    /// What the task waits for at `now`, the first thing first. `workers` are those of its store, and `running` is how many
    /// tasks of its owner hold a place.
    ///
    /// ```
    /// # use outlast_core::*;
    /// let new = NewTask::new(TaskId::from_bytes([1; 16]), Owner::anonymous(), Spec::new("report"), Call::new(Payload::null()));
    /// let now = Timestamp::from_millis(0);
    /// let task = Task::create(&new, now);
    /// let needs = ToolVersion::new("report", "");
    /// assert_eq!(task.causes(&[], 0, now), [Cause::Unserved { needs, served: vec![] }]);
    /// ```
    #[must_use]
    pub fn causes(&self, workers: &[WorkerSeen], running: u32, now: Timestamp) -> Vec<Cause> {
        let Some(live) = self.live() else { return vec![Cause::Ended(self.status())] };
        let asked = || {
            let keys: Vec<InputKey> = live.questions.keys().cloned().collect();
            (!keys.is_empty()).then_some(Cause::Answers(keys))
        };
        let first = match (&live.run, self.ready_at()) {
            (Run::Leased(lease), _) if lease.until <= now => {
                Some(Cause::LeaseRanOut { worker: lease.worker.clone(), at: lease.until })
            }
            (Run::Leased(lease), _) => {
                let running = Cause::Running { worker: lease.worker.clone(), until: lease.until };
                return std::iter::once(running).chain(asked()).collect();
            }
            (_, Some(since)) if since <= now => Some(self.ready(workers, running, since)),
            (Run::Queued { not_before }, _) => Some(Cause::Pause { until: *not_before }),
            (Run::Parked { wake, .. }, _) => {
                let timers = live.timers.iter().map(|(key, at)| (*at, Some(key.clone())));
                let next = timers.chain(wake.map(|at| (at, None))).min();
                let timer = next.map(|(at, key)| Cause::Timer { key, at });
                // Whichever comes first; an answer is the better news.
                return asked().into_iter().chain(timer).collect();
            }
        };
        first.into_iter().collect()
    }

    /// Why nobody has taken up a task that is ready.
    fn ready(&self, workers: &[WorkerSeen], running: u32, since: Timestamp) -> Cause {
        let needs = ToolVersion::new(&*self.spec.tool, &*self.spec.version);
        let mut serving = workers.iter().filter(|seen| seen.serves.contains(&needs)).peekable();
        if serving.peek().is_none() {
            let all = workers.iter().flat_map(|seen| seen.serves.iter());
            let mut served: Vec<String> =
                all.filter(|served| served.tool == needs.tool).map(|served| served.version.clone()).collect();
            served.sort_unstable();
            served.dedup();
            return Cause::Unserved { needs, served };
        }
        let limit = serving.map(|seen| seen.per_owner).max().unwrap_or(u32::MAX);
        // Work that asks takes no place, and is handed out all the same.
        if running >= limit && self.status() == Status::Working {
            return Cause::OwnersLimit { running, limit };
        }
        Cause::Worker { since, alone: self.is_suspect() }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::json;

    use super::*;
    use crate::{
        Asks, By, Call, Event, NewTask, Owner, Payload, Question, Recovery, Spec, TaskId, Token, Wake,
    };

    const SECOND: Duration = Duration::from_secs(1);

    fn at(seconds: u64) -> Timestamp {
        Timestamp::from_millis(0) + SECOND * u32::try_from(seconds).unwrap()
    }

    fn task() -> Task {
        let spec = Spec { asks: Asks::all(), recovery: Recovery::Rerun, ..Spec::new("report") };
        let id = TaskId::from_bytes([1; 16]);
        Task::create(&NewTask::new(id, Owner::new("ann"), spec, Call::new(Payload::null())), at(0))
    }

    fn then(task: &Task, by: &By, events: &[Event], now: Timestamp) -> Task {
        let known = |_: &StepKey| Ok::<_, std::convert::Infallible>(None);
        match task.decide(by, events, now, known) {
            Ok(crate::Verdict::Write(decision)) => decision.task,
            other => panic!("{other:?}"),
        }
    }

    fn leased() -> Task {
        let claim = Event::Claim { worker: WorkerId::new("w"), lease: SECOND * 30 };
        then(&task(), &By::Store, &[claim], at(0))
    }

    fn worked(task: &Task, events: &[Event]) -> Task {
        then(task, &By::Lease(Token(1)), events, at(1))
    }

    fn ask(key: &str) -> Event {
        let params = json!({ "mode": "form", "message": "?", "requestedSchema": { "type": "object", "properties": {} } });
        let question = Question::new(&json!({ "method": "elicitation/create", "params": params })).unwrap();
        Event::Ask { key: InputKey::new(key).unwrap(), question }
    }

    fn serves(version: &str, per_owner: u32) -> WorkerSeen {
        WorkerSeen { serves: [ToolVersion::new("report", version)].into(), per_owner }
    }

    #[test]
    fn a_worker_that_has_it_is_named_and_so_are_its_questions() {
        let running = Cause::Running { worker: WorkerId::new("w"), until: at(30) };
        assert_eq!(leased().causes(&[], 1, at(29)), std::slice::from_ref(&running));
        let asks = worked(&leased(), &[ask("a"), ask("b")]);
        let keys = ["a", "b"].map(|key| InputKey::new(key).unwrap());
        assert_eq!(asks.causes(&[], 1, at(29)), [running, Cause::Answers(keys.into())]);
    }

    #[test]
    fn a_lease_that_ran_out_is_said_to_have() {
        let ran_out = Cause::LeaseRanOut { worker: WorkerId::new("w"), at: at(30) };
        assert_eq!(leased().causes(&[serves("", 1)], 1, at(30)), [ran_out]);
    }

    #[test]
    fn work_that_waits_for_an_answer_or_a_timer_waits_for_those() {
        let key = StepKey::new("nap").unwrap();
        let timer = Event::SetTimer { key: key.clone(), wake: Wake::After(SECOND * 60) };
        let park = |task: &Task| Event::Park { seen_seq: task.seq, wake: None };
        let sleeps = worked(&leased(), std::slice::from_ref(&timer));
        let sleeps = worked(&sleeps, &[park(&sleeps)]);
        let until = Cause::Timer { key: Some(key), at: at(61) };
        assert_eq!(sleeps.causes(&[], 0, at(2)), std::slice::from_ref(&until));

        let asks = worked(&leased(), &[ask("a"), timer]);
        let asks = worked(&asks, &[park(&asks)]);
        let answer = Cause::Answers(vec![InputKey::new("a").unwrap()]);
        assert_eq!(asks.causes(&[], 0, at(2)), [answer, until]);
        assert_eq!(
            sleeps.causes(&[serves("", 1)], 0, at(61)),
            [Cause::Worker { since: at(61), alone: false }],
            "it is due"
        );
    }

    #[test]
    fn work_that_may_be_tried_again_waits_for_the_end_of_its_pause() {
        let claim = Event::Claim { worker: WorkerId::new("w"), lease: SECOND * 30 };
        let once = then(&leased(), &By::Store, &[Event::LoseLease], at(30));
        let twice = then(&once, &By::Store, &[claim], at(30));
        let twice = then(&twice, &By::Store, &[Event::LoseLease], at(60));
        assert_eq!(twice.causes(&[], 0, at(60)), [Cause::Pause { until: at(61) }]);
        let worker = Cause::Worker { since: at(61), alone: true };
        assert_eq!(twice.causes(&[serves("", 1)], 0, at(61)), [worker], "it may be what killed its workers");
    }

    #[test]
    fn work_that_is_ready_waits_for_a_version_a_place_or_a_worker() {
        let (task, now) = (task(), at(5));
        let needs = ToolVersion::new("report", "");
        let served = ["1", "2"].map(str::to_owned).to_vec();
        let others = [serves("2", 1), serves("1", 1), serves("2", 1)];
        assert_eq!(task.causes(&others, 0, now), [Cause::Unserved { needs, served }]);
        assert_eq!(task.causes(&[serves("", 3)], 3, now), [Cause::OwnersLimit { running: 3, limit: 3 }]);
        let workers = [serves("", 3), serves("", 4)];
        assert_eq!(task.causes(&workers, 3, now), [Cause::Worker { since: at(0), alone: false }]);
    }

    #[test]
    fn what_has_ended_waits_for_nothing() {
        let ended = then(&task(), &By::Operator, &[Event::Cancel], at(1));
        assert_eq!(ended.causes(&[], 0, at(2)), [Cause::Ended(Status::Cancelled)]);
    }
}
