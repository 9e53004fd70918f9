//! A participant as the drivers see it: the session, the socket, the relays to ask and what waits
//! for the application. It has no clock, no thread and no runtime of its own, and never blocks:
//! `Client` runs it on tokio, [`PollClient`](crate::PollClient) in the application's own loop.

use crate::acknowledgement::Acknowledgement;
use crate::answer::{Answer, RequestError};
use crate::bundles::Bundles;
use crate::handover::{Handover, Outcome};
use crate::inbox::Inbox;
use crate::relay_socket::RelaySocket;
use crate::relays::{self, Relays};
use crate::reports::Reports;
use crate::{
    Budget, ConnectError, Epoch, Outgoing, Participant, PublishError, Resumption, Stats, Thinning,
};
use bytes::Bytes;
use canopy_net::{Receiver, Socket};
use canopy_session::{Identity, PublicKey, Session, SessionConfig, SessionError, State, Update};
use canopy_wire::{
    Comtree, Group, Level, MAX_DATAGRAM, MAX_RECORD_HEAD, Time, Verdict, Weight, WireError,
};
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

#[cfg(feature = "join")]
use crate::standing::Standing;

/// When the only relay has been silent for this long and the client is not connected, the socket is
/// replaced: perhaps only this socket does not reach it, because the interface has lost its address
/// or a NAT its table.
const REOPEN_AFTER_SILENCE: Duration = Duration::from_secs(3);
/// A socket that the system has given up on is replaced at most this often.
const REOPEN_PAUSE: Duration = Duration::from_secs(1);
/// One of several relays is passed over when it has been silent for this long.
const PASS_AFTER_SILENCE: Duration = Duration::from_secs(1);
/// It is passed over sooner if its host says that nothing listens there. Not at once, for that may be
/// the answer to an earlier packet.
const PASS_AFTER_REFUSAL: Duration = Duration::from_millis(250);
/// When all relays have been asked in vain, they are asked again after a pause.
const ROUND_PAUSE: Duration = Duration::from_secs(1);

/// How to become one.
pub(crate) struct MemberConfig {
    pub(crate) comtree: Comtree,
    pub(crate) relay_key: Option<PublicKey>,
    pub(crate) identity: Option<Identity>,
    pub(crate) token: String,
    pub(crate) resumption: Option<Resumption>,
    pub(crate) max_datagram: u16,
    pub(crate) receive_queue: usize,
    pub(crate) receive_offload: bool,
    /// Somebody finds another relay when this one is lost.
    pub(crate) is_kept: bool,
}

pub(crate) struct Member {
    session: Session,
    comtree: Comtree,
    relays: Relays,
    relay_socket: RelaySocket,
    reports: Reports,
    /// Nobody wants to hear of it any more.
    abandoned: bool,
    /// The application has left the world.
    #[cfg_attr(not(feature = "join"), allow(dead_code, reason = "nobody else asks"))]
    has_departed: bool,
    /// Somebody finds another relay when this one is lost.
    is_kept: bool,
    receive_offload: bool,
    /// The other session while it goes from one relay to another.
    handover: Option<Box<Handover>>,
    /// What became of the last move, until somebody has asked.
    moved: Option<Outcome>,
    /// Where it is in the areas of its world.
    #[cfg(feature = "join")]
    standing: Standing,
}

impl Member {
    /// One who asks the first of `relays` for which there is a socket.
    pub(crate) fn open(
        now: Time,
        mut relays: Relays,
        config: &MemberConfig,
    ) -> Result<Member, ConnectError> {
        let mut seed = [0; 16];
        getrandom::fill(&mut seed).map_err(|error| ConnectError::Random(error.into()))?;
        let comtree = config.comtree;
        let resumption = config.resumption.as_ref();
        let relay_socket = loop {
            let relay = relays.current();
            match RelaySocket::open(now, relay, config.receive_offload) {
                Ok(relay_socket) => break relay_socket,
                Err(source) if relays.turn() => return Err(ConnectError::Socket { relay, source }),
                Err(_) => {}
            }
        };
        Ok(Member {
            session: Session::new(SessionConfig {
                relay_key: config.relay_key,
                identity: config.identity.clone().or(resumption.map(|one| one.identity.clone())),
                token: config.token.clone().into_bytes(),
                ticket: resumption.map(|one| one.ticket).unwrap_or_default(),
                max_datagram: config.max_datagram,
                slow_suites: canopy_net::slow_suites(),
                watches: config.is_kept,
                ..SessionConfig::new(comtree, seed)
            }),
            comtree,
            relays,
            relay_socket,
            reports: Reports::new(config.receive_queue, resumption.map(|one| one.participant)),
            abandoned: false,
            has_departed: false,
            is_kept: config.is_kept,
            receive_offload: config.receive_offload,
            handover: None,
            moved: None,
            #[cfg(feature = "join")]
            standing: Standing::default(),
        })
    }

