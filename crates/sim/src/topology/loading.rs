//! Everybody sends all that its limits let through, over links that bear little. The controller lets in as many as it
//! can; whatever it has let in is carried: nothing is dropped, and nothing comes late.

use super::load::{Load, Loading, Receivers};
use super::model::to_one;
use super::people::GROUPS;
use super::world::{LINK, Step, World};
use canopy_control::{Account, LinkId, RelayId};
use canopy_plan::{Limits, Rate};
use canopy_wire::{DropReason, Group, Time};
use rand::RngExt;
use std::collections::BTreeMap;
use std::time::Duration;

/// Everybody is in by then; before, everybody says something now and then, so that the ways are known.
const FROM: Time = Time::from_millis(9_000);
const WARMING: Duration = Duration::from_millis(500);
/// What is published so long before everybody leaves is judged.
const FLIGHT: Duration = Duration::from_millis(1_500);
/// What is reserved are bits of members' datagrams; between relays one with an update is so many bytes longer.
const BETWEEN_RELAYS: f64 = 4.0;
/// Hellos of a link, and what relays ask over it, bits a second.
const HELLOS: f64 = 25e3;
/// What was sent in a second arrives at a link in as much less, where it waited on its way to it.
const BUNCHES: Duration = Duration::from_millis(50);

impl World<'_> {
    /// What a link bears each way.
    pub(crate) fn link_rate(&self) -> Rate {
        self.config.load.map_or(LINK, |load| load.link)
    }

    pub(crate) fn publish_all(&mut self, number: usize, load: Load) {
        let every = if self.now < FROM { WARMING } else { load.every };
        self.at(self.now.next_multiple(every), Step::Publish(number));
        if !self.people[number].is_connected() || self.now + FLIGHT > self.leave_at {
            return;
        }
        if self.now < FROM {
            self.say(number, Group::new(1).address(), 1, load.payload);
            return;
        }
        self.begin_load(load);
        let Limits { send, .. } = load.member;
        let time = load.every.as_secs_f64();
        let part = |rate: f64| rate * time;
        let saved = &mut self.loading.saved[number];
        *saved = *saved + Rate { bits: part(send.bits), packets: part(send.packets) };
        loop {
            let length = 8.0 * self.loading.lengths[number] as f64;
            let Rate { bits, packets } = self.loading.saved[number];
            if bits < length || packets < 1.0 {
                break;
            }
            let Some(length) = self.say_one(number, load) else { break };
            self.loading.lengths[number] = length;
            let saved = &mut self.loading.saved[number];
            *saved = *saved - Rate { bits: 8.0 * length as f64, packets: 1.0 };
        }
    }

    /// Somebody says something to whom it has to. Returns how long the datagram was.
    fn say_one(&mut self, number: usize, load: Load) -> Option<usize> {
        let group = match load.to {
            Receivers::Groups => self.rng.random_range(1..=GROUPS),
            Receivers::OneGroup => 1,
            Receivers::Farthest(_) => {
                let to = self.loading.to[number]?;
                let address = self.people[to].address?;
                return self.say(number, address, to_one(to), load.payload);
            }
        };
        self.say(number, Group::new(group).address(), group, load.payload)
    }

    /// The load begins: everybody is in who can be.
    fn begin_load(&mut self, load: Load) {
        if self.loading.dropped.is_some() {
            return;
        }
        let people = self.people.len();
        // Where they are not to meet, what each lacks for its first datagram is another part of one.
        let part = |number| if load.meets { 0.0 } else { number as f64 / people as f64 };
        let datagram = 8.0 * load.payload as f64;
        let saved = |number| Rate { bits: datagram * part(number), packets: part(number) };
        self.loading = Loading {
            saved: (0..people).map(saved).collect(),
            lengths: vec![load.payload; people],
            to: vec![None; people],
            dropped: Some(self.drops()),
            most: vec![[0; 2]; self.graph.edges.len()],
        };
        let Receivers::Farthest(most) = load.to else { return };
        let is_in = |number: &usize| self.people[*number].is_connected();
        let present: Vec<usize> = (0..people).filter(is_in).collect();
        let mut senders = vec![0; people];
        for number in &present {
            let delays = self.graph.delays(self.people[*number].relay);
            let world = self.people[*number].world;
            let others = present.iter().filter(|to| {
                *to != number && senders[**to] < most && self.people[**to].world == world
            });
            let to = others.max_by_key(|to| (delays[self.people[**to].relay], **to)).copied();
            self.loading.to[*number] = to;
            to.into_iter().for_each(|to| senders[to] += 1);
        }
    }

    /// By reason: what all relays have dropped.
    fn drops(&self) -> Vec<u64> {
        let of = |reason: &DropReason| -> u64 {
            self.machines.iter().map(|machine| machine.counters().dropped(*reason)).sum()
        };
        DropReason::ALL.iter().map(of).collect()
    }

    /// Links were full, as far as they may be, nothing was dropped, and no link bore more than what is reserved there.
    pub(crate) fn check_load(&mut self) {
        let Some(load) = self.config.load else { return };
        self.model.judge_at_last(self.now);
        self.check_links(load);
        let now = self.now;
        if self.told.refused == 0 {
            self.model.broken(now, "everybody is let in, so nothing is full");
        }
        let after = self.drops();
        let before = self.loading.dropped.clone().unwrap_or_else(|| after.clone());
        for (reason, (before, after)) in DropReason::ALL.iter().zip(before.iter().zip(after)) {
            if after > *before {
                self.told.dropped += after - before;
                let what = format!("{} dropped within limits: {reason:?}", after - before);
                self.model.broken(now, what);
            }
        }
    }

    /// What passed over each link in a second is held against what is reserved there, which has been so since the load
    /// began.
    fn check_links(&mut self, load: Load) {
        let Some(controller) = &self.process.controller else { return };
        let links: BTreeMap<LinkId, [RelayId; 2]> =
            controller.links().map(|(link, _)| (link.id, link.ends)).collect();
        let mut faults = Vec::new();
        for (account, may, reserved) in controller.accounts() {
            let Account::Link(id, from) = account else { continue };
            let nodes = links.get(&id).and_then(|ends| {
                let to = if ends[0] == from { ends[1] } else { ends[0] };
                Some([self.process.node(from)?, self.process.node(to)?])
            });
            let Some([from, to]) = nodes else { continue };
            let Some(link) = self.graph.between(from, to) else { continue };
            let most = self.loading.most.get(link).map_or(0, |most| most[usize::from(from > to)]);
            let (bits, bearable) = (8.0 * most as f64, self.bearable(reserved, load));
            if bits > bearable {
                faults.push(format!(
                    "link {link} bore {bits} bits in a second from relay {from}, and {} are reserved",
                    reserved.bits
                ));
            }
            let told = &mut self.told;
            told.reserved = told.reserved.max(reserved.bits / may.bits);
            if reserved != Rate::ZERO {
                told.carrying += 1;
                told.full += u32::from(may.bits - reserved.bits < load.member.send.bits);
                told.of_reserved = told.of_reserved.max(bits / bearable);
            }
        }
        faults.into_iter().for_each(|fault| self.model.broken(self.now, fault));
    }

    /// How many bits a second may pass where so much is reserved.
    fn bearable(&self, reserved: Rate, load: Load) -> f64 {
        let tick = self.worlds.iter().map(|world| world.tick()).max().unwrap_or_default();
        let meets = BUNCHES + load.every + tick;
        let longer = 1.0 + BETWEEN_RELAYS / load.payload as f64;
        HELLOS + reserved.bits * longer * (1.0 + meets.as_secs_f64())
    }
}
