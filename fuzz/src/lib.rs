//! What is fuzzed: one function a target. It takes any bytes and panics if a promise is broken.
//!
//! On stable, `cargo test` replays the committed corpora. `cargo xtask fuzz packet` looks for new
//! inputs, on nightly, and keeps them outside the corpus.

mod input;
mod participant;
mod relay;
mod session;
mod wire;

pub use relay::{Run, relay, run_relay};
pub use session::session;
pub use wire::{bundle, handshake, packet, subscribe, subscribe_ack};

/// A target: it returns if the bytes are handled as promised, accepted or not.
pub type Target = fn(&[u8]);

/// Every target under its name, which is also that of its binary and of its corpus's folder.
pub const TARGETS: &[(&str, Target)] = &[
    ("packet", packet),
    ("bundle", bundle),
    ("subscribe", subscribe),
    ("subscribe_ack", subscribe_ack),
    ("handshake", handshake),
    ("relay", relay),
    ("session", session),
];
