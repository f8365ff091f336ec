//! The tool policy engine: Cedar policies over normalised facts.
//!
//! Nothing is allowed but what a policy permits; `forbid` wins; an error in evaluation is a deny.
//! Decisions are made on facts, not on what was typed: the path after links were followed, each
//! simple command of a shell call (`shell`), the tool of a foreign server. A call is allowed if
//! all of its facts are. A `forbid` that carries `@ask("...")` asks a person instead, unless
//! another one denies.
//!
//! Policies are checked against the schema; a fault names file, line and column and stops the start.
//! Files that change are read again while the server runs (`watch`); a fault then leaves the old
//! ones in force. `log-only` lets every call run and logs what would have been denied.

pub(crate) mod facts;
mod load;
mod shell;
pub(crate) mod watch;

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::{Arc, PoisonError, RwLock};

use cedar_policy::{
    Authorizer, Context, Decision, Entities, Entity, EntityId, EntityTypeName, EntityUid, PolicyId,
    PolicySet, Request, RestrictedExpression,
};
use evenkeel_core::Error;
use evenkeel_core::id::{RunId, TenantId};
use evenkeel_core::journal::Verdict;

use crate::config::{PolicyConfig, PolicyMode};
pub(crate) use facts::{Fact, Network};
pub(crate) use shell::{Redirect, Script, script as shell_script};

/// The policies in force, which can be read again while calls are judged.
pub struct Policy {
    config: PolicyConfig,
    loaded: RwLock<Arc<Loaded>>,
}

/// One state of the policies. A call is judged by one of them as a whole.
struct Loaded {
    policies: PolicySet,
    authorizer: Authorizer,
    names: Names,
}

/// Who asks.
#[derive(Clone, Debug)]
pub(crate) struct Who {
    pub(crate) tenant: TenantId,
    pub(crate) run: RunId,
    pub(crate) agent: String,
}

/// What policy says about a call, and which policies decided.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Judgement {
    pub(crate) verdict: Verdict,
    pub(crate) policies: Vec<String>,
    /// The same for each fact by itself.
    pub(crate) parts: Vec<Judged>,
}

/// What policy says about one thing that a call would do.
#[derive(Clone, Debug, PartialEq)]
pub struct Judged {
    /// The action.
    pub action: &'static str,
    /// The resource, as reasons name it.
    pub resource: String,
    /// The verdict on it alone.
    pub verdict: Verdict,
    /// The policies that decided.
    pub policies: Vec<String>,
}

impl Judgement {
    /// For what policy does not speak of.
    pub(crate) fn unasked() -> Self {
        Self { verdict: Verdict::Allow, policies: Vec::new(), parts: Vec::new() }
    }
}

/// Type names, parsed once.
struct Names {
    tenant: EntityTypeName,
    run: EntityTypeName,
    action: EntityTypeName,
}

impl Policy {
    /// Reads and checks the policies that the configuration names.
    ///
    /// # Errors
    /// `policy-invalid` with file and line.
    pub fn load(config: &PolicyConfig) -> Result<Self, Error> {
        let loaded = RwLock::new(Arc::new(Loaded::read(config)?));
        Ok(Self { config: config.clone(), loaded })
    }

    /// Reads the files again. A fault leaves what was in force in force.
    ///
    /// # Errors
    /// `policy-invalid` with file, line and column.
    pub fn reload(&self) -> Result<(), Error> {
        let fresh = Arc::new(Loaded::read(&self.config)?);
        *self.loaded.write().unwrap_or_else(PoisonError::into_inner) = fresh;
        Ok(())
    }

    /// The files of the operator.
    #[must_use]
    pub fn files(&self) -> &[PathBuf] {
        &self.config.files
    }

    /// The names of the policies in force, in order.
    #[must_use]
    pub fn ids(&self) -> Vec<String> {
        let mut ids: Vec<String> =
            self.loaded().policies.policies().map(|policy| policy.id().to_string()).collect();
        ids.sort();
        ids
    }

