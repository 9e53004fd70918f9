//! Whose addresses are: nobody is given one that others may still take for somebody else's, in
//! whichever of the relay's lives.

use canopy_session::{LoggedKeys, PublicKey};
use canopy_wire::{Address, Comtree, Time};
use std::collections::BTreeMap;
use std::time::Duration;

/// Who had each address last, and when they were given it.
#[derive(Debug)]
pub struct Seats {
    rest: Duration,
    owners: BTreeMap<(Comtree, Address), (PublicKey, Time)>,
}

impl Seats {
    /// The seats of a relay whose addresses rest for this long.
    pub fn new(rest: Duration) -> Seats {
        Seats { rest, owners: BTreeMap::new() }
    }

    /// The relay has opened a session.
    ///
    /// # Errors
    /// Its address was another's until a moment ago, or still is.
    pub fn opened(&mut self, now: Time, keys: &LoggedKeys) -> Result<(), String> {
        let LoggedKeys { comtree, participant, joined, .. } = keys;
        let seat = (*comtree, joined.address);
        let before = self.owners.insert(seat, (*participant, now));
        match before {
            Some((owner, since)) if owner != *participant && now.since(since) < self.rest => {
                let address = joined.address;
                Err(format!("{address} of comtree {} was given to another at {since}", comtree.0))
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use canopy_relay::{
        ADDRESS_REST, Budgets, ComtreeConfig, Gate, Mode, Places, Relay, RelayConfig, Siblings,
        TableLimits, UnixTime,
    };
    use canopy_session::{Identity, Keyring, PacketsPerKey, Session, SessionConfig, SessionLimits};
    use canopy_wire::SAFE_DATAGRAM;
    use std::net::SocketAddr;

    const COMTREE: Comtree = Comtree(1);

    /// The keys of somebody's session with a relay that counts none of its lives.
    pub(crate) fn joined(of: u8) -> LoggedKeys {
        let config = RelayConfig {
            budgets: Budgets::default(),
            gate: Gate::open(),
            mode: Mode::Immediate,
            comtrees: vec![ComtreeConfig::new(COMTREE, 1)],
            trust: None,
            origin: UnixTime(0),
            places: Places::new(2),
            max_sessions: 2,
            max_datagram: SAFE_DATAGRAM as u16,
            slow_suites: 0,
            address_rest: ADDRESS_REST,
            life: None,
            log_keys: true,
            packets_per_key: PacketsPerKey::PROTOCOL,
            limits: SessionLimits::default(),
            tables: TableLimits::default(),
            smallest_set: None,
        };
        let mut relay = Relay::new(config, Siblings::alone(), Keyring::new([1; 16]), &[2; 16]);
        let identity = Some(Identity::new([of; 32]));
        let config = SessionConfig { identity, ..SessionConfig::new(COMTREE, [of; 16]) };
        let (mut session, mut out) = (Session::new(config), [0; 1500]);
        let from = SocketAddr::from(([192, 0, 2, 7], 7));
        while let Some(len) = session.poll_transmit(Time::ZERO, &mut out) {
            relay.handle_datagram(Time::ZERO, from, &mut out[..len]);
            relay.transmit(Time::ZERO, |batch| {
                for transmit in batch.transmits() {
                    let mut sent: Vec<u8> = batch.parts(transmit).flatten().copied().collect();
                    session.handle_datagram(Time::ZERO, &mut sent, |_| ()).unwrap();
                }
            });
        }
        relay.poll_key_log().expect("it has joined")
    }

    #[test]
    fn an_address_that_goes_to_another_too_soon_is_found() {
        let mut seats = Seats::new(ADDRESS_REST);
        let at = |seconds: u64| Time::from_millis(seconds * 1000);
        assert_eq!(seats.opened(at(0), &joined(1)), Ok(()));
        assert_eq!(seats.opened(at(10), &joined(1)), Ok(()), "it came back");
        let error = seats.opened(at(609), &joined(2)).unwrap_err();
        assert!(error.contains("given to another at 10.0"), "{error}");
        assert_eq!(seats.opened(at(1209), &joined(1)), Ok(()), "it has rested");
    }
}
