//! What floods there are in a run, and how the relay is armed against them.

use crate::sabotage::Sabotage;
use canopy_relay::Budgets;
use canopy_wire::{Comtree, Time};
use rand::RngExt;
use rand_chacha::ChaCha8Rng;
use std::time::Duration;

/// The comtree of those who flood one of their own: its lane is nobody else's.
pub(crate) const FLOODED: Comtree = Comtree(5);
/// Whoever floods leaves so long after its flood, when its lane is read empty.
pub(crate) const LEAVES_AFTER: Duration = Duration::from_millis(700);
/// Datagrams that one turn reads at most, as long as not all lanes have a backlog.
const READ_AT_ONCE: u32 = 600;
/// What a relay takes for a datagram, so that the floods are more than it can handle.
const DATAGRAM_MICROS: std::ops::Range<u64> = 50..80;
/// The most updates of one publication, and of one that is not allowed besides.
const MOST_AT_ONCE: u64 = 34;

/// What a flood is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum What {
    /// Bundles of empty updates, some of which come back to their publisher, and forged ones.
    Updates,
    Subscriptions,
    /// They come from many ip:ports, as strangers.
    Hellos,
    /// It comes from strangers, who write what looks like the head of a packet before it.
    Garbage,
}

/// One flood.
#[derive(Clone, Debug)]
pub(crate) struct Flood {
    pub(crate) what: What,
    pub(crate) comtree: Comtree,
    pub(crate) from: Time,
    pub(crate) until: Time,
}

/// The floods of a run, and how the relay is armed.
#[derive(Clone, Debug)]
pub(crate) struct Floods {
    pub(crate) each: Vec<Flood>,
    /// What everybody may send: far more than those do who do no harm.
    pub(crate) budgets: Budgets,
    /// How long it takes to handle a datagram.
    pub(crate) per_datagram: Duration,
    /// Datagrams that each receive buffer holds.
    pub(crate) receive_queue: usize,
    /// Whether each comtree's part of the groups holds all that those want who do no harm, and all that is
    /// common less than who floods with subscriptions wants.
    pub(crate) leaves_room: bool,
}

/// What of a scenario decides its floods.
pub(crate) struct Setting {
    /// The fault of floods that is tried out.
    pub(crate) sabotage: Option<Sabotage>,
    /// Whether whoever floods is let in.
    pub(crate) lets_in: bool,
    /// From here on nobody floods.
    pub(crate) calm_from: Time,
    /// The least milliseconds between two publications of those who do no harm, and their longest payload.
    pub(crate) publish_ms: u64,
    pub(crate) longest: usize,
    /// How long what they send may be held back at most, and arrive at once, if turns are short.
    pub(crate) held_back: Duration,
}

impl Floods {
    pub(crate) fn draw(setting: &Setting, rng: &mut ChaCha8Rng) -> Floods {
        let count = rng.random_range(1..3);
        Floods {
            each: (0..count).map(|_| Flood::draw(setting, rng)).collect(),
            budgets: draw_budgets(setting, rng),
            per_datagram: Duration::from_micros(rng.random_range(DATAGRAM_MICROS)),
            receive_queue: rng.random_range(2048..4096),
            leaves_room: false,
        }
    }

    /// How much longer a turn takes at most.
    pub(crate) fn longest_turn(&self) -> Duration {
        self.per_datagram * READ_AT_ONCE
    }
}

impl Flood {
    fn draw(setting: &Setting, rng: &mut ChaCha8Rng) -> Flood {
        let Setting { sabotage, lets_in, calm_from, .. } = *setting;
        let drawn =
            [What::Updates, What::Updates, What::Subscriptions, What::Hellos, What::Garbage]
                [rng.random_range(0..5)];
        let shares = rng.random_bool(0.3);
        let what = match drawn {
            _ if sabotage == Some(Sabotage::OnePart) => What::Subscriptions,
            _ if sabotage.is_some() => What::Updates,
            What::Updates | What::Subscriptions if !lets_in => What::Hellos,
            _ => drawn,
        };
        let calm = calm_from.as_nanos() as f64;
        let from = Time::from_nanos((calm * rng.random_range(0.3..0.7)) as u64);
        let latest = calm_from - LEAVES_AFTER;
        let until = from + Duration::from_millis(rng.random_range(150..350));
        let comtree = if shares && sabotage.is_none() { Comtree(1) } else { FLOODED };
        Flood { what, comtree, from, until: until.min(latest) }
    }

    pub(crate) fn is_of_insider(&self) -> bool {
        matches!(self.what, What::Updates | What::Subscriptions)
    }
}

/// Nobody who does no harm comes near them, even where all that was sent while the network held it back
/// arrives at once, to somebody who has just joined and has an eighth of a second's worth.
fn draw_budgets(setting: &Setting, rng: &mut ChaCha8Rng) -> Budgets {
    let Setting { publish_ms, longest, held_back, .. } = *setting;
    let times = rng.random_range(1..4);
    let turns = Duration::from_micros(DATAGRAM_MICROS.end) * READ_AT_ONCE * 4;
    let held = (held_back + turns).as_millis() as u64;
    let publications = 2 + held / publish_ms;
    let updates = MOST_AT_ONCE * (publications * 8 + 1 + 1000 / publish_ms) * times;
    let mut budgets = Budgets::default();
    budgets.member.up_packets = updates;
    budgets.member.up_bits = updates * (longest as u64 + 100) * 8;
    budgets.subscription_changes = rng.random_range(1000..4000);
    budgets
}
