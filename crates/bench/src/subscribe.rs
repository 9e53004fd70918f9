//! `canopy bench subscribe`: how many changes of subscriptions one core of a relay takes.
//!
//! Participants walk: each holds subscriptions to neighbouring groups, and of every two changes one
//! ends the oldest and one begins the next. In memory it is the data plane alone, fed with encoded
//! packets; through the socket it is the relay as it is served, with the kernel's work for it. In
//! memory each packet is another participant's than the one before, so that a change finds its part
//! of the tables in no near cache; through the socket a participant's packets come several at a time, without
//! which the load would be slower than the relay.

use crate::Processors;
use crate::members::{Heard, Member, Members, session};
use crate::noise::median;
use crate::relay::{Server, UNLIMITED};
use anyhow::{Context, bail, ensure};
use canopy_net::{SocketOptions, process_cpu_time, thread_cpu_time};
use canopy_output::{print_line, print_note};
use canopy_relay::{
    ADDRESS_REST, Budgets, ComtreeConfig, Gate, Mode, Places, Relay, RelayConfig, Siblings,
    TableLimits,
};
use canopy_session::{Keyring, Session, SessionLimits, State};
use canopy_wire::{
    Change, Comtree, Group, Kind, Level, MAX_DATAGRAM, Packet, SessionId, SubscribeAck,
    SubscribeWriter, Time,
};
use clap::Args;
use serde::Serialize;
use std::collections::VecDeque;
use std::net::{Ipv4Addr, SocketAddr};
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Changes in a packet: what the issue of the spine promises to fit, and the fewest.
const CHANGES: [u32; 2] = [350, 1];
const PARTICIPANTS: usize = 256;
/// Groups that each is subscribed to, half of them shared with the next participant.
const HELD: u32 = 175;
/// Packets of a participant that leave in one segmented send.
const PACKETS_A_SEND: u32 = 16;
/// Participants whose packets are on their way.
const IN_FLIGHT: usize = 16;
/// What is not acknowledged after this long is sent again from where the relay lost it.
const LOST_AFTER: Duration = Duration::from_millis(100);

/// Counts the subscription changes that one core of a relay applies and acknowledges in a second of
/// its processor time: 256 participants walk through groups, 350 changes a packet and 1 a packet,
/// in memory ('sealed') and through the socket of a real relay process.
#[derive(Args)]
pub(crate) struct SubscribeBench {
    /// Rounds of each row, of which the median is told
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=99))]
    rounds: u32,
    /// Seconds of each round
    #[arg(long, default_value_t = 1.0)]
    seconds: f64,
    /// Print the rows as JSON, one a line
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct SubscribeRow {
    path: &'static str,
    changes_per_packet: u32,
    changes_per_core_second: f64,
}

