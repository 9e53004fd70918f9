//! Somebody who floods a relay: a stranger, or a member of a comtree where nobody else is.

use crate::members::Members;
use anyhow::Context;
use canopy_net::{Socket, SocketOptions};
use canopy_output::print_line;
use canopy_session::{Session, SessionConfig};
use canopy_wire::{
    Change, Comtree, Group, Header, Hello, Kind, Level, MAX_DATAGRAM, Record, SAFE_DATAGRAM,
    SubscribeWriter, UpdatesWriter,
};
use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};
use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddr};
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// A way to flood a relay.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Attack {
    /// A million datagrams a second that mean nothing
    Garbage,
    /// 300,000 hellos a second from 200 ports
    Hello,
    /// 2 Gbit/s of short updates, as a member
    Publish,
    /// 17 members that subscribe to 4,096 groups each, over and over
    Groups,
    /// 20,000 packets a second full of changes of subscriptions, as a member
    Subscribe,
}

impl Attack {
    pub(super) fn name(self) -> &'static str {
        match self {
            Attack::Garbage => "garbage",
            Attack::Hello => "hello",
            Attack::Publish => "publish",
            Attack::Groups => "groups",
            Attack::Subscribe => "subscribe",
        }
    }

    /// Datagrams a second.
    fn rate(self) -> f64 {
        match self {
            Attack::Garbage => 1_000_000.0,
            Attack::Hello => 300_000.0,
            // 1,232 bytes each.
            Attack::Publish => 203_000.0,
            Attack::Groups => 2_000.0,
            Attack::Subscribe => 20_000.0,
        }
    }

    /// How many there are.
    fn members(self) -> usize {
        match self {
            Attack::Garbage | Attack::Hello => 0,
            Attack::Publish | Attack::Subscribe => 1,
            Attack::Groups => 17,
        }
    }
}

/// What was sent.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(super) struct Offered {
    pub(super) packets_per_second: f64,
    pub(super) megabits_per_second: f64,
}

/// Waits, floods a relay, tells what was sent, and ends.
#[derive(Args)]
pub(crate) struct Attacker {
    #[arg(long)]
    what: Attack,
    #[arg(long)]
    relay: SocketAddr,
    /// Seconds before the flood
    #[arg(long)]
    wait: f64,
    /// Seconds of the flood
    #[arg(long)]
    seconds: f64,
}

const NICE: u8 = 15;
/// Between two bursts.
const BEAT: Duration = Duration::from_millis(1);
/// The most datagrams of a segmented send.
const SEGMENTS: usize = 32;
const PORTS: usize = 200;
const COMTREE: Comtree = Comtree(2);
/// What each of several members wants.
const GROUPS: u32 = 4096;

impl Attacker {
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        // The crowd shares the processor, and is not what is flooded.
        canopy_net::be_nice(NICE)?;
        let mut flood = Flood::prepare(self.what, self.relay)?;
        std::thread::sleep(Duration::from_secs_f64(self.wait));
        let (started, mut sent, mut bytes) = (Instant::now(), 0, 0);
        loop {
            let passed = started.elapsed().as_secs_f64();
            if passed >= self.seconds {
                break;
            }
            let due = (passed * self.what.rate()) as u64;
            while sent < due {
                let (more, long) = flood.send(self.what, (due - sent).min(SEGMENTS as u64))?;
                sent += more;
                bytes += long;
            }
            flood.tend()?;
            std::thread::sleep(BEAT);
        }
        let seconds = started.elapsed().as_secs_f64();
        print_line(serde_json::to_string(&Offered {
            packets_per_second: sent as f64 / seconds,
            megabits_per_second: bytes as f64 * 8e-6 / seconds,
        })?)?;
        Ok(ExitCode::SUCCESS)
    }
}

struct Flood {
    /// Of strangers.
    sockets: Vec<Socket>,
    members: Members,
    /// Whose turn it is.
    turn: usize,
    nonce: u64,
    /// What is sent at once.
    burst: Vec<u8>,
}

