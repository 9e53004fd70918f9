//! The sessions that a relay has opened: their keys, and which of their packets it has taken.
//!
//! A session has a place on its data thread, so when that is given to the next, the one before has ended
//! for good. Some of those are kept, because what they were sent may be on its way still. So this grows
//! with the most sessions that there ever are at a time, and not with time.

use crate::conduct::Nonce;
use canopy_session::{LoggedKeys, PacketsPerKey};
use canopy_wire::{Address, Comtree, Downlink, Joined, Lane, Sealed, SessionId};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::SocketAddr;

/// Sessions of a place that are known: the one that is there, and those before it.
const KEPT: usize = 16;
/// How far behind the newest a packet may come (docs/wire.md).
const WINDOW: u64 = 1024;

/// A session, by when it was opened.
type Serial = u64;

/// All sessions that are known.
#[derive(Debug, Default)]
pub(super) struct Sessions {
    known: BTreeMap<Serial, Known>,
    opened: Serial,
    /// Those of each place, which stands for its numbers in all lanes; the latest last.
    of_place: BTreeMap<SessionId, VecDeque<Serial>>,
    /// The latest of each handshake.
    by_nonce: BTreeMap<Nonce, Serial>,
    /// The one that was given an address last.
    by_address: BTreeMap<(Comtree, Address), Serial>,
    /// By number: the one whose participant was told of it last.
    told: BTreeMap<SessionId, Serial>,
}

#[derive(Debug)]
struct Known {
    keys: LoggedKeys,
    taken: Taken,
    /// Where its participant is, once something of it was accepted.
    path: Option<SocketAddr>,
    reached: Reached,
}

/// How far a relay has come with what a session's participant seals.
#[derive(Clone, Copy, Debug)]
struct Reached {
    per_key: u64,
    /// The newest packet that came by the session's path.
    newest: u64,
}

/// What the relay told a participant of its session.
#[derive(Clone, Copy, Debug)]
pub(super) struct Agreed {
    pub(super) id: SessionId,
    pub(super) nonce: Nonce,
    pub(super) comtree: Comtree,
    pub(super) address: Address,
    pub(super) max_datagram: u16,
    pub(super) downlink: Downlink,
}

impl Agreed {
    pub(super) fn with(keys: &LoggedKeys) -> Agreed {
        let LoggedKeys { session: id, nonce, comtree, joined, .. } = *keys;
        let Joined { address, max_datagram, downlink, .. } = joined;
        Agreed { id, nonce, comtree, address, max_datagram, downlink }
    }
}

/// Numbers of packets that were taken, as far behind the newest as any may come.
#[derive(Debug, Default)]
struct Taken {
    numbers: BTreeSet<u64>,
}

impl Taken {
    /// A packet is taken. False if it was before, or is too old to be.
    fn take(&mut self, number: u64) -> bool {
        let newest = self.numbers.last().copied().unwrap_or(0).max(number);
        let first = (newest + 1).saturating_sub(WINDOW);
        while self.numbers.first().is_some_and(|number| *number < first) {
            self.numbers.pop_first();
        }
        number >= first && self.numbers.insert(number)
    }
}

impl Reached {
    fn new(per_key: PacketsPerKey) -> Reached {
        Reached { per_key: per_key.count(), newest: 0 }
    }

    /// A packet has come by the session's path. What is too far ahead for the keys at hand is not opened.
    fn came(&mut self, number: u64) {
        if number / self.per_key <= (self.newest + self.per_key / 2) / self.per_key {
            self.newest = self.newest.max(number);
        }
    }

    /// Whether a packet is older than all that the relay remembers, or than the older one of its two keys
    /// (docs/wire.md).
    fn is_too_late(&self, number: u64) -> bool {
        let oldest_key = self.newest.saturating_sub(self.per_key / 2) / self.per_key;
        number + WINDOW <= self.newest || number / self.per_key < oldest_key
    }
}

impl Sessions {
    /// The relay has opened a session. Returns the number and the nonce of the one that is forgotten for
    /// it, if any.
    pub(super) fn open(&mut self, keys: LoggedKeys) -> Option<(SessionId, Nonce)> {
        let serial = self.opened;
        self.opened += 1;
        self.by_nonce.insert(keys.nonce, serial);
        self.by_address.insert((keys.comtree, keys.joined.address), serial);
        let of_place = self.of_place.entry(place(keys.session)).or_default();
        of_place.push_back(serial);
        let ended = (of_place.len() > KEPT).then(|| of_place.pop_front()).flatten();
        let reached = Reached::new(keys.from_participant.packets_per_key());
        let known = Known { keys, taken: Taken::default(), path: None, reached };
        self.known.insert(serial, known);
        self.forget(ended?)
    }

    fn forget(&mut self, serial: Serial) -> Option<(SessionId, Nonce)> {
        let LoggedKeys { session, nonce, comtree, joined, .. } = self.known.remove(&serial)?.keys;
        remove(&mut self.told, &session, serial);
        remove(&mut self.by_address, &(comtree, joined.address), serial);
        remove(&mut self.by_nonce, &nonce, serial);
        Some((session, nonce))
    }

    /// Whether a session of this handshake is known.
    pub(super) fn has(&self, nonce: Nonce) -> bool {
        self.by_nonce.contains_key(&nonce)
    }

    /// The nonce of the session that was given an address last.
    pub(super) fn with_address(&self, comtree: Comtree, address: Address) -> Option<Nonce> {
        let latest = self.by_address.get(&(comtree, address))?;
        Some(self.known.get(latest)?.keys.nonce)
    }

