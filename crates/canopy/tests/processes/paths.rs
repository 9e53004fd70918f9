//! Slow paths that are real: a relay's host behind a token bucket of the kernel (`tbf`), and receivers
//! that want more than it lets through. It needs root.

use crate::support::{Server, canopy};
use canopy_client::{Group, Level, Outgoing, PollClient};
use canopy_engines::Namespace;
use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::process::Command;
use std::time::{Duration, Instant};

/// What the path lets through, in bits a second, and how much of it may wait.
const PATH: u64 = 1_000_000;
const BUFFER_MS: u64 = 200;
/// What is published, in bits a second: updates of so many bytes, a tick's at once.
const UPDATE: usize = 250;
const TICK: Duration = Duration::from_millis(50);
const GROUP: Group = Group::new(7);
/// The first seconds are for finding out.
const SETTLE: Duration = Duration::from_secs(5);
const WATCH: Duration = Duration::from_secs(15);

/// A relay on a host, and the host of its receivers, with a slow path between them.
struct Bed {
    server: Server,
    relay: Namespace,
    crowd: Namespace,
    _folder: tempfile::TempDir,
}

impl Bed {
    /// `None`, with a word, where no namespace or no `tbf` can be made.
    fn new(rate: u64) -> Option<Bed> {
        let crowd = Namespace::new().inspect_err(|error| println!("skipped: {error}")).ok()?;
        let relay = Namespace::new().unwrap();
        let far = crowd.path();
        relay
            .ip(&format!("link add slow type veth peer name slow netns {}", far.display()))
            .unwrap();
        for (host, end) in [(&relay, 1), (&crowd, 2)] {
            host.ip(&format!("addr add {}/24 dev slow", ip(end))).unwrap();
            host.ip("link set slow up").unwrap();
            host.ip("link set lo up").unwrap();
        }
        let folder = tempfile::tempdir().unwrap();
        let settings = folder.path().join("relay.toml");
        let text = "[relay]\nlisten = \"0.0.0.0:0\"\nthreads = 1\nopen = true\ninsecure = true\n\
                    [limits]\nsessions_per_ip = 0\nhandshakes_per_ip = 0\nhandshakes_per_prefix = 0\n\
                    [[comtree]]\nid = 1\nsite = 1\n";
        fs::write(&settings, text).unwrap();
        let mut command = canopy(&["relay", "--json", "--settings"]);
        command.arg(&settings);
        let server = relay.run(|| Server::spawn(command)).unwrap();
        let bed = Bed { server, relay, crowd, _folder: folder };
        bed.shape("add", rate).then_some(bed)
    }

    /// Lets so much through from now on.
    fn shape(&self, verb: &str, rate: u64) -> bool {
        let bucket = format!(
            "qdisc {verb} dev slow root tbf rate {rate}bit burst 3000 limit {}",
            rate * BUFFER_MS / 8000
        );
        let shaped = self.relay.run(|| tc(&bucket)).unwrap();
        if shaped.is_none() {
            println!("skipped: tc {bucket}");
        }
        shaped.is_some()
    }

    /// A participant from the crowd's host, over the slow path; or from the relay's own.
    fn client(&self, is_far: bool) -> PollClient {
        let (host, address) = match is_far {
            true => (&self.crowd, ip(1)),
            false => (&self.relay, Ipv4Addr::LOCALHOST),
        };
        let relay = SocketAddr::new(address.into(), self.server.address("relay").port());
        let key = self.server.ready["key"].as_str().unwrap().parse().unwrap();
        let open = || PollClient::builder(relay).relay_key(key).open();
        let mut client = host.run(open).unwrap().unwrap();
        let until = Instant::now() + Duration::from_secs(10);
        while !client.is_connected() {
            assert!(Instant::now() < until, "not connected");
            client.wait(Duration::from_millis(50));
        }
        client
    }

    /// What waits at the slow path, and what has gone through it, in bytes.
    fn queue(&self) -> (u64, u64) {
        let shown = self.relay.run(|| tc("-s -j qdisc show dev slow")).unwrap().unwrap();
        let shown: serde_json::Value = serde_json::from_str(&shown).unwrap();
        let of = |key: &str| shown[0][key].as_u64().unwrap();
        (of("backlog"), of("bytes"))
    }
}

fn ip(end: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 80, 0, end)
}

