//! What comes from the relay: opened, checked, and handed to whom it concerns.

use super::{Event, Session, State, Update};
use crate::subscriptions::Settled;
use canopy_wire::{
    Address, Busy, Challenge, Class, Connected, Cookie, Downlink, Flags, Gone, GroupKey, Keepalive,
    Kind, Leave, Packet, Probe, Record, Refused, Response, Sealed, SessionId, SubscribeAck, Time,
    Unknown, VERSION, WireError,
};

impl Session {
    /// Handles a datagram from the relay, which is opened where it lies; `deliver` is called for each
    /// update in it.
    ///
    /// # Errors
    /// What is wrong with the datagram. It has changed nothing then, except that a relay which
    /// answers a connect with what this release cannot use is asked again later.
    pub fn handle_datagram(
        &mut self,
        now: Time,
        datagram: &mut [u8],
        deliver: impl FnMut(Update<'_>),
    ) -> Result<(), WireError> {
        let (sealed, len) = (Sealed::of(datagram), datagram.len());
        let is_sealed = sealed.is_some();
        let packet = if let Some(Sealed { session, .. }) = sealed {
            let opened = self.open(session, datagram);
            Packet::new_checked(opened.ok_or(WireError::Field("seal"))?)?
        } else if datagram.first() == Some(&(VERSION | Class::Group as u8)) {
            return self.handle_of_group(now, datagram, deliver);
        } else {
            match Packet::new_checked(datagram) {
                Err(WireError::Version(version)) => {
                    return self.handle_foreign_version(version, datagram, now);
                }
                checked => checked?,
            }
        };
        if !is_sealed && packet.header().kind.class() == Class::Stranger {
            return self.handle_in_clear(now, &packet);
        }
        if packet.header().comtree != self.config.comtree {
            return Err(WireError::Field("comtree"));
        }
        if packet.header().kind == Kind::Updates && self.state == State::Connected {
            let may_be_clear = self.downlink == Downlink::None;
            if !is_sealed && !may_be_clear {
                return Err(WireError::Field("seal"));
            }
            self.reporting.received(len);
            self.deliver_all(&packet, |_| true, deliver)?;
        } else if is_sealed {
            self.handle_sealed(now, &packet)?;
        }
        if is_sealed {
            self.note_heard(now);
        }
        Ok(())
    }

    /// Handles what was sealed for all members of the comtree. Any member could have made it: so it is
    /// no sign of life of the relay, and it carries nothing but updates to groups.
    fn handle_of_group(
        &mut self,
        now: Time,
        datagram: &mut [u8],
        deliver: impl FnMut(Update<'_>),
    ) -> Result<(), WireError> {
        if self.downlink != Downlink::Group || self.state != State::Connected {
            return Err(WireError::Field("seal"));
        }
        let len = datagram.len();
        // What nobody has a key for is counted, and has arrived all the same.
        let Some(opened) = self.group_keys.open(now, datagram) else {
            self.reporting.received(len);
            return Ok(());
        };
        let packet = Packet::new_checked(opened.map_err(|_| WireError::Field("seal"))?)?;
        if packet.header().comtree != self.config.comtree || packet.header().kind != Kind::Updates {
            return Err(WireError::Field("kind"));
        }
        self.reporting.received(len);
        self.deliver_all(&packet, Address::is_group, deliver)
    }

    /// Hands the updates of a packet to the application, those to which it may bring any.
    fn deliver_all(
        &mut self,
        packet: &Packet<'_>,
        may_go_to: impl Fn(Address) -> bool,
        mut deliver: impl FnMut(Update<'_>),
    ) -> Result<(), WireError> {
        for record in packet.updates()? {
            let Record { flags, src, series, dst, level, weight, object, payload } = record;
            let packet = packet.payload();
            let update = Update { src, dst, series, level, weight, object, payload, packet };
            if may_go_to(dst) {
                self.deliver(update, flags, &mut deliver);
            }
        }
        Ok(())
    }

    /// Opens a sealed datagram that says it is of session `id`.
    fn open<'a>(&mut self, id: SessionId, datagram: &'a mut [u8]) -> Option<&'a mut [u8]> {
        let is_ours = id == self.id && matches!(self.state, State::Connected | State::Leaving);
        let keys = self.keys.as_mut().filter(|_| is_ours)?;
        keys.opener.open(datagram, true).ok()
    }

    /// What a relay says to those whose session it does not know, or not yet.
    pub(super) fn handle_in_clear(
        &mut self,
        now: Time,
        packet: &Packet<'_>,
    ) -> Result<(), WireError> {
        match packet.header().kind {
            Kind::Cookie => self.handle_cookie(Cookie::decode(packet)?, now),
            Kind::Connected => self.handle_connected(&Connected::decode(packet)?, now)?,
            // A relay that does not speak our version does not know our comtree either.
            Kind::Refused => self.handle_refused(Refused::decode(packet)?, now),
            Kind::Unknown if packet.header().session == self.id => {
                self.handle_unknown(Unknown::decode(packet)?, now);
            }
            _ => {}
        }
        Ok(())
    }

    fn handle_sealed(&mut self, now: Time, packet: &Packet<'_>) -> Result<(), WireError> {
        match packet.header().kind {
            Kind::KeepaliveAck => self.handle_keepalive_ack(Keepalive::decode(packet)?, now),
            Kind::SubscribeAck if self.state == State::Connected => {
                self.handle_subscribe_ack(&SubscribeAck::new_checked(packet)?);
            }
            Kind::GroupKey if self.downlink == Downlink::Group => {
                self.group_keys.learn(now, &GroupKey::decode(packet)?);
            }
            Kind::Challenge if self.state == State::Connected => {
                self.handle_challenge(Challenge::decode(packet)?, now);
            }
            Kind::Leave if self.state == State::Connected => {
                self.handle_leave(Leave::decode(packet)?, now);
            }
            Kind::Response if self.state == State::Connected => {
                self.handle_response(Response::decode(packet)?);
            }
            Kind::Busy if self.state == State::Connected => {
                self.tell(Event::Busy(Busy::decode(packet)?));
            }
            Kind::Probe if self.state == State::Connected => {
                self.handle_probe(now, &Probe::decode(packet)?);
            }
            Kind::Gone if self.state == State::Connected => {
                let Gone { address } = Gone::decode(packet)?;
                self.tell(Event::Gone(address));
            }
            Kind::Left if self.state == State::Leaving => self.close(),
            _ => {}
        }
        Ok(())
    }

    /// Whether updates could be read that are subscribed to.
    pub(super) fn may_subscribe(&self) -> bool {
        self.downlink != Downlink::Group || self.group_keys.is_there()
    }

    /// Hands an update to the application. A relay may send what goes to many to its publisher too.
    fn deliver(&mut self, update: Update<'_>, flags: Flags, to: &mut impl FnMut(Update<'_>)) {
        let is_own = update.src == self.address && update.dst.is_group();
        if is_own && !flags.contains(Flags::ECHO) {
            self.echoes += 1;
        } else if self.is_for_us(update.dst) {
            to(update);
        }
    }

    /// Whether an update goes to a group or to us, not to whoever had our ip:port before.
    fn is_for_us(&self, dst: Address) -> bool {
        dst.is_group() || dst == self.address
    }

    fn handle_subscribe_ack(&mut self, ack: &SubscribeAck<'_>) {
        let mut events = Vec::new();
        self.subscriptions.handle_ack(ack, |settled| {
            events.push(match settled {
                Settled::Added(group, level) => Event::Subscribed(group, level),
                Settled::Dropped(group) => Event::Unsubscribed(group),
                Settled::Refused(group, reason) => Event::SubscriptionRefused(group, reason),
            });
        });
        events.into_iter().for_each(|event| self.tell(event));
    }
}
