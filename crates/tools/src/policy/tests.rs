use evenkeel_core::Generator;
use evenkeel_core::Wall;
use evenkeel_core::id::{RunId, TenantId};
use evenkeel_core::journal::Verdict;
use expect_test::expect;

use super::shell::Part;
use super::{Fact, Network, Policy, Who, shell_script};
use crate::config::{PolicyConfig, PolicyMode};

fn shell_commands(text: &str) -> Vec<Part> {
    shell_script(text).parts
}

fn exec(part: Part) -> Fact {
    Fact::Exec(part, Network::None)
}

fn who() -> Who {
    let run = RunId::new(Wall(1), &Generator::from_seed(1));
    Who { tenant: TenantId::from("tenant"), run, agent: "coder".to_owned() }
}

/// The policy of an operator, instead of the one that ships or beside it.
fn load(text: &str, config: PolicyConfig) -> Result<Policy, evenkeel_core::Error> {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("site.cedar");
    std::fs::write(&path, text).unwrap();
    let policy = Policy::load(&PolicyConfig { files: vec![path.clone()], ..config });
    policy.map_err(|mut error| {
        error.message = error.message.replace(&format!("{}/", directory.path().display()), "").into();
        error
    })
}

fn only(text: &str) -> Policy {
    load(text, PolicyConfig { defaults: false, ..PolicyConfig::default() }).unwrap()
}

fn judge_command(policy: &Policy, command: &str) -> String {
    let facts: Vec<Fact> = shell_commands(command).into_iter().map(exec).collect();
    match policy.judge(&who(), "bash", &facts).verdict {
        Verdict::Allow => "allow".to_owned(),
        Verdict::Deny { .. } => "deny".to_owned(),
        Verdict::Ask { .. } => "ask".to_owned(),
    }
}

