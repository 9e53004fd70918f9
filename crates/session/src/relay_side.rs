//! The relay's side of sessions: the table of participants, and the answers given without state.
//!
//! Before an ip:port has brought back a cookie it costs no memory and is sent no more bytes than
//! it sent. Never sends by itself: every call fills at most one [`Answer`].

use crate::tag::{KeyedState, Keyring, equal, rebind_proof};
use canopy_wire::{
    Address, Challenge, Comtree, Connect, Connected, Cookie, DropReason, Header, Hello, Keepalive,
    Kind, Leave, LeaveReason, Packet, Rebind, Refused, RefusedReason, Suite, Tag, Time,
};
use core::hash::BuildHasher;
use core::net::SocketAddr;
use core::time::Duration;
use hashbrown::HashTable;
use std::collections::VecDeque;

/// The number of a session's place in the table; also half of its address.
pub type SlotIndex = u32;

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
    /// The comtrees that participants may join.
    pub comtrees: Vec<Comtree>,
    /// The site of all addresses given out.
    pub site: u16,
    /// The number of this data thread, below `shards`.
    pub shard: u16,
    /// How many data threads share the relay's address; an endpoint's number modulo this is its
    /// thread. At least 1.
    pub shards: u16,
    /// The most sessions at a time, on this data thread.
    pub max_sessions: u32,
    /// How long things live.
    pub limits: SessionLimits,
}

/// One participant whose return path is proved.
#[derive(Clone, Debug)]
pub struct Slot {
    ip_port: SocketAddr,
    comtree: Comtree,
    address: Address,
    nonce: u64,
    secret: Tag,
    heard: Time,
    live: bool,
    /// The number of the last subscribe packet that was applied; 0 before the first.
    pub subscribe_sequence: u32,
    /// Whether any of its changes was refused.
    pub subscribe_refused: bool,
}

impl Slot {
    /// Where its datagrams go.
    pub fn ip_port(&self) -> SocketAddr {
        self.ip_port
    }

    /// The comtree that it joined.
    pub fn comtree(&self) -> Comtree {
        self.comtree
    }

    /// Its unicast address.
    pub fn address(&self) -> Address {
        self.address
    }
}

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

/// What a session packet changed. Apply `ended` before `joined`: both may name one slot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[must_use]
pub struct Handled {
    /// A session that is no more.
    pub ended: Option<Ended>,
    /// A session that is new.
    pub joined: Option<SlotIndex>,
}

/// A session that is no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ended {
    /// Its place in the table, free from now on.
    pub slot: SlotIndex,
}

/// The table of participants of one data thread.
pub struct Sessions {
    config: SessionsConfig,
    keys: Keyring,
    slots: Vec<Slot>,
    /// Free places, longest free first: an address rests as long as it can before it is reused.
    free: VecDeque<SlotIndex>,
    by_ip_port: HashTable<SlotIndex>,
    hash: KeyedState,
    live: u32,
    sweep: SlotIndex,
    draining: bool,
}

impl Sessions {
    /// An empty table. `table_key` seeds the index by ip:port. The slots' memory is reserved now
    /// and touched as sessions come; the index grows with them.
    ///
    /// # Panics
    /// If `shards` is 0, or `max_sessions` sessions need more endpoint numbers than 16 bits have;
    /// [`Sessions::capacity`] tells how many fit.
    pub fn new(config: SessionsConfig, keys: Keyring, table_key: &Tag) -> Sessions {
        assert!(config.max_sessions <= Sessions::capacity(config.shards), "endpoints have 16 bits");
        let max = config.max_sessions as usize;
        Sessions {
            keys,
            slots: Vec::with_capacity(max),
            free: VecDeque::with_capacity(max),
            by_ip_port: HashTable::new(),
            hash: KeyedState::new(table_key),
            live: 0,
            sweep: 0,
            draining: false,
            config,
        }
    }

    /// The most sessions that one of `shards` data threads can give addresses to.
    pub const fn capacity(shards: u16) -> u32 {
        assert!(shards > 0, "a relay has at least one data thread");
        u16::MAX as u32 / shards as u32 - 1
    }