impl SubscribeBench {
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        if !(0.05..=60.0).contains(&self.seconds) {
            bail!("--seconds {} is out of range; choose 0.05 to 60", self.seconds);
        }
        let relay_on = Processors::take()?.relay_on[0];
        for path in ["sealed", "socket"] {
            for changes in CHANGES {
                print_note(format_args!("{path}, {changes} changes a packet"));
                let rounds = match path {
                    "sealed" => self.in_memory(changes)?,
                    _ => self.through_the_socket(changes, relay_on)?,
                };
                let row = SubscribeRow {
                    path,
                    changes_per_packet: changes,
                    changes_per_core_second: median(&rounds).round(),
                };
                print_line(if self.json { serde_json::to_string(&row)? } else { row.in_words() })?;
            }
        }
        Ok(ExitCode::SUCCESS)
    }

    fn in_memory(&self, changes: u32) -> anyhow::Result<Vec<f64>> {
        let mut relay = relay();
        let mut walkers = join(&mut relay, changes)?;
        let mut datagrams = vec![0; PARTICIPANTS * MAX_DATAGRAM];
        let mut lengths = [0; PARTICIPANTS];
        let mut rounds = Vec::new();
        // The first round warms up: tables grow to their size in it.
        for _ in 0..=self.rounds {
            let before = relay.counters().clone();
            let mut cpu = Duration::ZERO;
            let until = Instant::now() + Duration::from_secs_f64(self.seconds);
            while Instant::now() < until {
                let places = datagrams.chunks_mut(MAX_DATAGRAM).zip(&mut lengths);
                for (walker, (place, len)) in walkers.iter_mut().zip(places) {
                    walker.asked += 1;
                    *len = walker.sealed_packet(walker.asked, place)?;
                }
                let started = thread_cpu_time();
                let all = datagrams.chunks_mut(MAX_DATAGRAM).zip(&lengths);
                for (walker, (datagram, len)) in walkers.iter().zip(all) {
                    relay.handle_datagram(NOW, walker.ip_port, &mut datagram[..*len]);
                }
                relay.transmit(NOW, |_| ());
                cpu += thread_cpu_time().saturating_sub(started);
            }
            let after = relay.counters();
            ensure!(after.drops == before.drops, "the relay dropped what it was asked");
            let changed = after.subscription_changes - before.subscription_changes;
            rounds.push(changed as f64 / cpu.as_secs_f64());
        }
        Ok(rounds.split_off(1))
    }

    fn through_the_socket(&self, changes: u32, relay_on: usize) -> anyhow::Result<Vec<f64>> {
        let pin = relay_on.to_string();
        let flags = ["--threads", "1", "--pin", &pin];
        let server = Server::start_relay(&[&flags[..], &UNLIMITED].concat())?;
        let mut members = Members::new(65_535, false)?;
        let from = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        for number in 0..PARTICIPANTS {
            let session = session(number, std::iter::empty());
            let options = SocketOptions::default();
            members.add([from, server.address], &options, Some(session), true)?;
        }
        members.join(|_| ())?;
        let mut walk = Walk {
            walkers: (0..PARTICIPANTS).map(|number| Walker::new(number, None, changes)).collect(),
            members,
            idle: (0..PARTICIPANTS).collect(),
            in_flight: Vec::new(),
            packets: 0,
        };
        let mut rounds = Vec::new();
        for _ in 0..=self.rounds {
            let (cpu, packets) = (process_cpu_time(server.process())?, walk.packets);
            walk.run(Duration::from_secs_f64(self.seconds))?;
            let cpu = process_cpu_time(server.process())?.saturating_sub(cpu);
            let changed = (walk.packets - packets) * u64::from(changes);
            rounds.push(changed as f64 / cpu.as_secs_f64());
        }
        Ok(rounds.split_off(1))
    }
}

impl SubscribeRow {
    fn in_words(&self) -> String {
        format!(
            "{:<7} {:>4} changes a packet: {:>8.2} M changes a core-second",
            self.path,
            self.changes_per_packet,
            self.changes_per_core_second / 1e6
        )
    }
}

/// In memory no time passes.
const NOW: Time = Time::from_millis(1);
const COMTREE: Comtree = Comtree(1);

fn relay() -> Relay {
    let config = RelayConfig {
        mode: Mode::Immediate,
        comtrees: vec![ComtreeConfig::new(COMTREE, 1)],
        trust: None,
        origin: canopy_relay::UnixTime(0),
        places: Places::new(PARTICIPANTS as u32),
        max_sessions: PARTICIPANTS as u32,
        max_datagram: MAX_DATAGRAM as u16,
        address_rest: ADDRESS_REST,
        life: None,
        log_keys: false,
        limits: SessionLimits::default(),
        tables: TableLimits { max_new_groups_per_participant: u32::MAX, ..TableLimits::default() },
        budgets: Budgets::NONE,
        gate: Gate::open(),
        smallest_set: None,
    };
    Relay::new(config, Siblings::alone(), Keyring::new([1; 16]), &[2; 16])
}

