//! A shell command as the simple commands that it would run.
//!
//! A real grammar (tree-sitter-bash) reads the text; every command in it counts, wherever it
//! stands: in lists, pipes, subshells, substitutions, loops, functions, after assignments, on
//! later lines. Programs that run another program (`env`, `xargs`, `sh -c`, `find -exec`, ...) are
//! judged, and so is what they run. What the grammar does not understand, what is only known
//! when it runs (`$cmd`, `eval "$x"`), and what changes the meaning of names (`PATH=.`), is a part that is not parsed: its program is not known and
//! no policy should take it for a harmless one.

#[cfg(test)]
mod fuzz;
mod wrap;

use tree_sitter::{Decode, Node, Parser, Tree};

/// One simple command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    /// The program as written, quotes removed; empty if not parsed.
    pub(crate) program: String,
    /// Its arguments, quotes removed; those that are only known when it runs are as written.
    pub(crate) args: Vec<String>,
    /// Whether it is known what this runs.
    pub(crate) parsed: bool,
}

impl Part {
    /// Program and arguments on one line.
    pub(crate) fn line(&self) -> String {
        let mut line = self.program.clone();
        for arg in &self.args {
            if !line.is_empty() {
                line.push(' ');
            }
            line.push_str(arg);
        }
        line
    }

    fn unparsed(text: &str) -> Self {
        Self { program: String::new(), args: vec![text.to_owned()], parsed: false }
    }
}

/// A file that a redirection opens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Redirect {
    /// The file as written, quotes removed.
    pub(crate) target: String,
    /// Whether its name is known before the command runs.
    pub(crate) known: bool,
    /// Opened for writing, else for reading.
    pub(crate) writes: bool,
}

/// What a shell call would do.
#[derive(Debug, Default)]
pub(crate) struct Script {
    /// Every simple command; at least one.
    pub(crate) parts: Vec<Part>,
    /// Every redirection to or from a file.
    pub(crate) redirects: Vec<Redirect>,
}

/// Nodes that end with their line.
const COMMANDS: &[&str] = &[
    "command",
    "declaration_command",
    "unset_command",
    "file_redirect",
    "herestring_redirect",
    "variable_assignment",
    "variable_assignments",
];

/// Nodes inside of them that go on over lines.
const OVER_LINES: &[&str] = &[
    "string",
    "raw_string",
    "ansi_c_string",
    "translated_string",
    "command_substitution",
    "process_substitution",
    "expansion",
    "arithmetic_expansion",
    "heredoc_redirect",
    "heredoc_body",
    "array",
];

/// Nodes whose text may stand between their children.
const IS_TEXT: &[&str] = &["string", "translated_string", "heredoc_body", "expansion"];

/// A word of a command, and whether its value is known before it runs.
#[derive(Clone, Debug)]
struct Word {
    text: String,
    known: bool,
}

/// Longer commands are not read.
const BYTES_MAX: usize = 64 << 10;

/// Commands inside commands inside commands.
const DEPTH_MAX: usize = 8;

/// Levels of the syntax tree that are walked.
const TREE_DEPTH_MAX: usize = 200;

/// Reads a shell call.
pub(crate) fn script(text: &str) -> Script {
    let mut script = Script::default();
    read(text, 0, &mut script);
    if script.parts.is_empty() {
        // Nothing but comments, assignments or white space.
        script.parts.push(Part { program: "true".to_owned(), args: Vec::new(), parsed: true });
    }
    // After a change of directory a relative name means another file.
    if script.parts.iter().any(|part| matches!(part.program.as_str(), "cd" | "pushd" | "popd")) {
        for redirect in script.redirects.iter_mut().filter(|redirect| !redirect.target.starts_with('/')) {
            redirect.known = false;
        }
    }
    script
}

