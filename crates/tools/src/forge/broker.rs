//! The broker: git asks it on the loopback device, and it asks the forge with a token.
//!
//! It serves one repository for as long as it lives, under a path that nobody can guess, and of that
//! only what fetching and pushing needs. A token that the forge refuses is minted anew and the request
//! sent once more, so what git sends is held until the answer. Redirects are not followed.

use std::convert::Infallible;
use std::io;
use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use evenkeel_core::Error;
use evenkeel_env::http::{Body as Answer, Client};
use evenkeel_env::{Env, Listener, Task};
use http::header::{self, HeaderValue};
use http::{Method, Request, Response, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use secrecy::{ExposeSecret as _, SecretString};

use super::token::Tokens;
use super::{Place, later};

/// Bytes of one request of git: a pack of everything that a run changed.
const REQUEST_MAX: usize = 256 << 20;
/// How long the forge may take to connect.
const CONNECT_MAX: Duration = Duration::from_secs(10);
/// What git sends that the forge needs.
const PASSED_ON: [&str; 5] =
    ["accept", "content-type", "content-encoding", "git-protocol", "accept-encoding"];
/// What of the answer git needs.
const PASSED_BACK: [&str; 3] = ["content-type", "content-encoding", "cache-control"];

type Body = UnsyncBoxBody<Bytes, io::Error>;

/// A way to one repository; closed when it is dropped.
pub(crate) struct Broker {
    url: String,
    shared: Arc<Shared>,
    task: Task,
}

struct Shared {
    env: Env,
    client: Client,
    tokens: Arc<Tokens>,
    user: String,
    /// The path that git asks for, up to the repository.
    path: String,
    /// The repository's own address.
    upstream: String,
    /// Why the forge could not be asked, last time.
    trouble: Mutex<Option<Error>>,
}

impl Broker {
    /// Listens for git.
    pub(super) async fn start(env: &Env, place: &Place<'_>) -> std::io::Result<Self> {
        let listener = env.net.listen((Ipv4Addr::LOCALHOST, 0).into()).await?;
        let address = listener.local_address()?;
        let path = format!("/{}/{}.git", secret(), place.name);
        let shared = Arc::new(Shared {
            env: env.clone(),
            client: Client::new(env, CONNECT_MAX),
            tokens: place.host.tokens.clone(),
            user: place.host.config.user.clone(),
            upstream: format!("{}/{}.git", place.base, place.name),
            path,
            trouble: Mutex::default(),
        });
        let url = format!("http://{address}{}", shared.path);
        let task = env.spawner.spawn("git broker", Box::pin(accept(listener, shared.clone())));
        Ok(Self { url, shared, task })
    }

    /// The address of the repository for git. Whoever knows it may push, so it is in no log.
    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// Why the forge could not be asked, if that was so.
    pub(crate) fn trouble(&self) -> Option<Error> {
        self.shared.trouble.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// A path that nobody guesses.
fn secret() -> String {
    let mut bytes = [0; 16];
    evenkeel_env::clock::os_random(&mut bytes);
    format!("{:032x}", u128::from_le_bytes(bytes))
}

async fn accept(mut listener: Box<dyn Listener>, shared: Arc<Shared>) {
    while let Ok((stream, _)) = listener.accept().await {
        let serving = shared.clone();
        let service = service_fn(move |request| {
            let shared = serving.clone();
            async move { Ok::<_, Infallible>(shared.answer(request).await) }
        });
        let connection = hyper::server::conn::http1::Builder::new()
            .timer(TokioTimer::new())
            .serve_connection(TokioIo::new(stream), service);
        // Git closes its connections, and ends before the way to the forge does.
        shared.env.spawner.spawn("git broker connection", Box::pin(async { drop(connection.await) }));
    }
}

impl Shared {
    async fn answer(&self, request: Request<Incoming>) -> Response<Body> {
        let (head, body) = request.into_parts();
        let Some(rest) = head.uri.path().strip_prefix(&self.path).map(str::to_owned) else {
            return plain(StatusCode::NOT_FOUND, "There is nothing here.");
        };
        if !is_of_git(&head.method, &rest) {
            return plain(StatusCode::FORBIDDEN, "Only fetching and pushing is served.");
        }
        let Ok(body) = Limited::new(body, REQUEST_MAX).collect().await else {
            return plain(StatusCode::PAYLOAD_TOO_LARGE, "The request is too large or broke off.");
        };
        let query = head.uri.query().map(|query| format!("?{query}")).unwrap_or_default();
        let mut passed =
            Request::builder().method(head.method).uri(format!("{}{rest}{query}", self.upstream));
        for name in PASSED_ON {
            if let Some(value) = head.headers.get(name) {
                passed = passed.header(name, value);
            }
        }
        let answered = match passed.body(body.to_bytes()) {
            Ok(request) => self.ask(&request).await,
            Err(_) => return plain(StatusCode::BAD_REQUEST, "The request cannot be passed on."),
        };
        match answered {
            Ok(response) => back(response),
            Err(error) => {
                let text = error.message.clone().into_owned();
                *self.trouble.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
                plain(StatusCode::BAD_GATEWAY, &text)
            }
        }
    }

    async fn ask(&self, request: &Request<Bytes>) -> Result<Response<Answer>, Error> {
        let ask = |token| async move { self.ask_with(request, &token).await };
        self.tokens.ask(ask).await.map(|(_, response)| response)
    }

    async fn ask_with(
        &self,
        request: &Request<Bytes>,
        token: &SecretString,
    ) -> Result<(StatusCode, Response<Answer>), Error> {
        let mut request = request.clone();
        request.headers_mut().insert(header::AUTHORIZATION, basic(&self.user, token)?);
        request.headers_mut().insert(header::USER_AGENT, HeaderValue::from_static("git/evenkeel"));
        let asked = self.client.send(request).await;
        let response = asked.map_err(|error| later(format!("The forge cannot be reached: {error}.")))?;
        Ok((response.status(), response))
    }
}

/// What fetching and pushing asks for, and nothing else.
fn is_of_git(method: &Method, rest: &str) -> bool {
    matches!(
        (method, rest),
        (&Method::GET, "/info/refs") | (&Method::POST, "/git-upload-pack" | "/git-receive-pack")
    )
}

fn basic(user: &str, token: &SecretString) -> Result<HeaderValue, Error> {
    let text = STANDARD.encode(format!("{user}:{}", token.expose_secret()));
    let value = HeaderValue::try_from(format!("Basic {text}"));
    let mut value = value.map_err(|_| Error::internal("A token does not fit a header."))?;
    value.set_sensitive(true);
    Ok(value)
}

fn back(response: Response<Answer>) -> Response<Body> {
    let (head, body) = response.into_parts();
    let mut answer = Response::new(body.boxed_unsync());
    *answer.status_mut() = head.status;
    for name in PASSED_BACK {
        if let (Some(value), Ok(name)) = (head.headers.get(name), header::HeaderName::try_from(name)) {
            answer.headers_mut().insert(name, value.clone());
        }
    }
    answer
}

fn plain(status: StatusCode, text: &str) -> Response<Body> {
    let body = Full::new(Bytes::from(text.to_owned())).map_err(|never| match never {}).boxed_unsync();
    let mut answer = Response::new(body);
    *answer.status_mut() = status;
    answer
}
