//! The configuration file: what is refused, with which words, and what is printed.

use evenkeel_server::config::{Config, Environment, Overrides};

fn parse(toml: &str, environment: &[(&str, &str)]) -> Result<Config, String> {
    let environment = Environment::from_pairs(environment.iter().copied());
    let overrides = Overrides { environment, set: Vec::new() };
    Config::parse("evenkeel.toml", toml, &overrides)
        .map_err(|error| format!("{} {}", error.message, error.remedy))
}

#[test]
fn every_mistake_names_its_place_and_the_nearest_key() {
    let table: [(&str, &[&str]); 32] = [
        ("[sever]\n", &["evenkeel.toml:1:2", "unknown section or key `sever`", "Did you mean `server`?"]),
        (
            "[server]\nlisten = \"127.0.0.1:1\"\nlissten = 3\n",
            &["evenkeel.toml:3:1", "`lissten`", "Did you mean `listen`?"],
        ),
        ("[server]\nlisten = 7\n", &["evenkeel.toml:2:10", "invalid type: integer `7`"]),
        ("[server]\nlisten = \"here\"\n", &["evenkeel.toml:2:10", "socket address"]),
        (
            "[server]\nstore = \"oracle\"\n",
            &["evenkeel.toml:2:9", "not a store", "sqlite, memory, a postgres:// URL"],
        ),
        ("[server]\nstore = \"postgres://nobody\"\n", &["URL of the store", "names no user or no database"]),
        (
            "[server]\nstore = \"postgres://u:hunter2@h/d?sslmode=perhaps\"\n",
            &["sslmode is perhaps", "verify-full"],
        ),
        ("[server]\nstore = \"env:NO_SUCH_URL\"\n", &["the variable NO_SUCH_URL is not set"]),
        ("[server]\nstore_connections = 1\n", &["server.store_connections is 1", "2 to 200"]),
        ("[server]\ndata_dir = \"\"\n", &["server.data_dir is empty"]),
        ("[server]\nworkers = 0\n", &["server.workers is 0", "1 to 1024"]),
        ("[server]\nworkers = 9223372036854775807\n", &["server.workers is 9223372036854775807"]),
        ("[server]\nheartbeat = \"0s\"\n", &["server.heartbeat is 0"]),
        ("[limits.api]\ntimeout = \"0ms\"\n", &["limits.api.timeout is 0"]),
        (
            "[limits]\nsandbox = { slots = 18446744073709551615 }\n",
            &["limits.sandbox.slots is 18446744073709551615"],
        ),
        ("[sandbox]\nread_only_paths = [\"/no/such\"]\n", &["names /no/such, which is not a directory"]),
        ("[sandbox.limits]\nwall_ms = 0\n", &["sandbox.limits.wall_ms is 0"]),
        ("[tools.command]\nmemory_bytes = 0\n", &["tools.command.memory_bytes is 0"]),
        ("\ntools = 5\n", &["evenkeel.toml:2:9", "`tools` is not a table"]),
        ("[router.timeouts]\nconnect = \"0s\"\n", &["router.timeouts.connect"]),
        (
            "[providers.p]\nkind = \"openai\"\nbase_url = \"http://x\"\n[deployments.d]\nprovider = \"p\"\nmodel = \"\"\n",
            &["Deployment d names no model"],
        ),
        ("[limits]\ngateway = { slot = 1 }\n", &["evenkeel.toml:2:13", "`slot`", "Did you mean `slots`?"]),
        ("[limits.api]\ntimeout = \"4 parsecs\"\n", &["evenkeel.toml:2:11", "is not a duration"]),
        ("[limits]\npolicy = { slots = 0 }\n", &["limits.policy.slots is 0"]),
        ("[limits]\nstore = { slots = -1 }\n", &["evenkeel.toml:2:19", "-1"]),
        ("x = \n", &["evenkeel.toml:1:5"]),
        ("protect = \"some\"\n", &["evenkeel.toml:1:11", "unknown variant `some`"]),
        ("[tools]\ncomand = {}\n", &["evenkeel.toml:2:1", "Did you mean `command`?"]),
        ("[policy]\nmode = \"maybe\"\n", &["evenkeel.toml:2:8", "maybe"]),
        ("[routes.default]\ntires = []\n", &["evenkeel.toml:2:1", "Did you mean `tiers`?"]),
        ("[assistants.x]\ndescription = \"d\"\n", &["assistants.x is not built in and names no route"]),
        ("[auth.keys.a]\nkey = \"hunter2\"\ntenant = \"t\"\n", &["auth.keys.a.key does not name a variable"]),
    ];
    for (toml, expected) in table {
        let result = parse(toml, &[]).and_then(|config| config.agents().map_err(|error| error.to_string()));
        let error = result.expect_err(toml);
        for part in expected {
            assert!(error.contains(part), "{toml}\n  says: {error}\n  not: {part}");
        }
        assert!(!error.contains("hunter2"), "{error}");
    }
}

