//! Where packets for a receiver go on a device: whose hardware address, from the kernel's own
//! routes and neighbours.
//!
//! What was learned is kept, and thrown away when the kernel tells of a change. The kernel looks
//! after its neighbours only as far as its own packets go by them, so whoever copies packets past
//! it must let it send one to each of them now and then.

use super::netlink::{Device, Netlink};
use super::slot::Mac;
use netlink_packet_core::{NetlinkMessage, NetlinkPayload};
use netlink_packet_route::neighbour::{
    NeighbourAddress, NeighbourAttribute, NeighbourMessage, NeighbourState,
};
use netlink_packet_route::route::{
    RouteAddress, RouteAttribute, RouteMessage, RouteMetric, RouteType,
};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use netlink_sys::Socket;
use netlink_sys::protocols::NETLINK_ROUTE;
use std::collections::HashMap;
use std::io;
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// How often to look for events. An outdated hardware address is used for no longer than this.
const LOOK_EVERY: Duration = Duration::from_millis(2);
/// The longest time for which the kernel may have sent nothing to a hop itself.
const KERNEL_SENDS_EVERY: Duration = Duration::from_secs(3);
/// How often to learn everything anew, because the kernel does not tell when a way becomes narrow.
const LEARN_EVERY: Duration = Duration::from_secs(10);
/// Changes of routes make everything be learned anew, but not more often than this.
const FOLLOW_ROUTES_EVERY: Duration = Duration::from_millis(100);
/// Receivers and hops that are kept; with more, all are learned anew.
const MAX_KEPT: usize = 8192;
/// Multicast groups of rtnetlink.
const GROUPS: [u32; 6] = [
    libc::RTNLGRP_LINK,
    libc::RTNLGRP_NEIGH,
    libc::RTNLGRP_IPV4_IFADDR,
    libc::RTNLGRP_IPV6_IFADDR,
    libc::RTNLGRP_IPV4_ROUTE,
    libc::RTNLGRP_IPV6_ROUTE,
];

/// How packets for a receiver go over the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Way {
    /// The hardware address that they go to.
    pub(crate) mac: Mac,
    /// The address that they come from, if the socket has none of its own.
    pub(crate) source: Option<IpAddr>,
    /// The number of the receiver itself or of the gateway to it, for [`NextHops::take_due`].
    pub(crate) hop: u32,
}

/// What is known of a receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Known {
    /// The receiver itself or the gateway to it.
    next: IpAddr,
    /// None while the kernel has not found it out.
    mac: Option<Mac>,
    source: Option<IpAddr>,
    hop: u32,
}

impl Known {
    fn way(&self) -> Option<Way> {
        self.mac.map(|mac| Way { mac, source: self.source, hop: self.hop })
    }
}

/// The ways over one device.
pub(crate) struct NextHops {
    device: u32,
    /// The device's, when it was looked at last.
    mtu: usize,
    requests: Netlink,
    events: Socket,
    /// None for receivers that this device does not lead to.
    known: HashMap<IpAddr, Option<Known>>,
    /// Numbers of hops, and when the kernel last sent to each itself.
    hops: HashMap<IpAddr, u32>,
    kernel_sent: Vec<Instant>,
    generation: u64,
    looked: Instant,
    /// When all was forgotten last.
    forgot: Instant,
    /// Whether routes have changed since.
    routes_changed: bool,
    now: Instant,
    bytes: Vec<u8>,
}

/// The route to a receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Route {
    device: u32,
    /// What the way takes, if the kernel has found it out or was told.
    mtu: Option<u32>,
    gateway: Option<IpAddr>,
    source: Option<IpAddr>,
    unicast: bool,
}

impl NextHops {
    /// The ways over the device with this index, in the network namespace of the calling thread.
    pub(crate) fn over(device: u32) -> io::Result<NextHops> {
        let mut events = Socket::new(NETLINK_ROUTE)?;
        events.bind_auto()?;
        events.set_non_blocking(true)?;
        for group in GROUPS {
            events.add_membership(group)?;
        }
        let now = Instant::now();
        let mut requests = Netlink::open()?;
        Ok(NextHops {
            device,
            mtu: requests.device_at(device)?.mtu,
            requests,
            events,
            known: HashMap::new(),
            hops: HashMap::new(),
            kernel_sent: Vec::new(),
            generation: 0,
            looked: now,
            forgot: now,
            routes_changed: false,
            now,
            bytes: Vec::with_capacity(16 << 10),
        })
    }

