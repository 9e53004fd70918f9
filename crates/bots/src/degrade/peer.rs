//! A walker or a viewer: a socket and a session of its own.

use crate::config::RelayTarget;
use crate::error::CrowdError;
use crate::participant::set_out;
use canopy_net::{Readiness, Socket};
use canopy_session::{Event, Session, State};
use canopy_wire::{Comtree, Flags, Group, Level, MAX_DATAGRAM, Time};

/// Every update has this level, and everybody is subscribed at it.
pub(super) const LEVEL: Level = Level(0);

pub(super) struct Peer {
    pub(super) socket: Socket,
    pub(super) session: Session,
    relay: RelayTarget,
}

impl Peer {
    /// Sets out to join.
    pub(super) fn new(
        number: u32,
        relay: RelayTarget,
        comtree: Comtree,
        readiness: &Readiness,
    ) -> Result<Peer, CrowdError> {
        let (socket, session) = set_out(number, relay, comtree, readiness, None)?;
        socket.stamp_arrivals()?;
        Ok(Peer { socket, session: Session::new(session), relay })
    }

    /// Sends what its session has to send, if that is due.
    ///
    /// # Errors
    /// If the relay does not take it, or has no room for its subscriptions.
    pub(super) fn turn(&mut self, now: Time) -> Result<(), CrowdError> {
        let mut out = [0; MAX_DATAGRAM];
        while let Some(len) = self.session.poll_transmit(now, &mut out) {
            // A lost session packet is repeated.
            let _ = self.socket.send(&out[..len]);
        }
        while let Some(event) = self.session.poll_event() {
            match event {
                Event::Refused(reason) => {
                    return Err(CrowdError::Refused { relay: self.relay.address, reason });
                }
                Event::SubscriptionRefused(group, reason) => {
                    return Err(CrowdError::NoSubscription { group, reason });
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Publishes to a group; returns whether the kernel took it.
    pub(super) fn publish(&mut self, group: Group, payload: &[u8]) -> bool {
        let mut out = [0; MAX_DATAGRAM];
        let len = self.session.publish(group.address(), LEVEL, Flags(0), payload, &mut out);
        len.is_ok_and(|len| self.socket.send(&out[..len]).is_ok())
    }

    pub(super) fn is_connected(&self) -> bool {
        self.session.state() == State::Connected
    }

    pub(super) fn is_due(&self, now: Time) -> bool {
        self.session.poll_timeout().is_some_and(|at| at <= now)
    }

    pub(super) fn unreachable(&self) -> CrowdError {
        CrowdError::Unreachable(self.relay.address)
    }
}
