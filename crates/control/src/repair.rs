//! Relays and links come, go and fail; comtrees get other trees (Forest §3.5).

use crate::error::Refusal;
use crate::ledger::{Account, Flow, Lack};
use crate::mesh::Spare;
use crate::model::{
    Key, Link, LinkId, MOST_LINKS, Origin, Relay, RelayId, RelayState, TreeAsk, TreeHop,
};
use crate::name::Name;
use crate::op::{Effect, Event, Op};
use crate::running::Running;
use crate::shape::Shape;
use crate::signal::LinkReport;
use crate::state::{State, number};
use crate::storage::Table;
use canopy_plan::{
    Choice, CoreRule, Demand, FIBRE_SPEED, Limits, Method, Network, Node, Rate, Request, Root,
    choose,
};
use canopy_wire::{Comtree, Time};
use core::net::SocketAddr;
use std::collections::BTreeMap;

/// How many links' delays are followed at a look: each is a record, and a commit has few.
const MOST_FOLLOWED: usize = 64;

/// A relay that registers.
#[derive(Clone, Debug, PartialEq)]
pub struct NewRelay {
    /// Its name.
    pub name: Name,
    /// Its public key.
    pub key: Key,
    /// Where it is reached.
    pub native: SocketAddr,
    /// What it can send and receive altogether.
    pub uplink: Limits,
    /// How many members it has room for.
    pub places: u32,
    /// How many comtrees it can carry.
    pub comtrees: u32,
}

/// Which way a tree is looked for.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Aim {
    /// What stands of the old tree stays.
    Keep(Top),
    /// The same, and where nothing else joins two parts, so do links of the old tree that carry nothing now.
    Patch(Top),
    /// The least costly that is found.
    Best,
}

/// What a tree hangs on.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Top {
    /// The relay that the part of the old tree with the most members hangs on.
    Stays,
    /// Whichever is the best.
    Any,
}

/// What a tree is made of.
struct Ground<'a> {
    relays: Vec<&'a Relay>,
    /// Their nodes for `plan`.
    nodes: BTreeMap<RelayId, usize>,
    links: Vec<&'a Link>,
}

/// Which links no tree takes that is looked for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Leaves {
    /// Those that are being removed, and those that are proposed no more.
    Surplus,
    /// Those that are being removed, and those of which no word has come yet from one of their ends.
    Unheard,
    /// Those that are being removed.
    Removed,
    /// None.
    None,
}

impl State {
    /// Takes a relay that registers. One that is known by its name and key gets the number that it
    /// had, and what it says of itself now counts.
    pub(crate) fn register(&mut self, op: &mut Op, new: NewRelay) -> Result<RelayId, Refusal> {
        let NewRelay { name, key, native, uplink, places, comtrees } = new;
        let uplink = uplink.whole();
        if let Some(known) = self.relay_names.get(&name).and_then(|id| self.relays.get(id)) {
            if known.key != key {
                return Err(Refusal::OtherKey(name));
            }
            let relay = Relay { native, uplink, places, comtrees, ..known.clone() };
            let id = relay.id;
            self.save_relay(op, relay);
            self.tell_ends(op, id);
            self.join_unmeasured(op, id);
            return Ok(id);
        }
        self.check_not_removed(&name, &key)?;
        let id = RelayId(self.counters.relay);
        if id.0 > RelayId::MAX {
            return Err(Refusal::OutOfNumbers("relays"));
        }
        self.counters.relay += 1;
        self.save_counters(op);
        let (state, removing) = (RelayState::Joining, false);
        let relay = Relay { id, name, key, native, uplink, places, comtrees, state, removing };
        self.save_relay(op, relay);
        op.tell(Event::RelayRegistered(id));
        self.join_unmeasured(op, id);
        Ok(id)
    }