fn tc(arguments: &str) -> Option<String> {
    let output = Command::new("tc").args(arguments.split(' ')).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Who publishes, and who is behind the slow path.
struct Crowd {
    publisher: PollClient,
    far: Vec<PollClient>,
}

/// What was seen of a slow path.
struct Watched {
    /// What waited, in milliseconds of the path's time, 95 % of the time at most.
    standing: f64,
    utilisation: f64,
    /// By receiver: updates that came.
    received: Vec<u64>,
}

impl Crowd {
    fn new(bed: &Bed, receivers: usize) -> Crowd {
        let publisher = bed.client(false);
        let mut far: Vec<_> = (0..receivers).map(|_| bed.client(true)).collect();
        for client in &mut far {
            drop(client.subscribe(GROUP, Level(0)));
        }
        Crowd { publisher, far }
    }

    /// Publishes five megabits a second, and watches the path of `rate` once it is settled.
    fn watch(&mut self, bed: &Bed, rate: u64, settle: Duration, time: Duration) -> Watched {
        let updates = 5 * PATH * TICK.as_millis() as u64 / 1000 / (8 * UPDATE as u64);
        let begin = Instant::now();
        let (mut received, mut waiting) = (vec![0; self.far.len()], Vec::new());
        let (mut next, mut passed) = (begin, None);
        while begin.elapsed() < settle + time {
            let is_settled = begin.elapsed() > settle;
            if Instant::now() >= next {
                // What waits even before the next updates leave.
                let (backlog, bytes) = bed.queue();
                if is_settled {
                    passed.get_or_insert((bytes, Instant::now()));
                    waiting.push(backlog as f64 * 8e3 / rate as f64);
                }
                for object in 0..updates as u16 {
                    // Each is about something else, so each counts.
                    let update = Outgoing::new(GROUP, Level(0), &[0; UPDATE]).object(object);
                    self.publisher.publish_with(update).unwrap();
                }
                next += TICK;
            }
            self.publisher.poll();
            for (client, received) in self.far.iter_mut().zip(&mut received) {
                client.poll();
                while client.try_recv().is_some() {
                    *received += u64::from(is_settled);
                }
            }
            self.far[0].wait(Duration::from_millis(2));
        }
        let (before, since) = passed.unwrap();
        let bits = 8 * (bed.queue().1 - before);
        let utilisation = bits as f64 / since.elapsed().as_secs_f64() / rate as f64;
        waiting.sort_by(f64::total_cmp);
        let standing = waiting[waiting.len() * 95 / 100];
        Watched { standing, utilisation, received }
    }
}

impl Watched {
    fn is_well_used(&self) {
        let Watched { standing, utilisation, .. } = self;
        println!("standing {standing:.1} ms, used {utilisation:.3}");
        assert!(*standing <= 50.0 && *utilisation >= 0.85, "{standing:.1} ms, {utilisation:.3}");
    }
}

#[test]
#[ignore = "run it on a quiet machine: whatever else runs stands in the queue too"]
fn a_slow_path_of_the_kernel_never_stands_with_a_full_queue() {
    let Some(bed) = Bed::new(PATH) else { return };
    Crowd::new(&bed, 1).watch(&bed, PATH, SETTLE, WATCH).is_well_used();
}

#[test]
#[ignore = "run it on a quiet machine: whatever else runs stands in the queue too"]
fn a_slow_path_of_the_kernel_that_halves_or_doubles_is_followed_within_two_seconds() {
    let Some(bed) = Bed::new(PATH) else { return };
    let mut crowd = Crowd::new(&bed, 1);
    crowd.watch(&bed, PATH, SETTLE, WATCH).is_well_used();
    for rate in [PATH / 2, PATH, 2 * PATH, PATH] {
        assert!(bed.shape("change", rate));
        let Watched { standing, utilisation, .. } =
            crowd.watch(&bed, rate, Duration::from_secs(2), Duration::from_secs(8));
        println!("{rate} bit/s: standing {standing:.1} ms, used {utilisation:.3}");
        // A datagram of a slower path takes longer.
        assert!(standing <= 80.0 && utilisation >= 0.85, "{standing:.1} ms, {utilisation:.3}");
    }
}

#[test]
#[ignore = "run it on a quiet machine: whatever else runs keeps receivers from their socket"]
fn ten_receivers_share_a_slow_path_of_the_kernel() {
    let Some(bed) = Bed::new(10 * PATH) else { return };
    let watched = Crowd::new(&bed, 10).watch(&bed, 10 * PATH, SETTLE, WATCH);
    let (sum, squares) = watched.received.iter().fold((0.0, 0.0), |(sum, squares), one| {
        let one = *one as f64;
        (sum + one, squares + one * one)
    });
    let fair = sum * sum / (watched.received.len() as f64 * squares);
    println!("Jain's index {fair:.3}, used {:.3}", watched.utilisation);
    assert!(fair >= 0.9, "{fair:.3}: {:?}", watched.received);
}
