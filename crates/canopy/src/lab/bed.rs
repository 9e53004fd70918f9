//! Relays, a controller and the crowd's servers, each in a network namespace, on one network whose cables
//! carry so much and no more.

use super::process::{own_command, spawn};
use crate::operate::ApiClient;
use anyhow::{Context, bail};
use axum::http::Method;
use canopy_api::Budget;
use canopy_bots::{Killed, Seats};
use canopy_engines::Namespace;
use canopy_net::Socket;
use canopy_relay::DEFAULT_WORLD;
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Child, ChildStdout, Command};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The hosts are on 10.90.0.0/24: relays from 1 on, servers from 101 on.
const FIRST_SERVER: u8 = 101;
const CONTROLLER: u8 = 200;
const CROWD: u8 = 201;
/// Nobody has this one's hardware address.
const NOBODY: u8 = 254;
const CHANNEL_PORT: u16 = 4041;
const RELAY_PORT: u16 = 4040;
const API: ([u8; 4], u16) = ([127, 0, 0, 1], 4042);
/// A busy machine is not to be taken for a slow path: what is thinned counts as missing here.
const SETTINGS: &str = "[limits]\npath_budgets = \"off\"\n";
/// Packets a second to a walker. After a pause of the whole machine all walkers publish at once what they
/// did not publish meanwhile.
const DOWN_PACKETS: u64 = 10_000;
/// How long all may take until they are up.
const UP_LIMIT: Duration = Duration::from_secs(30);
const ASK_EVERY: Duration = Duration::from_millis(100);

/// A process on a host. Killed when dropped.
pub(super) struct Process {
    child: Child,
    /// Kept, so that what it says does not fail.
    stdout: BufReader<ChildStdout>,
}

