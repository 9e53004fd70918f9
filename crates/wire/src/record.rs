//! Records: the updates of a packet, each with a short head that leaves out what the record before
//! it says already.

use crate::{
    Address, HEADER_LEN, Header, Level, MAX_DATAGRAM, MAX_UPDATE, SEAL_LEN, Weight, WireError,
};

/// The longest head of a record in bytes.
pub const MAX_RECORD_HEAD: usize = 17;
/// The most records of a packet.
pub const MAX_RECORDS: usize = u8::MAX as usize;

/// Flag bits of an update, as they stand in its record's first byte.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flags(pub u8);

impl Flags {
    /// From a participant: it wants its own update back if it is subscribed.
    pub const ECHO: Flags = Flags(0x40);
    /// From a relay, where echo has no meaning: the relay does not know the way to the update's
    /// destination, and asks for it (Forest §3.1).
    pub const ROUTE_REQUEST: Flags = Flags(0x40);
    /// The record is filler and carries no update.
    pub const FILLER: Flags = Flags(0x80);

    /// Whether all bits of `other` are set.
    pub const fn contains(self, other: Flags) -> bool {
        self.0 & other.0 == other.0
    }
}

/// The first byte of a record: the forms of what follows it, and the flags.
mod form {
    /// Source and series in full, six bytes.
    pub(super) const SOURCE_FULL: u8 = 0;
    /// The source's endpoint, at the site of the source before; the series. Four bytes.
    pub(super) const SOURCE_ENDPOINT: u8 = 1;
    /// The series; the source is the one before. Two bytes.
    pub(super) const SOURCE_SAME: u8 = 2;
    /// Nothing: the source is the one before, the series the next.
    pub(super) const SOURCE_NEXT: u8 = 3;
    pub(super) const SOURCE: u8 = 3;
    /// The destination in full, four bytes.
    pub(super) const DESTINATION_FULL: u8 = 0;
    /// The destination's lower half, two bytes; the upper half is that of the one before.
    pub(super) const DESTINATION_HALF: u8 = 1 << 2;
    /// Nothing: the destination is the one before.
    pub(super) const DESTINATION_SAME: u8 = 2 << 2;
    pub(super) const DESTINATION: u8 = 3 << 2;
    /// The level is the one before; otherwise one byte.
    pub(super) const LEVEL_SAME: u8 = 1 << 4;
    /// Length, weight and object are the ones before; otherwise one to five bytes.
    pub(super) const LENGTH_SAME: u8 = 1 << 5;
    pub(super) const FLAGS: u8 = 3 << 6;
}

/// Two bytes say the length, of which these bits are none.
const LONG_LENGTH: u16 = 1 << 15;
/// A byte with the weight follows the two of the length; otherwise the weight is the one before.
const WEIGHT_FOLLOWS: u16 = 1 << 14;
/// Then come two bytes with the object; otherwise that is the one before.
const OBJECT_FOLLOWS: u16 = 1 << 13;
const LENGTH: u16 = OBJECT_FOLLOWS - 1;

/// The bit of an object's number that says that it roams.
pub const ROAMING: u16 = 1 << 15;

/// Whether an object roams: it is in one group at a time, so what is said of it in another group takes the place
/// of what was said before.
pub const fn is_roaming(object: u16) -> bool {
    object & ROAMING != 0
}

/// What a record says of its update beside the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordHead {
    /// [`Flags::ECHO`] and, on filler, [`Flags::FILLER`].
    pub flags: Flags,
    /// Its publisher; unspecified for the sender of the packet.
    pub src: Address,
    /// Its number among the publisher's updates on the comtree, modulo 2¹⁶: by it receivers see
    /// loss, doubling and order.
    pub series: u16,
    /// The group or endpoint that it was sent to.
    pub dst: Address,
    /// Its level.
    pub level: Level,
    /// How much it matters to its publisher.
    pub weight: Weight,
    /// Which of its publisher's objects it is about. What is about one object, in one group, is a *flow*:
    /// where there is no room for everything, a flow's newest update is what counts. What is about a
    /// [roaming](is_roaming) object is one flow, whatever group it is in.
    pub object: u16,
    /// How many bytes it has.
    pub len: u16,
}

