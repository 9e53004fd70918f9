//! How the controller does its work, as far as that is a matter of choice.

use core::time::Duration;

/// How the controller does its work.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Settings {
    /// The share of a link's or an uplink's rate that can be reserved, 0 to 1.
    pub share: f64,
    /// A member that does not renew its lease has left after this.
    pub lease: Duration,
    /// How long the address of a member who has left is given to nobody else.
    pub rest: Duration,
    /// A relay that is silent for so long is given up, unless a neighbour hears it.
    pub silence: Duration,
    /// A relay that is silent for so long is given up if no neighbour hears it.
    pub suspicion: Duration,
    /// In which time the penalty for a link's failures halves.
    pub half_life: Duration,
    /// A better tree is taken only if it costs less by this share.
    pub least_gain: f64,
    /// A better tree is looked for once a comtree has kept the one that it has for so long, and then as often;
    /// never if it is 0.
    pub improve: Duration,
    /// How many links the controller proposes for a relay at most; none if it is 0.
    pub degree: usize,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            share: 0.9,
            lease: Duration::from_secs(60),
            rest: Duration::from_secs(30),
            silence: Duration::from_secs(2),
            suspicion: Duration::from_millis(600),
            half_life: Duration::from_secs(15),
            least_gain: 0.15,
            improve: Duration::from_secs(60),
            degree: 0,
        }
    }
}
