//! The load: who sends to the router or to a reflector, and who receives from it, on one thread.

use super::arrivals::{Arrivals, Measured};
use super::cases::{Case, Offer};
use super::neighbour::Neighbour;
use super::reflector::Seal;
use super::server::{NeighbourOf, Server};
use super::traffic::{self, COMTREES, Updates};
use anyhow::ensure;
use canopy_batch::SendBatch;
use canopy_net::{
    Clock, Mmsg, Outlet, Receiver, Socket, SocketOptions, process_cpu_time, wait_writable,
};
use canopy_wire::{MAX_DATAGRAM, Time};
use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

/// With a backlog, copies that may be on their way at once: fewer than a processor's receive queue
/// takes (`netdev_max_backlog`, 1,000 unless set otherwise).
const WINDOW: u64 = 768;
/// Datagrams that leave in one call with a backlog: as one segmented send, as a relay sends what has
/// waited.
const BURST: u64 = 48;
/// What has not come by now never will.
const LOST_AFTER: Duration = Duration::from_millis(300);
const WARM_UP: Duration = Duration::from_millis(100);
/// Links, routes and subscriptions are there within this.
const JOIN_LIMIT: Duration = Duration::from_secs(20);
/// A subscribe packet that is not acknowledged leaves again.
const ASK_AGAIN: Duration = Duration::from_millis(100);
/// Idle sides are served this often.
const IDLE_EVERY: Duration = Duration::from_millis(20);

/// Whom the load speaks to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    Router,
    Bare,
    Sealing,
}

/// What one end of the load speaks.
enum Speech {
    Link(Box<Neighbour>),
    Bare,
    Sealed(Box<Seal>),
}

struct End {
    socket: Socket,
    speech: Speech,
}

impl End {
    fn is_down(&self) -> bool {
        matches!(&self.speech, Speech::Link(link) if !link.is_up())
    }
}

/// One side's neighbours: the first sends, the others receive.
pub(super) struct Load {
    case: Case,
    rate: u32,
    clock: Clock,
    ends: Vec<End>,
    updates: Updates,
    /// By neighbour: packets that say who is behind it.
    introductions: Vec<Vec<Vec<u8>>>,
    receiver: Receiver,
    outlet: Outlet<Mmsg>,
    batch: SendBatch,
    /// The datagrams of a call.
    burst: Vec<u8>,
    server: SocketAddr,
    /// The number of the next update.
    sequence: u64,
    arrivals: Arrivals,
    idle_at: Time,
}

/// What else is done while a side is measured: the others' signs of life.
pub(super) type Idle<'a> = &'a mut dyn FnMut() -> anyhow::Result<()>;

impl Load {
    /// Opens the sockets. With a router, `routes` routes lead to whoever is behind them.
    pub(super) fn open(
        side: Side,
        case: &Case,
        from: IpAddr,
        (routes, rate): (usize, u32),
    ) -> anyhow::Result<Load> {
        let mut ends = Vec::new();
        for number in 0..=case.fanout as u8 {
            let speech = match side {
                Side::Router => Speech::Link(Box::new(Neighbour::new(number)?)),
                Side::Bare => Speech::Bare,
                Side::Sealing => Speech::Sealed(Box::new(Seal::new(number)?)),
            };
            let socket = Socket::bind(SocketAddr::new(from, 0), &SocketOptions::default())?;
            ends.push(End { socket, speech });
        }
        let engine = match case.load {
            Offer::Single => Mmsg::plain(),
            Offer::Backlog => Mmsg::with_segments(&ends[0].socket)?,
        };
        let routes = if side == Side::Router { routes } else { 0 };
        let behind = traffic::addresses(routes, case.fanout);
        let introductions = behind.iter().map(|behind| traffic::introductions(behind));
        Ok(Load {
            case: *case,
            rate,
            clock: Clock::start(),
            updates: Updates::new(case, &behind)?,
            introductions: introductions.collect::<Result<_, _>>()?,
            receiver: Receiver::new(32, 65_535),
            outlet: Outlet::new(engine),
            burst: Vec::new(),
            batch: SendBatch::new(),
            server: ends[0].socket.local_address(),
            ends,
            sequence: 0,
            arrivals: Arrivals::default(),
            idle_at: Time::ZERO,
        })
    }

    /// The neighbours, for the router.
    pub(super) fn neighbours(&self) -> Vec<NeighbourOf> {
        let neighbour = |(number, end): (usize, &End)| {
            let Speech::Link(neighbour) = &end.speech else { return None };
            let (key, remote) = (neighbour.key(), end.socket.local_address());
            Some(NeighbourOf { key, remote, site: traffic::site_of(number) })
        };
        self.ends.iter().enumerate().filter_map(neighbour).collect()
    }

    /// Where the receivers are, for a reflector.
    pub(super) fn receivers(&self) -> Vec<SocketAddr> {
        self.ends[1..].iter().map(|end| end.socket.local_address()).collect()
    }

