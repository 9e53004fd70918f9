//! What an operator does while everything runs: worlds are changed, members kicked, links and relays
//! drained and taken away.

use crate::sim::{Sim, relay_of_number};
use canopy_control::{Controller, Name, Refusal, RelayId, Sharing, WorldChanges};
use core::time::Duration;

impl Sim {
    pub(crate) fn set_world(&mut self) {
        let at = self.up_to(self.worlds.len());
        let world = self.worlds[at].clone();
        let core = self.draw_core();
        let levels = self.one_in(2).then_some(1 + self.up_to(4) as u8);
        let sharing = |levels| Sharing { floor_ms: 100 * u16::from(levels), ..Sharing::default() };
        let sharing = levels.map(sharing);
        let changes = WorldChanges { core: Some(core), levels, sharing, ..WorldChanges::default() };
        let Some(controller) = &mut self.controller else { return };
        let before = controller.world(&world).cloned();
        match controller.set_world(&world, changes) {
            // That gives up steps at once, and what is on its way can be lost.
            Ok(()) => {
                let comtrees = before.into_iter().flat_map(|of| of.comtrees);
                self.remade.extend(comtrees.map(|comtree| (comtree, self.now)));
            }
            Err(refusal) => {
                assert_eq!(before, controller.world(&world).cloned(), "{refusal}: nothing changed");
            }
        }
    }

    pub(crate) fn kick(&mut self) {
        let Some((world, address)) = self.some_member() else { return };
        let bar = Duration::from_millis(self.up_to(4_000) as u64);
        let now = self.now;
        let Some(controller) = &mut self.controller else { return };
        let mut members = controller.members();
        let of = members.find(|member| (member.world, member.address) == (world, address));
        let owner = of.map(|member| member.owner);
        drop(members);
        if controller.kick(now, world, address, bar).is_ok() {
            self.told.kicked += 1;
            let is_in = |owner| controller.address_of(world, owner).is_some();
            assert!(!owner.is_some_and(is_in), "it is nowhere any more");
        }
    }

    pub(crate) fn drain_or_not(&mut self) {
        let at = self.up_to(self.relays.len());
        let (id, drains) = (self.relays[at].id, self.one_in(2));
        let Some(controller) = &mut self.controller else { return };
        _ = controller.drain(id, drains);
    }

    pub(crate) fn remove_link(&mut self, at_once: bool) {
        let at = self.up_to(self.links.len());
        let link = self.links[at].0;
        let Some(controller) = &mut self.controller else { return };
        let was_removing = controller.link(link).is_some_and(|link| link.removing);
        let before: Vec<_> = controller.accounts().collect();
        let result = match at_once {
            true => controller.remove_link_at_once(link),
            false => controller.remove_link(link),
        };
        let is_removing = controller.link(link).is_some_and(|link| link.removing);
        self.told.links_left += u32::from(is_removing && !was_removing);
        if result.is_err() || was_removing && !at_once {
            assert_eq!(before, controller.accounts().collect::<Vec<_>>(), "nothing has changed");
            assert_eq!(was_removing, is_removing);
        }
    }

    pub(crate) fn remove_or_add_link(&mut self) {
        if self.one_in(2) {
            let at_once = self.one_in(2);
            self.remove_link(at_once);
        } else {
            let (from, to) = (self.up_to(self.relays.len()), self.up_to(self.relays.len()));
            if from != to {
                self.join(from, to);
            }
        }
    }

    /// Begins to remove a relay, and sends its members away, which would move otherwise. In calm weather it goes once
    /// nothing of it is needed, in others some go at once.
    pub(crate) fn remove_relay(&mut self, at_once: bool) {
        let at = self.up_to(self.relays.len());
        let id = self.relays[at].id;
        let Some(controller) = &mut self.controller else { return };
        let is_removing = |controller: &Controller| {
            controller.relays().any(|relay| relay.id == id && relay.removing)
        };
        let was_removing = is_removing(controller);
        let before: Vec<_> = controller.accounts().collect();
        let result = match at_once {
            true => controller.remove_relay_at_once(id),
            false => controller.remove_relay(id),
        };
        self.told.relays_left += u32::from(is_removing(controller) && !was_removing);
        if result.is_err() || was_removing && !at_once {
            assert_eq!(before, controller.accounts().collect::<Vec<_>>(), "nothing has changed");
            assert_eq!(was_removing, is_removing(controller));
        }
        let there = controller.members().filter(|member| member.relay == id);
        for (world, address) in there.map(|m| (m.world, m.address)).collect::<Vec<_>>() {
            _ = controller.leave(world, address);
        }
        if controller.relays().all(|relay| relay.id != id) {
            assert!(controller.links().all(|(link, _)| !link.ends.contains(&id)));
        }
    }

    /// A relay registers: it gets its number back, or another if it was taken away. What was on its
    /// way then was on a channel that is no more.
    pub(crate) fn register(&mut self, at: usize) -> Option<RelayId> {
        let registered = self.controller.as_mut()?.register(self.now, relay_of_number(at));
        let relay = &mut self.relays[at];
        if let (Err(Refusal::Removed { .. }), Some(side)) = (&registered, &mut relay.side)
            && !side.items().is_empty()
        {
            // It hears so, and carries nothing any more.
            relay.crash();
            relay.restart();
        }
        registered.ok()
    }

    /// A relay hears that it has this number.
    pub(crate) fn take_number(&mut self, id: RelayId) {
        let Some(controller) = &self.controller else { return };
        let Some(relay) = controller.relays().find(|relay| relay.id == id) else { return };
        let is_named = |at: &usize| Name::new(&format!("r{at}")).as_ref() == Ok(&relay.name);
        let Some(at) = (0..self.relays.len()).find(is_named) else { return };
        if self.relays[at].id != id {
            self.relays[at].crash();
            self.relays[at].id = id;
            self.relays[at].restart();
            self.network.retain(|_, (to, _)| to.relay() != at);
            self.report_links();
        }
    }
}
