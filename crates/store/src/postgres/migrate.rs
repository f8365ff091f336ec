//! The schema and its versions.
//!
//! Migrations are embedded, numbered from 1 and never changed once released. They run at start in
//! one transaction, under a lock that belongs to the transaction, so that replicas that start
//! together take turns and a pooler in transaction mode can carry it.

use evenkeel_core::Code;

use super::connect::Line;
use super::fault::{Trouble, refused};
use super::statement::{Statement, get};

const MIGRATIONS: [&str; 5] = [
    include_str!("../migrations/postgres/0001_first.sql"),
    include_str!("../migrations/postgres/0002_health.sql"),
    include_str!("../migrations/postgres/0003_writes.sql"),
    include_str!("../migrations/postgres/0004_reads.sql"),
    include_str!("../migrations/postgres/0005_plans.sql"),
];

/// "EVKL", the number of our lock.
const LOCK: i64 = 0x4556_4b4c;

/// Brings the schema to this version.
pub(super) async fn run(line: &mut Line, whom: &str) -> Result<(), Trouble> {
    let newest = i32::try_from(MIGRATIONS.len()).unwrap_or(i32::MAX);
    let found = version(line).await?;
    if found > newest {
        return Err(Trouble::Refused(Box::new(refused(
            Code::StoreNewer,
            format!("The store in {whom} has schema version {found}; this Evenkeel knows {newest}."),
            "Start the version of Evenkeel that wrote it, or a later one.",
        ))));
    }
    if found == newest {
        return Ok(());
    }
    apply(line).await
}

/// The version of the schema; 0 without one.
async fn version(line: &mut Line) -> Result<i32, Trouble> {
    let exists = Statement::new("SELECT to_regclass('evenkeel.schema_version') IS NOT NULL");
    let rows = line.send_one(exists).await?;
    if !rows.first().map_or(Ok(false), |row| get(row, 0)).map_err(Trouble::Broken)? {
        return Ok(0);
    }
    let rows =
        line.send_one(Statement::new("SELECT max(version)::int4 FROM evenkeel.schema_version")).await?;
    let found = rows.first().map_or(Ok(None), |row| get::<Option<i32>>(row, 0)).map_err(Trouble::Broken)?;
    Ok(found.unwrap_or(0))
}

/// All migrations in one text; each looks for itself whether it has been applied, under the lock.
async fn apply(line: &mut Line) -> Result<(), Trouble> {
    let mut sql = format!(
        "BEGIN;\nSELECT pg_advisory_xact_lock({LOCK});\nCREATE SCHEMA IF NOT EXISTS evenkeel;\n\
         CREATE TABLE IF NOT EXISTS evenkeel.schema_version (version int PRIMARY KEY);\n"
    );
    for (idx, migration) in MIGRATIONS.iter().enumerate() {
        let version = idx + 1;
        sql.push_str(&format!(
            "DO $evenkeel$ BEGIN\nIF NOT EXISTS (SELECT FROM evenkeel.schema_version WHERE version >= {version}) \
             THEN\n{migration}\nINSERT INTO evenkeel.schema_version VALUES ({version});\nEND IF;\nEND $evenkeel$;\n"
        ));
    }
    sql.push_str("COMMIT;");
    let answer_max = line.answer_max();
    let client = line.client().await?;
    let applied = match tokio::time::timeout(answer_max * 6, client.batch_execute(&sql)).await {
        Ok(applied) => applied.map_err(Trouble::from),
        Err(_) => Err(Trouble::Lost("the schema was not made in time".to_owned())),
    };
    // A failed text leaves its transaction open; the connection goes with it.
    if applied.is_err() {
        line.hang_up();
    }
    line.judge(applied)
}
