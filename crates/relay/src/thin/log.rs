//! The updates that wait for a limited receiver: each is kept once, whoever waits for it, until newer
//! ones of its comtree need the room.
//!
//! The room is dealt out in blocks. A comtree keeps its blocks in the order in which it filled them, and where
//! it may have no more, its newest updates go into the oldest block.

use super::flows::FLOW_ENDS;
use crate::index::{ComtreeIndex, LogNumber, NONE, PortIndex};
use crate::pending::{Pending, Waiting};
use crate::shares::Shares;
use canopy_wire::{Address, Level, Time};
use core::time::Duration;
use std::collections::VecDeque;

/// The most updates, and bytes of them, that are kept.
const MAX_RECORDS: usize = 1 << 15;
const MAX_BYTES: usize = 4 << 20;
const BLOCKS: usize = 1 << 10;
const RECORDS_OF_BLOCK: usize = MAX_RECORDS / BLOCKS;
const BYTES_OF_BLOCK: usize = MAX_BYTES / BLOCKS;
/// A number has the entry's place below how many were kept before.
const PLACE_BITS: u32 = MAX_RECORDS.trailing_zeros();
/// Updates are kept no longer, which is longer than any floor. A flow that pauses is remembered for longer, so that
/// nothing older comes after what it says then.
const MOST_AGE: Duration = Duration::from_secs(80);
const _: () = assert!(MOST_AGE.as_secs() < FLOW_ENDS.as_secs());

struct Entry {
    number: LogNumber,
    /// Grows from update to update, in the order in which they came. Numbers do not: rows are told of a flush's
    /// updates group by group, and one after the other.
    order: u64,
    waiting: Waiting,
    start: u32,
}

/// A part of the room.
#[derive(Clone, Copy, Default)]
struct Block {
    records: u16,
    bytes: u16,
    /// When the newest came.
    newest: Time,
}

/// Blocks of updates. Their memory is taken when the first is kept.
pub(crate) struct Log {
    entries: Vec<Option<Entry>>,
    bytes: Vec<u8>,
    blocks: Vec<Block>,
    free: Vec<u16>,
    /// By comtree: its blocks, the newest last.
    of_comtrees: Vec<VecDeque<u16>>,
    /// How comtrees share the blocks.
    room: Shares,
    /// How many updates were ever kept.
    kept: u64,
    /// By port: what came from there before this number came from somebody else.
    closed: Vec<LogNumber>,
}

impl Log {
    pub(crate) fn new() -> Log {
        Log {
            entries: Vec::new(),
            bytes: Vec::new(),
            blocks: Vec::new(),
            free: Vec::new(),
            of_comtrees: Vec::new(),
            room: Shares::new(BLOCKS as u32),
            kept: 0,
            closed: Vec::new(),
        }
    }

    /// This many comtrees share the room from now on.
    pub(crate) fn deal(&mut self, comtrees: u32) {
        self.room.deal(comtrees);
    }

    /// Keeps an update of a comtree; `order` grows from update to update as they come. Returns its number.
    pub(crate) fn push(
        &mut self,
        now: Time,
        (comtree, order): (ComtreeIndex, u64),
        waiting: &Waiting,
        payload: &[u8],
    ) -> LogNumber {
        let number = self.block_for(comtree, payload.len());
        let block = &mut self.blocks[number];
        let start = number * BYTES_OF_BLOCK + usize::from(block.bytes);
        let place = number * RECORDS_OF_BLOCK + usize::from(block.records);
        block.records += 1;
        block.bytes += payload.len() as u16;
        block.newest = now;
        self.bytes[start..start + payload.len()].copy_from_slice(payload);
        let number = self.next() | place as u64;
        self.entries[place] = Some(Entry { number, order, waiting: *waiting, start: start as u32 });
        self.kept += 1;
        number
    }

