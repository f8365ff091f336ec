//! Programs that run other programs, and where in their arguments those stand.

use super::Word;

/// What a program runs in turn.
pub(super) enum Inner {
    /// Nothing that its arguments name.
    None,
    /// These commands.
    Words(Vec<Vec<Word>>),
    /// This shell script.
    Script(String),
    /// Something that is only known when it runs.
    Unknown,
}

const SHELLS: &[&str] = &["sh", "bash", "dash", "zsh", "ksh", "ash", "rbash"];

/// A wrapper: its options that take a value in the next word, and the number of its own operands
/// before the command.
struct Wrapper {
    name: &'static str,
    valued: &'static [&'static str],
    n_operands: usize,
}

const WRAPPERS: &[Wrapper] = &[
    Wrapper {
        name: "xargs",
        valued: &[
            "-I",
            "-n",
            "-P",
            "-L",
            "-s",
            "-d",
            "-a",
            "-E",
            "--max-args",
            "--max-procs",
            "--delimiter",
            "--arg-file",
        ],
        n_operands: 0,
    },
    Wrapper { name: "nice", valued: &["-n", "--adjustment"], n_operands: 0 },
    Wrapper { name: "ionice", valued: &["-c", "-n", "-p"], n_operands: 0 },
    Wrapper { name: "nohup", valued: &[], n_operands: 0 },
    Wrapper { name: "setsid", valued: &[], n_operands: 0 },
    Wrapper { name: "time", valued: &["-f", "-o"], n_operands: 0 },
    Wrapper { name: "timeout", valued: &["-s", "-k", "--signal", "--kill-after"], n_operands: 1 },
    Wrapper { name: "stdbuf", valued: &["-i", "-o", "-e"], n_operands: 0 },
    Wrapper { name: "sudo", valued: &["-u", "-g", "-C", "-h", "-p", "-D", "-R", "-T", "-U"], n_operands: 0 },
    Wrapper { name: "doas", valued: &["-u", "-C"], n_operands: 0 },
    Wrapper { name: "exec", valued: &["-a"], n_operands: 0 },
    Wrapper { name: "command", valued: &[], n_operands: 0 },
    Wrapper { name: "builtin", valued: &[], n_operands: 0 },
    Wrapper { name: "chroot", valued: &[], n_operands: 1 },
    Wrapper { name: "busybox", valued: &[], n_operands: 0 },
    Wrapper { name: "watch", valued: &["-n", "--interval"], n_operands: 0 },
    Wrapper { name: "strace", valued: &["-e", "-o", "-p", "-s"], n_operands: 0 },
    Wrapper { name: "unshare", valued: &[], n_operands: 0 },
    Wrapper { name: "parallel", valued: &["-j", "--jobs"], n_operands: 0 },
    Wrapper { name: "flock", valued: &["-w", "-E", "--timeout", "--conflict-exit-code"], n_operands: 1 },
    Wrapper { name: "taskset", valued: &[], n_operands: 1 },
    Wrapper { name: "chrt", valued: &["-T", "-P", "-D"], n_operands: 1 },
    Wrapper { name: "setpriv", valued: &[], n_operands: 0 },
    Wrapper { name: "prlimit", valued: &[], n_operands: 0 },
];

/// Variables that decide which program a name means, or make a program run another one.
const REDIRECTING: &[&str] = &[
    "PATH",
    "BASH_ENV",
    "ENV",
    "IFS",
    "SHELL",
    "PAGER",
    "EDITOR",
    "VISUAL",
    "BROWSER",
    "PROMPT_COMMAND",
    "SHELLOPTS",
    "BASHOPTS",
    "PS4",
    "PYTHONSTARTUP",
    "NODE_OPTIONS",
    "PERL5OPT",
    "RUBYOPT",
    "LESSOPEN",
    "MANPAGER",
];

/// The same by the beginning of their names.
const REDIRECTING_PREFIXES: &[&str] = &["LD_", "DYLD_", "GIT_", "BASH_FUNC_"];

/// Whether `NAME=value` changes what a command that looks harmless runs.
pub(super) fn redirects(assignment: &str) -> bool {
    let name = assignment.split(['=', '[', '+']).next().unwrap_or_default();
    REDIRECTING.contains(&name) || REDIRECTING_PREFIXES.iter().any(|prefix| name.starts_with(prefix))
}

/// What `program` runs when it is given `args`.
pub(super) fn inner(program: &str, args: &[Word]) -> Inner {
    let name = crate::beneath::split(program).1;
    match name {
        "env" => env(args),
        "eval" => eval(args),
        "find" | "fd" => find(args),
        "trap" => first_as_script(args),
        "coproc" => coproc(args),
        "su" | "runuser" | "script" => after_dash_c(args),
        _ if SHELLS.contains(&name) => shell(args),
        _ => match WRAPPERS.iter().find(|wrapper| wrapper.name == name) {
            Some(wrapper) => wrapped(wrapper, args),
            None => Inner::None,
        },
    }
}

fn wrapped(wrapper: &Wrapper, args: &[Word]) -> Inner {
    let rest = after_options(args, wrapper.valued);
    one(rest.get(wrapper.n_operands..).unwrap_or_default())
}

