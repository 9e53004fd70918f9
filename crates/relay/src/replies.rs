//! Replies that wait for the next batch. Those to strangers, who have proved nothing, are apart:
//! they come last, and not faster than a rate, so that no flood of hellos costs a session its
//! answer.

use crate::bucket::Rate;
use canopy_wire::{MAX_DATAGRAM, Path};

/// Bytes and replies that one turn can queue.
const MAX_REPLY_BYTES: usize = 256 << 10;
const MAX_REPLIES: usize = 512;
/// Replies to strangers: 20,000 a second, and what a moment brings.
pub(crate) const STRANGERS: Rate = Rate::new(20_000, 512);
/// How many of those tell somebody that too many come from its ip. The others are for whoever is new.
pub(crate) const TURNED_AWAY: Rate = Rate::new(1000, 64);

/// A queue of replies.
pub(crate) struct Replies {
    bytes: Box<[u8]>,
    used: usize,
    list: Vec<(Path, usize)>,
}

impl Replies {
    pub(crate) fn new() -> Replies {
        let bytes = vec![0; MAX_REPLY_BYTES].into_boxed_slice();
        Replies { bytes, used: 0, list: Vec::with_capacity(MAX_REPLIES) }
    }

    /// Whether the replies must leave before more datagrams are read.
    pub(crate) fn is_half_full(&self) -> bool {
        self.list.len() > MAX_REPLIES / 2 || self.used > MAX_REPLY_BYTES / 2
    }

    /// Room for one more reply, which [`Replies::push`] then takes.
    pub(crate) fn room(&mut self) -> Option<&mut [u8]> {
        let room = self.bytes.get_mut(self.used..self.used + MAX_DATAGRAM)?;
        (self.list.len() < MAX_REPLIES).then_some(room)
    }

    /// Queues the first `len` bytes of the room.
    pub(crate) fn push(&mut self, to: Path, len: usize) {
        self.used += len;
        self.list.push((to, len));
    }

    /// Queues a copy of a datagram. Returns whether there was room.
    pub(crate) fn push_copy(&mut self, to: Path, datagram: &[u8]) -> bool {
        let Some(room) = self.room() else { return false };
        room[..datagram.len()].copy_from_slice(datagram);
        self.push(to, datagram.len());
        true
    }

    /// Hands all replies to `send`, in order.
    pub(crate) fn drain(&mut self, mut send: impl FnMut(Path, &[u8])) {
        let mut at = 0;
        for (to, len) in self.list.drain(..) {
            send(to, &self.bytes[at..at + len]);
            at += len;
        }
        self.used = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bucket::Bucket;
    use canopy_wire::Time;

    #[test]
    fn strangers_are_answered_at_their_rate() {
        let mut bucket = Bucket::default();
        let mut answered = 0;
        // A million hellos a second, for a second.
        for micro in 0..1_000_000u64 {
            answered += u32::from(bucket.take(&STRANGERS, Time::from_nanos(micro * 1000), 1));
        }
        assert!((20_000..=20_513).contains(&answered), "{answered}");
    }
}
