//! What a relay uses of the kernel and of the host, each tried by itself, for whoever wants to know
//! what is missing here.

use crate::socket::{Socket, SocketOptions};
use rustix::process::{Resource, getrlimit};
use std::io;
use std::net::{Ipv4Addr, SocketAddr};

/// Something that the kernel may have or not.
#[derive(Debug)]
pub struct Feature {
    /// Its name.
    pub name: &'static str,
    /// What it is good for.
    pub good_for: &'static str,
    /// Since which Linux it is there.
    pub since: &'static str,
    /// Whether it is here.
    pub tried: io::Result<()>,
}

/// Every datagram goes to the first of the sockets.
const FIRST_SOCKET: libc::sock_filter =
    libc::sock_filter { code: (libc::BPF_RET | libc::BPF_K) as u16, jt: 0, jf: 0, k: 0 };

/// Tries what sockets can do here.
///
/// # Errors
/// There is no socket to be had on this host's own address.
pub fn socket_features() -> io::Result<[Feature; 3]> {
    let here = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let options = SocketOptions { receive_offload: false, ..SocketOptions::default() };
    let socket = Socket::join(here, &options)?;
    let steered = socket.steer(&mut [FIRST_SOCKET]);
    Ok([
        Feature {
            name: "UDP_SEGMENT",
            good_for: "several datagrams for one receiver leave in one send",
            since: "4.18",
            tried: socket.probe_segmentation(),
        },
        Feature {
            name: "UDP_GRO",
            good_for: "several datagrams from one sender arrive in one read",
            since: "5.0",
            tried: socket.probe_receive_offload(),
        },
        Feature {
            name: "SO_REUSEPORT",
            good_for: "a program steers each session's datagrams to its data thread and lane",
            since: "4.5",
            tried: steered,
        },
    ])
}

/// How many files this process may have open.
pub fn open_files() -> u64 {
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

/// Whether something such as NTP keeps the system's clock right.
///
/// # Errors
/// If the kernel does not say.
pub fn is_clock_synchronised() -> io::Result<bool> {
    // SAFETY: all zeros is a value of this type; with no modes set, the call only reads.
    let mut state: libc::timex = unsafe { std::mem::zeroed() };
    // SAFETY: the call writes one timex.
    match unsafe { libc::adjtimex(&mut state) } {
        -1 => Err(io::Error::last_os_error()),
        libc::TIME_ERROR => Ok(false),
        _ => Ok(state.status & libc::STA_UNSYNC == 0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_has_is_found_without_a_change() {
        let names = socket_features().unwrap().map(|feature| feature.name);
        assert_eq!(names, ["UDP_SEGMENT", "UDP_GRO", "SO_REUSEPORT"]);
        // Every Linux that this runs on has them.
        for feature in socket_features().unwrap() {
            assert!(feature.tried.is_ok(), "{feature:?}");
        }
        assert!(open_files() > 10);
        if let Err(error) = is_clock_synchronised() {
            println!("skipped: the kernel does not tell of its clock: {error}");
        }
    }
}
