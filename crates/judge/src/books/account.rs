//! What an ip:port and the relay have sent each other, and what was agreed between them.

use super::Verdict;
use super::sessions::{Agreed, Sessions};
use crate::conduct::Conducts;
use canopy_wire::{
    Address, Challenge, Class, Connected, Cookie, Downlink, Kind, Packet, SEAL_LEN, SessionId, Tag,
};
use std::collections::VecDeque;
use std::net::SocketAddr;

/// Cookies that are kept of an ip:port: far more than it asks for while any of them holds.
const MAX_COOKIES: usize = 4096;

/// What an ip:port and the relay have sent each other.
#[derive(Debug, Default)]
pub(super) struct Account {
    pub(super) bytes_in: u64,
    pub(super) bytes_out: u64,
    /// The cookies that it was sent last.
    cookies: VecDeque<Tag>,
    /// It has brought one back.
    pub(super) is_proved: bool,
    /// The session that it was told of last.
    pub(super) session: Option<Agreed>,
}

impl Account {
    /// It brings a cookie back. Returns whether it had been sent that one.
    pub(super) fn brings(&mut self, cookie: &Tag) -> bool {
        let is_its_own = self.cookies.contains(cookie);
        self.is_proved |= is_its_own;
        is_its_own
    }

    /// Notes what the relay tells of cookies and sessions.
    pub(super) fn hear(&mut self, packet: &Packet<'_>, sessions: &mut Sessions) {
        let cookie = match packet.header().kind {
            Kind::Cookie => Cookie::decode(packet).ok().map(|cookie| cookie.cookie),
            Kind::Challenge => Challenge::decode(packet).ok().map(|challenge| challenge.cookie),
            Kind::Connected => {
                let connected = Connected::decode(packet).ok();
                self.session = connected.and_then(|connected| sessions.tell(connected.nonce));
                None
            }
            Kind::KeepaliveAck => {
                // It stayed, or has moved here.
                self.session = sessions.agreed(packet.header().session);
                None
            }
            _ => None,
        };
        self.cookies.extend(cookie);
        if self.cookies.len() > MAX_COOKIES {
            self.cookies.pop_front();
        }
    }

    /// A session is sent nothing that a server has taken from it.
    pub(super) fn may_hear(
        &self,
        to: SocketAddr,
        packet: &Packet<'_>,
        conducts: &Conducts,
    ) -> Verdict {
        let (Some(agreed), Ok(mut updates)) = (self.session, packet.updates()) else {
            return Ok(());
        };
        match updates.find(|one| !conducts.may_hear(agreed.nonce, one)) {
            Some(one) => {
                Err(format!("{to} was sent an update to {:?}, which servers forbid", one.dst))
            }
            None => Ok(()),
        }
    }

    /// What a session is sent is for the one that is there: updates of its comtree, to a group or to
    /// itself, and acknowledgements under its number. None is longer than agreed, with room for a seal.
    pub(super) fn expects(&self, to: SocketAddr, packet: &Packet<'_>, class: u8) -> Verdict {
        let header = packet.header();
        if !matches!(header.kind, Kind::Updates | Kind::SubscribeAck) {
            return Ok(());
        }
        let Some(agreed) = self.session else {
            return Err(format!("{to} was sent {:?} and has no session", header.kind));
        };
        // What all members can read, or everybody, is for all; and there only, the same goes to many.
        let is_to_many = class != Class::Sealed as u8;
        let is_ours =
            |dst: Address| dst.is_group() || (dst == agreed.address && class != Class::Group as u8);
        let is_for_it = packet.updates().is_ok_and(|mut all| all.all(|one| is_ours(one.dst)));
        let is_its_number = header.session == if is_to_many { SessionId::NONE } else { agreed.id };
        let is_right = match (header.kind, agreed.downlink) {
            (Kind::Updates, Downlink::None) => class == Class::Session as u8,
            (Kind::Updates, Downlink::Group) => class != Class::Session as u8,
            _ => class == Class::Sealed as u8,
        };
        if !is_right {
            return Err(format!("{to} has {agreed:?}, and {:?} of class {class}", header.kind));
        }
        if header.comtree != agreed.comtree || !is_for_it || !is_its_number {
            return Err(format!("{to} has {agreed:?} and was sent another's {:?}", header.kind));
        }
        let (len, most) = (packet.datagram_len() + SEAL_LEN, agreed.max_datagram);
        if len > usize::from(most) {
            return Err(format!("{to} was sent {len} bytes, seal included, where {most} may be"));
        }
        Ok(())
    }
}
