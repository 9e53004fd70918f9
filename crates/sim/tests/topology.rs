//! Graphs on which a real controller and its relays must do right, and faults that must be seen: a
//! model that cannot fail proves nothing.

use canopy_control::Core;
use canopy_plan::Network;
use canopy_sim::{TopologyConfig, TopologyReport, TopologySabotage, run_topology};
use std::fmt::Write;
use std::path::{Path, PathBuf};

/// A ring with a chord, whose links are there twice now and then, without a place for every third
/// node; two nodes beside it that have a link with each other; and one that has none.
fn gml(nodes: usize) -> String {
    let mut text = "graph [\n".to_owned();
    for id in 0..nodes + 3 {
        let _ = write!(text, "node [ id {id} label \"n{id}\" ");
        if id % 3 != 2 || id >= nodes {
            let _ = write!(text, "Latitude {} Longitude {} ", 40 + id % 7, 2 * id);
        }
        text.push_str("]\n");
    }
    let mut edge = |source: usize, target: usize| {
        let _ = writeln!(text, "edge [ source {source} target {target} ]");
    };
    for id in 0..nodes {
        edge(id, (id + 1) % nodes);
        if id % 4 == 0 {
            edge((id + 1) % nodes, id);
            edge(id, (id + nodes / 2) % nodes);
        }
    }
    edge(nodes, nodes + 1);
    text.push_str("]\n");
    text
}

fn run(nodes: usize, seed: u64, change: impl FnOnce(&mut TopologyConfig)) -> TopologyReport {
    let network = Network::from_gml(&gml(nodes)).unwrap();
    let mut config = TopologyConfig::new("generated.gml", seed);
    config.participants = Some(18);
    change(&mut config);
    run_topology(&network, &config).unwrap()
}

#[test]
fn generated_graphs_pass() {
    for (nodes, seed) in [(5, 1), (8, 2), (12, 3)] {
        let report = run(nodes, seed, |_| {});
        assert_eq!(report.verdict(), Ok(()), "{report:?}");
        assert!(report.deliveries_expected > 300, "{report:?}");
        assert!(report.components == 3 && report.worlds == 3 && report.admitted > 6, "{report:?}");
    }
}

#[test]
fn a_seed_on_a_graph_repeats_to_the_bit_and_seeds_differ() {
    let short = |seed| run(5, seed, |config| config.seconds = 20);
    let (one, again, other) = (short(4), short(4), short(5));
    assert_eq!(one.trace_hash, again.trace_hash);
    assert_ne!(one.trace_hash, other.trace_hash);
}

#[test]
fn a_single_node_is_a_network() {
    let network = Network::from_gml("graph [ node [ id 0 label \"a\" ] ]").unwrap();
    let report = run_topology(&network, &TopologyConfig::new("one.gml", 1)).unwrap();
    assert_eq!(report.verdict(), Ok(()), "{report:?}");
    assert!(report.deliveries_expected > 0);
}

/// The model says so if somebody comes back under another address.
#[test]
fn who_loses_its_relay_comes_back_under_its_address_at_another() {
    // Seeds that kill relays which have participants.
    let reports = [24, 28, 31, 52].map(|seed| run(8, seed, |_| {}));
    let moved: u32 = reports
        .iter()
        .inspect(|report| assert_eq!(report.verdict(), Ok(()), "{report:?}"))
        .map(|report| report.moved)
        .sum();
    assert!(moved >= 8, "{moved}");
}

/// Networks of some hundred sites have ways of so many relays, and the hop limit is for circles.
#[test]
fn updates_pass_along_a_line_of_more_than_forty_relays() {
    let mut text = "graph [\n".to_owned();
    for id in 0..44 {
        let _ = writeln!(text, "node [ id {id} label \"n{id}\" Latitude 40 Longitude {id} ]");
    }
    (1..44).for_each(|id| _ = writeln!(text, "edge [ source {} target {id} ]", id - 1));
    text.push_str("]\n");
    let network = Network::from_gml(&text).unwrap();
    let mut config = TopologyConfig::new("line.gml", 1);
    (config.participants, config.seconds) = (Some(18), 20);
    let report = run_topology(&network, &config).unwrap();
    assert_eq!(report.verdict(), Ok(()), "{report:?}");
    assert!(report.deliveries_expected > 100, "{report:?}");
}

