//! `/net`: how a relay's part of the overlay stands, as JSON.

use super::reload::role_name;
use super::states::{self, RelayReport};
use super::{Net, OfSettings, SharedNet};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use canopy_client::RelayKey;
use canopy_node::{ChangeError, Inspection, RelayWatch, ThreadStatus};
use canopy_relay::{
    BranchRole, BranchStatus, ComtreeStatus, GroupStatus, LinkStatus, RouteStatus, Via,
};
use canopy_wire::Comtree;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How a relay's part of the overlay stands.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct NetReport {
    pub(super) links: Vec<LinkReport>,
    pub(super) comtrees: Vec<ComtreeReport>,
    pub(super) routes: Vec<RouteReport>,
    /// Whether there are more routes than are listed.
    pub(super) routes_cut: bool,
    pub(super) groups: Vec<GroupReport>,
    /// Whether there are more groups than are listed.
    pub(super) groups_cut: bool,
    /// All relays that a controller has joined, as they say of their links. Relays before this did not tell.
    #[serde(default)]
    pub(super) relays: Vec<RelayReport>,
    /// Whether there are more relays than are listed.
    #[serde(default)]
    pub(super) relays_cut: bool,
}

/// A link to a neighbour relay.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct LinkReport {
    pub(super) name: String,
    key: String,
    /// The data thread that has it.
    thread: u16,
    pub(super) remote: SocketAddr,
    /// Whether this relay calls.
    calls: bool,
    pub(super) up: bool,
    /// How often it has come up.
    pub(super) ups: u32,
    /// Null before it was measured.
    pub(super) round_trip_ms: Option<f64>,
    /// Shares of the datagrams, 0 to 1.
    pub(super) loss_in: f32,
    pub(super) loss_out: f32,
    /// Bits a second, of UDP payload.
    pub(super) bits_in: u64,
    pub(super) bits_out: u64,
    max_datagram: u16,
}

/// A comtree and its branches at this relay.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct ComtreeReport {
    pub(super) id: u32,
    /// Null for the moment in which a comtree comes or goes.
    pub(super) site: Option<u16>,
    /// Whether this relay is in its core.
    pub(super) core: bool,
    pub(super) participants: u32,
    pub(super) branches: Vec<BranchReport>,
}

/// A branch.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct BranchReport {
    /// The link's name.
    pub(super) link: String,
    /// What the neighbour is to this relay.
    pub(super) role: String,
    pub(super) site: u16,
    pub(super) up: bool,
    /// Groups that the neighbour has subscribed to here.
    pub(super) subscribed: u32,
    /// Groups that this relay has subscribed to there.
    pub(super) subscribes: u32,
    /// Changes of those that were not acknowledged yet.
    pub(super) unacknowledged: u32,
    /// Bits a second of updates: those that are there for the neighbour, those that it is sent, and those that
    /// it may be sent of a link whose capacity is known, 0 for no limit. Relays before this did not tell.
    #[serde(default)]
    pub(super) bits_offered: u64,
    #[serde(default)]
    pub(super) bits_out: u64,
    #[serde(default)]
    pub(super) bits_allowed: u64,
}

/// A learned route: over a link, or to another data thread.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct RouteReport {
    pub(super) comtree: u32,
    /// An address, or all of a site, like `7.*`.
    pub(super) to: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) link: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) thread: Option<u16>,
    /// How long ago something came from there.
    pub(super) heard_ms: Option<u64>,
}

/// Who is subscribed to a group.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct GroupReport {
    pub(super) comtree: u32,
    pub(super) group: u32,
    pub(super) participants: u32,
    pub(super) branches: u32,
    /// The highest level among them.
    pub(super) level: u8,
}

/// How old a page's list of routes and groups may be. Data threads copy them no more often than this, however
/// many look.
const LISTED_EVERY: Duration = Duration::from_millis(250);

/// What the data threads told when somebody last looked.
type Last = Arc<Mutex<Option<(Instant, Inspection)>>>;

/// Serves `/net` of a relay.
pub(crate) fn router(watch: RelayWatch, net: SharedNet) -> Router {
    let last = Last::default();
    let page = move || {
        let (watch, net, last) = (watch.clone(), net.clone(), Arc::clone(&last));
        // It waits for the data threads.
        let looking = tokio::task::spawn_blocking(move || look(&watch, &net, &last));
        async move {
            match looking.await {
                Ok(Ok(report)) => Json(report).into_response(),
                Ok(Err(error)) => unavailable(error.to_string()),
                Err(_) => unavailable("the relay's overlay cannot be told".to_owned()),
            }
        }
    };
    Router::new().route("/net", get(page))
}

