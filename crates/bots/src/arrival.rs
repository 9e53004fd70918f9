//! An update as a walker received it.

use crate::position::Position;
use canopy_judge::Received;
use canopy_session::Update;
use canopy_session::handover::Numbered;
use canopy_wire::{Address, Time};

/// An update as a walker received it.
pub(crate) struct Arrival {
    pub(crate) receiver: u32,
    pub(crate) at: Time,
    /// Its number among its publisher's updates.
    series: u16,
    /// What it says; `None` if no walker publishes such a thing.
    pub(crate) position: Option<Position>,
    /// What else the oracle judges.
    pub(crate) received: Received,
}

impl Arrival {
    pub(crate) fn new(receiver: u32, at: Time, update: Update<'_>) -> Arrival {
        let Update { src, dst, level, series, payload, .. } = update;
        let position = Position::decode(payload);
        let received = Received { id: None, src, dst, level };
        Arrival { receiver, at, series, position, received }
    }

    /// The walker hears it now, after it has waited.
    pub(crate) fn heard(self, now: Time) -> Arrival {
        Arrival { at: now, ..self }
    }
}

impl Numbered for Arrival {
    fn src(&self) -> Address {
        self.received.src
    }

    fn series(&self) -> u16 {
        self.series
    }
}
