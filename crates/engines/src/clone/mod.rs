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
mod maps;
mod members;
mod netlink;
mod next_hop;
mod slot;
mod tap;
mod trigger;

pub use install::{InstallError, InstallRequest, Installation, install, installations};

use crate::EngineName;
use canopy_batch::{Segments, SendBatch, Transmit, Unsent};
use canopy_net::{Full, Mmsg, SendEngine, Sendto, Sent, Socket};
use maps::Maps;
use members::Members;
pub(crate) use members::SMALLEST_SET;
use netlink::{Device, Netlink};
use next_hop::NextHops;
use slot::{CHUNK, Order, Slot};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use trigger::{Fired, Trigger};

/// After so many packets in a row that the programs did not see, no more are handed to them until
/// something changes: such a packet may leave as it is, for a port that nobody named.
const MAX_UNSEEN: u32 = 8;
/// Bytes of IPv6's header with UDP's.
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
    /// Sends the rest of a burst when a part of it was cloned.
    one_by_one: Sendto,
    /// A burst whose parts were put together.
    joined: Vec<u8>,
    /// How many datagrams each member of the set at hand was sent.
    served: Vec<u32>,
    /// Members that are sent to plainly, and where they are in the set.
    plainly: Vec<Transmit>,
    plain_places: Vec<u32>,
    /// Which family the slot's table holds.
    loaded: Option<usize>,
    /// The state of [`NextHops`] when the device was last looked at.
    generation: u64,
    /// Packets in a row that the programs did not see.
    unseen: u32,
    /// Whether the installation was removed.
    gone: bool,
    /// Whether packets are kept from the programs, because those did not see the last ones.
    stopped: bool,
}

