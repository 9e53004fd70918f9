//! Who has a path, and who has left it: so that a late copy of a handshake brings nothing back.
//!
//! A path has one session, or many that share it. Two are told apart by their [`Holder`]s: of two
//! sessions of one holder at one path the later proof counts.

use super::{Ended, Holder, Keys, Proof, SessionIndex, Sessions, Slot};
use crate::tag::COOKIE_LIFETIME;
use canopy_wire::{Path, Time};
use core::hash::BuildHasher;
use std::collections::VecDeque;

/// How many of the sessions that left their paths soon are remembered one by one.
const MAX_LEFT: usize = 1024;
/// How many places there are for those before: each has the latest proof of many.
const LEFT_BEFORE: usize = 4096;

/// A session that has left its path although its cookie is still taken.
struct Left {
    path: Path,
    holder: Holder,
    proof: Proof,
}

/// Who has left their paths lately.
pub(super) struct Departures {
    latest: VecDeque<Left>,
    /// By the hash of path and holder: when those were proved that left before these.
    before: Box<[Option<Time>]>,
}

impl Departures {
    pub(super) fn new() -> Departures {
        Departures {
            latest: VecDeque::with_capacity(MAX_LEFT),
            before: vec![None; LEFT_BEFORE].into(),
        }
    }
}

impl Sessions {
    /// The session that has a path as `holder`.
    pub fn at(&self, path: Path, holder: Holder) -> Option<SessionIndex> {
        let is_it = |session: &SessionIndex| {
            self.slots[*session as usize].path == path && self.holder(*session) == holder
        };
        self.by_holder.find(self.hash.hash_one((path, holder)), is_it).copied()
    }

    /// The session at a path that was opened by the connect with this nonce.
    pub fn opened_by(&self, path: Path, nonce: u64) -> Option<SessionIndex> {
        let is_it = |session: &SessionIndex| {
            let slot = &self.slots[*session as usize];
            slot.path == path && slot.nonce == nonce
        };
        self.by_nonce.find(self.hash.hash_one((path, nonce)), is_it).copied()
    }

    /// As whom a session has its path.
    pub fn holder(&self, session: SessionIndex) -> Holder {
        holder_in(&self.secrets, session)
    }

    /// Whether a session that this very connect opened has left the path. What cannot be told
    /// before the connect's message is read, [`Sessions::is_stale`] tells later.
    pub fn is_copy(&self, path: Path, proof: Proof) -> bool {
        let is_it = |left: &Left| left.path == path && left.proof.nonce == proof.nonce;
        self.departures.latest.iter().any(|left| is_it(left) && proof <= left.proof)
    }

    /// Whether `holder` has proved a path later than by `proof`: then that is a late copy.
    pub fn is_stale(&self, path: Path, holder: Holder, proof: Proof) -> bool {
        match self.at(path, holder) {
            Some(session) => proof <= self.slots[session as usize].proof,
            None => self.has_left(path, holder, proof),
        }
    }

    /// Ends the session that has a path as `holder`, if a session of another data thread has proved it
    /// later, by `proof`.
    pub fn end_older(&mut self, path: Path, holder: Holder, proof: Proof) -> Option<Ended> {
        let session = self.at(path, holder)?;
        let is_older = self.slots[session as usize].proof < proof;
        is_older.then(|| self.end(session))
    }

    /// Remembers a session that leaves its path, if its cookie is still taken: a late copy of its
    /// connect must not open it again.
    pub(super) fn remember(&mut self, session: SessionIndex) {
        let slot = &self.slots[session as usize];
        if self.now.since(slot.proof.at) > COOKIE_LIFETIME {
            return;
        }
        let left = Left { path: slot.path, holder: self.holder(session), proof: slot.proof };
        if self.departures.latest.len() == MAX_LEFT
            && let Some(Left { path, holder, proof }) = self.departures.latest.pop_front()
        {
            // Whoever shares the entry, and was proved earlier, must ask for another cookie.
            let place = self.place_before(path, holder);
            let before = &mut self.departures.before[place];
            *before = (*before).max(Some(proof.at));
        }
        self.departures.latest.push_back(left);
    }

    /// Whether a session that this proof opened has left the path already, or may have.
    fn has_left(&self, path: Path, holder: Holder, proof: Proof) -> bool {
        let is_it = |left: &Left| left.path == path && left.holder == holder;
        self.departures.latest.iter().any(|left| is_it(left) && proof <= left.proof)
            || self.departures.before[self.place_before(path, holder)] >= Some(proof.at)
    }

    fn place_before(&self, path: Path, holder: Holder) -> usize {
        self.hash.hash_one((path, holder)) as usize % LEFT_BEFORE
    }

    pub(super) fn index(&mut self, session: SessionIndex) {
        let Sessions { slots, secrets, hash, by_holder, by_nonce, .. } = self;
        let of_holder = |session: &SessionIndex| {
            hash.hash_one((slots[*session as usize].path, holder_in(secrets, *session)))
        };
        let of_nonce = |session: &SessionIndex| {
            let slot = &slots[*session as usize];
            hash.hash_one((slot.path, slot.nonce))
        };
        by_holder.insert_unique(of_holder(&session), session, of_holder);
        by_nonce.insert_unique(of_nonce(&session), session, of_nonce);
    }

    pub(super) fn unindex(&mut self, session: SessionIndex) {
        let Slot { path, nonce, .. } = self.slots[session as usize];
        let hashes =
            [self.hash.hash_one((path, self.holder(session))), self.hash.hash_one((path, nonce))];
        for (table, hash) in [&mut self.by_holder, &mut self.by_nonce].into_iter().zip(hashes) {
            if let Ok(entry) = table.find_entry(hash, |found| *found == session) {
                entry.remove();
            }
        }
    }
}

fn holder_in(secrets: &[Option<Keys>], session: SessionIndex) -> Holder {
    let keys = secrets.get(session as usize).and_then(Option::as_ref);
    match keys.and_then(|keys| keys.participant.zip(keys.shares)) {
        Some((participant, comtree)) => Holder::Sharing(participant, comtree),
        None => Holder::Alone,
    }
}
