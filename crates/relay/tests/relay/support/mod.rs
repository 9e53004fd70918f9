//! Relays and participants joined by memory: a perfect network on which time passes only when a
//! test says so.

pub(crate) mod thinning;
pub(crate) mod tokens;

use canopy_relay::{
    ADDRESS_REST, BranchConfig, BranchId, BranchRole, Budgets, Change, ComtreeConfig, Gate,
    GateLimits, LinkConfig, Mode, PathShare, Places, Relay, RelayConfig, Siblings, TableLimits,
};
use canopy_session::{
    Event, GroupOpener, Keyring, LoggedKeys, PacketsPerKey, PublicKey, Session, SessionConfig,
    SessionLimits, State,
};
use canopy_wire::{
    Address, Class, Comtree, Downlink, DropReason, Flags, Group, GroupKeyNumber, Header, Kind,
    Level, Path, Recipient, Record, SAFE_DATAGRAM, Sealed, SessionId, Suite, Time, VERSION, Weight,
    encode_update,
};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

pub(crate) const COMTREE: Comtree = Comtree(1);
pub(crate) const OTHER_COMTREE: Comtree = Comtree(2);
pub(crate) const TICK: Duration = Duration::from_millis(50);
/// Each receiver's copy sealed, one copy for all in cleartext, or one copy sealed for all.
pub(crate) const DOWNLINKS: [Downlink; 3] = [Downlink::Member, Downlink::None, Downlink::Group];
/// Those with which a receiver's own updates are filler in its copy.
pub(crate) const WITH_FILLER: [Downlink; 2] = [Downlink::Member, Downlink::None];
pub(crate) const PERIODIC: Mode = Mode::Periodic { tick: TICK };

/// One participant, and what reached it.
pub(crate) struct Participant {
    pub(crate) session: Session,
    pub(crate) comtree: Comtree,
    pub(crate) path: Path,
    /// The data thread that it asks; after that its session's number decides.
    pub(crate) asks: usize,
    pub(crate) received: Vec<Received>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Received {
    pub(crate) src: Address,
    pub(crate) dst: Address,
    pub(crate) series: u16,
    pub(crate) level: Level,
    pub(crate) weight: Weight,
    pub(crate) object: u16,
    pub(crate) payload: Vec<u8>,
}

/// One send of a data thread.
pub(crate) struct Sent {
    pub(crate) to: SocketAddr,
    pub(crate) bytes: Vec<u8>,
    pub(crate) segment: usize,
}

impl Sent {
    pub(crate) fn datagrams(&self) -> impl Iterator<Item = &[u8]> {
        self.bytes.chunks(self.segment)
    }
}

/// Data threads, of one relay or of several, with participants.
pub(crate) struct World {
    pub(crate) now: Time,
    /// All data threads.
    pub(crate) threads: Vec<Relay>,
    /// By data thread: the first of its relay's, and how many that has.
    relay_of: Vec<(usize, usize)>,
    pub(crate) participants: Vec<Participant>,
    /// Lengths of the datagrams of every send with more than one.
    pub(crate) segmented: Vec<Vec<usize>>,
    pub(crate) datagrams: usize,
    /// Whether several participants have one ip:port.
    pub(crate) has_gateway: bool,
    /// All that participants and relays send, if somebody listens.
    pub(crate) captured: Option<Vec<Vec<u8>>>,
    /// By data thread and session: the keys of those who joined.
    keys: BTreeMap<(usize, SessionId), LoggedKeys>,
    /// The group keys of each data thread.
    group_keys: Vec<(usize, GroupOpener)>,
}

pub(crate) fn ip_port(participant: usize) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 10_000 + participant as u16))
}

pub(crate) fn path_of_thread(thread: usize) -> Path {
    SocketAddr::from(([10, 0, 0, thread as u8], 4748)).into()
}

pub(crate) fn group(number: u32) -> Address {
    Group::new(number).address()
}

/// A relay with two comtrees, small enough for 64 of them.
pub(crate) fn config(mode: Mode) -> RelayConfig {
    RelayConfig {
        mode,
        comtrees: vec![ComtreeConfig::new(COMTREE, 1), ComtreeConfig::new(OTHER_COMTREE, 1)],
        trust: None,
        origin: canopy_relay::UnixTime(0),
        places: Places::new(1000),
        max_sessions: 1000,
        max_datagram: SAFE_DATAGRAM as u16,
        slow_suites: 0,
        address_rest: ADDRESS_REST,
        life: None,
        log_keys: true,
        packets_per_key: PacketsPerKey::PROTOCOL,
        limits: SessionLimits::default(),
        tables: TableLimits { max_groups: 1 << 12, ..TableLimits::default() },
        budgets: Budgets { paths: PathShare::All, ..Budgets::NONE },
        gate: Gate::new(GateLimits::default(), &[3; 16]),
        smallest_set: None,
    }
}

