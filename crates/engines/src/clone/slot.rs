//! The slot that this process shares with the kernel's programs: members, orders and outcomes.
//!
//! The memory is a BPF map's, mapped here; writing to it is no system call. The kernel reads it
//! only during a system call of this engine's, and writes the outcome before that returns.

use std::fs::{File, TryLockError};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU64, Ordering, compiler_fence};
use std::thread;
use std::time::Duration;

/// Slots of an installation, one for each engine at work.
pub(crate) const SLOTS: usize = 16;
/// Members that a slot has room for.
pub(crate) const MEMBERS: usize = 1024;
/// The most copies of one packet. While the kernel makes them, nothing else runs on the processor.
pub(crate) const CHUNK: usize = 128;

/// How long a slot may seem to be in use because somebody looks whether it is.
const LOOKED_AT_FOR: Duration = Duration::from_millis(5);

/// A hardware address.
pub(crate) type Mac = [u8; 6];

/// A receiver as the kernel's programs want it.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Entry {
    mac: Mac,
    port: u16,
    address: [u32; 4],
    sum: u32,
    reserved: u32,
}

impl Entry {
    pub(crate) fn new(to: SocketAddr, mac: Mac) -> Entry {
        let mut bytes = [0; 16];
        match to.ip() {
            IpAddr::V4(ip) => bytes[..4].copy_from_slice(&ip.octets()),
            IpAddr::V6(ip) => bytes = ip.octets(),
        }
        let mut address = [0; 4];
        for (word, bytes) in address.iter_mut().zip(bytes.chunks_exact(4)) {
            *word = u32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        }
        let sum = u32::from(fold(sum_of(&bytes)));
        Entry { mac, port: to.port().to_be(), address, sum, reserved: 0 }
    }
}

/// One's complement sum of 16-bit words, as they lie in memory; an odd byte is followed by zero.
pub(crate) fn sum_of(bytes: &[u8]) -> u64 {
    let words = bytes.chunks_exact(2);
    let last = words.remainder().first().map_or(0, |byte| u16::from_ne_bytes([*byte, 0]));
    words.map(|word| u64::from(u16::from_ne_bytes([word[0], word[1]]))).sum::<u64>()
        + u64::from(last)
}

/// The sum's last 16 bits, carries added in.
pub(crate) fn fold(mut sum: u64) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

/// `struct slot` of bpf/groupcast.bpf.c.
#[repr(C)]
struct Shared {
    total: u16,
    first: u16,
    count: u16,
    sequence: u16,
    source_port: u16,
    length: u16,
    served: u16,
    ran: u16,
    refused: i32,
    unused: u32,
    copies: u64,
    device_mac: Mac,
    reserved: u16,
    lost: [u64; CHUNK / 64],
    members: [Entry; MEMBERS],
}

/// Where a packet goes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Order {
    /// The first member that it is for.
    pub(crate) first: usize,
    /// How many it is for, from 1 to [`CHUNK`]; behind the last member comes the first.
    pub(crate) count: usize,
    /// Bytes of its UDP payload.
    pub(crate) length: usize,
}

/// What became of an order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Outcome {
    /// Whether the kernel's program saw the packet at all.
    pub(crate) ran: bool,
    /// How many members were served, in order.
    pub(crate) served: usize,
    /// A bit for each that was served and that the device lost.
    pub(crate) lost: u128,
    /// The error of the copy behind the last one served, or 0.
    pub(crate) refused: i32,
}

/// A claimed slot.
pub(crate) struct Slot {
    number: u32,
    sequence: u16,
    mapping: Mapping,
    /// Locked as long as the slot is claimed; the kernel lets go of it when the process ends.
    claim: File,
}

impl Slot {
    /// Claims a free slot of the installation in `folder`, whose slots are the map `slots`.
    pub(crate) fn claim(folder: &Path, slots: &impl AsFd) -> io::Result<Slot> {
        // Somebody may be looking which slots are free, and hold a free one for that moment.
        for pause in [Duration::ZERO, LOOKED_AT_FOR] {
            thread::sleep(pause);
            for number in 0..SLOTS {
                let claim = File::open(folder.join(format!("slot-{number}")))?;
                match claim.try_lock() {
                    Ok(()) => return Slot::map(number, claim, slots),
                    Err(TryLockError::WouldBlock) => {}
                    Err(TryLockError::Error(error)) => return Err(error),
                }
            }
        }
        let why = format!("all {SLOTS} slots are in use by other data threads; use fewer threads");
        Err(io::Error::other(why))
    }

    fn map(number: usize, claim: File, slots: &impl AsFd) -> io::Result<Slot> {
        let mapping = Mapping::of(slots)?;
        let mut slot = Slot { number: number as u32, sequence: 0, mapping, claim };
        slot.write(|shared| {
            // Whoever had the slot before may have ended in the middle of a send.
            shared.sequence = 0;
            shared.total = 0;
            shared.copies = 0;
        });
        Ok(slot)
    }

