//! Participants that mark a part of what they say as important: that goes before all that is not.

use super::config::OverlayConfig;
use crate::scenario::{Stream, stream};
use rand::RngExt;
use rand_chacha::ChaCha8Rng;

/// Who marks anything marks this part of it.
const PART: f64 = 0.15;
/// How many of all participants do, about.
const WHO: f64 = 0.4;

/// Whether anything is marked: in half of the runs in which something may be left out.
pub(crate) fn is_drawn(config: &OverlayConfig, is_thinned: bool) -> bool {
    let is_drawn = stream(config.seed, Stream::Important).random_bool(0.5);
    let is_free = config.sabotage.is_none();
    is_thinned && config.important.unwrap_or(is_drawn && is_free)
}

/// Which part of what it says each participant marks. One of them marks something at least.
pub(crate) fn draw(seed: u64, participants: usize) -> Vec<f64> {
    let rng = &mut stream(seed, Stream::Important);
    // Those before tell whether there are any.
    rng.set_word_pos(1 << 20);
    let first = rng.random_range(0..participants);
    let who = (0..participants).map(|number| rng.random_bool(WHO) || number == first);
    who.map(|marks| if marks { PART } else { 0.0 }).collect()
}

/// What says of each update whether it is marked.
pub(crate) fn marks(seed: u64) -> ChaCha8Rng {
    let mut rng = stream(seed, Stream::Important);
    rng.set_word_pos(1 << 21);
    rng
}