/// The keys of the relay whose first data thread has this number.
pub(crate) fn keyring(first: usize) -> Keyring {
    Keyring::new([first as u8 + 1; 16])
}

/// The same relay on comtrees whose participants' updates are protected so.
pub(crate) fn with_downlink(mut config: RelayConfig, downlink: Downlink) -> RelayConfig {
    config.comtrees.iter_mut().for_each(|comtree| comtree.downlink = downlink);
    config
}

/// The same relay on comtrees whose updates are in cleartext, so that receivers share bursts.
pub(crate) fn sharing(mode: Mode) -> RelayConfig {
    with_downlink(config(mode), Downlink::None)
}

/// Whether a datagram says that it is sealed for all members of a comtree.
pub(crate) fn is_of_group(datagram: &[u8]) -> bool {
    datagram.first() == Some(&(VERSION | Class::Group as u8))
}

pub(crate) fn is_sealed(datagram: &[u8]) -> bool {
    Sealed::of(datagram).is_some()
}

/// The session that a datagram says it is of.
pub(crate) fn session_of(datagram: &[u8]) -> SessionId {
    SessionId::new(u32::from_be_bytes(*datagram.first_chunk().unwrap()))
}

/// The same relay at another site, so that it can be another's neighbour.
pub(crate) fn at_site(mode: Mode, site: u16) -> RelayConfig {
    let comtrees =
        [COMTREE, OTHER_COMTREE].map(|comtree| ComtreeConfig::new(comtree, site)).to_vec();
    RelayConfig { comtrees, ..config(mode) }
}

impl World {
    /// A relay of one data thread, with participants.
    pub(crate) fn new(mode: Mode, participants: usize) -> World {
        World::of(config(mode), participants)
    }

    pub(crate) fn of(config: RelayConfig, participants: usize) -> World {
        let mut world = World::empty();
        world.add_relay(config, 1);
        for number in 0..participants {
            world.add_participant(0, COMTREE);
            if number % 100 == 99 {
                // Strangers are answered at a rate.
                world.settle();
                world.now = world.now + Duration::from_millis(10);
            }
        }
        world.settle();
        world
    }

    /// A relay of several data threads.
    pub(crate) fn with_threads(config: RelayConfig, threads: u16) -> World {
        let mut world = World::empty();
        world.add_relay(config, threads);
        world
    }

    /// A relay of several data threads, with a participant on each.
    pub(crate) fn on_each_thread(mode: Mode, threads: u16) -> World {
        let mut world = World::with_threads(config(mode), threads);
        for thread in 0..threads.into() {
            let number = world.join(thread);
            assert_eq!(world.thread_of(number), thread, "who joins a data thread is served by it");
        }
        world
    }

    pub(crate) fn empty() -> World {
        World {
            now: Time::from_millis(1),
            threads: Vec::new(),
            relay_of: Vec::new(),
            participants: Vec::new(),
            segmented: Vec::new(),
            datagrams: 0,
            has_gateway: false,
            captured: None,
            keys: BTreeMap::new(),
            group_keys: Vec::new(),
        }
    }

    /// Adds a relay; returns its first data thread.
    pub(crate) fn add_relay(&mut self, config: RelayConfig, threads: u16) -> usize {
        let first = self.threads.len();
        for siblings in Siblings::mesh(threads) {
            let relay = Relay::new(config.clone(), siblings, keyring(first), &[2; 16]);
            self.threads.push(relay);
            self.relay_of.push((first, threads.into()));
        }
        first
    }

    /// The relay is killed, and starts anew with the same key.
    pub(crate) fn restart(&mut self, config: RelayConfig) {
        for (number, siblings) in Siblings::mesh(self.threads.len() as u16).into_iter().enumerate()
        {
            let keys = Keyring::new([1; 16]);
            self.threads[number] = Relay::new(config.clone(), siblings, keys, &[3; 16]);
        }
    }

    /// Lets time pass, in steps in which everyone does what is due.
    pub(crate) fn pass(&mut self, time: Duration) {
        let end = self.now + time;
        while self.now < end {
            self.now = (self.now + Duration::from_millis(20)).min(end);
            for thread in &mut self.threads {
                thread.handle_timeout(self.now);
            }
            self.settle();
        }
    }