    /// Whether the installation was removed.
    pub(crate) fn is_gone(&self) -> bool {
        self.claim.metadata().is_ok_and(|claim| claim.nlink() == 0)
    }

    pub(crate) fn number(&self) -> u32 {
        self.number
    }

    /// Sets where the copies come from.
    pub(crate) fn set_source(&mut self, port: u16, mac: Mac) {
        self.write(|shared| {
            shared.source_port = port.to_be();
            shared.device_mac = mac;
        });
    }

    /// Makes these the members, at most [`MEMBERS`].
    pub(crate) fn set_members(&mut self, members: &[Entry]) {
        self.write(|shared| {
            shared.members[..members.len()].copy_from_slice(members);
            shared.total = members.len() as u16;
        });
    }

    /// Readies the slot for a packet. Returns the number that the packet must carry.
    pub(crate) fn arm(&mut self, order: Order) -> u16 {
        // Zero stands for no order.
        self.sequence = self.sequence % u16::MAX + 1;
        let sequence = self.sequence;
        self.write(|shared| {
            shared.first = order.first as u16;
            shared.count = order.count as u16;
            shared.length = order.length as u16;
            shared.served = 0;
            shared.ran = 0;
            shared.refused = 0;
            shared.lost = [0; CHUNK / 64];
            shared.sequence = sequence.to_be();
        });
        sequence
    }

    /// What became of the order; one that was not seen is taken back.
    pub(crate) fn outcome(&mut self) -> Outcome {
        let mut outcome = Outcome { ran: false, served: 0, lost: 0, refused: 0 };
        self.write(|shared| {
            shared.sequence = 0;
            outcome = Outcome {
                ran: shared.ran != 0,
                served: shared.served.into(),
                lost: u128::from(shared.lost[0]) | u128::from(shared.lost[1]) << 64,
                refused: shared.refused,
            };
        });
        outcome
    }

    /// The one place that touches the shared memory.
    fn write(&mut self, change: impl FnOnce(&mut Shared)) {
        // SAFETY: the mapping holds SLOTS structs of this layout, and this slot's is written by no
        // other thread of any process: its claim is locked. The kernel's programs write it only in
        // system calls of the thread that has the slot, so never during `change`; compiler fences
        // keep the accesses on their side of those calls, which it does not see through anyway.
        // All fields are integers, for which every bit pattern is a value.
        let shared = unsafe { &mut *self.mapping.slot(self.number as usize) };
        compiler_fence(Ordering::SeqCst);
        change(shared);
        compiler_fence(Ordering::SeqCst);
    }
}

/// Copies that the kernel made for those that have or last had the slots.
pub(crate) fn copies(slots: &impl AsFd) -> io::Result<u64> {
    let mapping = Mapping::of(slots)?;
    let copies = (0..SLOTS).map(|number| {
        // SAFETY: within the mapping, aligned, and also written to only as a whole.
        let copies = unsafe { AtomicU64::from_ptr(&raw mut (*mapping.slot(number)).copies) };
        copies.load(Ordering::Relaxed)
    });
    Ok(copies.sum())
}

/// The memory of all slots.
struct Mapping {
    start: NonNull<Shared>,
    len: usize,
}

// SAFETY: plain memory, which stays as long as this, wherever it is moved.
unsafe impl Send for Mapping {}

impl Mapping {
    fn of(slots: &impl AsFd) -> io::Result<Mapping> {
        const { assert!(size_of::<Shared>().is_multiple_of(8), "as an array map's values are") };
        let len = (size_of::<Shared>() * SLOTS).next_multiple_of(4096);
        // SAFETY: a new mapping of the map's memory, which stays as long as the mapping does.
        let start = unsafe {
            let (access, map) = (libc::PROT_READ | libc::PROT_WRITE, slots.as_fd().as_raw_fd());
            libc::mmap(ptr::null_mut(), len, access, libc::MAP_SHARED, map, 0)
        };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Mapping { start, len })
    }

    fn slot(&self, number: usize) -> *mut Shared {
        debug_assert!(number < SLOTS);
        self.start.as_ptr().wrapping_add(number)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped by us with this length, and used no more.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.len) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem;

    #[test]
    fn the_layout_is_the_kernels() {
        assert_eq!(mem::size_of::<Entry>(), 32);
        assert_eq!(mem::offset_of!(Shared, members), 56);
        assert_eq!(mem::size_of::<Shared>(), 56 + 32 * MEMBERS);
    }

    #[test]
    fn sums_are_those_of_the_internet_checksum() {
        // RFC 1071, §3.
        let bytes = [0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7];
        assert_eq!(fold(sum_of(&bytes)).to_ne_bytes(), [0xdd, 0xf2]);
        assert_eq!(sum_of(&[1]), sum_of(&[1, 0]));
    }
}
