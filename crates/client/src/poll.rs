//! A client without a runtime, for a loop of one's own.

use crate::member::Member;
use crate::{
    Acknowledgement, Answer, Budget, ConnectError, Epoch, Event, Incoming, Outgoing, Participant,
    PublishError, Resumption, Stats, Thinning, Update,
};
use canopy_net::{Clock, Receiver, Waker, wait_any_readable};
use canopy_wire::{Group, Level, Restriction, Time, Verdict, Weight};
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

#[cfg(feature = "join")]
use crate::keep::Kept;

/// Pieces of one receive call, each of which the kernel may fill with up to 64 KiB of datagrams.
const SLOTS: usize = 4;
const BYTES_PER_SLOT: usize = 65_535;
/// Receive calls of one poll at most, so that a flood does not hold up the frame.
const RECEIVES_PER_POLL: usize = 16;

/// A participant of a world for a game loop: no runtime, no blocking. Everything happens
/// in [`PollClient::poll`]; call it every frame, and at least a few times a second.
///
/// One that has joined through a controller (`PollClient::join`) goes to other relays by itself while it is
/// polled. It has a thread that asks the controller and does nothing else; one that was given its relays has none.
///
/// Dropping it leaves the world, and waits for nothing: see [`PollClient::leave`].
///
/// ```no_run
/// use canopy_client::{Group, Incoming, Level, PollClient};
///
/// # fn frame() {}
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let mut world = PollClient::builder("127.0.0.1:4040").open()?;
/// world.subscribe(Group::new(7), Level(1));
/// while world.poll() {
///     while let Some(incoming) = world.try_next() {
///         if let Incoming::Update(update) = incoming {
///             println!("{} says {:?}", update.from, update.payload);
///         }
///     }
///     if world.is_connected() {
///         world.publish(Group::new(7), Level(0), b"here I am")?;
///     }
///     frame();
/// }
/// # Ok(())
/// # }
/// ```
pub struct PollClient {
    member: Member,
    clock: Clock,
    receiver: Receiver,
    /// Wakes a loop that waits when the controller has answered.
    waker: Arc<Waker>,
    /// When the member wants its next turn.
    due: Option<Time>,
    /// When it last looked at what has arrived, or was woken by it.
    looked_at: Time,
    /// Keeps it in its world, if it has joined through a controller.
    #[cfg(feature = "join")]
    kept: Option<Kept>,
}

impl PollClient {
    pub(crate) fn new(member: Member, clock: Clock, waker: Arc<Waker>) -> PollClient {
        PollClient {
            member,
            clock,
            receiver: Receiver::new(SLOTS, BYTES_PER_SLOT),
            waker,
            due: Some(Time::ZERO),
            looked_at: clock.now(),
            #[cfg(feature = "join")]
            kept: None,
        }
    }

    #[cfg(feature = "join")]
    pub(crate) fn keep(&mut self, kept: Kept) {
        self.kept = Some(kept);
    }

    /// Why no relay has taken the client in this time.
    #[cfg(feature = "join")]
    pub(crate) fn unanswered(&self, waited: Duration) -> ConnectError {
        self.member.unanswered(waited)
    }

    /// Waits until a relay has taken the client.
    pub(crate) fn wait_for_first_word(&mut self, timeout: Duration) -> Result<(), ConnectError> {
        let started = self.clock.now();
        loop {
            self.poll();
            let waited = self.clock.now().since(started);
            match self.member.first_word(waited) {
                Some(word) => return word,
                None if waited >= timeout => return Err(self.member.unanswered(timeout)),
                None => self.sleep(started + timeout),
            }
        }
    }