    /// Joins two relays.
    pub(crate) fn add_link(
        &mut self,
        op: &mut Op,
        ends: [RelayId; 2],
        rate: Rate,
        delay_us: u32,
        origin: Origin,
    ) -> Result<LinkId, Refusal> {
        for end in ends {
            let relay = self.relay(end)?;
            if ends[0] == ends[1] {
                return Err(Refusal::OwnLink(relay.name.clone()));
            }
            if self.links.values().filter(|link| link.ends.contains(&end)).count() >= MOST_LINKS {
                return Err(Refusal::TooManyLinks(relay.name.clone()));
            }
        }
        let id = LinkId(self.counters.link);
        self.counters.link = id.0.checked_add(1).ok_or(Refusal::OutOfNumbers("links"))?;
        self.save_counters(op);
        let rate = Limits { send: rate, receive: rate }.whole().send;
        let link = Link { id, ends, rate, delay_us, origin, removing: false };
        op.write(Table::Links, number(id.0), Some(&link));
        self.know_link(link);
        self.tell_ends(op, ends[0]);
        op.tell(Event::LinkAdded(id));
        Ok(id)
    }

    /// Tells the ends of a relay's links what they are to have.
    fn tell_ends(&self, op: &mut Op, relay: RelayId) {
        for link in self.links.values().filter(|link| link.ends.contains(&relay)) {
            let tell = |end: &RelayId| Effect::Link(*end, link.id, self.link_item(link, *end));
            op.effects.extend(link.ends.iter().map(tell));
        }
    }

    pub(crate) fn relay(&self, id: RelayId) -> Result<&Relay, Refusal> {
        self.relays.get(&id).ok_or_else(|| Refusal::NoSuchRelay(id.0.to_string()))
    }

    /// Sets what a relay is about. One that takes members is not removed.
    pub(crate) fn set_relay(
        &mut self,
        op: &mut Op,
        id: RelayId,
        state: RelayState,
    ) -> Result<(), Refusal> {
        let before = self.relay(id)?.clone();
        let removing = before.removing && state != RelayState::Up;
        let relay = Relay { state, removing, ..before };
        self.save_relay(op, relay);
        Ok(())
    }

    /// How a relay finds a link. Whatever it says of others' links is not believed.
    pub(crate) fn report(&mut self, now: Time, relay: RelayId, report: LinkReport) {
        let Some(link) = self.links.get(&report.link) else { return };
        if !link.ends.contains(&relay) {
            return;
        }
        let health = self.health.entry(report.link).or_default();
        health.delays.measure(relay, report.delay_us);
        let is_first = health.reported.insert(relay);
        if report.up {
            health.deaf.remove(&relay);
            // It counted as usable before, and was none.
            self.links_have_come |=
                is_first && health.deaf.is_empty() && health.reported.len() == 2;
        } else {
            let was_well = health.deaf.is_empty();
            health.deaf.insert(relay);
            if was_well {
                health.damping.fail(now, self.settings.half_life);
            }
        }
    }

    /// Looks which links can be used now. Returns whether any has changed.
    pub(crate) fn review_links(&mut self, op: &mut Op, now: Time) -> bool {
        let half_life = self.settings.half_life;
        let mut has_changed = false;
        for (link, health) in &mut self.health {
            let is_damped = health.damping.is_suppressed(now, half_life);
            let is_usable = health.deaf.is_empty() && !is_damped;
            if is_usable != health.was_usable {
                has_changed = true;
                match (is_usable, is_damped) {
                    (true, _) => op.tell(Event::LinkUp(*link)),
                    (false, true) => op.tell(Event::LinkDamped(*link)),
                    (false, false) => op.tell(Event::LinkDown(*link)),
                }
            }
            health.was_usable = is_usable;
        }
        has_changed
    }

    /// Has the links' delays follow what their ends measure, some at each look. What has really changed is
    /// stored, so that a controller that starts again knows it before relays beat.
    pub(crate) fn follow_delays(&mut self, op: &mut Op) {
        let mut left = MOST_FOLLOWED;
        for link in self.links.values_mut() {
            let delays = self.health.get(&link.id).map(|health| &health.delays);
            if let Some(delay_us) = delays.and_then(|delays| delays.change(link.delay_us)) {
                if left == 0 {
                    return;
                }
                left -= 1;
                link.delay_us = delay_us;
                op.write(Table::Links, number(link.id.0), Some(&*link));
            }
        }
    }

