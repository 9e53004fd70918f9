//! Strangers become sessions: hello, cookie, connect, connected.

use super::{Holder, Keys, LinkTraffic, LoggedKeys, Proof, SessionIndex, Sessions, Slot, Terms};
use crate::answer::Answer;
use crate::curve::PublicKey;
use crate::noise::{Prologue, Responder, SECOND_MORE};
use crate::seal::{Opener, Reader, Sealer};
use crate::ticket::Seat;
use canopy_wire::{
    Address, Connect, Connected, Cookie, DropReason, Hello, Join, Joined, Lane, LinkJoin,
    MAX_JOIN_LEN, Packet, Path, SessionId, Time, WireError,
};
use core::time::Duration;

/// A participant's first message, opened: it is known who asks, and for what.
pub struct Knock {
    responder: Responder,
    payload: [u8; MAX_JOIN_LEN],
    len: usize,
}

impl Knock {
    /// What it asks for.
    ///
    /// # Errors
    /// If it is malformed.
    pub fn join(&self) -> Result<Join<'_>, WireError> {
        Join::decode(&self.payload[..self.len])
    }

    /// What it asks for, if it is a relay that asks for a link.
    ///
    /// # Errors
    /// If it is malformed.
    pub fn link_join(&self) -> Result<Option<LinkJoin>, WireError> {
        LinkJoin::decode(&self.payload[..self.len])
    }

    /// As whom it wants its path.
    pub fn holder(&self) -> Holder {
        match self.join().ok().zip(self.participant()) {
            Some((join, participant)) if join.features & Join::SHARES != 0 => {
                Holder::Sharing(participant, join.comtree)
            }
            _ => Holder::Alone,
        }
    }

    /// The key that it is known by.
    pub fn participant(&self) -> Option<PublicKey> {
        self.responder.participant()
    }
}

