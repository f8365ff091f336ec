//! Shell facts: any text is read to an end, and no command hides in one that bash would run.

use proptest::prelude::*;

use super::{Part, script};
use crate::fuzzing::{fuzz, inputs};

const CORPUS: &[&str] = &[
    "git log && curl x | sh",
    "for f in *; do echo \"$(cat $f)\"; done > out 2>&1",
    "find . -name a -exec curl {} \\; -o -exec sh -c 'rm $0' {} +",
    "cat <<EOF\n$(curl x)\nEOF\nls",
    "env -S 'curl x' | xargs -n 1 sh -c \"echo '$x'\"",
    "case $x in a|b) f() { g; }; f;; *) [[ -f x ]] && . ./y;; esac",
    "PATH=. X=$(a `b \"c\"`) nice -n 5 timeout 3 sudo -u root \\d 'e'\"f\"$g <(h) >&2",
    "eval \"$(printf '%s' x)\"; trap 'k' EXIT; ((i++)); echo ${a:-$(b)} $'c\\x41'",
];

const WORDS: &[&str] = &[
    "curl",
    "sh",
    " -c ",
    "env ",
    "xargs ",
    "nice ",
    "find . -exec ",
    "eval ",
    "'",
    "\"",
    "`",
    "$(",
    ")",
    "${",
    "}",
    "$",
    "\\",
    "\n",
    ";",
    "&&",
    "||",
    "|",
    "&",
    "(",
    "{",
    "<<EOF\n",
    "EOF\n",
    "<<<",
    "<(",
    ">",
    ">>",
    "2>&1",
    "<",
    " ",
    "#",
    "if ",
    "then ",
    "fi",
    "do ",
    "done",
    "for x in ",
    "case x in ",
    "esac",
    ";;",
    "[[ ",
    " ]]",
    "((",
    "))",
    "!",
    "*",
    "?",
    "~",
    "=",
    "x",
    "\0",
    "ä",
    "\u{200b}",
    "\u{10ffff}",
    "function ",
    "time ",
    "coproc ",
    "select ",
];

#[test]
fn fuzz_shell_facts() {
    fuzz("shell", &inputs(CORPUS, WORDS), |bytes| {
        let text = String::from_utf8_lossy(&bytes);
        let read = script(&text);
        prop_assert!(!read.parts.is_empty(), "there is always something to judge");
        prop_assert!(read.parts.len() <= 16 * (text.len() + 1), "{} parts", read.parts.len());
        prop_assert!(read.redirects.len() <= text.len());
        let n_bytes: usize = read.parts.iter().map(|part| part.line().len()).sum();
        prop_assert!(n_bytes <= 16 * (text.len() + 16).pow(2), "{n_bytes} bytes from {}", text.len());
        for Part { program, parsed, .. } in &read.parts {
            prop_assert!(*parsed != program.is_empty(), "a program is known, or the part is not parsed");
        }
        let again = script(&text);
        prop_assert_eq!((again.parts, again.redirects), (read.parts, read.redirects));
        Ok(())
    });
}

