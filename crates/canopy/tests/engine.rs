//! The clone engines with real processes: installed as root, used by a relay without any
//! capability, on virtual devices between network namespaces.

mod support;

use canopy_engines::{Engine, EngineChoice, EngineName, Namespace};
use canopy_net::{Socket, SocketOptions};
use serde_json::Value;
use std::fs::{self, Permissions};
use std::io::{BufRead, ErrorKind, Write};
use std::net::UdpSocket;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};
use support::{Server, canopy};

/// A user without any rights.
const NOBODY: &str = "65534";

/// Two hosts on one cable, and a folder that everyone may enter.
struct Bed {
    near: Namespace,
    far: Namespace,
    folder: tempfile::TempDir,
    binary: PathBuf,
}

impl Bed {
    fn new() -> Option<Bed> {
        let made = Namespace::new().and_then(|near| Ok((near, Namespace::new()?)));
        let (near, far) = made.inspect_err(|error| println!("skipped: {error}")).ok()?;
        for (program, package) in [("ethtool", "ethtool"), ("setpriv", "util-linux")] {
            let found = Command::new(program).arg("--version").output();
            if found.is_err() {
                println!("skipped: {program} cannot be started; install {package}");
                return None;
            }
        }
        Namespace::join(&near, &far).unwrap();
        let gro = || Command::new("ethtool").args(["-K", "far", "gro", "on"]).status();
        assert!(far.run(gro).unwrap().unwrap().success());
        let folder = tempfile::tempdir().unwrap();
        fs::set_permissions(folder.path(), Permissions::from_mode(0o755)).unwrap();
        // Where the binary was built not everyone may enter.
        let binary = folder.path().join("canopy");
        let built = support::binary();
        fs::hard_link(&built, &binary).or_else(|_| fs::copy(&built, &binary).map(drop)).unwrap();
        Some(Bed { near, far, folder, binary })
    }

    fn engines(&self) -> PathBuf {
        self.folder.path().join("engine")
    }

    /// `canopy ARGS` by nobody, with what `canopy engine` made.
    fn unprivileged(&self, args: &[&str]) -> Command {
        let mut command = Command::new("setpriv");
        command.args(["--reuid", NOBODY, "--regid", NOBODY, "--clear-groups", "--no-new-privs"]);
        command.args(["--inh-caps=-all", "--bounding-set=-all"]).arg(&self.binary).args(args);
        command.env("CANOPY_ENGINE_FOLDER", self.engines()).stdin(Stdio::null());
        command
    }

    /// `canopy engine ARGS` by root on the near host.
    fn engine(&self, args: &[&str]) -> Output {
        let mut command = canopy(&[&["engine"], args].concat());
        command.env("CANOPY_ENGINE_FOLDER", self.engines());
        self.near.run(|| command.output()).unwrap().unwrap()
    }

    fn install(&self, engine: &str) {
        let installed =
            self.engine(&["install", "--device", "near", "--user", NOBODY, "--engine", engine]);
        assert!(installed.status.success(), "{}", said(&installed));
    }

    fn status(&self) -> Value {
        let status = self.engine(&["status", "--json"]);
        serde_json::from_slice(&status.stdout).expect("JSON")
    }

    /// A relay without any capability.
    fn relay(&self, engine: &str) -> Server {
        self.relay_with(engine, "1", Stdio::inherit())
    }

    fn relay_with(&self, engine: &str, threads: &str, logs: Stdio) -> Server {
        self.relay_at("10.77.0.1:0", engine, threads, logs)
    }

    fn relay_at(&self, address: &str, engine: &str, threads: &str, logs: Stdio) -> Server {
        let relay =
            ["relay", "--listen", address, "--open", "--insecure", "--downlink", "none", "--json"];
        let choices = ["--engine", engine, "--threads", threads];
        let mut command = self.unprivileged(&[&relay[..], &choices].concat());
        command.stderr(logs);
        self.near.run(|| Server::spawn(command)).unwrap()
    }

    /// Packets that arrived at the far host.
    fn arrived(&self) -> u64 {
        let devices = || fs::read_to_string("/proc/thread-self/net/dev").unwrap();
        let devices = self.far.run(devices).unwrap();
        let far = devices.lines().find_map(|line| line.trim().strip_prefix("far:"));
        far.unwrap().split_whitespace().nth(1).unwrap().parse().unwrap()
    }

