//! Clients that joined through a controller, while it is there, while it is away, and when it refuses.

#[path = "../bed/mod.rs"]
mod bed;
mod comtrees;
mod controller;
mod polled;

use bed::Relay;
use canopy_channel::{Hello, Reply};
use canopy_client::{Client, Event, Group, Level};
use canopy_node::Command;
use controller::{Controller, LEASE_MS, LIMIT, place, refusal, soon, start_relay};
use serde_json::Value;
use std::time::Duration;

const GROUP: Group = Group::new(7);

/// A relay, its place, and a client that has joined it.
async fn joined() -> (Relay, Reply<Value>, Controller, Client) {
    joined_measuring(Duration::ZERO).await
}

async fn joined_measuring(most: Duration) -> (Relay, Reply<Value>, Controller, Client) {
    let relay = start_relay();
    let place = place("eu-1", &relay, "1.64");
    let controller = Controller::start("127.0.0.1:0".parse().unwrap(), place.clone());
    let join = Client::join(controller.address.to_string(), Controller::key(), "lobby");
    let client = join.measure(most).timeout(LIMIT).connect().await.unwrap();
    (relay, place, controller, client)
}

/// Waits for the next refusal that the client is told of.
async fn not_let_in(client: &Client) -> String {
    let wait = async {
        loop {
            let event = client.next_event().await.expect("the world was left");
            if let Event::NotLetIn(why) = event {
                return why.what;
            }
        }
    };
    soon("a refusal", wait).await
}

fn is_leave(asked: &Hello) -> bool {
    matches!(asked, Hello::Leave { visit: Some(_), address: None, .. })
}

#[tokio::test]
async fn a_lease_is_renewed_and_a_controller_that_is_away_changes_nothing() {
    let (relay, place, mut controller, client) = joined().await;
    assert!(matches!(controller.asked().await, Hello::Join(_)));
    for _ in 0..3 {
        assert!(matches!(controller.asked().await, Hello::Renew(_)));
    }
    let address = controller.end().await;
    let hearer = Client::builder(relay.address()).timeout(LIMIT).connect().await.unwrap();
    soon("an ack", hearer.subscribe(GROUP, Level(0))).await.unwrap();
    // Longer than the lease that the client had last.
    let began = tokio::time::Instant::now();
    while began.elapsed() < Duration::from_millis(2 * LEASE_MS) {
        client.publish(GROUP, Level(0), b"still here").unwrap();
        let update = soon("an update", hearer.recv()).await.unwrap();
        assert_eq!(update.payload[..], *b"still here");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(client.stats().connects, 1, "the session is the same");
    let mut controller = Controller::start(address, place);
    assert!(matches!(controller.asked().await, Hello::Renew(_)), "it is asked again");
    client.leave().await;
    let told = std::iter::from_fn(|| controller.try_asked()).any(|of| is_leave(&of));
    assert!(told, "the place was given back before it returned");
    controller.end().await;
    hearer.leave().await;
    relay.end(Command::Stop);
}

#[tokio::test]
async fn a_refusal_is_told_once_for_each_reason() {
    let (relay, _, controller, client) = joined().await;
    let address = controller.end().await;
    let mut controller = Controller::start(address, refusal("it closes"));
    assert_eq!(not_let_in(&client).await, "it closes");
    // It goes on asking, and is refused, and says nothing of it.
    for _ in 0..2 {
        controller.asked().await;
    }
    let address = controller.end().await;
    let controller = Controller::start(address, refusal("you are barred"));
    assert_eq!(not_let_in(&client).await, "you are barred", "the first was told once");
    client.leave().await;
    controller.end().await;
    relay.end(Command::Stop);
}

#[tokio::test]
async fn relays_are_measured_again_and_who_has_a_nearer_one_may_move() {
    let (relay, _, mut controller, client) = joined_measuring(Duration::from_millis(100)).await;
    assert!(matches!(controller.asked().await, Hello::Relays));
    assert!(matches!(controller.asked().await, Hello::Join(_)));
    let mut renewals = 0;
    let asked = loop {
        match controller.asked().await {
            Hello::Renew(_) => renewals += 1,
            Hello::Relays => {}
            Hello::Move(asked) => break asked,
            other => panic!("{other:?}"),
        }
    };
    assert!((1..=10).contains(&renewals), "with one renewal in ten: {renewals}");
    assert_eq!(asked.measured[0].relay, "eu-1");
    assert!(matches!(controller.asked().await, Hello::Renew(_)), "it was named the same relay");
    assert_eq!(client.stats().connects, 1);
    client.leave().await;
    controller.end().await;
    relay.end(Command::Stop);
}