    /// The comtree's block with room for an update.
    fn block_for(&mut self, comtree: ComtreeIndex, len: usize) -> usize {
        let index = comtree as usize;
        if index >= self.of_comtrees.len() {
            self.of_comtrees.resize(index + 1, VecDeque::new());
        }
        if let Some(newest) = self.of_comtrees[index].back() {
            let Block { records, bytes, .. } = self.blocks[usize::from(*newest)];
            let has_room = usize::from(records) < RECORDS_OF_BLOCK
                && usize::from(bytes) + len <= BYTES_OF_BLOCK;
            if has_room {
                return usize::from(*newest);
            }
        }
        let block = self.open_block(comtree);
        self.of_comtrees[index].push_back(block);
        usize::from(block)
    }

    /// An empty block: a free one, or the comtree's oldest. Who has less than its part while others have more than
    /// theirs, as comtrees were fewer before, gets the oldest of whoever has the most.
    fn open_block(&mut self, comtree: ComtreeIndex) -> u16 {
        if self.blocks.is_empty() {
            self.entries.resize_with(MAX_RECORDS, || None);
            self.bytes.resize(MAX_BYTES, 0);
            self.blocks.resize(BLOCKS, Block::default());
            self.free.extend((0..BLOCKS as u16).rev());
        }
        if self.room.has_room(comtree)
            && let Some(free) = self.free.pop()
        {
            self.room.take(comtree);
            return free;
        }
        let own = self.of_comtrees[comtree as usize].len();
        let is_poor = own == 0 || self.room.has_less_than_its_part(comtree);
        let most = (0..).zip(&self.of_comtrees).max_by_key(|(_, blocks)| blocks.len());
        let from = most.map_or(comtree, |(other, _)| if is_poor { other } else { comtree });
        let block = self.of_comtrees[from as usize].pop_front().unwrap_or_default();
        self.clear(block);
        self.room.give_back(from);
        self.room.take(comtree);
        block
    }

    /// Nothing of a block is kept any more.
    fn clear(&mut self, block: u16) {
        let block = usize::from(block);
        self.blocks[block] = Block::default();
        let first = block * RECORDS_OF_BLOCK;
        self.entries[first..first + RECORDS_OF_BLOCK].fill_with(|| None);
    }

    /// Gives the blocks back in which all is too old.
    pub(crate) fn sweep(&mut self, now: Time) {
        for comtree in 0..self.of_comtrees.len() {
            while let Some(oldest) = self.of_comtrees[comtree].front().copied()
                && now.since(self.blocks[usize::from(oldest)].newest) >= MOST_AGE
            {
                self.of_comtrees[comtree].pop_front();
                self.clear(oldest);
                self.free.push(oldest);
                self.room.give_back(comtree as ComtreeIndex);
            }
        }
    }

    /// Puts updates in the order in which they came; those that are kept no more are first.
    pub(crate) fn put_in_order(&self, updates: &mut [LogNumber]) {
        let order = |update: LogNumber| self.find(update).map(|entry| entry.order);
        updates.sort_unstable_by_key(|update| (order(*update), *update));
    }

    /// Appends an update to `pending`, as one of no target. Returns its number there; `None` if it is
    /// kept no more, or there is no room.
    pub(crate) fn take_back(&self, number: LogNumber, pending: &mut Pending) -> Option<u32> {
        let entry = self.find(number)?;
        let len = usize::from(entry.waiting.len);
        if !pending.has_room(len) {
            return None;
        }
        let start = entry.start as usize;
        let mut waiting = entry.waiting;
        waiting.origin = self.origin(number).unwrap_or(NONE);
        Some(pending.push_alone(waiting, &self.bytes[start..start + len]))
    }

