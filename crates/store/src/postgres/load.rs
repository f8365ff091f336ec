//! Loading: all needs of a batch in one round trip.
//!
//! The statements are sent together and run in order, threads first: what hangs on a thread is read
//! with it or after it, never before. Those of the hot path call functions of the schema
//! (`0004_reads.sql`), whose plans the server keeps.

use std::sync::Arc;

use evenkeel_core::Wall;
use evenkeel_core::id::{RunId, TenantId, ThreadId};
use evenkeel_core::journal::{Event, EventBody};
use evenkeel_core::port::store::{Effect, Held, ListRuns};
use evenkeel_core::run::RunState;
use tokio_postgres::Row;
use tokio_postgres::types::Type;
use uuid::Uuid;

use super::connect::Line;
use super::facts::{Facts, KeyName, Marks, Need, Needs, Page, RunFact, ThreadFact, Word};
use super::fault::Trouble;
use super::statement::{Statement, blob_at, body_at, get, json_at, must, optional_uuid_at, uint_at};
use super::threads;
use crate::packed::{self, int};
use crate::record::ThreadRow;
use crate::rows::{Fault, Rowed};

/// The columns of [`run_fact`].
const RUN: &str = "r.place, r.hidden, r.row, s.body, sb.size, sb.packed, sb.bytes, \
                   r.outcome, ob.size, ob.packed, ob.bytes";

/// Where they come from, behind `runs r`: row by row, for a plan that reads whole tables would be
/// chosen while they are small and not known to the planner.
const RUN_JOINS: &str = "LEFT JOIN LATERAL (SELECT * FROM evenkeel.run_specs s WHERE s.run = r.id \
                         OFFSET 0) s ON true \
                         LEFT JOIN LATERAL (SELECT * FROM evenkeel.blobs b WHERE b.id = s.blob \
                         OFFSET 0) sb ON true \
                         LEFT JOIN LATERAL (SELECT * FROM evenkeel.blobs b WHERE b.id = r.outcome_blob \
                         OFFSET 0) ob ON true";

/// How many columns [`RUN`] has.
const RUN_WIDTH: usize = 11;

/// What a statement answers, with what was asked.
enum Asked {
    Threads(Vec<(TenantId, ThreadId)>),
    Open(Vec<ThreadId>),
    Runs(Vec<(Option<TenantId>, RunId)>),
    Metadata(Vec<ThreadId>),
    Effects(Vec<RunId>),
    Keys(Vec<KeyName>),
    Messages(Vec<(ThreadId, Word)>),
    Events(Vec<Page>),
    Other(Need),
}

/// Loads the needs into `facts`.
pub(super) async fn load(line: &mut Line, facts: &mut Facts, needs: Needs) -> Result<(), Trouble> {
    let asked = sort(needs);
    let statements: Vec<Statement> = asked.iter().map(statement).collect();
    let answers = line.send(&statements).await?;
    for (asked, rows) in asked.into_iter().zip(answers) {
        learn(facts, asked, &rows).map_err(Trouble::Broken)?;
    }
    Ok(())
}

/// Needs of one kind together, in the order in which they must be read.
fn sort(needs: Needs) -> Vec<Asked> {
    let (mut threads, mut open, mut runs) = (Vec::new(), Vec::new(), Vec::new());
    let (mut metadata, mut effects, mut keys) = (Vec::new(), Vec::new(), Vec::new());
    let (mut messages, mut pages, mut others) = (Vec::new(), Vec::new(), Vec::new());
    for need in needs.0 {
        match need {
            Need::Thread(tenant, id) => {
                threads.push((tenant, id));
                open.push(id);
            }
            Need::Row(tenant, id) => threads.push((tenant, id)),
            Need::Open(id) => open.push(id),
            Need::Run(tenant, id) => runs.push((tenant, id)),
            Need::Metadata(id) => metadata.push(id),
            Need::Effects(id) => effects.push(id),
            Need::Key(name) => keys.push(name),
            Need::Message(thread, word) => messages.push((thread, word)),
            Need::Events(page) => pages.push(page),
            other => others.push(Asked::Other(other)),
        }
    }
    let by_key = [
        once(threads, Asked::Threads),
        once(runs, Asked::Runs),
        once(open, Asked::Open),
        once(metadata, Asked::Metadata),
        once(effects, Asked::Effects),
        once(keys, Asked::Keys),
        once(messages, Asked::Messages),
        once(pages, Asked::Events),
    ];
    by_key.into_iter().flatten().chain(others).collect()
}

