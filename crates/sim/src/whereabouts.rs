//! Where participants are: at which ip:port, and who of those that share one a datagram is for.

use crate::gateway::Gateway;
use crate::world::World;
use canopy_session::Session;
use canopy_wire::{Recipient, Sealed, Time};
use rand::RngExt;
use std::net::SocketAddr;
use std::time::Duration;

/// An ip:port rests so long before another takes it.
const REST: Duration = Duration::from_secs(2);

impl World<'_> {
    /// It is reached at its ip:port from now on.
    pub(crate) fn bind(&mut self, number: usize) {
        let ip_port = self.participants[number].ip_port;
        if ip_port != Gateway::ip_port() {
            self.bindings.insert(ip_port, number);
        }
    }

    /// Takes an ip:port that no one ever had, or one that another left a while ago: what that one
    /// sent has arrived, but the relay may still believe it there.
    pub(crate) fn move_in(&mut self, number: usize) {
        if self.scenario.shares(number) {
            return self.move_behind_gateway(number);
        }
        let old = self.participants[number].ip_port;
        let is_free = |(ip_port, since): &mut (SocketAddr, Time)| {
            !self.bindings.contains_key(ip_port) && self.now.since(*since) > REST
        };
        let vacant = self.vacant.take_if(is_free);
        match vacant {
            Some((ip_port, _)) => self.participants[number].ip_port = ip_port,
            None => self.participants[number].rebind(),
        }
        self.pacing.forget(old);
        self.pacing.forget(self.participants[number].ip_port);
        self.oracle.move_in(number, vacant.is_some());
        self.vacant.get_or_insert((old, self.now));
    }

    /// Takes the gateway's ip:port, or one that no one ever had. Nobody takes that over from it: the
    /// relay may go on sending there what is for it.
    fn move_behind_gateway(&mut self, number: usize) {
        if self.gateway.rng.random_bool(0.7) {
            self.participants[number].ip_port = Gateway::ip_port();
        } else {
            self.participants[number].rebind();
        }
        self.oracle.move_in(number, false);
    }

    /// Whether a participant's application runs and is reached at an ip:port, perhaps beside others.
    pub(crate) fn is_reached_at(&self, ip_port: SocketAddr, number: usize) -> bool {
        if ip_port != Gateway::ip_port() {
            return self.bindings.get(&ip_port) == Some(&number);
        }
        let participant = &self.participants[number];
        participant.ip_port == ip_port && participant.session.is_some()
    }

    /// Whose application runs and is reached at an ip:port by a datagram from the relay.
    pub(crate) fn receiver_at(&self, to: SocketAddr, datagram: &[u8]) -> Option<usize> {
        if to != Gateway::ip_port() {
            return self.bindings.get(&to).copied();
        }
        let is_there = |number: &usize| self.is_reached_at(to, *number);
        let nonce = match Recipient::of(datagram)? {
            Recipient::Handshake(nonce) => nonce,
            Recipient::Session(_) if Sealed::of(datagram).is_some() => {
                self.host.sealed_for(datagram)?
            }
            // That no such session is known, anybody can say.
            Recipient::Session(id) => {
                let has_it = |number: &usize| {
                    self.participants[*number].session.as_ref().map(Session::id) == Some(id)
                };
                return (0..self.participants.len()).filter(is_there).find(has_it);
            }
        };
        self.gateway.whose(nonce).filter(is_there)
    }
}
