//! What arrives in a round, and what that makes of it.

use super::traffic;
use std::time::Duration;

/// What one side did in one round.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Measured {
    pub(super) cpu: Duration,
    pub(super) wall: Duration,
    /// Copies that arrived within the measured time, and datagrams that they came in.
    pub(super) copies: u64,
    pub(super) datagrams: u64,
    /// Over the whole round.
    pub(super) expected: u64,
    pub(super) lost: u64,
    pub(super) doubled: u64,
}

impl Measured {
    /// Processor nanoseconds per copy.
    pub(super) fn ns_per_copy(&self) -> f64 {
        self.cpu.as_nanos() as f64 / self.copies.max(1) as f64
    }

    /// Copies a second, by the wall clock.
    pub(super) fn copies_per_s(&self) -> f64 {
        self.copies as f64 / self.wall.as_secs_f64()
    }

    pub(super) fn copies_per_datagram(&self) -> f64 {
        self.copies as f64 / self.datagrams.max(1) as f64
    }
}

/// What has arrived in a round.
#[derive(Default)]
pub(super) struct Arrivals {
    /// The first update of the round.
    pub(super) first: u64,
    pub(super) copies: u64,
    pub(super) datagrams: u64,
    pub(super) doubled: u64,
    /// By receiver: a bit for each update of the round.
    seen: Vec<Vec<u64>>,
}

impl Arrivals {
    pub(super) fn begin(&mut self, first: u64, receivers: usize) {
        let mut seen = std::mem::take(&mut self.seen);
        seen.resize(receivers, Vec::new());
        seen.iter_mut().for_each(Vec::clear);
        *self = Arrivals { first, seen, ..Arrivals::default() };
    }

    pub(super) fn hear(&mut self, receiver: usize, payload: &[u8]) {
        // What is late, of the round before, was counted as lost there.
        let Some(number) = traffic::sequence_of(payload).and_then(|n| n.checked_sub(self.first))
        else {
            return;
        };
        let (word, bit) = ((number / 64) as usize, number % 64);
        let seen = &mut self.seen[receiver];
        if word >= seen.len() {
            seen.resize(word + 1, 0);
        }
        if seen[word] >> bit & 1 == 1 {
            self.doubled += 1;
        } else {
            seen[word] |= 1 << bit;
            self.copies += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_copy_counts_once_and_none_of_the_round_before() {
        let mut arrivals = Arrivals::default();
        arrivals.begin(100, 2);
        for (receiver, number) in [(0, 100_u64), (1, 100), (0, 163), (0, 164), (0, 163), (1, 99)] {
            arrivals.hear(receiver, &number.to_be_bytes());
        }
        arrivals.hear(0, b"short");
        assert_eq!((arrivals.copies, arrivals.doubled), (4, 1));
    }
}
