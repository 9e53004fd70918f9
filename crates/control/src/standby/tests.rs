//! On random networks: whatever fails, ways up over standby parents form no circle, and whoever can be
//! joined by them is.

use super::*;
use rand::{Rng, RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

struct Case {
    hops: Vec<TreeHop>,
    links: Vec<(LinkId, [RelayId; 2])>,
    standbys: Standbys,
}

/// A random tree, more links at random, and the standby parents.
fn case(rng: &mut impl Rng) -> Case {
    let count: u16 = rng.random_range(2..16);
    let mut hops = vec![TreeHop { relay: RelayId(1), above: None }];
    let mut links = Vec::new();
    for relay in 2..=count {
        let ends = [RelayId(relay), hops[rng.random_range(0..hops.len())].relay];
        let link = LinkId(links.len() as u32 + 1);
        links.push((link, ends));
        hops.push(TreeHop { relay: ends[0], above: Some((ends[1], link)) });
    }
    for _ in 0..rng.random_range(0..2 * u32::from(count)) {
        let ends = [rng.random_range(1..=count), rng.random_range(1..=count)].map(RelayId);
        let joined = |of: &&(LinkId, [RelayId; 2])| ends.iter().all(|end| of.1.contains(end));
        if ends[0] != ends[1] && links.iter().find(joined).is_none() {
            links.push((LinkId(links.len() as u32 + 1), ends));
        }
    }
    let standbys = choose(&hops, candidates(&links, rng), &Standbys::new());
    Case { hops, links, standbys }
}

fn candidates(links: &[(LinkId, [RelayId; 2])], rng: &mut impl Rng) -> Vec<Candidate> {
    let both = |(link, ends): &(LinkId, [RelayId; 2])| {
        let (has_room, delay_us) = (rng.random_bool(0.8), rng.random_range(0..1_000));
        let of = |relay, to| Candidate { relay, to, link: *link, has_room, delay_us };
        [of(ends[0], ends[1]), of(ends[1], ends[0])]
    };
    links.iter().flat_map(both).collect()
}

/// Where a way up ends, if it ends.
fn top(above: &BTreeMap<RelayId, RelayId>, from: RelayId) -> Option<RelayId> {
    let mut way = core::iter::successors(Some(from), |at| above.get(at).copied());
    way.by_ref().take(above.len() + 1).last().filter(|_| way.next().is_none())
}

fn cases(check: impl Fn(&Case, &mut ChaCha8Rng)) {
    for seed in 0..2_000 {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let case = case(&mut rng);
        check(&case, &mut rng);
    }
}

#[test]
fn ways_up_form_no_circle_whoever_uses_a_standby_parent() {
    cases(|case, rng| {
        for _ in 0..20 {
            let mut above = BTreeMap::new();
            for hop in &case.hops {
                let standby = case.standbys.get(&hop.relay).filter(|_| rng.random_bool(0.5));
                if let Some((to, _)) = standby.copied().or(hop.above) {
                    above.insert(hop.relay, to);
                }
            }
            assert!(case.hops.iter().all(|hop| top(&above, hop.relay) == Some(RelayId(1))));
        }
    });
}

#[test]
fn one_failed_link_is_mended_where_the_relay_below_has_a_standby_parent() {
    let mended = core::cell::Cell::new(0);
    cases(|case, _| {
        for hop in &case.hops {
            let Some((_, failed)) = hop.above else { continue };
            let is_lost = |_, link| link == failed;
            let hops = with_standbys(&case.hops, &case.standbys, is_lost, |_| false);
            assert_eq!(hops.len(), case.hops.len());
            let uses = hops.iter().any(|hop| hop.above.is_some_and(|(_, link)| link == failed));
            assert_eq!(uses, !case.standbys.contains_key(&hop.relay));
            // Who has none has no neighbour that ranks before it.
            let places = Places::new(&case.hops);
            let ranks = |at| places.rank(at);
            let could = case.links.iter().any(|(link, ends)| {
                let other = if ends[0] == hop.relay { ends[1] } else { ends[0] };
                *link != failed && ends.contains(&hop.relay) && ranks(other) < ranks(hop.relay)
            });
            assert_eq!(uses, !could);
            mended.set(mended.get() + u32::from(!uses));
        }
    });
    assert!(mended.get() > 1_000, "{}", mended.get());
}

#[test]
fn a_dead_relay_cuts_off_only_those_without_a_way_round_it() {
    let joined = core::cell::Cell::new(0);
    cases(|case, _| {
        for dead in case.hops.iter().skip(1).map(|hop| hop.relay) {
            let is_lost = |relay, link: LinkId| {
                let of = case.links.iter().find(|(id, _)| *id == link);
                relay == dead || of.is_some_and(|(_, ends)| ends.contains(&dead))
            };
            let hops = with_standbys(&case.hops, &case.standbys, is_lost, |relay| relay == dead);
            let places = Places::new(&case.hops);
            let orphans = case.hops.iter().filter(|hop| hop.above.is_some_and(|(a, _)| a == dead));
            for orphan in orphans {
                let now = hops.iter().find(|hop| hop.relay == orphan.relay).unwrap();
                // One that does not lead over the dead relay is taken if there is one.
                let ranks = |at| places.rank(at);
                let is_good = |to| to != dead && !places.leads_over(to, dead);
                let could = case.links.iter().any(|(_, ends)| {
                    let other = if ends[0] == orphan.relay { ends[1] } else { ends[0] };
                    ends.contains(&orphan.relay)
                        && ranks(other) < ranks(orphan.relay)
                        && is_good(other)
                });
                let is_joined = now.above.is_some_and(|(to, _)| is_good(to));
                assert_eq!(is_joined, could);
                joined.set(joined.get() + u32::from(could));
            }
        }
    });
    assert!(joined.get() > 1_000, "{}", joined.get());
}

#[test]
fn a_standby_parent_stays_unless_there_is_a_better_kind() {
    cases(|case, rng| {
        let again = choose(&case.hops, candidates(&case.links, rng), &case.standbys);
        assert_eq!(again, case.standbys);
    });
}
