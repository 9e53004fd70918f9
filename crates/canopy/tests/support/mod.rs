//! Real processes of the binary under test, ended when dropped.
#![allow(dead_code, reason = "each test binary uses its part of this module")]

use canopy_session::{Session, SessionConfig, State};
use canopy_wire::{Comtree, MAX_DATAGRAM, Time};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, ChildStdout, Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// The binary under test: the one that was built with the tests, unless `cargo xtask test` names the
/// released one.
pub(crate) fn binary() -> PathBuf {
    let released = std::env::var_os("CANOPY_BINARY");
    released.unwrap_or_else(|| env!("CARGO_BIN_EXE_canopy").into()).into()
}

/// The binary under test, without the caller's settings.
pub(crate) fn canopy(args: &[&str]) -> Command {
    let mut command = Command::new(binary());
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("CANOPY_")) {
        command.env_remove(name);
    }
    command.args(args).stdin(Stdio::null());
    command
}

/// Runs the binary to its end.
pub(crate) fn run(args: &[&str]) -> Output {
    canopy(args).output().expect("the binary can be run")
}

/// A server process that prints one JSON line when it is ready.
pub(crate) struct Server {
    child: Child,
    stdout: BufReader<ChildStdout>,
    pub(crate) ready: serde_json::Value,
}

impl Server {
    pub(crate) fn start(args: &[&str]) -> Server {
        Server::start_telling(args, Stdio::null())
    }

    /// The same, with its logs on `stderr`.
    pub(crate) fn start_telling(args: &[&str], stderr: Stdio) -> Server {
        let mut command = canopy(args);
        command.stderr(stderr);
        Server::spawn(command)
    }

    /// The server that a command starts.
    pub(crate) fn spawn(mut command: Command) -> Server {
        let mut child = command.stdout(Stdio::piped()).spawn().expect("the binary can be run");
        let mut stdout = BufReader::new(child.stdout.take().expect("stdout is piped"));
        let mut line = String::new();
        stdout.read_line(&mut line).expect("the server tells where it is");
        let ready = serde_json::from_str(&line).unwrap_or_else(|_| panic!("no JSON: {line:?}"));
        Server { child, stdout, ready }
    }

    /// A relay on a free port with more flags.
    pub(crate) fn relay(flags: &[&str]) -> Server {
        Server::start(&[&["relay", "--listen", "127.0.0.1:0", "--json"], flags].concat())
    }

    pub(crate) fn address(&self, key: &str) -> SocketAddr {
        self.ready[key].as_str().unwrap_or_default().parse().expect("an address")
    }

    /// Its logs, if they are piped.
    pub(crate) fn logs(&mut self) -> BufReader<ChildStderr> {
        BufReader::new(self.child.stderr.take().expect("stderr is piped"))
    }

    pub(crate) fn process(&self) -> u32 {
        self.child.id()
    }

    /// Asks for an orderly end, and does not wait for it.
    pub(crate) fn ask_to_end(&self) {
        let process = self.child.id().to_string();
        assert!(Command::new("kill").args(["-TERM", &process]).status().unwrap().success());
    }

    /// Ends it at once, whatever it does.
    pub(crate) fn kill(mut self) {
        self.child.kill().expect("it runs");
        self.child.wait().expect("it ends");
    }

    /// Asks for an orderly end and waits for it, so that nothing is left behind.
    pub(crate) fn end(&mut self) {
        self.ask_to_end();
        let deadline = Instant::now() + Duration::from_secs(20);
        while self.child.try_wait().unwrap().is_none() {
            assert!(Instant::now() < deadline, "it does not end");
            std::thread::yield_now();
        }
    }