fn unavailable(why: String) -> Response {
    (StatusCode::SERVICE_UNAVAILABLE, why + "\n").into_response()
}

fn look(watch: &RelayWatch, net: &SharedNet, last: &Last) -> Result<NetReport, ChangeError> {
    // Who comes meanwhile waits, and then takes the same.
    let mut last = last.lock().unwrap_or_else(PoisonError::into_inner);
    if last.as_ref().is_none_or(|(at, _)| at.elapsed() >= LISTED_EVERY) {
        *last = Some((Instant::now(), watch.inspect()?));
    }
    let listed = last.as_ref().map(|(_, inspection)| inspection.clone()).unwrap_or_default();
    drop(last);
    let report = NetReport::new(&watch.status(), &listed, &net.get());
    let (relays, relays_cut) = net.states().map(|of| states::relays(&of)).unwrap_or_default();
    Ok(NetReport { relays, relays_cut, ..report })
}

impl NetReport {
    fn new(status: &ThreadStatus, inspection: &Inspection, net: &Net) -> NetReport {
        let mut links: Vec<_> =
            status.links.iter().map(|link| LinkReport::new(link, net)).collect();
        links.sort_by(|one, other| one.name.cmp(&other.name));
        let mut branches: BTreeMap<Comtree, Vec<BranchReport>> = BTreeMap::new();
        for branch in &status.branches {
            branches.entry(branch.id.comtree).or_default().push(BranchReport::new(branch, net));
        }
        let comtree = |status: &ComtreeStatus| {
            let ComtreeStatus { comtree: id, participants, .. } = *status;
            let mut branches = branches.remove(&id).unwrap_or_default();
            branches.sort_by(|one, other| one.link.cmp(&other.link));
            let (site, core) = (net.site(id), net.is_core(id));
            ComtreeReport { id: id.0, site, core, participants, branches }
        };
        let mut comtrees: Vec<_> = status.comtrees.iter().map(comtree).collect();
        comtrees.sort_by_key(|comtree| comtree.id);
        NetReport {
            links,
            comtrees,
            routes: inspection.routes.iter().map(|one| RouteReport::new(one, net)).collect(),
            routes_cut: inspection.routes_cut,
            groups: inspection.groups.iter().map(GroupReport::from).collect(),
            groups_cut: inspection.groups_cut,
            ..NetReport::default()
        }
    }
}

impl NetReport {
    /// What the relay lacks to be joined with so many neighbours on a comtree, in words; `None` if all
    /// its links and branches are up.
    pub(crate) fn lacks(&self, comtree: u32, neighbours: usize) -> Option<String> {
        let down: Vec<&str> =
            self.links.iter().filter(|link| !link.up).map(|link| &*link.name).collect();
        if !down.is_empty() {
            return Some(format!("down are the links with {}", down.join(", ")));
        }
        let on_it = self.comtrees.iter().filter(|one| one.id == comtree);
        let branches = on_it
            .flat_map(|one| &one.branches)
            .filter(|branch| branch.up && branch.role != role_name(BranchRole::Standby))
            .count();
        let links = self.links.len();
        (links != neighbours || branches != neighbours)
            .then(|| format!("it has {links} links and {branches} branches of {neighbours}"))
    }
}

impl LinkReport {
    fn new(status: &LinkStatus, net: &Net) -> LinkReport {
        LinkReport {
            name: net.name(&status.key),
            key: RelayKey::new(status.key).to_string(),
            thread: status.thread,
            remote: status.remote,
            calls: status.calls,
            up: status.is_up,
            ups: status.ups,
            round_trip_ms: status.round_trip.map(milliseconds),
            loss_in: status.loss_in,
            loss_out: status.loss_out,
            bits_in: status.bits_in,
            bits_out: status.bits_out,
            max_datagram: status.max_datagram,
        }
    }
}

/// To the nearest microsecond.
fn milliseconds(time: Duration) -> f64 {
    time.as_micros() as f64 / 1e3
}

impl BranchReport {
    fn new(status: &BranchStatus, net: &Net) -> BranchReport {
        BranchReport {
            link: net.name(&status.id.link),
            role: role_name(status.role).to_owned(),
            site: status.site,
            up: status.is_up,
            subscribed: status.subscribed,
            subscribes: status.subscribes,
            unacknowledged: status.unacknowledged,
            bits_offered: status.bits_offered,
            bits_out: status.bits_out,
            bits_allowed: status.bits_allowed,
        }
    }
}

impl RouteReport {
    fn new(route: &RouteStatus, net: &Net) -> RouteReport {
        let (link, thread) = match route.via {
            Via::Branch(key) => (Some(net.name(&key)), None),
            Via::Thread(thread) => (None, Some(thread)),
        };
        let to = match route.to.endpoint() {
            0 => format!("{}.*", route.to.site()),
            _ => route.to.to_string(),
        };
        let heard_ms = route.heard.map(|ago| ago.as_millis() as u64);
        RouteReport { comtree: route.comtree.0, to, link, thread, heard_ms }
    }
}

