//! The relay's side of sessions: the table of participants, and the answers given without state.
//!
//! Before a path has brought back a cookie it costs no memory and is sent no more bytes than
//! it sent. Never sends by itself: every call fills at most one [`Answer`].

use crate::tag::{KeyedState, Keyring, equal, rebind_proof};
use canopy_wire::{
    Address, Challenge, Comtree, Connect, Connected, Cookie, DropReason, Hello, Keepalive, Kind,
    Leave, LeaveReason, Packet, Path, Rebind, Refused, RefusedReason, Tag, Time,
};
use core::hash::BuildHasher;
use core::time::Duration;
use hashbrown::HashTable;
use std::collections::VecDeque;

/// The number of a session's place in the table.
pub type SessionIndex = u32;

/// How long things live.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionLimits {
    /// A session ends after so long without a packet from its participant.
    pub lifetime: Duration,
    /// Participants are asked to send a keepalive this often.
    pub keepalive: Duration,
    /// A subscription ends after so long without a refresh.
    pub subscription: Duration,
}

impl Default for SessionLimits {
    fn default() -> SessionLimits {
        SessionLimits {
            lifetime: Duration::from_secs(10),
            keepalive: Duration::from_secs(2),
            subscription: Duration::from_secs(60),
        }
    }
}

/// What a table of sessions is made from.
#[derive(Clone, Debug)]
pub struct SessionsConfig {
    /// The most sessions at a time, in this table.
    pub max_sessions: u32,
    /// How long things live.
    pub limits: SessionLimits,
}

/// One participant whose return path is proved. What every packet is checked by, and changes, is
/// in the first cache line: between two packets of a participant the memory is seldom near.
#[derive(Clone, Debug)]
#[repr(C, align(64))]
struct Slot {
    heard: Time,
    path: Path,
    live: bool,
    nonce: u64,
    opened: Time,
    secret: Tag,
}

const _: () = assert!(core::mem::offset_of!(Slot, live) < 64);

/// A reply to whom a datagram came from; empty when there is none.
#[derive(Clone, Debug)]
pub struct Answer {
    bytes: [u8; Answer::ROOM],
    len: usize,
}

impl Answer {
    const ROOM: usize = 96;

    /// No reply yet.
    pub const fn new() -> Answer {
        Answer { bytes: [0; Answer::ROOM], len: 0 }
    }

    /// The datagram to send; empty for none.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    fn write<E>(&mut self, encode: impl FnOnce(&mut [u8]) -> Result<usize, E>) {
        self.len = encode(&mut self.bytes).unwrap_or(0);
    }
}

impl Default for Answer {
    fn default() -> Answer {
        Answer::new()
    }
}

/// A session that is no more: what else hung on it must go too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct Ended(pub SessionIndex);

/// The participants of one data thread.
///
/// It knows sessions alone: who may join what, and under which address, its owner decides and
/// hands in.
pub struct Sessions {
    limits: SessionLimits,
    max_sessions: u32,
    keys: Keyring,
    slots: Vec<Slot>,
    /// Places that were in use, the longest free first.
    free: VecDeque<SessionIndex>,
    by_path: HashTable<SessionIndex>,
    hash: KeyedState,
    live: u32,
    sweep: SessionIndex,
}

impl Sessions {
    /// An empty table. `table_key` seeds the index by path. The slots' memory is reserved now
    /// and touched as sessions come; the index grows with them.
    pub fn new(config: SessionsConfig, keys: Keyring, table_key: &Tag) -> Sessions {
        let max = config.max_sessions as usize;
        Sessions {
            limits: config.limits,
            max_sessions: config.max_sessions,
            keys,
            slots: Vec::with_capacity(max),
            free: VecDeque::with_capacity(max),
            by_path: HashTable::new(),
            hash: KeyedState::new(table_key),
            live: 0,
            sweep: 0,
        }
    }

    /// Makes and takes cookies with other keys from now on.
    pub fn replace_keys(&mut self, keys: Keyring) {
        self.keys = keys;
    }

    /// How many sessions there are.
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

    /// The session at a path, and the nonce that it was opened with.
    pub fn at(&self, path: Path) -> Option<(SessionIndex, u64)> {
        let hash = self.hash.hash_one(path);
        let same = |session: &SessionIndex| self.slots[*session as usize].path == path;
        let session = *self.by_path.find(hash, same)?;
        Some((session, self.slots[session as usize].nonce))
    }

