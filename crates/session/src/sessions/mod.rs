//! The relay's side of sessions: the table of participants, and the answers given without state.
//!
//! Before a path has brought back a cookie it costs no memory and is sent no more bytes than
//! it sent. Never sends by itself: every call fills at most one [`Answer`].

mod answering;
mod holders;
mod links;
mod opening;
mod types;

use crate::answer::{Answer, REBIND_STAMP};
use crate::curve::PublicKey;
use crate::primitives::Identity;
use crate::seal::{OpenError, Opener, PacketsPerKey, Sealer};
use crate::secret::SeededRandom;
use crate::tag::{KeyedState, Keyring};
use canopy_wire::{
    Challenge, Comtree, DropReason, Header, Keepalive, Kind, Lane, Packet, Path, Rebind, SEAL_LEN,
    SessionId, Tag, Time,
};
use core::net::{Ipv4Addr, SocketAddr};
use core::time::Duration;
use hashbrown::HashTable;
use holders::Departures;
use std::collections::VecDeque;

pub use links::MAX_LINKS;
pub use opening::Knock;
pub use types::{Holder, LinkTraffic, LoggedKeys, Proof, SessionLimits, SessionsConfig, Terms};

/// The number of a session's place in the table.
pub type SessionIndex = u32;

/// One participant whose return path is proved. What every packet is checked by is in the first
/// cache line: between two packets of a participant the memory is seldom near.
#[derive(Clone, Debug)]
#[repr(C, align(64))]
struct Slot {
    path: Path,
    live: bool,
    /// Whether it is a link's, whose place stays the link's while that is down.
    is_link: bool,
    /// In which its packets are received; a neighbour chooses the lane for each.
    lane: Lane,
    heard: Time,
    /// The proof of its path: by the session's connect, or by a later rebind.
    proof: Proof,
    /// The nonce of its connect.
    nonce: u64,
    /// If it is a link's: what has passed over it since it came up.
    traffic: LinkTraffic,
}

const _: () = assert!(core::mem::offset_of!(Slot, live) < 64 && size_of::<Slot>() == 128);

impl Slot {
    /// The place of a link that was never up.
    fn of_link() -> Slot {
        let nowhere = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0));
        Slot {
            path: nowhere.into(),
            live: false,
            is_link: true,
            lane: Lane::CONTROL,
            heard: Time::ZERO,
            proof: Proof { at: Time::ZERO, nonce: 0 },
            nonce: 0,
            traffic: LinkTraffic::default(),
        }
    }
}

/// A session's keys, and what is seldom needed.
struct Keys {
    sealer: Sealer,
    opener: Opener,
    /// The number that packets to the other side carry: the session's own, but a link has one on
    /// each side.
    peer: SessionId,
    /// The answer to its connect, until a packet shows that it has arrived.
    welcome: Option<Box<[u8]>>,
    /// When it was last asked to prove another path.
    challenged: Option<Time>,
    /// The key that its participant, or the neighbour, is known by.
    participant: Option<PublicKey>,
    /// The comtree that it joined, if it shares its path with other sessions.
    shares: Option<Comtree>,
    /// When it was last told that somebody is gone.
    told_gone: Option<Time>,
}

/// Between challenges of one session: a copy of each of its packets may come by another path.
const CHALLENGE_PAUSE: Duration = Duration::from_millis(50);

/// A session that is no more: what else hung on it must go too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct Ended(pub SessionIndex);

/// The participants of one data thread.
///
/// It knows sessions alone: who may join what, and under which address, its owner decides and
/// hands in.
pub struct Sessions {
    config: SessionsConfig,
    keys: Keyring,
    slots: Vec<Slot>,
    /// By place: the keys of the session that lives there.
    secrets: Vec<Option<Keys>>,
    random: SeededRandom,
    /// Places that were in use, the longest free first.
    free: VecDeque<SessionIndex>,
    /// How many places are links'.
    links: u32,
    /// By path and [`Holder`].
    by_holder: HashTable<SessionIndex>,
    /// By path and the nonce of the connect.
    by_nonce: HashTable<SessionIndex>,
    hash: KeyedState,
    live: u32,
    sweep: SessionIndex,
    departures: Departures,
    /// When the last cookie was brought back.
    now: Time,
    key_log: VecDeque<LoggedKeys>,
}

