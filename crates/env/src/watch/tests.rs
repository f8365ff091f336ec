//! What a watched value promises to those who wait for it.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::{Closed, channel};
use crate::spawn::{Spawn as _, TokioSpawn};

#[tokio::test(start_paused = true)]
async fn a_change_before_the_wait_is_seen_and_one_that_was_seen_is_not() {
    let (sender, mut receiver) = channel(1);
    sender.send_modify(|n| *n += 1);
    assert_eq!(receiver.changed().await, Ok(()));
    assert_eq!(*receiver.borrow(), 2);
    sender.send_replace(7);
    receiver.mark_unchanged();
    let waited = tokio::time::timeout(Duration::from_secs(1), receiver.changed()).await;
    assert!(waited.is_err(), "what counts as seen is not waited for");
}

#[tokio::test]
async fn the_end_of_the_sender_ends_the_waiting() {
    let (sender, mut receiver) = channel(0);
    sender.send_replace(1);
    drop(sender);
    assert_eq!(receiver.changed().await, Ok(()), "the last value is still given");
    assert_eq!(receiver.changed().await, Err(Closed));
    assert!(receiver.wait_for(|n| *n == 1).await.is_ok());
    assert!(receiver.wait_for(|n| *n == 2).await.is_err());
}

#[tokio::test(start_paused = true)]
async fn waiters_are_woken_in_the_order_of_their_waiting() {
    let (sender, receiver) = channel(false);
    let order = Arc::new(Mutex::new(Vec::new()));
    let mut tasks = Vec::new();
    for n in 0..32 {
        let (mut receiver, order) = (receiver.clone(), order.clone());
        let wait = async move {
            assert!(receiver.wait_for(|on| *on).await.is_ok_and(|on| *on));
            order.lock().unwrap().push(n);
        };
        tasks.push(TokioSpawn.spawn("test", Box::pin(wait)));
    }
    tokio::time::sleep(Duration::from_millis(1)).await;
    sender.send_replace(true);
    for task in tasks {
        task.join().await.unwrap();
    }
    assert_eq!(*order.lock().unwrap(), (0..32).collect::<Vec<_>>());
}
