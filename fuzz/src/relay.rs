//! The target of `canopy-relay`, and with it of the relay's side of `canopy-session`: participants
//! do what the input says, and so do strangers with copies of what they overheard.

use crate::input::{Input, MAX_STEPS, steps};
use crate::participant::Participant;
use canopy_batch::Transmit;
use canopy_judge::{Books, Limits, Page};
use canopy_relay::{Counters, Intake, Mode, Relay, RelayConfig, SendBatch, TableLimits};
use canopy_session::{Keyring, SessionLimits, SessionsConfig, State};
use canopy_wire::{
    Address, Comtree, Flags, Group, Header, Kind, Level, MAX_DATAGRAM, MAX_UPDATE, Packet, Time,
};
use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::time::Duration;

/// The bits of an input's first byte.
const PERIODIC: u8 = 1;
const TWO_THREADS: u8 = 2;
const CRAMPED: u8 = 4;
/// From two receivers on the relay sends all the same bytes, as for a clone engine.
const SETS: u8 = 0x80;

const TICK: Duration = Duration::from_millis(50);
/// Participants begin at the first of these ip:ports; at the others there are strangers only.
const PLACES: usize = 6;
const PARTICIPANTS: usize = 4;
/// How many datagrams strangers remember.
const OVERHEARD: usize = 16;
/// A stranger's datagram with this bit in its place comes from another data thread instead.
const HANDOVER: u8 = 0x80;

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
    /// Participant, [`destination`], level, flags, length in units of eight, how often.
    Publish,
    /// Participant; one that has left comes back.
    Leave,
    /// Participant, place.
    Move,
    /// Place, two bytes: that many bytes follow, a datagram.
    Raw,
    /// Place, kind, comtree, endpoint, [`destination`], byte: that many bytes follow, a body.
    Forge,
    /// Place, which, [`Input::alter`]: a copy of what was overheard.
    Replay,
    /// The relay is to stop.
    Drain,
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
    let mut world = World::new(config(input.byte()));
    for _ in 0..MAX_STEPS {
        let Some(step) = input.step(STEPS) else { break };
        world.take(step, &mut input);
    }
    world.fall_silent();
    Run { counters: world.relay.counters().clone(), packets: world.packets }
}

fn config(bits: u8) -> RelayConfig {
    let is = |bit| bits & bit != 0;
    let (max_sessions, max_groups, max_subscriptions) =
        if is(CRAMPED) { (2, 2, 3) } else { (8, 64, 256) };
    let shards = if is(TWO_THREADS) { 2 } else { 1 };
    RelayConfig {
        mode: if is(PERIODIC) { Mode::Periodic { tick: TICK } } else { Mode::Immediate },
        sessions: SessionsConfig {
            comtrees: vec![Comtree(1), Comtree(2)],
            site: 1,
            shard: shards - 1,
            shards,
            max_sessions,
            limits: SessionLimits::default(),
        },
        smallest_set: is(SETS).then_some(2),
        tables: TableLimits {
            max_groups,
            max_subscriptions,
            max_subscriptions_per_participant: max_subscriptions / 3 + 1,
        },
    }
}

/// A relay, whoever talks to it, and the books on both.
struct World {
    relay: Relay,
    config: RelayConfig,
    books: Books,
    /// What was read since the relay last sent.
    page: Page,
    now: Time,
    /// With the number of its place.
    participants: Vec<(Participant, usize)>,
    born: u8,
    overheard: VecDeque<Vec<u8>>,
    packets: BTreeMap<u8, Vec<u8>>,
}

