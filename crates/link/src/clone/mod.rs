//! The clone engines: the kernel makes one packet into one for each member of a set.
//!
//! `tc-bpf` sends one datagram, the *trigger*, to one of the members; a program on the device's
//! egress clones it for the others. `xdp` writes one frame to a tap; a program there broadcasts it
//! to the device. Both work for receivers on a device where the programs were installed
//! ([`install`]) and whose hardware address the kernel knows; all others are sent to one by one,
//! by the engine that needs no privilege, and so is everybody when the programs are gone.

mod features;
mod install;
mod netlink;
mod next_hop;
mod slot;
mod tap;
mod trigger;

pub use install::{
    ENGINE_FOLDER, InstallError, InstallRequest, Installation, install, installations,
};

use crate::engine::{Mmsg, SendEngine, SendReport};
use crate::group::{Burst, Group, Refused};
use crate::{EngineName, Socket};
use canopy_relay::{SendBatch, Transmit};
use netlink::{Device, Netlink};
use next_hop::NextHops;
use slot::{CHUNK, Entry, MEMBERS, Order, Slot};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::thread;
use std::time::Duration;
use trigger::{Fired, Trigger};

/// Sets smaller than this are sent to one by one: one clone costs less than one send, but readying
/// the kernel's side costs about as much as four.
pub(crate) const SMALLEST_SET: usize = 8;
/// A full device queue is waited for so long at first, and at most.
const WAITS: [Duration; 2] = [Duration::from_micros(100), Duration::from_millis(4)];
/// Waits in a row, without anything sent, before the datagrams count as refused.
const MAX_WAITS: u32 = 400;
/// Bytes of Ethernet's header and of IPv4's and IPv6's with UDP's.
const IPV4_UDP: usize = 28;
const IPV6_UDP: usize = 48;

/// A clone engine.
pub(crate) struct Cloner {
    slot: Slot,
    trigger: Trigger,
    hops: NextHops,
    device: Device,
    /// Whether several datagrams to one receiver leave as one packet.
    segments: bool,
    /// The address and port that the socket has; an unspecified address stands for any.
    local: SocketAddr,
    members: Members,
    plain: Mmsg,
    /// A burst whose parts were put together.
    joined: Vec<u8>,
    /// Which member comes first in the next send: all get the packet itself in turn, so that the
    /// kernel looks after all their hardware addresses.
    turn: usize,
}

/// The set that was sent to last, sorted by how its members are served.
#[derive(Default)]
struct Members {
    all: Vec<SocketAddr>,
    /// What the answers of [`NextHops`] were good for.
    generation: u64,
    /// IPv4, IPv6.
    families: [FamilySet; 2],
    /// Those that are sent to one by one.
    others: Group,
    /// Which family the slot's table holds.
    loaded: Option<usize>,
}

/// Members of one family whose packets are cloned.
#[derive(Default)]
struct FamilySet {
    /// Where their copies come from.
    source: Option<IpAddr>,
    entries: Vec<Entry>,
    addresses: Vec<SocketAddr>,
}

impl Cloner {
    /// Claims a slot of what is installed on the device that `socket` sends by.
    pub(crate) fn open(name: EngineName, socket: &Socket, folder: &Path) -> io::Result<Cloner> {
        let local = socket.local_address();
        let installation = find_installation(local.ip(), folder)?;
        let maps = trigger::Maps::open(&installation)?;
        let mut slot = Slot::claim(&installation.folder, maps.slots.fd())?;
        let device = Netlink::open()?.device_at(installation.device)?;
        slot.set_source(local.port(), device.mac);
        let trigger = match name {
            EngineName::Xdp => Trigger::frames(&installation, &mut slot, &device)?,
            _ => Trigger::datagrams(maps, &slot)?,
        };
        Ok(Cloner {
            slot,
            trigger,
            hops: NextHops::over(installation.device)?,
            segments: features::segments_udp(&device.name)?,
            device,
            local: SocketAddr::new(local.ip().to_canonical(), local.port()),
            members: Members::default(),
            plain: Mmsg::with_segments(socket)?,
            joined: Vec::new(),
            turn: 0,
        })
    }

