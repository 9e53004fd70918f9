//! Many updates as few datagrams: bundles, one behind the other, so that those of equal length can
//! leave in one segmented send.

use crate::{Epoch, Outgoing, PublishError};
use canopy_wire::{
    Address, Comtree, HEADER_LEN, Header, Kind, MAX_DATAGRAM, MAX_UPDATE, RECORD_HEADER_LEN,
    encode_record_header,
};

/// The most datagrams of one segmented send that every kernel takes.
const MAX_SEGMENTS: usize = 64;
/// The most bytes of one segmented send, below UDP's own limit.
const MAX_SEND_BYTES: usize = 65_000;

/// Updates laid out as bundles.
pub(crate) struct Bundles {
    bytes: Vec<u8>,
    /// The length of each datagram.
    lengths: Vec<usize>,
    updates: u64,
    sender: Sender,
}

/// Who publishes: what a bundle needs to know of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sender {
    pub(crate) comtree: Comtree,
    pub(crate) address: Address,
    pub(crate) epoch: Epoch,
}

/// Datagrams that may leave together: all as long as the first, but for the last, which may be
/// shorter.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Run<'a> {
    pub(crate) bytes: &'a [u8],
    pub(crate) segment: usize,
}

impl Bundles {
    /// Lays out `updates` in their order, as many in a datagram as fit.
    pub(crate) fn pack<'a>(
        sender: Sender,
        updates: impl IntoIterator<Item = Outgoing<'a>>,
    ) -> Result<Bundles, PublishError> {
        let mut bundles = Bundles { bytes: Vec::new(), lengths: Vec::new(), updates: 0, sender };
        let mut start = 0;
        for update in updates {
            update.check(sender.epoch)?;
            let record = RECORD_HEADER_LEN + update.payload.len();
            let begun = bundles.bytes.len() - start;
            if begun > 0 && begun + record > MAX_DATAGRAM {
                bundles.finish(start);
                start = bundles.bytes.len();
            }
            if bundles.bytes.len() == start {
                bundles.bytes.extend_from_slice(&[0; HEADER_LEN]);
            }
            bundles.push(&update);
        }
        if bundles.bytes.len() > start {
            bundles.finish(start);
        }
        Ok(bundles)
    }

    fn push(&mut self, update: &Outgoing<'_>) {
        let Outgoing { dst, level, payload, flags, .. } = *update;
        // No longer than `MAX_UPDATE`.
        let len = payload.len() as u16;
        let header = encode_record_header(flags, level, self.sender.address, dst, len);
        self.bytes.extend_from_slice(&header);
        self.bytes.extend_from_slice(payload);
        self.updates += 1;
    }

    /// Writes the header of the datagram that begins at `start`.
    fn finish(&mut self, start: usize) {
        let datagram = &mut self.bytes[start..];
        let Sender { comtree, address, .. } = self.sender;
        let header = Header::new(Kind::Bundle, comtree, address, Address::UNSPECIFIED);
        // No longer than `MAX_DATAGRAM`.
        let payload_len = (datagram.len() - HEADER_LEN) as u16;
        datagram[..HEADER_LEN].copy_from_slice(&header.encode(payload_len));
        self.lengths.push(datagram.len());
    }

    /// Who they are from.
    pub(crate) fn sender(&self) -> Sender {
        self.sender
    }

    /// How many updates there are.
    pub(crate) fn updates(&self) -> u64 {
        self.updates
    }

    /// The datagrams, in runs that may leave together.
    pub(crate) fn runs(&self) -> impl Iterator<Item = Run<'_>> {
        let (mut bytes, mut lengths) = (&self.bytes[..], &self.lengths[..]);
        std::iter::from_fn(move || {
            let segment = *lengths.first()?;
            let most = MAX_SEGMENTS.min(MAX_SEND_BYTES / segment).min(lengths.len());
            let mut count = lengths[..most].iter().take_while(|len| **len == segment).count();
            count += usize::from(lengths[..most].get(count).is_some_and(|len| *len < segment));
            let (run, rest) = bytes.split_at(lengths[..count].iter().sum());
            (bytes, lengths) = (rest, &lengths[count..]);
            Some(Run { bytes: run, segment })
        })
    }
}