impl Sessions {
    /// An empty table. `table_key` seeds the index by path. The slots' memory is reserved now
    /// and touched as sessions come; the index grows with them.
    pub fn new(config: SessionsConfig, keys: Keyring, table_key: &Tag) -> Sessions {
        let max = (config.max_sessions + MAX_LINKS) as usize;
        Sessions {
            config,
            keys,
            slots: Vec::with_capacity(max),
            secrets: Vec::with_capacity(max),
            random: SeededRandom::new(table_key, b"canopy handshakes"),
            free: VecDeque::with_capacity(max),
            links: 0,
            by_holder: HashTable::new(),
            by_nonce: HashTable::new(),
            hash: KeyedState::new(table_key),
            live: 0,
            sweep: 0,
            departures: Departures::new(),
            now: Time::ZERO,
            key_log: VecDeque::new(),
        }
    }

    /// Makes and takes cookies with other keys from now on.
    pub fn replace_keys(&mut self, keys: Keyring) {
        self.keys = keys;
    }

    /// Who the relay is.
    pub fn identity(&self) -> &Identity {
        self.keys.identity()
    }

    /// How many packets a key of its sessions seals.
    pub fn packets_per_key(&self) -> PacketsPerKey {
        self.config.packets_per_key
    }

    /// How many sessions there are, not counting links.
    pub fn live(&self) -> u32 {
        self.live
    }

    /// How many places have ever been in use; sessions are numbered below this.
    pub fn high_water(&self) -> u32 {
        self.slots.len() as u32
    }

    /// Where a session's datagrams go, if it lives.
    pub fn path(&self, session: SessionIndex) -> Option<Path> {
        self.slot(session).map(|slot| slot.path)
    }

    /// The key that a session's participant is known by.
    pub fn participant_key(&self, session: SessionIndex) -> Option<PublicKey> {
        self.secrets.get(session as usize)?.as_ref()?.participant
    }

    /// The number that a session's packets carry.
    pub fn id(&self, session: SessionIndex) -> SessionId {
        self.id_in(session, self.slots[session as usize].lane)
    }

    /// The number of whoever has this place and is received in this lane.
    fn id_in(&self, session: SessionIndex, lane: Lane) -> SessionId {
        SessionId::at(session, lane, self.config.thread, self.config.threads)
    }

    /// The place of the session with this number, if it is this thread's. A link has a number in each
    /// lane.
    fn find(&self, id: SessionId) -> Option<SessionIndex> {
        let place = id.place(self.config.threads);
        let slot = self.slot(place)?;
        let lane = if slot.is_link { id.lane() } else { slot.lane };
        (self.id_in(place, lane) == id).then_some(place)
    }

    /// The check that every packet of a session passes: it came by the session's own path.
    ///
    /// # Errors
    /// [`DropReason::SpoofedSource`]: ask [`Sessions::challenge`]. [`DropReason::UnknownSource`]
    /// if there is no such session.
    #[inline]
    pub fn admit(&self, from: Path, id: SessionId) -> Result<SessionIndex, DropReason> {
        let session = self.find(id).ok_or(DropReason::UnknownSource)?;
        let is_its_path = self.slots[session as usize].path == from;
        is_its_path.then_some(session).ok_or(DropReason::SpoofedSource)
    }

    /// The keys of a session that was opened, if they are to be told.
    pub fn poll_key_log(&mut self) -> Option<LoggedKeys> {
        self.key_log.pop_front()
    }

