//! Participants come, stay, move and go, over links that may lose.

use crate::support::{COMTREE, OTHER_COMTREE, PERIODIC, World, config, group};
use canopy_relay::{Change, Mode, Places, Relay, RelayConfig, Siblings, TableLimits};
use canopy_session::{Event, Keyring, Session, SessionConfig, SessionLimits, State};
use canopy_wire::{
    Address, Comtree, DropReason, Flags, Group, HEADER_LEN, Kind, Level, Packet, Path,
    RefusedReason, SubscribeRefusal, Time,
};
use std::net::SocketAddr;
use std::time::Duration;

/// A participant and a relay, with a network between them that loses what it is told to.
struct Connection {
    now: Time,
    relay: Relay,
    session: Session,
    path: Path,
    /// Datagrams up and down that are lost next, counted from the next one.
    lose_up: Vec<bool>,
    lose_down: Vec<bool>,
    bytes_up: usize,
    bytes_down: usize,
}

fn at(ip: [u8; 4], port: u16) -> Path {
    SocketAddr::from((ip, port)).into()
}

/// A relay whose every incarnation gives out the same addresses.
fn relay(key: u8, places: u32) -> Relay {
    let places = Places::new(places);
    let config = RelayConfig { places, ..config(Mode::Immediate) };
    Relay::new(config, Siblings::alone(), Keyring::new([key; 16]), &[7; 16])
}

impl Connection {
    fn new() -> Connection {
        Connection::to(relay(1, 4))
    }

    fn to(relay: Relay) -> Connection {
        Connection {
            now: Time::from_millis(1),
            relay,
            session: Session::new(SessionConfig::new(COMTREE, [9; 16])),
            path: at([10, 0, 0, 1], 5000),
            lose_up: Vec::new(),
            lose_down: Vec::new(),
            bytes_up: 0,
            bytes_down: 0,
        }
    }

    /// Runs for a while, waking both sides when they ask to be.
    fn run_for(&mut self, millis: u64) {
        let until = self.now + Duration::from_millis(millis);
        while self.now < until {
            let mut out = [0; 1500];
            while let Some(len) = self.session.poll_transmit(self.now, &mut out) {
                let lost = !self.lose_up.is_empty() && self.lose_up.remove(0);
                self.bytes_up += len;
                if !lost {
                    self.relay.handle_datagram(self.now, self.path, &mut out[..len]);
                    self.bring_answers();
                }
            }
            self.relay.handle_timeout(self.now);
            self.bring_answers();
            let due = [self.session.poll_timeout(), self.relay.poll_timeout()];
            let due = due.into_iter().flatten().min().unwrap_or(until);
            self.now = due.max(self.now + Duration::from_millis(1)).min(until);
        }
    }

    fn bring_answers(&mut self) {
        for mut answer in self.answers() {
            let lost = !self.lose_down.is_empty() && self.lose_down.remove(0);
            self.bytes_down += answer.len();
            if !lost {
                self.session.handle_datagram(self.now, &mut answer, |_| ()).unwrap();
            }
        }
    }

    /// What the relay has to send now.
    fn answers(&mut self) -> Vec<Vec<u8>> {
        let mut answers = Vec::new();
        self.relay.transmit(self.now, |batch| {
            let parts = |transmit| batch.parts(transmit).flatten().copied().collect();
            answers.extend(batch.transmits().iter().map(parts));
        });
        answers
    }

    /// A datagram reaches the relay.
    fn arrive(&mut self, from: Path, datagram: &[u8]) {
        self.relay.handle_datagram(self.now, from, &mut datagram.to_vec());
    }

    /// An update of the participant's, as it is on the wire.
    fn update(&mut self, to: Address, payload: &[u8]) -> Vec<u8> {
        let mut out = [0; 1500];
        let len = self.session.publish(to, Level(0), Flags::ECHO, payload, &mut out).unwrap();
        out[..len].to_vec()
    }

    fn events(&mut self) -> Vec<Event> {
        std::iter::from_fn(|| self.session.poll_event()).collect()
    }

    fn dropped(&self, reason: DropReason) -> u64 {
        self.relay.counters().dropped(reason)
    }
}

#[test]
fn a_perfect_link_connects_at_once_and_stays() {
    let mut connection = Connection::new();
    connection.run_for(10);
    assert_eq!(connection.session.state(), State::Connected);
    assert!(matches!(connection.events()[..], [Event::Connected(_)]));
    connection.run_for(60_000);
    assert_eq!(connection.relay.sessions(), 1);
    assert_eq!(connection.events(), []);
    assert_eq!(connection.session.round_trip(), Some(Duration::ZERO));
}

