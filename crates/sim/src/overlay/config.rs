//! What a run of many relays is asked for; all the rest is drawn from the seed.

use crate::sabotage::Sabotage;
use std::fmt::Write;

/// Length of a run in virtual seconds, if nothing else is asked for.
const DEFAULT_SECONDS: u32 = 30;

/// The most relays of a run.
pub const MAX_RELAYS: u32 = 50;

/// What to simulate.
#[derive(Clone, Debug, PartialEq)]
pub struct OverlayConfig {
    /// Decides everything that is not fixed here.
    pub seed: u64,
    /// How many relays, from 1 to [`MAX_RELAYS`].
    pub relays: u32,
    /// How many participants; drawn from the seed if not given.
    pub participants: Option<u32>,
    /// Virtual seconds until everyone leaves. In the last part of them nothing is broken any more.
    pub seconds: u32,
    /// Whether to go on until everything has expired after everyone has left; drawn from the seed if
    /// not given.
    pub expiry: Option<bool>,
    /// Which part of what passes between relays vanishes, from 0 to 1, while nothing else is broken; drawn
    /// from the seed if not given.
    pub link_loss: Option<f64>,
    /// Whether relays join and leave the cores of comtrees, and roots walk over their trees; drawn from the
    /// seed if not given. If it is asked for, there are no other planned moves, nothing is broken, links between
    /// relays are slow, and much is published.
    pub roles_change: Option<bool>,
    /// Whether links between relays have a capacity for a while that is less than they are to carry; drawn from the
    /// seed if not given. Then no roles change, much is published of few groups, and at most 16 participants are drawn.
    /// There is none in runs of less than 28 seconds.
    pub shaping: Option<bool>,
    /// Whether some participants may be sent less than what they want; drawn from the seed if not given. Then much is
    /// published of few groups, and at most 16 participants are drawn.
    pub budgets: Option<bool>,
    /// Whether somebody sends one relay far more than it may for a while; drawn from the seed if not given.
    pub floods: Option<bool>,
    /// Whether some participants mark a part of what they say as important, where links are shaped or somebody has a
    /// budget; drawn from the seed if not given.
    pub important: Option<bool>,
    /// Whether lower levels go before higher ones at comtrees, where links are shaped or somebody has a budget; drawn
    /// from the seed if not given.
    pub levels_first: Option<bool>,
    /// A fault that the model is not told of: the proof that it can find one.
    pub sabotage: Option<OverlaySabotage>,
}

/// A fault that the model is not told of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OverlaySabotage {
    /// Between relays and participants.
    Access(Sabotage),
    /// Every n-th datagram between relays is not sent.
    DropOnLinks(u32),
    /// What relays seal for each other is counted from zero again with each key, and sealed with the first.
    CountAgain,
    /// The branches of the first comtree form a circle, if there are four relays at least.
    Cycle,
    /// Where a relay leaves a core, its neighbour takes it for a child without waiting for its word.
    HastyRoles,
    /// Where a relay joins a core, it is told before the neighbour that is to send it everything.
    RolesInReverse,
    /// Every n-th change of a relay's settings is not told to the relay.
    ForgottenRoles(u32),
    /// Relays that join a meshed core, or leave it, are core peers of others at once, and never next peers.
    PeersAtOnce,
    /// Relays are not told of the capacity of links that are shaped.
    Unshaped,
    /// Updates that relays leave out are not counted.
    ThinUncounted,
    /// They are counted twice.
    ThinCountedTwice,
    /// Relays are not told of participants' budgets.
    Unlimited,
    /// Who has a budget gets nothing of the first participant, which is said to be left out.
    Starve,
    /// What is important is not marked.
    Unmarked,
}

impl OverlaySabotage {
    /// Whether it is one of changes of roles, which are asked for then.
    pub(crate) fn is_of_roles(self) -> bool {
        use OverlaySabotage::{ForgottenRoles, HastyRoles, PeersAtOnce, RolesInReverse};
        matches!(self, HastyRoles | RolesInReverse | ForgottenRoles(_) | PeersAtOnce)
    }
}

impl OverlayConfig {
    /// A run of a seed as `canopy sim --relays N --seed S` does it.
    pub fn new(relays: u32, seed: u64) -> OverlayConfig {
        OverlayConfig {
            seed,
            relays: relays.clamp(1, MAX_RELAYS),
            participants: None,
            seconds: DEFAULT_SECONDS,
            expiry: None,
            link_loss: None,
            roles_change: None,
            shaping: None,
            budgets: None,
            floods: None,
            important: None,
            levels_first: None,
            sabotage: None,
        }
    }

    /// The one command that does this run again.
    pub fn replay(&self) -> String {
        let mut command = format!("canopy sim --relays {} --seed {}", self.relays, self.seed);
        if let Some(participants) = self.participants {
            let _ = write!(command, " --participants {participants}");
        }
        if self.seconds != DEFAULT_SECONDS {
            let _ = write!(command, " --seconds {}", self.seconds);
        }
        for (flag, given) in [
            ("shaping", self.shaping),
            ("budgets", self.budgets),
            ("floods", self.floods),
            ("important", self.important),
            ("levels-first", self.levels_first),
        ] {
            if let Some(given) = given {
                let _ = write!(command, " --{flag} {given}");
            }
        }
        command
    }
}
