//! Text as lines that keep their own endings, and finding text in it.

use std::ops::Range;

/// One line with its ending apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Line<'a> {
    pub(crate) text: &'a str,
    /// `"\n"`, `"\r\n"`, or nothing for a last line without one.
    pub(crate) ending: &'a str,
}

/// The lines of a text; the empty text has none. Joined again they are the text, byte for byte.
pub(crate) fn lines(text: &str) -> Vec<Line<'_>> {
    text.split_inclusive('\n')
        .map(|line| match line.strip_suffix("\r\n") {
            Some(text) => Line { text, ending: "\r\n" },
            None => match line.strip_suffix('\n') {
                Some(text) => Line { text, ending: "\n" },
                None => Line { text: line, ending: "" },
            },
        })
        .collect()
}

/// The ending for new lines in a text that gives no nearer one: its first, or `"\n"`.
pub(crate) fn usual_ending<'a>(lines: &[Line<'a>]) -> &'a str {
    lines.iter().map(|line| line.ending).find(|ending| !ending.is_empty()).unwrap_or("\n")
}

/// A text with every `"\r\n"` as `"\n"`, and the way back.
pub(crate) struct Unified {
    pub(crate) text: String,
    /// Places in `text` of a `'\n'` that was `"\r\n"`.
    removed: Vec<usize>,
}

impl Unified {
    pub(crate) fn of(text: &str) -> Self {
        let mut unified = String::with_capacity(text.len());
        let mut removed = Vec::new();
        for line in lines(text) {
            unified.push_str(line.text);
            if line.ending == "\r\n" {
                removed.push(unified.len());
            }
            if !line.ending.is_empty() {
                unified.push('\n');
            }
        }
        Self { text: unified, removed }
    }

    /// The place in the original text of a place in the unified one.
    pub(crate) fn original(&self, at: usize) -> usize {
        at + self.removed.partition_point(|newline| *newline < at)
    }

    /// Where `needle` occurs, without overlaps.
    pub(crate) fn find_all(&self, needle: &str) -> Vec<Range<usize>> {
        self.text.match_indices(needle).map(|(at, found)| at..at + found.len()).collect()
    }
}

/// `new` with line endings as in `old`, which it replaces: lines that both begin or end with keep
/// their own, each other line takes that of the line before it.
pub(crate) fn with_endings_of(old: &str, new: &str, usual: &str) -> String {
    let (old, new) = (lines(old), lines(new));
    let n_front = old.iter().zip(&new).take_while(|(a, b)| a.text == b.text).count();
    let n_shorter = old.len().min(new.len());
    let n_back = old
        .iter()
        .rev()
        .zip(new.iter().rev())
        .take(n_shorter - n_front)
        .take_while(|(a, b)| a.text == b.text)
        .count();
    let mut result = String::new();
    let mut before = usual;
    for (idx, line) in new.iter().enumerate() {
        let twin = if idx < n_front {
            old.get(idx)
        } else if idx + n_back >= new.len() {
            old.get(idx + old.len() - new.len())
        } else {
            old.get(idx).filter(|_| idx < old.len() - n_back)
        };
        let ending = twin.map(|line| line.ending).filter(|ending| !ending.is_empty()).unwrap_or(before);
        result.push_str(line.text);
        if !line.ending.is_empty() {
            result.push_str(ending);
            before = ending;
        }
    }
    result
}

/// The place in `text` that is most like `wanted`: first line number (from 1) and the lines there.
pub(crate) fn nearest(text: &str, wanted: &str) -> Option<(usize, String)> {
    let text: Vec<&str> = lines(text).iter().map(|line| line.text).collect();
    let wanted: Vec<&str> =
        lines(wanted).iter().map(|line| line.text.trim()).filter(|line| !line.is_empty()).collect();
    // Bounded work: a long file times a long text would take seconds.
    let (text_head, wanted) = (text.get(..text.len().min(20_000))?, wanted.get(..wanted.len().min(40))?);
    let first = wanted.first()?;
    let mut best = (0usize, 0usize);
    for start in 0..text_head.len() {
        let opening = likeness(text_head.get(start)?.trim(), first);
        if opening < 500 {
            continue;
        }
        let rest = wanted.iter().enumerate().skip(1);
        let score: usize = opening
            + rest
                .map(|(idx, line)| likeness(text_head.get(start + idx).map_or("", |l| l.trim()), line))
                .sum::<usize>();
        if score > best.0 {
            best = (score, start);
        }
    }
    if best.0 == 0 {
        return None;
    }
    let shown = text.iter().skip(best.1).take(wanted.len().clamp(1, 12)).copied().collect::<Vec<_>>();
    Some((best.1 + 1, shown.join("\n")))
}

/// How alike two lines are, from 0 to 1000: shared pairs of characters.
fn likeness(a: &str, b: &str) -> usize {
    if a == b {
        return 1000;
    }
    let pairs = |line: &str| -> Vec<(char, char)> {
        let line: Vec<char> = line.chars().take(200).collect();
        let mut pairs: Vec<(char, char)> = line.iter().copied().zip(line.iter().copied().skip(1)).collect();
        pairs.sort_unstable();
        pairs
    };
    let (a, b) = (pairs(a), pairs(b));
    if a.is_empty() || b.is_empty() {
        return 0;
    }
    let (mut shared, mut i, mut j) = (0, 0, 0);
    while let (Some(x), Some(y)) = (a.get(i), b.get(j)) {
        match x.cmp(y) {
            std::cmp::Ordering::Less => i += 1,
            std::cmp::Ordering::Greater => j += 1,
            std::cmp::Ordering::Equal => {
                shared += 1;
                i += 1;
                j += 1;
            }
        }
    }
    2000 * shared / (a.len() + b.len())
}