    /// Sends to every member of a set: those that can be cloned for first, then the others.
    fn send_to_set(
        &mut self,
        socket: &Socket,
        members: impl Iterator<Item = SocketAddr> + Clone,
        burst: Burst<'_>,
        report: &mut SendReport,
    ) {
        self.sort(members);
        for family in 0..self.members.families.len() {
            if !self.members.families[family].entries.is_empty() {
                self.load(family);
                for packet in self.trigger.packets(burst) {
                    self.send_to_family(socket, family, packet, report);
                }
            }
        }
        self.turn = self.turn.wrapping_add(1);
        if !self.members.others.members().is_empty() {
            let members = self.members.others.members().len();
            report.fallbacks += (members * burst.datagrams()) as u64;
            // Plain sends refuse nothing.
            if let Ok(sent) = self.plain.send_to_group(socket, &self.members.others, burst) {
                report.add(sent);
            }
        }
    }

    /// Sorts the members by how they are served, unless they are those of the last time.
    fn sort(&mut self, members: impl Iterator<Item = SocketAddr> + Clone) {
        let generation = self.hops.generation();
        let known = &mut self.members;
        if known.generation == generation && members.clone().eq(known.all.iter().copied()) {
            return;
        }
        if known.generation != generation {
            self.look_at_device();
        }
        let known = &mut self.members;
        known.generation = generation;
        known.loaded = None;
        known.all.clear();
        known.all.extend(members);
        for set in &mut known.families {
            *set = FamilySet::default();
        }
        let mut others = Vec::new();
        for member in &known.all {
            let to = SocketAddr::new(member.ip().to_canonical(), member.port());
            let set = &mut known.families[usize::from(to.is_ipv6())];
            let way = self.hops.way(to.ip());
            let source = way.and_then(|way| source_of(self.local.ip(), way.source, to.ip()));
            if let (Some(way), Some(source)) = (way, source)
                && set.source.is_none_or(|others| others == source)
                && set.entries.len() < MEMBERS
            {
                set.source = Some(source);
                set.entries.push(Entry::new(to, way.mac));
                set.addresses.push(*member);
            } else {
                others.push(*member);
            }
        }
        for set in &mut known.families {
            if set.entries.len() < SMALLEST_SET {
                set.entries.clear();
                others.append(&mut set.addresses);
            }
        }
        known.others.replace(others);
    }

    /// Its hardware address, MTU or offloads may be others now. While it is gone, what was known of
    /// it is as good as anything.
    fn look_at_device(&mut self) {
        let found = Netlink::open().and_then(|mut netlink| netlink.device_at(self.device.index));
        if let Ok(device) = found {
            self.segments = features::segments_udp(&device.name).unwrap_or(false);
            self.slot.set_source(self.local.port(), device.mac);
            self.device = device;
        }
    }

    /// Members that one packet is for: where each copy is cut up before it reaches the device, its
    /// datagrams count.
    fn chunk(&self, packet: Burst<'_>) -> usize {
        if self.segments { CHUNK } else { (CHUNK / packet.datagrams()).max(1) }
    }

    fn load(&mut self, family: usize) {
        if self.members.loaded != Some(family) {
            self.slot.set_members(&self.members.families[family].entries);
            self.members.loaded = Some(family);
        }
    }

    /// Has one packet made into one for each member of a family, in chunks; waits where the
    /// device's queue is full and goes on where it stopped.
    fn send_to_family(
        &mut self,
        socket: &Socket,
        family: usize,
        packet: Burst<'_>,
        report: &mut SendReport,
    ) {
        let set = &self.members.families[family];
        let Some(source) = set.source else { return };
        let source = SocketAddr::new(source, self.local.port());
        let (all, datagrams) = (set.addresses.len(), packet.datagrams() as u64);
        let (first, chunk) = (self.turn % all, self.chunk(packet));
        let (mut done, mut waits, mut pause) = (0, 0, WAITS[0]);
        while done < all {
            let count = chunk.min(all - done);
            let order = Order { first: (first + done) % all, count, length: packet.bytes().len() };
            let last = set.addresses[(first + done + count - 1) % all];
            let sequence = self.slot.arm(order);
            let fired = self.trigger.fire(sequence, source, last.ip().to_canonical(), packet);
            let outcome = self.slot.outcome();
            let served = match fired {
                Ok(Fired::Sent) => outcome.served,
                Ok(Fired::Lost) => outcome.served.min(count - 1),
                Ok(Fired::Full) | Err(_) => 0,
            };
            report.sent += (served as u64 - u64::from(outcome.dropped)) * datagrams;
            report.cloned += (served as u64 - u64::from(outcome.dropped)) * datagrams;
            report.failed += u64::from(outcome.dropped) * datagrams;
            done += served;
            if served > 0 {
                (waits, pause) = (0, WAITS[0]);
            }
            if served == count {
                continue;
            }
            let lost = fired.is_err() || (matches!(fired, Ok(Fired::Sent)) && !outcome.ran);
            if lost || outcome.refused < 0 || waits == MAX_WAITS {
                // The programs are gone, or the packet waits for a hardware address.
                let rest = (done..all).map(|number| set.addresses[(first + number) % all]);
                report.fallbacks += (all - done) as u64 * datagrams;
                report.add(self.plain.send_to_each(socket, rest, packet));
                return;
            }
            waits += 1;
            report.waits += 1;
            thread::sleep(pause);
            pause = (pause * 2).min(WAITS[1]);
        }
    }

