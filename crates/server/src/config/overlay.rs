//! What lies on top of the file: `EVENKEEL_SECTION__KEY` variables and the command line.

use std::collections::BTreeMap;
use std::fmt;

use evenkeel_core::{Code, Error, Origin};
use secrecy::SecretString;

/// The prefix of variables that set configuration keys.
const PREFIX: &str = "EVENKEEL_";

/// The process's variables, kept so that `env:NAME` values can be resolved. `Debug` shows names only.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Environment(BTreeMap<String, String>);

impl Environment {
    /// The variables of this process. Variables that are not UTF-8 are left out.
    #[must_use]
    pub fn of_process() -> Self {
        Self(
            std::env::vars_os()
                .filter_map(|(k, v)| Some((k.into_string().ok()?, v.into_string().ok()?)))
                .collect(),
        )
    }

    /// These variables.
    #[must_use]
    pub fn from_pairs<'a>(pairs: impl IntoIterator<Item = (&'a str, &'a str)>) -> Self {
        Self(pairs.into_iter().map(|(k, v)| (k.to_owned(), v.to_owned())).collect())
    }

    /// A variable's value.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    /// The secret that a value such as `env:ACME_KEY` names.
    ///
    /// # Errors
    /// `config-invalid` if it does not begin with `env:`, `provider-key-missing` if the variable is
    /// not set or empty.
    pub fn secret(&self, key: &str, reference: &str) -> Result<SecretString, Error> {
        let Some(name) = reference.strip_prefix("env:") else {
            return Err(super::invalid(
                format!("{key} does not name a variable."),
                "Write `env:NAME` and put the secret into the variable NAME, never into the file.",
            ));
        };
        match self.get(name).filter(|value| !value.is_empty()) {
            Some(value) => Ok(SecretString::from(value.to_owned())),
            None => Err(Error::new(
                Code::KeyMissing,
                Origin::Ours,
                format!("{key} = \"{reference}\", and the variable {name} is not set."),
                format!("Set {name}, or remove what needs it from the configuration."),
            )),
        }
    }
}

impl fmt::Debug for Environment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0.keys()).finish()
    }
}

/// What lies on top of the file; later entries win.
#[derive(Clone, Debug, Default)]
pub struct Overrides {
    /// Variables; those that begin with `EVENKEEL_` and hold `__` set keys.
    pub environment: Environment,
    /// Keys by their dotted path, such as `server.listen`, from the command line.
    pub set: Vec<(String, String)>,
}

/// One override with the words for where it came from.
pub(super) struct Setting {
    /// The key's path.
    pub(super) path: Vec<String>,
    /// The value as typed.
    pub(super) value: String,
    /// `the variable EVENKEEL_...` or `the setting a.b`.
    pub(super) source: String,
}

impl Overrides {
    /// The overrides of this process's environment.
    #[must_use]
    pub fn of_process() -> Self {
        Self { environment: Environment::of_process(), set: Vec::new() }
    }

    /// The same with one more key set; the last word on it.
    #[must_use]
    pub fn with(mut self, path: impl Into<String>, value: impl Into<String>) -> Self {
        self.set.push((path.into(), value.into()));
        self
    }

    /// All settings in the order in which they are laid on.
    pub(super) fn settings(&self) -> Vec<Setting> {
        let variables = self.environment.0.iter().filter_map(|(name, value)| {
            let path = name.strip_prefix(PREFIX).filter(|rest| rest.contains("__") || *rest == "PROTECT")?;
            Some(Setting {
                path: path.split("__").map(str::to_lowercase).collect(),
                value: value.clone(),
                source: format!("the variable {name}"),
            })
        });
        let set = self.set.iter().map(|(path, value)| Setting {
            path: path.split('.').map(str::to_owned).collect(),
            value: value.clone(),
            source: format!("the setting {path}"),
        });
        variables.chain(set).collect()
    }
}
