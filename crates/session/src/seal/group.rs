//! Group keys: what a relay sends to many members of a comtree is sealed once for all of them.
//!
//! A key is drawn at random, has a number, which stands in clear on what it seals, and seals each
//! counter once. It has no epochs after it: before it has sealed too much it makes room for another.

use super::OpenError;
use super::epochs::{EpochKey, Ladder, PacketsPerKey};
use super::window::ReplayWindow;
use crate::secret::{Secret, SeededRandom};
use canopy_wire::{
    CLEAR_LEN, Class, GroupKey, GroupKeyNumber, SEAL_LEN, SessionId, Suite, VERSION,
};
use ring::aead::Aad;
use std::collections::VecDeque;

/// Draws group keys, and numbers them.
#[derive(Clone)]
pub struct GroupKeyMaker {
    random: SeededRandom,
    next: GroupKeyNumber,
    step: u32,
    per_key: PacketsPerKey,
    /// What was made, for whoever is to be told ([`GroupKeyMaker::log`]).
    log: Option<VecDeque<GroupKey>>,
}

impl GroupKeyMaker {
    /// Keys from a seed that no other maker has: of data thread `thread`, of so many.
    pub fn new(seed: &[u8], thread: u16, threads: u16) -> GroupKeyMaker {
        let purpose = [&b"canopy group keys "[..], &thread.to_be_bytes()].concat();
        let random = SeededRandom::new(seed, &purpose);
        let next = GroupKeyNumber::new(thread.into());
        let per_key = PacketsPerKey::PROTOCOL;
        GroupKeyMaker { random, next, step: threads.into(), per_key, log: None }
    }

    /// Its keys seal fewer packets than the protocol says.
    #[cfg(test)]
    pub(crate) fn with_packets_per_key(self, per_key: PacketsPerKey) -> GroupKeyMaker {
        GroupKeyMaker { per_key, ..self }
    }

    /// Keeps what it makes from now on for [`GroupKeyMaker::poll_log`]: for tests.
    pub fn log(&mut self) {
        self.log = Some(VecDeque::new());
    }

    /// The next key that was made.
    pub fn poll_log(&mut self) -> Option<GroupKey> {
        self.log.as_mut()?.pop_front()
    }

    /// A key that nobody else has.
    pub fn make(&mut self, suite: Suite) -> GroupSealer {
        let number = self.next;
        self.next = number.after(self.step);
        let sealer = GroupSealer::new(number, suite, self.random.draw(), self.per_key);
        if let Some(log) = &mut self.log {
            log.push_back(sealer.to_tell());
        }
        sealer
    }
}

/// Seals with a group key.
pub struct GroupSealer {
    number: GroupKeyNumber,
    suite: Suite,
    per_key: PacketsPerKey,
    secret: Secret,
    key: EpochKey,
    /// The counter of the next packet.
    next: u64,
}

impl GroupSealer {
    fn new(
        number: GroupKeyNumber,
        suite: Suite,
        secret: Secret,
        per_key: PacketsPerKey,
    ) -> GroupSealer {
        let key = Ladder::new(suite, &secret, per_key).climb();
        GroupSealer { number, suite, per_key, secret, key, next: 0 }
    }

    /// Its number.
    pub fn number(&self) -> GroupKeyNumber {
        self.number
    }

    /// What a member needs to open what is sealed from now on.
    pub fn to_tell(&self) -> GroupKey {
        let GroupSealer { number, suite, secret, next, .. } = *self;
        GroupKey { number, suite, first: next as u32, secret }
    }

    /// How many packets more it seals.
    pub fn room(&self) -> u64 {
        self.per_key.count() - self.next
    }

    /// Whether it has sealed half of what it may, so that another should be made.
    pub fn is_half_used(&self) -> bool {
        self.room() <= self.per_key.count() / 2
    }

