//! Bundles: several updates in one datagram, each a record with a header of its own.

use crate::{Address, Flags, Group, HEADER_LEN, Header, Level, MAX_DATAGRAM, Packet, WireError};

/// Length of a record's header in bytes.
pub const RECORD_HEADER_LEN: usize = 12;

/// One update inside a bundle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record<'a> {
    /// Flag bits: [`Flags::ECHO`] and, on filler, [`Flags::FILLER`].
    pub flags: Flags,
    /// The update's level.
    pub level: Level,
    /// Its publisher.
    pub src: Address,
    /// The group or endpoint that it was sent to.
    pub dst: Address,
    /// Its bytes.
    pub payload: &'a [u8],
}

/// Writes the header of a record whose payload has `payload_len` bytes.
pub fn encode_record_header(
    flags: Flags,
    level: Level,
    src: Address,
    dst: Address,
    payload_len: u16,
) -> [u8; RECORD_HEADER_LEN] {
    let mut bytes = [0; RECORD_HEADER_LEN];
    bytes[0..2].copy_from_slice(&payload_len.to_be_bytes());
    bytes[2] = level.0;
    bytes[3] = flags.0;
    bytes[4..8].copy_from_slice(&src.0.to_be_bytes());
    bytes[8..12].copy_from_slice(&dst.0.to_be_bytes());
    bytes
}

/// A bundle whose records have been checked to tile its payload.
#[derive(Clone, Copy, Debug, Default)]
pub struct Bundle<'a> {
    records: &'a [u8],
}

impl<'a> Bundle<'a> {
    /// Checks that the packet's payload is a sequence of whole records.
    ///
    /// # Errors
    /// [`WireError::Length`] if a record runs over the end.
    pub fn new_checked(packet: &Packet<'a>) -> Result<Bundle<'a>, WireError> {
        let mut rest = packet.payload();
        while !rest.is_empty() {
            rest = split_record(rest).ok_or(WireError::Length)?.1;
        }
        Ok(Bundle { records: packet.payload() })
    }

    /// The bundle's updates, in order, without filler.
    pub fn records(&self) -> Records<'a> {
        Records { rest: self.records }
    }
}

/// Iterator over the updates of a [`Bundle`].
#[derive(Clone, Debug)]
pub struct Records<'a> {
    rest: &'a [u8],
}

impl<'a> Iterator for Records<'a> {
    type Item = Record<'a>;

    fn next(&mut self) -> Option<Record<'a>> {
        loop {
            let (record, rest) = split_record(self.rest)?;
            self.rest = rest;
            if !record.flags.contains(Flags::FILLER) {
                return Some(record);
            }
        }
    }
}

fn split_record(bytes: &[u8]) -> Option<(Record<'_>, &[u8])> {
    let (head, rest) = bytes.split_first_chunk::<RECORD_HEADER_LEN>()?;
    let payload_len = u16::from_be_bytes([head[0], head[1]]);
    let (payload, rest) = rest.split_at_checked(payload_len.into())?;
    let record = Record {
        level: Level(head[2]),
        flags: Flags(head[3]),
        src: Address(u32::from_be_bytes([head[4], head[5], head[6], head[7]])),
        dst: Address(u32::from_be_bytes([head[8], head[9], head[10], head[11]])),
        payload,
    };
    Some((record, rest))
}

/// Writes a bundle record by record into a buffer of the caller's.
#[derive(Debug)]
pub struct BundleWriter<'a> {
    out: &'a mut [u8],
    len: usize,
}