    /// A crowd on the far host: one who walks, and thirty-nine who see it.
    fn crowd(&self, relay: &Server) -> Child {
        let trace = self.folder.path().join("crowd.csv");
        let mut file = fs::File::create(&trace).unwrap();
        writeln!(file, "t,id,x,y").unwrap();
        for step in 0..50 {
            for walker in 0..40 {
                let t = f64::from(step) * 0.1;
                let along = if walker == 0 { t } else { 1.0 };
                writeln!(file, "{t:.1},{walker},{along:.1},1.0").unwrap();
            }
        }
        let relay = relay.address("relay").to_string();
        let args = ["bots", "--json", "--relay", &relay, "--trace", trace.to_str().unwrap()];
        let mut command = canopy(&args);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        self.far.run(|| command.spawn()).unwrap().unwrap()
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        // Fails where a test has removed them.
        self.engine(&["remove", "--all"]);
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
        let left = mounts.contains(self.engines().to_str().unwrap());
        assert!(!left || std::thread::panicking(), "nothing is left");
    }
}

/// The engine xdp, where users may open what taps are made with: most systems let everybody.
fn xdp_of_others() -> Option<&'static str> {
    let mode = fs::metadata("/dev/net/tun").map_or(0, |device| device.permissions().mode());
    if mode & 0o006 == 0o006 {
        return Some("xdp");
    }
    println!("skipped: xdp by another user: /dev/net/tun is not open to everybody");
    None
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn soon(mut holds: impl FnMut() -> bool) -> bool {
    let deadline = Instant::now() + Duration::from_secs(20);
    while Instant::now() < deadline {
        if holds() {
            return true;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    false
}

#[test]
fn a_relay_without_capabilities_uses_what_was_installed_for_it() {
    let Some(bed) = Bed::new() else { return };
    bed.install("all");
    for engine in ["tc-bpf", "auto"].into_iter().chain(xdp_of_others()) {
        let relay = bed.relay(engine);
        let status = &bed.status()[0];
        assert_eq!(status["device"], "near");
        assert_eq!(status["user"].to_string(), NOBODY);
        assert_eq!((&status["slots_in_use"], &status["copies"]), (&1.into(), &0.into()));
        let output = bed.crowd(&relay).wait_with_output().unwrap();
        assert!(output.status.success(), "{engine}: {}", said(&output));
        let crowd: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!((&crowd["missing"], &crowd["duplicates"]), (&0.into(), &0.into()), "{crowd}");
        assert!(crowd["echoes"].as_u64() > Some(0), "to its publisher too: {crowd}");
        let status = &bed.status()[0];
        assert!(status["copies"].as_u64() > Some(100), "{engine}: {status}");
        relay.terminate();
        assert_eq!(bed.status()[0]["slots_in_use"], 0);
    }
}

#[test]
fn whoever_it_was_not_installed_for_is_told() {
    let Some(bed) = Bed::new() else { return };
    let relay = ["relay", "--listen", "10.77.0.1:0", "--open", "--engine", "tc-bpf"];
    let refuse = |parts: &[&str]| {
        let mut command = bed.unprivileged(&relay);
        let output = bed.near.run(|| command.output()).unwrap().unwrap();
        assert!(!output.status.success());
        for part in parts {
            assert!(said(&output).contains(part), "{}", said(&output));
        }
    };
    refuse(&["10.77.0.1", "canopy engine install --device"]);
    let installed = bed.engine(&["install", "--device", "near", "--user", "root"]);
    assert!(installed.status.success(), "{}", said(&installed));
    refuse(&["user 0", "--user"]);
}

#[test]
fn installing_takes_privileges_and_says_which() {
    let Some(bed) = Bed::new() else { return };
    let refused = |args: &[&str]| {
        let mut command = bed.unprivileged(args);
        let output = bed.near.run(|| command.output()).unwrap().unwrap();
        assert!(!output.status.success());
        assert!(said(&output).contains("CAP_BPF"), "{}", said(&output));
        assert!(said(&output).contains("run it as root"), "{}", said(&output));
    };
    refused(&["engine", "install", "--device", "near"]);
    assert!(!bed.engines().exists(), "nothing is left");
    bed.install("tc-bpf");
    refused(&["engine", "remove", "--device", "near"]);
    refused(&["engine", "remove", "--all"]);
    refused(&["engine", "install", "--device", "near"]);
    let status = &bed.status()[0];
    assert_eq!((&status["device"], &status["complete"]), (&"near".into(), &true.into()));
    bed.relay("tc-bpf").terminate();
    bed.engine(&["remove", "--all"]);
    bed.install("all");
    refused(&["engine", "remove", "--all"]);
    if let Some(xdp) = xdp_of_others() {
        bed.relay(xdp).terminate();
    }
}

#[test]
fn strangers_see_no_slots_and_mistaken_users_are_refused() {
    let Some(bed) = Bed::new() else { return };
    bed.install("tc-bpf");
    let status = |command: &mut Command| -> Value {
        let output = bed.near.run(|| command.output()).unwrap().unwrap();
        serde_json::from_slice(&output.stdout).expect("JSON")
    };
    let mut owner = bed.unprivileged(&["engine", "status", "--json"]);
    assert_eq!(status(&mut owner)[0]["slots_in_use"], 0);
    let mut stranger = Command::new("setpriv");
    stranger.args(["--reuid", "1234", "--clear-groups"]).arg(&bed.binary);
    stranger.args(["engine", "status", "--json"]).env("CANOPY_ENGINE_FOLDER", bed.engines());
    let seen = &status(&mut stranger)[0];
    assert_eq!((&seen["slots_in_use"], &seen["copies"]), (&Value::Null, &Value::Null));

    bed.engine(&["remove", "--all"]);
    let said_of = |user: &[&str], sudo: &str| {
        let mut command = canopy(&[&["engine", "install", "--device", "near"], user].concat());
        command.env("CANOPY_ENGINE_FOLDER", bed.engines()).env("SUDO_UID", sudo);
        said(&bed.near.run(|| command.output()).unwrap().unwrap())
    };
    assert!(said_of(&[], "nonsense").contains("SUDO_UID"));
    assert!(said_of(&["--user", "4294967295"], "0").contains("no user"));
    assert!(!bed.engines().exists(), "nothing was installed");
}

#[test]
fn mistakes_are_explained() {
    let Some(bed) = Bed::new() else { return };
    bed.install("tc-bpf");
    let cases: [(&[&str], &[&str]); 6] = [
        (&["install", "--device", "nowhere"], &["nowhere", "ip link"]),
        (&["install", "--device", "lo"], &["lo", "Ethernet"]),
        (&["install", "--device", "near"], &["already", "canopy engine remove --device near"]),
        (&["install", "--device", "near", "--user", "no-such-user"], &["no-such-user", "--user"]),
        (&["remove", "--device", "nowhere"], &["nowhere", "canopy engine status"]),
        (&["remove"], &["--device"]),
    ];
    for (args, parts) in cases {
        let output = bed.engine(args);
        assert!(!output.status.success(), "{args:?}");
        for part in parts {
            assert!(said(&output).contains(part), "{args:?}: {}", said(&output));
        }
    }
    let status = bed.engine(&["status"]);
    let table = String::from_utf8_lossy(&status.stdout).into_owned();
    assert!(table.contains("near") && table.contains("0 of 16"), "{table}");
}

#[test]
fn removal_leaves_nothing_behind() {
    let Some(bed) = Bed::new() else { return };
    let devices = || fs::read_to_string("/proc/thread-self/net/dev").unwrap();
    let before = bed.near.run(devices).unwrap().lines().count();
    for what in [&["--device", "near"][..], &["--all"]] {
        bed.install("all");
        assert_eq!(bed.near.run(devices).unwrap().lines().count(), before + 1, "with a tap");
        let removed = bed.engine(&[&["remove"], what].concat());
        assert!(removed.status.success(), "{}", said(&removed));
        assert!(!bed.engines().exists());
        assert_eq!(bed.near.run(devices).unwrap().lines().count(), before);
        assert_eq!(bed.status(), serde_json::json!([]));
    }
    // From another namespace too.
    bed.install("all");
    let mut command = canopy(&["engine", "remove", "--all"]);
    command.env("CANOPY_ENGINE_FOLDER", bed.engines());
    assert!(command.status().unwrap().success());
    assert!(!bed.engines().exists());
}

#[test]
fn a_relay_says_which_engines_its_threads_have_and_when_one_stops() {
    let Some(bed) = Bed::new() else { return };
    bed.install("tc-bpf");
    let many = bed.relay_with("auto", "17", Stdio::null());
    let engines = many.ready["engines"].as_array().expect("a list");
    let threads = |engine: &Value| (engine["engine"].clone(), engine["threads"].clone());
    let [most, last] = &engines[..] else { panic!("{engines:?}") };
    assert_eq!(threads(most), ("tc-bpf".into(), 16.into()));
    assert_eq!(threads(last), ("gso".into(), 1.into()));
    assert!(last["why"].to_string().contains("all 16 slots are in use"), "{last}");
    many.kill();

    let mut relay = bed.relay_with("tc-bpf", "1", Stdio::piped());
    let (line, lines) = std::sync::mpsc::channel();
    let logs = relay.logs().lines().map_while(Result::ok);
    let reader = std::thread::spawn(move || logs.for_each(|log| line.send(log).unwrap_or(())));
    let crowd = bed.crowd(&relay);
    assert!(soon(|| bed.status()[0]["copies"].as_u64() > Some(100)), "in the middle");
    assert!(bed.engine(&["remove", "--all"]).status.success());
    let told = || lines.recv_timeout(Duration::from_secs(20)).expect("it is told");
    while !told().contains("no longer copies") {}
    let output = crowd.wait_with_output().unwrap();
    assert!(output.status.success(), "nothing is missing: {}", said(&output));
    relay.terminate();
    reader.join().unwrap();
}

#[test]
fn a_relay_takes_the_address_of_one_that_was_killed_with_a_ring() {
    let Some(bed) = Bed::new() else { return };
    let socket = Socket::bind("127.0.0.1:0".parse().unwrap(), &SocketOptions::default()).unwrap();
    if let Err(error) = Engine::open(EngineChoice::Named(EngineName::Uring), &socket) {
        return println!("skipped: {error}");
    }
    let mut relay = bed.relay("uring");
    let address = relay.address("relay").to_string();
    for _ in 0..3 {
        let before = bed.arrived();
        let mut crowd = bed.crowd(&relay);
        // The kernel keeps the ring that it sent from for a moment after the process.
        assert!(soon(|| bed.arrived() > before + 1000), "in the middle");
        relay.kill();
        relay = bed.relay_at(&address, "uring", "1", Stdio::inherit());
        assert_eq!(relay.address("relay").to_string(), address);
        crowd.kill().unwrap();
        crowd.wait().unwrap();
    }
    relay.terminate();
}

#[test]
fn a_relay_that_is_killed_leaves_the_network_as_it_was() {
    let Some(bed) = Bed::new() else { return };
    bed.install("all");
    for engine in ["tc-bpf"].into_iter().chain(xdp_of_others()) {
        let relay = bed.relay(engine);
        let mut crowd = bed.crowd(&relay);
        assert!(soon(|| bed.status()[0]["copies"].as_u64() > Some(100)), "{engine}: in the middle");
        relay.kill();
        crowd.kill().unwrap();
        crowd.wait().unwrap();

        let bind = |host: &Namespace, ip| host.run(|| UdpSocket::bind((ip, 0))).unwrap().unwrap();
        let (sender, receiver) = (bind(&bed.near, "10.77.0.1"), bind(&bed.far, "10.77.0.2"));
        receiver.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        sender.send_to(b"once", receiver.local_addr().unwrap()).unwrap();
        assert_eq!(receiver.recv(&mut [0; 8]).unwrap(), 4);
        receiver.set_nonblocking(true).unwrap();
        let second = receiver.recv(&mut [0; 8]).map_err(|error| error.kind());
        assert_eq!(second, Err(ErrorKind::WouldBlock), "once");

        assert_eq!(bed.status()[0]["slots_in_use"], 0, "{engine}");
        let relay = bed.relay(engine);
        let output = bed.crowd(&relay).wait_with_output().unwrap();
        assert!(output.status.success(), "{engine}: {}", said(&output));
        relay.terminate();
    }
}
