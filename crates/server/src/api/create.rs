//! Creating runs: in the background, streamed, waited for; on a thread or on one of its own.
//!
//! A run that was accepted is stored; everything after that only tells of it. Admission is finished
//! even if its client goes away in the middle, because its reply may hold the claim that this
//! process has to carry out.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use evenkeel_core::id::{IdempotencyKey, RunId, ThreadId};
use evenkeel_core::port::store::{Admit, Admitted, MergeWindow};
use evenkeel_core::run::{BusyPolicy, Repository, Run, RunSpec};
use evenkeel_core::thread::Thread;
use evenkeel_core::{Code, Error, Origin};
use http::{HeaderMap, HeaderValue, header};
use serde_json::{Value, json};
use tokio::sync::oneshot;

use super::approvals::{self, Answers};
use super::attach::Begun;
use super::{
    Answer, asking_run, assistants, attach, find_thread, forget, newest_run, state, stop, thread_id,
};
use crate::app::Shared;
use crate::gateway::auth::Caller;
use crate::gateway::given::Path;
use crate::gateway::route::{Sent, TraceParent};
use crate::stream::follow::view_of;
use crate::wire;
use crate::wire::input::RunRequest;
use crate::wire::interrupt;
use crate::wire::refusal::malformed;

/// What every creation starts from.
#[derive(Clone)]
struct Creation {
    shared: Arc<Shared>,
    caller: Caller,
    /// The thread that the run is put on; none: one of its own.
    thread: Option<ThreadId>,
}

/// A stored run, new or known.
struct Created {
    run: Run,
    request: RunRequest,
    /// The key was known: this is the same run again.
    replayed: bool,
    /// The thread's log before the run, so that its events are all behind it.
    seq_before: u64,
}

/// Everything that a handler of this module takes.
type Given = (State<Arc<Shared>>, Extension<Caller>, Extension<Sent>, Extension<TraceParent>, HeaderMap);

pub(super) async fn background(Path(thread): Path<String>, given: Given) -> Answer {
    let (creation, created) = begin(Some(&thread), given).await?;
    Ok(creation.shown(&created))
}

pub(super) async fn background_stateless(given: Given) -> Answer {
    let (creation, created) = begin(None, given).await?;
    Ok(creation.shown(&created))
}

pub(super) async fn stream(Path(thread): Path<String>, given: Given) -> Answer {
    let (creation, created) = begin(Some(&thread), given).await?;
    creation.streamed(created).await
}

pub(super) async fn stream_stateless(given: Given) -> Answer {
    let (creation, created) = begin(None, given).await?;
    creation.streamed(created).await
}

pub(super) async fn wait(Path(thread): Path<String>, given: Given) -> Answer {
    let (creation, created) = begin(Some(&thread), given).await?;
    creation.waited(created).await
}

pub(super) async fn wait_stateless(given: Given) -> Answer {
    let (creation, created) = begin(None, given).await?;
    creation.waited(created).await
}

async fn begin(thread: Option<&str>, given: Given) -> Result<(Creation, Created), Error> {
    let (State(shared), Extension(caller), Extension(sent), Extension(traceparent), headers) = given;
    let thread = thread.map(thread_id).transpose()?;
    let creation = Creation { shared, caller, thread };
    let created = creation.create(&sent, traceparent, &headers).await?;
    Ok((creation, created))
}

impl Created {
    fn begun(&self) -> Begun<'_> {
        Begun { run: &self.run, seq_before: self.seq_before, replayed: self.replayed }
    }
}

impl Creation {
    async fn create(
        &self,
        sent: &Sent,
        traceparent: TraceParent,
        headers: &HeaderMap,
    ) -> Result<Created, Error> {
        self.shared.admits()?;
        let request = RunRequest::parse(sent.json()?)?;
        let key = idempotency_key(headers)?;
        if let Some(resume) = request.resume.clone() {
            return self.resume(request, &resume, key).await;
        }
        let thread = self.thread_now(&request).await?;
        let seq_before = thread.as_ref().map_or(0, |thread| thread.seq_last);
        let spec = self.spec(&request, thread.as_ref(), traceparent).await?;
        let admit = self.admit_request(&request, spec, key);
        let (run, replayed) = self.admit(admit).await?;
        let seq_before = if replayed { 0 } else { seq_before };
        if self.thread.is_none() && !request.keep_thread && !replayed {
            forget::after_end(&self.shared, &run);
        }
        Ok(Created { run, request, replayed, seq_before })
    }

