//! Small networks against all of their trees.

use canopy_plan::{
    Choice, CoreRule, Demand, Limits, Link, Method, Network, Node, PlanError, Rate, Reach, Request,
    Root, choose, optimum,
};
use proptest::prelude::*;

/// A network, who is an endpoint with which limits.
#[derive(Clone, Debug)]
struct Case {
    network: Network,
    endpoints: Vec<(usize, Limits)>,
}

fn name(number: usize) -> Node {
    Node { name: number.to_string(), place: None, located: false }
}

/// Up to `most` nodes on a random tree with random links beside, so that all is one component.
fn case(most: usize, free: Option<std::ops::Range<u32>>) -> impl Strategy<Value = Case> {
    (2..=most)
        .prop_flat_map(move |nodes| {
            let link = (0..nodes, 0..nodes, 1..20_u32);
            let capacity = free.clone().unwrap_or(0..1);
            (
                proptest::collection::vec(any::<usize>(), nodes),
                proptest::collection::vec(1..20_u32, nodes),
                proptest::collection::vec(link, 0..=17 - nodes),
                proptest::collection::vec((capacity.clone(), capacity), 16),
                proptest::collection::vec((any::<bool>(), 0..4_u32, 0..12_u32), nodes),
                Just(free.is_some()),
            )
        })
        .prop_map(|(parents, lengths, others, capacities, who, is_limited)| {
            let nodes = parents.len();
            let tree = (1..nodes).map(|node| ([parents[node] % node, node], lengths[node]));
            let others = others.into_iter().map(|(a, b, length)| ([a, b], length));
            let links = tree.chain(others).zip(capacities).map(|((ends, km), (there, back))| {
                let mut link = Link::new(ends, f64::from(km));
                if is_limited {
                    let free = |bits| Rate { bits: f64::from(bits), packets: f64::INFINITY };
                    link.free = [free(there), free(back)];
                }
                link
            });
            let network = Network::new((0..nodes).map(name).collect(), links.collect()).unwrap();
            let limits = |(_, send, receive): &(bool, u32, u32)| {
                Limits::bits(f64::from(*send), f64::from(*receive))
            };
            let chosen = who.iter().enumerate().filter(|(node, who)| who.0 || *node == 0);
            let endpoints = chosen.map(|(node, who)| (node, limits(who))).collect();
            Case { network, endpoints }
        })
}

/// Which nodes get a copy of everything.
#[derive(Clone, Copy)]
enum Core<'a> {
    Named(&'a [usize]),
    /// All of the tree's.
    All,
}

/// The cost of every tree that joins the endpoints and fits what is free, from first principles:
/// all sets of links that are a tree, each link's two sides found by walking.
fn all_costs(case: &Case, core: Core<'_>) -> Vec<f64> {
    let links = case.network.links();
    let nodes = case.network.nodes().len();
    let mut costs = Vec::new();
    for set in 0..1_u32 << links.len() {
        let count = set.count_ones() as usize;
        if count >= nodes || count + 1 < case.endpoints.len() {
            continue;
        }
        let taken: Vec<&Link> =
            links.iter().enumerate().filter(|(n, _)| set & (1 << n) != 0).map(|(_, l)| l).collect();
        let side = |start: usize, without: Option<&Link>| {
            let mut inside = vec![false; nodes];
            let mut stack = vec![start];
            while let Some(node) = stack.pop() {
                if !std::mem::replace(&mut inside[node], true) {
                    let usable = taken.iter().filter(|link| {
                        link.ends.contains(&node)
                            && without.is_none_or(|not| !std::ptr::eq(**link, not))
                    });
                    stack.extend(usable.map(|link| link.other(node)));
                }
            }
            inside
        };
        let whole = side(case.endpoints[0].0, None);
        let size = whole.iter().filter(|inside| **inside).count();
        let touched = taken.iter().all(|link| whole[link.ends[0]]);
        let is_core = |node: usize| match core {
            Core::Named(named) => named.contains(&node),
            Core::All => whole[node],
        };
        let core_joined = (0..nodes).all(|node| !is_core(node) || whole[node]);
        let joined = case.endpoints.iter().all(|(node, _)| whole[*node]);
        if taken.len() + 1 != size || !touched || !joined || !core_joined {
            continue;
        }
        let mut cost = Some(0.0);
        for link in &taken {
            let left = side(link.ends[0], Some(link));
            let sum = |here: bool| -> Limits {
                let there = case.endpoints.iter().filter(|(node, _)| left[*node] == here);
                there.map(|(_, limits)| *limits).sum()
            };
            let has_core = |here: bool| (0..nodes).any(|node| left[node] == here && is_core(node));
            let needed = |from: bool, to: bool| {
                let sent = sum(from).send.bits;
                if has_core(to) { sent } else { sent.min(sum(to).receive.bits) }
            };
            let (there, back) = (needed(true, false), needed(false, true));
            let fits = there <= link.free[0].bits && back <= link.free[1].bits;
            cost = cost.filter(|_| fits).map(|cost| cost + (there + back) * link.length);
        }
        costs.extend(cost);
    }
    costs
}

