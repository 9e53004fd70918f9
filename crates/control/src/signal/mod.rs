//! Signalling: calls to relays that take effect at most once (DESIGN §6).
//!
//! The controller numbers its calls to a relay and repeats each until it is answered. The relay
//! executes them in the order of their numbers, each once, and keeps its answers until the
//! controller says that it has them. Numbers hold between one life of the controller and one of the
//! relay: a relay that has started anew takes no call that was meant for its life before, and a
//! controller that was replaced is heeded no more. Then the new pair begins with a [`Call::List`].

mod callee;
mod caller;
mod loads;
mod measure;
mod message;

pub use callee::{Callee, Ticket};
pub use caller::{Caller, Retry};
pub use loads::LinkLoad;
pub use measure::{MOST_MEASURED, Measure, Measured, Other, Reading};
pub(crate) use message::FRAME;
pub use message::{
    Answer, Branch, Call, FoundWay, Item, ItemKey, LinkReport, MOST_ASKED_AFTER, MOST_DETOURS,
    MOST_SUCCEEDED, MOST_TOGETHER, Message, Role,
};

/// How many calls may be on their way to a relay.
pub const WINDOW: u64 = 64;
