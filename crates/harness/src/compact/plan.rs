//! Where to cut: pure functions of the view.

use std::ops::Range;

use evenkeel_core::message::Role;

use super::estimate::entry_bytes;
use crate::config::CompactConfig;
use crate::run::state::{Seq, View};

/// The smallest thing that is moved: one message, or a message with calls and all its results.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Unit {
    /// Its entries in the view.
    pub(crate) entries: Range<usize>,
    /// Sequence number of its first event.
    pub(crate) from: u64,
    /// Sequence number of its last event.
    pub(crate) to: u64,
}

/// A range of the journal that is to be shown another way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Cut {
    /// First sequence number.
    pub(crate) from: u64,
    /// Last sequence number.
    pub(crate) to: u64,
    /// The entries inside.
    pub(crate) entries: Range<usize>,
}

/// The view's durable entries as units, in order.
pub(crate) fn units(view: &View) -> Vec<Unit> {
    let mut units: Vec<Unit> = Vec::new();
    let mut awaits_results = false;
    for (idx, entry) in view.entries.iter().enumerate() {
        let Seq::Stored(seq) = entry.seq else { break };
        let is_results = entry.message.role == Role::Tool && awaits_results;
        match units.last_mut() {
            Some(unit) if is_results => {
                unit.entries.end = idx + 1;
                unit.to = seq;
            }
            _ => units.push(Unit { entries: idx..idx + 1, from: seq, to: seq }),
        }
        let has_calls = entry.message.tool_calls().next().is_some();
        awaits_results = entry.message.role == Role::Assistant && has_calls;
    }
    units
}

/// Everything older than the newest `keep` units, if that is anything.
pub(crate) fn older(view: &View, keep: usize) -> Option<Cut> {
    let units = units(view);
    let n_old = units.len().saturating_sub(keep);
    let last = units.get(..n_old)?.last()?;
    let from = view.summary.as_ref().map_or(1, |summary| summary.to + 1);
    Some(Cut { from, to: last.to, entries: 0..last.entries.end })
}

/// The range whose results become stubs: `None` if that would change nothing.
pub(crate) fn stubs(view: &View, keep: usize, config: &CompactConfig) -> Option<Cut> {
    let cut = older(view, keep)?;
    let saves = view.entries.get(cut.entries.clone())?.iter().any(|entry| {
        let Seq::Stored(seq) = entry.seq else { return false };
        let is_stubbed = view.stubs.iter().any(|(from, to)| (*from..=*to).contains(&seq));
        !is_stubbed && entry.message.tool_results().any(|result| result.text.len() > config.stub_bytes_min)
    });
    saves.then_some(cut)
}

/// Bytes of the entries that a cut leaves.
pub(crate) fn bytes_left(view: &View, cut: &Cut, config: &CompactConfig) -> u64 {
    view.entries.iter().skip(cut.entries.end).map(|entry| entry_bytes(view, entry, config)).sum()
}

/// How many units to keep, from most to least: halved each time, zero last.
pub(crate) fn keeps(most: usize) -> Vec<usize> {
    let mut keeps: Vec<usize> =
        std::iter::successors(Some(most), |keep| (*keep > 0).then_some(keep / 2)).collect();
    keeps.dedup();
    keeps
}