/// Needs of one kind, each once.
fn once<T: Ord>(mut needs: Vec<T>, of: impl Fn(Vec<T>) -> Asked) -> Option<Asked> {
    needs.sort_unstable();
    needs.dedup();
    (!needs.is_empty()).then(|| of(needs))
}

fn statement(asked: &Asked) -> Statement {
    match asked {
        Asked::Threads(ids) => Statement::new("SELECT * FROM evenkeel.read_threads($1::uuid[], $2::text[])")
            .with(uuids(ids.iter().map(|(_, id)| id.0)), Type::UUID_ARRAY)
            .with(texts(ids.iter().map(|(tenant, _)| tenant.as_str())), Type::TEXT_ARRAY),
        Asked::Open(ids) => Statement::new("SELECT * FROM evenkeel.read_open($1::uuid[])")
            .with(uuids(ids.iter().map(|id| id.0)), Type::UUID_ARRAY),
        Asked::Runs(ids) => {
            let tenants: Vec<Option<String>> =
                ids.iter().map(|(tenant, _)| tenant.as_ref().map(|tenant| tenant.0.clone())).collect();
            Statement::new("SELECT * FROM evenkeel.read_runs($1::uuid[], $2::text[])")
                .with(uuids(ids.iter().map(|(_, id)| id.0)), Type::UUID_ARRAY)
                .with(tenants, Type::TEXT_ARRAY)
        }
        Asked::Metadata(ids) => Statement::new(
            "SELECT m.thread, m.body, b.size, b.packed, b.bytes FROM evenkeel.thread_metadata m \
             LEFT JOIN evenkeel.blobs b ON b.id = m.blob WHERE m.thread = ANY($1)",
        )
        .with(uuids(ids.iter().map(|id| id.0)), Type::UUID_ARRAY),
        Asked::Effects(ids) => {
            Statement::new("SELECT run, effect, intended, settled FROM evenkeel.effects WHERE run = ANY($1)")
                .with(uuids(ids.iter().map(|id| id.0)), Type::UUID_ARRAY)
        }
        Asked::Keys(names) => {
            Statement::new("SELECT * FROM evenkeel.read_keys($1::text[], $2::uuid[], $3::bytea[])")
                .with(texts(names.iter().map(|name| name.tenant.as_str())), Type::TEXT_ARRAY)
                .with(uuids(names.iter().map(|name| scope(name.scope))), Type::UUID_ARRAY)
                .with(names.iter().map(|name| name.key.clone()).collect::<Vec<_>>(), Type::BYTEA_ARRAY)
        }
        Asked::Messages(names) => {
            Statement::new("SELECT * FROM evenkeel.read_messages($1::uuid[], $2::bytea[])")
                .with(uuids(names.iter().map(|(thread, _)| thread.0)), Type::UUID_ARRAY)
                .with(names.iter().map(|(_, word)| word.clone()).collect::<Vec<_>>(), Type::BYTEA_ARRAY)
        }
        Asked::Events(pages) => {
            Statement::new("SELECT * FROM evenkeel.read_events($1::uuid[], $2::int8[], $3::int8[])")
                .with(uuids(pages.iter().map(|(thread, ..)| thread.0)), Type::UUID_ARRAY)
                .with(pages.iter().map(|(_, after, _)| int(*after)).collect::<Vec<_>>(), Type::INT8_ARRAY)
                .with(pages.iter().map(|(.., n)| i64::from(*n)).collect::<Vec<_>>(), Type::INT8_ARRAY)
        }
        Asked::Other(need) => question(need),
    }
}

