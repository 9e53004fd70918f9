use super::*;
use proptest::prelude::*;

type Places = Vec<(u32, u32)>;

const NONE: BTreeMap<Pair, Origin> = BTreeMap::new();

/// Delays on a plane, with an error of each measurement of at most so much.
fn measure(places: &Places, error: impl Fn(usize, usize) -> f64) -> BTreeMap<Pair, u32> {
    let mut measured = BTreeMap::new();
    for from in 0..places.len() {
        for to in from + 1..places.len() {
            let x = f64::from(places[from].0) - f64::from(places[to].0);
            let y = f64::from(places[from].1) - f64::from(places[to].1);
            let delay = (x.hypot(y) + 100.0) * (1.0 + error(from, to));
            measured.insert((id(from), id(to)), delay as u32);
        }
    }
    measured
}

fn exactly(places: &Places) -> BTreeMap<Pair, u32> {
    measure(places, |_, _| 0.0)
}

fn id(at: usize) -> RelayId {
    RelayId(at as u16 + 1)
}

fn sites(count: usize, most: usize) -> Vec<Site> {
    (0..count).map(|at| Site { relay: id(at), most, leaves: false }).collect()
}

/// All that is proposed, worked out in one piece.
fn propose(
    sites: &[Site],
    measured: &BTreeMap<Pair, u32>,
    given: &BTreeSet<Pair>,
    before: &BTreeMap<Pair, Origin>,
    proposing: &Proposing,
) -> BTreeMap<Pair, Origin> {
    let mut proposal = Proposal::new(sites.to_vec(), measured, given, before, *proposing);
    assert!(proposal.work(u64::MAX));
    proposal.links()
}

/// The relays with these links, and what was measured.
fn with(
    sites: &[Site],
    links: impl IntoIterator<Item = Pair>,
    measured: &BTreeMap<Pair, u32>,
) -> (Draft, Vec<Candidate>) {
    let at = |(from, to): Pair| [usize::from(from.0) - 1, usize::from(to.0) - 1];
    let mut draft = Draft::new(sites, &[], &BTreeSet::new());
    let candidate =
        |(of, delay): (Pair, u32)| Candidate { length: u64::from(delay) + HOP, ends: at(of) };
    links.into_iter().for_each(|of| draft.join(candidate((of, measured[&of]))));
    (draft, measured.iter().map(|(of, delay)| candidate((*of, *delay))).collect())
}

/// How many relays the first reaches, without one.
fn reached(draft: &Draft, without: Option<usize>) -> usize {
    let mut sets = draft.sets(|of| Some(of) != without);
    let first = usize::from(without == Some(0));
    let root = sets.find(first);
    (0..draft.most.len()).filter(|at| Some(*at) != without && sets.find(*at) == root).count()
}

/// How long all ways together are, with their hops; nothing if some are apart.
fn total(sites: &[Site], links: &[Pair], measured: &BTreeMap<Pair, u32>) -> Option<u64> {
    let (draft, candidates) = with(sites, links.iter().copied(), measured);
    let ways = candidates.iter().map(|of| draft.lengths(of.ends[0], None, u64::MAX).0[of.ends[1]]);
    ways.sum()
}

/// The least that any choice of links gives, with so many for each relay.
fn least_total(sites: &[Site], measured: &BTreeMap<Pair, u32>) -> Option<u64> {
    let pairs: Vec<Pair> = measured.keys().copied().collect();
    let choice = |bits: u32| {
        let is_in = |at: &usize| bits >> at & 1 == 1;
        let links: Vec<Pair> = (0..pairs.len()).filter(is_in).map(|at| pairs[at]).collect();
        let degree = |site: &Site| {
            links.iter().filter(|(a, b)| *a == site.relay || *b == site.relay).count()
        };
        sites.iter().all(|site| degree(site) <= site.most).then_some(links)
    };
    let all = (0..1_u32 << pairs.len()).filter_map(choice);
    all.filter_map(|links| total(sites, &links, measured)).min()
}

