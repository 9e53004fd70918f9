//! Loading the kernel's programs and attaching them.

use super::error::{InstallError, kernel, lacking, rejected, source_errno};
use super::installation::Installation;
use crate::clone::netlink::Device;
use crate::clone::slot::CHUNK;
use aya::maps::xdp::DevMap;
use aya::maps::{ArrayOfMaps, Map, MapData, MapError};
use aya::programs::links::{FdLink, PinnedLink};
use aya::programs::tc::TcAttachOptions;
use aya::programs::{BtfTracePoint, LinkOrder, SchedClassifier, TcAttachType, Xdp, XdpMode};
use aya::{Btf, Ebpf, EbpfLoader, Endianness};
use aya_obj::generated::{bpf_devmap_val, bpf_map_type};
use std::fs;
use std::io;
use std::path::Path;

/// A kernel without this description was built without it, and cannot load the programs.
pub(super) fn types_in(file: &Path) -> io::Result<Btf> {
    let described = fs::metadata(file)
        .and_then(|_| Btf::parse_file(file, Endianness::default()).map_err(io::Error::other));
    described.map_err(|error| io::Error::new(error.kind(), format!("{} ({error})", file.display())))
}

pub(super) fn load(
    programs: &[u8],
    types: &Btf,
    installation: &Installation,
    tap_index: u32,
) -> Result<Ebpf, InstallError> {
    let (device_index, tap_index) = (installation.device as i32, tap_index as i32);
    let namespace = installation.namespace as u32;
    let programs = EbpfLoader::new()
        .btf(Some(types))
        .override_global("device_index", &device_index, true)
        .override_global("tap_index", &tap_index, true)
        .override_global("namespace_number", &namespace, true)
        .load(programs);
    programs.map_err(|error| match source_errno(&error) {
        Some(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            InstallError::Privilege { what: "making the maps", error }
        }
        _ => lacking("making the maps", &error),
    })
}

pub(super) fn attach_clone(
    programs: &mut Ebpf,
    device: &Device,
    folder: &Path,
) -> Result<(), InstallError> {
    let program: &mut SchedClassifier = program(programs, "clone_to_members")?;
    program.load().map_err(|error| rejected("clone_to_members", &error))?;
    // By a link, which lives as long as its pin; kernels without tcx have none.
    let tcx = TcAttachOptions::TcxOrder(LinkOrder::default());
    let attached = program.attach_with_options(&device.name, TcAttachType::Egress, tcx);
    let link = kernel("attaching to the device's egress (tcx)", attached)?;
    let link = kernel("attaching to the device's egress", program.take_link(link))?;
    pin(link, &folder.join("clone"))
}

pub(super) fn attach_broadcast(
    programs: &mut Ebpf,
    device: &Device,
    tap_index: u32,
    types: &Btf,
    folder: &Path,
) -> Result<(), InstallError> {
    let copy: &mut Xdp = program(programs, "address_copy")?;
    copy.load().map_err(|error| rejected("address_copy", &error))?;
    let copy = kernel("keeping a program", copy.fd().and_then(|fd| Ok(fd.try_clone()?)))?;
    let fans = programs.map_mut("fans").map(ArrayOfMaps::<_, DevMap<MapData>>::try_from);
    let mut fans = kernel("the array of device maps", fans.transpose())?.ok_or_else(missing)?;
    for count in 1..=CHUNK as u32 {
        let mut fan = kernel("making device maps", device_map(count))?;
        for entry in 0..count {
            kernel("filling device maps", fan.set(entry, device.index, Some(&copy), 0))?;
        }
        kernel("filling the array of device maps", fans.set(count, &fan, 0))?;
    }
    let broadcast: &mut Xdp = program(programs, "broadcast_frame")?;
    broadcast.load().map_err(|error| rejected("broadcast_frame", &error))?;
    let link = broadcast.attach_to_if_index(tap_index, XdpMode::Driver);
    let link = kernel("attaching to the tap", link)?;
    pin(kernel("attaching to the tap", broadcast.take_link(link))?, &folder.join("broadcast"))?;
    let drops: &mut BtfTracePoint = program(programs, "note_losses")?;
    let loaded = drops.load("xdp_devmap_xmit", types);
    loaded.map_err(|error| rejected("note_losses", &error))?;
    let link = kernel("attaching to the tracepoint xdp_devmap_xmit", drops.attach())?;
    pin(kernel("attaching to the tracepoint", drops.take_link(link))?, &folder.join("drops"))
}

fn device_map(entries: u32) -> Result<DevMap<MapData>, MapError> {
    const VALUE_LEN: u32 = size_of::<bpf_devmap_val>() as u32;
    let kind = bpf_map_type::BPF_MAP_TYPE_DEVMAP as u32;
    let map = aya_obj::Map::new_from_params(kind, size_of::<u32>() as u32, VALUE_LEN, entries, 0);
    DevMap::try_from(Map::from_map_data(MapData::create(map, "fan", None)?)?)
}

fn program<'a, P>(programs: &'a mut Ebpf, name: &str) -> Result<&'a mut P, InstallError>
where
    &'a mut P: TryFrom<&'a mut aya::programs::Program>,
{
    programs.program_mut(name).and_then(|program| program.try_into().ok()).ok_or_else(missing)
}

fn missing() -> InstallError {
    InstallError::Kernel {
        what: "the programs are not those that this was built for",
        error: "build them again with `cargo xtask bpf`".to_owned(),
        remedy: "",
    }
}

fn pin<L>(link: L, path: &Path) -> Result<(), InstallError>
where
    FdLink: TryFrom<L>,
    <FdLink as TryFrom<L>>::Error: std::error::Error + 'static,
{
    let link = kernel("keeping a program attached", FdLink::try_from(link))?;
    let _stays: PinnedLink = kernel("pinning a link", link.pin(path))?;
    Ok(())
}
