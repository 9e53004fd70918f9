//! The clone engines: the kernel makes one packet into one for each member of a set.
//!
//! `tc-bpf` sends one datagram, the *trigger*, to one of the members; a program on the device's
//! egress clones it for the others. `xdp` writes one frame to a tap; a program there broadcasts it
//! to the device. Both work for receivers on a device where the programs were installed
//! ([`install`]) and whose hardware address the kernel knows; all others are sent to one by one,
//! by the engine that needs no privilege, and so is everybody when the programs are gone.

#[cfg(test)]
mod bed;
mod features;
mod install;
mod members;
mod netlink;
mod next_hop;
mod slot;
mod tap;
mod trigger;

pub use install::{InstallError, InstallRequest, Installation, install, installations};

use crate::EngineName;
use canopy_batch::{SendBatch, Transmit};
use canopy_net::parts::Retries;
use canopy_net::{Burst, Group, Mmsg, Refused, SendEngine, SendReport, Socket};
use members::Members;
pub(crate) use members::SMALLEST_SET;
use netlink::{Device, Netlink};
use next_hop::NextHops;
use slot::{CHUNK, MEMBERS, Order, Slot};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::slice;
use trigger::{Fired, Trigger};

/// Packets in a row that the programs did not see before no more are handed to them, until
/// something changes: each may leave as it is, for a port that nobody named.
const MAX_UNSEEN: u32 = 8;
/// Bytes of Ethernet's header and of IPv4's and IPv6's with UDP's.
const IPV4_UDP: usize = 28;
const IPV6_UDP: usize = 48;

