//! Subscription changes, hundreds to a packet, and their acknowledgement.
//!
//! Both packets carry a sequence number and sections; a section lists groups, of four bytes each,
//! to which the same happens: "add at this level", "drop", "refused for this reason". Where groups are
//! added with weights, each has a fifth byte.

use crate::{
    Comtree, Group, HEADER_LEN, Header, Kind, Level, MAX_DATAGRAM, Packet, SEAL_LEN, SessionId,
    SubscribeRefusal, Weight, WireError,
};

/// Changes that fit the longest packet when they share an operation and a level.
pub const MAX_CHANGES: usize =
    (MAX_DATAGRAM - SEAL_LEN - HEADER_LEN - SEQUENCE_LEN - SECTION_LEN) / 4;

const SEQUENCE_LEN: usize = 4;
const SECTION_LEN: usize = 4;
/// The first section's place.
const SECTIONS_AT: usize = HEADER_LEN + SEQUENCE_LEN;
const DROP: u8 = 0;
const ADD: u8 = 1;
const ADD_WEIGHTED: u8 = 2;
/// A group in a section, without and with its weight.
const GROUP_LEN: usize = 4;
const WEIGHTED_LEN: usize = 5;

/// One change of a participant's subscriptions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SubscriptionChange {
    /// Subscribe to the group at the level, with the weight 1; replaces level and weight of an earlier
    /// subscription.
    Add(Group, Level),
    /// The same with another weight.
    AddWeighted(Group, Level, Weight),
    /// Unsubscribe from the group.
    Drop(Group),
}

impl SubscriptionChange {
    /// The group that changes.
    pub const fn group(self) -> Group {
        match self {
            SubscriptionChange::Add(group, _)
            | SubscriptionChange::AddWeighted(group, ..)
            | SubscriptionChange::Drop(group) => group,
        }
    }

    /// The change by which a group is wanted at a level with a weight.
    pub fn add(group: Group, level: Level, weight: Weight) -> SubscriptionChange {
        match weight {
            Weight::ONE => SubscriptionChange::Add(group, level),
            _ => SubscriptionChange::AddWeighted(group, level, weight),
        }
    }

    /// The level and the weight at which the group is wanted from now on; `None` if it is not.
    pub const fn wanted(self) -> Option<(Level, Weight)> {
        match self {
            SubscriptionChange::Add(_, level) => Some((level, Weight::ONE)),
            SubscriptionChange::AddWeighted(_, level, weight) => Some((level, weight)),
            SubscriptionChange::Drop(_) => None,
        }
    }

    const fn section(self) -> [u8; 2] {
        match self {
            SubscriptionChange::Add(_, level) => [ADD, level.0],
            SubscriptionChange::AddWeighted(_, level, _) => [ADD_WEIGHTED, level.0],
            SubscriptionChange::Drop(_) => [DROP, 0],
        }
    }
}

/// The number of the subscribe packet after the one numbered `last`; 0 stands before the first
/// and is never used.
pub const fn next_sequence(last: u32) -> u32 {
    if last == u32::MAX { 1 } else { last + 1 }
}

/// A subscribe packet whose sections have been checked.
#[derive(Clone, Debug)]
pub struct Subscribe<'a> {
    sequence: u32,
    sections: Sections<'a>,
}

impl<'a> Subscribe<'a> {
    /// Checks that the sections tile the payload.
    ///
    /// # Errors
    /// [`WireError::TooShort`], [`WireError::Length`], or [`WireError::Field`] for an unknown
    /// operation.
    pub fn new_checked(packet: &Packet<'a>) -> Result<Subscribe<'a>, WireError> {
        let (sequence, sections) = sections_of(packet, true)?;
        if sections.clone().any(|section| section.key[0] > ADD_WEIGHTED) {
            return Err(WireError::Field("operation"));
        }
        Ok(Subscribe { sequence, sections })
    }

    /// The packet's number in its session, counted from 1.
    pub fn sequence(&self) -> u32 {
        self.sequence
    }

    /// How many changes there are.
    pub fn count(&self) -> usize {
        self.sections.clone().map(|section| section.groups.len() / section.entry_len).sum()
    }

    /// The changes, in order.
    pub fn changes(&self) -> impl ExactSizeIterator<Item = SubscriptionChange> + use<'a> {
        let before = Section { key: [DROP, 0], entry_len: GROUP_LEN, groups: &[] };
        Changes { section: before, later: self.sections.clone(), left: self.count() }
    }
}