impl World {
    fn new(config: RelayConfig) -> World {
        let relay = Relay::new(config.clone(), Keyring::new([1; 16]), &[2; 16]);
        let limits = Limits {
            max_sessions: config.sessions.max_sessions,
            tables: config.tables,
            one_session: true,
        };
        let mut world = World {
            page: Page::begin(&relay),
            relay,
            books: Books::new(limits),
            config,
            now: Time::from_millis(1),
            participants: Vec::new(),
            born: 0,
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
        Participant::new(Comtree(1 + number as u32 % 2), self.born)
    }

    fn take(&mut self, step: Step, input: &mut Input<'_>) {
        match step {
            Step::Settle => self.settle(),
            Step::Say => {
                self.say(input.below(PARTICIPANTS));
            }
            Step::Lose => {
                for lost in self.participants[input.below(PARTICIPANTS)].0.say(self.now) {
                    self.overhear(&lost);
                }
            }
            Step::Transmit => self.transmit(),
            Step::Wait => {
                let scale = input.below(2) * 4;
                self.wait(Duration::from_millis(u64::from(input.word()) << scale));
            }
            Step::Subscribe => {
                let (number, group) = (input.below(PARTICIPANTS), group(input.byte()));
                self.participants[number].0.session.subscribe(group, Level(input.byte()));
            }
            Step::Unsubscribe => {
                let (number, group) = (input.below(PARTICIPANTS), group(input.byte()));
                self.participants[number].0.session.unsubscribe(group);
            }
            Step::Publish => self.publish(input),
            Step::Leave => self.leave(input.below(PARTICIPANTS)),
            Step::Move => {
                let number = input.below(PARTICIPANTS);
                self.participants[number].1 = input.below(PLACES);
            }
            Step::Raw | Step::Forge | Step::Replay => {
                let place = input.byte();
                let datagram = self.datagram(step, input);
                if place & HANDOVER == 0 {
                    self.reach(usize::from(place) % PLACES, &datagram);
                } else {
                    self.hand_over(usize::from(place) % PLACES, &datagram);
                }
            }
            Step::Drain => self.relay.drain(self.now),
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
                let kind = Kind::ALL[input.below(Kind::ALL.len())];
                let comtree = Comtree(input.below(4) as u32);
                let src = Address::unicast(1, input.below(16) as u16);
                let header = Header::new(kind, comtree, src, destination(input.byte()));
                let len = input.byte().into();
                let body = input.bytes(len);
                [&header.encode(body.len() as u16), body].concat()
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
        let (participant, place) = &self.participants[input.below(PARTICIPANTS)];
        let (place, dst, level) = (*place, destination(input.byte()), Level(input.byte()));
        let flags = Flags(input.byte());
        let payload = vec![7; (usize::from(input.byte()) * 8).min(MAX_UPDATE + 1)];
        let often = 1 + input.below(32);
        if let Some(packet) = participant.publish(dst, (level, flags), &payload) {
            self.keep(&packet);
            for _ in 0..often {
                self.reach(place, &packet);
            }
        }
    }

    fn leave(&mut self, number: usize) {
        if self.participants[number].0.session.state() == State::Closed {
            self.participants[number].0 = self.participant(number);
        } else {
            self.participants[number].0.leave();
        }
    }

    fn wait(&mut self, time: Duration) {
        self.now = self.now + time;
        self.relay.handle_timeout(self.now);
        self.transmit();
        let next = self.relay.poll_timeout();
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
        let (said, place) = (participant.say(self.now), *place);
        for datagram in &said {
            self.keep(datagram);
            self.reach(place, datagram);
        }
        said.len()
    }

    fn overhear(&mut self, datagram: &[u8]) {
        self.overheard.push_back(datagram.to_vec());
        if self.overheard.len() > OVERHEARD {
            self.overheard.pop_front();
        }
    }

    fn keep(&mut self, packet: &[u8]) {
        let kept = self.packets.entry(packet[1]).or_default();
        if kept.len() < packet.len() {
            *kept = packet.to_vec();
        }
    }

    /// The relay gets a datagram from a place.
    fn reach(&mut self, place: usize, datagram: &[u8]) {
        let before = self.relay.counters().clone();
        let from = ip_port(place);
        let intake = self.relay.handle_datagram(self.now, from, datagram);
        if intake == Intake::Shared {
            assert!(self.config.sessions.shards > 1);
            let kind = Packet::new_checked(datagram).unwrap().header().kind;
            assert!(matches!(kind, Kind::Data | Kind::Bundle | Kind::Connect | Kind::Rebind));
        }
        let moved = (&before, self.relay.counters());
        self.books.handled(&mut self.page, from, datagram, moved).unwrap();
        self.overhear(datagram);
    }

    /// The relay gets from another data thread what that one got from a place.
    fn hand_over(&mut self, place: usize, datagram: &[u8]) {
        let before = self.relay.counters().clone();
        self.relay.handle_handover(self.now, ip_port(place), datagram);
        let moved = (&before, self.relay.counters());
        self.books.handed_over(ip_port(place), datagram, moved).unwrap();
    }

    fn transmit(&mut self) {
        let mut sent = Vec::new();
        self.relay.transmit(self.now, |batch| {
            for transmit in batch.transmits() {
                sent.extend(cut(batch, transmit).map(|datagram| (transmit.to.remote, datagram)));
            }
        });
        for (to, datagram) in sent {
            self.books.sends(&mut self.page, to, &datagram, self.relay.counters()).unwrap();
            for (participant, place) in &mut self.participants {
                if ip_port(*place) == to {
                    // What is for someone else who was here is none of its business.
                    let _ = participant.hear(self.now, &datagram);
                }
            }
            self.keep(&datagram);
            self.overhear(&datagram);
        }
        self.books.turn_ends(&self.relay, &self.page).unwrap();
        self.page = Page::begin(&self.relay);
        let flushes = self.relay.counters().flushes;
        self.relay.transmit(self.now, |_| panic!("everything was sent and there is more"));
        assert_eq!(self.relay.counters().flushes, flushes);
        if !self.relay.is_collecting() {
            assert!(self.relay.groups() <= self.relay.subscriptions(), "a group without anyone");
        }
    }

    /// Whatever came before, a relay that hears no more empties itself and sleeps.
    fn fall_silent(&mut self) {
        self.wait(self.config.sessions.limits.lifetime + TICK);
        for _ in 0..4 * self.config.sessions.max_sessions {
            let Some(next) = self.relay.poll_timeout() else { break };
            self.wait(next.since(self.now));
        }
        assert_eq!(self.relay.poll_timeout(), None);
        let left = (self.relay.sessions(), self.relay.subscriptions(), self.relay.groups());
        assert_eq!(left, (0, 0, 0));
    }
}

fn ip_port(place: usize) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, 1], 10_000 + place as u16))
}

fn group(byte: u8) -> Group {
    Group::new(u32::from(byte) % 16)
}

/// A group in the lower half, an endpoint in the upper.
fn destination(byte: u8) -> Address {
    if byte < 128 { group(byte).address() } else { Address::unicast(1, u16::from(byte) % 16) }
}

/// The datagrams of one send.
fn cut(batch: &SendBatch, transmit: &Transmit) -> impl Iterator<Item = Vec<u8>> {
    let bytes: Vec<u8> = batch.parts(transmit).flatten().copied().collect();
    assert_eq!(bytes.len(), transmit.len as usize);
    assert!(!bytes.is_empty() && usize::from(transmit.segment) <= MAX_DATAGRAM);
    let datagrams: Vec<_> = bytes.chunks(transmit.segment.into()).map(<[u8]>::to_vec).collect();
    assert_eq!(datagrams.len(), transmit.datagrams() as usize);
    datagrams.into_iter()
}
