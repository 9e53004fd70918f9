//! `canopy doctor`: whether a relay with these settings would do well on this host.

use crate::output::print_line;
use crate::settings::{RelayArgs, RelaySettings, key};
use crate::trust;
use canopy_client::RelayKey;
use canopy_engines::{Uring, current_user};
use canopy_net::{Feature, KernelDrops, SEND_BUFFER, Socket, SocketOptions};
use canopy_node::{Command, EngineInUse, NodeConfig, RunningRelay};
use canopy_wire::Lane;
use clap::Args;
use serde::Serialize;
use std::fs;
use std::io::{self, ErrorKind};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::ExitCode;
use std::thread::available_parallelism;
use std::time::{Duration, SystemTime};

/// UDP and IPv6 around a datagram: with them, the longest must fit the MTU.
const HEADERS: u64 = 8 + 40;
/// A clock may be this much before the time at which the binary was written: the machine that wrote it
/// may have had another.
const CLOCK_ALLOWANCE: Duration = Duration::from_secs(24 * 3600);

/// Files of a data thread beside its sockets, and of the rest of a relay.
const FILES_OF_A_THREAD: u64 = 8;
const OTHER_FILES: u64 = 64;

/// Looks at this host as a relay with the same settings would find it: its ports, its buffers, its
/// send engines, its kernel, its clocks. Starts a relay for a moment and stops it. The exit status is 1 if it
/// would not run; what would only make it slower or lossier is a warning, each with its remedy.
#[derive(Args)]
pub(crate) struct DoctorCommand {
    /// Print it as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    relay: RelayArgs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
enum Outcome {
    Ok,
    Warning,
    Failed,
}

#[derive(Debug, Serialize)]
struct Check {
    check: &'static str,
    outcome: Outcome,
    found: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    remedy: Option<String>,
}

impl Check {
    fn ok(check: &'static str, found: impl Into<String>) -> Check {
        Check { check, outcome: Outcome::Ok, found: found.into(), remedy: None }
    }

