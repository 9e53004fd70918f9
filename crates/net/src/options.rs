//! Options of sockets, one function for each.

use rustix::net::sockopt::{set_socket_send_buffer_size, set_socket_send_buffer_size_force};
use std::io;
use std::mem;
use std::os::fd::AsRawFd;
use std::ptr;

/// Sets one option.
pub(crate) fn set_option<T>(
    socket: &socket2::Socket,
    level: i32,
    name: i32,
    value: &T,
) -> io::Result<()> {
    // SAFETY: the kernel reads as many bytes as the value has; for the filter program, also the
    // steps that it points to, which the caller keeps until this returns.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            level,
            name,
            ptr::from_ref(value).cast(),
            mem::size_of::<T>() as libc::socklen_t,
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Has a socket told of what became of what it sent: of a full device queue too.
///
/// # Errors
/// What the kernel says.
pub fn tell_errors(socket: &socket2::Socket, ipv6: bool) -> io::Result<()> {
    if ipv6 {
        set_option(socket, libc::SOL_IPV6, libc::IPV6_RECVERR, &1)?;
    }
    set_option(socket, libc::SOL_IP, libc::IP_RECVERR, &1)
}

/// Sets how many bytes may wait to leave: beyond the system's limit if this process may.
pub(crate) fn set_send_buffer(socket: &socket2::Socket, bytes: usize) -> io::Result<()> {
    set_socket_send_buffer_size_force(socket, bytes)
        .or_else(|_| set_socket_send_buffer_size(socket, bytes))?;
    Ok(())
}

/// Has a socket told with each datagram which of the host's addresses it was sent to.
pub(crate) fn tell_addresses(socket: &socket2::Socket, ipv6: bool) -> io::Result<()> {
    if ipv6 {
        set_option(socket, libc::SOL_IPV6, libc::IPV6_RECVPKTINFO, &1)
    } else {
        set_option(socket, libc::SOL_IP, libc::IP_PKTINFO, &1)
    }
}

/// Makes a socket go by its device's MTU alone. What ICMP messages say of the path's is neither
/// believed nor noted, for anybody can forge them. What is longer than the device or the path
/// takes is cut into fragments, as without path MTU discovery.
pub(crate) fn ignore_path_mtu(socket: &socket2::Socket, ipv6: bool) -> io::Result<()> {
    if ipv6 {
        let omit = libc::IPV6_PMTUDISC_OMIT;
        set_option(socket, libc::SOL_IPV6, libc::IPV6_MTU_DISCOVER, &omit)?;
    }
    set_option(socket, libc::SOL_IP, libc::IP_MTU_DISCOVER, &libc::IP_PMTUDISC_OMIT)
}

/// Sets how many bytes may wait in a socket of the standard library's; the kernel may grant less.
///
/// # Errors
/// What the kernel says.
pub fn set_receive_buffer(socket: &std::net::UdpSocket, bytes: usize) -> io::Result<()> {
    socket2::SockRef::from(socket).set_recv_buffer_size(bytes)
}
