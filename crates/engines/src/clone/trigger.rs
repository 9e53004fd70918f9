//! Triggers: the one packet that the kernel makes many of.

use super::install::Installation;
use super::maps::Maps;
use super::netlink::Device;
use super::slot::{Order, Slot, fold, sum_of};
use super::tap;
use aya::maps::{Map, MapData, SkStorage};
use canopy_batch::Segments;
use canopy_net::parts::{SEGMENT_CONTROL_LEN, tell_errors, write_segment_control};
use socket2::{Domain, MsgHdr, Protocol, SockAddr, Socket, Type};
use std::fs::File;
use std::io::{self, IoSlice, Write};
use std::net::{IpAddr, SocketAddr};

const IPV4_ETHERTYPE: [u8; 2] = [0x08, 0x00];
const IPV6_ETHERTYPE: [u8; 2] = [0x86, 0xdd];
const UDP: u8 = 17;
const HOP_LIMIT: u8 = 64;
const DONT_FRAGMENT: [u8; 2] = [0x40, 0x00];
/// Bytes of Ethernet's, IPv6's and UDP's headers.
const MAX_HEADERS: usize = 14 + 40 + 8;

/// What became of a trigger.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fired {
    /// It was handed over.
    Sent,
    /// It was cloned, and lost itself at the device's full queue.
    Lost,
    /// It was not taken: too much of this socket's waits in the device's queue.
    Full,
}

/// How triggers reach the kernel's program.
pub(crate) enum Trigger {
    /// `tc-bpf`: as a datagram to one of the members.
    Datagrams(Box<Datagrams>),
    /// `xdp`: as a frame on a tap.
    Frames(Frames),
}

/// A socket for each source address that triggers have come from lately: one a family.
pub(crate) struct Datagrams {
    triggers: SkStorage<MapData, u32>,
    slot: u32,
    sockets: [Option<(IpAddr, Socket)>; 2],
}

/// A queue of the tap.
pub(crate) struct Frames {
    tap: File,
    slot: u32,
}

impl Trigger {
    pub(crate) fn datagrams(maps: Maps, slot: &Slot) -> io::Result<Trigger> {
        let map = Map::from_map_data(maps.triggers).map_err(io::Error::other)?;
        let triggers = SkStorage::try_from(map).map_err(io::Error::other)?;
        let datagrams = Datagrams { triggers, slot: slot.number(), sockets: [None, None] };
        Ok(Trigger::Datagrams(Box::new(datagrams)))
    }

    /// Opens the tap, and sees whether a frame gets as far as the device.
    pub(crate) fn frames(
        installation: &Installation,
        slot: &mut Slot,
        device: &Device,
    ) -> io::Result<Trigger> {
        if !installation.xdp {
            let why = format!(
                "xdp is not installed on {0}; as root: canopy engine remove --device {0}, then \
                 canopy engine install --device {0} --engine all",
                device.name
            );
            return Err(io::Error::other(why));
        }
        let name = installation.tap();
        let tap = tap::open(&name).map_err(|error| match error.raw_os_error() {
            Some(libc::EMFILE) => error,
            _ => io::Error::other(format!(
                "the tap {name} cannot be opened ({error}); look for it with `ip link`, or remove \
                 what is installed on {} and install it again",
                device.name
            )),
        })?;
        let mut frames = Frames { tap, slot: slot.number() };
        slot.set_members(&[]);
        let sequence = slot.arm(Order { first: 0, count: 1, length: 1 });
        let nobody = SocketAddr::from(([0, 0, 0, 0], 0));
        frames.fire(sequence, nobody.ip(), nobody.port(), &[0])?;
        let outcome = slot.outcome();
        if outcome.served == 1 {
            return Ok(Trigger::Frames(frames));
        }
        let name = &device.name;
        let why = if outcome.ran {
            format!(
                "{name} takes no XDP frames; a virtual device takes them once its other end has \
                 generic receive offload on (ethtool -K DEVICE gro on)"
            )
        } else {
            format!("the tap of {name} runs no program; install the engines again")
        };
        Err(io::Error::other(why))
    }

    /// Whether a copy that is refused waits for room in the device's queue; `xdp` goes past it.
    pub(crate) fn is_queued(&self) -> bool {
        matches!(self, Trigger::Datagrams(_))
    }

