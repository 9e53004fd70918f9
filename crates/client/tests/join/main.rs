//! Clients that joined through a controller, while it is there, while it is away, and when it refuses.

#[path = "../bed/mod.rs"]
mod bed;
mod comtrees;
mod controller;
mod polled;

use bed::Relay;
use canopy_channel::{Hello, Reply};
use canopy_client::{Client, Event, Group, JoinError, Level, RelayKey};
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

#[tokio::test]
async fn who_joins_waits_for_a_controller_that_is_away() {
    let relay = start_relay();
    let place = place("eu-1", &relay, "1.64");
    for measure in [Duration::ZERO, Duration::from_millis(100)] {
        let socket = Controller::bind("127.0.0.1:0".parse().unwrap());
        let join = Client::join(socket.local_addr().unwrap(), Controller::key(), "lobby");
        let joins = join.measure(measure).timeout(LIMIT).connect();
        let starts = async {
            tokio::time::sleep(Duration::from_secs(2)).await;
            Controller::listen(socket, place.clone())
        };
        let (client, controller) = tokio::join!(joins, starts);
        client.unwrap().leave().await;
        controller.end().await;
    }
    relay.end(Command::Stop);
}

#[tokio::test]
async fn who_waits_for_a_controller_in_vain_is_told_what_the_last_try_has_met() {
    let away = Controller::bind("127.0.0.1:0".parse().unwrap());
    let (address, most) = (away.local_addr().unwrap(), Duration::from_millis(500));
    let began = tokio::time::Instant::now();
    let join = Client::join(address, Controller::key(), "lobby").timeout(most);
    let told = soon("an error", join.connect()).await.unwrap_err().to_string();
    assert!(began.elapsed() >= most, "{:?}", began.elapsed());
    let says = |what: &str| told.contains(what);
    assert!(says(&address.to_string()) && says("tries within 0.5 s") && says("refused"), "{told}");
}

#[tokio::test]
async fn what_no_other_try_mends_ends_a_join_before_its_time() {
    let controller = Controller::start("127.0.0.1:0".parse().unwrap(), refusal("it closes"));
    let join = |key| Client::join(controller.address, key, "lobby").measure(Duration::ZERO);
    // Much longer than this test waits for anything.
    let join = |key| join(key).timeout(LIMIT * 60);
    let refused = soon("a refusal", join(Controller::key()).connect()).await.unwrap_err();
    assert!(matches!(refused, JoinError::Refused(why) if why.what == "it closes"));
    let other = RelayKey::new([1; 32]);
    let ended = soon("an end", join(other).connect()).await.unwrap_err().to_string();
    assert!(ended.contains("key is right"), "{ended}");
    controller.end().await;
}
