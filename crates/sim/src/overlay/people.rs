//! What participants do: join, choose groups, publish, move to another relay, leave.

use super::config::OverlaySabotage;
use super::model::Received;
use super::participant::TOP_LEVEL;
use super::queue::Step;
use super::world::World;
use crate::payload;
use canopy_session::{Event, Identity, Session, SessionConfig, State};
use canopy_wire::{
    Address, Group, Header, Kind, Level, MAX_DATAGRAM, Record, UpdatesWriter, Weight,
};
use rand::RngExt;
use std::time::Duration;

/// A session that wants to be polled at once, again and again, is polled this late.
const STUBBORN: Duration = Duration::from_millis(300);

impl World<'_> {
    /// The application starts, at the relay where the participant is, from a new ip:port.
    pub(crate) fn join(&mut self, number: usize) {
        if self.has_left {
            return;
        }
        let identity = Identity::new(self.rng.random());
        self.keys.joins(number, *identity.public());
        let participant = &mut self.participants[number];
        participant.rebind();
        participant.since = self.now;
        let config = SessionConfig {
            identity: Some(identity),
            packets_per_key: self.scenario.packets_per_key,
            ..SessionConfig::new(participant.comtree, self.rng.random())
        };
        let mut session = Session::new(config);
        self.model.appear(number, participant.relay);
        for (group, level) in &participant.wants {
            session.subscribe(*group, *level);
            self.model.request(self.now, number, *group, Some(*level));
        }
        participant.session = Some(session);
        self.pump(number);
    }

    pub(crate) fn plan_roam(&mut self, number: usize) {
        if let Some(roam_ms) = self.scenario.habits.roam_ms.clone() {
            let wait = Duration::from_millis(self.rng.random_range(roam_ms));
            self.after(wait, Step::Roam(number));
        }
    }

    /// A participant goes to another relay: in order, or without a word.
    pub(crate) fn roam(&mut self, number: usize) {
        if self.now >= self.scenario.calm_from {
            return;
        }
        self.plan_roam(number);
        let comtree = self.participants[number].comtree;
        let tree = self.scenario.trees.iter().find(|tree| tree.comtree == comtree);
        let relays: Vec<_> = tree.into_iter().flat_map(|tree| tree.relays()).collect();
        let to = relays[self.rng.random_range(0..relays.len())];
        if self.participants[number].session.is_none() {
            return;
        }
        let in_order = self.rng.random_bool(0.7);
        self.go(number, in_order);
        self.participants[number].relay = to;
        let away = Duration::from_millis(self.rng.random_range(1..1000));
        self.after(away, Step::Join(number));
    }

    /// The application ends. It may say so; whether that arrives it does not wait to hear.
    fn go(&mut self, number: usize, in_order: bool) {
        self.model.vanish(self.now, number, in_order);
        let participant = &mut self.participants[number];
        let Some(mut session) = participant.session.take() else { return };
        self.tallies.client_time += self.now.since(participant.since);
        participant.wake_at = None;
        if !in_order {
            self.tallies.crashes += 1;
            return;
        }
        self.tallies.moves += 1;
        session.leave();
        let mut out = [0; MAX_DATAGRAM];
        while let Some(len) = session.poll_transmit(self.now, &mut out) {
            self.send_up(number, &out[..len]);
        }
    }

    pub(crate) fn leave_all(&mut self) {
        self.model.check_settled(self.now);
        self.has_left = true;
        for number in 0..self.participants.len() {
            let in_order = self.rng.random_bool(0.5);
            self.go(number, in_order);
        }
    }

    /// A participant wants something else.
    pub(crate) fn choose(&mut self, number: usize) {
        if self.now >= self.scenario.quiet_from {
            return;
        }
        let wait = self.rng.random_range(self.scenario.habits.choose_ms.clone());
        self.after(Duration::from_millis(wait), Step::Choose(number));
        self.pacing.shares(self.now, self.participants[number].ip_port);
        let changes = if self.participants[number].wants.is_empty() { 3 } else { 1 };
        for _ in 0..changes {
            let participant = &mut self.participants[number];
            let (group, level) = participant.choose(&self.scenario.habits, &mut self.rng);
            match level {
                Some(level) => participant.wants.insert(group, level),
                None => participant.wants.remove(&group),
            };
            let Some(session) = &mut participant.session else { continue };
            match level {
                Some(level) => session.subscribe(group, level),
                None => session.unsubscribe(group),
            }
            self.model.request(self.now, number, group, level);
        }
        self.pump(number);
    }

    pub(crate) fn publish(&mut self, number: usize) {
        if self.now >= self.scenario.quiet_from {
            return;
        }
        let wait = self.rng.random_range(self.scenario.habits.publish_ms.clone());
        self.after(Duration::from_millis(wait), Step::Publish(number));
        let session = self.participants[number].session.as_ref();
        if session.is_some_and(|session| session.state() == State::Connected) {
            let count = if self.rng.random_bool(0.9) { 1 } else { self.rng.random_range(2..6) };
            self.publish_bundle(number, count);
        }
    }

    fn publish_bundle(&mut self, number: usize, count: u16) {
        let mut out = [0; MAX_DATAGRAM];
        let Some(session) = &mut self.participants[number].session else { return };
        let (id, first, room) = (session.id(), session.take_series(0), session.max_datagram());
        let Ok(mut writer) = UpdatesWriter::new(&mut out, room) else { return };
        let (mut left, mut written) = (room - 64, 0);
        for series in (0..count).map(|at| first.wrapping_add(at)) {
            let longest = self.scenario.habits.longest;
            let len = self.rng.random_range(payload::MIN_PAYLOAD..=longest);
            // What did not fit would be missing.
            if left < len + 32 {
                break;
            }
            left -= len + 32;
            written += 1;
            let dst = self.draw_destination(number);
            let level = Level(self.rng.random_range(0..=TOP_LEVEL));
            let is_important = self.marks.random_bool(self.scenario.important[number]);
            let update = self.model.publish(self.now, number, dst, level, is_important);
            let payload = payload::compose(update, series, len);
            let weight = self.weight_of(is_important);
            writer.push(&Record { level, weight, ..Record::new(dst, series, &payload) });
        }
        let mut header = Header::new(Kind::Updates, id, self.participants[number].comtree);
        header.hop_limit = self.scenario.hop_limit;
        let len = writer.finish(&header);
        let Some(session) = &mut self.participants[number].session else { return };
        session.take_series(written);
        if let Ok(len) = session.seal(&mut out, len) {
            self.send_up(number, &out[..len]);
        }
    }

    fn weight_of(&self, is_important: bool) -> Weight {
        match self.config.sabotage {
            Some(OverlaySabotage::Unmarked) => Weight::ONE,
            _ if is_important => Weight::IMPORTANT,
            _ => Weight::ONE,
        }
    }

    /// A group, sometimes a participant.
    fn draw_destination(&mut self, number: usize) -> Address {
        let habits = &self.scenario.habits;
        let is_unicast = self.rng.random_bool(habits.unicast);
        let group = Group::new(self.rng.random_range(1..=habits.groups)).address();
        let other = self.rng.random_range(0..self.participants.len());
        let someone = &self.participants[other];
        let is_other = other != number && someone.comtree == self.participants[number].comtree;
        let address = someone.session.as_ref().map_or(Address::UNSPECIFIED, Session::address);
        if is_unicast && is_other && address != Address::UNSPECIFIED { address } else { group }
    }

    /// A session asked to be polled now.
    pub(crate) fn wake(&mut self, number: usize) {
        if self.participants[number].wake_at == Some(self.now) {
            self.pump(number);
        }
    }

    /// Hands a datagram from its relay to a participant's session.
    pub(crate) fn deliver(&mut self, number: usize, bytes: &[u8]) {
        let Some(session) = &mut self.participants[number].session else { return };
        let (mut received, mut opened) = (Vec::new(), [0; MAX_DATAGRAM]);
        let Some(opened) = opened.get_mut(..bytes.len()) else { return };
        opened.copy_from_slice(bytes);
        // What it cannot read is a copy of what it has read, or its model finds it missing.
        let _ = session.handle_datagram(self.now, opened, |update| {
            let canopy_session::Update { src, dst, series, level, payload, .. } = update;
            received.push(Received { id: payload::identify(series, payload), src, dst, level });
        });
        for received in &received {
            self.model.received(self.now, number, received);
        }
        self.pump(number);
    }

    /// Sends what the session wants sent, hears what it tells, and notes when to poll it next.
    fn pump(&mut self, number: usize) {
        let mut out = [0; MAX_DATAGRAM];
        loop {
            let Some(session) = &mut self.participants[number].session else { return };
            if let Some(event) = session.poll_event() {
                self.hear(number, event);
            } else if let Some(len) = session.poll_transmit(self.now, &mut out) {
                self.send_up(number, &out[..len]);
            } else {
                break;
            }
        }
        self.plan_wake(number);
    }

    fn hear(&mut self, number: usize, event: Event) {
        let now = self.now;
        match event {
            Event::Connected(address) => {
                self.model.connected(now, number, address);
                self.limit(number, address);
            }
            Event::Lost => self.model.lost(now, number),
            Event::Subscribed(group, level) => {
                self.model.acknowledged(now, number, group, Some(level));
            }
            Event::Unsubscribed(group) => self.model.acknowledged(now, number, group, None),
            Event::SubscriptionRefused(..) | Event::Refused(_) | Event::SentAway(_) => {
                self.model.broken(now, || format!("participant {number} hears {event:?}"));
            }
            _ => {}
        }
    }

    fn plan_wake(&mut self, number: usize) {
        let participant = &mut self.participants[number];
        let timeout = participant.session.as_ref().and_then(Session::poll_timeout);
        let mut wake_at = timeout.map(|at| at.max(self.now));
        if wake_at == Some(self.now) {
            self.model.broken(self.now, || {
                format!("participant {number}'s session wants to be polled although it just was")
            });
            wake_at = Some(self.now + STUBBORN);
        }
        if wake_at != participant.wake_at {
            participant.wake_at = wake_at;
            if let Some(at) = wake_at {
                self.at(at, Step::Wake(number));
            }
        }
    }
}
