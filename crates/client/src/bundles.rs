//! Many updates as few datagrams, one behind the other, so that those of equal length can leave in
//! one segmented send.

use crate::{Epoch, Outgoing, PublishError};
use canopy_session::Session;
use canopy_wire::{Comtree, Header, Kind, MAX_DATAGRAM, MAX_UPDATE, UpdatesWriter};

/// The most datagrams of one segmented send that every kernel takes.
const MAX_SEGMENTS: usize = 64;
/// The most bytes of one segmented send, below UDP's own limit.
const MAX_SEND_BYTES: usize = 65_000;

/// Updates laid out as datagrams.
pub(crate) struct Bundles {
    bytes: Vec<u8>,
    /// The length of each datagram.
    lengths: Vec<usize>,
    updates: u64,
}

/// Datagrams that may leave together: all as long as the first, but for the last, which may be
/// shorter.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Run<'a> {
    pub(crate) bytes: &'a [u8],
    pub(crate) segment: usize,
}

impl Bundles {
    /// Lays out and seals updates in their order, as many in a datagram as fit. They have been
    /// checked.
    pub(crate) fn pack(
        session: &mut Session,
        comtree: Comtree,
        updates: &[Outgoing<'_>],
    ) -> Bundles {
        let header = Header::new(Kind::Updates, session.id(), comtree);
        let first = session.take_series(updates.len());
        let numbers = (0..=u16::MAX).cycle().skip(first.into());
        let mut records = updates.iter().zip(numbers).map(|(update, series)| update.record(series));
        let (mut bytes, mut lengths) = (Vec::new(), Vec::new());
        let mut next = records.next();
        while next.is_some() {
            let start = bytes.len();
            bytes.resize(start + MAX_DATAGRAM, 0);
            // There is room for any update in an empty datagram, and for the seal of a full one.
            let Ok(mut writer) = UpdatesWriter::new(&mut bytes[start..], session.max_datagram())
            else {
                break;
            };
            while next.is_some_and(|record| writer.push(&record)) {
                next = records.next();
            }
            let len = writer.finish(&header);
            let Ok(len) = session.seal(&mut bytes[start..], len) else { break };
            bytes.truncate(start + len);
            lengths.push(len);
        }
        Bundles { bytes, lengths, updates: updates.len() as u64 }
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
    use crate::pair::{COMTREE, Pair};
    use canopy_wire::{Group, Level, Packet};

    /// A session whose next update is the last before its numbers begin again.
    fn pair() -> Pair {
        let mut pair = Pair::new();
        pair.session.take_series(u16::MAX.into());
        pair
    }

    fn pack(pair: &mut Pair, lengths: &[usize]) -> Bundles {
        let bytes = [7; MAX_UPDATE];
        let update = |len: &usize| Outgoing::new(Group::new(1), Level(0), &bytes[..*len]);
        let updates: Vec<_> = lengths.iter().map(update).collect();
        Bundles::pack(&mut pair.session, COMTREE, &updates)
    }

    /// How many updates the relay finds in each datagram of each run.
    fn updates_in(pair: &mut Pair, bundles: &Bundles) -> Vec<Vec<usize>> {
        let mut count = |datagram| {
            let opened = pair.read(datagram);
            Packet::new_checked(&opened).unwrap().updates().unwrap().count()
        };
        bundles.runs().map(|run| run.bytes.chunks(run.segment).map(&mut count).collect()).collect()
    }

    #[test]
    fn updates_of_one_size_leave_in_one_run() {
        let mut pair = pair();
        let bundles = pack(&mut pair, &[100; 30]);
        assert_eq!(updates_in(&mut pair, &bundles), [[11, 11, 8]]);
        assert_eq!(bundles.updates(), 30);
        assert_eq!(pack(&mut pair, &[]).runs().count(), 0);
    }

    #[test]
    fn a_run_ends_before_a_longer_datagram_and_after_a_shorter_one() {
        let mut pair = pair();
        let bundles = pack(&mut pair, &[700, 800, 1000, 900, 1000]);
        assert_eq!(updates_in(&mut pair, &bundles), [vec![1], vec![1], vec![1, 1], vec![1]]);
    }

    #[test]
    fn runs_stay_within_what_one_send_takes() {
        let mut pair = pair();
        for len in [0, 100, 1000, MAX_UPDATE] {
            let bundles = pack(&mut pair, &vec![len; 9000]);
            for run in bundles.runs() {
                assert!(run.bytes.len() <= MAX_SEND_BYTES);
                assert!(run.bytes.len().div_ceil(run.segment) <= MAX_SEGMENTS);
            }
            assert_eq!(updates_in(&mut pair, &bundles).concat().iter().sum::<usize>(), 9000);
        }
    }

    #[test]
    fn an_update_that_fits_no_datagram_is_refused() {
        let bytes = [7; MAX_UPDATE + 1];
        let update = Outgoing::new(Group::new(1), Level(0), &bytes);
        let refused = update.check(Epoch::default());
        assert!(matches!(refused, Err(PublishError::TooLong(len)) if len == MAX_UPDATE + 1));
    }

    #[test]
    fn groups_and_participants_share_a_datagram() {
        let (group, player) = (Group::new(7), Participant::new(1, 9).unwrap());
        let updates = [Outgoing::new(group, Level(3), b"all").echo(), Outgoing::to(player, b"one")];
        let mut pair = pair();
        let bundles = Bundles::pack(&mut pair.session, COMTREE, &updates);
        let run = bundles.runs().next().unwrap();
        assert_eq!((run.bytes.len(), bundles.runs().count()), (run.segment, 1));
        let opened = pair.read(run.bytes);
        let packet = Packet::new_checked(&opened).unwrap();
        let records: Vec<_> = packet.updates().unwrap().collect();
        for (record, update) in records.iter().zip(updates) {
            let expected = (update.dst, update.level, update.flags, update.payload);
            assert_eq!((record.dst, record.level, record.flags, record.payload), expected);
        }
        assert_eq!(records.iter().map(|record| record.series).collect::<Vec<_>>(), [u16::MAX, 0]);
    }

    #[test]
    fn what_is_for_another_epoch_is_refused() {
        let player = Participant::new(1, 9).unwrap();
        let stale = Outgoing::to(player, b"").only_in(Epoch::default());
        assert!(matches!(stale.check(Epoch::default().next()), Err(PublishError::Stale)));
        assert!(stale.check(Epoch::default()).is_ok());
    }

    /// A server's answers to three hundred players, which were three hundred calls one by one.
    #[test]
    fn answers_to_a_crowd_leave_in_one_call() {
        let player = |number| Participant::new(1, number).unwrap();
        let answers: Vec<_> =
            (1..=300).map(|number| Outgoing::to(player(number), &[7; 16])).collect();
        let mut pair = pair();
        let bundles = Bundles::pack(&mut pair.session, COMTREE, &answers);
        assert_eq!(updates_in(&mut pair, &bundles), [[62, 62, 62, 62, 52]]);
    }
}