/// What the record before said; a record may leave it out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Before {
    src: Address,
    series: u16,
    dst: Address,
    level: Level,
    weight: Weight,
    object: u16,
    len: u16,
}

impl Before {
    /// Before the first record of a packet.
    pub const FIRST: Before = Before {
        src: Address::UNSPECIFIED,
        series: u16::MAX,
        dst: Address::UNSPECIFIED,
        level: Level(0),
        weight: Weight::ONE,
        object: 0,
        len: 0,
    };
}

impl RecordHead {
    /// Which forms its fields take behind those of the record `before`.
    fn forms(&self, before: &Before) -> u8 {
        let source = if self.src == before.src {
            let is_next = self.series == before.series.wrapping_add(1);
            if is_next { form::SOURCE_NEXT } else { form::SOURCE_SAME }
        } else if self.src.0 >> 16 == before.src.0 >> 16 {
            form::SOURCE_ENDPOINT
        } else {
            form::SOURCE_FULL
        };
        let destination = if self.dst == before.dst {
            form::DESTINATION_SAME
        } else if self.dst.0 >> 16 == before.dst.0 >> 16 {
            form::DESTINATION_HALF
        } else {
            form::DESTINATION_FULL
        };
        let level = if self.level == before.level { form::LEVEL_SAME } else { 0 };
        let is_same = self.len == before.len && self.more(before) == 0;
        let length = if is_same { form::LENGTH_SAME } else { 0 };
        source | destination | level | length
    }

    /// What follows the length: the bits that say so.
    fn more(&self, before: &Before) -> u16 {
        let weight = if self.weight == before.weight { 0 } else { WEIGHT_FOLLOWS };
        let object = if self.object == before.object { 0 } else { OBJECT_FOLLOWS };
        weight | object
    }

    /// The length of the head behind the record `before`, which becomes this one.
    #[inline]
    pub fn len_behind(&self, before: &mut Before) -> usize {
        let forms = self.forms(before);
        let more = self.more(before);
        *before = self.to_before();
        let source = [6, 4, 2, 0][usize::from(forms & form::SOURCE)];
        let destination = [4, 2, 0, 0][usize::from(forms & form::DESTINATION) >> 2];
        let level = usize::from(forms & form::LEVEL_SAME == 0);
        let length = match forms & form::LENGTH_SAME {
            0 if more == 0 => 1 + usize::from(self.len > 0x7f),
            0 => {
                2 + usize::from(more & WEIGHT_FOLLOWS != 0)
                    + 2 * usize::from(more & OBJECT_FOLLOWS != 0)
            }
            _ => 0,
        };
        1 + source + destination + level + length
    }

    /// Writes the head behind the record `before`, which becomes this one. Returns its bytes and
    /// how many of them count. The length must be below 2¹³.
    #[inline]
    pub fn encode(&self, before: &mut Before) -> ([u8; MAX_RECORD_HEAD], usize) {
        let forms = self.forms(before);
        let more = self.more(before);
        *before = self.to_before();
        let mut out = [0; MAX_RECORD_HEAD];
        out[0] = forms | self.flags.0 & form::FLAGS;
        let mut len = 1;
        let mut put = |bytes: &[u8]| {
            out[len..len + bytes.len()].copy_from_slice(bytes);
            len += bytes.len();
        };
        match forms & form::SOURCE {
            form::SOURCE_FULL => put(&self.src.0.to_be_bytes()),
            form::SOURCE_ENDPOINT => put(&self.src.endpoint().to_be_bytes()),
            _ => {}
        }
        if forms & form::SOURCE != form::SOURCE_NEXT {
            put(&self.series.to_be_bytes());
        }
        match forms & form::DESTINATION {
            form::DESTINATION_FULL => put(&self.dst.0.to_be_bytes()),
            form::DESTINATION_HALF => put(&(self.dst.0 as u16).to_be_bytes()),
            _ => {}
        }
        if forms & form::LEVEL_SAME == 0 {
            put(&[self.level.0]);
        }
        if forms & form::LENGTH_SAME == 0 {
            match self.len {
                0..=0x7f if more == 0 => put(&[self.len as u8]),
                _ => put(&(self.len | LONG_LENGTH | more).to_be_bytes()),
            }
            if more & WEIGHT_FOLLOWS != 0 {
                put(&[self.weight.0]);
            }
            if more & OBJECT_FOLLOWS != 0 {
                put(&self.object.to_be_bytes());
            }
        }
        (out, len)
    }

