//! The target of a participant's side of `canopy-session`: whatever the relay answers, and when,
//! the session keeps its promises. The relay's side is part of the target `relay`.

use crate::host::keyring;
use crate::input::{Input, MAX_STEPS, steps};
use crate::is_sealed;
use crate::participant::Participant;
use canopy_session::{
    GroupKeyMaker, GroupSealer, LoggedKeys, PacketsPerKey, Proof, SessionConfig, SessionLimits,
    Sessions, SessionsConfig, State, Terms,
};
use canopy_wire::{
    Address, Bound, Busy, CLEAR_LEN, Challenge, Class, Comtree, Connect, Connected, Cookie,
    Downlink, Excess, Flags, Gone, Group, Header, Hello, Keepalive, Kind, Leave, LeaveReason,
    Level, MAX_DATAGRAM, MAX_TOKEN_LEN, MAX_UPDATE, NumberedRequest, Packet, Probe, Record,
    Refused, RefusedReason, RequestStatus, Response, Restriction, SEAL_LEN, SessionId, Subscribe,
    SubscribeAckWriter, SubscribeRefusal, Suite, Thinning, Time, Traffic, Unknown, VERSION,
    Verdict, Weight, WireError, encode_update,
};
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::Duration;

const COMTREE: Comtree = Comtree(1);
/// A handshake takes long, so that later connects are answered as the last one was.
const MAX_HANDSHAKES: usize = 4;
/// The bit of a byte that says that what would be sealed is not.
const IN_CLEAR: u8 = 0x80;
/// The bit of a notice's first byte that says that it is of group keys.
const OF_GROUP_KEYS: u8 = 0x40;
/// The bit of it that says that it is of what a member has done.
const OF_MEMBERS: u8 = 0x20;
/// The bit of an alteration's first byte that says that it is made behind the seal.
const BEHIND_SEAL: u8 = 0x10;

steps! {
    /// Scale, two bytes: milliseconds pass.
    Wait,
    /// What it said last is answered as a relay would, sealed unless how has [`IN_CLEAR`]. How,
    /// parameter, [`Input::alter`].
    Answer,
    /// An earlier answer comes again. Which, [`Input::alter`].
    Repeat,
    /// Two bytes: that many bytes follow, a datagram.
    Raw,
    /// Kind, session and records, two bytes: that many bytes follow, the body of a packet, sealed
    /// unless the second byte has [`IN_CLEAR`].
    Forge,
    /// What the relay says by itself, right before the next step, sealed unless which has
    /// [`IN_CLEAR`]. Which, parameter.
    Notice,
    /// Group, level.
    Subscribe,
    /// Group.
    Unsubscribe,
    /// Group, level, length in units of eight.
    Publish,
    Leave,
    /// How: odd, it goes on by another token; else it asks the relay to do something with a member.
    Ask,
    /// Group, level, weight.
    Weigh,
}

/// What a relay has of a session, from the time when it has taken the connect.
struct Opened {
    sessions: Sessions,
    keys: LoggedKeys,
    /// The answer to the connect.
    connected: Vec<u8>,
}

/// A participant whose relay is the input.
struct Connection {
    now: Time,
    participant: Participant,
    /// What it said last: as it was sent, and opened.
    said: Vec<u8>,
    said_opened: Vec<u8>,
    /// What it was answered, the latest last.
    answers: Vec<Vec<u8>>,
    opened: Vec<Opened>,
    /// The session in which the participant is, among those opened.
    current: Option<usize>,
    /// What was sealed in that session and has not arrived.
    sealed: BTreeSet<Vec<u8>>,
    maker: GroupKeyMaker,
    group_key: GroupSealer,
}

/// A session through everything that the input makes happen.
pub fn session(input: &[u8]) {
    let mut input = Input::new(input);
    let mut connection = Connection::new();
    connection.say();
    for _ in 0..MAX_STEPS {
        let Some(step) = input.step(STEPS) else { break };
        connection.take(step, &mut input);
        if !matches!(step, Step::Notice) {
            connection.say();
        }
    }
    connection.close();
}