    /// Adds a participant that will ask a data thread; it joins when the world settles.
    pub(crate) fn add_participant(&mut self, asks: usize, comtree: Comtree) -> usize {
        let mut seed = [7; 16];
        seed[..8].copy_from_slice(&(self.participants.len() as u64).to_be_bytes());
        self.add_session(asks, SessionConfig::new(comtree, seed))
    }

    pub(crate) fn add_session(&mut self, asks: usize, config: SessionConfig) -> usize {
        let number = self.participants.len();
        let (comtree, path) = (config.comtree, ip_port(number).into());
        let session = Session::new(config);
        self.participants.push(Participant { session, comtree, path, asks, received: Vec::new() });
        number
    }

    pub(crate) fn join(&mut self, asks: usize) -> usize {
        let number = self.add_participant(asks, COMTREE);
        self.settle();
        number
    }

    pub(crate) fn relay(&self) -> &Relay {
        &self.threads[0]
    }

    pub(crate) fn relay_mut(&mut self) -> &mut Relay {
        &mut self.threads[0]
    }

    /// The data thread that the kernel brings a participant's datagram to.
    fn thread_for(&self, number: usize, datagram: &[u8]) -> usize {
        let asks = self.participants[number].asks;
        if datagram[0] == VERSION | Class::Stranger as u8 {
            return asks;
        }
        assert!(is_sealed(datagram), "a participant sends nothing else");
        let (first, threads) = self.relay_of[asks];
        first + usize::from(session_of(datagram).thread(threads as u16))
    }

    /// The data thread that serves a participant.
    pub(crate) fn thread_of(&self, number: usize) -> usize {
        let (first, threads) = self.relay_of[self.participants[number].asks];
        first + usize::from(self.participants[number].session.id().thread(threads as u16))
    }

    /// Moves datagrams both ways, and what passes between data threads, until there is no more.
    pub(crate) fn settle(&mut self) {
        for _ in 0..1000 {
            let mut moved = false;
            for number in 0..self.participants.len() {
                moved |= self.send_from(number);
            }
            for thread in 0..self.threads.len() {
                moved |= self.run(thread);
            }
            if !moved {
                return;
            }
        }
        panic!("the world does not settle");
    }

    /// Hands all that a participant has to send to its relay. Returns whether there was any.
    pub(crate) fn send_from(&mut self, number: usize) -> bool {
        let (now, mut out, mut moved) = (self.now, [0; 1500], false);
        while let Some(len) = self.participants[number].session.poll_transmit(now, &mut out) {
            moved = true;
            self.listen_to(&out[..len]);
            let thread = self.thread_for(number, &out[..len]);
            let path = self.participants[number].path;
            self.threads[thread].handle_datagram(now, path, &mut out[..len]);
            if self.threads[thread].is_filling_up() {
                self.run(thread);
            }
        }
        moved
    }

    /// A turn of a data thread without a receive. Returns whether anything moved.
    pub(crate) fn run(&mut self, thread: usize) -> bool {
        let heard = !self.threads[thread].has_heard_all();
        let now = self.now;
        let mut moved = heard;
        loop {
            let is_done = self.threads[thread].handle_siblings(now);
            let sent = self.collect(thread);
            moved |= !sent.is_empty();
            self.carry(thread, sent);
            if is_done {
                return moved;
            }
        }
    }

    /// What a data thread sends now.
    pub(crate) fn collect(&mut self, thread: usize) -> Vec<Sent> {
        let mut all = Vec::new();
        self.threads[thread].transmit(self.now, |batch| {
            for transmit in batch.transmits() {
                let bytes: Vec<u8> = batch.parts(transmit).flatten().copied().collect();
                assert_eq!(bytes.len(), transmit.len as usize);
                let segment = transmit.segment.into();
                let sent = Sent { to: transmit.to.remote, bytes, segment };
                assert_eq!(sent.datagrams().count(), transmit.datagrams() as usize);
                all.push(sent);
            }
        });
        all
    }

    /// Brings what a data thread sent to where it goes.
    pub(crate) fn carry(&mut self, from: usize, all: Vec<Sent>) {
        for sent in all {
            let lengths: Vec<usize> = sent.datagrams().map(<[u8]>::len).collect();
            self.datagrams += lengths.len();
            if lengths.len() > 1 {
                self.segmented.push(lengths);
            }
            for datagram in sent.datagrams() {
                self.bring(from, sent.to, datagram);
            }
        }
    }

