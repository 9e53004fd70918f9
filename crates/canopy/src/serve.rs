//! `canopy relay`: one relay until it is told to stop.

use crate::agent::{Agent, AgentArgs, AgentConfig, Told};
use crate::console::Console;
use crate::logs::LogFormat;
use crate::metrics;
use crate::net::{self, Controlled, Reloads, SharedNet};
use crate::operate::RelayDeed;
use crate::output::print_line;
use crate::settings::{RelayArgs, RelaySettings};
use crate::signals::Signals;
use crate::trust::{self, TrustPath};
use crate::web::{address_of, bind, serve_pages};
use anyhow::Context;
use canopy_client::RelayKey;
use canopy_node::{Command, EngineInUse, RelayReport, RelayWatch, RunningRelay};
use canopy_relay::Notice;
use clap::Args;
use std::cmp::Ordering;
use std::process::ExitCode;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};

const LOOK_EVERY: Duration = Duration::from_secs(1);

/// A relay from start to drain.
#[derive(Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "Serves until SIGTERM or SIGINT (Ctrl-C), then drains: takes no one new, tells the \
    participants to go, and stops when they have gone or after --drain-ms; a second signal stops it at once. \
    On SIGHUP it reads the settings again, and takes what can change while it runs.\n\n\
    Every setting has a flag, a variable and a key in the file; flags win over the environment, the \
    environment over the file. Logs go to stderr; CANOPY_LOG filters them, like 'debug' or 'canopy=debug'."
)]
pub(crate) struct RelayCommand {
    /// Print one JSON object when serving begins, and one with all totals at the end, on stdout
    #[arg(long)]
    json: bool,
    /// How logs look on stderr
    #[arg(
        long,
        value_name = "FORMAT",
        env = "CANOPY_LOG_FORMAT",
        hide_env_values = true,
        default_value = "text"
    )]
    log_format: LogFormat,
    #[command(flatten)]
    relay: RelayArgs,
    #[command(flatten)]
    agent: AgentArgs,
    #[command(subcommand)]
    deed: Option<RelayDeed>,
}

impl RelayCommand {
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        if let Some(deed) = self.deed {
            return deed.run();
        }
        let mut args = self.relay;
        args.is_controlled = self.agent.is_controlled();
        let mut settings = RelaySettings::resolve(args.clone(), "off")?;
        self.log_format.start()?;
        settings.open_keys()?;
        let agent = self.agent.prepare(&args, &mut settings)?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(serve(settings, args, agent, self.json))?;
        Ok(ExitCode::SUCCESS)
    }
}

async fn serve(
    settings: RelaySettings,
    args: RelayArgs,
    agent: Option<AgentConfig>,
    json: bool,
) -> anyhow::Result<()> {
    let signals = Signals::listen()?;
    let hangups = signal(SignalKind::hangup())?;
    let metrics = bind("metrics", settings.metrics).await?;
    let console = bind("console", settings.console).await?;
    let relay = RunningRelay::start(&settings.node)?;
    let watch = relay.watch();
    for warning in &settings.warnings {
        tracing::warn!("{warning}");
    }
    let key = RelayKey::new(relay.key());
    tracing::info!(address = %relay.address(), %key, "serving: {settings}");
    let net = net::begin(&settings, &relay)?;
    tell_of_host(&relay);
    if json {
        let listening = serde_json::json!({
            "event": "listening",
            "relay": relay.address(),
            "key": RelayKey::new(relay.key()).to_string(),
            "engines": relay.engines(),
            "console": address_of(&console),
            "metrics": address_of(&metrics),
        });
        print_line(listening)?;
    }
    let pages = Console::of_relay(&settings, relay.address(), watch.clone(), net.clone());
    serve_pages(metrics, metrics::router(watch.clone(), net.clone()));
    serve_pages(console, pages.router());
    let trust = settings.trust.clone().map(TrustPath::new);
    if let Some(path) = &trust {
        trust::watch(path.clone(), watch.clone())?;
    }
    let (told, links) = unbounded_channel();
    if let Some(config) = agent {
        // What the settings say of comtrees and links is the controller's to say: no SIGHUP is taken.
        let data_plane = Controlled::new(&settings, net.clone(), watch.clone());
        let agent = Agent::new(config, relay.address(), data_plane, watch.clone(), links);
        tokio::spawn(agent.run());
    } else {
        let key = relay.key();
        let reloads =
            Reloads { args, settings, net: net.clone(), trust, watch: watch.clone(), key };
        tokio::spawn(reloads.follow(hangups));
    }
    run_until_told(relay, net, told, signals).await?;
    let status = watch.status();
    tracing::info!(sessions = status.sessions, "stopped");
    if json {
        let totals = RelayReport::new(&status);
        print_line(serde_json::json!({ "event": "stopped", "totals": totals }))?;
    }
    Ok(())
}