    /// Takes what has arrived, at most `receiver` once. Returns whether more may wait.
    pub(crate) fn receive(&mut self, now: Time, receiver: &mut Receiver) -> bool {
        if self.heeds_errors() {
            self.relay_socket.look_at_errors();
        }
        let Member { session, relay_socket, relays, reports, handover, .. } = self;
        let socket = Arc::clone(relay_socket.socket());
        let received = receiver.receive(&socket, |_, datagram| {
            relay_socket.heard(now);
            let mut shared = None;
            let handled = session.handle_datagram(now, datagram, |update| {
                let payload = keep(&update, &mut shared);
                let Some(update) = reports.read(update, payload) else { return };
                match handover {
                    Some(handover) => handover.bring(now, true, update, reports),
                    None => reports.take(update),
                }
            });
            if let Err(error) = handled {
                reports.stats.malformed += 1;
                if matches!(error, WireError::Version(_)) {
                    relays.note(relays::Answer::OtherVersion);
                }
            }
            // Before the next datagram, so that events and updates keep their order.
            reports.hear(session);
        });
        received.unwrap_or_else(|error| {
            self.relay_socket.note(&error);
            false
        })
    }

    /// Whether it matters that the relay's host says that nothing listens: who has a session and no other relay
    /// to go to waits for it.
    fn heeds_errors(&self) -> bool {
        self.is_kept || self.session.state() != State::Connected
    }

    /// Looks at what became of earlier datagrams, after a wait that this may have ended. It would end the next
    /// one, too.
    pub(crate) fn look_at_errors(&mut self) {
        match self.heeds_errors() {
            true => self.relay_socket.look_at_errors(),
            false => self.socket().take_errors(),
        }
        self.look_at_errors_beside();
    }

    /// Sends what the session wants sent, looks for a better way to a relay if this one fails, and
    /// notes what has happened. Returns when it wants to be called again, if nothing arrives before;
    /// `None` once there is nothing left to do.
    pub(crate) fn turn(&mut self, now: Time) -> Option<Time> {
        self.look_for_a_way(now);
        self.transmit(now);
        self.reports.hear(&mut self.session);
        if self.abandoned {
            return None;
        }
        self.turn_handover(now);
        let beside = self.handover.as_ref().and_then(|handover| handover.due());
        let says = self.turn_standing(now);
        let due = self.session.poll_timeout()?;
        [beside, says].into_iter().flatten().chain([due]).min()
    }

    #[cfg(not(feature = "join"))]
    fn turn_standing(&mut self, _now: Time) -> Option<Time> {
        None
    }

    fn transmit(&mut self, now: Time) {
        let mut out = [0; MAX_DATAGRAM];
        while let Some(len) = self.session.poll_transmit(now, &mut out) {
            // A packet that the system does not take is like one lost on the way: the session
            // repeats it.
            let _ = self.relay_socket.send(&out[..len]);
        }
    }

    fn look_for_a_way(&mut self, now: Time) {
        let refused = self.reports.take_refusal();
        if let Some(reason) = refused {
            self.relays.note(relays::Answer::Refused(reason));
        } else if self.relay_socket.nothing_listens() {
            self.relays.note(relays::Answer::NothingListens);
        }
        let age = self.relay_socket.age(now);
        let broken = self.relay_socket.is_broken() && age > REOPEN_PAUSE;
        match self.session.state() {
            State::Greeting | State::Connecting => {}
            State::Connected => {
                self.relays.note_connected();
                return self.reopen_if(broken, now);
            }
            State::Leaving | State::Closed => return self.reopen_if(broken, now),
        }
        let silence = self.relay_socket.silence(now);
        if !self.relays.are_several() {
            return self.reopen_if(broken || silence > REOPEN_AFTER_SILENCE, now);
        }
        let sent_away = self.relay_socket.nothing_listens() || self.relay_socket.is_broken();
        if refused.is_some()
            || silence > PASS_AFTER_SILENCE
            || (sent_away && age > PASS_AFTER_REFUSAL)
        {
            self.ask_the_next(now);
        }
    }

