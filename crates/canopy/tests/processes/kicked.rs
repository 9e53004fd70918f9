//! Who is kicked has a token that still holds, and knows where the relay is.

use crate::control_plane::Cluster;
use canopy_client::join::Place;
use canopy_client::{Client, ClientKey, ConnectError, Event, LeaveReason, RefusedReason};
use serde_json::{Value, json};
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(30);
const AGAIN: Duration = Duration::from_millis(50);

/// Goes straight to the relay, as who has learned nothing from the controller's word.
async fn connect(key: &ClientKey, place: &Place) -> Result<Client, ConnectError> {
    let client = Client::builder(place.relay.address).relay_key(place.relay.key).key(key.clone());
    client.token(&place.token).comtree(place.comtrees[0]).connect().await
}

/// The relay has the comtree, and takes none of these tokens.
async fn refuses_all(key: &ClientKey, places: &[Place]) {
    for place in places {
        let refused = connect(key, place).await.err();
        let by_token =
            matches!(refused, Some(ConnectError::Refused { reason: RefusedReason::Token, .. }));
        assert!(by_token, "{refused:?}");
    }
}

#[tokio::test]
async fn who_is_kicked_is_not_let_in_again_by_a_token_that_still_holds() {
    let mut cluster = Cluster::start_in(tempfile::tempdir().unwrap(), &[]);
    let relay = cluster.relay("r1");
    cluster.until_relays_are(&["up"]);
    cluster.ask("POST", "/v1/worlds", &json!({ "name": "w" }));
    let ask = cluster.asking();
    let keys = [(); 2].map(|()| ClientKey::generate().unwrap());
    // Somebody else stays, and with them the comtree.
    let mut stays = ask.join(&keys[0], &[]).await.unwrap();
    let kicked = ask.join(&keys[1], &[]).await.unwrap();
    let _stays = connect(&keys[0], &stays).await.unwrap();
    let client = connect(&keys[1], &kicked).await.unwrap();
    let renewed = ask.renew(&keys[1], &[]).await.unwrap();
    let member = format!("/v1/worlds/w/members/{}?bar_s=1", kicked.address);
    cluster.ask("DELETE", &member, &Value::Null);
    while client.next_event().await.unwrap() != Event::SentAway(LeaveReason::ThrownOut) {}
    let mut places = [kicked.clone(), renewed];
    refuses_all(&keys[1], &places).await;
    // So it is once both the relay and the controller have started again.
    cluster.kill_controller();
    relay.kill();
    cluster.restart_controller();
    let relay = cluster.relay("r1");
    let moved = places.iter_mut().chain([&mut stays]);
    moved.for_each(|place| place.relay.address = relay.address("relay"));
    let began = Instant::now();
    while let Err(why) = connect(&keys[0], &stays).await {
        assert!(began.elapsed() < PATIENCE, "{why}");
        tokio::time::sleep(AGAIN).await;
    }
    refuses_all(&keys[1], &places).await;
    // Once it may enter again, it has the same address.
    let began = Instant::now();
    let again = loop {
        match ask.join(&keys[1], &[]).await {
            Ok(place) => break place,
            Err(why) => assert!(began.elapsed() < PATIENCE, "{why}"),
        }
        tokio::time::sleep(AGAIN).await;
    };
    assert_eq!(again.address, kicked.address);
    connect(&keys[1], &again).await.unwrap();
    let told = cluster.ask("GET", "/v1/worlds/w/members", &Value::Null);
    assert_eq!(told["members"].as_array().map(Vec::len), Some(2), "{told}");
}
