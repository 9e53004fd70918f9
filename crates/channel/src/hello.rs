//! What is asked of the controller, and how it answers.

use serde::{Deserialize, Serialize};
use std::net::SocketAddr;

/// What a caller wants: its first message.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "ask", rename_all = "snake_case", deny_unknown_fields)]
pub enum Hello {
    /// A relay wants to be told what to do. After [`Registered`], control messages go both ways.
    Register(Register),
    /// A participant wants to enter a world.
    Join(Join),
    /// A participant wants to stay: the same question again, which prolongs its lease.
    Renew(Join),
    /// The same, of one that would go to another relay, because its own drains or another is nearer. If
    /// the answer names another relay, it has a place at both, until it gives one of them back.
    Move(Join),
    /// A participant leaves a world, or gives back one of two places.
    Leave {
        /// The world's name.
        world: String,
        /// The token by which it came in.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        credential: Option<String>,
        /// The address of the place that it gives back, such as `1.64`; all that it has if nothing.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        address: Option<String>,
        /// The number that it has given to the visit that ends; whichever there is if nothing.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        visit: Option<u64>,
    },
    /// A participant wants to follow the areas of a world that it is in. After the answer, areas come over
    /// this channel in [`pieces`](crate::pieces()), and its reports go back, each a message.
    Follow {
        /// The world's name.
        world: String,
        /// The token by which it came in.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        credential: Option<String>,
    },
    /// A participant wants to know which relays to measure.
    Relays,
}

/// A relay that registers. Its key is the channel's.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Register {
    /// Its name.
    pub name: String,
    /// Where participants and other relays reach it.
    pub native: SocketAddr,
    /// What it can send and receive altogether.
    pub uplink: Budget,
    /// How many members it has room for.
    pub places: u32,
    /// How many comtrees it can carry; [`Register::COMTREES`] is not said, so that controllers of earlier releases read
    /// the rest.
    #[serde(default = "usual_comtrees", skip_serializing_if = "are_usual")]
    pub comtrees: u32,
    /// The number of its life, which grows with each start.
    pub life: u32,
}

impl Register {
    /// How many comtrees a relay can carry that does not say it, as those of earlier releases do not.
    pub const COMTREES: u32 = 1024;
}

fn usual_comtrees() -> u32 {
    Register::COMTREES
}

fn are_usual(comtrees: &u32) -> bool {
    *comtrees == Register::COMTREES
}

/// What a relay is told that has registered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Registered {
    /// Its number, which is its site on every comtree.
    pub relay: u16,
    /// The keys whose tokens let in, one a line, as in a trust file.
    pub issuers: String,
}

/// A participant that wants to enter a world. Its key is the channel's.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Join {
    /// The world's name.
    pub world: String,
    /// A token for the world; nothing if it is open.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub credential: Option<String>,
    /// What it wants to send and be sent; what its credential or the world says if nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub budget: Option<Budget>,
    /// How near the relays are that it has measured.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub measured: Vec<Nearness>,
    /// A number for its visit, the same from a join to the leave, and higher than those of earlier visits: so who leaves
    /// leaves no place of a later join, and a late join is told from it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub visit: Option<u64>,
}

/// How much may be sent and received.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Budget {
    /// Bits a second that it sends.
    pub up_bits: u64,
    /// Packets a second that it sends.
    pub up_packets: u64,
    /// Bits a second that it receives.
    pub down_bits: u64,
    /// Packets a second that it receives.
    pub down_packets: u64,
}

/// How near a relay is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Nearness {
    /// The relay's name.
    pub relay: String,
    /// The time one way, microseconds.
    pub delay_us: u32,
}

/// How the controller answers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reply<T> {
    /// It is done; the answer says what there is to know.
    Done(T),
    /// It is not done, and nothing has changed: what is wrong, where, and the remedy.
    Refused(serde_json::Value),
}
