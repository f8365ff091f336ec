//! `evenkeel keys create|list|revoke`: API keys in the store.
//!
//! SQLite has one writer, so the server must be stopped; the lock says so if it is not. A key is
//! shown once, when it is made: the store keeps its hash only.

use std::process::ExitCode;
use std::time::Duration;

use base64::Engine as _;
use clap::builder::NonEmptyStringValueParser;
use evenkeel_core::Wall;
use evenkeel_core::id::TenantId;
use evenkeel_core::port::store::{ApiKey, StoreClient};
use evenkeel_env::Env;
use evenkeel_server::app::store;
use serde_json::json;
use sha2::{Digest, Sha256};

use crate::cmd::Done;
use crate::cmd::configure::Choice;
use crate::output::{self, Style};

/// Arguments of `keys`.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  evenkeel keys create ci --data-dir /var/lib/evenkeel
  evenkeel keys create team-a --tenant team-a --calls-per-min 600 --expires-days 90
  evenkeel keys list
  evenkeel keys revoke ci

The server must be stopped while keys are changed. Clients send a key as `x-api-key`; the LangGraph SDK
reads it from LANGGRAPH_API_KEY, `evenkeel` from EVENKEEL_API_KEY.")]
pub(crate) struct Args {
    #[command(subcommand)]
    action: Action,
    #[command(flatten)]
    choice: Choice,
    /// Print JSON
    #[arg(long, global = true)]
    json: bool,
}

#[derive(clap::Subcommand)]
enum Action {
    /// Make a key and print it, this once
    Create {
        /// A name for lists, unique
        #[arg(value_parser = NonEmptyStringValueParser::new())]
        name: String,
        /// Whose requests it makes
        #[arg(long, default_value = "default", value_parser = NonEmptyStringValueParser::new())]
        tenant: String,
        /// Requests per minute; no limit of its own without it
        #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
        calls_per_min: Option<u32>,
        /// Days until it is no longer valid; for ever without it
        #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
        expires_days: Option<u32>,
    },
    /// All keys, without the keys themselves
    List,
    /// Make a key invalid
    Revoke {
        /// Its name
        name: String,
    },
}

/// Carries out the action.
pub(crate) async fn run(env: &Env, args: Args) -> Done {
    let config = args.choice.load(&[])?;
    let engine = store::open(env, &config).await?.store;
    let store = StoreClient(engine);
    match args.action {
        Action::Create { name, tenant, calls_per_min, expires_days } => {
            if store.list_keys(()).await?.iter().any(|key| key.name == name) {
                return Err(output::usage(
                    format!("There is a key named `{name}`."),
                    "Choose another name, or revoke the old key first.",
                ));
            }
            let now = env.wall();
            let secret = secret();
            let key = ApiKey {
                hash: hash(&secret),
                tenant: TenantId(tenant),
                name,
                calls_per_min,
                expires_at: expires_days.map(|days| now.after(Duration::from_secs(u64::from(days) * 86_400))),
                created_at: now,
            };
            store.put_key(key.clone()).await?;
            show_created(&key, &secret, args.json)?;
        }
        Action::List => list(&store, env.wall(), args.json).await?,
        Action::Revoke { name } => revoke(&store, &name).await?,
    }
    Ok(ExitCode::SUCCESS)
}

/// 256 random bits in letters that need no quoting.
fn secret() -> String {
    let mut bytes = [0u8; 32];
    evenkeel_env::clock::os_random(&mut bytes);
    format!("ek_{}", base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(bytes))
}

/// What the store keeps: SHA-256 in hex. A key has 256 random bits, so a slow hash adds nothing.
fn hash(secret: &str) -> String {
    Sha256::digest(secret.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect()
}

fn show_created(key: &ApiKey, secret: &str, json: bool) -> anyhow::Result<()> {
    if json {
        output::json(
            &json!({ "name": key.name, "tenant": key.tenant, "key": secret, "expires_at": key.expires_at.map(Wall::iso) }),
        )?;
        return Ok(());
    }
    eprintln!("key {} for tenant {}; it is shown only now:", key.name, key.tenant);
    output::line(format_args!("{secret}"))
}

async fn list(store: &StoreClient, now: Wall, json: bool) -> anyhow::Result<()> {
    let keys = store.list_keys(()).await?;
    if json {
        let shown = keys.iter().map(|key| {
            json!({
                "name": key.name, "tenant": key.tenant, "calls_per_min": key.calls_per_min,
                "created_at": key.created_at.iso(), "expires_at": key.expires_at.map(Wall::iso),
            })
        });
        output::json(&shown.collect())?;
        return Ok(());
    }
    if keys.is_empty() {
        output::line(format_args!("no keys"))?;
        return Ok(());
    }
    let rows: Vec<Vec<String>> = keys.iter().map(|key| row(key, now)).collect();
    output::line(format_args!(
        "{}",
        output::table(Style::stdout(), &["NAME", "TENANT", "CALLS/MIN", "CREATED", "EXPIRES"], &rows)
    ))?;
    Ok(())
}

fn row(key: &ApiKey, now: Wall) -> Vec<String> {
    let expires = match key.expires_at {
        Some(at) if at <= now => "expired".to_owned(),
        Some(at) => at.iso(),
        None => "never".to_owned(),
    };
    let rate = key.calls_per_min.map_or_else(|| "-".to_owned(), |rate| rate.to_string());
    vec![key.name.clone(), key.tenant.to_string(), rate, key.created_at.iso(), expires]
}

async fn revoke(store: &StoreClient, name: &str) -> anyhow::Result<()> {
    let keys = store.list_keys(()).await?;
    let Some(key) = keys.into_iter().find(|key| key.name == name) else {
        return Err(output::usage(
            format!("There is no key named `{name}`."),
            "`evenkeel keys list` shows the names.",
        ));
    };
    store.remove_key(key.hash).await?;
    output::line(format_args!("revoked {name}"))?;
    Ok(())
}