    /// Opens a sealed datagram of session `id` where it lies, and returns the packet in it. It may
    /// have come by another path than the session's: ask [`Sessions::admit`].
    ///
    /// # Errors
    /// [`DropReason::UnknownSource`], [`DropReason::Forged`] or [`DropReason::Replayed`].
    #[inline]
    pub fn unseal<'a>(
        &mut self,
        from: Path,
        id: SessionId,
        datagram: &'a mut [u8],
    ) -> Result<&'a mut [u8], DropReason> {
        let session = self.find(id).ok_or(DropReason::UnknownSource)?;
        let is_its_path = self.slots[session as usize].path == from;
        let keys = self.secrets[session as usize].as_mut().ok_or(DropReason::UnknownSource)?;
        let packet = keys.opener.open(datagram, is_its_path).map_err(|error| match error {
            OpenError::Forged => DropReason::Forged,
            OpenError::Replayed => DropReason::Replayed,
        })?;
        if is_its_path && keys.welcome.is_some() {
            keys.welcome = None;
        }
        let slot = &mut self.slots[session as usize];
        if slot.is_link {
            slot.traffic.opened += 1;
            slot.traffic.bytes_in += packet.len() as u64;
        }
        Ok(packet)
    }

    /// Seals the packet of `len` bytes at the front of `datagram` for a session. Returns the length
    /// of what is to be sent; `None` if there is no such session, or no room for the seal.
    #[inline]
    pub fn seal(
        &mut self,
        session: SessionIndex,
        datagram: &mut [u8],
        len: usize,
    ) -> Option<usize> {
        let keys = self.secrets.get_mut(session as usize)?.as_mut()?;
        let slot = &mut self.slots[session as usize];
        let mut peer = keys.peer;
        if slot.is_link {
            peer = peer.in_lane(lane_on_link(datagram));
        }
        datagram.get_mut(1..4)?.copy_from_slice(&peer.number().to_be_bytes()[1..]);
        if datagram.len() < len + SEAL_LEN {
            return None;
        }
        if slot.is_link {
            slot.traffic.sealed += 1;
            slot.traffic.bytes_out += (len + SEAL_LEN) as u64;
        }
        Some(keys.sealer.seal(datagram, len))
    }

    /// The Unix time in seconds.
    fn unix(&self, now: Time) -> u64 {
        self.config.unix_zero + now.as_nanos() / 1_000_000_000
    }

    fn path_stamp(&self, now: Time, id: SessionId, path: Path) -> u64 {
        self.keys.path_stamp(self.period(now), path, id)
    }

    /// Path stamps of this period and of the last are taken: keepalives come more often than that.
    fn period(&self, now: Time) -> u64 {
        let lifetime = self.config.limits.lifetime.as_nanos().max(1) as u64;
        now.as_nanos() / lifetime
    }

    /// Answers a packet of a session that is at another path: its sender may be the session's
    /// participant behind a new binding. No answer to a datagram shorter than it.
    pub fn challenge(&mut self, now: Time, from: Path, packet: &Packet<'_>, answer: &mut Answer) {
        let Header { kind, session: id, comtree, .. } = *packet.header();
        if packet.datagram_len() < Challenge::LEN || kind == Kind::Rebind {
            return;
        }
        let cookie = self.keys.rebind_cookie(now, from, id);
        // A neighbour whose path has changed calls anew.
        let session = self.find(id).filter(|session| !self.slots[*session as usize].is_link);
        let Some(session) = session else { return };
        let Some(Some(keys)) = self.secrets.get_mut(session as usize) else { return };
        if keys.challenged.is_none_or(|at| now.since(at) >= CHALLENGE_PAUSE) {
            keys.challenged = Some(now);
            let challenge = Challenge { cookie };
            answer.write_sealed(&mut keys.sealer, id, |out| challenge.encode(comtree, id, out));
        }
    }

    /// Moves a session to a path that has proved itself; the seal has proved the session. Returns which
    /// it is, and the one that held the path as it does now: that has lost it.
    ///
    /// # Errors
    /// [`DropReason::BadCookie`], [`DropReason::UnknownSource`],
    /// [`DropReason::Stale`] if the path was proved later by another, or that the packet is
    /// malformed.
    pub fn rebind(
        &mut self,
        now: Time,
        from: Path,
        packet: &Packet<'_>,
        answer: &mut Answer,
    ) -> Result<(SessionIndex, Option<Ended>), DropReason> {
        let Rebind { cookie } = Rebind::decode(packet)?;
        let Header { session: id, comtree, .. } = *packet.header();
        let session = self.find(id).ok_or(DropReason::UnknownSource)?;
        if self.slots[session as usize].is_link {
            return Err(DropReason::UnexpectedKind);
        }
        let made = self.keys.made_rebind(now, from, id, &cookie);
        let at = made.ok_or(DropReason::BadCookie)?;
        self.now = self.now.max(now);
        let slot = &self.slots[session as usize];
        let proof = Proof { at, nonce: slot.nonce };
        let own_proof = slot.proof;
        let holder = self.holder(session);
        let present = self.at(from, holder);
        if proof < own_proof || (present != Some(session) && self.is_stale(from, holder, proof)) {
            return Err(DropReason::Stale);
        }
        let evicted = present.filter(|present| *present != session);
        let ended = evicted.map(|other| self.end(other));
        self.unindex(session);
        if self.slots[session as usize].path != from {
            self.remember(session);
        }
        let slot = &mut self.slots[session as usize];
        slot.path = from;
        slot.proof = proof;
        slot.heard = now;
        self.index(session);
        let path_stamp = self.path_stamp(now, id, from);
        let moved = Keepalive { stamp: REBIND_STAMP, path_stamp };
        self.write_sealed(session, answer, |out| moved.encode_ack(comtree, id, out));
        Ok((session, ended))
    }

    /// Ends a session. Its place is free from now on; a link's stays the link's.
    pub fn end(&mut self, session: SessionIndex) -> Ended {
        if self.slots[session as usize].is_link {
            self.secrets[session as usize] = None;
            self.slots[session as usize].live = false;
            return Ended(session);
        }
        self.unindex(session);
        self.remember(session);
        self.secrets[session as usize] = None;
        self.slots[session as usize].live = false;
        self.free.push_back(session);
        self.live -= 1;
        Ended(session)
    }

    /// By which proof a session holds its path.
    pub fn proof(&self, session: SessionIndex) -> Option<Proof> {
        self.slot(session).map(|slot| slot.proof)
    }

    /// Looks at up to `budget` places, starting where the last call stopped, and ends the first
    /// session found whose lifetime is over.
    pub fn expire(&mut self, now: Time, budget: &mut u32) -> Option<Ended> {
        while *budget > 0 && !self.slots.is_empty() {
            *budget -= 1;
            self.sweep = (self.sweep + 1) % self.high_water();
            let slot = &self.slots[self.sweep as usize];
            if slot.live && now.since(slot.heard) > self.config.limits.lifetime {
                return Some(self.end(self.sweep));
            }
        }
        None
    }

    fn slot(&self, session: SessionIndex) -> Option<&Slot> {
        self.slots.get(session as usize).filter(|slot| slot.live)
    }
}

/// In which lane the neighbour receives the packet that is laid out in `datagram`.
#[inline]
fn lane_on_link(datagram: &[u8]) -> Lane {
    let is_of_updates = datagram.get(8) == Some(&(Kind::Updates as u8));
    let comtree = datagram.get(12..16).and_then(|bytes| bytes.first_chunk());
    match comtree {
        Some(comtree) if is_of_updates => Lane::of(Comtree(u32::from_be_bytes(*comtree))),
        _ => Lane::CONTROL,
    }
}