impl Flood {
    fn prepare(what: Attack, relay: SocketAddr) -> anyhow::Result<Flood> {
        let options = SocketOptions { receive_offload: false, ..SocketOptions::default() };
        let from = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let mut members = Members::new(MAX_DATAGRAM + 1, false)?;
        for number in 0..what.members() {
            let session = SessionConfig::new(COMTREE, [number as u8; 16]);
            members.add([from, relay], &options, Some(Session::new(session)), true)?;
        }
        members.join(|_| ())?;
        let ports = if what.members() > 0 { 0 } else { PORTS };
        let open = |_| {
            let socket = Socket::bind(from, &options)?;
            socket.connect(relay).map(|()| socket)
        };
        let sockets = (0..ports).map(open).collect::<Result<_, _>>()?;
        Ok(Flood { sockets, members, turn: 0, nonce: 0, burst: Vec::new() })
    }

    /// Sends up to so many datagrams; returns how many, and their bytes.
    fn send(&mut self, what: Attack, count: u64) -> anyhow::Result<(u64, u64)> {
        self.burst.clear();
        self.turn += 1;
        let (mut made, mut segment) = (0, 0);
        while made < count {
            let mut out = [0; MAX_DATAGRAM];
            let len = self.write(what, &mut out)?;
            if made == 0 {
                segment = len;
            } else if len > segment {
                // All but the last of a segmented send have one length; this one is not sent.
                break;
            }
            self.burst.extend_from_slice(&out[..len]);
            made += 1;
            if len < segment {
                break;
            }
        }
        let socket = match self.sockets.len() {
            0 => &self.members.list[self.turn % self.members.list.len()].socket,
            all => &self.sockets[self.turn % all],
        };
        match socket.send_segments(&self.burst, segment as u16) {
            // What the kernel does not take was not offered to the relay, but this goes on.
            Ok(()) => Ok((made, self.burst.len() as u64)),
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok((made, 0)),
            Err(error) => Err(error).context("the attacker cannot send"),
        }
    }

    fn write(&mut self, what: Attack, out: &mut [u8]) -> anyhow::Result<usize> {
        self.nonce += 1;
        Ok(match what {
            Attack::Garbage => {
                let noise = self.nonce.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes();
                let len = 64;
                out[..len].chunks_mut(8).for_each(|chunk| chunk.copy_from_slice(&noise));
                len
            }
            Attack::Hello => Hello { nonce: self.nonce }.encode(Comtree(0), out)?,
            Attack::Publish => self.write_updates(out)?,
            Attack::Groups | Attack::Subscribe => self.write_changes(out)?,
        })
    }

    /// As many short updates as fit.
    fn write_updates(&mut self, out: &mut [u8]) -> anyhow::Result<usize> {
        let number = self.turn % self.members.list.len();
        let session = self.members.list[number].session.as_mut().context("it has none")?;
        let header = Header::new(Kind::Updates, session.id(), COMTREE);
        let mut writer = UpdatesWriter::new(out, SAFE_DATAGRAM)?;
        let group = Group::new(7).address();
        while writer.push(&Record::new(group, session.take_series(1), &[0; 3])) {}
        let len = writer.finish(&header);
        Ok(session.seal(out, len)?)
    }

    /// As many new groups as fit; the number is always the session's first, so that the relay takes
    /// it once and renews it from then on.
    fn write_changes(&mut self, out: &mut [u8]) -> anyhow::Result<usize> {
        let number = self.turn % self.members.list.len();
        let session = self.members.list[number].session.as_mut().context("it has none")?;
        let mut writer = SubscribeWriter::new(out, 1, SAFE_DATAGRAM)?;
        let mut group = number as u32 * GROUPS + (self.nonce as u32 % 16) * 290;
        while writer.push(Change::Add(Group::new(group), Level(0))) {
            group += 1;
        }
        let len = writer.finish(COMTREE, session.id());
        Ok(session.seal(out, len)?)
    }

    /// Lets the members live, and forgets what came.
    fn tend(&mut self) -> anyhow::Result<()> {
        let now = self.members.clock.now();
        self.members.turn(now)?;
        self.members.receive(Duration::ZERO, |_| ())
    }
}
