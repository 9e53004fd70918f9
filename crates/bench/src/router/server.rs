//! What is measured, each a process of its own: the router, or a reflector in its place.

use super::reflector;
use super::traffic::{COMTREES, SITE};
use crate::relay::server_command;
use anyhow::{Context, bail};
use canopy_net::end_with_parent;
use canopy_node::{Command as Order, NodeConfig, RelayWatch, RunningRelay, ThreadStatus, drops_of};
use canopy_output::print_line;
use canopy_relay::{BranchConfig, BranchId, BranchRole, Change, ComtreeConfig, LinkConfig};
use canopy_relay::{Mode, Notice, TableLimits};
use canopy_session::PublicKey;
use clap::Args;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitCode, Stdio};

/// What a process is, as the bench tells it.
#[derive(Serialize, Deserialize)]
pub(super) enum Part {
    /// A relay with these neighbours, and room for so many routes.
    Router { neighbours: Vec<NeighbourOf>, max_routes: u32 },
    /// What sends each datagram to all of these, sealed or as it came.
    Reflector { to: Vec<SocketAddr>, seals: bool },
}

/// A neighbour, as the router is told of it.
#[derive(Serialize, Deserialize)]
pub(super) struct NeighbourOf {
    pub(super) key: PublicKey,
    pub(super) remote: SocketAddr,
    pub(super) site: u16,
}

/// What a process says when it is ready.
#[derive(Serialize, Deserialize)]
struct Ready {
    address: SocketAddr,
    /// The router's.
    key: PublicKey,
    engine: String,
}

/// How a router stands.
#[derive(Serialize, Deserialize)]
pub(super) struct Standing {
    pub(super) routes: u64,
    /// How often it has lost a link.
    pub(super) links_lost: usize,
    /// What it dropped, by reason.
    pub(super) drops: BTreeMap<String, u64>,
}

/// One of the processes: told what it is by whoever measures it.
#[derive(Args)]
pub(crate) struct RouterSide {
    /// Stay on this processor
    #[arg(long)]
    pin: usize,
    /// Address to listen on
    #[arg(long)]
    listen: SocketAddr,
    /// What it is
    #[arg(long)]
    part: String,
}

impl RouterSide {
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        match serde_json::from_str(&self.part).context("--part is for the bench itself")? {
            Part::Router { neighbours, max_routes } => self.route(&neighbours, max_routes),
            Part::Reflector { to, seals } => {
                canopy_net::pin_thread(self.pin)?;
                let socket = reflector::open(self.listen)?;
                let (address, engine) = (socket.local_address(), String::new());
                print_line(serde_json::to_string(&Ready { address, key: [0; 32], engine })?)?;
                reflector::reflect(&socket, &to, seals)
            }
        }
    }

    /// Runs a relay until the input ends; each line of it is answered with how the relay stands.
    fn route(&self, neighbours: &[NeighbourOf], max_routes: u32) -> anyhow::Result<ExitCode> {
        let mut relay = RunningRelay::start(&NodeConfig {
            listen: self.listen,
            mode: Mode::Immediate,
            pin: vec![self.pin],
            comtrees: COMTREES.map(|comtree| ComtreeConfig::new(comtree, SITE)).to_vec(),
            max_sessions: 64,
            tables: TableLimits { max_routes, ..TableLimits::default() },
            ..NodeConfig::loopback()
        })?;
        let watch = relay.watch();
        for NeighbourOf { key, remote, site } in neighbours {
            let path = (*remote).into();
            let link = LinkConfig { key: *key, path, thread: 0, calls: false };
            watch.apply(Change::AddLink(link))?;
            for comtree in COMTREES {
                let id = BranchId { comtree, link: *key, thread: 0 };
                let branch = BranchConfig { id, role: BranchRole::Child, site: *site };
                watch.apply(Change::AddBranch(branch))?;
            }
        }
        let engine = relay.engines().first().map_or("", |engine| engine.engine).to_owned();
        let ready = Ready { address: relay.address(), key: relay.key(), engine };
        print_line(serde_json::to_string(&ready)?)?;
        let notices = relay.take_notices().context("the relay has no log")?;
        let mut links_lost = 0;
        let mut tell = || {
            let is_loss = |notice: &Notice| matches!(notice, Notice::LinkDown { .. });
            links_lost += notices.try_iter().filter(is_loss).count();
            print_line(serde_json::to_string(&Standing::of(&watch, links_lost))?)
        };
        for line in std::io::stdin().lines() {
            line?;
            tell()?;
        }
        watch.command(Order::Stop);
        relay.join()?;
        tell()?;
        Ok(ExitCode::SUCCESS)
    }
}

impl Standing {
    fn of(watch: &RelayWatch, links_lost: usize) -> Standing {
        let ThreadStatus { counters, routes, .. } = watch.status();
        let drops = drops_of(&counters).into_iter();
        Standing {
            routes: routes.into(),
            links_lost,
            drops: drops.map(|(reason, count)| (reason.to_owned(), count)).collect(),
        }
    }
}

/// A process that is measured, ended when dropped.
pub(super) struct Server {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
    pub(super) address: SocketAddr,
    pub(super) key: PublicKey,
    /// The router's send engine.
    pub(super) engine: String,
}

impl Server {
    /// Starts a part on a free port of `listen`, where `host` makes it start.
    pub(super) fn start(
        part: &Part,
        (listen, pin): (SocketAddr, usize),
        host: impl FnOnce(&mut Command) -> &mut Command,
    ) -> anyhow::Result<Server> {
        let mut command = server_command()?;
        command.args(["bench", "router-side", "--listen", &listen.to_string()]);
        command.args(["--pin", &pin.to_string(), "--part", &serde_json::to_string(part)?]);
        command.stdin(Stdio::piped());
        let mut child = end_with_parent(host(&mut command))
            .spawn()
            .context("cannot start the process to be measured")?;
        let input = child.stdin.take();
        let output = child.stdout.take().context("the process has no output")?;
        let mut output = BufReader::new(output);
        let mut line = String::new();
        output.read_line(&mut line)?;
        let Ok(Ready { address, key, engine }) = serde_json::from_str(&line) else {
            let _ = child.kill();
            let _ = child.wait();
            bail!("the process to be measured did not say where it listens");
        };
        Ok(Server { child, input, output, address, key, engine })
    }

    /// Asks a router how it stands; what it says is a fifth of a second old at most.
    pub(super) fn standing(&mut self) -> anyhow::Result<Standing> {
        let input = self.input.as_mut().context("the router takes no more questions")?;
        input.write_all(b"\n")?;
        self.read_standing()
    }

    /// Ends a router in order, and returns how it stood at its end.
    pub(super) fn stop(mut self) -> anyhow::Result<Standing> {
        drop(self.input.take());
        self.read_standing()
    }

    fn read_standing(&mut self) -> anyhow::Result<Standing> {
        let mut line = String::new();
        self.output.read_line(&mut line)?;
        serde_json::from_str(&line).context("the router does not say how it stands")
    }

    pub(super) fn process(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Ours, by its handle; it may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