    /// All updates that are kept from now on have this number, or greater ones.
    pub(crate) fn next(&self) -> LogNumber {
        self.kept << PLACE_BITS
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

    /// Whether an update is kept still.
    pub(crate) fn has(&self, number: LogNumber) -> bool {
        self.find(number).is_some()
    }

    fn find(&self, number: LogNumber) -> Option<&Entry> {
        let place = number as usize % MAX_RECORDS;
        self.entries.get(place)?.as_ref().filter(|entry| entry.number == number)
    }

    /// A port was closed: what came from it is nobody's own.
    pub(crate) fn forget(&mut self, port: PortIndex) {
        let port = port as usize;
        if self.kept == 0 {
            return;
        }
        if port >= self.closed.len() {
            self.closed.resize(port + 1, 0);
        }
        self.closed[port] = self.next();
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::index::NOTHING;
    use crate::pending::Update;
    use canopy_wire::{Comtree, Flags, Weight};

    const NOW: Time = Time::from_millis(1);

    pub(crate) fn update(series: u16, payload: &[u8]) -> Update<'_> {
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

    fn push(log: &mut Log, now: Time, comtree: ComtreeIndex, payload: &[u8]) -> LogNumber {
        log.push(now, (comtree, 0), &Waiting::new(NONE, &update(0, payload)), payload)
    }

    #[test]
    fn the_newest_are_kept_whole_and_the_oldest_go() {
        let (mut log, mut pending) = (Log::new(), Pending::new(4));
        log.deal(1);
        let mut numbers = Vec::new();
        for round in 0..3 * MAX_RECORDS {
            let payload = [round as u8; 700];
            let update = update(round as u16, &payload[..round % 700]);
            let number = log.push(NOW, (0, 0), &Waiting::new(NONE, &update), update.payload);
            let taken = log.take_back(number, &mut pending).unwrap();
            assert_eq!(pending.payload(taken), update.payload);
            assert_eq!(pending.records[taken as usize].series, round as u16);
            pending.clear();
            numbers.push(number);
        }
        assert!(numbers.is_sorted() && log.next() > *numbers.last().unwrap());
        let back = |count: usize| log.has(numbers[numbers.len() - count]);
        assert!(back(1) && back(10_000) && !back(MAX_RECORDS));
        assert!(!log.has(log.next()) && !log.has(NOTHING));
    }

    #[test]
    fn what_one_comtree_says_takes_nothing_of_what_waits_on_another() {
        let mut log = Log::new();
        log.deal(1);
        let flood = |log: &mut Log| {
            for _ in 0..2 * MAX_RECORDS {
                push(log, NOW, 0, &[7; 100]);
            }
        };
        flood(&mut log);
        // Another one comes, while the first has all the room.
        log.deal(2);
        let quiet: Vec<LogNumber> = (0..4_000).map(|_| push(&mut log, NOW, 1, &[9; 100])).collect();
        flood(&mut log);
        assert!(quiet.iter().all(|number| log.has(*number)));
        // It has a part of its own, and no more than that while the other one has all the rest.
        let part = MAX_RECORDS / 4;
        let more: Vec<LogNumber> = (0..part).map(|_| push(&mut log, NOW, 1, &[9; 100])).collect();
        assert!(!log.has(quiet[0]) && more[40..].iter().all(|number| log.has(*number)));
    }

    #[test]
    fn room_comes_back_from_who_says_nothing_any_more() {
        let mut log = Log::new();
        log.deal(2);
        let old = push(&mut log, NOW, 0, b"old");
        for _ in 0..2 * MAX_RECORDS {
            push(&mut log, NOW, 0, &[7; 100]);
        }
        assert!(!log.has(old));
        let last = push(&mut log, NOW + Duration::from_secs(1), 0, b"last");
        log.sweep(NOW + MOST_AGE);
        assert!(log.has(last), "its block is not so old");
        log.sweep(NOW + Duration::from_secs(1) + MOST_AGE);
        assert_eq!((log.has(last), log.room.total(), log.free.len()), (false, 0, BLOCKS));
    }

    #[test]
    fn what_came_from_a_port_that_was_closed_is_nobodys_own() {
        let (mut log, mut pending) = (Log::new(), Pending::new(4));
        let before = log.push(NOW, (0, 0), &Waiting::new(2, &update(0, b"before")), b"before");
        log.forget(2);
        let after = log.push(NOW, (1, 0), &Waiting::new(2, &update(1, b"after")), b"after");
        let origin = |pending: &mut Pending, number| {
            let taken = log.take_back(number, pending).unwrap();
            pending.records[taken as usize].origin
        };
        assert_eq!(origin(&mut pending, before), NONE);
        assert_eq!(origin(&mut pending, after), 2);
    }
}
