//! What SQLite's errors mean for an operation.

use rusqlite::ErrorCode;

use crate::rows::Fault;

/// Reads an error of SQLite as one of ours.
pub(super) fn faulty(error: rusqlite::Error) -> Fault {
    match error.sqlite_error_code() {
        Some(ErrorCode::DiskFull) => Fault::Full,
        Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => Fault::Corrupt(error.to_string()),
        Some(ErrorCode::OperationInterrupted) => {
            Fault::Unavailable("a read took too long and was stopped".to_owned())
        }
        Some(ErrorCode::ConstraintViolation | ErrorCode::TooBig) => Fault::Misused(error.to_string()),
        Some(_) => Fault::Unavailable(error.to_string()),
        // Without a code of SQLite a column did not hold what it must.
        None => Fault::Corrupt(error.to_string()),
    }
}
