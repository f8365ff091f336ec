//! The shell: performs what the machine decides.
//!
//! A call is one future. It tells the machine of its arrival, then makes the attempts that it is
//! told to make and returns when it is told how it ends. Dropping it drops the HTTP exchange, which
//! closes the connection, and tells the machine. One timer task per router sends ticks when the
//! machine wants them. The machine is behind a mutex that is never held across an await.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use evenkeel_core::control::limiter::Claim;
use evenkeel_core::message::Block;
use evenkeel_core::port::model::{
    Health, Model, ModelOutcome, ModelReply, ModelRequest, PeerHealth, Permit, PermitToken, Progress,
    RouteFacts,
};
use evenkeel_core::run::Attempt;
use evenkeel_core::{Code, Error, Mono};
use evenkeel_env::Env;
use evenkeel_env::http::Client;
use futures_util::future::BoxFuture;
use futures_util::stream::{FuturesUnordered, StreamExt};
use tokio::sync::{Notify, mpsc, oneshot};

use super::attempt::{Entry, Race};
use super::event::{Action, Arrival, AttemptKey, CallKey, Event, PermitKey, Place, Start, Verdict};
use super::machine::Machine;
use super::plan::Plan;
use super::report::Instant;
use super::{Operation, RouterSnapshot, attempt};
use crate::config::{ProviderKeys, RouterConfig};
use crate::stream::answer::Answer;

/// The model router; implements the model port.
pub struct Router {
    shared: Arc<Shared>,
}

pub(super) struct Shared {
    pub(super) env: Env,
    pub(super) plan: Arc<Plan>,
    pub(super) client: Client,
    state: Mutex<State>,
    permits: Mutex<VecDeque<Permit>>,
    permit_ready: Notify,
    timer: Arc<Notify>,
}

struct State {
    machine: Machine,
    callers: BTreeMap<CallKey, mpsc::Sender<Command>>,
    /// Tokens by address, so that a permit that comes back with a call is recognised.
    tokens: BTreeMap<usize, PermitKey>,
    next_call: u64,
    wake: Option<Mono>,
}

/// What a call is told.
enum Command {
    Start(Start),
    /// Another attempt has content.
    Cancel(AttemptKey),
    Finish(Verdict),
}

impl Router {
    /// Builds the router and starts its timer.
    ///
    /// # Errors
    /// `config-invalid` when the configuration does not hold together.
    pub fn start(env: &Env, config: RouterConfig, keys: ProviderKeys) -> Result<Arc<Self>, Error> {
        let env = env.part("router");
        let plan = Arc::new(Plan::new(&config, &keys)?);
        let machine = Machine::new(plan.clone(), env.mono());
        let client = Client::new(&env, plan.settings.timeouts.connect.0);
        let state =
            State { machine, callers: BTreeMap::new(), tokens: BTreeMap::new(), next_call: 1, wake: None };
        let shared = Arc::new(Shared {
            plan,
            client,
            state: Mutex::new(state),
            permits: Mutex::new(VecDeque::new()),
            permit_ready: Notify::new(),
            timer: Arc::new(Notify::new()),
            env,
        });
        let timer = run_timer(Arc::downgrade(&shared), shared.timer.clone());
        shared.env.spawner.spawn("router-timer", Box::pin(timer));
        Ok(Arc::new(Self { shared }))
    }

    /// What the router knows of its deployments and routes now.
    #[must_use]
    pub fn snapshot(&self) -> RouterSnapshot {
        let now = Instant { mono: self.shared.env.mono(), wall: self.shared.env.wall() };
        self.shared.lock().machine.snapshot(now)
    }

    /// Drains, enables or probes a deployment, with all its keys.
    ///
    /// # Errors
    /// `not-found` when there is no such deployment.
    pub fn operate(&self, deployment: &str, operation: Operation) -> Result<(), Error> {
        let lanes = self.shared.plan.lanes.iter().enumerate();
        let named: Vec<usize> = lanes
            .filter(|(_, lane)| lane.deployment == deployment || lane.name == deployment)
            .map(|(idx, _)| idx)
            .collect();
        if named.is_empty() {
            return Err(Error::client(
                Code::NotFound,
                format!("There is no deployment {deployment:?}."),
                "See evenkeel router for their names.",
            ));
        }
        for lane in named {
            tracing::info!(deployment, ?operation, "an operator acts on a deployment");
            self.shared.handle(Event::Operate(lane, operation));
        }
        Ok(())
    }
}