/// Ways to run one program, `P`, that nobody else here is called.
const RUNS: &[&str] = &[
    "P a",
    "X=1 P a",
    "\"P\" a",
    "P'' a",
    "\\P a",
    "P a > out",
    "< in P a",
    "env X=1 P a",
    "env -i -u Y P a",
    "env -S 'P a'",
    "nice -n 5 P a",
    "timeout -k 1 3 P a",
    "nohup P a",
    "sudo -u root P a",
    "exec P a",
    "command P a",
    "time P a",
    "ls | xargs -n 1 P",
    "find . -name x -exec P {} \\;",
    "find . -execdir P {} +",
    "eval \"P a\"",
    "eval P a",
    "sh -c 'P a'",
    "bash -lc \"P a\"",
    "trap 'P a' EXIT",
    "echo `P a`",
    "echo $(P a)",
    "echo \"x $(P a) y\"",
    "echo ${Y:-$(P a)}",
    "cat <(P a)",
    "tee >(P a)",
    "X=$(P a)",
    "export X=$(P a)",
    "local X=$(P a)",
    "[[ -n $(P a) ]]",
    "[ -n \"$(P a)\" ]",
    "cat <<< $(P a)",
    "case x in x) P a;; esac",
    "f() { P a; }; f",
    "! P a",
    "if P a; then true; fi",
    "while P a; do break; done",
    "until P a; do break; done",
    "for i in $(P a); do echo $i; done",
    "for i in 1; do P a; done",
    "busybox P a",
    "stdbuf -o L P a",
    "setsid P a",
    "P \\\n a",
    "P <<< x",
    "P <<E\nx\nE\n",
    "{ P a; } 2> err",
    "P a |& cat",
    "P a &> out",
    "(P a)",
    "((i++)) && P a",
    "coproc P a",
    "flock -w 3 lock P a",
    "su -c 'P a' x",
    "function g { P a; }; g",
    "echo \"`P a`\"",
    "echo $(<in; P a)",
    "echo $((1 + $(P a)))",
    "echo ${x:+\"$(P a)\"}",
    "echo {a,$(P a)}",
    "x[$(P a)]=1",
    "select y in $(P a); do break; done",
    "while read l; do P $l; done < in",
];

/// Ways to put one or two scripts into another.
const AROUND: &[&str] = &[
    "( A )",
    "{ A; }",
    "echo $(A)",
    "echo \"$(A)\"",
    "( A & )",
    "if true; then A; fi",
    "for i in 1; do A; done",
    "f() { A; }; f",
    "A; B",
    "A && B",
    "A || B",
    "A\nB",
    "A | B",
    "if A; then B; else true; fi",
    "case x in a) A;; *) B;; esac",
    "while A; do B; done",
    "A\n\\\nB",
    "A\n\n  B",
    "A;\n\\\nB",
    "A |\n\\\nB",
    "A \\\n&& B",
    "A \\\n; B",
    "A &\nB",
    "A > out 2>&1\nB",
    "A >> out; B",
    "A # why\nB",
    "A\n\t# why\n\tB",
    "cat <<E\nx $(A)\nE\nB",
    "cat <<E; A\nx\nE\n",
    "cat <<E;A\nx\nE\nB",
    "cat <<E&&A\nx\nE\nB",
    "cat <<-E | cat\n\t$(A)\n\tE\n",
    "cat <<E > out\n`A`\nE\nB",
    "cat <<'E'\nx\nE\nA",
    "cat <<E <<F\n$(A)\nE\n$(B)\nF\n",
    "x=(a $(A)\nb); B",
    "[[ a\n&& -n $(A) ]] && B",
    "A\n\\\nB",
    "# nothing\nA",
    "true \\\n && A",
    "QUOTED",
];

/// A script, and the programs that it runs.
#[derive(Clone, Debug)]
struct Planted {
    text: String,
    programs: Vec<String>,
}

fn planted() -> impl Strategy<Value = Planted> {
    let run = (prop::sample::select(RUNS), 0..8_u32).prop_map(|(run, n)| {
        let program = format!("planted{n}");
        Planted { text: run.replace('P', &program), programs: vec![program] }
    });
    run.prop_recursive(3, 6, 2, |inner| {
        (prop::sample::select(AROUND), inner.clone(), inner).prop_map(|(around, a, b)| {
            if around == "QUOTED" {
                return Planted { text: format!("sh -c '{}'", a.text.replace('\'', "'\\''")), ..a };
            }
            // A backtick inside of backticks ends them.
            let is_ended = around.contains('`') && a.text.contains(['`', '\\']);
            let around = if is_ended { "echo $(A)\nB" } else { around };
            let has_both = around.contains('B');
            // In two steps: what is put in may hold the letters itself.
            let (before, after) = around.split_once('A').unwrap_or((around, ""));
            let after = match after.split_once('B') {
                Some((between, end)) => format!("{between}{}{end}", b.text),
                None => after.to_owned(),
            };
            let mut programs = a.programs;
            programs.extend(b.programs.into_iter().filter(|_| has_both));
            Planted { text: format!("{before}{}{after}", a.text), programs }
        })
    })
}

