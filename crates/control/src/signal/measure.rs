//! Which relays a relay is to measure that it may have no link with, and what it has found.
//!
//! Relays and controllers of releases that do not know these messages ignore them.

use crate::codec::{CodecError, Coded, Reader, coded};
use crate::model::RelayId;
use core::net::SocketAddr;

/// The most relays that are measured at a time.
pub const MOST_MEASURED: usize = 32;

/// A relay to be measured. Its key is not needed: what is measured opens no session, and a link that is
/// made later proves it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Other {
    /// Which.
    pub relay: RelayId,
    /// Where it is.
    pub native: SocketAddr,
}

/// What a relay is asked to measure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Measure {
    /// The controller's life.
    pub controller: u32,
    /// Counts what this relay was asked in that life.
    pub round: u32,
    /// The relays, [`MOST_MEASURED`] at most.
    pub others: Vec<Other>,
}

/// How a relay finds the way to another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reading {
    /// The other.
    pub relay: RelayId,
    /// The shortest time one way, microseconds; of no meaning if nothing was answered.
    pub delay_us: u32,
    /// How often it was asked.
    pub asked: u8,
    /// How often it has answered.
    pub answered: u8,
}

/// What a relay has measured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Measured {
    /// The life of the controller that asked.
    pub controller: u32,
    /// What it was asked: [`Measure::round`].
    pub round: u32,
    /// One for each of the others, [`MOST_MEASURED`] at most.
    pub readings: Vec<Reading>,
}

coded! {
    Other { relay, native }
    Reading { relay, delay_us, asked, answered }
}

impl Coded for Measure {
    fn put(&self, out: &mut Vec<u8>) {
        self.controller.put(out);
        self.round.put(out);
        self.others.put(out);
    }

    fn take(from: &mut Reader<'_>) -> Result<Measure, CodecError> {
        let (controller, round) = (Coded::take(from)?, Coded::take(from)?);
        Ok(Measure { controller, round, others: few(from)? })
    }
}

impl Coded for Measured {
    fn put(&self, out: &mut Vec<u8>) {
        self.controller.put(out);
        self.round.put(out);
        self.readings.put(out);
    }

    fn take(from: &mut Reader<'_>) -> Result<Measured, CodecError> {
        let (controller, round) = (Coded::take(from)?, Coded::take(from)?);
        Ok(Measured { controller, round, readings: few(from)? })
    }
}

/// As many as are measured at a time.
fn few<T: Coded>(from: &mut Reader<'_>) -> Result<Vec<T>, CodecError> {
    let all = Vec::take(from)?;
    if all.len() <= MOST_MEASURED { Ok(all) } else { Err(CodecError::Value("relays to measure")) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::signal::Message;

    fn reading(relay: u16) -> Reading {
        Reading { relay: RelayId(relay), delay_us: 70_000, asked: 4, answered: 3 }
    }

    #[test]
    fn what_is_measured_is_read_as_it_was_written_and_is_bounded() {
        let native = "[2001:db8::1]:65535".parse().unwrap();
        let other = |of| Other { relay: RelayId(of), native };
        let others = (1..=MOST_MEASURED as u16).map(other).collect();
        let asked = Message::Measure(Measure { controller: 7, round: u32::MAX, others });
        assert_eq!(Message::decode(&asked.encode()), Ok(asked.clone()));
        assert!(asked.encode().len() < Message::MOST / 8);
        let told = |most: u16| {
            let readings = (1..=most).map(reading).collect();
            Message::Measured(Measured { controller: 7, round: 1, readings })
        };
        let full = told(MOST_MEASURED as u16);
        assert_eq!(Message::decode(&full.encode()), Ok(full.clone()));
        let refused = Err(CodecError::Value("relays to measure"));
        assert_eq!(Message::decode(&told(MOST_MEASURED as u16 + 1).encode()), refused);
        let mut cut = full.encode();
        cut.pop();
        assert!(Message::decode(&cut).is_err());
    }
}