/// Joins all participants to a relay in memory, in one round trip after the other.
fn join(relay: &mut Relay, changes: u32) -> anyhow::Result<Vec<Walker>> {
    let joined = |number: usize| {
        let mut session = session(number, std::iter::empty());
        let ip_port = ip_port(number);
        let mut out = [0; MAX_DATAGRAM];
        while let Some(len) = session.poll_transmit(NOW, &mut out) {
            relay.handle_datagram(NOW, ip_port, &mut out[..len]);
            relay.transmit(NOW, |batch| {
                for reply in batch.transmits() {
                    let mut bytes = batch.parts(reply).collect::<Vec<_>>().concat();
                    // What the session makes of it shows in its state.
                    let _ = session.handle_datagram(NOW, &mut bytes, |_| ());
                }
            });
        }
        ensure!(session.state() == State::Connected, "the relay did not take participant {number}");
        Ok(Walker::new(number, Some(session), changes))
    };
    (0..PARTICIPANTS).map(joined).collect()
}

fn ip_port(number: usize) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, 1], 1024 + number as u16))
}

/// A participant that walks through the groups.
struct Walker {
    ip_port: SocketAddr,
    /// In memory; otherwise a member has it.
    session: Option<Session>,
    /// The first of its groups; after twice as many as it holds it is back there.
    first: u32,
    changes: u32,
    /// The last packet that was sent, and the last that was acknowledged.
    asked: u32,
    acked: u32,
}

impl Walker {
    fn new(number: usize, session: Option<Session>, changes: u32) -> Walker {
        let first = number as u32 * HELD / 2;
        Walker { ip_port: ip_port(number), session, first, changes, asked: 0, acked: 0 }
    }

    /// Writes the packet of this number; the first begins the subscriptions that it holds.
    fn packet(&self, id: SessionId, sequence: u32, out: &mut [u8]) -> anyhow::Result<usize> {
        let group = |number: u32| Group::new(self.first + number % (2 * HELD));
        let (before, after) = match sequence {
            1 => (0, 0),
            // The walk comes back to where it was, and a number stays small.
            _ => {
                let before = (sequence - 2) % (4 * HELD) * self.changes;
                (before, before + self.changes)
            }
        };
        let drops = (before / 2..after / 2).map(|number| Change::Drop(group(number)));
        let begun = if sequence == 1 { 0..HELD } else { 0..0 };
        let adds = before.div_ceil(2) + HELD..after.div_ceil(2) + HELD;
        let adds = begun.chain(adds).map(|number| Change::Add(group(number), Level(0)));
        let mut writer = SubscribeWriter::new(out, sequence, MAX_DATAGRAM)?;
        let fits = drops.chain(adds).all(|change| writer.push(change));
        ensure!(fits, "{} changes do not fit a packet", self.changes);
        Ok(writer.finish(COMTREE, id))
    }

    /// The same, sealed with the session's key.
    fn sealed_packet(&mut self, sequence: u32, out: &mut [u8]) -> anyhow::Result<usize> {
        let id = self.session.as_ref().map_or(SessionId::NONE, Session::id);
        let len = self.packet(id, sequence, out)?;
        let session = self.session.as_mut().context("in memory each has its session")?;
        Ok(session.seal(out, len)?)
    }

    /// The packets that are not acknowledged, for one segmented send: their bytes and one's length.
    fn unacknowledged(&self, session: &mut Session) -> anyhow::Result<(Vec<u8>, usize)> {
        let (mut bytes, mut each) = (Vec::new(), 0);
        for sequence in self.acked + 1..=self.asked {
            let mut out = [0; MAX_DATAGRAM];
            let len = self.packet(session.id(), sequence, &mut out)?;
            each = session.seal(&mut out, len)?;
            bytes.extend_from_slice(&out[..each]);
        }
        Ok((bytes, each))
    }
}

