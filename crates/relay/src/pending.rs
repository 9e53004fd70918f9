//! Updates that were accepted and wait for the next flush, grouped by what they were sent to.

use crate::index::{ComtreeIndex, FlowId, LogNumber, NONE, NOTHING, PortIndex};
use canopy_wire::{Address, Comtree, Flags, Level, Weight};

/// The most payload bytes that can wait for a flush.
pub(crate) const MAX_PENDING_BYTES: usize = 4 << 20;
/// The most updates that can wait for a flush.
pub(crate) const MAX_PENDING_RECORDS: usize = 1 << 16;

/// An update that was accepted here or by another data thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Update<'a> {
    pub(crate) comtree: Comtree,
    pub(crate) src: Address,
    pub(crate) series: u16,
    pub(crate) dst: Address,
    pub(crate) flags: Flags,
    pub(crate) level: Level,
    pub(crate) weight: Weight,
    pub(crate) object: u16,
    /// How many relays it may pass from here on.
    pub(crate) hops: u8,
    /// Whether it came from a core peer, and so goes to no other.
    pub(crate) from_core_peer: bool,
    /// Whether relays that get it are asked for the way to its destination.
    pub(crate) asks_route: bool,
    pub(crate) payload: &'a [u8],
}

/// One update that waits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Waiting {
    /// The port that it came from, to which it does not go back; [`NONE`] if it may.
    pub(crate) origin: PortIndex,
    pub(crate) from_core_peer: bool,
    pub(crate) asks_route: bool,
    pub(crate) hops: u8,
    pub(crate) src: Address,
    pub(crate) dst: Address,
    pub(crate) series: u16,
    pub(crate) len: u16,
    pub(crate) flags: Flags,
    pub(crate) level: Level,
    pub(crate) weight: Weight,
    pub(crate) object: u16,
    /// The length of the head that its record has there.
    pub(crate) head_len: u8,
    /// For limited receivers: where it is kept, and its flow with its share of its group's weight, which
    /// is 0 until it is known, and its number in the flow.
    pub(crate) log: LogNumber,
    pub(crate) flow: (FlowId, f32, u32),
    start: u32,
    next_of_target: u32,
    next_of_origin: u32,
    /// Where it stands in the bytes of the burst numbered `burst`.
    pub(crate) at: u32,
    pub(crate) burst: u32,
}

/// What updates are sent to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Audience {
    /// The subscribers of the group with this index, and the neighbours that get everything.
    Group(u32),
    /// Neighbours that get everything, of a group that nobody else here wants.
    Tree,
    /// One port.
    Port(PortIndex),
    /// A port that was closed.
    Nobody,
}

/// A group or an endpoint that has updates waiting.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Target {
    pub(crate) audience: Audience,
    /// The comtree, if it is a group's.
    pub(crate) comtree: ComtreeIndex,
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
    /// By port: the newest waiting update that came from it.
    newest_of_origin: Vec<u32>,
    /// By port: the target that stands for it as a receiver of unicast.
    target_of_port: Vec<u32>,
}

impl Pending {
    pub(crate) fn new(max_ports: u32) -> Pending {
        Pending {
            bytes: Vec::with_capacity(MAX_PENDING_BYTES),
            records: Vec::with_capacity(MAX_PENDING_RECORDS),
            targets: Vec::with_capacity(MAX_PENDING_RECORDS),
            newest_of_origin: vec![NONE; max_ports as usize],
            target_of_port: vec![NONE; max_ports as usize],
        }
    }

    /// Whether the next flush must not wait, for its tick or for the rest of a receive batch: one
    /// publisher's flood would take the room of all others.
    pub(crate) fn is_half_full(&self) -> bool {
        self.bytes.len() > MAX_PENDING_BYTES / 2 || self.records.len() > MAX_PENDING_RECORDS / 2
    }

    pub(crate) fn has_room(&self, len: usize) -> bool {
        self.records.len() < MAX_PENDING_RECORDS && self.bytes.len() + len <= MAX_PENDING_BYTES
    }

    /// The target of a group on a comtree, of which the number is remembered elsewhere, or a new one.
    pub(crate) fn target_of_group(
        &mut self,
        (audience, comtree): (Audience, ComtreeIndex),
        remembered: &mut u32,
    ) -> u32 {
        if *remembered == NONE {
            *remembered = self.open_target(audience, comtree);
        }
        *remembered
    }

    /// The target of a port as the receiver of unicast.
    pub(crate) fn target_of_port(&mut self, port: PortIndex) -> u32 {
        if self.target_of_port[port as usize] == NONE {
            let target = self.open_target(Audience::Port(port), NONE);
            self.target_of_port[port as usize] = target;
        }
        self.target_of_port[port as usize]
    }

    fn open_target(&mut self, audience: Audience, comtree: ComtreeIndex) -> u32 {
        let (lowest, highest) = (Level(u8::MAX), Level(0));
        self.targets.push(Target { audience, comtree, lowest, highest, first: NONE, last: NONE });
        self.targets.len() as u32 - 1
    }

