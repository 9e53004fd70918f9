//! What must be true at every moment, and at the end.

use super::config::TopologySabotage;
use super::machine::Held;
use super::world::World;
use canopy_control::storage::Table;
use canopy_control::{Core, Enter, MemberState};
use canopy_plan::Rate;
use canopy_wire::DropReason;
use std::time::Duration;

/// When nothing has failed for a while, a look at the controller finds it settled within so long.
const SETTLED_WITHIN: Duration = Duration::from_secs(2);
/// How long a move takes for each relay of its world, beside the time that it takes to reach it. A parent is succeeded
/// in 3.1 s and as long as what goes up is held for.
const MOVED_WITHIN: Duration = Duration::from_secs(4);

impl World<'_> {
    pub(crate) fn judge(&mut self) {
        self.excuse_unjoined();
        self.model.judge(self.now);
        self.look_whether_settled();
        if let Some(controller) = &self.process.controller {
            let knows = |owner| self.people.iter().any(|person| person.owner == owner);
            let mut held = controller.members().filter(|of| of.state != MemberState::Resting);
            let stranger = held.find(|member| !knows(member.owner)).map(|member| member.address);
            if let Some(address) = stranger {
                self.model.broken(self.now, format!("{address} has a reservation and is nobody"));
            }
            if let Err(fault) = controller.audit() {
                self.model.broken(self.now, fault);
            }
            let meshes = self.worlds.iter().map(|world| controller.mesh(world.comtree).len());
            let largest = meshes.max().unwrap_or(0) as u32;
            self.told.meshed = self.told.meshed.max(largest);
        }
        self.look_at_excess();
        self.check_bounds();
    }

    /// Looks at what relays have dropped as over budget.
    pub(crate) fn look_at_excess(&mut self) {
        let machines = self.machines.iter();
        let dropped = machines.map(|of| of.counters().dropped(DropReason::OverBudget));
        self.excess.look(self.now, dropped);
    }

    fn look_whether_settled(&mut self) {
        let Some(controller) = &self.process.controller else { return };
        // Where links are exchanged or better trees are looked for, where an operator has moved a world shortly before, and
        // where meshed cores become larger, trees are on their way to others at any time, for some seconds for each relay.
        let is_meshed = self.config.core == Core::Mesh;
        let may_move = self.config.degree > 0 || self.improves || self.operates || is_meshed;
        let is_moving = self.worlds.iter().any(|world| controller.is_moving(world.comtree));
        if controller.is_settled() || may_move && is_moving {
            self.settled_at = self.now;
        }
        for world in &mut self.worlds {
            let is_moving = controller.is_moving(world.comtree);
            world.moves_since = is_moving.then(|| world.moves_since.unwrap_or(self.now));
        }
    }

    /// Worlds may be on their way to other trees at the end, but each gets there: in steps, of which a relay needs few.
    pub(crate) fn check_moves_end(&mut self) {
        for number in 0..self.worlds.len() {
            let world = &self.worlds[number];
            let Some(since) = world.moves_since else { continue };
            let (lasts, relays) = (self.now.since(since), world.nodes.len() as u32);
            if lasts > (MOVED_WITHIN + self.span + world.waits()) * relays {
                let what = format!("{} has been on its way for {lasts:?} at last", world.name);
                self.model.broken(self.now, what);
            }
        }
    }

    /// For a sabotage: while a world is on its way to another tree, relays are told nothing.
    pub(crate) fn stalls(&self) -> bool {
        self.config.sabotage == Some(TopologySabotage::StallMoves)
            && self.process.controller.as_ref().is_some_and(|controller| {
                self.worlds.iter().any(|world| controller.is_moving(world.comtree))
            })
    }

    /// Looks whether the controller is settled after it has stored something. Where hundreds of relays report
    /// delays, that is for moments only, between two things that are stored.
    pub(crate) fn look_after_commit(&mut self) {
        let ends_soon = self.now < self.leave_at && self.leave_at.since(self.now) <= SETTLED_WITHIN;
        if ends_soon {
            self.look_whether_settled();
        }
    }

    /// What is held grows with what there is, not with what has happened.
    fn check_bounds(&mut self) {
        let people = self.people.len() as u32;
        for relay in 0..self.machines.len() {
            let Held { sessions, subscriptions, groups } = self.machines[relay].held();
            let degree =
                self.graph.edges.iter().filter(|edge| edge.ends.contains(&relay)).count() as u32;
            let groups_of_all = 4 * self.worlds.len() as u32;
            // A session that was lost is there until it expires; its participant has one at most.
            let is_bounded = sessions <= 2 * people + degree
                && groups <= groups_of_all
                && subscriptions <= groups_of_all * (2 * people + degree + 1);
            if !is_bounded {
                let held = self.machines[relay].held();
                self.model.broken(self.now, format!("relay {relay} holds {held:?}"));
            }
        }
        // An address rests when its member has left; nobody leaves more than once in two seconds.
        let seconds = self.now.as_nanos() / 1_000_000_000 + 2;
        let members = self.process.storage.len(Table::Members) as u64;
        if members > u64::from(people) * seconds {
            self.model.broken(self.now, format!("{members} records of members are stored"));
        }
    }

    /// Counts what passes over a link, and holds it against what the link bears in a second.
    pub(crate) fn count_bytes(&mut self, link: usize, side: usize, len: usize) {
        let second = self.now.as_nanos() / 1_000_000_000;
        let (of, bytes) = &mut self.bytes[link][side];
        if *of != second {
            (*of, *bytes) = (second, 0);
        }
        *bytes += len as u64;
        let bytes = *bytes;
        let part = bytes as f64 * 8.0 / self.link_rate().bits;
        self.told.fullest = self.told.fullest.max(part);
        if let Some(most) = self.loading.most.get_mut(link) {
            most[side] = most[side].max(bytes);
        }
        if part > 1.0 {
            let what = format!("link {link} is sent more bytes in a second than it bears");
            self.model.broken(self.now, what);
        }
    }

    /// Participants of a dead relay are at others in time. Who has left and come again since is asked
    /// for at the end.
    pub(crate) fn check_rehomed(&mut self, people: &[usize]) {
        for number in people {
            let person = &self.people[*number];
            if person.is_lost {
                let relay = person.relay;
                let what = format!("participant {number} of a dead relay is not in ({relay})");
                self.model.broken(self.now, what);
            }
        }
    }

    /// When nothing has failed for a while, whoever wants to be in is.
    pub(crate) fn check_everybody_is_in(&mut self) {
        for number in 0..self.people.len() {
            let person = &self.people[number];
            if person.is_wanted && self.model.since(number).is_none() {
                let relay = person.relay;
                let what = format!("participant {number} is not in at last, at relay {relay}");
                self.model.broken(self.now, what);
            }
        }
        // There is nearly always something that is being stored: it is settled now and then.
        if self.now.since(self.settled_at) > SETTLED_WITHIN {
            self.model.broken(self.now, "the controller is not settled at last");
        }
    }

    /// After all have left, nothing is reserved, and relays have nothing but links.
    pub(crate) fn finish(&mut self) {
        self.check_proposed();
        self.look_at_excess();
        let Some(controller) = &self.process.controller else {
            return self.model.broken(self.now, "there is no controller at last");
        };
        let reserved = controller.accounts().find(|(_, _, reserved)| *reserved != Rate::ZERO);
        let mut faults = Vec::new();
        if let Some((account, _, reserved)) = reserved {
            faults.push(format!("{account:?}: {reserved:?} is reserved for nobody"));
        }
        for (relay, machine) in self.machines.iter().enumerate() {
            let items = self.items_of_worlds(relay);
            if items > 0 {
                faults.push(format!("relay {relay} has {items} items after all have left"));
            }
            let dropped = machine.counters();
            let in_circles = dropped.dropped(DropReason::HopLimit);
            if in_circles > 0 {
                faults.push(format!(
                    "relay {relay} dropped {in_circles} updates that went in circles"
                ));
            }
            let of_comtrees = dropped.dropped(DropReason::ComtreeOverBudget);
            for (reason, count) in [
                (DropReason::OverBudget, self.excess.found(relay)),
                (DropReason::ComtreeOverBudget, of_comtrees),
            ] {
                if count > 0 {
                    faults.push(format!("relay {relay} dropped {count} within limits: {reason:?}"));
                }
            }
        }
        faults.into_iter().for_each(|fault| self.model.broken(self.now, fault));
    }

    /// Lets somebody in of whom the model does not know: the sabotage that is to be seen.
    pub(crate) fn leak(&mut self) {
        let at = self.process.local(self.now);
        let measured = self.process.ids.iter().flatten().map(|id| (*id, 1)).collect();
        let world = self.worlds[0].name.clone();
        let enter = Enter::new(world, [0xee; 16], measured);
        if let Some(controller) = &mut self.process.controller
            && let Err(why) = controller.enter(at, &enter)
        {
            self.model.broken(self.now, format!("nothing leaks: {why}"));
        }
        self.pump_controller();
    }
}
