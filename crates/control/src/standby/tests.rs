//! On random networks: whatever fails, ways up over standby parents form no circle, and whoever can be
//! joined by them is.

use super::*;
use crate::propose::{Proposal, Proposing, Site};
use canopy_plan::{CoreRule, Demand, Limits, Link, Method, Network, Request, Root};
use rand::{Rng, RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::collections::BTreeSet;

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
        let of =
            |relay, to| Candidate { relay, to, link: *link, has_room, delay_us, is_used: false };
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
            let hops =
                with_standbys(&case.hops, (&case.standbys, &Standbys::new()), is_lost, |_| false);
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
            let hops =
                with_standbys(&case.hops, (&case.standbys, &Standbys::new()), is_lost, |relay| {
                    relay == dead
                });
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

/// What bounds how many relays have a standby parent, whatever the ranks are: were both ends of a link standby
/// parents of each other, both could use it at once, and form a circle.
#[test]
fn a_link_off_the_tree_serves_one_of_its_ends_at_most() {
    cases(|case, _| {
        let used: BTreeSet<LinkId> = case.standbys.values().map(|(_, link)| *link).collect();
        assert_eq!(used.len(), case.standbys.len());
        assert!(
            case.hops.iter().all(|hop| hop.above.is_none_or(|(_, link)| !used.contains(&link)))
        );
    });
}

/// The shortest-path tree from a network's middle over its largest part. Returns how many relays have a parent, how
/// many of them a standby parent, and how many links are off the tree.
fn standbys_on(network: &Network) -> [usize; 3] {
    let nodes = network.largest_component();
    let limits = Limits::bits(1.0, 1.0);
    let endpoints: Vec<_> = nodes.iter().map(|node| (*node, limits)).collect();
    let demand = Demand::new(network, &endpoints, CoreRule::Center).unwrap();
    let request =
        Request { method: Method::Spt, root: Root::Central, stretch: 1.0, improve: false };
    let tree = canopy_plan::choose(&demand, &request).unwrap().tree;
    let relay = |node: usize| RelayId(node as u16 + 1);
    let hop = |node: &usize| TreeHop {
        relay: relay(*node),
        above: tree.hop(*node).map(|(above, link)| (relay(above), LinkId(link as u32))),
    };
    let hops: Vec<TreeHop> = tree.order().iter().map(hop).collect();
    let links: BTreeMap<[usize; 2], u32> = (0..)
        .zip(network.links())
        .map(|(number, link)| {
            ([link.ends[0].min(link.ends[1]), link.ends[0].max(link.ends[1])], number)
        })
        .filter(|(ends, _)| nodes.contains(&ends[0]))
        .collect();
    let both = |(ends, link): (&[usize; 2], &u32)| {
        let of = |relay, to| Candidate {
            relay,
            to,
            link: LinkId(*link),
            has_room: true,
            delay_us: 0,
            is_used: false,
        };
        let [one, other] = ends.map(relay);
        [of(one, other), of(other, one)]
    };
    let standbys = choose(&hops, links.iter().flat_map(both), &Standbys::new());
    [hops.len() - 1, standbys.len(), links.len() - (hops.len() - 1)]
}

/// The same relays with the links that the controller proposes, three for each.
fn with_proposed_links(network: &Network) -> Network {
    let nodes = network.largest_component();
    let mut delays = BTreeMap::new();
    for (at, from) in nodes.iter().enumerate() {
        let lengths = network.distances(*from);
        for (to, node) in nodes.iter().enumerate().skip(at + 1) {
            delays.insert((RelayId(at as u16), RelayId(to as u16)), (5.0 * lengths[*node]) as u32);
        }
    }
    let site = |at| Site { relay: RelayId(at as u16), most: 3, leaves: false };
    let (given, before) = (BTreeSet::new(), BTreeMap::new());
    let sites = (0..nodes.len()).map(site).collect();
    let mut proposal = Proposal::new(sites, &delays, &given, &before, Proposing::default());
    assert!(proposal.work(u64::MAX));
    let link = |(from, to): &(RelayId, RelayId)| {
        Link::new([from.0, to.0].map(usize::from), f64::from(delays[&(*from, *to)]) / 5.0)
    };
    let links = proposal.links().keys().map(link).collect();
    Network::new(nodes.iter().map(|node| network.nodes()[*node].clone()).collect(), links).unwrap()
}

/// `cargo test -p canopy-control --lib zoo -- --ignored --nocapture` prints the table of docs/controller.md.
#[test]
#[ignore = "it tells, and needs the networks of the Topology Zoo"]
#[allow(clippy::disallowed_methods, reason = "it reads the networks that it is about")]
fn how_many_relays_have_a_standby_parent_on_networks_of_the_zoo() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let folder = folder.join("../../../shared/data/topologies");
    let mut files: Vec<_> =
        std::fs::read_dir(folder).unwrap().map(|of| of.unwrap().path()).collect();
    files.retain(|file| file.extension().is_some_and(|of| of == "gml"));
    files.sort();
    let mut sums = [[0; 3]; 2];
    for file in files {
        let network = Network::from_file(&file, &std::fs::read(&file).unwrap()).unwrap();
        let found = [standbys_on(&network), standbys_on(&with_proposed_links(&network))];
        println!("{}: {found:?}", file.file_stem().unwrap().display());
        for (sum, found) in sums.iter_mut().zip(found) {
            (0..3).for_each(|at| sum[at] += found[at]);
            assert!(found[1] <= found[2], "{found:?}");
        }
    }
    println!("all, given and proposed: {sums:?}");
}
