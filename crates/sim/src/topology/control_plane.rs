//! What the controller and the relays say to each other and do about it, as the daemons do.

use super::config::TopologySabotage;
use super::machine::LOOK;
use super::world::{Realm, Step, World};
use crate::scale::machine::ip_port;
use canopy_control::storage::{Storage, StorageError};
use canopy_control::{Core, Downlink, Event, Mode, Name, NewRelay, NewWorld, RelayId};
use canopy_plan::{Limits, Rate};
use canopy_wire::Time;
use rand::RngExt;
use std::time::Duration;

const UPLINK: Limits = Limits {
    send: Rate { bits: 1e9, packets: 500e3 },
    receive: Rate { bits: 1e9, packets: 500e3 },
};
/// Under load links are full, and nothing else.
const UNLIMITED: Limits =
    Limits { send: Rate { bits: 1e12, packets: 1e9 }, receive: Rate { bits: 1e12, packets: 1e9 } };
const MEMBER: Limits = Limits {
    send: Rate { bits: 100e3, packets: 60.0 },
    receive: Rate { bits: 1e6, packets: 600.0 },
};

impl World<'_> {
    pub(crate) fn start_relay(&mut self, relay: usize) {
        self.machines[relay].start();
        let life = self.machines[relay].life;
        let pause = Duration::from_millis(self.rng.random_range(1..100));
        self.after(pause, Step::Connect(relay, life));
        self.after(LOOK, Step::Look(relay, life));
        let turn = self.machines[relay].next_turn();
        self.ask_for_turn(relay, turn);
    }

    pub(crate) fn ask_for_turn(&mut self, relay: usize, turn: Option<Time>) {
        if let Some(at) = turn {
            self.at(at, Step::Turn(relay, self.machines[relay].life, at));
        }
    }

    pub(crate) fn turn(&mut self, relay: usize, asked: Time) {
        if !self.machines[relay].is_due(asked) {
            return;
        }
        for sent in self.machines[relay].turn(self.now) {
            self.send(relay, sent);
        }
        self.review_detours(relay);
        self.flood(relay);
        let turn = self.machines[relay].next_turn();
        self.ask_for_turn(relay, turn);
        self.pump_relay(relay);
    }

    /// A relay looks at its links, and does so again after a while.
    pub(crate) fn look(&mut self, relay: usize) {
        let machine = &mut self.machines[relay];
        machine.look(self.now);
        let life = machine.life;
        self.after(LOOK, Step::Look(relay, life));
        self.flood(relay);
        let turn = self.machines[relay].next_turn();
        self.ask_for_turn(relay, turn);
        self.pump_relay(relay);
    }

    /// Relays tell each other of their links, as in the daemon.
    pub(crate) fn flood(&mut self, relay: usize) {
        let now = self.now;
        if self.config.sabotage == Some(TopologySabotage::KeepStatesBack) {
            return;
        }
        let machine = &mut self.machines[relay];
        match machine.flood(now) {
            Ok(next) => {
                let planned = machine.next_flood.filter(|at| *at > now);
                let Some(at) = next.filter(|at| planned.is_none_or(|planned| *at < planned)) else {
                    return;
                };
                // What is due at once waits for the data thread.
                let (at, life) = (at.max(now + Duration::from_millis(1)), machine.life);
                machine.next_flood = Some(at);
                self.at(at, Step::Flood(relay, life));
            }
            Err(why) => self.model.broken(now, format!("relay {relay}, links' states: {why}")),
        }
    }

    /// Standby parents take the place of parents that are lost, as in the daemon.
    pub(crate) fn review_detours(&mut self, relay: usize) {
        if self.config.sabotage == Some(TopologySabotage::IgnoreStandbys) {
            return;
        }
        let has_controller = self.channels[relay].is_open();
        let life = self.machines[relay].life;
        let says = self.config.sabotage != Some(TopologySabotage::IgnoreSearches);
        match self.machines[relay].review_detours(self.now, (has_controller, says)) {
            Ok((begun, next)) => {
                self.told.detours += begun;
                if let Some(at) = next {
                    self.at(at, Step::Detours(relay, life));
                }
            }
            Err(why) => self.model.broken(self.now, format!("relay {relay}, a detour: {why}")),
        }
    }

    /// A relay calls the controller, and registers.
    pub(crate) fn connect(&mut self, relay: usize) {
        let life = self.machines[relay].life;
        let is_there = self.process.controller.is_some();
        if self.channels[relay].is_open() {
            return;
        }
        if !is_there || self.channels[relay].blocked > self.now {
            let pause = Duration::from_millis(self.rng.random_range(100..1_500));
            return self.after(pause, Step::Connect(relay, life));
        }
        self.register(relay);
        let channel = &mut self.channels[relay];
        channel.epoch += 1;
        channel.newest = [self.now; 2];
        // Calls whose answers were lost with the last channel come again.
        while self.machines[relay].side.poll_transmit().is_some() {}
        self.pump_controller();
        self.pump_relay(relay);
    }

    pub(crate) fn register(&mut self, relay: usize) {
        let at = self.process.local(self.now);
        let Some(controller) = &mut self.process.controller else { return };
        let Ok(name) = Name::new(&format!("relay-{relay}")) else { return };
        let new = NewRelay {
            name,
            key: *self.machines[relay].identity.public(),
            native: ip_port(relay),
            uplink: if self.config.load.is_some() { UNLIMITED } else { UPLINK },
            places: 200,
            comtrees: 1024,
        };
        match controller.register(at, new) {
            Ok(id) => self.process.ids[relay] = Some(id),
            Err(why) => self.model.broken(self.now, format!("relay {relay}: {why}")),
        }
        if self.config.degree == 0 {
            self.give_links(relay);
        }
    }

    /// Links are given, by whoever runs the network, once both ends are there. What was removed stays so.
    fn give_links(&mut self, relay: usize) {
        for link in 0..self.graph.edges.len() {
            let edge = self.graph.edges[link];
            let ends = edge.ends.map(|end| self.process.ids[end]);
            let is_given = edge.ends.contains(&relay) && self.linked[link];
            let ([Some(one), Some(other)], true) = (ends, is_given) else { continue };
            let Some(controller) = &self.process.controller else { return };
            let known = controller
                .links()
                .any(|(link, _)| link.ends == [one, other] || link.ends == [other, one]);
            if !known {
                self.add_link(link, [one, other]);
            }
        }
    }

    pub(crate) fn add_link(&mut self, link: usize, ends: [RelayId; 2]) {
        let (rate, delay_us) = (self.link_rate(), self.graph.edges[link].delay.as_micros() as u32);
        let Some(controller) = &mut self.process.controller else { return };
        if let Err(why) = controller.add_link(ends, rate, delay_us) {
            self.model.broken(self.now, format!("link {link}: {why}"));
        }
    }

    /// Sends what a relay has to say, and begins what it is to apply. While it has no channel, nobody
    /// asks it.
    pub(crate) fn pump_relay(&mut self, relay: usize) {
        if !self.channels[relay].is_open() {
            return;
        }
        let now = self.now;
        let machine = &mut self.machines[relay];
        let (local, life) = (machine.local(now), machine.life);
        machine.side.set_detours(local, machine.detours.comtrees());
        machine.side.set_ways(local, machine.detours.ways());
        machine.side.handle_timeout(local);
        let mut messages = Vec::new();
        while let Some(message) = machine.side.poll_transmit() {
            messages.push(message);
        }
        if let Some(applying) = machine.side.poll_apply() {
            machine.applying = Some(applying);
            let takes = machine.applies_in;
            self.after(takes, Step::Applied(relay, life));
        }
        if let Some(asked) = self.machines[relay].side.poll_measure() {
            self.measure(relay, life, asked);
        }
        let timer = self.machines[relay].side.poll_timeout();
        let timer = self.machines[relay].global(timer);
        for message in messages {
            // It says so when it beats next.
            self.at(timer, Step::RelayTimer(relay, life));
            self.send_message(relay, 0, message);
        }
    }

    pub(crate) fn applied(&mut self, relay: usize) {
        self.machines[relay].apply(self.now, self.config.sabotage);
        let turn = self.machines[relay].next_turn();
        self.ask_for_turn(relay, turn);
        self.pump_relay(relay);
    }

    pub(crate) fn message_to_controller(&mut self, relay: usize, epoch: u64, bytes: &[u8]) {
        let at = self.process.local(self.now);
        let id = self.process.ids[relay];
        if self.channels[relay].epoch == epoch
            && let (Some(controller), Some(id)) = (&mut self.process.controller, id)
        {
            controller.handle_message(at, id, bytes);
            self.pump_controller();
        }
    }

    /// Sends what the controller has to say, hears what it tells, begins what it is to commit.
    pub(crate) fn pump_controller(&mut self) {
        let at = self.process.local(self.now);
        loop {
            let Some(controller) = &mut self.process.controller else { return };
            if let Some(event) = controller.poll_event() {
                self.hear_event(event);
            } else if let Some((id, bytes)) = controller.poll_transmit(at) {
                let relay = self.process.node(id).filter(|relay| self.channels[*relay].is_open());
                if let Some(relay) = relay {
                    self.send_message(relay, 1, bytes);
                }
            } else if self.process.commit.is_none()
                && let Some(batch) = controller.poll_commit(at)
            {
                self.process.commit = Some(batch);
                let takes = Duration::from_micros(self.rng.random_range(500..6_000));
                self.after(takes, Step::Committed(self.process.life));
            } else {
                break;
            }
        }
        self.know_links();
        let Some(controller) = &self.process.controller else { return };
        let due = self.process.global(controller.poll_timeout(at));
        let due = due.max(self.now + Duration::from_micros(100));
        if self.process.timer.is_none_or(|timer| timer > due || timer <= self.now) {
            self.process.timer = Some(due);
            self.at(due, Step::ControllerTimer(self.process.life));
        }
    }

    pub(crate) fn controller_timer(&mut self, life: u32) {
        if self.process.life != life || self.process.timer != Some(self.now) {
            return;
        }
        self.process.timer = None;
        let at = self.process.local(self.now);
        if let Some(controller) = &mut self.process.controller {
            controller.handle_timeout(at);
            self.pump_controller();
        }
    }

    pub(crate) fn committed(&mut self, life: u32) {
        if self.process.life != life {
            return;
        }
        let at = self.process.local(self.now);
        let Some(batch) = self.process.commit.take() else { return };
        let result: Result<_, StorageError> = self.process.storage.commit(&batch);
        if let Some(controller) = &mut self.process.controller
            && let Err(why) = controller.handle_commit(at, result)
        {
            self.model.broken(self.now, format!("the store: {why}"));
        }
        self.look_after_commit();
        self.pump_controller();
    }

    pub(crate) fn hear_event(&mut self, event: Event) {
        let told = &mut self.told;
        match event {
            // Whoever asks is answered, whether it was in already or not.
            Event::Admitted { world, address } | Event::Renewed { world, address } => {
                self.admitted(world, address);
            }
            Event::Refused { .. } => told.refused += 1,
            Event::Left { .. } => told.left += 1,
            Event::Reshaped { comtree, why } => {
                told.reshaped += 1;
                told.improved += u32::from(why.contains("improved"));
                // A move has ended, and another may begin before the next look.
                let mut worlds = self.worlds.iter_mut();
                if let Some(world) = worlds.find(|world| world.comtree == comtree) {
                    world.moves_since = None;
                }
            }
            Event::Broken { .. } => told.broken += 1,
            Event::RelayLost(id) => {
                told.relays_lost += 1;
                if let Some(relay) = self.process.node(id) {
                    self.check_lost(relay);
                }
            }
            Event::RelayFound(_) => told.relays_found += 1,
            Event::LinkDown(_) => told.links_down += 1,
            Event::LinkAdded(_) => told.links_added += 1,
            Event::LinkRemoved(_) => told.links_removed += 1,
            _ => {}
        }
    }

    /// What is reserved for everybody.
    fn reserved_limits(&self) -> Limits {
        let Some(load) = self.config.load else { return MEMBER };
        let part =
            if self.config.sabotage == Some(TopologySabotage::ReserveLess) { 0.6 } else { 1.0 };
        let of = |rate: Rate| Rate { bits: part * rate.bits, packets: part * rate.packets };
        Limits { send: of(load.member.send), receive: of(load.member.receive) }
    }

    pub(crate) fn start_controller(&mut self) {
        self.told.controllers += 1;
        if let Err(why) = self.process.start(self.now) {
            return self.model.broken(self.now, format!("the controller does not start: {why}"));
        }
        let limits = self.reserved_limits();
        for number in 0..self.worlds.len() {
            let Some(controller) = &mut self.process.controller else { return };
            let Realm { name, mode, .. } = &self.worlds[number];
            let (name, mode) = (name.clone(), *mode);
            if controller.world(&name).is_err() {
                // What is not there is created, so it cannot be there.
                let world = new_world(name.clone(), mode, self.config.core.clone(), limits);
                _ = controller.create_world(world);
            }
            if let Ok(world) = controller.world(&name) {
                self.worlds[number].comtree = world.comtrees[0];
            }
        }
        self.pump_controller();
    }
}

fn new_world(name: Name, mode: Mode, core: Core, default: Limits) -> NewWorld {
    NewWorld {
        name,
        comtrees: 1,
        channels: Vec::new(),
        levels: 1,
        mode,
        downlink: Downlink::Member,
        default,
        core,
        sharing: canopy_control::Sharing::default(),
    }
}
