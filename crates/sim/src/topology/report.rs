//! What a run has shown.

use super::config::TopologyConfig;
use super::load::Load;
use super::model::Tally;
use serde::Serialize;

/// What happened beside updates.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Told {
    pub(crate) admitted: u32,
    pub(crate) refused: u32,
    pub(crate) refused_for_room: u32,
    pub(crate) left: u32,
    pub(crate) reshaped: u32,
    pub(crate) broken: u32,
    pub(crate) meshed: u32,
    pub(crate) relays_lost: u32,
    pub(crate) relays_found: u32,
    pub(crate) links_down: u32,
    pub(crate) links_added: u32,
    pub(crate) links_removed: u32,
    pub(crate) faults: u32,
    pub(crate) moved: u32,
    pub(crate) controllers: u32,
    pub(crate) detours: u32,
    pub(crate) alone: u32,
    pub(crate) improved: u32,
    pub(crate) worlds_moved: u32,
    pub(crate) links_leaving: u32,
    pub(crate) drained: u32,
    pub(crate) fullest: f64,
    pub(crate) dropped: u64,
    pub(crate) reserved: f64,
    pub(crate) full: u32,
    pub(crate) carrying: u32,
    pub(crate) of_reserved: f64,
}

/// What a run on a graph has shown.
#[derive(Clone, Debug, Serialize)]
pub struct TopologyReport {
    /// Which seed.
    pub seed: u64,
    /// Which file.
    pub topology: String,
    /// How many relays: the nodes.
    pub relays: usize,
    /// How many links, parallel ones taken together; where links are proposed, between how many relays there
    /// can be one.
    pub links: usize,
    /// In how many parts the network falls.
    pub components: usize,
    /// How many participants.
    pub participants: usize,
    /// How many worlds.
    pub worlds: usize,
    /// Virtual seconds.
    pub virtual_seconds: u32,
    /// Updates that were published.
    pub updates_published: u64,
    /// Deliveries that there had to be.
    pub deliveries_expected: u64,
    /// Deliveries that there were.
    pub deliveries: u64,
    /// Deliveries that there were not and did not have to be: somebody came or went, or a fault was in
    /// flight.
    pub deliveries_excused: u64,
    /// Deliveries that there were not although there had to be.
    pub missing: u64,
    /// Updates that somebody got twice and should not have.
    pub duplicates: u64,
    /// Updates that somebody got twice while a fault was in flight.
    pub duplicates_excused: u64,
    /// Updates that somebody got and should not have.
    pub unexpected: u64,
    /// Updates that came after a later one of the same publisher.
    pub out_of_order: u64,
    /// Updates that came later than they have to where nothing fails.
    pub late: u64,
    /// How often a member was admitted, or confirmed.
    pub admitted: u32,
    /// How often somebody was refused.
    pub refused: u32,
    /// How often that was so because a link or a relay had too little left.
    pub refused_for_room: u32,
    /// How often a membership ended.
    pub left: u32,
    /// How often a comtree got another tree.
    pub reshaped: u32,
    /// How often no tree could be had.
    pub broken: u32,
    /// How many links a meshed core had, at most.
    pub meshed: u32,
    /// How often the controller gave up a relay.
    pub relays_lost: u32,
    /// How often it found one, at the start and again.
    pub relays_found: u32,
    /// How often it heard of a link that is down.
    pub links_down: u32,
    /// How many links the controller has been given or has made.
    pub links_added: u32,
    /// How many of them it has taken away.
    pub links_removed: u32,
    /// How many faults there were.
    pub faults: u32,
    /// How often a participant turned to another relay.
    pub moved: u32,
    /// How many lives the controller had.
    pub controllers: u32,
    /// How often a relay used its standby parent, or found another way.
    pub detours: u32,
    /// How many links of trees failed with the controller, and had to be made up for without it.
    pub mended_alone: u32,
    /// The ticks of worlds in periodic mode, milliseconds; 0 for one that is in immediate mode.
    pub ticks_ms: Vec<u16>,
    /// How often a comtree came to a better tree that the controller had found.
    pub improved: u32,
    /// How many moves of worlds to other trees the operator has begun.
    pub worlds_moved: u32,
    /// How many links the operator had removed, on which a world ran.
    pub links_leaving: u32,
    /// How many relays the operator has drained for a while.
    pub drained: u32,
    /// What passed over a link each way in a second, at most, as a part of what it bears.
    pub fullest_link: f64,
    /// What relays dropped while everybody sent as much as its limits let through.
    pub dropped_within_limits: u64,
    /// What everybody sent, and within which limits, if it was as much as those let through; the other figures of links
    /// are of then.
    pub load: Option<String>,
    /// On how many links something was reserved, each way for itself.
    pub links_carrying: u32,
    /// How many of them had no room left for what one more member sends.
    pub links_full: u32,
    /// What was reserved on a link one way, at most, as a part of what may be.
    pub most_reserved: f64,
    /// What passed over a link one way in a second, at most, as a part of what may: what is reserved there, with what
    /// hellos, longer headers and ticks add.
    pub fullest_of_reserved: f64,
    /// A hash of all datagrams and messages in order.
    pub trace_hash: String,
    /// What was wrong.
    pub problems: Vec<String>,
    /// The command that does this run again.
    pub replay: String,
}

