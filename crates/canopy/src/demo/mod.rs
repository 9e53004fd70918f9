//! `canopy demo`: a controller, relays, a crowd and a console in one process, on loopback.

mod deeds;
mod follow;
mod limits;
mod relays;

use crate::agent;
use crate::bots::WalkArgs;
use crate::console::Console;
use crate::controller::{Admits, Parts, Running, Welcome};
use crate::logs::LogFormat;
use crate::metrics;
use crate::net::SharedNet;
use crate::output::print_line;
use crate::settings::{RelayArgs, RelaySettings};
use crate::signals::Signals;
use crate::token::random;
use crate::web::{address_of, bind, serve_pages};
use anyhow::{Context, bail};
use canopy_bots::{CrowdConfig, Generated, RelayTarget, Trace, View};
use canopy_client::join::Ask;
use canopy_client::{Falloff, Weight};
use canopy_control::storage::MemoryStorage;
use canopy_control::{Controller, Core, Name, NewWorld, Refusal, Settings, Sharing};
use canopy_node::{NodeConfig, RunningRelay};
use canopy_plan::Rate;
use canopy_relay::Mode;
use canopy_session::Identity;
use canopy_token::SigningKey;
use canopy_wire::{Comtree, Downlink};
use clap::Args;
use limits::Limits;
use relays::DemoRelays;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::net::TcpListener;

/// Starts a controller, relays, a crowd and a console on this machine; prints the console's address. The
/// console has a map of the relays, where links can be cut, relays killed and drained, and the world
/// moved; and a budget for what the viewer is sent. Needs no root. Ports are chosen free when taken. Ends
/// with Ctrl-C.
#[derive(Args)]
pub(crate) struct DemoCommand {
    /// Walk this trace, again and again, instead of generated walkers
    #[arg(long, value_name = "FILE[.csv|.csv.gz]")]
    trace: Option<PathBuf>,
    /// How many walkers to generate
    #[arg(long, value_name = "N", default_value_t = 120,
          value_parser = clap::value_parser!(u32).range(2..=2000))]
    walkers: u32,
    /// How many relays carry the world, 1 to 16
    #[arg(long, value_name = "N", default_value_t = 5,
          value_parser = clap::value_parser!(u16).range(1..=16))]
    relays: u16,
    /// Print the addresses as one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    walk: WalkArgs,
    #[command(flatten)]
    relay: RelayArgs,
}

/// Where the console is served if the port is free.
const CONSOLE: &str = "127.0.0.1:8080";
/// How far walkers see unless it is said, metres; half as far they get every update.
const RADIUS: f64 = 8.0;
/// Area for each generated walker, square metres: some six neighbours who are near, and twenty
/// beyond.
const AREA_PER_WALKER: f64 = 8.0;
const GENERATED_SECONDS: f64 = 600.0;
/// With how many others a relay is joined by links.
const DEGREE: usize = 3;
/// Walkers renew three times as often, and hear then that their relay drains: whoever has that done looks on.
const LEASE: Duration = Duration::from_secs(10);
/// What a walker may send and be sent: more than any crowd of the demo takes.
const MEMBER: canopy_plan::Limits = canopy_plan::Limits {
    send: Rate { bits: 1e6, packets: 200.0 },
    receive: Rate { bits: 2e7, packets: 5_000.0 },
};
/// What a walker covers, square metres.
const WALKER: f32 = 1.0;

impl DemoCommand {
    pub(crate) fn run(mut self) -> anyhow::Result<ExitCode> {
        LogFormat::Text.start_at("warn")?;
        let trace = match &self.trace {
            Some(path) => Trace::read(path)?,
            None => Trace::generate(&Generated {
                seed: 1,
                walkers: self.walkers,
                side: (AREA_PER_WALKER * f64::from(self.walkers)).sqrt(),
                seconds: GENERATED_SECONDS,
                rate: 10.0,
            }),
        };
        self.walk = self.walk.with_two_levels(RADIUS);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(self.show(trace))?;
        Ok(ExitCode::SUCCESS)
    }

    async fn show(self, trace: Trace) -> anyhow::Result<()> {
        let mut signals = Signals::listen()?;
        let mut settings = RelaySettings::resolve(self.relay.clone(), CONSOLE)?;
        settings.open_keys()?;
        for warning in &settings.warnings {
            tracing::warn!("{warning}");
        }
        let metrics = bind("metrics", settings.metrics).await?;
        let console = match settings.console {
            Some(address) => Some(listen_on_a_free_port(address).await?),
            None => None,
        };
        let world = world_of(&settings)?;
        let name = world.name.clone();
        agent::leave_to_controller(&mut settings)?;
        let controller = controller().await?;
        let made = move |controller: &mut Controller, _| {
            controller.create_world(world.clone())?;
            Ok::<_, Refusal>(controller.world(&world.name)?.comtrees.first().copied())
        };
        let comtree = controller.handle.change(made).await??.context("a world has a comtree")?;
        let ask = Ask::new(controller.listen.to_string(), controller.key, name.to_string());
        let relays = DemoRelays::start(&settings, self.relays.into(), controller, (name, comtree))?;
        let relays = Arc::new(relays);
        relays.come_up().await;
        let first = relays.first().context("there is no relay")?;
        let addresses: Vec<SocketAddr> = relays.addresses().map(|(address, _)| address).collect();
        let targets =
            relays.addresses().map(|(address, key)| RelayTarget { address, key: Some(key) });
        let (trace, config) = self.walk.prepare(trace, targets.collect(), comtree)?;
        let controller = Some(ask);
        let config = CrowdConfig { controller, endures: true, weigh: Some(weigh), ..config };
        self.print_addresses(&trace, &addresses, &console, &metrics)?;
        let view = View::new();
        let net = SharedNet::default();
        let mut pages = Console::of_relay(&settings, addresses[0], first.clone(), net.clone())
            .with_crowd(Arc::clone(&view), self.walk.map(&trace));
        if addresses.len() > 1 {
            pages = pages.with_relays(relays.names_and_keys(), comtree, relays.shown());
        }
        serve_pages(metrics, metrics::router(first, net));
        let deeds = deeds::router(Arc::clone(&relays), Arc::clone(&view));
        serve_pages(console, pages.router().merge(deeds));
        tokio::spawn(Limits::new(Arc::clone(&relays), Arc::clone(&view)).keep());
        let stop = Arc::new(AtomicBool::new(false));
        let stop_walking = Arc::clone(&stop);
        let mut walking =
            tokio::task::spawn_blocking(move || walk(&config, &trace, view, &stop_walking));
        let walked = tokio::select! {
            walked = &mut walking => walked,
            () = signals.next() => {
                stop.store(true, Ordering::Relaxed);
                walking.await
            }
        };
        relays.stop()?;
        walked.context("the crowd was lost")?
    }

