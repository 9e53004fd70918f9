//! `canopy bots`: a recorded crowd over real sockets, judged by an oracle.

use crate::console::Map;
use crate::output::{print_line, print_note};
use crate::signals::Signals;
use crate::token::read_signing_key;
use anyhow::{Context, bail};
use canopy_bots::{
    CrowdConfig, DEFAULT_HOP, Grid, Issuer, Progress, RelayTarget, Report, Totals, Trace,
};
use canopy_client::RelayKey;
use canopy_client::join::Ask;
use canopy_relay::DEFAULT_WORLD;
use canopy_wire::Comtree;
use clap::Args;
use std::net::ToSocketAddrs;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Each id of the trace is a client of its own, on a socket of its own: it publishes its position
/// to the group of its grid cell and keeps its subscriptions to the cells within the radius. The
/// oracle judges every delivery from the trace and from acknowledged subscriptions alone; the exit
/// status is 1 unless missing, duplicates and unexpected are all 0 and every update was sent.
/// Several relays carry one world together: clients join them in turn, and what one client publishes
/// must reach those who care at all the others.
#[derive(Args)]
pub(crate) struct BotsCommand {
    /// The trace: CSV with columns t,id,x,y, plain or .gz
    #[arg(long, value_name = "FILE[.csv|.csv.gz]")]
    trace: PathBuf,
    /// A relay, with its key if it has to prove that; repeat for several
    #[arg(
        long = "relay",
        value_name = "[KEY@]HOST:PORT",
        env = "CANOPY_RELAY",
        value_delimiter = ',',
        required_unless_present = "controller"
    )]
    relays: Vec<String>,
    /// The world's controller, which says who joins at which relay, and finds another when one is lost
    #[arg(
        long,
        value_name = "HOST:PORT",
        env = "CANOPY_CONTROLLER",
        requires = "controller_key",
        conflicts_with = "comtree"
    )]
    controller: Option<String>,
    /// The controller's public key, which it logs when it starts
    #[arg(long, value_name = "KEY", env = "CANOPY_CONTROLLER_KEY", requires = "controller")]
    controller_key: Option<RelayKey>,
    /// The comtree to join
    #[arg(long, value_name = "ID", default_value_t = 1)]
    comtree: u32,
    /// The file of a signing key that the relay trusts, or the controller: each client joins by a token
    /// of its own
    #[arg(long, value_name = "FILE")]
    token_key: Option<PathBuf>,
    /// The world, of the tokens or at the controller
    #[arg(long, value_name = "NAME", default_value = DEFAULT_WORLD)]
    world: String,
    #[command(flatten)]
    walk: WalkArgs,
    /// Print the report as JSON
    #[arg(long)]
    json: bool,
}

/// How a crowd walks.
#[derive(Args, Clone, Debug)]
pub(crate) struct WalkArgs {
    /// How fast, against the recording
    #[arg(long, value_name = "X", default_value_t = 1.0)]
    speed: f64,
    /// Copies of the crowd, shifted so far apart that they don't see each other
    #[arg(long, value_name = "N", default_value_t = 1,
          value_parser = clap::value_parser!(u32).range(1..=1000))]
    repeat: u32,
    /// Side of a grid cell; for quake-arena's units give 128
    #[arg(long, value_name = "METRES", default_value_t = 2.0)]
    cell: f64,
    /// How far a client sees; for quake-arena's units give 512 [default: 4; of a demo 8]
    #[arg(long, value_name = "METRES")]
    radius: Option<f64>,
    /// Two levels: a client gets every update from cells within this distance, and one in five
    /// from those beyond. Without it, all updates have one level [default of a demo: half the radius]
    #[arg(long, value_name = "METRES")]
    near: Option<f64>,
    /// Bytes of an update
    #[arg(long, value_name = "B", default_value_t = 100)]
    bytes: usize,
    /// Who unsubscribes so soon after an update was published may miss it; give a periodic relay
    /// 250 and two of its ticks
    #[arg(long, value_name = "MS", default_value_t = 350)]
    settle_ms: u64,
    /// What an update, or a subscription on its way to the core, takes at most from relay to relay:
    /// each relay after the first counts as one such hop. Added to --settle-ms; and what another
    /// relay's client publishes so soon after a subscription may be missed
    #[arg(long, value_name = "MS", default_value_t = DEFAULT_HOP.as_millis() as u64)]
    hop_ms: u64,
}

