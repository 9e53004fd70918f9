//! `canopy lab`: several relays on this machine, for trying things and for tests from outside.

mod bed;
mod controlled;
mod convergence;
mod degrade;
mod faults;
mod files;
mod process;
pub(crate) mod topology;

use crate::net::report_of;
use crate::output::{print_line, print_note};
use crate::signals::Signals;
use anyhow::bail;
use canopy_relay::DEFAULT_WORLD;
use clap::{Args, Subcommand, ValueEnum};
use convergence::ConvergenceCommand;
use degrade::DegradeCommand;
use faults::FaultsCommand;
use files::{COMTREE, Known};
use process::{ControllerProcess, RelayProcess, Serving, in_words};
use serde::Serialize;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};
use tokio::signal::unix::{SignalKind, signal};
use topology::{Core, Shape, Topology};

/// Relays on this machine alone.
#[derive(Args)]
pub(crate) struct LabCommand {
    #[command(subcommand)]
    what: LabWhat,
}

#[derive(Subcommand)]
enum LabWhat {
    /// Start relays on loopback, joined to one network with a world over all of them
    Net(NetCommand),
    /// What a flood on one comtree costs a world on another that shares relays and links with it
    Isolation(canopy_bench::IsolationLab),
    /// Who floods there
    #[command(hide = true)]
    IsolationFlooder(canopy_bench::IsolationFlooder),
    /// Show what viewers see of a crowd when their budgets do not hold all of it
    Degrade(DegradeCommand),
    /// Show what a crowd notices when relays, links and the controller fail
    Faults(FaultsCommand),
    /// Compare how long traffic is away after a cut with what OSPF and BFD need for it
    Convergence(ConvergenceCommand),
}

/// Starts relays on loopback, each a process of its own, joined as is said, with one world over all of
/// them. Once every link is up, prints where they are. Runs until it is stopped (Ctrl-C, SIGTERM), and
/// ends them then. A relay that ends before is reported, and the others go on: kill any of them, and
/// see what happens.
#[derive(Args)]
struct NetCommand {
    /// How many relays, 1 to 64
    #[arg(long, value_name = "N", default_value_t = 3)]
    relays: usize,
    /// How they are joined
    #[arg(long, value_name = "SHAPE", value_enum, default_value_t = Shape::Line)]
    shape: Shape,
    /// Which of them are the core, where every update to a group goes [default: one; of a mesh, mesh]
    #[arg(long, value_name = "CORE", value_enum)]
    core: Option<Core>,
    /// Data threads of each relay
    #[arg(long, value_name = "T", default_value_t = 1,
          value_parser = clap::value_parser!(u16).range(1..=64))]
    threads: u16,
    /// When updates leave
    #[arg(long, value_name = "MODE", value_enum, default_value_t = ModeName::Immediate)]
    mode: ModeName,
    /// Milliseconds between ticks in periodic mode
    #[arg(long, value_name = "MS", value_parser = clap::value_parser!(u16).range(1..=1000))]
    tick_ms: Option<u16>,
    /// Start a controller, too, which decides how they are joined and what they carry
    #[arg(long, conflicts_with_all = ["shape", "core", "mode", "tick_ms"])]
    controller: bool,
    /// Print where the relays are as one JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum ModeName {
    Immediate,
    Periodic,
}

/// How long relays may take until all links are up.
const UP_LIMIT: Duration = Duration::from_secs(20);
/// How often the relays are asked whether they are.
const ASK_EVERY: Duration = Duration::from_millis(50);
/// How long relays may take to end before they are killed.
const END_LIMIT: Duration = Duration::from_secs(5);

/// What is printed.
#[derive(Serialize)]
struct Lab {
    relays: Vec<LabRelay>,
    /// The world, by its name, and its comtree.
    world: &'static str,
    comtree: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    controller: Option<LabController>,
}