/// What a run took place in.
pub(crate) struct Scene {
    pub(crate) relays: usize,
    pub(crate) links: usize,
    pub(crate) components: usize,
    pub(crate) participants: usize,
    pub(crate) ticks_ms: Vec<u16>,
    pub(crate) load: Option<Load>,
}

impl TopologyReport {
    pub(crate) fn new(
        config: &TopologyConfig,
        scene: Scene,
        (tally, told): (Tally, Told),
        trace_hash: String,
        problems: Vec<String>,
    ) -> TopologyReport {
        TopologyReport {
            seed: config.seed,
            topology: config.file.clone(),
            relays: scene.relays,
            links: scene.links,
            components: scene.components,
            participants: scene.participants,
            worlds: scene.ticks_ms.len(),
            virtual_seconds: config.seconds,
            updates_published: tally.published,
            deliveries_expected: tally.expected,
            deliveries: tally.deliveries,
            deliveries_excused: tally.excused,
            missing: tally.missing,
            duplicates: tally.duplicates,
            duplicates_excused: tally.duplicates_excused,
            unexpected: tally.unexpected,
            out_of_order: tally.out_of_order,
            late: tally.late,
            admitted: told.admitted,
            refused: told.refused,
            refused_for_room: told.refused_for_room,
            left: told.left,
            reshaped: told.reshaped,
            broken: told.broken,
            meshed: told.meshed,
            relays_lost: told.relays_lost,
            relays_found: told.relays_found,
            links_down: told.links_down,
            links_added: told.links_added,
            links_removed: told.links_removed,
            faults: told.faults,
            moved: told.moved,
            controllers: told.controllers,
            detours: told.detours,
            mended_alone: told.alone,
            ticks_ms: scene.ticks_ms,
            improved: told.improved,
            worlds_moved: told.worlds_moved,
            links_leaving: told.links_leaving,
            drained: told.drained,
            fullest_link: told.fullest,
            dropped_within_limits: told.dropped,
            load: scene.load.map(|load| format!("{load:?}")),
            links_carrying: told.carrying,
            links_full: told.full,
            most_reserved: told.reserved,
            fullest_of_reserved: told.of_reserved,
            trace_hash,
            problems,
            replay: config.replay(),
        }
    }

    /// Whether all was as it had to be.
    ///
    /// # Errors
    /// What was wrong, and the command that shows it again.
    pub fn verdict(&self) -> Result<(), String> {
        match self.problems.is_empty() {
            true => Ok(()),
            false => Err(format!("{}\nreplay: {}", self.problems.join("\n"), self.replay)),
        }
    }
}
