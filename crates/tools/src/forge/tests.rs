//! Against a forge that nobody here wrote: git's own smart HTTP server, behind a door that asks for
//! a token, with the few operations of GitHub's API that are used.

use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Arc, Mutex};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use evenkeel_core::id::{RunId, ThreadId};
use evenkeel_core::port::forge::{Delivery, Forge as _};
use evenkeel_core::run::{Deliver, Repository};
use evenkeel_core::{Error, Retry};
use evenkeel_env::Env;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt as _;

use super::{GitConfig, GitForge, HostConfig, Hosts, is_branch};
use crate::workspace::{AllowedSources, ShadowWorkspaces};

const DIFF: &str = "diff --git a/hello.txt b/hello.txt\n--- a/hello.txt\n+++ b/hello.txt\n@@ -1 +1 @@\n-hello\n+hello, world\n";
const SECOND: &str = "diff --git a/hello.txt b/hello.txt\n--- a/hello.txt\n+++ b/hello.txt\n@@ -1 +1,2 @@\n hello, world\n+again\n";

/// The forge, with the tokens that it takes.
struct Forge {
    root: PathBuf,
    good: Mutex<String>,
    /// Answers that are lost: the request is carried out and 502 is told.
    lost: Mutex<usize>,
    pulls: Mutex<Vec<Value>>,
    /// Every request, with what it was answered.
    seen: Mutex<Vec<String>>,
}

impl Forge {
    async fn start(env: &Env, root: &Path) -> (Arc<Self>, String) {
        let mut listener = env.net.listen("127.0.0.1:0".parse().unwrap()).await.unwrap();
        let address = listener.local_address().unwrap().to_string();
        let forge = Arc::new(Self {
            root: root.to_owned(),
            good: Mutex::new("token-1".to_owned()),
            lost: Mutex::default(),
            pulls: Mutex::default(),
            seen: Mutex::default(),
        });
        let (serving, spawner) = (forge.clone(), env.spawner.clone());
        let accept = async move {
            while let Ok((stream, _)) = listener.accept().await {
                let forge = serving.clone();
                let service = service_fn(move |request| {
                    let forge = forge.clone();
                    async move { Ok::<_, Infallible>(forge.answer(request).await) }
                });
                let served = hyper::server::conn::http1::Builder::new()
                    .serve_connection(TokioIo::new(stream), service);
                spawner.spawn("forge connection", Box::pin(async { drop(served.await) }));
            }
        };
        env.spawner.spawn("forge", Box::pin(accept));
        (forge, address)
    }

    async fn answer(&self, request: Request<Incoming>) -> Response<Full<Bytes>> {
        let (head, body) = request.into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        let given =
            head.headers.get("authorization").and_then(|value| value.to_str().ok()).unwrap_or_default();
        let good = self.good.lock().unwrap().clone();
        let basic = format!("Basic {}", STANDARD.encode(format!("x-access-token:{good}")));
        let is_in = given == basic || given == format!("Bearer {good}");
        let answer = match head.uri.path() {
            _ if !is_in => (401, Vec::new(), Bytes::from("{\"message\":\"Bad credentials\"}")),
            path if path.starts_with("/api/") => self.api(&head, &body),
            _ => self.git(&head, &body).await,
        };
        let lost = {
            let mut lost = self.lost.lock().unwrap();
            let path = head.uri.path();
            let is_write =
                head.method == "POST" && (path.ends_with("receive-pack") || path.ends_with("/pulls"));
            is_in && is_write && *lost > 0 && {
                *lost -= 1;
                true
            }
        };
        let answer = if lost { (502, Vec::new(), Bytes::from("{}")) } else { answer };
        let line = format!("{} {} {}", head.method, head.uri.path(), answer.0);
        self.seen.lock().unwrap().push(line);
        let mut response = Response::new(Full::new(answer.2));
        *response.status_mut() = StatusCode::from_u16(answer.0).unwrap();
        for (name, value) in answer.1 {
            response.headers_mut().insert(http::HeaderName::try_from(name).unwrap(), value.parse().unwrap());
        }
        response
    }

