//! The updates that wait for a limited receiver: each is kept once, whoever waits for it, until newer
//! ones need the room.

use crate::index::{LogNumber, NONE, PortIndex};
use crate::pending::{Pending, Waiting};
use canopy_wire::{Address, Level};

/// The most updates, and bytes of them, that are kept.
const MAX_RECORDS: usize = 1 << 15;
const MAX_BYTES: usize = 4 << 20;

struct Entry {
    waiting: Waiting,
    /// Where its bytes begin, counted from the first that were ever written.
    start: u64,
}

/// A ring of updates. Its memory is taken when the first is kept.
pub(crate) struct Log {
    entries: Vec<Entry>,
    bytes: Vec<u8>,
    /// The number of the next update.
    next: u64,
    /// Where its bytes will be.
    end: u64,
    /// By port: what came from there before this number came from somebody else.
    closed: Vec<u64>,
}

impl Log {
    pub(crate) fn new() -> Log {
        Log { entries: Vec::new(), bytes: Vec::new(), next: 0, end: 0, closed: Vec::new() }
    }

    /// Keeps an update. Returns its number.
    pub(crate) fn push(&mut self, waiting: &Waiting, payload: &[u8]) -> LogNumber {
        if self.bytes.is_empty() {
            self.bytes.resize(MAX_BYTES, 0);
            self.entries.reserve_exact(MAX_RECORDS);
        }
        // Its bytes are in one piece.
        let at = (self.end % MAX_BYTES as u64) as usize;
        if at + payload.len() > MAX_BYTES {
            self.end += (MAX_BYTES - at) as u64;
        }
        let start = self.end;
        let at = (start % MAX_BYTES as u64) as usize;
        self.bytes[at..at + payload.len()].copy_from_slice(payload);
        self.end += payload.len() as u64;
        let entry = Entry { waiting: *waiting, start };
        let place = (self.next % MAX_RECORDS as u64) as usize;
        match self.entries.get_mut(place) {
            Some(old) => *old = entry,
            None => self.entries.push(entry),
        }
        self.next += 1;
        self.next - 1
    }

    /// Appends an update to `pending`, as one of no target. Returns its number there; `None` if it is
    /// kept no more, or there is no room.
    pub(crate) fn take_back(&self, number: LogNumber, pending: &mut Pending) -> Option<u32> {
        let entry = self.find(number)?;
        let len = usize::from(entry.waiting.len);
        if !pending.has_room(len) {
            return None;
        }
        let start = (entry.start % MAX_BYTES as u64) as usize;
        let mut waiting = entry.waiting;
        waiting.origin = self.origin(number).unwrap_or(NONE);
        Some(pending.push_alone(waiting, &self.bytes[start..start + len]))
    }

    /// The number of the next update that is kept.
    pub(crate) fn next(&self) -> LogNumber {
        self.next
    }

    /// The port that an update came from, if it is kept still.
    pub(crate) fn origin(&self, number: LogNumber) -> Option<PortIndex> {
        let origin = self.find(number)?.waiting.origin;
        let is_closed = self.closed.get(origin as usize).is_some_and(|closed| number < *closed);
        (!is_closed && origin != NONE).then_some(origin)
    }

    /// What an update was sent to, and at which level, if it is kept still.
    pub(crate) fn destination(&self, number: LogNumber) -> Option<(Address, Level)> {
        self.find(number).map(|entry| (entry.waiting.dst, entry.waiting.level))
    }

    #[cfg(test)]
    pub(crate) fn has(&self, number: LogNumber) -> bool {
        self.find(number).is_some()
    }

    fn find(&self, number: LogNumber) -> Option<&Entry> {
        let entry = self.entries.get((number % MAX_RECORDS as u64) as usize)?;
        let is_kept = number < self.next
            && self.next - number <= MAX_RECORDS as u64
            && self.end - entry.start <= MAX_BYTES as u64;
        is_kept.then_some(entry)
    }

    /// A port was closed: what came from it is nobody's own.
    pub(crate) fn forget(&mut self, port: PortIndex) {
        let port = port as usize;
        if self.next == 0 {
            return;
        }
        if port >= self.closed.len() {
            self.closed.resize(port + 1, 0);
        }
        self.closed[port] = self.next;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::index::NOTHING;
    use crate::pending::Update;
    use canopy_wire::{Comtree, Flags, Weight};

    fn update(series: u16, payload: &[u8]) -> Update<'_> {
        Update {
            comtree: Comtree(1),
            src: Address(1),
            series,
            dst: Address(2),
            flags: Flags(0),
            level: Level(0),
            weight: Weight::ONE,
            object: 0,
            hops: 1,
            from_core_peer: false,
            asks_route: false,
            payload,
        }
    }

    #[test]
    fn the_newest_are_kept_whole_and_the_oldest_go() {
        let (mut log, mut pending) = (Log::new(), Pending::new(4));
        for round in 0..3 * MAX_RECORDS as u64 {
            let payload = [round as u8; 700];
            let update = update(round as u16, &payload[..(round % 700) as usize]);
            assert_eq!(log.push(&Waiting::new(NONE, &update), update.payload), round);
            let taken = log.take_back(round, &mut pending).unwrap();
            assert_eq!(pending.payload(taken), update.payload);
            assert_eq!(pending.records[taken as usize].series, round as u16);
            pending.clear();
        }
        let newest = 3 * MAX_RECORDS as u64 - 1;
        assert!(log.has(newest - 10_000) && !log.has(newest - MAX_RECORDS as u64));
        assert!(!log.has(newest + 1) && !log.has(NOTHING));
    }

    #[test]
    fn what_came_from_a_port_that_was_closed_is_nobodys_own() {
        let (mut log, mut pending) = (Log::new(), Pending::new(4));
        let before = log.push(&Waiting::new(2, &update(0, b"before")), b"before");
        log.forget(2);
        let after = log.push(&Waiting::new(2, &update(1, b"after")), b"after");
        let origin = |pending: &mut Pending, number| {
            let taken = log.take_back(number, pending).unwrap();
            pending.records[taken as usize].origin
        };
        assert_eq!(origin(&mut pending, before), NONE);
        assert_eq!(origin(&mut pending, after), 2);
    }
}
