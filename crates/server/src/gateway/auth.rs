//! Who calls: API keys, hashed, bound to a tenant.
//!
//! Only the SHA-256 of a key is ever stored or compared. Lookups are remembered for a short time,
//! so a removed key stops working within [`REMEMBERED`].

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use evenkeel_core::id::TenantId;
use evenkeel_core::port::store::{ApiKey, StoreClient};
use evenkeel_core::{Code, Error, Mono, Wall};
use evenkeel_env::Env;
use http::HeaderMap;
use secrecy::ExposeSecret;
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use crate::config::{AuthMode, Config};

/// The tenant of everybody where no key is needed.
const OPEN_TENANT: &str = "default";
/// The tenant whose keys may see and change what belongs to the server itself.
const OPERATOR_TENANT: &str = "operator";
/// How long a lookup is remembered.
const REMEMBERED: Duration = Duration::from_secs(5);
/// Lookups remembered at most.
const REMEMBERED_MAX: usize = 10_000;

/// Who makes a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Caller {
    /// Whose rows it may see.
    pub(crate) tenant: TenantId,
    /// Whether it may see and change what belongs to the server itself.
    pub(crate) operator: bool,
    /// The key's name, for what is kept of who did what; empty where no key is needed.
    pub(crate) name: String,
    /// The key's hash, for its rate; `None` where no key is needed.
    pub(crate) key: Option<String>,
    /// The key's own rate.
    pub(crate) calls_per_min: Option<u32>,
}

impl Caller {
    /// Refuses callers that are no operator.
    pub(crate) fn must_operate(&self) -> Result<(), Error> {
        if self.operator {
            return Ok(());
        }
        Err(Error::client(
            Code::Forbidden,
            format!("A key of tenant {} may not do this.", self.tenant),
            "Use a key of the tenant `operator`.",
        ))
    }
}

/// Knows who holds which key.
pub(crate) struct Auth {
    mode: AuthMode,
    store: StoreClient,
    configured: Vec<ApiKey>,
    remembered: Mutex<BTreeMap<String, (Mono, Option<ApiKey>)>>,
}

impl Auth {
    /// With the keys of the configuration; others are looked up in the store.
    pub(crate) fn new(config: &Config, store: StoreClient) -> Result<Self, Error> {
        let key = |(name, section): (&String, &crate::config::KeySection)| {
            let secret = config.environment.secret(&format!("auth.keys.{name}.key"), &section.key)?;
            Ok(ApiKey {
                hash: hash(secret.expose_secret()),
                tenant: TenantId(section.tenant.clone()),
                name: name.clone(),
                calls_per_min: section.calls_per_min,
                expires_at: None,
                created_at: Wall(0),
            })
        };
        let configured = config.auth.keys.iter().map(key).collect::<Result<_, Error>>()?;
        Ok(Self { mode: config.auth.mode, store, configured, remembered: Mutex::default() })
    }

    /// Who makes this request.
    pub(crate) async fn caller(&self, env: &Env, headers: &HeaderMap) -> Result<Caller, Error> {
        if self.mode == AuthMode::Open {
            let tenant = TenantId::from(OPEN_TENANT);
            return Ok(Caller {
                tenant,
                operator: true,
                name: String::new(),
                key: None,
                calls_per_min: None,
            });
        }
        let key = presented(headers).ok_or_else(|| {
            Error::client(
                Code::Unauthenticated,
                "The request carries no API key.",
                "Send it as `x-api-key: KEY` or `Authorization: Bearer KEY`.",
            )
        })?;
        let hash = hash(key);
        let known = self.find(env, &hash).await?;
        let valid = known.filter(|key| key.expires_at.is_none_or(|at| at > env.wall()));
        let key = valid.ok_or_else(|| {
            Error::client(
                Code::Unauthenticated,
                "The API key is not known or has expired.",
                "Ask the operator of this server for a key.",
            )
        })?;
        Ok(Caller {
            operator: key.tenant.as_str() == OPERATOR_TENANT,
            tenant: key.tenant,
            name: key.name,
            key: Some(key.hash),
            calls_per_min: key.calls_per_min,
        })
    }

    async fn find(&self, env: &Env, hash: &str) -> Result<Option<ApiKey>, Error> {
        if let Some(key) = self.configured.iter().find(|key| same(&key.hash, hash)) {
            return Ok(Some(key.clone()));
        }
        if let Some(remembered) = self.remembered(env.mono(), hash) {
            return Ok(remembered);
        }
        let found = self.store.find_key(hash.to_owned()).await?.filter(|key| same(&key.hash, hash));
        let mut remembered = self.remembered.lock().unwrap_or_else(PoisonError::into_inner);
        if remembered.len() >= REMEMBERED_MAX {
            remembered.clear();
        }
        remembered.insert(hash.to_owned(), (env.mono(), found.clone()));
        Ok(found)
    }

    fn remembered(&self, now: Mono, hash: &str) -> Option<Option<ApiKey>> {
        let remembered = self.remembered.lock().unwrap_or_else(PoisonError::into_inner);
        remembered.get(hash).filter(|(at, _)| now.since(*at) < REMEMBERED).map(|(_, key)| key.clone())
    }
}

/// The key that a request carries.
fn presented(headers: &HeaderMap) -> Option<&str> {
    let own = headers.get("x-api-key").and_then(|value| value.to_str().ok());
    let bearer = headers.get(http::header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    own.or_else(|| bearer.and_then(|value| value.strip_prefix("Bearer "))).filter(|key| !key.is_empty())
}

/// The form in which keys are stored and compared: SHA-256 in lower-case hex.
pub(crate) fn hash(key: &str) -> String {
    Sha256::digest(key.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Compares without telling by its time how much was equal.
fn same(a: &str, b: &str) -> bool {
    a.as_bytes().ct_eq(b.as_bytes()).into()
}