/// A hub with five relays around it, which have links with each other, and three leaves that have none but the hub's.
fn wheel() -> Network {
    let mut text = "graph [\nnode [ id 0 label \"hub\" Latitude 45 Longitude 0 ]\n".to_owned();
    let around = [(46, 0), (45, 2), (44, 1), (44, -1), (45, -2), (47, 1), (43, 0), (46, -2)];
    for (id, (latitude, longitude)) in (1..).zip(around) {
        let place = format!("Latitude {latitude} Longitude {longitude}");
        let _ = writeln!(text, "node [ id {id} label \"n{id}\" {place} ]");
        let _ = writeln!(text, "edge [ source 0 target {id} ]");
    }
    (1..=5).for_each(|id| {
        _ = writeln!(text, "edge [ source {id} target {} ]", id % 5 + 1);
    });
    text.push_str("]\n");
    Network::from_gml(&text).unwrap()
}

/// Only those whom nothing joins are excused.
#[test]
fn whoever_can_be_joined_is_while_others_are_cut_off() {
    let mut broken = 0;
    for seed in 1..=WHEELS {
        let mut config = TopologyConfig::new("wheel.gml", seed);
        config.participants = Some(18);
        let report = run_topology(&wheel(), &config).unwrap();
        assert_eq!(report.verdict(), Ok(()), "{report:?}");
        broken += report.broken;
    }
    assert!(broken > WHEELS as u32 / 2, "{broken}");
}

/// How many seeds of that.
const WHEELS: u64 = 12;

/// Five relays that all have links with each other, and five around them that have links with two of those.
fn meshed() -> Network {
    let mut text = "graph [\n".to_owned();
    for id in 0..10 {
        let _ = writeln!(
            text,
            "node [ id {id} label \"n{id}\" Latitude {} Longitude {id} ]",
            40 + id % 5
        );
    }
    let mut edge = |one: usize, other: usize| {
        let _ = writeln!(text, "edge [ source {one} target {other} ]");
    };
    for one in 0..5 {
        (one + 1..5).for_each(|other| edge(one, other));
        edge(5 + one, one);
        edge(5 + one, (one + 1) % 5);
    }
    text.push_str("]\n");
    Network::from_gml(&text).unwrap()
}

/// What a core is changes as links and relays fail, and nothing that is not excused is lost by it.
#[test]
fn worlds_with_meshed_cores_pass() {
    let (mut largest, mut expected, mut moves) = (0, 0, 0);
    for seed in 1..=10 {
        let mut config = TopologyConfig::new("meshed.gml", seed);
        (config.participants, config.core) = (Some(18), Core::Mesh);
        let report = run_topology(&meshed(), &config).unwrap();
        assert_eq!(report.verdict(), Ok(()), "{report:?}");
        assert!(report.meshed > 0 && report.replay.contains(" --core mesh"), "{report:?}");
        largest = largest.max(report.meshed);
        expected += report.deliveries_expected;
        moves += report.worlds_moved + report.drained;
    }
    assert!(largest >= 6, "four relays in a core: {largest}");
    assert!(expected > 5_000 && moves > 5, "{expected} expected, {moves} moves and drains");
}

/// Graphs of the Internet Topology Zoo, where they are there; and seeds. Interoute has 110 nodes, Ntt is in 16 parts.
const ZOO: [(&str, u64); 5] =
    [("Abilene", 1), ("BtEurope", 2), ("AttMpls", 2011), ("Interoute", 1), ("Ntt", 1)];
