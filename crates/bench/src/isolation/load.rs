//! The world that must not suffer, and whoever floods.

use crate::members::{Heard, Members};
use anyhow::Context;
use canopy_net::{Socket, SocketOptions};
use canopy_output::print_line;
use canopy_session::{Session, SessionConfig};
use canopy_wire::{
    Comtree, Flags, Group, Header, Kind, Level, MAX_DATAGRAM, Record, SAFE_DATAGRAM, Time,
    UpdatesWriter,
};
use clap::Args;
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};
use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddr};
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Publishers of the world, and how often each publishes: 1,000 updates a second together.
const PUBLISHERS: usize = 20;
const EVERY: Duration = Duration::from_millis(20);
const RECEIVERS: usize = 4;
pub(super) const WORLD: Comtree = Comtree(1);
const GROUP: u32 = 7;
/// What is under way when the last update was published.
const SETTLE: Duration = Duration::from_millis(500);
const FROM: Ipv4Addr = Ipv4Addr::UNSPECIFIED;
/// Between two bursts of the flood, and the most packets of a send.
const BEAT: Duration = Duration::from_micros(500);
const SEGMENTS: u64 = 32;
const NICE: u8 = 15;

/// What the world saw.
pub(super) struct Seen {
    pub(super) published: u64,
    /// Deliveries that were due, and those that came.
    pub(super) due: u64,
    pub(super) delivered: u64,
    /// The ages' 99th percentile, milliseconds.
    pub(super) age_p99_ms: f64,
}

/// Publishes through one relay, receives from another or the same, and tells what came.
pub(super) fn walk(
    publish_at: SocketAddr,
    receive_at: SocketAddr,
    length: Duration,
) -> anyhow::Result<Seen> {
    let mut members = Members::new(65_535, false)?;
    let mut add = |number: u8, relay| {
        let mut session = Session::new(SessionConfig::new(WORLD, [number; 16]));
        if usize::from(number) >= PUBLISHERS {
            session.subscribe(Group::new(GROUP), Level(0));
        }
        members.add([(FROM, 0).into(), relay], &SocketOptions::default(), Some(session), true)
    };
    for number in 0..PUBLISHERS + RECEIVERS {
        add(number as u8, if number < PUBLISHERS { publish_at } else { receive_at })?;
    }
    members.join(|_| ())?;
    // Nanoseconds, up to a minute.
    let mut ages = Histogram::<u64>::new_with_bounds(1, 60_000_000_000, 3)?;
    let began = members.clock.now();
    let (mut published, mut tended) = (0u64, began);
    loop {
        let now = members.clock.now();
        let passed = now.since(began);
        if passed >= length + SETTLE {
            break;
        }
        // One after the other, evenly over time.
        let step = EVERY / PUBLISHERS as u32;
        let due = (passed.min(length).as_nanos() / step.as_nanos()) as u64;
        while published < due {
            publish(&mut members, published as usize % PUBLISHERS)?;
            published += 1;
        }
        if now.since(tended) > EVERY {
            tended = now;
            members.turn(now)?;
        }
        members.receive(step / 2, |heard| {
            if let Heard::Payload(now, payload) = heard
                && let Some(sent) = payload.first_chunk()
            {
                let age = now.since(Time::from_nanos(u64::from_be_bytes(*sent)));
                ages.saturating_record(age.as_nanos() as u64);
            }
        })?;
    }
    let age_p99_ms = ages.value_at_quantile(0.99) as f64 * 1e-6;
    let due = published * RECEIVERS as u64;
    Ok(Seen { published, due, delivered: ages.len(), age_p99_ms })
}

/// Publishes an update that says when it was sent.
fn publish(members: &mut Members, number: usize) -> anyhow::Result<()> {
    let mut payload = [0; 64];
    payload[..8].copy_from_slice(&members.clock.now().as_nanos().to_be_bytes());
    let member = &mut members.list[number];
    let session = member.session.as_mut().context("a member has no session")?;
    let mut out = [0; MAX_DATAGRAM];
    let group = Group::new(GROUP).address();
    // A session that was lost publishes nothing: what it was to publish is missing.
    if let Ok(len) = session.publish(group, Level(0), Flags(0), &payload, &mut out) {
        member.socket.send(&out[..len])?;
    }
    Ok(())
}

/// What was sent.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(super) struct Offered {
    pub(super) packets: u64,
    pub(super) seconds: f64,
}

