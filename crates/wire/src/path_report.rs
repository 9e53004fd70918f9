//! Probes and reports: what a relay and its participant tell each other about the path between them, and
//! how much of what was meant for the participant the relay sends.

use crate::fields::{Fields, encode};
use crate::{Bound, Comtree, Header, Kind, Packet, SessionId, WireError};

/// Datagrams with updates, since the session began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// How many; wraps.
    pub datagrams: u32,
    /// Their bytes of UDP payload; wraps.
    pub bytes: u32,
}

impl Traffic {
    /// Adds datagrams.
    #[inline]
    pub fn add(&mut self, datagrams: u32, bytes: u32) {
        self.datagrams = self.datagrams.wrapping_add(datagrams);
        self.bytes = self.bytes.wrapping_add(bytes);
    }

    /// What has come since `before`.
    pub fn since(self, before: Traffic) -> Traffic {
        Traffic {
            datagrams: self.datagrams.wrapping_sub(before.datagrams),
            bytes: self.bytes.wrapping_sub(before.bytes),
        }
    }

    /// Its bits.
    pub fn bits(self) -> u64 {
        8 * u64::from(self.bytes)
    }
}

/// How much of what is meant for a receiver it is sent, and why not all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Thinning {
    /// How many in a thousand were sent of the updates that were meant for it since the last probe.
    pub share: u16,
    /// How many were not; later ones are not counted beyond 2³² − 1.
    pub left_out: u32,
    /// Its budget at present, in bits of UDP payload a second; 0 is no limit.
    pub budget_bits: u64,
    /// What the budget comes from.
    pub because: Bound,
}

impl Thinning {
    /// Everything is sent, and nothing is limited.
    pub const NONE: Thinning =
        Thinning { share: 1000, left_out: 0, budget_bits: 0, because: Bound::Nothing };
}

/// A relay asks its participant what has arrived, and tells it its thinning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Probe {
    /// Its number among those of its session and comtree, from 1; after 2³² − 1 comes 1.
    pub number: u32,
    /// The relay's clock in microseconds; wraps.
    pub clock: u32,
    /// What was sent to the participant on this comtree before the probe.
    pub sent: Traffic,
    /// Its thinning since the last probe.
    pub thinning: Thinning,
}

/// The most that a participant asks for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Asked {
    /// Updates a second; 0 is no wish.
    pub updates: u32,
    /// Bits of UDP payload a second; 0 is no wish.
    pub bits: u64,
}

/// The answer to a probe; or unasked, when the participant asks for something else than before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Report {
    /// The number of the probe, of the last one if it is unasked; 0 before the first.
    pub number: u32,
    /// The probe's clock.
    pub clock: u32,
    /// The participant's own clock when the probe arrived, in microseconds of any origin; wraps.
    pub own_clock: u32,
    /// In microseconds, how long it may have waited before the participant saw it: a game that looks
    /// once in each frame says a frame.
    pub held: u32,
    /// What had arrived before the probe.
    pub received: Traffic,
    /// The most that the participant asks for.
    pub asked: Asked,
}

/// Bytes of a probe's fields, and of a report's.
const PROBE_LEN: usize = 32;
const REPORT_LEN: usize = 36;

impl Probe {
    /// Writes the packet into `out` and returns its length.
    ///
    /// # Errors
    /// [`WireError::Length`] if `out` is too short.
    pub fn encode(
        &self,
        comtree: Comtree,
        session: SessionId,
        out: &mut [u8],
    ) -> Result<usize, WireError> {
        let Thinning { share, left_out, budget_bits, because } = self.thinning;
        let [share, rest] = share.to_be_bytes();
        let fields: [&[u8]; 7] = [
            &self.number.to_be_bytes(),
            &self.clock.to_be_bytes(),
            &self.sent.datagrams.to_be_bytes(),
            &self.sent.bytes.to_be_bytes(),
            &[share, rest, because.number(), 0],
            &left_out.to_be_bytes(),
            &budget_bits.to_be_bytes(),
        ];
        encode(&Header::new(Kind::Probe, session, comtree), &fields, 0, out)
    }

