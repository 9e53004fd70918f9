//! Randomness by which relays do not all do something at once.

/// A random number from 0 to 1, another each time.
pub(super) fn spread() -> f64 {
    let bytes = crate::token::random::<4>().unwrap_or([0x80, 0, 0, 0]);
    f64::from(u32::from_be_bytes(bytes)) / f64::from(u32::MAX)
}
