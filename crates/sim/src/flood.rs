//! Floods at rate: insiders and strangers who for a while send far more than they may, in volleys. What a
//! flooder gets through is held to its limits, and whoever stays within its own is not policed, nor kept
//! waiting or turned away because of what comes by another lane.

use crate::config::SimConfig;
use crate::host::{Read, steer};
use crate::hostile::{FAR_GROUPS, greeting, plausible_noise};
use crate::sabotage::Sabotage;
use crate::scenario::{Scenario, Stream, stream};
use crate::world::{Step, World};
use canopy_relay::{Budgets, Inlet};
use canopy_session::{Event, Session, SessionConfig, State};
use canopy_wire::{
    Class, Comtree, Flags, Group, Header, Kind, Lane, Level, MAX_DATAGRAM, MAX_RECORDS, Record,
    SubscribeWriter, SubscriptionChange, Time, UpdatesWriter, VERSION, WireError, next_sequence,
};
use rand::RngExt;
use rand_chacha::ChaCha8Rng;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

/// The comtree of those who flood one of their own: its lane is nobody else's.
pub(crate) const FLOODED: Comtree = Comtree(5);
/// Between two volleys.
const VOLLEYS_EVERY: Duration = Duration::from_millis(2);
/// How often a flooder looks after its session before its flood, and how long before that it joins.
const IDLE: Duration = Duration::from_millis(50);
const JOINS_BEFORE: Duration = Duration::from_millis(1000);
/// It leaves so long after its flood, when its lane is read empty.
const LEAVES_AFTER: Duration = Duration::from_millis(700);
/// Datagrams that one turn reads at most, as long as not all lanes have a backlog.
const READ_AT_ONCE: u32 = 600;
/// What a relay takes for a datagram, so that the floods are more than it can handle.
const DATAGRAM_MICROS: std::ops::Range<u64> = 50..80;
/// The most updates of one publication, and of one that is not allowed besides.
const MOST_AT_ONCE: u64 = 34;
/// Changes of subscriptions that the relay takes at once.
const CHANGES_AT_ONCE: u64 = 8192;
/// A flooder's own groups: so many, from here on.
const OWN_GROUPS: std::ops::Range<u32> = FAR_GROUPS + 4096..FAR_GROUPS + 4096 + 1000;
/// How long before it hears of it a flooder's session may have been opened.
const OPENED_BEFORE: Duration = Duration::from_millis(250);

/// What a flood is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    /// Bundles of empty updates, some of which come back to their publisher, and forged ones.
    Updates,
    Subscriptions,
    /// Of strangers, from many ip:ports.
    Hellos,
    /// Of strangers, who write what looks like the head of a packet before it.
    Garbage,
}

/// One flood.
#[derive(Clone, Debug)]
struct Flood {
    what: What,
    comtree: Comtree,
    from: Time,
    until: Time,
}

/// The floods of a run, and how the relay is armed.
#[derive(Clone, Debug)]
pub(crate) struct Floods {
    each: Vec<Flood>,
    /// What everybody may send: far more than those do who do no harm.
    pub(crate) budgets: Budgets,
    /// How long it takes to handle a datagram.
    pub(crate) per_datagram: Duration,
    /// Datagrams that each receive buffer holds.
    pub(crate) receive_queue: usize,
}

impl Floods {
    /// `None` where nobody floods.
    pub(crate) fn draw(config: &SimConfig, scenario: &Scenario) -> Option<Floods> {
        let rng = &mut stream(config.seed, Stream::Floods);
        let is_drawn = rng.random_bool(0.25) && config.sabotage.is_none();
        let is_asked_for = config.sabotage.is_some_and(Sabotage::is_of_floods);
        if !is_asked_for && !config.floods.unwrap_or(is_drawn) {
            return None;
        }
        let count = rng.random_range(1..3);
        Some(Floods {
            each: (0..count).map(|_| Flood::draw(is_asked_for, scenario, rng)).collect(),
            budgets: draw_budgets(scenario, rng),
            per_datagram: Duration::from_micros(rng.random_range(DATAGRAM_MICROS)),
            receive_queue: rng.random_range(2048..4096),
        })
    }

    /// How much longer a turn takes at most.
    pub(crate) fn longest_turn(&self) -> Duration {
        self.per_datagram * READ_AT_ONCE
    }
}

