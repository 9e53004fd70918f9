//! What an operation writes, and what it has outside once that is committed.

use crate::codec::Coded;
use crate::comtree::Step;
use crate::error::Refusal;
use crate::model::{LinkId, RelayId, WorldId};
use crate::name::Name;
use crate::signal::{Item, ItemKey};
use crate::storage::{Table, Write};
use canopy_areas::Areas;
use canopy_wire::{Address, Comtree};
use core::time::Duration;
use std::sync::Arc;

/// Something that the controller tells whoever runs it.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// A member's relay lets it in: its token may be given out.
    Admitted {
        /// The world.
        world: WorldId,
        /// Its address there.
        address: Address,
    },
    /// A member that was in already has a new lease.
    Renewed {
        /// The world.
        world: WorldId,
        /// Its address there.
        address: Address,
    },
    /// A member that had a reservation is let in after all not.
    Refused {
        /// The world.
        world: WorldId,
        /// The address that it was to have.
        address: Address,
        /// Why.
        why: Refusal,
    },
    /// Somebody was not let into a world, because a link, a relay or the world has no room. Nothing was reserved.
    NotLetIn {
        /// The world.
        world: WorldId,
        /// Why, the last time.
        why: Refusal,
        /// How often that was so within a second at the same place.
        times: u64,
    },
    /// A member has left, and nothing is reserved for it any more.
    Left {
        /// The world.
        world: WorldId,
        /// The address that it had.
        address: Address,
    },
    /// A comtree has a new tree.
    Reshaped {
        /// Which.
        comtree: Comtree,
        /// Why.
        why: String,
    },
    /// No tree that is whole can be had for a comtree; whoever can be joined is.
    Broken {
        /// Which.
        comtree: Comtree,
        /// Why, and what would help.
        why: String,
    },
    /// A relay was silent for too long: its members were given up.
    RelayLost(RelayId),
    /// A relay is there, again or for the first time.
    RelayFound(RelayId),
    /// A relay has registered for the first time.
    RelayRegistered(RelayId),
    /// A relay takes no new members from now on.
    RelayDraining(RelayId),
    /// A relay that was draining takes members again.
    RelayServing(RelayId),
    /// A relay is being removed: it drains, and comtrees move off it.
    RelayRemoving(RelayId),
    /// A relay was taken away. Its number is not given again.
    RelayRemoved {
        /// The number that it had.
        relay: RelayId,
        /// Its name.
        name: Name,
    },
    /// There is a new link.
    LinkAdded(LinkId),
    /// A link is being removed: comtrees move off it.
    LinkRemoving(LinkId),
    /// A link that was being removed stays.
    LinkKept(LinkId),
    /// A link was taken away. Its number is not given again.
    LinkRemoved(LinkId),
    /// Both ends of a link hear each other again, and it can be used.
    LinkUp(LinkId),
    /// An end of a link does not hear the other.
    LinkDown(LinkId),
    /// A link is not used for a while, because it comes and goes.
    LinkDamped(LinkId),
    /// There is a new world.
    WorldCreated(WorldId),
    /// A world was changed.
    WorldChanged(WorldId),
    /// A world's areas are others, or have gone a step further.
    AreasChanged {
        /// The world.
        world: WorldId,
        /// Its areas now.
        areas: Arc<Areas>,
    },
    /// A world is being deleted: nobody enters, and its members are sent away.
    WorldClosing(WorldId),
    /// A world is gone.
    WorldDeleted {
        /// The number that it had.
        world: WorldId,
        /// Its name.
        name: Name,
    },
}

/// What happens outside once the writes of an operation are committed.
#[derive(Clone, Debug)]
pub(crate) enum Effect {
    /// A relay is to have a link, or not.
    Link(RelayId, LinkId, Option<Item>),
    /// A relay is to have a comtree as it is here, or not.
    Comtree(Comtree, RelayId, Option<Item>),
    /// A relay keeps what it has of a comtree, and what follows waits until it has said what that is.
    Await(Comtree, RelayId),
    /// What follows for the comtree waits until its relays have all of what came before.
    Barrier(Comtree),
    /// What follows a barrier waits so long besides: what is on its way over a link of the comtree has arrived then.
    Arrival(Comtree, Duration),
    /// A comtree's step that was not done is taken back by both of its relays.
    TakenBack(Comtree),
    /// The relays of a comtree's step have the phase that is under way.
    Told(Comtree),
    /// The relays of a comtree's step that is done have what follows from it; or, without a step, what they are to
    /// have before a move is resumed.
    Passed(Comtree, Option<Step>),
    /// Once all relays have what came before, they have the tree, up to the change of this number.
    RolledOut(Comtree, u64),
    /// A relay is to let a member in, once all relays have what was reserved for it.
    Admit(Comtree, RelayId, Item),
    /// A relay is to send a member away.
    Dismiss(Comtree, RelayId, Address),
    /// A relay is waited for no more.
    Lost(RelayId),
    /// A relay is there again.
    Found(RelayId),
    /// A relay was taken away: it is told that it has nothing any more, as long as it is there.
    Removed(RelayId),
    /// A member is told that it is admitted, if it is and is not about to be.
    Confirm(WorldId, Address),
    /// Somebody is told.
    Tell(Event),
}

impl Effect {
    /// Whether it waits for what is on its way over a link of this comtree.
    pub(crate) fn is_arrival(&self, comtree: Comtree) -> bool {
        matches!(self, Effect::Arrival(of, _) if *of == comtree)
    }
}

/// Writes that are made together, and what they lead to.
#[derive(Clone, Debug, Default)]
pub(crate) struct Op {
    /// What comes first, and may be committed without what follows.
    earlier: Vec<Op>,
    pub(crate) writes: Vec<Write>,
    pub(crate) effects: Vec<Effect>,
}

impl Op {
    /// Writes a record, or removes it.
    pub(crate) fn write<T: Coded>(&mut self, table: Table, key: Vec<u8>, record: Option<&T>) {
        self.writes.push(Write { table, key, value: record.map(Coded::to_bytes) });
    }

    pub(crate) fn tell(&mut self, event: Event) {
        self.effects.push(Effect::Tell(event));
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.earlier.is_empty() && self.writes.is_empty() && self.effects.is_empty()
    }

    /// What is there may be committed without what follows: whatever concerns any number of comtrees is cut after
    /// each, as a commit has few writes.
    pub(crate) fn cut(&mut self) {
        let Op { writes, effects, .. } = self;
        let (writes, effects) = (core::mem::take(writes), core::mem::take(effects));
        let part = Op { earlier: Vec::new(), writes, effects };
        if !part.is_empty() {
            self.earlier.push(part);
        }
    }

    /// Nothing of this comtree waits for what is on its way over a link.
    pub(crate) fn hurry(&mut self, comtree: Comtree) {
        self.earlier.iter_mut().for_each(|part| part.hurry(comtree));
        self.effects.retain(|effect| !effect.is_arrival(comtree));
    }

    /// What is committed together each time, in order.
    pub(crate) fn parts(mut self) -> Vec<Op> {
        self.cut();
        self.earlier
    }

    /// Another one follows, and its first part is committed with what is there.
    pub(crate) fn append(&mut self, other: Op) {
        for Op { mut writes, mut effects, .. } in other.parts() {
            self.writes.append(&mut writes);
            self.effects.append(&mut effects);
            self.cut();
        }
    }
}

/// What a member is known by at its relay.
pub(crate) fn member_key(comtree: Comtree, address: Address) -> ItemKey {
    ItemKey::Member(comtree, address)
}
