//! Alternated rounds: the relay and the reflector, each a process of its own, under the same load.

use super::cases::Case;
use super::load::{Load, Measured, Side};
use super::plan::{Keys, Plan};
use super::report::{Ages, Row};
use crate::flag_value;
use crate::noise::{Steal, median};
use anyhow::{Context, bail};
use canopy_net::{ask_to_end, end_with_parent};
use hdrhistogram::Histogram;
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read};
use std::net::{Ipv4Addr, SocketAddr};
use std::process::{Child, ChildStdout, Command, Stdio};

/// Which process to start.
#[derive(Clone, Copy)]
pub(super) enum ServerSide {
    Reflector,
    Relay(Keys),
}

/// A relay and its load.
struct Ours {
    keys: Keys,
    server: Server,
    load: Load,
    /// What was measured of it and, in the same round, of the reflector.
    pairs: Vec<(Measured, Measured)>,
}

/// One member of a bench may bring a relay all that it can take, all members may be of one ip, and nobody is
/// sent less because of what is found of its path.
pub(crate) const UNLIMITED: [&str; 14] = [
    "--member-up-packets",
    "0",
    "--member-up-bits",
    "0",
    "--subscription-changes",
    "0",
    "--handshakes-per-ip",
    "0",
    "--handshakes-per-prefix",
    "0",
    "--sessions-per-ip",
    "0",
    "--path-budgets",
    "off",
];
/// In the end nobody waits for members that are not served any more.
const NO_DRAIN: [&str; 2] = ["--drain-ms", "0"];

/// A relay or reflector process, ended when dropped.
pub(crate) struct Server {
    child: Child,
    pub(crate) address: SocketAddr,
    /// The send engine that it uses.
    engine: String,
    stdout: BufReader<ChildStdout>,
}

impl Server {
    /// Starts one side for a case, on its processor.
    pub(super) fn start(side: ServerSide, case: &Case, plan: &Plan) -> anyhow::Result<Server> {
        let mut command = server_command()?;
        match side {
            ServerSide::Reflector => {
                let listen = format!("{}:0", plan.hosts.server_ip);
                command.args(["bench", "reflector", "--listen", &listen, "--pin", &plan.pins(1)]);
            }
            ServerSide::Relay(keys) => {
                let (mode, tick) = (flag_value(case.mode), case.tick_ms.max(1).to_string());
                let engine = plan.engine.to_string();
                command.args(["relay", "--json"]).args(plan.hosts.relay_flags());
                let (threads, pins) = (plan.threads.to_string(), plan.pins(plan.threads));
                command.args(["--threads", &threads, "--pin", &pins, "--engine", &engine]);
                command.args(["--mode", &mode, "--tick-ms", &tick]);
                command.args(["--downlink", &flag_value(keys)]).args(UNLIMITED).args(NO_DRAIN);
            }
        }
        Server::spawn(plan.hosts.host_server(&mut command))
    }

    /// Starts a relay with these flags, on a free port.
    pub(crate) fn start_relay(flags: &[&str]) -> anyhow::Result<Server> {
        Server::start_relay_at(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)), flags)
    }

    /// Starts a relay with these flags at an address.
    pub(crate) fn start_relay_at(at: SocketAddr, flags: &[&str]) -> anyhow::Result<Server> {
        let mut command = server_command()?;
        let at = at.to_string();
        command.args(["relay", "--listen", &at, "--json"]).args(NO_DRAIN).args(flags);
        Server::spawn(&mut command)
    }

    fn spawn(command: &mut Command) -> anyhow::Result<Server> {
        let mut child =
            end_with_parent(command).spawn().context("cannot start the server process")?;
        let stdout = child.stdout.take().context("the server has no output")?;
        let mut stdout = BufReader::new(stdout);
        let mut line = String::new();
        stdout.read_line(&mut line)?;
        let line: serde_json::Value = serde_json::from_str(&line).unwrap_or_default();
        let Some(address) = line["relay"].as_str().and_then(|address| address.parse().ok()) else {
            let _ = child.kill();
            let _ = child.wait();
            bail!("the server did not say where it listens");
        };
        let engine = line["engines"][0]["engine"].as_str().unwrap_or_default().to_owned();
        Ok(Server { child, address, engine, stdout })
    }

    /// Ends a relay in order, and returns what it counted as dropped, by reason.
    pub(crate) fn stop(mut self) -> anyhow::Result<BTreeMap<String, u64>> {
        ask_to_end(&self.child)?;
        let mut said = String::new();
        self.stdout.read_to_string(&mut said)?;
        let last = said.lines().last().context("the relay says nothing of what it did")?;
        let mut last: serde_json::Value = serde_json::from_str(last)?;
        Ok(serde_json::from_value(last["totals"]["drops"].take())?)
    }

    pub(crate) fn process(&self) -> u32 {
        self.child.id()
    }
}

