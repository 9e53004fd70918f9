//! Subscription changes, hundreds to a packet, and their acknowledgement.
//!
//! A subscribe packet carries a sequence number and sections; a section says "add at this level"
//! or "drop", and lists groups of four bytes each.

use crate::{
    Address, Comtree, Group, HEADER_LEN, Header, Kind, Level, MAX_DATAGRAM, Packet, WireError,
};

/// Changes that fit one packet when they share an operation and a level.
pub const MAX_CHANGES: usize = (MAX_DATAGRAM - HEADER_LEN - SEQUENCE_LEN - SECTION_LEN) / 4;

const SEQUENCE_LEN: usize = 4;
const SECTION_LEN: usize = 4;
const DROP: u8 = 0;
const ADD: u8 = 1;

/// One change of a participant's subscriptions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Change {
    /// Subscribe to the group at the level; replaces the level of an earlier subscription.
    Add(Group, Level),
    /// Unsubscribe from the group.
    Drop(Group),
}

impl Change {
    /// The group that changes.
    pub const fn group(self) -> Group {
        match self {
            Change::Add(group, _) | Change::Drop(group) => group,
        }
    }

    const fn section(self) -> (u8, Level) {
        match self {
            Change::Add(_, level) => (ADD, level),
            Change::Drop(_) => (DROP, Level(0)),
        }
    }
}

/// The number of the subscribe packet after the one numbered `last`; 0 stands before the first
/// and is never used.
pub const fn next_sequence(last: u32) -> u32 {
    if last == u32::MAX { 1 } else { last + 1 }
}

/// A subscribe packet whose sections have been checked.
#[derive(Clone, Copy, Debug)]
pub struct Subscribe<'a> {
    sequence: u32,
    sections: &'a [u8],
}

impl<'a> Subscribe<'a> {
    /// Checks that the sections tile the payload.
    ///
    /// # Errors
    /// [`WireError::TooShort`], [`WireError::Length`], or [`WireError::Field`] for an unknown
    /// operation.
    pub fn new_checked(packet: &Packet<'a>) -> Result<Subscribe<'a>, WireError> {
        let payload = packet.payload();
        let (sequence, sections) = split_u32(payload).ok_or(WireError::TooShort {
            have: HEADER_LEN + payload.len(),
            need: HEADER_LEN + SEQUENCE_LEN,
        })?;
        let mut rest = sections;
        while !rest.is_empty() {
            let (operation, _, _, after) = split_section(rest).ok_or(WireError::Length)?;
            if operation > ADD {
                return Err(WireError::Field("operation"));
            }
            rest = after;
        }
        Ok(Subscribe { sequence, sections })
    }

    /// The packet's number in its session, counted from 1.
    pub fn sequence(&self) -> u32 {
        self.sequence
    }

    /// The changes, in order.
    pub fn changes(&self) -> impl Iterator<Item = Change> + use<'a> {
        let mut rest = self.sections;
        core::iter::from_fn(move || {
            let (operation, level, groups, after) = split_section(rest)?;
            rest = after;
            Some((operation, level, groups))
        })
        .flat_map(|(operation, level, groups)| {
            groups_of(groups).map(move |group| match operation {
                ADD => Change::Add(group, level),
                _ => Change::Drop(group),
            })
        })
    }
}

fn split_u32(bytes: &[u8]) -> Option<(u32, &[u8])> {
    let (head, rest) = bytes.split_first_chunk::<4>()?;
    Some((u32::from_be_bytes(*head), rest))
}

/// Splits off one section: operation, level, the bytes of its groups, what follows.
fn split_section(bytes: &[u8]) -> Option<(u8, Level, &[u8], &[u8])> {
    let (head, rest) = bytes.split_first_chunk::<SECTION_LEN>()?;
    let count = usize::from(u16::from_be_bytes([head[2], head[3]]));
    let (groups, rest) = rest.split_at_checked(count * 4)?;
    Some((head[0], Level(head[1]), groups, rest))
}

fn groups_of(bytes: &[u8]) -> impl Iterator<Item = Group> + use<'_> {
    bytes.chunks_exact(4).map(|g| Group::new(u32::from_be_bytes([g[0], g[1], g[2], g[3]])))
}

/// Writes a subscribe packet change by change into a buffer of the caller's.
#[derive(Debug)]
pub struct SubscribeWriter<'a> {
    out: &'a mut [u8],
    len: usize,
    section_at: usize,
    section: Option<(u8, Level)>,
    count: u16,
}