    /// Reads the packet's body.
    ///
    /// # Errors
    /// [`WireError::TooShort`]; [`WireError::Field`] for a share of more than a thousand.
    pub fn decode(packet: &Packet<'_>) -> Result<Probe, WireError> {
        let mut fields = Fields::new(packet, PROBE_LEN)?;
        let (number, clock) = (fields.u32()?, fields.u32()?);
        let sent = Traffic { datagrams: fields.u32()?, bytes: fields.u32()? };
        let share = fields.u16()?;
        let [because, _] = fields.array()?;
        if share > Thinning::NONE.share {
            return Err(WireError::Field("share"));
        }
        let because = Bound::from_number(because);
        let thinning =
            Thinning { share, left_out: fields.u32()?, budget_bits: fields.u64()?, because };
        Ok(Probe { number, clock, sent, thinning })
    }
}

impl Report {
    /// Writes the packet into `out` and returns its length.
    ///
    /// # Errors
    /// [`WireError::Length`] if `out` is too short.
    pub fn encode(
        &self,
        comtree: Comtree,
        session: SessionId,
        out: &mut [u8],
    ) -> Result<usize, WireError> {
        let fields: [&[u8]; 8] = [
            &self.number.to_be_bytes(),
            &self.clock.to_be_bytes(),
            &self.own_clock.to_be_bytes(),
            &self.held.to_be_bytes(),
            &self.received.datagrams.to_be_bytes(),
            &self.received.bytes.to_be_bytes(),
            &self.asked.updates.to_be_bytes(),
            &self.asked.bits.to_be_bytes(),
        ];
        encode(&Header::new(Kind::Report, session, comtree), &fields, 0, out)
    }

    /// Reads the packet's body.
    ///
    /// # Errors
    /// [`WireError::TooShort`].
    pub fn decode(packet: &Packet<'_>) -> Result<Report, WireError> {
        let mut fields = Fields::new(packet, REPORT_LEN)?;
        let (number, clock) = (fields.u32()?, fields.u32()?);
        let (own_clock, held) = (fields.u32()?, fields.u32()?);
        let received = Traffic { datagrams: fields.u32()?, bytes: fields.u32()? };
        let asked = Asked { updates: fields.u32()?, bits: fields.u64()? };
        Ok(Report { number, clock, own_clock, held, received, asked })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{MAX_DATAGRAM, SEAL_LEN, seeded};
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(seeded())]

        #[test]
        fn both_survive_the_wire(
            number: u32, clock: u32, own_clock: u32, datagrams: u32, bytes: u32, left_out: u32,
            held: u32, budget_bits: u64, share in 0..=1000u16, because: u8, updates: u32, bits: u64,
        ) {
            let (comtree, session) = (Comtree(9), SessionId::new(7));
            let traffic = Traffic { datagrams, bytes };
            let because = Bound::from_number(because);
            let thinning = Thinning { share, left_out, budget_bits, because };
            let probe = Probe { number, clock, sent: traffic, thinning };
            let mut out = [0; MAX_DATAGRAM];
            let len = probe.encode(comtree, session, &mut out).unwrap();
            prop_assert_eq!(Probe::decode(&Packet::new_checked(&out[..len]).unwrap()), Ok(probe));
            prop_assert_eq!(len + SEAL_LEN, 64);
            let asked = Asked { updates, bits };
            let report = Report { number, clock, own_clock, held, received: traffic, asked };
            let len = report.encode(comtree, session, &mut out).unwrap();
            prop_assert_eq!(Report::decode(&Packet::new_checked(&out[..len]).unwrap()), Ok(report));
            prop_assert_eq!(len + SEAL_LEN, 68);
        }

        #[test]
        fn no_body_panics(body in proptest::collection::vec(any::<u8>(), 0..64)) {
            for kind in [Kind::Probe, Kind::Report] {
                let mut out = [0; MAX_DATAGRAM];
                let header = Header::new(kind, SessionId::new(1), Comtree(2));
                let len = header.encode_packet(&body, &mut out).unwrap();
                let packet = Packet::new_checked(&out[..len]).unwrap();
                let is_long = body.len() >= PROBE_LEN;
                let share = |body: &[u8]| u16::from_be_bytes([body[16], body[17]]);
                prop_assert_eq!(Report::decode(&packet).is_ok(), body.len() >= REPORT_LEN);
                prop_assert_eq!(Probe::decode(&packet).is_ok(), is_long && share(&body) <= 1000);
            }
        }
    }
}
