//! Which paths have proved themselves to which relay: only for those it may hold sessions.

use canopy_wire::{Connect, Cookie, Kind, Packet, Tag};
use std::collections::BTreeSet;
use std::net::SocketAddr;

/// What relays and those who greet them have sent each other.
#[derive(Default)]
pub(crate) struct Proofs {
    cookies: BTreeSet<(usize, SocketAddr, Tag)>,
    /// By relay: who has brought back a cookie, and in which handshake.
    proved: BTreeSet<(usize, SocketAddr, u64)>,
}

impl Proofs {
    /// A relay sends a datagram.
    pub(crate) fn sent(&mut self, relay: usize, to: SocketAddr, bytes: &[u8]) {
        if let Some(Ok(Cookie { cookie, .. })) =
            packet_of(Kind::Cookie, bytes).as_ref().map(Cookie::decode)
        {
            self.cookies.insert((relay, to, cookie));
        }
    }

    /// A datagram arrives at a relay.
    pub(crate) fn arrived(&mut self, relay: usize, from: SocketAddr, bytes: &[u8]) {
        if let Some(Ok(Connect { nonce, cookie, .. })) =
            packet_of(Kind::Connect, bytes).as_ref().map(Connect::decode)
            && self.cookies.contains(&(relay, from, cookie))
        {
            self.proved.insert((relay, from, nonce));
        }
    }

    /// A relay has opened so many sessions in all its lives, and holds so many.
    ///
    /// # Errors
    /// They are more than were proved to it.
    pub(crate) fn check(&self, relay: usize, opened: u64, held: u32) -> Result<(), String> {
        let proved = || self.proved.iter().filter(|(at, ..)| *at == relay);
        let paths: BTreeSet<SocketAddr> = proved().map(|(_, from, _)| *from).collect();
        let (handshakes, paths) = (proved().count(), paths.len());
        if opened > handshakes as u64 || held as usize > paths {
            return Err(format!(
                "relay {relay} opened {opened} sessions and holds {held}, where {handshakes} handshakes \
                 and {paths} paths were proved"
            ));
        }
        Ok(())
    }
}

/// The packet in a datagram, if it is of this kind; kinds of the handshake are never sealed.
fn packet_of(kind: Kind, bytes: &[u8]) -> Option<Packet<'_>> {
    let packet = Packet::new_checked(bytes).ok()?;
    (packet.header().kind == kind).then_some(packet)
}

#[cfg(test)]
mod tests {
    use super::*;
    use canopy_wire::Comtree;

    #[test]
    fn sessions_that_were_not_proved_are_found() {
        let (one, other) =
            (SocketAddr::from(([10, 0, 0, 1], 1)), SocketAddr::from(([10, 0, 0, 2], 1)));
        let mut out = [0; 200];
        let cookie = Cookie { nonce: 7, cookie: [3; 16], relay_key: [0; 32] };
        let len = cookie.encode(Comtree(1), &mut out).unwrap();
        let mut proofs = Proofs::default();
        proofs.sent(4, one, &out[..len]);
        let connect = |nonce| Connect { nonce, cookie: [3; 16], message: &[1; 100] };
        let len = connect(7).encode(&mut out).unwrap();
        assert!(proofs.check(4, 1, 0).is_err(), "nothing is proved");
        for (relay, from) in [(4, other), (5, one)] {
            proofs.arrived(relay, from, &out[..len]);
            assert!(proofs.check(relay, 1, 0).is_err(), "it was another's cookie");
        }
        (0..2).for_each(|_| proofs.arrived(4, one, &out[..len]));
        assert_eq!(proofs.check(4, 1, 1), Ok(()));
        assert!(proofs.check(4, 2, 1).is_err());
        let len = connect(8).encode(&mut out).unwrap();
        proofs.arrived(4, one, &out[..len]);
        assert_eq!(proofs.check(4, 2, 1), Ok(()));
        assert!(proofs.check(4, 2, 2).is_err());
    }
}
