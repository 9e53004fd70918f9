//! The same, for a loop without a runtime.

use crate::controller::{Controller, LIMIT, place, refusal, start_relay};
use crate::{GROUP, Hello, Relay};
use canopy_channel::Reply;
use canopy_client::{ClientKey, Event, JoinError, Level, PollClient};
use canopy_node::Command;
use std::time::{Duration, Instant};

/// Whose relay is lost is at another within this.
const REPLACED: Duration = Duration::from_secs(2);

/// Polls as a game does, which publishes with each frame, until `done` finds something.
fn until<T>(world: &mut PollClient, mut done: impl FnMut(&mut PollClient) -> Option<T>) -> T {
    let began = Instant::now();
    loop {
        assert!(began.elapsed() < LIMIT, "polled in vain");
        assert!(world.poll(), "it is in its world");
        if let Some(found) = done(world) {
            return found;
        }
        let _ = world.publish(GROUP, Level(0), b"a frame");
        world.wait(Duration::from_millis(5));
    }
}

fn next_event(world: &mut PollClient) -> Event {
    until(world, PollClient::try_next_event)
}

/// The address of the next place that is given back; nothing if it is all of them.
fn given_back(controller: &mut Controller) -> Option<Option<String>> {
    std::iter::from_fn(|| controller.try_asked()).find_map(|asked| match asked {
        Hello::Leave { address, .. } => Some(address),
        _ => None,
    })
}

/// A game that has joined a world at this relay, and has subscribed.
fn joined(relay: &Relay) -> (Controller, PollClient) {
    let answer = place("eu-1", relay, "1.64");
    let controller = Controller::start("127.0.0.1:0".parse().unwrap(), answer);
    let join = PollClient::join(controller.address, Controller::key(), "lobby");
    let join = join.measure(Duration::ZERO).timeout(LIMIT);
    let mut world = join.connect_blocking().unwrap();
    assert_eq!(world.relay(), relay.address());
    let change = world.subscribe(GROUP, Level(1));
    assert_eq!(until(&mut world, |_| change.result()), Ok(()));
    assert!(matches!(next_event(&mut world), Event::Connected { .. }));
    (controller, world)
}