impl Connection {
    fn new() -> Connection {
        let max_datagram = MAX_DATAGRAM as u16;
        let mut maker = GroupKeyMaker::new(&[1; 16], 0, 1);
        let group_key = maker.make(Suite::Aes128Gcm);
        let config = SessionConfig { max_datagram, ..SessionConfig::new(COMTREE, [7; 16]) };
        Connection {
            now: Time::from_millis(1),
            participant: Participant::new(config),
            said: Vec::new(),
            said_opened: Vec::new(),
            answers: Vec::new(),
            opened: Vec::new(),
            current: None,
            sealed: BTreeSet::new(),
            maker,
            group_key,
        }
    }

    fn say(&mut self) {
        let current = self.current.map(|current| &self.opened[current]);
        let open = |said: &[u8]| open(current, said);
        if let Some(last) = self.participant.say(self.now, &open).pop() {
            self.said_opened = open(&last).unwrap();
            self.said = last;
        }
    }

    fn take(&mut self, step: Step, input: &mut Input<'_>) {
        match step {
            Step::Wait => {
                let scale = input.below(4) * 4;
                self.now = self.now + Duration::from_millis(u64::from(input.word()) << scale);
            }
            Step::Answer => {
                let (how, parameter) = (input.byte(), input.byte());
                let mut answer = self.answer(how, parameter);
                let is_behind_seal = input.peek() & BEHIND_SEAL != 0;
                if is_behind_seal {
                    answer = self.seal(answer, how);
                    input.alter(&mut answer);
                } else {
                    input.alter(&mut answer);
                    answer = self.seal(answer, how);
                }
                self.hear(&answer);
                self.answers.push(answer);
            }
            Step::Repeat => {
                let back = input.below(8) + 1;
                let which = self.answers.len().checked_sub(back);
                let mut answer = which.map_or(Vec::new(), |which| self.answers[which].clone());
                input.alter(&mut answer);
                self.hear(&answer);
            }
            Step::Raw => {
                let len = input.word().into();
                self.hear(input.bytes(len));
            }
            Step::Forge => {
                let kind = input.kind();
                let (session, len) = (input.byte(), input.word().into());
                let header = Header::new(kind, SessionId::new(session.into()), COMTREE);
                let packet = [&header.encode(session % 4), input.bytes(len)].concat();
                let packet = self.seal(packet, session);
                self.hear(&packet);
            }
            Step::Notice => {
                let (which, parameter) = (input.byte(), input.byte());
                let notice = self.notice(which, parameter);
                let notice = self.seal(notice, which);
                self.hear(&notice);
            }
            Step::Subscribe | Step::Weigh => {
                let (group, level) = (Group::new(input.byte().into()), Level(input.byte()));
                let has_weight = matches!(step, Step::Weigh);
                let weight = if has_weight { Weight(input.byte()) } else { Weight::ONE };
                self.participant.session.subscribe_with(group, level, weight);
            }
            Step::Unsubscribe => {
                self.participant.session.unsubscribe(Group::new(input.byte().into()));
            }
            Step::Publish => {
                let dst = Group::new(input.byte().into()).address();
                let level = Level(input.byte());
                let payload = vec![7; usize::from(input.byte()) * 8];
                let current = self.current.map(|current| &self.opened[current]);
                let open = |said: &[u8]| open(current, said);
                let packet = self.participant.publish(dst, (level, Flags(0)), &payload, &open);
                let connected = self.participant.session.state() == State::Connected;
                assert_eq!(packet.is_some(), connected && payload.len() <= MAX_UPDATE);
            }
            Step::Leave => self.participant.leave(),
            Step::Ask => self.ask(input.byte()),
        }
    }

    fn ask(&mut self, how: u8) {
        if how & 1 != 0 {
            // If too many requests wait already, the next handshake brings it.
            let _ = self.participant.session.set_token(vec![how; MAX_TOKEN_LEN]);
        } else {
            let whom = Address::unicast(1, how.into());
            let mute = Verdict::Restrict(Restriction::MUTE);
            let _ = self.participant.session.judge(whom, mute);
        }
    }