impl Flood {
    fn draw(is_sabotaged: bool, scenario: &Scenario, rng: &mut ChaCha8Rng) -> Flood {
        let drawn =
            [What::Updates, What::Updates, What::Subscriptions, What::Hellos, What::Garbage]
                [rng.random_range(0..5)];
        let shares = rng.random_bool(0.3);
        // Where the relay is full, or asks for tokens, those who flood are not let in.
        let may_join = scenario.has_places() && !scenario.asks_for_tokens;
        let what = match drawn {
            _ if is_sabotaged => What::Updates,
            What::Updates | What::Subscriptions if !may_join => What::Hellos,
            _ => drawn,
        };
        let calm = scenario.calm_from.as_nanos() as f64;
        let from = Time::from_nanos((calm * rng.random_range(0.3..0.7)) as u64);
        let latest = scenario.calm_from - LEAVES_AFTER;
        let until = from + Duration::from_millis(rng.random_range(150..350));
        let comtree = if shares && !is_sabotaged { Comtree(1) } else { FLOODED };
        Flood { what, comtree, from, until: until.min(latest) }
    }

    fn is_of_insider(&self) -> bool {
        matches!(self.what, What::Updates | What::Subscriptions)
    }
}

/// Nobody who does no harm comes near them, even where all that was sent while the network held it back
/// arrives at once, to somebody who has just joined and has an eighth of a second's worth.
fn draw_budgets(scenario: &Scenario, rng: &mut ChaCha8Rng) -> Budgets {
    let habits = &scenario.habits;
    let times = rng.random_range(1..4);
    let turns = Duration::from_micros(DATAGRAM_MICROS.end) * READ_AT_ONCE * 4;
    let held = (scenario.longest_up() + turns).as_millis() as u64;
    let publications = 2 + held / habits.publish_ms.start;
    let updates = MOST_AT_ONCE * (publications * 8 + 1 + 1000 / habits.publish_ms.start) * times;
    let mut budgets = Budgets::default();
    budgets.member.up_packets = updates;
    budgets.member.up_bits = updates * (habits.longest as u64 + 100) * 8;
    budgets.subscription_changes = rng.random_range(1000..4000);
    budgets
}

/// What somebody gets through, held to a bucket of so much a second and so much at once.
#[derive(Debug, Default)]
struct Held {
    taken: u64,
}

impl Held {
    fn takes(&mut self, more: u64, (per_second, at_once): (u64, u64), lasts: Duration) -> bool {
        self.taken += more;
        self.taken <= (per_second as f64 * lasts.as_secs_f64()) as u64 + at_once
    }
}

/// Somebody who floods.
pub(crate) struct Flooder {
    flood: Flood,
    rng: ChaCha8Rng,
    /// An insider's.
    session: Option<Session>,
    ip_port: SocketAddr,
    /// The last subscribe packet that the relay took.
    sequence: u32,
    /// When it was let in, and what it has got through since: updates, bits, changes of subscriptions.
    since: Time,
    held: [Held; 3],
}

impl Flooder {
    pub(crate) fn all(config: &SimConfig, scenario: &Scenario) -> Vec<Flooder> {
        let floods = scenario.floods.iter().flat_map(|floods| &floods.each);
        let flooder = |(number, flood): (usize, &Flood)| {
            let mut rng = stream(config.seed, Stream::Flooders);
            rng.set_word_pos(number as u128 * (1 << 40));
            Flooder {
                flood: flood.clone(),
                session: flood.is_of_insider().then(|| {
                    Session::new(SessionConfig {
                        packets_per_key: scenario.packets_per_key,
                        ..SessionConfig::new(flood.comtree, rng.random())
                    })
                }),
                rng,
                ip_port: SocketAddr::from(([203, 0, 115, 1 + number as u8], 4000)),
                sequence: 0,
                since: Time::ZERO,
                held: [const { Held { taken: 0 } }; 3],
            }
        };
        floods.enumerate().map(flooder).collect()
    }

    /// When it first does something.
    pub(crate) fn begins(&self) -> Time {
        self.flood.from - JOINS_BEFORE
    }

    /// Where it sends from, and what.
    fn volley(&mut self) -> Vec<(SocketAddr, Vec<u8>)> {
        let count = self.rng.random_range(30..60);
        (0..count).filter_map(|number| self.shot(number).ok()).collect()
    }

