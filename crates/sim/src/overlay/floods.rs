//! One of many relays is flooded at rate: those on other comtrees or at other relays notice nothing, and whoever floods
//! gets no more through than it may, also not over links.

use super::flooders::identity;
use super::machine::{self, relay_at};
use super::participant::participant_at;
use super::queue::{Datagram, Step};
use super::shape::Hop;
use super::world::World;
use crate::flood::{Flood, LEAVES_AFTER};
use crate::host::{Read, steer};
use crate::network::Direction;
use crate::policing::{IDLE, VOLLEYS_EVERY};
use canopy_session::Session;
use canopy_wire::Address;
use std::net::SocketAddr;
use std::rc::Rc;

/// The wire of what no participant and no relay sends.
const ASIDE: usize = usize::MAX;

impl World<'_> {
    pub(crate) fn plan_floods(&mut self) {
        for number in 0..self.flooders.len() {
            self.keys.floods(*identity(number).public());
            self.at(self.flooders[number].one.begins(), Step::Flood(number));
        }
    }

    /// Somebody who floods does what it does next.
    pub(crate) fn flood(&mut self, number: usize) {
        let flooder = &mut self.flooders[number].one;
        let Flood { from, until, .. } = flooder.flood;
        if self.now >= until + LEAVES_AFTER {
            flooder.session.iter_mut().for_each(Session::leave);
            self.pump_flooder(number);
            return self.flooders[number].one.session = None;
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
        while let Some(bytes) = self.flooders[number].one.poll(now) {
            let from = self.flooders[number].one.ip_port;
            self.arrives_aside(from, bytes.into());
        }
    }

    fn arrives_aside(&mut self, from: SocketAddr, bytes: Rc<[u8]>) {
        let Some(flooded) = &self.scenario.flooded else { return };
        let to = machine::ip_port(flooded.relay);
        let at = self.network.offer_aside(self.now);
        let direction = Direction::Up;
        self.at(at, Step::Arrive(Datagram { from, to, bytes, wire: ASIDE, direction }));
    }

    /// What the relay sends to where no participant is, somebody who floods may hear.
    pub(crate) fn tell_flooder(&mut self, to: SocketAddr, bytes: &Rc<[u8]>) {
        let found = self.flooders.iter().position(|flooder| flooder.one.ip_port == to);
        let Some(number) = found else { return };
        if let Some(session) = &mut self.flooders[number].one.session {
            let _ = session.handle_datagram(self.now, &mut bytes.to_vec(), |_| ());
            self.pump_flooder(number);
        }
    }

    /// A receive buffer of the flooded relay had no room: that is so for what comes by a flooded lane only.
    pub(crate) fn had_no_room(&mut self, datagram: &Datagram) {
        let Datagram { from, bytes, wire, direction, .. } = datagram;
        if *wire == ASIDE {
            return;
        }
        if self.comes_apart(bytes) {
            self.model
                .broken(self.now, || format!("a flood on another lane cost {from} a datagram"));
        }
        let carried = self.keys.updates_in(*wire, *direction, bytes);
        self.model.lost_on(*wire, *direction, &carried);
    }

    /// Whether a datagram comes by a lane on which nobody floods.
    fn comes_apart(&self, bytes: &[u8]) -> bool {
        let inlet = steer(bytes, 1).1;
        self.scenario.flooded.as_ref().is_some_and(|flooded| !flooded.is_flooded(inlet))
    }

    /// The flooded relay has read a datagram.
    pub(crate) fn police(&mut self, read: &Read) {
        let scenario = Rc::clone(&self.scenario);
        let Some(flooded) = &scenario.flooded else { return };
        let from = read.datagram.from;
        if let Some(flooder) = self.flooders.iter_mut().find(|flooder| flooder.one.ip_port == from)
        {
            let verdict = flooder.one.was_read(self.now, read, &flooded.floods.budgets);
            return verdict.unwrap_or_else(|what| self.model.broken(self.now, || what));
        }
        if participant_at(from).is_none() && relay_at(from).is_none() {
            return;
        }
        let waited = self.now.since(read.datagram.at);
        let turn = scenario.turn + flooded.floods.longest_turn();
        let most = turn * 2 + scenario.mode.longest_unread();
        if waited > most && self.comes_apart(&read.datagram.bytes) {
            let what = || format!("{from} waited {waited:?} to be read, not {most:?}");
            self.model.broken(self.now, what);
        }
        if read.policed > 0 {
            let what = || format!("{from} is policed, which stays within its limits");
            self.model.broken(self.now, what);
        }
    }

    /// A relay sends over a link: no more of whoever floods than that may have got through.
    pub(crate) fn floods_over(&mut self, hop: Hop, bytes: &[u8]) {
        let scenario = Rc::clone(&self.scenario);
        let Some(flooded) = &scenario.flooded else { return };
        for flooder in &mut self.flooders {
            let Flood { from, until, .. } = flooder.one.flood;
            let session = flooder.one.session.as_ref();
            let src = session.map_or(Address::UNSPECIFIED, Session::address);
            let is_on = (from..until + LEAVES_AFTER).contains(&self.now);
            if src == Address::UNSPECIFIED || !is_on {
                continue;
            }
            let wire = scenario.wire_of_link(hop.0);
            let publisher = (flooder.one.comtree, src);
            let more = self.keys.updates_of(wire, hop.1, bytes, publisher);
            let (since, most) = flooder.one.may_have_sent(self.now, &flooded.floods.budgets);
            let passed = flooder.passed.entry(hop).or_insert((since, 0));
            *passed = if passed.0 == since { (since, passed.1 + more) } else { (since, more) };
            self.tallies.flooded_over_links += more;
            if passed.1 > most {
                let passed = passed.1;
                let what =
                    || format!("{passed} updates of a flood went over link {}, not {most}", hop.0);
                self.model.broken(self.now, what);
            }
        }
    }
}
