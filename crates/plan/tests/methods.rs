//! What each method promises, on networks too large for the optimum to hide it.

use canopy_plan::{
    Choice, CoreRule, Demand, Experiment, Limits, Link, Method, Network, Node, PlanError, Rate,
    Request, Root, choose,
};
use proptest::prelude::*;

fn with_limits<'a>(network: &'a Network, send: f64, receive: f64, core: CoreRule) -> Demand<'a> {
    let limits = Limits::bits(send, receive);
    let endpoints: Vec<_> = (0..network.nodes().len()).map(|node| (node, limits)).collect();
    Demand::new(network, &endpoints, core).unwrap()
}

fn by(demand: &Demand<'_>, method: Method, root: Root, stretch: f64) -> Choice {
    choose(demand, &Request { method, root, stretch, improve: false }).unwrap()
}

/// A ring of nodes: the first length is between the first two, and so on.
fn ring(lengths: &[f64]) -> Network {
    let nodes = lengths.len();
    let name = |number: usize| Node { name: format!("n{number}"), place: None, located: false };
    let link = |(node, km): (usize, &f64)| Link::new([node, (node + 1) % nodes], *km);
    let links = lengths.iter().enumerate().map(link).collect();
    Network::new((0..nodes).map(name).collect(), links).unwrap()
}

fn length(network: &Network, choice: &Choice) -> f64 {
    choice.tree.hops().map(|hop| network.links()[hop.link].length).sum()
}

/// The length of a minimum spanning tree, by Kruskal's algorithm.
fn kruskal(network: &Network) -> f64 {
    let mut part: Vec<usize> = (0..network.nodes().len()).collect();
    let mut links: Vec<&Link> = network.links().iter().collect();
    links.sort_by(|a, b| a.length.total_cmp(&b.length));
    let mut sum = 0.0;
    for link in links {
        let [one, other] = link.ends.map(|end| part[end]);
        if one != other {
            part.iter_mut().filter(|part| **part == other).for_each(|part| *part = one);
            sum += link.length;
        }
    }
    sum
}

#[test]
fn a_spanning_tree_is_as_short_as_kruskals_and_paths_as_short_as_they_can_be() {
    for seed in 0..20 {
        let network = Network::square(20, 2.0, seed);
        let demand = with_limits(&network, 1.0, 4.0, CoreRule::None);
        let spanning = by(&demand, Method::Mst, Root::Central, 1.0);
        assert!((length(&network, &spanning) - kruskal(&network)).abs() < 1e-9, "seed {seed}");
        let unbounded = by(&demand, Method::Stretch, Root::Central, f64::INFINITY);
        assert!((length(&network, &unbounded) - kruskal(&network)).abs() < 1e-9, "seed {seed}");
        for root in 0..20 {
            let shortest = by(&demand, Method::Spt, Root::Node(root), 1.0);
            let over_tree = shortest.tree.distances(&network);
            let direct = network.distances(root);
            assert!(
                over_tree.iter().zip(direct).all(|(tree, direct)| (tree - direct).abs() < 1e-9)
            );
        }
    }
}

#[test]
fn the_central_root_is_nearest_to_all() {
    let network = ring(&[1.0, 1.0, 1.0, 1.0, 9.0]);
    let demand = with_limits(&network, 1.0, 1.0, CoreRule::None);
    // A path of five: its middle.
    assert_eq!(by(&demand, Method::Spt, Root::Central, 1.0).tree.root(), 2);
}

#[test]
fn a_stuck_tree_is_grafted_within_its_bound() {
    // Around the ring from 0 the last link is too long for the bound; the node beyond is reached
    // the other way, over nodes that already hang on longer ways.
    let network = ring(&[1.0, 1.0, 1.0, 1.0, 1.0, 3.9]);
    let demand = with_limits(&network, 1.0, 1.0, CoreRule::None);
    for stretch in [1.0, 1.1, 1.25, 1.5] {
        let choice = by(&demand, Method::Stretch, Root::Node(0), stretch);
        let over_tree = choice.tree.distances(&network);
        for (tree, direct) in over_tree.iter().zip(network.distances(0)) {
            assert!(*tree <= direct * stretch + 1e-9, "{stretch}: {tree} for {direct}");
        }
    }
}

#[test]
fn hybrids_and_searches_gain_where_there_is_something_to_gain() {
    let (mut hybrids, mut searched) = (0, 0);
    for seed in 0..10 {
        let network = Network::square(25, 2.0, seed);
        let demand = with_limits(&network, 1.0, 6.0, CoreRule::None);
        let cost = |method| by(&demand, method, Root::Central, 1.2).cost;
        let parents = cost(Method::Spt).min(cost(Method::Mst));
        assert!(cost(Method::Hybrid) <= parents + 1e-9, "seed {seed}");
        hybrids += u32::from(cost(Method::Hybrid) < parents * 0.99);
        let (method, root, stretch) = (Method::Mst, Root::Central, 1.2);
        let improved = choose(&demand, &Request { method, root, stretch, improve: true }).unwrap();
        assert_eq!(improved.method, Method::Mst);
        searched += u32::from(improved.cost < cost(Method::Mst) * 0.95);
    }
    assert!(hybrids >= 2 && searched == 10, "{hybrids} hybrids, {searched} searches");
}

