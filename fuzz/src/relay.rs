//! The target of `canopy-relay`, and with it of the relay's side of `canopy-session`: participants
//! do what the input says, and so do strangers with copies of what they overheard.

use crate::host::{Host, ip_port};
use crate::input::{Input, MAX_STEPS, steps};
use crate::participant::Participant;
use crate::tokens::{BEARERS, DAY, FORMS, Form, trust, verdict};
use canopy_relay::{
    ADDRESS_REST, Budget, Budgets, Change, ComtreeConfig, Counters, Gate, Mode, Places,
    RelayConfig, TableLimits,
};
use canopy_session::{PacketsPerKey, SessionConfig, SessionLimits, State};
use canopy_token::ComtreeGrant;
use canopy_wire::{
    Address, Comtree, Downlink, Flags, Group, Header, Kind, Level, MAX_DATAGRAM, MAX_UPDATE,
    Record, SAFE_DATAGRAM, SEAL_LEN, SessionId, Time, UpdatesWriter, Weight, encode_update,
};
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// The bits of an input's first byte.
const PERIODIC: u8 = 1;
const TWO_THREADS: u8 = 2;
const CRAMPED: u8 = 4;
/// The relay's network takes the longest datagrams; so do the paths of every other pair of
/// participants.
const LONG: u8 = 8;
/// What the relay sends to the participants of the first comtree, or of the second, is not sealed for
/// each.
const OPEN: [u8; 2] = [0x10, 0x20];
/// Where it is not, it is sealed with one key for all. Where all is sealed for each, the relay asks
/// for tokens instead ([`is_guarded`]).
const ONE_KEY: u8 = 0x40;
/// From two receivers on the relay sends all the same bytes, as for a clone engine, where they are
/// not sealed for each. Where it asks for tokens, all is sealed with one key for all.
const SETS: u8 = 0x80;

const TICK: Duration = Duration::from_millis(50);
/// Participants begin at the first of these ip:ports; at the others there are strangers only.
const PLACES: usize = 6;
const PARTICIPANTS: usize = 4;
/// How many datagrams strangers remember.
const OVERHEARD: usize = 16;
/// A stranger's datagram with this bit in its place comes to another data thread than it is for.
const ASTRAY: u8 = 0x80;
const OTHER_KEY: u8 = 0x80;
/// The tokens that the participants have at first.
const FIRST_FORMS: [Form; PARTICIPANTS] = [Form::Server, Form::Server, Form::Usual, Form::Narrow];

steps! {
    /// Datagrams move until no one has any.
    Settle,
    /// Participant: what it says reaches the relay, which does not answer yet.
    Say,
    /// Participant: what it says is lost.
    Lose,
    /// The relay sends what is due.
    Transmit,
    /// Scale, two bytes: milliseconds pass.
    Wait,
    /// Participant, group, level.
    Subscribe,
    /// Participant, group.
    Unsubscribe,
    /// Participant, [`World::destination`], level, flags, length in units of eight, how often.
    Publish,
    /// Participant; one that has left comes back.
    Leave,
    /// Participant, place.
    Move,
    /// Place, two bytes: that many bytes follow, a datagram.
    Raw,
    /// Place, kind, comtree, [`World::session`], records, byte: that many bytes follow, a body.
    Forge,
    /// Place, which, [`Input::alter`]: a copy of what was overheard.
    Replay,
    /// The relay is to stop.
    Drain,
    /// Participant, how many, and for each [`World::destination`], level, flags, length in units of
    /// eight: updates in one packet. What is no flag of the flags says weight and object.
    PublishTogether,
    /// Participant, place, kind, comtree, records, byte: that many bytes follow, a body that the
    /// participant seals.
    Abuse,
    /// Participant, whose, [`Form`]: it goes on by that token.
    Renew,
    /// Participant, [`World::destination`], [`verdict`]: it asks the relay to do that with a member.
    Judge,
    /// Participant, who, [`Form`]: its process is no more. Another one begins in its place, as a
    /// bearer of tokens, and with the ticket of the one before.
    Restart,
    /// A bit for each bearer: its usual token is revoked. With [`OTHER_KEY`], the relay believes
    /// another key only.
    Trust,
    /// Participant, group, level, weight.
    Weigh,
    /// Participant, kilobits, updates: that much it may be sent a second; 0 is no limit.
    Limit,
    /// Participant, [`World::destination`], level, weight, object, length in units of eight, how often.
    PublishObject,
}