/// The statement of a need that is no row by key.
fn question(need: &Need) -> Statement {
    match need {
        Need::ListRuns(list) => list_runs(list),
        Need::ListThreads(list) => threads::list(list),
        Need::CountThreads(list) => threads::count(list),
        Need::ReadEffects(thread, run) => Statement::new(
            "SELECT i.step, i.body, ib.size, ib.packed, ib.bytes, s.body, sb.size, sb.packed, sb.bytes \
             FROM evenkeel.effects f JOIN evenkeel.events i ON i.thread = $1 AND i.seq = f.intended \
             LEFT JOIN evenkeel.blobs ib ON ib.id = i.blob \
             LEFT JOIN evenkeel.events s ON s.thread = $1 AND s.seq = f.settled \
             LEFT JOIN evenkeel.blobs sb ON sb.id = s.blob WHERE f.run = $2 ORDER BY f.intended",
        )
        .with(thread.0, Type::UUID)
        .with(run.0, Type::UUID),
        Need::Before(thread, _, place) => Statement::new(
            "SELECT count(*) FROM evenkeel.open_runs o CROSS JOIN LATERAL \
             (SELECT place FROM evenkeel.runs r WHERE r.id = o.run OFFSET 0) r \
             WHERE o.thread = $1 AND o.state = 'queued' AND r.place < $2",
        )
        .with(thread.0, Type::UUID)
        .with(int(*place), Type::INT8),
        Need::Held(owner) => Statement::new(
            "SELECT r.tenant, o.run, o.thread FROM evenkeel.open_runs o CROSS JOIN LATERAL \
             (SELECT tenant FROM evenkeel.runs r WHERE r.id = o.run OFFSET 0) r \
             WHERE o.owner = $1 ORDER BY o.n",
        )
        .with(owner.0, Type::UUID),
        Need::ByState => {
            Statement::new("SELECT state, count(*) FROM evenkeel.runs WHERE NOT hidden GROUP BY state")
        }
        Need::ByRoute => Statement::new(
            "SELECT coalesce(wait_route, ''), count(*) FROM evenkeel.open_runs \
             WHERE state = 'waiting' AND wait_on = 'model' GROUP BY 1 ORDER BY 1",
        ),
        Need::Blob(blob) => {
            let hash = packed::hash_of(blob).unwrap_or_default();
            Statement::new("SELECT size, packed, bytes FROM evenkeel.blobs WHERE id = $1")
                .with(hash.to_vec(), Type::BYTEA)
        }
        Need::ApiKeys(hash) => Statement::new(
            "SELECT row FROM evenkeel.api_keys WHERE $1::text IS NULL OR hash = $1 ORDER BY hash COLLATE \"C\"",
        )
        .with(hash.clone(), Type::TEXT),
        // The others are asked together, by kind.
        _ => Statement::new("SELECT 1 WHERE false"),
    }
}

fn list_runs(list: &ListRuns) -> Statement {
    let mut ask = Statement::default();
    let mut conditions = vec!["NOT r.hidden".to_owned()];
    if let Some(tenant) = &list.tenant {
        conditions.push(format!("r.tenant = {}", ask.bind(tenant.0.clone(), Type::TEXT)));
    }
    if let Some(thread) = list.thread {
        conditions.push(format!("r.thread = {}", ask.bind(thread.0, Type::UUID)));
    }
    if !list.states.is_empty() {
        let states = texts(list.states.iter().map(|state| state.as_str()));
        conditions.push(format!("r.state = ANY({})", ask.bind(states, Type::TEXT_ARRAY)));
    }
    // Open runs are few among all that ever were: their own table finds them.
    if !list.states.is_empty() && !list.states.iter().any(|state| state.is_terminal()) {
        conditions.push("r.id IN (SELECT run FROM evenkeel.open_runs)".to_owned());
    }
    let limit = ask.bind(i64::from(list.limit), Type::INT8);
    let offset = ask.bind(i64::from(list.offset), Type::INT8);
    let conditions = conditions.join(" AND ");
    ask.sql = format!(
        "SELECT {RUN}, t.rev, t.places, t.row FROM (SELECT * FROM evenkeel.runs r WHERE {conditions} \
         ORDER BY r.n DESC LIMIT {limit} OFFSET {offset}) r \
         JOIN evenkeel.threads t ON t.id = r.thread {RUN_JOINS} ORDER BY r.n DESC"
    );
    ask
}

