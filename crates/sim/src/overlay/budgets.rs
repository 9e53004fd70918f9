//! Participants that may be sent less than what they want, and what they may be sent.

use super::config::OverlayConfig;
use crate::scenario::{Stream, stream};
use canopy_relay::{Budget, Budgets};
use rand::RngExt;
use std::time::Duration;

/// How long an update waits for such a participant at most: all that can wait is sent in less.
pub(crate) const WAITS: Duration = Duration::from_millis(4500);
/// In which time a budget holds an update of every flow.
const ALL_FLOWS: u64 = 2;
/// What carries an update, in bytes.
const OVERHEAD: u64 = 40;

/// What is said in a run.
pub(crate) struct Said {
    pub(crate) participants: usize,
    pub(crate) comtrees: usize,
    /// The groups that each of them publishes to.
    pub(crate) groups: u64,
    /// What goes first: for one participant's eyes, or important.
    pub(crate) urgent_a_second: u64,
    /// The longest update, bytes.
    pub(crate) longest: usize,
}

/// Whether some participants have budgets: where links are shaped in half of the runs, and otherwise in few, for runs
/// take longer in which much is said.
pub(crate) fn is_drawn(config: &OverlayConfig, is_shaped: bool) -> bool {
    let share = if is_shaped { 0.5 } else { 0.1 };
    let is_drawn = stream(config.seed, Stream::Budgets).random_bool(share);
    let is_free = config.sabotage.is_none() && config.roles_change != Some(true);
    config.budgets.unwrap_or(is_drawn && is_free)
}

/// Half of the participants may be sent either of two amounts, so that there are several of one mind. A budget holds an
/// update of each flow in [`ALL_FLOWS`] seconds, and besides what goes first.
pub(crate) fn draw(seed: u64, said: &Said) -> Vec<Option<Budget>> {
    let rng = &mut stream(seed, Stream::Budgets);
    // Those before tell whether there are any.
    rng.set_word_pos(1 << 20);
    let speakers = said.participants.div_ceil(said.comtrees) as u64;
    let each_second = speakers * said.groups / ALL_FLOWS + said.urgent_a_second + 1;
    let mut amount = || {
        let updates = each_second.max(4) * rng.random_range(10..20) / 10;
        let down_bits = updates * (said.longest as u64 + OVERHEAD) * 8;
        match rng.random_bool(0.7) {
            true => Budget { down_bits, ..Budgets::default().member },
            false => Budget { down_packets: updates, ..Budgets::default().member },
        }
    };
    let amounts = [amount(), amount()];
    let limited = |_| rng.random_bool(0.5).then(|| amounts[rng.random_range(0..2)]);
    (0..said.participants).map(limited).collect()
}
