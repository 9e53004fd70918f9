//! What waits for a flush. Each mode that comtrees have is a queue of its own, so that what is to leave at once does
//! not wait for a tick, and what is to leave at a tick not before it.

use crate::pending::{Pending, Waiting};
use crate::timing::Mode;
use canopy_wire::Time;
use core::time::Duration;

/// The most modes of a relay's comtrees, its own included.
pub const MAX_MODES: usize = 16;

/// A queue's place among those of a data thread.
pub(crate) type QueueIndex = usize;

/// The queue of the relay's own mode.
pub(crate) const OWN: QueueIndex = 0;

/// The updates that leave together.
pub(crate) struct FlushQueue {
    pub(crate) mode: Mode,
    pub(crate) pending: Pending,
    /// How many flushes there were.
    pub(crate) flushes: u64,
    flush_at: Option<Time>,
    /// The last tick that is over; at most one flush a tick.
    ticked: Time,
    /// How many comtrees have it.
    comtrees: u32,
}

/// The queues of a data thread.
pub(crate) struct FlushQueues {
    queues: Vec<FlushQueue>,
    max_ports: u32,
    /// The mode that waits the least of those in use: sockets are read by that.
    reading: Mode,
}

impl FlushQueue {
    fn new(mode: Mode, max_ports: u32) -> FlushQueue {
        FlushQueue {
            mode,
            pending: Pending::new(max_ports),
            flushes: 0,
            flush_at: None,
            ticked: Time::ZERO,
            comtrees: 0,
        }
    }

    /// Appends an update to a target. There must be room.
    pub(crate) fn push(&mut self, now: Time, target: u32, update: Waiting, payload: &[u8]) {
        self.pending.push(target, update, payload);
        self.flush_at.get_or_insert(match self.mode {
            Mode::Immediate => now,
            Mode::Periodic { tick } => self.ticked + tick,
        });
    }

    /// When what waits leaves, if anything does.
    pub(crate) fn due(&self) -> Option<Time> {
        self.flush_at
    }

    fn is_due(&self, now: Time) -> bool {
        self.flush_at.is_some_and(|at| at <= now) || self.pending.is_half_full()
    }

    /// All that waits leaves now.
    pub(crate) fn begin_flush(&mut self) {
        self.flush_at = None;
        self.flushes += 1;
    }
}

impl FlushQueues {
    /// The queue of a relay's own mode.
    pub(crate) fn new(mode: Mode, max_ports: u32) -> FlushQueues {
        FlushQueues { queues: vec![FlushQueue::new(mode, max_ports)], max_ports, reading: mode }
    }

    pub(crate) fn get(&self, index: QueueIndex) -> &FlushQueue {
        &self.queues[index]
    }

    pub(crate) fn get_mut(&mut self, index: QueueIndex) -> &mut FlushQueue {
        &mut self.queues[index]
    }

    /// The queue for another comtree, whose mode is the relay's unless it has one. `None` if there are as many modes
    /// as may be.
    pub(crate) fn enter(&mut self, mode: Option<Mode>) -> Option<QueueIndex> {
        let mode = mode.unwrap_or(self.queues[OWN].mode);
        let same = self.queues.iter().position(|queue| queue.mode == mode);
        let unused = || self.queues.iter().skip(1).position(|queue| queue.comtrees == 0);
        let index = match same.or_else(|| Some(1 + unused()?)) {
            Some(index) => index,
            None if self.queues.len() < MAX_MODES => {
                self.queues.push(FlushQueue::new(mode, self.max_ports));
                self.queues.len() - 1
            }
            None => return None,
        };
        let queue = &mut self.queues[index];
        if queue.mode != mode {
            // What waits there still is for nobody.
            (queue.mode, queue.ticked) = (mode, Time::ZERO);
            queue.flush_at = queue.flush_at.map(|_| Time::ZERO);
        }
        queue.comtrees += 1;
        self.choose_reading();
        Some(index)
    }

    /// A comtree has it no more.
    pub(crate) fn leave(&mut self, index: QueueIndex) {
        self.queues[index].comtrees -= 1;
        self.choose_reading();
    }

    fn choose_reading(&mut self) {
        let waits = |mode: &Mode| mode.tick().unwrap_or_default();
        self.reading = self.modes().min_by_key(waits).unwrap_or(self.queues[OWN].mode);
    }

    /// The modes that comtrees have.
    fn modes(&self) -> impl Iterator<Item = Mode> + '_ {
        self.queues.iter().filter(|queue| queue.comtrees > 0).map(|queue| queue.mode)
    }

    /// By which mode sockets are read: without comtrees by the relay's own.
    pub(crate) fn reading(&self) -> Mode {
        self.reading
    }

    /// The longest of what `of` says of the modes in use.
    pub(crate) fn longest(&self, of: impl Fn(Mode) -> Duration) -> Duration {
        self.modes().map(&of).max().unwrap_or_else(|| of(self.queues[OWN].mode))
    }

    /// When the next flush is.
    pub(crate) fn due(&self) -> Option<Time> {
        self.queues.iter().filter_map(FlushQueue::due).min()
    }

    pub(crate) fn is_any_due(&self, now: Time) -> bool {
        self.queues.iter().any(|queue| queue.is_due(now))
    }

    /// The queues that leave now.
    pub(crate) fn due_mut(&mut self, now: Time) -> impl Iterator<Item = &mut FlushQueue> {
        self.queues.iter_mut().filter(move |queue| queue.is_due(now))
    }

    /// Whether one of them must be flushed before more is read.
    pub(crate) fn is_any_half_full(&self) -> bool {
        self.queues.iter().any(|queue| queue.pending.is_half_full())
    }

    /// Takes note of the time.
    pub(crate) fn advance(&mut self, now: Time) {
        for queue in &mut self.queues {
            if let Mode::Periodic { tick } = queue.mode {
                queue.ticked = now.last_multiple(tick);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn every(millis: u64) -> Option<Mode> {
        Some(Mode::Periodic { tick: Duration::from_millis(millis) })
    }

    #[test]
    fn comtrees_of_one_mode_share_a_queue_and_sockets_are_read_for_the_least_that_waits() {
        let own = every(50).unwrap();
        let mut queues = FlushQueues::new(own, 8);
        assert_eq!(queues.reading(), own);
        let [slow, also, its] = [every(200), every(200), None].map(|mode| queues.enter(mode));
        assert_eq!((slow, also, its), (Some(1), Some(1), Some(OWN)));
        assert_eq!(queues.reading(), own);
        queues.leave(OWN);
        assert_eq!(Some(queues.reading()), every(200), "nobody has the relay's own");
        let at_once = queues.enter(Some(Mode::Immediate)).unwrap();
        assert_eq!(queues.reading(), Mode::Immediate);
        queues.leave(at_once);
        // Its queue is the next mode's.
        assert_eq!(queues.enter(every(10)), Some(at_once));
        assert_eq!(Some(queues.reading()), every(10));
    }

    #[test]
    fn there_are_only_so_many_modes() {
        let mut queues = FlushQueues::new(Mode::Immediate, 8);
        let most = MAX_MODES as u64 - 1;
        for millis in 1..=most {
            assert_eq!(queues.enter(every(millis)), Some(millis as usize));
        }
        assert_eq!(queues.enter(every(most + 1)), None);
        queues.leave(3);
        assert_eq!(queues.enter(every(most + 1)), Some(3));
        assert_eq!(queues.enter(every(3)), None);
    }
}
