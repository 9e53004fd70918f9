//! Clients and a real relay over loopback sockets.

#[allow(dead_code)]
#[path = "../examples/authority.rs"]
mod authority;
mod bed;
mod nat;

use bed::{Relay, settings};
use canopy_client::{
    Client, Comtree, ConnectError, Event, Group, Incoming, Level, MAX_UPDATE, Outgoing,
    PublishError, ROAMING, RefusedReason, RelayKey, SubscribeError, SubscribeRefusal, Update,
    Weight,
};
use canopy_node::{Command, NodeConfig};
use canopy_session::Identity;
use futures_core::Stream;
use nat::Nat;
use std::future::poll_fn;
use std::net::UdpSocket;
use std::pin::pin;
use std::time::Duration;

const GROUP: Group = Group::new(7);
const OTHER: Group = Group::new(8);

/// Fails the test, instead of hanging, where nothing comes.
async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    let waited = tokio::time::timeout(Duration::from_secs(60), future).await;
    waited.unwrap_or_else(|_| panic!("waited in vain for {what}"))
}

async fn join(relay: &Relay) -> Client {
    Client::builder(relay.address()).timeout(Duration::from_secs(60)).connect().await.unwrap()
}

async fn next(client: &Client) -> Update {
    soon("an update", client.recv()).await.expect("the world was left")
}

/// Subscribes and waits until the relay has acknowledged.
async fn hear(client: &Client, group: Group, level: Level) {
    soon("an ack", client.subscribe(group, level)).await.unwrap();
}

/// Waits for an event like `wanted`, whatever else happens.
async fn event(client: &Client, wanted: impl Fn(&Event) -> bool) -> Event {
    let wait = async {
        loop {
            let event = client.next_event().await.expect("the world was left");
            if wanted(&event) {
                return event;
            }
        }
    };
    soon("an event", wait).await
}

fn is_connected(event: &Event) -> bool {
    matches!(event, Event::Connected { .. })
}

#[tokio::test]
async fn updates_reach_those_whose_level_is_high_enough() {
    let relay = Relay::start(settings(2));
    let (publisher, low, high) = (join(&relay).await, join(&relay).await, join(&relay).await);
    hear(&low, GROUP, Level(1)).await;
    hear(&high, GROUP, Level(2)).await;
    for level in [2, 1, 0] {
        publisher.publish(GROUP, Level(level), &[level]).unwrap();
    }
    let from = publisher.participant().unwrap();
    for (client, levels) in [(&high, [2, 1]), (&low, [1, 0])] {
        for level in levels {
            let update = next(client).await;
            let got = (update.from, update.group, update.level, update.epoch);
            assert_eq!(got, (from, Some(GROUP), Level(level), client.epoch()));
            assert_eq!(update.payload[..], [level]);
        }
    }
    assert_eq!(next(&high).await.level, Level(0));
    soon("an ack", high.unsubscribe(GROUP)).await.unwrap();
    publisher.publish(GROUP, Level(0), b"last").unwrap();
    assert_eq!(next(&low).await.payload[..], *b"last");
    assert_eq!((high.try_recv(), high.stats().subscriptions), (None, 0));
}

#[tokio::test]
async fn ones_own_update_comes_back_only_as_an_echo() {
    let relay = Relay::start(settings(1));
    let world = join(&relay).await;
    hear(&world, GROUP, Level(0)).await;
    world.publish(GROUP, Level(0), b"silent").unwrap();
    world.publish_with(Outgoing::new(GROUP, Level(0), b"echo").echo()).unwrap();
    assert_eq!(next(&world).await.payload[..], *b"echo");
}

#[tokio::test]
async fn unicast_reaches_one_and_can_be_answered() {
    let relay = Relay::start(settings(2));
    let (sender, receiver) = (join(&relay).await, join(&relay).await);
    sender.send_to(receiver.participant().unwrap(), b"psst").unwrap();
    let update = next(&receiver).await;
    assert_eq!((update.group, &update.payload[..]), (None, &b"psst"[..]));
    receiver.reply_to(&update, b"yes?").unwrap();
    let answer = next(&sender).await;
    assert_eq!((Some(answer.from), &answer.payload[..]), (receiver.participant(), &b"yes?"[..]));
}