    /// Seals the packet at the front of `datagram`, behind which there are [`SEAL_LEN`] bytes of room.
    /// False if the key has sealed all that it may, or the datagram has no room for header and seal.
    #[inline]
    pub fn seal(&mut self, datagram: &mut [u8]) -> bool {
        let Some(len) = datagram.len().checked_sub(SEAL_LEN).filter(|len| *len >= CLEAR_LEN) else {
            return false;
        };
        if self.room() == 0 {
            return false;
        }
        let counter = self.next;
        self.next += 1;
        let (packet, rest) = datagram.split_at_mut(len);
        let (clear, body) = packet.split_at_mut(CLEAR_LEN);
        clear[..4].copy_from_slice(&self.number.number().to_be_bytes());
        clear[0] = VERSION | Class::Group as u8;
        clear[4..].copy_from_slice(&(counter as u32).to_be_bytes());
        let tag = self.key.seal(counter, Aad::from(&*clear), body);
        rest.copy_from_slice(tag.as_ref());
        true
    }
}

/// Opens what was sealed with a group key, each packet once.
#[derive(Debug)]
pub struct GroupOpener {
    number: GroupKeyNumber,
    key: EpochKey,
    window: ReplayWindow,
}

impl GroupOpener {
    /// Opens what is sealed from the time on when the key was told.
    pub fn new(told: &GroupKey) -> GroupOpener {
        let key = Ladder::new(told.suite, &told.secret, PacketsPerKey::PROTOCOL).climb();
        let window = ReplayWindow::starting_at(told.first.into());
        GroupOpener { number: told.number, key, window }
    }

    /// The number of its key.
    pub fn number(&self) -> GroupKeyNumber {
        self.number
    }

    /// Opens a datagram where it lies. What is returned is the packet in cleartext, of no session.
    ///
    /// # Errors
    /// [`OpenError`]. The datagram's bytes are of no use then.
    #[inline]
    pub fn open<'a>(&mut self, datagram: &'a mut [u8]) -> Result<&'a mut [u8], OpenError> {
        let counter = counter_of(datagram).ok_or(OpenError::Forged)?;
        if self.window.has(counter) {
            return Err(OpenError::Replayed);
        }
        let packet = open_for_all(&self.key, counter, datagram).ok_or(OpenError::Forged)?;
        self.window.note(counter);
        Ok(packet)
    }

    /// Opens a copy of a datagram, whether or not it has been opened before, and notes nothing.
    pub fn peek(&self, datagram: &[u8]) -> Option<Vec<u8>> {
        let mut copy = datagram.to_vec();
        let counter = counter_of(&copy)?;
        open_for_all(&self.key, counter, &mut copy).map(|packet| packet.to_vec())
    }
}

/// The counter of a datagram that says that it is sealed with a group key.
fn counter_of(datagram: &[u8]) -> Option<u64> {
    let [first, _, _, _, counter @ ..] = *datagram.first_chunk::<CLEAR_LEN>()?;
    let counter = u64::from(u32::from_be_bytes(counter));
    let is_in_range = counter < PacketsPerKey::PROTOCOL.count();
    let is_one = first == VERSION | Class::Group as u8 && is_in_range;
    is_one.then_some(counter)
}

/// Decrypts where it lies. What is returned is the packet in cleartext, of no session.
#[inline]
fn open_for_all<'a>(key: &EpochKey, counter: u64, datagram: &'a mut [u8]) -> Option<&'a mut [u8]> {
    let packet = super::open_with(key, counter, datagram)?;
    packet[..4].copy_from_slice(&SessionId::NONE.number().to_be_bytes());
    packet[0] = VERSION | Class::Session as u8;
    Some(packet)
}

impl core::fmt::Debug for GroupSealer {
    /// Without the key.
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "GroupSealer({}, next {})", self.number.number(), self.next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use canopy_wire::{Comtree, Header, Kind, MAX_DATAGRAM, Packet};

    fn maker() -> GroupKeyMaker {
        GroupKeyMaker::new(&[7; 16], 1, 2)
    }