impl Drop for Router {
    fn drop(&mut self) {
        // The timer task wakes up, finds nobody, and ends.
        self.shared.timer.notify_one();
    }
}

impl Model for Router {
    fn call(&self, request: ModelRequest, progress: Arc<dyn Progress>) -> BoxFuture<'_, ModelOutcome> {
        Box::pin(run_call(self.shared.clone(), request, progress))
    }

    fn route(&self, route: &str) -> Option<RouteFacts> {
        let idx = self.shared.plan.route_idx(route)?;
        let first = self.shared.plan.routes[idx].tiers.first()?;
        let windows = first.iter().map(|lane| self.shared.plan.lanes[*lane].context_tokens);
        let state = self.shared.lock();
        let bytes_per_token = first.iter().map(|lane| state.machine.bytes_per_token(*lane));
        Some(RouteFacts {
            context_tokens: windows.min()?,
            bytes_per_token: bytes_per_token.min_by(f64::total_cmp)?,
            park_max: self.shared.plan.routes[idx].park_max,
        })
    }

    fn parked(&self, route: &str, n_parked: usize) {
        if let Some(idx) = self.shared.plan.route_idx(route) {
            self.shared.handle(Event::Parked(idx, n_parked));
        }
    }

    fn health(&self) -> Vec<Health> {
        self.shared.lock().machine.health(self.shared.env.mono())
    }

    fn heard(&self, peers: Vec<PeerHealth>) {
        self.shared.handle(Event::Heard(peers));
    }

    fn next_permit(&self) -> BoxFuture<'_, Permit> {
        Box::pin(async move {
            loop {
                let ready = self.shared.permit_ready.notified();
                if let Some(permit) = self.shared.pop_permit() {
                    return permit;
                }
                ready.await;
            }
        })
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives the machine an event and performs what it decides.
    pub(super) fn handle(self: &Arc<Self>, event: Event) {
        let now = self.env.mono();
        let is_content = matches!(event, Event::Content(_));
        let mut granted = Vec::new();
        let is_earlier = {
            let mut state = self.lock();
            let actions = state.machine.on_event(now, event, &self.env.generator);
            if actions.is_empty() && is_content {
                return;
            }
            for action in actions {
                self.perform(&mut state, action, &mut granted);
            }
            let before = state.wake;
            state.wake = state.machine.next_wake(now);
            // A later wake needs no word: the timer comes early once and looks again.
            state.wake.is_some_and(|at| before.is_none_or(|before| at < before))
        };
        // Outside the lock, because dropping a permit takes it.
        if !granted.is_empty() {
            self.offer(granted);
            self.permit_ready.notify_waiters();
            self.permit_ready.notify_one();
        }
        if is_earlier {
            self.timer.notify_one();
        }
    }

    fn perform(self: &Arc<Self>, state: &mut State, action: Action, granted: &mut Vec<Permit>) {
        match action {
            Action::Start(call, start) => tell(state, call, Command::Start(start)),
            Action::Cancel(call, attempt) => tell(state, call, Command::Cancel(attempt)),
            Action::Finish(call, verdict) => tell(state, call, Command::Finish(verdict)),
            Action::Grant(key, place) => granted.push(self.token(state, key, place)),
            Action::Changed(lane, transition) => {
                let deployment = &self.plan.lanes[lane].name;
                let (from, to) = (transition.from.as_str(), transition.to.as_str());
                let reason = transition.reason.as_str();
                if to == "open" {
                    tracing::warn!(deployment, from, to, reason, "a deployment is cut off");
                } else {
                    tracing::info!(deployment, from, to, reason, "a deployment changed its state");
                }
            }
        }
    }

    fn token(self: &Arc<Self>, state: &mut State, key: PermitKey, place: Place) -> Permit {
        let token = Arc::new(Token {
            key,
            route: self.plan.routes[place.route].name.clone(),
            deployment: self.plan.lanes[place.lane].name.clone(),
            shared: Arc::downgrade(self),
        });
        state.tokens.insert(Arc::as_ptr(&token).addr(), key);
        Permit(token)
    }

    /// Puts permits where wakers find them. Those that ran out meanwhile are thrown away here, since
    /// without a waker nobody else would.
    fn offer(&self, granted: Vec<Permit>) {
        let mut offered = std::mem::take(&mut *self.permits.lock().unwrap_or_else(PoisonError::into_inner));
        offered.extend(granted);
        let (good, spent): (VecDeque<_>, VecDeque<_>) = {
            let state = self.lock();
            let is_good = |permit: &Permit| {
                state.tokens.get(&address(permit)).is_some_and(|key| state.machine.has_permit(*key))
            };
            offered.into_iter().partition(is_good)
        };
        self.permits.lock().unwrap_or_else(PoisonError::into_inner).extend(good);
        drop(spent);
    }

    /// The next permit that is still good.
    fn pop_permit(self: &Arc<Self>) -> Option<Permit> {
        loop {
            let permit = self.permits.lock().unwrap_or_else(PoisonError::into_inner).pop_front()?;
            let key = self.lock().tokens.get(&address(&permit)).copied();
            // Renewed first and looked at afterwards: it cannot run out in between.
            if let Some(key) = key {
                self.handle(Event::PermitTaken(key));
                if self.lock().machine.has_permit(key) {
                    return Some(permit);
                }
            }
        }
    }

    fn arrive(self: &Arc<Self>, request: &ModelRequest, route: usize) -> (InCall, mpsc::Receiver<Command>) {
        let left = self.env.wall().until(request.deadline);
        let (sender, receiver) = mpsc::channel(16);
        let (key, permit) = {
            let mut state = self.lock();
            let key = CallKey(state.next_call);
            state.next_call += 1;
            state.callers.insert(key, sender);
            let permit = request.permit.as_ref().and_then(|permit| state.tokens.get(&address(permit)));
            (key, permit.copied())
        };
        let claim = Claim { class: request.class, begun: request.begun, tenant: request.tenant.clone() };
        let arrival = Arrival {
            route,
            claim,
            deadline: self.env.mono().after(left),
            prior_attempts: request.prior_attempts,
            permit,
            fallback: request.fallback,
            input_bytes: input_bytes(request),
        };
        let in_call = InCall { shared: self.clone(), key };
        self.handle(Event::Arrived(key, arrival));
        (in_call, receiver)
    }
}

