//! A [`Session`] that is held to its promises at every call.

use canopy_session::{Event, Session, SessionConfig, SessionError, State, Update};
use canopy_wire::{
    Address, Comtree, Flags, Kind, Level, MAX_DATAGRAM, MAX_UPDATE, Packet, Time, WireError,
};

/// What a participant sends besides updates.
const SAID: [Kind; 6] =
    [Kind::Hello, Kind::Connect, Kind::Keepalive, Kind::Subscribe, Kind::Leave, Kind::Rebind];
/// A rebind, a keepalive and a subscribe; no other state has more to say at once.
const MAX_PACKETS_AT_ONCE: usize = 3;

pub(crate) struct Participant {
    pub(crate) session: Session,
    comtree: Comtree,
    closed: bool,
}

impl Participant {
    pub(crate) fn new(comtree: Comtree, seed: u8) -> Participant {
        let session = Session::new(SessionConfig { comtree, seed: [seed; 16] });
        Participant { session, comtree, closed: false }
    }

    /// Everything that it wants sent at `now`.
    pub(crate) fn say(&mut self, now: Time) -> Vec<Vec<u8>> {
        let is_due = self.session.poll_timeout().is_some_and(|at| at <= now);
        let mut said = Vec::new();
        let mut out = [0; 2 * MAX_DATAGRAM];
        while let Some(len) = self.session.poll_transmit(now, &mut out) {
            assert!(is_due, "a packet before its time");
            assert!(len <= MAX_DATAGRAM, "a packet of {len} bytes");
            let packet = Packet::new_checked(&out[..len]).unwrap();
            let header = packet.header();
            assert!(SAID.contains(&header.kind) && header.comtree == self.comtree, "{header:?}");
            said.push(out[..len].to_vec());
            assert!(said.len() <= MAX_PACKETS_AT_ONCE, "no end of packets");
        }
        let (state, next) = (self.session.state(), self.session.poll_timeout());
        assert_eq!(next.is_none(), state == State::Closed);
        assert!(next.is_none_or(|at| at > now), "{state:?} has said everything and is due again");
        self.hear_events();
        said
    }

    /// Hears a datagram. Returns the updates in it.
    pub(crate) fn hear(&mut self, now: Time, datagram: &[u8]) -> Result<usize, WireError> {
        let before = self.standing();
        let mut updates = 0;
        let deliver = |update: Update<'_>| {
            assert!(update.payload.len() < MAX_DATAGRAM);
            updates += 1;
        };
        let heard = self.session.handle_datagram(now, datagram, deliver);
        assert!(updates == 0 || before.0 == State::Connected, "an update outside of a session");
        if heard.is_err() {
            let fresh = self.session.poll_event();
            assert!(updates == 0 && fresh.is_none(), "{fresh:?} of a datagram that is wrong");
            assert_eq!(self.standing(), before, "changed by a datagram that is wrong");
        }
        self.hear_events();
        heard.map(|()| updates)
    }

    /// The packet of an update; `None` if it cannot be published.
    pub(crate) fn publish(
        &self,
        dst: Address,
        (level, flags): (Level, Flags),
        payload: &[u8],
    ) -> Option<Vec<u8>> {
        let mut out = vec![0; 2 * MAX_DATAGRAM];
        match self.session.publish(dst, level, flags, payload, &mut out) {
            Ok(len) => out.truncate(len),
            Err(SessionError::NotConnected) => {
                assert_ne!(self.session.state(), State::Connected);
                return None;
            }
            Err(error) => {
                assert_eq!(error, SessionError::TooLong(payload.len()));
                assert!(payload.len() > MAX_UPDATE);
                return None;
            }
        }
        let packet = Packet::new_checked(&out).unwrap();
        assert_eq!((packet.payload(), packet.header().dst), (payload, dst));
        Some(out)
    }

    pub(crate) fn leave(&mut self) {
        self.session.leave();
        assert!(matches!(self.session.state(), State::Leaving | State::Closed));
        self.hear_events();
    }

    /// Where it stands, as far as it shows.
    fn standing(&self) -> (State, Address, Option<Time>, usize) {
        let session = &self.session;
        (session.state(), session.address(), session.poll_timeout(), session.subscriptions())
    }

    fn hear_events(&mut self) {
        while let Some(event) = self.session.poll_event() {
            assert!(!self.closed, "{event:?} of a session that was left");
            self.closed = event == Event::Closed;
        }
        assert_eq!(self.closed, self.session.state() == State::Closed);
    }
}