    /// Bytes of the longest IP packet that it can carry, whatever the device takes: XDP runs before a
    /// frame becomes a packet only if the frame fits a page of the tap's.
    pub(crate) fn longest_packet(&self) -> usize {
        match self {
            Trigger::Datagrams(_) => usize::MAX,
            Trigger::Frames(_) => 3400,
        }
    }

    /// Cuts segments into what one trigger can carry.
    pub(crate) fn packets<'a>(
        &self,
        segments: Segments<'a>,
    ) -> impl Iterator<Item = Segments<'a>> + use<'a> {
        let len = match self {
            Trigger::Datagrams(_) => segments.bytes().len(),
            Trigger::Frames(_) => segments.segment().into(),
        };
        let segment = usize::from(segments.segment());
        segments.bytes().chunks(len).filter_map(move |bytes| Segments::new(bytes, segment).ok())
    }

    /// Hands one over. `last` is the member that gets it itself.
    pub(crate) fn fire(
        &mut self,
        sequence: u16,
        source: SocketAddr,
        last: IpAddr,
        packet: Segments<'_>,
    ) -> io::Result<Fired> {
        match self {
            Trigger::Datagrams(datagrams) => datagrams.fire(sequence, source.ip(), last, packet),
            Trigger::Frames(frames) => {
                frames.fire(sequence, source.ip(), source.port(), packet.bytes())?;
                Ok(Fired::Sent)
            }
        }
    }
}

impl Datagrams {
    fn fire(
        &mut self,
        sequence: u16,
        source: IpAddr,
        last: IpAddr,
        packet: Segments<'_>,
    ) -> io::Result<Fired> {
        let socket = self.socket(source)?;
        let to = SockAddr::from(SocketAddr::new(last, sequence));
        let buffers = [IoSlice::new(packet.bytes())];
        let mut control = [0; SEGMENT_CONTROL_LEN];
        let mut message = MsgHdr::new().with_addr(&to).with_buffers(&buffers);
        if packet.datagrams() > 1 {
            write_segment_control(&mut control, packet.segment());
            message = message.with_control(&control);
        }
        match socket.sendmsg(&message, libc::MSG_DONTWAIT) {
            Ok(_) => Ok(Fired::Sent),
            Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => Ok(Fired::Lost),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(Fired::Full),
            Err(error) => Err(error),
        }
    }

    fn socket(&mut self, source: IpAddr) -> io::Result<&Socket> {
        let place = &mut self.sockets[usize::from(source.is_ipv6())];
        if place.as_ref().is_none_or(|(address, _)| *address != source) {
            let address = SocketAddr::new(source, 0);
            let domain = Domain::for_address(address);
            let socket = Socket::new(domain, Type::DGRAM, Some(Protocol::UDP))?;
            socket.set_nonblocking(true)?;
            // So that sending says when a full queue has lost the trigger.
            tell_errors(&socket, source.is_ipv6())?;
            socket.bind(&address.into())?;
            self.triggers.insert(&socket, self.slot, 0).map_err(io::Error::other)?;
            *place = Some((source, socket));
        }
        place.as_ref().map(|(_, socket)| socket).ok_or_else(|| io::ErrorKind::NotConnected.into())
    }
}

impl Frames {
    fn fire(&mut self, sequence: u16, source: IpAddr, port: u16, payload: &[u8]) -> io::Result<()> {
        let mut headers = Headers::new();
        headers.ethernet(self.slot as u16, sequence, source);
        headers.ip_and_udp(source, port, payload);
        let parts = [IoSlice::new(headers.bytes()), IoSlice::new(payload)];
        self.tap.write_vectored(&parts).map(drop)
    }
}

/// The headers of a frame whose checksums lack the destination's share.
struct Headers {
    bytes: [u8; MAX_HEADERS],
    len: usize,
}

impl Headers {
    fn new() -> Headers {
        Headers { bytes: [0; MAX_HEADERS], len: 0 }
    }

    fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    fn push(&mut self, bytes: &[u8]) {
        self.bytes[self.len..self.len + bytes.len()].copy_from_slice(bytes);
        self.len += bytes.len();
    }

