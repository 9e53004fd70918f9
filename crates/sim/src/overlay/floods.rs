//! One of many relays is flooded at rate: those on other comtrees or at other relays notice nothing, and whoever floods
//! gets no more through than it may, also not over links.

use super::config::{OverlayConfig, OverlaySabotage};
use super::machine::{self, relay_at};
use super::participant::participant_at;
use super::queue::{Datagram, Step};
use super::scenario::Scenario;
use super::shape::Hop;
use super::world::World;
use crate::flood::{Flood, Floods, LEAVES_AFTER, Setting, What};
use crate::flooder::Flooder;
use crate::host::{Read, steer};
use crate::network::Direction;
use crate::policing::{IDLE, VOLLEYS_EVERY};
use crate::sabotage::Sabotage;
use crate::scenario::{Stream, stream};
use canopy_relay::Inlet;
use canopy_session::{Identity, Session};
use canopy_wire::{Address, Comtree, Lane, Time};
use rand::RngExt;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

/// The wire of what no participant and no relay sends.
const ASIDE: usize = usize::MAX;
/// A relay reads and sends so many turns after an update arrived at most.
const TURNS: u32 = 4;

/// A relay that is flooded.
#[derive(Clone, Debug)]
pub(crate) struct Flooded {
    pub(crate) relay: usize,
    pub(crate) floods: Floods,
}

/// Somebody who floods, and what of it has passed links since it was let in.
pub(crate) struct OverlayFlooder {
    one: Flooder,
    passed: BTreeMap<Hop, (Time, u64)>,
}

/// Whether a relay is flooded.
pub(crate) fn is_drawn(config: &OverlayConfig) -> bool {
    let is_drawn = stream(config.seed, Stream::Floods).random_bool(0.1);
    let is_free = config.sabotage.is_none() && config.roles_change != Some(true);
    config.floods.unwrap_or(is_drawn && is_free)
}

fn sabotage_of(config: &OverlayConfig) -> Option<Sabotage> {
    match config.sabotage {
        Some(OverlaySabotage::Access(sabotage)) => Some(sabotage).filter(|one| one.is_of_floods()),
        _ => None,
    }
}

/// Those who flood in a run.
pub(crate) fn flooders(config: &OverlayConfig, scenario: &Scenario) -> Vec<OverlayFlooder> {
    let each = scenario.flooded.iter().flat_map(|flooded| &flooded.floods.each);
    let flooder = |(number, flood): (usize, &Flood)| {
        let setting = (config.seed, scenario.packets_per_key);
        let one = Flooder::new(number, (flood, flood.comtree), Some(identity(number)), setting);
        OverlayFlooder { one, passed: BTreeMap::new() }
    };
    each.enumerate().map(flooder).collect()
}

fn identity(number: usize) -> Identity {
    Identity::new([200 + number as u8; 32])
}

impl Flooded {
    pub(crate) fn draw(config: &OverlayConfig, scenario: &Scenario) -> Flooded {
        let rng = &mut stream(config.seed, Stream::Floods);
        // Those before tell whether there are any.
        rng.set_word_pos(1 << 20);
        let slowest = scenario.wires.iter().flatten().map(|way| way.worst()).max();
        let setting = Setting {
            sabotage: sabotage_of(config),
            lets_in: true,
            calm_from: scenario.calm_from,
            publish_ms: scenario.habits.publish_ms.start,
            longest: scenario.habits.longest,
            held_back: slowest.unwrap_or_default(),
        };
        let relays: Vec<usize> = scenario.trees[0].relays().collect();
        let relay = relays[rng.random_range(0..relays.len())];
        Flooded { relay, floods: Floods::draw(&setting, rng) }
    }

    /// How much longer than otherwise an update of a comtree takes at most through the relay. On a lane that is flooded it
    /// may wait behind a receive buffer full of the flood, which another flood leaves half of the turns.
    pub(crate) fn delays(&self, comtree: Comtree) -> Duration {
        let Floods { per_datagram, receive_queue, .. } = self.floods;
        let buffer = per_datagram * receive_queue as u32 * 2;
        let is_behind = self.floods_lane_of(comtree);
        self.floods.longest_turn() * TURNS + if is_behind { buffer } else { Duration::ZERO }
    }

    /// Whether what a comtree sends comes by a lane that is flooded: its receive buffer may be full.
    pub(crate) fn floods_lane_of(&self, comtree: Comtree) -> bool {
        self.is_flooded(Inlet::Lane(Lane::of(comtree)))
    }

    /// Whether somebody floods it with changes of subscriptions.
    pub(crate) fn changes_subscriptions(&self) -> bool {
        self.floods.each.iter().any(|flood| flood.what == What::Subscriptions)
    }

    /// The inlets of the relay that are flooded.
    fn is_flooded(&self, inlet: Inlet) -> bool {
        self.floods.each.iter().any(|flood| match flood.what {
            What::Updates | What::Subscriptions => inlet == Inlet::Lane(Lane::of(flood.comtree)),
            What::Hellos | What::Garbage => inlet == Inlet::Strangers,
        })
    }
}

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
            let more = self.keys.updates_of(wire, hop.1, bytes, src);
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