/// This binary, to be started as a server, which is told nothing of the caller's settings and tells
/// its caller where it listens.
pub(crate) fn server_command() -> anyhow::Result<Command> {
    let mut command = Command::new(std::env::current_exe()?);
    // Nothing of the caller's settings changes what is measured.
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("CANOPY_")) {
        command.env_remove(name);
    }
    command.env("CANOPY_LOG", "error").stdin(Stdio::null()).stdout(Stdio::piped());
    Ok(command)
}

impl Drop for Server {
    fn drop(&mut self) {
        // Ours, by its handle; it may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Measures one case, with each choice of keys in turn.
pub(super) fn measure(case: &Case, plan: &Plan) -> anyhow::Result<Vec<Row>> {
    let join =
        |side, server: &Server| Load::join(side, case, plan.hosts.load_ip, &[server.address]);
    let start = |keys: &Keys| {
        let server = Server::start(ServerSide::Relay(*keys), case, plan)?;
        let load = join(Side::Relay, &server)?;
        anyhow::Ok(Ours { keys: *keys, server, load, pairs: Vec::new() })
    };
    let mut all = plan.keys.iter().map(start).collect::<anyhow::Result<Vec<_>>>()?;
    let reflector = Server::start(ServerSide::Reflector, case, plan)?;
    let mut reflector_load = join(Side::Reflector, &reflector)?;
    let (mut rounds, mut discarded) = (0, 0);
    // A noisy machine may cost rounds, but not without end.
    while rounds < plan.rounds && discarded < 2 * plan.rounds {
        let before = Steal::read();
        // The idle sides stay alive: their participants answer between the rounds.
        let naive = reflector_load.run(&[reflector.process()], plan.measured)?;
        let mut measured = Vec::new();
        for number in 0..all.len() {
            all.iter_mut().try_for_each(|ours| ours.load.keep_alive())?;
            let Ours { server, load, .. } = &mut all[number];
            measured.push(load.run(&[server.process()], plan.measured)?);
        }
        if before.disturbed() {
            discarded += 1;
            continue;
        }
        rounds += 1;
        for (ours, measured) in all.iter_mut().zip(measured) {
            ours.pairs.push((measured, naive.clone()));
        }
    }
    if rounds == 0 {
        bail!("all {discarded} rounds had more than 5 % steal; try again on a quieter machine");
    }
    all.into_iter().map(|ours| summarise(case, plan, ours, discarded as usize)).collect()
}

fn summarise(case: &Case, plan: &Plan, ours: Ours, discarded: usize) -> anyhow::Result<Row> {
    let Ours { keys, server, pairs, .. } = ours;
    let ratios: Vec<f64> = pairs.iter().map(|(ours, naive)| naive.cost() / ours.cost()).collect();
    let mut ages: Histogram<u64> = pairs[0].0.ages.clone();
    for (ours, _) in &pairs[1..] {
        // Same bounds, so it cannot fail.
        let _ = ages.add(&ours.ages);
    }
    let costs = |pick: fn(&(Measured, Measured)) -> &Measured| {
        median(&pairs.iter().map(|pair| pick(pair).cost()).collect::<Vec<_>>())
    };
    let loss = |pick: fn(&(Measured, Measured)) -> &Measured| {
        let expected: u64 = pairs.iter().map(|pair| pick(pair).expected).sum();
        let lost: u64 = pairs.iter().map(|pair| pick(pair).lost()).sum();
        lost as f64 / expected.max(1) as f64
    };
    Ok(Row {
        case: *case,
        engine: server.engine.clone(),
        keys,
        threads: plan.threads,
        rounds: pairs.len(),
        seconds: plan.measured.as_secs_f64(),
        deliveries: pairs.iter().map(|(ours, _)| ours.deliveries).sum(),
        loss: loss(|pair| &pair.0),
        cpu_us_per_delivery: costs(|pair| &pair.0),
        naive_cpu_us_per_delivery: costs(|pair| &pair.1),
        ratio: median(&ratios),
        ratio_min: ratios.iter().copied().fold(f64::INFINITY, f64::min),
        ratio_max: ratios.iter().copied().fold(0.0, f64::max),
        age_us: Ages {
            p50: ages.value_at_quantile(0.5) / 1000,
            p99: ages.value_at_quantile(0.99) / 1000,
            p999: ages.value_at_quantile(0.999) / 1000,
        },
        naive_loss: loss(|pair| &pair.1),
        rounds_discarded: discarded,
        wire_bytes_per_payload_byte: median(
            &pairs.iter().map(|(ours, _)| ours.wire_bytes_per_payload_byte).collect::<Vec<_>>(),
        ),
        drops: server.stop()?,
    })
}
