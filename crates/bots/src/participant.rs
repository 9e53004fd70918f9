//! A socket and a session for whoever is to join a relay.

use crate::config::{RelayTarget, Seats};
use canopy_net::{Readiness, Socket, SocketOptions};
use canopy_session::SessionConfig;
use canopy_wire::Comtree;
use std::io;
use std::net::SocketAddr;

/// A socket that talks with a relay alone and is watched as `number`, and what to open a session with. It
/// is on the host where `seats` say.
pub(crate) fn set_out(
    number: u32,
    relay: RelayTarget,
    comtree: Comtree,
    readiness: &Readiness,
    seats: Option<&Seats>,
) -> io::Result<(Socket, SessionConfig)> {
    let RelayTarget { address, key } = relay;
    let options = SocketOptions { receive_buffer: 1 << 20, ..SocketOptions::default() };
    let any = if address.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    let any: SocketAddr = any.parse().map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
    let socket = match seats {
        Some(Seats(bind)) => bind(number, any, &options)?,
        None => Socket::bind(any, &options)?,
    };
    socket.connect(address)?;
    readiness.add(&socket, number.into())?;
    // Nonces need not be secret on one's own crowd, only different: the port is.
    let mut seed = [0x77; 16];
    seed[..4].copy_from_slice(&number.to_be_bytes());
    seed[4..6].copy_from_slice(&socket.local_address().port().to_be_bytes());
    let slow_suites = canopy_net::slow_suites();
    let config = SessionConfig::new(comtree, seed);
    let session = SessionConfig { relay_key: key, slow_suites, ..config };
    Ok((socket, session))
}
