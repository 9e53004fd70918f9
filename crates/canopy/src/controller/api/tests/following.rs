//! Members that follow the areas of their world.

use super::*;
use crate::controller::feeds::Feeds;
use canopy_channel::{Channel, ChannelError};
use canopy_session::Identity;

const AREAS: &str = "/v1/worlds/lobby/areas";
const MEMBERS: &str = "/v1/worlds/lobby/members";

/// A daemon with a relay and a world that has areas.
async fn divided() -> (Daemon, Feeds) {
    let daemon = Daemon::start(1).await;
    let feeds = Feeds::start(&daemon.handle);
    daemon.world("lobby", 1).await;
    divide(&daemon, 100.0).await;
    (daemon, feeds)
}

async fn divide(daemon: &Daemon, side: f64) {
    let square = json!({ "grid": side, "over": [0.0, 0.0, 100.0, 100.0],
        "rings": [{ "radius": 50.0, "level": 0 }] });
    let (status, areas) = daemon.send("PUT", AREAS, &square.to_string()).await;
    assert!(status.is_success(), "{areas}");
}

/// A player that a backend has let in follows, and says nothing. Returns its side of the channel, and its address.
async fn follower(daemon: &Daemon, feeds: &Feeds, player: u8) -> (Channel, String) {
    let (status, let_in) = daemon.send("POST", MEMBERS, &new_member(player)).await;
    assert!(status.is_success(), "{let_in}");
    let right = daemon.joins.right("lobby", let_in["token"].as_str(), &[player; 32]).unwrap();
    let feed = feeds.follow(&daemon.handle, "lobby".to_owned(), right).await.unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (own, controller) = (Identity::new([player; 32]), Identity::new([99; 32]));
    let call = async {
        let stream = tokio::net::TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let mut channel = Channel::call(stream, &own, controller.public(), SOON).await.unwrap();
        channel.send(b"what it asks for").await.unwrap();
        channel
    };
    let answer = async {
        let (stream, _) = listener.accept().await.unwrap();
        let mut channel = Channel::accept(stream, &controller, SOON).await.unwrap();
        channel.receive().await.unwrap();
        channel
    };
    let (theirs, ours) = tokio::join!(call, answer);
    let handle = daemon.handle.clone();
    tokio::spawn(async move { feed.carry(&handle, ours).await });
    (theirs, let_in["address"].as_str().unwrap().to_owned())
}

async fn hears(channel: &mut Channel) -> Result<Vec<u8>, ChannelError> {
    timeout(SOON, channel.receiver.receive()).await.expect("it hears, or its channel ends")
}

#[tokio::test]
async fn who_is_sent_away_follows_no_more_and_who_stays_does() {
    let (daemon, feeds) = divided().await;
    let (mut stays, _) = follower(&daemon, &feeds, 1).await;
    let (mut goes, address) = follower(&daemon, &feeds, 2).await;
    for channel in [&mut stays, &mut goes] {
        hears(channel).await.unwrap();
    }
    let kick = format!("{MEMBERS}/{address}?bar_s=0");
    assert_eq!(daemon.send("DELETE", &kick, "").await.0, StatusCode::ACCEPTED);
    hears(&mut goes).await.unwrap_err();
    // The relay does not say that it has sent somebody away; nothing is told all the same.
    let (mut goes, address) = follower(&daemon, &feeds, 2).await;
    hears(&mut goes).await.unwrap();
    daemon.silence("a");
    let kick = format!("{MEMBERS}/{address}?bar_s=0");
    assert_eq!(daemon.send("DELETE", &kick, "").await.0, StatusCode::ACCEPTED);
    divide(&daemon, 50.0).await;
    hears(&mut goes).await.unwrap_err();
    hears(&mut stays).await.unwrap();
}

#[tokio::test]
async fn a_member_follows_over_a_few_channels_only() {
    let (daemon, feeds) = divided().await;
    let (_, let_in) = daemon.send("POST", MEMBERS, &new_member(1)).await;
    let follow = async || {
        let right = daemon.joins.right("lobby", let_in["token"].as_str(), &[1; 32]).unwrap();
        feeds.follow(&daemon.handle, "lobby".to_owned(), right).await
    };
    let mut all = Vec::new();
    for _ in 0..4 {
        all.push(follow().await.unwrap());
    }
    let refused = follow().await.err().unwrap();
    assert!(refused.status == 429 && refused.to_string().contains("4 channels"), "{refused}");
    all.pop();
    follow().await.unwrap();
}