    /// Answers what the thread's run asks of a person; that run goes on, and is what is told of.
    async fn resume(
        &self,
        request: RunRequest,
        resume: &Value,
        key: Option<IdempotencyKey>,
    ) -> Result<Created, Error> {
        let shared = &self.shared;
        assistants::with_rules(shared, &request.assistant)?;
        let Some(thread) = self.thread else {
            return Err(malformed(
                "`command.resume` answers a thread, and this path makes a new one.",
                "Send it to /threads/{thread}/runs.",
            ));
        };
        let thread = find_thread(shared, &self.caller.tenant, thread).await?;
        let asking = match asking_run(shared, &thread).await? {
            Some(run) => Some(run),
            // A request that is repeated with its key is known still.
            None if key.is_some() => newest_run(shared, &thread).await?,
            None => None,
        };
        let run = asking.ok_or_else(interrupt::nothing_asked)?;
        let answers = interrupt::answers(run.id, run.asks(), resume)?;
        let given = Answers { by: self.caller.name.clone(), answers, key };
        let taken = approvals::give(shared, &run, given).await?;
        let replayed = taken.seq_last.is_none();
        Ok(Created { run: taken.run, request, replayed, seq_before: taken.seq_last.unwrap_or(0) })
    }

    /// The thread as it is now, if it is there; also says early that it is not.
    async fn thread_now(&self, request: &RunRequest) -> Result<Option<Thread>, Error> {
        let Some(thread) = self.thread else {
            return Ok(None);
        };
        match find_thread(&self.shared, &self.caller.tenant, thread).await {
            Ok(thread) => Ok(Some(thread)),
            Err(error) if error.code == Code::ThreadNotFound && request.create_thread => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// What the run is asked. What a busy thread does with it is decided here, for every way in: the
    /// request's own word, else the thread's, else the assistant's.
    async fn spec(
        &self,
        request: &RunRequest,
        thread: Option<&Thread>,
        traceparent: TraceParent,
    ) -> Result<RunSpec, Error> {
        let shared = &self.shared;
        let mut assistant = assistants::with_rules(shared, &request.assistant)?;
        if let Some(policy) = thread.and_then(|thread| thread.busy_policy) {
            assistant.busy_policy = policy;
        }
        let (now, generator) = (shared.env.wall(), &shared.env.generator);
        let mut spec = request.spec(&assistant, shared.input_limits(), now, generator)?;
        if let (Some(wanted), Some(Repository::Url(url))) = (&spec.deliver, &spec.repository) {
            shared.config.git.check(wanted, url)?;
        }
        spec.from_seq = self.fork_from(request, thread).await?;
        if let Some(traceparent) = traceparent.0 {
            spec.request["traceparent"] = json!(traceparent);
        }
        Ok(spec)
    }

    /// The event behind which the checkpoint lies that the run is to build on.
    async fn fork_from(&self, request: &RunRequest, thread: Option<&Thread>) -> Result<Option<u64>, Error> {
        let Some(checkpoint) = state::named(request.checkpoint.as_ref())? else {
            return Ok(None);
        };
        let Some(thread) = thread else {
            return Err(state::no_checkpoint(checkpoint));
        };
        let view = view_of(&self.shared.store, &thread.tenant, thread.id, thread.seq_last).await?;
        view.seq_of(checkpoint).map(Some).ok_or_else(|| state::no_checkpoint(checkpoint))
    }

    fn admit_request(&self, request: &RunRequest, spec: RunSpec, key: Option<IdempotencyKey>) -> Admit {
        let Self { shared, caller, thread } = self;
        let (now, generator) = (shared.env.wall(), &shared.env.generator);
        Admit {
            tenant: caller.tenant.clone(),
            thread: thread.unwrap_or_else(|| ThreadId::new(now, generator)),
            create_thread: thread.is_none() || request.create_thread,
            run: RunId::new(now, generator),
            spec,
            key,
            body_hash: request.hash(),
            claim_for: None,
            n_waiting_max: shared.config.limits.waiting_per_thread_max,
            delay_ms: millis(request.delay),
            merge: MergeWindow {
                quiet_ms: millis(shared.config.limits.merge_quiet.0),
                cap_ms: millis(shared.config.limits.merge_cap.0),
            },
        }
    }

    async fn admit(&self, admit: Admit) -> Result<(Run, bool), Error> {
        match carry_out(self.shared.clone(), admit).await? {
            Admitted::Accepted { run, .. } => Ok((*run, false)),
            Admitted::Replayed(run) => Ok((*run, true)),
            Admitted::KeyConflict => Err(Error::client(
                Code::KeyReused,
                "This Idempotency-Key, or a message id of the input, was used with another body.",
                "Use a new key for a new request.",
            )),
            Admitted::ThreadNotFound => Err(Error::client(
                Code::ThreadNotFound,
                "Thread or assistant not found.",
                "Create the thread first, or send if_not_exists: \"create\".",
            )),
            Admitted::Busy(active) => Err(Error::client(
                Code::ThreadBusy,
                "Thread is already running a task. Wait for it to finish or choose a different multitask strategy.",
                format!("Run {active} is active; send multitask_strategy: \"enqueue\" to wait in line."),
            )),
            Admitted::Full => Err(Error::client(
                Code::Overloaded,
                format!("{} turns wait on this thread.", self.shared.config.limits.waiting_per_thread_max),
                "Wait for some of them to end, or raise limits.waiting_per_thread_max.",
            )
            .retry_after(Duration::from_secs(5))),
        }
    }

    fn shown(&self, created: &Created) -> Response {
        let mut response = Json(wire::run::run(&created.run)).into_response();
        attach::standing(&mut response, &created.run);
        self.locate(&mut response, created);
        response
    }

    async fn streamed(self, created: Created) -> Answer {
        let leave =
            created.request.cancel_on_disconnect.then(|| attach::cancel_on_leave(&self.shared, &created.run));
        let modes = created.request.modes;
        let mut response = attach::stream_of_new(&self.shared, &created.begun(), modes, leave).await?;
        self.locate(&mut response, &created);
        Ok(response)
    }

    async fn waited(self, created: Created) -> Answer {
        let leave =
            created.request.cancel_on_disconnect.then(|| attach::cancel_on_leave(&self.shared, &created.run));
        let mut response = attach::wait_of(&self.shared, &created.begun(), leave).await?;
        self.locate(&mut response, &created);
        Ok(response)
    }

    /// `Content-Location` on everything that created a run, and whether it was a repetition.
    fn locate(&self, response: &mut Response, created: &Created) {
        let Run { id, thread, .. } = &created.run;
        let location = match self.thread {
            Some(_) => format!("/threads/{thread}/runs/{id}"),
            None => format!("/runs/{id}"),
        };
        let headers = response.headers_mut();
        if let Ok(location) = HeaderValue::try_from(location) {
            headers.insert(header::CONTENT_LOCATION, location);
        }
        if created.replayed {
            headers.insert("idempotent-replayed", HeaderValue::from_static("true"));
        }
    }
}

/// Admits in a task of its own and carries out the claim, whether or not anybody still waits. A claim
/// is asked for if there is a slot, which is kept for it: one that could not be driven would have to be
/// given back.
async fn carry_out(shared: Arc<Shared>, admit: Admit) -> Result<Admitted, Error> {
    let (answer, answered) = oneshot::channel();
    let task = {
        let shared = shared.clone();
        async move {
            let mut slot = shared.dispatch.slot();
            let wants_claim = slot.is_some();
            let claim_for = wants_claim.then(|| shared.dispatch.replica());
            let admitted = shared.store.admit(Admit { claim_for, ..admit }).await;
            if let Ok(Admitted::Accepted { run, claim, stopping }) = &admitted {
                stop::hint(&shared, stopping);
                match (claim, slot.take()) {
                    (Some(claim), Some(slot)) => shared.dispatch.adopt((**claim).clone(), slot),
                    // It stands in line: whoever ends the turn before it hands the thread on.
                    (_, Some(slot)) => shared.dispatch.unused(slot),
                    (_, None) => shared.dispatch.nudge(),
                }
                shared.tell_of(claim.is_some(), stopping);
                // A turn that waits in line changes nothing for those that are followed.
                if !matches!(run.spec.busy_policy, BusyPolicy::Enqueue | BusyPolicy::Reject) {
                    shared.hub.touch(run.thread);
                }
            }
            if let Some(slot) = slot {
                shared.dispatch.unused(slot);
            }
            // The client may have gone away; the run goes on.
            let _ = answer.send(admitted);
        }
    };
    shared.env.spawner.spawn("admit", Box::pin(task));
    answered.await.map_err(|_| {
        Error::new(
            Code::StoreUnavailable,
            Origin::Store,
            "Whether the run was accepted is not known.",
            "Send it again with the same Idempotency-Key.",
        )
        .retryable()
    })?
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// The key that a request carries.
pub(super) fn idempotency_key(headers: &HeaderMap) -> Result<Option<IdempotencyKey>, Error> {
    let Some(value) = headers.get("idempotency-key") else {
        return Ok(None);
    };
    let text = value.to_str().ok().filter(|text| (1..=255).contains(&text.len()));
    match text {
        Some(text) => Ok(Some(IdempotencyKey::from(text))),
        None => Err(malformed(
            "The Idempotency-Key is not 1 to 255 visible ASCII characters.",
            "Send a fresh UUID for each new request.",
        )),
    }
}