    /// The longest datagram that the device takes to any member.
    fn longest_datagram(&self, members: &[SocketAddr]) -> usize {
        let ipv6 = members.iter().any(|member| member.ip().to_canonical().is_ipv6());
        self.device.mtu - if ipv6 { IPV6_UDP } else { IPV4_UDP }
    }
}

impl SendEngine for Cloner {
    fn send(&mut self, socket: &Socket, batch: &SendBatch) -> SendReport {
        let mut report = SendReport::default();
        let mut rest = batch.transmits();
        while !rest.is_empty() {
            let sets = rest.chunk_by(|a, b| batch.carries_the_same(a, b));
            let small: usize = sets.map(<[_]>::len).take_while(|len| *len < SMALLEST_SET).sum();
            if small > 0 {
                self.plain.send_transmits(socket, batch, &rest[..small], &mut report);
                rest = &rest[small..];
                continue;
            }
            let alike = |transmit: &&Transmit| batch.carries_the_same(&rest[0], transmit);
            let (set, after) = rest.split_at(rest.iter().take_while(alike).count());
            let mut joined = std::mem::take(&mut self.joined);
            joined.clear();
            batch.parts(&set[0]).for_each(|part| joined.extend_from_slice(part));
            let segment = usize::from(set[0].segment);
            match Burst::segments(&joined, segment) {
                Ok(burst) if segment <= self.device.mtu - IPV6_UDP => {
                    let members = set.iter().map(|transmit| transmit.to);
                    self.send_to_set(socket, members, burst, &mut report);
                }
                _ => self.plain.send_transmits(socket, batch, set, &mut report),
            }
            self.joined = joined;
            rest = after;
        }
        report
    }

    fn send_to_group(
        &mut self,
        socket: &Socket,
        group: &Group,
        burst: Burst<'_>,
    ) -> Result<SendReport, Refused> {
        let members = group.members();
        if members.len() > MEMBERS {
            return Err(Refused::TooManyMembers { members: members.len(), most: MEMBERS });
        }
        let (bytes, most) = (usize::from(burst.segment()), self.longest_datagram(members));
        if bytes > most {
            return Err(Refused::OverMtu { bytes, most });
        }
        let mut report = SendReport::default();
        self.send_to_set(socket, members.iter().copied(), burst, &mut report);
        Ok(report)
    }
}

/// Where copies for a receiver come from: the socket's own address, or if it has none, what the
/// route says.
fn source_of(local: IpAddr, preferred: Option<IpAddr>, receiver: IpAddr) -> Option<IpAddr> {
    if local.is_unspecified() {
        return preferred;
    }
    (local.is_ipv4() == receiver.is_ipv4()).then_some(local)
}

/// What is installed on the device that has this address, or on the only one.
fn find_installation(local: IpAddr, folder: &Path) -> io::Result<Installation> {
    let found = installations(folder)?.into_iter().filter(Installation::is_here);
    let on_device: Vec<Installation> = if local.is_unspecified() {
        found.collect()
    } else {
        let devices = netlink::devices_with(local.to_canonical())?;
        found.filter(|installation| devices.contains(&installation.device)).collect()
    };
    match &on_device[..] {
        [one] => Ok(one.clone()),
        [] => Err(io::Error::other(
            "not installed on the device of this address (`canopy engine install` does it)",
        )),
        _ => Err(io::Error::other(
            "installed on several devices; listen on an address of the one to use",
        )),
    }
}
