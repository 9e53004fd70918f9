//! Who enters a world, changes what it may do, and leaves (Forest §3.4.2, §7).

use crate::error::Refusal;
use crate::ledger::Flow;
use crate::model::{Member, MemberState, Owner, RelayId, RelayState, WorldId};
use crate::name::Name;
use crate::op::{Effect, Event, Op};
use crate::shape::Load;
use crate::state::State;
use canopy_plan::{Limits, Rate};
use canopy_token::{Budget, ComtreeGrant, Grant, Scope, Unicast};
use canopy_wire::{Address, Comtree, Time};

/// The first endpoint number of a member: lower ones are the relays' own.
const FIRST_ENDPOINT: u16 = 64;

/// What an endpoint asks for, whose credential was checked.
#[derive(Clone, Debug, PartialEq)]
pub struct Enter {
    /// The world.
    pub world: Name,
    /// Who it is. Who asks again gets what it has.
    pub owner: Owner,
    /// What it sends and receives at most; the world's default if it does not say.
    pub limits: Option<Limits>,
    /// The relays that it has measured, and the time one way to each, microseconds.
    pub measured: Vec<(RelayId, u32)>,
}

/// What an endpoint gets. It is reserved; the relay lets it in once
/// [`Event::Admitted`](crate::Event) says so, or `Renewed` if it was in already.
#[derive(Clone, Debug, PartialEq)]
pub struct Admission {
    /// The world.
    pub world: WorldId,
    /// The relay that serves it.
    pub relay: RelayId,
    /// Its address on each comtree.
    pub address: Address,
    /// The world's comtrees.
    pub comtrees: Vec<Comtree>,
    /// What it sends and receives at most, on each comtree.
    pub limits: Limits,
    /// When the lease ends, unless it is renewed.
    pub until: Time,
    /// What its token grants.
    pub grant: Grant,
}

impl State {
    /// Lets an endpoint enter: the nearest relay by measured delay that has room gets it.
    pub(crate) fn enter(
        &mut self,
        op: &mut Op,
        now: Time,
        ask: &Enter,
    ) -> Result<Admission, Refusal> {
        let world = self.world(&ask.world)?;
        let (id, default) = (world.id, world.default);
        self.may_enter(now, id, ask)?;
        if let Some(address) = self.owners.get(&(id, ask.owner)).copied() {
            self.renew(op, now, id, address)?;
            op.effects.push(Effect::Confirm(id, address));
            return self.admission(id, address);
        }
        let limits = ask.limits.unwrap_or(default).whole();
        let address = self.enter_nearest(op, now, id, ask, limits, |_, _| true)?;
        self.admission(id, address)
    }

    pub(crate) fn may_enter(&self, now: Time, id: WorldId, ask: &Enter) -> Result<(), Refusal> {
        if self.worlds.get(&id).is_none_or(|world| world.closing) {
            return Err(Refusal::Closing(ask.world.clone()));
        }
        let barred = self.bars.get(&(id, ask.owner)).copied().filter(|bar| *bar > now);
        barred.map_or(Ok(()), |until| {
            let seconds = until.since(now).as_secs_f64().ceil() as u64;
            Err(Refusal::Barred { world: ask.world.clone(), seconds })
        })
    }

    /// The nearest relay that takes members, has room, and suits gets it.
    pub(crate) fn enter_nearest(
        &mut self,
        op: &mut Op,
        now: Time,
        world: WorldId,
        ask: &Enter,
        limits: Limits,
        suits: impl Fn(RelayId, u32) -> bool,
    ) -> Result<Address, Refusal> {
        let mut measured = ask.measured.clone();
        measured.sort_by_key(|(relay, delay)| (*delay, *relay));
        let takes = |relay: &RelayId| {
            let is_up = self.relays.get(relay).is_some_and(|of| of.state == RelayState::Up);
            is_up && !self.silent.contains(relay)
        };
        measured.retain(|(relay, delay)| takes(relay) && suits(*relay, *delay));
        let mut nearest = Refusal::NoRelay(ask.measured.len());
        for (place, (relay, _)) in measured.into_iter().enumerate() {
            match self.enter_at(op, now, world, relay, ask.owner, limits) {
                Ok(address) => return Ok(address),
                Err(refusal) if place == 0 => nearest = refusal,
                Err(_) => {}
            }
        }
        Err(nearest)
    }

    fn enter_at(
        &mut self,
        op: &mut Op,
        now: Time,
        world: WorldId,
        relay: RelayId,
        owner: Owner,
        limits: Limits,
    ) -> Result<Address, Refusal> {
        let address = self.free_address(world, relay)?;
        self.place(op, world, relay, |(count, sum)| (count + 1, sum + limits), 1.0)?;
        self.endpoints.insert((world, relay), address.endpoint());
        let until = now + self.settings.lease;
        let state = MemberState::Held;
        let reserved = limits;
        let member = Member { world, address, owner, limits, reserved, until, state, barred: None };
        self.admit(op, &member);
        self.save_member(op, member);
        Ok(address)
    }