    /// Appends an update to a target. There must be room.
    pub(crate) fn push(&mut self, target: u32, update: Waiting, payload: &[u8]) {
        let number = self.records.len() as u32;
        let mut update = Waiting { start: self.bytes.len() as u32, ..update };
        self.bytes.extend_from_slice(payload);
        if let Some(newest) = self.newest_of_origin.get_mut(update.origin as usize) {
            update.next_of_origin = core::mem::replace(newest, number);
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

    /// Appends an update that no target has: whoever gets it is chosen already. There must be room.
    /// Returns its number.
    pub(crate) fn push_alone(&mut self, update: Waiting, payload: &[u8]) -> u32 {
        let number = self.records.len() as u32;
        let mut update = Waiting {
            start: self.bytes.len() as u32,
            next_of_target: NONE,
            next_of_origin: NONE,
            burst: NONE,
            ..update
        };
        self.bytes.extend_from_slice(payload);
        if let Some(newest) = self.newest_of_origin.get_mut(update.origin as usize) {
            update.next_of_origin = core::mem::replace(newest, number);
        }
        self.records.push(update);
        number
    }

    /// How much there is.
    pub(crate) fn mark(&self) -> (usize, usize) {
        (self.records.len(), self.bytes.len())
    }

    /// Takes out what was appended alone since there was so much.
    pub(crate) fn return_to(&mut self, (records, bytes): (usize, usize)) {
        while self.records.len() > records
            && let Some(record) = self.records.pop()
        {
            if let Some(newest) = self.newest_of_origin.get_mut(record.origin as usize) {
                *newest = record.next_of_origin;
            }
        }
        self.bytes.truncate(bytes);
    }

    /// The number of a target's first update.
    pub(crate) fn first_of(&self, target: u32) -> u32 {
        self.targets[target as usize].first
    }

    /// The number of the update behind another of the same target, or [`NONE`].
    pub(crate) fn next_of(&self, number: u32) -> u32 {
        self.records[number as usize].next_of_target
    }

    /// The numbers of a target's updates, in order of arrival.
    pub(crate) fn of_target(&self, target: u32) -> impl Iterator<Item = u32> + '_ {
        let first = self.targets[target as usize].first;
        successors(first, |number| self.records[number as usize].next_of_target)
    }

    /// The numbers of the updates that came from a port, newest first.
    pub(crate) fn of_origin(&self, origin: PortIndex) -> impl Iterator<Item = u32> + '_ {
        let newest = self.newest_of_origin[origin as usize];
        successors(newest, |number| self.records[number as usize].next_of_origin)
    }

    pub(crate) fn payload(&self, number: u32) -> &[u8] {
        let record = &self.records[number as usize];
        &self.bytes[record.start as usize..][..record.len.into()]
    }

    /// A port was closed: what waits for it goes to no one, and what came from it is no one's own.
    /// Returns how many updates waited for it.
    pub(crate) fn forget(&mut self, port: PortIndex) -> u64 {
        let mut number = core::mem::replace(&mut self.newest_of_origin[port as usize], NONE);
        while number != NONE {
            let record = &mut self.records[number as usize];
            record.origin = NONE;
            number = record.next_of_origin;
        }
        let target = core::mem::replace(&mut self.target_of_port[port as usize], NONE);
        if target == NONE {
            return 0;
        }
        self.targets[target as usize].audience = Audience::Nobody;
        self.of_target(target).count() as u64
    }

    /// What came from a port, and waits, goes from now on to another no more than what came from that one.
    pub(crate) fn hand_over(&mut self, from: PortIndex, to: PortIndex) {
        self.newest_of_origin[from as usize] = NONE;
        let mut newest = NONE;
        for (number, record) in (0..).zip(&mut self.records) {
            if record.origin == from || record.origin == to {
                record.origin = to;
                record.next_of_origin = core::mem::replace(&mut newest, number);
            }
        }
        self.newest_of_origin[to as usize] = newest;
    }

    /// A port is that of a core peer from now on: what came from it, and waits, goes to no other.
    pub(crate) fn came_from_core_peer(&mut self, port: PortIndex) {
        let mut number = self.newest_of_origin[port as usize];
        while number != NONE {
            let record = &mut self.records[number as usize];
            record.from_core_peer = true;
            number = record.next_of_origin;
        }
    }

    /// A comtree is no more: what waits for its groups and its tree goes to no one. Calls `group` with each of the
    /// groups.
    pub(crate) fn forget_comtree(&mut self, comtree: ComtreeIndex, mut group: impl FnMut(u32)) {
        for target in self.targets.iter_mut().filter(|target| target.comtree == comtree) {
            target.comtree = NONE;
            if let Audience::Group(of) = core::mem::replace(&mut target.audience, Audience::Nobody)
            {
                group(of);
            }
        }
    }

    pub(crate) fn clear(&mut self) {
        for record in &self.records {
            if let Some(newest) = self.newest_of_origin.get_mut(record.origin as usize) {
                *newest = NONE;
            }
        }
        for target in &self.targets {
            if let Audience::Port(port) = target.audience {
                self.target_of_port[port as usize] = NONE;
            }
        }
        self.records.clear();
        self.targets.clear();
        self.bytes.clear();
    }
}

impl Waiting {
    /// An update that came from `origin`, or from where it may go back to if that is [`NONE`].
    pub(crate) fn new(origin: PortIndex, update: &Update<'_>) -> Waiting {
        Waiting {
            origin,
            from_core_peer: update.from_core_peer,
            asks_route: update.asks_route,
            hops: update.hops,
            src: update.src,
            dst: update.dst,
            series: update.series,
            len: update.payload.len() as u16,
            flags: update.flags,
            level: update.level,
            weight: update.weight,
            object: update.object,
            head_len: 0,
            log: NOTHING,
            flow: (0, 0.0, 0),
            start: 0,
            next_of_target: NONE,
            next_of_origin: NONE,
            at: 0,
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
