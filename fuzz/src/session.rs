//! The target of a participant's side of `canopy-session`: whatever the relay answers, and when,
//! the session keeps its promises. The relay's side is part of the target `relay`.

use crate::input::{Input, MAX_STEPS, steps};
use crate::participant::Participant;
use canopy_session::State;
use canopy_wire::{
    Address, Challenge, Comtree, Connect, Connected, Cookie, Flags, Group, Header, Hello,
    Keepalive, Kind, Leave, LeaveReason, Level, MAX_DATAGRAM, MAX_UPDATE, Packet, Refused,
    RefusedReason, Subscribe, SubscribeAckWriter, TableFull, Time, WireError,
};
use std::time::Duration;

const COMTREE: Comtree = Comtree(1);

steps! {
    /// Scale, two bytes: milliseconds pass.
    Wait,
    /// What it said last is answered as a relay would. How, parameter, [`Input::alter`].
    Answer,
    /// An earlier answer comes again. Which, [`Input::alter`].
    Repeat,
    /// Two bytes: that many bytes follow, a datagram.
    Raw,
    /// Kind, endpoint, two bytes: that many bytes follow, the body of a packet.
    Forge,
    /// What the relay says by itself, right before the next step. Which, parameter.
    Notice,
    /// Group, level.
    Subscribe,
    /// Group.
    Unsubscribe,
    /// Group, level, length in units of eight.
    Publish,
    Leave,
}

/// A participant whose relay is the input.
struct Connection {
    now: Time,
    participant: Participant,
    /// What it said last.
    said: Vec<u8>,
    /// What it was answered, the latest last.
    answers: Vec<Vec<u8>>,
}

/// A session through everything that the input makes happen.
pub fn session(input: &[u8]) {
    let mut input = Input::new(input);
    let participant = Participant::new(COMTREE, 7);
    let now = Time::from_millis(1);
    let mut connection = Connection { now, participant, said: Vec::new(), answers: Vec::new() };
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
    fn say(&mut self) {
        if let Some(last) = self.participant.say(self.now).pop() {
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
                let mut answer = self.answer(input.byte(), input.byte());
                input.alter(&mut answer);
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
                let kind = Kind::ALL[input.below(Kind::ALL.len())];
                let dst = Address::unicast(1, input.byte().into());
                let len = input.word().into();
                let header = Header::new(kind, COMTREE, Address::UNSPECIFIED, dst);
                let body = input.bytes(len);
                self.hear(&written(|out| header.encode_packet(body, out)));
            }
            Step::Notice => {
                let notice = self.notice(input.byte(), input.byte());
                self.hear(&notice);
            }
            Step::Subscribe => {
                let (group, level) = (Group::new(input.byte().into()), Level(input.byte()));
                self.participant.session.subscribe(group, level);
            }
            Step::Unsubscribe => {
                self.participant.session.unsubscribe(Group::new(input.byte().into()));
            }
            Step::Publish => {
                let dst = Group::new(input.byte().into()).address();
                let level = Level(input.byte());
                let payload = vec![7; usize::from(input.byte()) * 8];
                let packet = self.participant.publish(dst, (level, Flags(0)), &payload);
                let connected = self.participant.session.state() == State::Connected;
                assert_eq!(packet.is_some(), connected && payload.len() <= MAX_UPDATE);
            }
            Step::Leave => self.participant.leave(),
        }
    }

    fn hear(&mut self, datagram: &[u8]) {
        let heard = self.participant.hear(self.now, datagram);
        if let Err(error) = Packet::new_checked(datagram) {
            assert!(heard == Err(error) || matches!(error, WireError::Version(_)));
        }
    }

    /// The right answer to what was said last; a refusal if `how` says so.
    fn answer(&self, how: u8, parameter: u8) -> Vec<u8> {
        let Ok(packet) = Packet::new_checked(&self.said) else { return Vec::new() };
        let own = packet.header().src;
        match packet.header().kind {
            Kind::Hello | Kind::Connect if how % 4 == 1 => {
                let refused = Refused { nonce: nonce(&packet), reason: RefusedReason::Full };
                written(|out| refused.encode(COMTREE, out))
            }
            Kind::Hello => {
                let (nonce, cookie) = (nonce(&packet), [parameter; 16]);
                written(|out| Cookie { nonce, cookie }.encode(COMTREE, out))
            }
            Kind::Connect => {
                let connected = connected(nonce(&packet), how, parameter);
                written(|out| connected.encode(COMTREE, out))
            }
            Kind::Keepalive => {
                let alive = Keepalive::decode(&packet).unwrap();
                let dst = if how % 4 == 1 { Address::UNSPECIFIED } else { own };
                written(|out| alive.encode_ack(COMTREE, dst, out))
            }
            Kind::Rebind => written(|out| Keepalive { stamp: 0 }.encode_ack(COMTREE, own, out)),
            Kind::Subscribe => subscribe_ack(&packet, parameter),
            _ => written(|out| Leave::encode_left(COMTREE, own, out)),
        }
    }

    fn notice(&self, which: u8, parameter: u8) -> Vec<u8> {
        let own = self.participant.session.address();
        let draining = Leave { reason: LeaveReason::Draining };
        let update = Header::new(Kind::Data, COMTREE, own, Group::new(parameter.into()).address());
        match which % 3 {
            0 => written(|out| Challenge { cookie: [parameter; 16] }.encode(COMTREE, own, out)),
            1 => written(|out| draining.encode(COMTREE, Address::UNSPECIFIED, own, out)),
            _ => written(|out| update.encode_packet(&[parameter; 8], out)),
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

fn connected(nonce: u64, how: u8, parameter: u8) -> Connected {
    let millis = |choice: u8| [2_000, 0, 1, u32::MAX][usize::from(choice) % 4];
    Connected {
        nonce,
        address: Address::unicast(1, parameter.into()),
        lifetime_ms: 10_000,
        keepalive_ms: millis(how >> 2),
        subscription_ms: millis(how >> 4),
        secret: [parameter; 16],
    }
}

/// Refuses the groups that have a bit in common with `refused`.
fn subscribe_ack(packet: &Packet<'_>, refused: u8) -> Vec<u8> {
    let subscribe = Subscribe::new_checked(packet).unwrap();
    written(|out| {
        let mut writer = SubscribeAckWriter::new(out, subscribe.sequence())?;
        for change in subscribe.changes() {
            if change.group().number() & u32::from(refused) != 0 {
                writer.push(change.group(), TableFull::Table);
            }
        }
        Ok(writer.finish(COMTREE, packet.header().src))
    })
}

/// What `write` writes; nothing if it does not fit a datagram.
fn written(write: impl FnOnce(&mut [u8]) -> Result<usize, WireError>) -> Vec<u8> {
    let mut out = vec![0; MAX_DATAGRAM];
    let len = write(&mut out).unwrap_or(0);
    out.truncate(len);
    out
}
