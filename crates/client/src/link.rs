//! The socket of a client, and what is known of its health.

use crate::bundles::Run;
use canopy_net::{Socket, SocketOptions};
use canopy_wire::Time;
use std::io::{self, ErrorKind};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

/// A relay that has been silent for so long while the client was not connected may be out of reach
/// of this socket alone: its interface may have lost its address, a NAT its table.
const REOPEN_AFTER_SILENCE: Duration = Duration::from_secs(3);
/// A socket that the system has given up on is replaced at most this often.
const REOPEN_PAUSE: Duration = Duration::from_secs(1);

/// A socket that is connected to the relay.
pub(crate) struct Link {
    socket: Arc<Socket>,
    opened: Time,
    heard: Time,
    /// The system said that this socket reaches nothing.
    broken: bool,
    /// The relay's host said that nothing listens on the port.
    nothing_listens: bool,
    /// The system takes segmented sends.
    segments: bool,
}

/// A socket that hears only `relay`.
pub(crate) fn open_socket(relay: SocketAddr, receive_offload: bool) -> io::Result<Arc<Socket>> {
    let any = match relay {
        SocketAddr::V4(_) => SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)),
        SocketAddr::V6(_) => SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0)),
    };
    let options = SocketOptions { receive_offload, ..SocketOptions::default() };
    let socket = Socket::bind(any, &options)?;
    socket.connect(relay)?;
    Ok(Arc::new(socket))
}

impl Link {
    pub(crate) fn new(socket: Arc<Socket>) -> Link {
        let (opened, heard) = (Time::ZERO, Time::ZERO);
        Link { socket, opened, heard, broken: false, nothing_listens: false, segments: true }
    }

    pub(crate) fn socket(&self) -> &Socket {
        &self.socket
    }

    /// Whether the relay's host said that nothing listens on the port.
    pub(crate) fn nothing_listens(&self) -> bool {
        self.nothing_listens
    }

    /// Something came from the relay.
    pub(crate) fn heard(&mut self, now: Time) {
        self.heard = now;
        self.nothing_listens = false;
    }

    /// Whether another socket may do better. Asking counts as trying.
    pub(crate) fn wants_replacement(&mut self, now: Time, connected: bool) -> bool {
        let silence = now.since(self.heard.max(self.opened));
        let cut_off = !connected && silence > REOPEN_AFTER_SILENCE;
        let wanted = cut_off || (self.broken && now.since(self.opened) > REOPEN_PAUSE);
        if wanted {
            self.opened = now;
        }
        wanted
    }

    pub(crate) fn replace(&mut self, socket: Arc<Socket>) {
        self.socket = socket;
        self.broken = false;
    }

    pub(crate) fn send(&mut self, datagram: &[u8]) -> io::Result<()> {
        let mut sent = self.socket.send(datagram);
        if is_refused(&sent) {
            // That is what became of an earlier datagram; this one has not been tried yet.
            self.nothing_listens = true;
            sent = self.socket.send(datagram);
        }
        if is_refused(&sent) {
            // As good as lost on the way: whoever sends learns it from the session.
            return Ok(());
        }
        sent.inspect_err(|error| self.note(error))
    }

    pub(crate) fn send_run(&mut self, run: &Run<'_>) -> io::Result<()> {
        if self.segments && run.bytes.len() > run.segment {
            match self.socket.send_segments(run.bytes, run.segment as u16) {
                Ok(()) => return Ok(()),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Err(error),
                Err(error) if error.kind() == ErrorKind::ConnectionRefused => {}
                // Kernels and devices without segmentation offload say so in several ways.
                Err(_) => self.segments = false,
            }
        }
        run.bytes.chunks(run.segment).try_for_each(|datagram| self.send(datagram))
    }

    pub(crate) fn note(&mut self, error: &io::Error) {
        // The interface, its address or the route is gone; a new socket takes what there is now.
        self.broken |= matches!(
            error.kind(),
            ErrorKind::NetworkUnreachable
                | ErrorKind::HostUnreachable
                | ErrorKind::NetworkDown
                | ErrorKind::AddrNotAvailable
                | ErrorKind::InvalidInput
        );
    }
}

fn is_refused(sent: &io::Result<()>) -> bool {
    sent.as_ref().is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused)
}