    fn bad(
        check: &'static str,
        outcome: Outcome,
        found: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Check {
        Check { check, outcome, found: found.into(), remedy: Some(remedy.into()) }
    }

    fn warning(check: &'static str, found: impl Into<String>, remedy: impl Into<String>) -> Check {
        Check::bad(check, Outcome::Warning, found, remedy)
    }
}

impl DoctorCommand {
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        let checks = checks(RelaySettings::resolve(self.relay, "off"));
        let worst = checks.iter().map(|check| check.outcome).max().unwrap_or(Outcome::Ok);
        if self.json {
            print_line(serde_json::json!({ "outcome": worst, "checks": checks }))?;
        } else {
            for check in &checks {
                print_line(in_words(check))?;
            }
        }
        Ok(if worst == Outcome::Failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
    }
}

fn in_words(check: &Check) -> String {
    let Check { check, outcome, found, remedy } = check;
    let outcome = match outcome {
        Outcome::Ok => "ok",
        Outcome::Warning => "warning",
        Outcome::Failed => "failed",
    };
    let line = format!("{outcome:<8} {check:<15} {found}");
    remedy.iter().fold(line, |line, remedy| format!("{line}\n{:25}{remedy}", ""))
}

fn checks(settings: anyhow::Result<RelaySettings>) -> Vec<Check> {
    let mut checks = Vec::new();
    match settings {
        Ok(settings) => {
            checks.push(Check::ok("settings", settings.to_string()));
            for warning in &settings.warnings {
                checks.push(Check::warning("settings", warning, "take it out, or change it"));
            }
            checks.push(relay_key(settings.key_file(), settings.node.listen));
            checks.push(trusted_keys(settings.trust.as_deref(), settings.node.listen));
            checks.extend(relay(&settings.node));
            checks.extend(devices(Path::new("/sys/class/net"), settings.node.max_datagram));
            checks.extend(page("metrics", settings.metrics));
            checks.extend(page("console", settings.console));
            checks.push(processors(usize::from(settings.node.threads)));
            checks.push(open_files(canopy_net::open_files(), u64::from(settings.node.threads)));
        }
        Err(error) => {
            let remedy = "the message names the place and what would do";
            checks.push(Check::bad("settings", Outcome::Failed, format!("{error:#}"), remedy));
        }
    }
    checks.push(send_buffer(number_in("/proc/sys/net/core/wmem_max"), current_user() == 0));
    checks.push(kernel_drops(KernelDrops::read()));
    checks.extend(kernel_features());
    checks.extend(clock_source());
    checks.push(wall_clock(SystemTime::now(), written()));
    checks.push(clock_sync(canopy_net::is_clock_synchronised()));
    checks.push(ciphers());
    checks
}

/// Whether clients know the relay again after a restart.
fn relay_key(file: Option<&Path>, listen: SocketAddr) -> Check {
    const CHECK: &str = "relay key";
    let Some(file) = file else {
        let found = "another at each start";
        return if listen.ip().is_loopback() {
            Check::ok(CHECK, found)
        } else {
            let remedy = "--key FILE: clients on other machines know the relay by its key";
            Check::warning(CHECK, found, remedy)
        };
    };
    let shown = file.display();
    match key::load(file) {
        Ok(None) => Check::ok(CHECK, format!("{shown} will be made")),
        Err(error) => Check::bad(CHECK, Outcome::Failed, format!("{error:#}"), "name another file"),
        Ok(Some(identity)) => {
            let mode = fs::metadata(file).map_or(0, |file| file.permissions().mode());
            if mode & 0o077 == 0 {
                return Check::ok(CHECK, RelayKey::new(*identity.public()).to_string());
            }
            let found = format!("{shown} can be read by others, who could pose as the relay");
            Check::warning(CHECK, found, format!("chmod 600 {shown}"))
        }
    }
}

/// Whose tokens the relay would take.
fn trusted_keys(file: Option<&Path>, listen: SocketAddr) -> Check {
    const CHECK: &str = "trusted keys";
    match file.map(trust::read) {
        None if listen.ip().is_loopback() => Check::ok(CHECK, "none: whoever comes is let in"),
        None => Check::warning(
            CHECK,
            "none: whoever comes is let in, from other machines too",
            "--trust FILE: the keys whose tokens let in (docs/tokens.md)",
        ),
        Some(Ok(trust)) => {
            let (keys, revoked) = (trust.keys.len(), trust.revoked.len());
            Check::ok(CHECK, format!("{keys} keys, {revoked} tokens revoked"))
        }
        Some(Err(error)) => {
            let remedy = "docs/tokens.md describes the file";
            Check::bad(CHECK, Outcome::Failed, format!("{error:#}"), remedy)
        }
    }
}

/// What starting a relay shows.
fn relay(config: &NodeConfig) -> Vec<Check> {
    let relay = match RunningRelay::start(config) {
        Ok(relay) => relay,
        Err(error) => return vec![relay_failed(config.listen, &error)],
    };
    let mut checks = vec![Check::ok("listen", relay.address().to_string())];
    for EngineInUse { engine, threads, why } in relay.engines() {
        checks.push(Check::ok("send engine", format!("{engine} on {threads} threads: {why}")));
    }
    checks.push(match relay.small_receive_buffer() {
        None => Check::ok("receive buffer", format!("{} bytes", config.receive_buffer)),
        Some((granted, asked)) => Check::warning(
            "receive buffer",
            format!("{granted} bytes of {asked}: what comes at once may be lost"),
            format!("sysctl net.core.rmem_max={asked}"),
        ),
    });
    checks.push(match relay.blind_to_neighbours() {
        None => {
            Check::ok("neighbours", "the kernel tells who does not answer on this host's links")
        }
        Some(error) => Check::warning(
            "neighbours",
            format!("the kernel does not tell who does not answer: {error}"),
            "allow netlink sockets (AF_NETLINK) where a sandbox forbids them",
        ),
    });
    relay.watch().command(Command::Stop);
    if let Err(error) = relay.join() {
        checks.push(relay_failed(config.listen, &error));
    }
    checks
}

fn relay_failed(listen: SocketAddr, error: &anyhow::Error) -> Check {
    let kinds = error.chain().filter_map(|cause| cause.downcast_ref::<io::Error>());
    let is_taken = kinds.map(io::Error::kind).any(|kind| kind == ErrorKind::AddrInUse);
    let remedy = if is_taken {
        format!("if a relay of yours serves {listen} already, try --listen with port 0 here")
    } else {
        "the message says what would do".to_owned()
    };
    Check::bad("listen", Outcome::Failed, format!("{error:#}"), remedy)
}

/// A page that the relay would serve.
fn page(check: &'static str, address: Option<SocketAddr>) -> Option<Check> {
    let address = address?;
    Some(match TcpListener::bind(address) {
        Ok(_) => Check::ok(check, address.to_string()),
        Err(error) => Check::bad(
            check,
            Outcome::Failed,
            format!("{address}: {error}"),
            format!("choose another address with --{check}"),
        ),
    })
}

fn processors(threads: usize) -> Check {
    let processors = available_parallelism().map_or(1, usize::from);
    let found = format!("{processors} processors for {threads} data threads");
    if threads <= processors {
        return Check::ok("processors", found);
    }
    let remedy = format!("--threads {processors}: more data threads than that wait for each other");
    Check::warning("processors", found, remedy)
}

/// Each data thread has a socket for each lane and one for strangers, and a few more files; the rest has
/// some for pages, a controller and logs.
fn open_files(most: u64, threads: u64) -> Check {
    let needed = OTHER_FILES + threads * (u64::from(Lane::COUNT) + 1 + FILES_OF_A_THREAD);
    let found = format!("{most} may be open, {needed} are needed for {threads} data threads");
    if most >= needed {
        return Check::ok("open files", found);
    }
    let remedy = format!("ulimit -n {needed}, LimitNOFILE={needed} in a unit, or fewer --threads");
    Check::bad("open files", Outcome::Failed, found, remedy)
}

/// What makes a relay fast; without any of it, it runs.
fn kernel_features() -> Vec<Check> {
    let mut checks = match canopy_net::socket_features() {
        Ok(features) => features.into_iter().map(kernel_feature).collect(),
        Err(error) => {
            let remedy = "let this process have UDP sockets on 127.0.0.1";
            vec![Check::warning("kernel features", error.to_string(), remedy)]
        }
    };
    let here = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let socket = Socket::bind(here, &SocketOptions::default());
    checks.push(match socket.and_then(|socket| Uring::new(&socket)) {
        Ok(_) => Check::ok("io_uring", "many sends in one system call, for --engine uring"),
        Err(error) => {
            let remedy =
                "none is needed unless you want --engine uring; the message says what would do";
            Check {
                outcome: Outcome::Ok,
                ..Check::warning("io_uring", format!("{error:#}"), remedy)
            }
        }
    });
    checks
}

fn kernel_feature(feature: Feature) -> Check {
    let Feature { name, good_for, since, tried } = feature;
    match tried {
        Ok(()) => Check::ok(name, good_for),
        Err(error) => Check::warning(
            name,
            format!("not here, so there is no way that {good_for}: {error}"),
            format!("use Linux {since} or newer, and a sandbox that lets setsockopt pass"),
        ),
    }
}

fn send_buffer(most: Option<u64>, is_root: bool) -> Check {
    match most.filter(|most| *most < SEND_BUFFER as u64 && !is_root) {
        None => Check::ok("send buffer", format!("{SEND_BUFFER} bytes can be had")),
        Some(most) => Check::warning(
            "send buffer",
            format!("{most} bytes of {SEND_BUFFER}: a few receivers that do not answer fill it"),
            format!("sysctl net.core.wmem_max={SEND_BUFFER}"),
        ),
    }
}

/// What this host has dropped since its start, before any socket was looked for.
fn kernel_drops(drops: KernelDrops) -> Check {
    let KernelDrops { backlog, devices, receive_buffers } = drops;
    let found = format!(
        "since the system's start: {backlog} by processors' queues (/proc/net/softnet_stat), \
         {devices} by devices (/proc/net/dev), {receive_buffers} at full receive buffers \
         (/proc/net/snmp)"
    );
    match drops.remedy() {
        None => Check::ok("kernel drops", found),
        Some(remedy) => Check::warning("kernel drops", found, remedy),
    }
}

/// Devices whose packets are shorter than the relay's longest datagram.
fn devices(folder: &Path, max_datagram: u16) -> Vec<Check> {
    let longest = u64::from(max_datagram) + HEADERS;
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let mut checks: Vec<Check> = entries
        .flatten()
        .filter_map(|entry| {
            let (path, name) = (entry.path(), entry.file_name());
            let is_up = fs::read_to_string(path.join("operstate")).ok()?.trim() != "down";
            let mtu = number_in(path.join("mtu"))?;
            let name = name.to_string_lossy().into_owned();
            (is_up && mtu < longest).then(|| {
                Check::warning(
                    "mtu",
                    format!("{name} has an MTU of {mtu}: longer datagrams travel in fragments"),
                    format!("ip link set {name} mtu {longest}, or a shorter --max-datagram"),
                )
            })
        })
        .collect();
    if checks.is_empty() {
        checks.push(Check::ok("mtu", format!("at least {longest} on every device")));
    }
    checks
}

/// The clock that every turn reads, some of them several times.
fn clock_source() -> Option<Check> {
    let folder = "/sys/devices/system/clocksource/clocksource0";
    let source = fs::read_to_string(format!("{folder}/current_clocksource")).ok()?;
    let source = source.trim();
    Some(if ["acpi_pm", "hpet", "jiffies"].contains(&source) {
        let remedy = format!("choose another of {folder}/available_clocksource, such as tsc");
        Check::warning("clock", format!("{source}, which takes microseconds to read"), remedy)
    } else {
        Check::ok("clock", source)
    })
}

/// When this binary was written.
fn written() -> Option<SystemTime> {
    fs::metadata(std::env::current_exe().ok()?).ok()?.modified().ok()
}

/// Tokens begin and end by the clock on the wall.
fn wall_clock(now: SystemTime, written: Option<SystemTime>) -> Check {
    if written.is_some_and(|written| now + CLOCK_ALLOWANCE < written) {
        let found = "the time of day is before this binary was written";
        return Check::warning("time of day", found, "set the clock, and keep it set by NTP");
    }
    Check::ok("time of day", "plausible")
}

/// Whether something keeps it right: tokens, leases and logs of several hosts go by it.
fn clock_sync(is_synchronised: io::Result<bool>) -> Check {
    const CHECK: &str = "clock sync";
    const REMEDY: &str = "run chronyd or systemd-timesyncd (timedatectl set-ntp true), here or, in a \
                          container, on its host";
    match is_synchronised {
        Ok(true) => Check::ok(CHECK, "the kernel says that its clock is kept right"),
        Ok(false) => {
            let found = "nothing keeps the clock right, by which tokens and leases begin and end";
            Check::warning(CHECK, found, REMEDY)
        }
        Err(error) => Check::warning(CHECK, format!("the kernel does not tell: {error}"), REMEDY),
    }
}

fn ciphers() -> Check {
    if canopy_net::has_aes() {
        return Check::ok("processor", "it has instructions for AES");
    }
    let remedy = "sealing with ChaCha20-Poly1305 costs about twice as much; a virtual machine may be hiding them";
    Check::warning("processor", "it has no instructions for AES", remedy)
}

fn number_in(path: impl AsRef<Path>) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcomes(checks: &[Check], name: &str) -> Vec<Outcome> {
        checks.iter().filter(|check| check.check == name).map(|check| check.outcome).collect()
    }

