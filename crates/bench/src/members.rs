//! Members of the server under measurement: participants of a relay, or of the reflector. Each has
//! a socket of its own, and all are served by one thread.

use crate::reflector::JOIN;
use anyhow::bail;
use canopy_net::{Clock, Readiness, Receiver, Socket, SocketOptions};
use canopy_session::{Event, Session, SessionConfig, State, Update};
use canopy_wire::{Comtree, Group, Level, MAX_DATAGRAM, SEAL_LEN, Time};
use std::net::SocketAddr;
use std::time::Duration;

/// Keepalives are answered within this.
const ANSWER_TIME: Duration = Duration::from_millis(100);
const JOIN_LIMIT: Duration = Duration::from_secs(30);
const TURN: Duration = Duration::from_millis(20);

/// All members.
pub(crate) struct Members {
    pub(crate) clock: Clock,
    pub(crate) list: Vec<Member>,
    readiness: Readiness,
    ready: Vec<usize>,
    receiver: Receiver,
    /// Their sockets are looked at again and again instead of being waited for.
    polls: bool,
    /// How often a member with a session lost it.
    pub(crate) losses: u32,
}

/// One of them.
pub(crate) struct Member {
    pub(crate) socket: Socket,
    /// None with the reflector.
    pub(crate) session: Option<Session>,
    /// Subscriptions, or with the reflector memberships, that are still to be confirmed.
    awaited: usize,
}

/// What arrives at a member.
pub(crate) enum Heard<'a> {
    /// A datagram, before what is in it.
    Datagram(&'a [u8]),
    /// The payload of an update.
    Payload(Time, &'a [u8]),
    /// What was sealed in a datagram at the member of this number, after its session has taken it.
    Opened(usize, &'a [u8]),
}

impl Members {
    /// No members yet. What one receive call brings, be it one datagram or several that the kernel
    /// has joined, has at most `longest` bytes.
    pub(crate) fn new(longest: usize, polls: bool) -> anyhow::Result<Members> {
        Ok(Members {
            clock: Clock::start(),
            list: Vec::new(),
            readiness: Readiness::new()?,
            ready: Vec::new(),
            receiver: Receiver::new(64, longest),
            polls,
            losses: 0,
        })
    }

    /// Adds a member with a socket from one address to the other. Without a session, it joins the
    /// reflector if it `listens`.
    pub(crate) fn add(
        &mut self,
        [from, server]: [SocketAddr; 2],
        options: &SocketOptions,
        session: Option<Session>,
        listens: bool,
    ) -> anyhow::Result<()> {
        let socket = Socket::bind(from, options)?;
        socket.connect(server)?;
        if !self.polls {
            self.readiness.add(&socket, self.list.len() as u64)?;
        }
        let awaited = session.as_ref().map_or(usize::from(listens), Session::subscriptions);
        self.list.push(Member { socket, session, awaited });
        Ok(())
    }

    /// Serves all until every one is joined and subscribed. A session that heard nothing while
    /// another side had its turn may be lost, and is joined again here.
    pub(crate) fn join(&mut self, mut heard: impl FnMut(Heard<'_>)) -> anyhow::Result<()> {
        let start = self.clock.now();
        let mut asked_at = Time::ZERO;
        loop {
            let now = self.clock.now();
            let answered = now.since(start) > ANSWER_TIME;
            if answered && self.list.iter().all(Member::is_ready) {
                return Ok(());
            }
            if now.since(start) > JOIN_LIMIT {
                bail!("the server did not take all participants within {JOIN_LIMIT:?}");
            }
            if now.since(asked_at) > TURN {
                asked_at = now;
                self.turn(now)?;
            }
            self.receive(TURN / 4, &mut heard)?;
        }
    }

    /// Lets every member send what it has to send by `now`.
    pub(crate) fn turn(&mut self, now: Time) -> anyhow::Result<()> {
        for member in &mut self.list {
            self.losses += member.turn(now)?;
        }
        Ok(())
    }

    /// Waits at most `limit` for datagrams and takes them.
    pub(crate) fn receive(
        &mut self,
        limit: Duration,
        mut heard: impl FnMut(Heard<'_>),
    ) -> anyhow::Result<()> {
        let ready = &mut self.ready;
        ready.clear();
        if self.polls {
            ready.extend(0..self.list.len());
        } else {
            let until = self.clock.now() + limit;
            self.readiness.wait(&self.clock, Some(until), |token| ready.push(token as usize))?;
        }
        for number in ready {
            let member = &mut self.list[*number];
            let now = self.clock.now();
            self.receiver.receive(&member.socket, |_, datagram| {
                heard(Heard::Datagram(datagram));
                match &mut member.session {
                    Some(session) => {
                        let deliver = |u: Update<'_>| heard(Heard::Payload(now, u.payload));
                        // A datagram that is no packet is no delivery: it shows as loss.
                        let taken = session.handle_datagram(now, datagram, deliver);
                        let packet = datagram.split_last_chunk::<SEAL_LEN>();
                        if let (Ok(()), Some((packet, _))) = (taken, packet) {
                            heard(Heard::Opened(*number, packet));
                        }
                    }
                    None if *datagram == [JOIN] => member.awaited = 0,
                    None => heard(Heard::Payload(now, datagram)),
                }
            })?;
            if member.session.is_some() && !member.is_ready() {
                self.losses += member.turn(now)?;
            }
        }
        Ok(())
    }
}

impl Member {
    fn is_ready(&self) -> bool {
        let connected = |session: &Session| session.state() == State::Connected;
        self.awaited == 0 && self.session.as_ref().is_none_or(connected)
    }

    /// Sends what the session has to send, or asks the reflector for membership. Returns how often
    /// the session was lost since the last turn.
    fn turn(&mut self, now: Time) -> anyhow::Result<u32> {
        let Some(session) = &mut self.session else {
            if self.awaited > 0 {
                self.socket.send(&[JOIN])?;
            }
            return Ok(0);
        };
        let mut out = [0; MAX_DATAGRAM];
        while let Some(len) = session.poll_transmit(now, &mut out) {
            self.socket.send(&out[..len])?;
        }
        let mut losses = 0;
        while let Some(event) = session.poll_event() {
            match event {
                Event::Subscribed(..) => self.awaited = self.awaited.saturating_sub(1),
                Event::SubscriptionRefused(..) => bail!("the relay's tables are too small"),
                Event::Lost => {
                    losses += 1;
                    self.awaited = session.subscriptions();
                }
                _ => {}
            }
        }
        Ok(losses)
    }
}

/// A session of comtree 1 that wants these groups.
pub(crate) fn session(number: usize, groups: impl Iterator<Item = u32>) -> Session {
    session_of(config(number), groups)
}

/// What a session of comtree 1 is made of.
pub(crate) fn config(number: usize) -> SessionConfig {
    let mut seed = [0x5a; 16];
    seed[..8].copy_from_slice(&(number as u64).to_be_bytes());
    SessionConfig::new(Comtree(1), seed)
}

/// A session that wants these groups.
pub(crate) fn session_of(config: SessionConfig, groups: impl Iterator<Item = u32>) -> Session {
    let mut session = Session::new(config);
    groups.for_each(|group| session.subscribe(Group::new(group), Level(0)));
    session
}
