//! The socket through which a client speaks with its relay, and what is known of its health.

use crate::bundles::Run;
use canopy_net::{Socket, SocketOptions};
use canopy_wire::Time;
use std::io::{self, ErrorKind};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

/// A socket that is connected to the relay.
pub(crate) struct RelaySocket {
    socket: Arc<Socket>,
    receive_offload: bool,
    /// When its socket was last replaced, or someone tried to.
    opened: Time,
    heard: Time,
    /// The system said that this socket reaches nothing.
    broken: bool,
    /// The relay's host said that nothing listens on the port.
    nothing_listens: bool,
    /// The system takes segmented sends.
    segments: bool,
}

impl RelaySocket {
    /// A socket that hears only `relay`.
    pub(crate) fn open(
        now: Time,
        relay: SocketAddr,
        receive_offload: bool,
    ) -> io::Result<RelaySocket> {
        Ok(RelaySocket {
            socket: open_socket(relay, receive_offload)?,
            receive_offload,
            opened: now,
            heard: now,
            broken: false,
            nothing_listens: false,
            segments: true,
        })
    }

    pub(crate) fn socket(&self) -> &Arc<Socket> {
        &self.socket
    }

    /// Whether the relay's host said that nothing listens on the port.
    pub(crate) fn nothing_listens(&self) -> bool {
        self.nothing_listens
    }

    /// Whether the system said that this socket reaches nothing.
    pub(crate) fn is_broken(&self) -> bool {
        self.broken
    }

    /// How long ago its socket was opened, or should have been.
    pub(crate) fn age(&self, now: Time) -> Duration {
        now.since(self.opened)
    }

    /// For how long nothing has come through this socket.
    pub(crate) fn silence(&self, now: Time) -> Duration {
        now.since(self.heard.max(self.opened))
    }

    /// Something came from the relay.
    pub(crate) fn heard(&mut self, now: Time) {
        self.heard = now;
        self.nothing_listens = false;
    }

    /// Goes on with a new socket, from `at` on. Without a network there is none; the old one serves
    /// until the next try.
    pub(crate) fn reopen(&mut self, at: Time, relay: SocketAddr) -> io::Result<()> {
        self.opened = at;
        self.socket = open_socket(relay, self.receive_offload)?;
        self.broken = false;
        self.nothing_listens = false;
        Ok(())
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

    /// Looks at what became of earlier datagrams, which receiving would pass over.
    pub(crate) fn look_at_errors(&mut self) {
        if let Some(error) = self.socket.take_error() {
            self.nothing_listens |= error.kind() == ErrorKind::ConnectionRefused;
            self.note(&error);
        }
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

fn open_socket(relay: SocketAddr, receive_offload: bool) -> io::Result<Arc<Socket>> {
    let any = match relay {
        SocketAddr::V4(_) => SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)),
        SocketAddr::V6(_) => SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0)),
    };
    let options = SocketOptions { receive_offload, ..SocketOptions::default() };
    let socket = Socket::bind(any, &options)?;
    socket.connect(relay)?;
    Ok(Arc::new(socket))
}