    #[test]
    fn what_is_short_has_a_remedy() {
        assert_eq!(send_buffer(Some(SEND_BUFFER as u64), false).outcome, Outcome::Ok);
        assert_eq!(send_buffer(Some(212_992), true).outcome, Outcome::Ok, "root has it by force");
        let short = send_buffer(Some(212_992), false);
        assert!(in_words(&short).contains("sysctl net.core.wmem_max=2097152"), "{short:?}");
        assert_eq!(processors(1).outcome, Outcome::Ok);
        assert_eq!(processors(10_000).outcome, Outcome::Warning);
        let later = SystemTime::now() + 2 * CLOCK_ALLOWANCE;
        assert_eq!(wall_clock(SystemTime::now(), Some(later)).outcome, Outcome::Warning);
        assert_eq!(wall_clock(later, Some(SystemTime::now())).outcome, Outcome::Ok);
        assert_eq!(open_files(1024, 8).outcome, Outcome::Ok);
        let few = open_files(1024, 64);
        assert!(
            few.outcome == Outcome::Failed && in_words(&few).contains("ulimit -n 1152"),
            "{few:?}"
        );
        assert_eq!(clock_sync(Ok(true)).outcome, Outcome::Ok);
        for unsure in [Ok(false), Err(ErrorKind::PermissionDenied.into())] {
            let found = clock_sync(unsure);
            assert!(found.outcome == Outcome::Warning && in_words(&found).contains("chronyd"));
        }
        let feature = |tried| Feature { name: "UDP_GRO", good_for: "x", since: "5.0", tried };
        assert_eq!(kernel_feature(feature(Ok(()))).outcome, Outcome::Ok);
        let missing = kernel_feature(feature(Err(ErrorKind::Unsupported.into())));
        assert!(missing.outcome == Outcome::Warning && in_words(&missing).contains("Linux 5.0"));
    }