#[derive(Serialize)]
struct LabController {
    pid: u32,
    api: SocketAddr,
    listen: SocketAddr,
    key: String,
    /// Its folder, which has the secret of its API.
    dir: PathBuf,
}

#[derive(Serialize)]
struct LabRelay {
    name: String,
    pid: u32,
    listen: SocketAddr,
    api: SocketAddr,
    key: String,
}

impl LabCommand {
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        match self.what {
            LabWhat::Net(net) => net.run(),
            LabWhat::Isolation(isolation) => isolation.run(),
            LabWhat::IsolationFlooder(flooder) => flooder.run(),
            LabWhat::Degrade(degrade) => degrade.run(),
            LabWhat::Faults(faults) => faults.run(),
            LabWhat::Convergence(convergence) => convergence.run(),
        }
    }
}

impl NetCommand {
    fn run(self) -> anyhow::Result<ExitCode> {
        let core = self.core.unwrap_or(self.shape.core());
        let topology = Topology::new(self.relays, self.shape, core)?;
        if self.tick_ms.is_some() && self.mode == ModeName::Immediate {
            bail!("--tick-ms: immediate mode has no ticks; say --mode periodic, or leave this out");
        }
        // The relays are killed when the thread ends that started them: it is this one.
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(self.serve(&topology))?;
        Ok(ExitCode::SUCCESS)
    }

    async fn serve(&self, topology: &Topology) -> anyhow::Result<()> {
        let mut signals = Signals::listen()?;
        let mut child_ended = signal(SignalKind::child())?;
        let folder = tempfile::Builder::new().prefix("canopy-lab-").tempdir()?;
        let mut relays = Vec::new();
        let dir = folder.path().join("controller");
        let controller = self.controller.then(|| ControllerProcess::start(&dir)).transpose()?;
        for relay in 0..topology.relays {
            let mut flags = self.flags();
            if let Some(controller) = &controller {
                flags.extend(controlled::flags(controller, relay));
            }
            relays.push(RelayProcess::start(relay, folder.path(), &flags)?);
        }
        let serving = relays.iter_mut().map(RelayProcess::ready).collect::<Result<Vec<_>, _>>()?;
        let up = async {
            match &controller {
                Some(controller) => controlled::all_up(controller, &dir, &mut relays).await,
                None => self.join_up(topology, &mut relays, &serving).await,
            }
        };
        tokio::select! {
            up = up => up?,
            () = signals.next() => return Ok(()),
        }
        self.tell(&relays, &serving, controller.as_ref().map(|one| LabController::of(one, &dir)))?;
        loop {
            tokio::select! {
                _ = child_ended.recv() => tell_of_ended(&mut relays),
                () = signals.next() => break,
            }
        }
        end(&mut relays, &mut signals).await;
        Ok(())
    }

    /// Joins the relays, and waits until their links are up.
    async fn join_up(
        &self,
        topology: &Topology,
        relays: &mut [RelayProcess],
        serving: &[Serving],
    ) -> anyhow::Result<()> {
        let known: Vec<Known> = serving.iter().map(|one| one.known.clone()).collect();
        for (number, relay) in relays.iter().enumerate() {
            relay.reload(&files::joined(topology, number, &known, self.threads))?;
        }
        all_up(topology, relays, serving).await
    }

    /// What each relay is started with.
    fn flags(&self) -> Vec<String> {
        let mode = self.mode.to_possible_value().map(|mode| mode.get_name().to_owned());
        let mut flags = vec!["--threads".to_owned(), self.threads.to_string()];
        flags.extend(["--mode".to_owned(), mode.unwrap_or_default()]);
        if let Some(tick) = self.tick_ms {
            flags.extend(["--tick-ms".to_owned(), tick.to_string()]);
        }
        flags
    }

