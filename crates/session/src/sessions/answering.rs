//! What a session is told.

use super::{SessionIndex, Sessions};
use crate::answer::Answer;
use canopy_wire::{
    Address, Busy, Comtree, DropReason, Gone, Keepalive, Leave, LeaveReason, Packet, Time,
    WireError,
};
use core::time::Duration;

/// Between two packets that tell a session of somebody who is gone: whoever sends to many who are
/// gone hears of four a second.
const GONE_PAUSE: Duration = Duration::from_millis(250);

impl Sessions {
    /// Answers a keepalive. Only one that brings back what the relay sent lately to the session's
    /// path is a sign of life: anyone can write another's ip:port on a packet.
    ///
    /// # Errors
    /// If it is malformed.
    pub fn keepalive(
        &mut self,
        now: Time,
        session: SessionIndex,
        packet: &Packet<'_>,
        answer: &mut Answer,
    ) -> Result<(), DropReason> {
        let Keepalive { stamp, path_stamp } = Keepalive::decode(packet)?;
        let Some(path) = self.path(session) else { return Err(DropReason::UnknownSource) };
        let (id, period) = (self.id(session), self.period(now));
        let is_recent = |period| self.keys.path_stamp(period, path, id) == path_stamp;
        if is_recent(period) || is_recent(period.saturating_sub(1)) {
            self.slots[session as usize].heard = now;
        }
        let echo = Keepalive { stamp, path_stamp: self.path_stamp(now, id, path) };
        let comtree = packet.header().comtree;
        self.write_sealed(session, answer, |out| echo.encode_ack(comtree, id, out));
        Ok(())
    }

    pub(super) fn write_sealed(
        &mut self,
        session: SessionIndex,
        answer: &mut Answer,
        encode: impl FnOnce(&mut [u8]) -> Result<usize, WireError>,
    ) {
        if let Some(Some(keys)) = self.secrets.get_mut(session as usize) {
            answer.write_sealed(&mut keys.sealer, keys.peer, encode);
        }
    }

    /// Tells a participant that it has left.
    pub fn left(&mut self, session: SessionIndex, comtree: Comtree, answer: &mut Answer) {
        let id = self.id(session);
        self.write_sealed(session, answer, |out| Leave::encode_left(comtree, id, out));
    }

    /// Tells a participant that its session ends, and why.
    pub fn dismiss(
        &mut self,
        session: SessionIndex,
        comtree: Comtree,
        reason: LeaveReason,
        answer: &mut Answer,
    ) {
        let id = self.id(session);
        self.write_sealed(session, answer, |out| Leave { reason }.encode(comtree, id, out));
    }

    /// Tells a participant that a part of what it sends is dropped.
    pub fn busy(
        &mut self,
        session: SessionIndex,
        comtree: Comtree,
        busy: &Busy,
        answer: &mut Answer,
    ) {
        let id = self.id(session);
        self.write_sealed(session, answer, |out| busy.encode(comtree, id, out));
    }

    /// Tells a participant that there is nobody at an address that it has sent to. No answer if it
    /// was told so of another a moment ago.
    pub fn gone(
        &mut self,
        now: Time,
        session: SessionIndex,
        comtree: Comtree,
        address: Address,
        answer: &mut Answer,
    ) {
        let id = self.id(session);
        let Some(Some(keys)) = self.secrets.get_mut(session as usize) else { return };
        if keys.told_gone.is_none_or(|at| now.since(at) >= GONE_PAUSE) {
            keys.told_gone = Some(now);
            let gone = Gone { address };
            answer.write_sealed(&mut keys.sealer, keys.peer, |out| gone.encode(comtree, id, out));
        }
    }
}
