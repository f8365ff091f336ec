//! From a name or a file to a scenario, with errors that name the place.

use std::path::Path;

use evenkeel_core::{Code, Error, Origin};
use serde::Deserialize;
use toml::Spanned;

use super::embedded::EMBEDDED;
use super::{Scenario, Target, fault};
use crate::plan;

/// The scenario of this name, or in this file.
///
/// # Errors
/// `scenario-invalid` if there is none, or it does not say what a scenario must say.
pub fn find(name_or_file: &str) -> Result<Scenario, Error> {
    find_with_plan(name_or_file).map(|(scenario, _)| scenario)
}

/// The same with what the file says for `lab plan`.
///
/// # Errors
/// As [`find`].
pub fn find_with_plan(name_or_file: &str) -> Result<(Scenario, plan::Keys), Error> {
    if let Some((name, text)) = EMBEDDED.iter().find(|(name, _)| *name == name_or_file) {
        return parse_with_plan(&format!("scenarios/{name}.toml"), text);
    }
    let looks_like_file = name_or_file.ends_with(".toml") || Path::new(name_or_file).exists();
    if !looks_like_file {
        return Err(invalid(
            format!("There is no scenario '{name_or_file}'."),
            "See `evenkeel lab list`, or give the path of a TOML file.",
        ));
    }
    let text = std::fs::read_to_string(name_or_file).map_err(|error| {
        invalid(format!("Cannot read {name_or_file}: {error}."), "Give the path of a readable TOML file.")
    })?;
    parse_with_plan(name_or_file, &text)
}

/// A scenario from text; `file` stands for it in messages.
///
/// # Errors
/// `scenario-invalid`.
pub fn parse(file: &str, text: &str) -> Result<Scenario, Error> {
    parse_with_plan(file, text).map(|(scenario, _)| scenario)
}

fn parse_with_plan(file: &str, text: &str) -> Result<(Scenario, plan::Keys), Error> {
    let complain = |error: &toml::de::Error| {
        let at = error.span().map_or_else(|| file.to_owned(), |span| place(file, text, span.start));
        let message = error.message().trim_end_matches('.').replace('\n', "; ");
        invalid(format!("{at}: {message}."), "Correct that line; docs and `scenarios/` show every key.")
    };
    let mut keys: Keys = toml::from_str(text).map_err(|error| complain(&error))?;
    let plan = match keys.plan.take() {
        None => plan::Keys::default(),
        Some(spanned) => {
            let at = place(file, text, spanned.span().start);
            let plan = spanned.into_inner();
            match plan.problem() {
                Some(words) => return Err(invalid(format!("{at}: {words}"), "Correct that key of [plan].")),
                None => plan,
            }
        }
    };
    let (mut scenario, faults) = keys.split();
    for (idx, spanned) in (1..).zip(faults) {
        let at = place(file, text, spanned.span().start);
        let planned = fault::read(spanned.into_inner());
        let planned = planned.map_err(|words| {
            invalid(
                format!("{at}: fault {idx}: {words}"),
                "Correct that fault; `scenarios/` shows every kind.",
            )
        })?;
        scenario.faults.push(planned);
    }
    check_targets(&scenario)
        .or_else(|| scenario.problem())
        .map_or(Ok((scenario, plan)), |words| Err(invalid(format!("{file}: {words}"), "Correct the value.")))
}

/// The keys of a file: those of [`Scenario`], with the faults still as tables and their places.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Keys {
    name: String,
    about: String,
    #[serde(default = "super::one")]
    seed: u64,
    #[serde(default)]
    protect: super::Protect,
    #[serde(default)]
    topology: super::Topology,
    traffic: super::Traffic,
    #[serde(default)]
    chat: super::Chat,
    #[serde(default)]
    model: super::Timing,
    #[serde(default = "super::two_providers")]
    provider: Vec<super::Provider>,
    #[serde(default)]
    limits: super::Limits,
    #[serde(default)]
    fault: Vec<Spanned<toml::Table>>,
    goals: super::Goals,
    plan: Option<Spanned<plan::Keys>>,
}

impl Keys {
    fn split(self) -> (Scenario, Vec<Spanned<toml::Table>>) {
        let scenario = Scenario {
            name: self.name,
            about: self.about,
            seed: self.seed,
            protect: self.protect,
            topology: self.topology,
            traffic: self.traffic,
            chat: self.chat,
            model: self.model,
            provider: self.provider,
            limits: self.limits,
            faults: Vec::new(),
            goals: self.goals,
        };
        (scenario, self.fault)
    }
}

fn check_targets(scenario: &Scenario) -> Option<String> {
    scenario.faults.iter().find_map(|fault| match &fault.target {
        Target::Provider(name) if !scenario.provider.iter().any(|provider| provider.name == *name) => {
            Some(format!("a fault is aimed at provider:{name}, but there is no such [[provider]]."))
        }
        _ => None,
    })
}

fn place(file: &str, text: &str, at: usize) -> String {
    let n_lines = text.bytes().take(at).filter(|byte| *byte == b'\n').count();
    format!("{file}:{}", n_lines + 1)
}

pub(super) fn invalid(message: String, remedy: &'static str) -> Error {
    Error::new(Code::ScenarioInvalid, Origin::Ours, message, remedy)
}