fn places(most: usize) -> impl Strategy<Value = Places> {
    proptest::collection::vec((0..50_000_u32, 0..50_000_u32), 1..most)
}

proptest! {
    #![proptest_config(ProptestConfig {
        rng_seed: proptest::test_runner::RngSeed::Fixed(0x9a7),
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn all_are_joined_and_nobody_has_too_many(places in places(14), degree in 3..6_usize) {
        let (count, measured) = (places.len(), exactly(&places));
        let sites = sites(count, degree);
        let links = propose(&sites, &measured, &BTreeSet::new(), &NONE, &Proposing::default());
        let (draft, _) = with(&sites, links.into_keys(), &measured);
        prop_assert_eq!(reached(&draft, None), count);
        prop_assert!(draft.links.iter().all(|links| links.len() <= degree));
    }

    #[test]
    fn with_room_no_relay_that_fails_parts_the_others(places in places(14)) {
        let (count, measured, of) = (places.len(), exactly(&places), Proposing::default());
        let sites = sites(count, count);
        let links = propose(&sites, &measured, &BTreeSet::new(), &NONE, &of);
        let (draft, candidates) = with(&sites, links.into_keys(), &measured);
        for without in 0..count {
            prop_assert!(count < 3 || reached(&draft, Some(without)) == count - 1);
        }
        for Candidate { length, ends: [from, to] } in candidates {
            let way = draft.lengths(from, None, u64::MAX).0[to].unwrap();
            prop_assert!(way as f64 <= length as f64 * of.stretch);
        }
    }

    #[test]
    fn what_trembles_moves_nothing(
        places in places(14),
        errors in proptest::collection::vec(-0.04..0.04_f64, 97),
    ) {
        let (measured, of) = (exactly(&places), Proposing::default());
        let sites = sites(places.len(), 4);
        let given = BTreeSet::new();
        let links = propose(&sites, &measured, &given, &NONE, &of);
        prop_assert_eq!(&propose(&sites, &measured, &given, &links, &of), &links, "settled");
        let error = |from: usize, to: usize| errors[(from * 31 + to) % errors.len()];
        let after = propose(&sites, &measure(&places, error), &given, &links, &of);
        prop_assert!(links.keys().all(|of| after.contains_key(of)), "{:?} of {:?}", after, links);
    }

    #[test]
    fn pieces_make_the_same_links_and_none_is_much_larger_than_asked(
        places in places(14),
        given in 0..4_usize,
        steps in 1..400_u64,
    ) {
        let (count, measured) = (places.len(), exactly(&places));
        let (sites, of) = (sites(count, 4), Proposing::default());
        let given: BTreeSet<Pair> = measured.keys().copied().step_by(3).take(given).collect();
        let whole = propose(&sites, &measured, &given, &NONE, &of);
        let mut proposal = Proposal::new(sites, &measured, &given, &NONE, of);
        let pieces = (1..).find(|_| proposal.work(steps)).unwrap_or(0);
        prop_assert_eq!(proposal.links(), whole);
        // No stage looks at a candidate more than once for each relay.
        let all = 8 * (count * (measured.len() + 4 * count) + 1) as u64;
        prop_assert!(pieces <= all / steps + 2, "{} pieces", pieces);
    }

    #[test]
    fn given_links_count_and_are_not_proposed(places in places(14), given in 0..20_usize) {
        let (count, measured) = (places.len(), exactly(&places));
        let given: BTreeSet<Pair> = measured.keys().copied().step_by(3).take(given).collect();
        let sites = sites(count, 4);
        let links = propose(&sites, &measured, &given, &NONE, &Proposing::default());
        prop_assert!(links.keys().all(|of| !given.contains(of)));
        let (draft, _) = with(&sites, links.into_keys().chain(given), &measured);
        prop_assert_eq!(reached(&draft, None), count);
    }

    #[test]
    fn who_has_room_for_one_link_is_joined_all_the_same(
        places in places(14),
        mosts in proptest::collection::vec(1..4_usize, 14),
    ) {
        let (count, measured) = (places.len(), exactly(&places));
        let mut sites = sites(count, 1);
        sites.iter_mut().zip(mosts).for_each(|(site, most)| site.most = most);
        let links = propose(&sites, &measured, &BTreeSet::new(), &NONE, &Proposing::default());
        let (draft, _) = with(&sites, links.into_keys(), &measured);
        prop_assert_eq!(reached(&draft, None), count);
        let most = |(links, site): (&Vec<_>, &Site)| links.len() <= site.most + 1;
        prop_assert!(draft.links.iter().zip(&sites).all(most));
    }

    #[test]
    fn unmeasured_pairs_and_relays_that_are_not_there_get_no_link(
        places in places(10),
        kept in proptest::collection::vec(any::<bool>(), 50),
    ) {
        let mut measured = exactly(&places);
        let mut keep = kept.into_iter();
        measured.retain(|_, _| keep.next().unwrap_or(true));
        let sites = sites(places.len().saturating_sub(1), 3);
        let links = propose(&sites, &measured, &BTreeSet::new(), &NONE, &Proposing::default());
        let last = id(places.len() - 1);
        prop_assert!(links.keys().all(|of| measured.contains_key(of) && of.1 != last));
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        rng_seed: proptest::test_runner::RngSeed::Fixed(0x9a8),
        failure_persistence: None,
        cases: 24,
        ..ProptestConfig::default()
    })]

    #[test]
    fn ways_are_nearly_as_short_as_any_links_could_make_them(places in places(6)) {
        let measured = exactly(&places);
        let sites = sites(places.len(), 3);
        let links = propose(&sites, &measured, &BTreeSet::new(), &NONE, &Proposing::default());
        let links: Vec<Pair> = links.into_keys().collect();
        let (ours, least) = (total(&sites, &links, &measured), least_total(&sites, &measured));
        let (ours, least) = (ours.unwrap() as f64, least.unwrap() as f64);
        println!("{} {:.3}", places.len(), ours / least.max(1.0));
        prop_assert!(ours <= least * 1.25, "{} instead of {}", ours, least);
    }
}