#[test]
fn rules_for_the_core_are_what_they_say() {
    let network = ring(&[1.0, 1.0, 1.0, 1.0, 1.0, 9.0]);
    let core = |rule| {
        let demand = with_limits(&network, 1.0, 2.0, rule);
        let choice = by(&demand, Method::Mst, Root::Node(2), 1.0);
        (0..6).filter(|node| choice.core[*node]).collect::<Vec<usize>>()
    };
    assert_eq!(core(CoreRule::None), [0; 0]);
    assert_eq!(core(CoreRule::Nodes(Vec::new())), [0; 0]);
    assert_eq!(core(CoreRule::Center), [2]);
    assert_eq!(core(CoreRule::CenterAndNeighbours), [1, 2, 3]);
    assert_eq!(core(CoreRule::All), [0, 1, 2, 3, 4, 5]);
    assert_eq!(core(CoreRule::Nodes(vec![0, 3])), [0, 1, 2, 3]);
}

#[test]
fn packets_can_be_what_does_not_fit() {
    let mut network = ring(&[1.0, 1.0, 5.0]);
    let free = |packets| Rate { bits: 100.0, packets };
    let links: Vec<Link> = network
        .links()
        .iter()
        .zip([3.0, 1.0, 9.0])
        .map(|(link, packets)| Link { free: [free(packets); 2], ..*link })
        .collect();
    network = Network::new(network.nodes().to_vec(), links).unwrap();
    let rate = Rate { bits: 1.0, packets: 2.0 };
    let all_at = |rate| -> Vec<(usize, Limits)> {
        (0..3).map(|node| (node, Limits { send: rate, receive: rate })).collect()
    };
    let endpoints = all_at(rate);
    let demand = Demand::new(&network, &endpoints, CoreRule::None).unwrap();
    let request = Request { method: Method::Best, root: Root::Best, stretch: 1.0, improve: false };
    let choice = choose(&demand, &request).unwrap();
    let mut links: Vec<usize> = choice.tree.hops().map(|hop| hop.link).collect();
    links.sort_unstable();
    assert_eq!(links, [0, 2], "the short link 1 has too few packets free");
    let fast = Rate { bits: 1.0, packets: 6.0 };
    let endpoints = all_at(fast);
    let demand = Demand::new(&network, &endpoints, CoreRule::None).unwrap();
    let Err(PlanError::Infeasible(why)) = choose(&demand, &request) else {
        panic!("it cannot fit")
    };
    assert_eq!(
        why,
        "no tree fits what is free: n1 is to send 1 bits and 6 packets, and on all its links \
         together 200 bits and 4 packets is free. Free more there, or lower its limits"
    );
}

/// The paper's findings (Forest §3.5), in a smaller experiment.
#[test]
fn the_papers_findings_come_out_again() {
    let experiment = Experiment { points: 16, trials: 8, seed: 3 };
    let topologies = experiment.topologies(|_| ()).unwrap();
    let (first, last) = (topologies[0], topologies[14]);
    // Shortest-path trees are linear in the fan-out.
    let slope = (last.spt - first.spt) / 14.0;
    for (row, passed) in topologies.iter().zip(0..) {
        assert!((row.spt - first.spt - slope * f64::from(passed)).abs() < 0.01 * last.spt);
        let papers = row.spt.min(row.mst).min(row.stretch_1_2);
        assert!(row.best <= papers * (1.0 + 1e-9) && row.hybrid <= row.spt.min(row.mst) + 1e-9);
    }
    assert!(last.mst <= last.stretch_1_2 && last.stretch_1_2 < 0.7 * last.spt);
    let gain =
        |row: &canopy_plan::TopologyRow| 1.0 - row.best / row.spt.min(row.mst).min(row.stretch_1_2);
    assert!(topologies[3..8].iter().map(gain).sum::<f64>() / 5.0 > 0.06);
    let cores = experiment.cores(|_| ()).unwrap();
    for row in &cores {
        assert!((row.core_center / row.no_core - 1.0).abs() < 0.03, "{row:?}");
        assert!(row.core_center <= row.core_center_and_neighbours * (1.0 + 1e-9), "{row:?}");
        assert!(row.core_center_and_neighbours <= row.all_core * (1.0 + 1e-9), "{row:?}");
    }
    assert!((0.8..1.0).contains(&(cores[1].unicast / cores[1].no_core)), "{:?}", cores[1]);
    assert!(cores[14].unicast > 2.0 * cores[14].no_core);
    let delays = experiment.delays().unwrap();
    assert!((1.3..1.7).contains(&delays[2].mean_tree_delay), "{:?}", delays[2]);
    assert!((1.0..1.1).contains(&delays[2].mean_direct_delay), "{:?}", delays[2]);
    assert!(delays[0].max_tree_delay < delays[30].max_tree_delay);
    assert!(Experiment { points: 2, ..experiment }.delays().is_err());
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 24,
        rng_seed: proptest::test_runner::RngSeed::Fixed(0x9a),
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    /// With the same options, nothing that is offered is cheaper than `best`, improved or not.
    #[test]
    fn best_is_never_dearer(
        points in 14..28_usize,
        seed in any::<u64>(),
        receive in 1..12_u32,
        stretch in 1.0..3.0_f64,
        core in 0..3_usize,
        named in any::<bool>(),
    ) {
        let rule = [CoreRule::None, CoreRule::Center, CoreRule::All][core].clone();
        let network = Network::square(points, 2.0, seed);
        let demand = with_limits(&network, 1.0, f64::from(receive), rule);
        let root = if named { Root::Node(points / 2) } else { Root::Best };
        let best = by(&demand, Method::Best, root, stretch).cost;
        for method in Method::ALL {
            for improve in [false, true] {
                let other = choose(&demand, &Request { method, root, stretch, improve }).unwrap();
                prop_assert!(best <= other.cost * (1.0 + 1e-9), "{method:?} {improve}: {}", other.cost);
            }
        }
    }
}
