//! What passes: the addresses that are behind the neighbours, and the updates between them.

use super::cases::Case;
use anyhow::{Context, ensure};
use canopy_relay::FIRST_ENDPOINT;
use canopy_wire::{
    Address, Comtree, Group, Header, Kind, Record, SAFE_DATAGRAM, SEAL_LEN, SessionId,
    UpdatesWriter, encode_update,
};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// The first has the traffic. The second has the routes that the first has no numbers for.
pub(super) const COMTREES: [Comtree; 2] = [Comtree(1), Comtree(2)];
/// The router's own site.
pub(super) const SITE: u16 = 1;
/// The sites from here on are behind neighbours.
const FIRST_SITE: u16 = 16;
/// How many sites at most are behind who sends, and behind those who receive.
const MOST_SITES: [usize; 2] = [3_000, 29_000];
/// Endpoints of the router's own site that are behind the first who receives, on each comtree.
const MOST_ENDPOINTS: usize = 65_000;
/// The most routes that there are numbers for.
pub(super) const MOST_ROUTES: u32 = (MOST_SITES[0] + MOST_SITES[1] + 2 * MOST_ENDPOINTS) as u32;
/// Groups that every receiver is subscribed to.
const GROUPS: u32 = 1_000;
/// Nobody is subscribed to it.
const NOBODYS: Group = Group::new(0x3fff_ffff);
/// So that its number takes as many bytes in each update.
const SERIES: u16 = 0x4000;
/// Bytes of an update that say which it is.
const SEQUENCE: usize = 8;

/// The site of a neighbour: of the sender, the first of the receivers, and the others.
pub(super) fn site_of(neighbour: usize) -> u16 {
    match neighbour {
        0 => 2,
        1 => SITE,
        other => other as u16 + 1,
    }
}

/// Who is behind each neighbour, so that the router has so many routes: a site has one, and so has
/// each endpoint of the router's own site.
pub(super) fn addresses(routes: usize, receivers: usize) -> Vec<Vec<(Comtree, Address)>> {
    let mut behind = vec![Vec::new(); receivers + 1];
    let of_sender = (routes / 10).clamp(1, MOST_SITES[0]);
    let of_receivers = (routes * 3 / 10).clamp(receivers, MOST_SITES[1]);
    for number in 0..of_sender + of_receivers {
        let neighbour = if number < of_sender { 0 } else { 1 + number % receivers };
        let site = Address::unicast(FIRST_SITE + number as u16, FIRST_ENDPOINT);
        behind[neighbour].push((COMTREES[0], site));
    }
    for number in 0..routes.saturating_sub(of_sender + of_receivers) {
        let comtree = COMTREES[(number / MOST_ENDPOINTS).min(1)];
        let endpoint = FIRST_ENDPOINT + (number % MOST_ENDPOINTS) as u16;
        behind[1].push((comtree, Address::unicast(SITE, endpoint)));
    }
    behind
}

/// Packets by which the router learns that these are behind who sends them.
pub(super) fn introductions(behind: &[(Comtree, Address)]) -> anyhow::Result<Vec<Vec<u8>>> {
    let mut packets = Vec::new();
    for of_comtree in behind.chunk_by(|one, other| one.0 == other.0) {
        let mut rest = of_comtree;
        while let Some((comtree, _)) = rest.first() {
            let mut out = [0; SAFE_DATAGRAM];
            let mut writer = UpdatesWriter::new(&mut out, SAFE_DATAGRAM)?;
            let update = Record::new(NOBODYS.address(), SERIES, b"");
            let said =
                rest.iter().take_while(|(_, src)| writer.push(&Record { src: *src, ..update }));
            let said = said.count();
            ensure!(said > 0, "no update fits a packet");
            let len = writer.finish(&header(*comtree));
            packets.push(out[..len].to_vec());
            rest = &rest[said..];
        }
    }
    Ok(packets)
}

/// The groups that every receiver is subscribed to.
pub(super) fn groups() -> Vec<Group> {
    (1..=GROUPS).map(Group::new).collect()
}

fn header(comtree: Comtree) -> Header {
    Header::new(Kind::Updates, SessionId::NONE, comtree)
}

