//! The target of the handshake as a whole: between one participant and one relay, packets are lost,
//! altered, cut, copied and put in another order, until that ends. Then the two find each other, with
//! the same keys, whatever came before.

use crate::host::{Host, ip_port};
use crate::input::{Input, MAX_STEPS, steps};
use crate::is_sealed;
use crate::participant::Participant;
use crate::tokens::{DAY, Form, trust};
use canopy_relay::{
    ADDRESS_REST, Budgets, ComtreeConfig, Gate, Mode, Places, RelayConfig, TableLimits,
};
use canopy_session::{Call, Identity, PacketsPerKey, Session, SessionConfig, SessionLimits, State};
use canopy_wire::{
    Comtree, Downlink, Flags, Group, Level, MAX_DATAGRAM, MAX_TICKET_LEN, Packet, SAFE_DATAGRAM,
    SessionId, Suite, Ticket, Time,
};
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::Duration;

/// The bits of an input's first byte.
///
/// The participant knows the relay's key beforehand; or believes to, and has another's.
const KNOWS: u8 = 1;
const KNOWS_ANOTHER: u8 = 2;
/// What the relay sends to participants is not sealed.
const OPEN: u8 = 4;
/// What it sends to groups is sealed with one key for all.
const ONE_KEY: u8 = 0x10;
/// The participant takes the second suite only.
const SECOND_SUITE: u8 = 8;
/// The relay asks for a token; and the participant's is one that it does not take.
const GUARDED: u8 = 0x20;
const UNTRUSTED: u8 = 0x40;
/// The participant brings a ticket. A byte says how many bytes follow: it is these, whatever they are.
const TICKET: u8 = 0x80;

const COMTREE: Comtree = Comtree(1);
/// The participant is at one of these ip:ports; whatever comes from or goes to another, a stranger
/// has sent or gets.
const PLACES: usize = 3;
/// How many datagrams are under way in one direction, and how many of those that were are known.
const UNDER_WAY: usize = 8;
const PAST: usize = 32;
/// The bit of a byte that says which way a datagram goes; the rest says which one it is.
const TO_RELAY: u8 = 0x80;
/// A network without faults brings the two together within this time: a session that either side
/// holds for alive is found dead, which takes 8 s, the wait for the next try is over, at most 3 s, and one
/// handshake succeeds.
const RECOVERY: Duration = Duration::from_secs(12);

steps! {
    /// Scale, two bytes: milliseconds pass.
    Wait,
    /// Which: a datagram under way arrives.
    Arrive,
    /// Which, [`Input::alter`]: it arrives in another form.
    Alter,
    /// Which: it is lost.
    Lose,
    /// Way, place, which, [`Input::alter`]: a copy of what was under way either way arrives.
    Repeat,
    /// Way, place, two bytes: that many bytes follow, a datagram.
    Raw,
    /// Place: the participant is there from now on.
    Move,
    /// What is under way arrives, and what is said to that, until both are silent.
    Settle,
    /// A byte, by which it is the one or the other: the participant goes on by that token, if it has
    /// had one that the relay takes.
    Renew,
    /// Session, thread, suites, slow suites, and how many bytes of a ticket follow: somebody calls as a
    /// neighbour would, of whom the relay was not told.
    Call,
}

/// A datagram and the place of the participant that has sent it or is to get it.
type Datagram = (usize, Vec<u8>);

/// A participant, a relay, and what is between them.
struct Meeting {
    host: Host,
    participant: Participant,
    place: usize,
    now: Time,
    to_relay: VecDeque<Datagram>,
    to_participant: VecDeque<Datagram>,
    past: VecDeque<Vec<u8>>,
    /// Updates that came back, and what was sealed by the relay, since they last found each other.
    heard: usize,
    opened: usize,
}

/// A handshake through everything that the input makes happen.
pub fn joining(input: &[u8]) {
    let mut input = Input::new(input);
    let bits = input.byte();
    let ticket = if bits & TICKET == 0 { Ticket::default() } else { ticket(&mut input) };
    let mut meeting = Meeting::new(bits, ticket);
    meeting.say();
    for _ in 0..MAX_STEPS {
        let Some(step) = input.step(STEPS) else { break };
        meeting.take(step, &mut input);
        meeting.say();
        assert!(may_find(bits) || !meeting.is_connected(), "with another's key, or a bad token");
    }
    let found = meeting.recover();
    assert_eq!(found, may_find(bits), "an update came back after all: {found}");
}

/// Whether the two are to find each other.
fn may_find(bits: u8) -> bool {
    bits & KNOWS_ANOTHER == 0 && bits & (GUARDED | UNTRUSTED) != GUARDED | UNTRUSTED
}

