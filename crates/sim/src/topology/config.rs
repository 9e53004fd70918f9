//! What a run on a graph is asked for; all the rest is drawn from the seed.

use super::load::Load;
use canopy_control::Core;
use std::fmt::Write;

/// Length of a run in virtual seconds, if nothing else is asked for.
const DEFAULT_SECONDS: u32 = 40;
/// And with a load that is drawn, which takes long to simulate.
const LOADED_SECONDS: u32 = 15;

/// What to simulate.
#[derive(Clone, Debug, PartialEq)]
pub struct TopologyConfig {
    /// The network's file, as the replay command names it.
    pub file: String,
    /// Decides everything that is not fixed here.
    pub seed: u64,
    /// How many participants; drawn from the seed if not given.
    pub participants: Option<u32>,
    /// How many links the controller proposes for a relay, from what relays measure; then it is given none. If it is
    /// 0, the links of the file are given, and no others are there.
    pub degree: usize,
    /// Virtual seconds until everyone leaves. In the last part of them nothing fails any more.
    pub seconds: u32,
    /// Whether the controller looks for better trees every few seconds; drawn from the seed if not given.
    pub improve: Option<bool>,
    /// Whether worlds are in periodic mode; drawn from the seed for each if not given.
    pub periodic: Option<bool>,
    /// Whether an operator moves worlds, removes links and drains relays meanwhile; drawn from the seed if not given.
    pub operator: Option<bool>,
    /// Which relays of worlds are their cores.
    pub core: Core,
    /// Everybody sends as much as its limits let through, and nothing fails.
    pub load: Option<Load>,
    /// What everybody sends is drawn from the seed, and how many they are, so that links get full.
    pub draws_load: bool,
    /// A fault that the model is not told of: the proof that it can find one.
    pub sabotage: Option<TopologySabotage>,
}

/// A fault that the model is not told of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TopologySabotage {
    /// Relays say that they have the branches of a comtree, but leave out the last one.
    DropBranch,
    /// Every n-th update is published twice.
    DoubleUpdate(u32),
    /// Somebody is let in of whom the model does not know.
    LeakReservation,
    /// What the controller tells relays takes three seconds once something has failed.
    LateRepair,
    /// No relay uses its standby parent.
    IgnoreStandbys,
    /// No relay asks for another way to the root, or answers.
    IgnoreSearches,
    /// No relay tells others of its links.
    KeepStatesBack,
    /// A relay that gets a link lets go of its branches over another one at once.
    HastyExchange,
    /// The operator has links removed at once, and trees change without a step between.
    HastyRemoval,
    /// While a world is on its way to another tree, relays are told nothing, so that it never gets there.
    StallMoves,
    /// With load: 60 % of everybody's limits are reserved.
    ReserveLess,
    /// Participants want more groups than there are in their world.
    WantMore,
    /// Relays keep branches that the controller takes away, as such of the core: with those of another tree they form
    /// circles.
    KeepBranches,
    /// Relays send each datagram over their links twice.
    SendTwice,
    /// Whoever has lost its relay does not ask the controller for another.
    StayLost,
}

impl TopologyConfig {
    /// A run of a seed as `canopy sim --topology FILE --seed S` does it.
    pub fn new(file: &str, seed: u64) -> TopologyConfig {
        TopologyConfig {
            file: file.to_owned(),
            seed,
            participants: None,
            degree: 0,
            seconds: DEFAULT_SECONDS,
            improve: None,
            periodic: None,
            operator: None,
            core: Core::Center,
            load: None,
            draws_load: false,
            sabotage: None,
        }
    }

    /// The same run, in which everybody sends as much as its limits let through, over links that get full.
    #[must_use]
    pub fn with_load(self) -> TopologyConfig {
        TopologyConfig { draws_load: true, seconds: LOADED_SECONDS, ..self }
    }

    /// The one command that does this run again.
    pub fn replay(&self) -> String {
        let mut command = format!("canopy sim --topology {} --seed {}", self.file, self.seed);
        if let Some(participants) = self.participants {
            let _ = write!(command, " --participants {participants}");
        }
        if self.degree > 0 {
            let _ = write!(command, " --degree {}", self.degree);
        }
        if self.seconds != DEFAULT_SECONDS {
            let _ = write!(command, " --seconds {}", self.seconds);
        }
        let switches =
            [("improve", self.improve), ("periodic", self.periodic), ("operator", self.operator)];
        for (name, is_on) in switches {
            let _ = is_on.map(|is_on| write!(command, " --{name} {is_on}"));
        }
        let core = match self.core {
            Core::Center => None,
            Core::CenterAndNeighbours => Some("center-and-neighbours"),
            Core::All => Some("all"),
            Core::Mesh => Some("mesh"),
        };
        let _ = core.map(|core| write!(command, " --core {core}"));
        if self.draws_load {
            command.push_str(" --load true");
        }
        if let Some(load) = self.load {
            let _ = write!(command, " # with {load:?}");
        }
        command
    }
}