fn tell(state: &mut State, call: CallKey, command: Command) {
    if let Some(caller) = state.callers.get(&call) {
        // A call hears of a few attempts before it acts; a full channel cannot be.
        let told = caller.try_send(command);
        debug_assert!(!matches!(told, Err(mpsc::error::TrySendError::Full(_))));
    }
}

fn address(permit: &Permit) -> usize {
    Arc::as_ptr(&permit.0).cast::<()>().addr()
}

/// A call under way; when it goes away, the machine hears of it. After an end that the machine
/// itself has decided, the event names a call that no longer exists and changes nothing.
struct InCall {
    shared: Arc<Shared>,
    key: CallKey,
}

impl Drop for InCall {
    fn drop(&mut self) {
        self.shared.lock().callers.remove(&self.key);
        self.shared.handle(Event::Dropped(self.key));
    }
}

async fn run_call(shared: Arc<Shared>, request: ModelRequest, progress: Arc<dyn Progress>) -> ModelOutcome {
    let mut attempts: Vec<Attempt> = Vec::new();
    let Some(route) = shared.plan.route_idx(&request.route) else {
        let error = Error::client(
            Code::RouteUnknown,
            format!("There is no model route {:?}.", request.route),
            "Configure it under [routes], or name another one.",
        );
        return ModelOutcome::Fatal { error, attempts };
    };
    let (_in_call, mut commands) = shared.arrive(&request, route);
    let race = Race::default();
    let mut stops = BTreeMap::new();
    let mut running = FuturesUnordered::new();
    loop {
        // What the machine has decided goes before what the attempts find.
        tokio::select! {
            biased;
            command = commands.recv() => match command {
                Some(Command::Start(start)) => {
                    let (stop, stopped) = oneshot::channel();
                    stops.insert(start.attempt, stop);
                    let entry = Entry { race: &race, stopped };
                    running.push(attempt::make(&shared, &request, start, &*progress, entry));
                }
                Some(Command::Cancel(attempt)) => {
                    stops.remove(&attempt);
                }
                Some(Command::Finish(verdict)) => return outcome(&shared, verdict, attempts),
                None => break,
            },
            Some(made) = running.next(), if !running.is_empty() => {
                race.leave(made.attempt);
                let answer = match made.result {
                    Ok(answer) => answer,
                    Err(failure) => {
                        attempts.push(made.record);
                        shared.handle(Event::Failed(made.attempt, failure, made.usage));
                        continue;
                    }
                };
                shared.handle(Event::Succeeded(made.attempt, answer.usage));
                // Whoever was overtaken ends now, and its cost is on record.
                stops.clear();
                attempts.extend(running.map(|made| made.record).collect::<Vec<_>>().await);
                attempts.push(made.record);
                return ModelOutcome::Done(Box::new(reply(answer, attempts)));
            }
        }
    }
    ModelOutcome::Fatal { error: Error::internal("The router forgot a call."), attempts }
}

