//! The handle that an application on tokio holds.

use crate::inbox::Inbox;
use crate::member::Member;
use crate::shared::Shared;
use crate::{
    Acknowledgement, Answer, Budget, Epoch, Event, Incoming, Outgoing, Participant, PublishError,
    Resumption, Stats, Thinning, Update,
};
use canopy_wire::{Group, Level, Restriction, Verdict, Weight};
use futures_core::Stream;
use std::fmt;
use std::future::poll_fn;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

/// A participant of a world, on tokio.
///
/// Cloning is cheap and gives another handle to the same participant: publish from one task,
/// receive in another. When the last handle is dropped the world is left.
///
/// ```no_run
/// # async fn join() -> Result<(), Box<dyn std::error::Error>> {
/// use canopy_client::{Client, Group, Level};
///
/// // The second relay is asked when the first does not answer or has no place.
/// let world = Client::builder("relay.example:4040").relay("10.0.0.2:4040").connect().await?;
/// world.subscribe(Group::new(7), Level(1)).await?;
/// while let Some(update) = world.recv().await {
///     world.reply_to(&update, b"heard you")?;
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Client {
    handle: Arc<Handle>,
}

/// All that a client hears, as a stream that never ends before the world is left. It is a handle
/// like the client's own: it keeps the client in the world.
///
/// ```no_run
/// # async fn hear(world: canopy_client::Client) {
/// use canopy_client::Incoming;
/// use futures_util::StreamExt;
///
/// let mut incoming = world.incoming();
/// while let Some(one) = incoming.next().await {
///     match one {
///         Incoming::Update(update) => println!("{}: {:?}", update.from, update.payload),
///         Incoming::Event(event) => println!("{event:?}"),
///         _ => {}
///     }
/// }
/// # }
/// ```
#[derive(Clone, Debug)]
#[must_use = "a stream does nothing unless it is polled"]
pub struct IncomingStream {
    client: Client,
}

/// The updates that a client hears, as a stream; events stay for [`Client::next_event`]. It is a
/// handle like the client's own: it keeps the client in the world.
///
/// ```no_run
/// # async fn hear(world: canopy_client::Client) {
/// use futures_util::StreamExt;
///
/// let mut first_ten = world.updates().take(10);
/// while let Some(update) = first_ten.next().await {
///     println!("{}: {:?}", update.from, update.payload);
/// }
/// # }
/// ```
#[derive(Clone, Debug)]
#[must_use = "a stream does nothing unless it is polled"]
pub struct UpdateStream {
    client: Client,
}

struct Handle {
    shared: Arc<Shared>,
}

impl Client {
    pub(crate) fn new(shared: Arc<Shared>) -> Client {
        Client { handle: Arc::new(Handle { shared }) }
    }

    fn shared(&self) -> &Shared {
        &self.handle.shared
    }

    /// Publishes an update to those who are subscribed to `group` at `level` or above.
    ///
    /// It is sent at once, and nobody says whether it arrives. That holds for a relay that has
    /// gone, too: this is `Ok` until missing keepalives show it, which takes up to three times the
    /// relay's keepalive interval (6 s unless it was set otherwise).
    ///
    /// # Errors
    /// [`PublishError`] if it was not sent.
    pub fn publish(&self, group: Group, level: Level, payload: &[u8]) -> Result<(), PublishError> {
        self.publish_with(Outgoing::new(group, level, payload))
    }

    /// Publishes an update with options.
    ///
    /// # Errors
    /// [`PublishError`] if it was not sent.
    pub fn publish_with(&self, update: Outgoing<'_>) -> Result<(), PublishError> {
        let now = self.shared().now();
        let sent = self.shared().lock().publish(now, &update);
        self.look_into(sent)
    }

    /// Sends an update to one participant. Whether the address is still theirs, only you can know:
    /// see [`Participant`]. To answer an update, prefer [`Client::reply_to`].
    ///
    /// # Errors
    /// [`PublishError`] if it was not sent.
    pub fn send_to(&self, participant: Participant, payload: &[u8]) -> Result<(), PublishError> {
        self.publish_with(Outgoing::to(participant, payload))
    }

    /// Answers the publisher of an update, and nobody else.
    ///
    /// # Errors
    /// [`PublishError::Stale`] if the update is of an earlier session, whose addresses may be
    /// others' by now; another [`PublishError`] if the answer was not sent.
    pub fn reply_to(&self, update: &Update, payload: &[u8]) -> Result<(), PublishError> {
        self.publish_with(Outgoing::reply(update, payload))
    }

