//! The configuration as every command finds it: file, environment, command line.

use std::path::{Path, PathBuf};

use evenkeel_core::Error;
use evenkeel_server::{Config, Overrides};

/// The file that is used when it is there and none is named.
const FILE: &str = "evenkeel.toml";

/// Which configuration.
#[derive(clap::Args, Clone, Debug, Default)]
pub(crate) struct Choice {
    /// The configuration file; without it `evenkeel.toml` in this directory if it is there, else
    /// the defaults
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Where the store, workspaces and snapshots are kept (`server.data_dir`)
    #[arg(long, global = true, value_name = "DIR")]
    pub(crate) data_dir: Option<PathBuf>,
    /// Where threads and runs are kept (`server.store`); a URL with a password is better put into
    /// the variable EVENKEEL_SERVER__STORE, where other users do not see it
    #[arg(long, global = true, value_name = "sqlite|memory|URL")]
    pub(crate) store: Option<String>,
}

impl Choice {
    /// The file that is read, if one is.
    pub(crate) fn file(&self) -> Option<&Path> {
        self.config.as_deref().or_else(|| Some(Path::new(FILE)).filter(|path| path.is_file()))
    }

    /// Reads and checks it, with further keys set on top.
    pub(crate) fn load(&self, set: &[(&str, String)]) -> Result<Config, Error> {
        let mut overrides = Overrides::of_process();
        for (key, value) in set {
            overrides = overrides.with(*key, value);
        }
        if let Some(dir) = &self.data_dir {
            overrides = overrides.with("server.data_dir", dir.display().to_string());
        }
        if let Some(store) = &self.store {
            overrides = overrides.with("server.store", store);
        }
        Config::load(self.file(), &overrides)
    }
}

#[cfg(test)]
mod tests;
