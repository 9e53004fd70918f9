//! The control plane: worlds that are admitted, placed, provisioned, signalled and repaired
//! (Forest §2.2, §3.1, §3.4–3.5, §7).
//!
//! [`Controller`] decides, [`RelaySide`] executes, [`Storage`] keeps. All of it is sans-IO: messages,
//! time and what became of a commit come in as arguments.
//!
//! ```text
//!  enter, leave, …      ┌────────────┐  poll_commit ──▶ storage ──▶ handle_commit
//!  ───────────────────▶ │ Controller │
//!  ◀─── poll_event ──── └────────────┘ ◀── Call, Answer, Beat ──▶ RelaySide ──▶ the data plane
//! ```
#![forbid(unsafe_code)]

mod admission;
mod agent;
mod audit;
mod codec;
mod comtree;
mod controller;
mod damping;
mod delay;
mod error;
mod explain;
mod found;
mod hops;
mod ledger;
mod measuring;
mod mesh;
mod model;
mod moves;
mod name;
mod op;
mod overlap;
mod parted;
mod placement;
mod planned;
mod propose;
mod proposing;
mod relay_side;
mod relocation;
mod remove;
mod repair;
mod resuming;
mod rollouts;
mod running;
mod settings;
mod shape;
pub mod signal;
mod standby;
mod starting;
mod state;
mod steps;
pub mod storage;
mod worlds;

pub use admission::{Admission, Enter};
pub use codec::CodecError;
pub use controller::{Controller, NewAreas, NotLetIn, TreeOnTheWay, WORD_COMES};
pub use error::{LoadError, Refusal};
pub use explain::{Explanation, LinkOnTree, RelayOnTree};
pub use ledger::{Account, Lack};
pub use measuring::Ignored;
pub use model::{
    COMTREES_OF_RELAY, Channel, ComtreeRecord, Core, Counters, Downlink, Entry, Key, Link, LinkId,
    MOST_LINKS, Member, MemberState, Mode, Origin, Owner, PeerLink, Relay, RelayId, RelayState,
    RemovedRelay, Sharing, TreeAsk, TreeHop, World, WorldId,
};
pub use name::{MAX_NAME, Name, NameError};
pub use op::Event;
pub use planned::MovePlan;
pub use relay_side::{Applying, RelaySide};
pub use repair::NewRelay;
pub use settings::Settings;
pub use signal::{Item, ItemKey, LinkReport, Message, Retry};
pub use storage::Storage;
pub use worlds::{MOST_COMTREES, MOST_TICKS, NewWorld, WorldChanges};
