//! What fails and is mended, and what may go wrong meanwhile.

use super::config::TopologySabotage;
use super::faults::{Fault, Planned};
use super::machine::Machine;
use super::world::{Step, World};
use canopy_control::signal::Role;
use canopy_session::PublicKey;
use canopy_wire::{Comtree, Time};
use rand::RngExt;
use std::collections::BTreeSet;
use std::time::Duration;

/// Traffic flows again so long after a link or a relay has failed, beside the longest way four times and the ticks that
/// the world's relays wait for once: relays tell the controller, it tells relays, and they ask each other for what they lack.
pub(crate) const REPAIRED_IN: Duration = Duration::from_millis(1_000);
/// Participants of a dead relay are at others by then, beside the same.
const REHOMED_IN: Duration = Duration::from_millis(2_000);
/// What was cut off is found again so long after it is mended, beside the same.
const FOUND_IN: Duration = Duration::from_millis(5_000);
/// A controller that starts waits for its relays so long before it gives one up.
const RETURN: Duration = Duration::from_secs(8);
/// Relays whose channels are open again, or have ended, are heard again within this.
const RECONNECTED_IN: Duration = Duration::from_secs(2);
/// A channel over which nothing comes ends.
const SILENCE: Duration = Duration::from_secs(3);

/// What a world lacks without a link.
enum Without {
    Nothing,
    /// A parent for one relay, which has a standby parent.
    Standby,
    /// A parent for one relay, which can find a way to the root.
    Found,
    /// A parent that only the controller can give, or nobody.
    Way,
}

fn is_blocked(relay: usize, one_in: usize) -> bool {
    if one_in == 1 { relay > 0 } else { relay.is_multiple_of(one_in) }
}