    /// The comtrees that lack something: a link or relay that cannot be used, or a whole tree.
    pub(crate) fn hit(&self) -> Vec<Comtree> {
        let is_hit = |running: &Running| {
            running.shape.is_some()
                && (running.broken.is_some() || running.shapes().any(|shape| !self.is_whole(shape)))
        };
        let is_hit_or_found = |(id, running): &(&Comtree, &Running)| {
            is_hit(running) || !self.found_ways(**id).is_empty()
        };
        self.comtrees.iter().filter(is_hit_or_found).map(|(id, _)| *id).collect()
    }

    /// Whether a comtree's tree in force lacks something; one to which it moves may do so all the same.
    pub(crate) fn is_hurt(&self, comtree: Comtree) -> bool {
        let lacks = |shape: &Shape| !self.is_whole(shape);
        let running = self.comtrees.get(&comtree);
        running.is_some_and(|of| of.broken.is_some() || of.shape.as_ref().is_some_and(lacks))
    }

    /// Whether all links and relays of a tree can be used.
    pub(crate) fn is_whole(&self, shape: &Shape) -> bool {
        shape.links().all(|link| self.is_usable(link))
            && shape.relays().all(|relay| self.is_running(relay))
    }

    /// Gives a comtree that was hit another tree. Where relays have found ways by themselves, these are it, if that fits.
    pub(crate) fn repair(&mut self, op: &mut Op, comtree: Comtree) {
        let found = self.found_ways(comtree);
        if found.is_empty() {
            return self.repair_tree(op, comtree);
        }
        if !self.take_ways(op, comtree) {
            self.end_ways(op, comtree, &found);
            self.repair_tree(op, comtree);
            self.tell_all(op, comtree, &found);
        }
    }

    /// Gives a comtree that was hit another tree: what stands of the old one stays, if that fits. A
    /// comtree that is on its way to another tree stays with the one in force, if that is whole.
    fn repair_tree(&mut self, op: &mut Op, comtree: Comtree) {
        let reason = "a link or relay of its tree failed";
        if let Some(running) = self.comtrees.get_mut(&comtree) {
            running.rests_since = None;
        }
        if self.is_moving(comtree) {
            self.end_move(op, comtree, reason);
            let running = self.comtrees.get(&comtree);
            if running.is_some_and(|r| r.shape.as_ref().is_none_or(|shape| self.is_whole(shape))) {
                return;
            }
        }
        if self.is_joined_again(op, comtree) {
            return;
        }
        // What relays do by themselves meanwhile is the same, so nothing of it is lost.
        let detoured = self.detoured(comtree);
        let sound = detoured.clone().filter(|hops| self.is_sound(hops));
        if sound.is_some_and(|hops| self.take_tree(op, comtree, hops, reason).is_ok()) {
            return;
        }
        let Err(why) = self.take_other_tree(op, comtree, reason) else {
            // Its root, which stays, may have no members and one neighbour left.
            return self.prune(op, comtree);
        };
        // Whoever can be joined is, though others cannot.
        self.repair_parts(op, comtree, detoured, reason);
        if !self.is_joined_again(op, comtree) {
            self.say_broken(op, comtree, why);
        }
    }

    /// Gives a comtree a tree over what can be used: with what can stay of the old one, or else the
    /// best. Returns why there is none.
    pub(crate) fn take_other_tree(
        &mut self,
        op: &mut Op,
        comtree: Comtree,
        reason: &str,
    ) -> Result<(), String> {
        let mut why = "no other tree was found".to_owned();
        // A link that has just been made may carry nothing for a while; that is better than to turn what is well.
        let unheard = (Leaves::Unheard, Aim::Keep(Top::Stays));
        let unheard = self.has_unheard_links().then_some(unheard);
        // A world that finds no way without a link which is being removed needs it after all.
        let is_removing = self.links.values().any(|link| link.removing);
        let all = [Leaves::Removed].into_iter().chain(is_removing.then_some(Leaves::None));
        let aims = [Aim::Keep(Top::Stays), Aim::Keep(Top::Any), Aim::Best];
        let others = all.flat_map(|leaves| aims.map(|aim| (leaves, aim)));
        for (leaves, aim) in unheard.into_iter().chain(others) {
            let hops = match self.choose_tree(comtree, aim, leaves, None) {
                Ok((hops, _)) => hops,
                Err(problem) => {
                    why = problem;
                    continue;
                }
            };
            match self.take_tree(op, comtree, hops, reason) {
                Ok(()) => return Ok(()),
                Err(lack) => why = self.refusal(lack).to_string(),
            }
        }
        Err(why)
    }