/// Joins, says so, waits for a line, floods, and tells what was sent.
#[derive(Args)]
pub struct IsolationFlooder {
    #[arg(long)]
    relay: SocketAddr,
    #[arg(long)]
    comtree: u32,
    /// Where a member is subscribed to the flood
    #[arg(long)]
    subscriber_at: Option<SocketAddr>,
    /// Packets a second
    #[arg(long)]
    pps: f64,
    #[arg(long)]
    seconds: f64,
    /// Send it to a socket that nobody reads
    #[arg(long)]
    elsewhere: bool,
    #[arg(long)]
    pin: usize,
}

impl IsolationFlooder {
    /// Floods.
    ///
    /// # Errors
    /// If the relay does not let it in.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        canopy_net::pin_thread(self.pin)?;
        canopy_net::be_nice(NICE)?;
        let options = SocketOptions { receive_offload: false, ..SocketOptions::default() };
        let mut members = Members::new(MAX_DATAGRAM + 1, false)?;
        let comtree = Comtree(self.comtree);
        let session = Session::new(SessionConfig::new(comtree, [0xf1; 16]));
        members.add([(FROM, 0).into(), self.relay], &options, Some(session), false)?;
        if let Some(relay) = self.subscriber_at {
            // It reads little of what comes; that is its own loss.
            let options = SocketOptions { receive_buffer: 16 << 10, ..options };
            let mut session = Session::new(SessionConfig::new(comtree, [0xf2; 16]));
            session.subscribe(Group::new(GROUP), Level(0));
            members.add([(FROM, 0).into(), relay], &options, Some(session), true)?;
        }
        members.join(|_| ())?;
        let unread = Socket::bind(([127, 0, 0, 1], 0).into(), &options)?;
        let elsewhere = Socket::bind(([127, 0, 0, 1], 0).into(), &options)?;
        elsewhere.connect(unread.local_address())?;
        print_line("ready")?;
        let mut line = String::new();
        std::io::stdin().read_line(&mut line)?;
        let session = members.list[0].session.as_ref().context("it has no session")?;
        let packet = one_update(session, comtree)?;
        let (started, mut sent, mut packets, mut tended) = (Instant::now(), 0, 0, Instant::now());
        while started.elapsed().as_secs_f64() < self.seconds {
            let due = (started.elapsed().as_secs_f64() * self.pps) as u64;
            // What is far behind is not made up for.
            sent = sent.max(due.saturating_sub(self.pps as u64 / 100));
            while sent < due {
                let count = (due - sent).min(SEGMENTS);
                sent += count;
                let socket = self.elsewhere.then_some(&elsewhere);
                packets += burst(&mut members, &packet, count, socket)?;
            }
            if tended.elapsed() > EVERY {
                tended = Instant::now();
                members.turn(members.clock.now())?;
                members.receive(Duration::ZERO, |_| ())?;
            }
            std::thread::sleep(BEAT);
        }
        let seconds = started.elapsed().as_secs_f64();
        print_line(serde_json::to_string(&Offered { packets, seconds })?)?;
        Ok(ExitCode::SUCCESS)
    }
}

/// Seals so many copies of a packet and sends them in one call. Returns how many were taken.
fn burst(
    members: &mut Members,
    packet: &[u8],
    count: u64,
    elsewhere: Option<&Socket>,
) -> anyhow::Result<u64> {
    let member = &mut members.list[0];
    let session = member.session.as_mut().context("it has no session")?;
    let mut bytes = Vec::with_capacity(MAX_DATAGRAM * SEGMENTS as usize);
    let mut segment = 0;
    for _ in 0..count {
        let mut out = [0; MAX_DATAGRAM];
        out[..packet.len()].copy_from_slice(packet);
        segment = session.seal(&mut out, packet.len())?;
        bytes.extend_from_slice(&out[..segment]);
    }
    match elsewhere.unwrap_or(&member.socket).send_segments(&bytes, segment as u16) {
        Ok(()) => Ok(count),
        Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(0),
        Err(error) => Err(error).context("the flood cannot be sent"),
    }
}

/// A packet of one short update.
fn one_update(session: &Session, comtree: Comtree) -> anyhow::Result<Vec<u8>> {
    let mut out = [0; MAX_DATAGRAM];
    let mut writer = UpdatesWriter::new(&mut out, SAFE_DATAGRAM)?;
    writer.push(&Record::new(Group::new(GROUP).address(), 0, &[0; 32]));
    let len = writer.finish(&Header::new(Kind::Updates, session.id(), comtree));
    Ok(out[..len].to_vec())
}