fn reply(answer: Answer, attempts: Vec<Attempt>) -> ModelReply {
    ModelReply {
        message: answer.message,
        finish: answer.finish.as_str().to_owned(),
        usage: answer.usage,
        attempts,
    }
}

fn outcome(shared: &Shared, verdict: Verdict, attempts: Vec<Attempt>) -> ModelOutcome {
    match verdict {
        Verdict::Park { until, reason } => {
            let now = Instant { mono: shared.env.mono(), wall: shared.env.wall() };
            ModelOutcome::Park { until_hint: until.map(|at| now.wall_of(at)), reason, attempts }
        }
        Verdict::ContextTooLong => ModelOutcome::ContextTooLong { attempts },
        Verdict::Fatal(error) => ModelOutcome::Fatal { error, attempts },
    }
}

/// Bytes of everything that becomes input tokens.
pub(super) fn input_bytes(request: &ModelRequest) -> u64 {
    let block = |block: &Block| match block {
        Block::Text { text } => text.len(),
        Block::ToolCall(call) => call.name.len() + call.args.to_string().len(),
        Block::ToolResult(result) => result.text.len(),
        Block::Opaque { raw, .. } => raw.len(),
    };
    let messages: usize = request.messages.iter().flat_map(|message| &message.blocks).map(block).sum();
    let tools: usize = request
        .tools
        .iter()
        .map(|tool| tool.name.len() + tool.description.len() + tool.input_schema.to_string().len())
        .sum();
    (request.system.len() + messages + tools) as u64
}

/// Sends ticks when the machine wants them; ends with the router.
async fn run_timer(shared: Weak<Shared>, changed: Arc<Notify>) {
    loop {
        let wait = {
            let Some(shared) = shared.upgrade() else {
                return;
            };
            let wake = shared.lock().wake;
            wake.map(|at| shared.env.mono().until(at).max(Duration::from_millis(1)))
        };
        match wait {
            None => changed.notified().await,
            Some(wait) => {
                if tokio::time::timeout(wait, changed.notified()).await.is_ok() {
                    continue;
                }
                if let Some(shared) = shared.upgrade() {
                    shared.handle(Event::Tick);
                }
            }
        }
    }
}

/// What a permit holds.
struct Token {
    key: PermitKey,
    route: String,
    deployment: String,
    shared: Weak<Shared>,
}

impl PermitToken for Token {
    fn route(&self) -> &str {
        &self.route
    }

    fn deployment(&self) -> &str {
        &self.deployment
    }
}

impl Drop for Token {
    fn drop(&mut self) {
        if let Some(shared) = self.shared.upgrade() {
            shared.lock().tokens.retain(|_, key| *key != self.key);
            shared.handle(Event::PermitDropped(self.key));
        }
    }
}
