//! The grep server: ripgrep's own libraries over the files of a workspace.
//!
//! Bounded in matches, bytes and time, and stopped when its caller goes away. Files whose content
//! policy keeps from the run are passed over, and the answer says how many.

use std::time::Duration;

use globset::{Glob, GlobMatcher};
use grep_regex::{RegexMatcher, RegexMatcherBuilder};
use grep_searcher::{BinaryDetection, Searcher, SearcherBuilder, Sink, SinkContext, SinkMatch};
use serde_json::json;
use tokio::time::Instant;

use super::files::{join, walk};
use super::{Args, Outcome, Readable};
use crate::beneath::{Refusal, Root};
use crate::blocking::Cancel;

/// Bytes of an answer.
const BYTES_MAX: usize = 256 << 10;

/// Characters of one line that are shown.
const LINE_CHARS_MAX: usize = 500;

/// Time of one search.
const TIME_MAX: Duration = Duration::from_secs(30);

/// Bytes of one file that are searched.
const FILE_BYTES_MAX: u64 = 64 << 20;

pub(super) fn call(
    root: &Root,
    args: &Args<'_>,
    readable: &Readable,
    cancel: &Cancel,
) -> Result<Outcome, Refusal> {
    let resolved = root.resolve(args.optional_text("path").unwrap_or("."))?;
    if !resolved.exists {
        return Err(Refusal(format!("There is no {}.", resolved.path)));
    }
    let glob = args.optional_text("glob").map(glob_of).transpose()?;
    let mut search = Search {
        root,
        matcher: matcher_of(args.text("pattern"), args.flag("ignore_case"))?,
        searcher: searcher_of(args.count("context", 0)),
        readable,
        cancel,
        found: Found { limit: args.count("max_matches", 200), ..Found::default() },
        begun: Instant::now(),
    };
    match root.directory(&resolved.path) {
        Ok(_) => {
            walk(root, &resolved.path, cancel, |below, _| {
                if glob.as_ref().is_some_and(|glob| !glob.is_match(below)) {
                    return true;
                }
                search.file(&join(&resolved.path, below))
            })?;
        }
        Err(_) => {
            // A file that was named is searched whatever it is; say why when it cannot be.
            search.root.read(&resolved.path)?;
            search.file(&resolved.path);
        }
    }
    Ok(search.found.outcome())
}

fn matcher_of(pattern: &str, ignore_case: bool) -> Result<RegexMatcher, Refusal> {
    RegexMatcherBuilder::new()
        .case_insensitive(ignore_case)
        .line_terminator(Some(b'\n'))
        .size_limit(10 << 20)
        .dfa_size_limit(10 << 20)
        .build(pattern)
        .map_err(|error| Refusal(format!("The pattern is not a valid regular expression: {error}")))
}

fn searcher_of(context: usize) -> Searcher {
    SearcherBuilder::new()
        .line_number(true)
        .before_context(context)
        .after_context(context)
        .binary_detection(BinaryDetection::quit(0))
        .heap_limit(Some(16 << 20))
        .build()
}

fn glob_of(pattern: &str) -> Result<GlobMatcher, Refusal> {
    // As in ripgrep, a pattern without a slash means the name, wherever the file lies.
    let anywhere = if pattern.contains('/') { pattern.to_owned() } else { format!("**/{pattern}") };
    let glob = Glob::new(anywhere.trim_start_matches('/'))
        .map_err(|error| Refusal(format!("The glob {pattern:?} is not valid: {}.", error.kind())))?;
    Ok(glob.compile_matcher())
}

struct Search<'a> {
    root: &'a Root,
    matcher: RegexMatcher,
    searcher: Searcher,
    readable: &'a Readable,
    cancel: &'a Cancel,
    found: Found,
    begun: Instant,
}

#[derive(Default)]
struct Found {
    limit: usize,
    text: String,
    n_matches: usize,
    n_files: usize,
    n_kept_back: usize,
    stopped: Option<&'static str>,
}

impl Search<'_> {
    /// Searches one file; false ends the search.
    fn file(&mut self, path: &str) -> bool {
        if self.begun.elapsed() > TIME_MAX {
            self.found.stopped = Some("time limit of 30 s reached");
            return false;
        }
        if !(self.readable)(path) {
            self.found.n_kept_back += 1;
            return true;
        }
        let Ok((file, stat)) = self.root.read(path) else { return true };
        if u64::try_from(stat.st_size).unwrap_or(u64::MAX) > FILE_BYTES_MAX {
            return true;
        }
        let before = self.found.n_matches;
        let mut sink = FileSink { path, found: &mut self.found, cancel: self.cancel, begun: self.begun };
        // A file that cannot be read to its end shows what was found until then.
        let _ = self.searcher.search_file(&self.matcher, &file, &mut sink);
        self.found.n_files += usize::from(self.found.n_matches > before);
        self.found.stopped.is_none()
    }
}

struct FileSink<'a> {
    path: &'a str,
    found: &'a mut Found,
    cancel: &'a Cancel,
    begun: Instant,
}

impl FileSink<'_> {
    fn push(&mut self, mark: char, line: Option<u64>, bytes: &[u8]) {
        let text = String::from_utf8_lossy(bytes);
        let text = text.trim_end_matches(['\n', '\r']);
        self.found.text.push_str(&format!("{}{mark}{}{mark}", self.path, line.unwrap_or(0)));
        self.found.text.extend(text.chars().take(LINE_CHARS_MAX));
        if text.chars().nth(LINE_CHARS_MAX).is_some() {
            self.found.text.push_str(" [...]");
        }
        self.found.text.push('\n');
    }

    fn goes_on(&mut self) -> bool {
        let stopped = if self.cancel.is_set() {
            "cancelled"
        } else if self.found.n_matches >= self.found.limit {
            "limit of matches reached"
        } else if self.found.text.len() > BYTES_MAX {
            "limit of output reached"
        } else if self.begun.elapsed() > TIME_MAX {
            "time limit of 30 s reached"
        } else {
            return true;
        };
        self.found.stopped = Some(stopped);
        false
    }
}

impl Sink for FileSink<'_> {
    type Error = std::io::Error;

    fn matched(&mut self, _searcher: &Searcher, found: &SinkMatch<'_>) -> Result<bool, Self::Error> {
        if !self.goes_on() {
            return Ok(false);
        }
        self.found.n_matches += 1;
        for (idx, line) in found.lines().enumerate() {
            self.push(':', found.line_number().map(|number| number + idx as u64), line);
        }
        Ok(true)
    }

    fn context(&mut self, _searcher: &Searcher, context: &SinkContext<'_>) -> Result<bool, Self::Error> {
        self.push('-', context.line_number(), context.bytes());
        Ok(self.found.text.len() <= BYTES_MAX)
    }

    fn context_break(&mut self, _searcher: &Searcher) -> Result<bool, Self::Error> {
        self.found.text.push_str("--\n");
        Ok(true)
    }
}

impl Found {
    fn outcome(self) -> Outcome {
        let mut text = self.text;
        if self.n_matches == 0 {
            text.push_str("No match.\n");
        }
        if let Some(why) = self.stopped {
            text.push_str(&format!("[{why}: there may be more; narrow the pattern, path or glob]\n"));
        }
        if self.n_kept_back > 0 {
            text.push_str(&format!(
                "[{} files were not searched: policy keeps their content]\n",
                self.n_kept_back
            ));
        }
        let facts = json!({"matches": self.n_matches, "files": self.n_files, "stopped": self.stopped});
        Outcome::ok(text, facts)
    }
}
