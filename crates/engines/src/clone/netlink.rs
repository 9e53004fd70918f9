//! Questions to the kernel about devices, routes and neighbours, and changes to devices.

use super::slot::Mac;
use netlink_packet_core::{NLM_F_ACK, NLM_F_DUMP, NLM_F_REQUEST, NetlinkMessage, NetlinkPayload};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::address::{AddressAttribute, AddressMessage};
use netlink_packet_route::link::{LinkAttribute, LinkFlags, LinkLayerType, LinkMessage};
use netlink_sys::protocols::NETLINK_ROUTE;
use netlink_sys::{Socket, SocketAddr};
use std::io;
use std::net::IpAddr;

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
        match self.exchange(question, 0)? {
            NetlinkPayload::InnerMessage(answer) => Ok(answer),
            NetlinkPayload::Error(error) => Err(error.to_io()),
            _ => Err(io::ErrorKind::InvalidData.into()),
        }
    }

    fn act(&mut self, change: RouteNetlinkMessage) -> io::Result<()> {
        match self.exchange(change, NLM_F_ACK)? {
            NetlinkPayload::Error(error) if error.code.is_some() => Err(error.to_io()),
            _ => Ok(()),
        }
    }

    /// The indexes of the devices that have this address.
    pub(crate) fn devices_with(&mut self, ip: IpAddr) -> io::Result<Vec<u32>> {
        self.send(RouteNetlinkMessage::GetAddress(AddressMessage::default()), NLM_F_DUMP)?;
        let mut devices = Vec::new();
        loop {
            self.bytes.clear();
            self.socket.recv(&mut self.bytes, 0)?;
            let mut rest = &self.bytes[..];
            while !rest.is_empty() {
                let message = NetlinkMessage::<RouteNetlinkMessage>::deserialize(rest)
                    .map_err(io::Error::other)?;
                // Lengths are rounded up to four bytes, and are no less than a header's.
                let len = (message.header.length as usize).next_multiple_of(4).max(16);
                rest = rest.get(len..).unwrap_or_default();
                match message.payload {
                    NetlinkPayload::InnerMessage(RouteNetlinkMessage::NewAddress(one))
                        if address_of(&one) == Some(ip) =>
                    {
                        devices.push(one.header.index);
                    }
                    NetlinkPayload::Error(error) => return Err(error.to_io()),
                    NetlinkPayload::Done(_) => return Ok(devices),
                    _ => {}
                }
            }
        }
    }

    fn send(&mut self, message: RouteNetlinkMessage, flags: u16) -> io::Result<()> {
        let mut message = NetlinkMessage::from(message);
        message.header.flags = NLM_F_REQUEST | flags;
        message.finalize();
        self.bytes.resize(message.buffer_len(), 0);
        message.serialize(&mut self.bytes);
        self.socket.send(&self.bytes, 0).map(drop)
    }

    fn exchange(
        &mut self,
        message: RouteNetlinkMessage,
        flags: u16,
    ) -> io::Result<NetlinkPayload<RouteNetlinkMessage>> {
        self.send(message, flags)?;
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

/// The address that a device has: of a point-to-point device its own, not the peer's.
fn address_of(message: &AddressMessage) -> Option<IpAddr> {
    let mut found = None;
    for attribute in &message.attributes {
        match attribute {
            AddressAttribute::Local(ip) => return Some(*ip),
            AddressAttribute::Address(ip) => found = Some(*ip),
            _ => {}
        }
    }
    found
}
