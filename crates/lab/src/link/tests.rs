use std::io::ErrorKind::ConnectionRefused;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use evenkeel_core::Mono;
use evenkeel_env::{Env, Stream};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout};

use super::rule::{Direction, Opening, Pace, Rules, Step};
use super::{Fault, Proxy};

#[test]
fn each_fault_decides_as_it_says() {
    let ms = Duration::from_millis;
    let pass = |n| Step::PassAfter(ms(n));
    // Fault; a new connection; requests and answers of an open one, 100 bytes each.
    let table = [
        (None, Opening::Passes, pass(0), pass(0)),
        (Some(Fault::Delay { ms: 40 }), Opening::Passes, pass(40), pass(40)),
        (Some(Fault::Cut {}), Opening::Ends, Step::End, Step::End),
        (Some(Fault::Refuse {}), Opening::Ends, Step::End, Step::End),
        (Some(Fault::Hold {}), Opening::Passes, Step::Wait, Step::Wait),
        (Some(Fault::HoldAnswers {}), Opening::Passes, pass(0), Step::Wait),
        (Some(Fault::Throttle { bytes_per_s: 1_000 }), Opening::Passes, pass(100), pass(100)),
    ];
    for (fault, opening, requests, answers) in table {
        let mut rules = Rules::default();
        if let Some(fault) = fault {
            rules.add(fault);
        }
        let step = |direction| rules.step(direction, 100, Mono(5), &mut Pace::default());
        assert_eq!(rules.opening(), opening, "{fault:?}");
        assert_eq!((step(Direction::Requests), step(Direction::Answers)), (requests, answers), "{fault:?}");
        assert_eq!(rules.listens(), fault != Some(Fault::Refuse {}));
    }
}

#[test]
fn a_throttle_counts_what_is_on_its_way() {
    let mut rules = Rules::default();
    let id = rules.add(Fault::Throttle { bytes_per_s: 1_000 });
    let mut pace = Pace::default();
    let mut step = |rules: &Rules, now| rules.step(Direction::Requests, 100, Mono(now), &mut pace);
    let waits: Vec<Step> = [0, 0, 50, 1_000].into_iter().map(|now| step(&rules, now)).collect();
    assert_eq!(waits, [100, 200, 250, 100].map(|ms| Step::PassAfter(Duration::from_millis(ms))));
    rules.remove(id);
    assert_eq!(step(&rules, 1_000), Step::PassAfter(Duration::ZERO));
}

/// A server that sends everything back, and says what it got.
struct Echo {
    env: Env,
    proxy: Arc<Proxy>,
    got: mpsc::UnboundedReceiver<Vec<u8>>,
}

impl Echo {
    async fn start() -> Self {
        let env = Env::seeded(1);
        let mut listener = env.net.listen(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).await.unwrap();
        let port = listener.local_address().unwrap().port();
        let (tell, got) = mpsc::unbounded_channel();
        let spawner = env.spawner.clone();
        env.spawner.spawn(
            "echo",
            Box::pin(async move {
                while let Ok((mut stream, _)) = listener.accept().await {
                    let tell = tell.clone();
                    spawner.spawn(
                        "echo-one",
                        Box::pin(async move {
                            let mut buffer = vec![0; 64 << 10];
                            while let Ok(n @ 1..) = stream.read(&mut buffer).await {
                                drop(tell.send(buffer[..n].to_vec()));
                                if stream.write_all(&buffer[..n]).await.is_err() {
                                    return;
                                }
                            }
                        }),
                    );
                }
            }),
        );
        let proxy = Proxy::start(&env, port).await.unwrap();
        Self { env, proxy, got }
    }

    async fn connect(&self) -> std::io::Result<Box<dyn Stream>> {
        self.env.net.connect("127.0.0.1".to_owned(), self.proxy.port()).await
    }
}

async fn read(stream: &mut Box<dyn Stream>, n: usize) -> Vec<u8> {
    let mut bytes = vec![0; n];
    timeout(Duration::from_secs(10), stream.read_exact(&mut bytes)).await.unwrap().unwrap();
    bytes
}

/// Long enough that bytes which are not held would have come.
const SILENCE: Duration = Duration::from_millis(150);

async fn is_silent(stream: &mut Box<dyn Stream>) -> bool {
    let mut byte = [0];
    timeout(SILENCE, stream.read(&mut byte)).await.is_err()
}

