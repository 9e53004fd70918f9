//! Participants: they ask the controller to be let in, turn to the relay that it names, subscribe,
//! publish, and leave; as the SDK does it.

use super::config::TopologySabotage;
use super::model::to_one;
use super::world::{Step, World};
use crate::payload;
use crate::scale::machine::ip_port;
use canopy_control::{Enter, Refusal, WorldId};
use canopy_plan::Limits;
use canopy_session::{Event, Session, SessionConfig};
use canopy_token::{Budget, Claims, UnixTime};
use canopy_wire::{Address, Flags, Group, Level, MAX_DATAGRAM};
use rand::RngExt;
use std::collections::BTreeSet;
use std::time::Duration;

/// Groups of a world.
pub(crate) const GROUPS: u32 = 4;
/// Somebody who has lost its relay asks the controller so often.
const ASK_AGAIN: Duration = Duration::from_millis(125);
/// Somebody who was refused, or whose question went astray, asks again after this.
const PATIENCE: Duration = Duration::from_millis(1_500);
/// A lease is renewed so often.
const RENEW: Duration = Duration::from_secs(20);

impl World<'_> {
    /// Somebody wants to be in its world from now on.
    pub(crate) fn come(&mut self, number: usize) {
        if self.is_over || self.people[number].is_wanted {
            return;
        }
        let part = if self.config.load.is_some() { 1.0 } else { 0.6 };
        let mut wants: BTreeSet<u32> =
            (1..=GROUPS).filter(|_| self.rng.random_bool(part)).collect();
        if self.config.sabotage == Some(TopologySabotage::WantMore) {
            wants.extend(100..120);
        }
        let person = &mut self.people[number];
        (person.is_wanted, person.wants) = (true, wants);
        self.plan_question(number, Duration::ZERO);
    }

    /// Asks the controller after a while, and leaves all questions before.
    pub(crate) fn plan_question(&mut self, number: usize, wait: Duration) {
        self.people[number].question += 1;
        let question = self.people[number].question;
        self.after(wait, Step::Ask(number, question));
    }

    /// The controller is asked; if it is there it lets the participant in, or refuses.
    pub(crate) fn ask(&mut self, number: usize, question: u64) {
        let person = &self.people[number];
        if !person.is_wanted || person.question != question {
            return;
        }
        let again = if person.is_lost { ASK_AGAIN } else { PATIENCE };
        let measured = person.near.iter().filter_map(|node| {
            Some((self.process.ids[*node]?, person.delays[*node].as_micros() as u32))
        });
        let world = self.worlds[person.world].name.clone();
        let enter = Enter::new(world, person.owner, measured.collect());
        let at = self.process.local(self.now);
        let answer =
            self.process.controller.as_mut().map(|controller| controller.enter(at, &enter));
        match &answer {
            Some(Ok(_)) => self.people[number].is_renewed = true,
            Some(Err(why)) => self.refused(number, why),
            None => {}
        }
        self.plan_question(number, again);
        if self.config.load.is_some() && matches!(answer, Some(Err(_))) {
            self.people[number].is_wanted = false;
        }
        self.pump_controller();
    }

    /// The controller refuses somebody. Under load nothing but room may be lacking.
    fn refused(&mut self, number: usize, why: &Refusal) {
        self.told.refused += 1;
        let is_full = matches!(why, Refusal::Full { .. });
        self.told.refused_for_room += u32::from(is_full);
        if self.config.load.is_some() && !is_full {
            self.model.broken(self.now, format!("participant {number} is refused: {why}"));
        }
    }

    /// The controller says that a relay lets somebody in: it is handed its token.
    pub(crate) fn admitted(&mut self, world: WorldId, address: Address) {
        let Some(controller) = &self.process.controller else { return };
        let Ok(admission) = controller.admission(world, address) else { return };
        let owner = controller.members_of(world, None).find(|member| member.address == address);
        let owner = owner.map(|member| member.owner);
        let number = self.people.iter().position(|person| Some(person.owner) == owner);
        let (Some(number), Some(relay)) = (number, self.process.node(admission.relay)) else {
            return;
        };
        self.told.admitted += 1;
        let mut grant = admission.grant;
        if let Some(load) = self.config.load {
            // It is what is reserved, unless less is.
            let Limits { send, receive } = load.member;
            grant.budget = Budget {
                up_bits: Some(send.bits as u64),
                up_packets: Some(send.packets as u64),
                down_bits: Some(receive.bits as u64),
                down_packets: Some(receive.packets as u64),
            };
        }
        let person = &self.people[number];
        self.tokens += 1;
        let claims = Claims {
            subject: format!("participant {number}"),
            id: format!("{:032x}", self.tokens),
            expires: UnixTime(admission.until.as_nanos() / 1_000_000_000),
            not_before: None,
            client_key: *person.identity.public(),
            grant,
        };
        match self.issuer.issue(&claims) {
            Ok(token) => {
                let answer = Step::Answered(number, relay, token.into_bytes().into());
                self.after(Duration::from_millis(20), answer);
            }
            Err(why) => self.model.broken(self.now, format!("no token: {why}")),
        }
    }

    /// The controller's answer arrives.
    pub(crate) fn answered(&mut self, number: usize, relay: usize, token: &[u8]) {
        let now = self.now;
        let relay_key = Some(*self.machines[relay].identity.public());
        let seed = self.rng.random();
        let person = &mut self.people[number];
        if !person.is_wanted {
            return;
        }
        let was_at = std::mem::replace(&mut person.relay, relay);
        let identity = person.identity.clone();
        match &mut person.session {
            Some(session) if was_at != relay => {
                self.told.moved += 1;
                self.model.turned(now, number);
                session.turn_to(now, relay_key, token.to_vec());
            }
            // The relay says if it does not take the token; then the session is lost. One that is lost
            // goes on calling by itself.
            Some(session) => _ = session.set_token(token.to_vec()),
            None => {
                let config = SessionConfig {
                    relay_key,
                    identity: Some(identity),
                    token: token.to_vec(),
                    ..SessionConfig::new(self.worlds[person.world].comtree, seed)
                };
                let mut session = Session::new(config);
                for group in &person.wants {
                    session.subscribe(Group::new(*group), Level(0));
                }
                person.session = Some(session);
            }
        }
        self.plan_renewal(number);
        self.pump(number);
    }

    /// Somebody who is in asks again when it is time to prolong the lease. A controller that starts lets everybody in anew,
    /// which prolongs none: then the question that is planned already stays.
    fn plan_renewal(&mut self, number: usize) {
        let person = &mut self.people[number];
        if !person.is_lost && std::mem::take(&mut person.is_renewed) {
            self.plan_question(number, RENEW);
        }
    }

    /// A datagram to a relay found nobody there, as the host says.
    pub(crate) fn bounced(&mut self, number: usize, relay: usize) {
        if self.people[number].relay == relay {
            self.lose(number);
        }
    }

    fn lose(&mut self, number: usize) {
        let person = &mut self.people[number];
        if person.is_wanted && !person.is_lost {
            person.is_lost = true;
            self.model.unsettled(number);
            if self.config.sabotage != Some(TopologySabotage::StayLost) {
                self.plan_question(number, Duration::ZERO);
            }
        }
    }

    /// Somebody leaves, and says so to relay and controller.
    pub(crate) fn go(&mut self, number: usize) {
        self.model.unsettled(number);
        let now = self.now;
        let person = &mut self.people[number];
        (person.is_wanted, person.is_lost, person.is_renewed) = (false, false, false);
        person.wake_at = None;
        person.address = None;
        person.acknowledged.clear();
        if let Some(mut session) = person.session.take() {
            session.leave();
            let mut out = [0; MAX_DATAGRAM];
            while let Some(len) = session.poll_transmit(now, &mut out) {
                self.send_up(number, &out[..len]);
            }
        }
        let (owner, world) = (self.people[number].owner, self.people[number].world);
        if let Some(controller) = &mut self.process.controller {
            let id = controller.world(&self.worlds[world].name).map(|world| world.id);
            let held = id
                .ok()
                .and_then(|id| controller.held_by(id, owner).map(|member| (id, member.address)));
            if let Some((id, address)) = held {
                // It is held, so nothing can be refused.
                _ = controller.leave(id, address);
            }
        }
        self.pump_controller();
    }

    /// Somebody wants something else, or leaves for a moment.
    pub(crate) fn change(&mut self, number: usize) {
        if self.now >= self.calm_from || self.config.load.is_some() {
            return;
        }
        let wait = Duration::from_millis(self.rng.random_range(4_000..15_000));
        self.after(wait, Step::Change(number));
        if self.rng.random_bool(0.2) {
            self.go(number);
            let away = Duration::from_millis(self.rng.random_range(300..2_000));
            self.after(away, Step::Come(number));
            return;
        }
        let group = self.rng.random_range(1..=GROUPS);
        let person = &mut self.people[number];
        let is_new = !person.wants.remove(&group);
        if is_new {
            person.wants.insert(group);
        }
        let Some(session) = &mut person.session else { return };
        match is_new {
            true => session.subscribe(Group::new(group), Level(0)),
            false => session.unsubscribe(Group::new(group)),
        }
        self.model.unsettled(number);
        self.pump(number);
        self.review(number);
    }

    pub(crate) fn publish(&mut self, number: usize) {
        if self.is_over {
            return;
        }
        if let Some(load) = self.config.load {
            return self.publish_all(number, load);
        }
        let wait = Duration::from_millis(self.rng.random_range(100..400));
        self.after(wait, Step::Publish(number));
        if !self.people[number].is_connected() {
            return;
        }
        let group = self.rng.random_range(1..=GROUPS);
        let len = self.rng.random_range(payload::MIN_PAYLOAD..120);
        self.say(number, Group::new(group).address(), group, len);
    }

    /// Somebody publishes an update, which the model knows by a key. Returns how long the datagram is.
    pub(crate) fn say(
        &mut self,
        number: usize,
        dst: Address,
        key: u32,
        len: usize,
    ) -> Option<usize> {
        let id = self.model.publish(self.now, number, key);
        let copies = match self.config.sabotage {
            Some(TopologySabotage::DoubleUpdate(one_in))
                if id.is_multiple_of(u64::from(one_in)) =>
            {
                2
            }
            _ => 1,
        };
        let mut said = None;
        for _ in 0..copies {
            let mut out = [0; MAX_DATAGRAM];
            let session = self.people[number].session.as_mut()?;
            let payload = payload::compose(id, session.take_series(0), len);
            let written = session.publish(dst, Level(0), Flags::default(), &payload, &mut out);
            match written {
                Ok(len) => {
                    said = Some(len);
                    self.send_up(number, &out[..len]);
                }
                Err(why) => self.model.broken(self.now, format!("{number} cannot publish: {why}")),
            }
        }
        said
    }

    fn send_up(&mut self, number: usize, bytes: &[u8]) {
        let person = &self.people[number];
        let (from, relay) = (person.ip_port, person.relay);
        let delay = person.delays[relay];
        self.carry_access(number, delay, from, ip_port(relay), bytes.into(), 0);
    }

    /// A datagram from its relay arrives.
    pub(crate) fn deliver(&mut self, number: usize, bytes: &[u8]) {
        let now = self.now;
        let Some(session) = &mut self.people[number].session else { return };
        let mut received = Vec::new();
        let mut opened = bytes.to_vec();
        // What it cannot read is of a session before, or its model finds it missing.
        _ = session.handle_datagram(now, &mut opened, |update| {
            let id = payload::identify(update.series, update.payload);
            received.push((id, update.dst));
        });
        for (id, dst) in received {
            let group = (1..=GROUPS).find(|group| Group::new(*group).address() == dst);
            let is_own = self.people[number].address == Some(dst);
            let key = group.or_else(|| is_own.then(|| to_one(number)));
            self.model.received(now, number, id, key.unwrap_or(0));
        }
        self.pump(number);
    }

    pub(crate) fn wake(&mut self, number: usize) {
        if self.people[number].wake_at == Some(self.now) {
            self.pump(number);
        }
    }

    fn pump(&mut self, number: usize) {
        let mut out = [0; MAX_DATAGRAM];
        loop {
            let now = self.now;
            let Some(session) = &mut self.people[number].session else { return };
            if let Some(event) = session.poll_event() {
                self.hear(number, event);
            } else if let Some(len) = session.poll_transmit(now, &mut out) {
                self.send_up(number, &out[..len]);
            } else {
                break;
            }
        }
        let person = &mut self.people[number];
        let timeout = person.session.as_ref().and_then(Session::poll_timeout);
        // A session is polled again a moment later at the earliest.
        let wake_at = timeout.map(|at| at.max(self.now + Duration::from_micros(100)));
        if wake_at != person.wake_at {
            person.wake_at = wake_at;
            if let Some(at) = wake_at {
                self.at(at, Step::Wake(number));
            }
        }
    }

    fn hear(&mut self, number: usize, event: Event) {
        let person = &mut self.people[number];
        match event {
            Event::Connected(address) => {
                person.acknowledged.clear();
                // Others know it by that, whichever relay it is at.
                let before = person.address.replace(address);
                if let Some(before) = before.filter(|before| *before != address) {
                    let what = format!("participant {number} was {before} and is {address}");
                    self.model.broken(self.now, what);
                }
                let person = &mut self.people[number];
                person.is_lost = false;
                self.plan_renewal(number);
                self.review(number);
            }
            Event::Lost | Event::Refused(_) => self.lose(number),
            Event::Subscribed(group, _) => {
                person.acknowledged.insert(group.number());
                self.review(number);
            }
            Event::Unsubscribed(group) => {
                person.acknowledged.remove(&group.number());
                self.review(number);
            }
            Event::SubscriptionRefused(..) => {
                self.model.broken(self.now, format!("participant {number} hears {event:?}"));
            }
            // Its relay has sent it away, and the controller decides where it goes.
            _ => {}
        }
    }

    /// Looks whether somebody has all that it wants.
    fn review(&mut self, number: usize) {
        let person = &self.people[number];
        let has_all = person.is_connected() && person.acknowledged == person.wants;
        if has_all && self.model.since(number).is_none() {
            self.model.settled(self.now, number, person.wants.clone());
        }
    }
}
