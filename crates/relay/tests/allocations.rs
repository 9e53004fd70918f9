//! The way of a packet allocates nothing: received, opened, fanned out and sealed, once its tables have
//! their size. A binary of its own, because it counts what its allocator is asked for.

use canopy_relay::{
    ADDRESS_REST, Budgets, ComtreeConfig, Gate, Mode, Places, Relay, RelayConfig, Siblings,
    TableLimits, UnixTime,
};
use canopy_session::{Keyring, PacketsPerKey, Session, SessionConfig, SessionLimits, State};
use canopy_wire::{Comtree, Downlink, Flags, Group, Level, MAX_DATAGRAM, SAFE_DATAGRAM, Time};
use std::net::SocketAddr;
use std::time::Duration;

const COMTREE: Comtree = Comtree(1);
const MEMBERS: u16 = 30;
const TICK: Duration = Duration::from_millis(50);
/// Flushes in which tables and buffers grow to their size.
const WARM_UP: usize = 4;

/// A relay, and members who all hear one group.
struct Crowd {
    relay: Relay,
    sessions: Vec<Session>,
    now: Time,
}

fn ip_port(number: usize) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 10_000 + number as u16))
}

impl Crowd {
    fn new(mode: Mode, downlink: Downlink) -> Crowd {
        let comtree = ComtreeConfig { downlink, ..ComtreeConfig::new(COMTREE, 1) };
        let config = RelayConfig {
            mode,
            comtrees: vec![comtree],
            trust: None,
            origin: UnixTime(0),
            places: Places::new(MEMBERS.into()),
            max_sessions: MEMBERS.into(),
            max_datagram: SAFE_DATAGRAM as u16,
            slow_suites: 0,
            address_rest: ADDRESS_REST,
            life: None,
            log_keys: false,
            packets_per_key: PacketsPerKey::PROTOCOL,
            limits: SessionLimits::default(),
            tables: TableLimits::default(),
            budgets: Budgets::default(),
            gate: Gate::open(),
            smallest_set: None,
        };
        let relay = Relay::new(config, Siblings::alone(), Keyring::new([1; 16]), &[2; 16]);
        let session = |number: u16| {
            let mut session = Session::new(SessionConfig::new(COMTREE, [number as u8; 16]));
            session.subscribe(Group::new(7), Level(0));
            session
        };
        let sessions = (0..MEMBERS).map(session).collect();
        let mut crowd = Crowd { relay, sessions, now: Time::from_millis(1) };
        (0..WARM_UP).for_each(|_| crowd.settle());
        let is_member = |session: &Session| session.state() == State::Connected;
        assert!(crowd.sessions.iter().all(is_member));
        assert_eq!(crowd.relay.subscriptions(), u32::from(MEMBERS));
        crowd
    }

    /// All say what they have to say, and hear what they are sent by the next tick.
    fn settle(&mut self) {
        let mut out = [0; MAX_DATAGRAM];
        for (number, session) in self.sessions.iter_mut().enumerate() {
            while let Some(len) = session.poll_transmit(self.now, &mut out) {
                self.relay.handle_datagram(self.now, ip_port(number), &mut out[..len]);
            }
        }
        self.now = (self.now + Duration::from_nanos(1)).next_multiple(TICK);
        self.relay.handle_timeout(self.now);
        let mut sent = Vec::new();
        self.relay.transmit(self.now, |batch| {
            for transmit in batch.transmits() {
                let bytes: Vec<u8> = batch.parts(transmit).flatten().copied().collect();
                sent.push((transmit.to.remote, usize::from(transmit.segment).max(1), bytes));
            }
        });
        for (to, segment, mut bytes) in sent {
            let session = &mut self.sessions[usize::from(to.port() - 10_000)];
            for datagram in bytes.chunks_mut(segment) {
                session.handle_datagram(self.now, datagram, |_| ()).unwrap();
            }
        }
    }

    /// An update of each member, sealed.
    fn updates(&mut self) -> Vec<(SocketAddr, Vec<u8>)> {
        let (dst, mut out) = (Group::new(7).address(), [0; MAX_DATAGRAM]);
        let update = |(number, session): (usize, &mut Session)| {
            let payload = [number as u8; 100];
            let len = session.publish(dst, Level(0), Flags(0), &payload, &mut out).unwrap();
            (ip_port(number), out[..len].to_vec())
        };
        self.sessions.iter_mut().enumerate().map(update).collect()
    }

    /// The relay takes updates and sends what is due at the next tick. Returns how many datagrams.
    fn carry(&mut self, updates: &mut [(SocketAddr, Vec<u8>)]) -> usize {
        let mut datagrams = 0;
        for (from, datagram) in updates {
            self.relay.handle_datagram(self.now, *from, datagram);
        }
        self.now = (self.now + Duration::from_nanos(1)).next_multiple(TICK);
        self.relay.transmit(self.now, |batch| {
            let all = batch.transmits().iter();
            datagrams += all.map(|transmit| transmit.datagrams() as usize).sum::<usize>();
        });
        datagrams
    }
}

#[test]
fn the_way_of_a_packet_allocates_nothing() {
    for mode in [Mode::Immediate, Mode::Periodic { tick: TICK }] {
        for downlink in Downlink::ALL {
            let mut crowd = Crowd::new(mode, *downlink);
            for _ in 0..WARM_UP {
                let mut updates = crowd.updates();
                crowd.carry(&mut updates);
                crowd.settle();
            }
            let mut updates = crowd.updates();
            let before = crowd.relay.counters().deliveries_out;
            let mut datagrams = 0;
            let asked = allocation_counter::measure(|| datagrams = crowd.carry(&mut updates));
            assert_eq!(asked.count_total, 0, "{mode:?}, {downlink:?}: {asked:?}");
            assert!(datagrams >= usize::from(MEMBERS));
            let delivered = crowd.relay.counters().deliveries_out - before;
            assert_eq!(delivered, u64::from(MEMBERS) * u64::from(MEMBERS - 1));
        }
    }
}
