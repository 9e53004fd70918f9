//! What was published, and what each viewer saw of it.

use canopy_wire::{Time, Weight};
use std::ops::RangeBounds;
use std::time::Duration;

/// A run, as it went.
#[derive(Clone, Debug)]
pub struct Recording {
    /// How many walkers there are; some may have published nothing.
    pub walkers: usize,
    /// All updates, by their number, in order of time.
    pub published: Vec<Published>,
    /// What each viewer saw.
    pub viewers: Vec<Viewed>,
    /// Whether all viewers have one budget together: that of the link that they are behind.
    pub is_shared: bool,
    /// From when until when what is published counts.
    pub measured: (Time, Time),
    /// Bytes of UDP payload that an update takes where all are sent: its part of its datagram.
    pub bytes_each: f64,
    /// Updates a second that the relay grants every flow.
    pub floor: f64,
    /// The relay's tick.
    pub tick: Duration,
    /// Datagrams for viewers that the kernel dropped: this machine was too slow.
    pub lost: u64,
}

/// An update that was published.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Published {
    /// When.
    pub at: Time,
    /// By whom.
    pub walker: u32,
    /// Where the walker was, metres.
    pub place: [f64; 2],
    /// Updates a second that its walker publishes about then.
    pub demand: f64,
    /// Whether its walker is gone when the next would be due.
    pub is_last: bool,
}

/// What a viewer saw.
#[derive(Clone, Debug)]
pub struct Viewed {
    /// The walker at whose place it is. It is not subscribed to that one.
    pub walker: u32,
    /// Its budget in percent of its demand.
    pub budget: f64,
    /// Its budget in bits a second.
    pub bits: f64,
    /// Which updates came, by their numbers, and when.
    pub arrivals: Vec<(u32, Time)>,
    /// When datagrams of updates came, and how long they were.
    pub datagrams: Vec<(Time, u32)>,
    /// Which weights it asked for, in order of time.
    pub weights: Vec<Weighed>,
}

/// A viewer has asked for a walker with this weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Weighed {
    /// When.
    pub at: Time,
    /// For whom.
    pub walker: u32,
    /// With which weight.
    pub weight: Weight,
}

/// Bytes that an update took on its way to these viewers, its part of its datagram, while `within` lasted. `None` if
/// nothing came.
pub(super) fn bytes_each<'a>(
    viewers: impl Iterator<Item = &'a Viewed> + Clone,
    within: impl RangeBounds<Time>,
) -> Option<f64> {
    let datagrams = viewers.clone().flat_map(|viewed| &viewed.datagrams);
    let counted = datagrams.filter(|(at, _)| within.contains(at));
    let bytes: u64 = counted.map(|(_, len)| u64::from(*len)).sum();
    let arrivals = viewers.flat_map(|viewed| &viewed.arrivals);
    let updates = arrivals.filter(|(_, at)| within.contains(at)).count();
    (updates > 0).then(|| bytes as f64 / updates as f64)
}

impl Recording {
    /// Bytes that an update took on its way to a viewer while it counted.
    pub(super) fn bytes_to(&self, viewed: &Viewed) -> f64 {
        let (from, until) = self.measured;
        bytes_each(std::iter::once(viewed), from..until).unwrap_or(self.bytes_each)
    }
}

impl Viewed {
    /// Sets its budget: its percentage of so many updates a second, of so many bytes each.
    pub(super) fn set_bits(&mut self, updates: u32, bytes_each: f64) {
        let demand = 8.0 * bytes_each * f64::from(updates);
        self.bits = (demand * self.budget / 100.0).round().max(1.0);
    }

    /// By update: when it came first, if it did.
    pub(super) fn came(&self, updates: usize) -> Vec<Option<Time>> {
        let mut came = vec![None; updates];
        for (number, at) in &self.arrivals {
            if let Some(place) = came.get_mut(*number as usize) {
                place.get_or_insert(*at);
            }
        }
        came
    }
}