#[test]
fn listening_beyond_this_machine_needs_keys() {
    let open = "[server]\nlisten = \"0.0.0.0:7070\"\n";
    assert!(parse(open, &[]).unwrap_err().contains("reachable beyond this machine"));
    assert!(parse(&format!("{open}[auth]\nmode = \"keys\"\n"), &[]).is_ok());
}

#[test]
fn variables_lie_on_top_of_the_file_and_settings_on_top_of_both() {
    let toml = "[limits]\nsandbox = { slots = 3 }\n[server]\nlisten = \"127.0.0.1:1\"\n";
    let environment = Environment::from_pairs([
        ("EVENKEEL_LIMITS__SANDBOX__SLOTS", "5"),
        ("EVENKEEL_SERVER__LISTEN", "127.0.0.1:2"),
        ("EVENKEEL_TELEMETRY__LOG", "debug"),
        ("EVENKEEL_KEY", "not a setting"),
    ]);
    let overrides = Overrides { environment, set: Vec::new() }.with("server.listen", "127.0.0.1:3");
    let config = Config::parse("evenkeel.toml", toml, &overrides).unwrap();
    assert_eq!(config.limits.sandbox.slots, 5);
    assert_eq!(config.server.listen.port(), 3);
    assert_eq!(config.telemetry.log, "debug");
    let error = parse(toml, &[("EVENKEEL_LIMITS__SANDBOX__SLOTS", "many")]).unwrap_err();
    assert!(error.contains("the variable EVENKEEL_LIMITS__SANDBOX__SLOTS"), "{error}");
    let error = parse(toml, &[("EVENKEEL_LIMITS__SANDBOX__SLOT", "1")]).unwrap_err();
    assert!(error.contains("the variable") && error.contains("`slots`"), "{error}");
}

#[test]
fn what_is_printed_is_what_is_in_force() {
    let toml = r#"
protect = "none"
[server]
listen = "127.0.0.1:9"
[auth]
mode = "keys"
[auth.keys.a]
key = "env:A_KEY"
tenant = "t"
[providers.acme]
kind = "openai"
base_url = "http://127.0.0.1:1/v1"
keys = ["env:ACME_KEY"]
[deployments.main]
provider = "acme"
model = "m"
[routes.default]
tiers = [["main"]]
[policy]
mode = "log-only"
[assistants.coder]
system_prompt = "Be brief."
"#;
    let environment = [("A_KEY", "very-secret"), ("ACME_KEY", "very-secret")];
    let config = parse(toml, &environment).unwrap();
    let printed = config.effective().unwrap();
    assert!(printed.contains("key = \"env:A_KEY\"") && !printed.contains("very-secret"), "{printed}");
    let again = parse(&printed, &environment).unwrap();
    assert_eq!(again.effective().unwrap(), printed);
    assert_eq!(again.limits, config.limits);
    assert_eq!(config.agents().unwrap()["coder"].system_prompt, "Be brief.");
}

#[test]
fn routes_that_are_missing_are_warned_of() {
    let warnings = parse("", &[]).unwrap().check().unwrap();
    assert!(
        warnings.iter().any(|warning| warning.contains("coder") && warning.contains("route-unknown")),
        "{warnings:?}"
    );
}

#[test]
fn a_key_that_is_not_set_is_named() {
    let toml = "[auth.keys.a]\nkey = \"env:MISSING_KEY\"\ntenant = \"t\"\n";
    assert!(parse(toml, &[]).unwrap_err().contains("MISSING_KEY"));
}

#[test]
fn the_password_of_the_store_is_never_printed() {
    let table = [
        ("postgres://eve:hunter2@db:5432/chat", "postgres://eve:***@db:5432/chat"),
        ("postgres://eve:hunter2@a,b/chat?sslmode=require", "postgres://eve:***@a,b/chat?sslmode=require"),
        ("postgres://eve:hun@ter2@db/chat", "postgres://eve:***@db/chat"),
        ("postgres://eve@db/chat?password=hunter2", "postgres://eve@db/chat?password=***"),
    ];
    for (url, shown) in table {
        let config = parse(&format!("[server]\nstore = {url:?}\n"), &[]).unwrap();
        assert!(config.effective().unwrap().contains(&format!("store = {shown:?}")), "{url}");
        assert!(!format!("{config:?}").contains("hunter2"), "{url}");
    }
    let config = parse("[server]\nstore = \"env:STORE\"\n", &[("STORE", "postgres://eve:hunter2@db/chat")]);
    assert!(config.unwrap().effective().unwrap().contains("store = \"env:STORE\""));
    let mistake = parse("[server]\nstore = \"postgres://eve:hunter2@db:port/chat\"\n", &[]).unwrap_err();
    assert!(!mistake.contains("hunter2"), "{mistake}");
}
