//! The tap that frames for the `xdp` engine are written to.

use std::ffi::c_ulong;
use std::fs::{File, OpenOptions};
use std::io;
use std::mem;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;

/// Whoever may open this may still open no tap but their own.
const CONTROL: &str = "/dev/net/tun";
const FLAGS: i32 = libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_MULTI_QUEUE;

/// Opens a queue of the tap with this name. Its owner needs no capability for it.
///
/// Never blocking, because the kernel runs XDP before it makes a packet of a frame only then.
pub(crate) fn open(name: &str) -> io::Result<File> {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(libc::O_NONBLOCK)
        .open(CONTROL)
        .map_err(|error| match error.kind() {
            io::ErrorKind::PermissionDenied => io::Error::new(
                error.kind(),
                format!("{CONTROL} is closed to this user; let everybody open it (chmod 0666)"),
            ),
            _ => error,
        })?;
    // SAFETY: all zeroes is a value of this struct of integers and a union of such.
    let mut request: libc::ifreq = unsafe { mem::zeroed() };
    if name.len() >= request.ifr_name.len() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    for (to, byte) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = byte as libc::c_char;
    }
    request.ifr_ifru.ifru_flags = FLAGS as i16;
    // SAFETY: the call reads and writes the request, which is as large as it wants.
    let result = unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETIFF, &mut request) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(file) }
}

/// Has the tap of this queue stay when this process ends, and lets `owner` open queues of it.
pub(crate) fn hand_over(queue: &File, owner: u32) -> io::Result<()> {
    for (request, value) in [(libc::TUNSETOWNER, owner), (libc::TUNSETPERSIST, 1)] {
        // SAFETY: both take an integer.
        if unsafe { libc::ioctl(queue.as_raw_fd(), request, c_ulong::from(value)) } < 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}