/// How far a client sees unless it is said, metres.
const RADIUS: f64 = 4.0;

impl WalkArgs {
    /// Sets how far clients see, and how far they see everything, where that was not given.
    pub(crate) fn with_two_levels(self, radius: f64) -> WalkArgs {
        let radius = self.radius.unwrap_or(radius);
        WalkArgs { radius: Some(radius), near: Some(self.near.unwrap_or(radius / 2.0)), ..self }
    }

    fn radius(&self) -> f64 {
        self.radius.unwrap_or(RADIUS)
    }

    /// The copies of the trace, and how they walk through relays.
    pub(crate) fn prepare(
        &self,
        trace: Trace,
        relays: Vec<RelayTarget>,
        comtree: Comtree,
    ) -> anyhow::Result<(Trace, CrowdConfig)> {
        let grid = Grid::new(self.cell, self.radius())?;
        let grid = self.near.map_or(Ok(grid), |near| grid.with_near(near))?;
        let reach = 2.0 * (self.radius() + self.cell);
        let config = CrowdConfig {
            relays,
            comtree,
            issuer: None,
            speed: self.speed,
            grid,
            bytes: self.bytes,
            settle: Duration::from_millis(self.settle_ms),
            hop: Duration::from_millis(self.hop_ms),
            weigh: None,
            seats: None,
            killed: None,
            controller: None,
            endures: false,
        };
        config.check()?;
        Ok((trace.repeat(self.repeat, reach), config))
    }

    /// What a console shows of it.
    pub(crate) fn map(&self, trace: &Trace) -> Map {
        let (min, max) = trace.bounds();
        let source = trace.name().to_owned();
        Map { min, max, cell: self.cell, radius: self.radius(), near: self.near, source }
    }
}

impl BotsCommand {
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        let trace = Trace::read(&self.trace)?;
        let ask = self.controller.clone().zip(self.controller_key);
        let ask = ask.map(|(address, key)| Ask::new(address, key, self.world.clone()));
        let relays = match &ask {
            Some(ask) => canopy_bots::relays_of(ask)?,
            None => find_relays(&self.relays)?,
        };
        let (trace, mut config) = self.walk.prepare(trace, relays, Comtree(self.comtree))?;
        // A relay that is lost is the controller's business.
        config.endures = ask.is_some();
        config.controller = ask;
        if let Some(path) = &self.token_key {
            let key = read_signing_key("--token-key", path)?;
            config.issuer = Some(Issuer::new(key, self.world.clone()));
        }
        print_note(format_args!(
            "{}: {} clients, {:.0} s at speed {}, to {}",
            trace.name(),
            trace.walkers(),
            trace.seconds() / self.walk.speed,
            self.walk.speed,
            self.controller.clone().unwrap_or_else(|| self.relays.join(", "))
        ));
        let stop = stop_on_interrupt()?;
        let report = canopy_bots::run(&config, &trace, None, &stop, print_progress)?;
        if self.json {
            print_line(serde_json::to_string(&report)?)?;
        } else {
            print_line(in_words(&report))?;
        }
        Ok(if report.is_flawless() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}

/// Relays by their names, each of them once: every one more counts as one more hop.
fn find_relays(names: &[String]) -> anyhow::Result<Vec<RelayTarget>> {
    let mut relays: Vec<RelayTarget> = Vec::new();
    for name in names {
        let relay = find_relay(name)?;
        if relays.iter().any(|other| other.address == relay.address) {
            bail!("--relay {name} is named twice; name each relay once");
        }
        relays.push(relay);
    }
    Ok(relays)
}

/// A relay by its name, `HOST:PORT` or `KEY@HOST:PORT`.
fn find_relay(text: &str) -> anyhow::Result<RelayTarget> {
    let (key, name) = match text.split_once('@') {
        Some((key, name)) => (Some(key), name),
        None => (None, text),
    };
    let key = key.map(str::parse::<RelayKey>).transpose();
    let key = key.with_context(|| format!("--relay {text}: a relay's key stands before the @"))?;
    let mut found = name.to_socket_addrs().with_context(|| {
        format!("--relay {text} cannot be found; write it like 127.0.0.1:4040 or host:4040")
    })?;
    let address = found.next();
    let address =
        address.with_context(|| format!("--relay {text} has no address; check the name"))?;
    Ok(RelayTarget { address, key: key.map(RelayKey::to_bytes) })
}

/// A flag that SIGINT and SIGTERM set, so that the clients leave and the report is printed.
pub(crate) fn stop_on_interrupt() -> anyhow::Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&stop);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let mut signals = runtime.block_on(async { Signals::listen() })?;
    std::thread::Builder::new()
        .name("signals".to_owned())
        .spawn(move || {
            runtime.block_on(async {
                signals.next().await;
                flag.store(true, Ordering::Relaxed);
            });
        })
        .context("cannot watch for signals")?;
    Ok(stop)
}