    fn tell(
        &self,
        relays: &[RelayProcess],
        serving: &[Serving],
        controller: Option<LabController>,
    ) -> anyhow::Result<()> {
        let relays = relays.iter().zip(serving).map(|(relay, Serving { known, api })| LabRelay {
            name: relay.name.clone(),
            pid: relay.process(),
            listen: known.address,
            api: *api,
            key: known.key.clone(),
        });
        let lab =
            Lab { relays: relays.collect(), world: DEFAULT_WORLD, comtree: COMTREE, controller };
        if self.json {
            return Ok(print_line(serde_json::to_string(&lab)?)?);
        }
        Ok(print_line(lab.in_words())?)
    }
}

impl LabController {
    fn of(controller: &ControllerProcess, dir: &Path) -> LabController {
        let (pid, dir) = (controller.process(), dir.to_owned());
        let process::ControllerReady { listen, key, api } = &controller.ready;
        LabController { pid, api: *api, listen: *listen, key: key.clone(), dir }
    }
}

impl Lab {
    fn in_words(&self) -> String {
        let line = |relay: &LabRelay| {
            let LabRelay { name, pid, listen, api, .. } = relay;
            let (listen, api) = (listen.to_string(), format!("http://{api}/"));
            format!("{name:<9} {listen:<21} process {pid:<8} console {api}\n")
        };
        let lines: String = self.relays.iter().map(line).collect();
        if let Some(LabController { pid, api, listen, key, dir }) = &self.controller {
            let (world, dir) = (self.world, dir.display());
            return format!(
                "{lines}controller {listen:<20} process {pid:<8} API http://{api}/v1, folder {dir}\n\
                 World {world}. Walk a crowd through it (Ctrl-C here ends it):\n  \
                 canopy bots --trace FILE --world {world} --controller {listen} --controller-key {key}"
            );
        }
        let flags = self.relays.iter().map(|relay| format!(" --relay {}", relay.listen));
        format!(
            "{lines}All links are up. World {}, comtree {}. Walk a crowd through it (Ctrl-C here ends it):\n  \
             canopy bots --trace FILE{}",
            self.world,
            self.comtree,
            flags.collect::<String>()
        )
    }
}

/// Waits until every relay has its links, and each of them is up.
///
/// # Errors
/// If one ends, or is not ready after [`UP_LIMIT`].
async fn all_up(
    topology: &Topology,
    relays: &mut [RelayProcess],
    serving: &[Serving],
) -> anyhow::Result<()> {
    let started = Instant::now();
    for (number, relay) in relays.iter_mut().enumerate() {
        let wanted = topology.branches(number).count();
        loop {
            if let Some(status) = relay.ended() {
                bail!("{} {}; what it says above tells why", relay.name, in_words(status));
            }
            let lacks = match report_of(&serving[number].api.to_string()).await {
                Ok(report) => report.lacks(COMTREE, wanted),
                Err(error) => Some(format!("{error:#}")),
            };
            let Some(lacks) = lacks else { break };
            if started.elapsed() > UP_LIMIT {
                bail!("{} is not ready after {} s: {lacks}", relay.name, UP_LIMIT.as_secs());
            }
            tokio::time::sleep(ASK_EVERY).await;
        }
    }
    Ok(())
}

fn tell_of_ended(relays: &mut [RelayProcess]) {
    for relay in relays {
        if let Some(status) = relay.ended() {
            let process = relay.process();
            print_note(format_args!("{} (process {process}) {}", relay.name, in_words(status)));
        }
    }
}

/// Ends the relays in order; at once if another signal comes, or they take too long.
async fn end(relays: &mut [RelayProcess], signals: &mut Signals) {
    relays.iter().for_each(RelayProcess::ask_to_end);
    let all_ended = async {
        while relays.iter_mut().any(|relay| relay.ended().is_none() && relay.is_running()) {
            tokio::time::sleep(ASK_EVERY).await;
        }
    };
    tokio::select! {
        () = all_ended => {}
        () = signals.next() => {}
        () = tokio::time::sleep(END_LIMIT) => {}
    }
}
