//! The sandbox helper alone, for tests and examples whose `main` is not ours.

use std::process::ExitCode;

fn main() -> ExitCode {
    evenkeel_sandbox::helper_main().unwrap_or_else(|| {
        eprintln!(
            "evenkeel-sandbox-helper is started by Evenkeel, as `evenkeel-sandbox-helper sandbox-helper`."
        );
        ExitCode::from(2)
    })
}
