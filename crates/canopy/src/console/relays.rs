//! Several relays under one controller, as a page shows them.

use super::links::{LinkLoads, MOST_COMTREES, MOST_LINKS};
use super::rates::Rates;
use super::shown::{Happening, Look, Shown};
use crate::net::Busiest;
use canopy_api::{ComtreeView, EventView};
use canopy_node::ThreadStatus;
use canopy_relay::LinkStatus;
use canopy_session::PublicKey;
use canopy_wire::Comtree;
use serde::Serialize;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

/// The relays, and their rates. All pages share them.
#[derive(Clone)]
pub(super) struct RelaysView {
    names: Vec<String>,
    keys: Vec<PublicKey>,
    /// The comtree whose tree is shown.
    comtree: Comtree,
    shown: Arc<Shown>,
    rates: Arc<Mutex<Vec<Rates>>>,
}

/// The overlay in one frame.
#[derive(Serialize)]
pub(super) struct RelaysFrame {
    relays: Vec<RelayFrame>,
    links: Vec<LinkFrame>,
    /// Why the world has the tree that it has.
    why: String,
    /// What the controller has told since the last frame.
    events: Vec<EventFrame>,
}

#[derive(Serialize)]
struct RelayFrame {
    name: String,
    /// Whether it runs.
    up: bool,
    /// Whether it takes nobody new.
    drains: bool,
    /// Whether it is in the core of the world's tree.
    core: bool,
    /// Whether it is the root of the tree.
    root: bool,
    /// Sessions of participants.
    participants: u32,
    /// Walkers that have this relay, and no session with it.
    lost: u32,
    deliveries_per_s: Option<f64>,
}

#[derive(Serialize)]
struct LinkFrame {
    /// Its number at the controller.
    id: u32,
    /// The numbers of the relays that it joins.
    relays: [usize; 2],
    /// Whether it was cut here.
    cut: bool,
    /// Whether both ends say that it is up.
    up: bool,
    /// Whether the world's tree runs over it.
    tree: bool,
    round_trip_ms: Option<f64>,
    /// UDP payload in both directions.
    bits_per_s: u64,
}

/// Something that the controller has told.
#[derive(Serialize)]
struct EventFrame {
    ago_s: f64,
    #[serde(flatten)]
    event: EventView,
}

impl RelaysView {
    /// Relays by their names and keys, in the order of their numbers.
    pub(super) fn new(
        relays: Vec<(String, PublicKey)>,
        comtree: Comtree,
        shown: Arc<Shown>,
    ) -> RelaysView {
        let rates = relays.iter().map(|_| Rates::default()).collect();
        let (names, keys) = relays.into_iter().unzip();
        RelaysView { names, keys, comtree, shown, rates: Arc::new(Mutex::new(rates)) }
    }

    pub(super) fn look(&self) -> Look {
        self.shown.look()
    }

    /// The relays, where so many walkers have no session with each; and what was told since the page has
    /// seen so many happenings, which are counted on.
    pub(super) fn frame(&self, look: &Look, lost: &[u32], seen: &mut u64) -> RelaysFrame {
        let tree = self.tree(look);
        let hop_of = |name: &str| tree.iter().flat_map(|on| &on.tree).find(|hop| hop.relay == name);
        let mut rates = self.rates.lock().unwrap_or_else(PoisonError::into_inner);
        let relays = self.names.iter().zip(&look.relays).zip(rates.iter_mut()).enumerate();
        let relays = relays.map(|(number, ((name, status), rates))| {
            let read = status.clone().map(|status| rates.read(status));
            let known = look.overlay.relays.iter().find(|relay| relay.name == *name);
            RelayFrame {
                name: name.clone(),
                up: read.is_some(),
                drains: known.is_some_and(|relay| relay.state == "draining"),
                core: hop_of(name).is_some_and(|hop| hop.core),
                root: hop_of(name).is_some_and(|hop| hop.above.is_none()),
                participants: read.as_ref().map_or(0, |read| read.clients()),
                lost: lost.get(number).copied().unwrap_or_default(),
                deliveries_per_s: read.and_then(|read| read.deliveries_per_s()),
            }
        });
        let relays = relays.collect();
        let carries = |id: u32| tree.iter().flat_map(|on| &on.tree).any(|hop| hop.link == Some(id));
        let links = self.links(look).map(|(id, ends)| self.link(look, id, ends, carries(id)));
        let happenings = self.shown.happenings_since(*seen);
        *seen = happenings.last().map_or(*seen, |last| last.number);
        let event = |Happening { at, event, .. }| EventFrame {
            ago_s: Instant::elapsed(&at).as_secs_f64(),
            event,
        };
        RelaysFrame {
            relays,
            links: links.collect(),
            why: tree.map_or_else(String::new, |tree| tree.why.clone()),
            events: happenings.into_iter().map(event).collect(),
        }
    }

    /// What the links carry of each comtree, of both directions.
    pub(super) fn loads(&self, look: &Look) -> Vec<LinkLoads> {
        let busiest = Busiest::of(&look.all.comtrees);
        let loads = self.links(look).take(MOST_LINKS).map(|(id, [near, far])| {
            let of_end = |own: usize, other: usize| {
                let branches = look.relays[own].iter().flat_map(|status| &status.branches);
                branches.filter(move |branch| branch.id.link == self.keys[other])
            };
            let branches = of_end(near, far).chain(of_end(far, near));
            LinkLoads {
                name: [&*self.names[near], &*self.names[far]].join(" – "),
                up: self.link(look, id, [near, far], false).up,
                comtrees: busiest.loads(branches, MOST_COMTREES),
            }
        });
        loads.collect()
    }

    /// The world's tree, as the controller knows it.
    fn tree<'a>(&self, look: &'a Look) -> Option<&'a ComtreeView> {
        let comtrees = &look.overlay.world.as_ref()?.comtrees;
        comtrees.iter().find(|comtree| comtree.id == self.comtree.0)
    }

    /// The links: their numbers at the controller, and those of the relays that they join.
    fn links<'a>(&'a self, look: &'a Look) -> impl Iterator<Item = (u32, [usize; 2])> + 'a {
        look.overlay.links.iter().filter_map(|on_map| {
            let [near, far] = &on_map.link.ends;
            let ends = [self.number_of(near)?, self.number_of(far)?];
            Some((on_map.link.id, ends))
        })
    }

    fn number_of(&self, name: &str) -> Option<usize> {
        self.names.iter().position(|known| known == name)
    }

    fn link(&self, look: &Look, id: u32, relays: [usize; 2], tree: bool) -> LinkFrame {
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
            id,
            relays,
            cut: look.is_cut(relays),
            up,
            tree,
            round_trip_ms: measured.map(|time| time.as_micros() as f64 / 1e3),
            bits_per_s: near.or(far).map_or(0, |link| link.bits_in + link.bits_out),
        }
    }
}