#[tokio::test]
async fn bytes_pass_unchanged_and_a_close_passes_too() {
    let echo = Echo::start().await;
    let stream = echo.connect().await.unwrap();
    let sent: Vec<u8> = (0..300_000_u32).map(|n| (n % 251) as u8).collect();
    let (mut from, mut to) = tokio::io::split(stream);
    let write = async {
        to.write_all(&sent).await.unwrap();
        to.shutdown().await.unwrap();
    };
    let mut got = Vec::new();
    let (_, n) = tokio::join!(write, from.read_to_end(&mut got));
    assert_eq!((n.unwrap(), got), (sent.len(), sent));
}

#[tokio::test]
async fn what_is_held_comes_when_the_fault_ends() {
    let mut echo = Echo::start().await;
    let mut stream = echo.connect().await.unwrap();
    let fault = echo.proxy.set(Fault::Hold {});
    stream.write_all(b"held").await.unwrap();
    assert!(is_silent(&mut stream).await);
    assert!(echo.got.try_recv().is_err());
    // A connection that opens now is held as well.
    let mut late = echo.connect().await.unwrap();
    late.write_all(b"late").await.unwrap();
    assert!(is_silent(&mut late).await);
    echo.proxy.heal(fault);
    assert_eq!((read(&mut stream, 4).await, read(&mut late, 4).await), (b"held".to_vec(), b"late".to_vec()));
}

#[tokio::test]
async fn held_answers_let_the_request_through() {
    let mut echo = Echo::start().await;
    let mut stream = echo.connect().await.unwrap();
    let fault = echo.proxy.set(Fault::HoldAnswers {});
    stream.write_all(b"done?").await.unwrap();
    assert_eq!(echo.got.recv().await.unwrap(), b"done?");
    assert!(is_silent(&mut stream).await);
    echo.proxy.heal(fault);
    assert_eq!(read(&mut stream, 5).await, b"done?");
}

#[tokio::test]
async fn a_cut_ends_open_and_new_connections_until_it_is_healed() {
    let echo = Echo::start().await;
    let mut stream = echo.connect().await.unwrap();
    stream.write_all(b"x").await.unwrap();
    assert_eq!(read(&mut stream, 1).await, b"x");
    let fault = echo.proxy.set(Fault::Cut {});
    let ended = async |stream: &mut Box<dyn Stream>| {
        let mut byte = [0];
        matches!(timeout(Duration::from_secs(10), stream.read(&mut byte)).await.unwrap(), Ok(0) | Err(_))
    };
    assert!(ended(&mut stream).await);
    assert!(ended(&mut echo.connect().await.unwrap()).await);
    echo.proxy.heal(fault);
    let mut stream = echo.connect().await.unwrap();
    stream.write_all(b"y").await.unwrap();
    assert_eq!(read(&mut stream, 1).await, b"y");
}

#[tokio::test]
async fn refused_connections_are_refused_and_the_port_comes_back() {
    let echo = Echo::start().await;
    let fault = echo.proxy.set(Fault::Refuse {});
    let until = Instant::now() + Duration::from_secs(10);
    // The listener closes in a task of its own; what it had in its line until then is reset.
    while !matches!(echo.connect().await, Err(error) if error.kind() == ConnectionRefused) {
        assert!(Instant::now() < until, "connections are not refused");
        tokio::task::yield_now().await;
    }
    echo.proxy.heal(fault);
    loop {
        if let Ok(mut stream) = echo.connect().await {
            stream.write_all(b"back").await.unwrap();
            assert_eq!(read(&mut stream, 4).await, b"back");
            return;
        }
        assert!(Instant::now() < until, "it does not listen again");
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_delay_counts_in_both_directions_and_a_throttle_by_bytes() {
    let echo = Echo::start().await;
    let mut stream = echo.connect().await.unwrap();
    let fault = echo.proxy.set(Fault::Delay { ms: 60 });
    let begun = Instant::now();
    stream.write_all(b"slow").await.unwrap();
    assert_eq!(read(&mut stream, 4).await, b"slow");
    assert!(begun.elapsed() >= Duration::from_millis(118), "{:?}", begun.elapsed());
    echo.proxy.heal(fault);
    echo.proxy.set(Fault::Throttle { bytes_per_s: 10_000 });
    let begun = Instant::now();
    stream.write_all(&[7; 1_000]).await.unwrap();
    assert_eq!(read(&mut stream, 1_000).await, [7; 1_000]);
    assert!(begun.elapsed() >= Duration::from_millis(190), "{:?}", begun.elapsed());
}
