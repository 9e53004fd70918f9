//! Whatever was admitted can be carried: on small links that are as full as the controller lets them be, everybody
//! sends all that its limits let through, and nothing is dropped (Forest §3.4.2).

use canopy_plan::{Limits, Network, Rate};
use canopy_sim::{Load, Receivers, TopologyConfig, TopologyReport, TopologySabotage, run_topology};
use std::fmt::Write;
use std::time::Duration;

/// By node but the first: the one that it hangs on.
const LINE: &[usize] = &[0, 1];
const TREE: &[usize] = &[0, 0, 1, 1, 2];

/// Limits of bits bind with updates of any length.
const BASE: Load = Load {
    link: Rate { bits: 1e6, packets: 4e3 },
    share: 0.9,
    member: Limits {
        send: Rate { bits: 100e3, packets: 250.0 },
        receive: Rate { bits: 2e6, packets: 6e3 },
    },
    payload: 100,
    every: Duration::from_millis(1),
    meets: true,
    to: Receivers::Groups,
};

fn network(above: &[usize]) -> Network {
    let mut text = "graph [\n".to_owned();
    for id in 0..=above.len() {
        let _ = writeln!(text, "node [ id {id} label \"n{id}\" Latitude 40 Longitude {id} ]");
    }
    for (id, above) in (1..).zip(above) {
        let _ = writeln!(text, "edge [ source {id} target {above} ]");
    }
    text.push_str("]\n");
    Network::from_gml(&text).unwrap()
}

fn run(above: &[usize], load: Load, sabotage: Option<TopologySabotage>) -> TopologyReport {
    let mut config = TopologyConfig::new("generated.gml", 1);
    (config.participants, config.seconds) = (Some(40), 13);
    (config.load, config.sabotage) = (Some(load), sabotage);
    run_topology(&network(above), &config).unwrap()
}

/// Everybody sends to the farthest one to whom three send at most: what is received is limited, too.
fn to_the_farthest(load: Load) -> Load {
    let receive = Rate { bits: 400e3, packets: 1e3 };
    let member = Limits { receive, ..load.member };
    Load { member, to: Receivers::Farthest(3), ..load }
}

/// `cargo test -p canopy-sim --test load -- --ignored --nocapture` prints what docs/controller.md says of bursts.
#[test]
#[ignore = "it tells what is carried"]
fn what_is_carried() {
    let of = |payload, every| Load { payload, every: Duration::from_millis(every), ..BASE };
    let large = Load { meets: false, ..of(1000, 1) };
    let mut loads = vec![large, Load { share: 0.8, ..large }];
    for payload in [16, 100, 1000] {
        for load in [5, 50, 100, 250, 1000].map(|every| of(payload, every)) {
            let one = Load { to: Receivers::OneGroup, ..load };
            loads.extend([load, one, to_the_farthest(load)]);
        }
    }
    for load in loads {
        let report = run(LINE, load, None);
        let Load { share, payload, every, to, .. } = load;
        println!(
            "{payload} B, every {every:?}, {to:?}, share {share}: fullest {:.3}, dropped {}, missing {} of {}",
            report.fullest_link,
            report.dropped_within_limits,
            report.missing,
            report.deliveries_expected
        );
    }
}

/// As fast as limits let updates through: to all, each with headers of its own on every link; to one group; or to one
/// endpoint that is far away.
#[test]
fn whatever_is_let_in_is_carried() {
    let small = Load { payload: 64, meets: false, ..BASE };
    let middling = Load { payload: 400, to: Receivers::OneGroup, ..BASE };
    let far = to_the_farthest(BASE);
    for (above, load) in [(LINE, small), (LINE, middling), (LINE, far), (TREE, BASE)] {
        let report = run(above, load, None);
        assert_eq!(report.verdict(), Ok(()), "{report:?}");
        // It is no traffic that would fit anyway.
        assert!(report.fullest_link > 0.85, "{report:?}");
        assert!(report.refused > 10 && report.deliveries_expected > 1_000, "{report:?}");
    }
}

