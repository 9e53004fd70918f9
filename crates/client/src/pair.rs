//! For tests: a session and the relay's side of it, joined by memory.

use canopy_session::{
    Answer, Keyring, PacketsPerKey, Session, SessionConfig, SessionLimits, Sessions,
    SessionsConfig, State, Terms,
};
use canopy_wire::{
    Address, Comtree, Downlink, Kind, MAX_DATAGRAM, Packet, SAFE_DATAGRAM, Sealed, Suite, Time,
};
use std::net::SocketAddr;

pub(crate) const COMTREE: Comtree = Comtree(1);

pub(crate) struct Pair {
    pub(crate) session: Session,
    relay: Sessions,
}

impl Pair {
    pub(crate) fn new() -> Pair {
        let limits = SessionLimits::default();
        let config = SessionsConfig {
            max_sessions: 1,
            thread: 0,
            threads: 1,
            unix_zero: 0,
            log_keys: false,
            packets_per_key: PacketsPerKey::PROTOCOL,
            limits,
        };
        let mut pair = Pair {
            session: Session::new(SessionConfig::new(COMTREE, [3; 16])),
            relay: Sessions::new(config, Keyring::new([1; 16]), &[2; 16]),
        };
        let mut out = [0; MAX_DATAGRAM];
        while pair.session.state() != State::Connected {
            let len = pair.session.poll_transmit(Time::ZERO, &mut out).unwrap();
            let mut answer = pair.answer(&out[..len]);
            pair.session.handle_datagram(Time::ZERO, &mut answer, |_| ()).unwrap();
        }
        pair
    }

    fn answer(&mut self, datagram: &[u8]) -> Vec<u8> {
        let packet = Packet::new_checked(datagram).unwrap();
        let mut answer = Answer::new();
        if packet.header().kind == Kind::Hello {
            self.relay.hello(Time::ZERO, path(), &packet, &mut answer).unwrap();
            return answer.bytes().to_vec();
        }
        let (connect, proof) = self.relay.prove(Time::ZERO, path(), &packet).unwrap();
        let knock = self.relay.knock(&connect).unwrap();
        let terms = Terms {
            address: Address::unicast(1, 64),
            suite: Suite::Aes128Gcm,
            downlink: Downlink::Member,
            max_datagram: SAFE_DATAGRAM as u16,
            features: 0,
        };
        let session = self.relay.open(Time::ZERO, path(), proof, knock, &terms).unwrap();
        self.relay.welcome(session).unwrap().to_vec()
    }

    /// What the relay reads in a datagram of the session's.
    pub(crate) fn read(&mut self, datagram: &[u8]) -> Vec<u8> {
        let mut datagram = datagram.to_vec();
        let Sealed { session, .. } = Sealed::of(&datagram).unwrap();
        self.relay.unseal(path(), session, &mut datagram).unwrap().to_vec()
    }
}

fn path() -> canopy_wire::Path {
    SocketAddr::from(([127, 0, 0, 1], 1)).into()
}
