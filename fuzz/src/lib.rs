//! What is fuzzed: one function a target. It takes any bytes and panics if a promise is broken.
//!
//! On stable, `cargo test` replays the committed corpora. `cargo xtask fuzz packet` looks for new
//! inputs, on nightly, and keeps them outside the corpus.

mod answers;
mod api;
mod bed;
mod channel;
mod control;
mod hello;
mod host;
mod input;
mod joining;
mod participant;
mod relay;
mod session;
mod token;
mod tokens;
mod wire;

pub use answers::{answers, answers_seeds, run_answers};
pub use api::{ASKS, api, api_seeds, run_api};
pub use channel::{channel, channel_seeds, run_channel};
pub use control::{control, control_seeds, run_control};
pub use hello::{hello, hello_seeds, run_hello};
pub use joining::joining;
pub use relay::{Run, relay, run_relay};
pub use session::session;
pub use token::token;
pub use wire::{handshake, packet, subscribe, subscribe_ack, updates};

use canopy_wire::{HEADER_LEN, Sealed};

/// A target: it returns if the bytes are handled as promised, accepted or not.
pub type Target = fn(&[u8]);

/// Every target under its name, which is also that of its binary and of its corpus's folder.
pub const TARGETS: &[(&str, Target)] = &[
    ("packet", packet),
    ("updates", updates),
    ("subscribe", subscribe),
    ("subscribe_ack", subscribe_ack),
    ("handshake", handshake),
    ("joining", joining),
    ("token", token),
    ("relay", relay),
    ("session", session),
    ("control", control),
    ("api", api),
    ("hello", hello),
    ("answers", answers),
    ("channel", channel),
];

/// What a packet is as an input of a target of `canopy-wire`: some put a header of their own in
/// front, and need what follows it.
pub fn input_of(target: &str, packet: &[u8]) -> Vec<u8> {
    let (header, body) = packet.split_at(HEADER_LEN);
    match target {
        "packet" | "handshake" => packet.to_vec(),
        // How many records there are, the header says.
        "updates" => [&header[10..11], body].concat(),
        _ => body.to_vec(),
    }
}

/// Whether a datagram says of itself that it is sealed.
fn is_sealed(datagram: &[u8]) -> bool {
    Sealed::of(datagram).is_some()
}
