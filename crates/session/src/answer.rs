//! What a relay answers.

use crate::seal::Sealer;
use canopy_wire::{Comtree, Refused, RefusedReason, SessionId, Unknown};

/// The stamp with which a relay answers a proof that it takes; no keepalive carries it.
pub(crate) const REBIND_STAMP: u64 = 0;

/// A reply to whom a datagram came from; empty when there is none.
#[derive(Clone, Debug)]
pub struct Answer {
    bytes: [u8; Answer::ROOM],
    len: usize,
}

impl Answer {
    pub(crate) const ROOM: usize = 192;

    /// No reply yet.
    pub const fn new() -> Answer {
        Answer { bytes: [0; Answer::ROOM], len: 0 }
    }

    /// The datagram to send; empty for none.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    pub(crate) fn write<E>(&mut self, encode: impl FnOnce(&mut [u8]) -> Result<usize, E>) {
        self.len = encode(&mut self.bytes).unwrap_or(0);
    }

    /// Writes a packet that carries the number `to`, whatever was encoded.
    pub(crate) fn write_sealed<E>(
        &mut self,
        sealer: &mut Sealer,
        to: SessionId,
        encode: impl FnOnce(&mut [u8]) -> Result<usize, E>,
    ) {
        self.write(encode);
        if self.len > 0 {
            self.bytes[1..4].copy_from_slice(&to.number().to_be_bytes()[1..]);
            self.len = sealer.seal(&mut self.bytes, self.len);
        }
    }
}

impl Default for Answer {
    fn default() -> Answer {
        Answer::new()
    }
}

/// Tells whoever sent a connect why it is refused.
pub fn refuse(nonce: u64, comtree: Comtree, reason: RefusedReason, answer: &mut Answer) {
    answer.write(|out| Refused { nonce, reason }.encode(comtree, out));
}

/// Tells whoever sent a sealed packet that there is no such session. `echo` is what was sealed in it,
/// before anyone tried to open it.
pub fn unknown(id: SessionId, echo: u64, answer: &mut Answer) {
    answer.write(|out| Unknown { echo }.encode(Comtree(0), id, out));
}