/// Where datagrams are long and links slow, so that one takes 8 ms of a link, a branch is limited for moments, and one
/// update in some hundred gives place to a newer one.
#[test]
fn long_updates_are_carried_but_for_one_in_some_hundred() {
    let report = run(LINE, Load { payload: 1000, meets: false, ..BASE }, None);
    assert!(report.fullest_link > 0.85, "{report:?}");
    assert!(report.missing * 250 <= report.deliveries_expected, "{report:?}");
    assert!(report.dropped_within_limits * 250 <= report.updates_published, "{report:?}");
}

/// What is for one endpoint's eyes arrives, too, if everybody sends at once all that it may send in a quarter of a second.
#[test]
fn bursts_of_unicast_that_meet_are_carried() {
    for payload in [16, 1000] {
        let every = Duration::from_millis(250);
        let report = run(LINE, to_the_farthest(Load { payload, every, ..BASE }), None);
        assert_eq!(report.verdict(), Ok(()), "{report:?}");
    }
}

#[test]
fn links_that_are_sent_more_than_they_bear_are_seen() {
    let told = run(LINE, BASE, Some(TopologySabotage::SendTwice)).verdict().unwrap_err();
    assert!(told.contains("bytes in a second"), "{told}");
}

#[test]
fn reservations_of_less_than_what_is_sent_are_seen() {
    let report = run(LINE, BASE, Some(TopologySabotage::ReserveLess));
    assert!(report.dropped_within_limits > 100 && report.missing > 100, "{report:?}");
    assert!(report.verdict().is_err());
}

/// A tree of eight, and two beside it, which have a world of their own.
fn two_parts() -> Network {
    let mut text = "graph [\n".to_owned();
    for id in 0..10 {
        let (latitude, longitude) = (40 + id % 3, 2 * id);
        let place = format!("Latitude {latitude} Longitude {longitude}");
        let _ = writeln!(text, "node [ id {id} label \"n{id}\" {place} ]");
    }
    let edges = [(0, 1), (1, 2), (2, 3), (3, 0), (1, 4), (4, 5), (2, 6), (6, 7), (8, 9)];
    for (source, target) in edges {
        let _ = writeln!(text, "edge [ source {source} target {target} ]");
    }
    text.push_str("]\n");
    Network::from_gml(&text).unwrap()
}

fn drawn(seed: u64, change: impl FnOnce(&mut TopologyConfig)) -> Result<TopologyReport, String> {
    let mut config = TopologyConfig::new("generated.gml", seed).with_load();
    change(&mut config);
    run_topology(&two_parts(), &config)
}

/// As `canopy sim --topology FILE --load true` draws it: links get full, and what is let in is carried within what is
/// reserved.
#[test]
fn loads_that_are_drawn_fill_links_and_are_carried() {
    for seed in DRAWN {
        let report = drawn(seed, |_| ()).unwrap();
        assert_eq!(report.verdict(), Ok(()), "{report:?}");
        assert!(report.worlds == 2 && report.replay.ends_with(" --load true"), "{report:?}");
        assert!(report.refused_for_room > 5 && report.links_full > 0, "{report:?}");
        assert!(report.deliveries_expected > 500, "{report:?}");
    }
}

/// The first two are to the farthest, the last one is to groups.
const DRAWN: [u64; 3] = [1, 2, 6];

#[test]
fn drawn_loads_show_what_is_reserved_too_little_and_sent_too_much() {
    let of = |sabotage| drawn(DRAWN[1], |config| config.sabotage = Some(sabotage)).unwrap();
    let less = of(TopologySabotage::ReserveLess);
    assert!(less.verdict().is_err() && less.dropped_within_limits > 0, "{less:?}");
    let told = of(TopologySabotage::SendTwice).verdict().unwrap_err();
    assert!(told.contains(" bits in a second from relay "), "{told}");
}

#[test]
fn loads_that_can_fill_no_link_are_refused() {
    let why = |change: fn(&mut TopologyConfig)| drawn(1, change).unwrap_err();
    assert!(why(|config| config.participants = Some(23)).contains("24 participants or more"));
    assert!(why(|config| config.seconds = 11).contains("12 seconds or more"));
    assert!(why(|config| config.degree = 3).contains("links that are given"));
    assert!(why(|config| config.operator = Some(true)).contains("trees that stay"));
    let single = Network::from_gml("graph [ node [ id 0 label \"a\" ] ]").unwrap();
    let config = TopologyConfig::new("one.gml", 1).with_load();
    assert!(run_topology(&single, &config).unwrap_err().contains("a load needs a link"));
}