impl Process {
    /// Starts a process on a host, and does not wait until it says something.
    pub(super) fn start(
        mut command: Command,
        host: &Namespace,
        name: &str,
    ) -> anyhow::Result<Process> {
        host.host(&mut command);
        let (child, stdout) = spawn(command, name)?;
        Ok(Process { child, stdout })
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Ours, by its handle; it may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What a controller says when it serves.
#[derive(Deserialize)]
struct Ready {
    key: String,
}

/// The hosts. Dropped in this order, so processes end before their hosts.
pub(super) struct Bed {
    relays: Vec<Option<Process>>,
    controller: Option<Process>,
    hosts: Vec<Namespace>,
    seat: Namespace,
    /// From where walkers ask the controller.
    crowd: Arc<Namespace>,
    /// Where walkers are.
    servers: Arc<Vec<Namespace>>,
    /// Whose processes are killed, of the servers, by their numbers.
    killed: Arc<Mutex<BTreeSet<usize>>>,
    network: Namespace,
    folder: tempfile::TempDir,
    key: String,
    megabits: u32,
}

impl Bed {
    /// Starts a controller and so many relays, each with a cable of so many megabits a second, and waits
    /// until they are joined. So many servers are for the crowd.
    ///
    /// # Errors
    /// This is not root, `ip` or `tc` is not there, or somebody does not come up.
    pub(super) fn start(relays: u8, servers: u8, megabits: u32) -> anyhow::Result<Bed> {
        let network = Namespace::new().context("network namespaces are made by root alone")?;
        network.ip("link add bridge type bridge")?;
        network.ip("link set bridge up")?;
        let attach = |name: &str, number| attach(&network, name, number, megabits);
        let hosts = (1..=relays).map(|number| attach(&cable(number), number));
        let hosts = hosts.collect::<anyhow::Result<Vec<_>>>()?;
        let servers = (0..servers).map(|of| attach(&server_cable(of), FIRST_SERVER + of));
        let servers = servers.collect::<anyhow::Result<Vec<_>>>()?;
        let (seat, crowd) = (attach("controller", CONTROLLER)?, attach("crowd", CROWD)?);
        let folder = tempfile::Builder::new().prefix("canopy-faults-").tempdir()?;
        std::fs::write(folder.path().join("relay.toml"), SETTINGS)?;
        let mut bed = Bed {
            relays: hosts.iter().map(|_| None).collect(),
            controller: None,
            hosts,
            seat,
            crowd: Arc::new(crowd),
            servers: Arc::new(servers),
            killed: Arc::default(),
            network,
            folder,
            key: String::new(),
            megabits,
        };
        bed.start_controller()?;
        for relay in 0..bed.relays.len() {
            bed.start_relay(relay)?;
        }
        bed.until_whole()?;
        let budget = Budget { down_packets: DOWN_PACKETS, ..Budget::default() };
        let world = json!({ "name": DEFAULT_WORLD, "budget": budget });
        bed.ask(Method::POST, "/v1/worlds", world.to_string())?;
        Ok(bed)
    }

    /// Where relays and participants reach the controller, and by which key.
    pub(super) fn controller(&self) -> (SocketAddr, &str) {
        (channel(), &self.key)
    }

    /// The host from which walkers ask the controller.
    pub(super) fn crowd(&self) -> Arc<Namespace> {
        Arc::clone(&self.crowd)
    }

    /// The hosts of the relays.
    pub(super) fn hosts(&self) -> &[Namespace] {
        &self.hosts
    }

    /// Walkers are on the servers in turn.
    pub(super) fn seats(&self) -> Seats {
        let servers = Arc::clone(&self.servers);
        Seats(Arc::new(move |walker, address, options| {
            servers[place(walker, servers.len())].run(|| Socket::bind(address, options))?
        }))
    }

    /// Walkers' processes are the servers'.
    pub(super) fn killed(&self) -> Killed {
        let (servers, killed) = (self.servers.len(), Arc::clone(&self.killed));
        let is_killed = move |walker| lock(&killed).contains(&place(walker, servers));
        Killed(Arc::new(is_killed))
    }

    /// Kills a server's process: its sockets are closed, and nobody is told.
    pub(super) fn kill_server(&self, server: usize) {
        lock(&self.killed).insert(server);
    }

    /// Starts it again. It knows nothing.
    pub(super) fn start_server(&self, server: usize) {
        lock(&self.killed).remove(&server);
    }

    /// The server that a walker is on.
    pub(super) fn server_of(&self, walker: u32) -> usize {
        place(walker, self.servers.len())
    }

    pub(super) fn kill_relay(&mut self, relay: usize) {
        self.relays[relay] = None;
    }

    pub(super) fn kill_controller(&mut self) {
        self.controller = None;
    }

    /// Starts a relay, which may have run before.
    pub(super) fn start_relay(&mut self, relay: usize) -> anyhow::Result<()> {
        let number = relay as u8 + 1;
        let key = self.folder.path().join(format!("{relay}.key"));
        let mut command = own_command()?;
        command
            .args(["relay", "--json", "--threads", "1"])
            .args(["--listen", &format!("0.0.0.0:{RELAY_PORT}")])
            .args(["--native", &format!("{}:{RELAY_PORT}", ip(number))])
            .args(["--name", &name(relay), "--controller", &channel().to_string()])
            .args(["--controller-key", &self.key])
            .args(["--uplink", &(u64::from(self.megabits) * 1_000_000).to_string()])
            .arg("--settings")
            .arg(self.folder.path().join("relay.toml"))
            .arg("--key")
            .arg(key);
        let (process, _) = started(command, &self.hosts[relay], &name(relay))?;
        self.relays[relay] = Some(process);
        Ok(())
    }

    /// Starts the controller, which may have run before.
    pub(super) fn start_controller(&mut self) -> anyhow::Result<()> {
        let mut command = own_command()?;
        command
            .args(["controller", "--json", "--open", "--open-relays"])
            .args(["--listen", &channel().to_string(), "--api", &SocketAddr::from(API).to_string()])
            .arg("--dir")
            .arg(self.folder.path());
        let (process, line) = started(command, &self.seat, "controller")?;
        let ready: Ready = serde_json::from_str(&line).context("the controller did not start")?;
        self.key = ready.key;
        self.controller = Some(process);
        Ok(())
    }

    /// Cuts what two relays send each other, or ends the cut. Nobody is told: frames go astray.
    pub(super) fn cut(&self, ends: [usize; 2], is_cut: bool) -> anyhow::Result<()> {
        for [near, far] in [ends, [ends[1], ends[0]]] {
            let far = far as u8 + 1;
            let to = hardware(if is_cut { NOBODY } else { far });
            let words = format!("neigh replace {} lladdr {to} dev net nud permanent", ip(far));
            self.hosts[near].ip(&words)?;
        }
        Ok(())
    }

    /// Pulls the cable of a relay's host, or plugs it in again. Nobody is told, and the host answers nothing.
    pub(super) fn unplug(&self, relay: usize, is_unplugged: bool) -> anyhow::Result<()> {
        self.unplug_cable(&cable(relay as u8 + 1), is_unplugged)
    }

    /// The same of a server's host.
    pub(super) fn unplug_server(&self, server: usize, is_unplugged: bool) -> anyhow::Result<()> {
        self.unplug_cable(&server_cable(server as u8), is_unplugged)
    }

    fn unplug_cable(&self, cable: &str, is_unplugged: bool) -> anyhow::Result<()> {
        let state = if is_unplugged { "down" } else { "up" };
        Ok(self.network.ip(&format!("link set {cable} {state}"))?)
    }

    /// Begins to move the world to another root, without loss.
    pub(super) fn begin_move(&self, root: usize) -> anyhow::Result<()> {
        let path = format!("/v1/worlds/{DEFAULT_WORLD}/move?root={}", name(root));
        let began = Instant::now();
        // It may be on its way to another tree already, as links are exchanged when relays have measured each other.
        while let Err(why) = self.ask(Method::POST, &path, String::new()) {
            if began.elapsed() > UP_LIMIT {
                return Err(why);
            }
            std::thread::sleep(ASK_EVERY);
        }
        Ok(())
    }

    /// Has a relay take nobody new, and its members and trees go to others; or ends that.
    pub(super) fn drain(&self, relay: usize, drains: bool) -> anyhow::Result<()> {
        let deed = if drains { "drain" } else { "undrain" };
        self.ask(Method::POST, &format!("/v1/relays/{}/{deed}", name(relay)), String::new())?;
        Ok(())
    }

    /// The relays that have members.
    pub(super) fn serving(&self) -> anyhow::Result<Vec<usize>> {
        let told = self.ask(Method::GET, "/v1/relays", String::new())?;
        let relays = told["relays"].as_array().into_iter().flatten();
        let serving = relays.filter(|relay| relay["members"].as_u64() > Some(0));
        Ok(serving.filter_map(|relay| numbered(&relay["name"])).collect())
    }

    /// The tree of the world: of each relay but the root the one above it.
    pub(super) fn tree(&self) -> anyhow::Result<Vec<[usize; 2]>> {
        let world = self.ask(Method::GET, &format!("/v1/worlds/{DEFAULT_WORLD}"), String::new())?;
        let hops = world["comtrees"][0]["tree"].as_array().cloned().unwrap_or_default();
        let ends = |hop: &Value| Some([numbered(&hop["relay"])?, numbered(&hop["above"])?]);
        Ok(hops.iter().filter_map(ends).collect())
    }

    /// Waits until all relays are up and all links usable.
    pub(super) fn until_whole(&self) -> anyhow::Result<()> {
        let began = Instant::now();
        while !self.is_whole() {
            if began.elapsed() > UP_LIMIT {
                bail!("relays and links are not all up after {} s", UP_LIMIT.as_secs());
            }
            std::thread::sleep(ASK_EVERY);
        }
        Ok(())
    }

    fn is_whole(&self) -> bool {
        let get = |path| self.ask(Method::GET, path, String::new()).ok();
        let Some((relays, links)) = get("/v1/relays").zip(get("/v1/links")) else { return false };
        let all = |list: &Value, holds: &dyn Fn(&Value) -> bool| {
            list.as_array().is_some_and(|list| !list.is_empty() && list.iter().all(holds))
        };
        relays["relays"].as_array().map(Vec::len) == Some(self.relays.len())
            && all(&relays["relays"], &|relay| {
                relay["state"] == "up" || relay["state"] == "draining"
            })
            && all(&links["links"], &|link| link["usable"] == true)
    }

    /// What the API answers, which is asked from the controller's host; null if it has nothing to say.
    pub(super) fn ask(&self, method: Method, path: &str, body: String) -> anyhow::Result<Value> {
        let folder = self.folder.path();
        self.seat.run(|| {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(async {
                let api = ApiClient::of(API.into(), folder)?;
                let answer = api.ask(method, path, body).await?;
                Ok(if answer.is_empty() { Value::Null } else { serde_json::from_str(&answer)? })
            })
        })?
    }
}

fn lock(killed: &Mutex<BTreeSet<usize>>) -> MutexGuard<'_, BTreeSet<usize>> {
    killed.lock().unwrap_or_else(PoisonError::into_inner)
}

/// On which of so many servers a walker is.
fn place(walker: u32, servers: usize) -> usize {
    walker as usize % servers
}

/// A relay's name.
pub(super) fn name(relay: usize) -> String {
    format!("relay-{}", relay + 1)
}

/// The relay of that name.
pub(super) fn numbered(name: &Value) -> Option<usize> {
    name.as_str()?.strip_prefix("relay-")?.parse::<usize>().ok()?.checked_sub(1)
}

pub(super) fn ip(number: u8) -> String {
    format!("10.90.0.{number}")
}

/// The bridge's end of a relay's cable.
fn cable(number: u8) -> String {
    format!("r{number}")
}

/// The same of a server's, which are counted from 0.
fn server_cable(number: u8) -> String {
    format!("s{number}")
}

fn hardware(number: u8) -> String {
    format!("02:00:00:00:00:{number:02x}")
}

fn channel() -> SocketAddr {
    ([10, 90, 0, CONTROLLER], CHANNEL_PORT).into()
}

/// Starts a process on a host, and waits for the first line that it prints.
fn started(command: Command, host: &Namespace, name: &str) -> anyhow::Result<(Process, String)> {
    let mut process = Process::start(command, host, name)?;
    let mut line = String::new();
    process.stdout.read_line(&mut line)?;
    Ok((process, line))
}

/// A host on the network, whose device is `net`. Both ends of its cable send no faster than so many
/// megabits a second.
fn attach(network: &Namespace, name: &str, number: u8, megabits: u32) -> anyhow::Result<Namespace> {
    let host = Namespace::new()?;
    let far = host.path();
    let far = far.display();
    network.ip(&format!("link add {name} type veth peer name net netns {far}"))?;
    network.ip(&format!("link set {name} master bridge up"))?;
    host.ip(&format!("addr add {}/24 dev net", ip(number)))?;
    host.ip(&format!("link set net address {}", hardware(number)))?;
    host.ip("link set net up")?;
    for (end, device) in [(network, name), (&host, "net")] {
        let mut command = Command::new("tc");
        command.args(["qdisc", "add", "dev", device, "root", "tbf"]);
        command.args(["rate", &format!("{megabits}mbit"), "burst", "64kb", "latency", "50ms"]);
        let output = end.host(&mut command).output().context("tc: install Debian's iproute2")?;
        if !output.status.success() {
            bail!("tc: {}", String::from_utf8_lossy(&output.stderr).trim());
        }
    }
    Ok(host)
}