    /// Receives what has arrived and sends what is due, without waiting for anything. Returns
    /// whether there is more to come: `false` once the world was left.
    pub fn poll(&mut self) -> bool {
        let now = self.clock.now();
        self.member.may_have_waited(now.since(self.looked_at));
        self.looked_at = now;
        #[cfg(feature = "join")]
        if let Some(kept) = &mut self.kept {
            kept.hear(now, &mut self.member);
        }
        let (member, receiver) = (&mut self.member, &mut self.receiver);
        // `any` stops at the first call that has found the socket empty.
        let _ = (0..RECEIVES_PER_POLL).any(|_| !member.receive(now, receiver));
        let _ = (0..RECEIVES_PER_POLL).any(|_| !member.receive_beside(now, receiver));
        self.due = self.member.turn(now);
        if self.due.is_none() {
            self.member.end();
        }
        self.ask(now);
        self.due.is_some()
    }

    /// Asks the controller what is to be asked.
    #[cfg(feature = "join")]
    fn ask(&mut self, now: Time) {
        let Some(kept) = &mut self.kept else { return };
        let asks_at = kept.ask(now, &mut self.member);
        self.due = [self.due, asks_at].into_iter().flatten().min();
    }

    #[cfg(not(feature = "join"))]
    fn ask(&mut self, _now: Time) {}

    /// Polls until there is something to take, the world was left, or `timeout` has passed. Returns
    /// whether there is something to take. For programs that have nothing else to do.
    pub fn wait(&mut self, timeout: Duration) -> bool {
        let until = self.clock.now() + timeout;
        while self.poll() && self.member.inbox().is_empty() && self.clock.now() < until {
            self.sleep(until);
        }
        !self.member.inbox().is_empty()
    }

    /// Sleeps until something arrives, the member wants its turn, or `until`.
    pub(crate) fn sleep(&mut self, until: Time) {
        let until = self.due.map_or(until, |due| due.min(until));
        let beside = self.member.socket_beside();
        let sockets = std::iter::once(self.member.socket()).chain(beside).map(Arc::as_ref);
        // If the system cannot wait, the loop looks again at once.
        let _ = wait_any_readable(sockets, &self.waker, &self.clock, Some(until));
        self.member.look_at_errors();
        // Whatever has come has come just now.
        self.looked_at = self.clock.now();
    }

    /// The next thing that the client has heard, updates and events in the order in which they
    /// came. No update comes before the [`Event::Connected`](crate::Event::Connected) of its epoch.
    pub fn try_next(&mut self) -> Option<Incoming> {
        self.member.inbox().next()
    }

    /// The next update, if one waits; events stay where they are.
    pub fn try_recv(&mut self) -> Option<Update> {
        self.member.inbox().next_update()
    }

    /// The next event, if one waits; updates stay where they are.
    pub fn try_next_event(&mut self) -> Option<Event> {
        self.member.inbox().next_event()
    }

    /// Publishes an update to those who are subscribed to `group` at `level` or above.
    ///
    /// It is sent at once, and nobody says whether it arrives. That holds for a relay that has
    /// gone, too: this is `Ok` until missing keepalives show it, which takes up to three times the
    /// relay's keepalive interval (6 s unless it was set otherwise).
    ///
    /// # Errors
    /// [`PublishError`] if it was not sent.
    pub fn publish(
        &mut self,
        group: Group,
        level: Level,
        payload: &[u8],
    ) -> Result<(), PublishError> {
        self.publish_with(Outgoing::new(group, level, payload))
    }

    /// Publishes an update with options.
    ///
    /// # Errors
    /// [`PublishError`] if it was not sent.
    pub fn publish_with(&mut self, update: Outgoing<'_>) -> Result<(), PublishError> {
        self.member.publish(self.clock.now(), &update)
    }

    /// Sends an update to one participant. Whether the address is still theirs, only you can know:
    /// see [`Participant`]. To answer an update, prefer [`PollClient::reply_to`].
    ///
    /// # Errors
    /// [`PublishError`] if it was not sent.
    pub fn send_to(
        &mut self,
        participant: Participant,
        payload: &[u8],
    ) -> Result<(), PublishError> {
        self.publish_with(Outgoing::to(participant, payload))
    }