    /// Tells a member's relay of it, on all comtrees.
    fn admit(&self, op: &mut Op, member: &Member) {
        let comtrees = self.comtrees_of(member.world);
        op.effects.extend(comtrees.iter().map(|comtree| {
            Effect::Admit(*comtree, member.relay(), State::member_item(*comtree, member))
        }));
    }

    fn dismiss(&self, op: &mut Op, member: &Member) {
        let comtrees = self.comtrees_of(member.world);
        let dismiss = |comtree: &Comtree| Effect::Dismiss(*comtree, member.relay(), member.address);
        op.effects.extend(comtrees.iter().map(dismiss));
    }

    fn comtrees_of(&self, world: WorldId) -> &[Comtree] {
        self.worlds.get(&world).map_or(&[], |world| &world.comtrees)
    }

    /// The next address of a relay that nobody has and that does not rest.
    fn free_address(&self, world: WorldId, relay: RelayId) -> Result<Address, Refusal> {
        let last = self.endpoints.get(&(world, relay)).copied().unwrap_or(FIRST_ENDPOINT - 1);
        let later = (last..u16::MAX).map(|number| number + 1);
        let address = |endpoint| Address::unicast(relay.0, endpoint);
        let mut all = later.chain(FIRST_ENDPOINT..=last).map(address);
        let free = all.find(|address| !self.members.contains_key(&(world, *address)));
        free.ok_or_else(|| match (self.relays.get(&relay), self.worlds.get(&world)) {
            (Some(relay), Some(world)) => {
                Refusal::NoAddress { relay: relay.name.clone(), world: world.name.clone() }
            }
            _ => Refusal::NoSuchRelay(self.relay_name(relay)),
        })
    }

    pub(crate) fn admission(&self, id: WorldId, address: Address) -> Result<Admission, Refusal> {
        let member = self.served(id, address)?;
        let Some(world) = self.worlds.get(&id) else {
            return Err(Refusal::NoSuchWorld(id.0.to_string()));
        };
        let Member { limits, until, .. } = member;
        let of = |comtree: &Comtree| ComtreeGrant {
            comtree: *comtree,
            publish: Scope::everything(),
            subscribe: Scope::everything(),
            unicast: Unicast::Anybody,
        };
        let some = |number: f64| Some(number as u64);
        let budget = Budget {
            up_bits: some(limits.send.bits),
            up_packets: some(limits.send.packets),
            down_bits: some(limits.receive.bits),
            down_packets: some(limits.receive.packets),
        };
        let grant = Grant {
            world: world.name.to_string(),
            address: Some(address),
            comtrees: world.comtrees.iter().map(of).collect(),
            budget,
            roles: Vec::new(),
        };
        let (relay, comtrees) = (member.relay(), world.comtrees.clone());
        Ok(Admission { world: id, relay, address, comtrees, limits: *limits, until: *until, grant })
    }

    pub(crate) fn held(&self, world: WorldId, address: Address) -> Result<&Member, Refusal> {
        self.one_of(world, address, &[MemberState::Held])
    }

    /// A member that its relay serves, or is to.
    fn served(&self, world: WorldId, address: Address) -> Result<&Member, Refusal> {
        self.one_of(world, address, &[MemberState::Held, MemberState::Moving])
    }

    fn one_of(
        &self,
        world: WorldId,
        address: Address,
        states: &[MemberState],
    ) -> Result<&Member, Refusal> {
        let member = self.members.get(&(world, address));
        member.filter(|member| states.contains(&member.state)).ok_or_else(|| {
            let name = self.worlds.get(&world).map(|world| world.name.to_string());
            Refusal::NoSuchMember {
                address: address.to_string(),
                world: name.unwrap_or_else(|| world.0.to_string()),
            }
        })
    }

    /// Prolongs a lease.
    pub(crate) fn renew(
        &mut self,
        op: &mut Op,
        now: Time,
        world: WorldId,
        address: Address,
    ) -> Result<Time, Refusal> {
        let until = now + self.settings.lease;
        let member = Member { until, ..self.held(world, address)?.clone() };
        self.save_member(op, member);
        Ok(until)
    }

    /// Changes a member's limits. What is more is reserved before the relay is told, what is less is
    /// given back once the relay says that it is in force: see [`State::settle_limits`].
    pub(crate) fn modify(
        &mut self,
        op: &mut Op,
        world: WorldId,
        address: Address,
        limits: Limits,
    ) -> Result<(), Refusal> {
        let mut member = self.served(world, address)?.clone();
        let limits = limits.whole();
        let reserved = most(member.reserved, limits);
        let more = reserved - member.reserved;
        self.place(op, world, member.relay(), |(count, sum)| (count, sum + more), 0.0)?;
        member.limits = limits;
        member.reserved = reserved;
        self.admit(op, &member);
        self.save_member(op, member);
        Ok(())
    }

