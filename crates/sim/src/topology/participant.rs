//! One participant, and where it is reached.

use canopy_control::Owner;
use canopy_session::{Identity, Session, State};
use canopy_wire::{Address, Time};
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::Duration;

/// Somebody who is in a world, or is to be.
pub(crate) struct Participant {
    pub(crate) world: usize,
    pub(crate) owner: Owner,
    pub(crate) ip_port: SocketAddr,
    /// The relay that it speaks with.
    pub(crate) relay: usize,
    pub(crate) session: Option<Session>,
    /// Whether it wants to be in the world.
    pub(crate) is_wanted: bool,
    /// Whether it asks the controller all the time, because its relay seems to be gone.
    pub(crate) is_lost: bool,
    /// The address that it had last, until it leaves.
    pub(crate) address: Option<Address>,
    pub(crate) identity: Identity,
    pub(crate) wants: BTreeSet<u32>,
    pub(crate) acknowledged: BTreeSet<u32>,
    pub(crate) wake_at: Option<Time>,
    /// Whether the controller has prolonged its lease, and it has not planned yet when to ask for that again.
    pub(crate) is_renewed: bool,
    /// The next question that is not out of date.
    pub(crate) question: u64,
    /// By node: the time one way.
    pub(crate) delays: Vec<Duration>,
    /// The relays that it has measured, the nearest first.
    pub(crate) near: Vec<usize>,
}

impl Participant {
    pub(crate) fn new(number: usize, world: usize, seed: [u8; 32]) -> Participant {
        let [high, low] = (number as u16).to_be_bytes();
        let mut owner = [7; 16];
        owner[..2].copy_from_slice(&[high, low]);
        Participant {
            world,
            owner,
            ip_port: SocketAddr::from(([10, high, low, 1], 20_000)),
            relay: 0,
            session: None,
            is_wanted: false,
            is_lost: false,
            address: None,
            identity: Identity::new(seed),
            wants: BTreeSet::new(),
            acknowledged: BTreeSet::new(),
            wake_at: None,
            is_renewed: false,
            question: 0,
            delays: Vec::new(),
            near: Vec::new(),
        }
    }

    pub(crate) fn is_connected(&self) -> bool {
        self.session.as_ref().is_some_and(|session| session.state() == State::Connected)
    }
}

/// Which participant is reached there.
pub(crate) fn participant_at(ip_port: SocketAddr) -> Option<usize> {
    match ip_port {
        SocketAddr::V4(v4) => match v4.ip().octets() {
            [10, high, low, 1] => Some(usize::from(high) << 8 | usize::from(low)),
            _ => None,
        },
        SocketAddr::V6(_) => None,
    }
}
