//! What errors of PostgreSQL mean for an operation.

use std::time::Duration;

use evenkeel_core::{Code, Error, Origin};
use tokio_postgres::error::SqlState;

use crate::rows::Fault;

/// Why a round trip brought no answer.
#[derive(Clone, Debug)]
pub(super) enum Trouble {
    /// The connection broke or was silent too long: a write may have happened or not.
    Lost(String),
    /// The server takes nothing now; nothing happened.
    Away(String),
    /// Somebody else was faster; nothing happened.
    Conflict(String),
    /// The server refuses for a reason that somebody has to remove; nothing happened.
    Refused(Box<Error>),
    /// The statement or a row is not what it must be; nothing happened.
    Broken(Fault),
}

impl From<tokio_postgres::Error> for Trouble {
    fn from(error: tokio_postgres::Error) -> Self {
        let Some(db) = error.as_db_error() else {
            // Without words of the server the connection is to blame, or a column did not decode.
            return match error.is_closed() || source_is_io(&error) {
                true => Self::Lost(chain(&error)),
                false if chain(&error).contains("deserializing") => {
                    Self::Broken(Fault::Corrupt(chain(&error)))
                }
                false => Self::Lost(chain(&error)),
            };
        };
        let text = format!("{} ({})", db.message(), db.code().code());
        match db.code() {
            code if *code == SqlState::CANNOT_CONNECT_NOW || *code == SqlState::TOO_MANY_CONNECTIONS => {
                Self::Away(text)
            }
            code if *code == SqlState::READ_ONLY_SQL_TRANSACTION => Self::Refused(Box::new(read_only())),
            code if *code == SqlState::UNIQUE_VIOLATION
                || *code == SqlState::T_R_SERIALIZATION_FAILURE
                || *code == SqlState::T_R_DEADLOCK_DETECTED
                || *code == SqlState::LOCK_NOT_AVAILABLE =>
            {
                Self::Conflict(text)
            }
            code if *code == SqlState::DISK_FULL => Self::Broken(Fault::Full),
            code => match code.code().get(..2) {
                // Connections that end, servers that stop, statements that were cancelled.
                Some("08" | "57") => Self::Lost(text),
                Some("53" | "58") => Self::Broken(Fault::Unavailable(text)),
                Some("XX") => Self::Broken(Fault::Corrupt(text)),
                _ => Self::Broken(Fault::Misused(text)),
            },
        }
    }
}

impl Trouble {
    /// The error for an operation that did not come through. `unknown` says that it may have
    /// happened.
    pub(super) fn into_error(self, unknown: bool) -> Error {
        let what = match self {
            Self::Refused(error) => return *error,
            Self::Broken(fault) => return fault.into(),
            Self::Lost(what) | Self::Away(what) | Self::Conflict(what) => what,
        };
        let outcome =
            if unknown { "whether the operation happened is not known" } else { "nothing was stored" };
        Error::new(
            Code::StoreUnavailable,
            Origin::Store,
            format!("The database cannot answer ({what}); {outcome}."),
            "Look whether PostgreSQL runs and can be reached; read the state again before repeating anything.",
        )
        .retry_after(Duration::from_secs(1))
    }
}

fn source_is_io(error: &tokio_postgres::Error) -> bool {
    std::error::Error::source(error).is_some_and(|source| source.is::<std::io::Error>())
}

/// An error with its causes, in one line.
pub(super) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        source = cause.source();
    }
    text
}

/// What a connection that was not opened means.
pub(super) fn at_connect(error: &tokio_postgres::Error, whom: &str) -> Trouble {
    let Some(db) = error.as_db_error() else {
        let text = chain(error);
        return match text.contains("TLS") || text.contains("certificate") {
            true => Trouble::Refused(Box::new(refused(
                Code::StoreTls,
                format!("The connection to the database {whom} cannot be secured: {text}."),
                "Set sslmode and sslrootcert in the URL to what the server offers, or give it a certificate.",
            ))),
            // An answer that makes no sense before anything was asked is worth another try too.
            false => match text.contains("authentication") || text.contains("password") {
                true => Trouble::Refused(Box::new(bad_login(whom, &text))),
                false => Trouble::Away(text),
            },
        };
    };
    let text = db.message();
    match db.code().code() {
        "28P01" | "28000" => Trouble::Refused(Box::new(bad_login(whom, text))),
        "3D000" => Trouble::Refused(Box::new(refused(
            Code::StoreDatabaseMissing,
            format!("The database server has no such database ({whom}): {text}."),
            "Create it with `createdb`, or name another one in the URL.",
        ))),
        "42501" => Trouble::Refused(Box::new(refused(
            Code::StoreLogin,
            format!("The database {whom} does not allow this user to connect: {text}."),
            "Grant CONNECT and CREATE on the database to the user of the URL.",
        ))),
        // PgBouncer has one code for everything; its words tell an unknown name from a server away.
        "08P01" if text.contains("no such database") => Trouble::Refused(Box::new(refused(
            Code::StoreDatabaseMissing,
            format!("The pooler has no such database ({whom}): {text}."),
            "Add it to the pooler's configuration, or name another one in the URL.",
        ))),
        "08P01" if text.contains("auth") || text.contains("no such user") => {
            Trouble::Refused(Box::new(bad_login(whom, text)))
        }
        code => Trouble::Away(format!("{text} ({code})")),
    }
}

fn bad_login(whom: &str, text: &str) -> Error {
    refused(
        Code::StoreLogin,
        format!("The database {whom} refused the login: {text}."),
        "Set the user and password in the URL to those of the database.",
    )
}

/// An error that goes away only when somebody acts.
pub(super) fn refused(code: Code, message: String, remedy: &'static str) -> Error {
    Error::new(code, Origin::Store, message, remedy)
}

pub(super) fn read_only() -> Error {
    refused(
        Code::StoreReadOnly,
        "The database takes no writes: it is a standby, or was set to read-only.".to_owned(),
        "Name the primary in the URL (several hosts may be listed), or end its read-only state.",
    )
    .retryable()
}
