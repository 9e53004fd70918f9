//! The keys of what is under way: so that the model learns which updates a lost datagram carried, and so
//! that every datagram is seen to be sealed as it must.

use super::machine;
use super::scenario::Scenario;
use crate::network::Direction;
use crate::world::updates_in;
use canopy_judge::{Secrets, Side};
use canopy_session::{LoggedKeys, PublicKey};
use canopy_wire::{Address, Comtree, Packet, Sealed};
use std::collections::BTreeMap;

/// For how many of a wire's last sessions the keys are kept.
const MOST: usize = 8;

/// Reads what is sent on the wires.
pub(crate) struct Keys {
    /// Who calls or joins with which key.
    callers: BTreeMap<PublicKey, Caller>,
    /// By wire, the newest last: who seals on the way up, and on the way down.
    sides: Vec<Vec<[Side; 2]>>,
    secrets: Secrets,
    /// How often a side went on with its next key, by wire.
    changed: Vec<u64>,
}

#[derive(Clone, Copy)]
enum Caller {
    Relay(usize),
    Participant(usize),
    /// Somebody who floods.
    Flooder,
}

impl Keys {
    pub(crate) fn new(scenario: &Scenario) -> Keys {
        let relays = 0..scenario.threads.len();
        let key = |relay| *machine::identity(relay).public();
        Keys {
            callers: relays.map(|relay| (key(relay), Caller::Relay(relay))).collect(),
            sides: scenario.wires.iter().map(|_| Vec::new()).collect(),
            secrets: Secrets::default(),
            changed: vec![0; scenario.wires.len()],
        }
    }

    /// A participant joins with this key.
    pub(crate) fn joins(&mut self, participant: usize, key: PublicKey) {
        self.callers.insert(key, Caller::Participant(participant));
    }

    /// Somebody who floods joins with this key.
    pub(crate) fn floods(&mut self, key: PublicKey) {
        self.callers.insert(key, Caller::Flooder);
    }

    /// The relay that has this key.
    pub(crate) fn relay(&self, key: &PublicKey) -> Option<usize> {
        match self.callers.get(key)? {
            Caller::Relay(relay) => Some(*relay),
            Caller::Participant(_) | Caller::Flooder => None,
        }
    }

    /// A session has begun at a relay, or a link on the side that was called.
    ///
    /// # Errors
    /// It has another's keys, or is nobody's.
    pub(crate) fn opened(
        &mut self,
        scenario: &Scenario,
        relay: usize,
        keys: LoggedKeys,
    ) -> Result<(), String> {
        self.secrets.opened(&keys)?;
        let LoggedKeys { participant, from_participant, from_relay, .. } = keys;
        let (wire, pair) = match self.callers.get(&participant) {
            Some(Caller::Participant(number)) => (*number, [from_participant, from_relay]),
            Some(Caller::Flooder) => return Ok(()),
            Some(Caller::Relay(caller)) => match scenario.links.between(*caller, relay) {
                Some((link, Direction::Up)) => {
                    (scenario.wire_of_link(link), [from_participant, from_relay])
                }
                Some((link, Direction::Down)) => {
                    (scenario.wire_of_link(link), [from_relay, from_participant])
                }
                None => return Err(format!("relay {relay} has a link that nobody planned")),
            },
            None => {
                return Err(format!("relay {relay} has opened a session that nobody asked for"));
            }
        };
        let sides = &mut self.sides[wire];
        sides.push(pair.map(Side::new));
        if sides.len() > MOST {
            sides.remove(0);
        }
        Ok(())
    }

    /// A datagram is sent on a wire, in this turn.
    ///
    /// # Errors
    /// Nobody can read it, or it is not sealed with a number of its own and later than all before.
    pub(crate) fn sent(
        &mut self,
        wire: usize,
        direction: Direction,
        turn: u64,
        bytes: &[u8],
    ) -> Result<(), String> {
        if Sealed::of(bytes).is_none() {
            return Ok(());
        }
        let mut sides = self.sides[wire].iter_mut().rev().map(|pair| &mut pair[way(direction)]);
        let Some(side) = sides.find(|side| side.read(bytes).is_some()) else {
            return Err("nobody can read what was sent".to_owned());
        };
        self.changed[wire] += u64::from(side.sends(turn, bytes)?);
        Ok(())
    }

    /// How often a side of a participant's session went on with its next key, and a side of a link.
    pub(crate) fn changed(&self, participants: usize) -> [u64; 2] {
        let (sessions, links) = self.changed.split_at(participants);
        [sessions, links].map(|wires| wires.iter().sum())
    }

    /// Seals a datagram anew under another number: so that this can be checked.
    pub(crate) fn seal_as(
        &self,
        wire: usize,
        direction: Direction,
        bytes: &[u8],
        number: u32,
    ) -> Option<Vec<u8>> {
        let sides = self.sides[wire].iter().rev().map(|pair| &pair[way(direction)]);
        sides.filter_map(|side| side.seal_as(bytes, number)).next()
    }

    /// The updates in a datagram on a wire.
    pub(crate) fn updates_in(&self, wire: usize, direction: Direction, bytes: &[u8]) -> Vec<u64> {
        self.read(wire, direction, bytes).map_or_else(|| updates_in(bytes), |it| updates_in(&it))
    }

    /// How many updates of a publisher are in a datagram on a wire. Those on other comtrees have its address, too.
    pub(crate) fn updates_of(
        &self,
        wire: usize,
        direction: Direction,
        bytes: &[u8],
        (comtree, src): (Comtree, Address),
    ) -> u64 {
        let opened = self.read(wire, direction, bytes);
        let packet = opened.as_deref().and_then(|opened| Packet::new_checked(opened).ok());
        let packet = packet.filter(|packet| packet.header().comtree == comtree);
        let updates = packet.and_then(|packet| packet.updates().ok()).into_iter().flatten();
        updates.filter(|update| update.src == src).count() as u64
    }

    fn read(&self, wire: usize, direction: Direction, bytes: &[u8]) -> Option<Vec<u8>> {
        let mut sides = self.sides[wire].iter().rev().map(|pair| &pair[way(direction)]);
        sides.find_map(|side| side.read(bytes))
    }
}

fn way(direction: Direction) -> usize {
    usize::from(direction == Direction::Down)
}
