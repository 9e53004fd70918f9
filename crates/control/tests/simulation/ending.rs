//! What must hold once everything works again, and once everyone has left.

use crate::sim::{SETTINGS, Sim, settings};
use canopy_control::storage::{Fault, Table};
use canopy_control::{Controller, Item, ItemKey, MemberState, Retry};
use canopy_plan::Rate;
use core::time::Duration;
use std::collections::BTreeMap;

impl Sim {
    /// Everything works again from now on.
    pub(crate) fn heal(&mut self) {
        self.is_clear = true;
        for relay in &mut self.relays {
            relay.is_cut_off = false;
            if relay.side.is_none() {
                relay.restart();
            }
        }
        self.links.iter_mut().for_each(|(_, _, is_up)| *is_up = true);
        self.report_links();
        self.storage.fail_after(u32::MAX, Fault::Before);
        if self.controller.is_none() {
            self.start_controller();
        }
        for at in 0..self.relays.len() {
            if let Some(id) = self.register(at) {
                self.take_number(id);
            }
        }
        self.settle();
    }

    /// Goes on until everything is settled. A meshed core that moves takes some seconds for each of its relays.
    pub(crate) fn settle(&mut self) {
        let latest = self.now + Duration::from_secs(120);
        // Longer than any message is on its way, and any link is damped.
        self.advance(self.now + Duration::from_secs(20));
        while !self.controller.as_ref().is_some_and(Controller::is_settled) {
            assert!(self.now < latest, "it settles");
            self.advance(self.now + Duration::from_millis(100));
        }
    }

    pub(crate) fn check_settled(&mut self) {
        let controller = self.controller.as_ref().unwrap();
        assert_eq!(controller.audit(), Ok(()));
        for relay in &self.relays {
            let wanted: BTreeMap<ItemKey, Item> =
                controller.wanted(relay.id).map(|item| (item.key(), item.clone())).collect();
            let has = relay.side.as_ref().unwrap().items();
            assert_eq!(has, &wanted, "relay {} has what it is to have", relay.id.0);
        }
        // A controller that starts from what is stored wants the same.
        let mut storage = self.storage.clone();
        let again = Controller::start(
            settings(self.plan, self.seed),
            Retry::default(),
            self.now,
            &mut storage,
        )
        .unwrap();
        for relay in &self.relays {
            let items = |of: &Controller| -> Vec<Item> { of.wanted(relay.id).cloned().collect() };
            let is_member = |item: &Item| matches!(item, Item::Member { .. });
            let (now, then) = (items(controller), items(&again));
            let rest = |items: &[Item]| -> Vec<Item> {
                items.iter().filter(|item| !is_member(item)).cloned().collect()
            };
            assert_eq!(rest(&now), rest(&then), "what is stored is what runs");
        }
        for (link, _) in controller.links().filter(|(link, _)| link.removing) {
            let trees = controller.trees_over(link.id);
            assert!(trees > 0, "the link {} goes once nothing runs over it", link.id.0);
        }
        for (world, address) in &self.admitted {
            let member = controller.members().find(|m| m.world == *world && m.address == *address);
            let Some(member) = member.filter(|m| m.state == MemberState::Held) else { continue };
            let side = self.relays.iter().find(|relay| relay.id == member.relay).unwrap();
            let items = side.side.as_ref().unwrap().items();
            let is_there = |key: &ItemKey| matches!(key, ItemKey::Member(_, of) if of == address);
            assert!(items.keys().any(is_there), "who was admitted and has not left is served");
        }
    }

    /// Everyone's lease ends, every address has rested: nothing is left of anybody.
    pub(crate) fn end(&mut self) {
        self.advance(self.now + SETTINGS.lease + SETTINGS.lease + SETTINGS.rest + SETTINGS.rest);
        self.settle();
        let controller = self.controller.as_ref().unwrap();
        assert_eq!(controller.members().cloned().collect::<Vec<_>>(), []);
        assert_eq!(self.storage.len(Table::Members), 0);
        let removing = controller.relays().find(|relay| relay.removing);
        assert_eq!(removing, None, "it goes once nothing of it is needed");
        for (account, _, reserved) in controller.accounts() {
            assert_eq!(reserved, Rate::ZERO, "{account:?} is an orphan's");
        }
        for relay in &self.relays {
            let items = relay.side.as_ref().unwrap().items();
            assert!(items.keys().all(|key| matches!(key, ItemKey::Link(_))), "{items:?}");
        }
        self.told.repeats += controller.repeats();
    }
}