    fn loaded(&self) -> Arc<Loaded> {
        self.loaded.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Judges a call by its facts; every one must be allowed.
    pub(crate) fn judge(&self, who: &Who, tool: &str, facts: &[Fact]) -> Judgement {
        let mut policies: Vec<String> = Vec::new();
        let mut verdict = Verdict::Allow;
        let loaded = self.loaded();
        let mut parts = Vec::with_capacity(facts.len());
        for fact in facts {
            let (one, ids) = loaded.judge_fact(who, tool, fact);
            for id in &ids {
                if !policies.contains(id) {
                    policies.push(id.clone());
                }
            }
            match (&verdict, &one) {
                (Verdict::Deny { .. }, _) => {}
                (_, Verdict::Deny { .. }) | (Verdict::Allow, Verdict::Ask { .. }) => verdict = one.clone(),
                // A person is told of everything that is asked: the answer is for all of it.
                (Verdict::Ask { reason: before }, Verdict::Ask { reason }) => {
                    verdict = Verdict::Ask { reason: format!("{before}; {reason}") };
                }
                _ => {}
            }
            parts.push(Judged { action: fact.action(), resource: fact.shown(), verdict: one, policies: ids });
        }
        if facts.is_empty() {
            verdict = Verdict::Deny { reason: format!("Policy cannot tell what {tool} would do.") };
        }
        self.log(who, tool, &verdict, &policies);
        if self.config.mode == PolicyMode::LogOnly {
            verdict = Verdict::Allow;
        }
        Judgement { verdict, policies, parts }
    }

    /// One line for each decision; the journal of the run keeps the same.
    fn log(&self, who: &Who, tool: &str, verdict: &Verdict, policies: &[String]) {
        let Who { tenant, run, agent } = who;
        let policies = policies.join(" ");
        match verdict {
            Verdict::Allow => tracing::debug!(%tenant, %run, agent, tool, policies, "policy allows"),
            _ if self.config.mode == PolicyMode::LogOnly => {
                tracing::warn!(%tenant, %run, agent, tool, ?verdict, policies, "policy would not have allowed this call");
            }
            _ => tracing::info!(%tenant, %run, agent, tool, ?verdict, policies, "policy does not allow"),
        }
    }

    /// Whether a run may see the content of this file; for tools that look at many.
    pub(crate) fn readable(&self, who: &Who, tool: &str, path: &str) -> bool {
        self.judge(who, tool, &[Fact::read(path)]).verdict == Verdict::Allow
    }
}

impl Loaded {
    fn read(config: &PolicyConfig) -> Result<Self, Error> {
        Ok(Self {
            policies: load::policies(config)?,
            authorizer: Authorizer::new(),
            names: Names { tenant: name("Tenant"), run: name("AgentRun"), action: name("Action") },
        })
    }

    fn judge_fact(&self, who: &Who, tool: &str, fact: &Fact) -> (Verdict, Vec<String>) {
        match self.ask_cedar(who, tool, fact) {
            Ok(answer) => answer,
            Err(fault) => {
                tracing::error!(tool, fault, "policy could not be evaluated");
                let reason =
                    format!("Policy could not judge {}; what cannot be judged is denied.", fact.shown());
                (Verdict::Deny { reason }, Vec::new())
            }
        }
    }

    fn ask_cedar(&self, who: &Who, tool: &str, fact: &Fact) -> Result<(Verdict, Vec<String>), String> {
        let words = |error: &dyn std::fmt::Display| error.to_string();
        let tenant = uid(&self.names.tenant, who.tenant.as_str());
        let run = uid(&self.names.run, &who.run.to_string());
        let agent = RestrictedExpression::new_string(who.agent.clone());
        let principal =
            Entity::new(run.clone(), [("agent".to_owned(), agent)].into(), HashSet::from([tenant.clone()]))
                .map_err(|error| words(&error))?;
        let resource_uid = uid(&name(fact.resource_type()), &fact.shown());
        let resource =
            Entity::new(resource_uid.clone(), fact.attributes().into_iter().collect(), HashSet::new())
                .map_err(|error| words(&error))?;
        let tenant = Entity::new_no_attrs(tenant, HashSet::new());
        let entities =
            Entities::from_entities([principal, resource, tenant], None).map_err(|error| words(&error))?;
        let context = Context::from_pairs(fact.context(tool)).map_err(|error| words(&error))?;
        let action = uid(&self.names.action, fact.action());
        let request =
            Request::new(run, action, resource_uid, context, None).map_err(|error| words(&error))?;
        let response = self.authorizer.is_authorized(&request, &self.policies, &entities);
        if let Some(error) = response.diagnostics().errors().next() {
            return Err(words(error));
        }
        let mut decided: Vec<&PolicyId> = response.diagnostics().reason().collect();
        decided.sort();
        let ids = decided.iter().map(ToString::to_string).collect();
        Ok((self.verdict(response.decision(), &decided, fact), ids))
    }

    fn verdict(&self, decision: Decision, decided: &[&PolicyId], fact: &Fact) -> Verdict {
        if decision == Decision::Allow {
            return Verdict::Allow;
        }
        let what = fact.shown();
        if decided.is_empty() {
            let verb = fact.action();
            let reason = format!(
                "No policy permits to {verb} {what}. Reach the goal another way, or say in the summary what was not permitted."
            );
            return Verdict::Deny { reason };
        }
        let asks: Vec<&str> = decided.iter().filter_map(|id| self.policies.annotation(id, "ask")).collect();
        if asks.len() == decided.len() {
            return Verdict::Ask { reason: format!("{} ({what})", asks.join(" ")) };
        }
        let denying = decided.iter().find(|id| self.policies.annotation(id, "ask").is_none());
        let id = denying.map(ToString::to_string).unwrap_or_default();
        let why = denying.and_then(|id| self.policies.annotation(id, "reason"));
        let why = why.unwrap_or("Reach the goal another way, or say in the summary what was not permitted.");
        Verdict::Deny { reason: format!("Policy {id} does not allow to {} {what}. {why}", fact.action()) }
    }
}

fn name(text: &str) -> EntityTypeName {
    text.parse().expect("a name without spaces is an entity type")
}

fn uid(kind: &EntityTypeName, id: &str) -> EntityUid {
    EntityUid::from_type_name_and_id(kind.clone(), EntityId::new(id))
}

#[cfg(test)]
mod tests;
