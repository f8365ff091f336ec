//! Drives one claim: asks what comes next and carries it out, until the claim ends.

use std::any::Any;
use std::collections::BTreeMap;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::path::PathBuf;
use std::sync::Arc;

use evenkeel_core::agent::Agent;
use evenkeel_core::control::Protect;
use evenkeel_core::id::SnapshotId;
use evenkeel_core::journal::EventBody;
use evenkeel_core::message::ToolSpec;
use evenkeel_core::port::model::{Permit, RouteFacts};
use evenkeel_core::port::store::Claim;
use evenkeel_core::port::tools::{Prepared, Tools};
use evenkeel_core::port::workspace::Workspaces;
use evenkeel_core::run::{BusyPolicy, Class, Repository};
use evenkeel_core::{Code, Error, Origin, Wall};
use evenkeel_env::watch;
use futures_util::FutureExt;

use super::commit::{Journal, Stop, TurnEnd};
use super::deliver::Settled;
use super::step::{Action, Ending, Moment, Rules, next, time_is_up};
use crate::compact::estimate;
use crate::host::Host;

/// What a run is told from outside while it is driven.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Signal {
    /// A cancel is stored.
    pub(crate) cancel: bool,
    /// The replica drains: hand the run back at the next step boundary.
    pub(crate) drain: bool,
}

/// How a claim came here.
#[derive(Clone, Debug)]
pub(crate) enum Source {
    /// Admitted, queued, handed over, or found without a driver.
    Fresh,
    /// Taken over from a replica that died.
    Stolen,
    /// Woken from its park, with the permit if there was one.
    Woken(Option<Permit>),
}

/// How a claim left.
#[derive(Debug)]
pub(crate) enum Left {
    /// The run ended; perhaps the thread's next turn came with it.
    Ended {
        /// The next turn's claim.
        next: Option<Box<Claim>>,
        /// A next turn may have been claimed for this replica without our seeing it.
        look: bool,
    },
    /// It waits for the model.
    Parked {
        /// On which route.
        route: String,
        /// When it fails if nothing came: an interactive turn.
        fails_at: Wall,
    },
    /// It waits for a person.
    Asks,
    /// It is queued again.
    Released,
    /// A later claim has it, or the lease is gone.
    Fenced,
}

/// Drives a claim to its end. A panic inside ends the run, not the process.
pub(crate) async fn drive(
    host: Arc<Host>,
    claim: Claim,
    source: Source,
    signal: watch::Receiver<Signal>,
) -> Left {
    let run = claim.fence.run;
    let driven =
        AssertUnwindSafe(attempt(host.clone(), claim.clone(), source, signal.clone())).catch_unwind();
    let left = match driven.await {
        Ok(left) => left,
        Err(panic) => {
            host.count(|counters| counters.n_panicked += 1);
            let error = panicked(panic.as_ref());
            tracing::error!(%run, %error, "run panicked");
            AssertUnwindSafe(fail(host.clone(), claim, signal, error))
                .catch_unwind()
                .await
                .unwrap_or(Left::Fenced)
        }
    };
    if matches!(left, Left::Fenced) {
        host.count(|counters| counters.n_fenced += 1);
    }
    AssertUnwindSafe(host.parts.tools.release(run)).catch_unwind().await.unwrap_or_default();
    left
}

async fn attempt(host: Arc<Host>, claim: Claim, source: Source, signal: watch::Receiver<Signal>) -> Left {
    let mut driver = match Driver::open(host.clone(), &claim, &source, signal.clone()).await {
        Ok(driver) => driver,
        Err(Stop::Refused(error)) => return fail(host, claim, signal, error).await,
        Err(_) => return Left::Fenced,
    };
    let left = match driver.run().await {
        Err(Stop::Refused(error)) => driver.fail(error).await,
        left => left,
    };
    left.unwrap_or(Left::Fenced)
}

