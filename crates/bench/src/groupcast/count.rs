//! Counting copies where they end: at the receivers' sockets, or at the device that drops them.

use anyhow::Context;
use canopy_engines::{KernelSink, Namespace, SinkPlace};
use canopy_net::{Receiver, Socket, SocketOptions};
use std::fs::File;
use std::io::{Read, Seek};
use std::net::{IpAddr, SocketAddr};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

/// When nothing has arrived for this long, nothing more will.
const QUIET: Duration = Duration::from_millis(50);
/// Time for the processor that copies are steered to, to drop all of them.
const STEERED_PAUSE: Duration = Duration::from_millis(1);
/// Ethernet, IPv4 and UDP headers.
const HEADERS: u64 = 14 + 20 + 8;

/// What is counted: copies of `bytes` bytes, to the first `n` receivers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Expected {
    pub(super) n: usize,
    pub(super) bytes: usize,
    pub(super) copies: u64,
}

/// What became of the copies of a window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Settled {
    /// Copies that did not arrive.
    pub(super) lost: u64,
    /// Copies that arrived once more than they were sent.
    pub(super) doubled: u64,
}

impl Settled {
    /// Compares what was expected with what arrived at each receiver; a device counts as one.
    fn of(arrived: impl ExactSizeIterator<Item = u64>, expected: Expected) -> Settled {
        let each = expected.copies / arrived.len().max(1) as u64;
        arrived.fold(Settled::default(), |sum, arrived| Settled {
            lost: sum.lost + each.saturating_sub(arrived),
            doubled: sum.doubled + arrived.saturating_sub(each),
        })
    }
}

/// Counts what arrives: at the receivers, at a device, or in a device's driver.
pub(super) trait Counter: Send {
    /// What became of the copies since it was asked last, when no more are on their way.
    fn settle(&mut self, expected: Expected) -> anyhow::Result<Settled>;

    /// Whether it works on a thread of this process, next to the sender's.
    fn has_thread(&self) -> bool {
        false
    }
}

/// A socket for each receiver, read by one thread on the processor of whoever opened them. It
/// reads while nothing is measured: the sender waits for it.
pub(super) struct Receivers {
    addresses: Vec<SocketAddr>,
    asks: mpsc::SyncSender<Expected>,
    answers: mpsc::Receiver<Settled>,
}

impl Receivers {
    pub(super) fn open(far: &Namespace, ip: IpAddr, count: usize) -> anyhow::Result<Receivers> {
        canopy_net::raise_open_files();
        let options = SocketOptions::default();
        let bind = || -> std::io::Result<Vec<Socket>> {
            (0..count).map(|_| Socket::bind((ip, 0).into(), &options)).collect()
        };
        let sockets = far.run(bind)?.with_context(|| format!("cannot open {count} sockets"))?;
        let addresses = sockets.iter().map(Socket::local_address).collect();
        let (asks, asked) = mpsc::sync_channel::<Expected>(1);
        let (answer, answers) = mpsc::sync_channel(1);
        let read = move || {
            // Pieces of up to 65,535 bytes, as receive offload may hand them over.
            let mut receiver = Receiver::new(32, 65_535);
            for expected in asked {
                let arrived = read_until_quiet(&sockets[..expected.n], expected, &mut receiver);
                if answer.send(arrived).is_err() {
                    break;
                }
            }
        };
        // It ends when its questions do.
        thread::Builder::new().name("receivers".to_owned()).spawn(read)?;
        Ok(Receivers { addresses, asks, answers })
    }

    pub(super) fn addresses(&self) -> Vec<SocketAddr> {
        self.addresses.clone()
    }
}

impl Counter for Receivers {
    fn settle(&mut self, expected: Expected) -> anyhow::Result<Settled> {
        self.asks.send(expected).context("the receivers' thread has ended")?;
        self.answers.recv().context("the receivers' thread has ended")
    }

    fn has_thread(&self) -> bool {
        true
    }
}

/// Reads sockets in turn until everything is there, or nothing comes any more; and once more, for
/// what came twice.
fn read_until_quiet(sockets: &[Socket], expected: Expected, receiver: &mut Receiver) -> Settled {
    let mut arrived = vec![0; sockets.len()];
    let (mut sum, mut complete) = (0, false);
    let mut moved = Instant::now();
    while !complete && moved.elapsed() < QUIET {
        complete = sum >= expected.copies;
        let before = sum;
        for (socket, arrived) in sockets.iter().zip(&mut arrived) {
            let mut take = |_, datagram: &mut [u8]| {
                let whole = u64::from(datagram.len() == expected.bytes);
                *arrived += whole;
                sum += whole;
            };
            // A socket that fails has lost its datagrams, and they are counted as lost.
            while receiver.receive(socket, &mut take).unwrap_or(false) {}
        }
        if sum > before {
            moved = Instant::now();
        }
    }
    Settled::of(arrived.into_iter(), expected)
}