/// A relay through everything that the input makes happen.
pub fn relay(input: &[u8]) {
    run_relay(input);
}

/// What came of an input.
pub struct Run {
    /// What the relay counted.
    pub counters: Counters,
    /// The longest packet of each kind, by the kind's number, that a participant or the relay sent.
    pub packets: BTreeMap<u8, Vec<u8>>,
}

/// The same, and what came of it.
pub fn run_relay(input: &[u8]) -> Run {
    let mut input = Input::new(input);
    let bits = input.byte();
    let threads = if bits & TWO_THREADS == 0 { 1 } else { 2 };
    let mut world = World::new(&config(bits), threads);
    for _ in 0..MAX_STEPS {
        let Some(step) = input.step(STEPS) else { break };
        world.take(step, &mut input);
        assert!(!world.believes_nobody || world.host.sessions() == 0, "believed after all");
    }
    world.fall_silent();
    let counters = world.host.counters();
    Run { counters, packets: world.packets }
}

/// Whether the relay asks for tokens, by an input's first byte.
fn is_guarded(bits: u8) -> bool {
    bits & (OPEN[0] | OPEN[1] | ONE_KEY) == ONE_KEY
}

fn config(bits: u8) -> RelayConfig {
    let is = |bit| bits & bit != 0;
    let (max_sessions, max_groups, max_subscriptions) =
        if is(CRAMPED) { (2, 2, 3) } else { (8, 64, 256) };
    let mut budgets = Budgets::default();
    if is(CRAMPED) {
        // A few datagrams are too many.
        budgets.member.up_bits = 20_000;
    }
    let comtree = |number: usize| {
        let is_open = if is_guarded(bits) { is(SETS) } else { is(OPEN[number]) };
        let downlink = match (is_open, is(ONE_KEY)) {
            (false, _) => Downlink::Member,
            (true, false) => Downlink::None,
            (true, true) => Downlink::Group,
        };
        ComtreeConfig { downlink, ..ComtreeConfig::new(comtree_of(number), 1) }
    };
    RelayConfig {
        mode: if is(PERIODIC) { Mode::Periodic { tick: TICK } } else { Mode::Immediate },
        comtrees: [0, 1].map(comtree).to_vec(),
        trust: is_guarded(bits).then(|| trust(0, false)),
        origin: DAY,
        places: Places::new(max_sessions),
        max_sessions,
        max_datagram: if is(LONG) { MAX_DATAGRAM } else { SAFE_DATAGRAM } as u16,
        slow_suites: 0,
        address_rest: ADDRESS_REST,
        life: None,
        log_keys: true,
        packets_per_key: PacketsPerKey::PROTOCOL,
        limits: SessionLimits::default(),
        budgets,
        gate: Gate::open(),
        smallest_set: is(SETS).then_some(2),
        tables: TableLimits {
            max_groups,
            max_subscriptions,
            max_subscriptions_per_participant: max_subscriptions / 3 + 1,
            max_new_groups_per_participant: 3,
            max_routes: 8,
            max_flow_pairs: if is(CRAMPED) { 3 } else { 64 },
        },
    }
}

/// A relay, and whoever talks to it.
struct World {
    host: Host,
    now: Time,
    /// With the number of its place.
    participants: Vec<(Participant, usize)>,
    born: u8,
    /// What tokens have granted anybody so far, if the relay asks for tokens.
    granted: Option<Vec<ComtreeGrant>>,
    /// The relay believes a key that has signed nothing.
    believes_nobody: bool,
    overheard: VecDeque<Vec<u8>>,
    packets: BTreeMap<u8, Vec<u8>>,
}

impl World {
    fn new(config: &RelayConfig, threads: u16) -> World {
        let mut world = World {
            host: Host::new(config, threads),
            now: Time::from_millis(1),
            participants: Vec::new(),
            born: 0,
            granted: config.trust.is_some().then(Vec::new),
            believes_nobody: false,
            overheard: VecDeque::new(),
            packets: BTreeMap::new(),
        };
        for number in 0..PARTICIPANTS {
            let participant = world.participant(number);
            world.participants.push((participant, number));
        }
        world
    }