impl World<'_> {
    /// How much longer things take in a world the farther apart relays are, and the longer they wait for its ticks.
    pub(crate) fn far(&self, world: usize) -> Duration {
        self.span * 4 + self.worlds[world].waits()
    }

    pub(crate) fn break_down(&mut self, number: usize) {
        let fault = self.choose(self.faults[number].fault);
        self.faults[number].fault = fault;
        let (now, until) = (self.now, self.faults[number].until);
        self.told.faults += 1;
        match fault {
            Fault::Link(link) => {
                self.excuse_without(Some(link), None, number);
                self.cut[link] = true;
            }
            Fault::Relay(relay) => self.kill_relay(relay, number),
            // Nothing depends on anything yet, or all of it has failed once.
            Fault::LinkOfTree | Fault::RelayOfTree | Fault::StormOfTree => {}
            Fault::Controller => {
                self.excuse_unfinished(until);
                self.kill_controller();
            }
            Fault::Channels(one_in) => self.block(one_in, number),
            Fault::Loss => {
                self.loses = true;
                self.excuse_all(until + FOUND_IN);
            }
            Fault::Reordering => {
                self.reorders = true;
                let far = (0..self.worlds.len()).map(|world| self.far(world)).max();
                let until = until + REPAIRED_IN + far.unwrap_or_default();
                self.model.excuse_order(now, until);
            }
            Fault::Storm(link) => {
                self.excuse_storm(link, until);
                self.cut[link] = true;
                self.kill_controller();
            }
        }
        self.trace.arrived(
            now,
            ([0, 0, 0, 0], number as u16).into(),
            ([0, 0, 0, 0], 0).into(),
            &[],
        );
    }

    pub(crate) fn mend(&mut self, number: usize) {
        match self.faults[number].fault {
            Fault::Link(link) => self.cut[link] = false,
            Fault::Relay(relay) => self.start_relay(relay),
            Fault::LinkOfTree | Fault::RelayOfTree | Fault::StormOfTree => {}
            Fault::Controller => self.start_controller(),
            Fault::Channels(_) => self.reopen(),
            Fault::Loss => self.loses = false,
            Fault::Reordering => self.reorders = false,
            Fault::Storm(link) => {
                self.cut[link] = false;
                self.start_controller();
            }
        }
    }

    /// Chooses what fails, where a fault is to hit something on which a world depends. Nothing is chosen twice:
    /// the controller leaves alone a link that fails again and again, on purpose.
    fn choose(&mut self, fault: Fault) -> Fault {
        let of_tree = [Fault::LinkOfTree, Fault::RelayOfTree, Fault::StormOfTree];
        if !of_tree.contains(&fault) {
            return fault;
        }
        let trees = self.process.controller.iter().flat_map(|controller| {
            self.worlds.iter().flat_map(|world| controller.tree(world.comtree))
        });
        let hops = trees.filter_map(|hop| {
            let (relay, above) = (self.process.node(hop.relay)?, hop.above);
            let above = above.and_then(|(above, _)| self.process.node(above));
            Some((relay, above.and_then(|above| self.graph.between(relay, above))))
        });
        let has_failed = |link: &usize| {
            let of = [Fault::Link(*link), Fault::Storm(*link)];
            self.faults.iter().any(|planned| of.contains(&planned.fault))
        };
        let faults: Vec<Fault> = hops
            .filter_map(|(relay, link)| match fault {
                Fault::LinkOfTree => link.filter(|link| !has_failed(link)).map(Fault::Link),
                Fault::StormOfTree => link.filter(|link| !has_failed(link)).map(Fault::Storm),
                _ => self.machines[relay].is_up().then_some(Fault::Relay(relay)),
            })
            .collect();
        match faults.is_empty() {
            true => fault,
            false => faults[self.rng.random_range(0..faults.len())],
        }
    }

    /// What is published may be lost until it is repaired; and, where what stands does not hold together, between those
    /// whom nothing joins until the fault is mended.
    fn excuse_without(&mut self, link: Option<usize>, relay: Option<usize>, number: usize) {
        let standing = self.standing(link, relay);
        for world in 0..self.worlds.len() {
            self.model.excuse(world, self.now, self.now + REPAIRED_IN + self.far(world));
            let is_here = |node: &usize| Some(*node) != relay;
            let mut nodes = self.relays_of(world).into_iter().filter(is_here);
            let first = nodes.next().and_then(|node| standing[node]);
            if first.is_some() && !nodes.all(|node| standing[node] == first) {
                let parts = self.people.iter().map(|person| standing[person.relay]).collect();
                let mended = self.faults[number].until + FOUND_IN + self.far(world);
                self.model.excuse_apart(world, (self.now, mended), parts);
            }
        }
    }

    /// The relays that have a world's participants.
    fn relays_of(&self, world: usize) -> Vec<usize> {
        let of = self.people.iter().filter(|person| person.world == world && person.is_wanted);
        of.map(|person| person.relay).collect()
    }

    /// A link fails, and the controller with it: what is published may be lost until the relays have
    /// helped themselves; or, where they cannot, until the controller has its relays again.
    fn excuse_storm(&mut self, link: usize, until: Time) {
        for world in 0..self.worlds.len() {
            match self.without(link, world) {
                Without::Nothing => {}
                Without::Standby => {
                    self.told.alone += 1;
                    let mended = self.now + REPAIRED_IN + self.far(world);
                    self.model.excuse(world, self.now, mended);
                }
                Without::Found => {
                    self.told.alone += 1;
                    // A question goes all the way, and its answer all the way back.
                    let mended = self.now + REPAIRED_IN + 2 * self.far(world);
                    self.model.excuse(world, self.now, mended);
                }
                Without::Way => {
                    self.model.excuse(world, self.now, until + RETURN + self.far(world));
                }
            }
        }
    }

    /// What relays that have been told everything lack on a world's tree without a link.
    fn without(&self, link: usize, world: usize) -> Without {
        let comtree = self.worlds[world].comtree;
        let is_well = |machine: &Machine| machine.is_up() && !machine.detours.has(comtree);
        let controller = self.process.controller.as_ref();
        let is_told = controller.is_some_and(|controller| {
            controller.is_settled()
                && controller.why(comtree).is_some_and(|(_, broken)| broken.is_none())
        });
        if !is_told || !self.machines.iter().all(is_well) || self.cut.contains(&true) {
            return Without::Way;
        }
        let ends = self.graph.edges[link].ends;
        let branch = |at: usize, to: usize| {
            let key = self.machines[to].identity.public();
            self.machines[at].branch_to(comtree, key)
        };
        let [one, other] = [(ends[0], ends[1]), (ends[1], ends[0])].map(|(at, to)| branch(at, to));
        let below = match (one, other) {
            (None, None) => return Without::Nothing,
            (Some(Role::Parent), Some(Role::Child)) => ends[0],
            (Some(Role::Child), Some(Role::Parent)) => ends[1],
            // A standby parent is not needed now.
            (Some(one), Some(other)) if one.is_standby() && other.is_standby() => {
                return Without::Nothing;
            }
            _ => return Without::Way,
        };
        let has_standby = (0..self.machines.len()).any(|to| {
            branch(below, to) == Some(Role::StandbyParent)
                && branch(to, below) == Some(Role::StandbyChild)
        });
        match has_standby {
            true => Without::Standby,
            false if self.finds_way(below, link, comtree) => Without::Found,
            false => Without::Way,
        }
    }

    /// Whether a relay can find a way to a comtree's root without a link: where it stays as it is, below one root, and
    /// other links between its relays join the two.
    fn finds_way(&self, from: usize, without: usize, comtree: Comtree) -> bool {
        let role = |at: usize, to: usize| {
            self.machines[at].branch_to(comtree, self.machines[to].identity.public())
        };
        let all = (0..self.machines.len()).flat_map(|at| {
            let others = (0..self.machines.len()).filter(move |to| *to != at);
            others.filter_map(move |to| Some((at, to, role(at, to)?)))
        });
        let all: Vec<(usize, usize, Role)> = all.collect();
        let may = |role: &Role| !matches!(role, Role::Core | Role::NextParent) && !role.is_peer();
        if !all.iter().all(|(_, _, role)| may(role)) {
            return false;
        }
        let ends = self.graph.edges[without].ends;
        let is_cut = |at: usize, to: usize| ends.contains(&at) && ends.contains(&to);
        let (mut reached, mut next) = (vec![from], 0);
        while let Some(at) = reached.get(next).copied() {
            next += 1;
            for (_, to, _) in all.iter().filter(|(of, ..)| *of == at) {
                let is_on_both = all.iter().any(|(of, back, _)| of == to && *back == at);
                if is_on_both && !is_cut(at, *to) && !reached.contains(to) {
                    reached.push(*to);
                }
            }
        }
        let is_root =
            |at: &usize| !all.iter().any(|(of, _, role)| of == at && *role == Role::Parent);
        reached.iter().any(is_root)
    }

    /// The controller fails: what it was repairing it goes on with once it has its relays again, and until then the fault is
    /// in flight.
    fn excuse_unfinished(&mut self, until: Time) {
        if self.process.controller.as_ref().is_some_and(|controller| controller.is_settled()) {
            return;
        }
        for world in 0..self.worlds.len() {
            if self.model.is_excused(world, self.now) {
                self.model.excuse(world, self.now, until + RETURN + self.far(world));
            }
        }
    }

    fn excuse_all(&mut self, until: Time) {
        for world in 0..self.worlds.len() {
            self.model.excuse(world, self.now, until + self.far(world));
        }
    }

    fn kill_relay(&mut self, relay: usize, number: usize) {
        self.excuse_without(None, Some(relay), number);
        self.machines[relay].stop();
        self.end_channel(relay);
        let standing = self.standing(None, None);
        // Who has no other relay near, or is cut off from the others by it, stays where it is.
        let mut moving: Vec<usize> = (0..self.people.len()).collect();
        moving.retain(|one| {
            let person = &self.people[*one];
            let others = self.relays_of(person.world);
            let takes = |node: &&usize| self.draining != Some(**node);
            let near = person.near.iter().filter(takes).find_map(|node| standing[*node]);
            let is_whole =
                others.iter().filter(|node| **node != relay).all(|node| standing[*node] == near);
            person.relay == relay && person.is_connected() && near.is_some() && is_whole
        });
        for world in 0..self.worlds.len() {
            let of_world = |one: &usize| self.people[*one].world == world;
            let moving = moving.iter().copied().filter(of_world).collect();
            let by = self.now + REHOMED_IN + self.far(world);
            self.at(by, Step::Rehomed(moving));
        }
    }

    fn kill_controller(&mut self) {
        let commits = self.rng.random_bool(0.5);
        self.process.stop(commits);
        for relay in 0..self.channels.len() {
            self.end_channel(relay);
        }
    }

    /// A channel ends; both sides notice, and the relay calls again.
    fn end_channel(&mut self, relay: usize) {
        if !self.channels[relay].is_open() {
            return;
        }
        self.channels[relay].epoch += 1;
        let at = self.process.local(self.now);
        if let (Some(controller), Some(id)) =
            (&mut self.process.controller, self.process.ids[relay])
        {
            controller.handle_disconnect(at, id);
            self.pump_controller();
        }
        let pause = Duration::from_millis(self.rng.random_range(100..300));
        self.after(pause, Step::Connect(relay, self.machines[relay].life));
    }

    /// Nothing passes between the controller and some relays. Those are given up to which no links lead from one that it
    /// hears.
    fn block(&mut self, one_in: usize, number: usize) {
        let until = self.faults[number].until;
        for relay in (0..self.channels.len()).filter(|relay| is_blocked(*relay, one_in)) {
            self.channels[relay].blocked = until;
        }
        if !(0..self.channels.len()).all(|relay| self.is_within_reach(relay)) {
            self.excuse_all(until + FOUND_IN);
            self.excuse_excess(until + FOUND_IN);
        }
    }

    /// Whether the controller hears a relay, or links lead there from one that it hears.
    fn is_within_reach(&self, relay: usize) -> bool {
        let standing = self.standing(None, None);
        let is_heard =
            |of: usize| self.channels[of].blocked <= self.now && self.machines[of].is_up();
        is_heard(relay)
            || standing[relay].is_some()
                && (0..self.channels.len())
                    .any(|of| is_heard(of) && standing[of] == standing[relay])
    }

    /// Whether links that are up lead to a relay from another one that the controller hears.
    fn is_linked_with_who_is_heard(&self, relay: usize) -> bool {
        let number = |key: &PublicKey| {
            self.machines.iter().position(|machine| machine.identity.public() == key)
        };
        let (mut reached, mut next) = (BTreeSet::from([relay]), vec![relay]);
        while let Some(at) = next.pop() {
            let linked = self.machines[at].linked();
            next.extend(linked.iter().filter_map(number).filter(|to| reached.insert(*to)));
        }
        reached.into_iter().any(|of| of != relay && self.channels[of].blocked <= self.now)
    }

    /// The controller has given up a relay. While nothing else fails, that one is none to which links lead.
    pub(crate) fn check_lost(&mut self, relay: usize) {
        let is_on = |planned: &&Planned| {
            planned.from <= self.now && self.now < planned.until + RECONNECTED_IN
        };
        let fault = self.faults.iter().find(is_on).map(|planned| planned.fault);
        if matches!(fault, Some(Fault::Channels(_)))
            && self.machines[relay].is_up()
            && self.is_linked_with_who_is_heard(relay)
        {
            self.model.broken(self.now, format!("relay {relay} is given up, and links lead there"));
        }
    }

    /// Places may be taken away without the word of their relays, which send on what their members say.
    fn excuse_excess(&mut self, until: Time) {
        // What was dropped before is not excused by it.
        self.look_at_excess();
        let far = (0..self.worlds.len()).map(|world| self.far(world)).max();
        self.excess.excuse(self.now, until + far.unwrap_or_default());
    }

    /// Channels that were blocked go on, or have ended by now.
    fn reopen(&mut self) {
        for relay in 0..self.channels.len() {
            let planned = self.faults.iter().find(|planned| {
                planned.until == self.now && self.channels[relay].blocked == self.now
            });
            if planned.is_some_and(|planned| planned.until.since(planned.from) > SILENCE) {
                self.end_channel(relay);
            }
        }
    }

    /// Whether messages to relays are held up, because something fails now or has lately.
    pub(crate) fn is_sabotaged_late(&self) -> bool {
        let is_after = |planned: &Planned| self.now >= planned.from;
        self.config.sabotage == Some(TopologySabotage::LateRepair)
            && self.faults.iter().any(is_after)
    }
}