    fn hear(&mut self, datagram: &[u8]) {
        let before = self.participant.standing();
        let heard = self.participant.hear(self.now, datagram);
        let fault = Packet::new_checked(datagram).err();
        if is_sealed(datagram) {
            // Opened is what the relay has sealed, once.
            let opens = before.is_in_session() && self.sealed.remove(datagram);
            assert_eq!(opens, heard != Err(WireError::Field("seal")), "{heard:?}");
        } else if datagram.first() == Some(&(VERSION | Class::Group as u8)) {
            let updates = heard.unwrap_or(0);
            let downlink = self.current.map(|current| self.opened[current].keys.joined.downlink);
            assert!(updates == 0 || downlink == Some(Downlink::Group), "an update for others");
            assert!(
                self.participant.standing().is_as(before),
                "changed by what any member may say"
            );
            return;
        } else if let Some(error) = fault {
            assert!(heard == Err(error) || matches!(error, WireError::Version(_)));
        } else if datagram[0] & 7 == Class::Session as u8 {
            // What is not sealed is an update, where the relay said that they are not.
            let downlink = self.current.map(|current| self.opened[current].keys.joined.downlink);
            let updates = heard.unwrap_or(0);
            assert!(updates == 0 || downlink == Some(Downlink::None), "an update in clear");
            assert_eq!(self.participant.standing(), before, "changed by what was not sealed");
        }
        if self.participant.standing().is_in_session() && !before.is_in_session() {
            self.join(datagram);
        }
    }

    /// The participant has heard that it is connected: by what a relay has answered.
    fn join(&mut self, datagram: &[u8]) {
        let heard = said_in(datagram).expect("connected by something else");
        let is_it = |opened: &Opened| said_in(&opened.connected).as_ref() == Some(&heard);
        self.current = self.opened.iter().position(is_it);
        self.sealed.clear();
        let current = self.current.expect("connected by what no relay said");
        let LoggedKeys { session, joined, .. } = &self.opened[current].keys;
        let it = &self.participant.session;
        assert_eq!((it.id(), it.address()), (*session, joined.address));
    }

    /// Seals what is of a session, with the keys of the current one, if there is one.
    fn seal(&mut self, packet: Vec<u8>, how: u8) -> Vec<u8> {
        let is_of_session = packet.first() == Some(&(VERSION | Class::Session as u8));
        let Some(current) = self.current else { return packet };
        if !is_of_session || packet.len() < CLEAR_LEN || how & IN_CLEAR != 0 {
            return packet;
        }
        let len = packet.len();
        let mut out = [packet, vec![0; SEAL_LEN]].concat();
        assert_eq!(self.opened[current].sessions.seal(0, &mut out, len), Some(out.len()));
        self.sealed.insert(out.clone());
        out
    }

    /// The right answer to what was said last; a refusal, or another session's, if `how` says so.
    fn answer(&mut self, how: u8, parameter: u8) -> Vec<u8> {
        let said = self.said_opened.clone();
        let Ok(packet) = Packet::new_checked(&said) else { return Vec::new() };
        let own = packet.header().session;
        match packet.header().kind {
            Kind::Hello | Kind::Connect if how % 4 == 1 => {
                let refused = Refused { nonce: nonce(&packet), reason: RefusedReason::Full };
                written(|out| refused.encode(COMTREE, out))
            }
            Kind::Hello => {
                let (nonce, cookie) = (nonce(&packet), [parameter; 16]);
                let others = [parameter; 32];
                let relay_key = if how % 4 == 2 { others } else { *keyring().identity().public() };
                written(|out| Cookie { nonce, cookie, relay_key }.encode(COMTREE, out))
            }
            Kind::Connect => self.connected(&Connect::decode(&packet).unwrap(), how, parameter),
            Kind::Keepalive | Kind::Rebind | Kind::Subscribe | Kind::Request if how % 4 == 1 => {
                let echo = self.said[CLEAR_LEN..].first_chunk().unwrap();
                let unknown = Unknown { echo: u64::from_be_bytes(*echo) };
                written(|out| unknown.encode(COMTREE, own, out))
            }
            Kind::Keepalive => {
                let stamp = Keepalive::decode(&packet).unwrap().stamp;
                let alive = Keepalive { stamp, path_stamp: parameter.into() };
                written(|out| alive.encode_ack(COMTREE, own, out))
            }
            Kind::Rebind => {
                let moved = Keepalive { stamp: 0, path_stamp: parameter.into() };
                written(|out| moved.encode_ack(COMTREE, own, out))
            }
            Kind::Subscribe => subscribe_ack(&packet, parameter),
            Kind::Request => {
                let NumberedRequest { sequence, .. } = NumberedRequest::decode(&packet).unwrap();
                let status = RequestStatus::from_number(parameter);
                written(|out| Response { sequence, status }.encode(COMTREE, own, out))
            }
            _ => written(|out| Leave::encode_left(COMTREE, own, out)),
        }
    }