/// Somebody at this relay is heard.
fn hears_at(world: &mut PollClient, relay: &Relay) {
    let mut other = PollClient::builder(relay.address()).timeout(LIMIT).connect_blocking().unwrap();
    let from = other.participant().unwrap();
    until(world, |world| {
        other.poll();
        other.publish(GROUP, Level(1), b"hello").unwrap();
        std::iter::from_fn(|| world.try_recv()).find(|update| update.from == from)
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_game_moves_to_another_relay_and_gives_its_places_back() {
    let (here, there) = (start_relay(), start_relay());
    let (mut controller, mut world) = joined(&here);
    controller.answer(place("eu-2", &there, "2.64"));
    // There is no word of a loss.
    let moved = next_event(&mut world);
    assert!(matches!(moved, Event::Moved { relay, .. } if relay == there.address()), "{moved:?}");
    let next = next_event(&mut world);
    assert!(matches!(next, Event::Connected { kept_address: false, .. }), "{next:?}");
    hears_at(&mut world, &there);
    let back = until(&mut world, |_| given_back(&mut controller));
    assert_eq!(back.as_deref(), Some("1.64"), "it has heard the old relay out");
    hears_at(&mut world, &there);
    assert_eq!((world.try_next_event(), world.relay()), (None, there.address()));
    world.leave();
    while world.poll() {
        world.wait(Duration::from_millis(5));
    }
    assert_eq!(given_back(&mut controller), Some(None), "it has given all of its places back");
    here.end(Command::Stop);
    there.end(Command::Stop);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_game_whose_relay_dies_is_at_another_within_two_seconds() {
    let (here, there) = (start_relay(), start_relay());
    let (controller, mut world) = joined(&here);
    here.end(Command::Stop);
    controller.answer(place("eu-2", &there, "1.64"));
    let died = Instant::now();
    let is_there = |world: &mut PollClient| {
        (world.relay() == there.address() && world.is_connected()).then(|| died.elapsed())
    };
    let took = until(&mut world, is_there);
    assert!(took < REPLACED, "{took:?}");
    let events: Vec<_> = std::iter::from_fn(|| world.try_next_event()).collect();
    let [Event::Lost, Event::Moved { .. }, Event::Connected { .. }] = events[..] else {
        panic!("{events:?}")
    };
    hears_at(&mut world, &there);
    // A game that is dropped leaves.
    drop(world);
    there.end(Command::Stop);
    controller.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_game_is_told_of_refusals_and_plays_on() {
    let relay = start_relay();
    let (controller, mut world) = joined(&relay);
    for what in ["it closes", "you are barred"] {
        controller.answer(refusal(what));
        let told = next_event(&mut world);
        assert!(matches!(&told, Event::NotLetIn(why) if why.what == what), "{told:?}");
    }
    hears_at(&mut world, &relay);
    let join = PollClient::join(controller.address, Controller::key(), "lobby");
    let join = join.measure(Duration::ZERO);
    let refused = join.clone().connect_blocking().unwrap_err();
    assert!(matches!(refused, JoinError::Refused(why) if why.what == "you are barred"));
    let address = controller.end().await;
    let soon = Duration::from_millis(500);
    let away = join.timeout(soon).connect_blocking().unwrap_err().to_string();
    assert!(away.contains(&address.to_string()) && away.contains("check its address"), "{away}");
    assert!(away.contains("tries within 0.5 s") && away.contains("refused"), "{away}");
    relay.end(Command::Stop);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_game_that_joins_waits_for_a_controller_that_is_away() {
    let relay = start_relay();
    let socket = Controller::bind("127.0.0.1:0".parse().unwrap());
    let join = PollClient::join(socket.local_addr().unwrap(), Controller::key(), "lobby");
    let joins = tokio::task::spawn_blocking(|| join.timeout(LIMIT).connect_blocking());
    tokio::time::sleep(Duration::from_secs(1)).await;
    let controller = Controller::listen(socket, place("eu-1", &relay, "1.64"));
    assert_eq!(joins.await.unwrap().unwrap().relay(), relay.address());
    controller.end().await;
    relay.end(Command::Stop);
}

/// It is asked for the areas of the world by this token.
fn followed_by(world: &mut PollClient, controller: &mut Controller, token: &str) {
    until(world, |_| {
        let asked = controller.try_asked()?;
        matches!(asked, Hello::Follow { credential: Some(of), .. } if of == token).then_some(())
    });
}

/// The channel that tells areas is opened anew, by the token that the place has then.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn who_was_let_in_follows_areas_by_the_token_of_its_place() {
    let relay = start_relay();
    let by = |token: &str| match place("eu-1", &relay, "1.64") {
        Reply::Done(mut place) => {
            (place["token"], place["areas"]) = (token.into(), true.into());
            Reply::Done(place)
        }
        refused => refused,
    };
    let mut controller = Controller::start("127.0.0.1:0".parse().unwrap(), by("first"));
    let key = ClientKey::from_seed([7; 32]);
    let join = PollClient::join(controller.address, Controller::key(), "lobby");
    let join = join.key(key).let_in("backend's").measure(Duration::ZERO).timeout(LIMIT);
    let mut world = join.connect_blocking().unwrap();
    followed_by(&mut world, &mut controller, "first");
    controller.answer(by("second"));
    followed_by(&mut world, &mut controller, "second");
    assert_eq!((world.stand_at([1.0, 1.0]), world.areas()), (None, None), "none were told");
    relay.end(Command::Stop);
}

/// A loading screen shows its frames while the controller is asked, and may be left before it has answered.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_loading_screen_joins_while_it_is_polled_or_gives_up() {
    let relay = start_relay();
    let answer = place("eu-1", &relay, "1.64");
    let mut controller = Controller::start("127.0.0.1:0".parse().unwrap(), answer);
    let join = PollClient::join(controller.address, Controller::key(), "lobby").timeout(LIMIT);
    let mut joining = join.clone().open().unwrap();
    let began = Instant::now();
    let world = loop {
        if let Some(joined) = joining.poll() {
            break joined.unwrap();
        }
        assert!(began.elapsed() < LIMIT, "polled in vain");
        std::thread::sleep(Duration::from_millis(5));
    };
    assert!(world.is_connected() && joining.poll().is_none());
    drop(world);
    while given_back(&mut controller) != Some(None) {
        assert!(began.elapsed() < LIMIT, "who has joined leaves");
        std::thread::sleep(Duration::from_millis(5));
    }
    while controller.try_asked().is_some() {}
    drop(join.open().unwrap());
    let left = loop {
        let asked = controller.asked().await;
        if !matches!(asked, Hello::Relays) {
            break asked;
        }
    };
    assert!(
        matches!(left, Hello::Leave { .. }),
        "who has given up leaves, and joins no more: {left:?}"
    );
    // Nobody answers at this address.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let timeout = Duration::from_millis(50);
    let join = PollClient::join(silent.local_addr().unwrap(), Controller::key(), "lobby");
    let late = join.timeout(timeout).connect_blocking().unwrap_err().to_string();
    assert!(late.contains("has not answered within 0.05 s"), "{late}");
    relay.end(Command::Stop);
    controller.end().await;
}