    /// Publishes several updates, to groups and participants alike, in as few datagrams and system
    /// calls as they fit in. Much cheaper than one by one; they arrive as the separate updates that
    /// they are.
    ///
    /// # Errors
    /// [`PublishError`]. None was sent if one is too long or stale; otherwise some of the first may
    /// have been sent, and the rest was not.
    pub fn publish_many<'a>(
        &self,
        updates: impl IntoIterator<Item = Outgoing<'a>>,
    ) -> Result<(), PublishError> {
        // Without the lock, as the iterator is the application's.
        let updates: Vec<_> = updates.into_iter().collect();
        let now = self.shared().now();
        let sent = self.shared().lock().publish_many(now, &updates);
        self.look_into(sent)
    }

    fn look_into(&self, sent: Result<(), PublishError>) -> Result<(), PublishError> {
        if let Err(PublishError::Network(_)) = sent {
            // The task may have to replace the socket.
            self.shared().nudge.notify_one();
        }
        sent
    }

    /// Subscribes to the updates of `group` up to `level`; replaces the level of an earlier
    /// subscription. Under way at once; await the [`Acknowledgement`] to know that updates come
    /// from now on, or that the relay has no room. It is kept until [`Client::unsubscribe`],
    /// whatever becomes of the relay.
    pub fn subscribe(&self, group: Group, level: Level) -> Acknowledgement {
        self.subscribe_many([(group, level)])
    }

    /// Subscribes to several groups; hundreds fit one packet.
    pub fn subscribe_many(
        &self,
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
        &self,
        groups: impl IntoIterator<Item = (Group, Level, Weight)>,
    ) -> Acknowledgement {
        let wish = |(group, level, weight)| (group, Some((level, weight)));
        self.wish(groups.into_iter().map(wish).collect())
    }

    /// Ends the subscription to `group`. Under way at once.
    pub fn unsubscribe(&self, group: Group) -> Acknowledgement {
        self.unsubscribe_many([group])
    }

    /// Ends several subscriptions.
    pub fn unsubscribe_many(&self, groups: impl IntoIterator<Item = Group>) -> Acknowledgement {
        self.wish(groups.into_iter().map(|group| (group, None)).collect())
    }

    fn wish(&self, wishes: Vec<(Group, Option<(Level, Weight)>)>) -> Acknowledgement {
        let change = self.shared().lock().wish(wishes);
        // The task sends: wishes made until it gets its turn leave in one packet.
        self.shared().nudge.notify_one();
        change
    }

    /// The client is at this position of its world from now on: it is subscribed to the groups of the
    /// areas around, each up to the level that the world gives to that distance, and with the weight of an
    /// avatar at its nearest place ([`weight_at`](crate::weight_at)). So where a budget does not hold all,
    /// what is far slows down. Returns the group of the area here, to which to publish; nothing while no
    /// areas are known. Cheap enough for each frame.
    ///
    /// Areas are a world's whose controller divides it; see [`join`](crate::join). When they
    /// change, no update is lost, and none comes twice: [`Event::AreasChanged`] tells.
    #[cfg(feature = "join")]
    pub fn stand_at(&self, position: canopy_areas::Point) -> Option<Group> {
        let (group, has_to_send) = self.shared().lock().stand_at(position);
        if has_to_send {
            self.shared().nudge.notify_one();
        }
        group
    }

    /// Areas matter less with their distance by this from now on: by [`Falloff::METRES`](crate::Falloff::METRES)
    /// unless it is set. It takes effect with the next [`Client::stand_at`].
    #[cfg(feature = "join")]
    pub fn weigh_areas_by(&self, falloff: crate::Falloff) {
        self.shared().lock().weigh_areas_by(falloff);
    }

    /// The group of the area where the client stands; nothing before [`Client::stand_at`], and while no
    /// areas are known.
    #[cfg(feature = "join")]
    pub fn group_here(&self) -> Option<Group> {
        self.shared().lock().group_here()
    }

    /// The areas of the world, as the controller has told them last.
    #[cfg(feature = "join")]
    pub fn areas(&self) -> Option<canopy_areas::Areas> {
        self.shared().lock().areas().cloned()
    }

    /// Goes on by another token of the same key, before the present one ends. The [`Answer`] tells
    /// whether the relay takes it; while the relay is lost, the next connection begins with it.
    pub fn set_token(&self, token: &str) -> Answer {
        self.ask(|member| member.set_token(token))
    }

    /// Throws a member out of the world, and keeps the bearer of its token out. For servers only:
    /// for those whose token has that role. It holds at this relay until the token ends, or the relay
    /// is restarted; revoke the token to be sure.
    pub fn throw_out(&self, member: Participant) -> Answer {
        self.ask(|asker| asker.judge(member, Verdict::ThrowOut))
    }

    /// Takes acts from a member, whatever its token grants, also if it comes back. For servers only.
    /// [`Restriction::MUTE`] silences it.
    pub fn restrict(&self, member: Participant, restriction: Restriction) -> Answer {
        self.ask(|asker| asker.judge(member, Verdict::Restrict(restriction)))
    }

    /// Takes back exactly this restriction. For servers only.
    pub fn restore(&self, member: Participant, restriction: Restriction) -> Answer {
        self.ask(|asker| asker.judge(member, Verdict::Restore(restriction)))
    }

    /// Asks the relay to send no more than this from now on: less detail for a slow device, or for a
    /// small window. The relay then sends the most important of what is subscribed to, and the newest of
    /// each. It holds over reconnections, until another budget is set; [`Budget::NONE`] takes it back.
    pub fn set_budget(&self, budget: Budget) {
        self.shared().lock().set_budget(budget);
        self.shared().nudge.notify_one();
    }

    /// How much of what is subscribed to the relay sends, as it has said last; `None` before it has.
    /// [`Event::Thinned`] tells when it changes.
    pub fn thinning(&self) -> Option<Thinning> {
        self.shared().lock().thinning()
    }

    fn ask(&self, ask: impl FnOnce(&mut Member) -> Answer) -> Answer {
        let answer = ask(&mut self.shared().lock());
        self.shared().nudge.notify_one();
        answer
    }

    /// The next thing that the client hears, updates and events in the order in which they came;
    /// `None` once the world was left. No update comes before the [`Event::Connected`] of its epoch.
    ///
    /// Safe to cancel: an item is taken only when it is returned. Several tasks may call it, and
    /// each item goes to one of them; it takes from the same queue as [`Client::recv`] and
    /// [`Client::next_event`].
    pub async fn next(&self) -> Option<Incoming> {
        poll_fn(|context| self.poll(context, Inbox::next)).await
    }

    /// The next update; `None` once the world was left. It waits through losses of the relay, and
    /// leaves events where they are. Safe to cancel.
    pub async fn recv(&self) -> Option<Update> {
        poll_fn(|context| self.poll(context, Inbox::next_update)).await
    }

    /// The next event; `None` once the world was left. Looking at events is optional: 64 are kept,
    /// and the oldest make room. Safe to cancel.
    pub async fn next_event(&self) -> Option<Event> {
        poll_fn(|context| self.poll(context, Inbox::next_event)).await
    }

    fn poll<T>(
        &self,
        context: &Context<'_>,
        take: impl FnOnce(&mut Inbox) -> Option<T>,
    ) -> Poll<Option<T>> {
        self.shared().poll(context, |member| {
            let inbox = member.inbox();
            match take(inbox) {
                Some(item) => Some(Some(item)),
                None => inbox.is_closed().then_some(None),
            }
        })
    }

    /// The next item, if one waits.
    pub fn try_next(&self) -> Option<Incoming> {
        self.shared().lock().inbox().next()
    }

    /// The next update, if one waits.
    pub fn try_recv(&self) -> Option<Update> {
        self.shared().lock().inbox().next_update()
    }

    /// The next event, if one waits.
    pub fn try_next_event(&self) -> Option<Event> {
        self.shared().lock().inbox().next_event()
    }

    /// [`Client::next`] as a stream.
    pub fn incoming(&self) -> IncomingStream {
        IncomingStream { client: self.clone() }
    }

    /// [`Client::recv`] as a stream.
    pub fn updates(&self) -> UpdateStream {
        UpdateStream { client: self.clone() }
    }

    /// Who this client is; `None` while not connected. [`Event::Connected`] says whether that has
    /// changed.
    pub fn participant(&self) -> Option<Participant> {
        self.shared().lock().participant()
    }

    /// With what this client, or another process, comes back later under the same address: see
    /// [`ClientBuilder::resume`](crate::ClientBuilder::resume). Ask for it again after each
    /// [`Event::Connected`]; `None` before the first.
    pub fn resumption(&self) -> Option<Resumption> {
        self.shared().lock().resumption()
    }

    /// The number of the present session, or of the last one while not connected.
    pub fn epoch(&self) -> Epoch {
        self.shared().lock().epoch()
    }

    /// Whether the client is in the world, as far as it knows.
    pub fn is_connected(&self) -> bool {
        self.participant().is_some()
    }

    /// The relay that the client is connected to, or is asking.
    pub fn relay(&self) -> SocketAddr {
        self.shared().lock().relay()
    }

    /// What this client has seen so far.
    pub fn stats(&self) -> Stats {
        self.shared().lock().stats()
    }

    /// Leaves the world in order: returns when the relay has confirmed, or within a second if it
    /// does not. Who has joined through a controller gives its place back then, which takes two seconds more
    /// at most; so a program may end right after this. What waits can still be taken; all else of the client is over.
    pub async fn leave(&self) {
        let now = self.shared().now();
        self.shared().lock().leave(now);
        self.shared().nudge.notify_one();
        let closed = |member: &mut Member| member.inbox().is_closed().then_some(());
        poll_fn(|context| self.shared().poll(context, closed)).await;
        #[cfg(feature = "join")]
        self.shared().has_given_back().await;
    }
}

impl Stream for IncomingStream {
    type Item = Incoming;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Incoming>> {
        self.client.poll(context, Inbox::next)
    }
}

impl Stream for UpdateStream {
    type Item = Update;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Update>> {
        self.client.poll(context, Inbox::next_update)
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client")
            .field("relay", &self.relay())
            .field("participant", &self.participant())
            .finish_non_exhaustive()
    }
}

/// The last handle is gone.
impl Drop for Handle {
    fn drop(&mut self) {
        let now = self.shared.now();
        self.shared.lock().abandon(now);
        self.shared.nudge.notify_one();
    }
}
