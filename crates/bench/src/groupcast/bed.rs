//! Where the bench runs: the sender's network namespace, the receivers', and what joins them.
//!
//! The namespaces have no name: nothing of them outlives the process.

use super::cases::{Case, Sink};
use super::count::{Counter, DeviceCounter, DriverCounter, RECEIVED, Receivers, SENT};
use anyhow::Context;
use canopy_engines::{InstallRequest, Namespace, install};
use canopy_output::print_note;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::Command;

/// The discarding device. The kernel's `dummy` is not everywhere, and without a peer an
/// intermediate functional block drops all that is not redirected to it.
const DISCARDING: &str = "sink";
/// An Ethernet address that no device here has.
const NOBODY: &str = "02:00:00:00:00:01";
/// The Ethernet address of the far device.
const FAR: &str = "02:00:00:00:00:02";
/// The first port of receivers that are not there.
const FIRST_PORT: u16 = 20_000;
/// Copies on their way at once: fewer than a processor's backlog takes (`netdev_max_backlog`,
/// 1,000 unless set otherwise), and fewer than a socket holds.
const STEERED_WINDOW: u64 = 512;
const SOCKETS_WINDOW: u64 = 2048;

/// A sender's namespace and where its copies end.
pub(super) struct Bed {
    pub(super) near: Namespace,
    /// The device that the sender sends on.
    pub(super) device: &'static str,
    /// The sender's address.
    pub(super) local: IpAddr,
    /// The receivers.
    pub(super) targets: Vec<SocketAddr>,
    /// Counts copies where they end.
    pub(super) counter: Box<dyn Counter>,
    /// Copies that may be on their way at once.
    pub(super) window: u64,
    /// Why the clone engines are not installed, if they are not.
    pub(super) not_installed: Option<String>,
    _far: Option<Namespace>,
}

impl Bed {
    /// Builds what these cases need; they have one sink. `steer` is the processor that the
    /// receivers' part of the kernel is steered to.
    pub(super) fn build(
        cases: &[Case],
        steer: Option<usize>,
        folder: &Path,
    ) -> anyhow::Result<Bed> {
        let sink = cases[0].sink;
        let most = cases.iter().map(|case| case.n).max().unwrap_or(1);
        let mut bed = match sink {
            Sink::Sockets | Sink::Dropped | Sink::Driver => Bed::over_veth(sink, most, steer),
            Sink::Discard | Sink::Software => Bed::discarding(sink, most),
        }?;
        let request = InstallRequest { device: bed.device, folder, owner: 0, xdp: true };
        let installed = bed.near.run(|| install(&request))?;
        bed.not_installed =
            installed.err().map(|error| format!("it cannot be installed here: {error}"));
        Ok(bed)
    }

    fn over_veth(sink: Sink, most: usize, steer: Option<usize>) -> anyhow::Result<Bed> {
        let (near, far) = (Namespace::new()?, Namespace::new()?);
        Namespace::join(&near, &far)?;
        silence(&near, "near")?;
        take_xdp_frames(&far)?;
        if let Some(processor) = steer {
            let steered = far.steer("far", processor);
            steered.context("receive work cannot be steered; choose --steer off")?;
        }
        let ip = Ipv4Addr::new(10, 77, 0, 2).into();
        far.ip(&format!("link set far address {FAR}"))?;
        // The far kernel drops what is for another hardware address before it looks at anything else.
        // The address is set here, so that no ARP request is sent, which would be counted.
        let to = if sink == Sink::Dropped { NOBODY } else { FAR };
        near.ip(&format!("neigh replace {ip} lladdr {to} dev near nud permanent"))?;
        let (targets, counter, window): (_, Box<dyn Counter>, _) = match sink {
            Sink::Sockets => {
                let receivers = Receivers::open(&far, ip, most)?;
                (receivers.addresses(), Box::new(receivers), SOCKETS_WINDOW)
            }
            Sink::Driver => {
                let counter = DriverCounter::open(&far, "far", FIRST_PORT)?;
                (nobody(ip, most), Box::new(counter), u64::MAX)
            }
            _ => {
                let counter = DeviceCounter::open(&far, "far", RECEIVED, steer.is_some())?;
                (nobody(ip, most), Box::new(counter), u64::MAX)
            }
        };
        let window = if steer.is_some() { STEERED_WINDOW } else { window };
        let local = Ipv4Addr::new(10, 77, 0, 1).into();
        Ok(Bed {
            near,
            device: "near",
            local,
            targets,
            counter,
            window,
            not_installed: None,
            _far: Some(far),
        })
    }

    fn discarding(sink: Sink, most: usize) -> anyhow::Result<Bed> {
        let near = Namespace::new()?;
        let make = |kind: &str| near.ip(&format!("link add {DISCARDING} type {kind}"));
        let is_dummy = make("dummy").is_ok();
        if !is_dummy {
            make("ifb").context("this kernel has no device that discards: dummy or ifb")?;
        }
        silence(&near, DISCARDING)?;
        let ip = IpAddr::from(Ipv4Addr::new(10, 78, 0, 2));
        near.ip(&format!("addr add 10.78.0.1/16 dev {DISCARDING}"))?;
        if sink == Sink::Software {
            // A burst of more segments than the device takes is cut before it gets there.
            near.ip(&format!("link set {DISCARDING} gso_max_segs 1"))?;
        }
        near.ip(&format!("link set {DISCARDING} up"))?;
        near.ip(&format!("neigh replace {ip} lladdr {NOBODY} dev {DISCARDING} nud permanent"))?;
        let column = if is_dummy { SENT } else { RECEIVED };
        let counter = DeviceCounter::open(&near, DISCARDING, column, false)?;
        Ok(Bed {
            near,
            device: DISCARDING,
            local: Ipv4Addr::new(10, 78, 0, 1).into(),
            targets: nobody(ip, most),
            counter: Box::new(counter),
            window: u64::MAX,
            not_installed: None,
            _far: None,
        })
    }
}

/// Virtual devices take XDP frames from their other end only with receive offload on.
fn take_xdp_frames(far: &Namespace) -> anyhow::Result<()> {
    let done = far.run(|| Command::new("ethtool").args(["-K", "far", "gro", "on"]).output())?;
    if done.is_err() {
        print_note("there is no ethtool here, without which veth takes no XDP frames");
    }
    Ok(())
}

/// Receivers that are not there.
fn nobody(ip: IpAddr, count: usize) -> Vec<SocketAddr> {
    (0..count as u16).map(|number| SocketAddr::new(ip, FIRST_PORT + number)).collect()
}

/// Keeps IPv6's own packets off a device whose packets are counted.
fn silence(namespace: &Namespace, device: &str) -> anyhow::Result<()> {
    let path = format!("/proc/sys/net/ipv6/conf/{device}/disable_ipv6");
    let written = namespace.run(|| std::fs::write(&path, "1"))?;
    match written {
        // A kernel without IPv6 is silent.
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        other => other.with_context(|| format!("cannot write {path}")),
    }
}
