//! Neighbourhood constraints against all cuts.

use canopy_plan::{
    CoreRule, Demand, Limits, Link, Locality, Method, Network, Node, Request, Root, choose,
    provision_local,
};
use proptest::prelude::*;

#[derive(Clone, Debug)]
struct Case {
    network: Network,
    limits: Vec<Limits>,
    outside: Vec<Limits>,
    near: Vec<Vec<usize>>,
}

fn limits() -> impl Strategy<Value = Limits> {
    (0..9_u32, 0..9_u32).prop_map(|(send, receive)| Limits::bits(send.into(), receive.into()))
}

/// A path or star-like tree of up to 6 endpoints with arbitrary neighbourhoods.
fn case() -> impl Strategy<Value = Case> {
    (2..=6_usize).prop_flat_map(|nodes| {
        (
            proptest::collection::vec(any::<usize>(), nodes),
            proptest::collection::vec(limits(), nodes),
            proptest::collection::vec(limits(), nodes),
            proptest::collection::vec(proptest::collection::vec(0..nodes, 0..nodes), nodes),
        )
            .prop_map(|(parents, limits, outside, near)| {
                let nodes = parents.len();
                let name = |n: usize| Node { name: n.to_string(), place: None, located: false };
                let links = (1..nodes).map(|node| Link::new([parents[node] % node, node], 1.0));
                let nodes = (0..nodes).map(name).collect();
                Case {
                    network: Network::new(nodes, links.collect()).unwrap(),
                    limits,
                    outside,
                    near,
                }
            })
    })
}

/// The most traffic from some endpoints to others: by maximum flow and minimum cut, the least over
/// all ways to put each endpoint's two nodes (all it exchanges, what it exchanges outside its
/// neighbourhood) on either side of a cut.
fn least_cut(case: &Case, from: &[usize], to: &[usize]) -> f64 {
    let ends: Vec<(usize, bool)> =
        from.iter().map(|n| (*n, true)).chain(to.iter().map(|n| (*n, false))).collect();
    let mut least = f64::INFINITY;
    for cut in 0..1_u64 << (2 * ends.len()) {
        let reached = |place: usize, far: usize| cut & (1 << (2 * place + far)) != 0;
        let mut sum = 0.0;
        for (place, (node, sends)) in ends.iter().enumerate() {
            let (own, far) = (reached(place, 0), reached(place, 1));
            let (limits, outside) = (case.limits[*node], case.outside[*node]);
            if *sends {
                sum += if own { 0.0 } else { limits.send.bits };
                sum += if own && !far { outside.send.bits } else { 0.0 };
            } else {
                sum += if own { limits.receive.bits } else { 0.0 };
                sum += if far && !own { outside.receive.bits } else { 0.0 };
            }
        }
        let crosses = ends.iter().enumerate().filter(|(_, end)| end.1).any(|(s, (sender, _))| {
            ends.iter().enumerate().filter(|(_, end)| !end.1).any(|(r, (receiver, _))| {
                let start = usize::from(!case.near[*sender].contains(receiver));
                let end = usize::from(!case.near[*receiver].contains(sender));
                reached(s, start) && !reached(r, end)
            })
        });
        if !crosses {
            least = least.min(sum);
        }
    }
    least
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 200,
        rng_seed: proptest::test_runner::RngSeed::Fixed(0x9a),
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn the_exact_capacity_is_the_least_cut(case in case()) {
        let endpoints: Vec<(usize, Limits)> =
            case.limits.iter().copied().enumerate().collect();
        let demand = Demand::new(&case.network, &endpoints, CoreRule::None).unwrap();
        let request =
            Request { method: Method::Mst, root: Root::Node(0), stretch: 1.0, improve: false };
        let choice = choose(&demand, &request).unwrap();
        let locality = Locality::new(case.near.clone(), case.outside.clone());
        let local = provision_local(&demand, &choice.tree, &choice.core, &locality);
        for hop in choice.tree.hops() {
            let is_below = |node: &usize| {
                let mut at = Some(*node);
                while let Some(here) = at {
                    if here == hop.below {
                        return true;
                    }
                    at = choice.tree.hop(here).map(|(above, _)| above);
                }
                false
            };
            let (below, above): (Vec<usize>, Vec<usize>) =
                (0..endpoints.len()).partition(is_below);
            let exact = local.exact[hop.below];
            prop_assert_eq!(exact.up.bits, least_cut(&case, &below, &above));
            prop_assert_eq!(exact.down.bits, least_cut(&case, &above, &below));
            let (bound, without) = (local.bound[hop.below], choice.capacities[hop.below]);
            prop_assert!(exact.up.bits <= bound.up.bits && bound.up.bits <= without.up.bits);
            prop_assert!(exact.down.bits <= bound.down.bits);
            prop_assert!(bound.down.bits <= without.down.bits);
        }
    }
}

/// Two pairs far from each other: the fast bound sees that most traffic stays in a pair.
#[test]
fn the_fast_bound_saves_something() {
    let name = |n: usize| Node { name: n.to_string(), place: None, located: false };
    let links = vec![Link::new([0, 1], 1.0), Link::new([1, 2], 99.0), Link::new([2, 3], 1.0)];
    let network = Network::new((0..4).map(name).collect(), links).unwrap();
    let endpoints: Vec<_> = (0..4).map(|node| (node, Limits::bits(4.0, 8.0))).collect();
    let demand = Demand::new(&network, &endpoints, CoreRule::None).unwrap();
    let request =
        Request { method: Method::Mst, root: Root::Node(1), stretch: 1.0, improve: false };
    let choice = choose(&demand, &request).unwrap();
    let locality = Locality::within(&demand, 5.0, Limits::bits(1.0, 2.0));
    let local = provision_local(&demand, &choice.tree, &choice.core, &locality);
    assert_eq!(choice.capacities[2].up.bits, 8.0);
    assert_eq!((local.bound[2].up.bits, local.exact[2].up.bits), (2.0, 2.0));
    // Nobody was given a neighbourhood: nothing may be exchanged with anyone outside it.
    let nobody =
        provision_local(&demand, &choice.tree, &choice.core, &Locality::new(vec![], vec![]));
    assert_eq!(nobody.exact[2].up.bits, 0.0);
}
