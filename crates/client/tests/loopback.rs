//! Clients and a real relay over loopback sockets.

mod relay_thread;

use canopy_client::{
    Address, Client, Comtree, ConnectError, Event, Group, Level, MAX_UPDATE, Outgoing,
    PublishError, RefusedReason, SubscribeError, Update,
};
use relay_thread::{Nat, RelayThread, config, watchful};
use std::net::{SocketAddr, UdpSocket};
use std::time::Duration;

const GROUP: Group = Group::new(7);

/// Fails the test, instead of hanging, where nothing comes.
async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    let waited = tokio::time::timeout(Duration::from_secs(10), future).await;
    waited.unwrap_or_else(|_| panic!("waited in vain for {what}"))
}

async fn join(relay: SocketAddr) -> Client {
    Client::builder(relay).connect().await.unwrap()
}

async fn next(client: &Client) -> Update {
    soon("an update", client.recv()).await.expect("the world was left")
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

#[tokio::test]
async fn updates_reach_those_whose_level_is_high_enough() {
    let relay = RelayThread::start(config());
    let (publisher, low, high) =
        (join(relay.address()).await, join(relay.address()).await, join(relay.address()).await);
    soon("an ack", low.subscribe(GROUP, Level(1))).await.unwrap();
    soon("an ack", high.subscribe(GROUP, Level(2))).await.unwrap();
    for level in [2, 1, 0] {
        publisher.publish(GROUP, Level(level), &[level]).unwrap();
    }
    let from = publisher.address().unwrap();
    let expected = |level| Update {
        src: from,
        dst: GROUP.address(),
        level: Level(level),
        payload: vec![level],
    };
    assert_eq!([next(&high).await, next(&high).await], [expected(2), expected(1)]);
    assert_eq!([next(&low).await, next(&low).await], [expected(1), expected(0)]);
    assert_eq!(next(&high).await.group(), Some(GROUP));
    soon("an ack", high.unsubscribe(GROUP)).await.unwrap();
    publisher.publish(GROUP, Level(0), b"last").unwrap();
    assert_eq!(next(&low).await.payload, b"last");
    assert_eq!((high.try_recv(), high.stats().subscriptions), (None, 0));
}

#[tokio::test]
async fn ones_own_update_comes_back_only_as_an_echo() {
    let relay = RelayThread::start(config());
    let world = join(relay.address()).await;
    soon("an ack", world.subscribe(GROUP, Level(0))).await.unwrap();
    world.publish(GROUP, Level(0), b"silent").unwrap();
    world.publish_with(Outgoing::new(GROUP, Level(0), b"echo").echo()).unwrap();
    assert_eq!(next(&world).await.payload, b"echo");
}

#[tokio::test]
async fn unicast_reaches_one() {
    let relay = RelayThread::start(config());
    let (sender, receiver) = (join(relay.address()).await, join(relay.address()).await);
    let to = receiver.address().unwrap();
    sender.send_to(to, b"psst").unwrap();
    let update = next(&receiver).await;
    assert_eq!((update.dst, update.group(), &update.payload[..]), (to, None, &b"psst"[..]));
}

#[tokio::test]
async fn many_updates_arrive_as_they_were_published() {
    let relay = RelayThread::start(config());
    for offload in [true, false] {
        let publisher = join(relay.address()).await;
        let receiver =
            Client::builder(relay.address()).receive_offload(offload).connect().await.unwrap();
        soon("an ack", receiver.subscribe(GROUP, Level(0))).await.unwrap();
        // Equal sizes, which leave in segmented sends, then mixed ones.
        let payloads: Vec<Vec<u8>> = (0..200)
            .map(|n: usize| vec![n as u8; if n < 100 { 100 } else { n * 7 % 1400 }])
            .collect();
        let updates = payloads.iter().map(|payload| Outgoing::new(GROUP, Level(0), payload));
        publisher.publish_many(updates).unwrap();
        for payload in &payloads {
            assert_eq!(next(&receiver).await.payload, *payload);
        }
        assert_eq!((publisher.stats().published, receiver.stats().received), (200, 200));
    }
}

#[tokio::test]
async fn what_cannot_be_published_is_said() {
    let relay = RelayThread::start(watchful());
    let world = join(relay.address()).await;
    let long = [0; MAX_UPDATE + 1];
    let refused = world.publish(GROUP, Level(0), &long);
    assert!(matches!(refused, Err(PublishError::TooLong(len)) if len == long.len()));
    world.publish(GROUP, Level(0), &long[1..]).unwrap();
    drop(relay);
    event(&world, |event| *event == Event::Lost).await;
    let refused = world.publish(GROUP, Level(0), b"");
    assert!(matches!(refused, Err(PublishError::NotConnected)));
    assert_eq!((world.address(), world.is_connected()), (None, false));
    soon("leave", world.leave()).await;
    assert!(matches!(world.publish_many([]), Err(PublishError::Left)));
}

#[tokio::test]
async fn a_restarted_relay_is_rejoined_with_all_subscriptions() {
    let mut relay = RelayThread::start(watchful());
    let subscriber = join(relay.address()).await;
    soon("an ack", subscriber.subscribe(GROUP, Level(3))).await.unwrap();
    soon("an ack", subscriber.subscribe(Group::new(8), Level(0))).await.unwrap();
    relay = relay.restart(watchful());
    event(&subscriber, |event| matches!(event, Event::Connected(_))).await;
    // Resolves when the subscription has been made again, though nothing new is asked for.
    soon("an ack", subscriber.subscribe(GROUP, Level(3))).await.unwrap();
    let publisher = join(relay.address()).await;
    publisher.publish(GROUP, Level(3), b"back").unwrap();
    publisher.publish(Group::new(8), Level(0), b"too").unwrap();
    assert_eq!(next(&subscriber).await.payload, b"back");
    assert_eq!(next(&subscriber).await.payload, b"too");
    assert_eq!(subscriber.stats().subscriptions, 2);
}

#[tokio::test]
async fn changes_made_without_a_relay_are_made_when_it_is_back() {
    let relay = RelayThread::start(watchful());
    let (address, other) = (relay.address(), Group::new(8));
    let world = join(address).await;
    soon("an ack", world.subscribe(GROUP, Level(0))).await.unwrap();
    drop(relay);
    event(&world, |event| *event == Event::Lost).await;
    let subscribed = world.subscribe(other, Level(0));
    let unsubscribed = world.unsubscribe(GROUP);
    let relay = RelayThread::start_at(address, watchful());
    soon("an ack", unsubscribed).await.unwrap();
    soon("an ack", subscribed).await.unwrap();
    let publisher = join(relay.address()).await;
    publisher.publish(GROUP, Level(0), b"unwanted").unwrap();
    publisher.publish(other, Level(0), b"wanted").unwrap();
    assert_eq!(next(&world).await.payload, b"wanted");
}

#[tokio::test]
async fn a_slow_reader_loses_the_oldest_and_they_are_counted() {
    let relay = RelayThread::start(config());
    let publisher = join(relay.address()).await;
    let slow = Client::builder(relay.address()).receive_queue(10).connect().await.unwrap();
    soon("an ack", slow.subscribe(GROUP, Level(0))).await.unwrap();
    for number in 0..100u8 {
        publisher.publish(GROUP, Level(0), &[number]).unwrap();
    }
    let arrived = async {
        while slow.stats().received < 100 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    soon("a hundred updates", arrived).await;
    let stats = slow.stats();
    assert_eq!((stats.dropped_slow_reader, stats.waiting), (90, 10));
    for number in 90..100 {
        assert_eq!(next(&slow).await.payload, [number]);
    }
}

#[tokio::test]
async fn a_refusal_is_told_with_its_reason() {
    let mut small = config();
    small.sessions.max_sessions = 1;
    let relay = RelayThread::start(small);
    let elsewhere = Client::builder(relay.address()).comtree(Comtree(9));
    let error = elsewhere.connect().await.unwrap_err();
    assert!(error.to_string().contains("does not carry comtree 9"), "{error}");
    let _first = join(relay.address()).await;
    let error = Client::builder(relay.address()).connect().await.unwrap_err();
    assert!(matches!(error, ConnectError::Refused { reason: RefusedReason::Full, .. }), "{error}");
}

#[tokio::test]
async fn subscriptions_beyond_the_relays_limit_are_refused() {
    let mut small = config();
    small.tables.max_subscriptions_per_participant = 2;
    let relay = RelayThread::start(small);
    let world = join(relay.address()).await;
    let groups = (1..=4).map(|number| (Group::new(number), Level(0)));
    let refused = soon("an ack", world.subscribe_many(groups)).await;
    let expected = SubscribeError::Refused(vec![Group::new(3), Group::new(4)]);
    assert_eq!(refused, Err(expected));
    assert_eq!(world.stats().subscriptions, 2);
}

#[tokio::test]
async fn leaving_is_confirmed_and_ends_everything() {
    let relay = RelayThread::start(config());
    let (world, other) = (join(relay.address()).await, join(relay.address()).await);
    soon("an ack", world.subscribe(GROUP, Level(0))).await.unwrap();
    other.publish(GROUP, Level(0), b"before").unwrap();
    assert_eq!(next(&world).await.payload, b"before");
    soon("leave", world.leave()).await;
    assert_eq!(relay.sessions(), 1);
    assert_eq!(soon("the end", world.recv()).await, None);
    assert_eq!(soon("the end", world.next_event()).await, None);
    assert_eq!(soon("the end", world.subscribe(GROUP, Level(0))).await, Err(SubscribeError::Left));
    assert!(matches!(world.publish(GROUP, Level(0), b""), Err(PublishError::Left)));
    soon("leave again", world.leave()).await;
}

#[tokio::test]
async fn leaving_a_silent_relay_ends_too() {
    let relay = RelayThread::start(watchful());
    let world = join(relay.address()).await;
    drop(relay);
    soon("leave", world.leave()).await;
    assert_eq!(soon("the end", world.recv()).await, None);
}

#[tokio::test]
async fn dropping_the_last_handle_leaves() {
    let relay = RelayThread::start(config());
    let world = join(relay.address()).await;
    let second = world.clone();
    drop(world);
    assert!(second.is_connected());
    drop(second);
    let left = async {
        while relay.sessions() > 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    soon("the relay to notice", left).await;
}

#[tokio::test]
async fn an_unreachable_relay_gives_an_error_that_helps() {
    let timeout = Duration::from_millis(300);
    // Tests that run beside this one take ports of 127.0.0.1 only.
    let closed = UdpSocket::bind("127.0.0.2:0").unwrap().local_addr().unwrap();
    let error = Client::builder(closed).timeout(timeout).connect().await.unwrap_err();
    let text = error.to_string();
    assert!(text.contains(&closed.to_string()) && text.contains("nothing listens"), "{text}");
    let silent = UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = silent.local_addr().unwrap();
    let error = Client::builder(address).timeout(timeout).connect().await.unwrap_err();
    let text = error.to_string();
    assert!(text.contains(&address.to_string()) && text.contains("firewalls"), "{text}");
}

#[tokio::test]
async fn another_protocol_is_told_apart_from_silence() {
    let stranger = tokio::net::UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let address = stranger.local_addr().unwrap();
    let connect = Client::builder(address).timeout(Duration::from_millis(300)).connect();
    let answer = async {
        let (_, from) = stranger.recv_from(&mut [0; 2048]).await.unwrap();
        stranger.send_to(b"HTTP/1.1 400 Bad Request", from).await.unwrap();
    };
    let (connected, ()) = tokio::join!(connect, answer);
    assert!(matches!(connected, Err(ConnectError::Incompatible { .. })), "{connected:?}");
}

#[tokio::test]
async fn a_changed_ip_port_is_followed() {
    let relay = RelayThread::start(config());
    let nat = Nat::start(relay.address());
    let (world, publisher) = (join(nat.address()).await, join(relay.address()).await);
    let address: Option<Address> = world.address();
    soon("an ack", world.subscribe(GROUP, Level(0))).await.unwrap();
    nat.rebind();
    world.publish(Group::new(9), Level(0), b"long enough to be worth a challenge").unwrap();
    event(&world, |event| *event == Event::Rebound).await;
    // The next ack shows that the proof has arrived.
    soon("an ack", world.subscribe(Group::new(8), Level(0))).await.unwrap();
    publisher.publish(GROUP, Level(0), b"still there").unwrap();
    assert_eq!(next(&world).await.payload, b"still there");
    assert_eq!((world.address(), world.stats().connects), (address, 1));
}

#[tokio::test]
async fn a_socket_that_gets_nothing_through_is_replaced() {
    let relay = RelayThread::start(watchful());
    let nat = Nat::start(relay.address());
    let (world, publisher) = (join(nat.address()).await, join(relay.address()).await);
    soon("an ack", world.subscribe(GROUP, Level(0))).await.unwrap();
    nat.block();
    event(&world, |event| *event == Event::Lost).await;
    event(&world, |event| matches!(event, Event::Connected(_))).await;
    soon("an ack", world.subscribe(GROUP, Level(0))).await.unwrap();
    publisher.publish(GROUP, Level(0), b"through").unwrap();
    assert_eq!(next(&world).await.payload, b"through");
}
