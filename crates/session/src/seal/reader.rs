//! Whoever checks what a session's two sides send reads it with the keys of all its epochs.

use super::epochs::{EpochKey, Ladder, PacketsPerKey};
use super::open_with;
use crate::secret::Secret;
use canopy_wire::Suite;

/// Reads what one side of a session seals, in any order and any number of times, up to its packet
/// 2³². It is for tests: it forgets no key.
#[derive(Debug)]
pub struct Reader {
    ladder: Ladder,
    /// Those of the epochs that packets were followed to, and of the one after them.
    keys: Vec<EpochKey>,
}

impl Reader {
    pub(crate) fn new(suite: Suite, secret: &Secret, per_key: PacketsPerKey) -> Reader {
        let mut ladder = Ladder::new(suite, secret, per_key);
        let keys = vec![ladder.climb(), ladder.climb()];
        Reader { ladder, keys }
    }

    /// Opens a copy of a datagram, whether or not it has been opened before.
    pub fn peek(&self, datagram: &[u8]) -> Option<Vec<u8>> {
        let number = number_of(datagram)?;
        let key = self.keys.get(self.ladder.per_key().epoch_of(number) as usize)?;
        let mut copy = datagram.to_vec();
        let len = open_with(key, number, &mut copy)?.len();
        copy.truncate(len);
        Some(copy)
    }

    /// Learns the keys by which what comes after a datagram can be read, if that is itself read with
    /// the latest that is known. Returns the datagram's key epoch.
    pub fn follow(&mut self, datagram: &[u8]) -> Option<u64> {
        let epoch = self.ladder.per_key().epoch_of(number_of(datagram)?);
        if epoch + 1 == self.ladder.next_epoch() && self.peek(datagram).is_some() {
            self.keys.push(self.ladder.climb());
        }
        Some(epoch)
    }
}

/// The number of a sealed datagram, as far as it travels.
fn number_of(datagram: &[u8]) -> Option<u64> {
    let low = datagram.get(4..8)?.first_chunk()?;
    Some(u32::from_be_bytes(*low).into())
}