    fn bring(&mut self, from: usize, to: SocketAddr, datagram: &[u8]) {
        self.listen_to(datagram);
        let at = |path: Path| path.remote == to;
        // It is mostly the one that the port says, who is alone there.
        let number = usize::from(to.port()).wrapping_sub(10_000);
        let is_there = self.participants.get(number).is_some_and(|one| at(one.path));
        let number = if is_there && !self.has_gateway {
            Some(number)
        } else {
            self.receiver_at(to, datagram)
        };
        if let Some(participant) = number.map(|number| &mut self.participants[number]) {
            let received = &mut participant.received;
            let mut copy = datagram.to_vec();
            let result = participant.session.handle_datagram(self.now, &mut copy, |update| {
                let canopy_session::Update { src, dst, series, level, .. } = update;
                let canopy_session::Update { weight, object, payload, .. } = update;
                let payload = payload.to_vec();
                received.push(Received { src, dst, series, level, weight, object, payload });
            });
            // What is sealed for a session that it has left comes too late.
            let is_late = (is_sealed(datagram) || is_of_group(datagram))
                && participant.session.state() != State::Connected;
            assert!(result.is_ok() || is_late, "{result:?}");
        } else if let Some(thread) = (0..self.threads.len()).find(|one| at(path_of_thread(*one))) {
            self.arrive(thread, path_of_thread(from), datagram);
        }
    }

    /// Who gets a datagram at an ip:port: if several are there, the one whose session it names.
    fn receiver_at(&self, to: SocketAddr, datagram: &[u8]) -> Option<usize> {
        let all = self.participants.iter().enumerate();
        let mut there = all.filter(|(_, one)| one.path.remote == to);
        let (first, second) = (there.next()?, there.next());
        let Some(second) = second else { return Some(first.0) };
        let recipient = Recipient::of(datagram)?;
        let mut there = [first, second].into_iter().chain(there);
        there.find(|(_, one)| one.session.recipient() == recipient).map(|(number, _)| number)
    }

    fn listen_to(&mut self, datagram: &[u8]) {
        if let Some(captured) = &mut self.captured {
            captured.push(datagram.to_vec());
        }
    }

    /// A datagram reaches a data thread.
    pub(crate) fn arrive(&mut self, thread: usize, from: impl Into<Path>, datagram: &[u8]) {
        self.threads[thread].handle_datagram(self.now, from, &mut datagram.to_vec());
    }

    /// Somebody greets the first data thread from an ip:port; returns the connect that follows.
    pub(crate) fn connect_of(&mut self, from: SocketAddr, config: SessionConfig) -> Vec<u8> {
        let (mut session, mut out) = (Session::new(config), [0; 1500]);
        let len = session.poll_transmit(self.now, &mut out).unwrap();
        self.arrive(0, from, &out[..len]);
        let mut cookie = self.collect(0).remove(0).bytes;
        session.handle_datagram(self.now, &mut cookie, |_| ()).unwrap();
        let len = session.poll_transmit(self.now, &mut out).unwrap();
        out[..len].to_vec()
    }

    /// The keys of a session of a data thread.
    pub(crate) fn keys(&mut self, thread: usize, session: SessionId) -> &LoggedKeys {
        self.note_keys();
        self.keys.get(&(thread, session)).expect("there is such a session")
    }

    /// The suites of all sessions and links that were opened.
    pub(crate) fn suites(&mut self) -> Vec<Suite> {
        self.note_keys();
        self.keys.values().map(|keys| keys.joined.suite).collect()
    }

    fn note_keys(&mut self) {
        for (number, thread) in self.threads.iter_mut().enumerate() {
            while let Some(keys) = thread.poll_key_log() {
                self.keys.insert((number, keys.session), keys);
            }
        }
    }

    /// The packet in a datagram that a data thread sent.
    pub(crate) fn open(&mut self, thread: usize, datagram: &[u8]) -> Vec<u8> {
        if is_of_group(datagram) {
            return self.open_of_group(thread, datagram).expect("there is such a key");
        }
        if !is_sealed(datagram) {
            return datagram.to_vec();
        }
        self.keys(thread, session_of(datagram)).from_relay.peek(datagram).unwrap()
    }