fn learn(facts: &mut Facts, asked: Asked, rows: &[Row]) -> Rowed<()> {
    match asked {
        Asked::Threads(ids) => {
            for row in rows {
                let (tenant, id) = must(ids.get(place(row, 0)?), "what was asked")?.clone();
                facts.threads_taken.insert(id, get(row, 4)?);
                match thread_fact(row, 1)? {
                    Some(fact) => facts.learn_thread(fact),
                    None => drop(facts.no_threads.insert((tenant, id))),
                }
            }
        }
        Asked::Open(ids) => {
            for id in &ids {
                facts.open.entry(*id).or_default();
            }
            for row in rows {
                let fact = must(run_fact(row)?, "a run")?;
                facts.open.entry(fact.row.thread).or_default().insert(fact.place, fact.row.id);
                facts.runs.entry(fact.row.id).or_insert_with(|| Arc::new(fact));
            }
        }
        Asked::Runs(ids) => {
            for row in rows {
                let (tenant, id) = must(ids.get(place(row, RUN_WIDTH + 3)?), "what was asked")?.clone();
                facts.runs_taken.insert(id, get(row, RUN_WIDTH + 4)?);
                match learn_run(facts, row)? {
                    Some(_) => {}
                    None => facts.no_runs.extend(tenant.map(|tenant| (tenant, id))),
                }
            }
        }
        Asked::Metadata(ids) => {
            let empty = serde_json::Value::Object(serde_json::Map::new());
            facts.metadata.extend(ids.into_iter().map(|id| (id, empty.clone())));
            for row in rows {
                facts.metadata.insert(ThreadId(get(row, 0)?), must(body_at(row, 1)?, "metadata")?);
            }
        }
        Asked::Effects(ids) => {
            for id in ids {
                facts.effects.entry(id).or_default();
            }
            for row in rows {
                let marks = Marks {
                    intended: get::<Option<i64>>(row, 2)?.map(packed::uint),
                    settled: get::<Option<i64>>(row, 3)?.map(packed::uint),
                };
                facts.effects.entry(RunId(get(row, 0)?)).or_default().insert(get(row, 1)?, marks);
            }
        }
        Asked::Keys(names) => {
            facts.keys.extend(names.iter().map(|name| (name.clone(), None)));
            for row in rows {
                let name = must(names.get(place(row, 0)?), "what was asked")?;
                facts.keys.insert(name.clone(), optional_uuid_at(row, 1)?.map(RunId));
            }
        }
        Asked::Messages(names) => {
            facts.messages.extend(names.iter().map(|name| (name.clone(), None)));
            for row in rows {
                let name = must(names.get(place(row, 0)?), "what was asked")?;
                facts.messages.insert(name.clone(), optional_uuid_at(row, 1)?.map(RunId));
            }
        }
        Asked::Events(pages) => {
            let found = &mut facts.answers.events;
            found.extend(pages.iter().map(|page| (*page, Vec::new())));
            for row in rows {
                let page = must(pages.get(place(row, 0)?), "what was asked")?;
                found.entry(*page).or_default().push(event(row, 1)?);
            }
        }
        Asked::Other(need) => answer(facts, need, rows)?,
    }
    Ok(())
}

fn answer(facts: &mut Facts, need: Need, rows: &[Row]) -> Rowed<()> {
    match need {
        Need::ListRuns(list) => {
            let mut found = Vec::with_capacity(rows.len());
            for row in rows {
                found.extend(learn_run(facts, row)?);
            }
            facts.answers.runs = Some((list, found));
        }
        Need::ListThreads(list) => facts.answers.threads = Some(threads::listed(&list, rows)?),
        Need::CountThreads(list) => facts.answers.n_threads = Some(threads::counted(&list, rows)?),
        Need::ReadEffects(..) => {
            facts.answers.effects = Some(rows.iter().map(effect).collect::<Rowed<_>>()?);
        }
        Need::Before(_, run, _) => {
            let n = rows.first().map_or(Ok(0), |row| uint_at(row, 0))?;
            facts.answers.before.insert(run, u32::try_from(n).unwrap_or(u32::MAX));
        }
        Need::Held(_) => {
            let held = |row: &Row| {
                let tenant = TenantId(get(row, 0)?);
                Ok(Held { tenant, run: RunId(get(row, 1)?), thread: ThreadId(get(row, 2)?) })
            };
            facts.answers.held = Some(rows.iter().map(held).collect::<Rowed<_>>()?);
        }
        Need::ByState => {
            let mut counts = Vec::with_capacity(rows.len());
            for row in rows {
                let state = must(RunState::parse(get(row, 0)?), "a known state")?;
                counts.push((state, uint_at(row, 1)?));
            }
            facts.answers.by_state = Some(counts);
        }
        Need::ByRoute => {
            let count = |row| Ok((get(row, 0)?, uint_at(row, 1)?));
            facts.answers.by_route = Some(rows.iter().map(count).collect::<Rowed<_>>()?);
        }
        Need::Blob(blob) => {
            let found = rows.first().map(|row| blob_at(row, 0)).transpose()?.flatten();
            facts.answers.blobs.insert(blob, found);
        }
        Need::ApiKeys(_) => {
            let keys = rows.iter().map(|row| json_at(row, 0)).collect::<Rowed<_>>()?;
            facts.answers.api_keys = Some(keys);
        }
        _ => {}
    }
    Ok(())
}