impl Sessions {
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
        let relay_key = *self.keys.identity().public();
        let comtree = packet.header().comtree;
        answer.write(|out| Cookie { nonce, cookie, relay_key }.encode(comtree, out));
        Ok(())
    }

    /// Checks that a connect brings back a cookie of ours, so that its return path is proved.
    ///
    /// # Errors
    /// [`DropReason::BadCookie`], or that it is malformed.
    pub fn prove<'a>(
        &mut self,
        now: Time,
        from: Path,
        packet: &Packet<'a>,
    ) -> Result<(Connect<'a>, Proof), DropReason> {
        let connect = Connect::decode(packet)?;
        let nonce = connect.nonce;
        let made = self.keys.made_connect(now, from, nonce, &connect.cookie);
        let at = made.ok_or(DropReason::BadCookie)?;
        self.now = self.now.max(now);
        Ok((connect, Proof { at, nonce }))
    }

    /// Opens the message of a connect. This is what costs time in a handshake.
    ///
    /// # Errors
    /// [`DropReason::Forged`] if it was made for another relay or another connect, or by nobody.
    pub fn knock(&mut self, connect: &Connect<'_>) -> Result<Knock, DropReason> {
        let mut payload = [0; MAX_JOIN_LEN];
        let (identity, seed) = (self.keys.identity(), self.random.draw());
        let prologue = Prologue::new(connect.nonce, &connect.cookie);
        let read = Responder::read(identity, seed, &prologue, connect.message, &mut payload);
        let (responder, len) = read.ok_or(DropReason::Forged)?;
        Ok(Knock { responder, payload, len })
    }

    /// The address that an applicant proves by its ticket to have had on the comtree that it asks
    /// for. Whether somebody else has it now, its relay must see.
    pub fn seat_of(&self, now: Time, knock: &Knock) -> Option<Address> {
        let Join { comtree, ticket, .. } = knock.join().ok()?;
        let participant = knock.participant()?;
        self.keys.tickets.read(ticket, comtree, &participant, self.unix(now))
    }

    /// Opens a session at a path that none has as [`Knock::holder`]; `None` if every place is taken.
    pub fn open(
        &mut self,
        now: Time,
        path: Path,
        proof: Proof,
        knock: Knock,
        terms: &Terms,
    ) -> Option<SessionIndex> {
        if self.live >= self.config.max_sessions {
            return None;
        }
        let fresh = self.high_water();
        // Who joins several comtrees stays in the lane of the first.
        let lane = Lane::of(knock.join().ok()?.comtree);
        let session = self.take_place(self.config.max_sessions + self.links)?;
        let Some(keys) = self.make_keys(now, path, session, knock, proof.nonce, terms) else {
            if session != fresh {
                self.free.push_front(session);
            }
            return None;
        };
        let nonce = proof.nonce;
        let (heard, traffic) = (now, LinkTraffic::default());
        let (live, is_link) = (true, false);
        self.put(session, Slot { path, live, is_link, lane, heard, proof, nonce, traffic });
        self.secrets[session as usize] = Some(keys);
        self.index(session);
        self.live += 1;
        Some(session)
    }

    /// A place that nobody has: a fresh one, if there are fewer than `most`.
    pub(super) fn take_place(&mut self, most: u32) -> Option<SessionIndex> {
        let fresh = self.high_water();
        let most = most.min(SessionId::places(self.config.threads));
        if fresh < most { Some(fresh) } else { self.free.pop_front() }
    }

    pub(super) fn put(&mut self, session: SessionIndex, slot: Slot) {
        if session == self.high_water() {
            self.slots.push(slot);
            self.secrets.push(None);
        } else {
            self.slots[session as usize] = slot;
        }
    }

    /// Finishes the handshake: the session's keys, and the answer that gives them to the
    /// participant.
    pub(super) fn make_keys(
        &mut self,
        now: Time,
        path: Path,
        session: SessionIndex,
        knock: Knock,
        nonce: u64,
        terms: &Terms,
    ) -> Option<Keys> {
        let comtree = knock.join().ok()?.comtree;
        let id = self.id_in(session, Lane::of(comtree));
        let participant = knock.participant()?;
        let seat = Seat { comtree, address: terms.address, participant: &participant };
        let limits = &self.config.limits;
        let millis = |d: Duration| u32::try_from(d.as_millis()).unwrap_or(u32::MAX);
        let joined = Joined {
            session: id,
            address: terms.address,
            features: terms.features,
            max_datagram: terms.max_datagram,
            suite: terms.suite,
            downlink: terms.downlink,
            lifetime_ms: millis(limits.lifetime),
            keepalive_ms: millis(limits.keepalive),
            subscription_ms: millis(limits.subscription),
            path_stamp: self.path_stamp(now, id, path),
            ticket: self.keys.tickets.make(&seat, self.unix(now)),
        };
        let (mut payload, mut message) = ([0; Answer::ROOM], [0; Answer::ROOM + SECOND_MORE]);
        let len = joined.encode(&mut payload).ok()?;
        let (len, secrets) = knock.responder.finish(&payload[..len], &mut message)?;
        let per_key = self.config.packets_per_key;
        let mut welcome = Answer::new();
        welcome.write(|out| Connected { nonce, message: &message[..len] }.encode(out));
        if self.config.log_keys {
            self.key_log.push_back(LoggedKeys {
                session: joined.session,
                nonce,
                comtree,
                participant,
                joined,
                from_participant: Reader::new(terms.suite, &secrets.from_participant, per_key),
                from_relay: Reader::new(terms.suite, &secrets.from_relay, per_key),
            });
        }
        Some(Keys {
            sealer: Sealer::new(terms.suite, &secrets.from_relay, per_key),
            opener: Opener::new(terms.suite, &secrets.from_participant, per_key),
            welcome: Some(welcome.bytes().into()),
            peer: joined.session,
            challenged: None,
            participant: Some(participant),
            shares: (terms.features & Join::SHARES != 0).then_some(comtree),
            told_gone: None,
        })
    }

    /// The answer to a session's connect, until a packet has shown that it arrived.
    pub fn welcome(&self, session: SessionIndex) -> Option<&[u8]> {
        self.secrets.get(session as usize)?.as_ref()?.welcome.as_deref()
    }
}
