//! What the kernel drops before a relay can read it, and what to do about it.

use std::fs::read_to_string;
use std::ops::Add;

/// Datagrams that the kernel dropped, since the system's start or between two looks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KernelDrops {
    /// Before a socket was looked for: a processor's queue of packets was full
    /// (`/proc/net/softnet_stat`, of the whole machine).
    pub backlog: u64,
    /// By the devices of the relays' hosts (`/proc/net/dev`).
    pub devices: u64,
    /// At a socket whose receive buffer was full (`UdpRcvbufErrors`): the flood's own lane.
    pub receive_buffers: u64,
}

impl KernelDrops {
    /// What was dropped until now, as the calling thread's network namespace counts it. What the
    /// system does not tell counts as none.
    pub fn read() -> KernelDrops {
        let read = |file| read_to_string(format!("/proc/thread-self/net/{file}"));
        let read = |file| read(file).unwrap_or_default();
        KernelDrops {
            backlog: dropped_in(&read("softnet_stat")),
            devices: dropped_by_devices(&read("dev")),
            receive_buffers: udp_counter(&read("snmp"), "RcvbufErrors"),
        }
    }

    /// What was dropped since `before`.
    #[must_use]
    pub fn since(self, before: KernelDrops) -> KernelDrops {
        KernelDrops {
            backlog: self.backlog.saturating_sub(before.backlog),
            devices: self.devices.saturating_sub(before.devices),
            receive_buffers: self.receive_buffers.saturating_sub(before.receive_buffers),
        }
    }

    /// What to do, if what was dropped may have been anybody's: what finds a receive buffer full is its
    /// lane's own.
    pub fn remedy(self) -> Option<&'static str> {
        if self.backlog > 0 {
            return Some(
                "a processor's queue of packets was full, before anybody could tell whose they are: \
                 raise net.core.netdev_max_backlog (sysctl), or spread the receive work over more \
                 processors (rps_cpus of the device, or its queues by ethtool -L)",
            );
        }
        (self.devices > 0).then_some(
            "a device dropped packets: lengthen its rings (ethtool -G), or spread it over more queues",
        )
    }
}

impl Add for KernelDrops {
    type Output = KernelDrops;

    /// What two hosts dropped that share their processors' queues: those are counted once.
    fn add(self, other: KernelDrops) -> KernelDrops {
        KernelDrops {
            backlog: self.backlog.max(other.backlog),
            devices: self.devices + other.devices,
            receive_buffers: self.receive_buffers + other.receive_buffers,
        }
    }
}

/// The second column of every processor's line, in hexadecimal.
fn dropped_in(softnet: &str) -> u64 {
    let of_line = |line: &str| u64::from_str_radix(line.split_whitespace().nth(1)?, 16).ok();
    softnet.lines().filter_map(of_line).sum()
}

/// What was dropped on receiving and on sending, by all devices.
fn dropped_by_devices(dev: &str) -> u64 {
    let of_line = |line: &str| {
        let (_, numbers) = line.split_once(':')?;
        let numbers: Vec<u64> =
            numbers.split_whitespace().filter_map(|text| text.parse().ok()).collect();
        Some(numbers.get(3)? + numbers.get(11)?)
    };
    dev.lines().filter_map(of_line).sum()
}

/// A counter of the lines that begin with `Udp:`: names first, then values.
fn udp_counter(snmp: &str, name: &str) -> u64 {
    let mut lines = snmp.lines().filter(|line| line.starts_with("Udp:"));
    let (names, values) = (lines.next(), lines.next());
    let at = names.and_then(|names| names.split_whitespace().position(|one| one == name));
    let value = at.zip(values).and_then(|(at, values)| values.split_whitespace().nth(at));
    value.and_then(|value| value.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_read_as_the_kernel_writes_them() {
        let softnet = "0000272d 0000000a 00000000\n000034d9 00000001 00000000\n";
        assert_eq!(dropped_in(softnet), 11);
        let dev = "Inter-| Receive | Transmit\n face |bytes packets errs drop\n\
                   eth0: 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16\n lo: 0 0 0 1 0 0 0 0 0 0 0 0 0 0 0 0\n";
        assert_eq!(dropped_by_devices(dev), 17);
        let snmp = "Udp: InDatagrams NoPorts InErrors OutDatagrams RcvbufErrors\nUdp: 9 8 7 6 5\n";
        assert_eq!((udp_counter(snmp, "RcvbufErrors"), udp_counter(snmp, "None")), (5, 0));
    }

    #[test]
    fn what_fills_a_floods_own_buffer_needs_no_remedy() {
        let drops = KernelDrops { receive_buffers: 9, ..KernelDrops::default() };
        assert_eq!(drops.remedy(), None);
        assert!(
            KernelDrops { backlog: 1, ..drops }.remedy().unwrap().contains("netdev_max_backlog")
        );
    }
}
