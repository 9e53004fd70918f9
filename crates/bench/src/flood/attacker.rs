//! Somebody who floods a relay: a stranger, or members of a comtree where nobody else is.

use super::icmp::{self, Forger};
use crate::members::{Heard, Member, Members};
use anyhow::Context;
use canopy_net::{Socket, SocketOptions};
use canopy_output::print_line;
use canopy_session::{Session, SessionConfig};
use canopy_wire::{
    Class, Comtree, Group, Header, Hello, Kind, Lane, Level, MAX_DATAGRAM, Record, SAFE_DATAGRAM,
    SessionId, SubscribeWriter, SubscriptionChange, UpdatesWriter, VERSION,
};
use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};
use std::io::ErrorKind;
use std::iter::Sum;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// A way to flood a relay.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Attack {
    /// A million datagrams a second that mean nothing
    Garbage,
    /// 300,000 hellos a second from 200 ports
    Hello,
    /// 400,000 datagrams a second that say they are sealed by one of the crowd's sessions
    Names,
    /// 200,000 forged "port unreachable" a second about what the relay sends; takes root, or CAP_NET_RAW
    Icmp,
    /// 2 Gbit/s of short updates of a member, to another that wants them all
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
            Attack::Names => "names",
            Attack::Icmp => "icmp",
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
            Attack::Names => 400_000.0,
            Attack::Icmp => 200_000.0,
            // 1,232 bytes each.
            Attack::Publish => 203_000.0,
            Attack::Groups => 2_000.0,
            Attack::Subscribe => 20_000.0,
        }
    }

    /// Whether this process may.
    pub(super) fn is_allowed(self) -> bool {
        self != Attack::Icmp || icmp::may_forge()
    }

    /// How many members there are.
    fn members(self) -> usize {
        match self {
            Attack::Garbage | Attack::Hello | Attack::Names | Attack::Icmp => 0,
            Attack::Subscribe => 1,
            // Who publishes, and who hears it: else nothing of it would wait or be sent.
            Attack::Publish => 2,
            Attack::Groups => 17,
        }
    }
}

/// What was sent.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(super) struct Offered {
    pub(super) packets_per_second: f64,
    pub(super) megabits_per_second: f64,
    /// Updates that members of the flood's comtree got.
    pub(super) updates_heard: u64,
}

impl Sum for Offered {
    /// What several sent at once.
    fn sum<I: Iterator<Item = Offered>>(all: I) -> Offered {
        all.fold(Offered::default(), |sum, one| Offered {
            packets_per_second: sum.packets_per_second + one.packets_per_second,
            megabits_per_second: sum.megabits_per_second + one.megabits_per_second,
            updates_heard: sum.updates_heard + one.updates_heard,
        })
    }
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
    /// Send it to a socket that nobody reads: what is left is what the attacker itself takes from its
    /// host
    #[arg(long)]
    elsewhere: bool,
    /// The part of the flood's rate that is sent
    #[arg(long)]
    strength: f64,
}

const NICE: u8 = 15;
/// Between two bursts.
const BEAT: Duration = Duration::from_millis(1);
/// The most datagrams of a segmented send.
const SEGMENTS: usize = 32;
const PORTS: usize = 200;
const FROM: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);
const COMTREE: Comtree = Comtree(2);
/// The member that floods with updates, and where to.
const PUBLISHER: usize = 0;
const GROUP: Group = Group::new(7);
/// What each of several members wants.
const GROUPS: u32 = 4096;
/// The crowd's comtree, and how many of its sessions are named.
const CROWD: Comtree = Comtree(1);
const NAMED: u32 = 128;

impl Attacker {
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        // The crowd shares the processor, and is not what is flooded.
        canopy_net::be_nice(NICE)?;
        let mut flood = Flood::prepare(self.what, self.relay)?;
        if self.elsewhere {
            flood.turn_away()?;
        }
        std::thread::sleep(Duration::from_secs_f64(self.wait));
        let (started, mut sent, mut bytes) = (Instant::now(), 0, 0);
        loop {
            let passed = started.elapsed().as_secs_f64();
            if passed >= self.seconds {
                break;
            }
            let due = (passed * self.what.rate() * self.strength) as u64;
            while sent < due {
                let (more, long) = flood.send(self.what, (due - sent).min(SEGMENTS as u64))?;
                sent += more;
                bytes += long;
            }
            if !self.elsewhere {
                flood.tend()?;
            }
            std::thread::sleep(BEAT);
        }
        let seconds = started.elapsed().as_secs_f64();
        print_line(serde_json::to_string(&Offered {
            packets_per_second: sent as f64 / seconds,
            megabits_per_second: bytes as f64 * 8e-6 / seconds,
            updates_heard: flood.heard,
        })?)?;
        Ok(ExitCode::SUCCESS)
    }
}

struct Flood {
    /// The strangers' sockets.
    sockets: Vec<Socket>,
    members: Members,
    /// Whose turn it is.
    turn: usize,
    nonce: u64,
    /// A packet of updates that is sealed again and again: writing it anew takes more than the crowd
    /// leaves the attacker.
    updates: Vec<u8>,
    /// What is sent at once.
    burst: Vec<u8>,
    /// Where a flood ends that is turned away from the relay.
    unread: Option<Socket>,
    /// Updates that its members got.
    heard: u64,
    forger: Option<Forger>,
}