fn read(text: &str, depth: usize, script: &mut Script) {
    if text.len() > BYTES_MAX || depth > DEPTH_MAX {
        script.parts.push(Part::unparsed(text));
        return;
    }
    let Some(tree) = parse(text) else {
        script.parts.push(Part::unparsed(text));
        return;
    };
    if tree.root_node().has_error() {
        // What can be read is judged too, so that a deny is not missed behind a syntax error.
        script.parts.push(Part::unparsed(text));
    }
    let mut reader = Reader { text, depth, script };
    if reader.passes_over(tree.root_node()) {
        reader.script.parts.push(Part::unparsed(text));
    }
    reader.visit(tree.root_node(), 0);
}

/// Bytes as they are, each a character. What is not ASCII belongs to a word for bash, whatever it
/// encodes; and the scanner of the grammar looks characters up in a table that ends after 255.
struct Bytes;

impl Decode for Bytes {
    fn decode(bytes: &[u8]) -> (i32, u32) {
        bytes.first().map_or((0, 0), |byte| (i32::from(*byte), 1))
    }
}

fn parse(text: &str) -> Option<Tree> {
    let mut parser = Parser::new();
    parser.set_language(&tree_sitter_bash::LANGUAGE.into()).ok()?;
    let mut from = |at: usize, _| text.as_bytes().get(at..).unwrap_or_default();
    parser.parse_custom_encoding::<Bytes, _, _>(&mut from, None, None)
}

struct Reader<'a> {
    text: &'a str,
    depth: usize,
    script: &'a mut Script,
}