/// A clone engine.
pub(crate) struct Cloner {
    slot: Slot,
    trigger: Trigger,
    hops: NextHops,
    mtu: usize,
    /// Datagrams of the longest packet that the device cuts up itself.
    most_segments: usize,
    /// The address and port that the socket has; an unspecified address stands for any.
    local: SocketAddr,
    members: Members,
    plain: Mmsg,
    /// A burst whose parts were put together.
    joined: Vec<u8>,
    /// Receivers of the set that is sent to.
    chosen: Vec<SocketAddr>,
    /// Which family the slot's table holds.
    loaded: Option<usize>,
    /// Of [`NextHops`], when the device was looked at.
    generation: u64,
    /// Packets in a row that the programs did not see.
    unseen: u32,
    /// Whether the installation was removed.
    gone: bool,
    /// Whether no more were handed to the programs, and none was seen since.
    stopped: bool,
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
        let mtu = device.mtu.min(trigger.longest_packet());
        Ok(Cloner {
            slot,
            trigger,
            hops: NextHops::over(installation.device)?,
            mtu,
            most_segments: most_segments(&device)?,
            local: SocketAddr::new(local.ip().to_canonical(), local.port()),
            members: Members::default(),
            plain: Mmsg::with_segments(socket)?,
            joined: Vec::new(),
            chosen: Vec::new(),
            loaded: None,
            generation: 0,
            unseen: 0,
            gone: false,
            stopped: false,
        })
    }

    /// Takes note of what changed on the device: its MTU, its offloads, its hardware address.
    fn follow_device(&mut self) {
        let generation = self.hops.generation();
        if self.generation == generation {
            return;
        }
        self.generation = generation;
        self.unseen = 0;
        // Without an answer the device is gone; then nobody can be reached over it either.
        if let Ok(device) = self.hops.device() {
            self.mtu = device.mtu.min(self.trigger.longest_packet());
            self.most_segments = most_segments(&device).unwrap_or(1);
            self.slot.set_source(self.local.port(), device.mac);
        }
    }

    /// The receivers of a set that are sent to from the address that the route gives, as clones
    /// are. Sends to the others.
    fn sent_by_route(
        &mut self,
        socket: &Socket,
        batch: &SendBatch,
        set: &[Transmit],
        retries: &mut Retries,
        report: &mut SendReport,
    ) -> Vec<SocketAddr> {
        let mut chosen = std::mem::take(&mut self.chosen);
        chosen.clear();
        for transmit in set {
            let (to, local) = (transmit.to.remote, transmit.to.local);
            let route = |hops: &mut NextHops| hops.way(to.ip()).and_then(|way| way.source);
            if local.is_none() || route(&mut self.hops) == local {
                chosen.push(to);
            } else {
                report.fallbacks += u64::from(transmit.datagrams());
                self.plain.send_transmits(
                    socket,
                    batch,
                    slice::from_ref(transmit),
                    retries,
                    report,
                );
            }
        }
        chosen
    }

    /// Sends to every member of a set: those that can be cloned for first, then the others.
    fn send_to_set(
        &mut self,
        socket: &Socket,
        members: impl Iterator<Item = SocketAddr> + Clone,
        burst: Burst<'_>,
        retries: &mut Retries,
        report: &mut SendReport,
    ) {
        if self.members.sort(&mut self.hops, self.local.ip(), members) {
            self.loaded = None;
        }
        for family in 0..self.members.families.len() {
            if !self.members.families[family].entries.is_empty() {
                self.send_to_family(socket, family, burst, retries, report);
            }
        }
        let others = &self.members.others;
        if !others.members().is_empty() {
            // All of them count, and not twice what plain sends had to cut themselves.
            let fallbacks = report.fallbacks + (others.members().len() * burst.datagrams()) as u64;
            self.plain.send_group(socket, others, burst, retries, report);
            report.fallbacks = fallbacks;
        }
    }

    fn send_to_family(
        &mut self,
        socket: &Socket,
        family: usize,
        burst: Burst<'_>,
        retries: &mut Retries,
        report: &mut SendReport,
    ) {
        let set = &mut self.members.families[family];
        let mut plain = set.bring_due_to_front(&mut self.hops);
        if plain > 0 || self.loaded != Some(family) {
            self.slot.set_members(&set.entries);
            self.loaded = Some(family);
        }
        if self.gone || self.unseen >= MAX_UNSEEN {
            self.stopped = true;
            plain = set.entries.len();
        }
        let set = &self.members.families[family];
        self.send_plainly(socket, set.addresses[..plain].iter().copied(), burst, retries, report);
        let Some(source) = set.source else { return };
        let source = SocketAddr::new(source, self.local.port());
        let fallbacks = report.fallbacks;
        for packet in self.trigger.packets(burst) {
            // What is cloned may overtake what was sent plainly, so the rest of the burst is too.
            let in_order = report.fallbacks == fallbacks;
            let done = if in_order {
                self.clone_packet(socket, (family, plain), source, packet, retries, report)
            } else {
                plain
            };
            let rest = &self.members.families[family].addresses[done..];
            self.send_plainly(socket, rest.iter().copied(), packet, retries, report);
        }
    }

    fn send_plainly(
        &self,
        socket: &Socket,
        members: impl Iterator<Item = SocketAddr> + Clone,
        burst: Burst<'_>,
        retries: &mut Retries,
        report: &mut SendReport,
    ) {
        report.fallbacks += (members.clone().count() * burst.datagrams()) as u64;
        self.plain.send_to_each(socket, members, burst, retries, report);
    }

    /// Has one packet made into one for each member of a family from the member `done` on, in
    /// chunks; waits where the device's queue is full and goes on where it stopped. Returns the
    /// first member that was not served.
    fn clone_packet(
        &mut self,
        socket: &Socket,
        (family, mut done): (usize, usize),
        source: SocketAddr,
        packet: Burst<'_>,
        retries: &mut Retries,
        report: &mut SendReport,
    ) -> usize {
        let addresses = &self.members.families[family].addresses;
        let datagrams = packet.datagrams() as u64;
        // Where each copy is cut up before it reaches the device, its datagrams count.
        let is_cut_here = packet.datagrams() > self.most_segments;
        let chunk = if is_cut_here { (CHUNK / packet.datagrams()).max(1) } else { CHUNK };
        while done < addresses.len() {
            // 1. Hand over the packet.
            let count = chunk.min(addresses.len() - done);
            let order = Order { first: done, count, length: packet.bytes().len() };
            let last = addresses[done + count - 1].ip().to_canonical();
            let sequence = self.slot.arm(order);
            let fired = self.trigger.fire(sequence, source, last, packet);
            let outcome = self.slot.outcome();

            // 2. Count what became of it.
            let served = match fired {
                Ok(Fired::Sent) => outcome.served,
                // The copies left before the packet itself got lost.
                Ok(Fired::Lost | Fired::Full) | Err(_) => outcome.served.min(count - 1),
            };
            let lost = (0..served).filter(|number| outcome.lost >> number & 1 == 1);
            let cloned = (served - lost.clone().count()) as u64 * datagrams;
            report.sent += cloned;
            report.cloned += cloned;
            if outcome.lost != 0 {
                retries.nap(report);
                let lost = lost.map(|number| addresses[done + number]);
                self.send_plainly(socket, lost, packet, retries, report);
            }
            done += served;
            if outcome.ran {
                self.unseen = 0;
                self.stopped = false;
            }
            retries.next(cloned > 0);
            if served == count {
                continue;
            }

            // 3. Give up where waiting does not help: the programs are gone, the device is down, or
            // the packet waits for a hardware address.
            // A queue is behind the program: what the program did not see, no queue has lost.
            let unseen = !outcome.ran && !matches!(fired, Ok(Fired::Full));
            if unseen || fired.is_err() {
                self.unseen += 1;
                self.gone |= self.slot.is_gone();
                return done;
            }
            if outcome.refused < 0 || !self.trigger.is_queued() {
                return done;
            }

            // 4. Wait for the queue.
            if !retries.nap(report) {
                return done;
            }
        }
        done
    }

    /// The longest datagram that the device takes to any member.
    fn longest_datagram(&self, members: &[SocketAddr]) -> usize {
        let ipv6 = members.iter().any(|member| member.ip().to_canonical().is_ipv6());
        self.mtu.saturating_sub(if ipv6 { IPV6_UDP } else { IPV4_UDP })
    }
}

