//! Fields of fixed width, one behind the other.

use crate::{HEADER_LEN, Header, Packet, WireError};

/// Reads fixed-width fields off the front of a payload.
pub(crate) struct Fields<'a>(pub(crate) &'a [u8]);

impl<'a> Fields<'a> {
    pub(crate) fn new(packet: &Packet<'a>, need: usize) -> Result<Fields<'a>, WireError> {
        Fields::of(packet.payload(), need)
    }

    pub(crate) fn of(payload: &'a [u8], need: usize) -> Result<Fields<'a>, WireError> {
        if payload.len() < need {
            let have = HEADER_LEN + payload.len();
            return Err(WireError::TooShort { have, need: HEADER_LEN + need });
        }
        Ok(Fields(payload))
    }

    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N], WireError> {
        let (head, rest) = self.0.split_first_chunk::<N>().ok_or(WireError::Length)?;
        self.0 = rest;
        Ok(*head)
    }

    pub(crate) fn u8(&mut self) -> Result<u8, WireError> {
        Ok(self.array::<1>()?[0])
    }

    pub(crate) fn u16(&mut self) -> Result<u16, WireError> {
        Ok(u16::from_be_bytes(self.array()?))
    }

    pub(crate) fn u32(&mut self) -> Result<u32, WireError> {
        Ok(u32::from_be_bytes(self.array()?))
    }

    pub(crate) fn u64(&mut self) -> Result<u64, WireError> {
        Ok(u64::from_be_bytes(self.array()?))
    }
}

/// Concatenates `fields` behind a header into `out`; the payload is zero-filled to `min_len`.
pub(crate) fn encode(
    header: &Header,
    fields: &[&[u8]],
    min_len: usize,
    out: &mut [u8],
) -> Result<usize, WireError> {
    let (head, body) = out.split_at_mut_checked(HEADER_LEN).ok_or(WireError::Length)?;
    head.copy_from_slice(&header.encode(0));
    Ok(HEADER_LEN + concatenate(fields, min_len, body)?)
}

/// Concatenates `fields` into `out`, with zeros up to `min_len`.
pub(crate) fn concatenate(
    fields: &[&[u8]],
    min_len: usize,
    out: &mut [u8],
) -> Result<usize, WireError> {
    let len = fields.iter().map(|field| field.len()).sum::<usize>().max(min_len);
    let mut rest = out.get_mut(..len).ok_or(WireError::Length)?;
    for field in fields {
        let (slot, behind) = rest.split_at_mut(field.len());
        slot.copy_from_slice(field);
        rest = behind;
    }
    rest.fill(0);
    Ok(len)
}
