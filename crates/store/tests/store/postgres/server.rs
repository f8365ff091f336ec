//! A server of one's own starts, keeps what it was told over a restart, and leaves nothing behind.

use evenkeel_env::Env;
use evenkeel_store::postgres::local::{LocalOptions, LocalPostgres, Stop};

#[tokio::test]
async fn a_local_server_keeps_its_data_over_a_crash_and_leaves_nothing_behind() {
    let mut server = LocalPostgres::start(&Env::real(), LocalOptions::default()).await.unwrap();
    server.create_database("kept").await.unwrap();
    server.sql("kept", "CREATE TABLE words AS SELECT 'still here' AS word").await.unwrap();
    for how in [Stop::Immediate, Stop::Fast] {
        server.stop(how).await.unwrap();
        assert_eq!(server.pid(), None);
        assert!(server.sql("kept", "SELECT 1").await.is_err(), "a stopped server does not answer");
        server.resume().await.unwrap();
        assert_eq!(server.sql("kept", "SELECT word FROM words").await.unwrap(), "still here");
    }
    assert_eq!(server.sql("kept", "SHOW fsync").await.unwrap(), "on");
    let (folder, pid) = (server.folder().to_owned(), server.pid().unwrap());
    drop(server);
    assert!(!folder.exists(), "its folder is gone");
    assert!(!std::path::Path::new(&format!("/proc/{pid}")).exists(), "its process is gone");
}

#[tokio::test]
async fn a_server_that_cannot_start_says_why() {
    let settings = vec![("shared_buffers".to_owned(), "not a size".to_owned())];
    let options = LocalOptions { settings, ..LocalOptions::default() };
    let error = LocalPostgres::start(&Env::real(), options).await.err().unwrap();
    assert!(error.message.contains("shared_buffers"), "{error}");
}
