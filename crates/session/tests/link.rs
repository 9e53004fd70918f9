//! Both sides of a session over a link that may lose, in virtual time.

use canopy_session::{
    Answer, Event, Keyring, Session, SessionConfig, SessionLimits, Sessions, SessionsConfig, State,
};
use canopy_wire::{Comtree, DropReason, Kind, Packet, RefusedReason, Time};
use std::net::SocketAddr;
use std::time::Duration;

const COMTREE: Comtree = Comtree(1);

struct Link {
    now: Time,
    sessions: Sessions,
    session: Session,
    ip_port: SocketAddr,
    /// Datagrams up and down that are lost next, counted from the next one.
    lose_up: Vec<bool>,
    lose_down: Vec<bool>,
    bytes_up: usize,
    bytes_down: usize,
    reasons: Vec<DropReason>,
}

fn sessions(key: u8, max_sessions: u32) -> Sessions {
    let config = SessionsConfig {
        comtrees: vec![COMTREE],
        site: 1,
        shard: 0,
        shards: 1,
        max_sessions,
        limits: SessionLimits::default(),
    };
    Sessions::new(config, Keyring::new([key; 16]), &[key; 16])
}

impl Link {
    fn new() -> Link {
        Link {
            now: Time::from_millis(1),
            sessions: sessions(1, 4),
            session: Session::new(SessionConfig { comtree: COMTREE, seed: [9; 16] }),
            ip_port: SocketAddr::from(([10, 0, 0, 1], 5000)),
            lose_up: Vec::new(),
            lose_down: Vec::new(),
            bytes_up: 0,
            bytes_down: 0,
            reasons: Vec::new(),
        }
    }

    /// Runs until `until`, waking the participant when it asks to be.
    fn run_until(&mut self, until: Time) {
        while self.now < until {
            let mut out = [0; 1500];
            while let Some(len) = self.session.poll_transmit(self.now, &mut out) {
                let lost = !self.lose_up.is_empty() && self.lose_up.remove(0);
                self.bytes_up += len;
                if !lost {
                    self.deliver_up(&out[..len]);
                }
            }
            let next = self.session.poll_timeout().unwrap_or(until);
            let mut budget = 8;
            while self.sessions.expire(self.now, &mut budget).is_some() {}
            self.now = next.max(self.now + Duration::from_millis(1)).min(until);
        }
    }

    fn run_for(&mut self, millis: u64) {
        self.run_until(self.now + Duration::from_millis(millis));
    }

    fn deliver_up(&mut self, datagram: &[u8]) {
        let packet = Packet::new_checked(datagram).unwrap();
        let mut answer = Answer::new();
        match self.sessions.handle(self.now, self.ip_port, &packet, &mut answer) {
            Ok(_) => {}
            Err(reason) => {
                self.reasons.push(reason);
                if reason == DropReason::SpoofedSource {
                    let header = packet.header();
                    let len = datagram.len();
                    self.sessions.challenge(self.now, self.ip_port, header, len, &mut answer);
                }
            }
        }
        let lost = !self.lose_down.is_empty() && self.lose_down.remove(0);
        self.bytes_down += answer.bytes().len();
        if !answer.bytes().is_empty() && !lost {
            self.session.handle_datagram(self.now, answer.bytes(), |_| ()).unwrap();
        }
    }

    fn events(&mut self) -> Vec<Event> {
        std::iter::from_fn(|| self.session.poll_event()).collect()
    }
}

#[test]
fn a_perfect_link_connects_at_once_and_stays() {
    let mut link = Link::new();
    link.run_for(10);
    assert_eq!(link.session.state(), State::Connected);
    assert!(matches!(link.events()[..], [Event::Connected(_)]));
    link.run_for(60_000);
    assert_eq!(link.sessions.live(), 1);
    assert_eq!(link.events(), []);
    assert_eq!(link.session.round_trip(), Some(Duration::ZERO));
}

#[test]
fn any_lost_handshake_packet_is_made_good() {
    for lost in 0..6 {
        let mut link = Link::new();
        let lose = |position: usize| (0..3).map(|n| n == position).collect::<Vec<_>>();
        if lost < 3 {
            link.lose_up = lose(lost)
        } else {
            link.lose_down = lose(lost - 3)
        }
        link.run_for(1_000);
        assert_eq!(link.session.state(), State::Connected, "lost {lost}");
        assert_eq!(link.sessions.live(), 1, "lost {lost}: a repeated connect opens no second");
    }
}

#[test]
fn a_restarted_relay_is_joined_again() {
    let mut link = Link::new();
    link.run_for(10);
    link.events();
    link.sessions = sessions(2, 4);
    link.run_for(2_500);
    let events = link.events();
    assert!(matches!(events[..], [Event::Lost, Event::Connected(_)]), "{events:?}");
}