    fn to_before(self) -> Before {
        let RecordHead { src, series, dst, level, weight, object, len, .. } = self;
        Before { src, series, dst, level, weight, object, len }
    }
}

/// One update inside a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record<'a> {
    /// [`Flags::ECHO`] and, on filler, [`Flags::FILLER`].
    pub flags: Flags,
    /// Its publisher; unspecified for the sender of the packet.
    pub src: Address,
    /// Its number among the publisher's updates, modulo 2¹⁶.
    pub series: u16,
    /// The group or endpoint that it was sent to.
    pub dst: Address,
    /// The update's level.
    pub level: Level,
    /// How much it matters to its publisher.
    pub weight: Weight,
    /// Which of its publisher's objects it is about. What is about one object, in one group, is a *flow*:
    /// where there is no room for everything, a flow's newest update is what counts. What is about a
    /// [roaming](is_roaming) object is one flow, whatever group it is in.
    pub object: u16,
    /// Its bytes.
    pub payload: &'a [u8],
}

impl<'a> Record<'a> {
    /// An update of the sender's own, at level 0, of weight 1 and without flags.
    pub const fn new(dst: Address, series: u16, payload: &'a [u8]) -> Record<'a> {
        let (flags, src, level) = (Flags(0), Address::UNSPECIFIED, Level(0));
        Record { flags, src, series, dst, level, weight: Weight::ONE, object: 0, payload }
    }

    /// What it says beside its bytes.
    pub fn head(&self) -> RecordHead {
        let Record { flags, src, series, dst, level, weight, object, payload } = *self;
        let len = payload.len() as u16;
        RecordHead { flags, src, series, dst, level, weight, object, len }
    }

    pub(crate) fn is_filler(&self) -> bool {
        self.flags.contains(Flags::FILLER)
    }

    /// The record at the front of `bytes`, behind the record `before`, which becomes this one; and
    /// the bytes after it.
    #[inline]
    fn split(bytes: &'a [u8], before: &mut Before) -> Result<(Record<'a>, &'a [u8]), WireError> {
        let mut rest = bytes;
        let [forms] = take(&mut rest)?;
        let mut head = RecordHead {
            flags: Flags(forms & form::FLAGS),
            src: before.src,
            series: before.series.wrapping_add(1),
            dst: before.dst,
            level: before.level,
            weight: before.weight,
            object: before.object,
            len: before.len,
        };
        match forms & form::SOURCE {
            form::SOURCE_FULL => head.src = Address(u32::from_be_bytes(take(&mut rest)?)),
            form::SOURCE_ENDPOINT => head.src = with_low_half(head.src, take(&mut rest)?),
            _ => {}
        }
        if forms & form::SOURCE != form::SOURCE_NEXT {
            head.series = u16::from_be_bytes(take(&mut rest)?);
        }
        match forms & form::DESTINATION {
            form::DESTINATION_FULL => head.dst = Address(u32::from_be_bytes(take(&mut rest)?)),
            form::DESTINATION_HALF => head.dst = with_low_half(head.dst, take(&mut rest)?),
            form::DESTINATION_SAME => {}
            _ => return Err(WireError::Field("destination")),
        }
        if forms & form::LEVEL_SAME == 0 {
            let [level] = take(&mut rest)?;
            head.level = Level(level);
        }
        if forms & form::LENGTH_SAME == 0 {
            let [first] = take(&mut rest)?;
            head.len = u16::from(first);
            if first > 0x7f {
                let [second] = take(&mut rest)?;
                let long = u16::from_be_bytes([first, second]);
                head.len = long & LENGTH;
                if long & WEIGHT_FOLLOWS != 0 {
                    let [weight] = take(&mut rest)?;
                    head.weight = Weight(weight);
                }
                if long & OBJECT_FOLLOWS != 0 {
                    head.object = u16::from_be_bytes(take(&mut rest)?);
                }
            }
        }
        let (payload, rest) = rest.split_at_checked(head.len.into()).ok_or(WireError::Length)?;
        *before = head.to_before();
        let RecordHead { flags, src, series, dst, level, weight, object, .. } = head;
        Ok((Record { flags, src, series, dst, level, weight, object, payload }, rest))
    }
}

fn take<const N: usize>(rest: &mut &[u8]) -> Result<[u8; N], WireError> {
    let (head, tail) = rest.split_first_chunk::<N>().ok_or(WireError::Length)?;
    *rest = tail;
    Ok(*head)
}

fn with_low_half(address: Address, half: [u8; 2]) -> Address {
    Address(address.0 & 0xffff_0000 | u32::from(u16::from_be_bytes(half)))
}

/// Iterator over the records of a packet, filler included.
#[derive(Clone, Debug)]
pub struct Records<'a> {
    left: u8,
    rest: &'a [u8],
    before: Before,
}

