//! Sealed packets: what two sides who share a secret send each other.
//!
//! A packet is laid out as if it were cleartext and sealed last. The first [`CLEAR_LEN`] bytes
//! stay readable, because steering needs them, and are authenticated; the rest is encrypted, and a
//! tag follows. The packet's number, 64 bits of which 32 are in the header, is the nonce: so no
//! number is ever used twice under one key, and a receiver knows what it has seen.

mod epochs;
mod group;
mod reader;
mod window;

use crate::secret::Secret;
use canopy_wire::{CLEAR_LEN, Class, Lane, SEAL_LEN, Suite, VERSION};
use epochs::{EpochKey, Ladder};
use ring::aead::{Aad, Tag};
use window::ReplayWindow;

pub use epochs::PacketsPerKey;
pub use group::{GroupKeyMaker, GroupOpener, GroupSealer};
pub use reader::Reader;

/// Why a sealed packet is not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenError {
    /// It was not sealed with the session's key, or has been altered.
    Forged,
    /// It was opened before, or is too old to tell.
    Replayed,
}

/// Seals packets in one direction.
#[derive(Debug)]
pub(crate) struct Sealer {
    ladder: Ladder,
    key: EpochKey,
    /// The number of the next packet.
    next: u64,
}

/// Opens packets of one direction.
#[derive(Debug)]
pub(crate) struct Opener {
    ladder: Ladder,
    key: EpochKey,
    /// The key of a neighbouring epoch: in the first half of an epoch that of the one before, if there was one,
    /// and in the second half that of the next. Few sessions live to see one.
    neighbour: Option<Box<EpochKey>>,
    window: ReplayWindow,
    /// What a link has seen in each lane. One that is flooded is read far behind another, and its
    /// packets are not old for that. No packet can change lanes, for its session's number is
    /// authenticated.
    lanes: Option<Box<[ReplayWindow; Lane::COUNT as usize]>>,
}

impl Sealer {
    pub(crate) fn new(suite: Suite, secret: &Secret, per_key: PacketsPerKey) -> Sealer {
        let mut ladder = Ladder::new(suite, secret, per_key);
        let key = ladder.climb();
        Sealer { ladder, key, next: 0 }
    }

    /// Seals the packet of `len` bytes at the front of `datagram`, behind which there is room for
    /// [`SEAL_LEN`] bytes. Returns the length of what is to be sent.
    ///
    /// # Panics
    /// If there is no such room, or no header.
    #[inline]
    pub(crate) fn seal(&mut self, datagram: &mut [u8], len: usize) -> usize {
        let number = self.next;
        self.next += 1;
        if self.ladder.per_key().epoch_of(number) != self.key.epoch() {
            self.key = self.ladder.climb();
        }
        let (packet, rest) = datagram.split_at_mut(len);
        let (clear, body) = packet.split_at_mut(CLEAR_LEN);
        clear[0] = VERSION | Class::Sealed as u8;
        clear[4..8].copy_from_slice(&(number as u32).to_be_bytes());
        let tag = self.key.seal(number, Aad::from(&*clear), body);
        rest[..SEAL_LEN].copy_from_slice(tag.as_ref());
        len + SEAL_LEN
    }
}

impl Opener {
    pub(crate) fn new(suite: Suite, secret: &Secret, per_key: PacketsPerKey) -> Opener {
        let mut ladder = Ladder::new(suite, secret, per_key);
        let key = ladder.climb();
        Opener { ladder, key, neighbour: None, window: ReplayWindow::new(), lanes: None }
    }

    /// Opens a link's packets, whose lanes are read one far behind another.
    pub(crate) fn by_lane(self) -> Opener {
        let lanes = core::array::from_fn(|_| ReplayWindow::new());
        Opener { lanes: Some(Box::new(lanes)), ..self }
    }

    /// Opens a sealed datagram where it lies. What is returned is the packet in cleartext. `may_note`
    /// says whether the packet counts as seen from now on: not if it came by a path that is still to
    /// be proved, for then another copy may be on its way by the right one.
    ///
    /// # Errors
    /// [`OpenError`]. The datagram's bytes are of no use then.
    #[inline]
    pub(crate) fn open<'a>(
        &mut self,
        datagram: &'a mut [u8],
        may_note: bool,
    ) -> Result<&'a mut [u8], OpenError> {
        let number = self.number_of(datagram).ok_or(OpenError::Forged)?;
        let lane = usize::from(lane_of(datagram).number());
        if self.lanes.as_ref().map_or(&self.window, |lanes| &lanes[lane]).has(number) {
            return Err(OpenError::Replayed);
        }
        let packet = self.decrypt(number, datagram).ok_or(OpenError::Forged)?;
        if may_note {
            match &mut self.lanes {
                Some(lanes) => {
                    lanes[lane].note(number);
                    self.window.reach(number);
                }
                None => self.window.note(number),
            }
            self.follow(number);
        }
        Ok(packet)
    }

    /// The number of a sealed datagram, if that is long enough for a seal.
    #[inline]
    fn number_of(&self, datagram: &[u8]) -> Option<u64> {
        let (clear, rest) = datagram.split_first_chunk::<CLEAR_LEN>()?;
        let low = u32::from_be_bytes([clear[4], clear[5], clear[6], clear[7]]);
        (rest.len() >= SEAL_LEN).then(|| self.window.full(low))
    }

    /// Decrypts where it lies. What is returned is the packet in cleartext.
    #[inline]
    fn decrypt<'a>(&self, number: u64, datagram: &'a mut [u8]) -> Option<&'a mut [u8]> {
        let key = self.key_of(self.ladder.per_key().epoch_of(number))?;
        open_with(key, number, datagram)
    }

    fn key_of(&self, epoch: u64) -> Option<&EpochKey> {
        let is_it = |key: &&EpochKey| key.epoch() == epoch;
        Some(&self.key).filter(is_it).or(self.neighbour.as_deref().filter(is_it))
    }

    /// Goes on to the keys that are needed from this packet on.
    fn follow(&mut self, number: u64) {
        let per_key = self.ladder.per_key();
        let epoch = per_key.epoch_of(number);
        if epoch > self.key.epoch()
            && let Some(next) = &mut self.neighbour
        {
            // The key before stays for late packets.
            core::mem::swap(&mut self.key, next);
        }
        if per_key.is_in_second_half(number) && self.ladder.next_epoch() == epoch + 1 {
            self.neighbour = Some(Box::new(self.ladder.climb()));
        }
    }
}

/// Decrypts with this key where it lies. What is returned is the packet in cleartext.
#[inline]
fn open_with<'a>(key: &EpochKey, number: u64, datagram: &'a mut [u8]) -> Option<&'a mut [u8]> {
    let (packet, tag) = datagram.split_at_mut_checked(datagram.len().checked_sub(SEAL_LEN)?)?;
    let (clear, body) = packet.split_at_mut_checked(CLEAR_LEN)?;
    let tag = Tag::try_from(&*tag).ok()?;
    if !key.open(number, Aad::from(&*clear), tag, body) {
        return None;
    }
    packet[0] = VERSION | Class::Session as u8;
    Some(packet)
}

/// In which lane a sealed datagram is received.
#[inline]
fn lane_of(datagram: &[u8]) -> Lane {
    Lane::new(datagram.get(3).copied().unwrap_or_default())
}

#[cfg(test)]
mod tests;