impl Outgoing<'_> {
    /// Whether it may be sent in `epoch`.
    pub(crate) fn check(&self, epoch: Epoch) -> Result<(), PublishError> {
        if self.payload.len() > MAX_UPDATE {
            return Err(PublishError::TooLong(self.payload.len()));
        }
        match self.epoch {
            Some(only) if only != epoch => Err(PublishError::Stale),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Participant;
    use canopy_wire::{Bundle, Group, Level, Packet};

    fn sender() -> Sender {
        let epoch = Epoch::default().next();
        Sender { comtree: Comtree(1), address: Address(2), epoch }
    }

    fn pack(lengths: &[usize]) -> Bundles {
        let bytes = [7; MAX_UPDATE];
        let update = |len: &usize| Outgoing::new(Group::new(1), Level(0), &bytes[..*len]);
        Bundles::pack(sender(), lengths.iter().map(update)).unwrap()
    }

    fn updates_in(run: &Run<'_>) -> Vec<usize> {
        let count = |datagram| Packet::new_checked(datagram).unwrap().updates().unwrap().count();
        run.bytes.chunks(run.segment).map(count).collect()
    }

    #[test]
    fn updates_of_one_size_leave_in_one_run() {
        let bundles = pack(&[100; 30]);
        assert_eq!(bundles.runs().map(|run| updates_in(&run)).collect::<Vec<_>>(), [[12, 12, 6]]);
        assert_eq!(bundles.updates(), 30);
        assert_eq!(pack(&[]).runs().count(), 0);
    }

    #[test]
    fn a_run_ends_before_a_longer_datagram_and_after_a_shorter_one() {
        let bundles = pack(&[700, 800, 1400, 1300, 1400]);
        let runs: Vec<_> = bundles.runs().map(|run| updates_in(&run)).collect();
        assert_eq!(runs, [vec![1], vec![1], vec![1, 1], vec![1]]);
    }

    #[test]
    fn runs_stay_within_what_one_send_takes() {
        for len in [0, 100, 1000, MAX_UPDATE] {
            let bundles = pack(&vec![len; 9000]);
            let mut updates = 0;
            for run in bundles.runs() {
                assert!(run.bytes.len() <= MAX_SEND_BYTES);
                assert!(run.bytes.len().div_ceil(run.segment) <= MAX_SEGMENTS);
                updates += updates_in(&run).iter().sum::<usize>();
            }
            assert_eq!(updates, 9000);
        }
    }

    #[test]
    fn an_update_that_fits_no_datagram_is_refused() {
        let bytes = [7; MAX_UPDATE + 1];
        let update = Outgoing::new(Group::new(1), Level(0), &bytes);
        let refused = Bundles::pack(sender(), [update]);
        assert!(matches!(refused, Err(PublishError::TooLong(len)) if len == MAX_UPDATE + 1));
    }

    #[test]
    fn groups_and_participants_share_a_datagram() {
        let (group, player) = (Group::new(7), Participant::new(1, 9).unwrap());
        let updates = [
            Outgoing::new(group, Level(3), b"all").echo(),
            Outgoing::to(player, b"one").only_in(sender().epoch),
        ];
        let bundles = Bundles::pack(sender(), updates).unwrap();
        let run = bundles.runs().next().unwrap();
        assert_eq!((run.bytes.len(), bundles.runs().count()), (run.segment, 1));
        let packet = Packet::new_checked(run.bytes).unwrap();
        let records: Vec<_> = Bundle::new_checked(&packet).unwrap().records().collect();
        for (record, update) in records.iter().zip(updates) {
            let expected = (update.dst, update.level, update.flags, update.payload);
            assert_eq!((record.dst, record.level, record.flags, record.payload), expected);
            assert_eq!(record.src, sender().address);
        }
        assert_eq!(records.len(), 2);
    }

    #[test]
    fn what_is_for_another_epoch_is_refused() {
        let player = Participant::new(1, 9).unwrap();
        let stale = Outgoing::to(player, b"").only_in(Epoch::default());
        let refused = Bundles::pack(sender(), [Outgoing::to(player, b""), stale]);
        assert!(matches!(refused, Err(PublishError::Stale)));
    }

    /// A server's answers to three hundred players, which were three hundred calls one by one.
    #[test]
    fn answers_to_a_crowd_leave_in_one_call() {
        let player = |number| Participant::new(1, number).unwrap();
        let answers = (1..=300).map(|number| Outgoing::to(player(number), &[7; 16]));
        let bundles = Bundles::pack(sender(), answers).unwrap();
        let runs: Vec<_> = bundles.runs().map(|run| updates_in(&run)).collect();
        assert_eq!(runs, [[51, 51, 51, 51, 51, 45]]);
    }
}