/// And with meshed cores: in the first a parent comes back after a detour, in the second relays and all their neighbours do not
/// hear from the controller for a while, in the third a relay comes back that had cut off what only it joined, in the
/// fourth one that has almost left its core is in it again, in the fifth a core is about to become another one at the end, in the
/// sixth relays come that could be a larger core, and in the last what a next peer sent arrives when it is none any more.
const ZOO_MESHED: [(&str, u64); 7] = [
    ("Geant2012", 5007),
    ("Esnet", 5003),
    ("Chinanet", 5174),
    ("Chinanet", 5001),
    ("AttMpls", 7001),
    ("Internode", 8015),
    ("Internode", 8018),
];
/// Links are proposed on graphs of this many nodes at most: others take too long.
const PROPOSED_UP_TO: usize = 25;

/// The folder of the networks: `CANOPY_TOPOLOGIES`, or the one beside the checkout. Says so if there is none.
#[allow(clippy::disallowed_methods, reason = "a test finds the networks that it is about")]
fn zoo() -> Option<PathBuf> {
    let beside = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data/topologies");
    let given = std::env::var_os("CANOPY_TOPOLOGIES");
    if given.is_none() && !beside.is_dir() {
        println!("skipped: no networks; say where they are with CANOPY_TOPOLOGIES=FOLDER");
        return None;
    }
    Some(given.map_or(beside, PathBuf::from))
}

/// One of them, and a run on it.
#[allow(clippy::disallowed_methods, reason = "a test reads the networks that it is about")]
fn of_zoo(folder: &Path, name: &str, seed: u64) -> (Network, TopologyConfig) {
    let file = folder.join(format!("{name}.gml"));
    let network = Network::from_file(&file, &std::fs::read(&file).unwrap()).unwrap();
    (network, TopologyConfig::new(&file.display().to_string(), seed))
}

#[test]
fn graphs_of_the_topology_zoo_with_meshed_cores_pass() {
    let Some(folder) = zoo() else { return };
    let mut largest = 0;
    for (name, seed) in ZOO_MESHED {
        let (network, mut config) = of_zoo(&folder, name, seed);
        config.core = Core::Mesh;
        let report = run_topology(&network, &config).unwrap();
        assert_eq!(report.verdict(), Ok(()), "{report:?}");
        assert!(report.meshed > 0 && report.deliveries_expected > 1_000, "{report:?}");
        largest = largest.max(report.meshed);
    }
    assert!(largest > 2, "three relays in a core: {largest}");
}

#[test]
fn graphs_of_the_topology_zoo_pass() {
    let Some(folder) = zoo() else { return };
    let (mut parts, mut expected) = (0, 0);
    for (name, seed) in ZOO {
        let (network, mut config) = of_zoo(&folder, name, seed);
        let report = run_topology(&network, &config).unwrap();
        assert_eq!(report.verdict(), Ok(()), "{report:?}");
        parts = parts.max(report.components);
        expected += report.deliveries_expected;
        if network.nodes().len() > PROPOSED_UP_TO {
            continue;
        }
        propose(&mut config);
        let report = run_topology(&network, &config).unwrap();
        assert_eq!(report.verdict(), Ok(()), "{report:?}");
        assert!(report.links_removed > 10, "{report:?}");
    }
    assert!(parts == 16 && expected > 5_000, "{parts} parts, {expected} expected");
}

/// The controller is given no links, and proposes them.
fn propose(config: &mut TopologyConfig) {
    (config.degree, config.seconds) = (3, 70);
}

/// Links are made before anything is measured, and exchanged for better ones once it is. Nothing is lost by that, and what
/// fails is repaired as where links are given.
#[test]
fn proposed_links_are_exchanged_under_load_and_faults() {
    let mut removed = 0;
    for (nodes, seed) in [(5, 1), (8, 7), (8, 19), (12, 4), (12, 8), (14, 25), (16, 5)] {
        let report = run(nodes, seed, |config| {
            propose(config);
            (config.improve, config.operator) = (Some(false), Some(false));
            // With ticks more is excused after each fault.
            config.periodic = Some(false);
        });
        assert_eq!(report.verdict(), Ok(()), "{report:?}");
        assert!(report.deliveries_expected > 1_000 && report.faults > 4, "{report:?}");
        removed += report.links_removed;
    }
    assert!(removed > 40, "{removed}");
}