    /// Changes whenever an answer of [`NextHops::way`] may have changed.
    pub(crate) fn generation(&mut self) -> u64 {
        self.now = Instant::now();
        if self.now.duration_since(self.looked) >= LOOK_EVERY {
            self.looked = self.now;
            self.look();
        }
        let after = if self.routes_changed { FOLLOW_ROUTES_EVERY } else { LEARN_EVERY };
        if self.now.duration_since(self.forgot) >= after {
            self.forget();
        }
        self.generation
    }

    /// The device as it is now.
    pub(crate) fn device(&mut self) -> io::Result<Device> {
        let device = self.requests.device_at(self.device)?;
        self.mtu = device.mtu;
        Ok(device)
    }

    /// Whether the kernel must send something to a hop itself; whoever asks sees to it.
    pub(crate) fn take_due(&mut self, hop: u32) -> bool {
        // Numbers are given anew when too many were given.
        let Some(sent) = self.kernel_sent.get_mut(hop as usize) else { return false };
        let due = self.now.duration_since(*sent) >= KERNEL_SENDS_EVERY;
        if due {
            *sent = self.now;
        }
        due
    }

    /// The way to `receiver`, if the device leads there and the kernel knows the hardware address.
    pub(crate) fn way(&mut self, receiver: IpAddr) -> Option<Way> {
        if let Some(known) = self.known.get(&receiver) {
            return known.and_then(|known| known.way());
        }
        if self.known.len() >= MAX_KEPT || self.hops.len() >= MAX_KEPT {
            self.forget();
            self.hops.clear();
            self.kernel_sent.clear();
        }
        let known = self.learn(receiver);
        self.known.insert(receiver, known);
        known.and_then(|known| known.way())
    }

    fn learn(&mut self, receiver: IpAddr) -> Option<Known> {
        let route = self.route(receiver)?;
        // A clone cannot be cut up for a narrow way, nor does it know a link's scope.
        let is_narrow = route.mtu.is_some_and(|mtu| (mtu as usize) < self.mtu);
        let is_ours = route.device == self.device && route.unicast;
        if !is_ours || is_narrow || is_link_local(receiver) {
            return None;
        }
        let next = route.gateway.unwrap_or(receiver);
        Some(Known { next, mac: self.neighbour(next), source: route.source, hop: self.hop(next) })
    }

    fn hop(&mut self, next: IpAddr) -> u32 {
        *self.hops.entry(next).or_insert_with(|| {
            self.kernel_sent.push(self.now);
            self.kernel_sent.len() as u32 - 1
        })
    }

    fn route(&mut self, receiver: IpAddr) -> Option<Route> {
        let mut message = RouteMessage::default();
        message.header.address_family = family_of(receiver);
        message.header.destination_prefix_length = if receiver.is_ipv4() { 32 } else { 128 };
        message.attributes.push(RouteAttribute::Destination(receiver.into()));
        match self.requests.ask(RouteNetlinkMessage::GetRoute(message)).ok()? {
            RouteNetlinkMessage::NewRoute(answer) => Some(Route::of(&answer)),
            _ => None,
        }
    }

    fn neighbour(&mut self, next: IpAddr) -> Option<Mac> {
        let mut message = NeighbourMessage::default();
        message.header.family = family_of(next);
        message.header.ifindex = self.device;
        let address = match next {
            IpAddr::V4(ip) => NeighbourAddress::Inet(ip),
            IpAddr::V6(ip) => NeighbourAddress::Inet6(ip),
        };
        message.attributes.push(NeighbourAttribute::Destination(address));
        match self.requests.ask(RouteNetlinkMessage::GetNeighbour(message)).ok()? {
            RouteNetlinkMessage::NewNeighbour(answer) => mac_of(&answer),
            _ => None,
        }
    }