    /// To the relay a new socket is a change of ip:port, which the session proves to be its own.
    fn reopen_if(&mut self, wanted: bool, now: Time) {
        if wanted {
            // Without a network there is no socket; the old one serves until the next try.
            let _ = self.relay_socket.reopen(now, self.relays.current());
        }
    }

    fn ask_the_next(&mut self, now: Time) {
        let at = if self.relays.turn() { now + ROUND_PAUSE } else { now };
        // A relay without a route is passed over after a while like one that is silent.
        let _ = self.relay_socket.reopen(at, self.relays.current());
        self.session.greet_at(at);
    }

    /// Whether a relay has taken the member, or all have refused.
    pub(crate) fn first_word(&self, waited: Duration) -> Option<Result<(), ConnectError>> {
        if self.participant().is_some() {
            return Some(Ok(()));
        }
        (self.is_over() || self.relays.have_all_refused()).then(|| Err(self.unanswered(waited)))
    }

    /// Why no relay has taken the member so far.
    pub(crate) fn unanswered(&self, waited: Duration) -> ConnectError {
        self.relays.error(self.comtree, waited)
    }

    pub(crate) fn publish(&mut self, now: Time, update: &Outgoing<'_>) -> Result<(), PublishError> {
        update.check(self.reports.epoch())?;
        if self.hold_back(std::slice::from_ref(update))? {
            return Ok(());
        }
        let mut out = [0; MAX_DATAGRAM];
        let len = match self.session.publish_record(&update.record(0), &mut out) {
            Ok(len) => len,
            Err(SessionError::NotConnected) => return Err(self.not_connected()),
            Err(_) => return Err(PublishError::TooLong(update.payload.len())),
        };
        self.relay_socket.send(&out[..len]).map_err(publish_error)?;
        self.note_published(now, 1);
        Ok(())
    }