impl Flood {
    fn prepare(what: Attack, relay: SocketAddr) -> anyhow::Result<Flood> {
        let options = SocketOptions { receive_offload: false, ..SocketOptions::default() };
        let mut members = Members::new(MAX_DATAGRAM + 1, false)?;
        for number in 0..what.members() {
            // Several floods may run at once.
            let mut seed = [what as u8; 16];
            seed[0] = number as u8;
            let mut session = Session::new(SessionConfig::new(COMTREE, seed));
            if what == Attack::Publish && number != PUBLISHER {
                session.subscribe(GROUP, Level(0));
            }
            members.add([FROM, relay], &options, Some(session), true)?;
        }
        members.join(|_| ())?;
        let ports = if what.members() > 0 { 0 } else { PORTS };
        let open = |_| {
            let socket = Socket::bind(FROM, &options)?;
            socket.connect(relay).map(|()| socket)
        };
        let sockets = (0..ports).map(open).collect::<Result<_, _>>()?;
        let updates = match what {
            Attack::Publish => short_updates(&members.list[PUBLISHER])?,
            _ => Vec::new(),
        };
        let (turn, nonce, burst, unread, heard) = (0, 0, Vec::new(), None, 0);
        let forger = (what == Attack::Icmp).then(|| Forger::new(relay)).transpose()?;
        Ok(Flood { sockets, members, turn, nonce, updates, burst, unread, heard, forger })
    }

    /// Sends what is to come to a socket that nobody reads.
    fn turn_away(&mut self) -> anyhow::Result<()> {
        let unread = Socket::bind(FROM, &SocketOptions::default())?;
        let members = self.members.list.iter().map(|member| &member.socket);
        members
            .chain(&self.sockets)
            .try_for_each(|socket| socket.connect(unread.local_address()))?;
        if let Some(forger) = &mut self.forger {
            forger.turn_to(unread.local_address())?;
        }
        self.unread = Some(unread);
        Ok(())
    }

    /// Sends up to so many datagrams; returns how many, and their bytes.
    fn send(&mut self, what: Attack, count: u64) -> anyhow::Result<(u64, u64)> {
        if let Some(forger) = &mut self.forger {
            let bytes = (0..count).map(|_| forger.send()).sum::<anyhow::Result<u64>>()?;
            return Ok((count, bytes));
        }
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
            0 if what == Attack::Publish => &self.members.list[PUBLISHER].socket,
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
            Attack::Garbage => self.write_noise(out),
            Attack::Names => {
                let len = self.write_noise(out);
                // The relay has one data thread.
                let place = self.nonce as u32 % NAMED;
                let session = SessionId::at(place, Lane::of(CROWD), 0, 1);
                out[..4].copy_from_slice(&session.number().to_be_bytes());
                out[0] = VERSION | Class::Sealed as u8;
                len
            }
            // It has a socket of another kind.
            Attack::Icmp => 0,
            Attack::Hello => Hello { nonce: self.nonce }.encode(Comtree(0), out)?,
            Attack::Publish => self.seal_updates(out)?,
            Attack::Groups | Attack::Subscribe => self.write_changes(out)?,
        })
    }

    fn write_noise(&self, out: &mut [u8]) -> usize {
        let noise = self.nonce.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes();
        let len = 64;
        out[..len].chunks_mut(8).for_each(|chunk| chunk.copy_from_slice(&noise));
        len
    }

    fn seal_updates(&mut self, out: &mut [u8]) -> anyhow::Result<usize> {
        let session = self.members.list[PUBLISHER].session.as_mut().context("it has none")?;
        let len = self.updates.len();
        out[..len].copy_from_slice(&self.updates);
        Ok(session.seal(out, len)?)
    }

    /// As many new groups as fit; the number is always the session's first, so that the relay takes
    /// it once and renews it from then on.
    fn write_changes(&mut self, out: &mut [u8]) -> anyhow::Result<usize> {
        let number = self.turn % self.members.list.len();
        let session = self.members.list[number].session.as_mut().context("it has none")?;
        let mut writer = SubscribeWriter::new(out, 1, SAFE_DATAGRAM)?;
        let mut group = number as u32 * GROUPS + (self.nonce as u32 % 16) * 290;
        while writer.push(SubscriptionChange::Add(Group::new(group), Level(0))) {
            group += 1;
        }
        let len = writer.finish(COMTREE, session.id());
        Ok(session.seal(out, len)?)
    }

    /// Lets the members live, and counts what came.
    fn tend(&mut self) -> anyhow::Result<()> {
        let now = self.members.clock.now();
        self.members.turn(now)?;
        let heard = &mut self.heard;
        self.members.receive(Duration::ZERO, |one| {
            *heard += u64::from(matches!(one, Heard::Payload(..)));
        })
    }
}

/// A packet of as many short updates as fit.
fn short_updates(member: &Member) -> anyhow::Result<Vec<u8>> {
    let session = member.session.as_ref().context("the attacker has no session")?;
    let mut out = [0; MAX_DATAGRAM];
    let mut writer = UpdatesWriter::new(&mut out, SAFE_DATAGRAM)?;
    let (group, mut series) = (GROUP.address(), 0);
    while writer.push(&Record::new(group, series, &[0; 4])) {
        series += 1;
    }
    let len = writer.finish(&Header::new(Kind::Updates, session.id(), COMTREE));
    Ok(out[..len].to_vec())
}