    /// A new one; those of even number are on one comtree, the others on another.
    fn participant(&mut self, number: usize) -> Participant {
        self.born = self.born.wrapping_add(1);
        let max_datagram = [SAFE_DATAGRAM, MAX_DATAGRAM][number / 2 % 2] as u16;
        let config = SessionConfig::new(comtree_of(number), [self.born; 16]);
        let config = SessionConfig { max_datagram, ..config };
        let Some(granted) = &mut self.granted else { return Participant::new(config) };
        let participant = Participant::with_token(config, number, FIRST_FORMS[number]);
        granted.extend_from_slice(participant.granted());
        participant
    }

    fn take(&mut self, step: Step, input: &mut Input<'_>) {
        match step {
            Step::Settle => self.settle(),
            Step::Say => {
                self.say(input.below(PARTICIPANTS));
            }
            Step::Lose => {
                let (participant, _) = &mut self.participants[input.below(PARTICIPANTS)];
                for lost in participant.say(self.now, &|said| self.host.read(said, false)) {
                    self.overhear(&lost);
                }
            }
            Step::Transmit => self.transmit(),
            Step::Wait => {
                let scale = input.below(2) * 4;
                self.wait(Duration::from_millis(u64::from(input.word()) << scale));
            }
            Step::Subscribe | Step::Weigh => {
                let (number, group) = (input.below(PARTICIPANTS), group(input.byte()));
                let level = Level(input.byte());
                let has_weight = matches!(step, Step::Weigh);
                let weight = if has_weight { Weight(input.byte()) } else { Weight::ONE };
                self.participants[number].0.session.subscribe_with(group, level, weight);
            }
            Step::Unsubscribe => {
                let (number, group) = (input.below(PARTICIPANTS), group(input.byte()));
                self.participants[number].0.session.unsubscribe(group);
            }
            Step::Publish => self.publish(input),
            Step::PublishTogether => self.publish_together(input),
            Step::Leave => self.leave(input.below(PARTICIPANTS)),
            Step::Move => {
                let number = input.below(PARTICIPANTS);
                self.participants[number].1 = input.below(PLACES);
            }
            Step::Raw | Step::Forge | Step::Replay => {
                let place = input.byte();
                let datagram = self.datagram(step, input);
                let is_astray = place & ASTRAY != 0;
                self.reach(usize::from(place) % PLACES, &datagram, is_astray);
            }
            Step::Abuse => self.abuse(input),
            Step::Drain => self.host.apply(self.now, || Change::Drain),
            Step::Renew => self.renew(input),
            Step::Judge => {
                let (number, whom) = (input.below(PARTICIPANTS), input.byte());
                let whom = self.destination(whom);
                self.participants[number].0.judge(whom, verdict(input));
            }
            Step::Restart => self.restart(input),
            Step::Trust => {
                let byte = input.byte();
                self.believes_nobody = byte & OTHER_KEY != 0;
                let trust = trust(byte, self.believes_nobody);
                let change = || Change::Trust { trust: trust.clone(), origin: DAY };
                self.host.apply(self.now, change);
            }
            Step::Limit => {
                let number = input.below(PARTICIPANTS);
                let (down_bits, down_packets) =
                    (u64::from(input.byte()) * 1000, input.byte().into());
                let budget = Budget { down_bits, down_packets, ..Budgets::default().member };
                let address = self.participants[number].0.session.address();
                let change = Change::SetBudget { comtree: comtree_of(number), address, budget };
                self.host.apply_where_it_may(self.now, &change);
            }
            Step::PublishObject => self.publish_object(input),
        }
    }

    /// What a stranger makes up, or has overheard and altered.
    fn datagram(&self, step: Step, input: &mut Input<'_>) -> Vec<u8> {
        match step {
            Step::Raw => {
                let len = input.word().into();
                input.bytes(len).to_vec()
            }
            Step::Forge => {
                let kind = input.kind();
                let comtree = Comtree(input.below(4) as u32);
                let header = Header::new(kind, self.session(input.byte()), comtree);
                let (records, len) = (input.byte(), input.byte().into());
                [&header.encode(records), input.bytes(len)].concat()
            }
            _ => {
                let back = input.below(OVERHEARD) + 1;
                let which = self.overheard.len().checked_sub(back);
                let mut copy = which.map_or(Vec::new(), |which| self.overheard[which].clone());
                input.alter(&mut copy);
                copy
            }
        }
    }