    /// What is sealed in a datagram, and for which session.
    pub(super) fn unseal(
        &self,
        datagram: &[u8],
        from_relay: bool,
    ) -> Option<(&LoggedKeys, Vec<u8>)> {
        let (serial, read) = self.find(datagram, from_relay)?;
        Some((&self.known.get(&serial)?.keys, read))
    }

    /// A datagram of a session was read: what is sealed after it can be read, too. Returns whether it is
    /// the first of another key.
    pub(super) fn follow(
        &mut self,
        (session, nonce): (SessionId, Nonce),
        datagram: &[u8],
        from_relay: bool,
    ) -> bool {
        let Some(of_place) = self.of_place.get(&place(session)) else { return false };
        let mut is_first = false;
        for serial in of_place.iter().rev() {
            let Some(Known { keys, .. }) = self.known.get_mut(serial) else { continue };
            if (keys.session, keys.nonce) == (session, nonce) {
                let LoggedKeys { from_participant, from_relay: of_relay, .. } = keys;
                is_first |= if from_relay { of_relay } else { from_participant }.follow(datagram);
            }
        }
        is_first
    }

    fn find(&self, datagram: &[u8], from_relay: bool) -> Option<(Serial, Vec<u8>)> {
        let Sealed { session, .. } = Sealed::of(datagram)?;
        let mut of_place = self.of_place.get(&place(session))?.iter().rev();
        of_place.find_map(|serial| {
            let keys = &self.known.get(serial).filter(|one| one.keys.session == session)?.keys;
            let opener = if from_relay { &keys.from_relay } else { &keys.from_participant };
            Some((*serial, opener.peek(datagram)?))
        })
    }

    /// A participant's sealed packet has come from an ip:port: one that moves its session there if
    /// `is_rebind`. Whatever is accepted beside those has come by the session's path.
    pub(super) fn came(
        &mut self,
        from: SocketAddr,
        datagram: &[u8],
        (is_accepted, is_rebind): (bool, bool),
    ) {
        let Some((serial, _)) = self.find(datagram, false) else { return };
        let known = self.known.get_mut(&serial).zip(number_of(datagram));
        let Some((Known { path, reached, .. }, number)) = known else { return };
        if *path == Some(from) || is_accepted && !is_rebind {
            reached.came(number);
        }
        if is_accepted {
            *path = Some(from);
        }
    }

    /// Whether a participant's sealed packet comes too late for the relay to open it.
    pub(super) fn is_too_late(&self, datagram: &[u8]) -> bool {
        let known = self.find(datagram, false).and_then(|(serial, _)| self.known.get(&serial));
        known
            .zip(number_of(datagram))
            .is_some_and(|(known, number)| known.reached.is_too_late(number))
    }

    /// The relay has taken a participant's sealed packet. False if it had before, or if the packet is too
    /// old to tell.
    pub(super) fn take(&mut self, datagram: &[u8]) -> bool {
        let Some((serial, _)) = self.find(datagram, false) else { return true };
        let Some(known) = self.known.get_mut(&serial) else { return true };
        number_of(datagram).is_none_or(|number| known.taken.take(number))
    }

    /// A participant is told of its session, by the nonce of its handshake.
    pub(super) fn tell(&mut self, nonce: Nonce) -> Option<Agreed> {
        let serial = *self.by_nonce.get(&nonce)?;
        let agreed = Agreed::with(&self.known.get(&serial)?.keys);
        self.told.insert(agreed.id, serial);
        Some(agreed)
    }

    /// What was agreed with the latest session of a number whose participant was told.
    pub(super) fn agreed(&self, id: SessionId) -> Option<Agreed> {
        Some(Agreed::with(&self.known.get(self.told.get(&id)?)?.keys))
    }

    /// How many of each there are of what grows if anything does; packets last.
    #[cfg(test)]
    pub(super) fn sizes(&self) -> [usize; 6] {
        let of_places = self.of_place.values().map(VecDeque::len).sum();
        let taken = self.known.values().map(|known| known.taken.numbers.len()).sum();
        let [nonces, addresses] = [self.by_nonce.len(), self.by_address.len()];
        [self.known.len(), of_places, nonces, addresses, self.told.len(), taken]
    }
}

/// The number of a sealed packet, of which the lower half stands behind the session's. No run seals more.
fn number_of(datagram: &[u8]) -> Option<u64> {
    let low = datagram.get(4..)?.first_chunk()?;
    Some(u32::from_be_bytes(*low).into())
}

/// A session's place, on whichever data thread.
fn place(session: SessionId) -> SessionId {
    session.in_lane(Lane::CONTROL)
}

/// Removes what stands for a session that is forgotten, unless it stands for a later one.
fn remove<K: Ord>(map: &mut BTreeMap<K, Serial>, key: &K, serial: Serial) {
    if map.get(key) == Some(&serial) {
        map.remove(key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_packet_is_taken_once_and_none_that_is_too_old() {
        let mut taken = Taken::default();
        for number in [0, 3, 1, 2, 5_000, 5_001 - WINDOW, 4_999] {
            assert!(taken.take(number), "{number}");
            assert!(!taken.take(number), "{number} again");
        }
        assert!(!taken.take(5_000 - WINDOW), "it is too old to tell");
        (5_001..9_000).for_each(|number| assert!(taken.take(number)));
        assert_eq!(taken.numbers.len() as u64, WINDOW);
    }
}