    pub(crate) fn is_left(&self, link: LinkId, leaves: Leaves) -> bool {
        match leaves {
            Leaves::Surplus => self.is_surplus(link),
            Leaves::Unheard => self.is_being_removed(link) || !self.is_heard(link),
            Leaves::Removed => self.is_being_removed(link),
            Leaves::None => false,
        }
    }

    pub(crate) fn take_tree(
        &mut self,
        op: &mut Op,
        comtree: Comtree,
        hops: Vec<TreeHop>,
        reason: &str,
    ) -> Result<(), Lack> {
        self.reshape(op, comtree, &hops, |_, load| load, Spare::Anybody, reason.to_owned())?;
        op.tell(Event::Reshaped { comtree, why: reason.to_owned() });
        Ok(())
    }

    /// What a comtree costs: bits times length, both ways.
    pub(crate) fn cost_of(&self, comtree: Comtree) -> f64 {
        let shape = self.comtrees.get(&comtree).and_then(|running| running.shape.as_ref());
        shape.map_or(0.0, |shape| self.cost_of_shape(shape))
    }

    /// What a shape costs, in the same way.
    pub(crate) fn cost_of_shape(&self, shape: &Shape) -> f64 {
        let cost = |flow: &Flow| match flow {
            Flow::Over(link, _, _, rate) => rate.bits * self.links.get(link).map_or(0.0, length),
            _ => 0.0,
        };
        shape.flows().iter().map(cost).sum()
    }

    /// A tree for a comtree over what can be used, and what it costs; or why there is none. It goes round relays that
    /// can carry no other comtree. One that is planned goes round relays that drain and have no members.
    pub(crate) fn choose_tree(
        &self,
        comtree: Comtree,
        aim: Aim,
        leaves: Leaves,
        planned: Option<TreeAsk>,
    ) -> Result<(Vec<TreeHop>, f64), String> {
        let running = self.comtrees.get(&comtree).ok_or("there is no such comtree")?;
        let shape = running.shape.as_ref().ok_or("it has no members")?;
        let world = self.worlds.get(&running.world).ok_or("it has no world")?;
        if shape.all_members() == 0 {
            return Ok((Vec::new(), 0.0));
        }
        let ground = self.ground((running, shape), aim, leaves, planned.is_some());
        let network = self.network(&ground, running, aim)?;
        let Ground { relays, nodes, links } = ground;
        let mut endpoints = Vec::new();
        for relay in shape.relays() {
            let (count, limits) = shape.load(relay);
            if count > 0 {
                let lost = || format!("its relay {} cannot be used", self.relay_name(relay));
                endpoints.push((*nodes.get(&relay).ok_or_else(lost)?, limits));
            }
        }
        let core: CoreRule = world.core.rule();
        let demand = Demand::new(&network, &endpoints, core).map_err(|error| error.to_string())?;
        let ask = planned.unwrap_or_default();
        let root = match ask.root {
            // Who is the parent of whom stays, so that nothing is lost between those two.
            None if matches!(aim, Aim::Keep(Top::Stays) | Aim::Patch(Top::Stays)) => {
                let top = self.top_of_largest_part(comtree);
                let node = top.and_then(|top| nodes.get(&top));
                node.map_or(Root::Best, |node| Root::Node(*node))
            }
            None => Root::Best,
            Some(root) => {
                let name = self.relay_name(root);
                let lost = || match self.is_running(root) && self.is_full_for(running, root) {
                    true => format!("{name} has no room for another comtree, so it is no root"),
                    false => format!("{name} drains or cannot be used, so it is no root"),
                };
                Root::Node(*nodes.get(&root).ok_or_else(lost)?)
            }
        };
        let method = if aim == Aim::Best { ask.method } else { Method::Mst };
        let stretch = f64::from(ask.stretch) / 100.0;
        let request = Request { method, root, stretch, improve: false };
        let Choice { tree, cost, .. } = choose(&demand, &request).map_err(|e| e.to_string())?;
        let hop = |node: &usize| TreeHop {
            relay: relays[*node].id,
            above: tree.hop(*node).map(|(above, link)| (relays[above].id, links[link].id)),
        };
        Ok((tree.order().iter().map(hop).collect(), cost))
    }

