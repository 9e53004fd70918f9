//! What a client's handles and its task share: the session and its socket, under one lock that is
//! never held across an await, and the queues to the application.

use crate::bundles::Bundles;
use crate::link::Link;
use crate::queue::Queue;
use crate::subscriptions::Subscriptions;
use crate::{Event, PublishError, Stats, Update};
use canopy_net::{Clock, Receiver, Socket};
use canopy_session::{Session, SessionConfig, SessionError, State as SessionState};
use canopy_wire::{Address, Comtree, Flags, Level, MAX_DATAGRAM, Time, WireError};
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::Notify;

/// Events that wait for an application that does not look at them.
const EVENTS: usize = 64;

pub(crate) struct Shared {
    pub(crate) relay: SocketAddr,
    pub(crate) clock: Clock,
    pub(crate) updates: Queue<Update>,
    pub(crate) events: Queue<Event>,
    /// Wakes the task: the session has something to do.
    pub(crate) nudge: Notify,
    state: Mutex<State>,
}

pub(crate) struct State {
    pub(crate) session: Session,
    pub(crate) comtree: Comtree,
    pub(crate) subscriptions: Subscriptions,
    pub(crate) stats: Stats,
    /// The task has ended, and with it everything.
    pub(crate) over: bool,
    /// No handle is left.
    pub(crate) abandoned: bool,
    /// A datagram of another version came.
    pub(crate) other_version: bool,
    link: Link,
}

impl Shared {
    pub(crate) fn new(
        relay: SocketAddr,
        session: SessionConfig,
        socket: Arc<Socket>,
        receive_queue: usize,
    ) -> Shared {
        Shared {
            relay,
            clock: Clock::start(),
            updates: Queue::new(receive_queue),
            events: Queue::new(EVENTS),
            nudge: Notify::new(),
            state: Mutex::new(State {
                comtree: session.comtree,
                session: Session::new(session),
                subscriptions: Subscriptions::default(),
                stats: Stats::default(),
                over: false,
                abandoned: false,
                other_version: false,
                link: Link::new(socket),
            }),
        }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes what has arrived, at most `receiver` once. Returns whether more may wait.
    pub(crate) fn receive(&self, receiver: &mut Receiver) -> bool {
        let now = self.clock.now();
        let mut state = self.lock();
        let mut updates = self.updates.lock();
        let State { session, stats, link, other_version, .. } = &mut *state;
        let mut heard = false;
        let received = receiver.receive(link.socket(), |_, datagram| {
            heard = true;
            let handled = session.handle_datagram(now, datagram, |update| {
                stats.received += 1;
                updates.push(Update {
                    src: update.src,
                    dst: update.dst,
                    level: update.level,
                    payload: update.payload.to_vec(),
                });
            });
            if let Err(error) = handled {
                stats.malformed += 1;
                *other_version |= matches!(error, WireError::Version(_));
            }
        });
        if heard {
            link.heard(now);
        }
        drop(updates);
        self.updates.wake();
        received.unwrap_or_else(|error| {
            link.note(&error);
            false
        })
    }

    /// Sends what the session wants sent, and tells the application what has happened. Returns
    /// when the session wants to be looked after again; `None` once there is nothing left to do.
    pub(crate) fn turn(&self) -> Option<Time> {
        let now = self.clock.now();
        let mut state = self.lock();
        state.transmit(now);
        while let Some(event) = state.session.poll_event() {
            if let Some(event) = state.note(event) {
                self.events.lock().push(event);
                self.events.wake();
            }
        }
        if state.abandoned { None } else { state.session.poll_timeout() }
    }

    /// Whether the socket should be replaced. Asking counts as trying.
    pub(crate) fn wants_new_socket(&self) -> bool {
        let now = self.clock.now();
        let mut state = self.lock();
        let connected = state.session.state() == SessionState::Connected;
        state.link.wants_replacement(now, connected)
    }

    pub(crate) fn use_socket(&self, socket: Arc<Socket>) {
        self.lock().link.replace(socket);
    }

    /// Nothing happens any more: everyone who waits is told.
    pub(crate) fn end(&self) {
        let mut state = self.lock();
        state.over = true;
        state.subscriptions.clear();
        self.updates.close();
        self.events.close();
    }

    pub(crate) fn stats(&self) -> Stats {
        let state = self.lock();
        let updates = self.updates.lock();
        Stats {
            round_trip: state.session.round_trip(),
            subscriptions: state.session.subscriptions(),
            echoes: state.session.echoes(),
            waiting: updates.len(),
            dropped_slow_reader: updates.dropped(),
            dropped_events: self.events.lock().dropped(),
            ..state.stats
        }
    }
}

impl State {
    /// Whether the world is being left, or has been.
    pub(crate) fn is_left(&self) -> bool {
        self.over || matches!(self.session.state(), SessionState::Leaving | SessionState::Closed)
    }

    /// Whether the relay's host said that nothing listens on the port.
    pub(crate) fn nothing_listens(&self) -> bool {
        self.link.nothing_listens()
    }

    /// Sends what the session has due.
    pub(crate) fn transmit(&mut self, now: Time) {
        let mut out = [0; MAX_DATAGRAM];
        while let Some(len) = self.session.poll_transmit(now, &mut out) {
            // A packet that the system does not take is like one lost on the way: the session
            // repeats it.
            let _ = self.link.send(&out[..len]);
        }
    }

    pub(crate) fn publish(
        &mut self,
        dst: Address,
        level: Level,
        flags: Flags,
        payload: &[u8],
    ) -> Result<(), PublishError> {
        let mut out = [0; MAX_DATAGRAM];
        let len = match self.session.publish(dst, level, flags, payload, &mut out) {
            Ok(len) => len,
            Err(SessionError::NotConnected) => return Err(self.not_connected()),
            Err(_) => return Err(PublishError::TooLong(payload.len())),
        };
        self.link.send(&out[..len]).map_err(publish_error)?;
        self.stats.published += 1;
        Ok(())
    }

    pub(crate) fn publish_bundles(&mut self, bundles: &Bundles) -> Result<(), PublishError> {
        for run in bundles.runs() {
            self.link.send_run(&run).map_err(publish_error)?;
        }
        self.stats.published += bundles.updates();
        Ok(())
    }

    /// Why nothing can be published while the session is not connected.
    pub(crate) fn not_connected(&self) -> PublishError {
        if self.is_left() { PublishError::Left } else { PublishError::NotConnected }
    }

    /// Takes note of a session's event; returns what the application should know of it.
    fn note(&mut self, event: canopy_session::Event) -> Option<Event> {
        use canopy_session::Event as Happened;
        match event {
            Happened::Connected(address) => {
                self.stats.connects += 1;
                self.subscriptions.restart();
                return Some(Event::Connected(address));
            }
            Happened::Lost => {
                self.subscriptions.restart();
                return Some(Event::Lost);
            }
            Happened::Refused(reason) => return Some(Event::Refused(reason)),
            Happened::Rebound => return Some(Event::Rebound),
            Happened::Subscribed(group, level) => self.subscriptions.subscribed(group, level),
            Happened::Unsubscribed(group) => self.subscriptions.unsubscribed(group),
            Happened::SubscriptionRefused(group, _) => {
                let told = self.subscriptions.refused(group);
                return (!told).then_some(Event::SubscriptionRefused(group));
            }
            Happened::ThreadFull | Happened::Closed => {}
        }
        None
    }
}

fn publish_error(error: io::Error) -> PublishError {
    match error.kind() {
        ErrorKind::WouldBlock => PublishError::Busy,
        _ => PublishError::Network(error),
    }
}