/// Found by the targets: the grammar takes a newline before a backslash for white space, and spaces that
/// are none to bash for spaces; it does not see what a here-document expands behind a blank, nor what
/// follows its beginning behind a semicolon.
#[test]
fn what_the_grammar_passes_over_is_read_all_the_same() {
    let table = [
        ("a b\n\\c d", "c d | a b"),
        ("a b\n\\\nc", "c | a b"),
        ("a b \\\n c d", "a b c d"),
        ("a > f\n\\c", "a | c"),
        ("a <<< x\n\\c", "c | a"),
        ("X=1\n\\c", "c"),
        ("export X\n\\c", "c | export"),
        ("a\n\\b\n\\c d", "c d | b | a"),
        ("a $(b\n\\c)\n\\d", "d | a $(b\n\\c) | c | b"),
        ("a 'x\n\\c'", "a x\n\\c"),
        ("a\r\\c", "?a\r\\c | a c"),
        ("a\u{a0}b", "a\u{a0}b"),
        ("a\n\\\n< f c", "c | a"),
        ("cat <<E\n\t$(p a)\nE\n", "cat | p a"),
        ("cat <<E\n\t$(p \"a\")\nE\n", "cat | ?$(p \"a\")\n"),
        ("cat <<E;d f\nx\nE\n", "?cat <<E;d f\nx\nE\n | cat | ?<<E;d f\nx\nE\n | d f"),
        ("cat <<'E'\n $(p a)\nE\n", "cat"),
        ("a 'b\u{a0}c' \"d\re\" # \u{a0}", "a b\u{a0}c d\re"),
        // What is not ASCII is a part of a word, also where the scanner looks for digits.
        ("echo {\u{10ffff} \u{1f980}\nb", "echo {\u{10ffff} \u{1f980} | b"),
        ("p {\u{1f980}..3} à Å\u{3000}… ä=1 b", "p {\u{1f980}..3} à Å\u{3000}… ä=1 b"),
        ("\u{e4}=1 b", "\u{e4}=1 b"),
        ("cat <<à\nè\n$(p)\nà\nb", "?cat <<à\nè\n$(p)\nà\nb | cat | p"),
        ("cat <<E\nä \u{1f980}…\u{10ffff}\nE\nb 'é' \"ü$(p à)\"", "cat | b é ü$(p à) | p à"),
    ];
    let mut seen = String::new();
    let mut wanted = String::new();
    for (text, expected) in table {
        let parts = script(text).parts;
        let parts: Vec<String> = parts
            .iter()
            .map(|part| format!("{}{}", if part.parsed { "" } else { "?" }, part.line()))
            .collect();
        seen.push_str(&format!("{text:?}: {:?}\n", parts.join(" | ")));
        wanted.push_str(&format!("{text:?}: {expected:?}\n"));
    }
    assert_eq!(seen, wanted, "\n{seen}");
}

#[test]
fn fuzz_planted_commands() {
    fuzz("shell-planted", &planted(), |Planted { text, programs }| {
        let read = script(&text);
        let is_unparsed = read.parts.iter().any(|part| !part.parsed);
        for program in &programs {
            let is_found = read.parts.iter().any(|part| part.parsed && part.program == *program);
            prop_assert!(is_found || is_unparsed, "{program} hides in {text:?}: {:?}", read.parts);
        }
        Ok(())
    });
}

/// What hides nothing alone is understood alone: the property above is not held by giving up.
#[test]
fn every_way_to_run_a_program_is_understood() {
    for run in RUNS {
        let read = script(&run.replace('P', "planted"));
        let found = read.parts.iter().find(|part| part.parsed && part.program == "planted");
        assert!(found.is_some(), "{run}: {:?}", read.parts);
    }
}
