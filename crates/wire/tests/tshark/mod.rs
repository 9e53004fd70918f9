//! tshark with the dissector: captured datagrams go in, what it shows of them comes out.

use std::path::Path;
use std::process::Command;

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/wireshark/canopy.lua");
/// A port that the dissector is told of, one that is decoded "as Canopy", and two where only its
/// heuristic can find a packet; on the second none vouches for the rest. No socket is opened on them.
pub(crate) const NAMED_PORT: u16 = 40_000;
pub(crate) const DECODED_AS_PORT: u16 = 40_001;
pub(crate) const OTHER_PORT: u16 = 40_002;
pub(crate) const STRANGE_PORT: u16 = 40_003;

/// Where tshark shows what is remarkable in a packet, Lua errors included; the last column.
pub(crate) const EXPERT: &str = "_ws.expert.message";

/// Why this machine cannot run the test, if it cannot.
pub(crate) fn unavailable() -> Option<String> {
    match Command::new("tshark").arg("--version").output() {
        Err(error) => Some(format!("tshark cannot be started: {error}")),
        Ok(output) => {
            let about = String::from_utf8_lossy(&output.stdout).replace('\n', " ");
            (!about.contains("with Lua")).then(|| "this tshark was built without Lua".to_owned())
        }
    }
}

/// A captured datagram.
pub(crate) struct Frame<'a> {
    pub(crate) port: u16,
    pub(crate) datagram: &'a [u8],
    /// How many of its bytes the capture kept.
    pub(crate) captured: usize,
}

impl Frame<'_> {
    pub(crate) fn new(port: u16, datagram: &[u8]) -> Frame<'_> {
        Frame { port, datagram, captured: datagram.len() }
    }
}

/// The named fields of each frame, as tshark prints them, then [`EXPERT`]. Fails on any Lua error.
pub(crate) fn fields(frames: &[Frame<'_>], names: &[&str]) -> Vec<Vec<String>> {
    let mut args = vec!["-T", "fields", "-E", "separator=/t", "-E", "occurrence=a"];
    args.extend(["-E", "aggregator=|"]);
    for name in names.iter().chain(&[EXPERT]) {
        args.extend(["-e", name]);
    }
    let shown = prints(frames, &args);
    let rows: Vec<Vec<String>> =
        shown.lines().map(|line| line.split('\t').map(str::to_owned).collect()).collect();
    assert_eq!(rows.len(), frames.len(), "one line a packet");
    for row in &rows {
        let expert = &row[names.len()];
        assert!(!expert.contains("Lua"), "{expert}");
    }
    rows
}

/// All that tshark shows of a datagram's fields, a line each.
pub(crate) fn tree(datagram: &[u8]) -> String {
    prints(&[Frame::new(NAMED_PORT, datagram)], &["-O", "canopy"])
}

fn prints(frames: &[Frame<'_>], args: &[&str]) -> String {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("canopy.pcap");
    std::fs::write(&file, pcap(frames)).unwrap();
    let output = command(folder.path(), &file).args(args).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    let complaint = said.lines().find(|line| line.to_lowercase().contains("lua"));
    assert_eq!(complaint, None, "{said}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn command(home: &Path, file: &Path) -> Command {
    let mut command = Command::new("tshark");
    // A user's own settings and plugins, perhaps this very script, stay out of it.
    for variable in ["HOME", "XDG_CONFIG_HOME", "WIRESHARK_CONFIG_DIR"] {
        command.env(variable, home);
    }
    command.env("LC_ALL", "C.UTF-8").arg("-r").arg(file);
    command.args(["-X", &format!("lua_script:{SCRIPT}")]);
    command.args(["-o", &format!("canopy.ports:{NAMED_PORT}")]);
    command.args(["-d", &format!("udp.port=={DECODED_AS_PORT},canopy")]);
    command
}

/// A pcap file of raw IPv4 (LINKTYPE_RAW).
fn pcap(frames: &[Frame<'_>]) -> Vec<u8> {
    let mut file = Vec::new();
    for word in [0xa1b2_c3d4, 0x0002_0004, 0, 0, 65_535, 101_u32] {
        file.extend_from_slice(&word.to_be_bytes());
    }
    for (frame, second) in frames.iter().zip(0_u32..) {
        let packet = ipv4_udp(frame.port, frame.datagram);
        let captured = packet.len() - frame.datagram.len() + frame.captured;
        for word in [second, 0, captured as u32, packet.len() as u32] {
            file.extend_from_slice(&word.to_be_bytes());
        }
        file.extend_from_slice(&packet[..captured]);
    }
    file
}

/// `datagram` behind an IPv4 and a UDP header without checksums, between documentation addresses.
fn ipv4_udp(port: u16, datagram: &[u8]) -> Vec<u8> {
    let udp_len = 8 + datagram.len() as u16;
    let mut packet = vec![0x45, 0];
    packet.extend_from_slice(&(20 + udp_len).to_be_bytes());
    packet.extend_from_slice(&[0, 0, 0x40, 0, 64, 17, 0, 0, 192, 0, 2, 1, 192, 0, 2, 2]);
    for half in [port, port, udp_len, 0] {
        packet.extend_from_slice(&half.to_be_bytes());
    }
    packet.extend_from_slice(datagram);
    packet
}