#[test]
fn a_hasty_exchange_of_links_is_seen() {
    let with = |seed, sabotage| {
        run(12, seed, |config| {
            propose(config);
            config.sabotage = sabotage;
        })
    };
    let reports = (1..8).map(|seed| with(seed, Some(TopologySabotage::HastyExchange)));
    let report = reports.into_iter().find(|report| report.missing > 0).expect("a fault is found");
    let told = report.verdict().unwrap_err();
    assert!(told.contains(" --participants 18 --degree 3 --seconds 70"), "{told}");
    assert_eq!(with(report.seed, None).verdict(), Ok(()));
}

/// Better trees, worlds that move, links that are removed and relays that drain lose nothing, in either mode.
#[test]
fn planned_changes_go_on_under_load_and_faults() {
    let mut counts = [0; 5];
    for (nodes, seed, operator) in PLANNED {
        let report = run(nodes, seed, |config| {
            (config.improve, config.operator) = (Some(true), Some(operator));
        });
        assert_eq!(report.verdict(), Ok(()), "{report:?}");
        let ticks = report.ticks_ms.iter().filter(|tick| **tick > 0).count() as u32;
        let TopologyReport { improved, worlds_moved, links_leaving, drained, .. } = report;
        let of = [improved, worlds_moved, links_leaving, drained, ticks];
        counts.iter_mut().zip(of).for_each(|(sum, of)| *sum += of);
    }
    assert!(counts.iter().all(|count| *count > 0), "{counts:?}");
}

/// Nodes, seeds, and whether there is an operator. The last three find a better tree.
const PLANNED: [(usize, u64, bool); 7] = [
    (8, 1, true),
    (10, 3, true),
    (10, 4, true),
    (12, 5, true),
    (8, 38, false),
    (8, 37, false),
    (10, 41, false),
];

#[test]
fn links_that_are_removed_at_once_are_seen() {
    let with = |seed, sabotage| {
        run(12, seed, |config| (config.operator, config.sabotage) = (Some(true), sabotage))
    };
    let reports = (1..12).map(|seed| with(seed, Some(TopologySabotage::HastyRemoval)));
    let report = reports.into_iter().find(|of| of.missing + of.out_of_order > 0);
    let report = report.expect("a fault is found");
    let told = report.verdict().unwrap_err();
    assert!(told.contains(" --operator true"), "{told}");
    assert_eq!(with(report.seed, None).verdict(), Ok(()));
}

/// The problems of the first of some seeds that has any.
fn found(sabotage: TopologySabotage) -> TopologyReport {
    let with = |seed| run(8, seed, |config| config.sabotage = Some(sabotage));
    (1..8).map(with).find(|report| report.verdict().is_err()).expect("a fault is found")
}

#[test]
fn a_dropped_branch_is_seen() {
    let report = found(TopologySabotage::DropBranch);
    assert!(report.missing > 0, "{report:?}");
    let told = report.verdict().unwrap_err();
    assert!(told.contains("replay: canopy sim --topology generated.gml --seed "), "{told}");
}

#[test]
fn a_doubled_update_is_seen() {
    let report = found(TopologySabotage::DoubleUpdate(50));
    assert!(report.duplicates > 0 && report.missing == 0, "{report:?}");
}

/// What runs in a circle dies of its hop limit, and no fault excuses that.
#[test]
fn updates_that_go_in_circles_are_seen() {
    let with = |seed, sabotage| {
        run(5, seed, |config| {
            (config.improve, config.operator) = (Some(false), Some(false));
            (config.participants, config.seconds) = (Some(6), 30);
            (config.core, config.sabotage) = (Core::All, sabotage);
        })
    };
    let goes_round = |report: &TopologyReport| {
        report.problems.iter().any(|problem| problem.contains("that went in circles"))
    };
    let mut reports = (270..300).map(|seed| with(seed, Some(TopologySabotage::KeepBranches)));
    let report = reports.find(goes_round).expect("a circle is found");
    assert!(report.duplicates > 100, "{report:?}");
    assert_eq!(with(report.seed, None).verdict(), Ok(()));
}

