//! Group keys on their way to the members: a new member is given the one in use, and all who stay the
//! next one, a portion at a time, until they say that they have it.

use super::Relay;
use crate::index::PortIndex;
use crate::ports::Peer;
use canopy_session::SessionIndex;
use canopy_wire::{DropReason, GroupKey, GroupKeyHeld, GroupKeyNumber, Packet, Path, Time};
use core::time::Duration;

/// Keys that leave with one portion, and ports that are looked at for it. So 32,000 members of a data
/// thread can be given a key in the half second that there is for it, and its other work goes on.
const KEYS_A_PORTION: u32 = 64;
const PORTS_A_PORTION: u32 = 4096;
/// Between two portions.
const PORTION_EVERY: Duration = Duration::from_millis(1);
/// Whoever has not said that a key has arrived is sent it again after so long.
const ROUND_EVERY: Duration = Duration::from_millis(100);

/// How far the round has come in which next keys are given out, of all comtrees at once.
#[derive(Clone, Copy, Debug)]
pub(super) struct Round {
    next_port: PortIndex,
    /// When it goes on.
    at: Time,
}

impl Round {
    pub(super) const FIRST: Round = Round { next_port: 0, at: Time::ZERO };
}

impl Relay {
    /// A participant says which group key it has, and is sent what it lacks.
    pub(super) fn take_held_key(
        &mut self,
        now: Time,
        from: Path,
        packet: &Packet<'_>,
    ) -> Result<(), DropReason> {
        let held = GroupKeyHeld::decode(packet)?;
        let index = self.admit(now, from, packet)?;
        let port = self.ports.get_mut(index).ok_or(DropReason::UnknownSource)?;
        if !matches!(port.peer, Peer::Participant(_)) {
            return Err(DropReason::UnexpectedKind);
        }
        let noted = self.comtrees.note_held(port.comtree_index, (held.newest, port.held_key));
        if noted.ok_or(DropReason::UnexpectedKind)? {
            port.held_key = held.newest;
        }
        // Each may cost as much as the answer to a keepalive.
        self.charge_keepalive(now, index)?;
        self.give_keys(from, index, held)
    }

    /// Sends a member the group keys of its comtree that it lacks: the one in use, and the next.
    pub(super) fn give_keys(
        &mut self,
        to: Path,
        port: PortIndex,
        held: GroupKeyHeld,
    ) -> Result<(), DropReason> {
        let index = self.ports.get(port).ok_or(DropReason::UnknownSource)?.comtree_index;
        let Some(keys) = &self.comtrees.get(index).group_keys else { return Ok(()) };
        let (in_use, next) = (keys.in_use(), keys.next());
        let has_one = [Some(in_use.number), next.map(|next| next.number)];
        if held.lacks == in_use.number || !has_one.contains(&Some(held.newest)) {
            self.give_key(to, port, &in_use)?;
        }
        match next.filter(|next| next.number != held.newest) {
            Some(next) => self.give_key(to, port, &next),
            None => Ok(()),
        }
    }

    /// A session has moved; what was sent to where it was may be lost.
    pub(super) fn give_keys_again(&mut self, session: SessionIndex, to: Path) {
        let Some(index) = self.ports.of_session(session).next() else { return };
        let Some(port) = self.ports.get(index) else { return };
        let held = GroupKeyHeld { newest: port.held_key, lacks: GroupKeyNumber::NONE };
        if let Err(reason) = self.give_keys(to, index, held) {
            self.counters.drop(reason);
        }
    }

    fn give_key(&mut self, to: Path, port: PortIndex, key: &GroupKey) -> Result<(), DropReason> {
        let session = self.session_of(port).ok_or(DropReason::UnknownSource)?;
        let comtree = self.ports.get(port).ok_or(DropReason::UnknownSource)?.comtree;
        let room = self.replies.room().ok_or(DropReason::RepliesFull)?;
        let len = key.encode(comtree, self.sessions.id(session), room)?;
        self.push_reply(to, port, len)?;
        self.counters.group_keys_given += 1;
        Ok(())
    }

    /// Makes and gives out the group keys that are wanted, as far as it is time.
    pub(super) fn renew_keys(&mut self, now: Time) {
        let is_asked = self.comtrees.take_wants_keys();
        if !is_asked && self.keys_at.is_none_or(|at| now < at) {
            return;
        }
        let advanced = self.comtrees.advance_keys(now);
        self.counters.group_keys_made += advanced.made;
        if advanced.made > 0 {
            self.round.at = now;
        }
        let mut due = advanced.due;
        if advanced.is_giving {
            if now >= self.round.at {
                self.give_a_portion(now);
            }
            due = due.map(|at| at.min(self.round.at));
        }
        self.keys_at = due.map(|at| at.max(now + PORTION_EVERY));
    }

    fn give_a_portion(&mut self, now: Time) {
        let (mut looked_at, mut given) = (0, 0);
        let is_over = |relay: &Relay| relay.round.next_port >= relay.ports.high_water();
        while !is_over(self)
            && looked_at < PORTS_A_PORTION
            && given < KEYS_A_PORTION
            && !self.replies.is_half_full()
        {
            looked_at += 1;
            given += u32::from(self.give_next_key(self.round.next_port));
            self.round.next_port += 1;
        }
        if is_over(self) {
            self.round = Round { next_port: 0, at: now + ROUND_EVERY };
        } else {
            self.round.at = now + PORTION_EVERY;
        }
    }

    /// Sends a participant the next key of its comtree, if there is one that it has not said to have.
    fn give_next_key(&mut self, index: PortIndex) -> bool {
        let Some(port) = self.ports.get(index) else { return false };
        let Peer::Participant(session) = port.peer else { return false };
        let Some(keys) = &self.comtrees.get(port.comtree_index).group_keys else { return false };
        let next = keys.next().filter(|next| next.number != port.held_key);
        let (Some(next), Some(path)) = (next, self.sessions.path(session)) else { return false };
        self.give_key(path, index, &next).is_ok()
    }

    /// When there is something to do about group keys.
    pub(super) fn keys_due(&self) -> Option<Time> {
        if self.comtrees.wants_keys() { Some(Time::ZERO) } else { self.keys_at }
    }
}
