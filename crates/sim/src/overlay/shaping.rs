//! Links that are shaped for a while below what they are to carry: which ones, and how far.

use super::config::OverlayConfig;
use crate::network::Direction;
use crate::scenario::{Stream, stream};
use canopy_relay::Down;
use canopy_wire::Time;
use rand::RngExt;
use std::time::Duration;

/// The least length of a run with shaped links: there is room for all that waits to be sent, and for what
/// comes after it to be judged as without.
pub const SHAPED_SECONDS: u32 = 28;
/// Links are shaped from here until so long before all is well.
const FROM: Time = Time::from_millis(3000);
const BEFORE_CALM: Duration = Duration::from_secs(5);
/// In which time every flow is to get an update through: the relay's own floor.
pub(crate) const FLOOR: Duration = Duration::from_secs(2);
/// How much longer that takes on links that bear less.
const LONGER: std::ops::Range<u32> = 10..20;
/// What relays' signs of life take of a link, bits a second: one has 62 bytes, and leaves every 37 ms at most. A link bears
/// them beside what all flows need.
const HELLO_BITS: u64 = 14_000;

/// One direction of a link, shaped for a while.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shaped {
    pub(crate) link: usize,
    pub(crate) direction: Direction,
    pub(crate) capacity: Down,
    /// In which time it bears an update of every flow: no flow gets less, as far as there is room.
    pub(crate) floor: Duration,
    pub(crate) from: Time,
    pub(crate) until: Time,
}

impl Shaped {
    /// Whether it may keep back, or leave out, what was published then and is otherwise so long on its way.
    pub(crate) fn concerns(&self, published: Time, on_its_way: Duration) -> bool {
        (self.from - on_its_way..self.until + self.waits()).contains(&published)
    }

    /// How long an update waits for it at most.
    pub(crate) fn waits(&self) -> Duration {
        self.floor * 2
    }
}

/// Whether links are to be shaped. Then no roles change.
pub(crate) fn is_drawn(config: &OverlayConfig) -> bool {
    let is_drawn = stream(config.seed, Stream::Shaping).random_bool(0.2);
    let is_free =
        config.sabotage.is_none() && config.link_loss.is_none() && config.roles_change.is_none();
    let is_long = config.seconds >= SHAPED_SECONDS && config.relays > 1;
    is_long && config.shaping.unwrap_or(is_drawn && is_free)
}

/// What of a scenario decides how far its links are shaped.
pub(crate) struct Setting {
    /// Links between relays.
    pub(crate) links: usize,
    /// Pairs of publisher and group.
    pub(crate) flows: u64,
    /// Updates a second that go before all others, at most, and the longest payload.
    pub(crate) urgent: u64,
    pub(crate) longest: usize,
    pub(crate) calm_from: Time,
}

/// One or two directions of links between relays.
pub(crate) fn draw(seed: u64, setting: &Setting) -> Vec<Shaped> {
    let rng = &mut stream(seed, Stream::Shaping);
    // Those before tell whether there are any.
    rng.set_word_pos(1 << 20);
    let Setting { links, flows, urgent, longest, calm_from } = *setting;
    let update_bits = (longest as u64 + 40) * 8;
    let mut shaped: Vec<Shaped> = Vec::new();
    for _ in 0..rng.random_range(1..3) {
        // Some bear less than all flows need at their floor, and the others more.
        let (floor, times) = match rng.random_bool(0.3) {
            true => (FLOOR * rng.random_range(LONGER) / 10, 10),
            false => (FLOOR, rng.random_range(10..16)),
        };
        let least = flows * 1000 / floor.as_millis() as u64 + urgent + 4;
        let one = Shaped {
            link: rng.random_range(0..links),
            direction: if rng.random() { Direction::Up } else { Direction::Down },
            capacity: Down { bits: least * update_bits * times / 10 + HELLO_BITS, updates: 0 },
            floor,
            from: FROM,
            until: calm_from - BEFORE_CALM,
        };
        if shaped.iter().all(|other| (other.link, other.direction) != (one.link, one.direction)) {
            shaped.push(one);
        }
    }
    shaped
}