    /// Asks for an orderly end and returns the last line that the server printed.
    pub(crate) fn terminate(mut self) -> serde_json::Value {
        self.end();
        let mut rest = String::new();
        self.stdout.read_to_string(&mut rest).expect("the rest of its output");
        assert!(self.child.wait().unwrap().success(), "an orderly end");
        let last = rest.lines().last().unwrap_or_else(|| panic!("no last line: {rest:?}"));
        serde_json::from_str(last).expect("JSON")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A page with its status line and headers.
pub(crate) fn get_any(address: SocketAddr, path: &str) -> String {
    let mut stream = TcpStream::connect(address).expect("the server listens");
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).expect("a whole page");
    text
}

/// The same, of a page that is there.
pub(crate) fn get(address: SocketAddr, path: &str) -> String {
    let text = get_any(address, path);
    assert!(text.starts_with("HTTP/1.1 200"), "{text}");
    text
}

/// Asks for a page until it has what is wanted.
pub(crate) fn get_until(address: SocketAddr, path: &str, wanted: &str) -> String {
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        let text = get_any(address, path);
        if text.contains(wanted) {
            return text;
        }
        assert!(Instant::now() < deadline, "never {wanted:?} in {text}");
    }
}

/// A participant that has joined and never leaves, whatever it is told. It is gone when its
/// session has not been heard of for its lifetime.
pub(crate) fn join_for_good(relay: SocketAddr) -> UdpSocket {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.connect(relay).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let mut session = Session::new(SessionConfig::new(Comtree(1), [7; 16]));
    let mut bytes = [0; MAX_DATAGRAM];
    let now = Time::from_millis(1);
    while session.state() != State::Connected {
        while let Some(len) = session.poll_transmit(now, &mut bytes) {
            socket.send(&bytes[..len]).unwrap();
        }
        let len = socket.recv(&mut bytes).expect("the relay answers");
        session.handle_datagram(now, &mut bytes[..len], |_| ()).unwrap();
    }
    socket
}

/// Where the recorded crowds are: `CANOPY_TRACES`, or `../shared/data/traces` beside the checkout;
/// `None`, with a word, if they are not there.
pub(crate) fn recorded_traces() -> Option<PathBuf> {
    if let Some(folder) = std::env::var_os("CANOPY_TRACES") {
        let folder = PathBuf::from(folder);
        assert!(folder.is_dir(), "CANOPY_TRACES={} is no folder", folder.display());
        return Some(folder);
    }
    let beside = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data/traces");
    if !beside.is_dir() {
        println!("skipped: no recorded crowds; say where they are with CANOPY_TRACES=FOLDER");
        return None;
    }
    Some(beside)
}

/// A trace of walkers that go round a small place, each at its own pace, ten times a second.
pub(crate) fn round_trace(walkers: u32, seconds: u32) -> String {
    let mut text = "t,id,x,y\n".to_owned();
    for step in 0..seconds * 10 {
        for walker in 0..walkers {
            let t = f64::from(step) / 10.0 + f64::from(walker) / 1000.0;
            let turn = t * (0.1 + f64::from(walker % 5) / 20.0) + f64::from(walker);
            let far = 3.0 + f64::from(walker % 4);
            let (x, y) = (far * turn.cos(), far * turn.sin());
            text.push_str(&format!("{t:.3},{walker},{x:.3},{y:.3}\n"));
        }
    }
    text
}

/// How late this machine was while `work` ran, by who wanted to be woken every millisecond, and what
/// `work` returned.
pub(crate) fn lateness<T>(work: impl FnOnce() -> T) -> (Duration, T) {
    let (ends, step) = (AtomicBool::new(false), Duration::from_millis(1));
    thread::scope(|scope| {
        let watch = scope.spawn(|| {
            let mut worst = Duration::ZERO;
            while !ends.load(Ordering::Relaxed) {
                let begin = Instant::now();
                thread::sleep(step);
                worst = worst.max(begin.elapsed().saturating_sub(step));
            }
            worst
        });
        let done = work();
        ends.store(true, Ordering::Relaxed);
        (watch.join().unwrap(), done)
    })
}
