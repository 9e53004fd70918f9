//! Questions to the kernel about devices, routes and neighbours, and changes to devices.

use super::slot::Mac;
use netlink_packet_core::{NLM_F_ACK, NLM_F_REQUEST, NetlinkMessage, NetlinkPayload};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::link::{LinkAttribute, LinkFlags, LinkLayerType, LinkMessage};
use netlink_sys::protocols::NETLINK_ROUTE;
use netlink_sys::{Socket, SocketAddr};
use std::io;
use std::net::IpAddr;
use std::ptr;

/// A connection to rtnetlink, in the network namespace of the thread that opens it.
pub(crate) struct Netlink {
    socket: Socket,
    bytes: Vec<u8>,
}

/// A network device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Device {
    pub(crate) index: u32,
    pub(crate) name: String,
    pub(crate) mac: Mac,
    pub(crate) mtu: usize,
    /// Datagrams of the longest packet that it may be handed to cut up.
    pub(crate) most_segments: usize,
    pub(crate) up: bool,
    pub(crate) ethernet: bool,
    /// What somebody has noted of it, or nothing.
    pub(crate) alias: String,
}

impl Netlink {
    pub(crate) fn open() -> io::Result<Netlink> {
        let mut socket = Socket::new(NETLINK_ROUTE)?;
        socket.bind_auto()?;
        socket.connect(&SocketAddr::new(0, 0))?;
        Ok(Netlink { socket, bytes: Vec::with_capacity(16 << 10) })
    }

    /// Asks for one thing.
    pub(crate) fn ask(&mut self, question: RouteNetlinkMessage) -> io::Result<RouteNetlinkMessage> {
        match self.exchange(question, NLM_F_REQUEST)? {
            NetlinkPayload::InnerMessage(answer) => Ok(answer),
            NetlinkPayload::Error(error) => Err(error.to_io()),
            _ => Err(io::ErrorKind::InvalidData.into()),
        }
    }

    fn act(&mut self, change: RouteNetlinkMessage) -> io::Result<()> {
        match self.exchange(change, NLM_F_REQUEST | NLM_F_ACK)? {
            NetlinkPayload::Error(error) if error.code.is_some() => Err(error.to_io()),
            _ => Ok(()),
        }
    }

    fn exchange(
        &mut self,
        message: RouteNetlinkMessage,
        flags: u16,
    ) -> io::Result<NetlinkPayload<RouteNetlinkMessage>> {
        let mut message = NetlinkMessage::from(message);
        message.header.flags = flags;
        message.finalize();
        self.bytes.resize(message.buffer_len(), 0);
        message.serialize(&mut self.bytes);
        self.socket.send(&self.bytes, 0)?;
        self.bytes.clear();
        self.socket.recv(&mut self.bytes, 0)?;
        let answer = NetlinkMessage::deserialize(&self.bytes).map_err(io::Error::other)?;
        Ok(answer.payload)
    }

    /// The device with this name.
    pub(crate) fn device_named(&mut self, name: &str) -> io::Result<Device> {
        let mut message = LinkMessage::default();
        message.attributes.push(LinkAttribute::IfName(name.to_owned()));
        self.device(message)
    }

    /// The device with this index.
    pub(crate) fn device_at(&mut self, index: u32) -> io::Result<Device> {
        let mut message = LinkMessage::default();
        message.header.index = index;
        self.device(message)
    }

    fn device(&mut self, question: LinkMessage) -> io::Result<Device> {
        match self.ask(RouteNetlinkMessage::GetLink(question))? {
            RouteNetlinkMessage::NewLink(answer) => Ok(Device::of(&answer)),
            _ => Err(io::ErrorKind::InvalidData.into()),
        }
    }

    /// Brings a device up, with this MTU and this note of it.
    pub(crate) fn bring_up(&mut self, index: u32, mtu: usize, alias: &str) -> io::Result<()> {
        let mut message = LinkMessage::default();
        message.header.index = index;
        message.header.flags = LinkFlags::Up;
        message.header.change_mask = LinkFlags::Up;
        message.attributes.push(LinkAttribute::Mtu(mtu as u32));
        message.attributes.push(LinkAttribute::IfAlias(alias.to_owned()));
        self.act(RouteNetlinkMessage::SetLink(message))
    }

    /// Removes a device.
    pub(crate) fn delete(&mut self, index: u32) -> io::Result<()> {
        let mut message = LinkMessage::default();
        message.header.index = index;
        self.act(RouteNetlinkMessage::DelLink(message))
    }
}

impl Device {
    fn of(message: &LinkMessage) -> Device {
        let mut device = Device {
            index: message.header.index,
            name: String::new(),
            mac: Mac::default(),
            mtu: 0,
            most_segments: 1,
            up: message.header.flags.contains(LinkFlags::Up),
            ethernet: message.header.link_layer_type == LinkLayerType::Ether,
            alias: String::new(),
        };
        for attribute in &message.attributes {
            match attribute {
                LinkAttribute::IfName(name) => device.name.clone_from(name),
                LinkAttribute::IfAlias(alias) => device.alias.clone_from(alias),
                LinkAttribute::Mtu(mtu) => device.mtu = *mtu as usize,
                LinkAttribute::GsoMaxSegs(most) => device.most_segments = *most as usize,
                LinkAttribute::Address(address) => {
                    device.mac = Mac::try_from(&address[..]).unwrap_or_default();
                }
                _ => {}
            }
        }
        device
    }
}

/// The indexes of the devices that have this address, in the calling thread's network namespace.
pub(crate) fn devices_with(ip: IpAddr) -> io::Result<Vec<u32>> {
    let mut list = ptr::null_mut();
    // SAFETY: the call writes one pointer.
    if unsafe { libc::getifaddrs(&mut list) } < 0 {
        return Err(io::Error::last_os_error());
    }
    let mut devices = Vec::new();
    let mut next = list;
    while !next.is_null() {
        // SAFETY: the list is well-formed until it is freed, its names end in zero, and its
        // addresses are as long as their family says.
        unsafe {
            if address_of((*next).ifa_addr) == Some(ip) {
                devices.push(libc::if_nametoindex((*next).ifa_name));
            }
            next = (*next).ifa_next;
        }
    }
    // SAFETY: the list is ours and used no more.
    unsafe { libc::freeifaddrs(list) };
    Ok(devices)
}

/// The IP address of a socket address.
///
/// # Safety
/// It is null or as long as its family says.
unsafe fn address_of(address: *const libc::sockaddr) -> Option<IpAddr> {
    if address.is_null() {
        return None;
    }
    // SAFETY: the caller says so.
    unsafe {
        match i32::from((*address).sa_family) {
            libc::AF_INET => {
                let v4 = address.cast::<libc::sockaddr_in>().read_unaligned();
                Some(IpAddr::V4(u32::from_be(v4.sin_addr.s_addr).into()))
            }
            libc::AF_INET6 => {
                let v6 = address.cast::<libc::sockaddr_in6>().read_unaligned();
                Some(IpAddr::V6(v6.sin6_addr.s6_addr.into()))
            }
            _ => None,
        }
    }
}
