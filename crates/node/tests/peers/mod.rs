//! Participants for tests, each with a socket of its own, and what they publish: updates of the
//! largest size, in which every byte says whose it is and which.
#![allow(dead_code, reason = "each test binary uses its part of this module")]

use canopy_net::{Clock, Receiver, Socket, SocketOptions, Waker, wait_readable};
use canopy_session::{Event, Session, SessionConfig, State};
use canopy_wire::{
    Address, Comtree, Flags, Group, Header, Kind, Level, MAX_DATAGRAM, MAX_UPDATE, Packet, Record,
    SAFE_DATAGRAM, Time, UpdatesWriter,
};
use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

/// How long to wait for what must come: only a failure takes so long.
pub(crate) const LIMIT: Duration = Duration::from_secs(30);
/// Time stands still for sessions: none repeats what it said, so nothing is sent but what a test
/// sends.
const STILL: Time = Time::from_millis(1);
/// An update begins with who published it, its number and its length.
const HEAD: usize = 12;

/// A participant that has joined.
pub(crate) struct Peer {
    pub(crate) socket: Socket,
    pub(crate) session: Session,
    comtree: Comtree,
    receiver: Receiver,
    waker: Waker,
    clock: Clock,
    /// The data thread that it asked for a place.
    pub(crate) asked: u16,
    /// The last number that came from each publisher.
    last: BTreeMap<u32, u32>,
    /// How many updates came.
    pub(crate) received: u64,
    /// The lengths of the datagrams that brought updates, and how many there were of each.
    pub(crate) lengths: BTreeMap<usize, u64>,
    published: u32,
}

/// Where a peer joins, and from where.
#[derive(Clone, Copy)]
pub(crate) struct Place {
    pub(crate) relay: SocketAddr,
    /// The relay's data threads.
    pub(crate) threads: u16,
    pub(crate) comtree: Comtree,
    pub(crate) from: Ipv4Addr,
    /// The longest datagram that the way there takes.
    pub(crate) max_datagram: usize,
}

impl Default for Place {
    fn default() -> Place {
        let relay = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let (from, max_datagram) = (Ipv4Addr::LOCALHOST, SAFE_DATAGRAM);
        Place { relay, threads: 1, comtree: Comtree(1), from, max_datagram }
    }
}

impl Peer {
    /// Joins and subscribes to the groups.
    pub(crate) fn join(place: Place, seed: u16, groups: &[Group]) -> Peer {
        let Place { relay, threads, comtree, from, max_datagram } = place;
        // Datagrams one by one: so every one that is lost is counted as one.
        let options = SocketOptions { receive_offload: false, ..SocketOptions::default() };
        let socket = Socket::bind((from, 0).into(), &options).unwrap();
        socket.connect(relay).unwrap();
        let mut bytes = [0; 16];
        bytes[..2].copy_from_slice(&seed.to_le_bytes());
        let max_datagram = max_datagram as u16;
        let config = SessionConfig { max_datagram, ..SessionConfig::new(comtree, bytes) };
        let mut session = Session::new(config);
        groups.iter().for_each(|group| session.subscribe(*group, Level(255)));
        let (waker, receiver) = (Waker::new().unwrap(), Receiver::new(1, MAX_DATAGRAM + 1));
        let (clock, last) = (Clock::start(), BTreeMap::new());
        let mut peer = Peer {
            socket,
            session,
            comtree,
            receiver,
            waker,
            clock,
            asked: 0,
            last,
            received: 0,
            lengths: BTreeMap::new(),
            published: 0,
        };
        peer.settle(threads, groups.len());
        peer
    }

    /// Exchanges packets with the relay until it is connected and subscribed.
    fn settle(&mut self, threads: u16, mut subscriptions: usize) {
        let mut bytes = [0; MAX_DATAGRAM];
        loop {
            while let Some(len) = self.session.poll_transmit(STILL, &mut bytes) {
                if self.session.state() == State::Greeting {
                    let hello = Packet::new_checked(&bytes[..len]).unwrap();
                    self.asked = hello.header().session.thread(threads);
                }
                self.socket.send(&bytes[..len]).unwrap();
            }
            while let Some(event) = self.session.poll_event() {
                match event {
                    Event::Connected(_) => {}
                    Event::Subscribed(..) => subscriptions -= 1,
                    other => panic!("{other:?}"),
                }
            }
            if self.session.state() == State::Connected && subscriptions == 0 {
                return;
            }
            assert!(self.wait(LIMIT), "the relay does not answer");
            self.take();
        }
    }