/// What is left of a packet's changes. Section by section, in one loop: to flatten an iterator of iterators
/// costs as much as a change does in the relay's tables.
struct Changes<'a> {
    section: Section<'a>,
    later: Sections<'a>,
    left: usize,
}

impl ExactSizeIterator for Changes<'_> {}

impl Iterator for Changes<'_> {
    type Item = SubscriptionChange;

    #[inline]
    fn next(&mut self) -> Option<SubscriptionChange> {
        loop {
            let Section { key: [operation, level], groups, .. } = self.section;
            if let Some((group, rest)) = groups.split_first_chunk() {
                let (group, level) = (group_of(group), Level(level));
                let (change, rest) = match (operation, rest) {
                    (ADD_WEIGHTED, [weight, rest @ ..]) => {
                        (SubscriptionChange::AddWeighted(group, level, Weight(*weight)), rest)
                    }
                    (ADD, _) => (SubscriptionChange::Add(group, level), rest),
                    _ => (SubscriptionChange::Drop(group), rest),
                };
                self.section.groups = rest;
                self.left -= 1;
                return Some(change);
            }
            self.section = self.later.next()?;
        }
    }

    #[inline]
    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}

/// Groups to which the same happens: what that is, the groups' bytes, and how many bytes each group has.
#[derive(Clone, Copy, Debug)]
struct Section<'a> {
    key: [u8; 2],
    entry_len: usize,
    groups: &'a [u8],
}

/// The sections at the front of some bytes.
#[derive(Clone, Debug)]
struct Sections<'a> {
    rest: &'a [u8],
    /// Whether they are of changes, which may have weights.
    of_changes: bool,
}

impl<'a> Iterator for Sections<'a> {
    type Item = Section<'a>;

    fn next(&mut self) -> Option<Section<'a>> {
        let (head, rest) = self.rest.split_first_chunk::<SECTION_LEN>()?;
        let count = usize::from(u16::from_be_bytes([head[2], head[3]]));
        let entry_len =
            if self.of_changes && head[0] == ADD_WEIGHTED { WEIGHTED_LEN } else { GROUP_LEN };
        let (groups, rest) = rest.split_at_checked(count * entry_len)?;
        self.rest = rest;
        Some(Section { key: [head[0], head[1]], entry_len, groups })
    }
}

/// The sequence number of a packet, and its sections, which have been checked to tile the rest.
fn sections_of<'a>(
    packet: &Packet<'a>,
    of_changes: bool,
) -> Result<(u32, Sections<'a>), WireError> {
    let payload = packet.payload();
    let have = HEADER_LEN + payload.len();
    let short = WireError::TooShort { have, need: SECTIONS_AT };
    let (sequence, rest) = payload.split_first_chunk::<SEQUENCE_LEN>().ok_or(short)?;
    let sections = Sections { rest, of_changes };
    let mut all = sections.clone();
    while all.next().is_some() {}
    if all.rest.is_empty() {
        Ok((u32::from_be_bytes(*sequence), sections))
    } else {
        Err(WireError::Length)
    }
}

/// The group whose four bytes these are.
fn group_of(bytes: &[u8; GROUP_LEN]) -> Group {
    Group::from_low_bits(u32::from_be_bytes(*bytes))
}

/// Writes a subscribe packet change by change into a buffer of the caller's.
#[derive(Debug)]
pub struct SubscribeWriter<'a> {
    sections: SectionWriter<'a>,
}

impl<'a> SubscribeWriter<'a> {
    /// A writer of a datagram of at most `max_datagram` bytes into `out`. Room for a seal is kept.
    ///
    /// # Errors
    /// [`WireError::Length`] if there is no room for a packet without changes.
    pub fn new(
        out: &'a mut [u8],
        sequence: u32,
        max_datagram: usize,
    ) -> Result<SubscribeWriter<'a>, WireError> {
        Ok(SubscribeWriter { sections: SectionWriter::new(out, sequence, max_datagram)? })
    }

    /// Whether any change more fits, of whatever operation and level.
    pub fn has_room(&self) -> bool {
        self.sections.len + SECTION_LEN + WEIGHTED_LEN <= self.sections.out.len()
    }

    /// Adds a change. Returns whether it fitted. Changes of one operation and level that follow
    /// each other share a section.
    pub fn push(&mut self, change: SubscriptionChange) -> bool {
        let weight = match change {
            SubscriptionChange::AddWeighted(_, _, weight) => Some(weight),
            _ => None,
        };
        self.sections.push(change.section(), change.group(), weight)
    }

    /// Writes the base header and returns the packet's length.
    pub fn finish(self, comtree: Comtree, session: SessionId) -> usize {
        self.sections.finish(&Header::new(Kind::Subscribe, session, comtree))
    }
}

