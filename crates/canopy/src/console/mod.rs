//! The console: a page, its modules, and a live stream of what happens.
//!
//! It only reads: the status of relays and the crowd's view. It never touches the data threads.

mod feed;
mod links;
mod rates;
mod relays;
mod shown;

pub(crate) use shown::{Look, Shown};

use crate::metrics;
use crate::net::SharedNet;
use crate::settings::RelaySettings;
use crate::web::{Asset, CSS, HTML, JS, pages};
use axum::Router;
use axum::extract::{Query, State};
use axum::http::header::CACHE_CONTROL;
use axum::response::sse::Sse;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use canopy_bots::{COARSE_EVERY, View};
use canopy_node::RelayWatch;
use canopy_relay::Mode;
use canopy_session::PublicKey;
use canopy_wire::Comtree;
use feed::Feed;
use links::LinkLoads;
use rates::{Rates, RelayRates};
use relays::RelaysView;
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

/// The page and its modules, embedded.
const ASSETS: &[Asset] = &[
    ("/", HTML, include_str!("../../../../web/index.html")),
    ("/console.css", CSS, include_str!("../../../../web/console.css")),
    ("/main.js", JS, include_str!("../../../../web/main.js")),
    ("/feed.js", JS, include_str!("../../../../web/feed.js")),
    ("/scene.js", JS, include_str!("../../../../web/scene.js")),
    ("/viewer.js", JS, include_str!("../../../../web/viewer.js")),
    ("/budget.js", JS, include_str!("../../../../web/budget.js")),
    ("/map.js", JS, include_str!("../../../../web/map.js")),
    ("/neighbours.js", JS, include_str!("../../../../web/neighbours.js")),
    ("/layers.js", JS, include_str!("../../../../web/layers.js")),
    ("/charts.js", JS, include_str!("../../../../web/charts.js")),
    ("/panel.js", JS, include_str!("../../../../web/panel.js")),
    ("/format.js", JS, include_str!("../../../../web/format.js")),
    ("/relays.js", JS, include_str!("../../../../web/relays.js")),
    ("/overlay.js", JS, include_str!("../../../../web/overlay.js")),
    ("/happenings.js", JS, include_str!("../../../../web/happenings.js")),
    ("/links.js", JS, include_str!("../../../../web/links.js")),
    ("/table.js", JS, include_str!("../../../../web/table.js")),
    ("/paint.js", JS, include_str!("../../../../web/paint.js")),
];

/// What a page is told first.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Hello {
    title: &'static str,
    relay: SocketAddr,
    mode: &'static str,
    tick_ms: u64,
    has_map: bool,
    bounds: Option<Bounds>,
    cell: f64,
    radius: f64,
    /// Where details end, metres; null if there is one level.
    near: Option<f64>,
    /// One update in so many is for those who are far.
    coarse_every: u64,
    source: String,
}

#[derive(Clone, Debug, Serialize)]
struct Bounds {
    min: [f64; 2],
    max: [f64; 2],
}

/// What the console shows.
#[derive(Clone)]
pub(crate) struct Console {
    hello: Hello,
    relay: Option<RelayWatch>,
    net: SharedNet,
    crowd: Option<Arc<View>>,
    /// Several relays under one controller, as those of a demo.
    relays: Option<RelaysView>,
    rates: Arc<Mutex<Rates>>,
    started: Instant,
}

impl Console {
    /// A console of a relay alone: numbers without a map, since a relay carries opaque payloads.
    pub(crate) fn of_relay(
        settings: &RelaySettings,
        relay: SocketAddr,
        watch: RelayWatch,
        net: SharedNet,
    ) -> Console {
        let (mode, tick_ms) = match settings.node.mode {
            Mode::Immediate => ("immediate", 0),
            Mode::Periodic { tick } => ("periodic", tick.as_millis() as u64),
        };
        let hello = Hello {
            title: "relay",
            relay,
            mode,
            tick_ms,
            has_map: false,
            bounds: None,
            cell: 0.0,
            radius: 0.0,
            near: None,
            coarse_every: COARSE_EVERY,
            source: String::new(),
        };
        Console {
            hello,
            relay: Some(watch),
            net,
            crowd: None,
            relays: None,
            rates: Arc::default(),
            started: Instant::now(),
        }
    }

    /// Adds a crowd, and with it the map.
    pub(crate) fn with_crowd(mut self, view: Arc<View>, map: Map) -> Console {
        self.hello.title = "demo";
        self.hello.has_map = true;
        self.hello.bounds = Some(Bounds { min: map.min, max: map.max });
        self.hello.cell = map.cell;
        self.hello.radius = map.radius;
        self.hello.near = map.near;
        self.hello.source = map.source;
        self.crowd = Some(view);
        self
    }

    /// Adds several relays by their names and keys, with one world on a comtree, and with them their map.
    pub(crate) fn with_relays(
        mut self,
        relays: Vec<(String, PublicKey)>,
        comtree: Comtree,
        shown: Arc<Shown>,
    ) -> Console {
        self.relays = Some(RelaysView::new(relays, comtree, shown));
        self
    }

    fn rates(&self, look: Option<&Look>) -> Option<RelayRates> {
        let mut rates = self.rates.lock().unwrap_or_else(PoisonError::into_inner);
        let status = match (look, &self.relay) {
            (Some(look), _) => look.all.clone(),
            (None, Some(relay)) => relay.status(),
            (None, None) => return None,
        };
        Some(rates.read(status))
    }

    fn links(&self, look: Option<&Look>) -> Vec<LinkLoads> {
        match (look.zip(self.relays.as_ref()), &self.relay) {
            (Some((look, relays)), _) => relays.loads(look),
            (None, Some(relay)) => links::of_relay(&relay.status(), &self.net),
            (None, None) => Vec::new(),
        }
    }

    /// The pages, the stream, and the relay's `/metrics`.
    pub(crate) fn router(self) -> Router {
        let router = pages(ASSETS).route("/events", get(events));
        let metrics = self.relay.clone().map(|relay| metrics::router(relay, self.net.clone()));
        router.with_state(self).merge(metrics.unwrap_or_default())
    }
}

/// The world that a crowd walks through, in metres.
pub(crate) struct Map {
    pub(crate) min: [f64; 2],
    pub(crate) max: [f64; 2],
    pub(crate) cell: f64,
    pub(crate) radius: f64,
    pub(crate) near: Option<f64>,
    pub(crate) source: String,
}

#[derive(Deserialize)]
struct Wanted {
    viewer: Option<u32>,
}

async fn events(State(console): State<Console>, Query(wanted): Query<Wanted>) -> Response {
    let stream = Feed::new(console, wanted.viewer).into_stream();
    ([(CACHE_CONTROL, "no-store")], Sse::new(stream)).into_response()
}