    fn sealed(sealer: &mut GroupSealer, payload: &[u8]) -> Vec<u8> {
        let mut out = [0; MAX_DATAGRAM];
        let header = Header::new(Kind::Updates, SessionId::NONE, Comtree(0x0102_0304));
        let len = header.encode_packet(payload, &mut out).unwrap();
        assert!(sealer.seal(&mut out[..len + SEAL_LEN]));
        out[..len + SEAL_LEN].to_vec()
    }

    #[test]
    fn what_is_sealed_for_a_group_is_opened_by_its_key_only_and_once() {
        for suite in Suite::ALL {
            let mut maker = maker();
            let (mut one, other) = (maker.make(*suite), maker.make(*suite));
            let mut openers = [&one, &other].map(|sealer| GroupOpener::new(&sealer.to_tell()));
            let payload = b"a payload that nobody else reads";
            let datagram = sealed(&mut one, payload);
            assert!(!datagram.windows(4).any(|four| payload.windows(4).any(|some| some == four)));
            assert!(!datagram.windows(4).any(|four| four == [1, 2, 3, 4]), "the comtree shows");
            assert_eq!(GroupKeyNumber::of(&datagram), Some(one.number()));
            assert_eq!(openers[1].open(&mut datagram.clone()), Err(OpenError::Forged));
            let mut copy = datagram.clone();
            let packet = Packet::new_checked(openers[0].open(&mut copy).unwrap()).unwrap();
            assert_eq!(
                (packet.header().session, packet.payload()),
                (SessionId::NONE, &payload[..])
            );
            assert_eq!(openers[0].open(&mut datagram.clone()), Err(OpenError::Replayed));
            for at in 0..datagram.len() {
                let mut altered = sealed(&mut one, payload);
                altered[at] ^= 1;
                // The opener is not asked about the number, which says whose key it is.
                assert!(openers[0].open(&mut altered).is_err(), "byte {at}");
            }
        }
    }

    #[test]
    fn who_is_told_a_key_late_takes_nothing_that_was_sealed_before() {
        let mut sealer = maker().make(Suite::Aes128Gcm);
        let before: Vec<_> = (0..100).map(|_| sealed(&mut sealer, b"before")).collect();
        let mut opener = GroupOpener::new(&sealer.to_tell());
        for datagram in &before {
            assert_eq!(opener.open(&mut datagram.clone()), Err(OpenError::Replayed));
        }
        assert!(opener.open(&mut sealed(&mut sealer, b"after")).is_ok());
    }

    #[test]
    fn a_group_key_seals_no_more_than_it_may_and_no_counter_twice() {
        let per_key = PacketsPerKey::at_least(4096);
        let mut sealer = maker().with_packets_per_key(per_key).make(Suite::Aes128Gcm);
        let mut opener = GroupOpener::new(&sealer.to_tell());
        let mut datagram = [0; 40];
        for counter in 0..per_key.count() {
            assert_eq!(sealer.is_half_used(), counter >= per_key.count() / 2);
            assert!(sealer.seal(&mut datagram));
            assert_eq!(datagram[4..8], (counter as u32).to_be_bytes());
        }
        assert!(opener.open(&mut datagram).is_ok());
        assert!(!sealer.seal(&mut datagram) && sealer.room() == 0);
    }

    #[test]
    fn no_two_keys_are_alike_and_their_numbers_grow() {
        let mut secrets = std::collections::BTreeSet::new();
        let mut numbers = std::collections::BTreeSet::new();
        for thread in 0..3 {
            let mut maker = GroupKeyMaker::new(&[7; 16], thread, 3);
            let mut last = None;
            for _ in 0..50 {
                let key = maker.make(Suite::Aes128Gcm).to_tell();
                assert!(secrets.insert(key.secret) && numbers.insert(key.number));
                assert!(last.is_none_or(|last| key.number.is_later_than(last)));
                last = Some(key.number);
            }
        }
        // Another seed, as after a restart, has the same numbers and other keys.
        let after = GroupKeyMaker::new(&[8; 16], 0, 3).make(Suite::Aes128Gcm).to_tell();
        assert!(secrets.insert(after.secret) && !numbers.insert(after.number));
    }
}
