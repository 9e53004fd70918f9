//! The numbers by which a data thread's tables name each other's entries.

/// No entry.
pub(crate) const NONE: u32 = u32::MAX;

/// The number of a port in its table.
pub(crate) type PortIndex = u32;

/// The number of a comtree's place in the table.
pub(crate) type ComtreeIndex = u32;

/// The number of a flow: its place, and above it how often the place was another's, so that nobody
/// takes one for another.
pub(crate) type FlowId = u32;

/// The number of an update in the log of those that wait: they count up without end.
pub(crate) type LogNumber = u64;

/// No update of the log.
pub(crate) const NOTHING: LogNumber = LogNumber::MAX;

/// Spreads a number over all bits: multiplied, and the halves of the product folded.
pub(crate) fn fold(word: u64) -> u64 {
    let product = u128::from(word ^ 0x9e37_79b9_7f4a_7c15) * 0xd6e8_feb8_6659_fd93;
    product as u64 ^ (product >> 64) as u64
}

/// The same with two secret numbers, for tables whose keys come from the wire: whoever does not know them cannot
/// aim at keys that collide.
pub(crate) fn fold_keyed(word: u64, [added, factor]: [u64; 2]) -> u64 {
    let product = u128::from(word ^ added) * u128::from(factor | 1);
    product as u64 ^ (product >> 64) as u64
}