    /// Takes the kernel's events.
    fn look(&mut self) {
        loop {
            self.bytes.clear();
            self.bytes.reserve(16 << 10);
            match self.events.recv(&mut self.bytes, libc::MSG_DONTWAIT) {
                Ok(_) => self.take_events(),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                // Events were lost: everything may be different.
                Err(_) => return self.forget(),
            }
        }
    }

    fn take_events(&mut self) {
        let bytes = std::mem::take(&mut self.bytes);
        let mut rest = &bytes[..];
        while !rest.is_empty() {
            let Ok(message) = NetlinkMessage::<RouteNetlinkMessage>::deserialize(rest) else {
                self.forget();
                break;
            };
            let len = (message.header.length as usize).next_multiple_of(4).max(16);
            rest = rest.get(len..).unwrap_or_default();
            match message.payload {
                NetlinkPayload::InnerMessage(RouteNetlinkMessage::NewNeighbour(change)) => {
                    self.take_neighbour(&change, mac_of(&change));
                }
                NetlinkPayload::InnerMessage(RouteNetlinkMessage::DelNeighbour(change)) => {
                    self.take_neighbour(&change, None);
                }
                NetlinkPayload::InnerMessage(RouteNetlinkMessage::NewLink(change))
                    if change.header.index != self.device => {}
                NetlinkPayload::InnerMessage(
                    RouteNetlinkMessage::NewRoute(_) | RouteNetlinkMessage::DelRoute(_),
                ) => self.routes_changed = true,
                NetlinkPayload::InnerMessage(_) => self.forget(),
                _ => {}
            }
        }
        self.bytes = bytes;
    }

    fn take_neighbour(&mut self, change: &NeighbourMessage, mac: Option<Mac>) {
        if change.header.ifindex != self.device {
            return;
        }
        let Some(next) = destination_of(change) else { return };
        for known in self.known.values_mut().flatten().filter(|known| known.next == next) {
            if known.mac != mac {
                known.mac = mac;
                self.generation += 1;
            }
        }
    }

    fn forget(&mut self) {
        self.known.clear();
        self.generation += 1;
        self.forgot = self.now;
        self.routes_changed = false;
    }
}

impl Route {
    fn of(message: &RouteMessage) -> Route {
        let unicast = message.header.kind == RouteType::Unicast;
        let mut route = Route { device: 0, mtu: None, gateway: None, source: None, unicast };
        for attribute in &message.attributes {
            match attribute {
                RouteAttribute::Oif(device) => route.device = *device,
                RouteAttribute::Gateway(gateway) => route.gateway = ip_of(gateway),
                RouteAttribute::PrefSource(source) => route.source = ip_of(source),
                RouteAttribute::Metrics(metrics) => {
                    route.mtu = metrics.iter().find_map(|metric| match metric {
                        RouteMetric::Mtu(mtu) => Some(*mtu),
                        _ => None,
                    });
                }
                _ => {}
            }
        }
        route
    }
}

fn is_link_local(ip: IpAddr) -> bool {
    matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local())
}

fn family_of(ip: IpAddr) -> AddressFamily {
    if ip.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 }
}

fn ip_of(address: &RouteAddress) -> Option<IpAddr> {
    match address {
        RouteAddress::Inet(ip) => Some(IpAddr::V4(*ip)),
        RouteAddress::Inet6(ip) => Some(IpAddr::V6(*ip)),
        _ => None,
    }
}

fn destination_of(message: &NeighbourMessage) -> Option<IpAddr> {
    message.attributes.iter().find_map(|attribute| match attribute {
        NeighbourAttribute::Destination(NeighbourAddress::Inet(ip)) => Some(IpAddr::V4(*ip)),
        NeighbourAttribute::Destination(NeighbourAddress::Inet6(ip)) => Some(IpAddr::V6(*ip)),
        _ => None,
    })
}

/// The neighbour's hardware address, unless the kernel has given up on it or asks for it still.
fn mac_of(message: &NeighbourMessage) -> Option<Mac> {
    use NeighbourState::{Failed, Incomplete, None as Unknown, Other};
    if matches!(message.header.state, Failed | Incomplete | Unknown | Other(_)) {
        return None;
    }
    message.attributes.iter().find_map(|attribute| match attribute {
        NeighbourAttribute::LinkLayerAddress(bytes) => Mac::try_from(&bytes[..]).ok(),
        _ => None,
    })
}