impl<'a> Records<'a> {
    /// Checks that `payload` begins with so many records. What follows them is padding.
    pub(crate) fn new_checked(count: u8, payload: &'a [u8]) -> Result<Records<'a>, WireError> {
        let records = Records { left: count, rest: payload, before: Before::FIRST };
        let (mut rest, mut before) = (payload, Before::FIRST);
        for _ in 0..count {
            rest = Record::split(rest, &mut before)?.1;
        }
        Ok(records)
    }
}

impl<'a> Iterator for Records<'a> {
    type Item = Record<'a>;

    #[inline]
    fn next(&mut self) -> Option<Record<'a>> {
        self.left = self.left.checked_sub(1)?;
        let (record, rest) = Record::split(self.rest, &mut self.before).ok()?;
        self.rest = rest;
        Some(record)
    }
}

/// Writes a packet of updates, record by record, into a buffer of the caller's.
#[derive(Debug)]
pub struct UpdatesWriter<'a> {
    out: &'a mut [u8],
    len: usize,
    records: u8,
    before: Before,
}

impl<'a> UpdatesWriter<'a> {
    /// A writer of a datagram of at most `max_datagram` bytes into `out`. Room for a seal is kept.
    ///
    /// # Errors
    /// [`WireError::Length`] if `out` has no room for the base header.
    pub fn new(out: &'a mut [u8], max_datagram: usize) -> Result<UpdatesWriter<'a>, WireError> {
        if out.len() < HEADER_LEN {
            return Err(WireError::Length);
        }
        let room = max_datagram.min(MAX_DATAGRAM).saturating_sub(SEAL_LEN);
        let room = room.clamp(HEADER_LEN, out.len().max(HEADER_LEN));
        let out = &mut out[..room];
        Ok(UpdatesWriter { out, len: HEADER_LEN, records: 0, before: Before::FIRST })
    }

    /// Adds an update. Returns whether it fitted.
    pub fn push(&mut self, record: &Record<'_>) -> bool {
        if record.payload.len() > MAX_UPDATE || usize::from(self.records) == MAX_RECORDS {
            return false;
        }
        let mut before = self.before;
        let (head, head_len) = record.head().encode(&mut before);
        let end = self.len + head_len + record.payload.len();
        let Some(slot) = self.out.get_mut(self.len..end) else { return false };
        let (head_slot, body) = slot.split_at_mut(head_len);
        head_slot.copy_from_slice(&head[..head_len]);
        body.copy_from_slice(record.payload);
        (self.len, self.records, self.before) = (end, self.records + 1, before);
        true
    }

    /// Whether no update has been added.
    pub fn is_empty(&self) -> bool {
        self.records == 0
    }

    /// Writes the base header, with its hop limit, and returns the datagram's length.
    pub fn finish(self, header: &Header) -> usize {
        self.out[..HEADER_LEN].copy_from_slice(&header.encode(self.records));
        self.len
    }
}

/// Writes a packet of one update into `out` and returns its length.
///
/// # Errors
/// [`WireError::Length`] if `out` is too short or the update is longer than [`MAX_UPDATE`].
pub fn encode_update(
    header: &Header,
    record: &Record<'_>,
    out: &mut [u8],
) -> Result<usize, WireError> {
    let mut writer = UpdatesWriter::new(out, MAX_DATAGRAM)?;
    if !writer.push(record) {
        return Err(WireError::Length);
    }
    Ok(writer.finish(header))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Comtree, Group, Kind, Packet, SAFE_DATAGRAM, SessionId, seeded};
    use proptest::prelude::*;