fn relay_config(bits: u8) -> RelayConfig {
    let downlink = match (bits & OPEN, bits & ONE_KEY) {
        (_, ONE_KEY) => Downlink::Group,
        (OPEN, _) => Downlink::None,
        _ => Downlink::Member,
    };
    let group_suite = Suite::ALL[usize::from(bits & SECOND_SUITE != 0)];
    RelayConfig {
        mode: Mode::Immediate,
        comtrees: vec![ComtreeConfig { downlink, group_suite, ..ComtreeConfig::new(COMTREE, 1) }],
        trust: (bits & GUARDED != 0).then(|| trust(0, false)),
        origin: DAY,
        // More than one, for the participant may leave sessions behind where it was.
        places: Places::new(PLACES as u32),
        max_sessions: PLACES as u32,
        max_datagram: SAFE_DATAGRAM as u16,
        slow_suites: 0,
        address_rest: ADDRESS_REST,
        life: None,
        log_keys: true,
        packets_per_key: PacketsPerKey::PROTOCOL,
        limits: SessionLimits::default(),
        budgets: Budgets::default(),
        gate: Gate::open(),
        smallest_set: None,
        tables: TableLimits {
            max_groups: 4,
            max_subscriptions: 8,
            max_subscriptions_per_participant: 4,
            max_new_groups_per_participant: 3,
            max_routes: 8,
            max_flow_pairs: 64,
        },
    }
}

fn session_config(bits: u8, relay: &Identity) -> SessionConfig {
    let is = |bit| bits & bit != 0;
    let anothers = is(KNOWS_ANOTHER).then(|| *Identity::new([9; 32]).public());
    let mut config = SessionConfig::new(COMTREE, [7; 16]);
    config.relay_key = anothers.or_else(|| is(KNOWS).then(|| *relay.public()));
    if is(SECOND_SUITE) {
        config.suites = Suite::ChaCha20Poly1305.bit();
    }
    config
}

impl Meeting {
    fn new(bits: u8, ticket: Ticket) -> Meeting {
        let host = Host::new(&relay_config(bits), 1);
        let config = SessionConfig { ticket, ..session_config(bits, &host.identity()) };
        let mut participant = match (bits & GUARDED, bits & UNTRUSTED) {
            (0, _) => Participant::new(config),
            (_, 0) => Participant::with_token(config, 0, Form::Usual),
            _ => Participant::with_token(config, 0, Form::Forged),
        };
        participant.session.subscribe(group(), Level(0));
        Meeting {
            host,
            participant,
            place: 0,
            now: Time::from_millis(1),
            to_relay: VecDeque::new(),
            to_participant: VecDeque::new(),
            past: VecDeque::new(),
            heard: 0,
            opened: 0,
        }
    }

    fn take(&mut self, step: Step, input: &mut Input<'_>) {
        match step {
            Step::Wait => {
                let scale = input.below(2) * 4;
                self.wait(Duration::from_millis(u64::from(input.word()) << scale));
            }
            Step::Arrive | Step::Alter | Step::Lose => {
                let which = input.byte();
                let Some((place, mut datagram)) = self.pick(which) else { return };
                if matches!(step, Step::Alter) {
                    input.alter(&mut datagram);
                }
                if !matches!(step, Step::Lose) {
                    self.arrive(which, place, &datagram);
                }
            }
            Step::Repeat => {
                let (way, place) = (input.byte(), input.below(PLACES));
                let which = self.past.len().checked_sub(input.below(PAST) + 1);
                let mut copy = which.map_or(Vec::new(), |which| self.past[which].clone());
                input.alter(&mut copy);
                self.arrive(way, place, &copy);
            }
            Step::Raw => {
                let (way, place, len) = (input.byte(), input.below(PLACES), input.word());
                self.arrive(way, place, input.bytes(len.into()));
            }
            Step::Move => self.place = input.below(PLACES),
            Step::Settle => self.settle(),
            Step::Renew => {
                let form = [Form::Usual, Form::Again][input.below(2)];
                if !self.participant.granted().is_empty() {
                    self.participant.renew(0, form);
                }
            }
            Step::Call => self.call(input),
        }
    }

    /// Takes a datagram from those under way.
    fn pick(&mut self, which: u8) -> Option<Datagram> {
        let queue =
            if which & TO_RELAY == 0 { &mut self.to_participant } else { &mut self.to_relay };
        let number = usize::from(which & !TO_RELAY) % queue.len().max(1);
        queue.remove(number)
    }

    fn arrive(&mut self, way: u8, place: usize, datagram: &[u8]) {
        if way & TO_RELAY == 0 {
            self.hear(place, datagram);
        } else {
            self.host.reach(self.now, ip_port(place), datagram, false);
        }
        self.transmit();
    }

