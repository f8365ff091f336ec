//! What the model is shown of a tool's output: its head and its tail.

/// Output as shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Shown {
    /// The text for the model.
    pub(crate) text: String,
    /// Whether something was left out.
    pub(crate) cut: bool,
}

/// Cuts `text` to about `chars_max` characters: two thirds head, one third tail, at character
/// boundaries, with the number of characters that were left out.
pub(crate) fn shown(text: &str, chars_max: usize) -> Shown {
    // Bytes bound characters from above: most outputs need no count.
    if text.len() <= chars_max {
        return Shown { text: text.to_owned(), cut: false };
    }
    let n_chars = text.chars().count();
    if n_chars <= chars_max {
        return Shown { text: text.to_owned(), cut: false };
    }
    let n_head = chars_max - chars_max / 3;
    let n_tail = chars_max / 3;
    let head: String = text.chars().take(n_head).collect();
    let tail: String = text.chars().skip(n_chars - n_tail).collect();
    let n_cut = n_chars - n_head - n_tail;
    let text = format!(
        "{head}\n[... {n_cut} of {n_chars} characters left out; narrow the call to see them ...]\n{tail}"
    );
    Shown { text, cut: true }
}