    /// The packet in a datagram that a data thread sealed for all members of a comtree.
    pub(crate) fn open_of_group(&mut self, thread: usize, datagram: &[u8]) -> Option<Vec<u8>> {
        for (number, relay) in self.threads.iter_mut().enumerate() {
            while let Some(key) = relay.poll_group_key_log() {
                self.group_keys.push((number, GroupOpener::new(&key)));
            }
        }
        let mut of_thread = self.group_keys.iter().filter(|(number, _)| *number == thread);
        let number = GroupKeyNumber::of(datagram);
        of_thread.find(|(_, key)| Some(key.number()) == number)?.1.peek(datagram)
    }

    /// The packet in a datagram that a participant sent.
    pub(crate) fn open_from(&mut self, number: usize, datagram: &[u8]) -> Vec<u8> {
        assert!(is_sealed(datagram));
        let thread = self.thread_of(number);
        self.keys(thread, session_of(datagram)).from_participant.peek(datagram).unwrap()
    }

    /// The packets in what a data thread sent to a participant.
    pub(crate) fn packets_to(
        &mut self,
        thread: usize,
        sent: &[Sent],
        number: usize,
    ) -> Vec<Vec<u8>> {
        let to = self.participants[number].path.remote;
        let to_it = sent.iter().filter(|one| one.to == to);
        to_it.flat_map(Sent::datagrams).map(|datagram| self.open(thread, datagram)).collect()
    }

    /// Seals a packet that was written by hand as if its session had sent it.
    pub(crate) fn seal(&mut self, number: usize, packet: &[u8]) -> Vec<u8> {
        let mut out = [packet, &[0; canopy_wire::SEAL_LEN]].concat();
        let len = self.participants[number].session.seal(&mut out, packet.len()).unwrap();
        assert_eq!(len, out.len());
        out
    }

    /// A packet that was written by hand reaches the data thread of a participant, sealed, by its
    /// path.
    pub(crate) fn send(&mut self, number: usize, packet: &[u8]) {
        let datagram = self.seal(number, packet);
        let (thread, path) = (self.thread_of(number), self.participants[number].path);
        self.arrive(thread, path, &datagram);
    }

    /// An update of a participant's in cleartext, with a number of its own.
    pub(crate) fn update_of(
        &self,
        number: usize,
        header: impl FnOnce(Header) -> Header,
        payload: &[u8],
    ) -> Vec<u8> {
        let id = self.participants[number].session.id();
        let (header, mut out) = (header(Header::new(Kind::Updates, id, COMTREE)), [0; 1500]);
        let len = encode_update(&header, &Record::new(group(7), 0, payload), &mut out).unwrap();
        out[..len].to_vec()
    }

    /// An update of a participant's on the first comtree reaches its data thread as it is here, but for
    /// its number, which is the next of its series.
    pub(crate) fn publish_record(&mut self, number: usize, record: Record<'_>) {
        let session = &mut self.participants[number].session;
        let header = Header::new(Kind::Updates, session.id(), COMTREE);
        let record = Record { series: session.take_series(1), ..record };
        let mut out = [0; 1500];
        let len = encode_update(&header, &record, &mut out).unwrap();
        self.send(number, &out[..len]);
    }

    pub(crate) fn subscribe(&mut self, number: usize, group: u32, level: u8) {
        self.participants[number].session.subscribe(Group::new(group), Level(level));
        self.settle();
    }

    pub(crate) fn unsubscribe(&mut self, number: usize, group: u32) {
        self.participants[number].session.unsubscribe(Group::new(group));
        self.settle();
    }

    pub(crate) fn subscribe_all(&mut self, group: u32, level: u8) {
        for participant in &mut self.participants {
            participant.session.subscribe(Group::new(group), Level(level));
        }
        self.settle();
    }

    /// A participant's datagram with one update reaches its data thread; nothing else happens yet.
    pub(crate) fn publish(
        &mut self,
        number: usize,
        to: u32,
        level: u8,
        flags: Flags,
        payload: &[u8],
    ) {
        self.publish_to(number, group(to), level, flags, payload);
    }

    pub(crate) fn publish_to(
        &mut self,
        number: usize,
        dst: Address,
        level: u8,
        flags: Flags,
        payload: &[u8],
    ) {
        let mut out = [0; 1500];
        let publisher = &mut self.participants[number];
        let len = publisher.session.publish(dst, Level(level), flags, payload, &mut out).unwrap();
        self.listen_to(&out[..len]);
        let publisher = &self.participants[number];
        let (path, thread) = (publisher.path, self.thread_for(number, &out[..len]));
        self.threads[thread].handle_datagram(self.now, path, &mut out[..len]);
    }

