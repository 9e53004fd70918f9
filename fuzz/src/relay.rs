//! The target of `canopy-relay`, and with it of the relay's side of `canopy-session`: participants
//! do what the input says, and so do strangers with copies of what they overheard.

use crate::input::{Input, MAX_STEPS, steps};
use crate::participant::Participant;
use canopy_batch::Transmit;
use canopy_judge::{Books, Limits, Page};
use canopy_relay::{
    Change, ComtreeConfig, Counters, Mode, Places, Relay, RelayConfig, SendBatch, Siblings,
    TableLimits,
};
use canopy_session::{Keyring, SessionLimits, State};
use canopy_wire::{
    Address, Comtree, Flags, Group, Header, Kind, Level, MAX_DATAGRAM, MAX_UPDATE, Time,
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
/// A stranger's datagram with this bit in its place comes to another data thread than it is for.
const ASTRAY: u8 = 0x80;

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
    /// Place, kind, comtree, endpoint, [`World::destination`], byte: that many bytes follow, a body.
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
    let bits = input.byte();
    let mut world = World::new(config(bits), if bits & TWO_THREADS == 0 { 1 } else { 2 });
    for _ in 0..MAX_STEPS {
        let Some(step) = input.step(STEPS) else { break };
        world.take(step, &mut input);
    }
    world.fall_silent();
    let mut counters = Counters::default();
    world.threads.iter().for_each(|thread| counters.add(thread.relay.counters()));
    Run { counters, packets: world.packets }
}

fn config(bits: u8) -> RelayConfig {
    let is = |bit| bits & bit != 0;
    let (max_sessions, max_groups, max_subscriptions) =
        if is(CRAMPED) { (2, 2, 3) } else { (8, 64, 256) };
    RelayConfig {
        mode: if is(PERIODIC) { Mode::Periodic { tick: TICK } } else { Mode::Immediate },
        comtrees: [1, 2].map(|number| ComtreeConfig::new(Comtree(number), 1)).to_vec(),
        places: Places::new(max_sessions),
        max_sessions,
        limits: SessionLimits::default(),
        smallest_set: is(SETS).then_some(2),
        tables: TableLimits {
            max_groups,
            max_subscriptions,
            max_subscriptions_per_participant: max_subscriptions / 3 + 1,
        },
    }
}

/// A data thread, and the page of the books on what it read since it last sent.
struct Thread {
    relay: Relay,
    page: Page,
}

/// A relay, whoever talks to it, and the books on both.
struct World {
    threads: Vec<Thread>,
    config: RelayConfig,
    books: Books,
    now: Time,
    /// With the number of its place.
    participants: Vec<(Participant, usize)>,
    born: u8,
    overheard: VecDeque<Vec<u8>>,
    packets: BTreeMap<u8, Vec<u8>>,
}

impl World {
    fn new(config: RelayConfig, threads: u16) -> World {
        let limits = Limits {
            max_sessions: config.max_sessions,
            tables: config.tables,
            one_session: threads == 1,
        };
        let thread = |siblings| {
            let relay = Relay::new(config.clone(), siblings, Keyring::new([1; 16]), &[2; 16]);
            Thread { page: Page::begin(&relay), relay }
        };
        let mut world = World {
            threads: Siblings::mesh(threads).into_iter().map(thread).collect(),
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
                let is_astray = place & ASTRAY != 0;
                self.reach(usize::from(place) % PLACES, &datagram, is_astray);
            }
            Step::Drain => {
                for thread in &mut self.threads {
                    thread.relay.apply(self.now, Change::Drain).unwrap();
                }
            }
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
                let src = self.endpoint(input.byte());
                let header = Header::new(kind, comtree, src, self.destination(input.byte()));
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
        let (place, dst, level) = (*place, self.destination(input.byte()), Level(input.byte()));
        let flags = Flags(input.byte());
        let payload = vec![7; (usize::from(input.byte()) * 8).min(MAX_UPDATE + 1)];
        let often = 1 + input.below(32);
        if let Some(packet) = participant.publish(dst, (level, flags), &payload) {
            self.keep(&packet);
            for _ in 0..often {
                self.reach(place, &packet, false);
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
        for thread in &mut self.threads {
            thread.relay.handle_timeout(self.now);
        }
        for thread in &mut self.threads {
            thread.relay.handle_siblings(self.now);
        }
        self.transmit();
        let next = self.poll_timeout();
        assert!(next.is_none_or(|at| at > self.now), "everything is done and it is due again");
    }

    fn poll_timeout(&self) -> Option<Time> {
        self.threads.iter().filter_map(|thread| thread.relay.poll_timeout()).min()
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

    fn keep(&mut self, packet: &[u8]) {
        let kept = self.packets.entry(packet[1]).or_default();
        if kept.len() < packet.len() {
            *kept = packet.to_vec();
        }
    }

    /// The relay gets a datagram from a place.
    fn reach(&mut self, place: usize, datagram: &[u8], is_astray: bool) {
        let endpoint = datagram.get(11).copied().unwrap_or_default();
        let number = (usize::from(endpoint) + usize::from(is_astray)) % self.threads.len();
        let Thread { relay, page } = &mut self.threads[number];
        let before = relay.counters().clone();
        let from = ip_port(place);
        relay.handle_datagram(self.now, from, datagram);
        self.books.handled(page, from, datagram, (&before, relay.counters())).unwrap();
        // What one data thread tells and passes, the others take.
        for thread in &mut self.threads {
            thread.relay.handle_siblings(self.now);
        }
        self.overhear(datagram);
    }

    fn transmit(&mut self) {
        for number in 0..self.threads.len() {
            self.transmit_of(number);
        }
    }

    fn transmit_of(&mut self, number: usize) {
        let Thread { relay, page } = &mut self.threads[number];
        let mut sent = Vec::new();
        relay.transmit(self.now, |batch| {
            for transmit in batch.transmits() {
                sent.extend(cut(batch, transmit).map(|datagram| (transmit.to.remote, datagram)));
            }
        });
        for (to, datagram) in &sent {
            self.books.sends(page, *to, datagram, relay.counters()).unwrap();
        }
        self.books.turn_ends(relay, page).unwrap();
        *page = Page::begin(relay);
        let flushes = relay.counters().flushes;
        relay.transmit(self.now, |_| panic!("everything was sent and there is more"));
        assert_eq!(relay.counters().flushes, flushes);
        // Others' interest is in the same table.
        if !relay.is_collecting() && self.threads.len() == 1 {
            let relay = &self.threads[number].relay;
            assert!(relay.groups() <= relay.subscriptions(), "a group without anyone");
        }
        for (to, datagram) in sent {
            for (participant, place) in &mut self.participants {
                if ip_port(*place) == to {
                    // What is for someone else who was here is none of its business.
                    let _ = participant.hear(self.now, &datagram);
                }
            }
            self.keep(&datagram);
            self.overhear(&datagram);
        }
    }

    /// Whatever came before, a relay that hears no more empties itself and sleeps.
    fn fall_silent(&mut self) {
        self.wait(self.config.limits.lifetime + TICK);
        for _ in 0..4 * self.config.max_sessions {
            let Some(next) = self.poll_timeout() else { break };
            self.wait(next.since(self.now));
        }
        assert_eq!(self.poll_timeout(), None);
        for Thread { relay, .. } in &self.threads {
            let left = (relay.sessions(), relay.subscriptions(), relay.groups());
            assert_eq!(left, (0, 0, 0));
        }
    }
}

fn ip_port(place: usize) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, 1], 10_000 + place as u16))
}

fn group(byte: u8) -> Group {
    Group::new(u32::from(byte) % 16)
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
