//! A neighbour of the router under measurement: one side of a link, without a relay behind it. The
//! handshake, the seals and the signs of life are real; what it sends is made by the load.

use anyhow::Context;
use canopy_session::{
    Call, Ended, Identity, Keyring, PacketsPerKey, PublicKey, Session, SessionConfig, SessionIndex,
    SessionLimits, Sessions, SessionsConfig,
};
use canopy_wire::{
    Comtree, Group, Kind, Level, LinkHello, MAX_DATAGRAM, Packet, Path, SAFE_DATAGRAM, Sealed,
    SessionId, SubscribeAck, SubscribeWriter, SubscriptionChange, Time,
};
use std::time::Duration;

/// A sign of life leaves this often; without one the router takes the link for lost.
const HELLO_EVERY: Duration = Duration::from_millis(40);
/// A router that is silent for so long has lost the link: this side had no time to say that it lives.
const LOST_AFTER: Duration = Duration::from_millis(500);

/// One side of a link with the router.
pub(super) struct Neighbour {
    identity: Identity,
    router: PublicKey,
    sessions: Sessions,
    link: SessionIndex,
    /// The handshake; the neighbour calls.
    call: Option<Session>,
    /// The router's last stamp, and when it arrived.
    stamp: (u64, Time),
    hello_at: Time,
    /// The number of the last subscribe packet, and the last that was acknowledged.
    asked: u32,
    acknowledged: u32,
    /// How often it has called again.
    losses: u32,
}

impl Neighbour {
    /// A neighbour with a key of its own; `number` tells neighbours apart.
    pub(super) fn new(number: u8) -> anyhow::Result<Neighbour> {
        let identity = Identity::new([0x40 + number; 32]);
        let config = SessionsConfig {
            max_sessions: 1,
            thread: 0,
            threads: 1,
            unix_zero: 0,
            log_keys: false,
            packets_per_key: PacketsPerKey::PROTOCOL,
            limits: SessionLimits::default(),
        };
        let keys = Keyring::with_identity([number; 16], identity.clone());
        let mut sessions = Sessions::new(config, keys, &[number; 16]);
        let link = sessions.add_link().context("there is no room for a link")?;
        let stamp = (0, Time::ZERO);
        let hello_at = Time::ZERO;
        let (asked, acknowledged) = (0, 0);
        let router = PublicKey::default();
        Ok(Neighbour {
            identity,
            router,
            sessions,
            link,
            call: None,
            stamp,
            hello_at,
            asked,
            acknowledged,
            losses: 0,
        })
    }

    /// The key that the router is to know it by.
    pub(super) fn key(&self) -> PublicKey {
        *self.identity.public()
    }

    /// Calls the router of this key from now on.
    pub(super) fn call(&mut self, router: PublicKey) {
        self.router = router;
        let session = self.sessions.id(self.link);
        let mut seed = [self.losses as u8; 16];
        seed[..8].copy_from_slice(&self.key()[..8]);
        self.call = Some(Session::new(SessionConfig {
            relay_key: Some(router),
            identity: Some(self.identity.clone()),
            max_datagram: SAFE_DATAGRAM as u16,
            call: Some(Call { session, threads: 1, thread: 0 }),
            ..SessionConfig::new(Comtree(0), seed)
        }));
    }

    fn call_again(&mut self) -> anyhow::Result<()> {
        let Ended(_) = self.sessions.end(self.link);
        self.losses += 1;
        (self.asked, self.acknowledged) = (0, 0);
        self.call(self.router);
        Ok(())
    }

    /// Whether the handshake is done.
    pub(super) fn is_up(&self) -> bool {
        self.sessions.path(self.link).is_some()
    }

    /// Sends what is due: the call, or a sign of life.
    pub(super) fn turn(
        &mut self,
        now: Time,
        mut send: impl FnMut(&[u8]) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let mut out = [0; MAX_DATAGRAM];
        if self.is_up() {
            if now.since(self.stamp.1) > LOST_AFTER {
                return self.call_again();
            }
            if now < self.hello_at {
                return Ok(());
            }
            self.hello_at = now + HELLO_EVERY;
            let (echo, at) = self.stamp;
            let hello = LinkHello {
                stamp: now.as_nanos().max(1),
                echo,
                held: now.since(at).as_micros() as u32,
                sent: self.sessions.link_traffic(self.link).sealed.wrapping_add(1),
                loss: 0,
                // Nobody subscribes at a neighbour of the load.
                lifetime: 0,
            };
            let len = hello.encode(&mut out)?;
            let len = self.seal(&mut out, len)?;
            return send(&out[..len]);
        }
        let Some(call) = &mut self.call else { return Ok(()) };
        while let Some(len) = call.poll_transmit(now, &mut out) {
            send(&out[..len])?;
        }
        Ok(())
    }

    /// Seals the packet of `len` bytes at the front of `out` and returns the datagram's length.
    pub(super) fn seal(&mut self, out: &mut [u8], len: usize) -> anyhow::Result<usize> {
        self.sessions.seal(self.link, out, len).context("the link with the router is down")
    }

    /// Writes a packet that subscribes to as many of these groups as it has room for, sealed. Returns
    /// its length, and how many they are.
    pub(super) fn subscribe(
        &mut self,
        comtree: Comtree,
        groups: &[Group],
        out: &mut [u8],
    ) -> anyhow::Result<(usize, usize)> {
        self.asked += 1;
        let mut writer = SubscribeWriter::new(out, self.asked, SAFE_DATAGRAM)?;
        let fit = groups
            .iter()
            .take_while(|group| writer.push(SubscriptionChange::Add(**group, Level(0))));
        let fit = fit.count();
        let len = writer.finish(comtree, SessionId::NONE);
        Ok((self.seal(out, len)?, fit))
    }

    /// Whether the last subscribe packet was acknowledged.
    pub(super) fn is_acknowledged(&self) -> bool {
        self.acknowledged == self.asked
    }

    /// Takes a datagram from the router; `update` is called for the payload of each update in it. What
    /// cannot be opened is no delivery: it shows as loss.
    pub(super) fn take(
        &mut self,
        now: Time,
        from: Path,
        datagram: &mut [u8],
        update: impl FnMut(&[u8]),
    ) {
        let Some(sealed) = Sealed::of(datagram) else {
            return self.take_answer(now, from, datagram);
        };
        let Ok(opened) = self.sessions.unseal(from, sealed.session, datagram) else { return };
        let Ok(packet) = Packet::new_checked(opened) else { return };
        match packet.header().kind {
            Kind::Updates => {
                if let Ok(records) = packet.updates() {
                    records.map(|record| record.payload).for_each(update);
                }
            }
            Kind::LinkHello => {
                if let Ok(hello) = LinkHello::decode(&packet) {
                    self.stamp = (hello.stamp, now);
                }
            }
            Kind::SubscribeAck => {
                if let Ok(ack) = SubscribeAck::new_checked(&packet)
                    && ack.refused().next().is_none()
                {
                    self.acknowledged = self.acknowledged.max(ack.sequence());
                }
            }
            _ => {}
        }
    }

    fn take_answer(&mut self, now: Time, from: Path, datagram: &[u8]) {
        let (Ok(packet), Some(call)) = (Packet::new_checked(datagram), &mut self.call) else {
            return;
        };
        if !call.is_answered_by(&packet) || call.handle_answer(now, &packet).is_err() {
            return;
        }
        while call.poll_event().is_some() {}
        if let Some(keys) = call.take_link() {
            self.call = None;
            self.stamp = (0, now);
            self.sessions.link_up(now, self.link, from, keys);
        }
    }
}