#[test]
fn any_lost_handshake_packet_is_made_good() {
    for lost in 0..6 {
        let mut connection = Connection::new();
        let lose = |position: usize| (0..3).map(|n| n == position).collect::<Vec<_>>();
        if lost < 3 {
            connection.lose_up = lose(lost)
        } else {
            connection.lose_down = lose(lost - 3)
        }
        connection.run_for(1_000);
        assert_eq!(connection.session.state(), State::Connected, "lost {lost}");
        let counters = connection.relay.counters();
        assert_eq!(counters.sessions_opened, 1, "lost {lost}: a repeated connect opens no second");
    }
}

#[test]
fn a_restarted_relay_is_joined_again() {
    let mut connection = Connection::new();
    connection.run_for(10);
    connection.events();
    connection.relay = relay(2, 4);
    connection.run_for(2_500);
    let events = connection.events();
    assert!(matches!(events[..], [Event::Lost, Event::Connected(_)]), "{events:?}");
}

#[test]
fn a_silent_relay_is_given_up_and_asked_again() {
    let mut connection = Connection::new();
    connection.run_for(10);
    connection.events();
    connection.lose_down = vec![true; 6];
    connection.run_for(60_000);
    let events = connection.events();
    assert!(matches!(events[..], [Event::Lost, Event::Connected(_)]), "{events:?}");
}

#[test]
fn a_new_path_is_proved_and_followed() {
    let mut connection = Connection::new();
    connection.run_for(10);
    connection.session.subscribe(Group::new(7), Level(0));
    connection.run_for(10);
    connection.events();
    let old = core::mem::replace(&mut connection.path, at([10, 0, 0, 2], 6000));
    connection.run_for(10_000);
    assert_eq!(connection.events(), [Event::Rebound]);
    assert_eq!(connection.dropped(DropReason::SpoofedSource), 1);
    // From now on the old path is the stranger's.
    let [first, second] = [(); 2].map(|()| connection.update(group(7), b"moved"));
    connection.arrive(connection.path, &first);
    assert_eq!(connection.answers().len(), 1, "what it publishes is taken, and comes back");
    connection.arrive(old, &second);
    assert_eq!(connection.dropped(DropReason::SpoofedSource), 2);
    connection.arrive(old, &first);
    assert_eq!(connection.dropped(DropReason::Replayed), 1);
}

#[test]
fn a_leave_is_answered_or_given_up() {
    for lost in [0, 10] {
        let mut connection = Connection::new();
        connection.run_for(10);
        connection.session.leave();
        connection.lose_up = vec![true; lost];
        connection.run_for(5_000);
        assert_eq!(connection.session.state(), State::Closed);
        assert_eq!(connection.session.poll_timeout(), None);
        assert_eq!(connection.relay.sessions(), u32::from(lost > 0), "a lost leave expires later");
    }
}

#[test]
fn a_full_relay_refuses_and_the_participant_asks_later() {
    let mut first = Connection::to(relay(1, 1));
    first.run_for(10);
    let mut other = Connection::to(first.relay);
    other.path = at([10, 0, 0, 9], 1);
    other.run_for(1_000);
    assert!(other.events().contains(&Event::Refused(RefusedReason::Full)));
    assert!(other.dropped(DropReason::SessionsFull) > 0);
    // The first one is gone by then.
    other.run_for(20_000);
    assert!(matches!(other.events().last(), Some(Event::Connected(_))));
}

#[test]
fn strangers_get_no_more_than_they_send() {
    let mut connection = Connection::new();
    connection.lose_down = vec![true; 1_000];
    connection.run_for(120_000);
    assert_eq!(connection.relay.sessions(), 0);
    assert!(connection.bytes_down > 0);
    assert!(
        connection.bytes_down <= connection.bytes_up,
        "{} > {}",
        connection.bytes_down,
        connection.bytes_up
    );
}