/// Ends a run with a cause from a fresh look at its journal.
async fn fail(host: Arc<Host>, claim: Claim, signal: watch::Receiver<Signal>, error: Error) -> Left {
    let ended = async {
        let journal = Journal::open(host.clone(), &claim).await?;
        Driver::bare(host.clone(), &claim, journal, signal).end(Ending::failed(error)).await
    };
    ended.await.unwrap_or(Left::Fenced)
}

fn panicked(panic: &(dyn Any + Send)) -> Error {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message");
    Error::new(
        Code::RunPanicked,
        Origin::Ours,
        format!("The run ended by a panic: {text}."),
        "Report it with the log of this moment; send the request again.",
    )
}

/// One claim while it is driven.
pub(crate) struct Driver {
    pub(crate) host: Arc<Host>,
    pub(crate) journal: Journal,
    pub(crate) agent: Agent,
    pub(crate) rules: Rules,
    pub(crate) claim: Claim,
    pub(crate) tool_specs: Vec<ToolSpec>,
    /// Bytes of the system prompt and the tools.
    pub(crate) fixed_bytes: u64,
    pub(crate) workspace: Option<PathBuf>,
    /// Judged calls whose intents this process wrote.
    pub(crate) ready: BTreeMap<u32, Prepared>,
    /// A judged call that waits for the pure calls before it.
    pub(crate) held: Option<Prepared>,
    pub(crate) permit: Option<Permit>,
    is_set_up: bool,
    signal: watch::Receiver<Signal>,
}

impl Driver {
    /// A driver that can only end its run: no workspace is opened and no tool is offered.
    fn bare(host: Arc<Host>, claim: &Claim, journal: Journal, signal: watch::Receiver<Signal>) -> Self {
        let spec = &claim.run.spec;
        let agent = host.parts.agents.get(&spec.assistant).cloned().unwrap_or_else(|| unknown_agent(claim));
        let wall = std::time::Duration::from_millis(spec.limits.wall_ms_max);
        let park_max = match spec.class {
            Class::Interactive => std::time::Duration::from_millis(host.config.interactive_park_ms),
            // A route that is not known ends the run before it could wait.
            Class::Batch => host.parts.model.route(&agent.route).map_or(wall, |facts| facts.park_max),
        };
        let rules = Rules {
            limits: spec.limits.clone(),
            class: spec.class,
            deadline: spec.deadline,
            wall_until: claim.run.created_at.after(wall),
            has_tools: false,
            park_max,
        };
        Self {
            host,
            journal,
            agent,
            rules,
            claim: claim.clone(),
            tool_specs: Vec::new(),
            fixed_bytes: 0,
            workspace: None,
            ready: BTreeMap::new(),
            held: None,
            permit: None,
            is_set_up: false,
            signal,
        }
    }

    async fn open(
        host: Arc<Host>,
        claim: &Claim,
        source: &Source,
        signal: watch::Receiver<Signal>,
    ) -> Result<Self, Stop> {
        if matches!(source, Source::Stolen) && host.config.protect == Protect::None {
            return Err(Stop::Refused(not_resumed()));
        }
        let journal = Journal::begin(host.clone(), claim).await?;
        announce(&host, claim, journal.view.seq_last);
        let mut driver = Self::bare(host, claim, journal, signal);
        driver.journal.view.cancelling |= driver.signal.borrow().cancel;
        if !driver.host.parts.agents.contains_key(&claim.run.spec.assistant) {
            return Err(Stop::Refused(assistant_unknown(&claim.run.spec.assistant)));
        }
        if let Source::Woken(permit) = source {
            driver.permit = permit.clone();
        }
        Ok(driver)
    }

    /// Everything that is not in the journal and is needed for the first step.
    async fn set_up(&mut self) -> Result<(), Stop> {
        self.offer_tools().await?;
        self.open_workspace().await?;
        self.is_set_up = true;
        Ok(())
    }

    async fn offer_tools(&mut self) -> Result<(), Stop> {
        if !self.agent.tools.is_empty() {
            let offered = self.unless_stopped(self.tools().offered(&self.agent)).await?;
            self.tool_specs = offered.map_err(Stop::Refused)?;
        }
        self.rules.has_tools = !self.tool_specs.is_empty();
        let specs = serde_json::to_string(&self.tool_specs).map_or(0, |text| text.len());
        self.fixed_bytes = u64::try_from(self.agent.system_prompt.len() + specs).unwrap_or(u64::MAX);
        Ok(())
    }

