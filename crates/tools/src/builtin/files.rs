//! The files server: reading, listing, finding and changing files of a workspace.

mod change;
mod edit;
mod list;
mod patch;
mod read;
mod text;

use serde_json::json;

use super::{Args, Outcome};
use crate::beneath::{Refusal, Root};
use crate::blocking::Cancel;

pub(crate) use change::{Change, apply, hash_now, plan};
pub(crate) use list::{join, walk};

/// Files larger than this are neither shown nor edited.
pub(crate) const FILE_BYTES_MAX: u64 = 16 << 20;

/// The files that a call would change, as resolved paths, without looking into any of them: policy
/// judges these before the call's plan may show content.
pub(crate) fn written(root: &Root, tool: &str, args: &Args<'_>) -> Result<Vec<String>, Refusal> {
    let paths = match tool {
        "apply_patch" => patch::paths(args.text("patch"))?,
        _ => vec![args.text("path").to_owned()],
    };
    paths.iter().map(|path| root.resolve(path).map(|resolved| resolved.path)).collect()
}

/// Runs one tool of this server.
pub(crate) fn call(root: &Root, name: &str, args: &Args<'_>, cancel: &Cancel) -> Result<Outcome, Refusal> {
    match name {
        "read_file" => read::read_file(root, args),
        "list_dir" => list::list_dir(root, args),
        "glob" => list::glob(root, args, cancel),
        "write_file" | "edit_file" | "apply_patch" => {
            let changes = plan(root, name, args)?;
            apply(root, &changes, cancel)?;
            let files: Vec<&str> = changes.iter().map(|change| change.path.as_str()).collect();
            Ok(Outcome::ok(change::summary(&changes), json!({ "files": files })))
        }
        _ => Err(Refusal(format!("There is no tool {name}."))),
    }
}