    fn print_addresses(
        &self,
        trace: &Trace,
        relays: &[SocketAddr],
        console: &Option<TcpListener>,
        metrics: &Option<TcpListener>,
    ) -> anyhow::Result<()> {
        let url = address_of(console).map(|address| format!("http://{address}/"));
        if self.json {
            let metrics = address_of(metrics);
            let addresses = serde_json::json!({
                "console": url, "relay": relays[0], "relays": relays, "metrics": metrics,
            });
            return Ok(print_line(addresses)?);
        }
        let relays = match relays {
            [relay] => format!("the relay at {relay}"),
            [first, ..] => format!("{} relays, the first at {first}", relays.len()),
            [] => "no relay".to_owned(),
        };
        print_line(format_args!("{} in one world, through {relays}", trace.name()))?;
        match url {
            Some(url) => print_line(format_args!("Open {url}   (Ctrl-C ends it)"))?,
            None => print_line("No console is served   (Ctrl-C ends it)")?,
        }
        Ok(())
    }
}

/// What a cell matters to a viewer with a budget. The demo's world is small: a metre of it stands for
/// five.
fn weigh(distance: f64) -> Weight {
    let scale = 5.0 * Falloff::METRES.scale;
    Falloff::new(scale).weight(distance as f32, WALKER)
}

/// Walks the trace again and again.
fn walk(
    config: &CrowdConfig,
    trace: &Trace,
    view: Arc<View>,
    stop: &AtomicBool,
) -> anyhow::Result<()> {
    while !stop.load(Ordering::Relaxed) {
        canopy_bots::run(config, trace, Some(Arc::clone(&view)), stop, |_| ())?;
    }
    Ok(())
}

/// The demo's controller. What it decides ends with it, so its records are in memory.
async fn controller() -> anyhow::Result<Running> {
    let channels = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await;
    let channels = channels.context("the demo's controller cannot listen on loopback")?;
    let parts = Parts {
        identity: Identity::new(random()?),
        issuer: SigningKey::from_seed(random()?),
        admits: Admits::Everybody,
        welcome: Welcome::All,
        settings: Settings { degree: DEGREE, lease: LEASE, ..Settings::default() },
    };
    Running::start(MemoryStorage::default(), channels, parts)
}

/// The world of the settings.
///
/// # Errors
/// They say what is the controller's to say.
fn world_of(settings: &RelaySettings) -> anyhow::Result<NewWorld> {
    if settings.trust.is_some() || !settings.links.is_empty() {
        bail!(
            "the demo's controller says whose tokens count and which links there are; leave out \
               --trust and [[link]]"
        );
    }
    let [comtree] = &settings.node.comtrees[..] else {
        bail!("the demo has one world on one comtree; leave out [[comtree]]");
    };
    if comtree.comtree != Comtree(1) {
        bail!("--comtree: the demo's controller numbers comtrees; leave this out");
    }
    Ok(NewWorld {
        name: Name::new(&comtree.world)?,
        comtrees: 1,
        channels: Vec::new(),
        levels: 1,
        mode: match settings.node.mode {
            Mode::Immediate => canopy_control::Mode::Immediate,
            Mode::Periodic { tick } => canopy_control::Mode::Periodic(tick.as_millis() as u16),
        },
        downlink: match comtree.downlink {
            Downlink::Member => canopy_control::Downlink::Member,
            Downlink::Group => canopy_control::Downlink::Group,
            Downlink::None => canopy_control::Downlink::None,
        },
        default: MEMBER,
        core: Core::Center,
        sharing: Sharing {
            floor_ms: comtree.fairness.floor.as_millis() as u16,
            levels_first: comtree.fairness.levels_first,
            ..Sharing::default()
        },
    })
}

fn start_on_a_free_port(config: &mut NodeConfig) -> anyhow::Result<RunningRelay> {
    RunningRelay::start(config).or_else(|_| {
        config.listen.set_port(0);
        RunningRelay::start(config)
    })
}

async fn listen_on_a_free_port(wanted: SocketAddr) -> anyhow::Result<TcpListener> {
    match TcpListener::bind(wanted).await {
        Ok(listener) => Ok(listener),
        Err(_) => TcpListener::bind((wanted.ip(), 0))
            .await
            .with_context(|| format!("cannot serve the console on {wanted}")),
    }
}