impl Reader<'_> {
    fn visit(&mut self, node: Node<'_>, level: usize) {
        if level > TREE_DEPTH_MAX {
            self.script.parts.push(Part::unparsed(self.source(node)));
            return;
        }
        let line_end = match node.kind() {
            kind if COMMANDS.contains(&kind) => self.first_line_end(node),
            "redirected_statement" => self.line_end_before_redirect(node),
            _ => None,
        };
        if let Some(end) = line_end {
            // bash begins the next command here, and the grammar took it for a part of this one.
            let rest = self.text.get(end..node.end_byte()).unwrap_or_default();
            read(rest, self.depth + 1, self.script);
        }
        match node.kind() {
            "command" => self.command(node),
            "file_redirect" => self.redirect(node),
            "heredoc_redirect" => self.here_document(node, level),
            // Read with its here-document.
            "heredoc_body" => return,
            "declaration_command" | "unset_command" | "test_command" => self.keyword(node),
            "variable_assignment" if wrap::redirects(self.source(node)) => {
                self.script.parts.push(Part::unparsed(self.source(node)));
            }
            _ => {}
        }
        self.visit_children(node, level);
    }

    fn visit_children(&mut self, node: Node<'_>, level: usize) {
        let mut cursor = node.walk();
        for child in node.named_children(&mut cursor) {
            self.visit(child, level + 1);
        }
    }

    /// The first newline of a node that ends a command for bash: neither escaped nor inside of quotes or
    /// of anything else that goes on over lines. The grammar takes the newline before a backslash for
    /// white space.
    fn first_line_end(&self, node: Node<'_>) -> Option<usize> {
        let mut from = node.start_byte();
        let mut cursor = node.walk();
        for child in node.children(&mut cursor) {
            let found = self.line_end_in(from, child.start_byte()).or_else(|| match child.kind() {
                kind if OVER_LINES.contains(&kind) => None,
                _ if child.child_count() > 0 => self.first_line_end(child),
                _ => self.line_end_in(child.start_byte(), child.end_byte()),
            });
            if found.is_some() {
                return found;
            }
            from = child.end_byte();
        }
        self.line_end_in(from, node.end_byte())
    }

    /// The same between a command and a redirection that the grammar counts to it.
    fn line_end_before_redirect(&self, node: Node<'_>) -> Option<usize> {
        let mut cursor = node.walk();
        let children: Vec<Node<'_>> = node.children(&mut cursor).collect();
        children.iter().zip(children.iter().skip(1)).find_map(|(before, redirect)| {
            let is_heredoc = before.kind() == "heredoc_redirect" || redirect.kind() == "heredoc_redirect";
            if is_heredoc { None } else { self.line_end_in(before.end_byte(), redirect.start_byte()) }
        })
    }

    /// The first newline in a part of the text that no backslash escapes.
    fn line_end_in(&self, from: usize, to: usize) -> Option<usize> {
        let part = self.text.get(from..to).unwrap_or_default();
        part.match_indices('\n').map(|(at, _)| from + at).find(|at| {
            let before = self.text.get(..*at).unwrap_or_default();
            (before.len() - before.trim_end_matches('\\').len()).is_multiple_of(2)
        })
    }

    /// Whether the grammar passed over something that is more than white space to bash: what stands
    /// between two nodes is part of neither.
    fn passes_over(&self, node: Node<'_>) -> bool {
        let is_more = |from: usize, to: usize| {
            let gap = self.text.get(from..to).unwrap_or_default().replace("\\\n", "");
            !IS_TEXT.contains(&node.kind()) && gap.chars().any(|c| !matches!(c, ' ' | '\t' | '\n'))
        };
        let mut from = node.start_byte();
        let mut cursor = node.walk();
        for child in node.children(&mut cursor) {
            if is_more(from, child.start_byte()) || self.passes_over(child) {
                return true;
            }
            from = child.end_byte();
        }
        node.child_count() > 0 && is_more(from, node.end_byte())
    }

    /// A here-document: what follows its beginning on the line, and its text, in which bash expands what
    /// it expands between double quotes. The grammar does not see all of either.
    fn here_document(&mut self, node: Node<'_>, level: usize) {
        let mut cursor = node.walk();
        let children: Vec<Node<'_>> = node.children(&mut cursor).collect();
        let of_kind = |kind: &str| children.iter().copied().find(|child| child.kind() == kind);
        let start = of_kind("heredoc_start").map(|start| self.source(start)).unwrap_or_default();
        let is_quoted = start.contains(['\'', '"', '\\']);
        // The grammar's word for the end is longer than bash's, so that its text may be as well.
        if let Some(end) = start.find([';', '&', '|', '<', '>', '(', ')']) {
            let rest = of_kind("heredoc_start").and_then(|of| self.text.get(of.start_byte() + end..));
            let line = rest.and_then(|rest| rest.lines().next()).unwrap_or_default();
            self.script.parts.push(Part::unparsed(self.source(node)));
            self.read_inside(&format!(": {line}"));
        }
        let Some(body) = of_kind("heredoc_body") else { return };
        let text = self.source(body).to_owned();
        if is_quoted || !(text.contains("$(") || text.contains('`')) {
            return;
        }
        if text.contains('"') {
            // Its quotes would end ours.
            self.script.parts.push(Part::unparsed(&text));
            self.visit_children(body, level);
        } else {
            self.read_inside(&format!(": \"{text}\""));
        }
    }

    /// Reads a script that begins with `:`, which is no part of what was written.
    fn read_inside(&mut self, text: &str) {
        let mut inner = Script::default();
        read(text, self.depth + 1, &mut inner);
        self.script.parts.extend(inner.parts.into_iter().filter(|part| part.program != ":"));
        self.script.redirects.extend(inner.redirects);
    }

    /// `> file`, `2>> file`, `&> file`, `< file`; not `2>&1`.
    fn redirect(&mut self, node: Node<'_>) {
        let Some(destination) = node.child_by_field_name("destination") else {
            return;
        };
        let operator = self.text.get(node.start_byte()..destination.start_byte()).unwrap_or_default().trim();
        let Word { text, known } = self.word(destination);
        let is_descriptor = text == "-" || (!text.is_empty() && text.chars().all(|c| c.is_ascii_digit()));
        if operator.ends_with('&') && is_descriptor {
            return;
        }
        self.script.redirects.push(Redirect { target: text, known, writes: operator.contains('>') });
    }

    /// `export X=1`, `unset X`, `[[ ... ]]`: part of the shell itself.
    fn keyword(&mut self, node: Node<'_>) {
        let program = node.child(0).map_or("", |child| self.source(child)).to_owned();
        self.script.parts.push(Part { program, args: Vec::new(), parsed: true });
    }

    fn command(&mut self, node: Node<'_>) {
        let mut words = Vec::new();
        let end = self.first_line_end(node).unwrap_or(node.end_byte());
        let mut cursor = node.walk();
        for child in node.named_children(&mut cursor).take_while(|child| child.start_byte() < end) {
            match child.kind() {
                "variable_assignment"
                | "file_redirect"
                | "herestring_redirect"
                | "heredoc_redirect"
                | "comment" => {}
                "command_name" => words.extend(child.named_child(0).map(|name| self.word(name))),
                _ => words.push(self.word(child)),
            }
        }
        self.simple(&words);
    }

    /// One simple command: itself, and what it runs in turn.
    fn simple(&mut self, words: &[Word]) {
        let Some((program, args)) = words.split_first() else {
            return;
        };
        if !program.known || program.text.is_empty() {
            let line: Vec<&str> = words.iter().map(|word| word.text.as_str()).collect();
            self.script.parts.push(Part::unparsed(&line.join(" ")));
            return;
        }
        let texts = args.iter().map(|word| word.text.clone()).collect();
        self.script.parts.push(Part { program: program.text.clone(), args: texts, parsed: true });
        if self.depth >= DEPTH_MAX {
            self.script.parts.push(Part::unparsed(&program.text));
            return;
        }
        self.depth += 1;
        match wrap::inner(&program.text, args) {
            wrap::Inner::None => {}
            wrap::Inner::Words(commands) => commands.iter().for_each(|words| self.simple(words)),
            wrap::Inner::Script(script) => read(&script, self.depth, self.script),
            wrap::Inner::Unknown => {
                let line: Vec<&str> = words.iter().map(|word| word.text.as_str()).collect();
                self.script.parts.push(Part::unparsed(&line.join(" ")));
            }
        }
        self.depth -= 1;
    }

    /// A word with its quotes removed.
    fn word(&self, node: Node<'_>) -> Word {
        let source = self.source(node);
        let known = |text: String| Word { text, known: true };
        match node.kind() {
            "word" | "number" => {
                let plain = unescaped(source);
                // A pattern may become any name; `~` and braces are expanded too.
                let open = source.contains(['*', '?', '[', '{']) || source.starts_with('~');
                Word { text: plain, known: !open }
            }
            "raw_string" => known(source.trim_matches('\'').to_owned()),
            "string" => self.string(node),
            "concatenation" => {
                let mut word = known(String::new());
                let mut end = node.start_byte();
                let mut cursor = node.walk();
                for child in node.named_children(&mut cursor) {
                    let part = self.word(child);
                    word.text.push_str(&part.text);
                    // A gap holds something that is not part of the text put together here.
                    word.known &= part.known && child.start_byte() == end;
                    end = child.end_byte();
                }
                word.known &= end == node.end_byte();
                word
            }
            _ => Word { text: source.to_owned(), known: false },
        }
    }

    fn string(&self, node: Node<'_>) -> Word {
        let mut cursor = node.walk();
        let known = node.named_children(&mut cursor).all(|child| child.kind() == "string_content");
        let source = self.source(node);
        let inner = source.strip_prefix('"').and_then(|inner| inner.strip_suffix('"')).unwrap_or(source);
        let mut text = String::new();
        let mut chars = inner.chars().peekable();
        while let Some(c) = chars.next() {
            match (c, chars.peek()) {
                ('\\', Some('"' | '\\' | '$' | '`')) => text.extend(chars.next()),
                ('\\', Some('\n')) => {
                    chars.next();
                }
                _ => text.push(c),
            }
        }
        Word { text, known }
    }

    fn source(&self, node: Node<'_>) -> &str {
        self.text.get(node.byte_range()).unwrap_or_default()
    }
}

fn unescaped(source: &str) -> String {
    let mut text = String::new();
    let mut chars = source.chars();
    while let Some(c) = chars.next() {
        match c {
            '\\' => text.extend(chars.next().filter(|next| *next != '\n')),
            _ => text.push(c),
        }
    }
    text
}