    /// Speaks to this server from now on; returns once a router knows all routes and subscriptions.
    pub(super) fn join(&mut self, server: &mut Server, routes: u64) -> anyhow::Result<()> {
        self.server = server.address;
        self.arrivals.begin(0, self.case.fanout);
        for End { socket, speech } in &mut self.ends {
            socket.connect(server.address)?;
            if let Speech::Link(neighbour) = speech {
                neighbour.call(server.key);
            }
        }
        if self.neighbours().is_empty() {
            return Ok(());
        }
        let until = self.clock.now() + JOIN_LIMIT;
        loop {
            self.prepare()?;
            // What it says is a fifth of a second old.
            let asked = self.clock.now();
            while self.clock.now().since(asked) < Duration::from_millis(250) {
                self.keep_alive()?;
            }
            let known = server.standing()?.routes;
            if known >= routes {
                return Ok(());
            }
            let late = self.clock.now() > until;
            ensure!(!late, "the router has learned {known} of {routes} routes in {JOIN_LIMIT:?}");
        }
    }

    /// Lets a router hear again who is behind its neighbours and what these want, once its links are
    /// up.
    fn prepare(&mut self) -> anyhow::Result<()> {
        let until = self.clock.now() + JOIN_LIMIT;
        loop {
            while self.ends.iter().any(End::is_down) {
                ensure!(self.clock.now() < until, "the router took no link within {JOIN_LIMIT:?}");
                self.keep_alive()?;
            }
            self.introduce()?;
            if self.case.fanout > 1 {
                (1..self.ends.len()).try_for_each(|number| self.subscribe(number, until))?;
            }
            // A link that was lost meanwhile comes up again, and what was said over it is said again.
            if !self.ends.iter().any(End::is_down) {
                return Ok(());
            }
        }
    }

    fn introduce(&mut self) -> anyhow::Result<()> {
        for number in 0..self.ends.len() {
            for place in 0..self.introductions[number].len() {
                let End { socket, speech } = &mut self.ends[number];
                let Speech::Link(neighbour) = speech else { return Ok(()) };
                if !neighbour.is_up() {
                    return Ok(());
                }
                let packet = &self.introductions[number][place];
                let mut out = [0; MAX_DATAGRAM];
                out[..packet.len()].copy_from_slice(packet);
                let len = neighbour.seal(&mut out, packet.len())?;
                send(socket, &out[..len])?;
                if place % 16 == 15 {
                    self.keep_alive()?;
                }
            }
        }
        Ok(())
    }

    fn subscribe(&mut self, number: usize, until: Time) -> anyhow::Result<()> {
        let groups = traffic::groups();
        let mut rest = &groups[..];
        while !rest.is_empty() {
            ensure!(self.clock.now() < until, "the router took no subscriptions in {JOIN_LIMIT:?}");
            let End { socket, speech } = &mut self.ends[number];
            let Speech::Link(neighbour) = speech else { return Ok(()) };
            if !neighbour.is_up() {
                return Ok(());
            }
            let mut out = [0; MAX_DATAGRAM];
            let (len, fit) = neighbour.subscribe(COMTREES[0], rest, &mut out)?;
            send(socket, &out[..len])?;
            let asked = self.clock.now();
            while self.clock.now().since(asked) < ASK_AGAIN {
                self.keep_alive()?;
                if self.is_acknowledged(number) {
                    rest = &rest[fit..];
                    break;
                }
            }
        }
        Ok(())
    }

    fn is_acknowledged(&self, number: usize) -> bool {
        matches!(&self.ends[number].speech, Speech::Link(link) if link.is_acknowledged())
    }

    /// Takes what has arrived, and sends signs of life.
    pub(super) fn keep_alive(&mut self) -> anyhow::Result<()> {
        let now = self.clock.now();
        for End { socket, speech } in &mut self.ends {
            if let Speech::Link(neighbour) = speech {
                neighbour.turn(now, |datagram| send(socket, datagram))?;
            }
        }
        self.receive()
    }

    fn receive(&mut self) -> anyhow::Result<()> {
        let Load { ends, receiver, arrivals, clock, .. } = self;
        for (number, End { socket, speech }) in ends.iter_mut().enumerate() {
            let now = clock.now();
            receiver.receive(socket, |from, datagram| {
                let Some(place) = number.checked_sub(1) else {
                    if let Speech::Link(neighbour) = speech {
                        neighbour.take(now, from, datagram, |_| ());
                    }
                    return;
                };
                let before = arrivals.copies;
                match speech {
                    Speech::Link(neighbour) => {
                        neighbour
                            .take(now, from, datagram, |payload| arrivals.hear(place, payload));
                    }
                    Speech::Bare => arrivals.hear(place, datagram),
                    Speech::Sealed(seal) => {
                        seal.open(datagram).into_iter().for_each(|body| arrivals.hear(place, body));
                    }
                }
                arrivals.datagrams += u64::from(arrivals.copies > before);
            })?;
        }
        Ok(())
    }

