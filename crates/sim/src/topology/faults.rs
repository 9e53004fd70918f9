//! What fails in a run, and when: one thing after the other, each with time to settle.

use super::graph::Graph;
use canopy_wire::Time;
use rand::RngExt;
use rand_chacha::ChaCha8Rng;
use std::time::Duration;

/// From the beginning of one fault to the next.
const EVERY: u64 = 5_000;

/// Channels are blocked for so much longer than other things fail: relays that are given up for that are so after two seconds.
const CHANNELS: u64 = 2_000;

/// Something that fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// Nothing passes over a link.
    Link(usize),
    /// The same, over a link on which a world depends when it fails.
    LinkOfTree,
    /// A relay's process dies, and is started again.
    Relay(usize),
    /// The same, of a relay on which a world depends when it fails.
    RelayOfTree,
    /// The controller's process dies, and is started again on its store.
    Controller,
    /// Nothing passes between the controller and every n-th relay; if that is 1, between it and all but the first.
    Channels(usize),
    /// Data is lost on all ways.
    Loss,
    /// Data overtakes other data on all ways.
    Reordering,
    /// A link and the controller at once.
    Storm(usize),
    /// The same, with a link on which a world depends when it fails.
    StormOfTree,
}

/// A fault with its times.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Planned {
    pub(crate) fault: Fault,
    pub(crate) from: Time,
    pub(crate) until: Time,
}

/// Draws the faults of a run between two moments, milliseconds. Where the controller proposes links, most nodes have none
/// between them, and links that fail are those of trees.
pub(crate) fn draw(
    graph: &Graph,
    are_given: bool,
    (from, until): (u64, u64),
    rng: &mut ChaCha8Rng,
) -> Vec<Planned> {
    let mut planned = Vec::new();
    let given = if are_given { graph.edges.len() } else { 0 };
    let mut links: Vec<usize> = (0..given).collect();
    let mut at = from;
    while at + EVERY <= until {
        let kind = rng.random_range(0..12);
        let relay = rng.random_range(0..graph.names.len());
        // A link that fails again and again is left alone on purpose.
        let mut link = || {
            let at = (!links.is_empty()).then(|| rng.random_range(0..links.len()));
            at.map(|at| links.swap_remove(at))
        };
        let fault = match kind {
            0 => link().map_or(Fault::Relay(relay), Fault::Link),
            1..=2 => Fault::LinkOfTree,
            3 => Fault::Relay(relay),
            4 => Fault::RelayOfTree,
            5 => Fault::Controller,
            6 => Fault::Channels(1 + relay % 4),
            7 => Fault::Loss,
            8 => Fault::Reordering,
            9..=10 => Fault::StormOfTree,
            _ => link().map_or(Fault::Controller, Fault::Storm),
        };
        let is_of_channels = matches!(fault, Fault::Channels(_));
        let more = if is_of_channels { CHANNELS } else { 0 };
        let lasts = more + rng.random_range(1_000..3_500);
        let from = Time::from_millis(at + rng.random_range(0..500));
        planned.push(Planned { fault, from, until: from + Duration::from_millis(lasts) });
        // A controller that starts waits for its relays before it gives one up.
        let is_long = is_of_channels || matches!(fault, Fault::Storm(_) | Fault::StormOfTree);
        at += if is_long { EVERY * 2 } else { EVERY };
    }
    planned
}