/// The answer to a subscribe packet: its number, and the groups that were not subscribed.
#[derive(Clone, Debug)]
pub struct SubscribeAck<'a> {
    sequence: u32,
    sections: Sections<'a>,
}

impl<'a> SubscribeAck<'a> {
    /// Checks that the sections tile the payload.
    ///
    /// # Errors
    /// [`WireError::TooShort`], [`WireError::Length`].
    pub fn new_checked(packet: &Packet<'a>) -> Result<SubscribeAck<'a>, WireError> {
        let (sequence, sections) = sections_of(packet, false)?;
        Ok(SubscribeAck { sequence, sections })
    }

    /// The number of the subscribe packet that was applied.
    pub fn sequence(&self) -> u32 {
        self.sequence
    }

    /// The groups that were refused, in order, and why.
    pub fn refused(&self) -> impl Iterator<Item = (Group, SubscribeRefusal)> + use<'a> {
        self.sections.clone().flat_map(|Section { key: [reason, _], groups, .. }| {
            let reason = SubscribeRefusal::from_number(reason);
            groups.as_chunks().0.iter().map(move |group| (group_of(group), reason))
        })
    }

    /// Why `group` was refused; `None` if it was not.
    pub fn refusal_of(&self, group: Group) -> Option<SubscribeRefusal> {
        self.refused().find_map(|(refused, reason)| (refused == group).then_some(reason))
    }
}

/// Writes a subscribe-ack into a buffer of the caller's.
#[derive(Debug)]
pub struct SubscribeAckWriter<'a> {
    sections: SectionWriter<'a>,
}

impl<'a> SubscribeAckWriter<'a> {
    /// A writer of a datagram of at most `max_datagram` bytes into `out`. Room for a seal is kept.
    ///
    /// # Errors
    /// [`WireError::Length`] if there is no room for an ack without refusals.
    pub fn new(
        out: &'a mut [u8],
        sequence: u32,
        max_datagram: usize,
    ) -> Result<SubscribeAckWriter<'a>, WireError> {
        Ok(SubscribeAckWriter { sections: SectionWriter::new(out, sequence, max_datagram)? })
    }

    /// Adds a refused group. Returns whether it fitted; in a whole datagram, [`MAX_CHANGES`] groups
    /// do. Groups of one reason that follow each other share a section.
    ///
    /// That a group is refused matters more than why: one that has no room for a section of its own
    /// joins the last section, and when that is full too, the last two sections become one.
    pub fn push(&mut self, group: Group, reason: SubscribeRefusal) -> bool {
        self.sections.push([reason.number(), 0], group, None)
            || self.sections.push_to_last(group, None)
            || (self.sections.merge_last() && self.sections.push_to_last(group, None))
    }

    /// Writes the headers and returns the packet's length.
    pub fn finish(self, comtree: Comtree, session: SessionId) -> usize {
        self.sections.finish(&Header::new(Kind::SubscribeAck, session, comtree))
    }
}

/// Writes a sequence number and sections behind the place of a base header.
#[derive(Debug)]
struct SectionWriter<'a> {
    out: &'a mut [u8],
    len: usize,
    /// The last section: its place, what happens to its groups, and how many they are.
    last: Option<(usize, [u8; 2], u16)>,
}

