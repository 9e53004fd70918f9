//! What relays say of their links: the agent hears it, and pages show it.

use canopy_client::RelayKey;
use canopy_node::MAX_LISTED;
use canopy_overlay::{KnownLinks, KnownRelay, LinkStates};
use canopy_session::PublicKey;
use canopy_wire::{LinkDetail, Time};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;
use tokio::sync::Notify;

/// What a relay knows of all relays' links, and its clock.
#[derive(Clone, Debug)]
pub(crate) struct SharedStates {
    states: Arc<Mutex<LinkStates>>,
    origin: Instant,
    /// Whoever sends what is due waits for this.
    heard: Arc<Notify>,
}

impl SharedStates {
    /// What a relay knows whose clock showed nothing at that moment.
    pub(crate) fn new(origin: Instant, states: LinkStates) -> SharedStates {
        SharedStates { states: Arc::new(Mutex::new(states)), origin, heard: Arc::default() }
    }

    /// Does something with it, now.
    pub(crate) fn with<T>(&self, act: impl FnOnce(Time, &mut LinkStates) -> T) -> T {
        let now = Time::from_nanos(self.origin.elapsed().as_nanos() as u64);
        act(now, &mut self.states.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// A neighbour says something: a packet. It waits in no queue behind what is more urgent.
    pub(crate) fn hear(&self, neighbour: &PublicKey, packet: &[u8]) {
        self.with(|now, states| states.hear(now, neighbour, packet));
        self.heard.notify_one();
    }

    /// Waits until something was heard.
    pub(crate) async fn has_heard(&self) {
        self.heard.notified().await;
    }
}

/// A relay, as all relays say of their links.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct RelayReport {
    pub(super) name: String,
    key: String,
    /// How many links away it is, 0 for this relay itself.
    pub(super) distance: u8,
    /// Whether links that both their ends find up lead there.
    pub(super) reachable: bool,
    /// How old the news is.
    pub(super) age_s: u64,
    /// What is free on the one of its links that has the most left, bits a second.
    pub(super) free_bits: u64,
    /// The names of those with whom its links are up.
    pub(super) neighbours: Vec<String>,
    /// Its links in detail; none of who is far.
    pub(super) links: Vec<StateReport>,
}

/// A link of another relay, or of this one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct StateReport {
    /// The controller's number of it.
    link: u32,
    /// With whom, if that one is known.
    neighbour: Option<String>,
    up: bool,
    /// One way; null before it was measured.
    delay_ms: Option<f64>,
    /// The share of the relay's datagrams that are lost on the way there, 0 to 1.
    loss: f64,
    /// What is reserved for nothing, bits a second.
    free_bits: u64,
}

/// Who is at the ends of a link.
type Ends = BTreeMap<u32, Vec<PublicKey>>;

/// The relays that are known, the nearest first, and whether there are more than are listed.
pub(super) fn relays(states: &SharedStates) -> (Vec<RelayReport>, bool) {
    states.with(|now, states| {
        let relays = states.relays();
        let mut ends = Ends::new();
        let mut names = BTreeMap::new();
        for relay in &relays {
            names.extend(relay.states.first().map(|state| (relay.key, state.name.clone())));
            for link in relay.states.iter().flat_map(|state| numbers(&state.links)) {
                ends.entry(link).or_default().push(relay.key);
            }
        }
        let mut reports: Vec<RelayReport> =
            relays.iter().map(|relay| report(now, relay, (&ends, &names))).collect();
        reports.sort_by(|one, other| (one.distance, &one.name).cmp(&(other.distance, &other.name)));
        let is_cut = reports.len() > MAX_LISTED;
        reports.truncate(MAX_LISTED);
        (reports, is_cut)
    })
}

fn numbers(links: &KnownLinks) -> Vec<u32> {
    match links {
        KnownLinks::Detailed(links) => links.iter().map(|link| link.link).collect(),
        KnownLinks::Summary(up) => up.clone(),
    }
}

fn report(
    now: Time,
    relay: &KnownRelay<'_>,
    (ends, names): (&Ends, &BTreeMap<PublicKey, String>),
) -> RelayReport {
    let states = &relay.states;
    let neighbour = |link: u32| {
        let other = ends.get(&link)?.iter().find(|end| **end != relay.key)?;
        names.get(other).cloned()
    };
    let detail = |link: &LinkDetail| StateReport {
        link: link.link,
        neighbour: neighbour(link.link),
        up: link.is_up,
        delay_ms: (link.delay_us > 0).then(|| f64::from(link.delay_us) / 1e3),
        loss: f64::from(link.loss) / f64::from(u8::MAX),
        free_bits: u64::from(link.free_kbit) * 1_000,
    };
    let details = states.iter().flat_map(|state| match &state.links {
        KnownLinks::Detailed(links) => links.iter().map(detail).collect(),
        KnownLinks::Summary(_) => Vec::new(),
    });
    let free = states.iter().map(|state| u64::from(state.free_kbit) * 1_000).max();
    RelayReport {
        name: names.get(&relay.key).cloned().unwrap_or_default(),
        key: RelayKey::new(relay.key).to_string(),
        distance: states.iter().map(|state| state.distance).min().unwrap_or_default(),
        reachable: relay.is_reachable,
        age_s: states.iter().map(|state| state.age(now).as_secs()).max().unwrap_or_default(),
        free_bits: free.unwrap_or_default(),
        neighbours: states.iter().flat_map(|of| of.links.up()).filter_map(neighbour).collect(),
        links: details.collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// What a relay knows of itself and of a neighbour, as pages show it.
    #[test]
    fn relays_are_shown_with_their_links_by_name() {
        let [own, other] = [[1; 32], [2; 32]];
        let link = LinkDetail { link: 7, is_up: true, delay_us: 1_500, loss: 51, free_kbit: 900 };
        let states =
            [(own, "eu-1"), (other, "eu-2")].map(|(key, name)| LinkStates::new(key, name, 1));
        let [near, mut far] = states;
        let shared = SharedStates::new(Instant::now(), near);
        shared.with(|now, states| states.set_links(now, [(other, link)].into()));
        far.set_links(Time::from_millis(1_000), [(own, link)].into());
        far.review(Time::from_millis(1_000));
        while let Some(flooded) = far.poll_flooded() {
            for packet in flooded.packets {
                shared.with(|now, states| states.hear(now, &other, &packet));
            }
        }
        let (relays, is_cut) = relays(&shared);
        assert!(!is_cut);
        let shown = serde_json::to_value(relays).unwrap();
        let of = |place: usize| (&shown[place]["name"], &shown[place]["neighbours"]);
        assert_eq!(of(0), (&json!("eu-1"), &json!(["eu-2"])));
        assert_eq!(of(1), (&json!("eu-2"), &json!(["eu-1"])));
        assert_eq!((&shown[1]["distance"], &shown[1]["reachable"]), (&json!(1), &json!(true)));
        assert_eq!(shown[1]["free_bits"], 900_000);
        let link = json!({ "link": 7, "neighbour": "eu-1", "up": true, "delay_ms": 1.5, "loss": 0.2,
                           "free_bits": 900_000 });
        assert_eq!(shown[1]["links"], json!([link]));
    }
}