/// The position that `WITH ORDINALITY` gave.
fn place(row: &Row, idx: usize) -> Rowed<usize> {
    let ordinal = get::<i64>(row, idx)?;
    usize::try_from(ordinal - 1).map_err(|_| Fault::Corrupt("an ordinal is not positive".to_owned()))
}

/// Columns `rev, places, row`; `None` where an outer join found nothing.
fn thread_fact(row: &Row, idx: usize) -> Rowed<Option<ThreadFact>> {
    let Some(rev) = get::<Option<i64>>(row, idx)? else {
        return Ok(None);
    };
    let thread: ThreadRow = json_at(row, idx + 2)?;
    let fact =
        ThreadFact { row: thread, rev: packed::uint(rev), places: uint_at(row, idx + 1)?, cached: false };
    Ok(Some(fact))
}

/// The columns [`RUN`]; `None` where an outer join found nothing.
fn run_fact(row: &Row) -> Rowed<Option<RunFact>> {
    let Some(place) = get::<Option<i64>>(row, 0)? else {
        return Ok(None);
    };
    Ok(Some(RunFact {
        row: json_at(row, 2)?,
        place: packed::uint(place),
        hidden: get(row, 1)?,
        spec: Arc::new(must(body_at(row, 3)?, "the spec of a run")?),
        outcome: body_at(row, 7)?.map(Arc::new),
    }))
}

/// A run with its thread's columns behind it.
fn learn_run(facts: &mut Facts, row: &Row) -> Rowed<Option<RunId>> {
    let Some(run) = run_fact(row)? else {
        return Ok(None);
    };
    let thread = must(thread_fact(row, RUN_WIDTH)?, "the thread of a run")?;
    let id = run.row.id;
    facts.learn_thread(thread);
    facts.runs.entry(id).or_insert_with(|| Arc::new(run));
    Ok(Some(id))
}

/// An event whose columns begin at `idx`.
fn event(row: &Row, idx: usize) -> Rowed<Event> {
    Ok(Event {
        thread: ThreadId(get(row, idx)?),
        seq: uint_at(row, idx + 1)?,
        run: RunId(get(row, idx + 2)?),
        step: u32::try_from(get::<i64>(row, idx + 3)?).unwrap_or(u32::MAX),
        at: Wall(uint_at(row, idx + 4)?),
        body: must(body_at(row, idx + 5)?, "the body of an event")?,
    })
}

fn effect(row: &Row) -> Rowed<Effect> {
    let Some(EventBody::EffectIntended(intent)) = body_at(row, 1)? else {
        return Err(Fault::Corrupt("an effect does not point to its intent".to_owned()));
    };
    let result = match body_at(row, 5)? {
        Some(EventBody::EffectSettled(result)) => Some(result),
        Some(_) => return Err(Fault::Corrupt("an effect does not point to its result".to_owned())),
        None => None,
    };
    Ok(Effect { step: u32::try_from(get::<i64>(row, 0)?).unwrap_or(u32::MAX), intent, result })
}

pub(super) fn uuids(ids: impl Iterator<Item = Uuid>) -> Vec<Uuid> {
    ids.collect()
}

pub(super) fn texts<'a>(words: impl Iterator<Item = &'a str>) -> Vec<String> {
    words.map(str::to_owned).collect()
}

/// The scope of a key as its column holds it.
pub(super) fn scope(thread: Option<ThreadId>) -> Uuid {
    thread.map_or(Uuid::nil(), |thread| thread.0)
}
