//! What participants do in the world: join, walk, publish, leave, vanish, move to another ip:port.

use crate::hostile::{FAR_GROUPS, mischief};
use crate::participant::Participant;
use crate::payload;
use crate::world::{Step, World, updates_in};
use canopy_judge::{Carriage, Publish, Received};
use canopy_session::{Event, Identity, Session, SessionConfig};
use canopy_wire::{
    Address, Flags, Group, GroupKey, GroupKeyNumber, Header, Kind, LeaveReason, Level,
    MAX_DATAGRAM, Packet, Record, RefusedReason, RequestStatus, SEAL_LEN, SessionId, UpdatesWriter,
    WireError,
};
use rand::RngExt;
use std::borrow::Cow;
use std::time::Duration;

const WALK_EVERY: Duration = Duration::from_millis(300);
/// Groups that an insider subscribes to for no reason but to fill the tables.
const HOARD: u32 = 300;

impl World<'_> {
    /// The application starts, from its old ip:port or from a new one.
    pub(crate) fn join(&mut self, number: usize) {
        self.oracle.appear(self.now, number);
        let is_taken = self.bindings.contains_key(&self.participants[number].ip_port);
        if is_taken || self.rng.random_bool(0.5) {
            self.move_in(number);
        }
        let shares_ip_port = self.scenario.shares(number);
        // Every other time it has kept nothing.
        let remembers = (self.tallies.crashes + self.tallies.leaves).is_multiple_of(2);
        let participant = &mut self.participants[number];
        let was = participant.was.take().filter(|_| remembers);
        participant.wanted = was.as_ref().map(|(_, _, address)| *address);
        let (identity, ticket) = was.map(|(identity, ticket, _)| (identity, ticket)).unzip();
        let (identity, token) = self.identify(number, identity);
        let participant = &mut self.participants[number];
        let session = SessionConfig {
            identity,
            token,
            ticket: ticket.unwrap_or_default(),
            max_datagram: self.scenario.paths_take[number],
            shares_ip_port,
            packets_per_key: self.scenario.packets_per_key,
            ..SessionConfig::new(participant.comtree, self.rng.random())
        };
        participant.session = Some(Session::new(session));
        participant.keys_told.clear();
        participant.enter(self.now, &self.scenario.habits, &mut self.rng);
        self.bind(number);
        self.look_around(number);
    }

    /// Who joins, and by which token, where one is asked for.
    fn identify(&mut self, number: usize, was: Option<Identity>) -> (Option<Identity>, Vec<u8>) {
        let participant = &mut self.participants[number];
        participant.joined += 1;
        let (comtree, joined) = (participant.comtree, participant.joined);
        let Some(tokens) = &mut self.tokens else { return (was, Vec::new()) };
        let (identity, token, renew_at) = tokens.admit(self.now, number, comtree, was);
        if let Some(at) = renew_at {
            self.at(at, Step::Renew(number, joined));
        }
        (Some(identity), token)
    }

    pub(crate) fn walk(&mut self, number: usize) {
        self.after(WALK_EVERY, Step::Walk(number));
        let participant = &mut self.participants[number];
        if participant.session.is_some() && self.now < self.scenario.quiet_from {
            participant.walk(self.now, &self.scenario.habits, &mut self.rng);
            self.look_around(number);
        }
    }

    pub(crate) fn publish(&mut self, number: usize) {
        if self.now >= self.scenario.quiet_from {
            return;
        }
        let wait = self.rng.random_range(self.scenario.habits.publish_ms.clone());
        self.after(Duration::from_millis(wait), Step::Publish(number));
        if !self.participants[number].is_connected() {
            return;
        }
        let habits = &self.scenario.habits;
        if self.rng.random_bool(habits.bundle) {
            self.publish_bundle(number);
        } else if self.rng.random_bool(habits.burst) {
            (0..self.rng.random_range(2..30)).for_each(|_| self.publish_one(number));
        } else {
            self.publish_one(number);
        }
        if self.participants[number].is_insider && !self.is_calm() {
            let own = (self.session_id(number), self.address(number));
            let mut bytes = mischief(&mut self.rng, self.participants[number].comtree, own);
            let len = bytes.len();
            bytes.resize(len + SEAL_LEN, 0);
            let Some(session) = &mut self.participants[number].session else { return };
            if session.seal(&mut bytes, len).is_ok() {
                self.send_up(number, &bytes);
            }
        }
    }

    /// Something happens to a participant that has nothing to do with the world.
    pub(crate) fn churn(&mut self, number: usize) {
        if self.is_calm() {
            return;
        }
        self.schedule_churn(number);
        let Some(session) = &mut self.participants[number].session else { return };
        match self.rng.random_range(0..3) {
            0 => {
                self.tallies.leaves += 1;
                session.leave();
                self.oracle.vanish(self.now, number);
                self.pump(number);
            }
            1 => {
                self.tallies.crashes += 1;
                self.go(number);
            }
            _ => {
                self.tallies.rebinds += 1;
                self.oracle.rebind(self.now, number);
                self.bindings.remove(&self.participants[number].ip_port);
                self.move_in(number);
                self.bind(number);
            }
        }
    }

    pub(crate) fn schedule_churn(&mut self, number: usize) {
        if let Some(churn_ms) = self.scenario.habits.churn_ms.clone() {
            let wait = Duration::from_millis(self.rng.random_range(churn_ms));
            self.after(wait, Step::Churn(number));
        }
    }

    /// A session asked to be polled now.
    pub(crate) fn wake(&mut self, number: usize) {
        if self.participants[number].wake_at == Some(self.now) {
            self.pump(number);
        }
    }

    /// Hands a datagram from the relay to the session. `is_current`: the relay that sent it still
    /// runs.
    pub(crate) fn deliver(
        &mut self,
        number: usize,
        bytes: &[u8],
        carriage: Carriage,
        (is_current, corrupted): (bool, bool),
    ) {
        let Some(session) = &mut self.participants[number].session else { return };
        let read = self.host.read(bytes, true).map(Cow::into_owned);
        let (mut received, mut opened) = (Vec::new(), bytes.to_vec());
        let keyless = session.keyless();
        let taken = session.handle_datagram(self.now, &mut opened, |update| {
            let canopy_session::Update { src, dst, series, level, payload, .. } = update;
            received.push(Received { id: payload::identify(series, payload), src, dst, level });
        });
        let is_anothers = self.oracle.is_for_predecessor(number, carriage.sent);
        let is_keyless = session.keyless() > keyless && !is_anothers;
        let keys_told = &mut self.participants[number].keys_told;
        keys_told.extend(read.as_deref().and_then(told_key).map(|key| (key, carriage.sent)));
        // What was sealed before a key was told is not for whoever was told it.
        let is_before_key = GroupKeyNumber::of(bytes).is_some_and(|key| {
            keys_told.iter().any(|told| told.0 == key && carriage.sent <= told.1)
        });
        let is_unreadable = is_keyless || (is_before_key && taken.is_err());
        if is_unreadable && !corrupted && !carriage.copy {
            // The key was lost, or is still under way.
            self.tallies.keyless += 1;
            self.oracle.lost(self.now, number, &read.as_deref().map_or(Vec::new(), updates_in));
        } else if !corrupted {
            let is_taken = taken.is_ok();
            let says = |is_it: fn(&[u8]) -> bool| read.as_deref().is_some_and(is_it);
            if is_current && is_taken && says(is_acknowledgement) {
                self.oracle.confirm(self.now, number);
            }
            let may_be_anothers = self.oracle.is_for_predecessor(number, carriage.sent);
            // A seal that it cannot open is another session's, or was opened before.
            let is_read = |error: &WireError| *error != WireError::Field("seal");
            let is_broken = says(is_for_sessions) && !may_be_anothers;
            if let Some(error) = taken.err().filter(|error| is_broken && is_read(error)) {
                let what = format!("participant {number} cannot read the relay: {error}");
                self.oracle.broken(format!("{}: {what}", self.now));
            }
            if !may_be_anothers {
                self.check_heard(number, &received);
            }
            for received in &received {
                self.oracle.received(self.now, number, received, carriage);
            }
        }
        let before = self.oracle.connection(number);
        self.pump(number);
        if !is_current && self.oracle.connection(number) != before {
            self.oracle.disconnect(self.now, number);
        }
    }

    /// Sends what the session wants sent, hears what it tells, and notes when to poll it next.
    pub(crate) fn pump(&mut self, number: usize) {
        let mut out = [0; MAX_DATAGRAM];
        loop {
            let Some(session) = &mut self.participants[number].session else { return };
            // Events first: what was refused is given up before it could be asked for again.
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
        self.oracle.event(self.now, number, event);
        let participant = &mut self.participants[number];
        let Some(session) = &mut participant.session else { return };
        match event {
            Event::SubscriptionRefused(group, _) => {
                session.unsubscribe(group);
                participant.give_up(self.now, group);
                self.is_refused(number);
            }
            Event::Connected(_) if participant.is_insider => {
                for group in (0..HOARD).map(|hoarded| Group::new(FAR_GROUPS + hoarded)) {
                    session.subscribe(group, Level(0));
                    self.oracle.request(self.now, number, group, Some(Level(0)));
                }
            }
            Event::Closed => self.go(number),
            Event::SentAway(LeaveReason::Revoked) | Event::Refused(RefusedReason::Token) => {
                self.is_turned_away(number);
            }
            Event::Answered(_, RequestStatus::Done) => {
                self.tokens.iter_mut().for_each(|tokens| tokens.renewed(number));
            }
            _ => {}
        }
        if let Event::Connected(address) = event {
            self.check_connected(number);
            self.check_identity(number, address);
            self.limit(number, address);
        }
    }

    /// It may be sent so much only, if it is one of those.
    fn limit(&mut self, number: usize, address: Address) {
        let Some(budget) = self.scenario.budgets[number] else { return };
        let Participant { comtree, ip_port, .. } = self.participants[number];
        if self.host.set_budget(self.now, (comtree, address), budget) {
            self.oracle.limit(number);
            self.pacing.limit(self.now, ip_port, &budget);
        } else {
            self.pacing.forget(ip_port);
        }
    }

    /// The relay has opened a session, perhaps for a copy of what somebody said that has one: it knows of no
    /// budget.
    pub(crate) fn limit_again(&mut self) {
        for number in 0..self.participants.len() {
            let Some(budget) = self.scenario.budgets[number] else { continue };
            if self.oracle.is_limited(number) && self.participants[number].is_connected() {
                let member = (self.participants[number].comtree, self.address(number));
                self.host.set_budget(self.now, member, budget);
            }
        }
    }

    /// Who brings a ticket has the address of before. Where there was no place, the data thread that
    /// has one by then may be another than the one whose the address is.
    fn check_identity(&mut self, number: usize, address: Address) {
        let wanted = self.participants[number].wanted.replace(address);
        let may_be_full = self.scenario.max_sessions as usize <= self.participants.len();
        if let Some(wanted) = wanted.filter(|wanted| *wanted != address && !may_be_full) {
            let what = format!("participant {number} was {wanted} and is {address}");
            self.oracle.broken(format!("{}: {what}", self.now));
        }
    }

    fn plan_wake(&mut self, number: usize) {
        let participant = &mut self.participants[number];
        let timeout = participant.session.as_ref().and_then(Session::poll_timeout);
        let mut wake_at = timeout.map(|at| at.max(self.now));
        if wake_at == Some(self.now) {
            let what = format!(
                "{}: participant {number}'s session wants to be polled although it just was",
                self.now
            );
            self.oracle.broken(what);
            wake_at = Some(self.now + WALK_EVERY);
        }
        if wake_at != participant.wake_at {
            participant.wake_at = wake_at;
            if let Some(at) = wake_at {
                self.at(at, Step::Wake(number));
            }
        }
    }

    /// The application is gone, and comes back after a while.
    pub(crate) fn go(&mut self, number: usize) {
        let participant = &mut self.participants[number];
        participant.end_session();
        self.pacing.forget(participant.ip_port);
        self.bindings.remove(&participant.ip_port);
        self.oracle.vanish(self.now, number);
        let longest = if self.rng.random_bool(0.5) { 200 } else { 5000 };
        let away = Duration::from_millis(self.rng.random_range(20..longest));
        self.after(away, Step::Join(number));
    }

    /// Asks for what is near now.
    fn look_around(&mut self, number: usize) {
        let participant = &mut self.participants[number];
        let changes = participant.changes(self.now, &self.scenario.habits);
        let Some(session) = &mut participant.session else { return };
        for (group, level) in changes {
            match level {
                Some(level) => session.subscribe(group, level),
                None => session.unsubscribe(group),
            }
            self.oracle.request(self.now, number, group, level);
        }
        self.pump(number);
    }

    fn publish_one(&mut self, number: usize) {
        let dst = self.draw_destination(number);
        let mut out = [0; MAX_DATAGRAM];
        let Some(session) = &mut self.participants[number].session else { return };
        // The session will give it this number.
        let series = session.take_series(0);
        let (publish, flags, payload) = self.draw_update(number, dst, series);
        let Some(session) = &mut self.participants[number].session else { return };
        match session.publish(publish.dst, publish.level, flags, &payload, &mut out) {
            Ok(len) => self.send_up(number, &out[..len]),
            Err(error) => self.oracle.broken(format!("{}: publish: {error}", self.now)),
        }
    }

    fn publish_bundle(&mut self, number: usize) {
        let count = self.rng.random_range(1..5);
        let Some(session) = &mut self.participants[number].session else { return };
        let (id, first) = (session.id(), session.take_series(count.into()));
        let mut out = [0; MAX_DATAGRAM];
        let max_datagram = session.max_datagram();
        let Ok(mut writer) = UpdatesWriter::new(&mut out, max_datagram) else { return };
        for series in (0..count).map(|number| first.wrapping_add(number)) {
            let dst = self.draw_destination(number);
            let (publish, flags, payload) = self.draw_update(number, dst, series);
            // Who says its own address says nothing new.
            let src = if series % 4 == 0 { publish.src } else { Address::UNSPECIFIED };
            let level = publish.level;
            writer.push(&Record { flags, src, level, ..Record::new(dst, series, &payload) });
        }
        let comtree = self.participants[number].comtree;
        let len = writer.finish(&Header::new(Kind::Updates, id, comtree));
        let Some(session) = &mut self.participants[number].session else { return };
        if let Ok(len) = session.seal(&mut out, len) {
            self.send_up(number, &out[..len]);
        }
    }

    /// Its cell's group, sometimes a participant.
    fn draw_destination(&mut self, number: usize) -> Address {
        let habits = &self.scenario.habits;
        let is_unicast = self.rng.random_bool(habits.unicast);
        let someone = self.rng.random_range(0..self.participants.len());
        if is_unicast && self.participants[someone].is_connected() {
            self.address(someone)
        } else {
            self.participants[number].group(habits).address()
        }
    }

    fn draw_update(
        &mut self,
        number: usize,
        dst: Address,
        series: u16,
    ) -> (Publish, Flags, Vec<u8>) {
        let echo = self.rng.random_bool(self.scenario.habits.echo);
        let publish = Publish {
            publisher: number,
            src: self.address(number),
            dst,
            level: Level(self.rng.random_range(0..4)),
            echo,
            overtaken: self.scenario.links[number][0].reorders(),
        };
        let id = self.oracle.publish(self.now, publish);
        if let Some(tokens) = &mut self.tokens {
            tokens.publishes(number, id, dst, publish.level);
        }
        let len = self.rng.random_range(payload::MIN_PAYLOAD..=self.scenario.habits.longest);
        let payload = payload::compose(id, series, len);
        (publish, if echo { Flags::ECHO } else { Flags(0) }, payload)
    }

    fn session_id(&self, number: usize) -> SessionId {
        self.participants[number].session.as_ref().map_or(SessionId::NONE, Session::id)
    }

    pub(crate) fn address(&self, number: usize) -> Address {
        self.participants[number].session.as_ref().map_or(Address::UNSPECIFIED, Session::address)
    }
}

/// Whether the relay sends this only to sessions.
fn is_for_sessions(datagram: &[u8]) -> bool {
    let kinds = [Kind::Updates, Kind::SubscribeAck];
    Packet::new_checked(datagram).is_ok_and(|packet| kinds.contains(&packet.header().kind))
}

/// The group key that a packet tells.
fn told_key(datagram: &[u8]) -> Option<GroupKeyNumber> {
    let packet = Packet::new_checked(datagram).ok()?;
    let is_told = packet.header().kind == Kind::GroupKey;
    is_told.then(|| GroupKey::decode(&packet).map(|key| key.number).ok())?
}

/// Whether the relay acknowledges something to a session.
fn is_acknowledgement(datagram: &[u8]) -> bool {
    let kinds = [Kind::KeepaliveAck, Kind::SubscribeAck];
    Packet::new_checked(datagram).is_ok_and(|packet| kinds.contains(&packet.header().kind))
}
