//! Cursors are places in the log: they mean the same in another process.

use evenkeel_server::{Config, Overrides};

use crate::world::{World, outline};

#[tokio::test]
async fn a_cursor_outlives_the_process_that_gave_it() {
    let mut first = World::new().await;
    let thread = first.thread().await;
    let run = first.run(&thread, "hi").await;
    let player = first.player().await;
    player.tool_step(1, "look").await;
    let path = format!("/threads/{thread}/runs/{run}/stream?stream_mode=updates,custom");
    let mut stream = first.stream(&path, &[("last-event-id", "-1")]).await;
    let mut seen = vec![stream.next().await.unwrap(), stream.next().await.unwrap()];
    let cursor = seen.last().unwrap().id.clone().unwrap();
    // The first process dies: no end, no goodbye.
    drop(first.running.take());
    let overrides = Overrides::default().with("server.listen", "127.0.0.1:0").with("server.store", "memory");
    let config = Config::parse("test.toml", "", &overrides).unwrap();
    let second = World::over(first.env.clone(), config, first.store.clone()).await;
    let request = evenkeel_core::port::store::Steal {
        me: evenkeel_server::app::Dispatch::replica(second.dispatch.as_ref()),
        dead: vec![evenkeel_server::app::Dispatch::replica(first.dispatch.as_ref())],
        limit: 1,
    };
    let claim = second.store.steal(request).await.unwrap().pop().unwrap();
    second.play(claim).finish(2, "done").await;
    seen.extend(second.stream(&path, &[("last-event-id", &cursor)]).await.all().await);
    let whole = second.stream(&path, &[("last-event-id", "-1")]).await.all().await;
    assert_eq!(outline(&seen), outline(&whole));
    let attempts: Vec<_> =
        whole.iter().filter(|got| got.event == "metadata").map(|got| got.data["attempt"].clone()).collect();
    assert_eq!(attempts, [1, 2], "a resumed run is announced again, with its attempt");
}
