//! What came of a run of many relays.

use super::world::World;
use crate::network::NetworkCounts;
use crate::report::RelayTotals;
use canopy_relay::{Counters, Mode};
use canopy_wire::DropReason;
use serde::Serialize;

/// The result of a run of many relays. The same configuration gives the same report.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct OverlayReport {
    /// The seed.
    pub seed: u64,
    /// Relays.
    pub relays: u64,
    /// Data threads of all relays together.
    pub threads: u64,
    /// Links between relays.
    pub links: u64,
    /// How each comtree's relays hang together, its core, and how many relays carry it.
    pub comtrees: Vec<String>,
    /// When the relays send: `immediate`, or `periodic` with its tick.
    pub mode: String,
    /// What the network was like; `clean` is where nothing may be excused.
    pub weather: String,
    /// Participants.
    pub participants: u64,
    /// Length of the run until everyone left.
    pub virtual_seconds: u64,
    /// How long participants' applications ran, all together, in seconds.
    pub client_seconds: f64,
    /// Updates that were published, to groups and to participants.
    pub updates_published: u64,
    /// Those to participants.
    pub unicasts: u64,
    /// Pairs of update and participant that had to come about, and did or are missing.
    pub deliveries_expected: u64,
    /// Pairs that did not come about because of a fault on their way.
    pub deliveries_excused: u64,
    /// Pairs that did not come about because a link was shaped below what it was to carry, or a path bore no more.
    pub thinned: u64,
    /// Pairs that did not come about, and whose receiver left or wanted less meanwhile.
    pub deliveries_unsettled: u64,
    /// Pairs that came about, among them those that only might.
    pub deliveries: u64,
    /// Pairs that had to come about and did not.
    pub missing: u64,
    /// Updates that came again.
    pub duplicates: u64,
    /// Updates that came to someone to whom they must not.
    pub unexpected: u64,
    /// Updates that came after a later one of the same publisher, on a path that keeps the order.
    pub out_of_order: u64,
    /// Participants that were not connected, or had no answer, long after all was well.
    pub stuck: u64,
    /// Breaches of what must always hold.
    pub broken_invariants: u64,
    /// Updates, and answers to who asks for a way, that relays let go because their hops had run out.
    pub died_of_hop_limit: u64,
    /// Whether that says that the branches of a comtree form a circle: no way is so long.
    pub runs_in_a_circle: bool,
    /// How often a participant left a relay in order, the end of the run included.
    pub leaves: u32,
    /// How often one vanished without a word, the end of the run included.
    pub crashes: u32,
    /// How often a relay was restarted.
    pub relay_restarts: u32,
    /// How often a link was cut.
    pub link_cuts: u32,
    /// How often a relay's parent was succeeded by another, as planned.
    pub parents_succeeded: u32,
    /// How often a relay joined a comtree's core while the world ran.
    pub joined_core: u32,
    /// How often one left it.
    pub left_core: u32,
    /// How often one joined a core that was a mesh, of these.
    pub joined_mesh: u32,
    /// How often one left such a core, of those.
    pub left_mesh: u32,
    /// How often a neighbour of a comtree's root became the root in its place.
    pub root_steps: u32,
    /// How often a relay found a link down although nothing had been cut or restarted: four signs of
    /// life in a row were lost.
    pub links_lost: u32,
    /// The most subscriptions that a relay held.
    pub most_subscriptions: u32,
    /// The most groups that a relay held.
    pub most_groups: u32,
    /// The most routes that a relay held.
    pub most_routes: u32,
    /// Datagrams of those who flood.
    pub flooded: u64,
    /// Updates of theirs that passed links.
    pub flooded_over_links: u64,
    /// Whether the run went on until everything had to have expired.
    pub checked_expiry: bool,
    /// What the network did.
    pub network: NetworkCounts,
    /// What the relays counted, all together.
    pub relay: RelayTotals,
    /// How often a side of a participant's session went on with its next key.
    pub keys_changed: u64,
    /// How often a side of a link did.
    pub link_keys_changed: u64,
    /// A hash over all datagrams that arrived: when, from, to, bytes; 16 hexadecimal digits.
    pub trace_hash: String,
    /// The first things that are wrong, in words.
    pub findings: Vec<String>,
    /// The command that does this run again.
    pub replay: String,
}

