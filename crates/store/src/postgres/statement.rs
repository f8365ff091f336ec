//! Statements: text and parameters together, sent without a name, so that any connection of a pooler
//! can carry them; and reading what comes back.

use futures_util::future::try_join_all;
use serde::de::DeserializeOwned;
use tokio::time::timeout;
use tokio_postgres::Row;
use tokio_postgres::types::{FromSql, ToSql, Type};
use uuid::Uuid;

use super::connect::Line;
use super::fault::Trouble;
use crate::packed;
use crate::rows::{Fault, Rowed};

/// A statement on its way.
#[derive(Default)]
pub(super) struct Statement {
    pub(super) sql: String,
    params: Vec<(Box<dyn ToSql + Sync + Send>, Type)>,
}

impl Statement {
    pub(super) fn new(sql: impl Into<String>) -> Self {
        Self { sql: sql.into(), params: Vec::new() }
    }

    /// Adds a parameter and returns its name in the text.
    pub(super) fn bind(&mut self, value: impl ToSql + Sync + Send + 'static, of: Type) -> String {
        self.params.push((Box::new(value), of));
        format!("${}", self.params.len())
    }

    /// Adds a parameter in the order of the text.
    pub(super) fn with(mut self, value: impl ToSql + Sync + Send + 'static, of: Type) -> Self {
        self.params.push((Box::new(value), of));
        self
    }

    fn params(&self) -> Vec<(&(dyn ToSql + Sync), Type)> {
        self.params.iter().map(|(value, of)| (value.as_ref() as &(dyn ToSql + Sync), of.clone())).collect()
    }
}

impl Line {
    /// Sends statements together and waits for all answers: one round trip. They run in order, each
    /// on its own.
    pub(super) async fn send(&mut self, statements: &[Statement]) -> Result<Vec<Vec<Row>>, Trouble> {
        let answer_max = self.answer_max();
        let client = self.client().await?;
        let params: Vec<_> = statements.iter().map(Statement::params).collect();
        let asked = statements.iter().zip(&params).map(|(of, params)| client.query_typed(&of.sql, params));
        let answered = match timeout(answer_max, try_join_all(asked)).await {
            Ok(answered) => answered.map_err(Trouble::from),
            Err(_) => Err(Trouble::Lost(format!("no answer in {} ms", answer_max.as_millis()))),
        };
        drop(params);
        self.judge(answered)
    }

    /// Sends one statement.
    pub(super) async fn send_one(&mut self, statement: Statement) -> Result<Vec<Row>, Trouble> {
        Ok(self.send(&[statement]).await?.pop().unwrap_or_default())
    }
}

/// A column's value.
pub(super) fn get<'a, T: FromSql<'a>>(row: &'a Row, idx: usize) -> Rowed<T> {
    row.try_get(idx).map_err(|error| Fault::Corrupt(format!("column {idx} does not decode: {error}")))
}

pub(super) fn uint_at(row: &Row, idx: usize) -> Rowed<u64> {
    get::<i64>(row, idx).map(packed::uint)
}

pub(super) fn optional_uuid_at(row: &Row, idx: usize) -> Rowed<Option<Uuid>> {
    get(row, idx)
}

/// JSON in a text column.
pub(super) fn json_at<T: DeserializeOwned>(row: &Row, idx: usize) -> Rowed<T> {
    decode(get::<&str>(row, idx)?.as_bytes())
}

/// A body in four columns: text, or size, packing and bytes of its blob; `None` if there is neither.
pub(super) fn body_at<T: DeserializeOwned>(row: &Row, idx: usize) -> Rowed<Option<T>> {
    if let Some(json) = get::<Option<&str>>(row, idx)? {
        return decode(json.as_bytes()).map(Some);
    }
    match blob_at(row, idx + 1)? {
        Some(bytes) => decode(&bytes).map(Some),
        None => Ok(None),
    }
}

/// A blob in three columns: size, packing, bytes.
pub(super) fn blob_at(row: &Row, idx: usize) -> Rowed<Option<Vec<u8>>> {
    let Some(size) = get::<Option<i64>>(row, idx)? else {
        return Ok(None);
    };
    let (is_packed, bytes) = (get::<bool>(row, idx + 1)?, get::<&[u8]>(row, idx + 2)?);
    if is_packed { packed::unpack(bytes, size).map(Some) } else { Ok(Some(bytes.to_vec())) }
}

fn decode<T: DeserializeOwned>(json: &[u8]) -> Rowed<T> {
    serde_json::from_slice(json).map_err(|error| Fault::Corrupt(format!("a body does not decode: {error}")))
}

/// A body that must be there.
pub(super) fn must<T>(found: Option<T>, what: &str) -> Rowed<T> {
    found.ok_or_else(|| Fault::Corrupt(format!("{what} is missing")))
}