#[test]
fn a_leaked_reservation_is_seen() {
    let report = found(TopologySabotage::LeakReservation);
    let says = |what: &str| report.problems.iter().any(|problem| problem.contains(what));
    assert!(says("has a reservation and is nobody"), "{report:?}");
}

#[test]
fn relays_that_hold_more_than_there_is_are_seen() {
    let told = found(TopologySabotage::WantMore).verdict().unwrap_err();
    assert!(told.contains(" holds Held {"), "{told}");
}

#[test]
fn participants_who_stay_at_a_dead_relay_are_seen() {
    // A seed that kills a relay with participants.
    let of = |sabotage| run(8, 24, |config| config.sabotage = sabotage);
    let told = of(Some(TopologySabotage::StayLost)).verdict().unwrap_err();
    assert!(told.contains("of a dead relay is not in"), "{told}");
    assert_eq!(of(None).verdict(), Ok(()));
}

/// A run with such a sabotage that finds something, and the same without it. Nothing is planned meanwhile: relays do
/// not help themselves while a comtree moves.
fn mended_alone(sabotage: TopologySabotage) -> [TopologyReport; 2] {
    let with = |seed, sabotage| {
        run(8, seed, |config| {
            (config.improve, config.operator) = (Some(false), Some(false));
            (config.periodic, config.sabotage) = (Some(false), sabotage);
        })
    };
    // Few seeds cut a link of a tree while the controller is down.
    let ignoring = |seed| with(seed, Some(sabotage));
    let report = (42..80).map(ignoring).find(|report| report.verdict().is_err());
    let report = report.expect("a fault is found");
    assert!(report.missing > 0 && report.mended_alone > 0, "{report:?}");
    let mended = with(report.seed, None);
    assert_eq!(mended.verdict(), Ok(()));
    [report, mended]
}

#[test]
fn standby_parents_that_are_not_used_are_seen() {
    let [_, mended] = mended_alone(TopologySabotage::IgnoreStandbys);
    assert!(mended.detours > 0, "{mended:?}");
}

/// Whoever has no standby parent finds another way.
#[test]
fn searches_for_ways_that_nobody_passes_on_are_seen() {
    let [ignoring, mended] = mended_alone(TopologySabotage::IgnoreSearches);
    assert!(mended.detours > ignoring.detours, "{mended:?}");
}

#[test]
fn a_late_repair_is_seen() {
    // Some seeds show it only by what relays still have after all have left.
    let with = |seed| run(8, seed, |config| config.sabotage = Some(TopologySabotage::LateRepair));
    let report = (1..8).map(with).find(|report| report.missing > 0);
    assert!(report.is_some_and(|report| report.verdict().is_err()));
}

/// Worlds may move at any time where better trees are looked for; that is no excuse for a move that never ends.
#[test]
fn moves_that_never_end_are_found() {
    let stalled = |config: &mut TopologyConfig| {
        (config.improve, config.operator) = (Some(true), Some(true));
        config.sabotage = Some(TopologySabotage::StallMoves);
    };
    let is_found = |seed| {
        let problem = run(5, seed, stalled).verdict().err();
        problem.is_some_and(|problem| problem.contains("has been on its way for"))
    };
    assert!((2..8).any(is_found));
}

/// The controller may be cut off from all relays but one, and gives up none to which links lead from that.
#[test]
fn relays_that_say_nothing_of_their_links_are_given_up_and_that_is_seen() {
    let with = |seed, sabotage| run(12, seed, |config| config.sabotage = sabotage);
    let is_seen = |seed: &u64| {
        let problem = with(*seed, Some(TopologySabotage::KeepStatesBack)).verdict().err();
        problem.is_some_and(|problem| problem.contains("is given up, and links lead there"))
    };
    let seed = (1..40).find(is_seen).expect("a fault is found");
    assert_eq!(with(seed, None).verdict(), Ok(()));
}