#[test]
fn a_silent_relay_is_given_up_and_asked_again() {
    let mut link = Link::new();
    link.run_for(10);
    link.events();
    link.lose_down = vec![true; 6];
    link.run_for(60_000);
    let events = link.events();
    assert!(matches!(events[..], [Event::Lost, Event::Connected(_)]), "{events:?}");
}

#[test]
fn a_new_ip_port_is_proved_and_followed() {
    let mut link = Link::new();
    link.run_for(10);
    link.events();
    link.ip_port = SocketAddr::from(([10, 0, 0, 2], 6000));
    link.run_for(10_000);
    assert_eq!(link.events(), [Event::Rebound]);
    assert_eq!(link.reasons, [DropReason::SpoofedSource]);
    let address = link.session.address();
    let slot = link.sessions.find(COMTREE, address).unwrap();
    assert_eq!(link.sessions.get(slot).unwrap().ip_port(), link.ip_port);
}

#[test]
fn a_leave_is_answered_or_given_up() {
    for lost in [0, 10] {
        let mut link = Link::new();
        link.run_for(10);
        link.session.leave();
        link.lose_up = vec![true; lost];
        link.run_for(5_000);
        assert_eq!(link.session.state(), State::Closed);
        assert_eq!(link.session.poll_timeout(), None);
        assert_eq!(link.sessions.live(), u32::from(lost > 0), "a lost leave expires later");
    }
}

#[test]
fn a_full_table_refuses_and_the_participant_asks_later() {
    let mut link = Link::new();
    link.sessions = sessions(1, 1);
    link.run_for(10);
    let mut other = Link::new();
    std::mem::swap(&mut link.sessions, &mut other.sessions);
    other.ip_port = SocketAddr::from(([10, 0, 0, 9], 1));
    other.run_for(1_000);
    assert_eq!(other.events().last(), Some(&Event::Refused(RefusedReason::Full)));
    // The first one is gone by then.
    other.run_for(20_000);
    assert!(matches!(other.events().last(), Some(Event::Connected(_))));
}

#[test]
fn strangers_get_no_more_than_they_send() {
    let mut link = Link::new();
    link.lose_down = vec![true; 1_000];
    link.run_for(120_000);
    assert_eq!(link.sessions.live(), 0);
    assert!(link.bytes_down <= link.bytes_up, "{} > {}", link.bytes_down, link.bytes_up);
}

#[test]
fn a_stolen_proof_does_not_move_a_session() {
    let mut link = Link::new();
    link.run_for(10);
    // The participant proves its own new binding; a thief repeats the packet from its own.
    link.ip_port = SocketAddr::from(([10, 0, 0, 2], 6000));
    let address = link.session.address();
    let mut challenge = Answer::new();
    let header = canopy_wire::Header::new(Kind::Data, COMTREE, address, address);
    link.sessions.challenge(link.now, link.ip_port, &header, 100, &mut challenge);
    link.session.handle_datagram(link.now, challenge.bytes(), |_| ()).unwrap();
    let mut out = [0; 1500];
    let len = link.session.poll_transmit(link.now, &mut out).unwrap();
    let packet = Packet::new_checked(&out[..len]).unwrap();
    assert_eq!(packet.header().kind, Kind::Rebind);
    let thief = SocketAddr::from(([66, 6, 6, 6], 1));
    let stolen = link.sessions.handle(link.now, thief, &packet, &mut Answer::new());
    assert_eq!(stolen, Err(DropReason::BadCookie));
}

#[test]
fn a_relay_of_another_version_is_understood_to_refuse() {
    for version in [canopy_wire::VERSION, 0xC9] {
        let mut link = Link::new();
        let mut out = [0; 1500];
        link.session.poll_transmit(link.now, &mut out).unwrap();
        let nonce = u64::from_be_bytes(out[20..28].try_into().unwrap());
        let reason = RefusedReason::Version;
        let refused = canopy_wire::Refused { nonce, reason };
        let len = refused.encode(Comtree(0), &mut out).unwrap();
        out[0] = version;
        link.session.handle_datagram(link.now, &out[..len], |_| ()).unwrap();
        assert_eq!(link.events(), [Event::Refused(reason)]);
    }
}

#[test]
fn challenges_do_not_keep_a_dead_session_alive() {
    let mut link = Link::new();
    link.run_for(10);
    link.events();
    // The relay restarts, and another participant gets this one's address.
    link.sessions = sessions(2, 4);
    let mut other = Link::new();
    std::mem::swap(&mut link.sessions, &mut other.sessions);
    other.ip_port = SocketAddr::from(([10, 0, 0, 9], 1));
    other.now = link.now;
    other.run_for(10);
    assert_eq!(other.session.address(), link.session.address());
    std::mem::swap(&mut link.sessions, &mut other.sessions);
    link.run_for(9_500);
    let events = link.events();
    assert!(events.contains(&Event::Lost), "{events:?}");
    assert!(matches!(events.last(), Some(Event::Connected(_))), "{events:?}");
}