#[test]
fn two_regions_are_joined_within_first_and_twice_with_each_other() {
    // Three relays a millisecond apart here, three there, and 40 ms between.
    let region = |at: usize| at / 3;
    let mut measured = BTreeMap::new();
    for from in 0..6 {
        for to in from + 1..6 {
            let delay = if region(from) == region(to) { 1_000 } else { 40_000 };
            measured.insert((id(from), id(to)), delay + (from * 7 + to) as u32);
        }
    }
    let sites = sites(6, 3);
    let links = propose(&sites, &measured, &BTreeSet::new(), &NONE, &Proposing::default());
    let across = |of: &&Pair| region(usize::from(of.0.0) - 1) != region(usize::from(of.1.0) - 1);
    let (far, near) = (links.keys().filter(across).count(), links.len());
    assert_eq!(far, 2, "{links:?}");
    assert!(near - far >= 4, "{links:?}");
}

/// Four relays have links with each other, and so as many as they may have; a fifth hangs on the first alone.
#[test]
fn whoever_hangs_on_a_relay_that_leaves_is_joined_with_others_beyond_their_most() {
    let measured: BTreeMap<Pair, u32> =
        (0..5).flat_map(|a| (a + 1..5).map(move |b| (pair(id(a), id(b)), 1_000))).collect();
    let given: BTreeSet<Pair> =
        measured.keys().copied().filter(|of| of.1 != id(4) || of.0 == id(0)).collect();
    let proposed =
        |sites: &[Site]| propose(sites, &measured, &given, &BTreeMap::new(), &Proposing::default());
    let mut sites = sites(5, 3);
    assert_eq!(proposed(&sites), BTreeMap::new());
    sites[0].leaves = true;
    assert_eq!(proposed(&sites), BTreeMap::from([(pair(id(1), id(4)), Origin::Joins)]));
}
