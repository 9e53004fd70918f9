//! Many updates as few datagrams: bundles, one behind the other, so that those of equal length can
//! leave in one segmented send.

use crate::{Outgoing, PublishError};
use canopy_wire::{
    Address, BundleWriter, Comtree, Flags, Header, Kind, MAX_DATAGRAM, MAX_UPDATE, WireError,
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
        comtree: Comtree,
        src: Address,
        updates: impl IntoIterator<Item = Outgoing<'a>>,
    ) -> Result<Bundles, PublishError> {
        let mut bundles = Bundles { bytes: Vec::new(), lengths: Vec::new(), updates: 0 };
        let mut updates = updates.into_iter().peekable();
        let header = Header::new(Kind::Bundle, comtree, src, Address::UNSPECIFIED);
        while updates.peek().is_some() {
            let mut datagram = [0; MAX_DATAGRAM];
            // The buffer holds any datagram.
            let broken = |_: WireError| PublishError::TooLong(MAX_DATAGRAM);
            let mut writer = BundleWriter::new(&mut datagram).map_err(broken)?;
            while let Some(update) = updates.peek() {
                if update.payload.len() > MAX_UPDATE {
                    return Err(PublishError::TooLong(update.payload.len()));
                }
                let flags = update.flags();
                if !writer.push(src, update.group, update.level, flags, update.payload) {
                    break;
                }
                bundles.updates += 1;
                updates.next();
            }
            let len = writer.finish(&header);
            bundles.bytes.extend_from_slice(&datagram[..len]);
            bundles.lengths.push(len);
        }
        Ok(bundles)
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
    pub(crate) fn flags(&self) -> Flags {
        if self.echo { Flags::ECHO } else { Flags::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use canopy_wire::{Group, Level, Packet};

    fn pack(lengths: &[usize]) -> Bundles {
        let bytes = [7; MAX_UPDATE];
        let update = |len: &usize| Outgoing::new(Group::new(1), Level(0), &bytes[..*len]);
        Bundles::pack(Comtree(1), Address(2), lengths.iter().map(update)).unwrap()
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
        let refused = Bundles::pack(Comtree(1), Address(2), [update]);
        assert!(matches!(refused, Err(PublishError::TooLong(len)) if len == MAX_UPDATE + 1));
    }
}
