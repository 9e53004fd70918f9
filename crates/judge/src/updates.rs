//! The updates that a packet carries.

use canopy_wire::{Bundle, Kind, Packet, WireError};

/// How many updates a packet carries; none if it is neither data nor a bundle.
///
/// # Errors
/// It says that it is a bundle, and its records do not fit.
pub fn updates_in(packet: &Packet<'_>) -> Result<u64, WireError> {
    match packet.header().kind {
        Kind::Data => Ok(1),
        Kind::Bundle => Ok(Bundle::new_checked(packet)?.records().count() as u64),
        _ => Ok(0),
    }
}