    fn shot(&mut self, number: u32) -> Result<(SocketAddr, Vec<u8>), WireError> {
        let Flooder { rng, flood, .. } = self;
        let ip = [203, 0, 116, rng.random_range(1..255)];
        let anywhere = SocketAddr::from((ip, rng.random_range(1..u16::MAX)));
        Ok(match flood.what {
            What::Updates => (self.ip_port, self.bundle(number)?),
            What::Subscriptions => (self.ip_port, self.changes(number)?),
            What::Hellos => (anywhere, greeting(rng, flood.comtree)),
            What::Garbage => {
                let session = canopy_wire::SessionId::new(rng.random());
                let mut bytes = plausible_noise(rng, flood.comtree, session);
                bytes.iter_mut().take(1).for_each(|first| *first = VERSION | Class::Stranger as u8);
                (anywhere, bytes)
            }
        })
    }

    /// As many empty updates as fit a datagram.
    fn bundle(&mut self, number: u32) -> Result<Vec<u8>, WireError> {
        let Some(session) = self.session.as_mut().filter(|it| it.state() == State::Connected)
        else {
            return Err(WireError::Length);
        };
        let (mut out, mut count) = ([0; MAX_DATAGRAM], 0);
        let first = session.take_series(MAX_RECORDS);
        let mut writer = UpdatesWriter::new(&mut out, session.max_datagram())?;
        let flags = if number.is_multiple_of(8) { Flags::ECHO } else { Flags(0) };
        let dst = Group::new(OWN_GROUPS.start).address();
        let record = |count| Record::new(dst, first.wrapping_add(count), b"");
        while usize::from(count) < MAX_RECORDS && writer.push(&Record { flags, ..record(count) }) {
            count += 1;
        }
        let len = writer.finish(&Header::new(Kind::Updates, session.id(), self.flood.comtree));
        let len = session.seal(&mut out, len)?;
        // Some are forged.
        out[len - 1] ^= u8::from(number % 16 == 15);
        Ok(out[..len].to_vec())
    }

    /// As many changes of subscriptions as fit a datagram.
    fn changes(&mut self, number: u32) -> Result<Vec<u8>, WireError> {
        let Some(session) = self.session.as_mut().filter(|it| it.state() == State::Connected)
        else {
            return Err(WireError::Length);
        };
        let sequence = (0..=number).fold(self.sequence, |sequence, _| next_sequence(sequence));
        let mut out = [0; MAX_DATAGRAM];
        let mut writer = SubscribeWriter::new(&mut out, sequence, session.max_datagram())?;
        loop {
            let group = Group::new(self.rng.random_range(OWN_GROUPS));
            let change = match self.rng.random_bool(0.5) {
                true => SubscriptionChange::Add(group, Level(self.rng.random_range(0..4))),
                false => SubscriptionChange::Drop(group),
            };
            if !writer.push(change) {
                break;
            }
        }
        let len = writer.finish(self.flood.comtree, session.id());
        let len = session.seal(&mut out, len)?;
        Ok(out[..len].to_vec())
    }

    /// What its session sends by itself.
    fn poll(&mut self, now: Time) -> Option<Vec<u8>> {
        let session = self.session.as_mut()?;
        while let Some(event) = session.poll_event() {
            if let Event::Connected(_) = event {
                (self.since, self.sequence) = (now, 0);
                self.held = Default::default();
                if self.flood.what == What::Updates {
                    session.subscribe(Group::new(OWN_GROUPS.start), Level(0));
                }
            }
        }
        let mut out = [0; MAX_DATAGRAM];
        let len = session.poll_transmit(now, &mut out)?;
        Some(out[..len].to_vec())
    }

    /// The relay has read one of its datagrams.
    ///
    /// # Errors
    /// It has taken more of it than the flooder may send.
    fn was_read(&mut self, now: Time, read: &Read, budgets: &Budgets) -> Result<(), String> {
        if read.changes > 0 {
            self.sequence = next_sequence(self.sequence);
        }
        let member = &budgets.member;
        let bits = if read.updates > 0 { read.datagram.bytes.len() as u64 * 8 } else { 0 };
        let most_bits = member.up_bits / 8 + 2 * 8 * MAX_DATAGRAM as u64;
        let limits = [
            (member.up_packets, member.up_packets / 8 + MAX_RECORDS as u64),
            (member.up_bits, most_bits),
            (budgets.subscription_changes.into(), CHANGES_AT_ONCE),
        ];
        let lasts = now.since(self.since) + OPENED_BEFORE;
        for (at, more) in [read.updates, bits, read.changes].into_iter().enumerate() {
            if !self.held[at].takes(more, limits[at], lasts) {
                let (what, taken) = (["updates", "bits", "changes"][at], self.held[at].taken);
                let (a_second, at_once) = limits[at];
                return Err(format!(
                    "of a flood {taken} {what} were taken in {lasts:?}, where {a_second} a second may be, {at_once} at once"
                ));
            }
        }
        Ok(())
    }
}