    #[test]
    fn keys_that_others_can_read_or_that_are_none_have_a_remedy() {
        let folder = tempfile::tempdir().unwrap();
        let (here, away) = ("127.0.0.1:1".parse().unwrap(), "192.0.2.1:1".parse().unwrap());
        assert_eq!(relay_key(None, here).outcome, Outcome::Ok);
        assert_eq!(relay_key(None, away).outcome, Outcome::Warning);
        let file = folder.path().join("relay.key");
        assert_eq!(relay_key(Some(&file), away).outcome, Outcome::Ok);
        assert!(!file.exists(), "a doctor makes nothing");
        let secret = format!("canopy-relay-secret:{}", "07".repeat(32));
        fs::write(&file, secret).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
        let found = relay_key(Some(&file), away);
        assert!(in_words(&found).contains("chmod 600"), "{found:?}");
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
        assert_eq!(relay_key(Some(&file), away).outcome, Outcome::Ok);
        fs::write(&file, "something else").unwrap();
        assert_eq!(relay_key(Some(&file), away).outcome, Outcome::Failed);
        assert_eq!(trusted_keys(None, here).outcome, Outcome::Ok);
        assert_eq!(trusted_keys(None, away).outcome, Outcome::Warning);
        assert_eq!(trusted_keys(Some(&file), away).outcome, Outcome::Failed);
    }

    #[test]
    fn a_device_with_a_short_mtu_is_named_while_it_is_up() {
        let folder = tempfile::tempdir().unwrap();
        let device = |name: &str, state: &str, mtu: &str| {
            let path = folder.path().join(name);
            fs::create_dir(&path).unwrap();
            fs::write(path.join("operstate"), state).unwrap();
            fs::write(path.join("mtu"), mtu).unwrap();
        };
        device("eth0", "up\n", "1500\n");
        device("wg1", "down\n", "1280\n");
        assert_eq!(outcomes(&devices(folder.path(), 1452), "mtu"), [Outcome::Ok]);
        device("wg0", "unknown\n", "1420\n");
        assert_eq!(outcomes(&devices(folder.path(), 1232), "mtu"), [Outcome::Ok]);
        let found = devices(folder.path(), 1452);
        assert_eq!(outcomes(&found, "mtu"), [Outcome::Warning]);
        assert!(found[0].found.contains("wg0") && found[0].found.contains("1420"));
    }
}
