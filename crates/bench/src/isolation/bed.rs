//! Hosts of their own for relays, for the world and for whoever floods: network namespaces, joined by
//! virtual Ethernet.

use super::Shared;
use anyhow::{Context, bail};
use canopy_engines::Namespace;
use canopy_net::{KernelDrops, ask_to_end, ask_to_reload, end_with_parent};
use serde_json::Value;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::net::{Ipv4Addr, SocketAddr};
use std::ops::Add;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

/// How long a link may take to come up, and what is wanted behind it to be asked for.
const LINK_TIME: Duration = Duration::from_millis(1500);

/// One relay, or two that are joined; the world's host and the flood's, which reach each of them.
pub(super) struct Bed {
    pub(super) relays: Vec<Relay>,
    pub(super) world: Namespace,
    pub(super) flood: Namespace,
}

/// A relay in its namespace.
pub(super) struct Relay {
    pub(super) host: Namespace,
    child: Child,
    stdout: BufReader<ChildStdout>,
    settings: PathBuf,
    head: String,
    comtrees: [u32; 2],
    key: String,
    port: u16,
}

/// Whose device a relay's namespace has.
#[derive(Clone, Copy)]
pub(super) enum Side {
    World,
    Flood,
    Link,
}

/// Where a relay is, seen from a side; `end` is 1 there and 2 at the relay. The link's ends are the
/// relays: the first is 1.
fn ip(side: Side, relay: usize, end: u8) -> Ipv4Addr {
    let net = match side {
        Side::World => 80 + relay as u8,
        Side::Flood => 90 + relay as u8,
        Side::Link => 100,
    };
    Ipv4Addr::new(10, net, 0, end)
}

impl Bed {
    /// Starts what is needed, with so many data threads, on these processors, and these comtrees.
    pub(super) fn new(
        shared: Shared,
        folder: &Path,
        threads: (u16, &str),
        comtrees: [u32; 2],
    ) -> anyhow::Result<Bed> {
        let make = || {
            Namespace::new().context("the lab needs hosts of its own; run it as root, or with CAP_SYS_ADMIN and CAP_NET_ADMIN")
        };
        let (world, flood) = (make()?, make()?);
        let mut relays: Vec<Relay> = Vec::new();
        for number in 0..shared.relays() {
            let host = make()?;
            for (side, from) in [(Side::World, &world), (Side::Flood, &flood)] {
                connect([from, &host], side, number, [1, 2])?;
            }
            if let Some(first) = relays.first() {
                connect([&first.host, &host], Side::Link, 0, [1, 2])?;
            }
            relays.push(Relay::start(host, folder, number, threads, comtrees)?);
        }
        if let [first, second] = &relays[..] {
            first.join(second, "child", 2)?;
            second.join(first, "parent", 1)?;
            std::thread::sleep(LINK_TIME);
        }
        Ok(Bed { relays, world, flood })
    }

    /// Where a relay is for those on a side.
    pub(super) fn address(&self, side: Side, relay: usize) -> SocketAddr {
        (ip(side, relay, 2), self.relays[relay].port).into()
    }

    /// What the kernel dropped until now, at the relays' hosts.
    pub(super) fn drops(&self) -> anyhow::Result<KernelDrops> {
        let read = |relay: &Relay| relay.host.run(KernelDrops::read);
        let all = self.relays.iter().map(read).collect::<Result<Vec<_>, _>>()?;
        Ok(all.into_iter().fold(KernelDrops::default(), Add::add))
    }

    /// Ends the relays, and returns what each says of what it did.
    pub(super) fn end(self) -> anyhow::Result<Vec<Value>> {
        self.relays.into_iter().map(Relay::end).collect()
    }
}

impl Relay {
    fn start(
        host: Namespace,
        folder: &Path,
        number: usize,
        (threads, pins): (u16, &str),
        comtrees: [u32; 2],
    ) -> anyhow::Result<Relay> {
        let settings = folder.join(format!("relay-{number}.toml"));
        let site = number + 1;
        let head = "[relay]\nlisten = \"0.0.0.0:0\"\nopen = true\ninsecure = true\n[limits]\n\
                    member_up_packets = 0\nmember_up_bits = 0\nsessions_per_ip = 0\n\
                    handshakes_per_ip = 0\nhandshakes_per_prefix = 0\n"
            .to_owned();
        let tables = comtrees.map(|id| format!("[[comtree]]\nid = {id}\nsite = {site}\n"));
        fs::write(&settings, format!("{head}{}", tables.concat()))?;
        let mut command = Command::new(std::env::current_exe()?);
        for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("CANOPY_")) {
            command.env_remove(name);
        }
        command.args(["relay", "--json", "--drain-ms", "0", "--threads", &threads.to_string()]);
        command.args(["--pin", pins, "--settings"]).arg(&settings);
        command.env("CANOPY_LOG", "error").stdin(Stdio::null()).stdout(Stdio::piped());
        let mut child = end_with_parent(host.host(&mut command))
            .spawn()
            .context("cannot start a relay of the lab")?;
        let mut stdout = BufReader::new(child.stdout.take().context("a relay has no output")?);
        let mut line = String::new();
        stdout.read_line(&mut line)?;
        let said: Value = serde_json::from_str(&line).unwrap_or_default();
        let address = said["relay"].as_str().and_then(|text| text.parse::<SocketAddr>().ok());
        let (Some(address), Some(key)) = (address, said["key"].as_str()) else {
            let _ = child.kill();
            bail!("a relay of the lab did not start; what it says above tells why");
        };
        let key = key.to_owned();
        Ok(Relay { host, child, stdout, settings, head, comtrees, key, port: address.port() })
    }

    /// Joins it with another, which is at this end of the link.
    fn join(&self, other: &Relay, role: &str, end: u8) -> anyhow::Result<()> {
        let (site, own_site) = (end, 3 - end);
        let address = SocketAddr::from((ip(Side::Link, 0, end), other.port));
        let mut text = format!(
            "{}[[link]]\nname = \"link\"\nkey = \"{}\"\naddress = \"{address}\"\n",
            self.head, other.key
        );
        for id in self.comtrees {
            text += &format!(
                "[[comtree]]\nid = {id}\nsite = {own_site}\n\
                 branches = [{{ link = \"link\", role = \"{role}\", site = {site} }}]\n"
            );
        }
        fs::write(&self.settings, text)?;
        Ok(ask_to_reload(&self.child)?)
    }

    fn end(mut self) -> anyhow::Result<Value> {
        ask_to_end(&self.child)?;
        let mut said = String::new();
        self.stdout.read_to_string(&mut said)?;
        let last = said.lines().last().context("a relay says nothing of what it did")?;
        Ok(serde_json::from_str::<Value>(last)?["totals"].take())
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        // Ours, by its handle; it may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn connect(hosts: [&Namespace; 2], side: Side, relay: usize, ends: [u8; 2]) -> anyhow::Result<()> {
    let name = match side {
        Side::World => format!("world{relay}"),
        Side::Flood => format!("flood{relay}"),
        // `ip` takes "link" for a word of its own.
        Side::Link => "between".to_owned(),
    };
    let far = hosts[1].path();
    hosts[0].ip(&format!("link add {name} type veth peer name {name} netns {}", far.display()))?;
    for (host, end) in hosts.into_iter().zip(ends) {
        host.ip(&format!("addr add {}/24 dev {name}", ip(side, relay, end)))?;
        host.ip(&format!("link set {name} up"))?;
    }
    Ok(())
}
