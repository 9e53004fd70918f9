//! Two hosts on one cable, with the clone engines installed on the near one's device. Everything is
//! in this process and goes with it, but for the installation's folder, which goes when dropped.
#![allow(dead_code, reason = "each test binary uses its part of this module")]

use canopy_batch::{Segments, SendBatch};
use canopy_engines::{
    Engine, EngineChoice, EngineName, EngineUnavailable, InstallRequest, Installation, Namespace,
    install,
};
use canopy_net::{
    Clock, Outlet, Receiver, ReceiverSet, SendReport, Socket, SocketOptions, Waker, wait_readable,
};
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

pub(crate) const CLONERS: [EngineName; 2] = [EngineName::TcBpf, EngineName::Xdp];
/// How long anything may take.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);

/// The near host's address of a family, and the far host's addresses.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Family {
    pub(crate) near: &'static str,
    pub(crate) far: [&'static str; 3],
}

pub(crate) const IPV4: Family =
    Family { near: "10.77.0.1", far: ["10.77.0.2", "10.77.3.200", "10.77.255.9"] };
pub(crate) const IPV6: Family =
    Family { near: "fd77::1", far: ["fd77::2", "fd77::3:200", "fd77::ffff:8000:1:9"] };

pub(crate) struct Bed {
    pub(crate) near: Namespace,
    pub(crate) far: Namespace,
    installation: Option<Installation>,
    folder: tempfile::TempDir,
}

impl Bed {
    /// None where it cannot be had, which is then said.
    pub(crate) fn new() -> Option<Bed> {
        let made = Namespace::new().and_then(|near| Ok((near, Namespace::new()?)));
        let (near, far) = made.inspect_err(|error| println!("skipped: {error}")).ok()?;
        Namespace::join(&near, &far).unwrap();
        for address in IPV4.far.iter().skip(1) {
            far.ip(&format!("addr add {address}/16 dev far")).unwrap();
        }
        for address in IPV6.far.iter().skip(1) {
            far.ip(&format!("addr add {address}/64 dev far nodad")).unwrap();
        }
        let folder = tempfile::tempdir().unwrap();
        let mut bed = Bed { near, far, installation: None, folder };
        bed.command(&bed.far, "ethtool -K far gro on")?;
        let path = bed.path();
        let request = InstallRequest { device: "near", folder: &path, owner: 0, xdp: true };
        let installed = bed.near.run(|| install(&request)).unwrap();
        match installed {
            Ok(installation) => bed.installation = Some(installation),
            Err(error) => {
                println!("skipped: {error}");
                return None;
            }
        }
        IPV4.far.into_iter().chain(IPV6.far).for_each(|address| bed.meet(address));
        Some(bed)
    }

    /// The installations' folder.
    pub(crate) fn path(&self) -> PathBuf {
        self.folder.path().join("engine")
    }

    pub(crate) fn installation(&self) -> &Installation {
        self.installation.as_ref().unwrap()
    }

    /// Runs a program on a host; None, and said so, if there is no such program.
    pub(crate) fn command(&self, host: &Namespace, words: &str) -> Option<()> {
        let mut parts = words.split_whitespace();
        let program = parts.next().unwrap();
        let mut command = Command::new(program);
        let output = host.run(|| command.args(parts).output()).unwrap();
        let Ok(output) = output else {
            println!("skipped: {program} cannot be started; install it");
            return None;
        };
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{words}: {said}");
        Some(())
    }

    /// Writes a setting of the near host's kernel.
    pub(crate) fn set(&self, name: &str, value: &str) {
        let path = format!("/proc/sys/net/{name}");
        self.near.run(|| std::fs::write(&path, value)).unwrap().expect(name);
    }

    /// Lets the near host learn the hardware address of one of the far host's addresses.
    pub(crate) fn meet(&self, address: &str) {
        let far = self.far.run(|| UdpSocket::bind((address, 0))).unwrap().unwrap();
        far.set_read_timeout(Some(PATIENCE)).unwrap();
        let to = far.local_addr().unwrap();
        let any = if to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
        let near = self.near.run(|| UdpSocket::bind(any)).unwrap().unwrap();
        near.send_to(b"hello", to).unwrap();
        far.recv(&mut [0; 8]).expect("the hosts reach each other");
    }

    /// The near host's socket.
    pub(crate) fn sender(&self, family: Family) -> Socket {
        let address = SocketAddr::new(family.near.parse().unwrap(), 0);
        let options = SocketOptions { serves_many: true, ..SocketOptions::default() };
        self.near.run(|| Socket::bind(address, &options)).unwrap().unwrap()
    }

    /// An engine over `socket`. Its thread is in the near host's namespace for as long.
    pub(crate) fn open(
        &self,
        name: EngineName,
        socket: &Socket,
    ) -> Result<Engine, EngineUnavailable> {
        let path = self.path();
        let open = || Engine::open_in(&path, EngineChoice::Named(name), socket);
        self.near.run(open).unwrap()
    }