fn print_progress(progress: &Progress) {
    let Totals { verdict, age_p50_us, age_p99_us } = &progress.totals;
    print_note(format_args!(
        "{:3.0} %  {} in the world, {} deliveries, age p50 {} p99 {} µs, missing {}, duplicates {}, \
         unexpected {}, out of order {}",
        progress.done * 100.0,
        progress.walkers,
        verdict.delivered,
        age_p50_us,
        age_p99_us,
        verdict.missing,
        verdict.duplicates,
        verdict.unexpected,
        verdict.out_of_order,
    ));
}

fn in_words(report: &Report) -> String {
    let Report { verdict, age_us, .. } = report;
    format!(
        "{} clients{}, {} updates published in {:.1} s, {} ms late at most, {} subscriptions changed\n\
         deliveries: {} expected, {} made, {} missing, {} duplicates, {} unexpected, \
         {} out of order\n\
         age: p50 {} µs, p99 {} µs, p99.9 {} µs\n\
         {} updates not sent, {} subscriptions refused, {} sessions lost and made again, {} own \
         updates dropped{}{}",
        report.clients,
        spread(report),
        verdict.published,
        report.seconds,
        report.late_ms,
        report.subscriptions_changed,
        verdict.expected,
        verdict.delivered,
        verdict.missing,
        verdict.duplicates,
        verdict.unexpected,
        verdict.out_of_order,
        age_us.p50,
        age_us.p99,
        age_us.p999,
        report.updates_unsent,
        report.subscriptions_refused,
        report.reconnects,
        report.echoes,
        outages(report),
        report.findings.iter().map(|what| format!("\n  {what}")).collect::<String>(),
    )
}

/// How often relays were lost, if any was.
fn outages(report: &Report) -> String {
    let Some(longest) = report.outages.iter().map(|outage| outage.ms).max() else {
        return String::new();
    };
    let (count, moves) = (report.outages.len(), report.moves);
    format!("\n{count} outages, the longest {longest} ms; {moves} moves to other relays")
}

/// Over which relays the clients were spread, if over several.
fn spread(report: &Report) -> String {
    match report.relays.len() {
        1 => String::new(),
        relays => format!(" at {relays} relays"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_relay_is_named_by_its_host_and_perhaps_its_key() {
        let key = "07".repeat(32);
        let found = find_relay("127.0.0.1:4040").unwrap();
        assert_eq!(found, RelayTarget { address: ([127, 0, 0, 1], 4040).into(), key: None });
        assert_eq!(find_relay(&format!("{key}@[::1]:1")).unwrap().key, Some([7; 32]));
        let found = find_relay("localhost:4040").unwrap().address;
        assert!(found.ip().is_loopback() && found.port() == 4040, "{found}");
        for (wrong, words) in [
            ("127.0.0.1", "write it like"),
            ("key@127.0.0.1:4040", "64 hexadecimal digits"),
            ("@127.0.0.1:4040", "64 hexadecimal digits"),
        ] {
            let error = format!("{:#}", find_relay(wrong).unwrap_err());
            assert!(error.contains(words) && error.contains(wrong), "{error}");
        }
    }

    #[test]
    fn a_relay_is_named_once() {
        let names = ["127.0.0.1:4040", "127.0.0.1:4041", "127.0.0.1:4040"].map(str::to_owned);
        assert_eq!(find_relays(&names[..2]).unwrap().len(), 2);
        let error = find_relays(&names).unwrap_err().to_string();
        assert_eq!(error, "--relay 127.0.0.1:4040 is named twice; name each relay once");
    }
}