    /// How many sessions there are.
    pub fn live(&self) -> u32 {
        self.live
    }

    /// How many places have ever been in use; slots are numbered below this.
    pub fn high_water(&self) -> u32 {
        self.slots.len() as u32
    }

    /// The session in a place, if there is one.
    pub fn get(&self, slot: SlotIndex) -> Option<&Slot> {
        self.slots.get(slot as usize).filter(|slot| slot.live)
    }

    /// The session in a place, if there is one.
    pub fn get_mut(&mut self, slot: SlotIndex) -> Option<&mut Slot> {
        self.slots.get_mut(slot as usize).filter(|slot| slot.live)
    }

    /// The session with a unicast address in a comtree.
    pub fn find(&self, comtree: Comtree, address: Address) -> Option<SlotIndex> {
        let slot = self.slot_of(address)?;
        self.get(slot).filter(|found| found.comtree == comtree && found.address == address)?;
        Some(slot)
    }

    /// Takes no one new from now on.
    pub fn drain(&mut self) {
        self.draining = true;
    }

    /// The check that every packet of a session passes: its source address has a session, at this
    /// ip:port, on this comtree. Notes that the participant lives.
    ///
    /// # Errors
    /// [`DropReason::UnknownSource`], [`DropReason::UnknownComtree`],
    /// [`DropReason::ForeignComtree`] or [`DropReason::SpoofedSource`]; for the last, ask
    /// [`Sessions::challenge`].
    pub fn admit(
        &mut self,
        now: Time,
        from: SocketAddr,
        header: &Header,
    ) -> Result<SlotIndex, DropReason> {
        let index = self.slot_of(header.src);
        let slot = index.and_then(|index| self.slots.get_mut(index as usize));
        let Some(slot) = slot.filter(|slot| slot.live && slot.address == header.src) else {
            let known = self.config.comtrees.contains(&header.comtree);
            return Err(if known { DropReason::UnknownSource } else { DropReason::UnknownComtree });
        };
        if slot.ip_port != from {
            return Err(DropReason::SpoofedSource);
        }
        if slot.comtree != header.comtree {
            let known = self.config.comtrees.contains(&header.comtree);
            return Err(if known {
                DropReason::ForeignComtree
            } else {
                DropReason::UnknownComtree
            });
        }
        slot.heard = now;
        index.ok_or(DropReason::UnknownSource)
    }

    /// Answers a packet whose source address belongs to another ip:port: its sender may be the
    /// session's participant behind a new binding. No answer to a datagram shorter than it.
    pub fn challenge(
        &self,
        now: Time,
        from: SocketAddr,
        header: &Header,
        datagram_len: usize,
        answer: &mut Answer,
    ) {
        if datagram_len >= Challenge::LEN && header.kind != Kind::Rebind {
            let cookie = self.keys.rebind_cookie(now, from, header.src);
            answer.write(|out| Challenge { cookie }.encode(header.comtree, header.src, out));
        }
    }

    /// Handles a packet of the session protocol.
    ///
    /// # Errors
    /// Why it was dropped. An answer may be filled in all the same.
    pub fn handle(
        &mut self,
        now: Time,
        from: SocketAddr,
        packet: &Packet<'_>,
        answer: &mut Answer,
    ) -> Result<Handled, DropReason> {
        match packet.header().kind {
            Kind::Hello => self.hello(now, from, packet, answer),
            Kind::Connect => self.connect(now, from, packet, answer),
            Kind::Keepalive => self.keepalive(now, from, packet, answer),
            Kind::Leave => self.leave(now, from, packet, answer),
            Kind::Rebind => self.rebind(now, from, packet, answer),
            _ => Err(DropReason::UnexpectedKind),
        }
    }

    /// Ends the session at an ip:port, which another data thread's session has proved to hold now.
    pub fn end_at(&mut self, ip_port: SocketAddr) -> Option<Ended> {
        let slot = self.find_ip_port(ip_port)?;
        Some(self.end(slot))
    }

