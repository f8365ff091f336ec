//! Where providers' keys come from. They live in secret types only and are never logged.

use std::collections::BTreeMap;

use evenkeel_core::{Code, Error, Origin};
use secrecy::SecretString;

use super::RouterConfig;

/// The keys of all providers, read once at start.
#[derive(Clone, Default)]
pub struct ProviderKeys {
    by_provider: BTreeMap<String, Vec<SecretString>>,
}

impl ProviderKeys {
    /// Reads every key that the configuration names, from the environment and from files.
    ///
    /// # Errors
    /// `provider-key-missing` when a variable is unset or a file unreadable, `config-invalid` when a
    /// key is written literally.
    pub fn read(config: &RouterConfig) -> Result<Self, Error> {
        Self::read_with(config, |name| std::env::var(name).ok())
    }

    /// The same with the environment given.
    ///
    /// # Errors
    /// As [`ProviderKeys::read`].
    pub fn read_with(
        config: &RouterConfig,
        variable: impl Fn(&str) -> Option<String>,
    ) -> Result<Self, Error> {
        let mut by_provider = BTreeMap::new();
        for (name, provider) in &config.providers {
            let keys: Result<Vec<_>, Error> =
                provider.keys.iter().map(|key| read_one(name, key, &variable)).collect();
            by_provider.insert(name.clone(), keys?);
        }
        Ok(Self { by_provider })
    }

    /// The keys of one provider, in the order of the configuration.
    #[must_use]
    pub fn of(&self, provider: &str) -> &[SecretString] {
        self.by_provider.get(provider).map_or(&[], Vec::as_slice)
    }
}

fn read_one(
    provider: &str,
    key: &str,
    variable: &impl Fn(&str) -> Option<String>,
) -> Result<SecretString, Error> {
    if let Some(name) = key.strip_prefix("env:") {
        let value = variable(name).filter(|value| !value.is_empty());
        return value.map(SecretString::from).ok_or_else(|| missing(provider, &format!("variable {name}")));
    }
    if let Some(path) = key.strip_prefix("file:") {
        let text = std::fs::read_to_string(path).unwrap_or_default();
        let text = text.trim();
        return if text.is_empty() {
            Err(missing(provider, &format!("file {path}")))
        } else {
            Ok(SecretString::from(text.to_owned()))
        };
    }
    if key.starts_with("test:") {
        return Ok(SecretString::from(key.to_owned()));
    }
    Err(Error::new(
        Code::ConfigInvalid,
        Origin::Ours,
        format!("A key of provider {provider} is written into the configuration."),
        "Write env:NAME or file:PATH instead, and withdraw the key if the file was shared.",
    ))
}

fn missing(provider: &str, place: &str) -> Error {
    Error::new(
        Code::KeyMissing,
        Origin::Ours,
        format!("The key of provider {provider} is not set: {place} is empty or unreadable."),
        "Set it and start again, or remove the key or the provider from the configuration.",
    )
}