    /// The relay holds a member to its limits: what is reserved beyond is given back.
    pub(crate) fn settle_limits(&mut self, op: &mut Op, world: WorldId, address: Address) {
        let Some(member) = self.members.get(&(world, address)).cloned() else { return };
        if self.served(world, address).is_ok() && member.reserved != member.limits {
            let less = member.reserved - member.limits;
            self.give_back(op, world, member.relay(), |(count, sum)| (count, sum - less), 0.0);
            self.save_member(op, Member { reserved: member.limits, ..member });
        }
    }

    /// A member leaves: its relay is told, and what was reserved lasts until the relay says so. If it was
    /// about to move here, it stays where it was.
    pub(crate) fn leave(
        &mut self,
        op: &mut Op,
        world: WorldId,
        address: Address,
    ) -> Result<(), Refusal> {
        let before = self.served(world, address)?.clone();
        let member = Member { state: MemberState::Leaving, ..before.clone() };
        self.dismiss(op, &member);
        self.save_member(op, member);
        if before.state == MemberState::Held {
            self.stay(op, world, before.owner);
        }
        Ok(())
    }

    /// Sends a member away, from both relays while it moves; its owner may not enter again before
    /// `barred`.
    pub(crate) fn kick(
        &mut self,
        op: &mut Op,
        world: WorldId,
        address: Address,
        barred: Time,
    ) -> Result<(), Refusal> {
        let owner = self.served(world, address)?.owner;
        for address in self.depart(op, world, owner) {
            if let Some(member) = self.members.get(&(world, address)).cloned() {
                self.save_member(op, Member { barred: Some(barred), ..member });
            }
        }
        Ok(())
    }

    /// A member's relay serves it no more: what was reserved is given back, and the address rests as
    /// long as the member's token may still be used, and longer.
    pub(crate) fn release(&mut self, op: &mut Op, now: Time, world: WorldId, address: Address) {
        let Some(member) = self.members.get(&(world, address)).cloned() else { return };
        if member.state != MemberState::Leaving {
            return;
        }
        let reserved = member.reserved;
        self.give_back(op, world, member.relay(), |(count, sum)| (count - 1, sum - reserved), 1.0);
        let until = member.until.max(now) + self.settings.rest;
        // The record is what bars the owner, so it lasts as long.
        let until = member.barred.map_or(until, |barred| barred.max(until));
        self.save_member(op, Member { state: MemberState::Resting, until, ..member });
        op.tell(Event::Left { world, address });
        self.close_if_empty(op, world);
    }

    fn give_back(
        &mut self,
        op: &mut Op,
        world: WorldId,
        relay: RelayId,
        change: impl Fn(Load) -> Load,
        members: f64,
    ) {
        self.ledger.enter(&[Flow::Members(relay, -members)]);
        for comtree in self.comtrees_of(world).to_vec() {
            let Some(running) = self.comtrees.get_mut(&comtree) else { continue };
            let Some(shape) = running.shape.as_mut().filter(|shape| shape.has(relay)) else {
                continue;
            };
            let load = change(shape.load(relay));
            if running.moving.is_some() {
                _ = self.change_in_move(op, comtree, relay, load, false);
                let shape = self.comtrees.get(&comtree).and_then(|running| running.shape.as_ref());
                // What else has become idle goes when the move is done.
                if shape.is_some_and(|shape| shape.all_members() == 0) {
                    self.prune(op, comtree);
                }
                continue;
            }
            let (flows, relays) = shape.change(relay, load);
            self.ledger.enter(&flows);
            for at in relays {
                op.effects.push(Effect::Comtree(comtree, at, self.comtree_item(comtree, at)));
            }
            if load.0 == 0 {
                self.prune(op, comtree);
            }
        }
    }

    /// Ends leases and rests that are over: one at a time. Returns whether there was one.
    pub(crate) fn expire(&mut self, op: &mut Op, now: Time) -> bool {
        let Some((until, world, address)) = self.ends.first().copied() else { return false };
        if until > now {
            return false;
        }
        match self.members.get(&(world, address)).map(|member| member.state) {
            Some(MemberState::Held | MemberState::Moving) => _ = self.leave(op, world, address),
            Some(MemberState::Resting) => self.forget_member(op, (world, address)),
            _ => _ = self.ends.pop_first(),
        }
        true
    }

    /// Gives up a member whose relay is silent.
    pub(crate) fn give_up(&mut self, op: &mut Op, now: Time, world: WorldId, address: Address) {
        _ = self.leave(op, world, address);
        self.release(op, now, world, address);
    }
}

/// The larger of each number.
fn most(one: Limits, other: Limits) -> Limits {
    let of = |one: Rate, other: Rate| Rate {
        bits: one.bits.max(other.bits),
        packets: one.packets.max(other.packets),
    };
    Limits { send: of(one.send, other.send), receive: of(one.receive, other.receive) }
}