    /// Whether a relay can carry no other comtree, and does not have this one.
    fn is_full_for(&self, running: &Running, relay: RelayId) -> bool {
        !running.shapes().any(|of| of.has(relay)) && !self.has_room_for_comtree(relay)
    }

    /// What can be used for a comtree's tree, and what is to stay of it. One that is planned goes round relays that
    /// drain and have no members.
    fn ground(
        &self,
        (running, shape): (&Running, &Shape),
        aim: Aim,
        leaves: Leaves,
        is_planned: bool,
    ) -> Ground<'_> {
        let is_avoided = |relay: &Relay| {
            is_planned && relay.state == RelayState::Draining && shape.load(relay.id).0 == 0
        };
        let is_taken = |relay: &&Relay| match self.is_running(relay.id) {
            true => !is_avoided(relay) && !self.is_full_for(running, relay.id),
            false => matches!(aim, Aim::Patch(_)) && shape.has(relay.id),
        };
        let relays: Vec<&Relay> = self.relays.values().filter(is_taken).collect();
        let nodes: BTreeMap<RelayId, usize> =
            relays.iter().enumerate().map(|(node, relay)| (relay.id, node)).collect();
        let has_ends = |link: &Link| link.ends.iter().all(|end| nodes.contains_key(end));
        let is_used = |link| shape.links().any(|of| of == link);
        let is_left = |link: &Link| {
            let stays = !is_planned && is_used(link.id);
            !stays && self.is_left(link.id, leaves)
        };
        let is_of_tree =
            |link| shape.hops().iter().any(|hop| hop.above.is_some_and(|a| a.1 == link));
        let is_fit = |link: &&Link| match self.is_usable(link.id) {
            true => has_ends(link) && !is_left(link),
            false => matches!(aim, Aim::Patch(_)) && is_of_tree(link.id) && has_ends(link),
        };
        let links: Vec<&Link> = self.links.values().filter(is_fit).collect();
        Ground { relays, nodes, links }
    }

    /// What there is for a tree as `plan` sees it. What the comtree has itself is free for it.
    fn network(&self, ground: &Ground<'_>, running: &Running, aim: Aim) -> Result<Network, String> {
        let Ground { relays, nodes, links } = ground;
        let mut own: BTreeMap<(LinkId, RelayId), Rate> = BTreeMap::new();
        for flow in running.flows() {
            if let Flow::Over(link, from, _, rate) = flow {
                own.insert((link, from), rate);
            }
        }
        let free = |link: LinkId, from: RelayId| {
            let left = self.ledger.free(Account::Link(link, from));
            let left = left + own.get(&(link, from)).copied().unwrap_or_default();
            Rate { bits: left.bits.max(0.0), packets: left.packets.max(0.0) }
        };
        let kept: Vec<LinkId> = running.shape.iter().flat_map(Shape::links).collect();
        let link = |link: &&Link| {
            let length = match self.is_usable(link.id) {
                false => self.length_of_dead(link.id),
                true if aim != Aim::Best && kept.contains(&link.id) => 0.0,
                true => length(link),
            };
            canopy_plan::Link {
                ends: link.ends.map(|end| nodes.get(&end).copied().unwrap_or(usize::MAX)),
                length,
                free: link.ends.map(|end| free(link.id, end)),
            }
        };
        let node =
            |relay: &&Relay| Node { name: relay.name.to_string(), place: None, located: false };
        let nodes = relays.iter().map(node).collect();
        Network::new(nodes, links.iter().map(link).collect()).map_err(|error| error.to_string())
    }
}

/// How long a link is for `plan`: as long as light in fibre takes for its delay. None is nothing.
fn length(link: &Link) -> f64 {
    (f64::from(link.delay_us) / 1000.0 * FIBRE_SPEED).max(1.0)
}