/// A program in the device's driver that counts and drops.
pub(super) struct DriverCounter {
    sink: KernelSink,
    first_port: u16,
    /// What each receiver had been counted when it was asked last.
    last: Vec<u64>,
}

impl DriverCounter {
    pub(super) fn open(
        namespace: &Namespace,
        device: &str,
        first_port: u16,
    ) -> anyhow::Result<DriverCounter> {
        let sink = namespace.run(|| KernelSink::attach(device, SinkPlace::Driver))??;
        Ok(DriverCounter { sink, first_port, last: Vec::new() })
    }
}

impl Counter for DriverCounter {
    fn settle(&mut self, expected: Expected) -> anyhow::Result<Settled> {
        let ports = (0..expected.n as u16).map(|number| self.first_port + number);
        let counts = self.sink.counts(ports)?;
        self.last.resize(self.last.len().max(counts.len()), 0);
        let arrived = counts
            .into_iter()
            .zip(&mut self.last)
            .map(|(count, last)| count - std::mem::replace(last, count));
        Ok(Settled::of(arrived, expected))
    }
}

/// The columns of /proc/net/dev that say what a device has received and what it has sent.
pub(super) const RECEIVED: usize = 0;
pub(super) const SENT: usize = 8;

/// A device's own statistics of its namespace.
pub(super) struct DeviceCounter {
    /// /proc/net/dev; it stays with the namespace in which it was opened.
    statistics: File,
    device: &'static str,
    /// The column of the bytes; that of the packets is next to it.
    column: usize,
    steered: bool,
    last: Traffic,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Traffic {
    bytes: u64,
    packets: u64,
}

impl DeviceCounter {
    /// Counts what a device receives, or sends.
    pub(super) fn open(
        namespace: &Namespace,
        device: &'static str,
        column: usize,
        steered: bool,
    ) -> anyhow::Result<DeviceCounter> {
        let statistics = namespace.run(|| File::open("/proc/thread-self/net/dev"))??;
        let last = Traffic::default();
        let mut counter = DeviceCounter { statistics, device, column, steered, last };
        counter.last = counter.read()?;
        Ok(counter)
    }

    fn read(&mut self) -> anyhow::Result<Traffic> {
        let mut text = String::new();
        self.statistics.rewind()?;
        self.statistics.read_to_string(&mut text)?;
        traffic_of(&text, self.device, self.column)
            .with_context(|| format!("/proc/net/dev does not list the device {}", self.device))
    }
}

impl Counter for DeviceCounter {
    fn settle(&mut self, expected: Expected) -> anyhow::Result<Settled> {
        if self.steered {
            thread::sleep(STEERED_PAUSE);
        }
        let before = self.last;
        self.last = self.read()?;
        let passed = Traffic {
            bytes: self.last.bytes - before.bytes,
            packets: self.last.packets - before.packets,
        };
        Ok(Settled::of([copies(passed, expected)].into_iter(), expected))
    }
}

fn traffic_of(text: &str, device: &str, column: usize) -> Option<Traffic> {
    let numbers = text.lines().find_map(|line| line.trim().strip_prefix(device)?.strip_prefix(':'));
    let mut numbers = numbers?.split_whitespace().skip(column).map(str::parse);
    let (bytes, packets) = (numbers.next()?.ok()?, numbers.next()?.ok()?);
    Some(Traffic { bytes, packets })
}

/// A burst that was not cut counts as one packet, with one set of headers before its datagrams.
fn copies(passed: Traffic, expected: Expected) -> u64 {
    if passed.packets >= expected.copies {
        return passed.packets;
    }
    passed.bytes.saturating_sub(passed.packets * HEADERS) / expected.bytes as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_bursts_are_counted_by_their_datagrams() {
        let expected = Expected { n: 3, bytes: 100, copies: 12 };
        assert_eq!(copies(Traffic { bytes: 12 * 142, packets: 12 }, expected), 12);
        assert_eq!(copies(Traffic { bytes: 3 * 442, packets: 3 }, expected), 12);
        assert_eq!(copies(Traffic { bytes: 2 * 442, packets: 2 }, expected), 8);
    }

    #[test]
    fn a_copy_that_came_twice_does_not_hide_one_that_did_not() {
        let expected = Expected { n: 3, bytes: 100, copies: 12 };
        let settled = |arrived: [u64; 3]| Settled::of(arrived.into_iter(), expected);
        assert_eq!(settled([4, 4, 4]), Settled { lost: 0, doubled: 0 });
        assert_eq!(settled([5, 4, 2]), Settled { lost: 2, doubled: 1 });
    }

    #[test]
    fn statistics_are_read_by_device() {
        let text = " face |bytes\n    lo: 1 2 0 0 0 0 0 0 3 4 0\n   far:9 8 0 0 0 0 0 0 7 6 0\n";
        assert_eq!(traffic_of(text, "far", 0), Some(Traffic { bytes: 9, packets: 8 }));
        assert_eq!(traffic_of(text, "far", 8), Some(Traffic { bytes: 7, packets: 6 }));
        assert_eq!(traffic_of(text, "a", 0), None);
    }
}
