//! A client without a runtime, and a real relay over loopback sockets.

mod bed;

use bed::{Relay, settings};
use canopy_client::{
    ConnectError, Event, Group, Incoming, Level, Outgoing, PollClient, PublishError,
    SubscribeError, Update,
};
use canopy_node::{Command, NodeConfig};
use std::net::UdpSocket;
use std::time::{Duration, Instant};

const GROUP: Group = Group::new(7);
const PATIENCE: Duration = Duration::from_secs(60);

fn join(relay: &Relay) -> PollClient {
    PollClient::builder(relay.address()).timeout(PATIENCE).connect_blocking().unwrap()
}

/// Polls `client` until `done` finds something.
fn until<T>(client: &mut PollClient, mut done: impl FnMut(&mut PollClient) -> Option<T>) -> T {
    let started = Instant::now();
    loop {
        if let Some(found) = done(client) {
            return found;
        }
        assert!(started.elapsed() < PATIENCE, "polled in vain");
        client.wait(Duration::from_millis(10));
    }
}

fn next(client: &mut PollClient) -> Update {
    until(client, PollClient::try_recv)
}

fn hear(client: &mut PollClient, group: Group, level: Level) {
    let change = client.subscribe(group, level);
    assert_eq!(until(client, |_| change.result()), Ok(()));
}

#[test]
fn a_loop_without_a_runtime_does_all_that_a_client_does() {
    let relay = Relay::start(settings(2));
    let (mut server, mut player) = (join(&relay), join(&relay));
    hear(&mut player, GROUP, Level(1));
    let to = player.participant().unwrap();
    let updates = [Outgoing::new(GROUP, Level(1), b"all"), Outgoing::to(to, b"you")];
    server.publish_many(updates).unwrap();
    let mut heard = [next(&mut player), next(&mut player)];
    heard.sort_by_key(|update| update.group);
    assert_eq!((heard[0].group, &heard[0].payload[..]), (None, &b"you"[..]));
    assert_eq!((heard[1].group, &heard[1].payload[..]), (Some(GROUP), &b"all"[..]));
    player.reply_to(&heard[0], b"thanks").unwrap();
    let answer = next(&mut server);
    assert_eq!((answer.from, &answer.payload[..]), (to, &b"thanks"[..]));
    let change = player.unsubscribe(GROUP);
    assert_eq!(until(&mut player, |_| change.result()), Ok(()));
    player.leave();
    until(&mut player, |player| (!player.poll()).then_some(()));
    assert!(matches!(player.publish(GROUP, Level(0), b""), Err(PublishError::Left)));
    assert_eq!(player.subscribe(GROUP, Level(0)).result(), Some(Err(SubscribeError::Left)));
    assert!(matches!(player.try_next(), Some(Incoming::Event(Event::Connected { .. }))));
    assert_eq!(player.try_next(), None);
}

#[test]
fn one_that_is_opened_joins_while_it_is_polled() {
    let relay = Relay::start(settings(1));
    let mut world = PollClient::builder(relay.address()).open().unwrap();
    assert!(!world.is_connected());
    let change = world.subscribe(GROUP, Level(0));
    assert_eq!(until(&mut world, |_| change.result()), Ok(()));
    assert_eq!((world.is_connected(), world.epoch().number()), (true, 1));
    relay.end(Command::Drain);
    let event = until(&mut world, |world| {
        std::iter::from_fn(|| world.try_next_event()).find(|event| *event == Event::Lost)
    });
    assert_eq!((event, world.participant()), (Event::Lost, None));
}

#[test]
fn dropping_it_leaves() {
    let relay = Relay::start(NodeConfig { max_sessions: 1, ..settings(1) });
    let mut world = join(&relay);
    let refused = PollClient::builder(relay.address()).connect_blocking().unwrap_err();
    assert!(matches!(refused, ConnectError::Refused { .. }), "{refused}");
    let change = world.subscribe(GROUP, Level(0));
    drop(world);
    assert_eq!(change.result(), Some(Err(SubscribeError::Left)));
    join(&relay);
}

#[test]
fn a_wait_for_nobody_ends_in_time() {
    let silent = UdpSocket::bind("127.0.0.1:0").unwrap();
    let timeout = Duration::from_millis(50);
    let asked = PollClient::builder(silent.local_addr().unwrap()).timeout(timeout);
    let error = asked.connect_blocking().unwrap_err();
    assert!(matches!(error, ConnectError::Unreachable { waited, .. } if waited == timeout));
    let mut world = PollClient::builder(silent.local_addr().unwrap()).open().unwrap();
    assert!(!world.wait(Duration::from_millis(5)), "there is nothing to take");
}
