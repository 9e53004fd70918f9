//! ICMP messages about what a relay has sent, as anybody can forge them: that nobody listens where it went.
//!
//! A way's MTU is not forged here. The kernel believes that for all processes of the host, for ten minutes;
//! tests do it between hosts of their own.

use anyhow::Context;
use socket2::{Domain, Protocol, Socket, Type};
use std::net::{Ipv4Addr, SocketAddr};

/// Too little for what the kernel answers: nobody reads it.
const RECEIVE_BUFFER: usize = 4096;
/// Bytes of the datagram that a message quotes.
const QUOTED_LEN: u16 = 1232 + 28;

/// Who forges them.
pub(super) struct Forger {
    socket: Socket,
    to: SocketAddr,
    message: Vec<u8>,
}

impl Forger {
    /// Forges messages about what leaves from `relay`.
    pub(super) fn new(relay: SocketAddr) -> anyhow::Result<Forger> {
        let socket = open().context("forging ICMP messages takes root, or CAP_NET_RAW")?;
        let SocketAddr::V4(from) = relay else {
            anyhow::bail!("the relay is to have an IPv4 address")
        };
        let message = message(*from.ip(), from.port());
        Ok(Forger { socket, to: relay, message })
    }

    /// Forges about another's from now on.
    pub(super) fn turn_to(&mut self, other: SocketAddr) -> anyhow::Result<()> {
        *self = Forger::new(other)?;
        Ok(())
    }

    /// Sends one; returns its bytes.
    pub(super) fn send(&mut self) -> anyhow::Result<u64> {
        let sent = self.socket.send_to(&self.message, &self.to.into());
        Ok(sent.context("the forger cannot send")? as u64)
    }
}

/// Whether this process may.
pub(super) fn may_forge() -> bool {
    open().is_ok()
}

fn open() -> std::io::Result<Socket> {
    let socket = Socket::new(Domain::IPV4, Type::RAW, Some(Protocol::ICMPV4))?;
    socket.set_recv_buffer_size(RECEIVE_BUFFER)?;
    Ok(socket)
}

/// "Port unreachable" (RFC 792), about a datagram from there to a port of this host.
fn message(ip: Ipv4Addr, port: u16) -> Vec<u8> {
    let mut message = vec![3, 3, 0, 0, 0, 0, 0, 0];
    let [length_high, length_low] = QUOTED_LEN.to_be_bytes();
    message.extend([0x45, 0, length_high, length_low, 0, 0, 0, 0, 64, 17, 0, 0]);
    message.extend([ip.octets(), Ipv4Addr::LOCALHOST.octets()].concat());
    for word in [port, 9, QUOTED_LEN - 20, 0] {
        message.extend(word.to_be_bytes());
    }
    let sum = checksum(&message);
    message[2..4].copy_from_slice(&sum.to_be_bytes());
    message
}

/// The internet checksum (RFC 1071).
fn checksum(bytes: &[u8]) -> u16 {
    let words =
        bytes.chunks(2).map(|pair| pair.iter().fold(0, |word, byte| word << 8 | u32::from(*byte)));
    let sum: u32 = words.sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    !((folded & 0xffff) + (folded >> 16)) as u16
}

#[cfg(test)]
mod tests {
    use super::*;
    use canopy_output::print_note;
    use std::io::ErrorKind;
    use std::net::UdpSocket;
    use std::time::Duration;

    #[test]
    fn a_forged_message_is_one_that_kernels_believe() {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.connect("127.0.0.1:9").unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        let mut forger = match Forger::new(socket.local_addr().unwrap()) {
            Ok(forger) => forger,
            Err(error) => return print_note(format_args!("skipped: {error}")),
        };
        assert_eq!(forger.send().unwrap(), 36);
        let told = socket.recv(&mut [0; 10]).unwrap_err();
        assert_eq!(told.kind(), ErrorKind::ConnectionRefused, "nothing was ever sent");
    }
}