impl World<'_> {
    /// A flooder does what it does next.
    pub(crate) fn flood(&mut self, number: usize) {
        let flooder = &mut self.flooders[number];
        let Flood { from, until, .. } = flooder.flood;
        if self.now >= until + LEAVES_AFTER {
            flooder.session.iter_mut().for_each(Session::leave);
            self.pump_flooder(number);
            return self.flooders[number].session = None;
        }
        if (from..until).contains(&self.now) {
            for (from, bytes) in flooder.volley() {
                self.tallies.flooded += 1;
                self.arrives_aside(from, bytes.into());
            }
        }
        self.pump_flooder(number);
        let floods = (from..until).contains(&(self.now + VOLLEYS_EVERY));
        self.after(if floods { VOLLEYS_EVERY } else { IDLE }, Step::Flood(number));
    }

    fn pump_flooder(&mut self, number: usize) {
        let now = self.now;
        while let Some(bytes) = self.flooders[number].poll(now) {
            let from = self.flooders[number].ip_port;
            self.arrives_aside(from, bytes.into());
        }
    }

    /// What the relay sends to where no participant is, a flooder may hear.
    pub(crate) fn tell_flooder(&mut self, to: SocketAddr, bytes: &Rc<[u8]>) {
        let found = self.flooders.iter().position(|one| one.ip_port == to);
        let Some(number) = found else { return };
        if let Some(session) = &mut self.flooders[number].session {
            let _ = session.handle_datagram(self.now, &mut bytes.to_vec(), |_| ());
            self.pump_flooder(number);
        }
    }

    /// Whether there are floods, but none on a participant's comtree.
    fn is_apart(&self, participant: usize) -> bool {
        let comtree = self.participants[participant].comtree;
        let is_its = |one: &Flooder| one.flood.is_of_insider() && one.flood.comtree == comtree;
        !self.flooders.is_empty() && !self.flooders.iter().any(is_its)
    }

    /// Whether a datagram comes by a lane on which nobody floods.
    fn comes_apart(&self, participant: usize, bytes: &[u8]) -> bool {
        let own = Inlet::Lane(Lane::of(self.participants[participant].comtree));
        steer(bytes, 1).1 == own && self.is_apart(participant)
    }

    /// A receive buffer had no room for a participant's datagram.
    pub(crate) fn had_no_room(&mut self, participant: usize, bytes: &[u8]) {
        if self.comes_apart(participant, bytes) {
            let what =
                format!("a flood on another comtree cost participant {participant} a datagram");
            self.oracle.broken(format!("{}: {what}", self.now));
        }
    }

    /// The relay has read a datagram where there are floods.
    pub(crate) fn police(&mut self, read: &Read) {
        let Some(floods) = &self.scenario.floods else { return };
        let Some(participant) = read.datagram.participant else {
            let from = read.datagram.from;
            let flooder = self.flooders.iter_mut().find(|one| one.ip_port == from);
            let verdict = flooder.map(|one| one.was_read(self.now, read, &floods.budgets));
            if let Some(Err(what)) = verdict {
                self.oracle.broken(format!("{}: {what}", self.now));
            }
            return;
        };
        let waited = self.now.since(read.datagram.at);
        let most = self.scenario.longest_unread();
        if self.comes_apart(participant, &read.datagram.bytes) && waited > most {
            let what =
                format!("participant {participant} waited {waited:?} to be read, not {most:?}");
            self.oracle.broken(format!("{}: {what}", self.now));
        }
        if read.policed > 0 {
            let what = format!("participant {participant} is policed, who stays within its limits");
            self.oracle.broken(format!("{}: {what}", self.now));
        }
    }

    /// A participant has been refused a subscription.
    pub(crate) fn is_refused(&mut self, participant: usize) {
        let is_roomy = self.scenario.has_roomy_tables() && self.tokens.is_none();
        if is_roomy && self.is_apart(participant) {
            let what = format!("a flood on another comtree cost participant {participant} a group");
            self.oracle.broken(format!("{}: {what}", self.now));
        }
    }
}