#[tokio::test]
async fn an_update_says_its_weight_and_its_object_however_it_is_published() {
    let relay = Relay::start(settings(1));
    let (publisher, listener) = (join(&relay).await, join(&relay).await);
    hear(&listener, GROUP, Level(0)).await;
    let update = Outgoing::new(GROUP, Level(0), b"x").object(0xfffe).weight(Weight(200));
    publisher.publish_with(update).unwrap();
    publisher.publish_many([update]).unwrap();
    for _ in 0..2 {
        let heard = next(&listener).await;
        assert_eq!((heard.object, heard.weight), (0xfffe, Weight(200)));
    }
    publisher.publish_with(Outgoing::new(GROUP, Level(0), b"x").roaming(7)).unwrap();
    assert_eq!(next(&listener).await.object, ROAMING | 7);
    publisher.publish(GROUP, Level(0), b"y").unwrap();
    let heard = next(&listener).await;
    assert_eq!((heard.object, heard.weight), (0, Weight::ONE));
}

#[tokio::test]
async fn many_updates_arrive_as_they_were_published() {
    let relay = Relay::start(settings(2));
    for offload in [true, false] {
        let publisher = join(&relay).await;
        let receiver = Client::builder(relay.address()).receive_offload(offload);
        let receiver = receiver.timeout(Duration::from_secs(60)).connect().await.unwrap();
        hear(&receiver, GROUP, Level(0)).await;
        // Equal sizes, which leave in segmented sends, then mixed ones.
        let payloads: Vec<Vec<u8>> = (0..200)
            .map(|n: usize| vec![n as u8; if n < 100 { 100 } else { n * 7 % 1000 }])
            .collect();
        // Updates to the group and updates to the receiver itself, mixed in the same datagrams.
        let to = receiver.participant().unwrap();
        let updates = payloads.iter().enumerate().map(|(n, payload)| match n % 3 {
            0 => Outgoing::to(to, payload),
            _ => Outgoing::new(GROUP, Level(0), payload),
        });
        publisher.publish_many(updates).unwrap();
        let (mut groups, mut own) = (Vec::new(), Vec::new());
        for _ in &payloads {
            let update = next(&receiver).await;
            if update.group.is_some() { &mut groups } else { &mut own }.push(update.payload);
        }
        let sent = |unicast: bool| {
            let chosen = payloads.iter().enumerate().filter(move |(n, _)| (n % 3 == 0) == unicast);
            chosen.map(|(_, payload)| payload.clone()).collect::<Vec<_>>()
        };
        assert_eq!(
            (groups, own),
            (
                sent(false).into_iter().map(Into::into).collect(),
                sent(true).into_iter().map(Into::into).collect()
            )
        );
        assert_eq!((publisher.stats().published, receiver.stats().received), (200, 200));
    }
}

#[tokio::test]
async fn what_cannot_be_published_is_said() {
    let relay = Relay::start(settings(1));
    let world = join(&relay).await;
    let long = [0; MAX_UPDATE + 1];
    let refused = world.publish(GROUP, Level(0), &long);
    assert!(matches!(refused, Err(PublishError::TooLong(len)) if len == long.len()));
    world.publish(GROUP, Level(0), &long[1..]).unwrap();
    relay.end(Command::Drain);
    event(&world, |event| *event == Event::Lost).await;
    let refused = world.publish(GROUP, Level(0), b"");
    assert!(matches!(refused, Err(PublishError::NotConnected)));
    assert_eq!((world.participant(), world.is_connected()), (None, false));
    soon("leave", world.leave()).await;
    assert!(matches!(world.publish_many([]), Err(PublishError::Left)));
}

