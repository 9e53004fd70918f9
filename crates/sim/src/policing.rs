//! What happens in a world with floods: those who flood send in volleys, and whoever stays within its limits is not
//! policed, nor kept waiting or refused because of what comes by another lane.

use crate::flood::{Flood, LEAVES_AFTER};
use crate::flooder::Flooder;
use crate::host::{Read, steer};
use crate::world::{Step, World};
use canopy_relay::Inlet;
use canopy_session::Session;
use canopy_wire::Lane;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

/// Between two volleys.
pub(crate) const VOLLEYS_EVERY: Duration = Duration::from_millis(2);
/// How often a flooder looks after its session before and after its flood.
pub(crate) const IDLE: Duration = Duration::from_millis(50);

impl World<'_> {
    /// A flooder does what it does next.
    pub(crate) fn flood(&mut self, number: usize) {
        let flooder = &mut self.flooders[number];
        let Flood { from, until, .. } = flooder.flood;
        if self.now >= until + LEAVES_AFTER {
            flooder.session.iter_mut().for_each(Session::leave);
            self.pump_flooder(number);
            return self.flooders[number].session = None;
        }
        if (from..until).contains(&self.now) {
            for (from, bytes) in flooder.volley() {
                self.tallies.flooded += 1;
                self.arrives_aside(from, bytes.into());
            }
        }
        self.pump_flooder(number);
        let floods = (from..until).contains(&(self.now + VOLLEYS_EVERY));
        self.after(if floods { VOLLEYS_EVERY } else { IDLE }, Step::Flood(number));
    }

    fn pump_flooder(&mut self, number: usize) {
        let now = self.now;
        while let Some(bytes) = self.flooders[number].poll(now) {
            let from = self.flooders[number].ip_port;
            self.arrives_aside(from, bytes.into());
        }
    }

    /// What the relay sends to where no participant is, a flooder may hear.
    pub(crate) fn tell_flooder(&mut self, to: SocketAddr, bytes: &Rc<[u8]>) {
        let found = self.flooders.iter().position(|one| one.ip_port == to);
        let Some(number) = found else { return };
        if let Some(session) = &mut self.flooders[number].session {
            let _ = session.handle_datagram(self.now, &mut bytes.to_vec(), |_| ());
            self.pump_flooder(number);
        }
    }

    /// Whether there are floods, but none on a participant's comtree.
    fn is_apart(&self, participant: usize) -> bool {
        let comtree = self.participants[participant].comtree;
        let is_its = |one: &Flooder| one.flood.is_of_insider() && one.flood.comtree == comtree;
        !self.flooders.is_empty() && !self.flooders.iter().any(is_its)
    }

    /// Whether a datagram comes by a lane on which nobody floods.
    fn comes_apart(&self, participant: usize, bytes: &[u8]) -> bool {
        let own = Inlet::Lane(Lane::of(self.participants[participant].comtree));
        steer(bytes, 1).1 == own && self.is_apart(participant)
    }

    /// A receive buffer had no room for a participant's datagram.
    pub(crate) fn had_no_room(&mut self, participant: usize, bytes: &[u8]) {
        if self.comes_apart(participant, bytes) {
            let what =
                format!("a flood on another comtree cost participant {participant} a datagram");
            self.oracle.broken(format!("{}: {what}", self.now));
        }
    }

    /// The relay has read a datagram where there are floods.
    pub(crate) fn police(&mut self, read: &Read) {
        let Some(floods) = &self.scenario.floods else { return };
        let Some(participant) = read.datagram.participant else {
            let from = read.datagram.from;
            let flooder = self.flooders.iter_mut().find(|one| one.ip_port == from);
            let verdict = flooder.map(|one| one.was_read(self.now, read, &floods.budgets));
            if let Some(Err(what)) = verdict {
                self.oracle.broken(format!("{}: {what}", self.now));
            }
            return;
        };
        let waited = self.now.since(read.datagram.at);
        let most = self.scenario.longest_unread();
        if self.comes_apart(participant, &read.datagram.bytes) && waited > most {
            let what =
                format!("participant {participant} waited {waited:?} to be read, not {most:?}");
            self.oracle.broken(format!("{}: {what}", self.now));
        }
        if read.policed > 0 {
            let what = format!("participant {participant} is policed, who stays within its limits");
            self.oracle.broken(format!("{}: {what}", self.now));
        }
    }

    /// A participant has been refused a subscription.
    pub(crate) fn is_refused(&mut self, participant: usize) {
        let leaves_room = self.scenario.floods.as_ref().is_some_and(|floods| floods.leaves_room);
        if leaves_room && self.tokens.is_none() && self.is_apart(participant) {
            let what = format!("a flood on another comtree cost participant {participant} a group");
            self.oracle.broken(format!("{}: {what}", self.now));
        }
    }
}
