//! Why the controller does not do what it is asked.

use crate::name::{Name, NameError};
use crate::storage::StorageError;
use canopy_areas::AreasError;

/// Why something was refused. Nothing has changed then.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// A name is none.
    #[error(transparent)]
    Name(#[from] NameError),
    /// There is no world of that name.
    #[error("there is no world {0}; create it first, or see which there are")]
    NoSuchWorld(String),
    /// There is a world of that name.
    #[error("there is a world {0} already; choose another name")]
    WorldExists(Name),
    /// The world is being deleted.
    #[error("the world {0} is being deleted; wait until it is gone, or enter another")]
    Closing(Name),
    /// There is no such relay.
    #[error("there is no relay {0}; see which there are")]
    NoSuchRelay(String),
    /// A relay of that name has another key.
    #[error(
        "the relay {0} is known by another key; give this one another name, or remove that one first"
    )]
    OtherKey(Name),
    /// A relay that was removed registers again.
    #[error(
        "the relay {was} was removed, and {relay} has its key; let it register again with `canopy relay allow {was}`, or start it with another key"
    )]
    Removed {
        /// The name that it registers with.
        relay: Name,
        /// The name that it had.
        was: Name,
    },
    /// No relay of that name was removed.
    #[error("no relay {0} is kept out; see which were removed")]
    NotRemoved(Name),
    /// There is no such link.
    #[error("there is no link {0}; see which there are")]
    NoSuchLink(u32),
    /// A link from a relay to itself.
    #[error("a link joins two relays; both ends are {0}")]
    OwnLink(Name),
    /// A relay has as many links as it can have.
    #[error("the relay {0} has {MOST} links, as many as it can have; remove one first", MOST = crate::model::MOST_LINKS)]
    TooManyLinks(Name),
    /// All numbers of a kind were given.
    #[error("all numbers for {0} were given; a new store begins anew")]
    OutOfNumbers(&'static str),
    /// None of the relays that were measured takes anybody.
    #[error(
        "none of the {0} relays that were measured takes members now; measure others, or add a relay"
    )]
    NoRelay(usize),
    /// A world has no address left.
    #[error("the world {0} has no address left; wait until one has rested, or use another world")]
    NoAddress(Name),
    /// Nobody has the address.
    #[error("nobody has the address {address} in the world {world}; it may have left by now")]
    NoSuchMember {
        /// The address.
        address: String,
        /// The world.
        world: String,
    },
    /// A relay or a link has too little left.
    #[error(
        "{what}: {asked} more is asked for, {free} is free; ask for less, or take another relay"
    )]
    Full {
        /// The relay or the link, with its direction.
        what: String,
        /// What was asked for.
        asked: String,
        /// What is free.
        free: String,
    },
    /// No path leads from a relay to those that are on the comtree.
    #[error(
        "no links that are up lead from the relay {relay} to the world {world}; join it to another relay, or wait for its links"
    )]
    Apart {
        /// Which relay.
        relay: Name,
        /// Which world.
        world: Name,
    },
    /// Somebody was sent away, and may not come back yet.
    #[error("the world {world} does not let this one in for another {seconds} s; wait until then")]
    Barred {
        /// The world.
        world: Name,
        /// How long it lasts, seconds.
        seconds: u64,
    },
    /// Something of a world cannot change while it has members.
    #[error(
        "the {what} of the world {world} cannot change while it has members; send them away first, or create another world"
    )]
    HasMembers {
        /// The world.
        world: Name,
        /// What was to be changed.
        what: &'static str,
    },
    /// Worlds would have more different ticks than relays have queues for.
    #[error(
        "no world may have a tick of {tick_ms} ms: there are {} others already, and relays keep no more apart; choose one of {ticks:?} ms",
        .ticks.len()
    )]
    TooManyTicks {
        /// The tick that was asked for, milliseconds.
        tick_ms: u16,
        /// Those that worlds have, in order.
        ticks: Vec<u16>,
    },
    /// A relay is to be taken away at once and serves members still.
    #[error(
        "the relay {relay} serves {members} members; remove it without ?force=true, so that they move first, or send them away"
    )]
    StillServes {
        /// Which relay.
        relay: Name,
        /// How many members.
        members: usize,
    },
    /// A link or relay is to be taken away and a world cannot do without it.
    #[error("{what} carries {worlds}, and no other way was found: {why}; add a link first")]
    Needed {
        /// The link or relay.
        what: String,
        /// The worlds.
        worlds: String,
        /// Why there is no other way for the first of them.
        why: String,
    },
    /// A world's tree cannot be moved to another without loss.
    #[error("the world {world} stays on its tree: {why}; wait, or add links, and ask again")]
    NotMoved {
        /// The world.
        world: String,
        /// Why.
        why: String,
    },
    /// A world cannot be divided so.
    #[error(transparent)]
    Areas(#[from] AreasError),
    /// A world has no channel of that name for its areas.
    #[error(
        "the world {world} has no channel {channel}; name one that it has, or give it one first"
    )]
    NoSuchChannel {
        /// The world.
        world: Name,
        /// The channel that was named.
        channel: Name,
    },
    /// A ring has a level that the world does not have.
    #[error(
        "level {level} is above {levels}, the highest of the world {world}; give a lower one, or the world more levels"
    )]
    NoSuchLevel {
        /// The world.
        world: Name,
        /// The level.
        level: u8,
        /// The highest.
        levels: u8,
    },
    /// The areas of a world are being changed.
    #[error("the areas of the world {0} are being changed; ask again in some seconds")]
    AreasChanging(Name),
    /// A relay did not do what it was told.
    #[error("the relay {relay} refused: {why}")]
    Relay {
        /// Which.
        relay: Name,
        /// What it said.
        why: String,
    },
}

/// Why the controller cannot go on. It is to be loaded from storage again.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum LoadError {
    /// Storage does not answer.
    #[error(transparent)]
    Storage(#[from] StorageError),
    /// Records contradict each other.
    #[error("the records contradict each other: {0}; restore them from a copy")]
    Contradiction(String),
}
