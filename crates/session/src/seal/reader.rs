//! Whoever checks what a session's two sides send reads it with the keys of all its epochs.

use super::epochs::{EpochKey, Ladder, PacketsPerKey};
use super::open_with;
use crate::secret::{Secret, derive};
use canopy_wire::{CLEAR_LEN, Class, SEAL_LEN, Suite, VERSION};
use ring::aead::Aad;

/// Reads what one side of a session seals, in any order and any number of times, up to its packet
/// 2³². It is for tests: it forgets no key.
#[derive(Debug)]
pub struct Reader {
    print: [u8; 32],
    ladder: Ladder,
    /// Those of the epochs that packets were followed to, and of the one after them.
    keys: Vec<EpochKey>,
}

impl Reader {
    pub(crate) fn new(suite: Suite, secret: &Secret, per_key: PacketsPerKey) -> Reader {
        let mut ladder = Ladder::new(suite, secret, per_key);
        let keys = vec![ladder.climb(), ladder.climb()];
        Reader { print: derive(secret, b"canopy print"), ladder, keys }
    }

    /// What no other secret has, and what tells nothing of this one.
    pub fn print(&self) -> [u8; 32] {
        self.print
    }

    /// How many packets each key seals.
    pub fn packets_per_key(&self) -> PacketsPerKey {
        self.ladder.per_key()
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

    /// Learns the key by which what comes after a datagram can be read, if that is itself read with the
    /// latest that is known. So it does if every datagram is told that is sealed. Returns whether the
    /// datagram is the first of a key after the session's first.
    pub fn follow(&mut self, datagram: &[u8]) -> bool {
        let epoch = number_of(datagram).map(|number| self.ladder.per_key().epoch_of(number));
        let is_latest = epoch.is_some_and(|epoch| epoch + 1 == self.ladder.next_epoch());
        let is_first = is_latest && self.peek(datagram).is_some();
        if is_first {
            self.keys.push(self.ladder.climb());
        }
        is_first
    }

    /// Seals what is in a datagram anew under another number, as a sealer does that counts wrongly: so
    /// that whoever checks can be checked. `None` if the datagram is not read, or the number has no key.
    pub fn seal_as(&self, datagram: &[u8], number: u32) -> Option<Vec<u8>> {
        let mut copy = self.peek(datagram)?;
        let key = self.keys.get(self.ladder.per_key().epoch_of(number.into()) as usize)?;
        copy[0] = VERSION | Class::Sealed as u8;
        copy[4..CLEAR_LEN].copy_from_slice(&number.to_be_bytes());
        let (clear, body) = copy.split_at_mut(CLEAR_LEN);
        let tag = key.seal(number.into(), Aad::from(&*clear), body);
        let sealed = [&copy, tag.as_ref()].concat();
        debug_assert_eq!(sealed.len(), copy.len() + SEAL_LEN);
        Some(sealed)
    }
}

/// The number of a sealed datagram, as far as it travels.
fn number_of(datagram: &[u8]) -> Option<u64> {
    let low = datagram.get(4..8)?.first_chunk()?;
    Some(u32::from_be_bytes(*low).into())
}