/// P03: every simple command of a shell call, wherever it stands.
#[test]
fn a_shell_call_is_read_into_every_command_that_it_runs() {
    let commands = [
        "git log",
        "git log && curl x | sh",
        "a; b\nc & d",
        "a || b",
        "! a",
        "(a; b)",
        "{ a; b; }",
        "echo $(curl x)",
        "echo `curl x`",
        "echo \"$(curl x)\"",
        "diff <(a) <(b)",
        "X=1 curl x",
        "X=$(curl x)",
        "env X=1 curl x",
        "env -i -u Y X=1 curl x",
        "env -S 'curl x'",
        "/usr/bin/env curl x",
        "ls | xargs -n 1 curl",
        "ls | xargs sh -c 'curl $0'",
        "sh -c 'curl x; ls'",
        "bash -lc \"curl x\"",
        "bash -c \"$cmd\"",
        "curl x | bash",
        "bash script.sh",
        "eval \"curl x\"",
        "eval $x",
        "$cmd x",
        "cu''rl x",
        "\\curl x",
        "\"curl\" x",
        "./curl x",
        "nice -n 5 timeout 3 curl x",
        "sudo -u root curl x",
        "exec curl x",
        "command curl x",
        "time curl x",
        "nohup curl x &",
        "find . -name a -exec curl {} \\; -delete",
        "for f in *; do curl $f; done",
        "while a; do b; done",
        "if a; then b; else c; fi",
        "case $x in a) curl y;; esac",
        "f() { curl x; }; f",
        "curl x > out 2>&1 < in",
        "cat <<EOF\n$(curl x)\nEOF",
        "cat <<< $(curl x)",
        "export X=$(curl x)",
        "[[ -f x ]] && curl x",
        "trap 'curl x' EXIT",
        "busybox wget x",
        "# nothing",
        "if then fi (",
        "ls ${x:-$(curl y)}",
        "cu* x",
        "PATH=. git log",
        "env LD_PRELOAD=x git log",
    ];
    let mut table = String::new();
    for command in commands {
        let parts: Vec<String> = shell_commands(command)
            .iter()
            .map(|part| if part.parsed { part.line() } else { format!("?{}", part.line()) })
            .collect();
        table.push_str(&format!(
            "{:42} {}\n",
            command.replace('\n', "⏎"),
            parts.join(" │ ").replace('\n', "⏎")
        ));
    }
    expect![[r#"
        git log                                    git log
        git log && curl x | sh                     git log │ curl x │ sh │ ?sh
        a; b⏎c & d                                 a │ b │ c │ d
        a || b                                     a │ b
        ! a                                        a
        (a; b)                                     a │ b
        { a; b; }                                  a │ b
        echo $(curl x)                             echo $(curl x) │ curl x
        echo `curl x`                              echo `curl x` │ curl x
        echo "$(curl x)"                           echo $(curl x) │ curl x
        diff <(a) <(b)                             diff <(a) <(b) │ a │ b
        X=1 curl x                                 curl x
        X=$(curl x)                                curl x
        env X=1 curl x                             env X=1 curl x │ curl x
        env -i -u Y X=1 curl x                     env -i -u Y X=1 curl x │ curl x
        env -S 'curl x'                            env -S curl x │ curl x
        /usr/bin/env curl x                        /usr/bin/env curl x │ curl x
        ls | xargs -n 1 curl                       ls │ xargs -n 1 curl │ curl
        ls | xargs sh -c 'curl $0'                 ls │ xargs sh -c curl $0 │ sh -c curl $0 │ curl $0
        sh -c 'curl x; ls'                         sh -c curl x; ls │ curl x │ ls
        bash -lc "curl x"                          bash -lc curl x │ curl x
        bash -c "$cmd"                             bash -c $cmd │ ?bash -c $cmd
        curl x | bash                              curl x │ bash │ ?bash
        bash script.sh                             bash script.sh
        eval "curl x"                              eval curl x │ curl x
        eval $x                                    eval $x │ ?eval $x
        $cmd x                                     ?$cmd x
        cu''rl x                                   curl x
        \curl x                                    curl x
        "curl" x                                   curl x
        ./curl x                                   ./curl x
        nice -n 5 timeout 3 curl x                 nice -n 5 timeout 3 curl x │ timeout 3 curl x │ curl x
        sudo -u root curl x                        sudo -u root curl x │ curl x
        exec curl x                                exec curl x │ curl x
        command curl x                             command curl x │ curl x
        time curl x                                time curl x │ curl x
        nohup curl x &                             nohup curl x │ curl x
        find . -name a -exec curl {} \; -delete    find . -name a -exec curl {} ; -delete │ curl {}
        for f in *; do curl $f; done               curl $f
        while a; do b; done                        a │ b
        if a; then b; else c; fi                   a │ b │ c
        case $x in a) curl y;; esac                curl y
        f() { curl x; }; f                         curl x │ f
        curl x > out 2>&1 < in                     curl x
        cat <<EOF⏎$(curl x)⏎EOF                    cat │ curl x
        cat <<< $(curl x)                          cat │ curl x
        export X=$(curl x)                         export │ curl x
        [[ -f x ]] && curl x                       [[ │ curl x
        trap 'curl x' EXIT                         trap curl x EXIT │ curl x
        busybox wget x                             busybox wget x │ wget x
        # nothing                                  true
        if then fi (                               ?if then fi ( │ then fi
        ls ${x:-$(curl y)}                         ls ${x:-$(curl y)} │ curl y
        cu* x                                      ?cu* x
        PATH=. git log                             git log │ ?PATH=.
        env LD_PRELOAD=x git log                   env LD_PRELOAD=x git log │ ?env LD_PRELOAD=x git log
    "#]]
    .assert_eq(&table);
}

/// P04 and the bypasses of P03 against an allow list: `echo` and `git` may run, nothing else.
#[test]
fn an_allow_list_is_not_passed_by() {
    let policy = only(
        r#"@id("tools") permit (principal, action == Action::"exec", resource)
           when { resource.program == "echo" || resource.program == "git" };"#,
    );
    let mut table = String::new();
    for command in [
        "echo a",
        "./echo a",
        "/bin/echo a",
        "e\"c\"ho a",
        "echo a && git log",
        "git log && curl x | sh",
        "echo $(curl x)",
        "echo a\ncurl x",
        "env echo a",
        "X=1 echo a",
        "PATH=. echo a",
        "LD_PRELOAD=./x.so git log",
        "export GIT_SSH_COMMAND=x; git fetch",
        "env PATH=. echo a",
        "echo a | xargs echo",
        "eval echo",
        "echo a > out",
        "echo 'unfinished",
        "$x",
        "git log; f() { curl x; }",
    ] {
        table.push_str(&format!("{:28} {}\n", command.replace('\n', "⏎"), judge_command(&policy, command)));
    }
    expect![[r#"
        echo a                       allow
        ./echo a                     deny
        /bin/echo a                  deny
        e"c"ho a                     allow
        echo a && git log            allow
        git log && curl x | sh       deny
        echo $(curl x)               deny
        echo a⏎curl x                deny
        env echo a                   deny
        X=1 echo a                   allow
        PATH=. echo a                deny
        LD_PRELOAD=./x.so git log    deny
        export GIT_SSH_COMMAND=x; git fetch deny
        env PATH=. echo a            deny
        echo a | xargs echo          deny
        eval echo                    deny
        echo a > out                 allow
        echo 'unfinished             deny
        $x                           deny
        git log; f() { curl x; }     deny
    "#]]
    .assert_eq(&table);
}

/// A forbid matches the name anywhere, and an allow does not outweigh it.
#[test]
fn a_forbidden_program_is_found_anywhere() {
    let policy = load(
        r#"@id("no-curl") @reason("Downloads go through the package proxy.")
           forbid (principal, action == Action::"exec", resource) when { resource.name == "curl" };"#,
        PolicyConfig::default(),
    )
    .unwrap();
    for command in [
        "curl x",
        "/usr/bin/curl x",
        "./curl x",
        "ls; curl x",
        "ls | xargs curl",
        "sh -c 'curl x'",
        "X=1 env curl x",
        "a=$(curl x)",
        "if then ( ; curl x",
    ] {
        assert_eq!(judge_command(&policy, command), "deny", "{command}");
    }
    assert_eq!(judge_command(&policy, "echo curl"), "allow");
    let facts: Vec<Fact> = shell_commands("ls && curl x").into_iter().map(exec).collect();
    let judgement = policy.judge(&who(), "bash", &facts);
    assert_eq!(judgement.policies, ["default/closed-sandbox", "site/no-curl"]);
    expect![[
        r#"Deny { reason: "Policy site/no-curl does not allow to exec `curl x`. Downloads go through the package proxy." }"#
    ]]
    .assert_eq(&format!("{:?}", judgement.verdict));
}

#[test]
fn the_policies_that_ship() {
    let policy = Policy::load(&PolicyConfig::default()).unwrap();
    let call = |read_only| Fact::Call { server: "s".to_owned(), tool: "t".to_owned(), read_only };
    let mut table = String::new();
    for fact in [
        Fact::read("src/main.rs"),
        Fact::read(""),
        Fact::read(".env"),
        Fact::read("a/id_rsa"),
        Fact::read("certs/SERVER.PEM"),
        Fact::read("home/.aws/credentials"),
        Fact::read(".git/config"),
        Fact::read(".git/HEAD"),
        Fact::write("src/main.rs"),
        Fact::write(".git/hooks/pre-commit"),
        Fact::write("vendor/.GIT/config"),
        Fact::write(".gitignore"),
        Fact::Commit(String::new()),
        call(true),
        call(false),
    ] {
        let judgement = policy.judge(&who(), "tool", std::slice::from_ref(&fact));
        let verdict = if judgement.verdict == Verdict::Allow { "allow" } else { "deny " };
        table.push_str(&format!(
            "{verdict} {:6} {:24} {}\n",
            fact.action(),
            fact.shown(),
            judgement.policies.join(" ")
        ));
    }
    for command in
        ["ls", "cat ~/.ssh/id_rsa", "git config -f .git/config -l", "$unknown", "openssl genrsa -out key.pem"]
    {
        table.push_str(&format!("{:5} exec   {command}\n", judge_command(&policy, command)));
    }
    expect![[r#"
        allow read   src/main.rs              default/workspace-read
        allow read   .                        default/workspace-read
        allow read   .env                     default/workspace-read
        deny  read   a/id_rsa                 default/credentials
        deny  read   certs/SERVER.PEM         default/credentials
        deny  read   home/.aws/credentials    default/credentials
        deny  read   .git/config              default/credentials
        allow read   .git/HEAD                default/workspace-read
        allow write  src/main.rs              default/workspace-write
        deny  write  .git/hooks/pre-commit    default/git-directory
        deny  write  vendor/.GIT/config       default/git-directory
        allow write  .gitignore               default/workspace-write
        allow commit .                        default/commit
        allow call   s/t                      default/configured-servers
        allow call   s/t                      default/configured-servers
        allow exec   ls
        deny  exec   cat ~/.ssh/id_rsa
        deny  exec   git config -f .git/config -l
        allow exec   $unknown
        allow exec   openssl genrsa -out key.pem
    "#]]
    .assert_eq(&table);
}

#[test]
fn without_a_permit_nothing_is_allowed() {
    let policy = only("");
    assert_eq!(judge_command(&policy, "ls"), "deny");
    let reason = policy.judge(&who(), "read_file", &[Fact::read("a")]).verdict;
    expect![[
        r#"Deny { reason: "No policy permits to read a. Reach the goal another way, or say in the summary what was not permitted." }"#
    ]]
    .assert_eq(&format!("{reason:?}"));
    assert!(matches!(policy.judge(&who(), "x", &[]).verdict, Verdict::Deny { .. }));
}

#[test]
fn a_forbid_may_ask_instead() {
    let policy = load(
        r#"@id("push") @ask("May the agent push?")
           forbid (principal, action == Action::"exec", resource) when { resource.line like "git push*" };"#,
        PolicyConfig::default(),
    )
    .unwrap();
    assert_eq!(judge_command(&policy, "git push origin main"), "ask");
    assert_eq!(judge_command(&policy, "git status"), "allow");
    // Another part that is denied outweighs the question.
    assert_eq!(judge_command(&policy, "git push; cat .netrc"), "deny");
}

/// An error in evaluation is a deny, also beside a permit.
#[test]
fn what_cannot_be_evaluated_is_denied() {
    let policy = load(
        r#"@id("overflow") forbid (principal, action == Action::"exec", resource)
           when { 9223372036854775807 + 1 == 0 };"#,
        PolicyConfig::default(),
    )
    .unwrap();
    assert_eq!(judge_command(&policy, "ls"), "deny");
}

#[test]
fn log_only_lets_everything_run() {
    let mode = PolicyMode::LogOnly;
    let policy = load("", PolicyConfig { mode, defaults: false, ..PolicyConfig::default() }).unwrap();
    assert_eq!(judge_command(&policy, "curl x"), "allow");
}

#[test]
fn a_fault_in_a_policy_names_file_line_and_column() {
    let good = "// a comment; with \"quotes\"\n@id(\"a;b\") permit (principal, action == Action::\"model\", resource);\n\n";
    let mut table = String::new();
    for fault in [
        "permit (principal, action, resource)\n  when { resource.color == 1 };",
        "permit (principal action, resource);",
        "permit (principal, action == Action::\"fly\", resource);",
        good,
        "permit (principal, action, resource)",
    ] {
        let error = load(&format!("{good}{fault}"), PolicyConfig::default()).err().unwrap();
        let first = error.message.lines().next().unwrap_or_default();
        table.push_str(&format!("{} {first}\n", error.code));
    }
    expect![[r#"
        policy-invalid site.cedar:5:10: for policy `site/policy2`, attribute `color` on entity type `Command` not found.
        policy-invalid site.cedar:4:19: unexpected token `action`.
        policy-invalid site.cedar:4:30: for policy `site/policy2`, unrecognized action `Action::"fly"`.
        policy-invalid site.cedar:5:1: duplicate template or policy id `site/a;b`.
        policy-invalid site.cedar:4:37: unexpected end of input.
    "#]].assert_eq(&table);
    let missing = PolicyConfig { files: vec!["/does/not/exist.cedar".into()], ..PolicyConfig::default() };
    let error = Policy::load(&missing).err().unwrap();
    assert_eq!(error.code.as_str(), "policy-invalid");
}

/// Redirections name files as much as arguments of the file tools do.
#[test]
fn redirections_are_found_wherever_they_stand() {
    let mut table = String::new();
    for command in [
        "echo a > out",
        "echo a >> 'my out'",
        "make 2> err.log | tee x",
        "make &> all.log",
        "make >& all.log",
        "make >| out",
        "make > out 2>&1",
        "sort < in",
        "(echo a; echo b) > out",
        "for f in *; do echo $f; done > out",
        "f() { echo a; } > out",
        "> out",
        "exec > out",
        "bash -c 'echo a > out'",
        "echo $(cat < in)",
        "echo a > $out",
        "echo a > \"$dir/out\"",
        "echo a > ~/out",
        "cd sub && echo a > out",
        "cd sub && echo a > /workspace/out",
        "cat <<EOF > out\nx\nEOF",
        "cat <<< x",
        "echo a 2>&-",
        "exec 3<> both",
    ] {
        let shown: Vec<String> = shell_script(command)
            .redirects
            .iter()
            .map(|to| {
                format!(
                    "{}{}{}",
                    if to.writes { ">" } else { "<" },
                    to.target,
                    if to.known { "" } else { "?" }
                )
            })
            .collect();
        table.push_str(&format!("{:36} {}\n", command.replace('\n', "⏎"), shown.join(" ")));
    }
    expect![[r#"
        echo a > out                         >out
        echo a >> 'my out'                   >my out
        make 2> err.log | tee x              >err.log
        make &> all.log                      >all.log
        make >& all.log                      >all.log
        make >| out                          >out
        make > out 2>&1                      >out
        sort < in                            <in
        (echo a; echo b) > out               >out
        for f in *; do echo $f; done > out   >out
        f() { echo a; } > out                >out
        > out                                >out
        exec > out                           >out
        bash -c 'echo a > out'               >out
        echo $(cat < in)                     <in
        echo a > $out                        >$out?
        echo a > "$dir/out"                  >$dir/out?
        echo a > ~/out                       >~/out?
        cd sub && echo a > out               >out?
        cd sub && echo a > /workspace/out    >/workspace/out
        cat <<EOF > out⏎x⏎EOF                >out
        cat <<< x                            
        echo a 2>&-                          
        exec 3<> both                        >both
    "#]]
    .assert_eq(&table);
}

/// Commands with a list of hosts are permitted when they are understood.
#[test]
fn a_network_is_for_commands_that_are_understood() {
    let policy = Policy::load(&PolicyConfig::default()).unwrap();
    let judge = |command: &str| {
        let facts: Vec<Fact> =
            shell_commands(command).into_iter().map(|part| Fact::Exec(part, Network::Listed)).collect();
        policy.judge(&who(), "bash", &facts).verdict == Verdict::Allow
    };
    assert!(judge("pip install x"));
    assert!(!judge("$unknown x"));
}

/// What is written while the server runs is in force at once, as a whole; a fault changes nothing.
#[test]
fn policies_are_read_again() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("site.cedar");
    let rule = |name: &str| {
        format!(
            r#"forbid (principal, action == Action::"exec", resource) when {{ resource.name == "{name}" }};"#
        )
    };
    std::fs::write(&path, rule("curl")).unwrap();
    let policy =
        Policy::load(&PolicyConfig { files: vec![path.clone()], ..PolicyConfig::default() }).unwrap();
    let verdicts = || (judge_command(&policy, "curl x"), judge_command(&policy, "wget x"));
    assert_eq!(verdicts(), ("deny".to_owned(), "allow".to_owned()));
    std::fs::write(&path, rule("wget")).unwrap();
    policy.reload().unwrap();
    assert_eq!(verdicts(), ("allow".to_owned(), "deny".to_owned()));
    std::fs::write(&path, "forbid (").unwrap();
    assert_eq!(policy.reload().unwrap_err().code.as_str(), "policy-invalid");
    assert_eq!(verdicts(), ("allow".to_owned(), "deny".to_owned()));
    assert_eq!(policy.ids().last().map(String::as_str), Some("site/policy1"));
}

/// The watch notices a changed file by itself.
#[tokio::test]
async fn a_changed_file_is_noticed() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("site.cedar");
    std::fs::write(&path, "").unwrap();
    let policy =
        Policy::load(&PolicyConfig { files: vec![path.clone()], ..PolicyConfig::default() }).unwrap();
    let policy = std::sync::Arc::new(policy);
    let env = evenkeel_env::Env::seeded(1);
    super::watch::start(&env, &policy, &crate::blocking::Blocking::start(&env, "test", 1));
    std::fs::write(&path, r#"@id("new") forbid (principal, action == Action::"exec", resource);"#).unwrap();
    let noticed = async {
        while judge_command(&policy, "ls") == "allow" {
            tokio::time::sleep(std::time::Duration::from_millis(100)).await;
        }
    };
    tokio::time::timeout(std::time::Duration::from_secs(60), noticed).await.unwrap();
}