#[tokio::test]
async fn a_restarted_relay_is_rejoined_with_all_subscriptions() {
    let relay = Relay::start(settings(1));
    let subscriber = join(&relay).await;
    hear(&subscriber, GROUP, Level(3)).await;
    hear(&subscriber, OTHER, Level(0)).await;
    let first = subscriber.epoch();
    event(&subscriber, is_connected).await;
    let relay = Relay::start(relay.end(Command::Stop));
    // It learns that from the answer to its next keepalive.
    event(&subscriber, is_connected).await;
    assert!(subscriber.epoch() > first);
    // Resolves when the subscription has been made again, though nothing new is asked for.
    hear(&subscriber, GROUP, Level(3)).await;
    let publisher = join(&relay).await;
    publisher.publish(GROUP, Level(3), b"back").unwrap();
    publisher.publish(OTHER, Level(0), b"too").unwrap();
    assert_eq!(next(&subscriber).await.payload[..], *b"back");
    assert_eq!(next(&subscriber).await.payload[..], *b"too");
    assert_eq!(subscriber.stats().subscriptions, 2);
}

#[tokio::test]
async fn changes_made_without_a_relay_are_made_when_it_is_back() {
    let relay = Relay::start(settings(1));
    let world = join(&relay).await;
    hear(&world, GROUP, Level(0)).await;
    let settings = relay.end(Command::Drain);
    event(&world, |event| *event == Event::Lost).await;
    let subscribed = world.subscribe(OTHER, Level(0));
    let unsubscribed = world.unsubscribe(GROUP);
    let relay = Relay::start(settings);
    soon("an ack", unsubscribed).await.unwrap();
    soon("an ack", subscribed).await.unwrap();
    let publisher = join(&relay).await;
    publisher.publish(GROUP, Level(0), b"unwanted").unwrap();
    publisher.publish(OTHER, Level(0), b"wanted").unwrap();
    assert_eq!(next(&world).await.payload[..], *b"wanted");
}

#[tokio::test]
async fn a_slow_reader_loses_the_oldest_and_they_are_counted() {
    let relay = Relay::start(settings(1));
    let publisher = join(&relay).await;
    let slow = Client::builder(relay.address()).receive_queue(10).connect().await.unwrap();
    hear(&slow, GROUP, Level(0)).await;
    for number in 0..100u8 {
        publisher.publish(GROUP, Level(0), &[number]).unwrap();
    }
    // Two answers of the relay: the second cannot overtake what the first may have.
    hear(&slow, OTHER, Level(0)).await;
    hear(&slow, OTHER, Level(1)).await;
    let stats = slow.stats();
    assert_eq!((stats.received, stats.dropped_slow_reader, stats.waiting), (100, 90, 10));
    for number in 90..100 {
        assert_eq!(next(&slow).await.payload[..], [number]);
    }
}

#[tokio::test]
async fn a_refusal_is_told_with_its_reason() {
    let relay = Relay::start(NodeConfig { max_sessions: 1, ..settings(1) });
    let elsewhere = Client::builder(relay.address()).comtree(Comtree(9));
    let error = elsewhere.connect().await.unwrap_err();
    assert!(error.to_string().contains("does not carry comtree 9"), "{error}");
    let _first = join(&relay).await;
    let error = Client::builder(relay.address()).connect().await.unwrap_err();
    assert!(matches!(error, ConnectError::Refused { reason: RefusedReason::Full, .. }), "{error}");
    // With a relay that has a place to turn to, that is no reason to give up.
    let spare = Relay::start(settings(1));
    let both = Client::builder(relay.address()).relay(spare.address());
    let world = both.timeout(Duration::from_secs(60)).connect().await.unwrap();
    assert_eq!(world.relay(), spare.address());
}

#[tokio::test]
async fn a_relay_may_be_named() {
    let relay = Relay::start(settings(1));
    let name = format!("localhost:{}", relay.address().port());
    let world = Client::builder(&name).timeout(Duration::from_secs(60)).connect().await.unwrap();
    assert_eq!(world.relay(), relay.address());
    for name in ["no-port", "127.0.0.1:99999", ""] {
        let error = Client::builder(name).connect().await.unwrap_err();
        assert!(matches!(&error, ConnectError::Unresolved { relay, .. } if relay == name));
        assert!(error.to_string().contains("HOST:PORT"), "{error}");
    }
}

