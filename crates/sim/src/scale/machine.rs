//! One relay of a world: one data thread, run as the daemon runs it.

use super::config::Gauge;
use super::tree::Tree;
use crate::host::{Thread, UNIX_ZERO, Waiting};
use crate::overlay::machine::{Sent, Sockets};
use canopy_relay::{
    ADDRESS_REST, BranchConfig, BranchId, Budgets, Change, ComtreeConfig, FIRST_ENDPOINT, Gate,
    LinkConfig, Mode, Places, Relay, RelayConfig, Siblings, TableLimits,
};
use canopy_session::{Identity, Keyring, PacketsPerKey, PublicKey, SessionLimits};
use canopy_wire::{Comtree, SAFE_DATAGRAM, Time};
use std::convert::Infallible;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

/// The comtree of the world.
pub(crate) const COMTREE: Comtree = Comtree(1);
/// The port of all relays.
const PORT: u16 = 4747;
/// What one turn takes in virtual time, as it does on a real machine with a handful of datagrams.
const TURN: Duration = Duration::from_micros(50);
/// An interval that is longer than any run, so that nothing is refreshed: only the first time is measured.
const LONG: Duration = Duration::from_secs(3600);

/// Where a relay is reached.
pub(crate) fn ip_port(relay: usize) -> SocketAddr {
    let [.., high, low] = (relay as u32).to_be_bytes();
    SocketAddr::from(([198, 18, high, low], PORT))
}

/// Which relay is reached there.
pub(crate) fn relay_at(ip_port: SocketAddr) -> Option<usize> {
    match ip_port {
        SocketAddr::V4(v4) => match v4.ip().octets() {
            [198, 18, high, low] => Some(usize::from(high) << 8 | usize::from(low)),
            _ => None,
        },
        SocketAddr::V6(_) => None,
    }
}

/// The endpoint numbers that one relay of a site gives out: twice as many as it needs, for those that
/// rest.
pub(crate) fn endpoint_numbers(endpoints_per_relay: u16) -> u16 {
    endpoints_per_relay.saturating_mul(2).saturating_add(16)
}

/// The keys of all relays, by number.
pub(crate) struct Keys(Vec<(Identity, PublicKey)>);

impl Keys {
    pub(crate) fn new(relays: usize) -> Keys {
        let of = |relay: usize| {
            let mut seed = [9; 32];
            seed[..4].copy_from_slice(&(relay as u32).to_be_bytes());
            let identity = Identity::new(seed);
            let key = *identity.public();
            (identity, key)
        };
        Keys((0..relays).map(of).collect())
    }

    pub(crate) fn public(&self, relay: usize) -> PublicKey {
        self.0[relay].1
    }
}

/// One relay.
pub(crate) struct Machine {
    thread: Thread,
    opened: Vec<u8>,
}

impl Machine {
    /// A relay in its place in the tree, which knows nobody but its neighbours.
    ///
    /// # Errors
    /// What it refuses of its settings.
    pub(crate) fn start(
        now: Time,
        number: usize,
        tree: &Tree,
        keys: &Keys,
        endpoints: u16,
    ) -> Result<Machine, String> {
        let node = &tree.nodes[number];
        let numbers = endpoint_numbers(endpoints);
        let first = FIRST_ENDPOINT + node.in_site * numbers;
        let comtree = ComtreeConfig {
            endpoints: first..=first + (numbers - 1),
            ..ComtreeConfig::new(COMTREE, node.site)
        };
        let mut seed = [5; 16];
        seed[..4].copy_from_slice(&(number as u32).to_be_bytes());
        let keyring = Keyring::with_identity(seed, keys.0[number].0.clone());
        let siblings = Siblings::mesh(1).into_iter().next().ok_or("no data thread")?;
        let mut relay = Relay::new(config(comtree, endpoints), siblings, keyring, &seed);
        for (other, role) in tree.branches(number) {
            let (key, path) = (keys.public(other), ip_port(other).into());
            let link = LinkConfig { key, path, thread: 0, calls: number < other };
            let id = BranchId { comtree: COMTREE, link: key, thread: 0 };
            let branch = BranchConfig { id, role, site: tree.nodes[other].site };
            for change in [Change::AddLink(link), Change::AddBranch(branch)] {
                relay.apply(now, change).map_err(|why| format!("relay {number}: {why}"))?;
            }
        }
        Ok(Machine { thread: Thread::new(relay), opened: Vec::new() })
    }

    pub(crate) fn relay(&self) -> &Relay {
        self.thread.turn.relay()
    }

    /// A datagram arrives. Returns when that wants a turn.
    pub(crate) fn arrive(&mut self, now: Time, from: SocketAddr, bytes: Rc<[u8]>) -> Option<Time> {
        let (_, inlet) = crate::host::steer(&bytes, 1);
        let waiting = Waiting { from, bytes, at: now, participant: None, corrupted: false };
        self.thread.arrive(inlet, waiting)
    }

    pub(crate) fn next_turn(&mut self) -> Option<Time> {
        self.thread.next_turn()
    }

    pub(crate) fn is_due(&self, now: Time) -> bool {
        self.thread.is_due(now)
    }

    /// Has its turn. Returns what it sends, and the processor time that it took.
    pub(crate) fn turn(&mut self, now: Time, gauge: &dyn Gauge) -> (Vec<Sent>, Duration) {
        let thread = &mut self.thread;
        thread.begin_turn(now + TURN);
        let mut sockets = Sockets::new(now, &mut thread.inboxes, &mut self.opened);
        let before = gauge.cpu();
        let Ok(_): Result<u64, Infallible> = thread.turn.run(now, &mut sockets);
        let took = gauge.cpu().saturating_sub(before);
        let sent = sockets.sent;
        while thread.turn.relay_mut().poll_notice().is_some() {}
        thread.end_turn(now);
        (sent, took)
    }
}

fn config(comtree: ComtreeConfig, endpoints: u16) -> RelayConfig {
    let max_sessions = u32::from(endpoints) + 16;
    RelayConfig {
        mode: Mode::Immediate,
        comtrees: vec![comtree],
        trust: None,
        origin: UNIX_ZERO,
        places: Places::new(max_sessions),
        max_sessions,
        max_datagram: SAFE_DATAGRAM as u16,
        slow_suites: 0,
        address_rest: ADDRESS_REST,
        life: Some(1),
        log_keys: false,
        packets_per_key: PacketsPerKey::PROTOCOL,
        limits: SessionLimits { lifetime: LONG, keepalive: LONG / 4, subscription: LONG },
        tables: TableLimits::default(),
        budgets: Budgets::NONE,
        gate: Gate::open(),
        smallest_set: None,
    }
}