    /// `struct order` stands in the place of the source address.
    fn ethernet(&mut self, slot: u16, sequence: u16, source: IpAddr) {
        self.push(&[0; 6]);
        self.push(&slot.to_ne_bytes());
        self.push(&[0; 2]);
        self.push(&sequence.to_be_bytes());
        self.push(if source.is_ipv4() { &IPV4_ETHERTYPE } else { &IPV6_ETHERTYPE });
    }

    fn ip_and_udp(&mut self, source: IpAddr, port: u16, payload: &[u8]) {
        let udp_len = (payload.len() + 8) as u16;
        let address_sum = match source {
            IpAddr::V4(ip) => {
                let start = self.len;
                self.push(&[0x45, 0]);
                self.push(&(udp_len + 20).to_be_bytes());
                self.push(&[0, 0]);
                self.push(&DONT_FRAGMENT);
                self.push(&[HOP_LIMIT, UDP, 0, 0]);
                self.push(&ip.octets());
                self.push(&[0; 4]);
                let sum = fold(sum_of(&self.bytes[start..self.len]));
                self.bytes[start + 10..start + 12].copy_from_slice(&sum.to_ne_bytes());
                sum_of(&ip.octets())
            }
            IpAddr::V6(ip) => {
                self.push(&[0x60, 0, 0, 0]);
                self.push(&udp_len.to_be_bytes());
                self.push(&[UDP, HOP_LIMIT]);
                self.push(&ip.octets());
                self.push(&[0; 16]);
                sum_of(&ip.octets())
            }
        };
        let pseudo = address_sum + sum_of(&[0, UDP]) + sum_of(&udp_len.to_be_bytes());
        let ports = sum_of(&port.to_be_bytes());
        let sum = pseudo + ports + sum_of(&udp_len.to_be_bytes()) + sum_of(payload);
        self.push(&port.to_be_bytes());
        self.push(&[0, 0]);
        self.push(&udp_len.to_be_bytes());
        self.push(&fold(sum).to_ne_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clone::bed::Bed;
    use crate::clone::install::install;
    use crate::clone::netlink::Netlink;
    use crate::clone::slot::Entry;

    /// What became of frames that `change` was applied to, if there may be any.
    fn outcomes(changes: &[fn(&mut [u8])]) -> Option<Vec<(bool, usize)>> {
        let bed = Bed::new()?;
        bed.offload("far", "gro", "on")?;
        let folder = bed.folder();
        let send = || {
            let installation = install(&bed.request(&folder))
                .inspect_err(|error| println!("skipped: {error}"))
                .ok()?;
            let maps = Maps::open(&installation.folder, installation.owner).unwrap();
            let mut slot = Slot::claim(&installation.folder, maps.slots.fd()).unwrap();
            let device = Netlink::open().unwrap().device_named("near").unwrap();
            let mut trigger = Trigger::frames(&installation, &mut slot, &device).unwrap();
            let Trigger::Frames(frames) = &mut trigger else { panic!("frames") };
            slot.set_source(4040, device.mac);
            slot.set_members(&[Entry::new("10.77.0.2:4040".parse().unwrap(), [2; 6])]);
            let outcomes = changes.iter().map(|change| {
                let sequence = slot.arm(Order { first: 0, count: 1, length: 5 });
                let mut headers = Headers::new();
                headers.ethernet(slot.number() as u16, sequence, [10, 77, 0, 1].into());
                headers.ip_and_udp([10, 77, 0, 1].into(), 4040, b"hello");
                change(&mut headers.bytes);
                let parts = [IoSlice::new(headers.bytes()), IoSlice::new(b"hello")];
                assert!(frames.tap.write_vectored(&parts).unwrap() > 0);
                let outcome = slot.outcome();
                (outcome.ran, outcome.served)
            });
            let outcomes = outcomes.collect();
            installation.remove().unwrap();
            Some(outcomes)
        };
        bed.near.run(send).unwrap()
    }

    #[test]
    fn frames_carry_udp_and_nothing_else() {
        const TCP: u8 = 6;
        let Some(outcomes) = outcomes(&[
            |_| {},
            |frame| frame[14 + 9] = TCP,
            |frame| frame[14] = 0x46,
            |frame| frame[12..14].copy_from_slice(&[0x08, 0x06]),
            |frame| frame[12..14].copy_from_slice(&IPV6_ETHERTYPE),
        ]) else {
            return;
        };
        let refused = (true, 0);
        assert_eq!(outcomes, [(true, 1), refused, refused, refused, refused]);
    }
}
