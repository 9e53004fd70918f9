//! Updates that were accepted and wait for the next flush, grouped by what they were sent to.

use crate::cohorts::NONE;
use canopy_session::SlotIndex;
use canopy_wire::{Address, Comtree, Flags, Level};

/// The most payload bytes that can wait for a flush.
pub(crate) const MAX_PENDING_BYTES: usize = 4 << 20;
/// The most updates that can wait for a flush.
pub(crate) const MAX_PENDING_RECORDS: usize = 1 << 16;

/// One update that waits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Waiting {
    /// The session on this data thread that does not get it because it published it, or [`NONE`].
    pub(crate) publisher: SlotIndex,
    pub(crate) src: Address,
    pub(crate) dst: Address,
    pub(crate) flags: Flags,
    pub(crate) level: Level,
    pub(crate) len: u16,
    start: u32,
    next_of_target: u32,
    next_of_publisher: u32,
    /// Where it stands in the burst numbered `burst`.
    pub(crate) place: u32,
    pub(crate) burst: u32,
}

/// What updates are sent to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Audience {
    /// The subscribers of the group with this index.
    Group(u32),
    /// One session.
    Endpoint(SlotIndex),
    /// A session that has ended.
    Nobody,
}

/// A group or an endpoint that has updates waiting.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Target {
    pub(crate) audience: Audience,
    pub(crate) comtree: Comtree,
    pub(crate) lowest: Level,
    pub(crate) highest: Level,
    first: u32,
    last: u32,
}

/// The updates that wait for the next flush.
pub(crate) struct Pending {
    bytes: Vec<u8>,
    pub(crate) records: Vec<Waiting>,
    pub(crate) targets: Vec<Target>,
    /// By session: its newest waiting update.
    newest_of_publisher: Vec<u32>,
    /// By session: the target that stands for it as a receiver of unicast.
    target_of_endpoint: Vec<u32>,
}

impl Pending {
    pub(crate) fn new(max_sessions: u32) -> Pending {
        Pending {
            bytes: Vec::with_capacity(MAX_PENDING_BYTES),
            records: Vec::with_capacity(MAX_PENDING_RECORDS),
            targets: Vec::with_capacity(MAX_PENDING_RECORDS),
            newest_of_publisher: vec![NONE; max_sessions as usize],
            target_of_endpoint: vec![NONE; max_sessions as usize],
        }
    }

    /// Whether the next flush should not wait for its tick.
    pub(crate) fn is_half_full(&self) -> bool {
        self.bytes.len() > MAX_PENDING_BYTES / 2 || self.records.len() > MAX_PENDING_RECORDS / 2
    }

    pub(crate) fn has_room(&self, payload: &[u8]) -> bool {
        self.records.len() < MAX_PENDING_RECORDS
            && self.bytes.len() + payload.len() <= MAX_PENDING_BYTES
    }

    /// The target of a group, of which the table remembers the number, or a new one.
    pub(crate) fn target_of_group(
        &mut self,
        group: u32,
        remembered: &mut u32,
        comtree: Comtree,
    ) -> u32 {
        if *remembered == NONE {
            *remembered = self.open_target(Audience::Group(group), comtree);
        }
        *remembered
    }

    /// The target of a session as the receiver of unicast.
    pub(crate) fn target_of_endpoint(&mut self, slot: SlotIndex, comtree: Comtree) -> u32 {
        if self.target_of_endpoint[slot as usize] == NONE {
            let target = self.open_target(Audience::Endpoint(slot), comtree);
            self.target_of_endpoint[slot as usize] = target;
        }
        self.target_of_endpoint[slot as usize]
    }

    fn open_target(&mut self, audience: Audience, comtree: Comtree) -> u32 {
        let (lowest, highest) = (Level(u8::MAX), Level(0));
        self.targets.push(Target { audience, comtree, lowest, highest, first: NONE, last: NONE });
        self.targets.len() as u32 - 1
    }

    /// Appends an update to a target. There must be room.
    pub(crate) fn push(&mut self, target: u32, update: Waiting, payload: &[u8]) {
        let number = self.records.len() as u32;
        let mut update = Waiting { start: self.bytes.len() as u32, ..update };
        self.bytes.extend_from_slice(payload);
        if let Some(newest) = self.newest_of_publisher.get_mut(update.publisher as usize) {
            update.next_of_publisher = core::mem::replace(newest, number);
        }
        let target = &mut self.targets[target as usize];
        target.lowest = target.lowest.min(update.level);
        target.highest = target.highest.max(update.level);
        match target.last {
            NONE => target.first = number,
            last => self.records[last as usize].next_of_target = number,
        }
        target.last = number;
        self.records.push(update);
    }

    /// The numbers of a target's updates, in order of arrival.
    pub(crate) fn of_target(&self, target: u32) -> impl Iterator<Item = u32> + '_ {
        let first = self.targets[target as usize].first;
        successors(first, |number| self.records[number as usize].next_of_target)
    }

    /// The numbers of a publisher's updates, newest first.
    pub(crate) fn of_publisher(&self, publisher: SlotIndex) -> impl Iterator<Item = u32> + '_ {
        let newest = self.newest_of_publisher[publisher as usize];
        successors(newest, |number| self.records[number as usize].next_of_publisher)
    }

    pub(crate) fn payload(&self, number: u32) -> &[u8] {
        let record = &self.records[number as usize];
        &self.bytes[record.start as usize..][..record.len.into()]
    }

    /// A session ended: what waits for it goes to no one, and what it published is no one's own.
    /// Returns how many updates waited for it.
    pub(crate) fn forget(&mut self, slot: SlotIndex) -> u64 {
        let mut number = core::mem::replace(&mut self.newest_of_publisher[slot as usize], NONE);
        while number != NONE {
            let record = &mut self.records[number as usize];
            record.publisher = NONE;
            number = record.next_of_publisher;
        }
        let target = core::mem::replace(&mut self.target_of_endpoint[slot as usize], NONE);
        if target == NONE {
            return 0;
        }
        self.targets[target as usize].audience = Audience::Nobody;
        self.of_target(target).count() as u64
    }

    pub(crate) fn clear(&mut self) {
        for record in &self.records {
            if let Some(newest) = self.newest_of_publisher.get_mut(record.publisher as usize) {
                *newest = NONE;
            }
        }
        for target in &self.targets {
            if let Audience::Endpoint(slot) = target.audience {
                self.target_of_endpoint[slot as usize] = NONE;
            }
        }
        self.records.clear();
        self.targets.clear();
        self.bytes.clear();
    }
}

impl Waiting {
    pub(crate) fn new(
        publisher: SlotIndex,
        (src, dst): (Address, Address),
        flags: Flags,
        level: Level,
        payload: &[u8],
    ) -> Waiting {
        Waiting {
            publisher,
            src,
            dst,
            flags,
            level,
            len: payload.len() as u16,
            start: 0,
            next_of_target: NONE,
            next_of_publisher: NONE,
            place: 0,
            burst: NONE,
        }
    }
}

fn successors(first: u32, next: impl Fn(u32) -> u32) -> impl Iterator<Item = u32> {
    core::iter::successors((first != NONE).then_some(first), move |number| {
        let next = next(*number);
        (next != NONE).then_some(next)
    })
}
