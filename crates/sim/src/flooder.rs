//! Somebody who floods: an insider with a session, or a stranger. What it gets through is held to its limits.

use crate::config::SimConfig;
use crate::flood::{Flood, What};
use crate::host::Read;
use crate::hostile::{FAR_GROUPS, greeting, plausible_noise};
use crate::sabotage::Sabotage;
use crate::scenario::{Scenario, Stream, stream};
use canopy_relay::Budgets;
use canopy_session::{Event, Identity, PacketsPerKey, Session, SessionConfig, State};
use canopy_wire::{
    Class, Comtree, Flags, Group, Header, Kind, Level, MAX_DATAGRAM, MAX_RECORDS, Record,
    SessionId, SubscribeWriter, SubscriptionChange, Time, UpdatesWriter, VERSION, WireError,
    next_sequence,
};
use rand::RngExt;
use rand_chacha::ChaCha8Rng;
use std::net::SocketAddr;
use std::time::Duration;

/// How long before its flood it joins.
const JOINS_BEFORE: Duration = Duration::from_millis(1000);
/// Changes of subscriptions that the relay takes at once.
const CHANGES_AT_ONCE: u64 = 8192;
/// A flooder's own groups: so many, from here on.
pub(crate) const OWN_GROUPS: std::ops::Range<u32> = FAR_GROUPS + 4096..FAR_GROUPS + 4096 + 1000;
/// How long before it hears of it a flooder's session may have been opened.
const OPENED_BEFORE: Duration = Duration::from_millis(250);

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

/// How many updates somebody may send a second, and at once.
fn updates_of(budgets: &Budgets) -> (u64, u64) {
    let a_second = budgets.member.up_packets;
    (a_second, a_second / 8 + MAX_RECORDS as u64)
}

/// Somebody who floods.
pub(crate) struct Flooder {
    pub(crate) flood: Flood,
    /// Where it is, which is another one than the oracle is told if that is tried out.
    pub(crate) comtree: Comtree,
    rng: ChaCha8Rng,
    /// An insider's.
    pub(crate) session: Option<Session>,
    pub(crate) ip_port: SocketAddr,
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
            let comtree = match config.sabotage {
                Some(Sabotage::OnePart) => Comtree(1),
                _ => flood.comtree,
            };
            let setting = (config.seed, scenario.packets_per_key);
            Flooder::new(number, (flood, comtree), None, setting)
        };
        floods.enumerate().map(flooder).collect()
    }

    /// Somebody who floods a comtree.
    pub(crate) fn new(
        number: usize,
        (flood, comtree): (&Flood, Comtree),
        identity: Option<Identity>,
        (seed, packets_per_key): (u64, PacketsPerKey),
    ) -> Flooder {
        let mut rng = stream(seed, Stream::Flooders);
        rng.set_word_pos(number as u128 * (1 << 40));
        let session = flood.is_of_insider().then(|| {
            let config = SessionConfig::new(comtree, rng.random());
            Session::new(SessionConfig { packets_per_key, identity, ..config })
        });
        Flooder {
            flood: flood.clone(),
            comtree,
            rng,
            session,
            ip_port: SocketAddr::from(([203, 0, 115, 1 + number as u8], 4000)),
            sequence: 0,
            since: Time::ZERO,
            held: [const { Held { taken: 0 } }; 3],
        }
    }

    /// When it was let in, and the most of its updates that a relay may have taken since.
    pub(crate) fn may_have_sent(&self, now: Time, budgets: &Budgets) -> (Time, u64) {
        let lasts = now.since(self.since) + OPENED_BEFORE;
        let (per_second, at_once) = updates_of(budgets);
        (self.since, (per_second as f64 * lasts.as_secs_f64()) as u64 + at_once)
    }

    /// When it first does something.
    pub(crate) fn begins(&self) -> Time {
        self.flood.from - JOINS_BEFORE
    }

    /// Where it sends from, and what.
    pub(crate) fn volley(&mut self) -> Vec<(SocketAddr, Vec<u8>)> {
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
                let session = SessionId::new(rng.random());
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
        let len = writer.finish(&Header::new(Kind::Updates, session.id(), self.comtree));
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
        let len = writer.finish(self.comtree, session.id());
        let len = session.seal(&mut out, len)?;
        Ok(out[..len].to_vec())
    }

    /// What its session sends by itself.
    pub(crate) fn poll(&mut self, now: Time) -> Option<Vec<u8>> {
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
    pub(crate) fn was_read(
        &mut self,
        now: Time,
        read: &Read,
        budgets: &Budgets,
    ) -> Result<(), String> {
        if read.changes > 0 {
            self.sequence = next_sequence(self.sequence);
        }
        let member = &budgets.member;
        let bits = if read.updates > 0 { read.datagram.bytes.len() as u64 * 8 } else { 0 };
        let most_bits = member.up_bits / 8 + 2 * 8 * MAX_DATAGRAM as u64;
        let limits = [
            updates_of(budgets),
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