impl<'a> BundleWriter<'a> {
    /// A writer into `out`, of which at most [`MAX_DATAGRAM`] bytes are used.
    ///
    /// # Errors
    /// [`WireError::Length`] if `out` has no room for the base header.
    pub fn new(out: &'a mut [u8]) -> Result<BundleWriter<'a>, WireError> {
        if out.len() < HEADER_LEN {
            return Err(WireError::Length);
        }
        let room = out.len().min(MAX_DATAGRAM);
        Ok(BundleWriter { out: &mut out[..room], len: HEADER_LEN })
    }

    /// Adds an update to `group` from `src`. Returns whether it fitted.
    pub fn push(
        &mut self,
        src: Address,
        group: Group,
        level: Level,
        flags: Flags,
        payload: &[u8],
    ) -> bool {
        let end = self.len + RECORD_HEADER_LEN + payload.len();
        let Some(slot) = self.out.get_mut(self.len..end) else { return false };
        let (head, body) = slot.split_at_mut(RECORD_HEADER_LEN);
        let dst = group.address();
        head.copy_from_slice(&encode_record_header(flags, level, src, dst, payload.len() as u16));
        body.copy_from_slice(payload);
        self.len = end;
        true
    }

    /// Whether no update has been added.
    pub fn is_empty(&self) -> bool {
        self.len == HEADER_LEN
    }

    /// Writes the base header, with its hop limit, and returns the datagram's length.
    pub fn finish(self, header: &Header) -> usize {
        let payload_len = (self.len - HEADER_LEN) as u16;
        self.out[..HEADER_LEN].copy_from_slice(&header.encode(payload_len));
        self.len
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Comtree, Kind, seeded};
    use proptest::prelude::*;

    fn header() -> Header {
        Header::new(Kind::Bundle, Comtree(1), Address(2), Address::UNSPECIFIED)
    }

    #[test]
    fn a_full_bundle_says_so() {
        let mut out = [0; MAX_DATAGRAM];
        let mut writer = BundleWriter::new(&mut out).unwrap();
        let mut count = 0;
        while writer.push(Address(2), Group::new(1), Level(0), Flags(0), &[7; 100]) {
            count += 1;
        }
        assert_eq!(count, (MAX_DATAGRAM - HEADER_LEN) / 112);
        let len = writer.finish(&header());
        let packet = Packet::new_checked(&out[..len]).unwrap();
        assert_eq!(Bundle::new_checked(&packet).unwrap().records().count(), count);
    }

    #[test]
    fn filler_is_passed_over() {
        let mut out = [0; 256];
        let mut writer = BundleWriter::new(&mut out).unwrap();
        assert!(writer.push(Address(2), Group::new(1), Level(0), Flags::FILLER, b"filler"));
        assert!(writer.push(Address(2), Group::new(1), Level(3), Flags(0), b"update"));
        let len = writer.finish(&header());
        let packet = Packet::new_checked(&out[..len]).unwrap();
        let payloads: Vec<_> = packet.updates().unwrap().map(|record| record.payload).collect();
        assert_eq!(payloads, [b"update"]);
    }

    #[test]
    fn a_record_over_the_end_is_refused() {
        let mut out = [0; 256];
        let mut writer = BundleWriter::new(&mut out).unwrap();
        writer.push(Address(2), Group::new(1), Level(0), Flags(0), b"update");
        let len = writer.finish(&header());
        out[HEADER_LEN + 1] += 1;
        let packet = Packet::new_checked(&out[..len]).unwrap();
        assert_eq!(Bundle::new_checked(&packet).unwrap_err(), WireError::Length);
        assert_eq!(packet.updates().err(), Some(WireError::Length));
    }

    proptest! {
        #![proptest_config(seeded())]

        #[test]
        fn records_survive_the_wire(
            records in proptest::collection::vec(
                (any::<u32>(), 0..=Group::MAX, any::<u8>(), proptest::collection::vec(any::<u8>(), 0..80)),
                0..12,
            ),
            hop_limit: u8,
        ) {
            let mut out = [0; MAX_DATAGRAM];
            let mut writer = BundleWriter::new(&mut out).unwrap();
            for (src, group, level, payload) in &records {
                let fits = writer.push(Address(*src), Group::new(*group), Level(*level), Flags(0), payload);
                prop_assert!(fits);
            }
            let len = writer.finish(&Header { hop_limit, ..header() });
            let packet = Packet::new_checked(&out[..len]).unwrap();
            prop_assert_eq!(packet.header().hop_limit, hop_limit);
            let back: Vec<_> = packet.updates().unwrap()
                .map(|r| (r.src.0, r.dst.group().unwrap().number(), r.level.0, r.payload.to_vec()))
                .collect();
            prop_assert_eq!(back, records);
        }

        #[test]
        fn no_body_panics(body in proptest::collection::vec(any::<u8>(), 0..1432)) {
            let mut out = [0; MAX_DATAGRAM];
            let len = header().encode_packet(&body, &mut out).unwrap();
            let packet = Packet::new_checked(&out[..len]).unwrap();
            if let Ok(bundle) = Bundle::new_checked(&packet) {
                let seen: usize = bundle.records().map(|r| r.payload.len()).sum();
                prop_assert!(seen <= body.len());
            }
        }
    }
}