    /// Answers the publisher of an update, and nobody else.
    ///
    /// # Errors
    /// [`PublishError::Stale`] if the update is of an earlier session, whose addresses may be
    /// others' by now; another [`PublishError`] if the answer was not sent.
    pub fn reply_to(&mut self, update: &Update, payload: &[u8]) -> Result<(), PublishError> {
        self.publish_with(Outgoing::reply(update, payload))
    }

    /// Publishes several updates, to groups and participants alike, in as few datagrams and system
    /// calls as they fit in.
    ///
    /// # Errors
    /// [`PublishError`]. None was sent if one is too long or stale; otherwise some of the first may
    /// have been sent, and the rest was not.
    pub fn publish_many<'a>(
        &mut self,
        updates: impl IntoIterator<Item = Outgoing<'a>>,
    ) -> Result<(), PublishError> {
        let updates: Vec<_> = updates.into_iter().collect();
        self.member.publish_many(self.clock.now(), &updates)
    }

    /// Subscribes to the updates of `group` up to `level`; replaces the level of an earlier
    /// subscription. The next poll sends it; it is kept until [`PollClient::unsubscribe`], whatever
    /// becomes of the relay.
    pub fn subscribe(&mut self, group: Group, level: Level) -> Acknowledgement {
        self.subscribe_many([(group, level)])
    }

    /// Subscribes to several groups; hundreds fit one packet.
    pub fn subscribe_many(
        &mut self,
        groups: impl IntoIterator<Item = (Group, Level)>,
    ) -> Acknowledgement {
        self.subscribe_weighted(
            groups.into_iter().map(|(group, level)| (group, level, Weight::ONE)),
        )
    }

    /// Subscribes to groups, each with a weight: how much it matters to this client beside the others.
    /// Where this client's budget or its path does not take all of their updates, they share it by
    /// weight, and each gets an update now and then however small its weight is. Ask again with other
    /// weights as often as they change noticeably, for example when the client moves.
    pub fn subscribe_weighted(
        &mut self,
        groups: impl IntoIterator<Item = (Group, Level, Weight)>,
    ) -> Acknowledgement {
        let wish = |(group, level, weight)| (group, Some((level, weight)));
        self.member.wish(groups.into_iter().map(wish))
    }

    /// Ends the subscription to `group`.
    pub fn unsubscribe(&mut self, group: Group) -> Acknowledgement {
        self.unsubscribe_many([group])
    }

    /// Ends several subscriptions.
    pub fn unsubscribe_many(&mut self, groups: impl IntoIterator<Item = Group>) -> Acknowledgement {
        self.member.wish(groups.into_iter().map(|group| (group, None)))
    }

    /// The client is at this position of its world from now on: it is subscribed to the groups of the
    /// areas around, each up to the level that the world gives to that distance, and with the weight of an
    /// avatar at its nearest place ([`weight_at`](crate::weight_at)). So where a budget does not hold all,
    /// what is far slows down. Returns the group of the area here, to which to publish; nothing while no
    /// areas are known. Cheap enough for each frame.
    ///
    /// Areas are a world's whose controller divides it; see [`join`](crate::join). They are followed while the client
    /// is polled. When they change, no update is lost, and none comes twice: [`Event::AreasChanged`] tells.
    #[cfg(feature = "join")]
    pub fn stand_at(&mut self, position: canopy_areas::Point) -> Option<Group> {
        // The next poll sends.
        self.member.stand_at(position).0
    }

    /// Areas matter less with their distance by this from now on: by [`Falloff::METRES`](crate::Falloff::METRES)
    /// unless it is set. It takes effect with the next [`PollClient::stand_at`].
    #[cfg(feature = "join")]
    pub fn weigh_areas_by(&mut self, falloff: crate::Falloff) {
        self.member.weigh_areas_by(falloff);
    }

    /// The group of the area where the client stands; nothing before [`PollClient::stand_at`], and while no
    /// areas are known.
    #[cfg(feature = "join")]
    pub fn group_here(&self) -> Option<Group> {
        self.member.group_here()
    }

    /// The areas of the world, as the controller has told them last.
    #[cfg(feature = "join")]
    pub fn areas(&self) -> Option<&canopy_areas::Areas> {
        self.member.areas()
    }

    /// Goes on by another token of the same key, before the present one ends. The [`Answer`] tells
    /// whether the relay takes it; while the relay is lost, the next connection begins with it.
    pub fn set_token(&mut self, token: &str) -> Answer {
        self.member.set_token(token)
    }

    /// Throws a member out of the world, and keeps the bearer of its token out. For servers only:
    /// for those whose token has that role. It holds at this relay until the token ends, or the relay
    /// is restarted; revoke the token to be sure.
    pub fn throw_out(&mut self, member: Participant) -> Answer {
        self.member.judge(member, Verdict::ThrowOut)
    }

    /// Takes acts from a member, whatever its token grants, also if it comes back. For servers only.
    /// [`Restriction::MUTE`] silences it.
    pub fn restrict(&mut self, member: Participant, restriction: Restriction) -> Answer {
        self.member.judge(member, Verdict::Restrict(restriction))
    }

    /// Takes back exactly this restriction. For servers only.
    pub fn restore(&mut self, member: Participant, restriction: Restriction) -> Answer {
        self.member.judge(member, Verdict::Restore(restriction))
    }

    /// Asks the relay to send no more than this from now on: less detail for a slow device, or for a
    /// small window. The relay then sends the most important of what is subscribed to, and the newest of
    /// each. It holds over reconnections, until another budget is set; [`Budget::NONE`] takes it back.
    pub fn set_budget(&mut self, budget: Budget) {
        self.member.set_budget(budget);
    }

    /// How much of what is subscribed to the relay sends, as it has said last; `None` before it has.
    /// [`Event::Thinned`] tells when it changes.
    pub fn thinning(&self) -> Option<Thinning> {
        self.member.thinning()
    }

    /// Begins to leave the world in order: [`PollClient::poll`] returns `false` when the relay has
    /// confirmed, or after a second if it does not. Who has joined through a controller gives its place back then,
    /// which takes two seconds more at most. Poll until then before the program ends, or the place is kept as long as
    /// its lease lasts.
    pub fn leave(&mut self) {
        self.member.leave(self.clock.now());
    }

    /// Who this client is; `None` while not connected. [`Event::Connected`] says whether that has
    /// changed.
    pub fn participant(&self) -> Option<Participant> {
        self.member.participant()
    }

    /// With what this client, or another process, comes back later under the same address: see
    /// [`ClientBuilder::resume`](crate::ClientBuilder::resume). Ask for it again after each
    /// [`Event::Connected`]; `None` before the first.
    pub fn resumption(&self) -> Option<Resumption> {
        self.member.resumption()
    }

    /// The number of the present session, or of the last one while not connected.
    pub fn epoch(&self) -> Epoch {
        self.member.epoch()
    }

    /// Whether the client is in the world, as far as it knows.
    pub fn is_connected(&self) -> bool {
        self.participant().is_some()
    }

    /// The relay that the client is connected to, or is asking.
    pub fn relay(&self) -> SocketAddr {
        self.member.relay()
    }

    /// What this client has seen so far.
    pub fn stats(&self) -> Stats {
        self.member.stats()
    }
}

impl fmt::Debug for PollClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PollClient")
            .field("relay", &self.relay())
            .field("participant", &self.participant())
            .finish_non_exhaustive()
    }
}

impl Drop for PollClient {
    fn drop(&mut self) {
        if !self.member.is_over() {
            self.member.abandon(self.clock.now());
        }
        self.member.end();
        self.ask(self.clock.now());
    }
}