    /// The data thread that it is on.
    pub(crate) fn thread(&self, threads: u16) -> u16 {
        self.session.id().thread(threads)
    }

    /// Publishes its next update, of the largest size.
    pub(crate) fn publish(&mut self, group: Group) {
        self.publish_len(group, MAX_UPDATE, Flags(0));
    }

    /// Publishes its next update, of this size.
    pub(crate) fn publish_len(&mut self, group: Group, len: usize, flags: Flags) {
        self.published += 1;
        let (mut datagram, payload) =
            ([0; MAX_DATAGRAM], payload(self.session.address(), self.published, len));
        let (to, session) = (group.address(), &mut self.session);
        let len = session.publish(to, Level(0), flags, &payload, &mut datagram).unwrap();
        self.socket.send(&datagram[..len]).unwrap();
    }

    /// Publishes its next updates, of these sizes, in one datagram.
    pub(crate) fn publish_together(&mut self, group: Group, lens: &[usize]) {
        let session = &mut self.session;
        let (id, first) = (session.id(), session.take_series(lens.len()));
        let mut datagram = [0; MAX_DATAGRAM];
        let mut writer = UpdatesWriter::new(&mut datagram, session.max_datagram()).unwrap();
        for (series, len) in (0..).zip(lens) {
            self.published += 1;
            let payload = payload(session.address(), self.published, *len);
            let record = Record::new(group.address(), first.wrapping_add(series), &payload);
            assert!(writer.push(&record), "{lens:?} do not fit a datagram");
        }
        let len = writer.finish(&Header::new(Kind::Updates, id, self.comtree));
        let len = session.seal(&mut datagram, len).unwrap();
        self.socket.send(&datagram[..len]).unwrap();
    }

    /// How many updates it has published.
    pub(crate) fn published(&self) -> u64 {
        self.published.into()
    }

    /// Waits until something has come; false if that takes too long.
    pub(crate) fn wait(&self, limit: Duration) -> bool {
        let until = Some(self.clock.now() + limit);
        wait_readable(&self.socket, &self.waker, &self.clock, until).unwrap()
    }

    /// Takes what has come. Every update must be whole, and newer than all that came before it from
    /// its publisher.
    pub(crate) fn take(&mut self) {
        let Peer { session, last, received, lengths, .. } = self;
        self.receiver
            .receive(&self.socket, |_, datagram| {
                let (whole_len, had) = (datagram.len(), *received);
                let deliver = |update: canopy_session::Update<'_>| {
                    let word =
                        |at| u32::from_be_bytes(*update.payload[at..].first_chunk().unwrap());
                    let (number, len) = (word(4), word(8) as usize);
                    let whole = payload(update.src, number, len);
                    assert!(update.payload == whole, "changed on its way: {number}");
                    let before = last.insert(update.src.0, number).unwrap_or(0);
                    assert!(number > before, "{number} after {before}");
                    *received += 1;
                };
                session.handle_datagram(STILL, datagram, deliver).unwrap();
                if *received > had {
                    *lengths.entry(whole_len).or_default() += 1;
                }
            })
            .unwrap();
    }

    /// Takes what comes until so many updates have come in all.
    pub(crate) fn expect(&mut self, all: u64) {
        while self.received < all {
            assert!(self.wait(LIMIT), "{} of {all} updates came", self.received);
            self.take();
        }
        assert_eq!(self.received, all);
    }

    /// Leaves, and waits for the relay to say so.
    pub(crate) fn leave(mut self) {
        self.session.leave();
        let mut bytes = [0; MAX_DATAGRAM];
        while self.session.state() != State::Closed {
            while let Some(len) = self.session.poll_transmit(STILL, &mut bytes) {
                self.socket.send(&bytes[..len]).unwrap();
            }
            assert!(self.wait(LIMIT), "the relay does not answer");
            self.take();
        }
    }
}

/// What a publisher's update of that number and size has in it.
fn payload(publisher: Address, number: u32, len: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(len);
    bytes.extend(publisher.0.to_be_bytes());
    bytes.extend(number.to_be_bytes());
    bytes.extend((len as u32).to_be_bytes());
    let mix = |place: usize| (place as u32 ^ publisher.0).wrapping_mul(31).wrapping_add(number);
    bytes.extend((HEAD..len).map(|place| mix(place) as u8));
    bytes
}