    /// Runs one round against the process with this number.
    pub(super) fn run(
        &mut self,
        process: u32,
        measured: Duration,
        idle: Idle<'_>,
    ) -> anyhow::Result<Measured> {
        self.prepare()?;
        let receivers = self.case.fanout;
        let first = self.sequence;
        self.arrivals.begin(first, receivers);
        self.offer(WARM_UP, idle)?;
        let (cpu, start) = (process_cpu_time(process)?, self.clock.now());
        let (copies, datagrams) = (self.arrivals.copies, self.arrivals.datagrams);
        self.offer(measured, idle)?;
        let mut result = Measured {
            cpu: process_cpu_time(process)?.saturating_sub(cpu),
            wall: self.clock.now().since(start),
            copies: self.arrivals.copies - copies,
            datagrams: self.arrivals.datagrams - datagrams,
            expected: (self.sequence - first) * receivers as u64,
            ..Measured::default()
        };
        let until = self.clock.now() + LOST_AFTER;
        while self.arrivals.copies < result.expected && self.clock.now() < until {
            self.attend(idle)?;
        }
        result.lost = result.expected - self.arrivals.copies;
        result.doubled = self.arrivals.doubled;
        Ok(result)
    }

    fn offer(&mut self, time: Duration, idle: Idle<'_>) -> anyhow::Result<()> {
        let end = self.clock.now() + time;
        match self.case.load {
            Offer::Single => self.offer_singly(end, idle),
            Offer::Backlog => self.offer_much(end, idle),
        }
    }

    fn offer_singly(&mut self, end: Time, idle: Idle<'_>) -> anyhow::Result<()> {
        let gap = Duration::from_secs(1) / self.rate;
        let mut next = self.clock.now();
        loop {
            let now = self.clock.now();
            if now >= end {
                return Ok(());
            }
            if now >= next {
                self.send_updates(1)?;
                // Whoever was late itself does not make up for it: they would come together.
                next = (next + gap).max(now);
            }
            self.attend(idle)?;
        }
    }

    fn offer_much(&mut self, end: Time, idle: Idle<'_>) -> anyhow::Result<()> {
        let receivers = self.case.fanout as u64;
        let most = (WINDOW / receivers).max(2 * BURST);
        // Updates that are known to be no longer on their way, because they came or are lost.
        let mut lost = 0;
        let mut moved = (self.clock.now(), self.arrivals.copies);
        loop {
            let now = self.clock.now();
            if now >= end {
                return Ok(());
            }
            let sent = self.sequence - self.arrivals.first;
            let on_the_way = sent.saturating_sub(self.arrivals.copies / receivers + lost);
            if on_the_way + BURST <= most {
                self.send_updates(BURST)?;
            }
            if self.arrivals.copies != moved.1 {
                moved = (now, self.arrivals.copies);
            } else if now.since(moved.0) > LOST_AFTER {
                lost += on_the_way;
                moved.0 = now;
            }
            self.attend(idle)?;
        }
    }

    /// What is done all the time.
    fn attend(&mut self, idle: Idle<'_>) -> anyhow::Result<()> {
        self.receive()?;
        let now = self.clock.now();
        if now >= self.idle_at {
            self.idle_at = now + IDLE_EVERY;
            self.keep_alive()?;
            idle()?;
        }
        Ok(())
    }

    fn send_updates(&mut self, count: u64) -> anyhow::Result<()> {
        if self.ends[0].is_down() {
            return Ok(());
        }
        self.batch.clear();
        self.burst.clear();
        let End { socket, speech } = &mut self.ends[0];
        for _ in 0..count {
            let mut out = [0; MAX_DATAGRAM];
            let len = match speech {
                Speech::Link(neighbour) => {
                    let len = self.updates.write(self.sequence, &mut out)?;
                    neighbour.seal(&mut out, len)?
                }
                Speech::Bare => {
                    out[..self.case.bytes]
                        .copy_from_slice(&traffic::body(self.sequence, self.case.bytes));
                    self.case.bytes
                }
                Speech::Sealed(seal) => seal
                    .seal(&traffic::body(self.sequence, self.case.bytes - Seal::MORE), &mut out)?,
            };
            ensure!(len == self.case.bytes, "a datagram has {len} bytes");
            self.burst.extend_from_slice(&out[..len]);
            self.sequence += 1;
        }
        self.batch.push_burst(self.server, &[&self.burst], self.case.bytes as u16);
        self.outlet.send(socket, self.clock.now(), &self.batch);
        if self.outlet.wants().is_some() {
            self.outlet.flush(socket, &self.clock);
        }
        Ok(())
    }
}

/// Sends a datagram to the server, once there is room.
fn send(socket: &Socket, datagram: &[u8]) -> anyhow::Result<()> {
    loop {
        match socket.send(datagram) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                wait_writable(socket, Duration::from_millis(5));
            }
            result => return Ok(result?),
        }
    }
}