    /// Finds or makes the workspace; the first claim notes how the run found it.
    async fn open_workspace(&mut self) -> Result<(), Stop> {
        if !self.agent.workspace {
            return Ok(());
        }
        let fence = self.journal.fence.clone();
        let repository = self.claim.run.spec.repository.clone().unwrap_or(Repository::Empty);
        let workspaces = self.host.parts.workspaces.clone();
        let opened = self.unless_stopped(workspaces.open(fence.thread, fence.run, repository)).await?;
        let (path, first) = opened.map_err(Stop::Refused)?;
        self.workspace = Some(path);
        if self.journal.view.base.is_some() {
            return Ok(());
        }
        if self.claim.context_from > 1 && self.journal.view.step > 1 {
            // The run's own start lies before the context: the thread's first state must do.
            self.journal.view.base = Some(first);
            return Ok(());
        }
        let view = &self.journal.view;
        let had_runs = view.summary.is_some() || view.entries.iter().any(|entry| entry.run != fence.run);
        let base = if view.rewound {
            self.go_back(first).await?
        } else if had_runs {
            workspaces.snapshot(fence.thread).await.map_err(Stop::Refused)?
        } else {
            first
        };
        self.journal.stage_at(0, EventBody::Checkpoint { snapshot: Some(base) });
        self.journal.flush().await
    }

    /// Puts the workspace to where the conversation went back to: to the newest checkpoint that
    /// counts, or to how the thread began. Whoever undid the last run may have died before it could.
    async fn go_back(&mut self, first: SnapshotId) -> Result<SnapshotId, Stop> {
        let snapshot = self.journal.newest_workspace().await?.unwrap_or(first);
        let restored = self.workspaces().restore(self.journal.fence.thread, snapshot.clone());
        self.unless_stopped(restored).await?.map_err(Stop::Refused)?;
        Ok(snapshot)
    }

    pub(crate) fn tools(&self) -> &Arc<dyn Tools> {
        &self.host.parts.tools
    }

    pub(crate) fn workspaces(&self) -> &Arc<dyn Workspaces> {
        &self.host.parts.workspaces
    }

    async fn run(&mut self) -> Result<Left, Stop> {
        loop {
            let carried = match self.next()? {
                Action::End(ending) => self.end(ending).await.map(Some),
                Action::SetUp => self.set_up().await.map(|()| None),
                Action::CallModel => self.call_model().await,
                Action::Compact => self.compact().await,
                Action::Prepare => self.prepare().await,
                Action::RunCalls => self.run_calls().await.map(|()| None),
                Action::Settle => self.settle().await.map(|()| None),
                Action::CommitResults => self.commit_results().await.map(|()| None),
            };
            match carried {
                Ok(None) => {}
                Ok(Some(left)) => return Ok(left),
                Err(Stop::Again) => self.look_again(),
                Err(stop) => return Err(stop),
            }
        }
    }

    fn next(&self) -> Result<Action, Stop> {
        let now = self.host.now();
        let must_stop = self.journal.view.cancelling || time_is_up(&self.rules, now).is_some();
        if !self.is_set_up && !must_stop {
            return Ok(Action::SetUp);
        }
        let facts = self.route()?;
        let moment = Moment {
            estimate: estimate::prompt(
                &self.journal.view,
                self.fixed_bytes,
                facts,
                &self.host.config.compact,
            ),
            threshold: estimate::threshold(facts, &self.host.config.compact),
            permit: self.permit.is_some(),
        };
        Ok(next(&self.journal.view, &self.rules, moment, now))
    }

    pub(crate) fn route(&self) -> Result<RouteFacts, Stop> {
        let route = &self.agent.route;
        self.host.parts.model.route(route).ok_or_else(|| Stop::Refused(route_unknown(route)))
    }

