//! The keys of what is under way, so that the model learns which updates a lost datagram carried.

use super::machine;
use super::scenario::Scenario;
use crate::network::Direction;
use crate::world::updates_in;
use canopy_session::{LoggedKeys, PublicKey, Reader};
use std::collections::BTreeMap;

/// For how many of a wire's last sessions the keys are kept.
const MOST: usize = 3;

/// Opens what is sent on the wires.
pub(crate) struct Keys {
    /// Who calls or joins with which key.
    callers: BTreeMap<PublicKey, Caller>,
    /// By wire, the newest last: what opens the way up, and the way down.
    openers: Vec<Vec<[Reader; 2]>>,
}

#[derive(Clone, Copy)]
enum Caller {
    Relay(usize),
    Participant(usize),
}

impl Keys {
    pub(crate) fn new(scenario: &Scenario) -> Keys {
        let relays = 0..scenario.threads.len();
        let key = |relay| *machine::identity(relay).public();
        Keys {
            callers: relays.map(|relay| (key(relay), Caller::Relay(relay))).collect(),
            openers: scenario.wires.iter().map(|_| Vec::new()).collect(),
        }
    }

    /// A participant joins with this key.
    pub(crate) fn joins(&mut self, participant: usize, key: PublicKey) {
        self.callers.insert(key, Caller::Participant(participant));
    }

    /// The relay that has this key.
    pub(crate) fn relay(&self, key: &PublicKey) -> Option<usize> {
        match self.callers.get(key)? {
            Caller::Relay(relay) => Some(*relay),
            Caller::Participant(_) => None,
        }
    }

    /// A session has begun at a relay, or a link on the side that was called.
    pub(crate) fn opened(&mut self, scenario: &Scenario, relay: usize, keys: LoggedKeys) {
        let LoggedKeys { participant, from_participant, from_relay, .. } = keys;
        let (wire, pair) = match self.callers.get(&participant) {
            Some(Caller::Participant(number)) => (*number, [from_participant, from_relay]),
            Some(Caller::Relay(caller)) => match scenario.links.between(*caller, relay) {
                Some((link, Direction::Up)) => {
                    (scenario.wire_of_link(link), [from_participant, from_relay])
                }
                Some((link, Direction::Down)) => {
                    (scenario.wire_of_link(link), [from_relay, from_participant])
                }
                None => return,
            },
            None => return,
        };
        let openers = &mut self.openers[wire];
        openers.push(pair);
        if openers.len() > MOST {
            openers.remove(0);
        }
    }

    /// The updates in a datagram on a wire.
    pub(crate) fn updates_in(&self, wire: usize, direction: Direction, bytes: &[u8]) -> Vec<u64> {
        let way = usize::from(direction == Direction::Down);
        let opened = self.openers[wire].iter().rev().find_map(|pair| pair[way].peek(bytes));
        opened.map_or_else(|| updates_in(bytes), |opened| updates_in(&opened))
    }
}
