//! What is between the processes: links and access ways for datagrams, channels for messages.

use super::config::TopologySabotage;
use super::participant::participant_at;
use super::world::{Datagram, Step, World};
use crate::overlay::machine::Sent;
use crate::scale::machine::{ip_port, relay_at};
use rand::RngExt;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

/// The share of datagrams that are lost while a fault says so.
const LOSS: f64 = 0.1;
/// How much longer a datagram takes at most that others overtake.
const DETOUR: u64 = 20_000;
/// A message between the controller and a relay takes so long at most, microseconds.
const MESSAGE: u64 = 12_000;

impl World<'_> {
    /// A relay sends a datagram, to a neighbour or to a participant.
    pub(crate) fn send(&mut self, relay: usize, (to, bytes): Sent) {
        let from = ip_port(relay);
        if let Some(neighbour) = relay_at(to) {
            let Some(link) = self.graph.between(relay, neighbour) else {
                if self.config.degree > 0 {
                    // The controller cannot know between whom no way leads, before that is measured.
                    return;
                }
                return self.model.broken(self.now, format!("relay {relay} sends to {to}"));
            };
            let side = usize::from(relay > neighbour);
            let copies = match self.config.sabotage {
                Some(TopologySabotage::SendTwice) => 2,
                _ => 1,
            };
            for _ in 0..copies {
                let bytes = Rc::clone(&bytes);
                self.count_bytes(link, side, bytes.len());
                let delay = self.graph.edges[link].delay;
                self.carry(link, side, delay, Datagram { from, to, bytes, link: Some(link) });
            }
        } else if let Some(number) = participant_at(to).filter(|one| *one < self.people.len()) {
            let delay = self.people[number].delays[relay];
            self.carry_access(number, delay, from, to, bytes, 1);
        }
    }

    /// Between a participant and its relay.
    pub(crate) fn carry_access(
        &mut self,
        number: usize,
        delay: Duration,
        from: SocketAddr,
        to: SocketAddr,
        bytes: Rc<[u8]>,
        side: usize,
    ) {
        let wire = self.graph.edges.len() + number;
        self.carry(wire, side, delay, Datagram { from, to, bytes, link: None });
    }

    fn carry(&mut self, wire: usize, side: usize, delay: Duration, datagram: Datagram) {
        if self.loses && self.rng.random_bool(LOSS) {
            return;
        }
        let jitter = Duration::from_micros(self.rng.random_range(0..200));
        let mut at = self.now + delay + jitter;
        if self.reorders {
            at = at + Duration::from_micros(self.rng.random_range(0..DETOUR));
        } else {
            let newest = &mut self.wires[wire][side];
            *newest = at.max(*newest);
            at = *newest;
        }
        self.at(at, Step::Arrive(datagram));
    }

    pub(crate) fn arrive(&mut self, datagram: &Datagram) {
        let Datagram { from, to, bytes, link } = datagram;
        if link.is_some_and(|link| self.cut[link]) {
            return;
        }
        self.trace.arrived(self.now, *from, *to, bytes);
        let Some(relay) = relay_at(*to) else {
            if let Some(number) = participant_at(*to) {
                self.deliver(number, bytes);
            }
            return;
        };
        if self.machines[relay].is_up() {
            let turn = self.machines[relay].arrive(self.now, *from, Rc::clone(bytes));
            self.ask_for_turn(relay, turn);
        } else if let Some(number) = participant_at(*from) {
            // The host says that nothing listens there.
            let back = self.people[number].delays[relay];
            self.after(back, Step::Bounced(number, relay));
        }
    }

    /// A message over the channel of a relay: 0 to the controller, 1 to the relay.
    pub(crate) fn send_message(&mut self, relay: usize, side: usize, bytes: Vec<u8>) {
        let mut takes = Duration::from_micros(self.rng.random_range(1_000..MESSAGE));
        if side == 1 && self.is_sabotaged_late() {
            takes += Duration::from_secs(3);
        }
        let channel = &mut self.channels[relay];
        let at = channel.arrives(self.now, side, takes);
        let epoch = channel.epoch;
        self.at(
            at,
            match side {
                0 => Step::ToController(relay, epoch, bytes),
                _ => Step::ToRelay(relay, epoch, bytes),
            },
        );
    }
}
