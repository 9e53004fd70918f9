//! An ip:port that several participants share, as browsers do behind a gateway.

use canopy_wire::{Hello, Packet};
use rand_chacha::ChaCha8Rng;
use std::collections::BTreeMap;
use std::net::SocketAddr;

/// The gateway's ip:port.
const GATEWAY: ([u8; 4], u16) = ([198, 51, 100, 1], 4040);

/// What the gateway knows of those behind it.
pub(crate) struct Gateway {
    pub(crate) rng: ChaCha8Rng,
    /// By the nonce of each handshake: whose it is.
    handshakes: BTreeMap<u64, usize>,
}

impl Gateway {
    pub(crate) fn new(rng: ChaCha8Rng) -> Gateway {
        Gateway { rng, handshakes: BTreeMap::new() }
    }

    pub(crate) fn ip_port() -> SocketAddr {
        SocketAddr::from(GATEWAY)
    }

    /// A participant sends a datagram: perhaps it greets.
    pub(crate) fn note(&mut self, participant: usize, datagram: &[u8]) {
        let hello = Packet::new_checked(datagram).ok().and_then(|it| Hello::decode(&it).ok());
        if let Some(Hello { nonce }) = hello {
            self.handshakes.insert(nonce, participant);
        }
    }

    /// Who has shaken hands with this nonce.
    pub(crate) fn whose(&self, nonce: u64) -> Option<usize> {
        self.handshakes.get(&nonce).copied()
    }
}

#[cfg(test)]
mod tests {
    use crate::config::SimConfig;
    use crate::scenario::Scenario;

    #[test]
    fn in_some_of_the_seeds_that_tests_run_participants_share_an_ip_port() {
        let sharing = |seed: &u64| {
            let scenario = Scenario::draw(&SimConfig::new(*seed));
            (0..scenario.participants).filter(|number| scenario.shares(*number)).count() >= 2
        };
        assert!((0..40).filter(sharing).count() >= 4);
    }
}