    /// Sends updates in as few datagrams as they fit in.
    pub(crate) fn publish_many(
        &mut self,
        now: Time,
        updates: &[Outgoing<'_>],
    ) -> Result<(), PublishError> {
        if self.session.state() != State::Connected {
            return Err(self.not_connected());
        }
        let epoch = self.reports.epoch();
        updates.iter().try_for_each(|update| update.check(epoch))?;
        if self.hold_back(updates)? {
            return Ok(());
        }
        let bundles = Bundles::pack(&mut self.session, self.comtree, updates);
        for run in bundles.runs() {
            self.relay_socket.send_run(&run).map_err(publish_error)?;
        }
        self.note_published(now, bundles.updates() as usize);
        Ok(())
    }

    fn note_published(&mut self, now: Time, updates: usize) {
        self.reports.stats.published += updates as u64;
        if let Some(handover) = &mut self.handover {
            handover.note_published(now, self.session.take_series(0), updates);
        }
    }

    fn not_connected(&self) -> PublishError {
        if self.is_left() { PublishError::Left } else { PublishError::NotConnected }
    }

    pub(crate) fn wish(
        &mut self,
        wishes: impl IntoIterator<Item = (Group, Option<(Level, Weight)>)>,
    ) -> Acknowledgement {
        if self.is_left() {
            return Acknowledgement::left();
        }
        let change = Acknowledgement::new();
        for (group, wanted) in wishes {
            self.reports.subscriptions.wish(group, wanted, &change);
            match wanted {
                Some((level, weight)) => self.session.subscribe_with(group, level, weight),
                None => self.session.unsubscribe(group),
            }
            if let Some(handover) = &mut self.handover {
                handover.wish(group, wanted);
            }
        }
        change
    }

    /// Goes on by another token.
    pub(crate) fn set_token(&mut self, token: &str) -> Answer {
        if self.is_left() {
            return Answer::known(Err(RequestError::Left));
        }
        let asked = self.session.set_token(token.as_bytes().to_vec());
        self.reports.answers.wait(asked)
    }

    /// Says what a member may do, as a server.
    pub(crate) fn judge(&mut self, whom: Participant, verdict: Verdict) -> Answer {
        if self.is_left() {
            return Answer::known(Err(RequestError::Left));
        }
        let asked = self.session.judge(whom.address(), verdict);
        self.reports.answers.wait(asked.map(Some))
    }

    /// What is received next may have waited so long.
    pub(crate) fn may_have_waited(&mut self, held: Duration) {
        self.session.may_have_waited(held);
    }

    /// Wants to be sent no more than this.
    pub(crate) fn set_budget(&mut self, budget: Budget) {
        self.session.ask_for(budget.asked());
        if let Some(other) = self.handover.as_mut().and_then(|of| of.other.as_mut()) {
            other.session.ask_for(budget.asked());
        }
    }

    /// How much of what it is subscribed to it is sent.
    pub(crate) fn thinning(&self) -> Option<Thinning> {
        self.session.thinning().map(Thinning::from)
    }

    /// Begins to leave the world.
    pub(crate) fn leave(&mut self, now: Time) {
        self.has_departed = true;
        self.end_handover(now);
        self.session.leave();
    }

    /// Leaves without waiting for the relay's answer: if the relay does not hear of it, the session
    /// expires there.
    pub(crate) fn abandon(&mut self, now: Time) {
        self.abandoned = true;
        self.has_departed = true;
        self.end_handover(now);
        self.session.leave();
        self.transmit(now);
    }

    /// Nothing happens any more: everyone who waits is told.
    pub(crate) fn end(&mut self) {
        self.reports.subscriptions.clear();
        self.reports.answers.clear();
        self.reports.inbox.close();
    }

    /// Whether the world is being left, or has been.
    fn is_left(&self) -> bool {
        self.is_over() || matches!(self.session.state(), State::Leaving | State::Closed)
    }

    /// Whether nothing happens any more.
    pub(crate) fn is_over(&self) -> bool {
        self.reports.inbox.is_closed()
    }

    pub(crate) fn socket(&self) -> &Arc<Socket> {
        self.relay_socket.socket()
    }

    pub(crate) fn relay(&self) -> SocketAddr {
        self.relays.current()
    }

    /// Who it is; `None` while not connected.
    pub(crate) fn participant(&self) -> Option<Participant> {
        let connected = self.session.state() == State::Connected;
        connected.then(|| Participant::of(self.session.address())).flatten()
    }

    /// With what it comes back as who it is, or was last; `None` if it was nobody yet.
    pub(crate) fn resumption(&self) -> Option<Resumption> {
        let participant = self.reports.participant()?;
        let (identity, ticket) = (self.session.identity().clone(), self.session.ticket());
        Some(Resumption { identity, ticket, participant })
    }

    pub(crate) fn epoch(&self) -> Epoch {
        self.reports.epoch()
    }

    pub(crate) fn inbox(&mut self) -> &mut Inbox {
        &mut self.reports.inbox
    }

    pub(crate) fn stats(&self) -> Stats {
        let inbox = &self.reports.inbox;
        let left_out = self.handover.as_ref().map(|handover| handover.left_out());
        let left_out = left_out.unwrap_or_default();
        Stats {
            round_trip: self.session.round_trip(),
            subscriptions: self.session.subscriptions(),
            echoes: self.reports.stats.echoes + self.session.echoes(),
            doubled: self.reports.stats.doubled + left_out.doubled,
            too_late: self.reports.stats.too_late + left_out.too_late,
            waiting: inbox.updates(),
            dropped_slow_reader: inbox.dropped_updates(),
            dropped_events: self.reports.stats.dropped_events
                + inbox.dropped_events()
                + self.session.events_lost(),
            ..self.reports.stats
        }
    }
}

/// Memory of its own for a payload. The updates of a packet share one copy of it.
fn keep(update: &Update<'_>, shared: &mut Option<Bytes>) -> Bytes {
    let Update { payload, packet, .. } = update;
    if payload.len() + MAX_RECORD_HEAD >= packet.len() {
        return Bytes::copy_from_slice(payload);
    }
    let start = payload.as_ptr().addr().wrapping_sub(packet.as_ptr().addr());
    let end = start.wrapping_add(payload.len());
    if end > packet.len() || start > end {
        // Not a part of the packet, which the session may do one day.
        return Bytes::copy_from_slice(payload);
    }
    shared.get_or_insert_with(|| Bytes::copy_from_slice(packet)).slice(start..end)
}

fn publish_error(error: io::Error) -> PublishError {
    match error.kind() {
        ErrorKind::WouldBlock => PublishError::Busy,
        _ => PublishError::Network(error),
    }
}

#[cfg(feature = "join")]
mod areas;
#[cfg_attr(not(feature = "join"), allow(dead_code, reason = "nobody else moves"))]
mod moving;
#[cfg(test)]
pub(crate) mod tests;