impl OverlayReport {
    pub(super) fn new(world: &World<'_>, counters: &Counters, trace_hash: String) -> OverlayReport {
        let (scenario, tally, tallies) = (&world.scenario, world.model.tally(), &world.tallies);
        let [keys_changed, link_keys_changed] = world.keys.changed(scenario.participants);
        let died_of_hop_limit = counters.dropped(DropReason::HopLimit);
        let mut findings = tally.findings.clone();
        if died_of_hop_limit > 0 {
            findings.push(format!(
                "{died_of_hop_limit} updates died of their hop limit: the branches of a comtree form \
                 a circle"
            ));
        }
        let comtrees = scenario.trees.iter().map(|tree| {
            let (shape, core) = (tree.shape, tree.core);
            format!("{shape:?} of {} relays, core {core:?}", tree.relays().count()).to_lowercase()
        });
        OverlayReport {
            seed: world.config.seed,
            relays: scenario.threads.len() as u64,
            threads: scenario.threads.iter().map(|threads| u64::from(*threads)).sum(),
            links: scenario.links.ends().len() as u64,
            comtrees: comtrees.collect(),
            mode: mode_in_words(scenario.mode),
            weather: match scenario.faults.is_empty() {
                true => format!("{:?}", scenario.weather).to_lowercase(),
                false => format!("{:?}, breaking", scenario.weather).to_lowercase(),
            },
            participants: scenario.participants as u64,
            virtual_seconds: scenario.seconds(),
            client_seconds: tallies.client_time.as_secs_f64(),
            updates_published: tally.published,
            unicasts: tally.unicasts,
            deliveries_expected: tally.expected,
            deliveries_excused: tally.excused,
            thinned: tally.thinned,
            deliveries_unsettled: tally.unsettled,
            deliveries: tally.deliveries,
            missing: tally.missing,
            duplicates: tally.duplicates,
            unexpected: tally.unexpected,
            out_of_order: tally.out_of_order,
            stuck: tally.stuck,
            broken_invariants: tally.broken,
            died_of_hop_limit,
            runs_in_a_circle: died_of_hop_limit > 0,
            leaves: tallies.moves,
            crashes: tallies.crashes,
            relay_restarts: tallies.relay_restarts,
            link_cuts: tallies.link_cuts,
            parents_succeeded: tallies.parents_succeeded,
            joined_core: tallies.joined_core,
            left_core: tallies.left_core,
            joined_mesh: tallies.joined_mesh,
            left_mesh: tallies.left_mesh,
            root_steps: tallies.root_steps,
            links_lost: tally.links_lost,
            most_subscriptions: tallies.peak.subscriptions,
            most_groups: tallies.peak.groups,
            most_routes: tallies.peak.routes,
            flooded: tallies.flooded,
            flooded_over_links: tallies.flooded_over_links,
            checked_expiry: scenario.expires,
            network: world.network.counts().clone(),
            relay: RelayTotals::new(counters),
            keys_changed,
            link_keys_changed,
            trace_hash,
            findings,
            replay: world.config.replay(),
        }
    }

    /// Whether the run was as it must be.
    ///
    /// # Errors
    /// What was wrong, ending with the command that replays it.
    pub fn verdict(&self) -> Result<(), String> {
        let counts = [
            (self.missing, "missing"),
            (self.duplicates, "duplicate"),
            (self.unexpected, "unexpected"),
            (self.out_of_order, "out of order"),
            (self.stuck, "stuck"),
            (self.broken_invariants, "broken invariants"),
            (self.runs_in_a_circle.into(), "comtrees with a circle"),
        ];
        let wrong = counts.iter().filter(|(count, _)| *count > 0);
        let wrong: Vec<_> = wrong.map(|(count, what)| format!("{count} {what}")).collect();
        if wrong.is_empty() {
            return Ok(());
        }
        let findings: String = self.findings.iter().map(|what| format!("\n  {what}")).collect();
        let (relays, seed) = (self.relays, self.seed);
        let wrong = wrong.join(", ");
        Err(format!("{relays} relays, seed {seed}: {wrong}{findings}\nreplay: {}", self.replay))
    }
}

fn mode_in_words(mode: Mode) -> String {
    match mode {
        Mode::Immediate => "immediate".into(),
        Mode::Periodic { tick } => format!("periodic {} ms", tick.as_millis()),
    }
}