#[test]
fn a_stolen_proof_does_not_move_a_session() {
    let mut connection = Connection::new();
    connection.run_for(10);
    // The participant proves its own new binding; a thief repeats the packet from its own.
    connection.path = at([10, 0, 0, 2], 6000);
    let update = connection.update(connection.session.address(), &[1; 32]);
    connection.arrive(connection.path, &update);
    connection.bring_answers();
    let keys = connection.relay.poll_key_log().unwrap();
    let mut out = [0; 1500];
    let len = connection.session.poll_transmit(connection.now, &mut out).unwrap();
    let proof = out[..len].to_vec();
    let opened = keys.from_participant.peek(&proof).unwrap();
    assert_eq!(Packet::new_checked(&opened).unwrap().header().kind, Kind::Rebind);
    let thief = at([66, 6, 6, 6], 1);
    connection.events();
    connection.arrive(thief, &proof);
    assert_eq!(connection.dropped(DropReason::BadCookie), 1);
    assert!(connection.answers().is_empty());
    connection.arrive(connection.path, &proof);
    assert_eq!(connection.dropped(DropReason::BadCookie), 1, "the participant itself moves");
    connection.bring_answers();
    assert_eq!(connection.events(), [Event::Rebound]);
    // The thief may try again, from where the participant is now too.
    connection.arrive(thief, &proof);
    assert_eq!(connection.dropped(DropReason::BadCookie), 2);
    let moved = connection.update(connection.session.address(), b"here");
    connection.arrive(connection.path, &moved);
    assert_eq!(connection.answers().len(), 1);
}

#[test]
fn a_relay_of_another_version_is_understood_to_refuse() {
    for version in [canopy_wire::VERSION, 0x99] {
        let mut connection = Connection::new();
        let mut out = [0; 1500];
        connection.session.poll_transmit(connection.now, &mut out).unwrap();
        let nonce = u64::from_be_bytes(out[HEADER_LEN..HEADER_LEN + 8].try_into().unwrap());
        let reason = RefusedReason::Version;
        let refused = canopy_wire::Refused { nonce, reason };
        let len = refused.encode(Comtree(0), &mut out).unwrap();
        out[0] = version;
        connection.session.handle_datagram(connection.now, &mut out[..len], |_| ()).unwrap();
        assert_eq!(connection.events(), [Event::Refused(reason)]);
    }
}

#[test]
fn a_participant_of_another_version_is_told_so() {
    let mut connection = Connection::new();
    let mut out = [0; 1500];
    let len = connection.session.poll_transmit(connection.now, &mut out).unwrap();
    out[0] = 0x99;
    connection.arrive(connection.path, &out[..len]);
    connection.bring_answers();
    assert_eq!(connection.events(), [Event::Refused(RefusedReason::Version)]);
    assert_eq!(connection.dropped(DropReason::Version), 1);
}

/// Its keepalive cannot be opened, and does not come from where the other is.
#[test]
fn whose_number_another_has_after_a_restart_joins_again_at_once() {
    let mut connection = Connection::new();
    connection.run_for(10);
    connection.events();
    let mut other = Connection::to(relay(2, 4));
    other.path = at([10, 0, 0, 9], 1);
    other.now = connection.now;
    other.run_for(10);
    assert_eq!(other.session.id(), connection.session.id());
    connection.relay = other.relay;
    connection.run_for(2_500);
    let events = connection.events();
    assert!(matches!(events[..], [Event::Lost, Event::Connected(_)]), "{events:?}");
    assert_eq!(
        connection.dropped(DropReason::Forged),
        4,
        "it asks three times more before it believes"
    );
    assert_ne!(connection.session.id(), other.session.id());
    assert_eq!(connection.relay.sessions(), 2, "the other one stays");
}

#[test]
fn a_full_relay_refuses_with_a_reason() {
    let mut small = config(Mode::Immediate);
    small.places = Places::new(2);
    small.tables.max_subscriptions = 1;
    let mut world = World::of(small, 3);
    let first = |world: &mut World, number| world.events(number).into_iter().next();
    assert!(matches!(first(&mut world, 0), Some(Event::Connected(_))));
    // One that asks several data threads first may need a while.
    for _ in 0..8 {
        world.now = world.now + Duration::from_millis(100);
        world.settle();
    }
    assert!(world.events(2).contains(&Event::Refused(RefusedReason::Full)));
    world.subscribe(0, 1, 0);
    world.subscribe(0, 2, 0);
    let subscribed = Event::Subscribed(Group::new(1), Level(0));
    let refused = Event::SubscriptionRefused(Group::new(2), SubscribeRefusal::Table);
    assert_eq!(world.events(0), [subscribed, refused]);
    assert_eq!(world.relay().counters().dropped(DropReason::SubscriptionsFull), 1);
}

