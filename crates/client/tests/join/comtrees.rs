//! Clients that join another comtree of their world than the first.

use super::bed::{Relay, settings};
use super::controller::{Controller, LEASE_MS, LIMIT, relay_identity, soon};
use super::{GROUP, is_leave};
use canopy_channel::{Hello, Reply};
use canopy_client::{Client, Comtree, JoinError, Level, PollClient, RelayKey};
use canopy_node::{Command, NodeConfig};
use canopy_relay::ComtreeConfig;
use serde_json::{Value, json};
use std::time::Duration;

/// A relay with two comtrees, and a place on both.
fn two_comtrees() -> (Relay, Reply<Value>) {
    let comtrees = [1, 5].map(|comtree| ComtreeConfig::new(Comtree(comtree), 1)).into();
    let relay =
        Relay::start(NodeConfig { identity: Some(relay_identity()), comtrees, ..settings(1) });
    let key = RelayKey::new(*relay_identity().public()).to_string();
    let place = json!({
        "address": "1.64", "token": "", "comtrees": [1, 5], "lease_ms": LEASE_MS,
        "relay": { "name": "eu-1", "address": relay.address(), "key": key },
    });
    (relay, Reply::Done(place))
}

#[tokio::test]
async fn a_client_joins_the_comtree_that_it_names() {
    let (relay, place) = two_comtrees();
    let controller = Controller::start("127.0.0.1:0".parse().unwrap(), place);
    let join = || {
        let join = Client::join(controller.address, Controller::key(), "lobby");
        join.measure(Duration::ZERO).timeout(LIMIT)
    };
    let second = join().comtree(1).connect().await.unwrap();
    let first = join().connect().await.unwrap();
    let hear = |comtree| {
        Client::builder(relay.address()).comtree(Comtree(comtree)).timeout(LIMIT).connect()
    };
    for (client, comtree, says) in [(&second, 5, b"second"), (&first, 1, b"first!")] {
        let hearer = hear(comtree).await.unwrap();
        soon("an ack", hearer.subscribe(GROUP, Level(0))).await.unwrap();
        client.publish(GROUP, Level(0), says).unwrap();
        let update = soon("an update", hearer.recv()).await.unwrap();
        assert_eq!(update.payload[..], *says);
        hearer.leave().await;
    }
    first.leave().await;
    second.leave().await;
    controller.end().await;
    relay.end(Command::Stop);
}

/// What cannot be used is given back at once: it is no one's until its lease ends.
#[tokio::test(flavor = "multi_thread")]
async fn a_comtree_that_the_world_does_not_have_is_an_error() {
    let (relay, place) = two_comtrees();
    let mut controller = Controller::start("127.0.0.1:0".parse().unwrap(), place);
    let join = Client::join(controller.address, Controller::key(), "lobby");
    let refused = join.measure(Duration::ZERO).comtree(2).connect().await.unwrap_err();
    assert!(matches!(refused, JoinError::NoSuchComtree { number: 2, comtrees: 2 }), "{refused}");
    assert!(matches!(controller.asked().await, Hello::Join(_)));
    assert!(is_leave(&controller.asked().await));
    let join = PollClient::join(controller.address, Controller::key(), "lobby");
    let join = join.measure(Duration::ZERO).comtree(7);
    let refused = tokio::task::spawn_blocking(|| join.connect_blocking().unwrap_err().to_string());
    let refused = refused.await.unwrap();
    assert!(refused.contains("no comtree 7") && refused.contains("it has 2"), "{refused}");
    assert!(matches!(controller.asked().await, Hello::Join(_)));
    assert!(is_leave(&controller.asked().await));
    controller.end().await;
    relay.end(Command::Stop);
}