fn least(costs: &[f64]) -> Option<f64> {
    costs.iter().copied().min_by(f64::total_cmp)
}

fn by(demand: &Demand<'_>, method: Method, stretch: f64) -> Result<Choice, PlanError> {
    choose(demand, &Request { method, root: Root::Best, stretch, improve: false })
}

/// The links of a choice join its endpoints and make a tree.
fn is_sound(demand: &Demand<'_>, choice: &Choice) -> bool {
    let order = choice.tree.order();
    let joined = demand.endpoints().iter().all(|node| order.contains(node));
    let leads = |hop: canopy_plan::Hop| {
        let ends = demand.network().links()[hop.link].ends;
        ends == [hop.below, hop.above] || ends == [hop.above, hop.below]
    };
    joined && choice.tree.hops().count() + 1 == order.len() && choice.tree.hops().all(leads)
}

fn close(a: f64, b: f64) -> bool {
    (a - b).abs() <= 1e-9 * a.abs().max(b.abs()).max(1.0)
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 200,
        rng_seed: proptest::test_runner::RngSeed::Fixed(0x9a),
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    /// The optimum is the least of all trees, and no method is below it or above best.
    #[test]
    fn no_tree_is_cheaper_than_the_optimum(case in case(9, None), core in 0..5_usize) {
        let rules = [
            CoreRule::None,
            CoreRule::Nodes(vec![0]),
            CoreRule::Nodes(vec![1]),
            CoreRule::All,
            CoreRule::Center,
        ];
        let rule = rules[core].clone();
        let costs = match rule {
            CoreRule::Nodes(ref core) => all_costs(&case, Core::Named(core)),
            CoreRule::All => all_costs(&case, Core::All),
            // The cheapest of all centres.
            CoreRule::Center => (0..case.network.nodes().len())
                .flat_map(|center| all_costs(&case, Core::Named(&[center])))
                .collect(),
            _ => all_costs(&case, Core::Named(&[])),
        };
        let demand = Demand::new(&case.network, &case.endpoints, rule).unwrap();
        let least = least(&costs).unwrap();
        let optimum = optimum(&demand).unwrap();
        prop_assert!(is_sound(&demand, &optimum));
        prop_assert!(close(optimum.cost, least), "{} is not {least}", optimum.cost);
        for method in Method::ALL {
            for stretch in [1.0, 1.3, f64::INFINITY] {
                let choice = by(&demand, method, stretch).unwrap();
                prop_assert!(is_sound(&demand, &choice), "{method:?}");
                prop_assert!(choice.cost >= least - 1e-9, "{method:?}");
                if method == Method::Best {
                    prop_assert!(close(choice.cost, least));
                }
            }
        }
    }

    /// Forest §3.5: for A = Z the best shortest-path tree is optimal, else within (1 + Z/A)/2.
    #[test]
    fn shortest_path_trees_keep_their_bound(case in case(9, None), equal in any::<bool>()) {
        let mut case = case;
        if equal {
            for (_, limits) in &mut case.endpoints {
                limits.receive = limits.send;
            }
        }
        let demand = Demand::new(&case.network, &case.endpoints, CoreRule::None).unwrap();
        let least = least(&all_costs(&case, Core::Named(&[]))).unwrap();
        let cost = by(&demand, Method::Spt, 1.0).unwrap().cost;
        prop_assert!(cost <= least * demand.shortest_path_bound() + 1e-9 || least == 0.0);
        if equal {
            prop_assert!(close(cost, least), "{cost} is not {least}");
        }
    }

    /// Where a tree fits, one is found; where none does, that is said. Methods that promise a
    /// stretch may say that none was found within it.
    #[test]
    fn a_tree_that_fits_is_found(case in case(9, Some(0..12)), all in any::<bool>()) {
        let (rule, core) = if all {
            (CoreRule::All, Core::All)
        } else {
            (CoreRule::None, Core::Named(&[]))
        };
        let demand = Demand::new(&case.network, &case.endpoints, rule).unwrap();
        let costs = all_costs(&case, core);
        for method in Method::ALL {
            let promises = matches!(method, Method::Spt | Method::Stretch);
            match (by(&demand, method, 1.2), least(&costs)) {
                (Ok(choice), Some(least)) => {
                    let fits = choice.tree.hops().all(|hop| {
                        let needed = choice.capacities[hop.below];
                        let [up, down] = demand.network().links()[hop.link].free_from(hop.below);
                        needed.up.bits <= up.bits && needed.down.bits <= down.bits
                    });
                    prop_assert!(fits && is_sound(&demand, &choice), "{method:?}");
                    prop_assert!(choice.cost >= least - 1e-9);
                    prop_assert!(method != Method::Best || close(choice.cost, least));
                }
                (Err(PlanError::Infeasible(why)), least) => {
                    let is_sure = why.starts_with("no tree fits what is free");
                    prop_assert!(is_sure && least.is_none() || promises && !is_sure, "{why}");
                }
                (choice, least) => prop_assert!(false, "{method:?}: {choice:?}, {least:?}"),
            }
        }
    }

    /// No node of a stretched tree is further from the root than it may be, improved or not.
    #[test]
    fn a_stretch_is_kept(
        case in prop_oneof![case(12, None), case(12, Some(2..30))],
        stretch in 1.0..3.0_f64,
        improve in any::<bool>(),
    ) {
        let demand = Demand::new(&case.network, &case.endpoints, CoreRule::None).unwrap();
        let request = Request { method: Method::Stretch, root: Root::Node(0), stretch, improve };
        let Ok(choice) = choose(&demand, &request) else { return Ok(()) };
        let direct = case.network.distances(0);
        let over_tree = choice.tree.distances(&case.network);
        for node in demand.endpoints() {
            prop_assert!(over_tree[*node] <= direct[*node] * stretch + 1e-9);
        }
    }

    /// The core is the smallest connected set that is near enough to every endpoint.
    #[test]
    fn a_core_is_as_small_as_it_can_be(case in case(7, None), hops in 0..4_u32, km in 0..40_u32) {
        let reach = Reach { hops, length: f64::from(km) };
        let demand = Demand::new(&case.network, &case.endpoints, CoreRule::Within(reach)).unwrap();
        let choice = by(&demand, Method::Spt, 1.0).unwrap();
        let order = choice.tree.order();
        let reaches = |core: &[usize]| {
            demand.endpoints().iter().all(|end| {
                let tree = choice.tree.rooted_at(*end);
                let far = tree.distances(&case.network);
                core.iter().any(|node| {
                    let mut links = 0;
                    let mut at = *node;
                    while let Some((above, _)) = tree.hop(at) {
                        at = above;
                        links += 1;
                    }
                    links <= hops && far[*node] <= reach.length
                })
            })
        };
        let is_connected = |core: &[usize]| {
            let inner = choice.tree.hops();
            let links = inner.filter(|hop| core.contains(&hop.below) && core.contains(&hop.above));
            links.count() + 1 == core.len()
        };
        let smallest = (1..1_u32 << order.len())
            .map(|set| {
                let inside = order.iter().enumerate().filter(|(n, _)| set & (1 << n) != 0);
                inside.map(|(_, node)| *node).collect::<Vec<usize>>()
            })
            .filter(|core| is_connected(core) && reaches(core))
            .map(|core| core.len())
            .min();
        let found: Vec<usize> = (0..choice.core.len()).filter(|node| choice.core[*node]).collect();
        prop_assert!(is_connected(&found) && reaches(&found), "{found:?}");
        prop_assert_eq!(Some(found.len()), smallest);
    }
}
