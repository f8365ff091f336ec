//! Pull requests by GitHub's REST API, which other forges speak too.
//!
//! One that is open for the branch is the one; otherwise it is made, and then read back.

use std::time::Duration;

use bytes::Bytes;
use evenkeel_core::Error;
use evenkeel_core::port::forge::Delivery;
use evenkeel_env::Env;
use evenkeel_env::http::Client;
use http::{Method, Request, StatusCode, header};
use http_body_util::{BodyExt as _, Limited};
use secrecy::{ExposeSecret as _, SecretString};
use serde_json::{Value, json};
use tokio::time::timeout;

use super::commit::title;
use super::{Place, later, never};

/// How long one answer may take.
const ANSWER_MAX: Duration = Duration::from_secs(30);
/// Bytes of one answer.
const ANSWER_BYTES_MAX: usize = 4 << 20;

/// The pull requests of one repository.
pub(super) struct PullRequests<'a> {
    client: Client,
    place: &'a Place<'a>,
    /// The address of the repository in the API.
    address: String,
}

impl<'a> PullRequests<'a> {
    pub(super) fn new(env: &Env, place: &'a Place<'a>) -> Result<Self, Error> {
        let host = place.base.split_once("://").map_or("", |(_, host)| host);
        let api = place.host.config.api_of(host).ok_or_else(|| {
            never(
                format!("The address of the API of {host} is not known, so no pull request can be made."),
                "Set git.hosts.NAME.api, or deliver without a pull request.",
            )
        })?;
        let address = format!("{api}/repos/{}", place.name);
        Ok(Self { client: Client::new(env, Duration::from_secs(10)), place, address })
    }

    /// The open pull request of a branch, made if there is none; its address for people.
    pub(super) async fn open(&self, delivery: &Delivery, branch: &str, base: &str) -> Result<String, Error> {
        let number = match self.find(branch, base).await? {
            Some(number) => number,
            None => self.make(delivery, branch, base).await?,
        };
        let shown = self.ask(Method::GET, &format!("/pulls/{number}"), None).await?;
        match (shown["head"]["ref"].as_str(), shown["html_url"].as_str()) {
            (Some(head), Some(address)) if head == branch => Ok(address.to_owned()),
            _ => Err(later(format!("The forge does not show pull request {number} of {branch}."))),
        }
    }

    async fn find(&self, branch: &str, base: &str) -> Result<Option<u64>, Error> {
        let owner = self.place.name.split('/').next().unwrap_or_default();
        let query = format!("/pulls?state=open&head={owner}:{branch}&base={base}");
        let found = self.ask(Method::GET, &query, None).await?;
        let of_branch = |request: &&Value| request["head"]["ref"] == branch;
        Ok(found.as_array().into_iter().flatten().find(of_branch).and_then(|found| found["number"].as_u64()))
    }

    async fn make(&self, delivery: &Delivery, branch: &str, base: &str) -> Result<u64, Error> {
        let body = json!({ "title": title(delivery), "head": branch, "base": base, "body": delivery.text });
        let made = self.ask(Method::POST, "/pulls", Some(&body)).await?;
        made["number"]
            .as_u64()
            .ok_or_else(|| later("The forge names no number for a pull request.".to_owned()))
    }

    async fn ask(&self, method: Method, path: &str, body: Option<&Value>) -> Result<Value, Error> {
        let method = &method;
        let ask = |token| async move { self.ask_with(method, path, body, &token).await };
        let (status, answer) = self.place.host.tokens.ask(ask).await?;
        judged(status, answer)
    }

    async fn ask_with(
        &self,
        method: &Method,
        path: &str,
        body: Option<&Value>,
        token: &SecretString,
    ) -> Result<(StatusCode, Value), Error> {
        let request = Request::builder()
            .method(method)
            .uri(format!("{}{path}", self.address))
            .header(header::AUTHORIZATION, format!("Bearer {}", token.expose_secret()))
            .header(header::ACCEPT, "application/vnd.github+json")
            .header(header::CONTENT_TYPE, "application/json")
            .header(header::USER_AGENT, "evenkeel");
        let bytes = body.map(Value::to_string).unwrap_or_default();
        let request = request.body(Bytes::from(bytes)).map_err(|_| {
            never("The address of the forge's API is none.".to_owned(), "Check git.hosts.NAME.api.")
        })?;
        let asked = timeout(ANSWER_MAX, async {
            let response = self.client.send(request).await.map_err(|error| error.to_string())?;
            let status = response.status();
            let body = Limited::new(response.into_body(), ANSWER_BYTES_MAX).collect().await;
            let body = body.map_err(|error| error.to_string())?.to_bytes();
            Ok::<_, String>((status, serde_json::from_slice(&body).unwrap_or_default()))
        });
        let answered = asked.await.unwrap_or_else(|_| Err("it did not answer in time".to_owned()));
        answered.map_err(|why| later(format!("The forge's API cannot be asked: {why}.")))
    }
}

/// What is worth another try: a forge that is down or busy, or a race with a request of the same kind.
fn judged(status: StatusCode, answer: Value) -> Result<Value, Error> {
    if status.is_success() {
        return Ok(answer);
    }
    let said = answer["message"].as_str().unwrap_or("no reason");
    let said: String = said.chars().take(200).collect();
    let text = format!("The forge answers {}: {said}.", status.as_u16());
    let is_busy = status.is_server_error()
        || [408, 409, 425, 429].contains(&status.as_u16())
        || said.contains("already exists")
        || said.contains("rate limit");
    if is_busy { Err(later(text)) } else { Err(never(text, "Check the token's rights and the repository.")) }
}