#[tokio::test]
async fn a_relay_is_known_by_its_key() {
    let identity = Identity::new([9; 32]);
    let key = RelayKey::new(*identity.public());
    let relay = Relay::start(NodeConfig { identity: Some(identity), ..settings(1) });
    let builder = || Client::builder(relay.address()).timeout(Duration::from_secs(60));
    assert!(builder().relay_key(key).connect().await.is_ok());
    let impostor = builder().relay_key(RelayKey::new([7; 32])).connect().await.unwrap_err();
    let is_refused = matches!(impostor, ConnectError::Refused { reason: RefusedReason::Key, .. });
    assert!(is_refused && impostor.to_string().contains("another key"), "{impostor}");
    // On another machine it must be known, or nothing is sent there.
    let unknown = Client::builder("192.0.2.1:4040").connect().await.unwrap_err();
    assert!(matches!(unknown, ConnectError::UnknownRelay { .. }), "{unknown}");
    assert!(unknown.to_string().contains("relay_key"), "{unknown}");
}

#[tokio::test]
async fn subscriptions_beyond_the_relays_limit_are_refused() {
    let mut small = settings(1);
    small.tables.max_subscriptions_per_participant = 2;
    let relay = Relay::start(small);
    let world = join(&relay).await;
    let groups = (1..=4).map(|number| (Group::new(number), Level(0)));
    let refused = soon("an ack", world.subscribe_many(groups)).await;
    let expected = [3, 4].map(|number| (Group::new(number), SubscribeRefusal::Participant));
    assert!(matches!(refused, Err(SubscribeError::Refused { groups, .. }) if groups == expected));
    assert_eq!(world.stats().subscriptions, 2);
    // Nobody waits for this one, so it becomes an event.
    world.subscribe(Group::new(5), Level(0));
    let told = event(&world, |event| !is_connected(event)).await;
    assert_eq!(
        told,
        Event::SubscriptionsRefused(vec![(Group::new(5), SubscribeRefusal::Participant)])
    );
}

#[tokio::test]
async fn leaving_is_confirmed_and_ends_everything() {
    let relay = Relay::start(NodeConfig { max_sessions: 2, ..settings(1) });
    let (world, other) = (join(&relay).await, join(&relay).await);
    hear(&world, GROUP, Level(0)).await;
    other.publish(GROUP, Level(0), b"before").unwrap();
    assert_eq!(next(&world).await.payload[..], *b"before");
    soon("leave", world.leave()).await;
    // Its place is free again.
    let _third = join(&relay).await;
    assert_eq!(soon("the end", world.recv()).await, None);
    event(&world, is_connected).await;
    assert_eq!(soon("the end", world.next_event()).await, None);
    assert_eq!(soon("the end", world.subscribe(GROUP, Level(0))).await, Err(SubscribeError::Left));
    assert!(matches!(world.publish(GROUP, Level(0), b""), Err(PublishError::Left)));
    soon("leave again", world.leave()).await;
}

#[tokio::test]
async fn leaving_a_silent_relay_ends_too() {
    let relay = Relay::start(settings(1));
    let world = join(&relay).await;
    drop(relay);
    soon("leave", world.leave()).await;
    assert_eq!(soon("the end", world.recv()).await, None);
}

#[tokio::test]
async fn dropping_the_last_handle_leaves() {
    let relay = Relay::start(NodeConfig { max_sessions: 1, ..settings(1) });
    let world = join(&relay).await;
    let (second, stream) = (world.clone(), world.updates());
    drop(world);
    assert!(second.is_connected());
    drop(second);
    let error = Client::builder(relay.address()).connect().await.unwrap_err();
    assert!(matches!(error, ConnectError::Refused { .. }), "the stream keeps it: {error}");
    drop(stream);
    let _next = join(&relay).await;
}

