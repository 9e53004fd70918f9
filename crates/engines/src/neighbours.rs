//! Who on this host's links answers, as the kernel finds out when it sends to them.

use netlink_packet_core::{NetlinkMessage, NetlinkPayload};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::neighbour::{
    NeighbourAddress, NeighbourAttribute, NeighbourMessage, NeighbourState,
};
use netlink_sys::Socket;
use netlink_sys::protocols::NETLINK_ROUTE;
use std::collections::VecDeque;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};

/// Room for what the kernel says at once.
const MESSAGE_BYTES: usize = 16 << 10;

/// What the kernel has found out about a host on one of this host's links.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NeighbourEvent {
    /// Its address.
    pub ip: IpAddr,
    /// Whether it answers, to ARP or to neighbour discovery.
    pub reachable: bool,
}

/// Tells who on this host's links answers and who does not.
///
/// What is sent to somebody who does not answer, the kernel keeps for some seconds and counts
/// against the sending socket's buffer: up to 208 KiB for each. A few of them fill the buffer, and
/// then nothing leaves for anybody. Whoever learns here that a receiver does not answer should
/// send it nothing for some seconds, and then try again: only a new send makes the kernel ask
/// again, and if it asks in vain it tells again.
///
/// It is an iterator that never ends: `None` says that nothing has happened for now. Of events
/// that come faster than they are taken some are lost. Only hosts on the same link are told of;
/// one behind a gateway has no answer to give.
#[derive(Debug)]
pub struct NeighbourWatch {
    socket: Socket,
    bytes: Vec<u8>,
    events: VecDeque<NeighbourEvent>,
}

impl NeighbourWatch {
    /// Watches the calling thread's network namespace. Needs no privilege.
    ///
    /// # Errors
    /// Where there is no rtnetlink.
    pub fn open() -> io::Result<NeighbourWatch> {
        let mut socket = Socket::new(NETLINK_ROUTE)?;
        socket.bind_auto()?;
        socket.add_membership(libc::RTNLGRP_NEIGH)?;
        socket.set_non_blocking(true)?;
        let bytes = Vec::with_capacity(MESSAGE_BYTES);
        Ok(NeighbourWatch { socket, bytes, events: VecDeque::new() })
    }

    fn take_messages(&mut self) {
        let mut rest = &self.bytes[..];
        while let Ok(message) = NetlinkMessage::<RouteNetlinkMessage>::deserialize(rest) {
            let len = (message.header.length as usize).next_multiple_of(4).max(16);
            if let NetlinkPayload::InnerMessage(RouteNetlinkMessage::NewNeighbour(change)) =
                message.payload
            {
                self.events.extend(event_of(&change));
            }
            rest = rest.get(len..).unwrap_or_default();
        }
    }
}

impl Iterator for NeighbourWatch {
    type Item = NeighbourEvent;

    fn next(&mut self) -> Option<NeighbourEvent> {
        loop {
            if let Some(event) = self.events.pop_front() {
                return Some(event);
            }
            self.bytes.clear();
            match self.socket.recv(&mut self.bytes, 0) {
                Ok(_) => self.take_messages(),
                // Some were lost. What still holds is told again.
                Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return None,
            }
        }
    }
}

impl AsFd for NeighbourWatch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl AsRawFd for NeighbourWatch {
    fn as_raw_fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }
}

fn event_of(change: &NeighbourMessage) -> Option<NeighbourEvent> {
    let reachable = match change.header.state {
        NeighbourState::Failed | NeighbourState::Incomplete => false,
        NeighbourState::Reachable | NeighbourState::Stale | NeighbourState::Permanent => true,
        // It is being asked, or there is nothing to ask.
        _ => return None,
    };
    let ip = change.attributes.iter().find_map(|attribute| match attribute {
        NeighbourAttribute::Destination(NeighbourAddress::Inet(ip)) => Some(IpAddr::V4(*ip)),
        NeighbourAttribute::Destination(NeighbourAddress::Inet6(ip)) => Some(IpAddr::V6(*ip)),
        _ => None,
    })?;
    Some(NeighbourEvent { ip, reachable })
}
