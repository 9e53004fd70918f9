//! FRR's routers on the relays' hosts: OSPF and BFD, over a tunnel for each link between two relays.

use super::super::bed::{Bed, Process, ip, name};
use anyhow::{Context, bail};
use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

/// Where FRR's package has its daemons.
const DAEMONS: &str = "/usr/lib/frr";
/// BFD says that it is there so often, milliseconds, or a quarter earlier, and misses four before a link
/// counts as down: as relays do.
const BFD_EVERY_MS: u32 = 50;
const BFD_MISSES: u32 = 4;
const TUNNEL_PORT: u16 = 4789;
/// The socket at which zebra takes the other daemons' routes.
const API: &str = "zebra.api";
const START_LIMIT: Duration = Duration::from_secs(10);

/// The daemons, and what they keep. They end with this.
pub(super) struct Routers {
    _daemons: Vec<Process>,
    _folder: tempfile::TempDir,
}

/// Whether FRR is there.
///
/// # Errors
/// It is not, and what brings it.
pub(super) fn check() -> anyhow::Result<()> {
    for daemon in ["zebra", "ospfd", "bfdd"] {
        let path = Path::new(DAEMONS).join(daemon);
        if !path.exists() {
            bail!("{} is missing: install Debian's frr, version 8 or later", path.display());
        }
    }
    Ok(())
}

/// The address that OSPF tells of a relay's host.
pub(super) fn address(relay: usize) -> String {
    format!("10.91.0.{}", relay + 1)
}

/// The device of a host that leads to another one.
fn device(to: usize) -> String {
    format!("to{}", to + 1)
}

impl Routers {
    /// Starts three daemons on the host of each relay.
    ///
    /// # Errors
    /// A tunnel cannot be made, or a daemon not started.
    pub(super) fn start(bed: &Bed, links: &[[usize; 2]]) -> anyhow::Result<Routers> {
        let root = tempfile::Builder::new().prefix("canopy-routers-").tempdir()?;
        give_to_frr(root.path())?;
        let mut daemons = Vec::new();
        for (link, [one, other]) in (1..).zip(links) {
            for (end, [near, far]) in [[*one, *other], [*other, *one]].into_iter().enumerate() {
                tunnel(bed, link, end, near, far).with_context(|| {
                    format!("a tunnel (vxlan) between {} and {}", name(near), name(far))
                })?;
            }
        }
        for (relay, host) in bed.hosts().iter().enumerate() {
            host.ip(&format!("addr add {}/32 dev lo", address(relay)))?;
            let ends = links.iter().filter(|ends| ends.contains(&relay));
            let others = ends.map(|[one, other]| if *one == relay { *other } else { *one });
            let folder = root.path().join(name(relay));
            std::fs::create_dir(&folder)?;
            give_to_frr(&folder)?;
            let settings = [
                ("zebra", "ip forwarding\n".to_owned()),
                ("bfdd", bfd()),
                ("ospfd", ospf(relay, &others.collect::<Vec<_>>())),
            ];
            for (daemon, settings) in settings {
                let started = start(bed, relay, daemon, &folder, &settings);
                daemons.push(started.with_context(|| format!("{daemon} of {}", name(relay)))?);
                // The others call it when they start, and if it is not there only ten seconds later.
                until_there(&folder.join(API))?;
            }
        }
        Ok(Routers { _daemons: daemons, _folder: root })
    }

    /// Whether a host sends to another one directly.
    ///
    /// # Errors
    /// `ip` cannot be run.
    pub(super) fn is_direct(&self, bed: &Bed, from: usize, to: usize) -> anyhow::Result<bool> {
        let mut command = Command::new("ip");
        command.args(["route", "get", &address(to)]);
        let output = bed.hosts()[from].host(&mut command).output()?;
        let route = String::from_utf8_lossy(&output.stdout).into_owned();
        Ok(route.split_whitespace().any(|word| word == device(to)))
    }
}

/// One end of a tunnel, which has the addresses 10.92.L.0 and 10.92.L.1.
fn tunnel(bed: &Bed, link: u32, end: usize, near: usize, far: usize) -> anyhow::Result<()> {
    let (host, device) = (&bed.hosts()[near], device(far));
    let [own, other] = [near, far].map(|relay| ip(relay as u8 + 1));
    host.ip(&format!(
        "link add {device} type vxlan id {link} local {own} remote {other} dstport {TUNNEL_PORT}"
    ))?;
    host.ip(&format!("addr add 10.92.{link}.{end}/31 dev {device}"))?;
    host.ip(&format!("link set {device} up"))?;
    Ok(())
}

fn bfd() -> String {
    format!(
        "bfd\n profile cut\n  transmit-interval {BFD_EVERY_MS}\n  receive-interval {BFD_EVERY_MS}\n  \
         detect-multiplier {BFD_MISSES}\n exit\nexit\n"
    )
}

fn ospf(relay: usize, others: &[usize]) -> String {
    let mut text = "interface lo\n ip ospf area 0\nexit\n".to_owned();
    for other in others {
        // Writing to a string cannot fail.
        let _ = write!(
            text,
            "interface {}\n ip ospf area 0\n ip ospf network point-to-point\n ip ospf hello-interval 1\n \
             ip ospf dead-interval 4\n ip ospf bfd\n ip ospf bfd profile cut\nexit\n",
            device(*other)
        );
    }
    text + &format!("router ospf\n ospf router-id {}\nexit\n", address(relay))
}

fn until_there(file: &Path) -> anyhow::Result<()> {
    let began = Instant::now();
    while !file.exists() {
        if began.elapsed() > START_LIMIT {
            bail!("zebra has not made {} after {} s", file.display(), START_LIMIT.as_secs());
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

/// The daemons are root's no more once they have started.
fn give_to_frr(folder: &Path) -> anyhow::Result<()> {
    let output = Command::new("chown").arg("frr:frr").arg(folder).output()?;
    if !output.status.success() {
        bail!("chown: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(())
}

fn start(
    bed: &Bed,
    relay: usize,
    daemon: &str,
    folder: &Path,
    settings: &str,
) -> anyhow::Result<Process> {
    let file = |ending: &str| folder.join(format!("{daemon}.{ending}"));
    std::fs::write(file("conf"), settings)?;
    let mut command = Command::new(Path::new(DAEMONS).join(daemon));
    command
        .args(["-P", "0", "--vty_socket"])
        .arg(folder)
        .arg("-z")
        .arg(folder.join(API))
        .arg("-f")
        .arg(file("conf"))
        .arg("-i")
        .arg(file("pid"))
        .arg("--log")
        .arg(format!("file:{}", file("log").display()));
    if daemon == "bfdd" {
        command.arg("--bfdctl").arg(folder.join("bfdd.sock"));
    }
    Process::start(command, &bed.hosts()[relay], &format!("{daemon}-{}", relay + 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_router_speaks_ospf_and_bfd_on_every_link() {
        let text = ospf(0, &[1, 4]);
        assert_eq!(text.matches("ip ospf bfd profile cut").count(), 2);
        assert!(text.contains("interface to5\n") && text.contains("router-id 10.91.0.1\n"));
        assert!(bfd().contains("transmit-interval 50\n"));
    }
}