impl<'a> SectionWriter<'a> {
    fn new(
        out: &'a mut [u8],
        sequence: u32,
        max_datagram: usize,
    ) -> Result<SectionWriter<'a>, WireError> {
        let room = out.len().min(max_datagram.min(MAX_DATAGRAM).saturating_sub(SEAL_LEN));
        let out = &mut out[..room];
        let place = out.get_mut(HEADER_LEN..SECTIONS_AT).ok_or(WireError::Length)?;
        place.copy_from_slice(&sequence.to_be_bytes());
        Ok(SectionWriter { out, len: SECTIONS_AT, last: None })
    }

    /// Adds a group, perhaps with its weight, to the last section if that is of this `key`, else to a
    /// new one.
    fn push(&mut self, key: [u8; 2], group: Group, weight: Option<Weight>) -> bool {
        if self.last.is_some_and(|(_, last, _)| last == key) {
            return self.push_to_last(group, weight);
        }
        if self.len + SECTION_LEN + GROUP_LEN + usize::from(weight.is_some()) > self.out.len() {
            return false;
        }
        self.last = Some((self.len, key, 0));
        self.len += SECTION_LEN;
        self.push_to_last(group, weight)
    }

    fn push_to_last(&mut self, group: Group, weight: Option<Weight>) -> bool {
        let Some((at, key, count)) = self.last else { return false };
        let end = self.len + GROUP_LEN + usize::from(weight.is_some());
        let Some(place) = self.out.get_mut(self.len..end) else { return false };
        place[..GROUP_LEN].copy_from_slice(&group.number().to_be_bytes());
        if let Some(weight) = weight {
            place[GROUP_LEN] = weight.0;
        }
        self.len = end;
        self.set_last(at, key, count + 1);
        true
    }

    /// Makes the last section of an ack a part of the one before it, which frees the room of its header.
    /// Returns whether there was one before it.
    fn merge_last(&mut self) -> bool {
        let Some((last_at, _, last_count)) = self.last else { return false };
        let mut at = SECTIONS_AT;
        let rest = &self.out[SECTIONS_AT..last_at];
        for Section { key, groups, .. } in (Sections { rest, of_changes: false }) {
            let end = at + SECTION_LEN + groups.len();
            if end == last_at {
                let count = (groups.len() / GROUP_LEN) as u16;
                self.out.copy_within(last_at + SECTION_LEN..self.len, last_at);
                self.len -= SECTION_LEN;
                self.set_last(at, key, count + last_count);
                return true;
            }
            at = end;
        }
        false
    }

    fn set_last(&mut self, at: usize, key: [u8; 2], count: u16) {
        let [high, low] = count.to_be_bytes();
        self.out[at..at + SECTION_LEN].copy_from_slice(&[key[0], key[1], high, low]);
        self.last = Some((at, key, count));
    }

    fn finish(self, header: &Header) -> usize {
        self.out[..HEADER_LEN].copy_from_slice(&header.encode(0));
        self.len
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::seeded;
    use proptest::prelude::*;

    // Forest's own format has room for 350 changes in a packet. This one promises no less.
    const _: () = assert!(MAX_CHANGES >= 350);

    #[test]
    fn a_packet_holds_the_promised_number_of_changes() {
        let mut out = [0; MAX_DATAGRAM];
        let mut writer = SubscribeWriter::new(&mut out, 1, MAX_DATAGRAM).unwrap();
        let mut count = 0;
        while writer.push(SubscriptionChange::Add(Group::new(count), Level(1))) {
            count += 1;
        }
        assert_eq!(count as usize, MAX_CHANGES);
    }

    #[test]
    fn an_unknown_operation_is_refused() {
        let mut out = [0; 64];
        let mut writer = SubscribeWriter::new(&mut out, 1, MAX_DATAGRAM).unwrap();
        writer.push(SubscriptionChange::Drop(Group::new(4)));
        let len = writer.finish(Comtree(1), SessionId::new(1));
        out[SECTIONS_AT] = 9;
        let packet = Packet::new_checked(&out[..len]).unwrap();
        assert_eq!(Subscribe::new_checked(&packet).unwrap_err(), WireError::Field("operation"));
    }

    fn write_ack(out: &mut [u8], sequence: u32, refused: &[(Group, SubscribeRefusal)]) -> usize {
        let mut writer = SubscribeAckWriter::new(out, sequence, MAX_DATAGRAM).unwrap();
        for (group, reason) in refused {
            assert!(writer.push(*group, *reason), "{group:?}");
        }
        writer.finish(Comtree(1), SessionId::new(2))
    }

    #[test]
    fn a_full_packet_that_is_refused_for_two_reasons_loses_no_group() {
        let refused: Vec<(Group, SubscribeRefusal)> = (0..MAX_CHANGES as u32)
            .map(|n| {
                (
                    Group::new(n),
                    [SubscribeRefusal::Table, SubscribeRefusal::Participant][usize::from(n > 9)],
                )
            })
            .collect();
        let mut out = [0; MAX_DATAGRAM];
        let len = write_ack(&mut out, 1, &refused);
        assert!(
            len + SEAL_LEN + SECTION_LEN > MAX_DATAGRAM,
            "there is no room for a second section"
        );
        let packet = Packet::new_checked(&out[..len]).unwrap();
        let ack = SubscribeAck::new_checked(&packet).unwrap();
        assert!(ack.refused().map(|(group, _)| group).eq(refused.iter().map(|r| r.0)));
        let mut writer = SubscribeAckWriter::new(&mut out, 1, MAX_DATAGRAM).unwrap();
        assert!(refused.iter().all(|(group, reason)| writer.push(*group, *reason)));
        assert!(!writer.push(Group::new(0), SubscribeRefusal::Table), "it is full");
    }

    fn change() -> impl Strategy<Value = SubscriptionChange> {
        prop_oneof![
            (0..=Group::MAX, 0u8..3)
                .prop_map(|(g, l)| SubscriptionChange::Add(Group::new(g), Level(l))),
            (0..=Group::MAX, 0u8..3, any::<u8>()).prop_map(|(g, l, w)| {
                SubscriptionChange::AddWeighted(Group::new(g), Level(l), Weight(w))
            }),
            (0..=Group::MAX).prop_map(|g| SubscriptionChange::Drop(Group::new(g))),
        ]
    }

    proptest! {
        #![proptest_config(seeded())]

        #[test]
        fn changes_survive_the_wire(changes in proptest::collection::vec(change(), 0..150), sequence: u32) {
            let mut out = [0; MAX_DATAGRAM];
            let mut writer = SubscribeWriter::new(&mut out, sequence, MAX_DATAGRAM).unwrap();
            for change in &changes {
                prop_assert!(writer.push(*change));
            }
            let len = writer.finish(Comtree(1), SessionId::new(2));
            let packet = Packet::new_checked(&out[..len]).unwrap();
            let subscribe = Subscribe::new_checked(&packet).unwrap();
            prop_assert_eq!(subscribe.sequence(), sequence);
            prop_assert_eq!(subscribe.count(), changes.len());
            prop_assert_eq!(subscribe.changes().collect::<Vec<_>>(), changes);
        }

        #[test]
        fn refusals_survive_the_wire(
            refused in proptest::collection::vec((0..=Group::MAX, 0u8..4), 0..170), sequence: u32,
        ) {
            let refused: Vec<(Group, SubscribeRefusal)> = refused
                .into_iter()
                .map(|(group, reason)| (Group::new(group), SubscribeRefusal::from_number(reason)))
                .collect();
            let mut out = [0; MAX_DATAGRAM];
            let len = write_ack(&mut out, sequence, &refused);
            let packet = Packet::new_checked(&out[..len]).unwrap();
            let ack = SubscribeAck::new_checked(&packet).unwrap();
            prop_assert_eq!(ack.sequence(), sequence);
            prop_assert_eq!(ack.refused().collect::<Vec<_>>(), &refused[..]);
            for (group, _) in &refused {
                let first = refused.iter().find(|(other, _)| other == group).unwrap();
                prop_assert_eq!(ack.refusal_of(*group), Some(first.1));
            }
        }

        #[test]
        fn as_many_groups_can_be_refused_as_can_be_asked_for(
            lengths in proptest::collection::vec(1..60usize, 1..60),
        ) {
            // Stretches of one reason each; what has no room for its own reason is refused still.
            let reasons = [SubscribeRefusal::Table, SubscribeRefusal::Participant].into_iter().cycle();
            let stretches = lengths.iter().zip(reasons);
            let refused: Vec<(Group, SubscribeRefusal)> = stretches
                .flat_map(|(len, reason)| std::iter::repeat_n(reason, *len))
                .zip(0..MAX_CHANGES as u32)
                .map(|(reason, group)| (Group::new(group), reason))
                .collect();
            let mut out = [0; MAX_DATAGRAM];
            let len = write_ack(&mut out, 1, &refused);
            let packet = Packet::new_checked(&out[..len]).unwrap();
            let ack = SubscribeAck::new_checked(&packet).unwrap();
            prop_assert!(ack.refused().map(|(group, _)| group).eq(refused.iter().map(|r| r.0)));
            let wrong = ack.refused().zip(&refused).filter(|(have, want)| have.1 != want.1).count();
            if len <= MAX_DATAGRAM - SEAL_LEN - SECTION_LEN - 4 {
                prop_assert_eq!(wrong, 0, "there was room for every reason");
            }
        }

        #[test]
        fn no_body_panics(body in proptest::collection::vec(any::<u8>(), 0..1432)) {
            let mut out = [0; MAX_DATAGRAM];
            let header = Header::new(Kind::Subscribe, SessionId::NONE, Comtree(1));
            let len = header.encode_packet(&body, &mut out).unwrap();
            let packet = Packet::new_checked(&out[..len]).unwrap();
            if let Ok(subscribe) = Subscribe::new_checked(&packet) {
                prop_assert!(subscribe.changes().count() <= body.len() / 4);
            }
            if let Ok(ack) = SubscribeAck::new_checked(&packet) {
                prop_assert!(ack.refused().count() <= body.len() / 4);
            }
        }
    }
}