    /// Receivers on the far host, over all of its addresses.
    pub(crate) fn receivers(&self, family: Family, count: usize) -> Receivers {
        let bind_all = || (0..count).map(|number| bind(family.far[number % 3])).collect();
        Receivers { sockets: self.far.run(bind_all).unwrap() }
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        if let Some(installation) = self.installation.take() {
            let removed = self.near.run(|| installation.remove());
            if !std::thread::panicking() {
                removed.unwrap().unwrap();
                assert!(!self.path().exists(), "nothing is left");
            }
        }
    }
}

fn bind(ip: &str) -> Socket {
    let address = SocketAddr::new(ip.parse::<IpAddr>().unwrap(), 0);
    Socket::bind(address, &SocketOptions::default()).unwrap()
}

/// A sender on the near host and its engine.
pub(crate) struct Sender<'a> {
    bed: &'a Bed,
    pub(crate) socket: Socket,
    pub(crate) outlet: Outlet<Engine>,
}

impl Sender<'_> {
    pub(crate) fn new(bed: &Bed, name: EngineName, family: Family) -> Sender<'_> {
        let socket = bed.sender(family);
        let engine = bed.open(name, &socket).unwrap_or_else(|error| panic!("{error}"));
        Sender { bed, socket, outlet: Outlet::new(engine) }
    }

    pub(crate) fn send(&mut self, set: &ReceiverSet, segments: Segments<'_>) -> SendReport {
        let mut batch = SendBatch::new();
        set.push_to(&mut batch, segments);
        self.send_batch(&batch)
    }

    pub(crate) fn send_batch(&mut self, batch: &SendBatch) -> SendReport {
        let clock = Clock::start();
        let send = || {
            let mut report = self.outlet.send(&self.socket, clock.now(), batch);
            report.add(self.outlet.flush(&self.socket, &clock));
            report
        };
        self.bed.near.run(send).unwrap()
    }

    /// Sends, and sees that every member gets everything once and in order.
    pub(crate) fn serve(
        &mut self,
        to: &Receivers,
        bytes: &[u8],
        segment: usize,
        what: &str,
    ) -> SendReport {
        let report = self.send(&to.set(), Segments::new(bytes, segment).unwrap());
        let all = (to.sockets.len() * bytes.len().div_ceil(segment)) as u64;
        assert_eq!((report.sent, report.failed), (all, 0), "{what}: {report:?}");
        assert_eq!(report.cloned + report.fallbacks, all, "{what}: {report:?}");
        to.expect(bytes.chunks(segment), what);
        report
    }
}

pub(crate) struct Receivers {
    pub(crate) sockets: Vec<Socket>,
}

impl Receivers {
    pub(crate) fn addresses(&self) -> impl Iterator<Item = SocketAddr> + Clone + '_ {
        self.sockets.iter().map(Socket::local_address)
    }

    pub(crate) fn set(&self) -> ReceiverSet {
        self.addresses().collect()
    }

    /// Sees that each has received exactly these datagrams, in this order.
    pub(crate) fn expect<'a>(&self, expected: impl Iterator<Item = &'a [u8]> + Clone, what: &str) {
        let count = expected.clone().count();
        for socket in &self.sockets {
            let received = receive(socket, count);
            let whom = socket.local_address();
            assert_eq!(received.len(), count, "{what}: datagrams of {whom}");
            let same = received.iter().map(Vec::as_slice).eq(expected.clone());
            assert!(same, "{what}: datagrams of {whom}, in order");
        }
        for socket in &self.sockets {
            assert_eq!(receive_waiting(socket), [[]; 0], "{what}: once");
        }
    }
}

/// What arrives until there are `count`, or for as long as is reasonable.
pub(crate) fn receive(socket: &Socket, count: usize) -> Vec<Vec<u8>> {
    let (clock, waker) = (Clock::start(), Waker::new().unwrap());
    let deadline = clock.now() + PATIENCE;
    let mut all = receive_waiting(socket);
    while all.len() < count && clock.now() < deadline {
        wait_readable(socket, &waker, &clock, Some(deadline)).unwrap();
        all.extend(receive_waiting(socket));
    }
    all
}

/// What has arrived.
pub(crate) fn receive_waiting(socket: &Socket) -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    let mut receiver = Receiver::new(4, 65_535);
    while receiver.receive(socket, |_, bytes| all.push(bytes.to_vec())).unwrap() {}
    all
}

/// Tries until it holds; says whether it ever did.
pub(crate) fn soon(mut holds: impl FnMut() -> bool) -> bool {
    let deadline = Instant::now() + PATIENCE;
    while Instant::now() < deadline {
        if holds() {
            return true;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    false
}

/// Bytes that no other payload has.
pub(crate) fn payload(len: usize, number: u8) -> Vec<u8> {
    (0..len).map(|at| (at as u8).wrapping_mul(31).wrapping_add(number)).collect()
}
