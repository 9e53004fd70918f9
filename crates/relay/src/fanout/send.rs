//! One burst's way into the batch: sends of shared bytes, or copies that are sealed for their receiver.

use super::{Outbox, SEALED_BYTES, Tables};
use crate::burst::{Burst, Fillers, Run};
use crate::counters::Counters;
use canopy_batch::{MAX_PARTS_PER_TRANSMIT, Part, SendBatch};
use canopy_session::{GroupSealer, SessionIndex};
use canopy_wire::{Flags, Path, SEAL_LEN};

/// Seals the datagrams of a burst for all members of a comtree. The key has room for them.
pub(super) fn seal_all(burst: &Burst, sealer: &mut GroupSealer, bytes: &mut [u8]) {
    for run in burst.runs() {
        let datagrams = &mut bytes[run.part.start as usize..run.part.end as usize];
        for datagram in datagrams.chunks_mut(run.segment.into()) {
            let is_sealed = sealer.seal(datagram);
            debug_assert!(is_sealed, "the key had room");
        }
    }
}

/// Adds one send: the run's bytes, in which the records that came from the receiver are marked as
/// filler. Their bytes stay, for the records behind lean on their heads, and the rest is the
/// receiver's own.
pub(super) fn push_run<F: FnMut(&SendBatch)>(
    run: &Run,
    to: Path,
    fillers: &Fillers,
    filler: &mut Option<(u8, Part)>,
    counters: &mut Counters,
    out: &mut Outbox<'_, F>,
) {
    if out.batch.is_full() {
        out.send();
    }
    let mut parts = [Part { start: 0, end: 0 }; MAX_PARTS_PER_TRANSMIT];
    let mut count = 0;
    let mut add = |part: Part| {
        parts[count] = part;
        count += usize::from(part.start < part.end);
    };
    let mut at = run.part.start;
    for own in fillers.parts() {
        if (run.part.start..run.part.end).contains(&own.start) {
            add(Part { start: at, end: own.start });
            add(filler_of(own.start, filler, out.batch.bytes_mut()));
            counters.padding_bytes_out += u64::from(own.end - own.start);
            at = own.start + 1;
        }
    }
    add(Part { start: at, end: run.part.end });
    let transmit = out.batch.push(to, &parts[..count], run.segment);
    counters.bytes_out += u64::from(transmit.len);
    counters.datagrams_out += u64::from(transmit.datagrams());
    counters.segmented_sends += u64::from(transmit.len > transmit.segment.into());
}

/// Adds one send of copies that are sealed for their receiver, datagram by datagram, in the batch's
/// bytes. The records that came from the receiver are marked as filler first.
pub(super) fn seal_run<F: FnMut(&SendBatch)>(
    run: &Run,
    (to, session): (Path, SessionIndex),
    fillers: &Fillers,
    (plain, tables): (&[u8], &mut Tables<'_>),
    counters: &mut Counters,
    out: &mut Outbox<'_, F>,
) {
    if out.batch.is_full() || out.batch.bytes_mut().len() > SEALED_BYTES {
        out.send();
        out.batch.clear();
    }
    let (mut at, end) = (run.part.start as usize, run.part.end as usize);
    let bytes = out.batch.bytes_mut();
    let start = bytes.len();
    while at < end {
        let datagram = &plain[at..end.min(at + usize::from(run.segment))];
        let begin = bytes.len();
        bytes.extend_from_slice(datagram);
        bytes.resize(bytes.len() + SEAL_LEN, 0);
        for own in fillers.parts() {
            let first = (own.start as usize).wrapping_sub(at);
            if first < datagram.len() {
                bytes[begin + first] |= Flags::FILLER.0;
                counters.padding_bytes_out += u64::from(own.end - own.start);
            }
        }
        // The session lives, for it has a path.
        let _ = tables.sessions.seal(session, &mut bytes[begin..], datagram.len());
        at += datagram.len();
    }
    let part = Part { start: start as u32, end: bytes.len() as u32 };
    let transmit = out.batch.push(to, &[part], run.segment + SEAL_LEN as u16);
    counters.bytes_out += u64::from(transmit.len);
    counters.datagrams_out += u64::from(transmit.datagrams());
    counters.segmented_sends += u64::from(transmit.len > transmit.segment.into());
}

/// The first byte of the record at `at`, marked as filler; most records of a burst begin alike, so
/// the last one made is kept.
fn filler_of(at: u32, made: &mut Option<(u8, Part)>, bytes: &mut Vec<u8>) -> Part {
    let first = bytes[at as usize] | Flags::FILLER.0;
    if let Some((_, part)) = made.filter(|(byte, _)| *byte == first) {
        return part;
    }
    let start = bytes.len() as u32;
    bytes.push(first);
    let part = Part { start, end: start + 1 };
    *made = Some((first, part));
    part
}