    fn publish(&mut self, input: &mut Input<'_>) {
        let number = input.below(PARTICIPANTS);
        let (dst, level) = (self.destination(input.byte()), Level(input.byte()));
        let flags = Flags(input.byte());
        let payload = vec![7; (usize::from(input.byte()) * 8).min(MAX_UPDATE + 1)];
        for _ in 0..1 + input.below(32) {
            let (participant, place) = &mut self.participants[number];
            let open = |said: &[u8]| self.host.read(said, false);
            let (packet, place) =
                (participant.publish(dst, (level, flags), &payload, &open), *place);
            if let Some(packet) = packet {
                self.keep(&packet, false);
                self.reach(place, &packet, false);
            }
        }
    }

    fn publish_together(&mut self, input: &mut Input<'_>) {
        let (number, count) = (input.below(PARTICIPANTS), input.below(32));
        let session = &mut self.participants[number].0.session;
        let header = Header::new(Kind::Updates, session.id(), comtree_of(number));
        let (first, most) = (session.take_series(count), session.max_datagram());
        let mut out = [0; MAX_DATAGRAM];
        let mut writer = UpdatesWriter::new(&mut out, most).unwrap();
        for series in (0..count).map(|number| first.wrapping_add(number as u16)) {
            let (dst, level) = (self.destination(input.byte()), Level(input.byte()));
            let (how, payload) = (input.byte(), vec![7; usize::from(input.byte()) * 8]);
            let (weight, object) = (Weight(128 + (how & 7)), u16::from(how >> 3 & 7));
            let record = Record::new(dst, series, &payload);
            writer.push(&Record { flags: Flags(how), level, weight, object, ..record });
        }
        let mut len = writer.finish(&header);
        let session = &mut self.participants[number].0.session;
        len = session.seal(&mut out, len).unwrap_or(len);
        self.keep(&out[..len], false);
        self.reach(self.participants[number].1, &out[..len], false);
    }

    fn publish_object(&mut self, input: &mut Input<'_>) {
        let number = input.below(PARTICIPANTS);
        let (dst, level) = (self.destination(input.byte()), Level(input.byte()));
        let (weight, object) = (Weight(input.byte()), input.byte().into());
        let payload = vec![7; (usize::from(input.byte()) * 8).min(MAX_UPDATE)];
        for _ in 0..1 + input.below(32) {
            let (participant, place) = &mut self.participants[number];
            let (session, place) = (&mut participant.session, *place);
            let header = Header::new(Kind::Updates, session.id(), comtree_of(number));
            let series = session.take_series(1);
            let record = Record { level, weight, object, ..Record::new(dst, series, &payload) };
            let mut out = [0; 2 * MAX_DATAGRAM];
            let mut len = encode_update(&header, &record, &mut out).unwrap();
            len = session.seal(&mut out, len).unwrap_or(len);
            self.keep(&out[..len], false);
            self.reach(place, &out[..len], false);
        }
    }

    /// A participant says whatever it likes, and seals it. One that was never connected cannot.
    fn abuse(&mut self, input: &mut Input<'_>) {
        let (number, place) = (input.below(PARTICIPANTS), input.byte());
        let kind = input.kind();
        let session = &mut self.participants[number].0.session;
        let header = Header::new(kind, session.id(), Comtree(input.below(4) as u32));
        let (records, len) = (input.byte(), input.byte().into());
        let mut datagram = [&header.encode(records), input.bytes(len), &[0; SEAL_LEN]].concat();
        let len = datagram.len() - SEAL_LEN;
        let sealed = session.seal(&mut datagram, len);
        datagram.truncate(sealed.unwrap_or(len));
        self.reach(usize::from(place) % PLACES, &datagram, place & ASTRAY != 0);
    }

    fn leave(&mut self, number: usize) {
        if self.participants[number].0.session.state() == State::Closed {
            self.participants[number].0 = self.participant(number);
        } else {
            self.participants[number].0.leave();
        }
    }

    fn renew(&mut self, input: &mut Input<'_>) {
        let (number, bearer) = (input.below(PARTICIPANTS), input.below(BEARERS));
        let form = FORMS[input.below(FORMS.len())];
        let grant = self.participants[number].0.renew(bearer, form);
        self.granted.iter_mut().for_each(|granted| granted.extend(grant.clone()));
    }

