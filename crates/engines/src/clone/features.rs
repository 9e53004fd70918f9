//! What a device does itself.

use std::ffi::c_char;
use std::io;
use std::mem;
use std::net::UdpSocket;
use std::os::fd::AsRawFd;

const SIOCETHTOOL: libc::Ioctl = 0x8946;
const ETHTOOL_GSTRINGS: u32 = 0x1b;
const ETHTOOL_GSSET_INFO: u32 = 0x37;
const ETHTOOL_GFEATURES: u32 = 0x3a;
const ETH_SS_FEATURES: u32 = 4;
const NAME_LEN: usize = 32;
const MAX_FEATURES: usize = 256;
const UDP_SEGMENTATION: &[u8] = b"tx-udp-segmentation";

/// `struct ethtool_sset_info` for one set.
#[repr(C)]
struct SetInfo {
    command: u32,
    reserved: u32,
    /// A bit for each set; in the answer, for each that the device has.
    sets: u64,
    count: u32,
}

/// `struct ethtool_gstrings` with room.
#[repr(C)]
struct Names {
    command: u32,
    set: u32,
    count: u32,
    names: [[u8; NAME_LEN]; MAX_FEATURES],
}

/// `struct ethtool_gfeatures` with room.
#[repr(C)]
struct Features {
    command: u32,
    blocks: u32,
    /// Available, requested, active, never changed; 32 features each.
    features: [[u32; 4]; MAX_FEATURES / 32],
}

/// Whether the device cuts a UDP send into datagrams; otherwise the kernel does, before the device
/// sees them.
pub(crate) fn segments_udp(device: &str) -> io::Result<bool> {
    let mut set =
        SetInfo { command: ETHTOOL_GSSET_INFO, reserved: 0, sets: 1 << ETH_SS_FEATURES, count: 0 };
    ask(device, &mut set)?;
    if set.count as usize > MAX_FEATURES {
        return Err(io::Error::other(format!("the kernel knows {} device features", set.count)));
    }
    // Some kernels answer nothing to any other number.
    let mut names = Names {
        command: ETHTOOL_GSTRINGS,
        set: ETH_SS_FEATURES,
        count: set.count,
        names: [[0; NAME_LEN]; MAX_FEATURES],
    };
    ask(device, &mut names)?;
    let is_it =
        |name: &[u8; NAME_LEN]| name.split(|byte| *byte == 0).next() == Some(UDP_SEGMENTATION);
    let Some(number) = names.names.iter().position(is_it) else { return Ok(false) };
    let mut features = Features {
        command: ETHTOOL_GFEATURES,
        blocks: (MAX_FEATURES / 32) as u32,
        features: [[0; 4]; MAX_FEATURES / 32],
    };
    ask(device, &mut features)?;
    let [_, _, active, _] = features.features[number / 32];
    Ok(active >> (number % 32) & 1 == 1)
}

fn ask<T>(device: &str, question: &mut T) -> io::Result<()> {
    // Any socket does.
    let socket = UdpSocket::bind("127.0.0.1:0")?;
    // SAFETY: all zeroes is a value of this struct of integers and a union of such.
    let mut request: libc::ifreq = unsafe { mem::zeroed() };
    for (to, byte) in request.ifr_name.iter_mut().zip(device.bytes()) {
        *to = byte as c_char;
    }
    request.ifr_ifru.ifru_data = std::ptr::from_mut(question).cast();
    // SAFETY: the kernel reads the request and the question's head, and writes no more than there
    // is room for: one number, at most `MAX_FEATURES` names, as many blocks as the head says.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), SIOCETHTOOL, &mut request) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clone::bed::Bed;

    #[test]
    fn a_device_that_stops_cutting_is_found_out() {
        let Some(bed) = Bed::new() else { return };
        let cuts = |device: &str| bed.near.run(|| segments_udp(device)).unwrap();
        assert!(cuts("near").unwrap());
        let Some(()) = bed.offload("near", "tx-udp-segmentation", "off") else { return };
        assert!(!cuts("near").unwrap());
        assert_eq!(cuts("nowhere").unwrap_err().raw_os_error(), Some(libc::ENODEV));
    }
}