/// Says what this host gives the relay to send and receive with, and warns of what it does not.
fn tell_of_host(relay: &RunningRelay) {
    for EngineInUse { engine, threads, why } in relay.engines() {
        tracing::info!(threads, "send engine {engine}");
        tracing::debug!(threads, "send engine {engine}: {why}");
    }
    if let Some((granted, asked)) = relay.small_receive_buffer() {
        tracing::warn!(
            granted,
            asked,
            "the receive buffer is small: what arrives at once may be lost (receive_queue_full); \
             raise it with sysctl net.core.rmem_max={asked}"
        );
    }
    if let Some(error) = relay.blind_to_neighbours() {
        tracing::warn!(
            "the kernel does not tell who on this host's links has gone ({error}): receivers that \
             went without a word slow down the others until their sessions end"
        );
    }
}

/// Waits for a signal, then drains; a second signal stops at once.
async fn run_until_told(
    mut relay: RunningRelay,
    net: SharedNet,
    agent: UnboundedSender<Told>,
    mut signals: Signals,
) -> anyhow::Result<()> {
    let watch = relay.watch();
    tokio::spawn(tell_of_engines(watch.clone()));
    if let Some(notices) = relay.take_notices() {
        std::thread::spawn(move || tell_of_notices(notices, &net, &agent));
    }
    let mut ended = tokio::task::spawn_blocking(move || relay.join());
    for command in [Command::Drain, Command::Stop] {
        tokio::select! {
            done = &mut ended => return done.context("a data thread was lost")?,
            () = signals.next() => {
                let sessions = watch.status().sessions;
                // Before the log: the relay stops whatever becomes of that.
                watch.command(command);
                tracing::info!(sessions, at_once = command == Command::Stop, "stopping");
            }
        }
    }
    ended.await.context("a data thread was lost")?
}

/// Says when an engine stops doing what it was chosen for, and when it does again.
async fn tell_of_engines(watch: RelayWatch) {
    let mut looks = tokio::time::interval(LOOK_EVERY);
    let mut stopped = 0;
    loop {
        looks.tick().await;
        let threads = watch.status().engines_stopped;
        match threads.cmp(&stopped) {
            Ordering::Greater => tracing::warn!(
                threads,
                "the kernel no longer copies for the send engine: its programs were removed, or a \
                 rule drops its packets; going on with plain sends. Look at `canopy engine status`, \
                 install it again and restart the relay"
            ),
            Ordering::Less => {
                tracing::info!(threads, "the kernel copies for the send engine again")
            }
            Ordering::Equal => {}
        }
        stopped = threads;
    }
}

/// Lines about those who were not let in, in a second: who floods a relay with bad tokens must not
/// fill its logs.
const REFUSALS_PER_SECOND: u32 = 10;

/// Says at debug level who joins and leaves, and at info level who was not let in; warns of who is over
/// a limit, and of links that are down. Until the relay has ended.
fn tell_of_notices(notices: Receiver<Notice>, net: &SharedNet, agent: &UnboundedSender<Told>) {
    let (mut second, mut refused) = (Instant::now(), 0);
    for notice in notices {
        Told::tell(&notice, net, agent);
        match notice {
            Notice::TokenRefused { comtree, path, why } => {
                if second.elapsed() >= Duration::from_secs(1) {
                    (second, refused) = (Instant::now(), 0);
                }
                refused += 1;
                if refused <= REFUSALS_PER_SECOND {
                    tracing::info!(comtree = comtree.0, from = %path.remote, "not let in: {why}");
                } else if refused == REFUSALS_PER_SECOND + 1 {
                    tracing::info!("others were not let in either; bad_token counts them");
                }
            }
            Notice::Joined { comtree, address, path } => {
                tracing::debug!(comtree = comtree.0, %address, from = %path.remote, "joined");
            }
            Notice::LinkUp { key } => {
                tracing::info!(link = net.name(&key), "the link is up");
            }
            Notice::LinkDown { key } => {
                tracing::warn!(
                    link = net.name(&key),
                    "the link is down: the neighbour is not heard; it comes up again by itself. \
                     `canopy net show` shows how links stand"
                );
            }
            Notice::ParentSucceeded { comtree } => {
                tracing::info!(
                    comtree = comtree.0,
                    "the next parent is the way to the core now: nothing is lost if the branch to the \
                     old one is removed, there first and then here"
                );
            }
            Notice::ParentAsked { comtree } => {
                tracing::info!(
                    comtree = comtree.0,
                    "the parent knows all that is wanted here: nothing is lost if it takes this relay for \
                     its child now"
                );
            }
            Notice::Left { comtree, address } => {
                tracing::debug!(comtree = comtree.0, %address, "left");
            }
            Notice::OverLimit { comtree, address, path, what } => {
                tracing::warn!(
                    comtree = comtree.0, %address, from = %path.remote,
                    "sends more than it may ({what:?}); what is too much is dropped. \
                     `canopy top` shows how much, and a limit can be raised in the settings"
                );
            }
            _ => {}
        }
    }
}
