//! The handle that an application holds.

use crate::bundles::Bundles;
use crate::shared::Shared;
use crate::{Acknowledgement, ClientBuilder, Event, Outgoing, PublishError, Stats, Update};
use canopy_session::State as SessionState;
use canopy_wire::{Address, Flags, Group, Level};
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

/// A participant of a world.
///
/// Cloning is cheap and gives another handle to the same participant: publish from one task,
/// receive in another. When the last handle is dropped the world is left.
#[derive(Clone)]
pub struct Client {
    handle: Arc<Handle>,
}

struct Handle {
    shared: Arc<Shared>,
}

impl Client {
    /// Sets out to join a world through the relay at an address.
    pub fn builder(relay: SocketAddr) -> ClientBuilder {
        ClientBuilder::new(relay)
    }

    pub(crate) fn new(shared: Arc<Shared>) -> Client {
        Client { handle: Arc::new(Handle { shared }) }
    }

    fn shared(&self) -> &Shared {
        &self.handle.shared
    }

    /// Publishes an update to those who are subscribed to `group` at `level` or above. It is sent
    /// at once, and nobody says whether it arrives.
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
        let (dst, flags) = (update.group.address(), update.flags());
        self.send(dst, update.level, flags, update.payload)
    }

    /// Sends an update to one participant, whose address is in the updates that it publishes and
    /// in its [`Client::address`].
    ///
    /// # Errors
    /// [`PublishError`] if it was not sent.
    pub fn send_to(&self, participant: Address, payload: &[u8]) -> Result<(), PublishError> {
        self.send(participant, Level(0), Flags::default(), payload)
    }

    fn send(
        &self,
        dst: Address,
        level: Level,
        flags: Flags,
        payload: &[u8],
    ) -> Result<(), PublishError> {
        let sent = self.shared().lock().publish(dst, level, flags, payload);
        self.look_into(sent)
    }

    /// Publishes several updates in as few datagrams and system calls as they fit in. Much cheaper
    /// than one by one; they arrive as the separate updates that they are.
    ///
    /// # Errors
    /// [`PublishError`]. None was sent if one is too long; otherwise some of the first may have
    /// been sent, and the rest was not.
    pub fn publish_many<'a>(
        &self,
        updates: impl IntoIterator<Item = Outgoing<'a>>,
    ) -> Result<(), PublishError> {
        let (comtree, src) = {
            let state = self.shared().lock();
            if state.session.state() != SessionState::Connected {
                return Err(state.not_connected());
            }
            (state.comtree, state.session.address())
        };
        // Not under the lock: the iterator is the application's, and may use this client.
        let bundles = Bundles::pack(comtree, src, updates)?;
        let sent = self.shared().lock().publish_bundles(&bundles);
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
        self.wish(groups.into_iter().map(|(group, level)| (group, Some(level))).collect())
    }

    /// Ends the subscription to `group`. Under way at once.
    pub fn unsubscribe(&self, group: Group) -> Acknowledgement {
        self.unsubscribe_many([group])
    }

    /// Ends several subscriptions.
    pub fn unsubscribe_many(&self, groups: impl IntoIterator<Item = Group>) -> Acknowledgement {
        self.wish(groups.into_iter().map(|group| (group, None)).collect())
    }

    fn wish(&self, wishes: Vec<(Group, Option<Level>)>) -> Acknowledgement {
        let mut state = self.shared().lock();
        if state.is_left() {
            return Acknowledgement::left();
        }
        let mut pending = Vec::with_capacity(wishes.len());
        for (group, level) in wishes {
            pending.push(state.subscriptions.wish(group, level));
            match level {
                Some(level) => state.session.subscribe(group, level),
                None => state.session.unsubscribe(group),
            }
        }
        drop(state);
        // The task sends: wishes made until it gets its turn leave in one packet.
        self.shared().nudge.notify_one();
        Acknowledgement::new(pending)
    }

    /// The next update; `None` once the world was left. It waits through losses of the relay.
    ///
    /// Safe to cancel: an update is taken only when it is returned. Several tasks may call it, and
    /// each update goes to one of them.
    pub async fn recv(&self) -> Option<Update> {
        self.shared().updates.recv().await
    }

    /// The next update, if one waits.
    pub fn try_recv(&self) -> Option<Update> {
        self.shared().updates.try_recv()
    }

    /// The next thing that happens to the link with the relay; `None` once the world was left.
    /// Looking at events is optional: 64 are kept, and the oldest make room.
    ///
    /// Safe to cancel. Each event goes to one caller.
    pub async fn next_event(&self) -> Option<Event> {
        self.shared().events.recv().await
    }

    /// This participant's address; `None` while not connected. It may change with a reconnection.
    pub fn address(&self) -> Option<Address> {
        let state = self.shared().lock();
        (state.session.state() == SessionState::Connected).then(|| state.session.address())
    }

    /// Whether the client is in the world right now.
    pub fn is_connected(&self) -> bool {
        self.address().is_some()
    }

    /// The relay's address.
    pub fn relay(&self) -> SocketAddr {
        self.shared().relay
    }

    /// What this client has seen so far.
    pub fn stats(&self) -> Stats {
        self.shared().stats()
    }

    /// Leaves the world in order: returns when the relay has confirmed, or within a second if it
    /// does not. Updates that wait can still be taken; all else of the client is over.
    pub async fn leave(&self) {
        self.shared().lock().session.leave();
        self.shared().nudge.notify_one();
        self.shared().updates.closed().await;
    }

    /// Whether something of another version answered, and whether the host refused the port.
    pub(crate) fn first_impressions(&self) -> (bool, bool) {
        let state = self.shared().lock();
        (state.other_version, state.nothing_listens())
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client")
            .field("relay", &self.relay())
            .field("address", &self.address())
            .finish_non_exhaustive()
    }
}

/// The last handle is gone. The relay is told without waiting for its answer; if that is lost, the
/// session expires there.
impl Drop for Handle {
    fn drop(&mut self) {
        let now = self.shared.clock.now();
        let mut state = self.shared.lock();
        state.abandoned = true;
        state.session.leave();
        state.transmit(now);
        drop(state);
        self.shared.nudge.notify_one();
    }
}
