//! How a relay's links stand, as its controller is told: what data threads tell, and what is seen when
//! they are looked at.

use canopy_control::{Applying, Item, LinkId, LinkReport};
use canopy_relay::LinkStatus;
use canopy_session::PublicKey;
use canopy_wire::{LinkDetail, Time};
use core::time::Duration;
use std::collections::BTreeMap;

/// A link that has never been up is not told of as down before it has had so long to come up.
const GRACE: Duration = Duration::from_secs(2);

/// What data threads have told of a link counts for so long, whatever a look says: what is looked at is
/// a moment old, and a link that seems to fail again and again is left alone by the controller.
const SETTLED: Duration = Duration::from_secs(2);

/// A link as it was seen when it was looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    /// Whether it has ever been up.
    pub has_been_up: bool,
    /// Whether it is up.
    pub is_up: bool,
    /// The time one way, microseconds; 0 if it is not known.
    pub delay_us: u32,
    /// The share of this relay's datagrams that are lost on the way there, in 255ths.
    pub loss: u8,
}

impl From<&LinkStatus> for Seen {
    fn from(status: &LinkStatus) -> Seen {
        let one_way = |round_trip: Duration| (round_trip.as_micros() / 2) as u32;
        Seen {
            has_been_up: status.ups > 0,
            is_up: status.is_up,
            delay_us: status.round_trip.map_or(0, one_way),
            loss: (status.loss_out * f32::from(u8::MAX)) as u8,
        }
    }
}

impl Seen {
    /// What others are told of it, of which so many bits a second are free.
    pub fn detail(&self, report: &LinkReport, free_bits: u64) -> LinkDetail {
        LinkDetail {
            link: report.link.0,
            is_up: report.up,
            delay_us: report.delay_us,
            loss: self.loss,
            free_kbit: (free_bits / 1_000).try_into().unwrap_or(u32::MAX),
        }
    }
}

/// A link that the controller wants.
#[derive(Clone, Copy, Debug)]
struct Known {
    id: LinkId,
    came: Time,
    /// What data threads have told of it last, and when.
    told: Option<(Time, bool)>,
}

/// What is known of the links that the controller wants, by the neighbour's key.
#[derive(Clone, Debug, Default)]
pub struct LinkWatch {
    links: BTreeMap<PublicKey, Known>,
}

impl LinkWatch {
    /// A link has come or gone, if that is what was applied.
    pub fn applied(&mut self, now: Time, applying: &Applying) {
        if let Some(Item::Link { key, .. }) = &applying.before {
            self.links.remove(key);
        }
        if let Some(Item::Link { id, key, .. }) = &applying.after {
            self.links.insert(*key, Known { id: *id, came: now, told: None });
        }
    }

    /// A data thread tells that a link has come up, or gone down. Returns what the controller is told,
    /// unless it does not want the link.
    pub fn told(
        &mut self,
        now: Time,
        key: &PublicKey,
        up: bool,
        delay_us: u32,
    ) -> Option<LinkReport> {
        let known = self.links.get_mut(key)?;
        known.told = Some((now, up));
        Some(LinkReport { link: known.id, up, delay_us })
    }

    /// A link was looked at. Returns what the controller is told, if it is time to say anything.
    pub fn seen(&self, now: Time, key: &PublicKey, seen: Seen) -> Option<LinkReport> {
        let known = self.links.get(key)?;
        let told = known.told.filter(|(when, _)| now.since(*when) < SETTLED);
        let can_say = told.is_some() || seen.has_been_up || now.since(known.came) > GRACE;
        let up = told.map_or(seen.is_up, |(_, up)| up);
        can_say.then_some(LinkReport { link: known.id, up, delay_us: seen.delay_us })
    }
}
