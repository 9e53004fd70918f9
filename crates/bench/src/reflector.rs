//! The baseline: a reflector as one would first write it, one `recvfrom`, then one `sendto` for
//! each member but the sender.

use canopy_output::print_line;
use clap::Args;
use std::net::{SocketAddr, UdpSocket};
use std::process::ExitCode;

/// A datagram of this one byte makes its sender a member; anything longer is for the others.
pub(crate) const JOIN: u8 = b'J';

#[derive(Args)]
pub(crate) struct Reflector {
    /// Stay on this processor
    #[arg(long)]
    pin: usize,
    /// Address to listen on
    #[arg(long, default_value = "127.0.0.1:0")]
    listen: SocketAddr,
}

impl Reflector {
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        canopy_net::pin_thread(self.pin)?;
        let socket = UdpSocket::bind(self.listen)?;
        grow_receive_buffer(&socket)?;
        print_line(serde_json::json!({ "relay": socket.local_addr()? }))?;
        let mut members: Vec<SocketAddr> = Vec::new();
        let mut bytes = [0; 2048];
        loop {
            let (len, from) = socket.recv_from(&mut bytes)?;
            if bytes[..len] == [JOIN] {
                members.push(from);
                socket.send_to(&[JOIN], from)?;
                continue;
            }
            for member in &members {
                if *member != from {
                    // A member that is gone costs the others nothing.
                    let _ = socket.send_to(&bytes[..len], member);
                }
            }
        }
    }
}

/// As large a receive buffer as the relay's, so that the baseline does not lose by waiting.
fn grow_receive_buffer(socket: &UdpSocket) -> anyhow::Result<()> {
    Ok(canopy_net::set_receive_buffer(socket, canopy_net::SocketOptions::default().receive_buffer)?)
}