    fn hear(&mut self, place: usize, datagram: &[u8]) {
        if place != self.place {
            return;
        }
        let was_connected = self.is_connected();
        let heard = self.participant.hear(self.now, datagram);
        self.heard += heard.unwrap_or(0);
        self.opened += usize::from(heard.is_ok() && is_sealed(datagram));
        if self.is_connected() && !was_connected {
            (self.heard, self.opened) = (0, 0);
            // The relay can read what it says from now on.
            self.publish();
        }
    }

    fn is_connected(&self) -> bool {
        self.participant.session.state() == State::Connected
    }

    /// An update that is to come back.
    fn publish(&mut self) {
        let how = (Level(0), Flags::ECHO);
        let open = |said: &[u8]| self.host.read(said, false);
        let update = self.participant.publish(group().address(), how, b"to all", &open);
        self.send(update);
    }

    fn say(&mut self) {
        let said = self.participant.say(self.now, &|said| self.host.read(said, false));
        self.send(said);
    }

    fn send(&mut self, said: impl IntoIterator<Item = Vec<u8>>) {
        for datagram in said {
            remember(&mut self.past, datagram.clone(), PAST);
            remember(&mut self.to_relay, (self.place, datagram), UNDER_WAY);
        }
    }

    /// Somebody asks for a link, with a right handshake.
    fn call(&mut self, input: &mut Input<'_>) {
        let (session, thread) = (SessionId::new(input.word().into()), input.word());
        let mut caller = Session::new(SessionConfig {
            relay_key: Some(*self.host.identity().public()),
            identity: Some(Identity::new([5; 32])),
            suites: input.byte(),
            slow_suites: input.byte(),
            ticket: ticket(input),
            call: Some(Call { session, threads: 1, thread }),
            ..SessionConfig::new(COMTREE, [5; 16])
        });
        let (from, mut out) = (ip_port(PLACES), [0; MAX_DATAGRAM]);
        // Hello and connect; nothing comes behind a refusal.
        for _ in 0..2 {
            let Some(len) = caller.poll_transmit(self.now, &mut out) else { break };
            self.host.reach(self.now, from, &out[..len], false);
            for (to, datagram) in self.host.transmit(self.now) {
                if to == from {
                    let packet = Packet::new_checked(&datagram).unwrap();
                    let _ = caller.handle_answer(self.now, &packet);
                } else {
                    self.keep(to, datagram);
                }
            }
        }
        assert_ne!(caller.state(), State::Connected, "the relay was not told of it");
    }

    fn transmit(&mut self) {
        for (to, datagram) in self.host.transmit(self.now) {
            self.keep(to, datagram);
        }
    }

    /// What the relay sent is on its way.
    fn keep(&mut self, to: SocketAddr, datagram: Vec<u8>) {
        remember(&mut self.past, datagram.clone(), PAST);
        let place = (0..PLACES).find(|place| ip_port(*place) == to);
        remember(&mut self.to_participant, (place.unwrap_or(PLACES), datagram), UNDER_WAY);
    }

    fn wait(&mut self, time: Duration) {
        self.now = self.now + time;
        self.host.handle_timeout(self.now);
        self.transmit();
    }

    fn settle(&mut self) {
        for _ in 0..4 * UNDER_WAY {
            self.say();
            if let Some((place, datagram)) = self.to_relay.pop_front() {
                self.arrive(TO_RELAY, place, &datagram);
            } else if let Some((place, datagram)) = self.to_participant.pop_front() {
                self.arrive(0, place, &datagram);
            } else {
                return;
            }
        }
    }

    /// Nothing happens to datagrams any more. Whether each side reads the other's, and an update comes
    /// back.
    fn recover(&mut self) -> bool {
        let end = self.now + RECOVERY;
        while self.now < end {
            self.settle();
            self.heard = 0;
            self.publish();
            self.settle();
            if self.heard > 0 && self.opened > 0 {
                return true;
            }
            let due = [self.participant.session.poll_timeout(), self.host.poll_timeout()];
            let next = due.into_iter().flatten().min().expect("nobody tries any more");
            self.wait(next.since(self.now));
        }
        false
    }
}

/// A byte says how long it is, then it follows.
fn ticket(input: &mut Input<'_>) -> Ticket {
    let len = input.below(MAX_TICKET_LEN + 1);
    Ticket::new(input.bytes(len)).unwrap()
}

/// The newest are kept.
fn remember<T>(of: &mut VecDeque<T>, one: T, most: usize) {
    if of.len() == most {
        of.pop_front();
    }
    of.push_back(one);
}

fn group() -> Group {
    Group::new(1)
}
