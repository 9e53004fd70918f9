//! A sink in the kernel, for benches: what arrives at a device is counted and dropped.

use aya::maps::{Array, MapData};
use aya::programs::{SchedClassifier, TcAttachType, Xdp, XdpMode};
use aya::{Ebpf, EbpfError};
use std::io;

const PROGRAMS: &[u8] = aya::include_bytes_aligned!("../bpf/sink.bpf.o");

/// Where datagrams are dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SinkPlace {
    /// Before the kernel's network stack looks at them, as the driver hands them over.
    Ingress,
    /// In the driver, before they become packets. What leaves the other end of a virtual pair is
    /// then segmented in software.
    Driver,
}

/// A sink on a device of the network namespace that it was made in. It is gone when dropped.
pub struct KernelSink {
    programs: Ebpf,
}

impl KernelSink {
    /// Counts and drops every UDP datagram that arrives at the device.
    ///
    /// # Errors
    /// Without the privilege to load programs, or if there is no such device.
    pub fn attach(device: &str, place: SinkPlace) -> io::Result<KernelSink> {
        let mut programs = Ebpf::load(PROGRAMS).map_err(io::Error::other)?;
        attach(&mut programs, device, place).map_err(io::Error::other)?;
        Ok(KernelSink { programs })
    }

    /// Datagrams that arrived for each of these ports since the sink was attached.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn counts(&self, ports: impl IntoIterator<Item = u16>) -> io::Result<Vec<u64>> {
        let map = self.programs.map("counts").ok_or(io::ErrorKind::NotFound)?;
        let counts: Array<&MapData, u64> = map.try_into().map_err(io::Error::other)?;
        ports
            .into_iter()
            .map(|port| counts.get(&u32::from(port), 0).map_err(io::Error::other))
            .collect()
    }
}

fn attach(programs: &mut Ebpf, device: &str, place: SinkPlace) -> Result<(), EbpfError> {
    match place {
        SinkPlace::Ingress => {
            if let Some(program) = programs.program_mut("sink_at_ingress") {
                let program: &mut SchedClassifier = program.try_into()?;
                program.load()?;
                program.attach(device, TcAttachType::Ingress)?;
            }
        }
        SinkPlace::Driver => {
            if let Some(program) = programs.program_mut("sink_at_driver") {
                let program: &mut Xdp = program.try_into()?;
                program.load()?;
                program.attach(device, XdpMode::Driver)?;
            }
        }
    }
    Ok(())
}
