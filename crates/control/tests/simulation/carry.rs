//! Time goes on: messages are carried or not, batches are committed or not, relays apply or refuse.

use crate::adversary;
use crate::sim::{Plan, Sim, To};
use canopy_control::storage::{Storage, Table};
use canopy_control::{Event, ItemKey};
use canopy_wire::{Address, Comtree, Time};
use core::time::Duration;

impl Sim {
    pub(crate) fn advance(&mut self, until: Time) {
        while self.now < until {
            self.poll();
            let next_message = self.network.keys().next().map(|(at, _)| *at);
            let next_commit = self.commit.as_ref().map(|(at, _)| *at);
            let applying = self.relays.iter().filter_map(|relay| Some(relay.applying.as_ref()?.0));
            let sides =
                self.relays.iter().filter_map(|relay| Some(relay.side.as_ref()?.poll_timeout()));
            let controller = self.controller.as_ref().map(|c| c.poll_timeout(self.now));
            let next =
                applying.chain(sides).chain(next_message).chain(next_commit).chain(controller);
            let successions = self.successions_due();
            let next = next.chain(successions);
            let least = self.now + Duration::from_micros(100);
            self.now = next.fold(until, Time::min).max(least);
            self.deliver();
        }
    }

    fn deliver(&mut self) {
        while let Some(entry) = self.network.first_entry().filter(|entry| entry.key().0 <= self.now)
        {
            match entry.remove() {
                (To::Controller(from), bytes) => {
                    let id = self.relays[from].id;
                    if let Some(controller) = &mut self.controller {
                        controller.handle_message(self.now, id, &bytes);
                    }
                }
                (To::Relay(to), bytes) => {
                    if let Some(side) = &mut self.relays[to].side {
                        side.handle_message(&bytes);
                    }
                }
            }
        }
        for at in 0..self.relays.len() {
            self.apply(at);
        }
        self.succeed();
        self.commit();
        if let Some(controller) = &mut self.controller {
            controller.handle_timeout(self.now);
        }
        for relay in &mut self.relays {
            if let Some(side) = &mut relay.side {
                side.handle_timeout(self.now);
            }
        }
    }

    fn apply(&mut self, at: usize) {
        let is_due = self.relays[at].applying.as_ref().is_some_and(|(due, _)| *due <= self.now);
        if !is_due {
            return;
        }
        let refuse = !self.is_clear && self.one_in(40);
        let Some(applied) = self.relays[at].apply(refuse) else { return };
        match applied.key() {
            ItemKey::Member(comtree, address) => self.check_member(at, comtree, address),
            ItemKey::Comtree(comtree) => {
                self.follow_succession(at, comtree, &applied);
                self.follow_peers(at, comtree, &applied);
                self.check_keeps_next_parent(at, comtree, &applied);
                adversary::check_no_circle(&self.relays, comtree);
            }
            ItemKey::Link(_) => {}
        }
    }

    /// Nothing is done outside that is not committed; and in calm weather, nobody is let in before
    /// what was reserved for it is in force everywhere.
    fn check_member(&self, at: usize, comtree: Comtree, address: Address) {
        let is_there = self.relays[at]
            .side
            .as_ref()
            .is_some_and(|side| side.items().contains_key(&ItemKey::Member(comtree, address)));
        if !is_there {
            return;
        }
        let members = self.storage.list(Table::Members, &[], None, usize::MAX).unwrap();
        let is_stored = members.iter().any(|entry| entry.key.ends_with(&address.0.to_be_bytes()));
        assert!(is_stored, "{address} is committed");
        if self.plan == Plan::Calm {
            let controller = self.controller.as_ref().unwrap();
            adversary::check_in_force(controller, &self.relays, comtree);
        }
    }

    fn commit(&mut self) {
        if self.commit.as_ref().is_none_or(|(due, _)| *due > self.now) {
            return;
        }
        let Some((_, batch)) = self.commit.take() else { return };
        let result = self.storage.commit(&batch);
        let Some(controller) = &mut self.controller else { return };
        if controller.handle_commit(self.now, result).is_err() {
            self.told.commits_failed += 1;
            self.crash_controller();
            self.start_controller();
        }
    }

    fn poll(&mut self) {
        if let Some(controller) = &mut self.controller {
            let mut messages = Vec::new();
            while let Some(message) = controller.poll_transmit(self.now) {
                messages.push(message);
            }
            let (mut registered, mut lost, mut has_links) = (Vec::new(), Vec::new(), false);
            while let Some(event) = controller.poll_event() {
                match event {
                    Event::Admitted { world, address } => {
                        self.told.admitted += 1;
                        let key = [world.0.to_be_bytes(), address.0.to_be_bytes()].concat();
                        let stored = self.storage.get(Table::Members, &key).unwrap();
                        assert!(stored.is_some(), "who is told is stored");
                        self.admitted.push((world, address));
                    }
                    Event::Refused { .. } => self.told.rolled_back += 1,
                    Event::Left { .. } => self.told.left += 1,
                    Event::Reshaped { why, .. } => {
                        self.told.reshaped += 1;
                        self.told.improved += u32::from(why.starts_with("it was improved"));
                    }
                    Event::Broken { .. } => self.told.broken += 1,
                    Event::RelayLost(id) => {
                        self.told.relays_lost += 1;
                        lost.push(id);
                    }
                    Event::RelayRegistered(id) => registered.push(id),
                    Event::RelayRemoved { .. } => self.told.relays_removed += 1,
                    Event::LinkRemoved(_) => self.told.links_removed += 1,
                    Event::LinkAdded(_) => has_links = true,
                    Event::WorldChanged(_) => self.told.worlds_changed += 1,
                    _ => {}
                }
            }
            if self.commit.is_none()
                && let Some(batch) = controller.poll_commit(self.now)
            {
                let takes = Duration::from_millis(1 + self.up_to(8) as u64);
                self.commit = Some((self.now + takes, batch));
            }
            for (relay, bytes) in messages {
                // One that was taken away and has registered again has another channel.
                if let Some(at) = self.relays.iter().position(|of| of.id == relay) {
                    self.send(To::Relay(at), at, bytes);
                }
            }
            registered.into_iter().for_each(|id| self.take_number(id));
            self.give_up(&lost);
            if has_links {
                self.report_links();
            }
        }
        self.measure();
        self.answer_after();
        for at in 0..self.relays.len() {
            while let Some(bytes) = self.relays[at].side.as_mut().and_then(|s| s.poll_transmit()) {
                self.send(To::Controller(at), at, bytes);
            }
            let takes = Duration::from_micros(self.up_to(3_000) as u64);
            if let Some(applying) = self.relays[at].side.as_mut().and_then(|s| s.poll_apply()) {
                self.relays[at].applying = Some((self.now + takes, applying));
            }
        }
    }

    fn send(&mut self, to: To, relay: usize, bytes: Vec<u8>) {
        let copies = match (self.is_clear, self.relays[relay].is_cut_off) {
            (true, _) => 1,
            (false, true) => 0,
            (false, false) => [1, 1, 1, 1, 1, 1, 1, 0, 0, 2][self.up_to(10)],
        };
        for _ in 0..copies {
            let slow = self.takes[usize::from(self.one_in(50))];
            let takes = Duration::from_millis(1 + self.up_to(slow) as u64);
            self.sent += 1;
            self.network.insert((self.now + takes, self.sent), (to, bytes.clone()));
        }
    }
}