    /// The answer to a connect; nothing if its message cannot be read, for it was given a wrong key.
    fn connected(&mut self, connect: &Connect<'_>, how: u8, parameter: u8) -> Vec<u8> {
        if self.opened.len() < MAX_HANDSHAKES {
            let number = self.opened.len() as u8;
            self.opened.extend(opened(self.now, connect, (how, parameter), number));
        }
        self.opened.last().map_or(Vec::new(), |opened| opened.connected.clone())
    }

    /// A group key, or an update that is sealed with it.
    fn of_group_keys(&mut self, which: u8, parameter: u8, update: &Record<'_>) -> Vec<u8> {
        if which & 1 == 0 {
            if parameter & 1 == 0 {
                self.group_key = self.maker.make(Suite::Aes128Gcm);
            }
            let (key, own) = (self.group_key.to_tell(), self.participant.session.id());
            return written(|out| key.encode(COMTREE, own, out));
        }
        let header = Header::new(Kind::Updates, SessionId::NONE, COMTREE);
        let mut datagram = written(|out| encode_update(&header, update, out));
        datagram.resize(datagram.len() + SEAL_LEN, 0);
        assert!(self.group_key.seal(&mut datagram));
        datagram
    }

    fn notice(&mut self, which: u8, parameter: u8) -> Vec<u8> {
        let own = self.participant.session.id();
        let leave = Leave { reason: LeaveReason::from_number(parameter) };
        let draining = Leave { reason: LeaveReason::Draining };
        let header = Header::new(Kind::Updates, SessionId::NONE, COMTREE);
        let group = Group::new(parameter.into()).address();
        let payload = [parameter; 8];
        let update = Record {
            src: Address::unicast(1, parameter.into()),
            ..Record::new(group, parameter.into(), &payload)
        };
        if which & OF_GROUP_KEYS != 0 {
            return self.of_group_keys(which, parameter, &update);
        }
        if which & OF_MEMBERS != 0 {
            let (what, address) = (Excess::from_number(parameter), Address(parameter.into()));
            return match which & 3 {
                0 => written(|out| leave.encode(COMTREE, own, out)),
                1 => written(|out| Gone { address }.encode(COMTREE, own, out)),
                2 => written(|out| Busy { what, dropped: 1 }.encode(COMTREE, own, out)),
                _ => written(|out| probe(parameter).encode(COMTREE, own, out)),
            };
        }
        match (which & !IN_CLEAR) % 3 {
            0 => written(|out| Challenge { cookie: [parameter; 16] }.encode(COMTREE, own, out)),
            1 => written(|out| draining.encode(COMTREE, own, out)),
            _ => written(|out| encode_update(&header, &update, out)),
        }
    }

    /// Whatever came before, a leave comes to an end although no one answers any more.
    fn close(&mut self) {
        self.participant.leave();
        for _ in 0..8 {
            self.say();
            self.now = self.participant.session.poll_timeout().unwrap_or(self.now);
        }
        assert_eq!(self.participant.session.state(), State::Closed);
    }
}

