//! A participant moves to another relay (Forest §3.5, §7): it has a place at both for a while, so that it
//! can make the new session before it breaks the old one.
//!
//! The new place is its owner's from the start, and the old one is [`MemberState::Moving`]. Both are
//! records, and both have a lease: whoever dies on the way, nothing is left of either.

use crate::admission::{Admission, Enter};
use crate::error::Refusal;
use crate::model::{Entry, Member, MemberState, Owner, RelayId, RelayState, WorldId};
use crate::op::Op;
use crate::state::State;
use canopy_wire::{Address, Time};
use std::collections::BTreeSet;

/// Another relay has to be nearer by so much, one way, microseconds: what is less nobody notices, and
/// delays that are measured now and then differ by some milliseconds.
const LEAST_NEARER_US: u32 = 10_000;
/// And by this share of the way, percent: over a long way delays differ by more.
const LEAST_NEARER_PERCENT: u64 = 25;

impl State {
    /// Prolongs a participant's lease like [`State::enter`]; and gives it a place at another relay, if its
    /// own one drains or another is nearer by far. Then it has both.
    pub(crate) fn relocate(
        &mut self,
        op: &mut Op,
        now: Time,
        ask: &Enter,
    ) -> Result<Admission, Refusal> {
        let world = self.world(&ask.world)?.id;
        let owner = (world, ask.owner);
        let present = self.owners.get(&owner).and_then(|at| self.held(world, *at).ok()).cloned();
        // Who moves already, and has not heard of it, hears of the same place again.
        let Some(present) = present.filter(|_| !self.moving.contains_key(&owner)) else {
            return self.enter(op, now, ask);
        };
        let at = present.relay;
        let drains = self.relays.get(&at).is_none_or(|relay| relay.state != RelayState::Up);
        let delay = ask.measured.iter().find(|(relay, _)| *relay == at).map(|(_, delay)| *delay);
        let suits = |relay: RelayId, near: u32| {
            relay != at && (drains || delay.is_some_and(|delay| is_nearer(near, delay)))
        };
        // A tree that grows while it moves ends its move where it is, which may lose updates.
        let calm: BTreeSet<RelayId> = ask
            .measured
            .iter()
            .map(|(relay, _)| *relay)
            .filter(|relay| self.leaves_trees_alone(world, *relay))
            .collect();
        let suits = |relay: RelayId, near: u32| suits(relay, near) && calm.contains(&relay);
        if !drains && !ask.measured.iter().any(|(relay, near)| suits(*relay, *near)) {
            return self.enter(op, now, ask);
        }
        self.may_enter(now, world, ask)?;
        let address = match self.enter_nearest(op, now, world, ask, present.limits, suits) {
            Ok(address) => address,
            Err(refusal) if drains => return Err(refusal),
            // What is nearer is full, or about to go.
            Err(_) => return self.enter(op, now, ask),
        };
        // What it has stays as it is, in case the other place comes to nothing.
        self.save_member(op, Member { state: MemberState::Moving, ..present });
        self.admission(world, address)
    }

    /// Whether a member can be placed at a relay without an end of a move of the world's trees.
    fn leaves_trees_alone(&self, world: WorldId, relay: RelayId) -> bool {
        let comtrees = self.worlds.get(&world).into_iter().flat_map(|world| &world.comtrees);
        comtrees.filter_map(|comtree| self.comtrees.get(comtree)).all(|running| {
            running.moving.is_none() || running.shapes().all(|shape| shape.has(relay))
        })
    }

    /// A participant gives one of its places back: the one that it has moved from, or the one that it was
    /// to move to. Then it stays where it was.
    pub(crate) fn give_up_place(
        &mut self,
        op: &mut Op,
        world: WorldId,
        owner: Owner,
        address: Address,
    ) -> Result<(), Refusal> {
        let is_its_own = |member: &&Member| member.owner == owner;
        let Some(member) = self.members.get(&(world, address)).filter(is_its_own) else {
            let world = self.worlds.get(&world).map(|world| world.name.to_string());
            let (address, world) = (address.to_string(), world.unwrap_or_default());
            return Err(Refusal::NoSuchMember { address, world });
        };
        if member.is_given_up() {
            self.stay_away(op, member.clone());
            return Ok(());
        }
        self.leave(op, world, address)
    }

    /// A participant that has lost its place comes back no more by what it was in. Returns whether it could have.
    pub(crate) fn renounce(&mut self, op: &mut Op, world: WorldId, owner: Owner) -> bool {
        let last = self.former.get(&(world, owner)).and_then(|at| self.members.get(&(world, *at)));
        let given_up = last.filter(|member| member.is_given_up()).cloned();
        let could = given_up.is_some();
        given_up.into_iter().for_each(|member| self.stay_away(op, member));
        could
    }

    /// A participant leaves with all places that it has. Returns their addresses.
    pub(crate) fn depart(&mut self, op: &mut Op, world: WorldId, owner: Owner) -> Vec<Address> {
        // The one that it moves from first, as it would be held otherwise.
        let places = [&self.moving, &self.owners].map(|of| of.get(&(world, owner)).copied());
        let places = places.into_iter().flatten();
        places.filter(|address| self.leave(op, world, *address).is_ok()).collect()
    }

    /// Notes by what a participant is in, at all places that it has.
    pub(crate) fn set_entry(&mut self, op: &mut Op, world: WorldId, owner: Owner, entry: Entry) {
        let places = [&self.moving, &self.owners].map(|of| of.get(&(world, owner)).copied());
        for address in places.into_iter().flatten() {
            let member = self.members.get(&(world, address)).filter(|of| of.entry != entry);
            if let Some(member) = member.cloned() {
                self.save_member(op, Member { entry, ..member });
            }
        }
    }

    /// What a participant was to move to is gone: the place that it has is its own again.
    pub(crate) fn stay(&mut self, op: &mut Op, world: WorldId, owner: Owner) {
        let Some(address) = self.moving.get(&(world, owner)) else { return };
        if let Some(member) = self.members.get(&(world, *address)).cloned() {
            self.save_member(op, Member { state: MemberState::Held, ..member });
        }
    }
}

/// Whether a relay is so much nearer than the present one that a move is worth it; microseconds one way.
fn is_nearer(near: u32, present: u32) -> bool {
    let share = 100 - LEAST_NEARER_PERCENT;
    near.saturating_add(LEAST_NEARER_US) <= present
        && u64::from(near) * 100 <= u64::from(present) * share
}

#[cfg(test)]
mod tests {
    use super::is_nearer;

    #[test]
    fn a_relay_is_nearer_by_ten_milliseconds_and_a_quarter_of_the_way() {
        assert!(is_nearer(0, 10_000) && !is_nearer(1, 10_000));
        assert!(is_nearer(75_000, 100_000) && !is_nearer(75_001, 100_000));
        assert!(is_nearer(30_000, 40_000) && !is_nearer(20_001, 30_000));
        assert!(!is_nearer(u32::MAX, u32::MAX));
    }
}