    fn restart(&mut self, input: &mut Input<'_>) {
        let (number, bearer) = (input.below(PARTICIPANTS), input.below(BEARERS));
        let form = FORMS[input.below(FORMS.len())];
        self.born = self.born.wrapping_add(1);
        let config = SessionConfig {
            ticket: self.participants[number].0.session.ticket(),
            ..SessionConfig::new(comtree_of(number), [self.born; 16])
        };
        let participant = Participant::with_token(config, bearer, form);
        self.granted
            .iter_mut()
            .for_each(|granted| granted.extend_from_slice(participant.granted()));
        self.participants[number].0 = participant;
    }

    fn wait(&mut self, time: Duration) {
        self.now = self.now + time;
        self.host.handle_timeout(self.now);
        self.transmit();
        let next = self.host.poll_timeout();
        assert!(next.is_none_or(|at| at > self.now), "everything is done and it is due again");
    }

    fn settle(&mut self) {
        // Hello and cookie, connect and connected, subscribe and its ack; or a challenge before.
        for _ in 0..8 {
            let said = (0..PARTICIPANTS).map(|number| self.say(number)).sum::<usize>();
            self.transmit();
            if said == 0 {
                return;
            }
        }
    }

    fn say(&mut self, number: usize) -> usize {
        let (participant, place) = &mut self.participants[number];
        let open = |said: &[u8]| self.host.read(said, false);
        let (said, place) = (participant.say(self.now, &open), *place);
        for datagram in &said {
            self.keep(datagram, false);
            self.reach(place, datagram, false);
        }
        said.len()
    }

    fn overhear(&mut self, datagram: &[u8]) {
        self.overheard.push_back(datagram.to_vec());
        if self.overheard.len() > OVERHEARD {
            self.overheard.pop_front();
        }
    }

    /// A group in the lower half, an endpoint in the upper.
    fn destination(&self, byte: u8) -> Address {
        if byte < 128 { group(byte).address() } else { self.endpoint(byte) }
    }

    /// A participant's address, or one that may be nobody's; the relay begins to count anywhere.
    fn endpoint(&self, byte: u8) -> Address {
        let number = usize::from(byte) % 16;
        let participant = number.checked_sub(1).and_then(|index| self.participants.get(index));
        let address = participant.map(|(participant, _)| participant.session.address());
        address.unwrap_or(Address::unicast(1, number as u16))
    }

    /// A participant's session, one that may be nobody's, or none.
    fn session(&self, byte: u8) -> SessionId {
        let Some(index) = (usize::from(byte) % 16).checked_sub(1) else { return SessionId::NONE };
        let participant = self.participants.get(index);
        participant.map_or(SessionId::new(byte.into()), |(participant, _)| participant.session.id())
    }

    /// Keeps the packet that is in a datagram, if it is the longest of its kind so far.
    fn keep(&mut self, datagram: &[u8], from_relay: bool) {
        let packet = self.host.read(datagram, from_relay).unwrap_or_default();
        let Some(kind) = packet.get(8) else { return };
        let kept = self.packets.entry(*kind).or_default();
        if kept.len() < packet.len() {
            *kept = packet;
        }
    }

    /// The relay gets a datagram from a place.
    fn reach(&mut self, place: usize, datagram: &[u8], is_astray: bool) {
        self.host.reach(self.now, ip_port(place), datagram, is_astray);
        self.overhear(datagram);
    }

    fn transmit(&mut self) {
        let mut heard = Vec::new();
        for (to, datagram) in self.host.transmit(self.now) {
            for (participant, place) in &mut self.participants {
                if ip_port(*place) == to {
                    heard.clear();
                    // What is for someone else who was here is none of its business.
                    let _ = participant.hear_each(self.now, &datagram, |one| heard.push(one));
                    if let Some(granted) = &self.granted {
                        participant.check_grants(&heard, granted);
                    }
                }
            }
            self.keep(&datagram, true);
            self.overhear(&datagram);
        }
    }

    /// Whatever came before, a relay that hears no more empties itself and sleeps.
    fn fall_silent(&mut self) {
        self.wait(SessionLimits::default().lifetime + TICK);
        for _ in 0..self.host.turns_to_empty() {
            let Some(next) = self.host.poll_timeout() else { break };
            self.wait(next.since(self.now));
        }
        assert!(self.host.is_empty());
    }
}

fn comtree_of(participant: usize) -> Comtree {
    Comtree(1 + participant as u32 % 2)
}

fn group(byte: u8) -> Group {
    Group::new(u32::from(byte) % 16)
}
