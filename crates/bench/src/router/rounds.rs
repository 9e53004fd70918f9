//! Alternated rounds: the router and the two reflectors, each a process of its own, under the same
//! load.

use super::arrivals::Measured;
use super::cases::Case;
use super::load::{Load, Side};
use super::report::Row;
use super::server::{Part, Server, Standing};
use crate::noise::{Steal, median};
use crate::relay::Hosts;
use anyhow::{Context, bail};
use std::net::SocketAddr;
use std::time::Duration;

/// How each case is measured.
pub(super) struct Plan {
    pub(super) rounds: u32,
    pub(super) measured: Duration,
    pub(super) routes: u32,
    /// Datagrams a second that come singly.
    pub(super) rate: u32,
    /// The processor of what is measured.
    pub(super) serve_on: usize,
    pub(super) hosts: Hosts,
}

/// A process and its load.
struct Contender {
    server: Server,
    load: Load,
}

impl Contender {
    fn start(side: Side, case: &Case, plan: &Plan) -> anyhow::Result<Contender> {
        let hosts = &plan.hosts;
        let numbers = (plan.routes as usize, plan.rate);
        let mut load = Load::open(side, case, hosts.load_ip, numbers)?;
        let part = match side {
            // Twice as many as are used: that the table is full is another case.
            Side::Router => {
                Part::Router { neighbours: load.neighbours(), max_routes: 2 * plan.routes }
            }
            Side::Bare => Part::Reflector { to: load.receivers(), seals: false },
            Side::Sealing => Part::Reflector { to: load.receivers(), seals: true },
        };
        let at = (SocketAddr::new(hosts.server_ip, 0), plan.serve_on);
        let mut server = Server::start(&part, at, |command| hosts.host_server(command))?;
        load.join(&mut server, plan.routes.into())
            .context("the load does not get ready; try again on a quieter machine")?;
        Ok(Contender { server, load })
    }
}

/// What was measured in one round: of the router, the bare reflector and the sealing one.
type Round = [Measured; 3];

/// Measures one case.
pub(super) fn measure(case: &Case, plan: &Plan) -> anyhow::Result<Row> {
    let mut others = Vec::new();
    for side in [Side::Bare, Side::Sealing] {
        others.push(Contender::start(side, case, plan)?);
    }
    // The last: its links are not to be left alone.
    let Contender { mut server, load: mut ours } = Contender::start(Side::Router, case, plan)?;
    let mut rounds: Vec<Round> = Vec::new();
    let mut discarded = 0;
    let Standing { mut routes, mut links_lost, .. } = server.standing()?;
    // A noisy machine may cost rounds, but not without end.
    while rounds.len() < plan.rounds as usize && discarded < 2 * plan.rounds as usize {
        let steal = Steal::read();
        let mut round = [ours.run(server.process(), plan.measured, &mut || Ok(()))?; 3];
        for (measured, other) in round[1..].iter_mut().zip(&mut others) {
            let process = other.server.process();
            *measured = other.load.run(process, plan.measured, &mut || ours.keep_alive())?;
        }
        let now = server.standing()?;
        // A load that had no time to keep its links alive has not measured what a relay costs.
        let is_cut = now.links_lost > links_lost;
        links_lost = now.links_lost;
        if steal.disturbed() || is_cut {
            discarded += 1;
        } else {
            routes = routes.min(now.routes);
            rounds.push(round);
        }
    }
    if rounds.is_empty() {
        bail!(
            "all {discarded} rounds had more than 5 % steal, or the load had no time to keep its links \
             alive; try again on a quieter machine"
        );
    }
    summarise(case, plan, &rounds, (server, routes, discarded))
}

fn summarise(
    case: &Case,
    plan: &Plan,
    rounds: &[Round],
    (server, routes, rounds_discarded): (Server, u64, usize),
) -> anyhow::Result<Row> {
    let of = |value: fn(&Round) -> f64| median(&rounds.iter().map(value).collect::<Vec<_>>());
    let sum = |value: fn(&Round) -> u64| rounds.iter().map(value).sum::<u64>();
    let ratios: Vec<f64> =
        rounds.iter().map(|[ours, bare, _]| bare.ns_per_copy() / ours.ns_per_copy()).collect();
    let engine = server.engine.clone();
    let standing = server.stop()?;
    Ok(Row {
        case: *case,
        keys: "link",
        place: if plan.hosts.is_netns() { "netns" } else { "loopback" },
        engine,
        routes,
        ns_per_copy: of(|round| round[0].ns_per_copy()),
        copies_per_s: of(|round| round[0].copies_per_s()),
        bare_ns_per_copy: of(|round| round[1].ns_per_copy()),
        sealing_ns_per_copy: of(|round| round[2].ns_per_copy()),
        ratio: median(&ratios),
        ratio_min: ratios.iter().copied().fold(f64::INFINITY, f64::min),
        ratio_max: ratios.iter().copied().fold(0.0, f64::max),
        ratio_sealed: of(|round| round[2].ns_per_copy() / round[0].ns_per_copy()),
        copies_per_datagram: of(|round| round[0].copies_per_datagram()),
        copies: sum(|round| round[0].expected),
        lost: sum(|round| round[0].lost),
        doubled: sum(|round| round[0].doubled),
        bare_lost: sum(|round| round[1].lost),
        sealing_lost: sum(|round| round[2].lost),
        links_lost: standing.links_lost,
        rounds: rounds.len(),
        rounds_discarded,
        drops: standing.drops,
    })
}