impl SendEngine for Cloner {
    fn send(&mut self, socket: &Socket, batch: &SendBatch) -> SendReport {
        let (mut report, mut retries) = (SendReport::default(), Retries::new());
        self.follow_device();
        let mut rest = batch.transmits();
        while !rest.is_empty() {
            let sets = rest.chunk_by(|a, b| batch.carries_the_same(a, b));
            let small: usize = sets.map(<[_]>::len).take_while(|len| *len < SMALLEST_SET).sum();
            if small > 0 {
                let small_sets = &rest[..small];
                self.plain.send_transmits(socket, batch, small_sets, &mut retries, &mut report);
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
                Ok(burst) if segment + IPV6_UDP <= self.mtu => {
                    let members = self.sent_by_route(socket, batch, set, &mut retries, &mut report);
                    let chosen = members.iter().copied();
                    self.send_to_set(socket, chosen, burst, &mut retries, &mut report);
                    self.chosen = members;
                }
                _ => self.plain.send_transmits(socket, batch, set, &mut retries, &mut report),
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
        self.follow_device();
        let (bytes, most) = (usize::from(burst.segment()), self.longest_datagram(members));
        if bytes > most {
            return Err(Refused::OverMtu { bytes, most });
        }
        let (mut report, mut retries) = (SendReport::default(), Retries::new());
        let members = members.iter().copied();
        self.send_to_set(socket, members, burst, &mut retries, &mut report);
        Ok(report)
    }

    fn has_stopped(&self) -> bool {
        self.stopped
    }
}

fn most_segments(device: &Device) -> io::Result<usize> {
    let cuts = features::segments_udp(&device.name)?;
    Ok(if cuts { device.most_segments } else { 1 })
}

/// What is installed on the device that has this address, or on the only one.
fn find_installation(local: IpAddr, folder: &Path) -> io::Result<Installation> {
    let ip = local.to_canonical();
    if ip.is_loopback() {
        let why = format!(
            "{ip} is the loopback device's, and the clone engines need an Ethernet device; listen \
             on an address of one, such as `ip address` lists"
        );
        return Err(io::Error::other(why));
    }
    let found =
        installations(folder)?.into_iter().filter(|found| found.complete && found.is_here());
    let on_device: Vec<Installation> = if ip.is_unspecified() {
        found.collect()
    } else {
        let devices = netlink::devices_with(ip)?;
        found.filter(|installation| devices.contains(&installation.device)).collect()
    };
    let folder = folder.display();
    match &on_device[..] {
        [one] => Ok(one.clone()),
        [] if ip.is_unspecified() => Err(io::Error::other(format!(
            "not installed on any device (none is in {folder}); as root: \
             canopy engine install --device NAME"
        ))),
        [] => Err(io::Error::other(format!(
            "not installed on the device with the address {ip} (it is not in {folder}); as root: \
             canopy engine install --device NAME"
        ))),
        _ => Err(io::Error::other(
            "installed on several devices; listen on an address of the one to use",
        )),
    }
}