    /// Tells a session that the relay is going away.
    pub fn draining_notice(&self, slot: SlotIndex, answer: &mut Answer) {
        if let Some(slot) = self.get(slot) {
            let leave = Leave { reason: LeaveReason::Draining };
            answer.write(|out| leave.encode(slot.comtree, Address::UNSPECIFIED, slot.address, out));
        }
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

    fn hello(
        &self,
        now: Time,
        from: SocketAddr,
        packet: &Packet<'_>,
        answer: &mut Answer,
    ) -> Result<Handled, DropReason> {
        let hello = Hello::decode(packet)?;
        let comtree = packet.header().comtree;
        let cookie = self.keys.connect_cookie(now, from, hello.nonce);
        answer.write(|out| Cookie { nonce: hello.nonce, cookie }.encode(comtree, out));
        Ok(Handled::default())
    }

    fn connect(
        &mut self,
        now: Time,
        from: SocketAddr,
        packet: &Packet<'_>,
        answer: &mut Answer,
    ) -> Result<Handled, DropReason> {
        let connect = Connect::decode(packet)?;
        let comtree = packet.header().comtree;
        let nonce = connect.nonce;
        if !self.keys.accepts_connect(now, from, nonce, &connect.cookie) {
            return Err(DropReason::BadCookie);
        }
        if let Err((reason, why)) = self.may_connect(comtree, &connect) {
            answer.write(|out| Refused { nonce, reason }.encode(comtree, out));
            return Err(why);
        }
        let mut handled = Handled::default();
        let existing = self.find_ip_port(from);
        let slot = match existing {
            // The participant sent connect twice: its first answer was lost or late.
            Some(slot) if self.slots[slot as usize].nonce == nonce => slot,
            _ => {
                handled.ended = existing.map(|slot| self.end(slot));
                let Some(slot) = self.open(now, from, comtree, nonce) else {
                    let reason = RefusedReason::Full;
                    answer.write(|out| Refused { nonce, reason }.encode(comtree, out));
                    return Err(DropReason::SessionsFull);
                };
                handled.joined = Some(slot);
                slot
            }
        };
        let slot = &self.slots[slot as usize];
        let millis = |d: Duration| u32::try_from(d.as_millis()).unwrap_or(u32::MAX);
        let connected = Connected {
            nonce,
            address: slot.address,
            lifetime_ms: millis(self.config.limits.lifetime),
            keepalive_ms: millis(self.config.limits.keepalive),
            subscription_ms: millis(self.config.limits.subscription),
            secret: slot.secret,
        };
        answer.write(|out| connected.encode(slot.comtree, out));
        Ok(handled)
    }

    fn may_connect(
        &self,
        comtree: Comtree,
        connect: &Connect<'_>,
    ) -> Result<(), (RefusedReason, DropReason)> {
        if self.draining {
            return Err((RefusedReason::Draining, DropReason::Draining));
        }
        if !self.config.comtrees.contains(&comtree) {
            return Err((RefusedReason::UnknownComtree, DropReason::UnknownComtree));
        }
        if connect.suite != Suite::None as u8 || !connect.token.is_empty() {
            return Err((RefusedReason::Credentials, DropReason::BadCredentials));
        }
        Ok(())
    }

    fn keepalive(
        &mut self,
        now: Time,
        from: SocketAddr,
        packet: &Packet<'_>,
        answer: &mut Answer,
    ) -> Result<Handled, DropReason> {
        let keepalive = Keepalive::decode(packet)?;
        let header = packet.header();
        let admitted = self.admit(now, from, header);
        let dst = match admitted {
            Ok(_) => header.src,
            // "I don't know you": the participant of a restarted relay rejoins at once.
            Err(DropReason::UnknownSource) => Address::UNSPECIFIED,
            Err(reason) => return Err(reason),
        };
        answer.write(|out| keepalive.encode_ack(header.comtree, dst, out));
        admitted.map(|_| Handled::default())
    }

    fn leave(
        &mut self,
        now: Time,
        from: SocketAddr,
        packet: &Packet<'_>,
        answer: &mut Answer,
    ) -> Result<Handled, DropReason> {
        Leave::decode(packet)?;
        let header = packet.header();
        let slot = self.admit(now, from, header)?;
        answer.write(|out| Leave::encode_left(header.comtree, header.src, out));
        Ok(Handled { ended: Some(self.end(slot)), joined: None })
    }

    fn rebind(
        &mut self,
        now: Time,
        from: SocketAddr,
        packet: &Packet<'_>,
        answer: &mut Answer,
    ) -> Result<Handled, DropReason> {
        let rebind = Rebind::decode(packet)?;
        let header = packet.header();
        let Some(index) = self.find(header.comtree, header.src) else {
            return Err(DropReason::UnknownSource);
        };
        if !self.keys.accepts_rebind(now, from, header.src, &rebind.cookie) {
            return Err(DropReason::BadCookie);
        }
        if !equal(&rebind_proof(&self.slots[index as usize].secret, &rebind.cookie), &rebind.proof)
        {
            return Err(DropReason::BadProof);
        }
        // Whoever held this ip:port before has lost it: the return path is proved.
        let evicted = self.find_ip_port(from).filter(|other| *other != index);
        let ended = evicted.map(|other| self.end(other));
        self.unindex(index);
        let slot = &mut self.slots[index as usize];
        slot.ip_port = from;
        slot.heard = now;
        self.index(index);
        let keepalive = Keepalive { stamp: 0 };
        answer.write(|out| keepalive.encode_ack(header.comtree, header.src, out));
        Ok(Handled { ended, joined: None })
    }

    fn open(
        &mut self,
        now: Time,
        from: SocketAddr,
        comtree: Comtree,
        nonce: u64,
    ) -> Option<SlotIndex> {
        let fresh = self.high_water();
        let index = if fresh < self.config.max_sessions { fresh } else { self.free.pop_front()? };
        let slot = Slot {
            ip_port: from,
            comtree,
            address: self.address_of(index),
            nonce,
            secret: self.keys.session_secret(now, from, nonce),
            heard: now,
            live: true,
            subscribe_sequence: 0,
            subscribe_refused: false,
        };
        if index == fresh {
            self.slots.push(slot);
        } else {
            self.slots[index as usize] = slot;
        }
        self.index(index);
        self.live += 1;
        Some(index)
    }

    fn end(&mut self, slot: SlotIndex) -> Ended {
        self.unindex(slot);
        self.slots[slot as usize].live = false;
        self.free.push_back(slot);
        self.live -= 1;
        Ended { slot }
    }

    /// Endpoint numbers of thread k are k modulo the number of threads, so that the kernel can
    /// steer a packet to its thread by its source address. Endpoint 0 is the router's own.
    fn address_of(&self, slot: SlotIndex) -> Address {
        let endpoint = (slot + 1) * u32::from(self.config.shards) + u32::from(self.config.shard);
        Address::unicast(self.config.site, endpoint as u16)
    }

    fn slot_of(&self, address: Address) -> Option<SlotIndex> {
        (u32::from(address.endpoint()) / u32::from(self.config.shards)).checked_sub(1)
    }

    fn find_ip_port(&self, ip_port: SocketAddr) -> Option<SlotIndex> {
        let hash = self.hash.hash_one(ip_port);
        let same = |slot: &SlotIndex| self.slots[*slot as usize].ip_port == ip_port;
        self.by_ip_port.find(hash, same).copied()
    }

    fn index(&mut self, slot: SlotIndex) {
        let (slots, hash) = (&self.slots, &self.hash);
        let hash_of = |slot: &SlotIndex| hash.hash_one(slots[*slot as usize].ip_port);
        self.by_ip_port.insert_unique(hash_of(&slot), slot, hash_of);
    }

    fn unindex(&mut self, slot: SlotIndex) {
        let hash = self.hash.hash_one(self.slots[slot as usize].ip_port);
        if let Ok(entry) = self.by_ip_port.find_entry(hash, |found| *found == slot) {
            entry.remove();
        }
    }
}