    /// `git http-backend`, as a web server runs it.
    async fn git(&self, head: &http::request::Parts, body: &[u8]) -> (u16, Vec<(String, String)>, Bytes) {
        let header =
            |name: &str| head.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
        let mut command = evenkeel_env::process::command("git");
        command.args(["-c", "http.receivepack=true", "http-backend"]);
        command
            .env("PATH", "/usr/local/bin:/usr/bin:/bin")
            .env("HOME", &self.root)
            .env("GIT_CONFIG_GLOBAL", "/dev/null")
            .env("GIT_PROJECT_ROOT", &self.root)
            .env("GIT_HTTP_EXPORT_ALL", "1")
            .env("REMOTE_USER", "tester")
            .env("REQUEST_METHOD", head.method.as_str())
            .env("PATH_INFO", head.uri.path())
            .env("QUERY_STRING", head.uri.query().unwrap_or_default())
            .env("CONTENT_TYPE", header("content-type"))
            .env("HTTP_CONTENT_ENCODING", header("content-encoding"))
            .env("GIT_PROTOCOL", header("git-protocol"))
            .env("CONTENT_LENGTH", body.len().to_string());
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().unwrap();
        let mut stdin = child.stdin.take().unwrap();
        let write = async {
            let _ = stdin.write_all(body).await;
            drop(stdin);
        };
        let ((), output) = tokio::join!(write, child.wait_with_output());
        let output = output.unwrap().stdout;
        let end = output.windows(4).position(|part| part == b"\r\n\r\n").unwrap();
        let mut answer = (200, Vec::new(), Bytes::copy_from_slice(&output[end + 4..]));
        for line in String::from_utf8_lossy(&output[..end]).lines() {
            let (name, value) = line.split_once(':').unwrap();
            match name {
                "Status" => answer.0 = value.trim().split(' ').next().unwrap().parse().unwrap(),
                name => answer.1.push((name.to_ascii_lowercase(), value.trim().to_owned())),
            }
        }
        answer
    }

    /// Pull requests of one repository.
    fn api(&self, head: &http::request::Parts, body: &[u8]) -> (u16, Vec<(String, String)>, Bytes) {
        let mut pulls = self.pulls.lock().unwrap();
        let rest = head.uri.path().trim_start_matches("/api/repos/acme/shop");
        let (status, answer) = match (head.method.as_str(), rest.trim_start_matches("/pulls")) {
            ("GET", "") => (200, Value::Array(pulls.clone())),
            ("GET", number) => match pulls.iter().find(|pull| number == format!("/{}", pull["number"])) {
                Some(pull) => (200, pull.clone()),
                None => (404, json!({"message": "Not Found"})),
            },
            ("POST", "") => {
                let asked: Value = serde_json::from_slice(body).unwrap();
                let number = pulls.len() + 1;
                let pull = json!({
                    "number": number, "head": {"ref": asked["head"]}, "base": {"ref": asked["base"]},
                    "title": asked["title"], "html_url": format!("https://forge.test/acme/shop/pull/{number}"),
                });
                pulls.push(pull.clone());
                (201, pull)
            }
            _ => (405, json!({"message": "no"})),
        };
        (status, Vec::new(), Bytes::from(answer.to_string()))
    }

    fn seen(&self, wanted: &str) -> usize {
        self.seen.lock().unwrap().iter().filter(|line| line.contains(wanted)).count()
    }
}

/// A forge with one repository, and a product that delivers to it.
struct Bench {
    directory: tempfile::TempDir,
    env: Env,
    forge: Arc<Forge>,
    product: Arc<GitForge>,
    hosts: Arc<Hosts>,
    url: String,
    thread: ThreadId,
}