impl<'a> SubscribeWriter<'a> {
    /// A writer into `out`, of which at most [`MAX_DATAGRAM`] bytes are used.
    ///
    /// # Errors
    /// [`WireError::Length`] if `out` has no room for a packet without changes.
    pub fn new(out: &'a mut [u8], sequence: u32) -> Result<SubscribeWriter<'a>, WireError> {
        let room = out.len().min(MAX_DATAGRAM);
        let out = &mut out[..room];
        let len = HEADER_LEN + SEQUENCE_LEN;
        let place = out.get_mut(HEADER_LEN..len).ok_or(WireError::Length)?;
        place.copy_from_slice(&sequence.to_be_bytes());
        Ok(SubscribeWriter { out, len, section_at: len, section: None, count: 0 })
    }

    /// Adds a change. Returns whether it fitted. Changes of one operation and level that follow
    /// each other share a section.
    pub fn push(&mut self, change: Change) -> bool {
        let opens = self.section != Some(change.section());
        let start = self.len + if opens { SECTION_LEN } else { 0 };
        if start + 4 > self.out.len() {
            return false;
        }
        if opens {
            let (operation, level) = change.section();
            self.section_at = self.len;
            self.section = Some((operation, level));
            self.count = 0;
            self.out[self.len..self.len + 2].copy_from_slice(&[operation, level.0]);
        }
        self.out[start..start + 4].copy_from_slice(&change.group().number().to_be_bytes());
        self.len = start + 4;
        self.count += 1;
        let count_at = self.section_at + 2;
        self.out[count_at..count_at + 2].copy_from_slice(&self.count.to_be_bytes());
        true
    }

    /// Writes the base header and returns the packet's length.
    pub fn finish(self, comtree: Comtree, src: Address) -> usize {
        let header = Header::new(Kind::Subscribe, comtree, src, Address::UNSPECIFIED);
        self.out[..HEADER_LEN].copy_from_slice(&header.encode((self.len - HEADER_LEN) as u16));
        self.len
    }
}

/// Why groups were refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum TableFull {
    /// None was.
    No = 0,
    /// The relay's table of groups or subscriptions is full.
    Table = 1,
    /// The participant has as many subscriptions as one may have.
    Participant = 2,
}

/// The answer to a subscribe packet: its number, and the groups that were not subscribed.
#[derive(Clone, Copy, Debug)]
pub struct SubscribeAck<'a> {
    sequence: u32,
    reason: TableFull,
    groups: &'a [u8],
}

impl<'a> SubscribeAck<'a> {
    /// Checks the packet's body.
    ///
    /// # Errors
    /// [`WireError::TooShort`], [`WireError::Length`], [`WireError::Field`].
    pub fn new_checked(packet: &Packet<'a>) -> Result<SubscribeAck<'a>, WireError> {
        let payload = packet.payload();
        let need = HEADER_LEN + ACK_FIXED;
        let short = WireError::TooShort { have: HEADER_LEN + payload.len(), need };
        let (sequence, rest) = split_u32(payload).ok_or(short)?;
        let (head, groups) = rest.split_first_chunk::<4>().ok_or(short)?;
        let reason = match head[0] {
            0 => TableFull::No,
            1 => TableFull::Table,
            2 => TableFull::Participant,
            _ => return Err(WireError::Field("reason")),
        };
        let count = usize::from(u16::from_be_bytes([head[2], head[3]]));
        if groups.len() != count * 4 {
            return Err(WireError::Length);
        }
        Ok(SubscribeAck { sequence, reason, groups })
    }

    /// The number of the subscribe packet that was applied.
    pub fn sequence(&self) -> u32 {
        self.sequence
    }

    /// Why groups were refused, if any was.
    pub fn reason(&self) -> TableFull {
        self.reason
    }

    /// The groups that were refused.
    pub fn refused(&self) -> RefusedGroups<'a> {
        RefusedGroups(self.groups)
    }
}

/// The groups that a [`SubscribeAck`] refuses.
#[derive(Clone, Copy, Debug)]
pub struct RefusedGroups<'a>(&'a [u8]);

impl<'a> RefusedGroups<'a> {
    /// The groups, in order.
    pub fn iter(&self) -> impl Iterator<Item = Group> + use<'a> {
        groups_of(self.0)
    }

    /// Whether `group` is among them.
    pub fn contains(&self, group: Group) -> bool {
        self.iter().any(|refused| refused == group)
    }
}

const ACK_FIXED: usize = 8;

/// Writes a subscribe-ack into a buffer of the caller's.
#[derive(Debug)]
pub struct SubscribeAckWriter<'a> {
    out: &'a mut [u8],
    len: usize,
    reason: TableFull,
}

