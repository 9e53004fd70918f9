//! One participant: a real session, and an application that wants groups and moves between relays.

use super::scenario::Habits;
use canopy_session::Session;
use canopy_wire::{Comtree, Group, Level, Time};
use rand::RngExt;
use rand_chacha::ChaCha8Rng;
use std::collections::BTreeMap;
use std::net::SocketAddr;

/// The highest level of an update.
pub(crate) const TOP_LEVEL: u8 = 3;

pub(crate) struct Participant {
    number: usize,
    pub(crate) comtree: Comtree,
    pub(crate) relay: usize,
    /// `None` while its application does not run.
    pub(crate) session: Option<Session>,
    pub(crate) ip_port: SocketAddr,
    /// When its session asked to be polled.
    pub(crate) wake_at: Option<Time>,
    pub(crate) wants: BTreeMap<Group, Level>,
    /// When its application started.
    pub(crate) since: Time,
    bindings: u16,
}

impl Participant {
    pub(crate) fn new(number: usize, comtree: Comtree, relay: usize) -> Participant {
        Participant {
            number,
            comtree,
            relay,
            session: None,
            ip_port: SocketAddr::from(([0, 0, 0, 0], 0)),
            wake_at: None,
            wants: BTreeMap::new(),
            since: Time::ZERO,
            bindings: 0,
        }
    }

    /// Takes an ip:port that no one ever had.
    pub(crate) fn rebind(&mut self) {
        self.bindings += 1;
        let [high, low] = (self.number as u16).to_be_bytes();
        let ip = [10, high, low, (1 + self.bindings % 200) as u8];
        self.ip_port = SocketAddr::from((ip, 20_000 + self.bindings));
    }

    /// Draws a change of what it wants: another group, one less, or another level.
    pub(crate) fn choose(&self, habits: &Habits, rng: &mut ChaCha8Rng) -> (Group, Option<Level>) {
        let group = Group::new(rng.random_range(1..=habits.groups));
        let level = Level(rng.random_range(0..=TOP_LEVEL));
        let held = self.wants.keys().nth(rng.random_range(0..self.wants.len().max(1)));
        match held {
            Some(held) if self.wants.len() >= habits.wants || rng.random_bool(0.3) => {
                (*held, rng.random_bool(0.3).then_some(level))
            }
            _ => (group, Some(level)),
        }
    }
}

/// Which participant is reached at an ip:port, if anyone is there.
pub(crate) fn participant_at(ip_port: SocketAddr) -> Option<usize> {
    match ip_port {
        SocketAddr::V4(v4) => match v4.ip().octets() {
            [10, high, low, _] => Some(usize::from(high) << 8 | usize::from(low)),
            _ => None,
        },
        SocketAddr::V6(_) => None,
    }
}
