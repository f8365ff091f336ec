//! Tokens of one host: minted when they are used, and again when the forge has refused one.

use std::process::Stdio;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use evenkeel_core::{Code, Error, Mono, Origin};
use evenkeel_env::Env;
use http::StatusCode;
use secrecy::{ExposeSecret, SecretString};
use tokio::time::timeout;

use super::config::HostConfig;
use super::{Variable, later};

/// A program that mints a token must answer within this time.
const MINT_MAX: Duration = Duration::from_secs(30);

/// Where tokens come from.
enum Source {
    Variable(String),
    File(String),
    Command(Vec<String>),
}

/// The tokens of one host.
pub(super) struct Tokens {
    env: Env,
    host: String,
    source: Source,
    variable: Variable,
    age_max: Duration,
    held: Mutex<Option<(SecretString, Mono)>>,
}

impl Tokens {
    /// Reads nothing yet.
    pub(super) fn new(env: &Env, host: &str, config: &HostConfig, variable: Variable) -> Result<Self, Error> {
        let source = match config.token.split_once(':') {
            Some(("env", name)) if !name.is_empty() => Source::Variable(name.to_owned()),
            Some(("file", path)) if !path.is_empty() => Source::File(path.to_owned()),
            Some(("command", line)) if !line.trim().is_empty() => {
                Source::Command(line.split_whitespace().map(str::to_owned).collect())
            }
            _ => return Err(unknown_source(host)),
        };
        Ok(Self {
            env: env.clone(),
            host: host.to_owned(),
            source,
            variable,
            age_max: Duration::from_secs(config.token_s_max),
            held: Mutex::default(),
        })
    }

    /// Asks with a token, and once more with another one if the forge refuses the first.
    pub(super) async fn ask<T, F>(&self, ask: impl Fn(SecretString) -> F) -> Result<(StatusCode, T), Error>
    where
        F: Future<Output = Result<(StatusCode, T), Error>>,
    {
        let token = self.get(None).await?;
        match ask(token.clone()).await? {
            (StatusCode::UNAUTHORIZED, _) => {}
            answered => return Ok(answered),
        }
        let fresh = self.get(Some(&token)).await?;
        match ask(fresh).await? {
            (StatusCode::UNAUTHORIZED, _) => {
                Err(later(format!("{} refuses the token that was minted for it.", self.host)))
            }
            answered => Ok(answered),
        }
    }

    /// A token; another one than `refused`, if the source has one.
    async fn get(&self, refused: Option<&SecretString>) -> Result<SecretString, Error> {
        if let Some(token) = self.held(refused) {
            return Ok(token);
        }
        let minted = self.mint().await?;
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        *held = Some((minted.clone(), self.env.mono()));
        Ok(minted)
    }

    fn held(&self, refused: Option<&SecretString>) -> Option<SecretString> {
        let held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        let (token, at) = held.as_ref()?;
        let is_old = self.env.mono().since(*at) >= self.age_max;
        let was_refused = refused.is_some_and(|refused| refused.expose_secret() == token.expose_secret());
        (!is_old && !was_refused).then(|| token.clone())
    }

    async fn mint(&self) -> Result<SecretString, Error> {
        let (text, place) = match &self.source {
            Source::Variable(name) => ((self.variable)(name), format!("the variable {name}")),
            Source::File(path) => (tokio::fs::read_to_string(path).await.ok(), format!("the file {path}")),
            Source::Command(line) => (self.print(line).await, "the program that mints it".to_owned()),
        };
        let token = text.unwrap_or_default().trim().to_owned();
        // A header cannot carry anything else.
        let is_good = !token.is_empty() && token.chars().all(|c| c.is_ascii_graphic());
        if !is_good {
            return Err(later(format!("There is no token for {}: {place} gave none.", self.host)));
        }
        Ok(SecretString::from(token))
    }

    /// What a program prints, if it ends well and in time.
    async fn print(&self, line: &[String]) -> Option<String> {
        let (program, arguments) = line.split_first()?;
        let mut command = evenkeel_env::process::command(program);
        command.args(arguments).env("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin");
        if let Some(home) = (self.variable)("HOME") {
            command.env("HOME", home);
        }
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        let output = timeout(MINT_MAX, command.output()).await.ok()?.ok()?;
        if !output.status.success() {
            tracing::warn!(host = self.host, status = %output.status, "no token was minted");
            return None;
        }
        String::from_utf8(output.stdout).ok()
    }
}

fn unknown_source(host: &str) -> Error {
    Error::new(
        Code::ConfigInvalid,
        Origin::Ours,
        format!("git.hosts.{host}.token does not say where the token comes from."),
        "Write env:NAME, file:PATH or command:PROGRAM; a token itself never stands in the configuration.",
    )
}