    /// The check that every packet of a session passes: it came by the session's own path. Notes
    /// that the participant lives.
    ///
    /// # Errors
    /// [`DropReason::SpoofedSource`]: ask [`Sessions::challenge`]. [`DropReason::UnknownSource`]
    /// if there is no such session.
    pub fn admit(
        &mut self,
        now: Time,
        from: Path,
        session: SessionIndex,
    ) -> Result<(), DropReason> {
        let slot = self.slots.get_mut(session as usize).filter(|slot| slot.live);
        let slot = slot.ok_or(DropReason::UnknownSource)?;
        if slot.path != from {
            return Err(DropReason::SpoofedSource);
        }
        slot.heard = now;
        Ok(())
    }

    /// Answers a hello. Costs no memory.
    ///
    /// # Errors
    /// If it is malformed.
    pub fn hello(
        &self,
        now: Time,
        from: Path,
        packet: &Packet<'_>,
        answer: &mut Answer,
    ) -> Result<(), DropReason> {
        let nonce = Hello::decode(packet)?.nonce;
        let cookie = self.keys.connect_cookie(now, from, nonce);
        let comtree = packet.header().comtree;
        answer.write(|out| Cookie { nonce, cookie }.encode(comtree, out));
        Ok(())
    }

    /// Checks that a connect brings back a cookie of ours, so that its return path is proved.
    ///
    /// # Errors
    /// [`DropReason::BadCookie`], or that it is malformed.
    pub fn prove<'a>(
        &self,
        now: Time,
        from: Path,
        packet: &Packet<'a>,
    ) -> Result<Connect<'a>, DropReason> {
        let connect = Connect::decode(packet)?;
        let is_ours = self.keys.accepts_connect(now, from, connect.nonce, &connect.cookie);
        is_ours.then_some(connect).ok_or(DropReason::BadCookie)
    }

    /// Opens a session at a path that has none; `None` if every place is taken.
    pub fn open(&mut self, now: Time, path: Path, nonce: u64) -> Option<SessionIndex> {
        let fresh = self.high_water();
        let session = if fresh < self.max_sessions { fresh } else { self.free.pop_front()? };
        let secret = self.keys.session_secret(now, path, nonce);
        let slot = Slot { path, nonce, secret, opened: now, heard: now, live: true };
        if session == fresh {
            self.slots.push(slot);
        } else {
            self.slots[session as usize] = slot;
        }
        self.index(session);
        self.live += 1;
        Some(session)
    }

    /// Answers a connect whose session is open.
    pub fn connected(
        &self,
        session: SessionIndex,
        comtree: Comtree,
        address: Address,
        answer: &mut Answer,
    ) {
        let Some(slot) = self.slot(session) else { return };
        let millis = |d: Duration| u32::try_from(d.as_millis()).unwrap_or(u32::MAX);
        let connected = Connected {
            nonce: slot.nonce,
            address,
            lifetime_ms: millis(self.limits.lifetime),
            keepalive_ms: millis(self.limits.keepalive),
            subscription_ms: millis(self.limits.subscription),
            secret: slot.secret,
        };
        answer.write(|out| connected.encode(comtree, out));
    }

    /// Answers a keepalive: to the address that it came from, or to nobody if there is no such
    /// session, so that the participant of a restarted relay joins again at once.
    ///
    /// # Errors
    /// If it is malformed.
    pub fn keepalive(
        packet: &Packet<'_>,
        known: bool,
        answer: &mut Answer,
    ) -> Result<(), DropReason> {
        let keepalive = Keepalive::decode(packet)?;
        let header = packet.header();
        let dst = if known { header.src } else { Address::UNSPECIFIED };
        answer.write(|out| keepalive.encode_ack(header.comtree, dst, out));
        Ok(())
    }

    /// Answers a packet whose source address belongs to another path: its sender may be the
    /// session's participant behind a new binding. No answer to a datagram shorter than it.
    pub fn challenge(&self, now: Time, from: Path, packet: &Packet<'_>, answer: &mut Answer) {
        let header = packet.header();
        if packet.datagram_len() >= Challenge::LEN && header.kind != Kind::Rebind {
            let cookie = self.keys.rebind_cookie(now, from, header.src);
            answer.write(|out| Challenge { cookie }.encode(header.comtree, header.src, out));
        }
    }

    /// Moves a session to a path that has proved both itself and the session. Returns the session
    /// that held the path before: it has lost it.
    ///
    /// # Errors
    /// [`DropReason::BadCookie`], [`DropReason::BadProof`], [`DropReason::UnknownSource`], or that
    /// the packet is malformed.
    pub fn rebind(
        &mut self,
        now: Time,
        from: Path,
        packet: &Packet<'_>,
        session: SessionIndex,
        answer: &mut Answer,
    ) -> Result<Option<Ended>, DropReason> {
        let Rebind { cookie, proof } = Rebind::decode(packet)?;
        let header = packet.header();
        let slot = self.slot(session).ok_or(DropReason::UnknownSource)?;
        if !self.keys.accepts_rebind(now, from, header.src, &cookie) {
            return Err(DropReason::BadCookie);
        }
        if !equal(&rebind_proof(&slot.secret, &cookie), &proof) {
            return Err(DropReason::BadProof);
        }
        let evicted = self.at(from).map(|(other, _)| other).filter(|other| *other != session);
        let ended = evicted.map(|other| self.end(other));
        self.unindex(session);
        let slot = &mut self.slots[session as usize];
        slot.path = from;
        slot.opened = now;
        slot.heard = now;
        self.index(session);
        let keepalive = Keepalive { stamp: 0 };
        answer.write(|out| keepalive.encode_ack(header.comtree, header.src, out));
        Ok(ended)
    }

    /// Ends a session. Its place is free from now on.
    pub fn end(&mut self, session: SessionIndex) -> Ended {
        self.unindex(session);
        self.slots[session as usize].live = false;
        self.free.push_back(session);
        self.live -= 1;
        Ended(session)
    }

    /// Since when the session at a path has held it.
    pub fn held_since(&self, path: Path) -> Option<Time> {
        self.at(path).map(|(session, _)| self.slots[session as usize].opened)
    }

    /// Ends the session at a path which another data thread's session has proved to hold since
    /// `since`, unless the one here is newer. Of two that are equally new, exactly one must win:
    /// `loses_ties` says whether the one here does not.
    pub fn end_older(&mut self, path: Path, since: Time, loses_ties: bool) -> Option<Ended> {
        let (session, _) = self.at(path)?;
        let opened = self.slots[session as usize].opened;
        (opened < since || opened == since && loses_ties).then(|| self.end(session))
    }

    /// Looks at up to `budget` places, starting where the last call stopped, and ends the first
    /// session found whose lifetime is over.
    pub fn expire(&mut self, now: Time, budget: &mut u32) -> Option<Ended> {
        while *budget > 0 && !self.slots.is_empty() {
            *budget -= 1;
            self.sweep = (self.sweep + 1) % self.high_water();
            let slot = &self.slots[self.sweep as usize];
            if slot.live && now.since(slot.heard) > self.limits.lifetime {
                return Some(self.end(self.sweep));
            }
        }
        None
    }

    fn slot(&self, session: SessionIndex) -> Option<&Slot> {
        self.slots.get(session as usize).filter(|slot| slot.live)
    }

    fn index(&mut self, session: SessionIndex) {
        let (slots, hash) = (&self.slots, &self.hash);
        let hash_of = |session: &SessionIndex| hash.hash_one(slots[*session as usize].path);
        self.by_path.insert_unique(hash_of(&session), session, hash_of);
    }

    fn unindex(&mut self, session: SessionIndex) {
        let hash = self.hash.hash_one(self.slots[session as usize].path);
        if let Ok(entry) = self.by_path.find_entry(hash, |found| *found == session) {
            entry.remove();
        }
    }
}

/// Tells whoever sent a connect why it is refused.
pub fn refuse(nonce: u64, comtree: Comtree, reason: RefusedReason, answer: &mut Answer) {
    answer.write(|out| Refused { nonce, reason }.encode(comtree, out));
}

/// Tells a participant that it has left.
pub fn left(comtree: Comtree, address: Address, answer: &mut Answer) {
    answer.write(|out| Leave::encode_left(comtree, address, out));
}

/// Tells a participant that its session ends, and why.
pub fn dismiss(comtree: Comtree, address: Address, reason: LeaveReason, answer: &mut Answer) {
    answer.write(|out| Leave { reason }.encode(comtree, Address::UNSPECIFIED, address, out));
}
