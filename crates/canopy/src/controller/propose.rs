//! Which relays a new one is joined with.

use canopy_control::{Controller, LinkId, Refusal, Relay, RelayId, RelayState};
use canopy_plan::Rate;
use std::collections::BTreeSet;

/// The time one way that a link has until it is measured, microseconds.
const UNMEASURED: u32 = 1_000;

/// Joins a relay by links with others, until it has as many as `degree` says or there are no others.
/// Those with the fewest links come first, so that no relay is joined with all. Returns what could
/// not be joined, and why.
pub(super) fn links(
    controller: &mut Controller,
    relay: RelayId,
    degree: usize,
) -> Vec<(RelayId, Refusal)> {
    let mut failed = Vec::new();
    let Some(own) = controller.relay_of(relay).cloned() else { return failed };
    let neighbours: BTreeSet<RelayId> = of(controller, relay).map(|(_, other)| other).collect();
    let missing = degree.saturating_sub(neighbours.len());
    let fits = |other: &&Relay| {
        other.id != relay && other.state != RelayState::Gone && !neighbours.contains(&other.id)
    };
    let mut others: Vec<(usize, Relay)> = controller
        .relays()
        .filter(fits)
        .map(|other| (of(controller, other.id).count(), other.clone()))
        .collect();
    others.sort_by_key(|(links, other)| (*links, other.id));
    for (_, other) in others.into_iter().take(missing) {
        let rate = least(&own, &other);
        if let Err(why) = controller.add_link([relay, other.id], rate, UNMEASURED) {
            failed.push((other.id, why));
        }
    }
    failed
}

/// A relay's links, and who is at their other ends.
fn of(controller: &Controller, relay: RelayId) -> impl Iterator<Item = (LinkId, RelayId)> + '_ {
    let links =
        controller.links().map(|(link, _)| link).filter(move |link| link.ends.contains(&relay));
    links.map(move |link| (link.id, link.other(relay)))
}

/// What both uplinks bear, each way.
fn least(one: &Relay, other: &Relay) -> Rate {
    let rates = [one, other].into_iter().flat_map(|of| [of.uplink.send, of.uplink.receive]);
    let least =
        |a: Rate, b: Rate| Rate { bits: a.bits.min(b.bits), packets: a.packets.min(b.packets) };
    rates.reduce(least).unwrap_or(Rate::ZERO)
}

#[cfg(test)]
mod tests {
    use super::*;
    use canopy_control::storage::MemoryStorage;
    use canopy_control::{Name, NewRelay, Retry, Settings};
    use canopy_plan::Limits;
    use canopy_wire::Time;

    #[test]
    fn relays_that_register_are_joined_and_none_with_all() {
        let mut storage = MemoryStorage::default();
        let (settings, retry) = (Settings::default(), Retry::default());
        let mut controller = Controller::start(settings, retry, Time::ZERO, &mut storage).unwrap();
        let mut ids = Vec::new();
        for number in 0..12_u8 {
            let rate = Rate { bits: 1e6 * f64::from(number + 1), packets: 100.0 };
            let new = NewRelay {
                name: Name::new(&format!("r{number}")).unwrap(),
                key: [number; 32],
                native: ([127, 0, 0, 1], 4040).into(),
                uplink: Limits { send: rate, receive: rate },
                places: 1,
            };
            let id = controller.register(Time::ZERO, new).unwrap();
            assert!(links(&mut controller, id, 2).is_empty());
            // Who registers again is not joined again.
            let before = controller.links().count();
            assert!(links(&mut controller, id, 2).is_empty());
            assert_eq!(controller.links().count(), before);
            assert_eq!(before, if number == 0 { 0 } else { usize::from(number) * 2 - 1 });
            ids.push(id);
        }
        let counts = ids.iter().map(|id| of(&controller, *id).count());
        assert!(
            counts.clone().all(|links| (2..=5).contains(&links)),
            "{:?}",
            counts.collect::<Vec<_>>()
        );
        let first = controller.links().map(|(link, _)| link).next().unwrap();
        assert_eq!(first.rate, Rate { bits: 1e6, packets: 100.0 }, "the weaker end's");
    }
}