fn git(directory: &Path, args: &[&str]) -> String {
    let mut command = evenkeel_env::process::command("git").into_std();
    command
        .args(["-c", "user.name=t", "-c", "user.email=t@t", "-c", "init.defaultBranch=main"])
        .args(args)
        .env("PATH", "/usr/local/bin:/usr/bin:/bin")
        .env("HOME", directory)
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .current_dir(directory);
    let output = command.output().unwrap();
    assert!(output.status.success(), "git {args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

impl Bench {
    async fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().join("served");
        let work = directory.path().join("work");
        std::fs::create_dir_all(root.join("acme")).unwrap();
        std::fs::create_dir_all(&work).unwrap();
        git(&work, &["init", "-q", "-b", "main", "."]);
        std::fs::write(work.join("hello.txt"), "hello\n").unwrap();
        git(&work, &["add", "."]);
        git(&work, &["commit", "-q", "-m", "first"]);
        git(&root, &["clone", "-q", "--bare", work.to_str().unwrap(), "acme/shop.git"]);
        let env = Env::real();
        let (forge, address) = Forge::start(&env, &root).await;
        let token = directory.path().join("token");
        std::fs::write(&token, "token-1\n").unwrap();
        let host = HostConfig {
            token: format!("file:{}", token.display()),
            token_s_max: 300,
            api: Some(format!("http://{address}/api/")),
            user: "x-access-token".to_owned(),
            scheme: "http".to_owned(),
        };
        let config = GitConfig { hosts: [(address.clone(), host)].into() };
        let hosts = Hosts::new(&env, &config, Arc::new(|_| None)).unwrap();
        let product = GitForge::new(&env, directory.path().join("deliveries"), hosts.clone());
        let url = format!("http://{address}/acme/shop");
        let thread = ThreadId::new(env.wall(), &env.generator);
        Self { directory, env, forge, product, hosts, url, thread }
    }

    fn delivery(&self, diff: &str) -> Delivery {
        Delivery {
            run: RunId::new(self.env.wall(), &self.env.generator),
            thread: self.thread,
            url: self.url.clone(),
            wanted: Deliver { branch: None, base: None, pull_request: true, title: None },
            diff: diff.to_owned(),
            text: "Greet the world\n\nIt was greeted before.".to_owned(),
            at_s: 1_700_000_000,
        }
    }

    /// From now on the forge takes another token, which the file holds.
    fn expire(&self, token: &str) {
        *self.forge.good.lock().unwrap() = token.to_owned();
        std::fs::write(self.directory.path().join("token"), token).unwrap();
    }

    fn served(&self, args: &[&str]) -> String {
        git(&self.forge.root.join("acme/shop.git"), args)
    }

    fn branch(&self) -> String {
        format!("evenkeel/{}", self.thread)
    }
}

async fn delivered(bench: &Bench, delivery: &Delivery) -> Result<super::Delivered, Error> {
    bench.product.deliver(delivery.clone()).await
}

#[tokio::test]
async fn a_result_becomes_a_branch_and_a_pull_request_once() {
    let bench = Bench::new().await;
    let delivery = bench.delivery(DIFF);
    let first = delivered(&bench, &delivery).await.unwrap();
    assert_eq!(first.branch, bench.branch());
    assert_eq!(first.pull_request.as_deref(), Some("https://forge.test/acme/shop/pull/1"));
    assert_eq!(bench.served(&["rev-parse", &first.branch]).trim(), first.commit);
    assert_eq!(bench.served(&["show", &format!("{}:hello.txt", first.branch)]), "hello, world\n");
    let message = bench.served(&["log", "-1", "--format=%B", &first.branch]);
    assert!(message.starts_with("Greet the world\n\n"), "{message}");
    assert!(message.contains(&format!("Evenkeel-Run: {}", delivery.run)), "{message}");
    // Asked for again, as a run does that was resumed, it is what it was.
    assert_eq!(delivered(&bench, &delivery).await.unwrap(), first);
    assert_eq!(
        (
            bench.forge.seen("POST /acme/shop.git/git-receive-pack 200"),
            bench.forge.pulls.lock().unwrap().len()
        ),
        (1, 1)
    );
    // A follow-up on the thread adds to the branch and to the pull request.
    let second = delivered(&bench, &bench.delivery(SECOND)).await.unwrap();
    assert_eq!((&second.branch, &second.pull_request), (&first.branch, &first.pull_request));
    assert_eq!(bench.served(&["rev-parse", &format!("{}~1", second.branch)]).trim(), first.commit);
    assert_eq!(bench.served(&["show", &format!("{}:hello.txt", second.branch)]), "hello, world\nagain\n");
    assert_eq!(
        std::fs::read_dir(bench.directory.path().join("deliveries")).unwrap().count(),
        0,
        "clones stay"
    );
}

/// G04: a token that died meanwhile is minted anew when it is used.
#[tokio::test]
async fn g04_a_dead_token_is_minted_again_on_both_ways() {
    let bench = Bench::new().await;
    delivered(&bench, &bench.delivery(DIFF)).await.unwrap();
    bench.expire("token-2");
    let before = bench.forge.seen(" 401");
    delivered(&bench, &bench.delivery(SECOND)).await.unwrap();
    assert_eq!(bench.forge.seen(" 401") - before, 1, "only the first request had the dead token");
}

/// G05: an answer that is lost, of the push or of the pull request, is looked up, not repeated.
#[tokio::test]
async fn g05_a_lost_answer_doubles_nothing() {
    let bench = Bench::new().await;
    let delivery = bench.delivery(DIFF);
    let mut n_failed = 0;
    let done = loop {
        *bench.forge.lost.lock().unwrap() = usize::from(n_failed < 2);
        match delivered(&bench, &delivery).await {
            Ok(done) => break done,
            Err(error) => {
                assert_ne!(error.retry, Retry::No, "{error}");
                // The address of the broker, by which one could push, is never told.
                let text = error.to_string();
                let mut told = text.split("://").skip(1);
                assert!(told.all(|rest| bench.url.contains(rest.split('/').next().unwrap())), "{text}");
                n_failed += 1;
            }
        }
    };
    assert_eq!(n_failed, 2, "the push and the pull request");
    assert_eq!(bench.served(&["rev-list", "--count", &format!("main..{}", done.branch)]).trim(), "1");
    assert_eq!(bench.forge.pulls.lock().unwrap().len(), 1);
}

#[tokio::test]
async fn what_cannot_be_delivered_says_why() {
    let bench = Bench::new().await;
    let edit = |edit: fn(&mut Delivery)| {
        let mut delivery = bench.delivery(DIFF);
        edit(&mut delivery);
        delivery
    };
    let cases = [
        (
            edit(|d| d.url = "https://elsewhere.test/acme/shop".to_owned()),
            "There is no login for the host",
            true,
        ),
        (edit(|d| d.wanted.branch = Some("--force".to_owned())), "is not a name of a branch", true),
        (edit(|d| d.wanted.base = Some("old".to_owned())), "has no branch \"old\"", true),
        (edit(|d| d.diff = SECOND.to_owned()), "does not fit branch", true),
        (edit(|d| d.url.push_str("-gone")), "git ls-remote failed", false),
    ];
    for (delivery, text, is_final) in cases {
        let error = delivered(&bench, &delivery).await.unwrap_err();
        assert!(error.message.contains(text), "{error}");
        assert_eq!(error.retry == Retry::No, is_final, "{error}");
    }
    std::fs::write(bench.directory.path().join("token"), "").unwrap();
    let no_token = GitForge::new(&bench.env, bench.directory.path().join("other"), {
        let host = HostConfig {
            token: "env:NOWHERE".to_owned(),
            token_s_max: 1,
            api: None,
            user: "x".to_owned(),
            scheme: "http".to_owned(),
        };
        let name = bench.url.split('/').nth(2).unwrap().to_owned();
        Hosts::new(&bench.env, &GitConfig { hosts: [(name, host)].into() }, Arc::new(|_| None)).unwrap()
    });
    let error = no_token.deliver(bench.delivery(DIFF)).await.unwrap_err();
    assert!(error.message.contains("the variable NOWHERE gave none"), "{error}");
}

/// G01 to G03: the token is in nothing that git sees, writes or says, and a private repository is
/// cloned with it all the same. G06: many working copies of one repository are made at once.
#[tokio::test]
async fn g06_thirteen_private_clones_at_once_and_no_token_in_any() {
    use evenkeel_core::port::workspace::Workspaces as _;
    let bench = Bench::new().await;
    let root = bench.directory.path().join("workspaces");
    let allowed = AllowedSources { url_schemes: vec!["http".to_owned()], ..AllowedSources::default() };
    let workspaces = ShadowWorkspaces::new(&bench.env, root.clone(), allowed, bench.hosts.clone());
    let open = (0..13).map(|_| {
        let thread = ThreadId::new(bench.env.wall(), &bench.env.generator);
        let run = RunId::new(bench.env.wall(), &bench.env.generator);
        workspaces.open(thread, run, Repository::Url(bench.url.clone()))
    });
    for opened in futures_util::future::join_all(open).await {
        let (tree, _) = opened.unwrap();
        assert_eq!(std::fs::read_to_string(tree.join("hello.txt")).unwrap(), "hello\n");
        let config = std::fs::read_to_string(tree.join(".git/config")).unwrap();
        assert!(config.contains(&bench.url) && !config.contains("insteadOf"), "{config}");
    }
    let found = evenkeel_env::process::command("grep")
        .args(["-r", "-l", "token-1"])
        .arg(&root)
        .env("PATH", "/usr/bin:/bin")
        .output()
        .await
        .unwrap();
    assert_eq!((String::from_utf8_lossy(&found.stdout).as_ref(), found.status.code()), ("", Some(1)));
}

#[test]
fn names_of_branches() {
    for good in ["main", "evenkeel/01a2-b", "release/1.2", "a_b"] {
        assert!(is_branch(good), "{good}");
    }
    for bad in
        ["", "-f", "a..b", "a/", "/a", "a//b", ".a", "a/.b", "a.lock", "a b", "a~1", "a:b", "a.", "HEAD@{1}"]
    {
        assert!(!is_branch(bad), "{bad}");
    }
}