    /// After an interruption or a reload nothing that was only remembered counts.
    fn look_again(&mut self) {
        self.ready.clear();
        self.held = None;
        self.journal.view.forget_fresh();
        self.journal.view.cancelling |= self.signal.borrow().cancel;
    }

    /// Waits for something outside, but not beyond a cancel or the end of the run's time.
    pub(crate) async fn unless_stopped<T>(&self, future: impl Future<Output = T>) -> Result<T, Stop> {
        let mut signal = self.signal.clone();
        let left = self.rules.until().since(self.host.now());
        tokio::select! {
            biased;
            // An error means that the dispatcher is gone; then the task is being dropped as well.
            Ok(_) = signal.wait_for(|signal| signal.cancel) => Err(Stop::Again),
            answer = future => Ok(answer),
            () = tokio::time::sleep(left) => Err(Stop::Again),
        }
    }

    pub(crate) fn is_cancelled(&self) -> bool {
        self.signal.borrow().cancel || self.journal.view.cancelling
    }

    /// Whether the run is to be handed back instead of beginning another model call.
    pub(crate) fn drains(&self) -> bool {
        self.signal.borrow().drain
    }

    /// Ends the run with a cause, from its journal as it is stored.
    async fn fail(&mut self, error: Error) -> Result<Left, Stop> {
        self.journal.reload().await?;
        self.end(Ending::failed(error)).await
    }

    /// Ends the run as `ending` says, with everything that is staged.
    pub(crate) async fn end(&mut self, ending: Ending) -> Result<Left, Stop> {
        self.permit = None;
        self.keep_answer().await?;
        let diff = self.diff().await;
        let (ending, delivered) = match self.deliver(ending, diff.as_deref()).await? {
            Settled::Ends(ending, delivered) => (ending, delivered),
            Settled::HandedBack => {
                self.journal.release().await?;
                return Ok(Left::Released);
            }
        };
        self.close_step().await;
        let outcome = Self::outcome(&ending, diff, delivered);
        self.undo().await?;
        let take_next = !self.drains();
        let turn = self.journal.commit_turn(outcome, take_next).await?;
        self.host.count_ended(ending.state);
        Ok(match turn {
            TurnEnd::Done(next) => Left::Ended { next, look: false },
            TurnEnd::DoneUnknownNext => Left::Ended { next: None, look: true },
        })
    }
}

/// Tells that a run begins or goes on. What a first claim wrote is known: the claim and the messages,
/// before them perhaps that the thread went back. Messages that are merged are other runs' too.
fn announce(host: &Host, claim: &Claim, seq_last: u64) {
    let (feed, fence, spec) = (&host.parts.feed, &claim.fence, &claim.run.spec);
    if claim.run.attempt > 1 || spec.busy_policy == BusyPolicy::Merge {
        return feed.committed(fence.thread, seq_last);
    }
    let n_written = u64::try_from(spec.messages.len()).unwrap_or(u64::MAX).saturating_add(2);
    let first = (claim.seq_last + 1).saturating_sub(n_written);
    feed.committed_by(fence.thread, fence.run, first..=seq_last);
}

fn unknown_agent(claim: &Claim) -> Agent {
    Agent {
        name: claim.run.spec.assistant.clone(),
        description: String::new(),
        system_prompt: String::new(),
        route: String::new(),
        tools: Vec::new(),
        workspace: false,
        limits: claim.run.spec.limits.clone(),
    }
}

fn assistant_unknown(name: &str) -> Error {
    Error::client(
        Code::AssistantNotFound,
        format!("There is no assistant {name} in this server's configuration."),
        "Use one of the configured assistants, or add it.",
    )
}

fn route_unknown(route: &str) -> Error {
    Error::client(
        Code::RouteUnknown,
        format!("There is no model route {route}."),
        "Add it under [routes], or give the assistant a route that exists.",
    )
}

fn not_resumed() -> Error {
    Error::new(
        Code::Internal,
        Origin::Ours,
        "The server that ran this run died, and protect = none does not resume it.",
        "Run with protect = full.",
    )
}