    /// Goes on to the next tick, and settles.
    pub(crate) fn tick(&mut self) {
        self.now = self.now.next_multiple(TICK);
        self.settle();
    }

    pub(crate) fn address(&self, number: usize) -> Address {
        self.participants[number].session.address()
    }

    pub(crate) fn payloads(&self, number: usize) -> Vec<&[u8]> {
        self.participants[number].received.iter().map(|one| &one.payload[..]).collect()
    }

    pub(crate) fn events(&mut self, number: usize) -> Vec<Event> {
        let session = &mut self.participants[number].session;
        std::iter::from_fn(|| session.poll_event()).collect()
    }

    /// How often any data thread dropped something for a reason.
    pub(crate) fn dropped(&self, reason: DropReason) -> u64 {
        self.threads.iter().map(|thread| thread.counters().dropped(reason)).sum()
    }

    /// The sum of a counter over all data threads.
    pub(crate) fn sum(&self, counter: impl Fn(&canopy_relay::Counters) -> u64) -> u64 {
        self.threads.iter().map(|thread| counter(thread.counters())).sum()
    }

    pub(crate) fn sessions(&self) -> u32 {
        self.threads.iter().map(Relay::sessions).sum()
    }

    /// The key that a data thread's relay is known by.
    pub(crate) fn key_of(&self, thread: usize) -> PublicKey {
        *keyring(self.relay_of[thread].0).identity().public()
    }

    /// Gives two data threads a link with each other, if they have none. The first calls.
    pub(crate) fn link_threads(&mut self, [one, other]: [usize; 2]) {
        for ((here, there), calls) in [((other, one), false), ((one, other), true)] {
            let (key, path) = (self.key_of(there), path_of_thread(there));
            let (caller, called) = (self.number_of(one), self.number_of(other));
            // Where a relay has a single thread, every number is that one's.
            let link = LinkConfig { key, path, thread: caller.max(called), calls };
            if !self.threads[here].is_linked(&key) {
                self.threads[here].apply(self.now, Change::AddLink(link)).unwrap();
            }
        }
        self.settle();
        let keys = [one, other].map(|thread| self.key_of(thread));
        assert!(self.threads[one].is_linked(&keys[1]) && self.threads[other].is_linked(&keys[0]));
    }

    /// A relay of one data thread that has started anew is told of its link with another again; the one
    /// that came first calls.
    pub(crate) fn link_again(&mut self, here: usize, there: usize) {
        let (key, path) = (self.key_of(there), path_of_thread(there));
        let link = LinkConfig { key, path, thread: 0, calls: here < there };
        self.threads[here].apply(self.now, Change::AddLink(link)).unwrap();
    }

    /// The number of a data thread among its relay's.
    fn number_of(&self, thread: usize) -> u16 {
        (thread - self.relay_of[thread].0) as u16
    }

    /// What one data thread sent another over their link, opened.
    pub(crate) fn open_between(&mut self, from: usize, to: usize, datagram: &[u8]) -> Vec<u8> {
        assert!(is_sealed(datagram), "between relays everything is sealed");
        self.note_keys();
        let of_caller = |(thread, _): &&(usize, SessionId)| *thread == to;
        let mut tried = self.keys.iter().filter_map(|(at, keys)| {
            if of_caller(&at) { keys.from_participant.peek(datagram) } else { None }
                .or_else(|| (at.0 == from).then(|| keys.from_relay.peek(datagram)).flatten())
        });
        tried.next().expect("one of the two has its keys")
    }

    /// Joins two relays of one data thread by a branch of a comtree.
    pub(crate) fn link(
        &mut self,
        comtree: Comtree,
        ends: [(usize, u16); 2],
        roles: [BranchRole; 2],
    ) {
        let [one, other] = ends;
        self.link_threads([one.0, other.0]);
        for ((here, _), (there, site), role) in [(one, other, roles[0]), (other, one, roles[1])] {
            self.add_branch(comtree, here, (there, site), role);
        }
    }

    /// A data thread has a branch to another relay's, at that site; their link is there already.
    pub(crate) fn add_branch(
        &mut self,
        comtree: Comtree,
        here: usize,
        (there, site): (usize, u16),
        role: BranchRole,
    ) {
        let id = BranchId { comtree, link: self.key_of(there), thread: 0 };
        let branch = BranchConfig { id, role, site };
        self.threads[here].apply(self.now, Change::AddBranch(branch)).unwrap();
    }
}