impl Cloner {
    /// Claims a slot of what is installed on the device that `socket` sends by.
    pub(crate) fn open(name: EngineName, socket: &Socket, folder: &Path) -> io::Result<Cloner> {
        let local = socket.local_address();
        let installation = find_installation(local.ip(), folder)?;
        let maps = Maps::open(&installation.folder, installation.owner)?;
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
            one_by_one: Sendto::new(),
            joined: Vec::new(),
            served: Vec::new(),
            plainly: Vec::new(),
            plain_places: Vec::new(),
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

    /// Sends the same to every member of a set: those first for whom it can be cloned. What is not
    /// taken is appended to `rest`, by its place in the set.
    fn send_to_set(
        &mut self,
        socket: &Socket,
        batch: &SendBatch,
        set: &[Transmit],
        segments: Segments<'_>,
        rest: &mut Vec<Unsent>,
    ) -> Sent {
        let mut sent = Sent::default();
        let members = set.iter().map(|transmit| transmit.to);
        if self.members.sort(&mut self.hops, self.local.ip(), members) {
            self.loaded = None;
        }
        self.served.clear();
        self.served.resize(set.len(), 0);
        for family in 0..self.members.families.len() {
            if sent.full.is_none() && !self.members.families[family].entries.is_empty() {
                self.clone_to_family(family, segments, &mut sent);
            }
        }
        self.send_plainly(socket, batch, set, &mut sent, rest);
        sent
    }

    /// Has a burst cloned for the members of one family, as far as that goes.
    fn clone_to_family(&mut self, family: usize, segments: Segments<'_>, sent: &mut Sent) {
        let set = &mut self.members.families[family];
        let due = set.bring_due_to_front(&mut self.hops);
        if due > 0 || self.loaded != Some(family) {
            self.slot.set_members(&set.entries);
            self.loaded = Some(family);
        }
        if self.gone || self.unseen >= MAX_UNSEEN {
            self.stopped = true;
            return;
        }
        let Some(source) = set.source else { return };
        let source = SocketAddr::new(source, self.local.port());
        for packet in self.trigger.packets(segments) {
            // If one packet was not cloned for everybody, the next one could overtake the plain sends
            // that stand in for it. So the rest of the burst is sent plainly, too.
            if !self.clone_packet((family, due), source, packet, sent) {
                return;
            }
        }
    }

    /// Has one packet made into one for each member of a family from the member `done` on, in
    /// chunks. Returns whether all of them were served.
    fn clone_packet(
        &mut self,
        (family, mut done): (usize, usize),
        source: SocketAddr,
        packet: Segments<'_>,
        sent: &mut Sent,
    ) -> bool {
        let set = &self.members.families[family];
        let datagrams = packet.datagrams();
        // Where each copy is cut up before it reaches the device, its datagrams count.
        let is_cut_here = datagrams > self.most_segments;
        let chunk = if is_cut_here { (CHUNK / datagrams).max(1) } else { CHUNK };
        while done < set.addresses.len() {
            // 1. Hand over the packet.
            let count = chunk.min(set.addresses.len() - done);
            let order = Order { first: done, count, length: packet.bytes().len() };
            let last = set.addresses[done + count - 1].ip().to_canonical();
            let sequence = self.slot.arm(order);
            let fired = self.trigger.fire(sequence, source, last, packet);
            let outcome = self.slot.outcome();

            // 2. Count what became of it.
            let served = match fired {
                Ok(Fired::Sent) => outcome.served,
                // The copies left before the packet itself got lost.
                Ok(Fired::Lost | Fired::Full) | Err(_) => outcome.served.min(count - 1),
            };
            for number in (0..served).filter(|number| outcome.lost >> number & 1 == 0) {
                self.served[set.places[done + number]] += datagrams as u32;
                sent.report.sent += datagrams as u64;
                sent.report.cloned += datagrams as u64;
            }
            done += served;
            if outcome.ran {
                self.unseen = 0;
                self.stopped = false;
            }
            if outcome.lost != 0 {
                return false;
            }
            if served == count {
                continue;
            }

            // 3. Send plainly where there is nothing to wait for: the programs are gone, the device is
            // down, or the packet waits for a hardware address.
            // A queue is behind the program: what the program did not see, no queue has lost.
            let unseen = !outcome.ran && !matches!(fired, Ok(Fired::Full));
            if unseen || fired.is_err() {
                self.unseen += 1;
                self.gone |= self.slot.is_gone();
                return false;
            }
            // 4. Otherwise the device's queue is full.
            if outcome.refused >= 0 && self.trigger.is_queued() {
                sent.stop(Full::Device);
            }
            return false;
        }
        true
    }

    /// Sends the members of a set what was not cloned for them.
    fn send_plainly(
        &mut self,
        socket: &Socket,
        batch: &SendBatch,
        set: &[Transmit],
        sent: &mut Sent,
        rest: &mut Vec<Unsent>,
    ) {
        let (begin, datagrams) = (rest.len(), set[0].datagrams());
        self.plainly.clear();
        self.plain_places.clear();
        for (place, transmit) in set.iter().enumerate() {
            let mut served = self.served[place];
            if served == 0 && sent.full.is_none() {
                self.plainly.push(*transmit);
                self.plain_places.push(place as u32);
                continue;
            }
            if served < datagrams && sent.full.is_none() {
                sent.report.fallbacks += u64::from(datagrams - served);
                served = self.one_by_one.send_one(socket, batch, transmit, served, sent);
            }
            if served < datagrams {
                rest.push(Unsent { transmit: place as u32, datagrams: served });
            }
        }
        let places = rest.len();
        if sent.full.is_some() {
            let whole = |place: &u32| Unsent { transmit: *place, datagrams: 0 };
            rest.extend(self.plain_places.iter().map(whole));
        } else if !self.plainly.is_empty() {
            let plain = self.plain.send_some(socket, batch, &self.plainly, rest);
            sent.full = plain.full;
            // All of them count, and not twice what plain sends had to cut themselves.
            let done = plain.report.sent + plain.report.failed;
            let fallbacks = sent.report.fallbacks + done;
            sent.report.add(plain.report);
            sent.report.fallbacks = fallbacks;
            for unsent in &mut rest[places..] {
                unsent.transmit = self.plain_places[unsent.transmit as usize];
            }
        }
        rest[begin..].sort_unstable_by_key(|unsent| unsent.transmit);
    }
}

impl SendEngine for Cloner {
    fn send(&mut self, socket: &Socket, batch: &SendBatch, rest: &mut Vec<Unsent>) -> Sent {
        self.follow_device();
        let mut sent = Sent::default();
        let mut done = 0;
        let transmits = batch.transmits();
        while done < transmits.len() && sent.full.is_none() {
            let list = &transmits[done..];
            let begin = rest.len();
            let sets = list.chunk_by(|a, b| batch.carries_the_same(a, b));
            let small: usize = sets.map(<[_]>::len).take_while(|len| *len < SMALLEST_SET).sum();
            let (count, part) = if small > 0 {
                (small, self.plain.send_some(socket, batch, &list[..small], rest))
            } else {
                let alike = |transmit: &&Transmit| batch.carries_the_same(&list[0], transmit);
                let set = &list[..list.iter().take_while(alike).count()];
                let mut joined = std::mem::take(&mut self.joined);
                joined.clear();
                batch.parts(&set[0]).for_each(|part| joined.extend_from_slice(part));
                let segment = usize::from(set[0].segment);
                let part = match Segments::new(&joined, segment) {
                    Ok(segments) if segment + IPV6_UDP <= self.mtu => {
                        self.send_to_set(socket, batch, set, segments, rest)
                    }
                    _ => self.plain.send_some(socket, batch, set, rest),
                };
                self.joined = joined;
                (set.len(), part)
            };
            rest[begin..].iter_mut().for_each(|unsent| unsent.transmit += done as u32);
            sent.report.add(part.report);
            sent.full = part.full;
            done += count;
        }
        let behind = done..transmits.len();
        rest.extend(behind.map(|place| Unsent { transmit: place as u32, datagrams: 0 }));
        sent
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
        let devices = Netlink::open()?.devices_with(ip)?;
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
