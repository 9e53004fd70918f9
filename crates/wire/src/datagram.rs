//! What every datagram keeps to: its first byte, and its lengths.

/// First byte of every packet, without its class: two bits, `10`, that tell it from QUIC on the
/// same port (RFC 9443), and three of version. The last three are the packet's
/// [class](crate::Class).
pub const VERSION: u8 = 0x88;
/// Length of the base header in bytes.
pub const HEADER_LEN: usize = 16;
/// The bytes of the header that stay in clear when the rest is sealed: what steering needs.
pub const CLEAR_LEN: usize = 8;
/// Bytes at the end of a datagram that are kept for an authentication tag.
pub const SEAL_LEN: usize = 16;
/// The longest datagram in bytes of UDP payload: IPv6 + UDP + this fit a 1,500-byte MTU.
pub const MAX_DATAGRAM: usize = 1452;
/// The longest datagram in bytes that every path takes: it fits IPv6's least MTU of 1,280.
pub const SAFE_DATAGRAM: usize = 1232;
/// The longest update in bytes: one that fits a safe datagram with all that may ever stand beside
/// it, and a browser's datagrams, which are shorter.
pub const MAX_UPDATE: usize = 1024;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_byte_is_none_of_quics() {
        // RFC 9443: QUIC has 0x40 to 0x7f and 0xc0 to 0xff.
        assert_eq!(VERSION & 0xc0, 0x80);
    }
}
