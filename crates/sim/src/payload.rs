//! The bytes of an update, which say which update it is: its number, then bytes that follow from
//! that, from its publisher's series and from the length, so that a single changed bit shows.

use siphasher::sip::SipHasher13;
use std::hash::Hasher;

/// The shortest payload that says which update it is.
pub(crate) const MIN_PAYLOAD: usize = 16;

/// The payload of the update numbered `id`, which is numbered `series` by its publisher, of `len`
/// bytes.
pub(crate) fn compose(id: u64, series: u16, len: usize) -> Vec<u8> {
    let mut hasher = SipHasher13::new_with_keys(id, len as u64);
    hasher.write_u16(series);
    let filler = hasher.finish();
    let mut bytes = id.to_be_bytes().to_vec();
    bytes.extend((0..).flat_map(|word: u64| (filler ^ word).to_be_bytes()).take(len - bytes.len()));
    bytes
}

/// Which update a payload is that came as number `series` of its publisher's, if it is whole and
/// that is its number.
pub(crate) fn identify(series: u16, payload: &[u8]) -> Option<u64> {
    let id = u64::from_be_bytes(*payload.first_chunk()?);
    (payload.len() >= MIN_PAYLOAD && compose(id, series, payload.len()) == payload).then_some(id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_changed_bit_shows() {
        let payload = compose(77, 5, 33);
        assert_eq!(payload.len(), 33);
        assert_eq!(identify(5, &payload), Some(77));
        assert_eq!(identify(6, &payload), None);
        for bit in 0..33 * 8 {
            let mut changed = payload.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(identify(5, &changed), None, "bit {bit}");
        }
        assert_eq!(identify(5, &payload[..32]), None);
    }
}