/// The nonce of a hello or a connect.
fn nonce(packet: &Packet<'_>) -> u64 {
    let hello = Hello::decode(packet).map(|hello| hello.nonce);
    hello.or_else(|_| Connect::decode(packet).map(|connect| connect.nonce)).unwrap()
}

/// Nonce and message of a connected. Its header is not authenticated.
fn said_in(datagram: &[u8]) -> Option<(u64, Vec<u8>)> {
    let packet = Packet::new_checked(datagram).ok()?;
    let Connected { nonce, message } = Connected::decode(&packet).ok()?;
    (packet.header().kind == Kind::Connected).then(|| (nonce, message.to_vec()))
}

/// A relay takes a connect, on terms that the input chooses.
fn opened(
    now: Time,
    connect: &Connect<'_>,
    (how, parameter): (u8, u8),
    number: u8,
) -> Option<Opened> {
    let millis =
        |choice: u8| Duration::from_millis([2_000, 0, 1, u32::MAX.into()][usize::from(choice) % 4]);
    let limits = SessionLimits {
        lifetime: Duration::from_secs(10),
        keepalive: millis(how >> 2),
        subscription: millis(how >> 4),
    };
    let (thread, threads) = (parameter.into(), 256);
    let config = SessionsConfig {
        max_sessions: 1,
        thread,
        threads,
        unix_zero: 0,
        log_keys: true,
        packets_per_key: PacketsPerKey::PROTOCOL,
        limits,
    };
    // All draw other keys.
    let mut sessions = Sessions::new(config, keyring(), &[number; 16]);
    let knock = sessions.knock(connect).ok()?;
    let terms = Terms {
        address: Address::unicast(1, parameter.into()),
        suite: if how % 4 == 3 { Suite::ChaCha20Poly1305 } else { Suite::Aes128Gcm },
        downlink: match (how % 4, parameter % 2) {
            (2, 0) => Downlink::Group,
            (2, _) => Downlink::None,
            _ => Downlink::Member,
        },
        max_datagram: [MAX_DATAGRAM as u16, 0, 1300, u16::MAX][usize::from(how >> 6)],
        features: 0,
    };
    let path = SocketAddr::from(([10, 0, 0, 1], 10_000)).into();
    let proof = Proof { at: now, nonce: connect.nonce };
    let session = sessions.open(now, path, proof, knock, &terms)?;
    let connected = sessions.welcome(session)?.to_vec();
    let keys = sessions.poll_key_log()?;
    Some(Opened { sessions, keys, connected })
}

/// What a participant said, as its relay reads it.
fn open(relay: Option<&Opened>, said: &[u8]) -> Option<Vec<u8>> {
    if !is_sealed(said) {
        return Some(said.to_vec());
    }
    relay?.keys.from_participant.peek(said)
}

/// One of the probes of a relay that leaves out more or less.
fn probe(parameter: u8) -> Probe {
    let (share, left_out) = (4 * u16::from(parameter.min(250)), parameter.into());
    let because = Bound::from_number(parameter);
    let thinning = Thinning { share, left_out, budget_bits: parameter.into(), because };
    let sent = Traffic { datagrams: parameter.into(), bytes: parameter.into() };
    Probe { number: parameter.into(), clock: parameter.into(), sent, thinning }
}

/// Refuses the groups that have a bit in common with `refused`.
fn subscribe_ack(packet: &Packet<'_>, refused: u8) -> Vec<u8> {
    let subscribe = Subscribe::new_checked(packet).unwrap();
    written(|out| {
        let mut writer = SubscribeAckWriter::new(out, subscribe.sequence(), MAX_DATAGRAM)?;
        for change in subscribe.changes() {
            if change.group().number() & u32::from(refused) != 0 {
                writer.push(change.group(), SubscribeRefusal::Table);
            }
        }
        Ok(writer.finish(COMTREE, packet.header().session))
    })
}

/// What `write` writes; nothing if it does not fit a datagram.
fn written(write: impl FnOnce(&mut [u8]) -> Result<usize, WireError>) -> Vec<u8> {
    let mut out = vec![0; MAX_DATAGRAM];
    let len = write(&mut out).unwrap_or(0);
    out.truncate(len);
    out
}