fn one(words: &[Word]) -> Inner {
    if words.is_empty() { Inner::None } else { Inner::Words(vec![words.to_vec()]) }
}

/// What follows the options; `--` ends them.
fn after_options<'a>(args: &'a [Word], valued: &[&str]) -> &'a [Word] {
    let mut idx = 0;
    while let Some(word) = args.get(idx) {
        if word.text == "--" {
            idx += 1;
            break;
        }
        if !word.text.starts_with('-') || word.text == "-" {
            break;
        }
        idx += if valued.contains(&word.text.as_str()) { 2 } else { 1 };
    }
    args.get(idx..).unwrap_or_default()
}

/// `env -i X=1 cmd`, and `env -S 'cmd args'`.
fn env(args: &[Word]) -> Inner {
    let split = args.iter().position(|word| {
        word.text == "-S"
            || word.text.starts_with("--split-string")
            || (word.text.starts_with("-S") && word.known)
    });
    if let Some(at) = split {
        let Some(word) = args.get(at) else { return Inner::Unknown };
        let script = match word.text.as_str() {
            "-S" | "--split-string" => {
                args.get(at + 1).filter(|word| word.known).map(|word| word.text.clone())
            }
            text => {
                text.strip_prefix("--split-string=").or_else(|| text.strip_prefix("-S")).map(str::to_owned)
            }
        };
        return script.map_or(Inner::Unknown, Inner::Script);
    }
    let rest = after_options(args, &["-u", "--unset", "-C", "--chdir"]);
    let n_assignments = rest.iter().take_while(|word| word.text.contains('=')).count();
    if rest.iter().take(n_assignments).any(|word| redirects(&word.text)) {
        return Inner::Unknown;
    }
    one(rest.get(n_assignments..).unwrap_or_default())
}

fn eval(args: &[Word]) -> Inner {
    if args.iter().any(|word| !word.known) {
        return Inner::Unknown;
    }
    let words: Vec<&str> = args.iter().map(|word| word.text.as_str()).collect();
    Inner::Script(words.join(" "))
}

fn first_as_script(args: &[Word]) -> Inner {
    match after_options(args, &[]).first() {
        Some(word) if word.known => Inner::Script(word.text.clone()),
        Some(_) => Inner::Unknown,
        None => Inner::None,
    }
}

/// `coproc cmd`, or `coproc NAME { cmd; }`, which the grammar takes for one command as well.
fn coproc(args: &[Word]) -> Inner {
    let is_compound = |word: &Word| {
        word.text.contains(['{', '}', '(', ')'])
            || matches!(word.text.as_str(), "if" | "while" | "until" | "for" | "case" | "select" | "[[")
    };
    if args.iter().any(is_compound) { Inner::Unknown } else { one(args) }
}

/// `su -c script`.
fn after_dash_c(args: &[Word]) -> Inner {
    let option = args.iter().position(|word| word.text.starts_with('-') && word.text.ends_with('c'));
    match option.map(|at| args.get(at + 1)) {
        None => Inner::None,
        Some(Some(script)) if script.known => Inner::Script(script.text.clone()),
        Some(_) => Inner::Unknown,
    }
}

/// `sh -c script`, with `-c` anywhere in a bundle of options. A shell that reads its standard
/// input runs what is only known then; a script file is the shell's argument, and judged as that.
fn shell(args: &[Word]) -> Inner {
    let mut idx = 0;
    while let Some(word) = args.get(idx) {
        let option = word.text.strip_prefix('-').or_else(|| word.text.strip_prefix('+'));
        let Some(option) = option.filter(|option| !option.is_empty()) else { break };
        if !option.starts_with('-') && option.contains('c') {
            return match after_options(args.get(idx + 1..).unwrap_or_default(), &["-o"]).first() {
                Some(script) if script.known => Inner::Script(script.text.clone()),
                _ => Inner::Unknown,
            };
        }
        idx += if matches!(option, "o" | "O" | "-rcfile" | "-init-file") { 2 } else { 1 };
    }
    match args.get(idx) {
        None => Inner::Unknown,
        Some(word) if word.text == "-" || word.text.starts_with("/dev/") => Inner::Unknown,
        Some(word) if !word.known => Inner::Unknown,
        Some(_) => Inner::None,
    }
}

/// `find ... -exec cmd {} \;` and its kin, `fd -x cmd`.
fn find(args: &[Word]) -> Inner {
    let mut commands = Vec::new();
    let mut rest = args;
    while let Some(at) = rest.iter().position(|word| {
        matches!(
            word.text.as_str(),
            "-exec" | "-execdir" | "-ok" | "-okdir" | "-x" | "-X" | "--exec" | "--exec-batch"
        )
    }) {
        let after = rest.get(at + 1..).unwrap_or_default();
        let end = after.iter().position(|word| word.text == ";" || word.text == "+").unwrap_or(after.len());
        commands.push(after.get(..end).unwrap_or_default().to_vec());
        rest = after.get(end..).unwrap_or_default();
    }
    commands.retain(|command| !command.is_empty());
    if commands.is_empty() { Inner::None } else { Inner::Words(commands) }
}