/// Makes the updates that pass, each of a source and to a destination that are drawn.
pub(super) struct Updates {
    rng: ChaCha8Rng,
    sources: Vec<Address>,
    destinations: Vec<Address>,
    payload: Vec<u8>,
}

impl Updates {
    /// Updates of the case: with one receiver to an address behind it, with several to a group.
    pub(super) fn new(case: &Case, behind: &[Vec<(Comtree, Address)>]) -> anyhow::Result<Updates> {
        let of_traffic = |of: &Vec<(Comtree, Address)>| -> Vec<Address> {
            let here = of.iter().filter(|(comtree, _)| *comtree == COMTREES[0]);
            here.map(|(_, address)| *address).collect()
        };
        let destinations = match case.fanout {
            1 => of_traffic(&behind[1]),
            _ => groups().into_iter().map(Group::address).collect(),
        };
        let sources = of_traffic(&behind[0]);
        let rng = ChaCha8Rng::seed_from_u64(12);
        let mut updates = Updates { rng, sources, destinations, payload: vec![0x5a; SEQUENCE] };
        // What stands beside the payload may take more with a longer one.
        for _ in 0..2 {
            let mut out = [0; SAFE_DATAGRAM];
            let len = updates.write(0, &mut out)? + SEAL_LEN;
            let payload = updates.payload.len() + case.bytes;
            let payload = payload.checked_sub(len).filter(|payload| *payload >= SEQUENCE);
            updates
                .payload
                .resize(payload.context("datagrams of so few bytes hold no update")?, 0x5a);
        }
        Ok(updates)
    }

    /// Writes the packet of one update into `out`, to be sealed, and returns its length.
    pub(super) fn write(&mut self, sequence: u64, out: &mut [u8]) -> anyhow::Result<usize> {
        self.payload[..SEQUENCE].copy_from_slice(&sequence.to_be_bytes());
        let src = self.sources[self.rng.random_range(0..self.sources.len())];
        let dst = self.destinations[self.rng.random_range(0..self.destinations.len())];
        let series = SERIES | (sequence as u16 % SERIES);
        let update = Record { src, ..Record::new(dst, series, &self.payload) };
        Ok(encode_update(&header(COMTREES[0]), &update, out)?)
    }
}

/// Which update a payload is of.
pub(super) fn sequence_of(payload: &[u8]) -> Option<u64> {
    payload.first_chunk::<SEQUENCE>().map(|sequence| u64::from_be_bytes(*sequence))
}

/// The body of a datagram for a reflector, with so many bytes.
pub(super) fn body(sequence: u64, bytes: usize) -> Vec<u8> {
    let filler = std::iter::repeat_n(0x5a, bytes.saturating_sub(SEQUENCE));
    sequence.to_be_bytes().into_iter().chain(filler).take(bytes).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::router::cases::Offer;
    use std::collections::BTreeSet;

    #[test]
    fn there_are_as_many_routes_as_asked_for_and_each_once() {
        for receivers in [1, 4] {
            for routes in [20, 1_000, 100_000, MOST_ROUTES as usize] {
                let behind = addresses(routes, receivers);
                assert_eq!(behind.len(), receivers + 1);
                let key = |(comtree, address): &(Comtree, Address)| {
                    let is_own = address.site() == SITE;
                    (comtree.0, if is_own { address.0 } else { u32::from(address.site()) << 16 })
                };
                let keys: BTreeSet<_> = behind.iter().flatten().map(key).collect();
                assert_eq!(keys.len(), routes);
                let own: usize = [0]
                    .into_iter()
                    .chain(2..=receivers)
                    .map(|n| behind[n].iter().filter(|(_, a)| a.site() == SITE).count())
                    .sum();
                assert_eq!(own, 0, "only a neighbour of the site brings its endpoints");
            }
        }
    }

    #[test]
    fn all_datagrams_of_a_case_have_its_length() {
        for (bytes, fanout) in [(150, 1), (290, 4)] {
            let case = Case { bytes, fanout, load: Offer::Single };
            let mut updates = Updates::new(&case, &addresses(1_000, fanout)).unwrap();
            for sequence in [0, 1, 77_000, 1 << 40] {
                let mut out = [0; SAFE_DATAGRAM];
                assert_eq!(updates.write(sequence, &mut out).unwrap() + SEAL_LEN, bytes);
            }
        }
    }
}
