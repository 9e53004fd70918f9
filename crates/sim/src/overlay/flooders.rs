//! Those who flood one of many relays.

use super::config::OverlayConfig;
use super::scenario::Scenario;
use super::shape::Hop;
use crate::flood::Flood;
use crate::flooder::Flooder;
use canopy_session::Identity;
use canopy_wire::Time;
use std::collections::BTreeMap;

/// Somebody who floods, and what of it has passed links since it was let in.
pub(crate) struct OverlayFlooder {
    pub(crate) one: Flooder,
    pub(crate) passed: BTreeMap<Hop, (Time, u64)>,
}

/// Those who flood in a run.
pub(crate) fn flooders(config: &OverlayConfig, scenario: &Scenario) -> Vec<OverlayFlooder> {
    let each = scenario.flooded.iter().flat_map(|flooded| &flooded.floods.each);
    let flooder = |(number, flood): (usize, &Flood)| {
        let setting = (config.seed, scenario.packets_per_key);
        let one = Flooder::new(number, (flood, flood.comtree), Some(identity(number)), setting);
        OverlayFlooder { one, passed: BTreeMap::new() }
    };
    each.enumerate().map(flooder).collect()
}

/// Who floods has the key of this.
pub(crate) fn identity(number: usize) -> Identity {
    Identity::new([200 + number as u8; 32])
}
