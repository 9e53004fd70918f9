//! Whose ip:port is proved for which handshake: only then a session may be opened, and told of.

use crate::conduct::Nonce;
use canopy_wire::{Connect, Connected, Kind, Packet};
use std::collections::{BTreeSet, VecDeque};
use std::net::SocketAddr;

/// Handshakes that are remembered: far more than are under way, or have their answer repeated.
const MAX_PROVED: usize = 1 << 14;

/// The handshakes in which an ip:port brought back a cookie that it had been sent.
#[derive(Debug, Default)]
pub(super) struct Proofs {
    proved: BTreeSet<(Nonce, SocketAddr)>,
    /// The same, the longest known first.
    in_order: VecDeque<(Nonce, SocketAddr)>,
    /// How many there were.
    handshakes: u64,
    /// The sessions that were opened in this turn, and whose connect is not among the proved yet.
    unproved: BTreeSet<Nonce>,
}

impl Proofs {
    /// Who was sent a cookie has brought it back in this packet.
    pub(super) fn brought_back(&mut self, from: SocketAddr, packet: &[u8]) {
        let packet = Packet::new_checked(packet).ok();
        let connect = packet.filter(|packet| packet.header().kind == Kind::Connect);
        if let Some(Ok(Connect { nonce, .. })) = connect.as_ref().map(Connect::decode) {
            self.unproved.remove(&nonce);
            if self.proved.insert((nonce, from)) {
                self.in_order.push_back((nonce, from));
                self.handshakes += 1;
            }
            if self.in_order.len() > MAX_PROVED
                && let Some(oldest) = self.in_order.pop_front()
            {
                self.proved.remove(&oldest);
            }
        }
    }

    /// A session was opened.
    pub(super) fn opened(&mut self, nonce: Nonce) {
        let of_it = (nonce, SocketAddr::from(([0; 4], 0)))..;
        let first = self.proved.range(of_it).next();
        if first.is_none_or(|(proved, _)| *proved != nonce) {
            self.unproved.insert(nonce);
        }
    }

    /// Whether an ip:port may be sent this packet: of a session it is told only if it is proved.
    pub(super) fn may_be_told(&self, to: SocketAddr, packet: &Packet<'_>) -> bool {
        packet.header().kind != Kind::Connected
            || Connected::decode(packet).is_ok_and(|it| self.proved.contains(&(it.nonce, to)))
    }

    /// In how many handshakes an ip:port was proved: no more sessions were ever opened.
    pub(super) fn handshakes(&self) -> u64 {
        self.handshakes
    }

    /// A session that was opened although nobody had proved an ip:port.
    pub(super) fn broken(&self) -> Option<Nonce> {
        self.unproved.first().copied()
    }
}