#[test]
fn a_repeated_subscribe_gets_the_answer_that_was_given() {
    let tables = TableLimits { max_subscriptions: 1, ..TableLimits::default() };
    let mut world = World::of(RelayConfig { tables, ..config(Mode::Immediate) }, 2);
    world.subscribe(0, 1, 0);
    world.participants[1].session.subscribe(Group::new(2), Level(0));
    let (now, mut out) = (world.now, [0; 1500]);
    let len = world.participants[1].session.poll_transmit(now, &mut out).unwrap();
    let packet = world.open_from(1, &out[..len]);
    world.send(1, &packet);
    // The first answer is lost.
    assert_eq!(world.collect(0).len(), 1);
    world.unsubscribe(0, 1);
    world.send(1, &packet);
    world.settle();
    let events = world.events(1);
    assert!(
        events.contains(&Event::SubscriptionRefused(Group::new(2), SubscribeRefusal::Table)),
        "{events:?}"
    );
    assert_eq!(world.relay().subscriptions(), 0, "there is room, but the refusal was heard");
}

#[test]
fn a_repeated_subscribe_renews_what_it_added() {
    let second = Duration::from_secs(1);
    let keepalive = second * 2;
    let limits = SessionLimits { lifetime: second * 1000, keepalive, subscription: second * 40 };
    let mut world = World::of(RelayConfig { limits, ..config(Mode::Immediate) }, 1);
    world.participants[0].session.subscribe(Group::new(1), Level(0));
    let (start, mut out) = (world.now, [0; 1500]);
    let len = world.participants[0].session.poll_transmit(start, &mut out).unwrap();
    let packet = world.open_from(0, &out[..len]);
    let mut held = Vec::new();
    for passed in 0..90 {
        world.now = start + second * passed;
        let now = world.now;
        // The first answer is lost, so the participant counts from the second.
        if passed == 0 || passed == 30 {
            world.send(0, &packet);
            let sent = world.collect(0);
            let packets = world.packets_to(0, &sent, 0);
            let kinds = packets.iter().map(|one| Packet::new_checked(one).unwrap().header().kind);
            assert_eq!(kinds.filter(|kind| *kind == Kind::SubscribeAck).count(), 1);
        }
        world.relay_mut().handle_timeout(now);
        held.push(world.relay().subscriptions());
    }
    // Ended subscriptions are found within ten seconds.
    assert_eq!((held[69], held[89]), (1, 0), "{held:?}");
}

#[test]
fn the_silent_expire_and_free_their_place() {
    let mut world = World::new(Mode::Immediate, 3);
    world.subscribe_all(7, 0);
    let mut now = world.now;
    for _ in 0..130 {
        now = now + Duration::from_millis(100);
        world.relay_mut().handle_timeout(now);
    }
    assert_eq!((world.relay().sessions(), world.relay().subscriptions()), (0, 0));
    assert_eq!(world.relay().counters().sessions_expired, 3);
    assert_eq!(world.relay().poll_timeout(), None, "an empty relay sleeps");
}

#[test]
fn draining_tells_everyone_and_takes_no_one() {
    let mut world = World::new(Mode::Immediate, 3);
    let now = world.now;
    world.relay_mut().apply(now, Change::Drain).unwrap();
    world.relay_mut().handle_timeout(now);
    let sent = world.collect(0);
    world.carry(0, sent);
    for number in 0..3 {
        let events = world.events(number);
        assert!(events.contains(&Event::Lost), "{events:?}");
    }
    world.now = now + Duration::from_secs(1);
    world.settle();
    assert!(world.events(0).contains(&Event::Refused(RefusedReason::Draining)));
    assert_eq!(world.relay().sessions(), 0);
}

#[test]
fn what_waits_for_one_who_left_does_not_reach_who_takes_the_place() {
    // The second one's place, session and address on the other comtree are free for the last.
    let mut small = config(PERIODIC);
    small.places = Places::new(3);
    small.max_sessions = 3;
    for comtree in &mut small.comtrees {
        comtree.endpoints = 64..=65;
    }
    let mut world = World::of(small, 2);
    world.add_participant(0, OTHER_COMTREE);
    world.settle();
    let dst: Address = world.address(1);
    world.publish_to(0, dst, 0, Flags(0), b"secret");
    world.publish_to(0, dst, 0, Flags(0), b"secret too");
    world.participants[1].session.leave();
    world.settle();
    let late = world.add_participant(0, OTHER_COMTREE);
    world.settle();
    world.subscribe(late, 7, 0);
    assert_eq!(world.relay().sessions(), 3);
    world.publish(2, 7, 0, Flags(0), b"ours");
    world.tick();
    assert_eq!(world.payloads(late), [b"ours"], "an update of another comtree");
    assert_eq!(world.dropped(DropReason::UnknownDestination), 2);
}