#[tokio::test]
async fn streams_yield_what_the_methods_do() {
    let relay = Relay::start(settings(1));
    let (world, other) = (join(&relay).await, join(&relay).await);
    hear(&world, GROUP, Level(0)).await;
    other.publish(GROUP, Level(0), b"first").unwrap();
    other.publish(GROUP, Level(0), b"second").unwrap();
    let mut updates = pin!(world.updates());
    let update = soon("an update", poll_fn(|context| updates.as_mut().poll_next(context))).await;
    assert_eq!(update.unwrap().payload[..], *b"first");
    let mut incoming = pin!(world.incoming());
    let mut all = Vec::new();
    for _ in 0..2 {
        all.extend(soon("an item", poll_fn(|context| incoming.as_mut().poll_next(context))).await);
    }
    assert!(matches!(&all[0], Incoming::Event(event) if is_connected(event)), "{all:?}");
    assert!(matches!(&all[1], Incoming::Update(update) if update.payload[..] == *b"second"));
    soon("leave", world.leave()).await;
    assert_eq!(
        soon("the end", poll_fn(|context| incoming.as_mut().poll_next(context))).await,
        None
    );
}

#[tokio::test]
async fn an_unreachable_relay_gives_an_error_that_helps() {
    // Tests that run beside this one take ports of 127.0.0.1 only.
    let closed = UdpSocket::bind("127.0.0.2:0").unwrap().local_addr().unwrap();
    let asked = Client::builder(closed).timeout(Duration::from_secs(2));
    let text = asked.connect().await.unwrap_err().to_string();
    assert!(text.contains(&closed.to_string()) && text.contains("nothing listens"), "{text}");
    let silent = UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = silent.local_addr().unwrap();
    let asked = Client::builder(address).timeout(Duration::from_millis(50));
    let text = asked.connect().await.unwrap_err().to_string();
    assert!(text.contains(&address.to_string()) && text.contains("firewalls"), "{text}");
}

#[tokio::test]
async fn another_protocol_is_told_apart_from_silence() {
    let stranger = tokio::net::UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let address = stranger.local_addr().unwrap();
    let connect = Client::builder(address).timeout(Duration::from_secs(2)).connect();
    let answer = async {
        let (_, from) = stranger.recv_from(&mut [0; 2048]).await.unwrap();
        stranger.send_to(b"HTTP/1.1 400 Bad Request", from).await.unwrap();
    };
    let (connected, ()) = tokio::join!(connect, answer);
    assert!(matches!(connected, Err(ConnectError::Incompatible { .. })), "{connected:?}");
}

#[tokio::test]
async fn a_changed_ip_port_is_followed() {
    let relay = Relay::start(settings(2));
    let nat = Nat::start(relay.address());
    let behind = Client::builder(nat.address()).timeout(Duration::from_secs(60));
    let (world, publisher) = (behind.connect().await.unwrap(), join(&relay).await);
    let participant = world.participant();
    hear(&world, GROUP, Level(0)).await;
    nat.rebind();
    world.publish(Group::new(9), Level(0), b"long enough to be worth a challenge").unwrap();
    // The relay has confirmed it, so what is published from now on arrives.
    event(&world, |event| *event == Event::Rebound).await;
    publisher.publish(GROUP, Level(0), b"still there").unwrap();
    assert_eq!(next(&world).await.payload[..], *b"still there");
    assert_eq!((world.participant(), world.stats().connects), (participant, 1));
}

/// The example: every player is heard, sees those who are near often, and those who are far ten
/// times less.
#[tokio::test]
async fn a_server_with_authority_is_heard_and_shows_near_and_far() {
    let relay = Relay::start(settings(2));
    let relay = relay.address().to_string();
    let sights = authority::play(&relay, Duration::from_secs(3)).await.unwrap();
    for sights in sights {
        assert!(sights.answers > 0 && sights.far.updates > 0);
        assert!(sights.near.updates > 3 * sights.far.updates);
    }
}