    fn header() -> Header {
        Header::new(Kind::Updates, SessionId::new(2), Comtree(1))
    }

    fn updates(datagram: &[u8]) -> Result<Vec<Record<'_>>, WireError> {
        Ok(Packet::new_checked(datagram)?.updates()?.collect())
    }

    fn group(number: u32) -> Address {
        Group::new(number).address()
    }

    #[test]
    fn a_crowds_records_cost_little() {
        let mut out = [0; MAX_DATAGRAM];
        let mut writer = UpdatesWriter::new(&mut out, SAFE_DATAGRAM).unwrap();
        let mut count = 0_u16;
        // Publishers of one site, one after the other, to one group.
        while writer.push(&Record {
            src: Address::unicast(1, 64 + count),
            ..Record::new(group(1), 700 * count, &[7; 20])
        }) {
            count += 1;
        }
        // Five bytes for each beside its own, and seven more for the first.
        assert_eq!(usize::from(count), (SAFE_DATAGRAM - HEADER_LEN - SEAL_LEN - 7) / 25);
        let len = writer.finish(&header());
        assert_eq!(updates(&out[..len]).unwrap().len(), usize::from(count));
    }

    #[test]
    fn a_publishers_next_records_cost_one_byte() {
        let mut out = [0; MAX_DATAGRAM];
        let mut writer = UpdatesWriter::new(&mut out, SAFE_DATAGRAM).unwrap();
        let mut push = |series| writer.push(&Record::new(group(1), series, &[7; 100]));
        assert!(push(u16::MAX - 1) && push(u16::MAX) && push(0));
        let len = writer.finish(&header());
        // The first: form, series, group, length.
        assert_eq!(len, HEADER_LEN + 8 + 100 + 101 + 101);
        let series: Vec<_> = updates(&out[..len]).unwrap().iter().map(|one| one.series).collect();
        assert_eq!(series, [u16::MAX - 1, u16::MAX, 0]);
    }

    #[test]
    fn an_update_of_any_length_fits_a_safe_datagram() {
        const { assert!(HEADER_LEN + MAX_RECORD_HEAD + MAX_UPDATE + SEAL_LEN <= SAFE_DATAGRAM) };
        let mut out = [0; MAX_DATAGRAM];
        let longest = [7; MAX_UPDATE];
        let record =
            Record { src: Address(77), level: Level(3), ..Record::new(group(9), 5, &longest) };
        let len = encode_update(&header(), &record, &mut out).unwrap();
        assert_eq!(updates(&out[..len]).unwrap(), [record]);
        let too_long = Record { payload: &[7; MAX_UPDATE + 1], ..record };
        assert_eq!(encode_update(&header(), &too_long, &mut out), Err(WireError::Length));
    }

    #[test]
    fn filler_is_passed_over_and_later_records_still_lean_on_it() {
        let mut out = [0; 256];
        let mut writer = UpdatesWriter::new(&mut out, 256).unwrap();
        assert!(writer.push(&Record::new(group(1), 9, b"update")));
        assert!(writer.push(&Record::new(group(1), 10, b"second")));
        let len = writer.finish(&header());
        out[HEADER_LEN] |= Flags::FILLER.0;
        let seen = updates(&out[..len]).unwrap();
        assert_eq!(seen, [Record::new(group(1), 10, b"second")]);
    }

    #[test]
    fn bytes_after_the_records_are_padding() {
        let mut out = [0xaa; 64];
        let record = Record::new(group(1), 0, b"update");
        encode_update(&header(), &record, &mut out).unwrap();
        assert_eq!(updates(&out).unwrap(), [record]);
    }

    #[test]
    fn a_record_over_the_end_is_refused() {
        let mut out = [0; 256];
        let len = encode_update(&header(), &Record::new(group(1), 0, b"update"), &mut out).unwrap();
        for short in HEADER_LEN..len {
            assert_eq!(updates(&out[..short]).unwrap_err(), WireError::Length);
        }
        out[HEADER_LEN] |= form::DESTINATION;
        assert_eq!(updates(&out[..len]).unwrap_err(), WireError::Field("destination"));
    }

    #[test]
    fn other_kinds_hold_no_updates() {
        let mut out = [0; 64];
        for kind in Kind::ALL.iter().filter(|kind| **kind != Kind::Updates) {
            let header = Header { kind: *kind, ..header() };
            let len = header.encode_packet(&[7; 20], &mut out).unwrap();
            assert_eq!(updates(&out[..len]).unwrap(), []);
        }
    }

    proptest! {
        #![proptest_config(seeded())]

        /// Records as far apart as can be, and as near: every form of every field.
        #[test]
        fn records_survive_the_wire(
            records in proptest::collection::vec(
                (prop_oneof![Just(5_u32), 0..0x2_0000_u32, any::<u32>()], prop_oneof![Just(8_u16), any::<u16>()],
                 prop_oneof![Just(1_u32 << 31), 0x8000_0000..0x8002_0000_u32, any::<u32>()], 0_u8..3,
                 prop_oneof![Just(3_usize), 120..140_usize],
                 (0_u8..2, prop_oneof![Just(Weight::ONE), any::<u8>().prop_map(Weight)],
                  prop_oneof![Just(0_u16), any::<u16>()])),
                0..9,
            ),
            hop_limit: u8,
        ) {
            let payload = [7; 140];
            let records: Vec<_> = records.iter().map(|(src, series, dst, level, len, (echo, weight, object))| Record {
                flags: Flags(echo * Flags::ECHO.0), src: Address(*src), series: *series,
                dst: Address(*dst), level: Level(*level), weight: *weight, object: *object, payload: &payload[..*len],
            }).collect();
            let mut out = [0; MAX_DATAGRAM];
            let mut writer = UpdatesWriter::new(&mut out, MAX_DATAGRAM).unwrap();
            let (mut before, mut heads) = (Before::FIRST, 0);
            for record in &records {
                heads += record.head().len_behind(&mut before) + record.payload.len();
                prop_assert!(writer.push(record));
            }
            let len = writer.finish(&Header { hop_limit, ..header() });
            prop_assert_eq!(len, HEADER_LEN + heads);
            prop_assert_eq!(updates(&out[..len]).unwrap(), records);
        }

        #[test]
        fn no_body_panics(count: u8, body in proptest::collection::vec(any::<u8>(), 0..1432)) {
            if let Ok(records) = Records::new_checked(count, &body) {
                let seen: Vec<_> = records.collect();
                prop_assert_eq!(seen.len(), usize::from(count));
                let bytes: usize = seen.iter().map(|record| record.payload.len()).sum();
                prop_assert!(bytes <= body.len());
            }
        }
    }
}