impl From<&GroupStatus> for GroupReport {
    fn from(status: &GroupStatus) -> GroupReport {
        let GroupStatus { comtree, group, participants, branches, highest } = *status;
        let group = group.number();
        GroupReport { comtree: comtree.0, group, participants, branches, level: highest.0 }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use canopy_relay::{BranchConfig, BranchId, ComtreeConfig};
    use canopy_wire::{Address, Group, Level};

    const KEY: [u8; 32] = [0xab; 32];

    /// A relay with one link, over which it has a parent.
    pub(in super::super) fn example() -> NetReport {
        let link = LinkStatus {
            key: KEY,
            thread: 0,
            remote: SocketAddr::from(([10, 0, 0, 2], 4040)),
            calls: true,
            is_up: true,
            ups: 2,
            round_trip: Some(Duration::from_micros(1_234)),
            loss_in: 0.25,
            loss_out: 0.0,
            bits_in: 2_000_000,
            bits_out: 1_500,
            max_datagram: 1232,
        };
        let id = BranchId { comtree: Comtree(1), link: KEY, thread: 0 };
        let branch = BranchStatus {
            id,
            role: BranchRole::Parent,
            site: 2,
            is_up: true,
            subscribed: 0,
            subscribes: 3,
            unacknowledged: 1,
            bits_offered: 20_000_000,
            bits_out: 1_400,
            bits_allowed: 0,
        };
        let comtree = |id, participants| {
            let counters = Default::default();
            ComtreeStatus { comtree: Comtree(id), participants, counters }
        };
        let status = ThreadStatus {
            links: vec![link],
            branches: vec![branch],
            comtrees: vec![comtree(4, 0), comtree(1, 7)],
            ..ThreadStatus::default()
        };
        let route = |to, via, heard| RouteStatus { comtree: Comtree(1), to, via, heard };
        let heard = Some(Duration::from_millis(40));
        let group = Group::try_from(9).unwrap();
        let (participants, branches, highest) = (5, 1, Level(2));
        let inspection = Inspection {
            routes: vec![
                route(Address::unicast(1, 70), Via::Thread(1), None),
                route(Address::unicast(2, 0), Via::Branch(KEY), heard),
            ],
            groups: vec![GroupStatus {
                comtree: Comtree(1),
                group,
                participants,
                branches,
                highest,
            }],
            groups_cut: true,
            ..Inspection::default()
        };
        let config = BranchConfig { id, role: BranchRole::Parent, site: 2 };
        let site = |id, site| (Comtree(id), ComtreeConfig::new(Comtree(id), site));
        let net = Net {
            comtrees: [site(1, 1), site(4, 9)].into(),
            branches: [(id, config)].into(),
            names: [(KEY, "b".to_owned())].into(),
            ..Net::default()
        };
        NetReport::new(&status, &inspection, &net)
    }

    #[test]
    fn the_report_has_names_sites_and_roles() {
        let json = serde_json::to_value(example()).unwrap();
        assert_eq!(json["links"][0]["name"], "b");
        assert_eq!(json["links"][0]["key"], "ab".repeat(32));
        assert_eq!(json["links"][0]["round_trip_ms"], 1.234);
        let comtrees = &json["comtrees"];
        assert_eq!(
            [&comtrees[0]["id"], &comtrees[0]["site"], &comtrees[0]["participants"]],
            [1, 1, 7]
        );
        assert_eq!(comtrees[0]["core"], false);
        assert_eq!(comtrees[0]["branches"][0]["link"], "b");
        assert_eq!(comtrees[0]["branches"][0]["role"], "parent");
        assert_eq!([&comtrees[1]["id"], &comtrees[1]["site"]], [4, 9]);
        assert_eq!(comtrees[1]["core"], true);
        let thread = serde_json::json!({
            "comtree": 1, "to": "1.70", "thread": 1, "heard_ms": null
        });
        let link = serde_json::json!({
            "comtree": 1, "to": "2.*", "link": "b", "heard_ms": 40
        });
        assert_eq!(json["routes"], serde_json::json!([thread, link]));
        let group = serde_json::json!({
            "comtree": 1, "group": 9, "participants": 5, "branches": 1, "level": 2
        });
        assert_eq!(json["groups"], serde_json::json!([group]));
        assert_eq!([&json["routes_cut"], &json["groups_cut"]], [false, true]);
        assert_eq!(serde_json::from_value::<NetReport>(json).unwrap(), example());
    }
}