/// All participants of a relay that is reached through sockets.
struct Walk {
    members: Members,
    walkers: Vec<Walker>,
    /// Those that wait for their turn, longest first.
    idle: VecDeque<usize>,
    /// Those that wait for the relay, and since when.
    in_flight: Vec<(usize, Time)>,
    /// Packets that were acknowledged.
    packets: u64,
}

impl Walk {
    fn run(&mut self, time: Duration) -> anyhow::Result<()> {
        let start = self.members.clock.now();
        while self.members.clock.now().since(start) < time {
            while self.in_flight.len() < IN_FLIGHT
                && let Some(number) = self.idle.pop_front()
            {
                let walker = &mut self.walkers[number];
                // The first packet goes alone: it is longer than the others.
                walker.asked += if walker.asked == 0 { 1 } else { PACKETS_A_SEND };
                self.send(number)?;
            }
            let walkers = &mut self.walkers;
            self.members.receive(LOST_AFTER / 20, |heard| {
                if let Heard::Opened(number, packet) = heard
                    && let Some(sequence) = acknowledged(packet)
                {
                    walkers[number].acked = walkers[number].acked.max(sequence);
                }
            })?;
            let now = self.members.clock.now();
            for (number, since) in std::mem::take(&mut self.in_flight) {
                let walker = &self.walkers[number];
                if walker.acked == walker.asked {
                    self.packets += if walker.acked == 1 { 0 } else { u64::from(PACKETS_A_SEND) };
                    self.idle.push_back(number);
                } else if now.since(since) > LOST_AFTER {
                    self.send(number)?;
                } else {
                    self.in_flight.push((number, since));
                }
            }
        }
        Ok(())
    }

    fn send(&mut self, number: usize) -> anyhow::Result<()> {
        let Member { socket, session, .. } = &mut self.members.list[number];
        let session = session.as_mut().context("the participant has no session")?;
        let (bytes, each) = self.walkers[number].unacknowledged(session)?;
        socket
            .send_segments(&bytes, each as u16)
            .context("the kernel does not take a segmented send")?;
        self.in_flight.push((number, self.members.clock.now()));
        Ok(())
    }
}

/// The number of the subscribe packet that a datagram acknowledges.
fn acknowledged(datagram: &[u8]) -> Option<u32> {
    let packet = Packet::new_checked(datagram).ok()?;
    if packet.header().kind != Kind::SubscribeAck {
        return None;
    }
    Some(SubscribeAck::new_checked(&packet).ok()?.sequence())
}

#[cfg(test)]
mod tests {
    use super::*;
    use canopy_wire::Subscribe;
    use std::collections::BTreeSet;

    #[test]
    fn a_walker_always_holds_as_many_and_changes_what_it_says() {
        for changes in CHANGES {
            let walker = Walker::new(3, None, changes);
            let mut held = BTreeSet::new();
            for sequence in 1..=5 * HELD {
                let mut out = [0; MAX_DATAGRAM];
                let len = walker.packet(SessionId::new(7), sequence, &mut out).unwrap();
                let packet = Packet::new_checked(&out[..len]).unwrap();
                let subscribe = Subscribe::new_checked(&packet).unwrap();
                let expected = if sequence == 1 { HELD } else { changes };
                assert_eq!(subscribe.changes().count() as u32, expected);
                for change in subscribe.changes() {
                    let fits = match change {
                        Change::Add(group, _) => held.insert(group),
                        Change::Drop(group) => held.remove(&group),
                    };
                    assert!(fits, "{change:?} of packet {sequence}, {changes} at a time");
                }
                assert!((HELD..=HELD + 1).contains(&(held.len() as u32)));
            }
        }
    }

    #[test]
    fn the_relay_in_memory_applies_every_change() {
        let bench = SubscribeBench { rounds: 1, seconds: 0.05, json: false };
        for changes in CHANGES {
            assert!(bench.in_memory(changes).unwrap()[0] > 0.0);
        }
    }
}