impl<'a> SubscribeAckWriter<'a> {
    /// A writer into `out`, of which at most [`MAX_DATAGRAM`] bytes are used.
    ///
    /// # Errors
    /// [`WireError::Length`] if `out` has no room for an ack without refusals.
    pub fn new(out: &'a mut [u8], sequence: u32) -> Result<SubscribeAckWriter<'a>, WireError> {
        let room = out.len().min(MAX_DATAGRAM);
        let out = &mut out[..room];
        let len = HEADER_LEN + ACK_FIXED;
        let place = out.get_mut(HEADER_LEN..HEADER_LEN + 4).ok_or(WireError::Length)?;
        place.copy_from_slice(&sequence.to_be_bytes());
        if out.len() < len {
            return Err(WireError::Length);
        }
        Ok(SubscribeAckWriter { out, len, reason: TableFull::No })
    }

    /// Adds a refused group. Returns whether it fitted.
    pub fn push(&mut self, group: Group, reason: TableFull) -> bool {
        let Some(slot) = self.out.get_mut(self.len..self.len + 4) else { return false };
        slot.copy_from_slice(&group.number().to_be_bytes());
        self.len += 4;
        self.reason = reason;
        true
    }

    /// Writes the headers and returns the packet's length.
    pub fn finish(self, comtree: Comtree, dst: Address) -> usize {
        let count = ((self.len - HEADER_LEN - ACK_FIXED) / 4) as u16;
        let fixed = &mut self.out[HEADER_LEN + 4..HEADER_LEN + ACK_FIXED];
        fixed[0] = self.reason as u8;
        fixed[1] = 0;
        fixed[2..].copy_from_slice(&count.to_be_bytes());
        let header = Header::new(Kind::SubscribeAck, comtree, Address::UNSPECIFIED, dst);
        self.out[..HEADER_LEN].copy_from_slice(&header.encode((self.len - HEADER_LEN) as u16));
        self.len
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    // The issue of the spine asks for at least 350 changes a packet (as in Forest's own format).
    const _: () = assert!(MAX_CHANGES >= 350);

    #[test]
    fn a_packet_holds_the_promised_number_of_changes() {
        let mut out = [0; MAX_DATAGRAM];
        let mut writer = SubscribeWriter::new(&mut out, 1).unwrap();
        let mut count = 0;
        while writer.push(Change::Add(Group::new(count), Level(1))) {
            count += 1;
        }
        assert_eq!(count as usize, MAX_CHANGES);
    }

    #[test]
    fn an_unknown_operation_is_refused() {
        let mut out = [0; 64];
        let mut writer = SubscribeWriter::new(&mut out, 1).unwrap();
        writer.push(Change::Drop(Group::new(4)));
        let len = writer.finish(Comtree(1), Address(1));
        out[HEADER_LEN + SEQUENCE_LEN] = 9;
        let packet = Packet::new_checked(&out[..len]).unwrap();
        assert_eq!(Subscribe::new_checked(&packet).unwrap_err(), WireError::Field("operation"));
    }

    fn change() -> impl Strategy<Value = Change> {
        prop_oneof![
            (0..=Group::MAX, 0u8..3).prop_map(|(g, l)| Change::Add(Group::new(g), Level(l))),
            (0..=Group::MAX).prop_map(|g| Change::Drop(Group::new(g))),
        ]
    }

    proptest! {
        #[test]
        fn changes_survive_the_wire(changes in proptest::collection::vec(change(), 0..170), sequence: u32) {
            let mut out = [0; MAX_DATAGRAM];
            let mut writer = SubscribeWriter::new(&mut out, sequence).unwrap();
            for change in &changes {
                prop_assert!(writer.push(*change));
            }
            let len = writer.finish(Comtree(1), Address(2));
            let packet = Packet::new_checked(&out[..len]).unwrap();
            let subscribe = Subscribe::new_checked(&packet).unwrap();
            prop_assert_eq!(subscribe.sequence(), sequence);
            prop_assert_eq!(subscribe.changes().collect::<Vec<_>>(), changes);
        }

        #[test]
        fn refusals_survive_the_wire(groups in proptest::collection::vec(0..=Group::MAX, 0..356), sequence: u32) {
            let mut out = [0; MAX_DATAGRAM];
            let mut writer = SubscribeAckWriter::new(&mut out, sequence).unwrap();
            for group in &groups {
                prop_assert!(writer.push(Group::new(*group), TableFull::Table));
            }
            let len = writer.finish(Comtree(1), Address(2));
            let packet = Packet::new_checked(&out[..len]).unwrap();
            let ack = SubscribeAck::new_checked(&packet).unwrap();
            prop_assert_eq!(ack.sequence(), sequence);
            prop_assert_eq!(ack.refused().iter().map(Group::number).collect::<Vec<_>>(), groups);
        }

        #[test]
        fn no_body_panics(body in proptest::collection::vec(any::<u8>(), 0..1432)) {
            let mut out = [0; MAX_DATAGRAM];
            let header = Header::new(Kind::Subscribe, Comtree(1), Address(1), Address(2));
            let len = header.encode_packet(&body, &mut out).unwrap();
            let packet = Packet::new_checked(&out[..len]).unwrap();
            if let Ok(subscribe) = Subscribe::new_checked(&packet) {
                prop_assert!(subscribe.changes().count() <= body.len() / 4);
            }
            let _ = SubscribeAck::new_checked(&packet);
        }
    }
}
