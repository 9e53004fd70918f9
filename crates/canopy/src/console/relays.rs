//! The demo's relays as a page shows them.

use super::links::{LinkLoads, MOST_COMTREES, MOST_LINKS};
use super::rates::Rates;
use crate::demo::{DemoRelays, Look};
use crate::net::Busiest;
use canopy_node::ThreadStatus;
use canopy_relay::LinkStatus;
use canopy_session::PublicKey;
use serde::Serialize;
use std::sync::{Arc, Mutex, PoisonError};

/// The demo's relays, and their rates. All pages share them.
#[derive(Clone)]
pub(super) struct RelaysView {
    relays: Arc<DemoRelays>,
    keys: Vec<PublicKey>,
    rates: Arc<Mutex<Vec<Rates>>>,
}

/// The relays in one frame.
#[derive(Serialize)]
pub(super) struct RelaysFrame {
    relays: Vec<RelayFrame>,
    links: Vec<LinkFrame>,
}

#[derive(Serialize)]
struct RelayFrame {
    name: String,
    /// Whether it runs.
    up: bool,
    /// Sessions of participants.
    participants: u32,
    /// Walkers that have this relay, and no session with it.
    lost: u32,
    deliveries_per_s: Option<f64>,
}

#[derive(Serialize)]
struct LinkFrame {
    /// The numbers of the relays that it joins, the one towards the core first.
    relays: [usize; 2],
    /// Whether it was cut here.
    cut: bool,
    /// Whether both ends say that it is up.
    up: bool,
    round_trip_ms: Option<f64>,
    /// Of both directions, of UDP payload.
    bits_per_s: u64,
}

impl RelaysView {
    pub(super) fn new(relays: Arc<DemoRelays>) -> RelaysView {
        let keys: Vec<PublicKey> = relays.addresses().map(|(_, key)| key).collect();
        let rates = keys.iter().map(|_| Rates::default()).collect();
        RelaysView { relays, keys, rates: Arc::new(Mutex::new(rates)) }
    }

    pub(super) fn look(&self) -> Look {
        self.relays.look()
    }

    /// The relays, where so many walkers have no session with each.
    pub(super) fn frame(&self, look: &Look, lost: &[u32]) -> RelaysFrame {
        let mut rates = self.rates.lock().unwrap_or_else(PoisonError::into_inner);
        let relays = look.relays.iter().zip(rates.iter_mut()).enumerate();
        let relays = relays.map(|(number, (status, rates))| {
            let read = status.clone().map(|status| rates.read(status));
            RelayFrame {
                name: name_of(number),
                up: read.is_some(),
                participants: read.as_ref().map_or(0, |read| read.clients()),
                lost: lost.get(number).copied().unwrap_or_default(),
                deliveries_per_s: read.and_then(|read| read.deliveries_per_s()),
            }
        });
        let relays = relays.collect();
        let joins = self.relays.topology.joins.iter().zip(&look.cut);
        let links = joins.map(|(join, cut)| self.link(look, join.relays, *cut)).collect();
        RelaysFrame { relays, links }
    }

    /// What the links carry of each comtree, of both directions.
    pub(super) fn loads(&self, look: &Look) -> Vec<LinkLoads> {
        let busiest = Busiest::of(&look.all.comtrees);
        let joins = self.relays.topology.joins.iter().take(MOST_LINKS);
        let loads = joins.map(|join| {
            let [near, far] = join.relays;
            let of_end = |own: usize, other: usize| {
                let branches = look.relays[own].iter().flat_map(|status| &status.branches);
                branches.filter(move |branch| branch.id.link == self.keys[other])
            };
            let branches = of_end(near, far).chain(of_end(far, near));
            LinkLoads {
                name: join.relays.map(name_of).join(" – "),
                up: self.link(look, join.relays, false).up,
                comtrees: busiest.loads(branches, MOST_COMTREES),
            }
        });
        loads.collect()
    }

    fn link(&self, look: &Look, relays: [usize; 2], cut: bool) -> LinkFrame {
        let end = |own: usize, other: usize| {
            let status: &ThreadStatus = look.relays[own].as_ref()?;
            status.links.iter().find(|link| link.key == self.keys[other])
        };
        let ends: [Option<&LinkStatus>; 2] = [end(relays[0], relays[1]), end(relays[1], relays[0])];
        let up = ends.iter().all(|end| end.is_some_and(|link| link.is_up));
        let [near, far] = ends.map(|end| end.filter(|_| up));
        let measured =
            near.and_then(|link| link.round_trip).or(far.and_then(|link| link.round_trip));
        LinkFrame {
            relays,
            cut,
            up,
            round_trip_ms: measured.map(|time| time.as_micros() as f64 / 1e3),
            bits_per_s: near.or(far).map_or(0, |link| link.bits_in + link.bits_out),
        }
    }
}

fn name_of(relay: usize) -> String {
    format!("relay-{}", relay + 1)
}
